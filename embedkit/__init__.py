"""Hidden vectors of BERT-family encoders for whole corpora, and results from those vectors.

    import embedkit

    encoder = embedkit.Encoder.load()
    X = encoder.encode(["a text", "another one"])
    embedkit.extract("corpus.tsv", out="vectors", layers="all", pooling=["cls", "mean"])
    data = embedkit.load("vectors", view="mean_-1")     # data.X, data.y, data.ids, data.text

Importing this package loads neither torch nor transformers; they are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embedkit._version import __version__

__all__ = [
    "CorpusOptions", "Encoder", "Predictor", "Searcher", "TrainingOptions", "__version__",
    "build_index", "compare", "errors", "export", "extract", "finetune", "load", "probe",
    "repair", "similarity", "split", "tokenize", "train", "verify",
]  # fmt: skip

if TYPE_CHECKING:
    from embedkit import errors
    from embedkit.classifiers.probe import probe
    from embedkit.classifiers.train import train
    from embedkit.comparison.compare import compare
    from embedkit.corpus import CorpusOptions
    from embedkit.dataset.extraction import extract
    from embedkit.dataset.repair import repair
    from embedkit.dataset.store import load
    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.vocabulary import tokenize
    from embedkit.finetuning.export import export
    from embedkit.finetuning.folds import finetune
    from embedkit.finetuning.options import TrainingOptions
    from embedkit.predict import Predictor
    from embedkit.runs.splits import split
    from embedkit.search.index import build_index
    from embedkit.search.searcher import Searcher
    from embedkit.sts import similarity
    from embedkit.verification import verify

_HOMES = {
    "CorpusOptions": "embedkit.corpus",
    "Encoder": "embedkit.encoding.encoder",
    "Predictor": "embedkit.predict",
    "Searcher": "embedkit.search.searcher",
    "TrainingOptions": "embedkit.finetuning.options",
    "build_index": "embedkit.search.index",
    "compare": "embedkit.comparison.compare",
    "export": "embedkit.finetuning.export",
    "extract": "embedkit.dataset.extraction",
    "finetune": "embedkit.finetuning.folds",
    "load": "embedkit.dataset.store",
    "probe": "embedkit.classifiers.probe",
    "repair": "embedkit.dataset.repair",
    "similarity": "embedkit.sts",
    "split": "embedkit.runs.splits",
    "tokenize": "embedkit.encoding.vocabulary",
    "train": "embedkit.classifiers.train",
    "verify": "embedkit.verification",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "errors":
        return import_module("embedkit.errors")
    raise AttributeError(f"module 'embedkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
