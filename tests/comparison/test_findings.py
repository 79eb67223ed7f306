"""What a report says, computed without a page: against scikit-learn, and on planted effects."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from scipy.stats import binomtest, norm
from sklearn.metrics import confusion_matrix

import embedkit
from embedkit.comparison import cases as casing
from embedkit.comparison import recommendation
from embedkit.comparison.load import read_runs
from embedkit.comparison.recommendation import Recommendation, notices, recommend, run_notices
from embedkit.comparison.report import charts_of
from embedkit.comparison.table import Compared, compare, records_to_decide
from embedkit.dataset.format import Totals
from embedkit.drawing import Scene, text_width
from embedkit.encoding.views import view_ranges
from embedkit.errors import MismatchError, UsageError
from embedkit.runs.figures import confusion, heat_map, reliability_bins, shaded_table
from embedkit.runs.intervals import Difference, Score
from embedkit.runs.metrics import metric_text
from embedkit.runs.predictions import Predictions, confidence_of
from embedkit.runs.run import TestSetContent
from embedkit.storage import seal
from tests.page_checks import page_of
from tests.processes import invoke
from tests.run_fixtures import edit_run, random_runs, write_fake_run, write_fake_runs
from tests.store_fixtures import extract_tiny


@pytest.fixture(scope="module")
def compared(common: Path) -> Compared:
    paths, _, _ = random_runs(common, ["a", "b", "c"], n=300, classes=4, test=40)
    return compare(paths, baseline="a")


def held_out(compared: Compared, name: str) -> Predictions:
    p = compared.predictions[name]
    return p.take(p.out_of_fold)


def predicting(folder: Path, accuracy: dict[str, float], *, n: int = 400) -> list[Path]:
    """Runs that are right on the first records, as many as their accuracy says."""
    y, order = np.arange(n) % 2, np.random.default_rng(0).permutation(n)
    outputs = [right_where(order < fraction * n, y) for fraction in accuracy.values()]
    return write_fake_runs(folder, accuracy, y, outputs, features="tfidf", views=())


def right_where(right: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Probabilities of two classes, the higher one of the true class where they are right."""
    return np.where(np.eye(2)[np.where(right, y, 1 - y)] > 0, 0.8, 0.2)


def costing(paths: list[Path], **seconds: tuple[float | None, float]) -> Recommendation:
    """What is recommended if the runs have other seconds to predict and to fit."""
    for path in paths:
        predict, fit = seconds[path.name]
        edit_run(path, cost={"predict_seconds": predict, "fit_seconds": fit})
    return recommend(compare(paths, min_difference=3))


def probed(folder: Path, accuracy: float, *, n: int = 400, **probe: Any) -> Path:
    """A probe that is right on as many records, chosen among two views."""
    y = np.arange(n) % 2
    proba = right_where(np.random.default_rng(1).permutation(n) < accuracy * n, y)
    return write_fake_run(folder, y, proba, probe={"mean_0": 1, "mean_1": 4}, **probe)


# the recommendation


