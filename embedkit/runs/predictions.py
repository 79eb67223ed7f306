"""Predictions for held-out records, and ``predictions.parquet``.

    row, id, group, repeat, fold, y_true, y_pred, proba_<class> …   of a regression without proba_
    row, word, id …                                                 of words

Every way to a run (estimators on vectors, fine-tuned encoders, blends) ends in the same record, so
that scores and files are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedkit import fsio
from embedkit.checksums import check_files
from embedkit.decoding import check_columns, read_table
from embedkit.errors import DamagedError, UsageError
from embedkit.runs.content import ClassScore, ReportedScore
from embedkit.runs.metrics import Metric, beta_of, classification_metrics, regression_metrics
from embedkit.runs.resampling import scored
from embedkit.runs.split_files import TEST
from embedkit.runs.targets import Target, class_prior
from embedkit.types import Float64, Int64

__all__ = [
    "Predictions",
    "class_scores",
    "decide",
    "fold_names",
    "keys_of",
    "metric_values",
    "metrics_of",
    "read_predictions",
    "reported_scores",
    "scores_by_class",
    "write_predictions",
]

_FILE, _INNER_FILE = "predictions.parquet", "inner_predictions.parquet"
_COLUMNS = {"row": pa.int64(), "id": pa.string(), "group": pa.int64(), "repeat": pa.int16(),
            "fold": pa.string()}  # fmt: skip
_ADVICE = "Make the run again."
_ROUNDING = 1e-3
_ARRAYS = ("row", "group", "fold", "repeat", "y", "proba", "y_pred", "word")
_MOST_WORDS = 1 << 20  # of a record; it has at most a million characters


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Predictions by models that had not seen the records.

    Out-of-fold predictions come first, ordered by repeat and row; then the test set.

    Attributes:
        row: ``(m,)`` record numbers.
        ids: ``m`` ids.
        group: ``(m,)`` sampling unit: records that the split keeps together have the same.
        fold: ``(m,)`` fold that the record was held out in, ``-1`` for the test set.
        repeat: ``(m,)`` number of the repeat.
        y: ``(m,)`` class numbers int64, or values float64 of a regression; ``-1`` or NaN in a test
            set without labels.
        proba: ``(m, classes)`` probabilities, or ``(m,)`` values of a regression.
        y_pred: ``(m,)`` predicted class numbers, or the values of a regression.
        classes: labels by class number; empty for a regression.
        inner: predictions for the training records of each fold, by models that saw neither them
            nor the fold; their ``fold`` is the fold left out. ``None`` where there are none.
            :meth:`take` and :meth:`with_proba` leave them out.
        word: ``(m,)`` number of the word in the record; -1 where records are predicted.
    """

    row: Int64
    ids: tuple[str, ...]
    group: Int64
    fold: Int64
    repeat: Int64
    y: NDArray[Any]
    proba: Float64
    y_pred: NDArray[Any]
    classes: tuple[str, ...]
    inner: Predictions | None = None
    word: Int64 = field(default_factory=lambda: np.full(0, -1))

    def __post_init__(self) -> None:
        if len(self.word) < len(self.row):
            object.__setattr__(self, "word", np.full(len(self.row), -1))

    @classmethod
    def of_fold(
        cls,
        index: Int64,
        proba: Float64,
        *,
        row: Int64,
        ids: Sequence[str] | NDArray[np.str_],
        target: Target,
        fold: int,
        group: Int64 | None = None,
        repeat: int = 0,
        threshold: float | None = None,
        inner: Predictions | None = None,
        word: Int64 | None = None,
    ) -> Predictions:
        """Return the predictions of one fold, or of the test set.

        Args:
            index: ``(m,)`` indices into ``row``, ``ids`` and the target.
            proba: ``(m, classes)`` probabilities, or ``(m,)`` values.
            row: ``(n,)`` record numbers.
            ids: ``n`` ids.
            target: true labels; its ``y`` may be empty where they are not known.
            fold: number of the fold; ``-1`` for the test set.
            group: ``(n,)`` groups of the split; by default each record is its own.
            repeat: number of the repeat.
            threshold: as for :func:`decide`.
            inner: predictions for the training records of the fold, where there are any.
            word: ``(n,)`` number of each word in its record, where words are predicted.
        """
        unknown = np.full(len(index), -1) if target.classes else np.full(len(index), np.nan)
        return cls(
            row=row[index],
            ids=tuple(str(ids[i]) for i in index),
            group=(row if group is None else group)[index],
            fold=np.full(len(index), fold),
            repeat=np.full(len(index), repeat),
            y=target.y[index] if len(target.y) else unknown,
            proba=proba,
            y_pred=decide(proba, threshold=threshold),
            classes=target.classes,
            inner=inner,
            word=np.full(len(index), -1) if word is None else word[index],
        )

    @classmethod
    def joined(cls, subsets: Sequence[Predictions]) -> Predictions:
        """Return several subsets as one, in order."""
        found = {n: np.concatenate([getattr(s, n) for s in subsets]) for n in _ARRAYS}
        ids = tuple(identifier for subset in subsets for identifier in subset.ids)
        inner = [subset.inner for subset in subsets if subset.inner is not None]
        return cls(
            **found, ids=ids, classes=subsets[0].classes,
            inner=cls.joined(inner) if inner else None,
        )._ordered()  # fmt: skip

    def _ordered(self) -> Predictions:
        order = np.lexsort((self.keys, self.repeat, self.fold == TEST))
        return replace(self.take(order), inner=self.inner)

    def take(self, index: Int64) -> Predictions:
        """Return some of the predictions."""
        return Predictions(
            **{name: getattr(self, name)[index] for name in _ARRAYS},
            ids=tuple(self.ids[i] for i in index),
            classes=self.classes,
        )

    @property
    def keys(self) -> Int64:
        """``(m,)`` numbers that are equal for the same word of the same record, in their order."""
        return keys_of(self.row, self.word)

    @property
    def of_words(self) -> bool:
        """Whether words are predicted, not records."""
        return bool((self.word >= 0).any())

    @property
    def out_of_fold(self) -> Int64:
        """Indices of the out-of-fold predictions."""
        return np.flatnonzero(self.fold != TEST)

    @property
    def test(self) -> Int64:
        """Indices of the test set."""
        return np.flatnonzero(self.fold == TEST)

    @property
    def scored_test(self) -> Int64:
        """Indices of the records of the test set whose labels are known."""
        known = self.y >= 0 if self.classes else np.isfinite(self.y)
        return np.flatnonzero((self.fold == TEST) & known)

    @property
    def first_repeat(self) -> Int64:
        """Indices of the out-of-fold predictions of the first repeat: every record once."""
        return np.flatnonzero((self.fold != TEST) & (self.repeat == 0))

    def folds(self) -> list[tuple[Int64, Int64]]:
        """Return train and test indices of every fold of every repeat."""
        found = []
        for repeat in np.unique(self.repeat[self.out_of_fold]):
            here = (self.repeat == repeat) & (self.fold != TEST)
            for fold in np.unique(self.fold[here]):
                test = here & (self.fold == fold)
                found.append((np.flatnonzero(here & ~test), np.flatnonzero(test)))
        return found

    def with_proba(self, proba: Float64, y_pred: NDArray[Any] | None = None) -> Predictions:
        """Return other predictions for the same records."""
        y_pred = decide(proba) if y_pred is None else y_pred
        return replace(self, proba=proba, y_pred=y_pred, inner=None)

    def _inner_labels(self, test: Int64) -> NDArray[Any]:
        """Labels of the training records of a fold that have inner predictions."""
        inner, repeat = self.inner, self.repeat[test[0]]
        if inner is None:
            raise UsageError(
                "a split of one fold has no training labels to compare with: train with tune=True, "
                "or fine-tune with validation= above 0."
            )
        return np.asarray(inner.y[inner.repeat == repeat])

    def majority(self) -> Predictions:
        """Return the baseline: class frequencies (or the mean) of each fold's training records.

        Where no other fold holds them, they are those with inner predictions.
        """
        proba = np.empty(self.proba.shape)
        for train, test in [*self.folds(), (self.first_repeat, self.test)]:
            if len(test):
                y = self.y[train] if len(train) else self._inner_labels(test)
                proba[test] = class_prior(y, self.classes, len(test))
        return self.with_proba(proba)


