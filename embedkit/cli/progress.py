"""Progress of long commands, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from embedkit.cli.text import bar_shown, say
from embedkit.display import duration_text, visible
from embedkit.types import Progress, ProgressCallback, no_progress

__all__ = ["progress_bar"]

_SECONDS_BETWEEN_LINES = 10.0
_BESIDE_BAR = 55
"""Columns of the longest words and numbers beside a bar."""


def progress_shown() -> bool:
    """Whether to show progress: as ``--progress`` says, else on a terminal without ``--quiet``."""
    given = click.get_current_context().params
    shown = given.get("progress")
    return bool(shown) if shown is not None else not given["quiet"] and sys.stderr.isatty()


@contextmanager
def progress_bar() -> Iterator[ProgressCallback]:
    """Show progress with a rate and the time left: a bar on a terminal, else lines now and then."""
    if not progress_shown():
        yield no_progress
        return
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False),
               BarColumn(min(40, max(console.width - _BESIDE_BAR, 5))),
               TextColumn("{task.fields[count]}", markup=False),
               TextColumn("{task.fields[rest]}", markup=False))  # fmt: skip

    def print_above(text: str) -> None:
        console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    # click writes past what rich puts in the place of standard error
    made = Bar(*columns, console=console, transient=True, redirect_stderr=False)
    with made as bar, bar_shown(print_above):
        task = bar.add_task("starting", total=None, count="", rest="")
        rate = _Rate()
        yield lambda state: bar.update(
            task, description=visible(state.stage), completed=state.done, total=state.total,
            count=_count(state), rest=rate.text(state),
        )  # fmt: skip


def _count(state: Progress) -> str:
    """How far it is; nothing of what is not counted."""
    if state.total is None:
        return f"{state.done:,}" if state.done else ""
    return f"{state.done:,}/{state.total:,}"


def _lines() -> ProgressCallback:
    rate, printed = _Rate(), -_SECONDS_BETWEEN_LINES

    def report(state: Progress) -> None:
        nonlocal printed
        text, now = rate.text(state), time.monotonic()
        if now - printed >= _SECONDS_BETWEEN_LINES or state.done == state.total:
            printed = now
            total = "" if state.total is None else f" of {state.total:,}"
            say(f"{state.stage}: {state.done:,}{total} {text}", err=True)

    return report


class _Rate:
    """Units per second, and the time that is left."""

    def __init__(self) -> None:
        self._counted: tuple[str, str, int | None] | None = None
        self._first = (0, 0.0)

    def text(self, state: Progress) -> str:
        now = time.monotonic()
        fresh = state.done if state.fresh is None else state.fresh
        counted = (state.stage, state.unit, state.total)
        if self._counted != counted:
            self._counted, self._first = counted, (fresh, now)
        units, seconds = fresh - self._first[0], now - self._first[1]
        if seconds <= 0.5 or units <= 0 or state.total is None:
            return state.unit
        speed = f" · {units / seconds:,.0f}/s" if units > 10 * seconds else ""
        left = duration_text((state.total - state.done) * seconds / units)
        return f"{state.unit}{speed} · {left} left"
