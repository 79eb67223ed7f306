"""Corpus text and numbers on a terminal and in JSON."""

from __future__ import annotations

import json
import math
import os
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["HARMLESS", "MINUS", "TYPED_IN", "bytes_text", "columns", "duration_text", "is_percent",
           "json_line", "metric_text", "path_from", "shorten", "visible",
           "without_nan"]  # fmt: skip


MINUS = "\N{MINUS SIGN}"
TYPED_IN = "EMBEDKIT_TYPED_IN"
"""Environment variable of stages: the folder in which ``embedkit run`` was typed."""

_PERCENT_METRICS = frozenset({
    "accuracy", "macro_f1", "balanced_accuracy", "roc_auc", "average_precision", "precision",
    "recall",
})  # fmt: skip
_F_BETA = re.compile(r"f[\d.]+")

HARMLESS = "\n\t\u200c\u200d"
"""Line ends, tabs, and the joiners of emoji and words: they move nothing but what follows them."""


def visible(text: str, *, limit: int | None = None, keep: str = "\n") -> str:
    r"""Text that cannot move the cursor, change colours or reverse a line.

    Control characters, escape sequences and bidirectional overrides are written as ``\x1b``;
    line ends are kept so that a field-by-field difference stays readable.
    """
    shown = _without_controls(text, keep, _escaped)
    return shown if limit is None or len(shown) <= limit else shown[: limit - 1] + "…"


def json_line(value: Any, **options: Any) -> str:
    r"""JSON with letters of all scripts as they are, and what :func:`visible` shows as ``\u001b``.

    Options are those of ``json.dumps``.
    """
    text = json.dumps(value, ensure_ascii=False, **options)
    return _without_controls(text, HARMLESS, lambda character: json.dumps(character)[1:-1])


def _without_controls(text: str, keep: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():  # nearly every text
        return text
    return "".join(
        c if c in keep or unicodedata.category(c) not in ("Cc", "Cf", "Cs") else escape(c)
        for c in text
    )


def is_percent(metric: str) -> bool:
    """Whether a metric is shown in per cent."""
    return metric in _PERCENT_METRICS or bool(_F_BETA.fullmatch(metric))


def metric_text(value: float | None, metric: str, *, signed: bool = False) -> str:
    """Return a score without its unit: per cent with one digit, else three digits.

    >>> metric_text(0.7712, "accuracy"), metric_text(-0.0271, "accuracy", signed=True)
    ('77.1', '−2.7')
    >>> metric_text(0.5, "log_loss"), metric_text(float("nan"), "f2")
    ('0.500', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    scaled, digits = (value * 100, 1) if is_percent(metric) else (value, 3)
    scaled = round(scaled, digits) + 0.0  # no negative zero
    return f"{scaled:{'+' if signed else ''}.{digits}f}".replace("-", MINUS)


def columns(text: str) -> int:
    """Return the number of columns of a text; East Asian characters take two."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def shorten(text: str, limit: float) -> str:
    """Return a text of at most so many columns, its middle replaced by ``…``.

    >>> shorten("a_rather_long_name", 9), shorten("긍정", 9)
    ('a_ra…name', '긍정')
    """
    if columns(text) <= limit:
        return text
    room = max(int(limit) - 1, 2)
    head, tail = "", ""
    while columns(head + tail) < room:
        rest = text[len(head) : len(text) - len(tail)]
        if not rest:
            break
        one = rest[0] if len(head) <= len(tail) else rest[-1]
        if columns(head + tail + one) > room:
            break
        head, tail = (head + one, tail) if len(head) <= len(tail) else (head, one + tail)
    return f"{head}…{tail}"


def path_from(path: str | Path, folder: str | Path) -> str:
    """Return a path as it can be typed in a folder: relative where it lies in it.

    >>> path_from("/home/me/outputs/page.html", "/home/me"), path_from("/data/x", "/home/me")
    ('outputs/page.html', '/data/x')
    """
    there, here = Path(os.path.abspath(path)), Path(os.path.abspath(folder))  # noqa: PTH100 - links
    return str(there.relative_to(here) if there.is_relative_to(here) else there)


def bytes_text(count: float) -> str:
    """``1.2 GB``; powers of 1000, as disks are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def duration_text(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def without_nan(value: Any) -> Any:
    """The same lists and dictionaries with ``None`` for numbers that JSON cannot write."""
    if isinstance(value, dict):
        return {name: without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _escaped(character: str) -> str:
    code = ord(character)
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )
