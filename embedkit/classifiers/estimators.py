"""The table of estimators: one row per kind, for classification and for regression.

Scaling, principal components and vocabularies are steps of the same scikit-learn pipeline, so that
they are fitted on the training records alone.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from embedkit.choices import CLASS_WEIGHTS, ESTIMATORS, FEATURES, TASKS, check_choice
from embedkit.errors import UsageError, check_counts

__all__ = ["TABLE", "Estimator", "EstimatorSettings", "build_estimator", "param_grid"]

_NEIGHBORS = 15


@dataclass(frozen=True, slots=True)
class EstimatorSettings:
    """Settings of a pipeline.

    Attributes:
        estimator: one of :data:`~embedkit.choices.ESTIMATORS`; for regression its counterpart.
        features: ``vectors``, or ``tfidf`` of words and characters.
        task: ``classification`` or ``regression``.
        pca: number of principal components, or ``None``.
        class_weight: ``balanced`` or ``None``.
        seed: random state of every step.
        threads: threads of one fit, for LightGBM.
    """

    estimator: str = "logreg"
    features: str = "vectors"
    task: str = "classification"
    pca: int | None = None
    class_weight: str | None = None
    seed: int = 0
    threads: int = 1

    @property
    def row(self) -> Estimator:
        """The row of the table."""
        return TABLE[self.estimator]

    def check(self) -> None:
        """Raise a :class:`UsageError` for values that are unknown or cannot be combined."""
        check_choice(ESTIMATORS, estimator=self.estimator)
        check_choice(FEATURES, features=self.features)
        check_choice(TASKS, task=self.task)
        regression, tfidf = self.task == "regression", self.features == "tfidf"
        if regression and self.row.regressor is None:
            others = ", ".join(name for name, row in TABLE.items() if row.regressor)
            raise UsageError(
                f"estimator={self.estimator!r} is a classifier; for task='regression' take "
                f"one of {others}."
            )
        if self.class_weight is not None:
            check_choice(CLASS_WEIGHTS, class_weight=self.class_weight)
            if regression or not self.row.class_weights:
                others = ", ".join(name for name, row in TABLE.items() if row.class_weights)
                raise UsageError(
                    f"class_weight={self.class_weight!r}: {self.estimator} takes no class weights; "
                    f"{others} do, in classification."
                )
        if self.pca is not None and tfidf:
            raise UsageError(f"pca={self.pca} needs vectors; features='tfidf' gives sparse ones.")
        check_counts(pca=self.pca, threads=self.threads)
        if self.row.dense and tfidf:
            raise UsageError(
                f"estimator={self.estimator!r} needs vectors; take another for features='tfidf'."
            )

    def check_count(self, records: int) -> None:
        """Raise a :class:`UsageError` if there are too few training records."""
        if records < self.row.min_records:
            raise UsageError(
                f"estimator={self.estimator!r} needs {self.row.min_records} training records or "
                f"more; there are {records}. Take another estimator."
            )


@dataclass(frozen=True, slots=True)
class Estimator:
    """One kind of estimator.

    Attributes:
        classifier: settings → unfitted classifier with ``predict_proba``.
        regressor: settings → unfitted regressor; ``None``: there is none.
        grid: values that tuning tries, by parameter.
        calibrated: the classifier is wrapped by :func:`_calibrated`; the grid is that of the inner
            estimator.
        class_weights: whether the classifier takes ``class_weight``.
        dense: whether the features must be dense.
        scaled: whether vectors are standardised first.
        min_records: fewest training records.
        bounded: parameter of the grid that cannot be larger than the number of training records.
        types: types that a saved model holds beyond those that skops trusts by itself.
        check: raises a ValueError for a model read from a file that would not be safe to apply.
    """

    classifier: Callable[[EstimatorSettings], Any]
    regressor: Callable[[EstimatorSettings], Any] | None
    grid: Mapping[str, tuple[Any, ...]]
    calibrated: bool = False
    class_weights: bool = False
    dense: bool = False
    scaled: bool = True
    min_records: int = 1
    bounded: str | None = None
    types: tuple[str, ...] = ()
    check: Callable[[Any], None] | None = None
    booster: bool = False


def build_estimator(settings: EstimatorSettings) -> Any:
    """Return an unfitted scikit-learn pipeline.

    Its input is ``(n, width)`` float32, or a list of texts for ``tfidf``.

    Raises:
        UsageError: a setting is unknown, or two of them cannot be combined.
    """
    from sklearn.pipeline import Pipeline

    settings.check()
    row = settings.row
    steps: list[tuple[str, Any]] = []
    if settings.features == "tfidf":
        steps.append(("tfidf", _tfidf()))
    else:
        from sklearn.preprocessing import StandardScaler

        if row.scaled:
            steps.append(("scale", StandardScaler()))
        if settings.pca is not None:
            from sklearn.decomposition import PCA

            steps.append(("pca", PCA(settings.pca, random_state=settings.seed)))
    build = row.classifier if settings.task == "classification" else row.regressor
    assert build is not None  # checked above
    return Pipeline([*steps, ("estimator", build(settings))])


def param_grid(
    settings: EstimatorSettings, *, records: int | None = None
) -> dict[str, tuple[Any, ...]]:
    """Return the values that tuning tries, by parameter of :func:`build_estimator`'s pipeline.

    Args:
        settings: of the pipeline.
        records: number of training records; no more neighbors than these are tried.
    """
    row = settings.row
    inner = row.calibrated and settings.task == "classification"
    prefix = "estimator__estimator__" if inner else "estimator__"
    grid = {prefix + name: values for name, values in row.grid.items()}
    if row.bounded is not None and records is not None:
        name = prefix + row.bounded
        grid[name] = tuple(value for value in grid[name] if value <= records) or (1,)
    return grid


def _tfidf() -> Any:
    """Words and pairs of words beside character n-grams, which carry languages without spaces."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import FeatureUnion

    common = {"sublinear_tf": True, "min_df": 2, "dtype": np.float32}
    return FeatureUnion([
        ("words", TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", **common)),
        ("characters", TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), **common)),
    ])  # fmt: skip


