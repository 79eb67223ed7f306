"""Hidden vectors of BERT-family encoders for whole corpora, and results from those vectors.

    import embedkit

    encoder = embedkit.Encoder()
    X = encoder.encode(["a text", "another one"])
    embedkit.extract("corpus.tsv", out="vectors", layers="all", pooling=["cls", "mean"])
    data = embedkit.load("vectors", view="mean_-1")     # data.X, data.y, data.ids, data.text

Importing this package loads neither torch nor transformers; they are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from embedkit import errors as errors
from embedkit.machine import __version__ as __version__

_HOMES = {
    "CorpusOptions": "corpus.plan",
    "Encoder": "encoding.encoder",
    "Predictor": "predict",
    "Searcher": "search.exact",
    "compare": "comparison.report",
    "diff": "difference",
    "explore": "maps.map",
    "export": "finetuning.checkpoint",
    "extract": "dataset.extract",
    "finetune": "finetuning.run",
    "index": "search.index",
    "info": "runs.folder",
    "load": "dataset.read",
    "near_duplicates": "search.exact",
    "probe": "classifiers.probe",
    "similarity": "sts",
    "split": "runs.split",
    "tokenize": "encoding.tokenizer",
    "train": "classifiers.train",
    "verify": "verification",
    "words": "contexts.uses",
}

__all__ = [*_HOMES, "__version__", "errors"]
# types: __init__.pyi, which docs/reference.py writes


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'embedkit' has no attribute {name!r}")
    home = import_module(f"embedkit.{_HOMES[name]}")
    return getattr(home, "build_index" if name == "index" else name)


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__", "errors"])
