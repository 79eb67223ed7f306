"""The values that options and parameters accept, in one module that imports nothing heavy.

The command line takes its choices from here, and each table of implementations is checked against
its list by a test, so that neither can know a kind that the other does not.

A list is a tuple of names where these speak for themselves, else a dictionary with what has to be
said of each to choose between them. It is said here alone: ``{STORAGES}`` in the help of an option
or in a docstring becomes

    float32, float16 (half the size), compact (0.43 of the size) or int8 (a quarter of it)
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import StrEnum
from textwrap import fill
from typing import Annotated, TypeVar

import msgspec

from embedkit.errors import UsageError, did_you_mean

T = TypeVar("T")

_LIST = re.compile(r"\{([A-Z_]+)\}")

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MULTILINGUAL = "multilingual"
"""The name by which multilingual-e5-small is found, wherever its weights come from."""

FORMATS = ("tsv", "csv", "lines", "jsonl", "parquet", "arrow", "sheet", "conllu", "conll")
QUOTINGS = {
    "auto": "csv in .csv files, else none",
    "none": "a quote is a character",
    "csv": "RFC 4180",
}


class Pooling(StrEnum):
    """Poolings of the token vectors of a text into one vector."""

    CLS = "cls"
    """The vector of the first token."""
    MEAN = "mean"
    """The mean over the kept tokens, special ones included, as sentence-transformers does."""
    MAX = "max"
    """The maximum of each coordinate over the kept tokens."""
    LAST_TOKEN = "last_token"
    """The vector of the last kept token; [SEP], unless special tokens are excluded."""
    POOLER = "pooler"
    """The checkpoint's own head on the last layer's first token: tanh(dense(cls))."""
    SENTENCE = "sentence"
    """Definition by the checkpoint's makers: its pooling of the last layer, then its modules."""

    @property
    def has_layer(self) -> bool:
        """False for the poolings that belong to the last layer, and whose view is named so."""
        return self not in (Pooling.POOLER, Pooling.SENTENCE)


POOLINGS = tuple(Pooling)
SUBTOKENS = ("first", "last", "first_last", "mean")
ON_LONG = {
    "truncate": "leave out the end",
    "window": "read all in overlapping parts",
    "error": "refuse",
}
PRECISIONS = ("auto", "fp32", "bf16", "fp16", "int8")
STORAGES = {
    "float32": "",
    "float16": "half the size",
    "compact": "0.43 of the size",
    "int8": "a quarter of it",
}
ENGINES = {"local": "this machine", "ray": "a cluster"}

TASKS = {
    "classification": "labels are classes",
    "regression": "labels are numbers",
    "multilabel": "records have any number of classes",
}
FEATURES = {"vectors": "as stored", "tfidf": "of the stored texts or words"}
ESTIMATORS = {
    "logreg": "logistic regression",
    "ridge": "ridge regression",
    "knn": "nearest neighbours",
    "lightgbm": "LightGBM",
}
"""Beside them, ``module:Class`` of scikit-learn or LightGBM."""
CLASS_WEIGHTS = ("balanced",)
HEADS = ("cls", "pooler", "mean", "cnn", "lstm")
OBJECTIVES = {
    "labels": "encoder and head learn to predict them",
    "contrastive": "pairs of texts tune the encoder, then a logistic regression is fitted on its "
    "vectors",
}
BLENDS = ("mean", "stacked")
CONTROLS = ("random-weights",)
FIGURE_FORMATS = ("pdf", "svg", "png")
PREFERENCES = {
    "cost": "the cheapest that is not worse by what matters",
    "score": "the one with the best score",
}
"""The method to use."""

