"""Scores against scikit-learn, and what their intervals must do."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn import metrics

from embedkit.runs.metrics import (
    Threshold,
    best_threshold,
    classification_scores,
    regression_scores,
)
from embedkit.runs.predictions import Predictions, reported_scores
from embedkit.runs.targets import Target


def problem(count: int, classes: int, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    y = random.integers(classes, size=count)
    logits = random.normal(size=(count, classes)) + 1.5 * np.eye(classes)[y]
    shares = np.exp(logits)
    return y, shares / shares.sum(1, keepdims=True)


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("seed", range(3))
def test_values_are_those_of_scikit_learn(classes: int, seed: int) -> None:
    y, shares = problem(200, classes, seed)
    shares[:20] = shares[20:40]  # ties
    said = shares.argmax(1)
    ours = classification_scores(y, shares, said, samples=20)
    wanted = {
        "accuracy": metrics.accuracy_score(y, said),
        "macro_f1": metrics.f1_score(y, said, average="macro"),
        "log_loss": metrics.log_loss(y, shares, labels=range(classes)),
        "brier": metrics.brier_score_loss(y, shares[:, 1] if classes == 2 else shares),
    }
    if classes == 2:
        wanted["roc_auc"] = metrics.roc_auc_score(y, shares[:, 1])
        wanted["average_precision"] = metrics.average_precision_score(y, shares[:, 1])
    assert list(ours) == list(wanted)
    for name, value in wanted.items():
        assert ours[name].value == pytest.approx(value, abs=1e-9), name


def test_regression_values() -> None:
    random = np.random.default_rng(0)
    y = random.normal(size=100).round(1)
    said = y + random.normal(size=100)
    ours = regression_scores(y, said, samples=10)
    assert ours["rmse"].value == pytest.approx(metrics.root_mean_squared_error(y, said))
    assert ours["r2"].value == pytest.approx(metrics.r2_score(y, said))
    assert ours["spearman"].value == pytest.approx(spearmanr(y, said).statistic)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """Accuracy of a known coin, over many small test sets."""
    hits = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        y = random.integers(2, size=150)
        said = np.where(random.random(150) < 0.7, y, 1 - y)
        score = classification_scores(y, np.eye(2)[said], said, seed=seed, samples=300)["accuracy"]
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


def test_predictions_of_one_record_are_drawn_together() -> None:
    """Predicting the same records again and again makes nobody surer."""
    random = np.random.default_rng(0)
    labels = Target(random.integers(2, size=90), ("0", "1"))
    values = Target(random.normal(size=90), ())
    row = np.arange(90)
    for target, proba in (
        (labels, random.dirichlet([1, 1], size=90)), (values, random.normal(size=90))
    ):  # fmt: skip
        folds = [
            Predictions.of_fold(row[row % 3 == fold], proba[row % 3 == fold], row=row,
                                ids=[str(i) for i in row], target=target, fold=fold)
            for fold in range(3)
        ]  # fmt: skip
        once = Predictions.joined(folds)
        often = [replace(once, repeat=once.repeat + number) for number in range(9)]
        expected = reported_scores(once, seed=0)["cross_validation"]
        found = reported_scores(Predictions.joined(often), seed=0)["cross_validation"]
        for name, score in expected.items():
            if name in ("r2", "spearman"):  # their moments are summed in another order
                continue
            assert astuple(found[name]) == pytest.approx(astuple(score)), name


@pytest.mark.filterwarnings("error")
def test_one_class_alone_has_no_ranking() -> None:
    found = classification_scores(np.zeros(9, int), np.full((9, 2), 0.5), np.zeros(9, int))
    assert np.isnan(astuple(found["roc_auc"])).all()
    assert found["accuracy"].value == 1


def test_the_seed_decides() -> None:
    y, shares = problem(80, 3)
    one, same, other = (
        classification_scores(y, shares, shares.argmax(1), seed=s, samples=50) for s in (0, 0, 1)
    )
    assert one == same
    assert one["accuracy"].low != other["accuracy"].low or one["brier"].low != other["brier"].low


def test_sure_and_wrong_is_finite() -> None:
    ours = classification_scores(
        np.array([0, 1]), np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([1, 1]), samples=5
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
        y, shares, (positive >= found).astype(int), samples=0, beta=beta
    )
    if beta is not None:
        assert weighted[f"f{beta:g}"].value == pytest.approx(score(found))


def test_what_a_threshold_may_be() -> None:
    assert Threshold.parse("0.3") == Threshold(0.3, None)
    assert Threshold.parse("f0.5") == Threshold(None, 0.5)
    assert Threshold.parse("macro_f1") == Threshold(None, None)
