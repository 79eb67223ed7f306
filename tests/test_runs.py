"""Typed run.json, tables of kinds, and the one file of predictions."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedkit.checksums import seal
from embedkit.choices import BLENDS, ESTIMATORS
from embedkit.classifiers.estimators import TABLE
from embedkit.comparison.blend import _BLENDS
from embedkit.errors import DamagedError, UsageError
from embedkit.predict import _MODELS
from embedkit.prediction_files import read_prediction_files
from embedkit.runs.content import KINDS, PredictionRun, TrainRun, as_json
from embedkit.runs.folder import read_run
from embedkit.runs.predictions import (
    Predictions,
    decide,
    read_predictions,
    write_predictions,
)
from embedkit.runs.split_files import TEST
from embedkit.runs.targets import Target
from tests.run_fixtures import edit_run, random_runs


def test_tables_have_the_kinds_that_options_offer() -> None:
    assert tuple(TABLE) == ESTIMATORS
    assert tuple(_BLENDS) == BLENDS
    assert set(_MODELS) == {kind for kind in KINDS.values() if issubclass(kind, PredictionRun)}
    assert {name: _default(kind, "kind") for name, kind in KINDS.items()} == {k: k for k in KINDS}


def _default(kind: Any, name: str) -> Any:
    return next(field.default for field in fields(kind) if field.name == name)


def test_content_is_read_as_it_was_written(tmp_path: Path) -> None:
    (path,), _, _ = random_runs(tmp_path, ["a"], n=20)
    content = read_run(path)
    assert isinstance(content, TrainRun)
    assert as_json(content) == json.loads((path / "run.json").read_text("utf-8"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": "01"}, r"run\.json is damaged: classes is a string, expected a list"),
        ({"classes": [0, 1]}, r"classes\[0\] is a whole number, expected a string"),
        ({"threshold": "0.3"}, r"threshold is a string, expected a number"),
        ({"cost": None}, r"cost is null, expected an object"),
        ({"cost": {"parameters": 1.5}}, r"cost\.parameters is a number, expected a whole number"),
        ({"dataset": {}}, r"dataset\.fingerprint is missing"),
        ({"scores": {"test": {"accuracy": {"value": 1}}}}, r"scores\.test\.accuracy\.low is miss"),
        ({"format_version": True}, r"format_version is true or false, expected a whole number"),
    ],
)
def test_damage_is_named_by_file_and_field(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    (path,), _, _ = random_runs(tmp_path, ["a"], n=20)
    edit_run(path, **changes)
    with pytest.raises(DamagedError, match=message):
        read_run(path)


@pytest.mark.parametrize("changes", [{"format_version": 1}, {"kind": "ensemble"}])
def test_runs_of_another_version_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    (path,), _, _ = random_runs(tmp_path, ["a"], n=20)
    edit_run(path, **changes)
    with pytest.raises(UsageError, match="was made by another version of embedkit"):
        read_run(path)


def some_predictions(classes: tuple[str, ...], labelled: bool) -> Predictions:
    random = np.random.default_rng(0)
    y = random.integers(2, size=12) if classes else random.normal(size=12)
    row = np.arange(12) * 3
    subsets = []
    for fold in (1, 0, TEST):
        index = np.flatnonzero(np.arange(12) % 3 == fold % 3)
        proba = random.dirichlet([1, 1], size=4) if classes else random.normal(size=4)
        target = Target(y if fold != TEST or labelled else y[:0], classes)
        subsets.append(
            Predictions.of_fold(index, proba, row=row, ids=[f"id{i}" for i in range(12)],
                                target=target, fold=fold, threshold=0.3 if classes else None)
        )  # fmt: skip
    return Predictions.joined(subsets)


@pytest.mark.parametrize("classes", [("no", "yes"), ()])
@pytest.mark.parametrize("labelled", [True, False])
def test_predictions_are_read_as_they_were_written(
    tmp_path: Path, classes: tuple[str, ...], labelled: bool
) -> None:
    made = some_predictions(classes, labelled)
    write_predictions(tmp_path, made)
    seal(tmp_path)
    found = read_predictions(tmp_path, classes)
    for name, value in asdict(made).items():
        assert np.array_equal(getattr(found, name), value, equal_nan=name == "y"), name
    assert len(found.scored_test) == (4 if labelled else 0)
    assert found.fold.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, TEST, TEST, TEST, TEST]


def test_the_baseline_knows_the_training_labels_alone() -> None:
    made = some_predictions(("no", "yes"), labelled=True)
    for train, test in [*made.folds(), (made.first_repeat, made.test)]:
        assert np.allclose(made.majority().proba[test, 1], made.y[train].mean())


def test_decisions() -> None:
    proba = np.array([[0.7, 0.3], [0.8, 0.2], [0.5, 0.5]])
    assert decide(proba).tolist() == [0, 0, 0]
    assert decide(proba, threshold=0.3).tolist() == [1, 0, 1]
    assert decide(np.array([0.5, 2.0])).tolist() == [0.5, 2.0]


def test_prediction_files_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"does not exist\. Make it with embedkit predict"):
        read_prediction_files([tmp_path / "a.tsv"], ["0", "1"])
