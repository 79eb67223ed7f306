"""Array types, and progress of long calls."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]
AnyPath = str | os.PathLike[str]
"""A path, or a result that can be passed as one."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of one call, reported after every piece of work."""

    stage: str  # for example "encoding" or "fold 2 of 5"
    done: int
    total: int | None = None
    unit: str = ""  # for example "tokens", "fits" or "records"
    fresh: int | None = None  # done by this call, without those of an interrupted one


ProgressCallback = Callable[[Progress], None]


def no_progress(_: Progress) -> None:
    """Ignore progress; the default of every ``progress`` parameter."""


def steps(progress: ProgressCallback, stage: str, total: int, unit: str) -> Callable[[], None]:
    """Return a function that reports one more step; reports 0 immediately."""
    numbers = count(1)
    progress(Progress(stage, 0, total, unit))
    return lambda: progress(Progress(stage, next(numbers), total, unit))
