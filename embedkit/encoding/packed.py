"""The padding-free BERT forward.

Tokens of all sequences of a batch follow one another, ``(tokens, width)``, and every operation but
attention (:mod:`embedkit.encoding.attention`) runs on them as they are: nothing is computed for
padding, because there is none. Query, key and value are one product, and each layer is handed out
as soon as it exists.

On CPU the products go through oneDNN with weights packed once at load and GELU applied inside the
product that precedes it. There, in fp32, a row of a product has the same bits whatever is
beside it, and so have the vectors of a text; a trial at load checks it. In bf16 the matrix unit of
some processors sums in an order that depends on the size of the batch; the same batch still gives
the same bits.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear

from embedkit.encoding.attention import KERNELS, Attend, AttendFirst, Spans, attention_kinds
from embedkit.encoding.checkpoint import Checkpoint
from embedkit.encoding.device import is_out_of_memory
from embedkit.encoding.families import GELU
from embedkit.encoding.model import OnLayer, PackedBatch, PlainModel
from embedkit.errors import first_line

__all__ = ["ROWS", "PackedModel", "fastest", "packed_linear"]

logger = logging.getLogger(__name__)

Linear = Callable[[Tensor], Tensor]

ROWS = 32
"""On CPU batches are filled up to a multiple of so many rows. oneDNN makes a kernel for every new
shape, which takes milliseconds and megabytes; and a single row would be summed in another order."""

_AGREE = 1e-5
_AGREE_IN_HALF = 5e-2
"""Relative L2 distance of a layer from the plain forward. Two half-precision forwards round
differently in every operation; only gross disagreement is detectable beyond that."""


def fastest(plain: PlainModel, checkpoint: Checkpoint) -> PlainModel | PackedModel:
    """The packed forward where it applies and agrees with the plain one, else the plain one.

    The two are compared layer by layer on sequences of several lengths. In fp32 on CPU sequences
    are also compared bit by bit with themselves in other company; where they differ, every one of
    them attends in a call of its own.

    Args:
        plain: the loaded model.
        checkpoint: its configuration.
    """
    if not checkpoint.is_plain_bert:
        return plain
    limit = _AGREE if plain.dtype == torch.float32 else _AGREE_IN_HALF
    refused: list[tuple[str, str]] = []
    packed: PackedModel | None = None
    for kind in attention_kinds(plain.device, plain.dtype):
        try:
            packed = packed or PackedModel(plain, checkpoint)
            packed.attention = kind
            worst = _difference(packed, plain, _trial(checkpoint, plain))
        except Exception as error:  # whatever this device, torch or transformers does not have
            reason = first_line(error)
            if is_out_of_memory(error):
                logger.warning(
                    f"memory ran out while the fast forward was tried ({reason}); using the plain "
                    "one, which is slower. Free memory on that device, or choose another device="
                )
                return plain
            refused.append((kind, f"cannot run here ({reason})"))
            continue
        if worst <= limit:
            for other, reason in refused:
                logger.info(f"the attention kernel {other} {reason}; using {kind}")
            same_bits = plain.device.type == "cpu" and plain.dtype == torch.float32
            if same_bits and _company_matters(packed, _trial(checkpoint, plain, 100)):
                logger.info(
                    "on this machine the last bits of a vector would depend on the texts beside "
                    "it; attention runs sequence by sequence, which is slower"
                )
                packed.separate()
            return packed
        refused.append((kind, f"differs from the plain one by {worst:.1e} on this machine"))
    for kind, reason in refused[:-1]:
        logger.info(f"the attention kernel {kind} {reason}")
    logger.warning(f"the fast forward {refused[-1][1]}; using the plain one, which is slower")
    return plain


class PackedModel:
    """The interface of :class:`~embedkit.encoding.model.PlainModel` without padding.

    Args:
        plain: the loaded model, whose weights are taken over in the form that is fastest here.
        checkpoint: its configuration.
        attention: one of :func:`attention_kinds`; by default the fastest that this device and
            precision are known to take.
    """

    name = "packed"
    pads = False

    def __init__(
        self, plain: PlainModel, checkpoint: Checkpoint, *, attention: str | None = None
    ) -> None:
        config = checkpoint.config
        self.n_layers, self.width = plain.n_layers, plain.width
        self.device, self.dtype, self.pooler = plain.device, plain.dtype, plain.pooler
        self._pool_plainly = plain.pool
        self._dense = _pooler_product(plain.pooler)
        self._heads = int(plain.module.config.num_attention_heads)
        self._eps = float(config.get("layer_norm_eps", 1e-12))
        self._embeddings = plain.module.embeddings
        self._projection: Linear | None = getattr(plain.module, "embeddings_project", None)
        counts = checkpoint.counts_from_padding
        self._padding = self._embeddings.word_embeddings.padding_idx if counts else None
        form = GELU[str(config.get("hidden_act", "gelu"))]
        self._layers = [_Layer(layer, form, self._heads, self._eps) for layer in plain.all_layers]
        self.attention = attention or attention_kinds(self.device, self.dtype)[0]
        self._together = True

    def separate(self) -> None:
        """From now on every sequence attends in a call of its own, whatever is beside it."""
        self._together = False
        self.name = "packed, sequence by sequence"

    @torch.inference_mode()
    def forward(
        self,
        batch: PackedBatch,
        layers: Collection[int],
        on_layer: OnLayer,
        *,
        first_only: bool = False,
    ) -> None:
        """Run the batch and call ``on_layer(layer, hidden)`` for each layer asked for, ascending.

        ``hidden`` is ``(tokens, width)``, in the order of the batch, as soon as the layer exists.
        Layers above the highest one asked for are not computed; with ``first_only`` neither is
        anything of that one but keys, values and the rows of first tokens.
        Arguments as for :meth:`PlainModel.forward <embedkit.encoding.model.PlainModel.forward>`.
        """
        for widen in (True, False) if self.device.type == "cpu" else (False,):
            spans = Spans(batch, widen=widen, together=self._together)
            hidden = self._run(spans, layers, on_layer, first_only=first_only)
            # a masked key that is NaN would spoil the sequence before it
            if not widen or hidden.sum().isfinite():
                break

    def _run(
        self, spans: Spans, layers: Collection[int], on_layer: OnLayer, *, first_only: bool
    ) -> Tensor:
        """As :meth:`forward`; returns the last hidden states that were computed of all tokens."""
        highest, batch = max(layers), spans.batch
        tokens = len(batch.ids)
        attend, attend_first = KERNELS[self.attention]
        hidden = self._embed(batch)
        if 0 in layers:
            first = first_only and highest == 0
            on_layer(0, hidden[batch.offsets[:-1]] if first else hidden[:tokens])
        for number, layer in enumerate(self._layers[:highest], 1):
            if first_only and number == highest:
                first_tokens = layer.first_tokens(hidden, spans, attend_first)
                on_layer(number, first_tokens[: len(batch.lengths)])
                break
            hidden = layer(hidden, spans, attend)
            if number in layers:
                on_layer(number, hidden[:tokens])
        return hidden

    @torch.inference_mode()
    def pool(self, first: Tensor) -> Tensor:
        """As :meth:`PlainModel.pool <embedkit.encoding.model.PlainModel.pool>`."""
        if self._dense is None:
            return self._pool_plainly(first)
        rows = _filled(first) if self.device.type == "cpu" else first
        return self._dense(rows).tanh()[: len(first)].float()

    def _embed(self, batch: PackedBatch) -> Tensor:
        e = self._embeddings
        ids, types, positions = batch.ids, batch.type_ids, self._positions(batch)
        if self.device.type == "cpu":
            ids, types, positions = _filled(ids), _filled(types), _filled(positions)
        # summed in the order of transformers, so that the last bits agree too
        hidden = e.word_embeddings(ids) + e.token_type_embeddings(types)
        hidden += e.position_embeddings(positions)
        norm: nn.LayerNorm = e.LayerNorm
        hidden = layer_norm(hidden, (hidden.shape[1],), norm.weight, norm.bias, self._eps)
        return hidden if self._projection is None else self._projection(hidden)

    def _positions(self, batch: PackedBatch) -> Tensor:
        starts, tokens = batch.offsets[:-1], len(batch.ids)
        lengths = batch.offsets.diff()
        if self._padding is None:
            count = torch.arange(tokens, device=self.device)
            return count - torch.repeat_interleave(starts, lengths, output_size=tokens)
        real = (batch.ids != self._padding).long()  # a text may spell out the padding token
        count = real.cumsum(0)
        before = torch.repeat_interleave(count[starts] - real[starts], lengths, output_size=tokens)
        positions: Tensor = (count - before) * real + self._padding
        return positions


class _Layer:
    """One encoder layer with its weights in the form that is fastest."""

    def __init__(self, layer: Any, form: str, heads: int, eps: float) -> None:
        attention = layer.attention
        self._parts = (attention.self.query, attention.self.key, attention.self.value)
        self._qkv = _joined(self._parts)
        self._split: tuple[Linear, Linear] | None = None
        self._heads, self._eps = heads, eps
        out, up, down = attention.output.dense, layer.intermediate.dense, layer.output.dense
        self._out = packed_linear(out.weight, out.bias)
        self._up = packed_linear(up.weight, up.bias, activation=form)
        self._down = packed_linear(down.weight, down.bias)
        self._norm_attention: nn.LayerNorm = attention.output.LayerNorm
        self._norm_output: nn.LayerNorm = layer.output.LayerNorm

    def __call__(self, hidden: Tensor, spans: Spans, attend: Attend) -> Tensor:
        context = attend(self._qkv(hidden), spans, self._heads)
        return self._after_attention(context, hidden)

    def first_tokens(self, hidden: Tensor, spans: Spans, attend: AttendFirst) -> Tensor:
        """The layer's output for the first token of every sequence alone.

        Keys and values are needed of all tokens; the query and everything after attention only of
        the first ones. ``(sequences, width)``, filled up by further rows if there are few.
        """
        if self._split is None:
            self._split = _joined(self._parts[:1]), _joined(self._parts[1:])
        query, key_value = self._split
        first = hidden[spans.batch.offsets[:-1]]
        if hidden.device.type == "cpu":
            first = _filled(first)
        context = attend(query(first), key_value(hidden), spans, self._heads)
        return self._after_attention(context, first)

    def _after_attention(self, context: Tensor, hidden: Tensor) -> Tensor:
        hidden = _add_norm(self._out(context), hidden, self._norm_attention, self._eps)
        return _add_norm(self._down(self._up(hidden)), hidden, self._norm_output, self._eps)


def _add_norm(values: Tensor, residual: Tensor, norm: nn.LayerNorm, eps: float) -> Tensor:
    values += residual
    return layer_norm(values, (values.shape[1],), norm.weight, norm.bias, eps)


def _filled(values: Tensor) -> Tensor:
    """Rows of zeros after the last one, up to a multiple of :data:`ROWS`."""
    missing = -len(values) % ROWS
    if not missing:
        return values
    return torch.cat([values, values.new_zeros(missing, *values.shape[1:])])


def packed_linear(weight: Tensor, bias: Tensor, *, activation: str | None = None) -> Linear:
    """``x @ weight.T + bias``, then GELU in the given form; by oneDNN where it is there.

    Args:
        weight: ``(out, in)``.
        bias: ``(out,)``.
        activation: ``none`` for the erf form of GELU, ``tanh`` for its approximation.
    """
    weight, bias = weight.detach().contiguous(), bias.detach().contiguous()
    if _has_onednn(weight):
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


def _joined(parts: Sequence[nn.Linear]) -> Linear:
    """Several products of the same rows as one, their results side by side."""
    return packed_linear(torch.cat([p.weight for p in parts]), torch.cat([p.bias for p in parts]))


def _pooler_product(pooler: nn.Module | None) -> Linear | None:
    """The product of BERT's pooler, which tanh follows; ``None`` for any other."""
    dense, activation = getattr(pooler, "dense", None), getattr(pooler, "activation", None)
    if not isinstance(dense, nn.Linear) or not isinstance(activation, nn.Tanh):
        return None
    return packed_linear(dense.weight, dense.bias)


