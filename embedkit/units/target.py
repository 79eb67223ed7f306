"""Targets: labels as numbers.

    classification   "good" "bad" None   ─►  [1, 0, −1]            classes ("bad", "good")
    regression       "2.5"  "7"   None   ─►  [2.5, 7.0, NaN]       no classes
    multilabel       "a|b"  ""    None   ─►  [[1, 1], [0, 0], [−1, −1]]   classes ("a", "b")

Classes are sorted, by value where they are numbers, so that they have the same numbers in whatever
order the records come; labels are compared as written, and those that look alike are told.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from embedkit.corpus.values import list_of
from embedkit.dataset.read import has_label
from embedkit.errors import Message, Option, UsageError
from embedkit.types import Bool, Float64, Int64

logger = logging.getLogger(__name__)

SEPARATOR = "|"
"""Between the classes of a record, unless told otherwise."""

_MANY_CLASSES = 20
# joiners and other marks without width, and those that choose the variant of a character
_UNSEEN = dict.fromkeys([*range(0x200B, 0x2010), 0x2060, 0xFEFF, *range(0xFE00, 0xFE10)])


@dataclass(frozen=True, slots=True)
class Target:
    """Labels: ``(n,)`` class numbers int64, or values float64 of a regression, without classes.

    Sets of classes are ``(n, classes)`` int64, 1 for each class of a record; ``separator`` stands
    between their names. A record without a label has -1, or NaN.
    """

    y: NDArray[Any]
    classes: tuple[str, ...]
    separator: str | None = None

    @classmethod
    def of(
        cls,
        labels: Sequence[str | None],
        *,
        rows: Int64,
        name: str,
        task: str = "classification",
        separator: str = SEPARATOR,
    ) -> Self:
        """Return the target for labels as written; messages show ``rows`` and ``name``."""
        sets = task == "multilabel"
        if not separator:
            raise UsageError("expected a text.", label_separator=separator)
        # an empty text is a missing label of one class, and a set without classes
        present = [label for label in labels if (label is not None if sets else has_label(label))]
        each = [parts_of(label, separator) for label in present] if sets else [present]
        # sorted, so that classes have the same numbers in whatever order the records come
        names = np.unique(np.array(list(chain.from_iterable(each)), np.str_))
        if len(names) < 2:
            labels_text = ", ".join(map(repr, names.tolist())) or "none"
            raise UsageError(f"{name}: expected two labels or more, got {labels_text}.")
        if sets and (twofold := [part for part in names.tolist() if separator in part]):
            problem = f"the class {twofold[0]!r} holds what stands between classes"
            raise UsageError(f"{name}: {problem}.", label_separator=separator)
        # most likely another separator is meant; it may still be right
        if sets and max(map(len, each)) == 1:
            by = Option("label_separator", separator)
            logger.warning(Message(f"{name}: no record has two classes by {by}"))
        # a number for each class, such as 0 or 1: they are no names, which all records would have
        lengths, truths = set(map(len, each)), {"True", "False"}
        numbers = all(part in truths or 0 <= float_of(part) <= 1 for part in names.tolist())
        if sets and len(lengths) == 1 < max(lengths) and numbers:
            problem = f"the label {present[0]!s:.60} is a number for each class"
            raise UsageError(f"{name}: {problem}. Give each record the list of its classes.")
        if sets and len(set(map(frozenset, each))) == 1:
            raise UsageError(f"{name}: all records have the label {present[0]!r}.")
        # as a name a list of classes would be one more class, which few records have, and so would
        # an object. What stands in other brackets may be one, such as the interval (0, 5)
        begins = () if task == "regression" else ("[", "{", "frozenset(")
        inside = [part for part in names.tolist() if part.startswith(begins)]
        if lists := [part for part in inside if part[:2] == '{"' or list_of(part) is not None]:
            kind, advice = "list of classes", f"Pass {Option('task', 'multilabel')}."
            if sets or lists[0][:2] in ('{"', "[[", "[{"):
                kind, spans = "list or an object within one", Option("spans", of="extract")
                advice = f"Name the field with the class; spans of texts are for {spans}."
            raise UsageError(f"{name}: the label {lists[0]:.60} is a {kind}. {advice}")
        classes = tuple(names.tolist()) if sets else ()
        _warn_of_twins(names, name)
        if task == "classification":
            classes = _classes(names, name)
        # the labels become numbers in a second step, the one that further labels take too
        target = cls(rows[:0], classes, separator if sets else None)._filled(labels, rows, name)
        if task == "regression":
            check_offset(target.y, f"{name}: the labels")
        if missing := len(labels) - len(present):
            # of records or of words
            logger.warning(Message(f"{name}: {missing:,} of {len(labels):,} labels are missing"))
        return target

    def like(self, labels: Sequence[str | None] | None, *, rows: Int64, name: str) -> Self:
        """Return the target for further labels by these classes; all may be missing, or none."""
        if labels is None or not any_label(labels):
            return self._filled([None] * len(rows), rows, name)
        for label, row in zip(labels, rows, strict=True):
            # half of the labels would score half of the records under the name of all
            if label is None or not (self.separator or has_label(label)):
                raise UsageError(f"{name}: row {row} has no label, unlike others. Label all.")
            for part in parts_of(label, self.separator) if self.separator else [label]:
                if self.classes and part not in self.classes:
                    shown = ", ".join([*self.classes[:10], *["…"] * (len(self.classes) > 10)])
                    raise UsageError(
                        f"{name}: row {row} has the label {part!r}, which no training record has; "
                        f"there are {shown}."
                    )
        return self._filled(labels, rows, name)

    def take(self, index: Int64) -> Self:
        """Return the target of some of the units."""
        return replace(self, y=self.y[index])

    @property
    def of_sets(self) -> bool:
        """True if units have any number of classes."""
        return self.separator is not None

    @property
    def settings(self) -> dict[str, str]:
        """How labels are read, for ``run.json``: what stands between the classes of a set."""
        return {} if self.separator is None else {"label_separator": self.separator}

    @property
    def strata(self) -> Int64:
        """Classes to balance folds by; all zero for a regression and for sets of classes."""
        # combinations of classes are too many and too rare to balance folds by
        return self.y if self.classes and not self.of_sets else np.zeros(len(self.y), np.int64)

    @property
    def unknown(self) -> Bool:
        """True for units without a label."""
        # a set without a label has -1 for every class, see _filled
        missing = self.y < 0 if self.classes else np.isnan(self.y)
        return np.asarray(missing.any(1) if self.of_sets else missing)

    def _filled(self, labels: Sequence[str | None], rows: Int64, name: str) -> Self:
        """The target of other labels, by the same classes."""
        if not self.classes:
            return replace(self, y=numbers_of(labels, rows, name))
        if self.separator is None:
            numbers = {label: i for i, label in enumerate(self.classes)}
            y = [numbers[str(label)] if has_label(label) else -1 for label in labels]
            return replace(self, y=np.array(y, np.int64))
        # an empty label is a set without classes
        sets = [None if label is None else parts_of(label, self.separator) for label in labels]
        return replace(self, y=set_numbers(sets, self.classes))


def _warn_of_twins(names: NDArray[np.str_], name: str) -> None:
    """Say that two classes look the same: they differ in spaces, in case or in Unicode forms."""
    seen: dict[str, str] = {}
    for label in names.tolist():
        # they stay two classes: nothing here may change a label, and the difference may be meant
        looks = unicodedata.normalize("NFKC", label).translate(_UNSEEN).strip().casefold()
        if (twin := seen.setdefault(looks, label)) != label:
            problem = "look alike, and are two classes; spaces, case or Unicode forms differ"
            logger.warning(Message(f"{name}: the labels {twin!r} and {label!r} {problem}"))
            return


def _classes(names: NDArray[np.str_], name: str) -> tuple[str, ...]:
    """The classes by number; an error for many different values that are not class numbers."""
    values = np.array([float_of(label) for label in names])
    # numbers by value, then everything else by name
    classes = tuple(names[np.argsort(values, kind="stable")].tolist())
    # class numbers are whole, however many they are; NaN sorts behind all numbers, so that names of
    # classes keep their order among each other
    whole = [float(value).is_integer() for value in values]
    if len(classes) > _MANY_CLASSES and not np.isnan(values).any() and not all(whole):
        raise UsageError(
            f"{name}: the {len(classes)} different labels look like values ({classes[0]} to "
            f"{classes[-1]}), not classes. Pass {Option('task', 'regression')}."
        )
    return classes


def parts_of(label: str | None, separator: str) -> list[str]:
    """Return the classes of a record as its label names them; none if it is empty.

    >>> parts_of("a|b", "|"), parts_of('["a|b", "c"]', "|")
    (['a', 'b'], ['a|b', 'c'])
    """
    text = label or ""
    # a list needs no separator, so that its names may contain it
    listed = list_of(text)
    parts = text.split(separator) if listed is None else [part or "" for part in listed]
    return [name for part in parts if (name := part.strip())]


def any_label(labels: Sequence[str | None] | None) -> bool:
    """True if there is a label."""
    return any(map(has_label, labels or ()))


def are_lists(labels: Sequence[str | None]) -> bool:
    """True if every label is a list of classes."""
    present = [label for label in labels if label is not None]
    return bool(present) and all(list_of(label) is not None for label in present)


def set_numbers(sets: Sequence[Sequence[str] | None], classes: Sequence[str]) -> Int64:
    """Return ``(n, classes)`` with 1 for each class of a set; -1 where nothing is known of it."""
    places = {name: i for i, name in enumerate(classes)}
    numbers = np.zeros((len(sets), len(classes)), np.int64)
    for row, names in enumerate(sets):
        numbers[row, [places[name] for name in names or ()]] = 1
        numbers[row] -= names is None
    return numbers


# of numbers as estimators compute with them, in float32; of their distance from 0, in deviations
_LARGEST, _LARGEST_OFFSET = 1e30, 1e6


def numbers_of(texts: Sequence[str | None], rows: Int64, name: str, **parameter: str) -> Float64:
    """Return the numbers that texts tell, NaN where one is missing; else a :class:`UsageError`."""
    values = np.array([float_of(text) for text in texts])
    # NaN is not small either; squares of larger numbers overflow
    wrong = ~(np.abs(values) < _LARGEST) & np.array([has_label(text) for text in texts], np.bool_)
    if wrong.any():
        i = int(np.argmax(wrong))
        problem = f"{name}: {texts[i]!r} of row {rows[i]} is not a number below 1e30"
        advice = "Name a column of numbers, or leave empty what is missing."
        raise UsageError(f"{problem}. {advice}", **parameter)
    return values


def check_offset(values: Float64, what: str, **parameter: str) -> None:
    """A :class:`UsageError` if values are so far from 0 that float32 loses their spread."""
    values = values[np.isfinite(values)]
    # not of a constant, which has no spread to lose but that of its own rounding
    largest, spread = np.abs(values).max(initial=0), values.std() if len(values) else 0
    if largest > _LARGEST_OFFSET * spread and np.ptp(values) > 1e-14 * largest:
        problem = f"{what} are around {values.mean():.6g} and differ by {spread:.2g} only"
        raise UsageError(f"{problem}. Subtract their mean.", **parameter)


def float_of(label: str | None) -> float:
    """Return a number from its text; NaN for what is none."""
    try:
        # Python's own writing of large numbers is no number in a corpus: 1_000
        return float("nan" if not label or "_" in label else label)
    except ValueError:
        return float("nan")


def class_prior(y: NDArray[Any], classes: Sequence[str]) -> Float64:
    """Return ``(classes,)`` class frequencies, or the mean ``(1,)`` of a regression."""
    if not classes or y.ndim > 1:
        # a regression has one mean; sets have the frequency of each class
        return np.atleast_1d(y.mean(0))
    return np.bincount(y, minlength=len(classes)) / len(y)


def best_set(prior: Float64) -> Int64:
    """Return the set of classes that has the best micro-F1 if it is predicted for every record.

    ``prior`` are the frequencies f of the classes. The k most frequent ones have the micro-F1
    2 Σ f / (k + Σ all f).
    """
    order = np.argsort(-prior)
    # the factor 2 does not move the best k
    gains = prior[order].cumsum() / (np.arange(1, len(order) + 1) + prior.sum())
    return np.isin(np.arange(len(order)), order[: gains.argmax() + 1]).astype(np.int64)


def growing_order(train: Int64, target: Target, *, seed: int) -> Int64:
    """Records in random order, in which any number from the front has the classes in proportion.

    The first records are one of each class, so that a classifier can be fitted on few.
    """
    order = np.random.default_rng(seed).permutation(train)
    y = target.strata[order]
    by_class = np.argsort(y, kind="stable")
    # of each record, the fraction of its class that comes before it. Sorted by that, classes take
    # turns in proportion to their sizes; the first of every class has 0
    counts = np.unique(y, return_counts=True)[1]
    before = np.concatenate([np.arange(count) / count for count in counts])
    return np.asarray(order[by_class[np.argsort(before, kind="stable")]], np.int64)
