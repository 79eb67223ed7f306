"""Frozen vectors → a run: cross-validated predictions, scores, and the model fitted on all folds.

Everything that is learnt (scale, components, vocabulary, tuned settings) is learnt by the pipeline
from the training records of a fold; held-out records are only predicted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.classifiers.estimators import LearnerSettings, build_learner, grid_of
from embedkit.classifiers.test_set import Unseen, unseen_records
from embedkit.dataset.store import VectorData, load
from embedkit.errors import UsageError, first_line
from embedkit.runs.folder import (
    new_run,
    path_from,
    save_model,
    versions,
    write_predictions,
    write_run,
)
from embedkit.runs.metrics import best_threshold, parse_threshold
from embedkit.runs.predictions import (
    HeldOut,
    Target,
    baseline,
    check_folds,
    decide,
    prediction_columns,
    scores_content,
    scores_of,
    target_from,
)
from embedkit.runs.reencoding import made_how
from embedkit.runs.splits import (
    TEST,
    Split,
    check_seed,
    fitted_split,
    inner_folds,
    make_split,
    parted_records,
    read_split,
    records_of,
    source_of,
    split_by_column,
    stored_texts,
)
from embedkit.system import peak_memory_bytes

__all__ = ["ThresholdRule", "TrainResult", "cross_validate", "split_for", "target_of", "train"]

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


@dataclass(frozen=True, slots=True)
class ThresholdRule:
    """How two classes are told apart.

    Attributes:
        fixed: a probability of the second class; ``None`` to choose it by a score.
        beta: of the F score to choose it by; ``None`` for macro-F1.
    """

    fixed: float | None
    beta: float | None

    def inside(
        self, features: Any, target: Target, split: Split, known: Integers,
        settings: LearnerSettings, *, tune: bool,
    ) -> float:  # fmt: skip
        """The threshold from the records ``known`` alone, held out in turn in inner folds."""
        if self.fixed is not None:
            return self.fixed
        output = np.empty(len(known))
        inner = inner_folds(target.strata[known], split.group[known], _INNER_FOLDS,
                            seed=settings.seed)  # fmt: skip
        for learnt, held in inner:
            learner = fit(features, target, split, known[learnt], settings, tune=tune)
            output[held] = predict_part(learner, features, known[held], target)[:, 1]
        return best_threshold(target.y[known], output, beta=self.beta)

    def of(self, y: Integers, output: Floats) -> float:
        """The threshold from probabilities of records that the model had not seen."""
        if self.fixed is not None:
            return self.fixed
        return best_threshold(y, output[:, 1], beta=self.beta)


def train(
    dataset: str | Path,
    *,
    out: str | Path,
    view: str | Sequence[str] | None = None,
    classifier: str = "logreg",
    features: str = "vectors",
    task: str = "classification",
    split: str | Path | None = None,
    split_column: str | None = None,
    folds: int = 5,
    test: str | Path | None = None,
    threshold: str | None = None,
    pca: int | None = None,
    tune: bool = False,
    class_weight: str | None = None,
    seed: int = 0,
    threads: int = 1,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    notify: Callable[[str], None] = lambda _: None,
) -> TrainResult:
    """Cross-validate a classifier or regressor on stored vectors, and fit it on all folds.

    Args:
        dataset: folder that ``extract`` wrote, with a label column.
        out: folder of the run.
        view: a stored view, or several to put side by side.
        classifier: one of :data:`~embedkit.classifiers.estimators.CLASSIFIERS`.
        features: ``vectors``, or ``tfidf`` on the stored texts.
        task: ``classification`` or ``regression``.
        split: file that ``embedkit split`` wrote; without one ``folds`` folds are dealt.
        split_column: kept column that names the folds (``test``: the test part) instead.
        folds: number of folds where no split is given.
        test: a dataset made with the same settings, or a corpus file, to predict as test part.
        threshold: of two classes, the probability from which on the second one is decided on: a
            number, or the score to choose it by in inner folds (``macro_f1``, ``f1``, ``f2`` …).
        pca: number of principal components, learnt in every fold.
        tune: choose settings by inner folds of the training records.
        class_weight: ``balanced`` gives every class the same weight.
        seed: of folds, learners and bootstrap.
        threads: for LightGBM.
        overwrite: replace a run.
        progress: called with a line after every fold.
        notify: called with sentences for the user.

    Raises:
        UsageError: a view, label, setting or split cannot be used.
        MismatchError: the split belongs to other data, or the test part was made otherwise.
        OutputExistsError: the folder is in the way.
    """
    settings = LearnerSettings(classifier, features, task, pca, class_weight, seed, threads)
    settings.check()
    check_seed(seed)
    data = load(dataset, view)
    target = target_of(data, task)
    rule = _rule(threshold, target)
    if split_column is not None:
        if split is not None:
            raise UsageError("give --split or --split-column, not both.")
        chosen = split_by_column(
            records_of(data), data.column(split_column), column=split_column, folds=folds, seed=seed
        )
        if parted := parted_records(chosen):
            notify(
                f"{parted:,} records share their text with one in another part of the column "
                f"{split_column}: what a model has seen, it is asked about"
            )
    else:
        chosen = split_for(data, split, folds=folds, seed=seed)
    unseen = None
    if test is not None:
        if (chosen.folds == TEST).any():
            raise UsageError(
                f"the split holds a test part already; leave out --test {test}, or take a split "
                "without one."
            )
        unseen = unseen_records(
            Path(test), data, target, texts_only=features == "tfidf", notify=notify
        )
    work = _Training(data, target, chosen, settings, rule, tune=tune, progress=progress)
    with new_run(Path(out), overwrite=overwrite) as folder:
        content = work.run(folder, unseen)
    return TrainResult(Path(out), content)


def target_of(data: VectorData, task: str) -> Target:
    """Labels of a dataset; errors as for :func:`~embedkit.runs.predictions.target_from`."""
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
    rule: ThresholdRule | None = None,
    tune: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[HeldOut, dict[str, float]]:
    """Fit on the other folds, predict each fold; every record is held out once per repeat.

    Args:
        features: ``(n, width)`` float32, or a list of texts.
        target: what is predicted.
        split: the folds.
        settings: what is fitted.
        rule: how two classes are told apart; ``None``: by the likelier one.
        tune: choose settings by inner folds.
        progress: called with a line after every fold.

    Returns:
        The predictions, and seconds spent on fitting and predicting.
    """
    check_folds(target, split.folds)
    parts: list[HeldOut] = []
    cost = {"fit_seconds": 0.0, "predict_seconds": 0.0}
    for repeat in range(split.repeats):
        dealt = split.folds[:, repeat]
        for fold in range(split.n_folds):
            held = np.flatnonzero(dealt == fold)
            known = np.flatnonzero((dealt != fold) & (dealt != TEST))
            started = time.perf_counter()
            learner = fit(features, target, split, known, settings, tune=tune)
            threshold = (
                rule.inside(features, target, split, known, settings, tune=tune) if rule else None
            )
            fitted = time.perf_counter()
            output = predict_part(learner, features, held, target)
            cost["fit_seconds"] += fitted - started
            cost["predict_seconds"] += time.perf_counter() - fitted
            parts.append(
                HeldOut(held, np.full(len(held), fold), np.full(len(held), repeat), output,
                        decide(output, threshold=threshold),
                        baseline(target, known, len(held)))
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
    settings.check_count(len(known))
    learner = build_learner(settings)
    X, y = take(features, known), target.y[known]
    with _plainly(settings, len(known)):
        if not tune:
            return learner.fit(X, y)
        from sklearn.model_selection import GridSearchCV

        inner = inner_folds(target.strata[known], split.group[known], _INNER_FOLDS,
                            seed=settings.seed)  # fmt: skip
        fewest = min(len(learnt) for learnt, _ in inner)
        grid = grid_of(settings, records=fewest)
        search = GridSearchCV(learner, grid, scoring=_quality(target), cv=inner)
        return search.fit(X, y).best_estimator_


def predict_part(learner: Any, features: Any, places: Integers, target: Target) -> Floats:
    """Probabilities of all classes, or values, for some records."""
    return _outputs(learner, take(features, places), target)


def _outputs(learner: Any, X: Any, target: Target) -> Floats:
    if not target.classes:
        return np.asarray(learner.predict(X), np.float64)
    found = np.asarray(learner.predict_proba(X), np.float64)
    if found.shape[1] == len(target.classes):
        return found
    whole = np.zeros((len(found), len(target.classes)))
    whole[:, learner.classes_] = found  # an inner part may lack a rare class
    return whole


def _quality(target: Target) -> Callable[[Any, Any, NDArray[Any]], float]:
    """What tuning looks for: likelihood of the true classes, or the least squared error."""

    def score(learner: Any, X: Any, y: NDArray[Any]) -> float:
        output = _outputs(learner, X, target)
        if not target.classes:
            return -float(((y - output) ** 2).mean())
        true = output[np.arange(len(y)), y]
        return float(np.log(np.maximum(true, np.finfo(np.float64).eps)).mean())

    return score


@contextmanager
def _plainly(settings: LearnerSettings, count: int) -> Iterator[None]:
    """Turn what scikit-learn says of records that it cannot learn from into a line for the user."""
    try:
        yield
    except ValueError as error:
        raise UsageError(
            f"--classifier {settings.classifier} cannot be fitted on {count} training records: "
            f"{first_line(error)}."
        ) from error


def take(features: Any, places: Integers) -> Any:
    """Some records of a matrix or of a list of texts."""
    if isinstance(features, np.ndarray):
        return features[places]
    return [features[i] for i in places]


def _rule(text: str | None, target: Target) -> ThresholdRule | None:
    if text is None:
        return None
    if len(target.classes) != 2:
        raise UsageError(
            f"--threshold {text} needs two classes; there are {len(target.classes) or 'values'}."
        )
    return ThresholdRule(*parse_threshold(text))


class _Training:
    """One run: folds, the model fitted on all of them, and a test part where there is one."""

    def __init__(
        self,
        data: VectorData,
        target: Target,
        split: Split,
        settings: LearnerSettings,
        rule: ThresholdRule | None,
        *,
        tune: bool,
        progress: Callable[[str], None],
    ) -> None:
        self._data, self._target, self._split = data, target, split
        self._settings, self._rule, self._tune = settings, rule, tune
        self._progress = progress

    def run(self, folder: Path, unseen: Unseen | None) -> dict[str, Any]:
        """Fit, predict, write everything into the folder; returns what ``run.json`` says."""
        from embedkit.runs.figures import draw_run

        target, split, rule = self._target, self._split, self._rule
        features = _features(self._data, self._settings)
        held, cost = cross_validate(features, target, split, self._settings, rule=rule,
                                    tune=self._tune, progress=self._progress)  # fmt: skip
        known = np.flatnonzero(split.folds[:, 0] != TEST)
        learner = fit(features, target, split, known, self._settings, tune=self._tune)
        threshold = rule.of(target.y[held.place], held.output) if rule else None
        beta = rule.beta if rule else None
        seed = self._settings.seed
        scores = {"cross_validation": scores_of(target, held, seed=seed, beta=beta)}
        columns = [prediction_columns(row=self._data.row, ids=self._data.ids, target=target,
                                      held=held)]  # fmt: skip
        asked = self._test_part(features, unseen)
        if asked is not None:
            row, ids, truth, places, X = asked
            output = _outputs(learner, X, target)
            part = HeldOut(places, np.full(len(places), TEST), np.zeros(len(places), np.int64),
                           output, decide(output, threshold=threshold),
                           baseline(target, known, len(places)))  # fmt: skip
            columns.append(prediction_columns(row=row, ids=ids, target=truth, held=part))
            if len(truth.y):
                scores["test"] = scores_of(truth, part, seed=seed, beta=beta)
        write_predictions(folder, columns)
        save_model(folder, learner)
        draw_run(folder, target.y[held.place], held.output, held.decided, target.classes)
        content = {
            "kind": "frozen",
            "learner": asdict(self._settings),
            "tuned": {name: learner.get_params()[name] for name in grid_of(self._settings)}
            if self._tune else None,
            "views": list(self._data.views) if self._settings.features == "vectors" else [],
            "classes": list(target.classes),
            "threshold": threshold,
            "dataset": {**made_how(self._data), "path": path_from(folder, self._data.path)},
            "split": {"fingerprint": split.fingerprint, **split.settings},
            "records": {"folds": len(known), "test": 0 if asked is None else len(asked[3])},
            "test": None if unseen is None else {
                "source": list(unseen.source), "rejected": unseen.rejected,
                "known_texts": unseen.known_texts,
            },
            "scores": scores_content(scores),
            "cost": {
                **cost,
                "peak_memory_bytes": peak_memory_bytes(),
                "parameters": _parameters(learner),
                "device": "cpu",
            },
            "versions": versions(),
        }  # fmt: skip
        write_run(folder, content)
        return content

    def _test_part(
        self, features: Any, unseen: Unseen | None
    ) -> tuple[Integers, Any, Target, Integers, Any] | None:
        """Rows and ids that places point into, labels, places, and features of the test part."""
        if unseen is not None:
            places = np.arange(len(unseen.row))
            return unseen.row, unseen.ids, unseen.target, places, unseen.features
        places = np.flatnonzero(self._split.folds[:, 0] == TEST)
        if not len(places):
            return None
        return self._data.row, self._data.ids, self._target, places, take(features, places)


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
