"""Comparison of runs: numbers against oracles, honest blends and their files, refused mixtures."""

from __future__ import annotations

import json
import re
from dataclasses import astuple, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, special, stats
from sklearn import metrics

from embedkit.cli.compare import comparison_text
from embedkit.comparison import blend as blending
from embedkit.comparison import table as tables
from embedkit.comparison.blend import blend, write_blend
from embedkit.comparison.load import _with_shared_words, read_runs
from embedkit.comparison.table import Compared, compare, judge
from embedkit.errors import DamagedError, MismatchError, UsageError
from embedkit.prediction_files import parse_submission, read_prediction_files, write_prediction_file
from embedkit.runs.intervals import Difference
from embedkit.runs.metrics import Threshold, best_threshold
from embedkit.runs.run import TestSetContent
from embedkit.runs.scores import reported_scores
from embedkit.storage import seal
from tests.page_checks import page_of
from tests.processes import invoke
from tests.run_fixtures import edit_run, random_runs, scores_of, write_fake_run, write_fake_runs

row_of: Any = Compared.row


# scores


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_are_those_of_the_run_itself(tmp_path: Path, classes: int) -> None:
    """The same records, draws and measures as `train` uses, intervals included."""
    paths, y, outputs = random_runs(tmp_path, ["a", "b"], classes=classes, n=90)
    found = compare(paths)
    for path, output in zip(paths, outputs, strict=True):
        expected = scores_of(y, output, output.argmax(1))
        scores = row_of(found, path.name).scores
        assert len(scores) >= 6
        for name, score in scores.items():
            assert astuple(score) == pytest.approx(astuple(expected[name]), nan_ok=True)
            assert np.isnan(score.low) == (name == "calibration_error")  # it is biased
        assert scores["accuracy"].value == metrics.accuracy_score(y, output.argmax(1))
    # class frequencies are right on average by construction: that is no merit
    assert np.isnan(row_of(found, "majority").scores["calibration_error"].value)


# differences


def test_difference_of_pairs(tmp_path: Path) -> None:
    paths, y, outputs = random_runs(tmp_path, ["a", "b"], n=150)
    table = compare(paths, baseline="a")
    found = row_of(table, "b").to_baseline
    right = [output.argmax(1) == y for output in outputs]
    assert found.value == pytest.approx(right[1].mean() - right[0].mean())
    gap = right[1].astype(float) - right[0]
    error = gap.std(ddof=1) / np.sqrt(150)
    ends = stats.t.interval(0.95, 149, gap.mean(), error)
    assert (found.low, found.high) == pytest.approx(ends, abs=0.1 * error)
    assert found.p == pytest.approx(stats.ttest_1samp(gap, 0).pvalue, abs=0.01)
    assert row_of(table, "a").to_baseline is None


def test_groups_are_drawn_whole(tmp_path: Path) -> None:
    """Ten copies of every record: groups make them one, otherwise they are ten."""
    _, y, outputs = random_runs(tmp_path / "x", ["a", "b"], n=60, strength=0.4)
    y, copies = np.repeat(y, 10), [np.repeat(o, 10, axis=0) for o in outputs]
    found = {}
    for units in (60, 600):
        group = np.arange(600) * units // 600
        paths = write_fake_runs(tmp_path / f"{units}", "ab", y, copies, group % 5, group=group)
        found[units] = row_of(compare(paths, metric="log_loss", baseline="a"), "b").to_baseline
    assert found[60].high - found[60].low > 2.5 * (found[600].high - found[600].low)
    assert found[60].p > 5 * found[600].p


@pytest.mark.parametrize("test", [0, 40])
def test_p_is_corrected_for_all_pairs_of_rows(tmp_path: Path, test: int) -> None:
    """Holm's correction by hand; the interval of a pair is that of its reverse."""
    paths, _, _ = random_runs(tmp_path, ["a", "b", "c"], n=140, test=test, strength=0.4)
    found = compare(paths)
    rows = len(found.rows)
    assert found.tests == rows * (rows - 1) / 2
    pairs: dict[Any, Any] = {frozenset(pair): gap for pair, gap in found.differences.items()}
    ordered = sorted(pairs.values(), key=lambda difference: difference.p)
    assert len(ordered) == found.tests
    highest = 0.0
    for rank, difference in enumerate(ordered):
        highest = max(highest, min(1.0, (len(ordered) - rank) * difference.p))
        assert difference.p_corrected == pytest.approx(highest)
    for (one, other), difference in found.differences.items():
        back = found.differences[other, one]
        turned = -difference.value, -difference.high, -difference.low
        assert (back.value, back.low, back.high) == pytest.approx(turned)
        assert back.p_corrected == difference.p_corrected
    assert (found.rows[-1].test_to_best is not None) == bool(test)


