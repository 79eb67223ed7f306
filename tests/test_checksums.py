"""A bit that changed in a run, an index or a cache is an error or made again, never an answer."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import embedkit
from embedkit.checksums import check_files, file_sums, seal
from embedkit.comparison.load import read_runs
from embedkit.dataset.store import Layout, VectorData
from embedkit.encoding.encoder import Encoder
from embedkit.errors import DamagedError
from embedkit.predict import Predictor
from embedkit.runs import figures
from embedkit.runs.figures import png_of
from embedkit.runs.split_files import read_split, write_split
from embedkit.search.index import open_index
from embedkit.search.whitening import load_whitening
from embedkit.sklearn import TextEncoder
from embedkit.verification import verify
from tests.processes import command
from tests.store_fixtures import load_quickly, loading_quickly, tiny_model, write_tsv

WORDS = ["the", "movie", "was", "good", "bad", "bus", "home", "rain", "여행", "영화", "a"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A dataset with an index, and two runs on it."""
    folder = tmp_path_factory.mktemp("checksums")
    random = np.random.default_rng(0)
    rows = [(str(i), " ".join(random.choice(WORDS, 5)), str(i % 2)) for i in range(300)]
    with loading_quickly() as patch:
        patch.setattr(figures, "png_of", png_of)
        data = folder / "data"
        embedkit.extract(write_tsv(folder / "c.tsv", rows), out=data, model=str(tiny_model()))
        for estimator in ("logreg", "lightgbm"):
            embedkit.train(data, out=folder / estimator, estimator=estimator, folds=3)
        embedkit.build_index(data, kind="flat", whitening="center", tune=True)
        yield folder


def flip(file: Path, random: np.random.Generator) -> None:
    """Change one bit."""
    content = bytearray(file.read_bytes())
    content[random.integers(len(content))] ^= 1 << int(random.integers(8))
    file.write_bytes(content)


def test_sums_are_those_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "모델").mkdir()
    for name in ("a b.txt", "모델/c", "left/out"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode() * 1_000)
    seal(tmp_path, leave_out="left")
    wanted = [f"{hashlib.sha256(name.encode() * 1_000).hexdigest()}  {name}\n"
              for name in ("a b.txt", "모델/c")]  # fmt: skip
    assert (tmp_path / "SHA256SUMS").read_text("utf-8") == "".join(wanted)
    assert check_files(tmp_path) == 7_000 + 8_000
    assert check_files(tmp_path, ["모델"]) == 8_000
    (tmp_path / "모델/c").unlink()
    with pytest.raises(DamagedError, match=r"c cannot be read: No such file.*\. Build it\."):
        check_files(tmp_path, advice="Build it.")
    with pytest.raises(DamagedError, match=r"SHA256SUMS does not list other\. Make it again"):
        check_files(tmp_path, ["other"])
    (tmp_path / "SHA256SUMS").write_text(f"{wanted[0]}no sum\n", "utf-8")
    with pytest.raises(DamagedError, match="line 2 is no checksum and path"):
        file_sums(tmp_path)
    (tmp_path / "SHA256SUMS").unlink()
    with pytest.raises(DamagedError, match="SHA256SUMS cannot be read: No such file"):
        file_sums(tmp_path)


@pytest.mark.parametrize("estimator", ["logreg", "lightgbm"])
def test_a_bit_of_a_run(made: Path, tmp_path: Path, estimator: str) -> None:
    """Whatever reads a file of a run refuses it, and ``verify`` names it."""
    random = np.random.default_rng(1)
    original = made / estimator
    names = sorted({"SHA256SUMS", *file_sums(original)})
    readers: list[tuple[str, Callable[[Path], object]]] = [
        ("run.json", lambda run: read_runs([run])),
        ("predictions.parquet", lambda run: read_runs([run])),
        ("inner_predictions.parquet", lambda run: read_runs([run])),
        ("model/", lambda run: Predictor(run, device="cpu")),
        ("SHA256SUMS", verify_strictly),
        ("figures/", verify_strictly),
    ]
    for name in names:
        read = next(read for start, read in readers if name.startswith(start))
        for _ in range(3):
            run = Path(shutil.copytree(original, tmp_path / "run"))
            flip(run / name, random)
            with pytest.raises(DamagedError):
                read(run)
            found = verify(run)
            assert not found.ok
            assert name in found.problems[0] or name == "SHA256SUMS"
            assert not found.problems[0].endswith(".")
            shutil.rmtree(run)
    assert verify(original).ok
    assert verify(original).files == len(names) - 1


