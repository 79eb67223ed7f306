"""What shapes the vectors of a dataset, and the function that encodes new texts in the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from embedkit.choices import ON_LONG, PRECISIONS, SUBTOKENS
from embedkit.corpus.rows import normal_form
from embedkit.dataset.schema import cast_for_storage
from embedkit.encoding.checkpoint import Checkpoint, find_checkpoint
from embedkit.encoding.few_texts import FewTextsEncoder
from embedkit.encoding.views import l2_normalize, parse_layers, parse_view
from embedkit.encoding.vocabulary import open_tokenizer
from embedkit.errors import MismatchError, UsageError, first_line
from embedkit.types import Float32

if TYPE_CHECKING:
    from embedkit.dataset.fold_models import SeenRecords
    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.tables import WordVectors
    from embedkit.encoding.tokenization import Spans, TokenizedText, TokenizerSettings
    from embedkit.encoding.views import ShardVectors

__all__ = [
    "DatasetEncoder",
    "ModelSettings",
    "VectorOptions",
    "VectorSettings",
    "encode_as",
    "normal_form",
]

_TEXTS_AT_ONCE = 4_096
_MOST_LAYERS = 10_000
_LAYER = "layer_"
_SHAPING = (
    "unicode", "special_tokens", "normalize", "max_length", "on_long", "stride", "prefix",
    "precision", "storage",
)  # fmt: skip
"""Settings that two datasets must have in common for their sentence vectors to be comparable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """A checkpoint by its shape and the SHA-256 of its files."""

    type: str
    n_layers: int
    width: int
    sha256: dict[str, str]

    def problem(self) -> str:
        """What cannot be: a model without layers or width."""
        return "" if self.n_layers and self.width else "n_layers or width is 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorOptions:
    """Which vectors are made, and how.

    The other fields are the parameters of the same names of
    :func:`~embedkit.dataset.extraction.extract`, with the value that was used for a default.

    Attributes:
        views: width of every sentence view, by column name.
        token_layers: width of every layer of word and token vectors, by name.
    """

    views: dict[str, int]
    token_layers: dict[str, int]
    words: str | None
    tokens: bool
    special_tokens: bool
    normalize: bool
    max_length: int
    on_long: str
    stride: int
    prefix: str
    precision: str
    batch_tokens: int

    CHOICES: ClassVar[Mapping[str, Sequence[str]]] = {
        "words": SUBTOKENS, "on_long": ON_LONG, "precision": PRECISIONS,
    }  # fmt: skip

    def problem(self) -> str:
        """What cannot be: a name that is no view or layer, or a width of nothing."""
        try:
            for name in self.views:
                parse_view(name, n_layers=_MOST_LAYERS)
            for name in self.token_layers:
                parse_layers(name, n_layers=_MOST_LAYERS)
        except UsageError as error:
            return f"views or token_layers: {first_line(error)}"
        widths = [*self.views.values(), *self.token_layers.values()]
        return "" if all(widths) else "views: a width is 0"

    def columns(self, level: str) -> set[str]:
        """Names of the vector columns of records (``sentence``), or of words and tokens."""
        if level == "sentence":
            return set(self.views)
        return {f"{_LAYER}{name}" for name in self.token_layers}

    @property
    def tokenizer(self) -> TokenizerSettings:
        """Lengths, windows and prefix."""
        from embedkit.encoding.tokenization import TokenizerSettings

        return TokenizerSettings(self.max_length, self.on_long, self.stride, self.prefix)


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorSettings(VectorOptions):
    """Everything that shapes a vector of a dataset.

    Attributes:
        model: the checkpoint.
        unicode: normal form of the texts: ``none``, ``nfc`` or ``nfkc``.
        storage: one of :data:`embedkit.choices.STORAGES`, to which vectors are rounded.
    """

    model: ModelSettings
    unicode: str
    storage: str

    @classmethod
    def of(
        cls, options: VectorOptions, *, model: ModelSettings, unicode: str, storage: str
    ) -> VectorSettings:
        """Return the settings that a manifest or ``run.json`` holds in several places."""
        own: dict[str, Any] = {f.name: getattr(options, f.name) for f in fields(VectorOptions)}
        return cls(**own, model=model, unicode=unicode, storage=storage)

    def as_stored(self, vectors: Float32, *, name: str, rows: Any) -> NDArray[Any]:
        """Return sentence vectors as they are stored: scaled if asked for, and rounded.

        Args:
            vectors: ``(n, width)`` float32.
            name: the column, for messages.
            rows: ``(n,)`` record numbers, for messages.

        Raises:
            EncodeError: a value is NaN or infinite after the rounding.
        """
        if self.normalize:
            vectors = l2_normalize(vectors)
        return cast_for_storage(vectors, self.storage, name=name, rows=rows)

    def differences(self, other: VectorSettings) -> list[str]:
        """Return what shapes sentence vectors otherwise than in ``other``, one phrase each."""
        found = [
            f"{name} is {getattr(self, name)!r}, expected {getattr(other, name)!r}"
            for name in _SHAPING
            if getattr(self, name) != getattr(other, name)
        ]
        if self.model.type != other.model.type:
            found.append(f"the model is a {self.model.type}, expected a {other.model.type}")
        elif files := _different_files(self.model.sha256, other.model.sha256):
            found.append(f"{files} of the model differ")
        return found


