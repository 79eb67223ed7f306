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
from embedkit.dataset.record_keys import source_of, stored_texts, text_key, text_keys, whole_text
from embedkit.dataset.store import VectorData, is_dataset, load
from embedkit.dataset.vector_settings import encode_as
from embedkit.errors import UsageError
from embedkit.runs.reencoding import check_alike, dataset_content, joined_pairs
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
        found, labels, keys = _from_dataset(test, data, texts_only)
    else:
        found, labels, keys = _from_corpus(test, data, texts_only, reading)
    return replace(
        found,
        group=same_text_groups(keys, None, len(found.row)),
        target=target_like(target, labels, rows=found.row, name=str(test)),
        seen_texts=count_seen(keys, text_keys(data)),
    )


_Found = tuple[TestSet, list[str | None] | None, Sequence[int] | Int64 | None]
_UNKNOWN = Target(np.empty(0, np.int64), ())


def _from_dataset(test: Path, data: VectorData, texts_only: bool) -> _Found:
    """The test set without its target, its labels and text keys."""
    other = load(test, list(data.views))
    check_alike(
        dataset_content(other), dataset_content(data), name=str(test), vectors=not texts_only
    )
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
    )
    labels = other.column("label") if other.manifest.job.input.label else None
    return found, labels, text_keys(other)


def _from_corpus(test: Path, data: VectorData, texts_only: bool, reading: CorpusOptions) -> _Found:
    """The test set without its target, its labels and text keys."""
    columns = data.manifest.job.input
    plan = plan_corpus(
        [InputFile.of(test)],
        replace(
            reading, text=columns.text, text_pair=columns.text_pair, unicode=columns.unicode,
            encoding=columns.encoding, quoting=columns.quoting, header=columns.header,
        ),
    )  # fmt: skip
    id_, label = (name if name in plan.columns else None for name in (columns.id, columns.label))
    plan = hash_inputs(replace(plan, id=id_ or plan.id, label=label))
    reader = CorpusReader(plan)
    records = [item for item in reader if isinstance(item, Record)]
    if reader.counts.quote_notice:
        logger.warning("%s", reader.counts.quote_notice)
    if not records:
        raise UsageError(f"{test} has no record that can be predicted.")
    if plan.label is None:
        logger.warning("%s has no column %r: it is predicted, not scored", test, columns.label)
    texts = [r.text for r in records]
    pairs = [str(r.text_pair) for r in records] if plan.text_pair else None
    if texts_only:
        features: Any = joined_pairs(texts, pairs)
    else:
        features = encode_as(data.manifest, data.views, owner=str(data.path))(texts, pairs)
    found = TestSet(
        source=tuple(file.sha256 for file in plan.files),
        row=(row := np.array([r.row for r in records], np.int64)),
        group=row,
        ids=[r.id for r in records],
        target=_UNKNOWN,
        features=features,
        rejected=reader.counts.n_rejected,
        seen_texts=None,
    )
    return (
        found,
        [r.label for r in records] if plan.label else None,
        [text_key(whole_text(r.text, r.text_pair)) for r in records],
    )


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
