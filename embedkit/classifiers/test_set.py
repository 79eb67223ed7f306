"""Load an external test set with the settings of the training dataset."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.corpus import (
    CorpusOptions,
    CorpusReader,
    InputFile,
    Record,
    hash_inputs,
    plan_corpus,
)
from embedkit.dataset.record_keys import (
    records_of_words,
    source_of,
    stored_texts,
    text_key,
    text_keys,
    whole_text,
)
from embedkit.dataset.store import VectorData, is_dataset, load
from embedkit.dataset.vector_settings import encode_as
from embedkit.errors import UsageError
from embedkit.runs.reencoding import (
    check_alike,
    dataset_content,
    joined_pairs,
    marked_spans,
    words_of_texts,
)
from embedkit.runs.splits import same_text_groups
from embedkit.runs.targets import Target, target_like
from embedkit.types import Int64

__all__ = ["TestSet", "check_settled", "count_seen", "load_test_set"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TestSet:
    """A test set that lies outside the training dataset.

    Attributes:
        source: SHA-256 of its input files.
        row: ``(m,)`` record numbers.
        group: ``(m,)`` sampling unit: records of the same text have the same.
        ids: ``m`` ids.
        target: its labels by the classes of the training dataset; empty without labels.
        features: ``(m, width)`` float32, or a list of texts.
        rejected: number of records that were not embedded.
        seen_texts: how many of its texts occur in the training dataset; ``None`` if unknown.
        word: ``(m,)`` number of each word in its record; ``None`` of records.
    """

    __test__ = False  # no class of tests

    source: tuple[str, ...]
    row: Int64
    group: Int64
    ids: Sequence[str]
    target: Target
    features: Any
    rejected: int
    seen_texts: int | None
    word: Int64 | None = None


def load_test_set(
    test: Path,
    data: VectorData,
    target: Target,
    *,
    texts_only: bool,
    reading: CorpusOptions | None = None,
) -> TestSet:
    """Load a test set; a corpus file is encoded as the training dataset was.

    Args:
        test: dataset that ``extract`` wrote with the same settings, or a corpus file.
        data: the training dataset, with its views.
        target: its labels.
        texts_only: the features are the texts, not vectors.
        reading: which records of a corpus file are used: its sample, seed and ``min_chars``.

    Raises:
        MismatchError: the vectors of the test dataset were made with other settings.
        UsageError: a label does not occur in the training dataset, or only some records have one.
    """
    reading = reading or CorpusOptions()
    if is_dataset(test):
        check_settled(test, reading)
        found, labels, keys, rows = _from_dataset(test, data, texts_only)
    else:
        found, labels, keys, rows = _from_corpus(test, data, texts_only, reading)
    group = same_text_groups(keys, None, len(rows))
    return replace(
        found,
        group=group[np.searchsorted(rows, found.row)],
        target=target_like(target, labels, rows=found.row, name=str(test)),
        seen_texts=count_seen(keys, text_keys(records_of_words(data))),
    )


_Found = tuple[TestSet, list[str | None] | None, Sequence[int] | Int64 | None, Int64]
"""The test set without its target; its labels; the keys and row numbers of its records."""
_UNKNOWN = Target(np.empty(0, np.int64), ())


def _from_dataset(test: Path, data: VectorData, texts_only: bool) -> _Found:
    other = load(test, list(data.views), level=data.level)
    check_alike(
        dataset_content(other), dataset_content(data), name=str(test), vectors=not texts_only,
        level=data.level,
    )  # fmt: skip
    if texts_only and not other.manifest.job.storage.text:
        raise UsageError(f"{test} stores no texts; give the corpus file itself.")
    found = TestSet(
        source=source_of(other),
        row=other.row,
        group=other.row,
        ids=[str(i) for i in other.ids],
        target=_UNKNOWN,
        features=stored_texts(other, separator=" ") if texts_only else other.X,
        rejected=other.manifest.totals.rejected,
        seen_texts=None,
        word=other.word if data.level == "word" else None,
    )
    labels = other.column("label") if "label" in other.columns else None
    records = records_of_words(other)
    return found, labels, text_keys(records), records.row


def _from_corpus(test: Path, data: VectorData, texts_only: bool, reading: CorpusOptions) -> _Found:
    columns = data.manifest.job.input
    plan = plan_corpus(
        [InputFile.of(test)],
        replace(
            reading, text=columns.text, text_pair=columns.text_pair, unicode=columns.unicode,
            encoding=columns.encoding, quoting=columns.quoting, header=columns.header,
        ),
    )  # fmt: skip
    id_, label = (name if name in plan.columns else None for name in (columns.id, columns.label))
    words = columns.word_label if data.level == "word" else None
    if words not in plan.columns and not plan.marks_words:
        words = None
    plan = hash_inputs(replace(plan, id=id_ or plan.id, label=label, word_label=words))
    reader = CorpusReader(plan)
    records = reader.records()
    if not records:
        raise UsageError(f"{test} has no record that can be predicted.")
    name, expected = (words, columns.word_label) if data.level == "word" else (label, columns.label)
    if name is None:
        logger.warning("%s has no column %r: it is predicted, not scored", test, expected)
    found = TestSet(
        source=tuple(file.sha256 for file in plan.files),
        row=(row := np.array([r.row for r in records], np.int64)),
        group=row,
        ids=[r.id for r in records],
        target=_UNKNOWN,
        features=None,
        rejected=reader.counts.n_rejected,
        seen_texts=None,
    )
    keys = [text_key(whole_text(r.text, r.text_pair)) for r in records]
    if data.level == "word":
        return *_words_of_corpus(found, records, data, texts_only), keys, row
    texts = [r.text for r in records]
    pairs = [str(r.text_pair) for r in records] if plan.text_pair else None
    if texts_only:
        features: Any = joined_pairs(texts, pairs)
    else:
        features = encode_as(data.manifest, data.views, owner=str(data.path))(texts, pairs)
    labels = [r.label for r in records] if plan.label else None
    return replace(found, features=features), labels, keys, row


def _words_of_corpus(
    found: TestSet, records: Sequence[Record], data: VectorData, texts_only: bool
) -> tuple[TestSet, list[str | None] | None]:
    """The test set of the words of records, and their labels."""
    texts, spans = [r.text for r in records], marked_spans(records)
    features: Any
    if texts_only:
        record, word, features = words_of_texts(texts, spans)
    else:
        encode = encode_as(data.manifest, data.views, owner=str(data.path))
        words = encode.words(texts, spans=spans)
        record, word, features = words.row, words.word.astype(np.int64), words.X
    labels: list[str | None] | None = None
    if all(r.words is not None and r.words.labels is not None for r in records):
        own = [r.words.labels or () for r in records if r.words is not None]
        labels = [own[i][j] for i, j in zip(record.tolist(), word.tolist(), strict=True)]
    ids = [found.ids[i] for i in record.tolist()]
    return replace(found, row=found.row[record], ids=ids, word=word, features=features), labels


def check_settled(test: Path, reading: CorpusOptions) -> None:
    """Raise a :class:`UsageError` if a dataset is to be read with options for a corpus file."""
    for name in reading.given[:1]:
        raise UsageError(
            f"test_{name}={getattr(reading, name)!r} is for a corpus file; {test} is a dataset, "
            "whose records are settled."
        )


def count_seen(
    keys: Sequence[int] | Int64 | None, training: Sequence[int] | Int64 | None
) -> int | None:
    """Return how many text keys occur among the training keys; ``None`` if either is unknown."""
    if keys is None or training is None:
        return None
    return int(np.isin(np.asarray(keys), np.asarray(training)).sum())
