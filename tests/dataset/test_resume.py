"""Kills, signals, changes between runs, and damage to unfinished jobs."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from embedkit.dataset import planning, shards
from embedkit.dataset.format import TABLES
from embedkit.dataset.job import JobFolder, recorded_precision
from embedkit.dataset.parquet import read_facts
from embedkit.errors import CorpusError, DamagedError, LockedError, MismatchError, OutputExistsError
from embedkit.runs.folder import new_run
from embedkit.types import Progress
from tests.processes import environment
from tests.store_fixtures import begin, manifest_of, run, tiny_model, tree, write_tsv

pytestmark = pytest.mark.usefixtures("quick")

SMALL = {"shard_rows": 5, "words": "mean", "tokens": True}
"""Two shards of three files each, one with few rows."""


CRASH = Mock(side_effect=KeyboardInterrupt)


def test_a_dataset_that_appears_during_the_job_is_kept(
    corpus: Path, tmp_path: Path, once_before: Any
) -> None:
    out = tmp_path / "out"
    run(corpus, tmp_path / "other", layers="0")
    before = tree(tmp_path / "other")
    once_before(JobFolder, "commit", lambda: shutil.copytree(tmp_path / "other", out))
    with pytest.raises(LockedError, match=r"\bout\b"):
        run(corpus, out)
    assert tree(out) == before
    shutil.rmtree(out)
    assert run(corpus, out).resumed_shards == 4


# Real processes

SMALL_SHARDS = """
import signal
import embedkit.dataset.planning as planning
from embedkit.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
planning._shard_rows = lambda *_: 8
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_signals_end_the_job_at_once(tmp_path: Path, number: int, code: int, word: str) -> None:
    write_tsv(tmp_path / "c.tsv", [(str(i), "the movie was good " * 4, "1") for i in range(6_000)])
    typed = f"extract c.tsv --out out --model {tiny_model()} --words --tokens --layers all".split()
    parts = tmp_path / "out.incomplete/sentences"
    output: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        [sys.executable, "-c", SMALL_SHARDS, *typed], cwd=tmp_path, env=environment(), **output
    ) as process:
        while len(list(parts.glob("*.parquet"))) < 2:
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in stdout + stderr
    assert stderr.splitlines()[-1].startswith(f"embedkit: {word}")
    assert not (tmp_path / "out").exists()
    for part in parts.iterdir():
        read_facts(part)


# What stands there already


def test_a_complete_dataset_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    run(corpus, tmp_path / "out")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")}
    again = run(corpus, tmp_path / "out")
    assert again.was_complete
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")} == before


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("obstacle", ["a file", "a folder", "a link", "a dangling link"])
@pytest.mark.parametrize("name", ["out", "out.incomplete"])
def test_what_embedkit_did_not_make_is_never_touched(
    corpus: Path, tmp_path: Path, obstacle: str, name: str, overwrite: bool
) -> None:
    work = tmp_path / "work"
    (work / "elsewhere").mkdir(parents=True)
    if obstacle == "a file":
        (work / name).write_text("mine")
    elif obstacle == "a folder":
        (work / name / "mine").mkdir(parents=True)
    else:
        (work / name).symlink_to(work / ("elsewhere" if obstacle == "a link" else "nowhere"))
    before = tree(work), sorted(work.iterdir()), (work / name).is_symlink()
    with pytest.raises(OutputExistsError, match="out="):
        run(corpus, work / "out", overwrite=overwrite)
    assert (tree(work), sorted(work.iterdir()), (work / name).is_symlink()) == before


# What changed between two runs


def test_a_job_without_a_shard_binds_nobody(corpus: Path, tmp_path: Path) -> None:
    """It is begun again with other settings, unless somebody put a file there."""
    for name in ("out", "other"):
        # each of the writers, which commit side by side
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(JobFolder, "commit", CRASH)
            with pytest.raises(KeyboardInterrupt):
                run(corpus, tmp_path / name)
    mine = tmp_path / "other.incomplete/sentences/mine.txt"
    mine.touch()
    with pytest.raises(MismatchError, match=r"input\.limit"):
        run(corpus, tmp_path / "other", limit=5)
    assert mine.is_file()
    assert run(corpus, tmp_path / "out", limit=5).resumed_shards == 0


