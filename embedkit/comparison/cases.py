"""Every held-out record with what the methods predict for it, and lists of those worth reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.comparison.compare import Compared
from embedkit.comparison.texts import Dataset
from embedkit.dataset.store import load
from embedkit.errors import UsageError
from embedkit.runs.predictions import Predictions, keys_of
from embedkit.search.exact import nearest
from embedkit.types import Bool, Float32, Float64, Int64

__all__ = ["Cases", "Nearest", "cases_of", "label_issues", "nearest_records"]

LISTS = ("all_wrong", "relabel", "wrong", "lost", "gained", "unsure", "cut")
"""Names of the lists, in the order of the page."""

_UNSURE = 0.1
_RIGHT_OFTEN = 0.5
_MOST_METHODS, _MOST_QUERIES = 12, 5_000
_NEAREST = 3


@dataclass(frozen=True, slots=True, eq=False)
class Nearest:
    """Nearest other records by cosine.

    Attributes:
        view: the vectors they were found by; several joined by ``+``.
        indices: ``(n, 3)`` positions among the cases, ``-1`` where none was looked for.
        cosines: ``(n, 3)`` float32.
    """

    view: str
    indices: Int64
    cosines: Float32


@dataclass(frozen=True, slots=True, eq=False)
class Cases:
    """Held-out records of the first repeat, in the order of the input.

    Attributes:
        records: their predictions by the chosen method.
        methods: names of the methods whose predictions are shown, the chosen one first.
        said: ``(methods, n)`` predicted class numbers or values.
        confidence: ``(methods, n)`` probability of the predicted class; empty for values.
        right: ``(methods, n)`` bool; of values whether the error is at most the standard
            deviation of the true values.
        lists: positions of records by the name of the list, those to read first at the front.
        nearest: nearest records; ``None`` without vectors.
    """

    records: Predictions
    methods: tuple[str, ...]
    said: Float64
    confidence: Float64
    right: Bool
    lists: dict[str, Int64]
    nearest: Nearest | None

    def __len__(self) -> int:
        return len(self.records.row)


def cases_of(compared: Compared, chosen: str, *, voting: Sequence[str], cut: Bool) -> Cases:
    """Return all held-out records, without neighbours.

    Args:
        compared: the comparison.
        chosen: name of the method that the lists are about.
        voting: names of the methods that ``all_wrong`` and ``relabel`` ask.
        cut: ``(n,)`` whether the text of each record was cut.
    """
    table = compared.table
    known = [row.name for row in table.rows if row.kind != "majority"]
    names = list(dict.fromkeys([chosen, table.baseline, *voting, *known]))
    names = [name for name in names if name in known][:_MOST_METHODS]
    index = compared.runs.records.first_repeat
    found = {name: compared.predictions[name].take(index) for name in {*names, *voting}}
    records, asked = found[chosen], [found[name] for name in voting]
    has_other = table.baseline in found and table.baseline != chosen
    other = found[table.baseline] if has_other else None
    make = _label_lists if records.classes else _value_lists
    lists = make(records, other, asked)
    right = np.stack([_right(found[name]) for name in names])
    if len(asked) < 2:
        del lists["all_wrong"]  # of a single run it is the list of its own errors
    lists["cut"] = _first(cut, right[0].astype(np.float64))
    return Cases(
        records, tuple(names),
        np.stack([found[name].y_pred for name in names]).astype(np.float64),
        np.stack([_confidence(found[name]) for name in names]) if records.classes
        else np.empty((0, len(index))),
        right, {name: lists[name] for name in LISTS if name in lists and len(lists[name])}, None,
    )  # fmt: skip


def _label_lists(
    p: Predictions, other: Predictions | None, asked: Sequence[Predictions]
) -> dict[str, Int64]:
    wrong = ~_right(p)
    all_wrong = np.logical_and.reduce([~_right(one) for one in asked])
    said = np.mean([_confidence(one) for one in asked], axis=0)
    top = np.sort(p.proba, axis=1)
    margin = top[:, -1] - top[:, -2]
    lists = {
        "all_wrong": _first(all_wrong, -said),
        "relabel": _first(label_issues(asked) & all_wrong & _can_judge(asked), -said),
        "wrong": _first(wrong, -_confidence(p)),
        "unsure": _first(margin < _UNSURE, margin),
    }
    if other is not None:
        theirs = ~_right(other)
        lists["gained"] = _first(~wrong & theirs, -_confidence(other))
        lists["lost"] = _first(wrong & ~theirs, -_confidence(p))
    return lists


def _value_lists(
    p: Predictions, other: Predictions | None, asked: Sequence[Predictions]
) -> dict[str, Int64]:
    off = np.abs(p.proba - p.y)
    all_off = np.min([np.abs(one.proba - one.y) for one in asked], axis=0)
    all_wrong = np.logical_and.reduce([~_right(one) for one in asked])
    lists = {"all_wrong": _first(all_wrong, -all_off), "wrong": _first(~_right(p), -off)}
    if other is not None:
        more = np.abs(other.proba - other.y) - off
        lists["gained"] = _first(_right(p) & ~_right(other), -more)
        lists["lost"] = _first(~_right(p) & _right(other), more)
    return lists


def _can_judge(asked: Sequence[Predictions]) -> bool:
    """Whether several methods are right often enough together to doubt a label."""
    proba = np.mean([one.proba for one in asked], axis=0)
    return len(asked) > 1 and float(np.mean(proba.argmax(1) == asked[0].y)) > _RIGHT_OFTEN


def _right(p: Predictions) -> Bool:
    if p.classes:
        return np.asarray(p.y_pred == p.y)
    return np.asarray(np.abs(p.proba - p.y) <= p.y.std())


def _confidence(p: Predictions) -> Float64:
    return np.asarray(p.proba[np.arange(len(p.row)), p.y_pred], np.float64)


def _first(chosen: Bool, order: NDArray[Any]) -> Int64:
    """Positions that are chosen, by ascending ``order``."""
    index = np.flatnonzero(chosen)
    return np.asarray(index[np.argsort(order[index], kind="stable")], np.int64)


def label_issues(predictions: Sequence[Predictions]) -> Bool:
    """Return which records may have a wrong label, by confident learning.

    The probabilities are the mean of several methods, all of them out of fold. A record is counted
    for the likeliest class whose probability reaches the mean probability of that class among the
    records labelled so; one counted for another class than its own is an issue (Northcutt, Jiang
    & Chuang 2021, "Confident Learning", *JAIR* 70).

    Args:
        predictions: of the methods, for the same records.

    Returns:
        ``(n,)`` bool.
    """
    proba = np.mean([one.proba for one in predictions], axis=0)
    y = predictions[0].y
    counts = np.bincount(y, minlength=proba.shape[1])
    own = np.bincount(y, proba[np.arange(len(y)), y], minlength=proba.shape[1])
    limit = np.full(proba.shape[1], np.inf)
    np.divide(own, counts, out=limit, where=counts > 0)
    reached = np.where(proba >= limit, proba, -1.0)
    return np.asarray((reached.max(1) >= 0) & (reached.argmax(1) != y))


def nearest_records(
    cases: Cases, dataset: Dataset, views: Sequence[str], *, keys: Mapping[int, int]
) -> Nearest | None:
    """Return the three nearest other records of every record in a list.

    Args:
        cases: the records.
        dataset: whose vectors are used.
        views: the views to use; the default view where it has not all of them.
        keys: positions among the cases by the key of a record or word.
    """
    level = "word" if cases.records.of_words else "sentence"
    try:
        data = load(dataset.path, list(views) or None, level=level)
    except UsageError:
        data = load(dataset.path, level=level)
    stored = keys_of(data.row, data.word if level == "word" else None)
    place = np.array([keys.get(int(key), -1) for key in stored], np.int64)
    listed = [i for name, index in cases.lists.items() if name != "cut" for i in index.tolist()]
    wanted = list(dict.fromkeys(listed))[:_MOST_QUERIES]
    here = np.flatnonzero(np.isin(place, wanted))
    if not len(here) or len(data) < 2:
        return None
    found = nearest(data, data.X[here], k=_NEAREST + 1, chosen=place >= 0)
    indices = np.full((len(cases), _NEAREST), -1, np.int64)
    cosines = np.zeros((len(cases), _NEAREST), np.float32)
    for query, near, scores in zip(here, found.indices, found.scores, strict=True):
        kept = [(place[i], s) for i, s in zip(near, scores, strict=True)
                if i >= 0 and i != query][:_NEAREST]  # fmt: skip
        for rank, (position, score) in enumerate(kept):
            indices[place[query], rank], cosines[place[query], rank] = position, score
    return Nearest("+".join(data.views), indices, cosines)
