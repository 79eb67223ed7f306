"""Comparison of runs that saw different input."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from embedkit.cli.learn import comparison_text
from embedkit.comparison.recommendation import recommend
from embedkit.comparison.report import write_report
from embedkit.comparison.table import compare
from embedkit.runs.split import split
from tests.finetune_fixtures import corpus_of, tuned
from tests.processes import command
from tests.run_fixtures import train
from tests.store_fixtures import extract_tiny, tiny_model

SAME: dict[str, Any] = {"prefix": "query: ", "max_length": 12, "on_long": "window", "stride": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on one split: TF-IDF, frozen vectors, and fine-tuned with the same and other input."""
    at = tmp_path_factory.mktemp("inputs")
    corpus = corpus_of(at / "corpus.tsv")
    file = at / "split.parquet"
    split(corpus, out=file, folds=2)
    extract_tiny(corpus, at / "data", precision="fp32", **SAME)
    for features in ("vectors", "tfidf"):
        train(at / "data", out=at / features, split=file, features=features)
    tuned(corpus, at / "same", split=file, epochs=1, **SAME)
    other = tiny_model(seed=2)
    tuned(corpus, at / "other", split=file, epochs=1, model=str(other))
    return at


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
    write_report(found, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text("utf-8").replace("<wbr>", "")
    for text in (page, comparison_text(found)):
        assert "different input: max_length is 12 (vectors, same); 24 (other)." in text


@pytest.mark.parametrize("made", [True, False], ids=["split file", "own split"])
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
        assert command("train", *map(str, (dataset, *how, *out)), cwd=at).returncode == 0
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
