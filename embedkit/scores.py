"""Scores of predictions, with 95 % intervals from a bootstrap over records.

Every score is a function of weighted records, so that a bootstrap sample is a vector of counts and
no record is copied. Point values agree with scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.errors import UsageError

__all__ = ["Score", "best_threshold", "classification_scores", "parse_threshold",
           "regression_scores"]  # fmt: skip

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Measure = Callable[[Floats], float]

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
    samples: int = SAMPLES, beta: float | None = None,
) -> dict[str, Score]:  # fmt: skip
    """Accuracy, macro-F1, log-loss and Brier score; ROC-AUC and average precision of two classes.

    Args:
        y: ``(n,)`` true class numbers.
        probabilities: ``(n, classes)``, each row summing to 1.
        predicted: ``(n,)`` predicted class numbers.
        seed: of the bootstrap.
        samples: number of bootstrap samples.
        beta: also F-beta of the second of two classes, as ``f2`` for 2.
    """
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
        if beta is not None:
            measures[f"f{beta:g}"] = lambda w: float(
                _f_beta(np.bincount(cells, w, 4).astype(np.float64), beta)
            )
    return _intervals(measures, len(y), seed, samples)


def regression_scores(
    y: Floats, predicted: Floats, *, seed: int = 0, samples: int = SAMPLES
) -> dict[str, Score]:
    """Root mean squared error, R² and Spearman's rank correlation."""
    from scipy.stats import rankdata

    squares = (y - predicted) ** 2
    ranks = rankdata(y), rankdata(predicted)

    def r_squared(w: Floats) -> float:
        mean = np.average(y, weights=w)
        return float(1 - (w @ squares) / np.maximum(w @ (y - mean) ** 2, _SMALLEST))

    measures: dict[str, Measure] = {
        "rmse": lambda w: float(np.sqrt(np.average(squares, weights=w))),
        "r2": r_squared,
        # ranks are those of the whole: re-ranking every sample would change the interval little
        "spearman": lambda w: _correlation(*ranks, w),
    }
    return _intervals(measures, len(y), seed, samples)


def _intervals(
    measures: dict[str, Measure], count: int, seed: int, samples: int
) -> dict[str, Score]:
    random = np.random.default_rng(seed)
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(samples):
        drawn = np.bincount(random.integers(count, size=count), minlength=count)
        weights = drawn.astype(np.float64)
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


def parse_threshold(text: str) -> tuple[float | None, float | None]:
    """``--threshold`` → a fixed probability, or the beta of the F score to choose it by.

    ``0.3`` is ``(0.3, None)``; ``f2`` is ``(None, 2.0)``; ``macro_f1`` is ``(None, None)``.

    Raises:
        UsageError: it is none of these.
    """
    wrong = UsageError(
        f"--threshold {text}: expected a probability such as 0.3, or the score to choose it by: "
        "macro_f1, f1, f2, f0.5 …"
    )
    if text == "macro_f1":
        return None, None
    is_beta = text.startswith("f")
    try:
        value = float(text[is_beta:])
    except ValueError:
        raise wrong from None
    if not (0 < value < (1_000 if is_beta else 1)):
        raise wrong
    return (None, value) if is_beta else (value, None)


def best_threshold(y: Integers, positive: Floats, *, beta: float | None = None) -> float:
    """Probability of the second class from which on deciding for it scores best.

    Args:
        y: ``(n,)`` true class numbers, 0 or 1.
        positive: ``(n,)`` probabilities of class 1, of records the model had not seen.
        beta: of the F score of class 1; ``None`` for macro-F1.

    Returns:
        The middle between the two neighbouring probabilities; of equals the one nearest to 0.5.
    """
    values, place = np.unique(-positive, return_inverse=True)
    values = -values  # distinct, from the highest down
    hits = np.append(0, np.cumsum(np.bincount(place, y == 1)))
    chosen = np.append(0, np.cumsum(np.bincount(place)))
    cells = np.stack([len(y) - hits[-1] - (chosen - hits), chosen - hits, hits[-1] - hits, hits])
    score = _f_beta(cells, beta) if beta is not None else (
        (_f_beta(cells, 1.0) + _f_beta(cells[::-1], 1.0)) / 2
    )  # fmt: skip
    edges = np.concatenate([[(1 + values[0]) / 2], (values[1:] + values[:-1]) / 2,
                            [values[-1] / 2]])  # fmt: skip
    best = np.flatnonzero(score >= score.max() - 1e-12)
    return float(edges[best[np.argmin(np.abs(edges[best] - 0.5))]])


def _f_beta(cells: NDArray[Any], beta: float) -> Any:
    """F-beta of class 1 from counts ``(true 0 said 0, true 0 said 1, 1 said 0, 1 said 1)``."""
    _, false, missed, hits = cells
    return (
        (1 + beta**2)
        * hits
        / np.maximum((1 + beta**2) * hits + beta**2 * missed + false, _SMALLEST)
    )


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
