"""Tables, numbers and JSON, as all commands print them."""

from __future__ import annotations

import dataclasses
import io
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from embedkit.display import HARMLESS, json_line, visible, without_nan

if TYPE_CHECKING:
    from embedkit.runs.metrics import Score

__all__ = ["bar_shown", "count_text", "json_text", "ledger_text", "number_text", "one_line",
           "reasons_text", "say", "score_text", "table_markdown", "table_text"]  # fmt: skip

Rows = Sequence[Mapping[str, Any]]
_UNLIMITED = 1 << 16


def say(text: str, *, err: bool = False) -> None:
    """Print text, above a progress bar if there is one on the terminal.

    Nothing that came from a file controls the terminal. Every command prints by this function
    alone.

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


def json_text(value: object, *, indent: int | None = 1) -> str:
    """Return JSON of a dataclass or of plain data; NaN and infinity become null."""
    return json_line(_plain(value), indent=indent, default=_plain)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    return without_nan(value) if isinstance(value, dict | list | tuple) else str(value)


def table_text(rows: Rows) -> str:
    """Return an aligned table without lines, numbers to the right.

    On a terminal long cells are wrapped to its width; elsewhere a row is one line.
    """
    if not rows:
        return "(nothing)"
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for name, value in rows[0].items():
        number = not isinstance(value, str) or _is_number(value)
        table.add_column(Text(visible(name)), justify="right" if number else "left", no_wrap=number,
                         overflow="fold")  # fmt: skip
    for row in rows:
        table.add_row(*(Text(visible(str(row[name]))) for name in rows[0]))
    width = shutil.get_terminal_size().columns - 2 if sys.stdout.isatty() else _UNLIMITED
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as drawn:
        console.print(table)
    return "\n".join(f"  {line}".rstrip() for line in drawn.get().splitlines())


def table_markdown(rows: Rows) -> str:
    """Return a Markdown table, all columns but the first to the right."""
    names = list(rows[0])
    lines = [names, ["---", *("---:" for _ in names[1:])]]
    lines += [[str(row[name]) for name in names] for row in rows]
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def number_text(value: float | None, form: str = ".4f") -> str:
    """Return a formatted number; a dash for ``None`` and NaN."""
    return "–" if value is None or math.isnan(value) else f"{value:{form}}"


def score_text(score: Score, form: str = ".4f") -> str:
    """Return a score with its interval: ``0.7910 (0.7700 to 0.8120)``; a dash for NaN."""
    if math.isnan(score.value):
        return "–"
    return f"{score.value:{form}} ({score.low:{form}} to {score.high:{form}})"


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


def one_line(text: str) -> str:
    """Return a text on one line, any white space as one space."""
    return " ".join(text.split())
