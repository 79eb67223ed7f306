"""Folds as data: which record is learnt from and which is held out, fixed before any fit.

A split is a Parquet file keyed by ``row``. Records with the same text always share a fold, since a
model that has seen a text has seen its copy; so do records of one group where a group column is
given. Texts count as the same when they differ in case, width, or whitespace only.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from embedkit import fsio
from embedkit.corpus import (
    CorpusOptions,
    CorpusReader,
    InputFile,
    Record,
    hash_inputs,
    plan_corpus,
)
from embedkit.dataset.store import VectorData, is_dataset, load
from embedkit.errors import (
    DamagedError,
    MismatchError,
    OutputExistsError,
    UsageError,
    did_you_mean,
)

__all__ = [
    "TEST",
    "Labelled",
    "Split",
    "assign_folds",
    "check_labelled",
    "check_seed",
    "fitted_split",
    "has_label",
    "inner_folds",
    "make_split",
    "parted_records",
    "read_split",
    "records_of",
    "same_text_groups",
    "source_of",
    "split",
    "split_by_column",
    "stored_texts",
    "text_key",
    "whole_text",
    "write_split",
]

TEST = -1
"""Number of the held-out test part among the folds."""

_KEY = b"embedkit.split"
_SMALLEST_TEST = 0.01
_MANY_VALUES = 20
_BINS = 10
_LARGEST_SEED = 2**31 - 1

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Labelled:
    """What a split needs to know of its records.

    Attributes:
        source: SHA-256 of the input files, in order.
        row: ``(n,)`` record numbers, ascending.
        labels: as written; ``None`` where there is no label column.
        texts: the texts; ``None`` if they are not stored.
        groups: value of the group column for each record, or ``None``.
    """

    source: tuple[str, ...]
    row: Integers
    labels: list[str | None] | None
    texts: list[str] | None
    groups: list[str | None] | None


@dataclass(frozen=True, slots=True)
class Split:
    """Folds of the records of one input.

    Attributes:
        row: ``(n,)`` record numbers, ascending.
        group: ``(n,)`` int64; records of one number never part.
        folds: ``(n, repeats)`` int64; ``-1`` is the test part, the same in every repeat.
        settings: how it was made, and the hashes of the input.
    """

    row: Integers
    group: Integers
    folds: Integers
    settings: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the assignment and of the input it belongs to."""
        digest = hashlib.sha256(json.dumps(self.settings["source"]).encode())
        for array in (self.row, self.folds):
            digest.update(np.ascontiguousarray(array, "<i8").tobytes())
        return digest.hexdigest()

    @property
    def n_folds(self) -> int:
        """Number of folds."""
        return int(self.folds.max()) + 1

    @property
    def repeats(self) -> int:
        """How many times the records were dealt."""
        return int(self.folds.shape[1])


def split(
    source: str | Path,
    *,
    out: str | Path | None = None,
    folds: int = 5,
    test: float = 0.0,
    repeats: int = 1,
    seed: int = 0,
    label: str | None = None,
    group: str | None = None,
    allow_duplicates: bool = False,
    overwrite: bool = False,
    reading: CorpusOptions | None = None,
) -> Split:
    """Make the split of a dataset or a corpus and write it.

    Args:
        source: a dataset that ``extract`` wrote, or a corpus file.
        out: Parquet file to write; nothing is written without.
        folds: number of folds.
        test: part of the records to hold out altogether, 0.01 to 0.5; 0 holds out none.
        repeats: how many times to deal the folds.
        seed: of the draw.
        label: column to stratify by; of a dataset it is the one it was made with.
        group: column whose values must not be parted; of a dataset one that was kept.
        allow_duplicates: let records of the same text come to lie in different folds.
        overwrite: replace the file.
        reading: how a corpus is read; ``label``, ``keep`` and ``seed`` are taken from above.

    Raises:
        UsageError: a column, count or class cannot be used.
        OutputExistsError: the file exists.
    """
    if out is not None and Path(out).exists() and not overwrite:
        raise OutputExistsError(f"{out} exists. Choose another --out, or give --overwrite.")
    records = _records(Path(source), label, group, reading or CorpusOptions(), seed)
    made = make_split(
        records, folds=folds, test=test, repeats=repeats, seed=seed,
        allow_duplicates=allow_duplicates,
    )  # fmt: skip
    if out is not None:
        write_split(made, Path(out))
    return made