SHAPING = [
    ({"layers": "0"}, "views.mean_0"),
    ({"words": "mean"}, "vectors.words"),
    ({"on_long": "window"}, "on_long"),
    ({"precision": "bf16"}, "precision"),
    ({"min_chars": 2}, "min_chars"),
    ({"store_text": False}, "storage.text"),
    ({"encoding": "cp949", "text": "id"}, "input.encoding"),
]


@pytest.mark.parametrize(("change", "field"), SHAPING, ids=lambda v: str(v)[:40])
def test_a_changed_setting_is_refused(
    corpus: Path, tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    out = tmp_path / "out"
    begin(corpus, out)
    before = tree(tmp_path)
    with pytest.raises(MismatchError, match=f"{field}.* there, .* now"):
        run(corpus, out, **change)
    assert tree(tmp_path) == before
    result = run(corpus, out)  # the earlier command still finishes it
    assert result.resumed_shards >= 1


def test_a_kill_while_a_job_is_discarded_leaves_nothing_of_it(corpus: Path, tmp_path: Path) -> None:
    """In whatever order its files go: vectors of another job would be of other texts."""
    begin(corpus, tmp_path / "out", prefix="other ")
    for gone in ("_embedkit/job.json", "_embedkit"):
        shutil.copytree(tmp_path / "out.incomplete", tmp_path / "two.incomplete")
        path = tmp_path / "two.incomplete" / gone
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        assert run(corpus, tmp_path / "two", overwrite=True).resumed_shards == 0
        shutil.rmtree(tmp_path / "two")


def test_a_changed_corpus_is_refused(corpus: Path, tmp_path: Path) -> None:
    begin(corpus, tmp_path / "out")
    content = corpus.read_bytes()
    for changed in (content.replace(b"the movie", b"the movid", 1), content[:-1]):
        corpus.write_bytes(changed)
        with pytest.raises(MismatchError, match=r"input\.files\[0\]\.sha256"):
            run(corpus, tmp_path / "out")
    corpus.write_bytes(content)
    with pytest.raises(MismatchError, match=r"input\.files\[1\]"):
        run([corpus, corpus], tmp_path / "out")
    assert run(corpus, tmp_path / "out").resumed_shards >= 1


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_changed_model_is_refused(corpus: Path, tmp_path: Path, file: str) -> None:
    first = shutil.copytree(tiny_model(), tmp_path / "model")
    begin(corpus, tmp_path / "out", model=str(first))
    second = shutil.copytree(tiny_model(), tmp_path / "second")
    if file == "model.safetensors":
        shutil.copy(tiny_model(seed=2) / file, second / file)
    else:
        (second / file).write_text((second / file).read_text("utf-8") + " ", "utf-8")
    with pytest.raises(MismatchError, match=f"other contents of {file}"):
        run(corpus, tmp_path / "out", model=str(second))


def test_another_environment_is_refused_unless_allowed(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(corpus, tmp_path / "out")
    genuine = shards.environment_of
    monkeypatch.setattr(planning, "environment_of", lambda e: {**genuine(e), "torch": "9.9"})
    with pytest.raises(MismatchError, match=r"torch: .* there, \"9\.9\" now") as caught:
        run(corpus, tmp_path / "out")
    assert "allow_env_change=True" in str(caught.value)
    result = run(corpus, tmp_path / "out", allow_env_change=True)
    assert result.resumed_shards == 1
    first, second = manifest_of(tmp_path / "out")["environments"]
    assert first["shards"] == [0]
    assert second["shards"] == [1, 2, 3]
    assert second["environment"]["torch"] == "9.9"
    assert run(corpus, tmp_path / "out").was_complete
    begin(corpus, tmp_path / "other")
    monkeypatch.setattr(planning, "environment_of", genuine)
    monkeypatch.setattr(shards, "arithmetic_of", lambda _: "of another machine")
    with pytest.raises(MismatchError, match=r"arithmetic: .* now"):
        run(corpus, tmp_path / "other")


def test_a_job_keeps_the_precision_it_began_with(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_bf16 = [True]
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bf16[0])

    def go(out: str) -> Any:
        return run(corpus, tmp_path / out, precision="auto")

    golden = go("golden")
    assert golden.manifest.job.vectors.precision == "bf16"

    begin(corpus, tmp_path / "out", precision="auto")
    has_bf16[0] = False  # another machine goes on
    assert recorded_precision(tmp_path / "out") == "bf16"
    result = go("out")
    assert result.resumed_shards >= 1
    assert tree(tmp_path / "out") == tree(tmp_path / "golden")
    assert go("out").was_complete
    assert recorded_precision(tmp_path / "other") == "auto"
    assert go("other").manifest.job.vectors.precision == "fp32"


def test_no_other_command_discards_an_unfinished_dataset(corpus: Path, tmp_path: Path) -> None:
    begin(corpus, tmp_path / "out")
    before = tree(tmp_path / "out.incomplete")
    with pytest.raises(OutputExistsError, match="unfinished work"), new_run(tmp_path / "out"):
        pass
    assert tree(tmp_path / "out.incomplete") == before
    with new_run(tmp_path / "out", overwrite=True) as work:
        assert not tree(work)


# Damage to an unfinished job


@pytest.mark.parametrize("folder", TABLES)
@pytest.mark.parametrize("damage", ["delete", "truncate", "swap"])
def test_a_damaged_shard_is_made_again(
    corpus: Path, tmp_path: Path, folder: str, damage: str, once_before: Any
) -> None:
    run(corpus, tmp_path / "golden", **SMALL)
    once_before(JobFolder, "finish", CRASH)
    with pytest.raises(KeyboardInterrupt):
        run(corpus, tmp_path / "out", **SMALL)
    part = tmp_path / "out.incomplete" / folder / "part-00000000.parquet"
    if damage == "delete":
        part.unlink()
    elif damage == "truncate":
        part.write_bytes(part.read_bytes()[:-100])
    else:
        second = part.with_name("part-00000001.parquet")
        first, content = part.read_bytes(), second.read_bytes()
        part.write_bytes(content)
        second.write_bytes(first)
    result = run(corpus, tmp_path / "out", **SMALL)
    assert result.resumed_shards == (0 if damage == "swap" else 1)
    assert tree(tmp_path / "out") == tree(tmp_path / "golden")


@pytest.mark.parametrize(
    "name", ["part-00000007.parquet", "part-00000000 (copy).parquet", "notes.txt"]
)
def test_a_foreign_file_among_the_shards_is_refused(
    corpus: Path, tmp_path: Path, name: str
) -> None:
    begin(corpus, tmp_path / "out")
    sentences = tmp_path / "out.incomplete/sentences"
    shutil.copy(sentences / "part-00000000.parquet", sentences / name)
    with pytest.raises(DamagedError, match=re.escape(name)):
        run(corpus, tmp_path / "out")
    (sentences / name).unlink()
    assert run(corpus, tmp_path / "out").resumed_shards == 4


@pytest.mark.parametrize("shard", [2, 4])
def test_a_corpus_that_changes_during_the_run_is_noticed(
    corpus: Path, tmp_path: Path, shard: int
) -> None:
    """Also after the last of the four shards was read."""

    def append(state: Progress) -> None:
        if state.stage == f"shard {shard}":
            with corpus.open("a") as stream:
                stream.write("020\tlate\t1\n")

    with pytest.raises(CorpusError, match=r"corpus\.tsv"):
        run(corpus, tmp_path / "out", progress=append)
    assert not (tmp_path / "out").exists()
    with pytest.raises(MismatchError, match=r"input\.files\[0\]\.bytes"):
        run(corpus, tmp_path / "out")