def _calibrated(classifier: Any) -> Any:
    """A classifier without probabilities, with a sigmoid on its scores fitted in inner folds."""
    from sklearn.calibration import CalibratedClassifierCV

    return CalibratedClassifierCV(classifier, method="sigmoid", cv=3, ensemble=False)


def _logreg(s: EstimatorSettings) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=1_000, class_weight=s.class_weight, random_state=s.seed)


def _svm_c(s: EstimatorSettings) -> float:
    """Rows of TF-IDF have length 1, scaled vectors are far longer and need more regularisation."""
    return 0.1 if s.features == "tfidf" else 0.01


def _svm_classifier(s: EstimatorSettings) -> Any:
    from sklearn.svm import LinearSVC

    return _calibrated(LinearSVC(C=_svm_c(s), class_weight=s.class_weight, random_state=s.seed))


def _svm_regressor(s: EstimatorSettings) -> Any:
    from sklearn.svm import LinearSVR

    return LinearSVR(C=_svm_c(s), random_state=s.seed)


def _ridge_alpha(s: EstimatorSettings) -> float:
    return 5.0 if s.features == "tfidf" else 100.0


def _ridge_classifier(s: EstimatorSettings) -> Any:
    from sklearn.linear_model import RidgeClassifier

    return _calibrated(
        RidgeClassifier(alpha=_ridge_alpha(s), class_weight=s.class_weight, random_state=s.seed)
    )


def _ridge_regressor(s: EstimatorSettings) -> Any:
    from sklearn.linear_model import Ridge

    return Ridge(alpha=_ridge_alpha(s), random_state=s.seed)


def _knn_classifier(_: EstimatorSettings) -> Any:
    from sklearn.neighbors import KNeighborsClassifier

    return KNeighborsClassifier(_NEIGHBORS, weights="distance")


def _knn_regressor(_: EstimatorSettings) -> Any:
    from sklearn.neighbors import KNeighborsRegressor

    return KNeighborsRegressor(_NEIGHBORS, weights="distance")


def _mlp_classifier(s: EstimatorSettings) -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier(hidden_layer_sizes=(128,), early_stopping=True, random_state=s.seed)


def _mlp_regressor(s: EstimatorSettings) -> Any:
    from sklearn.neural_network import MLPRegressor

    return MLPRegressor(hidden_layer_sizes=(128,), early_stopping=True, random_state=s.seed)


def _forest(s: EstimatorSettings) -> dict[str, Any]:
    # one thread: several add up their probabilities in any order, which changes the last bits
    return {"n_estimators": 200, "min_samples_leaf": 3, "random_state": s.seed}


def _extra_trees_classifier(s: EstimatorSettings) -> Any:
    from sklearn.ensemble import ExtraTreesClassifier

    return ExtraTreesClassifier(class_weight=s.class_weight, **_forest(s))


def _extra_trees_regressor(s: EstimatorSettings) -> Any:
    from sklearn.ensemble import ExtraTreesRegressor

    return ExtraTreesRegressor(max_features="sqrt", **_forest(s))


