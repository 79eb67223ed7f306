"""Minimum description length of labels given vectors, by online coding.

Voita & Titov (2020), "Information-Theoretic Probing with Minimum Description Length", section 3.2.
The labels are sent in blocks, each encoded by a probe fitted on the blocks before it. The code is
short where the vectors make the labels easy to learn from few records.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from embedkit.classifiers.estimators import EstimatorSettings
from embedkit.classifiers.tuning import fit, predict_proba, take
from embedkit.errors import UsageError
from embedkit.runs.split_files import Split
from embedkit.runs.targets import Target
from embedkit.types import Int64

__all__ = ["block_ends", "online_codelength"]

_FRACTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
_FEWEST = 16
_UNIFORM = 1e-3


def online_codelength(
    features: Any, target: Target, split: Split, settings: EstimatorSettings
) -> float:
    """Return the bits that encode the labels of all records in folds.

    The first block is sent by a uniform code. Every probability is mixed with 0.001 of the uniform
    one, since a probe may exclude a class that its records lacked.

    Args:
        features: ``(n, width)`` float32.
        target: the classes.
        split: the records in folds are encoded; a group is never divided by two blocks.
        settings: of the probe; scaling and parameter are chosen inside each block's past.
    """
    if not target.classes:
        raise UsageError("a description length needs classes; leave it out for task='regression'.")
    order = _in_groups(split, settings.seed)
    classes = len(target.classes)
    ends = block_ends(len(order), classes)
    bits = ends[0] * np.log2(classes)
    for start, end in pairwise(ends):
        past, block = np.sort(order[:start]), order[start:end]
        known = np.unique(target.y[past])
        if len(known) == 1:
            proba = np.eye(classes)[np.repeat(known, len(block))]
        else:
            fitted = fit(features, target, split, past, settings, tune=True)
            proba = predict_proba(fitted.pipeline, take(features, block), target)
        true = proba[np.arange(len(block)), target.y[block]]
        bits -= np.log2((1 - _UNIFORM) * true + _UNIFORM / classes).sum()
    return float(bits)


def block_ends(count: int, classes: int) -> list[int]:
    """Return where the blocks end: at 0.1 % to 100 % of the records, 16 or 4 per class at least.

    >>> block_ends(1_000, 2)
    [16, 32, 62, 125, 250, 500, 1000]
    """
    fewest = min(max(_FEWEST, 4 * classes), count)
    ends = {int(fraction * count) for fraction in _FRACTIONS}
    return sorted({end for end in ends if end >= fewest} | {fewest, count})


def _in_groups(split: Split, seed: int) -> Int64:
    """The records in folds in random order, those of a group together."""
    index = split.in_folds
    _, group = np.unique(split.group[index], return_inverse=True)
    rank = np.random.default_rng(seed).permutation(group.max() + 1)
    return np.asarray(index[np.argsort(rank[group], kind="stable")], np.int64)
