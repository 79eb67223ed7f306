"""Texts with their labels, from a corpus file or from a dataset that stores them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.classifiers.test_set import check_settled
from embedkit.corpus import (
    CorpusOptions,
    CorpusPlan,
    CorpusReader,
    InputFile,
    hash_inputs,
    plan_corpus,
)
from embedkit.dataset.record_keys import source_of, text_key, whole_text
from embedkit.dataset.store import is_dataset, load
from embedkit.errors import CorpusError, UsageError
from embedkit.runs.split_files import Split
from embedkit.runs.splits import Labelled
from embedkit.runs.targets import Target
from embedkit.types import Int64

__all__ = ["RunRecords", "TextData", "read_more_texts", "read_texts"]

logger = logging.getLogger(__name__)

_READING = ("text", "text_pair", "id", "label", "unicode", "min_chars", "limit", "sample")
_DIALECT = ("format", "encoding", "quoting", "header")


@dataclass(frozen=True, slots=True)
class TextData:
    """Records of a corpus in input order.

    Attributes:
        name: as the user gave it.
        source: SHA-256 of the input files, in order.
        row: ``(n,)`` record numbers in the input, ascending.
        ids: ``n`` ids.
        texts: ``n`` texts.
        pairs: ``n`` second texts, or ``None``.
        labels: ``n`` labels as written; ``None`` where there is no label column.
        rejected: number of rejected records, by reason; empty for a dataset.
        reading: columns, dialect and choice of records, as far as they shape the records.
    """

    name: str
    source: tuple[str, ...]
    row: Int64
    ids: list[str]
    texts: list[str]
    pairs: list[str] | None
    labels: list[str | None] | None
    rejected: dict[str, int]
    reading: dict[str, Any]

    def __len__(self) -> int:
        return len(self.texts)

    def text_keys(self) -> list[int]:
        """Return ``n`` keys of the texts, those of a pair joined."""
        seconds: Sequence[str | None] = self.pairs or [None] * len(self)
        return [text_key(whole_text(a, b)) for a, b in zip(self.texts, seconds, strict=True)]

    def labelled(self) -> Labelled:
        """Return the records as a split needs them."""
        return Labelled(self.source, self.row, self.labels, self.text_keys(), None)


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The records of a run: those of its folds, and those of its test set.

    Attributes:
        data: the records of the split.
        target: their labels.
        split: their folds.
        test_data: texts of the test set: ``data`` itself, or a corpus of its own.
        test_target: labels of ``test_data``; empty where they are not known.
        test_index: ``(m,)`` indices of the test set into ``test_data``.
    """

    data: TextData
    target: Target
    split: Split
    test_data: TextData
    test_target: Target
    test_index: Int64

    @property
    def has_own_test_set(self) -> bool:
        """Whether the test set is a corpus of its own."""
        return self.test_data is not self.data


def read_texts(source: str | Path, reading: CorpusOptions | None = None) -> TextData:
    """Read a corpus file, or the texts that a dataset stores.

    Args:
        source: a corpus file, or a folder that ``extract`` wrote.
        reading: how the file is read; none for a dataset, which was read with its own.

    Raises:
        CorpusError: the file cannot be read as asked.
        UsageError: the dataset stores no texts, or options were given with it.
    """
    path = Path(source)
    if is_dataset(path) or path.is_dir():
        return _from_dataset(path, reading or CorpusOptions())
    return _from_plan(plan_corpus([InputFile.of(path)], reading))


def read_more_texts(
    source: str | Path,
    like: TextData,
    *,
    sample: int | None = None,
    min_chars: int = 0,
    seed: int = 0,
) -> TextData:
    """Read a further corpus with the columns and dialect of texts that were read before.

    A file in another dialect, such as a ``.csv`` beside a ``.tsv``, is read in its own. The label
    is ``None`` where it has no such column.

    Args:
        source: a corpus file, or a dataset that stores its texts.
        like: the texts that were read before.
        sample: read so many records of a file, sampled at random; by default all.
        min_chars: leave shorter texts of a file out.
        seed: of the sample.

    Raises:
        CorpusError: the file cannot be read, or lacks a column.
        UsageError: a dataset stores no texts, or other ones (pairs, normal form) than those before.
    """
    before = like.reading
    reading = CorpusOptions(sample=sample, min_chars=min_chars, seed=0 if sample is None else seed)
    if is_dataset(Path(source)):
        check_settled(Path(source), reading)
        found = _from_dataset(Path(source), reading)
        for name in ("pairs", "unicode"):
            values = [_shape(one)[name] for one in (found, like)]
            if values[0] != values[1]:
                raise UsageError(
                    f"{source} was made with {name} {values[0]!r}, {like.name} with {values[1]!r}. "
                    "Give the corpus file itself."
                )
        return found
    names: dict[str, Any] = {name: before[name] for name in ("text", "text_pair", "unicode")}
    names |= {"sample": sample, "min_chars": min_chars, "seed": reading.seed}
    files = [InputFile.of(Path(source))]
    try:
        plan = plan_corpus(files, CorpusOptions(**names, **before["dialect"]))
    except CorpusError:
        if not before["dialect"]["header"]:
            raise
        encoding = before["dialect"]["encoding"]
        plan = plan_corpus(files, CorpusOptions(**names, encoding=encoding))
    key, label = (
        before[name] if before[name] in plan.columns else None for name in ("id", "label")
    )
    return _from_plan(replace(plan, id=key, label=label, notices=()))


def _shape(data: TextData) -> dict[str, Any]:
    return {"pairs": data.pairs is not None, "unicode": data.reading["unicode"]}


def _from_plan(plan: CorpusPlan) -> TextData:
    for notice in plan.notices:
        logger.info("%s", notice)
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
        reading={
            **{name: getattr(plan, name) for name in _READING},
            "seed": plan.seed if plan.sample is not None else None,
            "dialect": {name: getattr(plan, name) for name in _DIALECT},
        },
    )


def _from_dataset(path: Path, reading: CorpusOptions) -> TextData:
    data = load(path)
    settings = asdict(data.manifest.job.input)
    given = [name for name in reading.given if name != "label" or reading.label != settings[name]]
    if given:
        raise UsageError(
            f"{given[0]}={getattr(reading, given[0])!r}: {path} is a dataset, which was read with "
            f"options of its own (label column {settings['label']!r}). Give the corpus file to "
            "read it with others."
        )
    if not data.manifest.job.storage.text:
        raise UsageError(f"{path} was made with store_text=False. Give the corpus file itself.")
    pairs = settings["text_pair"] is not None
    return TextData(
        name=str(path),
        source=source_of(data),
        row=data.row,
        ids=[str(i) for i in data.ids],
        texts=data.text,
        pairs=[str(second) for second in data.column("text_pair")] if pairs else None,
        labels=data.column("label") if settings["label"] is not None else None,
        rejected={},
        reading={
            **{name: settings[name] for name in (*_READING, "seed")},
            "dialect": {name: settings[name] for name in _DIALECT},
        },
    )
