"""Array types, objects that travel, and progress of long calls."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from embedkit.display import duration_text, visible

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]
AnyPath = str | os.PathLike[str]
"""A path, or a result that can be passed as one."""


class Reloaded:
    """Something that is loaded, and that a copy or another process loads anew by its arguments.

    Weights and locks do not travel to a worker of joblib, Dask or Spark; what finds them does.
    Nor do attributes that were set later. A subclass with other arguments keeps its own.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """Keep the ``locals()`` of a constructor, called before it has any others."""
        self._arguments = {n: v for n, v in arguments.items() if n not in ("self", "__class__")}

    def __copy__(self) -> Self:
        # a shallow one shares what is loaded
        instance = object.__new__(type(self))
        vars(instance).update(vars(self))
        return instance

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._arguments), ()


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of one call, reported after every piece of work."""

    stage: str  # for example "encoding" or "fold 2 of 5"
    done: int
    total: int | None = None
    unit: str = ""  # for example "tokens", "fits" or "records"


ProgressCallback = Callable[[Progress], None]


def no_progress(_: Progress) -> None:
    """Ignore progress, as of a call in a script that is to show none."""


def steps(progress: ProgressCallback, stage: str, total: int, unit: str) -> Callable[[], None]:
    """Return a function that reports one more step; reports 0 immediately."""
    numbers = count(1)
    progress(Progress(stage, 0, total, unit))
    return lambda: progress(Progress(stage, next(numbers), total, unit))


_PATIENCE, _PAUSE = 1.0, 0.2
"""Seconds before a line of progress is first shown, and until it is shown anew."""

_calls: list[ProgressCallback] = []
"""Calls that have begun and not ended; the outermost one reports."""


@contextmanager
def reported(progress: ProgressCallback | None = None) -> Iterator[ProgressCallback]:
    """The callback of a call: the one that was passed, else a line on standard error.

        encoding: 81,920 of 262,144 tokens, 46 s left

    The line stands in a terminal or a notebook alone, from the second second of the outermost call
    on, and is gone when the call is done. Pass :func:`no_progress` to have none.
    """
    # what a notebook or a log puts in its place may be None, or write alone
    watched = "ipykernel" in sys.modules or getattr(sys.stderr, "isatty", bool)()
    line = _Line() if watched and progress is None and not _calls else None
    _calls.append(progress or line or no_progress)
    try:
        yield _calls[-1]
    finally:
        _calls.pop()
        if line is not None:
            line.timer.cancel()
            line.show("")


def clear_line() -> None:
    """Take a line of progress away, before something is printed where it stands."""
    for call in _calls:
        if isinstance(call, _Line):
            call.show("")


class _Line:
    """Stage, count and time left of a call, on one line that is written over again and again."""

    def __init__(self) -> None:
        self._from = self._next = time.monotonic() + _PATIENCE
        self._width = 0
        self._stage, self._text = "", "working"
        self._reports = [(0.0, 0)]  # of the stage: when, and how much was done
        # imports and models take seconds in which nothing is reported yet; the thread must not keep
        # a process alive
        self.timer = threading.Timer(_PATIENCE, lambda: self.show(self._text))
        self.timer.daemon = True
        self.timer.start()

    def __call__(self, state: Progress) -> None:
        now = time.monotonic()
        reports = self._reports
        if state.stage != self._stage:  # the time left is that of a stage, which is named at once
            self._stage, self._next = state.stage, self._from
            self._reports = reports = [(now, state.done)]
        elif now < self._next:
            return
        reports.append((now, state.done))
        total = "" if state.total is None else f" of {state.total:,}"
        self._text = visible(state.stage)
        if state.done or total:
            self._text += f": {state.done:,}{total} {state.unit}"
        # by the speed of the second half of what was done: many kinds of work become slower or
        # quicker, as the rows of a triangle do
        half = (reports[0][1] + state.done) / 2
        then, done = next((r for r in reversed(reports) if r[1] <= half), reports[0])
        if state.total and done < state.done < state.total:
            seconds = (now - then) / (state.done - done) * (state.total - state.done)
            self._text += f", {duration_text(seconds)} left"
        if now >= self._next:
            self._next = now + _PAUSE
            self.show(self._text)

    def show(self, text: str) -> None:
        """Write a text over the one before; a longer one than the terminal would stay there."""
        text = text[: shutil.get_terminal_size().columns - 1]
        if text or self._width:
            sys.stderr.write(f"\r{text.ljust(self._width)}" + ("" if text else "\r"))
            sys.stderr.flush()
        self._width = len(text)
