"""What reaches a terminal: nothing that controls it, tables of its width, a line of progress."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest

import embedkit
from embedkit import display, types
from embedkit.cli import command as command_module
from embedkit.cli import learn
from embedkit.cli.main import cli
from embedkit.cli.options import progress_bar
from embedkit.cli.text import fitted, say, table_text
from embedkit.dataset import extract as estimate_module
from embedkit.types import Progress, no_progress
from tests.finetune_fixtures import corpus_of
from tests.processes import ROOT, command, ends_with, succeed
from tests.store_fixtures import extract_tiny, tiny_model

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\u2066\x7f"
"""A title, a cleared screen, a C1 sequence, an override, an isolate, and a deletion."""

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

CORPUS, DATA, RUN, TUNED = f"c{EVIL}.jsonl", f"v{EVIL}", f"run{EVIL}", f"tuned{EVIL}"
MODEL = ("--model", "{model}")
TEXTS = ("--text", "document", "--label", "label")
COMMANDS: dict[str, tuple[str, ...]] = {
    "extract": (CORPUS, *TEXTS, "--keep", f"kept{EVIL}", "--words", "--out", DATA, *MODEL),
    "info": (DATA,),
    "verify": (DATA,),
    "tokenize": (EVIL, *MODEL),
    "split": (DATA, "--folds", "2", "--out", f"s{EVIL}.parquet"),
    "train": (DATA, "--folds", "2", "--estimator", "knn", "--out", RUN),
    "probe": (DATA, "--out", f"probe{EVIL}"),
    "finetune": (CORPUS, *TEXTS, *MODEL, "--folds", "2", "--epochs", "1", "--out", TUNED),
    "predict": (RUN, DATA),
    "export": (TUNED, "--fold", "0", "--out", f"export{EVIL}"),
    "compare": (RUN, TUNED),
    "run": ("recipe.toml", "--dry-run"),
    "search": (DATA, "bus", "-k", "3"),
    "index": (DATA, "--kind", "flat"),
    "similarity": (CORPUS, "--text", "document", "--text-pair", "document", *MODEL),
    "diff": (DATA, f"moved{EVIL}.npy"),
    "words": (DATA, "bus"),
    "explore": (DATA, "--out", f"page{EVIL}.html"),
}
"""Arguments of each command, in the order in which they run; ``{model}`` is the tiny one."""


@pytest.mark.usefixtures("quick")
def test_no_command_prints_what_controls_a_terminal(tmp_path: Path) -> None:
    with (tmp_path / CORPUS).open("w", encoding="utf-8") as lines:
        for i in range(40):
            text = f"the movie was {('bad', 'good')[i % 2]} {i % 7} {EVIL} bus"
            record = {"id": f"{i}{EVIL}", "document": text, "label": f"l{i % 2}{EVIL}"}
            lines.write(json.dumps(record | {f"kept{EVIL}": EVIL}, ensure_ascii=False) + "\n")
    np.save(tmp_path / f"moved{EVIL}.npy", np.random.default_rng(0).normal(size=(40, 16)))
    recipe = f"[extract]\ncorpus = {json.dumps(CORPUS)}\ntext = 'document'\nout = 'v'\n"
    (tmp_path / "recipe.toml").write_text(recipe, "utf-8")
    assert set(cli.commands) - set(COMMANDS) <= {"fetch", "doctor"}
    lines_typed = [(name, *typed) for name, typed in COMMANDS.items()]
    with_json = ("info", "verify", "tokenize", "predict", "compare", "search", "words")
    lines_typed += [(name, *COMMANDS[name], "--json") for name in with_json]
    lines_typed += [("info", RUN), ("info", f"--wrong{EVIL}"), ("info", f"none{EVIL}")]
    for typed in lines_typed:
        done = command(*(a.format(model=tiny_model()) for a in typed), cwd=tmp_path)
        wrong = typed[1].startswith(("--wrong", "none"))
        assert done.returncode == (2 if wrong else 0), (typed, done.stderr)
        plain = typed[0] in ("verify", "tokenize") and typed[-1] == "--json"  # not the whole text
        assert plain or "evil" in done.stdout + done.stderr, typed
        assert CONTROLS.search(done.stdout + done.stderr) is None, typed
        if typed[-1] == "--json":
            parts = done.stdout.splitlines() if typed[0] == "predict" else [done.stdout]
            found = [strings(json.loads(part, parse_constant=pytest.fail)) for part in parts]
            assert plain or all(EVIL in text for text in found), typed


def strings(value: object) -> str:
    """All strings of parsed JSON in one."""
    if isinstance(value, dict):
        return strings([*value, *value.values()])
    return " ".join(map(strings, value)) if isinstance(value, list) else str(value)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Standard output as a terminal of so many columns."""

    def resize(width: int) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setenv("COLUMNS", str(width))

    return resize


@pytest.mark.parametrize("width", [50, 60, 80, 100, 140])
def test_tables_fit_the_terminal(terminal: Callable[[int], None], width: int) -> None:
    values = {"accuracy, %": "75.6 (73.0 to 78.2)", "f1": "0.7 ±0.02", "log_loss": "0.505 ±0.033"}
    values |= {"brier": "0.201 ±0.004", "p": "<\N{NO-BREAK SPACE}0.001"}
    names = ("a", "a run with a rather long name, 긴 이름")
    rows = [{"method": name, **values} for name in names]
    terminal(width)
    shown = table_text(rows)
    assert max(map(display.columns, shown.splitlines())) <= width
    assert all(name in shown for name in rows[0])
    tables = shown.count("method")
    assert (tables > 1) == (width < 100)
    assert len(shown.splitlines()) == 3 * tables


