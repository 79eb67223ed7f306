"""Exact nearest neighbours, computed from the row groups of the Parquet files.

Each thread reads a row group, multiplies it with the queries and keeps the best scores in a result
heap of faiss; the heaps of all row groups are merged in order. Memory does not grow with the
dataset.

The products are NumPy's and not those of ``faiss.knn``: for fewer than some hundred queries faiss
compares pair by pair (``docs/search.md`` has both times), and of records with equal scores it does
not keep the first ones.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from embedkit.choices import SEARCH_METRICS, check_choice
from embedkit.dataset.reader import Block
from embedkit.dataset.store import VectorData
from embedkit.errors import UsageError, check_counts
from embedkit.machine import faiss_with_threads, usable_cores
from embedkit.types import Bool, Float32, Int64, Progress, ProgressCallback, no_progress

if TYPE_CHECKING:
    from embedkit.search.whitening import Whitening

__all__ = ["Neighbours", "nearest", "unit_rows"]

_TILE = 1 << 21  # scores that a thread holds at once: 8 MB
_PAIRS = 2_048  # distances that are refined at once
_LEAST_SQUARE, _MOST_SQUARE = 1e-30, 1e38
_ROUNDING = 2.0**-20  # relative error bound of a float32 sum of up to some thousand products
_BLOCKS = 4  # row groups that a thread works on before the results are merged


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Nearest records of some queries.

    Attributes:
        scores: ``(queries, k)`` float32, the nearest first: cosines, products, or distances.
        indices: ``(queries, k)`` int64 positions among the records of the dataset; ``-1`` where
            there are fewer than ``k``. Records with equal scores are in ascending order.
    """

    scores: Float32
    indices: Int64


def nearest(
    data: VectorData,
    queries: Float32,
    *,
    k: int = 10,
    metric: str = "cosine",
    whitening: Whitening | None = None,
    chosen: Bool | None = None,
    threads: int | None = None,
    progress: ProgressCallback = no_progress,
) -> Neighbours:
    """Find the ``k`` nearest records of each query by comparing it with every record.

    Memory holds one row group and one tile of scores for each thread, and ``k`` results of some
    row groups for each query, whatever the size of the dataset.

    Args:
        data: the dataset, with its chosen view.
        queries: ``(queries, width)`` float32.
        k: number of neighbours; fewer are found where there are fewer records.
        metric: ``cosine`` (0 for a vector of zeros), ``dot`` or ``euclid``. Distances are computed
            from differences in float64, so that they hold far from the origin too.
        whitening: applied to queries and records first.
        chosen: ``(n,)`` bool, the records to compare with; all by default.
        threads: by default the number of cores that the process may use.
        progress: called after every row group, in records.

    Raises:
        UsageError: a setting or the shape of the queries cannot be used.
        DamagedError: a file does not hold what was written.
    """
    from threadpoolctl import threadpool_limits

    check_choice(SEARCH_METRICS, metric=metric)
    check_counts(k=k, threads=threads)
    queries = np.ascontiguousarray(queries, np.float32)
    if queries.ndim != 2 or queries.shape[1] != data.width:
        raise UsageError(f"queries of shape {queries.shape}: expected (n, {data.width}).")
    k = min(k, max(len(data), 1))
    if whitening is not None:
        queries = whitening.apply(queries)
    if metric == "cosine":
        queries = unit_rows(queries)
    best = partial(_best, data, queries, k, metric, whitening, chosen)
    blocks = [b for b in data.reader.blocks if chosen is None or chosen[b.start : b.stop].any()]
    threads = max(1, min(threads or usable_cores(), len(blocks)))
    with (
        faiss_with_threads(1) as faiss,
        threadpool_limits(1, user_api="blas"),
        # together the threads use the cores that one product would
        ThreadPoolExecutor(threads, initializer=partial(faiss.omp_set_num_threads, 1)) as pool,
    ):
        heap = faiss.ResultHeap(len(queries), k)
        for start in range(0, len(blocks), _BLOCKS * threads):
            some = blocks[start : start + _BLOCKS * threads]
            for block, (values, indices) in zip(some, pool.map(best, some), strict=True):
                heap.add_result(values, indices)
                progress(Progress("searching", block.stop, len(data), "records"))
        heap.finalize()
    return Neighbours(_scores(heap.D, heap.I, metric), heap.I)


