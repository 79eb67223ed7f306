"""Texts → views, word and token vectors: a checkpoint with its tokenizer, ready to use.

The unit is a shard: a list of texts that is sorted by length, batched, run and put back in order
as a whole (:mod:`embedkit.encoding.shard`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.encoding.checkpoint import DEFAULT_MODEL, Checkpoint, find_checkpoint
from embedkit.encoding.device import BATCH_TOKENS, choose_device, link_to
from embedkit.encoding.model import PRECISIONS, PlainModel, load_model
from embedkit.encoding.packed import PackedModel, fastest
from embedkit.encoding.precision import GAIN, PrecisionTrial, choose_precision, time_products
from embedkit.encoding.shard import ShardRun, ShardVectors, cut_batches, unique_sequences
from embedkit.encoding.tokenization import (
    TextTokenizer,
    TokenizedText,
    TokenizerSettings,
    choose_max_length,
    load_tokenizer,
)
from embedkit.encoding.views import LayerSpec, Pooling, View, parse_view
from embedkit.errors import ModelError, UsageError

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

logger = logging.getLogger(__name__)

_ENCODE_ROWS = 4_096


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
    ) -> Encoder:
        """Load a checkpoint by hub id or folder.

        Args:
            model: hub id or folder.
            revision: branch, tag or commit of a hub checkpoint.
            device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
            precision: ``fp32``, ``bf16``, ``fp16`` or ``auto`` (see
                :func:`~embedkit.encoding.precision.choose_precision`); by default fp32 on CPU and
                bf16 on CUDA, or fp16 where the device has no bf16 of its own.
            max_length: tokens per sequence; by default what the checkpoint states.
            batch_tokens: tokens per batch, with what padding the forward needs; by default
                by device.
            offline: never ask the hub.
            forward: ``auto``, the padding-free forward where it applies and agrees with the
                plain one; or ``transformers``, always the plain one.

        Raises:
            ModelError: the checkpoint cannot be found or used.
            UsageError: the device, precision or length cannot be had.
        """
        if forward not in ("auto", "transformers"):
            raise UsageError(f"forward={forward!r}: expected 'auto' or 'transformers'.")
        checkpoint = find_checkpoint(model, revision=revision, offline=offline)
        where = choose_device(device)
        chosen = choose_precision(precision, where, trial=lambda: _trial(checkpoint))
        tokenizer = load_tokenizer(checkpoint)
        length = choose_max_length(checkpoint, tokenizer, max_length)
        plain = load_model(
            checkpoint, pad_id=tokenizer.pad_id, device=where, dtype=PRECISIONS[chosen]
        )
        return cls(
            checkpoint,
            tokenizer,
            fastest(plain, checkpoint) if forward == "auto" else plain,
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
            pooling: ``cls``, ``mean``, ``max``, ``last_token`` or ``pooler``.
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
        run = ShardRun(
            self.model,
            link_to(self.model.device),
            unique_sequences(texts, special_tokens=special_tokens),
            views=views,
            token_layers=token_layers,
            batch_tokens=self.batch_tokens,
            on_tokens=on_tokens,
        )
        run.all_batches()
        return PendingShard(lambda: run.collect(texts), nbytes=run.nbytes)

    def require_pooler(self) -> None:
        """Raise a :class:`ModelError` if the checkpoint has no pooler weights."""
        if not self.has_pooler:
            raise ModelError(
                f"{self.checkpoint.name} has no pooler weights, so pooling='pooler' would be "
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


def l2_normalize(vectors: Floats) -> Floats:
    """Scale each row to length 1; rows of zeros stay. As sentence-transformers does."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, np.float32(1e-12)), dtype=np.float32)


def _trial(checkpoint: Checkpoint) -> PrecisionTrial:
    inner = int(checkpoint.config.get("intermediate_size", 4 * checkpoint.width))
    trial = time_products(width=checkpoint.width, inner=inner)
    chosen = "bf16" if trial.speedup >= GAIN else "fp32"
    logger.info(
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
