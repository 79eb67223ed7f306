"""Hidden vectors of BERT-family encoders for whole corpora, and results from those vectors.

    import embedkit

    encoder = embedkit.Encoder.load()
    X = encoder.encode(["a text", "another one"])
    embedkit.extract("corpus.tsv", out="vectors", layers="all", poolings=["cls", "mean"])
    data = embedkit.load("vectors", view="mean_-1")     # data.X, data.y, data.ids, data.text

Importing this package loads neither torch nor transformers; they are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "Encoder", "Searcher", "__version__", "extract", "finetune", "load", "probe", "split", "train",
    "verify",
]  # fmt: skip

if TYPE_CHECKING:
    from embedkit.classify import train
    from embedkit.encoder import Encoder
    from embedkit.extraction import extract
    from embedkit.finetuning import finetune
    from embedkit.probing import probe
    from embedkit.search import Searcher
    from embedkit.splits import split
    from embedkit.store import load
    from embedkit.verification import verify

_HOMES = {
    "Encoder": "embedkit.encoder",
    "Searcher": "embedkit.search",
    "extract": "embedkit.extraction",
    "finetune": "embedkit.finetuning",
    "load": "embedkit.store",
    "probe": "embedkit.probing",
    "split": "embedkit.splits",
    "train": "embedkit.classify",
    "verify": "embedkit.verification",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'embedkit' has no attribute {name!r}")
