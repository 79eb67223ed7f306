"""Indexes beside a dataset: what they find, what they refuse, and that they leave it whole."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import embedkit
from embedkit import fsio
from embedkit.checksums import seal
from embedkit.choices import INDEX_KINDS
from embedkit.cli.main import cli
from embedkit.dataset.store import Layout
from embedkit.dataset.verification import verify
from embedkit.encoding.encoder import Encoder
from embedkit.errors import (
    DamagedError,
    MismatchError,
    OutputExistsError,
    StorageError,
    UsageError,
)
from embedkit.search.exact import nearest
from embedkit.search.index import build_index, open_index
from embedkit.search.kinds import KINDS
from embedkit.search.searcher import Searcher
from tests.processes import exit_code_of
from tests.store_fixtures import load_quickly, loading_quickly, tiny_model, tree, write_tsv

N = 2_100


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two thousand different short texts in three shards."""
    folder = tmp_path_factory.mktemp("index")
    random = np.random.default_rng(3)
    words = ["the", "movie", "was", "good", "bad", "bus", "home", "rain", "여행", "영화", "a"]
    rows = [(str(i), " ".join(random.choice(words, 7)) + f" {i % 4}", str(i % 2))
            for i in range(N)]  # fmt: skip
    with loading_quickly():
        corpus = write_tsv(folder / "c.tsv", rows)
        embedkit.extract(corpus, out=folder / "data", model=str(tiny_model()), shard_rows=800)
        yield folder / "data"


@pytest.fixture
def copy(dataset: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dataset, tmp_path / "copy"))


def index_folder(dataset: Path, name: str) -> Path:
    return Layout(dataset).private / "index" / name


def test_every_kind_is_a_choice() -> None:
    assert tuple(KINDS) == INDEX_KINDS


@pytest.mark.parametrize("kind", INDEX_KINDS)
@pytest.mark.parametrize("metric", ["cosine", "dot", "euclid"])
def test_an_index_with_all_its_effort_is_near_the_truth(copy: Path, kind: str, metric: str) -> None:
    info = build_index(copy, kind=kind, metric=metric, recall=0.9 if kind != "ivfpq" else 0.3)
    data = embedkit.load(copy)
    assert (info.records, info.width, info.view) == (N, 16, "mean_2")
    assert [p.setting for p in info.curve] == sorted({p.setting for p in info.curve})
    found = open_index(data, kind=kind, metric=metric)(data.X[:50], 10)
    truth = nearest(data, data.X[:50], k=10, metric=metric)
    shared = np.mean(
        [len(set(a) & set(b)) for a, b in zip(found.indices, truth.indices, strict=True)]
    )
    assert shared >= (2.5 if kind == "ivfpq" else 8.5)  # four bytes a vector
    if kind != "ivfpq":
        both = found.indices[:, 0] == truth.indices[:, 0]
        assert both.mean() > 0.9
        assert np.allclose(found.scores[both, 0], truth.scores[both, 0], atol=5e-3, rtol=1e-3)


def test_a_flat_index_is_exact_and_every_record_is_in_it(copy: Path) -> None:
    info = build_index(copy, kind="flat", tune=True)
    assert [p.recall for p in info.curve] == [1.0]
    data = embedkit.load(copy)
    found = open_index(data, kind="flat")(data.X, N)
    assert (np.sort(found.indices, axis=1) == np.arange(N)).all()
    # each is under its own number, also those that tuning added last
    assert np.allclose(found.scores, nearest(data, data.X, k=N).scores, atol=1e-5)
    unit = data.X / np.linalg.norm(data.X, axis=1, keepdims=True)
    own = np.take_along_axis(unit @ unit.T, found.indices, axis=1)
    assert np.allclose(found.scores, own, atol=1e-5)


