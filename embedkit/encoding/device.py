"""Which device to compute on, and how it says that its memory ran out."""

from __future__ import annotations

import torch

from embedkit.errors import UsageError

__all__ = ["BATCH_TOKENS", "choose_device", "is_out_of_memory"]

BATCH_TOKENS = {"cpu": 2_048, "cuda": 65_536}
"""Tokens of a batch by kind of device: on CPU so few that its activations stay in the cache."""

_NO_MEMORY = ("can't allocate memory", "std::bad_alloc", "CUBLAS_STATUS_ALLOC_FAILED")
"""How libraries that have no class of error for it say that memory ran out."""


def choose_device(name: str) -> torch.device:
    """``auto`` is CUDA where there is one.

    Raises:
        UsageError: the device does not exist here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"--device {name}: expected auto, cpu, cuda or cuda:0.") from error
    if device.type not in BATCH_TOKENS:
        raise UsageError(f"--device {name}: expected auto, cpu, cuda or cuda:0.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"--device {name}: this machine shows {torch.cuda.device_count()} CUDA devices to "
            "PyTorch. Use --device cpu or auto."
        )
    return device


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, whatever its class."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _NO_MEMORY)
