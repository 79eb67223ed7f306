"""Damage of every kind is found, and vectors can be made again to the same bits."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embedkit
from embedkit.dataset.verification import require_ok, verify
from embedkit.encoding.encoder import Encoder
from embedkit.errors import DamagedError, MismatchError, UsageError
from tests.store_fixtures import (
    N_ACCEPTED,
    manifest_of,
    quick,  # noqa: F401 - a fixture
    run,
    tiny_model,
    write_tsv,
)

pytestmark = pytest.mark.usefixtures("quick")


ENTRY = {"rows": 1, "bytes": 1, "sha256": ""}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    return run(write_tsv(folder / "corpus.tsv"), folder / "out", words="mean", tokens=True).out


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "out"))


def test_a_clean_dataset(out: Path) -> None:
    found = verify(out)
    assert found.problems == []
    assert found.ok
    assert (found.files, found.rows) == (12, N_ACCEPTED)
    assert found.values > 16 * N_ACCEPTED * 2
    require_ok(found, out)


@pytest.mark.parametrize("seed", range(40))
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


def _edit(out: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = manifest_of(out)
    change(content)
    (out / "_embedkit/manifest.json").write_text(json.dumps(content), "utf-8")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda m: m["totals"].update(accepted=9), "10 records are accepted, the manifest says 9"),
        (lambda m: m["totals"].update(rejected=4), "3 records are rejected, the manifest says 4"),
        (lambda m: m["totals"].update(records=14), "is not the number of records"),
        (lambda m: m["totals"].update(left_out=1), "is not the number of records"),
        (lambda m: m["files"].pop("words/part-00001.parquet"), "not in the manifest"),
        (lambda m: m["files"].update({"words/part-00009.parquet": ENTRY}), "is missing"),
        (lambda m: m["files"]["words/part-00001.parquet"].update(rows=3), "the manifest says 3"),
        (lambda m: m["files"]["words/part-00001.parquet"].update(bytes=3), "3 were written"),
        (lambda m: m["files"]["words/part-00001.parquet"].update(sha256=""), "another SHA-256"),
        (lambda m: m["job"]["vectors"].update(normalize=True), "settings have another fingerprint"),
        (lambda m: m.update(fingerprint="0" * 64), "is of another job"),
    ],
)  # fmt: skip
def test_an_edited_manifest_is_found(
    out: Path, change: Callable[[dict[str, Any]], None], problem: str
) -> None:
    _edit(out, change)
    assert any(problem in p for p in verify(out).problems)


@pytest.mark.parametrize("folder", ["sentences", "words", "tokens"])
def test_missing_extra_and_swapped_parts(out: Path, folder: str) -> None:
    first, second, extra = (out / folder / f"part-0000{i}.parquet" for i in (0, 1, 7))
    shutil.copy(first, extra)
    assert verify(out).problems == [f"{folder}/part-00007.parquet is not in the manifest"]
    extra.unlink()
    first.rename(extra)
    second.rename(first)
    extra.rename(second)
    assert len(verify(out).problems) == 2
    first.unlink()
    assert f"{folder}/part-00000.parquet is missing" in verify(out).problems


@pytest.mark.parametrize("name", ["part-00000 (copy).parquet", "more.parquet", "README.md"])
def test_whatever_a_reader_of_the_folder_would_take_up_is_found(out: Path, name: str) -> None:
    sentences = out / "sentences"
    shutil.copy(sentences / "part-00000.parquet", sentences / name)
    assert verify(out).problems == [f"sentences/{name} is not in the manifest"]


@pytest.mark.parametrize("content", [None, "", "{", '{"row": "x"}', "{}", "[]"])
def test_damaged_rejects(out: Path, content: str | None) -> None:
    rejects = out / "_embedkit/rejects.jsonl"
    rejects.unlink()
    if content is not None:
        rejects.write_text(content)
    assert any("reject" in p for p in verify(out).problems)


def test_a_row_both_embedded_and_rejected(out: Path) -> None:
    rejects = out / "_embedkit/rejects.jsonl"
    rejects.write_text(rejects.read_text("utf-8").replace('"row": 5', '"row": 6'), "utf-8")
    assert "row 6 is both embedded and rejected" in verify(out).problems


@pytest.mark.parametrize(
    "settings",
    [{}, {"normalize": True, "pooling": ["mean", "cls", "max", "pooler"], "layers": "all"},
     {"storage": "compact"}, {"storage": "float16", "on_long": "window", "stride": 2},
     {"special_tokens": False, "prefix": "good "}, {"layers": "concat:0..2,sum:1..2"}],
    ids=str,
)  # fmt: skip
def test_vectors_are_made_again_to_the_same_bits(tmp_path: Path, settings: dict[str, Any]) -> None:
    made = run(write_tsv(tmp_path / "c.tsv"), tmp_path / "out", **settings).out
    found = verify(made, recompute=9)
    assert found.problems == []
    assert found.recomputed_shards == [0, 1, 2, 3]
    assert found.recomputed_rows == found.identical_rows == N_ACCEPTED
    assert found.worst == 0


def test_only_some_shards_are_made_again(out: Path) -> None:
    chosen = [verify(out, recompute=2, seed=seed).recomputed_shards for seed in range(6)]
    assert all(len(c) == 2 for c in chosen)
    assert len({tuple(c) for c in chosen}) > 1
    assert verify(out, recompute=2, seed=3).recomputed_shards == chosen[3]


def test_vectors_that_differ_are_found(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = Encoder.start_shard

    def drifted(self: Encoder, texts: Any, **kwargs: Any) -> Any:
        vectors = genuine(self, texts, **kwargs).result()
        if len(texts) == 1:  # the last shard
            vectors.views["mean_2"][0] *= np.float32(1.001)
        return SimpleNamespace(result=lambda: vectors)

    monkeypatch.setattr(Encoder, "start_shard", drifted)
    found = verify(out, recompute=4)
    assert [p[:18] for p in found.problems] == ["part-00003.parquet"]
    assert found.worst == pytest.approx(1e-3, rel=0.05)
    assert found.identical_rows == found.recomputed_rows - 1


def test_another_model_is_refused(out: Path) -> None:
    with pytest.raises(MismatchError, match=r"model\.safetensors differ.*model=") as caught:
        verify(out, recompute=1, model=str(tiny_model(seed=2)))
    assert caught.value.exit_code == 4
    assert verify(out, recompute=1, model=str(tiny_model())).ok


def test_without_texts_nothing_can_be_made_again(tmp_path: Path) -> None:
    made = run(write_tsv(tmp_path / "c.tsv"), tmp_path / "out", store_text=False).out
    assert embedkit.verify(made).ok
    with pytest.raises(UsageError, match="stores no texts"):
        verify(made, recompute=1)


@pytest.mark.parametrize("read", [
    lambda out: embedkit.load(out).X, lambda out: embedkit.load(out).ids,
    lambda out: embedkit.load(out, view="cls_2"), lambda out: embedkit.load(out).y,
])  # fmt: skip
@pytest.mark.parametrize("damage", ["missing", "short", "foreign"])
def test_a_damaged_dataset_is_never_read_as_if_it_were_whole(
    out: Path, read: Callable[[Path], Any], damage: str
) -> None:
    part = out / "sentences/part-00003.parquet"
    if damage == "foreign":  # of other length
        shutil.copy(out / "sentences/part-00000.parquet", part)
    elif damage == "short":
        part.write_bytes(part.read_bytes()[:500])
    else:
        part.unlink()
    with pytest.raises((DamagedError, UsageError), match=r"is damaged|has no view 'cls_2'"):
        read(out)
