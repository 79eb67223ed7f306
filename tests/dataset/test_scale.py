"""Shards made elsewhere: by their place in the corpus, by other processes, in any order."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyarrow import feather

import embedkit
from embedkit.corpus.memory import input_files
from embedkit.corpus.plan import CorpusOptions, CorpusPlan, plan_corpus
from embedkit.corpus.records import CorpusReader, Record
from embedkit.corpus.tables import ShardRange
from embedkit.dataset import extract, shards
from embedkit.dataset.extract import ExtractResult
from embedkit.dataset.format import Layout, Receipt
from embedkit.dataset.job import JobFolder, ShardReader, read_plan
from embedkit.dataset.shards import ExtractPlan, run_shard
from embedkit.errors import (
    DamagedError,
    EncodeError,
    LockedError,
    MismatchError,
    OutputExistsError,
    StorageError,
    UsageError,
)
from embedkit.types import Progress, no_progress
from tests.dataset.test_reuse import WRITERS, Rows, frame
from tests.processes import ROOT, invoke
from tests.store_fixtures import flip, run, tiny_model, tree, write_tsv

TEXTS = [f"text {i}" if i % 7 else " " for i in range(60)]  # every seventh is a reject
ROWS = [(str(i), text) for i, text in enumerate(TEXTS)]

FILES: dict[str, Callable[[Path, Rows], object]] = {
    **WRITERS,
    "c.arrow": lambda p, rows: feather.write_feather(frame(rows), p, "uncompressed", chunksize=9),
    "c.txt": lambda p, _: p.write_text("\n".join(TEXTS)),
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("options", [{"sample": 31}, {"limit": 90, "min_chars": 7}], ids=str)
@pytest.mark.parametrize("name", FILES)
def test_shards_are_read_from_any_place(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    """The planned shards, read in any order, are the records of one reader."""
    files = [tmp_path / name, tmp_path / f"second-{name}"]
    for file in files:
        FILES[name](file, ROWS)
    keep = ["doc"] if name.endswith("conllu") else []
    run(files, tmp_path / "out", shard_rows=8, keep=keep, **options)
    ranges, _ = read_plan(Layout(tmp_path / "out"))
    with input_files(files) as inputs:
        plan: CorpusPlan = plan_corpus(inputs, CorpusOptions(keep=keep, **options))
        expected = [item for item in CorpusReader(plan) if isinstance(item, Record)]
        assert len(ranges) == -(-len(expected) // 8)
        for order in (ranges, ranges[::-1], random.Random(0).sample(ranges, len(ranges))):
            reader = ShardReader(plan)
            found = {shard.number: reader.read(shard) for shard in order}
            assert [record for n in sorted(found) for record in found[n]] == expected


# Stages beside each other


def test_one_shard_is_read_ahead_and_bytes_to_be_written_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(shards._BYTES_WAITING, "cpu", 250)
    lock, flying, most, read = threading.Lock(), [0], [0], list[int]()
    one_more = threading.Semaphore(0)

    def reading(number: int) -> Any:
        read.append(number)
        one_more.release()
        texts = SimpleNamespace(ids=[])
        return SimpleNamespace(number=number, records=[], texts=texts, lengths=lengths)

    def begun(number: int, *_counts: int) -> None:
        for _ in range({0: 2, 19: 0}.get(number, 1)):
            assert one_more.acquire(timeout=10)  # the next one is being read
        time.sleep(0.005)  # in which further ones could be
        assert read == list(range(min(number + 2, 20)))

    def write(shard: Any, _: Any) -> Any:
        with lock:
            flying[0] += 1
            most[0] = max(most[0], flying[0])
        time.sleep(0.005)
        with lock:
            flying[0] -= 1
        return shard.number

    lengths = {"n_kept": np.zeros(1, np.int64)}
    encoder = SimpleNamespace(device=SimpleNamespace(type="cpu"))
    pending = SimpleNamespace(nbytes=100)
    made: dict[str, Any] = {"read": reading, "write": write}
    plan = SimpleNamespace(encoder=encoder)
    maker: Any = SimpleNamespace(plan=plan, start=lambda *_: pending, **made)
    todo: Any = range(20)
    meter: Any = SimpleNamespace(start=begun, tokens=lambda _: None)
    assert shards.run_shards(maker, todo, meter) == [*range(20)]
    assert most[0] <= 2


# Other processes


def killed_once(plan: ExtractPlan, shard: ShardRange) -> tuple[Receipt, int]:
    """The second shard kills the first process that makes it, after its sentences are written."""
    if shard.number == 1 and not (mark := plan.out.with_name("mark")).exists():
        mark.touch()
        JobFolder.write_receipt = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore
    return run_shard(plan, shard)


def killed_always(plan: ExtractPlan, shard: ShardRange) -> tuple[Receipt, int]:
    if shard.number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return run_shard(plan, shard)


def killed_each_time(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_once_reading(tokenizer: shards.ShardTokenizer, shard: ShardRange) -> shards.Shard:
    """As ``read``, after the process has ended once."""
    mark = tokenizer.plan.out.with_name("mark")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return tokenizer.read(shard)


def failing(plan: ExtractPlan, shard: ShardRange) -> tuple[Receipt, int]:
    if shard.number == 2:
        raise EncodeError("planted")
    return run_shard(plan, shard)


@pytest.fixture(scope="module")
def golden(common: Path) -> Path:
    write_tsv(common / "c.tsv")
    return run(common / "c.tsv", common / "out", words="mean", tokens=True).out


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Ray cluster of two nodes on this machine, each with one processor."""
    nodes = pytest.importorskip("ray.cluster_utils")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the processes that Ray starts
    cluster = nodes.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield
    cluster.shutdown()


