"""Error rates where the truth is known: a small version of ``benchmarks.simulate``.

Each tolerance is a bound that a correct rate passes by chance in less than one of a million runs;
the seeds are fixed, so that a failure is a change of the method.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks.simulate import WORLDS, World, blends, several, single
from embedkit.comparison import blend
from embedkit.runs.predictions import Predictions
from embedkit.types import Float64, Int64

SMALL = {world.name: world for world in WORLDS}


def most(rate: float, repetitions: int) -> float:
    """The fraction that a rate passes with a probability of 1e-6."""
    return float(stats.binom.isf(1e-6, repetitions, rate)) / repetitions


@pytest.mark.parametrize("name", ["independent", "groups of 10", "texts 1 to 4 times", "values"])
def test_verdicts_and_intervals_of_two_methods(name: str) -> None:
    """Two equal methods seldom differ, intervals hold the truth, a better method is found."""
    count = 100
    found = single(SMALL[name], 200, repetitions=count, flips=400)
    for metric, rates in found.items():
        assert rates["false verdicts"] <= most(0.05, count), metric
        assert 1 - rates["coverage"] <= most(0.06, count), metric
        assert 1 - rates["difference"] <= most(0.06, count), metric
    if name == "independent":
        assert found["log_loss"]["power"] > 0.25


def test_groups_taken_for_records_would_be_noticed() -> None:
    """The fault that the test above is for: the rates where single records are the units."""

    class Single(World):
        def draw(self, *given: Any) -> Any:
            unit, y, predicted = super().draw(*given)
            return np.arange(len(unit)), y, predicted

    count = 100
    found = single(Single("", group=(10, 10), alike=0.5), 200, repetitions=count, flips=400)
    assert found["log_loss"]["false verdicts"] > most(0.05, count)
    assert 1 - found["log_loss"]["coverage"] > most(0.06, count)


@pytest.mark.parametrize("methods", [3, 8])
def test_the_best_of_equal_methods_is_seldom_called_better(methods: int) -> None:
    count = 80
    found = several(SMALL["independent"], 200, methods, repetitions=count, flips=800)
    for metric, rate in found.items():
        assert rate <= most(0.05, count), metric


def highest(areas: dict[str, tuple[float, float]]) -> float:
    return max((mean - 0.5) / error for mean, error in areas.values())


@pytest.mark.slow
def test_a_blend_of_noise_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is stacked on out-of-fold predictions, whose models know the fold's labels."""
    assert highest(blends(200, repetitions=50)) < 3.5

    def leaking(runs: list[Predictions], test: Int64) -> tuple[list[Float64], Int64]:
        others = np.setdiff1d(runs[0].out_of_fold, test)
        return [run.proba[others] for run in runs], runs[0].y[others]

    monkeypatch.setattr(blend, "_inner", leaking)
    assert highest(blends(200, repetitions=50)) > 3.5
