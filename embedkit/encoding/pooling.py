"""Hidden states → vectors, by functions on packed tokens.

Packed means that sequences are concatenated without padding: ``hidden`` is ``(tokens, width)``,
and ``offsets`` ``(sequences,)`` are their starts. Sums are in float32 whatever the dtype of
``hidden``, per sequence in token order, so a result does not depend on the other sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial, reduce
from pickle import UnpicklingError
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import embedding_bag

from embedkit.choices import Pooling
from embedkit.encoding.checkpoint import Checkpoint, check_pickle
from embedkit.encoding.products import BY_ONEDNN, filled, hasten
from embedkit.errors import DamagedModelError
from embedkit.scale import threads_limited, undisturbed
from embedkit.types import Float32, Int64


class PackedTokens(NamedTuple):
    """Positions of the sequences in the hidden states of a batch."""

    first: Tensor  # (sequences,) row of the first token
    counted: Tensor  # rows of the tokens to pool, sequence after sequence
    offsets: Tensor  # (sequences,) start of each sequence in counted
    head: Callable[[Tensor], Tensor]  # the pooler: first tokens of the last layer to vectors


class Pooler(NamedTuple):
    """One kind of pooling: from the hidden states of sequences to the vectors of texts."""

    pool: Callable[[Tensor, PackedTokens], Tensor]
    """Vectors of sequences, ``(sequences, width)`` float32, or undivided sums.

    The hidden states are ``(all_tokens, width)``; float32 for poolings that read all tokens.
    """
    combine: Callable[[Float32, Int64, Int64], Float32]
    """Vectors of texts from those of their windows, ``(windows, width)``.

    The two others are the first window of each text, and the counted tokens of each window. Where
    each text has one window, the result may take the place of the input.
    """
    reads_all: bool = True  # other tokens than the first ones
    width: int | None = None  # of its vectors; None: that of the hidden states


def _first(hidden: Tensor, tokens: PackedTokens) -> Tensor:
    return hidden[tokens.first].float()


def _head(hidden: Tensor, tokens: PackedTokens) -> Tensor:
    return tokens.head(hidden[tokens.first])


def _sum(hidden: Tensor, tokens: PackedTokens) -> Tensor:
    # one call for sequences of all lengths, and each is summed in token order whatever the batch.
    # Sums are not divided here: of a text in several windows the mean is over tokens, not windows
    return embedding_bag(tokens.counted, hidden.float(), tokens.offsets, mode="sum")


def _max(hidden: Tensor, tokens: PackedTokens) -> Tensor:
    chosen, values, offsets = tokens.counted, hidden.float(), tokens.offsets
    highest = embedding_bag(chosen, values, offsets, mode="max")
    # a sum is NaN if any of its values is
    total = embedding_bag(chosen, values, offsets, mode="sum")
    return torch.where(total.isnan(), total, highest)  # the maximum alone ignores NaN


def _last(hidden: Tensor, tokens: PackedTokens) -> Tensor:
    if not len(tokens.counted):
        return hidden.new_zeros(len(tokens.offsets), hidden.shape[1])
    # one end for each sequence: where the next one starts, or the last one stops
    ends = torch.cat([tokens.offsets[1:], tokens.offsets.new_full((1,), len(tokens.counted))])
    # an empty sequence has no last token; it reads any row, which the next line turns to zeros
    vectors = hidden[tokens.counted[(ends - 1).clamp(min=0)]]
    return torch.where((ends > tokens.offsets).unsqueeze(1), vectors, 0)


def _mean_of_windows(values: Float32, first: Int64, _counts: Int64) -> Float32:
    return _divided(_by_text(np.add, values, first), np.diff(first, append=len(values)))


def _mean_of_tokens(values: Float32, first: Int64, counts: Int64) -> Float32:
    return _divided(_by_text(np.add, values, first), np.add.reduceat(counts, first))


def _highest(values: Float32, first: Int64, _counts: Int64) -> Float32:
    # each of several windows has counted tokens
    return _by_text(np.maximum, values, first)


def _last_window(values: Float32, first: Int64, _counts: Int64) -> Float32:
    # the window before the next text's first one; the end follows the first windows and not those
    # behind the first text, so that no text has no window
    return np.asarray(values[np.append(first, len(values))[1:] - 1])


POOLERS: dict[Pooling, Pooler] = {
    Pooling.CLS: Pooler(_first, _mean_of_windows, reads_all=False),
    Pooling.MEAN: Pooler(_sum, _mean_of_tokens),
    Pooling.MAX: Pooler(_max, _highest),
    Pooling.LAST_TOKEN: Pooler(_last, _last_window),
    Pooling.POOLER: Pooler(_head, _mean_of_windows, reads_all=False),
}
"""The implementation of each pooling; ``sentence`` is made for each checkpoint."""


def _by_text(operation: np.ufunc, values: Float32, first: Int64) -> Float32:
    """Sums or maxima over the windows of each text; without windows nothing is copied."""
    # reduceat wants at least one window for each text, and every text has one
    return values if len(first) == len(values) else operation.reduceat(values, first)


def _divided(sums: Float32, counts: Int64) -> Float32:
    """Sums divided by counts, in place."""
    # a text without counted tokens has sums of 0, and stays at 0
    sums /= np.maximum(counts, 1).astype(np.float32)[:, None]
    return sums


def combine_layers(hidden_states: Sequence[Tensor], combination: str | None) -> Tensor:
    """One layer, or the sum, mean or concatenation of several, in float32 token by token."""
    if combination is None:
        return hidden_states[0]
    if combination == "concat":
        return torch.cat(list(hidden_states), dim=-1)
    # one after the other: the sum of a token depends on nothing but its own states
    total = reduce(torch.add, (hidden.float() for hidden in hidden_states))
    return total / len(hidden_states) if combination == "mean" else total


def pool_words(vectors: Float32, starts: Int64, subtokens: str) -> Float32:
    """Vectors of words, ``(words, width)`` float32, from those of their sub-tokens.

    ``starts`` is the first row of each word, ``subtokens`` one of
    :data:`~embedkit.choices.SUBTOKENS`; ``first_last`` is the mean of both.
    """
    lengths = np.diff(np.append(starts, len(vectors)))
    first, last = vectors[starts], vectors[starts + lengths - 1]
    if subtokens == "first":
        return first
    if subtokens == "last":
        return last
    if subtokens == "first_last":
        return ((first + last) * np.float32(0.5)).astype(np.float32)
    rows = torch.arange(len(vectors), device="cpu")
    sums = embedding_bag(rows, torch.from_numpy(vectors), torch.from_numpy(starts), mode="sum")
    return _divided(sums.numpy(), lengths)


@undisturbed()
def sentence_pooler(checkpoint: Checkpoint) -> Pooler:
    """The sentence vector that a checkpoint defines: a pooling, then modules with weights."""
    base, width = POOLERS[checkpoint.definition.pooling], checkpoint.width
    steps: list[Callable[[Tensor], Tensor]] = []
    for module in checkpoint.definition.modules:
        if module.kind == "Normalize":
            steps.append(partial(functional.normalize, dim=-1))
            continue
        config, folder = module.config, checkpoint.folder / module.folder
        try:
            if (folder / "model.safetensors").is_file():
                weights = load_file(folder / "model.safetensors")
            else:
                check_pickle(checkpoint.name, f"{module.folder}/pytorch_model.bin")
                # the restricted reader, which runs no code of the file
                weights = torch.load(folder / "pytorch_model.bin", weights_only=True)
            sizes = config["in_features"], config["out_features"], config.get("bias", True)
            linear = nn.Linear(*sizes, device="meta")  # a file may state any size
            # sentence-transformers saves the layer inside of a module
            state = {name.removeprefix("linear."): w for name, w in weights.items()}
            linear.load_state_dict(state, assign=True)
            # the last part of a name such as torch.nn.modules.activation.Tanh; inventory lets
            # torch.nn alone pass
            activation = config.get("activation_function", "Tanh").rpartition(".")[2]
            # eval, since dropout and others draw random numbers in training
            dense = nn.Sequential(linear.float(), getattr(nn, activation)().eval())
            # tried, since it has to take what comes before it, and some activations halve it
            width = dense(torch.zeros(1, width)).shape[1]
            if not all(weight.isfinite().all() for weight in linear.parameters()):
                raise ValueError("its weights hold NaN or infinity")
            hasten(dense)
            steps.append(dense)
        except Exception as error:  # of the readers of both formats
            # PyTorch says on further lines which weights are meant
            problem = " ".join(str(error).split()).rstrip(".")
            # torch's message advises to load the file anyway
            if isinstance(error, UnpicklingError):
                problem = "pytorch_model.bin is damaged, or holds other things than tensors"
            raise DamagedModelError(
                f"{checkpoint.name}: {folder} cannot be used ({problem})."
            ) from error
    if dims := checkpoint.definition.dims:
        steps.append(lambda vectors: vectors[:, :dims])
        width = min(dims, width)

    @undisturbed()
    def combine(values: Float32, first: Int64, counts: Int64) -> Float32:
        # modules run once for each text, after its windows are one vector, on the host in float32
        vectors = torch.from_numpy(base.combine(values, first, counts))
        # as batches are computed where threads would change the order of sums
        threads = nullcontext() if BY_ONEDNN else threads_limited(1)
        with torch.inference_mode(), threads:
            # filled: products of few rows have other bits, which would depend on the texts beside
            return reduce(lambda x, step: step(x), steps, filled(vectors))[: len(vectors)].numpy()

    return base._replace(combine=combine, width=width)
