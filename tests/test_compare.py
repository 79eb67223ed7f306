"""Comparison of runs: numbers against oracles, honest blends, refused mixtures."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special, stats
from sklearn import metrics

from embedkit.checksums import seal
from embedkit.cli.compare import comparison_markdown, comparison_text, verdict_text
from embedkit.comparison import blend as blending
from embedkit.comparison.blend import blend, write_blend
from embedkit.comparison.compare import Comparison, compare
from embedkit.comparison.load import read_runs
from embedkit.errors import DamagedError, MismatchError, OutputExistsError, UsageError
from embedkit.runs.metrics import (
    Threshold,
    best_threshold,
    classification_metrics,
    classification_scores,
)
from tests.run_fixtures import edit_run, random_runs, write_fake_run


def row_of(table: Comparison, name: str) -> Any:
    return next(row for row in table.rows if row.name == name)


# scores


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_are_those_of_the_run_itself(tmp_path: Path, classes: int) -> None:
    """The same records, draws and measures as `train` uses, intervals included."""
    paths, y, outputs = random_runs(tmp_path, ["a", "b"], classes=classes, n=90)
    found = compare(paths, seed=3).table
    for path, output in zip(paths, outputs, strict=True):
        expected = classification_scores(y, output, output.argmax(1), seed=3)
        scores = row_of(found, path.name).scores
        assert len(scores) >= 6
        for name in scores:
            score = expected[name]
            assert astuple(scores[name]) == pytest.approx(astuple(score), abs=1e-12)
        assert scores["accuracy"].value == metrics.accuracy_score(y, output.argmax(1))


def test_decisions_of_the_run_count_not_the_likeliest_class(tmp_path: Path) -> None:
    output = np.array([[0.6, 0.4], [0.9, 0.1], [0.3, 0.7], [0.2, 0.8]])
    write_fake_run(tmp_path / "a", "1011", output, [0, 1, 0, 1], decided="1011", threshold=0.35)
    scores = compare([tmp_path / "a"]).table.rows[0].scores
    assert scores["accuracy"].value == 1
    assert scores["log_loss"].value == pytest.approx(-np.log([0.4, 0.9, 0.7, 0.8]).mean())


def test_calibration_error_by_hand() -> None:
    # fifteen bins from 0 to 1: [9/15, 10/15) holds 0.62 (right) and 0.64 (wrong), [14/15, 1] 0.96
    positive = np.array([0.62, 0.64, 0.96])
    proba = np.stack([1 - positive, positive], axis=1)
    metric = classification_metrics(np.array([1, 0, 1]), proba, proba.argmax(1))
    expected = (abs((0.62 - 1) + (0.64 - 0)) + abs(0.96 - 1)) / 3
    found = metric["calibration_error"](np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 2.0]]))
    assert found == pytest.approx([expected, 0.04])
    # 0.52 and 0.58 fall into two of fifteen bins, and into one of ten between chance and 1
    positive = np.array([0.52, 0.58])
    proba = np.stack([1 - positive, positive], axis=1)
    apart = classification_metrics(np.array([1, 0]), proba, proba.argmax(1))["calibration_error"]
    assert apart.value(2) == pytest.approx((0.48 + 0.58) / 2)


def test_the_majority_is_learnt_on_the_other_folds(tmp_path: Path) -> None:
    output = np.full((6, 2), 0.5)
    write_fake_run(tmp_path / "a", "110100", output, [0, 0, 0, 1, 1, 1])
    compared = compare([tmp_path / "a"])
    majority = compared.predictions["majority"]
    assert np.allclose(majority.proba[:3], [2 / 3, 1 / 3])  # fold 1 holds 1 0 0
    assert np.allclose(majority.proba[3:], [1 / 3, 2 / 3])
    assert row_of(compared.table, "majority").kind == "majority"


def test_order_follows_the_measure(tmp_path: Path) -> None:
    paths, _, _ = random_runs(tmp_path, ["weak", "middle", "strong"], n=300)
    names = [row.name for row in compare(paths).table.rows if row.kind == "frozen"]
    assert names == ["strong", "middle", "weak"]
    by_loss = compare(paths, metric="log_loss").table
    losses = [row.scores["log_loss"].value for row in by_loss.rows]
    assert losses == sorted(losses)
    assert by_loss.rows[-1].to_best is not None
    assert by_loss.rows[-1].to_best.value > 0


def test_repeats_are_drawn_with_their_record(tmp_path: Path) -> None:
    """Twice the same predictions are no more records: the interval stays as wide."""
    _, y, (output,) = random_runs(tmp_path / "x", ["a"], n=80)
    once = write_fake_run(tmp_path / "once", list(map(str, y)), output, [i % 5 for i in range(80)])
    twice = write_fake_run(
        tmp_path / "twice", list(map(str, y)) * 2, np.concatenate([output, output]),
        [i % 5 for i in range(80)] * 2, repeat=[0] * 80 + [1] * 80, row=[*range(80)] * 2,
    )  # fmt: skip
    first, second = (row_of(compare([p]).table, p.name).scores["accuracy"] for p in (once, twice))
    assert first == second


# differences


def test_difference_of_pairs(tmp_path: Path) -> None:
    paths, y, outputs = random_runs(tmp_path, ["a", "b"], n=150)
    table = compare(paths, baseline="a").table
    found = row_of(table, "b").to_baseline
    right = [output.argmax(1) == y for output in outputs]
    assert found.value == pytest.approx(right[1].mean() - right[0].mean())
    assert (found.only_this, found.only_other) == (
        int((right[1] & ~right[0]).sum()), int((right[0] & ~right[1]).sum())
    )  # fmt: skip
    gap = right[1].astype(float) - right[0]
    error = gap.std(ddof=1) / np.sqrt(150)
    reach = stats.t.ppf(0.975, 149) * error
    assert (found.low, found.high) == pytest.approx(
        (gap.mean() - reach, gap.mean() + reach), abs=0.1 * error
    )
    assert found.p == pytest.approx(2 * stats.norm.sf(gap.mean() / error), abs=0.02)
    apart = found.only_this + found.only_other
    assert found.mcnemar == stats.binomtest(found.only_this, apart).pvalue
    brier = compare(paths, metric="brier", baseline="a").table
    assert row_of(brier, "b").to_baseline.mcnemar is None
    assert row_of(table, "a").to_baseline is None


def test_a_run_does_not_differ_from_its_copy(tmp_path: Path) -> None:
    (path,), y, (output,) = random_runs(tmp_path, ["a"], n=60)
    copy = write_fake_run(tmp_path / "z", list(map(str, y)), output, [i % 5 for i in range(60)])
    found = row_of(compare([path, copy], baseline="a").table, "z").to_baseline
    assert (found.value, found.low, found.high, found.p, found.p_corrected) == (0, 0, 0, 1, 1)
    assert not found.significant


def overconfident(tmp_path: Path) -> list[Path]:
    """Two runs with the same decisions, the second far too sure of them; a third decides worse."""
    random = np.random.default_rng(0)
    y = random.integers(2, size=1_000)
    calm, other = (2 * s * (s * (2 * y - 1) + random.normal(size=1_000)) for s in (1.2, 1.1))
    proba = {name: 1 / (1 + np.exp(-odds))
             for name, odds in (("calm", calm), ("loud", 6 * calm), ("other", other))}  # fmt: skip
    return [
        write_fake_run(
            tmp_path / name,
            list(map(str, y)),
            np.stack([1 - p, p], axis=1),
            [i % 5 for i in range(1_000)],
        )
        for name, p in proba.items()
    ]


@pytest.mark.parametrize("metric", ["log_loss", "brier", "calibration_error"])
def test_the_verdict_is_of_the_metric_that_is_shown(tmp_path: Path, metric: str) -> None:
    """Not of the decisions, which are the same."""
    table = compare(overconfident(tmp_path), metric=metric).table
    found = row_of(table, "loud").to_best
    assert table.best != "loud"
    assert found.significant
    assert found.p_corrected < 0.01
    assert found.low > 0
    same = compare([tmp_path / "calm", tmp_path / "loud"], metric="roc_auc", baseline="calm").table
    assert row_of(same, "loud").to_baseline.p == 1


def test_a_verdict_needs_the_corrected_p(tmp_path: Path) -> None:
    """An interval without 0, and a p that is below 0.05 before the correction alone."""
    random = np.random.default_rng(11)
    y = random.integers(2, size=400)
    paths = []
    for number in range(8):
        right = random.random(400) < 0.7 + 0.065 * (number == 7)
        predicted = np.where(right, y, 1 - y)
        paths.append(
            write_fake_run(tmp_path / f"r{number}", list(map(str, y)), np.eye(2)[predicted],
                           [i % 5 for i in range(400)])
        )  # fmt: skip
    table = compare(paths, baseline="r7").table
    found = [row_of(table, f"r{i}").to_baseline for i in range(7)]
    lucky = [one for one in found if one.p < 0.05 <= one.p_corrected]
    assert lucky
    assert all(one.high < 0 and not one.significant for one in lucky)


@pytest.mark.parametrize("metric", ["accuracy", "log_loss"])
def test_groups_are_drawn_whole(tmp_path: Path, metric: str) -> None:
    """Ten copies of every record: groups make them one, otherwise they are ten."""
    _, y, outputs = random_runs(tmp_path / "x", ["a", "b"], n=60, strength=0.4)
    y, outputs = np.repeat(y, 10), [np.repeat(o, 10, axis=0) for o in outputs]
    found = {}
    for name, group in (("whole", np.arange(600) // 10), ("apart", np.arange(600))):
        paths = [
            write_fake_run(tmp_path / name / n, list(map(str, y)), o, (group % 5).tolist(),
                           group=group.tolist())
            for n, o in zip("ab", outputs, strict=True)
        ]  # fmt: skip
        table = compare(paths, metric=metric, baseline="a").table
        found[name] = row_of(table, "b").to_baseline
        assert table.units["folds"] == (60 if name == "whole" else 600)
    assert found["whole"].high - found["whole"].low > 2.5 * (
        found["apart"].high - found["apart"].low
    )
    assert found["whole"].p > 5 * found["apart"].p
    assert found["whole"].mcnemar is None
    assert (found["apart"].mcnemar is not None) == (metric == "accuracy")


def test_the_test_set_has_tests_of_its_own(tmp_path: Path) -> None:
    """Where the runs differ in the folds alone, the test set does not tell them apart."""
    _, y, (weak, strong) = random_runs(tmp_path / "x", ["a", "b"], n=600, test=200, strength=0.9)
    mixed = strong.copy()
    mixed[:200] = weak[:200]
    folds = np.where(np.arange(600) < 200, -1, np.arange(600) % 5).tolist()
    paths = [write_fake_run(tmp_path / n, list(map(str, y)), o, folds)
             for n, o in (("weak", weak), ("mixed", mixed), ("strong", strong))]  # fmt: skip
    table = compare(paths, baseline="weak", metric="log_loss").table
    mixed_row, strong_row = row_of(table, "mixed"), row_of(table, "strong")
    assert mixed_row.to_baseline.significant
    assert (mixed_row.test_to_baseline.value, mixed_row.test_to_baseline.p_corrected) == (0, 1)
    assert strong_row.test_to_baseline.significant
    wanted = row_of(table, "strong").test["log_loss"].value - row_of(table, "weak").test[
        "log_loss"].value  # fmt: skip
    assert strong_row.test_to_baseline.value == pytest.approx(wanted)
    without = compare([write_fake_run(tmp_path / "z", list(map(str, y)), weak, [0, 1, 2] * 200)])
    assert row_of(without.table, "z").test_to_baseline is None


def test_repeats_are_tested_over_their_folds(tmp_path: Path) -> None:
    """The corrected resampled t-test of the folds' differences, by hand."""
    random = np.random.default_rng(0)
    y = np.tile(random.integers(2, size=100), 3)
    repeat, folds = np.repeat(range(3), 100), np.concatenate(
        [random.permutation(100) % 5 for _ in range(3)])  # fmt: skip
    paths, right = [], []
    for name, share in (("a", 0.6), ("b", 0.75)):
        right.append(random.random(300) < share)
        output = np.eye(2)[np.where(right[-1], y, 1 - y)]
        paths.append(write_fake_run(tmp_path / name, list(map(str, y)), output, folds.tolist(),
                                    repeat=repeat.tolist(), row=[*range(100)] * 3))  # fmt: skip
    found = row_of(compare(paths, baseline="a").table, "b").to_baseline
    gap = right[1].astype(float) - right[0]
    differences = np.array(
        [gap[(repeat == r) & (folds == f)].mean() for r in range(3) for f in range(5)]
    )
    t = differences.mean() / np.sqrt((1 / 15 + 1 / 4) * differences.var(ddof=1))
    single = 2 * stats.t.sf(t, 14)
    assert single <= found.p_repeats <= min(1, 3 * single) + 1e-12  # Holm, with the mean's pairs
    assert found.significant == (max(found.p_corrected, found.p_repeats) < 0.05)
    first = [one[:100] for one in right]  # a record counts once
    assert (found.only_this, found.only_other) == (
        int((first[1] & ~first[0]).sum()), int((first[0] & ~first[1]).sum())
    )  # fmt: skip
    once = [write_fake_run(tmp_path / "once" / n, list(map(str, y[:100])), np.eye(2)[y[:100]],
                           folds[:100].tolist()) for n in "ab"]  # fmt: skip
    assert row_of(compare(once, baseline="a").table, "b").to_baseline.p_repeats is None


