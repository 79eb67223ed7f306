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

from embedkit._version import __version__

__all__ = [
    "Encoder", "Searcher", "__version__", "extract", "finetune", "load", "probe", "split", "train",
    "verify",
]  # fmt: skip

if TYPE_CHECKING:
    from embedkit.classifiers.probe import probe
    from embedkit.classifiers.train import train
    from embedkit.dataset.extraction import extract
    from embedkit.dataset.store import load
    from embedkit.dataset.verification import verify
    from embedkit.encoding.encoder import Encoder
    from embedkit.finetuning.folds import finetune
    from embedkit.runs.splits import split
    from embedkit.search.searcher import Searcher

_HOMES = {
    "Encoder": "embedkit.encoding.encoder",
    "Searcher": "embedkit.search.searcher",
    "extract": "embedkit.dataset.extraction",
    "finetune": "embedkit.finetuning.folds",
    "load": "embedkit.dataset.store",
    "probe": "embedkit.classifiers.probe",
    "split": "embedkit.runs.splits",
    "train": "embedkit.classifiers.train",
    "verify": "embedkit.dataset.verification",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'embedkit' has no attribute {name!r}")
