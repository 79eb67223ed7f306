"""Comparison of runs that saw different input."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pyarrow.parquet as pq
import pytest

from embedkit import compare, split
from embedkit.cli.compare import comparison_text
from embedkit.comparison import load, recommendation
from embedkit.comparison.recommendation import recommend
from embedkit.comparison.report import write_report
from embedkit.dataset.format import Layout
from embedkit.errors import EmbedkitError, UsageError
from embedkit.runs.folder import read_run
from embedkit.runs.run import TestSetContent
from embedkit.storage import seal
from tests.finetune_fixtures import corpus_of, tuned
from tests.models import slow
from tests.page_checks import page_of
from tests.processes import command
from tests.run_fixtures import random_runs, train, write_frame
from tests.store_fixtures import extract_tiny, tiny_model, write_tsv

SAME: dict[str, Any] = {"prefix": "query: ", "max_length": 12, "on_long": "window", "stride": 2}


@pytest.fixture(scope="module")
def folder(common: Path) -> Path:
    """Runs on one split: TF-IDF, frozen vectors, and fine-tuned with the same and other input."""
    corpus = corpus_of(common / "corpus.tsv")
    file = common / "split.parquet"
    split(corpus, out=file, folds=2)
    extract_tiny(corpus, common / "data", precision="fp32", **SAME)
    for features in ("vectors", "tfidf"):
        train(common / "data", out=common / features, split=file, features=features)
    tuned(corpus, common / "same", split=file, epochs=1, **SAME)
    tuned(corpus, common / "other", split=file, epochs=1, model=str(tiny_model(seed=2)))
    return common


def test_every_setting_that_differs_is_named(folder: Path, tmp_path: Path) -> None:
    same = compare([folder / name for name in ("tfidf", "vectors", "same")])
    assert same.inputs == {}
    assert "different input" not in comparison_text(same)
    found = compare([folder / n for n in ("tfidf", "vectors", "same", "other")])
    named = found.inputs
    both, alone = ("vectors", "same"), ("other",)
    assert named.keys() == {"model", "prefix", "max_length", "on_long"}
    assert named["prefix"] == {"'query: '": both, "''": alone}
    assert named["max_length"] == {"12": both, "24": alone}
    assert named["on_long"] == {"window": both, "truncate": alone}
    assert list(named["model"].values()) == [both, alone]
    for text in (page_of(found, tmp_path / "report.html"), comparison_text(found)):
        assert "different input: max_length is 12 (vectors, same); 24 (other)." in text
    run: Any = next(run for run in same.runs if run.name == "vectors")
    for setting, value in (("special_tokens", False), ("stride", 3)):
        vectors = replace(run.content.dataset.vectors, **{setting: value})
        other = replace(run.content, dataset=replace(run.content.dataset, vectors=vectors))
        differing = load.input_differences([run, run._replace(content=other)])
        assert differing.keys() == {setting}
    tuned: Any = next(run for run in same.runs if run.name == "same")
    cut = {"records": 1, "records_all": 200, "tokens": 25, "tokens_all": 100}
    run = tuned._replace(content=replace(tuned.content, truncated=cut))
    (notice,) = recommendation._cut(replace(same, runs=[run], datasets=()))
    assert notice.sentence.endswith("(0.5 %) at 12 tokens; 25 % of all tokens are not read.")


def test_datasets_are_those_that_the_runs_were_made_from(folder: Path, tmp_path: Path) -> None:
    found = compare([folder / "tfidf", folder / "vectors"])
    (dataset,), run = found.datasets, found.runs[1]
    other = replace(run.content, dataset=replace(run.content.dataset, fingerprint="0" * 64))
    assert load.find_datasets([run._replace(content=other)]) == ()
    # the next command is on the one that most runs share
    shared = dataset._replace(path=Path("shared"), runs=["a", "b", "c"])
    assert "shared" in recommendation._command(replace(found, datasets=(dataset, shared)), "probe")
    # a resumed job has timed only the shards that it made
    data = shutil.copytree(folder / "data", tmp_path / "data")
    log = Layout(data).log
    last = json.loads(log.read_text("utf-8").splitlines()[-1])
    with log.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(last | {"shards_found": 1, "seconds": 1e-3}) + "\n")
    seconds = dataset._replace(path=data).encode_seconds("sentence")
    assert seconds == dataset.encode_seconds("sentence") is not None
    log.write_text(json.dumps(last | {"tokens_encoded": 0}), "utf-8")  # all was reused
    assert dataset._replace(path=data).encode_seconds("sentence") is None


@pytest.mark.parametrize("made", [True, *slow(False)], ids=["split file", "own split"])
def test_suggested_commands_run_as_printed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    """In the folder where they are printed; what they make can be compared with the others."""
    at, runs = tmp_path / "at", tmp_path / "runs"
    at.mkdir()
    monkeypatch.chdir(at)
    dataset = shutil.copytree(folder / "data", tmp_path / "data")
    split = shutil.copy(folder / "split.parquet", tmp_path / "s.parquet")
    how = ("--split", os.path.relpath(split)) if made else ("--folds", 2)
    for features in ("vectors", "tfidf"):
        out = ("--features", features, "--out", runs / features)
        typed = ["train", *map(str, (dataset, *how, *out))]
        assert command(*typed, "--overwrite", cwd=at).returncode == 0
        assert read_run(runs / features).command == shlex.join(["embedkit", *typed])
    for _ in range(2):
        advice = recommend(compare(sorted(runs.iterdir())))
        suggested = [one.command for one in advice.decisions if one.command]
        for line in dict.fromkeys([*suggested, advice.next]):
            assert str(tmp_path) not in line
            assert not (made and "embedkit split" in line)
            for part in line.split(" && "):
                name, *arguments = shlex.split(part)
                done = command(*arguments, cwd=at)
                assert (name, done.returncode) == ("embedkit", 0), (line, done.stderr)
    assert {"probe", "finetune"} <= {run.name for run in runs.iterdir()}


# predictions of other tools


def as_of_another_tool(run: Path, file: Path, *, leave_out: str = "", **changes: Any) -> Path:
    """The predictions of a run in other rows and another format."""
    table = pq.read_table(run / "predictions.parquet").to_pandas()
    table = table.sample(frac=1, random_state=0, ignore_index=True)
    left_out = ["row", "group", "y_true", *leave_out.split()]
    return write_frame(table.drop(columns=left_out).assign(**changes), file)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_predictions_of_another_tool_have_the_scores_of_a_run(
    folder: Path, tmp_path: Path, suffix: str, notes: list[str]
) -> None:
    file = as_of_another_tool(folder / "vectors", tmp_path / f"llm.{suffix}")
    found = compare([folder / "tfidf", folder / "vectors", file])
    rows: dict[str, Any] = {row.name: row for row in found.rows}
    ours, theirs = rows["vectors"], rows[file.name]
    assert theirs.kind == "predictions"
    for metric, score in ours.scores.items():
        assert theirs.scores[metric].value == pytest.approx(score.value, rel=1e-9)
    assert theirs.to_baseline.p == pytest.approx(ours.to_baseline.p, rel=1e-6)
    assert theirs.cost.milliseconds is theirs.cost.fit_seconds is theirs.cost.size_bytes is None
    assert {len(one.runs) for one in found.blends.values()} == {2}  # it holds no model
    assert found.selection.with_model != file.name
    assert not [note for note in notes if file.name in note]
    assert re.search(rf"{file.name} +–  unknown", comparison_text(found))
    write_report(found, tmp_path / "report.html")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_ids_folds_and_labels_may_be_numbers(tmp_path: Path, suffix: str) -> None:
    """Also such as 1.0, as where gaps are NaN; the text of CSV has the point."""
    rows = [(str(n), f"{['good', 'bad'][n % 2]} movie {n}", str(n % 2)) for n in range(40)]
    data = extract_tiny(write_tsv(tmp_path / "c.tsv", rows), tmp_path / "data").out
    at = train(data, out=tmp_path / "run", features="tfidf", folds=2).out
    names = ("id", "fold", "y_pred")
    numbers: Any = {name: lambda t, name=name: t[name].astype(float) for name in names}
    file = as_of_another_tool(at, tmp_path / f"llm.{suffix}", **numbers)
    found = compare([at, file])
    assert found.row(file.name).scores["accuracy"] == found.row("run").scores["accuracy"]


def test_ids_and_labels_may_be_decomposed(tmp_path: Path) -> None:
    """As a Mac writes letters; TF-IDF knows no other letters either."""
    for form in ("NFC", "NFD"):
        texts = [f"{['좋은', '나쁜'][n % 2]} 영화 {n}" for n in range(40)]
        texts[::3] = [normalize(form, text) for text in texts[::3]]
        rows = [(f"글{n}", text, "좋싫"[n % 2]) for n, text in enumerate(texts)]
        data = extract_tiny(write_tsv(tmp_path / f"{form}.tsv", rows), tmp_path / "d" / form).out
        run = train(data, out=tmp_path / form, features="tfidf", folds=2)
    files = [tmp_path / form / "predictions.parquet" for form in ("NFC", "NFD")]
    assert files[0].read_bytes() == files[1].read_bytes()
    decomposed: Any = {n: lambda t, n=n: t[n].str.normalize("NFD") for n in ("id", "y_pred")}
    file = as_of_another_tool(tmp_path / "NFC", tmp_path / "llm.csv", **decomposed)
    found = compare([run.out, file])
    assert found.row(file.name).scores["accuracy"] == found.row("NFD").scores["accuracy"]
    file.write_bytes(b"id,y_pred\n" + "글0,좋\n".encode("cp949"))
    with pytest.raises(UsageError, match="no id: invalid_encoding, utf-8"):
        compare([run.out, file])


def test_records_of_another_tool_are_those_of_the_folds_and_have_one_id(tmp_path: Path) -> None:
    own = TestSetContent(source=("t",), rejected=0, seen_texts=0)
    (path,), _, _ = random_runs(tmp_path, ["a"], n=60, test=10, test_set=own)
    file, llm = path / "predictions.parquet", tmp_path / "llm.csv"
    frame = pq.read_table(file).to_pandas()
    write_frame(frame[frame["fold"] != "test"], llm)
    found = compare([path, llm])
    assert found.row(llm.name).test == {}
    assert found.row("a").test.keys() == found.row("a").scores.keys()
    frame.replace({"id": {"id15": "id10"}}).to_parquet(file)
    seal(path)
    with pytest.raises(UsageError, match="of the runs stand twice, such as 'id10'"):
        compare([path, llm])


def test_decisions_and_probabilities_do_alone(folder: Path, store: Any, notes: list[str]) -> None:
    """Whether they are here or at an address."""
    at = folder / "tfidf"
    decided = as_of_another_tool(at, folder / "llm.csv", leave_out="proba_0 proba_1 fold")
    likely = as_of_another_tool(at, folder / "p.csv", leave_out="y_pred")
    store.put(str(decided), "bucket/llm.csv")
    found = compare([at, "s3://bucket/llm.csv", likely])
    accuracy = {row.name: row.scores["accuracy"].value for row in found.rows}
    assert accuracy["tfidf"] == accuracy["llm.csv"] == accuracy["p.csv"]
    assert found.row("llm.csv").scores["brier"].value == pytest.approx(1 - accuracy["tfidf"])
    said = " ".join(notes)
    assert "llm.csv has no probabilities" in said
    assert "llm.csv has no column fold" in said
    assert "p.csv" not in said


NOT_COMPARED: dict[str, Any] = {
    "for 4 of .* ids are '": ("", {"id": lambda t: t["id"].where(t.index > 3, "x" + t["id"])}),
    "4 of its .* rows are damaged or have": ("", {"id": lambda t: t["id"].where(t.index > 3)}),
    r"ids? of .* stand twice": ("", {"id": "7"}),
    r"another fold .*, such as '0' instead of '1'": ("", {"fold": "0"}),
    r"\d+ labels .*'yes'": ("", {"y_pred": "yes"}),
    r"y_pred, proba_ of each .*proba_0, proba_1\), or both; .* mean 'Y_pred'": (
        "proba_0 proba_1 y_pred",
        {"Y_pred": 0},
    ),
    r"each class and no other \(proba_0, proba_1\).*; it has .*'y_pred', 'proba_1'": (
        "proba_0",
        {},
    ),
    r"each class and no other \(proba_0, proba_1\), .*it has .*'proba_yes'": (
        "y_pred",
        {"proba_yes": 0.5},
    ),
    "invalid probabilities.* with the sum 1": ("", {"proba_0": 0.7, "proba_1": 0.7}),
    "values of proba_0 are not numbers, such as 'much'": ("", {"proba_0": "much"}),
    "expected the columns id, and .*mean 'ID'": ("id", {"ID": "7"}),
}


@pytest.mark.parametrize("message", NOT_COMPARED)
def test_predictions_that_cannot_be_compared(folder: Path, tmp_path: Path, message: str) -> None:
    leave_out, changes = NOT_COMPARED[message]
    at = folder / "tfidf"
    file = as_of_another_tool(at, tmp_path / "llm.csv", leave_out=leave_out, **changes)
    with pytest.raises(EmbedkitError, match=message):
        compare([at, file])
    with pytest.raises(UsageError, match="give a run too"):
        compare([file])
