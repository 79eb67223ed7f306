"""Estimators of scikit-learn and LightGBM by name, and their pipelines.

Scaling and vocabularies are steps of the same pipeline, so that they are fitted on the training
records alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

from embedkit.choices import ESTIMATORS, check_choice
from embedkit.classifiers.layers import LayerMixture, unit_layers
from embedkit.encoding.words import WORDS
from embedkit.errors import Option, UsageError, first_line
from embedkit.runs.metrics import Threshold, named_metric


class CommonScaler(StandardScaler):  # type: ignore[misc]
    """Centre the columns and divide by one number, so that the mean squared row length is 1.

    Unlike :class:`~sklearn.preprocessing.StandardScaler` it keeps the proportions between columns,
    in which encoders store what they know. With rows of about length 1, the same strengths of
    regularisation suit every encoder.

    >>> X = np.array([[0.0, 1.0], [4.0, 1.0], [2.0, 4.0]])
    >>> float((CommonScaler().fit_transform(X) ** 2).sum(1).mean().round(6))
    1.0
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the mean of the columns and the common factor."""
        super().fit(X)
        # one number for all columns, but as an array: scikit-learn casts scale_ to the dtype of X;
        # 1 where all records are the same, as it does itself
        self.scale_ = np.full(len(self.var_), np.sqrt(self.var_.sum()) or 1.0)
        return self


class EstimatorSettings(NamedTuple):
    """Settings of a pipeline, and of what is chosen for it in inner folds."""

    estimator: str = "logreg"  # or module:Class of scikit-learn or LightGBM
    features: str = "vectors"
    task: str = "classification"
    class_weight: str | None = None
    seed: int = 0
    metric: str | None = None  # of tuning; by default log-loss, or the squared error
    layers: int = 1  # of a learnt mixture, side by side in the vectors
    views: tuple[str, ...] = ()  # side by side in the vectors
    columns: tuple[str, ...] = ()  # of the user's own numbers, behind the vectors
    tune: bool = True
    threshold: Threshold | None = None  # by a metric it is chosen on predictions of inner folds

    @classmethod
    def of(
        cls,
        estimator: str | None,
        *,
        task: str,
        level: str = "sentence",
        metric: str | None = None,
        threshold: str | float | None = None,
        **settings: Any,
    ) -> EstimatorSettings:
        """Return checked settings; the default estimator is that of the task.

        Names and numbers were checked by the types of the function that takes them. The ``level``
        is no setting, but checked beside the columns: texts have neither views nor columns, words
        have no columns, and each is named once.
        """
        # what can be known without data is refused here, before a corpus is encoded for minutes
        estimator = estimator or ("ridge" if task == "regression" else "logreg")
        cut = None if threshold is None else Threshold.parse(threshold)
        settings |= {"task": task, "metric": metric and named_metric(metric), "threshold": cut}
        result = cls(estimator, **settings)
        result.row  # noqa: B018 - raises for an unknown estimator
        if result.class_weight is not None and (
            task == "regression" or "class_weight" not in result.row.build().get_params()
        ):
            raise UsageError("it needs a classifier, as logreg.", class_weight=result.class_weight)
        for name, names in (("view", result.views), ("columns", result.columns)):
            shown = {name: ",".join(names)}
            if result.features != "vectors" and names:
                problem = f"{Option('features', result.features)} are of texts, not of vectors."
                raise UsageError(problem, **shown)
            if len(set(names)) < len(names):
                raise UsageError("name each once.", **shown)
        if result.columns and level == "word":
            problem = f"they are of records; {Option('level', 'word')} has none."
            raise UsageError(problem, columns=",".join(result.columns))
        return result

    @property
    def method(self) -> str:
        """The name that tells runs apart: of the features if they are no vectors."""
        return self.estimator if self.features == "vectors" else self.features

    @property
    def threads(self) -> int | None:
        """How many fits may run at the same time, if that is limited."""
        # liblinear and libsvm draw from one generator for the whole process, so that fits beside
        # each other would take each other's numbers
        return 1 if self.estimator.startswith("sklearn.svm:") else None

    @property
    def row(self) -> Estimator:
        """The kind of estimator for the task."""
        # probe sets it for mixtures, which it makes for logreg alone; the name of the estimator
        # stays
        if self.layers > 1:
            scaling = partial(_unit_rows, self.layers)
            return Estimator(partial(LayerMixture, self.layers), {"C": STRENGTHS}, scaling)
        if ":" in self.estimator:
            return _imported(self.estimator, self.task)
        check_choice((*ESTIMATORS, "module:Class"), estimator=self.estimator)
        row = TABLE[self.task].get(self.estimator)
        if row is None:
            raise UsageError(
                f"it is not for {Option('task', self.task)}; take one of "
                f"{', '.join(TABLE[self.task])}.",
                estimator=self.estimator,
            )
        of_texts = self.features == "tfidf" and self.estimator == "logreg"
        return _LOGREG_OF_TEXTS if of_texts else row


class Estimator(NamedTuple):
    """One kind of estimator, the values that tuning chooses from, and the steps in front of it."""

    build: Callable[[], Any]
    grid: Mapping[str, tuple[Any, ...]] = {}
    scaling: Callable[[], list[tuple[str, Any]]] = list  # of vectors


def build_pipeline(settings: EstimatorSettings) -> Any:
    """Return the unfitted scikit-learn pipeline, with the estimator's values without tuning.

    Its input is ``(n, width)`` float32, or a list of texts for ``tfidf``. Its last step is called
    ``estimator``.
    """
    row = settings.row
    estimator = row.build()
    # not every estimator takes all of these (knn none of them): each gets those that it has
    values: dict[str, Any] = {"random_state": settings.seed, "class_weight": settings.class_weight}
    # also those of an estimator inside, as TransformedTargetRegressor has one
    names = ((name, name.rpartition("__")[2]) for name in estimator.get_params())
    estimator.set_params(**{name: values[last] for name, last in names if last in values})
    if settings.task == "multilabel":
        # after set_params: behind the wrapper the names would begin with "estimator__"
        estimator = OneVsRestClassifier(estimator)
    steps = [("tfidf", _tfidf())] if settings.features == "tfidf" else row.scaling()
    if settings.columns:
        steps = [("columns", _beside_numbers(steps, len(settings.columns)))]
    return Pipeline([*steps, ("estimator", estimator)])


def _beside_numbers(steps: list[tuple[str, Any]], count: int) -> Any:
    """The steps for the vectors, and others for ``count`` numbers behind them."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer

    # each number gets the weight that the common scale gives to the whole vector. Of a column
    # without any value in the training records nothing is known, and it is 0 everywhere
    numbers = Pipeline(
        [
            ("impute", SimpleImputer(strategy="median", keep_empty_features=True)),
            ("scale", StandardScaler()),
        ]
    )
    vectors = Pipeline(steps or [("nothing", "passthrough")])
    return ColumnTransformer(
        [("vectors", vectors, slice(None, -count)), ("numbers", numbers, slice(-count, None))]
    )


