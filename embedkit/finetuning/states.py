"""Hidden states of frozen layers, computed once instead of in every epoch.

Frozen layers have no dropout, so that a text has the same states in every epoch. They are kept in
memory, token after token, and enter the encoder where training begins::

    tokens ─ embeddings ─ layers 1 … N ─┬─ layers N + 1 … ─ head ─ loss
             frozen: read once          └─ kept: (tokens of all texts, width) float32

The frozen layers stay where they are, since encoders count their layers: where a batch has states,
each layer hands on what it is given, and a hook before the first trained layer puts the states in
its place. An encoder that is frozen as a whole is not called at all.

Some families tell their upper layers more than the states (a position bias of the first layer), and
in some padding changes the states of a text (FNet). :func:`frozen_states` compares logits with
states and without them, and gives ``None`` where they differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embedkit.encoding.windows import TokenizedTexts, ends_of, ranges
from embedkit.finetuning.heads import EncoderWithHead
from embedkit.finetuning.model import FrozenParts, n_seen, predict_logits
from embedkit.types import Int64

_MOST_BYTES = 2 << 30  # of states; texts with more are computed in every epoch
_SAME = {"fp32": 1e-4, "bf16": 5e-2, "fp16": 1e-2}
"""Greatest distance of logits by precision, as a fraction of their length."""


def frozen_states(
    model: EncoderWithHead, parts: FrozenParts | None, texts: TokenizedTexts, *, precision: str
) -> FrozenStates | None:
    """Return the states of texts; ``None`` if they cannot take the place of layers.

    Args:
        model: in which the layers are frozen.
        parts: that :func:`~embedkit.finetuning.model.freeze` returned.
        texts: that are trained on, or validated by.
        precision: as for ``predict_logits``.
    """
    lengths = n_seen(texts)
    if parts is None or int(lengths.sum()) * model.width * 4 > _MOST_BYTES:
        return None
    states = FrozenStates(model, parts, texts, precision)
    # the shortest and the longest text in one batch: the most padding that there can be
    extremes = np.array([lengths.argmin(), lengths.argmax()])
    plain, entering = (
        predict_logits(model, texts[extremes], precision=precision, states=source)
        for source in (lambda *_: None, lambda index, mask: states.of_batch(extremes[index], mask))
    )
    # in half precision the products of a batch of another shape are rounded differently
    if (entering - plain).norm() <= _SAME[precision] * plain.norm():
        return states
    states.close()
    return None


class FrozenStates:
    """States of texts where training begins, and the layers below, which they stand for."""

    def __init__(
        self, model: EncoderWithHead, parts: FrozenParts, texts: TokenizedTexts, precision: str
    ) -> None:
        self._model, self._counts = model, n_seen(texts)
        self._frozen, first = parts
        self._ends = ends_of(self._counts)
        dtype = next(model.parameters()).dtype
        # (tokens of all texts, width) on the CPU: a GPU may have no room left for them
        self._rows = torch.empty(int(self._ends[-1]), model.width, dtype=dtype)
        self._read: tuple[Tensor, Tensor] | None = None  # the batch whose states are read
        self._more: tuple[None, ...] | None = None  # behind the states, where layers give tuples
        self._hook = first.register_forward_pre_hook(self._enter, with_kwargs=True)
        for layer in self._frozen:
            # on the instance, which hides the method of the class until close deletes it
            layer.forward = self._handing_on(layer.forward)

        def read(index: Int64, mask: Tensor) -> None:
            self._read = self._places(index), mask.bool()

        # one pass over all texts without states (read returns none); the hook keeps what comes by
        predict_logits(model, texts, precision=precision, states=read)
        self._read = None

    def _places(self, index: Int64) -> Tensor:
        return torch.from_numpy(ranges(self._ends[index], self._counts[index]))

    def of_batch(self, index: Int64, mask: Tensor) -> Tensor:
        """Return states ``(windows, tokens, width)`` of texts, for a mask ``(windows, tokens)``."""
        states = self._rows.new_zeros(*mask.shape, self._rows.shape[1])
        # zeros at padding, which attention leaves out; the check above compares with what stands
        # there
        states[mask.bool()] = self._rows[self._places(index)]
        return states

    def _handing_on(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        def forward(hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
            if self._model.states is None:
                result = compute(hidden_states, *args, **kwargs)
                # so many further values does the encoder expect of each layer
                self._more = (None,) * (len(result) - 1) if isinstance(result, tuple) else None
                return result
            return hidden_states if self._more is None else (hidden_states, *self._more)

        return forward

    def _enter(self, _: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if (states := self._model.states) is not None:
            # some families give the states by position, others by name
            return (states, *args[1:]), {n: v for n, v in kwargs.items() if n != "hidden_states"}
        if self._read is not None:
            # in the order of the mask: texts after each other, their windows after each other
            places, mask = self._read
            hidden = args[0] if args else kwargs["hidden_states"]
            self._rows[places] = hidden.to(self._rows)[mask]
        return None

    def close(self) -> None:
        """Give the layers their computation back."""
        self._hook.remove()
        for layer in self._frozen:
            del layer.forward
        self._model.states = None
