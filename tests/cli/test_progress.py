"""Commands that take a while report how far they are."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click
import pytest

import embedkit
from embedkit import types
from embedkit.cli import command as command_module
from embedkit.cli import learn
from embedkit.cli.main import cli
from embedkit.cli.options import progress_bar
from embedkit.cli.text import say
from embedkit.dataset import extract as estimate_module
from embedkit.types import Progress, ProgressCallback, no_progress
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
    monkeypatch.setattr("embedkit.corpus.records._REPORTED", 1)
    model = ["--model", str(tiny_model())] if typed.startswith("extract") else []
    done = command(*typed.split(), *model, cwd=place)
    assert done.returncode == 0, done.stderr
    last = {state.stage: (state.done, state.total) for state in seen}
    assert {name: last[name] for name in stages} == stages


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_note_takes_the_place_of_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    with click.Context(cli.commands["extract"]) as context:
        context.params = {"quiet": False, "progress": None}
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(types, "_PATIENCE", 0)
        monkeypatch.setattr(types, "_PAUSE", 0)
        with progress_bar() as report:
            report(Progress("encoding", 1, 4, "tokens"))
            say("note: [a] :smile: column", err=True)
            report(Progress("encoding", 2, 4, "tokens"))
    shown = terminal.getvalue()
    assert "encoding: 2 of 4 tokens, " in shown
    assert "\r \r" in re.sub(" +", " ", shown.partition("note: [a] :smile: column\n")[0])


@pytest.mark.parametrize("watched", [True, False])
def test_a_call_in_a_script_reports_on_one_line_of_a_terminal(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    terminal = _Terminal() if watched else io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(types, "_PATIENCE", 0)
    monkeypatch.setattr(types, "_PAUSE", 0)
    train = partial(embedkit.train, place / "data", out=tmp_path / "run", folds=2, tune=False)
    train()
    shown = terminal.getvalue().split("\r")
    assert bool(len(shown) > 3) is watched
    if watched:
        assert any(re.fullmatch(r"fitting: 2 of 3 fits, .* left *", line) for line in shown)
        assert not shown[-2].strip()  # the line is gone
        assert "\n" not in terminal.getvalue()
    before = terminal.getvalue()
    train(overwrite=True, progress=no_progress)
    assert terminal.getvalue() == before


def test_the_time_left_follows_work_that_becomes_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows of a triangle each takes a second less: their mean says much more than is left."""
    clock, terminal = [0.0], _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(types, "_PATIENCE", 0)
    monkeypatch.setattr("embedkit.types.time.monotonic", lambda: clock[0])
    with types.reported() as report:
        report(Progress("comparing", 0, 20, "rows"))
        for row in range(1, 17):
            clock[0] += 20 - row + 1
            report(Progress("comparing", row, 20, "rows"))
    last = [line for line in terminal.getvalue().split("\r") if line.strip()][-1].strip()
    assert last == "comparing: 16 of 20 rows, 34 s left"  # in truth ten; by the mean of all 50
