"""What the readers of text files share: a source, and its lines with a way to take them back."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from embedkit.corpus.rows import BadRow, Dialect, Table
from embedkit.corpus.source import Line, Source

__all__ = ["Lines", "Parsed", "TextTable"]


class Lines:
    """An iterator of lines that takes lines back."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines = lines
        self._returned: deque[Line] = deque()

    def __iter__(self) -> Iterator[Line]:
        return self

    def __next__(self) -> Line:
        return self._returned.popleft() if self._returned else next(self._lines)

    def back(self, lines: Sequence[Line]) -> None:
        """Yield these lines again, before all others."""
        self._returned.extendleft(reversed(lines))


@dataclass(frozen=True, slots=True)
class Parsed:
    """Cells of one record as bytes or text, with the physical lines that it came from."""

    lines: tuple[Line, ...]
    cells: Sequence[bytes | str]

    @property
    def line(self) -> int:
        """Number of the first line."""
        return self.lines[0].number

    @property
    def offset(self) -> int:
        """Offset of the first line."""
        return self.lines[0].offset

    @property
    def length(self) -> int:
        """Bytes of all lines."""
        return sum(line.length for line in self.lines)

    def bad(self, reason: str, detail: str) -> BadRow:
        """The reject for this record."""
        return BadRow(self.line, self.offset, self.length, reason, detail, self.lines[0].data[:200])


class TextTable(Table):
    """A text file; a subclass says what a record is.

    Raises:
        CorpusError: the file is not of the format or encoding.
    """

    def __init__(self, path: Path, dialect: Dialect) -> None:
        self.path = path
        self._source = Source(path, encoding=dialect.encoding)
        self._encoding = self._source.encoding  # the source may have transcoded the file
        self._dialect = dialect
        self._lines = Lines(self._source.lines())
        try:
            self.columns = self._read_columns()
        except BaseException:
            self._source.close()
            raise

    @abstractmethod
    def _read_columns(self) -> list[str]:
        """Names of the columns, from the first lines."""

    @property
    def fraction(self) -> float:
        """Fraction of the file's bytes that has been read."""
        return self._source.fraction

    def close(self) -> None:
        """Close the file, and forget the lines that were looked at."""
        self._source.close()
        self._lines = Lines(iter(()))
