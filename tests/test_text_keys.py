"""Records with the same text never cross folds, also where the texts are not stored."""

from __future__ import annotations

import hashlib
import itertools
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedkit
from embedkit.dataset import columns, shards
from embedkit.dataset.inspection import describe_dataset
from embedkit.dataset.record_keys import text_key, text_keys
from embedkit.runs.split_files import Split, read_split
from tests.store_fixtures import (
    quick,  # noqa: F401 - a fixture
    run,
    write_tsv,
)

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
    rows = [(str(i), form.format(text).upper() if i % 7 == 0 else form.format(text), label)
            for i, (form, (text, label)) in enumerate(itertools.product(FORMS, lines))]  # fmt: skip
    order = random.permutation(len(rows))
    return write_tsv(tmp_path_factory.mktemp("coins") / "c.tsv", [rows[i] for i in order])


def without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write datasets as earlier versions did."""
    genuine = columns.sentence_columns

    def sentence_columns(*args: Any, **kwargs: Any) -> dict[str, Any]:
        made = genuine(*args, **kwargs)
        del made["text_key"]
        return made

    monkeypatch.setattr(shards, "sentence_columns", sentence_columns)


def extracted(corpus: Path, out: Path, **settings: Any) -> Path:
    return run(corpus, out, shard_rows=100, **settings).out


def crossing(made: Split, corpus: Path) -> int:
    """How many texts are in more than one fold, by another implementation of the same rule."""
    found: dict[str, set[int]] = {}
    for line, fold in zip(corpus.read_text("utf-8").splitlines()[1:], made.folds[:, 0],
                          strict=True):  # fmt: skip
        text = " ".join(unicodedata.normalize("NFKC", line.split("\t")[1]).casefold().split())
        found.setdefault(text, set()).add(int(fold))
    assert len(found) == 150
    return sum(len(folds) > 1 for folds in found.values())


def accuracy(dataset: Path, out: Path, **settings: Any) -> float:
    made = embedkit.train(dataset, out=out, estimator="knn", **settings)
    return made.content.scores["cross_validation"]["accuracy"].value


@pytest.mark.parametrize("store_text", [pytest.param(True, marks=pytest.mark.slow), False])
def test_coin_flips_cannot_be_predicted(coins: Path, tmp_path: Path, store_text: bool) -> None:
    """With duplicates in other folds a nearest neighbour would be right nearly always.

    150 tosses have a standard deviation of 0.041: an accuracy beyond 0.35 to 0.65 is no chance.
    """
    data = extracted(coins, tmp_path / "data", store_text=store_text)
    made = embedkit.split(data, out=tmp_path / "split.parquet")
    assert crossing(made, coins) == 0
    assert 0.35 < accuracy(data, tmp_path / "a", split=tmp_path / "split.parquet") < 0.65
    assert 0.35 < accuracy(data, tmp_path / "b") < 0.65
    probed = embedkit.probe(data, out=tmp_path / "p", estimator="knn").content
    assert 0.35 < probed.nested.value < 0.65
    leaking = embedkit.split(data, allow_duplicates=True, out=tmp_path / "leaks.parquet")
    assert crossing(leaking, coins) > 100
    assert accuracy(data, tmp_path / "c", split=tmp_path / "leaks.parquet") > 0.9


def test_splits_with_and_without_texts_are_equal(coins: Path, tmp_path: Path) -> None:
    with_texts = embedkit.split(extracted(coins, tmp_path / "a"), test=0.2)
    without = embedkit.split(extracted(coins, tmp_path / "b", store_text=False), test=0.2)
    of_corpus = embedkit.split(coins, test=0.2, label="label")
    assert with_texts.fingerprint == without.fingerprint == of_corpus.fingerprint
    assert with_texts.group.tolist() == without.group.tolist()


def test_older_datasets(
    coins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    with monkeypatch.context() as patch:
        without_keys(patch)
        old = extracted(coins, tmp_path / "old")
        bare = extracted(coins, tmp_path / "bare", store_text=False)
    assert "text_key" not in embedkit.load(old).columns
    made = embedkit.split(old)
    assert crossing(made, coins) == 0
    assert not made.settings.allow_duplicates
    unknown = "neither texts nor text keys are known"
    assert not [note for note in notes if unknown in note]
    made = embedkit.split(bare, out=tmp_path / "split.parquet")
    assert made.settings.allow_duplicates
    assert read_split(tmp_path / "split.parquet").settings.allow_duplicates
    (message,) = [note for note in notes if unknown in note]
    assert "records of the same text may be in different folds" in message
    assert describe_dataset(bare).duplicate_texts is None
    assert describe_dataset(old).duplicate_texts == 450


def test_an_unfinished_job_of_an_older_version_gets_its_keys(
    coins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embedkit.dataset.jobs import JobFolder

    wanted = extracted(coins, tmp_path / "wanted")
    with monkeypatch.context() as patch:
        without_keys(patch)
        patch.setattr(JobFolder, "finish", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            extracted(coins, tmp_path / "out")
    found = embedkit.load(extracted(coins, tmp_path / "out"))
    assert text_keys(found) is not None
    assert found.column("text_key") == embedkit.load(wanted).column("text_key")


def test_the_key_is_what_the_format_says(coins: Path, tmp_path: Path) -> None:
    data = embedkit.load(extracted(coins, tmp_path / "out"))
    keys = text_keys(data)
    assert keys is not None
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


def test_repeated_texts_are_found_once_without_texts(coins: Path, tmp_path: Path) -> None:
    data = extracted(coins, tmp_path / "out", store_text=False)
    (answer,) = embedkit.Searcher(data).like([0], k=20)
    keys = dict(zip(embedkit.load(data).row.tolist(), embedkit.load(data).column("text_key"),
                    strict=True))  # fmt: skip
    found = [keys[hit.row] for hit in answer.hits]
    assert len(found) == len(set(found)) == 20
    assert keys[0] not in found
