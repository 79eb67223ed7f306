"""Geometry of vectors, without labels: of one set, and of two sets for the same records.

    X (n, width)  ──► effective rank, mean cosine, entropy     one number each
    tokens (m, width), in records  ──► curvature               degrees
    a (n, width)  ──► linear CKA: one number, of all distances together
    b (n, other)  ──► neighbours kept: (n,) fractions, of the ten nearest records of each

The two that compare answer different questions. CKA (Kornblith et al. 2019, "Similarity of Neural
Network Representations Revisited") is ruled by the few directions of largest variance, and can be
near 1 while the nearest records differ; the neighbours are what search and nearest-neighbour
classifiers use. Neither changes by a rotation or by one common factor, so that vectors of two
models, and of different widths, can be compared.

All sums are in float64: cosines of the first layers are so alike that float32 would order them by
rounding. Spectra are those of ``(width, width)`` matrices, whose eigenvalues other than 0 are those
of the Gram matrix of the records. ``docs/probing.md`` has the sources.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.types import Float64, Int64

NEIGHBOURS = 10
"""Nearest records of each record that are compared."""

METRICS = {
    "effective_rank": "rank",
    "mean_cosine": "cosine",
    "entropy": "entropy",
    "curvature": "turns",
    "cka_to_last": "CKA",
    "neighbours_of_last": "kept",
}
"""Numbers of a view without labels, with the heads of their columns."""

_AT_ONCE = 1 << 22  # cosines in memory: 32 MB


def effective_rank(X: NDArray[Any]) -> float:
    """Return over how many directions the variance of ``(n, width)`` vectors is spread.

    The exponential of the entropy of the eigenvalues of the covariance matrix: ``width`` if all
    directions vary alike, 1 if one does.
    """
    centred = _centred(X)
    return float(np.exp(_entropy(np.linalg.eigvalsh(centred.T @ centred))))


def mean_cosine(X: NDArray[Any]) -> float:
    """Return the mean cosine of two different rows, also called anisotropy; NaN of one row."""
    unit = unit_vectors(X)
    pairs = len(unit) * (len(unit) - 1)
    # the squared length of the sum of unit vectors is the sum of all their cosines, from which
    # those of rows with themselves are taken: n·width operations instead of n²·width
    return float(((unit.sum(0) ** 2).sum() - (unit**2).sum()) / pairs) if pairs else float("nan")


def gram_entropy(X: NDArray[Any]) -> float:
    """Return the entropy of the Gram matrix of cosines as a fraction of the most there can be.

    Von Neumann's entropy of the matrix divided by its trace, over the logarithm of the smaller of
    number and width: 0 if all rows have one direction, 1 if they have all directions alike.
    """
    unit = unit_vectors(X)
    # there are at most so many eigenvalues other than 0
    most = np.log(min(unit.shape))
    return float(_entropy(np.linalg.eigvalsh(unit.T @ unit)) / most) if most > 0 else float("nan")


def curvature(tokens: NDArray[Any], record: Int64) -> float:
    """Return by how many degrees the path of a text through its tokens turns at a token.

    The mean over records of the mean angle between one step, from a token to the next, and the
    step after it: 0 of a straight line, about 120 of points without order.

    Args:
        tokens: ``(m, width)`` vectors, of any float type, token after token.
        record: ``(m,)`` number of the record of each token; the tokens of a record stand together.
            Records of fewer than three tokens are left out.

    Returns:
        Degrees; NaN where no record has three tokens.
    """
    steps = unit_vectors(np.diff(np.asarray(tokens, np.float64), axis=0))
    angles = np.degrees(np.arccos(np.clip((steps[1:] * steps[:-1]).sum(1), -1, 1)))
    # a step between records is none, and one that stays where it is has no direction: both are
    # marked, and no angle with them counts
    moves = (np.abs(steps).max(1, initial=0) > 0) & (record[1:] == record[:-1])
    # an angle has two steps and so three tokens, of which record[2:] is that of the last one
    inside = moves[1:] & moves[:-1]
    _, place = np.unique(record[2:][inside], return_inverse=True)
    if not len(place):
        return float("nan")
    # first the mean of each record, so that long texts weigh no more than short ones
    return float((np.bincount(place, angles[inside]) / np.bincount(place)).mean())


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
    # without a common factor first: squares of squares leave the range of numbers soonest
    a, b = _centred(a), _centred(b)
    sizes = np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b)
    return float(np.linalg.norm(a.T @ b) ** 2 / sizes) if sizes else float("nan")


def shared_neighbours(near: Int64, others: Int64) -> Float64:
    """Return which fraction of the neighbours of each record is the same in two sets of vectors.

    Both are what :func:`nearest_rows` says of the same ``(m, k)`` records, so that a set which is
    compared with several is searched once. Give each text once: the order of equal vectors is
    arbitrary.

    Returns:
        ``(m,)`` float64 fractions from 0 to 1.

    Example:
        >>> a = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> shared_neighbours(nearest_rows(a), nearest_rows(a * 2))
        array([1., 1., 1., 1.])
    """
    return np.asarray((near[:, :, None] == others[:, None, :]).any(2).mean(1), np.float64)


def nearest_rows(X: NDArray[Any], *, rows: Int64 | None = None) -> Int64:
    """Return the ten nearest rows of each row by cosine, without itself, the nearest first.

    Where there are fewer others, all of them count.

    Args:
        X: ``(n, width)`` vectors, of any float type, two at least.
        rows: ``(m,)`` records whose neighbours are wanted, by default all; time and memory grow
            with ``m · n``.

    Returns:
        ``(m, min(10, n - 1))`` numbers of rows.
    """
    unit = unit_vectors(X)
    rows = np.arange(len(unit)) if rows is None else np.asarray(rows, np.int64)
    k = min(NEIGHBOURS, len(unit) - 1)
    near = np.empty((len(rows), k), np.int64)
    step = max(1, _AT_ONCE // len(unit))
    for start in range(0, len(rows), step):
        chunk = rows[start : start + step]
        # rounded, so that the order in which threads make a sum decides nothing
        cosines = (unit[chunk] @ unit.T).round(9)
        # a record is not its own neighbour
        cosines[np.arange(len(chunk)), chunk] = -np.inf
        # the k best in linear time, without a negated copy of the matrix; only these are sorted
        best = np.argpartition(cosines, len(unit) - k, axis=1)[:, len(unit) - k :]
        order = np.argsort(-np.take_along_axis(cosines, best, 1), axis=1, kind="stable")
        near[start : start + step] = np.take_along_axis(best, order, 1)
    return near


def unit_vectors(X: NDArray[Any]) -> Float64:
    """Return the rows at length 1 in float64; rows of zeros stay."""
    X = np.asarray(X, np.float64)
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    return X / np.where(lengths > 0, lengths, 1)


def _entropy(values: NDArray[Any]) -> float:
    """The entropy of values from 0 on as parts of their sum, in nats."""
    # rounding leaves eigenvalues just below 0, and 0·log 0 is 0
    values = values[values > 0]
    parts = values / values.sum()
    return float(-(parts * np.log(parts)).sum())


def _centred(X: NDArray[Any]) -> Float64:
    """Columns with mean 0, all divided by the largest absolute value."""
    X = np.asarray(X, np.float64)
    X = X - X.mean(0)
    # by 1 where all vectors are equal
    return X / (np.abs(X).max(initial=0) or 1)
