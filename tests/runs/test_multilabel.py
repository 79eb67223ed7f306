"""Records with any number of classes: metrics, folds, runs, predictions, comparison."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import metrics
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import embedkit
from embedkit.classifiers.estimators import CommonScaler
from embedkit.comparison.blend import write_blend
from embedkit.comparison.cases import as_single
from embedkit.errors import CorpusError, UsageError
from embedkit.finetuning.model import read_model
from embedkit.predict import Predictor, predict_file
from embedkit.runs.folder import read_run
from embedkit.runs.metrics import metrics_for
from embedkit.runs.predictions import read_predictions
from embedkit.runs.run import TrainRun
from embedkit.runs.scores import reported_scores
from embedkit.runs.split import UNUSED, split
from embedkit.units.target import Target, parts_of
from embedkit.units.units import Units
from tests.models import check_near
from tests.page_checks import page_of
from tests.run_fixtures import run_of, train, write_frame
from tests.store_fixtures import extract_tiny, tiny_model

WORDS = {"bus": "bus", "film": "movie", "praise": "good"}
N = 64
TASK: dict[str, Any] = {"task": "multilabel", "folds": 2}


def sets_of(n: int = N) -> list[list[str]]:
    """Every set of three classes, the empty one too."""
    return [[name for bit, name in enumerate(WORDS) if i >> bit & 1] for i in range(n)]


def corpus_of(path: Path, labels: list[str | None]) -> Path:
    wordings = (" and the ".join(map(WORDS.__getitem__, names)) for names in sets_of(len(labels)))
    texts = [f"the {words} number {i}" for i, words in enumerate(wordings)]
    return write_frame(pd.DataFrame({"text": texts, "label": labels}), path)


@pytest.fixture(scope="module")
def folder(common: Path) -> Path:
    corpus = corpus_of(common / "c.jsonl", [" | ".join(names) for names in sets_of()])
    extract_tiny(corpus, common / "data", layers="0,2")
    train(common / "data", out=common / "run", **TASK)
    return common


def test_values_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    y = (random.random((120, 4)) < [0.6, 0.3, 0.1, 0.5]).astype(np.int64)
    y[:2] = [[0] * 4, [1] * 4]
    proba: Any = np.round(random.random((120, 4)) * 0.6 + 0.3 * y, 2)  # with ties
    said = (proba >= 0.5).astype(int)
    expected = {
        "micro_f1": metrics.f1_score(y, said, average="micro"),
        "macro_f1": metrics.f1_score(y, said, average="macro"),
        "lrap": metrics.label_ranking_average_precision_score(y, proba),
        "subset_accuracy": metrics.accuracy_score(y, said),
        "log_loss": np.mean([metrics.log_loss(y[:, c], proba[:, c]) for c in range(4)]),
        "roc_auc": metrics.roc_auc_score(y, proba),
    }
    found = metrics_for(y, proba)
    assert {name: metric.value(len(y)) for name, metric in found.items()} == pytest.approx(expected)


def test_a_run_is_one_classifier_against_the_rest_for_each_class(folder: Path) -> None:
    data, content = embedkit.load(folder / "data"), run_of(folder / "run", TrainRun)
    assert content.classes == ("bus", "film", "praise")
    p = read_predictions(folder / "run", content.classes)
    y = np.array([[int(name in names) for name in content.classes] for names in sets_of()])
    assert np.array_equal(p.y, y)
    of_each = OneVsRestClassifier(LogisticRegression(max_iter=1_000))
    model = make_pipeline(Normalizer(), CommonScaler(), of_each)
    for train_index, test in p.folds():
        expected = model.fit(data.X[train_index], y[train_index]).predict_proba(data.X[test])
        assert p.proba[test] == pytest.approx(expected, abs=5e-3)
        assert np.array_equal(p.y_pred[test], p.proba[test] >= 0.5)
    scores = content.scores["cross_validation"]
    assert scores["micro_f1"].value == pytest.approx(metrics.f1_score(y, p.y_pred, average="micro"))
    assert scores["micro_f1"].low > scores["micro_f1"].majority
    per_class = content.per_class["cross_validation"]
    shown = [[one.precision, one.recall, one.f1, one.support] for one in per_class]
    columns = metrics.precision_recall_fscore_support(y, p.y_pred)
    assert np.array(shown) == pytest.approx(np.stack(columns, axis=1))


def test_the_baseline_is_the_best_constant_set(folder: Path) -> None:
    p = read_predictions(folder / "run", tuple(WORDS))
    (constant,) = np.unique(p.majority().y_pred, axis=0)
    every = [[i >> bit & 1 for bit in range(3)] for i in range(8)]
    scores = [
        metrics.f1_score(p.y, np.tile(one, (len(p.y), 1)), average="micro", zero_division=0)
        for one in every
    ]
    assert scores[every.index(constant.tolist())] == pytest.approx(max(scores))
    assert p.majority().proba == pytest.approx(np.tile(p.y.mean(0), (len(p.y), 1)))


def test_no_class_and_no_label_are_not_the_same(tmp_path: Path) -> None:
    """An empty label is a record without a class; null is one that nobody labelled."""
    labels: list[str | None] = ["/".join(names) for names in sets_of(40)]
    unknown = [3, 17, 18]
    for i in unknown:
        labels[i] = None
    corpus = corpus_of(tmp_path / "c.jsonl", labels)
    made = split(corpus, folds=3, label_separator="/")
    assert np.flatnonzero(made.folds == UNUSED).tolist() == unknown
    assert not made.settings.stratified
    extract_tiny(corpus, tmp_path / "data")
    result = train(tmp_path / "data", out=tmp_path / "run", label_separator="/", **TASK)
    p = read_predictions(tmp_path / "run", result.content.classes)
    assert np.setdiff1d(np.arange(40), p.row).tolist() == unknown
    assert (p.y.sum(1) == 0).sum() == 5
    assert parts_of(" a | b||", "|") == ["a", "b"]
    for label, problem in (
        ("[1, 0]", r"the label \[1, 0\] is a number for each class"),
        ("[true, 0.2]", "is a number for each class"),
        ('["a|b", 1]', "'a.b' holds"),
        ('[["a"], "b"]', "Name the field with the class"),
        ('[{"label": "a"}]', "Name the field with the class"),
    ):
        with pytest.raises(UsageError, match=problem):
            Target.of([label, "[0, 1]"], rows=np.arange(2), name="c.tsv", task="multilabel")


def test_a_column_for_each_class_is_a_list_of_classes(
    folder: Path, tmp_path: Path, notes: list[str]
) -> None:
    """As competitions have them: a column of 0 and 1 for each class, -1 where it is unknown."""
    texts = pd.read_json(folder / "c.jsonl", lines=True)["text"].tolist()
    frame = pd.DataFrame({"text": texts, "name, of all": 7, "id": [f"r{i}" for i in range(N)]})
    frame[[*WORDS]] = [[int(name in names) for name in WORDS] for names in sets_of()]
    labels = [*sets_of()]
    about = {"label": ",".join(WORDS), **TASK}
    write_frame(frame, tmp_path / "c.csv")
    write_frame(frame, tmp_path / "c.jsonl")
    frame.astype(dict.fromkeys(WORDS, "bool")).to_parquet(tmp_path / "c.parquet")
    extract_tiny(tmp_path / "c.csv", tmp_path / "kept", layers="0,2", keep=[*WORDS])
    extract_tiny(tmp_path / "c.csv", tmp_path / "data", layers="0,2", label=about["label"])
    expected = read_predictions(folder / "run", tuple(WORDS)).proba
    for name in ("kept", "data"):
        train(tmp_path / name, out=tmp_path / f"run of {name}", **about)
        found = read_predictions(tmp_path / f"run of {name}", tuple(WORDS))
        assert np.array_equal(found.proba, expected)
    for name in ("c.csv", "c.jsonl", "c.parquet"):
        units = Units.of_corpus(tmp_path / name, embedkit.CorpusOptions(label=about["label"]))
        assert [json.loads(str(label)) for label in units.label or ()] == labels
    # the test set of a run, and an answer with a column for each class
    odd = write_frame(frame.assign(bus=[-1, *frame["bus"][1:]]), tmp_path / "odd.csv")
    units = units.further(odd)
    assert (units.label or [""])[0] is None
    assert [json.loads(str(label)) for label in (units.label or ())[1:]] == labels[1:]
    run, form = tmp_path / "run of data", f"id,{about['label']}"
    predict_file(run, tmp_path / "c.csv", out=tmp_path / "s.csv", submission=form)
    answers = pd.read_csv(tmp_path / "s.csv", index_col="id")
    predicted = Predictor(run).predict(texts)
    assert np.allclose(answers, [[p.proba[name] for name in WORDS] for p in predicted], rtol=1e-8)
    # the label of a dataset may be one of the columns, and a class may have no record
    extract_tiny(tmp_path / "c.csv", tmp_path / "one", layers="2", label="bus", keep=["film"])
    several = Units.of_dataset(embedkit.load(tmp_path / "one"), label="film, bus")
    lists = [[name for name in ("film", "bus") if name in names] for names in sets_of()]
    assert [json.loads(str(label)) for label in several.label or ()] == lists
    rare = Units.of_corpus(frame.assign(film=0), embedkit.CorpusOptions(label=about["label"]))
    assert rare.target("multilabel").classes == ("bus", "praise")
    assert "no record has the class film" in notes[-1]
    assert not split(tmp_path / "c.csv", label=about["label"], folds=2).settings.stratified
    with pytest.raises(CorpusError, match=r"label='bus,plane'.*no such column as 'plane'"):
        Units.of_corpus(tmp_path / "c.csv", embedkit.CorpusOptions(label="bus,plane"))
    with pytest.raises(UsageError, match=r"2 values; .* Columns of classes are one text"):
        train(tmp_path / "kept", out=tmp_path / "no", label=["film", "bus"])
    with pytest.raises(UsageError, match=r"one of them is the label"):
        train(tmp_path / "kept", out=tmp_path / "leak", columns=["film"], **about)


@pytest.mark.parametrize("options", [{"features": "tfidf"}, {"estimator": "knn"}, {}])
def test_new_texts_have_sets_of_classes(
    folder: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    test = folder / "c.jsonl"
    train(folder / "data", out=tmp_path / "run", tune=True, test=test, **TASK, **options)
    p = read_predictions(tmp_path / "run", tuple(WORDS))
    p = p.take(p.test)
    predictor = Predictor(tmp_path / "run", device="cpu")
    found = predictor.predict(embedkit.load(folder / "data").text)
    names = np.array(p.classes)
    assert [one.label for one in found] == ["|".join(names[row == 1]) for row in p.y_pred]
    assert np.array([[*one.proba.values()] for one in found]) == pytest.approx(p.proba, abs=1e-5)
    predict_file(tmp_path / "run", test, out=tmp_path / "p.tsv", device="cpu")
    table = pd.read_csv(tmp_path / "p.tsv", sep="\t", keep_default_na=False)
    assert table["label"].tolist() == [one.label for one in found]


def test_a_probe_of_sets(folder: Path, tmp_path: Path) -> None:
    content = embedkit.probe(folder / "data", out=tmp_path / "probe", **TASK).content
    assert content.metric == "micro_f1"
    assert len(content.view_scores) == 2
    assert content.nested.value > content.nested.majority
    scores = run_of(folder / "run", TrainRun).scores["cross_validation"]
    assert content.nested.majority == scores["micro_f1"].majority > 0  # on the same folds
    assert all(view.control < view.score.value for view in content.view_scores)
    assert read_run(tmp_path / "probe") == replace(content, command=None)
    both = embedkit.compare([folder / "run", tmp_path / "probe"])
    assert len(page_of(both, tmp_path / "page.html")) > 10_000


def submit(compared: Any, folder: Path) -> None:
    """The blend of answers to new texts is their mean, its labels joined as those of the runs."""
    new = corpus_of(folder / "new.jsonl", [None] * 9)
    files = []
    for run in compared.runs:
        files.append(folder / f"{run.name}.csv")
        predict_file(run.path, new, out=files[-1], device="cpu")
    mean = compared.blends["mean"]
    write_blend(mean, folder / "blend.csv", answers=files)
    answers = (*files, folder / "blend.csv")
    first, second, both = (pd.read_csv(file, keep_default_na=False) for file in answers)
    columns = [f"proba_{name}" for name in mean.predictions.classes]
    assert both[columns].to_numpy() == pytest.approx((first[columns] + second[columns]) / 2)
    names = np.array(mean.predictions.classes)
    expected = ["|".join(names[row >= 0.5]) for row in both[columns].to_numpy()]
    assert both["label"].tolist() == expected
    named = {"id": "id", "bus": "proba_bus", "film": "proba_film"}
    write_blend(mean, folder / "submission.csv", answers=files, submission=named)
    assert pd.read_csv(folder / "submission.csv").columns.tolist() == list(named)


def test_runs_on_sets_are_compared(folder: Path, tmp_path: Path) -> None:
    train(folder / "data", out=tmp_path / "tfidf", features="tfidf", **TASK)
    found = embedkit.compare([folder / "run", tmp_path / "tfidf"])
    assert found.metric == "micro_f1"
    assert [row.kind for row in found.rows][-1] == "majority"
    difference = found.differences["run", "tfidf"]
    assert difference.low <= difference.value <= difference.high
    scores = reported_scores(read_predictions(folder / "run", tuple(WORDS)))
    assert found.row("run").scores["lrap"].value == scores["cross_validation"]["lrap"].value
    runs = [found.predictions[name] for name in ("run", "tfidf")]
    mean = np.mean([p.proba for p in runs], axis=0)
    blended = found.predictions["blend: mean"]
    assert np.array_equal(blended.proba, mean)
    assert np.array_equal(blended.y_pred, mean >= 0.5)
    assert "blend: stacked" not in found.predictions
    submit(found, tmp_path)
    p = found.predictions["run"]
    names = [" | ".join(np.array(p.classes)[row == 1]) or None for row in p.y]
    table = {"id": p.ids, "y_pred": names, "proba_bus": 0.4, "proba_film": 0.1, "proba_praise": 0.1}
    pd.DataFrame(table).to_csv(tmp_path / "other.csv", index=False)
    beside = embedkit.compare([folder / "run", tmp_path / "other.csv"])
    assert beside.row("other.csv").scores["subset_accuracy"].value == 1
    with pytest.raises(UsageError, match="metric='f1'"):
        embedkit.compare([folder / "run"], metric="f1")
    html = page_of(found, tmp_path / "page.html")
    assert "confusion matrix is not available" in html
    for name in ("confusion", "calibration", "sure"):
        assert f'id="{name}"' not in html
    single = as_single({"run": p})["run"]
    assert len(single.classes) == len(np.unique(np.concatenate([p.y, p.y_pred]), axis=0))
    assert np.array_equal(single.y == single.y_pred, (p.y == p.y_pred).all(axis=1))
    assert np.array_equal(single.proba.argmax(axis=1), single.y_pred)


NOT_ALLOWED: dict[str, Any] = {
    "lightgbm": {"estimator": "lightgbm"},
    "probabilities": {"estimator": "lightgbm:LGBMClassifier"},
    "LinearSVC": {"estimator": "sklearn.svm:LinearSVC"},
    "threshold": {"threshold": "0.3"},
}


@pytest.mark.parametrize("message", NOT_ALLOWED)
def test_what_sets_do_not_allow(folder: Path, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        train(folder / "data", out=folder / "none", **TASK, **NOT_ALLOWED[message])


def test_fine_tuned_sets_are_those_of_transformers(folder: Path, tmp_path: Path) -> None:
    """Probabilities and loss are those of the exported model, of its kind in transformers."""
    given = TASK | {"model": str(tiny_model()), "head": "pooler", "epochs": 1, "validation": 0.2}
    run = embedkit.finetune(folder / "c.jsonl", out=tmp_path / "tuned", **given)
    p = read_predictions(tmp_path / "tuned", run.content.classes)
    assert p.classes == tuple(WORDS)
    embedkit.export(tmp_path / "tuned", fold=0, out=tmp_path / "plain")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "plain").eval()
    assert model.config.problem_type == "multi_label_classification"
    held = np.flatnonzero(p.fold == 0)
    texts = [embedkit.load(folder / "data").text[row] for row in p.row[held]]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "plain")
    inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    labels = torch.tensor(p.y[held])
    with torch.inference_mode():
        plain = model(**inputs, labels=labels.float())
        exact = copy.deepcopy(model).double()(**inputs).logits.sigmoid()
        own = read_model(tmp_path / "tuned/model/fold-0")(**inputs, labels=labels)
    check_near(p.proba[held], plain.logits.sigmoid(), exact)
    assert float(own.loss) == pytest.approx(float(plain.loss), abs=1e-5)
    assert not set(p.row[held]) & set(p.inner.row[p.inner.fold == 0]) if p.inner else False
    (found,) = Predictor(tmp_path / "tuned", device="cpu").predict(texts[:1])
    assert found.label == "|".join(name for name, one in found.proba.items() if one >= 0.5)
    embedkit.compare([folder / "run", tmp_path / "tuned"])
    with pytest.raises(UsageError, match="threshold"):
        embedkit.finetune(folder / "c.jsonl", out=tmp_path / "x", threshold="f1", **given)
