"""Labelled texts in memory, from a corpus or from a dataset that stores them."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.corpus.conllu import Words
from embedkit.corpus.memory import CorpusLike, input_files
from embedkit.corpus.plan import CorpusOptions, CorpusPlan, hash_inputs, plan_corpus
from embedkit.corpus.records import CorpusReader
from embedkit.dataset.fold_models import keys_of_texts
from embedkit.dataset.format import is_dataset, local_dataset
from embedkit.dataset.read import by_record, load, source_of, word_spans_of
from embedkit.encoding.tokenizer import Ints, word_spans
from embedkit.errors import CorpusError, UsageError
from embedkit.types import Int64, ProgressCallback, no_progress

logger = logging.getLogger(__name__)

_COLUMNS = ("text", "text_pair", "spans", "id", "label", "word_label")
_CHOICE = ("min_chars", "limit", "sample", "seed")
_DIALECT = ("format", "encoding", "quoting", "header")


@dataclass(frozen=True, slots=True)
class TextData:
    """Records of a corpus in input order."""

    name: str
    source: tuple[str, ...]  # SHA-256 of the input files
    row: Int64  # record numbers in the input, ascending
    ids: list[str]
    texts: list[str]
    pairs: list[str] | None
    labels: list[str | None] | None  # None without a label column
    rejected: dict[str, int]  # by reason; empty for a dataset
    reading: dict[str, Any]  # columns, dialect and choice of records
    words: list[Words | None] | None = None  # that the corpus marks or labels
    groups: list[str | None] | None = None  # values of the column that was kept

    def __len__(self) -> int:
        return len(self.texts)

    def text_keys(self) -> Int64:
        """Return keys of the texts, those of pairs joined."""
        return keys_of_texts(self.texts, self.pairs or [None] * len(self))


def read_texts(source: CorpusLike, reading: CorpusOptions | None = None) -> TextData:
    """Read a corpus, or the texts that a dataset stores, which takes no options for reading."""
    if isinstance(source, str | os.PathLike) and Path(source).is_dir():
        return _from_dataset(Path(source), reading or CorpusOptions())
    with input_files(source) as files:
        plan = plan_corpus(files, reading)
        for notice in plan.notices:
            logger.info("%s", notice)
        return _from_plan(plan)


def reading_of(settings: Any) -> dict[str, Any]:
    """Return what :class:`TextData` records of settings or a plan."""
    return {
        **{name: getattr(settings, name) for name in (*_COLUMNS, *_CHOICE)},
        "dialect": {name: getattr(settings, name) for name in _DIALECT},
    }


def read_more_texts(
    source: CorpusLike,
    before: Mapping[str, Any],
    *,
    name: str,
    paired: bool,
    word_label: str | None = None,
    sample: int | None = None,
    min_chars: int = 0,
    seed: int = 0,
) -> TextData:
    """Read a further corpus with the columns and dialect ``before`` of ``name``.

    A file in another dialect, such as a ``.csv`` beside a ``.tsv``, is read in its own.
    """
    reading = CorpusOptions(sample=sample, min_chars=min_chars, seed=0 if sample is None else seed)
    if isinstance(source, str | os.PathLike) and is_dataset(Path(source)):
        data = _from_dataset(Path(source), reading, prefix="test_")
        if (data.pairs is not None) != paired:
            raise UsageError(
                f"one of {source} and {name} was made of pairs of texts, the other was not."
            )
        return data
    named = {column: before[column] for column in ("text", "text_pair", "spans")}
    reading = replace(reading, **named)
    with input_files(source) as files:
        try:
            plan = plan_corpus(files, replace(reading, **before["dialect"]))
        except CorpusError:
            if not before["dialect"]["header"]:
                raise
            plan = plan_corpus(files, replace(reading, encoding=before["dialect"]["encoding"]))
        key, label, words = (
            column if column in plan.columns else None
            for column in (before["id"], before["label"], word_label)
        )
        if word_label is not None and plan.marks_words and not plan.spans:
            words = word_label
        return _from_plan(replace(plan, id=key, label=label, word_label=words))


def _from_plan(plan: CorpusPlan) -> TextData:
    plan = hash_inputs(plan)
    reader = CorpusReader(plan)
    records = reader.records()
    if not records:
        reasons = ", ".join(f"{name} {n:,}" for name, n in reader.counts.rejected.items())
        raise UsageError(f"{plan.files[0].name} has no text. Rejected: {reasons or 'none'}.")
    return TextData(
        name=plan.files[0].name,
        source=tuple(file.sha256 for file in plan.files),
        row=np.array([r.row for r in records], np.int64),
        ids=[r.id for r in records],
        texts=[r.text for r in records],
        pairs=[str(r.text_pair) for r in records] if plan.text_pair else None,
        labels=[r.label for r in records] if plan.label else None,
        rejected=dict(reader.counts.rejected),
        reading=reading_of(plan),
        words=[r.words for r in records] if any(r.words for r in records) else None,
        groups=[r.kept[0] for r in records] if plan.keep else None,
    )


def _from_dataset(path: Path, reading: CorpusOptions, prefix: str = "") -> TextData:
    data = load(path)
    settings = data.manifest.job.input
    wrong = [name for name in reading.given if name != "label" or reading.label != settings.label]
    if wrong:
        raise UsageError(
            f"{prefix}{wrong[0]}={getattr(reading, wrong[0])!r} is for a corpus file; {path} is a "
            "dataset, whose records are settled."
        )
    if not data.manifest.job.storage.text:
        raise UsageError(f"{path} was made with store_text=False. Give the corpus file itself.")
    pairs = settings.text_pair is not None
    return TextData(
        name=str(path),
        source=source_of(data),
        row=data.row,
        ids=[str(i) for i in data.ids],
        texts=data.text,
        pairs=[str(second) for second in data.column("text_pair")] if pairs else None,
        labels=data.column("label") if settings.label is not None else None,
        rejected={},
        reading=reading_of(settings),
    )


@dataclass(frozen=True, slots=True)
class LabelledWords:
    """The words of texts: their spans ``(words, 2)``, numbers and labels, text by text."""

    spans: list[Ints]
    number: list[Int64]
    labels: Sequence[Sequence[str | None]] | None


def labelled_words(data: TextData) -> LabelledWords:
    """Return the words of a corpus that marks or labels them, or of a dataset with word vectors."""
    if data.words is None and is_dataset(Path(data.name)):
        words = load(data.name, level="word")
        labels = None
        if "label" in words.columns:
            stored = np.array(words.column("label"))
            labels = [part.tolist() for part in by_record(words.row, data.row, stored)]
        numbers = by_record(words.row, data.row, words.word)
        return LabelledWords(word_spans_of(words), numbers, labels)
    marked = data.words or [None] * len(data)
    spans = [
        word_spans(text)
        if words is None or words.spans is None
        else np.array(words.spans, np.int32).reshape(-1, 2)
        for text, words in zip(data.texts, marked, strict=True)
    ]
    numbers = [np.arange(len(some)) for some in spans]
    own = [words.labels for words in marked if words is not None and words.labels is not None]
    return LabelledWords(spans, numbers, own if len(own) == len(data) else None)


def labels_of_words(
    words: Sequence[Words | None] | None, record: Int64, word: Int64
) -> list[str | None] | None:
    """Return the label of each word, by number of its text and in it; ``None`` without labels."""
    labels = [None if one is None else one.labels for one in words or ()]
    if not labels or None in labels:
        return None
    return [(labels[i] or ())[j] for i, j in zip(record.tolist(), word.tolist(), strict=True)]


def dataset_of(
    source: CorpusLike,
    options: dict[str, Any],
    *,
    level: str = "sentence",
    progress: ProgressCallback = no_progress,
) -> Path:
    """Return the folder of a dataset; a corpus is extracted first, with the options."""
    if isinstance(source, str | os.PathLike) and not Path(source).is_file() and str(source) != "-":
        if options:
            raise TypeError(f"unexpected keyword argument {min(options)!r}: {source} is a dataset")
        return local_dataset(Path(source))
    from embedkit.dataset.extract import extract

    words = {"words": "mean"} if level == "word" else {}
    return extract(source, progress=progress, **{**words, **options}).out
