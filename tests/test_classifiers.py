"""Estimators and probes: what is chosen inside the training records, and what that is worth."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import balanced_accuracy_score, log_loss, recall_score
from sklearn.svm import LinearSVC
from sklearn.utils.class_weight import compute_sample_weight

from embedkit.choices import ESTIMATORS
from embedkit.classifiers.codelength import block_ends, online_codelength
from embedkit.classifiers.controls import control_task, linear_cka, randomize
from embedkit.classifiers.estimators import TABLE, EstimatorSettings
from embedkit.classifiers.folds import CrossValidation, cross_validate, side_by_side
from embedkit.classifiers.logistic import (
    LogisticPath,
    calibration_slope,
    in_row_space,
    scale_coefficients,
    with_slope,
)
from embedkit.classifiers.tuning import _Records, fit, predict_others, predict_proba
from embedkit.runs.split_files import Split, SplitSettings
from embedkit.runs.splits import assign_folds
from embedkit.runs.targets import Target
from embedkit.types import Progress

REGRESSORS = [name for name, row in TABLE.items() if row.regressor]


def split_of(y: Any, *, group: Any = None, folds: int = 5) -> Split:
    """Folds of so many records; those of a group share one."""
    n = len(y)
    group = np.arange(n) if group is None else group
    strata = y if y.dtype == np.int64 else np.zeros(n, np.int64)
    settings = SplitSettings(source=("s",), folds=folds, repeats=1, seed=0, stratified=True)
    return Split(np.arange(n), group, assign_folds(strata, group, folds, seed=0)[:, None], settings)


def two_classes(
    n: int, *, width: int = 20, positives: float = 0.5, strength: float = 1.0, seed: int = 0
) -> tuple[np.ndarray, Target]:
    """Vectors of which some directions tell the class, beside others of more variance."""
    random = np.random.default_rng(seed)
    y = (random.random(n) < positives).astype(np.int64)
    X = random.normal(size=(n, width)) * np.linspace(3, 0.3, width)
    X[:, : width // 4] += strength * (y[:, None] - positives)
    return X.astype(np.float32) + 5, Target(y, ("0", "1"))


def run(X: Any, target: Target, name: str = "logreg", **options: Any) -> CrossValidation:
    more = {key: options.pop(key) for key in ("tune", "threads", "threshold") if key in options}
    made = options.pop("split", None) or split_of(target.y)
    task = "classification" if target.classes else "regression"
    return cross_validate(X, target, made, EstimatorSettings(name, task=task, **options), **more)


# what is chosen


def test_the_choices_of_every_fold_are_kept() -> None:
    X, target = two_classes(300)
    found = run(X, target)
    assert len(found.choices) == 5
    row = TABLE["logreg"]
    for choice in found.choices:
        assert choice.scaling in row.scalings
        assert choice.value in row.values
        assert choice.at_edge == (choice.value in (row.values[0], row.values[-1]))
    assert found.final.choice.value in row.values


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_noise_is_predicted_as_the_majority_is(seed: int) -> None:
    random = np.random.default_rng(seed)
    X = random.normal(size=(150, 40)).astype(np.float32)
    y = np.arange(150, dtype=np.int64) % 2
    found = run(X, Target(y, ("0", "1")))
    lost = log_loss(y, found.predictions.proba) - np.log(2)
    assert sum(choice.slope < 0.2 for choice in found.choices) >= 3
    assert lost < 0.02


def test_noise_wider_than_its_records_is_no_worse_than_guessing() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(200, 150)).astype(np.float32)
    y = np.arange(200, dtype=np.int64) % 2
    found = run(X, Target(y, ("0", "1")))
    assert log_loss(found.predictions.y, found.predictions.proba) < np.log(2) + 0.02
    untuned = run(X, Target(y, ("0", "1")), tune=False)
    assert log_loss(untuned.predictions.y, untuned.predictions.proba) > np.log(2)


@pytest.mark.parametrize("name", ["logreg", "svm", "ridge"])
def test_the_unit_of_the_vectors_does_not_matter(name: str) -> None:
    X, target = two_classes(200)
    made = split_of(target.y, folds=2)
    wanted, *found = (
        run(X * np.float32(s), target, name, split=made).predictions for s in (1, 0.01, 100)
    )
    for one in found:
        assert np.allclose(one.proba, wanted.proba, atol=5e-3)


def test_many_records_are_separated_as_well_as_by_plain_scikit_learn() -> None:
    X, target = two_classes(1_500, width=40)
    made = split_of(target.y)
    proba, wide = np.empty((1_500, 2)), X.astype(np.float64)
    for fold in range(5):
        train, test = made.fold(0, fold)
        plain = LogisticRegression(max_iter=1_000).fit(wide[train], target.y[train])
        proba[test] = plain.predict_proba(wide[test])
    ours = run(X, target, split=made).predictions
    assert log_loss(ours.y, ours.proba) < log_loss(target.y, proba) + 0.005


@pytest.mark.parametrize("count", [300, 9_000])
def test_every_value_of_a_path_is_fitted_to_its_end(count: int) -> None:
    """A fit starts from the value before, which many records hardly tell from the next one."""
    X, target = two_classes(count, width=24)
    split = split_of(target.y)
    records = _Records(X, target, split, split.in_folds, EstimatorSettings())
    folds, y = records.folds("common"), target.y[split.in_folds]
    for value in (0.01, 0.1, 1.0, 10.0, 100.0):
        found, _ = records.predict(folds, value, slope=1.0)
        wanted = np.empty_like(found)
        for fold in folds:
            plain = LogisticRegression(C=value, tol=1e-8, max_iter=10_000)
            wanted[fold.test] = plain.fit(fold.X, y[fold.train]).predict_proba(fold.X_test)
        ours, theirs = (-np.log(proba[np.arange(len(y)), y]).mean() for proba in (found, wanted))
        assert ours == pytest.approx(theirs, abs=1e-3)


def test_inner_folds_are_fitted_with_the_class_weights() -> None:
    X, target = two_classes(300, positives=0.1)
    split = split_of(target.y)
    settings = EstimatorSettings(class_weight="balanced")
    records = _Records(X, target, split, split.in_folds, settings)
    weight = compute_sample_weight("balanced", target.y)
    folds = records.folds("common")
    found, _ = records.predict(folds, 1.0, slope=1.0)
    for fold in folds:
        plain = LogisticRegression().fit(fold.X, target.y[fold.train], weight[fold.train])
        assert np.allclose(found[fold.test], plain.predict_proba(fold.X_test), atol=5e-3)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_path_is_logistic_regression(classes: int, sparse: bool, weighted: bool) -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(4_000, 12)).astype(np.float32)
    y = (X[:, 0] + random.normal(size=4_000) > np.linspace(-1, 1, classes - 1)[:, None]).sum(0)
    weight = random.uniform(0.2, 2, 4_000) if weighted else None
    shown = csr_matrix(X) if sparse else X
    path = LogisticPath(shown, 2 * y, 6, weight)  # of six classes, half are missing
    for value in (0.01, 1.0, 100.0):
        path.fit(value)
        found = with_slope(path.scores(shown), 1.0)
        plain = LogisticRegression(C=value, tol=1e-8, max_iter=10_000).fit(X, y, weight)
        assert np.allclose(found[:, 2 * plain.classes_], plain.predict_proba(X), atol=2e-3)
        assert np.all(found[:, 1::2] < 1e-9)
        centre = np.average(path.scores(shown)[0], axis=0, weights=weight)
        assert np.allclose(centre, 0, atol=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_kept_model_ends_where_scikit_learn_does(classes: int, weighted: bool) -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(300, 40)).astype(np.float32) + np.float32(1)
    y = (X[:, 0] + random.normal(size=300) > np.linspace(0, 2, classes - 1)[:, None]).sum(0)
    weight = random.uniform(0.2, 2, 300) if weighted else None
    for shown in (X, csr_matrix(X), X[:39]):  # the first has a start, the others another tolerance
        few = slice(0, shown.shape[0])
        part = None if weight is None else weight[few]
        fit_one = partial(LogisticRegression.fit, X=shown, y=y[few], sample_weight=part)
        kept = LogisticRegression(C=10.0, max_iter=1_000)
        LogisticPath(shown, y[few], classes, part).finish(kept, fit_one)
        plain = fit_one(LogisticRegression(C=10.0, tol=1e-8, max_iter=10_000))
        assert np.allclose(kept.predict_proba(shown), plain.predict_proba(shown), atol=5e-3)
        assert shown is not X or kept.n_iter_.max() < plain.n_iter_.max() / 3
        assert not kept.warm_start


@pytest.mark.parametrize("X", [np.ones((30, 4)), np.zeros((30, 4)), np.eye(30)[:, :4] * 1e4])
def test_a_path_of_vectors_that_say_nothing_ends(X: Any) -> None:
    y = np.arange(30) % 2
    path = LogisticPath(X.astype(np.float32), y, 2)
    for value in (1e-4, 1.0, 1e3):
        path.fit(value)
        assert np.isfinite(with_slope(path.scores(X.astype(np.float32)), 1.0)).all()


@pytest.mark.parametrize("name", ["logreg", "svm", "lightgbm"])
def test_other_targets_are_fitted_as_if_alone(name: str) -> None:
    X, target = two_classes(150)
    split = split_of(target.y)
    train, test = split.fold(0, 0)
    settings = EstimatorSettings(name)
    fitted = fit(X, target, split, train, settings, tune=True)
    others = [control_task(target, split, seed) for seed in (0, 1)]
    found = predict_others(fitted, X, others, split, train, test, settings)
    for other, proba in zip(others, found, strict=True):
        alone = fit(X, other, split, train, settings, tune=False, choice=fitted.choice)
        wanted = predict_proba(alone.pipeline, X[test], other)
        assert np.allclose(proba, wanted, atol=1e-3)


@pytest.mark.parametrize("true", [0.5, 1.0, 2.0])
def test_a_slope_makes_up_for_too_much_or_too_little_confidence(true: float) -> None:
    random = np.random.default_rng(0)
    odds = random.normal(size=(20_000, 3))
    noise = random.gumbel(size=odds.shape)
    y = (true * odds + noise).argmax(1)
    assert calibration_slope((odds, np.zeros_like(odds)), y) == pytest.approx(true, rel=0.04)


def test_a_slope_leaves_the_log_odds_of_a_mean_record() -> None:
    X, target = two_classes(200, positives=0.2)
    weight = compute_sample_weight("balanced", target.y)
    plain = LogisticRegression().fit(X, target.y, weight)
    scaled = deepcopy(plain)
    scale_coefficients(scaled, 0.25, X, weight)
    before, after = (np.average(e.decision_function(X), weights=weight) for e in (plain, scaled))
    assert after == pytest.approx(before, abs=1e-4)
    assert np.allclose(scaled.coef_, plain.coef_ / 4)


def test_the_model_that_is_kept_has_the_slope() -> None:
    """It is the plain one at the chosen value, but for the slope."""
    X, target = two_classes(150, strength=0.3)
    found = run(X, target).final
    assert found.choice.slope != 1.0
    plain = run(X, target).final.pipeline[:-1].transform(X)
    fitted = LogisticRegression(C=found.choice.value, tol=1e-8, max_iter=10_000)
    odds = fitted.fit(plain, target.y).decision_function(plain)
    wanted = found.choice.slope * (odds - odds.mean()) + odds.mean()
    assert np.allclose(found.pipeline.decision_function(X), wanted, atol=0.01)


@pytest.mark.parametrize("width", [20, 300])
def test_vectors_in_their_row_space_have_the_same_lengths_and_angles(width: int) -> None:
    X = np.random.default_rng(0).normal(size=(60, width)).astype(np.float32)
    found = in_row_space(X)
    assert found.shape == (60, min(60, width))
    assert np.allclose(found @ found.T, X @ X.T, atol=1e-3)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in ("extra_trees", "mlp"))) for n in ESTIMATORS],
)
def test_the_number_of_threads_changes_nothing(name: str) -> None:
    X, target = two_classes(80)
    made = split_of(target.y, folds=2)
    one, two = (run(X, target, name, split=made, threads=n).predictions.proba for n in (1, 2))
    assert np.array_equal(one, two)


def test_inner_folds_never_divide_a_group() -> None:
    X, target = two_classes(120)
    group = np.arange(120) // 4
    made = split_of(target.y, group=group)
    train, _ = made.fold(0, 0)
    records = _Records(X, target, made, train, EstimatorSettings("svm"))
    inner = group[train]
    for fold in records.folds("common"):
        assert not set(inner[fold.train]) & set(inner[fold.test])


def test_a_vocabulary_is_learnt_from_training_texts_alone() -> None:
    """Words of held-out texts are in no vocabulary of their fold."""
    y = np.arange(60) % 2
    made = split_of(y)
    texts = [f"only{fold} only{fold} word{i % 3} {'ab'[i % 2]}"
             for i, fold in enumerate(made.folds[:, 0])]  # fmt: skip
    train, _ = made.fold(0, 2)
    settings = EstimatorSettings(features="tfidf")
    fitted = fit(texts, Target(y, ("0", "1")), made, train, settings, tune=True)
    words = dict(fitted.pipeline["tfidf"].transformer_list)["words"].vocabulary_
    assert {"only0", "only1", "only3", "only4"} <= set(words)
    assert "only2" not in words


def test_the_error_of_a_mean_takes_a_group_as_one_unit() -> None:
    """Each record written four times has the standard error of the records once."""
    values = np.random.default_rng(0).normal(size=50)
    target, four = Target(np.arange(50) % 2, ("0", "1")), np.repeat(np.arange(50), 4)

    def error(index: Any, group: Any) -> float:
        made = Split(np.arange(len(index)), group, group[:, None], split_of(target.y).settings)
        settings = EstimatorSettings()
        wide = Target(target.y[index], target.classes)
        records = _Records(np.zeros((len(index), 2)), wide, made, np.arange(len(index)), settings)
        return records._standard_error(values[index])

    once, repeated = error(np.arange(50), np.arange(50)), error(four, four)
    assert repeated == pytest.approx(once)
    assert once == pytest.approx(values.std() / np.sqrt(50))


@pytest.mark.parametrize("tune", [False, True])
def test_inner_predictions_are_of_records_that_the_inner_model_had_not_seen(tune: bool) -> None:
    """Neighbours weighted by distance know every record that they were fitted on."""
    X, _ = two_classes(150)
    y = np.random.default_rng(1).permutation(np.arange(150) % 2)
    target, made = Target(y, ("0", "1")), split_of(y)
    settings = EstimatorSettings("knn")
    fitted = fit(X, target, made, np.arange(150), settings, tune=tune, held_out=True)
    assert fitted.inner is not None
    assert (fitted.pipeline.predict(X) == y).mean() == 1
    assert (fitted.inner.argmax(1) == y).mean() < 0.7


def test_a_metric_to_tune_for() -> None:
    X, target = two_classes(200, positives=0.2)
    scores = {}
    for metric in ("accuracy", "average_precision", "f2"):
        choice = run(X, target, metric=metric, split=split_of(target.y, folds=2)).choices[0]
        assert 0 < choice.score <= 1
        scores[metric] = choice.score
    assert len(set(scores.values())) == 3


# weights, calibration, the unit of a target


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("svm", LinearSVC(class_weight="balanced")),
        ("ridge", RidgeClassifier(class_weight="balanced")),
        ("logreg", LogisticRegression(class_weight="balanced", max_iter=1_000)),
    ],
)
def test_class_weights_find_rare_positives(name: str, plain: Any) -> None:
    X, target = two_classes(1_500, positives=0.05, strength=0.8)
    made = split_of(target.y)
    wanted = np.empty(1_500, np.int64)
    for fold in range(5):
        train, test = made.fold(0, fold)
        centred = X - X[train].mean(0)
        wanted[test] = plain.fit(centred[train], target.y[train]).predict(centred[test])
    found = {
        weight: run(X, target, name, split=made, class_weight=weight).predictions.y_pred
        for weight in (None, "balanced")
    }
    recall = {weight: recall_score(target.y, said) for weight, said in found.items()}
    assert recall[None] < 0.3
    assert recall["balanced"] > 0.8 * recall_score(target.y, wanted)
    assert balanced_accuracy_score(target.y, found["balanced"]) > (
        balanced_accuracy_score(target.y, wanted) - 0.04
    )


@pytest.mark.parametrize("name", ["svm", "ridge"])
def test_calibration_does_not_divide_groups(name: str) -> None:
    """Groups of similar records with one random label each: nothing can be known of new ones."""
    random = np.random.default_rng(0)
    group = np.repeat(np.arange(100), 5)
    X = random.normal(size=(100, 60))[group] + 0.3 * random.normal(size=(500, 60))
    y = random.integers(2, size=100)[group]
    found = run(X.astype(np.float32), Target(y, ("0", "1")), name,
                split=split_of(y, group=group)).predictions  # fmt: skip
    assert log_loss(found.y, found.proba) < 0.75


@pytest.mark.parametrize("name", REGRESSORS)
def test_a_regression_does_not_depend_on_unit_and_zero(name: str) -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(150, 12)).astype(np.float32)
    y = X @ random.normal(size=12) + random.normal(size=150)
    made = split_of(y, folds=2)
    plain = run(X, Target(y, ()), name, split=made, tune=False).predictions.proba
    for factor, zero in ((100.0, 0.0), (0.01, -3.0)):
        found = run(
            X, Target(factor * y + zero, ()), name, split=made, tune=False
        ).predictions.proba
        assert np.corrcoef(plain, found)[0, 1] > 0.98
        assert np.abs((found - zero) / factor - plain).mean() < 0.1 * plain.std()


def test_a_rare_class_is_not_tuned_blindly() -> None:
    """Five records of one class: every choice has an inner score."""
    X, target = two_classes(200)
    y = target.y.copy()
    y[:] = 0
    y[::40] = 1
    for name in ("svm", "ridge"):
        found = run(X, Target(y, ("0", "1")), name)
        assert all(np.isfinite(choice.score) for choice in found.choices)


def test_early_stopping_chooses_the_number_of_trees() -> None:
    X, target = two_classes(400, strength=2.0)
    found = run(X, target, "lightgbm")
    rounds = [choice.rounds for choice in found.choices]
    assert all(n is not None and 1 <= n < 1_000 for n in rounds)
    assert len(set(rounds)) > 1
    noise = run(
        np.random.default_rng(0).normal(size=X.shape).astype(np.float32), target, "lightgbm"
    )
    assert log_loss(noise.predictions.y, noise.predictions.proba) < np.log(2) + 0.05


def test_progress_counts_fits() -> None:
    seen: list[Progress] = []
    assert side_by_side([lambda: 1, lambda: 2], progress=seen.append) == [1, 2]
    assert [(p.done, p.total) for p in seen] == [(1, 2), (2, 2)]


# probing


def test_a_control_task_keeps_texts_together_and_tells_nothing() -> None:
    _, target = two_classes(400)
    group = np.arange(400) // 2
    made = split_of(target.y, group=group)
    first, second = (control_task(target, made, seed) for seed in (0, 1))
    assert (first.y[::2] == first.y[1::2]).all()
    assert not np.array_equal(first.y, second.y)
    assert abs(first.y.mean() - target.y.mean()) < 0.1
    assert abs(np.corrcoef(first.y, target.y)[0, 1]) < 0.2


def test_the_description_length_of_noise_and_of_what_is_plain() -> None:
    X, target = two_classes(500, strength=6.0)
    made = split_of(target.y)
    settings = EstimatorSettings()
    plain = online_codelength(X, target, made, settings)
    noise = Target(np.random.default_rng(0).permutation(target.y), target.classes)
    uniform = len(target.y)  # bits of a fair coin
    assert plain < 0.3 * uniform
    assert 0.95 * uniform < online_codelength(X, noise, made, settings) < 1.15 * uniform
    assert block_ends(10, 2) == [10]
    assert block_ends(1_000, 77)[0] == 308


def test_cka() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(400, 8)).astype(np.float32)
    rotation = np.linalg.qr(random.normal(size=(8, 8)))[0].astype(np.float32)
    other = random.normal(size=(400, 5)).astype(np.float32)
    found = linear_cka([X, 3 * X @ rotation + 1, other])
    assert np.allclose(found, found.T)
    assert found[0, 1] == pytest.approx(1, abs=1e-5)
    assert found[0, 2] < 0.1


def test_a_random_encoder_keeps_no_trained_tensor() -> None:
    import torch
    from transformers import AutoModel

    from tests.store_fixtures import tiny_model

    module = AutoModel.from_pretrained(tiny_model())
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.add_(0.5)  # trained far away from any initial value
    before = {name: tensor.clone() for name, tensor in module.named_parameters()}
    randomize(module, 0)
    assert not any(torch.equal(before[name], t) for name, t in module.named_parameters())
    first = {name: tensor.clone() for name, tensor in module.named_parameters()}
    randomize(module, 1)
    weights = [name for name in first if name.endswith("weight") and first[name].ndim == 2]
    assert not any(torch.equal(first[name], module.get_parameter(name)) for name in weights)
    assert Path(tiny_model()).is_dir()


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_probabilities_stand_under_their_classes(missing: int) -> None:
    """A class without training records has probability 0; the others keep their columns."""
    random = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 40)
    X = np.eye(3)[y] * 4 + random.normal(size=(120, 3))
    known = y != missing
    model = LogisticRegression().fit(X[known], y[known])
    proba = predict_proba(model, X[known], Target(y, ("a", "b", "c")))
    assert np.allclose(proba.sum(1), 1)
    assert (proba[:, missing] == 0).all()
    assert (proba.argmax(1) == y[known]).mean() > 0.9
