"""What a report says, computed without a page: against scikit-learn, and on planted effects."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from string import Formatter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, confusion_matrix, precision_recall_fscore_support

from embedkit.choices import REPORT_LANGUAGES
from embedkit.comparison.alerts import alerts_of
from embedkit.comparison.cases import cases_of, label_issues
from embedkit.comparison.charts import charts_of
from embedkit.comparison.compare import Compared, Difference, compare
from embedkit.comparison.content import content_of
from embedkit.comparison.drawing import COLOURS, colour_of, shape_of
from embedkit.comparison.effects import WORDS, Scale, judge, scale_of
from embedkit.comparison.findings import LayerAnswer, verdict_of
from embedkit.comparison.layers import frames_inverted
from embedkit.comparison.phrases import Phrases
from embedkit.comparison.sentences import Sentences
from embedkit.comparison.slices import by_class, by_length, calibration, confused_pairs
from embedkit.comparison.texts import Texts
from embedkit.encoding.views import view_ranges
from embedkit.errors import UsageError
from embedkit.runs.content import ViewScore
from embedkit.runs.predictions import Predictions
from embedkit.runs.resampling import Score
from tests.run_fixtures import many_runs, random_runs, write_fake_run

ACCURACY = Scale("accuracy", lower=False, percent=True, worth=0.01)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    paths, _, _ = random_runs(tmp_path_factory.mktemp("runs"), ["a", "b", "c"], n=300, classes=4,
                              test=40)  # fmt: skip
    return compare(paths, baseline="a")


def held_out(compared: Compared, name: str) -> Predictions:
    p = compared.predictions[name]
    return p.take(p.first_repeat)


# words for differences


@pytest.mark.parametrize(
    ("value", "low", "high", "p", "word"),
    [
        (0.030, 0.010, 0.050, 0.001, "better"),
        (0.005, 0.002, 0.008, 0.001, "slightly_better"),
        (-0.030, -0.050, -0.010, 0.001, "worse"),
        (-0.005, -0.008, -0.002, 0.001, "slightly_worse"),
        (0.002, -0.004, 0.008, 0.3, "level"),
        (0.002, -0.014, 0.018, 0.3, "open"),
        (0.030, 0.010, 0.050, None, "open"),
    ],
)
def test_words_need_the_test_and_the_margin(
    value: float, low: float, high: float, p: float | None, word: str
) -> None:
    found = Difference(value, low, high, p_corrected=p)
    assert judge(found, ACCURACY) == word
    mirrored = Difference(-value, -high, -low, p_corrected=p)
    assert judge(mirrored, replace(ACCURACY, lower=True)) == word
    assert word in WORDS


def test_repeats_have_to_agree() -> None:
    found = Difference(0.03, 0.01, 0.05, p_corrected=0.001, p_repeats=0.4)
    assert judge(found, ACCURACY) == "open"


def test_the_margin_has_the_unit_of_the_metric(tmp_path: Path) -> None:
    paths, _, _ = random_runs(tmp_path / "c", ["a", "b"], n=80)
    accuracy = compare(paths)
    assert scale_of(accuracy).worth == pytest.approx(0.01)
    assert scale_of(accuracy, 2).worth == pytest.approx(0.02)
    with pytest.raises(UsageError, match=r"worth=-1: expected 0 or more"):
        scale_of(accuracy, -1)
    loss = compare(paths, metric="log_loss")
    rows = {row.name: row for row in loss.table.rows}
    assert scale_of(loss).worth == pytest.approx(rows["majority"].scores["log_loss"].value / 100)
    assert not scale_of(loss).percent
    assert scale_of(loss, 0.25).worth == 0.25


# the verdict


def test_every_pair_has_its_difference(compared: Compared) -> None:
    names = [row.name for row in compared.table.rows]
    assert set(compared.differences) == {(a, b) for a in names for b in names if a != b}
    for (one, other), found in compared.differences.items():
        back = compared.differences[other, one]
        assert found.value == pytest.approx(-back.value)
        assert (found.low, found.high) == pytest.approx((-back.high, -back.low))
        assert (found.only_this, found.only_other) == (back.only_other, back.only_this)
        assert found.p_corrected == back.p_corrected
    for row in compared.table.rows:
        for shown, other in ((row.to_best, compared.table.best), (row.to_baseline, "a")):
            assert shown is None or shown == compared.differences[row.name, other]


def test_the_best_fit_run_is_chosen_and_records_are_counted(compared: Compared) -> None:
    verdict = verdict_of(compared, scale_of(compared))
    assert verdict.chosen == "c"
    effect = verdict.effect
    assert effect is not None
    mine, other = held_out(compared, "c"), held_out(compared, "a")
    p = compared.predictions
    index = p["c"].out_of_fold
    expected = [accuracy_score(p[n].y[index], p[n].y_pred[index]) for n in ("c", "a")]
    assert effect.value == pytest.approx(expected[0] - expected[1])
    right, theirs = mine.y_pred == mine.y, other.y_pred == other.y
    assert (effect.gained, effect.lost) == ((right & ~theirs).sum(), (theirs & ~right).sum())
    assert effect.word == "better"
    assert verdict.blend is not None
    assert verdict.blend.other == "c"
    asked = (verdict.finetuned, verdict.layer, verdict.pooling, verdict.curve)
    assert asked == (None, None, None, None)


def test_a_run_worse_than_knowing_nothing_is_left_out(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    y = random.integers(2, size=200)
    good = np.where(random.random(200) < 0.7, y, 1 - y)
    sure = np.where(random.random(200) < 0.8, y, 1 - y)
    outputs = {"calm": np.where(np.eye(2)[good] > 0, 0.65, 0.35),
               "sure": np.where(np.eye(2)[sure] > 0, 1 - 1e-9, 1e-9)}  # fmt: skip
    paths = [write_fake_run(tmp_path / name, y.astype(str), output, [i % 5 for i in range(200)])
             for name, output in outputs.items()]  # fmt: skip
    found = compare(paths)
    assert next(r.name for r in found.table.rows if r.kind == "frozen") == "sure"
    verdict = verdict_of(found, scale_of(found))
    assert verdict.unfit == ("sure",)
    assert verdict.chosen == "calm"
    content = content_of(found)
    alert = next(a for a in content.alerts if a.kind == "unfit")
    assert alert.values["run"] == "sure"
    assert alert.values["value"] > alert.values["majority"]
    assert content.method("sure").unfit


@pytest.mark.parametrize(("finetuned", "said"), [
    ("sure", "No: sure is worse than knowing nothing, its log-loss worse than that of the major"),
    ("calm", "calm: -10."),
])  # fmt: skip
def test_whether_to_finetune_is_answered_by_runs_that_are_left_out(
    tmp_path: Path, finetuned: str, said: str
) -> None:
    y = np.arange(200) % 2
    outputs = {"calm": (0.7, 0.35), "sure": (0.8, 1e-9)}
    paths = []
    for name, (right, low) in outputs.items():
        answer = np.where(np.arange(200) < right * 200, y, 1 - y)
        output = np.where(np.eye(2)[answer] > 0, 1 - low, low)
        paths.append(write_fake_run(
            tmp_path / name, y.astype(str), output, [i % 5 for i in range(200)]
        ))  # fmt: skip
    found = compare(paths)
    rows = tuple(replace(row, kind="finetuned") if row.name == finetuned else row
                 for row in found.table.rows)  # fmt: skip
    found = replace(found, table=replace(found.table, rows=rows))
    verdict = verdict_of(found, scale_of(found))
    assert verdict.unfit == ("sure",)
    words = Phrases("en", found, scale_of(found))
    answers = {q: a for q, a, _ in Sentences(words, found, scale_of(found)).answers(verdict)}
    assert said in answers["Is fine-tuning worth it?"].replace("−", "-")


def test_the_finding_in_words(compared: Compared) -> None:
    scale = scale_of(compared)
    words = Phrases("en", compared, scale)
    said = Sentences(words, compared, scale)
    verdict = verdict_of(compared, scale)
    effect = verdict.effect
    assert effect is not None
    points = f"{effect.value * 100:+.1f} points"
    assert said.title(verdict) == f"c is better than a: {points}"
    score, against, records = said.lead(verdict)
    assert score.startswith(f"Accuracy {verdict.score.value * 100:.1f} % (")
    assert against.startswith(points)
    assert records == f"{effect.gained} records gained, {effect.lost} lost"
    answers = said.answers(verdict)
    assert [question for question, _, _ in answers] == [
        words(f"question.{name}") for name in ("layer", "pooling", "blend", "finetuned", "curve")
    ]
    commands = [command for _, _, command in answers if command]
    assert all(command.startswith("embedkit ") for command in commands)
    for word, title in (("open", "c is ahead of a; 260 records do not prove it"),
                        ("level", "c and a are level")):  # fmt: skip
        assert said.title(replace(verdict, effect=replace(effect, word=word))) == title
    assert said.title(replace(verdict, effect=None)) == "No method is ahead of the baseline, a"


@pytest.mark.parametrize("lang", REPORT_LANGUAGES)
def test_languages_have_the_same_sentences(lang: str) -> None:
    folder = files("embedkit") / "templates" / "phrases"
    one, english = (json.loads((folder / f"{name}.json").read_text("utf-8"))
                    for name in (lang, "en"))  # fmt: skip
    assert one["lang"] == lang
    assert list(one) == list(english)
    for key, text in one.items():
        fields = [{f for _, f, _, _ in Formatter().parse(t) if f} for t in (text, english[key])]
        assert fields[0] == fields[1], key


def test_every_sentence_is_used() -> None:
    """A phrase that nothing asks for is left over."""
    package = files("embedkit")
    sources = [path.read_text("utf-8") for path in Path(str(package / "comparison")).glob("*.py")]
    sources += [(package / "templates" / f"report.{kind}").read_text("utf-8")
                for kind in ("html", "js")]  # fmt: skip
    english = json.loads((package / "templates" / "phrases" / "en.json").read_text("utf-8"))
    families = ("metric.", "title.", "lang", "word.", "question.", "answer.", "alert.", "blend.",
                "length.", "cases.list.", "section.", "col.", "pooling.", "texts.",
                "finetuned.", "unit.")  # fmt: skip
    for key in {key.removesuffix("@word") for key in english}:
        named = any(f'"{key}"' in source or f'"{key.removeprefix("cases.")}"' in source
                    for source in sources)  # fmt: skip
        assert named or key.startswith(families), key


def test_neighbouring_layers_are_one_range() -> None:
    assert view_ranges(["mean_1", "cls_2", "mean_2", "mean_3"]) == "mean_1 … mean_3, cls_2"
    assert view_ranges(["mean_1", "mean_2"]) == "mean_1, mean_2"
    assert view_ranges(["mean_9to12", "pooler"]) == "mean_9to12, pooler"


# by class, length and confidence


def test_classes_are_those_of_scikit_learn(compared: Compared) -> None:
    mine, other = held_out(compared, "c"), held_out(compared, "a")
    rows = by_class(mine, other)
    expected = precision_recall_fscore_support(mine.y, mine.y_pred, zero_division=0)
    theirs = precision_recall_fscore_support(other.y, other.y_pred, zero_division=0)
    assert [row.f1 for row in rows] == sorted(expected[2])
    for row in rows:
        c = row.number
        assert (row.precision, row.recall, row.f1) == pytest.approx([e[c] for e in expected[:3]])
        assert row.support == expected[3][c]
        assert row.other_recall == pytest.approx(theirs[1][c])


def test_pairs_are_the_cells_beside_the_diagonal(compared: Compared) -> None:
    mine = held_out(compared, "c")
    pairs = confused_pairs(mine, limit=100)
    cells = confusion_matrix(mine.y, mine.y_pred)
    np.fill_diagonal(cells, 0)
    assert sum(pair.count for pair in pairs) == cells.sum()
    assert [pair.count for pair in pairs] == sorted(cells[cells > 0], reverse=True)
    for pair in pairs:
        assert pair.count == cells[pair.true, pair.said]


def test_many_classes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    y, n = random.integers(1_000, size=3_000), 3_000
    proba = np.full((n, 1_000), 1e-4)
    proba[np.arange(n), np.where(random.random(n) < 0.5, y, (y + 1) % 1_000)] = 0.9
    p = Predictions(np.arange(n), tuple(map(str, range(n))), np.arange(n), np.zeros(n, np.int64),
                    np.zeros(n, np.int64), y, proba, proba.argmax(1),
                    tuple(map(str, range(1_000))))  # fmt: skip
    assert len(by_class(p, None)) == 1_000
    assert all((pair.said - pair.true) % 1_000 == 1 for pair in confused_pairs(p))


def test_lengths_are_quarters_with_their_own_scores(compared: Compared) -> None:
    mine, other = held_out(compared, "c"), held_out(compared, "a")
    lengths = np.random.default_rng(0).integers(1, 50, len(mine.row))
    cut = lengths > 45
    bins = by_length(mine, other, lengths, cut, metric="accuracy")
    assert sum(b.count for b in bins) == len(lengths)
    assert sum(b.cut for b in bins) == cut.sum()
    assert all(one.longest < after.shortest for one, after in pairwise(bins))
    for one in bins:
        here = (lengths >= one.shortest) & (lengths <= one.longest)
        assert here.sum() == one.count
        scores = [accuracy_score(p.y[here], p.y_pred[here]) for p in (mine, other)]
        assert one.other is not None
        assert one.difference is not None
        assert [one.score.value, one.other.value] == pytest.approx(scores)
        assert one.difference.value == pytest.approx(scores[0] - scores[1])
        assert one.difference.low < one.difference.value < one.difference.high
    same = by_length(mine, None, np.full(len(mine.row), 7), cut, metric="accuracy")
    assert [(b.shortest, b.longest, b.other) for b in same] == [(7, 7, None)]


def test_calibration_bins_hold_all_records(compared: Compared) -> None:
    mine = held_out(compared, "c")
    bins = calibration(mine)
    counts = np.array([b.count for b in bins])
    assert counts.sum() == len(mine.row)
    assert counts.max() - counts.min() <= 1
    right = mine.proba.argmax(1) == mine.y
    assert (counts * [b.right for b in bins]).sum() == pytest.approx(right.sum())
    assert (counts * [b.confidence for b in bins]).sum() == pytest.approx(mine.proba.max(1).sum())
    assert [b.confidence for b in bins] == sorted(b.confidence for b in bins)
    for one in bins:
        ends = binomtest(round(one.right * one.count), one.count).proportion_ci(method="wilson")
        assert (one.low, one.high) == pytest.approx((ends.low, ends.high))


# records


def test_lists_are_what_the_predictions_say(compared: Compared) -> None:
    cut = np.arange(260) % 7 == 0
    cases = cases_of(compared, "c", voting=["a", "b", "c"], cut=cut)
    found = {name: held_out(compared, name) for name in ("a", "b", "c")}
    right = {name: p.y_pred == p.y for name, p in found.items()}
    lists = {name: set(index.tolist()) for name, index in cases.lists.items()}

    def where(mask: np.ndarray) -> set[int]:
        return set(np.flatnonzero(mask).tolist())

    assert lists["wrong"] == where(~right["c"])
    assert lists["gained"] == where(right["c"] & ~right["a"])
    assert lists["lost"] == where(~right["c"] & right["a"])
    assert lists["all_wrong"] == where(~right["a"] & ~right["b"] & ~right["c"])
    assert lists["cut"] == where(cut)
    top = np.sort(found["c"].proba, axis=1)
    assert lists["unsure"] == where(top[:, -1] - top[:, -2] < 0.1)
    effect = verdict_of(compared, scale_of(compared)).effect
    assert effect is not None
    assert (len(lists["gained"]), len(lists["lost"])) == (effect.gained, effect.lost)
    sure = found["c"].proba.max(1)[cases.lists["wrong"]]
    assert (np.diff(sure) <= 0).all()  # the surest mistakes first
    assert cases.methods[:2] == ("c", "a")


def test_one_run_is_wrong_by_itself(compared: Compared) -> None:
    cases = cases_of(compared, "c", voting=["c"], cut=np.zeros(260, np.bool_))
    assert "wrong" in cases.lists
    assert not {"all_wrong", "relabel"} & set(cases.lists)


def test_planted_wrong_labels_are_found(tmp_path: Path) -> None:
    """Most of the labels that were swapped are found, and few others."""
    random = np.random.default_rng(1)
    n = 1_000
    truth = random.integers(3, size=n)
    swapped = random.random(n) < 0.05
    y = np.where(swapped, (truth + 1) % 3, truth)
    paths = []
    for name in "ab":
        scores = random.normal(size=(n, 3)) * 0.7
        scores[np.arange(n), truth] += 2.5
        proba = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        paths.append(write_fake_run(tmp_path / name, y.astype(str), proba,
                                    [i % 5 for i in range(n)], classes=tuple("012")))  # fmt: skip
    found = compare(paths)
    predictions = [held_out(found, name) for name in "ab"]
    issues = label_issues(predictions)
    assert (issues & swapped).sum() / swapped.sum() > 0.8
    assert (issues & ~swapped).sum() / issues.sum() < 0.2
    cases = cases_of(found, "a", voting=["a", "b"], cut=np.zeros(n, np.bool_))
    listed = np.zeros(n, np.bool_)
    listed[cases.lists["relabel"]] = True
    assert (listed & swapped).sum() / listed.sum() > 0.85


def test_values_are_wrong_beyond_their_standard_deviation(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    y = random.normal(size=200)
    outputs = {"near": y + random.normal(size=200) * 0.6, "far": y + random.normal(size=200)}
    paths = [write_fake_run(tmp_path / name, y, output, [i % 5 for i in range(200)], classes=())
             for name, output in outputs.items()]  # fmt: skip
    found = compare(paths, baseline="far")
    assert verdict_of(found, scale_of(found)).chosen == "near"
    cases = cases_of(found, "near", voting=["near", "far"], cut=np.zeros(200, np.bool_))
    off = {name: np.abs(output - y) > y.std() for name, output in outputs.items()}
    assert set(cases.lists["wrong"]) == set(np.flatnonzero(off["near"]))
    assert set(cases.lists["gained"]) == set(np.flatnonzero(off["far"] & ~off["near"]))
    errors = np.abs(outputs["near"] - y)[cases.lists["wrong"]]
    assert (np.diff(errors) <= 0).all()
    content = content_of(found)
    assert not content.per_class
    assert not content.pairs
    assert content.scale.lower
    said = Sentences(Phrases("en", found, content.scale), found, content.scale)
    assert said.title(content.verdict).startswith("near is better than far: RMSE −0.")


# warnings


def test_warnings_are_counted(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    n = 120
    y = np.where(np.arange(n) < 8, 2, np.arange(n) % 2)
    sure = np.full((n, 3), 0.005)
    sure[np.arange(n), np.where(random.random(n) < 0.6, y, (y + 1) % 3)] = 0.99
    labels = ("0", "1", "rare")
    paths = [
        write_fake_run(tmp_path / f"seed{seed}", [labels[i] for i in y], sure,
                       [i % 4 for i in range(n)], classes=labels, settings={"seed": seed})
        for seed in (0, 1)
    ]  # fmt: skip
    found = compare(paths)
    verdict = verdict_of(found, scale_of(found))
    cases = cases_of(found, verdict.chosen, voting=["seed0", "seed1"], cut=np.zeros(n, np.bool_))
    texts = Texts({i: "same" if i < 3 else f"text {i}" for i in range(n)})
    alerts = {a.kind: a.values for a in alerts_of(found, verdict, cases, texts)}
    assert alerts["small_classes"]["classes"] == ["rare"]
    assert alerts["duplicates"] == {"texts": 1, "records": 3, "conflicts": 0}
    assert alerts["seeds"] == {"runs": ["seed0", "seed1"], "spread": 0.0}
    error = {row.name: row for row in found.table.rows}["seed0"].scores["calibration_error"].value
    assert error > 0.1
    assert alerts["calibration"]["value"] == error
    wrong = (sure.argmax(1) != y).sum()
    assert (alerts["all_wrong"]["records"], alerts["all_wrong"]["sure"]) == (wrong, wrong)
    scale = scale_of(found)
    said = Sentences(Phrases("en", found, scale), found, scale)
    for alert in alerts_of(found, verdict, cases, texts):
        assert said.alert(alert)


def test_labels_get_their_names(compared: Compared) -> None:
    content = content_of(compared, label_names={"0": "부정"})
    assert content.classes == ("0 부정", "1", "2", "3")
    with pytest.raises(UsageError, match=r"label_names has '9', which is no label\. Labels: 0, 1"):
        content_of(compared, label_names={"9": "x"})


def test_one_style_per_method(compared: Compared) -> None:
    content = content_of(compared)
    styles = {m.name: m.style for m in content.methods}
    assert styles["c"] == 0
    assert styles["a"] == 1
    assert len({style for name, style in styles.items() if name != "majority"}) == len(styles) - 1


def test_twelve_runs_have_a_colour_and_shape_each(tmp_path: Path) -> None:
    runs = many_runs(tmp_path, ("0", "1"), n=120, strength=0.3, random=np.random.default_rng(0))
    found = compare(runs, baseline=runs[0].name)
    content = content_of(found)
    scene = next(c for c in charts_of(content, Phrases("en", found, content.scale))
                 if c.name == "forest").scene(510)  # fmt: skip
    page = (files("embedkit") / "templates" / "page.css").read_text("utf-8")
    known = [m.style for m in content.methods if m.kind != "majority"]
    assert len(known) > 12
    looks = {(colour_of(style), shape_of(style)) for style in known}
    assert len(looks) == len(known)
    assert [colour for colour, _ in looks].count("m0") == 1  # lines have no shape
    assert all(page.count(f"--{colour}: ") == 2 for colour, _ in looks)  # light and dark
    assert {item.colour for item in scene.items if item.colour.startswith("m")} <= set(COLOURS)


def layer_answer(compared: Compared, nested: Score, chosen: tuple[tuple[str, int], ...]) -> str:
    """What is said of three views, of which mean_2 is best with 76.6 %."""
    scale = scale_of(compared)
    said = Sentences(Phrases("en", compared, scale), compared, scale)
    answer = LayerAnswer("probe", "accuracy", nested, chosen, "mean_2", 0.766,
                         ("mean_1", "mean_2"), 3)  # fmt: skip
    verdict = replace(verdict_of(compared, scale), layer=answer)
    return said.answers(verdict)[0][1]


def test_two_scores_of_views_are_told_apart(compared: Compared) -> None:
    """The best score, and the one to report: why they differ, or that they are the same."""
    other = layer_answer(compared, Score(0.763, 0.73, 0.79), (("mean_2", 3), ("mean_1", 2)))
    assert (
        "The best is mean_2 (76.6 %). Not told apart from it: 1 of the other 2 (mean_1)." in other
    )
    assert ("The score to report is accuracy 76.3 % (73.0 to 79.0), of the views that inner folds "
            "chose without the scored records: mean_2 in 3 of 5 folds, mean_1 in 2 of 5 folds. "
            "That of the best of 3 views is partly luck.") in other  # fmt: skip
    same = layer_answer(compared, Score(0.766, 0.73, 0.79), (("mean_2", 5),))
    assert "chose it in all 5 folds, so that its score is the one to report" in same
    assert "luck" not in same


def test_p_is_said_to_be_corrected(compared: Compared) -> None:
    scale = scale_of(compared)
    said = Sentences(Phrases("en", compared, scale), compared, scale)
    verdict = verdict_of(compared, scale)
    assert verdict.effect is not None
    assert f"corrected for {compared.table.tests} comparisons" in said.word(verdict.effect)
    blend = said.answers(verdict)[2][1]
    assert "accuracy " in blend
    assert "; corrected p" in blend


def test_a_framed_view_below_one_without_a_frame_is_explained() -> None:
    def probe(*views: tuple[str, float, float]) -> Any:
        rest: dict[str, Any] = {"control": 0.5, "control_sd": 0.0, "selectivity": 0.0, "chosen": 0}
        found = [ViewScore(name=n, score=Score(v, v, v), p_best=p, **rest) for n, v, p in views]
        return SimpleNamespace(content=SimpleNamespace(metric="accuracy", views=found))

    assert frames_inverted(probe(("a", 0.8, 1.0), ("b", 0.75, 0.01), ("c", 0.7, 0.2)))
    assert not frames_inverted(probe(("a", 0.8, 1.0), ("b", 0.75, 0.2), ("c", 0.7, 0.01)))
    assert not frames_inverted(probe(("a", 0.8, 1.0), ("b", 0.7, 0.2)))


def test_japanese_words_stand_without_spaces(compared: Compared) -> None:
    words = Phrases("ja", compared, scale_of(compared))
    assert words("title.level", chosen=words.method("majority"), baseline="tfidf") == (
        "多数派クラスと tfidf は同等"
    )


def test_a_method_has_one_colour_and_shape_in_all_pictures(tmp_path: Path) -> None:
    paths, _, _ = random_runs(tmp_path, ["a", "b", "c"], n=300)
    found = compare(paths, baseline="a")
    content = content_of(found)
    words = Phrases("en", found, content.scale)
    assert [content.method(name).style for name in ("c", "a")] == [0, 1]
    scenes = {chart.name: chart.scene(510) for chart in charts_of(content, words)}
    marks = [item.colour for item in scenes["forest"].items
             if (hasattr(item, "radius") or hasattr(item, "outline"))
             and item.colour.startswith("m")]  # fmt: skip
    others = [m for m in content.methods if m.effect is not None and m.kind != "majority"]
    assert marks == [f"m{method.style}" for method in others]
    lines = {item.colour: item.points for item in scenes["calibration"].items
             if hasattr(item, "points") and getattr(item, "width", 0) == 1.6}  # fmt: skip
    for name in ("c", "a"):
        bins, points = content.calibration[name], lines[f"m{content.method(name).style}"]
        drawn, wanted = (np.diff(one) for one in (
            [y for _, y in points], [one.right for one in bins]))  # fmt: skip
        assert np.allclose(drawn * wanted[0], wanted * drawn[0], atol=0.05 * abs(drawn[0]))
