"""Parquet: a shard as bytes, with its columns of vectors and its footer; and small tables.

    PAR1 │ row group, 8,192 rows                        │ row group … │ footer │ its length, PAR1
           id │ text │ … │ mean_6                                       └ FACTS, types, places
                           └ pages: [header, checksum] number number number …

A vector is a ``fixed_size_list<float>`` without nulls, dictionary or compression, with a checksum
for each page: other tools read it as it is, and :mod:`~embedkit.dataset.tables` by copying pages.
The footer names the dataset's fingerprint, the shard's number and its rows, and the manifest has
the digest of the footer, so that a shard of another dataset, or of another time, is noticed when it
is opened, by two reads of some kilobytes.

What is notable:

- The same arguments give the same bytes: version, pages and row groups are stated, since defaults
  of pyarrow change. What makes a shard never depends on other shards, not even the factors of int8,
  which are those of its own columns.
- A shard is built in memory, in a buffer that is large enough from the start, and written as one
  piece, so that its digest is known before its file exists.

Predictions, splits and lists of shards are small tables (:func:`write_parquet`,
:func:`read_table`), whose page checksums pyarrow writes, and compares when it is asked to.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from embedkit.errors import DamagedError, EncodeError, Option
from embedkit.geometry import nearest_rows, shared_neighbours
from embedkit.storage import MAKE_AGAIN, reading, write_durably
from embedkit.types import Float32

# what a reader holds in memory at a time: 12 MB of a float32 view of width 384
ROW_GROUP_ROWS = 8_192


# columns of few different values
_DICTIONARY = ("label", "token")


_PREFIX = b"embedkit."


_SCALE = b"embedkit.scale"  # in the metadata of a column of int8


FACTS = ("fingerprint", "shard", "first_row", "last_row", "rows", "ledger", "job")
"""What the key-value metadata of a shard's footer say of it, as JSON.

