"""Corpus text and numbers on a terminal and in JSON."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Callable
from typing import Any

__all__ = ["HARMLESS", "bytes_text", "duration_text", "json_line", "visible", "without_nan"]


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
