"""Files that stand alone carry their own checksums; large files are compared by their blocks."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import embedkit
from embedkit import checksums, fsio
from embedkit.checksums import block_sums, check_files, seal
from embedkit.dataset.store import VectorData
from embedkit.decoding import read_table
from embedkit.encoding.encoder import Encoder
from embedkit.errors import DamagedError, StorageError, UsageError
from embedkit.predict import Prediction
from embedkit.prediction_files import PredictedRecord, read_prediction_files, write_prediction_file
from embedkit.runs.split_files import read_split
from embedkit.sklearn import TextEncoder
from tests.store_fixtures import load_quickly, loading_quickly, tiny_model, write_tsv


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VectorData]:
    """A dataset, and a split beside it."""
    folder = tmp_path_factory.mktemp("own")
    with loading_quickly():
        corpus = write_tsv(folder / "c.tsv")
        embedkit.extract(corpus, out=folder / "data", model=str(tiny_model()))
        embedkit.split(corpus, out=folder / "split.parquet", folds=2)
        yield embedkit.load(folder / "data")


def flips(file: Path, count: int, seed: int = 0) -> Iterator[int]:
    """One bit of a file changes, then another; the file is as it was in the end."""
    random, content = np.random.default_rng(seed), file.read_bytes()
    for bit in random.choice(8 * len(content), min(count, 8 * len(content)), replace=False):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << int(bit % 8)
        file.write_bytes(changed)
        yield int(bit)
    file.write_bytes(content)


def same_or_refused(file: Path, read: Callable[[], Any], count: int) -> int:
    """Read a file with each of some bits changed; how often it was refused."""
    wanted, messages = read(), []
    for bit in flips(file, count):
        try:
            assert read() == wanted, bit
        except DamagedError as error:
            messages.append(str(error))
    assert all(str(file) in message for message in messages)
    return len(messages)


def predictions(count: int = 20) -> list[PredictedRecord]:
    return [
        PredictedRecord(i, f"id{i}", Prediction("b", {"a": 0.25, "b": 0.75}, None))
        for i in range(count)
    ]


def test_a_bit_of_a_split_that_stands_alone(data: VectorData) -> None:
    """Arrow sees no damaged footer, which may end the process; every byte is compared."""
    file = data.path.parent / "split.parquet"
    assert same_or_refused(file, lambda: read_split(file).checksum, 300) > 270


def test_a_bit_of_predictions_that_stand_alone(tmp_path: Path) -> None:
    file = tmp_path / "p.parquet"
    write_prediction_file(predictions(), ["a", "b"], file)

    def read() -> Any:
        rows, ids, proba = read_prediction_files([file], ["a", "b"])
        return rows, ids, proba[0].tolist()

    assert same_or_refused(file, read, 300) > 270


def test_other_programs_read_sealed_files(tmp_path: Path) -> None:
    """What they write has no checksum, and is read as it is."""
    file, table = tmp_path / "x.parquet", pa.table({"a": range(1_000), "b": ["x", "y"] * 500})
    fsio.write_parquet(file, table)
    assert pq.read_table(file, page_checksum_verification=True).equals(table)
    assert pd.read_parquet(file)["a"].tolist() == list(range(1_000))
    assert pl.read_parquet(file)["b"].to_list() == table["b"].to_pylist()
    content = file.read_bytes()
    fsio.write_parquet(file, table)
    assert file.read_bytes() == content
    other = table.slice(1)
    pq.write_table(other, file)
    assert read_table(file).equals(other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": 0.5}, r"the probabilities of row 3 are none: \[0\.5"),
        ({"a": -0.75, "b": 1.75}, "the probabilities of row 3 are none"),
        ({"a": float("nan")}, "the probabilities of row 3 are none"),
        ({"a": "x"}, "proba_a, proba_b holds something else than numbers"),
    ],
)
@pytest.mark.parametrize("ending", ["tsv", "csv"])
def test_predictions_as_text_hold_probabilities(
    tmp_path: Path, ending: str, change: dict[str, Any], message: str
) -> None:
    """They have no checksum: anyone may edit them."""
    file = tmp_path / f"p.{ending}"
    made = predictions()
    made[3] = PredictedRecord(3, "id3", Prediction("b", {"a": 0.25, "b": 0.75} | change, None))
    write_prediction_file(made, ["a", "b"], file)
    with pytest.raises(DamagedError, match=rf"p\.{ending} is damaged: .*{message}"):
        read_prediction_files([file], ["a", "b"])


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Files of a few kilobytes have several blocks."""
    for module in ("embedkit.checksums", "embedkit.dataset.matrix_files"):
        monkeypatch.setattr(f"{module}.BLOCK", 1 << 10)
    return 1 << 10


