"""Records and their vectors → the three tables of a shard: sentences, words, tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedkit.corpus import Record
from embedkit.dataset.manifest import JobSettings
from embedkit.dataset.record_keys import text_key, whole_text
from embedkit.dataset.schema import text_column
from embedkit.encoding.tables import token_vectors, word_vectors
from embedkit.encoding.tokenization import TextTokenizer, TokenizedText
from embedkit.types import Int64

__all__ = ["ledger_of", "sentence_columns", "token_columns", "word_table"]

Floats = NDArray[np.float32]


def sentence_columns(
    records: Sequence[Record],
    texts: Sequence[TokenizedText],
    settings: JobSettings,
    folds: Int64 | None = None,
) -> dict[str, pa.Array]:
    """Everything of the sentence table but the vectors, one row per record.

    Args:
        records: the records.
        texts: their tokens.
        settings: of the dataset.
        folds: ``(n,)`` fold whose models made each vector; ``None`` for vectors of a checkpoint.
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


def token_columns(
    records: Sequence[Record],
    texts: Sequence[TokenizedText],
    tokenizer: TextTokenizer,
    *,
    paired: bool,
) -> dict[str, pa.Array]:
    """Everything of the token table but the vectors, one row per kept token."""
    found = token_vectors(texts, {}, tokenizer)
    columns = {
        "row": pa.array(_rows(records)[found.row], pa.int64()),
        "pos": pa.array(found.pos, pa.int32()),
    }
    if paired:
        columns["segment"] = pa.array(found.segment, pa.int8())
    return columns | {
        "token_id": pa.array(found.token_id, pa.int32()),
        "token": text_column(found.token.tolist()),
        "start": pa.array(found.start, pa.int32()),
        "end": pa.array(found.end, pa.int32()),
        "word": pa.array(found.word, pa.int32()),
        "special": pa.array(found.special, pa.bool_()),
    }


def word_table(
    records: Sequence[Record],
    texts: Sequence[TokenizedText],
    vectors: Mapping[str, Floats],
    *,
    subtokens: str,
    paired: bool,
) -> tuple[dict[str, pa.Array], dict[str, Floats]]:
    """The word table: one row per whitespace word that has a kept token.

    Args:
        records: the records.
        texts: their tokens, with spans and words.
        vectors: ``(all kept tokens, width)`` by layer name.
        subtokens: how sub-tokens become a word, see :func:`~embedkit.encoding.pooling.pool_words`.
        paired: whether the records are pairs; then a column ``segment`` is added.

    Returns:
        The scalar columns, and the word vectors by layer name.
    """
    sources = [[r.text] if r.text_pair is None else [r.text, r.text_pair] for r in records]
    found = word_vectors(texts, sources, vectors, subtokens)
    columns = {
        "row": pa.array(_rows(records)[found.row], pa.int64()),
        "word": pa.array(found.word, pa.int32()),
    }
    if paired:
        columns["segment"] = pa.array(found.segment, pa.int8())
    return columns | {
        "text": text_column(found.text.tolist()),
        "start": pa.array(found.start, pa.int32()),
        "end": pa.array(found.end, pa.int32()),
        "n_tokens": pa.array(found.n_tokens, pa.int32()),
    }, found.vectors


def ledger_of(
    texts: Sequence[TokenizedText], tokenizer: TextTokenizer, *, limit: int
) -> dict[str, int]:
    """Counts of a shard: what was kept, cut, unknown, or looked like markup to the tokenizer.

    Args:
        texts: the tokenized records.
        tokenizer: knows which ids are special.
        limit: tokens per sequence.
    """
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


def _rows(records: Sequence[Record]) -> NDArray[np.int64]:
    return np.array([r.row for r in records], np.int64)
