"""Units: records, or the words of records, with all that a split, a method and a score need.

    row  word  ids  key  group  label   inputs(positions)
    0    -     007  81…  a      good    the vector of a view, a text, or its tokens
    2    -     008  3c…  b      bad     (a rejected record leaves a gap in the rows)

Everything that learns takes this one table, one row for each unit in input order, and everything
that reads labels makes it: from a dataset, whose columns stay on disk until they are used, or from
a corpus. A method never asks where its inputs come from. It calls ``inputs`` with positions and
gets what stands there: replacing that function turns records with vectors into the same records
with texts (:meth:`Units.with_texts`), with vectors of an encoder (:meth:`Units.encoded`), or with
tokens for fine-tuning.

Numbers of the user's own, such as a price, stand behind the vectors (:func:`beside_numbers`):

    inputs (n, width + 2) float32      0.12  −0.03 …  0.41 │ 12.5   37      price, age
                                       0.08   0.11 … −0.20 │  NaN   41

Words have a row for each word and know their records (``records``), since folds, equal texts and
intervals are a matter of records: words go where their record goes. Records are their own records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from embedkit.corpus.conllu import Words
from embedkit.corpus.memory import CorpusLike, input_files, paths_of
from embedkit.corpus.plan import (
    CorpusOptions,
    CorpusPlan,
    class_columns,
    plan_further,
    planned_corpus,
    spans_of,
)
from embedkit.corpus.records import CorpusReader, Record
from embedkit.corpus.values import check_characters, set_text, text_of
from embedkit.dataset.fold_models import keys_of_texts
from embedkit.dataset.format import SEPARATOR as BETWEEN_TEXTS
from embedkit.dataset.format import dataset_folder, whole_text
from embedkit.dataset.read import VectorData, has_label, text_keys
from embedkit.display import count_text, reasons_text
from embedkit.encoding.windows import ranges
from embedkit.encoding.words import word_spans
from embedkit.errors import MismatchError, Option, OutputExistsError, UsageError
from embedkit.types import Bool, Int64, ProgressCallback, no_progress
from embedkit.units.target import SEPARATOR, Target, check_offset, numbers_of

if TYPE_CHECKING:
    from embedkit.dataset.encoders import DatasetEncoder

logger = logging.getLogger(__name__)


Labels = str | Iterable[Any] | None
"""A column of labels by its name, or the labels themselves, one for each row of the input."""

_PER_UNIT = ("row", "ids", "key", "label", "group", "word", "span", "record")
_COLUMNS = ("text", "text_pair", "spans", "id", "label", "word_label")
# which records were taken. A further file, such as a test set, has the columns of this one, a
# choice of its own, and another dialect if it needs one
_CHOICE = ("min_chars", "limit", "sample", "seed")
_MOST_WORDS = 1 << 20  # of a record; it has at most a million characters
_TRUTHS = {"True": "1", "true": "1", "False": "0", "false": "0"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Units:
    """Records in input order, or their words; arrays and sequences have an entry for each.

    ``column`` gives a column of a dataset by name; of a corpus ``text``, ``text_pair`` and those
    that are kept.
    """

    name: str = "the input"  # of the data, in messages
    source: tuple[str, ...] = ()  # SHA-256 of the input files, in order
    row: Int64  # numbers of the records in the input, ascending
    ids: Sequence[Any] | NDArray[Any]  # of the records
    key: Int64  # of the text of the record: the same for equal texts
    label: Sequence[str | None] | None = None  # as written; None without a label column
    group: Sequence[str | None] | None = None  # values that a split must not divide
    column: Callable[[str], Sequence[Any]]
    inputs: Callable[[Int64], Any]  # what a method learns from, by positions
    pairs: bool = False  # the records are pairs of texts
    reading: dict[str, Any] = field(default_factory=dict)  # columns, dialect, choice of records
    rejected: dict[str, int] = field(default_factory=dict)  # records of the input, by reason
    run: Path | None = None  # whose fold models made the vectors
    word: Int64 | None = None  # number of the word in its record
    span: NDArray[np.int32] | None = None  # (n, 2) characters of the word in the text
    record: Int64 | None = None  # position of the record of a word
    _records: Units | None = None

    def __len__(self) -> int:
        return len(self.row)

    @classmethod
    def of_dataset(cls, data: VectorData, *, label: Labels = None) -> Units:
        """Return the records or words of a dataset, whose inputs are the vectors of its views.

        A ``label`` is taken instead of that of the dataset: a kept column, or values.
        """
        settings, totals = data.manifest.job.input, data.manifest.totals
        folds, words = data.manifest.job.folds, data.level == "word"
        records, place, reading = None, None, reading_of(settings)
        name, labels = _labels_of(data, label)
        if words:
            # folds, equal texts and intervals are those of records, so that words need theirs
            records = replace(cls.of_dataset(data.records), label=None)  # which words have not
            # rows ascend, and every word has its record: this is its position
            place = np.searchsorted(records.row, data.row)
        return cls(
            name=str(data.path),
            source=data.manifest.source,
            row=data.row,
            ids=data.ids,
            label=labels,
            # read from disk when it is first asked for, once
            column=cache(data.column),
            key=text_keys(data) if records is None else records.key[place],
            # data.X is a cached property: vectors are read when a method first asks for some
            inputs=lambda index: data.X[index],
            pairs=settings.text_pair is not None,
            reading=reading | {"label": name},
            rejected=totals.rejected_by_reason,
            # vectors of fold models may be split by the folds of their run alone, see split_for
            run=None if folds is None else Path(data.manifest.names.model),
            word=data.word if words else None,
            span=np.stack([data.start, data.end], axis=1).astype(np.int32) if words else None,
            record=place,
            _records=records,
        )

    @classmethod
    def of_corpus(
        cls,
        source: CorpusLike,
        reading: CorpusOptions,
        *,
        level: str = "sentence",
        split: object = None,
        grouped: bool = False,
    ) -> Units:
        """Read the records or words of a corpus, or those of a dataset that stores its texts.

        Their inputs are texts. Records of a dataset are settled: options for reading are refused.
        Of a corpus also the column is read that ``split`` is named by; if it is ``grouped``, the
        first column that is kept names groups.
        """
        stored = cls._stored(source, reading, level=level)
        if stored is not None:
            return stored
        keep = split_column(split)
        reading = replace(reading, keep=[*reading.keep, *keep])
        with naming(keep), planned_corpus(source, reading) as plan:
            return cls._planned(plan, level=level, grouped=grouped)

    @property
    def fold_of_model(self) -> Int64:
        """``(n,)`` the fold whose model made a record's vectors; −1: models that never saw it."""
        folds = [-1] * len(self.records) if self.run is None else self.records.column("fold")
        return np.array(folds, np.int64)

    def further(
        self,
        source: CorpusLike,
        *,
        keep: Sequence[str] = (),
        sample: int | None = None,
        min_chars: int = 0,
        seed: int = 0,
    ) -> Units:
        """Read a further corpus or dataset, with the columns and dialect of these units.

        A file in another dialect, such as a ``.csv`` beside a ``.tsv``, is read in its own. Of a
        corpus also the columns ``keep`` are read, as far as it has them.
        """
        # a seed without a sample changes nothing, and would be refused of a dataset as an option
        seed = 0 if sample is None else seed
        reading = CorpusOptions(sample=sample, min_chars=min_chars, seed=seed)
        units = self._stored(source, reading, level=self.level, prefix="test_")
        if units is not None:
            if units.pairs != self.pairs:
                raise UsageError(f"of {source} and {self.name} one is of pairs of texts.")
            return self._of_equal_words(units)
        before, dialect = self.reading, self.reading["dialect"]
        columns = ["text", "text_pair"] + ["spans"] * (self.level == "word")
        reading = replace(reading, **{n: before[n] for n in columns})
        with input_files(source) as files:
            plan = plan_further(files, reading, dialect, name=self.name)
            # labels of words come from the marks of a corpus such as CoNLL-U, or from a column,
            # which a test file need not have
            of_words = before["word_label"] if self.level == "word" else None
            marked = plan.marks_words and not plan.spans
            # a test file may lack both: it is predicted under its row numbers, if it has no other
            # column of ids, and not scored
            id_ = before["id"] if before["id"] in plan.columns else plan.id
            label = before["label"]
            if label not in plan.columns and not class_columns(label, plan.columns):
                label = None
            word_label = of_words if marked or of_words in plan.columns else None
            # columns of spans are read as kept columns
            kept = tuple(name for name in (*keep, *plan.spans) if name in plan.columns)
            plan = replace(plan, id=id_, label=label, word_label=word_label, keep=kept)
            # each record of a test set is predicted, one without a text as an empty one
            units = self._planned(plan, level=self.level, empty=self.level == "sentence")
            return self._of_equal_words(units)

    def _of_equal_words(self, further: Units) -> Units:
        """Return further units, whose words must be of the same kind as these."""
        ours, theirs = spans_of(self.reading), spans_of(further.reading)
        if self.level == "word" and ours != theirs:
            raise MismatchError(
                f"{further.name} does not fit {self.name}: spans is {theirs!r}, expected {ours!r}. "
                "Give a corpus with the same columns, or extract it with the same settings."
            )
        return further

    @classmethod
    def _planned(
        cls, plan: CorpusPlan, *, level: str, empty: bool = False, grouped: bool = False
    ) -> Units:
        # the files are read once for their checksums, which say later whether a split belongs to
        # them
        plan = plan.hashed()
        reader = CorpusReader(plan, empty=empty)
        records = reader.records()
        if not records:
            name, rejected = plan.files[0].name, reasons_text(reader.counts.rejected)
            problem = f"all records of {name} are rejected" if rejected else f"{name} has no text"
            raise UsageError(f"{problem}{rejected}.")
        units = cls.of_records(
            records,
            plan,
            name=plan.files[0].name,
            source=tuple(file.sha256 for file in plan.files),
            # labels of words come below
            label=[r.label for r in records] if plan.label and level == "sentence" else None,
            # by its place: a column of texts may have the same name
            group=[r.kept[0] for r in records] if grouped else None,
            reading=reading_of(plan),
            rejected=dict(reader.counts.rejected),
        )
        return units if level == "sentence" else units.words_of([r.words for r in records])

    @classmethod
    def _stored(
        cls, source: CorpusLike, reading: CorpusOptions, *, level: str, prefix: str = ""
    ) -> Units | None:
        """The units of a dataset with texts as their inputs; ``None`` if ``source`` is a corpus."""
        # a label may still be chosen: it is a kept column of the dataset
        folder = dataset_folder(source, replace(reading, label=None).given, prefix=prefix)
        if folder is None:
            return None
        units = cls.of_dataset(VectorData.of(folder, level=level), label=reading.label)
        # what was rejected was counted when the dataset was made, and nothing reads its vectors
        return replace(units.with_texts(), rejected={}, run=None)

    @classmethod
    def of_records(cls, records: Sequence[Record], plan: CorpusPlan, **fields: Any) -> Units:
        """Return records of a planned corpus, whose inputs are their texts."""
        return cls.of_texts(
            [r.text for r in records],
            None if plan.text_pair is None else [str(r.text_pair) for r in records],
            columns={n: [r.kept[place] for r in records] for place, n in enumerate(plan.keep)},
            row=np.array([r.row for r in records], np.int64),
            ids=[r.id for r in records],
            **fields,
        )

    @classmethod
    def of_texts(
        cls,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        columns: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Units:
        """Return texts, or pairs of texts, as records, with further ``columns``."""
        row, seconds = np.arange(len(texts)), None if pairs is None else list(pairs)
        # of a frame, too, which has no truth value
        table: dict[str, Any] = {} if columns is None else _columns_of(columns)
        table |= {"text": list(texts), "text_pair": seconds}
        about: dict[str, Any] = {"row": row, "ids": row, "column": table.__getitem__, **fields}
        about |= {"key": keys_of_texts(texts, seconds)}
        # positions, until the texts are put in their place, which need the other fields
        return cls(**about, pairs=pairs is not None, inputs=lambda index: index).with_texts()

    def words(
        self, spans: Sequence[Any], labels: Sequence[Sequence[str | None]] | None = None
    ) -> Units:
        """Return the words of these records: ``(words, 2)`` characters of each text, and labels."""
        # words of each record; zero is allowed
        counts, texts = np.array(list(map(len, spans)), np.int64), self.column("text")
        record, flat = np.repeat(np.arange(len(self)), counts), list(chain.from_iterable(spans))
        pairs = zip(record.tolist(), flat, strict=True)
        forms = [texts[i][start:end] for i, (start, end) in pairs]
        words = replace(
            self.take(record),
            label=None if labels is None else list(chain.from_iterable(labels)),
            column={"text": forms}.__getitem__,
            # 0, 1, 2 … anew in each record
            word=ranges(np.zeros_like(counts), counts),
            span=np.array(flat, np.int32).reshape(-1, 2),
            record=record,
            _records=self,
        )
        return words.with_texts()

    def words_of(self, marked: Sequence[Words | None], *, marks: bool = False) -> Units:
        """Return the words that a corpus marks or labels, else those between white space.

        With ``marks`` punctuation is apart, as in a treebank.
        """
        spans = [
            word_spans(text, marks=marks) if words is None or words.spans is None else words.spans
            for text, words in zip(self.column("text"), marked, strict=True)
        ]
        labels = [each.labels for each in marked if each is not None and each.labels is not None]
        # labels of all records or of none: the list has one for each word, after each other
        return self.words(spans, labels if len(labels) == len(self) else None)

    @property
    def level(self) -> str:
        """``sentence`` (records) or ``word``."""
        return "sentence" if self.word is None else "word"

    @property
    def records(self) -> Units:
        """The records of the words; of records these themselves."""
        return self if self._records is None else self._records

    @property
    def place(self) -> Int64:
        """Position of the record of each unit."""
        return np.arange(len(self)) if self.record is None else self.record

    @property
    def spans(self) -> list[NDArray[np.int32]]:
        """Characters of the words of each record, ``(words, 2)``."""
        assert self.span is not None
        count = len(self.records)
        # words are in the order of their records: each has a slice, without that of the first one,
        # which begins at 0; without any record np.split still gives one part
        return np.split(self.span, np.searchsorted(self.place, np.arange(1, count)))[:count]

    @property
    def keys(self) -> Int64:
        """Numbers that are equal for the same record, or word of a record, ascending."""
        return unit_keys(self.row, self.word)

    def texts(self, *, separator: str = BETWEEN_TEXTS) -> list[str]:
        """Return the texts, those of a pair joined; of words the words as written."""
        first = self.column("text")
        if self.word is not None or not self.pairs:
            return list(first)
        pairs = zip(first, self.column("text_pair"), strict=True)
        return [whole_text(text, second, separator=separator) for text, second in pairs]

    def take(self, index: Int64) -> Units:
        """Return some of the units; words keep all their records."""
        return replace(
            self,
            **{name: _some(getattr(self, name), index) for name in _PER_UNIT},
            column=lambda name: _some(self.column(name), index),
            # positions among the taken ones become positions among all: nothing is copied or read
            # yet
            inputs=lambda positions: self.inputs(index[positions]),
        )

    def parts(self, size: int) -> Iterator[Units]:
        """Yield the units of ``size`` records after each other, with these records alone."""
        for start in range(0, len(self.records), size):
            index = np.arange(start, min(start + size, len(self.records)))
            records = self.records.take(index)
            if self.word is None:
                yield records
            else:
                # the words of these records, whose positions are counted from the first of them
                words = self.take(np.arange(*np.searchsorted(self.place, (start, start + size))))
                yield replace(words, record=words.place - start, _records=records)

    def at(self, place: Int64, number: NDArray[Any]) -> Units:
        """Return the words with these numbers among those of their records."""
        # the first word of a record, and then so many on: words of a record stand together, in
        # order
        return self.take(np.searchsorted(self.place, place) + number)

    def within(self, records: Units) -> Units:
        """Return words whose inputs are those of their records, each of which is taken once."""
        # several words share a record: its tokens are read once, in ascending order
        inputs, place = records.inputs, self.place
        return replace(self, _records=records, inputs=lambda i: inputs(np.unique(place[i])))

    def with_texts(self) -> Units:
        """Return the same units with their texts as inputs, as TF-IDF reads them."""
        # now, not at each call: every fold asks for some of them. TF-IDF reads a pair as one text,
        # without a mark between its two; composed, since it knows letters by their characters
        texts = [normalize("NFC", text) for text in self.texts(separator=" ")]
        check_characters(texts)
        return replace(self, inputs=lambda index: _some(texts, index))

    def encoded(self, encode: DatasetEncoder) -> Units:
        """Return the units with vectors of their texts, without words that the encoder cuts off."""
        texts = self.records.column("text")
        if self.word is None:
            X = encode(texts, self.column("text_pair") if self.pairs else None)
            return replace(self, inputs=X.__getitem__)
        # the encoder says which words it has seen; the others have no vector, and are left out
        words = encode.words(texts, spans=self.spans)
        return replace(self.at(words.row, words.word), inputs=words.X.__getitem__)

    def labelled(self, *, sets: bool = False) -> Bool:
        """True for units with a label, or for all where none has one.

        An empty label is one if labels name ``sets`` of classes.
        """
        labels = self.label or ()
        labelled = np.array([label is not None if sets else has_label(label) for label in labels])
        # where no record has a label, none can be left out for lacking it
        return labelled if labelled.any() else np.ones(len(self), bool)

    def check_labelled(self) -> None:
        """Raise a :class:`UsageError` if there are no labels."""
        if self.label is None:
            what, option, advice = "records", "label", "a kept one"
            if self.word is not None:
                what, option, advice = "words", "word_label", "it is named to extract"
            raise UsageError(
                f"{self.name} has no labels of {what}. Name their column with {Option(option)}; of "
                f"a dataset {advice}."
            )

    def target(self, task: str = "classification", separator: str = SEPARATOR) -> Target:
        """Return the target that the labels name; a :class:`UsageError` if they cannot."""
        if self.word is not None and task == "multilabel":
            raise UsageError(f"it is for records, not for {Option('level', 'word')}.", task=task)
        self.check_labelled()
        about: dict[str, Any] = {"rows": self.row, "name": self.name, "task": task}
        target = Target.of(self.label or (), **about, separator=separator)
        # of columns of classes, as the label names them
        named = {name.strip() for name in str(self.reading.get("label")).split(",")}
        rest = named.difference(target.classes)
        if target.of_sets and 0 < len(rest) < len(named):
            logger.warning(f"{self.name}: no record has the class {' or '.join(sorted(rest))}")
        return target


def _labels_of(data: VectorData, label: Labels) -> tuple[str | None, Sequence[str | None] | None]:
    """The name and the labels of the records or words of a dataset."""
    stored = data.manifest.job.input.label
    if label is None or (isinstance(label, str) and label == stored):
        return stored, data.column("label") if "label" in data.columns else None
    if data.level == "word":
        of_words = f"words have those of {Option('word_label', of='extract')}"
        raise UsageError(f"it is for labels of records; {of_words}.", label=...)
    if classes := class_columns(label, [*data.columns, str(stored)]):
        columns = (data.column("label" if name == stored else name) for name in classes)
        marks = zip(*([text_of(cell) for cell in column] for column in columns), strict=True)
        return str(label), [set_text(classes, cells) for cells in marks]
    if isinstance(label, str):
        # a dataset stores texts, and counts as whole numbers
        return label, [None if cell is None else str(cell) for cell in data.column(label)]
    # what has names or no order would give these; an array without dimensions has no values
    unordered = isinstance(label, Mapping | set | frozenset) or hasattr(label, "columns")
    if unordered or not isinstance(label, Iterable) or getattr(label, "ndim", 1) == 0:
        kind = type(label).__name__
        raise UsageError(f"{kind}; expected a column, or a label for each record.", label=...)
    # of torch, whose numbers are tensors
    sequence: Iterable[Any] = label
    values = [value.tolist() if hasattr(value, "detach") else value for value in sequence]
    if any(isinstance(value, bytes) for value in values):
        raise UsageError("bytes; expected texts or numbers. Decode them.", label=...)
    # labels are given for all records of the input; the rejected among them are skipped here
    labels, count = [text_of(value) for value in values], data.manifest.totals.records
    if len(labels) != count:
        raise UsageError(
            f"{count_text(len(labels), 'value')}; expected {count:,}, one for each record of the "
            f"input of {data.path}. Columns of classes are one text, with commas.",
            label=...,
        )
    # values without a name are of no column: that of the dataset has other labels
    return getattr(label, "name", None), [labels[row] for row in data.row.tolist()]


def _columns_of(columns: Any) -> dict[str, list[Any]]:
    """The values of columns by name: of a mapping, or of a frame of pandas or Polars."""
    # a frame of Polars has no keys, and iterates over its values
    names = columns.keys() if hasattr(columns, "keys") else getattr(columns, "columns", None)
    if names is None:
        kind = type(columns).__name__
        raise UsageError("expected values by name, in a dict or a data frame.", columns=kind)
    values = {str(name): columns[name] for name in names}
    values = {n: v.tolist() if hasattr(v, "detach") else v for n, v in values.items()}  # of torch
    # of one text a value may stand alone
    alone = {n for n, v in values.items() if isinstance(v, str) or not hasattr(v, "__len__")}
    return {n: [v] if n in alone else list(v) for n, v in values.items()}


def beside_numbers(units: Units, columns: Sequence[str], *, fitted: bool = True) -> Units:
    """Return the records with their numbers behind the vectors; the same without ``columns``.

    Raises:
        UsageError: the units have no such column, or a value is no number below 1e30; or, where
            nothing was ``fitted`` to others before, single precision would lose what numbers
            differ by.
    """
    if not columns:
        return units
    vectors, numbers = units.inputs, np.empty((len(units), len(columns)), np.float32)
    for place, name in enumerate(columns):
        try:
            values = units.column(name)
        except KeyError:
            raise lacks_column(units.name, name) from None
        if len(values) != len(units):
            raise UsageError(f"{len(values):,} values for {len(units):,} texts.", columns=name)
        # a dataset stores every further column as text, and so does a record of a corpus; what
        # Predictor was given may be numbers
        texts = [_TRUTHS.get(str(text), text) for text in map(text_of, values)]
        # what is missing stays NaN: a step of the pipeline replaces it by the median of the
        # training records, which alone may be known
        exact = numbers_of(texts, units.row, units.name, columns=name)
        if not fitted:
            check_offset(exact, f"{units.name}: its numbers", columns=name)
        numbers[:, place] = exact
    return replace(units, inputs=lambda index: np.hstack([vectors(index), numbers[index]]))


def lacks_column(name: str, column: str) -> UsageError:
    """The error of data without a column that a run reads."""
    return UsageError(
        f"{name} has no column {column!r}, a number that the run reads beside the text. Predict a "
        "corpus or a dataset that has it; in Python, give Predictor.predict() the columns."
    )


def _some(values: Any, index: Int64) -> Any:
    """Values by position."""
    # lists cannot be indexed by an array
    if values is None or isinstance(values, np.ndarray):
        return None if values is None else values[index]
    return [values[i] for i in index.tolist()]


def unit_keys(row: Int64, word: NDArray[Any] | None) -> Int64:
    """Return ``(n,)`` numbers that are equal for the same record, or word of a record."""
    # a record is its row with 0, and its words 1, 2 …: no key of a record is one of a word
    return np.asarray(row * _MOST_WORDS + (0 if word is None else word.astype(np.int64) + 1))


def reading_of(settings: Any) -> dict[str, Any]:
    """Return how a corpus was read, by its settings or its plan."""
    return {
        **{name: getattr(settings, name) for name in (*_COLUMNS, *_CHOICE, "cuts_sentences")},
        "spans": [*settings.spans],  # as JSON has it
        "dialect": settings.options,
    }


def split_column(split: object) -> dict[str, str]:
    """Return the column that a split is named by, and the option that names it, if it is one.

    That is a text that is no file. Who reads a corpus keeps this column; a dataset has stored it.
    """
    if not isinstance(split, str) or Path(split).exists():
        return {}
    # a mistyped path is told to be one; a column may be called Train/Dev/Test
    path = Path(split)
    within = path.name != split and (path.suffix != "" or path.parent.is_dir())
    return {} if within or path.suffix == ".parquet" else {split: "split"}


@contextmanager
def naming(keep: Mapping[str, str]) -> Iterator[None]:
    """Name the caller's option for a column where a message names it by that of ``extract``."""
    try:
        yield
    except UsageError as error:
        names = (o for n, o in keep.items() if Option("keep", n) in error.message.parts)
        raise type(error)(error.message.renamed(keep=next(names, "keep"))) from error


def told_rejected(name: object, rejected: Mapping[str, int]) -> int:
    """Return how many records of a corpus are rejected, and log a warning of them."""
    if lost := sum(rejected.values()):
        logger.warning(f"{name}: {count_text(lost, 'record')} rejected{reasons_text(rejected)}")
    return lost


def load_or_extract(
    source: CorpusLike,
    options: dict[str, Any],
    *,
    label: Labels = None,
    view: str | Sequence[str] | None = None,
    level: str = "sentence",
    keep: Mapping[str, str] | None = None,
    split: object = None,
    progress: ProgressCallback = no_progress,
) -> VectorData:
    """Open a dataset; a corpus is extracted first, with the options and the column ``label``.

    The dataset then also has the columns ``keep``, whose values are the caller's options that name
    them, and the one that ``split`` is named by, beside those that the options keep. A corpus of
    the same name, or other settings, get a number, as ``dataframe-2.vectors``; texts that the one
    before has are not encoded again.
    """
    keep = {**(keep or {}), **split_column(split)}
    options = {name: value for name, value in options.items() if value is not None}
    if (folder := dataset_folder(source, options)) is not None:
        return VectorData.of(folder, view, level=level)
    # a dataset does not need what extraction imports
    from embedkit.dataset.extract import extract
    from embedkit.dataset.planning import out_folder

    about: dict[str, Any] = {"words": "mean"} if level == "word" else {}
    about |= {"label": label} if isinstance(label, str) else {}
    # an option that is given has the last word
    about |= {**options, "progress": progress}
    about |= {"keep": list(dict.fromkeys([*options.get("keep", ()), *keep]))} if keep else {}
    # an iterator, and standard input, can be read once only, and has one try
    paths = paths_of(source)
    repeats = hasattr(source, "__len__") if paths is None else Path("-") not in paths
    out = first = out_folder(None, paths, type(source).__name__)
    numbers = count(2)
    while True:
        try:
            with naming(keep):
                result = extract(source, out=out, **about)
            data = VectorData.of(result.out, view, level=level)
            data.lost = told_rejected(result.out, data.manifest.totals.rejected_by_reason)
            return data
        except OutputExistsError as error:
            if repeats:
                about["reuse"] = [out] if "reuse" in error.message.options else []
                out = first.with_stem(f"{first.stem}-{next(numbers)}")
                continue
            # its own options are those of the run here, so that its advice is left out
            problem = f"{out} has other settings. Make another dataset, by embedkit extract."
            raise OutputExistsError(problem) from error
        except MismatchError:
            if not about.pop("reuse", ()):  # else its model or settings are others, too
                raise
