"""One shard: its sequences are sorted, batched, run, and restored to the order of its texts.

    texts         t0 t1 t2 t3 …        in input order; long ones in several windows
    windows       sorted by length, longest first; equal ones once
    batches       |--- 65,536 tokens ---|--- … ---|      (2,048 on CPU)
    vectors       index_copy to the row of the window; windows of a text combined at the end

Batches depend on the shard alone, and where they change no bits on the number of threads too, so
the same shard gives the same bits again. On a GPU everything is queued: lengths stay on the host,
tokens are sent once from pinned memory, and nothing waits before ``PendingShard.result()``. On
CPU batches run side by side, one thread each, which is faster than several threads in one.

A batch for which memory does not suffice is halved, by sequences, until it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embedkit.choices import Pooling
from embedkit.encoding.model import Model, PackedBatch, is_out_of_memory
from embedkit.encoding.pooling import PackedTokens, Pooler, combine_layers
from embedkit.encoding.products import ROWS
from embedkit.encoding.views import LayerSpec, ShardVectors, View
from embedkit.encoding.windows import TokenizedTexts, ends_of, ranges
from embedkit.errors import EncodeError
from embedkit.machine import of_all_threads
from embedkit.scale import undisturbed
from embedkit.types import Bool, Float32, Int64

OnTokens = Callable[[int], None]
"""Called with the number of tokens of each batch that was run."""

_LEAST_TOKENS = 512
"""Tokens below which a batch is not divided among threads."""


class PendingShard(NamedTuple):
    """A shard whose batches are queued on the device."""

    nbytes: int  # of its vectors, which the device holds until they are fetched
    result: Callable[[], ShardVectors]  # waits for them; to be called once, from any thread


T = TypeVar("T")


@of_all_threads
def _threads_kept() -> Callable[[], object]:
    """As many threads of torch afterwards as before, for threads that begin then."""

    # the number of the process is that of a new thread: this one may have begun beside a batch, or
    # have another by itself, which it keeps
    def anew(function: Callable[..., T], *arguments: Any) -> T:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(function, *arguments).result()

    return partial(anew, torch.set_num_threads, anew(torch.get_num_threads))


class Shard:
    """The windows of texts in the order in which they run, and the vectors that are asked of them.

    ``views`` and ``token_layers`` are these vectors; ``special_tokens``: poolings count them too.
    """

    launched: torch.cuda.Event | None = None  # on a GPU

    def __init__(
        self,
        model: Model,
        texts: TokenizedTexts,
        views: Sequence[View],
        token_layers: Sequence[LayerSpec],
        poolers: Mapping[Pooling, Pooler],
        *,
        special_tokens: bool,
    ) -> None:
        self._model, self._texts, self._poolers = model, texts, poolers
        self._views = list(dict.fromkeys(views))
        self._token_layers = list(dict.fromkeys(token_layers))
        specs = {*(v.layer for v in views), *token_layers}
        # by the layer that completes them: that is when they can be computed
        self._specs = sorted(specs, key=lambda s: (s.highest, s.layers, s.combination or ""))
        self._layers = sorted({layer for spec in specs for layer in spec.layers})
        # specs are in ascending order, so that the last one that reads a layer has the last word
        self._last_use = {layer: spec.highest for spec in self._specs for layer in spec.layers}
        read = [view.layer for view in views if poolers[view.pooling].reads_all]
        self._whole = {*token_layers, *read}
        # only first tokens of the highest layer may be needed
        highest = [spec for spec in specs if self._layers[-1] in spec.layers]
        self._first_only = all(len(s.layers) == 1 and s not in self._whole for s in highest)
        # tokens that mean and max count, each in one window of its text only
        self._counted = texts.owned
        if not special_tokens:
            self._counted = texts.owned & (texts.segment[texts.seen] >= 0)
        self._counts = np.diff(ends_of(self._counted)[texts.window_ends])
        # before anything is sent: equal windows run once
        self._first = _first_equal(texts, self._counted)

    @undisturbed()
    def queue(self, batch_tokens: int, on_tokens: OnTokens) -> PendingShard:
        """Send the shard to the device and queue its batches; on CPU they have run afterwards."""
        device = self._model.device
        try:
            nbytes = self._send()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            # batches can be halved, a shard cannot: its rows decide its bytes
            raise EncodeError(
                f"the memory of {device} does not suffice for the vectors of a shard of "
                f"{len(self._texts):,} texts. Use fewer views or layers, or another device."
            ) from error
        if self._layers:
            self._run_all(batch_tokens, on_tokens)
        if device.type == "cuda":
            # marks the end of this shard's work in the queue; _result() waits for it and not for
            # later ones
            self.launched = torch.cuda.current_stream(device).record_event()
        return PendingShard(nbytes, self._result)

    def _send(self) -> int:
        """Send the distinct windows, longest first, ties in input order.

        Return the bytes of the vectors, for which room is made on the device.
        """
        texts, lengths = self._texts, np.diff(self._texts.window_ends)
        model = self._model
        unique = np.unique(self._first)
        unique = unique[lengths[unique] > 0]  # decoders have no special tokens
        # longest first: little padding, equal lengths side by side, and lack of memory shows early
        order = unique[np.argsort(-lengths[unique], kind="stable")]
        self._lengths = lengths[order]
        self._begins = ends_of(self._lengths)
        # from here on all arrays are in the order of the windows that run
        places = ranges(texts.window_ends[order], self._lengths)
        seen, counted, owned = texts.seen[places], self._counted[places], texts.owned[places]
        self._counted_ends = ends_of(counted)[self._begins]
        arrays: list[NDArray[Any]] = [
            texts.ids[seen],
            texts.type_ids[seen],
            self._begins,
            np.flatnonzero(counted),
            self._counted_ends,
            order,
        ]
        if self._token_layers:
            self._owned_ends = ends_of(owned)[self._begins]
            arrays += np.flatnonzero(owned), seen[owned]
        sizes = [len(values) for values in arrays]
        pinned = model.device.type == "cuda"
        # one transfer instead of up to eight, hence int64 for all; only from pinned memory the copy
        # does not make the host wait
        together = torch.empty(sum(sizes), dtype=torch.int64, pin_memory=pinned)
        np.concatenate(arrays, out=together.numpy())
        self._sent = torch.split(together.to(model.device, non_blocking=True), sizes)
        widths = {view.name: view.layer.width(model.width) for view in self._views}
        self._vectors = _block(len(self._first), widths, model.device)
        widths = {spec.name: spec.width(model.width) for spec in self._token_layers}
        self._tokens = _block(len(texts.ids), widths, model.device)
        return sum(t.nbytes for t in (*self._vectors.values(), *self._tokens.values()))

    def _run_all(self, batch_tokens: int, on_tokens: OnTokens) -> None:
        """Run all batches; on CPU side by side, which is faster than several threads in each."""
        model, threads = self._model, torch.get_num_threads()
        on_cpu = model.device.type == "cpu"
        # then a text has the same bits in every batch
        exact = on_cpu and model.dtype == torch.float32 and not model.pads
        batches = cut_batches(
            self._lengths,
            batch_tokens,
            padded=model.pads,
            threads=threads if exact else 1,
            multiple=ROWS if on_cpu else 1,
        )
        # a GPU has one queue, and threads that fill it would contend for the interpreter's lock
        workers = max(min(threads, len(batches)), 1) if on_cpu else 1
        with ExitStack() as stack:
            run: Callable[..., Iterable[None]] = map
            if workers > 1 or model.one_thread:
                # entered first, hence left last: after the threads have ended
                stack.enter_context(_threads_kept())
                each = threads // workers
                if model.one_thread:
                    short = len(batches) == 1 and self._begins[-1] <= ROWS
                    each = min(threads, 2) if short and model.short_on_two else 1

                def share() -> None:
                    # a thread takes what was set last in the process when it first asks, even
                    # after it has set a number itself; so it asks before
                    torch.get_num_threads()
                    torch.set_num_threads(each)

                run = stack.enter_context(ThreadPoolExecutor(workers, initializer=share)).map
            # map is lazy and the pool is not; both give results in the order of batches
            done = run(lambda batch: self._run(*batch), batches)
            for (start, stop), _ in zip(batches, done, strict=True):
                on_tokens(int(self._begins[stop] - self._begins[start]))

    def _run(self, start: int, stop: int) -> None:
        """Run one batch; halve it by sequences if memory runs out."""
        try:
            self._forward(start, stop)
            return
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if stop - start == 1:
                raise EncodeError(
                    f"memory does not suffice for one sequence of {self._lengths[start]} "
                    "tokens. Use a smaller max_length, or another device."
                ) from error
        # outside of except: the exception's traceback holds the tensors of the failed forward
        torch.cuda.empty_cache()  # elsewhere it does nothing
        middle = (start + stop) // 2
        self._run(start, middle)
        self._run(middle, stop)

    def _forward(self, start: int, stop: int) -> None:
        ids, types, begins, rows, bags, index = self._sent[:6]
        begin, end = int(self._begins[start]), int(self._begins[stop])
        lengths = tuple(self._lengths[start:stop].tolist())
        offsets = begins[start : stop + 1] - begin
        batch = PackedBatch(ids[begin:end], types[begin:end], offsets, lengths)
        # the sent arrays are those of the whole shard; each batch takes its part and moves it to 0
        counted = slice(int(self._counted_ends[start]), int(self._counted_ends[stop]))
        tokens = PackedTokens(
            first=batch.offsets[:-1],
            counted=rows[counted] - begin,
            offsets=bags[start:stop] - counted.start,
            # vectors are pooled in float32, the weights of the pooler may be in half precision
            head=lambda first: self._model.pool(first.to(self._model.dtype)),
        )
        held: dict[int, Tensor] = {}

        def on_layer(layer: int, hidden: Tensor) -> None:
            held[layer] = hidden
            # the highest layer may hold first tokens alone: then row i is sequence i
            where = tokens
            if self._first_only and layer == self._layers[-1]:
                where = tokens._replace(first=torch.arange(stop - start, device=hidden.device))
            for spec in self._specs:
                if spec.highest != layer:
                    continue
                states = combine_layers([held[i] for i in spec.layers], spec.combination)
                if spec in self._whole:
                    states = states.float()  # once for all views
                for view in self._views:
                    if view.layer == spec:
                        pooled = self._poolers[view.pooling].pool(states, where)
                        self._vectors[view.name].index_copy_(0, index[start:stop], pooled)
                if spec in self._token_layers:  # each token from one window only
                    owned, places = self._sent[6:]
                    kept = slice(int(self._owned_ends[start]), int(self._owned_ends[stop]))
                    # without windows every token is kept, and the rows are the right ones as they
                    # are
                    if kept.stop - kept.start < len(states):
                        states = states.index_select(0, owned[kept] - begin)
                    self._tokens[spec.name].index_copy_(0, places[kept], states)
            # a layer is freed as soon as no combination waits for it
            for unused in [i for i in held if self._last_use[i] <= layer]:
                del held[unused]

        self._model.forward(batch, self._layers, on_layer, first_only=self._first_only)

    def _result(self) -> ShardVectors:
        """Wait for the vectors."""
        views = self._fetched(self._vectors)
        tokens = self._fetched(self._tokens)
        # windows that did not run take the vectors of the first equal one, here and below
        repeated = np.flatnonzero(self._first != np.arange(len(self._first)))
        first = self._first[repeated]
        if tokens:
            rows, source = self._token_rows(repeated), self._token_rows(first)
            for values in tokens.values():
                values[rows] = values[source]
        begins = self._texts.text_windows[:-1]
        for view in self._views:
            pooler, values = self._poolers[view.pooling], views[view.name]
            values[repeated] = values[first]
            # an empty window did not run, and its row is memory that nobody wrote
            values[np.diff(self._texts.window_ends) == 0] = 0
            views[view.name] = pooler.combine(values, begins, self._counts)
        return ShardVectors(views, tokens)

    def _fetched(self, matrices: dict[str, Tensor]) -> dict[str, Float32]:
        """Matrices as arrays, copied in parallel with the device's further work."""
        if self.launched is None:
            return {name: matrix.numpy() for name, matrix in matrices.items()}
        copies = {}
        # on a stream of its own: on the default one the copy would wait for the shards queued
        # behind
        stream = torch.cuda.Stream(self._model.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            stream.wait_event(self.launched)
            for name, matrix in matrices.items():
                # pinned, since copies to other memory would wait in the driver
                copies[name] = torch.empty_like(matrix, device="cpu", pin_memory=True)
                copies[name].copy_(matrix, non_blocking=True)
        stream.synchronize()
        return {name: copy.numpy() for name, copy in copies.items()}

    def _token_rows(self, windows: Int64) -> Int64:
        """Rows of the tokens taken from these windows, among all kept tokens."""
        ends = self._texts.window_ends
        places = ranges(ends[windows], np.diff(ends)[windows])
        return np.asarray(self._texts.seen[places[self._texts.owned[places]]])


def _first_equal(texts: TokenizedTexts, counted: Bool) -> Int64:
    """Number of the first equal window of each window."""
    # three numbers in one: equal ids are not enough where windows of a text count other tokens
    flags = texts.type_ids[texts.seen] * 4 + texts.owned * 2 + counted
    # two int32 a token, hence 8 bytes each; slices of bytes are keys that Python hashes fast
    content = np.stack([texts.ids[texts.seen], flags.astype(np.int32)], axis=1).tobytes()
    numbers: dict[bytes, int] = {}
    ends = (8 * texts.window_ends).tolist()
    parts = (content[begin:end] for begin, end in pairwise(ends))
    return np.array([numbers.setdefault(part, i) for i, part in enumerate(parts)], np.int64)


def cut_batches(
    lengths: Int64, budget: int, *, padded: bool, threads: int = 1, multiple: int = 1
) -> list[tuple[int, int]]:
    """Start and stop of batches of at most ``budget`` tokens; a longer sequence is one by itself.

    ``lengths`` are longest first. The padded forward pads to the longest sequence of the batch. The
    packed one pads batches to a ``multiple`` of rows on CPU; among the cuts that use seven eighths
    of the budget, the one with least padding is chosen. On a GPU it pads nothing, so that batches
    do not depend on the processor beside it. Few batches for several threads are of about equal
    size instead, a multiple of the threads if tokens suffice.
    """
    ends = ends_of(lengths)
    total = int(ends[-1])
    # rounded up
    count = -(-total // budget)
    if threads > 1 and count < 8 * threads:  # more even out by themselves
        # a multiple of the threads, so that none waits for the last batch; but not of tiny batches
        count = max(count, min(-(-count // threads) * threads, -(-total // _LEAST_TOKENS)))
        stops = np.searchsorted(ends, total * np.arange(1, count) / count).tolist()
        # a set: a long sequence may span several of the even cuts
        return list(pairwise(sorted({0, *stops, len(lengths)})))
    batches = []
    start = 0
    while start < len(lengths):
        if padded:
            stop = min(start + budget // max(int(lengths[start]), 1), len(lengths))
        else:
            stop = int(np.searchsorted(ends, ends[start] + budget, side="right")) - 1
        # a sequence longer than the budget still runs, alone
        stop = max(stop, start + 1)
        if not padded and stop < len(lengths):
            tokens = ends[start + 1 : stop + 1] - ends[start]
            waste = (-tokens % multiple) / tokens
            # 1 is more than any waste: smaller batches are not chosen, whatever they would save
            waste[tokens < budget * 7 // 8] = 1
            # reversed, so that the largest batch wins among equals
            stop -= int(np.argmin(waste[::-1]))
        batches.append((start, stop))
        start = stop
    return batches


def _block(rows: int, widths: dict[str, int], device: torch.device) -> dict[str, Tensor]:
    """Empty ``(rows, width)`` float32 matrices in one block of memory.

    One large block is returned to the system after the shard; small ones would fragment the heap.
    """
    memory = torch.empty(rows * sum(widths.values()), dtype=torch.float32, device=device)
    parts = torch.split(memory, [rows * width for width in widths.values()])
    return {
        name: part.view(rows, width)
        for (name, width), part in zip(widths.items(), parts, strict=True)
    }
