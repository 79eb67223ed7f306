"""Reading the shards of one table: vectors into matrices, other columns as Arrow."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from embedkit.dataset.manifest import FileEntry, Layout, Manifest
from embedkit.dataset.parquet_pages import copy_vectors
from embedkit.dataset.schema import footer_bytes, matrix_of
from embedkit.errors import DamagedError, UsageError
from embedkit.machine import usable_cores
from embedkit.types import Float32, Int64

__all__ = ["Block", "TableReader"]


@dataclass(frozen=True, slots=True)
class Block:
    """A row group of a shard, the smallest part that is read at once.

    Attributes:
        shard: number of the shard.
        group: number of the row group in it.
        start: index of its first row among the rows of the table.
        rows: number of its rows.
        metadata: footer of the shard's file.
    """

    shard: int
    group: int
    start: int
    rows: int
    metadata: pq.FileMetaData

    @property
    def stop(self) -> int:
        """Index after its last row."""
        return self.start + self.rows


class TableReader:
    """Reads one table of a dataset; threads may share it.

    Args:
        path: the dataset.
        manifest: its manifest.
        table: ``sentences``, ``words`` or ``tokens``.
        views: the vector columns that are read, side by side.
    """

    def __init__(self, path: Path, manifest: Manifest, table: str, views: tuple[str, ...]) -> None:
        self._layout, self._manifest, self._table = Layout(path), manifest, table
        self._stored, self._views = manifest.columns_of(table), views
        self._edges = np.cumsum([0, *(self._stored[name] for name in views)]).tolist()
        self.width: int = self._edges[-1]

    def __len__(self) -> int:
        return sum(self._rows(number) for number in range(self._manifest.n_shards))

    def fill(self, matrix: Float32) -> None:
        """Read all vectors into ``(n, width)`` float32, several row groups at a time."""
        with ThreadPoolExecutor(min(8, usable_cores())) as pool:
            read = pool.map(lambda b: self.read_block(b, matrix[b.start : b.stop]), self.blocks)
            for _ in read:
                pass

    @cached_property
    def blocks(self) -> list[Block]:
        """The row groups of all shards in order."""
        found = []
        start = 0
        for number in range(self._manifest.n_shards):
            with self._damage(number):
                metadata = self._metadata(number)
            self._check_rows(number, metadata.num_rows)
            for group in range(metadata.num_row_groups):
                rows = metadata.row_group(group).num_rows
                found.append(Block(number, group, start, rows, metadata))
                start += rows
        return found

    def read_block(self, block: Block, target: Float32) -> None:
        """Read the vectors of one row group in the caller's own thread.

        Args:
            block: one of :attr:`blocks`.
            target: ``(block.rows, width)`` float32 to be filled.
        """
        parts = np.split(target, self._edges[1:-1], axis=1)
        columns = dict(zip(self._views, parts, strict=True))
        with self._damage(block.shard):
            group = block.metadata.row_group(block.group)
            if not copy_vectors(self._part(block.shard), group, columns):
                table = self.scalars_of(block, self._views)
                for name, matrix in columns.items():
                    matrix[:] = matrix_of(table.column(name))

    def vectors_of(self, block: Block) -> Float32:
        """The vectors of a row group, ``(block.rows, width)``."""
        vectors = np.empty((block.rows, self.width), np.float32)
        self.read_block(block, vectors)
        return vectors

    def scalars_of(self, block: Block, names: Sequence[str]) -> pa.Table:
        """Columns of one row group."""
        with self._damage(block.shard), self._open(block.shard, block.metadata) as file:
            return file.read_row_group(block.group, columns=list(names), use_threads=False)

    def scalars(self, names: Sequence[str], shard: int) -> pa.Table:
        """Columns of one shard.

        Raises:
            UsageError: there is no such column.
        """
        for name in names:
            if name not in self.columns:
                raise UsageError(
                    f"{self._layout.root} has no column {name!r}; it has "
                    f"{', '.join(self.columns)}. Extract again with label=, keep= or "
                    "store_text=True."
                )
        with self._damage(shard), self._open(shard) as file:
            table = file.read(columns=list(names))
        self._check_rows(shard, table.num_rows)
        return table

    def column(self, name: str) -> pa.ChunkedArray:
        """One column of all rows; errors as for :meth:`scalars`."""
        shards = range(self._manifest.n_shards)
        return pa.chunked_array(
            [chunk for n in shards for chunk in self.scalars([name], n).column(name).chunks]
        )

    @cached_property
    def columns(self) -> list[str]:
        """Names of the columns that are not vectors."""
        with self._damage(0), self._open(0) as file:
            return [name for name in file.schema_arrow.names if name not in self._stored]

    def pick(self, indices: Int64, names: Sequence[str]) -> dict[str, list[Any]]:
        """Columns that are not vectors, of some rows only; their row groups are read.

        Args:
            indices: ``(m,)`` positions among the rows of the table, in any order.
            names: the columns.

        Returns:
            ``m`` Python values for each column, in the order of ``indices``.
        """
        values: dict[str, list[Any]] = {name: [None] * len(indices) for name in names}
        for block, mine in self._by_block(indices):
            table = self.scalars_of(block, names).take(indices[mine] - block.start)
            for name in names:
                for at, value in zip(mine, table.column(name).to_pylist(), strict=True):
                    values[name][at] = value
        return values

    def vectors_at(self, indices: Int64) -> Float32:
        """Vectors of some rows, ``(m, width)`` float32; memory holds one row group beside them.

        Args:
            indices: ``(m,)`` positions among the rows of the table, in any order.
        """
        vectors = np.empty((len(indices), self.width), np.float32)
        for block, mine in self._by_block(indices):
            vectors[mine] = self.vectors_of(block)[indices[mine] - block.start]
        return vectors

    def _by_block(self, indices: Int64) -> Iterator[tuple[Block, NDArray[np.int64]]]:
        """Row groups that hold some rows, each with the numbers of those it holds."""
        starts = np.array([block.start for block in self.blocks], np.int64)
        owner = np.searchsorted(starts, indices, side="right") - 1
        for number in np.unique(owner):
            yield self.blocks[int(number)], np.flatnonzero(owner == number)

    def _rows(self, number: int) -> int:
        return self._entry(number).rows

    def _entry(self, number: int) -> FileEntry:
        name = f"{self._table}/{self._part(number).name}"
        with self._damage(number):
            if name not in self._manifest.files:
                raise ValueError("the manifest does not name it")
        return self._manifest.files[name]

    def _check_rows(self, number: int, rows: int) -> None:
        with self._damage(number):
            if rows != self._rows(number):
                raise ValueError(f"{rows} rows, {self._rows(number)} were written")

    def _part(self, number: int) -> Path:
        return self._layout.shard_file(self._table, number)

    def _open(self, number: int, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
        return pq.ParquetFile(
            self._part(number), metadata=metadata or self._metadata(number),
            page_checksum_verification=True,
        )  # fmt: skip

    def _metadata(self, number: int) -> pq.FileMetaData:
        """The footer of a shard, which Arrow sees only if it is what was written.

        Arrow takes some damaged footers for others, and ends the process on some.
        """
        part, written = self._part(number), self._entry(number).footer
        if written is None:  # of an earlier version
            return pq.read_metadata(part)
        end = footer_bytes(part, written.bytes)
        if hashlib.sha256(end).hexdigest() != written.sha256:
            raise ValueError("its footer is not what was written")
        return pq.read_metadata(pa.BufferReader(end))

    @contextmanager
    def _damage(self, number: int) -> Iterator[None]:
        try:
            yield
        except (UsageError, DamagedError):
            raise
        except (ValueError, KeyError, pa.ArrowException, OSError) as error:  # a column is missing
            raise DamagedError(
                f"{self._part(number)} is damaged: {error}. Run embedkit verify "
                f"{self._layout.root}."
            ) from error
