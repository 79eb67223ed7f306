"""Runs on one split, side by side: the same held-out records in the same order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from embedkit.errors import DamagedError, MismatchError, UsageError
from embedkit.runs.folder import read_run
from embedkit.runs.splits import TEST

__all__ = ["Outcome", "Records", "Run", "RunSet", "read_runs"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Which predictions there are: every record once per deal of the folds, then the test part.

    Attributes:
        row: ``(m,)`` record numbers in the input.
        fold: ``(m,)`` fold it was held out in, ``-1`` for the test part.
        repeat: ``(m,)`` number of the deal.
        ids: ids of the records.
        y: ``(m,)`` class numbers int64, or values float64 of a regression; ``-1`` or NaN in a test
            part whose labels nobody knows.
        test_source: SHA-256 of the files of a test part that was a corpus of its own; else empty.
        classes: labels by class number; empty for a regression.
    """

    row: Integers
    fold: Integers
    repeat: Integers
    ids: tuple[str, ...]
    y: NDArray[Any]
    classes: tuple[str, ...]
    test_source: tuple[str, ...] = ()

    @property
    def held(self) -> Integers:
        """Places of the out-of-fold predictions."""
        return np.flatnonzero(self.fold != TEST)

    @property
    def test(self) -> Integers:
        """Places of the test part."""
        return np.flatnonzero(self.fold == TEST)

    @property
    def scored_test(self) -> Integers:
        """Places of the test part whose labels are known."""
        known = self.y >= 0 if self.classes else np.isfinite(self.y)
        return np.flatnonzero((self.fold == TEST) & known)

    @property
    def first(self) -> Integers:
        """Places of the out-of-fold predictions of the first deal: every record once."""
        return np.flatnonzero((self.fold != TEST) & (self.repeat == 0))


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What one method says of the records.

    Attributes:
        name: of the method.
        output: ``(m, classes)`` probabilities, or ``(m,)`` values of a regression.
        decided: ``(m,)`` class numbers that were decided for, or the values again.
    """

    name: str
    output: Floats
    decided: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder.

    Attributes:
        name: how it is called in tables; the folder's name where that is clear.
        path: the folder.
        content: what ``run.json`` says.
    """

    name: str
    path: Path
    content: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunSet:
    """Runs that may be compared.

    Attributes:
        runs: those with predictions, as they were given.
        probes: those that score every layer, which have no predictions.
        records: what was predicted.
        outcomes: predictions of each run.
    """

    runs: tuple[Run, ...]
    probes: tuple[Run, ...]
    records: Records
    outcomes: tuple[Outcome, ...]


def read_runs(paths: Sequence[str | Path]) -> RunSet:
    """Open runs that were made under the same split.

    Raises:
        UsageError: a folder is no run, stands there twice, or none has predictions.
        MismatchError: splits, labels or true values differ.
        DamagedError: predictions cannot be read.
    """
    folders = [Path(path) for path in paths]
    twice = [p for p, n in Counter(p.resolve() for p in folders).items() if n > 1]
    if twice:
        raise UsageError(f"{twice[0].name} is given twice. Give every run once.")
    opened = [
        Run(name, path, read_run(path)) for name, path in zip(_names(folders), folders, strict=True)
    ]
    _check_splits(opened)
    runs = tuple(run for run in opened if run.content["kind"] != "probe")
    if not runs:
        raise UsageError(
            "none of the runs has predictions (a probe has none). "
            "Give runs of embedkit train or finetune."
        )
    read = [_predictions(run) for run in runs]
    for run, (records, _) in zip(runs[1:], read[1:], strict=True):
        _check_same(runs[0], read[0][0], run, records)
    return RunSet(
        runs,
        tuple(run for run in opened if run.content["kind"] == "probe"),
        read[0][0],
        tuple(outcome for _, outcome in read),
    )


def _names(folders: Sequence[Path]) -> list[str]:
    short = [folder.resolve().name for folder in folders]
    count = Counter(short)
    return [
        name if count[name] == 1 else str(folder)
        for name, folder in zip(short, folders, strict=True)
    ]


def _check_splits(runs: Sequence[Run]) -> None:
    first = runs[0]
    for run in runs[1:]:
        if run.content["split"]["fingerprint"] != first.content["split"]["fingerprint"]:
            raise MismatchError(
                f"{run.path} was made under another split than {first.path}, so that their scores "
                "are of other records. Make one split (embedkit split) and give it to both with "
                "--split."
            )


def _predictions(run: Run) -> tuple[Records, Outcome]:
    file = run.path / "predictions.parquet"
    try:
        table = pq.read_table(file, page_checksum_verification=True)
        fold = [TEST if f == "test" else int(f) for f in table["fold"].to_pylist()]
        columns = {n: table[n].to_numpy().astype(np.int64) for n in ("row", "repeat")}
        ids = table["id"].to_pylist()
        classes = tuple(run.content["classes"])
        truth, decided = (_numbers(table[n], classes) for n in ("y_true", "y_pred"))
        output = decided
        if classes:
            output = np.stack([table[f"proba_{c}"].to_numpy() for c in classes], axis=1)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DamagedError(f"{file} cannot be read: {error}. Make the run again.") from error
    folds = np.array(fold, np.int64)
    order = np.lexsort((columns["row"], columns["repeat"], folds == TEST))
    records = Records(
        columns["row"][order], folds[order], columns["repeat"][order],
        tuple(str(ids[i]) for i in order), truth[order], classes,
        tuple((run.content.get("test") or {}).get("source", ())),
    )  # fmt: skip
    return records, Outcome(run.name, output.astype(np.float64)[order], decided[order])


def _numbers(column: pa.ChunkedArray, classes: tuple[str, ...]) -> NDArray[Any]:
    if not classes:
        return np.asarray(column.to_numpy(), np.float64)
    numbers: dict[str | None, int] = {name: i for i, name in enumerate(classes)} | {None: -1}
    return np.array([numbers[label] for label in column.to_pylist()], np.int64)


def _check_same(first: Run, expected: Records, run: Run, found: Records) -> None:
    if found.classes != expected.classes:
        raise MismatchError(
            f"{run.path} predicts {_labels(found)}, {first.path} {_labels(expected)}. "
            "Compare runs on the same label column."
        )
    if found.test_source != expected.test_source:
        raise MismatchError(
            f"{run.path} has another test part than {first.path}. Give both the same --test, or "
            "none."
        )
    for name in ("row", "fold", "repeat", "y"):
        one, other = getattr(found, name), getattr(expected, name)
        if not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
            what = "other true labels" if name == "y" else "other records"
            raise MismatchError(
                f"{run.path} has predictions for {what} than {first.path}. "
                "Make both on the same corpus, label column and split."
            )


def _labels(records: Records) -> str:
    if not records.classes:
        return "values"
    names = ", ".join(records.classes[:5])
    return f"the labels {names}{' …' if len(records.classes) > 5 else ''}"
