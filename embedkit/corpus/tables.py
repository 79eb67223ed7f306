"""Tables of rows, which all readers are, and those of text: TSV, CSV, lines and JSON.

    Source ─► Line ─► Table.rows ─► Row or Reject

    Row(line=3, offset=41, length=9, cells=("good", "7"))     the cells that were asked for
    Reject(line=3, …, reason="too_many_cells", detail=…)      never a guess, never a lost row

The reader of TSV and CSV is our own because the well-kept ones lose rows: they join records at a
stray quote, drop lines of another width, or stop at a byte that is not UTF-8. Here every line ends
as a record or as a reject with its line number, and a quote that never ends costs a bounded number
of lines.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
import unicodedata
from abc import ABC, abstractmethod
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Self

from embedkit.corpus import sources
from embedkit.corpus.sources import EXCERPT, LINE_BYTES, MAX_RECORD_BYTES, Line, Source
from embedkit.corpus.values import NotText, has_surrogate, number_text, text_of
from embedkit.errors import CorpusError, Message, Option


@dataclass(frozen=True, slots=True)
class Dialect:
    """Dialect of the files of a corpus; fields as for ``CorpusOptions``.

    ``quoting`` is settled: ``none`` takes quotes literally, ``csv`` follows RFC 4180 strictly. The
    ``delimiter`` of a workbook is the name of its sheet; a tab stands for the first one.
    Of a text that is a list of words it is the space between these.
    """

    format: str
    encoding: str = "utf-8"
    delimiter: str = "\t"
    quoting: str = "none"
    header: bool = True

    @property
    def options(self) -> dict[str, str | bool | None]:
        """What ``CorpusOptions`` are given, for another file that is to be read likewise."""
        mark, sheet = self.delimiter, self.format == "sheet"
        option = {"sheet": None if mark == "\t" else mark} if sheet else {"delimiter": mark}
        shared = ("format", "encoding", "quoting", "header")
        return {**{name: getattr(self, name) for name in shared}, **option}


Cell = str | None
Span = tuple[int, int]
"""First character of a word in its text, and the one after its last."""

Content = tuple[tuple[Cell, ...], tuple[Span, ...] | None]
"""The chosen cells of a record, and the spans of its words if they are marked."""


class Row(NamedTuple):
    """A readable record: its chosen cells, its position, and spans of words if they are marked."""

    line: int | None
    offset: int | None
    length: int
    cells: tuple[Cell, ...]
    spans: tuple[Span, ...] | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """A record that is not embedded: reason in one word, detail for people, first bytes.

    A reader knows where it stands; its number in the whole input, and the name of its file, are
    added by who reads all files.
    """

    line: int | None
    offset: int | None
    length: int
    reason: str
    detail: str
    excerpt: bytes
    row: int = -1
    file: str = ""

    def to_json(self) -> str:
        """One line for ``rejects.jsonl``; the excerpt is base64, since it may not be text."""
        names = ("file", "row", "line", "offset", "length", "reason", "detail")
        content = {name: getattr(self, name) for name in names}
        content["excerpt_b64"] = b64encode(self.excerpt).decode("ascii")
        return json.dumps(content, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRange:
    """Records that follow each other: where the first one begins, and how many they are.

    Reading begins there without what stands before it.
    """

    file: int = 0
    row: int = -1  # number of the first in the corpus; -1 stands for no record
    file_row: int = -1  # and in its file
    line: int | None = None  # where it begins; a columnar file has neither lines nor bytes
    offset: int | None = None
    number: int = 0  # of the shard
    last_row: int = -1
    rows: int = 0


class BadRecordError(Exception):
    """An unreadable record: reason in one word, detail for people."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail

    @classmethod
    def too_long(cls, lines: Sequence[Line]) -> Self:
        """The error of a record over the limit."""
        length, many = sum(line.length for line in lines), ""
        if length <= MAX_RECORD_BYTES:
            length += LINE_BYTES * len(lines)
            many = f", {LINE_BYTES} of them counted for each of {len(lines)} lines"
        detail = f"{length} bytes{many}; at most {MAX_RECORD_BYTES} are read"
        return cls("record_too_long", detail)


