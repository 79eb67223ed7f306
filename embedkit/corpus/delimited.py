"""Readers of TSV, CSV, and files of one text per line."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence

from embedkit.corpus.rows import BadRow, Row, check_names, has_surrogate, too_long
from embedkit.corpus.source import MAX_RECORD_BYTES, Line
from embedkit.corpus.text_table import Lines, Parsed, TextTable
from embedkit.errors import CorpusError

__all__ = ["DelimitedTable", "LinesTable"]

_LONE_CR = "\ud800"  # stands for it in the csv module, which would end the record; no text has it
_LINE_ENDS = ("", "\n", "\r\n")

_Records = Iterable[Parsed | BadRow | None]  # None stands for a blank line


class DelimitedTable(TextTable):
    """TSV or CSV: records of cells."""

    def rows(self, wanted: Sequence[str]) -> Iterator[Row | BadRow]:
        """Yield the wanted columns of every record."""
        indexes = [self.columns.index(name) for name in wanted]
        width = len(self.columns)
        for parsed in self._records():
            if parsed is None:
                self.blank += 1
            elif isinstance(parsed, BadRow):
                yield parsed
            else:
                yield self._row(parsed, indexes, width)

    def _records(self) -> _Records:
        if self._dialect.quoting == "csv":
            return _CsvRecords(self._lines, self._dialect.delimiter, self._encoding)
        delimiter = self._dialect.delimiter.encode()
        return _plain_records(self._lines, lambda data: data.split(delimiter))

    def _row(self, parsed: Parsed, indexes: list[int], width: int) -> Row | BadRow:
        cells = parsed.cells
        if len(cells) != width:
            reason = "too_few_cells" if len(cells) < width else "too_many_cells"
            return parsed.bad(reason, f"expected {width} cells, got {len(cells)}")
        try:
            chosen = tuple(_decoded(cells[i], self._encoding) for i in indexes)
        except (UnicodeDecodeError, UnicodeEncodeError) as error:
            detail = f"{self._encoding}: {error.reason} at byte {error.start} of the cell"
            return parsed.bad("invalid_encoding", detail)
        return Row(parsed.line, parsed.offset, parsed.length, chosen)

    def _read_columns(self) -> list[str]:
        first = self._first()
        if first is None:
            return self._columns_of_empty()
        if not self._dialect.header:
            self._lines.back(first.lines)
            return self._columns_without_header(first)
        try:
            names = [_decoded(cell, self._encoding) for cell in first.cells]
        except (UnicodeDecodeError, UnicodeEncodeError) as error:
            raise CorpusError(
                f"{self.path}: the header is not {self._encoding}. Pass the right encoding=."
            ) from error
        check_names(names, self.path)
        return names

    def _columns_of_empty(self) -> list[str]:
        if self._dialect.header:
            raise CorpusError(f"{self.path} is empty: not even a header line.")
        return ["text"]

    def _columns_without_header(self, first: Parsed) -> list[str]:
        return [str(i) for i in range(len(first.cells))]

    def _first(self) -> Parsed | None:
        for parsed in self._records():
            if isinstance(parsed, BadRow):
                raise CorpusError(f"{self.path}: the first line cannot be read: {parsed.detail}.")
            if parsed is not None:
                return parsed
            self.blank += 1
        return None


class LinesTable(DelimitedTable):
    """One text per line, in the column ``text``."""

    def _records(self) -> _Records:
        if self._dialect.quoting == "csv":
            return super()._records()
        return _plain_records(self._lines, lambda data: [data])

    def _columns_of_empty(self) -> list[str]:
        return ["text"]

    def _columns_without_header(self, _first: Parsed) -> list[str]:
        return ["text"]


def _plain_records(
    lines: Lines, split: Callable[[bytes], list[bytes]]
) -> Iterator[Parsed | BadRow | None]:
    """One record a line, quotes literal."""
    for line in lines:
        if line.too_long:
            yield too_long(line)
        elif not line.data:
            yield None
        else:
            yield Parsed((line,), split(line.data))


class _CsvRecords:
    """RFC 4180 records through the standard library, fed line by line.

    A record that breaks the rules is rejected and reading goes on at the physical line after the
    one on which it began, so that one stray quote costs one record and not the rest of the file.
    Line ends inside quotes stay as they are, and a lone carriage return is text, quoted or not.
    """

    def __init__(self, lines: Lines, delimiter: str, encoding: str) -> None:
        self._lines = lines
        self._delimiter = delimiter
        self._encoding = encoding
        self._taken: list[Line] = []

    def __iter__(self) -> Iterator[Parsed | BadRow | None]:
        csv.field_size_limit(MAX_RECORD_BYTES + 1)
        while True:
            self._taken = []
            reader = csv.reader(self._feed(), delimiter=self._delimiter, strict=True, quotechar='"')
            try:
                cells = next(reader)
            except StopIteration:
                return
            except _RunawayError:
                yield self._reject(
                    "record_too_long",
                    f"over {MAX_RECORD_BYTES} bytes; a quote may stand alone: see quoting='none'",
                )
            except csv.Error as error:
                yield self._reject("bad_quoting", str(error))
            except UnicodeDecodeError as error:
                yield self._reject("invalid_encoding", f"{error.encoding}: {error.reason}")
            else:
                taken = tuple(self._taken)
                if taken[0].too_long:
                    yield too_long(taken[0])
                elif not cells:
                    yield None
                else:
                    yield Parsed(taken, [cell.replace(_LONE_CR, "\r") for cell in cells])

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
            text = line.data.decode(self._encoding, "surrogateescape")
            yield text.replace("\r", _LONE_CR) + _LINE_ENDS[line.length - len(line.data)]

    def _reject(self, reason: str, detail: str) -> BadRow:
        first, *rest = self._taken
        self._lines.back(rest)
        return BadRow(first.number, first.offset, first.length, reason, detail, first.data[:200])


class _RunawayError(Exception):
    """A quoted field runs over the record limit."""


def _decoded(cell: bytes | str, encoding: str) -> str:
    if isinstance(cell, bytes):
        return cell.decode(encoding)
    if not has_surrogate(cell):
        return cell
    return cell.encode(encoding, "surrogateescape").decode(encoding)
