"""Metrics of predictions, as functions of weighted records, and decision thresholds.

    y, output, predicted ─► _Labels │ _Sets │ _Values      what metrics share, computed once
                                      │ MetricRow.of, a row of METRICS for each metric
                                      ▼
                       weights (samples, n) ─► values (samples,)

A metric is one row of :data:`METRICS`: how it is computed, shown and resampled. Point values agree
with scikit-learn. Intervals are those of :mod:`embedkit.runs.intervals`.

What is notable:

- Intervals take a metric of many weightings, so that a metric is a function of a matrix of weights:
  records are sorted by score once, and counts of classes are products of sparse indicators with it.
- Ties stay together: sums go over distinct scores. A metric that a weighting leaves undefined, such
  as an area of one class, is NaN, which has no interval.
- Of sets and of two, three or more classes some metrics have no meaning; ``task`` of a row says
  where it has. A regression has 0 classes.
- A threshold is chosen on records that the model has not seen, in one pass over all of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embedkit.choices import check_choice
from embedkit.display import MINUS
from embedkit.errors import UsageError, did_you_mean
from embedkit.runs.intervals import Metric, Score, wilson
from embedkit.types import Bool, Float64, Int64

if TYPE_CHECKING:  # imports pyarrow, which --help does without
    from embedkit.units.target import Target


_BINS = 15  # of the calibration error, of equal width between 0 and 1

# probabilities are clipped here before their logarithm, as in scikit-learn, so that log-loss has a
# worst value; also keeps divisions by 0 away
_SMALLEST = float(np.finfo(np.float64).eps)
_F_BETA = re.compile(r"f(\d+\.?\d*)")
_OTHER_NAMES = {
    "acc": "accuracy",
    "f1macro": "macro_f1",
    "f1micro": "micro_f1",
    "auc": "roc_auc",
    "auroc": "roc_auc",
    "ap": "average_precision",
    "prauc": "average_precision",
    "crossentropy": "log_loss",
    "quadraticweightedkappa": "qwk",
}
"""What other libraries call a metric, without case and marks."""


class MetricRow(NamedTuple):
    """A row of the table of metrics.

    ``two`` are metrics of the second of two classes, ``ordinal`` of three or more classes that are
    numbers, ``entities`` of words with tags such as ``B-PER``, ``sets`` of sets of classes.
    """

    of: Callable[[Any], Callable[[Float64], Float64]]  # predictions → function of weights
    label: str = ""  # its name as people write it, where that is not the name with spaces
    task: Literal["classes", "two", "ordinal", "entities", "sets", "values"] = "classes"
    percent: bool = False
    lower: bool = False
    compared: bool = False  # shown by compare whatever metric is asked for
    scale: Literal["fraction", "area", "correlation", "error", "explained", "biased"] = "fraction"
    worst: Callable[[Any], float] = lambda _: 0.0  # predictions → end of the range
    halved: Callable[[Any], Callable[[Int64, int], Float64]] | None = None  # as in Metric
    hidden: Literal["recall", "f1"] | None = None  # what is a mean of that of single classes
    counts_all: bool = False  # a perfect value rests on all records, not on the rarer class
    of_sets: bool = False  # of sets of classes, too


_percent = partial(MetricRow, percent=True)
_area = partial(_percent, compared=True, scale="area")
_error = partial(MetricRow, lower=True, compared=True, scale="error")
_rank = partial(MetricRow, scale="correlation", worst=lambda _: -1.0)


def _mean_area(predictions: _Labels | _Sets, area: Callable[[_Ranking], Float64]) -> Float64:
    """Mean over the classes that a sample holds; NaN where it holds one alone."""
    areas = np.stack([area(ranking) for ranking in predictions.ranked])
    defined = np.isfinite(areas)
    return ratio(np.where(defined, areas, 0).sum(0), defined.sum(0), undefined=np.nan)


# each lambda takes the object of its task: _Labels, _Sets or _Values, which compute once what
# several metrics share
METRICS: Mapping[str, MetricRow] = {
    # the order is more than that of tables: the first metric of a task is what values and sets are
    # compared by
    "micro_f1": _percent(lambda p: p.micro_f1, "micro-F1", "sets", compared=True),
    "accuracy": _percent(lambda p: _mean(p.y == p.predicted), compared=True, counts_all=True),
    "macro_f1": _percent(
        lambda p: p.macro_f1, "macro-F1", compared=True, of_sets=True, hidden="f1"
    ),
    "lrap": _percent(lambda p: _mean(p.ranking_precision), "LRAP", "sets", compared=True),
    "subset_accuracy": _percent(
        lambda p: _mean((p.y == p.predicted).all(1)), task="sets", compared=True
    ),
    "log_loss": _error(
        lambda p: _mean(-np.log(p.true)),
        "log-loss",
        worst=lambda _: -math.log(_SMALLEST),  # 36.04, of probability 0
        of_sets=True,
    ),
    "brier": _error(
        lambda p: _mean(p.brier), "Brier score", worst=lambda p: 1.0 if p.classes == 2 else 2.0
    ),
    "calibration_error": _error(
        lambda p: _calibration_error(p.y, p.proba),
        "calibration error",
        worst=lambda _: 1.0,
        scale="biased",
    ),
    "roc_auc": _area(
        lambda p: lambda weights: _mean_area(p, lambda ranking: ranking.roc_auc(weights)),
        "ROC-AUC",
        halved=lambda p: lambda *blocks: _mean_area(p, lambda ranking: ranking.halved(*blocks)),
        of_sets=True,
    ),
    "average_precision": _area(lambda p: p.second.average_precision, task="two"),
    "precision": _percent(lambda p: partial(p.f_beta, 0.0), task="two"),
    "recall": _percent(lambda p: p.recall, task="two"),
    "f1": _percent(lambda p: partial(p.f_beta, 1.0), "F1", "two"),
    "balanced_accuracy": _percent(lambda p: p.balanced_accuracy, hidden="recall"),
    "mcc": _rank(lambda p: p.mcc, "MCC"),
    "qwk": _rank(lambda p: p.weighted_kappa, "QWK", "ordinal"),
    "entity_f1": _percent(lambda p: p.f1, "entity F1", "entities", compared=True),
    "rmse": _error(lambda p: p.rmse, "RMSE", "values", worst=lambda p: p.largest),
    "mae": _error(
        lambda p: _mean(np.abs(p.y - p.predicted)), "MAE", "values", worst=lambda p: p.largest
    ),
    "r2": MetricRow(
        lambda p: p.r2,
        "R²",
        "values",
        compared=True,
        scale="explained",
        worst=lambda p: 1 - (p.largest / p.unit) ** 2,
    ),
    "pearson": _rank(lambda p: p.pearson, "Pearson", "values", compared=True),
    "spearman": _rank(lambda p: p.spearman, "Spearman", "values", compared=True),
}
"""All metrics, in the order of tables. F-beta scores, such as ``f2``, are like ``f1``."""

OF_PROBABILITIES = ("lrap", "log_loss", "brier", "roc_auc", "average_precision")
"""What a competition computes from probabilities, and from labels only as if they were certain."""

LOWER_IS_BETTER = tuple(name for name, row in METRICS.items() if row.lower)
COMPARED = tuple(name for name, row in METRICS.items() if row.compared)


def named_metric(text: str) -> str:
    """Return the name of a metric in any case and spelling; what is none as it is.

    >>> [named_metric(text) for text in ("ROC-AUC", "macro F1", "R²", "F2", "f0.5", "auc")]
    ['roc_auc', 'macro_f1', 'r2', 'f2', 'f0.5', 'roc_auc']
    """
    plain = _spelling(text)
    labels = {_spelling(row.label): name for name, row in METRICS.items() if row.label}
    names = {_spelling(name): name for name in METRICS} | labels | _OTHER_NAMES
    beta = _F_BETA.fullmatch(plain)
    return names.get(plain, f"f{float(beta[1]):g}" if beta else text)


def _spelling(text: str) -> str:
    return re.sub(r"[\s_-]+", "", text.lower().replace("²", "2"))


def beta_of(metric: str) -> float | None:
    """Return the beta of a metric such as ``f2``; ``None`` for other metrics."""
    match = _F_BETA.fullmatch(metric)
    # f0 would be precision, which has a name: no F score
    return float(match[1]) or None if match else None


def row_of(metric: str) -> MetricRow | None:
    """Return the row of a metric; ``None`` if there is no such metric."""
    beta = beta_of(metric)
    return METRICS.get(metric) if beta is None else _f_beta_row(beta)


def _f_beta_row(beta: float) -> MetricRow:
    return _percent(lambda p: partial(p.f_beta, beta), f"F{beta:g}", "two")


def is_percent(metric: str) -> bool:
    """True if a metric is shown in per cent."""
    row = row_of(metric)
    return row is not None and row.percent


def metric_name(metric: str) -> str:
    """Return the name of a metric as people write it.

    >>> metric_name("macro_f1"), metric_name("average_precision"), metric_name("f2")
    ('macro-F1', 'average precision', 'F2')
    """
    row = row_of(metric)
    return row.label if row is not None and row.label else metric.replace("_", " ")


def metric_text(
    value: float | None, metric: str, *, signed: bool = False, unit: bool = False
) -> str:
    """Return a score: per cent with one digit, else three, of small errors two that are not 0.

    At most six in all.

    >>> metric_text(0.7712, "accuracy", unit=True), metric_text(-0.0271, "accuracy", signed=True)
    ('77.1 %', '−2.7')
    >>> metric_text(0.5, "log_loss"), metric_text(float("nan"), "f2")
    ('0.500', '–')
    >>> metric_text(12345.678, "rmse"), metric_text(1e9, "rmse")
    ('12345.7', '1e+09')
    >>> metric_text(0.00071, "rmse"), metric_text(0.0432, "rmse")
    ('0.00071', '0.043')
    """
    if value is None or math.isnan(value):
        return "–"
    scaled, digits = (value * 100, 1) if is_percent(metric) else (value, 3)
    # z: no negative zero; the rounded number, so that it has six digits at most
    form = f"z.{digits}f" if abs(round(scaled, digits)) < 1_000 else ".6g"
    # errors have the unit of their values, which may be small; below that it is rounding
    if metric in LOWER_IS_BETTER and 1e-12 < abs(scaled) < 0.01:
        scaled = float(f"{scaled:.1e}")  # two digits, whatever their place
        form = f".{1 - math.floor(math.log10(abs(scaled)))}f"
    text = re.sub("^-", MINUS, f"{scaled:{'+' if signed else ''}{form}}")
    if unit and is_percent(metric):
        text += " points" if signed else " %"
    return text


def interval_text(score: Score, metric: str, *, signed: bool = False) -> str:
    """Return the ends of an interval; empty if there is none.

    >>> interval_text(Score(0.8, 0.77, 0.812), "accuracy")
    '77.0 to 81.2'
    """
    if not math.isfinite(score.low + score.high):
        return ""
    return " to ".join(metric_text(end, metric, signed=signed) for end in (score.low, score.high))


def score_text(score: Score, metric: str, *, signed: bool = False, unit: bool = False) -> str:
    """Return a score with its interval: ``79.1 (77.0 to 81.2)``."""
    ends = interval_text(score, metric, signed=signed)
    text = metric_text(score.value, metric, signed=signed, unit=unit)
    return f"{text} ({ends})" if ends else text


def check_metric(metric: str, target: Target, *, name: str = "metric") -> None:
    """Raise a :class:`UsageError` for a metric by which no prediction of a target is judged.

    ``name`` is that of the parameter, for messages.
    """
    rows = _rows(len(target.classes), beta_of(metric), sets=target.of_sets).items()
    check_choice([n for n, row in rows if row.scale != "biased"], **{name: metric})


def _rows(
    classes: int, beta: float | None = None, *, sets: bool = False, ordinal: bool = False
) -> dict[str, MetricRow]:
    """The metrics of so many classes, or of values for 0, with that F-beta score."""
    if sets:
        return {n: row for n, row in METRICS.items() if row.task == "sets" or row.of_sets}
    applies = {"values": classes == 0, "classes": classes > 0, "two": classes == 2}
    applies["ordinal"] = ordinal and classes > 2
    rows = {name: row for name, row in METRICS.items() if applies.get(row.task)}
    if classes == 2 and beta is not None and f"f{beta:g}" not in rows:
        rows[f"f{beta:g}"] = _f_beta_row(beta)
    return rows


def metrics_for(
    y: NDArray[Any],
    output: Float64,
    predicted: Int64 | None = None,
    *,
    beta: float | None = None,
    ordinal: bool = False,
) -> dict[str, Metric]:
    """Return the metrics of predictions in :data:`METRICS` as functions of weights.

    ``y`` are ``(n,)`` class numbers or values, or ``(n, classes)`` 0 or 1 of sets of classes, like
    ``predicted``, which are by default the likeliest; ``output`` are ``(n, classes)`` probabilities
    or ``(n,)`` values. With ``beta`` F-beta of the second of two classes is one of them, of
    ``ordinal`` classes the weighted kappa.
    """
    p: _Labels | _Sets | _Values
    if output.ndim == 1:
        p = _Values(y, output)
    elif y.ndim > 1:
        p = _Sets(y, output, (output >= 0.5) * 1 if predicted is None else predicted)
    else:
        p = _Labels(y, output, output.argmax(1) if predicted is None else predicted)
    return {
        name: Metric(
            row.of(p),
            row.scale,
            row.worst(p),
            None if row.counts_all else p.rarer,
            row.halved and row.halved(p),
            partial(p.hidden, row.hidden) if row.hidden and isinstance(p, _Labels) else None,
        )
        for name, row in _rows(p.classes, beta, sets=y.ndim > 1, ordinal=ordinal).items()
    }


class _Labels:
    """Predicted classes and probabilities, and metrics of both."""

    def __init__(self, y: Int64, proba: Float64, predicted: Int64) -> None:
        self.y, self.proba, self.predicted = y, proba, predicted
        self.classes = proba.shape[1]

    @cached_property
    def rarer(self) -> Bool | None:
        if self.classes != 2 or not 0 < self.y.mean() < 1:
            return None
        # class 1 where it has at most half of the records, else class 0
        return np.asarray(self.y == int(self.y.mean() <= 0.5))

    @cached_property
    def true(self) -> Float64:
        return np.clip(self.proba[np.arange(len(self.y)), self.y], _SMALLEST, 1)

    @cached_property
    def brier(self) -> Float64:
        # over both of two classes the sum is twice the usual score of the second one
        squares = ((self.proba - np.eye(self.classes)[self.y]) ** 2).sum(1)
        return np.asarray(squares / (2 if self.classes == 2 else 1))

    @cached_property
    def _cells(self) -> tuple[Any, Any, Any]:
        """Records of every class that are rightly predicted, true, and predicted."""
        # (classes, n) sparse: a dense one has that many numbers
        true, said = (_indicator(y, self.classes) for y in (self.y, self.predicted))
        return true.multiply(said).tocsr(), true, said

    @cached_property
    def second(self) -> _Ranking:
        """The ranking by the probability of the second of two classes."""
        return _Ranking(self.y == 1, self.proba[:, 1])

    @property
    def ranked(self) -> Iterator[_Ranking]:
        """Rankings by the probability of each class; of two by that of the second alone."""
        # the area of the first of two classes is the same as that of the second
        if self.classes == 2:
            return iter([self.second])
        # one after the other, since all of them would take three times the probabilities
        return (_Ranking(self.y == c, self.proba[:, c]) for c in range(self.classes))

    def _marginals(self, weights: Float64) -> list[Float64]:
        """``(samples, classes)`` weights: rightly predicted, true, and predicted."""
        return [np.asarray(each @ weights.T).T for each in self._cells]

    def macro_f1(self, weights: Float64) -> Float64:
        """Mean of the F1 of every class that is true or predicted somewhere."""
        right, true, predicted = self._marginals(weights)
        involved = true + predicted
        # as scikit-learn without labels=: a class that this sample lacks on both sides does not
        # count
        return np.asarray(ratio(2 * right, involved).sum(1) / (involved > 0).sum(1))

    def balanced_accuracy(self, weights: Float64) -> Float64:
        """Mean of the recall of every class that is true somewhere."""
        right, true, _ = self._marginals(weights)
        return np.asarray(ratio(right, true).sum(1) / (true > 0).sum(1))

    def hidden(self, of: Literal["recall", "f1"], unit: Int64) -> tuple[float, float]:
        """How far a mean over classes may be below and above, by classes that no unit moves.

        They are all right or all wrong, and by Wilson's interval of their recall need not be. It is
        the furthest class and not the sum of all: where many are all right, those that are not
        move with their units, and show how many errors the others have on average.
        """
        right, true, predicted = (n[0] for n in self._marginals(np.ones((1, len(unit)))))
        furthest = [0.0, 0.0]
        # a single class is what the interval of all records is of already
        several = np.count_nonzero(true) > 1
        for number in np.flatnonzero(several & (true > 0) & ((right == true) | (right == 0))):
            count, recall = len(np.unique(unit[self.y == number])), int(right[number] > 0)
            other = wilson(recall * count, count)[1 - recall]
            moved = abs(other - recall)
            if of == "f1":
                said = predicted[number] / true[number]  # as many more as there are more right
                moved = float(2 * abs(other / (1 + said + other - recall) - recall / (1 + said)))
            furthest[1 - recall] = max(furthest[1 - recall], moved)
        # of two classes errors of one show in the F1 of the other
        if of == "f1" and self.classes == 2:
            furthest[0] = 0.0
        classes = int(np.count_nonzero(true + predicted * (of == "f1")))
        return furthest[0] / classes, furthest[1] / classes

    def mcc(self, weights: Float64) -> Float64:
        """Matthews' correlation coefficient; 0 where one class alone is true or predicted."""
        right, true, predicted = self._marginals(weights)
        total = true.sum(1)
        covariance = right.sum(1) * total - (true * predicted).sum(1)
        spread = (total**2 - (true**2).sum(1)) * (total**2 - (predicted**2).sum(1))
        # rounding may make the product of two variances slightly negative
        return ratio(covariance, np.sqrt(np.maximum(spread, 0)))

    def weighted_kappa(self, weights: Float64) -> Float64:
        """Cohen's kappa with the squared distance of class numbers; NaN where all are one class."""
        _, true, predicted = self._marginals(weights)
        places, total = np.arange(self.classes, dtype=np.float64), true.sum(1)
        squares = np.subtract.outer(places, places) ** 2
        apart = weights @ (self.y - self.predicted) ** 2.0 * total
        expected = np.einsum("si,ij,sj->s", true, squares, predicted)
        return ratio(expected - apart, expected, undefined=np.nan)

    def f_beta(self, beta: float, weights: Float64) -> Float64:
        """F-beta of the second of two classes; with 0 it is the precision."""
        right, true, predicted = (numbers[:, 1] for numbers in self._marginals(weights))
        return np.asarray(_f_beta((None, predicted - right, true - right, right), beta))

    def recall(self, weights: Float64) -> Float64:
        right, true, _ = self._marginals(weights)
        return ratio(right[:, 1], true[:, 1])


