"""The texts of a dataset as one HTML page: layers as layouts, colours, search, neighbours.

    view mean_3 (n, width) ─► neighbours (n, 15) ─► t-SNE ─► points (n, 2) ─┐ turned onto mean_3
    view mean_4            ─► neighbours         ─► t-SNE from mean_3 ──────┤ and so on, both ways
    columns ─► labels, numbers, dates            texts ─► k-means ─► names ─┴─► page

What is notable:

- The view that is shown first is laid out freely, from its principal axes. Every other view begins
  where its neighbour ended and is turned onto it, so that points move no further than layers do.
- The neighbours of a view are found once: they attract points in t-SNE, the page lists the nearest
  of them, and they tell how much the layout keeps and how well labels stand apart.
- All points are compared with all, as products of matrices. Inverted lists of 8 bits, which passed
  over most pairs, took half as long again for 100,000 points, and missed some neighbours.
- Points stand in the page in the order of a curve through the first layout: coordinates take two
  bytes, neighbours are near on the curve, and their differences compress well.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embedkit import pages
from embedkit.arguments import accepts
from embedkit.choices import LayoutMethod
from embedkit.dataset.read import VectorData, load
from embedkit.display import Shown, count_text, shorten
from embedkit.drawing import SHAPES
from embedkit.encoding.views import layer_rank, split_view
from embedkit.encoding.words import typical_parts
from embedkit.errors import UsageError, did_you_mean
from embedkit.geometry import shared_neighbours
from embedkit.machine import faiss_with_threads, usable_cores
from embedkit.records import Positive, Seed
from embedkit.search.exact import unit_rows
from embedkit.storage import write_files
from embedkit.types import Bool, Float32, Int64, Progress, ProgressCallback, no_progress, steps

logger = logging.getLogger(__name__)

# different values up to which even numbers and dates, such as stars, are taken for labels
_FEW = 8
_MISSING = "(none)"
_EPOCH, _DAY = datetime(1970, 1, 1, tzinfo=UTC), timedelta(days=1)


class Column(NamedTuple):
    """Values of the points shown."""

    name: str
    kind: str  # ``label``, ``number`` or ``date``
    values: Any  # ``(n,)`` numbers of the labels, or float64: numbers, or days since 1970
    names: tuple[str, ...] = ()  # labels, the most frequent first
    counts: tuple[int, ...] = ()  # points with each
    missing: int | None = None  # number of the label of points without one

    @property
    def known(self) -> Bool:
        """True for points that have a label ``(n,)``."""
        return np.asarray(self.values != (-1 if self.missing is None else self.missing))


_CODE = re.compile(r"0\d+|\d{16,}")


def column_of(name: str, values: Sequence[Any]) -> Column:
    """Return a column as numbers or dates where all values are, and otherwise as labels.

    Text is read as numbers and dates (``2021-03-09``, ``2021-03-09T12:30``) too. Up to eight
    different values are labels, whatever they are.

    >>> column_of("stars", ["4", "5", "4"]).names
    ('4', '5')
    >>> column_of("length", [str(i) for i in range(9)]).values[:3].tolist()
    [0.0, 1.0, 2.0]
    """
    import pandas as pd

    entries = [v for v in values if v is not None and v != ""]
    # 007 and numbers of accounts are names: as numbers others would be shown
    codes = any(_CODE.fullmatch(str(entry)) for entry in entries)
    if len(set(entries)) > _FEW and not codes:
        # an empty text is a missing value, not a reason to take numbers for labels
        column = pd.Series([None if v == "" else v for v in values], dtype=object)
        with suppress(TypeError, ValueError):
            numbers = pd.to_numeric(column).to_numpy(np.float64)
            # a scale of colours cannot end at infinity
            if not np.isinf(numbers).any():
                return Column(name, "number", numbers)
        with suppress(TypeError, ValueError):
            # after the numbers, since a year alone is both
            dates = pd.to_datetime(column, format="ISO8601", utc=True)
            days = ((dates - _EPOCH) / _DAY).to_numpy(np.float64)
            return Column(name, "date", days)
    texts = [_MISSING if v is None or v == "" else str(v) for v in values]
    # by name among equally frequent ones, so that the same dataset has the same colours
    counts = sorted(Counter(texts).items(), key=lambda pair: (-pair[1], pair[0]))
    number = {text: i for i, (text, _) in enumerate(counts)}
    return Column(
        name,
        "label",
        np.array([number[text] for text in texts], np.int64),
        tuple(number),
        tuple(n for _, n in counts),
        number[_MISSING] if len(entries) < len(texts) else None,
    )


ATTRACTING, _PERPLEXITY = 15, 10
"""Number of neighbours that attract a point; further ones count less."""
_TREE = 5_000  # points up to which openTSNE's tree is faster than its grid
_EARLY, _FIRST, _NEXT, _ROUND = 250, 500, 250, 50  # iterations


class Near(NamedTuple):
    """The nearest points of every point by cosine, without the point itself."""

    indices: Int64  # ``(n, k)``
    cosines: Float32


def nearest_points(unit: Float32, k: int) -> Near:
    """Find the nearest points of every point; ``unit`` has rows of length 1."""
    with faiss_with_threads(usable_cores()) as faiss:
        index = faiss.IndexFlatIP(unit.shape[1])
        index.add(unit)
        # one more than k, since each point finds itself
        cosines, indices = index.search(unit, min(k + 1, len(unit)))
    return Near(*_others(indices, cosines))


def _others(indices: Int64, values: NDArray[Any]) -> tuple[Int64, NDArray[Any]]:
    """Neighbours of all points without the point itself, which copies of it may crowd out."""
    self_ = indices == np.arange(len(indices))[:, None]
    # each row must lose one neighbour: the farthest, if it does not have itself
    self_[~self_.any(axis=1), -1] = True
    shape = (len(indices), indices.shape[1] - 1)
    return indices[~self_].reshape(shape), values[~self_].reshape(shape)


def kept_neighbours(near: Near, points: Float32, *, k: int = 10) -> float:
    """Return the fraction of the nearest points in full width that are nearest in a layout too."""
    from scipy.spatial import cKDTree

    k = min(k, near.indices.shape[1])
    distances, neighbours = cKDTree(points).query(points, k + 1)
    neighbours, _ = _others(neighbours, distances)
    return float(shared_neighbours(near.indices[:, :k], neighbours).mean())


def lay_out(
    unit: Float32,
    near: Near,
    *,
    method: str,
    before: Float32 | None = None,
    seed: int = 0,
    after: Callable[[], None] = lambda: None,
) -> Float32:
    """Return ``(n, 2)`` float32 of one layer.

    t-SNE begins where the layer before ended, and every layout is turned onto the one before, so
    that points move no further than they must. ``after`` is called after every 50 iterations of
    t-SNE, else at the end.
    """
    if method == "tsne" and len(unit) > ATTRACTING + 1:
        start = first_axes(unit) if before is None else before
        # from the principal axes, not from random points: the same data give the same map,
        # and far groups stay apart as they are
        points = _tsne(near, start, first=before is None, seed=seed, after=after)
    else:  # t-SNE of a few points, of which each has all others as neighbours, is their axes
        points = first_axes(unit)
        after()
    return points if before is None else aligned(points, before)


def _tsne(
    near: Near, init: Float32, *, first: bool, seed: int, after: Callable[[], None]
) -> Float32:
    from openTSNE import TSNEEmbedding
    from openTSNE.affinity import PerplexityBasedNN
    from openTSNE.nearest_neighbors import PrecomputedNeighbors

    indices, cosines = near.indices[:, :ATTRACTING], near.cosines[:, :ATTRACTING]
    threads = usable_cores()
    # the same neighbours that the page lists are those that attract
    neighbours = PrecomputedNeighbors(indices, 1 - cosines)
    # a small start without exaggeration would tear apart what lies together
    size = 1e-4 / max(float(init.std(axis=0).max()), 1e-12) if first else 1.0
    left, rounds = Event(), list[int]()
    embedding = TSNEEmbedding(
        size * init.astype(np.float64),
        PerplexityBasedNN(knn_index=neighbours, perplexity=_PERPLEXITY, n_jobs=threads),
        negative_gradient_method="bh" if len(init) <= _TREE else "fft",
        random_state=seed,
        n_jobs=threads,
        callbacks=[lambda *_: rounds.append(1), lambda *_: left.is_set()],
        callbacks_every_iters=_ROUND,
    )

    def optimize() -> None:
        # exaggeration pulls clusters together at the beginning;
        # later layers have their clusters already
        if first:
            embedding.optimize(_EARLY, exaggeration=12, momentum=0.5, inplace=True)
        embedding.optimize(_FIRST if first else _NEXT, momentum=0.8, inplace=True)

    # in a thread of its own: Ctrl-C raises in the main thread, and what is raised within the
    # compiled code of openTSNE may end the process
    with ThreadPoolExecutor(1) as thread:
        try:
            layout = thread.submit(optimize)
            while not layout.done() or rounds:
                wait([layout], 0.1)  # a wait without an end may sleep through a signal
                for _ in range(len(rounds)):
                    rounds.pop()
                    after()
            layout.result()
        finally:
            left.set()  # after an interrupt the thread ends with its round
    return np.asarray(embedding, np.float32)


def first_axes(unit: Float32) -> Float32:
    """Return ``(n, 2)`` float32: the two first principal components."""
    from sklearn.decomposition import PCA

    if unit.shape[1] == 1:
        # a single coordinate has no second axis
        unit = np.column_stack([unit, np.zeros(len(unit), np.float32)])
    with np.errstate(invalid="ignore"):  # equal vectors have no variance to take fractions of
        points = PCA(2, svd_solver="covariance_eigh").fit_transform(unit)
    return np.asarray(points, np.float32)


def aligned(points: Float32, before: Float32) -> Float32:
    """Turn, mirror and shift points onto others, by orthogonal Procrustes; distances stay.

    >>> square = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], np.float32)
    >>> np.allclose(aligned(square[:, ::-1] + 5, square), square, atol=1e-6)
    True
    """
    middle = before.mean(axis=0)
    centred = points - points.mean(axis=0)
    # the best rotation or reflection is the product of the singular
    # vectors; no scale, as the layout has its own
    left, _, right = np.linalg.svd(centred.T.astype(np.float64) @ (before - middle))
    return np.asarray(centred @ (left @ right) + middle, np.float32)


_MANY = 20_000
_KEPT_OF = 10
# neighbours that the page lists, which are most of its bytes if there are many points
_LISTED, _LISTED_OF_MANY = 10, 5
# of all texts together
_MOST_BYTES = 16_000_000
CLUSTERS = "clusters"
"""Name of the column of clusters, beside those of the dataset."""
# clusters of a page: a legend has as many colours that can be told apart; texts that their middles
# are fitted to, all others go to the nearest; characters of a text whose words count; and the words
# that name a cluster
_CLUSTERS, _FITTED, _CHARACTERS, _NAMED_BY = 12, 20_000, 1_000, 3
_NAMED_APART = 3  # labels in the title of a view
_NO_COLOURS = ("row", "id", "text", "text_pair", "text_key")


@dataclass(frozen=True, slots=True, repr=False)
class Explored(Shown):
    """A page and what it shows.

    A row of ``views`` has ``view``, ``layer``, ``title`` (which labels stand apart), and fractions
    of the ten nearest neighbours in full width: ``kept``, which are among the ten nearest on the
    page, and ``same_label``, which have the label of their point (NaN without labels).
    """

    page: Path
    method: str
    shown: str  # the first view
    views: list[dict[str, Any]]
    chance: float  # fraction of points with the label of another one
    points: int  # records shown
    records: int  # of the dataset
    nbytes: int

    def as_rows(self) -> list[dict[str, Any]]:
        """The views."""
        return self.views


@accepts()
def explore(
    dataset: str | os.PathLike[str],
    *,
    out: str | Path | None = None,
    view: str | Sequence[str] | None = None,
    method: LayoutMethod = "tsne",
    color: str | None = None,
    label_names: Mapping[str, str] | None = None,
    limit: Positive = 100_000,
    seed: Seed = 0,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> Explored:
    """Write a page that shows the records of a dataset as points, layer by layer.

    Args:
        dataset: folder that ``extract`` wrote.
        out: the page; by default ``DATASET.explore.html`` in the current folder.
        view: the views of the slider, all of one pooling, of which the first is shown first; by
            default all layers that are stored in the pooling of the checkpoint.
        method: ``tsne`` keeps neighbours together, and says little of distances between groups;
            ``pca``, the first two principal components, keeps large distances and hides what lies
            in other directions. Of 3,000 records and seven layers t-SNE takes 23 s of a core, PCA
            1 s: take ``pca`` for a first look.
        color: column of the first colours: one of the dataset, or ``clusters``, of texts that are
            near each other in the first view, named by their typical words. By default it is the
            label, and without one the clusters.
        label_names: shown beside the labels.
        limit: of more records a random sample is shown.
        seed: of the sample, the clusters and t-SNE. Up to 5,000 points the same seed gives the same
            page.
        overwrite: replace a page.
        progress: called with the steps of the layouts.

    Returns:
        The path of the page and what it shows: a row for each view, with the fraction of nearest
        neighbours that the layout keeps, and the fraction that has the same label.

    Raises:
        UsageError: a view or column does not exist, the views are of several poolings, or there are
            fewer than three records.
        OutputExistsError: the page exists.

    Example:
        >>> embedkit.explore("vectors", method="pca", out="map.html").page.name
        'map.html'
    """
    file = pages.page_file(
        out or f"{Path(dataset).resolve().name}.explore.html", overwrite=overwrite
    )
    data = load(dataset, view)
    views = _views(data, chosen=view is not None)
    indices = np.arange(len(data))
    if len(data) > limit:
        logger.info("the page shows a random sample of %d of %d records", limit, len(data))
        random = np.random.default_rng(seed)
        indices = np.sort(random.choice(len(data), limit, replace=False))
    # two points have no map
    if len(indices) < 3:
        shown = count_text(len(indices), "record")
        raise UsageError(f"{data.path}: a map of {shown}; expected 3 or more.")
    progress(Progress("finding clusters", 0))
    columns = _columns(data, indices, color, label_names or {})
    columns.insert(0, _clusters(data, indices, seed))
    # stable: behind the label the clusters, then the others in the order of the table
    columns.sort(key=lambda column: column.name != "label")
    label = next((c for c in columns if c.name == "label" and c.kind == "label"), None)
    # the chosen view is laid out first and freely; all others follow from it
    start = views.index(data.views[0])
    ordered = _drawn(dataset, views, start, indices, method, label, seed, progress)
    chance = _chance(label)
    content = {
        "dataset": data.path.resolve().name,
        "model": Path(data.manifest.names.model).name,
        "pooling": split_view(data.views[0])[0],
        "method": method,
        "total": len(data),
        "count": len(indices),
        "start": start,
        "shapes": list(SHAPES.values()),
        "listed": min(_LISTED if len(indices) <= _MANY else _LISTED_OF_MANY, len(indices) - 1),
        "chance": chance,
        "first": color or columns[0].name,
    }
    html = _page(data, indices, content, columns, ordered).encode()
    write_files({file: html}, overwrite=overwrite)
    rows, counts = [row for row, *_ in ordered], (len(indices), len(data))
    return Explored(file, method, views[start], rows, chance, *counts, len(html))


Drawn = tuple[dict[str, Any], Float32, Near]
"""A view: its row, its points ``(n, 2)``, and their nearest ones in full width."""


def _drawn(
    dataset: str | os.PathLike[str],
    views: Sequence[str],
    start: int,
    indices: Int64,
    method: LayoutMethod,
    label: Column | None,
    seed: int,
    progress: ProgressCallback,
) -> list[Drawn]:
    """The layouts of all views, from the one that is shown first upwards and downwards.

    Each begins where its neighbour ended, so that points move no further than the layers do.
    """
    # callbacks of t-SNE; every other method calls once for each view
    rounds = (_EARLY + _FIRST + _NEXT * (len(views) - 1)) // _ROUND
    total = rounds if method == "tsne" and len(indices) > ATTRACTING + 1 else len(views)
    after = steps(progress, "laying out", total, "steps")
    drawn: dict[int, Drawn] = {}
    # a view begins from its neighbour on the side of the first one, which is laid out already
    earlier = [(i, i + 1) for i in range(start - 1, -1, -1)]
    later = [(i, i - 1) for i in range(start + 1, len(views))]
    for number, previous in [(start, None), *earlier, *later]:
        # the vectors of one view at a time are in memory
        unit = unit_rows(load(dataset, views[number]).reader.vectors_at(indices))
        progress(Progress("finding neighbours", 0))
        near = nearest_points(unit, ATTRACTING)
        before = None if previous is None else drawn[previous][1]
        points = lay_out(unit, near, method=method, before=before, seed=seed, after=after)
        view = views[number]
        same, title = _same_label(near, label, view)
        row = {
            "view": view,
            "layer": split_view(view)[1] or view,
            "title": title,
            "kept": kept_neighbours(near, points, k=_KEPT_OF),
            "same_label": same,
        }
        drawn[number] = row, points, near
    return [drawn[i] for i in range(len(views))]


def _views(data: VectorData, *, chosen: bool) -> list[str]:
    """The chosen views, or all that are stored of the pooling of the default one, by depth."""
    pooling = split_view(data.views[0])[0]
    views = data.views if chosen else data.manifest.columns_of("sentences")
    mine = [name for name in views if split_view(name)[0] == pooling]
    if chosen and len(mine) < len(views):
        raise UsageError("expected views of one pooling.", view=",".join(views))
    # the slider moves by depth
    return sorted(mine, key=lambda name: layer_rank(split_view(name)[1]))


def _columns(
    data: VectorData, indices: Int64, color: str | None, label_names: Mapping[str, str]
) -> list[Column]:
    """Every column that can give colours; of one value only if asked."""
    names = [name for name in data.columns if name not in _NO_COLOURS]
    if color is not None and color not in (CLUSTERS, *names):
        if color not in data.columns:
            near = did_you_mean(color, data.columns)
            raise UsageError(f"{data.path} has {', '.join(data.columns)}.{near}", color=color)
        names.append(color)
    values = data.reader.table_at(indices, names).to_pydict()
    # no text was cut, so both colour alike
    if values["n_kept"] == values["n_tokens"] and color != "n_kept":
        names.remove("n_kept")
    columns = [
        column_of(name, values[name])
        for name in names
        if name in ("label", color) or len(set(values[name])) > 1
    ]
    if label_names:
        labels = next((c for c in columns if c.name == "label"), None)
        shown = pages.with_names(labels.names if labels else (), label_names)
        columns = [c._replace(names=shown) if c is labels else c for c in columns]
    return columns


def cluster_texts(unit: Float32, texts: Sequence[str], *, seed: int = 0) -> tuple[Int64, list[str]]:
    """Return the cluster of each text ``(n,)``, the largest first, and the names of the clusters.

        vectors (n, width) ──► k-means ──► codes (n,)            0  0  1  0  2  1
        texts ──► words ──► the three of the highest weight      0: "tax, vat, invoice"

    The weight is a kind of class-based TF-IDF (a cluster is one document), of shares of texts in
    place of counts: a long text has no more votes than a short one, and words that all clusters
    have, such as "the", weigh nothing, without a list of them for each language.

    ``unit`` are ``(n, width)`` vectors of length 1. There are as many clusters as half the root of
    ``n / 2``, at least 2 and at most 12.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    k = min(max(round(math.sqrt(len(unit) / 8)), 2), _CLUSTERS, len(np.unique(unit, axis=0)))
    random = np.random.default_rng(seed)
    fitted = np.sort(random.choice(len(unit), min(len(unit), _FITTED), replace=False))
    # one thread: several add up their sums in the order in which they end, and a text between two
    # clusters would change its colour from one page to the next
    with threadpool_limits(1):
        nearest = KMeans(k, n_init=4, random_state=seed).fit(unit[fitted]).predict(unit)
    _, codes, counts = np.unique(nearest, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    codes = np.argsort(order)[codes]
    return codes, _cluster_names(codes, texts, len(order))


def _cluster_names(codes: Int64, texts: Sequence[str], k: int) -> list[str]:
    """The typical words of each cluster."""
    having, everywhere = [Counter[str]() for _ in range(k)], Counter[str]()
    for code, text in zip(codes.tolist(), texts, strict=True):
        words = set(typical_parts(text[:_CHARACTERS]))
        having[code].update(words)
        everywhere.update(words)
    names: list[str] = []
    sizes = np.bincount(codes, minlength=k).tolist()
    for size, counts in zip(sizes, having, strict=True):
        # a word of a single text is typical of that text alone
        weights = {
            word: _weight(n / size, everywhere[word] / len(texts))
            for word, n in counts.items()
            if n > 1
        }
        chosen: list[str] = []
        for word in sorted(weights, key=lambda word: (-weights[word], -len(word), word)):
            # "영화" says what "영화는" says
            if weights[word] > 0 and not any(word in other or other in word for other in chosen):
                chosen.append(word)
            if len(chosen) == _NAMED_BY:
                break
        name = ", ".join(chosen) or f"cluster {len(names) + 1}"
        names.append(f"{name} ({len(names) + 1})" if name in names else name)
    return names


def _weight(share: float, overall: float) -> float:
    """How typical a word is by its share of the texts of a cluster, and of all texts."""
    # the second factor is what TF-IDF has: rare words say more. The third, squared, is what a
    # cluster adds: without the square "been" and "our" of a few sentences come before "tax"
    return share * -math.log(overall) * max(math.log(share / overall), 0) ** 2


def _clusters(data: VectorData, indices: Int64, seed: int) -> Column:
    """Clusters of the texts by the view that is shown first."""
    texts = [""] * len(indices)
    if "text" in data.columns:
        texts = [text or "" for text in data.reader.table_at(indices, ["text"])["text"].to_pylist()]
    codes, names = cluster_texts(unit_rows(data.reader.vectors_at(indices)), texts, seed=seed)
    counts = tuple(np.bincount(codes, minlength=len(names)).tolist())
    name = CLUSTERS + " (computed)" * (CLUSTERS in data.columns)
    return Column(name, "label", codes, tuple(names), counts)


def _same_label(near: Near, label: Column | None, view: str) -> tuple[float, str]:
    """Fraction of neighbours with the label of their point, where both have one, and a title.

    A label stands apart if its fraction is at least half way from chance to 1.
    """
    layer = split_view(view)[1]
    title = f"Layer {layer}" if layer.isdigit() else view
    theirs = near.indices[:, :_KEPT_OF]
    # points without a label agree with nobody and disagree with nobody
    unlabelled = math.nan, f"{title}: {len(near.indices):,} texts"
    if label is None:
        return unlabelled
    pairs = label.known[:, None] & label.known[theirs]
    same = (label.values[theirs] == label.values[:, None]) & pairs
    total = int(label.known.sum())
    ways: dict[str, float] = {}
    for number, (name, n) in enumerate(zip(label.names, label.counts, strict=True)):
        # chance: how many of its neighbours would have the label if they were any points
        rows, chance = label.values == number, (n - 1) / max(total - 1, 1)
        if pairs[rows].any() and chance < 1:  # no pair is of points without a label
            ways[name] = (same[rows].sum() / pairs[rows].sum() - chance) / (1 - chance)
    if not ways:  # all have one label, or no two neighbours have labels
        return unlabelled
    return float(same[pairs].mean()), f"{title}: {_apart_text(ways)}"


def _apart_text(ways: Mapping[str, float]) -> str:
    """Labels that stand apart, from how far each is between chance and 1.

    >>> print(_apart_text({"a": 0.6, "b": 0.4, "c": 0.7}))
    2 of 3 labels stand apart: c, a
    """
    apart = [name for name in sorted(ways, key=lambda name: -ways[name]) if ways[name] >= 1 / 2]
    named = ", ".join(shorten(name, 24) for name in apart[:_NAMED_APART])
    named += ", …" * (len(apart) > _NAMED_APART)
    return f"{len(apart)} of {len(ways)} labels stand apart" + (f": {named}" if apart else "")


def _chance(label: Column | None) -> float:
    """Fraction of pairs of labelled points that have the same label."""
    sizes = np.bincount([] if label is None else label.values[label.known])
    n = sizes.sum()
    return float((sizes * (sizes - 1)).sum() / (n * (n - 1))) if n > 1 else math.nan


def _page(
    data: VectorData,
    indices: Int64,
    content: dict[str, Any],
    columns: Sequence[Column],
    drawn: Sequence[Drawn],
) -> str:
    """The page; points stand in it in the order of a curve through the first layout."""
    order = pages.curve_order(drawn[content["start"]][1])
    # the inverse of `order`: where a record stands on the page
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    blocks = {}
    squares = [pages.in_square(laid_out[order]) for _, laid_out, _ in drawn]
    # common to all views, so that the picture does not jump while the slider moves
    content["bounds"] = [v for end in (np.min, np.max) for v in end(squares, (0, 1)).tolist()]
    content["views"] = []
    for number, ((row, _, near), points) in enumerate(zip(drawn, squares, strict=True)):
        # 16 bits are finer than any screen; all x first, then all y
        cells = np.rint(points * 65_535).astype(np.uint16)
        blocks[f"points-{number}"] = pages.packed(pages.byte_planes(cells.ravel(order="F"), 2))
        # how far on the curve a neighbour is; with the sign in the lowest bit (zigzag) small
        # differences have small numbers, whose upper bytes are zeros
        listed, cosines = (
            part[order, : content["listed"]] for part in (near.indices, near.cosines)
        )
        apart = place[listed] - np.arange(len(order))[:, None]
        blocks[f"near-{number}"] = pages.packed(pages.byte_planes((apart << 1) ^ (apart >> 63), 3))
        least, most = float(cosines.min()), float(cosines.max())
        # one byte for each cosine, between the least and the most of the view
        step = max(most - least, 1e-9) / 255
        steps = np.rint((cosines - least) / step).astype(np.uint8)
        blocks[f"cosines-{number}"] = pages.packed(steps.tobytes())
        content["views"].append(row | {"least": least, "step": step})
    content["columns"] = []
    for number, column in enumerate(columns):
        kind = "<u4" if column.kind == "label" else "<f8"
        blocks[f"column-{number}"] = pages.packed(column.values[order].astype(kind).tobytes())
        content["columns"].append({"name": column.name, "kind": column.kind})
    blocks["names"] = pages.packed_json([[c.names, c.counts] for c in columns])
    names = ["row", *(name for name in ("id", "text", "text_pair") if name in data.columns)]
    values = data.reader.table_at(indices[order], names).to_pydict()
    texts = values.get("text") or [""] * len(order)
    if pair := values.get("text_pair"):
        texts = [f"{text}\n{other or ''}" for text, other in zip(texts, pair, strict=True)]
    blocks["records"] = pages.packed_json({"rows": values["row"], "ids": values["id"]})
    blocks["texts"] = pages.packed_json(pages.cut_texts(texts, most_bytes=_MOST_BYTES))
    return pages.render_page("explore", content=content, blocks=blocks)