def make_split(
    records: Labelled,
    *,
    folds: int = 5,
    test: float = 0.0,
    repeats: int = 1,
    seed: int = 0,
    allow_duplicates: bool = False,
) -> Split:
    """Deal records into folds; arguments and errors as for :func:`split`."""
    if folds < 2:
        raise UsageError(f"--folds {folds}: expected 2 or more.")
    if test != 0 and not _SMALLEST_TEST <= test <= 0.5:
        raise UsageError(
            f"--test {test:g}: expected a part between {_SMALLEST_TEST} and 0.5, such as 0.2."
        )
    check_seed(seed)
    if repeats < 1:
        raise UsageError(f"--repeats {repeats}: expected 1 or more.")
    if len(records.row) < folds:
        raise UsageError(f"{len(records.row)} records are too few for {folds} folds.")
    groups = same_text_groups(
        None if allow_duplicates else records.texts, records.groups, len(records.row)
    )
    strata = _strata(records, folds)
    held = np.zeros(len(records.row), bool)
    if test:
        part = _part(test)
        dealt = assign_folds(strata, groups, part.denominator, seed=seed + 7_919)
        held = dealt < part.numerator
    columns = []
    for number in range(repeats):
        column = np.full(len(records.row), TEST, np.int64)
        column[~held] = assign_folds(strata[~held], groups[~held], folds, seed=seed + number)
        columns.append(column)
    settings = {
        "source": list(records.source),
        "folds": folds,
        "test": test,
        "repeats": repeats,
        "seed": seed,
        "stratified": records.labels is not None,
        "grouped": records.groups is not None,
        "allow_duplicates": allow_duplicates,
    }
    return Split(records.row, groups, np.stack(columns, axis=1), settings)


def split_by_column(
    records: Labelled, values: Sequence[str | None], *, column: str, folds: int, seed: int
) -> Split:
    """Folds that a column of the corpus names.

    ``test`` marks the test part, every other value a fold. Where only one other value is left, such
    as ``train``, its records are dealt into ``folds`` folds.

    Raises:
        UsageError: a record has no value, or none is left to learn from.
    """
    empty = [i for i, value in enumerate(values) if value is None or not str(value).strip()]
    if empty:
        raise UsageError(
            f"--split-column {column}: row {records.row[empty[0]]} has no value there."
        )
    given = np.array([str(value).strip() for value in values], np.str_)
    held = given == "test"
    names = np.unique(given[~held])
    if not len(names):
        raise UsageError(f"--split-column {column}: every record is marked test.")
    groups = same_text_groups(records.texts, records.groups, len(records.row))
    result = np.full(len(given), TEST, np.int64)
    if len(names) == 1:
        strata = _strata(records, folds)
        result[~held] = assign_folds(strata[~held], groups[~held], folds, seed=seed)
    else:
        result[~held] = np.searchsorted(names, given[~held])
    settings = {
        "source": list(records.source), "column": column, "folds": int(result.max()) + 1,
        "repeats": 1, "seed": seed, "stratified": len(names) == 1 and records.labels is not None,
    }  # fmt: skip
    return Split(records.row, groups, result[:, None], settings)


def assign_folds(strata: Integers, groups: Integers, folds: int, *, seed: int) -> Integers:
    """``(n,)`` fold numbers: strata spread evenly, groups never parted.

    Raises:
        UsageError: there are fewer groups than folds.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    different = len(np.unique(groups))
    if different < folds:
        raise UsageError(
            f"there are {different} different texts or groups, fewer than the {folds} folds that "
            "they should be dealt into, since they are never parted."
        )
    if np.bincount(strata).max() < folds:  # nothing to spread; scikit-learn refuses
        strata = np.zeros_like(strata)
    options = {"n_splits": folds, "shuffle": True, "random_state": seed}
    if different == len(groups):
        parts = StratifiedKFold(**options).split(strata, strata)
    else:
        parts = StratifiedGroupKFold(**options).split(strata, strata, groups)
    result = np.empty(len(strata), np.int64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        for number, (_, held) in enumerate(parts):
            result[held] = number
    return result


def inner_folds(
    strata: Integers, groups: Integers, folds: int, *, seed: int
) -> list[tuple[Integers, Integers]]:
    """Train and held-out indices inside one training part, groups never parted."""
    dealt = assign_folds(strata, groups, folds, seed=seed)
    return [(np.flatnonzero(dealt != i), np.flatnonzero(dealt == i)) for i in range(folds)]


def same_text_groups(
    texts: Sequence[str] | None, groups: Sequence[str | None] | None, count: int
) -> Integers:
    """``(n,)`` numbers; records that share a text or a group, directly or in a chain, share one."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    places = np.arange(count)
    edges = []
    keys = None if texts is None else [text_key(text) for text in texts]
    named = None if groups is None else [
        None if g is None or not has_label(str(g)) else str(g) for g in groups
    ]  # fmt: skip
    for values in (keys, named):
        if values is None:
            continue
        first: dict[str, int] = {}
        edges.append([places[i] if v is None else first.setdefault(v, i)
                      for i, v in enumerate(values)])  # fmt: skip
    if not edges:
        return places
    to = np.concatenate([np.array(edge, np.int64) for edge in edges])
    origin = np.tile(places, len(edges))
    graph = coo_array((np.ones(len(to), bool), (origin, to)), shape=(count, count))
    _, found = connected_components(graph, directed=False)
    return np.asarray(found, np.int64)


