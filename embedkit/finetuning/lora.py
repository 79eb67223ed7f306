"""Low-rank adaptation: small matrices are trained beside the encoder's weights, which stay.

A linear layer x W becomes x W + 2 x A B, with A of as many columns as the rank and B of zeros
at first (Hu et al. 2021, arXiv:2106.09685, with alpha = 2 × rank). After training A B is added to
W, so that what is saved is an ordinary encoder. The matrices themselves are those of ``peft``.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from embedkit.errors import UsageError
from embedkit.finetuning.heads import EncoderWithHead

__all__ = ["add_lora", "check_lora", "merge_lora"]

_NAME = "trained"


def check_lora(rank: int | None, freeze_layers: str | None) -> None:
    """Raise a :class:`UsageError` if low-rank matrices cannot be trained as asked."""
    if rank is None:
        return
    if rank < 1:
        raise UsageError(f"--lora {rank}: expected a rank such as 8.")
    if freeze_layers is not None:
        raise UsageError(
            "--lora leaves all weights of the encoder as they are; --freeze-layers goes without it."
        )
    if find_spec("peft") is None:
        raise UsageError("--lora needs the package peft: pip install -e '.[lora]'.")


def add_lora(model: EncoderWithHead, rank: int, *, seed: int) -> Any:
    """Put matrices beside every linear layer of the encoder; only they and the head are trained.

    Returns:
        What :func:`merge_lora` needs.
    """
    from peft import LoraConfig
    from peft.tuners.lora import LoraModel

    encoder = model.encoder
    linear = [name for name, part in encoder.named_modules() if isinstance(part, nn.Linear)]
    torch.manual_seed(seed)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=linear)
    return LoraModel(encoder, config, _NAME)


def merge_lora(model: EncoderWithHead, added: Any) -> None:
    """Add what was learnt to the encoder's weights and take the matrices out."""
    model.encoder = added.merge_and_unload()
