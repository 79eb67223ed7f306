"""Damage of a shard: found before anything is made of it, and made good."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import embedkit
from embedkit.dataset.repair import Repair
from embedkit.dataset.verification import verify
from embedkit.errors import DamagedError, OutputExistsError, UsageError
from tests.processes import command, exit_code_of
from tests.store_fixtures import (
    loading_quickly,
    quick,  # noqa: F401 - a fixture
    run,
    tree,
    write_tsv,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    with loading_quickly():
        return run(write_tsv(folder / "c.tsv"), folder / "out", layers="0,1", words="mean").out


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "out"))


def content(out: Path) -> list[object]:
    """Everything that a reader takes from the sentences."""
    views = [embedkit.load(out, name) for name in ("mean_0", "mean_1")]
    columns = [views[0].column(name) for name in views[0].columns]
    return [*(view.X.tobytes() for view in views), *columns]


def footer_at(shard: bytes) -> int:
    return len(shard) - 8 - int.from_bytes(shard[-8:-4], "little")


def read_with_flips(out: Path, every: int, report: Path) -> None:
    """Read a dataset once for every ``every``-th bit of a footer that is flipped."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where the C++ library says why it ends
    wanted = content(out)
    shard = out / "sentences" / "part-00001.parquet"
    whole = shard.read_bytes()
    found: Counter[str] = Counter()
    for bit in range(8 * footer_at(whole), 8 * len(whole), every):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        shard.write_bytes(damaged)
        try:
            found["the same" if content(out) == wanted else "other content"] += 1
        except DamagedError as error:
            found["footer" if "its footer is not what was written" in str(error) else "other"] += 1
        except Exception as error:
            found[type(error).__name__] += 1
    shard.write_bytes(whole)
    report.write_text(json.dumps(found), "utf-8")


@pytest.mark.parametrize("every", [97, pytest.param(1, marks=pytest.mark.slow)])
def test_a_bit_of_a_footer_is_found_before_it_is_parsed(
    out: Path, tmp_path: Path, every: int
) -> None:
    """Arrow ends the process on some, and takes the name of one view for that of another."""
    report = tmp_path / "report"
    assert exit_code_of(read_with_flips, out, every, report) == 0
    size = len((out / "sentences" / "part-00001.parquet").read_bytes())
    found = json.loads(report.read_text("utf-8"))
    assert list(found) == ["footer"]
    assert found["footer"] > 4 * size // every  # most of so small a file is its footer


def test_one_view_does_not_pass_for_another(out: Path) -> None:
    """One bit makes ``mean_0`` of ``mean_1``."""
    shard = out / "sentences" / "part-00001.parquet"
    whole = shard.read_bytes()
    places = [m.end() - 1 for m in re.finditer(rb"mean_[01]", whole)]
    assert places
    for at in places:
        damaged = bytearray(whole)
        damaged[at] ^= 1
        shard.write_bytes(damaged)
        with pytest.raises(DamagedError, match=r"part-00001\.parquet is damaged: its footer is"):
            content(out)


def test_a_dataset_of_an_earlier_version_has_no_sums_of_footers(out: Path) -> None:
    wanted = content(out)
    file = out / "_embedkit" / "manifest.json"
    manifest = json.loads(file.read_text("utf-8"))
    for entry in manifest["files"].values():
        del entry["footer"]
    file.write_text(json.dumps(manifest), "utf-8")
    assert content(out) == wanted
    shard = out / "sentences" / "part-00001.parquet"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DamagedError, match="Parquet magic bytes not found in footer"):
        content(out)