class Table(ABC):
    """One open input file; ``blank`` counts the blank lines skipped so far."""

    path: Path
    columns: list[str]
    notices: tuple[Message, ...] = ()  # about guesses, for the user
    word_columns: tuple[str, ...] = ()  # with a list of a value for each word
    open_ended: bool = False  # whether later records may have further columns
    may_lack_header: bool = False  # whether its first row may be a record
    blank: int = 0

    @property
    @abstractmethod
    def fraction(self) -> float:
        """Progress in the file, 0 to 1."""

    def close(self) -> None:  # noqa: B027 - a default
        """Close the file."""

    @abstractmethod
    def rows(self, names: Sequence[str]) -> Iterator[Row | Reject]:
        """Yield the chosen columns of every record; cells keep their literal form (``007``)."""

    def seek(self, place: ShardRange) -> bool:
        """Continue with the record at a place; ``False`` if only a whole file can be read."""
        return False

    def problem_of(self, name: str, *, role: str = "") -> str:
        """Why the type of a column does not suit its role; empty if it does."""
        return ""

    def class_names(self, name: str) -> list[str]:
        """Names that the file has for the numbers in a column; none where it has no such list."""
        return []

    def is_list(self, name: str) -> bool:
        """True if the cells of a column are lists; as the text these are the words of a record."""
        return False


class TextTable(Table):
    """A text file; a subclass defines its records."""

    def __init__(self, path: Path, dialect: Dialect) -> None:
        self.path, self._dialect = path, dialect
        self._lines = Source(path, encoding=dialect.encoding)
        self._encoding = self._lines.encoding  # the source may have transcoded the file
        try:
            self.columns = self._read_columns()
        except BaseException:
            self._lines.close()
            raise

    @abstractmethod
    def _read_columns(self) -> list[str]:
        """Read the names of the columns from the first lines."""

    @abstractmethod
    def _records(self) -> Iterator[tuple[Sequence[Line], Any]]:
        """The lines of each record, and what is in them; nothing in a blank one."""

    @abstractmethod
    def _content(self, record: Any, places: Sequence[Any]) -> Content | None:
        """The chosen cells of a record; ``None`` if its lines are as good as blank."""

    def _places(self, names: Sequence[str]) -> Sequence[Any]:
        """Where columns stand in a record: by default under their names."""
        return names

    def rows(self, names: Sequence[str]) -> Iterator[Row | Reject]:
        """As in :class:`Table`."""
        places = self._places(names)
        for lines, record in self._records():
            row = self._row_of(lines, record, places) if record else None
            if row is None:
                self.blank += len(lines) + self._lines.skip_blank()
            else:
                yield row

    def _row_of(
        self, lines: Sequence[Line], record: Any, places: Sequence[Any]
    ) -> Row | Reject | None:
        first, length = lines[0], sum(line.length for line in lines)
        place = first.number, first.offset, length
        try:
            content = self._content(record, places)
            return None if content is None else Row(*place, *content)
        except BadRecordError as error:
            reason, detail = error.reason, error.detail
        except UnicodeDecodeError as error:
            reason, detail = "invalid_encoding", f"{self._encoding}: {error.reason}"
        return Reject(*place, reason, detail, first.data[:EXCERPT])

    @property
    def fraction(self) -> float:
        """Progress by bytes."""
        return self._lines.fraction

    def seek(self, place: ShardRange) -> bool:
        """Continue with the record at a place; ``False`` for a packed file."""
        return self._lines.seek(place.line, place.offset)

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


