"""Intervals and paired tests of metrics: a jackknife of sampling units.

    unit (n,)  0 0 1 2 ──► weights (units, n)  ½ ½ 1 1     metric    values (units,)
                                               1 1 ½ 1  ──────────►       │ × −2, less their mean
                                               1 1 1 ½                    ▼
       interval, p ◄── Student's t ◄── error² = Σ influence² ◄── influence (units,)

A unit is what the split keeps together: a group, else the records of one text, else one record.
A metric is a function of weighted records; the influence of a unit is how the metric changes when
the unit counts half, and the sum of squared influences is the variance of the metric.

What is notable:

- A unit counts half and is not left out: leaving out overstates the variance of areas and
  correlations where units are few. 1/2 and 1 are exact in binary, and so are their sums.
- A metric gets many weightings as one matrix, so that it sorts and ranks once for all of them. Of
  areas :attr:`Metric.halved` gives all values at once.
- The influence on a difference of two methods is the difference of their influences, so that what
  is hard for both cancels. Its p is Student's t of the difference and the error that its interval
  shows; of areas both are on the scale of the arcsine.
- More than 200 units are put together in random blocks, by a seed: the time does not grow with
  their number.

``docs/method.md`` has the sources, and error rates where the truth is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from embedkit.types import Bool, Float64, Int64

Key = TypeVar("Key", bound=Hashable)

BLOCKS = 200
"""More units than these are put together at random, so that the time does not grow with them."""

# numbers in one matrix of weights: 8 MB as float64
_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Score:
    """A score and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference(Score):
    """One method's score less another's on the same records, with its 95 % interval.

    ``p_corrected`` is corrected for all pairs of methods; ``None`` where a score is undefined.
    """

    p: float | None = None
    p_corrected: float | None = None


class Metric(NamedTuple):
    """A metric as a function of weighted records.

    ``rarer`` are ``(n,)`` the records of the rarer of two classes, whose number limits what a
    perfect score shows; ``None``: all records count. ``halved`` gives the values in which each
    block of records counts half, where that takes less than as many weightings. ``hidden`` is how
    far below and above the value it may be by what no unit shows: a class that is all right stays
    so with half of it.
    """

    of: Callable[[Float64], Float64]  # weights (samples, n) → values (samples,)
    scale: str = "fraction"
    worst: float = 0.0  # end of its range, which no interval passes
    rarer: Bool | None = None
    halved: Callable[[Int64, int], Float64] | None = None  # block (n,), their number → values
    hidden: Callable[[Int64], tuple[float, float]] | None = None  # of units (n,)

    def value(self, count: int) -> float:
        """Return the value for ``count`` records, each once."""
        return float(self.of(np.ones((1, count)))[0])

    def units(self, unit: Int64) -> float:
        """Return the effective number of units: fewer than there are where some are far larger."""
        # Kish's effective sample size, (Σ n)² / Σ n²: equal to the number of units where all are of
        # one size
        sizes = np.unique(unit, return_counts=True)[1]
        count = float(sizes.sum() ** 2 / (sizes**2).sum())
        return count if self.rarer is None else min(count, len(np.unique(unit[self.rarer])))


