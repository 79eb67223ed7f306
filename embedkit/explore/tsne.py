"""t-SNE in two dimensions from lists of nearest neighbours.

Attraction is summed over the neighbours, repulsion on a grid by Fourier transforms (Linderman et
al. 2019), so that an iteration takes time in proportion to the number of points. The tree of
scikit-learn takes three times as long (``docs/search.md``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from embedkit.types import Float32, Int64

__all__ = ["tsne"]

_NODES = 3.0  # of the grid, by unit of the map, on which the force of a point varies
_MOST_NODES = 768
_EXAGGERATION = 12.0
_EXAGGERATED = 250
_LEAST_RATE = 5.0
_LEAST_TOTAL = 1e-3  # points this far apart have lost each other
_FEW = 300  # points of which all pairs are computed


def tsne(
    neighbours: Int64,
    *,
    init: Float32,
    iterations: int = 750,
    exaggerated: int = _EXAGGERATED,
    after: Callable[[], None] = lambda: None,
) -> Float32:
    """Lay points out so that neighbours stay neighbours.

    Every point attracts its neighbours with equal weight, and the weights of pairs are symmetric.

    Args:
        neighbours: ``(n, k)`` the nearest points of each, without itself.
        init: ``(n, 2)`` where the points begin; only their proportions count.
        iterations: number of them in all.
        exaggerated: of these, the first ones, in which attraction is twelve times as strong.
        after: called after every iteration.

    Returns:
        ``(n, 2)`` float32.
    """
    n = len(neighbours)
    pairs = _affinities(neighbours)
    # a small start without exaggeration would tear apart what lies together
    size = 1e-4 if exaggerated >= _EXAGGERATED else 1.0
    points = np.asarray(init - init.mean(axis=0), np.float32)
    points *= size / max(float(points.std(axis=0).max()), 1e-12) if size < 1 else 1
    step, gains = np.zeros_like(points), np.ones_like(points)
    rate = max(n / _EXAGGERATION, _LEAST_RATE)
    for number in range(iterations):
        early = number < exaggerated
        force = _attraction(pairs, points)
        force *= _EXAGGERATION if early else 1.0
        force -= _repulsion(points)
        force *= 4
        same = np.sign(force) == np.sign(step)
        gains = np.maximum(np.where(same, gains * 0.8, gains + 0.2), 0.01)
        step = np.float32(0.5 if early else 0.8) * step - np.float32(rate) * gains * force
        points = np.asarray(points + step - (points + step).mean(axis=0), np.float32)
        after()
    return points


def _affinities(neighbours: Int64) -> tuple[Int64, Int64, Float32]:
    """Pairs that attract each other, by first point, with weights whose sum is 1."""
    from scipy.sparse import csr_matrix

    n, k = neighbours.shape
    one = csr_matrix(
        (np.ones(n * k, np.float32), neighbours.ravel(), np.arange(0, n * k + 1, k)), (n, n)
    )
    both = (one + one.T).tocsr()
    return (np.repeat(np.arange(n), np.diff(both.indptr)), both.indices.astype(np.int64),
            np.asarray(both.data / both.data.sum(), np.float32))  # fmt: skip


def _attraction(pairs: tuple[Int64, Int64, Float32], points: Float32) -> Float32:
    first, second, weight = pairs
    n = len(points)
    x, y = np.ascontiguousarray(points.T)
    dx, dy = x[first] - x[second], y[first] - y[second]
    pull = weight / (1 + dx * dx + dy * dy)
    force = [np.bincount(first, pull * d, minlength=n) for d in (dx, dy)]
    return np.asarray(np.stack(force, axis=1), np.float32)


def _repulsion(points: Float32) -> Float32:
    """The forces away from all other points."""
    if len(points) > _FEW:
        return _repulsion_by_grid(points)
    apart = points[:, None] - points
    near = 1 / (1 + np.einsum("ijk,ijk->ij", apart, apart))
    np.fill_diagonal(near, 0)
    force = np.einsum("ij,ijk->ik", near**2, apart)
    return np.asarray(force / max(float(near.sum()), _LEAST_TOTAL), np.float32)


def _repulsion_by_grid(points: Float32) -> Float32:
    from scipy import fft

    low = points.min(axis=0)
    span = float((points.max(axis=0) - low).max())
    nodes = int(np.clip(np.ceil(span * _NODES), 48, _MOST_NODES)) + 2
    apart = max(span, 1e-6) / (nodes - 2)
    place = (points - low) / apart
    corner = place.astype(np.int64)
    right = place - corner
    left = 1 - right
    corners = [
        ((corner[:, 0] + a) * nodes + corner[:, 1] + b,
         (right if a else left)[:, 0] * (right if b else left)[:, 1])
        for a in (0, 1) for b in (0, 1)
    ]  # fmt: skip
    mass = np.zeros(nodes * nodes)
    for where, weight in corners:
        mass += np.bincount(where, weight, minlength=nodes * nodes)
    size = fft.next_fast_len(2 * nodes, real=True)
    far = fft.fftfreq(size, 1 / size).astype(np.float32) * np.float32(apart)
    near = 1 / (1 + far[:, None] ** 2 + far**2)
    push = far[:, None] * near**2
    flat = fft.rfft2(mass.reshape(nodes, nodes).astype(np.float32), (size, size))
    total = float((fft.irfft2(flat * fft.rfft2(near), (size, size))[:nodes, :nodes].ravel()
                   * mass).sum()) - len(points)  # fmt: skip
    force = np.zeros_like(points)
    for axis, kernel in enumerate((push, push.T)):
        field = fft.irfft2(flat * fft.rfft2(kernel), (size, size))[:nodes, :nodes].ravel()
        for where, weight in corners:
            force[:, axis] += field[where] * weight
    return force / np.float32(max(total, _LEAST_TOTAL))
