"""Influences, intervals and the paired test: against known formulas, and their edges."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from embedkit.runs.intervals import (
    BLOCKS,
    Metric,
    estimates,
    holm,
    influences,
    interval,
    paired_test,
)
from embedkit.runs.metrics import METRICS, metrics_for
from tests.run_fixtures import scores_of

# units


def mean_of(values: np.ndarray) -> Metric:
    return Metric(lambda w: w @ values / w.sum(1))


def error_of(metric: Metric, unit: np.ndarray) -> float:
    return float(np.sqrt((influences({0: metric}, unit, seed=0)[0] ** 2).sum()))


def test_the_influence_on_a_mean_is_its_distance_from_it() -> None:
    values = np.random.default_rng(0).normal(size=40)
    found = influences({0: mean_of(values)}, np.arange(40), seed=0)[0]
    assert found == pytest.approx((values - values.mean()) / 39.5)
    assert (found**2).sum() == pytest.approx(values.var(ddof=1) / 40, rel=1e-3)


def test_the_error_of_the_mean_of_groups_is_that_of_their_means() -> None:
    values, unit = np.random.default_rng(0).normal(size=60), np.repeat([7, 3, 9, 1, 5, 4], 10)
    means = values.reshape(6, 10).mean(1)
    wanted = means.std(ddof=1) / np.sqrt(6)
    assert error_of(mean_of(values), unit) == pytest.approx(wanted, rel=0.01)


def test_the_error_of_a_roc_auc_is_delongs() -> None:
    random = np.random.default_rng(0)
    y = (random.random(150) < 0.3).astype(int)
    positive = 1 / (1 + np.exp(-y - random.normal(size=150)))
    proba = np.stack([1 - positive, positive], axis=1)
    won = positive[y == 1][:, None] > positive[y == 0]
    wanted = sum(won.mean(axis).var(ddof=1) / won.shape[1 - axis] for axis in (0, 1))
    found = error_of(metrics_for(y, proba, y)["roc_auc"], np.arange(150))
    assert found == pytest.approx(np.sqrt(wanted), rel=0.02)


@pytest.mark.parametrize("classes", [2, 3, 30])
def test_areas_of_halved_blocks_are_those_of_their_weights(classes: int) -> None:
    """With ties, units of several sizes, and a class that no record has."""
    random = np.random.default_rng(classes)
    y, unit = random.integers(classes - (classes > 2), size=400), random.integers(90, size=400)
    proba = random.dirichlet(np.ones(classes), size=400).round(1)
    metric = metrics_for(y, proba)["roc_auc"]
    moved = influences({0: metric, 1: metric._replace(halved=None)}, unit)
    assert np.ptp(moved[0]) > 0
    assert np.array_equal(moved[0], moved[1])


@pytest.mark.parametrize("name", ["rmse", "mae", "r2", "pearson", "spearman"])
def test_the_error_is_that_of_a_bootstrap(name: str) -> None:
    random = np.random.default_rng(0)
    y = random.normal(size=150)
    metric = metrics_for(y, y + random.normal(size=150))[name]
    drawn = metric.of(random.multinomial(150, np.full(150, 1 / 150), size=3_000).astype(float))
    assert error_of(metric, np.arange(150)) == pytest.approx(drawn.std(), rel=0.06)


def test_many_units_are_put_together() -> None:
    values = np.random.default_rng(0).normal(size=5_000)
    found = [influences({0: mean_of(values)}, np.arange(5_000) // 2, seed=s)[0] for s in (0, 0, 1)]
    assert [len(f) for f in found] == [BLOCKS] * 3
    assert (found[0] == found[1]).all()
    assert (found[0] != found[2]).any()
    for one in found:
        assert np.sqrt((one**2).sum()) == pytest.approx(1 / np.sqrt(5_000), rel=0.2)


def test_copies_of_a_unit_are_no_more_units() -> None:
    """Copying every record, within its unit, changes neither interval nor test."""
    random = np.random.default_rng(0)
    y, proba = random.integers(2, size=80), random.dirichlet([1, 1], size=80)
    once = scores_of(y, proba, proba.argmax(1), unit=np.arange(80))
    copies = [np.repeat(v, 4, axis=0) for v in (y, proba, proba.argmax(1))]
    four = scores_of(*copies, unit=np.repeat(np.arange(80), 4))
    alone = scores_of(*copies)
    for name in ("accuracy", "log_loss", "roc_auc", "average_precision", "macro_f1", "mcc"):
        assert four[name].low == pytest.approx(once[name].low), name
        assert four[name].high == pytest.approx(once[name].high), name
        half = (alone[name].high - alone[name].low) / (once[name].high - once[name].low)
        assert half == pytest.approx(0.5, abs=0.07), name


def test_one_large_unit_counts_for_little() -> None:
    metric = mean_of(np.zeros(1))
    assert metric.units(np.arange(30)) == 30
    assert metric.units(np.repeat(np.arange(30), 5)) == 30
    assert metric.units(np.array([0] * 100 + [1, 2, 3])) == pytest.approx(103**2 / (100**2 + 3))


def test_few_units_make_the_test_timid() -> None:
    random, few = np.random.default_rng(0), np.arange(40) < 5
    metrics = [mean_of(random.normal(size=40) + shift)._replace(rarer=few) for shift in (0, 1)]
    first, second = estimates(dict(enumerate(metrics)), np.arange(40)).values()
    found: Any = first.less(second)
    values, moved = zip(*((each.value, each.influence) for each in (first, second)), strict=True)
    free: Any = paired_test(np.array(values), np.stack(moved, axis=1))
    assert free.p < found.p / 2
    # where no unit has an influence, too
    ps: list[Any] = [paired_test(np.eye(2)[0], np.zeros((40, 2)), units=n).p for n in (40, 5)]
    assert ps[0] < ps[1]


def test_areas_are_tested_on_another_scale_and_share_what_is_hard() -> None:
    one, other = influence = np.random.default_rng(0).normal(size=(2, 40)) * 1e-5
    values = np.array([0.9, 0.9001])
    # so near to each other the scale does not matter
    ps: list[Any] = [paired_test(values, influence.T, scale).p for scale in ("area", "fraction")]
    assert ps[0] == pytest.approx(ps[1], rel=0.02)
    both = (
        paired_test(values, 100 * np.stack([one, x]).T, "area") for x in (one + other / 10, other)
    )
    alike, apart = (found.high - found.low for found in both)
    assert alike < apart / 2


# intervals


@pytest.mark.parametrize(("right", "of", "units"), [(200, 200, 200), (0, 30, 30), (8, 16, 8)])
def test_without_influence_the_interval_is_wilsons(right: int, of: int, units: int) -> None:
    """At the edge; and where one of the two records of each unit is right."""
    y, predicted = np.ones(of, int), (np.arange(of) < right).astype(int)
    found = scores_of(y, np.eye(2)[predicted], predicted, unit=np.arange(of) % units)["accuracy"]
    wanted = stats.binomtest(right * units // of, units).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))


@pytest.mark.parametrize("count", [24, 40, 200, 1_000])
def test_one_error_says_no_less_than_two(count: int) -> None:
    y, low = np.ones(count, int), []
    for errors in range(9):
        predicted = (np.arange(count) >= errors).astype(int)
        found = scores_of(y, np.eye(2)[predicted], predicted)["accuracy"]
        wilson = stats.binomtest(count - errors, count).proportion_ci(method="wilson")
        assert found.low < wilson.low + 1e-9
        assert found.low > wilson.low - 1.3 / count - 0.02
        assert found.high == pytest.approx(wilson.high, abs=0.02)
        low.append(found.low)
    assert low == sorted(low, reverse=True)


def test_of_few_positives_a_perfect_score_says_little() -> None:
    """Six positives in sixty: recall and ROC-AUC rest on the six, accuracy on all."""
    y = (np.arange(60) < 6).astype(int)
    scores = scores_of(y, np.eye(2)[y], y)
    for name, count in (("recall", 6), ("roc_auc", 6), ("accuracy", 60)):
        wilson = stats.binomtest(count, count).proportion_ci(method="wilson")
        assert scores[name].low == pytest.approx(wilson.low), name
    assert metrics_for(y, np.eye(2)[y], y)["roc_auc"].units(np.arange(60) // 2) == 3


WORST = {"fraction": 0.0, "area": 0.0, "correlation": -1.0, "error": 40.0, "explained": -40.0}


@pytest.mark.parametrize("scale", sorted(WORST))
@given(st.floats(-0.999, 0.999), st.floats(0, 5), st.integers(0, 40))
def test_intervals_stay_in_range(scale: str, value: float, spread: float, large: int) -> None:
    """Also where one unit decides nearly everything."""
    value = abs(value) if scale in ("fraction", "area", "error") else value
    influence = spread * np.linspace(-0.2, 0.2, 41)
    influence[large] *= 50
    metric = Metric(lambda w: w[:, 0], scale, WORST[scale])
    low, high = interval(value, influence, metric, np.arange(20))
    least, most = sorted((WORST[scale], 0.0 if scale == "error" else 1.0))
    assert least <= low <= value <= high <= most


def test_of_the_mean_of_a_few_values_the_interval_is_students() -> None:
    values = np.array([0.1, 0.4, 0.5, 0.9, 1.1, 1.3, 1.8, 2.0]) / 4  # no long tails
    influence = influences({0: mean_of(values)}, np.arange(8), seed=0)[0]
    wanted = stats.t.interval(0.95, 7, values.mean(), values.std(ddof=1) / np.sqrt(8))
    assert interval_of(values.mean(), influence) == pytest.approx(wanted, abs=0.02)


@pytest.mark.parametrize("scale", ["fraction", "area"])
def test_no_difference_of_fractions_leaves_its_range(scale: str) -> None:
    """However few the units are: of two of them Student's t has one degree of freedom."""
    for values in ([0.9, 0.4], [0.4, 0.9], [0.6, 0.6]):
        influence = np.array([[0.2, -0.1], [-0.2, 0.1]])
        _, low, high, *_ = astuple(paired_test(np.array(values), influence, scale))
        assert -1 <= low <= 0 <= high <= 1


