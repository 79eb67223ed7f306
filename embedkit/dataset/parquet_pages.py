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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from isal import isal_zlib
from numpy.typing import NDArray

__all__ = ["copy_vectors"]

Floats = NDArray[np.float32]

_DATA_PAGE, _PLAIN = 0, 0
_INTEGERS = (3, 4, 5, 6)
_HEADER_BYTES = 512
_THREADS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class _Page:
    """One page: where its body begins, its bytes and their checksum, and how many values it has."""

    start: int
    size: int
    crc: int
    values: int


def copy_vectors(
    path: Path,
    metadata: pq.FileMetaData,
    columns: dict[str, Floats],
    *,
    groups: Sequence[int] | None = None,
    threads: int = _THREADS,
) -> bool:
    """Copy vector columns of a file into matrices, their checksums verified.

    Args:
        path: the file.
        metadata: its footer.
        columns: ``(rows, width)`` float32 for each column name, to be filled; they may be parts of
            a wider matrix.
        groups: numbers of the row groups to read, one after the other; by default all.
        threads: pages read at the same time; with 1 they are read by the caller's own thread.

    Returns:
        Whether it was done; ``False`` if the file is not of the kind that this reader takes.

    Raises:
        ValueError: a page is damaged.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        descriptor = file.fileno()
        chosen = range(metadata.num_row_groups) if groups is None else groups
        copies = _plan(descriptor, metadata, columns, chosen)
        if copies is None:
            return False
        if threads == 1:
            for copy in copies:
                _copy(descriptor, *copy)
            return True
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(lambda copy: _copy(descriptor, *copy), copies):
                pass
    return True


def _plan(
    descriptor: int,
    metadata: pq.FileMetaData,
    columns: dict[str, Floats],
    groups: Sequence[int],
) -> list[tuple[_Page, Floats]] | None:
    """Every page with the rows that it fills; ``None`` if a column is not plain."""
    places = {metadata.row_group(0).column(i).path_in_schema: i
              for i in range(metadata.num_columns)} if metadata.num_row_groups else {}  # fmt: skip
    copies = []
    for name, matrix in columns.items():
        start = 0
        for group in groups:
            at = places.get(f"{name}.list.element")
            if at is None:
                return None
            chunk = metadata.row_group(group).column(at)
            if chunk.physical_type != "FLOAT" or chunk.compression != "UNCOMPRESSED":
                return None
            first = chunk.data_page_offset
            for page in _pages(descriptor, first, first + chunk.total_compressed_size):
                if page is None or page.values % matrix.shape[1]:
                    return None
                stop = start + page.values // matrix.shape[1]
                copies.append((page, matrix[start:stop]))
                start = stop
        if start != len(matrix):
            return None
    return copies


def _copy(descriptor: int, page: _Page, rows: Floats) -> None:
    """Read the values of a page to where they belong, and check all of its body."""
    target = rows if rows.flags.c_contiguous else np.empty(rows.shape, np.float32)
    levels = bytearray(page.size - target.nbytes)
    values = target.reshape(-1).view(np.uint8).data
    if _read(descriptor, levels, values, page.start) != page.size:
        raise ValueError("the file ends inside a page")
    if isal_zlib.crc32(values, isal_zlib.crc32(levels)) != page.crc:
        raise ValueError("a page does not match its checksum")
    if target is not rows:
        rows[:] = target


def _read(descriptor: int, levels: bytearray, values: memoryview, start: int) -> int:
    """Fill both buffers from a place in the file; returns how many bytes there were."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [levels, values], start)
    data = os.pread(descriptor, len(levels) + len(values), start)  # macOS before 11
    if len(data) == len(levels) + len(values):
        levels[:], values[:] = data[: len(levels)], data[len(levels) :]
    return len(data)


def _pages(descriptor: int, start: int, end: int) -> Iterator[_Page | None]:
    """The pages of a column chunk; ``None`` for one that is not a plain data page with a CRC."""
    while start < end:
        header, length = _struct(memoryview(os.pread(descriptor, _HEADER_BYTES, start)), 0)
        inner = header.get(5)
        inner = inner if isinstance(inner, dict) else {}
        fields: list[Any] = [
            header.get(1),
            header.get(3),
            header.get(4),
            inner.get(1),
            inner.get(2),
        ]
        if not all(type(field) is int for field in fields):
            yield None
            return
        kind, size, crc, values, encoding = fields
        fits = 0 < 4 * values <= size and start + length + size <= end
        if (kind, encoding) != (_DATA_PAGE, _PLAIN) or not fits:
            yield None
            return
        yield _Page(start + length, size, crc & 0xFFFFFFFF, values)
        start += length + size


def _struct(data: memoryview, at: int) -> tuple[dict[int, Any], int]:
    """Integers and inner structures of a Thrift compact structure by field number, and its end.

    Raises:
        ValueError: it is not one, or it runs over the end.
    """
    fields: dict[int, Any] = {}
    number = 0
    try:
        while True:
            byte = data[at]
            at += 1
            if byte == 0:
                return fields, at
            kind = byte & 15
            if byte >> 4:
                number += byte >> 4
            else:
                number, at = _integer(data, at)
            if kind in (1, 2):
                fields[number] = kind == 1
            elif kind in _INTEGERS:
                fields[number], at = _integer(data, at)
            elif kind == 8:
                size, at = _varint(data, at)
                at += size
            elif kind == 12:
                fields[number], at = _struct(data, at)
            else:
                raise ValueError(f"unexpected type {kind} in a page header")
    except (IndexError, RecursionError) as error:
        raise ValueError("a page header is damaged") from error


def _integer(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
