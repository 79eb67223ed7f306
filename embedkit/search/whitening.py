"""Centering and whitening of a view, fitted on the dataset and stored beside it.

The vectors of a raw BERT share a large common component, so that all cosines are high. ``center``
subtracts the mean; ``whiten`` also scales the principal directions to the same variance (Su et al.,
2021). The covariance is shrunk towards a multiple of the identity (Ledoit and Wolf, 2004), the more
the fewer records there are: whitened by the plain covariance of fewer records than dimensions, all
records would be equally far from each other. The result is stored in ``_embedkit/whitening/`` with
the fingerprint of the dataset and is fitted again when the fingerprint differs.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
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
    """Fit a map; memory holds one row group.

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
    total = np.zeros(data.width)
    for block in data.reader.blocks:
        total += data.reader.vectors_of(block).sum(axis=0, dtype=np.float64)
    mean = (total / len(data)).astype(np.float32)
    if kind == "center":
        return Whitening(kind, mean, None)
    blocks = (data.reader.vectors_of(block) for block in data.reader.blocks)
    values, directions = np.linalg.eigh(_shrunk(blocks, mean, len(data)))
    scale = np.zeros_like(values)
    real = values > _SMALLEST * values[-1]
    scale[real] = values[real] ** -0.5
    return Whitening(kind, mean, (directions * scale).astype(np.float32))


def _shrunk(blocks: Iterable[Float32], mean: Float32, count: int) -> Float64:
    """Covariance of ``count`` vectors, shrunk as Ledoit and Wolf do: ``(width, width)``."""
    covariance, fourth = np.zeros((len(mean), len(mean))), 0.0
    for vectors in blocks:
        moved = vectors - mean
        covariance += (moved.T @ moved).astype(np.float64) / count
        fourth += float((np.einsum("ij,ij->i", moved, moved).astype(np.float64) ** 2).sum()) / count
    variance, spread = np.trace(covariance) / len(mean), (covariance**2).sum()
    distance = spread - len(mean) * variance**2
    shrinkage = 0.0 if distance <= 0 else min(max((fourth - spread) / count / distance, 0.0), 1.0)
    return np.asarray((1 - shrinkage) * covariance + shrinkage * variance * np.eye(len(mean)))


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
            matrix = content.get_tensor("shrunk") if kind == "whiten" else None
            found = Whitening(kind, content.get_tensor("mean"), matrix)
            return found if content.metadata() == _seal(found, fingerprint) else None
    except (SafetensorError, OSError):
        return None


def _write(file: Path, fitted: Whitening, fingerprint: str) -> None:
    from safetensors.numpy import save

    tensors = {"mean": fitted.mean}
    if fitted.matrix is not None:
        tensors["shrunk"] = np.ascontiguousarray(fitted.matrix)
    fsio.make_folder(file.parent)
    data = save(tensors, metadata=_seal(fitted, fingerprint))
    fsio.write_durably(file, data, scratch=file.parent)


def _seal(fitted: Whitening, fingerprint: str) -> dict[str, str]:
    """Dataset and content in one entry: safetensors writes several in an order that changes."""
    parts = (fitted.mean, fitted.matrix)
    content = b"".join(np.ascontiguousarray(part).tobytes() for part in parts if part is not None)
    return {"seal": f"{fingerprint} {hashlib.sha256(content).hexdigest()}"}
