"""CoNLL-U: every sentence is a record or a reject, and its words are spans of its text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedkit.errors import CorpusError
from tests.corpus_fixtures import Folder, Outcome

Word = tuple[str, bool]  # its form, and whether a space follows


def row(number: object, form: str, misc: str = "_", upos: str = "X") -> str:
    return "\t".join((str(number), form, form, upos, "x", "_", "0", "dep", "_", misc))


def read(folder: Folder, *lines: str, end: str = "\n\n", **options: Any) -> Outcome:
    options = {"word_label": "upos", **options}
    return folder.read("\n".join(lines) + end, "some.conllu", **options)


def words(found: Outcome, record: int = 0) -> list[str]:
    one: Any = found.records[record]
    return [one.text[start:end] for start, end in one.words.spans]


def labels(found: Outcome, record: int = 0) -> tuple[str | None, ...] | None:
    one = found.records[record].words
    return None if one is None else one.labels


FORMS = st.text("ab가é漢.' -", min_size=1, max_size=5).filter(lambda t: t == t.strip())
SENTENCES = st.lists(st.lists(st.tuples(FORMS, st.booleans()), min_size=1, max_size=6), max_size=5)


def lines_of(sentence: Sequence[Word], *, with_text: bool) -> list[str]:
    text = "".join(form + " " * space for form, space in sentence).rstrip(" ")
    return [f"# text = {text}"] * with_text + [
        row(i, form, "_" if space else "Foo=1|SpaceAfter=No", f"T{i}")
        for i, (form, space) in enumerate(sentence, 1)
    ]


@given(SENTENCES, st.booleans(), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_words_are_the_forms_and_lie_in_the_text_in_order(
    folder: Folder, given_: list[list[Word]], with_text: bool, end: str, last_newline: bool
) -> None:
    blocks = [end.join(lines_of(one, with_text=with_text)) for one in given_]
    data = (end * 2).join(blocks) + end * last_newline
    found = folder.read(data, "some.conllu", word_label="upos")
    assert len(found.records) == len(given_)
    for number, sentence in enumerate(given_):
        record = found.records[number]
        assert words(found, number) == [form for form, _ in sentence]
        assert labels(found, number) == tuple(f"T{i + 1}" for i in range(len(sentence)))
        assert record.text == "".join(f + " " * space for f, space in sentence).rstrip(" ")
        assert record.id == str(number)


NODES = [row(1, "a"), row(2, "b"), row("1-2", "ab"), row("1.1", "c"), row(1, ""), row("0", "a")]
LINES = ["", "# text = a b", "# x", "1\ta", "\ufeff", row(3, "c"), *NODES]


@given(st.lists(st.sampled_from(LINES), max_size=14))
def test_every_block_is_counted_once_whatever_it_holds(folder: Folder, lines: list[str]) -> None:
    blocks = [one for one in re.split(r"\n[ \n]*\n", "\n".join(["", *lines, ""])) if one.strip()]
    try:
        found = read(folder, "", *lines)
    except CorpusError as error:
        assert "is not CoNLL-U" in str(error)  # noqa: PT017 - only some inputs raise
    else:
        assert found.reader.counts.records == len(blocks)


def test_multiword_tokens_are_divided_where_their_words_are_in_them(folder: Folder) -> None:
    found = read(
        folder,
        "# sent_id = one",
        "# text = I don't du.",
        row(1, "I", upos="PRON"),
        row("2-3", "don't"),
        row(2, "do", upos="AUX"),
        row(3, "n't", upos="PART"),
        row("4-5", "du", "SpaceAfter=No"),
        row(4, "de", upos="ADP"),
        row(5, "le", upos="DET"),
        row(6, ".", upos="PUNCT"),
    )
    assert words(found) == ["I", "do", "n't", "du", "."]
    assert labels(found) == ("PRON", "AUX", "PART", "ADP+DET", "PUNCT")
    assert found.records[0].id == "one"


def test_empty_nodes_and_comments_are_no_words(folder: Folder) -> None:
    lines = ["# x", "# newdoc id = d", row("0.1", "zero"), row(1, "a b"), "# y", row("1.1", "none")]
    found = read(folder, *lines, row(2, "c", "SpaceAfter=No"), end="", keep=("doc",))
    assert words(found) == ["a b", "c"]
    assert (found.records[0].text, found.records[0].kept) == ("a b c", ("d",))


def test_what_is_unspecified_is_no_label(folder: Folder) -> None:
    lines = [row(1, "I", upos="PRON"), row(2, "go", upos="_")]
    assert labels(read(folder, *lines)) == ("PRON", None)
    assert labels(read(folder, *lines, word_label="feats")) == ("_", "_")  # none


BROKEN: dict[str, Any] = {
    "line 6: expected 10 columns .*, got 2": ([row(1, "a"), "2\tb"], "wrong_columns"),
    "line 7: the form 'b'": (["# text = a c", row(1, "a"), row(2, "b")], "form_not_in_text"),
    "'b'": (["# text = a b", row(1, "a")], "text_without_words"),
    "has no words": (["# text = a"], "no_words"),
    "line 6: expected the number 2, got '3'": ([row(1, "a"), row(3, "b")], "wrong_word_number"),
    "words of the token": ([row("1-3", "ab"), row(1, "a"), row(2, "b")], "wrong_word_number"),
    "line 5": ([row(1, "")], "empty_form"),
    "expected the number 1": ([row("9" * 5_000, "a")], "wrong_word_number"),
}


@pytest.mark.parametrize("detail", BROKEN)
def test_broken_sentences_are_rejects_with_their_line(folder: Folder, detail: str) -> None:
    lines, reason = BROKEN[detail]
    whole = [row(1, "good"), ""]
    found = read(folder, *whole, "", "", *lines, "", *whole)
    assert [record.text for record in found.records] == ["good", "good"]
    assert found.reasons == [(5, reason)]
    assert re.search(detail, found.rejects[0].detail)


def test_columns_are_named(folder: Folder) -> None:
    for name, value in (("word_label", "pos"), ("label", "upos")):
        with pytest.raises(CorpusError, match=f"{name}='{value}'"):
            read(folder, row(1, "a"), **{name: value})
    with pytest.raises(CorpusError, match="CoNLL-U"):
        read(folder, "a\tNOUN", "b\tVERB")


@pytest.mark.parametrize("name", ["t.tsv", "t.jsonl"])
def test_a_plain_column_has_a_label_for_each_whitespace_word(folder: Folder, name: str) -> None:
    rows = [("a b", "X Y"), ("c", "X Y"), ("d e", "")]
    lines = ["text\ttags", *map("\t".join, rows)]
    if name == "t.jsonl":
        lines = [json.dumps({"text": text, "tags": tags.split()}) for text, tags in rows]
    found = folder.read("\n".join([*lines, ""]), name, word_label="tags")
    assert [labels(found, i) for i in range(len(found.records))] == [("X", "Y")]
    assert [reject.reason for reject in found.rejects] == ["word_label_count"] * 2
    assert found.rejects[0].detail == "2 labels for 1 words"
