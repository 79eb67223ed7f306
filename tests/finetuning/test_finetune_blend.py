"""Inner predictions of fine-tuned runs: of validation records, so that blends learn no leak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from embedkit.comparison.blend import blend
from embedkit.comparison.table import compare
from embedkit.finetuning import method
from embedkit.finetuning import training as training_module
from embedkit.finetuning.heads import EncoderWithHead
from embedkit.finetuning.model import read_model
from embedkit.finetuning.training import Fold, train_fold
from embedkit.predict import Predictor
from embedkit.runs.predictions import Predictions, read_predictions
from embedkit.runs.split import Split, read_split, split
from tests.finetune_fixtures import corpus_of, finetuned, tuned, write_lines

FOLDS = 3


def trained_folds(monkeypatch: pytest.MonkeyPatch) -> list[Fold]:
    """The folds of the runs that follow, as they are trained."""
    found: list[Fold] = []

    def noted(fold: Fold, *arguments: Any, **settings: Any) -> Any:
        found.append(fold)
        return train_fold(fold, *arguments, **settings)

    monkeypatch.setattr(method, "train_fold", noted)
    return found


def split_corpus(folder: Path, **settings: Any) -> tuple[Path, Path, Split]:
    corpus = corpus_of(folder / "corpus.tsv", **settings)
    file = folder / "split.parquet"
    split(corpus, out=file, folds=FOLDS, seed=1)
    return corpus, file, read_split(file)


@pytest.mark.parametrize("threshold", [None, "f1"])
def test_inner_predictions_are_of_records_that_their_model_was_not_fitted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threshold: str | None
) -> None:
    corpus, file, made = split_corpus(tmp_path)
    folds = trained_folds(monkeypatch)
    tuned(corpus, tmp_path / "run", split=file, epochs=1, validation=0.5, threshold=threshold)
    content = finetuned(tmp_path / "run")
    inner = pd.read_parquet(tmp_path / "run/inner_predictions.parquet")
    texts = [line.split("\t")[0] for line in corpus.read_text("utf-8").splitlines()[1:]]
    for number, fold in enumerate(folds):
        here = inner[inner["fold"] == str(number)]
        rows, held_out = set(here["row"]), set(made.subsets()[number][1])
        trained, valid = set(fold.train), set(fold.valid)
        assert valid <= rows
        assert (rows == valid) == (threshold is None)
        assert not rows & (trained | held_out)
        assert rows | trained | held_out <= set(made.row)
        assert not set(made.group[sorted(rows)]) & set(made.group[sorted(trained | held_out)])
        # the model of this fold gives them again, that of another one does not
        for other in range(FOLDS):
            keep = Predictor(tmp_path / "run", device="cpu")
            keep._model._models = [read_model(tmp_path / f"run/model/fold-{other}").eval()]
            proba = keep.predict_proba([texts[row] for row in here["row"]])
            same = np.allclose(proba, here[["proba_0", "proba_1"]], atol=1e-5)
            assert same == (other == number)
        if threshold is not None:
            reached = here["proba_1"] >= content.thresholds[number]
            assert (here["y_pred"] == np.where(reached, "1", "0")).all()


def test_runs_on_one_split_have_the_same_validation_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever their seeds, so that a blend of them has records to learn from."""
    corpus, file, _ = split_corpus(tmp_path)
    folds = trained_folds(monkeypatch)
    for seed in (0, 1):
        tuned(corpus, tmp_path / f"seed-{seed}", split=file, epochs=1, seed=seed, head="mean")
    first, second = folds[:FOLDS], folds[FOLDS:]
    for one, other in zip(first, second, strict=True):
        assert one.seed != other.seed
        assert np.array_equal(one.valid, other.valid)
    found = compare([tmp_path / "seed-0", tmp_path / "seed-1"])
    assert "blend: stacked" in [row.name for row in found.rows]


# Labels that no text tells, and models that know by heart what they were trained on, and are as
# sure of what they guess of other records.
N_NOISE = 240


def noise_run(folder: Path, patch: pytest.MonkeyPatch) -> tuple[Predictions, Split]:
    random = np.random.default_rng(1)
    words = ["rain", "bus", "home", "영화", "good", "bad", "movie", "was", "the"]
    labels = random.permutation(np.arange(N_NOISE) % 2)
    lines = [f"{' '.join(random.choice(words, 6))} {i}\t{y}" for i, y in enumerate(labels)]
    corpus = write_lines(folder / "noise.tsv", "text\tlabel", *lines)
    split(corpus, out=folder / "split.parquet", folds=FOLDS)
    folds = trained_folds(patch)
    guesses = random.integers(0, 2, N_NOISE)

    def by_heart(model: EncoderWithHead, texts: Sequence[Any], **_: Any) -> torch.Tensor:
        places = {text.ids.tobytes(): i for i, text in enumerate(folds[-1].texts)}
        index = np.array([places[text.ids.tobytes()] for text in texts], np.int64)
        known, y = np.isin(index, folds[-1].train), folds[-1].target.y[index]
        told = np.where(known, y, guesses[index])
        return torch.from_numpy(np.log(np.eye(2, dtype=np.float32)[told] * 0.98 + 0.01))

    for module in (method, training_module):
        patch.setattr(module, "predict_logits", by_heart)
    tuned(corpus, folder / "run", split=folder / "split.parquet", epochs=1, validation=0.3)
    return read_predictions(folder / "run", ("0", "1")), read_split(folder / "split.parquet")


def told(run: Predictions, made: Split) -> Predictions:
    """A run on the same split whose probabilities lean towards the truth, with inner ones."""
    random = np.random.default_rng(2)

    def leaning(p: Predictions, **fields: Any) -> Predictions:
        scores = 1.5 * (2 * p.y - 1) + random.normal(size=len(p.y))
        positive = 1 / (1 + np.exp(-scores))
        return replace(p.with_proba(np.stack([1 - positive, positive], axis=1)), **fields)

    parts = []
    for fold in range(FOLDS):
        train, test = (np.searchsorted(run.row, made.row[i]) for i in made.subsets()[fold])
        inner = leaning(run.take(train), fold=np.full(len(train), fold))
        parts.append(leaning(run.take(test), inner=inner))
    return Predictions.joined(parts)


def stacked_auc(*runs: Predictions) -> float:
    made = blend("stacked", {str(i): run for i, run in enumerate(runs)})
    assert made.cross_fitted
    return float(roc_auc_score(made.predictions.y, made.predictions.proba[:, 1]))


def test_a_stack_on_noise_knows_nothing_and_spoils_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, made = noise_run(tmp_path, monkeypatch)
    error = np.sqrt((N_NOISE + 1) / (12 * (N_NOISE / 2) ** 2))  # of a ROC-AUC on noise
    assert abs(stacked_auc(run) - 0.5) < 3 * error
    other = told(run, made)
    alone = roc_auc_score(other.y, other.proba[:, 1])
    assert alone > 0.9
    assert stacked_auc(run, other) > alone - 0.03
