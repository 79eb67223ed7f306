"""Influences, intervals and paired tests: against known formulas, and their edges."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from embedkit.runs.metrics import classification_metrics, classification_scores, regression_metrics
from embedkit.runs.resampling import (
    BLOCKS,
    Metric,
    corrected_resampled_t,
    difference_interval,
    holm,
    influences,
    interval,
    mcnemar,
    paired_tests,
    unit_count,
)

# units


def mean_of(values: np.ndarray) -> Metric:
    return Metric(lambda w: w @ values / w.sum(1), "distance")


def error_of(metric: Metric, unit: np.ndarray, seed: int = 0) -> float:
    return float(np.sqrt((influences({0: metric}, unit, seed=seed)[0] ** 2).sum()))


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
    found = error_of(classification_metrics(y, proba, y)["roc_auc"], np.arange(150))
    assert found == pytest.approx(np.sqrt(wanted), rel=0.02)


@pytest.mark.parametrize("name", ["rmse", "mae", "r2", "pearson", "spearman"])
def test_the_error_is_that_of_a_bootstrap(name: str) -> None:
    random = np.random.default_rng(0)
    y = random.normal(size=150)
    metric = regression_metrics(y, y + random.normal(size=150))[name]
    drawn = metric(random.multinomial(150, np.full(150, 1 / 150), size=3_000).astype(float))
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
    once = classification_scores(y, proba, proba.argmax(1), unit=np.arange(80))
    four = classification_scores(*(np.repeat(v, 4, axis=0) for v in (y, proba, proba.argmax(1))),
                                 unit=np.repeat(np.arange(80), 4))  # fmt: skip
    alone = classification_scores(*(np.repeat(v, 4, axis=0) for v in (y, proba, proba.argmax(1))))
    for name in ("accuracy", "log_loss", "roc_auc", "average_precision", "macro_f1", "mcc"):
        assert four[name].low == pytest.approx(once[name].low), name
        assert four[name].high == pytest.approx(once[name].high), name
        half = (alone[name].high - alone[name].low) / (once[name].high - once[name].low)
        assert half == pytest.approx(0.5, abs=0.07), name


def test_one_large_unit_counts_for_little() -> None:
    assert unit_count(np.arange(30)) == 30
    assert unit_count(np.repeat(np.arange(30), 5)) == 30
    assert unit_count(np.array([0] * 100 + [1, 2, 3])) == pytest.approx(103**2 / (100**2 + 3))


def test_what_a_metric_rests_on() -> None:
    """Of two classes on the units with the rarer, but differences of means on all."""
    y, proba = (np.arange(60) < 6).astype(int), np.full((60, 2), 0.5)
    metrics = classification_metrics(y, proba, y)
    for name, single, paired in (
        ("accuracy", 60, 60), ("log_loss", 6, 60), ("roc_auc", 6, 6), ("recall", 6, 6)
    ):  # fmt: skip
        assert metrics[name].units(np.arange(60)) == single
        assert metrics[name].units(np.arange(60), paired=True) == paired
    assert metrics["roc_auc"].units(np.arange(60) // 2) == 3


# intervals


@pytest.mark.parametrize(("right", "of"), [(30, 30), (0, 30), (200, 200)])
def test_at_the_edge_the_interval_is_wilsons(right: int, of: int) -> None:
    y = np.ones(of, int)
    predicted = (np.arange(of) < right).astype(int)
    found = classification_scores(y, np.eye(2)[predicted], predicted)["accuracy"]
    wanted = stats.binomtest(right, of).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-9)


def test_at_the_edge_units_count() -> None:
    y = np.ones(40, int)
    found = classification_scores(y, np.eye(2)[y], y, unit=np.arange(40) // 4)["accuracy"]
    assert found.low == pytest.approx(stats.binomtest(10, 10).proportion_ci(method="wilson").low)


@pytest.mark.parametrize("scale", ["fraction", "correlation", "error", "explained", "distance"])
@given(st.floats(-0.999, 0.999), st.floats(0, 0.5))
def test_intervals_stay_in_range(scale: str, value: float, spread: float) -> None:
    value = abs(value) if scale in ("fraction", "error", "distance") else value
    low, high = interval(value, spread * np.linspace(-0.2, 0.2, 41), scale=scale, units=20)
    assert low <= value <= high
    assert low >= {"fraction": 0, "correlation": -1, "explained": -np.inf}.get(scale, 0)
    assert high <= {"fraction": 1, "correlation": 1, "explained": 1}.get(scale, np.inf)


def test_of_the_mean_of_a_few_values_the_interval_is_students() -> None:
    values = np.array([0.1, 0.4, 0.5, 0.9, 1.1, 1.3, 1.8, 2.0])  # no long tails
    influence = influences({0: mean_of(values)}, np.arange(8), seed=0)[0]
    wanted = stats.t.interval(0.95, 7, values.mean(), values.std(ddof=1) / np.sqrt(8))
    found = difference_interval(values.mean(), influence)
    assert found == pytest.approx(wanted, abs=0.02)


def test_long_tails_lengthen_the_interval() -> None:
    """One unit alone decides: the error has hardly more than one degree of freedom."""
    short, long = np.resize([-1.0, 1.0], 60) / 60, np.zeros(60)
    long[:2] = np.array([-1, 1]) * np.sqrt((short**2).sum() / 2)
    widths = [np.diff(difference_interval(0.0, influence))[0] for influence in (short, long)]
    assert widths[0] == pytest.approx(2 * stats.t.ppf(0.975, 59) / np.sqrt(60), rel=1e-6)
    assert widths[1] > 1.4 * widths[0]


def test_a_correlation_is_ranked_anew_in_every_sample() -> None:
    random = np.random.default_rng(0)
    y = random.normal(size=60).round(1)
    predicted = (y + random.normal(size=60)).round(1)  # ties
    metrics = regression_metrics(y, predicted)
    weights = random.multinomial(60, np.full(60, 1 / 60), size=20).astype(float)
    for name, wanted in (("spearman", stats.spearmanr), ("pearson", stats.pearsonr)):
        for found, row in zip(metrics[name](weights), weights.astype(int), strict=True):
            drawn = np.repeat(y, row), np.repeat(predicted, row)
            assert found == pytest.approx(wanted(*drawn).statistic)


# paired tests


def differing(gap: float, n: int = 400, seed: int = 0) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(seed)
    y = random.integers(2, size=n)
    outputs = []
    for strength in (1.0, 1.0 + gap):
        odds = strength * (2 * y - 1) + random.normal(size=n)
        outputs.append(1 / (1 + np.exp(-2 * odds)))  # calibrated for strength 1
    return y, *(np.stack([1 - p, p], axis=1) for p in outputs)


def p_of(name: str, y: np.ndarray, *outputs: np.ndarray, unit: np.ndarray | None = None) -> float:
    metrics = {k: classification_metrics(y, p, p.argmax(1), beta=2)[name]
               for k, p in enumerate(outputs)}  # fmt: skip
    unit = np.arange(len(y)) if unit is None else unit
    found = influences(metrics, unit, seed=0)
    values = np.array([m.value(len(y)) for m in metrics.values()])
    p, _ = p_of_pairs(values, np.stack([found[k] for k in metrics], axis=1), [(0, 1)],
                    units=unit_count(unit))  # fmt: skip
    return float(p[0])


def p_of_pairs(
    values: np.ndarray, influence: np.ndarray, pairs: list[tuple[int, int]], *, units: float
) -> tuple[np.ndarray, np.ndarray]:
    return paired_tests(values, influence, pairs, units=units, rests_on=units, seed=0)


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


def test_of_independent_records_accuracy_is_tested_as_by_a_sign_test() -> None:
    y, one, other = differing(0.3, n=300, seed=2)
    right = [(p.argmax(1) == y) for p in (one, other)]
    exact = mcnemar(int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum()))
    assert p_of("accuracy", y, one, other) == pytest.approx(exact, abs=0.05)


@pytest.mark.parametrize("name", ["log_loss", "brier"])
def test_of_means_the_test_is_a_permutation_test(name: str) -> None:
    """Where the methods' losses of a record are exchanged, as scipy does it."""
    y, one, other = differing(0.3, n=150, seed=3)
    loss = {"log_loss": lambda p: -np.log(p[np.arange(150), y]),
            "brier": lambda p: (p[:, 1] - y) ** 2}[name]  # fmt: skip
    exact = stats.permutation_test(
        (loss(one), loss(other)), lambda a, b, axis: (a - b).mean(axis), vectorized=True,
        permutation_type="samples", n_resamples=5_000, rng=np.random.default_rng(0),
    )  # fmt: skip
    assert p_of(name, y, one, other) == pytest.approx(exact.pvalue, abs=0.03)


