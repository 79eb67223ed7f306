"""Shards made elsewhere: by their place in the corpus, by other processes, in any order."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedkit.corpus import CorpusOptions, CorpusReader, Record, input_files, plan_corpus
from embedkit.corpus.plan import CorpusPlan
from embedkit.dataset import extract
from embedkit.dataset.extract import ExtractResult
from embedkit.dataset.format import Receipt
from embedkit.dataset.job import JobFolder, ShardRange, ShardReader
from embedkit.dataset.shards import ExtractPlan, run_shard
from embedkit.errors import EncodeError, LockedError, UsageError
from embedkit.scale import run_locally
from embedkit.types import Progress, no_progress
from tests.processes import ROOT
from tests.store_fixtures import (
    load_quickly,
    quick,  # noqa: F401 - a fixture
    run,
    tiny_model,
    tree,
    write_tsv,
)

TEXTS = [f"text {i}" if i % 7 else " " for i in range(60)]  # every seventh is a reject
QUOTED = "".join(f'"{text} ""a""\nb"\t{i}\n' for i, text in enumerate(TEXTS))
PLAIN = "".join(f"{text}\t{i}\n" + "\n" * (i % 5 == 0) for i, text in enumerate(TEXTS))
WORDS = "".join(
    f"# newdoc id = d{i}\n" * (i % 4 == 0)
    + "".join(f"{n}\t{w}{i}" + "\t_" * 8 + "\n" for n, w in enumerate("abc", 1))
    + "\n"
    for i in range(60)
)


def _parquet(path: Path) -> None:
    pq.write_table(pa.table({"text": TEXTS, "id": range(60)}), path, row_group_size=7)


def _arrow(path: Path) -> None:
    table = pa.table({"text": TEXTS, "id": pa.array(map(str, range(60)))})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=9)


FILES: dict[str, Callable[[Path], object]] = {
    "a.tsv": lambda p: p.write_text("text\tid\n" + PLAIN),
    "b.tsv": lambda p: p.write_text("\ufefftext\tid\n" + PLAIN),
    "c.csv": lambda p: p.write_text("text,id\n" + QUOTED.replace("\t", ",")),
    "d.jsonl": lambda p: p.write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS)),
    "e.tsv.gz": lambda p: p.write_bytes(gzip.compress(b"text\tid\n" + PLAIN.encode())),
    "g.parquet": _parquet,
    "h.arrow": _arrow,
    "i.conllu": lambda p: p.write_text(WORDS),
    "j.txt": lambda p: p.write_text("\n".join(TEXTS)),
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("options", [{}, {"sample": 31}, {"limit": 90, "min_chars": 7}], ids=str)
@pytest.mark.parametrize("name", FILES)
def test_shards_are_read_from_any_place(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    """The planned shards, read in any order, are the records of one reader."""
    files = [tmp_path / name, tmp_path / f"second-{name}"]
    for file in files:
        FILES[name](file)
    keep = ["doc"] if name.endswith("conllu") else []
    run(files, tmp_path / "out", shard_rows=8, keep=keep, **options)
    table = pq.read_table(tmp_path / "out/_embedkit/shards.parquet")
    ranges = [ShardRange(**row) for row in table.to_pylist()]
    with input_files(files) as inputs:
        plan: CorpusPlan = plan_corpus(inputs, CorpusOptions(keep=keep, **options))
        expected = [item for item in CorpusReader(plan) if isinstance(item, Record)]
        assert len(ranges) == -(-len(expected) // 8)
        for order in (ranges, ranges[::-1], random.Random(0).sample(ranges, len(ranges))):
            reader = ShardReader(plan)
            found = {shard.number: reader.read(shard) for shard in order}
            assert [record for n in sorted(found) for record in found[n]] == expected


# Other processes


class DiedError(Exception):
    """A worker has raised this."""


def task(shared: Path, number: int) -> int:
    """Task 2 always kills its process, task 5 the first one, task 9 fails."""
    first = shared / str(number)
    if number == 2 or (number == 5 and not first.exists()):
        first.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 9:
        raise DiedError(str(number))
    return number * 10


@pytest.mark.slow
def test_workers_are_replaced_and_a_task_that_kills_three_is_given_up(tmp_path: Path) -> None:
    results = dict(run_locally(task, [tmp_path] * 2, range(8), threads=1))
    assert results == {n: None if n == 2 else n * 10 for n in range(8)}
    with pytest.raises(DiedError, match="9"):
        list(run_locally(task, [tmp_path], [8, 9], threads=1))
    assert not multiprocessing.active_children()


def killed_once(plan: ExtractPlan, number: int) -> Receipt:
    """The second shard kills the first process that makes it, after its sentences are written."""
    if number == 1 and not (mark := plan.out.with_name("mark")).exists():
        mark.touch()
        JobFolder.write_receipt = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore
    return run_shard(plan, number)


def killed_always(plan: ExtractPlan, number: int) -> Receipt:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return run_shard(plan, number)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    write_tsv(folder / "c.tsv")
    return run(folder / "c.tsv", folder / "out", words="mean", tokens=True).out


def made(golden: Path, out: Path, **settings: Any) -> ExtractResult:
    corpus = golden.with_name("c.tsv")
    return run(corpus, out, words="mean", tokens=True, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("function", [run_shard, killed_once])
def test_two_workers_make_the_same_bytes(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Any
) -> None:
    monkeypatch.setattr(extract, "run_shard", function)
    result = made(golden, tmp_path / "out", workers=2)
    assert (result.resumed_shards, result.missing_shards) == (0, 0)
    assert tree(tmp_path / "out") == tree(golden)


@pytest.mark.slow
def test_a_shard_that_kills_its_workers_is_named_and_the_others_are_finished(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(extract, "run_shard", killed_always)
        with pytest.raises(EncodeError, match=r"shard 2 \(records 8 to 10\)") as caught:
            made(golden, tmp_path / "out", workers=2)
    assert caught.value.exit_code == 5
    assert made(golden, tmp_path / "out").resumed_shards == 3
    assert tree(tmp_path / "out") == tree(golden)


def test_parts_in_any_order_and_repeated(golden: Path, tmp_path: Path) -> None:
    """They share the folder, and nobody else may write there meanwhile."""
    out, refused = tmp_path / "out", list[LockedError]()

    def meanwhile(_: Progress) -> None:
        with pytest.raises(LockedError) as caught:
            made(golden, out)
        refused.append(caught.value)
        made(golden, out, shard_index=1, num_shards=4)

    for index in (3, 1, 1, 0):
        progress = meanwhile if index == 0 else no_progress
        part = made(golden, out, shard_index=index, num_shards=4, progress=progress)
        with pytest.raises(UsageError, match="unfinished"):
            _ = part.manifest
    assert refused
    assert part.missing_shards == 1
    assert made(golden, out).resumed_shards == 3
    assert tree(out) == tree(golden)
    assert made(golden, out, shard_index=2, num_shards=4).was_complete
    with pytest.raises(UsageError, match="num_shards"):
        made(golden, out, shard_index=2, num_shards=2)


@pytest.mark.slow
def test_a_ray_cluster_makes_the_same_bytes(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if one of its processes is killed."""
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the processes that Ray starts
    monkeypatch.setattr(extract, "run_shard", killed_once)
    made(golden, tmp_path / "out", workers=2, engine="ray")
    assert (tmp_path / "mark").exists()
    assert tree(tmp_path / "out") == tree(golden)


@pytest.mark.slow
def test_texts_are_shared_by_processes() -> None:
    encoder = load_quickly(str(tiny_model()))
    texts = [f"the movie was {'good ' * (i % 9)}" for i in range(50)]
    alone = encoder.encode_views(texts, ["cls_1", "mean_-1"])
    shared = encoder.encode_views(texts, ["cls_1", "mean_-1"], workers=2, batch_size=8)
    assert {name: v.tobytes() for name, v in shared.items()} == {
        name: v.tobytes() for name, v in alone.items()
    }
