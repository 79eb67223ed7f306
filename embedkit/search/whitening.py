"""Centring and whitening of a view, learnt on the dataset and stored beside it.

The vectors of a raw BERT share a large common part, so that all cosines are high. ``center`` takes
the mean away; ``whiten`` also scales the principal directions to the same variance (Su et al.,
2021). What is learnt stands in ``_embedkit/isotropy/`` and carries the fingerprint of the dataset;
of another dataset it is learnt anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedkit import fsio
from embedkit.dataset.store import Layout, VectorData
from embedkit.errors import StorageError, UsageError

__all__ = ["KINDS", "Isotropy", "isotropy_of", "learn_isotropy"]

Floats = NDArray[np.float32]

KINDS = ("center", "whiten")

_SMALLEST = 1e-6


@dataclass(frozen=True, slots=True)
class Isotropy:
    """A linear map that makes a view more isotropic.

    Attributes:
        kind: ``center`` or ``whiten``.
        mean: ``(width,)`` float32, taken away first.
        matrix: ``(width, width)`` float32, multiplied from the right; ``None`` for ``center``.
    """

    kind: str
    mean: Floats
    matrix: Floats | None

    def apply(self, vectors: Floats) -> Floats:
        """Vectors ``(n, width)`` as the map makes them."""
        moved = vectors - self.mean
        return np.asarray(moved if self.matrix is None else moved @ self.matrix, np.float32)


def learn_isotropy(data: VectorData, kind: str) -> Isotropy:
    """Learn a map in one pass over the vectors; memory holds one row group.

    Directions with less than a millionth of the largest variance are noise of rounding and are
    mapped to zero.

    Raises:
        UsageError: the kind is unknown, or there are too few records.
    """
    if kind not in KINDS:
        raise UsageError(f"isotropy {kind!r}: expected {' or '.join(KINDS)}.")
    if len(data) < 2:
        raise UsageError(f"{data.path} has {len(data)} records; --{kind} needs 2 or more.")
    width = data.width
    total = np.zeros(width, np.float64)
    products = np.zeros((width, width), np.float64)
    origin: Floats | None = None
    for block in data.blocks:
        vectors = np.empty((block.rows, width), np.float32)
        data.read_block(block, vectors)
        if origin is None:  # near the mean, so that the products are of the size of the variance
            origin = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
        vectors -= origin
        total += vectors.sum(axis=0, dtype=np.float64)
        if kind == "whiten":
            products += (vectors.T @ vectors).astype(np.float64)
    assert origin is not None
    moved = total / len(data)
    mean = (origin + moved).astype(np.float32)
    if kind == "center":
        return Isotropy(kind, mean, None)
    values, directions = np.linalg.eigh(products / len(data) - np.outer(moved, moved))
    scale = np.zeros_like(values)
    real = values > _SMALLEST * values[-1]
    scale[real] = values[real] ** -0.5
    return Isotropy(kind, mean, (directions * scale).astype(np.float32))


def isotropy_of(
    data: VectorData, kind: str, *, notify: Callable[[str], None] = lambda _: None
) -> Isotropy:
    """The map of a view, from beside the dataset, or learnt and stored there.

    Raises:
        UsageError: the kind is unknown, or there are too few records.
    """
    file = Layout(data.path).private / "isotropy" / f"{'+'.join(data.views)}.{kind}.safetensors"
    found = _read(file, kind, data.manifest.fingerprint)
    if found is None:
        found = learn_isotropy(data, kind)
        try:
            _write(file, found, data.manifest.fingerprint)
        except StorageError as error:
            notify(f"{error} It will be learnt again the next time.")
    return found


def _read(file: Path, kind: str, fingerprint: str) -> Isotropy | None:
    """What is stored; ``None`` if there is nothing, or it is damaged or of another dataset."""
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        return None
    try:
        with safe_open(str(file), framework="numpy") as content:
            if (content.metadata() or {}).get("fingerprint") != fingerprint:
                return None
            matrix = content.get_tensor("matrix") if kind == "whiten" else None
            return Isotropy(kind, content.get_tensor("mean"), matrix)
    except (SafetensorError, OSError):
        return None


def _write(file: Path, learnt: Isotropy, fingerprint: str) -> None:
    from safetensors.numpy import save

    tensors = {"mean": learnt.mean}
    if learnt.matrix is not None:
        tensors["matrix"] = np.ascontiguousarray(learnt.matrix)
    fsio.make_folder(file.parent)
    data = save(tensors, metadata={"fingerprint": fingerprint})
    fsio.write_durably(file, data, scratch=file.parent)
