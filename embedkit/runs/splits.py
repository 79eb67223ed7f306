"""Folds as data: the assignment of records to folds, made before any model is fitted.

A split is a Parquet file keyed by ``row``. Records with the same text always share a fold, and so
do records of one group where a group column is given. Texts count as the same when they differ in
case, width or whitespace only.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.corpus import (
    CorpusOptions,
    CorpusReader,
    InputFile,
    hash_inputs,
    plan_corpus,
)
from embedkit.dataset.record_keys import (
    check_labelled,
    has_label,
    source_of,
    text_key,
    text_keys,
    whole_text,
)
from embedkit.dataset.store import VectorData, is_dataset, load
from embedkit.errors import OutputExistsError, UsageError, check_counts, check_seed, did_you_mean
from embedkit.runs.split_files import TEST, TRAIN, Split, SplitSettings, write_split
from embedkit.types import Float64, Int64

__all__ = [
    "Labelled",
    "assign_folds",
    "inner_folds",
    "leaking_records",
    "make_split",
    "records_of",
    "same_text_groups",
    "split",
    "split_by_column",
]

logger = logging.getLogger(__name__)

_SMALLEST_TEST = 0.01
_BINS = 10
_HOLDOUT = 5  # of one fold, a record of so many is held out


@dataclass(frozen=True, slots=True)
class Labelled:
    """The records that a split is made of.

    Attributes:
        source: SHA-256 of the input files, in order.
        row: ``(n,)`` record numbers, ascending.
        labels: as written; ``None`` where there is no label column.
        keys: key of the text of every record (:func:`~embedkit.dataset.record_keys.text_key`);
            ``None`` if they are not known.
        groups: value of the group column for each record, or ``None``.
    """

    source: tuple[str, ...]
    row: Int64
    labels: list[str | None] | None
    keys: Sequence[int] | Int64 | None
    groups: list[str | None] | None


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
        out: Parquet file to write; without it nothing is written.
        folds: number of folds; 1: a single training, with a fifth of the records held out.
        test: fraction of the records to hold out as test set, 0.01 to 0.5; 0 for none.
        repeats: number of times that the records are shuffled into folds.
        seed: seed of the shuffle, and of ``sample``.
        label: column to stratify by; of a dataset it is the one it was made with.
        group: column whose values must not be divided; of a dataset one that was kept.
        allow_duplicates: allow records of the same text in different folds.
        overwrite: replace the file.
        reading: how a corpus is read; ``label``, ``keep`` and ``seed`` are taken from above.

    Raises:
        UsageError: a column, count or class cannot be used.
        OutputExistsError: the file exists.

    Example:
        >>> made = embedkit.split("vectors", folds=3, test=0.25)
        >>> made.n_folds, len(made.row), len(made.test)
        (3, 12, 3)
    """
    if out is not None and Path(out).exists() and not overwrite:
        raise OutputExistsError(f"{out} exists. Choose another out=, or pass overwrite=True.")
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
    """Assign records to folds; arguments and errors as for :func:`split`."""
    check_counts(folds=folds)
    if test != 0 and not _SMALLEST_TEST <= test <= 0.5:
        raise UsageError(
            f"test={test:g}: expected a fraction from {_SMALLEST_TEST} to 0.5, such as 0.2."
        )
    check_seed(seed)
    check_counts(repeats=repeats)
    if len(records.row) < folds:
        raise UsageError(f"{len(records.row)} records are too few for {folds} folds.")
    groups = same_text_groups(
        None if allow_duplicates else records.keys, records.groups, len(records.row)
    )
    assigned_to = folds if folds > 1 else _HOLDOUT
    strata = _strata(records, assigned_to)
    in_test = np.zeros(len(records.row), bool)
    if test:
        tenths = _near_fraction(test)
        assigned = assign_folds(strata, groups, tenths.denominator, seed=seed + 7_919)
        in_test = assigned < tenths.numerator
    columns = []
    for repeat in range(repeats):
        column = np.full(len(records.row), TEST, np.int64)
        column[~in_test] = assign_folds(
            strata[~in_test], groups[~in_test], assigned_to, seed=seed + repeat
        )
        if folds == 1:
            column[column > 0] = TRAIN
        columns.append(column)
    settings = SplitSettings(
        source=records.source,
        folds=folds,
        test=test,
        repeats=repeats,
        seed=seed,
        stratified=records.labels is not None,
        grouped=records.groups is not None,
        allow_duplicates=allow_duplicates or records.keys is None,
        unit=_unit(records, allow_duplicates=allow_duplicates),
    )
    return Split(records.row, groups, np.stack(columns, axis=1), settings)


