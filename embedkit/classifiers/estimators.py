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
from embedkit.classifiers.logistic import LogisticPath
from embedkit.classifiers.scaling import CommonScaler
from embedkit.errors import UsageError, check_counts

__all__ = [
    "SCALINGS",
    "TABLE",
    "Estimator",
    "EstimatorSettings",
    "build_estimator",
    "build_features",
    "parameter_of",
    "scalings_of",
]


_DEFAULTS = {"classification": "logreg", "regression": "ridge"}


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
        metric: what tuning optimises; by default log-loss, or the squared error.
    """

    estimator: str = "logreg"
    features: str = "vectors"
    task: str = "classification"
    pca: int | None = None
    class_weight: str | None = None
    seed: int = 0
    metric: str | None = None

    @classmethod
    def of(cls, estimator: str | None, *, task: str, **settings: Any) -> EstimatorSettings:
        """Return checked settings; the default estimator is that of the task.

        Raises:
            UsageError: a value is unknown, or two of them cannot be combined.
        """
        check_choice(TASKS, task=task)
        made = cls(estimator or _DEFAULTS[task], task=task, **settings)
        made.check()
        return made

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
        check_counts(pca=self.pca)
        if self.row.dense and tfidf:
            raise UsageError(
                f"estimator={self.estimator!r} needs vectors; take another for features='tfidf'."
            )


@dataclass(frozen=True, slots=True)
class Estimator:
    """One kind of estimator.

    Attributes:
        classifier: settings → unfitted classifier.
        regressor: settings → unfitted regressor; ``None``: there is none.
        parameter: the parameter that tuning chooses.
        values: its values, from strong to weak regularisation.
        default: its value without tuning.
        scalings: keys of :data:`SCALINGS` that tuning chooses from; the first without tuning.
        calibrated: the classifier has no probabilities; a sigmoid on its scores, fitted in inner
            folds, gives them.
        scaled_target: the regressor depends on unit and zero of the target, which is therefore
            standardised on the training records.
        path: fits the values in inner folds, each from the coefficients of the one before, in
            place of the classifier; see :class:`~embedkit.classifiers.logistic.LogisticPath`.
        rounds: early stopping in the inner folds chooses the number of trees.
        class_weights: whether the classifier takes weights.
        dense: whether the features must be dense.
        min_records: fewest training records.
        bounded: whether the parameter cannot be larger than the number of training records.
        types: types that a saved model holds beyond those that skops trusts by itself.
        check: raises a ValueError for a model read from a file that would not be safe to apply.
    """

    classifier: Callable[[EstimatorSettings], Any]
    regressor: Callable[[EstimatorSettings], Any] | None
    parameter: str
    values: tuple[Any, ...]
    default: Any
    scalings: tuple[str, ...] = ("rows", "common")
    calibrated: bool = False
    scaled_target: bool = False
    path: type[LogisticPath] | None = None
    rounds: bool = False
    class_weights: bool = False
    dense: bool = False
    min_records: int = 1
    bounded: bool = False
    types: tuple[str, ...] = ()
    check: Callable[[Any], None] | None = None


def _scale_common() -> list[tuple[str, Any]]:
    return [("scale", CommonScaler())]


def _scale_rows() -> list[tuple[str, Any]]:
    from sklearn.preprocessing import Normalizer

    return [("rows", Normalizer()), ("scale", CommonScaler())]


def _scale_columns() -> list[tuple[str, Any]]:
    from sklearn.preprocessing import StandardScaler

    return [("scale", StandardScaler())]


SCALINGS: Mapping[str, Callable[[], list[tuple[str, Any]]]] = {
    "common": _scale_common,  # centred, one factor for all columns
    "rows": _scale_rows,  # each vector to length 1, then the same
    "columns": _scale_columns,  # each column to variance 1
    "none": list,
}
"""Steps in front of an estimator, by name.

