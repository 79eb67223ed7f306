"""From a dataset to runs: no leak, the same bits again, predictions of new texts, bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn import metrics
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

import embedkit
from embedkit.checksums import seal
from embedkit.choices import ESTIMATORS
from embedkit.classifiers.estimators import EstimatorSettings
from embedkit.classifiers.folds import cross_validate
from embedkit.classifiers.probe import probe
from embedkit.classifiers.saved import load_model, save_model
from embedkit.classifiers.scaling import CommonScaler
from embedkit.classifiers.train import split_for, target_of
from embedkit.cli.predict import _show
from embedkit.cli.run_text import run_info_text
from embedkit.dataset.record_keys import text_key
from embedkit.dataset.vector_settings import DatasetEncoder
from embedkit.encoding.encoder import Encoder
from embedkit.errors import (
    DamagedError,
    LockedError,
    MismatchError,
    OutputExistsError,
    UsageError,
)
from embedkit.fsio import exclusive
from embedkit.predict import Prediction, Predictor, _Trained, parse_label_names
from embedkit.prediction_files import PredictedRecord, write_prediction_file
from embedkit.runs.content import ReportedScore, TrainRun
from embedkit.runs.folder import read_run
from embedkit.runs.metrics import Threshold
from embedkit.runs.splits import split
from tests.processes import command
from tests.run_fixtures import train
from tests.store_fixtures import build_tiny, load_quickly, loading_quickly, tiny_model

WORDS = {"0": ["bad", "boring", "slow"], "1": ["good", "great", "fine"]}
N = 120


def corpus_of(path: Path, labels: Any = None, seed: int = 0) -> Path:
    """Texts whose words tell the label most of the time; every fourth one stands there twice."""
    random = np.random.default_rng(seed)
    lines: list[str] = []
    for i in range(N):
        label = str(i % 2)
        if i % 4 == 3 and lines:
            text = lines[-2].split("\t")[0] if i % 8 == 7 else f"the movie {i}"
        else:
            text = ""
        words = random.choice(WORDS[label if random.random() < 0.9 else str(1 - i % 2)], 3)
        text = text or f"the {words[0]} movie was {words[1]} {words[2]} number {i}"
        lines.append(f"{text}\t{label if labels is None else labels[i]}\t{i}")
    path.write_text("text\tlabel\tid\n" + "\n".join(lines) + "\n", "utf-8")
    return path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a dataset, a split and a run, made once."""
    folder = tmp_path_factory.mktemp("results")
    with loading_quickly():
        corpus = corpus_of(folder / "corpus.tsv")
        embedkit.extract(corpus, out=folder / "data", model=str(tiny_model()), layers="all",
                         pooling=["cls", "mean"], shard_rows=50)  # fmt: skip
        split(folder / "data", out=folder / "split.parquet", folds=4, test=0.2)
        train(folder / "data", out=folder / "run", split=folder / "split.parquet", tune=True)
        yield folder


def predictions(run: Path) -> pd.DataFrame:
    return pd.read_parquet(run / "predictions.parquet")


def test_every_record_is_held_out_once(shared: Path) -> None:
    found = predictions(shared / "run")
    data = embedkit.load(shared / "data")
    assert sorted(found["row"]) == data.row.tolist()
    folds = pq.read_table(shared / "split.parquet").to_pandas().set_index("row")["fold"]
    for row, fold in zip(found["row"], found["fold"], strict=True):
        assert fold == ("test" if folds[row] == -1 else str(folds[row]))
    assert np.allclose(found["proba_0"] + found["proba_1"], 1)
    assert (found["y_pred"] == np.where(found["proba_1"] > found["proba_0"], "1", "0")).all()
    assert found.set_index("row")["y_true"].to_dict() == dict(zip(data.row, data.y, strict=True))


def test_predictions_are_those_of_plain_scikit_learn(shared: Path, tmp_path: Path) -> None:
    data = embedkit.load(shared / "data")
    train(shared / "data", out=tmp_path / "run", split=shared / "split.parquet")
    made = split_for(data, shared / "split.parquet", folds=0, seed=0)
    folds = made.folds[:, 0]
    inside = np.flatnonzero(folds >= 0)
    parts = [(np.flatnonzero(folds[inside] != f), np.flatnonzero(folds[inside] == f))
             for f in range(4)]  # fmt: skip
    plain = make_pipeline(
        Normalizer(), CommonScaler(), LogisticRegression(max_iter=1_000, tol=1e-8)
    )
    wanted = cross_val_predict(
        plain, data.X[inside], data.y[inside], cv=parts, method="predict_proba"
    )
    found = predictions(tmp_path / "run")
    found = found[found["fold"] != "test"].sort_values("row")
    assert np.allclose(found[["proba_0", "proba_1"]].to_numpy(), wanted, rtol=0, atol=5e-3)


def test_the_same_run_twice_is_the_same_file(shared: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"split": shared / "split.parquet", "estimator": "mlp"}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(shared / "data", out=tmp_path / name, seed=seed, **options)
    first, second, other = (
        (tmp_path / n / "predictions.parquet").read_bytes() for n in ("a", "b", "c")
    )
    assert first == second != other


