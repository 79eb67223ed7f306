"""The MTEB classification protocol, to check an installation against published figures.

Vectors of the test part are computed once. Ten times, a few records of every label are drawn from
the training part, a logistic regression is fitted on them, and the test part is scored; the mean is
reported. The draws repeat those of MTEB: the list of records is shuffled again by a generator that
starts from 42 every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.dataset.store import VectorData, load
from embedkit.errors import UsageError
from embedkit.runs.reencoding import check_alike, made_how
from embedkit.runs.splits import check_labelled

__all__ = ["ProtocolResult", "mteb_protocol"]

_SEED = 42


@dataclass(frozen=True, slots=True)
class ProtocolResult:
    """Means over the experiments, and accuracy of each."""

    accuracy: float
    macro_f1: float
    experiments: tuple[float, ...]


def mteb_protocol(
    train: str | Path,
    test: str | Path,
    *,
    view: str | Sequence[str] | None = None,
    samples_per_label: int = 8,
    experiments: int = 10,
    normalize: bool = True,
) -> ProtocolResult:
    """Score a view by the protocol.

    Args:
        train: dataset of the training part, with labels.
        test: dataset of the test part, with labels.
        view: a stored view; by default the last mean.
        samples_per_label: records of every label in each experiment.
        experiments: number of experiments.
        normalize: scale vectors to length 1 (L2) first, as most published pipelines do.

    Raises:
        UsageError: a dataset has no labels, or too few of one.
        MismatchError: the vectors of the two were made otherwise.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score

    if samples_per_label < 1 or experiments < 1:
        raise UsageError("--samples-per-label and --experiments: expected 1 or more.")
    known, asked = load(train, view), load(test, view)
    check_alike(made_how(asked), made_how(known), name=str(test))
    y, y_test = _labels(known), _labels(asked)
    X, X_test = _scaled(known.X, normalize), _scaled(asked.X, normalize)
    names, counts = np.unique(y, return_counts=True)
    if len(names) < 2:
        raise UsageError(f"{train}: all records have the label {str(names[0])!r}.")
    if counts.min() < samples_per_label:
        rare = str(names[np.argmin(counts)])
        raise UsageError(
            f"{train}: label {rare!r} has {counts.min()} records, fewer than the "
            f"{samples_per_label} of --samples-per-label."
        )
    order = list(range(len(y)))
    accuracies, f1 = [], []
    for _ in range(experiments):
        np.random.RandomState(_SEED).shuffle(order)
        drawn = _first_of_each(order, y, samples_per_label)
        learner = LogisticRegression(max_iter=100, random_state=_SEED).fit(X[drawn], y[drawn])
        said = learner.predict(X_test)
        accuracies.append(float((said == y_test).mean()))
        f1.append(float(f1_score(y_test, said, average="macro")))
    return ProtocolResult(float(np.mean(accuracies)), float(np.mean(f1)), tuple(accuracies))


def _labels(data: VectorData) -> NDArray[Any]:
    check_labelled(data.column("label"), data.row, name=str(data.path))
    return data.y


def _first_of_each(order: Sequence[int], y: NDArray[Any], count: int) -> list[int]:
    taken: dict[str, int] = {}
    drawn = []
    for i in order:
        if taken.get(y[i], 0) < count:
            taken[y[i]] = taken.get(y[i], 0) + 1
            drawn.append(i)
    return drawn


def _scaled(X: NDArray[np.float32], normalize: bool) -> NDArray[np.float32]:
    if not normalize:
        return X
    return np.asarray(X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12), np.float32)