class _Sets:
    """Predicted sets of classes and probabilities, and what several metrics compute from them."""

    rarer = None

    def __init__(self, y: Int64, proba: Float64, predicted: Int64) -> None:
        self.y, self.proba, self.predicted = y, proba, predicted
        self.classes = proba.shape[1]
        # (n, classes): hits; and 2 hits + misses + false alarms, the denominator of F1
        self._right, self._involved = y * predicted, y + predicted

    @property
    def true(self) -> Float64:
        """Geometric mean of the probabilities that the classes of each record are as they are."""
        probabilities = np.where(self.y, self.proba, 1 - self.proba)
        return np.asarray(np.exp(np.log(np.clip(probabilities, _SMALLEST, 1)).mean(1)))

    @property
    def ranked(self) -> Iterator[_Ranking]:
        """Rankings of the records by the probability of each class."""
        return (_Ranking(self.y[:, c] == 1, self.proba[:, c]) for c in range(self.classes))

    @property
    def ranking_precision(self) -> Float64:
        """Mean fraction of true classes among those down to each true one, by probability."""
        from scipy.stats import rankdata

        # false classes get 1, behind every -proba; "max" counts ties as ranked above
        of_true = rankdata(np.where(self.y, -self.proba, 1), "max", axis=1)
        precision = (of_true / rankdata(-self.proba, "max", axis=1) * self.y).sum(1)
        count = self.y.sum(1)
        # a record without a class has nothing to be ranked wrongly, as in scikit-learn
        return np.where(count > 0, precision / np.maximum(count, 1), 1.0)

    def micro_f1(self, weights: Float64) -> Float64:
        """F1 of all pairs of a record and a class."""
        right, involved = (weights @ part.sum(1) for part in (self._right, self._involved))
        return ratio(2 * right, involved)

    def macro_f1(self, weights: Float64) -> Float64:
        """Mean of the F1 of every class, 0 for one that is neither true nor predicted."""
        scores = ratio(2 * (weights @ self._right), weights @ self._involved)
        return np.asarray(scores.mean(1))