def test_another_seed_deals_other_folds(shared: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        train(shared / "data", out=tmp_path / f"{seed}", seed=seed)
    assert (
        predictions(tmp_path / "0")["fold"].tolist() != predictions(tmp_path / "1")["fold"].tolist()
    )


def test_the_run_says_what_it_is(shared: Path) -> None:
    content = json.loads((shared / "run/run.json").read_text("utf-8"))
    assert content["views"] == ["mean_2"]
    assert content["classes"] == ["0", "1"]
    assert content["records"] == {"folds": N - content["records"]["test"],
                                  "test": content["records"]["test"]}  # fmt: skip
    scores = content["scores"]["cross_validation"]
    assert set(scores) == {
        "accuracy", "macro_f1", "log_loss", "brier", "calibration_error", "roc_auc",
        "average_precision", "precision", "recall", "f1", "balanced_accuracy", "mcc",
    }  # fmt: skip
    assert [one["label"] for one in content["per_class"]["cross_validation"]] == ["0", "1"]
    assert content["split"]["unit"] == "text"
    assert scores["accuracy"]["low"] <= scores["accuracy"]["value"] <= scores["accuracy"]["high"]
    assert scores["accuracy"]["majority"] < scores["accuracy"]["value"]
    assert content["cost"]["parameters"] == 17
    figures = sorted(p.name for p in (shared / "run/figures").iterdir())
    assert figures == ["confusion.png", "precision_recall.png", "reliability.png"]


# leaks


def test_info_of_a_run(shared: Path, tmp_path: Path) -> None:
    done = command("info", shared / "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    content = json.loads((shared / "run/run.json").read_text("utf-8"))
    score = content["scores"]["test"]["accuracy"]
    assert f"accuracy, % test {100 * score['value']:.1f}" in " ".join(done.stdout.split())
    for words in ("a frozen run", "logreg on mean_2", "4 folds, 1 repeat, stratified, seed 0",
                  "pd.read_parquet(", "embedkit predict", "confusion.png"):  # fmt: skip
        assert words in done.stdout
    as_json = command("info", shared / "run", "--json", cwd=tmp_path)
    assert json.loads(as_json.stdout) == content


def test_a_verdict_in_words(shared: Path) -> None:
    content = read_run(shared / "run")
    assert isinstance(content, TrainRun)

    def text(accuracy: tuple[float, float, float], loss: float) -> str:
        scores = {
            "accuracy": ReportedScore(*accuracy, majority=0.5),
            "log_loss": ReportedScore(loss, loss - 0.01, loss + 0.01, majority=0.69),
        }
        made = replace(content, scores={"cross_validation": scores}, per_class={})
        return run_info_text(shared / "run", made)

    ahead = text((0.8, 0.7, 0.9), 0.4)
    first = ahead.splitlines()[0]
    assert first.startswith("accuracy 80.0 % (70.0 to 90.0) on ")
    assert first.endswith(": 30.0 points better than the majority class (50.0 %)")
    assert "worse than" not in ahead
    assert "not told apart from the majority class (50.0 %)" in text((0.52, 0.45, 0.6), 0.4)
    assert "20.0 points worse than the majority class" in text((0.3, 0.2, 0.4), 0.4)
    assert "log_loss is worse than that of guessing" in text((0.8, 0.7, 0.9), 0.9)


def moved_by_other_held_out_records(shared: Path, **options: Any) -> bool:
    """Whether what is decided of half of a fold changes with the vectors of its other half."""
    data = embedkit.load(shared / "data")
    target = target_of(data, "classification")
    threshold = options.pop("threshold", None)
    made = split_for(data, shared / "split.parquet", folds=0, seed=0)
    tune = options.pop("tune", True)
    held = np.flatnonzero(made.folds[:, 0] == 2)
    changed = data.X.copy()
    changed[held[::2]] = 50 * np.random.default_rng(0).normal(size=changed[held[::2]].shape)
    outputs = []
    for X in (data.X, changed):
        found = cross_validate(
            X, target, made, EstimatorSettings(**options), threshold=threshold, tune=tune
        ).predictions
        mine = np.isin(found.row, data.row[held[1::2]])
        outputs.append(np.column_stack([found.proba[mine], found.y_pred[mine]]))
    first, second = outputs
    return not np.array_equal(first, second)


@pytest.mark.parametrize(
    "options", [{}, {"pca": 5}, {"tune": False}, {"threshold": Threshold(None, None)}], ids=str
)
def test_what_is_held_out_shapes_nothing(shared: Path, options: dict[str, Any]) -> None:
    assert not moved_by_other_held_out_records(shared, **options)


def test_a_scaler_fitted_on_all_records_is_noticed(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leak that the test above is for, planted."""
    from embedkit.classifiers import folds, tuning

    honest = tuning.fit

    def leaking(features: Any, *rest: Any, **options: Any) -> Any:
        fitted = honest(features, *rest, **options)
        fitted.pipeline.named_steps["scale"].fit(features)
        return fitted

    monkeypatch.setattr(folds, "fit", leaking)
    assert moved_by_other_held_out_records(shared)


def test_duplicates_lie_on_one_side(shared: Path) -> None:
    data = embedkit.load(shared / "data")
    found = predictions(shared / "run").set_index("row")["fold"]
    where: dict[str, set[str]] = {}
    for row, text in zip(data.row, data.text, strict=True):
        where.setdefault(text, set()).add(found[row])
    assert len(where) < len(data)
    assert all(len(folds) == 1 for folds in where.values())


def test_the_view_is_chosen_without_the_held_out_fold(tmp_path: Path, shared: Path) -> None:
    """Random labels: the luckiest of many views looks better than chance, the nested one not."""
    random = np.random.default_rng(3)
    labels = [str(x) for x in random.integers(2, size=N)]
    corpus = corpus_of(tmp_path / "c.tsv", labels)
    embedkit.extract(corpus, out=tmp_path / "data", model=str(tiny_model()), layers="all",
                     pooling=["cls", "mean", "max"])  # fmt: skip
    result = probe(tmp_path / "data", out=tmp_path / "probe", folds=4, threads=1, estimator="knn")
    luckiest = max(view.score.value for view in result.content.views)
    assert result.content.nested.value < luckiest
    assert sum(view.chosen for view in result.content.views) == 4


# all learners


@pytest.mark.parametrize(
    ("estimator", "features"),
    [
        # its forest is large on disk, whatever it has learnt from
        pytest.param(e, f, marks=[pytest.mark.slow] * ((e, f) == ("extra_trees", "tfidf")))
        for e in ESTIMATORS
        for f in ("vectors", "tfidf")
    ],
)
def test_every_estimator_is_saved_and_predicts_again(
    shared: Path, tmp_path: Path, estimator: str, features: str
) -> None:
    if (estimator, features) == ("knn", "tfidf"):
        with pytest.raises(UsageError, match="estimator='knn' needs vectors"):
            train(shared / "data", out=tmp_path / "run", estimator="knn", features="tfidf")
        return
    options: dict[str, Any] = {"view": ["mean_2", "cls_1"]} if features == "vectors" else {}
    train(shared / "data", out=tmp_path / "run", split=shared / "split.parquet",
          estimator=estimator, features=features, **options)  # fmt: skip
    found = predictions(tmp_path / "run")
    found = found[found["fold"] == "test"].set_index("row")
    data = embedkit.load(shared / "data")
    texts = [t for t, r in zip(data.text, data.row, strict=True) if r in found.index]
    said = Predictor(tmp_path / "run", device="cpu").predict_proba(texts)
    assert np.allclose(said, found[["proba_0", "proba_1"]].to_numpy(), atol=1e-5)
    names = {p.name for p in (tmp_path / "run/model").iterdir()}
    beside = {"lightgbm": {"booster.txt"}}.get(estimator, set())
    if (estimator, features) == ("logreg", "vectors"):
        beside = {"linear.safetensors"}
    assert names == {"pipeline.skops"} | beside


@pytest.mark.parametrize("estimator", [name for name in ESTIMATORS if name != "logreg"])
def test_regression(tmp_path: Path, estimator: str, shared: Path) -> None:
    values = [f"{(i % 2) + i / 1000:.3f}" for i in range(N)]
    corpus = corpus_of(tmp_path / "c.tsv", values)
    embedkit.extract(corpus, out=tmp_path / "data", model=str(tiny_model()))
    result = train(tmp_path / "data", out=tmp_path / "run", task="regression",
                   estimator=estimator)  # fmt: skip
    assert set(result.content.scores["cross_validation"]) == {
        "rmse", "mae", "r2", "pearson", "spearman"
    }  # fmt: skip
    found = predictions(tmp_path / "run")
    assert found["y_true"].dtype == found["y_pred"].dtype == np.float64
    said = list(Predictor(tmp_path / "run", device="cpu").predict(["the good movie"]))
    assert float(said[0].label) == pytest.approx(said[0].value, rel=1e-5)
    assert (tmp_path / "run/figures/values.png").is_file()


def test_a_threshold_chosen_on_the_held_out_fold_is_noticed(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embedkit.classifiers import folds, tuning

    honest = tuning.fit

    def leaking(
        features: Any, target: Any, split: Any, train: Any, *rest: Any, **options: Any
    ) -> Any:
        fitted = honest(features, target, split, train, *rest, **options)
        held = np.flatnonzero(split.folds[:, 0] == 2)
        # the threshold that is best for the held-out records: another when they are changed
        cut = 0.98 if np.abs(features[held]).max() > 20 else 0.02
        positive = cut + 1e-3 * (2 * target.y[train] - 1)
        assert fitted.inner is not None
        fitted.inner[:] = np.stack([1 - positive, positive], axis=1)
        return fitted

    monkeypatch.setattr(folds, "fit", leaking)
    assert moved_by_other_held_out_records(shared, threshold=Threshold(None, 1.0))


# thresholds, test parts and given folds


def test_decisions_follow_the_threshold(shared: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"split": shared / "split.parquet", "tune": True}
    fixed = train(shared / "data", out=tmp_path / "fixed", threshold="0.9", **options)
    found = predictions(tmp_path / "fixed")
    assert (found["y_pred"] == np.where(found["proba_1"] >= 0.9, "1", "0")).all()
    assert fixed.content.threshold == 0.9
    assert found["proba_1"].equals(predictions(shared / "run")["proba_1"])
    eager = train(shared / "data", out=tmp_path / "f7", threshold="f7", **options)
    scores = eager.content.scores["cross_validation"]
    plain = predictions(shared / "run")
    plain = plain[plain["fold"] != "test"]
    usual = metrics.fbeta_score(plain["y_true"], plain["y_pred"], beta=7, pos_label="1")
    assert scores["f7"].value > usual  # nothing but a low threshold favours recall so much
    said = list(Predictor(tmp_path / "f7", device="cpu").predict(["the boring movie", "great"]))
    cut = eager.content.threshold or 1.0
    assert [one.label for one in said] == ["01"[one.proba["1"] >= cut] for one in said]


def test_a_test_part_from_elsewhere(shared: Path, tmp_path: Path) -> None:
    """A dataset and its corpus give the same answers, and without labels they are given too."""
    corpus = corpus_of(tmp_path / "test.tsv", seed=3)
    bare = tmp_path / "bare.tsv"
    bare.write_text(
        "".join(
            f"{a}\t{c}\n"
            for a, _, c in (line.split("\t") for line in corpus.read_text("utf-8").splitlines())
        ),
        "utf-8",
    )
    embedkit.extract(corpus, out=tmp_path / "test", model=str(tiny_model()), layers="all")
    runs, found = {}, {}
    for name, test in (("file", corpus), ("folder", tmp_path / "test"), ("bare", bare)):
        runs[name] = train(shared / "data", out=tmp_path / name, test=test).content
        table = predictions(tmp_path / name)
        found[name] = table[table["fold"] == "test"].reset_index(drop=True)
    assert len(found["file"]) == runs["file"].records.test == N
    proba = [found[name]["proba_1"] for name in runs]
    assert np.allclose(proba[0], proba[1], atol=1e-5)
    assert proba[0].equals(proba[2])
    assert found["bare"]["y_true"].isna().all()
    assert set(runs["bare"].scores) == {"cross_validation"}
    file = found["file"]
    accuracy = runs["file"].scores["test"]["accuracy"].value
    assert accuracy == pytest.approx((file["y_true"] == file["y_pred"]).mean())
    trained = {text_key(text) for text in embedkit.load(shared / "data").text}
    texts = embedkit.load(tmp_path / "test").text
    test_set = runs["file"].test_set
    assert test_set is not None
    assert test_set.seen_texts == sum(text_key(t) in trained for t in texts) > 0
    tfidf = train(shared / "data", out=tmp_path / "t", test=corpus, features="tfidf").content
    again = train(shared / "data", out=tmp_path / "u", test=tmp_path / "test", features="tfidf")
    assert tfidf.scores["test"] == again.content.scores["test"]


def test_the_default_estimator_is_that_of_the_task(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c.tsv", labels=np.arange(N) / 7)
    embedkit.extract(corpus, out=tmp_path / "data", model=str(tiny_model()))
    made = train(tmp_path / "data", out=tmp_path / "run", task="regression").content
    assert made.estimator == "ridge"
    probed = probe(tmp_path / "data", out=tmp_path / "probe", task="regression").content
    assert probed.estimator == "ridge"


def test_units_of_a_test_set_are_its_texts(shared: Path, tmp_path: Path) -> None:
    """A test file whose records stand there three times tells no more than once."""
    once = corpus_of(tmp_path / "once.tsv", seed=3)
    head, *records = once.read_text("utf-8").splitlines()
    distinct = list({text_key(line.split("\t")[0]): line for line in records}.values())
    scores = {}
    for name, times in (("one", 1), ("three", 3)):
        corpus = tmp_path / f"{name}.tsv"
        corpus.write_text("\n".join([head, *distinct * times]) + "\n", "utf-8")
        scores[name] = train(
            shared / "data", out=tmp_path / name, test=corpus, features="tfidf"
        ).content.scores["test"]
    for metric, score in scores["one"].items():
        assert astuple(scores["three"][metric]) == pytest.approx(astuple(score), abs=1e-6), metric


def test_test_parts_that_do_not_fit(shared: Path, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c.tsv", ["0", "new"] * (N // 2))
    with pytest.raises(UsageError, match="row 1 has the label 'new', which no training record has"):
        train(shared / "data", out=tmp_path / "run", test=corpus)
    with pytest.raises(UsageError, match="the split has a test set already"):
        train(shared / "data", out=tmp_path / "run", test=corpus, split=shared / "split.parquet")
    half = corpus_of(tmp_path / "h.tsv", ["0", ""] * (N // 2))
    with pytest.raises(UsageError, match="row 1 has no label while others have one"):
        train(shared / "data", out=tmp_path / "run", test=half)
    embedkit.extract(corpus, out=tmp_path / "cut", model=str(tiny_model()), layers="all",
                     max_length=4)  # fmt: skip
    with pytest.raises(MismatchError, match=r"fitted on: max_length is 4, expected \d+"):
        train(shared / "data", out=tmp_path / "run", test=tmp_path / "cut")
    with pytest.raises(MismatchError, match=r"fitted on: max_length is 4, expected \d+"):
        Predictor(shared / "run", device="cpu").predict_stored(tmp_path / "cut")
    for text in ("1.5", "f", "best", "f-1"):
        with pytest.raises(UsageError, match=r"expected a probability such as 0\.3, or the"):
            train(shared / "data", out=tmp_path / "run", threshold=text)


def test_stored_vectors_are_predicted_without_encoding(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = Predictor(shared / "run", device="cpu")
    encoded = predictor.predict_proba(embedkit.load(shared / "data").text)
    monkeypatch.setattr(DatasetEncoder, "__call__", None)
    data, said = predictor.predict_stored(shared / "data")
    found = [one.proba["1"] for one in said]
    assert len(found) == len(data.row)
    assert np.allclose(found, encoded[:, 1], atol=1e-5)


def test_folds_from_a_column(
    shared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = corpus_of(tmp_path / "c.tsv").read_text("utf-8").splitlines()
    for name, values in (("named", ["a", "b", "test"]), ("dealt", ["train", "train", "test"])):
        marks = ["part", *(values[i % 3] for i in range(N))]
        corpus = tmp_path / f"{name}.tsv"
        rows = zip(lines, marks, strict=True)
        corpus.write_text("".join(f"{line}\t{mark}\n" for line, mark in rows), "utf-8")
        embedkit.extract(corpus, out=tmp_path / name, model=str(tiny_model()), keep=["part"])
        run = tmp_path / f"run-{name}"
        train(tmp_path / name, out=run, split_column="part", folds=4)
        found = predictions(run).set_index("row").sort_index()
        assert ((found["fold"] == "test") == (np.arange(N) % 3 == 2)).all()
        inside = found["fold"][found["fold"] != "test"]
        assert sorted(set(inside)) == (["0", "1"] if name == "named" else ["0", "1", "2", "3"])
        if name == "named":
            assert (inside == np.where(np.array(marks[1:])[inside.index] == "a", "0", "1")).all()
        assert "1 repeat" in run_info_text(run, read_run(run))
    caplog.clear()
    train(tmp_path / "named", out=tmp_path / "told", split_column="part")
    parts = pd.Series(np.arange(N) % 3)
    texts = pd.Series([text_key(line.split("\t")[0]) for line in lines[1:]])
    shared_texts = parts.groupby(texts).transform("nunique") > 1
    assert caplog.messages == [
        f"{shared_texts.sum()} records have duplicates in another fold of column 'part'; scores "
        "may be inflated by leakage"
    ]
    with pytest.raises(UsageError, match="pass split= or split_column=, not both"):
        train(tmp_path / "named", out=tmp_path / "r", split_column="part",
              split=shared / "split.parquet")  # fmt: skip


# predictions of new texts


def test_new_texts_are_encoded_as_the_dataset_was(tmp_path: Path, shared: Path) -> None:
    corpus = corpus_of(tmp_path / "c.tsv")
    embedkit.extract(corpus, out=tmp_path / "data", model=str(tiny_model()), normalize=True,
                     prefix="query: ", max_length=8, special_tokens=False, storage="float16",
                     on_long="window", stride=2)  # fmt: skip
    train(tmp_path / "data", out=tmp_path / "run")
    predictor = Predictor(tmp_path / "run", device="cpu")
    data = embedkit.load(tmp_path / "data")
    assert isinstance(predictor._model, _Trained)
    assert predictor._model._encoder is not None
    assert np.array_equal(predictor._model._encoder(data.text), data.X)


def test_another_checkpoint_is_refused(shared: Path, tmp_path: Path) -> None:
    other = build_tiny(tmp_path / "other", seed=5)
    refused = pytest.raises(MismatchError, match=r"is not the checkpoint that .*run was made with")
    with loading_quickly(), refused:
        Predictor(shared / "run", model=str(other), device="cpu")


def test_label_names(shared: Path) -> None:
    names = parse_label_names("0=부정, 1=긍정")
    said = list(Predictor(shared / "run", label_names=names, device="cpu").predict(["good"]))
    assert set(said[0].proba) == {"부정", "긍정"}
    assert said[0].label in ("부정", "긍정")
    with pytest.raises(UsageError, match="the run has no label '7'; it has 0, 1"):
        Predictor(shared / "run", label_names={"7": "x"}, device="cpu")
    with pytest.raises(UsageError, match="two labels have the same name: 1, 1"):
        Predictor(shared / "run", label_names={"0": "1"}, device="cpu")
    with pytest.raises(UsageError, match="expected LABEL=NAME"):
        parse_label_names("positive")


def test_a_single_string_is_refused(shared: Path) -> None:
    predictor = Predictor(shared / "run", device="cpu")
    with pytest.raises(TypeError, match="texts='good' is a string; pass a list of strings"):
        predictor.predict("good")


def test_no_texts(shared: Path) -> None:
    assert Predictor(shared / "run", device="cpu").predict_proba([]).shape == (0, 2)
    with pytest.raises(UsageError, match="was made on single texts"):
        Predictor(shared / "run", device="cpu").predict_proba(["a"], ["b"])


def test_trees_that_point_outside_are_never_applied(shared: Path, tmp_path: Path) -> None:
    from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
    from sklearn.pipeline import make_pipeline

    X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)

    def forest(kind: Any = ExtraTreesClassifier) -> Any:
        return make_pipeline(kind(2, random_state=0).fit(X, np.arange(40) % 2))

    run = Path(shutil.copytree(shared / "run", tmp_path / "run"))
    save_model(run, honest := forest())
    seal(run)
    assert np.array_equal(load_model(run)(X), honest.predict_proba(X))
    far, loop, wide, narrow = (forest() for _ in range(4))
    far[-1].estimators_[1].tree_.children_right[0] = 10**6
    loop[-1].estimators_[0].tree_.children_left[0] = 0
    wide[-1].estimators_[0].tree_.feature[0] = 3
    narrow[-1].n_features_in_ = 2
    for damaged, message in (
        (far, "a child that is no node of it"), (loop, "a child that is no node of it"),
        (wide, "a feature that there is not"), (narrow, "a feature that there is not"),
        (forest(RandomForestClassifier), "trees outside of an extra_trees estimator"),
    ):  # fmt: skip
        save_model(run, damaged)
        seal(run)
        with pytest.raises(DamagedError, match=message):
            load_model(run)


class Stranger:
    """A type that no library knows."""


def test_a_model_file_with_other_types_is_never_loaded(shared: Path, tmp_path: Path) -> None:
    from skops.io import dumps

    run = Path(shutil.copytree(shared / "run", tmp_path / "run"))
    (run / "model/linear.safetensors").unlink()
    (run / "model/pipeline.skops").write_bytes(dumps(Stranger()))
    seal(run)
    with pytest.raises(UsageError, match=r"holds tests\..*Stranger, which is never loaded"):
        Predictor(run, device="cpu")
    (run / "model/pipeline.skops").write_bytes(b"PK no")
    seal(run)
    with pytest.raises(DamagedError, match="cannot be read"):
        Predictor(run, device="cpu")


def test_the_linear_form_is_the_pipeline(shared: Path, tmp_path: Path) -> None:
    run, view = tmp_path / "run", ["mean_2", "cls_1"]
    train(shared / "data", out=run, split=shared / "split.parquet", view=view)
    X = embedkit.load(shared / "data", view).X[:7]
    found = load_model(run)(X)
    file = run / "model/linear.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(DamagedError, match=r"linear.safetensors.* Make the run again"):
        load_model(run)  # the checksum
    seal(run)
    with pytest.raises(DamagedError, match=r"linear.safetensors cannot be read"):
        load_model(run)
    file.unlink()
    seal(run)
    assert np.allclose(found, load_model(run)(X), atol=1e-6)
    assert found.std(0).min() > 1e-3


def test_of_many_labels_the_likeliest_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    proba = {"a": 0.1, "b": 0.25, "c": 0.4, "d": 0.05, "e": 0.2}
    _show([Prediction("c", proba), Prediction("x", {"x": 0.625, "y": 0.375})], as_json=False)
    _show([Prediction("c", proba)], as_json=True)
    many, two, data = capsys.readouterr().out.splitlines()
    assert many == "c\tc 40.0 %  b 25.0 %  e 20.0 %  2 others 15.0 %"
    assert two == "x\tx 62.5 %  y 37.5 %"
    assert json.loads(data)["proba"] == proba


def test_a_run_that_holds_no_model(shared: Path, tmp_path: Path) -> None:
    probe(shared / "data", out=tmp_path / "probe", view="mean_2", threads=1)
    with pytest.raises(UsageError, match=r"is a probe run, which holds no model\. Give a run of"):
        Predictor(tmp_path / "probe", device="cpu")


def test_a_run_with_damage(shared: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(shared / "run", tmp_path / "run"))
    content = json.loads((run / "run.json").read_text("utf-8"))
    for name in ("kind", "classes", "views", "dataset"):
        less = {key: value for key, value in content.items() if key != name}
        (run / "run.json").write_text(json.dumps(less), "utf-8")
        seal(run)
        with pytest.raises(DamagedError, match=rf"run\.json is damaged: .*{name}"):
            Predictor(run, device="cpu")
    trees = tmp_path / "trees"
    train(shared / "data", out=trees, estimator="lightgbm")
    (trees / "model/booster.txt").write_bytes(b"\xff\xfe no tree")
    seal(trees)
    with pytest.raises(DamagedError, match=r"booster\.txt cannot be read"):
        Predictor(trees, device="cpu")


def test_where_predictions_go(shared: Path, tmp_path: Path) -> None:
    """Nothing of the user's is overwritten or asked for in vain."""
    corpus = corpus_of(tmp_path / "c.tsv")
    before = corpus.read_bytes()
    run = shared / "run"

    def refused(*arguments: str, code: int = 2) -> str:
        done = command("predict", run, *arguments, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        return done.stderr

    assert "--out c.tsv is the corpus itself" in refused("c.tsv", "--out", "c.tsv", code=8)
    assert corpus.read_bytes() == before
    assert "--out is for a corpus" in refused("-", "--out", "a.tsv")
    assert "--pair goes with --text" in refused("c.tsv", "--pair", "b")
    assert (
        "choose another with --column"
        in command("predict", run, "c.tsv", "--out", "new/a.parquet", cwd=tmp_path).stderr
    )
    assert len(pd.read_parquet(tmp_path / "new/a.parquet")) == N
    (tmp_path / "odd.tsv").write_text("one\ttwo\na\tb\n")
    assert "Name one with --column" in refused("odd.tsv", "--out", "b.tsv")
    assert not (tmp_path / "b.tsv.partial").exists()
    done = command("predict", run, "-", cwd=tmp_path, stdin=b"good \xff\n\nbad")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3


def test_a_prediction_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def answers() -> Iterator[PredictedRecord]:
        yield PredictedRecord(0, "a", Prediction("1", {"0": 0.25, "1": 0.75}))
        raise RuntimeError("in the middle")

    for name in ("a.tsv", "a.jsonl", "a.parquet"):
        with pytest.raises(RuntimeError, match="in the middle"):
            write_prediction_file(answers(), ["0", "1"], tmp_path / name)
    assert list(tmp_path.iterdir()) == []


# bad input


def test_labels_that_cannot_be_learnt(tmp_path: Path, shared: Path) -> None:
    cases = {
        "constant": (["1"] * N, "all records have the label '1'"),
        "missing": (
            ["", "1", "0"] * (N // 3),
            r"40 records have no label \(rows 0, 3, 6, 9, 12, …\)",
        ),
        "rare": (
            ["2", *["0", "1"] * (N // 2)][:N],
            r"label '2' does not occur in the training records of fold",
        ),
    }
    for name, (labels, message) in cases.items():
        corpus = corpus_of(tmp_path / f"{name}.tsv", labels)
        embedkit.extract(corpus, out=tmp_path / name, model=str(tiny_model()))
        with pytest.raises(UsageError, match=message):
            train(tmp_path / name, out=tmp_path / "run")
    table = pd.DataFrame({"text": [f"text {i}" for i in range(20)], "label": [0.0, 1.0] * 10})
    table.loc[3, "label"] = np.nan
    table.to_parquet(tmp_path / "nan.parquet")
    embedkit.extract(tmp_path / "nan.parquet", out=tmp_path / "nan", model=str(tiny_model()))
    with pytest.raises(UsageError, match=r"1 records have no label \(rows 3\); empty and NaN"):
        train(tmp_path / "nan", out=tmp_path / "run")
    corpus = corpus_of(tmp_path / "values.tsv", [f"{i % 50 / 10}" for i in range(N)])
    embedkit.extract(corpus, out=tmp_path / "values", model=str(tiny_model()))
    with pytest.raises(UsageError, match=r"50 different labels look like values \(0\.0 to 4\.9\)"):
        train(tmp_path / "values", out=tmp_path / "run")
    corpus = corpus_of(tmp_path / "words.tsv", ["a", "2.5"] * (N // 2))
    embedkit.extract(corpus, out=tmp_path / "words", model=str(tiny_model()))
    with pytest.raises(UsageError, match="the label 'a' of row 0 is no number"):
        train(tmp_path / "words", out=tmp_path / "run", task="regression", estimator="ridge")
    assert not (tmp_path / "run").exists()


def test_a_class_that_no_other_fold_has(shared: Path, tmp_path: Path) -> None:
    labels = ["0", "1"] * (N // 2)
    labels[0] = labels[10] = "rare"
    corpus = corpus_of(tmp_path / "c.tsv", labels)
    embedkit.extract(corpus, out=tmp_path / "data", model=str(tiny_model()))
    made = split(corpus, folds=2, out=tmp_path / "s.parquet")
    from embedkit.runs.split_files import Split, write_split

    folds = made.folds.copy()
    folds[[0, 10]] = 1
    write_split(Split(made.row, made.group, folds, made.settings), tmp_path / "s.parquet")
    with pytest.raises(UsageError, match="label 'rare' does not occur in the training records"):
        train(tmp_path / "data", out=tmp_path / "run", split=tmp_path / "s.parquet")


def few_of_a_class(folder: Path, count: int) -> Path:
    """A dataset with ``count`` records of a third class, and none of its texts twice."""
    labels = ["0", "1"] * (N // 2)
    labels[:count] = ["rare"] * count
    corpus = folder / "few.tsv"
    lines = [f"the movie {i}\t{label}\n" for i, label in enumerate(labels)]
    corpus.write_text("text\tlabel\n" + "".join(lines), "utf-8")
    embedkit.extract(corpus, out=folder / "few", model=str(tiny_model()), layers="all")
    return folder / "few"


@pytest.mark.filterwarnings("error")
def test_a_class_that_inner_folds_lack(shared: Path, tmp_path: Path) -> None:
    """One rare record in every training part: two of three inner parts may have none of it."""
    data = few_of_a_class(tmp_path, 2)
    found = probe(data, out=tmp_path / "probe", folds=2, seed=1, threads=1)
    assert all(0 <= view.control <= 1 for view in found.content.views)
    tuned = train(data, out=tmp_path / "tuned", folds=2, tune=True)
    shares = predictions(tmp_path / "tuned")[["proba_0", "proba_1", "proba_rare"]]
    assert np.allclose(shares.sum(axis=1), 1)
    assert [c.fold for c in tuned.content.choices] == [0, 1, None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"estimator": "svm"},
            r"estimator='svm' is calibrated in inner folds, and label 'rare' is in one",
        ),
        ({"pca": 1_000}, r"pca=1000: the vectors have 16 columns"),
        ({"seed": -1}, r"seed=-1: expected a whole number"),
    ],
)
def test_what_cannot_be_fitted(
    shared: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    data = few_of_a_class(tmp_path, 2)
    with pytest.raises(UsageError, match=message):
        train(data, out=tmp_path / "run", folds=2, **options)


def test_fewer_records_than_neighbours(shared: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "c.tsv"
    corpus.write_text("text\tlabel\n" + "".join(f"movie {i}\t{i % 2}\n" for i in range(20)))
    embedkit.extract(corpus, out=tmp_path / "data", model=str(tiny_model()))
    with pytest.raises(
        UsageError, match=r"estimator='knn' needs 15 training records or more; there are 10"
    ):
        train(tmp_path / "data", out=tmp_path / "run", folds=2, estimator="knn")


@pytest.mark.filterwarnings("error")
def test_tuning_tries_what_there_are_records_for(shared: Path, tmp_path: Path) -> None:
    found = train(shared / "data", out=tmp_path / "run", estimator="knn", tune=True)
    assert found.content.choices[-1].parameters["n_neighbors"] in (5, 15, 45)


def test_a_fold_without_records(shared: Path, tmp_path: Path) -> None:
    """Records of a part of the corpus that the split was made of."""
    corpus_of(tmp_path / "c.tsv")
    made = split(tmp_path / "c.tsv", folds=3)
    from embedkit.runs.split_files import Split, write_split

    folds = np.where(np.arange(N) < 40, made.folds[:, 0] // 2 * 2, 1)[:, None]
    write_split(Split(made.row, made.group, folds, made.settings), tmp_path / "s.parquet")
    embedkit.extract(tmp_path / "c.tsv", out=tmp_path / "data", model=str(tiny_model()), limit=40)
    for make in (train, probe):
        with pytest.raises(UsageError, match=r"fold 1 of the split has no held-out record among"):
            make(tmp_path / "data", out=tmp_path / "run", split=tmp_path / "s.parquet")


def test_a_split_of_other_data(shared: Path, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c.tsv", seed=9)
    split(corpus, out=tmp_path / "s.parquet")
    with pytest.raises(MismatchError, match="was made for other data than"):
        train(shared / "data", out=tmp_path / "run", split=tmp_path / "s.parquet")


def test_views_options_and_places(shared: Path, tmp_path: Path) -> None:
    data = shared / "data"
    with pytest.raises(UsageError, match=r"has no view 'max_1'; it has cls_0, mean_0"):
        train(data, out=tmp_path / "run", view="max_1")
    with pytest.raises(UsageError, match=r"estimator='svn': expected .*Did you mean 'svm'"):
        train(data, out=tmp_path / "run", estimator="svn")
    with pytest.raises(
        UsageError,
        match="estimator='logreg' is a classifier; for task='regression' take one of svm, ridge",
    ):
        train(data, out=tmp_path / "run", task="regression", estimator="logreg")
    with pytest.raises(UsageError, match="knn takes no class weights"):
        train(data, out=tmp_path / "run", estimator="knn", class_weight="balanced")
    with pytest.raises(OutputExistsError, match="pass overwrite=True to replace it"):
        train(data, out=shared / "run")
    with pytest.raises(OutputExistsError, match="it is not a run of embedkit"):
        train(data, out=data, overwrite=True)
    with pytest.raises(UsageError, match=r"is not a run\. Make one with embedkit train"):
        Predictor(data)
    train(data, out=tmp_path / "run")
    assert train(data, out=tmp_path / "run", overwrite=True, view="cls_0").content.views == (
        "cls_0",
    )


def test_a_failed_run_leaves_nothing_under_its_name(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("embedkit.classifiers.train.save_model", fail)
    with pytest.raises(OSError, match="No space left"):
        train(shared / "data", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.undo()
    monkeypatch.setattr(Encoder, "load", load_quickly)
    train(shared / "data", out=tmp_path / "run")
    assert not (tmp_path / "run.incomplete").exists()


def test_two_at_one_place(shared: Path, tmp_path: Path) -> None:
    """Who comes second leaves alone what the first is writing."""
    work = tmp_path / "run.incomplete"
    work.mkdir()
    (work / "predictions.parquet").write_bytes(b"of the first")
    with exclusive(work):
        for make in (train, probe):
            with pytest.raises(LockedError, match=r"run\.incomplete is being written by another"):
                make(shared / "data", out=tmp_path / "run")
    assert (work / "predictions.parquet").read_bytes() == b"of the first"
    train(shared / "data", out=tmp_path / "run")
    assert predictions(tmp_path / "run").equals(
        predictions(Path(train(shared / "data", out=tmp_path / "other").out))
    )


# numbers that are none, and labels that are none of a figure's business


def strictly(text: str) -> Any:
    """JSON as other languages read it: NaN is none."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def test_json_without_nan(shared: Path, tmp_path: Path) -> None:
    values = corpus_of(tmp_path / "v.tsv", [f"{i % 7 / 2}" for i in range(N)])
    embedkit.extract(values, out=tmp_path / "values", model=str(tiny_model()))
    split(tmp_path / "values", out=tmp_path / "s.parquet", test=0.2)
    done = command("train", "values", "--split", "s.parquet", "--task", "regression",
                   "--estimator", "ridge", "--out", "run", "--json", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    test = strictly(done.stdout)["scores"]["test"]
    assert test["spearman"]["majority"] is None  # the mean ranks nothing
    content = strictly((tmp_path / "run/run.json").read_text("utf-8"))
    assert content["scores"]["test"] == test
    assert "–" in run_info_text(tmp_path / "run", read_run(tmp_path / "run"))


@pytest.mark.figures
@pytest.mark.filterwarnings("error")
def test_labels_that_look_like_formulas(shared: Path, tmp_path: Path) -> None:
    import matplotlib as mpl

    before = mpl.get_backend()
    labels = ["$x^$", r"$\no{" + "long " * 30, "긍정\u0e01\x01"]
    corpus = corpus_of(tmp_path / "c.tsv", labels * (N // 3))
    embedkit.extract(corpus, out=tmp_path / "data", model=str(tiny_model()))
    train(tmp_path / "data", out=tmp_path / "run")
    assert (tmp_path / "run/figures/confusion.png").stat().st_size > 5_000
    assert mpl.get_backend() == before


# probe


def test_a_view_of_a_probe_is_what_it_is_alone(shared: Path, tmp_path: Path) -> None:
    names = ["mean_1", "cls_2", "mean_2"]
    options: dict[str, Any] = {"split": shared / "split.parquet", "codelength": True}
    together = probe(shared / "data", out=tmp_path / "all", view=names, threads=2, **options)
    for name, found in zip(names, together.content.views, strict=True):
        alone = probe(shared / "data", out=tmp_path / name, view=name, threads=1, **options)
        wanted = alone.content.views[0]
        assert found.name == wanted.name == name
        assert (found.score, found.control, found.codelength) == (
            wanted.score, wanted.control, wanted.codelength
        )  # fmt: skip


@pytest.mark.figures
def test_probe(shared: Path, tmp_path: Path) -> None:
    result = probe(shared / "data", out=tmp_path / "probe", split=shared / "split.parquet",
                   view=["cls_2", "mean_1"], control="random-weights", threads=1)  # fmt: skip
    content = result.content
    assert [v.name for v in content.views] == ["cls_2", "mean_1"]
    best = max(content.views, key=lambda view: view.score.value)
    assert best.score.value > content.majority
    assert abs(best.control - 0.5) < 0.2
    assert set(content.random_weights) == {v.name for v in content.views}
    assert read_run(tmp_path / "probe") == replace(content, command=None)
    assert (tmp_path / "probe/figures/layers.png").stat().st_size > 5_000
    told = run_info_text(tmp_path / "probe", content)
    assert f"{100 * best.score.value:.1f}" in told
    assert f"inner folds: accuracy {100 * content.nested.value:.1f} %" in told.splitlines()[0]
    single = train(shared / "data", out=tmp_path / "run", view="mean_1", tune=True,
                   split=shared / "split.parquet")  # fmt: skip
    accuracy = single.content.scores["cross_validation"]["accuracy"].value
    assert accuracy == next(v.score.value for v in content.views if v.name == "mean_1")
    with pytest.raises(UsageError, match="control='noise': expected random-weights"):
        probe(shared / "data", out=tmp_path / "other", control="noise")


# the command line


def split_table(path: str) -> pd.DataFrame:
    return pd.read_parquet(path)


def test_from_a_corpus_to_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of commands that the README shows, on the tiny model."""
    monkeypatch.chdir(tmp_path)
    corpus_of(tmp_path / "c.tsv")
    model = str(tiny_model())

    def run(*arguments: str, code: int = 0, stdin: bytes | None = None) -> str:
        done = command(*arguments, cwd=tmp_path, stdin=stdin)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    run("extract", "c.tsv", "--model", model, "--layers", "all", "--out", "v", "-q")
    assert "120 records, 3 folds" in run("split", "v", "--folds", "3", "--out", "s.parquet")
    run("split", "c.tsv", "--folds", "3", "--out", "t.parquet", "--text", "text", "--id", "id")
    assert split_table("t.parquet").equals(split_table("s.parquet"))
    message = run("split", "v", "--out", "u.parquet", "--limit", "5", code=2)
    assert "--limit 5 tells how to read a corpus file; v is a dataset" in message
    text = run("train", "v", "--split", "s.parquet", "--view", "mean_0, mean_2", "--out", "r")
    assert "logreg on mean_0 + mean_2" in text
    assert "accuracy" in text
    found = json.loads(run("train", "v", "--features", "tfidf", "--out", "t", "--json"))
    assert found["features"] == "tfidf"
    text = run("probe", "v", "--split", "s.parquet", "--out", "p", "--threads", "1")
    assert "is the one to report, not the highest row" in text
    said = run("predict", "r", "--text", "the good movie", "--label-names", "0=부정,1=긍정")
    assert said.split("\t")[0] in ("부정", "긍정")
    lines = run("predict", "r", "-", stdin=b"good\nbad\n").splitlines()
    assert len(lines) == 2
    run("predict", "r", "c.tsv", "--out", "a.tsv", "-q")
    table = pd.read_csv("a.tsv", sep="\t", dtype=str)
    assert list(table.columns) == ["row", "id", "label", "proba_0", "proba_1"]
    assert len(table) == N
    run("predict", "r", "c.tsv", "--out", "a.parquet", "-q")
    run("predict", "r", "c.tsv", "--out", "a.jsonl", "-q")
    shares = pd.read_parquet("a.parquet")
    assert np.allclose(shares["proba_1"], table["proba_1"].astype(float), atol=1e-6)
    objects = [json.loads(line) for line in Path("a.jsonl").read_text("utf-8").splitlines()]
    assert [o["label"] for o in objects] == table["label"].tolist() == shares["label"].tolist()
    run("predict", "r", "v", "--out", "b.tsv", "-q")
    assert Path("b.tsv").read_bytes().splitlines()[0] == Path("a.tsv").read_bytes().splitlines()[0]
    message = run("train", "v", "--view", "mean_9", "--out", "x", code=2)
    assert len(message.splitlines()) == 1
    assert "mean_9" in message
    message = run("predict", "r", code=2)
    assert "give either a corpus, -, or --text" in message
    message = run("predict", "r", "c.tsv", "--out", "a.xlsx", code=2)
    assert "expected a name ending in .tsv, .csv, .jsonl or .parquet" in message
