"""Tables, numbers and JSON, as all commands print them."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedkit.display import (
    HARMLESS,
    MINUS,
    TYPED_IN,
    columns,
    is_percent,
    json_line,
    metric_text,
    path_from,
    shorten,
    visible,
    without_nan,
)

if TYPE_CHECKING:
    from embedkit.runs.metrics import Score

__all__ = ["asked_for_all", "bar_shown", "count_text", "interval_text", "json_text", "ledger_text",
           "metric_heading", "number_text", "one_line", "path_text", "percent_text",
           "reasons_text", "say", "say_finding", "score_text", "table_markdown", "table_text",
           "terminal_width", "wrapped"]  # fmt: skip

Rows = Sequence[Mapping[str, Any]]
_UNLIMITED = 1 << 16
_GAP = 2
_LEAST_TEXT, _SHORT_NAME = 24, 20
_NUMERIC = frozenset(f"0123456789+-±{MINUS}")


def say(text: str, *, err: bool = False) -> None:
    """Print text, above a progress bar if there is one on the terminal.

    Nothing that came from a file controls the terminal. Every command prints by this function and
    :func:`say_finding` alone.

    Args:
        text: what to print.
        err: on standard error.
    """
    shown = visible(text, keep=HARMLESS)
    if _above_bar and (err or sys.stdout.isatty()):
        _above_bar[-1](shown)
    else:
        click.echo(shown, err=err)


_above_bar: list[Callable[[str], None]] = []


@contextmanager
def bar_shown(print_above: Callable[[str], None]) -> Iterator[None]:
    """While a bar is on the terminal, :func:`say` prints by a function that knows of the bar."""
    _above_bar.append(print_above)
    try:
        yield
    finally:
        _above_bar.pop()


def say_finding(text: str) -> None:
    """Print a result whose first line is the finding: bold on a terminal, warnings in yellow.

    There it is divided to the width of the terminal too. ``NO_COLOR`` leaves out bold and colour.
    """
    if not sys.stdout.isatty():
        say(text)
        return
    for number, line in enumerate(visible(text, keep=HARMLESS).split("\n")):
        warns = line.startswith("warning:")
        parts = wrapped(line, terminal_width()) if not number or warns else [line]
        if not os.environ.get("NO_COLOR") and (not number or warns):
            parts = [click.style(part, bold=True, fg="yellow" if warns else None) for part in parts]
        click.echo("\n".join(parts))


def terminal_width() -> int:
    """Columns of the terminal; as good as endless where the output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _UNLIMITED


def wrapped(text: str, width: int, *, first: str = "", others: str = "") -> list[str]:
    """Divide a text into lines of at most so many columns; East Asian characters take two.

    Args:
        text: the text.
        width: columns of a line.
        first: put before the first line.
        others: put before the others.
    """
    lines, line, empty = [], first, True
    for word in text.split(" "):
        if not empty and columns(line) + 1 + columns(word) > width:
            lines.append(line)
            line, empty = others, True
        line += word if empty else f" {word}"
        empty = False
    return [*lines, line]


def json_text(value: object, *, indent: int | None = 1) -> str:
    """Return JSON of a dataclass or of plain data; NaN and infinity become null."""
    return json_line(_plain(value), indent=indent, default=_plain)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    return without_nan(value) if isinstance(value, dict | list | tuple) else str(value)


def table_text(rows: Rows) -> str:
    """Return an aligned table without lines, numbers to the right.

    On a terminal it fits the width: names in the first column are shortened in their middle, then
    columns of numbers are left out from the right, which ``--all`` shows, and a column of texts is
    wrapped. Elsewhere a row is one line.
    """
    if not rows:
        return "(nothing)"
    cells = [[visible(name) for name in rows[0]]]
    cells += [[visible(str(row[name])) for name in rows[0]] for row in rows]
    widths = [max(columns(part) for cell in column for part in cell.split("\n"))
              for column in zip(*cells, strict=True)]  # fmt: skip
    texts = [_is_text([row[i] for row in cells[1:]]) for i in range(len(widths))]
    room = terminal_width() - 2
    left_out: list[str] = []
    if not asked_for_all():
        kept = _fitting(widths, texts, room)
        left_out = [cells[0][i] for i in range(len(widths)) if i not in kept]
        cells = [[row[i] for i in kept] for row in cells]
        widths, texts = [widths[i] for i in kept], [texts[i] for i in kept]
    over = sum(widths) + _GAP * (len(widths) - 1) - room
    if over > 0 and texts[0]:
        limit = max(_SHORT_NAME, widths[0] - over)
        cells = [[shorten(row[0], limit), *row[1:]] for row in cells]
    lines = _drawn(cells, texts, room)
    if left_out:
        more = f"{count_text(len(left_out), 'more column')} (--all): {'; '.join(left_out)}"
        lines += wrapped(more, room, others="  ")
    return "\n".join(f"  {line}".rstrip() for line in lines)


