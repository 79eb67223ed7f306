"""The command line: exit codes, one-line messages, what is printed where."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from embedkit import __version__, display
from embedkit.cli.main import cli
from embedkit.dataset.extract import estimate, run_plan
from embedkit.dataset.planning import plan_extract
from embedkit.dataset.settings import ExtractOptions
from tests.models import slow
from tests.processes import EMBEDKIT, ROOT, command, completed, ends_with, invoke, program, succeed
from tests.run_fixtures import train
from tests.store_fixtures import N_ACCEPTED, ROWS, manifest_of, tiny_model, tree, write_tsv


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None) -> Path:
    """A working folder with corpus.tsv (three rejects) and clean.tsv (none)."""
    write_tsv(tmp_path / "corpus.tsv")
    write_tsv(tmp_path / "clean.tsv", [row for row in ROWS if row[1].strip()])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("embedkit.dataset.extract._LEAST_SECONDS", 0.01)
    monkeypatch.setattr("embedkit.dataset.planning._shard_rows", lambda *_: 3)
    return tmp_path


def extract(*more: str) -> list[str]:
    return ["extract", "corpus.tsv", "--model", str(tiny_model()), *more]


# Exit codes and messages


def test_done_and_done_with_rejects(here: Path) -> None:
    model = ["--model", str(tiny_model())]
    assert command("extract", "clean.tsv", *model, cwd=here).returncode == 0
    for _ in range(2):
        done = ends_with(3, *extract(), cwd=here)
        assert re.search(r"\b13 = 10 .* 3 rejected \(empty_text 3\)", done.stdout)
        assert "rejects.jsonl" in done.stdout


BUSY = """
import sys, threading, time
from embedkit.cli import main

def call(*_, **__):
    threading.Thread(target=time.sleep, args=(600,)).start()
    raise KeyboardInterrupt

main.cli.call = call
main.main()
"""


def test_an_interrupted_command_waits_for_no_thread(here: Path) -> None:
    done = program(sys.executable, "-c", BUSY, cwd=here)
    assert (done.returncode, done.stderr) == (130, "embedkit: interrupted.\n")


EARLY = """
import sys

class Interrupted:
    def find_spec(self, name, *_):
        if name == "click":
            raise KeyboardInterrupt

