"""Character offsets for tokenizers that do not give any (the slow ones, such as MeCab's)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

__all__ = ["align"]

_MARKS = ("##", "▁", "</w>", "@@")
_WORD = re.compile(r"\S+")


def align(tokens: Sequence[str], text: str, *, unknown: str | None) -> list[tuple[int, int]]:
    """Find each token in the text it came from.

    Both sides are compared after NFKD, accent removal and case folding, character by character,
    so that what a tokenizer does to the text does not matter. A token that cannot be found, such as
    the unknown token, gets the unclaimed text up to the next token that can; several in a row
    share it in pieces at whitespace where there is any.

    Args:
        tokens: vocabulary entries in order, with or without ``##`` and similar marks.
        text: the original text.
        unknown: the unknown token, which is any text.

    Returns:
        ``(start, end)`` in ``text`` for each token; empty spans where nothing is left.
    """
    folded, origin = _fold(text)
    found: list[tuple[int, int] | None] = []
    cursor = 0
    for token in tokens:
        surface = "" if token == unknown else _surface(token)
        at = folded.find(surface, cursor) if surface else -1
        # a token may be found further on over whitespace, or over unknown tokens
        after_unknown = bool(found) and found[-1] is None
        if at < 0 or (folded[cursor:at].strip() and not after_unknown):
            found.append(None)
            continue
        cursor = at + len(surface)
        found.append((at, cursor))
    return [_original(span, origin, text) for span in _fill(found, folded)]


def _fold(text: str) -> tuple[str, list[int]]:
    """Comparable form of the text, and for each of its characters where it came from."""
    pieces = [_folded(character) for character in text]
    return "".join(pieces), [i for i, piece in enumerate(pieces) for _ in piece]


def _folded(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn")


def _surface(token: str) -> str:
    for mark in _MARKS:
        token = token.removeprefix(mark) if mark in ("##", "▁") else token.removesuffix(mark)
    return _folded(token)


def _fill(found: Sequence[tuple[int, int] | None], folded: str) -> Iterator[tuple[int, int]]:
    """Give the gaps between found tokens to the runs of tokens that were not found."""
    index = cursor = 0
    while index < len(found):
        if (span := found[index]) is not None:
            yield span
            cursor, index = span[1], index + 1
            continue
        stop = next((i for i in range(index, len(found)) if found[i] is not None), len(found))
        following = found[stop] if stop < len(found) else None
        limit = len(folded) if following is None else following[0]
        yield from _divided(folded, cursor, limit, stop - index)
        index = stop


def _divided(folded: str, start: int, end: int, count: int) -> list[tuple[int, int]]:
    """Split ``folded[start:end]`` into ``count`` spans, one word each, the last takes the rest."""
    words = [match.span() for match in _WORD.finditer(folded, start, end)]
    rest = words[count - 1 :]
    spans = [*words[: count - 1], *([(rest[0][0], rest[-1][1])] if rest else [])]
    return spans + [(end, end)] * (count - len(spans))


def _original(span: tuple[int, int], origin: Sequence[int], text: str) -> tuple[int, int]:
    start, end = span
    if start >= end:
        at = origin[start] if start < len(origin) else len(text)
        return at, at
    stop = origin[end - 1] + 1
    while stop < len(text) and not _folded(text[stop]):  # accents belong to the letter before
        stop += 1
    return origin[start], stop
