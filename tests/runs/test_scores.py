"""Scores against scikit-learn, and what their intervals must do."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn import metrics

from embedkit.runs.metrics import METRICS, Threshold, metric_name, metrics_for, named_metric
from embedkit.runs.predictions import decide
from embedkit.runs.scores import class_scores, metrics_of, reported_scores, scores_by_class
from embedkit.units.target import Target
from tests.run_fixtures import predictions_of, scores_of


def problem(count: int, classes: int, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    y = random.integers(classes, size=count)
    logits = random.normal(size=(count, classes)) + 1.5 * np.eye(classes)[y]
    shares = np.exp(logits)
    return y, shares / shares.sum(1, keepdims=True)


def calibration_by_hand(y: Any, shares: Any) -> float:
    """Fifteen bins of equal width between 0 and 1, as in the literature."""
    confidence, right = shares.max(1), shares.argmax(1) == y
    found = 0.0
    for low in np.arange(15) / 15:
        here = (confidence >= low) & (confidence < low + 1 / 15)
        if here.any():
            found += here.mean() * abs(confidence[here].mean() - right[here].mean())
    return found


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("seed", range(3))
def test_values_are_those_of_scikit_learn(classes: int, seed: int) -> None:
    y, shares = problem(200, classes, seed)
    shares[:20] = shares[20:40]  # ties
    said = shares.argmax(1)
    ours = scores_of(y, shares, said, beta=7)
    wanted = {
        "accuracy": metrics.accuracy_score(y, said),
        "macro_f1": metrics.f1_score(y, said, average="macro"),
        "log_loss": metrics.log_loss(y, shares, labels=range(classes)),
        "brier": metrics.brier_score_loss(y, shares[:, 1] if classes == 2 else shares),
        "balanced_accuracy": metrics.balanced_accuracy_score(y, said),
        "mcc": metrics.matthews_corrcoef(y, said),
        "calibration_error": calibration_by_hand(y, shares),
    }
    if classes > 2:
        wanted["roc_auc"] = metrics.roc_auc_score(y, shares, multi_class="ovr")
    else:
        wanted |= {
            "roc_auc": metrics.roc_auc_score(y, shares[:, 1]),
            "average_precision": metrics.average_precision_score(y, shares[:, 1]),
            "precision": metrics.precision_score(y, said),
            "recall": metrics.recall_score(y, said),
            "f1": metrics.f1_score(y, said),
            "f7": metrics.fbeta_score(y, said, beta=7),
        }
    assert {name: score.value for name, score in ours.items()} == pytest.approx(wanted)


def test_regression_values() -> None:
    random = np.random.default_rng(0)
    y = random.normal(size=100).round(1)
    said = y + random.normal(size=100)
    wanted = {
        "rmse": metrics.root_mean_squared_error(y, said),
        "r2": metrics.r2_score(y, said),
        "spearman": spearmanr(y, said).statistic,
        "pearson": pearsonr(y, said).statistic,
        "mae": metrics.mean_absolute_error(y, said),
    }
    found = {name: score.value for name, score in scores_of(y, said).items()}
    assert found == pytest.approx(wanted)


def test_metrics_of_weighted_records_are_those_of_copies() -> None:
    """Every metric, as a function of weights."""
    random = np.random.default_rng(0)
    weights = random.integers(0, 4, size=(5, 60)).astype(float)
    values, sets = random.normal(size=(2, 60)).round(1), random.integers(0, 2, size=(60, 4))
    cases = [tuple(values), (sets, np.round(0.3 * sets + 0.6 * random.random((60, 4)), 2))]
    for classes in (2, 3):
        y, shares = problem(60, classes)
        shares[:20] = shares[20:40]
        cases.append((y, shares))
    for arrays in cases:
        found = metrics_for(*arrays, beta=2, ordinal=True)
        for row, times in enumerate(weights.astype(int)):
            repeated = (np.repeat(array, times, axis=0) for array in arrays)
            copies = metrics_for(*repeated, beta=2, ordinal=True)
            for name, metric in found.items():
                expected = copies[name].value(times.sum())
                assert metric.of(weights)[row] == pytest.approx(expected), name


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_the_unit_and_zero_of_values_change_nothing(unit: float) -> None:
    y, said = np.random.default_rng(0).normal(size=(2, 80))
    found, scaled = (scores_of(unit * (y + zero), unit * (said + zero)) for zero in (0, 100))
    for name, score in scores_of(y, said).items():
        factor = unit if name in ("rmse", "mae") else 1
        for other in (found, scaled):
            values = [value / factor for value in astuple(other[name])]
            assert values == pytest.approx(astuple(score), rel=1e-5), name


def test_baselines_of_rare_positives() -> None:
    """The majority never finds a positive; of an F score saying yes to all is the baseline."""
    random = np.random.default_rng(0)
    target = Target((random.random(200) < 0.1).astype(int), ("no", "yes"))
    made = predictions_of(target, random.dirichlet([4, 1], size=200), np.arange(200) % 3)
    found = reported_scores(made, beta=7)["cross_validation"]
    ones = np.ones(200, int)
    assert found["f7"].majority == pytest.approx(metrics.fbeta_score(target.y, ones, beta=7))
    assert found["f1"].majority == pytest.approx(metrics.f1_score(target.y, ones))
    assert found["recall"].majority == found["precision"].majority == 0
    assert found["accuracy"].majority == pytest.approx(1 - target.y.mean())


def test_baselines_are_those_of_the_records_in_folds() -> None:
    random, fold = np.random.default_rng(0), np.repeat([0, 1, -1], 20)
    target = Target(np.repeat([0, 1, 1], [30, 10, 20]), ("a", "b"))
    made = predictions_of(target, random.dirichlet([1, 1], size=60), fold)
    assert made.majority().proba == pytest.approx(np.tile([0.75, 0.25], (60, 1)))
    values = predictions_of(Target(random.normal(size=60), ()), random.normal(size=60), fold)
    assert reported_scores(values)["cross_validation"]["r2"].majority == pytest.approx(0)


def test_what_reaches_a_threshold_is_predicted() -> None:
    proba = np.array([[0.75, 0.25], [0.5, 0.5]])
    assert decide(proba, threshold=0.25).tolist() == [1, 1]
    assert decide(proba, sets=True).tolist() == [[1, 0], [1, 1]]


def test_only_classes_that_all_are_numbers_have_an_order() -> None:
    y, shares = problem(60, 3)
    for classes, ordinal in ((("1", "2", "10"), True), (("1", "2", "many"), False)):
        made = predictions_of(Target(y, classes), shares, np.arange(60) % 2)
        assert ("qwk" in metrics_of(made)) is ordinal


def test_what_no_record_can_change_and_what_one_record_can_show() -> None:
    """Half of the largest area is as far from both ends, of any number of records."""
    for rare in (6, 7):
        y, same = np.repeat([0, 1], [40, rare]), np.full((40 + rare, 2), 0.5)
        area = scores_of(y, same, same.argmax(1))["roc_auc"]
        assert (area.value, area.low + area.high) == pytest.approx((0.5, 1))
    only = scores_of(np.array([1]), np.array([[0.1, 0.9]]), np.array([1]))
    assert np.isnan([only["log_loss"].low, only["brier"].high]).all()
    assert only["accuracy"].low == pytest.approx(0.207, abs=1e-3)  # Wilson's, of 1 of 1


def test_scores_of_every_class() -> None:
    y, shares = problem(120, 3)
    row = np.arange(120)
    made = predictions_of(Target(y, ("a", "b", "c")), shares, row % 3 - 1)
    found = class_scores(made)
    assert set(found) == {"cross_validation", "test"}
    for subset, index in (("cross_validation", row[row % 3 > 0]), ("test", row[row % 3 == 0])):
        wanted = metrics.precision_recall_fscore_support(y[index], shares[index].argmax(1))
        assert [one.label for one in found[subset]] == ["a", "b", "c"]
        numbers = [[one.precision, one.recall, one.f1, one.support] for one in found[subset]]
        assert np.array(numbers) == pytest.approx(np.transpose(wanted))
    # of classes that these records lack too
    few = scores_by_class(made.take(np.flatnonzero((made.y < 2) & (made.y_pred < 2))))
    assert [(score.label, score.support > 0) for score in few][2] == ("c", False)
    values = replace(made, classes=(), y=made.y.astype(float), proba=made.proba[:, 0])
    assert class_scores(values) == {}


@pytest.mark.filterwarnings("error")
def test_one_class_alone_has_no_ranking() -> None:
    found = scores_of(np.zeros(9, int), np.full((9, 2), 0.5), np.zeros(9, int))
    assert np.isnan(astuple(found["roc_auc"])).all()


@pytest.mark.parametrize("beta", [None, 0.5, 1.0, 7.0])
@pytest.mark.parametrize("seed", range(3))
def test_no_other_threshold_scores_better(beta: float | None, seed: int) -> None:
    y, shares = problem(150, 2, seed)
    positive = np.round(shares[:, 1], 2)  # ties
    positive[:12] = np.arange(12) % 2  # and the edges

    def score(threshold: float) -> float:
        said = (positive >= threshold).astype(int)
        if beta is None:
            return float(metrics.f1_score(y, said, average="macro"))
        return float(metrics.fbeta_score(y, said, beta=beta, zero_division=0))

    found = Threshold(None, beta).choose(y, positive)
    assert score(found) == pytest.approx(max(score(t) for t in np.linspace(-0.005, 1.005, 102)))
    weighted = scores_of(y, shares, (positive >= found).astype(int), beta=beta)
    if beta is not None:
        assert weighted[f"f{beta:g}"].value == pytest.approx(score(found))


def test_a_threshold_between_neighbouring_numbers() -> None:
    low = 0.3
    high = np.nextafter(low, 1)
    positive = np.array([low] * 5 + [high] * 5)
    found = Threshold(None, None).choose(np.repeat([0, 1], 5), positive)
    assert (positive >= found).tolist() == [False] * 5 + [True] * 5


def test_the_kappa_of_ordered_classes_is_scikit_learns() -> None:
    """Of three or more classes that are numbers."""
    random = np.random.default_rng(0)
    y = random.integers(5, size=80)
    y_pred = np.clip(y + random.integers(-2, 3, size=80), 0, 4)
    metric = metrics_for(y, np.eye(5)[y_pred], ordinal=True)["qwk"]
    expected = metrics.cohen_kappa_score(y, y_pred, weights="quadratic", labels=np.arange(5))
    assert metric.value(80) == pytest.approx(expected, abs=1e-12)
    alone = metrics_for(np.zeros(9, np.int64), np.eye(5)[np.zeros(9, np.int64)], ordinal=True)
    assert np.isnan(alone["qwk"].value(9))
    assert "qwk" not in metrics_for(y % 2, np.eye(2)[y_pred % 2], ordinal=True)


def test_metrics_are_found_in_any_spelling() -> None:
    assert named_metric("Quadratic weighted kappa") == "qwk"
    for name in METRICS:
        spellings = [name.upper(), *(name.replace("_", sign) for sign in "- "), metric_name(name)]
        assert {named_metric(one) for one in spellings} == {name}
    assert [named_metric(n) for n in ("F0.5", "f2.0", "nothing")] == ["f0.5", "f2", "nothing"]


@pytest.mark.parametrize("classes", [("no", "yes"), ()])
def test_the_baseline_is_not_beaten_by_chance_where_folds_differ(classes: tuple[str, ...]) -> None:
    """Five sources with other frequencies, or means, each of them a fold; noise knows nothing."""
    fold, place = np.repeat(np.arange(5), 40), np.tile(np.arange(40), 5)
    level = np.array([0.3, 0.4, 0.5, 0.6, 0.7])[fold]
    y = (place < 40 * level).astype(int) if classes else level + place / 40
    guesses = {"roc_auc": 0.5, "accuracy": 0.5, "mcc": 0.0} if classes else {"spearman": 0.0}
    better = dict.fromkeys(guesses, 0)
    for seed in range(40):
        noise = np.random.default_rng(seed).uniform(0.01, 0.99, 200)
        proba = np.stack([1 - noise, noise], axis=1) if classes else noise
        p = predictions_of(Target(y, classes), proba, fold)
        scores = reported_scores(p)["cross_validation"]
        for name, guess in guesses.items():
            assert scores[name].majority == pytest.approx(guess)
            better[name] += (scores[name].p or 1) < 0.05 and scores[name].value > guess
    assert max(better.values()) <= 3  # one in 40 is expected


def test_where_there_is_nothing_to_explain_there_is_no_r2() -> None:
    for y in (np.full(5, 28.0), np.full(5, 0.1 + 0.2)):
        assert np.isnan(metrics_for(y, y + 0.1 * np.arange(5))["r2"].value(5))


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_a_correlation_of_one_fold_is_better_than_a_constant(name: str) -> None:
    y = np.arange(30.0)
    values = y + np.random.default_rng(0).normal(size=30)
    p = predictions_of(Target(y, ()), values, np.zeros(30, int))
    score = reported_scores(p, prior=(14.5,))["cross_validation"][name]
    assert score.majority == 0
    assert (score.p or 1) < 0.001