def parted_records(found: Split) -> int:
    """How many records of the first deal have one of the same group in another part."""
    _, group = np.unique(found.group, return_inverse=True)
    part = found.folds[:, 0]
    lowest = np.full(len(group), part.max())
    highest = np.full(len(group), TEST)
    np.minimum.at(lowest, group, part)
    np.maximum.at(highest, group, part)
    return int((lowest < highest)[group].sum())


def has_label(label: str | None) -> bool:
    """Whether there is a label: not null, not blank, and not the NaN of a numeric column."""
    return label is not None and label.strip().lower() not in ("", "nan")


def check_seed(seed: int) -> None:
    """Raise a :class:`UsageError` for what libraries do not take as a seed."""
    if not 0 <= seed <= _LARGEST_SEED:
        raise UsageError(f"--seed {seed}: expected a whole number from 0 to {_LARGEST_SEED:,}.")


def check_labelled(labels: Sequence[str | None], row: Integers, *, name: str = "") -> None:
    """Raise a :class:`UsageError` that names the rows without a label."""
    missing = [i for i, label in enumerate(labels) if not has_label(label)]
    if missing:
        shown = ", ".join(str(row[i]) for i in missing[:5]) + ", …" * (len(missing) > 5)
        raise UsageError(
            f"{name}{': ' * bool(name)}{len(missing)} records have no label (rows {shown}); empty "
            "and NaN count as none. Remove them from the corpus."
        )


