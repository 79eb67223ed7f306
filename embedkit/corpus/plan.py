"""Options of a corpus, and the plan made of them: files, dialect and columns.

    CorpusOptions ─ what a person said ─┐
    first lines of the files ───────────┴─► CorpusPlan: format, delimiter; text, id, label

Whatever is not said is guessed from the first lines, and every guess is told with the option that
says otherwise: the format by suffix or first bytes, the delimiter as the mark that divides the
first lines alike, columns by their usual names. A guess may be wrong, but it never stops a command
and never depends on rows further down, so that a corpus that grows is read as before. Types of
columns are checked here too, before the first record is read.
"""

from __future__ import annotations

import codecs
import csv
import dataclasses
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from embedkit.arguments import check_fields
from embedkit.choices import Format, Quoting
from embedkit.corpus.columnar import check_title
from embedkit.corpus.memory import ArrowStream, CorpusLike, InputFile, SourceFile, input_files
from embedkit.corpus.readers import READERS, format_of_content, format_of_name, suffix_of
from embedkit.corpus.sources import Source, check_kind, compression_of, is_wide
from embedkit.corpus.tables import Dialect, Table, guessed, plain_name, separator_named_by
from embedkit.display import shorten
from embedkit.errors import CorpusError, Message, Option, UsageError, did_you_mean
from embedkit.records import Count, Positive
from embedkit.remote import address_of
from embedkit.storage import file_sha256

logger = logging.getLogger(__name__)

