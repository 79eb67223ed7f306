"""Damage of datasets, runs, indexes and Parquet files: refused when read, found by verify."""

from __future__ import annotations

import hashlib
import random
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embedkit
from embedkit import storage
from embedkit.dataset.parquet import vector_column
from embedkit.dataset.tables import copy_vectors
from embedkit.encoding.encoder import Encoder
from embedkit.errors import DamagedError, OutputExistsError
from embedkit.storage import check_files, file_sums, seal
from embedkit.verification import verify
from tests.finetune_fixtures import corpus_of
from tests.flips import flip as flip_bits
from tests.models import state
from tests.processes import command, invoke
from tests.store_fixtures import N_ACCEPTED, flip, manifest_of, run, tiny_model, tree, write_tsv

pytestmark = pytest.mark.usefixtures("quick")

SETTINGS = {"layers": "1,2,sum:1..2", "pooling": "cls,mean,pooler", "words": "mean", "tokens": True}
PART = "sentences/part-00000001.parquet"


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "out"))


def again(made: Path, out: Path, **settings: object) -> int:
    """Run the same command again; number of shards that were kept."""
    return run(made.with_name("corpus.tsv"), out, **{**SETTINGS, **settings}).resumed_shards


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def test_a_shard_of_another_model_is_refused(made: Path, out: Path, tmp_path: Path) -> None:
    """Whether it has been there, or gets the name of the shard while the dataset is open."""
    settings = SETTINGS | {"model": str(tiny_model(seed=2))}
    other = run(made.with_name("corpus.tsv"), tmp_path / "other", **settings).out
    files = manifest_of(out)["files"]  # of this other dataset, shards often have the same size
    files[PART]["bytes"] = (other / PART).stat().st_size
    state(out / "_embedkit/manifest.json", files=files)
    seal(out)
    data: Any = embedkit.load(made)
    blocks = data.reader.blocks  # opens each shard once
    shutil.copy(made / PART, tmp_path / "kept")
    try:
        storage.link_file(other / PART, made / PART)
        for read in (lambda: data.reader.vectors_of(blocks[1]), lambda: data.ids):
            with pytest.raises(DamagedError, match=r"part-00000001\.parquet"):
                read()
    finally:
        storage.link_file(tmp_path / "kept", made / PART)
    shutil.copy(other / PART, out / PART)
    for name in ("X", "row"):
        with pytest.raises(DamagedError, match=r"part-00000001\.parquet cannot be read: its foot"):
            getattr(embedkit.load(out), name)


def test_no_bit_of_a_page_header_gives_another_column(out: Path) -> None:
    """Arrow reads fewer values, without an error, where the header says so; nor one of the page."""
    shard = out / PART
    whole, groups = shard.read_bytes(), pq.read_metadata(shard).row_group(0)
    schema = pq.read_schema(shard).names
    refused, rng = 0, random.Random(0)
    for name in ("row", "id", "n_tokens", "truncated", "text_key"):
        chunk = groups.column(schema.index(name))
        shard.write_bytes(whole)
        expected = embedkit.load(out).column(name)
        end = chunk.data_page_offset + chunk.total_compressed_size
        for at in (*range(chunk.data_page_offset, chunk.data_page_offset + 40), end - 7, end - 1):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << rng.randrange(8)
            shard.write_bytes(damaged)
            try:
                assert embedkit.load(out).column(name) == expected, (name, at)
            except DamagedError:
                refused += 1
    assert refused > 40


def first_lines(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))


DAMAGE: dict[str, tuple[int, list[tuple[str, Callable[[Path], object]]]]] = {
    "a data page": (1, [(PART, partial(flip, at=0.05))]),
    "a footer": (1, [(PART, partial(flip, at=0.9))]),
    "several": (
        2,
        [
            ("sentences/part-00000000.parquet", cut),
            ("words/part-00000000.parquet", Path.unlink),
            ("words/part-00000003.parquet", flip),
        ],
    ),
    "rejects": (0, [("_embedkit/rejects.jsonl", Path.unlink)]),
    "the manifest": (0, [("_embedkit/manifest.json", partial(flip, at=0.4))]),
    "the job": (1, [(PART, partial(flip, at=0.9)), ("_embedkit/job.json", partial(flip, at=0.3))]),
    "a checksum": (1, [("SHA256SUMS", partial(flip, at=0.999))]),
    "no checksums": (4, [("SHA256SUMS", Path.unlink)]),
    "whole lines of checksums": (4, [("SHA256SUMS", first_lines)]),
    "a checksum and a data page": (
        2,
        [("SHA256SUMS", partial(flip, at=0.999)), (PART, partial(flip, at=0.05))],
    ),
}
"""How many of four shards are lost, and what is done to which files."""