def _unit(records: Labelled, *, allow_duplicates: bool = False) -> str:
    """Return what is kept together, as :class:`SplitSettings` says it; warn of duplicates."""
    if records.keys is None and not allow_duplicates:
        logger.warning(
            "neither texts nor text keys are known, as earlier versions stored none: records of "
            "the same text may be in different folds, so that scores may be inflated by leakage. "
            "Extract the dataset again."
        )
    has_text = records.keys is not None and not allow_duplicates
    known = {"group": records.groups is not None, "text": has_text}
    return " and ".join(name for name, given in known.items() if given) or "record"


def split_by_column(
    records: Labelled, values: Sequence[str | None], *, column: str, folds: int, seed: int
) -> Split:
    """Take the folds from a column of the corpus.

    ``test`` marks the test set, every other value a fold. Where only one other value is left, such
    as ``train``, its records are assigned to ``folds`` folds.

    Raises:
        UsageError: a record has no value, or no training record is left.
    """
    empty = [i for i, value in enumerate(values) if value is None or not str(value).strip()]
    if empty:
        raise UsageError(
            f"split_column={column!r}: row {records.row[empty[0]]} has no value there."
        )
    given = np.array([str(value).strip() for value in values], np.str_)
    in_test = given == "test"
    names = np.unique(given[~in_test])
    if not len(names):
        raise UsageError(f"split_column={column!r}: every record is marked test.")
    groups = same_text_groups(records.keys, records.groups, len(records.row))
    result = np.full(len(given), TEST, np.int64)
    shuffled = len(names) == 1
    if shuffled:
        strata = _strata(records, folds)
        result[~in_test] = assign_folds(strata[~in_test], groups[~in_test], folds, seed=seed)
    else:
        result[~in_test] = np.searchsorted(names, given[~in_test])
    settings = SplitSettings(
        source=records.source, folds=int(result.max()) + 1, repeats=1, seed=seed,
        stratified=shuffled and records.labels is not None, column=column, unit=_unit(records),
    )  # fmt: skip
    return Split(records.row, groups, result[:, None], settings)


def assign_folds(strata: Int64, groups: Int64, folds: int, *, seed: int) -> Int64:
    """Return ``(n,)`` fold numbers: strata spread evenly, groups never divided.

    Raises:
        UsageError: there are fewer groups than folds.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    distinct = len(np.unique(groups))
    if distinct < folds:
        raise UsageError(f"cannot make {folds} folds from {distinct} distinct texts or groups.")
    if np.bincount(strata).max() < folds:  # nothing to spread; scikit-learn refuses
        strata = np.zeros_like(strata)
    options = {"n_splits": folds, "shuffle": True, "random_state": seed}
    if distinct == len(groups):
        subsets = StratifiedKFold(**options).split(strata, strata)
    else:
        by_group = StratifiedGroupKFold(**options)
        by_group._find_best_fold = _best_fold  # the same answer, several times as fast
        subsets = by_group.split(strata, strata, groups)
    result = np.empty(len(strata), np.int64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        for number, (_, test) in enumerate(subsets):
            result[test] = number
    return result


def _best_fold(y_counts_per_fold: Float64, y_cnt: Int64, group_y_counts: Float64) -> int:
    """The fold to which a group is added, as ``StratifiedGroupKFold`` chooses it.

    It tries the folds one by one; here all of them are tried at once.
    """
    folds = np.arange(len(y_counts_per_fold))
    tried = np.repeat(y_counts_per_fold[None], len(folds), axis=0)
    tried[folds, folds] += group_y_counts
    spreads = np.std(tried / y_cnt, axis=1).mean(axis=1).tolist()
    sizes = y_counts_per_fold.sum(axis=1).tolist()
    best, lowest, smallest = 0, math.inf, math.inf
    for fold, (spread, size) in enumerate(zip(spreads, sizes, strict=True)):
        near = abs(spread - lowest) <= 1e-8 + 1e-5 * abs(lowest) < math.inf  # np.isclose
        if spread < lowest or (near and size < smallest):
            best, lowest, smallest = fold, spread, size
    return best


def inner_folds(
    strata: Int64, groups: Int64, folds: int, *, seed: int
) -> list[tuple[Int64, Int64]]:
    """Return train and test indices inside one training subset, groups never divided."""
    assigned = assign_folds(strata, groups, folds, seed=seed)
    return [(np.flatnonzero(assigned != i), np.flatnonzero(assigned == i)) for i in range(folds)]


def same_text_groups(
    keys: Sequence[int] | Int64 | None, groups: Sequence[str | None] | None, count: int
) -> Int64:
    """Return ``(n,)`` group numbers, equal for records that are connected by texts or groups.

    Two records are connected if they have the same text or the same group, or by a chain of others.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    index = np.arange(count)
    edges = []
    named = None if groups is None else [
        None if g is None or not has_label(str(g)) else str(g) for g in groups
    ]  # fmt: skip
    for values in (None if keys is None else list(keys), named):
        if values is None:
            continue
        first: dict[Any, int] = {}
        edges.append([index[i] if v is None else first.setdefault(v, i)
                      for i, v in enumerate(values)])  # fmt: skip
    if not edges:
        return index
    to = np.concatenate([np.array(edge, np.int64) for edge in edges])
    origin = np.tile(index, len(edges))
    graph = coo_array((np.ones(len(to), bool), (origin, to)), shape=(count, count))
    _, found = connected_components(graph, directed=False)
    return np.asarray(found, np.int64)