def keys_of(row: Int64, word: NDArray[Any] | None) -> Int64:
    """Return ``(n,)`` numbers that are equal for the same record, or word of a record, in order."""
    return np.asarray(row * _MOST_WORDS + (0 if word is None else word.astype(np.int64) + 1))


def decide(proba: Float64, *, threshold: float | None = None) -> NDArray[Any]:
    """Return class numbers for probabilities ``(n, classes)``; values ``(n,)`` are returned as is.

    With a threshold, the second of two classes is predicted where its probability reaches it.
    """
    if proba.ndim == 1:
        return proba
    if threshold is None:
        return np.asarray(proba.argmax(1), np.int64)
    return np.asarray(proba[:, 1] >= threshold, np.int64)


def metrics_of(
    p: Predictions, *, beta: float | None = None, baseline: bool = False
) -> dict[str, Metric]:
    """Return the metrics of predictions as functions of weights.

    Args:
        p: the predictions, whose labels are known.
        beta: also F-beta of the second of two classes.
        baseline: whether these are the majority's. Its F-beta is that of predicting the second
            class for every record, the best that is possible without looking; predicting it for
            none scores 0.
    """
    if not p.classes:
        return regression_metrics(p.y, p.proba)
    found = classification_metrics(p.y, p.proba, p.y_pred, beta=beta)
    if baseline and len(p.classes) == 2:
        positive = classification_metrics(p.y, p.proba, np.ones_like(p.y_pred), beta=beta)
        found |= {name: positive[name] for name in found if beta_of(name)}
    return found


