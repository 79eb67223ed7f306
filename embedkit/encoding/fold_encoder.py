"""Several encoders of one architecture: each text is encoded by those of its fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.encoding.encoder import Encoder
from embedkit.encoding.shard import PendingShard
from embedkit.encoding.tokenization import TokenizedText
from embedkit.encoding.views import ShardVectors
from embedkit.types import Float32, Int64

__all__ = ["FoldEncoder"]


@dataclass(eq=False, repr=False)
class FoldEncoder(Encoder):
    """The encoders of a fine-tuned run; all are in memory.

    Args:
        members: the encoders, of one family and size, with the same tokenizer.
        fold_of_model: fold that each of them was not trained on.
    """

    _: KW_ONLY
    members: tuple[Encoder, ...] = ()
    fold_of_model: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        name: str,
        folders: Mapping[str, Path],
        *,
        fold_of_model: Sequence[int],
        prefix: str,
        precision: str | None = None,
        **settings: Any,
    ) -> FoldEncoder:
        """Load the encoders of a run.

        Args:
            name: of the run.
            folders: folder of each model, by name.
            fold_of_model: fold that each of them was not trained on.
            prefix: put before every text unless another prefix is asked for.
            precision: as for :meth:`Encoder.load`; what is chosen for the first holds for all.
            settings: further arguments of :meth:`Encoder.load`.
        """
        members: list[Encoder] = []
        for folder in folders.values():
            chosen = members[0].precision if members else precision
            members.append(Encoder.load(folder, precision=chosen, **settings))
        first = members[0]
        hashes = {
            f"{model}/{file}": value
            for model, member in zip(folders, members, strict=True)
            for file, value in member.checkpoint.sha256.items()
        }
        checkpoint = replace(
            first.checkpoint, name=name, source="run", sha256=hashes, prefix=prefix
        )
        return cls(
            checkpoint, first.tokenizer, first.model, precision=first.precision,
            max_length=first.max_length, batch_tokens=first.batch_tokens,
            members=tuple(members), fold_of_model=tuple(fold_of_model),
        )  # fmt: skip

    def encode_shard(
        self, texts: Sequence[TokenizedText], *, folds: Int64 | None = None, **settings: Any
    ) -> ShardVectors:
        """Run tokenized texts and wait for their vectors; arguments as for :meth:`start_shard`."""
        return self.start_shard(texts, folds=folds, **settings).result()

    def start_shard(
        self, texts: Sequence[TokenizedText], *, folds: Int64 | None = None, **settings: Any
    ) -> PendingShard:
        """As :meth:`Encoder.start_shard`, each text by the encoders of its fold.

        Args:
            texts: the tokenized texts.
            settings: as of :meth:`Encoder.start_shard`.
            folds: ``(n,)`` fold of each text; where no encoder is of that fold, the vectors are the
                mean over all of them. Without it, all are.
        """
        wanted = np.full(len(texts), -1) if folds is None else folds
        alone = np.isin(wanted, self.fold_of_model)
        parts = []
        for member, fold in zip(self.members, self.fold_of_model, strict=True):
            index = np.flatnonzero((wanted == fold) | ~alone)
            some = [texts[i] for i in index.tolist()]
            parts.append((index, member.start_shard(some, **settings)))
        return _PendingFolds(texts, parts)


class _PendingFolds(PendingShard):
    """The shards of several encoders, which :meth:`result` puts together."""

    def __init__(
        self, texts: Sequence[TokenizedText], parts: Sequence[tuple[Int64, PendingShard]]
    ) -> None:
        self._kept = np.array([text.n_kept for text in texts], np.int64)
        self._parts = parts
        self.nbytes = sum(pending.nbytes for _, pending in parts)

    def result(self) -> ShardVectors:
        """Wait for the vectors: the mean of the encoders that ran a text."""
        found = [(index, pending.result()) for index, pending in self._parts]
        texts = [index for index, _ in found]
        tokens = [_token_rows(self._kept, index) for index in texts]
        shards = [shard for _, shard in found]
        return ShardVectors(
            {name: _mean(len(self._kept), texts, [shard.views[name] for shard in shards])
             for name in shards[0].views},
            {name: _mean(int(self._kept.sum()), tokens, [shard.tokens[name] for shard in shards])
             for name in shards[0].tokens},
            encoded=sum(shard.encoded for shard in shards),
            splits=sum(shard.splits for shard in shards),
            seconds=sum(shard.seconds for shard in shards),
        )  # fmt: skip


def _mean(rows: int, where: Sequence[Int64], vectors: Sequence[Float32]) -> Float32:
    """``(rows, width)``: the mean of those of the given matrices that have a row."""
    total = np.zeros((rows, vectors[0].shape[1]), np.float32)
    count = np.zeros((rows, 1), np.float32)
    for index, values in zip(where, vectors, strict=True):
        total[index] += values
        count[index] += 1
    return np.asarray(total / count, np.float32)


def _token_rows(kept: Int64, index: Int64) -> Int64:
    """Rows of the tokens of some texts among those of all texts."""
    ends = np.cumsum(kept)
    ranges = [np.arange(ends[i] - kept[i], ends[i]) for i in index]
    return np.concatenate(ranges) if ranges else np.empty(0, np.int64)