First and last row are record numbers, -1 for a shard without rows. ``job`` holds settings, inputs
and environment, for people.
"""


def vector_column(vectors: NDArray[Any]) -> pa.Array:
    """``(n, width)`` numbers as an Arrow array of fixed-size lists, without copying."""
    kind = pa.from_numpy_dtype(vectors.dtype)
    element = pa.field("element", kind, nullable=False)
    # a view may be part of a wider matrix, whose rows are not contiguous: only then is it copied
    flat = pa.array(np.ascontiguousarray(vectors).reshape(-1), kind)
    return pa.FixedSizeListArray.from_arrays(flat, type=pa.list_(element, vectors.shape[1]))


def matrix_of(table: pa.Table, name: str) -> NDArray[Any]:
    """Return a vector column of a shard as ``(n, width)`` floats."""
    whole, field = table.column(name).combine_chunks(), table.schema.field(name)
    # flatten minds the offset of a slice, which .values does not
    flat = np.asarray(whole.flatten().to_numpy(zero_copy_only=False))
    matrix = flat.reshape(-1, field.type.list_size)
    if matrix.dtype == np.int8:
        return matrix * np.array(json.loads(field.metadata[_SCALE]), np.float32)
    return matrix


def scaled(vectors: Float32) -> tuple[NDArray[np.int8], Float32]:
    """Return ``(n, width)`` vectors of a shard as int8, and the ``(width,)`` factors to undo it.

    The largest number of each dimension becomes 127: a shard depends on no other one.
    """
    # initial=0 for a shard without rows; where a dimension is zero throughout, any factor but 0
    # does
    scale = np.abs(vectors).max(axis=0, initial=0) / np.float32(127)
    scale[scale == 0] = 1
    return np.rint(vectors / scale).clip(-127, 127).astype(np.int8), scale


def kept_neighbours(views: Iterable[Float32]) -> dict[str, int]:
    """Count the 10 nearest neighbours in a shard by cosine, and those that still are in int8.

    They are those of its first 200 vectors.
    """
    counts = {"neighbours": 0, "neighbours_int8": 0}
    for vectors in views:
        small, scale = scaled(vectors)
        # a shard of one record has no neighbours
        if len(vectors) > 1:
            first = np.arange(min(200, len(vectors)))
            near, after = (nearest_rows(rows, rows=first) for rows in (vectors, small * scale))
            counts["neighbours"] += near.size
            counts["neighbours_int8"] += round(shared_neighbours(near, after).sum() * near.shape[1])
    return counts


def cast_for_storage(vectors: Float32, storage: str, *, name: str, rows: Any) -> NDArray[Any]:
    """Round ``(n, width)`` float32 to a storage profile; NaN and infinity are refused.

    ``float32``: exact, uncompressed. ``float16``: half the size on disk and in memory. ``compact``:
    float32 columns of values rounded to float16, split by bytes and compressed, about 0.43 of
    float32. ``int8``: a quarter of the size, rounded when a shard is written, see :func:`scaled`.
    The column ``name`` and the record numbers ``rows`` are for the message.
    """
    result: NDArray[Any] = vectors
    if storage in ("float16", "compact"):
        # an overflow becomes infinite, which is refused below with the rows that have it
        with np.errstate(over="ignore"):
            result = vectors.astype(np.float16)
    if not np.isfinite(result).all():
        bad = np.flatnonzero(~np.isfinite(result).all(axis=1))
        reason, advice = "NaN or infinite values", ""
        if np.isfinite(vectors).all():
            # finite before, so that only the rounding is to blame
            reason, advice = "values over 65504", f" Use {Option('storage', 'float32')}."
        listed = ", ".join(str(rows[i]) for i in bad[:5])
        raise EncodeError(f"{name}: {reason} in {len(bad)} vectors (rows {listed}).{advice}")
    # the low bits are zero now, which byte stream split gathers and zstd takes away
    return result.astype(np.float32) if storage == "compact" else result


def shard_bytes(
    scalars: Mapping[str, pa.Array],
    vectors: Mapping[str, NDArray[Any]],
    *,
    facts: Mapping[str, Any],
    storage: str,
) -> pa.Buffer:
    """One Parquet file in memory. The same arguments give the same bytes.

    ``scalars`` are the columns that are not vectors, of which ``label`` and kept ones may be null;
    ``vectors`` are ``(n, width)`` arrays as :func:`cast_for_storage` returned them; ``facts`` are
    :data:`FACTS`.
    """
    of_tokens = "token_id" in scalars and "id" not in scalars  # a kept column may be called so
    # columns that embedkit fills itself, and that cannot be null
    filled = ("token",) if of_tokens else ("id", "text", "text_pair")
    columns = list(scalars.values())
    fields = [
        pa.field(name, column.type, nullable=column.type == pa.string() and name not in filled)
        for name, column in scalars.items()
    ]
    for name, values in vectors.items():
        metadata = None
        if storage == "int8":
            values, scale = scaled(values)
            metadata = {_SCALE: json.dumps(scale.tolist()).encode()}
        column = vector_column(values)
        fields.append(pa.field(name, column.type, nullable=False, metadata=metadata))
        columns.append(column)
    metadata = {
        _PREFIX + n.encode(): json.dumps(facts[n], ensure_ascii=False, sort_keys=True).encode()
        for n in FACTS
    }
    schema = pa.schema(fields, metadata=metadata)
    table = pa.Table.from_arrays(columns, schema=schema)
    # how Parquet names the numbers inside of a list
    leaves = [f"{name}.list.element" for name in vectors]
    compression = dict.fromkeys(scalars, "zstd")
    compression |= dict.fromkeys(leaves, "zstd" if storage == "compact" else "none")
    # twice the raw size is never reached; pages that are not written to take no memory, whereas
    # a growing buffer would be copied each time it doubles
    room = pa.allocate_buffer(2 * table.nbytes + (4 << 20))
    sink = pa.FixedSizeBufferWriter(room)
    # format, pages and row groups are given, since defaults of pyarrow may change and bytes with
    # them. Version 1 of pages: the header that embedkit.dataset.tables reads. No statistics of
    # vectors: least and largest number of a list are of no use
    pq.write_table(
        table,
        sink,
        version="2.6",
        data_page_version="1.0",
        row_group_size=ROW_GROUP_ROWS,
        compression=compression,
        # Parquet has no numbers of one byte: without a dictionary they would be of four
        use_dictionary=[n for n in scalars if n in _DICTIONARY]
        + (leaves if storage == "int8" else []),
        use_byte_stream_split=leaves if storage == "compact" else False,
        write_statistics=list(scalars),
        write_page_index=True,
        write_page_checksum=True,
        store_schema=True,
    )
    size = sink.tell()
    sink.close()
    return room.slice(0, size)


def read_facts(path: Any) -> dict[str, Any]:
    """Read :data:`FACTS` of a shard, without its data; a ``ValueError`` for another file."""
    try:
        metadata = cast("Mapping[bytes, bytes] | None", pq.read_metadata(path).metadata) or {}
        return {name: json.loads(metadata[_PREFIX + name.encode()]) for name in FACTS}
    except (KeyError, ValueError, OSError) as error:  # Arrow's, of what is not a Parquet file, too
        if getattr(error, "errno", None) is not None:  # the machine's
            raise
        raise ValueError(f"not a shard of embedkit: {error}") from error


def footer_sha256(descriptor: int) -> str:
    """SHA-256 in hex of the footer of an open Parquet file, with its length and the last bytes.

    Pages carry checksums of their own; the footer, which says where they are, what they mean and
    whose they are, has none in Parquet. A ``ValueError`` if the file has no footer.
    """
    size = os.fstat(descriptor).st_size
    # a Parquet file ends with the footer, its length in four bytes, and PAR1
    end = os.pread(descriptor, 8, max(size - 8, 0))
    length = int.from_bytes(end[:4], "little") + 8
    if end[4:] != b"PAR1" or length > size:
        raise ValueError("it does not end as a Parquet file does")
    return hashlib.sha256(os.pread(descriptor, length, size - length)).hexdigest()


def parquet_bytes(table: pa.Table) -> memoryview:
    """A table as Parquet with page checksums; the same table gives the same bytes."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    # Arrow's buffers have signed bytes, which are never equal to those that a file has
    return memoryview(sink.getvalue()).cast("B")


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a table as :func:`parquet_bytes`, durably."""
    write_durably(path, parquet_bytes(table))


def read_table(file: Path, *, advice: str = MAKE_AGAIN) -> pa.Table:
    """Read a Parquet file; its page checksums are compared."""
    with reading(file, pa.ArrowException, ValueError, TypeError, KeyError, advice=advice):
        # pyarrow does not compare checksums unless it is asked to
        return pq.ParquetFile(file, page_checksum_verification=True).read()


def numbers(column: pa.ChunkedArray | pa.Array) -> NDArray[Any]:
    """Return the numbers of a column, ``(n,)``, of its own type.

    pyarrow's ``to_numpy`` imports pandas, which takes longer than to read most files; numbers
    without nulls are handed over by DLPack instead.
    """
    kind = column.type
    # DLPack knows no nulls, and numbers only
    if column.null_count or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if isinstance(column, pa.ChunkedArray):
        # of one chunk no copy is made
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return np.from_dlpack(column)


def places(indices: Sequence[int] | NDArray[Any]) -> pa.Array:
    """Return positions ``(n,)`` as a column of int64, by which tables are taken.

    Like :func:`numbers` without pandas, which ``pyarrow.array`` imports.
    """
    # None: no bitmap of nulls
    values = np.ascontiguousarray(indices, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def check_columns(
    table: pa.Table,
    columns: Mapping[str, pa.DataType],
    *,
    file: Path,
    nullable: Collection[str] = (),
    advice: str = MAKE_AGAIN,
) -> None:
    """Raise a :class:`DamagedError` if columns are missing, moved, of another type, or hold null.

    The table may have further columns; those named in ``nullable`` may hold null.
    """
    names = [name for name in table.column_names if name in columns]
    problem = "" if names == list(columns) else f"the columns are {names}, not {list(columns)}"
    for name, kind in () if problem else columns.items():
        if str(table[name].type).removeprefix("large_") != str(kind):  # as pandas writes
            problem = f"the column {name!r:.60} holds {table[name].type}, not {kind}"
        elif table[name].null_count and name not in nullable:
            problem = f"the column {name!r:.60} holds null"
    if problem:
        raise DamagedError(f"{file} is damaged: {problem:.300}. {advice}")
