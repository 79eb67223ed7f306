"""Maps: the projection against scikit-learn, and the page in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import cosine_similarity, euclidean_distances

import embedkit
from embedkit.cli.main import cli
from embedkit.dataset.inspection import atlas_line
from embedkit.dataset.store import read_manifest
from embedkit.encoding.encoder import Encoder
from embedkit.errors import OutputExistsError, UsageError
from embedkit.projection import _page, draw_map, export_projector, kept_neighbours, project
from tests.store_fixtures import load_quickly, tiny_model, write_tsv

HOSTILE = "<script>document.body.dataset.owned='yes'</script> <img src=x onerror=alert(1)> ]]> & '"
N = 60


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Sixty texts with three labels, one of which is hostile, as is one text."""
    folder = tmp_path_factory.mktemp("map")
    random = np.random.default_rng(1)
    words = ["the", "movie", "was", "good", "bad", "bus", "home", "rain", "여행", "영화"]
    rows = [(f"id{i}", " ".join(random.choice(words, 6)), ("x", "y", "</style>")[i % 3])
            for i in range(N - 1)]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encoder, "load", load_quickly)
        corpus = write_tsv(folder / "c.tsv", [*rows, ("bad", HOSTILE, "x")])
        embedkit.extract(corpus, out=folder / "data", model=str(tiny_model()), shard_rows=25)
        yield folder / "data"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """An installed Chromium."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
                 None)  # fmt: skip
    if found is None:
        pytest.skip("no Chromium is installed")
    sync = pytest.importorskip("playwright.sync_api")
    with sync.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield running
        running.close()


def test_the_axes_are_those_of_a_pca(dataset: Path) -> None:
    data = embedkit.load(dataset)
    indices = np.arange(5, N)
    points, explained = project(data, indices)
    pca = PCA(2).fit(data.X[indices])
    wanted = pca.transform(data.X[indices])
    wanted *= np.sign((wanted * points).sum(axis=0))
    assert np.allclose(points, wanted, atol=1e-4)
    assert explained == pytest.approx(tuple(pca.explained_variance_ratio_), abs=1e-5)


def test_the_share_of_neighbours_that_a_map_keeps() -> None:
    """Against distances in full; on a circle the order by cosine is that by distance."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(80, 12)).astype(np.float32)
    points = vectors[:, :2]
    cosines = cosine_similarity(vectors) - 9 * np.eye(80)
    distances = euclidean_distances(points) + 9 * np.eye(80)
    shared = [
        len(set(np.argsort(-cosines[i])[:10]) & set(np.argsort(distances[i])[:10])) / 10
        for i in range(80)
    ]
    assert kept_neighbours(vectors, points) == pytest.approx(np.mean(shared))
    some = kept_neighbours(vectors, points, sample=40)
    chosen = np.random.default_rng(0).choice(80, 40, replace=False)
    assert some == pytest.approx(np.mean(np.array(shared)[chosen]))
    angles = np.arange(80, dtype=np.float32) ** 1.1 / 30
    circle = np.column_stack([np.cos(angles), np.sin(angles)])
    assert kept_neighbours(3 * circle, circle) == 1
    assert kept_neighbours(circle[:4], circle[:4]) == 1


def test_the_page_says_what_the_map_keeps(dataset: Path, tmp_path: Path) -> None:
    found = draw_map(dataset, out=tmp_path / "m")
    assert 0 < found.kept <= 1
    html = found.html.read_text("utf-8")
    assert f"keeps {found.kept:.0%} of nearest neighbours" in html


def test_a_view_without_variance_is_a_point(dataset: Path) -> None:
    data = embedkit.load(dataset)
    points, explained = project(data, np.zeros(4, np.int64))
    assert np.allclose(points, 0, atol=1e-6)
    assert explained == (0, 0)


def test_the_same_map_twice(dataset: Path, tmp_path: Path) -> None:
    first = draw_map(dataset, out=tmp_path / "a", limit=40, seed=3)
    draw_map(dataset, out=tmp_path / "b", limit=40, seed=3)
    draw_map(dataset, out=tmp_path / "c", limit=40, seed=4)
    a, b, c = ((tmp_path / f"{n}.html").read_bytes() for n in "abc")
    assert a == b != c
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (first.points, first.records) == (40, N)
    assert sum(n for _, n in first.labels) == 40
    with pytest.raises(OutputExistsError, match=r"a.html exists already; pass overwrite=True"):
        draw_map(dataset, out=tmp_path / "a")


def test_an_ending_of_the_name_is_not_doubled(dataset: Path, tmp_path: Path) -> None:
    found = draw_map(dataset, out=tmp_path / "m.html")
    assert (found.html, found.png) == (tmp_path / "m.html", tmp_path / "m.png")


def test_the_page_loads_nothing_and_holds_no_markup_of_the_corpus(
    dataset: Path, tmp_path: Path
) -> None:
    draw_map(dataset, out=tmp_path / "m")
    page = (tmp_path / "m.html").read_text("utf-8")
    assert "default-src 'none'" in page
    assert "http://" not in page
    assert "https://" not in page
    assert page.count("<script") == 2
    assert page.count("</style>") == 1
    assert "<img" not in page