EXPORTS = ("npy", "csv", "faiss")
LEVELS = ("sentence", "word", "token")
RUN_LEVELS = {"sentence": "the records", "word": "their words"}
"""What a run labels."""
SEARCH_METRICS = ("cosine", "dot", "euclid")
WHITENINGS = {
    "center": "subtract the mean, since raw BERT vectors all point in similar directions",
    "whiten": "also decorrelate the dimensions",
}
INDEX_KINDS = {
    "flat": "exact",
    "hnsw": "fastest, all of it visited over time",
    "ivf": "on disk",
    "ivfpq": "compressed",
}
LAYOUT_METHODS = ("tsne", "pca")
MATCHES = {
    "word": "whole words, in Hangul with particles",
    "start": "longer words too",
    "anywhere": "any substring",
}


def one_of(choices: Collection[str]) -> msgspec.Meta:
    """Return the constraint of a text that is one of these.

    >>> Annotated[str, one_of(["nfc", "nfkc"])].__metadata__[0].pattern
    '^(nfc|nfkc)$'
    """
    return msgspec.Meta(pattern=f"^({'|'.join(choices)})$", extra={"choices": tuple(choices)})


def listed(text: str, *, quote: str = "") -> str:
    """Return a text with the kinds, and what is said of them, where it names a list of this module.

    >>> listed("Where it runs: {ENGINES}.")
    'Where it runs: local (this machine) or ray (a cluster).'
    """

    def kinds(match: re.Match[str]) -> str:
        kinds = globals()[match[1]]
        descriptions = kinds if isinstance(kinds, dict) else dict.fromkeys(kinds, "")
        *first, last = (
            f"{quote}{kind}{quote}" + (f" ({about})" if about else "")
            for kind, about in descriptions.items()
        )
        return f"{', '.join(first)} or {last}"

    def rendered(line: str) -> str:
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        sentence = _LIST.sub(kinds, line)
        return fill(sentence, 100, subsequent_indent=indent, break_on_hyphens=False)

    return "\n".join(rendered(line) if _LIST.search(line) else line for line in text.split("\n"))


def documented(cls: type[T]) -> type[T]:
    """Render the lists in the docstring of a class; :func:`accepts` does so for its methods."""
    cls.__doc__ = listed(cls.__doc__ or "", quote="``")
    return cls


Format = Annotated[str, one_of(("auto", *FORMATS))]
Quoting = Annotated[str, one_of(QUOTINGS)]
Subtokens = Annotated[str, one_of(SUBTOKENS)]
OnLong = Annotated[str, one_of(ON_LONG)]
Precision = Annotated[str, one_of(PRECISIONS)]
Storage = Annotated[str, one_of(STORAGES)]
Engine = Annotated[str, one_of(ENGINES)]
Task = Annotated[str, one_of(TASKS)]
Objective = Annotated[str, one_of(OBJECTIVES)]
Features = Annotated[str, one_of(FEATURES)]
Control = Annotated[str, one_of(CONTROLS)]
ClassWeight = Annotated[str, one_of(CLASS_WEIGHTS)]
Level = Annotated[str, one_of(LEVELS)]
Export = Annotated[str, one_of(EXPORTS)]
RunLevel = Annotated[str, one_of(RUN_LEVELS)]
SearchMetric = Annotated[str, one_of(SEARCH_METRICS)]
WhiteningKind = Annotated[str, one_of(WHITENINGS)]
IndexName = Annotated[str, one_of(INDEX_KINDS)]
LayoutMethod = Annotated[str, one_of(LAYOUT_METHODS)]


def check_choice(choices: Collection[str], **arguments: object) -> None:
    """Raise a :class:`~embedkit.errors.UsageError` for a value that is not a known one.

    >>> check_choice(("cls", "mean"), pooling="maen")
    Traceback (most recent call last):
    embedkit.errors.UsageError: pooling='maen': expected cls, mean. Did you mean 'mean'?
    """
    for name, value in arguments.items():
        if value not in choices:
            hint = did_you_mean(str(value), choices)
            expected = f"expected {', '.join(choices)}.{hint}" if choices else "there is none here."
            raise UsageError(expected, **{name: value})
