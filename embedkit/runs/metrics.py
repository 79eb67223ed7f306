"""Metrics of predictions, as functions of weighted records, and decision thresholds.

Point values agree with scikit-learn. Intervals are those of :mod:`embedkit.runs.resampling`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.errors import UsageError, did_you_mean
from embedkit.runs.resampling import SAMPLES, Metric, Score, scored
from embedkit.types import Bool, Float64, Int64

__all__ = [
    "BINS",
    "LOWER_IS_BETTER",
    "SAMPLES",
    "Metric",
    "Score",
    "Threshold",
    "best_threshold",
    "beta_of",
    "calibration_bins",
    "check_metric",
    "classification_metrics",
    "classification_scores",
    "regression_metrics",
    "regression_scores",
]

LOWER_IS_BETTER = ("log_loss", "brier", "calibration_error", "rmse", "mae")

BINS = 15
"""Bins of equal width between 0 and 1 of the calibration error and the reliability curve."""

_SMALLEST = float(np.finfo(np.float64).eps)
_F_BETA = re.compile(r"f(\d+\.?\d*)")


def beta_of(metric: str) -> float | None:
    """Return the beta of a metric such as ``f2``; ``None`` for other metrics."""
    found = _F_BETA.fullmatch(metric)
    return float(found[1]) or None if found else None


def check_metric(metric: str, *, classes: int, name: str = "metric") -> None:
    """Raise a :class:`UsageError` for a metric that does not exist for so many classes.

    Args:
        metric: its name.
        classes: number of classes; 0 for a regression.
        name: of the parameter, for messages.
    """
    y = np.arange(max(2, classes))
    known = regression_metrics(y.astype(np.float64), y.astype(np.float64)) if not classes else (
        classification_metrics(y, np.eye(classes), y, beta=beta_of(metric))
    )  # fmt: skip
    if metric not in known:
        raise UsageError(
            f"{name}={metric!r}: expected {', '.join(known)}.{did_you_mean(metric, known)}"
        )


def classification_scores(
    y: Int64, probabilities: Float64, predicted: Int64, *, seed: int = 0, samples: int = SAMPLES,
    beta: float | None = None, unit: Int64 | None = None, only: Collection[str] = (),
) -> dict[str, Score]:  # fmt: skip
    """Return metrics of classification with 95 % intervals.

    Of all classes: ``accuracy``, ``macro_f1``, ``log_loss``, ``brier``, ``calibration_error``
    (:data:`BINS` bins of confidence between 0 and 1), ``roc_auc`` (of more than two classes the
    mean of one class against the rest), ``balanced_accuracy``, ``mcc``. Of the second of two
    classes: ``average_precision``, ``precision``, ``recall``, ``f1``.

    Args:
        y: ``(n,)`` true class numbers.
        probabilities: ``(n, classes)``, each row summing to 1.
        predicted: ``(n,)`` predicted class numbers.
        seed: of the bootstrap.
        samples: number of bootstrap samples; 0 for no intervals.
        beta: also F-beta of the second of two classes, as ``f2`` for 2.
        unit: ``(n,)`` sampling unit of each prediction; by default each is its own.
        only: names of the metrics to return; by default all.
    """
    metrics = classification_metrics(y, probabilities, predicted, beta=beta)
    return _scores(metrics, len(y), seed, samples, unit, only)


def regression_scores(
    y: Float64, predicted: Float64, *, seed: int = 0, samples: int = SAMPLES,
    unit: Int64 | None = None, only: Collection[str] = (),
) -> dict[str, Score]:  # fmt: skip
    """Return ``rmse``, ``mae``, ``r2``, ``pearson`` and ``spearman`` with 95 % intervals.

    Arguments as for :func:`classification_scores`, with ``(n,)`` values.
    """
    return _scores(regression_metrics(y, predicted), len(y), seed, samples, unit, only)


def _scores(
    metrics: dict[str, Metric], count: int, seed: int, samples: int, unit: Int64 | None,
    only: Collection[str],
) -> dict[str, Score]:  # fmt: skip
    chosen = {name: metric for name, metric in metrics.items() if not only or name in only}
    unit = np.arange(count) if unit is None else unit
    return scored(chosen, unit, seed=seed, samples=samples)


def classification_metrics(
    y: Int64, probabilities: Float64, predicted: Int64, *, beta: float | None = None
) -> dict[str, Metric]:
    """Return the metrics of :func:`classification_scores` as functions of weights."""
    classes = probabilities.shape[1]
    confidence = probabilities.max(1)
    true = np.clip(probabilities[np.arange(len(y)), y], _SMALLEST, 1)
    brier = ((probabilities - np.eye(classes)[y]) ** 2).sum(1) / (2 if classes == 2 else 1)
    cells = _Confusion(y, predicted, classes)
    ranked = [_Ranking(y == c, probabilities[:, c]) for c in range(classes) if classes > 2 or c]
    found: dict[str, tuple[Callable[[Float64], Float64], str]] = {
        "accuracy": (_mean(y == predicted), "fraction"),
        "macro_f1": (cells.macro_f1, "fraction"),
        "log_loss": (_mean(-np.log(true)), "error"),
        "brier": (_mean(brier), "error"),
        "calibration_error": (
            _calibration_error(confidence, probabilities.argmax(1) == y), "distance"
        ),
        "roc_auc": (_mean_roc_auc(ranked), "fraction"),
    }  # fmt: skip
    rarer = None
    if classes == 2:
        rarer = y == int(y.mean() <= 0.5) if 0 < y.mean() < 1 else None
        found |= {
            "average_precision": (ranked[0].average_precision, "fraction"),
            "precision": (cells.precision, "fraction"),
            "recall": (cells.recall, "fraction"),
        }
        for b in sorted({1.0, beta or 1.0}):
            found[f"f{b:g}"] = (cells.f_beta(b), "fraction")
    found |= {
        "balanced_accuracy": (cells.balanced_accuracy, "fraction"),
        "mcc": (cells.mcc, "correlation"),
    }
    return {
        name: Metric(
            of, scale, None if name == "accuracy" else rarer, is_mean=name in ("log_loss", "brier")
        )
        for name, (of, scale) in found.items()
    }


def regression_metrics(y: Float64, predicted: Float64) -> dict[str, Metric]:
    """Return the metrics of :func:`regression_scores` as functions of weights."""
    centred, shifted = _standardised(y), _standardised(predicted)
    unit = y.std() or 1.0
    squares, spread = _mean(((y - predicted) / unit) ** 2), (_mean(centred**2), _mean(centred))

    def r_squared(weights: Float64) -> Float64:
        variance = spread[0](weights) - spread[1](weights) ** 2
        return np.asarray(1 - squares(weights) / np.maximum(variance, _SMALLEST))

    return {
        "rmse": Metric(lambda w: unit * np.sqrt(squares(w)), "error"),
        "mae": Metric(_mean(np.abs(y - predicted)), "error"),
        "r2": Metric(r_squared, "explained"),
        "pearson": Metric(lambda w: _correlation(w, centred, shifted), "correlation"),
        "spearman": Metric(_spearman(y, predicted), "correlation"),
    }


def _standardised(values: Float64) -> Float64:
    """Values of mean 0 and variance 1, whose sums keep their digits; a constant is 0."""
    return np.asarray((values - values.mean()) / (values.std() or 1.0))


def _mean(values: NDArray[Any]) -> Callable[[Float64], Float64]:
    values = values.astype(np.float64)
    return lambda weights: np.asarray(weights @ values / weights.sum(1))


def calibration_bins(confidence: Float64) -> Int64:
    """Return the bin of every confidence, of :data:`BINS` of equal width between 0 and 1."""
    return np.minimum((confidence * BINS).astype(np.int64), BINS - 1)


def _calibration_error(confidence: Float64, right: Bool) -> Callable[[Float64], Float64]:
    """Expected calibration error: mean distance of confidence and accuracy over bins."""
    gaps = _indicator(calibration_bins(confidence), BINS) * (confidence - right)
    return lambda w: np.asarray(np.abs(gaps @ w.T).sum(0) / w.sum(1))


def _indicator(cells: Int64, count: int) -> Any:
    """Sparse ``(count, n)`` matrix with a one where a record is in a cell."""
    from scipy.sparse import csr_array

    n = len(cells)
    return csr_array((np.ones(n), (cells, np.arange(n))), shape=(count, n))


def _correlation(weights: Float64, a: Float64, b: Float64) -> Float64:
    """Weighted correlation of values ``(n,)`` or ``(samples, n)``; NaN where one is constant."""
    total = weights.sum(1, keepdims=True)
    a, b = (v - (weights * v).sum(1, keepdims=True) / total for v in (a, b))
    products = [(weights * u * v).sum(1) for u, v in ((a, b), (a, a), (b, b))]
    spread = products[1] * products[2]
    smallest = _SMALLEST * total[:, 0] ** 2
    found = np.full(len(spread), np.nan)
    np.divide(products[0], np.sqrt(spread), out=found, where=spread > smallest)
    return found


def _spearman(y: Float64, predicted: Float64) -> Callable[[Float64], Float64]:
    """Rank correlation; every sample is ranked anew, ties by their mean rank."""
    ranks = [_ranks(y), _ranks(predicted)]
    return lambda weights: _correlation(weights, *(rank(weights) for rank in ranks))


def _ranks(values: Float64) -> Callable[[Float64], Float64]:
    """Weights ``(samples, n)`` → mean ranks of the records of each sample, up to a constant."""
    _, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(place[order]), 1))

    def ranks(weights: Float64) -> Float64:
        last = np.cumsum(weights[:, order], axis=1)[:, ends]
        middle = (last + np.concatenate([np.zeros((len(last), 1)), last[:, :-1]], axis=1)) / 2
        middle = middle / last[:, -1:]  # of a size that does not depend on the number of records
        return np.asarray(middle[:, place])

    return ranks


def _mean_roc_auc(ranked: Sequence[_Ranking]) -> Callable[[Float64], Float64]:
    """Mean over the classes that a sample holds; NaN where it holds one alone."""

    def mean(weights: Float64) -> Float64:
        areas = np.stack([one.roc_auc(weights) for one in ranked])
        known = np.isfinite(areas)
        found = np.full(len(weights), np.nan)
        np.divide(np.where(known, areas, 0).sum(0), known.sum(0), out=found, where=known.any(0))
        return found

    return mean


@dataclass(frozen=True, slots=True)
class Threshold:
    """How one of two classes is decided on.

    Attributes:
        value: probability from which the second class is predicted; ``None``: chosen by a score.
        beta: of the F score it is chosen by; ``None`` for macro-F1.
    """

    value: float | None
    beta: float | None

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Read a probability such as ``0.3``, or the score to choose one by.

        >>> Threshold.parse("0.3"), Threshold.parse("f2")
        (Threshold(value=0.3, beta=None), Threshold(value=None, beta=2.0))

        Raises:
            UsageError: it is neither.
        """
        if text == "macro_f1":
            return cls(None, None)
        is_beta = text.startswith("f")
        try:
            value = float(text[is_beta:])
        except ValueError:
            value = float("nan")
        if not 0 < value < (1_000 if is_beta else 1):
            raise UsageError(
                f"threshold={text!r}: expected a probability such as 0.3, or the score to choose "
                "it by: macro_f1, f1, f2, f0.5 …"
            )
        return cls(None, value) if is_beta else cls(value, None)

    @property
    def metric(self) -> str | None:
        """Name of the metric that it is chosen by; ``None`` for a fixed value."""
        if self.value is not None:
            return None
        return "macro_f1" if self.beta is None else f"f{self.beta:g}"

    def choose(self, y: Int64, positive: Float64) -> float:
        """Return the fixed value, or the best one; arguments as for :func:`best_threshold`."""
        return best_threshold(y, positive, beta=self.beta) if self.value is None else self.value


