"""The texts of a dataset as one HTML page: layers as layouts, colours, search, neighbours."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit import fsio
from embedkit.choices import LAYOUT_METHODS, check_choice
from embedkit.dataset.inspection import atlas_line
from embedkit.dataset.store import VectorData, load
from embedkit.encoding.views import layer_rank, parse_layers, split_view
from embedkit.errors import OutputExistsError, UsageError, check_counts
from embedkit.explore.colours import LABEL_COLOURS, RAMP
from embedkit.explore.columns import Column, column_of
from embedkit.explore.layout import (
    ATTRACTING,
    Near,
    iterations_of,
    kept_neighbours,
    lay_out,
    layer_order,
    nearest_points,
)
from embedkit.pages import cut_texts, packed, packed_json, render_page
from embedkit.search.exact import unit_rows
from embedkit.types import Float32, Int64, Progress, ProgressCallback, no_progress

__all__ = ["Explored", "ViewLayout", "explore"]

logger = logging.getLogger(__name__)

_MANY = 20_000
_KEPT_OF = 10
_LISTED, _LISTED_OF_MANY = 10, 5
_MOST_BYTES = 16_000_000
_NO_COLOURS = ("id", "text", "text_pair", "text_key")
_SEARCH_STEPS = 60  # as long as so many iterations, roughly


@dataclass(frozen=True, slots=True)
class ViewLayout:
    """One view on the page.

    Attributes:
        view: its name.
        kept: fraction of the ten nearest neighbours in full width that are among the ten nearest
            on the page.
        same_label: fraction of the ten nearest neighbours in full width that have the label of
            their point, of those that have a label; NaN without labels.
        recall: fraction of the nearest neighbours that the search found; 1 up to 20,000 points.
    """

    view: str
    kept: float
    same_label: float
    recall: float


@dataclass(frozen=True, slots=True)
class Explored:
    """A page and what it shows.

    Attributes:
        page: the file.
        method: of the layout.
        shown: the view that is shown first.
        views: every view, by layer.
        chance: fraction of points with the label of another one; NaN without labels.
        points: number of records shown.
        records: number of records of the dataset.
        atlas: command that opens the dataset in Embedding Atlas.
        nbytes: size of the page.
    """

    page: Path
    method: str
    shown: str
    views: tuple[ViewLayout, ...]
    chance: float
    points: int
    records: int
    atlas: str
    nbytes: int


def explore(
    dataset: str | Path,
    *,
    out: str | Path,
    view: str | None = None,
    layers: str = "all",
    method: str = "tsne",
    color: str | None = None,
    limit: int = 100_000,
    seed: int = 0,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> Explored:
    """Write a page that shows the records of a dataset as points, layer by layer.

    Args:
        dataset: folder that ``extract`` wrote.
        out: the ``.html`` file.
        view: the view that is shown first; by default the last mean. The slider has the stored
            views of the same pooling.
        layers: layers of the slider, as for ``extract``; those that are stored.
        method: ``tsne``, ``umap`` (the extra ``umap``) or ``pca``.
        color: column whose values give the first colours; by default the label.
        limit: largest number of records; of more a random sample is taken.
        seed: of everything that is random.
        overwrite: replace the file.
        progress: called after every iteration of t-SNE.

    Raises:
        UsageError: a setting cannot be used, or there are too few records.
        OutputExistsError: the file exists.
    """
    check_choice(LAYOUT_METHODS, method=method)
    file = Path(out)
    if file.suffix not in (".html", ".htm"):
        raise UsageError(f"out={str(file)!r}: expected a name ending in .html.")
    if file.exists() and not overwrite:
        raise OutputExistsError(f"{file} exists. Choose another name, or pass overwrite=True.")
    data = load(dataset, view)
    views = _views(data, layers)
    indices = _sampled(data, limit, seed)
    if len(indices) < 3:
        raise UsageError(f"{data.path}: {len(indices)} records are too few; expected 3 or more.")
    columns = _columns(data, indices, color)
    label = next((c for c in columns if c.name == "label" and c.kind == "label"), None)
    start = views.index(data.views[0])
    steps = _Steps(len(views), len(indices), method, progress)
    drawn: dict[int, _Drawn] = {}
    for number, previous in layer_order(len(views), start):
        before = None if previous is None else drawn[previous].points
        unit = unit_rows(load(dataset, views[number]).reader.vectors_at(indices))
        drawn[number] = _draw(views[number], unit, before, label, method, seed, steps)
        steps.finished(len(drawn))
    ordered = [drawn[i] for i in range(len(views))]
    content = {
        "dataset": data.path.resolve().name, "model": Path(data.manifest.names.model).name,
        "method": method, "total": len(data), "count": len(indices), "start": start,
        "colors": LABEL_COLOURS, "ramp": RAMP, "listed": ordered[0].near.shape[1],
        "chance": _chance(label), "first": color or (columns[0].name if columns else ""),
    }  # fmt: skip
    html = _page(data, indices, content, columns, ordered).encode()
    fsio.make_folder(file.absolute().parent)
    fsio.write_durably(file, html, scratch=file.absolute().parent)
    return Explored(
        file, method, views[start], tuple(one.layout for one in ordered), _chance(label),
        len(indices), len(data), atlas_line(data.path, data.manifest), len(html),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    """A view with its layout and the neighbours that the page lists."""

    layout: ViewLayout
    points: Float32
    near: Int64
    cosines: Float32


def _draw(
    view: str, unit: Float32, before: Float32 | None, label: Column | None, method: str, seed: int,
    steps: _Steps,
) -> _Drawn:  # fmt: skip
    near = nearest_points(unit, ATTRACTING, seed=seed)
    steps.searched()
    points = lay_out(unit, near, method=method, before=before, seed=seed, after=steps.iterated)
    kept = kept_neighbours(near, points, k=_KEPT_OF)
    listed = _LISTED if len(unit) <= _MANY else _LISTED_OF_MANY
    found = ViewLayout(view, kept, _same_label(near, label), near.recall)
    return _Drawn(found, points, near.indices[:, :listed], near.cosines[:, :listed])


class _Steps:
    """Counts the work of all layers, so that the time left can be told."""

    def __init__(self, views: int, n: int, method: str, progress: ProgressCallback) -> None:
        iterates = method == "tsne"
        self._first = _SEARCH_STEPS + (iterations_of(n, first=True) if iterates else 0)
        self._next = _SEARCH_STEPS + (iterations_of(n, first=False) if iterates else 0)
        self._total = self._first + self._next * (views - 1)
        self._done, self._progress = 0, progress

    def searched(self) -> None:
        self._add(_SEARCH_STEPS)

    def iterated(self) -> None:
        self._add(1)

    def finished(self, layers: int) -> None:
        self._done = self._first + self._next * (layers - 1)

    def _add(self, steps: int) -> None:
        self._done += steps
        self._progress(Progress("laying out", self._done, self._total, "steps"))


def _views(data: VectorData, layers: str) -> list[str]:
    """Stored views of the pooling of the chosen one, single layers first."""
    stored = list(data.manifest.columns_of("sentences"))
    pooling = split_view(data.views[0])[0]
    mine = [name for name in stored if split_view(name)[0] == pooling]
    mine.sort(key=lambda name: layer_rank(split_view(name)[1]))
    if layers == "all":
        return mine
    wanted = [f"{pooling}_{one.name}"
              for one in parse_layers(layers, n_layers=data.manifest.n_layers)]  # fmt: skip
    if unknown := [name for name in wanted if name not in mine]:
        raise UsageError(
            f"layers={layers!r}: {data.path} has no view {unknown[0]}; it has {', '.join(mine)}."
        )
    return [name for name in mine if name in wanted or name == data.views[0]]


def _sampled(data: VectorData, limit: int, seed: int) -> Int64:
    check_counts(limit=limit)
    if len(data) <= limit:
        return np.arange(len(data))
    logger.info("the page shows a random sample of %d of %d records (limit)", limit, len(data))
    random = np.random.default_rng(seed)
    return np.sort(random.choice(len(data), limit, replace=False))


def _columns(data: VectorData, indices: Int64, color: str | None) -> list[Column]:
    """Every column that can give colours, that of the labels first."""
    names = [name for name in data.columns if name not in _NO_COLOURS]
    if color is not None and color not in names:
        if color not in data.columns:
            raise UsageError(f"color={color!r}: {data.path} has {', '.join(data.columns)}.")
        names.append(color)
    names.sort(key=lambda name: name != "label")
    values = data.reader.pick(indices, names)
    return [column_of(name, values[name]) for name in names]


def _same_label(near: Near, label: Column | None) -> float:
    """Fraction of neighbours with the label of their point, where both have one."""
    if label is None:
        return math.nan
    mine, theirs = near.probed[:, None], near.exact[:, :_KEPT_OF]
    both = label.known[mine] & label.known[theirs]
    return (
        float((label.codes[theirs] == label.codes[mine])[both].mean()) if both.any() else math.nan
    )


def _chance(label: Column | None) -> float:
    if label is None:
        return math.nan
    counts = np.array([n for i, n in enumerate(label.counts) if i != label.missing], np.float64)
    n = counts.sum()
    return float((counts * (counts - 1)).sum() / (n * (n - 1))) if n > 1 else math.nan


def _curve(points: Float32) -> Int64:
    """An order in which points that follow each other lie together, so that they pack well."""
    low = points.min(axis=0)
    scaled = (points - low) / max(float((points.max(axis=0) - low).max()), 1e-12)
    cells = (scaled * 65_535).astype(np.uint64)
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        cells = (cells | (cells << np.uint64(shift))) & np.uint64(mask)
    return np.argsort(cells[:, 0] | (cells[:, 1] << np.uint64(1)), kind="stable").astype(np.int64)


def _page(
    data: VectorData, indices: Int64, content: dict[str, Any], columns: Sequence[Column],
    drawn: Sequence[_Drawn],
) -> str:  # fmt: skip
    """The page; points stand in it in the order of a curve through the first layout."""
    order = _curve(drawn[content["start"]].points)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    blocks = {}
    low = np.min([one.points.min(axis=0) for one in drawn], axis=0)
    size = max(float(np.max([one.points.max(axis=0) - low for one in drawn])), 1e-12)
    content["views"] = []
    for number, one in enumerate(drawn):
        cells = np.rint((one.points[order] - low) / size * 65_535).astype(np.uint16)
        blocks[f"points-{number}"] = packed(_planes(cells.ravel(order="F"), 2))
        apart = place[one.near[order]] - np.arange(len(order))[:, None]
        blocks[f"near-{number}"] = packed(_planes((apart << 1) ^ (apart >> 63), 3))
        least, most = float(one.cosines.min()), float(one.cosines.max())
        step = max(most - least, 1e-9) / 255
        steps = np.rint((one.cosines[order] - least) / step).astype(np.uint8)
        blocks[f"cosines-{number}"] = packed(steps.tobytes())
        view = one.layout
        content["views"].append({
            "name": view.view, "layer": split_view(view.view)[1] or view.view, "kept": view.kept,
            "same": view.same_label, "recall": view.recall, "least": least, "step": step,
        })  # fmt: skip
    content["columns"] = []
    for number, column in enumerate(columns):
        is_label = column.kind == "label"
        numbers = column.codes[order].astype("<u4") if is_label else column.values[order]
        blocks[f"column-{number}"] = packed(np.ascontiguousarray(numbers).tobytes())
        content["columns"].append({"name": column.name, "kind": column.kind})
    blocks["names"] = packed_json([[c.names, c.counts] for c in columns])
    blocks |= _texts(data, indices[order])
    return render_page("explore", content=content, blocks=blocks)


def _texts(data: VectorData, indices: Int64) -> dict[str, str]:
    """Row numbers, ids and texts."""
    names = ["row", *(name for name in ("id", "text", "text_pair") if name in data.columns)]
    values = data.reader.pick(indices, names)
    texts = values.get("text") or [""] * len(indices)
    if pair := values.get("text_pair"):
        texts = [f"{one}\n{other or ''}" for one, other in zip(texts, pair, strict=True)]
    return {
        "records": packed_json({"rows": values["row"], "ids": values["id"]}),
        "texts": packed_json(cut_texts(texts, most_bytes=_MOST_BYTES)),
    }


def _planes(values: NDArray[Any], width: int) -> bytes:
    """The lowest ``width`` bytes of numbers: all first ones, all second ones, and so on."""
    numbers = values.astype(np.uint64).ravel()
    planes = [(numbers >> np.uint64(8 * i)).astype(np.uint8).tobytes() for i in range(width)]
    return b"".join(planes)
