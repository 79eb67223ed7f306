"""The steps for scikit-learn pipelines, beyond what scikit-learn's own checks look at."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import embedkit
from embedkit.encoding.encoder import Encoder
from embedkit.errors import DamagedError, StorageError, UsageError
from embedkit.sklearn import StoredVectors, TextEncoder
from tests.store_fixtures import loading_quickly, run, tiny_model

N = 60


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sk")
    lines = [f"{'good' if i % 2 else 'bad'} movie number {i}\t{i % 2}\tn{i}" for i in range(N)]
    (folder / "c.tsv").write_text("text\tlabel\tid\n" + "\n".join(lines) + "\n")
    with loading_quickly():
        run(folder / "c.tsv", folder / "data", layers="all", pooling=["mean", "cls"], shard_rows=64)
    return folder / "data"


def encoder(**settings: Any) -> TextEncoder:
    return TextEncoder(str(tiny_model()), device="cpu", **settings)


def steps(data: Path) -> list[Any]:
    return [StoredVectors(data), encoder()]


def inputs(step: Any) -> list[str]:
    return [f"n{i}" for i in range(6)] if isinstance(step, StoredVectors) else ["a", "good movie"]


def test_stored_vectors_are_those_of_the_dataset(data: Path) -> None:
    whole = embedkit.load(data, "mean_1")
    ids = ["n5", "n0", "n5"]
    found = StoredVectors(data, "mean_1").fit(ids).transform(ids)
    assert found.dtype == np.float32
    assert np.array_equal(found, whole.X[[5, 0, 5]])
    rows = StoredVectors(data, ["mean_1", "cls_0"], by="row").fit([5]).transform([5, 0])
    assert np.array_equal(rows, embedkit.load(data, ["mean_1", "cls_0"]).X[[5, 0]])


def test_text_vectors_are_those_of_the_encoder() -> None:
    texts = ["a", "good movie", "a"]
    wanted = Encoder.load(str(tiny_model()), device="cpu").encode(texts)
    assert np.array_equal(encoder().fit(texts).transform(texts), wanted)


@pytest.mark.parametrize("which", [0, 1])
def test_as_every_transformer(data: Path, which: int) -> None:
    step = steps(data)[which]
    X = inputs(step)
    before = dict(vars(step))
    assert vars(clone(step)) == before
    assert set(step.get_params()) == set(before)
    with pytest.raises(NotFittedError, match="not fitted"):
        step.transform(X)
    assert step.fit(X) is step
    wanted = step.transform(X)
    assert np.array_equal(clone(step).fit_transform(X), wanted)
    for same in (np.array(X), np.array(X, object), pd.Series(X), pd.DataFrame({"x": X}), tuple(X)):
        assert np.array_equal(step.transform(same), wanted)
    assert step.transform([]).shape == (0, wanted.shape[1])
    names = step.get_feature_names_out()
    assert list(names[:2]) == ["mean_2_0", "mean_2_1"]
    assert len(names) == wanted.shape[1]
    framed = clone(step).set_output(transform="pandas").fit(X).transform(X)
    assert list(framed.columns) == list(names)
    small = pickle.dumps(step)
    assert len(small) < 5_000
    assert np.array_equal(pickle.loads(small).transform(X), wanted)
    with pytest.raises(ValueError, match=r"shape \(2, 2\); expected one column"):
        step.transform([["a", "b"], ["c", "d"]])


def test_one_string_is_not_a_list_of_texts() -> None:
    with pytest.raises(ValueError, match=r"X is one string; give a list of texts"):
        encoder().fit(["a"]).transform("good movie")


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_a_missing_text_is_no_text(missing: Any) -> None:
    for X in (["a", missing], pd.Series(["a", missing]), pd.DataFrame({"x": ["a", missing]})):
        with pytest.raises(ValueError, match=r"X\[1\] is .*, not a text"):
            encoder().fit(X).transform(X)
    assert encoder().fit(["None"]).transform(["None", "nan"]).shape[0] == 2


@pytest.mark.skipif(sklearn.__version__.startswith("1.5."), reason="it asks for no tags yet")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")  # few, for texts
def test_scikit_learns_own_checks() -> None:
    check_estimator(encoder())


def test_grid_search_over_views(data: Path) -> None:
    ids = [f"n{i}" for i in range(N)]
    y = [i % 2 for i in range(N)]
    pipe = make_pipeline(StoredVectors(data), LogisticRegression())
    grid = {"storedvectors__view": ["mean_0", "mean_2", ["mean_0", "cls_1"]]}
    search = GridSearchCV(pipe, grid, cv=3, n_jobs=2).fit(ids, y)
    assert search.best_score_ > 0.8
    assert search.predict(["n1", "n2"]).tolist() == [1, 0]


def test_beside_other_columns(data: Path) -> None:
    table = pd.DataFrame({"id": [f"n{i}" for i in range(N)], "length": np.arange(N) * 1.0})
    columns = ColumnTransformer(
        [("vectors", StoredVectors(data, "mean_0"), "id"), ("rest", "passthrough", ["length"])]
    )
    found = columns.fit_transform(table)
    assert found.shape[1] == embedkit.load(data, "mean_0").X.shape[1] + 1


def test_the_cache_is_keyed_by_all_that_shapes_a_vector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["a", "good movie", "a", ""]
    plain = encoder().fit(texts).transform(texts)
    cached = encoder(cache=tmp_path).fit(texts)
    assert np.array_equal(cached.transform(texts), plain)
    calls: list[Any] = []
    real = TextEncoder._encode

    def counted(self: TextEncoder, texts: list[str]) -> Any:
        calls.append(list(texts))
        return real(self, texts)

    monkeypatch.setattr(TextEncoder, "_encode", counted)
    assert np.array_equal(cached.transform(texts), plain)
    assert calls == []
    more = cached.transform([*texts, "new"])
    assert calls == [["new"]]
    assert np.array_equal(more[:4], plain)
    for change in ({"view": "cls_-1"}, {"prefix": "q: "}, {"normalize": True}, {"max_length": 3}):
        other = encoder(cache=tmp_path, **change).fit(texts).transform(texts)
        assert np.array_equal(other, encoder(**change).fit(texts).transform(texts))
        assert not np.array_equal(other, plain)


def test_a_cache_that_cannot_be_used(tmp_path: Path) -> None:
    step = encoder(cache=tmp_path / "cache").fit([])
    step.transform(["a"])
    next((tmp_path / "cache").iterdir()).write_bytes(b"no database at all" * 9)
    with pytest.raises(DamagedError, match=r"\.sqlite is damaged: .*Delete it"):
        step.transform(["a"])
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file is a file where a folder is needed"):
        encoder(cache=tmp_path / "file").fit([]).transform(["a"])


@pytest.mark.parametrize("wrong", [1.5, "n1", np.nan, None])
def test_what_is_no_row_number(data: Path, wrong: Any) -> None:
    step = StoredVectors(data, by="row").fit([])
    assert np.array_equal(step.transform([3.0, np.int32(1)]), step.transform([3, 1]))
    with pytest.raises(ValueError, match=r"X holds .*; expected row numbers"):
        step.transform([0, wrong])


def test_what_is_not_there(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"view mean_2 is asked for twice"):
        embedkit.load(data, ["mean_2", "mean_-1"])
    with pytest.raises(UsageError, match=r"has no view 'max_1'"):
        StoredVectors(data, "max_1").fit([])
    with pytest.raises(UsageError, match=r"by='text': expected 'id' or 'row'"):
        StoredVectors(data, by="text").fit([])
    with pytest.raises(UsageError, match=r"has no id 'n99'"):
        StoredVectors(data).fit([]).transform(["n99"])
    corpus = tmp_path / "c.tsv"
    corpus.write_text("text\tid\na\tx\nb\tx\n")
    run(corpus, tmp_path / "twice")
    with pytest.raises(UsageError, match=r"has id 'x' more than once; use by='row'"):
        StoredVectors(tmp_path / "twice").fit([]).transform(["x"])
