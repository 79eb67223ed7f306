"""The classifiers and regressors that are offered, as scikit-learn pipelines.

Scaling, principal components and vocabularies are steps of the pipeline, so that whoever fits it on
training records learns them from those alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embedkit.errors import UsageError, did_you_mean

__all__ = ["CLASSIFIERS", "FEATURES", "TASKS", "LearnerSettings", "build_learner", "grid_of"]

CLASSIFIERS = ("logreg", "svm", "ridge", "knn", "mlp", "lightgbm")
FEATURES = ("vectors", "tfidf")
TASKS = ("classification", "regression")

_NEIGHBOURS = 15
_WEIGHTED = ("logreg", "svm", "ridge", "lightgbm")

_GRIDS: Mapping[str, Mapping[str, list[Any]]] = {
    "logreg": {"C": [0.001, 0.01, 0.1, 1.0, 10.0]},
    "svm": {"C": [0.001, 0.01, 0.1, 1.0]},
    "ridge": {"alpha": [1.0, 10.0, 100.0, 1_000.0, 10_000.0]},
    "knn": {"n_neighbors": [5, 15, 45, 135]},
    "mlp": {"alpha": [1e-4, 1e-2, 1.0]},
    "lightgbm": {"num_leaves": [7, 15, 31], "learning_rate": [0.03, 0.1]},
}


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """What is fitted.

    Attributes:
        classifier: one of :data:`CLASSIFIERS`; for regression its counterpart.
        features: ``vectors``, or ``tfidf`` of words and characters.
        task: one of :data:`TASKS`.
        pca: number of principal components, or ``None``.
        class_weight: ``balanced`` or ``None``.
        seed: of everything that draws.
        threads: for LightGBM.
    """

    classifier: str = "logreg"
    features: str = "vectors"
    task: str = "classification"
    pca: int | None = None
    class_weight: str | None = None
    seed: int = 0
    threads: int = 1

    def check(self) -> None:
        """Raise a :class:`UsageError` for what does not exist or does not go together."""
        for option, value, known in (
            ("--classifier", self.classifier, CLASSIFIERS),
            ("--features", self.features, FEATURES),
            ("--task", self.task, TASKS),
        ):
            if value not in known:
                raise UsageError(
                    f"{option} {value}: expected {', '.join(known)}.{did_you_mean(value, known)}"
                )
        if self.task == "regression" and self.classifier == "logreg":
            raise UsageError(
                "--classifier logreg classifies; for --task regression take ridge, svm, knn, mlp "
                "or lightgbm."
            )
        if self.class_weight and (self.task == "regression" or self.classifier not in _WEIGHTED):
            raise UsageError(
                f"--class-weight: {self.classifier} takes no class weights; "
                f"{', '.join(_WEIGHTED)} do, in classification."
            )
        if self.pca is not None and self.features == "tfidf":
            raise UsageError("--pca needs vectors; the features of --features tfidf are sparse.")
        if self.pca is not None and self.pca < 1:
            raise UsageError(f"--pca {self.pca}: expected 1 or more components.")
        if self.classifier == "knn" and self.features == "tfidf":
            raise UsageError("--classifier knn needs vectors; take another for --features tfidf.")

    def check_count(self, records: int) -> None:
        """Raise a :class:`UsageError` if there are too few records to learn from."""
        if self.classifier == "knn" and records < _NEIGHBOURS:
            raise UsageError(
                f"--classifier knn asks the {_NEIGHBOURS} nearest of {records} training records. "
                "Take another classifier."
            )


def build_learner(settings: LearnerSettings) -> Any:
    """An unfitted scikit-learn pipeline.

    Its input is ``(n, width)`` float32, or a list of texts for ``tfidf``.
    """
    from sklearn.pipeline import Pipeline

    settings.check()
    steps: list[tuple[str, Any]] = []
    if settings.features == "tfidf":
        steps.append(("tfidf", _tfidf()))
    else:
        from sklearn.preprocessing import StandardScaler

        if settings.classifier != "lightgbm":  # trees do not see the scale
            steps.append(("scale", StandardScaler()))
        if settings.pca is not None:
            from sklearn.decomposition import PCA

            steps.append(("pca", PCA(settings.pca, random_state=settings.seed)))
    regression = settings.task == "regression"
    steps.append(("learner", _regressor(settings) if regression else _classifier(settings)))
    return Pipeline(steps)


def grid_of(settings: LearnerSettings, *, records: int | None = None) -> dict[str, list[Any]]:
    """What tuning tries, by parameter of :func:`build_learner`'s pipeline.

    Args:
        settings: what is tuned.
        records: how many it is fitted on; no more neighbours than these are tried.
    """
    inside = settings.task == "classification" and settings.classifier in ("svm", "ridge")
    prefix = "learner__estimator__" if inside else "learner__"
    grid = {prefix + name: list(values) for name, values in _GRIDS[settings.classifier].items()}
    if settings.classifier == "knn" and records is not None:
        few = [count for count in grid["learner__n_neighbors"] if count <= records]
        grid["learner__n_neighbors"] = few or [1]
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


def _classifier(settings: LearnerSettings) -> Any:
    seed, weight = settings.seed, settings.class_weight
    if settings.classifier == "logreg":
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(max_iter=1_000, class_weight=weight, random_state=seed)
    if settings.classifier == "svm":
        from sklearn.svm import LinearSVC

        return _calibrated(LinearSVC(C=_svm_c(settings), class_weight=weight, random_state=seed))
    if settings.classifier == "ridge":
        from sklearn.linear_model import RidgeClassifier

        return _calibrated(RidgeClassifier(alpha=_ridge_alpha(settings), class_weight=weight,
                                           random_state=seed))  # fmt: skip
    if settings.classifier == "knn":
        from sklearn.neighbors import KNeighborsClassifier

        return KNeighborsClassifier(_NEIGHBOURS, weights="distance")
    if settings.classifier == "mlp":
        from sklearn.neural_network import MLPClassifier

        return MLPClassifier(hidden_layer_sizes=(128,), early_stopping=True, random_state=seed)
    from lightgbm import LGBMClassifier

    return LGBMClassifier(class_weight=weight, **_boosting(settings))


def _regressor(settings: LearnerSettings) -> Any:
    seed = settings.seed
    if settings.classifier == "ridge":
        from sklearn.linear_model import Ridge

        return Ridge(alpha=_ridge_alpha(settings), random_state=seed)
    if settings.classifier == "svm":
        from sklearn.svm import LinearSVR

        return LinearSVR(C=_svm_c(settings), random_state=seed)
    if settings.classifier == "knn":
        from sklearn.neighbors import KNeighborsRegressor

        return KNeighborsRegressor(_NEIGHBOURS, weights="distance")
    if settings.classifier == "mlp":
        from sklearn.neural_network import MLPRegressor

        return MLPRegressor(hidden_layer_sizes=(128,), early_stopping=True, random_state=seed)
    from lightgbm import LGBMRegressor

    return LGBMRegressor(**_boosting(settings))


def _svm_c(settings: LearnerSettings) -> float:
    """Rows of TF-IDF are of length 1, scaled vectors far longer: the same is stricter there."""
    return 0.1 if settings.features == "tfidf" else 0.01


def _ridge_alpha(settings: LearnerSettings) -> float:
    return 5.0 if settings.features == "tfidf" else 100.0


def _calibrated(classifier: Any) -> Any:
    """A classifier without probabilities, with a sigmoid on its scores learnt by inner folds."""
    from sklearn.calibration import CalibratedClassifierCV

    return CalibratedClassifierCV(classifier, method="sigmoid", cv=3, ensemble=False)


def _boosting(settings: LearnerSettings) -> dict[str, Any]:
    return {
        "n_estimators": 200, "learning_rate": 0.06, "num_leaves": 15, "colsample_bytree": 0.5,
        "subsample": 0.8, "subsample_freq": 1, "min_child_samples": 20, "verbose": -1,
        "deterministic": True, "force_row_wise": True, "random_state": settings.seed,
        "n_jobs": settings.threads,
    }  # fmt: skip
