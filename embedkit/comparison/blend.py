"""Blend several runs: the mean of their probabilities, or a model stacked on them.

The stacked model is a logistic regression (for values: a ridge regression) on the log-odds of the
runs. For the records of a fold it is fitted on the out-of-fold predictions of the other folds, so
that a record's own label never helps to predict it. The runs themselves have seen that label when
they predicted the other folds; fitting them once more inside every fold would be needed to remove
this second-order dependence, which a model of so few weights can hardly use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embedkit.choices import BLENDS, check_choice
from embedkit.errors import OutputExistsError, UsageError
from embedkit.predict import predictions_of
from embedkit.prediction_files import (
    PredictedRecord,
    file_format,
    read_prediction_files,
    write_prediction_file,
)
from embedkit.runs.metrics import best_threshold
from embedkit.runs.predictions import Predictions, decide, fold_names
from embedkit.types import Float64, Int64

__all__ = ["Blend", "blend", "write_blend"]

_TINY = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Blend:
    """Several runs blended.

    Attributes:
        name: its name in tables.
        predictions: for the records of the runs.
        runs: number of runs.
        threshold: probability from which the second of two classes is predicted, chosen on all
            out-of-fold predictions; ``None``: the likeliest class is predicted.
        apply: probabilities of the runs for other records, in the order of the runs → blended ones.
    """

    name: str
    predictions: Predictions
    runs: int
    threshold: float | None
    apply: Callable[[Sequence[Float64]], Float64]


def blend(kind: str, runs: Sequence[Predictions], *, choose_threshold: bool = False) -> Blend:
    """Blend runs.

    Args:
        kind: one of :data:`~embedkit.choices.BLENDS`.
        runs: predictions of each run, for the same records.
        choose_threshold: choose a threshold for two classes, for every fold on the other folds.

    Raises:
        UsageError: the kind is unknown.
    """
    check_choice(BLENDS, blend=kind)
    proba, apply = _BLENDS[kind](runs)
    blended = runs[0].with_proba(proba)
    threshold = None
    if choose_threshold and len(blended.classes) == 2:
        y_pred, threshold = _decide_by_fold(blended)
        blended = blended.with_proba(proba, y_pred)
    return Blend(f"blend: {kind}", blended, len(runs), threshold, apply)


def write_blend(
    made: Blend,
    out: Path,
    *,
    answers: Sequence[Path] = (),
    overwrite: bool = False,
) -> int:
    """Write blended labels and probabilities, of the runs' records or of new ones.

    Args:
        made: the blend.
        out: ``.tsv``, ``.jsonl`` or ``.parquet`` file.
        answers: what ``predict`` wrote of new records, one file per run, in the order of the runs.
        overwrite: replace the file.

    Returns:
        Number of records.

    Raises:
        UsageError: the file has another ending, the runs predict values, or an answer is unusable.
        OutputExistsError: the file exists.
    """
    file_format(out, name="write_blend")
    if out.exists() and not overwrite:
        raise OutputExistsError(f"{out} exists. Choose another name, or pass overwrite=True.")
    classes = made.predictions.classes
    if answers and not classes:
        raise UsageError("answers= needs runs that predict labels; these predict values.")
    if answers and len(answers) != made.runs:
        raise UsageError(
            f"answers= has {len(answers)} files for {made.runs} runs. Give one file for every run, "
            "in their order."
        )
    records = _new_records(made, answers) if answers else _own_records(made.predictions)
    return write_prediction_file(records, classes, out, folds=not answers)


def _new_records(made: Blend, answers: Sequence[Path]) -> Iterator[PredictedRecord]:
    classes = made.predictions.classes
    rows, ids, found = read_prediction_files(answers, classes)
    proba = made.apply(found)
    y_pred = decide(proba, threshold=made.threshold)
    for row, identifier, one in zip(rows, ids, predictions_of(proba, y_pred, classes), strict=True):
        yield PredictedRecord(row, identifier, one)


def _own_records(predictions: Predictions) -> Iterator[PredictedRecord]:
    p = predictions.take(np.concatenate([predictions.first_repeat, predictions.test]))
    made = predictions_of(p.proba, p.y_pred, p.classes)
    for row, identifier, fold, one in zip(p.row, p.ids, fold_names(p.fold), made, strict=True):
        yield PredictedRecord(int(row), identifier, one, fold)


_Blended = tuple[Float64, Callable[[Sequence[Float64]], Float64]]


def _mean(runs: Sequence[Predictions]) -> _Blended:
    def apply(proba: Sequence[Float64]) -> Float64:
        return np.asarray(np.mean(np.stack(proba), axis=0), np.float64)

    return apply([run.proba for run in runs]), apply


def _stacked(runs: Sequence[Predictions]) -> _Blended:
    records = runs[0]
    X = _features([run.proba for run in runs])
    result = np.empty_like(records.proba)
    for train, test in records.folds():
        result[test] = _fitted(records, X, train)(X[test])
    whole = _fitted(records, X, records.out_of_fold)
    if len(records.test):
        result[records.test] = whole(X[records.test])
    return result, lambda proba: whole(_features(proba))


_BLENDS: dict[str, Callable[[Sequence[Predictions]], _Blended]] = {
    "mean": _mean,
    "stacked": _stacked,
}


def _fitted(records: Predictions, X: Float64, train: Int64) -> Callable[[Float64], Float64]:
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if not records.classes:
        values = make_pipeline(StandardScaler(), Ridge()).fit(X[train], records.y[train])
        return lambda given: np.asarray(values.predict(given), np.float64)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1_000))
    model.fit(X[train], records.y[train])
    known = model[-1].classes_  # a rare class may be missing from the other folds

    def apply(given: Float64) -> Float64:
        found = np.zeros((len(given), len(records.classes)))
        found[:, known] = model.predict_proba(given)
        return found

    return apply


def _features(proba: Sequence[Float64]) -> Float64:
    """Log-odds of every class but the last against it, of every run side by side."""
    if proba[0].ndim == 1:
        return np.stack(proba, axis=1)
    logs = [np.log(np.clip(one, _TINY, 1)) for one in proba]
    return np.concatenate([log[:, :-1] - log[:, -1:] for log in logs], axis=1)


def _decide_by_fold(p: Predictions) -> tuple[Int64, float]:
    """Predicted classes by thresholds chosen on the other folds, and the one chosen on all."""
    y_pred = np.empty(len(p.y), np.int64)
    for train, test in p.folds():
        y_pred[test] = decide(p.proba[test], threshold=_best(p, train))
    threshold = _best(p, p.out_of_fold)
    y_pred[p.test] = decide(p.proba[p.test], threshold=threshold)
    return y_pred, threshold


def _best(p: Predictions, index: Int64) -> float:
    return best_threshold(p.y[index], p.proba[index, 1], beta=1)
