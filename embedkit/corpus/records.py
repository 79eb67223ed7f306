"""Rows → records and rejects; every record of the input is counted exactly once.

    Row ─ list of words joined ─ empty or null? ─ spans, word labels ─ min_chars, sample ─► Record
            │                      │                │
    Reject ─┴──────────────────────┴────────────────┴─► Reject

The order is part of what a dataset promises: a record that is bad is counted as bad, however short
it is and whether or not the sample has it, and the sample is drawn from those that remain. So the
same corpus has the same rejects under any choice but a limit, and ``accepted + rejected +
left_out`` is the number of its records.
"""

from __future__ import annotations

import logging
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from embedkit.corpus.conllu import Words, between, joined, words_of
from embedkit.corpus.memory import InputFile
from embedkit.corpus.plan import CorpusPlan, class_columns, open_table
from embedkit.corpus.readers import READERS
from embedkit.corpus.sources import EXCERPT, check_encoding
from embedkit.corpus.tables import BadRecordError, Reject, Row, ShardRange, Span, Table
from embedkit.corpus.values import NotText, has_surrogate, list_of, number_text, set_text
from embedkit.display import count_text
from embedkit.errors import CorpusError, Message, Option
from embedkit.types import Progress, ProgressCallback

logger = logging.getLogger(__name__)

# so many records judge the encoding of a file: a wrong one would reject nearly all of them
_TRIAL = 1_000
_REPORTED = 5_000
# 8 MB of hashes; later ids are not compared
_COMPARED_IDS = 1_000_000

# three kinds of end: a stop with its closing marks before white space; a full stop of Chinese or
# Japanese; a line end with the space around it
_END = re.compile(
    r"[.!?…]+[\"'”’»)\]]*(?=\s)|(?:[。｡！？]|[‼⁉]\ufe0f?)+[」｣』”’）)］\]】〕》〉]*|\s*\n\s*"
)
_UNSURE = ".!?…"  # after which a sentence may go on
# initials ("J.", "e.g.", "U.S.") and titles, only as words of their own
_SHORT = re.compile(
    r"(?:^|[\s(\"'])(?:[a-z](?:\.[a-z])*|mrs?|ms|dr|prof|st|vs|cf|etc|vol|fig|bzw|ca|nr|vgl)\.$",
    re.IGNORECASE,
)
_VISIBLE = re.compile(r"\S(?:.*\S)?", re.DOTALL)
_NEXT = re.compile(r"\S")
_NEAR = 12  # characters before an end in which an abbreviation is looked for


class Record(NamedTuple):
    """One text, or pair of texts, of the corpus; cells are as written."""

    row: int  # number of the record in the whole input, rejects counted
    file: int
    line: int | None  # physical line on which it begins, from 1; None for Parquet, like offset
    offset: int | None
    id: str  # the row number without an id column; "row 7" where the column has none
    text: str
    text_pair: str | None
    label: str | None
    kept: tuple[str | None, ...]
    words: Words | None = None  # that the corpus marks or labels


@dataclass
class ReadCounts:
    """Counts of a pass over the corpus; ``accepted + rejected + left_out == records``."""

    records: int = 0
    accepted: int = 0
    blank_lines: int = 0
    rejected: dict[str, int] = field(default_factory=Counter)
    left_out: dict[str, int] = field(default_factory=Counter)
    fields_with_quotes: int = 0
    fields_csv_quoted: int = 0
    repeated_ids: int = 0
    missing_ids: int = 0
    repeated_headers: int = 0
    empty_texts: int = 0  # that were asked for

    @property
    def notices(self) -> list[Message]:
        """Notices of quotes read literally, repeated and missing ids, headers, empty texts."""
        remedy = Option("quoting", "csv", before="; ", after=" removes them")
        notices = (
            (self.fields_csv_quoted, "field", f"in quotes of CSV. The quotes were kept{remedy}"),
            (self.repeated_ids, "record", "with an earlier id: ids are not unique"),
            (self.missing_ids, "record", "without an id, called 'row' and the number of the row"),
            (self.repeated_headers, "record", "equal to the header, and kept: were files joined?"),
            (self.empty_texts, "record", "with an empty text, of which a model knows little"),
        )
        return [Message(f"{count_text(n, noun)} {text}") for n, noun, text in notices if n]


