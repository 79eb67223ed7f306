"""Cosines of pairs against vectors encoded one by one, and correlations against SciPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from embedkit import Encoder, similarity, sts
from embedkit.cli.text import number_text
from embedkit.errors import OutputExistsError, UsageError
from tests.finetune_fixtures import write_lines
from tests.processes import invoke
from tests.store_fixtures import tiny_model

pytestmark = pytest.mark.usefixtures("quick")

PAIRS = (
    ("the movie was good", "the movie was bad", "3.0"),
    ("여행을 간다", "영화 정말", "1"),
    ("a bus home", "a bus home", "5.000"),
    ("it rained", "", "2"),  # rejected
    ("good", "the bus", "0.5"),
    ("bad , bad", "good", "2.5"),
)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "pairs.tsv", "one\ttwo\tscore", *map("\t".join, PAIRS))


def compare(corpus: Path, **settings: Any) -> Any:
    return similarity(corpus, text="one", text_pair="two", model=str(tiny_model()), **settings)


def test_cosines_are_those_of_vectors_encoded_alone(corpus: Path) -> None:
    found = compare(corpus, pooling=["cls", "mean", "max", "pooler"], layers="all", prefix="a ")
    encoder = Encoder(str(tiny_model()))
    kept = [pair for pair in PAIRS if pair[1]]
    assert [r.text for r in found.records] == [a for a, _, _ in kept]
    assert found.rejected == 1
    views = [f"{pooling}_{layer}" for pooling in ("cls", "mean", "max") for layer in range(3)]
    assert set(found.cosines) == {*views, "pooler"}
    for name, cosines in found.cosines.items():
        for (a, b, _), cosine in zip(kept, cosines, strict=True):
            x, y = (encoder.encode_views([t], [name], prefix="a ")[name][0] for t in (a, b))
            wanted = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
            assert cosine == pytest.approx(wanted, abs=1e-5)
    assert found.cosines["mean_2"][2] == pytest.approx(1)


def test_pairs_without_a_score_are_left_out(corpus: Path) -> None:
    whole = compare(corpus, score="score", layers="-1", pooling="mean")
    more = corpus.read_text("utf-8") + "good\tbad\t\nhome\thome\t\nbus home\tbus home\t\n"
    corpus.write_text(more, "utf-8")
    found = compare(corpus, score="score", layers="-1", pooling="mean")
    assert found.agreement == whole.agreement
    assert found.cosines["mean_2"][-2:].tolist() == [1, 1]


def test_views_as_high_are_those_of_the_paired_test() -> None:
    """The same pairs tell views apart whose intervals overlap."""
    gold, noise, further = np.random.default_rng(0).normal(size=(3, 200))
    cosines = {"a": gold + 0.5 * noise, "b": gold + 0.5 * noise + 0.01 * further}
    cosines |= {"c": gold + 0.56 * noise, "d": np.zeros(200)}
    agreement, as_high = sts._agreement(cosines, gold)
    lower, best = (agreement[view]["spearman"] for view in ("c", "a"))
    # the highest is one of the two that hardly differ
    assert len(as_high) == 1
    assert {*as_high} < {"a", "b"}
    assert lower.low < best.value < lower.high


def test_what_is_written(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = compare(corpus, score="score", out=tmp_path / "out")
    table = pq.read_table(tmp_path / "out/pairs.parquet").to_pydict()
    assert table["row"] == [0, 1, 2, 4, 5]
    assert table["score"] == [3, 1, 5, 0.5, 2.5]
    assert np.array_equal(table["cosine_mean_1"], found.cosines["mean_1"])
    text = (tmp_path / "out/run.json").read_text("utf-8")
    assert "NaN" not in text
    content = json.loads(text)
    assert content["records"] == {"pairs": 5, "rejected": 1, "truncated": 0}
    assert content["agreement"].keys() == set(found.cosines)
    assert (tmp_path / "out/figures/layers.svg").read_bytes().startswith(b"<svg")
    assert "cost" not in invoke("info", tmp_path / "out").output
    monkeypatch.setattr(Encoder, "__init__", None)  # it is said before anything is computed
    with pytest.raises(OutputExistsError, match="overwrite"):
        compare(corpus, score="score", out=tmp_path / "out")


def test_scores_that_are_no_numbers(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    monkeypatch.setattr(Encoder, "__init__", None)  # it is said before anything is computed
    for scores, message in (
        (["1", "n/a", "2"], "score"),
        (["1", "1", "1"], "score="),
        (["1", "", "2"], "2 pairs; a correlation needs 3"),
    ):
        write_lines(corpus, "one\ttwo\tscore", *(f"good {s}\tbad\t{s}" for s in scores))
        with pytest.raises(UsageError, match=message):
            compare(corpus, score="score")
    assert "score='score': 1 of 3 labels are missing" in notes
    corpus.write_text("one\ttwo\tscore\n\t\t1\n", "utf-8")
    with pytest.raises(UsageError, match="pairs"):
        compare(corpus)


def test_the_command(corpus: Path) -> None:
    common = f"similarity {corpus} --text one --text-pair two --model {tiny_model()}".split()
    scored = invoke(*common, "--score", "score")
    assert scored.return_value == 3
    assert "5 pairs, 1 record rejected" in scored.output
    assert ["layer", "0", "1", "2"] in [line.split() for line in scored.output.splitlines()]
    flat = invoke(*common, "--score", "score", "--layers", "0", "--pooling", "cls")
    assert flat.output.startswith("no view agrees")
    assert "the cosines of all pairs are equal" in flat.output
    assert "pearson" in invoke(*common, "--score", "score", "--layers", "0,-1", "--all").output
    assert "mean_2" in invoke(*common, "--layers", "-1", "--pooling", "mean").output
    data = json.loads(invoke(*common, "--score", "score", "--json").stdout)
    for name, cosines in compare(corpus, layers="all").cosines.items():
        assert [pair["cosine"][name] for pair in data["pairs"]] == pytest.approx(cosines, abs=1e-6)
    ranks = [found["spearman"] for found in data["agreement"].values()]
    widths = [(rank["high"] - rank["low"]) / 2 for rank in ranks if rank["value"] is not None]
    assert f"±{number_text(max(widths))} at most" in scored.output
