"""Words in context: where they stand, whose vectors they get, how alike they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pandas as pd
import pytest

from embedkit.contexts import uses as contexts
from embedkit.contexts.uses import (
    Use,
    UseVectors,
    describe_uses,
    find_word,
    uses_in_dataset,
    uses_in_texts,
    words,
)
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.views import LayerSpec, parse_layers
from embedkit.encoding.windows import TokenizerSettings
from embedkit.errors import UsageError
from embedkit.search.exact import unit_rows
from tests.processes import invoke
from tests.store_fixtures import extract_tiny, tiny_model, write_tsv

TEXTS = (
    "배를 타고 여행을 간다.",
    "추석에 먹은 배가 맛있었다.",
    "the bus was good , a bus !",
    "영화 정말 재미있었다",
    "bad rain , rained home",
    "배를 타고 home",
)


pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module")
def folder(common: Path) -> Path:
    """Datasets with word vectors, with token vectors, with both, with neither."""
    rows = [(f"id{i}", text, str(i % 2)) for i, text in enumerate(TEXTS)]
    corpus = write_tsv(common / "c.tsv", [*rows[:2], ("none", "", "0"), *rows[2:]])
    tables: dict[str, Any] = {
        "words": {"words": "mean"},
        "tokens": {"tokens": True},
        "neither": {},
        "both": {"words": "mean", "tokens": True},
        "every": {"words": "mean", "tokens": True, "layers": "all"},
    }
    for name, made in tables.items():
        settings = {"layers": "0,2", **made}
        extract_tiny(corpus, common / name, shard_rows=3, **settings)
    return common


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(str(tiny_model()), device="cpu")


# where a word stands


PLACES = [
    ("배를 타고 배가 아프고 배우가", "배", "word", ["배", "배"]),
    ("배를 타고 배가 아프고 배우가", "배", "start", ["배", "배", "배"]),
    ("택배를 배에서는 배까지도 배.", "배", "word", ["배", "배", "배"]),
    ("택배를", "배", "anywhere", ["배"]),
    ("Bank of the BANK, banks; embankment", "bank", "word", ["Bank", "BANK"]),
    ("Bank of the BANK, banks; embankment", "bank", "start", ["Bank", "BANK", "bank"]),
    ("吾輩は猫である。猫だ", "猫", "word", ["猫", "猫"]),
    ("新しいﾒｰﾙです", "ﾒｰﾙ", "word", ["ﾒｰﾙ"]),
    ("人々が", "々", "word", ["々"]),
    ("私の𠮷", "𠮷", "word", ["𠮷"]),
    ("a+b is a+b", "a+b", "word", ["a+b", "a+b"]),
    ("은행들은 은행이다 은행께서는 은행원", "은행", "word", ["은행"] * 3),
    ("BERT는 BERT를 BERTs", "BERT", "word", ["BERT"] * 2),
    ("私はBERTで、BERTをABERTがBERTsと", "BERT", "word", ["BERT"] * 2),
    ("令和6年 2024年 3월", "2024", "start", ["2024"]),
    ("한국AI 反AI BERT모델 反한국", "AI", "word", ["AI"]),
    ("反한국 한국어 한국", "한국", "word", ["한국"]),
    ("I ❤️London 1️⃣London", "London", "word", ["London"] * 2),
    ("परिवार मेज पर", "पर", "word", ["पर"]),
    ("مُحَمَّد", "م", "word", []),
    ("nothing", "bank", "word", []),
    ("the bank is", " bank ", "word", ["bank"]),
]


@pytest.mark.parametrize(("text", "word", "match", "found"), PLACES)
def test_where_a_word_stands(text: str, word: str, match: str, found: list[str]) -> None:
    assert [text[slice(*span)] for span in find_word(text, word, match=match)] == found


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("asked", ["NFC", "NFD"])
def test_composed_and_decomposed_letters_are_the_same(form: Any, asked: Any) -> None:
    text = normalize(form, "배를 타고 백 배 , cafe café, かぎのかき")

    def found(word: str, match: str = "word") -> list[str]:
        spans = find_word(text, normalize(asked, word), match=match)
        return [normalize("NFC", text[slice(*span)]) for span in spans]

    assert found("배") == found("배", "anywhere") == ["배", "배"]
    assert found("cafe") == found("cafe", "start") == ["cafe"]
    assert found("CAFÉ") == ["café"]
    assert found("かき") == ["かき"]


def test_words_that_cannot_be_looked_for() -> None:
    with pytest.raises(UsageError, match="empty"):
        find_word("a", " ")
    with pytest.raises(UsageError, match="match='near'"):
        find_word("a", "a", match="near")
    # before texts are encoded, of which none has the word
    with pytest.raises(UsageError, match="layer='0,1': expected one layer"):
        words(["a"], "b", layer="0,1", model=str(tiny_model()))


# vectors of uses


def test_a_use_has_the_mean_of_its_tokens(encoder: Encoder) -> None:
    layers = parse_layers("0,sum:1..2", n_layers=2)
    text = "배를 rained 타고"
    of_ship = uses_in_texts(encoder, [text], "배", layers)
    of_rain = uses_in_texts(encoder, [text, "good " * 40 + "rained"], "rained", layers)
    assert (of_ship.skipped, of_rain.skipped) == (0, 1)  # the last was cut off
    tokens = encoder.tokenizer.encode([text], settings=TokenizerSettings(24), offsets=True)
    pieces = encoder.tokenizer.tokens(tokens[0].ids.tolist())
    shard = encoder.encode_shard(tokens, views=[], token_layers=layers)
    for spec in layers:
        states = shard.tokens[spec.name]
        assert np.array_equal(of_ship.vectors[spec.name][0], states[pieces.index("배")])
        rained = [pieces.index("rain"), pieces.index("##ed")]
        assert np.allclose(of_rain.vectors[spec.name][0], states[rained].mean(axis=0), atol=1e-5)


def test_tables_and_sentences_give_the_same_vectors(folder: Path, encoder: Encoder) -> None:
    direct = uses_in_texts(encoder, TEXTS, "배", parse_layers("0,2", n_layers=2))
    stored = uses_in_dataset(folder / "tokens", "배")
    assert [(u.text, u.start, u.end) for u in stored.uses] == [
        (u.text, u.start, u.end) for u in direct.uses
    ]
    assert [u.row for u in stored.uses] == [0, 1, 6]
    assert [u.id for u in stored.uses] == ["id0", "id1", "id5"]
    for name in ("0", "2"):
        assert np.allclose(stored.vectors[name], direct.vectors[name], atol=1e-5)
    whole = uses_in_dataset(folder / "words", "bus")
    again = uses_in_texts(encoder, TEXTS, "bus", parse_layers("2", n_layers=2))
    assert len(whole.uses) == 2
    assert np.allclose(whole.vectors["2"], again.vectors["2"], atol=1e-5)


def test_a_record_may_go_on_in_the_next_row_group(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = "rained home"  # three tokens
    whole, tables = uses_in_dataset(folder / "tokens", word), contexts.layer_tables

    def line_by_line(*arguments: Any, **settings: Any) -> Any:
        for row, spans, layers in tables(*arguments, **settings):
            for i in range(len(row)):
                one = slice(i, i + 1)
                yield row[one], spans[one], {name: v[one] for name, v in layers.items()}

    monkeypatch.setattr(contexts, "layer_tables", line_by_line)
    parts = uses_in_dataset(folder / "tokens", word)
    assert parts.uses == whole.uses
    assert np.allclose(parts.vectors["2"], whole.vectors["2"], atol=1e-5)


def test_words_that_were_cut_off(tmp_path: Path, encoder: Encoder) -> None:
    text = "good " * 40 + "bus"
    with pytest.raises(UsageError, match=r"'bus'.* cut"):
        uses_in_texts(encoder, [text], "bus", parse_layers("all", n_layers=2))
    corpus = write_tsv(tmp_path / "c.tsv", [("1", text, "1")])
    made = extract_tiny(corpus, tmp_path / "d", tokens=True)
    with pytest.raises(UsageError, match=r"'bus'.* cut"):
        uses_in_dataset(made.out, "bus")


def test_words_that_are_not_there(folder: Path) -> None:
    wider = {"word": "match='start'.*'anywhere'", "start": "'anywhere'", "anywhere": r"words\.$"}
    for match, told in wider.items():
        with pytest.raises(UsageError, match=f"'zoo' does not occur.*{told}"):
            uses_in_dataset(folder / "words", "zoo", match=match)
    with pytest.raises(UsageError, match="words="):
        uses_in_dataset(folder / "neither", "bus")


# what is said about them


def uses_of(count: int) -> UseVectors:
    vectors = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
    uses = tuple(Use(i, str(i), f"text {i}", 0, 4) for i in range(count))
    return UseVectors(uses, {"1": np.ones_like(vectors), "2": vectors}, 0)


def test_uses_are_compared_layer_by_layer() -> None:
    report = describe_uses(uses_of(10), "text")
    unit = unit_rows(uses_of(10).vectors["2"])
    pairs = (unit @ unit.T)[~np.eye(10, dtype=bool)]
    assert report.layers == {"1": pytest.approx(1), "2": pytest.approx(pairs.mean(), rel=1e-5)}
    assert np.allclose(np.diag(report.cosines), 1, atol=1e-5)


def test_any_two_words_are_of_the_whole_table(tmp_path: Path) -> None:
    """The mean over all pairs of words, of records that are in different files."""
    rows = [(str(i), TEXTS[i % 6] if i < 6 else "home home home", "0") for i in range(12)]
    corpus, options = write_tsv(tmp_path / "c.tsv", rows), {"words": "mean", "layers": "0,2"}
    made = extract_tiny(corpus, tmp_path / "d", shard_rows=3, **options)
    report = describe_uses(uses_in_dataset(made.out, "배"), "배")
    for layer, others in report.others.items():
        parts = sorted((tmp_path / "d/words").glob("*.parquet"))
        assert len(parts) == 4
        vectors = np.concatenate(
            [np.stack(pd.read_parquet(part)[f"layer_{layer}"].to_list()) for part in parts]
        ).astype(np.float64)
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        pairs = (unit @ unit.T)[~np.eye(len(unit), dtype=bool)]
        assert others == pytest.approx(pairs.mean(), abs=1e-5)


def test_a_single_use_has_no_cosine() -> None:
    report = describe_uses(uses_of(1), "text")
    assert np.isnan(report.layers["1"])
    with pytest.raises(UsageError, match="layer='7': expected one of 1, 2"):
        describe_uses(uses_of(1), "text", layer=LayerSpec((7,)))


@pytest.mark.parametrize("layer", ["sum:0..2", "mean:1..2", "concat:0..1"])
def test_stored_layers_are_combined(folder: Path, layer: str, encoder: Encoder) -> None:
    spec = parse_layers(layer, n_layers=2)[0]
    report = describe_uses(uses_in_dataset(folder / "every", "배"), "배", layer=spec)
    direct = describe_uses(uses_in_texts(encoder, TEXTS, "배", [spec]), "배")
    assert report.layer == direct.layer == spec.name
    assert np.allclose(report.cosines, direct.cosines, atol=1e-5)
    assert [*report.layers] == ["0", "1", "2", spec.name]


# the command


def test_the_command_in_all_its_forms(folder: Path, tmp_path: Path) -> None:
    model = ("--model", tiny_model())
    shown = invoke("words", folder / "both", "배").output
    assert "3 uses of 배: mean cosine of two is" in shown
    assert "추석에 먹은 [배]가 맛있었다." in shown
    every = invoke("words", folder / "both", "배", "--layer", "sum:0,2", "--all").output
    assert "any two words" in every
    assert invoke("words", folder / "both", "배", "--layer", "-1").output == shown
    assert "nan" not in invoke("words", "bus", "--text", "the bus home", *model).output
    texts = ("bus", "--text", "the bus home", "--text", "a bus !", *model)
    assert "2 uses of bus: their cosine is" in invoke("words", *texts).output
    assert "1 more use" in invoke("words", "bus", *("--text", "a bus") * 5, *model).output
    found = json.loads(invoke("words", *texts, "--json").stdout)
    assert np.shape(found["cosines"]) == (2, 2)