def best_threshold(y: Int64, positive: Float64, *, beta: float | None = None) -> float:
    """Probability of the second class from which on deciding for it scores best.

    Args:
        y: ``(n,)`` true class numbers, 0 or 1.
        positive: ``(n,)`` probabilities of class 1, of records the model had not seen.
        beta: of the F score of class 1; ``None`` for macro-F1.

    Returns:
        The middle between the two neighbouring probabilities; of equals the one nearest to 0.5.
        Just above 1 where it is best to predict class 1 for no record, and one has probability 1.
    """
    values, place = np.unique(-positive, return_inverse=True)
    values = -values  # distinct, from the highest down
    hits = np.append(0, np.cumsum(np.bincount(place, y == 1)))
    chosen = np.append(0, np.cumsum(np.bincount(place)))
    cells = np.stack([len(y) - hits[-1] - (chosen - hits), chosen - hits, hits[-1] - hits, hits])
    score = _f_beta(cells, beta) if beta is not None else (
        (_f_beta(cells, 1.0) + _f_beta(cells[::-1], 1.0)) / 2
    )  # fmt: skip
    middle = (values[1:] + values[:-1]) / 2
    middle = np.where(middle > values[1:], middle, values[:-1])  # neighbours in floating point
    nobody = (1 + values[0]) / 2 if values[0] < 1 else np.nextafter(1.0, 2.0)
    edges = np.concatenate([[nobody], middle, [values[-1] / 2]])
    best = np.flatnonzero(score >= score.max() - 1e-12)
    return float(edges[best[np.argmin(np.abs(edges[best] - 0.5))]])


