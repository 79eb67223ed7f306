"""The MTEB classification protocol, to compare an installation with published figures.

    python -m benchmarks.mteb TRAIN TEST [--view mean_-1] [--samples-per-label 16]

TRAIN and TEST are datasets with labels that ``extract`` wrote. Ten times, a few records of every
label are sampled from TRAIN, a logistic regression is fitted on them, and TEST is scored; the mean
is printed. The samples are those of MTEB: the list of records is shuffled again by a generator
that starts from 42 every time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.arguments import accepts
from embedkit.dataset.read import VectorData, has_label, load
from embedkit.errors import UsageError
from embedkit.records import Positive
from embedkit.runs.folder import check_alike, dataset_content

_SEED = 42


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("train", metavar="TRAIN")
    parser.add_argument("test", metavar="TEST")
    parser.add_argument("--view", help="Stored view; several with commas. [last mean]")
    parser.add_argument("--samples-per-label", type=int, default=8)
    parser.add_argument("--experiments", type=int, default=10)
    parser.add_argument("--no-normalize", dest="normalize", action="store_false")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = mteb_protocol(
        options.train,
        options.test,
        view=options.view.split(",") if options.view else None,
        samples_per_label=options.samples_per_label,
        experiments=options.experiments,
        normalize=options.normalize,
    )
    if options.json:
        print(json.dumps(asdict(found)))
        return
    print(
        f"accuracy {found.accuracy:.4f}, macro-F1 {found.macro_f1:.4f}; of "
        f"{len(found.experiments)} experiments, accuracy {min(found.experiments):.4f} to "
        f"{max(found.experiments):.4f}"
    )


@dataclass(frozen=True, slots=True)
class ProtocolResult:
    """Means over the experiments, and accuracy of each."""

    accuracy: float
    macro_f1: float
    experiments: tuple[float, ...]


@accepts()
def mteb_protocol(
    train: str | Path,
    test: str | Path,
    *,
    view: str | Sequence[str] | None = None,
    samples_per_label: Positive = 8,
    experiments: Positive = 10,
    normalize: bool = True,
) -> ProtocolResult:
    """Score a view by the protocol.

    Args:
        train: dataset of the training set, with labels.
        test: dataset of the test set, with labels.
        view: a stored view; by default the last mean.
        samples_per_label: records of every label in each experiment.
        experiments: number of experiments.
        normalize: scale vectors to length 1 (L2) first, as most published pipelines do.

    Raises:
        UsageError: a dataset has no labels, or too few of one.
        MismatchError: the vectors of the two were made with different settings.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score

    train_data, test_data = load(train, view), load(test, view)
    check_alike(test_data, dataset_content(train_data), name=str(test), vectors=True)
    y, y_test = _labels(train_data), _labels(test_data)
    X, X_test = _scaled(train_data.X, normalize), _scaled(test_data.X, normalize)
    names, counts = np.unique(y, return_counts=True)
    if len(names) < 2:
        raise UsageError(f"{train}: all records have the label {str(names[0])!r}.")
    if counts.min() < samples_per_label:
        rare = str(names[np.argmin(counts)])
        raise UsageError(
            f"{train}: label {rare!r} has {counts.min()} records, fewer than the "
            f"samples_per_label={samples_per_label}."
        )
    order = list(range(len(y)))
    accuracies, f1 = [], []
    for _ in range(experiments):
        np.random.RandomState(_SEED).shuffle(order)
        drawn = _first_of_each(order, y, samples_per_label)
        estimator = LogisticRegression(max_iter=100, random_state=_SEED).fit(X[drawn], y[drawn])
        y_pred = estimator.predict(X_test)
        accuracies.append(float((y_pred == y_test).mean()))
        f1.append(float(f1_score(y_test, y_pred, average="macro")))
    return ProtocolResult(float(np.mean(accuracies)), float(np.mean(f1)), tuple(accuracies))


def _labels(data: VectorData) -> NDArray[Any]:
    if not all(map(has_label, data.column("label"))):
        raise UsageError(f"{data.path}: some records have no label.")
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


if __name__ == "__main__":
    main()
