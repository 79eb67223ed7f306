"""Which precision to compute in; on CPU by timing the products of the model's own shapes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from embedkit.choices import PRECISIONS as NAMES
from embedkit.choices import check_choice
from embedkit.encoding.device import computes_bf16
from embedkit.encoding.model import PRECISIONS
from embedkit.encoding.packed import packed_linear

__all__ = ["GAIN", "PrecisionTrial", "choose_precision", "time_products"]

GAIN = 1.2
"""bf16 has to be so many times as fast as fp32 to be worth its rounding."""

_ROWS = 1_024
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class PrecisionTrial:
    """Median seconds of the four products of one layer for 1,024 tokens, in either precision."""

    fp32: float
    bf16: float

    @property
    def speedup(self) -> float:
        """How many times as fast as fp32 bf16 is."""
        return self.fp32 / self.bf16


def choose_precision(
    name: str | None,
    device: torch.device,
    *,
    trial: Callable[[], PrecisionTrial] | None = None,
) -> str:
    """The precision to compute in: fp32 on CPU and half on CUDA unless something else is asked.

    Args:
        name: ``fp32``, ``bf16``, ``fp16``, ``auto`` or ``None``. On CUDA ``auto`` and ``None`` are
            bf16, or fp16 on devices older than compute capability 8.0, which have no bf16 of
            their own; on CPU ``auto`` is bf16 where a trial finds it :data:`GAIN` × as fast, else
            fp32.
        device: where the model runs.
        trial: makes the trial; without one ``auto`` is fp32 on CPU.

    Raises:
        UsageError: the name is unknown.
    """
    if name is None or (name == "auto" and device.type == "cuda"):
        if device.type != "cuda":
            return "fp32"
        return "bf16" if computes_bf16(device) else "fp16"
    if name == "auto":
        return "bf16" if trial is not None and trial().speedup >= GAIN else "fp32"
    check_choice(NAMES, precision=name)
    return name


def time_products(*, width: int, inner: int) -> PrecisionTrial:
    """Time the products of one encoder layer on this machine, the two precisions in turn.

    Args:
        width: of the hidden states.
        inner: width of the feed-forward layer.
    """
    shapes = ((width, 3 * width, None), (width, width, None),
              (width, inner, "none"), (inner, width, None))  # fmt: skip
    runs = {}
    for name in ("fp32", "bf16"):
        dtype = PRECISIONS[name]
        steps = [
            (
                packed_linear(
                    torch.randn(o, i, dtype=dtype), torch.randn(o, dtype=dtype), activation=gelu
                ),
                torch.randn(_ROWS, i, dtype=dtype),
            )
            for i, o, gelu in shapes
        ]
        runs[name] = steps
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    with torch.inference_mode():
        for number in range(_ROUNDS + 1):
            for name, steps in runs.items():
                started = time.perf_counter()
                for product, x in steps:
                    product(x)
                if number:  # the first round warms up
                    seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    return PrecisionTrial(**medians)
