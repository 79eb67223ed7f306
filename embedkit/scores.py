"""Scores of predictions, with 95 % intervals from a bootstrap over records.

Every score is a function of weighted records, so that a bootstrap sample is a vector of counts and
no record is copied. Point values agree with scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "SAMPLES",
    "Measure",
    "Score",
    "calibration_error",
    "classification_measures",
    "classification_scores",
    "draws",
    "regression_measures",
    "regression_scores",
]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

Measure = Callable[[Floats], float]
"""A score as a function of the weight of each record, ``(n,)`` float64."""

SAMPLES = 1_000
_SMALLEST = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True)
class Score:
    """A score and the interval that 95 % of the bootstrap samples fall into."""

    value: float
    low: float
    high: float


def classification_scores(
    y: Integers, probabilities: Floats, predicted: Integers, *, seed: int = 0,
    samples: int = SAMPLES,
) -> dict[str, Score]:  # fmt: skip
    """Accuracy, macro-F1, log-loss and Brier score; ROC-AUC and average precision of two classes.

    Args:
        y: ``(n,)`` true class numbers.
        probabilities: ``(n, classes)``, each row summing to 1.
        predicted: ``(n,)`` predicted class numbers.
        seed: of the bootstrap.
        samples: number of bootstrap samples.
    """
    return _intervals(classification_measures(y, probabilities, predicted), len(y), seed, samples)


def classification_measures(
    y: Integers, probabilities: Floats, predicted: Integers
) -> dict[str, Measure]:
    """The scores of :func:`classification_scores` as functions of record weights."""
    classes = probabilities.shape[1]
    true = np.clip(probabilities[np.arange(len(y)), y], _SMALLEST, 1)
    hot = np.eye(classes)[y]
    cells = y * classes + predicted
    measures: dict[str, Measure] = {
        "accuracy": _mean((y == predicted).astype(np.float64)),
        "macro_f1": lambda w: _macro_f1(
            np.bincount(cells, w, classes**2).astype(np.float64), classes
        ),
        "log_loss": _mean(-np.log(true)),
        "brier": _mean(((probabilities - hot) ** 2).sum(1) / (2 if classes == 2 else 1)),
    }
    if classes == 2:
        ranked = _Ranking(y, probabilities[:, 1])
        measures |= {"roc_auc": ranked.roc_auc, "average_precision": ranked.average_precision}
    return measures


def calibration_error(y: Integers, probabilities: Floats, *, bins: int = 10) -> Measure:
    """Expected calibration error: mean distance between confidence and share of right answers.

    The predicted class is the likeliest one; bins of equal width lie between chance and 1.
    """
    sure = probabilities.max(1)
    gap = sure - (probabilities.argmax(1) == y)
    edges = np.linspace(1 / probabilities.shape[1], 1, bins + 1)
    of = np.clip(np.digitize(sure, edges) - 1, 0, bins - 1)
    return lambda w: float(np.abs(np.bincount(of, w * gap, bins)).sum() / w.sum())


def regression_scores(
    y: Floats, predicted: Floats, *, seed: int = 0, samples: int = SAMPLES
) -> dict[str, Score]:
    """Root mean squared error, R² and Spearman's rank correlation."""
    return _intervals(regression_measures(y, predicted), len(y), seed, samples)


def regression_measures(y: Floats, predicted: Floats) -> dict[str, Measure]:
    """The scores of :func:`regression_scores` as functions of record weights."""
    from scipy.stats import rankdata

    squares = (y - predicted) ** 2
    ranks = rankdata(y), rankdata(predicted)

    def r_squared(w: Floats) -> float:
        mean = np.average(y, weights=w)
        return float(1 - (w @ squares) / np.maximum(w @ (y - mean) ** 2, _SMALLEST))

    return {
        "rmse": lambda w: float(np.sqrt(np.average(squares, weights=w))),
        "r2": r_squared,
        # ranks are those of the whole: re-ranking every sample would change the interval little
        "spearman": lambda w: _correlation(*ranks, w),
    }


def draws(count: int, seed: int, samples: int = SAMPLES) -> Iterator[Floats]:
    """How often each of ``count`` records is drawn, ``(count,)``, for every bootstrap sample."""
    random = np.random.default_rng(seed)
    for _ in range(samples):
        drawn = np.bincount(random.integers(count, size=count), minlength=count)
        yield drawn.astype(np.float64)


def _intervals(
    measures: dict[str, Measure], count: int, seed: int, samples: int
) -> dict[str, Score]:
    found: dict[str, list[float]] = {name: [] for name in measures}
    for weights in draws(count, seed, samples):
        for name, measure in measures.items():
            found[name].append(measure(weights))
    whole = np.ones(count)
    result = {}
    for name, measure in measures.items():
        low, high = np.nanquantile(found[name], (0.025, 0.975)) if samples else (np.nan, np.nan)
        result[name] = Score(measure(whole), float(low), float(high))
    return result


def _mean(values: Floats) -> Measure:
    return lambda weights: float(weights @ values / weights.sum())


def _macro_f1(cells: NDArray[Any], classes: int) -> float:
    """Unweighted mean of the F1 of every class that is true or predicted somewhere."""
    table = cells.reshape(classes, classes)
    right = np.diag(table)
    involved = table.sum(0) + table.sum(1)
    there = involved > 0
    return float(np.mean(2 * right[there] / involved[there]))


class _Ranking:
    """Records in order of score, ties together, for measures of a ranking."""

    def __init__(self, y: Integers, scores: Floats) -> None:
        self._order = np.argsort(-scores, kind="stable")
        self._positive = y[self._order] == 1
        ordered = scores[self._order]
        self._ends = np.append(np.flatnonzero(np.diff(ordered)), len(y) - 1)

    def _counts(self, weights: Floats) -> tuple[Floats, Floats]:
        """Positives and negatives at or above every distinct score, from the highest down."""
        weights = weights[self._order]
        positives = np.cumsum(np.where(self._positive, weights, 0))[self._ends]
        return positives, np.cumsum(weights)[self._ends] - positives

    def roc_auc(self, weights: Floats) -> float:
        """Area under the ROC curve by trapezoids; NaN if only one class is there."""
        hits, misses = self._counts(weights)
        area = hits[-1] * misses[-1]
        if not area:
            return float("nan")
        return float(np.trapezoid(np.append(0, hits), np.append(0, misses)) / area)

    def average_precision(self, weights: Floats) -> float:
        """Mean precision over the recall gained at each score; NaN without positives."""
        hits, misses = self._counts(weights)
        if not hits[-1]:
            return float("nan")
        precision = hits / np.maximum(hits + misses, _SMALLEST)
        return float(np.diff(np.append(0, hits)) @ precision / hits[-1])


def _correlation(a: Floats, b: Floats, weights: Floats) -> float:
    a, b = a - np.average(a, weights=weights), b - np.average(b, weights=weights)
    spread = (weights @ a**2) * (weights @ b**2)
    return float((weights * a) @ b / np.sqrt(spread)) if spread > 0 else float("nan")
