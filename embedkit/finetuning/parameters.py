"""Which parameters are trained and how fast: frozen layers, LoRA, groups of the optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from embedkit.errors import UsageError
from embedkit.finetuning.heads import EncoderWithHead
from embedkit.finetuning.options import TrainingOptions

__all__ = [
    "add_lora", "freeze", "layer_stack", "merge_lora", "parameter_depth", "parameter_groups",
]  # fmt: skip

_WEIGHT_DECAY = 0.01


def layer_stack(model: EncoderWithHead) -> tuple[nn.Module, str, nn.ModuleList]:
    """Return the encoder's layers, with the module that holds their list and the list's name.

    Raises:
        UsageError: the encoder shares its weights among layers.
    """
    stack = _stack(model)
    owner, _, name = stack.rpartition(".")
    module = model.get_submodule(stack)
    assert isinstance(module, nn.ModuleList)
    return model.get_submodule(owner), name, module


def _stack(model: EncoderWithHead) -> str:
    config = model.encoder.config
    count = int(getattr(config, "num_hidden_layers", None) or config.n_layers)
    stacks = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count and "encoder." in f"{name}."
    ]
    stack = min(stacks, key=len, default="")
    if not stack or config.model_type == "albert":
        raise UsageError(
            f"the layers of a {config.model_type} encoder have no weights of their own: pass "
            "neither a number of freeze_layers= nor layer_decay=."
        )
    return stack


def parameter_depth(model: EncoderWithHead) -> dict[str, int]:
    """Return the depth of every parameter: 0 embeddings, 1…n encoder layers, n + 1 the rest.

    Raises:
        UsageError: the encoder shares its weights among layers.
    """
    stack, count = _stack(model), len(layer_stack(model)[2])
    depths = {}
    for name, _ in model.named_parameters():
        if name.startswith(f"{stack}."):
            depths[name] = int(name.removeprefix(f"{stack}.").partition(".")[0]) + 1
        elif name.startswith("encoder.") and not name.startswith("encoder.final_norm"):
            depths[name] = 0
        else:
            depths[name] = count + 1
    return depths


def freeze(model: EncoderWithHead, layers: str | None) -> None:
    """Exclude parameters from training; see ``freeze_layers`` of :class:`TrainingOptions`.

    Frozen layers have no dropout: what they give the trained ones is the same in every step.
    """
    if layers == "all":
        model.encoder.requires_grad_(False)
        model.without_dropout = tuple(model.encoder.modules())
    elif layers is not None:
        depths = parameter_depth(model)
        highest = 0 if layers == "embeddings" else int(layers)
        for name, parameter in model.named_parameters():
            if depths[name] <= highest:
                parameter.requires_grad_(False)
        if highest:
            trained = {m for layer in layer_stack(model)[2][highest:] for m in layer.modules()}
            model.without_dropout = tuple(
                m for m in model.encoder.modules() if trained.isdisjoint(m.modules())
            )


def parameter_groups(model: EncoderWithHead, options: TrainingOptions) -> list[dict[str, Any]]:
    """Return the trained parameters by learning rate and weight decay, as optimizers take them.

    Biases and norms do not decay; with ``layer_decay`` lower layers have smaller learning rates.
    """
    depths = parameter_depth(model) if options.layer_decay < 1 else {}
    top = max(depths.values(), default=0)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            inside = name.startswith("encoder.")
            rate = options.learning_rate if inside else options.head_rate
            rate *= options.layer_decay ** (top - depths.get(name, top))
            decay = _WEIGHT_DECAY if parameter.ndim > 1 else 0.0
            groups.setdefault((rate, decay), []).append(parameter)
    return [{"params": p, "lr": rate, "weight_decay": d} for (rate, d), p in groups.items()]


def add_lora(model: EncoderWithHead, rank: int, *, seed: int) -> Any:
    """Add matrices beside every linear layer of the encoder; only they and the head are trained.

    A layer x W becomes x W + 2 x A B, with ``rank`` columns in A and zeros in B at first (Hu et al.
    2021, arXiv:2106.09685, with alpha = 2 × rank).

    Returns:
        What :func:`merge_lora` needs.
    """
    from peft import LoraConfig
    from peft.tuners.lora import LoraModel

    encoder = model.encoder
    linear = [name for name, module in encoder.named_modules() if isinstance(module, nn.Linear)]
    torch.manual_seed(seed)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=linear)
    return LoraModel(encoder, config, "trained")


def merge_lora(model: EncoderWithHead, added: Any) -> None:
    """Add A B to the encoder's weights, so that an ordinary encoder is saved."""
    model.encoder = added.merge_and_unload()
    model.encoder.requires_grad_(True)  # its weights are no longer those of every fold