class CorpusReader:
    """Reads a planned corpus; iterating yields records and rejects in order.

    It begins at the record ``start``, or earlier in its file if the format requires it. Memory does
    not grow with the corpus, except by the row numbers that a sample is drawn from. With ``empty``
    a record without a text is no reject but has an empty one, for whoever needs an answer for each.
    """

    def __init__(
        self, plan: CorpusPlan, start: ShardRange | None = None, *, empty: bool = False
    ) -> None:
        self.plan, self.counts, self.file_number = plan, ReadCounts(), 0
        self._empty = empty
        self._ids = array("q")  # hashes
        self.first_row, self.from_start = 0, False  # of the current file; see :meth:`Table.seek`
        self._start = start
        self._table: Table | None = None
        self._chosen = None if plan.sample is None else _sampled(plan, plan.sample)
        # cells of a column that the corpus lacks, and ids that were not met yet
        spans = plan.files[len(plan.dialects) :]
        self._lists = _span_lists(*spans) if spans else {}
        # which only a reader of the whole corpus can tell
        self._unmet = set(self._lists if start is None else ())

    @property
    def fraction(self) -> float:
        """Progress by bytes, 0 to 1."""
        total = sum(file.bytes for file in self.plan.files)
        if not total:
            return 1.0
        # files are weighed by their bytes on disk, since nobody knows how many records are in them
        done = sum(file.bytes for file in self.plan.files[: self.file_number])
        if self._table is not None:
            done += int(self.plan.files[self.file_number].bytes * self._table.fraction)
        return done / total

    def shown(self, progress: ProgressCallback) -> Iterator[Record | Reject]:
        """All records and rejects; progress is reported in per cent."""
        for number, item in enumerate(self):
            if number % _REPORTED == 0:
                progress(Progress("reading", round(100 * self.fraction), 100, "%"))
            yield item

    def records(self) -> list[Record]:
        """All records of files that did not change meanwhile; warns if the quoting looks wrong."""
        # only after the last record is it known that all of them are of one state of the files
        records = [item for item in self if isinstance(item, Record)]
        self.plan.check_unchanged()
        for notice in self.counts.notices:
            logger.warning(notice)
        return records

    def __iter__(self) -> Iterator[Record | Reject]:
        counts, start, unread = self.counts, self._start, 0
        for number, file in enumerate(self.plan.files[: len(self.plan.dialects)]):
            # a resumed job does not open the files that are done
            if start is not None and number < start.file:
                continue
            self._dialect = self.plan.dialects[number]
            kind, encoding = READERS[self._dialect.format], self._dialect.encoding
            with closing(kind.open(file.path, self._dialect)) as table:
                self.file_number, self._table = number, table
                undecodable = in_file = 0
                if start is not None and number == start.file:
                    # a packed file or an array is read again from its beginning;
                    # the caller leaves out what it has
                    self.from_start = not table.seek(start)
                    in_file = 0 if self.from_start else start.file_row
                    # rows are numbered through the whole input, so the number of the first one of
                    # this file is where reading begins
                    counts.records = start.row - start.file_row + in_file
                self.first_row = counts.records - in_file
                columns = self.plan.cell_columns
                columns = columns[:-1] if self._lists else columns
                # classes in columns of their own are read in the place of the label
                classes = class_columns(self.plan.label, self.plan.columns)
                at = columns.index(str(self.plan.label)) if classes else 0
                after = at + len(classes)
                names = [*columns[:at], *classes, *columns[at + bool(classes) :]]
                for raw in table.rows(names):
                    row = counts.records
                    counts.records += 1
                    if classes and isinstance(raw, Row):
                        label = set_text(classes, raw.cells[at:after])
                        raw = raw._replace(cells=(*raw.cells[:at], label, *raw.cells[after:]))
                    if self._lists and isinstance(raw, Row):
                        raw = self._with_list(raw, row)
                    in_file += 1
                    unread += isinstance(raw, Reject)
                    undecodable += isinstance(raw, Reject) and raw.reason == "invalid_encoding"
                    # once, in the midst of a file; below of a file that has fewer records
                    if in_file == _TRIAL and kind.text:
                        check_encoding(file.path, encoding, undecodable, in_file)
                    # reading goes on to the end, since what was left out is counted
                    if self.plan.limit is not None and row >= self.plan.limit:
                        counts.left_out["limit"] += 1
                        continue
                    item = self._judge(raw, row, number)
                    if item is not None:
                        yield item
                counts.blank_lines += table.blank
                if in_file < _TRIAL and kind.text:
                    check_encoding(file.path, encoding, undecodable, in_file)
                # before the next file is open, so that `fraction` never asks a closed one
                self.file_number, self._table = number + 1, None
        # sorted once at the end: a set of as many hashes takes several times the memory
        counts.repeated_ids += len(self._ids) - len(np.unique(self._ids))
        # the ids of rows that cannot be read are not known
        if len(self._unmet) > unread:
            raise CorpusError(
                f"{self.plan.files[-1].name}: no record has {count_text(len(self._unmet), 'id')} "
                f"of its spans, such as {min(self._unmet)!r}. Drop them, or pass {Option('id')}."
            )

    def _with_list(self, raw: Row, row: int) -> Row:
        """The row with the spans of its id, from their table, as its last cell."""
        plan = self.plan
        name = str(row) if plan.id is None else raw.cells[plan.cell_columns.index(plan.id)]
        name = str(name or f"row {row}")  # as a record without an id is called
        self._unmet.discard(name)
        return raw._replace(cells=(*raw.cells, self._lists.get(name)))

    def _spans_of(self, raw: Row, text: str) -> tuple[Span, ...] | None:
        """The spans of a row: those that its format marks or kept columns tell, or sentences."""
        plan = self.plan
        if plan.cuts_sentences:
            return sentence_spans(text)
        if not plan.spans:
            return raw.spans
        # kept columns are the last cells of a row
        values = [raw.cells[plan.keep.index(name) - len(plan.keep)] for name in plan.spans]
        # a text without any, as a left join with a table of spans leaves it
        if not any(values):
            return ()
        cells = list(map(str, values))
        try:
            listed: Any = list_of(cells[0])  # None is not iterable
            # two columns are the start and the end of one span
            pairs: Any = [cells] if len(cells) == 2 else [list_of(str(pair)) for pair in listed]
            # 3.0 too, as a column with missing values is written
            spans = tuple((int(number_text(str(a))), int(number_text(str(b)))) for a, b in pairs)
        except (TypeError, ValueError):
            detail = f"{' to '.join(cells)[:EXCERPT]} is neither a span nor a list as [[0, 5]]"
            raise BadRecordError("bad_span", detail) from None
        check_spans(spans, text)
        return spans

    def _judge(self, raw: Row | Reject, row: int, number: int) -> Record | Reject | None:
        if isinstance(raw, Row):
            words, labelled = None, self.plan.word_label is not None
            try:
                # first, as it may reject, and all that follows is about a text
                raw = _joined(raw, empty=self._empty) if self.plan.divided else raw
                self._count_quotes(raw.cells)
                self._count_headers(raw.cells)
                # rejected before it is left out: a bad record is counted as bad, however short it
                # is
                count = 1 + (self.plan.text_pair is not None)
                if self._empty:
                    texts = ("" if cell is None else cell for cell in raw.cells[:count])
                    raw = raw._replace(cells=(*texts, *raw.cells[count:]))
                _check(raw.cells, texts=count, empty=self._empty)
                if self._empty:
                    self.counts.empty_texts += not all(str(c).strip() for c in raw.cells[:count])
                text = str(raw.cells[0])
                if labelled or raw.spans is not None or self.plan.spans:
                    # the kept columns stand after that of the word labels
                    cell = raw.cells[-len(self.plan.keep) - 1] if labelled else None
                    words = words_of(self._spans_of(raw, text), cell, text, labelled=labelled)
            except BadRecordError as error:
                # half of a surrogate pair may be what is wrong with it
                excerpt = (raw.cells[0] or "").encode("utf-8", "surrogatepass")[:EXCERPT]
                place = raw.line, raw.offset, raw.length
                raw = Reject(*place, error.reason, error.detail, excerpt)
        if isinstance(raw, Reject):
            self.counts.rejected[raw.reason] += 1
            return replace(raw, row=row, file=self.plan.files[number].name)
        # before the sample, which is drawn from the texts that are long enough
        if self.plan.min_chars > len(text):
            self.counts.left_out["min_chars"] += 1
            return None
        if self._chosen is not None and row not in self._chosen:
            self.counts.left_out["sample"] += 1
            return None
        self.counts.accepted += 1
        # cells stand in the order of `cell_columns`, and what follows the five options are
        # the kept ones; str() takes off NotText
        plan, cells = self.plan, iter([None if cell is None else str(cell) for cell in raw.cells])
        _, pair, identifier, label, _ = (
            None if name is None else next(cells)
            for name in (plan.text, plan.text_pair, plan.id, plan.label, plan.word_label)
        )
        # a name with a word in it, since a bare number might be the id of another record
        if plan.id is not None and not identifier:
            self.counts.missing_ids += 1
            identifier = f"row {row}"
        if identifier is not None and len(self._ids) < _COMPARED_IDS:
            self._ids.append(hash(identifier))
        return Record(
            row=row,
            file=number,
            line=raw.line,
            offset=raw.offset,
            id=str(row) if identifier is None else identifier,
            text=text,
            text_pair=pair,
            label=label,
            kept=tuple(cells),
            words=words,
        )

    def _count_headers(self, cells: Sequence[str | None]) -> None:
        headed = self._dialect.header and READERS[self._dialect.format].delimiters
        names = self.plan.cell_columns if headed else ()
        # a single column may well have its own name as a text; a quick
        # look at one cell before all are compared
        if len(names) > 1 and names[0] in str(cells[0]):  # the mark of another file may precede it
            same = [str(cell).removeprefix("\ufeff") for cell in cells] == [*names]
            self.counts.repeated_headers += same

    def _count_quotes(self, cells: Sequence[str | None]) -> None:
        if self._dialect.quoting == "none" and READERS[self._dialect.format].delimiters:
            for cell in cells:
                if cell and '"' in cell:
                    self.counts.fields_with_quotes += 1
                    # as by a CSV writer: outer quotes, inner ones doubled
                    outer = len(cell) > 1 and cell[0] == cell[-1] == '"'
                    csv_quoted = outer and '"' not in cell[1:-1].replace('""', "")
                    self.counts.fields_csv_quoted += csv_quoted


