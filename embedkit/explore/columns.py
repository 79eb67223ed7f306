"""Columns of a dataset as a page colours by them: labels, numbers or dates."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embedkit.types import Bool, Float64, Int64

__all__ = ["Column", "column_of"]

_FEW = 8
_MISSING = "(none)"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class Column:
    """Values of the points shown.

    Attributes:
        name: of the column.
        kind: ``label``, ``number`` or ``date``.
        names: labels, the most frequent first; empty for numbers and dates.
        counts: points with each.
        codes: ``(n,)`` number of each point's label; empty for numbers and dates.
        values: ``(n,)`` numbers, or days since 1970; NaN where there is none; empty for labels.
        missing: number among the labels of the points without one; ``None`` where all have one.
    """

    name: str
    kind: str
    names: tuple[str, ...]
    counts: tuple[int, ...]
    codes: Int64
    values: Float64
    missing: int | None = None

    @property
    def known(self) -> Bool:
        """Which points have a label ``(n,)``."""
        return np.asarray(self.codes != (-1 if self.missing is None else self.missing))


def column_of(name: str, values: Sequence[Any]) -> Column:
    """Return a column as numbers or dates where all values are, and otherwise as labels.

    Text is read as numbers and dates (``2021-03-09``, ``2021-03-09T12:30``) too. Up to eight
    different values are labels, whatever they are.

    >>> column_of("stars", ["4", "5", "4"]).names
    ('4', '5')
    >>> column_of("length", [str(i) for i in range(9)]).values[:3].tolist()
    [0.0, 1.0, 2.0]
    """
    given = [v for v in values if v is not None and v != ""]
    if len(set(given)) > _FEW and not isinstance(given[0], bool):
        for kind, read in (("number", float), ("date", _days)):
            try:
                found = np.array([np.nan if v is None or v == "" else read(v) for v in values])
            except (TypeError, ValueError):
                continue
            if np.isinf(found).any():
                continue
            return Column(name, kind, (), (), np.empty(0, np.int64), found.astype(np.float64))
    texts = [_MISSING if v is None or v == "" else str(v) for v in values]
    counts = sorted(Counter(texts).items(), key=lambda pair: (-pair[1], pair[0]))
    number = {text: i for i, (text, _) in enumerate(counts)}
    return Column(name, "label", tuple(number), tuple(n for _, n in counts),
                  np.array([number[text] for text in texts], np.int64), np.empty(0),
                  number[_MISSING] if len(given) < len(texts) else None)  # fmt: skip


def _days(value: Any) -> float:
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value.strip())
    elif isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    elif not isinstance(value, datetime.datetime):
        raise TypeError(type(value).__name__)
    if value.tzinfo is None:
        value = value.replace(tzinfo=datetime.UTC)
    return float((value - _EPOCH).total_seconds() / 86_400)