def test_the_majority_is_a_family_of_its_own(tmp_path: Path) -> None:
    paths, _, _ = random_runs(tmp_path, ["a", "b", "c"], n=100)
    table = compare(paths).table
    assert table.baseline == "majority"
    for name in ("a", "b", "c", "blend: mean"):
        assert row_of(table, name).to_baseline.p is not None
    assert table.tests == 6  # three runs and their mean


def test_every_test_is_counted_once(tmp_path: Path) -> None:
    paths, _, _ = random_runs(tmp_path, ["a", "b", "c"])
    table = compare(paths, baseline="a").table
    # the best of five methods was chosen by these records: all ten pairs; the majority is none
    assert len(table.rows) == 5
    assert table.tests == 6
    assert row_of(table, "majority").to_baseline.p is None


# blends


def test_mean_blend(tmp_path: Path) -> None:
    paths, _, outputs = random_runs(tmp_path, ["a", "b"], test=30)
    compared = compare(paths)
    order = np.argsort(compared.runs.records.row)
    assert np.allclose(compared.predictions["blend: mean"].proba[order], sum(outputs) / 2)


def pool_of_two(odds: np.ndarray, y: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Probability of the second class by the stack of two runs, from the log-odds of each."""
    sign = 2 * y - 1

    def loss(p: np.ndarray) -> float:
        penalty = ((p[:2] - 0.5) ** 2).sum() / 2 + p[2] ** 2 / 4  # half the shift in each class
        return float(np.logaddexp(0, -sign * (odds @ p[:2] + p[2])).sum() + penalty)

    found = optimize.minimize(loss, [0.5, 0.5, 0], method="Nelder-Mead", tol=1e-8).x
    return np.asarray(special.expit(new @ found[:2] + found[2]))


def test_stacked_blend_has_the_least_penalised_loss(tmp_path: Path) -> None:
    paths, y, outputs = random_runs(tmp_path, ["a", "b"], n=150, inner=True)
    found = compare(paths).predictions["blend: stacked"].proba
    odds = np.stack([np.log(o[:, 1] / o[:, 0]) for o in outputs], axis=1)
    folds = np.arange(150) % 5
    for fold in range(5):
        here = folds == fold
        wanted = pool_of_two(odds[~here], y[~here], odds[here])
        assert np.allclose(found[here, 1], wanted, atol=1e-4)


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


def blended_in_fold(tmp_path: Path, kind: str, flipped: bool, **options: Any) -> np.ndarray:
    """What a blend predicts for a fold whose own labels are turned round, or not."""
    _, y, outputs = random_runs(tmp_path / "x", ["a", "b"], n=100)
    folds = np.arange(100) % 5
    y = np.where((folds == 2) & flipped, 1 - y, y)
    paths = [
        write_fake_run(tmp_path / n, list(map(str, y)), o, folds.tolist(), inner=0.9 * o + 0.05)
        for n, o in zip("ab", outputs, strict=True)
    ]
    runs = [run.predictions for run in read_runs(paths).runs]
    found = blend(kind, runs, **options).predictions
    here = found.fold == 2
    return np.column_stack([found.proba[here], found.y_pred[here]])


@pytest.mark.parametrize("options", [{}, {"threshold": Threshold(None, 2.0)}], ids=str)
@pytest.mark.parametrize("kind", ["mean", "stacked"])
def test_a_fold_does_not_learn_from_its_own_labels(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    """Neither weights nor thresholds."""
    one, other = (
        blended_in_fold(tmp_path / n, kind, f, **options) for n, f in (("1", False), ("2", True))
    )
    assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("kind", "options"), [("stacked", {}), ("mean", {"threshold": Threshold(None, 2.0)})]
)
def test_a_blend_learnt_on_all_folds_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: dict[str, Any]
) -> None:
    """The leak that the test above is for, planted."""
    monkeypatch.setattr(
        blending, "_inner",
        lambda runs, _: ([r.proba[r.out_of_fold] for r in runs], runs[0].y[runs[0].out_of_fold]),
    )  # fmt: skip
    one, other = (
        blended_in_fold(tmp_path / n, kind, f, **options) for n, f in (("1", False), ("2", True))
    )
    assert not np.array_equal(one, other)


def test_without_inner_predictions_nothing_is_stacked_in_the_folds(tmp_path: Path) -> None:
    """Out-of-fold predictions of the other folds have seen the fold's labels."""
    paths, _, _ = random_runs(tmp_path, ["a", "b"], n=60, test=10)
    compared = compare(paths)
    assert {row.name for row in compared.table.rows if row.kind == "blend"} == {"blend: mean"}
    stacked = compared.blends["stacked"]
    assert not stacked.cross_fitted
    assert write_blend(stacked, tmp_path / "b.tsv") == 10  # the test set
    table = pd.read_csv(tmp_path / "b.tsv", sep="\t")
    assert set(table["fold"]) == {"test"}
    none, _, _ = random_runs(tmp_path / "y", ["a", "b"], n=60)
    with pytest.raises(UsageError, match="has no predictions for the folds"):
        write_blend(compare(none).blends["stacked"], tmp_path / "c.tsv")
    assert not (tmp_path / "c.tsv").exists()


def test_records_that_one_run_lacks_are_left_out_of_the_stack(tmp_path: Path) -> None:
    """Inner predictions of some of the training records, such as those of validation records."""
    paths, y, outputs = random_runs(tmp_path, ["a", "b"], n=150, inner=True)
    file = paths[1] / "inner_predictions.parquet"
    frame = pd.read_parquet(file)
    frame[frame["row"] % 3 > 0].to_parquet(file)
    seal(paths[1])
    found = compare(paths).predictions["blend: stacked"].proba
    odds = np.stack([np.log(o[:, 1] / o[:, 0]) for o in outputs], axis=1)
    folds, known = np.arange(150) % 5, np.arange(150) % 3 > 0
    here, fitted = folds == 1, (folds != 1) & known
    assert np.allclose(found[here, 1], pool_of_two(odds[fitted], y[fitted], odds[here]), atol=1e-4)


def test_threshold_of_rare_positives(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    y = (random.random(400) < 0.1).astype(int)
    positive = np.clip(0.1 + 0.25 * y + random.normal(scale=0.08, size=400), 0.01, 0.99)
    output = np.stack([1 - positive, positive], axis=1)
    folds = (np.arange(400) % 5).tolist()
    paths = [write_fake_run(tmp_path / n, list(map(str, y)), output, folds, threshold=0.25)
             for n in "ab"]  # fmt: skip
    runs = read_runs(paths)
    found = [run.predictions for run in runs.runs]
    plain = blend("mean", found)
    cut = blend("mean", found, threshold=Threshold(None, 1.0))
    assert plain.threshold is None
    assert 0.15 < float(cut.threshold or 0) < 0.35
    f1 = [metrics.f1_score(y, made.predictions.y_pred) for made in (plain, cut)]
    assert f1[1] > f1[0]
    known = np.arange(400) % 5 != 0
    expected = best_threshold(y[known], positive[known], beta=1)
    assert np.array_equal(cut.predictions.y_pred[~known], positive[~known] >= expected)


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
        paths.append(
            write_fake_run(tmp_path / name, list(map(str, y)), output, folds.tolist(),
                           decided=list(map(str, y_pred)), threshold=0.05, threshold_metric="f7",
                           inner=output)
        )  # fmt: skip
    for table in (compare(paths).table, compare(paths, metric="f7").table):
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
    by_accuracy = compare(paths, metric="accuracy").table
    assert row_of(by_accuracy, "majority").scores["accuracy"].value > 0.95
    with pytest.raises(UsageError, match="metric='f7'"):
        compare(random_runs(tmp_path / "three", ["a"], classes=3)[0], metric="f7")


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9])),
                min_size=2, max_size=30).filter(lambda all: any(y for y, _ in all)))  # fmt: skip
