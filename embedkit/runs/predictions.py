"""What is predicted, and what was predicted for records that a model had not seen.

Every way to a run (classifiers on vectors, fine-tuned encoders) ends in the same records here, so
that what is scored and written is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.errors import UsageError
from embedkit.runs.metrics import Score, classification_scores, regression_scores
from embedkit.runs.splits import TEST, check_labelled, has_label

__all__ = [
    "HeldOut",
    "Target",
    "baseline",
    "check_folds",
    "check_part",
    "decide",
    "prediction_columns",
    "scores_content",
    "scores_of",
    "target_from",
    "target_like",
]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

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
    def strata(self) -> Integers:
        """Class numbers, or one class for all in a regression."""
        return self.y if self.classes else np.zeros(len(self.y), np.int64)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Predictions for records that the model had not seen.

    Attributes:
        place: ``(m,)`` position of each record in the dataset.
        fold: ``(m,)`` fold it was held out in, ``-1`` for the test part.
        repeat: ``(m,)`` number of the deal.
        output: ``(m, classes)`` probabilities, or ``(m,)`` values of a regression.
        decided: ``(m,)`` class numbers decided on, or the values of a regression.
        baseline: like ``output``, from the training labels alone: shares of the classes, or mean.
    """

    place: Integers
    fold: Integers
    repeat: Integers
    output: Floats
    decided: NDArray[Any]
    baseline: Floats

    @classmethod
    def joined(cls, parts: Sequence[HeldOut]) -> HeldOut:
        """Several parts as one, ordered by repeat and place."""
        names = ("place", "fold", "repeat", "output", "decided", "baseline")
        arrays = [np.concatenate([getattr(part, name) for part in parts]) for name in names]
        order = np.lexsort((arrays[0], arrays[2]))
        return cls(*(array[order] for array in arrays))


def target_from(
    labels: Sequence[str | None], *, rows: Integers, name: str, task: str = "classification"
) -> Target:
    """Labels as written → what is predicted.

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
            f"{classes[-1]}), not classes. Give --task regression."
        )
    numbers = {label: i for i, label in enumerate(classes)}
    return Target(np.array([numbers[str(x)] for x in labels], np.int64), classes)


def target_like(
    target: Target, labels: Sequence[str | None] | None, *, rows: Integers, name: str
) -> Target:
    """Labels of further records by the class numbers of a target; empty where there are none.

    Args:
        target: what models learnt to predict.
        labels: ``(m,)`` labels, or ``None``.
        rows: ``(m,)`` record numbers, for messages.
        name: of the further records, for messages.

    Raises:
        UsageError: only some records have a label, or one is not among those learnt.
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


def check_part(target: Target, known: Integers, name: str) -> None:
    """Raise a :class:`UsageError` if a class does not occur among some records."""
    if not target.classes:
        return
    there = np.bincount(target.y[known], minlength=len(target.classes)) > 0
    if not there.all():
        absent = target.classes[int(np.argmin(there))]
        raise UsageError(
            f"label {absent!r} does not occur in {name}. Use other folds, or leave the label out."
        )


def check_folds(target: Target, folds: Integers) -> None:
    """Raise a :class:`UsageError` if a fold cannot be learnt or predicted, before any is.

    Args:
        target: what is predicted.
        folds: ``(n, repeats)`` fold numbers, ``-1`` for the test part.
    """
    for dealt in folds.T:
        for fold in range(int(folds.max()) + 1):
            known = np.flatnonzero((dealt != fold) & (dealt != TEST))
            if not (dealt == fold).any() or not len(known):
                empty = "to learn from" if (dealt == fold).any() else "in it"
                raise UsageError(
                    f"fold {fold} of the split has no record {empty} among these. Make the split "
                    "again from the records that are there."
                )
            check_part(target, known, f"the training part of fold {fold}")


def baseline(target: Target, known: Integers, count: int) -> Floats:
    """What is predicted from the training labels alone: shares of the classes, or the mean."""
    y = target.y[known]
    if not target.classes:
        return np.full(count, y.mean())
    shares = np.bincount(y, minlength=len(target.classes)) / len(y)
    return np.tile(shares, (count, 1))


def decide(output: Floats, *, threshold: float | None = None) -> NDArray[Any]:
    """Class numbers from probabilities ``(n, classes)``; values ``(n,)`` stay what they are.

    With a threshold the second of two classes is decided on where its probability reaches it.
    """
    if output.ndim == 1:
        return output
    if threshold is None:
        return np.asarray(output.argmax(1), np.int64)
    return np.asarray(output[:, 1] >= threshold, np.int64)


def scores_of(
    target: Target, held: HeldOut, *, seed: int, beta: float | None = None
) -> tuple[dict[str, Score], dict[str, Score]]:
    """Scores of the model, and without intervals those of the majority, on the same records.

    Args:
        target: what is predicted.
        held: what was predicted.
        seed: of the bootstrap.
        beta: also F-beta of the second of two classes.
    """
    y = target.y[held.place]
    record = held.place if held.repeat.any() else None  # once each is the usual case
    if not target.classes:
        return (
            regression_scores(y, held.output, seed=seed, record=record),
            regression_scores(y, held.baseline, seed=seed, samples=0),
        )
    return (
        classification_scores(y, held.output, held.decided, seed=seed, beta=beta, record=record),
        classification_scores(
            y, held.baseline, held.baseline.argmax(1), seed=seed, samples=0, beta=beta
        ),
    )


def scores_content(
    scores: dict[str, tuple[dict[str, Score], dict[str, Score]]],
) -> dict[str, dict[str, dict[str, float]]]:
    """Scores by part (``cross_validation``, ``test``) as ``run.json`` holds them."""
    return {
        part: {
            name: {**asdict(score), "majority": majority[name].value}
            for name, score in found.items()
        }
        for part, (found, majority) in scores.items()
    }


def prediction_columns(
    *, row: Integers, ids: NDArray[np.str_] | Sequence[str], target: Target, held: HeldOut
) -> dict[str, Any]:
    """Columns of ``predictions.parquet``.

    Args:
        row: ``(n,)`` record numbers of the dataset.
        ids: ``(n,)`` ids of the dataset.
        target: what is predicted; its ``y`` may be empty where it is not known.
        held: what was predicted; its places point into the dataset.
    """
    place = held.place
    columns: dict[str, Any] = {
        "row": row[place],
        "id": [str(ids[i]) for i in place],
        "repeat": held.repeat.astype(np.int16),
        "fold": ["test" if f == TEST else str(f) for f in held.fold],
    }
    unknown = [None] * len(place) if not len(target.y) else None
    if not target.classes:
        return columns | {"y_true": unknown or target.y[place].tolist(), "y_pred": held.output}
    names = target.classes
    columns["y_true"] = unknown or [names[i] for i in target.y[place]]
    columns["y_pred"] = [names[i] for i in held.decided]
    return columns | {f"proba_{name}": held.output[:, i] for i, name in enumerate(names)}


def _values(labels: Sequence[str | None], rows: Integers, name: str) -> Floats:
    result = np.empty(len(labels))
    for i, label in enumerate(labels):
        try:
            result[i] = float(str(label))
        except ValueError:
            result[i] = np.nan
        if not np.isfinite(result[i]):
            raise UsageError(
                f"{name}: the label {label!r} of row {rows[i]} is no number, as --task "
                "regression needs."
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
