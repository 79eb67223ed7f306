"""Texts with their labels, from a corpus file or from a dataset that holds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.corpus import (
    CorpusOptions,
    CorpusPlan,
    CorpusReader,
    InputFile,
    Record,
    Reject,
    hash_inputs,
    plan_corpus,
)
from embedkit.dataset.record_keys import source_of, text_key, whole_text
from embedkit.dataset.store import is_dataset, load
from embedkit.errors import CorpusError, UsageError
from embedkit.runs.splits import Labelled

__all__ = ["TextData", "read_more_texts", "read_texts"]

Integers = NDArray[np.int64]


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
        rejected: number of rejected records, by reason; of a dataset those are elsewhere.
        reading: columns, dialect and choice of records, as far as they shape the records.
    """

    name: str
    source: tuple[str, ...]
    row: Integers
    ids: list[str]
    texts: list[str]
    pairs: list[str] | None
    labels: list[str | None] | None
    rejected: dict[str, int]
    reading: dict[str, Any]

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def unicode(self) -> str:
        """Normal form of the texts: ``none``, ``nfc`` or ``nfkc``."""
        return str(self.reading["unicode"])

    def text_keys(self) -> list[int]:
        """``n`` keys of the texts, of pairs of both as one."""
        seconds: Sequence[str | None] = self.pairs or [None] * len(self)
        return [text_key(whole_text(a, b)) for a, b in zip(self.texts, seconds, strict=True)]

    def labelled(self) -> Labelled:
        """What a split needs to know."""
        return Labelled(self.source, self.row, self.labels, self.text_keys(), None)


def read_texts(
    source: str | Path,
    reading: CorpusOptions | None = None,
    *,
    notify: Callable[[str], None] = lambda _: None,
) -> TextData:
    """Read a corpus file, or the texts that a dataset holds.

    Args:
        source: a corpus file, or a folder that ``extract`` wrote.
        reading: how the file is read; none for a dataset, which was read with its own.
        notify: called with sentences for the user, such as which columns were guessed.

    Raises:
        CorpusError: the file cannot be read as asked.
        UsageError: the dataset holds no texts, or options were given with it.
    """
    path = Path(source)
    if is_dataset(path) or path.is_dir():
        return _of_dataset(path, reading or CorpusOptions())
    plan = plan_corpus([InputFile.of(path)], reading)
    return _of_plan(plan, notify)


def read_more_texts(
    source: str | Path, like: TextData, *, notify: Callable[[str], None] = lambda _: None
) -> TextData:
    """Read a further corpus file with the columns and dialect of texts that were read before.

    A file that is none in that dialect, such as a ``.csv`` beside a ``.tsv``, is read in its own.
    All of its records are read; the label is ``None`` where it has no such column.

    Raises:
        CorpusError: the file cannot be read, or lacks a column.
    """
    known = like.reading
    names = {name: known[name] for name in ("text", "text_pair", "unicode")}
    file = InputFile.of(Path(source))
    try:
        plan = plan_corpus([file], CorpusOptions(**names, **known["dialect"]))
    except CorpusError:
        if not known["dialect"]["header"]:
            raise
        encoding = known["dialect"]["encoding"]
        plan = plan_corpus([file], CorpusOptions(**names, encoding=encoding))
    label = known["label"] if known["label"] in plan.columns else None
    identity = known["id"] if known["id"] in plan.columns else None
    return _of_plan(replace(plan, label=label, id=identity, notices=()), notify)


def _of_plan(plan: CorpusPlan, notify: Callable[[str], None]) -> TextData:
    for notice in plan.notices:
        notify(notice)
    plan = hash_inputs(plan)
    reader = CorpusReader(plan)
    records: list[Record] = []
    rejected: Counter[str] = Counter()
    for item in reader:
        if isinstance(item, Reject):
            rejected[item.reason] += 1
        else:
            records.append(item)
    if quotes := reader.counts.quote_notice:
        notify(quotes)
    if not records:
        raise UsageError(f"{plan.files[0].name} holds no text.{_reasons(rejected)}")
    dialect = plan.dialect
    return TextData(
        name=plan.files[0].name,
        source=tuple(file.sha256 for file in plan.files),
        row=np.array([r.row for r in records], np.int64),
        ids=[r.id for r in records],
        texts=[r.text for r in records],
        pairs=[str(r.text_pair) for r in records] if plan.text_pair else None,
        labels=[r.label for r in records] if plan.label else None,
        rejected=dict(rejected),
        reading={
            "text": plan.text, "text_pair": plan.text_pair, "id": plan.id, "label": plan.label,
            "unicode": plan.unicode, "min_chars": plan.min_chars, "limit": plan.limit,
            "sample": plan.sample, "seed": plan.seed if plan.sample is not None else None,
            "dialect": {"format": dialect.format, "encoding": dialect.encoding,
                        "quoting": dialect.quoting, "header": dialect.header},
        },
    )  # fmt: skip


def _of_dataset(path: Path, reading: CorpusOptions) -> TextData:
    data = load(path)
    settings = asdict(data.manifest.job.input)
    given = sorted(reading.given)
    if given == ["label"] and reading.label == settings["label"]:
        given = []
    if given:
        raise UsageError(
            f"{given[0]}={getattr(reading, given[0])!r}: {path} is a dataset, which was "
            f"read with options of its own (label column {settings['label']!r}). Give the corpus "
            "file to read it otherwise."
        )
    if not data.manifest.job.storage.text:
        raise UsageError(f"{path} was made with --no-text. Give the corpus file itself.")
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
            **{name: settings[name] for name in ("text", "text_pair", "id", "label", "unicode",
                                                 "min_chars", "limit", "sample", "seed")},
            "dialect": {name: settings[name]
                        for name in ("format", "encoding", "quoting", "header")},
        },
    )  # fmt: skip


def _reasons(rejected: Mapping[str, int]) -> str:
    if not rejected:
        return ""
    listed = ", ".join(f"{reason} {count:,}" for reason, count in rejected.items())
    return f" Rejected: {listed}."
