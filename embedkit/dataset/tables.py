"""The reader of a dataset's Parquet tables, row group by row group.

    DATASET/sentences/part-00000000.parquet ─┐ footer: is it the shard that the manifest names?
                      part-00000001.parquet ─┤ row groups, read by several threads
                      …                     ─┘ each page of a vector column copied into its place

Columns of text and numbers go through pyarrow. Vectors are copied from their pages straight into
the matrix that the caller gets: the columns are written without compression, nulls or a dictionary
for this purpose, so a page is a header of a few bytes and then the numbers. The checksum of each
page is compared on the way; a page in another form is left to pyarrow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from isal import isal_zlib
from numpy.typing import NDArray

from embedkit import storage
from embedkit.dataset.format import Layout, Manifest, is_dataset, read_manifest
from embedkit.dataset.parquet import footer_sha256, matrix_of, numbers, places
from embedkit.errors import DamagedError, LockedError, Option, UsageError, did_you_mean
from embedkit.machine import usable_cores
from embedkit.remote import spelled
from embedkit.types import Float32, Int64

# 0x15: an i32 field whose id is one more than that of the field before; then a number of up to five
# bytes, of which all but the last have the highest bit
_VARINT = rb"\x15([\x80-\xff]{0,4}[\x00-\x7f])"


_HEADER = re.compile(  # a data page: both sizes, CRC; values, plain, with both levels run-length
    # in order: type (0: data page), sizes raw and compressed, CRC; 0x1c begins the data page's own
    # header: number of values, encoding (0: plain), encodings of both levels (3, as a zigzag 6);
    # both structures end
    rb"\x15\x00" + 3 * _VARINT + rb"\x1c" + _VARINT + rb"\x15\x00\x15\x06\x15\x06\x00\x00"
)


# one read gets a whole header: the longest of this form has 35 bytes
_HEADER_BYTES = 64


def copy_vectors(
    descriptor: int, group: pq.RowGroupMetaData, columns: Mapping[str, Float32]
) -> bool:
    """Copy vector columns of a row group of an open file into matrices, page checksums compared.

    ``columns`` are ``(rows, width)`` float32 by column name, maybe parts of a wider matrix.
    ``False`` if the file is not of the kind that this reader takes; a damaged page is a
    ``ValueError``.
    """
    chunks = {c.path_in_schema: c for c in map(group.column, range(group.num_columns))}
    return all(
        _copy_column(descriptor, chunks.get(f"{name}.list.element"), matrix)
        for name, matrix in columns.items()
    )


def _copy_column(descriptor: int, chunk: pq.ColumnChunkMetaData | None, matrix: Float32) -> bool:
    # float16, int8 and compact columns go through pyarrow
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
        # a header is read before any checksum: whatever it says must stay inside of the chunk and
        # the matrix. Writers may end a page within a vector; such a page is left to pyarrow
        fits = 0 < 4 * values <= size <= end - at and stop <= len(matrix)
        if not fits or values % width:
            return False
        # CRC is a signed number in Thrift
        _copy_page(descriptor, at, size, crc & 0xFFFFFFFF, matrix[start:stop])
        at, start = at + size, stop
    return start == len(matrix)


def _copy_page(descriptor: int, at: int, size: int, crc: int, rows: Float32) -> None:
    """Read the values of a page to where they belong, and check all of its body."""
    # one view is read straight into its place; of several side by side each row is a piece, which a
    # read cannot fill, so that these take one copy more
    target = rows if rows.flags.c_contiguous else np.empty(rows.shape, np.float32)
    # what stands before the values, definition and repetition levels, says nothing here: no nulls,
    # and lists of one length. The checksum covers it
    levels = bytearray(size - target.nbytes)
    values = target.reshape(-1).view(np.uint8).data
    # pread has no position that threads would share; one call fills both buffers
    if os.preadv(descriptor, [levels, values], at) != size:
        raise ValueError("the file ends inside a page")
    # the same checksum as zlib's, computed faster
    if isal_zlib.crc32(values, isal_zlib.crc32(levels)) != crc:
        raise ValueError("a page does not match its checksum")
    if target is not rows:
        rows[:] = target


def _integer(encoded: bytes) -> int:
    """A zigzag number in Thrift's compact protocol: seven bits a byte, the lowest first."""
    value = sum((byte & 127) << 7 * i for i, byte in enumerate(encoded))
    return (value >> 1) ^ -(value & 1)


