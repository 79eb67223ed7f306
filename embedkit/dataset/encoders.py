"""The encoder of a dataset: the model and settings by which its vectors were made.

Queries of a search, texts of a prediction and records that are made again must be encoded as the
dataset was. What was recorded decides, and files of the model that differ from the recorded ones
are an error, not a note.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from embedkit.dataset.fold_models import SeenRecords, find_fold_models, keys_of_texts, load_encoder
from embedkit.dataset.parquet import cast_for_storage
from embedkit.dataset.settings import VectorIdentity, different_files
from embedkit.encoding.checkpoint import GIVE_ANOTHER
from embedkit.encoding.views import parse_layers, parse_view
from embedkit.errors import MismatchError, ModelError, Option
from embedkit.types import AnyPath, Float32

if TYPE_CHECKING:  # these import torch
    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.tables import WordVectors
    from embedkit.encoding.views import ShardVectors
    from embedkit.encoding.windows import TokenizedTexts
    from embedkit.encoding.words import Spans


# bounds the memory of tokens and vectors, as the records of a shard do
_TEXTS_AT_ONCE = 4_096


_LAYER = "layer_"


class Recipe(Protocol):
    """Description of how vectors were made: a manifest, or the dataset of a run."""

    @property
    def vector_settings(self) -> VectorIdentity:
        """Settings."""

    @property
    def names(self) -> Any:
        """Its checkpoint, as ``model`` and ``revision``."""


class DatasetEncoder:
    """Encodes new texts as those of a dataset were encoded; made by :func:`encode_as`.

    ``views`` names sentence views, put side by side, and layers of words (``layer_6``). With
    ``seen``, the records of a run, a text is encoded by the models that have not seen it.
    """

    def __init__(
        self,
        encoder: Encoder,
        settings: VectorIdentity,
        views: Sequence[str],
        seen: SeenRecords | None = None,
    ) -> None:
        self.encoder, self.settings, self._seen = encoder, settings, seen
        self.cut = 0  # texts so far that are longer than the model reads
        count = encoder.n_layers
        layers = [name for name in views if name.startswith(_LAYER)]
        self._views = [parse_view(name, n_layers=count) for name in views if name not in layers]
        self._layers = [
            parse_layers(name.removeprefix(_LAYER), n_layers=count)[0] for name in layers
        ]

    def changed(self, encoder: Encoder, views: Sequence[str], **settings: Any) -> DatasetEncoder:
        """The same with another encoder and views, and some settings of the vectors changed.

        A text that every model of a run was trained on, as a query may be, is no error any more:
        it gets the mean of all.
        """
        seen = None if self._seen is None else self._seen.held_out()
        return DatasetEncoder(encoder, replace(self.settings, **settings), views, seen)

    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Float32:
        """``(n, width)`` float32: the views side by side, as the dataset would have stored them."""
        parts = (self.views(some, beside) for _, some, beside in _parts(texts, pairs))
        return np.concatenate([np.concatenate([*views.values()], axis=1) for views in parts])

    def views(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> dict[str, Float32]:
        """``(n, width)`` float32 by name of the view; all texts at once, as one shard."""
        return self._stored_views(self._shard(self.tokenized(texts, pairs), texts, pairs))

    def words(self, texts: Sequence[str], *, spans: Spans | None = None) -> WordVectors:
        """The words of ``n`` texts, with the vectors that the dataset would have stored.

        ``spans`` are start and end of the words of each text; by default the whitespace words.
        """
        from embedkit.encoding.tables import joined  # which loads torch

        parts = _parts(texts, spans)
        tables = ((i, self.views_and_words(some, spans=inside)[1]) for i, some, inside in parts)
        return joined([*tables])

    def views_and_words(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, spans: Spans | None
    ) -> tuple[dict[str, Float32], WordVectors]:
        """Results of :meth:`views` and :meth:`words`, by one forward pass."""
        from embedkit.encoding.tables import word_vectors  # which loads torch

        assert self.settings.words is not None
        tokenized = self.tokenized(texts, pairs, offsets=True, words=spans)
        shard = self._shard(tokenized, texts, pairs, token_layers=self._layers)
        # of single texts the second ones are never looked at
        sources = list(zip(texts, texts if pairs is None else pairs, strict=True))
        layers = {layer.name: shard.tokens[layer.name] for layer in self._layers}
        words = word_vectors(tokenized, sources, layers, self.settings.words)
        # rounded as for storage and read back as float32, so that bits can be compared with stored
        # ones
        storage, rows = self.settings.storage, words.row
        vectors = {
            name: cast_for_storage(values, storage, name=name, rows=rows).astype(np.float32)
            for name, values in words.vectors.items()
        }
        return self._stored_views(shard), replace(words, vectors=vectors)

    def _shard(
        self,
        tokenized: TokenizedTexts,
        texts: Sequence[str],
        pairs: Sequence[str] | None,
        **layers: Any,
    ) -> ShardVectors:
        # a text that is in a fold of the run goes to the model that has not seen it, as when the
        # dataset was made
        if self._seen is not None:
            layers["folds"] = self._seen.folds_of(keys_of_texts(texts, pairs))
        return self.encoder.encode_shard(
            tokenized, views=self._views, special_tokens=self.settings.special_tokens, **layers
        )

    def _stored_views(self, shard: ShardVectors) -> dict[str, Float32]:
        rows = np.arange(len(next(iter(shard.views.values()), ())))
        names, views = [view.name for view in self._views], shard.views
        stored = {n: self.settings.as_stored(views[n], name=n, rows=rows) for n in names}
        return {name: vectors.astype(np.float32) for name, vectors in stored.items()}

    def tokenized(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, **words: Any
    ) -> TokenizedTexts:
        """Texts tokenized as the dataset's were; ``words`` are ``offsets`` and ``words``."""
        settings = self.settings.tokenization
        tokens = self.encoder.tokenizer.encode(texts, pairs, settings=settings, **words)
        self.cut += int(tokens.cut.sum())
        return tokens


