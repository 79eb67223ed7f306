"""The padding-free forward: the sequences of a batch are concatenated, ``(tokens, width)``.

    plain    [a a a a a]        packed   a a a a a b b c          lengths 5, 2, 1
             [b b . . .]                 0         5   7 8        offsets
             [c . . . .]        every product, norm and activation sees 8 rows instead of 15

What is notable:

- The modules are those of transformers, or for the commonest families those of
  :mod:`~embedkit.encoding.bert`, which compute the same. Only attention is replaced, by a function
  in the registry of transformers that keeps sequences apart; so a new family needs no code here,
  and a family that does not let attention be replaced runs with padding.
- A trial at load compares every layer with the plain forward, kernel by kernel, and takes the first
  that agrees. In fp32 on CPU it also compares a text alone with the same text in a batch: a text
  has the same bits in any company. (In bf16 the matrix unit of some processors sums in an order
  that depends on the size of the batch; the same batch still gives the same bits. So do mixtures of
  experts, whose products have as many rows as a batch has tokens for an expert; a warning says it.)
- A forward ends by an exception, :class:`_Done`, as soon as the highest layer that is asked for has
  been handed out: the forwards of transformers have no other way out.
- If only first tokens are needed of the highest layer, that layer runs twice: once up to its
  attention, for the keys and values of all tokens; then for first tokens alone. The larger half of
  a layer, its feed-forward block, then has a row for each text instead of one for each token.
- :func:`hasten` swaps modules for faster equal ones: packed weights on CPU, int8, and on a GPU one
  product for queries, keys and values, GELU inside of a product, norms in one kernel.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache, cached_property, lru_cache, partial
from inspect import signature
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils._pytree import tree_map

from embedkit.encoding.bert import Bert
from embedkit.encoding.model import (
    Model,
    OnLayer,
    PackedBatch,
    PlainModel,
    computes_bf16,
    is_out_of_memory,
)
from embedkit.encoding.products import BY_ONEDNN, ROWS, Joined, filled, hasten, running
from embedkit.errors import Message, Option, first_line
from embedkit.scale import undisturbed

logger = logging.getLogger(__name__)


_AGREE = 1e-5
_AGREE_IN_HALF = 5e-2
_AGREE_IN_INT8 = 0.5
"""Relative L2 distance of a layer from the plain forward. Two half-precision forwards round
differently in every operation; only gross disagreement is detectable beyond that. The distance of
int8 is 0.1 to 0.2."""


_SHORT = 64
"""Mean length below which FlashAttention is slower on a GPU than the memory-efficient kernel: its
blocks of 128 queries are mostly empty. On an H200 the forward of texts of 16 tokens gains 23 to
31 %, that of mixed lengths with a mean of 50 1 to 4 %; at 128 tokens it would lose as much."""


_NAME = "embedkit"
"""Name of the attention in the registry of transformers."""


class _Done(Exception):  # noqa: N818
    """Ends a forward of transformers as soon as nothing more is needed of it."""


class Limits(NamedTuple):
    """Keys that a query attends to, and the factor of their products."""

    scale: float
    causal: bool  # not to later ones
    window: int | None  # only to those that are nearer
    bias: Tensor | None = None  # added to products by their positions, (1, heads, tokens, tokens)


class Forward:
    """One forward of a batch: hands out layers, and ends it after the highest requested one.

    ``widen`` pads keys to the processor's vectors. If only first tokens are needed of the highest
    layer, it runs twice: through its attention, for all tokens, of which the contexts of the first
    ones are ``kept``; and then for first tokens alone. Three quarters of a layer's products come
    behind its attention. A query alone would save more, but its sums are in another order: the
    vector of [CLS] would have other bits than beside a mean.
    """

    def __init__(
        self,
        model: PackedModel,
        batch: PackedBatch,
        layers: Collection[int],
        on_layer: OnLayer,
        *,
        first_only: bool,
        widen: bool,
    ) -> None:
        self.model, self.batch, self.widen = model, batch, widen
        # for CUDA kernels, of queries and of keys: where sequences end, and the longest one. Once
        # per batch: the maximum goes through all sequences, and every layer asks
        ends, longest = batch.offsets.int(), max(batch.lengths)
        self.ends = ends, ends, longest, longest
        self._layers, self._highest, self._on_layer = layers, max(layers), on_layer
        self._first_only, self._keeps = first_only, False
        self._number = 0  # of layers that were entered
        # kept here and not in the modules: on CPU several threads run forwards of one model
        self.products: dict[Joined, tuple[Tensor, Tensor]] = {}  # of an input, three in one
        self.kept: Tensor | None = None  # (first tokens, heads, size)
        self.last: Tensor | None = None

    def enter(self, layer: nn.Module, args: Any, kwargs: Any) -> Any:
        """Hand out the input of a layer, and choose the tokens that it runs for."""
        # what enters a layer is what the layer before it has returned; the first one gets the
        # embeddings
        self.give(args[0])
        self._number += 1
        if not self._first_only or self._number < self._highest:
            return None
        self._keeps = True
        with suppress(_Done):
            # not layer(...): its hook, which is this method, would be called again
            layer.forward(*args, **kwargs)
        self._keeps = False
        # the layer never called the attention, or looks at earlier tokens alone: all tokens run
        if self.kept is None:
            return None
        first, tokens = self._first, args[0].shape[1:2]

        def chosen(value: Any) -> Any:
            # states, cosines and sines of positions are (1, tokens, …); masks and biases have four
            # dimensions, and attention cuts them itself
            if isinstance(value, Tensor) and value.dim() < 4 and value.shape[1:2] == tokens:
                return value.index_select(1, first)
            return value

        return tree_map(chosen, (args, kwargs))

    def give(self, hidden: Tensor) -> None:
        """Hand out the output ``(1, tokens, width)`` of the last layer that was entered."""
        rows, batch = hidden[0], self.batch
        ends = self._number == self._highest
        # one row for each sequence, and behind them those that only fill up to ROWS
        if self.kept is not None:
            rows = rows[: len(batch.lengths)]
        elif ends and self._first_only:
            rows = rows[batch.offsets[:-1]]
        else:
            rows = rows[: len(batch.ids)]
        if self._number in self._layers:
            self._on_layer(self._number, rows)
        if ends:
            self.last = rows
            raise _Done

    def attend(self, query: Tensor, key: Tensor, value: Tensor, limits: Limits) -> Tensor:
        """Attention inside each sequence; all are ``(tokens, heads, size)``."""
        if self.kept is not None:
            return self.kept
        short = len(self.batch.ids) < _SHORT * len(self.batch.lengths)
        kernel = (self.model.of_short if short else "") or self.model.attention
        context = KERNELS[kernel](query, key, value, self, limits)
        if self._keeps:
            # nobody asks a decoder for first tokens, and some count on the number of all
            if not limits.causal:
                self.kept = context.index_select(0, self._first)
            raise _Done
        return context

    @cached_property
    def _first(self) -> Tensor:
        """Rows of the first tokens, and as many of the first one as fill up to ROWS."""
        return filled(self.batch.offsets[:-1])

    @cached_property
    def runs(self) -> list[tuple[int, int, int]]:
        """Runs of neighbouring sequences of equal length: (first token, sequences, length)."""
        runs = []
        start = 0
        # batches are sorted by length, so that equal lengths are neighbours
        for length, equal in groupby(self.batch.lengths):
            count = len(list(equal))
            for size in [count] if self.model.together else [1] * count:
                runs.append((start, size, length))
                start += size * length
        return runs


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _mask: Any = None, **settings: Any
) -> tuple[Tensor, None]:
    """The attention that transformers calls, ``(1, heads, tokens, size)``."""
    if settings.get("softcap") or settings.get("s_aux") is not None:  # of Gemma 2 and gpt-oss
        raise NotImplementedError("softcap and s_aux are not supported")
    causal, scale = settings.get("is_causal"), settings.get("scaling")
    # families state these in the call, in the module or not at all
    limits = Limits(
        query.shape[-1] ** -0.5 if scale is None else scale,
        bool(getattr(module, "is_causal", True) if causal is None else causal),
        settings.get("sliding_window"),
        settings.get("position_bias"),
    )
    # the batch of transformers has one row, which is all sequences one after the other
    states = (states[0].transpose(0, 1) for states in (query, key, value))
    return running.now.attend(*states, limits).unsqueeze(0), None


def attention_kinds(device: torch.device, dtype: torch.dtype) -> tuple[str, ...]:
    """Kinds of attention for a device and precision, fastest first; ``runs`` is always possible."""
    if device.type != "cuda":
        return ("runs",)
    # FlashAttention needs half precision and the same generation of GPU as bf16 does
    if dtype == torch.float32 or not computes_bf16(device):
        return ("efficient", "runs")
    return ("varlen", "efficient", "runs")


def _runs(query: Tensor, key: Tensor, value: Tensor, forward: Forward, limits: Limits) -> Tensor:
    """Attention of all sequences of equal length in one call, on any device."""
    device = query.device
    # zeros and not empty: rows that only fill up stay as they are here, and what was left in memory
    # could be NaN, which reaches others as a masked key
    context = torch.zeros(query.shape, dtype=query.dtype, device=device)
    # attention alone is computed in float32; the products around it stay in half precision
    if not _attends_in(query.dtype, device):
        query, key, value = query.float(), key.float(), value.float()
    for start, count, length in forward.runs:
        keys = length
        # nothing is hidden but later keys, which is_causal says without a mask
        causal = limits.causal and limits.bias is None and (limits.window or length) >= length
        if forward.widen and length >= 5 and length % 16 >= 3:
            # up to twice as fast; the mask removes the following tokens at no cost
            keys = -(-length // 16) * 16
        # a dense mask keeps CUDA from FlashAttention; is_causal hides following tokens as well
        mask = None
        if not causal:
            mask = _mask(length, keys, limits._replace(bias=None), query.dtype, device)
        if limits.bias is not None:
            bias = limits.bias[:, :, :length, :length]
            mask = pad(bias, (0, keys - length), value=-math.inf).to(query.dtype)
        result = scaled_dot_product_attention(
            _block(query, start, count, length, length),
            _block(key, start, count, length, keys),
            _block(value, start, count, length, keys),
            attn_mask=mask,
            is_causal=causal,
            scale=limits.scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        # results are (sequences, heads, tokens, size) and go back to rows of tokens
        target = context[start : start + count * length].view(count, length, *context.shape[1:])
        target.copy_(result.transpose(1, 2))
    return context


def _block(states: Tensor, start: int, count: int, step: int, length: int) -> Tensor:
    """Sequences, one every ``step`` rows, ``(count, heads, length, size)``; mostly a view."""
    rows = states[start:]
    missing = (count - 1) * step + length - len(rows)
    if missing > 0:
        # the last sequence has no tokens behind it to stand in for wider keys
        rows = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
    row, head, element = rows.stride()
    shape = count, rows.shape[1], length, rows.shape[2]
    # blocks may overlap: where keys are widened, each one reads into the next sequence, and the
    # mask hides what it finds there; nothing is copied
    return rows.as_strided(shape, (step * row, head, row, element), rows.storage_offset())


@lru_cache
def _attends_in(dtype: torch.dtype, device: torch.device) -> bool:
    """True if the kernel runs: bf16 may need CPU instructions that are disabled."""
    if device.type != "cpu" or dtype == torch.float32:
        return True
    try:
        rows = torch.zeros(1, 1, 128, 64, dtype=dtype)  # short sequences use another kernel
        scaled_dot_product_attention(rows, rows, rows)
    except RuntimeError:
        return False
    return True


@lru_cache(maxsize=64)
def _mask(
    length: int, keys: int, limits: Limits, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """Minus infinity for the keys that a query does not attend to, else 0."""
    key = torch.arange(keys, device=device)
    # hides the tokens of the next sequence, which widened keys include
    seen = (key < length).view(1, 1, 1, keys)
    distance = torch.arange(length, device=device).view(1, 1, length, 1) - key
    if limits.causal:
        seen = seen & (distance >= 0)
    if limits.window is not None and limits.window < length:
        seen = seen & (distance.abs() < limits.window)
    # every key is seen; without a mask a faster kernel may be chosen
    if keys == length and seen.shape[2] == 1:
        return None
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, -math.inf)


def _varlen(query: Tensor, key: Tensor, value: Tensor, forward: Forward, limits: Limits) -> Tensor:
    """FlashAttention: half precision, compute capability 8.0, head sizes up to 256 by eights."""
    from torch.nn.attention.varlen import varlen_attn

    if limits.bias is not None:
        raise NotImplementedError("biases are not supported")
    settings: dict[str, Any] = {}
    if limits.causal or limits.window is not None:
        # transformers counts the token itself to its window, FlashAttention does not; -1 is no
        # limit
        reach = -1 if limits.window is None else limits.window - 1
        settings["window_size"] = reach, 0 if limits.causal else reach
    # older versions of torch lack some of the arguments; each is passed only where it is needed
    if limits.scale != query.shape[-1] ** -0.5:
        settings["scale"] = limits.scale
    if query.shape[1] != key.shape[1] and "enable_gqa" in signature(varlen_attn).parameters:
        settings["enable_gqa"] = True  # torch before 2.12 has no such word, and takes them unasked
    context = varlen_attn(query, key, value, *forward.ends, **settings)
    assert isinstance(context, Tensor)  # a tuple is returned only on request
    return context


def _efficient(
    query: Tensor, key: Tensor, value: Tensor, forward: Forward, limits: Limits
) -> Tensor:
    """The memory-efficient kernel: any precision and CUDA device."""
    if limits[2:] != (None, None) or query.shape[1] != key.shape[1]:
        raise NotImplementedError("windows, biases and grouped keys are not supported")
    packed = (states.unsqueeze(0) for states in (query, key, value))
    # the operator behind scaled_dot_product_attention, which has no public name but takes offsets
    no_dropout = 0.0
    result = torch.ops.aten._efficient_attention_forward(
        *packed, None, *forward.ends, no_dropout, int(limits.causal), scale=limits.scale
    )
    context: Tensor = result[0].squeeze(0)
    return context


KERNELS: dict[str, Callable[..., Tensor]] = {
    "varlen": _varlen,
    "efficient": _efficient,
    "runs": _runs,
}


@undisturbed()
def fastest(plain: PlainModel) -> Model:
    """The packed forward if it agrees with the plain one, else the plain one.

    Both are compared layer by layer on sequences of several lengths. In fp32 on CPU, bits of
    sequences alone and in a batch are compared too; if they differ, a batch runs on one thread, and
    if that does not help, sequences attend one by one. A warning says where neither does.
    """
    kind = plain.checkpoint.model_type
    # that of CLIP refuses inputs that are longer than its positions, as all texts of a batch are
    if kind == "clip_text_model" or (
        not plain.module._supports_attention_backend and kind != "mpnet"
    ):
        logger.info("forward: that of transformers, with padding; not compared layer by layer")
        return plain
    # the limit by precision: calibrated layers have "seen" ranges and become int8
    limit = _AGREE if plain.dtype == torch.float32 else _AGREE_IN_HALF
    if any(hasattr(module, "seen") for module in plain.module.modules()):
        limit = _AGREE_IN_INT8
    for kind in attention_kinds(plain.device, plain.dtype):
        try:
            # inside of the try as well: laying out the weights may fail too
            packed = PackedModel(plain, attention=kind)
            worst = _difference(packed, plain)
        except Exception as error:  # of any kernel that this device or torch does not support
            reason = f"cannot run here ({first_line(error)})"
            if is_out_of_memory(error):
                reason += f": free its memory{Option('device', before=' or choose another ')}"
                # the next kernel would find no more memory than this one
                break
        else:
            if worst <= limit:
                if plain.device.type == "cuda":
                    if kind == "varlen":
                        packed.of_short = _kernel_of_short(plain, limit)
                    # kernels differ in bits
                    packed.name = ", ".join(filter(None, ("packed", kind, packed.of_short)))
                if plain.device.type != "cpu" or plain.dtype != torch.float32:
                    return packed
                batch = _trial(plain, 100)
                # longer sequences than above: the order of sums depends on the length
                packed.one_thread = not BY_ONEDNN or _bits_differ(
                    packed, batch, 1, torch.get_num_threads()
                )
                if packed.one_thread and _bits_differ(packed, batch, 1):
                    packed.together = False
                    # it is not attention where experts have rows of several texts
                    if _bits_differ(packed, batch, 1):
                        packed.together = True
                        name = plain.checkpoint.name
                        logger.warning(
                            f"{name}: last bits of a vector depend on the texts beside it"
                        )
                    else:
                        packed.name = "packed, sequence by sequence"
                        logger.info(
                            "here the last bits of a vector would depend on the texts beside it; "
                            "attention runs sequence by sequence, which is slower"
                        )
                # MKL divides so few rows by the columns of the weights, which leaves the sums of
                # most widths as they were; of narrow models it divides odd lengths otherwise
                longest = min(plain.checkpoint.positions, ROWS)
                packed.short_on_two = packed.one_thread and not any(
                    _bits_differ(packed, _random(plain, [length]), 1, 2)
                    for length in (longest, *range(1, longest, 2))
                )
                return packed
            reason = f"differs from the plain one by {worst:.1e} on this machine"
        if kind != "runs":
            logger.info(Message(f"the attention kernel {kind} {reason}"))
    logger.warning(Message(f"the fast forward {reason}; using the plain one, which is slower"))
    return plain


class PackedModel(Model):
    """The modules of a plain model, run without padding.

    ``attention`` is one of :func:`attention_kinds`, by default the first.
    """

    name = "packed"
    pads = False
    together = True
    """Whether sequences of equal length attend in one call."""

    of_short = ""
    """Kernel of batches of short sequences, if it is another one than ``attention``."""

    def __init__(self, plain: PlainModel, *, attention: str | None = None) -> None:
        modules: Any = nn.ModuleList([plain.module, plain.pooler or nn.Identity()])
        # a memo of deepcopy: what it lists counts as copied already. So both models share weights,
        # and the plain one stays whole for the comparison
        weights = {id(t): t for t in (*modules.parameters(), *modules.buffers())}
        modules = copy.deepcopy(modules, weights)  # modules, with the same weights
        # on CPU products of three times the width are no faster
        hasten(modules, join=plain.device.type == "cuda")
        super().__init__(modules[0], plain.pooler and modules[1], plain.checkpoint)
        self.attention = attention or attention_kinds(self.device, self.dtype)[0]
        if isinstance(self.module, Bert):
            for part in self.module.modules():
                if hasattr(part, "attend"):
                    part.attend = _attend  # type: ignore[assignment]
        elif self.checkpoint.model_type == "mpnet":
            _open_mpnet(self.module)
        else:
            from transformers import AttentionInterface

            AttentionInterface.register(_NAME, _attend)
            # registered under one name for all models: the function finds its forward by the thread
            self.module.set_attn_implementation(_NAME)
        # the layers are the first list of modules in every family that is packed; where they are
        # not, the comparison at load fails
        for layer in next(m for m in self.module.modules() if isinstance(m, nn.ModuleList)):
            layer.register_forward_pre_hook(
                lambda *call: running.now.enter(*call), with_kwargs=True
            )
        counts = self.checkpoint.counts_from_padding
        padding = self.module.get_input_embeddings().padding_idx if counts else None
        # RoBERTa and its relatives number positions from the row after that of padding, all others
        # from 0, which is the row after -1
        self._padding: int = -1 if padding is None else padding

    def _run(
        self, batch: PackedBatch, layers: Collection[int], on_layer: OnLayer, *, first_only: bool
    ) -> None:
        inputs = {"input_ids": batch.ids, "position_ids": self._positions(batch)}
        if self._takes_types:
            inputs["token_type_ids"] = batch.type_ids
        inputs = {name: filled(values).unsqueeze(0) for name, values in inputs.items()}
        for widen in (True, False) if self.device.type == "cpu" else (False,):
            forward = Forward(self, batch, layers, on_layer, first_only=first_only, widen=widen)
            running.now = forward
            try:
                with suppress(_Done):
                    forward.give(self.module(**inputs).last_hidden_state)
            finally:
                del running.now  # it holds states, hundreds of megabytes on a GPU
            assert forward.last is not None
            # a masked NaN key would affect the preceding sequence
            # in fp32: a sum of finite halves may be more than the largest half
            if not widen or forward.last.sum(dtype=torch.float32).isfinite():
                break

    def pool(self, first: Tensor) -> Tensor:
        """As :meth:`Model.pool <embedkit.encoding.model.Model.pool>`."""
        return super().pool(filled(first))[: len(first)]

    def _positions(self, batch: PackedBatch) -> Tensor:
        # of every sequence anew; without them transformers would count through the batch
        starts, lengths = batch.offsets[:-1], batch.offsets.diff()
        real = (batch.ids != self._padding).long()  # a text may contain the padding token
        # as RoBERTa counts them: tokens of the text only, and the padding token itself gets its own
        # row
        count = real.cumsum(0)
        before = torch.repeat_interleave((count - real)[starts], lengths, output_size=len(real))
        positions: Tensor = (count - before) * real + self._padding
        return positions


def _mpnet_attention(
    module: Any, hidden: Tensor, _mask: Any, position_bias: Tensor, **_: Any
) -> tuple[Any]:
    """Attention of MPNet, which transformers does not let others compute."""
    shape = *hidden.shape[:2], module.num_attention_heads, -1
    linears = module.q, module.k, module.v
    states = [linear(hidden).view(shape).transpose(1, 2) for linear in linears]
    context, _nothing = _attend(module, *states, position_bias=position_bias, is_causal=False)
    return (module.o(context.flatten(2)),)


def _open_mpnet(module: Any) -> None:
    """Let :func:`_attend` compute the attention of an MPNet."""
    for layer in module.encoder.layer:
        attention = layer.attention.attn
        attention.forward = partial(_mpnet_attention, attention)
    whole = module.encoder.compute_position_bias

    # it would make a table of (tokens, tokens) for the whole batch as if it were one sequence, and
    # on CPU, for which a GPU waits; that of every length is a part of the longest one
    @cache
    def table() -> Tensor:
        longest = torch.empty(1, module.config.max_position_embeddings, device=module.device)
        biases: Tensor = whole(longest)
        return biases

    def bias(_hidden: Tensor) -> Tensor:
        size = max(running.now.batch.lengths)
        return table()[:, :, :size, :size]

    module.encoder.compute_position_bias = bias


def _bits_differ(packed: PackedModel, batch: PackedBatch, *threads: int) -> bool:
    """True if bits depend on other sequences, or on which of these threads."""
    pieces = torch.split(batch.ids, list(batch.lengths))
    alone = [PackedBatch.of(ids, torch.zeros_like(ids), [len(ids)]) for ids in pieces]

    # layers behind the first one have the same shapes, so that it shows the bits of all; but for
    # mixtures of experts, whose first ones may have none
    experts = any("expert" in name for name, _ in packed.module.named_modules())
    depth = packed.n_layers if experts else 1

    def layer(batches: list[PackedBatch], *, first_only: bool) -> Tensor:
        states: list[Tensor] = []
        for b in batches:
            packed.forward(b, [depth], lambda _, h: states.append(h.clone()), first_only=first_only)
        # in int8 the pooler alone has products of fractions, which know an order of sums
        if first_only and packed.pooler is not None:
            states += [packed.pool(first) for first in states]
        return torch.cat(states)

    before = torch.get_num_threads()
    try:
        # products of first tokens alone have other numbers of rows
        for first_only in (False, True):
            states = []
            for count in sorted({*threads}):  # of one thread there is nothing to compare
                torch.set_num_threads(count)
                states += [layer(batches, first_only=first_only) for batches in ([batch], alone)]
            if not all(states[0].equal(state) for state in states):
                return True
        return False
    finally:
        torch.set_num_threads(before)


def _kernel_of_short(plain: PlainModel, limit: float) -> str:
    """The kernel that short sequences have beside FlashAttention, where it agrees as well."""
    with suppress(Exception):  # it takes neither windows nor grouped keys
        # a model of its own, in which it is the only kernel: the trial is not always short
        packed = PackedModel(plain, attention="efficient")
        if _difference(packed, plain) <= limit:
            return packed.attention
    return ""


def _trial(plain: PlainModel, longest: int = 40) -> PackedBatch:
    names = ("sliding_window", "attention_chunk_size")
    window = max(getattr(plain.module.config, name, None) or 0 for name in names)
    # long enough for a window to hide something, where a family has one
    longest = min(plain.checkpoint.positions, max(longest, 2 * window))
    # equal neighbours, a single token, and lengths that are widened to a multiple of 16 or are not
    return _random(plain, [n for n in (longest, 45, 17, 17, 5, 3, 3, 1) if n <= longest])


def _random(plain: PlainModel, lengths: list[int]) -> PackedBatch:
    """Sequences of random tokens, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = int(plain.module.config.vocab_size)  # config.json may omit it
    ids = torch.randint(vocabulary, (sum(lengths),), generator=generator).to(plain.device)
    return PackedBatch.of(ids, torch.zeros_like(ids), lengths)


def _difference(packed: PackedModel, plain: PlainModel) -> float:
    """Maximum relative L2 difference of a layer between the two forwards; infinite for NaN."""
    batch, layers = _trial(plain), range(packed.n_layers + 1)
    outputs: list[Tensor] = []
    expected: list[Tensor] = []
    packed.forward(batch, layers, lambda _, h: outputs.append(h.float()))
    # the way of first tokens alone has to agree as well
    packed.forward(batch, layers[-1:], lambda _, h: outputs.append(h.float()), first_only=True)
    plain.forward(batch, layers, lambda _, h: expected.append(h.float()))
    last = expected[-1][batch.offsets[:-1]]
    pairs = list(zip(outputs, [*expected, last], strict=True))
    if packed.pooler is not None:
        pairs.append((packed.pool(last.to(packed.dtype)), plain.pool(last.to(packed.dtype))))
    differences = [float((a - b).norm() / b.norm().clamp(min=1e-12)) for a, b in pairs]
    # max() may lose NaN, since every comparison with it is false
    return max(math.inf if math.isnan(d) else d for d in differences)