def _scores(values: Float32, indices: Int64, metric: str) -> Float32:
    """Similarities, or distances, from what the heap keeps the smallest of."""
    scores = np.sqrt(values) if metric == "euclid" else -values
    if metric == "cosine":  # rounding can lead beyond 1
        scores = np.clip(scores, -1, 1)
    scores[indices < 0] = np.inf if metric == "euclid" else -np.inf
    return scores


def unit_rows(vectors: Float32) -> Float32:
    """Rows of length 1; rows of zeros stay.

    >>> unit_rows(np.array([[3, 4], [0, 0]], np.float32)).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    return np.asarray(vectors * _inverse_norms(vectors)[:, None], np.float32)


def _best(
    data: VectorData, queries: Float32, k: int, metric: str, whitening: Whitening | None,
    chosen: Bool | None, block: Block,
) -> tuple[Float32, Int64]:  # fmt: skip
    """Values and indices of the ``k`` nearest records of a row group, in no order.

    The values are negated products or squared distances: a heap that keeps the smallest ones admits
    only smaller values and drops the largest index of equal ones, so that of equal values the
    lowest indices are kept.
    """
    import faiss

    vectors, indices = data.reader.vectors_of(block), np.arange(block.start, block.stop)
    if chosen is not None:
        inside = chosen[block.start : block.stop]
        vectors, indices = vectors[inside], indices[inside]
    if whitening is not None:
        vectors = whitening.apply(vectors)
    factor = -_inverse_norms(vectors) if metric == "cosine" else np.float32(-1)
    heap = faiss.ResultHeap(len(queries), min(k, len(vectors)))
    step = max(1, _TILE // len(vectors))
    for first in range(0, len(queries), step):
        some = queries[first : first + step]
        values = some @ vectors.T
        if metric == "euclid":
            values = _distances(values, some, vectors, heap.k)
        else:
            values *= factor
        heap.add_result_subset(np.arange(first, first + len(some)), values, indices)
    return heap.D, heap.I


def _distances(products: Float32, queries: Float32, vectors: Float32, k: int) -> Float32:
    """Squared distances, infinite for records that are not among the ``k`` nearest.

    q² - 2 q·x + x² loses what is small beside q² and x². It only excludes records; distances of the
    others are computed from the differences. ``products`` is overwritten.
    """
    own, squares = _squares(queries), _squares(vectors)
    products *= -2
    products += squares  # q² is left out: it is the same for all records
    limit = np.partition(products, k - 1, axis=1)[:, k - 1]
    limit += 2 * _ROUNDING * (np.sqrt(own) + np.sqrt(squares.max())) ** 2
    rows, columns = np.nonzero(products <= limit[:, None])
    products[:] = np.inf
    for start in range(0, len(rows), _PAIRS):
        row, column = rows[start : start + _PAIRS], columns[start : start + _PAIRS]
        apart = queries[row].astype(np.float64) - vectors[column]
        products[row, column] = np.einsum("ij,ij->i", apart, apart)
    return products


def _squares(vectors: Float32) -> Float32:
    return np.asarray(np.einsum("ij,ij->i", vectors, vectors), np.float32)


def _inverse_norms(vectors: Float32) -> Float32:
    squares = _squares(vectors)
    norms = np.sqrt(squares)
    odd = np.flatnonzero(~((squares > _LEAST_SQUARE) & (squares < _MOST_SQUARE)))
    if len(odd):  # the square of a very short or long vector is no float32
        norms[odd] = np.linalg.norm(vectors[odd].astype(np.float64), axis=1)
    return np.divide(1, norms, out=np.zeros_like(norms), where=norms > 1 / _MOST_SQUARE)