class _Values:
    """Predicted values, and what several metrics compute from them."""

    rarer, classes = None, 0

    def __init__(self, y: Float64, predicted: Float64) -> None:
        self.y, self.predicted = y, predicted
        # in units of the spread, so that values of any size (years, prices) keep their digits in
        # sums
        self.unit = _spread(y)
        # no weighting of these records has a larger RMSE or MAE: the worst end of their range
        self.largest = float(np.abs(y - predicted).max())
        self._squares = _mean(((y - predicted) / self.unit) ** 2)
        self._centred, self._shifted = _standardised(y), _standardised(predicted)
        self._ranks = _ranks(y), _ranks(predicted)

    def rmse(self, weights: Float64) -> Float64:
        return np.asarray(self.unit * np.sqrt(self._squares(weights)))

    def r2(self, weights: Float64) -> Float64:
        # of the weighted records, not of all: R² compares with their own mean
        variance = _mean(self._centred**2)(weights) - _mean(self._centred)(weights) ** 2
        # without any, there is nothing to explain
        variance[variance <= _SMALLEST] = 0
        return np.asarray(1 - ratio(self._squares(weights), variance, undefined=np.nan))

    def pearson(self, weights: Float64) -> Float64:
        return _correlation(weights, self._centred, self._shifted)

    def spearman(self, weights: Float64) -> Float64:
        """Rank correlation; every sample is ranked anew, ties by their mean rank."""
        return _correlation(weights, *(rank(weights) for rank in self._ranks))


