"""Probes: every fit sees training records only; combinations of layers, when they are chosen."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import fbeta_score

import embedkit
from benchmarks.simulate import claims_of_layers, probed
from embedkit.classifiers import probe as probing
from embedkit.classifiers import train
from embedkit.classifiers.estimators import EstimatorSettings
from embedkit.classifiers.layers import Candidate, LayerMixture, combinations_of, unit_layers
from embedkit.classifiers.probe import Candidates, probe
from embedkit.cli.run_text import run_text
from embedkit.errors import UsageError
from embedkit.geometry import effective_rank
from embedkit.records import to_json
from embedkit.runs.cross_validation import Problem
from embedkit.runs.figures import learning
from embedkit.runs.folder import read_run
from embedkit.runs.run import ProbeRun
from embedkit.runs.split import split_for, write_split
from embedkit.types import Float32, Float64, Int64
from embedkit.units.target import Target, growing_order
from embedkit.units.units import Units
from tests.comparison.test_report import corpus_of
from tests.processes import invoke
from tests.properties.test_simulation import most
from tests.run_fixtures import edit_run, one_by_one, run_of
from tests.store_fixtures import extract_tiny


@pytest.fixture(scope="module")
def data(common: Path) -> Path:
    corpus = corpus_of(common / "c.tsv", 90)
    return extract_tiny(corpus, common / "data", layers="0,2", pooling=["cls", "mean"]).out


CURVE: dict[str, Any] = {"folds": 2, "learning_curve": True}


@pytest.fixture(scope="module")
def run(data: Path) -> Path:
    return probe(data, out=data.with_name("probe"), view=["mean_0", "cls_2"], **CURVE).out


def test_a_view_of_a_probe_is_what_it_is_alone(data: Path, run: Path, tmp_path: Path) -> None:
    first, view = run_of(run, ProbeRun).view_scores
    assert first.name == "mean_0"
    (alone,) = probe(data, out=tmp_path / "p", view="cls_2", **CURVE).content.view_scores
    assert (view.name, view.score, view.control) == ("cls_2", alone.score, alone.control)
    assert view.curve == alone.curve
    assert view.selectivity == view.score.value - view.control


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, calls_of: Any) -> Any:
    """Those of the function that fits, one fold after the other, in one thread."""
    monkeypatch.setattr(probing, "side_by_side", one_by_one)
    return calls_of(train, "fit")


def test_every_fit_is_on_training_records(data: Path, tmp_path: Path, calls: Any) -> None:
    """Those of learning curves too: no fit has a record of the fold that it is scored on."""
    result = probe(data, out=tmp_path / "p", view="mean_2", folds=3, learning_curve=True)
    split = split_for(Units.of_dataset(embedkit.load(data)), folds=3, seed=0)
    folds = [set(split.subsets()[fold][0].tolist()) for fold in range(3)]
    fitted = [set(call.arguments[1].tolist()) for call in calls]
    assert len(fitted) == 3 * 5
    for number, records in enumerate(fitted):
        assert records <= folds[number // 5]
    sizes = [records for records, _ in result.content.view_scores[0].curve]
    assert sizes == [6, 12, 24, 42, 60] == sorted({len(records) for records in fitted})
    target = Problem.of(Units.of_dataset(embedkit.load(data)), split=split, seed=0).target
    order = growing_order(split.subsets()[0][0], target, seed=0)
    assert [set(order[:size].tolist()) for size in sizes[:-1]] == fitted[1:5]
    extract_tiny(corpus_of(tmp_path / "c.tsv", 8), tmp_path / "few")
    few = probe(tmp_path / "few", out=tmp_path / "f", view="mean_2", **CURVE)
    sizes = [records for records, _ in few.content.view_scores[0].curve]
    assert sizes == [2, 3, 4] == sorted({len(call.arguments[1]) for call in calls[15:]})
    assert re.search("by training records: 6 → .*, 60 → ", run_text(result))


def test_a_curve_ends_at_the_score_of_the_view(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "p"))
    content = run_of(copy, ProbeRun)
    for view in content.view_scores:
        *few, last = (point for _, point in view.curve)
        assert astuple(last) == pytest.approx(astuple(view.score))
        for point in few:
            assert point.low <= point.value <= point.high
    tags = [tag for tag, *_ in learning(content).items]
    # the name beside the last has none
    assert tags.count("circle") == len(content.view_scores[0].curve)
    scores = json.loads(to_json(content))["view_scores"]
    scores[0]["curve"][0][1]["value"] = None  # as of a correlation with a constant
    edit_run(copy, view_scores=scores)
    assert json.loads(to_json(read_run(copy)))["view_scores"] == scores


def test_the_majority_is_that_of_all_folds(data: Path, tmp_path: Path) -> None:
    """Each fold has more of the class that the other has less of: that of the other is wrong."""
    loaded = embedkit.load(data)
    made = split_for(Units.of_dataset(loaded), folds=2, seed=0)
    y = np.asarray(loaded.labels) == "1"
    folds = np.where(np.random.default_rng(0).random(len(y)) < 0.25, ~y, y).astype(np.int64)
    write_split(replace(made, group=np.arange(len(y)), folds=folds), tmp_path / "s.parquet")
    content = probe(data, out=tmp_path / "p", view="mean_2", split=tmp_path / "s.parquet").content
    of_others = [y[folds == f] == (y[folds != f].mean() > 0.5) for f in (0, 1)]
    assert np.mean(np.concatenate(of_others)) < 0.4
    assert content.nested.majority == pytest.approx(max(y.mean(), 1 - y.mean()))


def test_an_f_score_is_at_the_thresholds_of_inner_folds(data: Path, tmp_path: Path) -> None:
    """Of a rare class: at 0.5 it would hardly be predicted, whatever the views are worth."""
    label = np.where(np.arange(90) % 6, "no", "yes")
    content = probe(data, out=tmp_path / "p", label=label, metric="f2", folds=3).content
    table = pd.read_parquet(tmp_path / "p/predictions.parquet")
    y, predicted = ((table[name] == "yes").to_numpy() for name in ("y_true", "y_pred"))
    assert predicted.sum() > (table["proba_yes"] > 0.5).sum()
    assert content.nested.value == pytest.approx(fbeta_score(y, predicted, beta=2))
    assert content.nested.majority == pytest.approx(fbeta_score(y, np.ones(90), beta=2))
    assert content.threshold_metric == "f2"


def test_few_records_of_a_curve_are_of_all_classes() -> None:
    y = np.repeat([0, 1, 2], [150, 40, 10])
    target = Target(y, ("a", "b", "c"))
    train = np.arange(1, 200)
    for seed in range(3):
        order = growing_order(train, target, seed=seed)
        assert np.array_equal(np.sort(order), train)
        assert set(y[order[:3]]) == {0, 1, 2}
        for n in range(3, len(order)):
            expected = np.bincount(y[train]) * n / len(train)
            assert np.abs(np.bincount(y[order[:n]], minlength=3) - expected).max() <= 2
    assert sorted(growing_order(train, Target(np.arange(200.0), ()), seed=0)) == list(train)


def test_all_views_and_the_numbers_without_labels_are_printed_by_all(
    data: Path, tmp_path: Path
) -> None:
    typed = ("probe", data, "--out", tmp_path / "p", "--overwrite")
    few, every = (invoke(*typed, *more).stdout for more in ((), ("--all",)))
    assert "without labels:" not in few
    assert "selectivity" in every
    numbers = every.partition("without labels:")[2].splitlines()
    assert [line.split()[0] for line in numbers[2:6]] == ["cls_0", "mean_0", "cls_2", "mean_2"]


# combinations of layers


@pytest.fixture(scope="module")
def layers(common: Path) -> Path:
    options: dict[str, Any] = {"layers": "all,sum:0..1", "pooling": ["mean"], "tokens": True}
    return extract_tiny(corpus_of(common / "60.tsv", 60), common / "layers", **options).out


def planted(n: int = 240, layers: int = 4, width: int = 8, seed: int = 0) -> tuple[Float32, Int64]:
    """Vectors ``(n, layers, width)`` of noise, and labels of four classes."""
    random = np.random.default_rng(seed)
    return random.normal(size=(n, layers, width)).astype(np.float32), random.integers(4, size=n)


def test_a_mixture_of_one_layer_is_logistic_regression() -> None:
    X, y = planted()
    mixture = LayerMixture(1, C=3.0).fit(X[:, 0], y)
    plain = LogisticRegression(C=3.0, max_iter=1_000).fit(X[:, 0], y)
    assert np.array_equal(mixture.coef_, plain.coef_)
    assert np.array_equal(mixture.predict_proba(X[:, 0]), plain.predict_proba(X[:, 0]))


@pytest.mark.parametrize("classes", [2, 4])
def test_weights_minimise_the_loss_of_the_classifier(classes: int) -> None:
    """Written again without gradients, and scikit-learn's classifier at the end of it."""
    X, y = planted(n=60, layers=3, width=3)
    y %= classes
    X[:, 2, 0] += 2 * y
    mixture = LayerMixture(3, C=2.0).fit(X.reshape(60, -1), y)

    def loss(scores: Float64) -> float:
        mixed = np.einsum("l,nlw->nw", softmax(scores), X)
        fit = LogisticRegression(C=2.0, max_iter=1_000, tol=1e-8).fit(mixed, y)
        odds = fit.decision_function(mixed)
        odds = np.stack([np.zeros(60), odds], axis=1) if classes == 2 else odds
        penalty = (fit.coef_**2).sum() / 4.0
        return float(penalty - log_softmax(odds, axis=1)[np.arange(60), y].sum())

    best = minimize(loss, np.zeros(3), method="Nelder-Mead", options={"maxiter": 150})
    assert loss(np.log(mixture.weights_ + 1e-12)) <= best.fun * (1 + 1e-4)
    assert mixture.weights_.argmax() == 2
    assert mixture.weights_.sum() == pytest.approx(1, rel=1e-12)