# an encoding must write each of them as its one ASCII byte, else lines
# and cells are not to be found in the bytes
_MARKS = '\t\r\n",;|'
# width of a list of columns or classes in a message, and lines by which delimiters are judged
_SHOWN, _SAMPLED_LINES = 500, 50
# the order is that of preference, as of ids and labels below
_TEXT_NAMES = ("text", "document", "sentence", "content", "review", "comment", "body", "title")
_ID_NAMES = ("id", "doc_id", "document_id", "uid", "guid", "idx", "index")
_WITH_LISTS = ("jsonl", "parquet", "arrow")
# options whose columns have to be text
_TEXTS = ("text_pair", "text")
_WORD_NAMES = ("tokens", "words")
"""Of columns with lists, which are the words of a text."""
_DELIMITERS = {"tab": "\t", "\\t": "\t"}
SENTENCES, SPANS = ("sentences",), ("spans",)
_LABEL_NAMES = ("label", "labels", "target", "class", "category", "y")
# tags, marks of a merge, places, separators that no format has, as in the one "column" of what is
# no table
_NO_NAME = re.compile(r"[<>{}\x00-\x1f，；｜、^~]|::|/.*/")
# ends of names such as msg_id and ImageID; such a column may as well hold authors, whose ids
# repeat, so that it is proposed and not taken
_LIKE_ID, _LIKE_LABEL = re.compile(r"(_id|[a-z]Id|ID|\Wid)$"), "_label"


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusOptions:
    """Options for reading a corpus: columns, dialect of its files, choice of records.

    Attributes:
        text: column of the text; this, ``id`` and ``label`` are guessed by name if not given.
        text_pair: column of the second text of a pair.
        id: column of the id; without one the row number is the id.
        label: column of the label; or several with commas, of which each is a class, 0 or 1.
        keep: further columns to carry along.
        word_label: column with a label for each word: a column of words of a format that marks
            words, such as ``upos``; else of labels separated by white space, one for each
            whitespace word (of JSON also a list).
        spans: column with a list of spans of each text, ``[[start, end], …]``: first character and
            the one after the last, ascending, none inside another; or two columns, of start and
            end of a single span; or a table of spans, a ``Path`` or a frame with the columns
            ``id``, ``start`` and ``end`` and a row for each span, in any order, which are stored
            as lists in a column ``spans``; or ``sentences``, where no column is called so: the text
            is cut at the ends of its sentences. They are the words of the text, and ``word_label``
            has their labels.
        format: ``auto`` or one of :data:`embedkit.choices.FORMATS`.
        encoding: encoding of text files, any Python codec.
        quoting: ``auto`` (CSV files follow RFC 4180, others have no quoting), ``none`` or ``csv``.
        header: whether the first line names the columns; otherwise they are ``0``, ``1``, ….
        delimiter: what separates the cells of a TSV or CSV file; by default what gives the first
            lines the same number of cells.
        sheet: name of the sheet of a workbook; by default the first.
        min_chars: leave shorter texts out, and count them.
        sample: use only so many records, sampled at random by ``seed``.
        seed: seed of the sample.
        limit: use only the first so many records.

    Raises:
        UsageError: a value cannot be used.

    >>> CorpusOptions(text="review", quoting="csv").given
    {'text': 'review', 'quoting': 'csv'}
    """

    text: str | None = None
    text_pair: str | None = None
    id: str | None = None
    label: str | None = None
    keep: Sequence[str] = ()
    word_label: str | None = None
    spans: str | os.PathLike[str] | Sequence[str] | ArrowStream = ()
    format: Format = "auto"
    encoding: str = "utf-8"
    quoting: Quoting = "auto"
    header: bool = True
    delimiter: str | None = None
    sheet: str | None = None
    min_chars: Count = 0
    sample: Positive | None = None
    seed: Count = 0
    limit: Positive | None = None

    def __post_init__(self) -> None:
        for name in ("text", "text_pair", "id", "label", "word_label"):
            if isinstance(value := getattr(self, name), int):
                # a frozen dataclass is settled once, here; see also below
                object.__setattr__(self, name, str(value))  # frames without names number theirs
        check_fields(self)
        if self.delimiter is not None:
            object.__setattr__(self, "delimiter", _DELIMITERS.get(self.delimiter, self.delimiter))
            if len(str(self.delimiter)) != 1 or str(self.delimiter) in '"\r\n':
                raise UsageError("expected one character, or tab.", delimiter=self.delimiter)
        # tuples, so that options can be hashed
        object.__setattr__(self, "keep", tuple(self.keep))
        spans: Any = Path(self.spans) if isinstance(self.spans, os.PathLike) else self.spans
        # a table is one thing, though its columns could be iterated
        if isinstance(spans, str | Path | InputFile | ArrowStream):
            spans = (spans,)
        if not isinstance(spans, list | tuple) or len(spans) > 2:
            lists = "a column of lists [[start, end], …]"
            expected = f"{lists}, two columns of start and end, a table of spans, or sentences"
            raise UsageError(f"expected {expected}.", spans=spans)
        object.__setattr__(self, "spans", tuple(spans))
        if self.spans and self.text_pair is not None:
            raise UsageError("spans are of single texts.", spans=..., text_pair=self.text_pair)
        object.__setattr__(self, "encoding", _settled_encoding(self.encoding))

    @property
    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        names = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusSettings(Dialect):
    """:class:`CorpusOptions`, settled, and the files: columns by their names.

    There is no seed without a sample.
    """

    files: tuple[SourceFile, ...]
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

    @property
    def divided(self) -> bool:
        """True if the text is a list of words."""
        return self.format in _WITH_LISTS and self.delimiter == " "

    @property
    def cuts_sentences(self) -> bool:
        """True if the spans are the sentences of each text, not those of columns."""
        return self.spans == SENTENCES and SENTENCES[0] not in self.keep

    @property
    def marks_words(self) -> bool:
        """True if words are marked: by the format, as spans or as lists."""
        return bool(self.spans) or self.divided or READERS[self.format].marks_words


def _settled_encoding(encoding: str) -> str:
    """The encoding, if lines and cells can be found in its bytes."""
    try:
        if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig"):
            return "utf-8"  # a byte order mark is dropped at the start of every file anyway
        # wide encodings are transcoded before lines are looked for, so that they may be anything
        if is_wide(encoding) or _MARKS.encode(encoding, "surrogateescape") == _MARKS.encode():
            return encoding
    except (LookupError, ValueError):  # also of a name with NUL, or an encoding of errors alone
        pass
    raise UsageError("expected one such as utf-8, cp949, cp932 or utf-16.", encoding=encoding)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPlan(CorpusSettings):
    """Everything that determines the records of a corpus."""

    # in reading order; then a table of spans, for the last kept column
    files: tuple[InputFile, ...]
    columns: tuple[str, ...]
    dialects: tuple[Dialect, ...]  # of each file of records
    notices: tuple[Message, ...] = ()  # about guesses, for the user

    @property
    def cell_columns(self) -> tuple[str, ...]:
        """Columns of the cells of a row: text, pair, id, label, word label and kept ones."""
        names = (self.text, self.text_pair, self.id, self.label, self.word_label, *self.keep)
        return tuple(name for name in names if name is not None)

    def hashed(self) -> CorpusPlan:
        """The same plan with the SHA-256 of every input."""
        files = tuple(dataclasses.replace(f, sha256=file_sha256(f.path)) for f in self.files)
        return dataclasses.replace(self, files=files)

    def check_unchanged(self) -> None:
        """Raise a :class:`CorpusError` if an input has changed."""
        for file in self.files:
            file.check_unchanged()