def flip(at: float) -> Callable[[Path], None]:
    """Change a bit at a fraction of a file."""

    def damage(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[int(at * len(content))] ^= 4
        file.write_bytes(content)

    return damage


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


DAMAGE: dict[str, list[tuple[str, Callable[[Path], object]]]] = {
    "a data page": [("sentences/part-00001.parquet", flip(0.05))],
    "a footer": [("sentences/part-00001.parquet", flip(0.9))],
    "a missing file": [("sentences/part-00000.parquet", Path.unlink)],
    "a truncated file": [("sentences/part-00003.parquet", cut)],
    "words": [("words/part-00002.parquet", flip(0.1))],
    "several": [("sentences/part-00000.parquet", cut), ("words/part-00000.parquet", Path.unlink),
                ("words/part-00003.parquet", flip(0.5))],
    "a file too many": [("sentences/part-00009.parquet", lambda file: file.write_bytes(b"x"))],
    "rejects": [("_embedkit/rejects.jsonl", Path.unlink)],
    "the job": [("sentences/part-00001.parquet", flip(0.9)), ("_embedkit/job.json", flip(0.3))],
}  # fmt: skip


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", DAMAGE)
def test_a_repaired_dataset_is_the_undamaged_one(made: Path, out: Path, name: str) -> None:
    """``extract`` makes the damaged shards and no others, and what was damaged is kept."""
    damaged = {}
    for file, damage in DAMAGE[name]:
        damage(out / file)
        if (out / file).exists() and file != "_embedkit/job.json":
            damaged[file] = (out / file).read_bytes()
    shards = {int(f[-13:-8]) for f, _ in DAMAGE[name] if f.endswith(".parquet") and "9" not in f}
    assert not verify(out).ok
    found = embedkit.repair(out)
    assert not out.exists()
    assert found.unfinished == out.with_name("out.incomplete")
    assert set(found.shards) == shards
    assert set(found.files) == set(damaged)
    assert {f: (found.aside / f).read_bytes() for f in found.files if found.aside} == damaged
    again = run(made.with_name("c.tsv"), out, layers="0,1", words="mean")
    assert again.resumed_shards == 4 - len(shards)
    assert tree(out) == tree(made)
    assert verify(out).ok


def test_a_dataset_that_is_whole_needs_no_repair(out: Path) -> None:
    assert embedkit.repair(out) == Repair()
    assert command("repair", out, cwd=out).stdout == f"{out}: as written, nothing to repair\n"
    assert sorted(p.name for p in out.parent.iterdir()) == ["out"]


def test_what_cannot_be_repaired(out: Path) -> None:
    cut(out / "sentences" / "part-00001.parquet")
    in_the_way = out.with_name("out.incomplete")
    in_the_way.mkdir()
    with pytest.raises(OutputExistsError, match=r"out\.incomplete is in the way"):
        embedkit.repair(out)
    assert len(list((out / "sentences").iterdir())) == 4  # nothing was set aside
    in_the_way.rmdir()
    manifest = out / "_embedkit" / "manifest.json"
    manifest.write_text(manifest.read_text("utf-8").replace('"shard_rows": 3', '"shard_rows": 4'))
    with pytest.raises(DamagedError, match=r"manifest\.json was edited"):
        embedkit.repair(out)
    with pytest.raises(UsageError, match="is not a dataset"):
        embedkit.repair(out.parent)


@pytest.mark.usefixtures("quick")
def test_the_command_says_what_to_do(made: Path, out: Path) -> None:
    """A second repair finds another folder to set aside in; a damaged index goes alone."""
    embedkit.build_index(out, kind="flat")
    index = next((out / "_embedkit" / "index").iterdir())
    flip(0.5)(index / "index.faiss")
    done = command("repair", out, cwd=out.parent)
    assert "index.faiss is damaged: its SHA-256 is" in done.stdout
    assert "build the index again: embedkit index" in done.stdout
    assert verify(out).ok
    cut(out / "sentences" / "part-00001.parquet")
    done = command("repair", out, cwd=out.parent)
    assert f"set aside: 1 file in {out}.damaged-2\nto make 1 shard again, run" in done.stdout
    shutil.rmtree(out.with_name("out.incomplete") / "_embedkit" / "index")
    run(made.with_name("c.tsv"), out, layers="0,1", words="mean")
    assert tree(out) == tree(made)


def test_a_view_that_no_shard_has(out: Path) -> None:
    """The manifest names one that could be."""
    file = out / "_embedkit/manifest.json"
    file.write_text(file.read_text("utf-8").replace("mean_1", "mean_2"), "utf-8")
    with pytest.raises(DamagedError, match=r"part-00000\.parquet is damaged: .*mean_2"):
        assert len(embedkit.load(out).X)
