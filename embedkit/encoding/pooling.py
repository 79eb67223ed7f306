"""Hidden states → vectors; pure functions on packed tokens.

Packed means that the tokens of several sequences stand one after the other without padding:
``hidden`` is ``(tokens, width)``, and ``offsets`` ``(sequences,)`` says where each begins. All sums
are taken in float32 whatever the dtype of ``hidden``. Every sequence is summed by itself in token
order, so its result does not depend on what stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

__all__ = ["SUBTOKENS", "combine_layers", "first_tokens", "max_tokens", "pool_words", "sum_tokens"]

SUBTOKENS = ("first", "last", "first_last", "mean")
"""How the sub-tokens of a word become one vector."""


def first_tokens(hidden: Tensor, offsets: Tensor) -> Tensor:
    """The first token of every sequence: ``(sequences, width)`` float32."""
    return hidden[offsets].float()


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


def pool_words(
    vectors: NDArray[np.float32], starts: NDArray[np.int64], subtokens: str
) -> NDArray[np.float32]:
    """Vectors of words from those of their sub-tokens.

    Args:
        vectors: ``(sub_tokens, width)`` float32, word after word.
        starts: ``(words,)``, where each word begins.
        subtokens: ``first``, ``last``, ``first_last`` (mean of both) or ``mean``.

    Returns:
        ``(words, width)`` float32.
    """
    lengths = np.diff(np.append(starts, len(vectors)))
    first, last = vectors[starts], vectors[starts + lengths - 1]
    if subtokens == "first":
        return first
    if subtokens == "last":
        return last
    if subtokens == "first_last":
        return ((first + last) * np.float32(0.5)).astype(np.float32)
    if subtokens != "mean":
        raise ValueError(f"subtokens={subtokens!r}: expected one of {', '.join(SUBTOKENS)}")
    rows = torch.arange(len(vectors))
    sums = embedding_bag(rows, torch.from_numpy(vectors), torch.from_numpy(starts), mode="sum")
    return np.asarray(sums.numpy() / lengths[:, None].astype(np.float32), dtype=np.float32)