def test_coefficients_of_a_mixture_are_of_the_layers_side_by_side() -> None:
    X, y = planted()
    mixture = LayerMixture(4).fit(X.reshape(len(X), -1), y)
    mixed = np.tensordot(mixture.weights_.astype(np.float32), X, (0, 1))
    plain = LogisticRegression(max_iter=1_000).fit(mixed, y)
    expected = plain.decision_function(mixed.astype(np.float64))
    assert mixture.decision_function(X.reshape(len(X), -1)) == pytest.approx(expected, abs=1e-5)
    lengths = np.linalg.norm(unit_layers(X.reshape(len(X), -1), layers=4).reshape(X.shape), axis=2)
    assert lengths == pytest.approx(1, rel=1e-5)


def test_candidates_are_what_extract_and_train_take(layers: Path) -> None:
    """Views side by side are those of load; a sum is the one that extract stores."""
    names = ["mean_0", "mean_1", "mean_2"]
    settings = EstimatorSettings()
    combinations = combinations_of(names, mixtures=True)
    assert [c.name for c in combinations] == ["mean_sum_0to1", "mean_sum_1to2", "mean_mixture"]
    vectors = {name: embedkit.load(layers, name).X for name in [*names, "mean_sum_0to1"]}
    target = Target(np.zeros(60, np.int64), ("a",))
    method = Candidates(names, combinations, vectors.__getitem__, settings, target, ())
    index = np.array([3, 1])
    both = method.input(Candidate("mean_0 + mean_2", ("mean_0", "mean_2")), index)
    assert np.array_equal(both, embedkit.load(layers, ["mean_0", "mean_2"]).X[index])
    added, stored = method.input(combinations[0], index), vectors["mean_sum_0to1"][index]
    assert added == pytest.approx(stored, rel=1e-5, abs=1e-5)