def guessed(what: str, option: str, why: str = "") -> Message:
    """A notice of something guessed, and the option that says otherwise."""
    before = f" ({why}; set it with " if why else " (choose another with "
    return Message(f"{what}{Option(option, before=before, after=')')}")


def plain_name(name: str) -> str:
    """Return a name without outer spaces, in NFC: macOS writes the parts of Hangul one by one."""
    return unicodedata.normalize("NFC", name.strip())


def check_names(names: Sequence[str], path: Path) -> None:
    """``CorpusError`` if two columns have the same name; any number may have none."""
    first: dict[str, int] = {}  # linear, as files may have thousands of columns
    for position, name in enumerate(names, 1):
        if name and first.setdefault(name, position) < position:
            problem = f"columns {first[name]} and {position} are both named {name[:100]!r}"
            raise CorpusError(f"{path}: {problem}. Rename one.")


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

    may_lack_header = True

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
            wider = {"shift_jis": "cp932", "euc_kr": "cp949"}
            if name := wider.get(codecs.lookup(self._encoding).name):
                detail += f"; see encoding={name!r}, which has more characters"
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
            problem = f"the header is not {self._encoding}. {sources.RIGHT_ENCODING}"
            raise CorpusError(f"{self.path}: {problem}") from error
        # as they are typed, in either form of Hangul, unless two would be one
        plain = [plain_name(name) for name in names]
        names = plain if len({*plain}) == len({*names}) else names
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


# records that tell the columns, unless they are long: these
# bytes are the most that is held meanwhile
_PEEK = 1_000
_PEEK_BYTES = 16 << 20
# [ before anything else but { or ] may begin a line of JSON, a list, but no array of records
_ARRAY = re.compile(rb"\s*\[\s*[{\]]")


