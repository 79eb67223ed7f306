"""One fit of an estimator, whose parameters are chosen in inner folds of its training records.

The features (scaling, TF-IDF) are fitted once on the training records.
Logistic regression takes its strength C and a slope from the inner folds: the coefficients of a
strong penalty have good directions and are too short, those of a weak one are too long. The
parameters of other estimators are chosen on the same folds, by the mean of their scores. What the
chosen ones have predicted there is kept: nothing is fitted twice.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid
from sklearn.pipeline import Pipeline
from sklearn.utils.class_weight import compute_sample_weight

from embedkit.classifiers.estimators import EstimatorSettings, build_pipeline
from embedkit.errors import UsageError, first_line
from embedkit.runs.cross_validation import Problem
from embedkit.runs.metrics import LOWER_IS_BETTER, best_threshold, beta_of, metrics_for
from embedkit.runs.predictions import decide
from embedkit.runs.run import Choice
from embedkit.runs.split import inner_folds
from embedkit.types import Float64, Int64
from embedkit.units.target import Target

# of few records inner folds should leave as many as they can to be trained on, and their fits are
# short
_INNER_FOLDS, _FEW, _INNER_FOLDS_OF_FEW = 3, 1_000, 5
_STEEPEST = 4.0  # the highest slope
# sparse rows are replaced by their products where these are at most so many times as many numbers,
# and where each number takes part in so many of them, for each vector of coefficients
_MOST_PRODUCTS, _WORTH_PRODUCTS = 8, 100
_ABSENT = -30.0  # log-odds of a class that an inner fold has no training records of

Folds = list[tuple[Int64, Int64]]


class Fitted(NamedTuple):
    """A fitted pipeline, what was chosen for it, and inner predictions, if there were inner folds.

    ``inner`` are ``(n, classes)`` probabilities or ``(n,)`` values of the training records, each
    predicted by the inner fold that did not hold it.
    """

    pipeline: Any
    choice: Choice
    inner: Float64 | None = None


def fit(problem: Problem, train: Int64, settings: EstimatorSettings) -> Fitted:
    """Return a pipeline fitted on the inputs of the units ``train`` alone, vectors or texts.

    Inner folds, which never divide a group of the split, choose the parameters if the settings say
    so, and so predict each training unit. Without tuning they do where a threshold is chosen by a
    metric. Of very few units there are none.
    """
    units, target, split, _ = problem
    y, classes = target.y[train], len(target.classes)
    folds = _folds_of(target.take(train), split.group[train], seed=settings.seed)
    tunable = settings.tune and bool(folds)
    by_metric = settings.threshold is not None and settings.threshold.value is None
    try:
        # scaling or TF-IDF is fitted once for all inner folds, which takes most of the time of a
        # fit on texts. Inner scores thereby know the words of all training records, but none of
        # their labels
        *steps, (name, estimator) = build_pipeline(settings).steps
        # a pipeline without steps is refused
        before = Pipeline(steps or [("nothing", "passthrough")])
        X = before.fit_transform(units.inputs(train))
        # without tuning the score is NaN
        choice, inner = Choice(), None
        if tunable and settings.estimator == "logreg" and settings.task == "classification":
            model, choice, inner = _logistic(estimator, X, y, folds, classes, settings)
        else:
            # an estimator given by its class has no grid: it keeps its own values, and inner
            # predictions only score it
            if tunable and settings.row.grid:
                choice, inner = _search(estimator, X, y, folds, target, settings)
                estimator.set_params(**choice.parameters)
            elif folds and (tunable or by_metric):
                inner = _predict_held_out(estimator, X, y, folds, target, settings)
                choice = Choice(score=inner_score(y, inner, settings)) if tunable else choice
            # inner folds fit the sigmoid too, where a classifier has no probabilities
            model = _fit_estimator(estimator, X, y, folds, settings)
        # such as an area where the held-out records are of one class: nothing could be chosen by it
        if tunable and np.isnan(choice.score):
            raise UsageError("an inner fold has none. Choose another.", metric=settings.metric)
    # our own message is about an option already
    except UsageError:
        raise
    except ValueError as error:  # scikit-learn's, about records that it cannot be fitted on
        raise UsageError(
            f"{len(train)} training records: {first_line(error)}.", estimator=settings.estimator
        ) from error
    return Fitted(Pipeline([*before.steps, (name, model)]), choice, inner)


def _folds_of(target: Target, groups: Int64, *, seed: int) -> Folds:
    """Inner folds of training units; none where a model of one of them could not be fitted."""
    count = _INNER_FOLDS_OF_FEW if len(groups) < _FEW else _INNER_FOLDS
    # no more folds than groups, which are never divided
    count = min(count, len(np.unique(groups)))
    if count < 2:
        return []
    folds = inner_folds(target.strata, groups, count, seed=seed)
    # where groups are few, an inner fold may have units of one class alone to be trained on, or of
    # a regression a single one
    kinds = (np.unique(target.y[rows]) if target.classes else rows for rows, _ in folds)
    return folds if all(len(kind) > 1 for kind in kinds) else []


def _narrow(X: Any) -> Float64:
    """Return rows ``(n, n)`` with the products of sparse rows ``(n, columns)``, one with another.

    Coefficients with a penalty are sums of training rows, so that a regression says the same of
    rows with the same products. The columns of TF-IDF are a dozen times as many as records, and the
    solver goes through a score of vectors of all coefficients in each of its steps: with as many
    columns as records a fit of 300 requests of 12 classes takes a quarter of the time, one of 1,000
    of 74 classes two fifths. But each step reads all products, the square of the records: of 2,000
    texts nothing is gained, and of 3,000 words with eight n-grams each it takes ten times as long.
    And the products themselves take a step for each two rows that share a column: of 2,000 long
    texts of two classes three times as long as the fits.

    The rows are the triangular root L of the products L L' = X X', for which coefficients w of L
    are w L⁻¹ X of X; the products of repeated texts have a root with a trace on their diagonal.
    """
    X = X.astype(np.float64)  # of products in float32 there may be no root
    products = (X @ X.T).toarray()
    # 1e-9 on the diagonal: of equal rows the products alone have no root
    return np.asarray(np.linalg.cholesky(products + 1e-9 * np.eye(len(products))), np.float64)


def _logistic(
    estimator: Any, X: Any, y: Int64, folds: Folds, classes: int, settings: EstimatorSettings
) -> tuple[Any, Choice, Float64]:
    """Return the model with the best strength and slope, the choice, and inner probabilities.

    The slope multiplies the coefficients, not the intercepts: the log-odds of a mean record stay
    those of the (weighted) class frequencies.
    """
    from scipy.linalg import solve_triangular
    from scipy.optimize import minimize_scalar
    from scipy.special import softmax

    # all ones without class weights; with them inner losses count records as the fit does
    weight = compute_sample_weight(settings.class_weight, y)
    wide = X
    if settings.features == "tfidf" and len(y) ** 2 < _MOST_PRODUCTS * X.nnz:
        shared = np.square(np.bincount(wide.indices), dtype=float).sum() / wide.nnz
        if shared < _WORTH_PRODUCTS * (1 if classes == 2 else classes):
            X = _narrow(wide)
    centre = weight @ X / weight.sum()

    # gains are the log-odds of a record beyond those of a mean one, which the slope multiplies;
    # priors are what it leaves as it is. Both are of every training record, by the fold that did
    # not hold it
    def held_out(strength: float) -> tuple[float, float, float, Float64]:
        gains, priors = np.zeros((len(y), classes)), np.full((len(y), classes), _ABSENT)
        for train, test in folds:
            model = clone(estimator).set_params(C=strength).fit(X[train], y[train])
            coef, intercept = model.coef_, model.intercept_
            if len(model.classes_) == 2:  # scikit-learn keeps the log-odds of the second class
                coef, intercept = (np.concatenate([0 * a, a]) for a in (coef, intercept))
            # a class that this fold has not seen keeps the log-odds _ABSENT
            index = np.ix_(test, model.classes_)
            gains[index] = X[test] @ coef.T - coef @ centre
            priors[index] = intercept + coef @ centre

        def loss(slope: float) -> float:
            # at least 1e-15: a probability of 0 would be an infinite loss, whatever the other
            # records say
            proba = softmax(slope * gains + priors, axis=1)[np.arange(len(y)), y]
            return -float(np.average(np.log(np.maximum(proba, 1e-15)), weights=weight))

        # the loss is convex in the slope, and no new fit is needed to try one
        slope = float(minimize_scalar(loss, bounds=(0, _STEEPEST), method="bounded").x)
        proba = softmax(slope * gains + priors, axis=1)
        return inner_score(y, proba, settings), strength, slope, proba

    # by the score alone, since arrays cannot be compared; of equal ones the strongest penalty is
    # kept
    score, strength, slope, proba = max(map(held_out, settings.row.grid["C"]), key=itemgetter(0))
    model = clone(estimator).set_params(C=strength).fit(X, y)
    # so that slope * coef * x + intercept is the same as before for x = centre; this line needs the
    # coefficients as they were fitted
    model.intercept_ = model.intercept_ + (1 - slope) * (model.coef_ @ centre)
    model.coef_ = slope * model.coef_
    if X is not wide:
        # from coefficients of the root's columns back to those of the words
        coef = solve_triangular(X, model.coef_.T, lower=True, trans="T").T @ wide
        model.coef_, model.n_features_in_ = coef.astype(wide.dtype), wide.shape[1]
    return model, Choice({"C": strength}, slope, score), proba


def _search(
    estimator: Any, X: Any, y: Any, folds: Folds, target: Target, settings: EstimatorSettings
) -> tuple[Choice, Float64]:
    """Return the best parameters of the grid, and what they predict of each record held out."""
    grid = dict(settings.row.grid)
    if "n_neighbors" in grid:
        # scikit-learn refuses more neighbours than records
        fewest = min(len(train) for train, _ in folds)
        grid["n_neighbors"] = tuple(n for n in grid["n_neighbors"] if n <= fewest) or (1,)
    if settings.task == "multilabel":
        # those of the classifier inside of OneVsRestClassifier
        grid = {f"estimator__{name}": values for name, values in grid.items()}

    def tried(params: dict[str, Any]) -> tuple[float, dict[str, Any], Float64]:
        model = clone(estimator).set_params(**params)
        output = _predict_held_out(model, X, y, folds, target, settings)
        scores = [inner_score(y[test], output[test], settings) for _, test in folds]
        return float(np.mean(scores)), params, output

    # by the score alone; of equal ones the first is kept
    score, params, output = max(map(tried, ParameterGrid(grid)), key=itemgetter(0))
    return Choice(params, score=score), output


def _fit_estimator(
    estimator: Any, X: Any, y: Any, folds: Folds, settings: EstimatorSettings
) -> Any:
    """Return a fitted copy of the estimator, with a sigmoid where it has no probabilities."""
    from sklearn.calibration import CalibratedClassifierCV

    model = clone(estimator)
    for name, value in model.get_params().items():
        # also "estimator__n_neighbors"; the grid was cut for inner folds alone, and there may be
        # none
        if name.endswith("n_neighbors"):
            model.set_params(**{name: min(value, len(y))})
    if settings.task == "regression" or hasattr(model, "predict_proba"):
        return model.fit(X, y)
    # else scikit-learn would say of its own folds what nobody has asked for
    if not folds or any(len(np.unique(y[rows])) < len(np.unique(y)) for rows, _ in folds):
        raise UsageError(
            f"it has no probabilities; inner folds fit them, of {len(y)} training records here, "
            "and one of them lacks a class. Give more records of each class, or take an estimator "
            "that has them, as logreg.",
            estimator=settings.estimator,
        )
    weight = None
    if settings.class_weight is not None:  # which the sigmoid must know, too
        # the weights of records stand for it, else they would count twice
        model.set_params(class_weight=None)
        weight = compute_sample_weight(settings.class_weight, y)
    calibrated = CalibratedClassifierCV(model, cv=folds, ensemble=False)
    calibrated.fit(X, y, sample_weight=weight)
    return calibrated.set_params(cv=None)  # a saved model does not hold indices of records


def _predict_held_out(
    estimator: Any, X: Any, y: Any, folds: Folds, target: Target, settings: EstimatorSettings
) -> Float64:
    """Return the prediction of every record by the inner fold that did not hold it."""
    output = np.zeros((len(y), len(target.classes)) if target.classes else len(y))
    for train, test in folds:
        subsets = [
            (np.flatnonzero(np.isin(train, a)), np.flatnonzero(np.isin(train, b)))
            for a, b in folds
            # the other folds, divided as before: the sigmoid of this model may not see the records
            # that it predicts here; as positions in train
            if b is not test
        ]
        model = _fit_estimator(estimator, X[train], y[train], subsets, settings)
        output[test] = predict_proba(model, X[test], target)
    return output


def predict_proba(pipeline: Any, X: Any, target: Target) -> Float64:
    """Return probabilities ``(n, classes)``, or values ``(n,)`` of a regression."""
    with config_context(transform_output="default"):  # a script may want frames of its own steps
        proba = np.asarray((pipeline.predict_proba if target.classes else pipeline.predict)(X))
    proba = proba.astype(np.float64, copy=False)
    if not np.isfinite(proba).all():
        raise UsageError("it predicts NaN or infinity.", estimator=...)
    # sets of classes are independent: their probabilities need not sum to 1
    if not target.classes or target.of_sets:
        return proba
    proba /= proba.sum(1, keepdims=True)  # some add up to 1 in float32 only
    if proba.shape[1] == len(target.classes):
        return proba
    whole = np.zeros((len(proba), len(target.classes)))
    whole[:, pipeline.classes_] = proba  # the training records may lack a rare class
    return whole


def inner_score(y: NDArray[Any], output: Float64, settings: EstimatorSettings) -> float:
    """Return what tuning optimises, higher is better, with the class weights of the settings.

    ``output`` are ``(n, classes)`` probabilities, or ``(n,)`` values.
    """
    # log-loss and the squared error use all of a prediction: of accuracies many are equal in small
    # folds
    metric = settings.metric or ("log_loss" if output.ndim > 1 else "rmse")
    beta, decided = beta_of(metric), None
    # an F score is that of the best threshold, as a run with threshold= has it: at 0.5 rare classes
    # would hardly be predicted, and all values would seem alike
    if beta is not None:
        decided = decide(output, threshold=best_threshold(y, output[:, 1], beta=beta))
    weight = compute_sample_weight(settings.class_weight, y) if y.ndim == 1 else np.ones(len(y))
    value = float(metrics_for(y, output, decided, beta=beta)[metric].of(weight[None])[0])
    return -value if metric in LOWER_IS_BETTER else value
