"""Check whatever embedkit wrote: folders by their checksums, single files by those they carry."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from embedkit.dataset.matrix_files import matrix_shape
from embedkit.dataset.verification import Verification
from embedkit.dataset.verification import verify as verify_folder
from embedkit.decoding import read_table
from embedkit.errors import DamagedError, UsageError
from embedkit.parquet_seal import has_seal
from embedkit.runs.split_files import is_split, read_split
from embedkit.types import ProgressCallback, no_progress

__all__ = ["Verification", "verify"]


def verify(
    path: str | Path,
    *,
    recompute: int = 0,
    model: str | None = None,
    device: str = "auto",
    seed: int = 0,
    progress: ProgressCallback = no_progress,
) -> Verification:
    """Check a dataset against its manifest and against itself, all else by its checksums.

    Args:
        path: a dataset with its indexes, a run, an index, a split, predictions in Parquet, a cache
            of :class:`~embedkit.sklearn.TextEncoder` or of ``data.mapped``.
        recompute: of a dataset, number of random shards to embed again from their stored texts.
        model: where the checkpoint is now, if not under the name it had.
        device: where to recompute.
        seed: seed of the choice of shards.
        progress: called with the shards that were embedded again.

    Raises:
        UsageError: there is nothing that can be checked, or no texts to recompute from.
        DamagedError: a manifest cannot be read.
        MismatchError: the checkpoint found has other weights or files.

    Example:
        >>> found = embedkit.verify("vectors", recompute=1)
        >>> found.ok, found.rows, found.recomputed_rows  # 12 texts and their 72 words
        (True, 12, 84)
    """
    file = Path(path)
    if not file.is_file():
        return verify_folder(
            file, recompute=recompute, model=model, device=device, seed=seed, progress=progress
        )
    if file.suffix not in _CHECKS:
        raise UsageError(
            f"{file} carries no checksum. Give a dataset, a run, an index, or a file that ends in "
            f"{', '.join(_CHECKS)}."
        )
    found = Verification(files=1)
    try:
        _CHECKS[file.suffix](file, found)
    except DamagedError as error:
        found.problems.append(str(error).rstrip(". "))
    return found


def _check_parquet(file: Path, found: Verification) -> None:
    """A split, whose parts have checksums too, or predictions."""
    table = read_table(file)
    found.rows = table.num_rows
    if is_split(table):
        read_split(file)
    elif not has_seal(file.read_bytes()):
        raise UsageError(
            f"{file} carries no checksum: an earlier version or another program wrote it."
        )


def _check_cache(file: Path, found: Verification) -> None:
    from embedkit.sklearn import check_cache

    found.rows, damaged = check_cache(file)
    if damaged:
        found.problems.append(
            f"{damaged:,} of {found.rows:,} vectors are not what was written; they are made again "
            "when they are used"
        )


def _check_matrix(file: Path, found: Verification) -> None:
    shape = matrix_shape(file)
    if shape is None:
        raise DamagedError(f"{file} is not what was written. It is made again when it is used.")
    found.rows, found.values = shape[0], math.prod(shape)


_CHECKS: dict[str, Callable[[Path, Verification], None]] = {
    ".parquet": _check_parquet, ".sqlite": _check_cache, ".npy": _check_matrix,
}  # fmt: skip
