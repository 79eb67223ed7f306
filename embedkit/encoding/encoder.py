"""The encoder: texts → views, word and token vectors, shard by shard.

    texts ─ tokenizer ─► TokenizedTexts ─ start_shard ─► PendingShard ─ result ─► ShardVectors
                                          (on a GPU it only queues)    (waits)

One forward pass serves all layers and poolings that are asked for; :meth:`Encoder.encode` is the
case of a single view, as sentence-transformers has it. On a GPU one shard is queued while the next
one is tokenized. Loading chooses the forward: the padding-free one if a trial shows that it agrees
with transformers, whose own is the plain one, kept as the yardstick and for all that cannot be
packed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, overload

import numpy as np
import torch

from embedkit.arguments import accepts, matrix_of, strings_of
from embedkit.choices import DEFAULT_MODEL, SUBTOKENS, Pooling, check_choice, documented
from embedkit.encoding.bert import Bert
from embedkit.encoding.casing import lowered
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.model import (
    BATCH_TOKENS,
    PRECISIONS,
    Model,
    PackedBatch,
    choose_device,
    choose_precision,
    load_model,
    usable_length,
)
from embedkit.encoding.packed import PackedModel, fastest
from embedkit.encoding.pooling import POOLERS, sentence_pooler
from embedkit.encoding.products import calibrate
from embedkit.encoding.shard import OnTokens, PendingShard, Shard
from embedkit.encoding.tables import TokenVectors, WordVectors, joined, token_vectors, word_vectors
from embedkit.encoding.tokenizer import load_tokenizer
from embedkit.encoding.views import (
    LayerSpec,
    ShardVectors,
    View,
    l2_normalize,
    parse_layers,
    parse_poolings,
    parse_view,
)
from embedkit.encoding.windows import TokenizedTexts, TokenizerSettings
from embedkit.errors import EncodeError, Message, ModelError, Option, UsageError
from embedkit.records import Positive
from embedkit.scale import one_ahead, threads_limited
from embedkit.types import AnyPath, Float32, Progress, Reloaded, no_progress, reported

logger = logging.getLogger(__name__)

_ENCODE_ROWS = 4_096
_QUEUED_CHARS = 1 << 20
"""Characters of the texts that are tokenized and queued at once on a GPU, about four batches. It
idles while the first ones are tokenized, and the host while the last ones are encoded: with 4,096
texts of 128 tokens at once, that was 9 % of the time of 24,000 on an H200 (``docs/gpu.md``)."""


@documented
class Encoder(Reloaded):
    """A checkpoint with its tokenizer, loaded.

    Args:
        model: hub id, folder or ``multilingual``.
        revision: branch, tag or commit of a hub checkpoint.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
        precision: {PRECISIONS}; by default fp32 on CPU and
            bf16 on CUDA, or fp16 below compute capability 8.0. On CPU ``auto`` is bf16 if the
            processor has instructions for it. ``int8``, on CPU, computes products in 8 bits;
            vectors are about 0.1 from those of fp32.
        max_length: tokens per sequence; by default as the checkpoint states.
        batch_tokens: tokens per batch, padding included; by default by device.
        offline: never ask the hub.
        forward: ``auto``, the padding-free forward if it agrees with the plain one; or
            ``transformers``, always the plain one.

    Raises:
        ModelError: the checkpoint cannot be found or used.
        UsageError: the device, precision or length is not supported.

    Example:
        >>> encoder = embedkit.Encoder(device="cpu", max_length=64)
        >>> encoder
        Encoder('sentence-transformers/all-MiniLM-L6-v2', n_layers=6, width=384,
        device='cpu', precision='fp32', max_length=64)
        >>> encoder.encode(["A film.", "Ein Film."]).shape
        (2, 384)
    """

    @accepts()
    def __init__(
        self,
        model: AnyPath = DEFAULT_MODEL,
        *,
        revision: str | None = None,
        device: str = "auto",
        precision: str | None = None,
        max_length: Positive | None = None,
        batch_tokens: Positive | None = None,
        offline: bool = False,
        forward: str = "auto",
    ) -> None:
        super().__init__(locals())
        check_choice(("auto", "transformers"), forward=forward)
        # what is cheap to refuse comes before the weights are read
        checkpoint = find_checkpoint(model, revision=revision, offline=offline)
        where = choose_device(device)
        self.precision = choose_precision(precision, where)
        self.tokenizer = load_tokenizer(checkpoint)
        checkpoint = lowered(checkpoint, fast=self.tokenizer.hf.is_fast)
        self.max_length = usable_length(checkpoint, self.tokenizer, max_length)
        dtype = PRECISIONS.get(self.precision, torch.float32)
        about: dict[str, Any] = {"pad_id": self.tokenizer.pad_id, "device": where, "dtype": dtype}
        # where vectors are not to be those of transformers' own modules, these need no import
        plain = load_model(checkpoint, **about, light=forward == "auto" and where.type == "cpu")
        # loading has shown which weights the class of transformers does not use
        self.checkpoint = checkpoint = plain.checkpoint
        self.model: Model = plain
        if plain.leaves_words and "token_type_ids" in self.tokenizer.hf.model_input_names:
            logger.warning(
                f"{checkpoint.name}: its tokenizer numbers segments, for which its model has no "
                "embeddings; they are left out, and transformers would add those of words"
            )
        if self.precision == "int8":
            with threads_limited(1):  # ranges must not depend on the number of threads
                # before fastest(), which makes int8 of the layers that have ranges by then
                calibrate(plain, self.tokenizer)
        if forward == "auto":
            self.model = fastest(plain)
        # the plain forward would compute in fp32 and be recorded as int8
        if self.precision == "int8" and not isinstance(self.model, PackedModel):
            raise UsageError("it needs the CPU and the padding-free forward.", precision="int8")
        if self.model is plain and isinstance(plain.module, Bert):
            # the forward is recorded as that of transformers, so its modules compute it
            self.model = load_model(checkpoint, **about)
        kind = self.precision if self.precision in BATCH_TOKENS else where.type
        self.batch_tokens = batch_tokens or BATCH_TOKENS[kind]
        self.poolers = dict(POOLERS)
        # else asking for the sentence vector raises the problem, in check_poolings
        if not checkpoint.definition.problem:
            self.poolers[Pooling.SENTENCE] = sentence_pooler(checkpoint)

    def __repr__(self) -> str:
        return (
            f"Encoder({self.checkpoint.name!r}, n_layers={self.n_layers}, width={self.width}, "
            f"device='{self.device}', precision={self.precision!r}, max_length={self.max_length})"
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
    def device(self) -> torch.device:
        """Device of the weights."""
        return torch.device(self.model.device)

    @property
    def has_pooler(self) -> bool:
        """True if the checkpoint contains pooler weights."""
        return self.model.pooler is not None

    @accepts()
    def width_of(self, view: View) -> int:
        """Width of the vectors of a view, as :func:`parse_view` reads it."""
        self.check_poolings([view.pooling])
        return self.poolers[view.pooling].width or view.layer.width(self.width)

    @overload
    def encode(
        self, texts: str | Iterable[str], *, convert_to_tensor: Literal[True], **settings: Any
    ) -> torch.Tensor: ...

    @overload
    def encode(
        self, texts: str | Iterable[str], *, convert_to_tensor: bool, **settings: Any
    ) -> Float32 | torch.Tensor: ...

    @overload
    def encode(
        self,
        texts: str | Iterable[str],
        *,
        pooling: str | None = None,
        layer: int = -1,
        dims: Positive | None = None,
        truncate_dim: Positive | None = None,
        batch_size: Positive | None = None,
        normalize_embeddings: bool | None = None,
        convert_to_tensor: Literal[False] = False,
        show_progress_bar: bool | None = False,
        max_length: Positive | None = None,
        prefix: str | None = None,
        prompt_name: str | None = None,
        device: str | None = None,
    ) -> Float32: ...

    @accepts()  # type: ignore[misc]  # two overloads leave out what the third lists
    def encode(
        self,
        texts: str | Iterable[str],
        *,
        pooling: str | None = None,
        layer: int = -1,
        dims: Positive | None = None,
        truncate_dim: Positive | None = None,
        batch_size: Positive | None = None,
        normalize_embeddings: bool | None = None,
        convert_to_tensor: bool = False,
        show_progress_bar: bool | None = False,
        max_length: Positive | None = None,
        prefix: str | None = None,
        prompt_name: str | None = None,
        device: str | None = None,
    ) -> Float32 | torch.Tensor:
        """Vectors of texts: ``(n, width)`` float32 in input order; of one text ``(width,)``.

        Without pooling, of the last layer, they are the vectors that the checkpoint's makers
        define, as sentence-transformers computes them; but of an encoder with a decoder other than
        T5, without ``modules.json`` (BART, M2M100, Pegasus), the encoder's states, where it takes
        the decoder's.

        Args:
            texts: the texts, or one.
            pooling: ``cls``, ``mean``, ``max``, ``last_token``, ``pooler`` or ``sentence``; by
                default that of the checkpoint.
            layer: 0 is the embedding output, negative numbers count from the end; ``pooler`` and
                ``sentence`` ignore it.
            dims: keep only so many of the first coordinates, and scale to length 1.
            truncate_dim: keep them without scaling, as in sentence-transformers.
            batch_size: maximum number of texts in memory and per batch; by default 4,096, in
                batches of ``batch_tokens``.
            normalize_embeddings: scale every vector to length 1 (L2). Of the last layer without
                pooling the checkpoint's own modules may do so in any case, as in
                sentence-transformers.
            convert_to_tensor: return a tensor on the encoder's device instead of an array.
            show_progress_bar: show progress on standard error.
            max_length: tokens per text; longer ones are truncated.
            prefix: put before every text, such as ``"query: "``; by default that of the checkpoint
                (``multilingual`` has one), ``""`` for none.
            prompt_name: name of one of the checkpoint's prompts, instead of a prefix.
            device: an error unless it is that of the encoder, which it is loaded on; ``cuda``
                stands for any GPU.

        Raises:
            TypeError: ``texts`` is a table, or contains anything but strings.
            UsageError: there is no such pooling, layer or prompt, or a text is not Unicode.
            ModelError: the checkpoint defines its vectors by something that is not computed here.
            EncodeError: a vector has NaN or infinite values.

        Example:
            >>> encoder = embedkit.Encoder()
            >>> X = encoder.encode(["A good film.", "A bad film."])
            >>> X.shape, round(float(X[0] @ X[1]), 2)
            ((2, 384), 0.74)
            >>> encoder.encode("One text.").shape
            (384,)
        """
        if device is not None:
            stated, here = choose_device(device), self.device
            if stated.type != here.type or stated.index not in (None, here.index or 0):
                raise UsageError(f"this encoder is on {here}; load another one.", device=device)
        if pooling is None:
            chosen, normalized = self.checkpoint.own_view(last_layer=layer in (-1, self.n_layers))
        else:
            (chosen,), normalized = parse_poolings([pooling]), False
        name = f"{chosen}_{layer}" if chosen.has_layer else chosen
        view = parse_view(name, n_layers=self.n_layers)
        if dims and truncate_dim:
            raise UsageError("give one of both.", dims=dims, truncate_dim=truncate_dim)
        size, width = dims or truncate_dim, self.width_of(view)
        if size and size > width:
            cut = "dims" if dims else "truncate_dim"
            raise UsageError(f"the vectors have {width} coordinates.", **{cut: size})
        strings = strings_of("texts", [texts] if isinstance(texts, str) else texts)
        settings = self._settings(max_length, prefix, prompt_name)
        shards = self._shards(strings, [view], (), settings, batch_size, show=show_progress_bar)
        vectors = self._matrices([view], shards)[view.name]
        if normalized or normalize_embeddings:  # by the makers' own module, as it is always run
            vectors = l2_normalize(vectors)
        if size:
            vectors = vectors[:, :size]
            # first coordinates of a unit vector are no unit vector any more
            if dims or normalize_embeddings:
                vectors = l2_normalize(vectors)
        result = torch.from_numpy(vectors).to(self.device) if convert_to_tensor else vectors
        return result[0] if isinstance(texts, str) else result

    def encode_query(self, texts: str | Iterable[str], **settings: Any) -> Any:
        """As :meth:`encode`, with the checkpoint's prompt ``query``.

        A checkpoint that has prompts, but none of this name, gets no prefix at all, as in
        sentence-transformers; one without prompts its default prefix.
        """
        return self.encode(texts, **self._prompted("query", settings))

    def encode_document(self, texts: str | Iterable[str], **settings: Any) -> Any:
        """As :meth:`encode_query`, with the checkpoint's prompt ``document``."""
        return self.encode(texts, **self._prompted("document", settings))

    def _prompted(self, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        prompts = self.checkpoint.definition.prompts
        if prompts and settings.get("prefix") is None and settings.get("prompt_name") is None:
            settings["prefix"] = prompts.get(name, "")
        return settings

    def similarity(self, a: Any, b: Any) -> Float32:
        """Cosines ``(n, m)`` of the rows of two matrices, each ``(n, width)`` or one vector.

        If the checkpoint says so, inner products, or distances with a minus sign.

        Raises:
            UsageError: these are no vectors of one width.

        Example:
            >>> encoder = embedkit.Encoder()
            >>> X = encoder.encode(["A good film.", "A bad film.", "Rain."])
            >>> encoder.similarity(X[:1], X).shape
            (1, 3)
        """
        rows = [matrix_of("a", a), matrix_of("b", b)]
        if (widths := [x.shape[1] for x in rows])[0] != widths[1]:
            raise UsageError(f"a has {widths[0]} columns and b {widths[1]}: expected one width.")
        kind = self.checkpoint.definition.similarity
        if (power := {"euclidean": 2.0, "manhattan": 1.0}.get(kind)) is not None:
            first, second = map(torch.from_numpy, rows)
            return np.asarray(-torch.cdist(first, second, p=power).numpy())
        if kind != "dot":
            rows = [l2_normalize(x) for x in rows]
        return np.asarray(rows[0] @ rows[1].T, np.float32)

    @accepts()
    def encode_views(
        self,
        texts: Iterable[str],
        views: Iterable[str],
        *,
        batch_size: Positive | None = None,
        normalize_embeddings: bool = False,
        show_progress_bar: bool = False,
        max_length: Positive | None = None,
        prefix: str | None = None,
    ) -> dict[str, Float32]:
        """Several views by one forward pass: ``{"mean_6": (n, width), ...}``, in input order.

        ``views`` are names such as ``mean_-1``, ``cls_0``, ``mean_sum_9to12``, ``pooler`` or
        ``sentence``; the keys of the result have positive layer numbers. Everything else is as for
        :meth:`encode`.

        Example:
            >>> encoder = embedkit.Encoder()
            >>> views = encoder.encode_views(["A film."], ["mean_-1", "cls_0"])
            >>> {name: vectors.shape for name, vectors in views.items()}
            {'mean_6': (1, 384), 'cls_0': (1, 384)}
        """
        strings = strings_of("texts", texts)
        parsed = [parse_view(name, n_layers=self.n_layers) for name in strings_of("views", views)]
        settings = self._settings(max_length, prefix)
        shards = self._shards(strings, parsed, (), settings, batch_size, show=show_progress_bar)
        result = self._matrices(parsed, shards)
        if normalize_embeddings:
            return {name: l2_normalize(vectors) for name, vectors in result.items()}
        return result

    @accepts()
    def encode_tokens(
        self,
        texts: Iterable[str],
        *,
        layers: str | int | Sequence[str | int] = -1,
        batch_size: Positive | None = None,
        show_progress_bar: bool = False,
        max_length: Positive | None = None,
        prefix: str | None = None,
    ) -> TokenVectors:
        """Vectors of all tokens of texts, special ones included, with offsets into the texts.

        The same rows and vectors as ``extract(tokens=True)`` writes. ``layers`` are such as ``-1``,
        ``[0, 6]``, ``"all"`` or ``"sum:-4..-1"``. Tokens of a prefix have rows with offsets of 0,
        tokens beyond ``max_length`` none. Everything else is as for :meth:`encode`.

        Example:
            >>> tokens = embedkit.Encoder().encode_tokens(["unbelievable films"])
            >>> list(tokens.token), tokens.X.shape
            (['[CLS]', 'unbelievable', 'films', '[SEP]'], (4, 384))
        """
        strings = strings_of("texts", texts)
        specs = parse_layers(layers, n_layers=self.n_layers)
        settings = self._settings(max_length, prefix)
        shards = self._shards(strings, [], specs, settings, batch_size, show=show_progress_bar)
        return joined([(i, token_vectors(t, s.tokens, self.tokenizer)) for i, t, s in shards])

    @accepts()
    def encode_words(
        self,
        texts: Iterable[str] | None = None,
        *,
        words: Iterable[Sequence[str]] | None = None,
        layers: str | int | Sequence[str | int] = -1,
        subtokens: str = "mean",
        batch_size: Positive | None = None,
        show_progress_bar: bool = False,
        max_length: Positive | None = None,
        prefix: str | None = None,
    ) -> WordVectors:
        """Vectors of the whitespace words of texts, with offsets into the texts.

        The same rows and vectors as ``extract(words=...)`` writes. Instead of texts, ``words``
        takes each text as a list of its words, which are joined by single spaces; offsets are those
        in the joined text. ``layers`` are as for :meth:`encode_tokens`; ``subtokens`` is ``first``,
        ``last``, ``first_last`` (mean of both) or ``mean`` of the tokens of a word. Words beyond
        ``max_length`` have no rows. Everything else is as for :meth:`encode`.

        Example:
            >>> encoder = embedkit.Encoder()
            >>> words = encoder.encode_words(["A ship sails.", "No."], layers=[0, 6])
            >>> list(zip(words.row.tolist(), words.text, words.start.tolist()))
            [(0, 'A', 0), (0, 'ship', 2), (0, 'sails.', 7), (1, 'No.', 0)]
            >>> {layer: vectors.shape for layer, vectors in words.vectors.items()}
            {'0': (4, 384), '6': (4, 384)}
        """
        if (texts is None) == (words is None):
            raise UsageError(f"give either texts or {Option('words')}.")
        lists = [] if words is None else [strings_of(f"words[{i}]", w) for i, w in enumerate(words)]
        for i, word in ((i, word) for i, text in enumerate(lists) for word in text):
            if word.split() != [word]:
                raise UsageError(f"words[{i}] holds {word!r:.60}; expected no whitespace in a word")
        joint = (" ".join(text) for text in lists)
        strings = strings_of("texts", joint if texts is None else texts)
        check_choice(SUBTOKENS, subtokens=subtokens)
        # words are sliced from a group of segments, here of one
        sources = [[text] for text in strings]
        specs = parse_layers(layers, n_layers=self.n_layers)
        settings = self._settings(max_length, prefix)
        shards = self._shards(strings, [], specs, settings, batch_size, show=show_progress_bar)
        return joined(
            [(i, word_vectors(t, sources[i:], s.tokens, subtokens)) for i, t, s in shards]
        )

    def encode_shard(self, texts: TokenizedTexts, **settings: Any) -> ShardVectors:
        """Run tokenized texts and wait for their vectors; arguments as for :meth:`start_shard`."""
        return self.start_shard(texts, **settings).result()

    def start_shard(
        self,
        texts: TokenizedTexts,
        *,
        views: Sequence[View],
        token_layers: Sequence[LayerSpec] = (),
        special_tokens: bool = True,
        on_tokens: OnTokens = lambda _: None,
    ) -> PendingShard:
        """Run tokenized texts through the model; on CUDA the work continues after the call.

        Sequences are sorted by length, equal ones run once, and batches have at most
        ``batch_tokens``. For a text in several windows, ``mean`` and ``max`` use each of its tokens
        once (from the window with most context); ``cls`` and ``pooler`` are means over windows.
        ``special_tokens``: ``mean``, ``max`` and ``last_token`` count special tokens. ``on_tokens``
        is called with the number of tokens after each batch.
        """
        self.check_poolings({view.pooling for view in views})
        what = views, token_layers, self.poolers
        shard = Shard(self.model, texts, *what, special_tokens=special_tokens)
        return shard.queue(self.batch_tokens, on_tokens)

    @cached_property
    def is_causal(self) -> bool:
        """True if the vector of a first token does not depend on the second one."""
        # two sequences that differ in their second token only
        ids = torch.tensor([0, 1, 0, 2], device=self.device)
        batch, first = PackedBatch.of(ids, torch.zeros_like(ids), [2, 2]), list[torch.Tensor]()
        self.model.forward(batch, [self.n_layers], lambda _, hidden: first.extend(hidden[::2]))
        return torch.allclose(first[0], first[1], atol=1e-4)

    def check_poolings(self, poolings: Iterable[Pooling]) -> None:
        """Raise a :class:`ModelError` for a pooling that the checkpoint does not have."""
        kinds, name = set(poolings), self.checkpoint.name
        if Pooling.POOLER in kinds and not self.has_pooler:
            raise ModelError(f"{name} has no pooler weights. Use mean.", pooling="pooler")
        if Pooling.CLS in kinds and self.is_causal:
            problem = f"the first token of {name} sees itself only. Use mean."
            raise ModelError(problem, pooling="cls")
        if not kinds <= self.poolers.keys():
            self.checkpoint.own_view(last_layer=True)  # raises the reason

    def _settings(
        self, length: int | None, prefix: str | None, prompt: str | None = None
    ) -> TokenizerSettings:
        """How texts are tokenized; the encoder's own length and prefix where none is given."""
        if length is not None and length > self.max_length:  # else it was checked at the load
            length = usable_length(self.checkpoint, self.tokenizer, length)
        prefix = self.checkpoint.prefix_or_own(prefix, prompt)
        return TokenizerSettings(length or self.max_length, prefix=prefix)

    def _matrices(
        self, views: Sequence[View], shards: Iterable[tuple[int, TokenizedTexts, ShardVectors]]
    ) -> dict[str, Float32]:
        """Matrices of views by name; an :class:`EncodeError` if they are not finite."""
        parts, result = [shard.views for _, _, shard in shards], {}
        for view in views:
            vectors = np.concatenate([part[view.name] for part in parts])
            if len(bad := np.flatnonzero(~np.isfinite(vectors).all(axis=1))):
                problem = f"NaN or infinite values in {len(bad)} vectors (text {bad[0]})"
                raise EncodeError(f"{self.checkpoint.name}, {view.name}: {problem}.")
            result[view.name] = vectors
        return result

    def _shards(
        self,
        texts: Sequence[str],
        views: Sequence[View],
        token_layers: Sequence[LayerSpec],
        settings: TokenizerSettings,
        batch_size: int | None,
        *,
        show: bool | None,
    ) -> Iterator[tuple[int, TokenizedTexts, ShardVectors]]:
        """Yield the number of the first text, tokenized texts and vectors of every shard.

        The next shard is tokenized while the device works: on CUDA by a thread, since this one
        launches kernels meanwhile; on CPU forward and tokenizer would share the cores.
        """
        on_gpu = self.device.type == "cuda"
        rows = batch_size or (_rows_for_gpu(texts) if on_gpu else _ENCODE_ROWS)
        started: deque[tuple[int, TokenizedTexts, PendingShard]] = deque()

        def tokenized_from(first: int) -> TokenizedTexts:
            block = texts[first : first + rows]
            return self.tokenizer.encode(block, settings=settings, offsets=bool(token_layers))

        firsts = range(0, max(len(texts), 1), rows)
        each: Any = one_ahead if on_gpu else map
        with reported(None if show else no_progress) as progress:
            for first, tokenized in zip(firsts, each(tokenized_from, firsts), strict=True):
                shard = self.start_shard(tokenized, views=views, token_layers=token_layers)
                started.append((first, tokenized, shard))
                # one shard stays queued on the device while the next is tokenized; the last one is
                # not kept
                while len(started) > (first + rows < len(texts)):
                    start, part, pending = started.popleft()
                    yield start, part, pending.result()
                    progress(Progress("encoding", start + len(part), len(texts), "texts"))


def _rows_for_gpu(texts: Sequence[str]) -> int:
    """How many texts are tokenized and queued at once, by the mean length of the first ones."""
    chars = sum(map(len, texts[:_ENCODE_ROWS]))
    return min(max(_QUEUED_CHARS * len(texts[:_ENCODE_ROWS]) // max(chars, 1), 256), _ENCODE_ROWS)


def note_faster_precision(encoder: Encoder) -> None:
    """Log what another precision than fp32 brings on this processor, by measured instructions."""
    if encoder.device.type == "cpu" and not encoder.model.pads:
        has_amx = torch.cpu._is_amx_tile_supported()
        name, share, far = ("bf16", 0.3, 0.01) if has_amx else ("int8", 0.7, 0.1)
        far_off = f" takes about {share} of its time, for vectors that differ by about {far}"
        faster = Option("precision", name, before="; on processors like this one ", after=far_off)
        logger.info(Message(f"precision: fp32{faster}"))
