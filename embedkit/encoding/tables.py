"""Tokenized texts and their vectors → one row per token, or per word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from embedkit.encoding.pooling import pool_words
from embedkit.encoding.tokenization import TextTokenizer, TokenizedText
from embedkit.types import Bool, Float32, Int64

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["TokenVectors", "WordVectors", "joined", "token_vectors", "word_vectors"]

Ints = NDArray[np.int32]
Texts = NDArray[np.object_]


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    vectors: dict[str, Float32]
    row: Int64

    def __len__(self) -> int:
        return len(self.row)

    @property
    def X(self) -> Float32:
        """``(n, width)`` float32: the vectors of all layers asked for, side by side."""
        layers = list(self.vectors.values())
        return layers[0] if len(layers) == 1 else np.concatenate(layers, axis=1)

    def to_pandas(self) -> DataFrame:
        """A data frame of everything but the vectors."""
        import pandas as pd

        names = [field.name for field in fields(self) if field.name != "vectors"]
        return pd.DataFrame({name: getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True, eq=False)
class TokenVectors(_Table):
    """Vectors of tokens, one row per token that the model saw.

    Attributes:
        vectors: ``(n, width)`` float32 by layer name, such as ``6`` or ``sum_9to12``.
        row: ``(n,)`` int64, number of the text.
        pos: ``(n,)`` int32, position among the tokens of the text.
        segment: ``(n,)`` int8: 0, or 1 for the second text of a pair; -1 for special tokens.
        token_id: ``(n,)`` int32.
        token: ``(n,)`` entries of the vocabulary.
        start: ``(n,)`` int32, first character in the text; 0 for special tokens.
        end: ``(n,)`` int32, after the last one.
        word: ``(n,)`` int32, number of the word in the text; -1 for none.
    """

    pos: Ints
    segment: NDArray[np.int8]
    token_id: Ints
    token: Texts
    start: Ints
    end: Ints
    word: Ints

    @property
    def special(self) -> Bool:
        """``(n,)`` bool: tokens that the tokenizer added, such as [CLS]."""
        return np.asarray(self.segment == -1)


@dataclass(frozen=True, slots=True, eq=False)
class WordVectors(_Table):
    """Vectors of words, one row per word that has a token that the model saw.

    Attributes:
        vectors: ``(n, width)`` float32 by layer name, such as ``6`` or ``sum_9to12``.
        row: ``(n,)`` int64, number of the text.
        word: ``(n,)`` int32, number of the word in the text; on through the second one of a pair.
        segment: ``(n,)`` int8: 0, or 1 for the second text of a pair.
        text: ``(n,)`` the words.
        start: ``(n,)`` int32, first character in the text.
        end: ``(n,)`` int32, after the last one.
        n_tokens: ``(n,)`` int32, tokens of the word.
    """

    word: Ints
    segment: NDArray[np.int8]
    text: Texts
    start: Ints
    end: Ints
    n_tokens: Ints


AnyTable = TypeVar("AnyTable", bound=_Table)


def token_vectors(
    texts: Sequence[TokenizedText],
    vectors: Mapping[str, Float32],
    tokenizer: TextTokenizer,
    *,
    first_row: int = 0,
) -> TokenVectors:
    """The table of tokens.

    Args:
        texts: the tokenized texts, with offsets.
        vectors: ``(all kept tokens, width)`` by layer name.
        tokenizer: made the tokens.
        first_row: number of the first text.
    """
    ids = _of("ids", texts, np.int32)
    spans = _of("spans", texts, np.int32).reshape(-1, 2)
    return TokenVectors(
        vectors=dict(vectors),
        row=_owners(texts) + first_row,
        pos=_joined([np.arange(text.n_kept) for text in texts], np.int32),
        segment=_of("segment", texts, np.int8),
        token_id=ids,
        token=np.array(tokenizer.tokens(ids.tolist()), dtype=object),
        start=spans[:, 0],
        end=spans[:, 1],
        word=_of("word", texts, np.int32),
    )


def word_vectors(
    texts: Sequence[TokenizedText],
    sources: Sequence[Sequence[str]],
    vectors: Mapping[str, Float32],
    subtokens: str,
    *,
    first_row: int = 0,
) -> WordVectors:
    """The table of words.

    A word without a token of its own (``not`` in ``cannot``, where that is one token) is made of
    those that reach into it.

    Args:
        texts: the tokenized texts, with offsets and words.
        sources: what was tokenized: for each one text, or two of a pair.
        vectors: ``(all kept tokens, width)`` by layer name.
        subtokens: how sub-tokens become a word, see :func:`~embedkit.encoding.pooling.pool_words`.
        first_row: number of the first text.
    """
    order, row, word = _word_tokens(texts)
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(word) != 0) | (np.diff(row) != 0)
    starts = np.flatnonzero(new)
    row, index = row[starts], word[starts]
    known = [text.word_spans for text in texts]
    spans = _joined([one for both in known for one in both], np.int32).reshape(-1, 2)
    counts = np.array([sum(map(len, both)) for both in known], np.int64)
    spans = spans[(np.cumsum(counts) - counts)[row] + index]
    segment = index >= np.array([len(both[0]) for both in known], np.int64)[row]
    found = zip(row.tolist(), segment.astype(int).tolist(), spans.tolist(), strict=True)
    return WordVectors(
        vectors={name: pool_words(v[order], starts, subtokens) for name, v in vectors.items()},
        row=row + first_row,
        word=index,
        segment=segment.astype(np.int8),
        text=np.array([sources[r][s][start:end] for r, s, (start, end) in found], dtype=object),
        start=spans[:, 0],
        end=spans[:, 1],
        n_tokens=np.diff(starts, append=len(order)).astype(np.int32),
    )


def _word_tokens(texts: Sequence[TokenizedText]) -> tuple[Int64, Int64, Ints]:
    """Tokens of words in the order of the words: rows of the tokens, texts and words."""
    word, owner = _of("word", texts, np.int32), _owners(texts)
    chosen = np.flatnonzero(word >= 0)
    tokens, owners, words = [chosen], [owner[chosen]], [word[chosen]]
    first = 0
    for number, text in enumerate(texts):
        assert text.spans is not None
        assert text.word is not None
        base = 0
        for segment, spans in enumerate(text.word_spans):
            missing = np.setdiff1d(np.arange(len(spans)) + base, text.word) - base
            for one in missing[spans[missing, 0] < text.spans[:, 1].max(initial=0)].tolist():
                start, end = spans[one]
                touching = (text.spans[:, 0] < end) & (text.spans[:, 1] > start)
                found = np.flatnonzero(touching & (text.segment == segment))
                tokens.append(found + first)
                owners.append(np.full(len(found), number))
                words.append(np.full(len(found), one + base, np.int32))
            base += len(spans)
        first += text.n_kept
    token, row, index = (np.concatenate(some) for some in (tokens, owners, words))
    # a word's tokens follow one another; sorting is for tokenizers that give offsets out of order
    order = np.lexsort((token, index, row))
    return token[order], row[order], index[order]


def joined(tables: Sequence[AnyTable]) -> AnyTable:
    """Several tables as one; their rows are numbered already."""
    columns: dict[str, Any] = {}
    for field in fields(tables[0]):
        pieces = [getattr(table, field.name) for table in tables]
        if field.name == "vectors":
            columns["vectors"] = {
                name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]
            }
        else:
            columns[field.name] = np.concatenate(pieces)
    return type(tables[0])(**columns)


def _owners(texts: Sequence[TokenizedText]) -> Int64:
    return np.repeat(np.arange(len(texts)), np.array([text.n_kept for text in texts], np.int64))


def _of(name: str, texts: Sequence[TokenizedText], dtype: Any) -> NDArray[Any]:
    return _joined([getattr(text, name) for text in texts], dtype)


def _joined(pieces: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(pieces).astype(dtype) if pieces else np.zeros(0, dtype)
