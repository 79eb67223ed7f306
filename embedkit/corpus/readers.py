"""The table of corpus formats: one row each, and how a file's format is recognised.

To add a format: a subclass of :class:`Table`, a row in :data:`READERS`, and its name in
:data:`embedkit.choices.FORMATS`.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from embedkit.corpus.conllu import ConllTable, ConlluTable
from embedkit.corpus.sources import (
    MAX_RECORD_BYTES,
    PACKED_SUFFIXES,
    BadRecordError,
    BadRow,
    Cell,
    Dialect,
    Line,
    Place,
    Row,
    Source,
    Table,
    TextTable,
    bad_row,
    check_encoding,
    check_kind,
    first_bytes,
    has_surrogate,
    row,
    too_long,
)
from embedkit.corpus.values import NotText, number_text, text_of
from embedkit.errors import CorpusError, did_you_mean
from embedkit.storage import unreadable

_BATCH = 4_096
_ARROW_FILE = b"ARROW1"
_BYTES_OF = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}
LEFT_OUT = b"embedkit.left_out"
"""In the metadata of a field: its type, if its values cannot be read and are left out."""
_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
# the last two are raised for column names that are not UTF-8 and dates beyond Python's
_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError)


def _check_names(names: Sequence[str], path: Path) -> None:
    first = dict(zip(names[::-1], range(len(names), 0, -1), strict=True))
    for position, name in enumerate(names, 1):
        if first[name] < position:
            both = f"columns {first[name]} and {position} are both named {name[:100]!r}"
            raise CorpusError(f"{path}: {both}. Rename one.")


class _ColumnarTable(Table):
    """A file of typed columns, read in batches; strings are checked row by row."""

    title: str
    _file: Any

    def __init__(self, path: Path, _dialect: Dialect) -> None:
        self.path = path
        self._done = self._skipped = 0
        try:
            places = list(_nested(self._open()))
            self.columns = [".".join(place) for place, _ in places]
            self._fields = dict(zip(self.columns, places, strict=True))
        except _ERRORS as error:
            advice = f"It is not a readable {self.title} file."
            raise unreadable(path, error, error=CorpusError, advice=advice) from error
        _check_names(self.columns, path)

    @abstractmethod
    def _open(self) -> pa.Schema:
        """Open the file."""

    @abstractmethod
    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Batches with these columns."""

    def close(self) -> None:
        self._file.close()

    def seek(self, place: Place) -> bool:
        self._done = self._skipped = place.file_row
        return True

    def rows(self, names: Sequence[str]) -> Iterator[Row | BadRow]:
        unique = list(dict.fromkeys(names))
        try:
            places = {name: self._fields[name][0] for name in unique}
            for whole in self._batches(list(dict.fromkeys(top for top, *_ in places.values()))):
                batch = whole.slice(min(self._skipped, whole.num_rows))
                self._skipped -= whole.num_rows - batch.num_rows
                columns = {name: _cells(_column(batch, *places[name])) for name in unique}
                for values in zip(*(columns[name] for name in names), strict=True):
                    self._done += 1
                    yield _row(values)
        except _ERRORS as error:
            again = "Fetch it again."
            raise unreadable(self.path, error, error=CorpusError, advice=again) from error

    def check_column(self, name: str, *, role: str) -> None:
        _, field = self._fields[name]
        kind = (field.metadata or {}).get(LEFT_OUT, str(field.type).encode()).decode()
        inner = inner_type(field.type)
        needed = "a string" if role else "a string, a number, a date or a list"
        is_text = is_string(inner) or pa.types.is_null(inner) or (role == "text" and is_list(inner))
        if (role and not is_text) or has_bytes(inner) or kind != str(field.type):
            raise CorpusError(f"column {name!r} is {kind}; {needed} is needed.")

    def is_list(self, name: str) -> bool:
        """True for lists of any length."""
        return name in self._fields and is_list(inner_type(self._fields[name][1].type))


