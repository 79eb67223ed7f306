"""Records and their vectors → the three tables of a shard: sentences, words, tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedkit.corpus import Record
from embedkit.dataset.manifest import JobSettings
from embedkit.dataset.record_keys import text_key, whole_text
from embedkit.dataset.schema import text_column
from embedkit.encoding.pooling import pool_words
from embedkit.encoding.tokenization import TextTokenizer, TokenizedText, word_spans

__all__ = ["ledger_of", "sentence_columns", "token_columns", "word_table"]

Floats = NDArray[np.float32]


def sentence_columns(
    records: Sequence[Record], texts: Sequence[TokenizedText], settings: JobSettings
) -> dict[str, pa.Array]:
    """Everything of the sentence table but the vectors, one row per record."""
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
    counts = [t.n_kept for t in texts]
    ids = _joined([t.ids for t in texts], np.int32)
    spans = _joined([_required(t.spans) for t in texts], np.int32).reshape(-1, 2)
    segment = _joined([t.segment for t in texts], np.int8)
    columns = {
        "row": pa.array(np.repeat(_rows(records), counts), pa.int64()),
        "pos": pa.array(_joined([np.arange(n) for n in counts], np.int32), pa.int32()),
    }
    if paired:
        columns["segment"] = pa.array(segment, pa.int8())
    return columns | {
        "token_id": pa.array(ids, pa.int32()),
        "token": text_column(tokenizer.tokens(ids.tolist())),
        "start": pa.array(spans[:, 0], pa.int32()),
        "end": pa.array(spans[:, 1], pa.int32()),
        "word": pa.array(_joined([_required(t.word) for t in texts], np.int32), pa.int32()),
        "special": pa.array(segment == -1, pa.bool_()),
    }


def word_table(
    records: Sequence[Record],
    texts: Sequence[TokenizedText],
    token_vectors: Mapping[str, Floats],
    *,
    subtokens: str,
    paired: bool,
) -> tuple[dict[str, pa.Array], dict[str, Floats]]:
    """The word table: one row per whitespace word that has a kept token.

    Args:
        records: the records.
        texts: their tokens, with spans and words.
        token_vectors: ``(all kept tokens, width)`` by layer name.
        subtokens: how sub-tokens become a word, see :func:`~embedkit.encoding.pooling.pool_words`.
        paired: whether the records are pairs; then a column ``segment`` is added.

    Returns:
        The scalar columns, and the word vectors by layer name.
    """
    word = _joined([_required(t.word) for t in texts], np.int32)
    owner = np.repeat(np.arange(len(texts)), [t.n_kept for t in texts])
    # a word's tokens stand together; sorting is for tokenizers that give offsets out of order
    chosen = np.flatnonzero(word >= 0)
    order = chosen[np.lexsort((chosen, word[chosen], owner[chosen]))]
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(word[order]) != 0) | (np.diff(owner[order]) != 0)
    starts = np.flatnonzero(new)
    vectors = {
        name: pool_words(np.ascontiguousarray(values[order]), starts, subtokens)
        if len(starts)
        else values[:0]
        for name, values in token_vectors.items()
    }
    lengths = np.diff(np.append(starts, len(order)))
    where = [(int(owner[i]), int(word[i])) for i in order[starts]]
    return _word_columns(records, where, lengths, paired=paired), vectors


def _word_columns(
    records: Sequence[Record],
    where: Sequence[tuple[int, int]],
    lengths: NDArray[np.int64],
    *,
    paired: bool,
) -> dict[str, pa.Array]:
    surfaces: list[str] = []
    spans: list[tuple[int, int]] = []
    segments: list[int] = []
    known: dict[int, tuple[Any, Any]] = {}
    for record_number, index in where:
        record = records[record_number]
        if record_number not in known:
            known = {record_number: _both_spans(record)}
        first, second = known[record_number]
        segment = int(index >= len(first))
        source = str(record.text_pair) if segment else record.text
        start, end = (second[index - len(first)] if segment else first[index]).tolist()
        surfaces.append(source[start:end])
        spans.append((start, end))
        segments.append(segment)
    rows = _rows(records)[[n for n, _ in where]] if where else np.zeros(0, np.int64)
    columns = {
        "row": pa.array(rows, pa.int64()),
        "word": pa.array([i for _, i in where], pa.int32()),
    }
    if paired:
        columns["segment"] = pa.array(segments, pa.int8())
    return columns | {
        "text": text_column(surfaces),
        "start": pa.array([s for s, _ in spans], pa.int32()),
        "end": pa.array([e for _, e in spans], pa.int32()),
        "n_tokens": pa.array(lengths, pa.int32()),
    }


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


def _both_spans(record: Record) -> tuple[Any, Any]:
    second = record.text_pair
    return word_spans(record.text), word_spans(second) if second is not None else None


def _rows(records: Sequence[Record]) -> NDArray[np.int64]:
    return np.array([r.row for r in records], np.int64)


def _joined(pieces: Sequence[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate(pieces).astype(dtype) if pieces else np.zeros(0, dtype)


def _required(values: NDArray[Any] | None) -> NDArray[Any]:
    assert values is not None
    return values