from embedkit.__main__ import main
sys.meta_path.insert(0, Interrupted())
main()
"""


def test_an_interrupt_of_the_imports_shows_no_traceback(here: Path) -> None:
    done = program(sys.executable, "-c", EARLY, cwd=here)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.slow
def test_a_closed_pipe_is_no_error(here: Path) -> None:
    line = f"{sys.executable} -m embedkit tokenize --vocab 0:40 --model {tiny_model()}"
    lines = f"{line} <&- >&-; {line} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = program("bash", "-c", lines, cwd=here)
    assert done.stderr == ""
    assert done.stdout.split() == ["id", "token", "0"]


# Output


def test_quiet_prints_only_results_and_errors(here: Path) -> None:
    done = command(*extract("--out", "out", "-q"), cwd=here)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    told = command("info", "out", "-q", cwd=here).stdout
    assert "  columns    id id, text document, label label\n" in told
    refused = command(*extract("--out", "clean.tsv", "-q"), cwd=here)
    assert (refused.stdout, refused.stderr != "") == ("", True)


def test_dry_run_writes_nothing_and_counts_exactly(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(here)
    done = succeed(*extract("--dry-run", "--json"), cwd=here)
    assert tree(here) == before
    cost = json.loads(done.stdout)
    assert (cost["records"], cost["accepted"], cost["shards"]) == (13, N_ACCEPTED, 4)
    assert cost["rejected"] == {"empty_text": 3}
    assert cost["sampled"] == N_ACCEPTED
    command(*extract("--out", "out"), cwd=here)
    assert cost["tokens"] == manifest_of(here / "out")["totals"]["ledger"]["tokens_kept"]
    for free, warned in ((1.05, True), (1.2, False)):  # a margin of a tenth
        size = int(free * cost["bytes_total"])
        monkeypatch.setattr("embedkit.storage.free_bytes", lambda _, size=size: size)
        assert ("will not fit" in invoke(*extract("--dry-run")).output) == warned
    options = ("--dry-run", "--out", "out", "--layers", "0", "--json")
    assert "--overwrite" in json.loads(command(*extract(*options), cwd=here).stdout)["output"]


@pytest.mark.parametrize(
    "settings",
    [
        {"storage": "float16", "tokens": True},
        *slow({"layers": "all", "pooling": ["cls", "mean"]}, {"words": "mean"}),
    ],
)
def test_dry_run_estimates_the_bytes(
    here: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """Of vectors of a usual width; those of the tiny model are smaller than their frame."""
    monkeypatch.setattr("embedkit.dataset.extract._LEAST_SECONDS", 0.05)
    lines = (ROOT / "data/reviews_ko.tsv").read_text("utf-8").splitlines(keepends=True)
    (here / "some.tsv").write_text("".join(lines[:81]), "utf-8")
    all_settings = ExtractOptions(max_length=16, shard_rows=256, **settings)
    with plan_extract(here / "some.tsv", out=here / "out", settings=all_settings) as plan:
        estimated = estimate(plan)["bytes_total"]
        files = run_plan(plan).manifest.files
    assert estimated == pytest.approx(sum(f.bytes for f in files.values()), rel=0.15)


def test_what_is_left_over_is_told(here: Path) -> None:
    rows = [(str(i), f"good movie {i}", "abcde"[i % 5] if i > 2 else "") for i in range(53)]
    write_tsv(here / "some.tsv", rows)
    said = invoke("split", "some.tsv", "--out", "s.parquet", "--folds", 2).output
    assert "without a label 3" in said
    train(here / "some.tsv", out=here / "run", features="tfidf", folds=2)
    said = invoke("predict", "run", "--text", "good movie").output
    shares = [float(share) for share in re.findall(r"([\d.]+) %", said)]
    assert (len(shares), shares[:3]) == (4, sorted(shares[:3], reverse=True))
    assert sum(shares) == pytest.approx(100, abs=0.3)


# Help


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_the_examples_of_the_help_are_read_by_the_parser(here: Path, name: str) -> None:
    sub = cli.commands[name]
    lines = (sub.epilog or "").replace("\\\n", " ").splitlines()
    examples = [line for line in lines if "embedkit " in line]
    assert examples
    for line in examples:
        typed = line.rpartition("embedkit ")[2].partition(" < ")[0]
        arguments = shlex.split(typed)
        assert arguments[0] == name
        with sub.make_context(name, arguments[1:]) as context:
            assert context.params


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_the_help_shows_examples_first_and_every_option_once(name: str) -> None:
    command = cli.commands[name]
    text = CliRunner().invoke(cli, [name, "--help"], env={"COLUMNS": "80"}).stdout
    assert max(map(display.columns, text.splitlines())) <= 80
    text = text.partition("Examples:")[2]
    assert "Running and printing:" in text
    for param in command.params:
        if isinstance(param, click.Option):
            option = re.escape(max(param.opts, key=len))
            found = re.findall(rf"^  (?:-\w, )?{option}(?= |$)", text, re.MULTILINE)
            assert len(found) == 1, option


@pytest.mark.parametrize(
    ("arguments", "incomplete", "expected"),
    [
        (["extract"], "rev", [("file", "rev")]),
        (["train", "d", "--split"], "", [("file", "")]),
        (["predict", "runs/a"], "new", [("file", "new")]),
        (["train", "d", "--estimator"], "light", [("plain", "lightgbm")]),
        (["finetune", "d"], "--hea", [("plain", "--head")]),
    ],
)
def test_shells_complete_files_values_and_options(
    arguments: list[str], incomplete: str, expected: list[tuple[str, str]]
) -> None:
    items = ShellComplete(cli, {}, "embedkit", "").get_completions(arguments, incomplete)
    assert [(item.type, item.value) for item in items] == expected


def test_help_and_version(here: Path) -> None:
    for name in ((), ("extract",)):
        done = command(*name, "--help", cwd=here)
        assert re.search(rf"\n  +embedkit {''.join(name) or 'extract'} \S", done.stdout)
        assert command(*name, "-h", cwd=here).stdout == done.stdout
    assert program(*EMBEDKIT, "--version", cwd=here).stdout.strip().endswith(__version__)


def test_what_an_encoding_lacks_is_escaped_as_in_json(tmp_path: Path) -> None:
    text = "film é 한글 😀"
    typed = *EMBEDKIT, "tokenize", text, "--model", str(tiny_model()), "--json"
    done = completed(*typed, cwd=tmp_path, PYTHONIOENCODING="cp932")
    assert "\\u" in done.stdout
    tokens = json.loads(done.stdout)
    assert [text[token["start"] : token["end"]] for token in tokens][1] == "film"
    assert "\\U" not in done.stdout