class _ParquetTable(_ColumnarTable):
    """Parquet; page checksums are verified."""

    title = "Parquet"

    def _open(self) -> pa.Schema:
        self._file = pq.ParquetFile(self.path, page_checksum_verification=True)
        return self._file.schema_arrow

    @property
    def fraction(self) -> float:
        total = self._file.metadata.num_rows
        return self._done / total if total else 1.0

    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        metadata = self._file.metadata
        groups = list(range(metadata.num_row_groups))
        while groups and self._skipped >= (rows := metadata.row_group(groups[0]).num_rows):
            del groups[0]
            self._skipped -= rows
        yield from self._file.iter_batches(_BATCH, row_groups=groups, columns=names)


class _ArrowTable(_ColumnarTable):
    """Arrow IPC, as a file (also Feather version 2) or as a stream; one batch is in memory.

    The format has no checksums: only structural damage is noticed, such as offsets out of bounds.
    """

    title = "Arrow"

    def _open(self) -> pa.Schema:
        self._file = pa.OSFile(str(self.path))
        return self._reader().schema

    def _reader(self, columns: Sequence[int] = ()) -> Any:
        self._file.seek(0)
        is_file = self._file.read(len(_ARROW_FILE)) == _ARROW_FILE
        self._file.seek(0)
        options = pa.ipc.IpcReadOptions(included_fields=list(columns))
        return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(self._file, options=options)

    @property
    def fraction(self) -> float:
        return float(self._file.tell() / self._file.size())

    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        reader = self._reader([self._reader().schema.get_field_index(name) for name in names])
        is_file = isinstance(reader, pa.ipc.RecordBatchFileReader)
        for batch in map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader:
            for column in batch.columns:
                _check_bounds(column)
            for start in range(0, batch.num_rows, _BATCH):
                yield batch.slice(start, _BATCH)


def _column(batch: pa.RecordBatch, top: str, *inner: str) -> pa.Array:
    column = batch.column(top)
    return pc.struct_field(column, list(inner)) if inner else column


def _nested(
    fields: Iterable[pa.Field], place: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], pa.Field]]:
    """Names of columns, and of the fields in them below these, with the fields."""
    for field in fields:
        yield (inner := (*place, field.name)), field
        if pa.types.is_struct(field.type):
            yield from _nested(field.type, inner)


_SHEET_BYTES = 4 << 30
_TRIAL = """
import resource, sys, python_calamine
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
python_calamine.load_workbook(open(sys.argv[1], "rb")).get_sheet_by_name(sys.argv[3])
"""


@lru_cache  # a command opens the same workbook several times
def _fits_memory(path: Path, sheet: str, *_state: int) -> bool:
    """True unless a sheet of a workbook needs so much memory that a process ends of it.

    A sheet takes as many cells as the rectangle that holds all of them: one stray cell in the last
    corner makes 17 billion, of which the library ends the process. So another process goes first.
    """
    words = [sys.executable, "-P", "-c", _TRIAL, str(path), str(_SHEET_BYTES), sheet]
    return subprocess.run(words, capture_output=True, check=False).returncode >= 0


