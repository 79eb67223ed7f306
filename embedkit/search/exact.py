"""Exact nearest neighbours, computed from the row groups of the Parquet files.

Each thread reads a row group, multiplies it with the queries and adds the scores to a result heap
of faiss; at the end the heaps of all threads are merged. Memory does not grow with the dataset.

The products are NumPy's and not those of ``faiss.knn``: for fewer than some hundred queries faiss
compares pair by pair, and the BLAS in its wheel knows fewer processors than NumPy's
(``docs/search.md`` has both times).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from embedkit.choices import SEARCH_METRICS, check_choice
from embedkit.dataset.reader import Block
from embedkit.dataset.store import VectorData
from embedkit.errors import UsageError, check_counts
from embedkit.machine import faiss_with_threads, usable_cores
from embedkit.search.whitening import Whitening
from embedkit.types import Bool, Float32, Int64, Progress, ProgressCallback, no_progress

__all__ = ["Neighbours", "nearest", "unit_rows"]

_TILE = 1 << 21  # scores that a thread holds at once: 8 MB
_PAIRS = 2_048  # distances that are refined at once
_LEAST_SQUARE, _MOST_SQUARE = 1e-30, 1e38
_ROUNDING = 2.0**-20  # relative error bound of a float32 sum of up to some thousand products


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

    Memory holds one row group and one tile of scores for each thread, and ``k`` results for each
    query and thread, whatever the size of the dataset.

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
    check_choice(SEARCH_METRICS, metric=metric)
    check_counts(k=k, threads=threads)
    queries = np.ascontiguousarray(queries, np.float32)
    if queries.ndim != 2 or queries.shape[1] != data.width:
        raise UsageError(f"queries of shape {queries.shape}: expected (n, {data.width}).")
    scan = _Scan(data, queries, min(k, max(len(data), 1)), metric, whitening, chosen, progress)
    return scan.run(threads or usable_cores())


def unit_rows(vectors: Float32) -> Float32:
    """Rows of length 1; rows of zeros stay.

    >>> unit_rows(np.array([[3, 4], [0, 0]], np.float32)).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    return np.asarray(vectors * _inverse_norms(vectors)[:, None], np.float32)


