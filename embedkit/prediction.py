"""A run and new texts → labels and probabilities; texts are encoded as its dataset was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.errors import MismatchError, UsageError
from embedkit.outcomes import decide
from embedkit.runs import load_model_of, read_run

__all__ = ["Prediction", "Predictor", "parse_label_names"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a run says of one text.

    Attributes:
        label: the likeliest label, or the value of a regression.
        probabilities: of every label, readable names as keys; empty for a regression.
    """

    label: str
    probabilities: dict[str, float]


class Predictor:
    """A run that is ready to predict.

    Args:
        run: folder that ``embedkit train`` wrote.
        label_names: readable names of labels, such as ``{"0": "negative"}``.
        device: where the encoder runs.
        model: another place of the same checkpoint, if it has moved.
        notify: called with sentences for the user.

    Raises:
        UsageError: there is no such run, or a label has no such name.
        MismatchError: the checkpoint found is not the one that made the vectors.
    """

    def __init__(
        self,
        run: str | Path,
        *,
        label_names: Mapping[str, str] | None = None,
        device: str = "auto",
        model: str | None = None,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.run = Path(run)
        self.content = read_run(self.run)
        self._finetuned: Any = None
        if self.content["kind"] == "finetuned":
            from embedkit.finetuned import FinetunedRun

            if model is not None:
                raise UsageError(
                    f"--model {model}: {self.run} is a fine-tuned run, which holds its own models."
                )
            self._finetuned = FinetunedRun(self.run, self.content, device=device)
        else:
            self._apply = load_model_of(self.run)
        self._classes = list(self.content["classes"])
        for name in label_names or {}:
            if name not in self._classes:
                raise UsageError(
                    f"--label-names: the run has no label {name!r}; it has "
                    f"{', '.join(self._classes) or 'values, not labels'}."
                )
        self.names = [(label_names or {}).get(name, name) for name in self._classes]
        self._encoder: Any = None
        if self.content["views"]:
            self._encoder = self._load_encoder(device, model, notify)

    @property
    def takes_pairs(self) -> bool:
        """Whether the run was made on pairs of texts."""
        return bool(self.content["dataset"]["pairs"])

    def outputs(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Floats:
        """Probabilities ``(n, classes)``, or values ``(n,)`` of a regression.

        Raises:
            UsageError: pairs were given or are missing, unlike in the run's dataset.
        """
        if (pairs is not None) != self.takes_pairs:
            raise UsageError(
                f"{self.run} was made on {'pairs of texts' if self.takes_pairs else 'single texts'}"
                f"; give {'a second text too (--text-pair)' if self.takes_pairs else 'one'}."
            )
        if not texts:
            shape = (0, len(self._classes)) if self._classes else (0,)
            return np.zeros(shape)
        texts = [self._normal_form(text) for text in texts]
        if self._finetuned is not None:
            seconds = None if pairs is None else [self._normal_form(text) for text in pairs]
            return np.asarray(self._finetuned.outputs(texts, seconds), np.float64)
        if self._encoder is not None:
            return np.asarray(self._apply(self._vectors(texts, pairs)), np.float64)
        joined = texts
        if pairs is not None:
            joined = [f"{a} {self._normal_form(b)}" for a, b in zip(texts, pairs, strict=True)]
        return np.asarray(self._apply(joined), np.float64)

    def predict(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None
    ) -> Iterator[Prediction]:
        """What the run says of each text."""
        for output in self.outputs(texts, pairs):
            if not self._classes:
                yield Prediction(f"{output:.6g}", {})
                continue
            best = self.names[int(decide(output[None], threshold=self.content.get("threshold"))[0])]
            yield Prediction(best, dict(zip(self.names, output.tolist(), strict=True)))

    def _normal_form(self, text: str) -> str:
        import unicodedata

        form = self.content["dataset"]["unicode"]
        return text if form == "none" else unicodedata.normalize(form.upper(), text)

    def _load_encoder(self, device: str, model: str | None, notify: Callable[[str], None]) -> Any:
        from embedkit.encoder import Encoder

        dataset = self.content["dataset"]
        vectors = dataset["vectors"]
        encoder = Encoder.load(
            model or dataset["names"]["model"],
            revision=None if model else dataset["names"]["revision"],
            device=device,
            precision=vectors["precision"],
            max_length=vectors["max_length"],
            batch_tokens=vectors["batch_tokens"],
            notify=notify,
        )
        expected, found = dataset["model"]["sha256"], encoder.checkpoint.sha256
        different = sorted(
            n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n)
        )
        if different:
            raise MismatchError(
                f"{encoder.checkpoint.name} is not the checkpoint that {self.run} was made with: "
                f"{', '.join(different)} differ. Name the right one with --model."
            )
        return encoder

    def _vectors(self, texts: Sequence[str], pairs: Sequence[str] | None) -> NDArray[np.float32]:
        """Vectors as the dataset of the run stored them."""
        from embedkit.encoder import l2_normalize
        from embedkit.schema import cast_for_storage
        from embedkit.tokenization import TokenizerSettings
        from embedkit.views import parse_view

        dataset = self.content["dataset"]
        vectors = dataset["vectors"]
        settings = TokenizerSettings(
            vectors["max_length"], vectors["on_long"], vectors["stride"], vectors["prefix"]
        )
        views = [parse_view(n, n_layers=self._encoder.n_layers) for n in self.content["views"]]
        tokenized = self._encoder.tokenizer.encode(list(texts), pairs, settings=settings)
        shard = self._encoder.encode_shard(
            tokenized, views=views, special_tokens=vectors["special_tokens"]
        )
        parts = []
        for view in views:
            values = shard.views[view.name]
            if vectors["normalize"]:
                values = l2_normalize(values)
            stored = cast_for_storage(
                values, dataset["storage"], name=view.name, rows=np.arange(len(values))
            )
            parts.append(stored.astype(np.float32))
        return np.concatenate(parts, axis=1)


def parse_label_names(text: str | None) -> dict[str, str]:
    """``0=negative,1=positive`` as a mapping.

    Raises:
        UsageError: it is not of that form.
    """
    names = {}
    for part in (text or "").split(","):
        if not part.strip():
            continue
        label, equals, name = part.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--label-names {text}: expected LABEL=NAME,LABEL=NAME.")
        names[label.strip()] = name.strip()
    return names
