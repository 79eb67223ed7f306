"""Whether a vocabulary knows the words of some texts, or takes them apart into letters."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

from embedkit.choices import MULTILINGUAL
from embedkit.encoding.checkpoint import Checkpoint
from embedkit.encoding.tokenization import TextTokenizer, TokenizedText, TokenizerSettings
from embedkit.types import Bool

__all__ = ["LIMIT", "note_if_spelled_out", "spelled_out"]

logger = logging.getLogger(__name__)

LIMIT = 0.2
"""Fraction of words from which :func:`note_if_spelled_out` logs a warning. Measured on
reviews, news and requests: 0 to 0.08 for the languages of a model and those that share its
letters, 0.67 to 1 for Korean, Russian, Greek, Japanese and Chinese with MiniLM; a corpus may be so
in part."""

_TEXTS = 200
_SETTINGS = TokenizerSettings(max_length=512)
_LETTERS = 3
_FEWEST_WORDS = 20
_ONE_EACH = ("CJK", "HIRAGANA", "KATAKANA")
"""Scripts that also a vocabulary of their language takes apart."""


def note_if_spelled_out(
    checkpoint: Checkpoint, tokenizer: TextTokenizer, texts: Sequence[str]
) -> None:
    """Log a warning with the remedy if the vocabulary does not know the words of the texts."""
    fraction = spelled_out(tokenizer, texts)
    if fraction is None or fraction < LIMIT:
        return
    remedy = "Use a checkpoint of their language"
    if checkpoint.name != MULTILINGUAL:
        remedy += f", or the multilingual one: model={MULTILINGUAL!r}"
    logger.warning(
        f"the vocabulary of {checkpoint.name} spells {fraction:.0%} of the words out letter by "
        f"letter or does not know them; its vectors say little about such texts. {remedy}."
    )


def spelled_out(tokenizer: TextTokenizer, texts: Sequence[str]) -> float | None:
    """Fraction of words that have a token for every letter, or an unknown one.

    Whitespace words of three or more letters are counted in 200 texts at equal distances. Chinese
    and Japanese characters, which have tokens of their own in most vocabularies, count as spelled
    out only if they are unknown.

    Args:
        tokenizer: of the checkpoint.
        texts: some of a corpus.

    Returns:
        The fraction, or ``None`` if there are fewer than 20 words.

    Example:
        >>> spelled_out(embedkit.Encoder.load().tokenizer, ["Where is my parcel?"] * 20)
        0.0
    """
    some = list(texts[:: -(-len(texts) // _TEXTS) or 1])
    found = [
        flag
        for text, tokens in zip(
            some, tokenizer.encode(some, settings=_SETTINGS, offsets=True), strict=True
        )
        for flag in _words(text, tokens, tokens.ids == tokenizer.unknown_id)
    ]
    return float(np.mean(found)) if len(found) >= _FEWEST_WORDS else None


def _words(text: str, tokens: TokenizedText, unknown: Bool) -> Iterator[bool]:
    """Whether each word of a text is spelled out."""
    assert tokens.spans is not None
    assert tokens.word is not None
    for word in np.unique(tokens.word[tokens.word >= 0]):
        here = np.flatnonzero(tokens.word == word)
        parts = [text[start:end] for start, end in tokens.spans[here]]
        with_letters = [any(map(str.isalpha, part)) for part in parts]
        start, end = tokens.spans[here, 0].min(), tokens.spans[here, 1].max()
        # Hangul syllables fall apart into their two or three letters
        letters = [x for x in unicodedata.normalize("NFD", text[start:end]) if x.isalpha()]
        if len(letters) < _LETTERS:
            continue
        one_each = any(unicodedata.name(x, "").startswith(_ONE_EACH) for x in letters)
        yield bool(unknown[here][with_letters].any()) or (
            not one_each and sum(with_letters) >= len(letters)
        )
