"""Scores of predictions, with 95 % intervals from a bootstrap over records.

Every score is a function of weighted records, so that a bootstrap sample is a vector of counts and
no record is copied; many samples are scored at once. Point values agree with scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.errors import UsageError
from embedkit.types import Float64, Int64

__all__ = [
    "SAMPLES",
    "Metric",
    "Score",
    "Threshold",
    "best_threshold",
    "bootstrap_weights",
    "calibration_error",
    "classification_metrics",
    "classification_scores",
    "interval",
    "regression_metrics",
    "regression_scores",
    "score_of",
]

Metric = Callable[[Float64], Float64]
"""Weights of the records in some samples ``(samples, n)`` → a score of each ``(samples,)``."""

SAMPLES = 1_000
_AT_ONCE = 1 << 20
_SMALLEST = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True)
class Score:
    """A score and the interval that 95 % of the bootstrap samples fall into."""

    value: float
    low: float
    high: float


def classification_scores(
    y: Int64, probabilities: Float64, predicted: Int64, *, seed: int = 0,
    samples: int = SAMPLES, beta: float | None = None, record: Int64 | None = None,
) -> dict[str, Score]:  # fmt: skip
    """Accuracy, macro-F1, log-loss and Brier score; ROC-AUC and average precision of two classes.

    Args:
        y: ``(n,)`` true class numbers.
        probabilities: ``(n, classes)``, each row summing to 1.
        predicted: ``(n,)`` predicted class numbers.
        seed: of the bootstrap.
        samples: number of bootstrap samples.
        beta: also F-beta of the second of two classes, as ``f2`` for 2.
        record: ``(n,)`` which record each prediction is of, where some have several; a record is
            drawn with all of them.
    """
    metrics = classification_metrics(y, probabilities, predicted, beta=beta)
    return _intervals(metrics, len(y), seed, samples, record)


def classification_metrics(
    y: Int64, probabilities: Float64, predicted: Int64, *, beta: float | None = None
) -> dict[str, Metric]:
    """The scores of :func:`classification_scores` as functions of the records' weights."""
    classes = probabilities.shape[1]
    true = np.clip(probabilities[np.arange(len(y)), y], _SMALLEST, 1)
    hot = np.eye(classes)[y]
    cells = y * classes + predicted
    metrics: dict[str, Metric] = {
        "accuracy": _mean((y == predicted).astype(np.float64)),
        "macro_f1": lambda w: _macro_f1(_counts(cells, w, classes**2), classes),
        "log_loss": _mean(-np.log(true)),
        "brier": _mean(((probabilities - hot) ** 2).sum(1) / (2 if classes == 2 else 1)),
    }
    if classes == 2:
        ranked = _Ranking(y, probabilities[:, 1])
        metrics |= {"roc_auc": ranked.roc_auc, "average_precision": ranked.average_precision}
        if beta is not None:
            metrics[f"f{beta:g}"] = lambda w: _f_beta(_counts(cells, w, 4).T, beta)
    return metrics


def regression_scores(
    y: Float64, predicted: Float64, *, seed: int = 0, samples: int = SAMPLES,
    record: Int64 | None = None,
) -> dict[str, Score]:  # fmt: skip
    """Root mean squared error, R² and Spearman's rank correlation."""
    return _intervals(regression_metrics(y, predicted), len(y), seed, samples, record)


def regression_metrics(y: Float64, predicted: Float64) -> dict[str, Metric]:
    """The scores of :func:`regression_scores` as functions of the records' weights."""
    from scipy.stats import rankdata

    squares = _mean((y - predicted) ** 2)
    centred = y - y.mean()  # moments about a point near the mean keep their digits
    moments = np.stack([centred, centred**2], 1)
    # ranks are those of the whole: re-ranking every sample would change the interval little
    a, b = (rankdata(v) - (len(y) + 1) / 2 for v in (y, predicted))
    products = np.stack([a, b, a * a, b * b, a * b], 1)

    def r_squared(w: Float64) -> Float64:
        first, second = (w @ moments / w.sum(1, keepdims=True)).T
        return np.asarray(1 - squares(w) / np.maximum(second - first**2, _SMALLEST))

    def spearman(w: Float64) -> Float64:
        a, b, aa, bb, ab = (w @ products / w.sum(1, keepdims=True)).T
        spread = (aa - a * a) * (bb - b * b)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(spread > 0, (ab - a * b) / np.sqrt(spread), np.nan)

    return {"rmse": lambda w: np.sqrt(squares(w)), "r2": r_squared, "spearman": spearman}


