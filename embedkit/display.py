"""Corpus text and numbers on a terminal and in JSON."""

from __future__ import annotations

import json
import math
import os
import shlex
import unicodedata
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.filesize import decimal

MINUS = "\N{MINUS SIGN}"


class Typed(NamedTuple):
    """A command line, and the folder in which it was typed: not that of a stage of a recipe."""

    words: tuple[str, ...]
    folder: Path


TYPED: ContextVar[Typed | None] = ContextVar("TYPED", default=None)
"""What runs record as their command; nothing in a script or a notebook."""

# columns of a cell and rows of a table in a notebook
_CELL, _HTML_ROWS = 100, 100

columns = cell_len
"""Width of a text in columns; East Asian characters take two."""

HARMLESS = "\n\t\u200c\u200d"
"""Control characters that are printed: line ends, tabs, joiners of emoji and words."""


def visible(text: str, *, limit: int | None = None, keep: str = "\n\u200c\u200d") -> str:
    r"""Text with control characters and bidirectional overrides as ``\x1b``.

    Line ends stay, and the joiners of words and emoji.
    """

    def escaped(character: str) -> str:
        code = ord(character)
        short = f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
        return short if code < 65536 else f"\\U{code:08x}"

    shown = _without_controls(text, keep, escaped)
    return shown if limit is None or len(shown) <= limit else shown[: limit - 1] + "…"


def undashed(path: object) -> str:
    """A path that is no option where its name begins with a dash."""
    text = str(path)
    return f"./{text}" if text.startswith("-") else text


def as_argument(path: object) -> str:
    """A path as it is typed in a command: quoted, and no option."""
    return shlex.quote(undashed(path))


def json_line(value: Any, **options: Any) -> str:
    r"""JSON by ``json.dumps``, letters of all scripts unescaped, control characters escaped."""
    text = json.dumps(value, ensure_ascii=False, **options)
    # escaped as JSON does it, so that the line still parses to the same value
    return _without_controls(text, HARMLESS, lambda character: json.dumps(character)[1:-1])


