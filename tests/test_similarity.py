"""Cosines of pairs against vectors encoded one by one, and correlations against SciPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from scipy.stats import pearsonr, spearmanr

from embedkit.cli.main import cli
from embedkit.cli.run_text import run_info_text
from embedkit.corpus import CorpusOptions
from embedkit.display import MINUS
from embedkit.encoding.encoder import Encoder
from embedkit.errors import OutputExistsError, UsageError
from embedkit.runs.folder import read_run
from embedkit.sts import agreement, similarity
from tests.store_fixtures import load_quickly, tiny_model

PAIRS = (
    ("the movie was good", "the movie was bad", "3.0"),
    ("여행을 간다", "영화 정말", "1"),
    ("a bus home", "a bus home", "5.000"),
    ("it rained", "", "2"),  # rejected
    ("good", "the bus", "0.5"),
    ("bad , bad", "good", "2.5"),
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Encoder, "load", load_quickly)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    lines = ["one\ttwo\tscore", *("\t".join(pair) for pair in PAIRS)]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def compare(corpus: Path, **settings: Any) -> Any:
    return similarity(corpus, text="one", text_pair="two", model=str(tiny_model()), **settings)


def test_cosines_are_those_of_vectors_encoded_alone(corpus: Path) -> None:
    found = compare(corpus, pooling=["cls", "mean", "max", "pooler"], layers="all", prefix="a ")
    encoder = Encoder.load(str(tiny_model()))
    kept = [pair for pair in PAIRS if pair[1]]
    assert [r.text for r in found.records] == [a for a, _, _ in kept]
    assert found.rejected == 1
    assert set(found.cosines) == {f"{p}_{i}" for p in ("cls", "mean", "max") for i in range(3)} | {
        "pooler"
    }
    for name, cosines in found.cosines.items():
        for (a, b, _), cosine in zip(kept, cosines, strict=True):
            x, y = (encoder.encode_views([t], [name], prefix="a ")[name][0] for t in (a, b))
            wanted = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
            assert cosine == pytest.approx(wanted, abs=1e-5)
    assert found.cosines["mean_2"][2] == pytest.approx(1)


def test_correlations_are_those_of_scipy() -> None:
    random = np.random.default_rng(0)
    gold = random.integers(0, 6, 80).astype(float)  # ties
    cosines = {"a": gold + random.normal(size=80), "b": random.normal(size=80),
               "flat": np.full(80, 0.1 + 0.2)}  # fmt: skip
    found = {one.view: one for one in agreement(cosines, gold)}
    for name in ("a", "b"):
        assert found[name].spearman.value == pytest.approx(spearmanr(cosines[name], gold)[0])
        assert found[name].pearson.value == pytest.approx(pearsonr(cosines[name], gold)[0])
        assert found[name].spearman.low < found[name].spearman.value < found[name].spearman.high
    assert found["b"].spearman.low < 0 < found["b"].spearman.high
    assert np.isnan(found["flat"].spearman.value)
    assert np.isnan(found["flat"].pearson.value)


@pytest.mark.figures
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
    assert {one["view"] for one in content["agreement"]} == set(found.cosines)
    told = run_info_text(tmp_path / "out", read_run(tmp_path / "out"))
    rank = next(one for one in found.agreement if one.view == "mean_1").spearman
    shown = f"{rank.value:.3f} ({rank.low:.3f} to {rank.high:.3f})".replace("-", MINUS)
    assert shown in told
    best = max((one for one in found.agreement if np.isfinite(one.spearman.value)),
               key=lambda one: one.spearman.value)  # fmt: skip
    assert told.startswith(f"{best.view} agrees best with the scores: Spearman ")
    assert "pairs.parquet" in told
    assert (tmp_path / "out/figures/layers.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(Encoder, "load", None)  # it is said before anything is computed
    with pytest.raises(OutputExistsError, match="overwrite=True"):
        compare(corpus, score="score", out=tmp_path / "out")


def test_memory_does_not_shape_the_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    gold = random.normal(size=50)
    cosines = {"a": gold + random.normal(size=50)}
    at_once = agreement(cosines, gold)
    monkeypatch.setattr("embedkit.runs.resampling._AT_ONCE", 1_234)
    in_parts = agreement(cosines, gold)
    for name in ("spearman", "pearson"):
        one, other = getattr(at_once[0], name), getattr(in_parts[0], name)
        assert (one.value, one.low, one.high) == pytest.approx((other.value, other.low, other.high))


def test_scores_that_are_no_numbers(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Encoder, "load", None)  # it is said before anything is computed
    text = corpus.read_text("utf-8")
    corpus.write_text(text.replace("0.5", "n/a"), "utf-8")
    with pytest.raises(UsageError, match=r"1 records have no number there, the first in row 4"):
        compare(corpus, score="score")
    corpus.write_text("one\ttwo\tscore\na\tb\t1\ngood\tbad\t1\nbus\thome\t1\n", "utf-8")
    with pytest.raises(UsageError, match="3 pairs, 1 different scores"):
        compare(corpus, score="score")
    corpus.write_text("one\ttwo\tscore\n\t\t1\n", "utf-8")
    with pytest.raises(UsageError, match="contains no pair of texts"):
        compare(corpus)


def test_the_command(corpus: Path) -> None:
    def run(*arguments: Any) -> Any:
        common = ["similarity", str(corpus), "--text", "one", "--text-pair", "two", "--model",
                  str(tiny_model())]  # fmt: skip
        return CliRunner().invoke(cli, [*common, *arguments], standalone_mode=False)

    scored = run("--score", "score")
    assert scored.return_value == 3
    assert "Spearman of the cosine with the score, 5 pairs, 1 records rejected" in (scored.output)
    rows = [line.split() for line in scored.output.splitlines()]
    assert [row[0] for row in rows if row[1:2] != ["%"] and row[0].isdigit()] == ["0", "1", "2"]
    flat = run("--score", "score", "--layers", "0", "--pooling", "cls")
    assert "the cosines of all pairs are equal" in flat.output
    plain = run("--layers", "-1", "--pooling", "mean")
    assert "mean_2" in plain.output
    found = json.loads(run("--score", "score", "--json").stdout)
    assert len(found["pairs"]) == 5
    assert found["agreement"][0]["view"] == "cls_0"


def test_published_figures(corpora: Path, monkeypatch: pytest.MonkeyPatch, minilm: Encoder) -> None:
    """all-MiniLM-L6-v2 on the English STS benchmark: Spearman 82.03, Pearson 82.74."""
    monkeypatch.setattr(Encoder, "load", lambda *_, **__: minilm)
    found = similarity(
        corpora / "stsb_en/test.tsv", reading=CorpusOptions(quoting="csv"),
        text="sentence1", text_pair="sentence2",
        score="score", layers="-1", pooling=["mean"],
    )  # fmt: skip
    assert 100 * found.agreement[0].spearman.value == pytest.approx(82.03, abs=0.02)
    assert 100 * found.agreement[0].pearson.value == pytest.approx(82.74, abs=0.02)
