"""Labels as estimators take them: class numbers, or values of a regression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.dataset.record_keys import check_labelled, has_label
from embedkit.errors import UsageError
from embedkit.runs.split_files import Split
from embedkit.types import Float64, Int64

__all__ = [
    "Target",
    "check_folds",
    "class_prior",
    "growing_order",
    "target_from",
    "target_like",
]

_MANY_CLASSES = 20


@dataclass(frozen=True, slots=True)
class Target:
    """What is predicted.

    Attributes:
        y: ``(n,)`` class numbers int64, or values float64 of a regression.
        classes: labels by class number; empty for a regression.
    """

    y: NDArray[Any]
    classes: tuple[str, ...]

    @property
    def strata(self) -> Int64:
        """Class numbers; in a regression one class for all."""
        return self.y if self.classes else np.zeros(len(self.y), np.int64)


def target_from(
    labels: Sequence[str | None], *, rows: Int64, name: str, task: str = "classification"
) -> Target:
    """Return the target for labels as written.

    Args:
        labels: ``(n,)`` labels.
        rows: ``(n,)`` record numbers, for messages.
        name: of the data, for messages.
        task: ``classification`` or ``regression``.

    Raises:
        UsageError: a label is missing, constant, or no number in a regression.
    """
    check_labelled(labels, rows, name=name)
    names = np.unique(np.array(labels, np.str_))
    if len(names) < 2:
        raise UsageError(f"{name}: all records have the label {str(names[0])!r}." if len(names)
                         else f"{name} has no records.")  # fmt: skip
    if task == "regression":
        return Target(_values(labels, rows, name), ())
    classes = tuple(sorted(names.tolist(), key=_in_order))
    if len(classes) > _MANY_CLASSES and _are_values(classes):
        raise UsageError(
            f"{name}: the {len(classes)} different labels look like values ({classes[0]} to "
            f"{classes[-1]}), not classes. Pass task='regression'."
        )
    numbers = {label: i for i, label in enumerate(classes)}
    return Target(np.array([numbers[str(x)] for x in labels], np.int64), classes)


def target_like(
    target: Target, labels: Sequence[str | None] | None, *, rows: Int64, name: str
) -> Target:
    """Return the target for further records by the classes of another; empty without labels.

    Args:
        target: of the training records.
        labels: ``(m,)`` labels, or ``None``.
        rows: ``(m,)`` record numbers, for messages.
        name: of the further records, for messages.

    Raises:
        UsageError: only some records have a label, or no training record has one of them.
    """
    if labels is None or not any(map(has_label, labels)):
        return Target(np.empty(0, np.int64), target.classes)
    for label, row in zip(labels, rows, strict=True):
        if not has_label(label):
            raise UsageError(
                f"{name}: row {row} has no label while others have one. Label all or none."
            )
    if not target.classes:
        return Target(_values(labels, rows, name), ())
    numbers = {label: i for i, label in enumerate(target.classes)}
    for label, row in zip(labels, rows, strict=True):
        if label not in numbers:
            raise UsageError(
                f"{name}: row {row} has the label {label!r}, which no training record has; "
                f"there are {', '.join(target.classes[:10])}."
            )
    return Target(np.array([numbers[str(x)] for x in labels], np.int64), target.classes)


def check_classes(target: Target, index: Int64, name: str) -> None:
    """Raise a :class:`UsageError` if a class does not occur among some records."""
    if not target.classes:
        return
    found = np.bincount(target.y[index], minlength=len(target.classes)) > 0
    if not found.all():
        absent = target.classes[int(np.argmin(found))]
        raise UsageError(
            f"label {absent!r} does not occur in {name}. Use other folds, or leave the label out."
        )


def check_folds(target: Target, split: Split, *, repeats: int | None = None) -> None:
    """Raise a :class:`UsageError` if a fold cannot be fitted or predicted, before any is.

    Of words a rare label may be missing among the training words of a fold: sentences cannot be
    left out for it. It then has the probability 0 in that fold.

    Args:
        target: what is predicted.
        split: the folds.
        repeats: number of repeats to check; by default all.
    """
    for repeat in range(repeats or split.repeats):
        for fold in range(split.n_folds):
            train, test = split.fold(repeat, fold)
            if not len(test) or not len(train):
                raise UsageError(
                    f"fold {fold} of the split has no {'training' if len(test) else 'held-out'} "
                    "record among these. Make the split again from the records that are there."
                )
            where = f"the training records of fold {fold}"
            if split.word is None:
                check_classes(target, train, where)
            elif target.classes and len(np.unique(target.y[train])) == 1:
                label = target.classes[target.y[train][0]]
                raise UsageError(f"all words have the label {label!r} in {where}. Use other folds.")


def class_prior(y: NDArray[Any], classes: Sequence[str], count: int) -> Float64:
    """Return what the training labels alone predict, for ``count`` records.

    Returns:
        ``(count, classes)`` class frequencies, or ``(count,)`` times the mean of a regression.
    """
    if not classes:
        return np.full(count, y.mean())
    return np.tile(np.bincount(y, minlength=len(classes)) / len(y), (count, 1))


def _values(labels: Sequence[str | None], rows: Int64, name: str) -> Float64:
    result = np.empty(len(labels))
    for i, label in enumerate(labels):
        try:
            result[i] = float(str(label))
        except ValueError:
            result[i] = np.nan
        if not np.isfinite(result[i]):
            raise UsageError(
                f"{name}: the label {label!r} of row {rows[i]} is no number, as "
                "task='regression' needs."
            )
    return result


def _are_values(classes: Sequence[str]) -> bool:
    """Whether all are numbers and some of them are not whole."""
    try:
        return not all(float(label).is_integer() for label in classes)
    except ValueError:
        return False


def _in_order(label: str) -> tuple[int, float, str]:
    """Numbers by value, then everything else by name."""
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label


def growing_order(train: Int64, target: Target, *, seed: int) -> Int64:
    """Records in random order, in which any number from the front has the classes in proportion.

    The first records are one of each class, so that a classifier can be fitted on few.
    """
    order = np.random.default_rng(seed).permutation(train)
    if not target.classes:
        return order
    y = target.y[order]
    by_class = np.argsort(y, kind="stable")
    counts = np.unique(y, return_counts=True)[1]
    before = np.concatenate([np.arange(count) / count for count in counts])
    return np.asarray(order[by_class[np.argsort(before, kind="stable")]], np.int64)