def _has_onednn(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def _company_matters(packed: PackedModel, batch: PackedBatch) -> bool:
    """Whether sequences have other bits in a batch than alone, in the first layer."""

    def first_layer(batch: PackedBatch, *, first_only: bool) -> Tensor:
        found: list[Tensor] = []
        packed.forward(batch, [1], lambda _, h: found.append(h.clone()), first_only=first_only)
        return found[0]

    lengths = list(batch.lengths)
    pieces = zip(torch.split(batch.ids, lengths), torch.split(batch.type_ids, lengths), strict=True)
    alone = [PackedBatch.of(ids, types, [len(ids)]) for ids, types in pieces]
    for first_only in (False, True):
        together = first_layer(batch, first_only=first_only)
        if not together.equal(torch.cat([first_layer(a, first_only=first_only) for a in alone])):
            return True
    return False


def _trial(checkpoint: Checkpoint, plain: PlainModel, longest: int = 40) -> PackedBatch:
    """Sequences of random ids, of equal and of different lengths."""
    longest = min(checkpoint.positions, longest)
    lengths = [length for length in (longest, 45, 17, 17, 5, 3, 3, 1) if length <= longest]
    generator = torch.Generator().manual_seed(0)
    vocabulary = int(plain.module.config.vocab_size)  # config.json may leave it to transformers
    ids = torch.randint(vocabulary, (sum(lengths),), generator=generator).to(plain.device)
    return PackedBatch.of(ids, torch.zeros_like(ids), lengths)


def _difference(packed: PackedModel, plain: PlainModel, batch: PackedBatch) -> float:
    """Largest relative L2 difference of a layer between the two forwards; infinite for NaN."""
    layers = range(packed.n_layers + 1)
    ours: dict[int, Tensor] = {}
    theirs: dict[int, Tensor] = {}
    packed.forward(batch, layers, lambda i, h: ours.update({i: h.float()}))
    plain.forward(batch, layers, lambda i, h: theirs.update({i: h.float()}))
    first: list[Tensor] = []
    packed.forward(batch, layers[-1:], lambda _, h: first.append(h.float()), first_only=True)
    pairs = [(ours[i], theirs[i]) for i in layers]
    last = theirs[packed.n_layers][batch.offsets[:-1]]
    pairs.append((first[0], last))
    if packed.pooler is not None:
        pairs.append((packed.pool(last.to(packed.dtype)), plain.pool(last.to(packed.dtype))))
    differences = [float((a - b).norm() / b.norm().clamp(min=1e-12)) for a, b in pairs]
    return max(math.inf if math.isnan(d) else d for d in differences)
