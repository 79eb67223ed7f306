"""Where a word stands in a text, and which word of a sentence is marked with brackets."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from embedkit.errors import UsageError

__all__ = ["MATCHES", "Marked", "find_word", "read_marked"]

MATCHES = ("word", "start", "anywhere")
"""word: the whole word, for Hangul also with particles; start: longer words too; anywhere."""

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
    """Character spans of a word in a text; particles are not part of a span.

    Case makes no difference, nor whether letters are composed (NFC) or decomposed (NFD).

    Args:
        text: the text.
        word: the word.
        match: one of :data:`MATCHES`. Japanese, which has no spaces, is always looked for
            anywhere.

    Raises:
        UsageError: the word is empty, or the way of matching is unknown.
    """
    if not word.strip():
        raise UsageError("the word is empty.")
    if match not in MATCHES:
        raise UsageError(f"--match {match}: expected {', '.join(MATCHES)}.")
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
    """A sentence whose word is marked as ``a [bank] of clay``; ``None`` unless one word is."""
    found = list(_MARK.finditer(text))
    if len(found) != 1 or text.count("[") != 1 or text.count("]") != 1:
        return None
    start, word = found[0].start(), found[0].group(1)
    if not word.strip():
        return None
    return Marked(text[:start] + word + text[found[0].end() :], start, start + len(word))
