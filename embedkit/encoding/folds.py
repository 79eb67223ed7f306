"""The encoders of a fine-tuned run, one for each fold, behind the interface of one encoder.

A record that was in the training of some folds' models must not be embedded by these: its vector
would know its label. Records of the run's corpus take the one model that has not seen them; all
others take the mean of the vectors of all models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.encoding.encoder import Encoder
from embedkit.encoding.shard import PendingShard
from embedkit.encoding.views import ShardVectors
from embedkit.encoding.windows import TokenizedTexts, ranges
from embedkit.types import Float32, Int64, Reloaded


class FoldEncoder(Encoder):
    """The encoders of a fine-tuned run, all in memory, with one tokenizer.

    It is the encoder of the first of its models, beside which it holds the others. ``folds`` are
    the names of the models, each with the fold that it was not trained on.
    """

    def __init__(self, run: str, folds: Mapping[str, int], prefix: str, **settings: Any) -> None:
        first, *others = (Path(run) / "model" / model for model in folds)
        super().__init__(first, **settings)
        Reloaded.__init__(self, {"run": run, "folds": folds, "prefix": prefix, **settings})
        # what the first one resolved "auto" to, so that no vector mixes precisions
        settings["precision"] = self.precision
        self._others = [Encoder(folder, **settings) for folder in others]
        self._fold_of_model = tuple(folds.values())
        # the weights of all folds shape the vectors, so that all are part of the identity
        hashes = {
            f"{model}/{file}": value
            for model, encoder in zip(folds, (self, *self._others), strict=True)
            for file, value in encoder.checkpoint.sha256.items()
        }
        self.checkpoint = replace(
            self.checkpoint, name=run, source="run", sha256=hashes, prefix=prefix
        )

    def start_shard(
        self, texts: TokenizedTexts, *, folds: Int64 | None = None, **settings: Any
    ) -> PendingShard:
        """As :meth:`Encoder.start_shard`, each text by the encoders of its fold.

        ``folds`` are ``(n,)``; texts of other folds, or of none, get the mean over all encoders.
        """
        # -1 is no fold: every model may embed such a text
        fold_of_text = np.full(len(texts), -1) if folds is None else folds
        unseen = np.isin(fold_of_text, self._fold_of_model)
        starts = super().start_shard, *(encoder.start_shard for encoder in self._others)
        parts = []
        for start, fold in zip(starts, self._fold_of_model, strict=True):
            # the held-out fold of a model, and texts that no model has seen
            index = np.flatnonzero((fold_of_text == fold) | ~unseen)
            # all are queued before any result is waited for
            parts.append((index, start(texts[index], **settings)))
        nbytes = sum(pending.nbytes for _, pending in parts)
        return PendingShard(nbytes, partial(_merged, texts.ends, parts))


def _merged(ends: Int64, parts: Sequence[tuple[Int64, PendingShard]]) -> ShardVectors:
    """The shards of several encoders as one: means over the encoders of each text."""
    texts = [index for index, _ in parts]
    shards = [pending.result() for _, pending in parts]
    tokens = [ranges(ends[index], np.diff(ends)[index]) for index in texts]
    return ShardVectors(
        _means(len(ends) - 1, texts, [shard.views for shard in shards]),
        _means(int(ends[-1]), tokens, [shard.tokens for shard in shards]),
    )


def _means(
    rows: int, where: Sequence[Int64], parts: Sequence[dict[str, Float32]]
) -> dict[str, Float32]:
    """``(rows, width)`` by name: for each row the mean of the matrices that contain it."""
    # each row is in one part, or in all of them
    count = np.bincount(np.concatenate(where), minlength=rows).astype(np.float32)[:, None]
    means = {}
    for name, values in parts[0].items():
        total = np.zeros((rows, values.shape[1]), np.float32)
        for index, part in zip(where, parts, strict=True):
            total[index] += part[name]
        means[name] = total / count
    return means
