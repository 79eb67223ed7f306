"""The padding-free BERT forward.

Tokens of all sequences of a batch stand one after the other, ``(tokens, width)``, and every
operation but attention runs on them as they are: nothing is computed for padding, because there is
none. Attention takes runs of equally long sequences, which a batch sorted by length holds few of;
each run is a view without a mask. Query, key and value are one product.

On CPU the products go through oneDNN with weights packed once at load, and GELU is applied inside
the product that precedes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention

from embedkit.checkpoint import Checkpoint
from embedkit.errors import ModelError
from embedkit.model import PackedBatch, PlainModel

__all__ = ["PackedModel", "can_pack", "length_runs"]

OnLayer = Callable[[int, Tensor], None]
Linear = Callable[[Tensor], Tensor]

_GELU = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
"""Activations that are understood, with the name of their form in torch."""


def can_pack(checkpoint: Checkpoint, device: torch.device) -> bool:
    """Whether a checkpoint is a plain BertModel that this forward computes on the device."""
    config = checkpoint.config
    return (
        checkpoint.model_type == "bert"
        and device.type == "cpu"
        and config.get("position_embedding_type", "absolute") == "absolute"
        and config.get("hidden_act", "gelu") in _GELU
    )


class PackedModel:
    """The same seam as :class:`~embedkit.model.PlainModel`: ids in, hidden states per layer out.

    Args:
        plain: the loaded model, whose weights are used.
        checkpoint: its configuration.
        fixed_tokens: every batch is filled up to a multiple of this many tokens with rows that
            belong to no sequence, so that the products have the same shape, hence the same
            order of summation, whatever shares a batch. 0 fills nothing.
    """

    def __init__(
        self, plain: PlainModel, checkpoint: Checkpoint, *, fixed_tokens: int = 0
    ) -> None:
        module = plain.module
        config = checkpoint.config
        self.n_layers, self.width = plain.n_layers, plain.width
        self.device, self.pooler, self.module = plain.device, plain.pooler, module
        self._plain = plain
        self._fixed = fixed_tokens
        self._heads = int(config["num_attention_heads"])
        self._eps = float(config.get("layer_norm_eps", 1e-12))
        self._embeddings = module.embeddings
        form = _GELU[str(config.get("hidden_act", "gelu"))]
        self._layers = [_Layer(layer, form) for layer in plain.all_layers]

    @torch.inference_mode()
    def forward(self, batch: PackedBatch, layers: Collection[int], on_layer: OnLayer) -> None:
        """Run the batch and call ``on_layer(layer, hidden)`` for each layer asked for, ascending.

        ``hidden`` is ``(tokens, width)``, in the order of the batch, as soon as the layer exists.
        Layers above the highest one asked for are not computed.
        """
        wanted = set(layers)
        runs = length_runs(batch.lengths)
        tokens = len(batch.ids)
        hidden = self._embed(batch)
        for number in range(max(wanted) + 1):
            if number > 0:
                hidden = self._layers[number - 1](hidden, runs, self._heads, self._eps)
            if number in wanted:
                on_layer(number, hidden[:tokens])

    def pool(self, first: Tensor) -> Tensor:
        """As :meth:`~embedkit.model.PlainModel.pool`."""
        return self._plain.pool(first)

    def _embed(self, batch: PackedBatch) -> Tensor:
        e = self._embeddings
        positions = torch.arange(len(batch.ids)) - torch.repeat_interleave(
            batch.offsets, batch.lengths
        )
        ids, types = batch.ids, batch.type_ids
        if self._fixed and (missing := -len(ids) % self._fixed):
            ids, types, positions = (
                torch.cat([t, t.new_zeros(missing)]) for t in (ids, types, positions)
            )
        # summed in the order of transformers, so that the last bits agree too
        hidden = e.word_embeddings(ids) + e.token_type_embeddings(types)
        hidden += e.position_embeddings(positions)
        norm = e.LayerNorm
        return layer_norm(hidden, (self.width,), norm.weight, norm.bias, self._eps)


class _Layer:
    """One encoder layer with its weights in the form that is fastest."""

    def __init__(self, layer: Any, form: str) -> None:
        attention = layer.attention
        parts = (attention.self.query, attention.self.key, attention.self.value)
        self._qkv = _packed_linear(
            torch.cat([p.weight for p in parts]), torch.cat([p.bias for p in parts])
        )
        out, up, down = attention.output.dense, layer.intermediate.dense, layer.output.dense
        self._out = _packed_linear(out.weight, out.bias)
        self._up = _packed_linear(up.weight, up.bias, activation=form)
        self._down = _packed_linear(down.weight, down.bias)
        self._norm_attention: nn.LayerNorm = attention.output.LayerNorm
        self._norm_output: nn.LayerNorm = layer.output.LayerNorm

    def __call__(
        self, hidden: Tensor, runs: list[tuple[int, int, int]], heads: int, eps: float
    ) -> Tensor:
        context = _attention(self._qkv(hidden), runs, heads)
        hidden = _add_norm(self._out(context), hidden, self._norm_attention, eps)
        return _add_norm(self._down(self._up(hidden)), hidden, self._norm_output, eps)


def length_runs(lengths: Tensor) -> list[tuple[int, int, int]]:
    """Runs of neighbouring sequences of equal length: (first token, sequences, length)."""
    return list(_runs(lengths.tolist()))


def _runs(lengths: list[int]) -> Iterator[tuple[int, int, int]]:
    start = count = 0
    for i, length in enumerate(lengths):
        count += 1
        if i + 1 == len(lengths) or lengths[i + 1] != length:
            yield start, count, length
            start, count = start + count * length, 0


def _attention(qkv: Tensor, runs: list[tuple[int, int, int]], heads: int) -> Tensor:
    """Self-attention inside each sequence, ``(tokens, 3 * width)`` → ``(tokens, width)``."""
    tokens, width = qkv.shape[0], qkv.shape[1] // 3
    context = qkv.new_zeros(tokens, width) if not runs else torch.empty_like(qkv[:, :width])
    end = 0
    for start, count, length in runs:
        end = start + count * length
        view = qkv[start:end].view(count, length, 3, heads, width // heads)
        query, key, value = view.permute(2, 0, 3, 1, 4).unbind(0)
        result = scaled_dot_product_attention(query, key, value)
        context[start:end] = result.transpose(1, 2).reshape(count * length, width)
    context[end:] = 0
    return context


def _add_norm(values: Tensor, residual: Tensor, norm: nn.LayerNorm, eps: float) -> Tensor:
    values += residual
    return layer_norm(values, (values.shape[1],), norm.weight, norm.bias, eps)


def _packed_linear(weight: Tensor, bias: Tensor, *, activation: str | None = None) -> Linear:
    """``x @ weight.T + bias``, then GELU in the given form; oneDNN where it is there."""
    weight, bias = weight.detach().contiguous(), bias.detach().contiguous()
    if torch.backends.mkldnn.is_available():
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 1024)
        kind, form = ("none", "") if activation is None else ("gelu", activation)

        def fused(x: Tensor) -> Tensor:
            result: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, kind, [], form)
            return result

        return fused

    def plain(x: Tensor) -> Tensor:
        result = linear(x, weight, bias)
        return result if activation is None else gelu(result, approximate=activation)

    return plain


def agrees(packed: PackedModel, plain: PlainModel, batch: PackedBatch, *, limit: float) -> float:
    """Largest relative L2 difference over all layers between the two forwards on a batch.

    Raises:
        ModelError: it exceeds ``limit``.
    """
    layers = range(packed.n_layers + 1)
    ours: dict[int, Tensor] = {}
    theirs: dict[int, Tensor] = {}
    packed.forward(batch, layers, lambda i, h: ours.update({i: h.float()}))
    plain.forward(batch, layers, lambda i, h: theirs.update({i: h.float()}))
    worst = max(
        float((ours[i] - theirs[i]).norm() / theirs[i].norm().clamp(min=1e-12)) for i in layers
    )
    if not worst <= limit:
        raise ModelError(f"the packed forward differs by {worst:.1e}, more than {limit:.0e}")
    return worst
