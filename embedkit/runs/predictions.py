"""Predictions for held-out units, and the files of a run that hold them.

    row, id, group, fold, y_true, y_pred, proba_<class> …   no proba_ for a regression
    row, word, id …                                                 for words
    view_<name> …                                                   by each view of a probe

Estimators on vectors, fine-tuned encoders and blends share these records, so that their scores and
files are the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedkit.dataset.parquet import check_columns, numbers, read_table, write_parquet
from embedkit.errors import DamagedError, UsageError
from embedkit.runs.run import TestSetContent
from embedkit.runs.split import TEST, same_text_groups
from embedkit.storage import check_files, file_sums
from embedkit.types import Float64, Int64
from embedkit.units.target import Target, best_set, class_prior, set_numbers
from embedkit.units.units import Units, unit_keys

logger = logging.getLogger(__name__)

_FILE, _INNER_FILE = "predictions.parquet", "inner_predictions.parquet"
_COLUMNS = {"row": pa.int64(), "id": pa.string(), "group": pa.int64(), "fold": pa.string()}
_ADVICE = "Make the run again."
# probabilities that other tools write have few digits, and sum to 1 only so far
_ROUNDING = 1e-3
_ARRAYS = ("row", "group", "fold", "y", "proba", "y_pred", "word")
_MOST_FOLDS = 1 << 15  # splits hold int16


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Predictions by models that had not seen the records; arrays have one row for each.

    Out-of-fold predictions come first, ordered by row; then the test set. ``inner`` are predictions
    for the training records of each fold, by models that saw neither them nor the fold (their
    ``fold``); :meth:`take` and :meth:`with_proba` drop them.
    """

    row: Int64
    ids: tuple[str, ...]
    group: Int64  # sampling unit, which the split keeps together
    fold: Int64  # in which a record was held out; TEST for the test set
    y: NDArray[Any]  # as of a Target; -1 or NaN in a test set without labels
    proba: Float64  # (m, classes) probabilities, or (m,) values of a regression
    y_pred: NDArray[Any]  # like y
    classes: tuple[str, ...]  # by class number; empty for a regression
    word: Int64  # number in the record; -1 where records are predicted
    inner: Predictions | None = None
    views: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # of a probe, like y_pred

    @classmethod
    def joined(cls, subsets: Sequence[Predictions]) -> Predictions:
        """Return several subsets as one, ordered."""
        inner = [subset.inner for subset in subsets if subset.inner is not None]
        arrays: dict[str, Any] = {
            n: np.concatenate([getattr(s, n) for s in subsets]) for n in _ARRAYS
        }
        return cls(
            **arrays,
            ids=tuple(identifier for subset in subsets for identifier in subset.ids),
            classes=subsets[0].classes,
            inner=cls.joined(inner) if inner else None,
        )._ordered()

    def _ordered(self) -> Predictions:
        # the last key is the first to sort by. A test set of its own numbers its rows from 0 too
        order = np.lexsort((self.keys, self.fold == TEST))
        return replace(self.take(order), inner=self.inner)

    def take(self, index: Int64) -> Predictions:
        """Return some of the predictions."""
        return Predictions(
            **{name: getattr(self, name)[index] for name in _ARRAYS},
            ids=tuple(map(self.ids.__getitem__, index.tolist())),
            classes=self.classes,
            views={name: values[index] for name, values in self.views.items()},
        )

    @property
    def keys(self) -> Int64:
        """``(m,)`` numbers that are equal for the same word of the same record, ascending."""
        return unit_keys(self.row, self.word)

    @property
    def of_sets(self) -> bool:
        """True if sets of classes are predicted."""
        return self.y.ndim > 1

    @property
    def of_words(self) -> bool:
        """True if words are predicted, not records."""
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
        labelled = self.y >= 0 if self.classes else np.isfinite(self.y)
        labelled = labelled.all(1) if self.of_sets else labelled
        return np.flatnonzero((self.fold == TEST) & labelled)

    def folds(self) -> list[tuple[Int64, Int64]]:
        """Return train and test indices of every fold."""
        # as the split, but of the predicted records alone: with one fold nothing is left to train
        # on
        held_out = self.fold[self.out_of_fold]
        return [
            (np.flatnonzero((self.fold != TEST) & (self.fold != i)), np.flatnonzero(self.fold == i))
            for i in np.unique(held_out)
        ]

    def with_proba(self, proba: Float64, y_pred: NDArray[Any] | None = None) -> Predictions:
        """Return other predictions for the same records."""
        y_pred = decide(proba, sets=self.of_sets) if y_pred is None else y_pred
        return replace(self, proba=proba, y_pred=y_pred, inner=None, views={})

    def majority(self, prior: Sequence[float] = ()) -> Predictions:
        """Return the baseline: class frequencies (or the mean) of the records of all folds.

        It is one constant, also where folds differ, as those of groups do: the frequencies of each
        fold's training records are high where the fold has few, so that whatever knows nothing is
        better than they are. Of a single fold it is the ``prior`` of the training records, which
        the run tells. Of sets of classes it is the set with the best micro-F1.
        """
        constant = np.array(prior or class_prior(self.y[self.out_of_fold], self.classes))
        proba = np.empty(self.proba.shape)
        proba[:] = constant if self.classes else constant[0]
        sets = np.tile(best_set(constant), (len(proba), 1)) if self.of_sets else None
        return self.with_proba(proba, sets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subset:
    """Units that are predicted together: held out by a fold, by its inner folds, or a test set."""

    units: Units
    group: Int64  # sampling unit: records of the same text have the same
    target: Target  # by the classes of the training records
    content: TestSetContent | None = None  # of a test set of its own

    @classmethod
    def further(cls, units: Units, training: Units, target: Target) -> Self:
        """Return a test set of its own, with the number of its texts that were trained on."""
        if not len(units):
            raise UsageError(f"{units.name} has no records to predict.")
        records = units.records
        # by text, not by row: the file of the test set is another one
        seen = int(np.isin(records.key, training.records.key).sum())
        rejected = sum(units.rejected.values())
        return cls(
            units=units,
            group=same_text_groups(records.key)[units.place],
            target=target.like(units.label, rows=units.row, name=units.name),
            content=TestSetContent(source=units.source, rejected=rejected, seen_texts=seen),
        )

    def predictions(
        self, proba: Float64, *, fold: int = TEST, threshold: float | None
    ) -> Predictions:
        """Return predictions with these probabilities ``(m, classes)``, or values ``(m,)``."""
        units, target = self.units, self.target
        return Predictions(
            row=units.row,
            ids=tuple(map(str, units.ids)),
            group=self.group,
            fold=np.full(len(units), fold),
            y=target.y,  # of a test set it may have no labels: -1 and NaN are never scored
            proba=proba,
            y_pred=decide(proba, threshold=threshold, sets=target.of_sets),
            classes=target.classes,
            word=np.full(len(units), -1) if units.word is None else units.word,
        )


def confidence_of(p: Predictions) -> Float64:
    """Return the probability of the predicted class, the smaller one if a threshold chose it."""
    return np.asarray(p.proba[np.arange(len(p.row)), p.y_pred], np.float64)


def decide(proba: Float64, *, threshold: float | None = None, sets: bool = False) -> NDArray[Any]:
    """Return class numbers for probabilities ``(n, classes)``; values ``(n,)`` are returned as is.

    With a threshold, the second of two classes is predicted where its probability reaches it. Of
    ``sets`` every class is predicted whose probability reaches 0.5: ``(n, classes)``, 0 or 1.
    """
    if proba.ndim == 1:
        return proba
    if sets:
        return np.asarray(proba >= 0.5, np.int64)
    if threshold is None:
        return np.asarray(proba.argmax(1), np.int64)
    return np.asarray(proba[:, 1] >= threshold, np.int64)


def write_predictions(folder: Path, predictions: Predictions) -> None:
    """Write ``predictions.parquet`` of a run, and ``inner_predictions.parquet`` if it has any."""
    write_parquet(folder / _FILE, _table(predictions))
    if predictions.inner is not None:
        write_parquet(folder / _INNER_FILE, _table(predictions.inner))


def _table(predictions: Predictions) -> pa.Table:
    p, names = predictions, predictions.classes
    columns: dict[str, Any] = {
        "row": p.row,
        **({"word": p.word.astype(np.int32)} if p.of_words else {}),
        "id": pa.array(p.ids, pa.string()),
        "group": p.group,
        "fold": fold_names(p.fold),
        "y_true": _answers(p.y, names),
        "y_pred": _answers(p.y_pred, names),
    }
    columns |= {f"proba_{label}": p.proba[:, i] for i, label in enumerate(names)}
    columns |= {f"view_{view}": _answers(values, names) for view, values in p.views.items()}
    return pa.table(columns)


_SETS = pa.list_(pa.field("element", pa.string()))  # as Parquet names it


def _answers(y: NDArray[Any], names: Sequence[str]) -> pa.Array:
    """The names of classes or of sets of classes, or values; null where they are unknown."""
    # class numbers are of this run; a file holds names, which anyone can read and join
    if not names:
        return pa.array(y, from_pandas=True)  # NaN becomes null
    if y.ndim == 1:
        return pa.array([None if i < 0 else names[i] for i in y.tolist()], pa.string())
    sets = [None if (row < 0).any() else [names[i] for i in row.nonzero()[0].tolist()] for row in y]
    return pa.array(sets, _SETS)


def fold_names(fold: Int64) -> list[str]:
    """Return fold numbers as files hold them: ``test`` for the test set."""
    return ["test" if f == TEST else str(f) for f in fold]


def read_predictions(
    folder: Path, classes: tuple[str, ...], views: Sequence[str] = ()
) -> Predictions:
    """Read the predictions of a run with these classes, none for a regression, and views."""
    predictions = _read(folder / _FILE, classes, views)
    if _INNER_FILE not in file_sums(folder):
        return predictions
    return replace(predictions, inner=_read(folder / _INNER_FILE, classes))


def _read(file: Path, classes: tuple[str, ...], views: Sequence[str] = ()) -> Predictions:
    check_files(file.parent, [file.name], advice=_ADVICE)
    table = read_table(file, advice=_ADVICE)
    # the type of the column says whether classes or sets of classes are predicted
    sets = "y_true" in table.column_names and table.schema.field("y_true").type == _SETS
    answers = (_SETS if sets else pa.string()) if classes else pa.float64()
    proba = [f"proba_{name}" for name in classes]
    columns = _COLUMNS | {"y_true": answers, "y_pred": answers} | dict.fromkeys(proba, pa.float64())
    columns |= {f"view_{view}": answers for view in views}
    of_words = "word" in table.column_names
    if of_words:
        columns = {"row": pa.int64(), "word": pa.int32()} | columns
    check_columns(table, columns, file=file, nullable=["y_true"], advice=_ADVICE)
    # a lookup of all numbers that can occur, so that a damaged one is a KeyError
    number = {"test": TEST} | {str(fold): fold for fold in range(min(len(table), _MOST_FOLDS) + 1)}
    try:
        y, y_pred = (_numbers(table[n], classes) for n in ("y_true", "y_pred"))
        predictions = Predictions(
            row=numbers(table["row"]),
            ids=tuple(table["id"].to_pylist()),
            group=numbers(table["group"]),
            fold=np.array([number[fold] for fold in table["fold"].to_pylist()], np.int64),
            y=y,
            proba=np.stack([numbers(table[n]) for n in proba], axis=1) if classes else y_pred,
            y_pred=y_pred,
            classes=classes,
            word=numbers(table["word"]).astype(np.int64) if of_words else np.full(len(table), -1),
            views={view: _numbers(table[f"view_{view}"], classes) for view in views},
        )
    except KeyError as error:
        raise DamagedError(
            f"{file} is damaged: {error} is not a fold or class of the run. {_ADVICE}"
        ) from error
    if problem := _problem(predictions):
        raise DamagedError(f"{file} is damaged: {problem}. {_ADVICE}")
    return predictions._ordered()


def _problem(p: Predictions) -> str:
    """Return a message if values are not finite or probabilities do not sum to 1, else ""."""
    if len(p.row) and p.row.min() < 0:
        return "row is negative"
    if not p.classes:
        return "" if np.isfinite(p.y_pred).all() else "y_pred is not finite"
    if problem := invalid_proba(p.row, p.proba, sets=p.of_sets):
        return problem
    return "" if (p.y_pred >= 0).all() else "y_pred holds null"


def invalid_proba(row: Int64, proba: Float64, *, sets: bool, tolerance: float = _ROUNDING) -> str:
    """Return a message if probabilities ``(n, classes)`` of rows are invalid, else "".

    Those of ``sets`` are one for each class, and need not sum to 1.
    """
    wrong = ~((proba >= 0) & (proba <= 1)).all(axis=1)  # NaN too
    wrong |= (np.abs(proba.sum(axis=1) - 1) > tolerance) & (not sets)
    if not wrong.any():
        return ""
    return f"row {row[wrong][0]} has invalid probabilities: {proba[wrong][0].tolist()}"


def _numbers(column: pa.ChunkedArray, classes: Sequence[str]) -> NDArray[Any]:
    if not classes:
        return np.asarray(numbers(column), np.float64)
    if column.type == _SETS:
        return set_numbers(column.to_pylist(), classes)
    places: dict[str | None, int] = {name: i for i, name in enumerate(classes)} | {None: -1}
    return np.array([places[label] for label in column.to_pylist()], np.int64)