def test_groups_make_a_test_less_sure() -> None:
    y, one, other = differing(0.25, n=60)
    copies = [np.repeat(v, 10, axis=0) for v in (y, one, other)]
    grouped = p_of("log_loss", *copies, unit=np.repeat(np.arange(60), 10))
    assert grouped == pytest.approx(p_of("log_loss", y, one, other), abs=0.05)
    assert p_of("log_loss", *copies) < grouped / 5


def test_methods_that_are_the_same_do_not_differ() -> None:
    y, one, _ = differing(0.0)
    assert p_of("log_loss", y, one, one) == 1


def test_so_few_units_cannot_be_sure() -> None:
    values, influence = np.array([1.0, 0.0]), np.zeros((50, 2))
    for units in (2, 3, 5):
        p, corrected = p_of_pairs(values, influence, [(0, 1)], units=units)
        assert p[0] == corrected[0] == pytest.approx(2.0 ** (1 - units))


def test_a_rare_class_makes_a_test_less_sure() -> None:
    random = np.random.default_rng(0)
    influence = random.normal(size=(200, 2)) / 200
    values = np.array([0.0, 0.25])
    p = [paired_tests(values, influence, [(0, 1)], units=200, rests_on=k, seed=0)[0][0]
         for k in (200, 20, 8)]  # fmt: skip
    assert p[0] < p[1] < p[2]


