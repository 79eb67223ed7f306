"""The padding-free BERT forward.

Tokens of all sequences of a batch stand one after the other, ``(tokens, width)``, and every
operation but attention runs on them as they are: nothing is computed for padding, because there is
none. Query, key and value are one product, and each layer is handed out as soon as it exists.

Attention stays inside each sequence. On CUDA one kernel does that for sequences of any lengths;
elsewhere neighbouring sequences of equal length, which a batch sorted by length has many of, form a
dense view without a mask.

On CPU the products go through oneDNN with weights packed once at load and GELU applied inside the
product that precedes it. There, in fp32, a row of a product has the same bits whatever stands
beside it, and so have the vectors of a text; a trial at load checks it. In bf16 the matrix unit of
some processors sums in an order that depends on the size of the batch; the same batch still gives
the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention

from embedkit.encoding.checkpoint import Checkpoint
from embedkit.encoding.device import computes_bf16, is_out_of_memory
from embedkit.encoding.families import FAMILIES
from embedkit.encoding.model import OnLayer, PackedBatch, PlainModel
from embedkit.errors import first_line

__all__ = [
    "ROWS",
    "PackedModel",
    "attention_kinds",
    "can_pack",
    "fastest",
    "length_runs",
    "packed_linear",
]

Linear = Callable[[Tensor], Tensor]
Kernel = Callable[..., Tensor]
Attend = Callable[[Tensor, "_Spans", int], Tensor]
AttendFirst = Callable[[Tensor, Tensor, "_Spans", int], Tensor]

_GELU = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
"""Activations that are understood, with the name of their form in torch."""

ROWS = 32
"""On CPU batches are filled up to a multiple of so many rows. oneDNN makes a kernel for every new
shape, which takes milliseconds and megabytes; and a single row would be summed in another order."""

_QUERIES = 4
"""On CPU the query of a first token is repeated so many times. Products of fewer than four rows are
summed in an order that depends, on some processors, on the number of threads or on which of them
computes it."""

_AGREE = {torch.float32: 1e-5}
_AGREE_IN_HALF = 5e-2
"""Relative L2 distance of a layer from the plain forward. Two half-precision forwards round
differently in every operation; only gross disagreement can be told from that."""


def can_pack(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is a plain BERT encoder, which this forward computes."""
    config = checkpoint.config
    return (
        FAMILIES[checkpoint.model_type].packed
        and config.get("position_embedding_type") in (None, "absolute")
        and config.get("hidden_act", "gelu") in _GELU
        and not config.get("is_decoder")
        and not config.get("add_cross_attention")
    )


def fastest(
    plain: PlainModel, checkpoint: Checkpoint, *, notify: Callable[[str], None] = lambda _: None
) -> PlainModel | PackedModel:
    """The packed forward where it applies and agrees with the plain one, else the plain one.

    The two are compared layer by layer on sequences of several lengths. In fp32 on CPU sequences
    are also compared bit by bit with themselves in other company; where they differ, every one of
    them attends in a call of its own.

    Args:
        plain: the loaded model.
        checkpoint: its configuration.
        notify: called with a sentence for the user if one of the comparisons fails.
    """
    if not can_pack(checkpoint):
        return plain
    limit = _AGREE.get(plain.dtype, _AGREE_IN_HALF)
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
                notify(
                    f"memory ran out while the fast forward was tried ({reason}); using the plain "
                    "one, which is slower. Free memory on that device, or choose another --device"
                )
                return plain
            refused.append((kind, f"cannot run here ({reason})"))
            continue
        if worst <= limit:
            for other, reason in refused:
                notify(f"the attention kernel {other} {reason}; using {kind}")
            if _promises_bits(packed) and _company_matters(packed, _trial(checkpoint, plain, 100)):
                notify(
                    "on this machine the last bits of a vector would depend on the texts beside "
                    "it; attention runs sequence by sequence, which is slower"
                )
                packed.separate()
            return packed
        refused.append((kind, f"differs from the plain one by {worst:.1e} on this machine"))
    for kind, reason in refused[:-1]:
        notify(f"the attention kernel {kind} {reason}")
    notify(f"the fast forward {refused[-1][1]}; using the plain one, which is slower")
    return plain


