"""Which precision to compute in; on CPU by timing the products of the model's own shapes."""

from __future__ import annotations

import logging
import statistics
import time

import torch

from embedkit import choices
from embedkit.encoding.checkpoint import Checkpoint
from embedkit.encoding.device import computes_bf16
from embedkit.encoding.model import PRECISIONS
from embedkit.encoding.packed import packed_linear

__all__ = ["GAIN", "choose_precision", "time_products"]

logger = logging.getLogger(__name__)

GAIN = 1.2
"""bf16 has to be so many times as fast as fp32 to be worth its rounding."""

_ROWS = 1_024
_ROUNDS = 5


def choose_precision(
    name: str | None, device: torch.device, checkpoint: Checkpoint | None = None
) -> str:
    """The precision to compute in: fp32 on CPU and half on CUDA unless something else is asked.

    Args:
        name: ``fp32``, ``bf16``, ``fp16``, ``auto`` or ``None``. On CUDA ``auto`` and ``None`` are
            bf16, or fp16 on devices older than compute capability 8.0, which have no bf16 of
            their own; on CPU ``auto`` is bf16 where a trial finds it :data:`GAIN` × as fast, else
            fp32.
        device: where the model runs.
        checkpoint: whose products are timed; without one ``auto`` is fp32 on CPU.

    Raises:
        UsageError: the name is unknown.
    """
    if name is not None:
        choices.check_choice(choices.PRECISIONS, precision=name)
    if name not in (None, "auto"):
        return str(name)
    if device.type == "cuda":
        return "bf16" if computes_bf16(device) else "fp16"
    if name is None or checkpoint is None:
        return "fp32"
    inner = int(checkpoint.config.get("intermediate_size", 4 * checkpoint.width))
    speedup = time_products(width=checkpoint.width, inner=inner)
    chosen = "bf16" if speedup >= GAIN else "fp32"
    logger.info(f"precision: {chosen}; here bf16 takes {1 / speedup:.2f} of the time of fp32")
    return chosen


def time_products(*, width: int, inner: int) -> float:
    """How many times as fast as in fp32 the products of one encoder layer are in bf16 here.

    Args:
        width: of the hidden states.
        inner: width of the feed-forward layer.
    """
    shapes = ((width, 3 * width, None), (width, width, None),
              (width, inner, "none"), (inner, width, None))  # fmt: skip
    runs = {}
    for name in ("fp32", "bf16"):
        dtype = PRECISIONS[name]
        runs[name] = [
            (
                packed_linear(
                    torch.randn(o, i, dtype=dtype), torch.randn(o, dtype=dtype), activation=gelu
                ),
                torch.randn(_ROWS, i, dtype=dtype),
            )
            for i, o, gelu in shapes
        ]
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    with torch.inference_mode():
        for number in range(_ROUNDS + 1):
            for name, steps in runs.items():
                started = time.perf_counter()
                for product, x in steps:
                    product(x)
                if number:  # the first round warms up
                    seconds[name].append(time.perf_counter() - started)
    return statistics.median(seconds["fp32"]) / statistics.median(seconds["bf16"])
