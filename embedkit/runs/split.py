"""Folds as data: the assignment of records to folds, made before any model is fitted.

    key, group ─ same_text_groups ─► group (n,)    0 1 1 2 …    never divided
    label ────── _strata ──────────► strata (n,)   0 0 1 1 …    spread evenly
                                         │ assign_folds
                                         ▼
    Split:  row (n,)   group (n,)   folds (n,)   0 1 2 … │ TEST −1 │ TRAIN −2 │ UNUSED −3

A split is a Parquet file keyed by ``row``. Records with the same text always share a fold, and so
do records of one group where a group column is given. Texts count as the same when they differ in
case, width or whitespace only.

What is notable:

- A split is data of its own, so that all methods meet the same folds. Its fingerprint is of the
  input files, the rows and the folds, whatever options made them; runs that are compared must have
  the same one.
- Records that texts or groups connect, also by a chain, are one group. Large groups are dealt
  first, each to the fold that has least of its classes, and single records fill the folds up.
- A test set is some of many folds, so that it is stratified and grouped as the folds are.
- Vectors of the models of a fine-tuned run keep the folds of that run (:func:`split_for`): under
  others an estimator would read vectors of models that know the labels of its held-out records.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from msgspec import Meta
from numpy.typing import NDArray

from embedkit import storage
from embedkit.arguments import accepts
from embedkit.choices import one_of
from embedkit.corpus.memory import CorpusLike, input_files
from embedkit.corpus.plan import CorpusOptions
from embedkit.dataset.format import dataset_folder
from embedkit.dataset.parquet import check_columns, numbers, parquet_bytes, read_table
from embedkit.dataset.read import VectorData
from embedkit.display import Shown
from embedkit.encoding.windows import match
from embedkit.errors import DamagedError, MismatchError, Option, UsageError
from embedkit.records import Count, Positive, Seed, from_json, parse_json, to_json
from embedkit.remote import address_of
from embedkit.types import Int64
from embedkit.units.target import Target, any_label, are_lists, float_of
from embedkit.units.units import Units, naming, split_column

logger = logging.getLogger(__name__)


TEST = -1
"""Fold number of the test set."""

TRAIN = -2
"""Fold number of records that are never held out, where there is one fold."""

UNUSED = -3
"""Fold number of records without a label."""

_KEY = b"embedkit.split"
UNITS = {"text": "distinct texts", "group and text": "groups of records, equal texts together"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSettings:
    """Settings of a split."""

    source: tuple[str, ...]  # SHA-256 of the input files, in order
    folds: Positive  # 1: a fifth of the records is held out, the others are trained on
    seed: Count
    stratified: bool
    test: Annotated[float, Meta(ge=0, lt=1)] = 0.0  # fraction that was asked for
    grouped: bool = False
    column: str | None = None  # of the corpus, which the folds were taken from
    unit: Annotated[str, one_of(UNITS)] = "text"  # what is never divided, and resampled
    fingerprint: str = ""  # of the assignment, where it was made


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Split(Shown):
    """Folds of the records of one input, or of words, which go with their record."""

    row: Int64  # (n,) record numbers, ascending
    group: Int64  # (n,) records of one number always share a fold
    folds: Int64  # (n,) TEST, UNUSED (without a label), TRAIN (never held out), or a number
    settings: SplitSettings
    records: Split | None = None  # that words belong to; None of records

    def __repr__(self) -> str:
        sizes = f"{len(self.in_folds):,} records in {self.n_folds} folds"
        return f"Split({sizes}, {len(self.test):,} records in the test set)"

    def as_rows(self) -> list[dict[str, Any]]:
        """Rows of the sizes."""
        return [{"fold": name, "records": size} for name, size in self.sizes.items()]

    @property
    def sizes(self) -> dict[str, int]:
        """Number of records in each fold and in ``test``; with one fold those of ``train`` too."""
        sizes = {str(fold): int((self.folds == fold).sum()) for fold in range(self.n_folds)}
        if self.n_folds == 1:
            sizes["train"] = len(self.in_folds) - sizes["0"]
        return sizes | ({"test": len(self.test)} if len(self.test) else {})

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the assignment of records and of the input that they belong to."""
        # of words it is that of their records: a word is never apart from its text
        if self.records is not None:
            return self.records.fingerprint
        # of what is assigned, not of how: two splits with the same folds are one, whatever options
        # made them
        digest = hashlib.sha256(json.dumps(self.settings.source).encode())
        for array in (self.row, self.folds):
            # 64 bits, little-endian on every machine, however the arrays are stored
            digest.update(np.ascontiguousarray(array, "<i8").tobytes())
        return digest.hexdigest()

    @property
    def record(self) -> SplitSettings:
        """The settings with the fingerprint, as files hold them."""
        return replace(self.settings, fingerprint=self.fingerprint)

    @property
    def n_folds(self) -> int:
        """Number of folds."""
        return int(self.folds.max()) + 1

    @property
    def test(self) -> Int64:
        """Indices of the test set."""
        return np.flatnonzero(self.folds == TEST)

    @property
    def in_folds(self) -> Int64:
        """Indices of all records but the test set, held out or not."""
        return np.flatnonzero(~np.isin(self.folds, (TEST, UNUSED)))

    def of_words(self, record: Int64) -> Split:
        """Return the split of words, by the index of each one's record."""
        columns = self.row[record], self.group[record], self.folds[record]
        return Split(*columns, self.settings, records=self)

    def labelled(self, target: Target) -> Split:
        """Return the split without the words that have no label; of records all stay."""
        folds = self.folds if self.records is None else np.where(target.unknown, UNUSED, self.folds)
        return replace(self, folds=folds)

    def check(self, target: Target) -> None:
        """Raise a :class:`UsageError` if a fold cannot be fitted or predicted.

        A rare label of words, or of sets of classes, may be missing among the training records of a
        fold, where it then has the probability 0: sentences cannot be left out for it.
        """
        for fold, (train, test) in enumerate(self.subsets()):
            if not len(test) or not len(train):
                raise UsageError(
                    f"fold {fold} of the split has no {'training' if len(test) else 'held-out'} "
                    "record among these. Make the split again from the records that are there."
                )
            if missing := np.count_nonzero(target.unknown[np.concatenate([train, test])]):
                advice = f"Make a new split with {Option('label', of='split')}"
                raise UsageError(f"{missing} records in the folds have no label. {advice}.")
            if not target.classes or target.of_sets:
                continue
            where = f"the training records of fold {fold}"
            counts = np.bincount(target.y[train], minlength=len(target.classes))
            rare = [target.classes[i] for i in np.flatnonzero(counts == 0)]
            if rare and self.records is None:
                problem = f"of {len(counts)} labels {rare[0]!r} does not occur in {where}"
                raise UsageError(f"{problem}. Use other folds, or empty rare labels.")
            if rare:  # of words
                shown = f"label {', '.join(rare):.200}: no word in {where} has it"
                logger.warning(f"{shown}, its probability is 0")
            if np.count_nonzero(counts) == 1:
                label = target.classes[int(np.argmax(counts))]
                raise UsageError(f"all words have the label {label!r} in {where}. Use other folds.")

    def check_test(self, test: object) -> None:
        """Raise a :class:`UsageError` if there is a test set beside ``test``."""
        if len(self.test):
            raise UsageError("the split has a test set already. Leave it out.", test=test)
        if self.settings.grouped:
            logger.warning(
                "the records of the test set are resampled one by one: where they are alike in "
                "groups, its intervals are too narrow. embedkit split --test makes one of groups."
            )

    def subsets(self) -> list[tuple[Int64, Int64]]:
        """Return train and test indices of every fold."""
        fitted = ~np.isin(self.folds, (TEST, UNUSED))
        # records of TRAIN are no fold, and so are in every training subset
        held_out = [self.folds == number for number in range(self.n_folds)]
        return [(np.flatnonzero(fitted & ~test), np.flatnonzero(test)) for test in held_out]