@pytest.mark.parametrize("name", DAMAGE)
def test_the_same_extract_makes_damaged_files_again(
    made: Path, out: Path, name: str, notes: list[str]
) -> None:
    """Damaged shards are made, no others; the result is the undamaged dataset."""
    lost, damages = DAMAGE[name]
    for file, damage in damages:
        damage(out / file)
    assert not verify(out).ok
    assert again(made, out) == 4 - lost
    assert any(re.match(r"making \d damaged file", note) for note in notes)
    assert tree(out) == tree(made)
    assert verify(out).ok
    assert sorted(p.name for p in out.parent.iterdir()) == ["out"]


def test_a_file_of_somebody_else_is_not_removed(made: Path, out: Path) -> None:
    file = out / "sentences/part (1).parquet"
    file.write_bytes(b"PAR1")
    assert not verify(out).ok
    with pytest.raises(OutputExistsError, match="Move it away"):
        again(made, out)
    assert file.read_bytes() == b"PAR1"


def test_a_repaired_dataset_keeps_its_index_and_what_else_is_there(
    made: Path, out: Path, once_before: Any
) -> None:
    embedkit.index(out, kind="flat")
    index = next((out / "_embedkit/index").iterdir())
    content = tree(index)
    (out / "runs/one").mkdir(parents=True)
    (out / "runs/one/notes").write_text("mine")
    (out / "README.md").write_text("License: mine")
    (out / "link").symlink_to("runs")
    flip(out / PART, at=0.05)
    once_before(storage, "_end_swap", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        again(made, out)
    again(made, out)
    assert tree(index) == content
    assert (out / "link").is_symlink()
    assert (out / "runs/one/notes").read_text() == "mine"
    assert (out / "README.md").read_text() == "License: mine"
    assert verify(out).ok


def test_a_repair_drops_shards_of_a_table_that_the_dataset_has_not(tmp_path: Path) -> None:
    corpus, out = write_tsv(tmp_path / "c.tsv"), tmp_path / "out"
    run(corpus, out)
    shutil.copytree(out / "sentences", out / "words")
    run(corpus, out)
    assert verify(out).ok


def test_a_repair_that_cannot_begin_changes_nothing(made: Path, out: Path) -> None:
    cut(out / PART)
    before = tree(out)
    (out.with_name("out.incomplete") / "mine").mkdir(parents=True)
    with pytest.raises(OutputExistsError, match=r"out\.incomplete"):
        again(made, out)
    with pytest.raises(OutputExistsError, match=r"vectors\.views"):
        again(made, out, layers="0")
    assert tree(out) == before


# verify


WRONG_COUNTS = {
    "records are accepted": {"accepted": 9},
    "records are rejected": {"rejected": 4},
    "is not the number of records": {"records": 14},
}


@pytest.mark.parametrize("problem", WRONG_COUNTS)
def test_counts_that_do_not_add_up(out: Path, problem: str) -> None:
    totals = manifest_of(out)["totals"] | WRONG_COUNTS[problem]
    state(out / "_embedkit/manifest.json", totals=totals)
    assert "manifest.json is damaged" in verify(out).problems[0]
    seal(out)
    assert any(problem in p for p in verify(out).problems)


def test_rows_that_no_file_has_are_not_made_up(out: Path) -> None:
    files = manifest_of(out)["files"]
    for entry in files.values():
        entry["rows"] += 1
    state(out / "_embedkit/manifest.json", files=files)
    seal(out)
    with pytest.raises(DamagedError, match="rows"):
        _ = embedkit.load(out).X


@pytest.mark.parametrize("folder", ["sentences", "words", "tokens"])
def test_missing_extra_and_swapped_parts(out: Path, folder: str) -> None:
    first, second, extra = (out / folder / f"part-0000000{i}.parquet" for i in (0, 1, 7))
    shutil.copy(first, extra)
    assert verify(out).problems == [f"{folder}/part-00000007.parquet is not in SHA256SUMS"]
    extra.unlink()
    first.rename(extra)
    second.rename(first)
    extra.rename(second)
    assert len(verify(out).problems) == 2
    first.unlink()
    missing = f"{folder}/part-00000000.parquet is missing"
    assert any(p.endswith(missing) for p in verify(out).problems)


@pytest.mark.parametrize("content", [None, "{", '{"row": "x"}', '{"row": 1e999}', "[" * 99999])
def test_damaged_rejects(out: Path, content: str | None) -> None:
    rejects = out / "_embedkit/rejects.jsonl"
    rejects.unlink()
    if content is not None:
        rejects.write_text(content)
        assert any("reject" in p for p in verify(out).problems)
        seal(out)
    assert any("reject" in p for p in verify(out).problems)


def test_a_row_both_embedded_and_rejected(out: Path) -> None:
    rejects = out / "_embedkit/rejects.jsonl"
    rejects.write_text(rejects.read_text("utf-8").replace('"row": 5', '"row": 6'), "utf-8")
    seal(out)
    assert "row 6 is both embedded and rejected" in verify(out).problems


def test_a_row_that_is_there_twice_and_words_of_none(out: Path) -> None:
    files = manifest_of(out)["files"]
    third, last = (f"sentences/part-0000000{i}.parquet" for i in (2, 3))
    shutil.copy(out / last, out / third)  # a single row, which stands behind itself
    state(out / "_embedkit/manifest.json", files=files | {third: files[last]})
    seal(out)
    problems = verify(out).problems
    assert "the rows of the sentences are not in ascending order" in problems
    assert "words have rows that no sentence has" in problems


def test_vectors_are_made_again_to_the_same_bits(tmp_path: Path) -> None:
    settings = {"storage": "float16", "on_long": "window", "stride": 2, "pooling": "mean,max"}
    made = run(write_tsv(tmp_path / "c.tsv"), tmp_path / "out", **settings).out
    found = verify(made, recompute=999)
    assert found.problems == []
    assert found.recomputed_shards == [0, 1, 2, 3]
    assert found.recomputed_rows == found.identical_rows == N_ACCEPTED
    assert found.worst == 0
    assert found.recomputed == f"{N_ACCEPTED} texts encoded again: the same bits"


def test_a_sample_of_texts_is_encoded_again(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In other company than at first, and with their words; another machine is told."""
    few = verify(out, recompute=3)
    words = embedkit.load(out, level="word").row
    chosen = [few.recomputed_texts, few.recomputed_rows, few.identical_rows]
    assert chosen[0] == 3
    assert chosen[1] == chosen[2] > 3
    assert chosen[1] <= 3 + 3 * np.bincount(words).max()
    assert verify(out, recompute=3, seed=1).recomputed_shards != few.recomputed_shards
    said = invoke("verify", out, "--recompute", 3).stdout
    assert said.splitlines()[1] == "3 texts encoded again: the same bits"
    genuine = Encoder.start_shard

    def other(self: Encoder, texts: Any, **kwargs: Any) -> Any:
        vectors = genuine(self, texts, **kwargs).result()
        for values in vectors.views.values():
            values *= np.float32(1 + 1e-6)
        return SimpleNamespace(result=lambda: vectors)

    monkeypatch.setattr(Encoder, "start_shard", other)
    monkeypatch.setattr("tokenizers.__version__", "9.9")
    moved = verify(out, recompute=3)
    assert moved.ok
    assert "apart (relative L2); it was made elsewhere:" in moved.recomputed
    assert '"9.9" now' in moved.recomputed


@pytest.mark.parametrize("level", ["sentence", "token"])
def test_vectors_that_differ_are_found(
    out: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """Of sentences, or of tokens and of the words that these are in."""
    genuine = Encoder.start_shard

    def drifted(self: Encoder, texts: Any, **kwargs: Any) -> Any:
        vectors = genuine(self, texts, **kwargs).result()
        if len(texts) == 1:  # the last shard
            stored = vectors.views["mean_1"] if level == "sentence" else vectors.tokens["1"]
            stored[0 if level == "sentence" else 1] *= np.float32(1.001)
        return SimpleNamespace(result=lambda: vectors)

    monkeypatch.setattr(Encoder, "start_shard", drifted)
    found = verify(out, recompute=999)
    assert [p[:21] for p in found.problems] == ["part-00000003.parquet"]
    assert found.worst == pytest.approx(1e-3, rel=0.05)
    assert found.identical_rows == found.recomputed_rows - 1


# checksums


def test_the_file_is_that_of_sha256sum(tmp_path: Path) -> None:
    """A name may have what divides lines elsewhere."""
    names = ("a b.txt", "a\u2028b", "c\x85", "d\x0b", "모델/c")
    for name in (*names, "_unfinished/out"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode() * 1_000)
    seal(tmp_path)
    lines = [f"{hashlib.sha256(name.encode() * 1_000).hexdigest()}  {name}\n" for name in names]
    assert (tmp_path / "SHA256SUMS").read_bytes() == "".join(lines).encode()
    check_files(tmp_path)
    (tmp_path / "모델/c").write_text("other")
    check_files(tmp_path, ["a b.txt"])
    with pytest.raises(DamagedError, match=r"c is damaged.*Build it\."):
        check_files(tmp_path, advice="Build it.")
    (tmp_path / "모델/c").unlink()
    with pytest.raises(DamagedError, match="c is missing"):
        check_files(tmp_path)
    with pytest.raises(DamagedError, match="other"):
        check_files(tmp_path, ["other"])
    (tmp_path / "SHA256SUMS").write_text(f"{lines[0]}no sum\n", "utf-8")
    with pytest.raises(DamagedError, match="line 2"):
        file_sums(tmp_path)
    assert list(file_sums(tmp_path, torn=True)) == ["a b.txt"]
    (tmp_path / "SHA256SUMS").write_bytes(b"")
    assert not verify(tmp_path).ok
    (tmp_path / "SHA256SUMS").unlink()
    with pytest.raises(DamagedError, match="SHA256SUMS"):
        check_files(tmp_path)
    assert file_sums(tmp_path, torn=True) == {}


def test_a_page_of_a_single_parquet_file(tmp_path: Path) -> None:
    file = tmp_path / "split.parquet"
    embedkit.split(corpus_of(tmp_path / "c.tsv", count=120), out=file, folds=3)
    assert verify(file).rows == 120
    chunk = pq.read_metadata(file).row_group(0).column(0)
    flip(file, at=(chunk.data_page_offset + chunk.total_compressed_size - 5) / file.stat().st_size)
    assert command("verify", file, cwd=tmp_path).returncode == 5


def test_a_sample_of_flipped_bits(tmp_path: Path) -> None:
    """Of every file that a command makes, as ``make crashes`` flips a thousand."""
    ended, wrong = flip_bits(tmp_path, 50, seed=3)
    assert not wrong
    assert ended["refused"] > 25


# vectors read straight from pages, against pyarrow


def write_pages(path: Path, vectors: dict[str, Any], **options: Any) -> pq.FileMetaData:
    columns = [vector_column(v) for v in vectors.values()]
    fields = [pa.field(n, c.type, nullable=False) for n, c in zip(vectors, columns, strict=True)]
    settings: dict[str, Any] = {
        "compression": "none",
        "use_dictionary": False,
        "write_statistics": False,
        "write_page_checksum": True,
        "write_page_index": True,
        "row_group_size": 100,
        "data_page_size": 1_024,
        **options,
    }
    pq.write_table(pa.Table.from_arrays(columns, schema=pa.schema(fields)), path, **settings)
    return pq.read_metadata(path)


def random_vectors(rows: int, width: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


@given(
    rows=st.integers(0, 200),
    width=st.integers(1, 40),
    group=st.integers(1, 120),
    page=st.sampled_from([64, 500, 4_096, 1 << 20]),
)
def test_every_layout_is_read(tmp_path: Path, rows: int, width: int, group: int, page: int) -> None:
    vectors = {"a": random_vectors(rows, width), "b": random_vectors(rows, 3, 1)}
    metadata = write_pages(tmp_path / "x", vectors, row_group_size=group, data_page_size=page)
    ours = {name: np.zeros_like(v) for name, v in vectors.items()}
    start = 0
    for number in range(metadata.num_row_groups):
        stop = start + metadata.row_group(number).num_rows
        parts = {name: v[start:stop] for name, v in ours.items()}
        with (tmp_path / "x").open("rb") as file:
            assert copy_vectors(file.fileno(), metadata.row_group(number), parts)
        start = stop
    for name, wanted in vectors.items():
        assert np.array_equal(ours[name], wanted)


def test_no_flipped_bit_gives_a_wrong_number(tmp_path: Path) -> None:
    """Whatever byte of the column is hit: an error, or left to the reader that will raise one."""
    path = tmp_path / "x"
    vectors = random_vectors(40, 4)
    metadata = write_pages(path, {"a": vectors}, data_page_size=256)
    content = path.read_bytes()
    chunk = metadata.row_group(0).column(0)
    start = chunk.data_page_offset
    raised = 0
    for at in range(start, start + chunk.total_compressed_size):
        for bit in (0, 6):
            damaged = bytearray(content)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            ours = np.zeros_like(vectors)
            try:
                with path.open("rb") as file:
                    done = copy_vectors(file.fileno(), metadata.row_group(0), {"a": ours})
            except ValueError:
                raised += 1
            else:
                assert not done or np.array_equal(ours, vectors), (at, bit)
    assert raised > chunk.total_compressed_size
