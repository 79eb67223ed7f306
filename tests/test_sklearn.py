"""The steps for scikit-learn pipelines, beyond what scikit-learn's own checks look at."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import embedkit
from embedkit.encoding.encoder import Encoder
from embedkit.errors import UsageError
from embedkit.sklearn import StoredVectors, TextEncoder
from tests.store_fixtures import run, tiny_model


@pytest.fixture(scope="module")
def data(common: Path) -> Path:
    texts = [f"{('bad', 'good')[i % 2]} movie number {i}" for i in range(60)]
    rows = [{"text": text, "id": f"n{i}"} for i, text in enumerate(texts)]
    return run(rows, common / "data", layers="all", pooling=["mean", "cls"], shard_rows=64).out


def encoder(**settings: Any) -> TextEncoder:
    return TextEncoder(str(tiny_model()), device="cpu", **settings)


def test_stored_vectors_are_those_of_the_dataset(data: Path) -> None:
    ids = ["n5", "n0", "n5"]
    vectors = StoredVectors(data, "mean_1").fit(ids).transform(ids)
    assert vectors.dtype == np.float32
    assert np.array_equal(vectors, embedkit.load(data, "mean_1").X[[5, 0, 5]])
    rows = StoredVectors(data, ["mean_1", "cls_0"], by="row").fit([5]).transform([5, 0])
    assert np.array_equal(rows, embedkit.load(data, ["mean_1", "cls_0"]).X[[5, 0]])


@pytest.mark.parametrize("which", [0, 1])
def test_as_every_transformer(data: Path, which: int) -> None:
    step: Any = (StoredVectors(data), encoder())[which]
    X = (["n0", "n1", "n5"], ["a", "good movie"])[which]
    before = dict(vars(step))
    assert vars(clone(step)) == before
    assert set(step.get_params()) == set(before)
    with pytest.raises(NotFittedError, match="not fitted"):
        step.transform(X)
    assert step.fit(X) is step
    expected = step.transform(X)
    assert np.array_equal(clone(step).fit_transform(X), expected)
    for same in (np.array(X), np.array(X, object), pd.Series(X), pd.DataFrame({"x": X}), tuple(X)):
        assert np.array_equal(step.transform(same), expected)
    assert step.transform([]).shape == (0, expected.shape[1])
    names = step.get_feature_names_out()
    assert list(names[:2]) == ["mean_2_0", "mean_2_1"]
    framed = clone(step).set_output(transform="pandas").fit(X).transform(X)
    assert list(framed.columns) == list(names)
    small = pickle.dumps(step)
    assert len(small) < 5_000
    assert np.array_equal(pickle.loads(small).transform(X), expected)
    for wrong in ([["a", "b"], ["c", "d"]], set(X), iter(X), pl.DataFrame({"x": X}).lazy()):
        with pytest.raises(ValueError, match=r"of shape (\(2, 2\)|\(\)); expected one column"):
            step.transform(wrong)


@pytest.mark.skipif(sklearn.__version__.startswith("1.5."), reason="it asks for no tags yet")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")  # few, for texts
def test_scikit_learns_own_checks() -> None:
    check_estimator(encoder())


def test_no_text_is_encoded_twice_in_a_process(calls_of: Any) -> None:
    texts = [f"{'good' if i % 2 else 'bad'} film {i} once" for i in range(12)]
    calls = calls_of(TextEncoder, "_encode")
    steps = make_pipeline(encoder(), LogisticRegression())
    assert len(cross_val_score(steps, texts, [0, 1] * 6, cv=3)) == 3
    assert sorted(text for call in calls for text in call.arguments[1]) == sorted(texts)


def test_the_default_vector_is_that_of_extract(tmp_path: Path, minilm: Encoder) -> None:
    texts = ["A good film.", "Where is my parcel?"]
    embedkit.extract(texts, out=tmp_path / "data", device="cpu")
    stored = embedkit.load(tmp_path / "data").X
    with pytest.raises(ValueError, match=r"X\[1\] is b'b', not a text"):
        encoder().fit(["a"]).transform(["a", b"b"])
    assert np.array_equal(TextEncoder(device="cpu").fit(texts).transform(texts), stored)
    whole = TextEncoder(device="cpu", normalize=False).fit_transform(texts)
    assert (np.abs(np.linalg.norm(whole, axis=1) - 1) > 0.1).all()


def test_the_cache_is_keyed_by_all_that_shapes_a_vector(
    tmp_path: Path, calls_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["a", "good movie", "a", ""]
    plain = encoder(cache=None).fit(texts).transform(texts)
    cached = encoder(cache=tmp_path).fit(texts)
    assert np.array_equal(cached.transform(texts), plain)
    calls = calls_of(TextEncoder, "_encode")
    assert np.array_equal(cached.transform(texts), plain)
    assert calls == []
    assert np.array_equal(cached.transform([*texts, "new"])[:4], plain)
    assert [list(call.arguments[1]) for call in calls] == [["new"]]
    # the same folder on another processor, or in another version
    monkeypatch.setattr("embedkit.sklearn._arithmetic", lambda _: "other")
    assert np.array_equal(cached.transform(["good movie"]), plain[1:2])
    assert len(calls) == 2
    changes: list[dict[str, Any]] = [{"view": "cls_-1"}, {"prefix": "q: "}, {"normalize": True}]
    for change in (*changes, {"max_length": 3}, {"precision": "bf16"}):
        other = encoder(cache=tmp_path, **change).fit(texts).transform(texts)
        assert np.array_equal(other, encoder(cache=None, **change).fit(texts).transform(texts))
        assert not np.array_equal(other, plain)


def test_weights_that_were_replaced_are_read_again(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model(), tmp_path / "model")
    before = TextEncoder(str(folder), device="cpu").fit_transform(["a bus"])
    shutil.copy(tiny_model(seed=2) / "model.safetensors", folder)
    after = TextEncoder(str(folder), device="cpu").fit_transform(["a bus"])
    expected = Encoder(tiny_model(seed=2), device="cpu").encode(["a bus"])
    assert np.array_equal(after, expected)
    assert not np.array_equal(before, after)


def test_texts_may_be_of_arrow_and_bytes_are_none() -> None:
    column = pa.array(["a bus", "a train"])
    fitted = encoder().fit(["a"])
    expected = fitted.transform(["a bus", "a train"])
    for texts in (column, list(column), pa.chunked_array([column])):
        assert np.array_equal(fitted.transform(texts), expected)
    assert fitted.transform(column[0]).shape[0] == 1
    for odd in (bytearray(b"abc"), memoryview(b"abc"), b"abc"):
        with pytest.raises(ValueError, match="bytes"):
            fitted.transform(odd)
    for row in ({"text": "a"}, ["a", "b"], {"a"}, None, float("nan"), Path("a.tsv")):
        with pytest.raises(ValueError, match=r"X\[0\] is .*not a text"):
            fitted.transform([row, "b"])
    wrong: dict[str, Any]
    for wrong in ({"view": ["mean_1"]}, {"model": None}, {"normalize": 3}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            encoder().set_params(**wrong).fit(["a"])
    assert encoder(normalize=np.True_).fit_transform(["a"]).shape[0] == 1


def test_missing_views_and_ids_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="max_1"):
        StoredVectors(data, "max_1").fit([])
    with pytest.raises(UsageError, match="by="):
        StoredVectors(data, by="text").fit([])
    with pytest.raises(UsageError, match="n99"):
        StoredVectors(data).fit([]).transform(["n99"])
    run([{"text": text, "id": "x"} for text in "ab"], tmp_path / "twice")
    with pytest.raises(UsageError, match="by='row'"):
        StoredVectors(tmp_path / "twice").fit([]).transform(["x"])
    with pytest.raises(ValueError, match=r"1\.5; expected row numbers"):
        StoredVectors(data, by="row").fit([]).transform([1.5])
    frame = pd.DataFrame({"text": ["a", "b"], "id": [7.0, 8.0]})  # as beside a missing one
    made = run(frame, tmp_path / "numbers")
    found = StoredVectors(made.out).fit([]).transform(frame[["id"]])
    assert np.array_equal(found, embedkit.load(made.out).X)
    # numbers of rows are those of the input, and a dataset that was replaced is read again
    for texts in (["a", "", "b"], ["", "good movie", "a"]):
        made = run([{"text": text} for text in texts], tmp_path / "rows", overwrite=True)
        found = StoredVectors(made.out, by="row").fit([]).transform([2])
        assert np.array_equal(found, embedkit.load(made.out).X[1:])
