"""Estimators, probes, numbers beside vectors: what is chosen inside the training records."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.metrics import balanced_accuracy_score, log_loss, recall_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.class_weight import compute_sample_weight
from transformers import AutoModel

import embedkit
from embedkit.classifiers import estimators, tuning
from embedkit.classifiers.estimators import TABLE, CommonScaler, EstimatorSettings, build_pipeline
from embedkit.classifiers.model import load_model, save_model
from embedkit.classifiers.probe import control_task, randomize
from embedkit.classifiers.train import Frozen
from embedkit.classifiers.tuning import fit, predict_proba
from embedkit.errors import UsageError
from embedkit.predict import Predictor, predict_file
from embedkit.runs.cross_validation import Fits, Problem, cross_validate
from embedkit.runs.metrics import Threshold
from embedkit.runs.predictions import Predictions
from embedkit.runs.split import inner_folds
from embedkit.storage import seal
from embedkit.units.target import Target
from tests.processes import command
from tests.run_fixtures import split_of, units_with, write_frame
from tests.store_fixtures import extract_tiny, tiny_model

LINEAR_SVC, RIDGE = "sklearn.svm:LinearSVC", "sklearn.linear_model:RidgeClassifier"
LINEAR_SVR, SGD = "sklearn.svm:LinearSVR", "sklearn.linear_model:SGDRegressor"


def two_classes(
    n: int, *, positives: float = 0.5, strength: float = 1.0
) -> tuple[np.ndarray, Target]:
    """Vectors of which some directions tell the class, beside others of more variance."""
    random = np.random.default_rng(0)
    y = (random.random(n) < positives).astype(np.int64)
    X = random.normal(size=(n, 20)) * np.linspace(3, 0.3, 20)
    X[:, :5] += strength * (y[:, None] - positives)
    return X.astype(np.float32) + 5, Target(y, ("0", "1"))


def run(X: Any, target: Target, name: str = "logreg", **options: Any) -> tuple[Predictions, Fits]:
    threads, made = options.pop("threads", None), options.pop("split", None) or split_of(target.y)
    task = "classification" if target.classes else "regression"
    method = Frozen(EstimatorSettings(name, task=task, **options), threads)
    return cross_validate(method, Problem(units_with(X), target, made))


# what is chosen


def test_the_kept_model_is_scikit_learns_but_for_the_slope() -> None:
    X, target = two_classes(150, strength=0.3)
    started = time.process_time()
    _, result = run(X, target, threads=4)  # which wait for each other: that is no cost
    seconds = (result.cost.fit_seconds or 0) + (result.cost.predict_seconds or 0)
    assert 0 < seconds <= time.process_time() - started
    assert len(result.folds) == 5
    found = result.final
    assert found.choice.slope != 1.0
    kinds = [Normalizer, CommonScaler, LogisticRegression]
    assert [type(step) for _, step in found.pipeline.steps] == kinds
    shown = make_pipeline(Normalizer(), CommonScaler()).fit_transform(X)
    plain = LogisticRegression(C=found.choice.parameters["C"], max_iter=1_000).fit(shown, target.y)
    odds = plain.decision_function(shown)
    expected = found.choice.slope * (odds - odds.mean()) + odds.mean()
    assert np.allclose(found.pipeline.decision_function(X), expected, atol=1e-4)


@pytest.mark.parametrize("weight", [None, "balanced"])
@pytest.mark.parametrize("classes", [2, 3])
def test_strength_and_slope_have_the_least_loss_of_inner_folds(
    classes: int, weight: str | None
) -> None:
    """No other strength or slope is better, by plain fits on folds of the same features."""
    random = np.random.default_rng(classes)
    y = np.minimum(random.integers(8, size=250), classes - 1)  # the last class is the largest
    X = (random.normal(size=(250, 15)) + 0.7 * np.eye(15)[y]).astype(np.float32)
    target, made = Target(y, ("a", "b", "c")[:classes]), split_of(y)
    settings = EstimatorSettings(class_weight=weight)
    found: Any = fit(Problem(units_with(X), target, made), np.arange(250), settings)
    shown = make_pipeline(Normalizer(), CommonScaler()).fit_transform(X)
    weights = compute_sample_weight(weight, y)
    centre = np.average(shown, axis=0, weights=weights)
    losses = {}
    for strength in estimators.STRENGTHS:
        for slope in (0.98, 1.0, 1.02):
            proba = np.empty((250, classes))
            for train, test in inner_folds(y, made.group, 5, seed=0):
                model = LogisticRegression(C=strength, class_weight=weight, max_iter=1_000)
                model.fit(shown[train], y[train])
                factor = slope * found.choice.slope
                model.intercept_ += (1 - factor) * model.coef_ @ centre
                model.coef_ *= factor
                proba[test] = model.predict_proba(shown[test].astype(np.float64))
            losses[strength, slope] = log_loss(y, proba, sample_weight=weights)
    best = found.choice.parameters["C"], 1.0
    assert min(losses, key=lambda key: losses[key]) == best
    assert -found.choice.score == pytest.approx(losses[best], abs=1e-4)
    assert log_loss(y, found.inner, sample_weight=weights) == pytest.approx(losses[best], abs=1e-4)


def test_a_class_that_inner_folds_lack_has_no_probability_there() -> None:
    """Of three classes one has a single record: of the others the inner folds keep their odds."""
    X, two = two_classes(120, strength=3.0)
    y = two.y.copy()
    y[7] = 2
    target, index = Target(y, ("a", "b", "rare")), np.arange(120)
    units, settings = units_with(X), EstimatorSettings()
    found: Any = fit(Problem(units, target, split_of(two.y)), index, settings)
    assert np.allclose(found.inner.sum(1), 1)
    assert found.inner[7, 2] < 1e-9
    assert (found.inner.argmax(1) == y).mean() > 0.8


def test_inner_folds_go_by_the_seed_and_all_of_them_score() -> None:
    X, target = two_classes(120)
    problem, index = Problem(units_with(X), target, split_of(target.y)), np.arange(120)
    fits: Any = [fit(problem, index, EstimatorSettings(seed=seed)) for seed in (0, 1)]
    assert not np.array_equal(fits[0].inner, fits[1].inner)
    found: Any = fit(problem, index, EstimatorSettings("knn", seed=1))
    folds = inner_folds(target.y, index, 5, seed=1)
    losses = [log_loss(target.y[test], found.inner[test]) for _, test in folds]
    assert found.choice.score == pytest.approx(-np.mean(losses))


def test_two_training_records_have_no_inner_folds() -> None:
    X, y = np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1])
    target, made = Target(y, ("a", "b")), split_of(y, folds=2)
    for name in TABLE["classification"]:
        assert run(X, target, name, split=made)[0].inner is None
    assert np.isfinite(run(X, Target(X[:, 0], ()), "lightgbm", split=made)[0].proba).all()
    with pytest.raises(UsageError, match="one of them lacks a class"):
        run(X, target, LINEAR_SVC, split=made)


def test_words_have_their_slope_around_the_mean_text() -> None:
    """TF-IDF is not centred: a slope must not move the log-odds of a mean record."""
    random = np.random.default_rng(0)
    y = (random.random(200) < 0.2).astype(np.int64)
    texts = [
        " ".join(random.choice(["good", "fine", "the", "movie", f"n{i % 9}"], 4))
        + (" great" if c and random.random() < 0.4 else "")
        for i, c in enumerate(y)
    ]
    target = Target(y, ("0", "1"))
    found = run(texts, target, features="tfidf", split=split_of(y))[1].final
    assert found.choice.parameters == {"C": 10.0}
    assert found.choice.slope != 1
    shown = found.pipeline[:-1].transform(texts)
    plain = LogisticRegression(C=10, max_iter=1_000).fit(shown, y)
    means = [model.decision_function(shown).mean() for model in (plain, found.pipeline[-1])]
    assert means[1] == pytest.approx(means[0], abs=0.01)


@pytest.mark.parametrize("name", [*TABLE["classification"], LINEAR_SVC, LINEAR_SVR, SGD])
def test_the_number_of_threads_changes_nothing(name: str) -> None:
    """The seed reaches an estimator inside another one; no fit takes the numbers of another."""
    X, target = two_classes(80 if name == "lightgbm" else 300)
    if name in (LINEAR_SVR, SGD):
        target = Target(target.y + X[:, 0].astype(np.float64), ())
    made = split_of(target.y, folds=2)
    single, double = (run(X, target, name, split=made, threads=n)[0].proba for n in (1, 4))
    assert np.array_equal(single, double)


def test_a_seed_draws_the_records_of_each_tree() -> None:
    X, target = two_classes(80)
    made = [build_pipeline(EstimatorSettings("lightgbm", seed=seed)) for seed in (0, 1, 1)]
    first, second, same = (
        pipeline.set_params(estimator__colsample_bytree=1.0).fit(X, target.y).predict_proba(X)
        for pipeline in made
    )
    assert np.array_equal(second, same)
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("tune", [False, True])
def test_inner_folds_never_divide_a_group(tune: bool) -> None:
    """Neighbours weighted by distance know every group that they were fitted on."""
    random = np.random.default_rng(2)
    group = np.repeat(np.arange(60), 3)
    X = random.normal(size=(60, 20))[group].astype(np.float32)
    y = random.permutation(np.arange(60) % 2)[group]
    made = split_of(y, group=group)
    for train, test in inner_folds(y, group, 3, seed=0):
        assert not set(group[train]) & set(group[test])
        assert abs(y[test].mean() - 0.5) < 0.1
    assert np.array_equal(build_pipeline(EstimatorSettings("knn")).fit(X, y).predict(X), y)
    for name in ("knn", "logreg", LINEAR_SVC):
        target, by_metric = Target(y, ("0", "1")), Threshold(None, None)
        settings = EstimatorSettings(name, tune=tune, threshold=by_metric)
        found: Any = fit(Problem(units_with(X), target, made), np.arange(180), settings)
        assert (found.inner.argmax(1) == y).mean() < 0.7
        if tune and name == "knn":  # what was chosen is what is fitted
            assert found.choice.parameters.items() <= found.pipeline[-1].get_params().items()


def test_a_vocabulary_is_learnt_from_training_texts_alone() -> None:
    """Words of held-out texts are in no vocabulary of their fold."""
    y = np.arange(60) % 2
    made = split_of(y)
    texts = [
        f"only{fold} only{fold} word{i % 3} {'ab'[i % 2]}" for i, fold in enumerate(made.folds)
    ]
    problem, train = Problem(units_with(texts), Target(y, ("0", "1")), made), made.subsets()[2][0]
    fitted = fit(problem, train, EstimatorSettings(features="tfidf"))
    words = dict(fitted.pipeline["tfidf"].transformer_list)["words"].vocabulary_
    assert {"only0", "only1", "only3", "only4"} <= set(words)
    assert "only2" not in words
    vectorizer = dict(fitted.pipeline["tfidf"].transformer_list)["words"]
    twice, once = (vectorizer.transform([f"{text} only1"]).toarray()[0] for text in ("a a", "a"))
    a, other = words["a"], words["only1"]
    assert twice[a] / twice[other] == pytest.approx((1 + np.log(2)) * once[a] / once[other])


# weights, calibration, the unit of a target


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        (LINEAR_SVC, LinearSVC(class_weight="balanced")),
        (RIDGE, RidgeClassifier(class_weight="balanced")),
        ("logreg", LogisticRegression(class_weight="balanced", max_iter=1_000)),
    ],
)
def test_class_weights_find_rare_positives(name: str, plain: Any) -> None:
    X, target = two_classes(1_500, positives=0.05, strength=0.8)
    made = split_of(target.y)
    wanted = np.empty(1_500, np.int64)
    for train, test in made.subsets():
        centred = X - X[train].mean(0)
        wanted[test] = plain.fit(centred[train], target.y[train]).predict(centred[test])
    found = {
        weight: run(X, target, name, split=made, class_weight=weight)[0].y_pred
        for weight in (None, "balanced")
    }
    recall = {weight: recall_score(target.y, said) for weight, said in found.items()}
    assert recall[None] < 0.3
    assert recall["balanced"] > 0.8 * recall_score(target.y, wanted)
    ours, theirs = (balanced_accuracy_score(target.y, p) for p in (found["balanced"], wanted))
    assert ours > theirs - 0.04


@pytest.mark.parametrize("name", [*TABLE["regression"], "sklearn.svm:SVR"])
def test_a_regression_does_not_depend_on_unit_and_zero(name: str) -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(150, 12)).astype(np.float32)
    y = X @ random.normal(size=12) + random.normal(size=150)
    made = split_of(y, folds=2)

    def outputs(values: Any) -> Any:
        return run(X, Target(values, ()), name, split=made, tune=False)[0].proba

    plain = outputs(y)
    for factor, zero in ((100.0, 0.0), (0.01, -3.0)):
        found = outputs(factor * y + zero)
        assert np.corrcoef(plain, found)[0, 1] > 0.98
        assert np.abs((found - zero) / factor - plain).mean() < 0.1 * plain.std()


NO_CLASSIFIERS = {
    "sklearn.svm:LinearSvc": "LinearSvc",
    "sklearn.nothing:LinearSVC": "sklearn.nothing",
    "sklearn.preprocessing:StandardScaler": "task='classification'",
    "sklearn.linear_model:Lasso": "task='classification'",
    "sklearn.ensemble:VotingClassifier": "estimators",
    "collections:OrderedDict": "collections",
}


@pytest.mark.parametrize("name", NO_CLASSIFIERS)
def test_what_is_no_classifier_of_scikit_learn(name: str) -> None:
    with pytest.raises(UsageError, match=NO_CLASSIFIERS[name]):
        EstimatorSettings.of(name, task="classification")


def test_what_a_user_names_predicts_numbers_and_prints_nothing(capfd: Any) -> None:
    class Broken(Ridge):  # type: ignore[misc]
        def predict(self, X: Any) -> Any:
            return super().predict(X) * np.nan

    X, target = two_classes(60)
    with pytest.raises(UsageError, match="NaN or infinity"):
        predict_proba(Broken().fit(X, target.y), X, Target(target.y, ()))
    run(X, target, "lightgbm:LGBMClassifier", split=split_of(target.y, folds=2), tune=False)
    assert capfd.readouterr().out == ""


def test_a_model_that_is_never_loaded_is_not_saved(tmp_path: Path) -> None:
    class Own(LogisticRegression):  # type: ignore[misc]
        """A class that no library knows."""

    pipeline = make_pipeline(StandardScaler(), Own()).fit(np.eye(4), [0, 1, 0, 1])
    with pytest.raises(UsageError, match=r"Own"):
        save_model(tmp_path, pipeline)


# probing


def test_a_control_task_keeps_texts_together_and_tells_nothing() -> None:
    _, target = two_classes(400)
    made = split_of(target.y, group=np.arange(400) // 2)
    first, second = (control_task(target, made, seed) for seed in (0, 1))
    assert (first.y[::2] == first.y[1::2]).all()
    assert not np.array_equal(first.y, second.y)
    assert abs(first.y.mean() - target.y.mean()) < 0.1
    assert abs(np.corrcoef(first.y, target.y)[0, 1]) < 0.2


def test_a_control_task_leaves_each_fold_two_classes() -> None:
    y = np.repeat([1, 1, 0, 0, 0, 0, 0, 0], 5)
    target, made = Target(y, ("a", "b")), split_of(y, group=np.arange(40) // 5, folds=2)
    made = replace(made, folds=np.repeat([0, 1, 0, 1, 0, 1, 0, 1], 5))
    for seed in range(20):
        control = control_task(target, made, seed)
        assert all(len(np.unique(control.y[train])) == 2 for train, _ in made.subsets())


def test_a_control_task_has_the_labels_of_random_records() -> None:
    """Of groups in order the first records have the smallest values."""
    y = np.sort(np.random.default_rng(0).normal(size=400))
    group = np.random.default_rng(1).integers(0, 20, 400)
    target, made = Target(y, ()), split_of(np.arange(400) % 2, group=group)
    controls = [control_task(target, made, seed).y for seed in range(40)]
    assert abs(np.mean(controls)) < 0.2
    assert np.mean([control.std() for control in controls]) > 0.8
    # two groups, one in each part: a part has a single label if groups have one
    target, made = Target(np.arange(40) % 2, ("a", "b")), split_of(np.zeros(40), folds=2)
    made = replace(made, folds=np.arange(40) // 20, group=np.arange(40) // 20)
    control = control_task(target, made, 0)
    assert all(len(np.unique(control.y[train])) == 2 for train, _ in made.subsets())


def test_a_random_encoder_keeps_no_trained_tensor() -> None:
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


def test_few_texts_are_fitted_in_as_many_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coefficients of all n-grams are those of scikit-learn, also of repeated, empty texts."""
    random = np.random.default_rng(0)
    words = "rain bus good bad home film end house".split()  # noqa: SIM905
    texts = [" ".join(random.choice(words, 3)) for _ in range(60)] + ["good film"] * 9 + [""] * 3
    X = build_pipeline(EstimatorSettings(features="tfidf"))[:-1].fit_transform(texts)
    assert X.shape[1] > len(texts)
    y = np.array([("good" in text) + ("bad" in text) for text in texts])
    folds = inner_folds(y, np.arange(len(y)), 4, seed=0)
    sure = LogisticRegression(C=10, tol=1e-10, max_iter=10_000)
    about: Any = (folds, int(y.max()) + 1, EstimatorSettings(features="tfidf"))
    model, choice, inner = tuning._logistic(sure, X, y, *about)
    assert len(texts) ** 2 < tuning._MOST_PRODUCTS * X.nnz
    monkeypatch.setattr(tuning, "_MOST_PRODUCTS", 0)
    wide, same, proba = tuning._logistic(sure, X.astype(float), y, *about)
    assert np.allclose(model.coef_, wide.coef_, atol=1e-4)
    assert np.allclose(model.predict_proba(X), wide.predict_proba(X), atol=1e-5)
    assert np.allclose(inner, proba, atol=1e-4)
    assert choice.slope == pytest.approx(same.slope, rel=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("classes", [2, 3, 12])
def test_the_default_pipeline_without_scikit_learn_has_its_bits(
    classes: int, dtype: type, tmp_path: Path
) -> None:
    random = np.random.default_rng(classes)
    X: Any = random.normal(size=(90, 24)).astype(dtype)
    X[5] = 0  # a text that the model has no token of
    pipeline = build_pipeline(EstimatorSettings()).fit(X, random.integers(classes, size=90))
    save_model(tmp_path, pipeline)
    seal(tmp_path)
    apply = load_model(tmp_path)
    for rows in (X, X[:1], X[:7]):
        expected = pipeline.predict_proba(rows)
        assert apply(rows).dtype == expected.dtype
        assert apply(rows).tobytes() == np.ascontiguousarray(expected).tobytes()


# numbers of the user's own beside vectors, from the corpus to the prediction of a file

OWN = ["price", "age"]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """60 texts with a price that tells the label where it is known, an age, and a word."""
    random, label = np.random.default_rng(0), np.arange(60) % 2
    price = 1e4 * label + random.normal(0, 1e3, 60)
    price[::7] = np.nan
    about = {"price": price, "age": random.integers(18, 90, 60), "carrier": "b", "label": label}
    about |= {"written": "1_000", "date": 20240100 + label}
    return pd.DataFrame({"text": [f"the movie {i} was a bus" for i in range(60)], **about})


@pytest.fixture(scope="module")
def trained(frame: pd.DataFrame, common: Path) -> Path:
    data = extract_tiny(frame, common / "data", keep=[*OWN, "carrier", "written", "date"])
    test = write_frame(frame.drop(columns="label"), common / "test.csv")
    embedkit.train(data, out=common / "run", test=test, columns=OWN, tune=False, folds=3)
    return common


def test_each_fold_is_what_scikit_learn_fits(trained: Path, frame: pd.DataFrame) -> None:
    """Medians and scales are those of the training records of the fold alone."""
    made = pd.read_parquet(trained / "run/predictions.parquet")
    made = made[made.fold != "test"].sort_values("row")
    X, own = embedkit.load(trained / "data").X, frame[OWN].to_numpy(np.float32)
    expected = np.empty(60)
    vectors = make_pipeline(Normalizer(), CommonScaler())
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    for fold in range(3):
        held = (made.fold == str(fold)).to_numpy()
        parts = (vectors, X), (numbers, own)
        train = np.hstack([steps.fit_transform(values[~held]) for steps, values in parts])
        test = np.hstack([steps.transform(values[held]) for steps, values in parts])
        model = LogisticRegression(max_iter=1_000).fit(train, frame.label[~held])
        expected[held] = model.predict_proba(test)[:, 1]
    assert np.allclose(made.proba_1, expected, atol=1e-4)


def test_an_estimator_named_by_its_class_is_stored_with_what_an_imputer_saw(
    trained: Path, frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)  # where the vectors of a file go
    kind = "sklearn.neighbors:NearestCentroid"
    options: dict[str, Any] = {"columns": OWN, "estimator": kind, "tune": False}
    corpus = write_frame(frame, Path("named.csv"))
    run = embedkit.train(corpus, model=str(tiny_model()), out=trained / "named", **options).out
    assert len([*Predictor(run).predict_stored(trained / "data")[1]]) == 60


def test_files_datasets_and_texts_are_predicted_alike(
    trained: Path, frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedkit.predict._CHUNK", 16)
    predictor = Predictor(trained / "run", warm=False)
    proba = predictor.predict_proba(list(frame.text), columns=frame)[:, 1]
    tested = pd.read_parquet(trained / "run/predictions.parquet").query("fold == 'test'")
    assert np.allclose(tested.sort_values("row").proba_1, proba, atol=1e-5)
    stored = [one.proba["1"] for one in predictor.predict_stored(trained / "data")[1]]
    assert np.allclose(stored, proba, atol=1e-5)
    predict_file(trained / "run", trained / "test.csv", out=trained / "out.csv")
    assert np.allclose(pd.read_csv(trained / "out.csv").iloc[:, -1], proba, atol=1e-5)
    one = predictor.predict(frame.text[1], columns={"price": torch.tensor(1e4), "age": None})
    assert one.label == "1"


def test_columns_come_in_a_dict_or_a_frame_of_any_library(
    trained: Path, frame: pd.DataFrame
) -> None:
    predictor = Predictor(trained / "run", warm=False)
    texts, numbers = list(frame.text), frame[["price", "age"]]
    expected = predictor.predict_proba(texts, columns=numbers)
    given: Any
    for given in (dict(numbers), numbers.to_dict("list"), pl.from_pandas(numbers)):
        assert np.array_equal(predictor.predict_proba(texts, columns=given), expected)
    # of one text a value may stand alone
    for given in (numbers.iloc[:1], dict(numbers.iloc[0]), dict(numbers.iloc[:1])):
        assert np.allclose(predictor.predict_proba(texts[0], columns=given), expected[0], atol=1e-5)
    with pytest.raises(UsageError, match="columns='list': expected values by name"):
        predictor.predict(texts, columns=[[1, 2]])  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="columns='price': 1 values for 2 texts"):
        predictor.predict(texts[:2], columns={"price": 1, "age": 2})


def test_what_is_missing_or_no_number_is_named(trained: Path, frame: pd.DataFrame) -> None:
    frame.drop(columns="age").to_csv(trained / "short.csv", index=False)
    with pytest.raises(UsageError, match=r"short.csv has no column 'age'"):
        predict_file(trained / "run", trained / "short.csv", out=trained / "none.csv")
    for typed in (["-"], ["--text", "a bus"]):
        done = command("predict", "run", *typed, cwd=trained, stdin=b"a bus\n")
        assert (done.returncode, "no column 'price'" in done.stderr) == (2, True)
    age: dict[str, Any] = {"columns": "age"}
    for given, message in (
        (age | {"columns": "carrier"}, "'b' of row 0 is not a number"),
        (age | {"columns": "nope"}, "no column 'nope'"),
        (age | {"columns": "written"}, "'1_000' of row 0 is not a number"),
        (age | {"columns": "date"}, r"around 2\.02401e\+07 and differ by 0\.5 only"),
        (age | {"columns": ["age", "label"]}, "columns='age,label': one of them is the label"),
        (age | {"columns": ["age", "age"]}, "columns='age,age': name each once"),
        (age | {"features": "tfidf"}, "columns='age'"),
        (age | {"level": "word"}, "columns='age'"),
    ):
        with pytest.raises(UsageError, match=message):
            embedkit.train(trained / "data", out=trained / "no", **given)
