"""Fit an estimator, with scaling and regularisation chosen in inner folds of its training records.

The values of the parameter form a path from strong to weak regularisation. It is followed until the
inner score gets worse. For logistic regression each fit starts from the coefficients of the one
before, and the inner predictions also choose a slope, by which the coefficients are multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.classifiers.estimators import (
    EstimatorSettings,
    build_estimator,
    build_features,
    parameter_of,
    scalings_of,
)
from embedkit.classifiers.logistic import (
    LogisticPath,
    Preconditioner,
    calibration_slope,
    in_row_space,
    scale_coefficients,
    with_slope,
)
from embedkit.errors import UsageError, first_line
from embedkit.runs.metrics import (
    LOWER_IS_BETTER,
    best_threshold,
    beta_of,
    classification_metrics,
    regression_metrics,
)
from embedkit.runs.predictions import decide
from embedkit.runs.split_files import Split
from embedkit.runs.splits import inner_folds
from embedkit.runs.targets import Target, class_prior
from embedkit.types import Float64, Int64

__all__ = ["Choice", "Fitted", "fit", "predict_others", "predict_proba", "take"]

_INNER_FOLDS, _FEW, _INNER_FOLDS_OF_FEW = 3, 1_000, 5
_ERRORS = 2.0
_ALL = slice(None)
_ROUNDS, _MAX_ROUNDS, _ROUNDS_PATIENCE = 100, 1_000, 30


@dataclass(frozen=True, slots=True)
class Choice:
    """What tuning chose for one fit.

    Attributes:
        scaling: a key of :data:`~embedkit.classifiers.estimators.SCALINGS`.
        value: of the estimator's parameter.
        rounds: number of trees, where early stopping chooses it.
        slope: that the coefficients of a logistic regression were multiplied by; 1 without tuning.
        score: inner score, higher is better; NaN without tuning.
        at_edge: whether the value is the first or last of its grid.
    """

    scaling: str
    value: Any
    rounds: int | None = None
    slope: float = 1.0
    score: float = float("nan")
    at_edge: bool = False


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fitted pipeline.

    Attributes:
        pipeline: its input is ``(m, width)`` float32, or a list of texts.
        choice: scaling and parameter.
        inner: ``(n, classes)`` probabilities or ``(n,)`` values of the training records, each
            predicted by an inner fold that did not hold it; ``None`` where nothing asked for them.
    """

    pipeline: Any
    choice: Choice
    inner: Float64 | None = None


def fit(
    features: Any,
    target: Target,
    split: Split,
    train: Int64,
    settings: EstimatorSettings,
    *,
    tune: bool,
    choice: Choice | None = None,
    held_out: bool = False,
) -> Fitted:
    """Return a pipeline fitted on the records ``train`` alone.

    Args:
        features: ``(n, width)`` float32, or a list of texts.
        target: what is predicted.
        split: its groups are never divided by inner folds.
        train: indices of the training records.
        settings: of the estimator.
        tune: choose scaling and parameter in inner folds, if each of them has records of two
            classes to be trained on; else they are the default ones.
        choice: use these instead.
        held_out: also predict each training record by an inner fold without it.

    Raises:
        UsageError: the estimator cannot be fitted on these records.
    """
    row = settings.row
    if len(train) < row.min_records:
        raise UsageError(
            f"estimator={settings.estimator!r} needs {row.min_records} training records or more; "
            f"there are {len(train)}. Take another estimator."
        )
    records = _Records(take(features, train), target, split, train, settings)
    with _fit_errors(settings, len(train)):
        inner = None
        if tune and choice is None and records.tunable:
            choice, inner = records.search()
        choice = choice or Choice(
            scalings_of(settings)[0], row.default, _ROUNDS if row.rounds else None
        )
        if held_out and inner is None:
            folds = records.folds(choice.scaling)
            inner, _ = records.predict(folds, choice.value, choice.rounds, choice.slope)
        return Fitted(records.final(choice), choice, inner)


def predict_others(
    fitted: Fitted,
    features: Any,
    others: Sequence[Target],
    split: Split,
    train: Int64,
    test: Int64,
    settings: EstimatorSettings,
) -> tuple[Float64, ...]:
    """Return what the same fit predicts, made for other targets of the same records.

    Args:
        fitted: of :func:`fit`; its steps in front of the estimator are used as they are.
        features: as for :func:`fit`.
        others: each is what is predicted once.
        split: as for :func:`fit`.
        train: indices of the training records.
        test: indices of the records to predict.
        settings: as for :func:`fit`.
    """
    before = fitted.pipeline[:-1]
    X, X_test = (before.transform(take(features, rows)) for rows in (train, test))
    found, shared = [], None
    for target in others:
        with _fit_errors(settings, len(train)):
            if settings.row.path is not None:
                shared = shared or Preconditioner.of(X)
            records = _Records(X, target, split, train, settings)
            again = records.estimator(X, fitted.choice, shared)
            found.append(predict_proba(again, X_test, target))
    return tuple(found)