def reported_scores(
    predictions: Predictions, *, seed: int, beta: float | None = None
) -> dict[str, dict[str, ReportedScore]]:
    """Return scores by subset (``cross_validation``, ``test``) and metric, with the baseline's.

    Args:
        predictions: of all folds, and of the test set where there is one.
        seed: of the blocks that many units are put together in.
        beta: also F-beta of the second of two classes.
    """
    baseline = predictions.majority()
    found = {}
    for name, index in _scored_subsets(predictions).items():
        ours, theirs = predictions.take(index), baseline.take(index)
        majority = metrics_of(theirs, beta=beta, baseline=True)
        scores = scored(metrics_of(ours, beta=beta), ours.group, seed=seed)
        found[name] = {
            metric: ReportedScore(**asdict(score), majority=majority[metric].value(len(index)))
            for metric, score in scores.items()
        }
    return found


def metric_values(
    predictions: Predictions, *, beta: float | None = None
) -> dict[str, dict[str, float]]:
    """Return scores without intervals, by subset and metric.

    Args:
        predictions: of all folds, and of the test set where there is one.
        beta: also F-beta of the second of two classes.
    """
    found = {}
    for name, index in _scored_subsets(predictions).items():
        metrics = metrics_of(predictions.take(index), beta=beta)
        found[name] = {metric: one.value(len(index)) for metric, one in metrics.items()}
    return found


def class_scores(predictions: Predictions) -> dict[str, tuple[ClassScore, ...]]:
    """Return precision, recall, F1 and support by subset and class; empty for a regression."""
    subsets = _scored_subsets(predictions) if predictions.classes else {}
    return {name: scores_by_class(predictions.take(index)) for name, index in subsets.items()}


def scores_by_class(p: Predictions) -> tuple[ClassScore, ...]:
    """Return precision, recall, F1 and support of every class, in the order of the classes."""
    from sklearn.metrics import precision_recall_fscore_support

    columns = precision_recall_fscore_support(
        p.y, p.y_pred, labels=range(len(p.classes)), zero_division=0
    )
    return tuple(
        ClassScore(label, float(precision), float(recall), float(f1), int(support))
        for label, precision, recall, f1, support in zip(p.classes, *columns, strict=True)
    )


def _scored_subsets(predictions: Predictions) -> dict[str, Int64]:
    subsets = {"cross_validation": predictions.out_of_fold, "test": predictions.scored_test}
    return {name: index for name, index in subsets.items() if len(index)}


def write_predictions(folder: Path, predictions: Predictions) -> None:
    """Write ``predictions.parquet`` of a run, and ``inner_predictions.parquet`` if it has any.

    The same predictions give the same bytes.
    """
    fsio.write_parquet(folder / _FILE, _table(predictions))
    if predictions.inner is not None:
        fsio.write_parquet(folder / _INNER_FILE, _table(predictions.inner))


