"""The report in a real browser: every control by mouse and by keyboard, and what it shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedkit import compare, probe
from embedkit.comparison.report import write_report
from tests import page_checks
from tests.comparison.test_report import EVIL, two_runs
from tests.page_checks import check_fit, copied, json_block, pasted, tab_stops
from tests.run_fixtures import random_runs, write_fake_runs

READY = "#explorer:not([hidden])"


@pytest.fixture(scope="module")
def pages(common: Path) -> dict[str, Path]:
    """Reports of vectors with a probe, of many runs and classes, and of values."""
    options = two_runs(common, 200, tune=True)
    probe(common / "data", out=common / "runs/probe", learning_curve=True, **options)
    runs = [common / "runs" / name for name in ("tfidf", "logreg", "probe")]
    korean = {"0": "부정", "1": "긍정"}
    write_report(compare(runs, baseline="tfidf"), common / "vectors.html", label_names=korean)
    random = np.random.default_rng(0)
    labels = tuple(f"とても長い分類の名前がここにあります{i:02}" for i in range(77))
    names = [f"run_with_a_rather_long_name_{number}" for number in range(12)]
    given: dict[str, Any] = {"classes": 77, "labels": labels, "strength": 0.2}
    many, _, _ = random_runs(common / "many", names, n=600, **given)
    write_report(compare(many, baseline=many[0].name), common / "many.html")
    values = random.normal(size=300)
    outputs = [values + random.normal(size=300) * noise for noise in (0.7, 1.0)]
    made = write_fake_runs(common / "values", ["near", "far"], values, outputs, classes=())
    write_report(compare(made, baseline="far"), common / "values.html")
    return {name: common / f"{name}.html" for name in ("vectors", "many", "values")}


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path]) -> Iterator[Any]:
    """Open a page, and give what it reads.

    At the end nothing was said on the console, and nothing else was asked for.
    """
    with ExitStack() as stack:

        def open_page(name: str, **how: Any) -> tuple[Any, Any]:
            page = page_checks.opened(browser, pages[name], ready=READY, **how)
            return stack.enter_context(page), json_block(pages[name], "data")

        yield open_page


OVERLAPS = """() => [...document.querySelectorAll('figure svg')].flatMap((svg) => {
  const frame = svg.getBoundingClientRect();
  if (!frame.width) return [];
  const boxes = [...svg.querySelectorAll('text')].map((text) =>
    [text.textContent, text.getBoundingClientRect()]);
  const out = boxes.filter(([, b]) => b.left < frame.left - 2 || b.right > frame.right + 2
    || b.top < frame.top - 3 || b.bottom > frame.bottom + 3).map(([t]) => `cut: ${t}`);
  for (let i = 0; i < boxes.length; i++) for (let j = 0; j < i; j++) {
    const [a, b] = [boxes[i][1], boxes[j][1]];
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (across > 1 && down > Math.min(a.height, b.height) * 0.45) {
      out.push(`over: ${boxes[i][0]} / ${boxes[j][0]}`);
    }
  }
  return out;
})"""


@pytest.mark.parametrize("name", ["many", "vectors", "values"])
@pytest.mark.parametrize(("width", "scheme"), [(1_400, "light"), (390, "light"), (800, "dark")])
def test_the_page_fits_the_screen(opened: Any, name: str, width: int, scheme: str) -> None:
    """No words of a picture lie on each other."""
    page, _ = opened(name, width=width, color_scheme=scheme, bypass_csp=True)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert page.evaluate(OVERLAPS) == []
    check_fit(page, width, scheme)
    for cell in page.locator("td").all_inner_texts():
        for number in re.findall(r"[\d,.]+", cell):
            assert len(number.replace(",", "").replace(".", "").strip("0")) <= 6, cell


@pytest.mark.parametrize("name", ["vectors", "many", "values"])
def test_the_first_screen_is_short_and_the_records_are_near(opened: Any, name: str) -> None:
    """140 words at most beside the numbers; on a phone records begin within three screens."""
    page, _ = opened(name, width=390)
    words = re.findall(r"\S*[^\W\d]\S*", page.locator("header").inner_text())
    assert len(words) <= 140
    assert page.locator("#cases").bounding_box()["y"] < 3 * 900
    # the contents name what follows in the order in which it does
    order = "(a, b) => a.offsetLeft - b.offsetLeft"
    top = "(link) => document.querySelector(link.hash).getBoundingClientRect().top"
    tops = page.locator("nav a").evaluate_all(f"all => all.sort({order}).map({top})")
    assert tops == sorted(tops)


def test_cells_of_the_heat_map_lead_to_the_errors_of_their_view(
    opened: Any, pages: dict[str, Path]
) -> None:
    page, data = opened("vectors")
    content = json.loads((pages["vectors"].parent / "runs/probe/run.json").read_text("utf-8"))
    count = page.locator("#count")
    cells = page.locator("#picture-layers-1 polygon[data-name]")
    assert cells.count() == len(content["view_scores"]) == len(data["views"][0])

    def wrong_of(view: str) -> list[int]:
        return [i for i, said in enumerate(data["views"][0][view]) if said != data["y"][i]]

    framed = {v["name"] for v in content["view_scores"] if v["chosen"]}
    for one in content["view_scores"]:
        # a frame says that a fold chose the view
        wrong = wrong_of(one["name"])
        assert len(wrong) == round((1 - one["score"]["value"]) * len(data["rows"]))
        cell = page.locator(f"#picture-layers-1 [data-name={one['name']}]")
        assert (cell.get_attribute("stroke-width") is not None) == (one["name"] in framed)
    view = content["view_scores"][1]["name"]
    page.click(f"#picture-layers-1 [data-name={view}]")
    wrong = wrong_of(view)
    assert count.inner_text() == f"{len(wrong)} of {len(data['rows'])} records"
    tab = page.locator(".tabs button[aria-pressed=true]")
    assert tab.inner_text().startswith(f"{view} wrong")
    assert view in page.locator("#list .case .chips").first.inner_text()
    page.click(".tabs button[data-name=all]")
    assert page.locator(".tabs button:visible", has_text=f"{view} wrong").count() == 0
    # by keys: one stop of Tab, arrows from cell to cell
    first = page.locator("#picture-layers-1 polygon[tabindex='0']")
    before = first.get_attribute("data-name")
    first.focus()
    page.keyboard.press("ArrowUp" if before.endswith("2") else "ArrowDown")
    now = page.evaluate("document.activeElement.dataset.name")
    assert now.split("_")[0] == before.split("_")[0]
    assert abs(int(now[-1]) - int(before[-1])) == 1
    page.keyboard.press("Enter")
    assert tab.inner_text().startswith(f"{now} wrong")
    assert count.inner_text().startswith(f"{len(wrong_of(now))} of ")


def test_records_are_found_by_mouse(opened: Any) -> None:
    page, data = opened("vectors")
    shown, count = page.locator("#list .case"), page.locator("#count")
    for name in data["order"]:
        page.click(f".tabs button[data-name={name}]")
        expected = len(data["rows"]) if name == "all" else len(data["lists"][name])
        assert count.inner_text() == f"{expected} of {len(data['rows'])} records"
        assert shown.count() == min(expected, 25)
    while page.locator("#more").is_visible():
        page.click("#more")
    assert shown.count() == len(data["rows"])
    page.fill("#find", "ONERROR")
    evil = [text for text in data["texts"] if "onerror" in text]
    assert count.inner_text() == f"{len(evil)} of {len(data['rows'])} records"
    assert page.locator("#list script, #list img").count() == 0
    page.select_option("#true", "1")
    page.select_option("#predicted", "0")
    answers = zip(data["texts"], data["y"], data["predicted"][0], strict=True)
    assert shown.count() == sum("onerror" in text and y > said for text, y, said in answers)
    page.fill("#find", "nothing has these words")
    assert count.inner_text() == "No record matches."
    page.click("#clear")
    assert shown.count() == 25
    page.click(".tabs button[data-name=wrong]")
    shown.first.locator("summary").click()
    first = data["lists"]["wrong"][0]
    near = data["near"]["of"][str(first)]
    shown.first.locator(".near li").first.wait_for()
    assert shown.first.locator(".near li").count() == len(near)
    assert data["texts"][near[0][0]][:20].strip() in shown.first.locator(".near").inner_text()
    assert shown.first.locator(".chip.true").inner_text().split()[-1] in ("부정", "긍정")
    assert shown.first.locator(".chip [lang=ko]").count() > 0


def test_pairs_cells_and_notices_lead_to_records(opened: Any) -> None:
    for name, place in (("many", ".pairs button"), ("vectors", "#matrix button")):
        page, data = opened(name)
        button = page.locator(place).first
        true, predicted = (int(button.get_attribute(f"data-{k}")) for k in ("true", "predicted"))
        button.click()
        pairs = zip(data["y"], data["predicted"][0], strict=True)
        count = sum(pair == (true, predicted) for pair in pairs)
        assert page.inner_text("#count") == f"{count} of {len(data['rows'])} records"
        assert str(count) in button.inner_text()
        assert page.input_value("#true") == str(true)
    notice = page.locator(".notices details", has=page.locator("[data-list]")).first
    notice.locator("summary").click()
    notice.locator("button").click()
    listed = len(data["lists"][notice.locator("button").get_attribute("data-list")])
    assert page.inner_text("#count").startswith(f"{listed} of ")
    page, _ = opened("many")
    rows = page.locator("#table-classes tbody tr:visible")
    assert rows.count() == 15
    page.click("#all-classes")
    assert rows.count() == 77


def test_another_threshold_finds_what_the_probabilities_say(opened: Any) -> None:
    page, data = opened("vectors")
    y, predicted, sure = map(np.array, (data["y"], data["predicted"][0], data["confidence"][0]))
    positive = np.where(predicted == 1, sure, 1_000 - sure)
    for percent, within in ((20, 0), (50, 0), (70, 0), (50, 10)):
        page.locator("#slide").fill(str(percent))
        page.locator("#person").fill(str(within))
        rest = abs(positive - percent * 10) >= within * 10
        chosen = rest & (positive >= percent * 10)
        said = page.inner_text("#limited")
        assert said.startswith(f"{chosen.sum()} of {rest.sum()} ")
        recall = (chosen & (y == 1)).sum() / (rest & (y == 1)).sum()
        assert f"recall {np.floor(recall * 100 + 0.5):.0f}\xa0%" in said
        assert f"; {np.floor((~rest).mean() * 100 + 0.5):.0f}\xa0% sent to a person" in said


def test_the_next_command_is_copied(opened: Any) -> None:
    page, _ = opened("vectors")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    command = page.inner_text("#next")
    page.click("#copy-next")
    assert pasted(page) == command
    assert command.startswith("embedkit ")


def test_keyboard_alone(opened: Any) -> None:
    """Every control is reached by Tab, is seen to have the focus, and works by Enter or Space."""
    page, _ = opened("vectors")
    reached = tab_stops(page, "one.id || one.dataset.name || one.textContent.slice(0, 30)")
    assert {"find", "true", "predicted", "clear", "copy", "all", "copy-next"} <= set(reached)
    assert all(reached.values()), [name for name, ring in reached.items() if not ring]
    page.focus(".tabs button[data-name=all]")
    page.keyboard.press("Enter")
    assert page.get_attribute(".tabs button[data-name=all]", "aria-pressed") == "true"
    page.focus("#list .case summary >> nth=0")
    page.keyboard.press("Enter")
    assert page.locator("#list .case details[open]").count() == 1
    page.focus("#numbers > summary")
    page.keyboard.press("Space")
    heading = page.locator("#table-scores thead th").nth(1)
    heading.locator("button").focus()
    before = page.locator("#table-scores tbody th").all_inner_texts()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert page.locator("#table-scores tbody th").all_inner_texts() != before


def test_records_are_copied_as_tsv(opened: Any) -> None:
    page, data = opened("vectors")
    page.click(".tabs button[data-name=wrong]")
    head, *lines = copied(page)
    listed = data["lists"]["wrong"]
    assert page.inner_text("#count") == f"Copied {len(listed)} records"
    assert head[:3] == ["row", "id", "true"]
    assert [int(line[0]) for line in lines] == [data["rows"][i] for i in listed]
    assert {len(line) for line in lines} == {len(head)}


def test_paper_has_everything(opened: Any, tmp_path: Path) -> None:
    page, _ = opened("vectors")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("details:not([open])").count() == 0
    assert not page.locator("#find").is_visible()
    assert page.locator("#table-scores").is_visible()
    page.set_viewport_size({"width": 700, "height": 900})
    scrolling = "one => getComputedStyle(one).overflowX !== 'visible'"
    assert not page.evaluate(f"[...document.querySelectorAll('.scroll')].some({scrolling})")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("#numbers[open]").count() == 0


def test_the_policy_stops_a_script_that_escaping_would_miss(
    pages: dict[str, Path], browser: Any, tmp_path: Path
) -> None:
    html = pages["vectors"].read_text("utf-8")
    planted = html.replace("</main>", f"{EVIL}</main>")
    assert planted != html
    (tmp_path / "planted.html").write_text(planted, "utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "planted.html").as_uri())
    page.wait_for_selector(READY)  # the page's own script still runs
    assert page.title() != "owned"
    page.close()
