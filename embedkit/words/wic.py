"""Word-in-context pairs: the same word in two sentences, one cosine per pair and layer.

The word is marked as ``a [bank] of clay``; the brackets are removed before encoding. Where the
pairs have labels (same sense or not), a threshold on the cosine is fitted for every layer on
training pairs and applied to the others.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedkit.corpus import CorpusOptions, CorpusReader, InputFile, Record, plan_corpus
from embedkit.errors import UsageError
from embedkit.runs.metrics import Score
from embedkit.search.exact import unit_rows
from embedkit.types import Bool, Float64
from embedkit.words.matching import Marked, read_marked
from embedkit.words.uses import span_vectors

if TYPE_CHECKING:
    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.views import LayerSpec

__all__ = [
    "LayerAccuracy",
    "MarkedPairs",
    "SenseTest",
    "best_threshold",
    "evaluate",
    "marked_pairs",
]

logger = logging.getLogger(__name__)

_SAMPLES = 2_000
_TRUE = ("true", "1", "yes", "t", "same")
_FALSE = ("false", "0", "no", "f", "different")


@dataclass(frozen=True, slots=True)
class MarkedPairs:
    """Word-in-context pairs with the cosines of the two marked words.

    Attributes:
        records: the pairs.
        words: the two marked words of each.
        cosines: ``(n,)`` float64 by layer name.
        same: ``(n,)`` bool, whether the word has the same sense, or ``None``.
        unmarked: records in which not exactly one word of each sentence is marked.
        cut: records whose word was cut off by truncation.
        rejected: other records that could not be used.
    """

    records: tuple[Record, ...]
    words: tuple[tuple[str, str], ...]
    cosines: dict[str, Float64]
    same: Bool | None
    unmarked: int
    cut: int
    rejected: int


@dataclass(frozen=True, slots=True)
class LayerAccuracy:
    """A threshold on the cosine at one layer.

    Attributes:
        layer: its name.
        threshold: fitted on the training pairs; a cosine that reaches it means the same sense.
        train: accuracy on the training pairs.
        test: accuracy on the test pairs, with its 95 % interval.
    """

    layer: str
    threshold: float
    train: float
    test: Score


@dataclass(frozen=True, slots=True)
class SenseTest:
    """Accuracy of every layer.

    Attributes:
        layers: in order.
        chosen: layer with the highest accuracy on the training pairs; the one to report.
        majority: fraction of the more frequent label among the test pairs.
        n_train: training pairs.
        n_test: test pairs.
    """

    layers: tuple[LayerAccuracy, ...]
    chosen: str
    majority: float
    n_train: int
    n_test: int


def marked_pairs(
    corpus: str | Path,
    encoder: Encoder,
    layers: Sequence[LayerSpec],
    *,
    text: str,
    text_pair: str,
    label: str | None = None,
    prefix: str | None = None,
    reading: CorpusOptions | None = None,
) -> MarkedPairs:
    """Compare the marked words of the two sentences of every record.

    Args:
        corpus: a file.
        encoder: the model.
        layers: the layers.
        text: column of the first sentence.
        text_pair: column of the second.
        label: column with the label, true where the word has the same sense.
        prefix: put before every sentence; by default that of the checkpoint.
        reading: how the file is read; its columns are those named above.

    Raises:
        UsageError: a column cannot be used, or no pair is marked.
    """
    columns = replace(reading or CorpusOptions(), text=text, text_pair=text_pair, label=label)
    reader = CorpusReader(plan_corpus([InputFile.of(Path(corpus))], columns))
    found, unmarked = _read(reader)
    if not found:
        raise UsageError(
            f"{corpus} has no pair with one word marked as [word] in {text} and {text_pair}."
        )
    if unmarked:
        logger.warning("%d records of %s have no pair of words marked as [word]", unmarked, corpus)
    sides = [first for _, first, _ in found] + [second for _, _, second in found]
    vectors, there = span_vectors(
        encoder, [m.text for m in sides], [(m.start, m.end) for m in sides], layers, prefix=prefix
    )
    both = there[: len(found)] & there[len(found) :]
    cosines = {}
    for name, values in vectors.items():
        a, b = np.split(unit_rows(values).astype(np.float64), 2)
        cosines[name] = np.einsum("ij,ij->i", a[both], b[both])
    kept = list(compress(found, both))
    records = tuple(record for record, _, _ in kept)
    return MarkedPairs(
        records=records,
        words=tuple((m.text[m.start : m.end], n.text[n.start : n.end]) for _, m, n in kept),
        cosines=cosines,
        same=None if label is None else _labels(records, label),
        unmarked=unmarked,
        cut=len(found) - len(kept),
        rejected=reader.counts.n_rejected,
    )


def _read(reader: CorpusReader) -> tuple[list[tuple[Record, Marked, Marked]], int]:
    """Records with a marked word in both sentences, and the number of those without."""
    found: list[tuple[Record, Marked, Marked]] = []
    unmarked = 0
    for item in reader.records():
        first, second = read_marked(item.text), read_marked(str(item.text_pair))
        if first and second:
            found.append((item, first, second))
        else:
            unmarked += 1
    return found, unmarked


def evaluate(train: MarkedPairs, test: MarkedPairs, *, seed: int = 0) -> SenseTest:
    """Fit a threshold for every layer on some pairs and apply it to others.

    Raises:
        UsageError: the pairs have no labels.
    """
    if train.same is None or test.same is None:
        raise UsageError("a threshold needs labels: name the column with label='COLUMN'.")
    random = np.random.default_rng(seed)
    drawn = random.integers(len(test.same), size=(_SAMPLES, len(test.same)))
    layers = []
    for name, cosines in train.cosines.items():
        threshold, accuracy = best_threshold(cosines, train.same)
        right = (test.cosines[name] >= threshold) == test.same
        low, high = np.quantile(right[drawn].mean(axis=1), (0.025, 0.975))
        score = Score(float(right.mean()), float(low), float(high))
        layers.append(LayerAccuracy(name, threshold, accuracy, score))
    return SenseTest(
        layers=tuple(layers),
        chosen=max(layers, key=lambda one: one.train).layer,
        majority=float(max(test.same.mean(), 1 - test.same.mean())),
        n_train=len(train.same),
        n_test=len(test.same),
    )


def best_threshold(cosines: Float64, same: Bool) -> tuple[float, float]:
    """Find the threshold with the highest accuracy; returns it and the accuracy.

    It is halfway between two neighbouring cosines.

    >>> best_threshold(np.array([0.25, 0.5, 0.75]), np.array([False, True, True]))
    (0.375, 1.0)

    Args:
        cosines: ``(n,)``.
        same: ``(n,)`` bool, the labels; true is predicted where the cosine reaches the threshold.
    """
    order = np.argsort(cosines, kind="stable")
    values, truth = cosines[order], same[order]
    # with the threshold before number i, those below it are predicted different, the others same
    right = np.append(0, np.cumsum(~truth)) + truth.sum() - np.append(0, np.cumsum(truth))
    possible = np.append(True, np.append(np.diff(values) > 0, True))
    at = int(np.argmax(np.where(possible, right, -1)))
    ends = np.concatenate([[values[0] - 1e-6], values, [values[-1] + 1e-6]])
    threshold = float((ends[at] + ends[at + 1]) / 2)
    return threshold, float(right[at] / len(values))


def _labels(records: Sequence[Record], column: str) -> Bool:
    values = [(record.label or "").strip().casefold() for record in records]
    unknown = [i for i, value in enumerate(values) if value not in (*_TRUE, *_FALSE)]
    if unknown:
        first = records[unknown[0]]
        raise UsageError(
            f"label={column!r}: {len(unknown)} records are neither true nor false, the first in "
            f"row {first.row} ({first.label!r})."
        )
    return np.array([value in _TRUE for value in values], bool)