def test_damage_goes_unnoticed_where_that_is_asked_for(made: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(made / "lightgbm", tmp_path / "run"))
    file = run / "model" / "booster.txt"
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(DamagedError, match=r"booster\.txt is damaged"):
        Predictor(run, device="cpu")
    assert Predictor(run, device="cpu", verify=False).names == Predictor(made / "lightgbm").names
    for options, code in (((), 5), (("--no-verify",), 0)):
        done = command("predict", run, "--text", "good", *options, cwd=tmp_path)
        assert done.returncode == code, done.stderr


def verify_strictly(run: Path) -> None:
    check_files(run)


def test_a_bit_of_an_index(made: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    data = Path(shutil.copytree(made / "data", tmp_path / "data"))
    folder = next((Layout(data).private / "index").iterdir())
    for name in (*file_sums(folder), "SHA256SUMS"):
        before = (folder / name).read_bytes()
        flip(folder / name, random)
        with pytest.raises(DamagedError, match=r"Build it again: embedkit index .* --overwrite"):
            open_index(embedkit.load(data), kind="flat", whitening="center")
        assert not verify(data).ok
        (folder / name).write_bytes(before)
    assert verify(data).ok


@pytest.mark.parametrize("kind", ["center", "whiten"])
def test_a_bit_of_a_whitening_map(made: Path, tmp_path: Path, kind: str) -> None:
    """It is fitted again."""
    random = np.random.default_rng(3)
    folder = Path(shutil.copytree(made / "data", tmp_path / "data"))
    data = embedkit.load(folder)
    wanted = load_whitening(data, kind)
    file = next((Layout(folder).private / "whitening").glob(f"*.{kind}.*"))
    for _ in range(20):
        flip(file, random)
        assert_same_map(data, kind, wanted.apply(data.X))


def assert_same_map(data: VectorData, kind: str, wanted: np.ndarray) -> None:
    assert np.array_equal(load_whitening(data, kind).apply(data.X), wanted)


def test_a_bit_of_a_cached_vector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is encoded again."""
    monkeypatch.setattr(Encoder, "load", load_quickly)
    encoder = TextEncoder(model=str(tiny_model()), device="cpu", cache=tmp_path).fit([])
    texts = ["the movie", "a bus", "rain"]
    wanted = encoder.transform(texts)
    with closing(sqlite3.connect(next(tmp_path.glob("*.sqlite")))) as database, database:
        for key, vector in database.execute("SELECT k, x FROM v").fetchall():
            changed = bytearray(vector)
            changed[-1] ^= 1
            database.execute("UPDATE v SET x = ? WHERE k = ?", [bytes(changed), key])
    assert np.array_equal(encoder.transform(texts), wanted)
    with closing(sqlite3.connect(next(tmp_path.glob("*.sqlite")))) as database:
        assert database.execute("SELECT count(*) FROM v").fetchone() == (3,)
    assert np.array_equal(encoder.transform(texts), wanted)


def test_an_index_is_not_read_whole_where_that_is_asked_for(made: Path, tmp_path: Path) -> None:
    """What says what it is stays compared."""
    data = Path(shutil.copytree(made / "data", tmp_path / "data"))
    folder = next((Layout(data).private / "index").iterdir())
    wanted: dict[str, Any] = {"kind": "flat", "whitening": "center"}
    content = bytearray((folder / "index.faiss").read_bytes())
    content[-5] ^= 1
    (folder / "index.faiss").write_bytes(content)
    with pytest.raises(DamagedError, match=r"index\.faiss is damaged"):
        open_index(embedkit.load(data), **wanted)
    assert open_index(embedkit.load(data), verify=False, **wanted).info.records == 300
    (folder / "index.json").write_bytes((folder / "index.json").read_bytes() + b" ")
    with pytest.raises(DamagedError, match=r"index\.json is damaged"):
        open_index(embedkit.load(data), verify=False, **wanted)


def test_verify_takes_a_split_a_cache_and_an_index(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Encoder, "load", load_quickly)
    split = tmp_path / "split.parquet"
    embedkit.split(made / "data", out=split, folds=3)
    encoder = TextEncoder(model=str(tiny_model()), device="cpu", cache=tmp_path / "cache").fit([])
    encoder.transform(["the movie", "a bus"])
    cache = next((tmp_path / "cache").glob("*.sqlite"))
    index = next((Layout(made / "data").private / "index").iterdir())
    for path, text in ((split, "1 file, 300 rows"), (cache, "1 file, 2 rows"), (index, "2 files")):
        done = command("verify", path, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, f"{path}: {text}: as written\n")
    random = np.random.default_rng(0)
    with closing(sqlite3.connect(cache)) as database, database:
        database.execute("UPDATE v SET x = zeroblob(length(x)) WHERE k IN (SELECT min(k) FROM v)")
    flip_page(split, random)
    for path, text in ((cache, "1 of 2 vectors are not what was written"), (split, "split.parq")):
        done = command("verify", path, cwd=tmp_path)
        assert done.returncode == 5
        assert text in done.stderr
    cache.write_bytes(cache.read_bytes()[:5_000])
    assert command("verify", cache, cwd=tmp_path).returncode == 5


def test_every_part_of_a_split_is_compared(made: Path, tmp_path: Path) -> None:
    """Groups and settings too; a split in a run as all of its files."""
    file = tmp_path / "split.parquet"
    whole = embedkit.split(made / "data", out=file, folds=3)
    content = file.read_bytes()
    for changed in (
        replace(whole, group=whole.group[::-1]),
        replace(whole, settings=replace(whole.settings, seed=1)),
    ):
        table = pq.read_table(file)
        write_split(changed, tmp_path / "other.parquet")
        other = pq.read_table(tmp_path / "other.parquet")
        stored = json.loads(table.schema.metadata[b"embedkit.split"])
        stored |= {"seed": changed.settings.seed}
        pq.write_table(other.replace_schema_metadata(
            {b"embedkit.split": json.dumps(stored).encode()}), file)  # fmt: skip
        with pytest.raises(DamagedError, match="is not what was written"):
            read_split(file)
        file.write_bytes(content)
    assert read_split(file).checksum == whole.checksum
    seal(tmp_path)
    file.write_bytes(content + b" ")
    with pytest.raises(DamagedError, match=r"split\.parquet is damaged: its SHA-256 is"):
        read_split(file)


def flip_page(file: Path, random: np.random.Generator) -> None:
    """Change a bit of the first data pages."""
    content = bytearray(file.read_bytes())
    content[60 + random.integers(40)] ^= 1 << int(random.integers(8))
    file.write_bytes(content)


@pytest.mark.figures
def test_the_same_run_is_the_same_files(made: Path, tmp_path: Path) -> None:
    """All but ``run.json``, which tells how long it took, and the list of checksums."""
    for estimator in ("logreg", "lightgbm"):
        embedkit.train(made / "data", out=tmp_path / estimator, estimator=estimator, folds=3)
        sums = [dict(file_sums(folder / estimator)) for folder in (made, tmp_path)]
        for one in sums:
            del one["run.json"]
        assert sums[0] == sums[1]
        assert sums[0]
