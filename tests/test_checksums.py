"""``SHA256SUMS``: damage of runs, indexes and single Parquet files is an error, never an answer."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import embedkit
from embedkit.comparison.load import read_runs
from embedkit.dataset.verify import verify
from embedkit.errors import DamagedError
from embedkit.predict import Predictor
from embedkit.storage import check_files, file_sums, read_table, seal
from tests.finetune_fixtures import corpus_of
from tests.processes import command
from tests.store_fixtures import extract_tiny


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, a run on it, and a split beside it."""
    folder = tmp_path_factory.mktemp("checksums")
    data = folder / "data"
    extract_tiny(corpus_of(folder / "c.tsv", count=120), data)
    embedkit.train(data, out=folder / "run", folds=3)
    embedkit.split(data, out=folder / "split.parquet", folds=3)
    return folder


def flip(file: Path, random: np.random.Generator) -> None:
    """Change one bit."""
    content = bytearray(file.read_bytes())
    content[random.integers(len(content))] ^= 1 << int(random.integers(8))
    file.write_bytes(content)


def test_the_file_is_that_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "모델").mkdir()
    for name in ("a b.txt", "모델/c", "left/out"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode() * 1_000)
    seal(tmp_path, leave_out="left")
    lines = [
        f"{hashlib.sha256(name.encode() * 1_000).hexdigest()}  {name}\n"
        for name in ("a b.txt", "모델/c")
    ]
    assert (tmp_path / "SHA256SUMS").read_text("utf-8") == "".join(lines)
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


def test_a_bit_of_a_run(made: Path, tmp_path: Path) -> None:
    """Every reader of a file of a run refuses it, and ``verify`` names it."""
    random = np.random.default_rng(1)
    readers: list[tuple[str, Callable[[Path], object]]] = [
        ("run.json", lambda run: read_runs([run])),
        ("predictions.parquet", lambda run: read_runs([run])),
        ("model/", lambda run: Predictor(run, device="cpu")),
        ("", check_files),
    ]
    for name in sorted({"SHA256SUMS", *file_sums(made / "run")}):
        read = next(read for start, read in readers if name.startswith(start))
        run = Path(shutil.copytree(made / "run", tmp_path / "run"))
        flip(run / name, random)
        with pytest.raises(DamagedError):
            read(run)
        result = verify(run)
        assert not result.ok
        assert name in result.problems[0] or name == "SHA256SUMS"
        shutil.rmtree(run)
    assert verify(made / "run").files == len(file_sums(made / "run"))


def test_a_page_of_a_single_parquet_file(made: Path, tmp_path: Path) -> None:
    file = Path(shutil.copy(made / "split.parquet", tmp_path / "split.parquet"))
    assert verify(file).rows == 120
    done = command("verify", file, cwd=tmp_path)
    assert done.returncode == 0
    chunk = pq.read_metadata(file).row_group(0).column(0)
    content = bytearray(file.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size - 5] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedError, match=r"split\.parquet"):
        read_table(file)
    assert not verify(file).ok
    assert command("verify", file, cwd=tmp_path).returncode == 5
