"""A split and its Parquet file.

row, group, fold, fold_1 …     one column of fold numbers for every repeat; -1 is the test set, -2
                               are records that are trained on and never held out
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from embedkit import fsio
from embedkit.checksums import check_files, is_sealed
from embedkit.dataset.store import VectorData
from embedkit.decoding import check_columns, decode, parse_json, read_table
from embedkit.errors import DamagedError, MismatchError, UsageError
from embedkit.types import Int64

__all__ = [
    "TEST",
    "TRAIN",
    "Split",
    "SplitSettings",
    "align_split",
    "check_fold_models",
    "is_split",
    "read_split",
    "split_of_run",
    "write_split",
]

TEST = -1
"""Fold number of the test set."""

TRAIN = -2
"""Fold number of records that are never held out, where there is one fold."""

_KEY = b"embedkit.split"
_MOST_REPEATS = 10_000
_UNITS = {"record": "records", "text": "distinct texts", "group": "groups",
          "group and text": "groups of records, equal texts together"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSettings:
    """How a split was made.

    Attributes:
        source: SHA-256 of the input files, in order.
        folds: number of folds; 1: a fifth of the records is held out, the others are trained on.
        repeats: number of times that the records were shuffled into folds.
        seed: seed of the shuffle.
        stratified: whether the folds have the same distribution of labels.
        test: fraction of the records that was asked for as test set.
        grouped: whether the values of a column were kept together.
        allow_duplicates: whether the same text may be in different folds.
        column: column of the corpus that the folds were taken from, or ``None``.
        unit: what is never divided, and what intervals and tests draw: ``record``, ``text``
            (records of the same text), ``group``, or ``group and text``.
    """

    source: tuple[str, ...]
    folds: int
    repeats: int
    seed: int
    stratified: bool
    test: float = 0.0
    grouped: bool = False
    allow_duplicates: bool = False
    column: str | None = None
    unit: str = "record"

    CHOICES: ClassVar[Mapping[str, Collection[str]]] = {"unit": _UNITS}

    def problem(self) -> str:
        """What cannot be: no fold, no repeat, or more than a whole test set."""
        if not self.folds or not 0 < self.repeats <= _MOST_REPEATS:
            return f"folds={self.folds}, repeats={self.repeats}: expected one or more"
        return "" if 0 <= self.test < 1 else f"test={self.test}: expected a fraction"

    @property
    def unit_text(self) -> str:
        """The units in the plural, for a sentence."""
        return _UNITS[self.unit]


@dataclass(frozen=True, slots=True)
class Split:
    """Folds of the records of one input, or of words, which go with their record.

    Attributes:
        row: ``(n,)`` record numbers, ascending; of words that of each word's record.
        group: ``(n,)`` int64; records of one number always share a fold.
        folds: ``(n, repeats)`` int64; ``-1`` is the test set, the same in every repeat; ``-2``
            are records that are never held out.
        settings: how it was made.
        word: ``(n,)`` number of each word in its record; ``None`` of records.
    """

    row: Int64
    group: Int64
    folds: Int64
    settings: SplitSettings
    word: Int64 | None = None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the assignment of records and of the input they belong to."""
        digest = hashlib.sha256(json.dumps(self.settings.source).encode())
        row, first = np.unique(self.row, return_index=True)
        for array in (row, self.folds[first]):
            digest.update(np.ascontiguousarray(array, "<i8").tobytes())
        return digest.hexdigest()

    @property
    def checksum(self) -> str:
        """SHA-256 of all of it: the fingerprint, the groups and the settings."""
        settings = json.dumps(asdict(self.settings), sort_keys=True)
        digest = hashlib.sha256(f"{self.fingerprint} {settings}".encode())
        digest.update(np.ascontiguousarray(self.group, "<i8").tobytes())
        return digest.hexdigest()

    def of_words(self, row: Int64, word: Int64) -> Split:
        """Return the same split for the words of its records, which stay together.

        Args:
            row: ``(m,)`` record number of each word.
            word: ``(m,)`` its number in the record.
        """
        index = np.searchsorted(self.row, row)
        return Split(row, self.group[index], self.folds[index], self.settings, word)

    @property
    def n_folds(self) -> int:
        """Number of folds."""
        return int(self.folds.max()) + 1

    @property
    def repeats(self) -> int:
        """Number of times that the records were shuffled into folds."""
        return int(self.folds.shape[1])

    @property
    def test(self) -> Int64:
        """Indices of the test set."""
        return np.flatnonzero(self.folds[:, 0] == TEST)

    @property
    def in_folds(self) -> Int64:
        """Indices of all records but the test set, held out or not."""
        return np.flatnonzero(self.folds[:, 0] != TEST)

    def fold(self, repeat: int, number: int) -> tuple[Int64, Int64]:
        """Return train and test indices of one fold."""
        folds = self.folds[:, repeat]
        return np.flatnonzero((folds != number) & (folds != TEST)), np.flatnonzero(folds == number)