def _drawn(cells: Sequence[Sequence[str]], texts: Sequence[bool], room: int) -> list[str]:
    """Lines of a table; the first of the cells are the headings."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="")
    for name, is_text in zip(cells[0], texts, strict=True):
        table.add_column(Text(name), justify="left" if is_text else "right", no_wrap=not is_text,
                         overflow="fold")  # fmt: skip
    for row in cells[1:]:
        table.add_row(*map(Text, row))
    # wider where --all asks for more than fits: the terminal wraps then
    least = sum(max(columns(row[i]) for row in cells) if not is_text else 1
                for i, is_text in enumerate(texts)) + _GAP * len(texts)  # fmt: skip
    console = Console(file=io.StringIO(), width=max(room, least + _LEAST_TEXT), color_system=None)
    with console.capture() as drawn:
        console.print(table)
    return drawn.get().splitlines()


def asked_for_all() -> bool:
    """Return whether the command was given ``--all``."""
    context = click.get_current_context(silent=True)
    return bool(context is not None and context.params.get("all_columns"))


def _is_text(cells: Sequence[str]) -> bool:
    """Whether a column holds text; dashes for missing numbers say nothing."""
    said = [cell for cell in cells if cell not in ("", "–")]
    return bool(said) and not all(cell[0] in _NUMERIC or cell == "< 0.001" for cell in said)


def _fitting(widths: Sequence[int], texts: Sequence[bool], room: int) -> list[int]:
    """Columns that fit: those of numbers are left out from the right, but the first of them."""
    kept = list(range(len(widths)))
    least = [min(width, _LEAST_TEXT if i else _SHORT_NAME) if is_text else width
             for i, (width, is_text) in enumerate(zip(widths, texts, strict=True))]  # fmt: skip
    numbers = [i for i in kept[1:] if not texts[i]]
    while len(numbers) > 1 and sum(least[i] for i in kept) + _GAP * (len(kept) - 1) > room:
        kept.remove(numbers.pop())
    return kept


def table_markdown(rows: Rows) -> str:
    """Return a Markdown table, all columns but the first to the right."""
    names = list(rows[0])
    lines = [names, ["---", *("---:" for _ in names[1:])]]
    lines += [[str(row[name]) for name in names] for row in rows]
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def number_text(value: float | None, form: str = ".3f") -> str:
    """Return a formatted number; a dash for ``None`` and NaN."""
    return "–" if value is None or math.isnan(value) else f"{value:{form}}".replace("-", MINUS)


def score_text(score: Score, metric: str) -> str:
    """Return a score with its interval: ``79.1 (77.0 to 81.2)``; a dash for NaN."""
    value = metric_text(score.value, metric)
    if value == "–" or math.isnan(score.low):
        return value
    return f"{value} ({interval_text(score, metric)})"


def interval_text(score: Score, metric: str) -> str:
    """Return the ends of an interval: ``77.0 to 81.2``."""
    return f"{metric_text(score.low, metric)} to {metric_text(score.high, metric)}"


def metric_heading(metric: str) -> str:
    """Return the name of a metric with its unit."""
    return f"{metric}, %" if is_percent(metric) else metric


def percent_text(fraction: float) -> str:
    """Return ``79.1 %``; a dash for NaN."""
    return "–" if math.isnan(fraction) else f"{fraction * 100:.1f} %"


def count_text(count: int, name: str) -> str:
    """Return ``1 file`` or ``2,000 files``."""
    return f"{count:,} {name}" + ("" if count == 1 else "s")


def reasons_text(counts: Mapping[str, int]) -> str:
    """Return `` (empty_text 3, bad_id 1)``; an empty string if there are none."""
    listed = ", ".join(f"{reason} {count:,}" for reason, count in counts.items())
    return f" ({listed})" if counts else ""


def ledger_text(
    accepted: int, done: str, rejected: Mapping[str, int], left_out: Mapping[str, int],
    where: str = "",
) -> str:  # fmt: skip
    """Return ``13 = 10 embedded + 3 rejected (empty_text 3)``: what became of the records."""
    lost, left = sum(rejected.values()), sum(left_out.values())
    text = f"{accepted + lost + left:,} = {accepted:,} {done} + {lost:,} rejected"
    text += reasons_text(rejected) + (f" → {where}" if lost and where else "")
    return text + (f" + {left:,} left out{reasons_text(left_out)}" if left else "")


def path_text(path: str | Path) -> str:
    """Return a path as it can be typed where the command was typed.

    Of a stage of ``embedkit run``, which works in the folder of its recipe, that is the folder of
    ``run``; other commands show it as it was given.
    """
    typed_in = os.environ.get(TYPED_IN)
    return visible(path_from(path, typed_in) if typed_in else str(path))


def one_line(text: str) -> str:
    """Return a text on one line, any white space as one space."""
    return " ".join(text.split())
