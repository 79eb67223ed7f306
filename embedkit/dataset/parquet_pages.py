"""Vectors straight from the pages of a Parquet file.

A general reader rebuilds the nesting of a list column value by value. The vectors of a dataset have
no nulls and one length, and are stored plain and uncompressed, so the values of a page are its last
bytes as they are. Only files of that kind are read here; :func:`copy_vectors` says ``False`` for
all others, which a general reader then takes.

Layout of a data page (version 1), from the Parquet format: a header in Thrift's compact protocol,
then repetition levels, definition levels and values, with a CRC-32 of all that follows the header.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from isal import isal_zlib

from embedkit.types import Float32

__all__ = ["copy_vectors"]

_NUMBER = rb"\x15([\x80-\xff]{0,4}[\x00-\x7f])"
_HEADER = re.compile(  # a data page: both sizes, CRC; values, plain, with both levels run-length
    rb"\x15\x00" + 3 * _NUMBER + rb"\x1c" + _NUMBER + rb"\x15\x00\x15\x06\x15\x06\x00\x00"
)
_HEADER_BYTES = 64


def copy_vectors(path: Path, group: pq.RowGroupMetaData, columns: Mapping[str, Float32]) -> bool:
    """Copy vector columns of a row group into matrices, their checksums verified.

    Args:
        path: the file.
        group: the row group.
        columns: ``(rows, width)`` float32 for each column name, to be filled; they may be parts of
            a wider matrix.

    Returns:
        Whether it was done; ``False`` if the file is not of the kind that this reader takes.

    Raises:
        ValueError: a page is damaged.
        OSError: the file cannot be read.
    """
    chunks = {c.path_in_schema: c for c in map(group.column, range(group.num_columns))}
    with path.open("rb", buffering=0) as file:
        return all(
            _copy_column(file.fileno(), chunks.get(f"{name}.list.element"), matrix)
            for name, matrix in columns.items()
        )


def _copy_column(descriptor: int, chunk: pq.ColumnChunkMetaData | None, matrix: Float32) -> bool:
    if chunk is None or (chunk.physical_type, chunk.compression) != ("FLOAT", "UNCOMPRESSED"):
        return False
    at, start, width = chunk.data_page_offset, 0, matrix.shape[1]
    end = at + chunk.total_compressed_size
    while at < end:
        header = _HEADER.match(os.pread(descriptor, _HEADER_BYTES, at))
        if header is None:
            return False
        _, size, crc, values = map(_integer, header.groups())
        at += header.end()
        stop = start + values // width
        fits = 0 < 4 * values <= size <= end - at and stop <= len(matrix)
        if not fits or values % width:
            return False
        _copy_page(descriptor, at, size, crc & 0xFFFFFFFF, matrix[start:stop])
        at, start = at + size, stop
    return start == len(matrix)


def _copy_page(descriptor: int, at: int, size: int, crc: int, rows: Float32) -> None:
    """Read the values of a page to where they belong, and check all of its body."""
    target = rows if rows.flags.c_contiguous else np.empty(rows.shape, np.float32)
    levels = bytearray(size - target.nbytes)
    values = target.reshape(-1).view(np.uint8).data
    if os.preadv(descriptor, [levels, values], at) != size:
        raise ValueError("the file ends inside a page")
    if isal_zlib.crc32(values, isal_zlib.crc32(levels)) != crc:
        raise ValueError("a page does not match its checksum")
    if target is not rows:
        rows[:] = target


def _integer(encoded: bytes) -> int:
    """A number in Thrift's compact protocol: seven bits a byte, the lowest first, in zigzag."""
    value = sum((byte & 127) << 7 * i for i, byte in enumerate(encoded))
    return (value >> 1) ^ -(value & 1)
