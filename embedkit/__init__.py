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

from embedkit.machine import __version__

__all__ = [
    "CorpusOptions",
    "Encoder",
    "Predictor",
    "Searcher",
    "__version__",
    "compare",
    "errors",
    "explore",
    "export",
    "extract",
    "finetune",
    "index",
    "info",
    "load",
    "probe",
    "similarity",
    "split",
    "tokenize",
    "train",
    "verify",
    "words",
]

if TYPE_CHECKING:
    from embedkit import errors
    from embedkit.classifiers.probe import probe
    from embedkit.classifiers.train import train
    from embedkit.comparison.report import compare
    from embedkit.corpus.plan import CorpusOptions
    from embedkit.dataset.extract import extract
    from embedkit.dataset.read import load
    from embedkit.dataset.verify import verify
    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.tokenizer import tokenize
    from embedkit.finetuning.checkpoint import export
    from embedkit.finetuning.run import finetune
    from embedkit.maps.map import explore
    from embedkit.maps.senses import words
    from embedkit.predict import Predictor
    from embedkit.runs.folder import info
    from embedkit.runs.split import split
    from embedkit.search.exact import Searcher
    from embedkit.search.index import build_index as index
    from embedkit.sts import similarity

_HOMES = {
    "CorpusOptions": "embedkit.corpus.plan",
    "Encoder": "embedkit.encoding.encoder",
    "Predictor": "embedkit.predict",
    "Searcher": "embedkit.search.exact",
    "compare": "embedkit.comparison.report",
    "explore": "embedkit.maps.map",
    "export": "embedkit.finetuning.checkpoint",
    "extract": "embedkit.dataset.extract",
    "finetune": "embedkit.finetuning.run",
    "index": "embedkit.search.index",
    "info": "embedkit.runs.folder",
    "load": "embedkit.dataset.read",
    "probe": "embedkit.classifiers.probe",
    "similarity": "embedkit.sts",
    "split": "embedkit.runs.split",
    "tokenize": "embedkit.encoding.tokenizer",
    "train": "embedkit.classifiers.train",
    "verify": "embedkit.dataset.verify",
    "words": "embedkit.maps.senses",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), "build_index" if name == "index" else name)
    if name == "errors":
        return import_module("embedkit.errors")
    raise AttributeError(f"module 'embedkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