class _SheetTable(Table):
    """One sheet of a workbook, which is in memory; its first row names the columns."""

    def __init__(self, path: Path, dialect: Dialect) -> None:
        try:
            import python_calamine
        except ImportError as error:
            advice = "pip install python-calamine, or save it as CSV (UTF-8)"
            raise CorpusError(f"{path} is a workbook: {advice}.") from error
        self.path, self._done = path, 0
        try:
            with path.open("rb") as file, python_calamine.load_workbook(file) as book:
                name = self._sheet_of(book.sheet_names, dialect.delimiter)
                status = path.stat()
                state = status.st_size, status.st_mtime_ns, status.st_ino
                if not _fits_memory(path, name, *state):
                    limit = f"{_SHEET_BYTES >> 30} GB of memory"
                    problem = f"its sheet {name!r} takes more than {limit}. Save it as CSV (UTF-8)"
                    raise CorpusError(f"{path}: {problem}.")
                self._sheet = book.get_sheet_by_name(name)
        except (python_calamine.CalamineError, OSError) as error:
            check_kind(path)
            problem = f"is not a readable workbook: {error}. If it is text: format='tsv' or 'csv'"
            raise CorpusError(f"{path} {problem}.") from error
        rows = enumerate(self._sheet.iter_rows())
        filled = list(islice(((i, row) for i, row in rows if any(map(_sheet_cell, row))), 3))
        if not filled:
            raise CorpusError(f"{path}: its sheet {name!r} is empty.{self._others}")
        self._first = filled[0][0]
        self.columns, *below = [_sheet_names(row) for _, row in filled]
        check_title(path, [len(cells) for cells in (self.columns, *below)])
        _check_names(self.columns, path)

    def _sheet_of(self, names: Sequence[str], given: str) -> str:
        """The name of the sheet to read; a tab stands for the first one."""
        listed = ", ".join(map(repr, names))
        self._others = f" There are {listed}; name one with sheet=." if len(names) > 1 else ""
        if given == "\t":
            if len(names) > 1:
                self.notices = (f"sheet: {names[0]!r}, of {listed} (choose another with sheet=)",)
            return names[0]
        if given not in names:
            problem = f"sheet={given!r}: {self.path} has {listed}."
            raise CorpusError(problem + did_you_mean(given, names))
        return given

    @property
    def fraction(self) -> float:
        return self._done / max((self._sheet.end or (0, 0))[0] + 1, self._done, 1)

    def rows(self, names: Sequence[str]) -> Iterator[Row | BadRow]:
        places = [self.columns.index(name) for name in names]
        below = islice(self._sheet.iter_rows(), self._first + 1, None)
        for number, values in enumerate(below, self._first + 2):
            self._done = number
            cells = [_sheet_cell(cell) for cell in values]
            if not any(cells):
                self.blank += 1
                continue
            yield Row(number, None, 0, tuple(cells[place] for place in places))


def _sheet_names(row: Sequence[Any]) -> list[str]:
    """The texts of the cells of a row up to its last one that is not empty."""
    names = [str(_sheet_cell(cell) or "") for cell in row]
    return names[: len(names) - next((i for i, name in enumerate(names[::-1]) if name), 0)]


def check_title(path: Path, widths: Sequence[int]) -> None:
    """Raise a :class:`CorpusError` if one cell stands above rows of several cells."""
    if len(widths) > 2 and widths[0] == 1 and min(widths[1:]) > 1:
        raise CorpusError(
            f"{path}: its first line has one cell, and the next have {widths[1]}. Remove a title "
            "or a comment above the names of the columns."
        )


def _sheet_cell(value: Any) -> Cell:
    """The text of a cell; an empty one is null."""
    return text_of(value) or None


def _check_bounds(column: pa.Array) -> None:
    """Raise ``ArrowInvalid`` for offsets beyond the data; strings may be any bytes."""
    if pa.types.is_dictionary(column.type):
        _check_bounds(column.dictionary)  # its indices are checked when it is decoded
    else:
        as_bytes = _BYTES_OF.get(column.type)
        (column.view(as_bytes) if as_bytes else column).validate(full=True)


def _cells(column: pa.Array) -> list[bytes | NotText | None]:
    column = without_dictionary(column)
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if is_string(column.type):
        # as bytes: one undecodable value must cost one row and not the batch
        values: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
        return list(values)
    if pa.types.is_floating(column.type):  # digits of its own precision; null is NaN
        return [_not_text(value) for value in column.to_numpy(zero_copy_only=False)]
    return [_not_text(value) for value in column.to_pylist()]


def _not_text(value: Any) -> NotText | None:
    text = text_of(value)
    return None if text is None else NotText(text)


