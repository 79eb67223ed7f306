"""Geometry of vectors, without labels: how far two sets of vectors of the same records agree.

    a (n, width)  ──► linear CKA: one number, of all distances together
    b (n, other)  ──► neighbours kept: (n,) fractions, of the ten nearest records of each

The two answer different questions. CKA (Kornblith et al. 2019, "Similarity of Neural Network
Representations Revisited") is ruled by the few directions of largest variance, and can be near 1
while the nearest records differ; the neighbours are what search and nearest-neighbour classifiers
use. Neither changes by a rotation or by one common factor, so that vectors of two models, and of
different widths, can be compared.

All sums are in float64: cosines of the first layers are so alike that float32 would order them by
rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.errors import UsageError
from embedkit.types import Float64, Int64

NEIGHBOURS = 10
"""Nearest records of each record that are compared."""

_AT_ONCE = 1 << 22  # cosines in memory: 32 MB


def linear_cka(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Return the linear centred kernel alignment of two sets of vectors of the same records.

    1: equal but for rotation, shift and one factor; 0: unrelated; NaN where one of them does not
    vary. The products are of columns, so that the time grows linearly with the number of records.

    Args:
        a: ``(n, width)`` vectors, of any float type.
        b: ``(n, other)`` vectors of the same records, in the same order.

    Example:
        >>> a = np.array([[0.0, 1.0], [2.0, 0.0], [1.0, 5.0]])
        >>> turned = 3 * a @ np.array([[0.0, 1.0], [-1.0, 0.0]]) + 7
        >>> round(linear_cka(a, turned), 12)
        1.0
    """
    _check_rows(a, b)
    # without a common factor first: squares of squares leave the range of numbers soonest
    a, b = _centred(a), _centred(b)
    sizes = np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b)
    return float(np.linalg.norm(a.T @ b) ** 2 / sizes) if sizes else float("nan")


def kept_neighbours(
    a: NDArray[Any], b: NDArray[Any], *, k: int = NEIGHBOURS, rows: Int64 | None = None
) -> Float64:
    """Return which fraction of the ``k`` nearest records of each record is the same in both.

    Nearest by cosine, without the record itself; where there are fewer than ``k`` others, all of
    them count. Give each text once: the order of equal vectors is arbitrary.

    Args:
        a: ``(n, width)`` vectors, of any float type.
        b: ``(n, other)`` vectors of the same records, in the same order.
        k: number of neighbours.
        rows: ``(m,)`` records whose neighbours are compared, by default all; time and memory grow
            with ``m · n``.

    Returns:
        ``(m,)`` float64 fractions from 0 to 1.

    Example:
        >>> a = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> kept_neighbours(a, a * 2, k=1)
        array([1., 1., 1., 1.])
    """
    _check_rows(a, b)
    mine, theirs = nearest_rows(a, k=k, rows=rows), nearest_rows(b, k=k, rows=rows)
    shared = (mine[:, :, None] == theirs[:, None, :]).any(2)
    return np.asarray(shared.mean(1), np.float64)


def nearest_rows(X: NDArray[Any], *, k: int = NEIGHBOURS, rows: Int64 | None = None) -> Int64:
    """Return the ``k`` nearest rows of each row by cosine, without itself, the nearest first.

    ``X`` is ``(n, width)``; the result ``(m, min(k, n - 1))`` for the ``m`` rows, by default all.
    """
    if k < 1 or len(X) < 2:
        raise UsageError(
            f"k={k} neighbours among {len(X)} vectors: give k from 1 on and at least 2 vectors."
        )
    unit = unit_vectors(X)
    rows = np.arange(len(unit)) if rows is None else np.asarray(rows, np.int64)
    k = min(k, len(unit) - 1)
    near = np.empty((len(rows), k), np.int64)
    step = max(1, _AT_ONCE // len(unit))
    for start in range(0, len(rows), step):
        these = rows[start : start + step]
        cosines = unit[these] @ unit.T
        cosines[np.arange(len(these)), these] = -np.inf
        best = np.argpartition(-cosines, k - 1, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(cosines, best, 1), axis=1, kind="stable")
        near[start : start + step] = np.take_along_axis(best, order, 1)
    return near


def unit_vectors(X: NDArray[Any]) -> Float64:
    """Return the rows at length 1 in float64; rows of zeros stay."""
    X = np.asarray(X, np.float64)
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    return X / np.where(lengths > 0, lengths, 1)


def _centred(X: NDArray[Any]) -> Float64:
    """Columns with mean 0, all divided by the largest absolute value."""
    X = np.asarray(X, np.float64)
    X = X - X.mean(0)
    return X / (np.abs(X).max(initial=0) or 1)


def _check_rows(a: NDArray[Any], b: NDArray[Any]) -> None:
    if np.ndim(a) != 2 or np.ndim(b) != 2 or len(a) != len(b):
        raise UsageError(
            f"vectors of shapes {np.shape(a)} and {np.shape(b)}: expected two tables with a row "
            "for each record, of the same records in the same order."
        )