def _standardised(values: Float64) -> Float64:
    """Values of mean 0 and variance 1, whose sums keep their digits; a constant is 0."""
    return np.asarray((values - values.mean()) / _spread(values))


def _spread(values: Float64) -> float:
    """Standard deviation; 1 of a constant, of whose own only the rounding of its mean is left."""
    return float(values.std() if np.ptp(values) else 0) or 1.0


def _mean(values: NDArray[Any]) -> Callable[[Float64], Float64]:
    values = values.astype(np.float64)
    return lambda weights: np.asarray(weights @ values / weights.sum(1))


def _calibration_error(y: Int64, proba: Float64) -> Callable[[Float64], Float64]:
    """Expected calibration error: mean distance of confidence and accuracy over bins."""
    confidence, right = proba.max(1), proba.argmax(1) == y
    # a confidence of exactly 1 belongs to the last bin
    bins = np.minimum((confidence * _BINS).astype(np.int64), _BINS - 1)
    # (bins, n) sparse: a product with weights gives the signed gap of each bin, of many weightings
    gaps = _indicator(bins, _BINS) * (confidence - right)
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
    # values are standardised, or ranks as fractions: what is left below this is rounding of a
    # constant
    spread[spread <= _SMALLEST * total[:, 0] ** 2] = 0
    return ratio(products[0], np.sqrt(spread), undefined=np.nan)


