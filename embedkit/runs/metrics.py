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

__all__ = [
    "SAMPLES",
    "Measure",
    "Score",
    "best_threshold",
    "calibration_error",
    "classification_measures",
    "classification_scores",
    "draws",
    "middle",
    "parse_threshold",
    "regression_measures",
    "regression_scores",
    "score_of",
]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Measure = Callable[[Floats], Floats]
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
    y: Integers, probabilities: Floats, predicted: Integers, *, seed: int = 0,
    samples: int = SAMPLES, beta: float | None = None, record: Integers | None = None,
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
    measures = classification_measures(y, probabilities, predicted, beta=beta)
    return _intervals(measures, len(y), seed, samples, record)


def classification_measures(
    y: Integers, probabilities: Floats, predicted: Integers, *, beta: float | None = None
) -> dict[str, Measure]:
    """The scores of :func:`classification_scores` as functions of the records' weights."""
    classes = probabilities.shape[1]
    true = np.clip(probabilities[np.arange(len(y)), y], _SMALLEST, 1)
    hot = np.eye(classes)[y]
    cells = y * classes + predicted
    measures: dict[str, Measure] = {
        "accuracy": _mean((y == predicted).astype(np.float64)),
        "macro_f1": lambda w: _macro_f1(_counts(cells, w, classes**2), classes),
        "log_loss": _mean(-np.log(true)),
        "brier": _mean(((probabilities - hot) ** 2).sum(1) / (2 if classes == 2 else 1)),
    }
    if classes == 2:
        ranked = _Ranking(y, probabilities[:, 1])
        measures |= {"roc_auc": ranked.roc_auc, "average_precision": ranked.average_precision}
        if beta is not None:
            measures[f"f{beta:g}"] = lambda w: _f_beta(_counts(cells, w, 4).T, beta)
    return measures


def regression_scores(
    y: Floats, predicted: Floats, *, seed: int = 0, samples: int = SAMPLES,
    record: Integers | None = None,
) -> dict[str, Score]:  # fmt: skip
    """Root mean squared error, R² and Spearman's rank correlation."""
    return _intervals(regression_measures(y, predicted), len(y), seed, samples, record)


def regression_measures(y: Floats, predicted: Floats) -> dict[str, Measure]:
    """The scores of :func:`regression_scores` as functions of the records' weights."""
    from scipy.stats import rankdata

    squares = _mean((y - predicted) ** 2)
    centred = y - y.mean()  # moments about a point near the mean keep their digits
    moments = np.stack([centred, centred**2], 1)
    # ranks are those of the whole: re-ranking every sample would change the interval little
    a, b = (rankdata(v) - (len(y) + 1) / 2 for v in (y, predicted))
    products = np.stack([a, b, a * a, b * b, a * b], 1)

    def r_squared(w: Floats) -> Floats:
        first, second = (w @ moments / w.sum(1, keepdims=True)).T
        return np.asarray(1 - squares(w) / np.maximum(second - first**2, _SMALLEST))

    def spearman(w: Floats) -> Floats:
        a, b, aa, bb, ab = (w @ products / w.sum(1, keepdims=True)).T
        spread = (aa - a * a) * (bb - b * b)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(spread > 0, (ab - a * b) / np.sqrt(spread), np.nan)

    return {"rmse": lambda w: np.sqrt(squares(w)), "r2": r_squared, "spearman": spearman}


def draws(count: int, seed: int, samples: int = SAMPLES) -> Iterator[Floats]:
    """How often each record is drawn: ``(a few samples, count)`` at a time, ``samples`` in all."""
    random = np.random.default_rng(seed)
    step = max(1, min(64, _AT_ONCE // count))
    for start in range(0, samples, step):
        weights = np.empty((min(step, samples - start), count))
        for row in weights:
            row[:] = np.bincount(random.integers(count, size=count), minlength=count)
        yield weights


def score_of(measure: Measure, count: int, drawn: Floats) -> Score:
    """The score of all ``count`` records, with the interval of those of the samples drawn."""
    return Score(float(measure(np.ones((1, count)))[0]), *middle(drawn))


def middle(drawn: Floats) -> tuple[float, float]:
    """The ends of the middle 95 % of some samples; NaN where none of them has a value."""
    known = drawn[np.isfinite(drawn)]  # a sample may hold one class only
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, (0.025, 0.975))
    return float(low), float(high)


def _intervals(
    measures: dict[str, Measure], count: int, seed: int, samples: int, record: Integers | None
) -> dict[str, Score]:
    found: dict[str, list[Floats]] = {name: [np.empty(0)] for name in measures}
    names, of = (None, None) if record is None else np.unique(record, return_inverse=True)
    for drawn in draws(count if names is None else len(names), seed, samples):
        weights = drawn if of is None else drawn[:, of]
        for name, measure in measures.items():
            found[name].append(measure(weights))
    return {
        name: score_of(measure, count, np.concatenate(found[name]))
        for name, measure in measures.items()
    }


def _mean(values: Floats) -> Measure:
    return lambda weights: np.asarray(weights @ values / weights.sum(1))


def _counts(cells: Integers, weights: Floats, count: int) -> Floats:
    """``(samples, count)``: weight of the records in every cell."""
    return np.stack([np.bincount(cells, row, count) for row in weights])


def calibration_error(y: Integers, probabilities: Floats, *, bins: int = 10) -> Measure:
    """Expected calibration error: mean distance between confidence and share of right answers.

    The predicted class is the likeliest one; bins of equal width lie between chance and 1.
    """
    sure = probabilities.max(1)
    gap = sure - (probabilities.argmax(1) == y)
    edges = np.linspace(1 / probabilities.shape[1], 1, bins + 1)
    of = np.clip(np.digitize(sure, edges) - 1, 0, bins - 1)
    return lambda w: np.asarray(np.abs(_counts(of, w * gap, bins)).sum(1) / w.sum(1))


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


def _macro_f1(cells: Floats, classes: int) -> Floats:
    """Unweighted mean of the F1 of every class that is true or predicted somewhere."""
    table = cells.reshape(-1, classes, classes)
    right = np.diagonal(table, axis1=1, axis2=2)
    involved = table.sum(1) + table.sum(2)
    f1 = np.divide(2 * right, involved, out=np.zeros_like(right), where=involved > 0)
    return np.asarray(f1.sum(1) / (involved > 0).sum(1))


class _Ranking:
    """Records in order of score, ties together, for measures of a ranking."""

    def __init__(self, y: Integers, scores: Floats) -> None:
        self._last: tuple[Floats, tuple[Floats, Floats]] | None = None
        self._order = np.argsort(-scores, kind="stable")
        self._positive = (y[self._order] == 1).astype(np.float64)
        ordered = scores[self._order]
        ends = np.append(np.flatnonzero(np.diff(ordered)), len(y) - 1)
        self._ends = ends if len(ends) < len(y) else slice(None)  # a slice copies nothing

    def roc_auc(self, weights: Floats) -> Floats:
        """Area under the ROC curve by trapezoids; NaN if only one class is there."""
        return self._areas(weights)[0]

    def average_precision(self, weights: Floats) -> Floats:
        """Mean precision over the recall gained at each score; NaN without positives."""
        return self._areas(weights)[1]

    def _areas(self, weights: Floats) -> tuple[Floats, Floats]:
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