def _f_beta(cells: Any, beta: float) -> Any:
    """F-beta of class 1 from counts of true and predicted class: ``(00, 01, 10, 11)``."""
    _, false, missed, hits = cells
    gain = (1 + beta**2) * hits
    return gain / np.maximum(gain + beta**2 * missed + false, _SMALLEST)


def _ratio(part: Float64, whole: Float64) -> Float64:
    """Part of a whole; 0 of nothing."""
    return np.divide(part, whole, out=np.zeros(np.shape(whole)), where=whole > 0)


class _Confusion:
    """Weight of the records of every true and predicted class, and metrics of it."""

    def __init__(self, y: Int64, predicted: Int64, classes: int) -> None:
        self._classes = classes
        self._cells = _indicator(y * classes + predicted, classes**2)
        self._last: tuple[Float64, Float64] | None = None

    def _table(self, weights: Float64) -> Float64:
        """``(samples, true, predicted)``; kept, since several metrics ask for the same."""
        if self._last is None or self._last[0] is not weights:
            table = np.asarray(self._cells @ weights.T).T
            self._last = weights, table.reshape(-1, self._classes, self._classes)
        return self._last[1]

    def _marginals(self, weights: Float64) -> tuple[Float64, Float64, Float64]:
        """``(samples, classes)``: rightly predicted, true, and predicted."""
        table = self._table(weights)
        return np.diagonal(table, axis1=1, axis2=2), table.sum(2), table.sum(1)

    def macro_f1(self, weights: Float64) -> Float64:
        """Unweighted mean of the F1 of every class that is true or predicted somewhere."""
        right, true, predicted = self._marginals(weights)
        involved = true + predicted
        return np.asarray(_ratio(2 * right, involved).sum(1) / (involved > 0).sum(1))

    def balanced_accuracy(self, weights: Float64) -> Float64:
        """Unweighted mean of the recall of every class that is true somewhere."""
        right, true, _ = self._marginals(weights)
        return np.asarray(_ratio(right, true).sum(1) / (true > 0).sum(1))

    def mcc(self, weights: Float64) -> Float64:
        """Matthews' correlation coefficient; 0 where one class alone is true or predicted."""
        right, true, predicted = self._marginals(weights)
        total = true.sum(1)
        covariance = right.sum(1) * total - (true * predicted).sum(1)
        spread = (total**2 - (true**2).sum(1)) * (total**2 - (predicted**2).sum(1))
        return _ratio(covariance, np.sqrt(np.maximum(spread, 0)))

    def f_beta(self, beta: float) -> Callable[[Float64], Float64]:
        """F-beta of the second of two classes."""
        return lambda w: np.asarray(_f_beta(self._table(w).reshape(-1, 4).T, beta))

    def precision(self, weights: Float64) -> Float64:
        """Fraction of the records predicted as the second of two classes that belong to it."""
        right, _, predicted = self._marginals(weights)
        return _ratio(right[:, 1], predicted[:, 1])

    def recall(self, weights: Float64) -> Float64:
        """Fraction of the records of the second of two classes that are predicted as such."""
        right, true, _ = self._marginals(weights)
        return _ratio(right[:, 1], true[:, 1])


