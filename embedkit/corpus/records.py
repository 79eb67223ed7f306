"""Rows → records and rejects, with every record of the input counted exactly once."""

from __future__ import annotations

import json
import logging
import unicodedata
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from embedkit.corpus.plan import CorpusPlan
from embedkit.corpus.readers import READERS
from embedkit.corpus.rows import (
    BadRow,
    Row,
    Table,
    check_encoding,
    has_surrogate,
    is_text,
    normal_form,
)
from embedkit.corpus.words import BadWordsError, Words, words_of

__all__ = ["CorpusReader", "ReadCounts", "Record", "Reject"]

logger = logging.getLogger(__name__)

_TRIAL = 1_000
_EXCERPT = 200


@dataclass(frozen=True, slots=True)
class Record:
    """One text, or pair of texts, of the corpus.

    Attributes:
        row: 0-based number of the record in the whole input, rejects counted.
        file: number of the input file.
        line: 1-based physical line on which it begins; ``None`` for Parquet.
        offset: byte offset of that line; ``None`` for Parquet.
        id: as written in the file, or the row number where there is no id column.
        text: unchanged unless a Unicode form was asked for.
        text_pair: the second text, or ``None``.
        label: as written, or ``None``.
        kept: the further columns, as written.
        words: the words that the corpus marks or labels; ``None`` if it does neither.
    """

    row: int
    file: int
    line: int | None
    offset: int | None
    id: str
    text: str
    text_pair: str | None
    label: str | None
    kept: tuple[str | None, ...]
    words: Words | None = None


@dataclass(frozen=True, slots=True)
class Reject(BadRow):
    """A record that is not embedded, and why."""

    row: int
    file: str

    def to_json(self) -> str:
        """One line for ``rejects.jsonl``; the excerpt is base64, since it may not be text."""
        names = ("file", "row", "line", "offset", "length", "reason", "detail")
        content = {name: getattr(self, name) for name in names}
        content["excerpt_b64"] = b64encode(self.excerpt).decode("ascii")
        return json.dumps(content, ensure_ascii=False)


@dataclass(slots=True)
class ReadCounts:
    """What a pass over the corpus met. ``accepted + rejected + left_out == records``."""

    records: int = 0
    accepted: int = 0
    blank_lines: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    fields_with_quotes: int = 0
    fields_csv_quoted: int = 0
    not_nfc: int = 0

    @property
    def n_rejected(self) -> int:
        """Number of rejected records."""
        return sum(self.rejected.values())

    @property
    def quote_notice(self) -> str:
        """What to say about fields that look CSV-quoted but were read literally; or nothing."""
        if not self.fields_csv_quoted:
            return ""
        return (
            f"{self.fields_csv_quoted} of the {self.fields_with_quotes} fields that hold a double "
            'quote are written "so", as CSV writers do; they were taken literally. If the file '
            "was written by one, use quoting='csv'"
        )