def test_no_threshold_beats_the_best(pairs: list[tuple[int, float]]) -> None:
    y, scores = (np.array(column) for column in zip(*pairs, strict=True))
    best = metrics.f1_score(y, scores >= best_threshold(y, scores, beta=1), zero_division=0.0)
    for other in (0.05, 0.2, 0.4, 0.6, 0.8, 0.95):
        assert metrics.f1_score(y, scores >= other, zero_division=0.0) <= best + 1e-12


def test_blends_are_written(tmp_path: Path) -> None:
    paths, _, outputs = random_runs(tmp_path, ["a", "b"], n=60, test=10)
    compared = compare(paths)
    made = compared.chosen_blend("mean")
    assert write_blend(made, tmp_path / "b.tsv") == 60
    table = pd.read_csv(tmp_path / "b.tsv", sep="\t", dtype={"label": str, "fold": str})
    assert list(table.columns) == ["row", "id", "fold", "label", "proba_0", "proba_1"]
    table = table.set_index("row").sort_index()
    assert np.allclose(table[["proba_0", "proba_1"]], sum(outputs) / 2, atol=1e-6)
    assert (table["fold"] == "test").sum() == 10
    with pytest.raises(OutputExistsError, match="Choose another name, or pass overwrite=True"):
        write_blend(made, tmp_path / "b.tsv")
    with pytest.raises(UsageError, match=r"expected a name ending in \.tsv, \.csv, \.jsonl or"):
        write_blend(made, tmp_path / "b.xlsx")
    with pytest.raises(UsageError, match="one run cannot be blended"):
        compare(paths[:1]).chosen_blend("mean")
    with pytest.raises(UsageError, match="blend='best': expected mean, stacked"):
        blend("best", [run.predictions for run in compared.runs.runs])