def _joined(raw: Row, *, empty: bool) -> Row:
    """A row whose text is a list of words: these with a space between, and their spans.

    With ``empty`` blank words are left out, and a list without words has an empty text.
    """
    first = raw.cells[0]
    # a text in such a column is words with spaces; null stays for the check of all texts
    words = list_of(first) if isinstance(first, NotText) else first and first.split()
    if words is None:
        return raw
    odd = [word for word in words if isinstance(word, NotText)]
    # a number may be a word among others; numbers alone are no text
    if odd and (len(odd) == len(words) or any(word.startswith(("[", "{")) for word in odd)):
        problem = "the text is a list of numbers, lists or objects, not of words"
        raise BadRecordError("text_not_string", problem)
    joint = between([word or "" for word in words]) if isinstance(first, NotText) else " "
    if empty:
        words = [word for word in words if word and (word.strip() or not joint)]
    elif not words or not all(word and (word.strip() or not joint) for word in words):
        detail = "the text has no words" if not words else "one of the words is null or blank"
        raise BadRecordError("empty_text", detail)
    text, spans = joined([str(word) for word in words], joint)
    return raw._replace(cells=(text, *raw.cells[1:]), spans=spans)


def _check(cells: Sequence[str | None], *, texts: int, empty: bool) -> None:
    """Raise a :class:`BadRecordError` if a text, or the second one of a pair, is none."""
    # of any other column null is a value
    for name, cell in zip(("text", "text_pair"), cells[:texts], strict=False):
        if cell is None:
            raise BadRecordError(f"null_{name}", f"the {name} is null or absent")
        if isinstance(cell, NotText):
            problem = f"the {name} is a number or a list, not a string"
            raise BadRecordError(f"{name}_not_string", problem)
        if not (empty or cell.strip()):
            raise BadRecordError(f"empty_{name}", f"the {name} is empty" + " space" * bool(cell))
    # in no column: Parquet stores UTF-8, which has no halves
    if any(cell is not None and has_surrogate(cell) for cell in cells):
        detail = "half of a surrogate pair cannot be stored as text"
        raise BadRecordError("lone_surrogate", detail)


