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

import embedkit
from embedkit.classifiers.probe import probe
from embedkit.classifiers.train import train
from embedkit.comparison.compare import compare
from embedkit.comparison.report import write_report
from embedkit.fsio import file_sha256
from embedkit.runs.splits import split
from tests import page_checks, run_fixtures
from tests.page_checks import check_fit, findings_of_axe, pasted
from tests.run_fixtures import many_runs, write_fake_run
from tests.store_fixtures import loading_quickly, tiny_model
from tests.test_report import EVIL, corpus_of, payload

READY = "#explorer:not([hidden])"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports of vectors with a probe, of many runs and classes, and of values."""
    folder = tmp_path_factory.mktemp("pages")
    with loading_quickly():
        embedkit.extract(corpus_of(folder / "corpus.tsv", 200), out=folder / "data", layers="all",
                         model=str(tiny_model()))  # fmt: skip
    split(folder / "data", out=folder / "s.parquet", folds=3, test=0.2)
    options: dict[str, Any] = {"split": folder / "s.parquet"}
    train(folder / "data", out=folder / "tfidf", features="tfidf", **options)
    train(folder / "data", out=folder / "logreg", **options)
    probe(
        folder / "data", out=folder / "probe", threads=1, shuffles=1, learning_curve=True, **options
    )
    write_report(compare([folder / n for n in ("tfidf", "logreg", "probe")], baseline="tfidf"),
                 folder / "vectors.html", label_names={"0": "부정", "1": "긍정"})  # fmt: skip
    random = np.random.default_rng(0)
    labels = tuple(f"とても長い分類の名前がここにあります{i:02}" for i in range(77))
    many = many_runs(folder / "many", labels, n=600, strength=2, random=random)
    write_report(compare(many, baseline=many[0].name), folder / "many.html", report_lang="ja")
    values = random.normal(size=300)
    made = [write_fake_run(folder / f"values/{name}", values,
                           values + random.normal(size=300) * noise, [i % 5 for i in range(300)],
                           classes=(), task="regression")
            for name, noise in (("near", 0.7), ("far", 1.0))]  # fmt: skip
    write_report(compare(made, baseline="far"), folder / "values.html", report_lang="ko")
    return {name: folder / f"{name}.html" for name in ("vectors", "many", "values")}


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path]) -> Iterator[Any]:
    """Open a page; at the end nothing was said on the console, and nothing else was asked for."""
    with ExitStack() as stack:
        yield lambda name, **how: stack.enter_context(
            page_checks.opened(browser, pages[name], ready=READY, **how)
        )


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


@pytest.mark.parametrize("name", ["vectors", "many", "values"])
@pytest.mark.parametrize(("width", "scheme"), [(1_400, "light"), (800, "dark"), (390, "light")])
def test_the_page_fits_the_screen(opened: Any, name: str, width: int, scheme: str) -> None:
    """Nothing is wider, no words of a picture lie on each other, and axe finds nothing."""
    page = opened(name, width=width, scheme=scheme, bypass_csp=True)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = min(int(part) for part in re.findall(r"\d+", background)[:3]) > 128
    assert light == (scheme == "light")
    assert page.evaluate(OVERLAPS) == []
    assert findings_of_axe(page) == []


@pytest.mark.parametrize("name", ["vectors", "many", "values"])
def test_the_page_fits_every_width_in_both_themes(opened: Any, name: str) -> None:
    page = opened(name)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    check_fit(page)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vectors", "many", "values"])
def test_axe_finds_nothing_at_any_width(opened: Any, name: str) -> None:
    page = opened(name, bypass_csp=True)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    check_fit(page, axe=True)


def test_cells_of_the_heat_map_lead_to_the_errors_of_their_view(
    opened: Any, pages: dict[str, Path]
) -> None:
    page, data = opened("vectors"), payload(pages["vectors"])
    content = json.loads((pages["vectors"].parent / "probe/run.json").read_text("utf-8"))
    count = page.locator("#count")
    cells = page.locator("#picture-layers-1 .roomy polygon[data-name]")
    assert cells.count() == len(content["views"]) == len(data["views"][0])

    def wrong_of(view: str) -> list[int]:
        return [i for i, said in enumerate(data["views"][0][view]) if said != data["y"][i]]

    framed = {v["name"] for v in content["views"] if v["p_best"] >= 0.05}
    for one in content["views"]:
        # the score in the cell is that of the others, and the frame stands where no test does
        wrong = wrong_of(one["name"])
        assert len(wrong) == round((1 - one["score"]["value"]) * len(data["rows"]))
        cell = page.locator(f"#picture-layers-1 .roomy [data-name={one['name']}]")
        assert (cell.get_attribute("stroke-width") is not None) == (one["name"] in framed)
        middle = cell.evaluate("e => { const b = e.getBoundingClientRect();"
                               " return [b.x + b.width / 2, b.y, b.height]; }")  # fmt: skip
        texts = page.locator("#picture-layers-1 .roomy svg text").evaluate_all(
            "all => all.map(e => { const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y - 0, e.textContent]; })"
        )
        inside = [
            t for x, y, t in texts if abs(x - middle[0]) < 2 and 0 <= y - middle[1] < middle[2]
        ]
        assert inside[0] == f"{100 * one['score']['value']:.1f}"
    view = content["views"][1]["name"]
    page.click(f"#picture-layers-1 .roomy [data-name={view}]")
    wrong = wrong_of(view)
    assert count.inner_text() == f"{min(len(wrong), 25)} of {len(wrong)} records"
    tab = page.locator(".tabs button[aria-pressed=true]")
    assert tab.inner_text().startswith(f"{view} wrong")
    assert view in page.locator("#list .case .said").first.inner_text()
    page.click(".tabs button[data-name=all]")
    assert page.locator(".tabs button:visible", has_text=f"{view} wrong").count() == 0
    # by keys: one stop of Tab, arrows from cell to cell
    first = page.locator("#picture-layers-1 .roomy polygon[tabindex='0']")
    before = first.get_attribute("data-name")
    first.focus()
    page.keyboard.press("ArrowLeft" if before.endswith("2") else "ArrowRight")
    now = page.evaluate("document.activeElement.dataset.name")
    assert now.split("_")[0] == before.split("_")[0]
    assert abs(int(now[-1]) - int(before[-1])) == 1
    page.keyboard.press("Enter")
    assert tab.inner_text().startswith(f"{now} wrong")
    assert count.inner_text().endswith(f" of {len(wrong_of(now))} records")


def test_numbers_are_those_of_the_run(opened: Any, pages: dict[str, Path]) -> None:
    page = opened("vectors")
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    for name in ("tfidf", "logreg"):
        content = json.loads((pages["vectors"].parent / name / "run.json").read_text("utf-8"))
        row = page.locator("#table-scores tbody tr", has_text=re.compile(f"^{name}"))
        cells = row.locator("td").all_inner_texts()
        heads = page.locator("#table-scores thead th").all_inner_texts()[1:]
        found = dict(zip((h.split("\xa0")[0] for h in heads), cells, strict=True))
        scores = content["scores"]["cross_validation"]
        for label, metric in (("accuracy", "accuracy"), ("macro-F1", "macro_f1")):
            assert found[label].startswith(f"{scores[metric]['value'] * 100:.1f} %")
        assert found["log-loss"].startswith(f"{scores['log_loss']['value']:.3f}")


def test_records_are_found_by_mouse(opened: Any, pages: dict[str, Path]) -> None:
    page, data = opened("vectors"), payload(pages["vectors"])
    shown, count = page.locator("#list .case"), page.locator("#count")
    for name in data["order"]:
        page.click(f".tabs button[data-name={name}]")
        expected = len(data["rows"]) if name == "all" else len(data["lists"][name])
        assert count.inner_text() == f"{min(expected, 25)} of {expected} records"
        assert shown.count() == min(expected, 25)
    while page.locator("#more").is_visible():
        page.click("#more")
    assert shown.count() == len(data["rows"])
    page.fill("#find", "ONERROR")
    evil = [text for text in data["texts"] if "onerror" in text]
    assert count.inner_text() == f"{min(25, len(evil))} of {len(evil)} records"
    assert page.locator("#list script, #list img").count() == 0
    page.select_option("#true", "1")
    page.select_option("#said", "0")
    said = [i for i, text in enumerate(data["texts"])
            if "onerror" in text and data["y"][i] == 1 and data["said"][0][i] == 0]  # fmt: skip
    assert shown.count() == len(said)
    page.fill("#find", "nothing has these words")
    assert count.inner_text() == "No record matches."
    page.click("#clear")
    assert shown.count() == 25
    page.fill("#find", data["ids"][3])
    assert shown.count() >= 1
    page.click("#clear")
    page.click(".tabs button[data-name=wrong]")
    shown.first.locator("summary").click()
    first = data["lists"]["wrong"][0]
    near = data["near"]["of"][str(first)]
    shown.first.locator(".near li").first.wait_for()
    assert shown.first.locator(".near li").count() == len(near)
    assert data["texts"][near[0][0]][:20].strip() in shown.first.locator(".near").inner_text()
    assert shown.first.locator(".chip.true").inner_text().split()[-1] in ("부정", "긍정")
    assert shown.first.locator(".chip [lang=ko]").count() > 0


def test_pairs_and_warnings_lead_to_records(opened: Any, pages: dict[str, Path]) -> None:
    page, data = opened("many"), payload(pages["many"])
    pair = page.locator(".pairs button").first
    true, said = int(pair.get_attribute("data-true")), int(pair.get_attribute("data-said"))
    pair.click()
    expected = [i for i in range(len(data["rows"]))
                if data["y"][i] == true and data["said"][0][i] == said]  # fmt: skip
    assert page.locator("#list .case").count() == len(expected) > 0
    assert str(len(expected)) in pair.locator(".num").inner_text()
    assert page.input_value("#true") == str(true)
    rows = page.locator("#table-classes tbody tr:visible")
    assert rows.count() == 15
    page.click("#all-classes")
    assert rows.count() == 77


def test_keyboard_alone(opened: Any) -> None:
    """Every control is reached by Tab, is seen to have the focus, and works by Enter or Space."""
    page = opened("vectors")
    reached: dict[str, bool] = {}
    for _ in range(400):
        page.keyboard.press("Tab")
        found = page.evaluate(
            """() => {
              const one = document.activeElement;
              if (one === document.body) return null;
              const ring = getComputedStyle(one).outlineStyle !== "none";
              return [one.id || one.dataset.name || one.textContent.slice(0, 30), ring];
            }"""
        )
        if found is None:
            break
        reached[found[0]] = found[1]
    assert {"find", "true", "said", "clear", "copy", "all"} <= set(reached)
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
    values = page.locator("#table-scores tbody tr").evaluate_all(
        "rows => rows.map(row => Number(row.cells[1].dataset.value))"
    )
    assert values == sorted(values)


def test_records_are_copied_as_tsv(opened: Any, pages: dict[str, Path]) -> None:
    page, data = opened("vectors"), payload(pages["vectors"])
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click(".tabs button[data-name=wrong]")
    page.click("#copy")
    listed = data["lists"]["wrong"]
    assert page.inner_text("#count") == f"Copied {len(listed)} records"
    lines = pasted(page).rstrip("\n").split("\n")
    assert lines[0].split("\t")[:3] == ["row", "id", "true"]
    assert [int(line.split("\t")[0]) for line in lines[1:]] == [data["rows"][i] for i in listed]
    assert {line.count("\t") for line in lines} == {lines[0].count("\t")}


def test_paper_has_everything(opened: Any, tmp_path: Path) -> None:
    page = opened("vectors")
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


@pytest.mark.slow
def test_twenty_thousand_records(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is no larger than promised, and finds one of its records."""
    random = np.random.default_rng(0)
    y = random.integers(2, size=20_000)
    words = np.array([f"말{i}" for i in range(3_000)])
    lines = ["id\tdocument\tlabel"]
    lines += [f"r{i}\t{i} {' '.join(words[random.integers(3_000, size=12)])}\t{one}"
              for i, one in enumerate(y.tolist())]  # fmt: skip
    corpus = tmp_path / "c.tsv"
    corpus.write_text("\n".join(lines) + "\n", "utf-8")
    monkeypatch.setattr(run_fixtures, "SOURCE", (file_sha256(corpus),))
    runs = []
    for number, strength in enumerate((0.5, 0.8, 1.0, 1.2)):
        score = (2 * y - 1) * strength + random.normal(size=len(y))
        sure = 1 / (1 + np.exp(-2 * score))
        runs.append(write_fake_run(tmp_path / f"run{number}", [str(one) for one in y],
                                   np.stack([1 - sure, sure], 1),
                                   [i % 5 for i in range(len(y))]))  # fmt: skip
    file = tmp_path / "many.html"
    write_report(compare(runs), file, texts=corpus)
    assert file.stat().st_size < 5_000_000
    with page_checks.opened(browser, file, ready=READY) as page:
        print(f"{file.stat().st_size:,} bytes, {page_checks.opening_times(page)}")
        page.click(".tabs button[data-name=all]")
        assert page.inner_text("#count") == "25 of 20,000 records"
        page.fill("#find", "id12345")
        assert page.inner_text("#count") == "1 of 1 records"
