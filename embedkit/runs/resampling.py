"""Uncertainty of metrics: a bootstrap of sampling units, intervals and paired tests.

A unit is what the split keeps together: a group, else the records of one text, else one record,
with all its repeats. Whole units are sampled with replacement. A metric is a function of weighted
records, so that a sample is a vector of counts, no record is copied, many samples are computed at
once, and several methods share the same draws. ``docs/method.md`` has the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy import stats
from scipy.special import expit, logit

from embedkit.types import Bool, Float64, Int64

__all__ = [
    "SAMPLES",
    "TEST_SAMPLES",
    "Metric",
    "Score",
    "bootstrap_weights",
    "corrected_resampled_t",
    "difference_interval",
    "holm",
    "interval",
    "mcnemar",
    "paired_tests",
    "resample",
    "scored",
    "unit_count",
]

Key = TypeVar("Key", bound=Hashable)

SAMPLES = 500
"""Bootstrap samples of an interval, of which only the standard error is used."""

TEST_SAMPLES = 2_000
"""Bootstrap samples of a test."""

_AT_ONCE = 1 << 20
_Z = float(stats.norm.ppf(0.975))


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
        return unit_count(unit, None if paired and self.is_mean else self.rests_on)


def _exp(value: float) -> float:
    return float(np.exp(min(value, 700.0)))  # more would overflow


@dataclass(frozen=True, slots=True)
class _Scale:
    """A scale on which estimates are nearly normal: to it, its derivative, and back."""

    to: Callable[[float], float]
    slope: Callable[[float], float]
    back: Callable[[float], float]
    bounds: tuple[float, float]


_SCALES = {
    "fraction": _Scale(lambda v: float(logit(v)), lambda v: 1 / (v * (1 - v)),
                       lambda g: float(expit(g)), (0, 1)),
    "correlation": _Scale(lambda v: float(np.arctanh(v)), lambda v: 1 / (1 - v**2),
                          lambda g: float(np.tanh(g)), (-1, 1)),
    "error": _Scale(lambda v: float(np.log(v)), lambda v: 1 / v, _exp, (0, np.inf)),
    "explained": _Scale(lambda v: -float(np.log1p(-v)), lambda v: 1 / (1 - v),
                        lambda g: 1 - _exp(-g), (-np.inf, 1)),
    "distance": _Scale(float, lambda _: 1.0, lambda g: max(g, 0.0), (-np.inf, np.inf)),
}  # fmt: skip


def unit_count(unit: Int64, rests_on: Bool | None = None) -> float:
    """Return the effective number of units: fewer than there are where some are far larger.

    Args:
        unit: ``(n,)`` unit of each record.
        rests_on: ``(n,)`` bool: the records that count; by default all.
    """
    sizes = np.unique(unit if rests_on is None else unit[rests_on], return_counts=True)[1]
    return float(sizes.sum() ** 2 / (sizes**2).sum()) if len(sizes) else 0.0


def bootstrap_weights(unit: Int64, *, seed: int, samples: int) -> Iterator[Float64]:
    """Draw units with replacement.

    Args:
        unit: ``(n,)`` unit of each record.
        seed: of the draws; the first draws do not depend on ``samples``.
        samples: number of bootstrap samples.

    Yields:
        ``(a few samples, n)`` how often each record is sampled.
    """
    names, unit = np.unique(unit, return_inverse=True)
    count = len(names)
    random = np.random.default_rng(seed)
    step = max(1, min(64, _AT_ONCE // len(unit)))
    for start in range(0, samples, step):
        sampled = np.empty((min(step, samples - start), count))
        for row in sampled:
            row[:] = np.bincount(random.integers(count, size=count), minlength=count)
        yield sampled[:, unit]


def resample(
    metrics: Mapping[Key, Metric], unit: Int64, *, seed: int, samples: int
) -> dict[Key, Float64]:
    """Return the values ``(samples,)`` of metrics in the same bootstrap samples."""
    found = {name: np.empty(samples) for name in metrics}
    start = 0
    for weights in bootstrap_weights(unit, seed=seed, samples=samples):
        here = slice(start, start := start + len(weights))
        for name, metric in metrics.items():
            found[name][here] = metric(weights)
    return found


def scored(
    metrics: Mapping[Key, Metric], unit: Int64, *, seed: int, samples: int = SAMPLES
) -> dict[Key, Score]:
    """Return metrics of all records with their intervals.

    Args:
        metrics: of ``n`` records.
        unit: ``(n,)`` unit of each record.
        seed: of the bootstrap.
        samples: number of bootstrap samples; 0 for no intervals.
    """
    sampled = resample(metrics, unit, seed=seed, samples=samples)
    found = {}
    for name, metric in metrics.items():
        value = metric.value(len(unit))
        ends = interval(value, sampled[name], scale=metric.scale, units=metric.units(unit))
        found[name] = Score(value, *ends)
    return found


def interval(value: float, sampled: Float64, *, scale: str, units: float) -> tuple[float, float]:
    """Return the 95 % interval of a value.

    It is symmetric on a scale on which estimates are nearly normal: log-odds of fractions, the
    logarithm of errors, Fisher's z of correlations. Of a fraction that is 0 or 1, where samples
    do not vary, it is Wilson's.

    Args:
        value: of all records.
        sampled: ``(samples,)`` values in bootstrap samples; those that are undefined are NaN.
        scale: as in :class:`Metric`.
        units: effective number of units.

    Returns:
        Lower and upper end; NaN where there are no samples.
    """
    margin = _margin(sampled, units)
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


def difference_interval(value: float, sampled: Float64, *, units: float) -> tuple[float, float]:
    """Return the 95 % interval of a difference from its values ``(samples,)`` in samples."""
    margin = _margin(sampled, units)
    return value - margin, value + margin


def paired_tests(
    values: Float64, sampled: Float64, pairs: Sequence[tuple[int, int]], *, units: float
) -> tuple[Float64, Float64]:
    """Test whether methods differ in a metric, from bootstrap samples that they share.

    Under the null hypothesis the difference of two methods varies as it does between samples, but
    about 0. The correction compares each difference, divided by its standard error, with the
    largest of all pairs in every sample, step down (Westfall & Young). It holds for every choice
    among the pairs, such as those with the best method.

    Args:
        values: ``(methods,)`` metric of every method on all records.
        sampled: ``(samples, methods)`` the same in bootstrap samples.
        pairs: methods that are compared; all pairs where the best is chosen by the same records.
        units: effective number of units.

    Returns:
        p of every pair, and p corrected for all of them; NaN where a value is undefined.
    """
    p, corrected = np.full(len(pairs), np.nan), np.full(len(pairs), np.nan)
    one, other = np.array(pairs, np.int64).reshape(-1, 2).T
    delta = np.abs(values[one] - values[other])
    known = np.flatnonzero(np.isfinite(delta))
    moved = sampled[:, one[known]] - sampled[:, other[known]]
    moved = moved[np.isfinite(moved).all(1)]
    if not len(known) or not len(moved):
        return p, corrected
    moved = np.abs(moved - moved.mean(0))
    spread = np.sqrt((moved**2).mean(0))
    spread[spread <= 1e-12 * (1 + delta[known])] = 1.0  # the methods predict the same
    found = _as_normal(delta[known] / spread, units) * (1 - 1e-9)
    moved /= spread
    fewest = min(1.0, 2 ** (1 - units))  # no test of so few units can be surer

    def fraction(largest: Float64, at: Float64) -> Float64:
        found = (1 + (largest >= at).sum(0)) / (len(largest) + 1)
        return np.asarray(np.maximum(found, fewest), np.float64)

    p[known] = fraction(moved, found)
    order = np.argsort(-found, kind="stable")
    largest = np.maximum.accumulate(moved[:, order[::-1]], axis=1)[:, ::-1]
    corrected[known[order]] = np.maximum.accumulate(fraction(largest, found[order]))
    return p, corrected


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
    return float(2 * stats.t.sf(abs(known.mean()) / np.sqrt(variance), len(known) - 1))


def mcnemar(only_this: int, only_other: int) -> float:
    """Return the two-sided exact p of McNemar's test from the counts of discordant records."""
    count = only_this + only_other
    return float(stats.binomtest(only_this, count, 0.5).pvalue) if count else 1.0


def holm(p: Sequence[float]) -> list[float]:
    """Return p values by Holm's correction, for tests without shared samples."""
    corrected = [0.0] * len(p)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        highest = max(highest, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = highest
    return corrected


def _widening(units: float) -> float:
    """Factor for few units: Student's t for the normal quantile, and n − 1 for n."""
    units = max(units, 2)
    return float(stats.t.ppf(0.975, units - 1) / _Z * np.sqrt(units / (units - 1)))


def _as_normal(t: Float64, units: float) -> Float64:
    """The normal quantile of the same probability as that of a Student's t of few units."""
    units = max(units, 2)
    tail = stats.t.logsf(t * np.sqrt((units - 1) / units), units - 1)
    return np.asarray(stats.norm.isf(np.exp(tail)), np.float64)


def _margin(sampled: Float64, units: float) -> float:
    known = sampled[np.isfinite(sampled)]  # a sample may hold one class only
    if len(known) < 2:
        return float("nan")
    spread = float(known.std())
    return _Z * _widening(units) * spread if spread > 1e-12 else 0.0
