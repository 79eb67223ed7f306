"""A test file or dataset → features that a model fitted on another dataset can be asked about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.corpus import CorpusReader, InputFile, Record, hash_inputs, plan_corpus
from embedkit.errors import UsageError
from embedkit.outcomes import Target
from embedkit.reencoding import Reencoder, check_alike, joined_pairs, made_how
from embedkit.splits import has_label, source_of, stored_texts, text_key
from embedkit.store import VectorData, is_dataset, load

__all__ = ["Unseen", "unseen_records"]

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Unseen:
    """Records of a test part that lies outside the dataset a model is fitted on.

    Attributes:
        source: SHA-256 of its input files.
        row: ``(m,)`` record numbers.
        ids: ``(m,)`` ids.
        y: ``(m,)`` class numbers or values; empty where it has no labels.
        features: ``(m, width)`` float32, or a list of texts.
        rejected: records that were not embedded.
        known_texts: how many of its texts occur in the dataset too; ``None`` without texts.
    """

    source: tuple[str, ...]
    row: Integers
    ids: list[str]
    y: NDArray[Any]
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
        y=_classes(labels, target, row, test),
        features=features,
        rejected=rejected,
        known_texts=_known(texts, stored_texts(data)),
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
        [InputFile.of(test)], text=columns["text"], text_pair=columns["text_pair"],
        unicode=columns["unicode"], encoding=columns["encoding"],
        quoting=columns["quoting"] if columns["quoting"] in ("none", "csv") else "auto",
        header=columns["header"],
    )  # fmt: skip
    found = {name: columns[name] if columns[name] in plan.columns else None
             for name in ("id", "label")}  # fmt: skip
    plan = hash_inputs(replace(plan, id=found["id"] or plan.id, label=found["label"]))
    reader = CorpusReader(plan)
    records = [item for item in reader if isinstance(item, Record)]
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


def _classes(
    labels: Sequence[str | None] | None, target: Target, row: Integers, test: Path
) -> NDArray[Any]:
    """Labels by the class numbers of the dataset; empty where there are none at all."""
    if labels is None or not any(map(has_label, labels)):
        return np.empty(0, np.int64)
    known = {name: i for i, name in enumerate(target.classes)}
    result: list[float] = []
    for label, number in zip(labels, row, strict=True):
        if not has_label(label):
            raise UsageError(
                f"{test}: row {number} has no label while others have one. Label all or none."
            )
        if target.classes and label not in known:
            raise UsageError(
                f"{test}: row {number} has the label {label!r}, which no training record has; "
                f"there are {', '.join(target.classes[:10])}."
            )
        name = str(label)
        result.append(known[name] if target.classes else _number(name, number, test))
    return np.array(result, np.int64 if target.classes else np.float64)


def _number(label: str, row: int, test: Path) -> float:
    try:
        value = float(label)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise UsageError(f"{test}: the label {label!r} of row {row} is no number.")
    return value


def _known(texts: Sequence[str] | None, trained: Sequence[str] | None) -> int | None:
    if texts is None or trained is None:
        return None
    keys = {text_key(text) for text in trained}
    return sum(text_key(text) in keys for text in texts)