def text_key(text: str) -> str:
    """What two texts have in common that differ in case, width or whitespace only."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def write_split(made: Split, path: Path) -> None:
    """Write a split durably; the same split gives the same bytes."""
    names = ["fold", *(f"fold_{i}" for i in range(1, made.repeats))]
    table = pa.table(
        {
            "row": made.row,
            "group": made.group,
            **{name: made.folds[:, i].astype(np.int16) for i, name in enumerate(names)},
        }
    )
    content = json.dumps(made.settings | {"fingerprint": made.fingerprint}, sort_keys=True)
    table = table.replace_schema_metadata({_KEY: content.encode()})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    fsio.make_folder(path.parent)
    fsio.write_durably(path, memoryview(sink.getvalue()), scratch=path.parent)


def read_split(path: Path) -> Split:
    """Read a split.

    Raises:
        UsageError: there is no such file, or it is no split.
        DamagedError: it is not what was written.
    """
    if not path.is_file():
        raise UsageError(f"{path} does not exist. Make it with embedkit split.")
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        settings = json.loads((table.schema.metadata or {})[_KEY])
    except (pa.ArrowException, OSError) as error:
        raise DamagedError(f"{path} cannot be read: {error}. Make it again.") from error
    except (KeyError, ValueError) as error:
        raise UsageError(f"{path} was not written by embedkit split.") from error
    expected = settings.pop("fingerprint")
    columns = [n for n in table.column_names if n == "fold" or n.startswith("fold_")]
    found = Split(
        row=table["row"].to_numpy(),
        group=table["group"].to_numpy(),
        folds=np.stack([table[n].to_numpy().astype(np.int64) for n in columns], axis=1),
        settings=settings,
    )
    if found.fingerprint != expected:
        raise DamagedError(f"{path} is not what was written. Make it again.")
    return found


def fitted_split(found: Split, *, source: tuple[str, ...], row: Integers, name: str,
                 file: str | Path) -> Split:  # fmt: skip
    """A split that was read, in the order of some records of the same input.

    Args:
        found: the split.
        source: hashes of the input files of the records.
        row: ``(n,)`` record numbers, ascending.
        name: of the data, for messages.
        file: of the split, for messages.

    Raises:
        MismatchError: it was made for other data, or a record has no fold.
    """
    advice = f"Make one for it: embedkit split {name} --out FILE."
    if tuple(found.settings["source"]) != source:
        raise MismatchError(
            f"{file} was made for other data than {name} (their input files differ). {advice}"
        )
    places = np.searchsorted(found.row, row)
    inside = np.minimum(places, len(found.row) - 1)
    missing = int((found.row[inside] != row).sum())
    if missing:
        raise MismatchError(
            f"{file} has no fold for {missing} of the {len(row)} records of {name}. {advice}"
        )
    return Split(row, found.group[places], found.folds[places], found.settings)


def _records(
    source: Path, label: str | None, group: str | None, reading: CorpusOptions, seed: int
) -> Labelled:
    if is_dataset(source):
        if reading.given:
            name = reading.given[0]
            raise UsageError(
                f"{name}={getattr(reading, name)!r} tells how to read a corpus file; "
                f"{source} is a dataset, whose records are settled."
            )
        return records_of(load(source), label, group)
    if source.is_dir():
        load(source)  # says why it is no dataset
    files = [InputFile.of(source)]
    options = replace(reading, label=label, keep=())
    if reading.sample is not None:
        options = replace(options, seed=seed)
    if group:
        columns = plan_corpus(files, options).columns
        if group not in columns:
            raise UsageError(
                f"--group {group}: {source} has no such column; it has {', '.join(columns[:20])}."
                f"{did_you_mean(group, columns)}"
            )
    options = replace(options, keep=(group,) if group else ())
    plan = hash_inputs(plan_corpus(files, options))
    records = [r for r in CorpusReader(plan) if isinstance(r, Record)]
    return Labelled(
        source=tuple(file.sha256 for file in plan.files),
        row=np.array([r.row for r in records], np.int64),
        labels=[r.label for r in records] if plan.label else None,
        texts=[whole_text(r.text, r.text_pair) for r in records],
        groups=[r.kept[0] for r in records] if group else None,
    )


def records_of(data: VectorData, label: str | None = None, group: str | None = None) -> Labelled:
    """What a split needs to know of a dataset.

    Raises:
        UsageError: the label is not the one the dataset was made with, or a column is not there.
    """
    settings = data.manifest.job["input"]
    stored = settings["label"]
    if label is not None and label != stored:
        raise UsageError(
            f"--label {label}: {data.path} was made with the label column {stored!r}. "
            "Split the corpus itself, or extract again with --label."
        )
    return Labelled(
        source=source_of(data),
        row=data.row,
        labels=data.column("label") if stored else None,
        texts=stored_texts(data),
        groups=data.column(group) if group else None,
    )


def source_of(data: VectorData) -> tuple[str, ...]:
    """Hashes of the files that a dataset was made from."""
    return tuple(file["sha256"] for file in data.manifest.job["input"]["files"])


def stored_texts(data: VectorData) -> list[str] | None:
    """Texts of a dataset, both of a pair in one; ``None`` if it was made with ``--no-text``."""
    if not data.manifest.job["storage"]["text"]:
        return None
    if not data.manifest.job["input"]["text_pair"]:
        return data.text
    pairs = zip(data.text, data.column("text_pair"), strict=True)
    return [whole_text(first, second) for first, second in pairs]


def whole_text(first: str, second: str | None) -> str:
    """A text, or both texts of a pair in one."""
    return first if second is None else f"{first}\x1f{second}"


def _part(share: float) -> Fraction:
    """So many of so many equal parts as come near a share, of few parts where that is near."""
    few = Fraction(share).limit_denominator(20)
    return few if abs(few - share) <= share / 10 else Fraction(1, round(1 / share))


def _strata(records: Labelled, folds: int) -> Integers:
    """``(n,)`` class numbers; tenths of the values of a label with many numeric, rare values.

    Raises:
        UsageError: a label is missing, there is only one, or one is rarer than there are folds.
    """
    if records.labels is None:
        return np.zeros(len(records.row), np.int64)
    check_labelled(records.labels, records.row)
    names, classes, counts = np.unique(
        np.array(records.labels, np.str_), return_inverse=True, return_counts=True
    )
    if len(names) == 1:
        raise UsageError(f"all {len(classes)} records have the label {str(names[0])!r}.")
    few = counts.min() < folds
    if few and len(names) > _MANY_VALUES and (numbers := _numbers(names)) is not None:
        edges = np.quantile(numbers[classes], np.linspace(0, 1, _BINS + 1)[1:-1])
        return np.searchsorted(np.unique(edges), numbers[classes], side="right")
    if few:
        rare = str(names[np.argmin(counts)])
        raise UsageError(
            f"label {rare!r} has {counts.min()} record(s), fewer than the {folds} folds. "
            "Use fewer --folds, or remove the label from the corpus."
        )
    return np.asarray(classes, np.int64)


def _numbers(names: NDArray[np.str_]) -> NDArray[np.float64] | None:
    try:
        numbers = names.astype(np.float64)
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() else None
