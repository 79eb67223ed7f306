"""Frozen layers, run once per text instead of once per step.

Below the first trained layer the hidden states of a text are the same in every step, fold and seed,
since frozen layers have no dropout. They are computed once and kept on the host. That needs a
family in which the last hidden state is the output of the last layer that ran
(:data:`~embedkit.encoding.families.FAMILIES`), a head that reads no frozen layer, and states of no
more than :data:`MOST_BYTES`. Elsewhere the layers run in every step, with the same result up to
rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from embedkit.encoding.families import FAMILIES
from embedkit.encoding.tokenization import TokenizedText
from embedkit.finetuning.batches import batches_by_length, n_seen, padded
from embedkit.finetuning.heads import EncoderWithHead
from embedkit.finetuning.options import TrainingOptions
from embedkit.finetuning.parameters import layer_stack

__all__ = ["MOST_BYTES", "FrozenStates"]

MOST_BYTES = 1 << 30
"""Largest total of the states that are kept. It counts float32, and neither free memory nor
precision, so that the same run always computes the same."""

_TOKENS = 4_096


class FrozenStates:
    """Hidden states of the records of a run below the first layer that is trained.

    Args:
        texts: the tokenized records.
        options: of the training, with a ``precision`` that is not ``auto``.
        pad_id: token id to fill with.
    """

    def __init__(
        self, texts: Sequence[TokenizedText], options: TrainingOptions, *, pad_id: int
    ) -> None:
        self._texts, self._pad_id = texts, pad_id
        self._freeze, self._precision = options.freeze_layers, options.precision
        self._states: list[list[Tensor]] | None = None
        self._in_tuple = False

    def of(self, model: EncoderWithHead) -> list[list[Tensor]] | None:
        """States ``(tokens, width)`` of every window of every record, ``None`` if not kept.

        The model then takes them as ``lower``.

        Args:
            model: of one fold of the run, on its device, its parameters frozen.
        """
        if model.from_lower is not None or self._freeze in (None, "embeddings"):
            return self._states
        if n_frozen := self._n_frozen(model):
            layers = _Layers.of(model)
            if self._states is None:
                self._states = self._computed(model, layers, n_frozen)
            given = _Given(in_tuple=self._in_tuple)
            upper = nn.ModuleList([given, *layers.all[n_frozen:]])
            model.from_lower = _FromLower(layers, given, upper)
        return self._states

    def _n_frozen(self, model: EncoderWithHead) -> int:
        """The number of layers whose output is kept."""
        family = FAMILIES.get(model.encoder.config.model_type)
        if family is None or family.layers is None:
            return 0
        n_layers, mixed = len(layer_stack(model)[2]), int(model.config.mix_layers)
        count = n_layers if self._freeze == "all" else int(str(self._freeze))
        width = int(getattr(model.encoder.config, "hidden_size", None) or model.encoder.config.dim)
        size = sum(map(n_seen, self._texts)) * width * torch.float32.itemsize
        return count if mixed <= max(n_layers - count, 1) and size <= MOST_BYTES else 0

    def _computed(
        self, model: EncoderWithHead, layers: _Layers, n_frozen: int
    ) -> list[list[Tensor]]:
        found: list[list[Tensor]] = [[] for _ in self._texts]
        device = next(model.parameters()).device
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self._precision)
        training = model.training
        model.eval()
        hook = layers.all[n_frozen - 1].register_forward_hook(self._see_kind)
        with (
            torch.no_grad(),  # not inference mode, whose tensors backward refuses
            torch.autocast(device.type, half, enabled=half is not None),
            layers.replaced(nn.ModuleList(layers.all[:n_frozen])),
        ):
            for index in batches_by_length([n_seen(t) for t in self._texts], tokens=_TOKENS):
                texts = [self._texts[i] for i in index]
                batch = {k: v.to(device) for k, v in padded(texts, self._pad_id).items()}
                windows = iter(model.encoder(**model.inputs_of(**batch)).last_hidden_state.cpu())
                for i, text in zip(index, texts, strict=True):
                    found[i] = [next(windows)[: len(w.ids)].clone() for w in text.windows]
        hook.remove()
        model.train(training)
        return found

    def _see_kind(self, _layer: Any, _inputs: Any, output: Any) -> None:
        self._in_tuple = isinstance(output, tuple)  # by family and version of transformers


@dataclass(frozen=True, slots=True)
class _Layers:
    """The list of an encoder's layers, which can be replaced for a while."""

    owner: nn.Module
    name: str
    all: tuple[nn.Module, ...]

    @classmethod
    def of(cls, model: EncoderWithHead) -> _Layers:
        owner, name, layers = layer_stack(model)
        return cls(owner, name, tuple(layers))

    @contextmanager
    def replaced(self, layers: nn.ModuleList) -> Iterator[None]:
        before = getattr(self.owner, self.name)
        setattr(self.owner, self.name, layers)
        try:
            yield
        finally:
            setattr(self.owner, self.name, before)


@dataclass(frozen=True, slots=True)
class _FromLower:
    """Runs the trained layers alone, on states that were kept."""

    layers: _Layers
    given: _Given
    upper: nn.ModuleList

    @contextmanager
    def __call__(self, states: Tensor) -> Iterator[None]:
        self.given.states = states
        with self.layers.replaced(self.upper):
            yield


class _Given(nn.Module):
    """In the place of the frozen layers: gives the states that were kept."""

    states: Tensor

    def __init__(self, *, in_tuple: bool) -> None:
        super().__init__()
        self._in_tuple = in_tuple

    def forward(self, *_: Any, **__: Any) -> Any:
        return (self.states,) if self._in_tuple else self.states