class CheckpointNames(Protocol):
    """Where a checkpoint was found."""

    @property
    def model(self) -> str: ...

    @property
    def revision(self) -> str | None: ...


class Made(Protocol):
    """What knows how vectors were made: a manifest, or the dataset of a run."""

    @property
    def vector_settings(self) -> VectorSettings: ...

    @property
    def names(self) -> CheckpointNames: ...


class DatasetEncoder:
    """Encodes new texts as those of a dataset were encoded; made by :func:`encode_as`.

    Args:
        encoder: the checkpoint.
        settings: how the dataset was made.
        views: names of sentence views, which are put side by side, and of layers of words
            (``layer_6``).
        seen: records that the models of a run were trained on; a text is encoded by those that
            have not seen it.
    """

    def __init__(
        self,
        encoder: Encoder | FewTextsEncoder,
        settings: VectorSettings,
        views: Sequence[str],
        seen: SeenRecords | None = None,
    ) -> None:
        self.encoder, self.settings, self._seen = encoder, settings, seen
        count = encoder.n_layers
        layers = [name for name in views if name.startswith(_LAYER)]
        self._views = [parse_view(name, n_layers=count) for name in views if name not in layers]
        self._layers = [
            parse_layers(name.removeprefix(_LAYER), n_layers=count)[0] for name in layers
        ]

    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Float32:
        """``(n, width)`` float32: the views side by side, as the dataset would have stored them.

        Args:
            texts: ``n`` texts.
            pairs: ``n`` second texts, for a dataset of pairs.

        Raises:
            TypeError: a single string was given.
        """
        if isinstance(texts, str) or isinstance(pairs, str):
            raise TypeError("a single string was given; expected a list of texts.")
        width = sum(view.layer.width(self.encoder.width) for view in self._views)
        parts = [np.zeros((0, width), np.float32)]
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            some = slice(start, start + _TEXTS_AT_ONCE)
            found = self.views(texts[some], None if pairs is None else pairs[some])
            parts.append(np.concatenate(list(found.values()), axis=1))
        return np.concatenate(parts)

    def views(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> dict[str, Float32]:
        """``(n, width)`` float32 by name of the view; all texts at once, as one shard."""
        return self._stored_views(self._shard(self.tokenized(texts, pairs), texts, pairs))

    def words(self, texts: Sequence[str], *, spans: Spans | None = None) -> WordVectors:
        """Return the words of texts, with the vectors that the dataset would have stored.

        Args:
            texts: ``n`` texts.
            spans: start and end of the words of each text; by default the whitespace words.
        """
        from embedkit.encoding.tables import joined  # which loads torch

        parts = []
        for start in range(0, max(len(texts), 1), _TEXTS_AT_ONCE):
            some = slice(start, start + _TEXTS_AT_ONCE)
            _, found = self.views_and_words(
                texts[some], spans=None if spans is None else spans[some]
            )
            parts.append(replace(found, row=found.row + start))
        return joined(parts)

    def views_and_words(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *,
        spans: Spans | None = None,
    ) -> tuple[dict[str, Float32], WordVectors]:  # fmt: skip
        """Return what :meth:`views` and :meth:`words` do, by one forward pass."""
        from embedkit.encoding.tables import word_vectors  # which loads torch

        assert self.settings.words is not None
        texts = [normal_form(text, self.settings.unicode) for text in texts]
        tokenized = self.tokenized(texts, pairs, offsets=True, words=spans)
        shard = self._shard(tokenized, texts, pairs, token_layers=self._layers)
        sources = [[text] for text in texts]
        if pairs is not None:
            sources = [list(both) for both in zip(texts, pairs, strict=True)]
        layers = {one.name: shard.tokens[one.name] for one in self._layers}
        found = word_vectors(tokenized, sources, layers, self.settings.words)
        rounded = {
            name: cast_for_storage(vectors, self.settings.storage, name=name, rows=found.row)
            for name, vectors in found.vectors.items()
        }
        vectors = {name: one.astype(np.float32) for name, one in rounded.items()}
        return self._stored_views(shard), replace(found, vectors=vectors)

    def _shard(
        self, tokenized: list[TokenizedText], texts: Sequence[str], pairs: Sequence[str] | None,
        **layers: Any,
    ) -> ShardVectors:  # fmt: skip
        if self._seen is not None:
            layers["folds"] = self._seen.folds_of_texts(texts, pairs)
        return self.encoder.encode_shard(
            tokenized, views=self._views, special_tokens=self.settings.special_tokens, **layers
        )

    def _stored_views(self, shard: ShardVectors) -> dict[str, Float32]:
        rows = np.arange(len(next(iter(shard.views.values()), ())))
        return {
            view.name: self.settings.as_stored(
                shard.views[view.name], name=view.name, rows=rows
            ).astype(np.float32)
            for view in self._views
        }

    def tokenized(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, **words: Any
    ) -> list[TokenizedText]:
        """Return texts as the dataset's were tokenized.

        ``words`` are the parameters ``offsets`` and ``words`` of
        :meth:`~embedkit.encoding.tokenization.TextTokenizer.encode`.
        """
        form = self.settings.unicode
        return self.encoder.tokenizer.encode(
            [normal_form(text, form) for text in texts],
            None if pairs is None else [normal_form(text, form) for text in pairs],
            settings=self.settings.tokenizer, **words,
        )  # fmt: skip


def encode_as(
    made: Made,
    views: Sequence[str],
    *,
    owner: str = "the dataset",
    device: str = "auto",
    model: str | None = None,
    few_texts: bool = False,
) -> DatasetEncoder:
    """Load the checkpoint of a dataset, to encode new texts as its own were encoded.

    Args:
        made: manifest of the dataset, or what a run knows of it.
        views: names of sentence views, which are put side by side, and of layers of words.
        owner: of the vectors, for messages.
        device: where to encode.
        model: hub id or folder of the checkpoint, if it is not under the name it had.
        few_texts: be ready soon, where numpy alone can do it
            (:class:`~embedkit.encoding.few_texts.FewTextsEncoder`); later texts take longer.

    Raises:
        MismatchError: the checkpoint is not the one that made the dataset.

    Example:
        >>> data = embedkit.load("vectors", view="mean_-1")
        >>> encode = encode_as(data.manifest, data.views)
        >>> float(np.abs(encode(data.text) - data.X).max())
        0.0
    """
    from embedkit.dataset.fold_models import find_fold_models, load_encoder

    settings, name = made.vector_settings, model or made.names.model
    revision = None if model else made.names.revision
    seen = find_fold_models(name)
    encoder: Encoder | FewTextsEncoder | None = None
    few_texts &= not any(name.startswith(_LAYER) for name in views)
    if few_texts and seen is None and device in ("auto", "cpu"):
        encoder = _encoder_of_few(find_checkpoint(name, revision=revision), settings, views)
    if encoder is None:
        encoder = load_encoder(
            name, revision=revision, device=device, precision=settings.precision,
            max_length=settings.max_length, batch_tokens=settings.batch_tokens,
        )  # fmt: skip
    if files := _different_files(settings.model.sha256, encoder.checkpoint.sha256):
        raise MismatchError(
            f"{encoder.checkpoint.name} is not the checkpoint that {owner} was made with: {files} "
            "differ. Pass the right one as model=."
        )
    return DatasetEncoder(encoder, settings, views, seen)


def _encoder_of_few(
    checkpoint: Checkpoint, settings: VectorSettings, views: Sequence[str]
) -> FewTextsEncoder | None:
    """What encodes a few texts without torch; ``None`` where that is not possible."""
    parsed = [parse_view(name, n_layers=checkpoint.n_layers) for name in views]
    simple = settings.precision == "fp32" and FewTextsEncoder.can_make(parsed, settings.on_long)
    return FewTextsEncoder.load(checkpoint, open_tokenizer) if simple else None


def _different_files(one: dict[str, str], two: dict[str, str]) -> str:
    return ", ".join(sorted(n for n in one.keys() | two.keys() if one.get(n) != two.get(n)))
