"""Blends of runs: the mean of their probabilities, or a model stacked on them.

The stacked model of classes is a logarithmic pool: log-probabilities of the runs, weighted by run,
plus a shift of each class, chosen by their loss and a penalty (Genest and Zidek 1986, *Combining
probability distributions*); for numeric targets it is a ridge regression. For the records of a fold
it is fitted on predictions that inner folds made for the training records of that fold: no model
that made them has seen the fold. Out-of-fold predictions would leak, since the models that predict
the other folds have been fitted on this one. A fine-tuned run has inner predictions for its
validation records alone; a blend with it is fitted on these. Runs without inner predictions can be
stacked for new records, but not for those of the folds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embedkit.comparison.load import LoadedRun
from embedkit.errors import Message, Option, UsageError
from embedkit.prediction_files import (
    Submission,
    predictions_of,
    read_prediction_files,
    with_columns,
    write_prediction_file,
)
from embedkit.runs.metrics import Threshold, beta_of
from embedkit.runs.predictions import Predictions, decide, fold_names
from embedkit.runs.run import PredictionRun
from embedkit.types import Float64, Int64

# the least probability whose logarithm is pooled: a run that is certain and wrong must not outvote
# all others by a log of 0
_TINY = 1e-6

_Apply = Callable[[Sequence[Float64]], Float64]
"""Probabilities of the runs for some records, in the order of the runs → blended ones."""

logger = logging.getLogger(__name__)


class Blend(NamedTuple):
    """Several runs blended."""

    name: str
    predictions: Predictions  # for the records of the runs
    runs: tuple[str, ...]  # their names
    cross_fitted: bool  # there are predictions for the records of the folds, not NaN
    threshold: float | None  # of the second of two classes, for new records
    apply: _Apply
    separator: str = ""  # between the classes of a set


def blend(kind: str, models: Sequence[LoadedRun], *, threshold: Threshold | None = None) -> Blend:
    """Blend runs that hold a model, by one of :data:`~embedkit.choices.BLENDS`.

    Weights and thresholds for the records of a fold are learnt from inner predictions for its
    training records, where all runs have them. Without them, or with those of one class alone, a
    stacked blend has no predictions for the folds, and thresholds of the mean are chosen by
    out-of-fold predictions for the other folds. Without a threshold the likelier class is
    predicted, and of sets each class that is likelier than not.
    """
    fit, runs = _BLENDS[kind], [model.predictions for model in models]
    records = runs[0]
    if len(records.classes) != 2:
        threshold = None

    def outputs(index: Int64) -> list[Float64]:
        return [run.proba[index] for run in runs]

    folds = records.folds()
    # an intercept cannot be fitted to one class alone, as it may be among few validation records
    has_inner = all(run.inner is not None for run in runs) and all(
        len(np.unique(_inner(runs, test)[1])) > 1 for _, test in folds
    )
    # a mean learns nothing, so that it cannot leak whatever it is applied to
    cross_fitted = has_inner or fit is _mean
    # NaN is what no blend has predicted: write_blend and compare leave these records out
    proba = np.full(records.proba.shape, np.nan)
    y_pred = decide(proba, sets=records.of_sets)
    for train, test in folds if cross_fitted else ():
        # without inner predictions this is the mean, of which the threshold alone is learnt
        inputs, y = _inner(runs, test) if has_inner else (outputs(train), records.y[train])
        apply = fit(inputs, y, records.classes)
        proba[test] = apply(outputs(test))
        # of a single fold nothing is left to choose by
        chosen = threshold.choose(y, apply(inputs)[:, 1]) if threshold and len(y) else None
        y_pred[test] = decide(proba[test], threshold=chosen, sets=records.of_sets)
    # for new records all out-of-fold predictions may be used: no model behind them has seen its
    # record, and the new ones are in no fold
    index, test = records.out_of_fold, records.test
    apply = fit(outputs(index), records.y[index], records.classes)
    final = None
    if threshold is not None:
        # the threshold is chosen on blended probabilities that are as honest as those it will meet
        positive = proba[index] if cross_fitted else apply(outputs(index))
        final = threshold.choose(records.y[index], positive[:, 1])
    if len(test):
        proba[test] = apply(outputs(test))
        y_pred[test] = decide(proba[test], threshold=final, sets=records.of_sets)
    blended = records.with_proba(proba, y_pred)
    parts = blended, tuple(model.name for model in models), cross_fitted, final, apply
    return Blend(f"blend: {kind}", *parts, models[0].content.separator)


def threshold_of(metric: str, contents: Sequence[PredictionRun]) -> Threshold | None:
    """Threshold of blends: by the metric asked for, else by that of the runs, or F1 if many."""
    if beta_of(metric) is not None:
        return Threshold(None, beta_of(metric))
    if all(content.threshold is None for content in contents):
        return None
    if metric == "macro_f1":
        return Threshold(None, None)
    chosen = {name for content in contents if (name := content.threshold_metric)}
    return Threshold.parse(chosen.pop() if len(chosen) == 1 else "f1")


def _inner(runs: Sequence[Predictions], test: Int64) -> tuple[list[Float64], NDArray[Any]]:
    """Inner predictions of all runs for the same training records of a fold, and their labels."""
    fold = runs[0].fold[test[0]]
    inner = [run.inner for run in runs if run.inner is not None]
    places = [np.flatnonzero(p.fold == fold) for p in inner]
    keys = [p.keys[place] for p, place in zip(inner, places, strict=True)]
    # runs may have inner predictions for other records: all of a tuned estimator, the validation
    # records of a fine-tuned one
    common = reduce(partial(np.intersect1d, assume_unique=True), keys)
    # predictions are ordered by key, also those of one fold, so that places can be searched
    places = [at[np.searchsorted(of, common)] for at, of in zip(places, keys, strict=True)]
    return [p.proba[at] for p, at in zip(inner, places, strict=True)], inner[0].y[places[0]]


def _mean(proba: Sequence[Float64], y: NDArray[Any], classes: Sequence[str]) -> _Apply:
    return _averaged


# functions of the module, which can be pickled, as what compare returns
def _averaged(values: Sequence[Float64]) -> Float64:
    return np.asarray(np.mean(np.stack(values), axis=0), np.float64)


def _stacked(proba: Sequence[Float64], y: NDArray[Any], classes: Sequence[str]) -> _Apply:
    """A ridge regression on the values of the runs; for classes, their logarithmic pool.

    The pool has one weight per run and one shift per class, whatever the number of classes, and
    shrinks to the geometric mean of the runs where records are few.
    """
    if not classes:
        from sklearn.linear_model import Ridge
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        ridge = make_pipeline(StandardScaler(), Ridge()).fit(np.stack(proba, axis=1), y)
        return partial(_by_ridge, ridge)
    start = np.concatenate([np.full(len(proba), 1 / len(proba)), np.zeros(len(classes))])
    # at the start the pool is the geometric mean; the penalty is the distance to it, so that few
    # records stay near
    return partial(_by_pool, _penalised(_logs(proba), y, start))


def _by_ridge(ridge: Any, values: Sequence[Float64]) -> Float64:
    return np.asarray(ridge.predict(np.stack(values, axis=1)), np.float64)


def _by_pool(parameters: Float64, values: Sequence[Float64]) -> Float64:
    return np.exp(_pooled(parameters, _logs(values)))


def _logs(values: Sequence[Float64]) -> Float64:
    return np.asarray(np.log(np.clip(np.stack(values), _TINY, 1)), np.float64)


def _pooled(parameters: Float64, logs: Float64) -> Float64:
    """Log-probabilities ``(n, classes)`` of a pool of ``(runs, n, classes)`` logarithms.

    ``parameters`` are a weight for each run, and behind them a shift for each class.
    """
    from scipy.special import log_softmax

    # (runs) × (runs, n, classes) → (n, classes), a shift of each class added
    scores = np.tensordot(parameters[: len(logs)], logs, axes=1) + parameters[len(logs) :]
    return np.asarray(log_softmax(scores, axis=1), np.float64)


def _penalised(logs: Float64, y: NDArray[Any], start: Float64) -> Float64:
    """The parameters of a pool that minimise loss and penalty.

    The loss is the sum over the records of -log of the probability of the true class, the penalty
    half the squared distance from a start. By Newton's method, since both are convex: a few steps,
    and no import of ``scipy.optimize``, which takes longer than the search.
    """

    def loss(parameters: Float64) -> tuple[float, Float64]:
        log_proba, away = _pooled(parameters, logs), parameters - start
        return float(away @ away / 2 - log_proba[np.arange(len(y)), y].sum()), log_proba

    best = start
    value, log_proba = loss(best)
    for _ in range(100):  # it takes five to ten
        p = np.exp(log_proba)
        # logarithms less their mean by p, times p: what the scores' covariances are made of
        spread = (logs - (logs * p).sum(axis=2, keepdims=True)) * p
        of_runs, cross = np.tensordot(spread, logs, axes=([1, 2], [1, 2])), spread.sum(axis=1)
        of_classes = np.diag(p.sum(axis=0)) - p.T @ p
        curvature = np.eye(len(start)) + np.block([[of_runs, cross], [cross.T, of_classes]])
        # the gradient of log-loss by the scores is p - 1 at the true class, p elsewhere
        p[np.arange(len(y)), y] -= 1
        gradient = np.concatenate([np.tensordot(logs, p, axes=2), p.sum(axis=0)]) + best - start
        step = np.linalg.solve(curvature, gradient)
        promised = float(gradient @ step)
        # here the steps square their errors: after this one there is nothing left to gain
        if promised <= 1e-9 * (1 + value):
            return best - step
        size, after = 1.0, loss(best - step)
        # further away a whole step may lead too far
        while after[0] > value - size * promised / 4:
            size /= 2
            after = loss(best - size * step)
        best, (value, log_proba) = best - size * step, after
    return best


_BLENDS = {"mean": _mean, "stacked": _stacked}


def write_blend(
    method: Blend,
    out: Path,
    *,
    answers: Sequence[Path] = (),
    submission: Submission | None = None,
    overwrite: bool = False,
) -> int:
    """Write blended labels and probabilities of the runs' records, or of new ones; return how many.

    ``answers`` are files that ``predict`` wrote for new records, one per run, in their order. A
    ``submission`` is of the test set or of new records alone.
    """
    p = method.predictions
    stems = tuple(path.stem for path in answers)
    # nothing in a file of predictions tells whose they are but its name, if it is a run's
    mixed_up = sorted(stems) == sorted(method.runs) and stems != method.runs
    if answers and (len(stems) != len(method.runs) or mixed_up):
        order = ", ".join(method.runs)
        raise UsageError(f"expected a file for every run, in their order: {order}.", answers=...)
    if len({path.resolve() for path in answers}) < len(answers):
        raise UsageError("one file stands there twice. Give one for every run.", answers=...)
    if p.of_words and (answers or submission is not None):
        name = "answers" if answers else "submission"
        raise UsageError("it is for runs that label records; these label words.", **{name: ...})
    if answers:
        rows, ids, inputs = read_prediction_files(answers, p.classes, sets=p.of_sets)
        proba = method.apply(inputs)
        y_pred = decide(proba, threshold=method.threshold, sets=p.of_sets)
        columns: dict[str, Any] = {"row": rows, "id": ids}
    else:
        p = _own_records(method, test_only=submission is not None)
        proba, y_pred = p.proba, p.y_pred
        words = {"word": p.word.tolist()} if p.of_words else {}
        columns = {"row": p.row.tolist(), "id": p.ids, **words, "fold": fold_names(p.fold)}
    predicted = predictions_of(proba, y_pred, p.classes, separator=method.separator)
    return write_prediction_file(
        with_columns(predicted, **columns),
        p.classes,
        out,
        extra_columns=[name for name in columns if name not in ("row", "id")],
        submission=submission,
        overwrite=overwrite,
    )


def _own_records(method: Blend, *, test_only: bool) -> Predictions:
    """The predictions for the records of the runs that a file can have."""
    p = method.predictions
    if test_only and not len(p.test):
        raise UsageError(
            f"it is of a test set, which not all runs have. Pass {Option('answers')} for new "
            f"records, or make all runs with {Option('test', of='train')}.",
            submission=...,
        )
    folds = p.out_of_fold if method.cross_fitted and not test_only else p.test[:0]
    p = p.take(np.concatenate([folds, p.test]))
    if not len(p.row):
        raise UsageError(
            f"{method.name} has no predictions for the folds, since the runs have too few inner "
            f"predictions in common. Train with {Option('tune', True, of='train')}, fine-tune with "
            f"the same {Option('validation', of='finetune')}, blend their mean, or pass "
            f"{Option('answers')} for new records."
        )
    if test_only and list(map(str, p.ids)) == list(map(str, p.row.tolist())):
        # they may be right; who joins answers by ids of another kind would join the wrong records
        problem = "the ids of the submission are numbers of rows. If the test set has a column of"
        remedy = f"name it where the runs or their dataset are made: {Option('id', of='extract')}"
        logger.warning(Message(f"{problem} ids, {remedy}"))
    return p
