"""Words of a text and the tokens that belong to them.

``word_spans`` finds words by white space (and, on request, marks as words of their own);
``word_index`` says to which of them a token belongs. Tokenizers in Rust give the characters of each
token; for those in Python, ``align`` finds the tokens again in their text, with accents and case
left aside because the tokenizer may have removed them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


Spans = Sequence[Sequence[tuple[int, int]] | Ints]
"""Start and end of the words of each text."""


ENDLESS = 10**9


_WORD = re.compile(r"\S+")


UNSPACED = (
    # raw: a pattern in which these are letters is not the same class once it is decomposed
    r"\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f"
    r"\U00020000-\U0003ffff"
)
"""Kana and Chinese characters, as a class of a regular expression: no spaces stand between words of
them."""
WORDS = rf"[^\W{UNSPACED}]+|\w"
"""Pattern of words: runs of letters, and each letter where no spaces stand between words."""


def word_spans(text: str, *, marks: bool = False) -> Ints:
    """Start and end of every whitespace word of a text, ``(n_words, 2)`` int32.

    With ``marks`` punctuation is apart, about as in a treebank.

    >>> word_spans("No, 3.").tolist(), word_spans("No, 3.", marks=True).tolist()
    ([[0, 3], [4, 6]], [[0, 2], [2, 3], [4, 5], [5, 6]])
    """
    pattern = _word_or_mark() if marks else _WORD
    return np.array([m.span() for m in pattern.finditer(text)], np.int32).reshape(-1, 2)


@cache
def signs() -> str:
    r"""Return the signs that belong to a letter, which ``\w`` leaves out, for a class of a pattern.

    They are vowels of Hindi and Thai, accents that are characters of their own, and what chooses a
    form of a letter.
    """
    characters = map(chr, (*range(0x300, 0x1F000), *range(0xE0100, 0xE01F0)))
    return "".join(c for c in characters if unicodedata.category(c).startswith("M"))


@cache
def _word_or_mark() -> re.Pattern[str]:
    return re.compile(rf"\w[\w\u200c\u200d{signs()}]*|[^\w\s]")


def word_index(segment: NDArray[np.int8], spans: Ints, words: Sequence[Ints]) -> Ints:
    """The first word that each token touches, ``(n,)``, numbered from text to text; -1 for none.

    ``segment`` is the number of the text of each token, which may begin with the space before its
    word; ``words`` are the spans of the words of each text, ascending and disjoint.
    """
    word = np.full(len(segment), -1, np.int32)
    base = 0
    for number, (starts, ends) in enumerate(spans_of.T for spans_of in words):
        # the first word that ends behind the token's first character: either the token touches it
        # or lies in the gap before it
        index = np.searchsorted(ends, spans[:, 0], side="right")
        # a token behind the last word meets a start that nothing reaches
        touches = np.append(starts, ENDLESS)[index] < spans[:, 1]
        # empty spans are tokens of the prefix or of nothing, and touch no word
        chosen = (segment == number) & touches & (spans[:, 1] > spans[:, 0])
        word[chosen] = index[chosen] + base
        base += len(ends)
    return word


def align(tokens: Sequence[str], text: str, *, unknown: str | None) -> list[tuple[int, int]]:
    """Return ``(start, end)`` of each token in its text; empty spans if nothing is left.

    Both sides are compared after NFKD, accent removal and case folding, so normalization by the
    tokenizer does not matter. A token that is not found, such as the unknown token, gets the text
    up to the next token that is; several in a row share it, divided at whitespace.
    """
    # character by character, so that every folded one can be traced back: ß becomes two
    pieces = [_folded(character) for character in text]
    folded = "".join(pieces)
    letters = [i for i, piece in enumerate(pieces) if piece]  # accents belong to the one before
    # start and end in the text for each folded character; accents that follow belong to the span
    ends = [(a, b) for a, b in pairwise([*letters, len(text)]) for _ in pieces[a]]
    ends.append((len(text), len(text)))
    spans: list[tuple[int, int]] = []
    cursor = 0
    missing = 0  # tokens before this one that were not found
    for token in tokens:
        surface = ""
        if token != unknown:
            # marks of WordPiece, SentencePiece, and of the two styles of BPE
            bare = token.removeprefix("##").removeprefix("▁").removesuffix("</w>")
            surface = _folded(bare.removesuffix("@@"))
        at = folded.find(surface, cursor) if surface else -1
        # only whitespace may be skipped; but an unknown token may stand for any characters, so that
        # the next one may be further on
        if at < 0 or (folded[cursor:at].strip() and not missing):
            missing += 1
            continue
        spans += _shared(folded, cursor, at, missing)
        cursor, missing = at + len(surface), 0
        spans.append((at, cursor))
    spans += _shared(folded, cursor, len(folded), missing)
    return [(ends[a][0], ends[b - 1][1] if b > a else ends[a][0]) for a, b in spans]


def _folded(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn")


def _shared(folded: str, start: int, end: int, count: int) -> Iterator[tuple[int, int]]:
    """Divide the text between two tokens among those that were not found there: a word each."""
    words = [match.span() for match in _WORD.finditer(folded, start, end)]
    words += [(end, end)] * (count - len(words))
    for number in range(count):
        # the last of them takes all words that are left
        last = words[-1] if number == count - 1 else words[number]
        yield words[number][0], last[1]


# words with their letters, and such of Chinese and Japanese apart
_LETTERS = re.compile(rf"[{UNSPACED}]+|[^\W{UNSPACED}]+")
_UNSPACED = re.compile(f"[{UNSPACED}]")
_HANGUL = re.compile(r"[\uac00-\ud7a3]{3,}")


def typical_parts(text: str) -> Iterator[str]:
    """Yield the words of a text by which it may be told from others, in lower case.

    Of Chinese and Japanese, pairs of characters; of Korean also the beginnings of words, since
    particles stand at their ends.

    >>> [list(typical_parts(text)) for text in ("The Bus is late", "東京都", "영화는 3D")]
    [['the', 'bus', 'is', 'late'], ['東京', '京都'], ['영화는', '영화', '3d']]
    """
    # composed, so that a text says the same in both forms
    for word in _LETTERS.findall(unicodedata.normalize("NFC", text.lower())):
        if _UNSPACED.match(word):
            yield from (word[i : i + 2] for i in range(max(len(word) - 1, 1)))
        elif len(word) > 1:
            yield word
            if _HANGUL.fullmatch(word):
                yield from (word[:end] for end in range(2, len(word)))
