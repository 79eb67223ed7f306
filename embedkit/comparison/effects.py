"""Differences in words, by a margin of practical relevance.

A test says whether two methods differ; the margin says whether it matters. Together they are one of
six words:

============================  ===================================================================
``better``, ``worse``         told apart by the corrected test, by the margin or more
``slightly_better``, …        told apart, but by less than the margin
``level``                     not told apart, and the 95 % interval lies within the margin
``open``                      not told apart, and the interval reaches beyond the margin
============================  ===================================================================

``level`` is an equivalence test by interval inclusion (Westlake 1972), of level 0.025.
"""

from __future__ import annotations

from dataclasses import dataclass

from embedkit.comparison.compare import Compared, Difference
from embedkit.errors import UsageError
from embedkit.runs.metrics import LOWER_IS_BETTER, beta_of
from embedkit.runs.predictions import metrics_of

__all__ = ["WORDS", "Effect", "Scale", "effect_of", "judge", "scale_of"]

WORDS = ("better", "slightly_better", "level", "open", "slightly_worse", "worse")
"""What a difference can be called."""

_PERCENT = 0.01
_OPPOSITE = {"better": "worse", "slightly_better": "slightly_worse"}


@dataclass(frozen=True, slots=True)
class Scale:
    """How a metric is shown, and how large a difference matters.

    Attributes:
        metric: its name.
        lower: whether lower is better.
        percent: whether it is a fraction, shown in per cent, and its differences in points.
        worth: smallest difference that matters, in the metric's units.
    """

    metric: str
    lower: bool
    percent: bool
    worth: float

    def gain(self, value: float) -> float:
        """Return a difference as a gain: positive is better."""
        return -value if self.lower else value


@dataclass(frozen=True, slots=True)
class Effect:
    """What one method is against another on the same records.

    Attributes:
        name: the method.
        other: what it is compared with.
        value: its score less the other's, in the metric's units.
        low: lower end of the 95 % interval.
        high: its upper end.
        p: corrected p of the paired test; ``None`` where there is none.
        gained: records that it alone predicts correctly.
        lost: records that the other alone predicts correctly.
        word: one of :data:`WORDS`.
    """

    name: str
    other: str
    value: float
    low: float
    high: float
    p: float | None
    gained: int
    lost: int
    word: str


def scale_of(compared: Compared, worth: float | None = None) -> Scale:
    """Return how the metric of a comparison is shown.

    Args:
        compared: the comparison.
        worth: smallest difference that matters: in points of a fraction, else in the metric's
            units. By default 1 point, 0.01 of a correlation or of R², and of errors 1 % of the
            baseline's.

    Raises:
        UsageError: ``worth`` is negative.
    """
    if worth is not None and not worth >= 0:
        raise UsageError(f"worth={worth}: expected 0 or more.")
    metric, records = compared.table.metric, compared.runs.records
    one = metrics_of(records.take(records.out_of_fold), beta=beta_of(metric))[metric]
    percent = one.scale == "fraction"
    if worth is None:
        margin = _PERCENT
        if one.scale in ("error", "distance"):
            rows = {row.name: row for row in compared.table.rows}
            margin *= abs(rows[compared.table.baseline].scores[metric].value)
    else:
        margin = worth * _PERCENT if percent else worth
    return Scale(metric, metric in LOWER_IS_BETTER, percent, margin)


def effect_of(compared: Compared, name: str, other: str, scale: Scale) -> Effect | None:
    """Return what one method is against another; ``None`` of a method against itself."""
    if name == other:
        return None
    found = compared.differences[name, other]
    return Effect(name, other, found.value, found.low, found.high, found.p_corrected,
                  found.only_this, found.only_other, judge(found, scale))  # fmt: skip


def judge(found: Difference, scale: Scale) -> str:
    """Return the word for a difference.

    >>> scale = Scale("accuracy", lower=False, percent=True, worth=0.01)
    >>> judge(Difference(0.03, 0.01, 0.05, p_corrected=0.001), scale)
    'better'
    >>> judge(Difference(0.002, -0.003, 0.007, p_corrected=0.4), scale)
    'level'
    """
    gain = scale.gain(found.value)
    if found.significant:
        word = "better" if abs(gain) >= scale.worth else "slightly_better"
        return word if gain > 0 else _OPPOSITE[word]
    within = (
        -scale.worth <= min(found.low, found.high) and max(found.low, found.high) <= scale.worth
    )
    return "level" if within else "open"