@pytest.mark.parametrize("kind", ["mean", "stacked"])
@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".parquet"])
def test_answers_for_new_texts_are_blended(tmp_path: Path, kind: str, suffix: str) -> None:
    """Answers that are those of the records themselves give the blend on all records again."""
    paths, _, outputs = random_runs(tmp_path, ["a", "b"], n=40, test=8, inner=True)
    compared = compare(paths)
    files = []
    for number, output in enumerate(outputs):
        frame = pd.DataFrame({"row": range(40), "id": [f"n{i}" for i in range(40)], "label": "0",
                              "proba_0": output[:, 0], "proba_1": output[:, 1]})  # fmt: skip
        files.append(tmp_path / f"{number}{suffix}")
        if suffix != ".parquet":
            frame.to_csv(files[-1], sep="," if suffix == ".csv" else "\t", index=False)
        else:
            frame.to_parquet(files[-1])
    made = compared.chosen_blend(kind)
    write_blend(made, tmp_path / "s.parquet", answers=files)
    found = pd.read_parquet(tmp_path / "s.parquet")
    assert list(found["id"]) == [f"n{i}" for i in range(40)]
    place = {int(r): i for i, r in enumerate(compared.runs.records.row)}
    held = compared.runs.records.test  # these were predicted by the model of all folds
    wanted = made.predictions.proba[held]
    rows = [int(compared.runs.records.row[i]) for i in held]
    assert np.allclose(found.loc[rows, ["proba_0", "proba_1"]], wanted, atol=1e-6)
    assert len(place) == 40
    files[1].unlink()
    with pytest.raises(UsageError, match=r"does not exist\. Make it with embedkit predict"):
        write_blend(made, tmp_path / "t.tsv", answers=files)
    frame.assign(row=range(1, 41)).to_parquet(tmp_path / "o.parquet")
    with pytest.raises(MismatchError, match="is about other records than"):
        write_blend(made, tmp_path / "t.tsv",
                    answers=[files[0], tmp_path / "o.parquet"])  # fmt: skip
    frame.drop(columns="proba_1").to_parquet(tmp_path / "o.parquet")
    with pytest.raises(UsageError, match="has no column 'proba_1'"):
        write_blend(made, tmp_path / "t.tsv",
                    answers=[tmp_path / "o.parquet"] * 2)  # fmt: skip
    with pytest.raises(UsageError, match=r"answers= has 1 files for 2 runs\. Give one file"):
        write_blend(made, tmp_path / "t.tsv", answers=files[:1])