def test_the_cheapest_of_those_that_lack_nothing_that_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = predicting(tmp_path, {"good": 0.80, "same": 0.79, "bad": 0.60})
    cheap = costing(paths, good=(9.0, 1.0), same=(1.0, 9.0), bad=(0.1, 0.1))
    assert cheap.method.name == "same"
    assert "+1.0" in cheap.reason
    assert "a text in" in cheap.reason
    assert cheap.reason.endswith("in a batch.")
    monkeypatch.setattr(Compared, "level", "word")
    assert "a word in" in recommend(compare(paths, min_difference=3)).reason
    monkeypatch.undo()
    # it may lack more than a point, and is not proven worse: what would decide is said
    for settings in ({"min_difference": 1.5}, {"min_difference": 3, "prefer": "score"}):
        open_ = compare(paths, **settings)
        assert (open_.winner.name, open_.selection.equal[:2]) == ("good", ("good", "same"))
    # of an error it lacks the other end of the interval
    lacking = compare(paths, metric="log_loss").differences["good", "same"]
    between = (lacking.high - lacking.low) / 2
    assert lacking.high < between < -lacking.low
    assert compare(paths, metric="log_loss", min_difference=between).winner.name == "good"
    gap = Difference(0.004, -0.016, 0.024)
    needed = partial(records_to_decide, margin=0.01, records=100)
    assert needed(gap, pairs=1) == pytest.approx(100 * ((0.02 / 0.006) ** 2 - 1))
    assert needed(Difference(0.02, 0.002, 0.038), pairs=1) == 0  # proven by now
    # the end towards 0 is what a proof needs, whatever the other one is
    assert needed(Difference(-0.02, -0.9, 0.02), pairs=1) == pytest.approx(100 * (2**2 - 1))
    # of a proof that is corrected for so many pairs, by as many records p is 0.05
    gap = Difference(0.03, 0.03 - 1.96 * 0.02, 0.03 + 1.96 * 0.02, p=0.13, p_corrected=1.0)
    for pairs in (3, 28):
        times = 1 + needed(gap, pairs=pairs) / 100
        assert pairs * 2 * norm.sf(0.03 / 0.02 * np.sqrt(times)) == pytest.approx(0.05, rel=1e-3)
    with pytest.raises(UsageError, match="prefer"):
        compare(paths, prefer="best")
    assert costing(paths, good=(1.0, 9.0), same=(9.0, 1.0), bad=(0.1, 0.1)).method.name == "good"
    # times that differ in their third digit are the same: then training decides
    level = costing(paths, good=(1.001, 9.0), same=(1.002, 1.0), bad=(0.1, 0.1))
    assert level.method.name == "same"
    assert costing(paths, good=(1.0, 9.0), same=(None, 1.0), bad=(0.1, 0.1)).method.name == "good"


