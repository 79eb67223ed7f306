"""Array types, and how a long call reports its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bool", "Float32", "Float64", "Int64", "Progress", "ProgressCallback", "no_progress",
           "steps"]  # fmt: skip

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of one call, reported after every piece of work.

    Attributes:
        stage: what is being done, for example ``"encoding"`` or ``"fold 2 of 5"``.
        done: units finished.
        total: units in all, or ``None`` while that is not known.
        unit: what is counted, for example ``"tokens"``, ``"fits"`` or ``"records"``.
        fresh: units finished by this call itself, without those of an earlier, interrupted one;
            the base of an honest rate.
    """

    stage: str
    done: int
    total: int | None = None
    unit: str = ""
    fresh: int | None = None


ProgressCallback = Callable[[Progress], None]


def no_progress(_: Progress) -> None:
    """Ignore progress; the default of every ``progress`` parameter."""


def steps(progress: ProgressCallback, stage: str, total: int, unit: str) -> Callable[[], None]:
    """Return a function that reports one more step; that there is none yet is reported at once."""
    numbers = count(1)
    progress(Progress(stage, 0, total, unit))
    return lambda: progress(Progress(stage, next(numbers), total, unit))
