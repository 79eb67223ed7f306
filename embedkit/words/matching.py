"""Find a word in a text, or the word of a sentence that is marked with brackets."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from embedkit.choices import MATCHES, check_choice
from embedkit.errors import UsageError

__all__ = ["EDGES", "Marked", "find_word", "read_marked"]

EDGES = ".,!?;:\"'()[]…“”‘’~"
"""Marks that stand around words."""

_PARTICLES = (
    "(?:(?:에게서|에서|에게|한테|으로|부터|까지|처럼|보다|마다|밖에|이랑|이나|이며|이고|라고|조차"
    "|마저|을|를|이|가|은|는|의|에|와|과|로|도|만|랑|나|고|며)"
    "(?:는|은|도|만|의|서|부터|까지)?)?"
)
_HANGUL = re.compile(r"[가-힣]+")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_GOES_ON = "(?![\u0300-\u036f\u11a8-\u11ff])"  # an accent or final consonant, decomposed
_MARK = re.compile(r"\[([^\[\]]+)\]")


@dataclass(frozen=True, slots=True)
class Marked:
    """A sentence with one marked word.

    Attributes:
        text: the sentence without the brackets.
        start: first character of the word.
        end: after its last one.
    """

    text: str
    start: int
    end: int


def find_word(text: str, word: str, *, match: str = "word") -> list[tuple[int, int]]:
    """Find the character spans of a word in a text; particles are not part of a span.

    Case is ignored, and composed (NFC) and decomposed (NFD) letters are the same.

    >>> find_word("Bank of the BANK, banks", "bank")
    [(0, 4), (12, 16)]

    Args:
        text: the text.
        word: the word.
        match: ``word`` for the whole word, for Hangul also with particles; ``start`` also for
            longer words that begin with it; ``anywhere``. Japanese, which has no spaces, is always
            matched anywhere.

    Raises:
        UsageError: the word is empty, or ``match`` is unknown.
    """
    if not word.strip():
        raise UsageError("the word is empty.")
    check_choice(MATCHES, match=match)
    return [found.span() for found in _pattern(word, match).finditer(text)]


@lru_cache(maxsize=16)
def _pattern(word: str, match: str) -> re.Pattern[str]:
    composed = unicodedata.normalize("NFC", word)
    pattern = re.escape(composed) + _GOES_ON
    if match != "anywhere" and not _UNSPACED.search(word):
        pattern = r"(?<!\w)" + pattern
        if match == "word":
            tail = _PARTICLES if _HANGUL.fullmatch(composed) else ""
            pattern += rf"(?={tail}(?!\w))"
    return re.compile(f"{pattern}|{unicodedata.normalize('NFD', pattern)}", re.IGNORECASE)


def read_marked(text: str) -> Marked | None:
    """Read a sentence with a marked word; ``None`` unless exactly one word is marked.

    >>> read_marked("a [bank] of clay")
    Marked(text='a bank of clay', start=2, end=6)
    """
    found = list(_MARK.finditer(text))
    if len(found) != 1 or text.count("[") != 1 or text.count("]") != 1:
        return None
    start, word = found[0].start(), found[0].group(1)
    if not word.strip():
        return None
    return Marked(text[:start] + word + text[found[0].end() :], start, start + len(word))