def class_columns(label: object, columns: Collection[str]) -> list[str]:
    """The columns, with 0 or 1, of the classes that a label names if it is no column itself."""
    texts = label.split(",") if isinstance(label, str) and label not in columns else []
    names = list(dict.fromkeys(text.strip() for text in texts))
    return names if len(names) > 1 and {*names} <= {*columns} else []


def spans_of(reading: Mapping[str, Any] | None) -> str:
    """Return what words are by how a corpus was read, as runs record it.

    ``sentences``, which were cut by rule, spans that ``columns`` tell, or ``none`` of these.
    """
    reading = reading or {}
    told = "columns" if reading.get("spans") else "none"
    return "sentences" if reading.get("cuts_sentences") else told


@contextmanager
def planned_corpus(
    corpus: CorpusLike, options: CorpusOptions, *, labels: bool = True
) -> Iterator[CorpusPlan]:
    """Plan a corpus, and tell what was guessed; copies of inputs last as long as the context.

    Without ``labels`` nothing is told of the column of the label.
    """
    with ExitStack() as held:
        files = held.enter_context(input_files(corpus))
        spans: Any = options.spans
        table = spans[0] if spans else ""
        # in memory or at an address; a str names a column, and only a path is opened
        if not isinstance(table, str) and (not isinstance(table, Path) or address_of(table)):
            (spans,) = held.enter_context(input_files(table))
            options = dataclasses.replace(options, spans=spans)
        plan = plan_corpus(files, options)
        for notice in plan.notices:
            if labels or "label" not in notice.options:
                logger.info(notice)
        yield plan


def plan_further(
    files: Sequence[InputFile], options: CorpusOptions, dialect: Mapping[str, Any], *, name: str
) -> CorpusPlan:
    """Plan a further corpus in the ``dialect`` of an earlier one with this name, or in its own.

    Another dialect is seen by the name of the file, such as a ``.csv`` beside a ``.tsv``, or by
    columns that it does not have in the earlier one.
    """
    path, earlier = files[0].path, dialect.get("format")
    encoding = options.given.get("encoding", dialect.get("encoding", "utf-8"))
    # what is UTF-8 is seen, and what else a file may be is not
    encoding = "utf-8" if encoding != "utf-8" and _is_utf8(path) else encoding
    options = dataclasses.replace(options, encoding=encoding)
    as_earlier = dataclasses.replace(options, **{**dialect, "encoding": encoding})
    # the format of a file with a name like the earlier one was named then; what .txt is nobody
    # knows, but commas in its texts do not make it a table
    kind = "" if suffix_of(path) == suffix_of(Path(name)) else format_of_name(path)
    if kind in ("", earlier) or (earlier != "csv" and suffix_of(path) == ".txt"):
        with suppress(CorpusError):
            plan = plan_corpus(files, as_earlier)
            # a single column is one in any dialect; that of another kind of file says more
            same = suffix_of(path) == suffix_of(Path(name)) != ".txt"
            if len(plan.columns) > 1 or same or earlier not in ("tsv", "csv"):
                return plan
    # columns by number are those of a file without a header
    header = dialect.get("header", True) or earlier == "lines"
    try:
        return plan_corpus(files, dataclasses.replace(options, header=header))
    except CorpusError:
        if suffix_of(path) != ".txt":
            raise
    # one text a line lacks the columns: it is a table after all, whose format was named then
    return plan_corpus(files, as_earlier)


def names_texts(
    files: Sequence[InputFile], options: CorpusOptions, *, name: str, text: str | None
) -> bool:
    """Return whether a file has a column of texts without a number, unlike an earlier one.

    That is a header with a name as such columns usually have, above the column with the number
    ``text`` (elsewhere it may be a label), or a text on each line of a file with another suffix
    than that ``name`` has.
    """
    of_lines = suffix_of(files[0].path) != suffix_of(Path(name))
    with suppress(CorpusError):
        plan = plan_corpus(files, options)
        headed = plan.header and str([*plan.columns].index(plan.text)) == text
        return (headed or (of_lines and not plan.header)) and plan.text.lower() in _TEXT_NAMES
    return False