def _ranks(values: Float64) -> Callable[[Float64], Float64]:
    """Weights ``(samples, n)`` → mean ranks of the records of each sample, up to a constant."""
    _, place = np.unique(values, return_inverse=True)
    # sorted once for all weightings; a weighting only moves the cumulated weights
    order = np.argsort(place, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(place[order]), 1))

    def ranks(weights: Float64) -> Float64:
        last = np.cumsum(np.take(weights, order, axis=1), axis=1)[:, ends]
        # the mean rank of ties is halfway between the weight before them and through them
        middle = (last + np.concatenate([np.zeros((len(last), 1)), last[:, :-1]], axis=1)) / 2
        middle = middle / last[:, -1:]  # of a size that does not depend on the number of records
        return np.take(middle, place, axis=1)

    return ranks


class Threshold(NamedTuple):
    """The probability from which the second of two classes is predicted.

    Without a ``value`` it is chosen by an F score, or by macro-F1 where ``beta`` is ``None``.
    """

    value: float | None
    beta: float | None

    @classmethod
    def parse(cls, threshold: str | float) -> Threshold:
        """Read a probability such as ``0.3``, or the score to choose one by.

        >>> Threshold.parse(0.3), Threshold.parse("f2")
        (Threshold(value=0.3, beta=None), Threshold(value=None, beta=2.0))
        """
        text = named_metric(str(threshold))
        if text == "macro_f1":
            return cls(None, None)
        is_beta = text.startswith("f")
        try:
            # a bool is 0 or 1: the "f" of an F score is left out
            value = float(text[is_beta:])
        except ValueError:
            value = float("nan")
        if not 0 < value < (1_000 if is_beta else 1):
            raise UsageError(
                "expected a probability such as 0.3, or the score to choose it by: macro_f1, f1, "
                f"f2, f0.5 …{did_you_mean(text, ('macro_f1',))}",
                threshold=text,
            )
        return cls(None, value) if is_beta else cls(value, None)

    @property
    def metric(self) -> str | None:
        """Name of the metric that it is chosen by; ``None`` for a fixed value."""
        if self.value is not None:
            return None
        return "macro_f1" if self.beta is None else f"f{self.beta:g}"

    def check(self, target: Target) -> None:
        """Raise a :class:`UsageError` unless one of two classes is predicted."""
        classes = len(target.classes)
        if classes != 2 or target.of_sets:
            problem = f"it needs one of two classes a record; there are {classes or 'values'}."
            raise UsageError(problem, threshold=self.metric or self.value)

    def choose(self, y: Int64, positive: Float64) -> float:
        """Return the fixed value, or the best one; arguments as for :func:`best_threshold`."""
        return best_threshold(y, positive, beta=self.beta) if self.value is None else self.value


