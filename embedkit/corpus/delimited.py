"""Readers of text whose records are lines: TSV, CSV, and a text on each line.

This is our own reader because the well-kept ones lose rows: they join records at a stray quote,
drop lines of another width, or stop at a byte that is not UTF-8. Here every line ends as a record
or as a reject with its line number, and a quote that never ends costs a bounded number of lines.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator, Sequence

from embedkit.corpus.sources import (
    LINE_BYTES,
    MAX_RECORD_BYTES,
    RIGHT_ENCODING,
    BadRecordError,
    Content,
    Line,
    Source,
    TextTable,
    check_names,
    has_surrogate,
)
from embedkit.errors import CorpusError, Option

_MOST_AGAIN = 32 * MAX_RECORD_BYTES  # half a minute
# half of a surrogate pair, which no decoded text contains:
# undecodable bytes become U+DC80 to U+DCFF
_LONE_CR = "\ud800"  # replaces it for the csv module, which would end the record


# by the number of its bytes: none at the end of a file, LF, CR
# LF, and CR CR LF, which is read as CR LF
_LINE_ENDS = ("", "\n", "\r\n", "\r\n")


_SEPARATOR_LINE = re.compile(rb'(?i)"?sep= ?(.)"?,*')
"""What Excel writes above a table to name the separator."""


_Records = Iterator[tuple[Sequence[Line], Sequence[str] | BadRecordError]]
"""Physical lines, and the cells in them, of which a blank line has none, or what is wrong there."""


class DelimitedTable(TextTable):
    """TSV or CSV: records of cells."""

    def _places(self, names: Sequence[str]) -> list[int]:
        return [self.columns.index(name) for name in names]

    def _records(self) -> _Records:
        if self._dialect.quoting == "csv":
            return _csv_records(self._lines, self._dialect.delimiter)
        return _plain_records(self._lines, self._dialect.delimiter)

    def _content(self, cells: Sequence[str] | BadRecordError, places: Sequence[int]) -> Content:
        if isinstance(cells, BadRecordError):
            raise cells
        # never padded or cut: one mark too many would shift labels into texts
        if len(cells) != (width := len(self.columns)):
            reason = "too_few_cells" if len(cells) < width else "too_many_cells"
            raise BadRecordError(reason, f"expected {width} cells, got {len(cells)}")
        try:
            return tuple(_decoded(cells[i], self._encoding) for i in places), None
        # a cell is encoded again to find its bad byte, which a
        # codec that is not symmetrical refuses
        except (UnicodeDecodeError, UnicodeEncodeError) as error:
            detail = f"{self._encoding}: {error.reason} at byte {error.start} of the cell"
            if codecs.lookup(self._encoding).name == "shift_jis":
                detail += "; see encoding='cp932', which has more characters"
            raise BadRecordError("invalid_encoding", detail) from error

    def _read_columns(self) -> list[str]:
        # a line such as sep=; is consumed if it says what the dialect has; else it is a record
        line = next(self._lines, None)
        if line is not None and separator_named_by(line.data) != self._dialect.delimiter:
            self._lines.back([line])
        for lines, cells in self._records():
            if isinstance(cells, BadRecordError):
                raise CorpusError(f"{self.path}: the first line cannot be read: {cells.detail}.")
            if cells and not self._dialect.header:
                # it was read for its width only, and is given back to be read as a record
                self._lines.back(lines)
                return self._names(len(cells))
            # blank lines above the header are skipped as those below it, and rows of empty cells
            if any(cells):
                break
            self.blank += 1 + self._lines.skip_blank()
        else:
            return self._names(0)
        try:
            names = [_decoded(cell, self._encoding) for cell in cells]
        except (UnicodeDecodeError, UnicodeEncodeError) as error:
            problem = f"the header is not {self._encoding}. {RIGHT_ENCODING}"
            raise CorpusError(f"{self.path}: {problem}") from error
        check_names(names, self.path)
        return names

    def _names(self, count: int) -> list[str]:
        """Names of the columns of a file without a header, or of an empty one."""
        if not count and self._dialect.header:
            raise CorpusError(f"{self.path} is empty: not even a header line.")
        return [str(i) for i in range(count)] or ["text"]


class LinesTable(DelimitedTable):
    """One text per line, in the column ``text``."""

    def _records(self) -> _Records:
        return _plain_records(self._lines)

    def _names(self, _count: int) -> list[str]:
        return ["text"]


def separator_named_by(line: bytes) -> str:
    """The separator that a first line such as ``sep=;`` names; empty if it names none."""
    match = _SEPARATOR_LINE.fullmatch(line)
    return match[1].decode("latin-1") if match else ""


def _plain_records(lines: Source, mark: str = "") -> _Records:
    """Lines divided at a mark, or whole ones without it."""
    for line in lines:
        if line.too_long:
            yield [line], BadRecordError.too_long([line])
        elif not line.data:
            yield [line], []
        else:
            try:
                # decoded before it is divided: a mark such as | may be the second byte of a
                # character of Shift JIS
                text = line.data.decode(lines.encoding, "surrogateescape")
            except UnicodeDecodeError as error:
                detail = f"{error.encoding}: {error.reason}"
                yield [line], BadRecordError("invalid_encoding", detail)
            else:
                yield [line], text.split(mark) if mark else [text]


def _csv_records(lines: Source, delimiter: str) -> _Records:
    """RFC 4180 records by the standard library, which gets the file line by line.

    An invalid record is rejected, and reading continues on the line after its first one: a stray
    quote costs one record and not the rest of the file. Line ends inside quotes stay as they are,
    and a lone carriage return is text, quoted or not.
    """
    # the default of 128 KB would reject long texts. It is one setting of the process;
    # lines are limited before they come here
    csv.field_size_limit(MAX_RECORD_BYTES + 1)
    again = 0  # bytes that were read in vain
    while True:
        record: list[Line] = []
        # a new one for each record: after an error the old one would be in the middle of a quote
        reader = csv.reader(_fed(lines, record), delimiter=delimiter, strict=True, quotechar='"')
        try:
            cells = next(reader)
        except StopIteration:
            return
        except BadRecordError as error:
            problem = error
        except csv.Error as error:
            problem = BadRecordError("bad_quoting", str(error))
        except UnicodeDecodeError as error:
            problem = BadRecordError("invalid_encoding", f"{error.encoding}: {error.reason}")
        else:
            yield record, [cell.replace(_LONE_CR, "\r") for cell in cells]
            continue
        # all lines but the first are records of their own until shown otherwise. Where each of them
        # opens a quote that is never closed, each would read the rest of the file; a stray quote
        # now and then reads no more than there is. Short lines take time by their number
        lines.back(record[1:])
        again += sum(line.length + LINE_BYTES for line in record[1:])
        if again > _MOST_AGAIN + record[0].offset + LINE_BYTES * record[0].number:
            remedy = Option("quoting", "none", before=" Pass ", after=".")
            raise CorpusError(f"{lines.path}: many quotes are opened and never closed.{remedy}")
        yield record[:1], problem


def _fed(lines: Source, record: list[Line]) -> Iterator[str]:
    total = 0
    for line in lines:
        record.append(line)
        total += line.length
        if total > MAX_RECORD_BYTES:
            # one line over the limit: there is no runaway quote, only a long line
            if len(record) == 1:
                raise BadRecordError.too_long(record)
            # this is where a text with a single " at its beginning ends up; the advice is stored
            # with the rejects, as text
            detail = f"over {MAX_RECORD_BYTES} bytes; a quote may stand alone: see quoting='none'"
            raise BadRecordError("record_too_long", detail)
        # undecodable bytes become lone surrogates, which are rejected cell by cell;
        # only encodings with escape sequences may fail here
        text = line.data.decode(lines.encoding, "surrogateescape")
        yield text.replace("\r", _LONE_CR) + _LINE_ENDS[line.length - len(line.data)]


def _decoded(cell: str, encoding: str) -> str:
    # the frequent case; no need to encode it
    if not has_surrogate(cell):
        return cell
    # back to the bytes of the file, so that the error names the bad byte and its place
    return cell.encode(encoding, "surrogateescape").decode(encoding)