def _is_utf8(path: Path) -> bool:
    """Whether a text is UTF-8, by its first line beyond ASCII: by chance no other encoding is."""
    with suppress(CorpusError, UnicodeDecodeError), closing(Source(path)) as source:
        _ = next((line for line in source if not line.data.decode().isascii()), None)
        return True
    return False


def plan_corpus(files: Sequence[InputFile], options: CorpusOptions) -> CorpusPlan:
    """Determine format, dialect and columns from the options and the first lines of the files.

    Text, id and label are guessed by their names if they are not given; see ``notices``.
    """
    dialects, tables, notices = list[Dialect](), list[Table](), list[Message]()
    for file in files:
        dialect, file_notices = _dialect(file, options)
        # the first file speaks for all; others are named, and only where they are read otherwise
        prefix = f"{file.name}: " if dialects and file_notices else ""
        if not dialects or dialect != dialects[0]:
            notices += [Message(f"{prefix}{notice}") for notice in file_notices]
        # closed at once: a corpus may have more files than a process may open.
        # What was learnt of the columns stays
        with closing(READERS[dialect.format].open(file.path, dialect)) as table:
            tables.append(table)
            dialects.append(dialect)
            notices += table.notices
    dialect, columns = dialects[0], _common_columns(files, dialects, tables)
    guess = _Guess(columns, files[0].name, notices, tables)
    text = guess.text(options.text, options.word_label)
    text_pair = guess.named_column("text_pair", options.text_pair)
    spans: Any = options.spans
    kept = [str(guess.named_column("keep", name)) for name in options.keep]
    # a column that is really called so is meant before the rule, and before a file; only a path is
    # opened, so that a name that comes from a stored run never leads to a file
    if spans and isinstance(spans[0], Path | InputFile) and str(spans[0]) not in columns:
        file = InputFile.of(spans[0]) if isinstance(spans[0], Path) else spans[0]
        files, spans = [*files, file], SPANS
        if SPANS[0] in columns:
            raise CorpusError(f"{files[0].name} has a column {SPANS[0]!r} already. Rename it.")
    elif spans != SENTENCES or SENTENCES[0] in columns:
        spans = tuple(str(guess.named_column("spans", str(name))) for name in spans)
    # columns of spans are read as kept columns
    kept += [] if spans == SENTENCES and SENTENCES[0] not in columns else spans
    used = {text, text_pair, *spans}
    if any(table.is_list(text) for table in tables):
        # a list of words is remembered as the space between them, so that it is part of the
        # settings that a dataset stores and a resumed job compares
        dialect = dataclasses.replace(dialect, delimiter=" ")
    id_ = guess.usual_column("id", options.id, _ID_NAMES, used)
    label = guess.usual_column("label", options.label, _LABEL_NAMES, used)
    word_label = guess.word_label(options.word_label, paired=text_pair is not None)
    notices += _named_classes(tables[0], label, word_label)
    plan = CorpusPlan(
        **dataclasses.asdict(dialect),
        files=tuple(files),
        columns=columns,
        dialects=tuple(dialects),
        text=text,
        text_pair=text_pair,
        id=id_,
        label=label,
        keep=tuple(dict.fromkeys(kept)),
        spans=spans,
        word_label=word_label,
        min_chars=options.min_chars,
        limit=options.limit,
        sample=options.sample,
        # a seed that nothing is drawn by must not make two plans different
        seed=options.seed if options.sample is not None else None,
        notices=tuple(notices),
    )
    if plan.divided and (plan.text_pair or plan.spans):
        raise CorpusError("its lists are the words of single texts, without spans.", text=text)
    # of a column with several roles the strictest one remains, which stands last
    options_of = {getattr(plan, name): name for name in ("word_label", "label", "id", *_TEXTS)}
    # types are checked for every file before the first record is read
    for file, table in zip(files, tables, strict=False):  # a table of spans has no such columns
        for name in (*plan.cell_columns, *class_columns(plan.label, columns)):
            option = options_of.get(name, "keep")
            if problem := table.problem_of(name, role=option if option in _TEXTS else ""):
                raise CorpusError(f"{file.name}: {Option(option, name)}: {problem}")
    return plan


