"""Options of a corpus, and the plan made of them: files, dialect and columns."""

from __future__ import annotations

import codecs
import dataclasses
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, fields

from embedkit.arguments import check_fields
from embedkit.choices import Format, Quoting
from embedkit.corpus.memory import InputFile
from embedkit.corpus.readers import READERS, format_of_content, format_of_name, suffix_of
from embedkit.corpus.sources import Dialect, Source, Table, compression_of, first_bytes, is_wide
from embedkit.errors import CorpusError, UsageError, did_you_mean
from embedkit.storage import Count, Positive, file_sha256

_MARKS = '\t\r\n",;|'
_SHOWN = 500
_TEXT_NAMES = ("text", "document", "sentence", "content", "review", "comment", "body", "title")
_ID_NAMES = ("id", "doc_id", "document_id", "uid", "guid", "idx", "index")
_LABEL_NAMES = ("label", "labels", "target", "class", "category", "y")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusOptions:
    """Options for reading a corpus: columns, dialect of its files, choice of records.

    Attributes:
        text: column of the text; this, ``id`` and ``label`` are guessed by name if not given.
        text_pair: column of the second text of a pair.
        id: column of the id; without one the row number is the id.
        label: column of the label.
        keep: further columns to carry along.
        word_label: column with a label for each word: a column of words of a format that marks
            words, such as ``upos``; else of labels separated by white space, one for each
            whitespace word (of JSON also a list).
        spans: columns with the first character of a span of each text and the one after its last;
            it is the only word of the text, and ``word_label`` its label.
        format: ``auto`` or one of :data:`embedkit.choices.FORMATS`.
        encoding: encoding of text files, any Python codec.
        quoting: ``auto`` (CSV files follow RFC 4180, others have no quoting), ``none`` or ``csv``.
        header: whether the first line names the columns; otherwise they are ``0``, ``1``, ….
        min_chars: leave shorter texts out, and count them.
        sample: use only so many records, sampled at random by ``seed``.
        seed: seed of the sample.
        limit: use only the first so many records.

    Raises:
        UsageError: a value cannot be used.

    >>> CorpusOptions(text="review", quoting="csv").given
    ('text', 'quoting')
    """

    text: str | None = None
    text_pair: str | None = None
    id: str | None = None
    label: str | None = None
    keep: Sequence[str] = ()
    word_label: str | None = None
    spans: Sequence[str] = ()
    format: Format = "auto"
    encoding: str = "utf-8"
    quoting: Quoting = "auto"
    header: bool = True
    min_chars: Count = 0
    sample: Positive | None = None
    seed: Count = 0
    limit: Positive | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "keep", tuple(self.keep))
        object.__setattr__(self, "spans", tuple(self.spans))
        if isinstance(self.spans, str) or len(self.spans) not in (0, 2):
            raise UsageError(f"spans={self.spans!r}: expected two columns, of start and end.")
        if self.spans and self.text_pair is not None:
            raise UsageError("spans= are of single texts, not of pairs; leave out text_pair=.")
        object.__setattr__(self, "encoding", _settled_encoding(self.encoding))

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the options that differ from their defaults."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != f.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusSettings(Dialect):
    """:class:`CorpusOptions`, settled: columns by their names; no seed without a sample."""

    text: str
    text_pair: str | None
    id: str | None
    label: str | None
    keep: tuple[str, ...]
    word_label: str | None = None
    spans: tuple[str, ...] = ()
    min_chars: int
    limit: int | None
    sample: int | None
    seed: int | None