def write_split(made: Split, path: Path) -> None:
    """Write a split durably; the same split gives the same bytes."""
    names = ["fold", *(f"fold_{i}" for i in range(1, made.repeats))]
    columns = {name: made.folds[:, i].astype(np.int16) for i, name in enumerate(names)}
    content = {**asdict(made.settings), "fingerprint": made.fingerprint,
               "sha256": made.checksum}  # fmt: skip
    table = pa.table({"row": made.row, "group": made.group, **columns})
    table = table.replace_schema_metadata({_KEY: json.dumps(content, sort_keys=True).encode()})
    fsio.make_folder(path.parent)
    fsio.write_parquet(path, table)


def is_split(table: pa.Table) -> bool:
    """Whether a table was read from the file of a split."""
    return _KEY in (table.schema.metadata or {})


def read_split(path: Path) -> Split:
    """Read a split.

    Raises:
        UsageError: the file does not exist, or it is no split.
        DamagedError: the content is not what was written.
    """
    if not path.is_file():
        raise UsageError(f"{path} does not exist. Make it with embedkit split.")
    if is_sealed(path.parent):  # of a run
        check_files(path.parent, [path.name])
    table = read_table(path)
    if not is_split(table):
        raise UsageError(f"{path} was not written by embedkit split.")
    settings = decode(_Stored, parse_json(table.schema.metadata[_KEY], file=path), file=path)
    names = ["fold", *(f"fold_{i}" for i in range(1, settings.repeats))]
    folds = dict.fromkeys(names, pa.int16())
    check_columns(table, {"row": pa.int64(), "group": pa.int64(), **folds}, file=path)
    own = {f.name: getattr(settings, f.name) for f in fields(SplitSettings)}
    found = Split(
        row=table["row"].to_numpy(),
        group=table["group"].to_numpy(),
        folds=np.stack([table[n].to_numpy().astype(np.int64) for n in names], axis=1),
        settings=SplitSettings(**own),
    )
    sums = found.fingerprint, settings.sha256 and found.checksum
    if sums != (settings.fingerprint, settings.sha256):
        raise DamagedError(f"{path} is not what was written. Make it again.")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored(SplitSettings):
    fingerprint: str
    sha256: str | None = None  # earlier versions wrote none


def split_of_run(data: VectorData) -> Path:
    """Return the split file of the fine-tuned run whose models made the vectors of a dataset.

    Raises:
        UsageError: the run is not where it was.
    """
    run = Path(data.manifest.names.model)
    if not (run / "split.parquet").is_file():
        raise UsageError(
            f"{data.path} was made by the models of the run {run}, which is not there. Pass split= "
            "with the split.parquet of that run."
        )
    return run / "split.parquet"


def check_fold_models(data: VectorData, chosen: Split, *, split: str) -> None:
    """Check that the vectors of held-out records are of models that have not seen them.

    The vectors of a fold are those of a model that was trained on all other folds. Under another
    split an estimator would be fitted on vectors of models that were trained on its held-out
    records.

    Args:
        data: the dataset.
        chosen: a split in its order.
        split: its name, for messages.

    Raises:
        MismatchError: the models of a fine-tuned run made the vectors, and the split has other
            folds than the run, or several repeats.
    """
    if data.manifest.job.folds is None:
        return
    folds = np.array(data.column("fold"), np.int64)
    other = int((chosen.folds != folds[:, None]).any(axis=1).sum())
    if other:
        raise MismatchError(
            f"{data.path} holds vectors of the models of {data.manifest.names.model}, one for each "
            f"fold; {split} has {other} of its {len(folds)} records in another fold, where models "
            "that were trained on held-out records would make the vectors. Leave out split=, or "
            f"pass the run's own: {Path(data.manifest.names.model) / 'split.parquet'}."
        )


def align_split(
    found: Split, *, source: tuple[str, ...], row: Int64, name: str, file: str | Path
) -> Split:
    """Return a split in the order of some records of the same input.

    Args:
        found: the split.
        source: SHA-256 of the input files of the records.
        row: ``(n,)`` record numbers, ascending.
        name: of the data, for messages.
        file: of the split, for messages.

    Raises:
        MismatchError: it was made for other data, or a record has no fold.
    """
    advice = f"Make one for it: embedkit split {name} --out FILE."
    if found.settings.source != source:
        raise MismatchError(
            f"{file} was made for other data than {name} (their input files differ). {advice}"
        )
    index = np.searchsorted(found.row, row)
    inside = np.minimum(index, len(found.row) - 1)
    missing = int((found.row[inside] != row).sum())
    if missing:
        raise MismatchError(
            f"{file} has no fold for {missing} of the {len(row)} records of {name}. {advice}"
        )
    return Split(row, found.group[index], found.folds[index], found.settings)
