"""From a dataset to runs: no leak, the same bits again, predictions of new texts, bad input."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import save as save_arrays
from sklearn import metrics
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import _testing
from skops.io import dumps

import embedkit
from embedkit.classifiers.estimators import TABLE, EstimatorSettings
from embedkit.classifiers.train import Frozen
from embedkit.cli.run_text import run_info_text
from embedkit.dataset.format import text_key
from embedkit.errors import CorpusError, DamagedError, MismatchError, OutputExistsError, UsageError
from embedkit.predict import Predictor, predict_file
from embedkit.prediction_files import PredictedRecord, write_prediction_file
from embedkit.runs.cross_validation import Problem, cross_validate
from embedkit.runs.folder import read_run
from embedkit.runs.metrics import Threshold
from embedkit.runs.split import read_split, split, split_for, write_split
from embedkit.storage import seal
from embedkit.units.units import Units
from tests import finetune_fixtures
from tests.finetune_fixtures import callers_state, check_test_set, predictions, write_lines
from tests.models import slow
from tests.processes import command, ends_with, invoke, succeed
from tests.run_fixtures import train, units_with, write_frame
from tests.store_fixtures import extract_tiny

pytestmark = pytest.mark.usefixtures("quick")

N = 120


def corpus_of(path: Path, labels: Any = None, seed: int = 0) -> Path:
    """Texts whose words tell the label most of the time."""
    if labels is None:
        labels = np.arange(N) % 2 ^ (np.random.default_rng(seed).random(N) < 0.1)
    return finetune_fixtures.corpus_of(path, count=N, labels=labels, seed=seed)


@pytest.fixture(scope="module")
def shared(common: Path) -> Path:
    """A folder with a dataset, a split and a run, made once."""
    corpus = corpus_of(common / "corpus.tsv")
    extract_tiny(corpus, common / "data", shard_rows=50, layers="all", pooling=["cls", "mean"])
    split(common / "data", out=common / "split.parquet", folds=4, test=0.2)
    train(common / "data", out=common / "run", split=common / "split.parquet", tune=True)
    return common


def test_the_baseline_of_a_single_fold_is_that_of_its_training_records(
    shared: Path, tmp_path: Path
) -> None:
    labels = ["a"] * (N - 23) + ["b"] * 23
    result = train(shared / "data", label=labels, out=tmp_path / "run", folds=1, tune=False)
    held = predictions(tmp_path / "run")["row"].to_numpy()
    y = np.array(labels) == "b"
    rest, truth = np.delete(y, held).mean(), y[held]
    assert abs(rest - truth.mean()) > 0.001
    expected = -np.log(np.where(truth, rest, 1 - rest)).mean()
    score = result.content.scores["cross_validation"]["log_loss"]
    assert score.majority == pytest.approx(expected, rel=1e-9)


def test_another_seed_assigns_other_folds(shared: Path, tmp_path: Path) -> None:
    train(shared / "data", out=tmp_path / "run", seed=1, folds=2)
    folds = predictions(tmp_path / "run").sort_values("row")["fold"].astype(int).tolist()
    assert folds == split(shared / "data", folds=2, seed=1).folds.tolist()
    assert folds != split(shared / "data", folds=2, seed=0).folds.tolist()


# leaks


def problems(shared: Path, index: np.ndarray | None) -> list[Problem]:
    """That of the dataset, and one with other vectors and labels of some records, or the test set.

    All have the rows of the dataset, which are its records in their order.
    """
    data = embedkit.load(shared / "data")
    target, made = Units.of_dataset(data).target(), read_split(shared / "split.parquet")
    index = made.test if index is None else index
    X, y = data.X.copy(), target.y.copy()
    X[index] = 50 * np.random.default_rng(0).normal(size=X[index].shape)
    y[index] = 1 - y[index]
    return [
        Problem(units_with(vectors, row=data.row), replace(target, y=labels), made)
        for vectors, labels in ((data.X, target.y), (X, y))
    ]


@pytest.mark.parametrize(
    "options", [{}, {"tune": False}, {"threshold": Threshold(None, None)}], ids=str
)
def test_what_is_held_out_shapes_nothing(shared: Path, options: dict[str, Any]) -> None:
    """What is decided of half of a fold is the same for other vectors and labels of its rest."""
    held = np.flatnonzero(read_split(shared / "split.parquet").folds == 2)
    outputs = []
    for problem in problems(shared, held[::2]):
        found, _ = cross_validate(Frozen(EstimatorSettings(**options)), problem)
        mine = np.isin(found.row, held[1::2])
        outputs.append(np.column_stack([found.proba[mine], found.y_pred[mine]]))
    assert np.array_equal(outputs[0], outputs[1])


def test_the_saved_model_knows_nothing_of_the_test_set(shared: Path, tmp_path: Path) -> None:
    """Other labels and vectors of the test set leave every prediction as it is, to the bit."""
    X, both = embedkit.load(shared / "data").X, problems(shared, None)
    for name in ("logreg", "knn"):
        fits = [cross_validate(Frozen(EstimatorSettings(name)), problem)[1] for problem in both]
        np.testing.assert_array_equal(*(fit.final.pipeline.predict_proba(X) for fit in fits))


# all estimators

TFIDF = (*TABLE["classification"], "sklearn.ensemble:ExtraTreesClassifier")


@pytest.mark.parametrize(
    ("estimator", "features"),
    [
        *((estimator, "vectors") for estimator in TABLE["classification"]),
        ("logreg", "tfidf"),
        ("sklearn.svm:LinearSVC", "vectors"),
        *slow(("sklearn.neural_network:MLPClassifier", "vectors")),
        *slow(*((estimator, "tfidf") for estimator in TFIDF if estimator != "logreg")),
    ],
)
def test_every_estimator_is_saved_and_predicts_again(
    shared: Path, tmp_path: Path, estimator: str, features: str
) -> None:
    options: dict[str, Any] = {"estimator": estimator, "split": shared / "split.parquet"}
    if features == "vectors":
        options["view"] = ["mean_2", "cls_1"]
    train(shared / "data", out=tmp_path / "run", features=features, **options)
    check_test_set(tmp_path / "run", shared / "corpus.tsv")
    names = {p.name for p in (tmp_path / "run/model").iterdir()}
    # neighbours among TF-IDF rows are a sparse matrix, which safetensors do not hold
    sparse = (estimator, features) == ("knn", "tfidf")
    form = "skops" if ":" in estimator or sparse else "safetensors"
    assert names == {f"pipeline.{form}"} | ({"booster.txt"} if estimator == "lightgbm" else set())


@pytest.mark.parametrize("estimator", [None, "lightgbm", *slow("knn", "sklearn.svm:SVR")])
def test_regression(tmp_path: Path, estimator: str | None, shared: Path) -> None:
    values = [f"{(i % 2) + i / 1000:.3f}" for i in range(N)]
    data = extract_tiny(corpus_of(tmp_path / "c.tsv", values), tmp_path / "data")
    result = train(data, out=tmp_path / "run", task="regression", seed=3, estimator=estimator)
    assert result.content.estimator == (estimator or "ridge")
    scores = result.content.scores["cross_validation"]
    assert scores["rmse"].value < scores["rmse"].majority
    found = predictions(tmp_path / "run")
    assert found["y_true"].dtype == found["y_pred"].dtype == np.float64
    said = Predictor(tmp_path / "run", device="cpu").predict("the good movie")
    assert float(said.label) == pytest.approx(said.value, rel=1e-5)
    typed = command("predict", "run", "--json", cwd=tmp_path, stdin=b"the good movie\n")
    assert json.loads(typed.stdout) == {"value": pytest.approx(said.value)}
    assert (tmp_path / "run/figures/values.svg").is_file()


# thresholds, test parts and given folds


def test_decisions_follow_the_threshold(shared: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"split": shared / "split.parquet", "tune": True}
    fixed = train(shared / "data", out=tmp_path / "fixed", threshold=0.9, **options)
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
    pd.read_csv(corpus, sep="\t").drop(columns="label").to_csv(bare, sep="\t", index=False)
    extract_tiny(corpus, tmp_path / "test", layers="all")
    runs: dict[str, Any] = {}
    found = {}
    for name, test in (("file", corpus), ("folder", tmp_path / "test"), ("bare", bare)):
        runs[name] = train(shared / "data", out=tmp_path / name, test=test).content
        table = predictions(tmp_path / name)
        found[name] = table[table["fold"] == "test"].reset_index(drop=True)
        # labels by value are not those of any column
        values = train(shared / "data", out=tmp_path / f"v{name}", test=test, label=["a", "b"] * 60)
        assert set(values.content.scores) == {"cross_validation"}
    assert len(found["file"]) == runs["file"].records["test"] == N
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
    assert runs["file"].test_set.seen_texts == sum(text_key(t) in trained for t in texts) > 0
    corpus.write_text(corpus.read_text("utf-8") + "\t1\n", "utf-8")  # a record without a text
    tfidf: Any = train(shared / "data", out=tmp_path / "t", test=corpus, features="tfidf").content
    assert tfidf.test_set.rejected == 1
    extract_tiny(corpus, tmp_path / "none", min_chars=999)
    with pytest.raises(UsageError, match="none has no records to predict"):
        train(shared / "data", out=tmp_path / "n", test=tmp_path / "none")
    again = train(shared / "data", out=tmp_path / "u", test=tmp_path / "test", features="tfidf")
    assert str(tfidf.scores["test"]) == str(again.content.scores["test"])  # with intervals of NaN


def test_units_of_a_test_set_are_its_texts(shared: Path, tmp_path: Path) -> None:
    """A test file whose records stand there three times tells no more than once."""
    head, *records = corpus_of(tmp_path / "once.tsv", seed=3).read_text("utf-8").splitlines()
    distinct = list({text_key(line.split("\t")[0]): line for line in records}.values())
    scores = []
    for times in (1, 3):
        corpus = write_lines(tmp_path / f"{times}.tsv", head, *distinct * times)
        run = train(shared / "data", out=tmp_path / f"{times}", test=corpus, features="tfidf")
        scores.append(run.content.scores["test"])
    for metric, score in scores[0].items():
        expected = pytest.approx(astuple(score), abs=1e-5, nan_ok=True)
        assert astuple(scores[1][metric]) == expected, metric


def test_test_parts_that_do_not_fit(shared: Path, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c.tsv", ["0", "new"] * (N // 2))
    half = corpus_of(tmp_path / "h.tsv", ["0", ""] * (N // 2))
    cut = extract_tiny(corpus, tmp_path / "cut", layers="all", max_length=4)
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"test": corpus}, UsageError, r"row 1 .*'new'"),
        ({"test": corpus, "split": shared / "split.parquet"}, UsageError, "test="),
        ({"test": half}, UsageError, "row 1"),
        ({"test": cut}, MismatchError, "max_length is 4"),
        *(({"threshold": text}, UsageError, "threshold=") for text in ("1.5", "f", "best", "f0")),
    ]
    for options, error, message in cases:
        with pytest.raises(error, match=message):
            train(shared / "data", out=tmp_path / "run", **options)
    with pytest.raises(MismatchError, match="max_length is 4"):
        Predictor(shared / "run", device="cpu").predict_stored(cut)


def test_folds_from_a_column(shared: Path, tmp_path: Path, notes: list[str]) -> None:
    lines = corpus_of(tmp_path / "c.tsv").read_text("utf-8").splitlines()
    kinds = {"named": ["a", "b", "test"], "held": ["Train", "validation", "test"]}
    for name, values in (kinds | {"dealt": ["train", "train", "Test"]}).items():
        marks = ["part", *(values[i % 3] for i in range(N))]
        rows = zip(lines, marks, strict=True)
        corpus = write_lines(tmp_path / f"{name}.tsv", *map("\t".join, rows))
        extract_tiny(corpus, tmp_path / name, keep=["part"])
        run = tmp_path / f"run-{name}"
        train(tmp_path / name, out=run, split="part", folds=4)
        found = predictions(run).set_index("row").sort_index()
        assert ((found["fold"] == "test") == (found.index % 3 == 2)).all()
        inside = found["fold"][found["fold"] != "test"]
        expected = {"named": ["0", "1"], "held": ["0"], "dealt": ["0", "1", "2", "3"]}
        assert sorted(set(inside)) == expected[name]
        if name == "held":  # trained on the others, which are never predicted
            assert (inside.index % 3 == 1).all()
        if name == "named":
            assert (inside == np.where(np.array(marks[1:])[inside.index] == "a", "0", "1")).all()
    dealt = split_for(Units.of_dataset(embedkit.load(tmp_path / "dealt")), "part", folds=1, seed=0)
    assert (dealt.folds == 0).sum() == N * 2 // 15  # a fifth of those for training
    # another tool has the names of the column
    at = tmp_path / "run-named"
    theirs = predictions(at).replace({"fold": {"0": "a", "1": "b"}})
    file = write_frame(theirs[["id", "fold", "y_pred"]], tmp_path / "llm.csv")
    assert len(embedkit.compare([at, file]).runs) == 2
    moved = theirs["fold"].shift(fill_value="a")
    for fold in (moved, theirs["fold"].replace("b", "train"), theirs["fold"].replace("b", "")):
        write_frame(theirs.assign(fold=fold), file)
        with pytest.raises(MismatchError, match="another fold"):
            embedkit.compare([at, file])
    # where one fold is held out, it is that of validation and not of training
    at = tmp_path / "run-held"
    for fold, fits in (("Validation", True), ("train", False), ("a", False)):
        theirs = predictions(at).replace({"fold": {"0": fold, "test": "Test"}})
        write_frame(theirs[["id", "fold", "y_pred"]], file)
        with nullcontext() if fits else pytest.raises(MismatchError, match="another fold"):
            embedkit.compare([at, file])
    notes.clear()
    train(tmp_path / "named", out=tmp_path / "told", split="part")
    parts = pd.Series(np.arange(N) % 3)
    texts = pd.Series([text_key(line.split("\t")[0]) for line in lines[1:]])
    shared_texts = parts.groupby(texts).transform("nunique") > 1
    assert [message.split()[0] for message in notes] == [str(shared_texts.sum())]
    # a test set that is called otherwise is a fold, and that is said
    other = corpus.read_text("utf-8").replace("\tTest\n", "\teval\n")
    (tmp_path / "eval.tsv").write_text(other, "utf-8")
    extract_tiny(tmp_path / "eval.tsv", tmp_path / "eval", keep=["part"])
    train(tmp_path / "eval", out=tmp_path / "evaluated", split="part")
    assert any(note.startswith("part: 2 folds, eval, train") for note in notes)
    corpus.write_text(corpus.read_text("utf-8").replace("\tTest\n", "\t\n"), "utf-8")
    with pytest.raises(UsageError, match="split='part': row 2 "):
        train(extract_tiny(corpus, tmp_path / "gaps", keep=["part"]), split="part")
    corpus.write_text(corpus.read_text("utf-8").replace("\t\n", "\t-1.0\n"), "utf-8")
    with pytest.raises(UsageError, match=r"split='part': -1 is no fold, .* Write test"):
        train(extract_tiny(corpus, tmp_path / "ours", keep=["part"]), split="part")


# predictions of new texts


class Stranger:
    """A type that no library knows."""


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Stranger(), "Stranger"),
        # a function of another library, under the name of a module of scikit-learn
        (make_pipeline(FunctionTransformer(_testing.check_output)), "check_output"),
    ],
)
def test_a_model_file_with_other_types_is_never_loaded(
    shared: Path, tmp_path: Path, model: Any, name: str
) -> None:
    run = Path(shutil.copytree(shared / "run", tmp_path / "run"))
    content = dumps(model)
    if name == "check_output":
        schema = zipfile.ZipFile(io.BytesIO(content)).read("schema.json").decode()
        assert '"subprocess"' in schema
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as file:
            file.writestr("schema.json", schema.replace('"subprocess"', '"sklearn.utils._testing"'))
        content = packed.getvalue()
    (run / "model/pipeline.safetensors").unlink()
    messages = {content: rf"holds \S*{name}, which is never loaded"}
    for stored, message in (messages | dict.fromkeys((b"PK no", b""), "cannot be read")).items():
        (run / "model/pipeline.skops").write_bytes(stored)
        seal(run)
        with pytest.raises(DamagedError, match=rf"pipeline\.skops {message}") as error:
            Predictor(run, device="cpu")
        assert "\n" not in str(error.value)


NOT_BUILT: list[tuple[Any, str]] = [
    ({"Popen": {"args": "date"}}, "holds Popen, which is never loaded"),
    ({"Pipeline": {"steps": [{"SVC": {}}]}}, "holds SVC, which is never loaded"),
    ({"dtype": "object_"}, "holds type, which cannot predict"),
    ({"array": "9"}, "cannot be read"),
    ({"Ridge": {}, "dict": {}}, "cannot be read"),
    ({"Ridge": {"coef_": {"array": "0"}}}, "does not fit the run"),
    (b"PK no", "cannot be read"),
]


@pytest.mark.parametrize(("content", "message"), NOT_BUILT)
def test_a_pipeline_file_builds_the_listed_classes_alone(
    shared: Path, tmp_path: Path, content: Any, message: str
) -> None:
    run = Path(shutil.copytree(shared / "run", tmp_path / "run"))
    if not isinstance(content, bytes):
        text = np.frombuffer(json.dumps(content).encode(), np.uint8)
        content = save_arrays({"pipeline": text, "0": np.zeros(3)})
    (run / "model/pipeline.safetensors").write_bytes(content)
    with pytest.raises(DamagedError, match="Make the run again"):  # it is not read before
        Predictor(run, device="cpu")
    seal(run)
    with pytest.raises(DamagedError, match=rf"pipeline\.safetensors ({message})"):
        Predictor(run, device="cpu").predict(["a"])


def test_where_predictions_go(shared: Path, tmp_path: Path) -> None:
    """Nothing of the user's is overwritten or asked for in vain."""
    before = (corpus := corpus_of(tmp_path / "c.tsv")).read_bytes()
    run = shared / "run"

    def refused(*arguments: str, code: int = 2) -> str:
        return ends_with(code, "predict", run, *arguments, cwd=tmp_path).stderr

    assert "--out c.tsv" in refused("c.tsv", "--out", "c.tsv", code=8)
    assert corpus.read_bytes() == before
    assert "--out" in refused("-", "--out", "a.tsv")
    succeed("predict", run, "c.tsv", "--out", "new/a.parquet", cwd=tmp_path)
    assert len(pd.read_parquet(tmp_path / "new/a.parquet")) == N
    assert "1 text cut at " in command("predict", run, "--text", "a " * 99, cwd=tmp_path).stderr
    (tmp_path / "odd.tsv").write_text("one\ttwo\na\tb\n")
    assert "--text" in refused("odd.tsv", "--out", "b.tsv")
    lines = b"\xef\xbb\xbfgood\n\ngood \xff\nbad"
    done = command("predict", run, "-", cwd=tmp_path, stdin=lines)
    # an empty line has no answer, as of search, nor has one in another encoding
    assert (done.returncode, done.stdout.count("\n")) == (3, 2), done.stderr
    assert "half of a character" in done.stderr