def _settled_encoding(encoding: str) -> str:
    """The encoding, if lines and cells can be found in its bytes."""
    try:
        if codecs.lookup(encoding).name == "utf-8-sig":
            return "utf-8"  # a byte order mark is dropped at the start of every file anyway
        if is_wide(encoding) or _MARKS.encode(encoding, "surrogateescape") == _MARKS.encode():
            return encoding
    except (LookupError, UnicodeError):
        pass
    usual = "usual ones are utf-8, cp949, euc-kr, shift_jis, utf-16"
    raise UsageError(f"encoding={encoding!r}: not an encoding that can be read; {usual}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPlan(CorpusSettings):
    """Everything that determines the records of a corpus."""

    files: tuple[InputFile, ...]  # in reading order
    columns: tuple[str, ...]
    notices: tuple[str, ...] = ()  # about guesses, for the user

    @property
    def wanted(self) -> tuple[str, ...]:
        """Columns to read: text, pair, id, label, word label and kept ones."""
        optional = (self.text_pair, self.id, self.label, self.word_label)
        return (self.text, *(name for name in optional if name is not None), *self.keep)

    @property
    def marks_words(self) -> bool:
        """True if words are marked, by the format or as spans."""
        return bool(self.spans) or READERS[self.format].marks_words


def plan_corpus(files: Sequence[InputFile], options: CorpusOptions | None = None) -> CorpusPlan:
    """Determine format, dialect and columns from the options and the first lines of the files.

    Text, id and label are guessed by their names if they are not given; see ``notices``.
    """
    options = options or CorpusOptions()
    if not files:
        raise UsageError("no input file was given. Example: embedkit extract corpus.tsv")
    dialect, notices = _dialect(files[0], options)
    kind, tables = READERS[dialect.format], list[Table]()
    for file in files:
        with closing(kind.open(file.path, dialect)) as table:
            tables.append(table)
    columns = _common_columns(files, tables, same=kind.same_columns)
    guess = _Guess(columns, files[0].name, notices, tables[0].word_columns)
    text = guess.text(options.text)
    text_pair = guess.given("text_pair", options.text_pair)
    used, kept = {text, text_pair}, (*options.keep, *options.spans)
    plan = CorpusPlan(
        **dataclasses.asdict(dialect),
        files=tuple(files),
        columns=columns,
        text=text,
        text_pair=text_pair,
        id=guess.found("id", options.id, _ID_NAMES, used),
        label=guess.found("label", options.label, _LABEL_NAMES, used),
        keep=tuple(dict.fromkeys(str(guess.given("keep", name)) for name in kept)),
        spans=tuple(str(guess.given("spans", name)) for name in options.spans),
        word_label=guess.word_label(options.word_label, paired=text_pair is not None),
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
    """The same plan with the SHA-256 of every input."""
    files = tuple(dataclasses.replace(f, sha256=file_sha256(f.path)) for f in plan.files)
    return dataclasses.replace(plan, files=files)


class _Guess:
    """Chooses columns by name, and notes its guesses."""

    def __init__(
        self, columns: Sequence[str], file: str, notices: list[str], word_columns: Sequence[str]
    ) -> None:
        self._columns, self._file, self._notices = columns, file, notices
        self._word_columns = word_columns

    def given(self, option: str, name: str | None) -> str | None:
        """The named column, which must exist; spaces around its name are ignored."""
        if name is None or name in self._columns:
            return name
        if name.strip() in self._columns:
            return name.strip()
        if name in self._word_columns:
            problem = f"in {self._file} each word has a value; use word_label={name!r}"
            raise CorpusError(f"{option}={name!r}: {problem}.")
        raise self._lacks(option, name, self._columns)

    def _lacks(self, option: str, name: str, columns: Sequence[str]) -> CorpusError:
        return CorpusError(
            f"{option}={name!r}: {self._file} has no such column; it has "
            f"{_listed(columns)}.{did_you_mean(name, columns)}"
        )

    def found(
        self, option: str, name: str | None, usual: Sequence[str], used: Collection[str | None] = ()
    ) -> str | None:
        """The named column, else an unused one with a usual name, else ``None``."""
        if name is not None:
            return self.given(option, name)
        by_lower = {column.lower(): column for column in reversed(self._columns)}
        if option == "label":  # whose fields are not meant together
            for name in self._columns:
                by_lower.pop(name.rpartition(".")[0].lower(), None)
        column = next((by_lower[known] for known in usual if known in by_lower), None)
        if column is None or column in used:
            return None
        self._notices.append(f"{option} column: {column} (choose another with {option}=)")
        return column

    def word_label(self, name: str | None, *, paired: bool) -> str | None:
        """The named column of word labels."""
        if name is not None and paired:
            raise UsageError(f"word_label={name!r}: words of pairs of texts have no labels.")
        if name is None or name in self._word_columns:
            return name
        if self._word_columns:
            raise self._lacks("word_label", name, self._word_columns)
        return self.given("word_label", name)

    def text(self, name: str | None) -> str:
        """The text column: named, the only one, or with a usual name."""
        if name is None and len(self._columns) == 1:
            return self._columns[0]
        column = self.found("text", name, _TEXT_NAMES)
        if column is None:
            raise CorpusError(
                f"{self._file}: which column is the text? It has {_listed(self._columns)}. Name "
                "one with text=, and the second text of a pair with text_pair=."
            )
        return column


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
        if name != "sheet" and compression_of(first_bytes(file.path), file.path):
            problem = f"a compressed {name.capitalize()} file must be unpacked first"
            raise CorpusError(f"{file.name}: {problem}.")
        return Dialect(name), notices
    if not kind.quoting:
        return Dialect(name, encoding), notices
    with closing(Source(file.path, encoding=encoding)) as source:
        source.skip_blank()
        line = next((line for line in source if line.data), None)
        first = line.data.decode(source.encoding, "replace") if line else ""
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


def _common_columns(
    files: Sequence[InputFile], tables: Sequence[Table], *, same: bool
) -> tuple[str, ...]:
    named = [(f, t.columns) for f, t in zip(files, tables, strict=True) if same or t.columns]
    if not named:  # a file without records may have no columns
        raise CorpusError(f"{files[0].name} has no records.")
    first, columns = named[0]
    for file, names in named:
        if names != columns and (same or _top(names) != _top(columns)):
            first_has = f"{first.name} has {_listed(columns)}"
            raise CorpusError(f"{file.name} has the columns {_listed(names)}, but {first_has}.")
    return tuple(columns)


def _top(names: Sequence[str]) -> set[str]:
    return {name for name in names if "." not in name}  # fields of objects may be absent


def _listed(names: Sequence[str]) -> str:
    text = ", ".join(names)
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]} … ({len(names)} columns)"
    # a CSV writer's quotes were read literally
    quoted = any(len(name) > 1 and name[0] == name[-1] == '"' for name in names)
    return f"{text} (quoted as CSV: use quoting='csv')" if quoted else text