@lru_cache(maxsize=1)  # for readers of single shards
def _span_lists(file: InputFile) -> dict[str, str]:
    """The spans of each id, ascending, as a cell of a column of lists."""
    lists: dict[str, list[tuple[int, int]]] = {}
    cells: Any = "no rows of these"
    with closing(open_table(file)) as table:
        try:
            for row in table.rows(("id", "start", "end")):
                cells = row.cells if isinstance(row, Row) else row.detail
                name, start, end = map(str, filter(None, cells))  # fewer without an id
                lists.setdefault(name, []).append((int(number_text(start)), int(number_text(end))))
        except CorpusError:  # the file is damaged, and its columns may be right
            raise
        except (LookupError, ValueError):
            lists.clear()
        if not lists:
            raise CorpusError(
                f"{file.name}: expected the columns id, start and end, of whole numbers, and a row "
                f"for each span; it has {', '.join(table.columns)}, and {cells!s:.200}."
            )
    return {name: str([[*span] for span in sorted(spans)]) for name, spans in lists.items()}


@lru_cache(maxsize=1)  # for readers of single shards
def _sampled(plan: CorpusPlan, size: int) -> set[int]:
    # a pass of its own, since how many records can be chosen is known at the end only
    everything = CorpusReader(replace(plan, sample=None))
    rows = np.fromiter((r.row for r in everything if isinstance(r, Record)), dtype=np.int64)
    # by the rows that were accepted, so that rejects take no place in the sample
    if len(rows) > size:
        rows = np.random.default_rng(plan.seed).choice(rows, size, replace=False)
    return set(rows.tolist())


