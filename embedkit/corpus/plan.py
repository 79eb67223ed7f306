"""What to read and how: files, dialect and columns, settled before anything expensive starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from embedkit.corpus.inputs import InputFile
from embedkit.corpus.options import CorpusOptions, CorpusSettings, Dialect
from embedkit.corpus.readers import (
    READERS,
    format_of_content,
    format_of_name,
    open_table,
    suffix_of,
)
from embedkit.corpus.rows import Table
from embedkit.corpus.source import Source, compression_of, first_bytes
from embedkit.errors import CorpusError, UsageError, did_you_mean
from embedkit.fsio import file_sha256

__all__ = ["CorpusPlan", "hash_inputs", "plan_corpus"]

_SHOWN = 500
_TEXT_NAMES = ("text", "document", "sentence", "content", "review", "comment", "body", "title")
_ID_NAMES = ("id", "doc_id", "document_id", "uid", "guid", "idx", "index")
_LABEL_NAMES = ("label", "labels", "target", "class", "category", "y")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPlan(CorpusSettings):
    """Everything that decides which records a corpus holds.

    Attributes:
        files: the inputs in reading order.
        columns: names found in the header.
        notices: sentences for the user about what was guessed.
    """

    files: tuple[InputFile, ...]
    columns: tuple[str, ...]
    notices: tuple[str, ...] = ()

    @property
    def wanted(self) -> tuple[str, ...]:
        """Columns to read: text first, then pair, id, label, word label and kept ones."""
        optional = (self.text_pair, self.id, self.label, self.word_label)
        return (self.text, *(name for name in optional if name is not None), *self.keep)

    @property
    def word_label_place(self) -> int:
        """Position of the word labels among the columns to read."""
        return len(self.wanted) - len(self.keep) - 1

    @property
    def marks_words(self) -> bool:
        """Whether the format marks words in its texts."""
        return READERS[self.format].marks_words

    def open_tables(self) -> Iterator[tuple[int, Table]]:
        """Yield (file number, open table) for every input, closing each afterwards."""
        for number, file in enumerate(self.files):
            with closing(open_table(file.path, self)) as table:
                yield number, table


def plan_corpus(files: Sequence[InputFile], options: CorpusOptions | None = None) -> CorpusPlan:
    """Settle format, dialect and columns by the options and the first lines of the files.

    Columns that are not named are guessed by their names; the plan's ``notices`` say which.

    Raises:
        CorpusError: a file is missing, of another format or encoding, or lacks a column.
    """
    options = options or CorpusOptions()
    if not files:
        raise UsageError("no input file was given. Example: embedkit extract corpus.tsv")
    dialect, notices = _dialect(files[0], options)
    tables: list[Table] = []
    for file in files:
        with closing(open_table(file.path, dialect)) as table:
            tables.append(table)
    columns = _common_columns(files, tables, dialect)
    if not columns and not READERS[dialect.format].same_columns:
        # JSON Lines without a record: nothing contradicts the names that were given
        named = (options.text or "text", options.text_pair, options.id, options.label,
                 options.word_label, *options.keep)  # fmt: skip
        columns = tuple(dict.fromkeys(name for name in named if name is not None))
    guess = _Guess(columns, files[0].name, notices, tables[0].word_columns)
    text = guess.text(options.text)
    text_pair = guess.given("text_pair", options.text_pair)
    used = {text, text_pair}
    plan = CorpusPlan(
        **dataclasses.asdict(dialect),
        files=tuple(files),
        columns=columns,
        text=text,
        text_pair=text_pair,
        id=guess.found("id", options.id, _ID_NAMES, used),
        label=guess.found("label", options.label, _LABEL_NAMES, used),
        keep=tuple(str(guess.given("keep", name)) for name in options.keep),
        word_label=guess.word_label(options.word_label, paired=text_pair is not None),
        unicode=options.unicode,
        min_chars=options.min_chars,
        limit=options.limit,
        sample=options.sample,
        seed=options.seed if options.sample is not None else None,
        notices=tuple(notices),
    )
    for table in tables:
        for name in plan.wanted:
            role = {plan.text: "text", plan.text_pair: "text_pair"}.get(name, "")
            table.check_column(name, role=role)
    return plan


def hash_inputs(plan: CorpusPlan) -> CorpusPlan:
    """The same plan with the SHA-256 of every input, so that a changed corpus is noticed."""
    files = tuple(dataclasses.replace(f, sha256=file_sha256(f.path)) for f in plan.files)
    return dataclasses.replace(plan, files=files)


class _Guess:
    """Finds columns by name and says what it chose."""

    def __init__(
        self, columns: Sequence[str], file: str, notices: list[str], word_columns: Sequence[str]
    ) -> None:
        self._columns, self._file, self._notices = columns, file, notices
        self._word_columns = word_columns

    def given(self, option: str, name: str | None) -> str | None:
        """The named column, which must exist; spaces after the commas of a list do not count."""
        if name is not None and name not in self._columns and name.strip() in self._columns:
            name = name.strip()
        if name is not None and name in self._word_columns:
            raise CorpusError(
                f"{option}={name!r}: this column of {self._file} has a value for each word, not "
                f"for each text. Labels of words are read with word_label={name!r}."
            )
        if name is not None and name not in self._columns:
            raise CorpusError(
                f"{option}={name!r}: {self._file} has no such column; it has "
                f"{_listed(self._columns)}.{_quoted(self._columns)}"
                f"{did_you_mean(name, self._columns)}"
            )
        return name

    def found(
        self, option: str, name: str | None, usual: Sequence[str], used: Collection[str | None] = ()
    ) -> str | None:
        """The named column, or one with a usual name that is not used, or none."""
        if name is not None:
            return self.given(option, name)
        by_lower = {column.lower(): column for column in reversed(self._columns)}
        found = next((by_lower[known] for known in usual if known in by_lower), None)
        if found is None or found in used:
            return None
        self._notices.append(f"{option} column: {found} (choose another with {option}=)")
        return found

    def word_label(self, name: str | None, *, paired: bool) -> str | None:
        """The named column of word labels; of a format that marks words, a column of words."""
        if name is not None and paired:
            raise UsageError(f"word_label={name!r}: words of pairs of texts have no labels.")
        if name is None or name in self._word_columns:
            return name
        if self._word_columns:
            raise CorpusError(
                f"word_label={name!r}: {self._file} has no such column of words; it has "
                f"{_listed(self._word_columns)}.{did_you_mean(name, self._word_columns)}"
            )
        return self.given("word_label", name)

    def text(self, name: str | None) -> str:
        """The text column: named, the only one, or one with a usual name."""
        if name is None and len(self._columns) == 1:
            return self._columns[0]
        found = self.found("text", name, _TEXT_NAMES)
        if found is None:
            raise CorpusError(
                f"{self._file}: which column is the text? It has {_listed(self._columns)}."
                f"{_quoted(self._columns)} Name one with text=, and the second text of a pair "
                "with text_pair=."
            )
        return found


def _dialect(file: InputFile, options: CorpusOptions) -> tuple[Dialect, list[str]]:
    notices: list[str] = []
    name, encoding, header = options.format, options.encoding, options.header
    if name == "auto":
        name = format_of_name(file.path)
    if not name:
        name = format_of_content(file.path, encoding)
        notices.append(f"format: {name} (recognised by its first bytes; set it with format=)")
    kind = READERS[name]
    if not kind.text:
        if compression_of(first_bytes(file.path), file.path):
            raise CorpusError(
                f"{file.name}: a compressed {name.capitalize()} file must be unpacked first."
            )
        return Dialect(name), notices
    if not kind.quoting:
        return Dialect(name, encoding), notices
    first = _first_line(file, encoding)
    if options.format == "auto" and suffix_of(file.path) == ".txt" and header and "\t" not in first:
        name, header = "lines", first.strip().lower() in _TEXT_NAMES
        notices.append("one text per line (the first line has no tab; set it with format=)")
    elif not kind.header:
        header = False
    usual = kind.delimiters[0] if kind.delimiters else "\t"
    delimiter = next((mark for mark in kind.delimiters if mark in first), usual)
    if delimiter != usual:
        notices.append(f"delimiter: {delimiter!r} (the first line has no comma)")
    quoting = kind.quoting if options.quoting == "auto" else options.quoting
    return Dialect(name, encoding, delimiter, quoting, header), notices


def _first_line(file: InputFile, encoding: str) -> str:
    with Source(file.path, encoding=encoding) as source:
        line = next((line for line in source if line.data), None)
        return line.data.decode(source.encoding, "replace") if line else ""


def _common_columns(
    files: Sequence[InputFile], tables: Sequence[Table], dialect: Dialect
) -> tuple[str, ...]:
    columns: tuple[str, ...] | None = None
    same = READERS[dialect.format].same_columns
    first = files[0]
    for file, table in zip(files, tables, strict=True):
        found = tuple(table.columns)
        if not same and not found:
            continue  # without a record it has no columns, and contradicts none
        if columns is None:
            columns, first = found, file
        elif found != columns and (same or set(found) != set(columns)):
            raise CorpusError(
                f"{file.name} has the columns {_listed(found)}, but {first.name} has "
                f"{_listed(columns)}. Extract them one by one, or give files of one kind."
            )
    return columns or ()


def _listed(names: Sequence[str]) -> str:
    """The names for a message; the first line of a file that is no table may be very long."""
    text = ", ".join(names)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} … ({len(names)} columns)"


def _quoted(names: Sequence[str]) -> str:
    """What to do about names that a CSV writer put in quotes and that were read literally."""
    if any(len(name) > 1 and name[0] == name[-1] == '"' for name in names):
        return " The header is quoted as CSV: use quoting='csv'."
    return ""
