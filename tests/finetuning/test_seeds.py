"""Several models a fold: their mean predicts, and their scores one by one are the spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedkit.cli.compare import comparison_text
from embedkit.cli.run_text import run_info_text
from embedkit.comparison.table import compare
from embedkit.dataset.extract import extract
from embedkit.dataset.read import load
from embedkit.errors import MismatchError
from embedkit.finetuning.method import _MEMBER_SEED
from embedkit.runs.split import split
from tests.finetune_fixtures import check_test_set, corpus_of, finetuned, log_of, predictions, tuned

PROBA = ["proba_0", "proba_1"]
RUNS: dict[str, Any] = {"first": {}, "second": {"seed": _MEMBER_SEED}, "both": {"seeds": 2}}


@pytest.fixture(scope="module")
def given(common: Path) -> dict[str, Any]:
    """Settings of three runs on one split: two with a seed each, and one with both seeds."""
    split(corpus_of(common / "corpus.tsv"), out=common / "split.parquet", folds=3, test=0.2)
    given = {"split": common / "split.parquet", "threshold": "f1", "validation": 0.3}
    for name, options in RUNS.items():
        tuned(common / "corpus.tsv", common / name, **given, **options)
    return given


def test_the_mean_of_a_folds_models_predicts(common: Path, given: dict[str, Any]) -> None:
    first, second, both = (predictions(common / name) for name in RUNS)
    assert not np.allclose(first[PROBA], second[PROBA], atol=1e-3)
    assert np.allclose(both[PROBA], (first[PROBA] + second[PROBA]) / 2, rtol=0, atol=1e-15)
    check_test_set(common / "both", common / "corpus.tsv")
    content = finetuned(common / "both")
    assert content.models == tuple(f"fold-{fold}{end}" for fold in range(3) for end in ("", "-1"))
    # a fold decides by one threshold, whichever model is taken out of it
    assert content.thresholds[::2] == content.thresholds[1::2]
    lines = [(line["fold"], line["member"]) for line in log_of(common / "both")]
    assert set(lines) == {(fold, member) for fold in range(3) for member in range(2)}
    # vectors of a fold are of all its models, none of which has seen it
    for name in RUNS:
        extract(common / "corpus.tsv", out=common / f"{name}.vectors", model=str(common / name))
    one, other, mean = (load(common / f"{name}.vectors", "mean_-1").X for name in RUNS)
    assert np.allclose(mean, (one + other) / 2, rtol=1e-4, atol=1e-5)


def test_the_spread_is_that_of_runs_with_one_seed_each(common: Path, given: dict[str, Any]) -> None:
    first, second, content = (finetuned(common / name) for name in RUNS)
    singles = [run.scores["cross_validation"]["log_loss"].value for run in (first, second)]
    assert first.seed_scores == {}
    # log-loss needs no threshold, which is that of the mean
    assert content.seed_scores["log_loss"] == pytest.approx(singles)
    assert "seeds" not in run_info_text(common / "first", first)
    second_line = run_info_text(common / "both", content).split("\n")[1]
    assert second_line.startswith("  on held-out records 2 seeds alone: ")
    found = compare([common / "both", common / "first"], metric="log_loss")
    assert found.as_json()["seeds"] == {"both": content.seed_scores["log_loss"]}
    cost, seconds = compare([common / "both"]).row("both").cost, content.cost.predict_seconds or 0
    assert cost is not None
    # of the six models that read a new text, two have read each record of their fold
    assert cost.milliseconds == pytest.approx(3_000 * seconds / content.records["folds"])
    low, high = sorted(singles)
    assert f"both, 2 seeds alone: log-loss {low:.3f} to {high:.3f}" in comparison_text(found)


def test_going_on_needs_as_many_seeds(common: Path, given: dict[str, Any], tmp_path: Path) -> None:
    longer = {**given, "model": str(common / "both"), "epochs": 1}
    with pytest.raises(MismatchError, match="another number of seeds: 2, now 1"):
        tuned(common / "corpus.tsv", tmp_path / "run", **longer)
    content = tuned(common / "corpus.tsv", tmp_path / "run", seeds=2, **longer).content
    assert [history[-1]["epoch"] for history in content.history.values()] == [3] * 6