def test_long_lines_are_divided_at_words(terminal: Callable[[int], None]) -> None:
    terminal(12)
    assert fitted("배를 타고 여행을 간다 a b") == ["배를 타고", "  여행을", "  간다 a b"]
    assert fitted("score is 8.3 % (0.7 to 9)") == ["score is", "  8.3 %", "  (0.7 to 9)"]


def test_long_commands_can_be_pasted(terminal: Callable[[int], None]) -> None:
    terminal(40)
    typed = "embedkit train data --view mean_1 --where 'label = 1 or label = 2' --out run"
    lines = fitted(f"next: {typed}")
    assert len(lines) == 3
    assert all(display.columns(line) <= 40 for line in lines)
    pasted = "\n".join(lines).removeprefix("next: ").replace("\\\n", "")
    assert shlex.split(pasted) == shlex.split(typed)
    code = "open it: df = pandas.read_parquet('a folder/predictions.parquet')"
    assert fitted(code) == [code]


ANSWERS = {
    "train v --view mean_6 --out logreg": "accuracy",
    "train v --features tfidf --out tfidf": "accuracy",
    "probe v --out probe": "the last layer",
    "finetune data/reviews_en.tsv --epochs 1 --folds 2 --limit 80 --max-length 32": "accuracy",
    "compare logreg tfidf probe --report page.html": "(probe)",
    "info v": "suitable for search",
    "info logreg": "accuracy",
    "info probe": "the last layer",
    "info all-MiniLM-L6-v2": "BertModel, 6 layers",
    "words w bank": "6 uses of bank",
    'words bank --text "He robbed the bank." --text "A river bank."': "their cosine is",
    "doctor": "works here",
}
"""Commands, and what the first line of their output says."""


@pytest.mark.slow
def test_answers_come_first_and_fit_a_screen(tmp_path: Path) -> None:
    """At most 15 lines of 80 columns, also where nothing is a terminal."""
    (tmp_path / "data").symlink_to(ROOT / "data")
    reviews = "extract data/reviews_en.tsv --layers all --pooling cls,mean --out v"
    for line in (reviews, "extract data/homonyms.tsv --layers all --words --out w"):
        succeed(*line.split(), cwd=tmp_path)
    for line, answer in ANSWERS.items():
        done = ends_with(0, *shlex.split(line), cwd=tmp_path, columns=80)
        lines = done.stdout.splitlines()
        first = "".join(lines[:3]) if lines[1].startswith("  ") else lines[0]
        assert answer in " ".join(first.split()), (line, first)
        assert len(lines) <= 15, (line, lines)
        assert max(map(display.columns, (done.stdout + done.stderr).splitlines())) <= 80, line


# progress


@pytest.fixture(scope="module")
def place(common: Path) -> Path:
    extract_tiny(corpus_of(common / "c.tsv"), common / "data", device="cpu", shard_rows=20)
    embedkit.train(common / "data", out=common / "run", folds=2, tune=False)
    return common


PROGRESS: dict[str, Any] = {
    "predict run c.tsv": (learn, {"predicting": (100, 100)}),
    "predict run data": (learn, {"predicting": (60, 60)}),
    "compare run --report page.html": (command_module, {"scoring": (2, 2)}),
    "extract c.tsv --dry-run --out new": (
        command_module,
        {"reading": (100, 100), "timing the model": (0, None)},
    ),
}


@pytest.mark.parametrize("typed", PROGRESS)
def test_progress_is_reported(place: Path, monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    module, stages = PROGRESS[typed]
    seen: list[Progress] = []

    monkeypatch.setattr(module, "progress_bar", lambda: nullcontext(seen.append))
    monkeypatch.setattr(estimate_module, "_LEAST_SECONDS", 0.01)
    monkeypatch.setattr("embedkit.corpus.records._REPORTED", 1)
    model = ["--model", str(tiny_model())] if typed.startswith("extract") else []
    succeed(*typed.split(), *model, cwd=place)
    last = {state.stage: (state.done, state.total) for state in seen}
    assert {name: last[name] for name in stages} == stages


def standard_error(monkeypatch: pytest.MonkeyPatch, *, terminal: bool = True) -> io.StringIO:
    """Standard error from now on, which is told of progress at once."""
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(types, "_PATIENCE", 0)
    monkeypatch.setattr(types, "_PAUSE", 0)
    return stream


def test_a_note_takes_the_place_of_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = standard_error(monkeypatch)
    with click.Context(cli.commands["extract"]) as context:
        context.params = {"quiet": False, "progress": None}
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
    terminal = standard_error(monkeypatch, terminal=watched)
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


def test_a_log_that_can_only_write_gets_no_line_of_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for stream in (SimpleNamespace(write=print), None):
        monkeypatch.setattr(sys, "stderr", stream)
        with types.reported() as report:
            assert report is no_progress


def test_the_time_left_follows_work_that_becomes_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows of a triangle each takes a second less: their mean says much more than is left."""
    clock, terminal = [0.0], standard_error(monkeypatch)
    monkeypatch.setattr("embedkit.types.time.monotonic", lambda: clock[0])
    with types.reported() as report:
        report(Progress("comparing", 0, 20, "rows"))
        for row in range(1, 17):
            clock[0] += 20 - row + 1
            report(Progress("comparing", row, 20, "rows"))
    last = [line for line in terminal.getvalue().split("\r") if line.strip()][-1].strip()
    assert last == "comparing: 16 of 20 rows, 34 s left"  # in truth ten; by the mean of all 50