One factor for all columns keeps the proportions between the directions, in which encoders store
what they know; a unit variance for each column lifts those that hold noise.
"""


def scalings_of(settings: EstimatorSettings) -> tuple[str, ...]:
    """Return the names of :data:`SCALINGS` to choose from; TF-IDF rows have length 1 already."""
    return settings.row.scalings if settings.features == "vectors" else ("none",)


def parameter_of(settings: EstimatorSettings) -> str:
    """Return the name of the tuned parameter for ``set_params`` of :func:`build_estimator`."""
    wrapped = settings.task == "regression" and settings.row.scaled_target
    return ("regressor__" if wrapped else "") + settings.row.parameter


def build_features(settings: EstimatorSettings, scaling: str | None = None) -> Any:
    """Return the unfitted steps in front of the estimator as a scikit-learn pipeline.

    Its input is ``(n, width)`` float32, or a list of texts for ``tfidf``.

    Args:
        settings: of the pipeline.
        scaling: a key of :data:`SCALINGS`; by default the estimator's first.
    """
    from sklearn.pipeline import Pipeline

    settings.check()
    steps = SCALINGS[scaling or scalings_of(settings)[0]]()
    if settings.features == "tfidf":
        steps.append(("tfidf", _tfidf()))
    if settings.pca is not None:
        from sklearn.decomposition import PCA

        steps.append(("pca", PCA(settings.pca, random_state=settings.seed)))
    return Pipeline(steps or [("nothing", "passthrough")])


def build_estimator(settings: EstimatorSettings, value: Any = None) -> Any:
    """Return the unfitted estimator, without calibration.

    Args:
        settings: of the pipeline.
        value: of the parameter that tuning chooses; by default the row's.

    Raises:
        UsageError: a setting is unknown, or two of them cannot be combined.
    """
    settings.check()
    row = settings.row
    build = row.classifier if settings.task == "classification" else row.regressor
    assert build is not None  # checked above
    estimator = build(settings)
    if settings.task == "regression" and row.scaled_target:
        from sklearn.compose import TransformedTargetRegressor
        from sklearn.preprocessing import StandardScaler

        estimator = TransformedTargetRegressor(estimator, transformer=StandardScaler())
    return estimator.set_params(**{parameter_of(settings): row.default if value is None else value})


def _tfidf() -> Any:
    """Words and pairs of words beside character n-grams, which carry languages without spaces."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import FeatureUnion

    common = {"sublinear_tf": True, "min_df": 2, "dtype": np.float32}
    return FeatureUnion([
        ("words", TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", **common)),
        ("characters", TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), **common)),
    ])  # fmt: skip


def _logreg(s: EstimatorSettings) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=1_000, random_state=s.seed)


def _svm_classifier(s: EstimatorSettings) -> Any:
    from sklearn.svm import LinearSVC

    return LinearSVC(random_state=s.seed)


def _svm_regressor(s: EstimatorSettings) -> Any:
    from sklearn.svm import LinearSVR

    return LinearSVR(random_state=s.seed, max_iter=10_000)


def _ridge_classifier(s: EstimatorSettings) -> Any:
    from sklearn.linear_model import RidgeClassifier

    return RidgeClassifier(random_state=s.seed)


def _ridge_regressor(s: EstimatorSettings) -> Any:
    from sklearn.linear_model import Ridge

    return Ridge(random_state=s.seed)


def _knn_classifier(_: EstimatorSettings) -> Any:
    from sklearn.neighbors import KNeighborsClassifier

    return KNeighborsClassifier(weights="distance")


def _knn_regressor(_: EstimatorSettings) -> Any:
    from sklearn.neighbors import KNeighborsRegressor

    return KNeighborsRegressor(weights="distance")


def _mlp_classifier(s: EstimatorSettings) -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier(hidden_layer_sizes=(128,), early_stopping=True, random_state=s.seed)


def _mlp_regressor(s: EstimatorSettings) -> Any:
    from sklearn.neural_network import MLPRegressor

    return MLPRegressor(hidden_layer_sizes=(128,), early_stopping=True, random_state=s.seed)