def _named_classes(table: Table, *columns: str | None) -> Iterator[Message]:
    """Notices of labels that are numbers of classes, which the file has names for."""
    for column in filter(None, columns):
        if names := table.class_names(column):
            pairs = shorten(",".join(f"{i}={name}" for i, name in enumerate(names)), _SHOWN)
            yield Message(f"labels stay the numbers in {column}, named {pairs} there")


def open_table(file: InputFile) -> Table:
    """Open a file whose cells are no corpus; its format and dialect are guessed as of one."""
    dialect, _ = _dialect(file, CorpusOptions())
    return READERS[dialect.format].open(file.path, dialect)


def _filled(source: Source) -> Iterator[bytes]:
    """Lines that are not empty; millions of those that are may follow each of them."""
    source.skip_blank()
    for line in source:
        if line.data:
            yield line.data
        source.skip_blank()


class _Guess(NamedTuple):
    """Chooses columns by name, and notes its guesses."""

    columns: Sequence[str]
    file: str
    notices: list[Message]
    tables: Sequence[Table]

    def named_column(self, option: str, name: str | None) -> str | None:
        """The named column, which must exist; spaces around names and Unicode forms are ignored."""
        if name is None or name in self.columns:
            return name
        # reversed: of names that are alike the first column stays
        alike = {plain_name(column): column for column in reversed(self.columns)}
        if plain_name(name) in alike:
            return alike[plain_name(name)]
        if name in self.tables[0].word_columns:
            problem = f"in {self.file} each word has a value; use {Option('word_label', name)}"
            raise CorpusError(f"{problem}.", **{option: name})
        near = did_you_mean(name, self.columns)
        # keys may first occur after the records that were peeked at; a name like one
        # that is there is rather a typing error
        if option != "text" and not near and any(table.open_ended for table in self.tables):
            problem = f"none of the first records of {self.file} has it; where it is, it is read"
            self.notices.append(Message(f"{Option(option, name)}: {problem}"))
            return name
        raise self._lacks(option, name, self.columns)

    def _lacks(self, option: str, name: str, columns: Sequence[str]) -> CorpusError:
        # of several columns of classes the first that is not there
        parts = [part.strip() for part in name.split(",")]
        lacking = next((part for part in parts if part not in columns), name)
        return CorpusError(
            f"{self.file} has no such column{f' as {lacking!r}' * (len(parts) > 1)}; it has "
            f"{_listed(columns)}.{did_you_mean(lacking, columns)}",
            **{option: name},
        )

    def usual_column(
        self, option: str, name: str | None, usual: Sequence[str], used: Collection[str | None] = ()
    ) -> str | None:
        """The named column, else an unused one with a usual name, else ``None``."""
        if name is not None:
            several = option == "label" and class_columns(name, self.columns)
            return name if several else self.named_column(option, name)
        # reversed: of names that differ by case only, the first column stays
        by_lower = {plain_name(column).lower(): column for column in reversed(self.columns)}
        if option == "label":  # whose fields are not meant together
            for name in self.columns:
                whole, _, field = name.rpartition(".")
                if not field.isdecimal():  # label.1 is a second column of that name, of pandas
                    by_lower.pop(whole.lower(), None)
        column = next((by_lower[name] for name in usual if name in by_lower), None)
        if column is None and option == "label":
            # condition_label, if nothing else is called like it
            similar = [name for name in by_lower if name.endswith(_LIKE_LABEL)]
            column = by_lower[similar[0]] if len(similar) == 1 else None
        if column is None or column in used:
            ids = [name for name in self.columns if _LIKE_ID.search(name) and name not in used]
            if option == "id" and ids:
                take = Option("id", before=f" (take {_listed(ids)} with ", after=")")
                self.notices.append(Message(f"ids are row numbers{take}"))
            return None
        # a guess may not stop a command: a column of bytes called id is left
        # alone. Labels of any type have a text
        problems = [table.problem_of(column) for table in self.tables if option == "id"]
        if problem := next(filter(None, problems), ""):
            self.notices.append(Message(f"{option} column: none, as {problem.rstrip('.')}"))
            return None
        self.notices.append(guessed(f"{option} column: {column}", option))
        return column

    def word_label(self, name: str | None, *, paired: bool) -> str | None:
        """The named column of word labels."""
        if name is not None and paired:
            raise UsageError("words of pairs of texts have no labels.", word_label=name)
        of_words = self.tables[0].word_columns
        if name is None or name in of_words:
            return name
        # a format with columns of words marks its words itself: no column of records can label them
        if of_words:
            raise self._lacks("word_label", name, of_words)
        return self.named_column("word_label", name)

    def text(self, name: str | None, word_label: str | None) -> str:
        """The text column: named, the only one, or with a usual name."""
        if name is None and len(self.columns) == 1 and not _NO_NAME.search(self.columns[0]):
            (only,) = self.columns
            # 0 is the name that a column without a header has
            if only.lower() not in (*_TEXT_NAMES, "0"):
                headless = Option("header", False, before=" (if that is a text: ", after=")")
                advice = headless if self.tables[0].may_lack_header else ""
                self.notices.append(Message(f"text column: the only one, {only[:60]!r}{advice}"))
            return only
        # a column of words is a text only if it is a list; last, since a text beside it is meant
        # first, unless lists label its words
        table, usual = self.tables[0], [*_TEXT_NAMES]
        lists = [name for name in _WORD_NAMES if table.is_list(name)]
        usual = [*lists, *usual] if word_label and table.is_list(word_label) else [*usual, *lists]
        column = self.usual_column("text", name, usual)
        if column is None:
            is_numbered = [*self.columns] == [*map(str, range(len(self.columns)))]
            headless = Option("header", False, before="; without a header: ")
            divided = Option("delimiter", before="; of cells that another mark divides: ")
            advice = f"{'' if is_numbered else headless}{divided if len(self.columns) == 1 else ''}"
            advice = advice if self.tables[0].may_lack_header else ""  # others have names
            raise CorpusError(
                f"{self.file}: which column is the text? It has {_listed(self.columns)}. Name "
                f"one with {Option('text')}, and the second text of a pair with "
                f"{Option('text_pair')}{advice}."
            )
        return column