def check_spans(spans: Any, text: str) -> None:
    """Raise if spans are no words of a text: in its order, visible, and none in another."""
    last = 0
    for start, end in spans:
        if not 0 <= start < end <= len(text) or not text[start:end].strip():
            raise BadRecordError("bad_span", f"{start} to {end} lies outside of the text")
        if start < last:
            raise BadRecordError("bad_span", f"{start} to {end} begins before {last}, the last end")
        last = end


def sentence_spans(text: str) -> tuple[Span, ...]:
    """Return start and end of every sentence, without the white space around it.

    A sentence ends after ``.``, ``!``, ``?`` or ``…`` and closing quotes before white space, unless
    a small letter follows; after the full stops of Chinese and Japanese (``‼`` and ``⁉`` too) and
    closing quotes and brackets anywhere; and with a line.
    A stop after a single Latin letter or a usual abbreviation ends nothing. There is no model
    behind it: a corpus that knows its sentences says so by ``spans=``.

    >>> text = "Dr. Lee said no. Why? (He was late.) 정말요? はい。ok。"
    >>> [text[start:end] for start, end in sentence_spans(text)]
    ['Dr. Lee said no.', 'Why?', '(He was late.)', '정말요?', 'はい。', 'ok。']
    """
    # spans begin at the last end, and lose their outer white space by a search within them, so that
    # they are places in the text itself
    ends = [
        match.end()
        for match in _END.finditer(text)
        if match[0][0] not in _UNSURE or not _goes_on(text, match.end())
    ]
    parts = zip([0, *ends], [*ends, len(text)], strict=True)
    matches = [_VISIBLE.search(text, start, end) for start, end in parts]
    return tuple(match.span() for match in matches if match is not None)


def _goes_on(text: str, end: int) -> bool:
    """True if a sentence goes on after such a stop: a small letter, or an abbreviation before."""
    following = _NEXT.search(text, end)
    if following is not None and following[0].islower():
        return True
    # a window, so that the time does not grow with the square of the text
    return _SHORT.search(text[max(0, end - _NEAR) : end]) is not None
