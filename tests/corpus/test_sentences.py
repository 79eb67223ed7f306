"""Sentences of a text: whatever the text is, its parts are the text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedkit.corpus.records import sentence_spans


@given(st.text(alphabet="aB .!?…。\n\"')가1", max_size=60))
def test_sentences_are_the_text_without_space_around(text: str) -> None:
    spans = sentence_spans(text)
    assert "".join("".join(text[a:b].split()) for a, b in spans) == "".join(text.split())
    assert all(b <= c for (_, b), (c, _) in pairwise(spans))
    assert all(text[a:b] == text[a:b].strip() != "" for a, b in spans)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Version 2.0 costs 3.50 now. OK?", ["Version 2.0 costs 3.50 now.", "OK?"]),
        ('He said "No." Then he left.', ['He said "No."', "Then he left."]),
        ("And so on ... and on. J. S. Bach", ["And so on ... and on.", "J. S. Bach"]),
        ("「はい。」そう！", ["「はい。」", "そう！"]),
        ("a title\n\nfirst line\nsecond", ["a title", "first line", "second"]),
    ],
)
def test_where_sentences_end(text: str, sentences: list[str]) -> None:
    assert [text[start:end] for start, end in sentence_spans(text)] == sentences
