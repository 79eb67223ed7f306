"""Which device to compute on, how arrays reach it, and how errors show that its memory ran out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embedkit.errors import UsageError
from embedkit.types import Float32

__all__ = [
    "BATCH_TOKENS",
    "Link",
    "Mark",
    "choose_device",
    "computes_bf16",
    "is_out_of_memory",
]

BATCH_TOKENS = {"cpu": 2_048, "cuda": 65_536}
"""Tokens of a batch by kind of device: on CPU so few that its activations stay in the cache."""

_NO_MEMORY = ("can't allocate memory", "std::bad_alloc", "CUBLAS_STATUS_ALLOC_FAILED")
"""Messages of libraries that have no class of error for a lack of memory."""


def choose_device(name: str) -> torch.device:
    """``auto`` is CUDA where there is one.

    Raises:
        UsageError: the device does not exist here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in BATCH_TOKENS:
        raise UsageError(f"device={name!r}: expected auto, cpu, cuda or cuda:0.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"device={name!r}: this machine shows {torch.cuda.device_count()} CUDA devices to "
            "PyTorch. Use device='cpu' or device='auto'."
        )
    return device


def computes_bf16(device: torch.device) -> bool:
    """Whether a CUDA device has bf16 of its own: from compute capability 8.0 on.

    Older ones, such as the T4, only emulate it, which torch counts as support.
    """
    return torch.cuda.get_device_capability(device) >= (8, 0)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, whatever its class."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)


Mark = torch.cuda.Event | None
"""A point in the work that has been given to a device; ``None`` where all of it is done."""


class Link:
    """How arrays reach the device that computes, and come back.

    On CPU they are there already; to others they are copied through pinned memory, beside the work
    of the device.

    Args:
        device: where the model is.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._here = device.type == "cpu"

    def send(self, *arrays: NDArray[Any]) -> list[Tensor]:
        """Arrays of integers as int64 on the device, by one copy; the host does not wait for it."""
        if self._here:
            return [torch.from_numpy(values.astype(np.int64)) for values in arrays]
        sizes = [len(values) for values in arrays]
        pinned = _pinned((sum(sizes),), torch.int64)
        np.concatenate(arrays, out=pinned.numpy())
        return list(torch.split(pinned.to(self.device, non_blocking=True), sizes))

    def mark(self) -> Mark:
        """The point behind all work that has been given to the device so far."""
        if self._here:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def fetch(self, matrices: dict[str, Tensor], after: Mark) -> dict[str, Float32]:
        """Float32 matrices as arrays, when the work before the mark is done. From any thread.

        The copies are made by a stream of their own beside the device's further work.
        """
        if after is None:
            return {name: matrix.numpy() for name, matrix in matrices.items()}
        copies = {name: _pinned(m.shape, m.dtype) for name, m in matrices.items()}
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            stream.wait_event(after)
            for name, copy in copies.items():
                copy.copy_(matrices[name], non_blocking=True)
        stream.synchronize()
        return {name: copy.numpy() for name, copy in copies.items()}

    def seconds(self, first: Mark, last: Mark) -> float:
        """How long the device worked between two marks that it has reached."""
        return 0.0 if first is None or last is None else float(first.elapsed_time(last)) / 1e3

    def release(self) -> None:
        """Give memory that is reserved but unused back to the device."""
        if not self._here:
            torch.cuda.empty_cache()


def _pinned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory of the host that a device reads and writes by itself."""
    return torch.empty(shape, dtype=dtype, pin_memory=True)