class PackedModel:
    """The seam of :class:`~embedkit.encoding.model.PlainModel`: ids in, hidden states out.

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
        counts = FAMILIES[checkpoint.model_type].positions_from_padding
        self._padding = self._embeddings.word_embeddings.padding_idx if counts else None
        form = _GELU[str(config.get("hidden_act", "gelu"))]
        self._layers = [_Layer(layer, form, self._heads, self._eps) for layer in plain.all_layers]
        self.attention = attention or attention_kinds(self.device, self.dtype)[0]
        self._together = True

    def separate(self) -> None:
        """From now on every sequence attends in a call of its own, whatever stands beside it."""
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
        widen = self.device.type == "cpu"
        finite = self._run(batch, layers, on_layer, first_only=first_only, widen=widen)
        if widen and not finite:  # a masked key that is NaN would spoil the sequence before it
            self._run(batch, layers, on_layer, first_only=first_only, widen=False)

    def _run(
        self,
        batch: PackedBatch,
        layers: Collection[int],
        on_layer: OnLayer,
        *,
        first_only: bool,
        widen: bool,
    ) -> bool:
        """As :meth:`forward`; returns whether, on CPU, all that was computed is finite."""
        highest = max(layers)
        tokens = len(batch.ids)
        attend, attend_first = _KERNELS[self.attention]
        spans = _Spans(batch, widen=widen, together=self._together)
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
        return not widen or bool(hidden.sum().isfinite())

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


class _Spans:
    """Where the sequences of a batch stand, in the forms that attention wants."""

    def __init__(self, batch: PackedBatch, *, widen: bool, together: bool) -> None:
        self.widen = widen
        self.offsets = batch.offsets
        self.starts = batch.offsets[:-1]
        self.longest = max(batch.lengths)
        self.tokens = len(batch.ids)
        self._together = together
        self._lengths = batch.lengths

    @cached_property
    def runs(self) -> list[tuple[int, int, int]]:
        """As :func:`length_runs`."""
        return length_runs(self._lengths, together=self._together)

    @cached_property
    def ends(self) -> Tensor:
        """``(sequences + 1,)`` int32, as kernels of CUDA want the offsets."""
        return self.offsets.int()

    @cached_property
    def each(self) -> Tensor:
        """``(sequences + 1,)`` int32, the offsets of one token per sequence."""
        return torch.arange(len(self.offsets), dtype=torch.int32, device=self.offsets.device)


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

    def __call__(self, hidden: Tensor, spans: _Spans, attend: Any) -> Tensor:
        context = attend(self._qkv(hidden), spans, self._heads)
        return self._after_attention(context, hidden)

    def first_tokens(self, hidden: Tensor, spans: _Spans, attend_first: Any) -> Tensor:
        """The layer's output for the first token of every sequence alone.

        Keys and values are needed of all tokens; the query and everything after attention only of
        the first ones. ``(sequences, width)``, filled up by further rows if there are few.
        """
        if self._split is None:
            self._split = _joined(self._parts[:1]), _joined(self._parts[1:])
        query, key_value = self._split
        first = hidden[spans.starts]
        if hidden.device.type == "cpu":
            first = _filled(first)
        context = attend_first(query(first), key_value(hidden), spans, self._heads)
        return self._after_attention(context, first)

    def _after_attention(self, context: Tensor, hidden: Tensor) -> Tensor:
        hidden = _add_norm(self._out(context), hidden, self._norm_attention, self._eps)
        return _add_norm(self._down(self._up(hidden)), hidden, self._norm_output, self._eps)


def length_runs(lengths: Sequence[int], *, together: bool = True) -> list[tuple[int, int, int]]:
    """Runs of neighbouring sequences of equal length: (first token, sequences, length).

    Unless ``together``, every sequence is a run.
    """
    return list(_runs(lengths, together))


def _runs(lengths: Sequence[int], together: bool) -> Iterator[tuple[int, int, int]]:
    start = count = 0
    for i, length in enumerate(lengths):
        count += 1
        if not together or i + 1 == len(lengths) or lengths[i + 1] != length:
            yield start, count, length
            start, count = start + count * length, 0


def _attend_runs(qkv: Tensor, spans: _Spans, heads: int) -> Tensor:
    """Self-attention inside each sequence, ``(tokens, 3 * width)`` → ``(tokens, width)``."""
    width = qkv.shape[1] // 3
    size = width // heads
    context = qkv.new_empty(len(qkv), width)
    if not _attends_in(qkv.dtype, qkv.device):
        qkv = qkv.float()
    for start, count, length in spans.runs:
        keys = key_length(length) if spans.widen else length
        rows = qkv[start:]
        missing = (count - 1) * length + keys - len(rows)
        if missing > 0:
            rows = torch.cat([rows, rows.new_zeros(missing, 3 * width)])
        strides = (length * 3 * width, size, 3 * width, 1)
        origin = rows.storage_offset()
        query = rows.as_strided((count, heads, length, size), strides, origin)
        key = rows.as_strided((count, heads, keys, size), strides, origin + width)
        value = rows.as_strided((count, heads, keys, size), strides, origin + 2 * width)
        mask = None if keys == length else _mask(length, keys, qkv.dtype)
        result = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        end = start + count * length
        context[start:end].view(count, length, heads, size).copy_(result.transpose(1, 2))
    context[spans.tokens :] = 0
    return context


@lru_cache
def _attends_in(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernel runs: for bf16 it may ask for instructions that were taken from it."""
    if device.type != "cpu" or dtype == torch.float32:
        return True
    try:
        rows = torch.zeros(1, 1, 128, 64, dtype=dtype)  # short sequences are computed otherwise
        scaled_dot_product_attention(rows, rows, rows)
    except RuntimeError:
        return False
    return True