def _extra_trees_classifier(s: EstimatorSettings) -> Any:
    from sklearn.ensemble import ExtraTreesClassifier

    # one thread: several add up their probabilities in any order, which changes the last bits
    return ExtraTreesClassifier(n_estimators=200, random_state=s.seed)


def _extra_trees_regressor(s: EstimatorSettings) -> Any:
    from sklearn.ensemble import ExtraTreesRegressor

    return ExtraTreesRegressor(n_estimators=200, max_features="sqrt", random_state=s.seed)


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
        "n_estimators": 100, "learning_rate": 0.05, "colsample_bytree": 0.2, "subsample": 0.8,
        "subsample_freq": 1, "min_child_samples": 10, "reg_lambda": 1.0, "verbose": -1,
        "deterministic": True, "force_row_wise": True, "random_state": s.seed, "n_jobs": 1,
    }  # fmt: skip


def _lightgbm_classifier(s: EstimatorSettings) -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(**_boosting(s))


def _lightgbm_regressor(s: EstimatorSettings) -> Any:
    from lightgbm import LGBMRegressor

    return LGBMRegressor(**_boosting(s))


_CALIBRATION_TYPES = (
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
)
_SCALER_TYPES = ("embedkit.classifiers.scaling.CommonScaler",)

TABLE: Mapping[str, Estimator] = {
    "logreg": Estimator(
        _logreg,
        None,
        parameter="C",
        values=(1e-4, 0.01, 0.1, 1.0, 10.0, 100.0, 1_000.0),  # the first is the prior, nearly
        default=1.0,
        path=LogisticPath,
        class_weights=True,
        types=_SCALER_TYPES,
    ),
    "svm": Estimator(
        _svm_classifier,
        _svm_regressor,
        parameter="C",
        values=(0.003, 0.03, 0.3, 3.0, 30.0),
        default=0.3,
        calibrated=True,
        scaled_target=True,
        class_weights=True,
        types=(*_SCALER_TYPES, *_CALIBRATION_TYPES),
    ),
    "ridge": Estimator(
        _ridge_classifier,
        _ridge_regressor,
        parameter="alpha",
        values=(100.0, 10.0, 1.0, 0.1, 0.01),
        default=1.0,
        calibrated=True,
        class_weights=True,
        types=(*_SCALER_TYPES, *_CALIBRATION_TYPES),
    ),
    "knn": Estimator(
        _knn_classifier,
        _knn_regressor,
        parameter="n_neighbors",
        values=(135, 45, 15, 5),
        default=15,
        dense=True,
        min_records=15,
        bounded=True,
        types=(
            *_SCALER_TYPES,
            "sklearn.metrics._dist_metrics.EuclideanDistance32",
            "sklearn.metrics._dist_metrics.EuclideanDistance64",
            "sklearn.neighbors._kd_tree.KDTree",
            "sklearn.neighbors._kd_tree.KDTree32",
        ),
    ),
    "mlp": Estimator(
        _mlp_classifier,
        _mlp_regressor,
        parameter="alpha",
        values=(1.0, 1e-2, 1e-4),
        default=1e-4,
        scalings=("columns",),
        scaled_target=True,
        types=("sklearn.neural_network._stochastic_optimizers.AdamOptimizer",),
    ),
    "extra_trees": Estimator(
        _extra_trees_classifier,
        _extra_trees_regressor,
        parameter="min_samples_leaf",
        values=(3,),
        default=3,
        scalings=("none",),  # trees do not depend on the scale
        class_weights=True,
        types=("sklearn.tree._tree.Tree",),
        check=_check_trees,
    ),
    "lightgbm": Estimator(
        _lightgbm_classifier,
        _lightgbm_regressor,
        parameter="num_leaves",
        values=(15,),
        default=15,
        scalings=("none",),
        rounds=True,
        class_weights=True,
    ),
}
"""Every estimator by name; the keys are :data:`~embedkit.choices.ESTIMATORS`."""
