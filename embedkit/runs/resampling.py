"""Uncertainty of metrics: a jackknife of sampling units, intervals and paired tests.

A unit is what the split keeps together: a group, else the records of one text, else one record,
with all its repeats. A metric is a function of weighted records; the influence of a unit is how
the metric changes when the unit counts half, and the sum of squared influences is the variance of
the metric. The influence on a difference of two methods is the difference of their influences.
``docs/method.md`` has the sources, and error rates where the truth is known.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TypeVar

import numpy as np

from embedkit.types import Bool, Float64, Int64

__all__ = [
    "Metric",
    "Score",
    "corrected_resampled_t",
    "difference_interval",
    "holm",
    "influences",
    "interval",
    "mcnemar",
    "paired_tests",
    "scored",
    "unit_count",
]

Key = TypeVar("Key", bound=Hashable)

BLOCKS = 200
"""More units than these are put together at random, so that the time does not grow with them."""

FLIPS = 5_000
"""Random signs of a test."""

_AT_ONCE = 1 << 20
_LEAST = 1e-150  # the powers of less overflow
_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Score:
    """A score and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A metric as a function of weighted records.

    Attributes:
        of: weights of the records in some samples ``(samples, n)`` → values ``(samples,)``.
        scale: a key of the table of scales: what its values range over.
        rests_on: ``(n,)`` bool: the records whose number limits what is known, such as those of
            the rarer class; ``None`` for all.
        is_mean: whether it is a mean over records, so that a difference of two methods rests on
            all of them.
    """

    of: Callable[[Float64], Float64]
    scale: str = "fraction"
    rests_on: Bool | None = None
    is_mean: bool = False

    def __call__(self, weights: Float64) -> Float64:
        """Return the values ``(samples,)``."""
        return self.of(weights)

    def value(self, count: int) -> float:
        """Return the value for ``count`` records, each once."""
        return float(self.of(np.ones((1, count)))[0])

    def units(self, unit: Int64, *, paired: bool = False) -> float:
        """Return the effective number of units that the value, or a paired difference, rests on.

        Args:
            unit: ``(n,)`` unit of each record.
            paired: whether a difference of two methods is asked about.
        """
        found = unit_count(unit)
        if self.rests_on is None or (paired and self.is_mean):
            return found
        return min(found, len(np.unique(unit[self.rests_on])))


def _exp(value: float) -> float:
    return float(np.exp(min(value, 700.0)))  # more would overflow


@dataclass(frozen=True, slots=True)
class _Scale:
    """A scale on which estimates are nearly normal: to it, its derivative, and back."""

    to: Callable[[float], float]
    slope: Callable[[float], float]
    back: Callable[[float], float]
    bounds: tuple[float, float]


def _special(name: str, *values: float) -> float:
    """A function of scipy.special, which takes longer to import than a prediction."""
    from scipy import special

    return float(getattr(special, name)(*values))


_SCALES = {
    "fraction": _Scale(lambda v: _special("logit", v), lambda v: 1 / (v * (1 - v)),
                       lambda g: _special("expit", g), (0, 1)),
    "correlation": _Scale(lambda v: float(np.arctanh(v)), lambda v: 1 / (1 - v**2),
                          lambda g: float(np.tanh(g)), (-1, 1)),
    "error": _Scale(lambda v: -(max(v, _LEAST) ** (-2 / 3)),
                    lambda v: 2 / 3 * max(v, _LEAST) ** (-5 / 3),
                    lambda g: max(-g, _LEAST) ** -1.5, (0, np.inf)),
    "explained": _Scale(lambda v: -float(np.log1p(-v)), lambda v: 1 / (1 - v),
                        lambda g: 1 - _exp(-g), (-np.inf, 1)),
    "distance": _Scale(float, lambda _: 1.0, lambda g: max(g, 0.0), (-np.inf, np.inf)),
}  # fmt: skip


def unit_count(unit: Int64) -> float:
    """Return the effective number of units: fewer than there are where some are far larger.

    Args:
        unit: ``(n,)`` unit of each record.
    """
    sizes = np.unique(unit, return_counts=True)[1]
    return float(sizes.sum() ** 2 / (sizes**2).sum())


def influences(metrics: Mapping[Key, Metric], unit: Int64, *, seed: int) -> dict[Key, Float64]:
    """Return the influence of every unit on every metric, less their mean.

    It is twice what the metric loses when the unit counts half. Of a mean over units of one size
    it is ``(v − mean) / (n − 1/2)``, of which the sum of squares is the variance of the mean
    without bias up to ``1 / n²``. Leaving a unit out altogether overstates the variance of other
    metrics where units are few, and the limit of a small change understates it.

    Args:
        metrics: of ``n`` records.
        unit: ``(n,)`` unit of each record.
        seed: of the blocks that units are put together in where there are more than
            :data:`BLOCKS`.

    Returns:
        Of each metric ``(blocks,)``; NaN where the metric is undefined.
    """
    names, block = np.unique(unit, return_inverse=True)
    count = len(names)
    if count > BLOCKS:
        block = (np.random.default_rng(seed).permutation(count) % BLOCKS)[block]
        count = BLOCKS
    found = {name: np.empty(count) for name in metrics}
    step = max(1, min(64, _AT_ONCE // len(unit)))
    for start in range(0, count, step):
        numbers = np.arange(start, min(start + step, count))
        weights = np.where(block == numbers[:, None], 0.5, 1.0)
        for name, metric in metrics.items():
            found[name][numbers] = -2 * metric(weights)
    return {name: _centred(values) for name, values in found.items()}


def _centred(values: Float64) -> Float64:
    """Values less their mean; 0 where they differ by rounding alone."""
    if np.ptp(values) <= 1e-12 * np.abs(values).max():
        return np.zeros_like(values)
    return np.asarray(values - values.mean())


def scored(metrics: Mapping[Key, Metric], unit: Int64, *, seed: int) -> dict[Key, Score]:
    """Return metrics of all records with their 95 % intervals.

    Args:
        metrics: of ``n`` records.
        unit: ``(n,)`` unit of each record.
        seed: as for :func:`influences`.
    """
    found = {}
    for name, influence in influences(metrics, unit, seed=seed).items():
        metric, value = metrics[name], metrics[name].value(len(unit))
        ends = interval(value, influence, scale=metric.scale, units=metric.units(unit))
        found[name] = Score(value, *ends)
    return found


def interval(value: float, influence: Float64, *, scale: str, units: float) -> tuple[float, float]:
    """Return the 95 % interval of a value.

    It is symmetric on a scale on which estimates are nearly normal: log-odds of fractions, the
    power -2/3 of errors (E. B. Wilson and M. M. Hilferty 1931, "The Distribution of Chi-Square",
    PNAS 17), Fisher's z of correlations. Of a fraction that is 0 or 1, which no unit
    has an influence on, it is Wilson's.

    Args:
        value: of all records.
        influence: ``(blocks,)`` of :func:`influences`.
        scale: as in :class:`Metric`.
        units: effective number of units.

    Returns:
        Lower and upper end; NaN where the metric is undefined.
    """
    margin = _margin(influence)
    if not np.isfinite(value) or np.isnan(margin):
        return float("nan"), float("nan")
    low, high = _SCALES[scale].bounds
    if scale == "fraction" and (value <= low or value >= high):
        reach = _Z**2 / (max(units, 1) + _Z**2)
        return (0.0, reach) if value <= low else (1 - reach, 1.0)
    if margin == 0 or not low < value < high:
        return value, value
    to, slope, back = _SCALES[scale].to, _SCALES[scale].slope, _SCALES[scale].back
    middle, margin = to(value), margin * slope(value)
    return min(back(middle - margin), value), max(back(middle + margin), value)


def difference_interval(value: float, influence: Float64) -> tuple[float, float]:
    """Return the 95 % interval of a difference.

    Args:
        value: one method's score less the other's.
        influence: ``(blocks,)`` that of the one less that of the other.
    """
    margin = _margin(influence)
    return value - margin, value + margin


def paired_tests(
    values: Float64, influence: Float64, pairs: Sequence[tuple[int, int]], *, units: float,
    rests_on: float, seed: int, flips: int = FLIPS,
) -> tuple[Float64, Float64]:  # fmt: skip
    """Test whether methods differ in a metric by random signs of the units' influences.

    Under the null hypothesis a unit favours either method with the same probability, so that the
    sum of its influences under random signs varies as the difference does. Each difference is
    divided by its standard error. The correction compares it with the largest of all pairs under
    the same signs, step down (Westfall & Young). It holds for every choice among the pairs, such
    as those with the best method.

    Args:
        values: ``(methods,)`` metric of every method on all records.
        influence: ``(blocks, methods)`` of :func:`influences`.
        pairs: methods that are compared; all pairs where the best is chosen by the same records.
        units: effective number of units.
        rests_on: effective number of those that the differences rest on, of :class:`Metric`.
        seed: of the signs.
        flips: how many signs each unit has.

    Returns:
        p of every pair, and p corrected for all of them; NaN where a value is undefined.
    """
    p, corrected = np.full(len(pairs), np.nan), np.full(len(pairs), np.nan)
    one, other = np.array(pairs, np.int64).reshape(-1, 2).T
    delta = np.abs(values[one] - values[other])
    moved = influence[:, one] - influence[:, other]
    size = np.sqrt((influence**2).sum(0))
    error = np.sqrt((moved**2).sum(0))
    error[error <= 1e-9 * np.maximum(size[one], size[other])] = 1.0  # they predict the same
    known = np.flatnonzero(np.isfinite(delta) & np.isfinite(error))
    if not len(known):
        return p, corrected
    t = delta[known] / error[known]
    t *= min(1.0, _student_sd(units) / _student_sd(rests_on))
    # influences lack their mean, which is 0 under the hypothesis: its square belongs to the error
    t /= np.sqrt(1 + t**2 / max(1.0, min(units, len(influence))))
    t *= 1 - 1e-9
    signed = _signs(seed, flips, len(influence)) @ (moved[:, known] / error[known])
    np.abs(signed, out=signed)
    fewest = min(1.0, 2 ** (1 - min(units, rests_on)))  # no test of so few units can be surer

    def fraction(largest: Float64, at: Float64) -> Float64:
        found = (1 + (largest >= at).sum(0)) / (flips + 1)
        return np.asarray(np.maximum(found, fewest), np.float64)

    p[known] = fraction(signed, t)
    order = np.argsort(-t, kind="stable")
    largest = np.maximum.accumulate(signed[:, order[::-1]], axis=1)[:, ::-1]
    corrected[known[order]] = np.maximum.accumulate(fraction(largest, t[order]))
    return p, corrected


@lru_cache(maxsize=1)
def _signs(seed: int, flips: int, blocks: int) -> Float64:
    drawn = np.random.default_rng(seed).integers(2, size=(flips, blocks), dtype=np.int8)
    return np.asarray(2.0 * drawn - 1)


def corrected_resampled_t(differences: Float64, *, test_fraction: float) -> float:
    """Return the two-sided p of the corrected resampled t-test (Nadeau & Bengio 2003).

    The folds of a repeated split share training records, so that their scores vary less than those
    of independent samples; the variance is enlarged by the ratio of held-out to training records.

    Args:
        differences: ``(folds × repeats,)`` difference of two methods in each fold.
        test_fraction: fraction of the records that one fold holds out.

    >>> round(corrected_resampled_t(np.array([.02, .05, .01, .04]), test_fraction=.25), 3)
    0.121
    """
    known = differences[np.isfinite(differences)]
    if len(known) < 2:
        return float("nan")
    variance = known.var(ddof=1) * (1 / len(known) + test_fraction / (1 - test_fraction))
    if variance <= 1e-24:
        return 1.0 if abs(known.mean()) <= 1e-12 else 0.0
    return 2 * _special("stdtr", len(known) - 1, -abs(known.mean()) / np.sqrt(variance))


def mcnemar(only_this: int, only_other: int) -> float:
    """Return the two-sided exact p of McNemar's test from the counts of discordant records."""
    count = only_this + only_other
    from scipy.stats import binomtest  # half a second to import

    return float(binomtest(only_this, count, 0.5).pvalue) if count else 1.0


def holm(p: Sequence[float]) -> list[float]:
    """Return p values by Holm's correction, for tests without shared samples."""
    corrected = [0.0] * len(p)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        highest = max(highest, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = highest
    return corrected


def _student_sd(units: float) -> float:
    """Standard deviation of Student's t of so many units."""
    freedom = max(units - 1, 3)
    return float(np.sqrt(freedom / (freedom - 2)))


def _degrees_of_freedom(influence: Float64) -> float:
    """Satterthwaite's, of a sum of squares, by the kurtosis without bias: fewer for long tails."""
    n = len(influence)
    if n < 4:
        return max(n - 1, 1)
    squares = (influence / np.abs(influence).max()) ** 2
    excess = n * (squares**2).sum() / squares.sum() ** 2 - 3
    excess = (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * excess + 6)
    return max(1.0, float(2 / (2 / (n - 1) + max(excess, 0) / n)))


def _margin(influence: Float64) -> float:
    """Half of the interval on the scale of the influences; NaN where they are."""
    error = float(np.sqrt((influence**2).sum()))
    return _special("stdtrit", _degrees_of_freedom(influence), 0.975) * error if error else 0.0