def key_length(length: int) -> int:
    """Keys and values that attention on CPU reads for a sequence of so many tokens.

    The kernel is up to twice as fast when their number is a multiple of its vector width. What
    follows a sequence stands there anyway, and a mask takes it out again without cost.
    """
    return length if length < 5 or length % 16 < 3 else -(-length // 16) * 16


@lru_cache(maxsize=1024)
def _mask(length: int, keys: int, dtype: torch.dtype) -> Tensor:
    """``(1, 1, 1, keys)``: 0 for the keys of the sequence, minus infinity for those after it."""
    mask = torch.zeros(1, 1, 1, keys, dtype=dtype)
    mask[..., length:] = -math.inf
    return mask


def _attend_by(kernel: Kernel) -> Attend:
    """As :func:`_attend_runs`, by a kernel that takes sequences of any lengths."""

    def attend(qkv: Tensor, spans: _Spans, heads: int) -> Tensor:
        query, key, value = qkv.view(len(qkv), 3, heads, -1).unbind(1)
        ends, longest = spans.ends, spans.longest
        return kernel(query, key, value, ends, ends, longest, longest).reshape(len(qkv), -1)

    return attend


def _attend_first_by(kernel: Kernel) -> AttendFirst:
    """As :func:`_attend_first_runs`, by a kernel that takes sequences of any lengths.

    One call for every length there is would cost more than the work that is avoided.
    """

    def attend(query: Tensor, pairs: Tensor, spans: _Spans, heads: int) -> Tensor:
        key, value = pairs.view(len(pairs), 2, heads, -1).unbind(1)
        rows = query.view(len(query), heads, -1)
        context = kernel(rows, key, value, spans.each, spans.ends, 1, spans.longest)
        return context.reshape(len(query), -1)

    return attend


def _varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    longest_query: int,
    longest_key: int,
) -> Tensor:
    """FlashAttention: half precision, compute capability 8.0, heads of up to 256 by eights.

    Args:
        query: ``(queries, heads, size)``; ``key`` and ``value`` ``(tokens, heads, size)``.
        key: see ``query``.
        value: see ``query``.
        query_ends: ``(sequences + 1,)`` int32, where each sequence begins and the last one ends.
        key_ends: the same for keys and values.
        longest_query: queries of the longest sequence.
        longest_key: its keys.

    Returns:
        ``(queries, heads, size)``.
    """
    from torch.nn.attention.varlen import varlen_attn

    # only what every version of torch takes: 2.11 and 2.13 have other keywords
    ends = query_ends, key_ends, longest_query, longest_key
    context = varlen_attn(query, key, value, *ends)
    assert isinstance(context, Tensor)  # a tuple comes only to those who ask for more
    return context


