"""Recall and speed of the search-time settings of an index."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from embedkit.search.exact import Neighbours
from embedkit.search.kinds import IndexKind
from embedkit.types import Float32, Progress, ProgressCallback

__all__ = ["RECALL_K", "TRUTH_K", "TunePoint", "measure_settings"]

RECALL_K = 10
"""Recall counts the ten nearest records."""

TRUTH_K = 4 * RECALL_K
"""So many are looked up exactly, since repeated texts are equally near."""

_SINGLE = 100
_ENOUGH = 0.999


@dataclass(frozen=True, slots=True)
class TunePoint:
    """One search-time setting with its recall and speed.

    Attributes:
        setting: ``efSearch`` of hnsw, ``nprobe`` of ivf and ivfpq, 0 of flat.
        recall: fraction of the ten nearest records that are found, for queries not in the index.
        single_ms: milliseconds of one query alone, median.
        batch_per_second: queries per second, all in one batch.
    """

    setting: int
    recall: float
    single_ms: float
    batch_per_second: float


def measure_settings(
    index: Any,
    kind: IndexKind,
    queries: Float32,
    truth: Neighbours,
    progress: ProgressCallback,
    *,
    distances: bool,
) -> tuple[TunePoint, ...]:
    """Measure ascending settings until nearly everything is found.

    Args:
        index: the index of faiss.
        kind: its kind.
        queries: ``(m, width)`` float32, not in the index.
        truth: their exact neighbours, ``TRUTH_K`` or fewer.
        progress: called after every setting.
        distances: less is nearer.
    """
    wanted = _wanted(truth, distances=distances)
    settings = kind.settings(index)
    points = []
    for done, setting in enumerate(settings, start=1):
        params = kind.at(setting)
        started = time.perf_counter()
        _, found = index.search(queries, RECALL_K, params=params)
        batch = len(queries) / (time.perf_counter() - started)
        singles = []
        for query in queries[:_SINGLE]:
            started = time.perf_counter()
            index.search(query[None], RECALL_K, params=params)
            singles.append(time.perf_counter() - started)
        right = sum(len(x.intersection(row)) for x, row in zip(wanted, found.tolist(), strict=True))
        recall = right / sum(min(len(x), RECALL_K) for x in wanted)
        points.append(TunePoint(setting, recall, 1e3 * float(np.median(singles)), batch))
        progress(Progress("tuning", done, len(settings), "settings"))
        if recall >= _ENOUGH:
            break
    return tuple(points)


def _wanted(truth: Neighbours, *, distances: bool) -> list[set[int]]:
    """The records that are as near to each query as its tenth neighbour."""
    scores = -truth.scores if distances else truth.scores
    edge = scores[:, min(RECALL_K, scores.shape[1]) - 1] - 1e-6 * np.abs(scores[:, 0])
    return [
        set(indices[(row >= limit) & (indices >= 0)].tolist())
        for indices, row, limit in zip(truth.indices, scores, edge, strict=True)
    ]