def write_split(split: Split, path: Path, *, overwrite: bool = False) -> None:
    """Write the folds of records durably; the same split gives the same bytes."""
    # a word is never apart from its record, which is what the file is keyed by
    split = split if split.records is None else split.records
    folds = split.folds.astype(np.int16)
    table = pa.table({"row": split.row, "group": split.group, "fold": folds})
    table = table.replace_schema_metadata({_KEY: to_json(split.record, indent=None)})
    storage.write_files({path: parquet_bytes(table)}, overwrite=overwrite)


def read_split(path: Path) -> Split:
    """Read a split and compare it with its fingerprint."""
    if address_of(path):
        with input_files(path) as (file,):
            return read_split(file.path)
    if not path.is_file():
        advice = f"Give {path}/split.parquet" if path.is_dir() else "Make it with embedkit split"
        raise UsageError(f"{path} is no file. {advice}.")
    # beside a corpus a split stands alone, with its fingerprint; in a run it has a checksum too
    if storage.is_sealed(path.parent):  # of a run
        storage.check_files(path.parent, [path.name])
    table = read_table(path) if path.read_bytes().startswith(b"PAR1") else pa.table({})
    if _KEY not in (table.schema.metadata or {}):
        keep = Option("keep", "fold", of="extract", after=", then ")
        advice = f"Of your own folds keep the column in the corpus: {keep}{Option('split', 'fold')}"
        raise UsageError(f"{path} was not written by embedkit split. {advice}.")
    content = parse_json(table.schema.metadata[_KEY], file=path)
    settings = from_json(SplitSettings, content, file=path)
    expected = {"row": pa.int64(), "group": pa.int64(), "fold": pa.int16()}
    check_columns(table, expected, file=path)
    split = Split(
        row=numbers(table["row"]),
        group=numbers(table["group"]),
        folds=numbers(table["fold"]).astype(np.int64),
        # computed where it is asked for, and never copied from the file
        settings=replace(settings, fingerprint=""),
    )
    if split.fingerprint != settings.fingerprint:
        raise DamagedError(f"{path} is not what was written. Make it again.")
    return split


