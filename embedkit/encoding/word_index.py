"""Words of texts, and the word that each token belongs to."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["split_words", "word_index", "word_spans"]

_Ints = NDArray[np.int32]
_WORD = re.compile(r"\S+")
_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")


def word_spans(text: str) -> _Ints:
    """Start and end of every whitespace word of a text, ``(n_words, 2)`` int32."""
    return np.array([m.span() for m in _WORD.finditer(text)], np.int32).reshape(-1, 2)


def split_words(text: str) -> _Ints:
    """Start and end of the words of a text where punctuation is apart, ``(n_words, 2)`` int32.

    Runs of letters and digits, and every other character that is not white space: about what a
    treebank takes for words.

    >>> split_words("No, 3.").tolist()
    [[0, 2], [2, 3], [4, 5], [5, 6]]
    """
    return np.array([m.span() for m in _WORD_OR_MARK.finditer(text)], np.int32).reshape(-1, 2)


def word_index(segment: NDArray[np.int8], spans: _Ints, words: Sequence[_Ints]) -> _Ints:
    """The first word that each token touches; it may begin with the space before its word.

    Args:
        segment: ``(n,)`` number of the text of each token; -1 for special tokens.
        spans: ``(n, 2)`` characters of each token.
        words: ``(n_words, 2)`` start and end of the words of each text, in order and apart.

    Returns:
        ``(n,)`` int32, words numbered on from text to text; -1 for none.
    """
    word = np.full(len(segment), -1, np.int32)
    base = 0
    for number, known in enumerate(words):
        if len(known):
            starts, ends = known[:, 0], known[:, 1]
            here = np.searchsorted(ends, spans[:, 0], side="right")
            inside = here < len(known)
            here = np.minimum(here, len(known) - 1)
            touches = inside & (starts[here] < spans[:, 1]) & (spans[:, 1] > spans[:, 0])
            chosen = (segment == number) & touches
            word[chosen] = here[chosen] + base
        base += len(known)
    return word
