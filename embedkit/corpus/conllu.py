"""Reader of CoNLL-U: a record is a sentence.

Its text is the comment ``# text``, else the forms, separated by spaces unless ``SpaceAfter=No``;
its words are spans of that text. The words of a multiword token (``1-2 don't``) are spans of their
own if their forms concatenate to its form (``do``, ``n't``); otherwise (``du``: ``de``, ``le``) the
token is one word, and the values of its words are joined by ``+``. Empty nodes (``1.1``) are
skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from embedkit.corpus.sources import (
    MAX_RECORD_BYTES,
    BadRecordError,
    BadRow,
    Cell,
    Line,
    NotText,
    Place,
    Row,
    TextTable,
    bad_row,
    row,
    too_long,
)
from embedkit.errors import CorpusError

_COLUMNS = 10
_OF_WORDS = {"form": 1, "lemma": 2, "upos": 3, "xpos": 4, "feats": 5, "deprel": 7}
_MISC = 9
_OF_SENTENCES = ("text", "id", "doc")
_COMMENT = re.compile(r"#\s*(text|sent_id|newdoc id|newdoc)\s*(?:=(.*))?")
_ID = re.compile(r"([1-9][0-9]*)(?:-([1-9][0-9]*))?")
_EMPTY_NODE = re.compile(r"[0-9]+\.[1-9][0-9]*")
_PEEK = 1_000


@dataclass(slots=True)
class _Token:
    """A word, or a multiword token with its words."""

    line: int
    form: str
    last: int
    space: str
    words: list[list[str]] = field(default_factory=list)


class ConlluTable(TextTable):
    """CoNLL-U: the columns ``text``, ``id`` (``sent_id``) and ``doc`` (the ``newdoc`` before it).

    Cells of the columns of words hold a value for each word, separated by tabs.
    """

    word_columns = tuple(_OF_WORDS)

    def seek(self, place: Place) -> bool:
        """The name of a document stands before its first sentence."""
        return False

    def rows(self, names: Sequence[str]) -> Iterator[Row | BadRow]:
        """Yield the chosen columns of every sentence."""
        doc: str | None = None
        for lines in self._sentences():
            if sum(line.length for line in lines) > MAX_RECORD_BYTES:
                yield too_long(lines)
                continue
            try:
                decoded = [(line.number, line.data.decode(self._encoding)) for line in lines]
            except UnicodeDecodeError as error:
                yield bad_row(lines, "invalid_encoding", f"{self._encoding}: {error.reason}")
                continue
            comments: dict[str, str] = {}  # in front of the words
            for _, line in decoded:
                if not line.startswith("#"):
                    break
                if match := _COMMENT.fullmatch(line.strip()):
                    comments[match[1]] = (match[2] or "").strip()
            if "newdoc" in comments or "newdoc id" in comments:
                doc = comments.get("newdoc id")
            try:
                text, spans, words = _sentence(decoded, comments.get("text"))
            except BadRecordError as error:
                yield bad_row(lines, error.reason, error.detail)
                continue
            cells: dict[str, str | None] = {
                name: "\t".join(word[place] for word in words) for name, place in _OF_WORDS.items()
            }
            cells |= {"text": text, "id": comments.get("sent_id"), "doc": doc}
            yield row(lines, tuple(cells[name] for name in names), spans)

    def _sentences(self) -> Iterator[list[Line]]:
        """Yield the lines between blank lines; of sentences over the limit only the first ones."""
        lines: list[Line] = []
        length = 0
        for line in self._lines:
            if line.data.strip():
                if length <= MAX_RECORD_BYTES:
                    lines.append(line)
                length += line.length
            elif lines:
                yield lines
                lines, length = [], 0
            else:
                self.blank += 1 + self._lines.skip_blank()
        if lines:
            yield lines

    def _read_columns(self) -> list[str]:
        peeked = list(islice(self._lines, _PEEK))
        self._lines.back(peeked)
        words = [line.data for line in peeked if line.data.strip() and line.data[:1] != b"#"]
        if words and not any(data.count(b"\t") == _COLUMNS - 1 for data in words):
            problem = f"no line of words has {_COLUMNS} columns separated by tabs"
            raise CorpusError(f"{self.path} is not CoNLL-U: {problem}. Set format=.")
        return list(_OF_SENTENCES)


def _sentence(
    lines: Sequence[tuple[int, str]], text: str | None
) -> tuple[str, tuple[Span, ...], list[list[str]]]:
    tokens = _tokens([(n, line) for n, line in lines if not line.startswith("#")])
    if not text:
        text = "".join(token.form + token.space for token in tokens).rstrip(" ")
    spans: list[Span] = []
    words: list[list[str]] = []
    place = 0
    for token in tokens:
        while text[place : place + 1].isspace():
            place += 1
        if not text.startswith(token.form, place):
            detail = f"the form {token.form[:60]!r} is not at character {place} of the text"
            raise BadRecordError("form_not_in_text", f"line {token.line}: {detail}")
        parts = token.words
        if len(parts) > 1 and "".join(word[1] for word in parts) != token.form:
            parts = [["+".join(values) for values in zip(*parts, strict=True)]]
            parts[0][1] = token.form
        for word in parts:
            spans.append((place, place + len(word[1])))
            words.append(word)
            place += len(word[1])
    if rest := text[place:].strip():
        raise BadRecordError("text_without_words", f"no word is {rest[:60]!r} at the end of # text")
    return text, tuple(spans), words


def _tokens(lines: Sequence[tuple[int, str]]) -> list[_Token]:
    tokens: list[_Token] = []
    count = 0
    for number, line in lines:
        columns = line.split("\t")
        if len(columns) != _COLUMNS:
            detail = f"expected {_COLUMNS} columns separated by tabs, got {len(columns)}"
            raise BadRecordError("wrong_columns", f"line {number}: {detail}")
        if _EMPTY_NODE.fullmatch(columns[0]):
            continue
        match = _ID.fullmatch(columns[0])
        inside = bool(tokens) and count < tokens[-1].last
        if match is None or int(match[1]) != count + 1 or (match[2] and inside):
            detail = f"expected the number {count + 1}, got {columns[0][:60]!r}"
            raise BadRecordError("wrong_word_number", f"line {number}: {detail}")
        if not columns[1].strip():
            raise BadRecordError("empty_form", f"line {number}: the form is empty")
        if not inside:
            space = "" if "SpaceAfter=No" in columns[_MISC].split("|") else " "
            tokens.append(_Token(number, columns[1], int(match[2] or match[1]), space))
        if not match[2]:
            tokens[-1].words.append(columns)
            count += 1
    if not count:
        raise BadRecordError("no_words", "the sentence has no words")
    if count < tokens[-1].last:
        detail = f"line {tokens[-1].line}: words of the token are missing"
        raise BadRecordError("wrong_word_number", detail)
    return tokens


Span = tuple[int, int]
"""First character of a word in its text, and the one after its last."""


@dataclass(frozen=True, slots=True)
class Words:
    """The words of one text: their spans (``None``: split at whitespace) and their labels."""

    spans: tuple[Span, ...] | None
    labels: tuple[str, ...] | None


def words_of(row: Row, cell: Cell, text: str, *, labelled: bool) -> Words:
    """The words of a row that marks or labels them."""
    spans = row.spans
    if not labelled:
        return Words(spans, None)
    if cell is None:
        raise BadRecordError("null_word_label", "the labels of the words are null or absent")
    labels: tuple[str, ...]
    if spans is not None:
        labels = tuple(cell.split("\t"))
    elif isinstance(cell, NotText) and cell.startswith("["):
        labels = tuple(map(str, json.loads(cell, parse_int=str, parse_float=str)))
    else:
        labels = tuple(cell.split())
    count = len(text.split()) if spans is None else len(spans)
    if len(labels) != count:
        raise BadRecordError("word_label_count", f"{len(labels)} labels for {count} words")
    return Words(spans, labels)
