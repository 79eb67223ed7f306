"""Contrastive fine-tuning: pairs of training texts, and the default classifier on the vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from embedkit.classifiers.estimators import EstimatorSettings
from embedkit.classifiers.tuning import Subset, fit, predict_proba
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.tokenizer import load_tokenizer
from embedkit.encoding.windows import TokenizerSettings
from embedkit.errors import UsageError
from embedkit.finetuning.contrastive import PairSampler, _set_layer, train_contrastive
from embedkit.finetuning.heads import HEADS, HeadConfig, build_model
from embedkit.finetuning.options import TrainingOptions
from embedkit.units.target import Target
from tests.finetune_fixtures import check_test_set, corpus_of, finetuned, predictions, tuned
from tests.finetuning.test_heads import plain_of
from tests.finetuning.test_vocabulary import SOME, fold_of
from tests.run_fixtures import split_of, units_with
from tests.store_fixtures import tiny_model

pytest.importorskip("sentence_transformers")

CLASSES = ("0", "1", "2")


def test_a_text_is_paired_with_one_of_its_class_and_one_of_another() -> None:
    y = np.array([0, 1, 0, 2, 1, 0, 1, 1])  # the text of class 2 has no partner in it
    sampler, seen = PairSampler(y, seed=5), set()
    for epoch in range(40):
        sampler.set_epoch(epoch)
        pairs = [divmod(pair, len(y)) for pair in sampler]
        assert len(pairs) == len(sampler)
        alike = [(first, second) for first, second in pairs if y[first] == y[second]]
        other = [(first, second) for first, second in pairs if y[first] != y[second]]
        assert sorted(first for first, _ in other) == [*range(8)]
        assert sorted(first for first, _ in alike) == [0, 1, 2, 4, 5, 6, 7]
        assert all(first != second for first, second in alike)
        seen |= {*pairs}
    # every pair that there can be
    assert len(seen) == 8 * 7


@pytest.mark.parametrize("present", [(0, 1), (0, 1, 2), (0, 2)], ids=str)
def test_the_last_layer_is_the_classifier(present: tuple[int, ...]) -> None:
    """Its probabilities are those of the pipeline, whose rows are divided by their length."""
    random = np.random.default_rng(0)
    y = random.choice(present, 60)
    rows = random.normal(size=(60, 8)) + 2 * np.eye(8)[y]
    target = Target(y, CLASSES[: max(present) + 1])
    fold = Subset(units_with(rows), target, split_of(y), np.arange(60), np.arange(0))
    fitted = fit(fold, EstimatorSettings.of(None, task="classification"), tune=True)
    layer = nn.Linear(8, len(target.classes)).double()
    _set_layer(layer, fitted.pipeline)
    # texts of one token, whose mean it is
    vectors = HEADS["contrastive"](HeadConfig(), 8)(
        torch.from_numpy(rows)[:, None], torch.ones(60, 1)
    )
    found = layer(vectors).softmax(1).detach().numpy()
    assert np.allclose(found, predict_proba(fitted.pipeline, rows, target), rtol=0, atol=1e-12)


def trained(work: Path, y: Any, texts: list[str]) -> tuple[dict[str, torch.Tensor], Any]:
    """Weights of a fold that trains on the first eight texts."""
    checkpoint = find_checkpoint(str(tiny_model()))
    encoded = load_tokenizer(checkpoint).encode(texts, settings=TokenizerSettings(24))
    fold = fold_of(checkpoint, work, objective="contrastive")
    fold = replace(fold, texts=encoded, target=Target(y, CLASSES[:2]))
    model = build_model(plain_of(checkpoint), seed=3, head="contrastive")
    split = split_of(y, folds=2)
    model, result = train_contrastive(fold, model, units=units_with([*texts]), split=split)
    return dict(model.state_dict()), result


def test_pairs_and_classifier_are_of_training_records_alone(tmp_path: Path) -> None:
    y = np.arange(len(SOME)) % 2
    first, result = trained(tmp_path / "first", y, SOME)
    assert result.epoch == 5
    losses = [line["train_loss"] for line in result.log if "train_loss" in line]
    assert len(losses) == 5
    assert losses[-1] < losses[0]
    # other labels and other texts of validation and held-out records
    y[8:] = 1 - y[8:]
    other, _ = trained(tmp_path / "other", y, [*SOME[:8], *reversed(SOME[8:])])
    assert all(torch.equal(first[name], value) for name, value in other.items())
    # and of one training record
    y[0] = 1 - y[0]
    changed, _ = trained(tmp_path / "changed", y, SOME)
    assert not torch.equal(first["classifier.weight"], changed["classifier.weight"])


def test_a_run_predicts_as_its_classifier_does(common: Path) -> None:
    corpus = corpus_of(common / "corpus.tsv")
    settings: dict[str, Any] = {"objective": "contrastive", "test": corpus, "validation": 0.2}
    result = tuned(corpus, common / "run", **settings)
    content = finetuned(common / "run")
    assert content.head == "contrastive"
    assert content.scores["cross_validation"]["accuracy"].value > 0.8
    assert content.is_trained
    check_test_set(common / "run", corpus)
    assert len(predictions(result.out)) == 2 * content.records["folds"]
    # a run goes on as any other
    longer = tuned(corpus, common / "on", **settings | {"model": str(common / "run")})
    assert [history[-1]["epoch"] for history in longer.content.history.values()] == [4] * 3


@pytest.mark.parametrize(
    ("name", "value"),
    [("head", "cnn"), ("patience", 2), ("task", "regression"), ("freeze_layers", "all")],
)
def test_options_that_mean_nothing_with_pairs_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name}="):
        TrainingOptions(objective="contrastive", **{name: value})
    assert TrainingOptions(objective="contrastive").decided(texts=80, head="mean").patience is None


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedkit.finetuning.options.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install embedkit\[contrastive\]"):
        TrainingOptions(objective="contrastive")
