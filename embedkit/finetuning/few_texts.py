"""The models of a fine-tuned run for a few texts, by numpy alone.

Their encoders are those of :mod:`embedkit.encoding.few_texts`, for the same reason. Heads of other
than linear layers, windows, half precision and tokenizers without ``tokenizer.json`` are left to
:class:`~embedkit.finetuning.inference.FinetunedRun`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.checksums import check_files
from embedkit.encoding.checkpoint import Checkpoint, find_checkpoint
from embedkit.encoding.few_texts import FewTextsEncoder
from embedkit.encoding.tokenization import TextTokenizer, TokenizedText, TokenizerSettings
from embedkit.encoding.views import parse_view
from embedkit.encoding.vocabulary import FileTokenizer
from embedkit.runs.content import FinetuneRun
from embedkit.runs.training_content import Tokens
from embedkit.types import Float64

__all__ = ["FewTextsRun"]

_VIEWS = {"cls": "cls_-1", "pooler": "cls_-1", "mean": "mean_-1"}
_LAST = ("embedkit.classifier", "classifier.out_proj", "classifier")
_DENSE = ("embedkit.head.dense", "classifier.dense", "bert.pooler.dense")
_PROBLEMS = ("classes", "one_logit", "value")


class FewTextsRun:
    """What :class:`~embedkit.predict.Predictor` needs of a fine-tuned run.

    Args:
        models: of the folds.
        tokenizer: that they share.
        tokens: how they read tokens.
    """

    def __init__(self, models: Sequence[_Model], tokenizer: TextTokenizer, tokens: Tokens) -> None:
        self._models, self._tokenizer = models, tokenizer
        self._settings = TokenizerSettings(tokens.max_length, prefix=tokens.prefix)

    @classmethod
    def load(cls, run: Path, content: FinetuneRun, *, verify: bool) -> FewTextsRun | None:
        """Load the models of a run; ``None`` if they are not plain, or cannot be read.

        Args:
            run: folder that ``embedkit finetune`` wrote.
            content: the content of its ``run.json``.
            verify: compare the models with their checksums.

        Raises:
            DamagedError: a model was changed since.
        """
        tokens, names = content.tokens, [f"model/{name}" for name in content.models]
        if tokens.on_long == "window" or content.precision != "fp32":
            return None
        try:
            tokenizer = _tokenizer(run / names[0], tokens)
            if tokenizer is None:
                return None
            found = [_Model.load(run / name, tokenizer) for name in names]
        except Exception:  # whatever it is, the usual way names it
            return None
        models = [model for model in found if model is not None]
        if len(models) < len(names):
            return None
        if verify:
            check_files(run, names, advice="Make the run again.")
        return cls(models, tokenizer, tokens)

    def predict_proba(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Float64:
        """Return probabilities ``(n, classes)``, or values ``(n,)`` of a regression."""
        tokenized = self._tokenizer.encode(texts, pairs, settings=self._settings)
        return np.asarray(np.mean([model(tokenized) for model in self._models], axis=0))


class _Model:
    """One fold's model."""

    def __init__(
        self, encoder: FewTextsEncoder, head: str, problem: str, layers: dict[str, Any]
    ) -> None:
        self._encoder, self._head, self._problem, self._layers = encoder, head, problem, layers
        self._view = parse_view(_VIEWS[head], n_layers=encoder.n_layers)

    @classmethod
    def load(cls, folder: Path, tokenizer: TextTokenizer) -> _Model | None:
        stated = json.loads((folder / "head.json").read_text("utf-8"))
        head, problem = stated["head"], stated["problem"]
        if head not in _VIEWS or stated["mix_layers"] != 1 or problem not in _PROBLEMS:
            return None
        checkpoint = find_checkpoint(str(folder))
        encoder = FewTextsEncoder.load(checkpoint, lambda _: tokenizer)
        if encoder is None:
            return None
        wanted = (_LAST, _DENSE) if head == "pooler" else (_LAST,)
        return cls(encoder, head, problem, _layers(checkpoint, wanted))

    def __call__(self, texts: Sequence[TokenizedText]) -> Float64:
        """Probabilities ``(n, classes)`` or values ``(n,)``."""
        found = self._encoder.encode_shard(texts, views=[self._view]).views[self._view.name]
        if self._head == "pooler":
            weight, bias = self._layers["dense"]
            found = np.tanh(found @ weight.T + bias)
        weight, bias = self._layers["last"]
        logits = np.asarray(found @ weight.T + bias, np.float64)
        if self._problem == "value":
            return np.asarray(logits[:, 0])
        if logits.shape[1] == 1:  # of two classes, the first of which has 0
            logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
        powers = np.exp(logits - logits.max(1, keepdims=True))
        return np.asarray(powers / powers.sum(1, keepdims=True))


def _layers(checkpoint: Checkpoint, wanted: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Weight and bias of the layers of a head, of each the first of some names that is there."""
    from safetensors import safe_open

    files: dict[str, Any] = {}
    for file in checkpoint.weights:
        stored: Any = safe_open(checkpoint.folder / file, "numpy")
        files |= dict.fromkeys(stored.keys(), stored)
    found = {}
    for key, names in zip(("last", "dense"), wanted, strict=False):
        name = next(name for name in names if f"{name}.weight" in files)
        parts = (f"{name}.weight", f"{name}.bias")
        found[key] = [np.asarray(files[part].get_tensor(part), np.float32) for part in parts]
    return found


def _tokenizer(folder: Path, tokens: Tokens) -> TextTokenizer | None:
    """The tokenizer that was saved, as its file states it."""
    checkpoint = find_checkpoint(str(folder))
    stated = checkpoint.side_json("tokenizer_config.json")
    if stated.get("truncation_side", "right") != "right":
        return None
    if not (folder / "tokenizer.json").is_file():
        return None
    return TextTokenizer(
        FileTokenizer(checkpoint), pad_id=tokens.pad_id, type_vocab=tokens.type_vocab
    )
