"""Texts → views, word and token vectors: a checkpoint with its tokenizer, ready to use.

The unit is a shard: a list of texts that is sorted by length, batched, run and put back in order
as a whole (:mod:`embedkit.encoding.shard`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import numpy as np

from embedkit.choices import SUBTOKENS, check_choice
from embedkit.encoding.checkpoint import DEFAULT_MODEL, Checkpoint, find_checkpoint
from embedkit.encoding.device import BATCH_TOKENS, Link, choose_device
from embedkit.encoding.model import PRECISIONS, PlainModel, load_model
from embedkit.encoding.packed import PackedModel, fastest
from embedkit.encoding.precision import choose_precision
from embedkit.encoding.shard import PendingShard
from embedkit.encoding.tables import TokenVectors, WordVectors, joined, token_vectors, word_vectors
from embedkit.encoding.tokenization import TextTokenizer, TokenizedText, TokenizerSettings
from embedkit.encoding.views import (
    LayerSpec,
    Pooling,
    ShardVectors,
    View,
    l2_normalize,
    parse_layers,
    parse_view,
)
from embedkit.encoding.vocabulary import check_max_length, choose_max_length, open_tokenizer
from embedkit.errors import UsageError, check_counts
from embedkit.types import Float32

__all__ = ["BATCH_TOKENS", "Encoder", "PendingShard", "ShardVectors", "l2_normalize"]

_ENCODE_ROWS = 4_096


@dataclass(eq=False, repr=False)
class Encoder:
    """A checkpoint with its tokenizer, ready to turn texts into vectors.

    Args:
        checkpoint: what was loaded.
        tokenizer: its tokenizer.
        model: runs the layers.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        max_length: tokens per sequence, unless a call sets another number.
        batch_tokens: tokens per batch, with what padding the forward needs.

    Example:
        >>> encoder = embedkit.Encoder.load()
        >>> encoder.encode(["A film.", "Ein Film."]).shape
        (2, 384)
    """

    checkpoint: Checkpoint
    tokenizer: TextTokenizer
    model: PlainModel | PackedModel
    _: KW_ONLY
    precision: str
    max_length: int
    batch_tokens: int

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

        Example:
            >>> embedkit.Encoder.load(device="cpu", max_length=64)
            Encoder('sentence-transformers/all-MiniLM-L6-v2', n_layers=6, width=384,
            device='cpu', precision='fp32', max_length=64)
        """
        check_choice(("auto", "transformers"), forward=forward)
        check_counts(batch_tokens=batch_tokens)
        checkpoint = find_checkpoint(model, revision=revision, offline=offline)
        where = choose_device(device)
        chosen = choose_precision(precision, where, checkpoint)
        check_max_length(checkpoint, max_length)
        tokenizer = open_tokenizer(checkpoint)
        length = choose_max_length(checkpoint, tokenizer, max_length)
        dtype = PRECISIONS[chosen]
        plain = load_model(checkpoint, pad_id=tokenizer.pad_id, device=where, dtype=dtype)
        ready = plain if forward == "transformers" else fastest(plain, checkpoint)
        return cls(
            checkpoint, tokenizer, ready, precision=chosen, max_length=length,
            batch_tokens=batch_tokens or BATCH_TOKENS[where.type],
        )  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"Encoder({self.checkpoint.name!r}, n_layers={self.n_layers}, width={self.width}, "
            f"device='{self.model.device}', precision={self.precision!r}, "
            f"max_length={self.max_length})"
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
        batch_size: int | None = None,
        normalize_embeddings: bool = False,
        show_progress_bar: bool = False,
        max_length: int | None = None,
        prefix: str | None = None,
    ) -> Float32:
        """Vectors of texts: ``(n, width)`` float32 in input order.

        Args:
            texts: the texts; a single string is refused.
            pooling: ``cls``, ``mean``, ``max``, ``last_token`` or ``pooler``.
            layer: 0 is the embedding output, negative numbers count from the end; ``pooler``
                has none and ignores it.
            batch_size: most texts that are in memory and in one batch at a time; by default
                4,096, in batches of as many tokens as suit the device.
            normalize_embeddings: scale every vector to length 1 (L2).
            show_progress_bar: show progress on standard error.
            max_length: tokens per text; longer ones are truncated.
            prefix: put before every text, such as ``"query: "``; by default that of the checkpoint
                (``multilingual`` has one), ``""`` for none.

        Raises:
            TypeError: ``texts`` is a string, or holds something else than strings.
            UsageError: there is no such pooling or layer, or a text is not Unicode.

        Example:
            >>> encoder = embedkit.Encoder.load()
            >>> X = encoder.encode(["A good film.", "A bad film."], normalize_embeddings=True)
            >>> X.shape, round(float(X[0] @ X[1]), 2)
            ((2, 384), 0.74)
        """
        name = pooling if pooling == "pooler" else f"{pooling}_{layer}"
        views = self.encode_views(
            texts,
            [name],
            batch_size=batch_size,
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
        batch_size: int | None = None,
        normalize_embeddings: bool = False,
        show_progress_bar: bool = False,
        max_length: int | None = None,
        prefix: str | None = None,
    ) -> dict[str, Float32]:
        """Several views by one forward pass: ``{"mean_6": (n, width), ...}``, float32, input order.

        Args:
            texts: the texts; a single string is refused.
            views: names such as ``mean_-1``, ``cls_0``, ``mean_sum_9to12``, ``pooler``; the keys
                of the result have positive layer numbers.
            batch_size: as for :meth:`encode`, like all that follow.
            normalize_embeddings: scale every vector to length 1 (L2).
            show_progress_bar: show progress on standard error.
            max_length: tokens per text; longer ones are truncated.
            prefix: put before every text.

        Raises:
            TypeError: ``texts`` or ``views`` is a string, or ``texts`` holds something else than
                strings.
            UsageError: there is no such view, or a text is not Unicode.

        Example:
            >>> encoder = embedkit.Encoder.load()
            >>> views = encoder.encode_views(["A film."], ["mean_-1", "cls_0"])
            >>> {name: vectors.shape for name, vectors in views.items()}
            {'mean_6': (1, 384), 'cls_0': (1, 384)}
        """
        given = _strings("texts", texts)
        if isinstance(views, str):
            raise TypeError(f"views is one string; give a list of views: [{views!r}]")
        parsed = [parse_view(name, n_layers=self.n_layers) for name in views]
        shards = self._shards(
            given, views=parsed, batch_size=batch_size, show=show_progress_bar,
            max_length=max_length, prefix=prefix,
        )  # fmt: skip
        found = [shard.views for _, _, shard in shards]
        result = {}
        for view in parsed:
            vectors = np.concatenate([shard[view.name] for shard in found])
            result[view.name] = l2_normalize(vectors) if normalize_embeddings else vectors
        return result

    def encode_tokens(
        self,
        texts: Iterable[str],
        *,
        layers: str | int | Iterable[str | int] = -1,
        batch_size: int | None = None,
        show_progress_bar: bool = False,
        max_length: int | None = None,
        prefix: str | None = None,
    ) -> TokenVectors:
        """Vectors of all tokens of texts, special ones included, with offsets into the texts.

        The same rows and vectors as ``extract(tokens=True)`` writes.

        Args:
            texts: the texts; a single string is refused.
            layers: such as ``-1``, ``[0, 6]``, ``"all"`` or ``"sum:-4..-1"``.
            batch_size: as for :meth:`encode`, like all that follow.
            show_progress_bar: show progress on standard error.
            max_length: tokens per text; what is behind them has no rows.
            prefix: put before every text; its tokens have rows, whose offsets are 0.

        Raises:
            TypeError: ``texts`` is a string, or holds something else than strings.
            UsageError: there is no such layer, or a text is not Unicode.

        Example:
            >>> tokens = embedkit.Encoder.load().encode_tokens(["unbelievable films"])
            >>> list(tokens.token), tokens.X.shape
            (['[CLS]', 'unbelievable', 'films', '[SEP]'], (4, 384))
        """
        given = _strings("texts", texts)
        shards = self._shards(
            given, token_layers=parse_layers(layers, n_layers=self.n_layers), prefix=prefix,
            batch_size=batch_size, show=show_progress_bar, max_length=max_length,
        )  # fmt: skip
        return joined([
            token_vectors(tokenized, shard.tokens, self.tokenizer, first_row=first)
            for first, tokenized, shard in shards
        ])  # fmt: skip

    def encode_words(
        self,
        texts: Iterable[str] | None = None,
        *,
        words: Iterable[Sequence[str]] | None = None,
        layers: str | int | Iterable[str | int] = -1,
        subtokens: str = "mean",
        batch_size: int | None = None,
        show_progress_bar: bool = False,
        max_length: int | None = None,
        prefix: str | None = None,
    ) -> WordVectors:
        """Vectors of the whitespace words of texts, with offsets into the texts.

        The same rows and vectors as ``extract(words=...)`` writes.

        Args:
            texts: the texts; a single string is refused.
            words: instead of texts, each text as a list of its words, which are joined by single
                spaces; offsets are those in the joined text.
            layers: such as ``-1``, ``[0, 6]``, ``"all"`` or ``"sum:-4..-1"``.
            subtokens: ``first``, ``last``, ``first_last`` (mean of both) or ``mean`` of the tokens
                of a word.
            batch_size: as for :meth:`encode`, like all that follow.
            show_progress_bar: show progress on standard error.
            max_length: tokens per text; words behind them have no rows.
            prefix: put before every text.

        Raises:
            TypeError: ``texts`` is a string, or holds something else than strings; or ``words``
                does not hold lists of strings.
            UsageError: there is no such layer or kind of ``subtokens``; a text is not Unicode; a
                word is empty or contains whitespace; or both texts and words are given.

        Example:
            >>> encoder = embedkit.Encoder.load()
            >>> found = encoder.encode_words(["A ship sails.", "No."], layers=[0, 6])
            >>> list(zip(found.row.tolist(), found.text, found.start.tolist()))
            [(0, 'A', 0), (0, 'ship', 2), (0, 'sails.', 7), (1, 'No.', 0)]
            >>> {layer: vectors.shape for layer, vectors in found.vectors.items()}
            {'0': (4, 384), '6': (4, 384)}
            >>> same = encoder.encode_words(words=[["A", "ship", "sails."], ["No."]])
            >>> bool((same.X == found.vectors["6"]).all())
            True
        """
        if (texts is None) == (words is None):
            raise UsageError("give either texts or words=.")
        given = _joined_words(words) if texts is None else _strings("texts", texts)
        check_choice(SUBTOKENS, subtokens=subtokens)
        sources = [[text] for text in given]
        shards = self._shards(
            given, token_layers=parse_layers(layers, n_layers=self.n_layers), prefix=prefix,
            batch_size=batch_size, show=show_progress_bar, max_length=max_length,
        )  # fmt: skip
        return joined([
            word_vectors(tokenized, sources[first:], shard.tokens, subtokens, first_row=first)
            for first, tokenized, shard in shards
        ])  # fmt: skip

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
            ModelError: ``pooler`` is among the views, and the checkpoint has none.
        """
        if any(view.pooling is Pooling.POOLER for view in views):
            self.require_pooler()
        return PendingShard(
            self.model,
            Link(self.model.device),
            texts,
            views=views,
            token_layers=token_layers,
            special_tokens=special_tokens,
            batch_tokens=self.batch_tokens,
            on_tokens=on_tokens,
        )

    def require_pooler(self) -> None:
        """Raise a :class:`ModelError` if the checkpoint has no pooler weights."""
        if not self.has_pooler:
            raise self.checkpoint.without_pooler()

    def _shards(
        self,
        texts: Sequence[str],
        *,
        views: Sequence[View] = (),
        token_layers: Sequence[LayerSpec] = (),
        batch_size: int | None,
        show: bool,
        max_length: int | None,
        prefix: str | None,
    ) -> Iterator[tuple[int, list[TokenizedText], ShardVectors]]:
        """Encode shard by shard: the next one is tokenized while a device works on this one.

        Yields the number of the first text, the tokenized texts and the vectors; at least once.
        """
        check_counts(batch_size=batch_size)
        rows = batch_size or _ENCODE_ROWS
        asked = self.max_length if max_length is None else max_length
        length = choose_max_length(self.checkpoint, self.tokenizer, asked)
        settings = TokenizerSettings(length, prefix=self.checkpoint.prefix_or_own(prefix))
        begun: deque[tuple[int, list[TokenizedText], PendingShard]] = deque()
        with _progress_bar(len(texts), show=show) as advance:
            for first in range(0, max(len(texts), 1), rows):
                tokenized = self.tokenizer.encode(
                    texts[first : first + rows], settings=settings, offsets=bool(token_layers)
                )
                shard = self.start_shard(tokenized, views=views, token_layers=token_layers)
                begun.append((first, tokenized, shard))
                while len(begun) > (first + rows < len(texts)):
                    start, part, pending = begun.popleft()
                    yield start, part, pending.result()
                    advance(len(part))


def _strings(name: str, values: Iterable[str]) -> list[str]:
    """A list of strings that was given for a parameter; a single string is refused."""
    if isinstance(values, str):
        raise TypeError(f"{name} is one string; give a list of strings: [{values!r:.60}]")
    given = list(values)
    for i, value in enumerate(given):
        if not isinstance(value, str):
            raise TypeError(
                f"{name}[{i}] is {value!r:.60}, of type {type(value).__name__}; expected a string"
            )
    return given


def _joined_words(words: Iterable[Sequence[str]] | None) -> list[str]:
    """Texts that were given as lists of words, joined by spaces."""
    if isinstance(words, str):
        raise TypeError("words is one string; give a list of words for every text")
    texts = [_strings(f"words[{i}]", some) for i, some in enumerate(words or ())]
    for i, some in enumerate(texts):
        for word in some:
            if word.split() != [word]:
                raise UsageError(
                    f"words[{i}] holds {word!r:.60}; expected words without whitespace"
                )
    return [" ".join(some) for some in texts]


@contextmanager
def _progress_bar(total: int, *, show: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar over texts on standard error, or nothing."""
    if not show:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("encoding", total=total)
        yield lambda count: bar.advance(task, count)
