"""The page of ``explore``: its layouts and neighbours against scikit-learn, and in a browser."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics.pairwise import cosine_similarity, euclidean_distances

import embedkit
from embedkit.cli.main import cli
from embedkit.dataset.inspection import atlas_line
from embedkit.dataset.store import read_manifest
from embedkit.encoding.encoder import Encoder
from embedkit.errors import OutputExistsError, UsageError
from embedkit.explore import layout
from embedkit.explore import page as page_
from embedkit.explore import tsne as tsne_
from embedkit.explore.colours import LABEL_COLOURS, RAMP
from embedkit.explore.columns import column_of
from embedkit.explore.layout import first_axes, kept_neighbours, lay_out, nearest_points
from embedkit.explore.page import explore
from embedkit.search.exact import unit_rows
from tests.page_checks import block as block_of
from tests.page_checks import (
    check_fit,
    findings_of_axe,
    json_block,
    opened,
    opening_times,
    pasted,
    planes,
    until,
)
from tests.store_fixtures import load_quickly, loading_quickly, tiny_model

HOSTILE = "<script>document.body.dataset.owned='yes'</script> <img src=x onerror=alert(1)> ]]> & '"
DECOMPOSED = "여행 home"  # as the file has it: composed
N = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A dataset of three layers with labels, numbers and dates, and its page."""
    folder = tmp_path_factory.mktemp("explore")
    random = np.random.default_rng(1)
    words = ["the", "movie", "was", "good", "bad", "bus", "home", "rain", "여행", "영화"]
    texts = [" ".join(random.choice(words, 6)) for _ in range(N - 2)] + [HOSTILE, DECOMPOSED]
    day = datetime.date(2024, 2, 27)
    lines = ["id\tdocument\tlabel\tprice\tday"]
    lines += [f"id{i}\t{text}\t{('x', 'y', '</style>')[i % 3]}\t{i * 1.5}\t"
              f"{day + datetime.timedelta(days=i)}" for i, text in enumerate(texts)]  # fmt: skip
    (folder / "c.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    with loading_quickly():
        embedkit.extract(folder / "c.tsv", out=folder / "data", model=str(tiny_model()),
                         layers="all", keep=["price", "day"], shard_rows=25)  # fmt: skip
        explore(folder / "data", out=folder / "page.html")
        yield folder


def float32(values: Any) -> Any:
    return np.asarray(values, np.float32)


def clusters(n: int = 150, width: int = 24, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    centres = random.normal(size=(6, width)) * 2
    return unit_rows(float32(centres[np.arange(n) % 6] + random.normal(size=(n, width))))


# layouts


def test_the_layout_keeps_no_fewer_neighbours_than_that_of_scikit_learn() -> None:
    unit = clusters()
    near = nearest_points(unit, layout.ATTRACTING)
    mine = kept_neighbours(near, lay_out(unit, near, method="tsne"))
    theirs = TSNE(init="pca", perplexity=15, max_iter=500, random_state=0).fit_transform(unit)
    flat = kept_neighbours(near, lay_out(unit, near, method="pca"))
    assert mine > kept_neighbours(near, theirs) - 0.03
    assert mine > flat + 0.1


@pytest.mark.parametrize("by", [tsne_._repulsion, tsne_._repulsion_by_grid])
def test_the_force_between_points_is_that_of_the_formula(by: Any) -> None:
    points = float32(np.random.default_rng(0).normal(size=(80, 2)) * 8)
    apart = points[:, None] - points
    weight = 1 / (1 + (apart**2).sum(axis=2))
    np.fill_diagonal(weight, 0)
    exact = (apart * (weight**2)[:, :, None]).sum(axis=1) / weight.sum()
    error = np.linalg.norm(by(points) - exact) / np.linalg.norm(exact)
    # interpolation is linear, between nodes that are a third apart
    assert error < (0.1 if by is tsne_._repulsion_by_grid else 1e-5)


def test_neighbours_attract_each_other() -> None:
    """Two triangles of neighbours whose points begin crosswise."""
    near = np.array([[1, 2], [0, 2], [0, 1], [4, 5], [3, 5], [3, 4]])
    start = float32([[0, 0], [9, 9], [0, 9], [9, 0], [1, 8], [8, 1]])
    distance = euclidean_distances(tsne_.tsne(near, init=start))
    assert distance[:3, :3].max() < distance[:3, 3:].min()
    assert distance[3:, 3:].max() < distance[3:, :3].min()


def test_points_move_less_when_a_layer_begins_where_the_one_before_ended() -> None:
    one = clusters()
    other = unit_rows(one + 0.1 * clusters(seed=1))
    nears = [nearest_points(unit, layout.ATTRACTING) for unit in (one, other)]
    first = lay_out(one, nears[0], method="tsne")
    follows = lay_out(other, nears[1], method="tsne", before=first)
    alone = layout.aligned(lay_out(other, nears[1], method="tsne"), first)
    moved = [np.linalg.norm(points - first, axis=1).mean() for points in (follows, alone)]
    assert moved[0] < 0.7 * moved[1]
    assert kept_neighbours(nears[1], follows) > 0.9 * kept_neighbours(nears[1], alone)


def test_alignment_turns_and_keeps_distances() -> None:
    random = np.random.default_rng(0)
    before = float32(random.normal(size=(50, 2)))
    turn = np.array([[0.6, -0.8], [-0.8, -0.6]])  # a mirror too
    points = float32(before @ turn * 3 + [5, 1])
    found = layout.aligned(points, before)
    centred = before - before.mean(axis=0)
    assert np.allclose(found - found.mean(axis=0), 3 * centred, atol=1e-4)
    assert np.allclose(found.mean(axis=0), before.mean(axis=0), atol=1e-5)


def test_the_axes_are_those_of_a_pca(folder: Path) -> None:
    vectors = embedkit.load(folder / "data").X
    wanted = PCA(2).fit_transform(vectors)
    points = first_axes(vectors)
    wanted *= np.sign((wanted * points).sum(axis=0))
    assert np.allclose(points, wanted, atol=1e-4)
    assert np.allclose(first_axes(np.ones((4, 3), np.float32)), 0, atol=1e-6)


def test_the_fraction_of_neighbours_that_a_layout_keeps() -> None:
    """Against distances in full; on a circle the order by cosine is that by distance."""
    unit = unit_rows(float32(np.random.default_rng(0).normal(size=(80, 12))))
    points = unit[:, :2]
    cosines = cosine_similarity(unit) - 9 * np.eye(80)
    distances = euclidean_distances(points) + 9 * np.eye(80)
    shared = [
        len(set(np.argsort(-cosines[i])[:10]) & set(np.argsort(distances[i])[:10])) / 10
        for i in range(80)
    ]
    assert kept_neighbours(nearest_points(unit, 15), points) == pytest.approx(np.mean(shared))
    angles = np.arange(80) ** 1.1 / 30
    circle = float32(np.column_stack([np.cos(angles), np.sin(angles)]))
    assert kept_neighbours(nearest_points(circle, 15), circle) == 1
    assert kept_neighbours(nearest_points(circle[:4], 15), circle[:4]) == 1


def test_copies_of_a_point_do_not_crowd_it_out_of_its_own_list() -> None:
    unit = np.repeat(clusters(4), 20, axis=0)
    near = nearest_points(unit, 3)
    assert (near.indices != np.arange(80)[:, None]).all()
    assert (near.indices // 20 == np.arange(80)[:, None] // 20).all()


def test_neighbours_of_many_points_come_from_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = np.random.default_rng(1).normal(size=(12, 80))
    unit = unit_rows(float32(clusters(3_000, 12) @ wide + 3))  # far from the origin, as they are
    exact = nearest_points(unit, 5)
    assert exact.recall == 1
    monkeypatch.setattr(layout, "_EXACT", 2_000)
    monkeypatch.setattr(layout, "_CELLS", 16)
    found = nearest_points(unit, 5)
    common = (found.indices[:, :, None] == exact.indices[:, None]).any(axis=2)
    assert found.recall == pytest.approx(common[found.probed].mean())
    assert 0.9 < found.recall <= 1
    assert np.array_equal(found.exact, exact.indices[found.probed])
    cosines = np.einsum("ij,ikj->ik", unit, unit[found.indices])
    assert np.allclose(found.cosines, cosines, atol=1e-5)


def test_umap_is_an_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(UsageError, match=r"pip install umap-learn\. Or use method='tsne'"):
        explore(folder / "data", out=folder / "umap.html", method="umap")


# colours and columns


def contrast(one: str, other: str) -> float:
    """Contrast of two colours such as ``#1f66b0``, from 1 to 21, as WCAG has it."""
    low, high = sorted(luminance(colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("theme", "paper"), [("light", "#ffffff"), ("dark", "#1a1e22")])
def test_colours_can_be_told_from_the_page(theme: str, paper: str) -> None:
    css = (Path(layout.__file__).parents[1] / "templates/page.css").read_text("utf-8")
    assert f"--card: {paper}" in css
    for colour in (*LABEL_COLOURS[theme], *RAMP[theme]):
        assert contrast(colour, paper) >= 3, colour
    assert len(set(LABEL_COLOURS[theme])) == 36
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)  # as WCAG has it
    assert contrast("#ffffff", "#000000") == pytest.approx(21)


def test_columns_are_numbers_dates_or_labels() -> None:
    numbers = column_of("n", [*range(9), None, "", "4.5"])
    assert numbers.kind == "number"
    assert np.array_equal(numbers.values, [*range(9), np.nan, np.nan, 4.5], equal_nan=True)
    dates = column_of("d", [f"2020-03-{i:02}" for i in range(1, 10)] + ["2020-03-01T12:00", None])
    assert dates.kind == "date"
    assert dates.values[9] - dates.values[0] == 0.5
    assert dates.values[0] == (datetime.date(2020, 3, 1) - datetime.date(1970, 1, 1)).days
    stored = [datetime.date(2021, 1, i) for i in range(1, 10)]
    assert column_of("d", stored).values[0] == 18_628
    many = column_of("l", [f"label {i}" for i in range(200) for _ in range(1 + (i == 7))])
    assert (many.kind, len(many.names), many.names[0], many.counts[0]) == (
        "label",
        200,
        "label 7",
        2,
    )
    assert [many.names[code] for code in many.codes[:3]] == ["label 0", "label 1", "label 2"]
    for few in (
        ["1", "2", None, "2"],
        [True, False, True],
        ["1", "x"] * 9,
        ["inf", *map(str, range(9))],
    ):
        assert column_of("few", few).kind == "label"
    assert column_of("few", ["1", "2", None, "2"]).names == ("2", "(none)", "1")


def test_points_without_a_label_count_for_nothing() -> None:
    """Half of the points have no label; the others lie with points of their own label."""
    unit = clusters(60)
    given = [None if i % 2 else "xyz"[i % 3] for i in range(60)]
    label = column_of("label", given)
    assert label.names.index("(none)") == label.missing
    near = nearest_points(unit, 59)
    cosines = cosine_similarity(unit) - 9 * np.eye(60)
    first = np.argsort(-cosines, axis=1)[:, :10]
    pairs = [given[i] == given[j] for i in range(60) for j in first[i] if given[i] and given[j]]
    assert page_._same_label(near, label) == pytest.approx(np.mean(pairs))
    assert page_._chance(label) == pytest.approx(9 / 29)
    assert np.isnan(page_._same_label(near, column_of("label", [None, ""] * 30)))


# the page as a file


def exact_neighbours(data: Any, k: int) -> Any:
    return np.argsort(-(cosine_similarity(data.X) - 9 * np.eye(len(data))), axis=1)[:, :k]


def test_the_file_holds_layouts_neighbours_and_values(folder: Path) -> None:
    page = folder / "page.html"
    content, records = json_block(page, "content"), json_block(page, "records")
    data = embedkit.load(folder / "data", "mean_1")
    rows = np.array(records["rows"])
    assert sorted(rows) == data.row.tolist()
    place = {int(row): i for i, row in enumerate(data.row)}
    order = [place[int(row)] for row in rows]
    assert records["ids"] == [data.ids[i] for i in order]
    assert json_block(page, "texts") == [data.text[i] for i in order]
    assert [view["name"] for view in content["views"]] == ["mean_0", "mean_1", "mean_2"]
    codes = planes(block_of(page, "near-1"), 3).reshape(N, -1)
    near = np.arange(N)[:, None] + ((codes >> 1) ^ -(codes & 1))
    cosines = cosine_similarity(data.X)
    view = content["views"][1]
    steps = np.frombuffer(block_of(page, "cosines-1"), np.uint8).reshape(N, -1)
    for i, row in enumerate(order):
        found = cosines[row, [order[j] for j in near[i]]]
        assert np.allclose(found, np.sort(cosines[row])[::-1][1:11], atol=1e-5)
        assert np.allclose(found, view["least"] + view["step"] * steps[i], atol=view["step"])
    label = embedkit.load(folder / "data").y
    wanted = np.mean(label[exact_neighbours(data, 10)] == label[:, None])
    assert view["same"] == pytest.approx(wanted, abs=0.01)  # equal texts stand in no order
    assert content["chance"] == pytest.approx(19 / 59)
    price = next(i for i, c in enumerate(content["columns"]) if c["name"] == "price")
    assert content["columns"][price]["kind"] == "number"
    values = np.frombuffer(block_of(page, f"column-{price}"), np.float64)
    assert np.allclose(values, [1.5 * place[int(row)] for row in rows])


def test_the_page_loads_nothing_and_holds_no_markup_of_the_corpus(folder: Path) -> None:
    page = (folder / "page.html").read_text("utf-8")
    assert "default-src 'none'" in page
    assert "http://www.w3.org/2000/svg" in page
    assert page.replace("http://www.w3.org/2000/svg", "").count("http") == 1  # http-equiv
    assert page.count("</style>") == 1
    assert "onerror" not in page


def test_the_same_page_twice(folder: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        found = explore(folder / "data", out=tmp_path / f"{name}.html", limit=40, seed=seed)
        assert (found.points, found.records) == (40, N)
    a, b, c = ((tmp_path / f"{n}.html").read_bytes() for n in "abc")
    assert a == b != c


def test_pages_that_cannot_be_made(folder: Path, tmp_path: Path) -> None:
    data, out = folder / "data", tmp_path / "m.html"
    with pytest.raises(UsageError, match="2 records are too few; expected 3 or more"):
        explore(data, out=out, limit=2)
    with pytest.raises(UsageError, match="method='trimap': expected tsne, umap, pca"):
        explore(data, out=out, method="trimap")
    with pytest.raises(UsageError, match="limit=0: expected 1 or more"):
        explore(data, out=out, limit=0)
    with pytest.raises(UsageError, match=r"color='shape': .* has row, id, text, label"):
        explore(data, out=out, color="shape")
    with pytest.raises(UsageError, match=r"layers='mean:0..1': .* has no view mean_mean_0to1; it"):
        explore(data, out=out, layers="mean:0..1")
    with pytest.raises(UsageError, match=r"out='.*m.png': expected a name ending in .html"):
        explore(data, out=tmp_path / "m.png")
    with pytest.raises(OutputExistsError, match=r"page.html exists. Choose another name"):
        explore(data, out=folder / "page.html")


def test_the_command(folder: Path, tmp_path: Path) -> None:
    def run(*arguments: Any) -> Any:
        return CliRunner().invoke(cli, [str(a) for a in arguments], standalone_mode=False)

    data = folder / "data"
    result = run("explore", data, "--out", tmp_path / "m.html", "--layers", "0,-1", "--progress")
    content = json_block(tmp_path / "m.html", "content")
    assert f"{N} records, 2 views" in result.stdout
    assert f"keeps {content['views'][1]['kept']:.0%} of the ten nearest" in result.stdout
    assert "laying out: 1,170 of 1,170" in result.stderr
    line = atlas_line(data, read_manifest(data))
    assert line.endswith("/sentences/*.parquet --text text --vector mean_2")
    assert line in result.stdout
    assert line in run("info", data).output


# in a browser


def listed(page: Any, count: int) -> None:
    """Wait until so many texts are found."""
    wanted = f"{count} of {N} texts" if count else "No text matches."
    until(page, "document.getElementById('count').textContent", lambda text: text == wanted)


def screen(page: Any, file: Path, layer: int) -> tuple[Any, list[int]]:
    """Where the points of a layer are on the screen, and their rows."""
    until(page, "document.getElementById('map').dataset.layer", lambda found: found == str(layer))
    scale, move_x, move_y, height = map(float, page.get_attribute("#map", "data-at").split())
    cells = planes(block_of(file, f"points-{layer}"), 2).reshape(2, -1) / 65_535
    box = page.locator("#map").bounding_box()
    x = box["x"] + cells[0] * scale + move_x
    y = box["y"] + height - (cells[1] * scale + move_y)
    return np.column_stack([x, y]), json_block(file, "records")["rows"]


def alone(points: Any) -> int:
    """The point with most room around it."""
    distance = euclidean_distances(points) + 1e9 * np.eye(len(points))
    return int(distance.min(axis=1).argmax())


@pytest.mark.parametrize(("width", "scheme"), [(1_400, "light"), (800, "dark"), (390, "light")])
def test_the_page_fits_the_screen(browser: Any, folder: Path, width: int, scheme: str) -> None:
    """Nothing is wider, and axe finds nothing."""
    file = folder / "page.html"
    with opened(browser, file, width=width, scheme=scheme, bypass_csp=True) as page:
        page.click("#list button >> nth=0")
        page.wait_for_selector("#chosen .found button")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        ink = page.evaluate("getComputedStyle(document.body).color")
        assert (int(ink[4:].split(",")[0]) > 128) == (scheme == "dark")
        assert findings_of_axe(page) == []


def test_the_page_fits_every_width_in_both_themes(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "page.html") as page:
        page.click("#list button >> nth=0")
        page.wait_for_selector("#chosen .found button")
        check_fit(page)


@pytest.mark.slow
def test_axe_finds_nothing_at_any_width(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "page.html", bypass_csp=True) as page:
        page.click("#list button >> nth=0")
        page.wait_for_selector("#chosen .found button")
        check_fit(page, axe=True)


def test_every_control_by_mouse(browser: Any, folder: Path) -> None:
    file = folder / "page.html"
    data = embedkit.load(folder / "data", "mean_2")
    text_of = dict(zip(data.row.tolist(), data.text, strict=True))
    with opened(browser, file) as page:
        listed(page, N)
        content = json_block(file, "content")
        view = content["views"][2]
        title = page.inner_text("#heading").replace("\xa0", " ")
        for fraction in (view["same"], view["kept"]):
            assert f" {int(100 * fraction + 0.5)} %" in title

        # a click chooses a point and shows its nearest neighbours
        points, rows = screen(page, file, 2)
        at = alone(points)
        page.mouse.move(*points[at])
        assert text_of[rows[at]][:20] in page.inner_text("#hover")
        page.mouse.click(*points[at])
        page.wait_for_selector("#chosen .found button")
        assert text_of[rows[at]] in page.inner_text("#chosen .whole")
        near = page.locator("#chosen .found button")
        chosen = data.row.tolist().index(rows[at])
        cosines = cosine_similarity(data.X)[chosen]
        best = np.sort(np.delete(cosines, chosen))[::-1][:10]
        shown = [data.row.tolist().index(int(row)) for row in near.evaluate_all(
            "all => all.map(one => one.dataset.row)")]  # fmt: skip
        assert np.allclose(cosines[shown], best, atol=1e-5)
        assert f"cosine {best[0]:.3f}"[:11] in near.first.inner_text()
        near.first.click()
        first = data.text[shown[0]]
        until(page, "document.querySelector('#chosen .whole').textContent", lambda t: t == first)

        # search finds texts as text, ids and labels, composed or not
        page.fill("#find", "ONERROR")
        listed(page, 1)
        assert HOSTILE in page.inner_text("#list")
        assert page.evaluate("document.body.dataset.owned") is None
        page.fill("#find", "\u110b\u1167\u1112\u1162\u11bc home")  # 여행, decomposed
        listed(page, sum("여행 home" in text for text in data.text))
        page.fill("#find", "id17")
        listed(page, 1)
        page.fill("#find", "</style>")
        listed(page, N // 3)
        page.click("#clear")
        listed(page, N)

        # a label is switched off, and shown alone
        page.click("#legend .name >> nth=0")
        listed(page, 40)
        page.click("#legend .only >> nth=1")
        listed(page, 20)
        page.click("#legend .only >> nth=1")
        listed(page, N)
        assert page.inner_text("#legend .num >> nth=0") == "20"

        # a box and a lasso around everything and around nothing
        box = page.locator("#map").bounding_box()
        left, top = box["x"] + 2, box["y"] + 2
        right, bottom = left + box["width"] - 4, top + box["height"] - 4
        for drag in ("box", "lasso"):
            page.click(f"button[data-drag={drag}]")
            page.mouse.move(left, top)
            page.mouse.down()
            for x, y in ((right, top), (right, bottom), (left, bottom)) if drag == "lasso" else (
                (right, bottom),):  # fmt: skip
                page.mouse.move(x, y)
            page.mouse.up()
            listed(page, N)
            around = points[at]
            page.mouse.move(*(around - 6))
            page.mouse.down()
            page.mouse.move(around[0] + 6, around[1] - 6)
            page.mouse.move(*(around + 6))
            page.mouse.up()
            inside = np.abs(points - around).max(axis=1) < 6
            until(page, "document.getElementById('count').textContent",
                  lambda text: not text.startswith(f"{N} of"))  # fmt: skip
            if drag == "box":
                listed(page, int(inside.sum()))
        page.click("button[data-drag=move]")

        # zoomed in, what is in sight is less than all
        page.click("#clear")
        for _ in range(4):
            page.click("#closer")
        page.click("#sight")
        seen = until(page, "document.getElementById('count').textContent",
                     lambda text: not text.startswith(f"{N} of"))  # fmt: skip
        page.click("#farther")
        page.click("#home")
        page.click("#sight")
        listed(page, N)
        assert seen != page.inner_text("#count")


def test_layers_and_colours(browser: Any, folder: Path) -> None:
    file = folder / "page.html"
    content = json_block(file, "content")
    with opened(browser, file) as page:
        page.click("#list button >> nth=0")
        page.locator("#layer").fill("0")
        points, rows = screen(page, file, 0)
        assert page.inner_text("#heading").startswith("mean_0: ")
        until(page, "document.querySelector('#chosen h3').textContent",
              lambda text: text.endswith("mean_0"))  # fmt: skip
        page.mouse.move(*points[(at := alone(points))])
        assert f"row {rows[at]} " in page.inner_text("#hover")
        page.locator(".hit").nth(1).click()
        until(page, "document.getElementById('heading').textContent",
              lambda text: text.startswith("mean_1"))  # fmt: skip
        assert page.input_value("#layer") == "1"
        page.click("#play")
        assert page.inner_text("#play") == "Stop"
        until(page, "document.getElementById('heading').textContent",
              lambda text: text.startswith("mean_2"))  # fmt: skip
        until(page, "document.getElementById('play').textContent", lambda text: text == "Play")

        kinds = {c["name"]: (str(i), c["kind"]) for i, c in enumerate(content["columns"])}
        assert (kinds["price"][1], kinds["day"][1]) == ("number", "date")
        page.select_option("#color", kinds["price"][0])
        page.wait_for_selector("#legend .ramp")
        assert page.locator("#legend .ends span").all_inner_texts() == ["0", "44.25", "88.5"]
        page.select_option("#color", kinds["day"][0])
        until(page, "document.querySelector('#legend .ends').textContent",
              lambda text: text[:10] == "2024-02-27" and text[-10:] == "2024-04-26")  # fmt: skip


def test_keyboard_alone(browser: Any, folder: Path) -> None:
    """Every control is reached by Tab, is seen to have the focus, and works by keys."""
    file = folder / "page.html"
    with opened(browser, file) as page:
        reached: dict[str, bool] = {}
        for _ in range(120):
            page.keyboard.press("Tab")
            found = page.evaluate("""() => { const one = document.activeElement;
                return [one.id || one.dataset.drag || one.className || one.tagName,
                        getComputedStyle(one).outlineStyle !== "none"]; }""")
            reached[found[0]] = found[1]
        wanted = {"layer", "play", "color", "move", "box", "lasso", "closer", "farther", "home",
                  "sight", "map", "name", "only", "find", "clear", "copy"}  # fmt: skip
        assert wanted <= set(reached)
        assert all(reached[name] for name in wanted)
        page.focus("#map")
        page.keyboard.press("Enter")
        page.wait_for_selector("#chosen .found button")
        points, rows = screen(page, file, 2)
        box = page.locator("#map").bounding_box()
        middle = np.array([box["x"] + box["width"] / 2, box["y"] + box["height"] / 2])
        nearest = rows[int(np.linalg.norm(points - middle, axis=1).argmin())]
        assert f"row {nearest} " in page.inner_text("#chosen .soft >> nth=0") + " "
        before = page.get_attribute("#map", "data-at")
        script = "document.getElementById('map').dataset.at"
        for key in ("+", "ArrowLeft", "ArrowUp"):
            page.keyboard.press(key)
            seen = {before}
            before = until(page, script, lambda found, seen=seen: found not in seen)  # type: ignore[misc]
        page.keyboard.press("0")
        page.keyboard.press("-")
        page.focus("#layer")
        page.keyboard.press("Home")
        until(page, "document.getElementById('heading').textContent",
              lambda text: text.startswith("mean_0"))  # fmt: skip
        page.focus("#list button >> nth=2")
        page.keyboard.press("Enter")
        third = page.inner_text("#list .text >> nth=2")
        until(page, "document.querySelector('#chosen .whole').textContent", lambda t: t == third)


def test_what_is_found_is_copied_as_tsv(browser: Any, folder: Path) -> None:
    data = embedkit.load(folder / "data")
    with opened(browser, folder / "page.html", permissions=["clipboard-read", "clipboard-write"]
                ) as page:  # fmt: skip
        page.fill("#find", "여행")
        wanted = [i for i, text in enumerate(data.text) if "여행" in text]
        listed(page, len(wanted))
        page.click("#copy")
        assert page.inner_text("#count") == f"Copied {len(wanted)} texts"
        lines = [line.split("\t") for line in pasted(page).rstrip("\n").split("\n")]
    head = lines[0]
    assert head[:3] == ["row", "id", "label"]
    assert head[-1] == "text"
    assert [line[-1] for line in lines[1:]] == [data.text[i] for i in wanted]
    price = head.index("price")
    assert [float(line[price]) for line in lines[1:]] == [1.5 * i for i in wanted]


def test_the_page_works_on_a_phone(browser: Any, folder: Path) -> None:
    file = folder / "page.html"
    with opened(browser, file, width=390, has_touch=True, is_mobile=True) as page:
        page.locator("#map").scroll_into_view_if_needed()
        points, rows = screen(page, file, 2)
        at = alone(points)
        page.touchscreen.tap(*points[at])
        page.wait_for_selector("#chosen .found button")
        assert f"row {rows[at]} " in page.inner_text("#chosen .soft >> nth=0") + " "
        box = page.locator("#map").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        before = float(page.get_attribute("#map", "data-at").split()[0])
        hand = page.context.new_cdp_session(page)
        for kind, far in (
            ("Start", 15),
            ("Move", 25),
            ("Move", 40),
            ("End", 0),
        ):
            touches = [{"x": x + side * far, "y": y, "id": side + 1} for side in (-1, 1)]
            hand.send("Input.dispatchTouchEvent",
                      {"type": f"touch{kind}", "touchPoints": touches if far else []})  # fmt: skip
        until(page, "Number(document.getElementById('map').dataset.at.split(' ')[0])",
              lambda scale: scale > 1.5 * before)  # fmt: skip


def test_paper_has_no_controls(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "page.html", scheme="dark") as page:
        page.emulate_media(media="print", color_scheme="light")
        for hidden in ("#find", "#layer", "#play", "#closer", "#legend .only >> nth=0"):
            assert not page.locator(hidden).is_visible()
        assert page.locator("#map").is_visible()
        assert page.locator("#legend .name").count() == 3


@pytest.mark.slow
def test_a_hundred_thousand_points_of_thirteen_layers(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is no larger than promised, is painted first, then finds and answers the pointer.

    Places, neighbours and cosines are random, which packs worst.
    """
    count, layers = 100_000, 13
    random = np.random.default_rng(0)
    corpus = ["id\tdocument\tlabel"]
    corpus += [f"id{i}\tthe movie {i} was good and bad , a bus home\t{i % 40}" for i in range(3)]
    (tmp_path / "c.tsv").write_text("\n".join(corpus) + "\n", "utf-8")
    monkeypatch.setattr(Encoder, "load", load_quickly)
    embedkit.extract(tmp_path / "c.tsv", out=tmp_path / "data", model=str(tiny_model()))
    data = embedkit.load(tmp_path / "data")
    texts = [f"text number {i} of many " + "영화가 정말 재미있었다 " * 3 for i in range(count)]
    values: dict[str, list[Any]] = {
        "row": list(range(count)),
        "id": [str(i) for i in range(count)],
        "text": texts,
    }
    monkeypatch.setattr(
        data.reader,
        "pick",
        lambda indices, names: {name: [values[name][i] for i in indices] for name in names},
    )
    drawn = [
        page_._Drawn(
            page_.ViewLayout(f"mean_{layer}", 0.5, 0.5, 0.99),
            float32(random.normal(size=(count, 2))), random.integers(0, count, (count, 5)),
            float32(random.random((count, 5))),
        )
        for layer in range(layers)
    ]  # fmt: skip
    content = {"dataset": "many", "model": "m", "method": "tsne", "total": count, "count": count,
               "start": layers - 1, "colors": LABEL_COLOURS, "ramp": RAMP, "listed": 5,
               "chance": 0.5, "first": "label"}  # fmt: skip
    columns = [column_of("label", [str(i % 40) for i in range(count)]),
               column_of("row", list(range(count)))]  # fmt: skip
    file = tmp_path / "many.html"
    file.write_text(page_._page(data, np.arange(count), content, columns, drawn), "utf-8")
    assert file.stat().st_size < 40_000_000
    with opened(browser, file) as page:
        points = page.evaluate("Number(document.body.dataset.paintedAt)")
        print(f"{file.stat().st_size:,} bytes, {opening_times(page)}, points at {points}")
        assert points > 0
        page.fill("#find", "number 77777 ")
        until(page, "document.getElementById('count').textContent",
              lambda text: text == "1 of 100,000 texts")  # fmt: skip
        assert "row 77777 " in page.inner_text("#list")
        page.click("#clear")
        page.locator("#layer").fill("3")
        until(page, "document.getElementById('map').dataset.layer", lambda layer: layer == "3")
        box = page.locator("#map").bounding_box()
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_selector("#chosen .found button")
        assert page.locator("#chosen .found button").count() == 5
