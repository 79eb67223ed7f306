"""Validation records, and the thresholds that are chosen on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from embedkit.runs.metrics import Threshold
from embedkit.runs.splits import assign_folds
from embedkit.types import Bool, Float64, Int64

__all__ = ["choose_thresholds", "validation_records"]

_DENOMINATOR = 20


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