class _Ranking:
    """Records in order of score, ties together, for metrics of a ranking."""

    def __init__(self, positive: Bool, scores: Float64) -> None:
        self._last: tuple[Float64, tuple[Float64, Float64, Float64]] | None = None
        self._order = np.argsort(-scores, kind="stable")
        self._positive = positive[self._order].astype(np.float64)
        self._starts = np.append(0, np.flatnonzero(np.diff(scores[self._order])) + 1)

    def _sums(self, weights: Float64) -> tuple[Float64, Float64, Float64]:
        """Weights of positives and negatives at every score, and of positives down to it.

        They are kept, since both areas are asked for of the same samples.
        """
        if self._last is None or self._last[0] is not weights:
            ordered = weights[:, self._order]
            gained = ordered * self._positive
            missed = ordered - gained
            if len(self._starts) < len(self._order):
                gained, missed = (
                    np.add.reduceat(w, self._starts, axis=1) for w in (gained, missed)
                )
            self._last = weights, (gained, missed, np.cumsum(gained, axis=1))
        return self._last[1]

    def roc_auc(self, weights: Float64) -> Float64:
        """Area under the ROC curve by trapezoids; NaN if only one class is there."""
        gained, missed, hits = self._sums(weights)
        pairs, found = hits[:, -1] * missed.sum(1), np.full(len(weights), np.nan)
        under = np.einsum("ij,ij->i", missed, hits) - np.einsum("ij,ij->i", missed, gained) / 2
        np.divide(under, pairs, out=found, where=pairs > 0)
        return found

    def average_precision(self, weights: Float64) -> Float64:
        """Mean precision over the recall gained at each score; NaN without positives."""
        gained, missed, hits = self._sums(weights)
        total, found = hits[:, -1], np.full(len(weights), np.nan)
        chosen = np.maximum(hits + np.cumsum(missed, axis=1), _SMALLEST)
        np.divide(np.einsum("ij,ij->i", gained, hits / chosen), total, out=found, where=total > 0)
        return found
