"""Probes: learning curves, controls and the majority see training records only."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import fbeta_score

import embedkit
from embedkit.classifiers import probe as probing
from embedkit.classifiers import train
from embedkit.classifiers.probe import probe
from embedkit.cli.run_text import run_text
from embedkit.records import to_json
from embedkit.runs.figures import learning
from embedkit.runs.folder import read_run
from embedkit.runs.run import ProbeRun
from embedkit.runs.split import split_for, write_split
from embedkit.units.target import Target, growing_order
from embedkit.units.units import Units
from tests.comparison.test_report import corpus_of
from tests.processes import invoke
from tests.run_fixtures import edit_run, one_by_one
from tests.store_fixtures import extract_tiny


@pytest.fixture(scope="module")
def data(common: Path) -> Path:
    corpus = corpus_of(common / "c.tsv", 90)
    extract_tiny(corpus, common / "data", layers="0,2", pooling=["cls", "mean"])
    return common / "data"


CURVE: dict[str, Any] = {"folds": 2, "learning_curve": True}


@pytest.fixture(scope="module")
def probed(data: Path) -> Path:
    probe(data, out=data.with_name("probe"), view=["mean_0", "cls_2"], **CURVE)
    return data.with_name("probe")


def test_a_view_of_a_probe_is_what_it_is_alone(data: Path, probed: Path, tmp_path: Path) -> None:
    together = read_run(probed)
    assert isinstance(together, ProbeRun)
    first, view = together.view_scores
    assert first.name == "mean_0"
    (alone,) = probe(data, out=tmp_path / "p", view="cls_2", **CURVE).content.view_scores
    assert (view.name, view.score, view.control) == ("cls_2", alone.score, alone.control)
    assert view.curve == alone.curve


def test_every_fit_is_on_training_records(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls_of: Any
) -> None:
    """Those of learning curves too: no fit has a record of the fold that it is scored on."""
    calls = calls_of(train, "fit")
    monkeypatch.setattr(probing, "side_by_side", one_by_one)
    result = probe(data, out=tmp_path / "p", view="mean_2", folds=3, learning_curve=True)
    split = split_for(Units.of_dataset(embedkit.load(data)), folds=3, seed=0)
    folds = [set(split.subsets()[fold][0].tolist()) for fold in range(3)]
    fitted = [set(call.arguments[1].tolist()) for call in calls]
    assert len(fitted) == 3 * 5
    for number, records in enumerate(fitted):
        assert records <= folds[number // 5]  # one fold after the other, in one thread
    sizes = [records for records, _ in result.content.view_scores[0].curve]
    assert sizes == [6, 12, 24, 42, 60] == sorted({len(records) for records in fitted})
    extract_tiny(corpus_of(tmp_path / "c.tsv", 8), tmp_path / "few")
    few = probe(tmp_path / "few", out=tmp_path / "f", view="mean_2", **CURVE)
    sizes = [records for records, _ in few.content.view_scores[0].curve]
    assert sizes == sorted({len(call.arguments[1]) for call in calls[15:]})
    assert re.search("by training records: 6 → .*, 60 → ", run_text(result))


def test_a_curve_ends_at_the_score_of_the_view(probed: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(probed, tmp_path / "p"))
    content = read_run(run)
    assert isinstance(content, ProbeRun)
    for view in content.view_scores:
        *few, last = (point for _, point in view.curve)
        assert (last.value, last.low, last.high) == pytest.approx(
            (view.score.value, view.score.low, view.score.high)
        )
        for point in few:
            assert point.low <= point.value <= point.high
    tags = [tag for tag, *_ in learning(content).items]
    assert tags.count("circle") == len(
        content.view_scores[0].curve
    )  # the name beside the last has none
    scores = json.loads(to_json(content))["view_scores"]
    scores[0]["curve"][0][1]["value"] = None  # as of a correlation with a constant
    edit_run(run, view_scores=scores)
    assert json.loads(to_json(read_run(run)))["view_scores"] == scores


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


def test_a_curve_of_a_small_corpus(tmp_path: Path) -> None:
    """A tenth of its training records may be two."""
    extract_tiny(corpus_of(tmp_path / "c.tsv", 30), tmp_path / "data")
    found = probe(tmp_path / "data", out=tmp_path / "probe", folds=3, learning_curve=True)
    assert [len(view.curve) for view in found.content.view_scores] == [5]


def test_all_views_and_the_numbers_without_labels_are_printed_by_all(
    data: Path, tmp_path: Path
) -> None:
    typed = ("probe", data, "--out", tmp_path / "p", "--overwrite")
    few, every = (invoke(*typed, *more).stdout for more in ((), ("--all",)))
    assert "without labels:" not in few
    assert "selectivity" in every
    numbers = every.partition("without labels:")[2].splitlines()
    assert [line.split()[0] for line in numbers[2:6]] == ["cls_0", "mean_0", "cls_2", "mean_2"]