def split_for(
    units: Units,
    split: str | Path | Split | None = None,
    *,
    folds: int,
    seed: int,
    sets: bool = False,
) -> Split:
    """Return the fold of every unit; words are in the fold of their record.

    Vectors that the models of a fine-tuned run made keep the folds of that run: the model of a fold
    was trained on all others, so that under another split an estimator would be fitted on vectors
    of models that were trained on its held-out records. Others have the split of a file, or one by
    a kept column, or a new one, which is not stratified if labels name ``sets`` of classes.
    """
    records, name, fold = units.records, units.name, units.fold_of_model
    # of texts that none of the models has seen every split is honest
    run = units.run if (fold >= 0).any() else None
    column = next(iter(split_column(split)), None)
    if column is not None:
        result = split_by_column(records, column=column, folds=folds, seed=seed, sets=sets)
    elif split is None and run is None:
        result = make_split(records, folds=folds, seed=seed, sets=sets)
    else:
        file = Path(run or "") / "split.parquet" if split is None else split
        if isinstance(file, Path) and split is None and not file.is_file():
            raise UsageError(
                f"{name} was made by the models of the run {run}, which is not there. Pass its "
                f"split.parquet as {Option('split')}."
            )
        result = align_split(file, records)
    # also where a split was passed: it may be the run's own, in a file of another name
    other = int(((result.folds != fold) & (fold >= 0)).sum())
    if run is not None and other:
        raise MismatchError(
            f"{f'column {column!r}' if column else split or 'its split'} has {other} of "
            f"{len(records)} records in another fold than the models of {run}, which made the "
            f"vectors of {name}. Leave out {Option('split')}, or pass {run / 'split.parquet'}."
        )
    return result if units.word is None else result.of_words(units.place)


def align_split(file: str | Path | Split, records: Units) -> Split:
    """Return a split of these records, which is of the same input and may have more of them."""
    split, name = file if isinstance(file, Split) else read_split(Path(file)), records.name
    advice = "Make one for it, by embedkit split."
    # row numbers mean the same records only in the same input files
    if split.settings.source != records.source:
        raise MismatchError(f"{file} was made for other data than {name} (other files). {advice}")
    index = match(records.row, split.row)
    if missing := int((index < 0).sum()):
        raise MismatchError(f"{file} lacks {missing} of {len(index)} records of {name}. {advice}")
    return Split(records.row, split.group[index], split.folds[index], split.settings)


_SMALLEST_TEST = 0.01
# at most so many strata of a regression
_BINS = 10
VALIDATION = frozenset(("validation", "valid", "val", "dev"))
_HOLDOUT = 5  # of one fold, a record of so many is held out