def _dialect(file: InputFile, options: CorpusOptions) -> tuple[Dialect, list[Message]]:
    notices: list[Message] = []
    name, encoding, header = options.format, options.encoding, options.header
    if name == "auto":
        name = format_of_name(file.path)
        # JSON and CoNLL are often called .txt, .tsv or .csv, and would be read as a table
        content = format_of_content(file.path, encoding) if name in ("", "tsv", "csv") else ""
        if content and (not name or content not in ("tsv", "lines")):
            name = content
            notices.append(guessed(f"format: {name}", "format", "recognised by its first bytes"))
    kind = READERS[name]
    if options.sheet is not None and name != "sheet":
        raise UsageError(f"for workbooks; {file.name} is read as {name}.", sheet=options.sheet)
    if not kind.text:
        check_kind(file.path, text=False)
        if name != "sheet" and compression_of(file.path):
            raise CorpusError(f"{file.name}: unpack a compressed {name.capitalize()} file first.")
        # the name of the sheet takes the place of the delimiter, which a workbook has not
        # columns of other kinds have names always
        mark, header = options.sheet or "\t", header or name != "sheet"
        return Dialect(name, delimiter=mark, header=header), notices
    if not kind.quoting:
        return Dialect(name, encoding), notices
    with closing(Source(file.path, encoding=encoding)) as source:
        lines = list(islice(_filled(source), _SAMPLED_LINES))
        # undecodable bytes stay as some character: here only marks are counted
        texts = [line.decode(source.encoding, "replace") for line in lines]
    file_delimiter = separator_named_by(lines[0]) if lines else ""
    # sep=; is no line of the table
    texts = texts[1:] if file_delimiter else texts
    first, quoting = texts[0] if texts else "", options.quoting
    # where neither the user nor a tab says that this is a table
    guessing = options.format == "auto" and not options.delimiter and "\t" not in first
    # a .tsv that in truth has commas, or any text whose first line names columns; judged with the
    # quotes of CSV, within which commas do not count
    mark = _agreed(texts, READERS["csv"].delimiters, quoting="csv") if guessing else ""
    suffix = suffix_of(file.path)
    cells = {cell.strip(' "').lower() for cell in first.split(mark or None)}
    # a line of Markdown's tables begins with a mark
    named = not cells.isdisjoint(_TEXT_NAMES) and first[0] != "|" and name in ("tsv", "lines")
    if mark and (named or (name == "tsv" and (suffix != ".txt" or not header))):
        name, kind = "csv", READERS["csv"]
        notices = [guessed("format: csv", "format", f"each line has as many {mark!r}")]
    elif guessing and suffix == ".txt" and header:
        # a first line such as `text` is a header, any other is a text
        name, header = "lines", first.strip().lower() in _TEXT_NAMES
        notices.append(guessed("one text per line", "format", "the first line has no tab"))
    elif not kind.delimiters:
        header = False
    quoting = kind.quoting if quoting == "auto" else quoting
    usual = kind.delimiters[0] if kind.delimiters else "\t"
    # a mark that the first line lacks does not divide it
    marks = [mark for mark in kind.delimiters if mark in first]
    # what the user says, what the file says, what its lines say
    delimiter = options.delimiter or (kind.delimiters and file_delimiter)
    delimiter = delimiter or _agreed(texts, marks, quoting=quoting)
    if not delimiter:
        delimiter = marks[0] if marks else usual
        if len(marks) > 1 and len(texts) > 1:
            notices.append(Message(f"delimiter: {delimiter!r}, on which the first lines differ"))
    if delimiter != usual and not options.delimiter:
        notices.append(guessed(f"delimiter: {delimiter!r}", "delimiter"))
    # a first line without any mark above lines with them is a title, not a header
    if header and not marks and not options.delimiter:
        for mark in kind.delimiters:
            check_title(file.path, _widths(texts, mark, quoting=quoting))
    return Dialect(name, encoding, delimiter, quoting, header), notices


