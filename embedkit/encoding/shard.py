"""One shard: its sequences sorted, batched, run, and put back in the order of its texts.

Which batches are made depends on the shard alone, so the same shard gives the same bits again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from embedkit.encoding.device import Link, Mark, is_out_of_memory
from embedkit.encoding.model import PackedBatch, PlainModel
from embedkit.encoding.packed import ROWS, PackedModel
from embedkit.encoding.pooling import POOLERS, PackedTokens, combine_layers
from embedkit.encoding.tokenization import TokenizedText, Window
from embedkit.encoding.views import LayerSpec, View
from embedkit.errors import EncodeError

__all__ = ["Sequences", "ShardRun", "ShardVectors", "cut_batches", "unique_sequences"]

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ShardVectors:
    """Vectors of the texts of one shard, in their order.

    Attributes:
        views: ``(texts, width)`` float32 for every view, by column name.
        tokens: ``(all kept tokens, width)`` float32 for every token layer, by layer name;
            text after text, in the order of :class:`~embedkit.encoding.tokenization.TokenizedText`.
        encoded: texts or windows that went through the model, repeated ones once.
        splits: batches that were halved because memory ran out.
        seconds: working time of the host that gives out the batches or of the device that runs
            them, whichever is longer.
    """

    views: dict[str, Floats]
    tokens: dict[str, Floats]
    encoded: int
    splits: int
    seconds: float


@dataclass(slots=True)
class Sequences:
    """The different sequences of a shard, and which text uses which.

    Attributes:
        windows: the sequences.
        kept: for each, the positions that ``mean`` and ``max`` count, or ``None`` for all.
        used: ``(windows of all texts,)`` index of the sequence, text after text.
        per_text: number of windows of each text.
    """

    windows: list[Window] = field(default_factory=list)
    kept: list[NDArray[np.int64] | None] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    per_text: list[int] = field(default_factory=list)


def unique_sequences(texts: Sequence[TokenizedText], *, special_tokens: bool) -> Sequences:
    """Find equal sequences: same ids, same segments, same tokens counted."""
    found: dict[tuple[bytes, bytes, bytes], int] = {}
    result = Sequences()
    for text in texts:
        result.per_text.append(len(text.windows))
        for window in text.windows:
            kept = _counted(text, window, special_tokens=special_tokens)
            counted = b"all" if kept is None else kept.tobytes()
            key = (window.ids.tobytes(), window.type_ids.tobytes(), counted)
            index = found.setdefault(key, len(result.windows))
            if index == len(result.windows):
                result.windows.append(window)
                result.kept.append(kept)
            result.used.append(index)
    return result


def _counted(
    text: TokenizedText, window: Window, *, special_tokens: bool
) -> NDArray[np.int64] | None:
    """Positions in the window that ``mean`` and ``max`` run over; ``None`` for all."""
    if window.owned is None:
        return None if special_tokens else np.flatnonzero(~text.special)
    if special_tokens or window.places is None:
        return window.owned.astype(np.int64)
    return window.owned[~text.special[window.places]].astype(np.int64)


class ShardRun:
    """One shard: its sequences in order of length on the model's device, and its results."""

    def __init__(
        self,
        model: PlainModel | PackedModel,
        link: Link,
        sequences: Sequences,
        *,
        views: Sequence[View],
        token_layers: Sequence[LayerSpec],
        batch_tokens: int,
        on_tokens: Callable[[int], None],
    ) -> None:
        self._began = time.perf_counter()
        self._model = model
        self._link = link
        self._budget = batch_tokens
        self._sequences = sequences
        self._views = list(dict.fromkeys(views))
        self._token_layers = list(dict.fromkeys(token_layers))
        self._on_tokens = on_tokens
        self._splits = 0
        specs = {*(v.layer for v in views), *token_layers}
        self._specs = sorted(specs, key=lambda s: (s.layers[-1], s.layers, s.combination or ""))
        self._layers = sorted({layer for spec in specs for layer in spec.layers})
        self._last_use = {layer: spec.layers[-1] for spec in self._specs for layer in spec.layers}
        whole = [view.layer for view in views if POOLERS[view.pooling].reads_all]
        self._all_tokens = {*token_layers, *whole}
        self._first_only = self._wants_first_only()
        self._lay_out()
        widths = {v.name: v.layer.width(model.width) for v in self._views}
        self._vectors = _block(len(self._starts) - 1, widths, model.device)
        widths = {s.name: s.width(model.width) for s in self._token_layers}
        self._tokens = _block(int(self._starts[-1]), widths, model.device)
        buffers = (*self._vectors.values(), *self._tokens.values())
        self.nbytes = sum(tensor.nbytes for tensor in buffers)
        self._first: Mark = None
        self._launched: Mark = None

    def _wants_first_only(self) -> bool:
        """Whether of the highest layer nothing but the first tokens is asked for."""
        users = [spec for spec in self._specs if self._layers[-1] in spec.layers]
        return all(len(spec.layers) == 1 and spec not in self._all_tokens for spec in users)

    def _lay_out(self) -> None:
        """Put the sequences one after the other, longest first, ties in input order."""
        windows, kept = self._sequences.windows, self._sequences.kept
        lengths = np.array([len(w.ids) for w in windows], np.int64)
        self._counts = np.array(
            [len(w.ids) if k is None else len(k) for w, k in zip(windows, kept, strict=True)],
            np.int64,
        )
        order = np.argsort(-lengths, kind="stable")
        self._lengths = lengths[order]
        seats, lengths = self._seats(lengths)
        self._starts = np.concatenate([[0], np.cumsum(lengths)])  # of the seats' tokens
        self._begins = np.concatenate([[0], np.cumsum(self._lengths)])  # in order of length
        self._counted = np.concatenate([[0], np.cumsum(self._counts[order])])
        whole = all(k is None for k in kept)
        rows = np.arange(self._begins[-1])
        if not whole:
            pieces = [
                begin + (np.arange(length) if (k := kept[i]) is None else k)
                for i, begin, length in zip(order, self._begins[:-1], self._lengths, strict=True)
            ]
            rows = np.concatenate(pieces)
        arrays = [
            np.concatenate([windows[i].ids for i in order]),
            np.concatenate([windows[i].type_ids for i in order]),
            self._begins,
            rows,
            self._counted,
            seats[order],
        ]
        if self._token_layers:
            shift = np.repeat(self._starts[seats[order]] - self._begins[:-1], self._lengths)
            arrays.append(np.arange(self._begins[-1]) + shift)
        sent = self._link.send(*arrays)
        self._ids, self._types, self._offsets, self._rows, self._bags, self._places = sent[:6]
        self._token_places = sent[-1]

    def _seats(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the results of each sequence go, and the tokens of each seat.

        Where every text is one sequence, that is the first text that uses it, so that nothing
        has to be moved but the copies for texts that repeat; else the sequence's own number.
        """
        used = np.array(self._sequences.used, np.int64)
        whole = all(w.owned is None for w in self._sequences.windows)
        self._in_place = whole and len(used) == len(self._sequences.per_text)
        if not self._in_place:
            return np.arange(len(lengths)), lengths
        return np.unique(used, return_index=True)[1], lengths[used]

    def all_batches(self) -> None:
        """Give every batch to the device. On CUDA the work goes on when this returns."""
        self._first = self._link.mark()
        for start, stop in cut_batches(self._lengths, self._budget, padded=self._model.pads):
            self._run(start, stop)
        self._launched = self._link.mark()
        self._host_seconds = time.perf_counter() - self._began

    def _run(self, start: int, stop: int) -> None:
        """Run one batch; halve it by sequences, always in the same way, if memory runs out."""
        try:
            self._forward(start, stop)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if stop - start == 1:
                raise EncodeError(
                    f"memory does not suffice for one sequence of {self._lengths[start]} "
                    "tokens. Use a smaller max_length, or another device."
                ) from error
        else:
            self._on_tokens(int(self._begins[stop] - self._begins[start]))
            return
        self._splits += 1
        self._link.release()
        middle = (start + stop) // 2
        self._run(start, middle)
        self._run(middle, stop)

    def _forward(self, start: int, stop: int) -> None:
        begin, end = int(self._begins[start]), int(self._begins[stop])
        batch = PackedBatch(
            ids=self._ids[begin:end],
            type_ids=self._types[begin:end],
            offsets=self._offsets[start : stop + 1] - begin,
            lengths=tuple(self._lengths[start:stop].tolist()),
        )
        counted = slice(int(self._counted[start]), int(self._counted[stop]))
        tokens = PackedTokens(
            first=batch.offsets[:-1],
            counted=self._rows[counted] - begin,
            offsets=self._bags[start:stop] - counted.start,
            head=lambda first: self._model.pool(first.to(self._model.dtype)),
        )
        alone = tokens  # of the highest layer there may be nothing but first tokens
        if self._first_only:
            alone = replace(tokens, first=torch.arange(stop - start, device=batch.offsets.device))
        held: dict[int, torch.Tensor] = {}

        def on_layer(layer: int, hidden: torch.Tensor) -> None:
            held[layer] = hidden
            first_only = self._first_only and layer == self._layers[-1]
            for spec in self._specs:
                if spec.layers[-1] != layer:
                    continue
                states = combine_layers([held[i] for i in spec.layers], spec.combination)
                if spec in self._all_tokens:
                    states = states.float()  # once for all that read the whole of it
                for view in self._views:
                    if view.layer == spec:
                        where = alone if first_only else tokens
                        pooled = POOLERS[view.pooling].pool(states, where)
                        self._vectors[view.name].index_copy_(0, self._places[start:stop], pooled)
                if spec in self._token_layers:
                    places = self._token_places[begin:end]
                    self._tokens[spec.name].index_copy_(0, places, states)
            for unused in [i for i in held if self._last_use[i] <= layer]:
                del held[unused]

        self._model.forward(batch, self._layers, on_layer, first_only=self._first_only)

    def collect(self, texts: Sequence[TokenizedText]) -> ShardVectors:
        """Put the sequences' results back to the texts they belong to."""
        used = np.array(self._sequences.used, np.int64)
        views = self._link.fetch(self._vectors, self._launched)
        tokens = self._link.fetch(self._tokens, self._launched) if self._tokens else {}
        if self._in_place:
            self._repeat(views, tokens, used)
        else:
            views = _gathered(views, used)
            tokens = _gathered(tokens, self._token_rows(texts, used)) if tokens else tokens
        for view in self._views:
            pooler, values = POOLERS[view.pooling], views[view.name]
            if len(used) != len(texts):
                per_text = np.array(self._sequences.per_text, np.int64)
                first = np.cumsum(per_text) - per_text
                views[view.name] = pooler.combine(values, first, self._counts[used])
            else:
                views[view.name] = pooler.finish(values, self._counts[used])
        seconds = max(self._host_seconds, self._link.seconds(self._first, self._launched))
        return ShardVectors(
            views, tokens, encoded=len(self._lengths), splits=self._splits, seconds=seconds
        )

    def _repeat(
        self, views: dict[str, Floats], tokens: dict[str, Floats], used: NDArray[np.int64]
    ) -> None:
        """Copy the results of texts that stand there before to those that repeat them."""
        first = np.unique(used, return_index=True)[1][used]
        again = np.flatnonzero(first != np.arange(len(used)))
        for values in views.values():
            values[again] = values[first[again]]
        for values in tokens.values():
            for text in again:
                rows = slice(self._starts[text], self._starts[text + 1])
                source = self._starts[first[text]]
                values[rows] = values[source : source + rows.stop - rows.start]

    def _token_rows(
        self, texts: Sequence[TokenizedText], used: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """For every kept token of every text, its row in the buffers."""
        pieces = []
        window_number = 0
        for text in texts:
            rows = np.empty(text.n_kept, np.int64)
            for window in text.windows:
                start = self._starts[used[window_number]]
                window_number += 1
                if window.owned is None:
                    rows[:] = start + np.arange(len(window.ids))
                else:
                    rows[window.places] = start + window.owned
            pieces.append(rows)
        return np.concatenate(pieces)


def _block(rows: int, widths: dict[str, int], device: torch.device) -> dict[str, torch.Tensor]:
    """Empty ``(rows, width)`` float32 matrices that share one piece of memory.

    One large piece goes back to the system when the shard is done; many pieces of a few megabytes
    would be scattered over the heap between the model's own temporaries and make it grow.
    """
    memory = torch.empty(rows * sum(widths.values()), dtype=torch.float32, device=device)
    ends = np.cumsum([rows * width for width in widths.values()])
    return {
        name: memory[end - rows * width : end].view(rows, width)
        for (name, width), end in zip(widths.items(), ends.tolist(), strict=True)
    }


def _gathered(arrays: dict[str, Floats], index: NDArray[np.int64]) -> dict[str, Floats]:
    """Rows ``index`` of every matrix; the matrices themselves where that is all rows in order."""
    rows = len(next(iter(arrays.values()))) if arrays else 0
    if np.array_equal(index, np.arange(rows)):
        return arrays
    widths = {name: array.shape[1] for name, array in arrays.items()}
    result = {n: t.numpy() for n, t in _block(len(index), widths, torch.device("cpu")).items()}
    for name, array in arrays.items():
        np.take(array, index, axis=0, out=result[name])
    return result


def cut_batches(lengths: NDArray[np.int64], budget: int, *, padded: bool) -> list[tuple[int, int]]:
    """Cut sequences in order of length into batches.

    Args:
        lengths: ``(n,)`` tokens of each sequence, longest first.
        budget: most tokens of a batch; a sequence that alone exceeds it makes a batch by itself.
        padded: whether the forward pads to the longest sequence of the batch, which counts then.
            One that does not fills a batch up to a multiple of
            :data:`~embedkit.encoding.packed.ROWS`; of the cuts that use seven eighths of the
            budget, the one that needs least of that.

    Returns:
        Start and stop of each batch.
    """
    ends = np.concatenate([[0], np.cumsum(lengths)])
    batches = []
    start = 0
    while start < len(lengths):
        if padded:
            stop = min(start + budget // max(int(lengths[start]), 1), len(lengths))
        else:
            stop = int(np.searchsorted(ends, ends[start] + budget, side="right")) - 1
        stop = max(stop, start + 1)
        if not padded and stop < len(lengths):
            tokens = ends[start + 1 : stop + 1] - ends[start]
            waste = (-tokens % ROWS) / tokens
            waste[tokens < budget * 7 // 8] = 1
            stop -= int(np.argmin(waste[::-1]))
        batches.append((start, stop))
        start = stop
    return batches
