"""Contrastive fine-tuning: pairs of training texts, and the default classifier on the vectors."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

import embedkit
from benchmarks.rivals import draw
from embedkit.comparison.recommendation import recommend
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.errors import UsageError
from embedkit.finetuning.contrastive import CoupleSampler, _set_layer, pair_loss, train_contrastive
from embedkit.finetuning.options import TrainingOptions
from embedkit.units.target import Target
from tests.finetune_fixtures import built, check_test_set, corpus_of, finetuned, predictions, tuned
from tests.finetuning.test_vocabulary import SOME, fold_of
from tests.store_fixtures import tiny_model


def test_two_texts_of_a_class_stand_together() -> None:
    y = np.array([0, 1, 0, 2, 1, 0, 1, 1])  # the text of class 2 is alone, and one of class 0
    sampler, couples = CoupleSampler(y, seed=5), set()
    for epoch in range(60):
        sampler.set_epoch(epoch)
        order = [*sampler]
        assert sorted(order) == [*range(len(sampler))] == [*range(8)]
        assert order == [*sampler]
        alike = [pair for pair in pairwise(order) if len({*y[[*pair]]}) == 1]
        # one of class 0, two of class 1; another if couples of a class are neighbours
        assert len(alike) >= 3
        couples |= {frozenset(pair) for pair in alike}
    # every one that there can be
    assert len(couples) == 3 + 6


@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2], [0, 1, 2, 3, 4], [1] * 5, [0]], ids=str)
def test_both_kinds_of_pairs_count_alike(labels: list[int]) -> None:
    """The loss is what a loop over all pairs gives; a batch may lack one kind, or both."""
    rows = torch.randn(len(labels), 8, generator=torch.Generator().manual_seed(0)).double()
    vectors: Any = torch.nn.functional.normalize(rows).requires_grad_()
    kinds: tuple[list[float], list[float]] = ([], [])
    for (a, y), (b, z) in combinations(zip(vectors, labels, strict=True), 2):
        kinds[y == z].append((float((a @ b).detach()) - (y == z)) ** 2)
    expected = sum(sum(kind) / max(len(kind), 1) for kind in kinds) / 2
    loss = pair_loss(vectors, torch.tensor(labels))
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-5)
    loss.backward()
    assert bool(vectors.grad.isfinite().all())


@pytest.mark.parametrize("present", [(0, 1), (0, 1, 2), (0, 2)], ids=str)
def test_the_last_layer_is_the_regression(present: tuple[int, ...]) -> None:
    """Its probabilities are those of scikit-learn; a class without records has none."""
    random = np.random.default_rng(0)
    y = random.choice(present, 60)
    rows = random.normal(size=(60, 8)) + 2 * np.eye(8)[y]
    regression = LogisticRegression().fit(rows, y)
    layer = nn.Linear(8, max(present) + 1).double()
    _set_layer(layer, regression)
    found = layer(torch.from_numpy(rows)).softmax(1).detach().numpy()
    assert np.allclose(found[:, regression.classes_], regression.predict_proba(rows))
    assert np.allclose(found.sum(1), found[:, regression.classes_].sum(1))


def test_records_of_one_class_are_refused_before_they_are_trained_on(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="of one class"):
        trained(tmp_path, np.zeros(len(SOME), int), SOME)


def trained(work: Path, y: Any, texts: list[str]) -> tuple[dict[str, torch.Tensor], Any]:
    """Weights of a fold that trains on the first eight texts."""
    model, encoded = built(tiny_model(), texts, seed=3, head="contrastive")
    with tempfile.TemporaryFile() as file:
        fold = fold_of(find_checkpoint(str(tiny_model())), work, file, objective="contrastive")
        fold = replace(fold, texts=encoded, target=Target(y, ("0", "1")))
        model, result = train_contrastive(fold, model)
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
    # by default no records are kept from the training
    default = tuned(corpus, common / "default", objective="contrastive")
    assert default.content.settings["validation"] == 0
    assert not (default.out / "inner_predictions.parquet").exists()
    # a run goes on as any other
    longer = tuned(corpus, common / "on", **settings | {"model": str(common / "run")})
    assert [history[-1]["epoch"] for history in longer.content.history.values()] == [4] * 3


NOT_OF_PAIRS: dict[str, Any] = {"head": "cnn", "cnn_widths": (2, 3), "head_learning_rate": 1e-4}
NOT_OF_PAIRS |= {"patience": 2, "batch_size": 2, "task": "regression", "freeze_layers": "all"}


@pytest.mark.parametrize(("name", "value"), NOT_OF_PAIRS.items())
def test_options_that_mean_nothing_with_pairs_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name}="):
        TrainingOptions(objective="contrastive", **{name: value})


def test_an_encoder_of_which_nothing_is_left_learns_from_labels(tmp_path: Path) -> None:
    """By the number of its layers as by ``all``; with pairs it is refused."""
    corpus = corpus_of(tmp_path / "c.tsv")
    run = tuned(corpus, tmp_path / "run", freeze_layers=2, epochs=None, objective=None)
    assert run.content.settings["objective"] == "labels"
    with pytest.raises(UsageError, match="nothing is left"):
        tuned(corpus, tmp_path / "x", freeze_layers=2, objective="contrastive")


OF_LABELS: dict[str, Any] = {"objective": "labels", "epochs": 3, "head": "cls", "patience": 2}
OF_LABELS |= {"batch_size": 4, "task": "multilabel", "level": "word", "freeze_layers": "all"}


@pytest.mark.parametrize(
    ("texts", "options", "objective"),
    [
        (320, {}, "contrastive"),
        (321, {}, "labels"),
        (960, {"objective": "contrastive"}, "contrastive"),
        # whoever says how labels are learnt wants to learn labels
        *((96, {name: value}, "labels") for name, value in OF_LABELS.items()),
        (96, {"freeze_layers": 3, "threshold": "f1", "seeds": 3}, "contrastive"),
    ],
)
def test_pairs_are_the_default_of_few_labels(
    texts: int, options: dict[str, Any], objective: str
) -> None:
    decided = TrainingOptions(**options).decided(texts=texts, classes=2, head="mean")
    assert decided.objective == objective
    # validation records are kept only where they choose something
    chooses = objective == "labels" or "threshold" in options
    assert decided.validation == (0.1 if chooses else 0)
    assert decided.epochs is not None
    # of pairs every epoch is trained
    assert objective == "labels" or decided.patience is None


# Few labels by the defaults, on real texts: the folder of real corpora may have trec.tsv and
# trec.test.tsv (questions, 6 classes), banking77.tsv and banking77.test.tsv (requests, 77 classes),
# with columns text and label.


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
    frozen = embedkit.train(tmp_path / "some.tsv", out=tmp_path / "frozen", **given)
    run = embedkit.finetune(tmp_path / "some.tsv", out=tmp_path / "tuned", **given)
    assert run.content.is_trained
    assert run.content.scores["test"]["accuracy"].value >= least
    decisions = recommend(embedkit.compare([frozen.out, run.out])).decisions
    (answer,) = [one.answer for one in decisions if one.question == "Fine-tuning"]
    assert answer != "no"
