"""The k best of many queries, kept while scores come by in blocks.

What is needed of a block is little: once k good scores are known, a new one is kept only if it
reaches the worst of them. Those few are gathered and merged when as many are waiting as are kept,
so that sorting costs nearly nothing however many blocks there are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["TopK", "reaching"]

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

_LEAST = 4_096


class TopK:
    """Running best places of each query; of equal scores the lower places are kept.

    Args:
        queries: number of queries.
        k: how many places are kept for each.
        bar: ``(queries,)`` float32, a score that a place must reach to be kept. Several threads
            may share one: each raises it to the worst score it keeps.

    Attributes:
        scores: ``(queries, k)`` float32, best first; ``-inf`` where there are fewer.
        places: ``(queries, k)`` int64; ``-1`` where there are fewer.
    """

    def __init__(self, queries: int, k: int, *, bar: Floats | None = None) -> None:
        self.scores = np.full((queries, k), -np.inf, np.float32)
        self.places = np.full((queries, k), -1, np.int64)
        self._bar = np.full(queries, -np.inf, np.float32) if bar is None else bar
        self._waiting: list[tuple[Integers, Floats, Integers]] = []
        self._count = 0
        self._room = max(queries * k, _LEAST)

    def offer(self, scores: Floats, places: Integers, *, first: int = 0) -> None:
        """Look at the scores of a block.

        Args:
            scores: ``(q, rows)`` float32 of the queries ``first`` to ``first + q``; ``-inf`` is
                never kept.
            places: ``(rows,)`` places of the columns, ascending from block to block.
            first: number of the first query.
        """
        if scores.shape[1] == 0:
            return
        rows, columns = reaching(scores, self.limit(scores, first))
        self._keep(rows + first, scores[rows, columns], places[columns])

    def limit(self, scores: Floats, first: int) -> Floats:
        """What scores ``(q, rows)`` of the queries from ``first`` on must reach: ``(q,)``.

        The bar; for a query without one, the ``k``-th best of these scores.
        """
        limit = self.bar(first, len(scores))
        fresh = np.flatnonzero(limit == -np.inf)
        if len(fresh):
            limit[fresh] = self._kth_best(scores[fresh])
        return limit

    def bar(self, first: int, count: int) -> Floats:
        """The scores to be reached of ``count`` queries from ``first`` on, ``-inf`` at first."""
        return self._bar[first : first + count].copy()

    def take(self, query: Integers, scores: Floats, places: Integers) -> None:
        """Look at single scores.

        Args:
            query: ``(m,)`` numbers of the queries.
            scores: ``(m,)`` float32.
            places: ``(m,)`` places.
        """
        good = scores >= self._bar[query]
        self._keep(query[good], scores[good], places[good])

    def merge(self, other: TopK) -> None:
        """Take in what another one has kept of the same queries."""
        other.finish()
        query = np.repeat(np.arange(len(other.scores)), other.scores.shape[1])
        self._keep(query, other.scores.reshape(-1), other.places.reshape(-1))

    def finish(self) -> None:
        """Bring :attr:`scores` and :attr:`places` up to date."""
        if self._waiting:
            self._settle()

    def _kth_best(self, scores: Floats) -> Floats:
        k = self.scores.shape[1]
        if scores.shape[1] <= k:
            return np.full(len(scores), np.finfo(np.float32).min, np.float32)
        kth = np.partition(scores, scores.shape[1] - k, axis=1)[:, scores.shape[1] - k]
        return np.maximum(kth, np.finfo(np.float32).min)

    def _keep(self, query: Integers, scores: Floats, places: Integers) -> None:
        self._waiting.append((query, scores, places))
        self._count += len(query)
        if self._count >= self._room:
            self._settle()

    def _settle(self) -> None:
        """Merge what is waiting into what is kept, and raise the bar."""
        queries, k = self.scores.shape
        kept = np.repeat(np.arange(queries), k)
        self._waiting.append((kept, self.scores.reshape(-1), self.places.reshape(-1)))
        query, scores, places = (np.concatenate(x) for x in zip(*self._waiting, strict=True))
        self._waiting, self._count = [], 0
        there = places >= 0
        query, scores, places = query[there], scores[there], places[there]
        order = np.lexsort((places, -scores, query))
        query = query[order]
        starts = np.searchsorted(query, np.arange(queries))
        rank = np.arange(len(query)) - starts[query]
        inside = rank < k
        order, query, rank = order[inside], query[inside], rank[inside]
        self.scores.fill(-np.inf)
        self.places.fill(-1)
        self.scores[query, rank] = scores[order]
        self.places[query, rank] = places[order]
        np.maximum(self._bar, self.scores[:, -1], out=self._bar)


def reaching(scores: Floats, limit: Floats) -> tuple[Integers, Integers]:
    """Rows and columns of the scores ``(q, rows)`` that reach the limit of their row ``(q,)``."""
    chosen = np.flatnonzero(scores.max(axis=1) >= limit)
    if not len(chosen):
        return chosen, chosen
    part = scores if len(chosen) == len(scores) else scores[chosen]
    hits = np.flatnonzero(part >= limit[chosen, None])
    rows, columns = np.divmod(hits, scores.shape[1])
    return chosen[rows], columns
