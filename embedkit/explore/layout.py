"""Points of many layers in two dimensions, and what such a picture keeps of the neighbours."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from embedkit.choices import LAYOUT_METHODS, check_choice
from embedkit.errors import UsageError
from embedkit.explore.tsne import tsne
from embedkit.machine import faiss_with_threads, usable_cores
from embedkit.types import Float32, Int64

__all__ = ["Near", "aligned", "first_axes", "kept_neighbours", "lay_out", "nearest_points"]

ATTRACTING = 15
"""Number of neighbours that hold a point where it is."""
_EXACT = 20_000
_PROBED, _CELLS = 1_000, 512
_FIRST, _NEXT, _NEXT_OF_MANY = 750, 300, 150


@dataclass(frozen=True, slots=True)
class Near:
    """The nearest points of every point by cosine.

    Attributes:
        indices: ``(n, k)`` the nearest first, without the point itself.
        cosines: ``(n, k)`` float32.
        probed: ``(m,)`` points whose neighbours were searched exactly.
        exact: ``(m, k)`` their nearest points.
    """

    indices: Int64
    cosines: Float32
    probed: Int64
    exact: Int64

    @property
    def recall(self) -> float:
        """Fraction of the true neighbours of the probed points that were found."""
        return _common(self.indices[self.probed], self.exact)


def nearest_points(unit: Float32, k: int, *, seed: int = 0) -> Near:
    """Find the nearest points of every point.

    Up to 20,000 points are compared with each other in full. Of more, an inverted file of vectors
    of 8 bits proposes candidates, which are compared in full.

    Args:
        unit: ``(n, width)`` float32, rows of length 1.
        k: number of neighbours; fewer where there are fewer points.
        seed: of the points that are probed.
    """
    n, width = unit.shape
    k = min(k, n - 1)
    probed = np.arange(n)
    with faiss_with_threads(usable_cores()) as faiss:
        index = faiss.IndexFlatIP(width)
        index.add(unit)
        if n <= _EXACT:
            near = _others(index.search(unit, k + 1), probed)
            return Near(*near, probed, near[0])
        chosen = np.sort(np.random.default_rng(seed).choice(n, _PROBED, replace=False))
        exact, _ = _others(index.search(unit[chosen], k + 1), chosen)
        # by distance, whose order among vectors of length 1 is that of cosines
        quick = faiss.index_factory(width, f"IVF{_CELLS},SQ8,RFlat", faiss.METRIC_L2)
        quick.train(unit)
        quick.add(unit)
        quick.k_factor = 4
        faiss.extract_index_ivf(quick.base_index).nprobe = 64
        squares, indices = quick.search(unit, k + 1)
        return Near(*_others((1 - squares / 2, indices), probed), chosen, exact)


def _others(found: tuple[Float32, Int64], points: Int64) -> tuple[Int64, Float32]:
    """Neighbours without the point itself, which copies of it may have crowded out."""
    cosines, indices = found
    self_ = indices == points[:, None]
    self_[~self_.any(axis=1), -1] = True
    shape = (len(points), indices.shape[1] - 1)
    return indices[~self_].reshape(shape), cosines[~self_].reshape(shape)


def _common(one: Int64, other: Int64) -> float:
    shared = (one[:, :, None] == other[:, None, :]).any(axis=2)
    return float(shared.mean())


def kept_neighbours(near: Near, points: Float32, *, k: int = 10) -> float:
    """Return the fraction of the nearest points in full width that are nearest here too.

    Args:
        near: neighbours in full width.
        points: ``(n, 2)`` the layout, whose neighbours are those by distance.
        k: number of neighbours; fewer where there are fewer.
    """
    from scipy.spatial import cKDTree

    k = min(k, near.exact.shape[1])
    here, _ = _others(cKDTree(points).query(points[near.probed], k + 1), near.probed)
    return _common(near.exact[:, :k], here)


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

    t-SNE and UMAP begin where the layer before ended, and every layout is turned onto the one
    before, so that points move no further than they must.

    Args:
        unit: ``(n, width)`` float32, rows of length 1.
        near: their neighbours.
        method: one of :data:`~embedkit.choices.LAYOUT_METHODS`.
        before: ``(n, 2)`` the layout of the layer before.
        seed: of UMAP.
        after: called after every iteration of t-SNE.

    Raises:
        UsageError: UMAP is not installed.
    """
    check_choice(LAYOUT_METHODS, method=method)
    init = first_axes(unit) if before is None else before
    if method == "tsne" and len(unit) > ATTRACTING + 1:
        points = tsne(
            near.indices[:, :ATTRACTING], init=init, after=after,
            iterations=iterations_of(len(unit), first=before is None),
            **({} if before is None else {"exaggerated": 0}),
        )  # fmt: skip
    elif method == "umap":
        points = _umap(unit, init, seed)
    else:  # of a few points, too, each of which has all others as neighbours
        points = first_axes(unit)
    return points if before is None else aligned(points, before)


def iterations_of(n: int, *, first: bool) -> int:
    """Number of iterations of t-SNE for a layer of so many points."""
    return _FIRST if first else _NEXT if n <= _EXACT else _NEXT_OF_MANY


def first_axes(unit: Float32) -> Float32:
    """Return ``(n, 2)`` float32: the two first principal components."""
    from sklearn.decomposition import PCA

    if unit.shape[1] == 1:
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
    left, _, right = np.linalg.svd(centred.T.astype(np.float64) @ (before - middle))
    return np.asarray(centred @ (left @ right) + middle, np.float32)


def _umap(unit: Float32, init: Float32, seed: int) -> Float32:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its dependencies, and that a seed means one thread
        try:
            from umap import UMAP
        except ImportError as error:
            raise UsageError(
                "method='umap' needs a package: pip install umap-learn. Or use method='tsne'."
            ) from error
        scale = 10 / max(float(np.abs(init).max()), 1e-12)
        made = UMAP(n_neighbors=min(ATTRACTING, len(unit) - 1), metric="cosine",
                    random_state=seed, init=init * np.float32(scale))  # fmt: skip
        return np.asarray(made.fit_transform(unit), np.float32)


def layer_order(count: int, start: int) -> Iterator[tuple[int, int | None]]:
    """Layers from one outwards, each with its neighbour that comes before it.

    >>> list(layer_order(4, 2))
    [(2, None), (1, 2), (0, 1), (3, 2)]
    """
    yield start, None
    yield from ((i, i + 1) for i in range(start - 1, -1, -1))
    yield from ((i, i - 1) for i in range(start + 1, count))
