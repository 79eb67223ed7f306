"""Damage of every kind is found, and vectors can be made again to the same bits."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embedkit import storage
from embedkit.dataset.verify import require_ok, verify
from embedkit.encoding.encoder import Encoder
from embedkit.errors import DamagedError
from tests.store_fixtures import N_ACCEPTED, manifest_of, run, write_tsv

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    return run(write_tsv(folder / "corpus.tsv"), folder / "out", words="mean", tokens=True).out


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "out"))


@pytest.mark.parametrize("seed", range(20))
def test_any_flipped_byte_is_found(out: Path, seed: int) -> None:
    rng = random.Random(seed)
    part = rng.choice(sorted(out.glob("*/part-*.parquet")))
    content = bytearray(part.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    part.write_bytes(content)
    found = verify(out)
    assert not found.ok
    with pytest.raises(DamagedError, match=part.name) as caught:
        require_ok(found, out)
    assert caught.value.exit_code == 5


def _sealed(out: Path) -> None:
    """Write the checksums of files that were edited."""
    sums = {name: storage.file_sha256(out / name) for name in storage.file_sums(out)}
    storage.write_sums(out, sums, scratch=out)


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"accepted": 9}, "accepted"), ({"rejected": 4}, "rejected"), ({"records": 14}, "records")],
)
def test_counts_that_do_not_add_up(out: Path, change: dict[str, int], problem: str) -> None:
    content = manifest_of(out)
    content["totals"].update(change)
    (out / "_embedkit/manifest.json").write_text(json.dumps(content), "utf-8")
    assert "manifest.json is damaged" in verify(out).problems[0]
    _sealed(out)
    assert any(problem in p for p in verify(out).problems)


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
    assert any(
        p.endswith(f"{folder}/part-00000000.parquet is missing") for p in verify(out).problems
    )


@pytest.mark.parametrize("content", [None, "{", '{"row": "x"}'])
def test_damaged_rejects(out: Path, content: str | None) -> None:
    rejects = out / "_embedkit/rejects.jsonl"
    rejects.unlink()
    if content is not None:
        rejects.write_text(content)
        assert any("reject" in p for p in verify(out).problems)
        _sealed(out)
    assert any("reject" in p for p in verify(out).problems)


def test_a_row_both_embedded_and_rejected(out: Path) -> None:
    rejects = out / "_embedkit/rejects.jsonl"
    rejects.write_text(rejects.read_text("utf-8").replace('"row": 5', '"row": 6'), "utf-8")
    _sealed(out)
    assert "row 6 is both embedded and rejected" in verify(out).problems


def test_vectors_are_made_again_to_the_same_bits(tmp_path: Path) -> None:
    settings = {"storage": "float16", "on_long": "window", "stride": 2, "pooling": "mean,max"}
    made = run(write_tsv(tmp_path / "c.tsv"), tmp_path / "out", **settings).out
    found = verify(made, recompute=9)
    assert found.problems == []
    assert found.recomputed_shards == [0, 1, 2, 3]
    assert found.recomputed_rows == found.identical_rows == N_ACCEPTED
    assert found.worst == 0


@pytest.mark.parametrize("level", ["sentence", "token"])
def test_vectors_that_differ_are_found(
    out: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """Of sentences, or of tokens and of the words that these are in."""
    genuine = Encoder.start_shard

    def drifted(self: Encoder, texts: Any, **kwargs: Any) -> Any:
        vectors = genuine(self, texts, **kwargs).result()
        if len(texts) == 1:  # the last shard
            stored = vectors.views["mean_2"] if level == "sentence" else vectors.tokens["2"]
            stored[0 if level == "sentence" else 1] *= np.float32(1.001)
        return SimpleNamespace(result=lambda: vectors)

    monkeypatch.setattr(Encoder, "start_shard", drifted)
    found = verify(out, recompute=4)
    assert [p[:21] for p in found.problems] == ["part-00000003.parquet"]
    assert found.worst == pytest.approx(1e-3, rel=0.05)
    assert found.identical_rows == found.recomputed_rows - 1