def test_a_large_file_is_compared_by_its_blocks(tmp_path: Path, small_blocks: int) -> None:
    content = bytes(range(256)) * 41 + b"x"
    (tmp_path / "large").write_bytes(content)
    (tmp_path / "small").write_bytes(b"small")
    seal(tmp_path)
    stored = json.loads((tmp_path / "SHA256BLOCKS").read_text())
    assert (stored["block"], len(stored["files"]["large"])) == (small_blocks, 11)
    assert check_files(tmp_path, ["large"]) == len(content)
    for bit in flips(tmp_path / "large", 40):
        start = bit // 8 // small_blocks * small_blocks
        with pytest.raises(DamagedError, match=rf"of the 1,024 bytes from {start:,} is"):
            check_files(tmp_path, ["large"])
    for changed in (content[:-1], content + b"y", content[:2_000], content + 2_000 * b"z", b""):
        (tmp_path / "large").write_bytes(changed)
        with pytest.raises(DamagedError, match="large is damaged"):
            check_files(tmp_path)
    (tmp_path / "large").write_bytes(content)
    for _ in flips(tmp_path / "SHA256BLOCKS", 40):
        with pytest.raises(DamagedError, match="SHA256BLOCKS is damaged"):
            check_files(tmp_path, ["large"])
    seal(tmp_path)  # again, with the file itself in the folder
    assert check_files(tmp_path) == len(content) + 5 + (tmp_path / "SHA256BLOCKS").stat().st_size


