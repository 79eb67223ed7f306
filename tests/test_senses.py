"""Senses of words by layer: the numbers against their definitions, and the page in a browser."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.metrics.pairwise import cosine_similarity

import embedkit
from embedkit.cli.main import cli
from embedkit.errors import OutputExistsError, UsageError
from embedkit.explore import layout, senses_page
from embedkit.explore.layout import first_axes
from embedkit.explore.senses_page import write_senses
from embedkit.words.senses import _interval, _Pairs, compare_senses
from embedkit.words.uses import Use, uses_of_spans
from tests.page_checks import check_fit, findings_of_axe, json_block, opened, pasted, until
from tests.store_fixtures import loading_quickly, tiny_model

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
    with loading_quickly():
        for name, layers in (("data", "all"), ("other", "0,2")):
            embedkit.extract(folder / "c.tsv", out=folder / name, model=str(tiny_model()),
                             label="sense", keep=["word", "start", "end"], layers=layers,
                             words="mean", tokens=True, shard_rows=4)  # fmt: skip
    reports = [
        compare_senses(folder / name, sense="label", span=SPAN) for name in ("data", "other")
    ]
    write_senses(reports[:1], out=folder / "one.html")
    write_senses(reports, out=folder / "two.html")
    return folder


# uses and numbers


def test_uses_are_the_spans_of_the_corpus(folder: Path) -> None:
    found, words = uses_of_spans(folder / "data", SPAN)
    assert [use.row for use in found.uses] == list(range(9))
    assert words == ("배",) * 4 + ("bus",) * 5
    assert [use.text[use.start : use.end] for use in found.uses][3:8] == [
        "배", "bus", "bus", "bus", "Bus"]  # fmt: skip
    assert [use.start for use in found.uses][3] == 0
    _, named = uses_of_spans(folder / "data", SPAN, word="BUS")
    assert named == ("bus",) * 5
    _, by_text = uses_of_spans(folder / "data", SPAN, word_column="label")
    assert by_text[0] == "boat"


def test_cosines_and_neighbours_are_those_of_the_definition(folder: Path) -> None:
    """Means of tokens, the mean word of the layer subtracted, other texts of the same word."""
    report = compare_senses(folder / "data", sense="label", span=SPAN)
    tokens = embedkit.load(folder / "data", level="token", view="2")
    special = np.array(tokens.column("special"))
    words = embedkit.load(folder / "data", level="word", view="2")
    uses = [(i, use) for i, use in enumerate(report.uses)]
    vectors = []
    for _, use in uses:
        mine = (tokens.row == use.row) & (tokens.start < use.end) & (tokens.end > use.start)
        vectors.append(tokens.X[mine & ~special].mean(axis=0))
    cosines = cosine_similarity(np.array(vectors) - words.X.mean(axis=0))
    same, other, right, chances = [], [], [], []
    for i, _ in uses:
        if report.senses[i] is None:
            continue
        pool = [j for j, _ in uses if j != i and report.words[j] == report.words[i]
                and report.senses[j] is not None]  # fmt: skip
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
    plain = compare_senses(folder / "data", sense="label", span=SPAN, center=False)
    assert plain.layers[-1].same > last.same


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


def pairs_of(rows: list[int], texts: list[str], senses: list[str | None]) -> _Pairs:
    uses = [Use(row, str(row), text, 0, 4) for row, text in zip(rows, texts, strict=True)]
    return _Pairs.of(uses, ("w",) * len(uses), senses)


def test_a_use_in_the_same_record_or_text_is_no_neighbour() -> None:
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
        found = pairs_of(rows, texts, senses).layer("1", unit, 0)
        assert low <= found.nearest.value <= high


def test_uses_without_a_sense_are_left_out() -> None:
    unit = np.eye(4, dtype=np.float32)
    pairs = pairs_of([0, 1, 2, 3], list("abcd"), ["a", None, "a", None])
    assert pairs.scored.tolist() == [True, False, True, False]
    assert pairs.layer("1", unit, 0).nearest.value == 1
    nothing = pairs_of([0, 1], list("ab"), [None, None])
    assert np.isnan([nothing.chance, nothing.layer("1", unit[:2], 0).nearest.value]).all()


def test_intervals_draw_whole_words() -> None:
    """Uses of a word agree here, so that only the number of words tells anything."""
    right = np.repeat(np.arange(20) % 2 == 0, 50)
    by_word = _interval(right, np.repeat(np.arange(20), 50), 0)
    by_use = _interval(right, np.zeros(1_000, np.int64), 0)
    assert by_word.value == by_use.value == 0.5
    assert by_word.high - by_word.low > 5 * (by_use.high - by_use.low)
    assert by_word.high - by_word.low == pytest.approx(4 * np.sqrt(0.25 / 20), rel=0.2)


def test_settings_that_cannot_be_used(folder: Path, tmp_path: Path) -> None:
    data = folder / "data"
    with pytest.raises(UsageError, match="give a word, or span="):
        compare_senses(data)
    with pytest.raises(UsageError, match=r"no column 'begin'; it has row, id, text"):
        compare_senses(data, span=("begin", "end"))
    with pytest.raises(UsageError, match=r"span='end,start': '1' to '0' in row 0 is no span of"):
        compare_senses(data, span=("end", "start"))
    with pytest.raises(UsageError, match=r"span='label,end': 'boat' to '1' in row 0 is no span"):
        compare_senses(data, span=("label", "end"))
    with pytest.raises(UsageError, match=r"no record of .* has a use of 'movie' in start and end"):
        compare_senses(data, "movie", span=SPAN)
    report = compare_senses(data, "bus")
    with pytest.raises(UsageError, match=r"expected a name ending in .html"):
        write_senses([report], out=tmp_path / "m.png")
    with pytest.raises(UsageError, match="figure='gif': expected pdf, svg, png"):
        write_senses([report], figure=tmp_path / "m.gif")
    with pytest.raises(OutputExistsError, match=r"one.html exists"):
        write_senses([report], out=folder / "one.html")
    other = compare_senses(data, "배", span=SPAN)
    with pytest.raises(UsageError, match="no use in common"):
        write_senses([report, other], out=tmp_path / "m.html")


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(cli, ["words", *map(str, arguments)], standalone_mode=False)


def test_the_command(folder: Path, tmp_path: Path) -> None:
    given = ("--sense", "label", "--span", "start,end")
    page, figure = tmp_path / "p.html", tmp_path / "f.svg"
    shown = run(folder / "data", *given, "--out", page, "--figure", figure)
    report = compare_senses(folder / "data", sense="label", span=SPAN)
    best = max(one.nearest.value for one in report.layers)
    assert (
        f"2 words, 9 uses; the nearest other use has the same sense in {100 * best:.1f} %"
        in shown.output
    )
    assert "chance 33.3 %" in shown.output
    assert f"{report.layers[0].same:.3f}" in shown.output
    assert page.exists()
    drawn = figure.read_text("utf-8")
    assert drawn.count("layer 0") == drawn.count("layer 2") == 2
    found = json.loads(run(folder / "data", "배", *given, "--json").stdout)["models"][0]
    assert [use["row"] for use in found["uses"]] == [0, 1, 2, 3]
    assert found["layers"][2]["nearest"]["value"] == pytest.approx(
        compare_senses(folder / "data", "배", sense="label", span=SPAN).layers[2].nearest.value
    )
    assert len(run(folder / "data", "bus", "--sense", "label", "--json").stdout) > 100
    both = run(folder / "data", *given, "--out", page, "--overwrite", "--against", folder / "other")
    assert both.output.count("2 words, 9 uses") == 2
    for arguments, message in (
        ((folder / "data", "--sense", "label"), "give DATASET WORD, or DATASET with --span"),
        ((folder / "data", "--span", "start"), "--span needs two columns"),
        ((folder / "data", *given, "--against", folder / "other"), "give --out PAGE too"),
        (("bus", "--text", "a bus", "--span", "a,b"), "sentences have no columns"),
    ):
        with pytest.raises(UsageError, match=message):
            raise run(*arguments).exception


def test_positions_follow_the_layer_before(folder: Path) -> None:
    """Axes of nearly the same variance change places in the second layer; no point may jump."""
    corners = np.array([[3, 1], [-3, 1], [2, -3], [-2, 3], [1, -2], [-1, 0]], np.float32)
    report = compare_senses(folder / "data", "bus", sense="label", span=SPAN)
    stretched = [corners[:5] * np.array(by, np.float32) for by in ((1, 0.8), (0.8, 1))]
    planted = replace(report, units=dict(zip("01", stretched, strict=True)))
    first, second = senses_page._positions(planted, range(5))
    alone = [first_axes(unit) for unit in stretched]
    size = np.linalg.norm(first)
    assert np.linalg.norm(second - first) < 0.4 * size
    jumps = [one / np.sqrt((one**2).sum(1).mean()) for one in alone]
    assert np.linalg.norm(jumps[1] - jumps[0]) > size  # without being turned
    turned = first @ np.array([[0, 1], [-1, 0]], np.float32)
    assert np.allclose(layout.aligned(turned, first), first, atol=1e-5)


def test_the_page_opens_where_senses_are_told_apart_best(folder: Path) -> None:
    report = compare_senses(folder / "data", sense="label", span=SPAN)
    start = json_block(folder / "one.html", "content")["start"]
    nearest = [one.nearest.value for one in report.layers]
    assert nearest[start["layer"]] == max(nearest)
    gaps = {word: same - other for word, values in report.by_word.items()
            for same, other in [values[start["layer"]]]}  # fmt: skip
    assert gaps[start["word"]] == max(gaps.values())
    without = compare_senses(folder / "data", span=SPAN)
    found = senses_page._most_telling(without, senses_page._words(without, range(9)))
    assert found == {"word": "bus", "layer": 2}  # the most uses, the last layer


# the page


def heading(page: Any, start: str) -> str:
    return str(until(page, "document.getElementById('heading').textContent",
                     lambda text: text.startswith(start)))  # fmt: skip


def test_the_page_shows_the_numbers_of_the_report(browser: Any, folder: Path) -> None:
    report = compare_senses(folder / "data", sense="label", span=SPAN)
    with opened(browser, folder / "one.html") as page:
        for word in ("배", "bus"):
            page.click(f"[data-word={word}]")
            senses = [sense or "no sense given" for sense, own in
                      zip(report.senses, report.words, strict=True) if own == word]  # fmt: skip
            assert page.locator("#legend li").all_inner_texts() == [
                f"{sense} {senses.count(sense)}" for sense in dict.fromkeys(senses)
            ]
            for k, layer in enumerate(report.units):
                page.locator("#layer").fill(str(k))
                same, other = report.by_word[word][k]
                text = heading(page, f"{word} at layer {layer}")
                assert f"same sense {same:.3f}, other sense {other:.3f}" in text
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
        # the points lie where the layout has them, in proportion
        points = np.array(json_block(folder / "one.html", "content")["models"][0]["words"]["bus"][
            "points"][2])  # fmt: skip
        places = np.array(
            page.locator(".point").evaluate_all(
                "all => all.map(one => one.style.transform.match(/-?[0-9.]+/g).map(Number))"
            )
        )
        apart = np.linalg.norm(points[0] - points[1:], axis=1)
        found = np.linalg.norm(places[0] - places[1:], axis=1)
        assert np.allclose(found / found[0], apart / apart[0], rtol=0.02)


def test_search_copy_and_play(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "one.html", permissions=["clipboard-read", "clipboard-write"]
                ) as page:  # fmt: skip
        page.click("[data-word=배]")
        page.fill("#find", "\u110e\u116e\u1109\u1165\u11a8")  # 추석, decomposed
        assert page.inner_text("#count") == "1 of 4 uses"
        assert page.locator(".point.off").count() == 3
        page.fill("#find", "PEAR")
        assert page.inner_text("#count") == "2 of 4 uses"
        page.click("#copy")
        assert page.inner_text("#count") == "Copied 2 uses"
        lines = [line.split("\t") for line in pasted(page).rstrip("\n").split("\n")]
        assert lines[0] == ["row", "id", "word", "sense", "before", "use", "after"]
        assert [line[0] for line in lines[1:]] == ["2", "3"]
        page.fill("#find", "nothing like it")
        assert page.inner_text("#count") == "No use matches."
        page.fill("#find", "")
        page.click("#play")
        heading(page, "배 at layer 0")
        heading(page, "배 at layer 2")
        until(page, "document.getElementById('play').textContent", lambda text: text == "Play")
        page.locator(".hit").nth(1).click()
        heading(page, "배 at layer 1")


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
        reached: dict[str, bool] = {}
        for _ in range(40):
            page.keyboard.press("Tab")
            found = page.evaluate("""() => { const one = document.activeElement;
                const ring = one.querySelector?.(".ring");
                return [one.id || one.dataset.word || (ring ? "point" : one.tagName),
                        getComputedStyle(one).outlineStyle !== "none"
                        || Boolean(ring) && getComputedStyle(ring).stroke !== "none"]; }""")
            reached[found[0]] = found[1]
        wanted = {"layer", "play", "배", "bus", "point", "find", "copy", "BUTTON"}
        assert wanted <= set(reached)
        assert all(reached[name] for name in wanted)
        page.focus("[data-word=배]")
        page.keyboard.press("Enter")
        page.focus("#layer")
        page.keyboard.press("End")
        heading(page, "배 at layer 2")
        page.keyboard.press("ArrowLeft")
        heading(page, "배 at layer 1")
        page.focus("#list button >> nth=2")
        assert "추석에" in page.inner_text("#chosen")


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [("one", 800, "light"), ("one", 390, "dark"), ("two", 1_400, "dark"), ("two", 390, "light")],
)
def test_the_page_fits_the_screen(
    browser: Any, folder: Path, name: str, width: int, scheme: str
) -> None:
    """Nothing is wider, and axe finds nothing."""
    file = folder / f"{name}.html"
    with opened(browser, file, width=width, scheme=scheme, bypass_csp=True) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert findings_of_axe(page) == []


@pytest.mark.parametrize("name", ["one", "two"])
def test_the_page_fits_every_width_in_both_themes(browser: Any, folder: Path, name: str) -> None:
    with opened(browser, folder / f"{name}.html") as page:
        check_fit(page)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "two"])
def test_axe_finds_nothing_at_any_width(browser: Any, folder: Path, name: str) -> None:
    with opened(browser, folder / f"{name}.html", bypass_csp=True) as page:
        check_fit(page, axe=True)
