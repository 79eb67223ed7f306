"""Tables of vectors: one row per token, or per word.

    text     un believable films         words    unbelievable   films
    tokens   [CLS] un ##believable films [SEP]    rows 1, 2      row 3

A word has the vectors of the tokens that touch it. Mostly each token is of one word; where a token
covers two (``cannot``: ``can``, ``not``), the second word takes the token too, and a word behind
the last token that the model saw has no row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from embedkit.encoding.pooling import pool_words
from embedkit.encoding.tokenizer import TextTokenizer
from embedkit.encoding.windows import TokenizedTexts, ends_of, ranges
from embedkit.encoding.words import ENDLESS, Ints
from embedkit.types import Bool, Float32, Int64

if TYPE_CHECKING:
    from pandas import DataFrame


Texts = NDArray[np.object_]


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Vectors by view, and the text that each row belongs to."""

    vectors: dict[str, Float32]
    row: Int64

    def __len__(self) -> int:
        return len(self.row)

    @property
    def X(self) -> Float32:
        """``(n, width)`` float32: the vectors of all layers, concatenated."""
        # one layer is handed out as it is, without a copy
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

    ``vectors`` are ``(n, width)`` float32 by layer name, such as ``6`` or ``sum_9to12``; all others
    are ``(n,)``. ``segment`` is 0, 1 for the second text of a pair, -1 for special tokens;
    ``start`` and ``end`` are characters of the text, 0 for special tokens; ``word`` is -1 for none.
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
        """Tokens that the tokenizer added, such as [CLS]: ``(n,)`` bool."""
        return np.asarray(self.segment == -1)


@dataclass(frozen=True, slots=True, eq=False)
class WordVectors(_Table):
    """Vectors of words, one row per word that has a token that the model saw.

    ``vectors`` are ``(n, width)`` float32 by layer name, such as ``6`` or ``sum_9to12``; all others
    are ``(n,)``. ``word`` is numbered on through the second text of a pair (``segment`` 1);
    ``start`` and ``end`` are characters of the text.
    """

    word: Ints
    segment: NDArray[np.int8]
    text: Texts
    start: Ints
    end: Ints
    n_tokens: Ints


AnyTable = TypeVar("AnyTable", bound=_Table)


def token_vectors(
    texts: TokenizedTexts, vectors: Mapping[str, Float32], tokenizer: TextTokenizer
) -> TokenVectors:
    """The table of tokens of texts with offsets; ``vectors`` are those of all kept tokens."""
    assert texts.spans is not None
    assert texts.word is not None
    return TokenVectors(
        vectors=dict(vectors),
        row=_owners(texts),
        pos=ranges(np.zeros(len(texts), np.int64), texts.n_kept).astype(np.int32),
        segment=texts.segment,
        token_id=texts.ids,
        token=np.array(tokenizer.tokens(texts.ids.tolist()), dtype=object),
        start=texts.spans[:, 0],
        end=texts.spans[:, 1],
        word=texts.word,
    )


def word_vectors(
    texts: TokenizedTexts,
    sources: Sequence[Sequence[str]],
    vectors: Mapping[str, Float32],
    subtokens: str,
) -> WordVectors:
    """The table of words of texts with offsets; ``sources`` are one text each, or a pair.

    A word without a token of its own (``not`` in the token ``cannot``) takes those that overlap it.
    ``vectors`` are those of all kept tokens.
    """
    # tokens in the order of their words; a token in two words is there twice
    order, starts, row, index, spans = word_tokens(texts)
    # words of the second text are numbered on from those of the first
    segment = index >= np.array([len(parts[0]) for parts in texts.word_spans], np.int64)[row]
    places = zip(row.tolist(), segment.astype(int).tolist(), spans.tolist(), strict=True)
    return WordVectors(
        vectors={name: pool_words(v[order], starts, subtokens) for name, v in vectors.items()},
        row=row,
        word=index,
        segment=segment.astype(np.int8),
        text=np.array([sources[r][s][start:end] for r, s, (start, end) in places], dtype=object),
        start=spans[:, 0],
        end=spans[:, 1],
        n_tokens=np.diff(starts, append=len(order)).astype(np.int32),
    )


def word_tokens(texts: TokenizedTexts) -> tuple[Int64, Int64, Int64, Ints, Ints]:
    """Rows of the tokens of words; of each word where it begins there, text, number and span."""
    assert texts.spans is not None
    assert texts.word is not None
    sides = [spans for parts in texts.word_spans for spans in parts]
    # the empty one lets concatenate work without any words
    spans = np.concatenate([np.zeros((0, 2), np.int32), *sides])
    # characters and words of all texts on one line each, so that both ascend from text to text
    side_of_word = np.repeat(np.arange(len(sides)), np.array([*map(len, sides)], np.int64))
    begins = ENDLESS * side_of_word + spans[:, 0]
    before = ends_of(np.array([sum(map(len, parts)) for parts in texts.word_spans], np.int64))
    token = np.flatnonzero(texts.word >= 0)
    row = _owners(texts)[token]
    side = row * (len(sides) // max(len(texts), 1)) + texts.segment[token]
    first = before[row] + texts.word[token]
    # a token touches its first word, and those behind it that begin before the token ends; words
    # behind the last token were truncated, and stay without a row
    counts = np.searchsorted(begins, ENDLESS * side + texts.spans[token, 1]) - first
    token, word, shared = np.repeat(token, counts), ranges(first, counts), np.repeat(first, counts)
    # such a further word takes the token only if it has none of its own
    chosen = (word == shared) | ~np.isin(word, first)
    token, word = token[chosen], word[chosen]
    # for overlapping tokens, and tokenizers with offsets out of order
    order = np.lexsort((token, word))
    # not 0 where the word changes
    starts = np.flatnonzero(np.diff(word[order], prepend=-1))
    word = word[order][starts]
    row = np.searchsorted(before, word, side="right") - 1
    return token[order], starts, row, (word - before[row]).astype(np.int32), spans[word]


def joined(parts: Sequence[tuple[int, AnyTable]]) -> AnyTable:
    """Concatenated tables, each with the number of its first row."""
    # rows count on from part to part
    tables = [replace(table, row=table.row + first) for first, table in parts]
    columns = {field.name: [getattr(t, field.name) for t in tables] for field in fields(tables[0])}
    vectors = columns.pop("vectors")
    return type(tables[0])(
        vectors={layer: np.concatenate([part[layer] for part in vectors]) for layer in vectors[0]},
        **{name: np.concatenate(values) for name, values in columns.items()},
    )


def _owners(texts: TokenizedTexts) -> Int64:
    return np.repeat(np.arange(len(texts)), texts.n_kept)
