"""One reader per file format: an open file → rows of cells, or rows that cannot be read.

Every reader has ``columns`` (names in file order) and ``rows(wanted)``, which yields one
:class:`Row` or :class:`BadRow` per record in file order and adds skipped blank lines to ``blank``.
Cells are text; numbers keep their literal form (``007``, ``1e5``); nothing is inferred or dropped.
"""

from __future__ import annotations

import csv
import dataclasses
import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embedkit.corpus.source import MAX_RECORD_BYTES, Line, Source
from embedkit.errors import CorpusError

__all__ = [
    "BadRow",
    "Dialect",
    "ParquetTable",
    "Row",
    "Table",
    "check_encoding",
    "has_surrogate",
    "is_text",
    "open_table",
]

Cell = str | None

_JSON_PEEK = 1_000
_JSON_PEEK_BYTES = 16 << 20
_PARQUET_BATCH = 4_096
# the last two by column names that are not UTF-8, and by dates that Python has not
_PARQUET_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError)
_LONE_CR = "\ud800"  # stands for it in the csv module, which would end the record; no text has it
_DOUBLE_NAMES = "Rename one, or skip the header line and use --no-header with column numbers."
_LINE_ENDS = ("", "\n", "\r\n")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the files of one corpus are written; the same for all of them.

    Attributes:
        format: ``tsv``, ``csv``, ``lines``, ``jsonl`` or ``parquet``.
        encoding: any Python codec name.
        delimiter: one byte, for ``tsv`` and ``csv``.
        quoting: ``none`` takes quotes literally, ``csv`` follows RFC 4180 strictly.
        header: the first line names the columns; otherwise they are named ``0``, ``1``, ….
    """

    format: str
    encoding: str = "utf-8"
    delimiter: str = "\t"
    quoting: str = "none"
    header: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """A readable record: the wanted cells, and where it stands in the file."""

    line: int | None
    offset: int | None
    length: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A record that cannot be read: reason in one word, detail for people, first bytes."""

    line: int | None
    offset: int | None
    length: int
    reason: str
    detail: str
    excerpt: bytes


class _NotText(str):
    """Literal form of a JSON value that is not a string."""

    __slots__ = ()


def open_table(path: Path, dialect: Dialect) -> Table:
    """Open one file for reading in the given dialect.

    Raises:
        CorpusError: the file is not of that format.
    """
    if dialect.format == "parquet":
        return ParquetTable(path)
    source = Source(path, encoding=dialect.encoding)
    try:
        if dialect.format == "jsonl":
            return JsonLinesTable(source)
        return DelimitedTable(source, dialect)
    except BaseException:
        source.close()
        raise


class DelimitedTable:
    """TSV, CSV, or one text per line."""

    def __init__(self, source: Source, dialect: Dialect) -> None:
        self.path = source.path
        self.blank = 0
        self._source = source
        # the source may have transcoded the file
        self._dialect = dataclasses.replace(dialect, encoding=source.encoding)
        self._parser = _CsvParser if dialect.quoting == "csv" else _PlainParser
        self._lines = _Pushback(source.lines())
        self.columns = self._header()

    @property
    def fraction(self) -> float:
        """Share of the file that has been read."""
        return self._source.fraction

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def rows(self, wanted: Sequence[str]) -> Iterator[Row | BadRow]:
        """Yield the wanted columns of every record."""
        indexes = [self.columns.index(name) for name in wanted]
        width = len(self.columns)
        for parsed in self._parser(self._lines, self._dialect):
            if parsed is None:
                self.blank += 1
            elif isinstance(parsed, BadRow):
                yield parsed
            else:
                yield self._row(parsed, indexes, width)

    def _row(self, parsed: _Parsed, indexes: list[int], width: int) -> Row | BadRow:
        cells = parsed.cells
        if len(cells) != width:
            reason = "too_few_cells" if len(cells) < width else "too_many_cells"
            return parsed.bad(reason, f"expected {width} cells, got {len(cells)}")
        try:
            chosen = tuple(_decoded(cells[i], self._dialect.encoding) for i in indexes)
        except (UnicodeDecodeError, UnicodeEncodeError) as error:
            where = f"{self._dialect.encoding}: {error.reason} at byte {error.start} of the cell"
            return parsed.bad("invalid_encoding", where)
        return Row(parsed.line, parsed.offset, parsed.length, chosen)

    def _header(self) -> list[str]:
        first = self._first()
        if first is None:
            if self._dialect.header and self._dialect.format != "lines":
                raise CorpusError(f"{self.path} is empty: not even a header line.")
            return ["text"]
        if isinstance(first, BadRow):
            raise CorpusError(f"{self.path}: the first line cannot be read: {first.detail}.")
        if not self._dialect.header:
            self._lines.back(first.lines)
            if self._dialect.format == "lines":
                return ["text"]
            return [str(i) for i in range(len(first.cells))]
        try:
            names = [_decoded(cell, self._dialect.encoding) for cell in first.cells]
        except (UnicodeDecodeError, UnicodeEncodeError) as error:
            raise CorpusError(
                f"{self.path}: the header is not {self._dialect.encoding}. "
                "Give the right --encoding."
            ) from error
        _check_names(names, self.path)
        return names

    def _first(self) -> _Parsed | BadRow | None:
        for parsed in self._parser(self._lines, self._dialect):
            if parsed is not None:
                return parsed
            self.blank += 1
        return None


