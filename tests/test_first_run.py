"""``make run``: the stages it runs, and the lines it ends with."""

from __future__ import annotations

import importlib
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
from embedkit.runs.run import Cost, ReportedScore
from tests.processes import ROOT, command
from tests.run_fixtures import write_fake_run

ACCURACIES = {
    "quickstart": {"frozen": 0.66, "tfidf": 0.26, "finetuned": 0.67, "layers": 0.65},
    "two_languages": {"frozen": 0.57, "tfidf": 0.11},
}


@pytest.fixture
def first_look(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "pipelines")
    return importlib.import_module("first_look")


@pytest.mark.parametrize("model", [MULTILINGUAL, DEFAULT_MODEL])
def test_stages_and_summary(
    tmp_path: Path,
    first_look: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    model: str,
) -> None:
    """The runs exist already; the best one costs more than another, which may be worse."""
    y, folds = np.arange(100) % 2, [i // 2 % 3 for i in range(100)]
    for recipe, runs in ACCURACIES.items():
        for name, value in runs.items():
            answer = np.where(np.arange(100) < 100 * value, y, 1 - y)
            cost = Cost(fit_seconds=1.0 + (name == "finetuned"), predict_seconds=0.1)
            about: dict[str, Any] = {"settings": {"epochs": 2}, "cost": cost}
            if name == "layers":
                about |= {"probe": {"mean_0": 1}, "cost": replace(cost, fit_seconds=9.0)}
            elif recipe == "two_languages":
                score = {"accuracy": ReportedScore(value, value, value, 0.08)}
                about |= {"scores": {"cross_validation": score, "test": score}}
            proba = np.where(np.eye(2)[answer] > 0, 0.8, 0.2)
            write_fake_run(tmp_path / recipe / "runs" / name, y.astype(str), proba, folds, **about)

    def find_checkpoint(_: str) -> None:
        if model == DEFAULT_MODEL:
            raise ModelError("model='multilingual': not available.")

    ran: list[str] = []

    def run(stages: Any, *_: Any, **__: Any) -> list[dict[str, Any]]:
        ran.extend(stage.name for stage in stages)
        return [{"status": "done", "exit_code": 0}]

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(first_look, "find_checkpoint", find_checkpoint)
    monkeypatch.setattr(first_look, "run_recipe", run)
    assert first_look.main(tmp_path) == 0
    assert ("extract.asked" in ran) == (model == MULTILINGUAL)
    printed = capsys.readouterr().out
    assert all(re.search(rf"{share} %  \(", printed) for share in (66, 26, 67))
    assert re.search(r"6[78] %.*take this", printed)
    assert ("57 %, TF-IDF 11 %" in printed) == (model == MULTILINGUAL)
    tries = [line for line in printed.splitlines() if "  # " in line]
    assert len(tries) == 3
    for line in tries:
        _, name, *arguments = shlex.split(line, comments=True)
        cli.commands[name].make_context(name, arguments).close()
    failed = {"status": "failed", "exit_code": 5}
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
            assert " search " not in line or "app_problem" in done.stdout
    assert (tmp_path / "quickstart/report.html").is_file()
