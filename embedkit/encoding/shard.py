"""One shard: its sequences sorted, batched, run, and put back in the order of its texts.

Which batches are made depends on the shard alone, so the same shard gives the same bits again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Sized
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embedkit.encoding.device import Link, Mark, is_out_of_memory
from embedkit.encoding.model import PackedBatch, PlainModel
from embedkit.encoding.packed import ROWS, PackedModel
from embedkit.encoding.pooling import POOLERS, PackedTokens, combine_layers
from embedkit.encoding.tokenization import TokenizedText
from embedkit.encoding.views import LayerSpec, ShardVectors, View
from embedkit.errors import EncodeError
from embedkit.types import Int64

__all__ = ["PendingShard", "cut_batches"]


class _Wanted:
    """Which layers are read, and for what."""

    def __init__(self, views: Sequence[View], token_layers: Sequence[LayerSpec]) -> None:
        self.views = list(dict.fromkeys(views))
        self.token_layers = list(dict.fromkeys(token_layers))
        specs = {*(v.layer for v in views), *token_layers}
        self.specs = sorted(specs, key=lambda s: (s.highest, s.layers, s.combination or ""))
        self.layers = sorted({layer for spec in specs for layer in spec.layers})
        self.last_use = {layer: spec.highest for spec in self.specs for layer in spec.layers}
        read = [view.layer for view in views if POOLERS[view.pooling].reads_all]
        self.whole = {*token_layers, *read}
        # of the highest layer there may be nothing but first tokens to compute
        highest = [spec for spec in specs if self.layers[-1] in spec.layers]
        self.first_only = all(len(s.layers) == 1 and s not in self.whole for s in highest)


class _Windows:
    """The windows of the texts of a shard, text after text, and which of them are equal.

    Attributes:
        windows: the windows.
        lengths: ``(windows,)``, their tokens.
        owned: for each, the positions of the tokens that are taken from it.
        counted: for each, the positions that ``mean`` and ``max`` count.
        counts: ``(windows,)``, how many these are.
        first: ``(windows,)``, the first window that is equal: same ids, segments and tokens.
        of_text: ``(texts,)``, the first window of each text.
        n_tokens: kept tokens of all texts.
    """

    def __init__(self, texts: Sequence[TokenizedText], *, special_tokens: bool) -> None:
        self.windows = [window for text in texts for window in text.windows]
        self.lengths = _counts([window.ids for window in self.windows])
        per_text = _counts([text.windows for text in texts])
        whole = np.arange(self.lengths.max(initial=0))
        self.owned = [whole[: len(w.ids)] if w.owned is None else w.owned for w in self.windows]
        self._kept = [whole[: len(w.ids)] if w.kept is None else w.kept for w in self.windows]
        self.counted = self.owned
        if not special_tokens:
            special = [text.special for text in texts for _ in text.windows]
            positions = zip(self.owned, self._kept, special, strict=True)
            self.counted = [owned[~one[kept]] for owned, kept, one in positions]
        self.counts = _counts(self.counted)
        known: dict[tuple[bytes, ...], int] = {}
        first = []
        for number, window in enumerate(self.windows):
            parts = window.ids, window.type_ids, self.owned[number], self.counted[number]
            first.append(known.setdefault(tuple(part.tobytes() for part in parts), number))
        self.first = np.array(first, np.int64)
        self.of_text = np.cumsum(per_text) - per_text
        kept = _counts([text.ids for text in texts])
        self._starts = np.repeat(np.cumsum(kept) - kept, per_text)
        self.n_tokens = int(kept.sum())

    def token_rows(self, numbers: Int64) -> Int64:
        """Rows of the tokens taken from some windows, among all kept tokens."""
        return _rows([self._kept[i] for i in numbers], self._starts[numbers])


class PendingShard:
    """One shard whose batches have been given to the device.

    Arguments and errors as for
    :meth:`Encoder.start_shard <embedkit.encoding.encoder.Encoder.start_shard>`.

    Attributes:
        nbytes: bytes that the vectors take.
    """

    def __init__(
        self,
        model: PlainModel | PackedModel,
        link: Link,
        texts: Sequence[TokenizedText],
        *,
        views: Sequence[View],
        token_layers: Sequence[LayerSpec] = (),
        special_tokens: bool = True,
        batch_tokens: int,
        on_tokens: Callable[[int], None] = lambda _: None,
    ) -> None:
        began = time.perf_counter()
        self._model, self._link, self._on_tokens = model, link, on_tokens
        self._wanted = wanted = _Wanted(views, token_layers)
        self._windows = windows = _Windows(texts, special_tokens=special_tokens)
        self._splits = 0
        self._send()
        widths = {v.name: v.layer.width(model.width) for v in wanted.views}
        self._vectors = _block(len(windows.first), widths, model.device)
        widths = {s.name: s.width(model.width) for s in wanted.token_layers}
        self._tokens = _block(windows.n_tokens, widths, model.device)
        self.nbytes = sum(t.nbytes for t in (*self._vectors.values(), *self._tokens.values()))
        self._first: Mark = link.mark()
        for start, stop in cut_batches(self._lengths, batch_tokens, padded=model.pads):
            if wanted.layers:
                self._run(start, stop)
        self._launched: Mark = link.mark()
        self._host_seconds = time.perf_counter() - began

    def _send(self) -> None:
        """Send the different windows one after the other, longest first, ties in input order."""
        unique = np.unique(self._windows.first)
        order = unique[np.argsort(-self._windows.lengths[unique], kind="stable")]
        windows = [self._windows.windows[i] for i in order]
        counted = [self._windows.counted[i] for i in order]
        self._lengths = self._windows.lengths[order]
        self._begins, self._counted_ends = _ends(self._lengths), _ends(_counts(counted))
        arrays: list[NDArray[Any]] = [
            _joined([window.ids for window in windows]),
            _joined([window.type_ids for window in windows]),
            self._begins,
            _rows(counted, self._begins[:-1]),
            self._counted_ends,
            order,
        ]
        if self._wanted.token_layers:
            owned = [self._windows.owned[i] for i in order]
            self._owned_ends = _ends(_counts(owned))
            arrays += _rows(owned, self._begins[:-1]), self._windows.token_rows(order)
        self._sent = self._link.send(*arrays)

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
        ids, types, begins, rows, bags, index = self._sent[:6]
        wanted, begin, end = self._wanted, int(self._begins[start]), int(self._begins[stop])
        batch = PackedBatch(
            ids=ids[begin:end],
            type_ids=types[begin:end],
            offsets=begins[start : stop + 1] - begin,
            lengths=tuple(self._lengths[start:stop].tolist()),
        )
        counted = slice(int(self._counted_ends[start]), int(self._counted_ends[stop]))
        tokens = PackedTokens(
            first=batch.offsets[:-1],
            counted=rows[counted] - begin,
            offsets=bags[start:stop] - counted.start,
            head=lambda first: self._model.pool(first.to(self._model.dtype)),
        )
        held: dict[int, Tensor] = {}

        def on_layer(layer: int, hidden: Tensor) -> None:
            held[layer] = hidden
            where = tokens
            if wanted.first_only and layer == wanted.layers[-1]:
                where = replace(tokens, first=torch.arange(stop - start, device=hidden.device))
            for spec in wanted.specs:
                if spec.highest != layer:
                    continue
                states = combine_layers([held[i] for i in spec.layers], spec.combination)
                if spec in wanted.whole:
                    states = states.float()  # once for all that read the whole of it
                for view in wanted.views:
                    if view.layer == spec:
                        pooled = POOLERS[view.pooling].pool(states, where)
                        self._vectors[view.name].index_copy_(0, index[start:stop], pooled)
                if spec in wanted.token_layers:
                    self._keep_tokens(spec.name, states, start, stop)
            for unused in [i for i in held if wanted.last_use[i] <= layer]:
                del held[unused]

        self._model.forward(batch, wanted.layers, on_layer, first_only=wanted.first_only)

    def _keep_tokens(self, layer: str, states: Tensor, start: int, stop: int) -> None:
        """Put the token vectors of a batch where they belong; each from one window only."""
        owned, index = self._sent[6:]
        some = slice(int(self._owned_ends[start]), int(self._owned_ends[stop]))
        if some.stop - some.start < len(states):
            states = states.index_select(0, owned[some] - int(self._begins[start]))
        self._tokens[layer].index_copy_(0, index[some], states)

    def result(self) -> ShardVectors:
        """Wait for the vectors; may be called once, from any thread."""
        windows = self._windows
        views = self._link.fetch(self._vectors, self._launched)
        tokens = self._link.fetch(self._tokens, self._launched) if self._tokens else {}
        again = np.flatnonzero(windows.first != np.arange(len(windows.first)))
        if len(again):
            before = windows.first[again]
            for values in views.values():
                values[again] = values[before]
            rows, source = windows.token_rows(again), windows.token_rows(before)
            for values in tokens.values():
                values[rows] = values[source]
        for view in self._wanted.views:
            pooler, values = POOLERS[view.pooling], views[view.name]
            if len(windows.first) == len(windows.of_text):
                views[view.name] = pooler.finish(values, windows.counts)
            else:
                views[view.name] = pooler.combine(values, windows.of_text, windows.counts)
        seconds = max(self._host_seconds, self._link.seconds(self._first, self._launched))
        return ShardVectors(
            views, tokens, encoded=len(self._lengths), splits=self._splits, seconds=seconds
        )


def cut_batches(lengths: Int64, budget: int, *, padded: bool) -> list[tuple[int, int]]:
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
    ends = _ends(lengths)
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


def _counts(parts: Sequence[Sized]) -> Int64:
    return np.array([len(part) for part in parts], np.int64)


def _rows(positions: Sequence[Int64], begins: Int64) -> Int64:
    """Rows of positions in sequences that begin at ``begins``, sequence after sequence."""
    return np.asarray(_joined(positions) + np.repeat(begins, _counts(positions)))


def _ends(counts: Int64) -> Int64:
    return np.concatenate([[0], np.cumsum(counts)])


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)


def _block(rows: int, widths: dict[str, int], device: torch.device) -> dict[str, Tensor]:
    """Empty ``(rows, width)`` float32 matrices that are views of one block of memory.

    One large block goes back to the system when the shard is done; many blocks of a few megabytes
    would be scattered over the heap between the model's own temporaries and make it grow.
    """
    memory = torch.empty(rows * sum(widths.values()), dtype=torch.float32, device=device)
    ends = np.cumsum([rows * width for width in widths.values()])
    return {
        name: memory[end - rows * width : end].view(rows, width)
        for (name, width), end in zip(widths.items(), ends.tolist(), strict=True)
    }