def test_a_blend_that_is_proven_better_is_recommended(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    y = random.integers(2, size=600)
    scores = (2 * y - 1) * 0.7 + random.normal(size=(4, 600))
    outputs = [1 / (1 + np.exp(np.outer(score, [2, -2]))) for score in scores]
    advice = recommend(compare(write_fake_runs(tmp_path, "abcd", y, outputs)))
    assert advice.method.kind == "blend"
    assert advice.title.startswith("Blend the 4 runs")
    blend = next(one for one in advice.decisions if one.question == "Blend")
    assert (blend.answer, blend.tone) == ("yes", "yes")


def test_of_two_probes_the_better_one_decides(tmp_path: Path) -> None:
    y = np.arange(400) % 2
    worse = right_where(np.arange(400) < 280, y)
    probes = [
        write_fake_run(tmp_path / "worse", y, worse, probe={"cls_1": 5}),
        probed(tmp_path / "better", 0.95),
    ]
    one, other, alone = (recommend(compare(p)) for p in (probes, probes[::-1], probes[1:]))
    assert one.decisions == other.decisions
    assert one.decisions[0] == alone.decisions[0]


def test_the_choice_of_a_probe_is_a_candidate(tmp_path: Path) -> None:
    paths = predicting(tmp_path, {"one": 0.70, "two": 0.71})
    found = compare([*paths, probed(tmp_path / "probe", 0.95)])
    columns = pq.read_schema(tmp_path / "probe/predictions.parquet").names
    assert columns[-2:] == ["view_mean_0", "view_mean_1"]  # as docs/format.md says
    best = recommend(found)
    assert (found.winner.name, found.winner.kind) == ("probe", "probe")
    assert best.method == found.winner
    assert "layer 1, mean" in best.title
    assert (found.rows[0].name, best.gain) == ("probe", found.winner.to_baseline)
    assert found.blend_to_use().name in ("one", "two", "blend: mean")  # a probe has no model
    assert set(found.blends) == {"mean", "stacked"}
    assert {len(blend.runs) for blend in found.blends.values()} == {2}
    # a little better is paired like everything else, not proven, and costs more to fit
    close = compare([*paths, probed(tmp_path / "close", 0.72)], min_difference=9)
    assert close.winner.kind != "probe"
    assert close.differences["close", "two"].p_corrected is not None


def test_a_probe_is_compared_with_runs_on_the_same_records(tmp_path: Path) -> None:
    (path,) = predicting(tmp_path, {"one": 0.7}, n=200)
    alone = compare([probed(tmp_path / "probe", 0.9, n=100)])
    assert alone.winner.name == "probe"
    with pytest.raises(UsageError, match="probe"):
        alone.blend_to_use()
    with pytest.raises(MismatchError, match="probe"):
        compare([path, tmp_path / "probe"])  # of other records


def planted(
    folder: Path, folds: dict[str, float], test: dict[str, float], **content: Any
) -> Compared:
    """Runs that are right on fractions of 400 records in folds and of 200 in the test set."""
    y, fold = np.arange(600) % 2, np.where(np.arange(600) < 200, -1, np.arange(600) % 5)
    order = np.concatenate(
        [np.random.default_rng(i).permutation(n) for i, n in ((0, 200), (1, 400))]
    )
    limits = [np.where(fold < 0, test[name] * 200, folds[name] * 400) for name in folds]
    outputs = [right_where(order < limit, y) for limit in limits]
    return compare(write_fake_runs(folder, folds, y, outputs, fold, **content))


def test_what_fails_on_the_test_set_is_not_recommended(tmp_path: Path) -> None:
    fails = planted(tmp_path / "1", {"sharp": 0.9, "robust": 0.75}, {"sharp": 0.3, "robust": 0.75})
    advice = recommend(fails)
    assert fails.winner.name == "robust"
    assert "sharp" in fails.selection.failed
    assert fails.selection.useful
    assert "test set: 30.0 %" in advice.reason
    assert fails.blend_to_use().name == "robust"
    blend = next(one for one in advice.decisions if one.question == "Blend")
    assert (blend.answer, blend.why) == ("no", "fails on the test set")
    assert "It has ruled out sharp" in page_of(fails, tmp_path / "r.html")
    # a method may remember texts that it was trained on, and be ahead by as many
    seen = TestSetContent(source=("t",), rejected=0, seen_texts=90)
    memory = [{"sharp": 0.9, "robust": 0.75}, {"sharp": 0.5, "robust": 0.94}]
    remembered = planted(tmp_path / "5", *memory, test_set=seen)
    assert (remembered.winner.name, remembered.selection.failed) == ("sharp", ())
    assert "90 of the 200 test texts" in next(run_notices(remembered)).sentence
    for metric, failed in (("accuracy", ("sharp",)), ("macro_f1", ())):
        # a few records may change all of a score that is no mean of records
        few = planted(tmp_path / metric, *memory, test_set=replace(seen, seen_texts=80))
        assert compare([run.path for run in few.runs], metric=metric).selection.failed == failed
    # a little worse on the test set proves nothing: the folds decide
    close = planted(tmp_path / "2", {"sharp": 0.9, "robust": 0.75}, {"sharp": 0.74, "robust": 0.75})
    assert (close.winner.name, close.selection.failed) == ("sharp", ())
    # nor does a test set lift what the folds show to be worse
    lucky = planted(tmp_path / "3", {"sharp": 0.9, "robust": 0.75}, {"sharp": 0.8, "robust": 0.81})
    assert lucky.winner.name == "sharp"
    # alone, and worse than guessing on the test set
    assert not recommend(planted(tmp_path / "4", {"sharp": 0.9}, {"sharp": 0.2})).useful


@pytest.mark.parametrize(("share", "metric"), [(0.79, "accuracy"), (0.81, "macro_f1")])
def test_uneven_classes_are_judged_by_macro_f1(tmp_path: Path, share: float, metric: str) -> None:
    y = np.random.default_rng(0).permutation((np.arange(200) >= share * 200).astype(int))
    proba = np.where(np.eye(2)[y] > 0, 0.7, 0.3)
    path = write_fake_run(tmp_path / "a", y, proba)
    assert compare([path]).metric == metric
    other = write_fake_run(tmp_path / "b", y, proba, settings={"class_weight": "balanced"})
    assert compare([path, other]).metric == "macro_f1"
    # a threshold says by what it is judged, unless others were chosen by another metric
    by = {n: write_fake_run(tmp_path / n, y, proba, threshold_metric=n) for n in ("f1", "f2")}
    assert compare([by["f2"]]).metric == "f2"
    assert compare([*by.values()]).metric == metric
    assert compare([path], metric="accuracy").metric == "accuracy"


def odd(folder: Path, kind: str) -> list[Path]:
    """Runs on few or odd records: one class absent in a fold, many classes, ties, one fold."""
    random = np.random.default_rng(3)
    n, classes = {"many": (231, 77), "ties": (40, 2)}.get(kind, (60, 3))
    y = np.arange(n) % classes
    fold = np.arange(n) * 5 // n if kind == "absent" else random.permutation(n) % 4
    if kind == "absent":
        y = np.where((fold == 0) & (y == 2), 0, y)
    if kind == "one fold":
        fold = np.zeros(n, int)
    if kind == "test":
        fold = np.where(np.arange(n) < 15, -1, fold)
    names = np.array([f"c{number}" for number in range(classes)])
    scores = 2 * np.eye(classes)[y] + random.normal(size=(3, n, classes))
    outputs = np.exp(scores if kind != "ties" else 0 * scores)
    outputs /= outputs.sum(2, keepdims=True)
    about: dict[str, Any] = {"classes": tuple(names), "inner": kind == "one fold"}
    paths = write_fake_runs(folder, "ab", names[y], outputs[:2], fold, **about)
    if kind == "one fold":  # inner predictions are of records that are never held out
        for path in paths:
            table = pd.read_parquet(path / "predictions.parquet")
            table["row"] += 1_000
            table.to_parquet(path / "inner_predictions.parquet")
            seal(path)
    row = np.flatnonzero(fold >= 0)
    about = {"classes": tuple(names), "probe": {"mean_0": 1, "mean_2": 3}, "row": row}
    probe = write_fake_run(folder / "probe", names[y[row]], outputs[2][row], fold[row], **about)
    return [*paths, probe]


@pytest.mark.parametrize("kind", ["absent", "many", "ties", "one fold", "test"])
def test_the_same_winner_everywhere(tmp_path: Path, kind: str) -> None:
    paths = odd(tmp_path, kind)
    found = embedkit.compare(paths)
    name = found.winner.name
    assert found.to_frame().index[found.to_frame()["use"]].tolist() == [name]
    assert f"({name})" in repr(found)
    assert len(repr(found).splitlines()) == 1
    assert name in found._repr_html_()
    found.report(tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text("utf-8").replace("<wbr>", "")
    advice = recommend(found)
    before = "" if advice.useful else "numbers below: "
    assert f"{advice.title} <small>{before}{name}</small>" in page
    said = invoke("compare", *paths, "--write-blend", tmp_path / "b.csv")
    assert said.exit_code == 0, said.output
    assert said.output.splitlines()[0] == f"{advice.title} ({name})"
    assert f"  → {name} " in said.output
    data = json.loads(invoke("compare", *paths, "--json").output)
    assert data["recommendation"]["method"]["name"] == name
    # also where the first row is of a probe, which does not predict the test set
    assert ('id="table-test"' in page) == (kind == "test")
    written = found.blend_to_use().name
    assert written == (name if found.winner.kind != "probe" else found.selection.with_model)
    assert f", {written}" in said.output


def test_beside_another_tool_the_next_command_is_of_a_method_with_a_model(tmp_path: Path) -> None:
    """Of the winner if it holds one, although others are cheaper; a blend may be the best."""
    paths = predicting(tmp_path, {"tool": 0.95, "good": 0.92, "poor": 0.87}, n=1_000)
    costing(paths, tool=(9.0, 9.0), good=(9.0, 9.0), poor=(1.0, 1.0))
    file = paths[0] / "predictions.parquet"
    found = compare([*paths[1:], file], min_difference=8)
    assert (found.rows[0].name, found.winner.name) == (file.name, "good")
    assert found.blend_to_use().name == "good"
    assert "good --text" in recommend(found).next
    selection = found.selection._replace(name=file.name, with_model="blend: mean")
    blending = recommend(replace(found, selection=selection, metric="f2")).next
    assert blending.startswith("embedkit compare ")
    assert " --metric f2 --write-blend " in blending


def test_vectors_of_a_fine_tuned_encoder_are_called_that(tmp_path: Path) -> None:
    (path,) = predicting(tmp_path, {"run": 0.8})
    dataset = json.loads((path / "run.json").read_text())["dataset"]
    views = {"features": "vectors", "views": ["mean_2"]}
    edit_run(path, **views)
    assert recommend(compare([path])).title == "Use logistic regression on layer 2, mean"
    edit_run(path, **views, dataset=dataset | {"fold_models": True})
    assert recommend(compare([path])).title.endswith("layer 2, mean of the fine-tuned encoder")


def test_nothing_is_better_than_the_majority(tmp_path: Path) -> None:
    advice = recommend(compare(predicting(tmp_path, {"noise": 0.5})))
    assert not advice.useful
    assert "majority class" in advice.title
    assert "noise" in advice.reason
    # of few records a bin tells nothing, in which errors on both sides cancel out
    few = compare(predicting(tmp_path / "few", {"noise": 0.5}, n=80))
    assert "too few records to tell" in page_of(few, tmp_path / "r.html")
    # by the metric alone: weights and thresholds may make probabilities worse
    better = compare(predicting(tmp_path, {"sharp": 0.62}))
    sharp, guess = (better.row(name).scores["log_loss"] for name in ("sharp", "majority"))
    assert sharp.value > guess.value
    assert recommend(better).useful


def test_decisions_name_what_was_not_tried(compared: Compared, tmp_path: Path) -> None:
    advice = recommend(compared)
    answers = {one.question: one for one in advice.decisions}
    assert list(answers) == ["Layer", "Blend", "Fine-tuning", "More labels"]
    for question in ("Layer", "Fine-tuning", "More labels"):  # the runs have no dataset
        assert (answers[question].answer, answers[question].command) == ("not tried", "")
        assert "embedkit extract" in answers[question].sentence
    assert advice.next.startswith("embedkit compare ")  # a blend is the best
    paths = predicting(tmp_path, {"one": 0.7})
    with_probe = recommend(compare([*paths, probed(tmp_path / "probe", 0.6)]))
    assert with_probe.decisions[0].why == "chosen in 4 of 5 folds"


def test_the_next_command_trains_on_what_a_probe_chose_or_says_on_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recommendation, "_command", lambda _, *words, of="": " ".join(words))
    path = probed(tmp_path / "probe", 0.9)
    for choice, views in {"mean_0 + mean_1": "mean_0,mean_1", "mean_sum_0to1": "mean_1"}.items():
        edit_run(path, choices=[choice] * 5, estimator="knn")
        advice = recommend(compare([path]))
        assert advice.next == f"train --view {views} --estimator knn"
        assert ("not store the sum of layers 0 to 1, mean" in advice.reason) == ("sum" in choice)


@pytest.mark.parametrize("metric", ["accuracy", "log_loss"])
def test_curves_and_untrained_views_know_which_way_is_better(metric: str) -> None:
    lower = metric == "log_loss"
    points = (10, Score(0.5, 0.49, 0.51)), (20, Score(0.7, 0.69, 0.71))
    for curve, proven in ((points, not lower), (((10, points[1][1]), (20, points[0][1])), lower)):
        chosen = SimpleNamespace(curve=curve)
        content: Any = SimpleNamespace(metric=metric, noun="record", chosen=chosen)
        (decision,) = recommendation._curve(content)
        assert decision.answer == ("yes" if proven else "not proven")
    views = [SimpleNamespace(name=f"mean_{i}", score=Score(0.5, 0.4, 0.6)) for i in range(3)]
    untrained = {"mean_0": (0.3,), "mean_1": (0.5,), "mean_2": (0.7,)}
    content = SimpleNamespace(metric=metric, view_scores=views, random_weights=untrained)
    found: Any = SimpleNamespace(probes=[("p", content)])
    (notice,) = recommendation._random_weights(found)
    assert notice.sentence.endswith(
        f"views: {view_ranges(['mean_0', 'mean_1'] if lower else ['mean_1', 'mean_2'])}."
    )


# what to look at


@pytest.mark.parametrize("cut", [0, 1])
def test_a_text_of_200_that_was_cut_is_told(cut: int) -> None:
    ledger = {"records_truncated": cut, "tokens": 100, "tokens_cut": 25}
    job = SimpleNamespace(vectors=SimpleNamespace(max_length=24))
    manifest = SimpleNamespace(totals=Totals(accepted=200, ledger=ledger), job=job)
    dataset = SimpleNamespace(path=Path("d"), manifest=manifest)
    found: Any = SimpleNamespace(datasets=[dataset], runs=[])
    told = [notice.sentence for notice in recommendation._cut(found)]
    sentence = "d cuts 1 of 200 texts (0.5 %) at 24 tokens; 25 % of all tokens are not read."
    assert told == [sentence] * cut


def test_two_of_three_neighbours_doubt_a_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weak: dict[str, Any] = {"n": 200, "classes": 4, "strength": 0.2}
    found = compare(random_runs(tmp_path, ["a", "b"], **weak)[0])
    p, other = held_out(found, "a"), held_out(found, "b")
    wrong = np.flatnonzero((p.y != p.y_pred) & (other.y != other.y_pred)).tolist()
    agree = {i: (p.y == p.y_pred[i]).tolist() for i in wrong}
    near = {  # of the k-th record k % 4 neighbours have the predicted label
        i: [(agree[i].index(n < k % 4), 1.0) for n in range(3)] for k, i in enumerate(wrong)
    }
    monkeypatch.setattr(casing, "label_suspicions", lambda _: np.ones(len(p.y), bool))
    monkeypatch.setattr(casing, "_nearest", lambda *_: ("mean_2", near))
    doubted = casing.cases_of(found, "a").lists["relabel"].tolist()
    assert {wrong.index(i) % 4 for i in doubted} == {2, 3}


def test_notices_count_their_records(tmp_path: Path) -> None:
    found = compare(predicting(tmp_path, {"one": 0.8, "two": 0.7}))
    cases = casing.cases_of(found, "one")
    said = {one.records or one.short: one for one in notices(found, cases)}
    methods = [held_out(found, name) for name in ("one", "two")]
    both = np.logical_and.reduce([p.y_pred != p.y for p in methods])
    assert said["all_wrong"].short.startswith(f"{both.sum()} ")


def test_suspicions_are_few_and_certain(tmp_path: Path) -> None:
    """Planted label errors are found; records that are hard are not suspected."""
    random = np.random.default_rng(0)
    n = 400
    true = np.arange(n) % 2
    y = true.copy()
    planted = random.choice(n, 12, replace=False)
    y[planted] = 1 - y[planted]
    outputs = []
    for _ in range(3):
        sure = np.where(random.random(n) < 0.5, 0.99, 0.55)
        sure[planted] = 0.97
        outputs.append(np.where(np.eye(2)[true] > 0, sure[:, None], 1 - sure[:, None]))
    runs = read_runs(write_fake_runs(tmp_path, "abc", y, outputs, [0] * n))
    methods = [run.predictions for run in runs]
    assert set(np.flatnonzero(casing.label_suspicions(methods))) == set(planted.tolist())
    assert not casing.label_suspicions(methods[:1]).any()
    other = replace(methods[0], y_pred=1 - methods[0].y_pred)  # one of them disagrees
    assert not casing.label_suspicions([*methods[:2], other]).any()


def test_lists_are_what_the_predictions_say(
    compared: Compared, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = np.arange(260) % 7 == 0
    monkeypatch.setattr("embedkit.comparison.cases.find_lengths", lambda *_: (None, cut))
    cases = casing.cases_of(compared, "c")
    found = {name: held_out(compared, name) for name in ("a", "b", "c")}
    right = {name: p.y_pred == p.y for name, p in found.items()}
    lists = {name: set(index.tolist()) for name, index in cases.lists.items()}
    top = np.sort(found["c"].proba, axis=1)
    expected = {
        "wrong": ~right["c"],
        "all_wrong": ~right["a"] & ~right["b"] & ~right["c"],
        "gained": right["c"] & ~right["a"],
        "lost": ~right["c"] & right["a"],
        "unsure": top[:, -1] - top[:, -2] < 0.1,
        "cut": cut,
    }
    for name, mask in expected.items():
        assert lists.get(name, set()) == set(np.flatnonzero(mask).tolist()), name
    assert len(cases.lists.get("relabel", ())) <= casing.MOST_SUSPICIONS
    assert list(cases.methods)[:2] == ["c", "a"]
    wrong = cases.lists["wrong"]
    assert (np.diff(confidence_of(cases.records)[wrong]) <= 1e-12).all()  # the surest first


def test_a_page_has_the_lengths_that_its_method_read(tmp_path: Path) -> None:
    """Whatever the order of the runs, whose datasets cut texts at other lengths."""
    rows = [{"text": f"good day {i}", "label": "ab"[i % 2]} for i in range(24)]
    for length in (3, 20):
        extract_tiny(rows, tmp_path / f"data-{length}", max_length=length)
        embedkit.train(tmp_path / f"data-{length}", out=tmp_path / f"run-{length}", folds=2)
    for order in ((3, 20), (20, 3)):
        found = compare([tmp_path / f"run-{length}" for length in order])
        cut = [len(casing.cases_of(found, f"run-{n}").lists.get("cut", ())) for n in (3, 20)]
        assert cut == [24, 0]


def test_values_are_wrong_beyond_their_deviation(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    y = random.normal(size=100)
    outputs = {"near": y + random.normal(size=100) * 0.5, "far": y + random.normal(size=100) * 2}
    paths = write_fake_runs(tmp_path, outputs, y, outputs.values(), classes=())
    cases = casing.cases_of(compare(paths, baseline="far"), "near")
    wrong = {name: np.abs(v - y) > y.std() for name, v in outputs.items()}
    assert set(cases.lists["wrong"].tolist()) == set(np.flatnonzero(wrong["near"]).tolist())
    gained = ~wrong["near"] & wrong["far"]
    assert set(cases.lists["gained"].tolist()) == set(np.flatnonzero(gained).tolist())
    assert "relabel" not in cases.lists


# by class and confidence


def test_pairs_are_the_cells_beside_the_diagonal(compared: Compared) -> None:
    mine = held_out(compared, "c")
    pairs = casing.confused_pairs(mine, limit=100)
    cells = confusion_matrix(mine.y, mine.y_pred)
    np.fill_diagonal(cells, 0)
    assert [count for *_, count in pairs] == sorted(cells[cells > 0], reverse=True)
    assert all(count == cells[true, predicted] for true, predicted, count in pairs)
    scores = [score.f1 for _, score, _ in casing.by_class(mine, None)]
    assert scores == sorted(scores)


def test_names_of_classes_stand_at_their_columns(compared: Compared) -> None:
    names = tuple(f"a turned name {letter}" for letter in "abcd")
    items = confusion(replace(held_out(compared, "c"), classes=names)).items
    cells = {float(np.mean(across(v))) for tag, v, _ in items if tag == "polygon"}
    columns = {t: float(v["x"]) for _, v, t in items if t in names and "transform" in v}
    assert columns == pytest.approx(dict(zip(names, sorted(cells), strict=True)), abs=6)


def test_reliability_bins_hold_all_records(compared: Compared) -> None:
    mine = held_out(compared, "c")
    bins = reliability_bins(mine)
    counts = np.array([b.records for b in bins])
    assert counts.sum() == len(mine.row)
    assert counts.max() - counts.min() <= 1
    right = mine.proba.argmax(1) == mine.y
    assert (counts * [b.right for b in bins]).sum() == pytest.approx(right.sum())
    assert (counts * [b.confidence for b in bins]).sum() == pytest.approx(mine.proba.max(1).sum())
    assert [b.confidence for b in bins] == sorted(b.confidence for b in bins)
    for one in bins:
        ends = binomtest(round(one.right * one.records), one.records).proportion_ci(method="wilson")
        assert (one.low, one.high) == pytest.approx((ends.low, ends.high))
    # by the decisions, which a threshold may have moved from the larger probability
    bins = reliability_bins(replace(mine, y_pred=np.zeros_like(mine.y_pred)))
    assert sum(b.records * b.right for b in bins) == pytest.approx((mine.y == 0).sum())
    assert sum(b.records * b.confidence for b in bins) == pytest.approx(mine.proba[:, 0].sum())


# charts


def charts(compared: Compared) -> dict[str, Any]:
    chosen = compared.winner.name
    methods = {name: held_out(compared, name) for name in (chosen, "a")}
    return dict(charts_of(compared, casing.cases_of(compared, chosen), methods))


def test_all_records_answered_are_as_right_as_the_score(compared: Compared) -> None:
    said = charts(compared)["sure"].description
    mine = held_out(compared, compared.winner.name)
    assert f"all {(mine.y_pred == mine.y).mean():.2f}" in said.split("; ")[0]


def test_marks_of_the_forest_stand_at_their_gains(compared: Compared) -> None:
    items = charts(compared)["forest"].items
    gains = [row.to_baseline for row in compared.rows if row.to_baseline][:-1]
    pixels = np.array([across(v) for _, v, _ in items if v.get("stroke-width") == "3"])
    values = np.array([[gain.low, gain.high] for gain in gains])
    slope, start = np.polyfit(values.ravel(), pixels.ravel(), 1)
    assert np.allclose(slope * values + start, pixels, atol=0.1)
    assert slope > 0


def across(values: dict[str, str]) -> list[float]:
    """Horizontal places of the corners of a line or a polygon."""
    return [float(corner.partition(",")[0]) for corner in values["points"].split()]


def check_within_cells(scene: Scene) -> None:
    """Every text in the middle of a cell fits between its edges; bold letters are wider."""
    edges = [across(values) for _, values, _ in scene.items if "points" in values]
    middle = {"text-anchor": "middle", "fill": "ink"}.items()
    inside = [(v, text) for _, v, text in scene.items if middle <= v.items()]
    assert edges
    assert inside
    for v, text in inside:
        half = text_width(text, float(v["font-size"])) * (1.15 if "font-weight" in v else 1) / 2
        assert any(min(x) + half <= float(v["x"]) <= max(x) - half for x in edges), text


@pytest.mark.parametrize("metric", ["r2", "rmse", "accuracy"])
@pytest.mark.parametrize("poolings", [("mean",), ("cls", "mean", "max", "pooler")])
@pytest.mark.parametrize("untrained", [{}, {"mean_3": (0.25, 0.5)}])
def test_numbers_stay_within_their_cells(
    metric: str, poolings: tuple[str, ...], untrained: dict[str, tuple[float, ...]]
) -> None:
    views = [f"{name}_{layer}" for name in poolings for layer in (0, 3)]
    scores = {view: Score(0.5 + n / 100, 0.4, 0.6) for n, view in enumerate(views)}
    check_within_cells(heat_map(metric, scores, framed=views[:1], untrained=untrained))


def test_numbers_near_zero_stay_within_their_cells() -> None:
    columns = {name: {"mean_0": (3.8e-14, metric_text(3.8e-14, "rmse"))} for name in "abcdef"}
    check_within_cells(shaded_table("Layers", ["mean_0"], columns))


def test_suggested_commands_name_the_labels_of_the_runs(tmp_path: Path) -> None:
    """Those of a kept column; there is no command for values that were passed in Python."""
    stars = [str(i % 3) for i in range(60)]
    table = {"text": [f"a movie {i}" for i in range(60)], "label": ["x", "y"] * 30, "stars": stars}
    data = extract_tiny(pd.DataFrame(table), tmp_path / "data", keep=["stars"]).out
    for number, (label, told) in enumerate(((None, ""), ("stars", "--label stars"), (stars, None))):
        run = embedkit.train(data, label=label, folds=2, out=tmp_path / f"{number}").out
        commands = [decision.command for decision in recommend(compare([run])).decisions]
        assert all(("--label stars" if told else "--label") in c for c in commands) == bool(told)
        assert any(commands) == (told is not None)