def _row(values: tuple[bytes | NotText | None, ...]) -> Row | BadRow:
    try:
        cells = tuple(v.decode("utf-8") if isinstance(v, bytes) else v for v in values)
    except UnicodeDecodeError as error:
        detail, raw = f"utf-8: {error.reason}", error.object[:200]
        return BadRow(None, None, 0, "invalid_encoding", detail, raw)
    return Row(None, None, 0, cells)


def without_dictionary(column: pa.Array) -> pa.Array:
    """The values of a column that may be dictionary-encoded."""
    if not pa.types.is_dictionary(column.type):
        return column
    values = column.dictionary
    if pa.types.is_string_view(values.type):  # which pyarrow cannot take from
        values = values.cast(pa.large_string())
    return pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()


def is_string(kind: pa.DataType) -> bool:
    """True if values of the type are text."""
    return kind in _BYTES_OF


def has_bytes(kind: pa.DataType) -> bool:
    """True if values of the type are or contain bytes."""
    if pa.types.is_nested(kind):
        fields = map(kind.field, range(kind.num_fields))
        return any(has_bytes(inner_type(field.type)) for field in fields)
    return kind in _BYTES_OF.values() or pa.types.is_fixed_size_binary(kind)


def is_list(kind: pa.DataType) -> bool:
    """True if values of the type are lists."""
    return any(is_kind(kind) for is_kind in _LISTS)