def test_tuning_counts_recall_of_records_left_out(copy: Path) -> None:
    info = build_index(copy, kind="ivf", tune=True, seed=4)
    assert len(info.curve) > 1
    assert all(0 < p.recall <= 1 and p.single_ms > 0 for p in info.curve)
    assert info.curve[-1].recall > info.curve[0].recall
    chosen = next(p for p in info.curve if p.setting == info.setting)
    assert chosen.recall >= 0.95
    assert all(p.recall < 0.95 for p in info.curve if p.setting < info.setting)
    data = embedkit.load(copy)
    asked = open_index(data, kind="ivf", recall=info.curve[0].recall)
    assert asked.setting == info.curve[0].setting
    file = index_folder(copy, "mean_2.ivf.cosine") / "index.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "curve": [{**content["curve"][0], "recall": 0.5}]}))
    seal(file.parent)
    with pytest.raises(UsageError, match=r"recall=0.9: this ivf index reaches 0.500 at most"):
        open_index(data, kind="ivf", recall=0.9)


def test_the_dataset_stays_whole(copy: Path) -> None:
    before = tree(copy)
    build_index(copy, kind="hnsw", tune=True)
    after = tree(copy)
    assert {name: after[name] for name in before} == before
    assert {name for name in after if name not in before} == {
        f"_embedkit/index/mean_2.hnsw.cosine/{name}"
        for name in ("SHA256SUMS", "index.faiss", "index.json")
    }
    assert verify(copy).ok
    assert len(embedkit.load(copy)) == N


def test_search_through_an_index(copy: Path) -> None:
    build_index(copy, kind="hnsw", recall=0.9)
    data = embedkit.load(copy)
    asked: dict[str, Any] = {"view": "mean_2"}
    exact = Searcher(copy, **asked).like([5, 900], k=5)
    finder = open_index(data, kind="hnsw", recall=0.9)
    quick = Searcher(copy, finder=finder, **asked).like([5, 900], k=5)
    assert [len(a.hits) for a in quick] == [5, 5]
    shared = [len({h.row for h in a.hits} & {h.row for h in b.hits})
              for a, b in zip(exact, quick, strict=True)]  # fmt: skip
    assert min(shared) >= 3
    with pytest.raises(UsageError, match="where needs exact search"):
        Searcher(copy, finder=finder, where="true")


def test_an_index_of_mapped_vectors(copy: Path) -> None:
    build_index(copy, kind="flat", whitening="whiten")
    data = embedkit.load(copy)
    found = open_index(data, kind="flat", whitening="whiten")(data.X[:5], 4)
    exact = Searcher(copy, whitening="whiten", keep_duplicates=True)
    wanted = [[h.row for h in a.hits] for a in exact.vectors(data.X[:5], k=4)]
    assert data.row[found.indices].tolist() == wanted


def test_a_stale_index_is_refused(copy: Path, dataset: Path) -> None:
    build_index(copy, kind="flat")
    file = index_folder(copy, "mean_2.flat.cosine") / "index.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "fingerprint": "f" * 64}))
    seal(file.parent)
    with pytest.raises(MismatchError, match=r"another dataset or another state.*--overwrite"):
        open_index(embedkit.load(copy), kind="flat")
    with pytest.raises(OutputExistsError, match="pass overwrite=True to build it again"):
        build_index(copy, kind="flat")
    build_index(copy, kind="flat", overwrite=True)
    assert open_index(embedkit.load(copy), kind="flat").info.records == N


def test_an_index_appears_whole_or_not_at_all(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fsio, "publish_folder", fail)
    with pytest.raises(KeyboardInterrupt):
        build_index(copy, kind="flat")
    with pytest.raises(UsageError, match=r"has no index mean_2.flat.cosine; it has none. Build it"):
        open_index(embedkit.load(copy), kind="flat")
    monkeypatch.undo()
    monkeypatch.setattr(Encoder, "load", load_quickly)
    build_index(copy, kind="flat")
    assert not list((Layout(copy).private / "index").glob("*.incomplete"))


