"""Character offsets for tokenizers that do not give any (the slow ones, such as MeCab's)."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

__all__ = ["align"]

_MARKS = ("##", "▁", "</w>", "@@")


def align(tokens: Sequence[str], text: str, *, unknown: str | None) -> list[tuple[int, int]]:
    """Find each token in the text it came from.

    Both sides are compared after NFKD, accent removal and case folding, character by character,
    so that what a tokenizer does to the text does not matter. A token that cannot be found, such as
    the unknown token, gets the unclaimed text up to the next token that can; several in a row
    share it in pieces at whitespace where there is any.

    Args:
        tokens: vocabulary entries in order, with or without ``##`` and similar marks.
        text: the original text.
        unknown: the unknown token, which stands for any text.

    Returns:
        ``(start, end)`` in ``text`` for each token; empty spans where nothing is left.
    """
    folded, origin = _fold(text)
    found: list[tuple[int, int] | None] = []
    cursor = 0
    for token in tokens:
        surface = "" if token == unknown else _surface(token)
        at = folded.find(surface, cursor) if surface else -1
        if at < 0 or (at > cursor and not _skippable(folded, cursor, at, found)):
            found.append(None)
            continue
        found.append((at, at + len(surface)))
        cursor = at + len(surface)
    return [_original(span, origin, text) for span in _fill(found, folded)]


def _fold(text: str) -> tuple[str, list[int]]:
    """Comparable form of the text, and for each of its characters where it came from."""
    characters: list[str] = []
    origin: list[int] = []
    for position, character in enumerate(text):
        for piece in _folded(character):
            characters.append(piece)
            origin.append(position)
    return "".join(characters), origin


def _folded(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn")


def _surface(token: str) -> str:
    for mark in _MARKS:
        token = token.removeprefix(mark) if mark in ("##", "▁") else token.removesuffix(mark)
    return _folded(token)


def _skippable(folded: str, start: int, end: int, found: Sequence[tuple[int, int] | None]) -> bool:
    """Whether a token may be found this far on: over whitespace, or over unknown tokens."""
    gap = folded[start:end]
    return not gap.strip() or (bool(found) and found[-1] is None)


def _fill(found: Sequence[tuple[int, int] | None], folded: str) -> list[tuple[int, int]]:
    """Give the gaps between found tokens to the runs of tokens that were not found."""
    filled: list[tuple[int, int]] = []
    index, cursor = 0, 0
    while index < len(found):
        span = found[index]
        if span is not None:
            filled.append(span)
            cursor = span[1]
            index += 1
            continue
        stop = index
        while stop < len(found) and found[stop] is None:
            stop += 1
        following = found[stop] if stop < len(found) else None
        limit = following[0] if following is not None else len(folded)
        filled.extend(_share(folded, cursor, limit, stop - index))
        index = stop
    return filled


def _share(folded: str, start: int, end: int, count: int) -> list[tuple[int, int]]:
    """Split ``folded[start:end]`` into ``count`` spans, one word each, the last takes the rest."""
    spans: list[tuple[int, int]] = []
    for left in range(count, 0, -1):
        while start < end and folded[start].isspace():
            start += 1
        stop = end
        if left > 1:
            stop = next((i for i in range(start, end) if folded[i].isspace()), end)
        else:
            while stop > start and folded[stop - 1].isspace():
                stop -= 1
        spans.append((start, stop))
        start = stop
    return spans


def _original(span: tuple[int, int], origin: Sequence[int], text: str) -> tuple[int, int]:
    start, end = span
    if start >= end:
        at = origin[start] if start < len(origin) else len(text)
        return at, at
    stop = origin[end - 1] + 1
    while stop < len(text) and not _folded(text[stop]):  # accents belong to the letter before
        stop += 1
    return origin[start], stop