def _check_trees(pipeline: Any) -> None:
    """Refuse trees whose indices point outside: scikit-learn follows them without bounds checks."""
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

    forest: Any = pipeline.steps[-1][1] if hasattr(pipeline, "steps") else None
    allowed = []
    if type(forest) in (ExtraTreesClassifier, ExtraTreesRegressor):
        allowed = [estimator.tree_ for estimator in forest.estimators_]
    if {id(tree) for tree in _trees_in(pipeline)} != {id(tree) for tree in allowed}:
        raise ValueError("it holds decision trees outside of an extra_trees estimator")
    for tree in allowed:
        node = np.flatnonzero(tree.children_left != -1)
        for child in (tree.children_left[node], tree.children_right[node]):
            if not ((child > node) & (child < tree.node_count)).all():
                raise ValueError("a decision tree has a child that is no node of it")
        feature = tree.feature[node]
        same_width = tree.n_features == forest.n_features_in_
        if not same_width or not ((feature >= 0) & (feature < tree.n_features)).all():
            raise ValueError("a decision tree has a feature that there is not")


def _trees_in(root: Any) -> Iterator[Any]:
    """Every decision tree that can be reached from an object."""
    from sklearn.tree._tree import Tree

    waiting, seen = [root], set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, type | ModuleType | FunctionType):
            continue
        seen.add(id(value))
        if isinstance(value, Tree):
            yield value
        elif isinstance(value, np.ndarray):
            waiting.extend(value.ravel() if value.dtype == object else [])
        else:
            waiting.extend(gc.get_referents(value))


def _boosting(s: EstimatorSettings) -> dict[str, Any]:
    return {
        "n_estimators": 200, "learning_rate": 0.06, "num_leaves": 15, "colsample_bytree": 0.5,
        "subsample": 0.8, "subsample_freq": 1, "min_child_samples": 20, "verbose": -1,
        "deterministic": True, "force_row_wise": True, "random_state": s.seed,
        "n_jobs": s.threads,
    }  # fmt: skip


def _lightgbm_classifier(s: EstimatorSettings) -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(class_weight=s.class_weight, **_boosting(s))


def _lightgbm_regressor(s: EstimatorSettings) -> Any:
    from lightgbm import LGBMRegressor

    return LGBMRegressor(**_boosting(s))


_CALIBRATION_TYPES = (
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
)

TABLE: Mapping[str, Estimator] = {
    "logreg": Estimator(
        _logreg,
        None,
        grid={"C": (0.001, 0.01, 0.1, 1.0, 10.0)},
        class_weights=True,
    ),
    "svm": Estimator(
        _svm_classifier,
        _svm_regressor,
        grid={"C": (0.001, 0.01, 0.1, 1.0)},
        calibrated=True,
        class_weights=True,
        types=_CALIBRATION_TYPES,
    ),
    "ridge": Estimator(
        _ridge_classifier,
        _ridge_regressor,
        grid={"alpha": (1.0, 10.0, 100.0, 1_000.0, 10_000.0)},
        calibrated=True,
        class_weights=True,
        types=_CALIBRATION_TYPES,
    ),
    "knn": Estimator(
        _knn_classifier,
        _knn_regressor,
        grid={"n_neighbors": (5, 15, 45, 135)},
        dense=True,
        min_records=_NEIGHBORS,
        bounded="n_neighbors",
        types=(
            "sklearn.metrics._dist_metrics.EuclideanDistance32",
            "sklearn.metrics._dist_metrics.EuclideanDistance64",
            "sklearn.neighbors._kd_tree.KDTree",
            "sklearn.neighbors._kd_tree.KDTree32",
        ),
    ),
    "mlp": Estimator(
        _mlp_classifier,
        _mlp_regressor,
        grid={"alpha": (1e-4, 1e-2, 1.0)},
        types=("sklearn.neural_network._stochastic_optimizers.AdamOptimizer",),
    ),
    "extra_trees": Estimator(
        _extra_trees_classifier,
        _extra_trees_regressor,
        grid={"min_samples_leaf": (1, 3, 10)},
        class_weights=True,
        scaled=False,
        types=("sklearn.tree._tree.Tree",),
        check=_check_trees,
    ),
    "lightgbm": Estimator(
        _lightgbm_classifier,
        _lightgbm_regressor,
        grid={"num_leaves": (7, 15, 31), "learning_rate": (0.03, 0.1)},
        class_weights=True,
        scaled=False,  # trees do not depend on the scale
    ),
}
"""Every estimator by name; the keys are :data:`~embedkit.choices.ESTIMATORS`."""
