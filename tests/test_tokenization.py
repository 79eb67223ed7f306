"""Ids exactly as the checkpoint's tokenizer; offsets, words, windows, old vocabularies."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import embedkit.encoding.tokenization
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.tokenization import (
    TextTokenizer,
    TokenizedText,
    TokenizerSettings,
    window_owner,
    window_starts,
)
from embedkit.encoding.vocabulary import load_tokenizer, tokenize
from embedkit.encoding.word_index import word_spans
from embedkit.errors import ModelError, UsageError
from tests.models import FAMILIES, OLD_TOKENIZERS, TEXTS, bert_tokenizer, build_old

KINDS = ("bert", "bert_left", "roberta", "roberta_wordpiece", "xlm-roberta", "japanese")
FAST = tuple(kind for kind in KINDS if kind != "japanese")
NO_LIMIT = TokenizerSettings(max_length=10**6)
ANY_TEXT = st.one_of(
    st.sampled_from(TEXTS),
    st.text(max_size=40),
    st.text("배를타고 movieABC吾輩はカタ.!'[SEP]<s>", max_size=40),
)


@pytest.fixture(scope="session")
def tokenizer_of(encoder_of: Callable[[str], Encoder]) -> Callable[[str], TextTokenizer]:
    """The tokenizer of a tiny checkpoint."""
    return lambda family: encoder_of(family).tokenizer


@pytest.fixture(scope="session")
def own_of(tiny: Callable[[str], Path]) -> Callable[[str], Any]:
    """The same tokenizer as transformers loads it."""
    from transformers import AutoTokenizer

    loaded: dict[str, Any] = {}

    def own(family: str) -> Any:
        if family not in loaded:
            loaded[family] = AutoTokenizer.from_pretrained(tiny(family))
        return loaded[family]

    return own


def ids_of(encoded: TokenizedText) -> list[int]:
    """Ids of the only window, which are all that was kept."""
    (window,) = encoded.windows
    assert window.ids.tolist() == encoded.ids.tolist()
    return list(window.ids.tolist())


# composed sequences


@pytest.mark.parametrize("family", KINDS)
@given(text=ANY_TEXT, pair=st.one_of(st.none(), ANY_TEXT), max_length=st.integers(6, 24))
@example(text="", pair="", max_length=6)
@settings(max_examples=60)
def test_ids_are_the_tokenizers_own(
    family: str,
    text: str,
    pair: str | None,
    max_length: int,
    tokenizer_of: Callable[[str], TextTokenizer],
    own_of: Callable[[str], Any],
) -> None:
    texts, pairs = [text], None if pair is None else [pair]
    own = own_of(family)(
        texts, pairs, truncation=True, max_length=max_length, return_special_tokens_mask=True
    )
    whole = own_of(family)(texts, pairs)["input_ids"][0]
    (ours,) = tokenizer_of(family).encode(texts, pairs, settings=TokenizerSettings(max_length))
    assert ids_of(ours) == own["input_ids"][0]
    assert ours.special.tolist() == [bool(x) for x in own["special_tokens_mask"][0]]
    assert ours.n_tokens == len(whole)
    assert ours.cut == (len(whole) > max_length)
    assert ours.n_kept == len(ours.ids) <= max_length
    assert ours.n_unknown == own["input_ids"][0].count(own_of(family).unk_token_id)
    assert (ours.spans, ours.word) == (None, None)


@pytest.mark.parametrize("family", FAMILIES)
def test_segments(
    family: str, encoder_of: Callable[[str], Encoder], own_of: Callable[[str], Any]
) -> None:
    tokenizer, config = encoder_of(family).tokenizer, encoder_of(family).checkpoint.config
    own = own_of(family)(["a movie"], ["배를 타고"]).get("token_type_ids")
    (ours,) = tokenizer.encode(["a movie"], ["배를 타고"], settings=NO_LIMIT)
    types = ours.windows[0].type_ids.tolist()
    assert types == (own[0] if own and config.get("type_vocab_size") != 1 else [0] * len(types))
    assert set(ours.segment.tolist()) == {-1, 0, 1}
    assert ours.special.tolist() == (ours.segment == -1).tolist()


def test_a_segment_that_the_model_does_not_have_is_left_out(
    tokenizer_of: Callable[[str], TextTokenizer], own_of: Callable[[str], Any]
) -> None:
    assert max(own_of("roberta_wordpiece")("a", "b")["token_type_ids"]) == 1
    (ours,) = tokenizer_of("roberta_wordpiece").encode(["a"], ["b"], settings=NO_LIMIT)
    assert set(ours.windows[0].type_ids.tolist()) == {0}


def test_batches_are_texts_one_by_one(tokenizer_of: Callable[[str], TextTokenizer]) -> None:
    for family in KINDS:
        together = tokenizer_of(family).encode(TEXTS, settings=TokenizerSettings(20))
        for text, encoded in zip(TEXTS, together, strict=True):
            (alone,) = tokenizer_of(family).encode([text], settings=TokenizerSettings(20))
            assert alone.ids.tolist() == encoded.ids.tolist()
    assert tokenizer_of("bert").encode([], settings=NO_LIMIT) == []


def test_special_tokens_spelled_in_a_text(tokenizer_of: Callable[[str], TextTokenizer]) -> None:
    tokenizer = tokenizer_of("bert")
    (encoded,) = tokenizer.encode(["[SEP] a [MASK]"], settings=NO_LIMIT)
    assert tokenizer.tokens(encoded.ids.tolist()) == ["[CLS]", "[SEP]", "a", "[MASK]", "[SEP]"]
    assert encoded.special.tolist() == [True, False, False, False, True]
    assert set(tokenizer.tokens(tokenizer.special_ids.tolist())) == {
        "[PAD]", "[CLS]", "[SEP]", "[MASK]",
    }  # fmt: skip


@pytest.mark.parametrize("family", FAST)
def test_limits_of_tokenizer_json_do_not_count(
    family: str, tiny: Callable[[str], Path], tokenizer_of: Callable[[str], TextTokenizer],
    tmp_path: Path,
) -> None:  # fmt: skip
    from tokenizers import Tokenizer

    folder = tmp_path / "model"
    shutil.copytree(tiny(family), folder)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(5)
    backend.enable_padding(length=50)
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(find_checkpoint(str(folder)))
    (ours,) = tokenizer.encode([TEXTS[6]], settings=NO_LIMIT)
    (wanted,) = tokenizer_of(family).encode([TEXTS[6]], settings=NO_LIMIT)
    assert ids_of(ours) == ids_of(wanted)


# limits


@pytest.mark.parametrize(("pairs", "least"), [(None, 3), (["b b b"], 5)])
def test_no_room_for_text(
    pairs: Sequence[str] | None, least: int, tokenizer_of: Callable[[str], TextTokenizer]
) -> None:
    tokenizer = tokenizer_of("bert")
    (encoded,) = tokenizer.encode(["a a a"], pairs, settings=TokenizerSettings(least))
    assert encoded.n_kept == least
    message = f"max_length={least - 1} leaves no room for text beside the {least - 1 - bool(pairs)}"
    with pytest.raises(UsageError, match=message):
        tokenizer.encode(["a a a"], pairs, settings=TokenizerSettings(least - 1))


def test_too_long_is_an_error_if_asked(tokenizer_of: Callable[[str], TextTokenizer]) -> None:
    tokenizer = tokenizer_of("bert")
    strict = TokenizerSettings(6, on_long="error")
    (encoded,) = tokenizer.encode(["a a a a"], settings=strict)
    assert (encoded.n_kept, encoded.cut) == (6, False)
    with pytest.raises(
        UsageError, match="a text has 7 tokens, more than max_length=6: 'a a a a a'"
    ):
        tokenizer.encode(["a", "a a a a a"], settings=strict)


def test_very_long_texts_are_cut_before_tokenizing(
    tokenizer_of: Callable[[str], TextTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedkit.encoding.tokenization, "MAX_CHARS", 10)
    for family in KINDS:
        tokenizer = tokenizer_of(family)
        long, short = TEXTS[2], TEXTS[2][:10]
        cut, whole = tokenizer.encode([long, short], settings=NO_LIMIT, offsets=True)
        assert ids_of(cut) == ids_of(whole)
        assert (cut.cut, whole.cut) == (True, False)
        assert cut.n_tokens == whole.n_tokens
        assert cut.spans is not None
        assert cut.spans.max() <= 10
        (pair,) = tokenizer.encode(["a"], [long], settings=NO_LIMIT)
        assert pair.cut
        windows = TokenizerSettings(8, on_long="window")
        assert [t.cut for t in tokenizer.encode([long, short], settings=windows)] == [True, False]


def test_unknown_tokens_are_counted_where_they_are_kept(
    tokenizer_of: Callable[[str], TextTokenizer],
) -> None:
    tokenizer = tokenizer_of("bert")
    (encoded,) = tokenizer.encode(["뷁 a 쀍"], settings=NO_LIMIT)
    (shorter,) = tokenizer.encode(["뷁 a 쀍"], settings=TokenizerSettings(4))
    assert (encoded.n_unknown, shorter.n_unknown) == (2, 1)


# offsets and words


@pytest.mark.parametrize("family", FAST)
@given(text=ANY_TEXT, pair=ANY_TEXT, prefix=st.sampled_from(["", "query: ", "여"]))
@settings(max_examples=40)
def test_offsets_are_the_tokenizers_own(
    family: str,
    text: str,
    pair: str,
    prefix: str,
    tokenizer_of: Callable[[str], TextTokenizer],
    own_of: Callable[[str], Any],
) -> None:
    own = own_of(family)([prefix + text], [pair], return_offsets_mapping=True)
    asked = TokenizerSettings(10**6, prefix=prefix)
    (ours,) = tokenizer_of(family).encode([text], [pair], settings=asked, offsets=True)
    assert ours.spans is not None
    assert ids_of(ours) == own["input_ids"][0]
    for (start, end), (own_start, own_end), segment in zip(
        ours.spans.tolist(), own["offset_mapping"][0], ours.segment.tolist(), strict=True
    ):
        shift = len(prefix) if segment == 0 else 0
        wanted = (0, 0) if segment == -1 else (max(own_start - shift, 0), max(own_end - shift, 0))
        assert (start, end) == wanted


ORDINARY = (*TEXTS[:7], TEXTS[13], "여행, 영화 (movie) 그리고 bus!")


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("text", [*ORDINARY, TEXTS[7], TEXTS[11]])
def test_every_word_has_its_tokens(
    family: str, text: str, tokenizer_of: Callable[[str], TextTokenizer]
) -> None:
    (encoded,) = tokenizer_of(family).encode([text], settings=NO_LIMIT, offsets=True)
    assert encoded.spans is not None
    assert encoded.word is not None
    words = word_spans(text)
    assert [text[a:b] for a, b in words] == text.split()
    for number, (start, end) in enumerate(words.tolist()):
        spans = encoded.spans[encoded.word == number]
        pieces = [text[a:b].strip() for a, b in spans]
        assert pieces, text[start:end]
        assert all(piece in text[start:end] for piece in pieces if piece)
        assert spans[:, 0].min() in (start, start - 1)  # a token may begin with the space before
        assert spans[:, 1].max() == end
    assert encoded.word[encoded.special].tolist() == [-1] * int(encoded.special.sum())
    belongs = encoded.word[encoded.word >= 0]
    assert (np.diff(belongs) >= 0).all()


def test_cased_wordpieces_are_what_their_offsets_say(
    tokenizer_of: Callable[[str], TextTokenizer],
) -> None:
    tokenizer = tokenizer_of("bert")
    for text in ORDINARY:
        (encoded,) = tokenizer.encode([text], settings=NO_LIMIT, offsets=True)
        assert encoded.spans is not None
        assert encoded.n_unknown < encoded.n_kept / 2
        for token, (a, b), special in zip(
            tokenizer.tokens(encoded.ids.tolist()), encoded.spans, encoded.special, strict=True
        ):
            if not special and token != "[UNK]":
                assert text[a:b] == token.removeprefix("##")


def test_a_token_may_begin_with_the_space_before_its_word(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny("roberta"), folder)
    stored = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    stored["post_processor"]["trim_offsets"] = False
    (folder / "tokenizer.json").write_text(json.dumps(stored), "utf-8")
    path = folder / "tokenizer_config.json"
    config = {**json.loads(path.read_text("utf-8")), "tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(config), "utf-8")
    tokenizer, text = load_tokenizer(find_checkpoint(str(folder))), "배 good  ab 배"
    (encoded,) = tokenizer.encode([text], settings=NO_LIMIT, offsets=True)
    assert encoded.spans is not None
    assert encoded.word is not None
    words: dict[int, str] = {}
    for word, (start, end) in zip(encoded.word.tolist(), encoded.spans, strict=True):
        words[word] = words.get(word, "") + text[start:end]
    assert words[0].startswith("배")
    assert words[1] == " good"
    assert {words[2].strip(), words[3].strip()[:1]} == {"ab", "배"}


def test_words_of_a_pair_are_numbered_on(tokenizer_of: Callable[[str], TextTokenizer]) -> None:
    text, pair = "배를 타고", "the movie was"
    (encoded,) = tokenizer_of("bert").encode([text], [pair], settings=NO_LIMIT, offsets=True)
    assert encoded.word is not None
    assert encoded.spans is not None
    found: dict[int, str] = {}
    for word, (a, b), segment in zip(
        encoded.word.tolist(), encoded.spans, encoded.segment.tolist(), strict=True
    ):
        if word >= 0:
            found[word] = found.get(word, "") + (text, pair)[segment][a:b]
    assert found == {0: "배를", 1: "타고", 2: "the", 3: "movie", 4: "was"}


@pytest.mark.parametrize("family", KINDS)
def test_a_prefix_has_no_place_in_the_text(
    family: str, tokenizer_of: Callable[[str], TextTokenizer]
) -> None:
    tokenizer, text = tokenizer_of(family), "movie 猫"
    asked = TokenizerSettings(100, prefix="猫: ")
    (encoded,) = tokenizer.encode([text], settings=asked, offsets=True)
    (joined,) = tokenizer.encode(["猫: " + text], settings=NO_LIMIT)
    assert ids_of(encoded) == ids_of(joined)
    assert encoded.word is not None
    assert encoded.spans is not None
    assert encoded.spans.min() == 0
    assert sorted(set(encoded.word.tolist())) == [-1, 0, 1]
    last = encoded.spans[encoded.word == 1]
    assert text[last[:, 0].min() : last[:, 1].max()].strip() == "猫"


@given(st.text())
def test_words_are_what_split_gives(text: str) -> None:
    words = word_spans(text)
    assert words.dtype == np.int32
    assert words.shape == (len(text.split()), 2)
    assert [text[a:b] for a, b in words] == text.split()


# windows


@given(st.integers(1, 60), st.integers(0, 200), st.data())
def test_windows_cover_every_token(size: int, length: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(0, size - 1))
    starts = window_starts(length, size, stride)
    owner = window_owner(length, size, starts)
    assert starts[0] == 0
    assert starts[-1] == max(length - size, 0)
    assert starts == sorted(set(starts))
    assert all(b - a <= size - stride for a, b in pairwise(starts))
    assert all(b - a == size - stride for a, b in pairwise(starts[:-1]))
    assert len(owner) == length
    assert (np.diff(owner) >= 0).all()
    assert set(owner.tolist()) == set(range(len(starts))) or length <= size
    for token, number in enumerate(owner.tolist()):
        inside = [w for w, start in enumerate(starts) if start <= token < start + size]
        assert number in inside

        def context(window: int, token: int = token) -> float:
            before = token - starts[window] if starts[window] > 0 else np.inf
            behind = starts[window] + size - 1 - token
            return min(before, behind if starts[window] + size < length else np.inf)

        assert number == max(inside, key=lambda w: (context(w), -w))


@pytest.mark.parametrize("stride", [4, 5])
def test_a_stride_must_leave_progress(
    stride: int, tokenizer_of: Callable[[str], TextTokenizer]
) -> None:
    with pytest.raises(UsageError, match=f"stride={stride}: must be smaller than the 4 tokens"):
        window_starts(10, 4, stride)
    settings = TokenizerSettings(6, on_long="window", stride=stride)
    with pytest.raises(UsageError, match=f"stride={stride}: must be smaller than the 4 tokens"):
        tokenizer_of("bert").encode(["a"], settings=settings)  # whether a text is long or not


@given(
    n_a=st.integers(0, 40), n_b=st.one_of(st.none(), st.integers(0, 40)),
    max_length=st.integers(7, 20), data=st.data(),
)  # fmt: skip
def test_every_kept_token_comes_from_one_window(
    n_a: int, n_b: int | None, max_length: int, data: st.DataObject,
    tokenizer_of: Callable[[str], TextTokenizer],
) -> None:  # fmt: skip
    tokenizer = tokenizer_of("bert")
    room = max_length - (2 if n_b is None else 3)
    asked = TokenizerSettings(
        max_length, on_long="window", stride=data.draw(st.integers(0, (room + 1) // 2 - 1))
    )
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    a, b = " ".join(letters[:n_a]), " ".join(letters[-(n_b or 1) :]) if n_b else ""
    (text,) = tokenizer.encode([a], None if n_b is None else [b], settings=asked, offsets=True)
    seen = np.zeros(text.n_kept, int)
    for window in text.windows:
        assert len(window.ids) == len(window.type_ids) <= max_length
        if window.owned is None or window.kept is None:
            assert len(text.windows) == 1
            seen += 1
            continue
        np.testing.assert_array_equal(window.ids[window.owned], text.ids[window.kept])
        seen[window.kept] += 1
    assert (seen == 1).all()
    kept = sorted([n_a, n_b or 0])
    if kept[0] + kept[1] > room:
        assert text.n_kept == max_length - room + min(kept[0], room // 2) + kept[1]
        assert text.cut == (kept[0] > room // 2)
    else:
        assert len(text.windows) == 1


# what the command line shows


def test_what_the_model_sees(tiny_bert: Path) -> None:
    rows = tokenize("배를", "a movie", model=str(tiny_bert))
    assert [(r["pos"], r["token"], r["segment"], r["start"], r["end"], r["word"], r["text"])
            for r in rows] == [
        (0, "[CLS]", 0, 0, 0, -1, ""), (1, "배", 0, 0, 1, 0, "배"), (2, "##를", 0, 1, 2, 0, "를"),
        (3, "[SEP]", 0, 0, 0, -1, ""), (4, "a", 1, 0, 1, 1, "a"),
        (5, "movie", 1, 2, 7, 2, "movie"), (6, "[SEP]", 1, 0, 0, -1, ""),
    ]  # fmt: skip


def test_slice_of_the_vocabulary(
    tiny_bert: Path, tokenizer_of: Callable[[str], TextTokenizer]
) -> None:
    size = len(tokenizer_of("bert").hf)
    assert tokenize(vocab="2:4", model=str(tiny_bert)) == [
        {"id": 2, "token": "[CLS]"}, {"id": 3, "token": "[SEP]"},
    ]  # fmt: skip
    assert len(tokenize(vocab=f"0:{size}", model=str(tiny_bert))) == size
    for wrong in ("", "2", "4:2", "3:3", f"0:{size + 1}", "-1:2", "a:b"):
        with pytest.raises(UsageError, match=f"vocab={wrong!r}: expected FROM:TO .* ≤ {size}"):
            tokenize(vocab=wrong, model=str(tiny_bert))


def test_a_prefix_is_shown_and_a_cut_is_noted(tiny_bert: Path, notes: list[str]) -> None:
    rows = tokenize("배를 타고", model=str(tiny_bert), prefix="a ", max_length=4)
    assert [(r["token"], r["start"], r["end"]) for r in rows] == [
        ("[CLS]", 0, 0), ("a", 0, 0), ("배", 0, 1), ("[SEP]", 0, 0),
    ]  # fmt: skip
    (note,) = notes
    assert note.startswith("the text has ")
    assert "it is cut at 4, and the model does not see the other" in note
    with pytest.raises(UsageError, match=r"max_length=161: .* has positions for 160 tokens"):
        tokenize("a", model=str(tiny_bert), max_length=161)


# vocabularies of folders that say little


def old_tokens(folder: Path, text: str) -> list[str]:
    """Tokens of a text."""
    tokenizer = load_tokenizer(find_checkpoint(str(folder)))
    (encoded,) = tokenizer.encode([text], settings=NO_LIMIT)
    return tokenizer.tokens(encoded.ids.tolist())[1:-1]


KOREAN = "배를 여행을 Movies A."
SPLIT = ["배", "##를", "여행", "##을"]


@pytest.mark.parametrize(
    ("vocabulary", "text", "tokens", "says"),
    [
        ("cased", KOREAN, [*SPLIT, "Movie", "##s", "A", "."], "it keeps case"),
        ("uncased_korean", KOREAN, [*SPLIT, "movie", "##s", "a", "."], "it lower-cases"),
        ("uncased_korean", "배를 Cafe", ["배", "##를", "cafe"], "it lower-cases"),
        ("uncased_japanese", "ガラス パン Movie", ["ガ", "##ラ", "##ス", "パ", "##ン", "movie"],
         "it lower-cases"),
        ("uncased_english", "Café naïve Movies", ["cafe", "naive", "movie", "##s"],
         "it lower-cases"),
    ],
)  # fmt: skip
def test_the_vocabulary_decides_where_nothing_is_said(
    vocabulary: str, text: str, tokens: list[str], says: str, tmp_path: Path,
    notes: list[str],
) -> None:  # fmt: skip
    folder = build_old(tmp_path / "old", vocabulary)
    found = old_tokens(folder, text)
    assert found == tokens
    (notice,) = notes
    assert f"{folder} does not state how its tokenizer treats case; {says}" in notice


@pytest.mark.parametrize(
    ("vocabulary", "config", "tokenizer_config", "tokens"),
    [
        ("cased", {}, {"do_lower_case": False}, ["Movie", "##s", "A"]),
        ("cased", {}, {"do_lower_case": True, "strip_accents": False}, ["movie", "##s", "a"]),
        ("cased", {"do_lower_case": False}, None, ["Movie", "##s", "A"]),
        ("cased", {"do_lower_case": True}, {"do_lower_case": False}, ["Movie", "##s", "A"]),
        ("uncased_korean", {}, {"do_lower_case": False}, ["[UNK]", "[UNK]"]),
        ("uncased_korean", {"do_lower_case": True, "strip_accents": False}, None,
         ["movie", "##s", "a"]),
    ],
)  # fmt: skip
def test_case_is_as_stated(
    vocabulary: str,
    config: dict[str, Any],
    tokenizer_config: dict[str, Any] | None,
    tokens: list[str],
    tmp_path: Path,
    notes: list[str],
) -> None:
    folder = build_old(tmp_path, vocabulary, tokenizer_config=tokenizer_config, **config)
    found = old_tokens(folder, "배를 여행을 Movies A")
    assert found == [*SPLIT, *tokens]
    assert notes == []


def test_a_folder_without_a_model_type(tmp_path: Path) -> None:
    folder = build_old(tmp_path, "cased", model_type=None)
    found = old_tokens(folder, KOREAN)
    assert found == [*SPLIT, "Movie", "##s", "A", "."]


@pytest.mark.parametrize("stated", [None, {"model_max_length": 40}])
@pytest.mark.parametrize(
    ("normalizer", "tokens", "says"),
    [
        ({"do_lower_case": False}, ["Movie", "##s", "A"], "it keeps case"),
        ({"do_lower_case": True, "strip_accents": False}, ["movie", "##s", "a"], "it lower-cases"),
    ],
)
def test_tokenizer_json_decides_where_its_configuration_does_not(
    normalizer: dict[str, bool], tokens: list[str], says: str, stated: dict[str, Any] | None,
    tmp_path: Path, notes: list[str],
) -> None:  # fmt: skip
    folder = build_old(tmp_path, "cased", tokenizer_config=stated)
    entries = (folder / "vocab.txt").read_text("utf-8").split()
    made = bert_tokenizer({e: i for i, e in enumerate(entries)}, **normalizer)
    made.backend_tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").unlink()
    found = old_tokens(folder, "배를 여행을 Movies A")
    assert found == [*SPLIT, *tokens]
    (notice,) = notes
    assert notice == (
        f"{folder} does not state how its tokenizer treats case; {says}, as tokenizer.json states"
    )


@pytest.mark.parametrize("family", ["bert", "japanese"])
def test_half_a_character_is_refused(
    family: str, tokenizer_of: Callable[[str], TextTokenizer]
) -> None:
    for text in ("a\ud800b", "\udcff"):
        with pytest.raises(UsageError, match=r"a text holds '\\ud.*half of a character or a byte"):
            tokenizer_of(family).encode(["fine", text], settings=NO_LIMIT)


# tokenizers that cannot be used


@pytest.mark.skipif(OLD_TOKENIZERS, reason="transformers 4 asks for protobuf first")
def test_a_tokenizer_made_of_nothing_is_refused(tmp_path: Path) -> None:
    """Transformers makes one up that knows no word if the vocabulary is of another kind."""
    folder = build_old(tmp_path, "cased")
    (folder / "vocab.txt").rename(folder / "spiece.model")
    with pytest.raises(ModelError, match="transformers finds no vocabulary for a bert model in"):
        load_tokenizer(find_checkpoint(str(folder)))


def test_code_of_a_tokenizer_that_is_not_run_is_named(tmp_path: Path, notes: list[str]) -> None:
    own = {"AutoTokenizer": ["tokenization_own.Own", None]}
    folder = build_old(
        tmp_path, "cased", tokenizer_config={"do_lower_case": False, "auto_map": own}
    )
    load_tokenizer(find_checkpoint(str(folder)))
    (notice,) = notes
    assert "brings code for its tokenizer, which is not run; BertTokenizer" in notice


def test_no_tokenizer_files(tmp_path: Path) -> None:
    folder = build_old(tmp_path, "cased")
    (folder / "vocab.txt").unlink()
    with pytest.raises(ModelError, match=r"holds no tokenizer\. It needs tokenizer\.json"):
        load_tokenizer(find_checkpoint(str(folder)))


def test_a_tokenizer_that_cannot_be_read(tmp_path: Path) -> None:
    folder = build_old(tmp_path, "cased")
    (folder / "tokenizer.json").write_text("{}", "utf-8")
    with pytest.raises(ModelError, match=r"no tokenizer can be loaded from .*\("):
        load_tokenizer(find_checkpoint(str(folder)))


def test_more_tokens_than_embeddings(tmp_path: Path) -> None:
    folder = build_old(tmp_path, "cased", vocab_size=16)
    with pytest.raises(ModelError, match="ids up to 16, but the model has only 16 embeddings"):
        load_tokenizer(find_checkpoint(str(folder)))


@pytest.mark.skipif(OLD_TOKENIZERS, reason="transformers 4 asks for protobuf first")
def test_a_missing_package_is_named(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny("japanese")
    monkeypatch.setitem(sys.modules, "fugashi", None)
    with pytest.raises(ModelError, match=r"its tokenizer needs another package .*fugashi.*pip"):
        load_tokenizer(find_checkpoint(str(folder)))
