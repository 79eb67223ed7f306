"""Hidden vectors of BERT-family encoders for whole corpora, and results from those vectors.

    import embedkit

    encoder = embedkit.Encoder.load()
    X = encoder.encode(["a text", "another one"])
    embedkit.extract("corpus.tsv", out="vectors", layers="all", pooling=["cls", "mean"])
    data = embedkit.load("vectors", view="mean_-1")     # data.X, data.y, data.ids, data.text

Importing this package loads neither torch nor transformers; they are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from embedkit import errors as errors
from embedkit.machine import __version__ as __version__

_HOMES = {
    "CorpusOptions": "corpus.plan",
    "Encoder": "encoding.encoder",
    "Predictor": "predict",
    "Searcher": "search.exact",
    "compare": "comparison.report",
    "explore": "maps.map",
    "export": "finetuning.checkpoint",
    "extract": "dataset.extract",
    "finetune": "finetuning.run",
    "index": "search.index",
    "info": "runs.folder",
    "load": "dataset.read",
    "probe": "classifiers.probe",
    "similarity": "sts",
    "split": "runs.split",
    "tokenize": "encoding.tokenizer",
    "train": "classifiers.train",
    "verify": "dataset.verify",
    "words": "contexts.uses",
}

if TYPE_CHECKING:
    from embedkit.classifiers.probe import probe as probe
    from embedkit.classifiers.train import train as train
    from embedkit.comparison.report import compare as compare
    from embedkit.contexts.uses import words as words
    from embedkit.corpus.plan import CorpusOptions as CorpusOptions
    from embedkit.dataset.extract import extract as extract
    from embedkit.dataset.read import load as load
    from embedkit.dataset.verify import verify as verify
    from embedkit.encoding.encoder import Encoder as Encoder
    from embedkit.encoding.tokenizer import tokenize as tokenize
    from embedkit.finetuning.checkpoint import export as export
    from embedkit.finetuning.run import finetune as finetune
    from embedkit.maps.map import explore as explore
    from embedkit.predict import Predictor as Predictor
    from embedkit.runs.folder import info as info
    from embedkit.runs.split import split as split
    from embedkit.search.exact import Searcher as Searcher
    from embedkit.search.index import build_index
    from embedkit.sts import similarity as similarity

    index = build_index
else:
    __all__ = [*_HOMES, "__version__", "errors"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'embedkit' has no attribute {name!r}")
    home = import_module(f"embedkit.{_HOMES[name]}")
    return getattr(home, "build_index" if name == "index" else name)


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__", "errors"])
