"""The page of ``explore``: its layouts and neighbours against scikit-learn, and in a browser."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openTSNE import TSNEEmbedding
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics.pairwise import cosine_similarity, euclidean_distances

import embedkit
from embedkit.drawing import SHAPES
from embedkit.errors import OutputExistsError, UsageError
from embedkit.maps import map as layout
from embedkit.search.exact import unit_rows
from tests.page_checks import block as block_of
from tests.page_checks import check_fit, copied, json_block, opened, planes, tab_stops, until
from tests.processes import invoke
from tests.store_fixtures import extract_tiny

HOSTILE = "<script>document.body.dataset.owned='yes'</script> <img src=x onerror=alert(1)> ]]> & '"
N = 60
COUNT = "document.getElementById('count').textContent"


@pytest.fixture(scope="module")
def folder(common: Path) -> Path:
    """A dataset of three layers with labels, numbers and dates, and its page."""
    random = np.random.default_rng(1)
    words = ["the", "movie", "was", "good", "bad", "bus", "home", "rain", "여행", "영화"]
    texts = [" ".join(random.choice(words, 6)) for _ in range(N - 2)] + [HOSTILE, "여행 home"]
    day = datetime.date(2024, 2, 27)
    lines = ["id\tdocument\tlabel\tprice\tday"]
    lines += [
        f"id{i}\t{text}\t{('x', 'y', '</style>')[i % 3]}\t{i * 1.5}\t"
        f"{day + datetime.timedelta(days=i)}"
        for i, text in enumerate(texts)
    ]
    (common / "c.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    settings: dict[str, Any] = {"layers": "all", "pooling": "mean,cls", "keep": ["price", "day"]}
    extract_tiny(common / "c.tsv", common / "data", shard_rows=25, **settings)
    layout.explore(common / "data", out=common / "page.html")
    return common


def clusters(n: int = 150, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    vectors = 2 * random.normal(size=(6, 24))[np.arange(n) % 6] + random.normal(size=(n, 24))
    return unit_rows(vectors.astype(np.float32))


# layouts


def test_the_layout_keeps_no_fewer_neighbours_than_that_of_scikit_learn() -> None:
    unit = clusters()
    near = layout.nearest_points(unit, layout.ATTRACTING)
    mine = layout.kept_neighbours(near, layout.lay_out(unit, near, method="tsne"))
    theirs = TSNE(init="pca", perplexity=15, max_iter=500, random_state=0).fit_transform(unit)
    flat = layout.kept_neighbours(near, layout.lay_out(unit, near, method="pca"))
    assert mine > layout.kept_neighbours(near, theirs) - 0.03
    assert mine > flat + 0.1


def test_an_interrupt_does_not_reach_into_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised beside the layout, which ends soon: raised within, it has ended the process."""
    unit, threads, rounds = clusters(), list[Any](), list[Any]()
    optimize = TSNEEmbedding.optimize

    def noting(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return optimize(*arguments, **options)

    def after() -> None:  # a widget of a notebook is told in its own thread
        rounds.append(threading.current_thread())
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(TSNEEmbedding, "optimize", noting)
    near = layout.nearest_points(unit, layout.ATTRACTING)
    with pytest.raises(KeyboardInterrupt):
        layout.lay_out(unit, near, method="tsne", after=after)
    assert rounds == [threading.main_thread()]
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.slow
def test_points_move_less_when_a_layer_begins_where_the_one_before_ended() -> None:
    """In the mean of five pairs: how far one pair moves depends on the processor's last bits."""
    moved, kept = np.zeros(2), np.zeros(2)
    for seed in range(0, 10, 2):
        one = clusters(100, seed=seed)
        other = unit_rows(one + 0.1 * clusters(100, seed=seed + 1))
        nears = [layout.nearest_points(unit, layout.ATTRACTING) for unit in (one, other)]
        first = layout.lay_out(one, nears[0], method="tsne")
        follows = layout.lay_out(other, nears[1], method="tsne", before=first)
        alone = layout.aligned(layout.lay_out(other, nears[1], method="tsne"), first)
        moved += [np.linalg.norm(points - first, axis=1).mean() for points in (follows, alone)]
        kept += [layout.kept_neighbours(nears[1], points) for points in (follows, alone)]
    assert moved[0] < 0.8 * moved[1]
    assert kept[0] > 0.9 * kept[1]


def test_the_axes_are_those_of_a_pca(folder: Path) -> None:
    vectors = embedkit.load(folder / "data").X
    wanted = PCA(2).fit_transform(vectors)
    points = layout.first_axes(vectors)
    wanted *= np.sign((wanted * points).sum(axis=0))
    assert np.allclose(points, wanted, atol=1e-4)
    assert np.allclose(layout.first_axes(np.ones((4, 3), np.float32)), 0, atol=1e-5)


def test_the_fraction_of_neighbours_that_a_layout_keeps() -> None:
    """Against distances in full."""
    unit = unit_rows(np.random.default_rng(0).normal(size=(80, 12)).astype(np.float32))
    points = unit[:, :2]
    cosines = cosine_similarity(unit) - 9 * np.eye(80)
    distances = euclidean_distances(points) + 9 * np.eye(80)
    shared = [
        len(set(np.argsort(-cosines[i])[:10]) & set(np.argsort(distances[i])[:10])) / 10
        for i in range(80)
    ]
    near = layout.nearest_points(unit, 15)
    assert layout.kept_neighbours(near, points) == pytest.approx(np.mean(shared))


def test_copies_of_a_point_do_not_crowd_it_out_of_its_own_list() -> None:
    unit = np.repeat(clusters(4), 20, axis=0)
    near = layout.nearest_points(unit, 3)
    assert (near.indices != np.arange(80)[:, None]).all()
    assert (near.indices // 20 == np.arange(80)[:, None] // 20).all()


def test_neighbours_are_the_nearest_of_all_points() -> None:
    wide = np.random.default_rng(1).normal(size=(24, 80))
    unit = unit_rows((clusters(3_000) @ wide + 3).astype(np.float32))  # far from the origin
    near = layout.nearest_points(unit, 5)
    cosines = np.einsum("ij,ikj->ik", unit, unit[near.indices])
    assert np.allclose(near.cosines, cosines, atol=1e-5)
    others = unit @ unit.T - 9 * np.eye(3_000)
    assert np.allclose(near.cosines, -np.sort(-others, axis=1)[:, :5], atol=1e-5)


@pytest.mark.parametrize(("method", "total"), [("tsne", 25), ("pca", 3)])
def test_progress_ends_at_its_total(folder: Path, tmp_path: Path, method: Any, total: int) -> None:
    seen: list[Any] = []
    layout.explore(folder / "data", out=tmp_path / "p.html", method=method, progress=seen.append)
    seen = [one for one in seen if one.stage == "laying out"]
    assert [(one.done, one.total) for one in seen] == [(i, total) for i in range(total + 1)]


# colours and columns


def test_a_point_without_a_label_disagrees_with_nobody() -> None:
    """Of four neighbours of "a" three have the label, where one of three others would by chance."""
    exact = np.array([[1, 1, 4], [0, 2, 4], [3, 3, 4], [2, 2, 4], [0, 1, 2]])
    near = layout.Near(exact, np.zeros(exact.shape, np.float32))
    label = layout.column_of("label", ["a", "a", "b", "b", None])
    found = layout._same_label(near, label, "mean_1")
    assert found == (7 / 8, "Layer 1: 2 of 2 labels stand apart: b, a")


@pytest.mark.parametrize("codes", [[f"{i:04}" for i in range(20)], [2**60 + i for i in range(20)]])
def test_codes_are_no_numbers(codes: Any) -> None:
    """A page would show others: 007 as 7, and those of accounts rounded."""
    column = layout.column_of("code", codes)
    assert (column.kind, set(column.names)) == ("label", set(map(str, codes)))


def test_clusters_are_named_by_words_that_the_others_lack(folder: Path) -> None:
    """In three scripts; particles and characters between spaces do not hide what texts share."""
    texts = [f"the {word} is here {i}" for word in ("tax", "cat") for i in range(32)]
    texts += [f"そこの天気は{i}" for i in range(32)] + [f"영화{p} 봐" for p in "는가를도" * 8]
    # a point of the middle of each group, so that no cluster is divided
    unit = np.repeat(np.eye(4, dtype=np.float32), 32, axis=0)
    random = np.random.default_rng(0).permutation(128)
    codes, names = layout.cluster_texts(unit[random], [texts[i] for i in random])
    for group, word in enumerate(("tax", "cat", "この", "영화")):
        (code,) = set(codes[random // 32 == group].tolist())
        assert names[code].split(", ")[0] == word
    columns = json_block(folder / "page.html", "content")["columns"]
    assert [c["name"] for c in columns[:2]] == ["label", "clusters"]
    described, counts = json_block(folder / "page.html", "names")[1]
    assert sum(counts) == N
    assert len(set(described)) == len(described) > 1


def linear(colour: str) -> Any:
    """Linear RGB of a colour such as ``#1f66b0``."""
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


DEUTERANOPE = np.array(  # of linear RGB; Machado, Oliveira & Fernandes 2009
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)
TO_CONES = np.array(  # the first and the second matrix of OKLab
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


@pytest.mark.parametrize(("theme", "paper"), [("light", "#ffffff"), ("dark", "#1a1e22")])
def test_colours_can_be_told_from_the_page_and_from_each_other(theme: str, paper: str) -> None:
    """By deuteranopes too; two labels with the same shape differ most."""
    templates = Path(layout.__file__).parents[1] / "templates"
    assert f"--card: {paper}" in (templates / "page.css").read_text("utf-8")
    script = (templates / "explore.js").read_text("utf-8")
    _, *lists = script.split(f'"{theme}": ')
    colours, ramp = (json.loads(one.partition("]")[0] + "]") for one in lists)
    assert len(colours) == 12
    for colour in (*colours, *ramp):
        low, high = sorted(linear(shade) @ (0.2126, 0.7152, 0.0722) for shade in (colour, paper))
        # the contrast of the two, from 1 to 21, as WCAG has it
        assert (high + 0.05) / (low + 0.05) >= 3, colour
    rgb = np.array([linear(colour) for colour in colours])
    for seen in (rgb, np.clip(rgb @ DEUTERANOPE.T, 0, 1)):
        lab = np.cbrt(seen @ TO_CONES.T) @ TO_LAB.T
        for i, j in itertools.combinations(range(12), 2):
            least = 0.12 if i % len(SHAPES) == j % len(SHAPES) else 0.08
            assert np.linalg.norm(lab[i] - lab[j]) >= least, (i, j)


# the page as a file


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
    assert [view["view"] for view in content["views"]] == ["mean_0", "mean_1", "mean_2"]
    codes = planes(block_of(page, "near-1"), 3).reshape(N, -1)
    near = np.arange(N)[:, None] + ((codes >> 1) ^ -(codes & 1))
    cosines = cosine_similarity(data.X)
    view = content["views"][1]
    steps = np.frombuffer(block_of(page, "cosines-1"), np.uint8).reshape(N, -1)
    for i, row in enumerate(order):
        found = cosines[row, [order[j] for j in near[i]]]
        assert np.allclose(found, np.sort(cosines[row])[::-1][1:11], atol=1e-5)
        assert np.allclose(found, view["least"] + view["step"] * steps[i], atol=view["step"])
    nearest = np.argsort(-(cosines - 9 * np.eye(N)), axis=1)[:, :10]
    wanted = np.mean(data.labels[nearest] == data.labels[:, None])
    assert view["same_label"] == pytest.approx(wanted, abs=0.01)  # equal texts stand in no order
    assert content["chance"] == pytest.approx(19 / 59)
    assert "row" not in [c["name"] for c in content["columns"]]
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
        found = layout.explore(folder / "data", out=tmp_path / f"{name}.html", limit=40, seed=seed)
        assert (found.points, found.records) == (40, N)
    a, b, c = ((tmp_path / f"{n}.html").read_bytes() for n in "abc")
    assert a == b != c


NO_PAGES: dict[str, Any] = {
    "2 records": {"limit": 2},
    "method='trimap'": {"method": "trimap"},
    "limit=0": {"limit": 0},
    "color='shape'": {"color": "shape"},
    "view='mean_1,cls_1': expected views": {"view": ["mean_1", "cls_1"]},
    "m.png": {"out": "m.png"},
    "label_names": {"label_names": {"z": "good"}},
}


@pytest.mark.parametrize("message", NO_PAGES)
def test_pages_that_cannot_be_made(folder: Path, tmp_path: Path, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        layout.explore(folder / "data", **{"out": tmp_path / "m.html", **NO_PAGES[message]})
    with pytest.raises(OutputExistsError, match=r"page\.html"):
        layout.explore(folder / "data", out=folder / "page.html")


def test_the_command(folder: Path, tmp_path: Path) -> None:
    data = folder / "data"
    result = invoke("explore", data, "--out", tmp_path / "m.html", "--view", "mean_2,mean_0")
    content = json_block(tmp_path / "m.html", "content")
    assert f"{N} records, 2 views" in result.stdout
    assert f"keeps {100 * content['views'][1]['kept']:.0f} of 100 nearest" in result.stdout


# in a browser


def heading(page: Any, start: str) -> None:
    """Wait until the heading of the page begins so."""
    page.wait_for_selector(f"#heading:text-matches('^{start}')")


def listed(page: Any, count: int) -> None:
    """Wait until so many texts are found."""
    wanted = f"{count} of {N} texts" if count else "No text matches."
    until(page, COUNT, lambda text: text == wanted)


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
    file = folder / "page.html"
    with opened(browser, file, width=width, color_scheme=scheme, bypass_csp=True) as page:
        page.click("#list button >> nth=0")
        page.wait_for_selector("#chosen .found button")
        check_fit(page, width, scheme)


def test_every_control_by_mouse(browser: Any, folder: Path) -> None:
    file = folder / "page.html"
    data = embedkit.load(folder / "data", "mean_2")
    text_of = dict(zip(data.row.tolist(), data.text, strict=True))
    with opened(browser, file) as page:
        listed(page, N)
        view = json_block(file, "content")["views"][2]
        assert page.inner_text("#heading") == view["title"]
        for fraction in (view["same_label"], view["kept"]):
            assert f"{int(100 * fraction + 0.5)} of 100 " in page.inner_text("#dek")
        assert page.get_attribute("#map", "data-names") == "3"

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
        shown = [
            data.row.tolist().index(int(row))
            for row in near.evaluate_all("all => all.map(one => one.dataset.row)")
        ]
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
        numbers = page.locator("#legend .num")  # of labels, most of what is found first
        assert numbers.all_inner_texts() == ["1 of 20", "0 of 20", "0 of 20"]
        assert page.locator("#legend .name").first.inner_text().split()[0] == "</style>"
        page.fill("#find", "</style>")
        listed(page, N // 3)
        page.click("#clear")
        listed(page, N)

        # labels are picked, and counted among what is found
        assert numbers.first.inner_text() == "20"
        page.click("#legend .name >> nth=0")
        listed(page, 20)
        assert numbers.all_inner_texts() == ["20", "20", "20"]
        page.click("#legend .name >> nth=1")
        listed(page, 40)
        page.fill("#find", "onerror")
        until(page, "location.hash", lambda text: "find=onerror" in text and "label=" in text)
        page.keyboard.press("Escape")
        listed(page, N)
        assert page.locator("#legend .name[aria-pressed=true]").count() == 0

        # a box and a lasso around everything and around nothing
        box = page.locator("#map").bounding_box()
        left, top = box["x"] + 2, box["y"] + 2
        right, bottom = left + box["width"] - 4, top + box["height"] - 4
        corners = ((right, top), (right, bottom), (left, bottom))
        for drag in ("box", "lasso"):
            page.click(f"button[data-drag={drag}]")
            page.mouse.move(left, top)
            page.mouse.down()
            for x, y in corners if drag == "lasso" else corners[1:2]:
                page.mouse.move(x, y)
            page.mouse.up()
            listed(page, N)
        page.click("button[data-drag=move]")

        # zoomed in, what is in sight is less than all
        page.click("#clear")
        for _ in range(4):
            page.click("#closer")
        page.click("#sight")
        seen = until(page, COUNT, lambda text: not text.startswith(f"{N} of"))
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
        heading(page, "Layer 0: ")
        page.wait_for_selector("#chosen h3:has-text('layer 0')")
        page.mouse.move(*points[(at := alone(points))])
        assert f"row {rows[at]} " in page.inner_text("#hover")
        page.locator(".hit").nth(1).click()
        heading(page, "Layer 1: ")
        assert page.input_value("#layer") == "1"
        page.click("#play")
        assert page.inner_text("#play") == "Stop"
        heading(page, "Layer 2: ")
        until(page, "document.getElementById('play').textContent", lambda text: text == "Play")

        kinds = {c["name"]: (str(i), c["kind"]) for i, c in enumerate(content["columns"])}
        assert (kinds["price"][1], kinds["day"][1]) == ("number", "date")
        page.select_option("#color", kinds["price"][0])
        page.wait_for_selector("#legend .ramp")
        assert page.locator("#legend .ends span").all_inner_texts() == ["0", "44.25", "88.5"]
        page.select_option("#color", kinds["day"][0])
        page.wait_for_selector("#legend .ends:has-text('2024-02-27'):has-text('2024-04-26')")


def test_keyboard_alone(browser: Any, folder: Path) -> None:
    """Every control is reached by Tab, is seen to have the focus, and works by keys."""
    file = folder / "page.html"
    with opened(browser, file) as page:
        name = "one.id || one.dataset.drag || one.className || one.tagName"
        reached = tab_stops(page, name)
        controls = "layer play color map name find clear copy move box lasso home sight"
        wanted = {*controls.split(), "closer", "farther"}
        assert wanted <= set(reached)
        assert all(reached[name] for name in wanted)
        page.focus("#map")
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "find"
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
        heading(page, "Layer 0: ")
        page.focus("#list button >> nth=2")
        page.keyboard.press("Enter")
        third = page.inner_text("#list .text >> nth=2")
        until(page, "document.querySelector('#chosen .whole').textContent", lambda t: t == third)


def test_the_address_says_what_is_shown(browser: Any, folder: Path) -> None:
    file = folder / "page.html"
    price = [c["name"] for c in json_block(file, "content")["columns"]].index("price")
    with opened(browser, file) as page:
        page.locator("#layer").fill("0")
        page.fill("#find", "movie")
        listed(page, sum("movie" in text for text in json_block(file, "texts")))
        page.click("#legend .name >> nth=1")
        page.click("#list button >> nth=1")
        chosen = page.locator("#chosen .whole").inner_text()
        count, address = page.inner_text("#count"), page.url
        page.keyboard.press("Escape")
        page.select_option("#color", str(price))
        until(page, "location.hash", lambda text: text == "#layer=0&color=price")
        page.evaluate(f"location.hash = {address.partition('#')[2]!r}")
        heading(page, "Layer 0: ")
        until(page, "document.querySelector('#chosen .whole')?.textContent", lambda t: t == chosen)
        assert page.inner_text("#count") == count
        assert page.input_value("#find") == "movie"
        assert page.get_attribute("#legend .name >> nth=1", "aria-pressed") == "true"


def test_points_search_labels_and_list_are_on_one_screen(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "page.html", width=1_440) as page:
        page.click("#list button >> nth=0")
        assert page.evaluate("document.documentElement.scrollHeight") == 900
        for part in ("map", "layer", "chart", "find", "count", "legend", "chosen", "list"):
            box = page.locator(f"#{part}").bounding_box()
            assert 0 <= box["y"] < 850, part


def test_what_is_found_is_copied_as_tsv(browser: Any, folder: Path) -> None:
    data = embedkit.load(folder / "data")
    with opened(browser, folder / "page.html") as page:
        page.fill("#find", "여행")
        wanted = [i for i, text in enumerate(data.text) if "여행" in text]
        listed(page, len(wanted))
        head, *lines = copied(page)
        assert page.inner_text("#count") == f"Copied {len(wanted)} texts"
    assert head[:3] == ["row", "id", "label"]
    assert head[-1] == "text"
    assert [line[-1] for line in lines] == [data.text[i] for i in wanted]
    price = head.index("price")
    assert [float(line[price]) for line in lines] == [1.5 * i for i in wanted]
