"""One training with held-out records (``folds=1``), and test files with a choice of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import embedkit
from embedkit.comparison.table import compare
from embedkit.errors import UsageError
from embedkit.predict import Predictor
from embedkit.runs.split import split
from tests.finetune_fixtures import corpus_of, predictions, tuned, write_lines
from tests.run_fixtures import train
from tests.store_fixtures import extract_tiny

PROBA = ["proba_0", "proba_1"]


@pytest.fixture(scope="module")
def folder(common: Path) -> Path:
    corpus = corpus_of(common / "corpus.tsv")
    extract_tiny(corpus, common / "data")
    for folds in (1, 5):
        split(corpus, out=common / f"{folds}.parquet", folds=folds, test=0.2)
    return common


def test_its_training_is_that_of_the_first_of_five(folder: Path, tmp_path: Path) -> None:
    """Of both kinds of runs: same model, same held-out predictions, same baseline."""
    for folds in (1, 5):
        file = folder / f"{folds}.parquet"
        tuned(folder / "corpus.tsv", tmp_path / f"tuned-{folds}", split=file, epochs=1)
        train(folder / "data", out=tmp_path / f"frozen-{folds}", split=file, tune=True)
    for kind in ("tuned", "frozen"):
        one, five = (predictions(tmp_path / f"{kind}-{folds}") for folds in (1, 5))
        five = five[(five["fold"] == "0") | ((five["fold"] == "test") & (kind == "frozen"))]
        one = one[(one["fold"] == "0") | (kind == "frozen")]
        assert one["row"].tolist() == five["row"].tolist()
        assert np.allclose(one[PROBA], five[PROBA], atol=1e-5)
    for folds in (5, 1):  # an encoder costs the same, frozen or trained, and every model counts
        found = compare([tmp_path / f"tuned-{folds}", tmp_path / f"frozen-{folds}"])
        mine, theirs = (found.row(f"{kind}-{folds}").cost for kind in ("tuned", "frozen"))
        assert mine is not None
        assert theirs is not None
        assert theirs.encode_seconds
        assert mine.encode_seconds == pytest.approx(folds * theirs.encode_seconds)
    made = pd.read_parquet(folder / "1.parquet")
    assert found.counts["folds"] == len(made.query("fold == 0"))
    assert "blend: stacked" in [row.name for row in found.rows]
    prior = found.predictions["majority"].proba[0]
    rest = made.query("fold == -2")["row"]
    assert prior[1] == pytest.approx((rest % 2).mean(), abs=0.1)
    texts = ["the movie good was 1"]
    fold = Predictor(tmp_path / "tuned-1", device="cpu")
    assert len(fold._model._models) == 1
    assert fold.predict_proba(texts).shape == (1, 2)
    with pytest.raises(UsageError, match="tuned-1"):
        embedkit.extract(folder / "corpus.tsv", out=tmp_path / "v", model=str(tmp_path / "tuned-1"))


@pytest.fixture(scope="module")
def more(folder: Path) -> Path:
    """A further file, some of whose texts are short."""
    lines = [f"{'good' if i % 2 else 'bad'}{' movie' * (i % 3)}\t{i % 2}" for i in range(40)]
    return write_lines(folder / "more.tsv", "text\tlabel", *lines)


def test_a_test_file_has_its_own_choice_of_records(
    folder: Path, tmp_path: Path, more: Path
) -> None:
    given: dict[str, Any] = {"test": more, "test_sample": 9, "test_min_chars": 5, "folds": 2}
    content = tuned(folder / "corpus.tsv", tmp_path / "tuned", epochs=1, **given).content
    table = predictions(tmp_path / "tuned")
    rows = table[table["fold"] == "test"]["row"].tolist()
    assert len(rows) == 9
    assert all(row % 3 for row in rows)
    assert content.records["test"] == 9
    everything = tuned(folder / "corpus.tsv", tmp_path / "all", epochs=1, test=more, folds=2)
    assert everything.content.records["test"] == 40


def test_a_test_set_may_be_a_dataset(folder: Path, tmp_path: Path, more: Path) -> None:
    extract_tiny(more, tmp_path / "more")
    given: dict[str, Any] = {"epochs": 1, "folds": 2}
    for name, test in (("file", more), ("dataset", tmp_path / "more")):
        tuned(folder / "corpus.tsv", tmp_path / name, test=test, **given)
    one, other = (predictions(tmp_path / name) for name in ("file", "dataset"))
    assert one.equals(other)
    compare([tmp_path / "file", tmp_path / "dataset"])  # the same test set
    with pytest.raises(UsageError, match="test_sample=3"):
        tuned(folder / "corpus.tsv", tmp_path / "a", test=tmp_path / "more", test_sample=3, **given)
    extract_tiny(more, tmp_path / "pairs", text_pair="label")
    with pytest.raises(UsageError, match="pairs of texts"):
        tuned(folder / "corpus.tsv", tmp_path / "a", test=tmp_path / "pairs", **given)
