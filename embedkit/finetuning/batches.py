"""Batches of texts of similar length, padded to the longest of them, and logits of many texts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Sampler
from transformers import PreTrainedModel

from embedkit.encoding.tokenization import TokenizedText, Window
from embedkit.types import Int64

__all__ = ["LengthSampler", "batches_by_length", "n_seen", "padded", "predict_logits"]

States = Sequence[Sequence[torch.Tensor]]
"""Hidden states ``(tokens, width)`` of every window of every text."""

_BATCHES_SORTED = 50
_PREDICT_TOKENS = 4_096


def n_seen(text: TokenizedText) -> int:
    """Return the number of tokens that a model reads of a text, in all its windows."""
    return sum(len(window.ids) for window in text.windows)


def padded(
    texts: Sequence[TokenizedText],
    pad_id: int,
    lower: States | None = None,
) -> dict[str, torch.Tensor]:
    """Return the windows of texts as a batch ``(windows, tokens)``, padded to the longest of them.

    If a text has several windows, ``windows`` ``(texts,)`` holds the number of windows of each, and
    ``counted`` ``(windows, tokens)`` is 1 for the tokens that are taken from a window. With
    ``lower``, the states of the texts, the batch holds them as ``(windows, tokens, width)``.
    """

    def stacked(rows: Sequence[Any], fill: int) -> torch.Tensor:
        tensors = [torch.from_numpy(row.astype(np.int64)) for row in rows]
        return pad_sequence(tensors, batch_first=True, padding_value=fill)

    windows = [window for text in texts for window in text.windows]
    batch = {
        "input_ids": stacked([window.ids for window in windows], pad_id),
        "token_type_ids": stacked([window.type_ids for window in windows], 0),
        "attention_mask": stacked([np.ones(len(window.ids)) for window in windows], 0),
    }
    if len(windows) > len(texts):
        batch["windows"] = torch.tensor([len(text.windows) for text in texts])
        batch["counted"] = stacked([_counted(window) for window in windows], 0)
    if lower is not None:
        states = [one for of_text in lower for one in of_text]
        batch["lower"] = pad_sequence(states, batch_first=True)
    return batch


def _counted(window: Window) -> Int64:
    found = np.ones(len(window.ids), np.int64)
    if window.owned is not None:
        found[:] = 0
        found[window.owned] = 1
    return found


def predict_logits(
    model: PreTrainedModel, texts: Sequence[TokenizedText], *, pad_id: int, precision: str = "fp32",
    lower: States | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return logits ``(n, outputs)`` float32 on the CPU, in the order of the texts.

    Args:
        model: any model for classification, on its device; it is put into evaluation mode.
        texts: the tokenized texts.
        pad_id: token id to fill with.
        precision: to compute in.
        lower: of a model that takes them, hidden states of the texts as in :func:`padded`.
    """
    device = next(model.parameters()).device
    model.eval()
    takes = inspect.signature(model.forward).parameters
    width = getattr(model.config, "n_outputs", None) or model.config.num_labels
    result = torch.zeros(len(texts), width)
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    with torch.inference_mode(), torch.autocast(device.type, half, enabled=half is not None):
        for index in batches_by_length([n_seen(t) for t in texts], tokens=_PREDICT_TOKENS):
            states = None if lower is None else [lower[i] for i in index]
            batch = padded([texts[i] for i in index], pad_id, states)
            given = {name: value.to(device) for name, value in batch.items() if name in takes}
            result[torch.from_numpy(index)] = model(**given).logits.float().cpu()
    return result


def batches_by_length(lengths: Sequence[int], *, tokens: int) -> Iterator[Int64]:
    """Yield indices of texts of similar length that have at most ``tokens`` with padding."""
    order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
    start = 0
    while start < len(order):
        count = max(tokens // max(lengths[order[start]], 1), 1)
        yield order[start : start + count]
        start += count


class LengthSampler(Sampler[int]):
    """Order of an epoch, by seed and epoch alone; neighbours have similar lengths."""

    def __init__(self, lengths: Int64, batch: int, seed: int) -> None:
        self._lengths, self._batch, self._seed, self._epoch = lengths, batch, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order follows."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng([self._seed, self._epoch])
        order = random.permutation(len(self._lengths))
        whole, batches = len(order) // self._batch * self._batch, []
        step = self._batch * _BATCHES_SORTED
        for start in range(0, whole, step):
            some = order[start : min(start + step, whole)]
            some = some[np.argsort(self._lengths[some], kind="stable")]
            batches += np.split(some, len(some) // self._batch)
        random.shuffle(batches)
        yield from (int(i) for batch in [*batches, order[whole:]] for i in batch)
