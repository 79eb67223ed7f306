"""Tokenized texts → views, word and token vectors, by one forward pass over length-sorted batches.

The unit is a shard: a list of texts that is sorted by length, batched, run and put back in order
as a whole. Which batches are made depends on the shard alone, so the same shard gives the same
bits again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embedkit.encoding.checkpoint import DEFAULT_MODEL, Checkpoint, find_checkpoint
from embedkit.encoding.device import BATCH_TOKENS, choose_device, is_out_of_memory
from embedkit.encoding.model import PRECISIONS, PackedBatch, PlainModel, load_model
from embedkit.encoding.packed import ROWS, PackedModel, fastest
from embedkit.encoding.pooling import combine_layers, first_tokens, max_tokens, sum_tokens
from embedkit.encoding.precision import GAIN, PrecisionTrial, choose_precision, time_products
from embedkit.encoding.tokenization import (
    TextTokenizer,
    TokenizedText,
    TokenizerSettings,
    Window,
    choose_max_length,
    load_tokenizer,
)
from embedkit.encoding.views import LayerSpec, Pooling, View, parse_view
from embedkit.errors import EncodeError, ModelError, UsageError

__all__ = [
    "BATCH_TOKENS",
    "Encoder",
    "PendingShard",
    "ShardVectors",
    "choose_device",
    "cut_batches",
    "l2_normalize",
]

Floats = NDArray[np.float32]

_ENCODE_ROWS = 4_096


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


@dataclass(frozen=True, slots=True)
class PendingShard:
    """A shard whose batches have been given to the device.

    Attributes:
        result: waits for the vectors; may be called once, from any thread.
        nbytes: bytes that they take.
    """

    result: Callable[[], ShardVectors]
    nbytes: int


class Encoder:
    """A checkpoint with its tokenizer, ready to turn texts into vectors.

    Args:
        checkpoint: what was loaded.
        tokenizer: its tokenizer.
        model: runs the layers.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        max_length: tokens per sequence where a call does not say.
        batch_tokens: tokens per batch, with what padding the forward needs.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        tokenizer: TextTokenizer,
        model: PlainModel | PackedModel,
        *,
        precision: str,
        max_length: int,
        batch_tokens: int,
    ) -> None:
        self.checkpoint = checkpoint
        self.tokenizer = tokenizer
        self.model = model
        self.precision = precision
        self.max_length = max_length
        self.batch_tokens = batch_tokens

    @classmethod
    def load(
        cls,
        model: str | Path = DEFAULT_MODEL,
        *,
        revision: str | None = None,
        device: str = "auto",
        precision: str | None = None,
        max_length: int | None = None,
        batch_tokens: int | None = None,
        offline: bool = False,
        forward: str = "auto",
        notify: Callable[[str], None] = lambda _: None,
    ) -> Encoder:
        """Load a checkpoint by hub id or folder.

        Args:
            model: hub id or folder.
            revision: branch, tag or commit of a hub checkpoint.
            device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
            precision: ``fp32``, ``bf16``, ``fp16`` or ``auto`` (see
                :func:`~embedkit.encoding.precision.choose_precision`); by default fp32 on CPU and
                bf16 on CUDA.
            max_length: tokens per sequence; by default what the checkpoint states.
            batch_tokens: tokens per batch, with what padding the forward needs; by default
                by device.
            offline: never ask the hub.
            forward: ``auto``, the padding-free forward where it applies and agrees with the
                plain one; or ``transformers``, always the plain one.
            notify: called with sentences for the user.

        Raises:
            ModelError: the checkpoint cannot be found or used.
            UsageError: the device, precision or length cannot be had.
        """
        if forward not in ("auto", "transformers"):
            raise UsageError(f"forward={forward!r}: expected 'auto' or 'transformers'.")
        checkpoint = find_checkpoint(model, revision=revision, offline=offline)
        where = choose_device(device)
        chosen = choose_precision(precision, where, trial=lambda: _trial(checkpoint, notify))
        tokenizer = load_tokenizer(checkpoint, notify=notify)
        length = choose_max_length(checkpoint, tokenizer, max_length)
        plain = load_model(
            checkpoint,
            pad_id=tokenizer.pad_id,
            device=where,
            dtype=PRECISIONS[chosen],
            notify=notify,
        )
        return cls(
            checkpoint,
            tokenizer,
            fastest(plain, checkpoint, notify=notify) if forward == "auto" else plain,
            precision=chosen,
            max_length=length,
            batch_tokens=batch_tokens or BATCH_TOKENS.get(where.type, BATCH_TOKENS["cpu"]),
        )

    @property
    def n_layers(self) -> int:
        """Number of encoder layers."""
        return self.checkpoint.n_layers

    @property
    def width(self) -> int:
        """Width of the hidden states."""
        return self.checkpoint.width

    @property
    def has_pooler(self) -> bool:
        """Whether the checkpoint carries pooler weights."""
        return self.model.pooler is not None

    def encode(
        self,
        texts: Iterable[str],
        *,
        pooling: str = "mean",
        layer: int = -1,
        normalize_embeddings: bool = False,
        show_progress_bar: bool = False,
        max_length: int | None = None,
        prefix: str = "",
    ) -> Floats:
        """Vectors of texts: ``(n, width)`` float32 in input order.

        Args:
            texts: the texts; a single string is refused.
            pooling: ``cls``, ``mean``, ``max`` or ``pooler``.
            layer: 0 is the embedding output, negative numbers count from the end; ``pooler``
                has none and ignores it.
            normalize_embeddings: scale every vector to length 1 (L2).
            show_progress_bar: show progress on standard error.
            max_length: tokens per text; longer ones are truncated.
            prefix: put before every text, such as ``"query: "``.

        Raises:
            TypeError: ``texts`` is a string, or holds something else than strings.
            UsageError: there is no such pooling or layer, or a text is not Unicode.
        """
        name = pooling if pooling == "pooler" else f"{pooling}_{layer}"
        views = self.encode_views(
            texts,
            [name],
            normalize_embeddings=normalize_embeddings,
            show_progress_bar=show_progress_bar,
            max_length=max_length,
            prefix=prefix,
        )
        return next(iter(views.values()))

    def encode_views(
        self,
        texts: Iterable[str],
        views: Iterable[str],
        *,
        normalize_embeddings: bool = False,
        show_progress_bar: bool = False,
        max_length: int | None = None,
        prefix: str = "",
    ) -> dict[str, Floats]:
        """Several views by one forward pass: ``{"mean_6": (n, width), ...}``, float32, input order.

        Args:
            texts: the texts; a single string is refused.
            views: names such as ``mean_-1``, ``cls_0``, ``mean_sum_9to12``, ``pooler``; the keys
                of the result have positive layer numbers.
            normalize_embeddings: scale every vector to length 1 (L2).
            show_progress_bar: show progress on standard error.
            max_length: tokens per text; longer ones are truncated.
            prefix: put before every text.

        Raises:
            TypeError: ``texts`` or ``views`` is a string, or ``texts`` holds something else than
                strings.
            UsageError: there is no such view, or a text is not Unicode.
        """
        given = _list_of_texts(texts)
        if isinstance(views, str):
            raise TypeError(f"views is one string; give a list of views: [{views!r}]")
        parsed = [parse_view(name, n_layers=self.n_layers) for name in views]
        asked = self.max_length if max_length is None else max_length
        length = choose_max_length(self.checkpoint, self.tokenizer, asked)
        settings = TokenizerSettings(max_length=length, prefix=prefix)
        found: dict[str, list[Floats]] = {view.name: [] for view in parsed}
        with _progress(len(given), show=show_progress_bar) as advance:
            for rows, shard in self._shards(given, parsed, settings):
                for name, vectors in shard.views.items():
                    found[name].append(vectors)
                advance(rows)
        result = {}
        for view in parsed:
            empty = np.zeros((0, view.layer.width(self.width)), np.float32)
            vectors = np.concatenate([empty, *found[view.name]])
            result[view.name] = l2_normalize(vectors) if normalize_embeddings else vectors
        return result

    def _shards(
        self, texts: Sequence[str], views: Sequence[View], settings: TokenizerSettings
    ) -> Iterator[tuple[int, ShardVectors]]:
        """Encode part by part: the next one is tokenized while a device works on this one."""
        before: tuple[int, PendingShard] | None = None
        for start in range(0, len(texts), _ENCODE_ROWS):
            part = texts[start : start + _ENCODE_ROWS]
            tokenized = self.tokenizer.encode(part, settings=settings)
            begun = self.start_shard(tokenized, views=views)
            if before is not None:
                yield before[0], before[1].result()
            before = len(part), begun
        if before is not None:
            yield before[0], before[1].result()

    def encode_shard(
        self,
        texts: Sequence[TokenizedText],
        *,
        views: Sequence[View],
        token_layers: Sequence[LayerSpec] = (),
        special_tokens: bool = True,
        on_tokens: Callable[[int], None] = lambda _: None,
    ) -> ShardVectors:
        """Run tokenized texts through the model and wait for their vectors.

        Arguments and errors as for :meth:`start_shard`.
        """
        return self.start_shard(
            texts,
            views=views,
            token_layers=token_layers,
            special_tokens=special_tokens,
            on_tokens=on_tokens,
        ).result()

    def start_shard(
        self,
        texts: Sequence[TokenizedText],
        *,
        views: Sequence[View],
        token_layers: Sequence[LayerSpec] = (),
        special_tokens: bool = True,
        on_tokens: Callable[[int], None] = lambda _: None,
    ) -> PendingShard:
        """Run tokenized texts through the model; on CUDA the work goes on when this returns.

        Sequences are sorted by length, equal ones run once, and batches are filled up to
        ``batch_tokens``. Of a text in several windows, ``mean`` and ``max`` run over all its
        tokens, each taken once (from the window where it has most context); ``cls`` and
        ``pooler`` are the means over its windows.

        Args:
            texts: the tokenized texts.
            views: sentence vectors to compute.
            token_layers: layers whose token vectors are kept.
            special_tokens: whether ``mean`` and ``max`` count special tokens.
            on_tokens: called with the number of tokens done after each batch.

        Raises:
            EncodeError: memory does not even suffice for one sequence.
            ModelError: ``pooler`` was asked of a checkpoint that has none.
        """
        if any(view.pooling is Pooling.POOLER for view in views):
            self.require_pooler()
        if not texts or not (views or token_layers):
            empty = self._empty(views, token_layers)
            return PendingShard(lambda: empty, nbytes=0)
        sequences = _unique_sequences(texts, special_tokens=special_tokens)
        run = _ShardRun(self, sequences, views, token_layers, on_tokens)
        run.all_batches()
        return PendingShard(lambda: run.collect(texts), nbytes=run.nbytes)

    def require_pooler(self) -> None:
        """Raise a :class:`ModelError` if the checkpoint has no pooler weights."""
        if not self.has_pooler:
            raise ModelError(
                f"{self.checkpoint.name} has no pooler weights, so --pooling pooler would be "
                "random numbers. Use cls or mean."
            )

    def _empty(self, views: Sequence[View], token_layers: Sequence[LayerSpec]) -> ShardVectors:
        def none(spec: LayerSpec) -> Floats:
            return np.zeros((0, spec.width(self.width)), np.float32)

        return ShardVectors(
            views={view.name: none(view.layer) for view in views},
            tokens={spec.name: none(spec) for spec in token_layers},
            encoded=0,
            splits=0,
            seconds=0.0,
        )


