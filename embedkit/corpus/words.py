"""Words that a corpus marks in its texts, and their labels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from embedkit.corpus.rows import Cell, NotText, Row, normal_form

__all__ = ["BadWordsError", "Span", "Words", "words_of"]

Span = tuple[int, int]
"""First character of a word in its text, and the one after its last."""


@dataclass(frozen=True, slots=True)
class Words:
    """The words of one text.

    Attributes:
        spans: where they are in the text; ``None`` for whitespace words.
        labels: a label for each; ``None`` where no column of labels is read.
    """

    spans: tuple[Span, ...] | None
    labels: tuple[str, ...] | None


class BadWordsError(Exception):
    """The words of a record cannot be used: reason in one word, and detail for people."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def words_of(row: Row, cell: Cell, text: str, *, labelled: bool, form: str) -> Words | None:
    """Return the words of a row; ``None`` where it marks and labels none.

    Args:
        row: as it was read.
        cell: its cell of labels.
        text: its text in the normal form.
        labelled: whether a column of labels is read.
        form: normal form: ``none``, ``nfc`` or ``nfkc``.

    Raises:
        BadWordsError: the number of labels is not that of the words, or the normal form of a text
            is not that of its words.
    """
    spans = row.spans
    if spans is not None and form != "none":
        spans = _normal_spans(str(row.cells[0]), spans, text, form)
    if not labelled:
        return None if spans is None else Words(spans, None)
    if cell is None:
        raise BadWordsError("null_word_label", "the labels of the words are null or absent")
    labels = _labels(cell, marked=spans is not None)
    count = len(text.split()) if spans is None else len(spans)
    if len(labels) != count:
        raise BadWordsError("word_label_count", f"{len(labels)} labels for {count} words")
    return Words(spans, labels)


def _labels(cell: str, *, marked: bool) -> tuple[str, ...]:
    """Labels as formats that mark words join them (tabs), as JSON lists, or with white space."""
    if marked:
        return tuple(cell.split("\t"))
    if isinstance(cell, NotText) and cell.startswith("["):
        return tuple(map(str, json.loads(cell, parse_int=str, parse_float=str)))
    return tuple(cell.split())


def _normal_spans(raw: str, spans: Sequence[Span], text: str, form: str) -> tuple[Span, ...]:
    """Spans in the normal form of a text, which is put together from those of its pieces."""
    pieces: list[str] = []
    found: list[Span] = []
    before = length = 0
    for start, end in spans:
        gap, word = normal_form(raw[before:start], form), normal_form(raw[start:end], form)
        pieces += gap, word
        found.append((length + len(gap), length + len(gap) + len(word)))
        before, length = end, found[-1][1]
    pieces.append(normal_form(raw[before:], form))
    if "".join(pieces) != text or any(start == end for start, end in found):
        raise BadWordsError(
            "words_not_normal", f"the {form.upper()} form of the text joins characters of two words"
        )
    return tuple(found)
