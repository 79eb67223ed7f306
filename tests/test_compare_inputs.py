"""What a comparison says of runs that saw other input, and of several seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedkit
from embedkit.cli.compare import comparison_markdown, comparison_text
from embedkit.comparison.compare import compare
from embedkit.comparison.report import write_report
from embedkit.display import metric_text
from embedkit.runs.splits import split
from tests.finetune_fixtures import corpus_of, tuned
from tests.run_fixtures import train
from tests.store_fixtures import tiny_model

SAME: dict[str, Any] = {"prefix": "query: ", "max_length": 12, "on_long": "window", "stride": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on one split: TF-IDF, frozen vectors, and fine-tuned with the same and other input."""
    at = tmp_path_factory.mktemp("inputs")
    corpus = corpus_of(at / "corpus.tsv")
    file = at / "split.parquet"
    split(corpus, out=file, folds=2)
    embedkit.extract(corpus, out=at / "data", model=str(tiny_model()), precision="fp32", **SAME)
    for features in ("vectors", "tfidf"):
        train(at / "data", out=at / features, split=file, features=features)
    tuned(corpus, at / "same", split=file, epochs=1, **SAME)
    other = tiny_model(seed=2)
    tuned(corpus, at / "other", split=file, epochs=1, model=str(other), seeds=2)
    return at


def test_the_same_input_is_passed_over(folder: Path) -> None:
    found = compare([folder / name for name in ("tfidf", "vectors", "same")])
    assert found.table.inputs == ()
    assert "Not the same input" not in comparison_text(found.table)


def test_every_setting_that_differs_is_named(folder: Path, tmp_path: Path) -> None:
    found = compare([folder / n for n in ("tfidf", "vectors", "same", "other")])
    named = {one.setting: one.runs for one in found.table.inputs}
    both, alone = ("vectors", "same"), ("other",)
    assert named.keys() == {"model", "prefix", "max_length", "on_long"}
    assert named["prefix"] == {"'query: '": both, "''": alone}
    assert named["max_length"] == {"12": both, "24": alone}
    assert named["on_long"] == {"window": both, "truncate": alone}
    assert list(named["model"].values()) == [both, alone]
    write_report(found, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text("utf-8").replace("<wbr>", "")
    assert "The runs saw different input: max_length is 12 (vectors, same); 24 (other)." in page
    for text in (comparison_text(found.table), comparison_markdown(found.table)):
        assert "Not the same input: max_length: 12 in vectors, same; 24 in other." in text


def test_unicode_and_special_tokens_differ_too(folder: Path) -> None:
    embedkit.extract(folder / "corpus.tsv", out=folder / "plain", model=str(tiny_model()),
                     precision="fp32", unicode="nfc", special_tokens=False, **SAME)  # fmt: skip
    train(folder / "plain", out=folder / "nfc", split=folder / "split.parquet")
    found = compare([folder / "tfidf", folder / "same", folder / "nfc"])
    assert {one.setting: one.runs for one in found.table.inputs} == {
        "unicode": {"none": ("tfidf", "same"), "nfc": ("nfc",)},
        "special_tokens": {"include": ("same",), "exclude": ("nfc",)},
    }


@pytest.mark.parametrize("metric", ["accuracy", "log_loss"])
def test_the_spread_over_seeds_stands_beside_the_interval(folder: Path, metric: str) -> None:
    found = compare([folder / "same", folder / "other"], metric=metric)
    (spread,) = found.table.seeds
    content = found.runs.runs[1].content
    values = [one.scores["cross_validation"][metric] for one in content.seeds]  # type: ignore[attr-defined]
    assert (spread.run, spread.seeds, list(spread.values)) == ("other", (0, 1), values)
    assert spread.deviation == pytest.approx(np.std(values, ddof=1))
    text = comparison_text(found.table)
    one, other, deviation = (metric_text(v, metric) for v in (*values, spread.deviation))
    assert f"Seeds of other: {metric} of 2 seeds {one}, {other}" in text
    assert f"standard deviation {deviation}" in text
    known = {"accuracy": "mean 60.0, standard deviation 14.1",
             "log_loss": "mean 0.600, standard deviation 0.141"}  # fmt: skip
    assert known[metric] in replace(spread, values=(0.5, 0.7)).text