def test_a_file_under_several_names_is_read_once(
    tmp_path: Path, small_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(file: Path, size: int) -> list[str]:
        read.append(file.name)
        return block_sums(file, size)

    monkeypatch.setattr("embedkit.checksums.block_sums", counted)
    for name in ("a", "b", "same"):
        (tmp_path / name).write_bytes(3_000 * b"x" if name == "same" else name.encode() * 3_000)
    (tmp_path / "c").hardlink_to(tmp_path / "a")
    seal(tmp_path)
    assert read == ["a", "b", "same"]
    assert check_files(tmp_path, ["a", "b", "c"]) == 6_000
    assert read[3:] == ["a", "b"]
    for names in (["a"], ["c"], ["b", "c"]):
        for _ in flips(tmp_path / "a", 10):
            with pytest.raises(DamagedError, match=f"{names[-1]} is damaged"):
                check_files(tmp_path, names)
    (tmp_path / "c").unlink()  # now another file, which has to be read
    (tmp_path / "c").write_bytes(3_000 * b"y")
    with pytest.raises(DamagedError, match="c is damaged"):
        check_files(tmp_path, ["a", "b", "c"])


def test_blocks_of_another_size_and_of_earlier_versions(
    tmp_path: Path, small_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large").write_bytes(3_000 * b"x")
    seal(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(checksums, "BLOCK", 2_048)
        with pytest.raises(DamagedError, match="block is 1024, expected 2048"):
            check_files(tmp_path)
        seal(tmp_path)
        assert check_files(tmp_path, ["large"]) == 3_000
        patch.setattr(checksums, "BLOCK", 1 << 24)
        seal(tmp_path)
        assert not (tmp_path / "SHA256BLOCKS").exists()
    assert check_files(tmp_path) == 3_000  # without blocks it is compared whole
    (tmp_path / "large").write_bytes(3_000 * b"y")
    with pytest.raises(DamagedError, match="large is damaged: its SHA-256 is"):
        check_files(tmp_path)


@pytest.mark.usefixtures("small_blocks")
def test_a_bit_of_mapped_vectors(data: VectorData, tmp_path: Path) -> None:
    """They are written again; who does not verify is told nothing."""
    data.mapped(tmp_path)
    (file,) = tmp_path.iterdir()
    assert np.array_equal(np.load(file), data.X)
    assert embedkit.verify(file).values == data.X.size
    content, blind = file.read_bytes(), 0
    for _ in flips(file, 60):
        damaged = file.read_bytes()
        assert not embedkit.verify(file).ok
        assert np.array_equal(data.mapped(tmp_path), data.X)
        assert file.read_bytes() == content
        file.write_bytes(damaged)
        blind += not np.array_equal(data.mapped(tmp_path, verify=False), data.X)
    assert blind > 10
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("change", [
    lambda c: b"", lambda c: c[:100], lambda c: c[:-3], lambda c: c + b"x", lambda c: 500 * b"\xff",
    lambda c: c[:-8] + (1 << 62).to_bytes(8, "little"), lambda c: b"PK\x03\x04" + c[4:],
    lambda c: c.replace(b"<f4", b"|O "), lambda c: c.replace(b"False", b"True "),
])  # fmt: skip
@pytest.mark.parametrize("verify", [True, False])
def test_a_file_that_is_no_mapped_matrix(
    data: VectorData, tmp_path: Path, change: Callable[[bytes], bytes], verify: bool
) -> None:
    """What another wrote is replaced too, and none of it is run."""
    data.mapped(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(change(file.read_bytes()))
    assert np.array_equal(data.mapped(tmp_path, verify=verify), data.X)


def test_mapped_vectors_on_a_full_disk(
    data: VectorData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left; a mapped file would end the process by SIGBUS."""
    monkeypatch.setattr(fsio, "_sync", lambda _: (_ for _ in ()).throw(OSError(28, "No space")))
    with pytest.raises(StorageError, match=r"cannot write .*\.npy: No space"):
        data.mapped(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_bit_of_the_cache_of_an_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The right vectors, or an error of embedkit; also where types of values change."""
    monkeypatch.setattr(Encoder, "load", load_quickly)
    encoder = TextEncoder(model=str(tiny_model()), device="cpu", cache=tmp_path).fit([])
    texts = ["the movie", "a bus", "rain", "i"]
    wanted = encoder.transform(texts)
    (file,) = tmp_path.iterdir()
    content, refused = file.read_bytes(), 0
    for _ in flips(file, 60):
        try:
            assert np.array_equal(encoder.transform(texts), wanted)
        except (DamagedError, StorageError):
            refused += 1
    assert refused
    for value in ("NULL", "7", "'text'", "x'00'"):
        file.write_bytes(content)
        with closing(sqlite3.connect(file)) as database, database:
            database.execute(f"UPDATE v SET x = {value}")
        found = embedkit.verify(file)
        assert (found.rows, found.ok) == (4, False)
        assert np.array_equal(encoder.transform(texts), wanted)
        assert embedkit.verify(file).ok


def test_verify_takes_everything(data: VectorData, tmp_path: Path) -> None:
    """In Python as on the command line."""
    split = data.path.parent / "split.parquet"
    assert embedkit.verify(split).rows == 10
    write_prediction_file(predictions(), ["a", "b"], tmp_path / "p.parquet")
    assert embedkit.verify(tmp_path / "p.parquet").rows == 20
    for _ in flips(split, 20):
        found = embedkit.verify(split)
        assert found.ok == (not found.problems)
        assert found.ok or str(split) in found.problems[0]
    assert embedkit.verify(split).ok
    for name, content in (("p.tsv", b"row\tid\n"), ("x", b"PAR1")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=rf"{name} carries no checksum\. Give a dataset"):
            embedkit.verify(tmp_path / name)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(UsageError, match=r"other\.parquet carries no checksum: an earlier"):
        embedkit.verify(tmp_path / "other.parquet")
