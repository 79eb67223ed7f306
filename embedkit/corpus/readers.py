"""The table of corpus formats: one row each, and how a file's format is recognised.

To add a format: a subclass of :class:`Table`, a row in :data:`READERS`, and its name in
:data:`embedkit.choices.FORMATS`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from embedkit.corpus.columnar import ArrowTable, ParquetTable, SheetTable
from embedkit.corpus.conllu import ConllTable, ConlluTable
from embedkit.corpus.delimited import DelimitedTable, LinesTable
from embedkit.corpus.sources import (
    PACKED_SUFFIXES,
    BadRecordError,
    Content,
    Dialect,
    Line,
    ShardRange,
    Source,
    Table,
    TextTable,
    check_encoding,
    first_bytes,
)
from embedkit.corpus.values import NotText, number_text, text_of
from embedkit.errors import CorpusError, Message

# records that tell the columns, unless they are long: these
# bytes are the most that is held meanwhile
_PEEK = 1_000
_PEEK_BYTES = 16 << 20
_JSON = re.compile(rb'\{\s*["}]|\[\s*\{')
# [ before anything else but { or ] may begin a line of JSON, a list, but no array of records
_ARRAY = re.compile(rb"\s*\[\s*[{\]]")


class JsonTable(TextTable):
    """One JSON object per line, or an array of objects; the columns are the keys of the first ones.

    Keys of objects within an object have dotted names, such as ``labels.label``.
    """

    def seek(self, place: ShardRange) -> bool:
        """As in :class:`~embedkit.corpus.sources.Table`."""
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
        check_encoding(self.path, self._encoding, undecodable, len(filled))
        # a lone { opens an object over several lines: a document, not records
        if filled and (not objects or filled[0].data.strip() == b"{"):
            raise CorpusError(
                f"{self.path} holds neither JSON objects, one per line, nor an array of them "
                f"({problem}). Write each on a line (jq -c . old > new), or pass a list in Python "
                "(embedkit.extract(json.load(file)['data'], …))."
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
                advice = f" (if these are the records: jq -c '.{name}[]' old > new)"
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


class Format(NamedTuple):
    """One corpus format."""

    open: Callable[[Path, Dialect], Table]  # a CorpusError if the file is not of the format
    suffixes: tuple[str, ...] = ()
    magic: re.Pattern[bytes] | None = None  # of the first bytes, whatever the name of a text is
    text: bool = True  # in some encoding, plain or compressed
    delimiters: tuple[str, ...] = ()  # the usual one first; empty if no mark divides a line
    quoting: str = ""  # meaning of "auto"; empty if the format has no quotes
    same_columns: bool = True  # in the same order; else by name, and none without records
    marks_words: bool = False  # whether records contain the spans of words


READERS: Mapping[str, Format] = {
    "tsv": Format(
        open=DelimitedTable, suffixes=(".tsv", ".tab", ".txt"), delimiters=("\t",), quoting="none"
    ),
    "csv": Format(
        open=DelimitedTable, suffixes=(".csv",), delimiters=(",", ";", "\t", "|"), quoting="csv"
    ),
    # without suffixes: .txt is tsv until its first line shows no tab
    "lines": Format(open=LinesTable, quoting="none"),
    "jsonl": Format(
        open=JsonTable, suffixes=(".jsonl", ".ndjson", ".json"), magic=_JSON, same_columns=False
    ),
    "parquet": Format(
        open=ParquetTable, suffixes=(".parquet", ".pq"), magic=re.compile(b"PAR1"), text=False
    ),
    "arrow": Format(
        open=ArrowTable,
        suffixes=(".arrow", ".feather", ".ipc"),
        # of a file, and of a stream, which begins with the marker of a message
        magic=re.compile(b"ARROW1|\xff{4}"),
        text=False,
    ),
    # without magic bytes: workbooks are zip or OLE files like many others
    "sheet": Format(
        open=SheetTable, suffixes=(".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"), text=False
    ),
    "conllu": Format(
        open=ConlluTable,
        suffixes=(".conllu",),
        magic=re.compile(b"# (sent_id|newdoc|text =|global.columns)"),
        marks_words=True,
    ),
    "conll": Format(
        open=ConllTable,
        suffixes=(".conll", ".bio", ".iob", ".iob2"),
        # of CoNLL-2003, of KLUE, and where two lines end in tags of words. Between columns stand
        # tabs, or spaces: a text with its label O behind a tab has both
        magic=re.compile(
            rb"-DOCSTART-|## klue-ner|"
            rb"(#+ +(id|sent_id|text)\b.*\n\s*)*(((\S+\t)+|(\S+ +)+)(O|[BIES]-\S+)\s*\n){2}"
        ),
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
    # corpus.tsv.gz is a TSV file; corpus.gz has no suffix that tells
    while suffixes and suffixes[-1] in PACKED_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def format_of_content(path: Path, encoding: str) -> str:
    """The format by the first bytes of a file; text without a tab is ``lines``."""
    # on disk, for formats that are not text; those of text are
    # looked for after decompression and decoding
    if name := _by_magic(first_bytes(path), text=False):
        return name
    with closing(Source(path, encoding=encoding)) as source:
        head = source.head().lstrip()
    return _by_magic(head, text=True) or ("tsv" if b"\t" in head.split(b"\n", 1)[0] else "lines")


def _by_magic(head: bytes, *, text: bool) -> str:
    kinds = ((name, kind.magic) for name, kind in READERS.items() if kind.text is text)
    return next((name for name, magic in kinds if magic and magic.match(head)), "")
