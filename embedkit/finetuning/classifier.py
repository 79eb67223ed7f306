"""A checkpoint for classification, such as BertForSequenceClassification, as it comes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from embedkit.encoding.checkpoint import Checkpoint, find_checkpoint
from embedkit.encoding.device import choose_device
from embedkit.encoding.model import load_module, mismatched_keys
from embedkit.encoding.tokenization import TokenizerSettings
from embedkit.encoding.vocabulary import choose_max_length, load_tokenizer
from embedkit.errors import ModelError
from embedkit.finetuning.batches import predict_logits
from embedkit.types import Float64

__all__ = ["CheckpointClassifier"]

logger = logging.getLogger(__name__)

_CLASS = "ForSequenceClassification"


class CheckpointClassifier:
    """A ``*ForSequenceClassification`` checkpoint of one of the families that are read.

    Texts are cut at what the tokenizer states; probabilities are the softmax of the logits. A
    model of one output is a regression, whose value is the output itself.

    Args:
        name: hub id or folder.
        device: where it runs.
        revision: branch, tag or commit of a hub checkpoint.
        offline: never ask the hub.

    Attributes:
        classes: labels by class number, as ``id2label`` names them; empty for a regression.

    Raises:
        ModelError: there is no such checkpoint, it has no classifier, or one of several labels
            for each text.
    """

    def __init__(
        self,
        name: str | Path,
        *,
        device: str = "auto",
        revision: str | None = None,
        offline: bool = False,
    ) -> None:
        checkpoint = find_checkpoint(name, revision=revision, offline=offline)
        _check_kind(checkpoint)
        self._tokenizer = load_tokenizer(checkpoint)
        length = choose_max_length(checkpoint, self._tokenizer, None)
        self._settings = TokenizerSettings(length)
        model, report = load_module(checkpoint, f"AutoModel{_CLASS}", dtype=torch.float32)
        if lacking := set(report["missing_keys"]) | mismatched_keys(report):
            raise ModelError(
                f"{checkpoint.name} has no whole classifier: {len(lacking)} weights are missing or "
                f"of another shape, such as {min(lacking)}. {_advice(checkpoint)}"
            )
        self._model = model.eval().to(choose_device(device))
        names = model.config.id2label
        self.classes = tuple(str(names[i]) for i in range(model.config.num_labels))
        if len(self.classes) == 1:
            self.classes = ()

    def predict_proba(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Float64:
        """Return probabilities ``(n, classes)``, or values ``(n,)`` of a regression."""
        tokenized = self._tokenizer.encode(texts, pairs, settings=self._settings)
        if cut := sum(text.cut for text in tokenized):
            logger.warning(
                "%s of %s texts have more than %s tokens; what is beyond is not seen",
                f"{cut:,}", f"{len(tokenized):,}", self._settings.max_length,
            )  # fmt: skip
        logits = predict_logits(self._model, tokenized, pad_id=self._tokenizer.pad_id).double()
        if not self.classes:
            return np.asarray(logits[:, 0].numpy(), np.float64)
        return np.asarray(torch.softmax(logits, dim=1).numpy(), np.float64)


def _check_kind(checkpoint: Checkpoint) -> None:
    """Raise a :class:`ModelError` if the configuration names something else than a classifier."""
    named = [str(kind) for kind in checkpoint.config.get("architectures") or ()]
    if named and not any(kind.endswith(_CLASS) for kind in named):
        raise ModelError(f"{checkpoint.name} is a {named[0]}, no classifier. {_advice(checkpoint)}")
    if checkpoint.config.get("problem_type") == "multi_label_classification":
        raise ModelError(
            f"{checkpoint.name} gives a text several labels (multi_label_classification); embedkit "
            "predicts one of them, or a value."
        )


def _advice(checkpoint: Checkpoint) -> str:
    return (
        f"Train one on your labels: embedkit finetune CORPUS --model {checkpoint.name} --out RUN."
    )