@accepts()
def split(
    source: CorpusLike,
    *,
    out: str | Path | None = None,
    folds: Positive = 5,
    test: float = 0.0,
    seed: Seed = 0,
    label: str | None = None,
    group: str | None = None,
    label_separator: str | None = None,
    overwrite: bool = False,
    reading: CorpusOptions | None = None,
) -> Split:
    """Assign the records of a dataset or a corpus to folds, and write the assignment.

    Args:
        source: a dataset that ``extract`` wrote, or a corpus as ``extract`` takes it.
        out: Parquet file to write, if any.
        folds: number of folds; 1: a single training, with a fifth of the records held out.
        test: fraction of the records to hold out as test set, 0.01 to 0.5; 0 for none.
        seed: of the shuffle, and of ``sample``.
        label: column to stratify by, of a dataset also one that was kept.
        group: column whose values must not be divided; of a dataset one that was kept.
        label_separator: between the classes of a record (``task="multilabel"``); folds are not
            stratified then, and an empty label is a record without a class.
        overwrite: replace the file.
        reading: how a corpus is read; ``label``, ``keep`` and ``seed`` are taken from above.

    Raises:
        UsageError: a column, count or class cannot be used.
        OutputExistsError: the file exists.

    Example:
        >>> split = embedkit.split("vectors", folds=3, test=0.25)
        >>> split.n_folds, len(split.row), len(split.test)
        (3, 12, 3)
    """
    if out is not None:
        if Path(out).suffix != ".parquet":
            raise UsageError("expected a name ending in .parquet.", out=out)
        storage.refuse_existing(Path(out), overwrite=overwrite)
    reading = reading or CorpusOptions()
    if folder := dataset_folder(source, reading.given):
        records = Units.of_dataset(VectorData.of(folder), label=label)
        if group:
            records = replace(records, group=records.column(group))
    else:
        # to the corpus the group is a column that is kept, and its errors say so; the user wrote
        # group=
        keep = {group: "group"} if group else {}
        # a seed without a sample changes nothing
        drawn = seed if reading.sample is not None else 0
        options = replace(reading, label=label, keep=tuple(keep), seed=drawn)
        with naming(keep):
            records = Units.of_corpus(source, options, grouped=bool(group))
    sets = label_separator is not None or are_lists(records.label or ())
    result = make_split(records, folds=folds, test=test, seed=seed, sets=sets)
    if out is not None:
        write_split(result, Path(out), overwrite=overwrite)
    return result


def make_split(
    records: Units, *, folds: int = 5, test: float = 0.0, seed: int = 0, sets: bool = False
) -> Split:
    """Assign records to folds; arguments and errors as for :func:`split`."""
    if test != 0 and not _SMALLEST_TEST <= test <= 0.5:
        raise UsageError(f"expected a fraction from {_SMALLEST_TEST} to 0.5.", test=test)
    # records without a label take no part, so that they do not make folds uneven
    labelled = records.labelled(sets=sets)
    subset, count = records.take(np.flatnonzero(labelled)), int(labelled.sum())
    if not count:
        raise UsageError(f"{records.name} has no records.")
    groups = same_text_groups(subset.key, subset.group)
    strata = _strata(subset, folds, sets)
    in_test = np.zeros(count, bool)
    if test:
        # the test set is some of many folds: 0.3 is 3 of 10. Small fractions are rounded to 1 of n
        # where 20 folds are too coarse by more than a tenth
        part = Fraction(test).limit_denominator(20)
        if abs(part - test) > test / 10:
            part = Fraction(1, round(1 / test))
        # another seed, so that test set and folds are not of the same shuffle; 7,919 is arbitrary,
        # and files depend on it
        assigned = assign_folds(strata, groups, part.denominator, seed=seed + 7_919)
        in_test = assigned < part.numerator
    assigned = np.full(count, TEST)
    assigned[~in_test] = _assigned(strata[~in_test], groups[~in_test], folds, seed=seed)
    # back from the labelled records to all of the input
    result, group = np.full(len(labelled), UNUSED), np.full(len(labelled), -1)
    result[labelled], group[labelled] = assigned, groups
    settings = SplitSettings(
        source=records.source,
        folds=folds,
        test=test,
        seed=seed,
        stratified=any_label(records.label) and not sets,
        grouped=records.group is not None,
        unit="text" if records.group is None else "group and text",
    )
    return Split(records.row, group, result, settings)