VERDICTS = [
    (Difference(0.03, 0.01, 0.05, 0.001, 0.004), "better"),
    (Difference(-0.03, -0.05, -0.01, 0.001, 0.004), "worse"),
    (Difference(0.03, 0.01, 0.05, 0.01, 0.06), "not proven"),
    (Difference(0.002, -0.003, 0.007, 0.4, 0.9), "equivalent"),
    (Difference(0.004, 0.001, 0.007, 0.001, 0.004), "equivalent"),
    (Difference(0.004, -0.001, 0.011, 0.1, 0.4), "not proven"),
    (Difference(np.nan, np.nan, np.nan), "not proven"),
]


@pytest.mark.parametrize(("difference", "verdict"), VERDICTS)
def test_verdicts(difference: Difference, verdict: str) -> None:
    assert judge(difference, "accuracy", 0.01) == verdict
    turned = {"better": "worse", "worse": "better"}
    assert judge(difference, "log_loss", 0.01) == turned.get(verdict, verdict)


def test_the_smallest_difference_that_matters(tmp_path: Path) -> None:
    paths, _, _ = random_runs(tmp_path, ["a", "b"], n=60)
    assert compare(paths).min_difference == pytest.approx(0.01)
    assert compare(paths, min_difference=2).min_difference == pytest.approx(0.02)
    loss = compare(paths, metric="log_loss", baseline="a")
    baseline = row_of(loss, "a").scores["log_loss"].value
    assert loss.min_difference == pytest.approx(baseline / 100)
    assert loss.lower
    assert compare(paths, metric="log_loss", min_difference=0.25).min_difference == 0.25
    assert compare(paths, metric="mcc").min_difference == 0.01
    y = np.arange(100) % 2
    nearly = np.eye(2)[np.where(np.arange(100) < 3, 1 - y, y)]
    sharp = write_fake_run(tmp_path / "sharp", y, nearly)
    assert compare([sharp]).min_difference == pytest.approx(0.03 / 10)  # of what is missing
    with pytest.raises(UsageError, match="min_difference"):
        compare(paths, min_difference=-1)


@pytest.mark.parametrize(("count", "verdict"), [(3, "not proven"), (20, "better")])
def test_a_perfect_recall_rests_on_positives(tmp_path: Path, count: int, verdict: str) -> None:
    """No record has an influence on it, nor on that of the majority."""
    y = (np.random.default_rng(0).permutation(60) < count).astype(int)
    run = write_fake_run(tmp_path / "a", y, np.eye(2)[y])
    row = row_of(compare([run], metric="recall"), "a")
    assert (row.verdict, row.to_baseline.low > 0) == (verdict, verdict == "better")


# blends


