"""Scores against scikit-learn, and what their intervals must do."""

from __future__ import annotations

from dataclasses import asdict, astuple, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn import metrics

from embedkit.runs.metrics import (
    Threshold,
    best_threshold,
    beta_of,
    classification_metrics,
    classification_scores,
    regression_metrics,
    regression_scores,
)
from embedkit.runs.predictions import Predictions, class_scores, reported_scores
from embedkit.runs.targets import Target


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
    ours = classification_scores(y, shares, said, beta=7)
    wanted = {
        "accuracy": metrics.accuracy_score(y, said),
        "macro_f1": metrics.f1_score(y, said, average="macro"),
        "log_loss": metrics.log_loss(y, shares, labels=range(classes)),
        "brier": metrics.brier_score_loss(y, shares[:, 1] if classes == 2 else shares),
    }
    wanted |= {
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
    assert set(ours) == set(wanted)
    for name, value in wanted.items():
        assert ours[name].value == pytest.approx(value, abs=1e-9), name


def test_regression_values() -> None:
    random = np.random.default_rng(0)
    y = random.normal(size=100).round(1)
    said = y + random.normal(size=100)
    ours = regression_scores(y, said)
    assert ours["rmse"].value == pytest.approx(metrics.root_mean_squared_error(y, said))
    assert ours["r2"].value == pytest.approx(metrics.r2_score(y, said))
    assert ours["spearman"].value == pytest.approx(spearmanr(y, said).statistic)
    assert ours["pearson"].value == pytest.approx(pearsonr(y, said).statistic)
    assert ours["mae"].value == pytest.approx(metrics.mean_absolute_error(y, said))


def test_metrics_of_weighted_records_are_those_of_copies() -> None:
    """Every metric, as a function of weights."""
    random = np.random.default_rng(0)
    weights = random.integers(0, 4, size=(5, 60)).astype(float)
    for classes in (2, 3):
        y, shares = problem(60, classes)
        shares[:20] = shares[20:40]
        said = shares.argmax(1)
        found = classification_metrics(y, shares, said, beta=2)
        for row, one in enumerate(weights.astype(int)):
            y1, shares1, said1 = (np.repeat(v, one, axis=0) for v in (y, shares, said))
            copies = classification_metrics(y1, shares1, said1, beta=2)
            for name, metric in found.items():
                assert metric(weights)[row] == pytest.approx(copies[name].value(len(y1))), name
    y, said = random.normal(size=(2, 60)).round(1)
    found = regression_metrics(y, said)
    for row, one in enumerate(weights.astype(int)):
        copies = regression_metrics(np.repeat(y, one), np.repeat(said, one))
        for name, metric in found.items():
            assert metric(weights)[row] == pytest.approx(copies[name].value(one.sum())), name


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_the_unit_and_zero_of_values_change_nothing(unit: float) -> None:
    random = np.random.default_rng(0)
    y, said = random.normal(size=(2, 80))
    found, scaled = (
        regression_scores(unit * (y + zero), unit * (said + zero)) for zero in (0, 100)
    )
    expected = regression_scores(y, said)
    for name, score in expected.items():
        factor = unit if name in ("rmse", "mae") else 1
        for other in (found, scaled):
            values = [value / factor for value in astuple(other[name])]
            assert values == pytest.approx(astuple(score), rel=1e-5), name


def test_names_of_f_scores() -> None:
    assert [beta_of(n) for n in ("f1", "f0.5", "f7", "f", "f0", "fx", "accuracy")] == [
        1, 0.5, 7, None, None, None, None
    ]  # fmt: skip


def test_baselines_of_rare_positives() -> None:
    """The majority never finds a positive; of an F score saying yes to all is the baseline."""
    random = np.random.default_rng(0)
    target = Target((random.random(200) < 0.1).astype(int), ("no", "yes"))
    proba = random.dirichlet([4, 1], size=200)
    row = np.arange(200)
    made = Predictions.joined([
        Predictions.of_fold(row[row % 4 == f], proba[row % 4 == f], row=row, ids=row.astype(str),
                            target=target, fold=f) for f in range(4)
    ])  # fmt: skip
    found = reported_scores(made, seed=0, beta=7)["cross_validation"]
    ones = np.ones(200, int)
    assert found["f7"].majority == pytest.approx(metrics.fbeta_score(target.y, ones, beta=7))
    assert found["f1"].majority == pytest.approx(metrics.f1_score(target.y, ones))
    assert found["recall"].majority == found["precision"].majority == 0
    assert found["accuracy"].majority == pytest.approx(1 - target.y.mean())


def test_scores_of_every_class() -> None:
    y, shares = problem(120, 3)
    row = np.arange(120)
    made = Predictions.joined([
        Predictions.of_fold(row[row % 4 == f], shares[row % 4 == f], row=row, ids=row.astype(str),
                            target=Target(y, ("a", "b", "c")), fold=f - 1) for f in range(4)
    ])  # fmt: skip
    found = class_scores(made)
    assert set(found) == {"cross_validation", "test"}
    for subset, index in (("cross_validation", row[row % 4 > 0]), ("test", row[row % 4 == 0])):
        wanted = metrics.classification_report(
            y[index], shares[index].argmax(1), target_names=["a", "b", "c"], output_dict=True
        )
        for one in found[subset]:
            assert asdict(one) == pytest.approx(
                {"label": one.label, "precision": wanted[one.label]["precision"],
                 "recall": wanted[one.label]["recall"], "f1": wanted[one.label]["f1-score"],
                 "support": wanted[one.label]["support"]}
            )  # fmt: skip
    values = replace(made, classes=(), y=made.y.astype(float), proba=made.proba[:, 0])
    assert class_scores(values) == {}


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """Accuracy of a known coin, over many small test sets."""
    hits = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        y = random.integers(2, size=150)
        said = np.where(random.random(150) < 0.7, y, 1 - y)
        score = classification_scores(y, np.eye(2)[said], said, seed=seed)["accuracy"]
        assert score.low <= score.value <= score.high
        hits += score.low <= 0.7 <= score.high
    assert 180 <= hits <= 199


def test_more_records_narrow_the_interval() -> None:
    widths = []
    for count in (100, 1_600):
        y, shares = problem(count, 2)
        score = classification_scores(y, shares, shares.argmax(1))["accuracy"]
        widths.append(score.high - score.low)
    assert 3 < widths[0] / widths[1] < 5.5


def folds_of(target: Target, proba: Any, group: Any = None) -> Predictions:
    row = np.arange(len(proba))
    return Predictions.joined([
        Predictions.of_fold(row[row % 3 == fold], proba[row % 3 == fold], row=row, group=group,
                            ids=[str(i) for i in row], target=target, fold=fold)
        for fold in range(3)
    ])  # fmt: skip


def test_predictions_of_one_record_are_drawn_together() -> None:
    """Predicting the same records again and again makes nobody surer."""
    random = np.random.default_rng(0)
    labels = Target(random.integers(2, size=90), ("0", "1"))
    values = Target(random.normal(size=90), ())
    for target, proba in (
        (labels, random.dirichlet([1, 1], size=90)), (values, random.normal(size=90))
    ):  # fmt: skip
        once = folds_of(target, proba)
        often = [replace(once, repeat=once.repeat + number) for number in range(9)]
        expected = reported_scores(once, seed=0)["cross_validation"]
        found = reported_scores(Predictions.joined(often), seed=0)["cross_validation"]
        for name, score in expected.items():
            assert astuple(found[name]) == pytest.approx(astuple(score), abs=1e-9), name


def test_groups_of_the_split_are_drawn_whole() -> None:
    """Ten copies of a record in one group: as wide as the record alone; apart: far narrower."""
    random = np.random.default_rng(0)
    y, proba = np.repeat(random.integers(2, size=60), 10), random.dirichlet([1, 1], size=60)
    target, proba = Target(y, ("0", "1")), np.repeat(proba, 10, axis=0)
    width = {}
    for name, group in (("whole", np.arange(600) // 10), ("apart", np.arange(600))):
        score = reported_scores(folds_of(target, proba, group), seed=0)["cross_validation"]
        width[name] = {m: s.high - s.low for m, s in score.items()}
    for metric in ("accuracy", "log_loss", "macro_f1", "roc_auc"):
        assert width["whole"][metric] > 2.5 * width["apart"][metric], metric


@pytest.mark.filterwarnings("error")
def test_one_class_alone_has_no_ranking() -> None:
    found = classification_scores(np.zeros(9, int), np.full((9, 2), 0.5), np.zeros(9, int))
    assert np.isnan(astuple(found["roc_auc"])).all()
    assert found["accuracy"].value == 1


@pytest.mark.parametrize("count", [80, 400])
def test_the_seed_decides_on_blocks_alone(count: int) -> None:
    y, shares = problem(count, 3)
    one, same, other = (
        classification_scores(y, shares, shares.argmax(1), seed=s) for s in (0, 0, 1)
    )
    assert one == same
    assert (one["brier"].low == other["brier"].low) == (count == 80)
    assert one["brier"].low == pytest.approx(other["brier"].low, rel=0.05)


def test_sure_and_wrong_is_finite() -> None:
    ours = classification_scores(
        np.array([0, 1]), np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([1, 1])
    )
    assert np.isfinite(ours["log_loss"].value)


@pytest.mark.parametrize("beta", [None, 0.5, 1.0, 7.0])
@pytest.mark.parametrize("seed", range(3))
def test_no_other_threshold_scores_better(beta: float | None, seed: int) -> None:
    y, shares = problem(150, 2, seed)
    positive = np.round(shares[:, 1], 2)  # ties

    def score(threshold: float) -> float:
        said = (positive >= threshold).astype(int)
        if beta is None:
            return float(metrics.f1_score(y, said, average="macro"))
        return float(metrics.fbeta_score(y, said, beta=beta, zero_division=0))

    found = best_threshold(y, positive, beta=beta)
    assert score(found) == pytest.approx(max(score(t) for t in np.linspace(-0.005, 1.005, 102)))
    weighted = classification_scores(
        y, shares, (positive >= found).astype(int), intervals=False, beta=beta
    )
    if beta is not None:
        assert weighted[f"f{beta:g}"].value == pytest.approx(score(found))


def test_what_a_threshold_may_be() -> None:
    assert Threshold.parse("0.3") == Threshold(0.3, None)
    assert Threshold.parse("f0.5") == Threshold(None, 0.5)
    assert Threshold.parse("macro_f1") == Threshold(None, None)


def test_nobody_is_a_threshold_too_where_a_probability_is_1() -> None:
    """The two surest records are wrong: saying no to all is best."""
    y, positive = np.array([1, 1, 0, 0]), np.array([0.0, 0.0, 1.0, 1.0])
    found = best_threshold(y, positive)
    assert not (positive >= found).any() or (positive >= found).all()
    said = (positive >= found).astype(int)
    assert metrics.f1_score(y, said, average="macro") == pytest.approx(1 / 3)


def test_a_threshold_between_neighbouring_numbers() -> None:
    low = 0.3
    high = np.nextafter(low, 1)
    positive = np.array([low] * 5 + [high] * 5)
    found = best_threshold(np.repeat([0, 1], 5), positive)
    assert (positive >= found).tolist() == [False] * 5 + [True] * 5


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0.0, 0.5, 1.0])), min_size=2,
                max_size=12).filter(lambda found: {y for y, _ in found} == {0, 1}))  # fmt: skip
def test_no_threshold_beats_the_best_at_the_edges(pairs: list[tuple[int, float]]) -> None:
    y, positive = (np.array(column) for column in zip(*pairs, strict=True))

    def score(said: Any) -> float:
        return float(metrics.f1_score(y, said, average="macro"))

    best = score((positive >= best_threshold(y, positive)).astype(int))
    for other in (0.0, 0.25, 0.75, 1.5):
        assert score((positive >= other).astype(int)) <= best + 1e-12