def test_a_pair_is_predicted_as_it_is_typed(tmp_path: Path) -> None:
    head = "id\ttext\tother\tlabel\n"
    rows = [f"{i}\tgood {i}\t{('bus', 'train')[i % 2]}\t{'ab'[i % 2]}\n" for i in range(24)]
    (tmp_path / "c.tsv").write_text(head + "".join(rows))
    data = extract_tiny(tmp_path / "c.tsv", tmp_path / "pairs", text="text", text_pair="other").out
    run = embedkit.train(data, out=tmp_path / "run").out
    expected = Predictor(run).predict("good 1", "train").label

    def answer(*arguments: str, **stdin: Any) -> Any:
        return command("predict", run, *arguments, cwd=tmp_path, **stdin)

    typed = answer("--text", "good 1", "--text-pair", "train")
    lines = answer("-", stdin=b"good 1\ttrain\ngood 1\n")
    for done in (typed, lines):
        assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [expected]
    assert "'good 1': expected two texts with a tab" in lines.stderr
    assert "pass second texts as --text-pair." in answer("--text", "good 1").stderr
    assert "by --text" in answer("--text-pair", "train", stdin=b"good 1\ttrain\n").stderr
    (tmp_path / "single.tsv").write_text("id\ttext\n1\tgood 1\n")
    assert "as --text-pair" in " ".join(answer("single.tsv").stderr.split())
    # a note about a file names no option that the command lacks
    (tmp_path / "quoted.tsv").write_text(head + '1\t"a ""b"""\tc\ta\n' * 3)
    assert "The quotes were kept\n" in answer("quoted.tsv").stderr


