"""Vectors of words and tokens in memory are those that extraction writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedkit.encoding.tables import TokenVectors, WordVectors
from embedkit.errors import UsageError
from tests.models import TEXTS, EncoderOf, Tiny
from tests.store_fixtures import run

FILLED = [text for text in dict.fromkeys(TEXTS) if text.strip()] + [TEXTS[2], "a  movie\tbus", "배"]
LAYERS = ["0", "-1", "sum:1..2"]


def agree(ours: TokenVectors | WordVectors, folder: Path) -> None:
    """Every column of the table on disk is an attribute with the same values."""
    table = pq.read_table(folder)
    assert len(ours) == len(table) > 0
    for name in table.schema.names:
        column = table.column(name)
        if name.startswith("layer_"):
            found = ours.vectors[name.removeprefix("layer_")]
            assert found.dtype == np.float32
            assert np.array_equal(found, np.stack(column.to_numpy())), name
        else:
            assert getattr(ours, name).tolist() == column.to_pylist(), name
    assert {f"layer_{name}" for name in ours.vectors} <= set(table.schema.names)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "japanese"])
def test_words_and_tokens_are_those_that_extract_writes(
    family: str, tiny: Tiny, encoder_of: EncoderOf, tmp_path: Path
) -> None:
    encoder, model = encoder_of(family), str(tiny(family))
    run(
        FILLED,
        tmp_path / "out",
        model=model,
        layers="0,-1,sum:1..2",
        words="mean",
        tokens=True,
        shard_rows=100,
        device="cpu",
    )
    for batch_size in (None, 3):
        tokens = encoder.encode_tokens(FILLED, layers=LAYERS, batch_size=batch_size)
        words = encoder.encode_words(FILLED, layers=LAYERS, batch_size=batch_size)
        if batch_size is None or encoder.model.name == "packed":
            agree(tokens, tmp_path / "out/tokens")
            agree(words, tmp_path / "out/words")
    assert [FILLED[r][a:b] for r, a, b in zip(words.row, words.start, words.end, strict=True)] == (
        words.text.tolist()
    )


WORDS = st.lists(
    st.lists(st.sampled_from(["배를", "movie", "A,", "猫", "naïve"]), max_size=5), max_size=5
)


@given(words=WORDS)
def test_words_of_a_text_are_the_text(words: list[list[str]], encoder_of: EncoderOf) -> None:
    encoder = encoder_of("bert")
    ours = encoder.encode_words(words=words, layers=[0, -1])
    joined = encoder.encode_words([" ".join(some) for some in words], layers=[0, -1])
    for name in ("row", "word", "segment", "text", "start", "end", "n_tokens"):
        assert getattr(ours, name).tolist() == getattr(joined, name).tolist()
    assert all(np.array_equal(v, joined.vectors[name]) for name, v in ours.vectors.items())
    assert ours.text.tolist() == [word for some in words for word in some]
    assert ours.row.tolist() == [row for row, some in enumerate(words) for _ in some]


def test_nothing_to_encode(encoder_of: EncoderOf) -> None:
    encoder = encoder_of("bert")
    for empty in (
        encoder.encode_words([]),
        encoder.encode_words(words=np.zeros((0, 2), str)),
        encoder.encode_words(["", " "]),
        encoder.encode_tokens([]),
    ):
        assert len(empty) == 0
        assert empty.X.shape == (0, 24)
    assert encoder.encode_tokens([""]).token.tolist() == ["[CLS]", "[SEP]"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"words": [["a", 1]]}, r"words\[0\]\[1\] is 1"),
        ({"words": [["a", "a\u3000b"]]}, r"words\[0\]"),
        ({}, "words="),
        ({"texts": ["a"], "words": [["a"]]}, "words="),
        ({"texts": ["a"], "subtokens": "middle"}, "subtokens='middle'"),
        ({"texts": ["a"], "layers": [4]}, "layers='4'"),
    ],
)
def test_wrong_calls(call: dict[str, Any], message: str, encoder_of: EncoderOf) -> None:
    with pytest.raises((TypeError, UsageError), match=message):
        encoder_of("bert").encode_words(**call)