class Block(NamedTuple):
    """A row group, number ``group`` of a shard; its rows begin at ``start`` of the table."""

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

    ``views`` are the vector columns that are read, side by side.
    """

    def __init__(self, path: Path, manifest: Manifest, table: str, views: tuple[str, ...]) -> None:
        self._path, self._manifest, self._table = path, manifest, table
        self._files = manifest.files_of(table)
        # columns are read when they are used, maybe in another current folder; messages name the
        # folder as it was given
        self.folder = path.absolute()
        self._stored, self._views = manifest.columns_of(table), views
        self._edges = np.cumsum([0, *(self._stored[name] for name in views)]).tolist()
        self.width: int = self._edges[-1]

    def __len__(self) -> int:
        return sum(file.rows for file in self._files)

    def fill(self, matrix: Float32) -> None:
        """Read all vectors into ``(n, width)`` float32, several row groups at a time."""
        with ThreadPoolExecutor(min(8, usable_cores())) as pool:
            # files are read without the interpreter's lock; results are listed, since an error of a
            # thread is raised with its result alone
            list(pool.map(lambda b: self.vectors_of(b, matrix[b.start : b.stop]), self.blocks))

    @cached_property
    def blocks(self) -> list[Block]:
        """The row groups of all shards in order."""
        blocks: list[Block] = []
        start = 0
        for number in range(len(self._files)):
            with self._opened(number) as file:
                metadata = self._metadata(number, file)
            for group in range(metadata.num_row_groups):
                rows = metadata.row_group(group).num_rows
                blocks.append(Block(number, group, start, rows, metadata))
                start += rows
        return blocks

    def vectors_of(self, block: Block, out: Float32 | None = None) -> Float32:
        """The vectors of a row group, ``(rows, width)``, in a matrix ``out`` if one is given.

        They are read in the caller's thread.
        """
        vectors = np.empty((block.rows, self.width), np.float32) if out is None else out
        columns = self.divided(vectors)
        with self._opened(block.shard) as file:
            group = block.metadata.row_group(block.group)
            if not copy_vectors(file.fileno(), group, columns):
                # a file of another form; pyarrow reads what this reader does not
                table = self.scalars_of(block, self._views)
                for name, matrix in columns.items():
                    matrix[:] = matrix_of(table, name)
        return vectors

    def scalars_of(self, block: Block, names: Sequence[str]) -> pa.Table:
        """Columns of one row group."""
        with self._opened(block.shard) as file:
            shard = pq.ParquetFile(file, metadata=block.metadata, page_checksum_verification=True)
            # use_threads=False: several row groups are read at a time already
            table = shard.read_row_group(block.group, columns=list(names), use_threads=False)
            # Arrow reads fewer rows where the header of a page says so
            if table.num_rows != block.rows:
                raise ValueError(f"a column has {table.num_rows} values, expected {block.rows}")
            return table

    def scalars(self, names: Sequence[str]) -> Iterator[tuple[Block, pa.Table]]:
        """Columns of each row group; a :class:`UsageError` if there is no such column."""
        for name in names:
            if name not in self.columns:
                root = self._path
                if name == "text":
                    raise UsageError(
                        f"{root} stores no texts. Extract it with them, or give the corpus."
                    )
                raise UsageError(
                    f"{root} has no column {name!r}; it has {', '.join(self.columns)}."
                    f"{did_you_mean(name, self.columns)} Extract it again with "
                    f"{Option('label', of='extract')} or {Option('keep', of='extract')}."
                )
        return ((block, self.scalars_of(block, names)) for block in self.blocks)

    def column(self, name: str) -> pa.ChunkedArray:
        """One column of all rows; errors as for :meth:`scalars`."""
        parts = (table.column(name).chunks for _, table in self.scalars([name]))
        return pa.chunked_array(list(chain.from_iterable(parts)), self.schema.field(name).type)

    def integers(self, name: str) -> Int64:
        """One column of whole numbers of all rows, ``(n,)`` int64."""
        return np.asarray(numbers(self.column(name)), np.int64)

    @cached_property
    def rows(self) -> Int64:
        """Number of the record of each row, ``(n,)`` int64, ascending."""
        return self.integers("row")

    def extent(self, records: Int64) -> tuple[Int64, Int64]:
        """First row and number of rows of records by their numbers, maybe none."""
        begins = np.searchsorted(self.rows, records)
        return begins, np.searchsorted(self.rows, records, side="right") - begins

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of all stored columns."""
        with self._opened(0) as file:
            return self._metadata(0, file).schema.to_arrow_schema()

    @cached_property
    def columns(self) -> list[str]:
        """Names of the columns that are not vectors."""
        return [name for name in self.schema.names if name not in self._stored]

    def table_at(self, indices: Int64, names: Sequence[str]) -> pa.Table:
        """Columns at ``(m,)`` positions in any order."""
        schema = pa.schema([self.schema.field(name) for name in names])
        if not len(indices):
            return schema.empty_table()
        parts, positions = [], []
        for block, members in self._by_block(indices):
            rows = places(indices[members] - block.start)
            table = self.scalars_of(block, names).take(rows)
            # one schema for all parts, so that they can be put together
            parts.append(table.cast(schema))
            positions.append(members)
        # the parts are in the order of row groups; this puts them into that of the indices
        order = places(np.argsort(np.concatenate(positions)))
        return pa.concat_tables(parts).take(order)

    def divided(self, vectors: Float32) -> dict[str, Float32]:
        """The columns of vectors that were read side by side."""
        return dict(zip(self._views, np.split(vectors, self._edges[1:-1], axis=1), strict=True))

    def vectors_at(self, indices: Int64) -> Float32:
        """``(m, width)`` float32 at ``(m,)`` positions; memory holds one row group beside them."""
        vectors = np.empty((len(indices), self.width), np.float32)
        for block, members in self._by_block(indices):
            # scattered rows are read by row groups too: a page can be checked only as a whole
            vectors[members] = self.vectors_of(block)[indices[members] - block.start]
        return vectors

    def _by_block(self, indices: Int64) -> Iterator[tuple[Block, NDArray[np.int64]]]:
        """Row groups that hold some rows, each with the numbers of those it holds."""
        starts = np.array([block.start for block in self.blocks], np.int64)
        owner = np.searchsorted(starts, indices, side="right") - 1
        # sorted once: a search for the rows of each block would be blocks x rows
        order = np.argsort(owner, kind="stable")
        numbers, first = np.unique(owner[order], return_index=True)
        for number, members in zip(numbers, np.split(order, first)[1:], strict=True):
            yield self.blocks[int(number)], members

    @contextmanager
    def _opened(self, number: int) -> Iterator[FileIO]:
        """A shard, open for reading; its size and footer are those that the manifest tells.

        So it is this shard of this dataset. It stays open while it is read, since another process
        may give its name to another file. Whatever is wrong with it is a :class:`DamagedError`.
        """
        part, entry = Layout(self._path).shard_file(self._table, number), self._files[number]
        try:
            with (self.folder / self._table / part.name).open("rb", buffering=0) as file:
                if (size := os.fstat(file.fileno()).st_size) != entry.bytes:
                    raise ValueError(f"it has {size:,} bytes, expected {entry.bytes:,}")
                if footer_sha256(file.fileno()) != entry.footer:
                    raise ValueError("its footer is not that of this shard of this dataset")
                yield file
        # errors of the block that say what is wrong already
        except (UsageError, DamagedError):
            raise
        except (ValueError, KeyError, pa.ArrowException, OSError) as error:  # a column is missing
            # before damage is claimed: the file may be that of another dataset, which has replaced
            # this one
            self._check_same()
            copied = str(self._path) in spelled  # from an object store
            advice = "It is damaged: run its command again."
            if copied:
                advice = "The next command fetches this copy again."
            problem = storage.unreadable(part, error, advice=advice)
            # without a manifest the copy is no dataset, and is fetched again
            if copied and isinstance(problem, DamagedError):
                storage.remove(Layout(self._path).manifest)
            raise problem from error

    def _check_same(self) -> None:
        """Raise a :class:`LockedError` if the dataset is no longer the one that was opened."""
        problem = "was replaced or deleted since it was opened. Open it again."
        # a manifest that is damaged itself decides nothing: the error of the shard is reported
        with suppress(DamagedError):
            if not is_dataset(self.folder) or read_manifest(self.folder) != self._manifest:
                raise LockedError(f"{self._path} {problem}")

    def _metadata(self, number: int, file: FileIO) -> pq.FileMetaData:
        metadata, rows = pq.read_metadata(file), self._files[number].rows
        if metadata.num_rows != rows:
            raise ValueError(f"{metadata.num_rows} rows, {rows} were written")
        names = metadata.schema.to_arrow_schema().names
        if not set(self._stored) <= set(names) or len(set(names)) != len(names):
            raise ValueError(f"its columns are not those of the manifest: {', '.join(names):.200}")
        return metadata
