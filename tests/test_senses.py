"""Senses of words by layer: the numbers against their definitions, and the page in a browser."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity

import embedkit
from embedkit.contexts.senses import _chosen, _compared, _right, _score, compare_senses
from embedkit.contexts.uses import Use, uses_of_spans
from embedkit.errors import OutputExistsError, UsageError
from embedkit.maps.senses import write_senses
from tests.page_checks import check_fit, copied, json_block, opened, tab_stops, until
from tests.processes import invoke
from tests.store_fixtures import extract_tiny

EVIL = "<img src=x onerror=document.title='owned'>"
ROWS = (  # word, sense, and the text with the use between bars
    ("배", "boat", "|배|를 타고 여행을 간다."),
    ("배", "boat", "정말 |배|가 간다."),
    ("배", "pear", "추석에 먹은 |배|가 맛있었다."),
    ("배", "pear", "|배|를 먹고 배를 타고"),  # the second 배 is no use of this record
    ("bus", "coach", "the movie was good , a |bus| !"),
    ("bus", "coach", "i rained home the |bus|"),
    ("bus", EVIL, f"a |bus| was bad {EVIL}"),
    ("bus", EVIL, "bad , badly bad |Bus| home"),
    ("bus", "", "a |bus| a a"),  # no sense
    ("", "", "rain 배 bus"),  # no use
)
SPAN = ("start", "end")
AT = "document.getElementById('at').textContent"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets of two models with words and tokens, their page, and a page of both."""
    folder = tmp_path_factory.mktemp("senses")
    lines = ["id\ttext\tword\tstart\tend\tsense"]
    for i, (word, sense, marked) in enumerate(ROWS):
        before, *rest = marked.split("|")
        start = str(len(before)) if rest else ""
        end = str(len(before) + len(rest[0])) if rest else ""
        lines.append(f"u{i}\t{marked.replace('|', '')}\t{word}\t{start}\t{end}\t{sense}")
    (folder / "c.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    given = {"label": "sense", "keep": ["word", "start", "end"], "words": "mean", "tokens": True}
    reports = []
    for name, layers in (("data", "all"), ("other", "0,2")):
        extract_tiny(folder / "c.tsv", folder / name, layers=layers, shard_rows=4, **given)
        reports.append(compare_senses(folder / name, sense="label", span=SPAN))
    write_senses(reports[:1], folder / "one.html")
    write_senses(reports, folder / "two.html")
    return folder


# uses and numbers


def test_uses_are_the_spans_of_the_corpus(folder: Path, notes: list[str]) -> None:
    found, words = uses_of_spans(folder / "data", SPAN)
    assert "1 record without start and end" in " ".join(notes)
    assert [use.row for use in found.uses] == list(range(9))
    assert words == ("배",) * 4 + ("bus",) * 5
    written = [use.text[use.start : use.end] for use in found.uses]
    assert written[3:8] == ["배", "bus", "bus", "bus", "Bus"]
    assert [use.start for use in found.uses][3] == 0
    _, named = uses_of_spans(folder / "data", SPAN, word="BUS")
    assert named == ("bus",) * 5


def test_cosines_and_neighbours_are_those_of_the_definition(folder: Path) -> None:
    """Means of tokens, the mean word of the layer subtracted, other texts of the same word."""
    report = compare_senses(folder / "data", sense="label", span=SPAN)
    tokens = embedkit.load(folder / "data", level="token", view="2")
    special = np.array(tokens.column("special"))
    words = embedkit.load(folder / "data", level="word", view="2")
    vectors = []
    for use in report.uses:
        mine = (tokens.row == use.row) & (tokens.start < use.end) & (tokens.end > use.start)
        vectors.append(tokens.X[mine & ~special].mean(axis=0))
    cosines = cosine_similarity(np.array(vectors) - words.X.mean(axis=0))
    same, other, right, chances = [], [], [], []
    for i in range(len(vectors)):
        if report.senses[i] is None:
            continue
        pool = [
            j
            for j in range(len(vectors))
            if j != i and report.words[j] == report.words[i] and report.senses[j] is not None
        ]
        agree = [report.senses[j] == report.senses[i] for j in pool]
        same += [cosines[i, j] for j, yes in zip(pool, agree, strict=True) if yes]
        other += [cosines[i, j] for j, yes in zip(pool, agree, strict=True) if not yes]
        right.append(report.senses[max(pool, key=lambda j: cosines[i, j])] == report.senses[i])
        chances.append(np.mean(agree))
    last = report.layers[-1]
    assert last.layer == "2"
    assert last.same == pytest.approx(np.mean(same), abs=1e-5)
    assert last.other == pytest.approx(np.mean(other), abs=1e-5)
    assert last.nearest.value == pytest.approx(np.mean(right))
    assert report.chance == pytest.approx(np.mean(chances)) == pytest.approx(1 / 3)
    assert report.scored == 8


def test_other_words_near_a_use_are_none_of_its_own(folder: Path) -> None:
    report = compare_senses(folder / "data", sense="label", span=SPAN)
    words = embedkit.load(folder / "data", level="word", view="1")
    mean = words.X.mean(axis=0)
    for i, use in enumerate(report.uses):
        cosines = cosine_similarity(report.units["1"][i : i + 1], words.X - mean)[0]
        best: dict[str, float] = {}
        for text, row, cosine in zip(words.text, words.row, cosines, strict=True):
            form = text.casefold().strip(".,!?;:\"'()[]…“”‘’~")
            if form and row != use.row and not form.startswith(report.words[i]):
                best[form] = max(best.get(form, -1.0), float(cosine))
        wanted = sorted(best.values(), reverse=True)[:5]
        assert [n.cosine for n in report.nearby[1][i]] == pytest.approx(wanted, abs=1e-5)
        assert all(best[n.word] == pytest.approx(n.cosine, abs=1e-5) for n in report.nearby[1][i])


def fraction(rows: list[int], texts: list[str], senses: list[str | None], unit: Any) -> Any:
    """Score of uses of one word."""
    uses = [Use(row, str(row), text, 0, 4) for row, text in zip(rows, texts, strict=True)]
    words = ["w"] * len(uses)
    compared, same = _compared(uses, words, senses)
    return _score(_right(unit, compared, same), np.array(words)[compared.any(axis=1)])


def test_a_use_in_the_same_record_or_text_is_not_compared() -> None:
    """Senses by coin flip, of uses that come in pairs: of one record, or of one repeated text."""
    random = np.random.default_rng(1)
    base = np.repeat(random.normal(size=(100, 16)), 2, axis=0)
    vectors = base + 0.01 * random.normal(size=(200, 16))
    unit = np.asarray(vectors / np.linalg.norm(vectors, axis=1)[:, None], np.float32)
    senses = np.repeat(random.choice(["a", "b"], 100), 2).tolist()
    numbers = list(range(200))
    for rows, texts, low, high in (
        ([i // 2 for i in numbers], [f"text {i}" for i in numbers], 0.3, 0.65),
        (numbers, [f"{'TEXT' if i % 2 else ' text'} {i // 2}" for i in numbers], 0.3, 0.65),
        (numbers, [f"text {i}" for i in numbers], 1, 1),
    ):
        assert low <= fraction(rows, texts, senses, unit).value <= high


def test_words_are_the_units_of_the_interval() -> None:
    """Uses of a word agree here, so that only the number of words tells anything."""
    right = np.repeat(np.arange(20) % 2 == 0, 50).astype(float)
    by_word = _score(right, np.repeat(np.arange(20), 50))
    by_use = _score(right, np.zeros(1_000))
    assert by_word.value == by_use.value == 0.5
    assert by_word.high - by_word.low > 5 * (by_use.high - by_use.low)
    assert by_word.high - by_word.low == pytest.approx(4 * np.sqrt(0.25 / 20), rel=0.2)


@pytest.mark.parametrize(
    ("word", "span", "message"),
    [
        (None, None, "span="),
        (None, ("begin", "end"), "begin"),
        (None, ("end", "start"), "end,start"),
        (None, ("label", "end"), "label,end"),
        ("movie", SPAN, "movie"),
    ],
)
def test_settings_that_cannot_be_used(
    folder: Path, word: str | None, span: tuple[str, str] | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        compare_senses(folder / "data", word, span=span)


def test_files_that_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    report, other = (compare_senses(folder / "data", word, span=SPAN) for word in ("bus", "배"))
    with pytest.raises(UsageError, match="out="):
        embedkit.words(folder / "data", "bus", out=tmp_path / "m.png")
    with pytest.raises(UsageError, match="figure="):
        embedkit.words(folder / "data", "bus", figure=tmp_path / "m.gif")
    with pytest.raises(OutputExistsError, match=r"one\.html"):
        embedkit.words(folder / "data", "bus", out=folder / "one.html")
    with pytest.raises(UsageError, match="common"):
        write_senses([report, other], tmp_path / "m.html")


def test_the_command(folder: Path, tmp_path: Path) -> None:
    given = ("--sense", "label", "--span", "start,end")
    page, figure = tmp_path / "p.html", tmp_path / "f.svg"
    shown = invoke("words", folder / "data", *given, "--out", page, "--figure", figure)
    report = compare_senses(folder / "data", sense="label", span=SPAN)
    assert "2 words: 8 uses do not prove" in shown.output
    assert f"{100 * report.chosen.value:.0f} %" in shown.output
    every = invoke("words", folder / "data", *given, "--all").output
    assert f"{report.layers[0].same:.3f}" in every
    assert page.exists()
    drawn = figure.read_text("utf-8")
    assert drawn.count("layer 0") == drawn.count("layer 2") == 2
    found = json.loads(invoke("words", folder / "data", "배", *given, "--json").stdout)["models"][0]
    assert [use["row"] for use in found["uses"]] == [0, 1, 2, 3]
    assert found["layers"][2]["nearest"]["value"] == pytest.approx(
        compare_senses(folder / "data", "배", sense="label", span=SPAN).layers[2].nearest.value
    )
    against = ("--out", page, "--overwrite", "--against", folder / "other")
    both = invoke("words", folder / "data", *given, *against)
    assert both.output.count("2 words: ") == 2
    for arguments, message in (
        ((folder / "data", "--sense", "label"), "DATASET --span"),
        ((folder / "data", "--span", "start"), "--span"),
        ((folder / "data", *given, "--against", folder / "other"), "--out"),
        (("bus", "--text", "a bus", "--span", "a,b"), "--span"),
    ):
        with pytest.raises(UsageError, match=message):
            raise invoke("words", *arguments).exception


def test_the_page_opens_with_the_word_of_most_uses(folder: Path) -> None:
    report = compare_senses(folder / "data", sense="label", span=SPAN)
    start = json_block(folder / "one.html", "content")["start"]
    nearest = [one.nearest.value for one in report.layers]
    assert nearest[start["layer"]] == max(nearest)
    assert start["word"] == "bus"


def test_the_best_of_many_layers_of_chance_is_not_a_finding() -> None:
    """Nine uses, 13 layers, coin flips: the highest score flatters, the chosen one does not."""
    random = np.random.default_rng(0)
    highest, chosen = [], []
    for _ in range(300):
        right = (random.random((13, 9)) < 0.3).astype(float)
        highest.append(right.mean(axis=1).max())
        chosen.append(_chosen(right, np.array(["w"] * 9)).value)
    assert np.mean(highest) > 0.5
    assert np.mean(chosen) < 0.35
    always = np.ones((13, 9))
    assert _chosen(always, np.array(["w"] * 9)).value == 1


# the page


def test_the_page_shows_the_numbers_of_the_report(browser: Any, folder: Path) -> None:
    report = compare_senses(folder / "data", sense="label", span=SPAN)
    with opened(browser, folder / "one.html") as page:
        for word in ("배", "bus"):
            page.click(f"button[data-word={word}]")
            senses = [
                sense or "no sense given"
                for sense, own in zip(report.senses, report.words, strict=True)
                if own == word
            ]
            assert page.locator("#legend li").all_inner_texts() == [
                f"{sense} {senses.count(sense)}" for sense in dict.fromkeys(senses)
            ]
            for k, layer in enumerate(report.units):
                page.locator("#layer").fill(str(k))
                same, other = report.by_word[word].cosines[k]
                assert f"At layer {layer}: mean cosine {same:.3f} of" in page.inner_text("#at")
                assert f"{other:.3f} with other senses" in page.inner_text("#at")
                cell = page.locator(f"tr[data-word={word}] td[data-layer='{k}']")
                gap = f"{same - other:+.3f}".replace("-0.000", "+0.000")
                assert cell.inner_text() == gap.replace("-", "−").replace("0.", ".")
                score = report.layers[k].nearest
                facts = page.inner_text("#facts").replace("\xa0", " ")
                shown = [int(100 * v + 0.5) for v in (score.value, score.low, score.high)]
                assert f"in {shown[0]} % ({shown[1]} % to {shown[2]} %), chance 33 %" in facts
        # the nearest words of the use under the pointer, whose line is marked
        page.locator(".point").nth(2).locator("circle, polygon").first.hover()
        number = [i for i, word in enumerate(report.words) if word == "bus"][2]
        near = ", ".join(f"{n.word} {n.cosine:.3f}" for n in report.nearby[2][number])
        assert near in page.inner_text("#chosen")
        assert page.get_attribute("#list button[aria-current]", "data-use") == "2"
        page.hover("#list button >> nth=3")
        assert page.locator(".point.on").get_attribute("aria-label").startswith(EVIL[:10])
        assert EVIL in page.inner_text("#chosen")
        assert page.title() != "owned"


def test_search_copy_and_play(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "one.html") as page:
        page.click("button[data-word=배]")
        page.fill("#find", "\u110e\u116e\u1109\u1165\u11a8")  # 추석, decomposed
        assert page.inner_text("#count") == "1 of 4 uses"
        assert page.locator(".point.off").count() == 3
        page.fill("#find", "PEAR")
        assert page.inner_text("#count") == "2 of 4 uses"
        lines = copied(page)
        assert page.inner_text("#count") == "Copied 2 uses"
        assert lines[0] == ["row", "id", "word", "sense", "before", "use", "after"]
        assert [line[0] for line in lines[1:]] == ["2", "3"]
        page.fill("#find", "nothing like it")
        assert page.inner_text("#count") == "No use matches."
        page.fill("#find", "")
        page.click("#play")
        until(page, AT, lambda text: "layer 0" in text)
        until(page, AT, lambda text: "layer 2" in text)
        until(page, "document.getElementById('play').textContent", lambda text: text == "Play")
        page.locator(".hit").nth(1).click()
        until(page, AT, lambda text: "layer 1" in text)


def test_two_models_side_by_side(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "two.html") as page:
        assert page.locator("svg.uses").count() == 2
        assert page.locator("svg.lines").count() == 4
        page.locator("#layer").fill("0")
        facts = page.inner_text("#facts")
        assert facts.count("layer 0") == 2
        page.locator("#layer").fill("2")
        assert page.inner_text("#facts").count("layer 2") == 2
        left, right = (page.locator("svg.uses").nth(i).bounding_box() for i in (0, 1))
        assert left["y"] == right["y"]
        assert left["x"] + left["width"] <= right["x"]
        point = page.locator("svg.uses").nth(1).locator(".point").last
        point.locator("circle, polygon").first.hover()
        assert page.locator(".point.on").count() == 2


def test_keyboard_alone(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "one.html") as page:
        ring = 'one.querySelector?.(".ring")'
        name = f"one.id || one.dataset.word || ({ring} ? 'point' : one.tagName)"
        reached = tab_stops(
            page, name, f"Boolean({ring}) && getComputedStyle({ring}).stroke !== 'none'"
        )
        wanted = {"layer", "play", "배", "bus", "point", "find", "copy", "BUTTON"}
        assert wanted <= set(reached)
        assert all(reached[name] for name in wanted)
        page.focus("button[data-word=배]")
        page.keyboard.press("Enter")
        page.focus("#layer")
        page.keyboard.press("End")
        until(page, AT, lambda text: "layer 2" in text)
        page.keyboard.press("ArrowLeft")
        until(page, AT, lambda text: "layer 1" in text)
        page.focus("#list button >> nth=2")
        assert "추석에" in page.inner_text("#chosen")


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [("one", 800, "light"), ("two", 1_400, "dark"), ("two", 390, "light")],
)
def test_the_page_fits_the_screen(
    browser: Any, folder: Path, name: str, width: int, scheme: str
) -> None:
    file = folder / f"{name}.html"
    with opened(browser, file, width=width, scheme=scheme, bypass_csp=True) as page:
        check_fit(page, width, scheme)
        names = [one.bounding_box() for one in page.locator(".uses text:visible").all()]
        assert names
        for a, b in itertools.combinations(names, 2):
            across = min(a["x"] + a["width"], b["x"] + b["width"]) - max(a["x"], b["x"])
            down = min(a["y"] + a["height"], b["y"] + b["height"]) - max(a["y"], b["y"])
            assert min(across, down) < 2, (a, b)