def test_long_tails_lengthen_the_interval() -> None:
    """One unit alone decides: the error has hardly more than one degree of freedom."""
    short, long = np.resize([-1.0, 1.0], 60) / 60, np.zeros(60)
    long[:2] = np.array([-1, 1]) * np.sqrt((short**2).sum() / 2)
    widths = [np.diff(interval_of(0.0, influence))[0] for influence in (short, long)]
    assert widths[0] == pytest.approx(2 * stats.t.ppf(0.975, 59) / np.sqrt(60), rel=1e-5)
    assert widths[1] > 1.4 * widths[0]


def test_the_interval_of_a_spread_is_that_of_its_chi_square() -> None:
    """Of n normal values whose mean is known, the exact interval follows from chi-square."""
    n, value = 200, 1.7
    influence = np.tile([1.0, -1.0], n // 2) * value / np.sqrt(2 * n) / np.sqrt(n)
    ends = interval(value, influence, Metric(lambda w: w[:, 0], "error", np.inf), np.arange(n))
    exact = value / np.sqrt(stats.chi2.ppf([0.975, 0.025], n) / n)
    assert ends == pytest.approx(tuple(exact), rel=0.004)


def test_the_interval_of_an_error_goes_on_where_its_scale_ends() -> None:
    """The upper end rises steadily with the margin, and stays finite."""
    metric = Metric(lambda w: w[:, 0], "error", np.inf)
    shape = np.tile([1.0, -1.0], 50) / 10
    highs = [
        interval(1.0, spread * shape, metric, np.arange(100))[1]
        for spread in np.linspace(0.01, 2, 400)
    ]
    assert np.isfinite(highs).all()
    steps = np.diff(highs)
    assert (steps > 0).all()
    assert (steps[1:] < 1.1 * steps[:-1] + 1e-9).all()  # without a jump


# paired tests


def differing(gap: float, n: int = 400, seed: int = 0) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(seed)
    y = random.integers(2, size=n)
    outputs = []
    for strength in (1.0, 1.0 + gap):
        odds = strength * (2 * y - 1) + random.normal(size=n)
        outputs.append(1 / (1 + np.exp(-2 * odds)))  # calibrated for strength 1
    return y, *(np.stack([1 - p, p], axis=1) for p in outputs)


def p_of(name: str, y: np.ndarray, *outputs: np.ndarray) -> Any:
    return paired_test(*compared(name, y, *outputs), scale_of(name)).p


def scale_of(name: str) -> str:
    return METRICS[name].scale if name in METRICS else "fraction"


def interval_of(value: float, influence: np.ndarray) -> tuple[float, float]:
    """The interval of a difference from 0, on which nothing has an influence."""
    both = np.stack([influence, np.zeros_like(influence)], axis=1)
    _, low, high, *_ = astuple(paired_test(np.array([value, 0.0]), both))
    return low, high


def compared(name: str, y: np.ndarray, *outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    metrics = {k: metrics_for(y, p, p.argmax(1), beta=2)[name] for k, p in enumerate(outputs)}
    moved = influences(metrics, np.arange(len(y)))
    values = np.array([metric.value(len(y)) for metric in metrics.values()])
    return values, np.stack([moved[k] for k in metrics], axis=1)


@pytest.mark.parametrize("name", ["log_loss", "brier", "roc_auc", "average_precision", "f2"])
def test_the_metric_itself_is_tested(name: str) -> None:
    """A run that is overconfident, or ranks better, with nearly the decisions of another."""
    y, one, other = differing(0.0)
    assert p_of(name, y, one, other) > 0.05
    y, one, other = differing(1.0)
    assert p_of(name, y, one, other) < 0.01
    odds = 6 * np.log(one[:, 1] / one[:, 0])  # the same decisions and ranking
    loud = np.stack([1 / (1 + np.exp(odds)), 1 / (1 + np.exp(-odds))], axis=1)
    assert (p_of(name, y, one, loud) < 0.01) == (name in ("log_loss", "brier"))


@pytest.mark.parametrize("name", ["accuracy", "log_loss", "roc_auc", "f2", "average_precision"])
@given(gap=st.floats(0, 4), seed=st.integers(0, 1000))
def test_the_test_cannot_contradict_the_interval(name: str, gap: float, seed: int) -> None:
    """p is below 0.05 if and only if the interval of the difference leaves out 0.

    Also where one area or both are at the end of their scale; the other way round is the same.
    """
    values, influence = compared(name, *differing(gap, n=60, seed=seed))
    test: Any = paired_test(values, influence, scale_of(name))
    assert (test.p < 0.05) == (test.low > 0 or test.high < 0)
    assert test.low <= test.value <= test.high
    turned = paired_test(values[::-1], influence[:, ::-1], scale_of(name))
    expected = -test.value, -test.high, -test.low, test.p
    assert astuple(turned)[:4] == pytest.approx(expected, abs=1e-12)


def test_a_difference_of_areas_reaches_as_far_as_the_lower_one_may_lie() -> None:
    """A perfect area is no estimate of an error of 0: the other one says how far it may be."""
    y = np.resize([0, 0, 0, 0, 1], 200)
    ranks = np.where(y, 2.0, 1.0)
    perfect = np.stack([1 / ranks, 1 - 1 / ranks], axis=1)
    worse = perfect.copy()
    worse[4] = [0.7, 0.3]  # one positive is behind all others
    worse[4:9:4] = worse[4:9:4][::-1]
    values, influence = compared("roc_auc", y, perfect, worse)
    assert values[0] == 1 > values[1]
    gap = paired_test(values, influence, "area")
    metric = metrics_for(y, worse, worse.argmax(1))["roc_auc"]
    ends = interval(values[1], influence[:, 1], metric, np.arange(len(y)))
    assert gap.high == pytest.approx(1 - ends[0], rel=1e-9)
    assert gap.low < gap.value


@pytest.mark.parametrize("count", [4, 8, 20, 40])
def test_a_difference_that_every_unit_has_is_that_of_a_sign_test(count: int) -> None:
    """One method is right and the other wrong on every record: no influence, but a difference."""
    values, none = np.array([1.0, 0.0]), np.zeros((count, 2))
    assert 1 < paired_test(values, none).p / stats.binomtest(count, count).pvalue < 4


@pytest.mark.parametrize(
    ("counts", "recalls"),
    [((195, 5), (0.9, 0.8)), ((100, 95, 5), (0.9, 0.9, 0.8)), ((100, 95, 5), (0.97, 0.97, 0.1))],
)
def test_a_rare_class_that_is_all_right_by_chance(
    counts: tuple[int, ...], recalls: tuple[float, ...]
) -> None:
    """Half of it is all right too, so that resampling shows nothing: 0.6 to 0.9 was covered."""
    random, y = np.random.default_rng(0), np.repeat(np.arange(len(counts)), counts)
    covered = []
    for _ in range(100):
        right = random.random(len(y)) < np.array(recalls)[y]
        said = np.where(right, y, (y == 0) * 1)
        metric = metrics_for(y, np.eye(len(counts))[said], said)["balanced_accuracy"]
        moved = influences({0: metric}, np.arange(len(y)))[0]
        low, high = interval(metric.value(len(y)), moved, metric, np.arange(len(y)))
        covered.append(low <= np.mean(recalls) <= high)
    assert np.mean(covered) > 0.93


def test_undefined_scores_are_not_tested() -> None:
    values = np.array([0.4, np.nan, 0.5])
    tail = np.linspace(-0.02, 0.02, 99)
    influence = np.stack([tail, np.full(99, np.nan), np.zeros(99)], axis=1)
    undefined, p = (paired_test(values[[0, k]], influence[:, [0, k]]).p for k in (1, 2))
    assert undefined is None
    assert p is not None
    assert 0 < p < 1
    assert holm([undefined, p]) == [None, p]


def test_every_metric_has_a_complete_row() -> None:
    y, proba = np.arange(40) % 2, np.random.default_rng(0).dirichlet([1, 1], size=40)
    metrics = metrics_for(y, proba, proba.argmax(1))
    metrics |= metrics_for(proba[:, 0], proba[:, 1])
    metrics |= metrics_for(np.eye(2, dtype=np.int64)[y], proba, (proba >= 0.5).astype(np.int64))
    assert metrics.keys() == METRICS.keys() - {"entity_f1", "qwk"}  # of words, of numbers
    for name, metric in metrics.items():
        best = 0.0 if METRICS[name].lower else 1.0
        assert min(metric.worst, best) <= metric.value(40) <= max(metric.worst, best), name
