"""Blend several runs: the mean of their probabilities, or a model stacked on them.

The stacked model of classes is a logarithmic pool: log-probabilities of the runs, weighted by run,
plus a shift of each class, chosen by log-loss (Genest and Zidek 1986, *Combining probability
distributions*); that of values a ridge regression. For the records of a fold it is fitted on
predictions that inner folds made for the training records of that fold: no model that made them has
seen the fold. Out-of-fold predictions would not do, since the models that predict the other folds
have been fitted on this one. A fine-tuned run has inner predictions for its validation records
alone; a blend with it is fitted on these. Runs without inner predictions can be stacked for new
records, but not for those of the folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.choices import BLENDS, check_choice
from embedkit.errors import OutputExistsError, UsageError
from embedkit.predict import predictions_of
from embedkit.prediction_files import (
    PredictedRecord,
    Submission,
    file_format,
    read_prediction_files,
    write_prediction_file,
)
from embedkit.runs.metrics import Threshold
from embedkit.runs.predictions import Predictions, decide, fold_names
from embedkit.types import Float64, Int64

__all__ = ["Blend", "blend", "write_blend"]

_TINY = 1e-6


_Apply = Callable[[Sequence[Float64]], Float64]
"""Probabilities of the runs for some records, in the order of the runs → blended ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Blend:
    """Several runs blended.

    Attributes:
        name: its name in tables.
        predictions: for the records of the runs.
        runs: number of runs.
        cross_fitted: whether there are predictions for the records of the folds; without them
            theirs are NaN.
        threshold: probability from which the second of two classes is predicted, for new records;
            ``None``: the likeliest class is predicted.
        apply: probabilities of the runs for other records, in the order of the runs → blended ones.
    """

    name: str
    predictions: Predictions
    runs: int
    cross_fitted: bool
    threshold: float | None
    apply: _Apply


def blend(kind: str, runs: Sequence[Predictions], *, threshold: Threshold | None = None) -> Blend:
    """Blend runs.

    Weights and thresholds for the records of a fold are learnt from inner predictions for its
    training records: of the records for which all runs have them. Where these are none, or of one
    class, a stacked blend has no predictions for the folds, and thresholds of the mean are chosen
    by out-of-fold predictions for the other folds.

    Args:
        kind: one of :data:`~embedkit.choices.BLENDS`.
        runs: predictions of each run, for the same records.
        threshold: how one of two classes is decided on; ``None``: the likelier one.

    Raises:
        UsageError: the kind is unknown.
    """
    check_choice(BLENDS, blend=kind)
    fit, records = _BLENDS[kind], runs[0]
    if len(records.classes) != 2:
        threshold = None
    has_inner = _have_inner(runs)
    cross_fitted = has_inner or fit is _mean
    proba = np.full(records.proba.shape, np.nan)
    y_pred = decide(proba)
    for train, test in records.folds() if cross_fitted else ():
        known, y = _inner(runs, test) if has_inner else (_of(runs, train), records.y[train])
        apply = fit(known, y, records.classes)
        proba[test] = apply(_of(runs, test))
        chosen = threshold.choose(y, apply(known)[:, 1]) if threshold else None
        y_pred[test] = decide(proba[test], threshold=chosen)
    index, test = records.out_of_fold, records.test
    apply = fit(_of(runs, index), records.y[index], records.classes)
    final = None
    if threshold is not None:
        positive = proba[index] if cross_fitted else apply(_of(runs, index))
        final = threshold.choose(records.y[index], positive[:, 1])
    if len(test):
        proba[test] = apply(_of(runs, test))
        y_pred[test] = decide(proba[test], threshold=final)
    blended = records.with_proba(proba, y_pred)
    return Blend(f"blend: {kind}", blended, len(runs), cross_fitted, final, apply)


def _of(runs: Sequence[Predictions], index: Int64) -> list[Float64]:
    return [run.proba[index] for run in runs]


def _have_inner(runs: Sequence[Predictions]) -> bool:
    """Whether all runs have inner predictions for common records of two classes in every fold."""
    if any(run.inner is None for run in runs):
        return False
    return all(len(np.unique(_inner(runs, test)[1])) > 1 for _, test in runs[0].folds())


def _inner(runs: Sequence[Predictions], test: Int64) -> tuple[list[Float64], NDArray[Any]]:
    """Inner predictions of all runs for the same training records of a fold, and their labels."""
    fold, repeat = runs[0].fold[test[0]], runs[0].repeat[test[0]]
    inner = [run.inner for run in runs if run.inner is not None]
    here = [p.take(np.flatnonzero((p.fold == fold) & (p.repeat == repeat))) for p in inner]
    keys = reduce(np.intersect1d, [p.keys for p in here])
    here = [p.take(np.searchsorted(p.keys, keys)) for p in here]
    return [p.proba for p in here], here[0].y


