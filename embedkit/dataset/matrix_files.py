"""Matrices in ``.npy`` files that are mapped, with the checksums of their blocks behind them.

    header | numbers | SHA-256 of each block of what is before | number of bytes of that, 8 bytes

NumPy reads as many numbers as the header says; what follows is nothing to it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from embedkit import fsio
from embedkit.checksums import BLOCK, block_sums
from embedkit.types import Float32

__all__ = ["matrix_shape", "open_matrix", "write_matrix"]

_NUMBER, _DIGEST = 8, 32


def write_matrix(file: Path, shape: tuple[int, int], groups: Iterable[Float32]) -> bool:
    """Write ``shape`` float32 in groups of rows, one after the other.

    Returns:
        Whether it was written; not where another process or thread was at it, and has ended.

    Raises:
        StorageError: the file system refused.
    """
    partial = file.with_name(file.name + ".partial")
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    with fsio.storage_errors(file), partial.open("ab") as sink:
        fcntl.flock(sink, fcntl.LOCK_EX)
        if not partial.exists() or not os.path.samestat(partial.stat(), os.fstat(sink.fileno())):
            return False
        try:
            sink.truncate(0)  # of an earlier attempt
            np.lib.format.write_array_header_1_0(sink, header)
            for vectors in groups:  # not mapped: a full disk would end the process
                sink.write(np.ascontiguousarray(vectors, "<f4").data)
            sink.flush()
            size = sink.tell()
            sink.write(bytes.fromhex("".join(block_sums(partial, size))))
            sink.write(size.to_bytes(_NUMBER, "little"))
            sink.flush()
            fsio.publish_file(partial, file)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    return True


def matrix_shape(file: Path, *, verify: bool = True) -> tuple[int, ...] | None:
    """Shape of the float32 matrix in a file; ``None`` for none, or another than was written.

    Args:
        file: an ``.npy`` file.
        verify: compare it with its checksums, which reads all of it.

    Raises:
        StorageError: the file cannot be read.
    """
    if not file.is_file():
        return None
    with fsio.storage_errors(file), file.open("rb") as stream:
        length = stream.seek(0, 2)
        stream.seek(max(length - _NUMBER, 0))
        size = int.from_bytes(stream.read(), "little")
        digests = -(-size // BLOCK) * _DIGEST
        if length != size + digests + _NUMBER:
            return None
        stream.seek(size)
        written = stream.read(digests).hex()
        if verify and "".join(block_sums(file, size)) != written:
            return None
    try:
        found = open_matrix(file)
    except Exception:  # NumPy raises what the parser of Python raises
        return None
    plain = found.dtype == np.float32 and found.flags.c_contiguous and found.ndim == 2
    return found.shape if plain else None


def open_matrix(file: Path) -> Float32:
    """A file of :func:`write_matrix` as a read-only memory map."""
    found: Float32 = np.lib.format.open_memmap(file, "r")  # ``np.load`` reads archives, pickles too
    return found
