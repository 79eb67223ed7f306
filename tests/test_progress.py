"""Commands that take a while report how far they are."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest

import embedkit
from embedkit.cli import compare as compare_module
from embedkit.cli import extract as extract_module
from embedkit.cli import info as info_module
from embedkit.cli import predict as predict_module
from embedkit.cli.main import cli
from embedkit.cli.progress import progress_bar
from embedkit.cli.search import _index_text
from embedkit.cli.text import path_text, say
from embedkit.dataset import estimate as estimate_module
from embedkit.dataset.planning import ExtractPlan
from embedkit.display import TYPED_IN
from embedkit.search.index import IndexInfo, build_index
from embedkit.types import Progress, ProgressCallback
from tests.finetune_fixtures import corpus_of
from tests.processes import command
from tests.store_fixtures import tiny_model


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("progress")
    corpus = corpus_of(folder / "c.tsv")
    embedkit.extract(corpus, out=folder / "data", model=str(tiny_model()), device="cpu",
                     shard_rows=20)  # fmt: skip
    embedkit.train(folder / "data", out=folder / "run", folds=2, tune=False)
    return folder


@pytest.mark.parametrize(
    ("module", "typed", "stages"),
    [
        (predict_module, "predict run c.tsv", {"predicting": (100, 100)}),
        (predict_module, "predict run data", {"predicting": (60, 60)}),
        (compare_module, "compare run --report page.html",
         {"reading": (1, 1), "scoring": (2, 2), "comparing": (2, 2), "looking at records": (3, 3),
          "drawing": (4, 4)}),
        (info_module, "verify data --recompute 2", {"recomputing": (1, 2)}),
        (extract_module, "extract c.tsv --dry-run --out new",
         {"reading": (100, 100), "timing the model": (0, None)}),
    ],
    ids=["predict", "predict-dataset", "compare", "verify", "dry-run"],
)  # fmt: skip
def test_progress_is_reported(
    place: Path, monkeypatch: pytest.MonkeyPatch, module: object, typed: str,
    stages: dict[str, tuple[int, int | None]],
) -> None:  # fmt: skip
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


def test_a_dry_run_times_the_model_on_some_of_the_texts(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    before = ExtractPlan.start_shard

    def noted(plan: ExtractPlan, records: Any, texts: Any, **more: Any) -> Any:
        sizes.append(len(texts))
        return before(plan, records, texts, **more)

    monkeypatch.setattr(ExtractPlan, "start_shard", noted)
    monkeypatch.setattr(estimate_module, "_LEAST_SECONDS", 0.01)
    monkeypatch.setattr(estimate_module, "_TIMED_TOKENS", 100)
    done = command(
        "extract", "c.tsv", "--dry-run", "--model", tiny_model(), "--out", "new", cwd=place
    )
    assert done.returncode == 0, done.stderr
    assert "60 rows" in done.stdout
    assert 0 < max(sizes) < 20


def test_rates_of_a_small_index_are_not_shown(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info: IndexInfo = build_index(place / "data", kind="hnsw", tune=True)
    text = _index_text(info, place / "data")
    assert "recall@10" in text
    assert "queries/s" not in text
    assert "no rates: with fewer than 10,000 records" in text
    monkeypatch.setattr("embedkit.cli.search._TIMED_RECORDS", 10)
    assert "queries/s" in _index_text(info, place / "data")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_note_stands_on_a_line_of_its_own_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = _Terminal()
    with click.Context(cli.commands["extract"]) as context, monkeypatch.context() as patch:
        context.params = {"quiet": False, "progress": None}
        patch.setattr(sys, "stderr", terminal)
        with progress_bar() as report:
            report(Progress("encoding", 1, 4, "tokens"))
            say("note: [a] :smile: column", err=True)
            report(Progress("encoding", 2, 4, "tokens"))
    shown = re.sub(r"\x1b\[[?\d;]*[a-zA-JL-Z]", "", terminal.getvalue())  # all but "clear the line"
    assert "encoding" in shown
    assert "\r\x1b[2Knote: [a] :smile: column\n" in shown


def test_paths_of_a_stage_are_those_of_the_folder_where_run_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage works in the folder of its recipe; ``made …`` and ``make run`` use the same words."""
    page = tmp_path / "outputs" / "report.html"
    assert path_text("../report.html") == "../report.html"
    monkeypatch.setenv(TYPED_IN, str(tmp_path))
    monkeypatch.chdir(page.parent.parent)
    assert path_text(page) == path_text("outputs/report.html") == "outputs/report.html"
