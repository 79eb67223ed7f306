"""Typed run.json, tables of kinds, and the one file of predictions."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedkit.choices import BLENDS, ESTIMATORS, INDEX_KINDS
from embedkit.classifiers.estimators import TABLE
from embedkit.cli.run_text import run_info_text, run_text
from embedkit.comparison.blend import _BLENDS
from embedkit.errors import DamagedError, UsageError
from embedkit.records import to_json
from embedkit.runs.folder import RunResult, free_out, read_run
from embedkit.runs.metrics import best_threshold
from embedkit.runs.predictions import decide, read_predictions, write_predictions
from embedkit.runs.run import TrainRun
from embedkit.runs.scores import class_scores, reported_scores
from embedkit.runs.split import TEST
from embedkit.search import index
from embedkit.storage import seal
from embedkit.units.target import Target
from tests.run_fixtures import edit_run, predictions_of, random_runs, run_of


def test_tables_have_the_kinds_that_options_offer() -> None:
    assert {name for table in TABLE.values() for name in table} == set(ESTIMATORS)
    assert tuple(_BLENDS) == BLENDS
    assert [*index.KINDS] == [*INDEX_KINDS]


@pytest.mark.parametrize(
    "source", ["a/c.tsv", "a/c.tsv.gz", "https://me:pw@host/c.tsv?Signature=1f"]
)
def test_a_run_is_called_as_its_corpus(source: str) -> None:
    assert free_out(None, source, "log reg") == Path("runs/c-log_reg")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small run."""
    return random_runs(tmp_path, ["a"], n=20)[0][0]


def test_content_is_read_as_it_was_written(path: Path) -> None:
    """Also a threshold that no record reaches, one of which has the probability 1."""
    y, positive = np.array([0, 0, 0, 0, 1]), np.array([1, 0.2, 0.2, 0.2, 0.2])
    edit_run(path, threshold=best_threshold(y, positive))
    content = run_of(path, TrainRun)
    assert (content.threshold or 0) > 1
    assert json.loads(to_json(content)) == json.loads((path / "run.json").read_text("utf-8"))


DAMAGED: list[tuple[dict[str, Any], str]] = [
    ({"classes": "01"}, "classes"),
    ({"classes": [0, 1]}, "classes"),
    ({"classes": ["0", "0"]}, "classes"),
    ({"threshold": "0.3"}, "threshold"),
    ({"threshold": 1.5}, "threshold"),
    ({"task": "ranking"}, "task"),
    ({"views": []}, "views"),
    ({"level": "page"}, "level"),
    ({"cost": None}, "cost"),
    ({"cost": {"parameters": 1.5}}, "parameters"),
    ({"dataset": {}}, "dataset"),
    ({"scores": {"test": {"accuracy": {"value": 1}}}}, "scores"),
    ({"scores": {"training": {}}}, "scores"),
    ({"format_version": True}, "format_version"),
    ({"format_version": 2}, "another version"),
    ({"kind": "ensemble"}, "another version"),
]


@pytest.mark.parametrize(("changes", "message"), DAMAGED)
def test_damage_is_named_by_file_and_field(
    path: Path, changes: dict[str, Any], message: str
) -> None:
    """What another version has written is none, and refused as such."""
    edit_run(path, **changes)
    damaged = DamagedError, f"run.json.*{message}"
    kind, told = (UsageError, message) if message == "another version" else damaged
    with pytest.raises(kind, match=told):
        read_run(path)


def test_the_text_of_a_run_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,), _, _ = random_runs(tmp_path, ["a"], n=800, classes=26, test=100)
    made = read_predictions(path, tuple(map(str, range(26))))
    scores, per_class = reported_scores(made), class_scores(made)
    content = replace(run_of(path, TrainRun), scores=scores, per_class=per_class)
    result = RunResult(path, content)
    for text in (run_text(result), run_info_text(path, content)):
        assert len(text.splitlines()) <= 15
    monkeypatch.setattr("embedkit.cli.run_text.asked_for_all", lambda: True)
    rows = [line.split() for line in run_text(result).splitlines()]
    assert {row[0].rstrip(",") for row in rows if row} >= {*map(str, range(26)), *scores["test"]}


@pytest.mark.parametrize("classes", [("no", "yes"), ()])
@pytest.mark.parametrize("labelled", [True, False])
def test_predictions_are_read_as_they_were_written(
    tmp_path: Path, classes: tuple[str, ...], labelled: bool
) -> None:
    random, fold = np.random.default_rng(0), np.arange(12) % 3 - 1
    y = random.integers(2, size=12) if classes else random.normal(size=12)
    proba = random.dirichlet([1, 1], size=12) if classes else random.normal(size=12)
    if not labelled:
        y[fold == TEST] = -1 if classes else np.nan
    made = predictions_of(Target(y, classes), proba, fold)
    ids, decided = tuple(f"id{row}" for row in made.row), decide(made.proba, threshold=0.3)
    made = replace(made, row=3 * made.row, group=5 * made.group, ids=ids, y_pred=decided)
    write_predictions(tmp_path, made)
    seal(tmp_path)
    found = read_predictions(tmp_path, classes)
    for name, value in asdict(made).items():
        assert np.array_equal(getattr(found, name), value, equal_nan=name == "y"), name
    assert len(found.scored_test) == (4 if labelled else 0)
    assert found.fold.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, TEST, TEST, TEST, TEST]


@pytest.mark.parametrize(
    ("one", "other"),
    [("긍정", "\u1100\u1173\u11bc정"), ("❤\ufe0f", " ❤"), ("a\u200b", "A"), ("１", "1")],
)
def test_classes_that_look_alike_are_named(
    one: str, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    target = Target.of([one, other, "b"], rows=np.arange(3), name="c.tsv")
    assert len(target.classes) == 3
    assert "look alike" in caplog.text
    caplog.clear()
    Target.of([one, "b", "c"], rows=np.arange(3), name="c.tsv")
    assert not caplog.text


TARGETS: dict[str, Any] = {
    "classification": [0, -1, 1, -1],
    "regression": [1, np.nan, 2, np.nan],
    "multilabel": [[1, 0], [-1, -1], [0, 1], [0, 0]],
}


@pytest.mark.parametrize("task", TARGETS)
def test_records_without_a_label_have_no_target(
    task: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An empty label of sets is a set without classes."""
    labels = ["1", None, "2", ""]
    target = Target.of(labels, rows=np.arange(4), name="c.tsv", task=task)
    assert np.array_equal(target.y, TARGETS[task], equal_nan=task == "regression")
    assert f"{1 if task == 'multilabel' else 2} of 4 labels" in caplog.text
    with pytest.raises(UsageError, match="row 1"):
        target.like(labels, rows=np.arange(4), name="c.tsv")
