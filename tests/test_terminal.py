"""Nothing that a file holds or is called controls the terminal that a command prints on."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from embedkit import display
from embedkit.cli.main import cli
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