def bootstrap_weights(count: int, seed: int, samples: int = SAMPLES) -> Iterator[Float64]:
    """How often each record is drawn: ``(a few samples, count)`` at a time, ``samples`` in all."""
    random = np.random.default_rng(seed)
    step = max(1, min(64, _AT_ONCE // count))
    for start in range(0, samples, step):
        weights = np.empty((min(step, samples - start), count))
        for row in weights:
            row[:] = np.bincount(random.integers(count, size=count), minlength=count)
        yield weights


def score_of(metric: Metric, count: int, drawn: Float64) -> Score:
    """The score of all ``count`` records, with the interval of those of the samples drawn."""
    return Score(float(metric(np.ones((1, count)))[0]), *interval(drawn))


def interval(drawn: Float64) -> tuple[float, float]:
    """The ends of the middle 95 % of some samples; NaN where none of them has a value."""
    known = drawn[np.isfinite(drawn)]  # a sample may hold one class only
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, (0.025, 0.975))
    return float(low), float(high)


def _intervals(
    metrics: dict[str, Metric], count: int, seed: int, samples: int, record: Int64 | None
) -> dict[str, Score]:
    found: dict[str, list[Float64]] = {name: [np.empty(0)] for name in metrics}
    names, of = (None, None) if record is None else np.unique(record, return_inverse=True)
    for drawn in bootstrap_weights(count if names is None else len(names), seed, samples):
        weights = drawn if of is None else drawn[:, of]
        for name, metric in metrics.items():
            found[name].append(metric(weights))
    return {
        name: score_of(metric, count, np.concatenate(found[name]))
        for name, metric in metrics.items()
    }


def _mean(values: Float64) -> Metric:
    return lambda weights: np.asarray(weights @ values / weights.sum(1))


def _counts(cells: Int64, weights: Float64, count: int) -> Float64:
    """``(samples, count)``: weight of the records in every cell."""
    return np.stack([np.bincount(cells, row, count) for row in weights])


def calibration_error(y: Int64, probabilities: Float64, *, bins: int = 10) -> Metric:
    """Expected calibration error: mean distance between confidence and accuracy, in bins.

    The predicted class is the likeliest one; bins of equal width lie between chance and 1.
    """
    sure = probabilities.max(1)
    gap = sure - (probabilities.argmax(1) == y)
    edges = np.linspace(1 / probabilities.shape[1], 1, bins + 1)
    of = np.clip(np.digitize(sure, edges) - 1, 0, bins - 1)
    return lambda w: np.asarray(np.abs(_counts(of, w * gap, bins)).sum(1) / w.sum(1))


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
    """F-beta of class 1 from counts of true and predicted class: ``(00, 01, 10, 11)``."""
    _, false, missed, hits = cells
    return (
        (1 + beta**2)
        * hits
        / np.maximum((1 + beta**2) * hits + beta**2 * missed + false, _SMALLEST)
    )


def _macro_f1(cells: Float64, classes: int) -> Float64:
    """Unweighted mean of the F1 of every class that is true or predicted somewhere."""
    table = cells.reshape(-1, classes, classes)
    right = np.diagonal(table, axis1=1, axis2=2)
    involved = table.sum(1) + table.sum(2)
    f1 = np.divide(2 * right, involved, out=np.zeros_like(right), where=involved > 0)
    return np.asarray(f1.sum(1) / (involved > 0).sum(1))


class _Ranking:
    """Records in order of score, ties together, for metrics of a ranking."""

    def __init__(self, y: Int64, scores: Float64) -> None:
        self._last: tuple[Float64, tuple[Float64, Float64]] | None = None
        self._order = np.argsort(-scores, kind="stable")
        self._positive = (y[self._order] == 1).astype(np.float64)
        ordered = scores[self._order]
        ends = np.append(np.flatnonzero(np.diff(ordered)), len(y) - 1)
        self._ends = ends if len(ends) < len(y) else slice(None)  # a slice copies nothing

    def roc_auc(self, weights: Float64) -> Float64:
        """Area under the ROC curve by trapezoids; NaN if only one class is there."""
        return self._areas(weights)[0]

    def average_precision(self, weights: Float64) -> Float64:
        """Mean precision over the recall gained at each score; NaN without positives."""
        return self._areas(weights)[1]

    def _areas(self, weights: Float64) -> tuple[Float64, Float64]:
        if self._last is not None and self._last[0] is weights:
            return self._last[1]  # both are asked of the same samples, one after the other
        ordered = weights[:, self._order]
        hits = np.cumsum(ordered * self._positive, axis=1)[:, self._ends]
        chosen = np.cumsum(ordered, axis=1)[:, self._ends]
        gained = np.diff(hits, prepend=0)
        missed = np.diff(chosen - hits, prepend=0)
        total, pairs = hits[:, -1], hits[:, -1] * (chosen - hits)[:, -1]
        under = np.sum(missed * (2 * hits - gained), axis=1) / 2
        precise = np.sum(gained * hits / np.maximum(chosen, _SMALLEST), axis=1)
        areas = (
            np.divide(under, pairs, out=np.full(len(total), np.nan), where=pairs > 0),
            np.divide(precise, total, out=np.full(len(total), np.nan), where=total > 0),
        )
        self._last = weights, areas
        return areas