def influences(metrics: Mapping[Key, Metric], unit: Int64, *, seed: int = 0) -> dict[Key, Float64]:
    """Return the influence of every unit on every metric, less their mean.

    It is twice what the metric loses when the unit counts half. Of a mean over units of one size
    it is ``(v − mean) / (n − 1/2)``, of which the sum of squares is the variance of the mean
    without bias up to ``1 / n²``. Leaving a unit out altogether overstates the variance of other
    metrics where units are few, and the limit of a small change understates it.

    ``unit`` ``(n,)`` is the unit of each record; the seed is of the blocks that more units than
    :data:`BLOCKS` are put together in. The result is ``(blocks,)`` for each metric, NaN where it is
    undefined.
    """
    names, block = np.unique(unit, return_inverse=True)
    count = len(names)
    if count > BLOCKS:
        # a sum over 200 blocks of random units has the expectation of the sum over the units: only
        # the error of the error grows, to about 5 %
        block = (np.random.default_rng(seed).permutation(count) % BLOCKS)[block]
        count = BLOCKS
    # the value of all records is the same constant for every unit, which subtracting the mean
    # removes below
    influence = {
        name: -2 * metric.halved(block, count) if metric.halved else np.empty(count)
        for name, metric in metrics.items()
    }
    weighted = {name: metric for name, metric in metrics.items() if not metric.halved}
    # one matrix of weights (units at once, records): a metric is a function of many weightings, so
    # that ranks and sorting are paid for once
    step = max(1, min(64, _AT_ONCE // len(unit)))
    for start in range(0, count, step):
        numbers = np.arange(start, min(start + step, count))
        # (units at once, records): 1/2 and 1 are exact in binary, and so are their sums
        weights = np.where(block == numbers[:, None], 0.5, 1.0)
        for name, metric in weighted.items():
            influence[name][numbers] = -2 * metric.of(weights)
    for values in influence.values():
        # a metric that no unit changes must have influences of exactly 0, which :func:`_error`
        # treats apart; rounding would make them differ in the last digits
        equal = np.ptp(values) <= 1e-12 * np.abs(values).max()  # but for rounding
        values -= values if equal else values.mean()
    return influence


class Estimate(NamedTuple):
    """A metric of some records and the influences of their units: what scores and tests need."""

    metric: Metric
    unit: Int64  # of each record (n,)
    value: float  # of all records
    influence: Float64  # (blocks,), of one seed

    @property
    def score(self) -> Score:
        """The value with its 95 % interval."""
        return Score(self.value, *interval(self.value, self.influence, self.metric, self.unit))

    def less(self, other: Estimate) -> Difference:
        """Return the difference to that of another method on the same records, and its test."""
        values = np.array([self.value, other.value])
        moved = np.stack([self.influence, other.influence], axis=1)
        return paired_test(values, moved, self.metric.scale, self.metric.units(self.unit))


def estimates(metrics: Mapping[Key, Metric], unit: Int64) -> dict[Key, Estimate]:
    """Return metrics of all records; ``unit`` ``(n,)`` is the sampling unit of each.

    Blocks of many units are always of the same seed: every command has the same intervals, and
    methods on the same units have the same blocks, which is what pairs them.
    """
    return {
        name: Estimate(metrics[name], unit, metrics[name].value(len(unit)), influence)
        for name, influence in influences(metrics, unit).items()
    }


def interval(value: float, influence: Float64, metric: Metric, unit: Int64) -> tuple[float, float]:
    """Return the 95 % interval of a value, within the range of its metric.

    It is symmetric on a scale on which estimates are nearly normal: log-odds of fractions, the
    power -2/3 of errors (E. B. Wilson and M. M. Hilferty 1931, "The Distribution of Chi-Square",
    PNAS 17) and of the error that an R² leaves, Fisher's z of correlations. Where no unit has an
    influence (a perfect score), it is Wilson's; where few have, a fraction's is no wider than that
    of as many units as its error is of (E. L. Korn and B. I. Graubard 1998, "Confidence Intervals
    for Proportions with Small Expected Number of Positive Counts", Survey Methodology 24). NaN
    where the metric is undefined, or its estimate biased: the calibration error is above 0 by
    chance even where all probabilities are right.
    """
    error, freedom = _error(value, influence)
    if not np.isfinite(value) or np.isnan(error) or metric.scale == "biased":
        return float("nan"), float("nan")
    # errors end at 0 and have their worst above, all others end at 1
    least, most = sorted((metric.worst, 0.0 if metric.scale == "error" else 1.0))
    # at the end of a range the scales below have no slope, and a perfect score no variance; the
    # binomial distribution still knows how much n records can show
    if not influence.any() or not least < value < most:
        # an error of 0 is no count of successes, for which Wilson would have an interval; a single
        # unit has no influence whatever its error is, and says nothing of others
        if metric.scale in ("error", "explained"):
            return (value, value) if len(influence) > 1 else (float("nan"), float("nan"))
        n, size = round(max(metric.units(unit), 1)), most - least
        # mostly no whole number: a constant has half of the largest area, of any number of records
        low, high = (least + size * end for end in wilson((value - least) / size * n, n))
        if metric.rarer is not None:
            return low, high  # of the rarer of two classes already
    else:
        low, high = _SCALES.get(metric.scale, _log_odds)(value, _quantile(freedom) * error)
        if metric.scale == "fraction" and freedom < _FEW_ERRORS:
            # t knows only that a few units made the error, and not how many did not: one error of
            # 200 would reach down to 0.72, two to 0.93. As many units as have this error, at most
            # those there are, and fewer by the quantile of t for these
            count = min(metric.units(unit), value * (1 - value) / error**2)
            count *= (_quantile(np.inf) / _quantile(len(influence) - 1)) ** 2
            ends = wilson(value * count, count)
            low, high = max(low, ends[0]), min(high, ends[1])
    # with what is hidden beside what the units show, of which it is independent: squares add as
    # for differences of proportions (R. G. Newcombe 1998, Statistics in Medicine 17)
    below, above = metric.hidden(unit) if metric.hidden else (0.0, 0.0)
    low = value - math.hypot(value - low, below)
    high = value + math.hypot(high - value, above)
    return float(np.clip(low, least, value)), float(np.clip(high, value, most))


_FEW_ERRORS = 10.0  # degrees of freedom, of four or five errors


def wilson(count: float, n: float) -> tuple[float, float]:
    """Return Wilson's 95 % interval of the fraction that ``count`` is of ``n`` units.

    ``scipy.stats`` has it too, and takes a second to import.

    >>> [round(end, 4) for end in wilson(9, 10)]
    [0.5958, 0.9821]
    """
    from scipy.special import ndtri

    z = float(ndtri(0.975))
    middle, reach = count + z**2 / 2, z * (count * (1 - count / n) + z**2 / 4) ** 0.5
    low, high = (middle - reach) / (n + z**2), (middle + reach) / (n + z**2)
    # algebra says 0 and 1 at the ends; rounding says 1e-17
    return low if count else 0.0, high if count < n else 1.0


def _log_odds(value: float, margin: float) -> tuple[float, float]:
    from scipy.special import expit, logit

    # the delta method: an error divided by the slope of the scale at the value
    reach = margin / (value * (1 - value))
    return expit(logit(value) - reach), expit(logit(value) + reach)


def _fisher(value: float, margin: float) -> tuple[float, float]:
    z, reach = np.arctanh(value), margin / (1 - value**2)
    return float(np.tanh(z - reach)), float(np.tanh(z + reach))


def _power(value: float, margin: float) -> tuple[float, float]:
    """Ends on the scale of the power -2/3, which has no upper end for wide margins.

    Beyond a margin of the value itself, where one record or two make the error, the curve of the
    upper end goes on as a straight line.
    """
    # 3^2.5 is the slope of the curve where it is left (reach 1), so that the line is its tangent
    reach = min(margin / value, 1.0)
    high = value * (1 - 2 / 3 * reach) ** -1.5 + 3**2.5 * max(margin - value, 0.0)
    return value * (1 + 2 / 3 * margin / value) ** -1.5, high


def _explained(value: float, margin: float) -> tuple[float, float]:
    # 1 - R² is an error, and its ends change places
    low, high = _power(1 - value, margin)
    return 1 - high, 1 - low


# of fractions and areas it is the log-odds
_SCALES = {"correlation": _fisher, "error": _power, "explained": _explained}


def paired_test(
    values: Float64, influence: Float64, scale: str = "fraction", units: float = np.inf
) -> Difference:
    """Return the difference of two values of a metric with its interval, and p by Student's t.

    The interval leaves out 0 exactly if p is below 0.05. Of areas the test is made
    on another scale than that of the metric, and says where the end towards 0 is; the other end is
    made of the intervals of both.

    Args:
        values: ``(2,)`` of all records; the second is subtracted.
        influence: ``(blocks, 2)``.
        scale: of the metric, :attr:`Metric.scale`.
        units: :meth:`Metric.units`.
    """
    from scipy.special import stdtr

    value = float(values[0] - values[1])
    steady, moved = _steadied(values, influence, scale)
    apart = float(steady[0] - steady[1])
    error, freedom = _error(apart, moved[:, 0] - moved[:, 1], units)
    p, near = None, _quantile(freedom) * error
    if not np.isnan([apart, error]).any():
        # the same predictions by two methods differ by rounding alone, which is no difference; the
        # yardstick are the values and the standard errors of both
        largest_error = np.sqrt((moved**2).sum(0)).max()
        same = error <= 1e-9 * largest_error and abs(apart) <= 1e-9 * np.abs(steady).max()
        if same and scale in ("fraction", "area", "correlation"):
            # right on the same records: none of so many tells which is better, but as many as this
            # may do so in others. Errors are equal where all outputs are
            near = wilson(0, units)[1]
            return Difference(value, -near, near, 1.0)
        # without a difference the error may be 0 as well, and t would be 0 / 0
        p = 1.0 if same or apart == 0 else float(2 * stdtr(freedom, -abs(apart) / error))
    if scale != "area":
        # neither of two fractions leaves its range, nor does their difference
        most = {"fraction": 1.0, "correlation": 2.0}.get(scale, np.inf)
        return Difference(value, max(value - near, -most), min(value + near, most), p)
    # in units of the metric: as many times the difference as it is there
    near *= value / apart if apart else 0.0
    # what the intervals of both say, which depend on each other as the influences do (G. Y. Zou,
    # A. Donner 2008, Statistics in Medicine 27)
    ends = []
    for area, influences_on_it in zip(values, influence.T, strict=True):
        error, freedom = _error(area, influences_on_it)
        # without influences it is exact, as the majority's area of 1/2, or at its end
        inside = influences_on_it.any() and 0 < area < 1
        low, high = _log_odds(area, _quantile(freedom) * error) if inside else (area, area)
        ends.append([area - low, high - area])
    sizes = float(np.sqrt((influence**2).sum(0)).prod())
    shared = float(influence[:, 0] @ influence[:, 1]) / sizes if sizes else 0.0
    # down the difference goes by the lower end of the first area and the upper end of the second
    first, second = np.array(ends[0]), np.array(ends[1][::-1])
    squares = first**2 + second**2 - 2 * shared * first * second
    below, above = np.sqrt(np.maximum(squares, 0)).tolist()
    if near < value:  # proven to be above 0
        below = near
    elif near < -value:
        above = near
    else:
        # as far as the test goes, which of few units is further than both intervals go
        down, up = (min(near, limit) for limit in first + second)
        below, above = max(below, down, value), max(above, up, -value)
    return Difference(value, value - below, value + above, p)


def _steadied(values: Float64, influence: Float64, scale: str) -> tuple[Float64, Float64]:
    """Values and influences on the scale where a test is made: of areas arcsin √a.

    Near its end an area hangs on few records, and the lower of two areas varies more. A sample in
    which it is low has a large difference and a large error, so that a test of the difference
    itself would be timid. On the scale of the arcsine, that of counts, the error does not depend
    on the area (F. J. Anscombe 1948, Biometrika 35).
    """
    if scale != "area":
        return values, influence
    values = np.clip(values, 0, 1)  # sums of weights may round beyond 1
    inside = (values > 0) & (values < 1)
    # at the ends the slope has no limit, but no record has an influence
    slope = np.divide(0.5, np.sqrt(values * (1 - values)), out=np.zeros(len(values)), where=inside)
    return np.arcsin(np.sqrt(values)), influence * slope


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Return p values by Holm's correction for all of them; ``None``, which is no test, stays.

    >>> holm([0.01, 0.04, 0.03, None])
    [0.03, 0.06, 0.06, None]
    """
    tests = sorted((value, index) for index, value in enumerate(p) if value is not None)
    corrected: list[float | None] = [None] * len(p)
    # the running maximum keeps the order: a larger p is never corrected to a smaller one
    highest = 0.0
    for rank, (value, index) in enumerate(tests):
        highest = max(highest, min(1.0, (len(tests) - rank) * value))
        corrected[index] = highest
    return corrected


def _error(value: float, influence: Float64, units: float = np.inf) -> tuple[float, float]:
    """Standard error of a value, and its degrees of freedom; NaN where influences are undefined.

    The degrees of freedom are Satterthwaite's of a sum of squares, by the kurtosis without bias:
    fewer for long tails, and not more than there are effective units. Where no unit has an
    influence, as where one method is right and the other wrong on every record, the error is that
    of one further unit without a difference, and p, with a degree for every four units, about that
    of a sign test.
    """
    n = len(influence)
    error = float(np.sqrt((influence**2).sum()))
    if error == 0:
        count = min(n, units)
        return abs(value) / count, max(count / 4, 1.0)
    # the kurtosis without bias divides by n - 3
    if n < 4 or np.isnan(error):
        return error, max(n - 1.0, 1.0)
    # divided by the largest, for fourth powers of small influences are 0 in float64
    squares = (influence / np.abs(influence).max()) ** 2
    # of influences around 0, their mean: m4 / m2² - 3, then the usual correction for few values
    excess = n * (squares**2).sum() / squares.sum() ** 2 - 3
    excess = (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * excess + 6)
    freedom = float(2 / (2 / (n - 1) + max(excess, 0) / n))
    # a negative excess, of short tails, must not give more than n - 1 degrees; where some units are
    # far larger than others, their effective number is the limit
    return error, max(1.0, min(freedom, units - 1))


def _quantile(freedom: float) -> float:
    from scipy.special import stdtrit

    # as for Wilson: scipy.stats.t is the same and takes a second to import
    return float(stdtrit(freedom, 0.975))
