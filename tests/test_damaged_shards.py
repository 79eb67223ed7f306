"""Damage of a dataset: refused when read, found by verify, repaired by the same extract."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import embedkit
from embedkit.dataset.verify import verify
from embedkit.errors import DamagedError, OutputExistsError
from tests.store_fixtures import run, tree, write_tsv

SETTINGS = {"layers": "0,1", "words": "mean"}
PART = "sentences/part-00000001.parquet"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    return run(write_tsv(folder / "c.tsv"), folder / "out", **SETTINGS).out


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "out"))


def again(made: Path, out: Path, **settings: object) -> int:
    """Run the same command again; number of shards that were kept."""
    return run(made.with_name("c.tsv"), out, **{**SETTINGS, **settings}).resumed_shards


def flip(at: float) -> Callable[[Path], None]:
    """Change a bit at a fraction of a file."""

    def damage(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[int(at * len(content))] ^= 4
        file.write_bytes(content)

    return damage


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def test_every_bit_of_a_page_is_refused(out: Path) -> None:
    shard = out / PART
    whole = shard.read_bytes()
    column = pq.read_metadata(shard).row_group(0).column(pq.read_schema(shard).names.index("id"))
    vectors = pq.read_metadata(shard).row_group(0)
    last = vectors.column(vectors.num_columns - 1)
    for chunk, read in ((column, lambda d: d.ids), (last, lambda d: d.X)):
        end = chunk.data_page_offset + chunk.total_compressed_size
        for back in (1, 7, 20):
            damaged = bytearray(whole)
            damaged[end - back] ^= 1
            shard.write_bytes(damaged)
            with pytest.raises(DamagedError, match=r"part-00000001\.parquet"):
                read(embedkit.load(out, "mean_1"))


def test_one_view_does_not_pass_for_another(out: Path) -> None:
    """One bit of the footer makes ``mean_0`` of ``mean_1``."""
    shard = out / PART
    whole = shard.read_bytes()
    places = [m.end() - 1 for m in re.finditer(rb"mean_[01]", whole)]
    assert places
    expected = [embedkit.load(out, name).X.tobytes() for name in ("mean_0", "mean_1")]
    for at in places:
        damaged = bytearray(whole)
        damaged[at] ^= 1
        shard.write_bytes(damaged)
        with suppress(DamagedError):
            vectors = [embedkit.load(out, name).X.tobytes() for name in ("mean_0", "mean_1")]
            assert vectors == expected


@pytest.mark.parametrize("name", ["manifest.json", "SHA256SUMS"])
def test_every_bit_of_the_manifest_is_refused(out: Path, name: str) -> None:
    file = out / name if name == "SHA256SUMS" else out / "_embedkit" / name
    whole = file.read_bytes()
    places = range(0, min(len(whole), 3_000), 61)
    if name == "SHA256SUMS":  # the entry of the manifest
        end = whole.index(b"_embedkit/manifest.json") + 23
        places = range(end - 89, end, 5)
    for at in places:
        damaged = bytearray(whole)
        damaged[at] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(DamagedError, match=r"manifest\.json|SHA256SUMS"):
            embedkit.load(out)


DAMAGE: dict[str, list[tuple[str, Callable[[Path], object]]]] = {
    "a data page": [(PART, flip(0.05))],
    "a footer": [(PART, flip(0.9))],
    "several": [
        ("sentences/part-00000000.parquet", cut),
        ("words/part-00000000.parquet", Path.unlink),
        ("words/part-00000003.parquet", flip(0.5)),
    ],
    "rejects": [("_embedkit/rejects.jsonl", Path.unlink)],
    "the manifest": [("_embedkit/manifest.json", flip(0.4))],
    "the job": [(PART, flip(0.9)), ("_embedkit/job.json", flip(0.3))],
    "a checksum": [("SHA256SUMS", flip(0.999))],
    "no checksums": [("SHA256SUMS", Path.unlink)],
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", DAMAGE)
def test_the_same_extract_makes_damaged_files_again(
    made: Path, out: Path, name: str, notes: list[str]
) -> None:
    """Damaged shards are made, no others; the result is the undamaged dataset."""
    for file, damage in DAMAGE[name]:
        damage(out / file)
    lost = len({file[-16:-8] for file, _ in DAMAGE[name] if file.endswith(".parquet")})
    lost = {"a checksum": 1, "no checksums": 4}.get(name, lost)
    assert not verify(out).ok
    assert again(made, out) == 4 - lost
    assert any("damaged files" in note for note in notes)
    assert tree(out) == tree(made)
    assert verify(out).ok
    assert sorted(p.name for p in out.parent.iterdir()) == ["out"]


@pytest.mark.usefixtures("quick")
def test_the_index_of_a_repaired_dataset_is_kept(made: Path, out: Path) -> None:
    embedkit.index(out, kind="flat")
    index = next((out / "_embedkit/index").iterdir())
    content = tree(index)
    flip(0.05)(out / PART)
    assert again(made, out) == 3
    assert tree(index) == content


@pytest.mark.usefixtures("quick")
def test_a_repair_that_cannot_begin_changes_nothing(made: Path, out: Path) -> None:
    cut(out / PART)
    before = tree(out)
    (out.with_name("out.incomplete") / "mine").mkdir(parents=True)
    with pytest.raises(OutputExistsError, match=r"out\.incomplete"):
        again(made, out)
    with pytest.raises(OutputExistsError, match=r"vectors\.views"):
        again(made, out, layers="0")
    assert tree(out) == before
