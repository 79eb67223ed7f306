"""A run and new texts → labels and probabilities; texts are encoded as its dataset was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.dataset.store import VectorData, load
from embedkit.errors import DamagedError, UsageError
from embedkit.runs.folder import load_model_of, read_run
from embedkit.runs.predictions import decide
from embedkit.runs.reencoding import Reencoder, check_alike, joined_pairs, made_how, normal_form
from embedkit.runs.splits import stored_texts

__all__ = ["Prediction", "Predictor", "parse_label_names"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a run says of one text.

    Attributes:
        label: the likeliest label, of two the one the run's threshold decides on; or the value of
            a regression.
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
        UsageError: there is no such run, it holds no model, or a label has no such name.
        DamagedError: a file of the run cannot be read.
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
        if self.content["kind"] not in ("frozen", "finetuned"):
            raise UsageError(
                f"{self.run} is a {self.content['kind']} run, which holds no model. "
                "Give a run of embedkit train or finetune."
            )
        absent = {"classes", "dataset", "threshold", "views"} - self.content.keys()
        if absent:
            raise DamagedError(
                f"{self.run}/run.json is damaged: it has no {min(absent)}. Make the run again."
            )
        self._finetuned: Any = None
        if self.content["kind"] == "finetuned":
            from embedkit.finetuning.inference import FinetunedRun

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
        if len(set(self.names)) < len(self.names):
            raise UsageError(
                f"--label-names: two labels would be called alike: {', '.join(self.names)}."
            )
        self._encoder: Reencoder | None = None
        if self.content["views"]:
            self._encoder = Reencoder(
                self.content["dataset"], self.content["views"], owner=str(self.run),
                device=device, model=model, notify=notify,
            )  # fmt: skip

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
            made, wanted = "single texts", "one"
            if self.takes_pairs:
                made, wanted = "pairs of texts", "a second text too (--text-pair, --pair)"
            raise UsageError(f"{self.run} was made on {made}; give {wanted}.")
        if not texts:
            shape = (0, len(self._classes)) if self._classes else (0,)
            return np.zeros(shape)
        if self._finetuned is not None:
            form = self.content["dataset"]["unicode"]
            first = [normal_form(text, form) for text in texts]
            second = None if pairs is None else [normal_form(text, form) for text in pairs]
            return np.asarray(self._finetuned.outputs(first, second), np.float64)
        if self._encoder is not None:
            return np.asarray(self._apply(self._encoder.vectors(texts, pairs)), np.float64)
        form = self.content["dataset"]["unicode"]
        joined = [normal_form(text, form) for text in joined_pairs(texts, pairs)]
        return np.asarray(self._apply(joined), np.float64)

    def predict(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None
    ) -> Iterator[Prediction]:
        """What the run says of each text."""
        yield from self._said(self.outputs(texts, pairs))

    def predict_stored(self, dataset: str | Path) -> tuple[VectorData, Iterator[Prediction]]:
        """A dataset, and what the run says of each of its records.

        A run on vectors reads those that are stored; nothing is encoded again.

        Raises:
            UsageError: it does not hold what the run reads.
            MismatchError: its vectors were made otherwise than those of the run.
        """
        views = list(self.content["views"])
        data = load(dataset, views or None)
        made = made_how(data)
        check_alike(made, self.content["dataset"], name=str(dataset), vectors=bool(views))
        if views:
            return data, self._said(np.asarray(self._apply(data.X), np.float64))
        texts = stored_texts(data)
        if texts is None:
            raise UsageError(f"{dataset} was made with --no-text; give the corpus file itself.")
        if self._finetuned is not None:
            pairs = [str(text) for text in data.column("text_pair")] if self.takes_pairs else None
            return data, self._said(self.outputs(data.text, pairs))
        features = [text.replace("\x1f", " ") for text in texts]
        return data, self._said(np.asarray(self._apply(features), np.float64))

    def _said(self, outputs: Floats) -> Iterator[Prediction]:
        decided = decide(outputs, threshold=self.content["threshold"])
        for output, best in zip(outputs, decided, strict=True):
            if not self._classes:
                yield Prediction(f"{best:.6g}", {})
                continue
            yield Prediction(self.names[best], dict(zip(self.names, output.tolist(), strict=True)))


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
