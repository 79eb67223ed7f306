"""Geometry of vectors: against plain definitions, and under what must not change it."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from embedkit.geometry import (
    curvature,
    effective_rank,
    gram_entropy,
    linear_cka,
    mean_cosine,
    nearest_rows,
    shared_neighbours,
)
from embedkit.types import Float64

RANDOM = np.random.default_rng(0)
FIRST = RANDOM.normal(size=(60, 7)) + 3
SECOND = (FIRST @ RANDOM.normal(size=(7, 12)) + RANDOM.normal(size=(60, 12))).astype(np.float32)


def true_neighbours(X: Float64, k: int) -> list[set[int]]:
    """The nearest others of each record, as scikit-learn finds them."""
    search = NearestNeighbors(n_neighbors=k, metric="cosine").fit(X)
    return [set(near) for near in search.kneighbors(return_distance=False).tolist()]


def test_both_equal_their_definitions() -> None:
    doubled = SECOND.astype(np.float64)
    # by the Gram matrices of records, centred on both sides
    centring = np.eye(60) - 1 / 60
    first, second = (centring @ x @ x.T @ centring for x in (FIRST, doubled))
    expected = (first * second).sum() / np.sqrt((first**2).sum() * (second**2).sum())
    assert linear_cka(FIRST, SECOND) == pytest.approx(expected, rel=1e-12)
    pairs = zip(true_neighbours(FIRST, 10), true_neighbours(doubled, 10), strict=True)
    shared = [len(mine & theirs) / 10 for mine, theirs in pairs]
    assert shared_neighbours(nearest_rows(FIRST), nearest_rows(SECOND)).tolist() == shared


def test_what_must_change_nothing() -> None:
    turned = 1e-9 * SECOND.astype(np.float64) @ np.linalg.qr(RANDOM.normal(size=(12, 12)))[0]
    assert linear_cka(FIRST, turned + 5) == pytest.approx(linear_cka(FIRST, SECOND), rel=1e-6)
    assert linear_cka(SECOND, FIRST) == pytest.approx(linear_cka(FIRST, SECOND), rel=1e-12)
    near = nearest_rows(FIRST)
    kept = shared_neighbours(near, nearest_rows(SECOND))
    assert (shared_neighbours(near, nearest_rows(turned)) == kept).all()
    assert linear_cka(1e150 * FIRST, FIRST) == pytest.approx(1, rel=1e-12)
    some = np.array([7, 3])
    assert (nearest_rows(SECOND, rows=some) == nearest_rows(SECOND)[some]).all()


def test_blocks_and_few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = nearest_rows(SECOND)
    monkeypatch.setattr("embedkit.geometry._AT_ONCE", 130)
    assert (nearest_rows(SECOND) == whole).all()
    assert nearest_rows(FIRST[:3]).shape == (3, 2)
    assert np.isnan(linear_cka(FIRST, np.ones((60, 2))))


def entropy_of(matrix: Float64) -> float:
    """Von Neumann's entropy of a matrix with trace 1."""
    values = np.linalg.eigvalsh(matrix / np.trace(matrix))
    values = values[values > 1e-14]
    return float(-(values * np.log(values)).sum())


def test_numbers_of_one_set_equal_their_definitions() -> None:
    X = SECOND.astype(np.float64)
    assert effective_rank(SECOND) == pytest.approx(np.exp(entropy_of(np.cov(X.T))), rel=1e-12)
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    cosines = unit @ unit.T
    of_pairs = cosines[~np.eye(len(X), dtype=bool)]
    assert mean_cosine(SECOND) == pytest.approx(of_pairs.mean(), rel=1e-12)
    assert gram_entropy(SECOND) == pytest.approx(entropy_of(cosines) / np.log(12), rel=1e-12)


def test_curvature_of_paths() -> None:
    """A line has none, a square turns by 90 degrees; records count once, however long."""
    line, square = np.outer(np.arange(5.0), [1, 2]), np.array([[0, 0], [1, 0], [1, 1], [0, 1.0]])
    one = np.zeros(5, np.int64)
    assert curvature(line, one) == pytest.approx(0, abs=1e-5)
    assert curvature(square, one[:4]) == pytest.approx(90, rel=1e-12)
    both = np.vstack([line, square, square[:2]])
    assert curvature(both, np.repeat([0, 4, 9], [5, 4, 2])) == pytest.approx(45, rel=1e-6)
    assert np.isnan(curvature(square, np.array([0, 0, 1, 1])))
    still = np.repeat(square, 2, axis=0)
    assert np.isnan(curvature(still, np.zeros(8, np.int64)))  # no step follows another
