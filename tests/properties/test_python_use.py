"""The library as it is used in a notebook: frames, results as paths, default names, short views."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context

import embedkit
from embedkit.errors import OutputExistsError, UsageError
from embedkit.predict import predict_file
from tests.finetune_fixtures import TINY, corpus_of, predictions
from tests.run_fixtures import train
from tests.store_fixtures import tiny_model
from tests.word_fixtures import write_treebank

pytestmark = pytest.mark.usefixtures("quick", "inside")


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def frame(tmp_path: Path) -> pd.DataFrame:
    return pd.read_csv(corpus_of(tmp_path / "reviews.tsv"), sep="\t")


def extracted(frame: pd.DataFrame, **options: Any) -> Any:
    return embedkit.extract(frame, model=str(tiny_model()), **options)


def test_a_frame_goes_all_the_way_without_a_name(frame: pd.DataFrame) -> None:
    """Each call takes the frame, or the result of the call before it."""
    data = extracted(frame)
    assert data.out == Path("dataframe.vectors")
    split = embedkit.split(frame, folds=3)
    runs: list[Any] = [embedkit.train(data, split=split)]
    runs.append(embedkit.train(data, split=split, features="tfidf", tune=False))
    runs.append(embedkit.finetune(frame, split=split, **{**TINY, "epochs": 1}))
    probe = embedkit.probe(data, split=split)
    names = [str(run.out) for run in (*runs, probe)]
    assert names == [f"runs/dataframe-{n}" for n in ("logreg", "tfidf", "finetuned", "probe")]
    assert len(embedkit.compare([*runs, probe]).rows) >= 3
    assert [p.label for p in embedkit.Predictor(runs[0], device="cpu").predict(["bad"])]
    with pytest.raises(OutputExistsError, match="logreg"):
        embedkit.train(data)
    with pytest.raises(UsageError, match="is loaded; pass its folder"):
        embedkit.train(embedkit.load(data), out="loaded")  # its texts would be encoded anew


@pytest.mark.parametrize("level", ["sentence", "word"])
def test_tf_idf_reads_a_corpus_without_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: Any
) -> None:
    """The run is that of the dataset, of which nothing is encoded, and predicts the same.

    Also for who wants frames of transformers, with one core, where fits are of the same thread.
    """
    monkeypatch.setattr("joblib._parallel_backends.cpu_count", lambda: 1)
    of_words: dict[str, Any] = {"word_label": "upos"} if level == "word" else {}
    corpus = write_treebank(tmp_path / "c.conllu", 30)
    if level == "sentence":
        corpus = corpus_of(tmp_path / "c.tsv")
        corpus.write_bytes(corpus.read_bytes() + b"\t0\tlate\n")  # is rejected
    given: dict[str, Any] = {"features": "tfidf", "level": level, "test": corpus}
    runs = [embedkit.train(corpus, **given, **of_words)]
    assert not [*tmp_path.glob("*.vectors")]
    data = embedkit.extract(corpus, model=str(tiny_model()), words="mean", **of_words).out
    with config_context(transform_output="pandas"):
        runs.append(embedkit.train(data, **given, out="stored"))
    assert runs[0].out == Path("runs/c-tfidf")
    assert runs[0].to_frame().equals(runs[1].to_frame())
    first, second = (run.content for run in runs)
    assert (first.split, first.dataset.reading) == (second.split, second.dataset.reading)
    assert (runs[0].rejected, runs[1].rejected) == (level == "sentence", 0)
    vectors = embedkit.train(data, level=level, out="vectors")
    assert len(embedkit.compare([*runs, vectors]).rows) > 3
    made = [Path(run, "predictions.parquet").read_bytes() for run in runs]
    assert made[0] == made[1]
    for source in (corpus, data):
        for run, kind in zip(runs, ("default", "pandas"), strict=True):
            with config_context(transform_output=kind):
                predict_file(run, source, out=run.out / "answers.tsv", overwrite=True)
        made = [Path(run, "answers.tsv").read_bytes() for run in runs]
        assert made[0] == made[1]


def test_a_test_set_is_scored_by_the_column_of_the_label(frame: pd.DataFrame) -> None:
    """Also one that stores another label, and keeps this one."""
    both = frame.rename(columns={"label": "stars"}).assign(other=1 - frame["label"])
    both.to_csv("both.csv", index=False)
    test = extracted(both, label="other", keep=["stars"], out="test").out
    run = embedkit.train("both.csv", label="stars", features="tfidf", test=test)
    assert run.content.scores["test"]["accuracy"].value > 0.9


def test_a_corpus_is_extracted_before_it_is_fitted(frame: pd.DataFrame) -> None:
    """Its run is that of the dataset with the same name, and the options of reading count."""
    extracted(frame.drop(columns="label").assign(stars=frame["label"]), label="stars")
    renamed = frame.rename(columns={"label": "stars"})[["text", "id", "stars"]]
    options: dict[str, Any] = {"label": "stars", "model": str(tiny_model())}
    first = embedkit.train(renamed, folds=3, tune=False, **options)
    again = embedkit.train("dataframe.vectors", out="again", folds=3, tune=False)
    pd.testing.assert_frame_equal(predictions(first.out), predictions(again.out))
    assert embedkit.probe(renamed, folds=3, **options).content.views
    # another frame gets a number, and the same one its vectors
    options |= {"folds": 3, "tune": False}
    for _ in range(2):
        parts = renamed.assign(part="0")
        run = embedkit.train(parts, split="part", out="parts", overwrite=True, **options)
        assert run.content.dataset.path == "../dataframe-2.vectors"
    # so does a file, and texts that are there are not encoded again; an iterator has one try
    renamed.to_csv("dataframe.csv", index=False)
    run = embedkit.train("dataframe.csv", out="file", **options)
    assert run.content.dataset.path == "../dataframe-3.vectors"
    log = Path("dataframe-3.vectors/_embedkit/log.jsonl").read_text("utf-8")
    assert json.loads(log.splitlines()[-1])["tokens_encoded"] == 0
    rows = renamed.to_dict("records")
    embedkit.train(iter(rows), out="once", **options)
    with pytest.raises(OutputExistsError, match="by embedkit extract"):
        embedkit.train(iter(rows), out="no", layers="0", **options)
    with pytest.raises(UsageError, match=r"text='text'.*dataframe\.vectors"):
        embedkit.train("dataframe.vectors", out="no", text="text")
    tuned = embedkit.finetune(renamed, label="stars", **{**TINY, "epochs": 1})
    assert len(tuned.content.classes) == 2
    with pytest.raises(UsageError, match="group='nobody'"):
        embedkit.split(renamed, label="stars", group="nobody")
    texts = {"a": ["good", "bad", "home"], "b": ["good", "home", "bus"], "s": [5, 1, 2]}
    columns: dict[str, Any] = {"text": "a", "text_pair": "b", "score": "s", "layers": "-1"}
    pairs = embedkit.similarity(pd.DataFrame(texts), model=str(tiny_model()), **columns)
    assert pairs.cosines["mean_2"][0] == pytest.approx(1)


def test_records_that_are_lost_on_the_way_are_told(frame: pd.DataFrame, notes: list[str]) -> None:
    frame.loc[[1, 4], "text"] = ["", None]
    run = embedkit.train(frame, folds=3, tune=False, model=str(tiny_model()))
    assert run.rejected == 2  # the exit code of the command is that of rejected records
    assert embedkit.train("dataframe.vectors", out="again", folds=3).rejected == 0
    assert "dataframe.vectors: 2 records rejected (empty_text 1, null_text 1)" in notes


def test_labels_may_come_after_the_vectors(frame: pd.DataFrame) -> None:
    """A column of the frame, with its rejected rows, or a kept column: nothing is encoded again."""
    frame = pd.concat([frame[:3].assign(text=""), frame], ignore_index=True)
    expected = train(extracted(frame, out="labelled"), folds=2, out="expected")
    frame = frame.rename(columns={"label": "stars"})
    data = extracted(frame, keep=["stars"])
    with pytest.raises(UsageError, match="has no labels of records"):
        embedkit.train(data)
    for number, label in enumerate((frame["stars"], frame["stars"].tolist(), "stars")):
        run = train(data, label=label, folds=2, out=f"run-{number}", test=frame)
        inside = predictions(run.out).query("fold != 'test'").reset_index(drop=True)
        pd.testing.assert_frame_equal(inside, predictions(expected.out))
        assert ("test" in run.content.scores) is (number != 1)  # a list has no name to look for
    assert embedkit.probe(data, label="stars", folds=2).content.classes == expected.content.classes
    assert len(embedkit.split(data, label="stars").row) == len(frame) - 3
    for wrong, message in (
        (frame["stars"][3:], "expected 63"),
        ("star", "no column 'star'"),
        (3, "=3"),
    ):
        with pytest.raises(UsageError, match=message):
            embedkit.train(data, label=wrong, out="no")  # type: ignore[arg-type]


def test_results_are_one_line_and_a_table(frame: pd.DataFrame) -> None:
    data = extracted(frame, words="mean")
    run = train(data, folds=3)
    shown = [data, run, embedkit.split(data), embedkit.probe(data, folds=3)]
    shown += [embedkit.load(data), embedkit.load(data, level="word")]
    shown += embedkit.Searcher(data, device="cpu").texts(["good"], k=2)
    shown += [embedkit.info(data), embedkit.index(data, kind="flat"), embedkit.verify(data)]
    shown += [embedkit.info(run), embedkit.info(str(tiny_model()))]
    shown += [embedkit.words(data, "good"), embedkit.explore(data, method="pca")]
    for result in shown:
        assert "\n" not in repr(result)
        assert len(repr(result)) < 600, type(result)
        assert hasattr(result, "_repr_html_"), type(result)
    score = run.content.scores["cross_validation"]["accuracy"].value
    assert f"{100 * score:.1f}" in repr(run)
    assert f"{len(frame)} records, text text, label label" in repr(data)
    assert data._repr_html_().count("<tr>") == 1 + len(data.manifest.job.vectors.views)
    page = run._repr_html_()
    assert page.count("<tr>") == 1 + len(run.content.scores["cross_validation"])
    assert shown[3]._repr_html_().count("<tr>") == 1 + len(shown[3].to_frame())
    hits = embedkit.Searcher(data, device="cpu").texts(["<b>good"], k=2)[0]._repr_html_()
    assert hits.count("<tr>") == 3
    assert "<b>" not in hits
    first, second = (asdict(embedkit.info(of)) for of in (run, run.out))
    assert str(first) == str(second)  # as text, since a NaN is not equal to itself
    assert Path("dataframe.vectors.explore.html").is_file()


def test_what_is_loaded_is_loaded_anew_in_a_worker(frame: pd.DataFrame) -> None:
    """joblib, Dask and Spark send objects to other processes by pickle."""
    data, texts = extracted(frame), ["good", "bad film"]
    run = train(data, folds=3, tune=False)
    encoder = embedkit.Encoder(str(tiny_model()), device="cpu", max_length=8)
    predictor = embedkit.Predictor(run, device="cpu", label_names={"1": "liked"})
    searcher = embedkit.Searcher(data, where="label = '1'", device="cpu", warm=False)
    copies = pickle.loads(pickle.dumps([encoder, predictor, searcher]))
    assert repr(copies) == repr([encoder, predictor, searcher])
    assert np.array_equal(copies[0].encode(texts), encoder.encode(texts))
    assert copies[1].predict(texts) == predictor.predict(texts)
    assert copies[2].texts(texts) == searcher.texts(texts)
    with pytest.raises(UsageError, match="the run has the labels 0, 1"):
        embedkit.Predictor(run, device="cpu", label_names={"2": "liked"})
    with pytest.raises(UsageError, match=r"labels texts\. Use predict"):
        predictor.predict_words(texts)