def _without_controls(text: str, keep: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():  # nearly every text
        return text
    return "".join(
        # Cc: controls; Cf: marks that are not seen, such as those that turn the direction of text;
        # Cs: lone surrogates, which cannot be encoded
        c if c in keep or unicodedata.category(c) not in ("Cc", "Cf", "Cs") else escape(c)
        for c in text
    )


def shorten(text: str, limit: float) -> str:
    """Shorten a text to at most ``limit`` columns, three at least, its middle replaced by ``…``.

    >>> shorten("a_rather_long_name", 9), shorten("긍정", 9)
    ('a_ra…name', '긍정')
    """
    if columns(text) <= limit:
        return text
    # one column is for the ellipsis; the end of a name often tells more than its middle
    room = max(int(limit) - 1, 2)
    # set_cell_size fills with spaces where half of a wide letter would remain: hence the strip
    head, tail = set_cell_size(text, (room + 1) // 2), set_cell_size(text[::-1], room // 2)
    return f"{head.rstrip()}…{tail[::-1].lstrip()}"


def path_from(path: str | Path, folder: str | Path) -> str:
    """Return a path as it can be typed in a folder: relative if it is inside.

    >>> path_from("/home/me/outputs/page.html", "/home/me"), path_from("/data/x", "/home/me")
    ('outputs/page.html', '/data/x')
    """
    target, base = Path(os.path.abspath(path)), Path(os.path.abspath(folder))  # noqa: PTH100 - links
    return str(target.relative_to(base) if target.is_relative_to(base) else target)


def typing_folder() -> Path:
    """Return the folder in which the user types: paths are shown as they can be typed there."""
    typed = TYPED.get()
    return Path.cwd() if typed is None else typed.folder


def path_text(path: str | Path) -> str:
    """Return a path relative to the folder in which the command was typed.

    A stage of ``embedkit run`` works in the folder of its recipe; the paths of other commands stay.
    """
    folder = typing_folder()
    return visible(str(path) if folder == Path.cwd() else path_from(path, folder))


def bytes_text(count: float) -> str:
    """``1.2 GB``; powers of 1000, as disks are sold."""
    return decimal(int(count))


def count_text(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count_text(1, "label"), count_text(2_000, "class")
    ('1 label', '2,000 classes')
    """
    end = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{end}"


def duration_text(seconds: float | None) -> str:
    """Return a duration with two digits; empty if it is unknown.

    >>> duration_text(0.0167), duration_text(46.2), duration_text(600)
    ('17 ms', '46 s', '10 min')
    """
    if seconds is None:
        return ""
    # hours and minutes from two of them on: 90 min say more than 1.5 h
    units = ((7_200, 3_600, "h"), (120, 60, "min"), (1, 1, "s"), (0, 0.001, "ms"))
    size, unit = next((size, unit) for least, size, unit in units if seconds >= least)
    # two digits first, then without an exponent and without zeros behind the point
    return f"{float(f'{seconds / size:.2g}'):g} {unit}"


def reasons_text(counts: Mapping[str, int]) -> str:
    """Return `` (empty_text 3, bad_id 1)``; an empty string if there are none."""
    return f" ({', '.join(f'{n} {count:,}' for n, count in counts.items())})" if counts else ""


def ledger_text(
    accepted: int,
    done: str,
    rejected: Mapping[str, int],
    left_out: Mapping[str, int],
    where: str = "",
) -> str:
    """Return the counts of records: ``13 = 10 embedded + 3 rejected (empty_text 3)``."""
    lost, omitted = sum(rejected.values()), sum(left_out.values())
    text = f"{accepted + lost + omitted:,} = {accepted:,} {done} + {lost:,} rejected"
    text += reasons_text(rejected) + (f" → {where}" if lost and where else "")
    return text + (f" + {omitted:,} left out{reasons_text(left_out)}" if omitted else "")


class Shown:
    """A result as one line, and as a table in a notebook."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = [f"{name}={_cell(value)}" for name, value in _values(self) if _is_plain(value)]
        return f"{type(self).__name__}({', '.join(shown)})"

    def as_rows(self) -> list[dict[str, Any]]:
        """Rows of the table: the first field of several records, or all fields."""
        for _, value in _values(self):
            if isinstance(value, tuple | list) and value and is_dataclass(value[0]):
                return [dict(_values(row)) for row in value]
        return [{"field": name, "value": value} for name, value in _values(self)]

    def _repr_html_(self) -> str:
        rows = self.as_rows()[:_HTML_ROWS]
        # columns of which no cell can be shown in a line are left out
        names = [n for n in (rows[0] if rows else ()) if any(_is_plain(row[n]) for row in rows)]
        head = "".join(f"<th>{escape(str(name))}</th>" for name in names)
        lines = ["".join(f"<td>{escape(_cell(row[name]))}</td>" for name in names) for row in rows]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<p>{escape(repr(self))}</p><table><tr>{head}</tr>{body}</table>"


class ShownFolder(Shown):
    """A result that is a folder, ``out``, and can be passed wherever its path can."""

    __slots__ = ()

    def __fspath__(self) -> str:
        return str(self.out)  # type: ignore[attr-defined]


def _values(record: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(record, field.name)) for field in fields(record)]


def _is_plain(value: Any) -> bool:
    # "low": a score with its interval
    return isinstance(value, str | int | float | Path) or hasattr(value, "low")


def _cell(value: Any) -> str:
    """A number with four digits, a score with its interval, a text that is not too long."""
    if hasattr(value, "low"):
        return f"{value.value:.4g} ({value.low:.4g} to {value.high:.4g})"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return visible(shorten(" ".join(text.split()), _CELL)) if _is_plain(value) else ""


def without_nan(value: Any) -> Any:
    """The same lists and dictionaries with ``None`` for NaN and infinity."""
    if isinstance(value, dict):
        return {name: without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [v if isinstance(v, int | str) else without_nan(v) for v in value]  # mostly these
    return None if isinstance(value, float) and not math.isfinite(value) else value
