"""Pooling functions against numbers worked out by hand or by plain NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from embedkit.choices import SUBTOKENS, Pooling
from embedkit.encoding.pooling import (
    POOLERS,
    PackedTokens,
    combine_layers,
    max_tokens,
    pool_words,
    sum_tokens,
)

HIDDEN = torch.tensor([[1.0, 5.0], [2.0, -4.0], [3.0, 0.0], [-1.0, -2.0], [-3.0, -6.0]])
OFFSETS = torch.tensor([0, 3])
ALL = torch.arange(5)


def test_first_and_last() -> None:
    chosen, offsets = torch.tensor([1, 2, 4]), torch.tensor([0, 2])
    tokens = PackedTokens(first=OFFSETS, counted=chosen, offsets=offsets, head=torch.neg)
    assert POOLERS[Pooling.CLS].pool(HIDDEN, tokens).tolist() == [[1, 5], [-1, -2]]
    assert POOLERS[Pooling.LAST_TOKEN].pool(HIDDEN, tokens).tolist() == [[3, 0], [-3, -6]]
    none = replace(tokens, offsets=torch.tensor([0, 3]))
    assert POOLERS[Pooling.LAST_TOKEN].pool(HIDDEN, none).tolist() == [[-3, -6], [0, 0]]


def test_sum() -> None:
    assert sum_tokens(HIDDEN, ALL, OFFSETS).tolist() == [[6, 1], [-4, -8]]


def test_max() -> None:
    assert max_tokens(HIDDEN, ALL, OFFSETS).tolist() == [[3, 5], [-1, -2]]


def test_chosen_tokens_only() -> None:
    chosen, offsets = torch.tensor([1, 2, 4]), torch.tensor([0, 2])
    assert sum_tokens(HIDDEN, chosen, offsets).tolist() == [[5, -4], [-3, -6]]
    assert max_tokens(HIDDEN, chosen, offsets).tolist() == [[3, 0], [-3, -6]]


def test_no_tokens_at_all() -> None:
    chosen, offsets = torch.tensor([3, 4]), torch.tensor([0, 0])
    assert sum_tokens(HIDDEN, chosen, offsets).tolist() == [[0, 0], [-4, -8]]
    assert max_tokens(HIDDEN, chosen, offsets).tolist() == [[0, 0], [-1, -2]]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("pool", [sum_tokens, max_tokens])
def test_nan_is_never_hidden(pool: Any, place: int) -> None:
    hidden = HIDDEN.clone()
    hidden[place, 1] = float("nan")
    pooled = pool(hidden, ALL, OFFSETS)
    assert pooled.isnan().tolist() == [[False, True], [False, False]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    hidden = torch.ones((4099, 1), dtype=dtype)
    total = sum_tokens(hidden, torch.arange(4099), torch.tensor([0]))
    assert total.dtype == torch.float32
    assert total.item() == 4099  # which half precision does not have


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=8),
    st.integers(1, 5),
    st.integers(0, 2**32 - 1),
)
def test_against_numpy(lengths: list[int], width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((sum(lengths) + 1, width)).astype(np.float32)
    tokens = rng.permutation(len(hidden))[: sum(lengths)]
    starts = np.cumsum(lengths) - lengths
    arguments = (torch.from_numpy(hidden), torch.from_numpy(tokens), torch.from_numpy(starts))
    sums, maxima = sum_tokens(*arguments).numpy(), max_tokens(*arguments).numpy()
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        chosen = hidden[tokens[start : start + length]]
        np.testing.assert_allclose(sums[row], chosen.sum(0, np.float64), rtol=1e-5, atol=1e-5)
        wanted = chosen.max(0) if length else np.zeros(width)
        np.testing.assert_array_equal(maxima[row], wanted)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_neighbours_do_not_change_a_bit(lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    hidden = torch.from_numpy(rng.standard_normal((sum(lengths), 3)).astype(np.float32))
    starts = np.cumsum(lengths) - lengths
    together = sum_tokens(hidden, torch.arange(len(hidden)), torch.from_numpy(starts))
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        alone = sum_tokens(hidden[start : start + length], torch.arange(length), torch.tensor([0]))
        assert torch.equal(together[row], alone[0])


def test_combinations_of_layers() -> None:
    one, two = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 6.0]])
    assert combine_layers([one], None).tolist() == [[1, 2]]
    assert combine_layers([one, two], "sum").tolist() == [[4, 8]]
    assert combine_layers([one, two], "mean").tolist() == [[2, 4]]
    assert combine_layers([one, two], "concat").tolist() == [[1, 2, 3, 6]]


def test_layers_are_added_in_float32_and_left_as_they_were() -> None:
    half = torch.tensor([[1.0]], dtype=torch.bfloat16)
    small = torch.tensor([[0.001]], dtype=torch.bfloat16)
    total = combine_layers([half, small], "sum")
    assert total.dtype == torch.float32
    assert total.item() == 1 + float(small)
    assert half.item() == 1


WORDS = np.array([[1, 2], [3, 4], [5, 9], [7, 7]], np.float32)


@pytest.mark.parametrize(
    ("subtokens", "vectors"),
    [
        ("first", [[1, 2], [7, 7]]),
        ("last", [[5, 9], [7, 7]]),
        ("first_last", [[3, 5.5], [7, 7]]),
        ("mean", [[3, 5], [7, 7]]),
    ],
)
def test_words(subtokens: str, vectors: list[list[float]]) -> None:
    pooled = pool_words(WORDS, np.array([0, 3]), subtokens)
    assert pooled.dtype == np.float32
    assert pooled.tolist() == vectors


def test_words_by_an_unknown_mode() -> None:
    with pytest.raises(ValueError, match="subtokens='middle': expected first, last"):
        pool_words(WORDS, np.array([0]), "middle")


@given(
    arrays(np.float32, st.tuples(st.integers(1, 12), st.integers(1, 3)),
           elements=st.floats(-100, 100, width=32)),
    st.sampled_from(SUBTOKENS),
)  # fmt: skip
def test_words_of_one_token_are_that_token(vectors: NDArray[np.float32], subtokens: str) -> None:
    starts = np.arange(len(vectors))
    np.testing.assert_array_equal(pool_words(vectors, starts, subtokens), vectors)


@pytest.mark.parametrize("subtokens", SUBTOKENS)
def test_no_words(subtokens: str) -> None:
    nothing = np.zeros((0, 4), np.float32)
    assert pool_words(nothing, np.zeros(0, np.int64), subtokens).shape == (0, 4)


def test_every_pooling_is_implemented() -> None:
    assert set(POOLERS) == set(Pooling)
