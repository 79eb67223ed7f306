"""Damage of a shard: found before anything is made of it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

import embedkit
from embedkit.encoding.encoder import Encoder
from embedkit.errors import DamagedError
from tests.processes import exit_code_of
from tests.store_fixtures import load_quickly, run, write_tsv


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encoder, "load", load_quickly)
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


@pytest.mark.parametrize("every", [29, pytest.param(1, marks=pytest.mark.slow)])
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
