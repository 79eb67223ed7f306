"""The encoders of a fine-tuned run, one for each fold, behind the interface of one encoder.

A record that was in the training of some folds' models must not be embedded by these: its vector
would know its label. Records of the run's corpus take the one model that has not seen them; all
others take the mean of the vectors of all models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.encoding.encoder import Encoder
from embedkit.encoding.shard import PendingShard
from embedkit.encoding.views import ShardVectors
from embedkit.encoding.windows import TokenizedTexts, ranges
from embedkit.types import Float32, Int64


class FoldEncoder(Encoder):
    """The encoders of a fine-tuned run, all in memory, with one tokenizer.

    ``fold_of_model`` is the fold that each of them was not trained on; the precision chosen for the
    first one holds for all.
    """

    def __init__(
        self,
        name: str,
        folders: Mapping[str, Path],
        *,
        fold_of_model: Sequence[int],
        prefix: str,
        precision: str | None = None,
        **settings: Any,
    ) -> None:
        # not super().__init__: the attributes come from the first member below
        self.members: list[Encoder] = []
        for folder in folders.values():
            # what the first one resolved "auto" to, so that no vector mixes precisions
            chosen = self.members[0].precision if self.members else precision
            self.members.append(Encoder.load(folder, precision=chosen, **settings))
        # tokenizer, lengths and poolers are those of any member; the models stay the members' own
        self.__dict__ |= vars(self.members[0])
        self.fold_of_model = tuple(fold_of_model)
        # the weights of all folds shape the vectors, so that all are part of the identity
        hashes = {
            f"{model}/{file}": value
            for model, member in zip(folders, self.members, strict=True)
            for file, value in member.checkpoint.sha256.items()
        }
        self.checkpoint = replace(
            self.checkpoint, name=name, source="run", sha256=hashes, prefix=prefix
        )

    def start_shard(
        self, texts: TokenizedTexts, *, folds: Int64 | None = None, **settings: Any
    ) -> PendingShard:
        """As :meth:`Encoder.start_shard`, each text by the encoders of its fold.

        ``folds`` are ``(n,)``; texts of other folds, or of none, get the mean over all encoders.
        """
        # -1 is no fold: every model may embed such a text
        fold_of_text = np.full(len(texts), -1) if folds is None else folds
        unseen = np.isin(fold_of_text, self.fold_of_model)
        parts = []
        for member, fold in zip(self.members, self.fold_of_model, strict=True):
            # the held-out fold of a model, and texts that no model has seen
            index = np.flatnonzero((fold_of_text == fold) | ~unseen)
            # all are queued before any result is waited for
            parts.append((index, member.start_shard(texts[index], **settings)))
        return _PendingFolds(texts, parts)


class _PendingFolds(PendingShard):
    """The shards of several encoders, merged by :meth:`result`."""

    def __init__(self, texts: TokenizedTexts, parts: Sequence[tuple[Int64, PendingShard]]) -> None:
        # not super().__init__, which would run the texts
        self._ends, self._parts = texts.ends, parts
        self.nbytes = sum(pending.nbytes for _, pending in parts)

    def result(self) -> ShardVectors:
        """Wait for the vectors: means over the encoders of each text."""
        ends, texts = self._ends, [index for index, _ in self._parts]
        shards = [pending.result() for _, pending in self._parts]
        tokens = [ranges(ends[index], np.diff(ends)[index]) for index in texts]
        return ShardVectors(
            _means(len(ends) - 1, texts, [shard.views for shard in shards]),
            _means(int(ends[-1]), tokens, [shard.tokens for shard in shards]),
            encoded=sum(shard.encoded for shard in shards),
            splits=sum(shard.splits for shard in shards),
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