# what may be compared


def test_mixtures_are_refused(tmp_path: Path) -> None:
    paths, y, outputs = random_runs(tmp_path, ["a", "b"], n=50)
    labels, folds = list(map(str, y)), [i % 5 for i in range(50)]
    other = write_fake_run(tmp_path / "other", labels, outputs[0], folds, split="t")
    with pytest.raises(MismatchError, match="was made under another split than"):
        compare([paths[0], other])
    turned = write_fake_run(tmp_path / "turned", labels[::-1], outputs[0], folds)
    with pytest.raises(MismatchError, match="has predictions for other true labels than"):
        compare([paths[0], turned])
    named = write_fake_run(tmp_path / "named", ["xy"[i] for i in y], outputs[0], folds,
                           classes=("x", "y"))  # fmt: skip
    with pytest.raises(MismatchError, match=r"named predicts the labels x, y, .* the labels 0, 1"):
        compare([paths[0], named])
    moved = write_fake_run(tmp_path / "moved", labels, outputs[0], folds, row=range(1, 51))
    with pytest.raises(MismatchError, match="has predictions for other records than"):
        compare([paths[0], moved])
    with pytest.raises(UsageError, match="a is given twice"):
        compare([paths[0], tmp_path / "b/../a"])
    with pytest.raises(UsageError, match=r"is not a run\. Make one"):
        compare([paths[0], tmp_path])


