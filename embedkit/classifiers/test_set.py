"""A test file or dataset → features that a model fitted on another dataset can be asked about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.corpus import (
    CorpusOptions,
    CorpusReader,
    InputFile,
    Record,
    hash_inputs,
    plan_corpus,
)
from embedkit.dataset.store import VectorData, is_dataset, load
from embedkit.errors import UsageError
from embedkit.runs.predictions import Target, target_like
from embedkit.runs.reencoding import Reencoder, check_alike, joined_pairs, made_how
from embedkit.runs.splits import source_of, stored_texts, text_key

__all__ = ["Unseen", "count_known", "unseen_records"]

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Unseen:
    """Records of a test part that lies outside the dataset a model is fitted on.

    Attributes:
        source: SHA-256 of its input files.
        row: ``(m,)`` record numbers.
        ids: ``(m,)`` ids.
        target: its labels by the class numbers of the dataset; empty where it has none.
        features: ``(m, width)`` float32, or a list of texts.
        rejected: records that were not embedded.
        known_texts: how many of its texts occur in the dataset too; ``None`` without texts.
    """

    source: tuple[str, ...]
    row: Integers
    ids: list[str]
    target: Target
    features: Any
    rejected: int
    known_texts: int | None


def unseen_records(
    test: Path,
    data: VectorData,
    target: Target,
    *,
    texts_only: bool,
    notify: Callable[[str], None] = lambda _: None,
) -> Unseen:
    """Read a test part; a corpus file is encoded as the dataset was.

    Args:
        test: dataset that ``extract`` wrote with the same settings, or a corpus file.
        data: the dataset a model is fitted on, with its views.
        target: its labels.
        texts_only: features are the texts, not vectors.
        notify: called with sentences for the user.

    Raises:
        MismatchError: the vectors of the test dataset were made otherwise.
        UsageError: a label does not occur in the dataset, or only some records have one.
    """
    read = _from_dataset if is_dataset(test) else _from_corpus
    source, row, ids, labels, texts, features, rejected = read(test, data, texts_only, notify)
    return Unseen(
        source=source,
        row=row,
        ids=ids,
        target=target_like(target, labels, rows=row, name=str(test)),
        features=features,
        rejected=rejected,
        known_texts=count_known(texts, stored_texts(data)),
    )


_Parts = tuple[
    tuple[str, ...], Integers, list[str], list[str | None] | None, list[str] | None, Any, int
]


def _from_dataset(
    test: Path, data: VectorData, texts_only: bool, notify: Callable[[str], None]
) -> _Parts:
    other = load(test, list(data.views))
    check_alike(made_how(other), made_how(data), name=str(test), vectors=not texts_only)
    texts = stored_texts(other)
    if texts_only and texts is None:
        raise UsageError(f"{test} was made with --no-text; give the corpus file itself.")
    labels = other.column("label") if other.manifest.job["input"]["label"] else None
    features = [t.replace("\x1f", " ") for t in texts or []] if texts_only else other.X
    return (
        source_of(other), other.row, [str(i) for i in other.ids], labels, texts, features,
        int(other.manifest.totals["rejected"]),
    )  # fmt: skip


def _from_corpus(
    test: Path, data: VectorData, texts_only: bool, notify: Callable[[str], None]
) -> _Parts:
    columns = data.manifest.job["input"]
    plan = plan_corpus(
        [InputFile.of(test)],
        CorpusOptions(
            text=columns["text"], text_pair=columns["text_pair"], unicode=columns["unicode"],
            encoding=columns["encoding"], quoting=columns["quoting"], header=columns["header"],
        ),
    )  # fmt: skip
    found = {name: columns[name] if columns[name] in plan.columns else None
             for name in ("id", "label")}  # fmt: skip
    plan = hash_inputs(replace(plan, id=found["id"] or plan.id, label=found["label"]))
    reader = CorpusReader(plan)
    records = [item for item in reader if isinstance(item, Record)]
    if reader.counts.quote_notice:
        notify(reader.counts.quote_notice)
    if not records:
        raise UsageError(f"{test} has no record that can be predicted.")
    if found["label"] is None:
        notify(f"{test} has no column {columns['label']!r}: it is predicted, not scored")
    texts = [r.text for r in records]
    pairs = [str(r.text_pair) for r in records] if plan.text_pair else None
    if texts_only:
        features: Any = joined_pairs(texts, pairs)
    else:
        made = made_how(data)
        features = Reencoder(made, data.views, owner=str(data.path), notify=notify).vectors(
            texts, pairs
        )
    return (
        tuple(file.sha256 for file in plan.files),
        np.array([r.row for r in records], np.int64),
        [r.id for r in records],
        [r.label for r in records] if plan.label else None,
        texts if pairs is None else [f"{a}\x1f{b}" for a, b in zip(texts, pairs, strict=True)],
        features,
        reader.counts.n_rejected,
    )


def count_known(texts: Sequence[str] | None, trained: Sequence[str] | None) -> int | None:
    """How many of some texts occur among others too; ``None`` where either is not there."""
    if texts is None or trained is None:
        return None
    keys = {text_key(text) for text in trained}
    return sum(text_key(text) in keys for text in texts)
