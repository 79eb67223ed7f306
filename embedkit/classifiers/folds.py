"""Fit an estimator on some records, predict others; cross-validation under a split.

Everything that is fitted (scale, components, vocabulary, tuned parameters, thresholds) is fitted on
the training records of a fold; held-out records are only predicted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.classifiers.estimators import EstimatorSettings, build_estimator, param_grid
from embedkit.errors import UsageError, first_line
from embedkit.runs.metrics import Threshold
from embedkit.runs.predictions import Predictions
from embedkit.runs.split_files import Split
from embedkit.runs.splits import inner_folds
from embedkit.runs.targets import Target, check_folds
from embedkit.types import Float64, Int64, Progress, ProgressCallback, no_progress

__all__ = ["INNER_FOLDS", "cross_validate", "fit", "predict_proba", "take"]

INNER_FOLDS = 3


def cross_validate(
    features: Any,
    target: Target,
    split: Split,
    settings: EstimatorSettings,
    *,
    ids: Sequence[str] | NDArray[np.str_] | None = None,
    threshold: Threshold | None = None,
    tune: bool = False,
    progress: ProgressCallback = no_progress,
) -> tuple[Predictions, dict[str, float]]:
    """Fit on the other folds, predict each fold; every record is held out once per repeat.

    Args:
        features: ``(n, width)`` float32, or a list of texts.
        target: what is predicted.
        split: the folds.
        settings: of the estimator.
        ids: ids of the records; by default their row numbers.
        threshold: how one of two classes is decided on; ``None``: the likelier one.
        tune: choose parameters in inner folds.
        progress: receives the number of folds that are done.

    Returns:
        The predictions, and ``fit_seconds`` and ``predict_seconds``.
    """
    check_folds(target, split)
    ids = [str(row) for row in split.row] if ids is None else ids
    found: list[Predictions] = []
    cost = {"fit_seconds": 0.0, "predict_seconds": 0.0}
    for repeat in range(split.repeats):
        for fold in range(split.n_folds):
            train, test = split.fold(repeat, fold)
            where: dict[str, Any] = {"row": split.row, "ids": ids, "group": split.group,
                                     "target": target, "fold": fold, "repeat": repeat}  # fmt: skip
            started = time.perf_counter()
            estimator = fit(features, target, split, train, settings, tune=tune)
            inner, chosen = None, None if threshold is None else threshold.value
            if tune or (threshold is not None and chosen is None):
                proba = inner_proba(features, target, split, train, settings, tune=tune)
                inner = Predictions.of_fold(train, proba, **where)
                if threshold is not None:
                    chosen = threshold.choose(inner.y, inner.proba[:, 1])
            fitted = time.perf_counter()
            proba = predict_proba(estimator, take(features, test), target)
            cost["fit_seconds"] += fitted - started
            cost["predict_seconds"] += time.perf_counter() - fitted
            found.append(Predictions.of_fold(test, proba, threshold=chosen, inner=inner, **where))
            done, total = len(found), split.repeats * split.n_folds
            progress(Progress("fitting", done, total, "folds", done))
    return Predictions.joined(found), cost


def fit(
    features: Any,
    target: Target,
    split: Split,
    train: Int64,
    settings: EstimatorSettings,
    *,
    tune: bool,
) -> Any:
    """Return a pipeline fitted on the records ``train`` alone.

    Raises:
        UsageError: the estimator cannot be fitted on these records.
    """
    settings.check_count(len(train))
    pipeline = build_estimator(settings)
    X, y = take(features, train), target.y[train]
    with _fit_errors(settings, len(train)):
        if not tune:
            return pipeline.fit(X, y)
        from sklearn.model_selection import GridSearchCV

        inner = _inner(target, split, train, settings)
        fewest = min(len(inner_train) for inner_train, _ in inner)
        grid = param_grid(settings, records=fewest)
        search = GridSearchCV(pipeline, grid, scoring=_tuning_score(target), cv=inner)
        return search.fit(X, y).best_estimator_


def inner_proba(
    features: Any,
    target: Target,
    split: Split,
    train: Int64,
    settings: EstimatorSettings,
    *,
    tune: bool,
) -> Float64:
    """Return predictions for the records ``train``, each held out in one of their inner folds."""
    proba = np.empty((len(train), len(target.classes)) if target.classes else len(train))
    for inner_train, inner_test in _inner(target, split, train, settings):
        estimator = fit(features, target, split, train[inner_train], settings, tune=tune)
        X = take(features, train[inner_test])
        proba[inner_test] = predict_proba(estimator, X, target)
    return proba


def predict_proba(estimator: Any, X: Any, target: Target) -> Float64:
    """Return probabilities ``(n, classes)``, or values ``(n,)`` of a regression."""
    if not target.classes:
        return np.asarray(estimator.predict(X), np.float64)
    found = np.asarray(estimator.predict_proba(X), np.float64)
    if found.shape[1] == len(target.classes):
        return found
    whole = np.zeros((len(found), len(target.classes)))
    whole[:, estimator.classes_] = found  # inner training records may lack a rare class
    return whole


def take(features: Any, index: Int64) -> Any:
    """Return some records of a matrix or of a list of texts."""
    if isinstance(features, np.ndarray):
        return features[index]
    return [features[i] for i in index]


def _inner(
    target: Target, split: Split, train: Int64, settings: EstimatorSettings
) -> list[tuple[Int64, Int64]]:
    return inner_folds(target.strata[train], split.group[train], INNER_FOLDS, seed=settings.seed)


def _tuning_score(target: Target) -> Callable[[Any, Any, NDArray[Any]], float]:
    """What tuning maximises: the log-likelihood, or the negative mean squared error."""

    def score(estimator: Any, X: Any, y: NDArray[Any]) -> float:
        proba = predict_proba(estimator, X, target)
        if not target.classes:
            return -float(((y - proba) ** 2).mean())
        true = proba[np.arange(len(y)), y]
        return float(np.log(np.maximum(true, np.finfo(np.float64).eps)).mean())

    return score


@contextmanager
def _fit_errors(settings: EstimatorSettings, count: int) -> Iterator[None]:
    """Turn scikit-learn's error about records that it cannot be fitted on into a UsageError."""
    try:
        yield
    except ValueError as error:
        raise UsageError(
            f"estimator={settings.estimator!r} cannot be fitted on {count} training records: "
            f"{first_line(error)}."
        ) from error