def test_a_probe_is_no_row(tmp_path: Path) -> None:
    (path,), _, _ = random_runs(tmp_path, ["a"], n=50)
    _, _, _ = random_runs(tmp_path / "p", ["probe"], n=50)
    score = {"value": 0.9, "low": 0.8, "high": 1.0}
    edit_run(tmp_path / "p/probe", kind="probe", metric="accuracy", majority=0.5, views=[],
             nested=score, random_weights={}, cka=())  # fmt: skip
    compared = compare([path, tmp_path / "p/probe"])
    assert [run.name for run in compared.runs.probes] == ["probe"]
    assert [row.name for row in compared.table.rows if row.path] == ["a"]
    with pytest.raises(UsageError, match="none of the runs has predictions"):
        compare([tmp_path / "p/probe"])


def test_of_several_probes_the_best_one_answers(tmp_path: Path) -> None:
    (path,), _, _ = random_runs(tmp_path, ["a"], n=50)
    random_runs(tmp_path / "p", ["first", "best", "other"], n=50)
    best = {"first": ("accuracy", 0.6), "best": ("accuracy", 0.8), "other": ("log_loss", 0.9)}
    for name, (metric, value) in best.items():
        score = {"value": value, "low": value - 0.1, "high": value + 0.1}
        view = {"name": "mean_1", "score": score, "control": 0.5, "control_sd": 0.0,
                "selectivity": 0.1, "chosen": 5}  # fmt: skip
        edit_run(tmp_path / "p" / name, kind="probe", metric=metric, majority=0.5, views=[view],
                 nested=score, random_weights={}, cka=())  # fmt: skip
    compared = compare([path, *(tmp_path / "p" / name for name in best)])
    assert [probe.name for probe in compared.runs.probes] == ["best", "first", "other"]
    answers = " ".join(verdict_text(compared).split())
    assert "best: Only mean_1 was scored: accuracy 80.0 % (70.0 to 90.0)." in answers
    assert "80.0 % (70.0 to 90.0)" in answers


