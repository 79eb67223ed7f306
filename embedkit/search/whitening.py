"""Centering and whitening of a view, fitted on the dataset and stored beside it.

The vectors of a raw BERT share a large common component, so that all cosines are high. ``center``
subtracts the mean; ``whiten`` also scales the principal directions to the same variance (Su et al.,
2021). The covariance is shrunk towards a multiple of the identity (Ledoit and Wolf, 2004), the more
the fewer records there are: whitened by the plain covariance of fewer records than dimensions, all
records would be equally far from each other. The result is stored in ``_embedkit/whitening/`` with
the fingerprint of the dataset and is fitted again when the fingerprint differs.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embedkit import fsio
from embedkit.choices import WHITENINGS, check_choice
from embedkit.dataset.store import Layout, VectorData
from embedkit.errors import StorageError, UsageError
from embedkit.types import Float32, Float64

__all__ = ["Whitening", "fit_whitening", "load_whitening"]

logger = logging.getLogger(__name__)

_SMALLEST = 1e-6


@dataclass(frozen=True, slots=True)
class Whitening:
    """A linear map that centers a view or whitens it.

    Attributes:
        kind: ``center`` or ``whiten``.
        mean: ``(width,)`` float32, subtracted first.
        matrix: ``(width, width)`` float32, multiplied from the right; ``None`` for ``center``.
    """

    kind: str
    mean: Float32
    matrix: Float32 | None

    def apply(self, vectors: Float32) -> Float32:
        """Centered or whitened vectors, ``(n, width)`` float32."""
        moved = vectors - self.mean
        return np.asarray(moved if self.matrix is None else moved @ self.matrix, np.float32)


def fit_whitening(data: VectorData, kind: str) -> Whitening:
    """Fit a map in one pass over the vectors; memory holds one row group.

    Directions whose shrunk variance is less than a millionth of the largest are rounding noise and
    are mapped to zero.

    Raises:
        UsageError: the kind is unknown, or there are fewer than two records.
    """
    check_choice(WHITENINGS, whitening=kind)
    if len(data) < 2:
        raise UsageError(
            f"{data.path} has {len(data)} records; whitening={kind!r} needs 2 or more."
        )
    moments = _Moments(data.width, squares=kind == "whiten")
    for block in data.reader.blocks:
        vectors = np.empty((block.rows, data.width), np.float32)
        data.reader.read_block(block, vectors)
        moments.add(vectors)
    if kind == "center":
        return Whitening(kind, moments.mean, None)
    values, directions = np.linalg.eigh(moments.covariance)
    shrinkage = moments.shrinkage
    values = (1 - shrinkage) * values + shrinkage * values.mean()
    scale = np.zeros_like(values)
    real = values > _SMALLEST * values[-1]
    scale[real] = values[real] ** -0.5
    return Whitening(kind, moments.mean, (directions * scale).astype(np.float32))


class _Moments:
    """Sums over vectors, from which their mean, covariance and shrinkage follow.

    They are taken about the mean of the first vectors, which is near that of all, so that sums of
    squares are of the size of the variance.
    """

    def __init__(self, width: int, *, squares: bool) -> None:
        self._with_squares = squares
        self._count = 0
        self._origin: Float32 | None = None
        self._sum, self._cubes = np.zeros(width), np.zeros(width)
        self._products = np.zeros((width, width))
        self._lengths = self._fourth = 0.0

    def add(self, vectors: Float32) -> None:
        """Add vectors ``(m, width)``, which are overwritten."""
        if self._origin is None:
            self._origin = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
        vectors -= self._origin
        self._count += len(vectors)
        self._sum += vectors.sum(axis=0, dtype=np.float64)
        if self._with_squares:
            self._products += (vectors.T @ vectors).astype(np.float64)
            lengths = np.einsum("ij,ij->i", vectors, vectors).astype(np.float64)
            self._cubes += lengths @ vectors
            self._lengths += float(lengths.sum())
            self._fourth += float(lengths @ lengths)

    @property
    def mean(self) -> Float32:
        """``(width,)`` float32."""
        assert self._origin is not None
        return (self._origin + self._sum / self._count).astype(np.float32)

    @property
    def covariance(self) -> Float64:
        """``(width, width)`` float64."""
        moved = self._sum / self._count
        return np.asarray(self._products / self._count - np.outer(moved, moved))

    @property
    def shrinkage(self) -> float:
        """Weight of the identity in the covariance, 0 to 1, after Ledoit and Wolf."""
        count, moved, covariance = self._count, self._sum / self._count, self.covariance
        square = float(moved @ moved)
        fourth = (  # the sum of |x - mean|⁴
            self._fourth + 4 * float(moved @ self._products @ moved) + count * square**2
            - 4 * float(self._cubes @ moved) + 2 * square * self._lengths
            - 4 * square * count * square
        )  # fmt: skip
        spread = float((covariance**2).sum())
        distance = spread - float(np.trace(covariance)) ** 2 / len(covariance)
        error = (fourth / count - spread) / count
        return min(max(error / distance, 0.0), 1.0) if distance > 0 else 0.0


def load_whitening(data: VectorData, kind: str) -> Whitening:
    """The map of a view: read from beside the dataset, or fitted and stored there.

    Raises:
        UsageError: the kind is unknown, or there are fewer than two records.
    """
    check_choice(WHITENINGS, whitening=kind)
    file = Layout(data.path).private / "whitening" / f"{'+'.join(data.views)}.{kind}.safetensors"
    found = _read(file, kind, data.manifest.fingerprint)
    if found is None:
        found = fit_whitening(data, kind)
        try:
            _write(file, found, data.manifest.fingerprint)
        except StorageError as error:
            logger.warning("%s It will be fitted again the next time.", error)
    return found


def _read(file: Path, kind: str, fingerprint: str) -> Whitening | None:
    """The stored map; ``None`` if there is none, or it is damaged or of another dataset."""
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        return None
    try:
        with safe_open(str(file), framework="numpy") as content:
            if (content.metadata() or {}).get("fingerprint") != fingerprint:
                return None
            matrix = content.get_tensor("shrunk") if kind == "whiten" else None
            return Whitening(kind, content.get_tensor("mean"), matrix)
    except (SafetensorError, OSError):
        return None


def _write(file: Path, fitted: Whitening, fingerprint: str) -> None:
    from safetensors.numpy import save

    tensors = {"mean": fitted.mean}
    if fitted.matrix is not None:
        tensors["shrunk"] = np.ascontiguousarray(fitted.matrix)
    fsio.make_folder(file.parent)
    data = save(tensors, metadata={"fingerprint": fingerprint})
    fsio.write_durably(file, data, scratch=file.parent)
