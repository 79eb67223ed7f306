"""Progress on standard error."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from embedkit.display import duration_text
from embedkit.types import Progress, ProgressCallback, no_progress

__all__ = ["ProgressBar", "show_lines"]


def show_lines(*, show: bool) -> ProgressCallback:
    """Return a callback that prints ``fitting: 3 of 5 folds`` on standard error, or nothing."""
    if not show:
        return no_progress

    def report(progress: Progress) -> None:
        total = "" if progress.total is None else f" of {progress.total:,}"
        terminal = sys.stderr.isatty()
        text = f"{progress.stage}: {progress.done:,}{total} {progress.unit}"
        click.echo(f"\r{text}" if terminal else text, err=True,
                   nl=not terminal or progress.done == progress.total)  # fmt: skip

    return report


class ProgressBar:
    """Progress in tokens, so that the remaining time does not lie when texts differ in length."""

    def __init__(self, *, show: bool) -> None:
        self._bar: Any = None
        self._first: tuple[int, float] | None = None
        if show:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("tokens · {task.fields[rate]} · {task.fields[left]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("reading", total=None, rate="", left="")

    def __enter__(self) -> ProgressBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, state: Progress) -> None:
        """Show how far the job is."""
        if self._bar is None:
            return
        now = time.monotonic()
        if self._first is None:
            self._first = (state.fresh or 0, now)
        fresh, seconds = (state.fresh or 0) - self._first[0], now - self._first[1]
        rate = fresh / seconds if seconds > 0.5 else 0.0
        left = ((state.total or state.done) - state.done) / rate if rate else 0.0
        self._bar.update(
            self._task,
            description=state.stage,
            completed=state.done,
            total=state.total,
            rate=f"{rate:,.0f}/s" if rate else "…",
            left=f"{duration_text(left)} left" if rate else "",
        )