def test_names_and_measures(tmp_path: Path) -> None:
    paths, _, _ = random_runs(tmp_path / "x", ["a", "b"], n=50)
    more, _, _ = random_runs(tmp_path / "y", ["a"], n=50)
    table = compare([*paths, *more]).table
    assert {str(paths[0]), str(more[0]), "b"} < {row.name for row in table.rows}
    with pytest.raises(UsageError, match=r"metric='acuracy': .*Did you mean 'accuracy'"):
        compare(paths, metric="acuracy")
    with pytest.raises(UsageError, match=r"baseline='c': expected one of a, b, majority"):
        compare(paths, baseline="c")
    assert compare(paths, baseline=str(paths[1])).table.baseline == "b"
    edit_run(paths[1], features="tfidf", views=[])
    assert compare(paths).table.baseline == "b"
    reserved, _, _ = random_runs(tmp_path / "z", ["majority"], n=50)
    with pytest.raises(UsageError, match="Rename its folder"):
        compare([*paths, *reserved])


def test_damage(tmp_path: Path) -> None:
    paths, _, _ = random_runs(tmp_path, ["a", "b"], n=50)
    (paths[1] / "predictions.parquet").write_bytes(b"PAR1 no more")
    seal(paths[1])
    with pytest.raises(DamagedError, match=r"predictions.parquet cannot be read: .*again"):
        compare(paths)