def predict_proba(pipeline: Any, X: Any, target: Target) -> Float64:
    """Return probabilities ``(n, classes)``, or values ``(n,)`` of a regression."""
    if not target.classes:
        return np.asarray(pipeline.predict(X), np.float64)
    found = np.asarray(pipeline.predict_proba(X), np.float64)
    found /= found.sum(1, keepdims=True)  # some add up to 1 in float32 only
    if found.shape[1] == len(target.classes):
        return found
    whole = np.zeros((len(found), len(target.classes)))
    whole[:, pipeline.classes_] = found  # inner training records may lack a rare class
    return whole


def take(features: Any, index: Int64) -> Any:
    """Return some records of a matrix or of a list of texts."""
    if isinstance(features, np.ndarray):
        return features[index]
    return [features[i] for i in index]


@dataclass(frozen=True, slots=True)
class _Fold:
    """An inner fold: transformed features, indices into the training records, and an estimator.

    The estimator is a path where the row of the table has one.
    """

    X: Any
    X_test: Any
    train: Int64
    test: Int64
    estimator: Any


class _Records:
    """The training records of one fit, and their inner folds."""

    def __init__(
        self, X: Any, target: Target, split: Split, train: Int64, settings: EstimatorSettings
    ) -> None:
        self._X, self._y, self._target = X, target.y[train], target
        self._settings, self._row = settings, settings.row
        self._strata, self._group = target.strata[train], split.group[train]
        self._calibrated = self._row.calibrated and bool(target.classes)
        self._n_folds = _INNER_FOLDS_OF_FEW if len(train) < _FEW else _INNER_FOLDS
        self._weight: Float64 | None = None
        if settings.class_weight is not None:
            from sklearn.utils.class_weight import compute_sample_weight

            self._weight = compute_sample_weight(settings.class_weight, self._y)

    @property
    def tunable(self) -> bool:
        """Whether every inner fold is trained on two classes, as an estimator needs."""
        if not self._target.classes:
            return True
        return all(len(np.unique(self._y[train])) > 1 for train, _ in self._inner_folds)

    def search(self) -> tuple[Choice, Float64]:
        """Return the choice, and the inner predictions that it was scored by.

        Of log-loss and squared error it is the one nearest to the default that is better than the
        class prior (or the mean) and within two standard errors of the best (as Breiman et al.
        1984, section 3.4.3, with the default in place of the smallest tree): few records cannot
        tell neighbouring values apart, and the best of many is too good by chance. It is the first
        of the path if none is better than the prior.
        """
        first, *others = scalings_of(self._settings)
        tried = self._path(first, self._values())
        if not tried:
            metric = self._settings.metric or "loss"
            raise ValueError(f"no inner fold has a {metric}; pass tune=False")
        value = max(tried, key=lambda one: one[0].score)[0].value
        for scaling in others:  # the rows have about the same length, so that one value suits all
            tried += self._path(scaling, (value,))
        best = max(tried, key=lambda one: one[0].score)
        if self._settings.metric is None:
            guess = class_prior(self._y, self._target.classes, len(self._y))
            prior = self._score(guess)
            near = [
                one for one in tried
                if one[0].score > prior and not self._is_better(best[1], one[1])
            ]  # fmt: skip
            best = min(near, key=lambda one: self._distance(one[0]), default=tried[0])
        return best

    def _is_better(self, proba: Float64, other: Float64) -> bool:
        """Whether the mean loss is lower by more than two standard errors."""
        gain = self._losses(other) - self._losses(proba)
        return float(gain.mean()) > _ERRORS * self._standard_error(gain)

    def _standard_error(self, values: Float64) -> float:
        """Standard error of the mean of values ``(n,)``, of which those of a group are one unit."""
        _, group = np.unique(self._group, return_inverse=True)
        sums = np.bincount(group, values - values.mean())
        return float(np.sqrt((sums**2).sum()) / len(values))

    def _distance(self, choice: Choice) -> float:
        """Decades between a value and the default; another scaling counts little."""
        default, scaling = self._row.default, scalings_of(self._settings)[0]
        return abs(float(np.log10(choice.value / default))) + 0.1 * (choice.scaling != scaling)

    def _path(self, scaling: str, values: tuple[Any, ...]) -> list[tuple[Choice, Float64]]:
        """Follow the values until they get worse; return those that have a score."""
        grid, folds = self._values(), self.folds(scaling)
        reaches_default = values.index(self._row.default) if self._row.default in values else 0
        edges = {grid[0], grid[-1]} if len(grid) > 1 else set()
        tried: list[tuple[Choice, Float64]] = []
        for number, value in enumerate(values):
            proba, found = self.predict(folds, value)
            score = self._score(proba)
            if np.isfinite(score):
                found |= {"score": score, "at_edge": value in edges}
                tried.append((Choice(scaling, value, **found), proba))
                if number >= reaches_default and score < max(one[0].score for one in tried):
                    break
        return tried

    def _values(self) -> tuple[Any, ...]:
        if not self._row.bounded:
            return self._row.values
        fewest = len(self._y) // 2  # two thirds are trained on, unless groups are large
        return tuple(value for value in self._row.values if value <= fewest) or (1,)

    @cached_property
    def _inner_folds(self) -> list[tuple[Int64, Int64]]:
        """Train and test indices; for a sigmoid, every training side has all classes."""
        count = min(self._n_folds, len(np.unique(self._group)))
        strata, group = (
            values.astype(np.int64).tobytes() for values in (self._strata, self._group)
        )
        found = _assigned(strata, group, count, self._settings.seed)
        for train, _ in found if self._calibrated else ():
            missing = np.setdiff1d(self._strata, self._strata[train])
            if len(missing):
                name = self._target.classes[missing[0]]
                raise UsageError(
                    f"estimator={self._settings.estimator!r} is calibrated in inner folds, and "
                    f"label {name!r} is in one text or group of the training records only. Take "
                    "another estimator, or leave the label out."
                )
        return found

    @cached_property
    def _narrow(self) -> Any:
        return in_row_space(self._X)

    def folds(self, scaling: str) -> list[_Fold]:
        """Return the inner folds with their features, fitted on the training side of each."""
        made, shown = [], self._X if self._row.path is None else self._narrow
        for train, test in self._inner_folds:
            steps = build_features(self._settings, scaling)
            X, X_test = take(shown, train), take(shown, test)
            for _, step in steps.steps:  # a pipeline's own bookkeeping takes as long as they do
                if step != "passthrough":
                    X = step.fit_transform(X)
                    X_test = step.transform(X_test)
            path = self._row.path is not None
            estimator = self._path_on(X, train) if path else self._estimator(None)
            made.append(_Fold(X, X_test, train, test, estimator))
        return made

    def predict(
        self, folds: list[_Fold], value: Any, rounds: int | None = None, slope: float | None = None
    ) -> tuple[Float64, dict[str, Any]]:
        """Return the prediction of every record by the fold without it, and what else they chose.

        Args:
            folds: the inner folds; their estimators are fitted.
            value: of the parameter.
            rounds: number of trees; by default early stopping on the fold's own records chooses it,
                and the mean is returned.
            slope: of the coefficients on a path; by default that with the lowest log-loss.
        """
        if self._row.path is not None:
            return self._on_paths(folds, value, slope)
        classes, n = len(self._target.classes), len(self._y)
        found = np.empty((n, classes) if classes else n)
        stopped = []
        for fold in folds:
            estimator = fold.estimator
            estimator.set_params(**{parameter_of(self._settings): value})
            more: dict[str, Any] = {}
            if self._row.rounds and rounds is None:
                more = _early_stopping(estimator, fold.X_test, self._y[fold.test])
            elif rounds is not None:
                estimator.set_params(n_estimators=rounds)
            self._fit(estimator, fold.X, fold.train, **more)
            if more:
                stopped.append(max(1, estimator.best_iteration_))
            if self._calibrated:
                scores = estimator.decision_function(fold.X_test)
                found[fold.test] = scores if scores.ndim == 2 else np.stack([-scores, scores], 1)
            else:
                found[fold.test] = predict_proba(estimator, fold.X_test, self._target)
        if self._calibrated:
            found = _sigmoids(found, self._y, self._weight)
        return found, {"rounds": round(float(np.mean(stopped))) if stopped else rounds}

    def _on_paths(
        self, folds: list[_Fold], value: float, slope: float | None
    ) -> tuple[Float64, dict[str, Any]]:
        shape = len(self._y), len(self._target.classes)
        scores = np.empty(shape), np.empty(shape)
        for fold in folds:
            fold.estimator.fit(value)
            scores[0][fold.test], scores[1][fold.test] = fold.estimator.scores(fold.X_test)
        if slope is None:
            slope = calibration_slope(scores, self._y, self._weight)
        return with_slope(scores, slope), {"slope": slope}

    def final(self, choice: Choice) -> Any:
        """Return a pipeline fitted on all training records."""
        from sklearn.pipeline import Pipeline

        steps = build_features(self._settings, choice.scaling)
        X = steps.fit_transform(self._X)
        fitted = self.estimator(X, choice)
        return Pipeline([*steps.steps, ("estimator", fitted)])

    def estimator(self, X: Any, choice: Choice, shared: Preconditioner | None = None) -> Any:
        """Return the estimator alone, fitted on transformed features of all training records."""
        estimator = self._estimator(choice.value)
        if choice.rounds is not None:
            estimator.set_params(n_estimators=choice.rounds)
        if self._calibrated:
            from sklearn.calibration import CalibratedClassifierCV

            estimator = CalibratedClassifierCV(estimator, cv=self._inner_folds, ensemble=False)
        fit_all = partial(self._fit, X=X, train=_ALL)
        if self._row.path is None:
            fit_all(estimator)
        else:
            self._path_on(X, _ALL, shared).finish(estimator, fit_all)
        if choice.slope != 1:
            scale_coefficients(estimator, choice.slope, X, self._weight)
        if self._calibrated:
            estimator.set_params(cv=self._n_folds)  # the indices do not belong into a saved model
        return estimator

    def _estimator(self, value: Any) -> Any:
        return build_estimator(self._settings, value)

    def _path_on(
        self, X: Any, train: Int64 | slice, shared: Preconditioner | None = None
    ) -> LogisticPath:
        assert self._row.path is not None
        weight = None if self._weight is None else self._weight[train]
        return self._row.path(X, self._y[train], len(self._target.classes), weight, shared)

    def _fit(self, estimator: Any, X: Any, train: Int64 | slice, **more: Any) -> None:
        if self._weight is not None:
            more["sample_weight"] = self._weight[train]
        estimator.fit(X, self._y[train], **more)

    def _losses(self, proba: Float64) -> Float64:
        """Weighted log-loss or squared error of each training record."""
        if not self._target.classes:
            return np.asarray((self._y - proba) ** 2)
        true = proba[np.arange(len(self._y)), self._y]
        weight = 1.0 if self._weight is None else self._weight / self._weight.mean()
        return np.asarray(-weight * np.log(np.maximum(true, np.finfo(np.float64).eps)))

    def _score(self, proba: Float64) -> float:
        """The inner score; higher is better."""
        metric, y = self._settings.metric, self._y
        if metric is None:
            return -float(self._losses(proba).mean())
        if not self._target.classes:
            metrics = regression_metrics(y, proba)
        else:
            beta = beta_of(metric)
            cut = best_threshold(y, proba[:, 1], beta=beta) if beta is not None else None
            metrics = classification_metrics(y, proba, decide(proba, threshold=cut), beta=beta)
        weight = np.ones(len(y)) if self._weight is None else self._weight
        value = float(metrics[metric](weight[None])[0])
        return -value if metric in LOWER_IS_BETTER else value


