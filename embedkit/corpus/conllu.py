"""Readers of CoNLL-U and of other CoNLL columns: a record is a sentence.

Its text is the comment ``# text``, else the forms, separated by spaces unless ``SpaceAfter=No``;
its words are spans of that text. The words of a multiword token (``1-2 don't``) are spans of their
own if their forms concatenate to its form (``do``, ``n't``); otherwise (``du``: ``de``, ``le``) the
token is one word, and the values of its words are joined by ``+``. Empty nodes (``1.1``) are
skipped.

In other columns, such as those of CoNLL-2003, a line is a word and its labels, and nothing tells
the spaces: the text has one between all words, as that of a list of words has. Where they are
characters, as in KLUE, nothing stands between them, and a blank one is a space of the text, and no
word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, compress, islice, pairwise
from typing import NamedTuple
from unicodedata import category, normalize

from embedkit.corpus.sources import LINE_BYTES, MAX_RECORD_BYTES, Line
from embedkit.corpus.tables import BadRecordError, Cell, Content, ShardRange, Span, TextTable
from embedkit.corpus.values import list_of, text_of
from embedkit.errors import CorpusError, Message, Option

# of CoNLL-U; the numbers below are places in a line of them
_COLUMNS = 10
_OF_WORDS = {"form": 1, "lemma": 2, "upos": 3, "xpos": 4, "feats": 5, "deprel": 7}
# unspecified, so that it is no label; of features it says that there are none
_MAY_BE_OPEN = ("upos", "xpos", "deprel")
_OF_SENTENCES = ("text", "id", "doc")
# the longer name stands first, of which the shorter one is a beginning
_COMMENT = re.compile(r"#\s*(text|sent_id|newdoc id|newdoc)\s*(?:=(.*))?")
_ID = re.compile(r"([1-9][0-9]{0,8})(?:-([1-9][0-9]{0,8}))?")
# an elided word, such as 8.1, has no place in the text
_EMPTY_NODE = re.compile(r"[0-9]+\.[1-9][0-9]*")
# lines that are looked at before reading begins
_PEEK = 1_000


_Numbered = Sequence[tuple[int, str]]
"""Lines of a sentence, with their numbers in the file."""


_Token = tuple[int, str, str, list[list[str]]]
"""A word, or a multiword token: its line, its form, the space after it, and its words."""


class ConlluTable(TextTable):
    """CoNLL-U: the columns ``text``, ``id`` (``sent_id``) and ``doc`` (the ``newdoc`` before it).

    There are no ids if none of the first sentences has one.

    Cells of the columns of words are lists of a value for each word.
    """

    word_columns = tuple(_OF_WORDS)
    _doc: str | None = None  # that the sentences are of

    def seek(self, place: ShardRange) -> bool:
        """The name of a document stands before its first sentence."""
        return False

    def _content(self, lines: Sequence[Line], names: Sequence[str]) -> Content | None:
        # the limit is one of records, of which each line may be short
        if sum(line.length + LINE_BYTES for line in lines) > MAX_RECORD_BYTES:
            raise BadRecordError.too_long(lines)
        cells, spans = self._cells([(n.number, n.data.decode(self._encoding)) for n in lines])
        # a boundary of documents is no sentence, and no reject either
        return (tuple(cells.get(name) for name in names), spans) if spans else None

    def _cells(self, lines: _Numbered) -> tuple[dict[str, Cell], tuple[Span, ...]]:
        """Return all columns of a sentence and the spans of its words; no spans if it is none."""
        # the break below matters: `#` may also be a word
        comments: dict[str, str] = {}  # in front of the words
        for _, line in lines:
            if not line.startswith("#"):
                break
            if match := _COMMENT.fullmatch(line.strip()):
                comments[match[1]] = (match[2] or "").strip()
        # a document without an id ends the one before it, whose id its sentences do not have
        if "newdoc" in comments or "newdoc id" in comments:
            self._doc = comments.get("newdoc id")
        text, spans, words = _sentence(lines, comments.get("text"))
        cells: dict[str, Cell] = {}
        for name, place in _OF_WORDS.items():
            nothing = "_" if name in _MAY_BE_OPEN else None
            cells[name] = text_of([w[place] if w[place] != nothing else None for w in words])
        return cells | {"text": text, "id": comments.get("sent_id"), "doc": self._doc}, spans

    def _records(self) -> Iterator[tuple[list[Line], list[Line] | None]]:
        """The lines between blank lines; of sentences over the limit only the first ones."""
        lines: list[Line] = []
        length = 0
        for line in self._lines:
            if line.data.strip():
                # a file without blank lines is one sentence: its length is counted to the end, but
                # memory holds no more than the limit and a line
                if length <= MAX_RECORD_BYTES:
                    lines.append(line)
                length += line.length + LINE_BYTES
            elif lines:
                yield lines, lines
                lines, length = [], 0
            else:
                yield [line], None
        if lines:
            yield lines, lines

    def _read_columns(self) -> list[str]:
        peeked = list(islice(self._lines, _PEEK))
        self._lines.back(peeked)
        # one line with ten columns is enough: others may be damaged, and are rejected one by one
        words = [line.data for line in peeked if line.data.strip() and line.data[:1] != b"#"]
        if words and not any(data.count(b"\t") == _COLUMNS - 1 for data in words):
            problem = f"no line of words has {_COLUMNS} columns separated by tabs"
            raise CorpusError(f"{self.path} is not CoNLL-U: {problem}. Set {Option('format')}.")
        # a column of ids that are all missing would be guessed to be the id, and every
        # record would count as one without an id
        has_ids = any(re.match(rb"#\s*sent_id\b", line.data) for line in peeked)
        return [name for name in _OF_SENTENCES if has_ids or name != "id"]


_NAMES = {2: ("form", "label"), 3: ("form", "pos", "label"), 4: ("form", "pos", "chunk", "ner")}
_TAG = re.compile(r"O|[BIESLU]-.+")
# names of columns above the first sentence, which are no words of it
_HEADER = re.compile(r"(?i)(token|word|form)s?\s+(\w+\s+)*(tags?|labels?|ner|pos|\w+_tags?)")
# `#` may be a word, and `#tag` is one of tweets; what is said of a sentence has a name, or a space
# in what would be the word
_ABOUT = re.compile(r"#+ +(id|sent_id|text)\b|#[^\t]* [^\t]*\t")


class ConllTable(ConlluTable):
    """Words with labels, a word on a line, sentences between blank lines, as of CoNLL-2003.

    Columns are separated by tabs, else by spaces; they are ``form pos chunk ner`` if there are
    four, ``form pos label`` or ``form label`` if there are less, else numbered. A first column that
    numbers the words of each sentence is left out. Lines of another number of columns that begin
    with ``#`` are comments, and ``-DOCSTART-`` is no word.
    """

    def _cells(self, lines: _Numbered) -> tuple[dict[str, Cell], tuple[Span, ...]]:
        words = [(number, _columns(line)) for number, line in lines if not _ABOUT.match(line)]
        # `#` is also a word of tweets: a line of the right width is one
        words = [w for w in words if len(w[1]) == self._width or w[1][0][:1] != "#"]
        # a sentence may follow it without a blank line
        words = [(number, columns) for number, columns in words if columns[0] != "-DOCSTART-"]
        for number, columns in words:
            if len(columns) != self._width:
                detail = f"expected {self._width} columns, got {len(columns)}"
                raise BadRecordError("wrong_columns", f"line {number}: {detail}")
            if self._between and not columns[self._numbered].strip():
                raise BadRecordError("empty_form", f"line {number}: the word is empty")
        rows = [columns[self._numbered :] for _, columns in words]
        text, spans = joined([row[0] for row in rows], self._between)
        # lines of words become columns, the forms first, then the labels; no columns without words
        lists = dict(zip(self.word_columns, map(text_of, zip(*rows, strict=True)), strict=False))
        return lists | {"text": text}, spans

    def _read_columns(self) -> list[str]:
        peeked = list(islice(self._lines, _PEEK))
        # the most frequent width is the right one: single lines may be damaged or comments. Blank
        # ones, of which there may be as many as words, have none
        texts = [line.data.decode(self._encoding, "replace") for line in peeked]
        if texts and _HEADER.fullmatch(texts[0].strip()):
            self.notices = (Message(f"the first line names columns: {texts.pop(0).strip()}"),)
            del peeked[0]
        self._lines.back(peeked)
        words = [_columns(text) for text in texts if text.strip() and not _ABOUT.match(text)]
        widths = Counter(map(len, words))
        self._width = widths.most_common(1)[0][0] if widths else 0
        if peeked and self._width < 2:
            raise CorpusError(f"{self.path} has no columns of words. Set {Option('format')}.")
        rows = [columns for columns in words if len(columns) == self._width]
        forms = [columns[0] for columns in rows]
        self._between = between(forms)
        # numbers from 1 in each sentence are no forms, as those of CoNLL-X and GermEval
        firsts = forms if self._width > 2 else []
        self._numbered = firsts[:1] == ["1"] and all(
            second == "1" or (first.isdecimal() and second == str(int(first) + 1))
            for first, second in pairwise(firsts)
        )
        names = tuple(map(str, range(self._width)))[self._numbered :]
        # of GermEval's columns both are labels, of the outer and of the inner entities
        self.word_columns = (
            names if self._numbered and len(names) > 2 else _NAMES.get(len(names), names)
        )
        columns = list(zip(*rows, strict=True))[self._numbered :]
        if [all(map(_TAG.fullmatch, values)) for values in columns[:2]] == [True, False]:
            problem = "its first column has the labels (O, B-…), where the words are expected"
            raise CorpusError(f"{self.path}: {problem}. Exchange the columns.")
        # the columns of words are no columns of records: `word_label` finds them
        return ["text"]


def _columns(line: str) -> list[str]:
    # other white space, such as a no-break space, may stand in a word
    return line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))


def between(forms: Sequence[str]) -> str:
    """What stands between words in a text: a space; nothing if they are characters.

    KLUE lists those of a text, blank ones among them, and corpora of Chinese and Japanese theirs.
    Single letters of other scripts may be words.
    """
    characters = bool(forms) and all(map(_is_character, forms))
    # from Hangul on: kana and ideographs follow, and marks and signs are no letters
    east = (form.isspace() or (form >= "\u1100" and form.isalpha()) for form in forms)
    return "" if characters and any(east) else " "


def _is_character(form: str) -> bool:
    # decomposed ones are longer, and those with a sign; what is longer than they are is a word
    if 1 < len(form) < 8:
        letters = (c for c in normalize("NFC", form) if category(c)[0] != "M")
        form = "".join(letters).rstrip("\uff9e\uff9f")  # marks of half-width kana
    return len(form) == 1


def joined(words: Sequence[str], between: str = " ") -> tuple[str, tuple[Span, ...]]:
    """The text of words with a space, or nothing, between them, and their spans."""
    # one more than there are words: where the next one would begin
    starts = accumulate((len(word) + len(between) for word in words), initial=0)
    return between.join(words), tuple((at, at + len(word)) for at, word in zip(starts, words))  # noqa: B905 - one start more


def _sentence(lines: _Numbered, text: str | None) -> tuple[str, tuple[Span, ...], list[list[str]]]:
    tokens = _tokens([(n, line) for n, line in lines if not line.startswith("#")])
    # without the comment, or with an empty one, the tokens tell the text; the last space is of none
    if not text:
        text = "".join(form + space for _, form, space, _ in tokens).rstrip(" ")
    spans: list[Span] = []
    words: list[list[str]] = []
    # words are looked for in the order of the text, each from the end of the one before, so that a
    # form that occurs twice finds its own place
    place = 0
    for number, form, _, parts in tokens:
        # the text decides about spaces, of any kind and number, not SpaceAfter
        while text[place : place + 1].isspace():
            place += 1
        if not text.startswith(form, place):
            detail = f"the form {form[:60]!r} is not at character {place} of the text"
            raise BadRecordError("form_not_in_text", f"line {number}: {detail}")
        # words that are not parts of the token (`du`: `de`, `le`) have no spans of their own
        if len(parts) > 1 and "".join(word[1] for word in parts) != form:
            parts = [["+".join(values) for values in zip(*parts, strict=True)]]
            # the span is that of the form, which the joined forms are not
            parts[0][1] = form
        # the parts of a token follow each other without spaces
        for word in parts:
            spans.append((place, place + len(word[1])))
            words.append(word)
            place += len(word[1])
    if rest := text[place:].strip():
        raise BadRecordError("text_without_words", f"no word is {rest[:60]!r} at the end of # text")
    return text, tuple(spans), words


def _tokens(lines: _Numbered) -> list[_Token]:
    tokens: list[_Token] = []
    count = last = 0  # words so far, and the last one that belongs to the token
    for number, line in lines:
        columns = line.split("\t")
        if len(columns) != _COLUMNS:
            detail = f"expected {_COLUMNS} columns separated by tabs, got {len(columns)}"
            raise BadRecordError("wrong_columns", f"line {number}: {detail}")
        if _EMPTY_NODE.fullmatch(columns[0]):
            continue
        match = _ID.fullmatch(columns[0])
        # words of a multiword token are numbered on, up to the last one that it announced
        inside = count < last
        # a number left out or given twice is a damaged sentence; a token within a token is none
        if match is None or int(match[1]) != count + 1 or (match[2] and inside):
            detail = f"expected the number {count + 1}, got {columns[0][:60]!r}"
            raise BadRecordError("wrong_word_number", f"line {number}: {detail}")
        if not columns[1].strip():
            raise BadRecordError("empty_form", f"line {number}: the form is empty")
        if not inside:
            # told of the token, not of the words in it
            space = "" if "SpaceAfter=No" in columns[-1].split("|") else " "
            tokens.append((number, columns[1], space, []))
            last = int(match[2] or match[1])
        # a line with a range is a token only; its words follow on lines of their own
        if not match[2]:
            tokens[-1][-1].append(columns)
            count += 1
    if not count:
        raise BadRecordError("no_words", "the sentence has no words")
    # the sentence ended within a token
    if count < last:
        detail = f"line {tokens[-1][0]}: words of the token are missing"
        raise BadRecordError("wrong_word_number", detail)
    return tokens


class Words(NamedTuple):
    """The words of one text: their spans (``None``: split at whitespace) and their labels."""

    spans: tuple[Span, ...] | None
    labels: tuple[str | None, ...] | None


def words_of(spans: tuple[Span, ...] | None, cell: Cell, text: str, *, labelled: bool) -> Words:
    """The words of a text, which a row marks, or labels in a cell.

    A blank one is a character of the text, and no word; nor has it a label.
    """
    visible = [not text[start:end].isspace() for start, end in spans or ()]
    words = spans and tuple(compress(spans, visible))
    if not labelled:
        return Words(words, None)
    if cell is None:
        raise BadRecordError("null_word_label", "the labels of the words are null or absent")
    # also as str() of a list writes it into a CSV file
    several = list_of(cell)
    if several is not None and spans is None and list_of(text) is not None:
        problem = "the text is a list of words as it is printed, whose words are not read"
        raise BadRecordError("text_not_string", f"{problem}. Write them as JSON or Parquet")
    # a list has empty and missing labels too; a text of labels has only those that it shows
    labels = tuple(cell.split() if several is None else several)
    # without spans, words are what white space divides, as
    # labels were counted by whoever wrote them
    count = len(text.split()) if spans is None else len(spans)
    if len(labels) != count:
        raise BadRecordError("word_label_count", f"{len(labels)} labels for {count} words")
    return Words(words, labels if spans is None else tuple(compress(labels, visible)))