def best_threshold(y: Int64, positive: Float64, *, beta: float | None = None) -> float:
    """Probability of class 1 from which on predicting it scores best, by F-beta or macro-F1.

    It is the middle between two neighbouring probabilities; of equals the one nearest to 0.5; just
    above 1 where it is best to predict class 1 for no record, and one has probability 1.
    ``positive`` are ``(n,)`` probabilities of records that the model had not seen.
    """
    values, place = np.unique(-positive, return_inverse=True)
    values = -values  # distinct, from the highest down
    # entry i: class 1 is predicted for the records with the i highest distinct probabilities
    hits = np.append(0, np.cumsum(np.bincount(place, y == 1)))
    chosen = np.append(0, np.cumsum(np.bincount(place)))
    cells = np.stack([len(y) - hits[-1] - (chosen - hits), chosen - hits, hits[-1] - hits, hits])
    if beta is None:
        # in reverse, true and predicted change places with their opposites: F1 of class 0
        score = (_f_beta(cells, 1.0) + _f_beta(cells[::-1], 1.0)) / 2
    else:
        score = _f_beta(cells, beta)
    middle = (values[1:] + values[:-1]) / 2
    middle = np.where(middle > values[1:], middle, values[:-1])  # neighbours in floating point
    nobody = (1 + values[0]) / 2 if values[0] < 1 else np.nextafter(1.0, 2.0)
    edges = np.concatenate([[nobody], middle, [values[-1] / 2]])
    # equal scores differ by rounding, which must not choose among them
    best = np.flatnonzero(score >= score.max() - 1e-12)
    return float(edges[best[np.argmin(np.abs(edges[best] - 0.5))]])


