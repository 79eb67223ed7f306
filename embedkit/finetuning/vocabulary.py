"""The part of a vocabulary that a corpus uses, which is all that has to be trained.

Of a multilingual encoder four fifths of the weights are embeddings of tokens that no text of the
corpus contains. Their gradient is zero in every step, but it is computed, its norm is taken, and
AdamW goes through them with two moments each. Weight decay alone changes them, all by one factor.

While a fold is trained, the embedding matrix therefore holds the rows of the tokens that occur, and
one more row, of ones, that no text refers to::

    rows of the vocabulary          0  1  2  3  4  5  6  7 …
    tokens that occur               0     2        5
    rows that are trained           0     1        2           3: ones

The optimizer decays the last row like any other that has no gradient, whatever the schedule, the
skipped steps and the interruptions: what is left of its ones is the factor of all the rows that
stayed behind. :meth:`OccurringRows.restore` puts the whole matrix together again. It is the one
that training of all rows gives, but for the rounding of a product in place of one by one.

The tokens are mapped where the layer is entered and not in the batches, since some families count
positions from the padding token's id.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from embedkit.types import Int64


def embedding_layer(encoder: PreTrainedModel) -> nn.Embedding | None:
    """Return the layer of an encoder that has a row for each token; ``None`` if it is unusual."""
    try:
        layer = encoder.get_input_embeddings()
    except NotImplementedError:
        return None
    # others may look their tokens up in another way: their matrix stays whole
    usual = isinstance(layer, nn.Embedding) and isinstance(layer.weight, nn.Parameter)
    return layer if usual else None


class OccurringRows:
    """The rows of a layer's tokens that occur, in the place of all its rows.

    Args:
        layer: of :func:`embedding_layer`. Its matrix is kept and not changed.
        ids: tokens of all texts that the layer will meet, in any order.
        device: where the layer will be.
    """

    def __init__(self, layer: nn.Embedding, ids: Int64, device: torch.device) -> None:
        self._layer, self._whole, self._padding = layer, layer.weight, layer.padding_idx
        # padding tokens are in batches, not in texts
        padding = [] if layer.padding_idx is None else [layer.padding_idx]
        self._rows = torch.from_numpy(np.union1d(ids, np.array(padding, np.int64)))
        place = torch.full((len(self._whole),), -1)  # another token would be an error
        place[self._rows] = torch.arange(len(self._rows))
        if padding:
            # this row gets no gradient, so the layer has to know where it is now
            layer.padding_idx = int(place[padding[0]])
        # where the batches are: looking up on the CPU would make each step wait
        place = place.to(device)

        def enter(_: nn.Module, inputs: Any) -> tuple[Tensor, ...]:
            return (place[inputs[0]], *inputs[1:])

        self._entered = layer.register_forward_pre_hook(enter)
        # indexing copies: the matrix of the checkpoint, which other folds share, is never written
        # to
        rows = self._whole.detach()[self._rows]
        layer.weight = nn.Parameter(torch.cat([rows, torch.ones_like(rows[:1])]))

    def restore(self) -> None:
        """Give the layer all its rows, as training has left them."""
        trained = self._layer.weight.detach()
        # rows that stayed behind have decayed as the row of ones has
        whole = self._whole.detach().to(trained.device) * trained[-1]
        whole[self._rows.to(trained.device)] = trained[:-1]
        self._entered.remove()
        self._layer.padding_idx = self._padding
        self._layer.weight = nn.Parameter(whole)
