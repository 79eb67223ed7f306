"""``make run``: the stages it runs, and the lines it ends with."""

from __future__ import annotations

import importlib.util
import re
import shlex
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from embedkit.choices import DEFAULT_MODEL, MULTILINGUAL
from embedkit.cli.main import cli
from embedkit.errors import ModelError
from embedkit.pipeline import StageResult
from embedkit.runs.run import ReportedScore
from tests.processes import ROOT, command
from tests.run_fixtures import write_fake_run

ACCURACIES = {
    "quickstart": {"frozen": 0.66, "tfidf": 0.26, "finetuned": 0.61},
    "two_languages": {"frozen": 0.57, "tfidf": 0.11},
}


@pytest.fixture
def first_look() -> ModuleType:
    spec = importlib.util.spec_from_file_location("first_look", ROOT / "pipelines/first_look.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("model", [MULTILINGUAL, DEFAULT_MODEL])
def test_stages_and_summary(
    tmp_path: Path,
    first_look: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    model: str,
) -> None:
    """The runs exist already, with scores."""
    for recipe, runs in ACCURACIES.items():
        for name, value in runs.items():
            score = {"accuracy": ReportedScore(value, value - 0.03, value + 0.04, 0.08)}
            path = tmp_path / recipe / "runs" / name
            scores = {"cross_validation": score, "test": score}
            write_fake_run(
                path, ["0", "1"], np.eye(2), [0, 1], scores=scores, settings={"epochs": 2}
            )

    def find_checkpoint(_: str) -> None:
        if model == DEFAULT_MODEL:
            raise ModelError("model='multilingual': not available.")

    ran: list[str] = []

    def run(stages: Any, **_: Any) -> list[StageResult]:
        ran.extend(stage.name for stage in stages)
        return [StageResult("compare", "done", 0, 1.0, ())]

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(first_look, "find_checkpoint", find_checkpoint)
    monkeypatch.setattr(first_look, "run_recipe", run)
    assert first_look.main(tmp_path) == 0
    assert ("extract.asked" in ran) == (model == MULTILINGUAL)
    printed = capsys.readouterr().out
    shown = ACCURACIES["quickstart"].values()
    assert all(re.search(rf"{value:.0%}  \(", printed) for value in shown)
    assert re.search(r"66%.*take this", printed)
    assert ("57%, TF-IDF 11%" in printed) == (model == MULTILINGUAL)
    tries = [line for line in printed.splitlines() if "  # " in line]
    assert len(tries) == 3
    for line in tries:
        _, name, *arguments = shlex.split(line, comments=True)
        cli.commands[name].make_context(name, arguments).close()
    failed = replace(StageResult("compare", "failed", 5, 1.0, ()))
    monkeypatch.setattr(first_look, "run_recipe", lambda *_, **__: [failed])
    assert first_look.main(tmp_path) == 5


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
    assert (tmp_path / "quickstart/report.html").is_file()
