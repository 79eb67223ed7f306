"""Validation records, and the thresholds that are chosen on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product

import numpy as np

from embedkit.errors import UsageError
from embedkit.runs.metrics import Threshold
from embedkit.runs.split_files import Split
from embedkit.runs.splits import assign_folds
from embedkit.runs.targets import Target
from embedkit.types import Bool, Float64, Int64

__all__ = [
    "VALIDATION_SEED",
    "Division",
    "FoldRecords",
    "choose_thresholds",
    "validation_records",
]

VALIDATION_SEED = 104_729
"""Added to the seed of the split: with that seed itself, validation records that all folds share
would all be of one fold."""

_DENOMINATOR = 20
_ONE_FOLD = (
    "folds=1: the majority of the training labels is taken from validation records; pass "
    "validation=0.1."
)
_FOLD_SEED = 1_009


@dataclass(frozen=True, slots=True)
class FoldRecords:
    """The records of one fold, each ``(m,)`` indices; none is in two of them.

    Attributes:
        repeat: number of the repeat.
        fold: number of the fold.
        train: records that its model is trained on.
        valid: validation records that choose the epoch.
        threshold: validation records that choose thresholds.
        held_out: records that it is scored on.
    """

    repeat: int
    fold: int
    train: Int64
    valid: Int64
    threshold: Int64
    held_out: Int64


@dataclass(frozen=True)
class Division:
    """Training records of all folds, divided into records to train on and validation records.

    The division depends on the split and the fraction alone, so that runs on one split have the
    same validation records whatever their seeds.

    Attributes:
        split: the folds.
        target: labels, whose classes are spread evenly.
        fraction: of the training records that is used for validation.
        for_threshold: whether a half of the validation records chooses thresholds.
    """

    split: Split
    target: Target
    fraction: float
    for_threshold: bool

    @cached_property
    def folds(self) -> tuple[FoldRecords, ...]:
        """The records of every fold of every repeat.

        Raises:
            UsageError: a fold has too few records for some of them to be used for validation.
        """
        return tuple(self._fold(index, *name) for index, name in enumerate(self._names))

    @property
    def _names(self) -> Iterator[tuple[int, int]]:
        """Repeat and number of every fold."""
        return product(range(self.split.repeats), range(self.split.n_folds))

    @cached_property
    def shared(self) -> tuple[Int64, Int64]:
        """Validation records that choose the epoch, and those that choose thresholds.

        They are the same in every fold, so that no model is trained on them and the threshold for
        the mean of all models can be chosen on their mean predictions.
        """
        split, seed = self.split, self.split.settings.seed + VALIDATION_SEED
        trains = [split.fold(*name)[0] for name in self._names]
        both = self._records(split.in_folds, self.fraction, seed, trains)
        threshold = self._records(both, 0.5, seed + 1, ())
        return np.setdiff1d(both, threshold), threshold

    def check(self, threshold: str | None) -> None:
        """Raise a :class:`UsageError` if a fold lacks records to choose epoch or threshold by.

        Args:
            threshold: as it was asked for, for messages.
        """
        if self.split.n_folds == 1 and not self.fraction:
            raise UsageError(_ONE_FOLD)
        for one in self.folds:
            both = len(np.unique(self.target.y[one.threshold])) == 2
            if self.for_threshold and not (both and len(one.valid)):
                raise UsageError(
                    f"threshold={threshold!r}: the {len(one.threshold)} validation records of fold "
                    f"{one.fold} that choose it are not of both classes. Pass a larger validation= "
                    f"than {self.fraction:g}."
                )

    def _fold(self, index: int, repeat: int, number: int) -> FoldRecords:
        train, held_out = self.split.fold(repeat, number)
        valid = threshold = train[:0]
        if self.for_threshold:
            valid, threshold = (np.intersect1d(train, some) for some in self.shared)
        elif self.fraction:
            seed = self.split.settings.seed + VALIDATION_SEED + _FOLD_SEED * (1 + index)
            valid = self._records(train, self.fraction, seed, [train])
        if self.fraction and not len(valid) and not self.for_threshold:
            raise UsageError(
                f"validation={self.fraction:g}: the {len(train)} training records of a fold are too"
                " few, or too similar, to use some of them for validation. Pass validation=0."
            )
        never = np.concatenate([valid, *(self.shared if self.for_threshold else ())])
        return FoldRecords(repeat, number, np.setdiff1d(train, never), valid, threshold, held_out)

    def _records(self, index: Int64, fraction: float, seed: int, trains: Sequence[Int64]) -> Int64:
        return validation_records(
            index, fraction, seed=seed, trains=trains, group=self.split.group,
            strata=self.target.strata,
        )  # fmt: skip


def validation_records(
    index: Int64, fraction: float, *, group: Int64, strata: Int64, seed: int,
    trains: Sequence[Int64] = (),
) -> Int64:  # fmt: skip
    """Return about a fraction of some records, groups never divided and classes spread evenly.

    There are none if the records are too few, or too similar.

    Args:
        index: the records to choose from.
        fraction: above 0, at most 0.5.
        group: ``(n,)`` group of every record.
        strata: ``(n,)`` class of every record.
        seed: of the shuffle.
        trains: training records of folds; a class of which nothing would be left to train on stays.
    """
    near = Fraction(fraction).limit_denominator(max(_DENOMINATOR, math.ceil(1 / fraction)))
    distinct, largest = len(np.unique(group[index])), int(np.bincount(strata[index]).max(initial=0))
    folds = min(near.denominator, distinct, largest)
    chosen = index[:0]
    if folds >= 2:
        count = max(round(fraction * folds), 1)
        chosen = index[assign_folds(strata[index], group[index], folds, seed=seed) < count]
    for train in trains:
        lost = np.setdiff1d(strata[train], strata[np.setdiff1d(train, chosen)])
        chosen = chosen[~np.isin(strata[chosen], lost)]
    return chosen


def choose_thresholds(
    threshold: Threshold, y: Int64, proba: Float64, held_out: Bool
) -> tuple[list[float], float]:
    """Return the threshold of every fold's model, and that of the mean of all models.

    The mean has a threshold of its own, since its probabilities are closer together than those of
    a single model.

    Args:
        threshold: the metric to choose by, or a fixed value.
        y: ``(n,)`` class numbers of validation records that no model was trained on.
        proba: ``(models, n)`` their probabilities of the second class.
        held_out: ``(models, n)`` bool, true for the records of the fold that a model is scored on;
            its own threshold is chosen on the others.
    """
    each = [threshold.choose(y[~held], p[~held]) for p, held in zip(proba, held_out, strict=True)]
    return each, threshold.choose(y, proba.mean(axis=0))