class CorpusReader:
    """Reads a planned corpus from its beginning; iterating yields records and rejects in order.

    Memory does not grow with the corpus, except by the row numbers that a sample is drawn from.
    """

    def __init__(self, plan: CorpusPlan) -> None:
        self.plan, self.counts, self.file_number = plan, ReadCounts(), 0
        self._table: Table | None = None
        self._chosen = None if plan.sample is None else _sampled(plan, plan.sample)

    @property
    def fraction(self) -> float:
        """Fraction of the input that has been read, by bytes, 0 to 1."""
        total = sum(file.size for file in self.plan.files)
        if not total:
            return 1.0
        done = sum(file.size for file in self.plan.files[: self.file_number])
        if self._table is not None:
            done += int(self.plan.files[self.file_number].size * self._table.fraction)
        return done / total

    def records(self) -> list[Record]:
        """Return all records, and warn of fields that were perhaps read with the wrong quoting."""
        found = [item for item in self if isinstance(item, Record)]
        if self.counts.quote_notice:
            logger.warning(self.counts.quote_notice)
        return found

    def __iter__(self) -> Iterator[Record | Reject]:
        counts = self.counts
        for number, table in self.plan.open_tables():
            self.file_number, self._table = number, table
            undecodable = in_file = 0
            for raw in table.rows(self.plan.wanted):
                row = counts.records
                counts.records += 1
                in_file += 1
                undecodable += isinstance(raw, BadRow) and raw.reason == "invalid_encoding"
                if in_file == _TRIAL:
                    self._check_encoding(table, undecodable, in_file)
                if self.plan.limit is not None and row >= self.plan.limit:
                    counts.left_out["limit"] += 1
                    continue
                item = self._judge(raw, row, number)
                if item is not None:
                    yield item
            counts.blank_lines += table.blank
            if in_file < _TRIAL:
                self._check_encoding(table, undecodable, in_file)
            self.file_number, self._table = number + 1, None

    def _check_encoding(self, table: Table, bad: int, seen: int) -> None:
        # judged on the first records of a file, or on all of a shorter one
        if READERS[self.plan.format].text:
            check_encoding(table.path, self.plan.encoding, bad=bad, seen=seen)

    def _judge(self, raw: Row | BadRow, row: int, number: int) -> Record | Reject | None:
        if isinstance(raw, Row):
            self._count_quotes(raw.cells)
            problem = _problem(raw.cells, paired=self.plan.text_pair is not None)
            if problem is None:
                text = normal_form(str(raw.cells[0]), self.plan.unicode)
                try:
                    words = self._words(raw, text)
                except BadWordsError as error:
                    problem = error.reason, error.detail
            if problem is not None:
                excerpt = (raw.cells[0] or "").encode("utf-8", "surrogatepass")[:_EXCERPT]
                raw = BadRow(raw.line, raw.offset, raw.length, *problem, excerpt)
        if isinstance(raw, BadRow):
            self.counts.rejected[raw.reason] += 1
            return Reject(**asdict(raw), row=row, file=self.plan.files[number].name)
        if self.plan.min_chars > len(text):
            self.counts.left_out["min_chars"] += 1
            return None
        if self._chosen is not None and row not in self._chosen:
            self.counts.left_out["sample"] += 1
            return None
        self.counts.accepted += 1
        return self._record(raw, text, words, row, number)

    def _words(self, raw: Row, text: str) -> Words | None:
        plan = self.plan
        cell = None if plan.word_label is None else raw.cells[plan.word_label_place]
        return words_of(raw, cell, text, labelled=plan.word_label is not None, form=plan.unicode)

    def _record(self, raw: Row, text: str, words: Words | None, row: int, number: int) -> Record:
        plan = self.plan
        cells = iter([None if cell is None else str(cell) for cell in raw.cells])
        first, pair, identifier, label, _ = (
            None if name is None else next(cells)
            for name in (plan.text, plan.text_pair, plan.id, plan.label, plan.word_label)
        )
        for cell in (first, pair):
            if cell is not None and not unicodedata.is_normalized("NFC", cell):
                self.counts.not_nfc += 1
        return Record(
            row=row,
            file=number,
            line=raw.line,
            offset=raw.offset,
            id=str(row) if identifier is None else identifier,
            text=text,
            text_pair=None if pair is None else normal_form(pair, plan.unicode),
            label=label,
            kept=tuple(cells),
            words=words,
        )

    def _count_quotes(self, cells: Sequence[str | None]) -> None:
        if self.plan.quoting == "none" and READERS[self.plan.format].delimiters:
            for cell in cells:
                if cell and '"' in cell:
                    self.counts.fields_with_quotes += 1
                    self.counts.fields_csv_quoted += _looks_quoted(cell)


def _problem(cells: Sequence[str | None], *, paired: bool) -> tuple[str, str] | None:
    """Why the record cannot be embedded: (reason, detail), or ``None``."""
    for name, cell in zip(("text", "text_pair"), cells[: 2 if paired else 1], strict=False):
        if cell is None:
            return f"null_{name}", f"the {name} is null or absent"
        if not is_text(cell):
            return f"{name}_not_string", f"the {name} is a number or a list, not a string"
        if not cell.strip():
            return f"empty_{name}", f"the {name} is empty" + (" space" if cell else "")
    for cell in cells:
        if cell is not None and has_surrogate(cell):
            return "lone_surrogate", "half of a surrogate pair cannot be stored as text"
    return None


def _looks_quoted(cell: str) -> bool:
    """Whether a CSV writer would have written the cell so: outer quotes, inner ones doubled."""
    return len(cell) > 1 and cell[0] == cell[-1] == '"' and '"' not in cell[1:-1].replace('""', "")


def _sampled(plan: CorpusPlan, size: int) -> set[int]:
    """Rows of ``size`` records drawn without replacement among those that qualify."""
    everything = CorpusReader(replace(plan, sample=None))
    rows = np.fromiter((r.row for r in everything if isinstance(r, Record)), dtype=np.int64)
    if len(rows) > size:
        rows = np.random.default_rng(plan.seed).choice(rows, size, replace=False)
    return set(rows.tolist())