def leaking_records(found: Split) -> int:
    """Return how many records of the first repeat have one of their group in another fold."""
    _, group = np.unique(found.group, return_inverse=True)
    fold = found.folds[:, 0]
    lowest = np.full(len(group), fold.max())
    highest = np.full(len(group), TRAIN)
    np.minimum.at(lowest, group, fold)
    np.maximum.at(highest, group, fold)
    return int((lowest < highest)[group].sum())


def records_of(data: VectorData, label: str | None = None, group: str | None = None) -> Labelled:
    """Return the records of a dataset as a split needs them.

    Raises:
        UsageError: the label is not the one the dataset was made with, or a column is missing.
    """
    stored = data.manifest.job.input.label
    if label is not None and label != stored:
        raise UsageError(
            f"label={label!r}: {data.path} was made with the label column {stored!r}. "
            "Split the corpus itself, or extract again with another label."
        )
    return Labelled(
        source=source_of(data),
        row=data.row,
        labels=data.column("label") if stored else None,
        keys=text_keys(data),
        groups=data.column(group) if group else None,
    )


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
                f"group={group!r}: {source} has no such column; it has {', '.join(columns[:20])}."
                f"{did_you_mean(group, columns)}"
            )
    options = replace(options, keep=(group,) if group else ())
    plan = hash_inputs(plan_corpus(files, options))
    records = CorpusReader(plan).records()
    return Labelled(
        source=tuple(file.sha256 for file in plan.files),
        row=np.array([r.row for r in records], np.int64),
        labels=[r.label for r in records] if plan.label else None,
        keys=[text_key(whole_text(r.text, r.text_pair)) for r in records],
        groups=[r.kept[0] for r in records] if group else None,
    )


def _near_fraction(value: float) -> Fraction:
    """A fraction near a value, with a small denominator where that is near enough."""
    few = Fraction(value).limit_denominator(20)
    return few if abs(few - value) <= value / 10 else Fraction(1, round(1 / value))


def _strata(records: Labelled, folds: int) -> Int64:
    """Return ``(n,)`` class numbers, or bins of values if some of many are rarer than the folds.

    Raises:
        UsageError: a label is missing, there is only one, or a class is rarer than there are folds.
    """
    if records.labels is None:
        return np.zeros(len(records.row), np.int64)
    check_labelled(records.labels, records.row)
    names, classes, counts = np.unique(
        np.array(records.labels, np.str_), return_inverse=True, return_counts=True
    )
    if len(names) == 1:
        raise UsageError(f"all {len(classes)} records have the label {str(names[0])!r}.")
    if counts.min() >= folds:
        return np.asarray(classes, np.int64)
    values = _numbers(names)
    if len(names) > 2 and values is not None:
        return _bins(values, counts, max(folds, len(classes) // _BINS))[classes]
    rare = str(names[np.argmin(counts)])
    raise UsageError(
        f"label {rare!r} has {counts.min()} record(s), fewer than the {folds} folds. "
        f"Use {counts.min()} folds or fewer, or leave that class out."
        if counts.min() > 1 else
        f"label {rare!r} has 1 record(s), fewer than the {folds} folds, and cannot be both "
        "trained on and held out. Leave that class out, or join it with another."
    )  # fmt: skip


def _bins(values: NDArray[np.float64], counts: Int64, smallest: int) -> Int64:
    """Return a bin for each value: neighbours together until a bin has ``smallest`` records."""
    result = np.empty(len(values), np.int64)
    number, size = 0, 0
    order = np.argsort(values)
    for i in order:
        if size >= smallest:
            number, size = number + 1, 0
        result[i] = number
        size += counts[i]
    if size < smallest and number:  # too few are left for a bin of their own
        result[result == number] = number - 1
    return result


def _numbers(names: NDArray[np.str_]) -> NDArray[np.float64] | None:
    try:
        numbers = names.astype(np.float64)
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() else None