def _f_beta(cells: Any, beta: float) -> Any:
    """F-beta of class 1 from counts of true and predicted class: ``(00, 01, 10, 11)``."""
    _, false, missed, hits = cells
    gain = (1 + beta**2) * hits
    return gain / np.maximum(gain + beta**2 * missed + false, _SMALLEST)


def ratio(part: Float64, whole: NDArray[Any], *, undefined: float = 0.0) -> Float64:
    """Part / whole, ``undefined`` where whole is 0."""
    ratio = np.full(np.shape(whole), undefined)
    np.divide(part, whole, out=ratio, where=whole > 0)
    return ratio


def _behind(misses: NDArray[Any], owner: Int64) -> Float64:
    """Misses behind each of some ties within its owner, whose ties stand together; half its own."""
    return np.asarray(np.cumsum(np.bincount(owner, misses))[owner] - np.cumsum(misses) + misses / 2)


class _Ranking:
    """Records in order of score, ties together, for metrics of a ranking."""

    def __init__(self, positive: Bool, scores: Float64) -> None:
        self._order = np.argsort(-scores, kind="stable")
        self._positive = positive[self._order].astype(np.float64)
        # the last record of each score: a threshold cannot divide ties
        self._ends = np.flatnonzero(np.append(np.diff(scores[self._order]), 1))

    def _sums(self, weights: Float64) -> tuple[Float64, Float64]:
        """Weights of positives, and of all records, down to every score.

        Sums of weights of 1 and 1/2 are exact, and so are their differences.
        """
        ordered = np.take(weights, self._order, axis=1)
        hits = np.cumsum(ordered * self._positive, axis=1)
        # into the same memory, since hits are known: (samples, n) is the largest array here
        chosen = np.cumsum(ordered, axis=1, out=ordered)
        if len(self._ends) < len(self._order):
            hits, chosen = (np.take(w, self._ends, axis=1) for w in (hits, chosen))
        return hits, chosen

    def roc_auc(self, weights: Float64) -> Float64:
        """Area under the ROC curve by trapezoids; NaN if only one class is there."""
        hits, chosen = self._sums(weights)
        missed = chosen - hits
        # a product and a sum at once, without a matrix of products
        under = np.einsum("ij,ij->i", np.diff(missed, axis=1), hits[:, 1:] + hits[:, :-1])
        # the first trapezoid starts at the origin
        under = (missed[:, 0] * hits[:, 0] + under) / 2
        return ratio(under, hits[:, -1] * missed[:, -1], undefined=np.nan)

    def halved(self, block: Int64, count: int) -> Float64:
        """Areas ``(count,)`` in which each block of records counts half.

        The area is a sum over pairs of a positive and a negative record. A pair counts ½ with one
        of them in the block, and ¼ with both: all pairs, less ½ of those of each record in the
        block, which has the pairs with both twice, plus ¼ of these. All are exact in binary.
        """
        block, positive = block[self._order], self._positive
        tie = np.searchsorted(self._ends, np.arange(len(block)))  # 0 for the highest score
        hits, misses = np.bincount(tie, positive), np.bincount(tie, 1 - positive)
        beaten = _behind(misses, np.zeros_like(hits, np.int64))
        above = np.cumsum(hits) - hits / 2
        pairs = np.bincount(block, np.where(positive, beaten[tie], above[tie]), count)
        # ties within each block, block after block
        ties, place = np.unique(block * len(hits) + tie, return_inverse=True)
        owner = ties // len(hits)
        inside = np.bincount(place, positive) * _behind(np.bincount(place, 1 - positive), owner)
        under = (hits * beaten).sum() - pairs / 2 + np.bincount(owner, inside, count) / 4
        kinds = (hits.sum() - np.bincount(block, positive, count) / 2) * (
            misses.sum() - np.bincount(block, 1 - positive, count) / 2
        )
        return ratio(under, kinds, undefined=np.nan)

    def average_precision(self, weights: Float64) -> Float64:
        """Mean precision over the recall gained at each score; NaN without positives."""
        hits, chosen = self._sums(weights)
        gained, precision = np.diff(hits, axis=1, prepend=0.0), hits / np.maximum(chosen, _SMALLEST)
        areas = np.einsum("ij,ij->i", gained, precision)
        return ratio(areas, hits[:, -1], undefined=np.nan)