def test_combinations_are_of_neighbours_of_one_linear_pooling() -> None:
    names = ["max_0", "max_1", "mean_5", "mean_0", "cls_1", "pooler", "mean_sum_0to5"]
    made = combinations_of(names, mixtures=True)
    assert [c.name for c in made] == ["max_mixture", "mean_mixture"]
    four = [f"mean_{layer}" for layer in range(9, 13)]
    spans = [(c.name, c.views) for c in combinations_of(four, mixtures=True)]
    assert ("mean_sum_9to12", tuple(four)) in spans
    large = [c.name for c in combinations_of(four, mixtures=True, view_bytes=1 << 29)]
    assert "mean_mixture" not in large
    stored = combinations_of([*four, large[-1]], mixtures=False)
    assert "mean_sum_9to12" not in [c.name for c in stored]
    assert {c.combination for c in stored} == {"sum"}


def test_layers_that_complete_each_other_are_put_side_by_side() -> None:
    """One layer tells the first two classes from the others, another one the odd from the even."""
    X, y = planted(n=160, layers=8)  # of which three are tried for each further view
    X[:, 0, 0] += 4 * (y // 2)
    X[:, 2, 1] += 4 * (y % 2)
    fits, gain = probed({f"mean_{layer}": X[:, layer] for layer in range(8)}, y, folds=2)
    for fold in fits.folds:
        assert {"mean_0", "mean_2"} <= set(fold.model.name.split(" + "))
    assert gain.low > 0.2


def test_what_only_one_layer_knows_is_taken_from_it() -> None:
    X, y = planted(n=160, layers=3, seed=2)
    X[:, 1, 0] += 6 * y
    fits, gain = probed({f"mean_{layer}": X[:, layer] for layer in range(3)}, y, folds=2)
    assert all("mean_1" in fold.model.name.split(" + ") for fold in fits.folds)
    weights = [fold.model.weights for fold in fits.final["mean_mixture"]]
    assert np.argmax(weights, axis=1).tolist() == [1] * len(fits.folds)
    assert gain.low > 0


def test_the_gain_is_over_the_best_pooling_of_the_last_layer() -> None:
    X, y = planted(n=160, layers=3)
    X[:, 2, 0] += 6 * y
    names = ("mean_0", "cls_1", "mean_1")
    _, gain = probed({name: X[:, i] for i, name in enumerate(names)}, y, folds=2)
    assert gain.low <= 0


def test_every_fit_of_a_combination_is_on_training_records(
    layers: Path, tmp_path: Path, calls: Any
) -> None:
    names = ["mean_0", "mean_1", "mean_2"]
    content = probe(layers, out=tmp_path / "p", view=names, folds=2).content
    fitted = [frozenset(call.arguments[1].tolist()) for call in calls]
    assert len(set(fitted)) == 2
    assert not frozenset.intersection(*set(fitted))
    assert len(content.choices) == 2
    assert len(fitted) >= 2 * 6 + 2  # views, combinations, the start of each growth
    assert to_json(read_run(tmp_path / "p")) == to_json(content)


def test_numbers_without_labels_of_a_dataset(layers: Path, tmp_path: Path) -> None:
    """They are those of the distinct texts; the last layer is itself; a frame has them all."""
    result = probe(layers, out=tmp_path / "p", folds=2, view=["mean_0", "mean_2"])
    numbers = result.content.geometry
    assert numbers["mean_2"]["cka_to_last"] == pytest.approx(1, rel=1e-9)
    assert numbers["mean_2"]["neighbours_of_last"] == 1
    X = embedkit.load(layers, "mean_0").X
    texts = np.unique(np.array(embedkit.load(layers).text), return_index=True)[1]
    assert numbers["mean_0"]["effective_rank"] == pytest.approx(effective_rank(X[texts]), rel=1e-9)
    # as a file has them, whose keys are sorted
    order = dict(reversed(numbers.items()))
    turned = replace(result.content, geometry=order, random_weights={"mean_0": (0.4, 0.5)})
    assert [row["view"] for row in turned.geometry_rows()] == ["mean_0", "mean_2"]
    assert turned.as_rows()[-1]["never trained"] == "–"
    frame = result.to_frame()
    assert list(frame.index) == ["mean_0", "mean_2", "mean_mixture"]
    assert frame.loc["mean_0", "curvature"] == numbers["mean_0"]["curvature"] > 0
    assert frame.loc["mean_mixture", "value"] == result.content.combinations[-1].score.value
    assert (tmp_path / "p" / "figures" / "geometry.svg").is_file()


@pytest.mark.slow
def test_equal_layers_are_seldom_called_better() -> None:
    count = 40
    assert claims_of_layers(repetitions=count) <= most(0.05, count)


def test_a_metric_that_no_inner_fold_has(tmp_path: Path) -> None:
    """Values that are constant within a group have no R², where a fold holds out one group."""
    rows = [{"text": f"text {i}", "label": str(i // 10), "area": f"a{i // 10}"} for i in range(60)]
    data = extract_tiny(rows, tmp_path / "data", keep=["area"]).out
    split = embedkit.split(data, folds=2, group="area")
    with pytest.raises(UsageError, match=r"metric='r2': an inner fold has none\."):
        probe(data, out=tmp_path / "p", task="regression", split=split, metric="r2")