@dataclass(slots=True)
class _Sequences:
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


def _unique_sequences(texts: Sequence[TokenizedText], *, special_tokens: bool) -> _Sequences:
    """Find equal sequences: same ids, same segments, same tokens counted."""
    found: dict[tuple[bytes, bytes, bytes], int] = {}
    result = _Sequences()
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


class _ShardRun:
    """One shard: its sequences in order of length on the model's device, and its results."""

    def __init__(
        self,
        encoder: Encoder,
        sequences: _Sequences,
        views: Sequence[View],
        token_layers: Sequence[LayerSpec],
        on_tokens: Callable[[int], None],
    ) -> None:
        self._began = time.perf_counter()
        self._model = encoder.model
        self._budget = encoder.batch_tokens
        self._sequences = sequences
        self._views = list(dict.fromkeys(views))
        self._token_layers = list(dict.fromkeys(token_layers))
        self._on_tokens = on_tokens
        self._splits = 0
        specs = {*(v.layer for v in views), *token_layers}
        self._specs = sorted(specs, key=lambda s: (s.layers[-1], s.layers, s.combination or ""))
        self._layers = sorted({layer for spec in specs for layer in spec.layers})
        self._last_use = {layer: spec.layers[-1] for spec in self._specs for layer in spec.layers}
        self._first_only = self._wants_first_only()
        self._lay_out()
        widths = {v.name: v.layer.width(encoder.width) for v in self._views}
        self._vectors = _block(len(self._starts) - 1, widths, self._model.device)
        widths = {s.name: s.width(encoder.width) for s in self._token_layers}
        self._tokens = _block(int(self._starts[-1]), widths, self._model.device)
        buffers = (*self._vectors.values(), *self._tokens.values())
        self.nbytes = sum(tensor.nbytes for tensor in buffers)
        self._first: torch.cuda.Event | None = None
        self._launched: torch.cuda.Event | None = None

    def _wants_first_only(self) -> bool:
        """Whether of the highest layer nothing but the first tokens is asked for."""
        users = [spec for spec in self._specs if self._layers[-1] in spec.layers]
        poolings = {view.pooling for view in self._views if view.layer in users}
        return (
            all(len(spec.layers) == 1 for spec in users)
            and not any(spec in self._token_layers for spec in users)
            and poolings <= {Pooling.CLS, Pooling.POOLER}
        )

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
        self._ids = self._sent(np.concatenate([windows[i].ids for i in order]))
        self._types = self._sent(np.concatenate([windows[i].type_ids for i in order]))
        self._offsets = self._sent(self._begins)
        self._rows = self._sent(rows)
        self._bags = self._sent(self._counted)
        self._places = self._sent(seats[order])
        if self._token_layers:
            shift = np.repeat(self._starts[seats[order]] - self._begins[:-1], self._lengths)
            self._token_places = self._sent(np.arange(self._begins[-1]) + shift)

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

    def _sent(self, values: NDArray[Any]) -> torch.Tensor:
        """An array of integers on the model's device; the host does not wait for the copy."""
        tensor = torch.from_numpy(values.astype(np.int64))
        if self._model.device.type == "cuda":
            return tensor.pin_memory().to(self._model.device, non_blocking=True)
        return tensor

    def all_batches(self) -> None:
        self._first = self._event()
        for start, stop in cut_batches(self._lengths, self._budget, padded=self._model.pads):
            self._run(start, stop)
        self._launched = self._event()
        self._host_seconds = time.perf_counter() - self._began

    def _event(self) -> torch.cuda.Event | None:
        """On CUDA, a mark behind all work that has been given to the device so far."""
        if self._model.device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._model.device))
        return event

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
                    "tokens. Use a smaller --max-length, or another device."
                ) from error
        else:
            self._on_tokens(int(self._begins[stop] - self._begins[start]))
            return
        self._splits += 1
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()
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
        rows = self._rows[counted] - begin
        bags = self._bags[start:stop] - counted.start
        held: dict[int, torch.Tensor] = {}

        def on_layer(layer: int, hidden: torch.Tensor) -> None:
            held[layer] = hidden
            firsts = batch.offsets[:-1]
            if self._first_only and layer == self._layers[-1]:
                firsts = torch.arange(stop - start, device=hidden.device)
            for spec in self._specs:
                if spec.layers[-1] != layer:
                    continue
                states = combine_layers([held[i] for i in spec.layers], spec.combination)
                for view in self._views:
                    if view.layer == spec:
                        pooled = self._pool(view.pooling, states, rows, bags, firsts)
                        self._vectors[view.name].index_copy_(0, self._places[start:stop], pooled)
                if spec in self._token_layers:
                    places = self._token_places[begin:end]
                    self._tokens[spec.name].index_copy_(0, places, states.float())
            for unused in [i for i in held if self._last_use[i] <= layer]:
                del held[unused]

        self._model.forward(batch, self._layers, on_layer, first_only=self._first_only)

    def _pool(
        self,
        pooling: Pooling,
        states: torch.Tensor,
        rows: torch.Tensor,
        bags: torch.Tensor,
        firsts: torch.Tensor,
    ) -> torch.Tensor:
        if pooling is Pooling.MEAN:  # sums; divided when the windows of a text are together
            return sum_tokens(states, rows, bags)
        if pooling is Pooling.MAX:
            return max_tokens(states, rows, bags)
        if pooling is Pooling.POOLER:
            return self._model.pool(states[firsts])
        return first_tokens(states, firsts)

    def collect(self, texts: Sequence[TokenizedText]) -> ShardVectors:
        """Put the sequences' results back to the texts they belong to."""
        used = np.array(self._sequences.used, np.int64)
        views = self._on_host(self._vectors)
        tokens = self._on_host(self._tokens)
        if self._in_place:
            self._repeat(views, tokens, used)
        else:
            views = _gathered(views, used)
            tokens = _gathered(tokens, self._token_rows(texts, used)) if tokens else tokens
        for view in self._views:
            values = views[view.name]
            if len(used) != len(texts):
                views[view.name] = self._over_windows(view.pooling, values, used)
            elif view.pooling is Pooling.MEAN:
                values /= np.maximum(self._counts[used], 1).astype(np.float32)[:, None]
        seconds = self._host_seconds
        if self._first is not None and self._launched is not None:
            seconds = max(seconds, self._first.elapsed_time(self._launched) / 1e3)
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

    def _on_host(self, matrices: dict[str, torch.Tensor]) -> dict[str, Floats]:
        """The results as arrays. From a device they are copied beside its further work."""
        if self._launched is None:
            return {name: matrix.numpy() for name, matrix in matrices.items()}
        copies = {n: torch.empty(m.shape, pin_memory=True) for n, m in matrices.items()}
        stream = torch.cuda.Stream(self._model.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            stream.wait_event(self._launched)
            for name, copy in copies.items():
                copy.copy_(matrices[name], non_blocking=True)
        stream.synchronize()
        return {name: copy.numpy() for name, copy in copies.items()}

    def _over_windows(
        self,
        pooling: Pooling,
        values: Floats,
        used: NDArray[np.int64],
    ) -> Floats:
        per_text = np.array(self._sequences.per_text, np.int64)
        first = np.cumsum(per_text) - per_text
        if pooling is Pooling.MAX:  # every one of several windows has tokens that count
            return np.asarray(np.maximum.reduceat(values, first), np.float32)
        sums = np.add.reduceat(values, first)
        total = np.add.reduceat(self._counts[used], first) if pooling is Pooling.MEAN else per_text
        return np.asarray(sums / np.maximum(total, 1).astype(np.float32)[:, None], np.float32)

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


def l2_normalize(vectors: Floats) -> Floats:
    """Scale each row to length 1; rows of zeros stay. As sentence-transformers does."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, np.float32(1e-12)), dtype=np.float32)


def _trial(checkpoint: Checkpoint, notify: Callable[[str], None]) -> PrecisionTrial:
    inner = int(checkpoint.config.get("intermediate_size", 4 * checkpoint.width))
    trial = time_products(width=checkpoint.width, inner=inner)
    chosen = "bf16" if trial.speedup >= GAIN else "fp32"
    notify(
        f"precision: {chosen}; here bf16 takes {trial.bf16 / trial.fp32:.2f} of the time of fp32"
    )
    return trial


def _list_of_texts(texts: Iterable[str]) -> list[str]:
    """The texts as plain strings, each of which a tokenizer can take."""
    if isinstance(texts, str):
        raise TypeError("texts is one string; give a list of texts: encode([text])")
    given = list(texts)
    for place, text in enumerate(given):
        if not isinstance(text, str):
            raise TypeError(f"texts[{place}] is {text!r:.60}, of type {type(text).__name__}; "
                            "expected a string")  # fmt: skip
    return given


class _progress:  # noqa: N801 - used as a function
    """A progress bar over texts, or nothing."""

    def __init__(self, total: int, *, show: bool) -> None:
        self._bar: Any = None
        if show:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True))
            self._task = self._bar.add_task("encoding", total=total)

    def __enter__(self) -> Callable[[int], None]:
        if self._bar is None:
            return lambda _: None
        self._bar.start()
        return lambda count: self._bar.advance(self._task, count)

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()
