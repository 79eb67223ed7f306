"""Records with the same text never cross folds, also where the texts are not stored."""

from __future__ import annotations

import hashlib
import itertools
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedkit
from embedkit.dataset.format import text_key
from embedkit.dataset.read import text_keys
from embedkit.runs.split import Split
from tests.store_fixtures import run, write_tsv

pytestmark = pytest.mark.usefixtures("quick")

WORDS = ("the", "movie", "was", "good", "bad", "bus", "home", "rain")
FORMS = ("{}", "{} ", "{}", "  {}")  # the same text in other white space


@pytest.fixture(scope="module")
def coins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """150 texts, each four times in other forms; the label of a text is the toss of a coin."""
    random = np.random.default_rng(0)
    every = list(itertools.product(WORDS, repeat=4))
    texts = [" ".join(every[i]) for i in random.choice(len(every), 150, replace=False)]
    lines = [(text, str(random.integers(2))) for text in texts]
    rows = [
        (str(i), form.format(text).upper() if i % 7 == 0 else form.format(text), label)
        for i, (form, (text, label)) in enumerate(itertools.product(FORMS, lines))
    ]
    order = random.permutation(len(rows))
    return write_tsv(tmp_path_factory.mktemp("coins") / "c.tsv", [rows[i] for i in order])


def extracted(corpus: Path, out: Path, **settings: Any) -> Path:
    return run(corpus, out, shard_rows=100, **settings).out


def crossing(made: Split, corpus: Path) -> int:
    """How many texts are in more than one fold, by another implementation of the same rule."""
    found: dict[str, set[int]] = {}
    for line, fold in zip(corpus.read_text("utf-8").splitlines()[1:], made.folds, strict=True):
        text = " ".join(unicodedata.normalize("NFKC", line.split("\t")[1]).casefold().split())
        found.setdefault(text, set()).add(int(fold))
    assert len(found) == 150
    return sum(len(folds) > 1 for folds in found.values())


@pytest.mark.parametrize("store_text", [True, False])
def test_equal_texts_never_cross_folds(coins: Path, tmp_path: Path, store_text: bool) -> None:
    data = extracted(coins, tmp_path / "data", store_text=store_text)
    assert crossing(embedkit.split(data), coins) == 0
    made = embedkit.split(data)
    assert crossing(replace(made, folds=np.arange(len(made.row)) % 5), coins) > 100


def test_the_key_is_what_the_format_says(coins: Path, tmp_path: Path) -> None:
    data = embedkit.load(extracted(coins, tmp_path / "out"))
    keys = text_keys(data)
    assert keys.tolist() == data.column("text_key") == [text_key(text) for text in data.text]
    digest = hashlib.sha256(b"a text").digest()
    assert text_key("Ａ \t TEXT ") == np.frombuffer(digest[:8], "<i8")[0]


def test_pairs_share_a_key_if_both_texts_do(tmp_path: Path) -> None:
    rows = [("a", "b"), ("A", " b"), ("a", "c"), ("b", "a")]
    corpus = tmp_path / "c.tsv"
    corpus.write_text("first\tsecond\n" + "".join(f"{a}\t{b}\n" for a, b in rows), "utf-8")
    data = embedkit.load(
        run(corpus, tmp_path / "out", text="first", text_pair="second", store_text=False).out
    )
    keys = data.column("text_key")
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
