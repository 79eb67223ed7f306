"""Exact nearest neighbours, straight from the Parquet files.

Row groups are read, multiplied with the queries and forgotten; each thread has one of them in
memory. A thread reads, checks and multiplies by itself, so that one thread's reading goes on while
another computes, and no step waits for the slowest of all threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.dataset.store import Block, VectorData
from embedkit.machine import usable_cores
from embedkit.search.coarse import CoarseProduct, coarse_product
from embedkit.search.topk import TopK, reaching
from embedkit.search.whitening import Isotropy

__all__ = ["METRICS", "Neighbours", "nearest", "unit_rows"]

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

METRICS = ("cosine", "dot", "euclid")

_QUERIES = 1_024
_ROWS = 2_048
_WORTH_ROUGH = 50
_IN_VAIN = 32
_SINGLES = 2_048
_LEAST_SQUARE, _MOST_SQUARE = 1e-30, 1e38
_ROUNDING = 2.0**-20  # of a sum of up to some thousands of products, and to spare


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Nearest records of some queries.

    Attributes:
        scores: ``(queries, k)`` float32, the nearest first: cosines, products, or distances.
        places: ``(queries, k)`` int64 positions among the records of the dataset; ``-1`` where
            there are fewer than ``k``.
    """

    scores: Floats
    places: Integers


