"""Printed text: tables, numbers, JSON, and messages above a progress bar."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import click

from embedkit.display import HARMLESS, MINUS, columns, json_line, shorten, visible, without_nan
from embedkit.remote import as_given
from embedkit.storage import without_secrets
from embedkit.types import clear_line

Rows = Sequence[Mapping[str, Any]]
# least columns of a text that can be wrapped, and of the names in the first column
_TEXT, _NAME = 24, 20
_NUMERIC = frozenset(f"0123456789+-±{MINUS}")


def say(text: str, *, err: bool = False, finding: bool = False) -> None:
    """Print text without control characters, wrapped, where a line of progress may stand.

    The first line of a ``finding`` is bold on a terminal, warnings are yellow; ``NO_COLOR``
    disables both.
    """
    shows = (sys.stderr if err else sys.stdout).isatty()
    styled = finding and shows and not os.environ.get("NO_COLOR")
    lines = []
    # messages quote addresses, which may be signed; results are what was asked for, and stay as
    # they are
    text = without_secrets(as_given(text)) if err else as_given(text)
    for number, line in enumerate(visible(text, keep=HARMLESS).split("\n")):
        warns = line.startswith("warning:")
        # divided before it is coloured: escape sequences have no width on the terminal, but letters
        part = "\n".join(fitted(line))
        if styled and (number == 0 or warns):
            part = click.style(part, bold=True, fg="yellow" if warns else None)
        lines.append(part)
    clear_line()
    click.echo("\n".join(lines), err=err)


def terminal_width() -> int:
    """Columns of the terminal; 80 if there is none."""
    return shutil.get_terminal_size().columns


_COMMAND = re.compile(r"(?P<before>(?:[\w -]+: )? *)(?P<command>embedkit [a-z]+ .*)")
_PYTHON = re.compile(r"(?:open it: | *)(?:import |from \w+ import |\w+ = )")
_WORDS = re.compile(r"""(?:'[^']*'|"[^"]*"|\S)+""")
_BREAK = re.compile(rf" (?!%|(?:to )?[\d.{MINUS}]+\))")  # units and intervals stay whole


def fitted(line: str) -> list[str]:
    """Divide a line at words, commands by backslashes, to fit the terminal.

    Tab-separated values, which are for programs, and Python, which no space may divide, stay whole.
    """
    width = terminal_width()
    if columns(line) <= width or "\t" in line or _PYTHON.match(line):
        return [line]
    command = _COMMAND.fullmatch(line)
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    words, end = _BREAK.split(line), ""
    if command:
        # only between quoted words: a command that is shown can be pasted in pieces
        words, end = _WORDS.findall(command["command"]), " \\"
        words[0] = command["before"] + words[0]
    lines = [words[0]]
    for word in words[1:]:
        if columns(f"{lines[-1]} {word}{end}") > width and lines[-1].strip():
            lines[-1] = lines[-1].rstrip() + end
            lines.append(indent + word)
        else:
            lines[-1] += f" {word}"
    return lines


def json_text(value: object) -> str:
    """Return JSON of a dataclass or of plain data; NaN and infinity become null."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        # whatever else json.dumps does not know (paths, enums) is its text
        return without_nan(value) if isinstance(value, dict | list | tuple) else str(value)

    return as_given(json_line(plain(value), indent=1, default=plain))


def table_text(rows: Rows, *, gap: int = 2) -> str:
    """Return an aligned table without lines, numbers to the right, texts wrapped.

    Columns that do not fit the terminal follow below, with the first column repeated; ``gap`` is
    the space between them.
    """
    if not rows:
        return "(nothing)"
    first, *other_columns = (
        [visible(name), *(visible(str(row[name])) for row in rows)] for name in rows[0]
    )
    # rows are indented by two
    room = terminal_width() - 2
    if _is_text(first):
        beside = sum(_width(cells) + gap for cells in other_columns)
        first = [shorten(cell, max(_NAME, room - beside)) for cell in first]
    least = max(map(columns, first))
    blocks, used = [[first]], least
    for cells in other_columns:
        # a block has at least one column beside the first, however wide
        if used + gap + _width(cells) > room and len(blocks[-1]) > 1:
            blocks.append([first])
            used = least
        blocks[-1].append(cells)
        used += gap + _width(cells)
    return "\n".join(f"  {line}".rstrip() for block in blocks for line in _drawn(block, room, gap))


def _drawn(table: Sequence[Sequence[str]], room: int, gap: int) -> list[str]:
    """Lines of the columns of a table, whose first cells are the headings."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="")
    for cells in table:
        is_text = _is_text(cells)
        justify: Literal["left", "right"] = "left" if is_text else "right"
        no_wrap = not is_text or cells is table[0]
        drawn.add_column(Text(cells[0]), justify=justify, no_wrap=no_wrap, overflow="fold")
    for row in zip(*(cells[1:] for cells in table), strict=True):
        drawn.add_row(*map(Text, row))
    written = io.StringIO()
    # rich wraps and measures East Asian letters; colours are for whoever prints the text
    Console(file=written, width=room, color_system=None).print(drawn)
    return written.getvalue().splitlines()


def asked_for_all() -> bool:
    """Return whether the command was given ``--all``."""
    context = click.get_current_context(silent=True)
    return bool(context is not None and context.params.get("everything"))


def _is_text(column: Sequence[str]) -> bool:
    """True if a column contains text below its heading; dashes are missing numbers."""
    filled = [cell for cell in column[1:] if cell not in ("", "–")]
    numbers = all(cell[0] in _NUMERIC or cell == "<\N{NO-BREAK SPACE}0.001" for cell in filled)
    return not numbers or any(columns(cell) > _TEXT for cell in filled)


def _width(column: Sequence[str]) -> int:
    """Least width of a column; texts can be wrapped."""
    widest = max(map(columns, column))
    return min(widest, _TEXT) if _is_text(column) else widest


def number_text(value: float | None, form: str = ".3f") -> str:
    """Return a formatted number; a dash for ``None`` and NaN."""
    return "–" if value is None or math.isnan(value) else f"{value:{form}}".replace("-", MINUS)


def one_line(text: str) -> str:
    """Return a text with any white space as one space."""
    return " ".join(text.split())
