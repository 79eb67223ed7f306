"""Records and their vectors → the three tables of a shard: sentences, words, tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from embedkit.corpus import Record
from embedkit.dataset.manifest import JobSettings
from embedkit.dataset.record_keys import text_key, whole_text
from embedkit.dataset.schema import text_column
from embedkit.encoding.tables import TokenVectors, WordVectors
from embedkit.encoding.tokenization import TextTokenizer, TokenizedText
from embedkit.types import Int64

__all__ = ["layer_columns", "ledger_of", "sentence_columns"]


_OF_WORDS = {
    "row": pa.int64(), "word": pa.int32(), "segment": pa.int8(), "text": pa.string(),
    "start": pa.int32(), "end": pa.int32(), "n_tokens": pa.int32(),
}  # fmt: skip
_OF_TOKENS = {
    "row": pa.int64(), "pos": pa.int32(), "segment": pa.int8(), "token_id": pa.int32(),
    "token": pa.string(), "start": pa.int32(), "end": pa.int32(), "word": pa.int32(),
    "special": pa.bool_(),
}  # fmt: skip
_SPELLING = frozenset({"text", "token", "token_id"})
"""Columns that tell the texts."""


def sentence_columns(
    records: Sequence[Record],
    texts: Sequence[TokenizedText],
    settings: JobSettings,
    folds: Int64 | None = None,
) -> dict[str, pa.Array]:
    """Everything of the sentence table but the vectors, one row per record.

    ``folds`` is the ``(n,)`` fold whose models made each vector; ``None`` for a checkpoint.
    """
    columns = {
        "row": pa.array([r.row for r in records], pa.int64()),
        "id": text_column([r.id for r in records]),
    }
    if settings.storage.text:
        columns["text"] = text_column([r.text for r in records])
        if settings.input.text_pair is not None:
            columns["text_pair"] = text_column([r.text_pair for r in records])
    if settings.input.label is not None:
        columns["label"] = text_column([r.label for r in records])
    for position, name in enumerate(settings.input.keep):
        columns[name] = text_column([r.kept[position] for r in records])
    keys = [text_key(whole_text(r.text, r.text_pair)) for r in records]
    if folds is not None:
        columns["fold"] = pa.array(folds, pa.int16())
    return columns | {
        "n_tokens": pa.array([t.n_tokens for t in texts], pa.int32()),
        "n_kept": pa.array([t.n_kept for t in texts], pa.int32()),
        "truncated": pa.array([t.cut for t in texts], pa.bool_()),
        "text_key": pa.array(keys, pa.int64()),
    }


def layer_columns(
    found: WordVectors | TokenVectors, records: Sequence[Record], settings: JobSettings
) -> dict[str, pa.Array]:
    """Everything of the word or token table but the vectors, one row per word or kept token."""
    types = _OF_WORDS if isinstance(found, WordVectors) else _OF_TOKENS
    left_out = frozenset() if settings.storage.text else _SPELLING
    if settings.input.text_pair is None:
        left_out |= {"segment"}
    rows = np.array([r.row for r in records], np.int64)[found.row]
    columns = {
        name: pa.array(rows if name == "row" else getattr(found, name), kind)
        for name, kind in types.items()
        if name not in left_out
    }
    if isinstance(found, WordVectors) and settings.input.word_label is not None:
        labels = [() if r.words is None else r.words.labels or () for r in records]
        places = zip(found.row.tolist(), found.word.tolist(), strict=True)
        columns["label"] = text_column([labels[record][word] for record, word in places])
    return columns


def ledger_of(
    texts: Sequence[TokenizedText], tokenizer: TextTokenizer, *, limit: int
) -> dict[str, int]:
    """Counts of a shard: what was kept, cut, unknown, or looked like markup to the tokenizer."""
    special = tokenizer.special_ids
    spelled = sum(bool(np.isin(t.ids[~t.special], special).any()) for t in texts)
    return {
        "records": len(texts),
        "tokens": sum(t.n_tokens for t in texts),
        "tokens_kept": sum(t.n_kept for t in texts),
        "records_truncated": sum(t.cut for t in texts),
        "tokens_cut": sum(t.n_tokens - t.n_kept for t in texts),
        "records_longer_than_limit": sum(t.n_tokens > limit for t in texts),
        "windows": sum(len(t.windows) for t in texts),
        "tokens_unknown": sum(t.n_unknown for t in texts),
        "records_spelling_special_tokens": spelled,
    }
