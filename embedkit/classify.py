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

from embedkit.errors import MismatchError, UsageError
from embedkit.learners import LearnerSettings, build_learner, grid_of
from embedkit.runs import (
    new_run,
    path_from,
    save_model,
    versions,
    write_predictions,
    write_run,
)
from embedkit.scores import Score, classification_scores, regression_scores
from embedkit.splits import (
    TEST,
    Split,
    inner_folds,
    make_split,
    read_split,
    records_of,
    source_of,
    stored_texts,
)
from embedkit.store import VectorData, load

__all__ = ["HeldOut", "Target", "TrainResult", "cross_validate", "split_for", "target_of", "train"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_INNER_FOLDS = 3


@dataclass(frozen=True, slots=True)
class Target:
    """What is predicted.

    Attributes:
        y: ``(n,)`` class numbers int64, or values float64 of a regression.
        classes: labels by class number; empty for a regression.
    """

    y: NDArray[Any]
    classes: tuple[str, ...]

    @property
    def strata(self) -> Integers:
        """Class numbers, or one class for all in a regression."""
        return self.y if self.classes else np.zeros(len(self.y), np.int64)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Predictions for records that the model had not seen.

    Attributes:
        place: ``(m,)`` position of each record in the dataset.
        fold: ``(m,)`` fold it was held out in, ``-1`` for the test part.
        repeat: ``(m,)`` number of the deal.
        output: ``(m, classes)`` probabilities, or ``(m,)`` values of a regression.
        baseline: the same from the majority (class shares, or mean) of the training records.
    """

    place: Integers
    fold: Integers
    repeat: Integers
    output: Floats
    baseline: Floats


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
    chosen = split_for(data, split, folds=folds, seed=seed, task=task)
    with new_run(Path(out), overwrite=overwrite) as folder:
        content = _fit_and_write(folder, data, target, chosen, settings, tune, progress)
    return TrainResult(Path(out), content)


def target_of(data: VectorData, task: str) -> Target:
    """Labels of a dataset as numbers.

    Raises:
        UsageError: there is no label column, or a label is missing, constant or no number.
    """
    labels = data.column("label")
    missing = [i for i, x in enumerate(labels) if x is None or not x.strip()]
    if missing:
        rows = ", ".join(str(data.row[i]) for i in missing[:5])
        raise UsageError(
            f"{data.path}: {len(missing)} records have no label (rows {rows}). "
            "Leave them out of the corpus and extract again."
        )
    names = np.unique(np.array(labels, np.str_))
    if len(names) < 2:
        raise UsageError(f"{data.path}: all records have the label {str(names[0])!r}." if len(names)
                         else f"{data.path} has no records.")  # fmt: skip
    if task == "regression":
        return Target(_values(data, labels), ())
    classes = tuple(sorted(names.tolist(), key=_in_order))
    numbers = {name: i for i, name in enumerate(classes)}
    return Target(np.array([numbers[x] for x in labels], np.int64), classes)


def split_for(
    data: VectorData, split: str | Path | None, *, folds: int, seed: int, task: str
) -> Split:
    """The split that was given, checked and put in the order of the dataset; or a new one.

    Raises:
        MismatchError: it was made for other data.
    """
    if split is None:
        return make_split(records_of(data), folds=folds, seed=seed)
    found = read_split(Path(split))
    if tuple(found.settings["source"]) != source_of(data):
        raise MismatchError(
            f"{split} was made for other data than {data.path} (their input files differ). "
            f"Make one for it: embedkit split {data.path} --out FILE."
        )
    places = np.searchsorted(found.row, data.row)
    inside = np.minimum(places, len(found.row) - 1)
    missing = int((found.row[inside] != data.row).sum())
    if missing:
        raise MismatchError(
            f"{split} has no fold for {missing} of the {len(data.row)} records of {data.path}. "
            f"Make one for it: embedkit split {data.path} --out FILE."
        )
    return Split(data.row, found.group[places], found.folds[places], found.settings)


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
    parts: list[tuple[Integers, Integers, Integers, Floats, Floats]] = []
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
            parts.append((held, np.full(len(held), fold), np.full(len(held), repeat), output,
                          baseline(target, known, len(held))))  # fmt: skip
            progress(
                f"fold {fold + 1} of {split.n_folds}" + f", repeat {repeat + 1}" * bool(repeat)
            )
    place, fold_, repeat_, output, majority = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    order = np.lexsort((place, repeat_))
    return (
        HeldOut(place[order], fold_[order], repeat_[order], output[order], majority[order]),
        cost,
    )


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


def baseline(target: Target, known: Integers, count: int) -> Floats:
    """What is predicted from the training labels alone: shares of the classes, or the mean."""
    y = target.y[known]
    if not target.classes:
        return np.full(count, y.mean())
    shares = np.bincount(y, minlength=len(target.classes)) / len(y)
    return np.tile(shares, (count, 1))


def check_part(target: Target, known: Integers, name: str) -> None:
    """Raise a :class:`UsageError` if a class does not occur among some records."""
    if not target.classes:
        return
    there = np.bincount(target.y[known], minlength=len(target.classes)) > 0
    if not there.all():
        absent = target.classes[int(np.argmin(there))]
        raise UsageError(
            f"label {absent!r} does not occur in {name}. Use other folds, or leave the label out."
        )


def scores_of(
    target: Target, held: HeldOut, *, seed: int
) -> tuple[dict[str, Score], dict[str, Score]]:
    """Scores of the model and of the majority on the same records."""
    y = target.y[held.place]
    if not target.classes:
        return (
            regression_scores(y, held.output, seed=seed),
            regression_scores(y, held.baseline, seed=seed),
        )
    return (
        classification_scores(y, held.output, held.output.argmax(1), seed=seed),
        classification_scores(y, held.baseline, held.baseline.argmax(1), seed=seed),
    )


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
        parts.append(
            HeldOut(
                test, np.full(len(test), TEST), np.zeros(len(test), np.int64),
                predict_part(learner, features, test, target), baseline(target, known, len(test)),
            )
        )  # fmt: skip
        scores["test"] = scores_of(target, parts[-1], seed=settings.seed)
    write_predictions(folder, _columns(data, target, parts))
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
            "path": path_from(folder, data.path),
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
        "scores": {
            part: {
                name: {**asdict(score), "majority": majority[name].value}
                for name, score in found.items()
            }
            for part, (found, majority) in scores.items()
        },
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


def _columns(data: VectorData, target: Target, parts: Sequence[HeldOut]) -> dict[str, Any]:
    place, fold, repeat = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("place", "fold", "repeat")
    )
    output = np.concatenate([part.output for part in parts])
    columns: dict[str, Any] = {
        "row": data.row[place],
        "id": [str(x) for x in data.ids[place]],
        "repeat": repeat.astype(np.int16),
        "fold": ["test" if f == TEST else str(f) for f in fold],
    }
    if not target.classes:
        return columns | {"y_true": target.y[place], "y_pred": output}
    names = np.array(target.classes)
    columns["y_true"] = names[target.y[place]].tolist()
    columns["y_pred"] = names[output.argmax(1)].tolist()
    return columns | {f"proba_{name}": output[:, i] for i, name in enumerate(target.classes)}


def _values(data: VectorData, labels: Sequence[str]) -> Floats:
    result = np.empty(len(labels))
    for i, label in enumerate(labels):
        try:
            result[i] = float(label)
        except ValueError:
            result[i] = np.nan
        if not np.isfinite(result[i]):
            raise UsageError(
                f"{data.path}: the label {label!r} of row {data.row[i]} is no number, as --task "
                "regression needs."
            )
    return result


def _in_order(label: str) -> tuple[int, float, str]:
    """Numbers by value, then everything else by name."""
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label


def _parameters(learner: Any) -> int | None:
    """Numbers that were fitted in the last step of a linear model or network."""
    last = learner.steps[-1][1]
    if hasattr(last, "coef_"):
        return int(np.size(last.coef_) + np.size(last.intercept_))
    if hasattr(last, "coefs_"):
        return sum(int(w.size) for w in [*last.coefs_, *last.intercepts_])
    return None