def split_by_column(
    records: Units, *, column: str, folds: int, seed: int, sets: bool = False
) -> Split:
    """Take the folds from a column of the corpus.

    ``test`` marks the test set, every other value a fold. Where only one other value is left, such
    as ``train``, its records are assigned to ``folds`` folds. Of ``train`` and ``validation`` the
    latter alone is held out.
    """
    try:
        values = records.column(column)
    except UsageError as error:  # the name of a file may have been meant
        raise UsageError(f"there is no such file, and {error.message}", split=column) from error
    marks = np.array(["" if v is None else str(v).strip() for v in values], np.str_)
    in_test = np.char.lower(marks) == "test"
    # records marked test may have no label: they are predicted, not scored
    used = ~in_test & records.labelled(sets=sets)
    if len(empty := records.row[used & (marks == "")]):
        raise UsageError(f"row {empty[0]} has no value there.", split=column)
    names = np.unique(marks[used])
    if not len(names):
        raise UsageError("every record is marked test, or has no label.", split=column)
    # our own numbers of these; -1 is training alone in scikit-learn's PredefinedSplit
    if marked := {"-1", "-2", "-3"} & {name.removesuffix(".0") for name in names.tolist()}:
        problem = f"{min(marked)} is no fold, and may mean the test set, training or neither."
        raise UsageError(f"{problem} Write test, or train and validation.", split=column)
    groups = same_text_groups(records.key)
    result = np.where(in_test, TEST, UNUSED)
    shuffled, kinds = len(names) == 1, np.char.lower(names).tolist()
    if len(kinds) == 2 and "train" in kinds and not VALIDATION.isdisjoint(kinds):
        result[used] = np.where(np.char.lower(marks[used]) == "train", TRAIN, 0)
    elif shuffled:
        strata = _strata(records.take(np.flatnonzero(used)), folds, sets)
        result[used] = _assigned(strata, groups[used], folds, seed=seed)
    else:
        if not in_test.any() and not any(character.isdigit() for character in "".join(names)):
            listed = ", ".join([*names[:5], "…"][: len(names)])
            logger.info(f"{column}: {len(names)} folds, {listed}; a test set is called test")
        # numbered in the order of the sorted names, in which "10" is before "2"
        result[used] = np.searchsorted(names, marks[used])
    _warn_of_leakage(result, groups, column)
    settings = SplitSettings(
        source=records.source,
        folds=int(result.max()) + 1,
        seed=seed,
        stratified=shuffled and any_label(records.label) and not sets,
        column=column,
    )
    return Split(records.row, groups, result, settings)


def _warn_of_leakage(folds: Int64, groups: Int64, column: str) -> None:
    """Warn of records whose text is in several folds."""
    used = folds != UNUSED
    fold, group = folds[used], groups[used]
    # distinct pairs of group and fold, then the number of folds of each group
    numbers, n_folds = np.unique(np.unique([group, fold], axis=1)[0], return_counts=True)
    if leaking := int(np.isin(group, numbers[n_folds > 1]).sum()):
        problem = f"{leaking:,} records have duplicates in another fold of column {column!r}"
        logger.warning(f"{problem}; scores may be inflated by leakage")


def _assigned(strata: Int64, groups: Int64, folds: int, *, seed: int) -> Int64:
    """Return ``(n,)`` fold numbers as a person means them.

    One fold is the first of five; the records of the others are trained on and never held out.
    """
    if folds > 1:
        return assign_folds(strata, groups, folds, seed=seed)
    return np.where(assign_folds(strata, groups, _HOLDOUT, seed=seed) > 0, TRAIN, 0)


def assign_folds(strata: Int64, groups: Int64, folds: int, *, seed: int) -> Int64:
    """Return ``(n,)`` fold numbers: strata spread evenly, groups never divided."""
    from sklearn.model_selection import StratifiedKFold

    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(sizes) < folds:
        # not all of these folds are a person's: one is held out of five, a test set is one of many
        problem = f"the split needs {folds} distinct texts or groups, and there are {len(sizes)}"
        raise UsageError(f"{problem}. Give more records, or use fewer folds.")
    if np.bincount(strata).max() < folds:  # nothing to spread; scikit-learn refuses
        strata = np.zeros_like(strata)
    # StratifiedKFold cannot keep groups together; it is used where every record is its own
    if len(sizes) < len(groups):
        return _dealt(strata, group, sizes, folds, seed=seed)
    subsets = StratifiedKFold(folds, shuffle=True, random_state=seed).split(strata, strata)
    result = np.empty(len(strata), np.int64)
    with warnings.catch_warnings():
        # split() is a generator, and warns only here
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        for number, (_, test) in enumerate(subsets):
            result[test] = number
    return result