def test_a_prediction_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def answers() -> Iterator[PredictedRecord]:
        yield {"row": 0, "id": "a", "label": "1", "proba_0": 0.25, "proba_1": 0.75}
        raise RuntimeError("in the middle")

    for name in ("a.tsv", "a.jsonl", "a.parquet"):
        with pytest.raises(RuntimeError, match="in the middle"):
            write_prediction_file(answers(), ["0", "1"], tmp_path / name)
    assert list(tmp_path.iterdir()) == []


# bad input


def test_labels_that_cannot_be_learnt(tmp_path: Path, shared: Path) -> None:
    stored = {
        "missing": ([""] * N, "expected two labels or more, got none"),
        "values": ([f"{i % 50 / 10}" for i in range(N)], "task='regression'"),
        "lists": (['["b"]', "b"] * (N // 2), "is a list of classes. Pass task='multilabel'"),
        "sets": (["frozenset({'b'})", "b"] * (N // 2), "is a list of classes. Pass task="),
        "objects": (['{"b": 1}', "b"] * (N // 2), "Name the field with the class"),
        "spans": (['[[0, 5, "B"]]', "b"] * (N // 2), "spans of texts are for spans="),
    }
    for name, (labels, message) in stored.items():
        data = extract_tiny(corpus_of(tmp_path / f"{name}.tsv", labels), tmp_path / name)
        with pytest.raises(UsageError, match=message):
            train(data, out=tmp_path / "run")
    passed: list[tuple[str, Any, str]] = [
        ("classification", dict.fromkeys(range(N), "a"), "dict; expected a column"),
        ("classification", pd.DataFrame({"a": range(N)}), "DataFrame; expected"),
        ("classification", np.array(3), "ndarray; expected"),
        ("classification", [b"a", b"b"] * (N // 2), "bytes; expected texts"),
        ("regression", [1e9 + i for i in range(N)], "are around 1e.09 and differ by .* only"),
        ("regression", ["a", "2.5"] * (N // 2), "'a' of row 0"),
    ]
    for task, values, message in passed:
        with pytest.raises(UsageError, match=message):
            train(shared / "data", out=tmp_path / "run", task=task, label=values)
    assert not (tmp_path / "run").exists()
    tensor = torch.arange(N) % 2
    for number, values in enumerate([tensor, list(tensor)]):
        made = train(shared / "data", out=tmp_path / f"tensor{number}", label=values)
        assert made.content.classes == ("0", "1")
    # values of all rows of the input, of which the second is rejected
    (tmp_path / "gap.tsv").write_text("text\tid\nbus\t1\n\t2\ntrain\t3\n")
    gap = extract_tiny(tmp_path / "gap.tsv", tmp_path / "gap").out
    assert Units.of_dataset(embedkit.load(gap), label=["a", "b", "c"]).label == ["a", "c"]
    with pytest.raises(UsageError, match="2 values; expected 3"):
        Units.of_dataset(embedkit.load(gap), label=["a", "b"])


def test_a_fold_without_records(shared: Path, tmp_path: Path) -> None:
    """Records of a part of the corpus that the split was made of."""
    made = split(corpus_of(tmp_path / "c.tsv"), folds=3)
    folds = np.where(np.arange(N) < 40, made.folds // 2 * 2, 1)
    write_split(replace(made, folds=folds), tmp_path / "s.parquet")
    extract_tiny(tmp_path / "c.tsv", tmp_path / "data", limit=40)
    for make in (train, embedkit.probe):
        with pytest.raises(UsageError, match="fold 1"):
            make(tmp_path / "data", out=tmp_path / "run", split=tmp_path / "s.parquet")


def test_views_options_and_places(shared: Path, tmp_path: Path) -> None:
    data = shared / "data"
    wrong: dict[str, dict[str, Any]] = {
        "max_1": {"view": "max_1"},
        "estimator='logregg'": {"estimator": "logregg"},
        "task='regression'": {"task": "regression", "estimator": "logreg"},
        "seed=-1": {"seed": -1},
        "class_weight=": {"estimator": "knn", "class_weight": "balanced"},
    }
    for message, options in wrong.items():
        with pytest.raises(UsageError, match=message):
            train(data, out=tmp_path / "run", **options)
    with pytest.raises(UsageError, match="mean_2 is asked for twice"):
        embedkit.probe(data, out=tmp_path / "run", view=["mean_2", "mean_-1"])
    with pytest.raises(OutputExistsError, match="data"):
        train(data, out=data, overwrite=True)
    with pytest.raises(UsageError, match="data"):
        Predictor(data)
    train(data, out=tmp_path / "run")
    with pytest.raises(OutputExistsError, match="overwrite=True"):
        train(data, out=tmp_path / "run")
    again = train(data, out=tmp_path / "run", overwrite=True, view="cls_0")
    assert again.content.views == ("cls_0",)


# numbers that are none, and labels that are none of a figure's business


def strictly(text: str) -> Any:
    """JSON as other languages read it: NaN is none."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def test_json_without_nan(shared: Path, tmp_path: Path) -> None:
    extract_tiny(corpus_of(tmp_path / "v.tsv", [f"{i % 7 / 2}" for i in range(N)]), tmp_path / "v")
    corpus_of(tmp_path / "t.tsv", ["2.5"] * N)
    options = "--test t.tsv --task regression --estimator ridge --out run --json"
    done = succeed("train", "v", *options.split(), cwd=tmp_path)
    test = strictly(done.stdout)["scores"]["test"]
    # the mean ranks nothing, and nothing is explained where all values are equal
    assert (test["spearman"]["majority"], test["r2"]["value"]) == (None, None)
    assert strictly((tmp_path / "run/run.json").read_text("utf-8"))["scores"]["test"] == test
    assert " nan" not in run_info_text(tmp_path / "run", read_run(tmp_path / "run"))


# probe


@pytest.mark.slow
def test_probe(shared: Path, tmp_path: Path) -> None:
    same: dict[str, Any] = {"split": shared / "split.parquet"}
    views = ["cls_2", "mean_1"]
    options: dict[str, Any] = {"view": views, "control": "random-weights", **same}
    before = callers_state()
    content = embedkit.probe(shared / "data", out=tmp_path / "probe", **options).content
    assert callers_state() == before
    best = max(content.view_scores, key=lambda view: view.score.value)
    assert best.score.value > content.nested.majority
    assert abs(best.control - 0.5) < 0.2
    assert [*content.random_weights] == [v.name for v in content.view_scores] == views
    assert read_run(tmp_path / "probe") == replace(content, command=None)
    assert (tmp_path / "probe/figures/layers.svg").stat().st_size > 1_000
    finding, told, *_ = run_info_text(tmp_path / "probe", content).splitlines()
    assert f"{100 * content.nested.value:.1f} %" in finding
    assert "over the last layer" in finding
    assert told.startswith("held-out accuracy: ")
    assert "; never trained " in run_info_text(tmp_path / "probe", content)
    # it keeps no model, so that the next command trains one
    assert "embedkit train " in invoke("compare", tmp_path / "probe").output
    single = train(shared / "data", out=tmp_path / "run", view="mean_1", tune=True, **same)
    accuracy = single.content.scores["cross_validation"]["accuracy"].value
    assert accuracy == next(v.score.value for v in content.view_scores if v.name == "mean_1")
    with pytest.raises(UsageError, match="probe"):
        Predictor(tmp_path / "probe", device="cpu")
    with pytest.raises(UsageError, match="control='noise'"):
        embedkit.probe(shared / "data", out=tmp_path / "other", control="noise")  # type: ignore[arg-type]


# the command line


def test_columns_are_not_named_of_a_dataset(shared: Path) -> None:
    with pytest.raises(UsageError, match="is for a corpus"):
        predict_file(shared / "run", shared / "data", reading=embedkit.CorpusOptions(text="none"))


@pytest.mark.parametrize("words", [False, True])
def test_a_record_without_a_text_is_predicted_as_an_empty_one(
    shared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, words: bool
) -> None:
    texts = [None, ["good", " "], [], [" "]] if words else [None, "good", " ", ""]
    new, out = tmp_path / "new.jsonl", tmp_path / "s.csv"
    pd.DataFrame({"id": list("abcd"), "text": texts}).to_json(new, orient="records", lines=True)
    done = predict_file(shared / "run", new, out=out, submission="id,p=1", device="cpu")
    assert done == (4, "text", {})
    assert "3 records with an empty text" in caplog.text  # a warning
    expected = Predictor(shared / "run", device="cpu").predict_proba(["", "good", " ", ""])[:, 1]
    np.testing.assert_allclose(pd.read_csv(out)["p"], expected, rtol=1e-8)


def test_a_corpus_that_changes_is_not_predicted(shared: Path, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c.tsv")

    def rewritten(_: Any) -> None:
        corpus.write_bytes(corpus.read_bytes() + b"\n")

    with pytest.raises(CorpusError, match="changed while"):
        predict_file(shared / "run", corpus, out=tmp_path / "a.tsv", progress=rewritten)
    assert not (tmp_path / "a.tsv").exists()


def test_json_lines_hold_the_answers_of_a_table(shared: Path, tmp_path: Path) -> None:
    for name in ("a.tsv", "a.jsonl"):
        predict_file(shared / "run", shared / "corpus.tsv", out=tmp_path / name, device="cpu")
    table = pd.read_csv(tmp_path / "a.tsv", sep="\t", dtype={"label": str, "id": str})
    assert list(table.columns) == ["row", "id", "label", "proba_0", "proba_1"]
    objects = pd.read_json(tmp_path / "a.jsonl", lines=True, dtype=False)  # as they are written
    pd.testing.assert_frame_equal(objects, table, atol=1e-5)
