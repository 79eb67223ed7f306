"""Readers of CoNLL-U and of other CoNLL columns: a record is a sentence.

Its text is the comment ``# text``, else the forms, separated by spaces unless ``SpaceAfter=No``;
its words are spans of that text. The words of a multiword token (``1-2 don't``) are spans of their
own if their forms concatenate to its form (``do``, ``n't``); otherwise (``du``: ``de``, ``le``) the
token is one word, and the values of its words are joined by ``+``. Empty nodes (``1.1``) are
skipped.

In other columns, such as those of CoNLL-2003, a line is a word and its labels, and nothing tells
the spaces: the text has one between all words, as that of a list of words has.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from operator import attrgetter

from embedkit.corpus.sources import (
    MAX_RECORD_BYTES,
    BadRecordError,
    BadRow,
    Cell,
    Line,
    Place,
    Row,
    TextTable,
    bad_row,
    row,
    too_long,
)
from embedkit.corpus.values import NotText, list_of, text_of
from embedkit.errors import CorpusError

_COLUMNS = 10
_OF_WORDS = {"form": 1, "lemma": 2, "upos": 3, "xpos": 4, "feats": 5, "deprel": 7}
_MISC = 9
_OF_SENTENCES = ("text", "id", "doc")
_COMMENT = re.compile(r"#\s*(text|sent_id|newdoc id|newdoc)\s*(?:=(.*))?")
_ID = re.compile(r"([1-9][0-9]*)(?:-([1-9][0-9]*))?")
_EMPTY_NODE = re.compile(r"[0-9]+\.[1-9][0-9]*")
_PEEK = 1_000


Span = tuple[int, int]
"""First character of a word in its text, and the one after its last."""


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

    There are no ids if none of the first sentences has one.

    Cells of the columns of words are lists of a value for each word.
    """

    word_columns = tuple(_OF_WORDS)

    def seek(self, place: Place) -> bool:
        """The name of a document stands before its first sentence."""
        return False

    def rows(self, names: Sequence[str]) -> Iterator[Row | BadRow]:
        """Yield the chosen columns of every sentence."""
        doc: str | None = None
        for lines, decoded in self._decoded():
            if isinstance(decoded, BadRow):
                yield decoded
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
                name: text_of([word[place] for word in words]) for name, place in _OF_WORDS.items()
            }
            cells |= {"text": text, "id": comments.get("sent_id"), "doc": doc}
            yield row(lines, tuple(cells[name] for name in names), spans)

    def _decoded(self) -> Iterator[tuple[list[Line], list[tuple[int, str]] | BadRow]]:
        """Yield the lines of every sentence with their numbers and texts, or its reject."""
        for lines in self._sentences():
            if sum(line.length for line in lines) > MAX_RECORD_BYTES:
                yield lines, too_long(lines)
                continue
            try:
                yield lines, [(line.number, line.data.decode(self._encoding)) for line in lines]
            except UnicodeDecodeError as error:
                detail = f"{self._encoding}: {error.reason}"
                yield lines, bad_row(lines, "invalid_encoding", detail)

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
        named = any(data.startswith(b"# sent_id") for data in map(attrgetter("data"), peeked))
        return [name for name in _OF_SENTENCES if named or name != "id"]


_NAMES = {2: ("form", "label"), 3: ("form", "pos", "label"), 4: ("form", "pos", "chunk", "ner")}
_DOCUMENT = "-DOCSTART-"


class ConllTable(ConlluTable):
    """Words with labels, a word on a line, sentences between blank lines, as of CoNLL-2003.

    Columns are separated by tabs, else by other white space; they are ``form pos chunk ner`` if
    there are four, ``form pos label`` or ``form label`` if there are less, else numbered. Lines of
    another number of columns that begin with ``#`` are comments, and ``-DOCSTART-`` is no word.
    """

    def rows(self, names: Sequence[str]) -> Iterator[Row | BadRow]:
        """Yield the chosen columns of every sentence."""
        for lines, decoded in self._decoded():
            if isinstance(decoded, BadRow):
                yield decoded
                continue
            words = [(number, _columns(line)) for number, line in decoded]
            words = [w for w in words if len(w[1]) == self._width or w[1][0][:1] != "#"]
            if not words or words[0][1][0] == _DOCUMENT:
                self.blank += len(lines)
                continue
            wrong = next((w for w in words if len(w[1]) != self._width), None)
            if wrong is not None:
                detail = f"expected {self._width} columns, got {len(wrong[1])}"
                yield bad_row(lines, "wrong_columns", f"line {wrong[0]}: {detail}")
                continue
            values = list(zip(*(columns for _, columns in words), strict=True))
            text, spans = joined(values[0])
            lists = dict(zip(self.word_columns, map(text_of, values), strict=True))
            yield row(lines, tuple((lists | {"text": text})[name] for name in names), spans)

    def _read_columns(self) -> list[str]:
        peeked = list(islice(self._lines, _PEEK))
        self._lines.back(peeked)
        widths = Counter(
            len(_columns(line.data.decode(self._encoding, "replace"))) for line in peeked
        )
        self._width = max([0, *(width for width in widths if width)], key=lambda n: widths[n])
        if peeked and self._width < 2:
            raise CorpusError(f"{self.path} has no columns of words and labels. Set format=.")
        self.word_columns = _NAMES.get(self._width) or tuple(map(str, range(self._width)))
        return ["text"]


def _columns(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else line.split()


def joined(words: Sequence[str]) -> tuple[str, tuple[Span, ...]]:
    """The text of words with a space between, and their spans."""
    starts = accumulate((len(word) + 1 for word in words), initial=0)
    return " ".join(words), tuple((at, at + len(word)) for at, word in zip(starts, words))  # noqa: B905 - one start more


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


@dataclass(frozen=True, slots=True)
class Words:
    """The words of one text: their spans (``None``: split at whitespace) and their labels."""

    spans: tuple[Span, ...] | None
    labels: tuple[str | None, ...] | None


def words_of(row: Row, cell: Cell, text: str, *, labelled: bool) -> Words:
    """The words of a row that marks or labels them."""
    spans = row.spans
    if not labelled:
        return Words(spans, None)
    if cell is None:
        raise BadRecordError("null_word_label", "the labels of the words are null or absent")
    several = list_of(cell) if isinstance(cell, NotText) else None
    labels = tuple(cell.split() if several is None else several)
    count = len(text.split()) if spans is None else len(spans)
    if len(labels) != count:
        raise BadRecordError("word_label_count", f"{len(labels)} labels for {count} words")
    return Words(spans, labels)