class JsonTable(TextTable):
    """One JSON object per line, or an array of objects; the columns are the keys of the first ones.

    Keys of objects within an object have dotted names, such as ``labels.label``.
    """

    def seek(self, place: ShardRange) -> bool:
        """As in :class:`Table`."""
        # the elements of an array are found from its beginning only
        if self._is_array or not super().seek(place):
            return False
        # without the records that were peeked at, which stand before the place
        self._items = chain(self._lines)
        return True

    def _records(self) -> Iterator[tuple[list[Line], Line | None]]:
        for line in self._items:
            # in an array it is a missing element
            is_blank = not (line.data.strip() or line.too_long or self._is_array)
            yield [line], None if is_blank else line

    def _content(self, line: Line, names: Sequence[str]) -> Content:
        if line.too_long:
            raise BadRecordError.too_long([line])
        try:
            record = self._parse(line)
            return tuple([text_of(_value(record, name)) for name in names]), None
        except RecursionError as error:
            raise BadRecordError("bad_json", "nested too deeply") from error

    def _parse(self, line: Line) -> dict[str, Any]:
        try:
            record = json.loads(
                line.data.decode(self._encoding),
                # numbers are not parsed, to be printed again otherwise: 1e400
                # and twenty digits stay as they are
                parse_int=NotText,
                parse_float=number_text,
                parse_constant=_CONSTANTS.get,
                # json keeps the last of equal keys silently; which one was meant nobody knows
                object_pairs_hook=_unique_keys,
            )
        except json.JSONDecodeError as error:
            raise BadRecordError("bad_json", f"{error.msg} at column {error.colno}") from error
        if not isinstance(record, dict):
            raise BadRecordError("not_an_object", "expected a JSON object")
        return record

    def _read_columns(self) -> list[str]:
        self._is_array = _ARRAY.match(self._lines.head()) is not None
        # so it is transcoded, and read again from the beginning; offsets are those of UTF-8 then
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
            # of lines over the limit only an excerpt is held, and counted
            held += len(line.data)
            if held > _PEEK_BYTES:
                break
        # what was peeked at is read as records too
        self._items = chain(peeked, items)
        # all keys are known if the file ended before the peek did
        self.open_ended = len(peeked) == _PEEK or held > _PEEK_BYTES
        filled = [line for line in peeked if line.data.strip()]
        self._kinds: dict[str, Any] = {}  # the first value of each key that is not null
        objects, undecodable, problem = 0, 0, ""
        for line in filled:
            try:
                record = self._parse(line)
                objects += 1
                for name, value in _items(record):
                    # a null tells no type; a later value does
                    if self._kinds.get(name) is None:
                        self._kinds[name] = value
            except (RecursionError, BadRecordError, UnicodeDecodeError) as error:
                undecodable += isinstance(error, UnicodeDecodeError)
                said = error.reason if isinstance(error, UnicodeDecodeError) else error
                problem = problem or f"line {line.number}: {said}"
        sources.check_encoding(self.path, self._encoding, undecodable, len(filled))
        # a lone { opens an object over several lines: a document, not records
        if filled and (not objects or filled[0].data.strip() == b"{"):
            # an array of texts, on one line or on several
            begins = b"".join(line.data for line in filled[:2]).translate(None, b" \t\r")
            whole = filled[0].data.strip().endswith(b"]") and len(filled) > 1  # a list on each
            is_list = begins[:2] == b'["' and not whole
            each = "'.[] | {text: .}'" if is_list else "."
            raise CorpusError(
                f"{self.path} holds neither JSON objects, one per line, nor an array of them "
                f"({problem}). Write each on a line (jq -c {each} old > new), or pass a list in "
                "Python (embedkit.extract(json.load(file)['data'], …))."
            )
        if objects == len(filled) == 1 and _is_frame(record):
            raise CorpusError(
                f"{self.path} holds a frame by its columns, not records. Write it with "
                "df.to_json(path, orient='records', lines=True)."
            )
        for name, value in self._kinds.items() if objects == len(filled) == 1 else ():
            inner = [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []
            # entities of a text have their places in it
            if len(inner) > 1 and "start" not in inner[0]:
                problem = f"is one record; its {name} is a list of {len(value)} objects"
                quoted = name.replace(".", '"."')  # as it may be no word
                advice = f" (if these are the records: jq -c '.\"{quoted}\"[]' old > new)"
                self.notices = (Message(f"{self.path.name} {problem}{advice}"),)
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
    """True for an object as ``to_json`` of pandas writes a frame, or with a list for each column.

    Such a frame is one object: ``{"text": {"0": …, "1": …}}``, or by rows ``{"0": {"text": …}}``,
    or split into columns and data, or ``{"text": [text, text], "label": [0, 1]}``.
    """
    lists = [value for value in record.values() if isinstance(value, list)]
    # {"tokens": ["New", "York"], "tags": [0, 1]} is a record: its lists are of words, which hardly
    # have white space within, and of theirs
    if len(lists) == len(record) and not {"tokens", "words"} & record.keys():
        strings = [value for value in chain.from_iterable(lists) if isinstance(value, str)]
        return any(len(value.split()) > 1 for value in strings)
    columns = [value for value in record.values() if isinstance(value, dict)]
    names = chain.from_iterable(columns)
    numbered = all(map(str.isdecimal, names)) or all(map(str.isdecimal, record))
    return {"columns", "data"} <= record.keys() or (numbered and len(columns) == len(record))


def _value(record: Any, name: str) -> Any:
    # a key that itself has a dot comes before the path through objects
    if name in record:
        return record[name]
    for part in name.split("."):
        record = record.get(part) if isinstance(record, dict) else None
    return record


_CONSTANTS = {"Infinity": NotText("inf"), "-Infinity": NotText("-inf")}
"""Numbers that Python writes and JSON does not have; the third, NaN, is a missing value."""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # the frequent case costs one comparison of lengths; names are searched only if one is missing
    record = dict(pairs)
    if len(record) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise BadRecordError("duplicate_key", f"{twice!r} stands twice")
    return record
