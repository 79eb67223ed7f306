"""Indexes beside a dataset: what they find, what they refuse, and that they leave it whole."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embedkit
from embedkit.choices import INDEX_KINDS
from embedkit.dataset.format import Layout
from embedkit.errors import DamagedError, MismatchError, OutputExistsError, StorageError
from embedkit.search.exact import Neighbours, nearest
from embedkit.search.index import KINDS, _recall, build_index, open_index
from embedkit.storage import seal
from embedkit.verification import verify
from tests.models import state
from tests.processes import invoke
from tests.store_fixtures import extract_tiny, flip, tree, write_tsv

N = 2_100


@pytest.fixture(scope="module")
def dataset(common: Path) -> Path:
    """Two thousand different short texts in three shards."""
    random = np.random.default_rng(3)
    words = ["the", "movie", "was", "good", "bad", "bus", "home", "rain", "여행", "영화", "a"]
    rows = [(str(i), " ".join(random.choice(words, 7)) + f" {i % 4}", str(i % 2)) for i in range(N)]
    corpus = write_tsv(common / "c.tsv", rows)
    return extract_tiny(corpus, common / "data", shard_rows=800).out


@pytest.fixture
def copy(dataset: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dataset, tmp_path / "copy"))


def index_folder(dataset: Path, name: str) -> Path:
    return Layout(dataset).private / "index" / name


def shared(found: Neighbours, truth: Neighbours) -> float:
    """How many neighbours of a query are in both, on average."""
    pairs = zip(found[1], truth[1], strict=True)
    return float(np.mean([len(set(a) & set(b)) for a, b in pairs]))


@pytest.mark.parametrize("kind", INDEX_KINDS)
@pytest.mark.parametrize("metric", ["cosine", "dot", "euclid"])
def test_an_index_is_near_the_truth(copy: Path, kind: str, metric: str) -> None:
    info = build_index(copy, kind=kind, metric=metric)
    data = embedkit.load(copy)
    assert (info.records, info.width, info.view) == (N, 16, "mean_2")
    found = open_index(data, kind=kind, metric=metric)(data.X[:50], 10)
    truth = nearest(data, data.X[:50], k=10, metric=metric)
    assert shared(found, truth) >= (2 if kind == "ivfpq" else 8.5)  # four bytes a vector
    if kind != "ivfpq":
        both = found[1][:, 0] == truth[1][:, 0]
        assert both.mean() > 0.9
        assert np.allclose(found[0][both, 0], truth[0][both, 0], atol=5e-3, rtol=1e-3)


def test_a_graph_finds_more_than_it_keeps_by_default(copy: Path) -> None:
    build_index(copy, kind="hnsw")
    data = embedkit.load(copy)
    found = open_index(data, kind="hnsw")(data.X[:50], 500)
    truth = nearest(data, data.X[:50], k=500)
    assert (found[1] >= 0).all()
    assert shared(found, truth) > 0.95 * 500


def test_a_flat_index_is_exact_and_every_record_is_in_it(copy: Path) -> None:
    info = build_index(copy, kind="flat")
    assert info.recall == 1.0
    data = embedkit.load(copy)
    some = data.X[::40]
    cosines, indices = open_index(data, kind="flat")(some, N)
    assert (np.sort(indices, axis=1) == np.arange(N)).all()
    # each is under its own number, also those that were added last
    unit = data.X / np.linalg.norm(data.X, axis=1, keepdims=True)
    own = np.take_along_axis(unit[::40] @ unit.T, indices, axis=1)
    assert np.allclose(cosines, own, atol=1e-5)
    tied = np.diff(indices, axis=1)[np.diff(cosines, axis=1) == 0]
    assert len(tied)
    assert (tied > 0).all()  # in the order of the dataset


def test_recall_is_of_records_left_out(copy: Path) -> None:
    """Against one list of many, which finds few neighbours of records that are not in it."""
    whole: Any = build_index(copy, kind="ivf")
    assert 0.9 < whole.recall <= 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(KINDS, "ivf", KINDS["ivf"]._replace(effort=1))
        info: Any = build_index(copy, kind="ivf", overwrite=True)
        data = embedkit.load(copy)
        found = open_index(data, kind="ivf")(data.X[:500], 11)
        truth = nearest(data, data.X[:500], k=11)
    assert info.recall < whole.recall
    assert info.recall == pytest.approx(shared(found, truth) / 11, abs=0.25)


def test_the_eleventh_nearest_is_none_of_the_ten(copy: Path) -> None:
    data = embedkit.load(copy)
    kept = np.arange(len(data)) % 9 > 0
    _, near = nearest(data, data.X[~kept], k=11, chosen=kept)
    index = SimpleNamespace(search=lambda *_, **__: (None, np.delete(near, 9, axis=1)))
    recall = _recall(index, data, kept, kind="flat", metric="cosine", whitening=None)
    assert 0.9 <= recall < 0.97  # more, where texts are equally near


def test_the_dataset_stays_whole(copy: Path) -> None:
    before = tree(copy)
    build_index(copy, kind="hnsw")
    after = tree(copy)
    assert {name: after[name] for name in before} == before
    new = {Path(name).parent.as_posix() for name in after if name not in before}
    assert new == {"_embedkit/index/mean_2.hnsw.cosine"}
    assert verify(copy).ok


def test_a_stale_index_is_refused(copy: Path, dataset: Path) -> None:
    build_index(copy, kind="flat")
    file = index_folder(copy, "mean_2.flat.cosine") / "index.json"
    state(file, fingerprint="f" * 64)
    seal(file.parent)
    with pytest.raises(MismatchError, match="--overwrite"):
        open_index(embedkit.load(copy), kind="flat")
    with pytest.raises(OutputExistsError, match="overwrite"):
        build_index(copy, kind="flat")
    build_index(copy, kind="flat", overwrite=True)
    assert callable(open_index(embedkit.load(copy), kind="flat"))


def test_no_half_index_where_the_disk_is_full(copy: Path, tmp_path: Path) -> None:
    """Libraries of others notice it in ways of their own, or not at all."""
    data, out, limits = embedkit.load(copy), tmp_path / "x.faiss", getrlimit(RLIMIT_FSIZE)
    out.write_bytes(b"an earlier one")
    size = build_index(copy, kind="flat", whitening="center").nbytes
    for write, most in (
        (partial(data.export, to="faiss", out=out, overwrite=True), size - 9),
        (partial(build_index, copy, kind="ivf", whitening="whiten"), size // 9),
    ):
        setrlimit(RLIMIT_FSIZE, (most, limits[1]))
        try:
            with pytest.raises(StorageError):
                write()
        finally:
            setrlimit(RLIMIT_FSIZE, limits)
    assert out.read_bytes() == b"an earlier one"


@pytest.mark.parametrize("kind", ["empty", "another", "one bit"])
def test_a_damaged_index_is_named(copy: Path, kind: str) -> None:
    build_index(copy, kind="hnsw", whitening="center")
    folder = index_folder(copy, "mean_2.hnsw.cosine.center")
    data = embedkit.load(copy)
    for name in ("index.faiss", "whitening.safetensors", "index.json", "SHA256SUMS"):
        content = (folder / name).read_bytes()
        if kind == "one bit":
            flip(folder / name)
        else:
            (folder / name).write_bytes(b"nothing that faiss wrote" if kind == "another" else b"")
        with pytest.raises(DamagedError, match=rf"{folder.name}/.*embedkit index"):
            open_index(data, kind="hnsw", whitening="center")
        assert kind != "one bit" or not verify(copy).ok
        (folder / name).write_bytes(content)
    assert len(open_index(data, kind="hnsw", whitening="center")(data.X[:1], 3)[1]) == 1


def test_an_index_of_another_metric(copy: Path) -> None:
    for metric in ("cosine", "euclid"):
        build_index(copy, kind="flat", metric=metric)
    folder = index_folder(copy, "mean_2.flat.cosine")
    shutil.copy(index_folder(copy, "mean_2.flat.euclid") / "index.faiss", folder)
    seal(folder)
    with pytest.raises(DamagedError, match=r"index\.faiss"):
        open_index(embedkit.load(copy), kind="flat")


def test_the_commands(copy: Path) -> None:
    built = invoke("index", copy, "--kind", "hnsw")
    assert "hnsw index of 2,100 × 16 (mean_2, cosine)" in built.output
    assert "recall@10" in built.output
    found = invoke("search", copy, "--like", 3, "--index", "hnsw", "-k", 2, "--json").stdout
    assert len(json.loads(found)[0]["hits"]) == 2
    missing = invoke("search", copy, "--like", 3, "--index", "ivf").output
    assert "it has mean_2.hnsw.cosine. Build it: embedkit index" in missing
