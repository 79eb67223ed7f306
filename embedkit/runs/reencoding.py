"""New texts → vectors as a stored dataset has them: same checkpoint, tokens, views and rounding."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.dataset.store import VectorData
from embedkit.errors import MismatchError
from embedkit.runs.splits import source_of

__all__ = ["Reencoder", "check_alike", "joined_pairs", "made_how", "normal_form"]

_SHAPING = ("special_tokens", "normalize", "max_length", "on_long", "stride", "prefix", "precision")
"""Settings of ``extract`` that shape a sentence vector."""


def made_how(data: VectorData) -> dict[str, Any]:
    """What shaped the vectors of a dataset, as ``run.json`` keeps it under ``dataset``."""
    manifest = data.manifest
    return {
        "fingerprint": manifest.fingerprint,
        "source": list(source_of(data)),
        "model": manifest.job["model"],
        "vectors": manifest.job["vectors"],
        "unicode": manifest.job["input"]["unicode"],
        "pairs": manifest.job["input"]["text_pair"] is not None,
        "storage": manifest.job["storage"]["profile"],
        "names": manifest.names,
    }


def check_alike(
    made: Mapping[str, Any], expected: Mapping[str, Any], *, name: str, vectors: bool = True
) -> None:
    """Whether records of one dataset may meet a model that was fitted on another's.

    Args:
        made: how the dataset was made.
        expected: how the other one was made.
        name: of the dataset, for messages.
        vectors: the model reads vectors; without, only what shapes a text is compared.

    Raises:
        MismatchError: something that shapes a vector differs; it is named with both values.
    """
    of_vectors = [
        *((f"vectors.{key}", made["vectors"][key], expected["vectors"][key]) for key in _SHAPING),
        *((f"model.{key}", made["model"].get(key), expected["model"].get(key))
          for key in ("type", "sha256")),
        ("storage", made["storage"], expected["storage"]),
    ]  # fmt: skip
    of_texts = [(key, made[key], expected[key]) for key in ("unicode", "pairs")]
    differences = [
        f"{key} differs" if isinstance(here, dict) else f"{key} is {here!r}, expected {there!r}"
        for key, here, there in [*of_texts, *(of_vectors if vectors else [])]
        if here != there
    ]
    if differences:
        raise MismatchError(
            f"{name} was made otherwise than the data that the model is fitted on: "
            f"{'; '.join(differences[:4])}. Extract it again with the same settings, or give "
            "the corpus file itself."
        )


def normal_form(text: str, form: str) -> str:
    """A text in the normal form that a dataset was made with: ``none``, ``nfc`` or ``nfkc``."""
    if form == "none":
        return text
    return unicodedata.normalize("NFC" if form == "nfc" else "NFKC", text)


def joined_pairs(texts: Sequence[str], pairs: Sequence[str] | None) -> list[str]:
    """Texts as features of words and characters see them: both of a pair in one."""
    if pairs is None:
        return list(texts)
    return [f"{first} {second}" for first, second in zip(texts, pairs, strict=True)]


class Reencoder:
    """An encoder that is set as it was for a dataset.

    Args:
        made: what :func:`made_how` said of the dataset.
        views: names of the views, which are put side by side.
        owner: for messages: what asks for the vectors.
        device: where the encoder runs.
        model: another place of the same checkpoint, if it has moved.
        notify: called with sentences for the user.

    Raises:
        MismatchError: the checkpoint found is not the one that made the vectors.
    """

    def __init__(
        self,
        made: Mapping[str, Any],
        views: Sequence[str],
        *,
        owner: str,
        device: str = "auto",
        model: str | None = None,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        from embedkit.encoding.encoder import Encoder
        from embedkit.encoding.views import parse_view

        self._made, vectors = made, made["vectors"]
        self._encoder = encoder = Encoder.load(
            model or made["names"]["model"],
            revision=None if model else made["names"]["revision"],
            device=device,
            precision=vectors["precision"],
            max_length=vectors["max_length"],
            batch_tokens=vectors["batch_tokens"],
            notify=notify,
        )
        expected, found = made["model"]["sha256"], encoder.checkpoint.sha256
        different = sorted(
            n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n)
        )
        if different:
            raise MismatchError(
                f"{encoder.checkpoint.name} is not the checkpoint that {owner} was made with: "
                f"{', '.join(different)} differ. Name the right one with --model."
            )
        self._views = [parse_view(name, n_layers=encoder.n_layers) for name in views]

    def tokenized(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Any]:
        """Token ids of texts as the dataset's were tokenized."""
        from embedkit.encoding.tokenization import TokenizerSettings

        made, form = self._made["vectors"], self._made["unicode"]
        settings = TokenizerSettings(
            made["max_length"], made["on_long"], made["stride"], made["prefix"]
        )
        first = [normal_form(text, form) for text in texts]
        second = None if pairs is None else [normal_form(text, form) for text in pairs]
        return list(self._encoder.tokenizer.encode(first, second, settings=settings))

    def vectors(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """``(n, width)`` float32, all views side by side, as the dataset would have stored them."""
        from embedkit.dataset.schema import cast_for_storage
        from embedkit.encoding.encoder import l2_normalize

        made = self._made["vectors"]
        shard = self._encoder.encode_shard(
            self.tokenized(texts, pairs), views=self._views, special_tokens=made["special_tokens"]
        )
        parts = []
        for view in self._views:
            values = shard.views[view.name]
            if made["normalize"]:
                values = l2_normalize(values)
            stored = cast_for_storage(
                values, self._made["storage"], name=view.name, rows=np.arange(len(values))
            )
            parts.append(stored.astype(np.float32))
        return np.concatenate(parts, axis=1)