@dataclass(frozen=True, slots=True)
class _Parsed:
    """Cells of one record as bytes or text, with the physical lines that it came from."""

    lines: tuple[Line, ...]
    cells: Sequence[bytes | str]

    @property
    def line(self) -> int:
        return self.lines[0].number

    @property
    def offset(self) -> int:
        return self.lines[0].offset

    @property
    def length(self) -> int:
        return sum(line.length for line in self.lines)

    def bad(self, reason: str, detail: str) -> BadRow:
        return BadRow(self.line, self.offset, self.length, reason, detail, self.lines[0].data[:200])


class _Pushback:
    """An iterator of lines that takes lines back."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines = lines
        self._returned: deque[Line] = deque()

    def __iter__(self) -> Iterator[Line]:
        return self

    def __next__(self) -> Line:
        return self._returned.popleft() if self._returned else next(self._lines)

    def back(self, lines: Sequence[Line]) -> None:
        self._returned.extendleft(reversed(lines))


def _PlainParser(  # noqa: N802 - stands beside the class of the same shape
    lines: _Pushback, dialect: Dialect
) -> Iterator[_Parsed | BadRow | None]:
    """Cells split at the delimiter, quotes literal. ``None`` stands for a blank line."""
    delimiter = dialect.delimiter.encode()
    whole = dialect.format == "lines"
    for line in lines:
        if line.too_long:
            yield _too_long(line, line.length)
        elif not line.data:
            yield None
        else:
            yield _Parsed((line,), [line.data] if whole else line.data.split(delimiter))


class _CsvParser:
    """RFC 4180 records through the standard library, fed line by line.

    A record that breaks the rules is rejected and reading goes on at the physical line after the
    one on which it began, so that one stray quote costs one record and not the rest of the file.
    Line ends inside quotes stay as they are, and a lone carriage return is text, quoted or not.
    """

    def __init__(self, lines: _Pushback, dialect: Dialect) -> None:
        self._lines = lines
        self._dialect = dialect
        self._taken: list[Line] = []

    def __iter__(self) -> Iterator[_Parsed | BadRow | None]:
        csv.field_size_limit(MAX_RECORD_BYTES + 1)
        while True:
            self._taken = []
            reader = csv.reader(
                self._feed(), delimiter=self._dialect.delimiter, strict=True, quotechar='"'
            )
            try:
                cells = next(reader)
            except StopIteration:
                return
            except _RunawayError:
                yield self._reject(
                    "record_too_long",
                    f"over {MAX_RECORD_BYTES} bytes; a quote may stand alone: see --quoting none",
                )
            except csv.Error as error:
                yield self._reject("bad_quoting", str(error))
            except UnicodeDecodeError as error:
                yield self._reject("invalid_encoding", f"{error.encoding}: {error.reason}")
            else:
                taken = tuple(self._taken)
                if taken[0].too_long:
                    yield _too_long(taken[0], taken[0].length)
                elif not cells:
                    yield None
                else:
                    yield _Parsed(taken, [cell.replace(_LONE_CR, "\r") for cell in cells])

    def _feed(self) -> Iterator[str]:
        total = 0
        for line in self._lines:
            self._taken.append(line)
            total += line.length
            if total > MAX_RECORD_BYTES:
                if len(self._taken) == 1:
                    yield ""
                    return
                raise _RunawayError
            # undecodable bytes pass through as lone surrogates and are found cell by cell;
            # only encodings with escape sequences may fail here
            text = line.data.decode(self._dialect.encoding, "surrogateescape")
            yield text.replace("\r", _LONE_CR) + _LINE_ENDS[line.length - len(line.data)]

    def _reject(self, reason: str, detail: str) -> BadRow:
        first, *rest = self._taken
        self._lines.back(rest)
        return BadRow(first.number, first.offset, first.length, reason, detail, first.data[:200])


class _RunawayError(Exception):
    """A quoted field runs over the record limit."""


class JsonLinesTable:
    """One JSON object per line."""

    def __init__(self, source: Source) -> None:
        self.path = source.path
        self.blank = 0
        self._source = source
        self._encoding = source.encoding
        self._lines = _Pushback(source.lines())
        peeked = list(_first_lines(self._lines))
        self._lines.back(peeked)
        self.columns = self._peek_columns(peeked)

    @property
    def fraction(self) -> float:
        """Share of the file that has been read."""
        return self._source.fraction

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def rows(self, wanted: Sequence[str]) -> Iterator[Row | BadRow]:
        """Yield the wanted keys of every object; an absent key is a null cell."""
        for line in self._lines:
            if line.too_long:
                yield _too_long(line, line.length)
            elif not line.data.strip():
                self.blank += 1
            else:
                try:
                    cells = self._cells(line, wanted)
                except _BadJsonError as error:
                    yield _Parsed((line,), ()).bad(error.reason, error.detail)
                else:
                    yield Row(line.number, line.offset, line.length, cells)

    def _cells(self, line: Line, wanted: Sequence[str]) -> tuple[Cell, ...]:
        record = self._parse(line)
        try:
            return tuple(_json_cell(record.get(name)) for name in wanted)
        except RecursionError as error:
            raise _BadJsonError("bad_json", "nested too deeply") from error

    def _parse(self, line: Line) -> dict[str, Any]:
        try:
            record = json.loads(
                line.data.decode(self._encoding),
                parse_int=_NotText,
                parse_float=_NotText,
                parse_constant=_refuse_constant,
                object_pairs_hook=_unique_keys,
            )
        except UnicodeDecodeError as error:
            raise _BadJsonError("invalid_encoding", f"{self._encoding}: {error.reason}") from error
        except RecursionError as error:
            raise _BadJsonError("bad_json", "nested too deeply") from error
        except json.JSONDecodeError as error:
            raise _BadJsonError("bad_json", f"{error.msg} at column {error.colno}") from error
        if not isinstance(record, dict):
            raise _BadJsonError("not_an_object", "expected a JSON object on the line")
        return record

    def _peek_columns(self, lines: Sequence[Line]) -> list[str]:
        filled = [line for line in lines if line.data.strip()]
        names: dict[str, None] = {}
        objects = undecodable = 0
        for line in filled:
            try:
                names.update(dict.fromkeys(self._parse(line)))
                objects += 1
            except _BadJsonError as error:
                undecodable += error.reason == "invalid_encoding"
        check_encoding(self.path, self._encoding, bad=undecodable, seen=len(filled))
        if filled and (not objects or _opens_document(filled[0].data.strip())):
            raise CorpusError(
                f"{self.path} is not JSON Lines: it has {objects} JSON objects in its first "
                f"{len(filled)} lines. A pretty-printed document or an array must be rewritten "
                f"with one object per line: jq -c '.[]' {self.path.name} > lines.jsonl."
            )
        return list(names)


class _BadJsonError(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class ParquetTable:
    """Parquet, read in batches; strings are checked row by row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.blank = 0
        try:
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            self.columns = list(self._file.schema_arrow.names)
        except _PARQUET_ERRORS as error:
            raise CorpusError(f"{path} is not a readable Parquet file: {error}.") from error
        self._done = 0
        _check_names(self.columns, path, advice="Rename one.")

    @property
    def fraction(self) -> float:
        """Share of the rows that has been read."""
        total = self._file.metadata.num_rows
        return self._done / total if total else 1.0

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def rows(self, wanted: Sequence[str]) -> Iterator[Row | BadRow]:
        """Yield the wanted columns of every row."""
        names = list(dict.fromkeys(wanted))
        try:
            for batch in self._file.iter_batches(batch_size=_PARQUET_BATCH, columns=names):
                columns = {name: _arrow_cells(batch.column(name)) for name in names}
                for values in zip(*(columns[name] for name in wanted), strict=True):
                    self._done += 1
                    yield self._row(values)
        except _PARQUET_ERRORS as error:
            raise CorpusError(f"{self.path} cannot be read to its end: {error}.") from error

    def _row(self, values: tuple[bytes | _NotText | None, ...]) -> Row | BadRow:
        cells: list[Cell] = []
        for value in values:
            try:
                cells.append(value.decode("utf-8") if isinstance(value, bytes) else value)
            except UnicodeDecodeError as error:
                raw = value[:200] if isinstance(value, bytes) else b""
                return BadRow(None, None, 0, "invalid_encoding", f"utf-8: {error.reason}", raw)
        return Row(None, None, 0, tuple(cells))

    def check_type(self, name: str, *, text: bool) -> None:
        """Raise a :class:`CorpusError` if the column cannot serve as text, or as one value."""
        kind = self._file.schema_arrow.field(name).type
        inner = kind.value_type if pa.types.is_dictionary(kind) else kind
        if text and not (_is_string(inner) or pa.types.is_null(inner)):
            raise CorpusError(
                f"{self.path}: column {name!r} is {kind}; a text must be a string. Name another "
                "column with --text or --text-pair, or convert it first."
            )
        if pa.types.is_nested(inner) or _is_bytes(inner):
            raise CorpusError(
                f"{self.path}: column {name!r} is {kind}; a string, a number or a date is needed."
            )


