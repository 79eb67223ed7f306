"""Nothing that a file holds or is called controls the terminal that a command prints on."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from embedkit import display
from embedkit.cli import text as text_
from embedkit.cli.main import cli
from embedkit.cli.text import say_finding, table_text, wrapped
from tests.processes import command
from tests.store_fixtures import quick, tiny_model  # noqa: F401 - a fixture

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\u2066\x7f"
"""A title, a cleared screen, a C1 sequence, an override, an isolate, and a deletion."""

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

WORDS = ["the", "movie", "was", "good", "bad", "bus", "home", "rain", "a", "i"]


def write_corpus(folder: Path) -> Path:
    """JSON lines with all of it in the file's name, ids, texts, labels, and a column's name."""
    random = np.random.default_rng(0)
    file = folder / f"c{EVIL}.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        for i in range(40):
            text = " ".join(random.choice(WORDS, 5)) + f" {EVIL} bus"
            record = {"id": f"{i}{EVIL}", "document": text, "label": f"l{i % 2}{EVIL}",
                      f"kept{EVIL}": EVIL}  # fmt: skip
            lines.write(json.dumps(record, ensure_ascii=False) + "\n")
    return file


def commands(corpus: Path) -> dict[str, list[str]]:
    """Command lines, each with what is expected to be in its output."""
    kept, made, run = f"kept{EVIL}", f"v{EVIL}", f"run{EVIL}"
    model = ["--model", str(tiny_model())]
    texts = ["--text", "document", "--label", "label"]
    fit = ["--folds", "2", "--estimator", "knn"]
    recipe = f"[extract]\ncorpus = {json.dumps(corpus.name)}\ntext = 'document'\n"
    corpus.with_name("recipe.toml").write_text(recipe, "utf-8")
    return {
        "extract": [corpus.name, *texts, "--keep", kept, "--words", "-v", "--out", made, *model],
        "info": [made], "verify": [made], "repair": [made], "tokenize": [EVIL, *model],
        "split": [made, "--folds", "2", "--out", f"s{EVIL}.parquet"],
        "train": [made, *fit, "--out", run], "probe": [made, *fit, "--out", f"probe{EVIL}"],
        "finetune": [corpus.name, *texts, *model, "--folds", "2", "--epochs", "1",
                     "--validation", "0", "--out", f"tuned{EVIL}"],
        "predict": [run, made], "export": [f"tuned{EVIL}", "--fold", "0", "--out", f"export{EVIL}"],
        "compare": [run, f"tuned{EVIL}"], "run": ["recipe.toml", "--dry-run"],
        "search": [made, "bus", "-k", "3"], "index": [made, "--kind", "flat"],
        "similarity": [corpus.name, "--text", "document", "--text-pair", "document", *model],
        "words": [made, "bus"], "explore": [made, "--out", f"page{EVIL}.html"],
    }  # fmt: skip


@pytest.mark.figures
@pytest.mark.usefixtures("quick")
def test_no_command_prints_what_controls_a_terminal(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path)
    lines = commands(corpus)
    assert set(cli.commands) - set(lines) == {"fetch", "doctor"}  # the hub's, and the machine's
    lines |= {f"{name} --json": [*lines[name], "--json"] for name in
              ("info", "predict", "compare", "search", "words")}  # fmt: skip
    lines["search --tsv"] = [*lines["search"], "--tsv"]
    lines["info RUN"] = [f"run{EVIL}"]
    lines["info --wrong"] = [f"--wrong{EVIL}"]
    lines["info NONE"] = [f"none{EVIL}"]
    for name, arguments in lines.items():
        done = command(name.split()[0], *arguments, cwd=tmp_path)
        wanted = 2 if name in ("info --wrong", "info NONE") else 0
        assert done.returncode == wanted, (name, done.stderr)
        assert "evil" in done.stdout + done.stderr, name
        found = CONTROLS.search(done.stdout + done.stderr)
        assert found is None, (name, shlex.quote(found.string[found.start() - 60 : found.end()]))
        if name.endswith("--json"):
            parts = done.stdout.splitlines() if name == "predict --json" else [done.stdout]
            assert all(EVIL in strings(json.loads(part)) for part in parts), name


def strings(value: object) -> str:
    """All strings of parsed JSON in one."""
    if isinstance(value, dict):
        return strings([*value, *value.values()])
    return " ".join(map(strings, value)) if isinstance(value, list) else str(value)


def test_json_holds_the_same_text() -> None:
    """What is escaped for the terminal is the same string to who parses it."""
    value = {"a": EVIL, "b": ["가 👨\u200d👩 \U000e0041\ud800", 1.5, None]}
    line = display.json_line(value)
    assert CONTROLS.search(line) is None
    assert "가 👨\u200d👩 \\udb40\\udc41\\ud800" in line
    assert json.loads(line) == json.loads(json.dumps(value))


# width and emphasis


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Standard output as a terminal of so many columns."""

    def of(width: int) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.delenv("NO_COLOR", raising=False)

    return of


ROWS = [
    {"method": name, "accuracy, %": "75.6 (73.0 to 78.2)", "f1": "0.7 ±0.02", "brier": "–",
     "log_loss": "0.505 ±0.033", "p": "< 0.001"}
    for name in ("a", "a run with a rather long name, 긴 이름")
]  # fmt: skip


@pytest.mark.parametrize("width", [50, 60, 80, 100, 140])
def test_tables_fit_the_terminal(terminal: Callable[[int], None], width: int) -> None:
    terminal(width)
    shown = table_text(ROWS)
    assert max(map(display.columns, shown.splitlines())) <= width
    head = shown.splitlines()[0].split("  ")
    assert "accuracy, %" in shown
    missing = [name for name in ROWS[0] if name not in {cell.strip() for cell in head}]
    assert missing == list(ROWS[0])[len(ROWS[0]) - len(missing) :]  # from the right
    assert bool(missing) == (width < 100)
    if missing:
        assert f"{len(missing)} more column" in shown
        assert "; ".join(missing) in " ".join(shown.split())


def test_all_columns_are_shown_where_they_are_asked_for(
    terminal: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = table_text(ROWS)
    assert "more column" not in piped
    terminal(60)
    monkeypatch.setattr(text_, "asked_for_all", lambda: True)
    shown = table_text(ROWS)
    assert "more column" not in shown
    assert all(cell in shown for row in ROWS for cell in list(row.values())[1:])


def test_long_texts_are_wrapped_by_their_width() -> None:
    lines = wrapped("배를 타고 여행을 간다 a b", 10, first="> ", others="  ")
    assert lines == ["> 배를", "  타고", "  여행을", "  간다 a b"]
    assert " ".join(line[2:] for line in lines) == "배를 타고 여행을 간다 a b"
    assert wrapped("unbreakable", 4) == ["unbreakable"]


def test_the_finding_is_bold_and_a_warning_yellow(
    terminal: Callable[[int], None], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    said = f"what was found {EVIL} in words\nwarning: worse\nmore"
    say_finding(said)
    assert "\x1b" not in capsys.readouterr().out
    terminal(80)
    say_finding(said)
    first, warning, more = capsys.readouterr().out.splitlines()
    assert first == f"\x1b[1m{display.visible(said.splitlines()[0], keep=display.HARMLESS)}\x1b[0m"
    assert warning == "\x1b[33m\x1b[1mwarning: worse\x1b[0m"
    assert more == "more"
    monkeypatch.setenv("NO_COLOR", "1")
    say_finding(said)
    assert "\x1b" not in capsys.readouterr().out