def _tfidf() -> Any:
    """Words and pairs of words beside character n-grams, which carry languages without spaces."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    # min_df=2: a word of a single text says nothing of others, and many are of no other; float32,
    # since the default of float64 takes twice the memory
    common = {"sublinear_tf": True, "min_df": 2, "dtype": np.float32}
    return FeatureUnion(
        [
            # the default pattern leaves out words of one letter, which are words in Korean, for
            # one, and takes what stands between two commas of Japanese for a word
            ("words", TfidfVectorizer(ngram_range=(1, 2), token_pattern=WORDS, **common)),
            ("characters", TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), **common)),
        ]
    )


def _unit_rows(layers: int = 1) -> list[tuple[str, Any]]:
    rows = FunctionTransformer(unit_layers, kw_args={"layers": layers})
    # rows first, so that no record has more weight than another by its length alone; then the
    # common scale, with which the same few values of C suit every encoder
    return [("rows", Normalizer() if layers == 1 else rows), ("scale", CommonScaler())]


# small trees that go by a fifth of the columns each: vectors have hundreds of columns that say
# nearly the same, and corpora with labels are often small (by default leaves hold 20 records, and
# trees 31)
_BOOSTING: dict[str, Any] = {
    "n_estimators": 100,
    "learning_rate": 0.05,
    "num_leaves": 15,
    "colsample_bytree": 0.2,
    "subsample": 0.8,
    # without it LightGBM ignores subsample
    "subsample_freq": 1,
    "min_child_samples": 10,
    "reg_lambda": 1.0,
    # else it prints to the terminal while it fits
    "verbose": -1,
    # one thread, and rows fixed: LightGBM would try which of two algorithms is faster, and the
    # order of its sums would depend on the time; folds are fitted side by side in any case
    "deterministic": True,
    "force_row_wise": True,
    "n_jobs": 1,
}


def _imported_later(module: str, values: Mapping[str, Any], name: str) -> Callable[[], Any]:
    """What makes an estimator of a module that no other estimator needs."""
    return lambda: getattr(import_module(module), name)(**values)


_lightgbm = partial(_imported_later, "lightgbm", _BOOSTING)
_knn = partial(_imported_later, "sklearn.neighbors", {"n_neighbors": 15, "weights": "distance"})

STRENGTHS = (1.0, 10.0)
"""Values of C for vectors: of weaker and stronger ones none was ever chosen."""

# the smoothest value comes first here and in all grids, STRENGTHS too: of values with equal inner
# scores the first is taken
_NEIGHBORS = {"n_neighbors": (135, 45, 15, 5)}
_TREES = {"n_estimators": (10, 30, 100, 300)}

_CLASSIFIERS = {
    # more steps than the default of 100, which vectors of a few hundred columns often need
    "logreg": Estimator(lambda: LogisticRegression(max_iter=1_000), {"C": STRENGTHS}, _unit_rows),
    "knn": Estimator(_knn("KNeighborsClassifier"), _NEIGHBORS, _unit_rows),
}

# one strength suits the TF-IDF of all texts, so that inner folds choose the slope alone
_LOGREG_OF_TEXTS = Estimator(lambda: LogisticRegression(C=10.0, max_iter=1_000), {"C": (10.0,)})

TABLE: Mapping[str, Mapping[str, Estimator]] = {
    "classification": _CLASSIFIERS | {"lightgbm": Estimator(_lightgbm("LGBMClassifier"), _TREES)},
    "multilabel": _CLASSIFIERS,  # one classifier for each class, against the rest
    "regression": {
        "ridge": Estimator(Ridge, {"alpha": (100.0, 10.0, 1.0, 0.1, 0.01)}, _unit_rows),
        "knn": Estimator(_knn("KNeighborsRegressor"), _NEIGHBORS, _unit_rows),
        "lightgbm": Estimator(_lightgbm("LGBMRegressor"), _TREES),
    },
}
"""The estimators of each task by name; together :data:`~embedkit.choices.ESTIMATORS`."""


def _imported(name: str, task: str) -> Estimator:
    """An estimator given as ``module:Class``, with its own default values."""
    from sklearn.base import is_classifier, is_regressor
    from sklearn.compose import TransformedTargetRegressor

    module, _, cls = name.partition(":")
    library = module.partition(".")[0]
    # before anything is imported: importing runs code, and a saved model is loaded by its class
    if library not in ("sklearn", "lightgbm"):
        raise UsageError(
            f"only models of scikit-learn and LightGBM can be loaded safely, and {cls} belongs to "
            f"{library}. Fit it on the vectors of load().",
            estimator=name,
        )
    try:
        # made once to look at it; each fit makes its own
        kind = getattr(import_module(module), cls)
        estimator = kind()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"it cannot be made: {first_line(error)}.", estimator=name) from error
    if task == "multilabel" and (library == "lightgbm" or not hasattr(estimator, "predict_proba")):
        needs = Option("task", "multilabel", after=" needs")
        raise UsageError(
            f"it is not of scikit-learn with probabilities, as {needs}.", estimator=name
        )
    if not (is_regressor if task == "regression" else is_classifier)(estimator):
        raise UsageError(f"it is not for {Option('task', task)}.", estimator=name)
    build = kind
    if library == "lightgbm":  # it would print to the terminal, and time which algorithm is faster
        build = partial(kind, verbose=-1, deterministic=True, force_row_wise=True)
    elif task == "regression":
        # the defaults of many depend on the unit and the zero of the values
        # not LightGBM: its model is saved by itself, and has to be the last step for it
        build = partial(TransformedTargetRegressor, estimator, transformer=StandardScaler())
    return Estimator(build, scaling=lambda: [("scale", StandardScaler())])