def inner_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values of a dictionary, or in which an extension type stores its values."""
    if pa.types.is_dictionary(kind):
        return inner_type(kind.value_type)
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


_LONE_CR = "\ud800"  # replaces it for the csv module, which would end the record
_LINE_ENDS = ("", "\n", "\r\n", "\r\n")
_SEPARATOR_LINE = re.compile(rb'"?sep=(.)"?')
"""What Excel writes above a table to name the separator."""

_Parsed = tuple[Sequence[Line], Sequence[bytes | str]]  # physical lines, and the cells in them
_Records = Iterator[_Parsed | BadRow | None]  # None stands for a blank line


class _DelimitedTable(TextTable):
    """TSV or CSV: records of cells."""

    def rows(self, names: Sequence[str]) -> Iterator[Row | BadRow]:
        indexes = [self.columns.index(name) for name in names]
        for parsed in self._records():
            if parsed is None:
                self.blank += 1 + self._lines.skip_blank()
            elif isinstance(parsed, BadRow):
                yield parsed
            else:
                yield self._row(parsed, indexes)

    def _records(self) -> _Records:
        if self._dialect.quoting == "csv":
            return _csv_records(self._lines, self._dialect.delimiter)
        mark, encoding = self._dialect.delimiter, self._lines.encoding
        if mark == "\t":  # its byte is part of no other character in any encoding
            return _plain_records(self._lines, lambda data: data.split(b"\t"))
        return _plain_records(
            self._lines, lambda data: data.decode(encoding, "surrogateescape").split(mark)
        )

    def _row(self, parsed: _Parsed, indexes: list[int]) -> Row | BadRow:
        (lines, cells), width = parsed, len(self.columns)
        if len(cells) != width:
            reason = "too_few_cells" if len(cells) < width else "too_many_cells"
            return bad_row(lines, reason, f"expected {width} cells, got {len(cells)}")
        try:
            chosen = tuple(_decoded(cells[i], self._encoding) for i in indexes)
        except (UnicodeDecodeError, UnicodeEncodeError) as error:
            detail = f"{self._encoding}: {error.reason} at byte {error.start} of the cell"
            return bad_row(lines, "invalid_encoding", detail)
        return row(lines, chosen)

    def _read_columns(self) -> list[str]:
        line = next(self._lines, None)
        if line is not None and separator_named_by(line.data) != self._dialect.delimiter:
            self._lines.back([line])
        for parsed in self._records():
            if isinstance(parsed, BadRow):
                raise CorpusError(f"{self.path}: the first line cannot be read: {parsed.detail}.")
            if parsed is not None:
                break
            self.blank += 1 + self._lines.skip_blank()
        else:
            return self._names(0)
        lines, cells = parsed
        if not self._dialect.header:
            self._lines.back(lines)
            return self._names(len(cells))
        try:
            names = [_decoded(cell, self._encoding) for cell in cells]
        except (UnicodeDecodeError, UnicodeEncodeError) as error:
            problem = f"the header is not {self._encoding}. Pass the right encoding=."
            raise CorpusError(f"{self.path}: {problem}") from error
        _check_names(names, self.path)
        return names

    def _names(self, count: int) -> list[str]:
        """Names of the columns of a file without a header, or of an empty one."""
        if not count and self._dialect.header:
            raise CorpusError(f"{self.path} is empty: not even a header line.")
        return [str(i) for i in range(count)] or ["text"]


class _LinesTable(_DelimitedTable):
    """One text per line, in the column ``text``."""

    def _records(self) -> _Records:
        return _plain_records(self._lines, lambda data: [data])

    def _names(self, _count: int) -> list[str]:
        return ["text"]


def separator_named_by(line: bytes) -> str:
    """The separator that a first line such as ``sep=;`` names; empty if it names none."""
    match = _SEPARATOR_LINE.fullmatch(line)
    return match[1].decode("latin-1") if match else ""


def _plain_records(lines: Source, split: Callable[[bytes], Sequence[bytes | str]]) -> _Records:
    for line in lines:
        if line.too_long:
            yield too_long([line])
        elif not line.data:
            yield None
        else:
            try:
                cells = split(line.data)
            except UnicodeDecodeError as error:
                yield bad_row([line], "invalid_encoding", f"{error.encoding}: {error.reason}")
            else:
                yield [line], cells


def _csv_records(lines: Source, delimiter: str) -> _Records:
    """RFC 4180 records by the standard library, which gets the file line by line.

    An invalid record is rejected, and reading continues on the line after its first one: a stray
    quote costs one record and not the rest of the file. Line ends inside quotes stay as they are,
    and a lone carriage return is text, quoted or not.
    """
    csv.field_size_limit(MAX_RECORD_BYTES + 1)
    while True:
        taken: list[Line] = []
        reader = csv.reader(_fed(lines, taken), delimiter=delimiter, strict=True, quotechar='"')
        try:
            cells = next(reader)
        except StopIteration:
            return
        except _RunawayError:
            advice = "a quote may stand alone: see quoting='none'"
            problem = "record_too_long", f"over {MAX_RECORD_BYTES} bytes; {advice}"
        except csv.Error as error:
            problem = "bad_quoting", str(error)
        except UnicodeDecodeError as error:
            problem = "invalid_encoding", f"{error.encoding}: {error.reason}"
        else:
            if taken[0].too_long:
                yield too_long(taken[:1])
            elif not cells:
                yield None
            else:
                yield taken, [cell.replace(_LONE_CR, "\r") for cell in cells]
            continue
        lines.back(taken[1:])
        yield bad_row(taken[:1], *problem)


def _fed(lines: Source, taken: list[Line]) -> Iterator[str]:
    total = 0
    for line in lines:
        taken.append(line)
        total += line.length
        if total > MAX_RECORD_BYTES:
            if len(taken) == 1:
                yield ""
                return
            raise _RunawayError
        # undecodable bytes become lone surrogates, which are rejected cell by cell;
        # only encodings with escape sequences may fail here
        text = line.data.decode(lines.encoding, "surrogateescape")
        yield text.replace("\r", _LONE_CR) + _LINE_ENDS[line.length - len(line.data)]


class _RunawayError(Exception):
    """A quoted field runs over the record limit."""


def _decoded(cell: bytes | str, encoding: str) -> str:
    if isinstance(cell, bytes):
        return cell.decode(encoding)
    if not has_surrogate(cell):
        return cell
    return cell.encode(encoding, "surrogateescape").decode(encoding)


_PEEK = 1_000
_PEEK_BYTES = 16 << 20
_ARRAY = re.compile(rb"\s*\[\s*[{\]]")


class _JsonTable(TextTable):
    """One JSON object per line, or an array of objects; the columns are the keys of the first ones.

    Keys of objects within an object have dotted names, such as ``labels.label``.
    """

    def seek(self, place: Place) -> bool:
        if self._is_array or not super().seek(place):
            return False
        self._items = chain(self._lines)
        return True

    def rows(self, names: Sequence[str]) -> Iterator[Row | BadRow]:
        for line in self._items:
            if line.too_long:
                yield too_long([line])
            elif not line.data.strip():
                self.blank += 1 + (0 if self._is_array else self._lines.skip_blank())
            else:
                try:
                    cells = self._cells(line, names)
                except BadRecordError as error:
                    yield bad_row([line], error.reason, error.detail)
                else:
                    yield row([line], cells)

    def _cells(self, line: Line, names: Sequence[str]) -> tuple[Cell, ...]:
        try:
            record = self._parse(line)
            values = [_value(record, name) for name in names]
            return tuple(map(text_of, values))
        except RecursionError as error:
            raise BadRecordError("bad_json", "nested too deeply") from error

    def _parse(self, line: Line) -> dict[str, Any]:
        try:
            record = json.loads(
                line.data.decode(self._encoding),
                parse_int=NotText,
                parse_float=number_text,
                parse_constant=_CONSTANTS.get,
                object_pairs_hook=_unique_keys,
            )
        except UnicodeDecodeError as error:
            raise BadRecordError("invalid_encoding", f"{self._encoding}: {error.reason}") from error
        except json.JSONDecodeError as error:
            raise BadRecordError("bad_json", f"{error.msg} at column {error.colno}") from error
        if not isinstance(record, dict):
            raise BadRecordError("not_an_object", "expected a JSON object")
        return record

    def _read_columns(self) -> list[str]:
        self._is_array = _ARRAY.match(self._lines.head()) is not None
        if self._is_array and self._encoding != "utf-8":  # other characters have bytes of its marks
            self._lines.close()
            self._lines = Source(self.path, encoding=self._encoding, transcode=True)
            self._encoding = "utf-8"
        self.blank += 0 if self._is_array else self._lines.skip_blank()
        items = self._lines.array_items() if self._is_array else iter(self._lines)
        peeked: list[Line] = []
        held = 0  # bytes in memory
        for line in islice(items, _PEEK):
            peeked.append(line)
            held += len(line.data)
            if held > _PEEK_BYTES:
                break
        self._items = chain(peeked, items)
        self.open_ended = len(peeked) == _PEEK or held > _PEEK_BYTES
        filled = [line for line in peeked if line.data.strip()]
        self._kinds: dict[str, Any] = {}  # the first value of each key that is not null
        objects = undecodable = 0
        for line in filled:
            try:
                record = self._parse(line)
                objects += 1
                for name, value in _items(record):
                    if self._kinds.get(name) is None:
                        self._kinds[name] = value
            except (RecursionError, BadRecordError) as error:
                undecodable += getattr(error, "reason", "") == "invalid_encoding"
        check_encoding(self.path, self._encoding, undecodable, len(filled))
        if filled and (not objects or filled[0].data.strip() == b"{"):
            raise CorpusError(
                f"{self.path} holds neither JSON objects, one per line, nor an array of them. Pass "
                "records in a document in Python: embedkit.extract(json.load(file)['data'], …)."
            )
        if objects == len(filled) == 1 and _is_frame(record):
            raise CorpusError(
                f"{self.path} holds a frame by its columns, not records. Write it with "
                "df.to_json(path, orient='records', lines=True)."
            )
        return list(self._kinds)

    def is_list(self, name: str) -> bool:
        """True for a key whose first value is a list."""
        return isinstance(self._kinds.get(name), list)


def _items(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys and values, also those below; keys of objects within an object have dotted names."""
    for name, value in record.items():
        yield prefix + name, value
        if isinstance(value, dict):
            yield from _items(value, f"{prefix}{name}.")


