"""Readers of columnar files: Parquet and Arrow IPC."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embedkit.corpus.options import Dialect
from embedkit.corpus.rows import BadRow, Cell, NotText, Row, Table, check_names
from embedkit.errors import CorpusError

__all__ = ["ArrowTable", "ParquetTable", "is_bytes", "is_string", "without_dictionary"]

_BATCH = 4_096
_ARROW_FILE = b"ARROW1"
_BYTES_OF = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}
# the last two by column names that are not UTF-8, and by dates that Python has not
_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError)


class ColumnarTable(Table):
    """A file of typed columns, read in batches; strings are checked row by row.

    Raises:
        CorpusError: the file is not of the format, or two of its columns have one name.
    """

    title: str
    _file: Any

    def __init__(self, path: Path, _dialect: Dialect) -> None:
        self.path = path
        self._done = 0
        try:
            self._schema = self._open()
            self.columns = list(self._schema.names)
        except _ERRORS as error:
            raise CorpusError(f"{path} is not a readable {self.title} file: {error}.") from error
        check_names(self.columns, path, advice="Rename one.")

    @abstractmethod
    def _open(self) -> pa.Schema:
        """Open the file."""

    @abstractmethod
    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Batches with these columns."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def rows(self, wanted: Sequence[str]) -> Iterator[Row | BadRow]:
        """Yield the wanted columns of every row."""
        names = list(dict.fromkeys(wanted))
        try:
            for batch in self._batches(names):
                columns = {name: _cells(batch.column(name)) for name in names}
                for values in zip(*(columns[name] for name in wanted), strict=True):
                    self._done += 1
                    yield _row(values)
        except _ERRORS as error:
            raise CorpusError(f"{self.path} cannot be read to its end: {error}.") from error

    def check_column(self, name: str, *, role: str) -> None:
        """Raise a :class:`CorpusError` if the column cannot serve as text, or as one value."""
        kind = self._schema.field(name).type
        inner = kind.value_type if pa.types.is_dictionary(kind) else kind
        if role in ("text", "text_pair") and not (is_string(inner) or pa.types.is_null(inner)):
            raise CorpusError(
                f"{self.path}: column {name!r} is {kind}; a text must be a string. Name another "
                f"column with {role}=, or convert it first."
            )
        if pa.types.is_nested(inner) or is_bytes(inner):
            raise CorpusError(
                f"{self.path}: column {name!r} is {kind}; a string, a number or a date is needed."
            )


class ParquetTable(ColumnarTable):
    """Parquet; page checksums are verified where there are any."""

    title = "Parquet"

    def _open(self) -> pa.Schema:
        self._file = pq.ParquetFile(self.path, page_checksum_verification=True)
        return self._file.schema_arrow

    @property
    def fraction(self) -> float:
        """Fraction of the rows that has been read."""
        total = self._file.metadata.num_rows
        return self._done / total if total else 1.0

    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        yield from self._file.iter_batches(batch_size=_BATCH, columns=names)


class ArrowTable(ColumnarTable):
    """Arrow IPC, as a file (also Feather version 2) or as a stream.

    One record batch is in memory at a time. The format has no checksums: what is noticed of damage
    is structure, such as offsets out of bounds and a file that is cut off within a batch.
    """

    title = "Arrow"

    def _open(self) -> pa.Schema:
        self._fraction = 0.0
        self._file = pa.OSFile(str(self.path))
        try:
            self._is_file = self._file.read(len(_ARROW_FILE)) == _ARROW_FILE
            return self._reader().schema
        except BaseException:
            self._file.close()
            raise

    def _reader(self, columns: Sequence[int] = ()) -> Any:
        """A reader of these columns, or of all."""
        self._file.seek(0)
        options = pa.ipc.IpcReadOptions(included_fields=list(columns))
        open_ = pa.ipc.open_file if self._is_file else pa.ipc.open_stream
        return open_(self._file, options=options)

    @property
    def fraction(self) -> float:
        """Fraction of the file that has been read."""
        return self._fraction

    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        reader = self._reader([self.columns.index(name) for name in names])
        count = reader.num_record_batches if self._is_file else None
        batches = map(reader.get_batch, range(count)) if count is not None else reader
        for number, batch in enumerate(batches, 1):
            for column in batch.columns:
                _check_bounds(column)
            for start in range(0, batch.num_rows, _BATCH):
                yield batch.slice(start, _BATCH)
            self._fraction = number / count if count else self._file.tell() / self._file.size()
        self._fraction = 1.0


def _check_bounds(column: pa.Array) -> None:
    """Raise an ``ArrowInvalid`` for offsets that point beyond the data; any bytes may be text."""
    if pa.types.is_dictionary(column.type):
        _check_bounds(column.dictionary)  # its indices are checked when it is decoded
    else:
        as_bytes = _BYTES_OF.get(column.type)
        (column.view(as_bytes) if as_bytes else column).validate(full=True)


def _cells(column: pa.Array) -> list[bytes | NotText | None]:
    column = without_dictionary(column)
    if is_string(column.type):
        # as bytes: one undecodable value must cost one row and not the batch
        values: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
        return list(values)
    return [None if v is None else NotText(v) for v in column.to_pylist()]


def _row(values: tuple[bytes | NotText | None, ...]) -> Row | BadRow:
    cells: list[Cell] = []
    for value in values:
        try:
            cells.append(value.decode("utf-8") if isinstance(value, bytes) else value)
        except UnicodeDecodeError as error:
            raw = value[:200] if isinstance(value, bytes) else b""
            return BadRow(None, None, 0, "invalid_encoding", f"utf-8: {error.reason}", raw)
    return Row(None, None, 0, tuple(cells))


def without_dictionary(column: pa.Array) -> pa.Array:
    """The values of a column that may be dictionary-encoded."""
    if not pa.types.is_dictionary(column.type):
        return column
    values = column.dictionary
    if pa.types.is_string_view(values.type):  # which pyarrow cannot take from
        values = values.cast(pa.large_string())
    return pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()


def is_string(kind: pa.DataType) -> bool:
    """Whether values of the type are text."""
    return kind in _BYTES_OF


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values of the type are bytes."""
    return kind in _BYTES_OF.values() or pa.types.is_fixed_size_binary(kind)
