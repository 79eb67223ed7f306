"""Hidden states → vectors; pure functions on packed tokens.

Packed means that the tokens of several sequences follow one another without padding:
``hidden`` is ``(tokens, width)``, and ``offsets`` ``(sequences,)`` is where each begins. All sums
are taken in float32 whatever the dtype of ``hidden``. Every sequence is summed by itself in token
order, so its result does not depend on what is beside it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from embedkit.choices import SUBTOKENS, Pooling, check_choice
from embedkit.types import Float32, Int64

__all__ = [
    "POOLERS",
    "PackedTokens",
    "Pooler",
    "combine_layers",
    "max_tokens",
    "pool_words",
    "sum_tokens",
]


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """Where the tokens of each sequence are in the hidden states of a batch.

    Attributes:
        first: ``(sequences,)`` int64, row of the first token.
        counted: ``(chosen,)`` int64, rows of the tokens that poolings over tokens count,
            sequence after sequence.
        offsets: ``(sequences,)`` int64, where each sequence begins in ``counted``.
        head: the checkpoint's own pooler: first tokens of the last layer to vectors.
    """

    first: Tensor
    counted: Tensor
    offsets: Tensor
    head: Callable[[Tensor], Tensor]


class Pooler(ABC):
    """One kind of pooling: from the hidden states of sequences to the vectors of texts.

    Attributes:
        reads_all: whether it reads more of a layer than the first tokens.
    """

    reads_all = True

    @abstractmethod
    def pool(self, hidden: Tensor, tokens: PackedTokens) -> Tensor:
        """Vectors of sequences, ``(sequences, width)`` float32, or sums still to be divided.

        Args:
            hidden: ``(all_tokens, width)``; float32 for poolings that read all of it.
            tokens: where the sequences are.
        """

    def combine(self, values: Float32, first: Int64, counts: Int64) -> Float32:
        """Vectors of texts from those of their windows; by default the mean over the windows.

        Args:
            values: ``(windows, width)``, text after text.
            first: ``(texts,)``, the first window of each text.
            counts: ``(windows,)``, tokens counted in each.
        """
        return _divided(np.add.reduceat(values, first), np.diff(first, append=len(values)))

    def finish(self, values: Float32, counts: Int64) -> Float32:
        """Vectors of texts that are one sequence each, in place; by default as they are."""
        return values


class _Cls(Pooler):
    reads_all = False

    def pool(self, hidden: Tensor, tokens: PackedTokens) -> Tensor:
        return hidden[tokens.first].float()


class _Head(Pooler):
    reads_all = False

    def pool(self, hidden: Tensor, tokens: PackedTokens) -> Tensor:
        return tokens.head(hidden[tokens.first])


class _Mean(Pooler):
    """Sums per window, divided when the windows of a text are together."""

    def pool(self, hidden: Tensor, tokens: PackedTokens) -> Tensor:
        return sum_tokens(hidden, tokens.counted, tokens.offsets)

    def combine(self, values: Float32, first: Int64, counts: Int64) -> Float32:
        return _divided(np.add.reduceat(values, first), np.add.reduceat(counts, first))

    def finish(self, values: Float32, counts: Int64) -> Float32:
        return _divided(values, counts)


class _Max(Pooler):
    def pool(self, hidden: Tensor, tokens: PackedTokens) -> Tensor:
        return max_tokens(hidden, tokens.counted, tokens.offsets)

    def combine(self, values: Float32, first: Int64, counts: Int64) -> Float32:
        # every one of several windows has tokens that count
        return np.asarray(np.maximum.reduceat(values, first), np.float32)


class _LastToken(Pooler):
    """Of a text in several windows, the last token of the last one."""

    def pool(self, hidden: Tensor, tokens: PackedTokens) -> Tensor:
        if not len(tokens.counted):
            return hidden.new_zeros(len(tokens.offsets), hidden.shape[1])
        ends = torch.cat([tokens.offsets[1:], tokens.offsets.new_full((1,), len(tokens.counted))])
        vectors = hidden[tokens.counted[(ends - 1).clamp(min=0)]]
        return torch.where((ends > tokens.offsets).unsqueeze(1), vectors, 0)

    def combine(self, values: Float32, first: Int64, counts: Int64) -> Float32:
        return np.asarray(values[np.append(first[1:], len(values)) - 1])


POOLERS: dict[Pooling, Pooler] = {
    Pooling.CLS: _Cls(),
    Pooling.MEAN: _Mean(),
    Pooling.MAX: _Max(),
    Pooling.LAST_TOKEN: _LastToken(),
    Pooling.POOLER: _Head(),
}
"""The implementation of each pooling; its keys are :class:`~embedkit.choices.Pooling`."""


def _divided(sums: Float32, counts: Int64) -> Float32:
    """Sums divided by how many there were, in place."""
    sums /= np.maximum(counts, 1).astype(np.float32)[:, None]
    return sums


def sum_tokens(hidden: Tensor, tokens: Tensor, offsets: Tensor) -> Tensor:
    """Sum of chosen tokens of every sequence.

    Args:
        hidden: ``(all_tokens, width)``.
        tokens: ``(chosen,)`` int64, rows of ``hidden``, sequence after sequence.
        offsets: ``(sequences,)`` int64, where each sequence begins in ``tokens``.

    Returns:
        ``(sequences, width)`` float32; zeros for a sequence without chosen tokens.
    """
    return embedding_bag(tokens, hidden.float(), offsets, mode="sum")


def max_tokens(hidden: Tensor, tokens: Tensor, offsets: Tensor) -> Tensor:
    """Maximum of each coordinate over chosen tokens; arguments and shape as :func:`sum_tokens`."""
    values = hidden.float()
    highest = embedding_bag(tokens, values, offsets, mode="max")
    total = embedding_bag(tokens, values, offsets, mode="sum")
    return torch.where(total.isnan(), total, highest)  # the maximum alone passes over NaN


def combine_layers(hidden_states: Sequence[Tensor], combination: str | None) -> Tensor:
    """One layer, or the sum, mean or concatenation of several, in float32 token by token."""
    if combination is None:
        return hidden_states[0]
    if combination == "concat":
        return torch.cat(list(hidden_states), dim=-1)
    total = hidden_states[0].float()
    for hidden in hidden_states[1:]:
        total = total + hidden.float()
    return total / len(hidden_states) if combination == "mean" else total


def pool_words(vectors: Float32, starts: Int64, subtokens: str) -> Float32:
    """Vectors of words from those of their sub-tokens.

    Args:
        vectors: ``(sub_tokens, width)`` float32, word after word.
        starts: ``(words,)``, where each word begins.
        subtokens: ``first``, ``last``, ``first_last`` (mean of both) or ``mean``.

    Returns:
        ``(words, width)`` float32.

    Raises:
        UsageError: ``subtokens`` is unknown.
    """
    check_choice(SUBTOKENS, subtokens=subtokens)
    lengths = np.diff(np.append(starts, len(vectors)))
    first, last = vectors[starts], vectors[starts + lengths - 1]
    if subtokens == "first":
        return first
    if subtokens == "last":
        return last
    if subtokens == "first_last":
        return ((first + last) * np.float32(0.5)).astype(np.float32)
    rows = torch.arange(len(vectors))
    sums = embedding_bag(rows, torch.from_numpy(vectors), torch.from_numpy(starts), mode="sum")
    return _divided(sums.numpy(), lengths)