@lru_cache(maxsize=32)
def _assigned(strata: bytes, group: bytes, count: int, seed: int) -> list[tuple[Int64, Int64]]:
    """Inner folds, kept for the next view or scaling: dividing groups takes longer than a fit."""
    classes, groups = (np.frombuffer(values, np.int64) for values in (strata, group))
    return inner_folds(classes, groups, count, seed=seed)


def _early_stopping(estimator: Any, X: Any, y: NDArray[Any]) -> dict[str, Any]:
    """Arguments of a fit that ends when more trees do not help on ``X`` and ``y``."""
    from lightgbm import early_stopping

    estimator.set_params(n_estimators=_MAX_ROUNDS)
    held_out = {"eval_X": X, "eval_y": y}
    if "eval_X" not in signature(estimator.fit).parameters:  # before LightGBM 4.7
        held_out = {"eval_set": [(X, y)]}
    return {**held_out, "callbacks": [early_stopping(_ROUNDS_PATIENCE, verbose=False)]}


def _sigmoids(scores: Float64, y: Int64, weight: Float64 | None) -> Float64:
    """Probabilities from scores ``(n, classes)``: a sigmoid for each class, divided by their sum.

    As Platt (1999); of two classes the second decides.
    """
    from sklearn.linear_model import LogisticRegression

    found = np.empty_like(scores)
    for k in range(scores.shape[1]):
        sigmoid = LogisticRegression(C=1e6).fit(scores[:, [k]], y == k, weight)
        found[:, k] = sigmoid.predict_proba(scores[:, [k]])[:, 1]
    if scores.shape[1] == 2:
        found[:, 0] = 1 - found[:, 1]
    return np.asarray(found / found.sum(1, keepdims=True))


@contextmanager
def _fit_errors(settings: EstimatorSettings, count: int) -> Iterator[None]:
    """Turn scikit-learn's error about records that it cannot be fitted on into a UsageError."""
    try:
        yield
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(
            f"estimator={settings.estimator!r} cannot be fitted on {count} training records: "
            f"{first_line(error)}."
        ) from error
