"""What every reader is and yields: tables, of text or not, with rows and rejected rows."""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from embedkit.corpus.options import Dialect
from embedkit.corpus.source import MAX_RECORD_BYTES, Line, Source
from embedkit.errors import CorpusError

__all__ = [
    "BadRow",
    "Cell",
    "NotText",
    "Row",
    "Table",
    "TextTable",
    "bad_row",
    "check_encoding",
    "check_names",
    "has_surrogate",
    "is_text",
    "normal_form",
    "too_long",
]

Cell = str | None

_DOUBLE_NAMES = "Rename one, or skip the header line: header=False, with column numbers."


@dataclass(frozen=True, slots=True)
class Row:
    """A readable record: the wanted cells, and its position in the file.

    ``spans`` are those of the words in the text, of a format that marks words.
    """

    line: int | None
    offset: int | None
    length: int
    cells: tuple[Cell, ...]
    spans: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class BadRow:
    """A record that cannot be read: reason in one word, detail for people, first bytes."""

    line: int | None
    offset: int | None
    length: int
    reason: str
    detail: str
    excerpt: bytes


class NotText(str):
    """Literal form of a value that is not a string: a number, a date, a list."""

    __slots__ = ()


class Table(ABC):
    """One open input file.

    Attributes:
        path: the file.
        columns: names in file order.
        word_columns: names of further columns, whose cells hold a value for each word, separated by
            tabs; empty of a format that marks no words.
        blank: blank lines skipped so far.
    """

    path: Path
    columns: list[str]
    word_columns: tuple[str, ...] = ()
    blank: int = 0

    @property
    @abstractmethod
    def fraction(self) -> float:
        """Fraction of the file that has been read, 0 to 1."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    @abstractmethod
    def rows(self, wanted: Sequence[str]) -> Iterator[Row | BadRow]:
        """Yield the wanted columns of every record, in file order.

        Cells keep their literal form (``007``, ``1e5``); nothing is inferred or dropped.
        """

    def check_column(self, name: str, *, role: str) -> None:  # noqa: B027 - a default
        """Raise a :class:`CorpusError` if the type of a column does not suit its role.

        The role is the name of the parameter that chose the column. Columns of text files have no
        type, and suit every role. May be called after :meth:`close`.
        """


class TextTable(Table):
    """A text file; a subclass says what a record is.

    Raises:
        CorpusError: the file is not of the format or encoding.
    """

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
        """Names of the columns, from the first lines."""

    @property
    def fraction(self) -> float:
        """Fraction of the file's bytes that has been read."""
        return self._lines.fraction

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


def check_names(names: Sequence[str], path: Path, advice: str = _DOUBLE_NAMES) -> None:
    """Raise a :class:`CorpusError` if two columns have the same name."""
    seen: dict[str, int] = {}
    for position, name in enumerate(names, 1):
        if name in seen:
            raise CorpusError(
                f"{path}: columns {seen[name]} and {position} are both named {name[:100]!r}. "
                f"{advice}"
            )
        seen[name] = position


def check_encoding(path: Path, encoding: str, *, bad: int, seen: int) -> None:
    """Raise a :class:`CorpusError` if most of the records seen are in another encoding."""
    if bad * 2 > seen:
        raise CorpusError(
            f"{path}: {bad} of the first {seen} records are not {encoding}. Pass its encoding, "
            "for instance encoding='cp949' (Korean) or encoding='shift_jis' (Japanese)."
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
    return isinstance(cell, str) and not isinstance(cell, NotText)


def normal_form(text: str, form: str) -> str:
    """Return a text in a normal form: ``none``, ``nfc`` or ``nfkc``."""
    if form == "none":
        return text
    return unicodedata.normalize("NFC" if form == "nfc" else "NFKC", text)


def bad_row(lines: Sequence[Line], reason: str, detail: str) -> BadRow:
    """The reject for a record of these physical lines."""
    first, length = lines[0], sum(line.length for line in lines)
    return BadRow(first.number, first.offset, length, reason, detail, first.data[:200])


def too_long(line: Line) -> BadRow:
    """The reject for a line over the limit."""
    detail = f"{line.length} bytes, at most {MAX_RECORD_BYTES} are read"
    return bad_row([line], "record_too_long", detail)
