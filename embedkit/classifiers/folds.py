"""Cross-validation under a split: fit on the other folds, predict each fold.

Everything that is fitted (scaling, components, vocabulary, parameters, thresholds) is fitted on the
training records of a fold; held-out records are only predicted.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from embedkit.classifiers.estimators import EstimatorSettings
from embedkit.classifiers.tuning import Choice, Fitted, fit, predict_proba, take
from embedkit.runs.metrics import Threshold
from embedkit.runs.predictions import Predictions
from embedkit.runs.split_files import Split
from embedkit.runs.targets import Target, check_folds
from embedkit.types import Float64, Int64, Progress, ProgressCallback, no_progress

__all__ = ["CrossValidation", "cross_validate", "side_by_side"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """Results of a cross-validation.

    Attributes:
        predictions: of every held-out record, once per repeat.
        choices: scaling and parameter by repeat and fold.
        final: the pipeline fitted on the records of all folds.
        fit_seconds: seconds that the folds took to fit, each counted by itself.
        predict_seconds: seconds to predict the held-out records.
    """

    predictions: Predictions
    choices: tuple[Choice, ...]
    final: Fitted
    fit_seconds: float
    predict_seconds: float


def cross_validate(
    features: Any,
    target: Target,
    split: Split,
    settings: EstimatorSettings,
    *,
    ids: Sequence[str] | NDArray[np.str_] | None = None,
    threshold: Threshold | None = None,
    tune: bool = True,
    threads: int | None = None,
    progress: ProgressCallback = no_progress,
) -> CrossValidation:
    """Fit and predict every fold, several at the same time, and fit the records of all folds.

    Args:
        features: ``(n, width)`` float32, or a list of texts.
        target: what is predicted.
        split: the folds.
        settings: of the estimator.
        ids: ids of the records; by default their row numbers.
        threshold: how one of two classes is decided on; ``None``: the likelier one. One that is
            chosen by a metric is chosen on predictions of inner folds.
        tune: choose scaling and parameter in inner folds.
        threads: number of fits at the same time; by default one for each core. It changes nothing
            in the results.
        progress: receives the number of fits that are done.
    """
    check_folds(target, split)
    ids = [str(row) for row in split.row] if ids is None else ids
    folds = [(r, f) for r in range(split.repeats) for f in range(split.n_folds)]
    subsets = [split.fold(repeat, fold) for repeat, fold in folds]
    held_out = tune or (threshold is not None and threshold.value is None)
    one = partial(_one_fold, features, target, split, settings, tune=tune, held_out=held_out)
    nobody = np.empty(0, np.int64)
    *fitted, final = side_by_side(
        [partial(one, *subset) for subset in [*subsets, (split.in_folds, nobody)]],
        threads=threads, progress=progress,
    )  # fmt: skip
    predictions = []
    for (repeat, fold), (train, test), result in zip(folds, subsets, fitted, strict=True):
        where: dict[str, Any] = {
            "row": split.row, "ids": ids, "group": split.group, "target": target, "fold": fold,
            "repeat": repeat, "word": split.word,
        }  # fmt: skip
        inner, cut = None, None if threshold is None else threshold.value
        if result.fitted.inner is not None:
            inner = Predictions.of_fold(train, result.fitted.inner, **where)
            if threshold is not None:
                cut = threshold.choose(inner.y, inner.proba[:, 1])
        predictions.append(
            Predictions.of_fold(test, result.proba, threshold=cut, inner=inner, **where)
        )
    return CrossValidation(
        Predictions.joined(predictions),
        tuple(result.fitted.choice for result in fitted),
        final.fitted,
        sum(result.fit_seconds for result in fitted),
        sum(result.predict_seconds for result in fitted),
    )


def side_by_side(
    tasks: Iterable[Callable[[], T]],
    *,
    threads: int | None = None,
    progress: ProgressCallback = no_progress,
) -> list[T]:
    """Return the results of several fits that run at the same time, each with one BLAS thread.

    Vectors of a few hundred columns are too small for products of several threads, which wait for
    each other longer than they compute; whole fits are independent.

    Args:
        tasks: the fits.
        threads: how many at the same time; by default one for each core.
        progress: receives the number of fits that are done.
    """
    from joblib import Parallel, delayed
    from scipy import linalg  # noqa: F401 - has a BLAS of its own, which is limited too
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import ThreadpoolController

    libraries = ThreadpoolController()  # looking for them takes as long as a small fit

    def one(task: Callable[[], T]) -> T:
        with libraries.limit(limits=1):  # OpenMP counts threads for each thread that calls it
            return task()

    waiting = list(tasks)
    found: list[T] = []
    with libraries.limit(limits=1), warnings.catch_warnings():
        # the weak end of a path may not converge; its inner score says what that is worth
        warnings.simplefilter("ignore", ConvergenceWarning)
        # filters are those of the process: one set by a thread ends when another thread's does
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        run = Parallel(n_jobs=threads or -1, prefer="threads", return_as="generator")
        for result in run(delayed(one)(task) for task in waiting):
            found.append(result)
            done = len(found)
            progress(Progress("fitting", done, len(waiting), "fits", done))
    return found


@dataclass(frozen=True, slots=True)
class _Fold:
    fitted: Fitted
    proba: Float64
    fit_seconds: float
    predict_seconds: float


def _one_fold(
    features: Any,
    target: Target,
    split: Split,
    settings: EstimatorSettings,
    train: Int64,
    test: Int64,
    *,
    tune: bool,
    held_out: bool,
) -> _Fold:
    started = time.perf_counter()
    fitted = fit(features, target, split, train, settings, tune=tune, held_out=held_out)
    trained = time.perf_counter()
    proba = np.empty((0, len(target.classes)) if target.classes else 0)
    if len(test):
        proba = predict_proba(fitted.pipeline, take(features, test), target)
    return _Fold(fitted, proba, trained - started, time.perf_counter() - trained)