def _dealt(strata: Int64, group: Int64, sizes: Int64, folds: int, *, seed: int) -> Int64:
    """Return ``(n,)`` folds of records in groups, which have the numbers ``group`` and ``sizes``.

    The largest groups are dealt first, each to the fold that has the least of its classes; then
    single records fill the folds up, class by class. scikit-learn's ``StratifiedGroupKFold`` weighs
    every fold for every group, also for the single records, of which a corpus mostly consists: one
    repeated text among 200,000 makes that take longer than all fits.
    """
    random, total = np.random.default_rng(seed), np.bincount(strata).astype(np.float64)
    counts = np.zeros((folds, len(total)), np.int64)
    result = np.empty(len(strata), np.int64)
    # the records of group g are records[ends[g] - sizes[g] : ends[g]]
    records, ends = np.argsort(group, kind="stable"), np.cumsum(sizes)
    # shuffled, then sorted by size: groups of one size keep a random order
    several = random.permutation(np.flatnonzero(sizes > 1))
    for number in several[np.argsort(-sizes[several], kind="stable")]:
        members = records[ends[number] - sizes[number] : ends[number]]
        classes, amounts = np.unique(strata[members], return_counts=True)
        # share of a class that the fold has, times share that the group brings: a rare class weighs
        # as much as a frequent one. Of equally crowded folds the smallest takes it
        crowded = counts[:, classes] @ (amounts / total[classes] ** 2)
        fold = np.lexsort((counts.sum(axis=1), crowded))[0]
        result[members] = fold
        counts[fold, classes] += amounts
    single = random.permutation(np.flatnonzero(sizes[group] == 1))
    single = single[np.argsort(strata[single], kind="stable")]
    # starts[0] is 0, so that the first of the pieces that np.split makes is empty
    classes, starts = np.unique(strata[single], return_index=True)
    for number, members in zip(classes, np.split(single, starts)[1:], strict=True):
        share = _filling(counts[:, number], counts.sum(axis=1), len(members))
        result[members] = np.repeat(np.arange(folds), share)
        counts[:, number] += share
    # the first folds become a test set or validation records. They are not those that the largest
    # groups were dealt to first, which come last if they hold most of a class. Of classes that
    # some folds lack the first ones have their part: each kind of fold is spread over the order
    sizes, often = counts.sum(axis=1), total >= folds
    lacking = (counts[:, often] == 0).sum(axis=1)
    large = (sizes > 1.5 * sizes.mean()) | (2 * counts[:, often] > total[often]).any(axis=1)
    order, place = random.permutation(folds), np.empty(folds)
    for kind in np.unique(lacking):
        alike = order[lacking[order] == kind]
        place[alike] = np.arange(len(alike)) / len(alike)
    return np.argsort(np.lexsort((lacking, place, large)))[result]


