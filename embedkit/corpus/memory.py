"""Corpora in memory, written to a temporary file that the readers of files read.

Texts and records become JSON Lines, tables become Parquet, so that rejects, counts and vectors are
those of the equal file. The bytes of the file follow from the records alone, and not from how a
table is divided into batches: its hash identifies the corpus, and an interrupted job can be
resumed with an equal object, also with an iterator that yields the same records again.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedkit.corpus.columnar import is_bytes, is_string, without_dictionary
from embedkit.corpus.readers import format_of_name
from embedkit.errors import UsageError, first_line
from embedkit.fsio import storage_errors

__all__ = ["spool"]

_ROW_GROUP = 16_384
_CHECKED = 1_000
_EXPECTED = (
    "a path, a list of paths, a list or iterator of str or dict, a DataFrame, an Arrow table or a "
    "Hugging Face Dataset"
)


def spool(corpus: Any, folder: Path) -> Path:
    """Write a corpus in memory to a file in ``folder``, and return its path.

    Raises:
        UsageError: the object is no corpus, or one of its records cannot be written as text.
        StorageError: the file cannot be written.
    """
    kind = type(corpus).__name__
    if kind == "Series":  # of pandas and of Polars; a column without a table
        corpus = corpus.to_list()
    if isinstance(corpus, Mapping | bytes | io.IOBase) or not (
        isinstance(corpus, Iterable) or hasattr(corpus, "__arrow_c_stream__")
    ):
        advice = " Pass one of its values." if isinstance(corpus, Mapping) else ""
        raise UsageError(f"the corpus is a {kind}; expected {_EXPECTED}.{advice}")
    try:
        table = _as_batches(corpus)
        if table is not None:
            file = folder / f"{kind}.parquet"
            _write_table(*table, file)
            return file
    except pa.ArrowException as error:
        raise UsageError(
            f"the {kind} cannot be read as a table: {first_line(error)}. Convert that column to "
            "str, or drop it."
        ) from error
    file = folder / f"{kind}.jsonl"
    _write_records(corpus, file)
    return file


def _write_records(records: Iterable[Any], file: Path) -> None:
    with storage_errors(file):
        sink = file.open("wb")
    with sink:
        for number, record in enumerate(records):
            if number < _CHECKED and isinstance(record, str):
                _check_no_path(record, number)
            line = _json_line(record, number)
            with storage_errors(file):
                sink.write(line)
        with storage_errors(file):
            sink.flush()


def _check_no_path(text: str, number: int) -> None:
    """Refuse what is meant as a file: its name would be embedded as a text."""
    named = len(text) < 256 and text.split() == [text]
    if named and (text == "-" or format_of_name(Path(text)) or os.path.isfile(text)):  # noqa: PTH113 - NUL is false
        raise UsageError(
            f"entry {number} of the corpus, {text!r}, is the name of a file, and a list of str is "
            f"a list of texts. Pass files as [pathlib.Path({text!r})], or such a text as "
            f"{{'text': {text!r}}}."
        )


def _json_line(record: Any, number: int) -> bytes:
    if record is None or isinstance(record, str) or _is_nan(record):
        record = {"text": record}
    if not isinstance(record, Mapping):
        raise UsageError(
            f"record {number} of the corpus is a {type(record).__name__}; expected a str, or a "
            "dict such as {'text': ..., 'label': ...}."
        )
    values = {name: None if _is_nan(value) else value for name, value in record.items()}
    try:
        line = json.dumps(values, ensure_ascii=False, default=_literal)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"record {number} of the corpus cannot be read: {first_line(error)}. Pass dicts of "
            "str, numbers, dates and None."
        ) from error
    try:
        return line.encode("utf-8") + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, which the reader rejects
        return json.dumps(values, default=_literal).encode("ascii") + b"\n"


def _is_nan(value: object) -> bool:
    """Whether a value is what pandas writes for a missing one."""
    return isinstance(value, float) and value != value


def _literal(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, date | datetime | time | Decimal | UUID):
        return str(value)
    raise TypeError(f"a value is a {type(value).__name__}")


def _as_batches(corpus: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]] | None:
    """Schema and batches of a table; ``None`` if the object is no table."""
    library = type(corpus).__module__.partition(".")[0]
    if library == "pandas":
        table = pa.Table.from_pandas(corpus, preserve_index=False)
        return table.schema, iter(table.to_batches())
    if library == "datasets" and hasattr(corpus, "num_rows"):
        tables = corpus.with_format("arrow").iter(_ROW_GROUP)
        batches = (batch for table in tables for batch in table.to_batches())
        return corpus.features.arrow_schema, batches
    if hasattr(corpus, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(corpus)
        return reader.schema, iter(reader)
    return None


def _write_table(schema: pa.Schema, batches: Iterator[pa.RecordBatch], file: Path) -> None:
    """Write the columns that a corpus can have: strings, numbers and dates."""
    fields = [
        (place, pa.field(field.name, kind))
        for place, field in enumerate(schema)
        if (kind := _plain_type(field.type)) is not None
    ]
    target = pa.schema([field for _, field in fields])
    plain = (
        pa.RecordBatch.from_arrays(
            [without_dictionary(batch.column(place)).cast(field.type) for place, field in fields],
            schema=target,
        )
        for batch in batches
    )
    with storage_errors(file), pq.ParquetWriter(file, target, compression="zstd") as writer:
        for table in _row_groups(plain):
            writer.write_table(table)


def _row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables of the same number of rows, however the batches are divided."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        rest = batch
        while rest.num_rows:
            piece = rest.slice(0, _ROW_GROUP - count)
            rest = rest.slice(piece.num_rows)
            held.append(piece)
            count += piece.num_rows
            if count == _ROW_GROUP:
                yield pa.Table.from_batches(held).combine_chunks()
                held, count = [], 0
    if held:
        yield pa.Table.from_batches(held).combine_chunks()


def _plain_type(kind: pa.DataType) -> pa.DataType | None:
    """The type that a column is written as; ``None`` if no corpus can have such a column."""
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_nested(inner) or is_bytes(inner) or isinstance(inner, pa.BaseExtensionType):
        return None
    return pa.large_string() if is_string(inner) else inner
