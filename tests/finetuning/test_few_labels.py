"""Fine-tuning of few labels by the defaults, on real questions and requests.

The folder of real corpora may have ``trec.tsv`` and ``trec.test.tsv`` (questions, 6 classes) and
``banking77.tsv`` and ``banking77.test.tsv`` (requests, 77 classes), with columns text and label.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.rivals import draw
from embedkit.classifiers.train import train
from embedkit.comparison.recommendation import recommend
from embedkit.comparison.table import compare
from embedkit.finetuning.run import finetune


@pytest.mark.corpora
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "labels", "folds", "least"), [("trec", 16, 5, 0.82), ("banking77", 39, 1, 0.80)]
)
def test_the_defaults_are_trained_to_their_end(
    name: str,
    labels: int,
    folds: int,
    least: float,
    corpora: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three epochs of a new head on [CLS] score 0.31 and 0.60, labels without pairs 0.77, 0.90."""
    if not (corpora / f"{name}.tsv").is_file():
        pytest.skip(f"{corpora} has no {name}.tsv")
    monkeypatch.chdir(tmp_path)  # where the vectors of a corpus go
    some, more = draw({"corpus": name, "labels": str(labels), "seed": 0}, corpora)
    some.to_csv(tmp_path / "some.tsv", sep="\t", index=False)
    more.to_csv(tmp_path / "more.tsv", sep="\t", index=False)
    given: dict[str, Any] = {"folds": folds, "test": tmp_path / "more.tsv"}
    frozen = train(tmp_path / "some.tsv", out=tmp_path / "frozen", **given)
    tuned = finetune(tmp_path / "some.tsv", out=tmp_path / "tuned", **given)
    assert tuned.content.is_trained
    assert tuned.content.scores["test"]["accuracy"].value >= least
    decisions = recommend(compare([frozen.out, tuned.out])).decisions
    (answer,) = [one.answer for one in decisions if one.question == "Fine-tuning"]
    assert answer != "no"