def test_many_labels_share_a_colour(dataset: Path, tmp_path: Path) -> None:
    found = draw_map(dataset, out=tmp_path / "m", color="id")
    assert len(found.labels) == 17
    assert found.labels[-1] == ("44 others", 44)
    with pytest.raises(UsageError, match=r"color='shape': .* has row, id, text, label"):
        draw_map(dataset, out=tmp_path / "n", color="shape")


def test_fonts_newer_than_the_list_of_fonts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import font_manager

    from embedkit.runs import figures

    old = SimpleNamespace(name="DejaVu Sans")
    manager = SimpleNamespace(ttflist=[old])
    manager.addfont = lambda file: manager.ttflist.append(SimpleNamespace(name=file.stem))
    monkeypatch.setattr(font_manager, "fontManager", manager)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: ["/a/b.ttf", "/c/NanumGothic.ttf"])
    assert figures._known_fonts.__wrapped__() == {"DejaVu Sans", "NanumGothic"}
    assert figures._known_fonts.__wrapped__() == {"DejaVu Sans", "NanumGothic"}
    assert len(manager.ttflist) == 2


def test_maps_that_cannot_be_drawn(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="2 records are too few for a map"):
        draw_map(dataset, out=tmp_path / "m", limit=2)
    with pytest.raises(UsageError, match="method='tsne': expected pca, umap"):
        draw_map(dataset, out=tmp_path / "m", method="tsne")
    with pytest.raises(UsageError, match="limit=0: expected 1 or more"):
        draw_map(dataset, out=tmp_path / "m", limit=0)


def test_umap_is_an_extra(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(UsageError, match="pip install umap-learn"):
        project(embedkit.load(dataset), np.arange(N), method="umap")


def test_files_of_the_projector(dataset: Path, tmp_path: Path) -> None:
    count = export_projector(dataset, tmp_path / "logs")
    data = embedkit.load(dataset)
    vectors = np.loadtxt(tmp_path / "logs/vectors.tsv", delimiter="\t")
    assert np.allclose(vectors, data.X, rtol=1e-5, atol=1e-6)
    lines = (tmp_path / "logs/metadata.tsv").read_text("utf-8").split("\n")
    assert lines[0] == "row\tid\ttext\tlabel"
    assert len(lines) == count + 2
    assert lines[1].split("\t") == [str(data.row[0]), data.ids[0], data.text[0], data.y[0]]
    assert 'tensor_path: "vectors.tsv"' in (tmp_path / "logs/projector_config.pbtxt").read_text()
    with pytest.raises(OutputExistsError, match="logs exists already"):
        export_projector(dataset, tmp_path / "logs")


def test_the_command_and_other_viewers(dataset: Path, tmp_path: Path) -> None:
    def run(*arguments: Any) -> Any:
        return CliRunner().invoke(cli, [str(a) for a in arguments], standalone_mode=False)

    shown = run("map", dataset, "--out", tmp_path / "m").output
    assert f"{N} records, mean_2 by PCA; its axes explain" in shown
    assert run("map", dataset, "--projector", tmp_path / "p").exit_code == 0
    line = atlas_line(dataset, read_manifest(dataset))
    assert line.endswith("/sentences/*.parquet --text text --vector mean_2")
    assert line in run("info", dataset).output


# in a browser


def opened(browser: Any, file: Path) -> tuple[Any, list[str]]:
    """The page of a map, drawn, and everything that the browser complained of or asked for."""
    page = browser.new_page()
    if page.viewport_size["width"] > 1000:  # no phone
        page.set_viewport_size({"width": 1000, "height": 700})
    heard: list[str] = []
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("console", lambda message: heard.append(message.text))
    page.on("request", lambda r: heard.append(r.url) if not r.url.startswith("file:") else None)
    page.goto(file.as_uri())
    page.wait_for_selector("body[data-ready=yes]")
    return page, heard


def until(page: Any, script: str, holds: Callable[[Any], bool]) -> Any:
    """The value of a script once it is as it should be; the page allows no ``eval`` of its own."""
    for _ in range(2_400):
        if holds(value := page.evaluate(script)):
            return value
        page.wait_for_timeout(25)
    raise AssertionError(f"{script}: {value}")


def listed(page: Any, count: int) -> None:
    """Wait until so many texts are listed."""
    until(page, "document.querySelectorAll('#chosen li').length", lambda found: found == count)


def settled(page: Any) -> None:
    """Wait until the drawing has the proportions of its place."""
    sizes = """() => { const c = document.querySelector('canvas');
        return [[c.width, c.height], [c.clientWidth, c.clientHeight]]; }"""
    until(page, sizes, lambda found: found[0] == found[1])


def test_the_page_works_in_a_browser(browser: Any, dataset: Path, tmp_path: Path) -> None:
    draw_map(dataset, out=tmp_path / "m")
    page, heard = opened(browser, tmp_path / "m.html")
    assert "60 of 60 records" in page.inner_text("#status")

    # every colour of the legend is on the canvas
    inked = """() => { const c = document.querySelector('canvas');
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 100; return n; }"""
    assert page.evaluate(inked) > N

    # the search box lists the hostile text as text
    page.fill("#find", "ONERROR")
    listed(page, 1)
    assert HOSTILE in page.inner_text("#chosen li")
    assert page.evaluate("document.body.dataset.owned") is None
    page.fill("#find", "")
    listed(page, 0)

    # a label that is switched off is not counted
    page.click("#legend button >> nth=0")
    assert page.inner_text("#status").startswith("39 of 60 points")
    page.click("#legend button >> nth=0")

    # a box around everything chooses everything
    box = page.locator("canvas").bounding_box()
    page.click("#box")
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] - 2)
    page.mouse.up()
    listed(page, 60)
    page.click("#box")
    page.click("#home")

    # somewhere on a fine grid the pointer meets a point and its text is shown
    data = embedkit.load(dataset)
    seen = ""
    for x in range(10, int(box["width"]), 12):
        for y in range(10, int(box["height"]), 60):
            page.mouse.move(box["x"] + x, box["y"] + y)
            if page.is_visible("#hover"):
                seen = page.inner_text("#hover")
                break
        if seen:
            break
    assert any(text in seen for text in data.text)

    dark = page.evaluate("document.documentElement.classList.contains('dark')")
    page.click("#theme")
    assert page.evaluate("document.documentElement.classList.contains('dark')") is not dark
    page.mouse.wheel(0, -300)
    assert heard == []
    page.close()


