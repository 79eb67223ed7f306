"""Files of answers as CSV and as submissions, the best blend, and runs with other test sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from embedkit.comparison.blend import write_blend
from embedkit.comparison.table import compare
from embedkit.errors import UsageError
from embedkit.prediction_files import parse_submission, read_prediction_files, write_prediction_file
from embedkit.runs.run import TestSetContent
from tests.processes import invoke
from tests.run_fixtures import edit_run, random_runs, write_fake_run, write_fake_runs


def test_a_submission_has_two_columns_and_the_test_set_alone(tmp_path: Path) -> None:
    paths, _, outputs = random_runs(tmp_path, ["a", "b"], n=60, test=10)
    made = compare(paths).blends["mean"]
    assert write_blend(made, tmp_path / "all.csv") == 60
    every = pd.read_csv(tmp_path / "all.csv", dtype={"label": str, "fold": str})
    assert list(every.columns) == ["row", "id", "fold", "label", "proba_0", "proba_1"]
    mean = every.sort_values("row")[["proba_0", "proba_1"]]
    assert np.allclose(mean, sum(outputs) / 2, atol=1e-5)
    form = parse_submission("paper, judgement")
    assert write_blend(made, tmp_path / "s.csv", submission=form) == 10
    found = pd.read_csv(tmp_path / "s.csv", dtype=str)
    assert list(found.columns) == ["paper", "judgement"]
    tested = every[every["fold"] == "test"]
    assert found["paper"].tolist() == tested["id"].tolist()
    assert found["judgement"].tolist() == tested["label"].tolist()
    none, _, _ = random_runs(tmp_path / "none", ["a", "b"], n=60)
    with pytest.raises(UsageError, match="submission="):
        write_blend(compare(none).blends["mean"], tmp_path / "no.csv", submission=form)
    assert not (tmp_path / "no.csv").exists()
    for wrong in ("id", "id,", "a,a", "a,b,b", "id,=1", "id,a=", ""):
        with pytest.raises(UsageError, match="submission="):
            parse_submission(wrong)


def test_csv_keeps_what_a_tsv_cannot(tmp_path: Path) -> None:
    odd = 'a "b", c\nd\te'
    record = {"row": 0, "id": odd, "label": "x,y", "proba_x,y": 0.75, "proba_z": 0.25}
    write_prediction_file([record], ["x,y", "z"], tmp_path / "p.csv")
    found = pd.read_csv(tmp_path / "p.csv")
    assert found.iloc[0].tolist() == [0, odd, "x,y", 0.75, 0.25]
    _, ids, (proba,) = read_prediction_files([tmp_path / "p.csv"], ["x,y", "z"])
    assert ids == [odd]
    assert proba.tolist() == [[0.75, 0.25]]
    value = {"row": 1, "id": "n", "value": 2.5}
    write_prediction_file([value], [], tmp_path / "v.csv", submission=parse_submission("id,score"))
    assert (tmp_path / "v.csv").read_text() == "id,score\nn,2.5\n"


def test_a_submission_of_probabilities_ranks_as_they_do(tmp_path: Path) -> None:
    """For competitions that are judged by an area or by log-loss."""
    paths, _, _ = random_runs(tmp_path, ["a", "b"], n=60, test=10)
    made = compare(paths).blends["mean"]
    tested = made.predictions.take(made.predictions.test)
    classes = made.predictions.classes
    for text in (f"id,target={classes[1]}", f"id,{','.join(classes)}"):
        write_blend(made, tmp_path / "s.csv", submission=parse_submission(text), overwrite=True)
        found = pd.read_csv(tmp_path / "s.csv", index_col="id")
        shown = tested.proba[:, 1:2] if "=" in text else tested.proba
        assert np.allclose(found, shown, rtol=1e-8, atol=0)
    tiny = [{"id": "n", "proba_x": 1.5e-12, "proba_y": 1 - 1.5e-12}]
    form = parse_submission("id,x=x")
    write_prediction_file(tiny, ["x", "y"], tmp_path / "t.csv", submission=form)
    assert (tmp_path / "t.csv").read_text() == "id,x\nn,1.5e-12\n"
    value = {"row": 1, "id": "n", "value": 30003103744.25}
    write_prediction_file([value], [], tmp_path / "v.csv", submission=parse_submission("id,y"))
    assert (tmp_path / "v.csv").read_text() == "id,y\nn,30003103744.25\n"
    form = parse_submission("id,target=X")
    for names, words in ((["x", "y"], "X is not one of 'x', 'y'"), ([], "values have no classes")):
        with pytest.raises(UsageError, match=words):
            write_prediction_file([], names, tmp_path / "u.csv", submission=form)


@pytest.mark.parametrize("strength", [0.3, 3.0])
def test_the_submission_is_that_of_the_winner(tmp_path: Path, strength: float) -> None:
    """A single run, where a blend is not proven better: its labels, also for new records."""
    paths, _, outputs = random_runs(
        tmp_path, ["a", "b", "c"], n=200, test=40, inner=True, strength=strength
    )
    found = compare(paths)
    made = found.blend_to_use()
    assert made.name == found.winner.name
    own = found.predictions[made.name]
    write_blend(made, tmp_path / "s.csv", submission={"id": "id", "label": "answer"})
    labels = pd.read_csv(tmp_path / "s.csv")["label"].tolist()
    assert labels == own.y_pred[own.test].tolist()
    if made.name in [path.name for path in paths]:
        index = [path.name for path in paths].index(made.name)
        assert np.array_equal(made.apply(outputs), outputs[index])


def test_a_submission_that_lacks_records_says_so(tmp_path: Path) -> None:
    paths, _, _ = random_runs(tmp_path, ["a", "b"], n=60, test=10)
    for path in paths:
        edit_run(path, test_set={"source": ["t"], "rejected": 3, "seen_texts": 0})
    out = ("--write-blend", tmp_path / "s.csv", "--submission", "id,target")
    said = invoke("compare", *paths, *out).stdout
    assert "10 records" in said
    assert "3 records of the test set rejected" in " ".join(said.split())


def test_runs_with_and_without_a_test_set_are_compared_on_the_folds(
    tmp_path: Path, notes: list[str]
) -> None:
    own = TestSetContent(source=("t",), rejected=0, seen_texts=0)
    random = np.random.default_rng(0)
    y = random.integers(2, size=50)
    proba = random.dirichlet([1, 1], size=(2, 50))
    folds = np.where(np.arange(50) < 10, -1, np.arange(50) % 5)
    with_test = write_fake_run(tmp_path / "a", y, proba[0], folds, test_set=own)
    row = np.arange(10, 50)
    outputs = [proba[1][row], proba[0][row]]
    without, shared = write_fake_runs(tmp_path, "bc", y[row], outputs, folds[row], row=row)
    found = compare([with_test, without])
    assert any("folds alone" in note for note in notes)
    assert found.counts == {"folds": 40, "test": 0}
    plain = compare([shared, without])
    scores = [
        {row.name.replace("c", "a"): row.scores for row in one.rows if row.path}
        for one in (found, plain)
    ]
    assert str(scores[0]) == str(scores[1])  # with intervals of NaN
