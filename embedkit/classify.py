"""Frozen vectors → a run: cross-validated predictions, scores, and the model fitted on all folds.

Everything that is learnt (scale, components, vocabulary, tuned settings) is learnt by the pipeline
from the training records of a fold; held-out records are only predicted.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.errors import UsageError
from embedkit.learners import LearnerSettings, build_learner, grid_of
from embedkit.outcomes import (
    HeldOut,
    Target,
    baseline,
    check_part,
    decide,
    prediction_columns,
    scores_content,
    scores_of,
    target_from,
)
from embedkit.runs import new_run, save_model, versions, write_predictions, write_run
from embedkit.splits import (
    TEST,
    Split,
    fitted_split,
    inner_folds,
    make_split,
    read_split,
    records_of,
    source_of,
    stored_texts,
)
from embedkit.store import VectorData, load

__all__ = ["TrainResult", "cross_validate", "split_for", "target_of", "train"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_INNER_FOLDS = 3


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A finished run.

    Attributes:
        out: its folder.
        content: what ``run.json`` says.
    """

    out: Path
    content: dict[str, Any]


def train(
    dataset: str | Path,
    *,
    out: str | Path,
    view: str | Sequence[str] | None = None,
    classifier: str = "logreg",
    features: str = "vectors",
    task: str = "classification",
    split: str | Path | None = None,
    folds: int = 5,
    pca: int | None = None,
    tune: bool = False,
    class_weight: str | None = None,
    seed: int = 0,
    threads: int = 1,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> TrainResult:
    """Cross-validate a classifier or regressor on stored vectors, and fit it on all folds.

    Args:
        dataset: folder that ``extract`` wrote, with a label column.
        out: folder of the run.
        view: a stored view, or several to put side by side.
        classifier: one of :data:`~embedkit.learners.CLASSIFIERS`.
        features: ``vectors``, or ``tfidf`` on the stored texts.
        task: ``classification`` or ``regression``.
        split: file that ``embedkit split`` wrote; without one ``folds`` folds are dealt.
        folds: number of folds where no split is given.
        pca: number of principal components, learnt in every fold.
        tune: choose settings by inner folds of the training records.
        class_weight: ``balanced`` gives every class the same weight.
        seed: of folds, learners and bootstrap.
        threads: for LightGBM.
        overwrite: replace a run.
        progress: called with a line after every fold.

    Raises:
        UsageError: a view, label, setting or split cannot be used.
        MismatchError: the split belongs to other data.
        OutputExistsError: the folder is in the way.
    """
    settings = LearnerSettings(classifier, features, task, pca, class_weight, seed, threads)
    settings.check()
    data = load(dataset, view)
    target = target_of(data, task)
    chosen = split_for(data, split, folds=folds, seed=seed)
    with new_run(Path(out), overwrite=overwrite) as folder:
        content = _fit_and_write(folder, data, target, chosen, settings, tune, progress)
    return TrainResult(Path(out), content)


def target_of(data: VectorData, task: str) -> Target:
    """Labels of a dataset; errors as for :func:`~embedkit.outcomes.target_from`."""
    return target_from(data.column("label"), rows=data.row, name=str(data.path), task=task)


def split_for(data: VectorData, split: str | Path | None, *, folds: int, seed: int) -> Split:
    """The split that was given, checked and put in the order of the dataset; or a new one.

    Raises:
        MismatchError: it was made for other data.
    """
    if split is None:
        return make_split(records_of(data), folds=folds, seed=seed)
    return fitted_split(
        read_split(Path(split)), source=source_of(data), row=data.row, name=str(data.path),
        file=split,
    )  # fmt: skip


def cross_validate(
    features: Any,
    target: Target,
    split: Split,
    settings: LearnerSettings,
    *,
    tune: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[HeldOut, dict[str, float]]:
    """Fit on the other folds, predict each fold; every record is held out once per repeat.

    Args:
        features: ``(n, width)`` float32, or a list of texts.
        target: what is predicted.
        split: the folds.
        settings: what is fitted.
        tune: choose settings by inner folds.
        progress: called with a line after every fold.

    Returns:
        The predictions, and seconds spent on fitting and predicting.
    """
    parts: list[HeldOut] = []
    cost = {"fit_seconds": 0.0, "predict_seconds": 0.0}
    for repeat in range(split.repeats):
        dealt = split.folds[:, repeat]
        for fold in range(split.n_folds):
            held = np.flatnonzero(dealt == fold)
            known = np.flatnonzero((dealt != fold) & (dealt != TEST))
            check_part(target, known, f"the training part of fold {fold}")
            started = time.perf_counter()
            learner = fit(features, target, split, known, settings, tune=tune)
            fitted = time.perf_counter()
            output = predict_part(learner, features, held, target)
            cost["fit_seconds"] += fitted - started
            cost["predict_seconds"] += time.perf_counter() - fitted
            parts.append(
                HeldOut(held, np.full(len(held), fold), np.full(len(held), repeat), output,
                        decide(output), baseline(target, known, len(held)))
            )  # fmt: skip
            progress(
                f"fold {fold + 1} of {split.n_folds}" + f", repeat {repeat + 1}" * bool(repeat)
            )
    return HeldOut.joined(parts), cost


def fit(
    features: Any,
    target: Target,
    split: Split,
    known: Integers,
    settings: LearnerSettings,
    *,
    tune: bool,
) -> Any:
    """A pipeline fitted on the records ``known`` and on nothing else."""
    learner = build_learner(settings)
    X, y = take(features, known), target.y[known]
    if not tune:
        return learner.fit(X, y)
    from sklearn.model_selection import GridSearchCV

    inner = inner_folds(target.strata[known], split.group[known], _INNER_FOLDS, seed=settings.seed)
    scoring = "neg_log_loss" if target.classes else "neg_root_mean_squared_error"
    search = GridSearchCV(learner, grid_of(settings), scoring=scoring, cv=inner)
    return search.fit(X, y).best_estimator_


def predict_part(learner: Any, features: Any, places: Integers, target: Target) -> Floats:
    """Probabilities of all classes, or values, for some records."""
    X = take(features, places)
    found = learner.predict_proba(X) if target.classes else learner.predict(X)
    return np.asarray(found, np.float64)


def take(features: Any, places: Integers) -> Any:
    """Some records of a matrix or of a list of texts."""
    if isinstance(features, np.ndarray):
        return features[places]
    return [features[i] for i in places]


def _fit_and_write(
    folder: Path,
    data: VectorData,
    target: Target,
    split: Split,
    settings: LearnerSettings,
    tune: bool,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    from embedkit.figures import draw_run

    features = _features(data, settings)
    held, cost = cross_validate(features, target, split, settings, tune=tune, progress=progress)
    known = np.flatnonzero(split.folds[:, 0] != TEST)
    learner = fit(features, target, split, known, settings, tune=tune)
    test = np.flatnonzero(split.folds[:, 0] == TEST)
    scores = {"cross_validation": scores_of(target, held, seed=settings.seed)}
    parts = [held]
    if len(test):
        output = predict_part(learner, features, test, target)
        parts.append(
            HeldOut(test, np.full(len(test), TEST), np.zeros(len(test), np.int64), output,
                    decide(output), baseline(target, known, len(test)))
        )  # fmt: skip
        scores["test"] = scores_of(target, parts[-1], seed=settings.seed)
    write_predictions(folder, [
        prediction_columns(row=data.row, ids=data.ids, target=target, held=part)
        for part in parts
    ])  # fmt: skip
    save_model(folder, learner)
    draw_run(folder, target.y[held.place], held.output, target.classes)
    manifest = data.manifest
    content = {
        "kind": "frozen",
        "learner": asdict(settings),
        "tuned": {name: learner.get_params()[name] for name in grid_of(settings)} if tune else None,
        "views": list(data.views) if settings.features == "vectors" else [],
        "classes": list(target.classes),
        "dataset": {
            "fingerprint": manifest.fingerprint,
            "source": list(source_of(data)),
            "model": manifest.job["model"],
            "vectors": manifest.job["vectors"],
            "unicode": manifest.job["input"]["unicode"],
            "pairs": manifest.job["input"]["text_pair"] is not None,
            "storage": manifest.job["storage"]["profile"],
            "names": manifest.names,
        },
        "split": {"fingerprint": split.fingerprint, **split.settings},
        "records": {"folds": len(known), "test": len(test)},
        "scores": scores_content(scores),
        "cost": {
            **cost,
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "parameters": _parameters(learner),
            "device": "cpu",
        },
        "versions": versions(),
    }
    write_run(folder, content)
    return content


def _features(data: VectorData, settings: LearnerSettings) -> Any:
    if settings.features == "vectors":
        return data.X
    texts = stored_texts(data)
    if texts is None:
        raise UsageError(
            f"--features tfidf needs the texts, and {data.path} was made with --no-text."
        )
    return [text.replace("\x1f", " ") for text in texts]


def _parameters(learner: Any) -> int | None:
    """Numbers that were fitted in the last step of a linear model or network."""
    last = learner.steps[-1][1]
    if hasattr(last, "coef_"):
        return int(np.size(last.coef_) + np.size(last.intercept_))
    if hasattr(last, "coefs_"):
        return sum(int(w.size) for w in [*last.coefs_, *last.intercepts_])
    return None
