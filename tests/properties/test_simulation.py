"""Error rates where the truth is known: a small version of ``benchmarks.simulate``.

Each tolerance is a bound that a correct rate passes by chance in less than one of a million runs;
the seeds are fixed, so that a failure is a change of the method.
"""

from __future__ import annotations

import pytest
from scipy import stats

from benchmarks.simulate import WORLDS, rates

SMALL = {world.name: world for world in WORLDS}
COUNT = 80


def most(rate: float, count: int = COUNT) -> float:
    """The fraction of samples that a rate passes with a probability of 1e-6."""
    return float(stats.binom.isf(1e-6, count, rate)) / count


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["groups of 10", "independent", "5 % positives", "near the end, 0.99", "values"]
)
def test_verdicts_and_intervals(name: str) -> None:
    """Equal methods seldom differ, intervals hold the truth, a better method is found."""
    for metric, found in rates(SMALL[name], repetitions=COUNT).items():
        assert found["false verdicts"] <= most(0.05), metric
        assert found["best of five"] <= most(0.05), metric
        assert 1 - found["coverage"] <= most(0.07), metric
        assert 1 - found["of differences"] <= most(0.07), metric
        assert found["wrong choice"] <= most(0.05), metric
        assert (found["power"] > 0.25) or name != "independent" or metric != "log_loss"
