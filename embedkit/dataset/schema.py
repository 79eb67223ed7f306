"""Shapes of the Parquet files: columns, types, encodings, and one shard's bytes.

Vectors are ``fixed_size_list<float not null> not null``: the one vector type that pandas, Polars,
DuckDB, Hugging Face datasets and Lance all open without code. They carry no nulls, no dictionary
and no statistics, which cost space and help no reader; pages carry checksums, since a flipped bit
would otherwise come back as a wrong number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from embedkit.errors import EncodeError
from embedkit.types import Float32

__all__ = [
    "RESERVED",
    "Footer",
    "cast_for_storage",
    "footer_bytes",
    "matrix_of",
    "read_footer",
    "shard_bytes",
    "vector_column",
]

ROW_GROUP_ROWS = 8_192

RESERVED = frozenset({
    "row", "id", "text", "text_pair", "text_key", "label", "n_tokens", "n_kept", "truncated",
})  # fmt: skip
"""Columns of embedkit's own; a kept column may not have one of these names."""

_DICTIONARY = ("label", "token")
_FILLED = ("id", "text", "text_pair")
_FILLED_OF_TOKENS = ("token",)
_PREFIX = b"embedkit."
_FOOTER_END = 8


@dataclass(frozen=True, slots=True)
class Footer:
    """What a shard says about itself, in the key-value metadata of its footer.

    Attributes:
        fingerprint: hash of everything that shaped the bytes.
        shard: its number, from 0.
        first_row: record number of its first row, -1 for a shard without rows.
        last_row: of its last row.
        rows: number of rows of the table.
        ledger: counts of the shard (tokens, truncated records, …).
        companions: SHA-256 of the word and token files of the same shard, by folder.
        job: settings, inputs and environment, for people and later checks.
    """

    fingerprint: str
    shard: int
    first_row: int
    last_row: int
    rows: int
    ledger: Mapping[str, int]
    companions: Mapping[str, str]
    job: Mapping[str, Any]

    def to_metadata(self) -> dict[bytes, bytes]:
        """As Parquet key-value metadata; every key starts with ``embedkit.``."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {
            _PREFIX + name.encode(): json.dumps(value, ensure_ascii=False, sort_keys=True).encode()
            for name, value in values.items()
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[bytes, bytes] | None) -> Footer:
        """The inverse of :meth:`to_metadata`.

        Raises:
            ValueError: the metadata is not of an embedkit shard.
        """
        found = metadata or {}
        try:
            return cls(**{n: json.loads(found[_PREFIX + n.encode()]) for n in cls.__slots__})
        except (KeyError, ValueError) as error:
            raise ValueError(f"not a shard of embedkit: {error}") from error


def vector_column(vectors: NDArray[Any]) -> pa.Array:
    """``(n, width)`` floats as an Arrow array of fixed-size lists, without copying."""
    kind = pa.float16() if vectors.dtype == np.float16 else pa.float32()
    element = pa.field("element", kind, nullable=False)
    flat = pa.array(np.ascontiguousarray(vectors).reshape(-1), kind)
    return pa.FixedSizeListArray.from_arrays(flat, type=pa.list_(element, vectors.shape[1]))


def matrix_of(column: pa.ChunkedArray) -> NDArray[Any]:
    """Return a vector column as ``(n, width)``; the inverse of :func:`vector_column`."""
    whole = column.combine_chunks()
    width = column.type.list_size
    return np.asarray(whole.flatten().to_numpy(zero_copy_only=False)).reshape(-1, width)


def cast_for_storage(vectors: Float32, storage: str, *, name: str, rows: Any) -> NDArray[Any]:
    """Round to what the storage profile keeps, and refuse what is no number.

    ``float32``: exact, uncompressed. ``float16``: half the size on disk and in memory. ``compact``:
    float32 columns of values rounded to float16, split by bytes and compressed, about 0.43 of
    float32.

    Args:
        vectors: ``(n, width)`` float32.
        storage: one of :data:`~embedkit.choices.STORAGES`.
        name: the column, for the message.
        rows: ``(n,)`` record numbers, for the message.

    Raises:
        EncodeError: a value is NaN or infinite after the cast.
    """
    result: NDArray[Any] = vectors
    if storage != "float32":
        with np.errstate(over="ignore"):
            result = vectors.astype(np.float16)
    if not np.isfinite(result).all():
        bad = np.flatnonzero(~np.isfinite(result).all(axis=1))
        reason = "NaN or infinite values"
        if np.isfinite(vectors).all():
            reason = "values beyond float16 (over 65504); use storage='float32'"
        listed = ", ".join(str(rows[i]) for i in bad[:5])
        raise EncodeError(
            f"{name}: {reason} in {len(bad)} vectors (rows {listed}). Nothing of this shard was "
            "written."
        )
    return result.astype(np.float32) if storage == "compact" else result


def shard_bytes(
    scalars: Mapping[str, pa.Array],
    vectors: Mapping[str, NDArray[Any]],
    *,
    footer: Footer,
    storage: str,
) -> pa.Buffer:
    """One Parquet file in memory. The same arguments give the same bytes.

    Args:
        scalars: the columns that are not vectors, in order; ``label`` and kept columns may be null.
        vectors: ``(n, width)`` arrays as :func:`cast_for_storage` returned them, by column name.
        footer: what the file says about itself.
        storage: one of :data:`~embedkit.choices.STORAGES`.
    """
    of_tokens = "token_id" in scalars and "id" not in scalars  # a kept column may be called so
    filled = _FILLED_OF_TOKENS if of_tokens else _FILLED
    fields = [pa.field(n, a.type, nullable=_may_be_null(n, a, filled)) for n, a in scalars.items()]
    columns = list(scalars.values())
    for name, values in vectors.items():
        column = vector_column(values)
        fields.append(pa.field(name, column.type, nullable=False))
        columns.append(column)
    schema = pa.schema(fields, metadata=footer.to_metadata())
    table = pa.Table.from_arrays(columns, schema=schema)
    leaves = [f"{name}.list.element" for name in vectors]
    compression = dict.fromkeys(scalars, "zstd")
    compression |= dict.fromkeys(leaves, "zstd" if storage == "compact" else "none")
    # twice the raw size is never reached; pages that are not written to take no memory, whereas
    # a growing buffer would be copied each time it doubles
    room = pa.allocate_buffer(2 * table.nbytes + (4 << 20))
    sink = pa.FixedSizeBufferWriter(room)
    pq.write_table(
        table,
        sink,
        version="2.6",
        data_page_version="1.0",
        row_group_size=ROW_GROUP_ROWS,
        compression=compression,
        use_dictionary=[n for n in scalars if n in _DICTIONARY],
        use_byte_stream_split=leaves if storage == "compact" else False,
        write_statistics=list(scalars),
        write_page_index=True,
        write_page_checksum=True,
        store_schema=True,
    )
    size = sink.tell()
    sink.close()
    return room.slice(0, size)


def read_footer(path: Any) -> Footer:
    """Read what a shard says about itself, without its data.

    Raises:
        ValueError: it is not a shard of embedkit, or its footer is damaged.
        OSError: it cannot be read.
    """
    try:
        metadata = cast("Mapping[bytes, bytes] | None", pq.read_metadata(path).metadata)
    except pa.ArrowInvalid as error:
        raise ValueError(f"not a Parquet file: {error}") from error
    return Footer.from_metadata(metadata)


def footer_bytes(path: Path, size: int | None = None) -> bytes:
    """Read the end of a Parquet file: the footer, its length and the magic number.

    Args:
        path: the file.
        size: number of bytes; by default as many as the length says.

    Raises:
        OSError: the file cannot be read, or is shorter.
    """
    with path.open("rb", buffering=0) as file:
        if size is None:
            file.seek(-_FOOTER_END, os.SEEK_END)
            size = int.from_bytes(file.read(4), "little") + _FOOTER_END
        file.seek(-size, os.SEEK_END)
        return file.read(size)


def text_column(values: Sequence[str | None]) -> pa.Array:
    """Strings as an Arrow column."""
    return pa.array(values, pa.string())


def _may_be_null(name: str, column: pa.Array, filled: Collection[str]) -> bool:
    return bool(pa.types.is_string(column.type)) and name not in filled