def test_values(tmp_path: Path) -> None:
    """Runs of a regression: errors instead of shares, tested and corrected like labels."""
    random = np.random.default_rng(0)
    y = random.normal(size=100)
    folds = [i % 4 for i in range(100)]
    paths = [
        write_fake_run(tmp_path / name, y, y + random.normal(scale=noise, size=100), folds,
                       classes=())
        for name, noise in (("coarse", 1.0), ("fine", 0.3))
    ]  # fmt: skip
    table = compare(paths).table
    assert table.metric == "rmse"
    assert table.agreement == ()
    assert table.tests == 3
    names = [row.name for row in table.rows]
    assert names.index("fine") < names.index("coarse") < names.index("majority")
    worst = row_of(table, "coarse").to_best
    assert worst.low > 0
    assert worst.significant
    assert worst.mcnemar is None
    for metric in ("mae", "r2", "pearson", "spearman"):
        assert row_of(compare(paths, metric=metric).table, "coarse").to_best.significant
    assert "p (first row)" in comparison_text(table)


def test_a_score_that_nobody_can_give_comes_last(tmp_path: Path) -> None:
    y = np.random.default_rng(0).normal(size=40)
    folds = [i % 4 for i in range(40)]
    flat = write_fake_run(tmp_path / "flat", y, np.zeros(40), folds, classes=())
    good = write_fake_run(tmp_path / "good", y, y + 0.1 * np.sign(y), folds, classes=())
    table = compare([flat, good], metric="spearman").table
    assert table.rows[-1].name == "flat"
    assert np.isnan(table.rows[-1].scores["spearman"].value)
    for text in (comparison_text(table), comparison_markdown(table)):
        assert "nan" not in text


def test_cost_is_taken_over(tmp_path: Path) -> None:
    paths, _, _ = random_runs(tmp_path, ["a", "b"], n=50)
    edit_run(paths[1], cost={"seconds": 3})
    table = compare(paths).table
    cost = row_of(table, "a").cost
    assert (cost.fit_seconds, cost.predict_seconds, cost.size_bytes) == (2.0, 10.0, 1_000)
    assert row_of(table, "b").cost.fit_seconds is None
    assert row_of(table, "blend: mean").cost is None


def test_tables(tmp_path: Path) -> None:
    paths, _, _ = random_runs(tmp_path, ["a|b", "c<d"], n=50, test=10)
    table = compare(paths).table
    text, markdown = comparison_text(table), comparison_markdown(table)
    best = table.rows[0].scores["accuracy"]
    for shown in (text, markdown):
        assert f"{100 * best.value:.1f} ({100 * best.low:.1f} to {100 * best.high:.1f})" in shown
        assert "40 records in folds, 10 in the test set" in shown
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert "| a\\|b |" in markdown
    assert "c&lt;d" in markdown
    tables = [part.splitlines() for part in markdown.split("\n\n") if part.startswith("|")]
    assert [len(part) for part in tables] == [6, 6, 6, 6, 4]  # two runs, their mean, the majority
    for part in tables:
        assert len({line.replace("\\|", "").count("|") for line in part}) == 1
    assert sum(map(len, tables)) == len(lines)