def nearest(
    data: VectorData,
    queries: Floats,
    *,
    k: int = 10,
    metric: str = "cosine",
    isotropy: Isotropy | None = None,
    chosen: NDArray[np.bool_] | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Neighbours:
    """The ``k`` nearest records of each query, by looking at every record.

    Memory holds one row group and one tile of scores for each thread, and ``k`` results for each
    query, whatever the size of the dataset.

    Args:
        data: the dataset, with its chosen view.
        queries: ``(queries, width)`` float32.
        k: how many; fewer are found where fewer are there.
        metric: ``cosine`` (0 for a vector of zeros), ``dot`` or ``euclid``.
        isotropy: a map that queries and records go through first.
        chosen: ``(n,)`` bool, records to look at; all by default.
        threads: by default as many as the process may use.
        progress: called with records looked at and records in all.

    Raises:
        DamagedError: a file is not what was written.
    """
    if metric not in METRICS:
        raise ValueError(f"metric={metric!r}: expected {', '.join(METRICS)}.")
    queries = np.ascontiguousarray(queries, np.float32)
    if queries.ndim != 2 or queries.shape[1] != data.width:
        raise ValueError(f"queries of shape {queries.shape}: expected (n, {data.width}).")
    if k < 1:
        raise ValueError(f"k={k}: expected 1 or more.")
    scan = _Scan(data, queries, min(k, max(len(data), 1)), metric, isotropy, chosen, progress)
    best = scan.run(threads or usable_cores())
    return Neighbours(scan.as_asked(best.scores), best.places)


def unit_rows(vectors: Floats) -> Floats:
    """Rows of length 1; rows of zeros stay."""
    return np.asarray(vectors * _inverse_norms(vectors)[:, None], np.float32)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some records of a block, with what their products are multiplied by, or is taken away."""

    vectors: Floats
    places: Integers
    factor: Floats | None
    squares: Floats | None


class _Scan:
    """One pass over the records for all queries."""

    def __init__(
        self,
        data: VectorData,
        queries: Floats,
        k: int,
        metric: str,
        isotropy: Isotropy | None,
        chosen: NDArray[np.bool_] | None,
        progress: Callable[[int, int], None],
    ) -> None:
        self._data, self._k, self._metric = data, k, metric
        self._isotropy, self._chosen, self._progress = isotropy, chosen, progress
        if isotropy is not None:
            queries = isotropy.apply(queries)
        self._queries = unit_rows(queries) if metric == "cosine" else queries
        self._bar = np.full(len(queries), -np.inf, np.float32)
        self._done = 0
        self._stopped = False
        self._in_vain = 0
        self._squares = _squares(self._queries)
        self._coarse = None if metric == "euclid" else coarse_product(self._queries)

    def run(self, threads: int) -> TopK:
        from threadpoolctl import threadpool_limits

        blocks = [b for b in self._data.blocks if self._is_wanted(b)]
        threads = max(1, min(threads, len(blocks)))
        numbers = count()  # next() of it is one step, whichever thread calls
        best = self._kept()
        if len(self._queries) == 0:
            return best

        def work(_: int) -> TopK:
            kept = self._kept()
            # taken once: memory given back and taken again for every block costs a tenth
            rows = max((b.rows for b in blocks), default=0)
            buffer = np.empty(rows * self._data.width, np.float32)
            tile = np.empty(min(len(self._queries), _QUERIES) * min(rows, _ROWS), np.float32)
            while not self._stopped and (number := next(numbers)) < len(blocks):
                self._look_at(blocks[number], buffer, tile, kept)
            return kept

        # each thread multiplies alone; together they use the cores that one product would
        with (
            threadpool_limits(1, user_api="blas"),
            self._coarse.alone() if self._coarse else nullcontext(),
            ThreadPoolExecutor(threads) as pool,
        ):
            try:
                for kept in pool.map(work, range(threads)):
                    best.merge(kept)
            except BaseException:
                self._stopped = True  # the other threads end with the block they are at
                raise
        best.finish()
        return best

    def as_asked(self, scores: Floats) -> Floats:
        """Distances from what was ranked for them; cosines without what rounding adds to 1."""
        if self._metric == "cosine":
            return np.where(np.isinf(scores), scores, np.clip(scores, -1, 1))
        return np.sqrt(-scores) if self._metric == "euclid" else scores

    def _kept(self) -> TopK:
        return TopK(len(self._queries), self._k, bar=self._bar)

    def _is_wanted(self, block: Block) -> bool:
        return self._chosen is None or bool(self._chosen[block.start : block.stop].any())

    def _look_at(self, block: Block, buffer: Floats, tile: Floats, kept: TopK) -> None:
        vectors = buffer[: block.rows * self._data.width].reshape(block.rows, -1)
        self._data.read_block(block, vectors)
        places = np.arange(block.start, block.stop)
        if self._chosen is not None:
            inside = self._chosen[block.start : block.stop]
            if not inside.all():
                vectors, places = vectors[inside], places[inside]
        if self._isotropy is not None:
            vectors = self._isotropy.apply(vectors)
        self._score(vectors, places, tile, kept)
        self._done += block.rows
        self._progress(min(self._done, len(self._data)), len(self._data))

    def _score(self, vectors: Floats, places: Integers, tile: Floats, kept: TopK) -> None:
        lengths = _inverse_norms(vectors) if self._metric == "cosine" else None
        squares = _squares(vectors) if self._metric == "euclid" else None
        for left in range(0, len(vectors), _ROWS):
            here = slice(left, left + _ROWS)
            part = _Part(
                vectors[here], places[here], None if lengths is None else lengths[here],
                None if squares is None else squares[here],
            )  # fmt: skip
            coarse = self._coarse
            rounded = None if coarse is None else coarse.rounded(part.vectors)
            for first in range(0, len(self._queries), _QUERIES):
                count = min(_QUERIES, len(self._queries) - first)
                scores = tile[: count * len(part.places)].reshape(count, -1)
                if part.squares is not None:
                    self._measure(part, part.squares, first, scores, kept)
                elif coarse is None or not self._rule_out(
                    coarse, part, rounded, first, scores, kept
                ):
                    self._multiply(part, first, scores, kept)

    def _multiply(self, part: _Part, first: int, scores: Floats, kept: TopK) -> None:
        """Compute all scores of some queries."""
        queries = self._queries[first : first + len(scores)]
        np.matmul(queries, part.vectors.T, out=scores)
        if part.factor is not None:
            scores *= part.factor
        kept.offer(scores, part.places, first=first)

    def _measure(self, part: _Part, squares: Floats, first: int, rough: Floats, kept: TopK) -> None:
        """Compute the distances of the records that a product does not rule out.

        q² - 2 q·x + x² loses what is small beside q² and x², so that near records are measured by
        their differences. What is kept is minus the square of the distance.
        """
        some = slice(first, first + len(rough))
        own = self._squares[some]
        np.matmul(self._queries[some], part.vectors.T, out=rough)
        rough *= 2
        rough -= squares
        rough -= own[:, None]
        slack = _ROUNDING * (np.sqrt(own) + np.sqrt(squares.max(initial=0))) ** 2
        rows, columns = reaching(rough, kept.limit(rough, first) - 2 * slack)
        for start in range(0, len(rows), _SINGLES):
            row, column = first + rows[start : start + _SINGLES], columns[start : start + _SINGLES]
            apart = _squares(self._queries[row] - part.vectors[column])
            kept.take(row, -apart, part.places[column])

    def _rule_out(
        self, coarse: CoarseProduct, part: _Part, rounded: Any, first: int, rough: Floats,
        kept: TopK,
    ) -> bool:  # fmt: skip
        """Compute only the scores that a rough product does not rule out.

        Returns:
            Whether it was done; ``False`` if there is no bar yet, or too little is ruled out.
        """
        bar = kept.bar(first, len(rough))
        if np.isneginf(bar).any():
            return False
        coarse.scores(rounded, first, rough)
        length = 1.0
        if part.factor is not None:
            rough *= part.factor
        else:
            length = float(np.sqrt(_squares(part.vectors).max(initial=0)))
        rows, columns = reaching(rough, bar - coarse.slack(first, len(rough), length))
        if len(rows) > rough.size // _WORTH_ROUGH:
            self._in_vain += 1  # at first the bar is low; later the records are too close
            if self._in_vain > _IN_VAIN:
                self._coarse = None
            return False
        for start in range(0, len(rows), _SINGLES):
            row, column = rows[start : start + _SINGLES], columns[start : start + _SINGLES]
            exact = np.einsum("ij,ij->i", self._queries[first + row], part.vectors[column])
            if part.factor is not None:
                exact *= part.factor[column]
            kept.take(first + row, exact, part.places[column])
        return True


def _squares(vectors: Floats) -> Floats:
    return np.asarray(np.einsum("ij,ij->i", vectors, vectors), np.float32)


def _inverse_norms(vectors: Floats) -> Floats:
    squares = _squares(vectors)
    norms = np.sqrt(squares)
    odd = np.flatnonzero(~((squares > _LEAST_SQUARE) & (squares < _MOST_SQUARE)))
    if len(odd):  # the square of a very short or long vector is no float32
        norms[odd] = np.linalg.norm(vectors[odd].astype(np.float64), axis=1)
    return np.divide(1, norms, out=np.zeros_like(norms), where=norms > 1 / _MOST_SQUARE)