def _efficient(query: Tensor, key: Tensor, value: Tensor, *ends: Any) -> Tensor:
    """The memory-efficient kernel: any precision and CUDA device; arguments as for _varlen.

    In float32 it multiplies in float32, or by three TF32 products that make up for their rounding.
    """
    packed = (x.unsqueeze(0) for x in (query, key, value))
    no_dropout, no_mask = 0.0, 0
    found = torch.ops.aten._efficient_attention_forward(*packed, None, *ends, no_dropout, no_mask)
    context: Tensor = found[0].squeeze(0)
    return context


def _attend_first_runs(query: Tensor, pairs: Tensor, spans: _Spans, heads: int) -> Tensor:
    """Attention of one query per sequence, ``(sequences, width)``, on ``(tokens, 2 * width)``."""
    width = query.shape[1]
    context = torch.zeros_like(query)
    sequence = 0
    for start, count, length in spans.runs:
        view = pairs[start : start + count * length].view(count, length, 2, heads, width // heads)
        key, value = view.permute(2, 0, 3, 1, 4).unbind(0)
        asked = query[sequence : sequence + count].view(count, heads, 1, width // heads)
        times = _QUERIES if query.device.type == "cpu" else 1
        result = scaled_dot_product_attention(asked.repeat(1, 1, times, 1), key, value)
        context[sequence : sequence + count] = result[:, :, 0].reshape(count, width)
        sequence += count
    return context


_KERNELS: dict[str, tuple[Attend, AttendFirst]] = {
    "varlen": (_attend_by(_varlen), _attend_first_by(_varlen)),
    "efficient": (_attend_by(_efficient), _attend_first_by(_efficient)),
    "runs": (_attend_runs, _attend_first_runs),
}


def attention_kinds(device: torch.device, dtype: torch.dtype) -> tuple[str, ...]:
    """The ways of attention that a device and precision may take, fastest first.

    ``varlen`` and ``efficient`` are one kernel for sequences of any lengths. ``runs`` takes any
    device, precision and head size, by one kernel for each run of sequences of equal length.
    """
    if device.type != "cuda":
        return ("runs",)
    if dtype == torch.float32 or not computes_bf16(device):
        return ("efficient", "runs")
    return ("varlen", "efficient", "runs")


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


def _promises_bits(model: PackedModel) -> bool:
    """Whether a sequence is to have the same bits in any company."""
    return bool(model.device.type == "cpu" and model.dtype == torch.float32)


def _company_matters(packed: PackedModel, batch: PackedBatch) -> bool:
    """Whether sequences have other bits in a batch than alone, in the first layer."""

    def first_layer(batch: PackedBatch, *, first_only: bool) -> Tensor:
        found: list[Tensor] = []
        packed.forward(batch, [1], lambda _, h: found.append(h.clone()), first_only=first_only)
        return found[0]

    lengths = list(batch.lengths)
    pieces = zip(
        torch.split(batch.ids, lengths), torch.split(batch.type_ids, lengths),
        strict=True,
    )  # fmt: skip
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