@pytest.mark.parametrize("damage", [b"", b"nothing that faiss wrote"])
def test_a_damaged_index_is_named(copy: Path, damage: bytes) -> None:
    build_index(copy, kind="hnsw")
    file = index_folder(copy, "mean_2.hnsw.cosine") / "index.faiss"
    file.write_bytes(damage)
    with pytest.raises(DamagedError, match=r"index.faiss is damaged: .*Build it again: embedkit"):
        open_index(embedkit.load(copy), kind="hnsw")
    seal(file.parent)
    with pytest.raises(DamagedError, match=r"index.faiss cannot be read: .*Build it again"):
        open_index(embedkit.load(copy), kind="hnsw")
    info = file.with_name("index.json")
    content = json.loads(info.read_text())
    info.write_text(json.dumps({**content, "records": "many"}))
    seal(file.parent)
    with pytest.raises(DamagedError, match=r"index.json is damaged: records is a string"):
        open_index(embedkit.load(copy), kind="hnsw")
    info.write_text("{")
    seal(file.parent)
    with pytest.raises(DamagedError, match=r"index.json is damaged: .*Build it again"):
        open_index(embedkit.load(copy), kind="hnsw")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "tree"}, "kind='tree': expected flat, hnsw, ivf, ivfpq"),
        ({"metric": "near"}, "metric='near': expected cosine"),
        ({"recall": 1.5}, "recall=1.5: expected more than 0"),
        ({"view": "mean_0"}, "has no view 'mean_0'"),
    ],
)
def test_settings_that_cannot_be_used(dataset: Path, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_index(dataset, **options)


def test_too_few_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Encoder, "load", load_quickly)
    made = embedkit.extract(write_tsv(tmp_path / "c.tsv"), out=tmp_path / "d",
                            model=str(tiny_model()))  # fmt: skip
    with pytest.raises(UsageError, match="are too few to hold some out"):
        build_index(made.out, tune=True)
    with pytest.raises(UsageError, match="too few to learn its codes from"):
        build_index(made.out, kind="ivfpq")
    build_index(made.out, kind="ivf")
    with pytest.raises(UsageError, match="has not been tuned"):
        open_index(embedkit.load(made.out), kind="ivf", recall=0.9)


def test_the_commands(copy: Path) -> None:
    def run(*arguments: Any) -> Any:
        return CliRunner().invoke(cli, [str(a) for a in arguments], standalone_mode=False)

    built = run("index", copy, "--kind", "hnsw", "--tune")
    assert "hnsw index of 2,100 × 16 (mean_2, cosine)" in built.output
    assert "recall@10" in built.output
    found = json.loads(
        run(
            "search", copy, "--like", 3, "--index", "hnsw", "--recall", 0.5, "-k", 2, "--json"
        ).stdout
    )
    assert len(found[0]["hits"]) == 2
    missing = run("search", copy, "--like", 3, "--index", "ivf").exception
    assert "it has mean_2.hnsw.cosine. Build it: embedkit index" in str(missing)


def test_a_full_disk_is_one_line(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """faiss raises an error of its own kind; nothing is left under the name of the index."""

    def full(*_: Any) -> None:
        raise RuntimeError("Error: 'ret == size' failed: write error: No space left on device")

    monkeypatch.setattr("faiss.write_index", full)
    with pytest.raises(StorageError, match=r"cannot write .*index\.faiss: Error: .*Free some spa"):
        embedkit.build_index(copy, kind="flat", metric="dot")
    assert not list(copy.glob("_embedkit/index/*.flat.dot"))


@pytest.mark.parametrize("missing", [1, 100, 5_000])
def test_files_that_may_not_grow(copy: Path, missing: int) -> None:
    """The end of an index that did not fit is not left out without a word."""
    whole = embedkit.build_index(copy, kind="flat", metric="euclid").nbytes
    code = exit_code_of(_build_within, copy, whole - missing)
    assert code == StorageError.exit_code
    assert not list(copy.glob("_embedkit/index/*.flat.dot"))
    embedkit.build_index(copy, kind="flat", metric="dot")
    assert verify(copy).ok


def _build_within(dataset: Path, size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        embedkit.build_index(dataset, kind="flat", metric="dot")
    except StorageError as error:
        sys.exit(error.exit_code)
