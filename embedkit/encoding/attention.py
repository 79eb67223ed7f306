"""Attention inside each sequence of a batch without padding, by the kernels that a device has.

On CUDA one kernel takes sequences of any lengths; elsewhere neighbouring sequences of equal length,
which a batch sorted by length has many of, form a dense view without a mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from embedkit.encoding.device import computes_bf16
from embedkit.encoding.model import PackedBatch

__all__ = ["KERNELS", "Spans", "attention_kinds", "key_length", "length_runs"]

Attend = Callable[[Tensor, "Spans", int], Tensor]
AttendFirst = Callable[[Tensor, Tensor, "Spans", int], Tensor]

_QUERIES = 4
"""On CPU the query of a first token is repeated so many times. Products of fewer than four rows are
summed in an order that depends, on some processors, on the number of threads or on which of them
computes it."""


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


class Spans:
    """Where the sequences of a batch are, in the forms that attention takes.

    Args:
        batch: the sequences.
        widen: whether keys are filled up to :func:`key_length`.
        together: whether sequences of equal length attend in one call.
    """

    def __init__(self, batch: PackedBatch, *, widen: bool, together: bool) -> None:
        self.batch, self.widen, self._together = batch, widen, together
        self.longest = max(batch.lengths)

    @cached_property
    def runs(self) -> list[tuple[int, int, int]]:
        """As :func:`length_runs`."""
        return length_runs(self.batch.lengths, together=self._together)

    @cached_property
    def ends(self) -> Tensor:
        """``(sequences + 1,)`` int32, as kernels of CUDA take the offsets."""
        return self.batch.offsets.int()

    @cached_property
    def each(self) -> Tensor:
        """``(sequences + 1,)`` int32, the offsets of one token per sequence."""
        offsets = self.batch.offsets
        return torch.arange(len(offsets), dtype=torch.int32, device=offsets.device)


def length_runs(lengths: Sequence[int], *, together: bool = True) -> list[tuple[int, int, int]]:
    """Runs of neighbouring sequences of equal length: (first token, sequences, length).

    Unless ``together``, every sequence is a run.
    """
    runs = []
    start = 0
    for length, equal in groupby(lengths):
        count = len(list(equal))
        for size in [count] if together else [1] * count:
            runs.append((start, size, length))
            start += size * length
    return runs


def key_length(length: int) -> int:
    """Keys and values that attention on CPU reads for a sequence of so many tokens.

    The kernel is up to twice as fast when their number is a multiple of its vector width. What
    follows a sequence is there anyway, and a mask takes it out again without cost.
    """
    return length if length < 5 or length % 16 < 3 else -(-length // 16) * 16


def _attend_runs(qkv: Tensor, spans: Spans, heads: int) -> Tensor:
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
    context[len(spans.batch.ids) :] = 0
    return context


def _attend_first_runs(query: Tensor, pairs: Tensor, spans: Spans, heads: int) -> Tensor:
    """Attention of one query per sequence, ``(sequences, width)``, on ``(tokens, 2 * width)``."""
    width = query.shape[1]
    context = torch.zeros_like(query)
    times = _QUERIES if query.device.type == "cpu" else 1
    sequence = 0
    for start, count, length in spans.runs:
        view = pairs[start : start + count * length].view(count, length, 2, heads, width // heads)
        key, value = view.permute(2, 0, 3, 1, 4).unbind(0)
        asked = query[sequence : sequence + count].view(count, heads, 1, width // heads)
        result = scaled_dot_product_attention(asked.repeat(1, 1, times, 1), key, value)
        context[sequence : sequence + count] = result[:, :, 0].reshape(count, width)
        sequence += count
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


@lru_cache(maxsize=1024)
def _mask(length: int, keys: int, dtype: torch.dtype) -> Tensor:
    """``(1, 1, 1, keys)``: 0 for the keys of the sequence, minus infinity for those after it."""
    mask = torch.zeros(1, 1, 1, keys, dtype=dtype)
    mask[..., length:] = -math.inf
    return mask


def _varlen(query: Tensor, key: Tensor, value: Tensor, *ends: Any) -> Tensor:
    """FlashAttention: half precision, compute capability 8.0, heads of up to 256 by eights.

    Takes ``(tokens, heads, size)`` each; ``ends`` are those of the queries and of the keys,
    ``(sequences + 1,)`` int32, and the tokens of the longest sequence of each.
    """
    from torch.nn.attention.varlen import varlen_attn

    # only what every version of torch takes: 2.11 and 2.13 have other keywords
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


def _by(kernel: Callable[..., Tensor]) -> tuple[Attend, AttendFirst]:
    """Attention of all tokens and of the first ones, by a kernel for sequences of any lengths."""

    def attend(qkv: Tensor, spans: Spans, heads: int) -> Tensor:
        query, key, value = qkv.view(len(qkv), 3, heads, -1).unbind(1)
        ends, longest = spans.ends, spans.longest
        return kernel(query, key, value, ends, ends, longest, longest).reshape(len(qkv), -1)

    def attend_first(query: Tensor, pairs: Tensor, spans: Spans, heads: int) -> Tensor:
        key, value = pairs.view(len(pairs), 2, heads, -1).unbind(1)
        rows = query.view(len(query), heads, -1)
        context = kernel(rows, key, value, spans.each, spans.ends, 1, spans.longest)
        return context.reshape(len(query), -1)

    return attend, attend_first


KERNELS: dict[str, tuple[Attend, AttendFirst]] = {
    "varlen": _by(_varlen),
    "efficient": _by(_efficient),
    "runs": (_attend_runs, _attend_first_runs),
}