def made(golden: Path, out: Path, **settings: Any) -> ExtractResult:
    corpus = golden.with_name("c.tsv")
    return run(corpus, out, words="mean", tokens=True, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("function", [run_shard, killed_once])
def test_two_workers_make_the_same_bytes(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Any
) -> None:
    """Also if one of them is killed."""
    monkeypatch.setattr(extract, "run_shard", function)
    result = made(golden, tmp_path / "out", workers=2)
    assert (result.resumed_shards, result.missing_shards) == (0, 0)
    assert (tmp_path / "mark").exists() == (function is killed_once)
    assert tree(tmp_path / "out") == tree(golden)


def test_ray_leaves_the_exit_code_of_sigterm(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, before = pytest.importorskip("ray"), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(ray, "init", lambda *_, **__: signal.signal(signal.SIGTERM, print))
    monkeypatch.setattr(ray, "nodes", sys.exit)  # nothing is begun
    try:
        with pytest.raises(SystemExit):
            made(golden, tmp_path / "out", workers=2, engine="ray")
        assert signal.getsignal(signal.SIGTERM) == before
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_processes_that_read_make_the_same_bytes(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """They read for a GPU; one that is killed is replaced."""
    monkeypatch.setitem(shards._READERS, "cpu", 2)
    for limit in ("_CORES_PER_READER", "_SHARDS_FOR_READERS"):
        monkeypatch.setattr(shards, limit, 1)
    if killed:
        monkeypatch.setattr(shards.ShardTokenizer, "read", killed_once_reading)
    made(golden, tmp_path / "out")
    assert (tmp_path / "mark").exists() == killed
    assert tree(tmp_path / "out") == tree(golden)


@pytest.mark.slow
@pytest.mark.usefixtures("two_nodes")
def test_two_nodes_of_ray_make_the_same_bytes(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    """One worker is killed; then each that gets a certain shard; a note tells what is missing."""
    monkeypatch.setattr(extract, "run_shard", killed_once)
    made(golden, tmp_path / "out", workers=2, engine="ray")
    assert (tmp_path / "mark").exists()
    assert tree(tmp_path / "out") == tree(golden)
    assert "GPU" not in str(notes)
    monkeypatch.setattr(extract, "run_shard", killed_always)
    with pytest.raises(EncodeError, match="shard 2"):
        made(golden, tmp_path / "lost", workers=2, engine="ray")
    assert len(list((tmp_path / "lost.incomplete/sentences").iterdir())) == 3
    monkeypatch.setattr("ray.wait", sys.exit)  # it would wait for ever
    with pytest.raises(SystemExit):
        made(golden, tmp_path / "none", workers=2, engine="ray", gpus_per_worker=0.5)
    assert "'GPU': 0.5" in str(notes)


def test_an_address_without_a_cluster_is_refused(golden: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with pytest.raises(UsageError, match=r"address='127\.0\.0\.1:9'"):
        made(golden, tmp_path / "out", workers=2, engine="ray", address="127.0.0.1:9")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "message"), [(killed_always, r"shard 2 \(records 8 to 10\)"), (failing, "planted")]
)
def test_a_shard_that_kills_its_workers_is_named_and_the_others_are_finished(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Any, message: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(extract, "run_shard", function)
        with pytest.raises(EncodeError, match=message) as caught:
            made(golden, tmp_path / "out", workers=2)
    assert caught.value.exit_code == 5
    assert not multiprocessing.active_children()
    assert made(golden, tmp_path / "out").resumed_shards == 3 or function is failing
    assert tree(tmp_path / "out") == tree(golden)


@pytest.mark.slow
def test_a_job_ends_if_no_worker_survives(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extract, "run_shard", killed_each_time)
    monkeypatch.setattr(extract, "_LOST_IN_A_ROW", 2)
    with pytest.raises(EncodeError, match=r"shard \d \(records") as caught:
        made(golden, tmp_path / "out", workers=2)
    assert str(caught.value).count("records") == 2
    assert not multiprocessing.active_children()


def test_a_part_of_another_job_leaves_the_folder(golden: Path, tmp_path: Path) -> None:
    def meanwhile(state: Progress) -> None:
        # not while the first part plans, for which the second would wait
        if state.stage.startswith("shard"):
            with pytest.raises(MismatchError, match="other input, model or settings"):
                made(golden, tmp_path / "out", part=(1, 4), layers="0")

    made(golden, tmp_path / "out", part=(0, 4), progress=meanwhile)


def test_parts_in_any_order_and_repeated(golden: Path, tmp_path: Path) -> None:
    """They share the folder, and nobody else may write there meanwhile."""
    out, refused = tmp_path / "out", list[LockedError]()

    def meanwhile(_: Progress) -> None:
        with pytest.raises(LockedError) as caught:
            made(golden, out)
        refused.append(caught.value)
        made(golden, out, part=(1, 4))

    for index in (3, 1, 1, 0):
        progress = meanwhile if index == 0 else no_progress
        part = made(golden, out, part=(index, 4), progress=progress)
        with pytest.raises(UsageError, match="unfinished"):
            _ = part.manifest
        assert repr(part).startswith(f"dataset {out}, ")
    assert refused
    assert part.missing_shards == 1
    assert made(golden, out).resumed_shards == 3
    assert tree(out) == tree(golden)
    assert made(golden, out, part=(2, 4)).was_complete
    with pytest.raises(UsageError, match="part="):
        made(golden, out, part=(2, 2))


# Object stores; without the local copy it is as on another machine


OUT = "s3://bucket/some/c.vectors"


def stored(bucket: Any) -> dict[str, bytes]:
    bucket.invalidate_cache()
    root = OUT.removeprefix("s3://")
    return {name[len(root) + 1 :]: bucket.cat_file(name) for name in bucket.find(root)}


def test_an_object_store_holds_the_same_bytes(golden: Path, tmp_path: Path, store: Any) -> None:
    """Made, read, and refused to others; the manifest makes it exist."""
    corpus = golden.with_name("c.tsv")
    store.put_file(str(corpus), "bucket/c.tsv")
    settings: dict[str, Any] = {"words": "mean", "tokens": True}
    run("s3://bucket/c.tsv", OUT, **settings)
    expected = tree(golden)
    found = stored(store)
    assert found.keys() == expected.keys()
    assert {n: found[n] for n in found if "part-" in n} == {
        n: expected[n] for n in expected if "part-" in n
    }
    assert run(corpus, OUT, **settings).was_complete
    shutil.rmtree(tmp_path / "cache")
    assert run(corpus, OUT, **settings).was_complete
    np.testing.assert_array_equal(embedkit.load(OUT).X, embedkit.load(golden).X)
    assert embedkit.verify(OUT).ok
    new = "extract", corpus, "--model", tiny_model(), "--out", f"{OUT}2"
    for line in ("info", OUT), ("verify", OUT), ("index", OUT, "--kind", "flat"), new:
        done = invoke(*line)
        assert done.exit_code in (0, 3)
        assert OUT in done.output
        assert str(tmp_path / "cache") not in done.output
    assert invoke("search", OUT, "--like", 3, "-k", 1).exit_code == 0
    made = embedkit.train(OUT, out=tmp_path / "run", folds=2, tune=False).out
    store.put_file(str(made / "split.parquet"), "bucket/s.parquet")
    embedkit.train(OUT, out=tmp_path / "again", split="s3://bucket/s.parquet", tune=False)
    with pytest.raises(OutputExistsError, match="different settings"):
        run(corpus, OUT, layers="0")
    shutil.rmtree(tmp_path / "cache")
    store.rm(OUT + "/_embedkit/manifest.json")
    with pytest.raises(UsageError, match=r"c\.vectors"):
        embedkit.load(OUT)
    with pytest.raises(OutputExistsError, match=r"c\.vectors"):
        run(corpus, OUT, layers="0")
    with pytest.raises(UsageError, match="out='s3"):
        run(corpus, OUT, part=(0, 2))


def test_files_of_others_at_an_address_stay(corpus: Path, store: Any) -> None:
    store.pipe_file("bucket/some/thesis.pdf", b"mine")
    for out in ("s3://bucket", "s3://bucket/some"):
        with pytest.raises(OutputExistsError, match=r"other files, such as (some/)?thesis\.pdf"):
            run(corpus, out)
    run(corpus, OUT)
    with pytest.raises(OutputExistsError, match="other files"):
        run(corpus, "s3://bucket/some", overwrite=True)
    store.invalidate_cache()
    assert store.cat_file("bucket/some/thesis.pdf") == b"mine"


def test_an_interrupted_upload_is_continued(
    corpus: Path, tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, names = type(store), list[str]()
    put = kind._put_file

    async def failing(self: Any, local: str, remote: str, **more: Any) -> None:
        names.append(remote)
        if len(names) == 4:
            raise ConnectionError("the network is down")
        await put(self, local, remote, **more)

    monkeypatch.setattr(kind, "_put_file", failing)
    store.clear_instance_cache()
    with pytest.raises(StorageError, match="the network is down"):
        run(corpus, OUT)
    with pytest.raises(UsageError, match=r"c\.vectors"):
        embedkit.load(OUT)
    done = names[:3]
    run(corpus, OUT)
    assert not set(done) & set(names[4:])
    assert "job.json" not in str(names)  # which was created only where there is none
    shutil.rmtree(tmp_path / "cache")
    assert embedkit.verify(OUT).ok


def test_a_dataset_in_an_object_store_grows(corpus: Path, tmp_path: Path, store: Any) -> None:
    more = write_tsv(tmp_path / "more.tsv")
    run(corpus, OUT)
    before = stored(store)
    shutil.rmtree(tmp_path / "cache")
    run([corpus, more], OUT, reuse=OUT, overwrite=True)
    run([corpus, more], tmp_path / "whole")
    shutil.rmtree(tmp_path / "cache")
    np.testing.assert_array_equal(embedkit.load(OUT).X, embedkit.load(tmp_path / "whole").X)
    run(corpus, OUT, overwrite=True)
    shutil.rmtree(tmp_path / "cache")
    assert stored(store).keys() == before.keys()
    assert embedkit.verify(OUT).ok


PART = "sentences/part-00000001.parquet"


@pytest.mark.parametrize("machine", ["same", "another"])
@pytest.mark.parametrize("damage", ["damaged", "missing"])
def test_damage_in_an_object_store_is_found_and_repaired(
    corpus: Path, tmp_path: Path, store: Any, machine: str, damage: str
) -> None:
    """Of a file whose size is as before; a copy that was fetched earlier says nothing about it.

    The card is its owner's to edit.
    """
    run(corpus, OUT)
    whole = stored(store)
    part = tmp_path / "part"
    part.write_bytes(whole[PART])
    flip(part)
    store.pipe_file(f"{OUT}/README.md", whole["README.md"] + b"More of it.")
    assert embedkit.verify(OUT).ok
    if damage == "damaged":
        store.put_file(str(part), f"{OUT}/{PART}")
    else:
        store.rm_file(f"{OUT}/{PART}")
    if machine == "same":
        assert embedkit.verify(OUT).problems == [f"{OUT}/{PART} is {damage}"]
    else:
        shutil.rmtree(tmp_path / "cache")
        with pytest.raises(DamagedError, match=f"part-00000001.parquet is {damage}"):
            embedkit.load(OUT)
    run(corpus, OUT)
    shutil.rmtree(tmp_path / "cache")
    assert embedkit.verify(OUT).ok
    assert stored(store)[PART] == whole[PART]


def test_overwriting_sends_every_file(corpus: Path, store: Any) -> None:
    run(corpus, OUT)
    before = {name: store.info(name)["LastModified"] for name in store.find(OUT)}
    time.sleep(1)  # of which times are multiples
    run(corpus, OUT, overwrite=True)
    store.invalidate_cache()
    assert all(store.info(name)["LastModified"] > moment for name, moment in before.items())


def test_a_damaged_copy_is_fetched_again(corpus: Path, tmp_path: Path, store: Any) -> None:
    run(corpus, OUT)
    whole = embedkit.load(OUT).X
    (part,) = (tmp_path / "cache").rglob(PART)
    flip(part)
    with pytest.raises(DamagedError, match="fetches this copy again"):
        _ = embedkit.load(OUT).X
    np.testing.assert_array_equal(embedkit.load(OUT).X, whole)
    flip(part)
    assert embedkit.verify(OUT).ok  # the store is, and the copy is again
    np.testing.assert_array_equal(embedkit.load(OUT).X, whole)


def test_readers_wait_for_the_one_that_fetches(corpus: Path, tmp_path: Path, store: Any) -> None:
    run(corpus, OUT)
    shutil.rmtree(tmp_path / "cache")
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda _: embedkit.load(OUT).X.tobytes(), range(4)))
    assert len(set(read)) == 1
