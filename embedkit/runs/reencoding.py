"""Encode new texts as a dataset was encoded: same checkpoint, tokens, views and rounding."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.dataset.record_keys import source_of, whole_text
from embedkit.dataset.store import VectorData
from embedkit.errors import MismatchError
from embedkit.runs.content import DatasetContent, Names
from embedkit.runs.folder import path_from
from embedkit.types import Float32

__all__ = ["Reencoder", "check_alike", "dataset_content", "joined_pairs", "normal_form"]

_SHAPING = ("special_tokens", "normalize", "max_length", "on_long", "stride", "prefix", "precision")
"""Settings of ``extract`` that shape a sentence vector."""


def dataset_content(data: VectorData, folder: Path | None = None) -> DatasetContent:
    """Return what shaped the vectors of a dataset, as ``run.json`` keeps it.

    Args:
        data: the dataset.
        folder: of the run, from which the dataset's path is given.
    """
    manifest = data.manifest
    names = manifest.names
    return DatasetContent(
        fingerprint=manifest.fingerprint,
        source=source_of(data),
        path="" if folder is None else path_from(folder, data.path),
        model=manifest.job["model"],
        names=Names(
            model=names["model"], revision=names["revision"], inputs=tuple(names["inputs"])
        ),
        unicode=manifest.job["input"]["unicode"],
        pairs=manifest.job["input"]["text_pair"] is not None,
        vectors=manifest.job["vectors"],
        storage=manifest.job["storage"]["profile"],
    )


def check_alike(
    made: DatasetContent, expected: DatasetContent, *, name: str, vectors: bool = True
) -> None:
    """Check that a model which was fitted on one dataset can be applied to another.

    Args:
        made: how the dataset was made.
        expected: how the other one was made.
        name: of the dataset, for messages.
        vectors: the model reads vectors; without, only what shapes a text is compared.

    Raises:
        MismatchError: something that shapes a vector differs; it is named with both values.
    """
    pairs = [(key, getattr(made, key), getattr(expected, key)) for key in ("unicode", "pairs")]
    if vectors:
        here, there = made.vectors or {}, expected.vectors or {}
        pairs += [(f"vectors.{key}", here.get(key), there.get(key)) for key in _SHAPING]
        pairs += [(f"model.{key}", made.model.get(key), expected.model.get(key))
                  for key in ("type", "sha256")]  # fmt: skip
        pairs.append(("storage", made.storage, expected.storage))
    differences = [
        f"{key} differs" if isinstance(here, dict) else f"{key} is {here!r}, expected {there!r}"
        for key, here, there in pairs
        if here != there
    ]
    if differences:
        raise MismatchError(
            f"{name} was made with other settings than the data that the model was fitted on: "
            f"{'; '.join(differences[:4])}. Extract it again with the same settings, or give "
            "the corpus file itself."
        )


def normal_form(text: str, form: str) -> str:
    """Return a text in a normal form: ``none``, ``nfc`` or ``nfkc``."""
    if form == "none":
        return text
    return unicodedata.normalize("NFC" if form == "nfc" else "NFKC", text)


def joined_pairs(texts: Sequence[str], pairs: Sequence[str] | None) -> list[str]:
    """Return texts as TF-IDF reads them: those of a pair joined by a space."""
    seconds: Sequence[str | None] = pairs or [None] * len(texts)
    return [whole_text(a, b, separator=" ") for a, b in zip(texts, seconds, strict=True)]


class Reencoder:
    """An encoder that is set as it was for a dataset.

    Args:
        made: what :func:`dataset_content` gave for the dataset.
        views: names of the views, which are put side by side.
        owner: for messages: what asks for the vectors.
        device: where the encoder runs.
        model: another place of the same checkpoint, if it has moved.

    Raises:
        MismatchError: the checkpoint found is not the one that made the vectors.
    """

    def __init__(
        self,
        made: DatasetContent,
        views: Sequence[str],
        *,
        owner: str,
        device: str = "auto",
        model: str | None = None,
    ) -> None:
        from embedkit.encoding.encoder import Encoder
        from embedkit.encoding.views import parse_view

        self._made, vectors = made, made.vectors or {}
        self._encoder = encoder = Encoder.load(
            model or made.names.model,
            revision=None if model else made.names.revision,
            device=device,
            precision=vectors["precision"],
            max_length=vectors["max_length"],
            batch_tokens=vectors["batch_tokens"],
        )
        expected, found = made.model["sha256"], encoder.checkpoint.sha256
        different = sorted(
            n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n)
        )
        if different:
            raise MismatchError(
                f"{encoder.checkpoint.name} is not the checkpoint that {owner} was made with: "
                f"{', '.join(different)} differ. Pass the right one as model=."
            )
        self._views = [parse_view(name, n_layers=encoder.n_layers) for name in views]

    def tokenized(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Any]:
        """Token ids of texts as the dataset's were tokenized."""
        from embedkit.encoding.tokenization import TokenizerSettings

        made, form = self._made.vectors or {}, self._made.unicode
        settings = TokenizerSettings(
            made["max_length"], made["on_long"], made["stride"], made["prefix"]
        )
        first = [normal_form(text, form) for text in texts]
        second = None if pairs is None else [normal_form(text, form) for text in pairs]
        return list(self._encoder.tokenizer.encode(first, second, settings=settings))

    def vectors(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Float32:
        """``(n, width)`` float32, all views side by side, as the dataset would have stored them."""
        from embedkit.dataset.schema import cast_for_storage
        from embedkit.encoding.encoder import l2_normalize

        made = self._made.vectors or {}
        shard = self._encoder.encode_shard(
            self.tokenized(texts, pairs), views=self._views, special_tokens=made["special_tokens"]
        )
        parts = []
        for view in self._views:
            values = shard.views[view.name]
            if made["normalize"]:
                values = l2_normalize(values)
            stored = cast_for_storage(
                values, self._made.storage or "", name=view.name, rows=np.arange(len(values))
            )
            parts.append(stored.astype(np.float32))
        return np.concatenate(parts, axis=1)
