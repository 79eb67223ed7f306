"""Quick products in bfloat16 that tell which exact ones are worth computing.

Where the processor has units for bfloat16, such a product takes a fraction of the time. Its error
is bounded: rounding to bfloat16 moves a number by 2⁻⁸ of itself at most, so by the inequality of
Cauchy and Schwarz a product of two rounded vectors, rounded itself, is off by at most about 3·2⁻⁸
of the product of their lengths. A record whose rough score stays below the bar by more than that
cannot be among the nearest; only the others are computed exactly. What is found is the same.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["CoarseProduct", "coarse_product"]

Floats = NDArray[np.float32]

_HALF_STEP = 2.0**-8
_ACCUMULATION = 2.0**-20  # of sums of up to some thousands of terms in float32, and to spare
_ERROR = (1 + _HALF_STEP) ** 3 - 1 + _ACCUMULATION
_LEAST_QUERIES = 128
_WORTH = 0.4
_TRIAL_ROWS = 512


class CoarseProduct:
    """Rough scores of queries with records.

    Args:
        torch: the module.
        queries: ``(queries, width)`` float32.
    """

    def __init__(self, torch: Any, queries: Floats) -> None:
        self._torch = torch
        self._queries = torch.from_numpy(queries).bfloat16()
        norms = np.sqrt(np.einsum("ij,ij->i", queries, queries, dtype=np.float64))
        self._slack = np.asarray(_ERROR * norms, np.float32)

    def rounded(self, vectors: Floats) -> Any:
        """Vectors ``(rows, width)`` in bfloat16, for :meth:`scores`."""
        return self._torch.from_numpy(vectors).bfloat16()

    def scores(self, rounded: Any, first: int, target: Floats) -> None:
        """Write rough products of the queries from ``first`` on into ``(q, rows)`` float32."""
        some = self._queries[first : first + len(target)]
        self._torch.from_numpy(target).copy_(self._torch.mm(some, rounded.T))

    def slack(self, first: int, count: int, length: float) -> Floats:
        """How far a rough product may be off: ``(count,)`` float32.

        Args:
            first: number of the first query.
            count: number of queries.
            length: that of the longest vector.
        """
        return self._slack[first : first + count] * np.float32(length)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let torch use one thread in each of the caller's."""
        threads = self._torch.get_num_threads()
        self._torch.set_num_threads(1)
        try:
            yield
        finally:
            self._torch.set_num_threads(threads)


def coarse_product(queries: Floats) -> CoarseProduct | None:
    """A coarse product for many queries, if torch is loaded and a short trial finds it worth it.

    torch is not loaded for it: that takes longer than it saves.
    """
    torch = sys.modules.get("torch")
    if torch is None or len(queries) < _LEAST_QUERIES:
        return None
    some = torch.from_numpy(queries[:_LEAST_QUERIES])
    rows = torch.ones(_TRIAL_ROWS, queries.shape[1])
    exact = _seconds(lambda: torch.mm(some, rows.T))
    some, rows = some.bfloat16(), rows.bfloat16()
    rough = _seconds(lambda: torch.mm(some, rows.T))
    return CoarseProduct(torch, queries) if rough < _WORTH * exact else None


def _seconds(run: Any) -> float:
    """The least of five times, after one that does not count."""
    times = []
    for _ in range(6):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times[1:])