def pool_of_two(odds: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Probability of the second class by the stack of two runs, from the log-odds of each."""
    sign = 2 * y - 1

    def loss(p: np.ndarray) -> float:
        penalty = ((p[:2] - 0.5) ** 2).sum() / 2 + p[2] ** 2 / 4  # half the shift in each class
        return float(np.logaddexp(0, -sign * (odds @ p[:2] + p[2])).sum() + penalty)

    found = optimize.minimize(loss, [0.5, 0.5, 0], method="Nelder-Mead", tol=1e-8).x
    return np.asarray(special.expit(new @ found[:2] + found[2]))


@pytest.mark.parametrize("lacking", [False, True])
def test_stacked_blend_has_the_least_penalised_loss(tmp_path: Path, lacking: bool) -> None:
    """Also of the records that all runs have inner predictions for, such as validation records."""
    paths, y, outputs = random_runs(tmp_path, ["a", "b"], n=150, inner=True)
    known = (np.arange(150) % 3 > 0) | (not lacking)
    file = paths[1] / "inner_predictions.parquet"
    frame = pd.read_parquet(file)
    frame[known[frame["row"]]].to_parquet(file)
    seal(paths[1])
    found = compare(paths).predictions["blend: stacked"].proba
    odds = np.stack([np.log(o[:, 1] / o[:, 0]) for o in outputs], axis=1)
    for fold in range(5):
        here = np.arange(150) % 5 == fold
        wanted = pool_of_two(odds[~here & known], y[~here & known], odds[here])
        assert np.allclose(found[here, 1], wanted, atol=1e-4)
    file.unlink()
    with pytest.raises(DamagedError, match="inner_predictions"):
        compare(paths)


def test_a_stack_of_few_records_and_many_classes_is_no_worse_than_the_mean() -> None:
    """Two runs that know something and one that knows nothing, fitted on 3 records a class."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(12), 53)
    known = np.arange(len(y)) % 53 < 3

    def run(strength: float) -> np.ndarray:
        logits = rng.normal(size=(len(y), 12))
        logits[np.arange(len(y)), y] += strength
        return special.softmax(logits, axis=1)

    proba = [run(2.0), run(1.5), run(0.0)]
    classes = [str(k) for k in range(12)]
    right = {}
    for kind in ("mean", "stacked"):
        apply = blending._BLENDS[kind]([p[known] for p in proba], y[known], classes)
        found = apply([p[~known] for p in proba])
        assert np.allclose(found.sum(axis=1), 1)
        right[kind] = np.mean(found.argmax(axis=1) == y[~known])
    assert right["stacked"] > right["mean"] > 0.5


def test_a_run_that_is_certain_does_not_outvote_all_others() -> None:
    values = [np.array([[1.0, 0.0]])] + 4 * [np.array([[0.01, 0.99]])]
    start = np.array([0.2] * 5 + [0.0, 0.0])  # equal weights, no shifts
    assert blending._by_pool(start, values).argmax() == 1


@pytest.mark.parametrize("count", [30, 1_000])
def test_of_few_records_none_shows_that_two_methods_are_equal(tmp_path: Path, count: int) -> None:
    """That are right on the same of them: Wilson's interval of none in so many."""
    y = np.arange(count) % 2
    said = np.eye(2)[np.where(np.arange(count) % 10 < 1, 1 - y, y)]
    paths = write_fake_runs(tmp_path, "ab", y, [0.9 * said + 0.05, 0.6 * said + 0.2])
    for path, seconds in zip(paths, (9.0, 1.0), strict=True):
        cost = {"fit_seconds": 1.0, "predict_seconds": seconds}
        edit_run(path, features="tfidf", views=[], cost=cost)
    most = stats.binomtest(0, count).proportion_ci(method="wilson").high
    for first, second in (paths, paths[::-1]):
        found = compare([first, second])
        gap = found.differences["a", "b"]
        assert astuple(gap)[:4] == pytest.approx((0, -most, most, 1))
        assert judge(gap, "accuracy", 0.01) == ("equivalent" if count > 400 else "not proven")
        # nothing is given up by the cheaper one, whichever stands first
        assert found.winner.name == "b"
    # the whole of an area too, whose own interval is not symmetric
    gap = compare(
        [paths[0], write_fake_run(tmp_path / "copy", y, 0.9 * said + 0.05)], metric="roc_auc"
    ).differences["a", "copy"]
    assert astuple(gap)[:3] == pytest.approx((0, -gap.high, gap.high))
    assert gap.high > 3 / count
    # losses are equal where all probabilities are
    assert compare(paths, metric="log_loss").differences["a", "b"].value != 0


def test_words_of_a_test_set_are_not_those_of_the_folds(tmp_path: Path) -> None:
    y = np.arange(6) % 2
    path = write_fake_run(tmp_path / "a", y, np.eye(2)[y], [0, 0, 1, -1, -1, -1])
    (run,) = read_runs([path])
    order = np.argsort(run.predictions.row)
    p = replace(run.predictions.take(order), row=np.array([0, 1, 2, 0, 1, 2]), word=0 * y)
    runs = [run._replace(predictions=p.take(np.arange(count))) for count in (6, 5)]
    for run in _with_shared_words(runs):
        assert run.predictions.row.tolist() == [0, 1, 2, 0, 1]


def blended_in_fold(tmp_path: Path, kind: str, flipped: bool, **options: Any) -> np.ndarray:
    """What a blend predicts for a fold whose own labels are turned round, or not."""
    _, y, outputs = random_runs(tmp_path / f"of {flipped}", ["a", "b"], n=100)
    y = np.where((np.arange(100) % 5 == 2) & flipped, 1 - y, y)
    paths = write_fake_runs(tmp_path / f"{flipped}", "ab", y, outputs, inner=True)
    found = blend(kind, read_runs(paths), **options).predictions
    here = found.fold == 2
    return np.column_stack([found.proba[here], found.y_pred[here]])


@pytest.mark.parametrize("options", [{}, {"threshold": Threshold(None, 2.0)}], ids=str)
@pytest.mark.parametrize("kind", ["mean", "stacked"])
def test_a_fold_does_not_learn_from_its_own_labels(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    """Neither weights nor thresholds."""
    one, other = (blended_in_fold(tmp_path, kind, turn, **options) for turn in (False, True))
    assert np.array_equal(one, other)


def test_without_inner_predictions_nothing_is_stacked_in_the_folds(tmp_path: Path) -> None:
    """Out-of-fold predictions of the other folds have seen the fold's labels."""
    paths, _, _ = random_runs(tmp_path, ["a", "b"], n=60, test=10)
    compared = compare(paths)
    assert {row.name for row in compared.rows if row.kind == "blend"} == {"blend: mean"}
    stacked = compared.blends["stacked"]
    assert not stacked.cross_fitted
    assert write_blend(stacked, tmp_path / "b.tsv") == 10  # the test set
    assert set(pd.read_csv(tmp_path / "b.tsv", sep="\t")["fold"]) == {"test"}
    none, _, _ = random_runs(tmp_path / "y", ["a", "b"], n=60)
    with pytest.raises(UsageError, match="blend: stacked"):
        write_blend(compare(none).blends["stacked"], tmp_path / "c.tsv")
    assert not (tmp_path / "c.tsv").exists()


def test_blends_and_tables_know_the_metric_asked_for(tmp_path: Path) -> None:
    """F7 of rare positives: thresholds of blends are learnt for it, and the baseline is all yes."""
    random = np.random.default_rng(0)
    y = (random.random(3_000) < 0.03).astype(int)
    folds = np.arange(3_000) % 5
    paths, decided = [], []
    for name in "abc":
        odds = random.normal(size=3_000) + 2.2 * y - 3.8
        positive = 1 / (1 + np.exp(-odds))
        output = np.stack([1 - positive, positive], axis=1)
        y_pred = np.empty(3_000, int)
        for f in range(5):
            cut = best_threshold(y[folds != f], positive[folds != f], beta=7)
            y_pred[folds == f] = positive[folds == f] >= cut
        decided.append(y_pred)
        about: dict[str, Any] = {"decided": y_pred, "threshold": 0.05, "threshold_metric": "f7"}
        paths.append(write_fake_run(tmp_path / name, y, output, inner=True, **about))
    for table in (compare(paths), compare(paths, metric="f7")):
        assert table.metric == "f7"
        score = {row.name: row.scores["f7"].value for row in table.rows}
        assert score["a"] == pytest.approx(metrics.fbeta_score(y, decided[0], beta=7))
        best = max(score[name] for name in "abc")
        assert min(score["blend: mean"], score["blend: stacked"]) > best
        ones = np.ones(3_000, int)
        assert score["majority"] == pytest.approx(metrics.fbeta_score(y, ones, beta=7))
    made = compare(paths, metric="f7").predictions["blend: mean"]
    for f in range(5):
        others, here = made.fold != f, made.fold == f
        cut = best_threshold(made.y[others], made.proba[others, 1], beta=7)
        assert np.array_equal(made.y_pred[here], made.proba[here, 1] >= cut)
    three = random_runs(tmp_path / "three", ["a"], classes=3)[0]
    for metric in ("f7", "calibration_error"):  # which has no interval
        with pytest.raises(UsageError, match="metric"):
            compare(three, metric=metric)


def test_of_one_fold_no_threshold_of_a_blend_is_chosen(tmp_path: Path) -> None:
    _, y, outputs = random_runs(tmp_path / "x", ["0", "1"], n=40)
    found = compare(write_fake_runs(tmp_path, "ab", y, outputs, [0] * 40), metric="f1")
    blended = found.predictions["blend: mean"]
    assert np.array_equal(blended.y_pred, blended.proba.argmax(1))


def test_a_blend_has_a_threshold_where_one_of_its_runs_has(tmp_path: Path) -> None:
    paths, _, _ = random_runs(tmp_path, ["a", "b"], n=60)
    edit_run(paths[1], threshold=0.3, threshold_metric="f1")
    assert compare(paths).blends["mean"].threshold is not None
    edit_run(paths[0], threshold=0.3, threshold_metric="f2")
    one, other = (compare(order).blends["mean"].threshold for order in (paths, paths[::-1]))
    assert one == other


@pytest.mark.parametrize("size", [1e-4, 1e4])
def test_remembered_texts_excuse_so_much_of_an_error(tmp_path: Path, size: float) -> None:
    """Whatever the unit of the values is; all texts of the test set were trained on."""
    random = np.random.default_rng(0)
    y = random.normal(size=200) * size
    folds = [i % 4 for i in range(160)] + [-1] * 40
    noise = random.normal(size=(2, 200)) * size
    poor = y + np.where(np.arange(200) < 160, 0.8 * noise[0], 0)
    seen = TestSetContent(source=("t",), rejected=0, seen_texts=40)
    about: dict[str, Any] = {"classes": (), "test_set": seen}
    outputs = [y + 0.5 * noise[1], poor]
    found = compare(write_fake_runs(tmp_path, ["good", "poor"], y, outputs, folds, **about))
    assert (found.winner.name, found.selection.failed) == ("blend: mean", ())


@pytest.mark.parametrize("kind", ["mean", "stacked"])
def test_answers_for_new_texts_are_blended(tmp_path: Path, kind: str) -> None:
    """Answers that are those of the records themselves give the blend on all records again."""
    paths, _, outputs = random_runs(tmp_path, ["a", "b"], n=40, test=8, inner=True)
    compared = compare(paths)
    files = []
    for number, output in enumerate(outputs):
        frame = pd.DataFrame(output, columns=["proba_0", "proba_1"])
        frame = frame.assign(row=range(40), id=[f"n{i}" for i in range(40)], label="0")
        files.append(tmp_path / f"{'ab'[number]}.tsv")
        frame.to_csv(files[-1], sep="\t", index=False)
    made = compared.blends[kind]
    write_blend(made, tmp_path / "s.parquet", answers=files)
    found = pd.read_parquet(tmp_path / "s.parquet")
    assert list(found["id"]) == [f"n{i}" for i in range(40)]
    held = compared.records.test  # these were predicted by the model of all folds
    wanted = made.predictions.proba[held]
    rows = [int(compared.records.row[i]) for i in held]
    assert np.allclose(found.loc[rows, ["proba_0", "proba_1"]], wanted, atol=1e-5)
    # in another order they are joined by row and id
    frame[::-1].to_csv(files[1], sep="\t", index=False)
    write_blend(made, tmp_path / "r.parquet", answers=files)
    assert pd.read_parquet(tmp_path / "r.parquet").equals(found)
    frame.assign(row=range(1, 41)).to_parquet(tmp_path / "other.parquet")
    frame.drop(columns="proba_1").to_parquet(tmp_path / "less.parquet")
    frame[:0].to_parquet(tmp_path / "empty.parquet")
    a, b = files
    for answers, error, message in (
        ([a, tmp_path / "none.tsv"], UsageError, r"none\."),
        ([a, tmp_path / "other.parquet"], MismatchError, r"other\.parquet"),
        ([tmp_path / "less.parquet", a], UsageError, "proba_1"),
        ([tmp_path / "empty.parquet", a], MismatchError, "not predictions of the same corpus"),
        ([a], UsageError, "answers"),
        ([a, tmp_path / "." / a.name], UsageError, "one file stands there twice"),
        ([b, a], UsageError, "in their order: a, b"),  # as their names tell
    ):
        with pytest.raises(error, match=message):
            write_blend(made, tmp_path / "t.tsv", answers=answers)


@pytest.mark.parametrize("kind", ["mean", "stacked"])
def test_answers_of_a_regression_are_blended(tmp_path: Path, kind: str) -> None:
    random = np.random.default_rng(0)
    y = random.normal(size=40)
    folds = [i % 4 for i in range(32)] + [-1] * 8
    outputs = [y + random.normal(size=40) for _ in "ab"]
    paths = write_fake_runs(tmp_path, "ab", y, outputs, folds, classes=(), inner=True)
    compared, files = compare(paths), [tmp_path / "a.csv", tmp_path / "b.csv"]
    for file, output in zip(files, outputs, strict=True):
        frame = pd.DataFrame({"row": range(40), "id": range(100, 140), "value": output})
        frame.to_csv(file, index=False)
    made = compared.blends[kind]
    write_blend(made, tmp_path / "s.csv", answers=files, submission=parse_submission("id,target"))
    found = pd.read_csv(tmp_path / "s.csv")["target"]
    held = compared.records.test
    rows = [int(compared.records.row[i]) for i in held]
    assert np.allclose(found[rows], made.predictions.proba[held], rtol=1e-6)
    frame.assign(value="?").to_csv(files[0], index=False)
    with pytest.raises(DamagedError, match="a value is no number"):
        write_blend(made, tmp_path / "t.csv", answers=files)
    pd.concat([frame, frame[:1]]).to_csv(files[0], index=False)
    with pytest.raises(DamagedError, match="has a record twice"):
        write_blend(made, tmp_path / "t.csv", answers=files)


# what may be compared


def test_mixtures_are_refused(tmp_path: Path) -> None:
    paths, y, outputs = random_runs(tmp_path, ["a", "b"], n=50)
    others: dict[str, dict[str, Any]] = {
        "--split": {"split": "t"},
        "true labels": {"y": y[::-1]},
        "label column": {"y": np.array(["x", "y"])[y], "classes": ("x", "y")},
        "other records": {"row": range(1, 51)},
        "predictions for other records": {"folds": (np.arange(50) + 1) % 5},
    }
    for message, changes in others.items():
        other = write_fake_run(tmp_path / message, **{"y": y, "output": outputs[0], **changes})
        with pytest.raises(MismatchError, match=message):
            compare([paths[0], other])
    for path, message in ((tmp_path / "b/../a", "twice"), (tmp_path, tmp_path.name)):
        with pytest.raises(UsageError, match=message):
            compare([paths[0], path])


def test_names_and_measures(tmp_path: Path) -> None:
    paths, _, _ = random_runs(tmp_path / "x", ["a", "b"], n=50)
    more, _, _ = random_runs(tmp_path / "y", ["a"], n=50)
    assert {str(paths[0]), str(more[0]), "b"} < {row.name for row in compare([*paths, *more]).rows}
    with pytest.raises(UsageError, match="metric"):
        compare(paths, metric="acuracy")
    with pytest.raises(UsageError, match="baseline"):
        compare(paths, baseline="c")
    assert compare(paths, baseline=str(paths[1])).baseline == "b"
    edit_run(paths[1], features="tfidf", views=[])
    assert compare(paths).baseline == "b"
    reserved, _, _ = random_runs(tmp_path / "z", ["majority"], n=50)
    with pytest.raises(UsageError, match="majority"):
        compare([*paths, *reserved])


def test_values(tmp_path: Path) -> None:
    """Runs of a regression: errors instead of shares, tested and corrected like labels."""
    random = np.random.default_rng(0)
    y = random.normal(size=100)
    outputs = [y + random.normal(scale=noise, size=100) for noise in (1.0, 0.3)]
    paths = write_fake_runs(tmp_path, ["coarse", "fine"], y, outputs, classes=())
    table = compare(paths)
    assert table.metric == "rmse"
    assert table.tests == 6
    names = [row.name for row in table.rows]
    assert names.index("fine") < names.index("coarse") < names.index("majority")
    worst = row_of(table, "coarse").to_best
    assert worst.low > 0
    assert worst.p_corrected < 0.05
    for metric in ("mae", "r2", "pearson", "spearman"):
        assert row_of(compare(paths, metric=metric), "coarse").to_best.p_corrected < 0.05
    assert "p (best)" in comparison_text(table)


def test_cost_is_taken_over(tmp_path: Path) -> None:
    paths, _, _ = random_runs(tmp_path, ["a", "b"], n=50)
    edit_run(paths[1], cost={"device": "cpu"})
    table = compare(paths)
    cost = row_of(table, "a").cost
    assert (cost.fit_seconds, cost.predict_seconds, cost.size_bytes) == (2.0, 10.0, 1_000)
    assert row_of(table, "b").cost.fit_seconds is None
    assert row_of(table, "blend: mean").cost.fit_seconds is None  # that of a run is unknown
    edit_run(paths[1], cost={"fit_seconds": 3, "predict_seconds": 1})
    together = row_of(compare(paths), "blend: mean").cost
    assert (together.fit_seconds, together.predict_seconds, together.size_bytes) == (5, 30, 2_000)
    costs = comparison_text(table).partition("Cost;")[2]
    assert re.search(r"^ *a +2\.0 +– +10", costs, re.MULTILINE)


def test_an_encoder_costs_its_least_time_and_a_dataset_is_encoded_once(tmp_path: Path) -> None:
    paths, _, _ = random_runs(tmp_path, ["a", "b", "c"], n=60, test=10)
    dataset = json.loads((paths[0] / "run.json").read_text("utf-8"))["dataset"]
    dataset["model"]["sha256"] = {"weights": "0"}
    for path, fingerprint in zip(paths, "ffg", strict=True):
        edit_run(path, dataset=dataset | {"fingerprint": fingerprint})
    stored: Any = [
        SimpleNamespace(
            manifest=SimpleNamespace(fingerprint=name), encode_seconds=lambda _, s=seconds: s
        )
        for name, seconds in (("f", 4.0), ("g", 6.0))
    ]
    costs = tables._costs(read_runs(paths), stored, compare(paths).blends)
    assert [costs[name].encode_seconds for name in "abc"] == [4.0] * 3
    assert costs["a"].milliseconds == 4.0 + 1_000 * 0.5 / 50  # for the records of the folds
    assert costs["blend: mean"].encode_seconds == 8.0  # two datasets


def test_the_answer_has_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths, _, _ = random_runs(tmp_path, [f"run{i}" for i in range(12)], n=60, test=10)
    assert len(invoke("compare", *paths).output.splitlines()) <= 15
    edit_run(paths[0], features="tfidf", views=[])
    few = invoke("compare", *paths).output
    assert re.search(r"^ +run0 ", few, re.MULTILINE)  # the baseline stays, though it is the worst
    every = invoke("compare", *paths, "--all", "-q").output
    assert all(f"  {path.name} " in every for path in paths)


def test_a_score_that_nobody_can_give_comes_last(tmp_path: Path) -> None:
    y = np.random.default_rng(0).normal(size=40)
    outputs = [np.zeros(40), y + 0.1 * np.sign(y)]
    paths = write_fake_runs(tmp_path, ["flat", "good"], y, outputs, classes=())
    found = compare(paths, metric="spearman")
    assert ">nan" not in page_of(found, tmp_path / "page.html").lower()
    assert found.rows[-1].name == "flat"
    assert np.isnan(found.rows[-1].scores["spearman"].value)
    assert "nan" not in comparison_text(found)


def test_a_run_says_of_the_majority_what_compare_says(tmp_path: Path) -> None:
    """By the one paired test: an interval without the majority's score proves nothing of it."""
    y, right = np.repeat([0, 1], [88, 85]), np.repeat([True, False, True, False], [54, 34, 51, 34])
    proba = np.eye(2)[np.where(right, y, 1 - y)] * 0.6 + 0.2
    path, worse = write_fake_runs(tmp_path, ["run", "worse"], y, [proba, proba[::-1]])
    for metric in ("accuracy", "macro_f1", "log_loss", "roc_auc"):
        table = compare([path], metric=metric)
        score = reported_scores(table.predictions["run"])["cross_validation"][metric]
        assert score.p == pytest.approx(table.differences["run", "majority"].p)
        if metric == "accuracy":
            assert score.low > score.majority
            assert stats.binomtest(34, 85).pvalue > 0.05  # the sign test of records that differ
            assert not score.differs
    # the majority is no method, so that it is never the best one
    table = compare([worse])
    assert (table.rows[0].name, table.best) == ("majority", "worse")
    assert table.as_json()["best"] == "worse"


# files of answers, as CSV and as submissions


def test_a_submission_has_two_columns_and_the_test_set_alone(tmp_path: Path) -> None:
    paths, _, outputs = random_runs(tmp_path, ["a", "b"], n=60, test=10)
    made = compare(paths).blends["mean"]
    assert write_blend(made, tmp_path / "all.csv") == 60
    every = pd.read_csv(tmp_path / "all.csv", dtype={"label": str, "fold": str})
    assert list(every.columns) == ["row", "id", "fold", "label", "proba_0", "proba_1"]
    mean = every.sort_values("row")[["proba_0", "proba_1"]]
    assert np.allclose(mean, sum(outputs) / 2, atol=1e-5)
    form = parse_submission("paper, judgement")
    assert write_blend(made, tmp_path / "s.csv", submission=form) == 10
    found = pd.read_csv(tmp_path / "s.csv", dtype=str)
    assert list(found.columns) == ["paper", "judgement"]
    tested = every[every["fold"] == "test"]
    assert found["paper"].tolist() == tested["id"].tolist()
    assert found["judgement"].tolist() == tested["label"].tolist()
    none, _, _ = random_runs(tmp_path / "none", ["a", "b"], n=60)
    with pytest.raises(UsageError, match="submission="):
        write_blend(compare(none).blends["mean"], tmp_path / "no.csv", submission=form)
    assert not (tmp_path / "no.csv").exists()
    for wrong in ("id", "id,", "a,a", "a,b,b", "id,=1", "id,a=", ""):
        with pytest.raises(UsageError, match="submission="):
            parse_submission(wrong)


def test_csv_keeps_what_a_tsv_cannot(tmp_path: Path) -> None:
    odd = 'a "b", c\nd\te'
    record = {"row": 0, "id": odd, "label": "x,y", "proba_x,y": 0.75, "proba_z": 0.25}
    write_prediction_file([record], ["x,y", "z"], tmp_path / "p.csv")
    assert pd.read_csv(tmp_path / "p.csv").iloc[0].tolist() == [0, odd, "x,y", 0.75, 0.25]
    _, ids, (proba,) = read_prediction_files([tmp_path / "p.csv"], ["x,y", "z"])
    assert ids == [odd]
    assert proba.tolist() == [[0.75, 0.25]]


def test_a_submission_of_probabilities_ranks_as_they_do(tmp_path: Path) -> None:
    """For competitions that are judged by an area or by log-loss."""
    paths, _, _ = random_runs(tmp_path, ["a", "b"], n=60, test=10)
    made = compare(paths).blends["mean"]
    tested = made.predictions.take(made.predictions.test)
    classes = made.predictions.classes
    for text in (f"id,target={classes[1]}", f"id,{','.join(classes)}"):
        write_blend(made, tmp_path / "s.csv", submission=parse_submission(text), overwrite=True)
        found = pd.read_csv(tmp_path / "s.csv", index_col="id")
        shown = tested.proba[:, 1:2] if "=" in text else tested.proba
        assert np.allclose(found, shown, rtol=1e-8, atol=0)
    tiny = [{"id": "n", "proba_x": 1.5e-12, "proba_y": 1 - 1.5e-12}]
    form = parse_submission("id,x=x")
    write_prediction_file(tiny, ["x", "y"], tmp_path / "t.csv", submission=form)
    assert (tmp_path / "t.csv").read_text() == "id,x\nn,1.5e-12\n"
    values = [
        {"row": i, "id": "n", "value": value} for i, value in enumerate((2.5, 30003103744.25))
    ]
    write_prediction_file(values, [], tmp_path / "v.csv", submission=parse_submission("id,y"))
    assert (tmp_path / "v.csv").read_text() == "id,y\nn,2.5\nn,30003103744.25\n"
    form = parse_submission("id,target=X")
    for names, words in ((["x", "y"], "X is not one of 'x', 'y'"), ([], "values have no classes")):
        with pytest.raises(UsageError, match=words):
            write_prediction_file([], names, tmp_path / "u.csv", submission=form)


@pytest.mark.parametrize("strength", [0.3, 3.0])
def test_the_submission_is_that_of_the_winner(tmp_path: Path, strength: float) -> None:
    """A single run, where a blend is not proven better: its labels, also for new records."""
    given: dict[str, Any] = {"n": 200, "test": 40, "inner": True, "strength": strength}
    paths, _, outputs = random_runs(tmp_path, ["a", "b", "c"], **given)
    found = compare(paths)
    made = found.blend_to_use()
    assert made.name == found.winner.name
    own = found.predictions[made.name]
    write_blend(made, tmp_path / "s.csv", submission={"id": "id", "label": "answer"})
    assert pd.read_csv(tmp_path / "s.csv")["label"].tolist() == own.y_pred[own.test].tolist()
    for path, output in zip(paths, outputs, strict=True):
        assert made.name != path.name or np.array_equal(made.apply(outputs), output)


def test_a_submission_that_lacks_records_says_so(tmp_path: Path) -> None:
    paths, _, _ = random_runs(tmp_path, ["a", "b"], n=60, test=10)
    for path in paths:
        edit_run(path, test_set={"source": ["t"], "rejected": 3, "seen_texts": 0})
    out = ("--write-blend", tmp_path / "s.csv", "--submission", "id,target")
    said = invoke("compare", *paths, *out).stdout
    assert "10 records" in said
    assert "3 records of the test set rejected" in " ".join(said.split())
    for metric in ("log_loss", "accuracy"):
        said = " ".join(
            invoke("compare", *paths, *out, "--overwrite", "--metric", metric).stdout.split()
        )
        assert ("the metric is of probabilities" in said) == (metric == "log_loss")


def test_runs_with_and_without_a_test_set_are_compared_on_the_folds(
    tmp_path: Path, notes: list[str]
) -> None:
    own = TestSetContent(source=("t",), rejected=0, seen_texts=3)
    random = np.random.default_rng(0)
    y = random.integers(2, size=50)
    proba = random.dirichlet([1, 1], size=(2, 50))
    folds = np.where(np.arange(50) < 10, -1, np.arange(50) % 5)
    with_test = write_fake_run(tmp_path / "a", y, proba[0], folds, test_set=own)
    row = np.arange(10, 50)
    outputs = [proba[1][row], proba[0][row]]
    some = np.arange(5, 50)  # another sample of the same file is another test set
    about: dict[str, Any] = {"row": some, "test_set": own}
    fewer = write_fake_run(tmp_path / "d", y[some], proba[1][some], folds[some], **about)
    assert compare([with_test, fewer]).counts == {"folds": 40, "test": 0}
    without, shared = write_fake_runs(tmp_path, "bc", y[row], outputs, folds[row], row=row)
    found = compare([with_test, without])
    assert any("folds alone" in note for note in notes)
    assert found.counts == {"folds": 40, "test": 0}
    assert not found.seen_texts  # of which none is compared
    plain = compare([shared, without])
    scores = [
        {row.name.replace("c", "a"): row.scores for row in one.rows if row.path}
        for one in (found, plain)
    ]
    assert str(scores[0]) == str(scores[1])  # with intervals of NaN
