"""Offsets for tokenizers that give none."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedkit.encoding.alignment import align
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.tokenization import TokenizerSettings

UNK = "[UNK]"


def fold(text: str) -> str:
    """What is left of a text when case, width and accents do not count."""
    text = unicodedata.normalize("NFKD", text).casefold()
    return "".join(c for c in text if unicodedata.category(c) != "Mn")


@pytest.mark.parametrize(
    ("text", "tokens", "found"),
    [
        ("吾輩は猫", "吾輩 は 猫", ["吾輩", "は", "猫"]),
        ("unhappy day", "un ##happy day", ["un", "happy", "day"]),
        ("배를 타고", "▁배 를 ▁타 고", ["배", "를", "타", "고"]),
        ("hello world", "he@@ llo wor@@ ld", ["he", "llo", "wor", "ld"]),
        ("low er", "low</w> er</w>", ["low", "er"]),
        ("Tokyo ＡＢＣ", "tokyo abc", ["Tokyo", "ＡＢＣ"]),  # full-width letters
        ("ｶﾞｽ だ", "ガス だ", ["ｶﾞｽ", "だ"]),  # half-width kana
        ("Café naïve", "cafe naive", ["Café", "naïve"]),
        ("cafe\u0301 nai\u0308ve", "cafe naive", ["cafe\u0301", "nai\u0308ve"]),
        ("ｶﾞ ☀\ufe0f", "ガ [UNK]", ["ｶﾞ", "☀\ufe0f"]),
        ("İstanbul ΣΟΦΟΣ", "istanbul σοφος", ["İstanbul", "ΣΟΦΟΣ"]),
        ("Straße", "stras ##se", ["Straß", "ße"]),  # one character, parts of two tokens
        ("㍿です", "株式 会社 です", ["㍿", "㍿", "です"]),
        ("a [UNK] b", "a [UNK] b", ["a", "[UNK]", "b"]),
        ("猫 犬 鳥", "猫 [UNK] 鳥", ["猫", "犬", "鳥"]),
        ("one two three four", "[UNK] [UNK] three [UNK]", ["one", "two", "three", "four"]),
        ("one two three four", "one [UNK] four", ["one", "two three", "four"]),
        ("  padded  ", "padded", ["padded"]),
        ("x", "[UNK] [UNK]", ["x", ""]),
        ("", "", []),
        ("a a a", "a a a", ["a", "a", "a"]),
        ("猫が好き", "猫 が [UNK]", ["猫", "が", "好き"]),
        ("a1 x 2", "a 2 x 1", ["a", "1", "x", "2"]),  # the 2 is not what stands after the a
        ("b a", "missing a", ["b", "a"]),  # a token that is not in the text counts as unknown
    ],
)
def test_examples(text: str, tokens: str, found: list[str]) -> None:
    spans = align(tokens.split(), text, unknown=UNK)
    assert [text[start:end] for start, end in spans] == found
    starts = [start for start, _ in spans]
    assert starts == sorted(starts)


def test_repeated_tokens_are_found_one_after_the_other() -> None:
    assert align(["の", "の", "の"], "の のの", unknown=UNK) == [(0, 1), (2, 3), (3, 4)]


def test_decomposed_hangul() -> None:
    text = unicodedata.normalize("NFD", "배를")
    spans = align(["배", "##를"], text, unknown=UNK)
    assert [unicodedata.normalize("NFC", text[a:b]) for a, b in spans] == ["배", "를"]
    assert spans[-1][1] == len(text)


WORDS = st.text("abcdeÉáΩ가나다배猫犬ＡＢ", min_size=1, max_size=6)


@given(st.lists(st.tuples(WORDS, st.lists(st.integers(1, 3), max_size=6)), max_size=6), st.data())
def test_any_split_of_the_words_is_found(
    words: list[tuple[str, list[int]]], data: st.DataObject
) -> None:
    space = st.sampled_from([" ", "  ", "\t", "　"])
    text, tokens, wanted = "", [], []
    for word, cuts in words:
        text += data.draw(space)
        pieces = []
        rest, start = word, len(text)
        for cut in [*cuts, len(word)]:
            if rest:
                pieces.append((rest[:cut], (start, start + len(rest[:cut]))))
                rest, start = rest[cut:], start + len(rest[:cut])
        text += word
        for number, (piece, span) in enumerate(pieces):
            tokens.append(
                ("##" if number else "") + data.draw(st.sampled_from([piece, fold(piece)]))
            )
            wanted.append(span)
    assert align(tokens, text, unknown=UNK) == wanted


@given(st.lists(st.one_of(st.just("XYZ"), WORDS), max_size=8))
def test_unknown_words_get_their_own_place(words: list[str]) -> None:
    text = " ".join(words)
    tokens = [UNK if word == "XYZ" else word for word in words]
    spans = align(tokens, text, unknown=UNK)
    assert [text[a:b] for a, b in spans] == words


@given(st.lists(st.sampled_from([UNK, "a", "##b", "猫", "zz", "", "##"])), st.text(max_size=20))
def test_spans_ascend_and_stay_inside_whatever_comes(tokens: list[str], text: str) -> None:
    spans = align(tokens, text, unknown=UNK)
    assert len(spans) == len(tokens)
    previous = 0
    for start, end in spans:
        assert previous <= start <= end <= len(text)
        previous = start


@pytest.mark.parametrize(
    "text",
    [
        "吾輩は猫である。名前はまだ無い。",
        "カタカナとひらがなと漢字、Tokyo 2024年。",
        "ＡＢＣ が ｶﾞ、良い！？",
        "  日本語  の text、good!  ",
        "㍿日本語 猫が良い",
    ],
)
def test_mecab(text: str, encoder_of: Callable[[str], Encoder]) -> None:
    tokenizer = encoder_of("japanese").tokenizer
    assert not tokenizer.is_fast
    encoded = tokenizer.encode([text], settings=TokenizerSettings(160), offsets=True)[0]
    assert encoded.spans is not None
    assert encoded.word is not None
    known = 0
    previous = 0
    tokens = tokenizer.tokens(encoded.ids.tolist())
    for token, (start, end), special in zip(tokens, encoded.spans, encoded.special, strict=True):
        if special:
            assert (start, end) == (0, 0)
            continue
        if token != UNK:
            assert fold(text[start:end]) == fold(token.removeprefix("##"))
            known += 1
            assert start < end
        assert previous <= start <= end <= len(text)
        previous = end
    assert known >= 4
    covered = "".join(text[a:b] for a, b in encoded.spans)
    assert covered == "".join(text.split())