def _parts(
    texts: Sequence[str], beside: Sequence[Any] | None
) -> Iterator[tuple[int, Sequence[str], Any]]:
    """Texts that are encoded together: the number of the first, they, and what stands beside them.

    Without texts there is an empty part, since they have a matrix or a table too.
    """
    for start in range(0, max(len(texts), 1), _TEXTS_AT_ONCE):
        part = slice(start, start + _TEXTS_AT_ONCE)
        yield start, texts[part], None if beside is None else beside[part]


def encode_as(
    recipe: Recipe,
    views: Sequence[str],
    *,
    owner: str = "the dataset",
    device: str = "auto",
    model: AnyPath | None = None,
    precision: str | None = None,
    forward: str = "auto",
) -> DatasetEncoder:
    """Load the checkpoint of a dataset, to encode new texts as its own were encoded.

    ``recipe`` is the manifest of the dataset, or what a run knows of it; ``views`` are as for
    :class:`DatasetEncoder`; messages name the ``owner`` of the vectors. ``model`` is the hub id or
    folder of the checkpoint, if it is not under the name it had; another checkpoint is a
    :class:`MismatchError`. Another ``precision`` or way ``forward`` gives vectors that are near to
    its own.
    """
    settings, name = recipe.vector_settings, os.fspath(model or recipe.names.model)
    # another place of the checkpoint has other revisions; its files are compared below
    revision = None if model else recipe.names.revision
    seen = find_fold_models(name)
    try:
        encoder = load_encoder(
            name,
            revision=revision,
            device=device,
            precision=precision or settings.precision,
            max_length=settings.max_length,
            batch_tokens=settings.batch_tokens,
            forward=forward,
        )
    except ModelError as error:
        if model is not None:
            raise
        # the name was recorded, and not passed; another checkpoint would not do
        problem = format(error.problem).removesuffix(GIVE_ANOTHER)
        place = Option("model", before=", or name its new place with ")
        problem = f"{problem.rstrip()} Put it back{place}."
        raise type(error)(f"the checkpoint of {owner}, {name}: {problem}") from error
    if files := different_files(settings.model.sha256, encoder.checkpoint.sha256):
        raise MismatchError(f"{encoder.checkpoint.name} is not that of {owner}: {files} differ.")
    return DatasetEncoder(encoder, settings, views, seen)