def _is_frame(record: Mapping[str, Any]) -> bool:
    """True for an object as ``to_json`` of pandas writes a frame without ``orient``."""
    columns = [value for value in record.values() if isinstance(value, dict)]
    by_column = bool(columns) and all(map(str.isdecimal, chain.from_iterable(columns)))
    by_row = bool(columns) and all(map(str.isdecimal, record))
    split = {"columns", "data"} <= record.keys()
    return split or (len(columns) == len(record) and (by_column or by_row))


def _value(record: Any, name: str) -> Any:
    if name in record:
        return record[name]
    for part in name.split("."):
        record = record.get(part) if isinstance(record, dict) else None
    return record


_CONSTANTS = {"Infinity": NotText("inf"), "-Infinity": NotText("-inf")}
"""Numbers that Python writes and JSON does not have; the third, NaN, is a missing value."""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadRecordError("duplicate_key", f"{twice!r} stands twice")
    return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One corpus format."""

    open: Callable[[Path, Dialect], Table]  # a CorpusError if the file is not of the format
    suffixes: tuple[str, ...] = ()
    magic: tuple[bytes, ...] = ()  # first bytes, for files of other suffixes
    text: bool = True  # in some encoding, plain or compressed
    delimiters: tuple[str, ...] = ()  # the usual one first
    quoting: str = ""  # meaning of "auto"; empty if the format has no quotes and no header
    header: bool = False  # whether the first line may name the columns
    same_columns: bool = True  # in the same order; else by name, and none without records
    marks_words: bool = False  # whether records contain the spans of words


READERS: Mapping[str, Format] = {
    "tsv": Format(
        open=_DelimitedTable,
        suffixes=(".tsv", ".tab", ".txt"),
        delimiters=("\t",),
        quoting="none",
        header=True,
    ),
    "csv": Format(
        open=_DelimitedTable,
        suffixes=(".csv",),
        delimiters=(",", ";", "\t", "|"),
        quoting="csv",
        header=True,
    ),
    "lines": Format(open=_LinesTable, quoting="none"),
    "jsonl": Format(
        open=_JsonTable, suffixes=(".jsonl", ".ndjson", ".json"), magic=(b"{",), same_columns=False
    ),
    "parquet": Format(
        open=_ParquetTable, suffixes=(".parquet", ".pq"), magic=(b"PAR1",), text=False
    ),
    "arrow": Format(
        open=_ArrowTable,
        suffixes=(".arrow", ".feather", ".ipc"),
        magic=(b"ARROW1", b"\xff\xff\xff\xff"),
        text=False,
    ),
    "sheet": Format(
        open=_SheetTable, suffixes=(".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"), text=False
    ),
    "conllu": Format(
        open=ConlluTable,
        suffixes=(".conllu",),
        magic=(b"# sent_id", b"# newdoc", b"# text =", b"# global.columns"),
        marks_words=True,
    ),
    "conll": Format(
        open=ConllTable,
        suffixes=(".conll", ".bio", ".iob", ".iob2"),
        magic=(b"-DOCSTART-",),
        marks_words=True,
    ),
}


def format_of_name(path: Path) -> str:
    """The format by the suffix of a file; empty if it is unknown."""
    suffix = suffix_of(path)
    return next((name for name, kind in READERS.items() if suffix in kind.suffixes), "")


def suffix_of(path: Path) -> str:
    """Suffix of a file in lower case, without that of a compression."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in PACKED_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def format_of_content(path: Path, encoding: str) -> str:
    """The format by the first bytes of a file; text without a tab is ``lines``."""
    if name := _by_magic(first_bytes(path), text=False):
        return name
    with closing(Source(path, encoding=encoding)) as source:
        head = source.head().lstrip()
    return _by_magic(head, text=True) or ("tsv" if b"\t" in head.split(b"\n", 1)[0] else "lines")


def _by_magic(head: bytes, *, text: bool) -> str:
    kinds = ((name, kind) for name, kind in READERS.items() if kind.text is text)
    return next((name for name, kind in kinds if head.startswith(kind.magic)), "")