def _filling(counts: Int64, sizes: Int64, more: int) -> Int64:
    """Divide ``more`` records of a class evenly among folds that have ``counts`` of it already.

    Those that are left over go to the smallest folds.
    """
    # the level of water poured onto the counts: the i lowest folds can be raised to (their sum +
    # more) / i, and the least of these is reached; no fold above it gets any
    level = int(((np.cumsum(np.sort(counts)) + more) // np.arange(1, len(counts) + 1)).min())
    share = np.maximum(level - counts, 0)
    low = np.flatnonzero(counts <= level)
    share[low[np.argsort((sizes + share)[low], kind="stable")][: more - share.sum()]] += 1
    return share


def inner_folds(
    strata: Int64, groups: Int64, folds: int, *, seed: int
) -> list[tuple[Int64, Int64]]:
    """Return train and test indices inside one training subset, groups never divided.

    A group counts as one record of the class of its first: ``StratifiedGroupKFold`` takes longer
    than a fit, and these folds are made for every one.
    """
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    assigned = assign_folds(strata[first], np.arange(len(first)), folds, seed=seed)[group]
    return [(np.flatnonzero(assigned != i), np.flatnonzero(assigned == i)) for i in range(folds)]


def same_text_groups(keys: Int64, groups: Sequence[str | None] | None = None) -> Int64:
    """Return ``(n,)`` group numbers, equal for records that are connected by texts or groups.

    Two records are connected if they have the same text or the same group, or by a chain of others.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # an edge from each record to the first one with the same text, and to the first one with the
    # same group; or to itself. The connected components are the groups
    to: list[int] = []
    for values in (keys, groups):
        first: dict[Any, int] = {}
        for i, value in enumerate(() if values is None else values):
            # nan is what other programs write for no group: such records must not stick together
            has_value = value is not None and str(value).strip().lower() not in ("", "nan")
            to.append(first.setdefault(value, i) if has_value else i)
    edges = np.resize(np.arange(len(keys)), len(to)), np.array(to, np.int64)
    graph = coo_array((np.ones(len(to), bool), edges), shape=(len(keys), len(keys)))
    _, component = connected_components(graph, directed=False)
    return np.asarray(component, np.int64)


def _strata(records: Units, folds: int, sets: bool) -> Int64:
    """Return ``(n,)`` class numbers, or bins of values if some of many are rarer than the folds."""
    if sets or not any_label(records.label):
        return np.zeros(len(records), np.int64)
    labels = np.array(records.label, np.str_)
    names, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(names) == 1:
        raise UsageError(f"all {len(classes)} records have the label {str(names[0])!r}.")
    # classes, or numbers that are few enough to be balanced as they are, such as stars
    needed = folds if folds > 1 else _HOLDOUT
    if counts.min() >= needed:
        return np.asarray(classes, np.int64)
    values = np.array([float_of(name) for name in names.tolist()])
    # the task is not known here: rare labels that are all numbers are taken for values of a
    # regression
    if len(names) > 2 and np.isfinite(values).all():
        return _bins(values, counts, max(needed, len(classes) // _BINS))[classes]
    rare, least = str(names[np.argmin(counts)]), int(counts.min())
    fewer = ": use fewer" * (least > 1)  # one record cannot be on both sides
    few = f"fewer than the {folds} folds{fewer}" if folds > 1 else "too few to hold out a fifth"
    raise UsageError(
        f"{len(names)} labels for {len(classes)} records; label {rare!r} has {least}, {few}. "
        "Leave that class out (empty its labels), or join it with another."
    )


def _bins(values: NDArray[np.float64], counts: Int64, smallest: int) -> Int64:
    """Return a bin for each value: neighbours together until a bin has ``smallest`` records."""
    result = np.empty(len(values), np.int64)
    number, size = 0, 0
    for i in np.argsort(values):
        if size >= smallest:
            number, size = number + 1, 0
        result[i] = number
        size += counts[i]
    if size < smallest and number:  # too few are left for a bin of their own
        result[result == number] = number - 1
    return result


# validation records are some of so many equal parts: 0.15 is 3 of 20. With fewer parts fractions
# would be off, and with more each part has too few records to have the classes in proportion
_DENOMINATOR = 20


def validation_records(
    index: Int64,
    fraction: float,
    *,
    group: Int64,
    strata: Int64,
    seed: int,
    trains: Sequence[Int64] = (),
) -> Int64:
    """Return about a fraction of ``index``, groups never divided and classes spread evenly.

    It is empty if the records are too few, or too similar. ``group`` and ``strata`` are of all
    records; every array of ``trains`` keeps records of each of its classes.
    """
    # 1e18: of the smallest fractions the reciprocal is infinite
    finest = max(_DENOMINATOR, math.ceil(min(1 / fraction, 1e18)))
    near = Fraction(fraction).limit_denominator(finest)
    # no more parts than groups, and than records of the largest class, as stratified folds need
    distinct, largest = len(np.unique(group[index])), int(np.bincount(strata[index]).max(initial=0))
    folds = min(near.denominator, distinct, largest)
    chosen = index[:0]
    if folds >= 2:
        count = max(round(fraction * folds), 1)
        chosen = index[assign_folds(strata[index], group[index], folds, seed=seed) < count]
    for train in trains:
        # a class whose training records would all be validation records goes back, with the whole
        # groups of these records: a model cannot predict what it was never shown
        lost = np.setdiff1d(strata[train], strata[np.setdiff1d(train, chosen)])
        kept = group[chosen[np.isin(strata[chosen], lost)]]  # groups are never divided
        chosen = chosen[~np.isin(group[chosen], kept)]
    return chosen
