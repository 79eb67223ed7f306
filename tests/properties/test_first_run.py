"""``make run``: the stages it runs, and the lines it ends with."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from embedkit.choices import DEFAULT_MODEL, MULTILINGUAL
from embedkit.errors import ModelError
from embedkit.runs.folder import read_run
from embedkit.runs.run import FinetuneRun, TrainRun
from tests.processes import ROOT, command


@pytest.fixture
def first_look(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "pipelines")
    return importlib.import_module("first_look")


@pytest.mark.parametrize("model", [MULTILINGUAL, DEFAULT_MODEL])
def test_stages_of_the_models_that_there_are(
    tmp_path: Path, first_look: ModuleType, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """Also how the first one ends that fails."""
    ran: list[str] = []

    def find_checkpoint(_: str) -> None:
        if model == DEFAULT_MODEL:
            raise ModelError("model='multilingual': not available.")

    def run(stages: Any, *_: Any, **__: Any) -> list[dict[str, Any]]:
        ran.extend(stage.name for stage in stages)
        return [{"status": "failed", "exit_code": 5}]

    monkeypatch.setattr(first_look, "find_checkpoint", find_checkpoint)
    monkeypatch.setattr(first_look, "run_recipe", run)
    assert first_look.main(tmp_path) == 5
    assert ("extract.asked" in ran) == (model == MULTILINGUAL)


@pytest.mark.slow
def test_the_first_run(tmp_path: Path, first_look: ModuleType, capfd: Any) -> None:
    """All stages, a line each, the table, and the three commands as they are printed."""
    assert first_look.main(tmp_path) == 0
    printed = capfd.readouterr().out
    assert "take this" in printed
    stages, _, rest = printed.partition("\n\n")
    assert all(re.fullmatch(r"\[\d+/\d+\] [\w.]+ … .*", line) for line in stages.splitlines())
    for line in rest.splitlines():
        if "  # " in line:
            done = command(*shlex.split(line, comments=True)[1:], cwd=Path.cwd())
            assert done.returncode == 0, (line, done.stderr)
            assert " search " not in line or "app_problem" in done.stdout
    assert (tmp_path / "quickstart/report.html").is_file()
    # the rival is one: trained to its end, and about as good as the frozen vectors
    runs = tmp_path / "quickstart/runs"
    tuned, frozen = read_run(runs / "finetuned"), read_run(runs / "frozen")
    assert isinstance(tuned, FinetuneRun)
    assert isinstance(frozen, TrainRun)
    assert tuned.is_trained
    scores = [run.scores["cross_validation"]["accuracy"] for run in (tuned, frozen)]
    assert scores[0].high > scores[1].value
