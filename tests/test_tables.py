"""Vectors of words and tokens in memory are those that extraction writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedkit.choices import SUBTOKENS
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.tables import TokenVectors, WordVectors
from embedkit.errors import UsageError
from tests.models import TEXTS
from tests.store_fixtures import run

FILLED = [text for text in dict.fromkeys(TEXTS) if text.strip()] + [TEXTS[2], "a  movie\tbus", "배"]
LAYERS = ["0", "-1", "sum:1..2"]


def stored(folder: Path, table: str) -> Any:
    return pq.read_table(folder / table)


def matrix(column: Any) -> Any:
    return np.stack(column.to_numpy(zero_copy_only=False))


def agree(ours: TokenVectors | WordVectors, table: Any) -> None:
    """Every column of the table on disk is an attribute with the same values."""
    assert len(ours) == len(table) > 0
    for name in table.schema.names:
        column = table.column(name)
        if name.startswith("layer_"):
            found = ours.vectors[name.removeprefix("layer_")]
            assert found.dtype == np.float32
            assert np.array_equal(found, matrix(column)), name
        else:
            assert getattr(ours, name).tolist() == column.to_pylist(), name
    assert {f"layer_{name}" for name in ours.vectors} <= set(table.schema.names)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "japanese"])
def test_words_and_tokens_are_those_that_extract_writes(
    family: str, tiny: Callable[[str], Path], encoder_of: Callable[[str], Encoder], tmp_path: Path
) -> None:
    encoder, model = encoder_of(family), str(tiny(family))
    run(
        FILLED, tmp_path / "out", model=model, layers="0,-1,sum:1..2", words="mean", tokens=True,
        shard_rows=100, device="cpu",
    )  # fmt: skip
    for batch_size in (None, 3):
        tokens = encoder.encode_tokens(FILLED, layers=LAYERS, batch_size=batch_size)
        words = encoder.encode_words(FILLED, layers=LAYERS, batch_size=batch_size)
        if batch_size is None or encoder.model.name == "packed":
            agree(tokens, stored(tmp_path / "out", "tokens"))
            agree(words, stored(tmp_path / "out", "words"))
    assert [FILLED[r][a:b] for r, a, b in zip(words.row, words.start, words.end, strict=True)] == (
        words.text.tolist()
    )


@pytest.mark.parametrize("subtokens", SUBTOKENS)
def test_words_are_pooled_as_extract_pools_them(
    subtokens: str, encoder_of: Callable[[str], Encoder], tiny_bert: Path, tmp_path: Path
) -> None:
    run(FILLED, tmp_path / "out", model=str(tiny_bert), words=subtokens, shard_rows=100,
        device="cpu", max_length=9, prefix="the ")  # fmt: skip
    words = encoder_of("bert").encode_words(
        FILLED, subtokens=subtokens, max_length=9, prefix="the "
    )
    agree(words, stored(tmp_path / "out", "words"))


WORDS = st.lists(
    st.lists(st.sampled_from(["배를", "movie", "A,", "猫", "naïve"]), max_size=5), max_size=5
)


@given(words=WORDS)
def test_words_of_a_text_are_the_text(
    words: list[list[str]], encoder_of: Callable[[str], Encoder]
) -> None:
    encoder = encoder_of("bert")
    ours = encoder.encode_words(words=words, layers=[0, -1])
    joined = encoder.encode_words([" ".join(some) for some in words], layers=[0, -1])
    for name in ("row", "word", "segment", "text", "start", "end", "n_tokens"):
        assert getattr(ours, name).tolist() == getattr(joined, name).tolist()
    assert all(np.array_equal(v, joined.vectors[name]) for name, v in ours.vectors.items())
    assert ours.text.tolist() == [word for some in words for word in some]
    assert ours.row.tolist() == [row for row, some in enumerate(words) for _ in some]


def test_one_layer_and_several(encoder_of: Callable[[str], Encoder]) -> None:
    encoder = encoder_of("bert")
    one, both = encoder.encode_words(["a movie"]), encoder.encode_words(["a movie"], layers="all")
    assert list(one.vectors) == ["3"]
    assert one.X is one.vectors["3"]
    assert list(both.vectors) == ["0", "1", "2", "3"]
    assert both.X.shape == (2, 4 * 24)
    assert np.array_equal(both.X[:, 3 * 24 :], one.X)
    assert np.array_equal(one.X, encoder.encode_words(["a movie"], layers=[-1]).X)


def test_nothing_to_encode(encoder_of: Callable[[str], Encoder]) -> None:
    encoder = encoder_of("bert")
    for empty in (encoder.encode_words([]), encoder.encode_words(words=[]),
                  encoder.encode_words(["", " "]), encoder.encode_tokens([])):  # fmt: skip
        assert len(empty) == 0
        assert empty.X.shape == (0, 24)
    assert encoder.encode_tokens([""]).token.tolist() == ["[CLS]", "[SEP]"]
    assert encoder.encode_tokens([""]).special.all()


def test_data_frames(encoder_of: Callable[[str], Encoder]) -> None:
    pytest.importorskip("pandas")
    words = encoder_of("bert").encode_words(["배를 타고", "a movie"])
    frame = words.to_pandas()
    assert list(frame) == ["row", "word", "segment", "text", "start", "end", "n_tokens"]
    assert frame["text"].tolist() == ["배를", "타고", "a", "movie"]
    assert "token" in encoder_of("bert").encode_tokens(["a"]).to_pandas()


def test_wrong_calls(encoder_of: Callable[[str], Encoder]) -> None:
    encoder = encoder_of("bert")
    for wrong, message in (
        ({"texts": "one text"}, r"texts is one string; give a list of strings: \['one text'\]"),
        ({"words": "one text"}, "words is one string; give a list of words for every text"),
        ({"words": ["one", "two"]}, r"words\[0\] is one string; give a list of strings"),
        ({"words": [["a", 1]]}, r"words\[0\]\[1\] is 1, of type int; expected a string"),
        ({"texts": [None]}, r"texts\[0\] is None, of type NoneType"),
    ):
        with pytest.raises(TypeError, match=message):
            encoder.encode_words(**wrong)
    with pytest.raises(TypeError, match=r"texts is one string"):
        encoder.encode_tokens("one text")
    for bad in ("", " ", "two words", "a\u3000b", " a"):
        with pytest.raises(UsageError, match=r"words\[0\] holds .*; expected words without white"):
            encoder.encode_words(words=[["a", bad]])
    for given_ in ({}, {"texts": ["a"], "words": [["a"]]}):
        with pytest.raises(UsageError, match="give either texts or words="):
            encoder.encode_words(**given_)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="subtokens='middle': expected first, last"):
        encoder.encode_words(["a"], subtokens="middle")
    with pytest.raises(UsageError, match="layers='4': the model has layers 0"):
        encoder.encode_tokens(["a"], layers=[4])
    with pytest.raises(UsageError, match="batch_size=0: expected 1 or more"):
        encoder.encode_tokens(["a"], batch_size=0)