def _table(predictions: Predictions) -> pa.Table:
    p, names = predictions, predictions.classes
    columns: dict[str, Any] = {
        "row": p.row,
        **({"word": p.word.astype(np.int32)} if p.of_words else {}),
        "id": pa.array(p.ids, pa.string()),
        "group": p.group,
        "repeat": p.repeat.astype(np.int16),
        "fold": fold_names(p.fold),
    }
    if names:
        labels: Mapping[int, str | None] = dict(enumerate(names)) | {-1: None}
        columns["y_true"] = pa.array([labels[int(i)] for i in p.y], pa.string())
        columns["y_pred"] = [names[i] for i in p.y_pred]
        columns |= {f"proba_{label}": p.proba[:, i] for i, label in enumerate(names)}
    else:
        columns |= {"y_true": pa.array(p.y, from_pandas=True), "y_pred": p.proba}
    return pa.table(columns)


def fold_names(fold: Int64) -> list[str]:
    """Return fold numbers as files hold them: ``test`` for the test set."""
    return ["test" if f == TEST else str(f) for f in fold]


def read_predictions(folder: Path, classes: tuple[str, ...]) -> Predictions:
    """Read the predictions of a run.

    Args:
        folder: of the run.
        classes: labels by class number; empty for a regression.

    Raises:
        DamagedError: a file was changed since, cannot be read, or lacks a column or label.
    """
    found = _read(folder / _FILE, classes)
    inner = folder / _INNER_FILE
    return replace(found, inner=_read(inner, classes)) if inner.is_file() else found


def _read(file: Path, classes: tuple[str, ...]) -> Predictions:
    check_files(file.parent, [file.name], advice=_ADVICE)
    answers = pa.string() if classes else pa.float64()
    proba = [f"proba_{name}" for name in classes]
    columns = _COLUMNS | {"y_true": answers, "y_pred": answers} | dict.fromkeys(proba, pa.float64())
    table = read_table(file, advice=_ADVICE)
    of_words = "word" in table.column_names
    if of_words:
        columns = {"row": pa.int64(), "word": pa.int32()} | columns
    check_columns(table, columns, file=file, nullable=["y_true"], advice=_ADVICE)
    number = {"test": TEST} | {str(fold): fold for fold in range(len(table) + 1)}
    try:
        y, y_pred = (_numbers(table[n], classes) for n in ("y_true", "y_pred"))
        found = Predictions(
            row=table["row"].to_numpy(),
            ids=tuple(table["id"].to_pylist()),
            group=table["group"].to_numpy(),
            fold=np.array([number[fold] for fold in table["fold"].to_pylist()], np.int64),
            repeat=table["repeat"].to_numpy().astype(np.int64),
            y=y,
            proba=np.stack([table[n].to_numpy() for n in proba], axis=1) if classes else y_pred,
            y_pred=y_pred,
            classes=classes,
            word=table["word"].to_numpy().astype(np.int64) if of_words else np.full(len(table), -1),
        )
    except KeyError as error:
        raise DamagedError(
            f"{file} is damaged: {error} is no fold or class of the run. {_ADVICE}"
        ) from error
    if problem := _problem(found):
        raise DamagedError(f"{file} is damaged: {problem}. {_ADVICE}")
    return found._ordered()


def _problem(found: Predictions) -> str:
    """What cannot be in predictions: numbers that no model gives."""
    if len(found.row) and min(found.row.min(), found.repeat.min()) < 0:
        return "row or repeat is negative"
    if not found.classes:
        return "" if np.isfinite(found.y_pred).all() else "y_pred is not finite"
    wrong = ~((found.proba >= 0) & (found.proba <= 1)).all(axis=1)  # NaN too
    wrong |= np.abs(found.proba.sum(axis=1) - 1) > _ROUNDING
    if wrong.any():
        return f"the probabilities of row {found.row[wrong][0]} are none: {found.proba[wrong][0]}"
    return "" if (found.y_pred >= 0).all() else "y_pred holds null"


def _numbers(column: pa.ChunkedArray, classes: tuple[str, ...]) -> NDArray[Any]:
    if not classes:
        return np.asarray(column.to_numpy(), np.float64)
    numbers: dict[str | None, int] = {name: i for i, name in enumerate(classes)} | {None: -1}
    return np.array([numbers[label] for label in column.to_pylist()], np.int64)
