"""What a checkpoint is made of: its modules with shapes, and which weights are missing or unused.

Everything is built on the ``meta`` device, which holds shapes and no numbers. Classes are those of
transformers; no code of a checkpoint is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from embedkit.encoding.checkpoint import Checkpoint, find_checkpoint
from embedkit.encoding.model import check_complete, load_module, mismatched_keys
from embedkit.encoding.vocabulary import choose_max_length, load_tokenizer

__all__ = ["ModelInfo", "ModuleInfo", "describe_model"]


@dataclass(frozen=True, slots=True)
class ModuleInfo:
    """A module of a model.

    Attributes:
        depth: 0 for the outermost ones.
        name: within the module around it; ``0 … 11`` for equal ones that are listed once.
        kind: its class.
        shapes: shape of each of its own weights, by name.
        parameters: number of weights in it, of one of those that are listed once.
        count: how many equal modules this one stands for.
    """

    depth: int
    name: str
    kind: str
    shapes: dict[str, tuple[int, ...]]
    parameters: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A checkpoint.

    Attributes:
        name: as the user gave it.
        source: ``folder``, ``package`` or ``hub``.
        folder: where it is.
        revision: commit of a hub checkpoint.
        model_type: family.
        architecture: class of transformers whose modules are listed.
        n_layers: encoder layers.
        width: of the hidden states.
        positions: longest sequence.
        max_length: tokens kept of a text by default.
        vocabulary: entries of the tokenizer.
        tokenizer: its class, and whether it is fast.
        has_pooler: whether pooler weights are in the checkpoint.
        labels: of a checkpoint for classification, by class number.
        parameters: number of weights of all modules.
        encoder_parameters: of these, those of the encoder and the pooler.
        modules: the module tree, depth first.
        missing: weights of these modules that the checkpoint lacks, or has in another shape;
            transformers would fill them with random numbers.
        unused: weights of the checkpoint that belong to none of these modules.
    """

    name: str
    source: str
    folder: str
    revision: str | None
    model_type: str
    architecture: str
    n_layers: int
    width: int
    positions: int
    max_length: int
    vocabulary: int
    tokenizer: str
    has_pooler: bool
    labels: tuple[str, ...]
    parameters: int
    encoder_parameters: int
    modules: tuple[ModuleInfo, ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]


def describe_model(name: str, *, revision: str | None = None, offline: bool = False) -> ModelInfo:
    """Describe a checkpoint: the class that ``config.json`` names, head included.

    Args:
        name: hub id or folder.
        revision: branch, tag or commit of a hub checkpoint.
        offline: never ask the hub.

    Raises:
        ModelError: there is no such checkpoint, or weights of its encoder are missing.
    """
    checkpoint = find_checkpoint(name, revision=revision, offline=offline)
    tokenizer = load_tokenizer(checkpoint)
    kind = _class_of(checkpoint)
    encoder, report = _on_meta(checkpoint, "AutoModel")
    lacks_pooler = bool(check_complete(checkpoint, report))
    has_pooler = getattr(encoder, "pooler", None) is not None and not lacks_pooler
    inside = sum(p.numel() for p in encoder.parameters())
    if lacks_pooler:
        inside -= sum(p.numel() for p in encoder.pooler.parameters())
    model = encoder
    if kind != type(encoder).__name__:
        model, report = _on_meta(checkpoint, kind)
    return ModelInfo(
        name=checkpoint.name,
        source=checkpoint.source,
        folder=str(checkpoint.folder),
        revision=checkpoint.revision,
        model_type=checkpoint.model_type,
        architecture=kind,
        n_layers=checkpoint.n_layers,
        width=checkpoint.width,
        positions=checkpoint.positions,
        max_length=choose_max_length(checkpoint, tokenizer, None),
        vocabulary=len(tokenizer.hf),
        tokenizer=type(tokenizer.hf).__name__ + (" (fast)" if tokenizer.is_fast else " (slow)"),
        has_pooler=has_pooler,
        labels=_labels(model) if kind.endswith("Classification") else (),
        parameters=sum(p.numel() for p in model.parameters()),
        encoder_parameters=inside,
        modules=tuple(_tree(model)),
        missing=tuple(sorted({*report["missing_keys"], *mismatched_keys(report)})),
        unused=tuple(sorted(report["unexpected_keys"])),
    )


def _on_meta(checkpoint: Checkpoint, kind: str) -> tuple[Any, dict[str, Any]]:
    return load_module(checkpoint, kind, dtype=torch.float32, device="meta")


def _class_of(checkpoint: Checkpoint) -> str:
    """The class that the configuration names, if transformers has it for this family."""
    import transformers

    config = type(transformers.AutoConfig.for_model(**checkpoint.config))
    for name in _names(checkpoint.config.get("architectures")):
        kind = getattr(transformers, name, None)
        if isinstance(kind, type) and getattr(kind, "config_class", None) is config:
            return name
    return str(transformers.AutoModel._model_mapping[config].__name__)


def _names(value: Any) -> list[str]:
    return [str(name) for name in value] if isinstance(value, list) else []


def _labels(model: Any) -> tuple[str, ...]:
    names = model.config.id2label or {}
    return tuple(str(names[number]) for number in sorted(names))


def _tree(module: nn.Module, depth: int = 0) -> Iterator[ModuleInfo]:
    """The modules inside of one, equal ones of a list once."""
    children = list(module.named_children())
    if isinstance(module, nn.ModuleList) and len({_signature(c) for _, c in children}) == 1:
        first, last = children[0], children[-1]
        name = first[0] if len(children) == 1 else f"{first[0]} … {last[0]}"
        yield from _module(name, first[1], depth, len(children))
        return
    for name, child in children:
        yield from _module(name, child, depth, 1)


def _module(name: str, module: nn.Module, depth: int, count: int) -> Iterator[ModuleInfo]:
    shapes = _shapes(module)
    parameters = sum(p.numel() for p in module.parameters())
    yield ModuleInfo(depth, name, type(module).__name__, shapes, parameters, count)
    yield from _tree(module, depth + 1)


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in module.named_parameters(recurse=False)}


def _signature(module: nn.Module) -> str:
    """Equal for modules that hold the same modules with the same shapes."""
    parts = [(name, type(m).__name__, _shapes(m)) for name, m in module.named_modules()]
    return repr(parts)