class _Scan:
    """One pass over the records for all queries.

    The heaps keep the smallest values: negated products, or squared distances. Row groups reach a
    thread in ascending order, and a heap of faiss admits only smaller values and drops the largest
    index of equal ones, so that of equal values the lowest indices are kept.
    """

    def __init__(
        self,
        data: VectorData,
        queries: Float32,
        k: int,
        metric: str,
        whitening: Whitening | None,
        chosen: Bool | None,
        progress: ProgressCallback,
    ) -> None:
        self._data, self._k, self._metric = data, k, metric
        self._whitening, self._chosen, self._progress = whitening, chosen, progress
        if whitening is not None:
            queries = whitening.apply(queries)
        if metric != "euclid":
            queries = -(unit_rows(queries) if metric == "cosine" else queries)
        self._queries, self._squares = queries, _squares(queries)
        self._done, self._lock = 0, threading.Lock()
        self._stopped = False

    def run(self, threads: int) -> Neighbours:
        """Compare every query with every record."""
        from threadpoolctl import threadpool_limits

        if not len(self._queries):
            empty = (0, self._k)
            return Neighbours(np.zeros(empty, np.float32), np.zeros(empty, np.int64))
        blocks = [block for block in self._data.reader.blocks if self._is_wanted(block)]
        threads = max(1, min(threads, len(blocks)))
        waiting = iter(blocks)  # shared: each thread takes the next row group when it is free
        one_thread = (1,)  # together the threads use the cores that one product would
        with (
            faiss_with_threads(1) as faiss,
            threadpool_limits(1, user_api="blas"),
            ThreadPoolExecutor(threads, initializer=faiss.omp_set_num_threads,
                               initargs=one_thread) as pool,
        ):  # fmt: skip
            try:
                heaps = list(pool.map(lambda _: self._work(waiting), range(threads)))
            except BaseException:
                self._stopped = True  # the other threads end after their row group
                raise
        values = np.concatenate([heap.D for heap in heaps], axis=1)
        indices = np.concatenate([heap.I for heap in heaps], axis=1)
        values[indices < 0] = np.inf
        order = np.lexsort((indices, values), axis=1)[:, : self._k]
        values, indices = (np.take_along_axis(x, order, axis=1) for x in (values, indices))
        return Neighbours(self._as_scores(values), indices)

    def _as_scores(self, values: Float32) -> Float32:
        """Values of the heaps as distances or products; cosines within -1 and 1."""
        if self._metric == "euclid":
            return np.sqrt(values)
        scores = -values
        if self._metric == "cosine":  # rounding can lead beyond 1
            scores = np.where(np.isinf(scores), scores, np.clip(scores, -1, 1))
        return scores

    def _is_wanted(self, block: Block) -> bool:
        return self._chosen is None or bool(self._chosen[block.start : block.stop].any())

    def _work(self, blocks: Iterator[Block]) -> Any:
        """Compare with row groups until none is left; returns a ``faiss.ResultHeap``."""
        import faiss

        heap = faiss.ResultHeap(len(self._queries), self._k)
        rows = max((block.rows for block in self._data.reader.blocks), default=0)
        # allocated once for all row groups: allocating it for each costs a tenth of the time
        buffer = np.empty(rows * self._data.width, np.float32)
        tile = np.empty(max(_TILE, rows), np.float32)
        for block in blocks:
            if self._stopped:
                break
            vectors, indices = self._read(block, buffer)
            self._compare(vectors, indices, tile, heap)
            with self._lock:
                self._done += block.rows
                self._progress(Progress("searching", self._done, len(self._data), "records"))
        heap.finalize()
        return heap

    def _read(self, block: Block, buffer: Float32) -> tuple[Float32, Int64]:
        """Vectors of the chosen records of a row group as they are compared, and their indices."""
        vectors = buffer[: block.rows * self._data.width].reshape(block.rows, -1)
        self._data.reader.read_block(block, vectors)
        indices = np.arange(block.start, block.stop)
        if self._chosen is not None:
            inside = self._chosen[block.start : block.stop]
            if not inside.all():
                vectors, indices = vectors[inside], indices[inside]
        if self._whitening is not None:
            vectors = self._whitening.apply(vectors)
        return vectors, indices

    def _compare(self, vectors: Float32, indices: Int64, tile: Float32, heap: Any) -> None:
        """Add the values of some records and all queries to a heap."""
        factor = _inverse_norms(vectors) if self._metric == "cosine" else None
        step = max(1, _TILE // len(vectors))
        for first in range(0, len(self._queries), step):
            some = np.arange(first, min(first + step, len(self._queries)))
            values = tile[: len(some) * len(vectors)].reshape(len(some), -1)
            np.matmul(self._queries[first : first + step], vectors.T, out=values)
            if factor is not None:
                values *= factor
            elif self._metric == "euclid":
                rows, values = self._distances(values, vectors, some, heap.D[some, 0])
                some = some[rows]
            heap.add_result_subset(some, values, indices)

    def _distances(
        self, products: Float32, vectors: Float32, some: Int64, worst: Float32
    ) -> tuple[Int64, Float32]:
        """Squared distances, infinite for records that cannot be a result.

        q² - 2 q·x + x² loses what is small beside q² and x². It only excludes records; distances
        of the others are computed from the differences.

        Args:
            products: ``(queries, rows)``, overwritten.
            vectors: ``(rows, width)``.
            some: numbers of the queries.
            worst: ``(queries,)`` largest value that each heap still holds.

        Returns:
            Which of the queries have a possible result, and their distances.
        """
        own, squares = self._squares[some], _squares(vectors)
        products *= -2
        products += squares  # q² is left out: it is the same for all records
        limit = worst - own
        unfilled = np.flatnonzero(worst == np.finfo(np.float32).max)
        if len(unfilled) and len(vectors) > self._k:
            kth = np.partition(products[unfilled], self._k - 1, axis=1)[:, self._k - 1]
            limit[unfilled] = kth
        limit += 2 * _ROUNDING * (np.sqrt(own) + np.sqrt(squares.max())) ** 2
        queries = np.flatnonzero(products.min(axis=1) <= limit)
        rows, columns = np.nonzero(products[queries] <= limit[queries, None])
        distances = np.full((len(queries), len(vectors)), np.inf, np.float32)
        for start in range(0, len(rows), _PAIRS):
            row, column = rows[start : start + _PAIRS], columns[start : start + _PAIRS]
            apart = self._queries[some[queries[row]]].astype(np.float64) - vectors[column]
            distances[row, column] = np.einsum("ij,ij->i", apart, apart)
        return queries, distances


def _squares(vectors: Float32) -> Float32:
    return np.asarray(np.einsum("ij,ij->i", vectors, vectors), np.float32)


def _inverse_norms(vectors: Float32) -> Float32:
    squares = _squares(vectors)
    norms = np.sqrt(squares)
    odd = np.flatnonzero(~((squares > _LEAST_SQUARE) & (squares < _MOST_SQUARE)))
    if len(odd):  # the square of a very short or long vector is no float32
        norms[odd] = np.linalg.norm(vectors[odd].astype(np.float64), axis=1)
    return np.divide(1, norms, out=np.zeros_like(norms), where=norms > 1 / _MOST_SQUARE)
