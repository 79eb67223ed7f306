"""Tokenized texts → views, word and token vectors, by one forward pass over length-sorted batches.

The unit is a shard: a list of texts that is sorted by length, batched, run and put back in order
as a whole. Which batches are made depends on the shard alone, so the same shard gives the same
bits again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embedkit.checkpoint import DEFAULT_MODEL, Checkpoint, find_checkpoint
from embedkit.errors import EncodeError, ModelError, UsageError
from embedkit.model import PRECISIONS, PackedBatch, PlainModel, load_model
from embedkit.pooling import combine_layers, first_tokens, max_tokens, sum_tokens
from embedkit.tokenization import (
    TextTokenizer,
    TokenizedText,
    TokenizerSettings,
    Window,
    load_tokenizer,
)
from embedkit.views import LayerSpec, Pooling, View, parse_view

__all__ = [
    "BATCH_TOKENS",
    "Encoder",
    "ShardVectors",
    "choose_device",
    "choose_max_length",
    "choose_precision",
    "l2_normalize",
    "plan_batches",
]

Floats = NDArray[np.float32]

BATCH_TOKENS = {"cpu": 2_048, "cuda": 65_536}
"""Tokens of a batch, padding included, by kind of device."""

_ENCODE_ROWS = 4_096


@dataclass(frozen=True, slots=True)
class ShardVectors:
    """Vectors of the texts of one shard, in their order.

    Attributes:
        views: ``(texts, width)`` float32 for every view, by column name.
        tokens: ``(all kept tokens, width)`` float32 for every token layer, by layer name;
            text after text, in the order of :class:`~embedkit.tokenization.TokenizedText`.
        encoded: texts or windows that went through the model, repeated ones once.
        splits: batches that were halved because memory ran out.
    """

    views: dict[str, Floats]
    tokens: dict[str, Floats]
    encoded: int
    splits: int


class Encoder:
    """A checkpoint with its tokenizer, ready to turn texts into vectors.

    Args:
        checkpoint: what was loaded.
        tokenizer: its tokenizer.
        model: runs the layers.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        max_length: tokens per sequence where a call does not say.
        batch_tokens: tokens per batch, padding included.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        tokenizer: TextTokenizer,
        model: PlainModel,
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
        model: str = DEFAULT_MODEL,
        *,
        revision: str | None = None,
        device: str = "auto",
        precision: str | None = None,
        max_length: int | None = None,
        batch_tokens: int | None = None,
        offline: bool = False,
        notify: Callable[[str], None] = lambda _: None,
    ) -> Encoder:
        """Load a checkpoint by hub id or folder.

        Args:
            model: hub id or folder.
            revision: branch, tag or commit of a hub checkpoint.
            device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
            precision: ``fp32``, ``bf16``, ``fp16`` or ``auto``; by default fp32 on CPU and bf16
                on CUDA.
            max_length: tokens per sequence; by default what the checkpoint states.
            batch_tokens: tokens per batch, padding included; by default by device.
            offline: never ask the hub.
            notify: called with sentences for the user.

        Raises:
            ModelError: the checkpoint cannot be found or used.
            UsageError: the device, precision or length cannot be had.
        """
        checkpoint = find_checkpoint(model, revision=revision, offline=offline)
        where = choose_device(device)
        chosen = choose_precision(precision, where)
        tokenizer = load_tokenizer(checkpoint, notify=notify)
        length = choose_max_length(checkpoint, tokenizer, max_length)
        backend = load_model(
            checkpoint,
            pad_id=tokenizer.pad_id,
            device=where,
            dtype=PRECISIONS[chosen],
            notify=notify,
        )
        return cls(
            checkpoint,
            tokenizer,
            backend,
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
        texts: Sequence[str],
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
        texts: Sequence[str],
        views: Sequence[str],
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
        """
        if isinstance(texts, str):
            raise TypeError("texts is one string; give a list of texts: encode([text])")
        parsed = [parse_view(name, n_layers=self.n_layers) for name in views]
        asked = self.max_length if max_length is None else max_length
        length = choose_max_length(self.checkpoint, self.tokenizer, asked)
        settings = TokenizerSettings(max_length=length, prefix=prefix)
        found: dict[str, list[Floats]] = {view.name: [] for view in parsed}
        with _progress(len(texts), show=show_progress_bar) as advance:
            for start in range(0, len(texts), _ENCODE_ROWS):
                part = list(texts[start : start + _ENCODE_ROWS])
                tokenized = self.tokenizer.encode(part, settings=settings)
                shard = self.encode_shard(tokenized, views=parsed)
                for name, vectors in shard.views.items():
                    found[name].append(vectors)
                advance(len(part))
        result = {}
        for view in parsed:
            empty = np.zeros((0, view.layer.width(self.width)), np.float32)
            vectors = np.concatenate([empty, *found[view.name]])
            result[view.name] = l2_normalize(vectors) if normalize_embeddings else vectors
        return result

    def encode_shard(
        self,
        texts: Sequence[TokenizedText],
        *,
        views: Sequence[View],
        token_layers: Sequence[LayerSpec] = (),
        special_tokens: bool = True,
        on_tokens: Callable[[int], None] = lambda _: None,
    ) -> ShardVectors:
        """Run tokenized texts through the model.

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
            return self._empty(views, token_layers)
        sequences = _unique_sequences(texts, special_tokens=special_tokens)
        run = _ShardRun(self, sequences, views, token_layers, on_tokens)
        run.all_batches()
        return run.collect(texts)

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
    """Buffers of one shard while its batches run."""

    def __init__(
        self,
        encoder: Encoder,
        sequences: _Sequences,
        views: Sequence[View],
        token_layers: Sequence[LayerSpec],
        on_tokens: Callable[[int], None],
    ) -> None:
        self._model = encoder.model
        self._budget = encoder.batch_tokens
        self._sequences = sequences
        self._views = list(dict.fromkeys(views))
        self._token_layers = list(dict.fromkeys(token_layers))
        self._on_tokens = on_tokens
        self._splits = 0
        self._lengths = np.array([len(w.ids) for w in sequences.windows], np.int64)
        self._counts = np.array(
            [len(w.ids) if k is None else len(k)
             for w, k in zip(sequences.windows, sequences.kept, strict=True)], np.int64,
        )  # fmt: skip
        n = len(sequences.windows)
        self._vectors = _block(n, {v.name: v.layer.width(encoder.width) for v in views})
        self._starts = np.concatenate([[0], np.cumsum(self._lengths)])
        total = int(self._starts[-1])
        self._tokens = _block(total, {s.name: s.width(encoder.width) for s in token_layers})
        specs = {*(v.layer for v in views), *token_layers}
        self._specs = sorted(specs, key=lambda s: (s.layers[-1], s.layers, s.combination or ""))
        self._layers = sorted({layer for spec in specs for layer in spec.layers})

    def all_batches(self) -> None:
        for chosen in plan_batches(self._lengths, self._budget):
            self._run(chosen)

    def _run(self, chosen: NDArray[np.int64]) -> None:
        """Run one batch; halve it by sequences, always in the same way, if memory runs out."""
        try:
            self._forward(chosen)
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            if len(chosen) == 1:
                raise EncodeError(
                    f"memory does not suffice for one sequence of {self._lengths[chosen[0]]} "
                    "tokens. Use a smaller --max-length, or another device."
                ) from error
        else:
            self._on_tokens(int(self._lengths[chosen].sum()))
            return
        self._splits += 1
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()
        middle = len(chosen) // 2
        self._run(chosen[:middle])
        self._run(chosen[middle:])

    def _forward(self, chosen: NDArray[np.int64]) -> None:
        windows = [self._sequences.windows[i] for i in chosen]
        batch = PackedBatch(
            ids=torch.from_numpy(np.concatenate([w.ids for w in windows]).astype(np.int64)),
            type_ids=torch.from_numpy(
                np.concatenate([w.type_ids for w in windows]).astype(np.int64)
            ),
            lengths=torch.from_numpy(self._lengths[chosen]),
        )
        rows, bags = self._counted_rows(chosen, batch)
        pooler = _BatchPooler(self, batch, chosen, rows, bags)
        self._model.forward(batch, self._layers, pooler.on_layer)

    def _counted_rows(
        self, chosen: NDArray[np.int64], batch: PackedBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        offsets = batch.offsets.numpy()
        kept = [self._sequences.kept[i] for i in chosen]
        if all(k is None for k in kept):
            rows = np.arange(int(batch.lengths.sum()))
        else:
            rows = np.concatenate(
                [
                    start + (np.arange(length) if k is None else k)
                    for start, length, k in zip(offsets, self._lengths[chosen], kept, strict=True)
                ]
            )
        counts = self._counts[chosen]
        device = self._model.device
        bags = np.cumsum(counts) - counts
        return torch.from_numpy(rows).to(device), torch.from_numpy(bags).to(device)

    def collect(self, texts: Sequence[TokenizedText]) -> ShardVectors:
        """Put the sequences' results back to the texts they belong to."""
        used = np.array(self._sequences.used, np.int64)
        per_text = np.array(self._sequences.per_text, np.int64)
        first = np.cumsum(per_text) - per_text
        views = {}
        gathered = _gathered(self._vectors, used)
        for view in self._views:
            values = gathered[view.name]
            if len(used) == len(texts):
                if view.pooling is Pooling.MEAN:
                    values /= np.maximum(self._counts[used], 1).astype(np.float32)[:, None]
            else:
                values = self._over_windows(view.pooling, values, used, first, per_text)
            views[view.name] = values
        tokens = {}
        if self._token_layers:
            index = self._token_rows(texts, used)
            tokens = _gathered(self._tokens, index)
        return ShardVectors(views, tokens, encoded=len(self._lengths), splits=self._splits)

    def _over_windows(
        self,
        pooling: Pooling,
        values: Floats,
        used: NDArray[np.int64],
        first: NDArray[np.int64],
        per_text: NDArray[np.int64],
    ) -> Floats:
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


def _block(rows: int, widths: dict[str, int]) -> dict[str, Floats]:
    """Empty ``(rows, width)`` matrices that share one piece of memory.

    One large piece goes back to the system when the shard is done; many pieces of a few megabytes
    would be scattered over the heap between the model's own temporaries and make it grow.
    """
    memory = np.empty(rows * sum(widths.values()), np.float32)
    matrices = {}
    start = 0
    for name, width in widths.items():
        matrices[name] = memory[start : start + rows * width].reshape(rows, width)
        start += rows * width
    return matrices


def _gathered(matrices: dict[str, Floats], index: NDArray[np.int64]) -> dict[str, Floats]:
    """Rows ``index`` of every matrix; the matrices themselves where that is all rows in order."""
    rows = len(next(iter(matrices.values()))) if matrices else 0
    if np.array_equal(index, np.arange(rows)):
        return matrices
    result = _block(len(index), {name: m.shape[1] for name, m in matrices.items()})
    for name, matrix in matrices.items():
        np.take(matrix, index, axis=0, out=result[name])
    return result


class _BatchPooler:
    """Takes the layers of one batch as they come and fills the shard's buffers."""

    def __init__(
        self,
        run: _ShardRun,
        batch: PackedBatch,
        chosen: NDArray[np.int64],
        rows: torch.Tensor,
        bags: torch.Tensor,
    ) -> None:
        self._run = run
        self._chosen = chosen
        self._rows = rows
        self._bags = bags
        self._offsets = batch.offsets.to(rows.device)
        self._lengths = batch.lengths.numpy()
        self._held: dict[int, torch.Tensor] = {}
        self._last_use = {
            layer: spec.layers[-1] for spec in run._specs for layer in spec.layers
        }  # specs ascend by their highest layer, so the last assignment is the latest use

    def on_layer(self, layer: int, hidden: torch.Tensor) -> None:
        self._held[layer] = hidden
        for spec in self._run._specs:
            if spec.layers[-1] == layer:
                states = combine_layers([self._held[i] for i in spec.layers], spec.combination)
                self._sentences(spec, states)
                if spec.name in self._run._tokens and spec in self._run._token_layers:
                    self._token_rows(spec, states)
        self._held = {i: h for i, h in self._held.items() if self._last_use[i] > layer}

    def _sentences(self, spec: LayerSpec, states: torch.Tensor) -> None:
        run = self._run
        for view in run._views:
            if view.layer == spec:
                run._vectors[view.name][self._chosen] = self._pool(view.pooling, states).cpu()

    def _pool(self, pooling: Pooling, states: torch.Tensor) -> torch.Tensor:
        if pooling is Pooling.MEAN:  # sums; divided when the windows of a text are together
            return sum_tokens(states, self._rows, self._bags)
        if pooling is Pooling.MAX:
            return max_tokens(states, self._rows, self._bags)
        if pooling is Pooling.POOLER:
            return self._run._model.pool(states[self._offsets])
        return first_tokens(states, self._offsets)

    def _token_rows(self, spec: LayerSpec, states: torch.Tensor) -> None:
        buffer = self._run._tokens[spec.name]
        values = states.float().cpu().numpy()
        start = 0
        for index, length in zip(self._chosen, self._lengths, strict=True):
            at = self._run._starts[index]
            buffer[at : at + length] = values[start : start + length]
            start += length


def plan_batches(lengths: NDArray[np.int64], budget: int) -> list[NDArray[np.int64]]:
    """Fill batches with sequences of similar length.

    Args:
        lengths: ``(n,)`` tokens of each sequence.
        budget: most tokens of a batch, padding to its longest sequence included; a sequence that
            alone exceeds it makes a batch by itself.

    Returns:
        Indexes into ``lengths`` for each batch, longest sequences first, ties in input order.
    """
    order = np.argsort(-lengths, kind="stable")
    batches = []
    start = 0
    while start < len(order):
        longest = max(int(lengths[order[start]]), 1)
        stop = start + max(budget // longest, 1)
        batches.append(order[start:stop])
        start = stop
    return batches


def l2_normalize(vectors: Floats) -> Floats:
    """Scale each row to length 1; rows of zeros stay. As sentence-transformers does."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, np.float32(1e-12)), dtype=np.float32)


def choose_device(name: str) -> torch.device:
    """``auto`` is CUDA where there is one.

    Raises:
        UsageError: the device does not exist here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"--device {name}: expected auto, cpu, cuda or cuda:0.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"--device {name}: this machine shows {torch.cuda.device_count()} CUDA devices to "
            "PyTorch. Use --device cpu or auto."
        )
    return device


def choose_precision(name: str | None, device: torch.device) -> str:
    """The precision to compute in; by default and by ``auto`` fp32 on CPU and bf16 on CUDA.

    Raises:
        UsageError: the name is unknown.
    """
    if name in (None, "auto"):
        return "bf16" if device.type == "cuda" else "fp32"
    if name not in PRECISIONS:
        raise UsageError(f"--precision {name}: expected auto, {', '.join(PRECISIONS)}.")
    return str(name)


def choose_max_length(checkpoint: Checkpoint, tokenizer: TextTokenizer, asked: int | None) -> int:
    """Tokens per sequence: what was asked, else what the checkpoint states.

    Raises:
        UsageError: more was asked than the model has positions for.
    """
    if asked is None:
        return checkpoint.default_max_length(tokenizer.limit)
    if asked > checkpoint.positions:
        raise UsageError(
            f"--max-length {asked}: {checkpoint.name} has positions for {checkpoint.positions} "
            f"tokens. Use at most {checkpoint.positions}, or --on-long window for long texts."
        )
    return asked


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


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
