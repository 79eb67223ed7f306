"""Where a method is good and where it fails: by length, class and confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embedkit.runs.metrics import beta_of
from embedkit.runs.predictions import Predictions, metrics_of, scores_by_class
from embedkit.runs.resampling import Score, difference_interval, influences, scored
from embedkit.types import Bool, Int64

__all__ = ["CalibrationBin", "ClassRow", "ConfusedPair", "LengthBin", "by_class", "by_length",
           "calibration", "confused_pairs"]  # fmt: skip

_LENGTH_BINS = 4
_PER_BIN, _MOST_BINS = 50, 10


@dataclass(frozen=True, slots=True)
class LengthBin:
    """Records whose texts are of similar length.

    Attributes:
        shortest: length of the shortest text.
        longest: length of the longest one.
        count: number of records.
        cut: number of texts that were cut.
        score: of the method.
        other: of the baseline; ``None`` without one.
        difference: of both on these records; ``None`` without a baseline.
    """

    shortest: int
    longest: int
    count: int
    cut: int
    score: Score
    other: Score | None
    difference: Score | None


@dataclass(frozen=True, slots=True)
class ClassRow:
    """Scores of one class, as :func:`sklearn.metrics.precision_recall_fscore_support` has them.

    Attributes:
        number: of the class.
        support: number of records that have it.
        recall: fraction of them that is predicted as such.
        precision: fraction of the records predicted as such that have it; 0 of none.
        f1: harmonic mean of both.
        other_recall: recall of the baseline; ``None`` without one.
    """

    number: int
    support: int
    recall: float
    precision: float
    f1: float
    other_recall: float | None


@dataclass(frozen=True, slots=True)
class ConfusedPair:
    """How many records of class ``true`` are predicted as ``said``."""

    true: int
    said: int
    count: int


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Records of similar confidence.

    Attributes:
        confidence: mean probability of the likeliest class.
        right: fraction for which it is the true one.
        low: lower end of the 95 % interval of that fraction (Wilson 1927).
        high: its upper end.
        count: number of records.
    """

    confidence: float
    right: float
    low: float
    high: float
    count: int


def by_length(
    p: Predictions, other: Predictions | None, lengths: Int64, cut: Bool, *, metric: str
) -> tuple[LengthBin, ...]:
    """Return scores by quartile of text length.

    Args:
        p: the method's predictions.
        other: the baseline's, for the same records.
        lengths: ``(n,)`` length of the text of each record.
        cut: ``(n,)`` whether it was cut.
        metric: the score.
    """
    inner = np.unique(
        np.quantile(lengths, np.arange(1, _LENGTH_BINS) / _LENGTH_BINS, method="lower")
    )
    place = np.searchsorted(inner, lengths, side="left")
    made = []
    for number in np.unique(place):
        index = np.flatnonzero(place == number)
        both = [one.take(index) for one in (p, other) if one is not None]
        metrics = {str(i): metrics_of(one, beta=beta_of(metric))[metric]
                   for i, one in enumerate(both)}  # fmt: skip
        unit = both[0].group
        scores = scored(metrics, unit, seed=0)
        difference = None
        if other is not None:
            found = influences(metrics, unit, seed=0)
            value = scores["0"].value - scores["1"].value
            difference = Score(value, *difference_interval(value, found["0"] - found["1"]))
        here = lengths[index]
        made.append(LengthBin(
            int(here.min()), int(here.max()), len(index), int(cut[index].sum()), scores["0"],
            scores.get("1"), difference,
        ))  # fmt: skip
    return tuple(made)


def by_class(p: Predictions, other: Predictions | None) -> tuple[ClassRow, ...]:
    """Return the scores of every class, the worst F1 first."""
    theirs: Sequence[float | None] = [None] * len(p.classes)
    if other is not None:
        theirs = [one.recall for one in scores_by_class(other)]
    rows = [
        ClassRow(c, one.support, one.recall, one.precision, one.f1, theirs[c])
        for c, one in enumerate(scores_by_class(p))
    ]
    return tuple(sorted(rows, key=lambda row: (row.f1, -row.support)))


def confused_pairs(p: Predictions, *, limit: int = 15) -> tuple[ConfusedPair, ...]:
    """Return the most frequent wrong predictions, the most frequent first."""
    wrong, classes = p.y != p.y_pred, len(p.classes)
    counts = np.bincount(p.y[wrong] * classes + p.y_pred[wrong], minlength=classes**2)
    order = np.argsort(-counts, kind="stable")[:limit]
    return tuple(
        ConfusedPair(int(cell // classes), int(cell % classes), int(counts[cell]))
        for cell in order if counts[cell]
    )  # fmt: skip


def calibration(p: Predictions) -> tuple[CalibrationBin, ...]:
    """Return bins of as many records each, from the least to the most confident."""
    from scipy.stats import binomtest

    confidence, right = p.proba.max(1), p.proba.argmax(1) == p.y
    order = np.argsort(confidence, kind="stable")
    count = int(np.clip(len(order) // _PER_BIN, 1, _MOST_BINS))
    made = []
    for part in np.array_split(order, count):
        ends = binomtest(int(right[part].sum()), len(part)).proportion_ci(method="wilson")
        made.append(CalibrationBin(
            float(confidence[part].mean()), float(right[part].mean()), float(ends.low),
            float(ends.high), len(part),
        ))  # fmt: skip
    return tuple(made)