Table = DelimitedTable | JsonLinesTable | ParquetTable


def _arrow_cells(column: pa.Array) -> list[bytes | _NotText | None]:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if _is_string(column.type):
        # as bytes: one undecodable value must cost one row and not the batch
        values: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
        return list(values)
    return [None if v is None else _NotText(v) for v in column.to_pylist()]


def _is_string(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def _check_names(names: Sequence[str], path: Path, advice: str = _DOUBLE_NAMES) -> None:
    seen: dict[str, int] = {}
    for position, name in enumerate(names, 1):
        if name in seen:
            raise CorpusError(
                f"{path}: columns {seen[name]} and {position} are both named {name[:100]!r}. "
                f"{advice}"
            )
        seen[name] = position


def _decoded(cell: bytes | str, encoding: str) -> str:
    if isinstance(cell, bytes):
        return cell.decode(encoding)
    if not has_surrogate(cell):
        return cell
    return cell.encode(encoding, "surrogateescape").decode(encoding)


def _too_long(line: Line, length: int) -> BadRow:
    detail = f"{length} bytes, at most {MAX_RECORD_BYTES} are read"
    return BadRow(line.number, line.offset, line.length, "record_too_long", detail, line.data[:200])


def _json_cell(value: object) -> Cell:
    if value is None or isinstance(value, str):
        return value
    return _NotText(_json_literal(value))


def _json_literal(value: object) -> str:
    if isinstance(value, _NotText):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_json_literal, value))}]"
    if isinstance(value, dict):
        pairs = (f"{_json_literal(name)}: {_json_literal(item)}" for name, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    return json.dumps(value, ensure_ascii=False)


def _first_lines(lines: Iterator[Line]) -> Iterator[Line]:
    """The first lines of a file, fewer where they are long: they are held in memory."""
    held = 0
    for line in islice(lines, _JSON_PEEK):
        yield line
        held += len(line.data)
        if held > _JSON_PEEK_BYTES:
            return


def _opens_document(line: bytes) -> bool:
    """Whether an array or object begins on the line and goes on: ``[``, ``{`` or ``[{…},``."""
    return line in (b"[", b"{") or (line.startswith(b"[") and line.endswith(b","))


def _refuse_constant(name: str) -> float:
    raise _BadJsonError("bad_json", f"{name} is not JSON")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _BadJsonError("duplicate_key", f"{twice!r} stands twice")
    return record


def check_encoding(path: Path, encoding: str, *, bad: int, seen: int) -> None:
    """Raise a :class:`CorpusError` if most of the records seen are in another encoding."""
    if bad * 2 > seen:
        raise CorpusError(
            f"{path}: {bad} of the first {seen} records are not {encoding}. Give its encoding, "
            "for instance --encoding cp949 (Korean) or shift_jis (Japanese)."
        )


def has_surrogate(text: str) -> bool:
    """Whether half of a surrogate pair is in the text, which then cannot be written as UTF-8."""
    if text.isascii():
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def is_text(cell: Cell) -> bool:
    """Whether the cell was text in the file, not a number or a boolean."""
    return isinstance(cell, str) and not isinstance(cell, _NotText)