def _agreed(lines: Sequence[str], marks: Sequence[str], *, quoting: str) -> str:
    """The mark that divides all of these lines into the same number of cells, the larger one."""
    # a mark that leaves each line in one piece does not win over none
    agreed = {"": 1}
    for mark in marks:
        widths = set(_widths(lines, mark, quoting=quoting))
        # one line agrees with itself about any mark
        if len(widths) == 1 and len(lines) > 1:
            agreed[mark] = widths.pop()
    # of equal ones the first, as the format lists them
    return max(agreed, key=lambda mark: agreed[mark])


def _widths(lines: Sequence[str], mark: str, *, quoting: str) -> list[int]:
    """Numbers of the cells of these lines; the last, which may go on after them, is left out."""
    if quoting != "csv":
        return [line.count(mark) + 1 for line in lines]
    try:
        widths = [len(cells) for cells in csv.reader(lines, delimiter=mark)]
    except csv.Error:
        return []
    # two lines are kept, without which nothing could agree
    return widths[: max(2, len(widths) - 1)]


def _common_columns(
    files: Sequence[InputFile], dialects: Sequence[Dialect], tables: Sequence[Table]
) -> tuple[str, ...]:
    """The columns of all files; a :class:`CorpusError` if these are not of one kind."""
    # a corpus has words for all of its records or for none, as its table of words has
    marks = [READERS[dialect.format].marks_words for dialect in dialects]
    if len({*marks}) > 1:
        second = files[marks.index(not marks[0])].name
        raise CorpusError(f"{files[0].name} and {second}: only one of them marks words.")
    # JSON has its keys in any order; rows of cells are told by their place
    formats = {dialect.format for dialect in dialects}
    same = len(formats) == 1 and READERS[dialects[0].format].same_columns
    readable = [(f, t.columns) for f, t in zip(files, tables, strict=True) if same or t.columns]
    if not readable:  # a file without records may have no columns
        raise CorpusError(f"{files[0].name} has no records.")
    first, columns = readable[0]
    for file, names in readable:
        # rows of cells need the same columns in the same order, records with keys the same keys
        if names != columns and (same or _top(names) != _top(columns)):
            first_has = f"{first.name} has {_listed(columns)}"
            raise CorpusError(f"{file.name} has the columns {_listed(names)}, but {first_has}.")
    return tuple(columns)


def _top(names: Sequence[str]) -> set[str]:
    return {name for name in names if "." not in name}  # fields of objects may be absent


def _listed(names: Sequence[str]) -> str:
    text = shorten(", ".join(names), _SHOWN) or "none"
    # a CSV writer's quotes were read literally
    quoted = any(len(name) > 1 and name[0] == name[-1] == '"' for name in names)
    return f"{text} (quoted as CSV: use {Option('quoting', 'csv')})" if quoted else text
