"""Commands that take a while report how far they are."""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

import embedkit
from embedkit.cli import command as command_module
from embedkit.cli import learn, options
from embedkit.cli.main import cli
from embedkit.cli.options import progress_bar
from embedkit.cli.text import say
from embedkit.dataset import extract as estimate_module
from embedkit.types import Progress, ProgressCallback
from tests.finetune_fixtures import corpus_of
from tests.processes import command
from tests.store_fixtures import extract_tiny, tiny_model


@pytest.fixture(scope="module")
def place(common: Path) -> Path:
    corpus = corpus_of(common / "c.tsv")
    extract_tiny(corpus, common / "data", device="cpu", shard_rows=20)
    embedkit.train(common / "data", out=common / "run", folds=2, tune=False)
    return common


@pytest.mark.parametrize(
    ("module", "typed", "stages"),
    [
        (learn, "predict run c.tsv", {"predicting": (100, 100)}),
        (learn, "predict run data", {"predicting": (60, 60)}),
        (command_module, "compare run --report page.html", {"scoring": (2, 2)}),
        (
            command_module,
            "extract c.tsv --dry-run --out new",
            {"reading": (100, 100), "timing the model": (0, None)},
        ),
    ],
)
def test_progress_is_reported(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    typed: str,
    stages: dict[str, tuple[int, int | None]],
) -> None:
    seen: list[Progress] = []

    @contextmanager
    def collected() -> Iterator[ProgressCallback]:
        yield seen.append

    monkeypatch.setattr(module, "progress_bar", collected)
    monkeypatch.setattr(estimate_module, "_LEAST_SECONDS", 0.01)
    monkeypatch.setattr(estimate_module, "_REPORTED", 1)
    model = ["--model", str(tiny_model())] if typed.startswith("extract") else []
    done = command(*typed.split(), *model, cwd=place)
    assert done.returncode == 0, done.stderr
    last = {state.stage: (state.done, state.total) for state in seen}
    assert {name: last[name] for name in stages} == stages


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_note_stands_on_a_line_of_its_own_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = _Terminal()
    with click.Context(cli.commands["extract"]) as context, monkeypatch.context() as patch:
        context.params = {"quiet": False, "progress": None}
        patch.setattr(sys, "stderr", terminal)
        patch.setattr(options, "_PATIENCE", 0)
        with progress_bar() as report:
            report(Progress("encoding", 1, 4, "tokens"))
            time.sleep(0.2)
            say("note: [a] :smile: column", err=True)
            report(Progress("encoding", 2, 4, "tokens"))
    shown = re.sub(r"\x1b\[[?\d;]*[a-zA-JL-Z]", "", terminal.getvalue())  # all but "clear the line"
    assert "encoding" in shown
    assert "\r\x1b[2Knote: [a] :smile: column\n" in shown
