"""What ``make run`` runs, and the five lines it ends with."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from embedkit.choices import DEFAULT_MODEL, MULTILINGUAL
from embedkit.cli.main import cli
from embedkit.errors import ModelError
from embedkit.experiments.pipeline import shell_lines
from embedkit.experiments.recipe import read_recipe
from embedkit.runs.content import ReportedScore
from tests.processes import ROOT
from tests.run_fixtures import write_fake_run


@pytest.fixture
def first_look() -> ModuleType:
    spec = importlib.util.spec_from_file_location("first_look", ROOT / "pipelines/first_look.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def score(value: float) -> dict[str, ReportedScore]:
    return {"accuracy": ReportedScore(value, value - 0.03, value + 0.04, 0.08)}


@pytest.fixture
def made(
    tmp_path: Path, first_look: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, list[str]]]:
    """Runs with scores take the place of the recipes; which were asked for, with which settings."""
    accuracies = {"quickstart": {"frozen": 0.66, "tfidf": 0.26, "finetuned": 0.61},
                  "two_languages": {"frozen": 0.57, "tfidf": 0.11, "english": 0.08}}  # fmt: skip
    for recipe, runs in accuracies.items():
        for name, value in runs.items():
            scores = {"cross_validation": score(value), "test": score(value + 0.001)}
            write_fake_run(tmp_path / recipe / "runs" / name, ["0", "1"], np.eye(2), [0, 1],
                           scores=scores, settings={"epochs": 2})  # fmt: skip
    asked: list[tuple[str, list[str]]] = []

    def run_recipe(name: str, outputs: Path, settings: list[str]) -> int:
        asked.append((name, list(settings)))
        return 0

    monkeypatch.setattr(first_look, "run_recipe", run_recipe)
    return asked


def test_with_the_multilingual_model(
    tmp_path: Path, first_look: ModuleType, made: list[tuple[str, list[str]]],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(first_look, "find_checkpoint", lambda _: None)
    assert first_look.main(tmp_path) == 0
    assert made == [("two_languages", []), ("quickstart", [])]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["found", "page", "try", "try", "try"]
    for value in ("66% (63 to 70)", "26% (", "61% (", "57% (", "11% (", "8% ("):
        assert value in lines[0]


def test_what_to_try_next_can_be_pasted(
    tmp_path: Path, first_look: ModuleType, made: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for model in (MULTILINGUAL, DEFAULT_MODEL):
        tried = [
            shlex.split(line, comments=True)[1:] for line in first_look.summary(tmp_path, model)[2:]
        ]
        assert [words[1] for words in tried] == ["search", "predict", "extract"]
        for program, name, *typed in tried:
            assert (ROOT / program) == Path(sys.executable).with_name("embedkit")
            cli.commands[name].make_context(name, list(typed))  # every option is one of it
        assert tried[1][2] == str(tmp_path / "quickstart/runs/frozen")
        assert Path(tried[2][2]).is_file()


def test_without_it_the_english_half(
    tmp_path: Path, first_look: ModuleType, made: list[tuple[str, list[str]]],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def refused(_: str) -> None:
        raise ModelError("model='multilingual': cannot be had. Install it.")

    monkeypatch.setattr(first_look, "find_checkpoint", refused)
    assert first_look.main(tmp_path) == 0
    ((name, settings),) = made
    assert name == "quickstart"
    assert {one.partition("=")[0] for one in settings} == {
        "model", "corpus", "layers", "finetune.freeze-layers"
    }  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("Install it.")
    assert "English half" in lines[1]
    assert len(lines) == 7
    assert "Korean" not in lines[2]


@pytest.mark.parametrize("model", [MULTILINGUAL, DEFAULT_MODEL])
def test_the_model_has_the_layers_that_the_recipe_names(
    tmp_path: Path, first_look: ModuleType, made: list[tuple[str, list[str]]], model: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def found(_: str) -> None:
        if model == DEFAULT_MODEL:
            raise ModelError("not here")

    monkeypatch.setattr(first_look, "find_checkpoint", found)
    first_look.main(tmp_path)
    recipe, settings = ROOT / "pipelines/quickstart.toml", made[-1][1]
    words = " ".join(shell_lines(read_recipe(recipe, cli.commands, settings))).split()
    n_layers = {MULTILINGUAL: 12, DEFAULT_MODEL: 6}[model]
    frozen = int(words[words.index("--freeze-layers") + 1])
    assert 0 < frozen < n_layers
    layers = words[words.index("--layers") + 1].strip("'").split(",")
    assert layers == ["all"] or max(map(int, layers)) <= n_layers


def test_a_failure_ends_it(
    tmp_path: Path, first_look: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_look, "find_checkpoint", lambda _: None)
    monkeypatch.setattr(first_look, "run_recipe", lambda *_: 5)
    assert first_look.main(tmp_path) == 5