def write_blend(
    made: Blend,
    out: Path,
    *,
    answers: Sequence[Path] = (),
    submission: Submission | None = None,
    overwrite: bool = False,
) -> int:
    """Write blended labels and probabilities, of the runs' records or of new ones.

    Args:
        made: the blend.
        out: ``.tsv``, ``.csv``, ``.jsonl`` or ``.parquet`` file.
        answers: what ``predict`` wrote of new records, one file per run, in the order of the runs.
        submission: names of the columns of id and label, where only these are written, of the
            test set or the new records.
        overwrite: replace the file.

    Returns:
        Number of records.

    Raises:
        UsageError: the file has another ending, the runs predict values, an answer is unusable, or
            the blend has no predictions for the records of the runs.
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
    of_words = made.predictions.of_words
    if of_words and (answers or submission is not None):
        name = "answers" if answers else "submission"
        raise UsageError(f"{name}= is for runs that label records; these label words.")
    test_only = submission is not None
    records = _new_records(made, answers) if answers else _own_records(made, test_only=test_only)
    return write_prediction_file(
        records, classes, out, folds=not answers, words=("word",) if of_words else (),
        submission=submission,
    )  # fmt: skip


def _new_records(made: Blend, answers: Sequence[Path]) -> Iterator[PredictedRecord]:
    classes = made.predictions.classes
    rows, ids, found = read_prediction_files(answers, classes)
    proba = made.apply(found)
    y_pred = decide(proba, threshold=made.threshold)
    for row, identifier, one in zip(rows, ids, predictions_of(proba, y_pred, classes), strict=True):
        yield PredictedRecord(row, identifier, one)


def _own_records(made: Blend, *, test_only: bool) -> Iterator[PredictedRecord]:
    p = made.predictions
    if test_only and not len(p.test):
        raise UsageError(
            "submission= is of a test set, and the runs have none. Pass answers= for new records, "
            "or make the runs with test=."
        )
    if test_only:
        p = p.take(p.test)
    p = p.take(np.concatenate([p.first_repeat if made.cross_fitted else p.test[:0], p.test]))
    if not len(p.row):
        raise UsageError(
            f"{made.name} has no predictions for the folds, since the runs have no inner "
            "predictions for common records. Train with tune=True, fine-tune with the same "
            "validation= above 0, blend their mean, or pass answers= for new records."
        )
    found = predictions_of(p.proba, p.y_pred, p.classes)
    words = p.word.tolist() if p.of_words else [None] * len(p.row)
    for row, identifier, fold, one, word in zip(
        p.row, p.ids, fold_names(p.fold), found, words, strict=True
    ):
        yield PredictedRecord(int(row), identifier, one, fold, word)


def _mean(proba: Sequence[Float64], y: NDArray[Any], classes: Sequence[str]) -> _Apply:
    return lambda given: np.asarray(np.mean(np.stack(given), axis=0), np.float64)


def _stacked(proba: Sequence[Float64], y: NDArray[Any], classes: Sequence[str]) -> _Apply:
    """A ridge regression on the values of the runs; for classes, their logarithmic pool.

    The pool has one weight per run and one shift per class, whatever the number of classes, and
    shrinks to the geometric mean of the runs where records are few.
    """
    if not classes:
        from sklearn.linear_model import Ridge
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        values = make_pipeline(StandardScaler(), Ridge()).fit(np.stack(proba, axis=1), y)
        return lambda given: np.asarray(values.predict(np.stack(given, axis=1)), np.float64)
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    runs, records = len(proba), np.arange(len(y))

    def pooled(parameters: Float64, logs: Float64) -> Float64:
        scores = np.tensordot(parameters[:runs], logs, axes=1) + parameters[runs:]
        return np.asarray(log_softmax(scores, axis=1), np.float64)

    start = np.concatenate([np.full(runs, 1 / runs), np.zeros(len(classes))])
    known = _logs(proba)

    def penalised(parameters: Float64) -> tuple[float, Float64]:
        found, away = pooled(parameters, known), parameters - start
        residual = np.exp(found)
        residual[records, y] -= 1
        gradient = np.concatenate([np.tensordot(known, residual, axes=2), residual.sum(axis=0)])
        return float(away @ away / 2 - found[records, y].sum()), gradient + away

    best = minimize(penalised, start, jac=True, method="L-BFGS-B").x
    return lambda given: np.exp(pooled(best, _logs(given)))


_BLENDS = {"mean": _mean, "stacked": _stacked}


def _logs(proba: Sequence[Float64]) -> Float64:
    """Logarithms of probabilities: runs × records × classes."""
    return np.asarray(np.log(np.clip(np.stack(proba), _TINY, 1)), np.float64)
