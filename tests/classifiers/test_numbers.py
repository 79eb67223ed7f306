"""Numbers of the user's own beside vectors, from the corpus to the prediction of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

import embedkit
from embedkit.classifiers.estimators import CommonScaler
from embedkit.errors import UsageError
from embedkit.predict import Predictor, predict_file
from tests.processes import command
from tests.store_fixtures import extract_tiny

OWN = ["price", "age"]


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """60 texts with a price that tells the label where it is known, an age, and a word."""
    random, label = np.random.default_rng(0), np.arange(60) % 2
    price = 1e4 * label + random.normal(0, 1e3, 60)
    price[::7] = np.nan
    about = {"price": price, "age": random.integers(18, 90, 60), "carrier": "b", "label": label}
    about["written"], about["date"] = "1_000", 20240100 + label
    return pd.DataFrame({"text": [f"the movie {i} was a bus" for i in range(60)], **about})


@pytest.fixture(scope="module")
def trained(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    extract_tiny(frame, folder / "data", keep=[*OWN, "carrier", "written", "date"])
    test = frame.drop(columns="label")
    test.to_csv(folder / "test.csv", index=False)
    given: dict[str, Any] = {"columns": OWN, "tune": False, "folds": 3}
    embedkit.train(folder / "data", out=folder / "run", test=folder / "test.csv", **given)
    return folder


def test_each_fold_is_what_scikit_learn_fits(trained: Path, frame: pd.DataFrame) -> None:
    """Medians and scales are those of the training records of the fold alone."""
    made = pd.read_parquet(trained / "run/predictions.parquet")
    made = made[made.fold != "test"].sort_values("row")
    X, own = embedkit.load(trained / "data").X, frame[OWN].to_numpy(np.float32)
    expected = np.empty(60)
    vectors = make_pipeline(Normalizer(), CommonScaler())
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    for fold in range(3):
        held = (made.fold == str(fold)).to_numpy()
        parts = (vectors, X), (numbers, own)
        train = np.hstack([steps.fit_transform(values[~held]) for steps, values in parts])
        test = np.hstack([steps.transform(values[held]) for steps, values in parts])
        model = LogisticRegression(max_iter=1_000).fit(train, frame.label[~held])
        expected[held] = model.predict_proba(test)[:, 1]
    assert np.allclose(made.proba_1, expected, atol=1e-4)


def test_an_estimator_named_by_its_class_is_stored_with_what_an_imputer_saw(trained: Path) -> None:
    options: dict[str, Any] = {"columns": OWN, "estimator": "sklearn.neighbors:NearestCentroid"}
    run = embedkit.train(trained / "data", out=trained / "named", tune=False, **options).out
    assert len([*Predictor(run).predict_stored(trained / "data")[1]]) == 60


def test_files_datasets_and_texts_are_predicted_alike(
    trained: Path, frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedkit.predict._CHUNK", 16)
    predictor = Predictor(trained / "run", warm=False)
    proba = predictor.predict_proba(list(frame.text), columns=frame)[:, 1]
    tested = pd.read_parquet(trained / "run/predictions.parquet").query("fold == 'test'")
    assert np.allclose(tested.sort_values("row").proba_1, proba, atol=1e-5)
    stored = [one.proba["1"] for one in predictor.predict_stored(trained / "data")[1]]
    assert np.allclose(stored, proba, atol=1e-5)
    predict_file(trained / "run", trained / "test.csv", out=trained / "out.csv")
    assert np.allclose(pd.read_csv(trained / "out.csv").iloc[:, -1], proba, atol=1e-5)
    one = predictor.predict(frame.text[1], columns={"price": 1e4, "age": None})
    assert one.label == "1"


def test_columns_come_in_a_dict_or_a_frame_of_any_library(
    trained: Path, frame: pd.DataFrame
) -> None:
    predictor = Predictor(trained / "run", warm=False)
    texts, numbers = list(frame.text), frame[["price", "age"]]
    expected = predictor.predict_proba(texts, columns=numbers)
    given: Any
    for given in (dict(numbers), numbers.to_dict("list"), pl.from_pandas(numbers)):
        assert np.array_equal(predictor.predict_proba(texts, columns=given), expected)
    # of one text a value may stand alone
    for given in (numbers.iloc[:1], dict(numbers.iloc[0]), dict(numbers.iloc[:1])):
        alone = predictor.predict_proba(texts[0], columns=given)
        assert np.allclose(alone, expected[0], atol=1e-5)
    with pytest.raises(UsageError, match="columns='list': expected values by name"):
        predictor.predict(texts, columns=[[1, 2]])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="columns='price': 1 values for 2 texts"):
        predictor.predict(texts[:2], columns={"price": 1, "age": 2})


def test_what_is_missing_or_no_number_is_named(trained: Path, frame: pd.DataFrame) -> None:
    frame.drop(columns="age").to_csv(trained / "short.csv", index=False)
    with pytest.raises(UsageError, match=r"short.csv has no column 'age'"):
        predict_file(trained / "run", trained / "short.csv", out=trained / "none.csv")
    for typed in (["-"], ["--text", "a bus"]):
        done = command("predict", "run", *typed, cwd=trained, stdin=b"a bus\n")
        assert (done.returncode, "no column 'price'" in done.stderr) == (2, True)
    age: dict[str, Any] = {"columns": "age"}
    for given, message in (
        (age | {"columns": "carrier"}, "'b', which is no number"),
        (age | {"columns": "nope"}, "no column 'nope'"),
        (age | {"columns": "written"}, "'1_000', which is no number"),
        (age | {"columns": "date"}, r"around 2\.02401e\+07 and differ by 0\.5 only"),
        (age | {"columns": ["age", "label"]}, "columns='age,label': one of them is the label"),
        (age | {"columns": ["age", "age"]}, "columns='age,age': name each once"),
        (age | {"features": "tfidf"}, "columns='age'"),
        (age | {"level": "word"}, "columns='age'"),
    ):
        with pytest.raises(UsageError, match=message):
            embedkit.train(trained / "data", out=trained / "no", **given)