def test_undefined_scores_are_not_tested() -> None:
    values = np.array([0.4, np.nan, 0.5])
    tail = np.linspace(-0.02, 0.02, 99)
    influence = np.stack([tail, np.full(99, np.nan), np.zeros(99)], axis=1)
    p, corrected = p_of_pairs(values, influence, [(0, 1), (0, 2)], units=99)
    assert np.isnan(p[0])
    assert np.isnan(corrected[0])
    assert 0 < p[1] == corrected[1] < 1
    assert all(np.isnan(found).all() for found in p_of_pairs(values, influence, [(0, 1)], units=99))
    assert all(len(found) == 0 for found in p_of_pairs(values, influence, [], units=99))


@given(st.integers(0, 10**6))
def test_the_correction_lies_between_none_and_bonferroni(seed: int) -> None:
    random = np.random.default_rng(seed)
    influence = (random.normal(size=(100, 5)) + random.normal(size=(100, 1))) / 10
    values = random.normal(size=5) * 2
    pairs = [(a, b) for a in range(5) for b in range(a)]
    p, corrected = p_of_pairs(values, influence, pairs, units=100)
    assert (corrected >= p).all()
    assert (corrected <= np.minimum(1, len(pairs) * p) + 0.05).all()  # up to the tails' noise


def test_the_correction_knows_that_tests_are_correlated() -> None:
    """Nine tests of nearly the same thing are corrected for like one."""
    random = np.random.default_rng(0)
    shared = random.normal(size=100) / 10
    influence = np.stack([shared + 0.001 * random.normal(size=100) for _ in range(9)], axis=1)
    influence = np.concatenate([influence - influence.mean(0), np.zeros((100, 1))], axis=1)
    error = np.sqrt((influence**2).sum(0))[0]
    _, corrected = p_of_pairs(
        np.append(np.full(9, 2.3 * error), 0), influence, [(k, 9) for k in range(9)], units=100
    )
    assert (corrected < 0.05).all()
    assert holm([2 * stats.norm.sf(2.3)] * 9)[0] > 0.15


# repeats


def test_of_nadeau_and_bengio() -> None:
    """By hand: the variance is 1/n + test/train of that of the differences."""
    found = np.array([0.02, 0.05, 0.01, 0.04, -0.01, 0.03])
    t = found.mean() / np.sqrt((1 / 6 + 0.2 / 0.8) * found.var(ddof=1))
    wanted = 2 * stats.t.sf(t, 5)
    assert corrected_resampled_t(found, test_fraction=0.2) == pytest.approx(wanted)
    assert corrected_resampled_t(-found, test_fraction=0.2) == pytest.approx(wanted)
    assert corrected_resampled_t(found, test_fraction=0.2) > stats.ttest_1samp(found, 0).pvalue
    assert corrected_resampled_t(np.zeros(5), test_fraction=0.2) == 1
    assert corrected_resampled_t(np.full(5, 0.1), test_fraction=0.2) == 0
    assert np.isnan(corrected_resampled_t(np.array([0.1, np.nan]), test_fraction=0.2))


# McNemar and Holm


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_sign_test(b: int, c: int) -> None:
    n, k = b + c, min(b, c)
    tail = sum(comb(n, i) for i in range(k + 1)) / 2**n
    assert mcnemar(b, c) == pytest.approx(1.0 if b == c else min(1.0, 2 * tail))


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_lies_between_nothing_and_bonferroni(p: list[float]) -> None:
    corrected = holm(p)
    for one, more in zip(p, corrected, strict=True):
        assert one <= more <= min(1.0, len(p) * one) + 1e-12
    order = np.argsort(p, kind="stable")
    assert np.all(np.diff(np.array(corrected)[order]) >= 0)


def test_the_interval_of_a_spread_is_that_of_its_chi_square() -> None:
    """Of n normal values whose mean is known, the exact interval follows from chi-square."""
    n, value = 200, 1.7
    influence = np.tile([1.0, -1.0], n // 2) * value / np.sqrt(2 * n) / np.sqrt(n)
    low, high = interval(value, influence, scale="error", units=n)
    exact = value / np.sqrt(stats.chi2.ppf([0.975, 0.025], n) / n)
    assert (low, high) == pytest.approx(tuple(exact), rel=0.004)
