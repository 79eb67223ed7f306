"""Predict with a fine-tuned run: the mean over the models of its folds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from embedkit.checksums import check_files
from embedkit.encoding.checkpoint import quiet_transformers
from embedkit.encoding.device import choose_device
from embedkit.encoding.tokenization import TextTokenizer, TokenizerSettings
from embedkit.errors import DamagedError, first_line
from embedkit.finetuning.batches import predict_logits
from embedkit.finetuning.model_folder import read_model
from embedkit.runs.content import FinetuneRun
from embedkit.types import Float64

__all__ = ["FinetunedRun"]


class FinetunedRun:
    """The models of a fine-tuned run, ready to predict.

    Args:
        run: folder that ``embedkit finetune`` wrote.
        content: the content of its ``run.json``.
        device: where they run.
        verify: compare the models with their checksums.

    Raises:
        DamagedError: a model was changed since, or cannot be read.
        UsageError: the device does not exist here.
    """

    def __init__(
        self, run: Path, content: FinetuneRun, *, device: str = "auto", verify: bool = True
    ) -> None:
        where, tokens = choose_device(device), content.tokens
        quiet_transformers()
        self._settings = TokenizerSettings(
            tokens.max_length, tokens.on_long, tokens.stride, tokens.prefix
        )
        # half precision is for the kind of device it was trained on
        same = content.cost.device == where.type
        self._precision = content.precision if same else "fp32"
        folders = [run / "model" / name for name in content.models]
        if verify:
            names = [f"model/{name}" for name in content.models]
            check_files(run, names, advice="Make the run again.")
        self._models = [read_model(folder).to(where) for folder in folders]
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                str(folders[0]), local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # the loader raises what its many formats raise
            raise DamagedError(f"{folders[0]} cannot be read: {first_line(error)}.") from error
        self._tokenizer = TextTokenizer(
            tokenizer, pad_id=tokens.pad_id, type_vocab=tokens.type_vocab
        )
        self._pad_id = tokens.pad_id

    def predict_proba(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Float64:
        """Return probabilities ``(n, classes)``, or values ``(n,)`` of a regression."""
        tokenized = self._tokenizer.encode(texts, pairs, settings=self._settings)
        found = [
            model.outputs(
                predict_logits(model, tokenized, pad_id=self._pad_id, precision=self._precision)
            ).numpy()
            for model in self._models
        ]
        return np.asarray(np.mean(found, axis=0), np.float64)