def test_the_page_works_on_a_phone(browser: Any, dataset: Path, tmp_path: Path) -> None:
    draw_map(dataset, out=tmp_path / "m")
    phone = browser.new_context(viewport={"width": 375, "height": 700}, has_touch=True,
                                is_mobile=True)  # fmt: skip
    page, heard = opened(phone, tmp_path / "m.html")
    assert page.evaluate("document.documentElement.scrollWidth") == 375

    # a tap shows the text of the point under the finger, inside of the page
    box = page.locator("canvas").bounding_box()
    shown = 0
    for y in range(20, int(box["height"]), 40):
        for x in range(20, 375, 60):
            page.touchscreen.tap(box["x"] + x, box["y"] + y)
            if page.is_visible("#hover"):
                shown += 1
                text = page.locator("#hover").bounding_box()
                assert text["x"] >= 0
                assert text["x"] + text["width"] <= 375
                assert text["y"] + text["height"] <= box["y"] + box["height"]
    assert shown > 3

    # what is found is listed in sight, and the drawing keeps its proportions
    page.fill("#find", "movie")
    page.wait_for_selector("#chosen li")
    page.wait_for_selector("#hover", state="hidden")
    until(page, "document.querySelector('aside').clientHeight", lambda height: height > 100)
    settled(page)

    # two fingers that come together make it smaller
    page.fill("#find", "")
    listed(page, 0)
    reach = """() => { const c = document.querySelector('canvas'), h = c.height;
        const d = c.getContext('2d').getImageData(0, 0, c.width, h).data;
        let top = h, end = 0;
        for (let i = 3; i < d.length; i += 4) if (d[i] > 100) {
            const y = Math.floor(i / 4 / c.width); top = Math.min(top, y); end = Math.max(end, y); }
        return end - top; }"""
    settled(page)  # the list takes less room than before
    before = until(page, reach, lambda drawn: drawn > 100)
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    hand = page.context.new_cdp_session(page)
    for kind, far in (("touchStart", 30), ("touchMove", 20), ("touchMove", 15), ("touchEnd", 0)):
        points = [{"x": x + side * far, "y": y, "id": side + 1} for side in (-1, 1)]
        hand.send("Input.dispatchTouchEvent",
                  {"type": kind, "touchPoints": points if far else []})  # fmt: skip
    until(page, reach, lambda drawn: 0 < drawn < 0.7 * before)
    assert [note for note in heard if "getImageData" not in note] == []
    phone.close()


def test_a_hundred_thousand_points(browser: Any, tmp_path: Path) -> None:
    """The page opens, draws, finds and answers the pointer with the most points it is made for."""
    count = 100_000
    random = np.random.default_rng(0)
    points = random.normal(size=(count, 2)).astype(np.float32)

    values: dict[str, list[Any]] = {
              "row": list(range(count)), "id": [str(i) for i in range(count)],
              "text": [f"text number {i} of many" for i in range(count)]}  # fmt: skip
    number = np.arange(count) % 3
    labels = [("a", "#f00"), ("b", "#0f0"), ("c", "#00f")]
    html = _page(values, count, points, labels, number, "many", 0.5)
    (tmp_path / "many.html").write_text(html, "utf-8")
    page, heard = opened(browser, tmp_path / "many.html")
    page.fill("#find", "number 77777 ")
    listed(page, 1)
    assert "row 77777" in page.inner_text("#chosen li")
    assert page.inner_text("#status").startswith("1 of 100,000 points")
    page.fill("#find", "")
    listed(page, 0)
    box = page.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#hover:visible")
    assert heard == []
    page.close()
