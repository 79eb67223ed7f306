"""Fine-tuning end to end on a tiny model: folds, files, resumption, what goes wrong."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import fbeta_score
from transformers import AutoModel

import embedkit
from embedkit import fsio
from embedkit.checksums import seal
from embedkit.cli.compare import comparison_text
from embedkit.cli.run_text import run_info_text
from embedkit.comparison.blend import write_blend
from embedkit.comparison.compare import compare
from embedkit.comparison.content import content_of
from embedkit.comparison.report import write_report
from embedkit.corpus import CorpusOptions
from embedkit.errors import (
    DamagedError,
    EncodeError,
    MismatchError,
    OutputExistsError,
    StorageError,
    UsageError,
)
from embedkit.finetuning import results as results_module
from embedkit.finetuning import run as run_module
from embedkit.finetuning import training
from embedkit.finetuning import validation as validation_module
from embedkit.finetuning.heads import EncoderWithHead
from embedkit.finetuning.model_folder import read_model, write_model
from embedkit.finetuning.training import train_fold
from embedkit.finetuning.validation import VALIDATION_SEED, choose_thresholds, validation_records
from embedkit.predict import Predictor
from embedkit.runs.content import FinetuneRun, TrainRun, as_json
from embedkit.runs.figures import draw_training
from embedkit.runs.folder import read_run, resumable_run
from embedkit.runs.metrics import Threshold, classification_scores
from embedkit.runs.predictions import read_predictions
from embedkit.runs.split_files import TEST, Split, SplitSettings, read_split, write_split
from embedkit.runs.splits import assign_folds, split
from tests.finetune_fixtures import N, corpus_of, finetuned, log_of, predictions, tuned
from tests.processes import Process, command
from tests.run_fixtures import edit_run, train
from tests.store_fixtures import loading_quickly, tiny_model


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, a dataset of it, a split and a fine-tuned run."""
    folder = tmp_path_factory.mktemp("finetune")
    with loading_quickly():
        corpus = corpus_of(folder / "corpus.tsv")
        embedkit.extract(corpus, out=folder / "data", model=str(tiny_model()))
    split(folder / "data", out=folder / "split.parquet", folds=3, test=0.2)
    tuned(folder / "corpus.tsv", folder / "run", split=folder / "split.parquet", epochs=4)
    return folder


def settings_of(source: str) -> SplitSettings:
    return SplitSettings(source=(source,), folds=2, repeats=1, seed=0, stratified=False)


def test_every_record_is_held_out_once_by_the_split(shared: Path) -> None:
    found = predictions(shared / "run")
    assert sorted(found["row"]) == list(range(N))
    made = read_split(shared / "split.parquet")
    folds = dict(zip(made.row, made.folds[:, 0], strict=True))
    for row, fold in zip(found["row"], found["fold"], strict=True):
        assert fold == ("test" if folds[row] == TEST else str(folds[row]))
    assert np.allclose(found["proba_0"] + found["proba_1"], 1)
    assert (found["y_pred"] == np.where(found["proba_1"] > found["proba_0"], "1", "0")).all()
    assert found["id"].tolist() == [f"id{row}" for row in found["row"]]


def test_it_learns_and_the_scores_are_of_the_predictions(shared: Path) -> None:
    content = finetuned(shared / "run")
    scores = content.scores["cross_validation"]
    assert scores["accuracy"].value > scores["accuracy"].majority + 0.15
    found = predictions(shared / "run")
    for part, rows in (("cross_validation", found[found["fold"] != "test"]),
                       ("test", found[found["fold"] == "test"])):  # fmt: skip
        wanted = classification_scores(
            rows["y_true"].astype(int).to_numpy(), rows[["proba_0", "proba_1"]].to_numpy(),
            rows["y_pred"].astype(int).to_numpy(), intervals=False,
        )  # fmt: skip
        for name, score in wanted.items():
            assert content.scores[part][name].value == pytest.approx(score.value)


@pytest.mark.figures
def test_the_training_is_drawn(shared: Path, tmp_path: Path) -> None:
    draw_training(tmp_path, log_of(shared / "run"), metric="accuracy")
    assert (tmp_path / "figures/training.png").stat().st_size > 5_000


def test_the_run_looks_like_any_other(shared: Path, tmp_path: Path) -> None:
    train(shared / "data", out=tmp_path / "frozen", split=shared / "split.parquet")
    frozen, ours = read_run(tmp_path / "frozen"), read_run(shared / "run")
    assert isinstance(frozen, TrainRun)
    assert isinstance(ours, FinetuneRun)
    assert set(as_json(frozen)) - {"choices"} <= set(as_json(ours))
    assert ours.split == frozen.split
    assert ours.dataset.source == frozen.dataset.source
    assert ours.classes == frozen.classes
    assert predictions(tmp_path / "frozen").columns.tolist() == \
        predictions(shared / "run").columns.tolist()  # fmt: skip
    assert sorted(p.name for p in (shared / "run").iterdir()) == [
        "SHA256SUMS", "figures", "inner_predictions.parquet", "model", "predictions.parquet",
        "run.json", "split.parquet", "training.jsonl",
    ]  # fmt: skip
    assert (shared / "run/figures/training.png").is_file()
    told = run_info_text(shared / "run", ours)
    assert "a finetuned run" in told
    assert "cls head" in told
    assert f"accuracy {100 * ours.scores['test']['accuracy'].value:.1f} %" in told


def test_the_log_has_a_line_for_every_epoch_of_every_fold(shared: Path) -> None:
    log = log_of(shared / "run")
    watched = [line for line in log if "valid_loss" in line]
    assert [(line["fold"], line["epoch"]) for line in watched] == [
        (fold, epoch) for fold in range(3) for epoch in (1.0, 2.0, 3.0, 4.0)
    ]
    learnt = [line for line in log if "loss" in line]
    assert set(learnt[0]) == {"repeat", "fold", "seed", "step", "epoch", "loss", "learning_rate"}
    kept = finetuned(shared / "run").epochs
    for fold in range(3):
        losses = [line["valid_loss"] for line in watched if line["fold"] == fold]
        assert kept[fold] == 1 + int(np.argmin(losses))


def test_a_corpus_and_the_dataset_of_it_give_the_same_run(shared: Path, tmp_path: Path) -> None:
    split(shared / "corpus.tsv", out=tmp_path / "split.parquet", folds=3, test=0.2)
    results = [
        tuned(shared / source, tmp_path / source, split=tmp_path / "split.parquet", epochs=1)
        for source in ("corpus.tsv", "data")
    ]
    assert results[0].content.split.fingerprint == results[1].content.split.fingerprint
    assert results[0].content.split == finetuned(shared / "run").split
    first, second = ((tmp_path / s / "predictions.parquet").read_bytes()
                     for s in ("corpus.tsv", "data"))  # fmt: skip
    assert first == second


def test_the_same_run_twice_is_the_same_file_and_another_seed_is_not(
    shared: Path, tmp_path: Path
) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        tuned(shared / "corpus.tsv", tmp_path / name, seed=seed, split=shared / "split.parquet")
    first, second, other = (
        (tmp_path / n / "predictions.parquet").read_bytes() for n in ("a", "b", "c")
    )
    assert first == second != other


@pytest.mark.parametrize(
    "settings",
    [
        {"head": "pooler", "one_logit": True, "class_weight": "balanced", "label_smoothing": 0.1},
        {"head": "mean", "mix_layers": 2, "accumulate": 2, "warmup": 3},
        {"head": "cnn", "cnn_widths": (2, 30), "freeze_layers": "all"},
        {"head": "lstm", "layer_decay": 0.7, "gradient_checkpointing": True},
        {"head": "cls", "freeze_layers": "1", "validation": 0, "precision": "bf16"},
    ],
    ids=lambda settings: settings["head"],
)
def test_settings_make_runs_that_predict(
    shared: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    result = tuned(shared / "corpus.tsv", tmp_path / "run", split=shared / "split.parquet",
                   epochs=1, **settings)  # fmt: skip
    loaded = read_model(tmp_path / "run/model/fold-0")
    moving = sum(p.numel() for p in loaded.parameters())
    parameters = result.content.cost.parameters
    assert parameters < moving if "freeze_layers" in settings else parameters == moving
    assert_predicts_its_test_set(tmp_path / "run", shared)


def assert_predicts_its_test_set(run: Path, shared: Path) -> None:
    """The models on disk give the probabilities that the run wrote for its test set."""
    found = predictions(run)
    tested = found[found["fold"] == "test"]
    texts = embedkit.load(shared / "data").text
    outputs = Predictor(run, device="cpu").predict_proba([texts[r] for r in tested["row"]])
    assert np.allclose(outputs, tested[["proba_0", "proba_1"]].to_numpy(), atol=1e-6)


def test_low_rank_matrices_end_in_an_ordinary_encoder(shared: Path, tmp_path: Path) -> None:
    """What is saved has the names and shapes of the checkpoint, and little else was learnt."""
    result = tuned(shared / "corpus.tsv", tmp_path / "run", split=shared / "split.parquet", lora=2,
                   learning_rate=3e-2, epochs=4)  # fmt: skip
    loaded = read_model(tmp_path / "run/model/fold-0")
    plain = read_model(shared / "run/model/fold-0")
    assert loaded.state_dict().keys() == plain.state_dict().keys()
    encoder = AutoModel.from_pretrained(tiny_model(), add_pooling_layer=False)
    before, after = encoder.state_dict(), loaded.encoder.state_dict()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed == {name for name, part in encoder.named_parameters()
                       if part.ndim == 2 and "embeddings" not in name}  # fmt: skip
    other = read_model(tmp_path / "run/model/fold-1").encoder.state_dict()
    for name in changed:
        assert not torch.equal(other[name], after[name])  # every fold has its own
        assert torch.linalg.matrix_rank(after[name] - before[name], rtol=1e-3) <= 2
    shapes = [before[name].shape for name in changed]
    head = sum(p.numel() for n, p in loaded.named_parameters() if not n.startswith("encoder."))
    assert result.content.cost.parameters == 2 * sum(a + b for a, b in shapes) + head
    assert result.content.scores["cross_validation"]["accuracy"].value > 0.6
    assert_predicts_its_test_set(tmp_path / "run", shared)
    for wrong, message in (
        ({"lora": 0}, "lora=0: expected 1 or more"),
        ({"lora": 2, "freeze_layers": "1"}, "lora= trains no weight of the encoder"),
    ):
        with pytest.raises(UsageError, match=message):
            tuned(shared / "corpus.tsv", tmp_path / "no", **wrong)


def test_predict_answers_as_for_any_run(shared: Path, tmp_path: Path) -> None:
    names = "0=down,1=up"
    one = command("predict", shared / "run", "--text", "the movie good was 1", "--label-names",
                  names, "--json", cwd=tmp_path)  # fmt: skip
    assert one.returncode == 0, one.stderr
    told = json.loads(one.stdout)
    assert set(told["proba"]) == {"down", "up"}
    assert told["label"] == max(told["proba"], key=told["proba"].get)
    new = corpus_of(tmp_path / "new.tsv", count=7, label=False)
    many = command("predict", shared / "run", new, "--out", tmp_path / "answers.tsv", cwd=tmp_path)
    assert many.returncode == 0, many.stderr
    assert len((tmp_path / "answers.tsv").read_text().splitlines()) == 8


def test_a_damaged_model_is_told(shared: Path, tmp_path: Path) -> None:
    shutil.copytree(shared / "run", tmp_path / "run")
    weights = tmp_path / "run/model/fold-1/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    done = command("predict", tmp_path / "run", "--text", "a", cwd=tmp_path)
    assert done.returncode == 5
    assert "fold-1/model.safetensors is damaged: its SHA-256" in done.stderr
    seal(tmp_path / "run")
    with pytest.raises(DamagedError, match="fold-1 cannot be read"):
        Predictor(tmp_path / "run", device="cpu")
    shutil.rmtree(tmp_path / "run/model/fold-1")
    with pytest.raises(DamagedError, match=r"fold-1/.* cannot be read: No such file.*run again"):
        Predictor(tmp_path / "run", device="cpu")


def test_a_threshold_is_chosen_on_validation_alone(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thresholds are chosen again from the models on disk; nothing but these records is asked."""
    divided, index = [], []

    def chosen(threshold: Any, y: Any, proba: Any, held_out: Any) -> Any:
        found = choose_thresholds(threshold, y, proba, held_out)
        divided.append((y, proba, held_out, found))
        return found

    def noted(*arguments: Any, **settings: Any) -> Any:
        index.append(validation_records(*arguments, **settings))
        return index[-1]

    monkeypatch.setattr(results_module, "choose_thresholds", chosen)
    monkeypatch.setattr(validation_module, "validation_records", noted)
    result = tuned(shared / "corpus.tsv", tmp_path / "run", split=shared / "split.parquet",
                   threshold="f2", validation=0.4, epochs=1, learning_rate=1e-4)  # fmt: skip
    content, found = result.content, predictions(tmp_path / "run")
    assert "f2" in content.scores["cross_validation"]
    ((y, proba, held_out, (each, final)),) = divided
    assert content.thresholds == tuple(each)
    assert content.threshold == final
    thresholds = {**{str(i): value for i, value in enumerate(each)}, "test": final}
    assert len(set(thresholds.values())) > 1
    reached = found["proba_1"] >= found["fold"].map(thresholds)
    assert (found["y_pred"] == np.where(reached, "1", "0")).all()
    predictor = Predictor(tmp_path / "run", device="cpu")
    for one in predictor.predict(["the movie good was 1", "the movie bad was 0"]):
        assert one.label == ("1" if one.proba["1"] >= final else "0")

    # the records: disjoint by text from those that choose the epoch, and from the test set
    both, threshold = index
    made = read_split(shared / "split.parquet")
    assert set(threshold) <= set(both)
    assert not set(made.group[threshold]) & set(made.group[np.setdiff1d(both, threshold)])
    assert (made.folds[both, 0] != TEST).all()
    labels = [str(i % 2) for i in range(N)]
    assert y.tolist() == [int(labels[i]) for i in threshold]
    assert (held_out == (made.folds[threshold, 0] == np.arange(3)[:, None])).all()
    texts = [(shared / "corpus.tsv").read_text("utf-8").splitlines()[i + 1].split("\t")[0]
             for i in threshold]  # fmt: skip
    assert np.allclose(proba.mean(0), predictor.predict_proba(texts)[:, 1], atol=1e-6)


def test_no_fold_is_trained_on_records_of_a_threshold(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Any] = []

    def noted(one: Any, *arguments: Any, **settings: Any) -> Any:
        trained.append(one)
        return train_fold(one, *arguments, **settings)

    monkeypatch.setattr(run_module, "train_fold", noted)
    tuned(shared / "corpus.tsv", tmp_path / "run", split=shared / "split.parquet",
          threshold="f1", validation=0.4, epochs=1, class_weight="balanced")  # fmt: skip
    made = read_split(shared / "split.parquet")
    never = set(made.in_folds) - set().union(*(set(one.train) for one in trained))
    assert len(never) >= 0.3 * len(made.in_folds)
    for number, one in enumerate(trained):
        train, held_out = made.fold(0, number)
        assert set(one.train) == set(train) - never
        assert set(one.valid) < never - set(held_out)
        counts = np.bincount(one.target.y[one.train])
        saved = read_model(tmp_path / f"run/model/fold-{number}")
        weights = len(one.train) / (2 * counts)
        assert np.allclose(saved.config.class_weights, weights)


def test_class_weights_are_of_training_records(tmp_path: Path) -> None:
    """Each fold's, where the label is rarer in one fold than in the others."""
    labels = ["1" if i % 2 or i in (2, 4, 6) else "0" for i in range(40)]
    corpus = corpus_of(tmp_path / "c.tsv", count=40, labels=labels)
    at = np.array([0] * 10 + [1] * 15 + [2] * 15, np.int64)[:, None]
    source = embedkit.fsio.file_sha256(corpus)
    settings = SplitSettings(source=(source,), folds=3, repeats=1, seed=0, stratified=False)
    write_split(Split(np.arange(40), np.arange(40), at, settings), tmp_path / "split.parquet")
    tuned(corpus, tmp_path / "run", split=tmp_path / "split.parquet", class_weight="balanced",
          validation=0, epochs=1)  # fmt: skip
    y = np.array([int(label) for label in labels])
    found = []
    for number in range(3):
        counts = np.bincount(y[at[:, 0] != number])
        saved = read_model(tmp_path / f"run/model/fold-{number}")
        assert np.allclose(saved.config.class_weights, counts.sum() / (2 * counts))
        found.append(tuple(saved.config.class_weights))
    assert len(set(found)) > 1


def test_a_models_threshold_ignores_the_records_it_is_scored_on() -> None:
    random = np.random.default_rng(3)
    y, proba = random.integers(0, 2, 60), random.random((3, 60))
    held_out = np.arange(60) % 3 == np.arange(3)[:, None]
    threshold = Threshold.parse("macro_f1")
    each, _ = choose_thresholds(threshold, y, proba, held_out)
    for number in range(3):
        other = np.where(held_out[number], 1 - y, y)
        changed, _ = choose_thresholds(threshold, other, proba, held_out)
        assert changed[number] == each[number]
        assert changed != each


@pytest.mark.parametrize("metric", ["f1", "f7"])
def test_the_mean_of_models_has_its_own_threshold(metric: str) -> None:
    """Five simulated noisy models of a rare class: their mean is less spread than each of them."""
    random = np.random.default_rng(0)
    threshold = Threshold.parse(metric)

    def simulated(count: int) -> tuple[Any, Any]:
        y = (random.random(count) < 0.03).astype(np.int64)
        signal = -4.5 + 2.5 * y + 0.8 * random.normal(size=count)
        return y, 1 / (1 + np.exp(-(signal + 1.5 * random.normal(size=(5, count)))))

    scores = []
    for _ in range(20):
        y, proba = simulated(1_000)
        held_out = np.arange(1_000) % 5 == np.arange(5)[:, None]
        _, final = choose_thresholds(threshold, y, proba, held_out)
        of_one_model = threshold.choose(np.tile(y, 5), proba.ravel())
        test_y, test_proba = simulated(20_000)
        mean = test_proba.mean(axis=0)
        best = threshold.choose(test_y, mean)
        scores.append([fbeta_score(test_y, mean >= t, beta=threshold.beta)
                       for t in (final, of_one_model, best)])  # fmt: skip
    ours, single, best = np.mean(scores, axis=0)
    assert ours > single + 0.04
    assert ours > best - 0.03


def test_a_further_file_is_the_test_part(shared: Path, tmp_path: Path) -> None:
    more = corpus_of(tmp_path / "more.tsv", count=12)
    result = tuned(shared / "corpus.tsv", tmp_path / "run", test=more, epochs=1)
    found = predictions(tmp_path / "run")
    found = found[found["fold"] == "test"]
    assert found["row"].tolist() == list(range(12))
    assert "test" in result.content.scores
    assert result.content.records.test == 12
    assert result.content.test_set is not None
    assert (result.content.test_set.seen_texts or 0) > 0
    texts = [line.split("\t")[0] for line in more.read_text("utf-8").splitlines()[1:]]
    outputs = Predictor(tmp_path / "run", device="cpu").predict_proba(texts)
    assert np.allclose(outputs, found[["proba_0", "proba_1"]].to_numpy(), atol=1e-6)

    unlabelled = corpus_of(tmp_path / "new.tsv", count=12, label=False)
    result = tuned(shared / "corpus.tsv", tmp_path / "new", test=unlabelled, epochs=1)
    assert set(result.content.scores) == {"cross_validation"}
    found = predictions(tmp_path / "new")
    assert found["y_true"].isna().sum() == 12
    assert (found["y_true"].isna() == (found["fold"] == "test")).all()

    strange = corpus_of(tmp_path / "strange.tsv", count=4, labels=["0", "1", "2", "0"])
    with pytest.raises(UsageError, match="row 2 has the label '2', which no training record has"):
        tuned(shared / "corpus.tsv", tmp_path / "none", test=strange)
    with pytest.raises(UsageError, match="the split has a test set already; leave out test="):
        tuned(shared / "corpus.tsv", tmp_path / "none", test=more, split=shared / "split.parquet")


def test_a_further_file_may_be_of_another_kind(shared: Path, tmp_path: Path) -> None:
    further = tmp_path / "more.csv"
    further.write_text('label,text\n1,"good, movie"\n0,"the ""bad"" bus"\n', "utf-8")
    tuned(shared / "corpus.tsv", tmp_path / "run", test=further, epochs=1)
    table = predictions(tmp_path / "run")
    assert list(table[table["fold"] == "test"]["y_true"]) == ["1", "0"]
    further.write_text("label,body\n1,good\n", "utf-8")
    with pytest.raises(UsageError, match="has no such column; it has label, body"):
        tuned(shared / "corpus.tsv", tmp_path / "run", test=further, overwrite=True)


def test_a_test_file_without_labels_goes_into_the_blend(shared: Path, tmp_path: Path) -> None:
    new = corpus_of(tmp_path / "new.tsv", count=12, label=False)
    other = corpus_of(tmp_path / "other.tsv", count=14, label=False)
    split(shared / "corpus.tsv", out=tmp_path / "split.parquet", folds=2)
    given: dict[str, Any] = {"split": tmp_path / "split.parquet", "overwrite": True}
    tuned(shared / "corpus.tsv", tmp_path / "tuned", test=new, epochs=1, **given)
    for features in ("vectors", "tfidf"):
        train(shared / "data", out=tmp_path / features, test=new, features=features, **given)
    found = compare([tmp_path / n for n in ("tuned", "vectors", "tfidf")])
    assert found.table.records["test"] == 12
    assert not any(row.test for row in found.table.rows)
    assert "Test set" not in comparison_text(found.table)
    for kind in ("mean", "stacked"):
        file = tmp_path / f"{kind}.parquet"
        count = write_blend(found.chosen_blend(kind), file)
        table = pd.read_parquet(file)
        assert count == len(table)
        assert (table["fold"] == "test").sum() == 12
        assert np.allclose(table["proba_0"] + table["proba_1"], 1)
    write_report(found, tmp_path / "report.html")
    assert set(content_of(found).cases.records.fold.tolist()) == {0, 1}

    train(shared / "data", out=tmp_path / "vectors", test=other, **given)
    both = compare([tmp_path / "tuned", tmp_path / "vectors"])
    assert both.table.records["test"] == 0
    assert both.table.records["folds"] == found.table.records["folds"]


def test_regression_is_in_the_units_of_the_label(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    good = random.integers(0, 6, 80)
    lines = ["text\tlabel"]
    lines += [f"movie {' '.join(['good'] * k + ['bad'] * (5 - k))}\t{100 + 10 * k}" for k in good]
    corpus = tmp_path / "values.tsv"
    corpus.write_text("\n".join(lines) + "\n", "utf-8")
    made = split(corpus, out=tmp_path / "split.parquet", folds=2, allow_duplicates=True)
    assert made.n_folds == 2
    result = tuned(corpus, tmp_path / "run", task="regression", epochs=6,
                   split=tmp_path / "split.parquet", head="mean")  # fmt: skip
    assert result.content.scores["cross_validation"]["r2"].value > 0.3
    found = predictions(tmp_path / "run")["y_pred"]
    assert found.between(80, 170).all()
    value = next(iter(Predictor(tmp_path / "run", device="cpu").predict(["movie good"])))
    assert 80 < float(value.label) < 170
    assert value.proba == {}


def test_pairs_are_told_apart_and_long_texts_counted(tmp_path: Path) -> None:
    lines = ["a\tb\tlabel"]
    for i in range(40):
        first, second = ("good", "bad") if i % 2 else ("bad", "good")
        lines.append(f"{first} {'movie ' * (i % 30)}\t{second} bus {i % 3}\t{i % 2}")
    corpus = tmp_path / "pairs.tsv"
    corpus.write_text("\n".join(lines) + "\n", "utf-8")
    result = tuned(corpus, tmp_path / "run", epochs=1, folds=2,
                   reading=CorpusOptions(text="a", text_pair="b"))  # fmt: skip
    cut = result.content.truncated
    assert cut.limit == 24  # positions of the model
    assert 0 < cut.records < 40
    assert 0 < cut.tokens < cut.tokens_all
    predictor = Predictor(tmp_path / "run", device="cpu")
    assert predictor.takes_pairs
    there = predictor.predict_proba(["good movie"], ["bad bus"])
    swapped = predictor.predict_proba(["bad bus"], ["good movie"])
    assert not np.allclose(there, swapped)
    with pytest.raises(UsageError, match="max_length=25"):
        tuned(
            corpus, tmp_path / "long", max_length=25, reading=CorpusOptions(text="a", text_pair="b")
        )


def test_early_stopping_keeps_the_best_epoch(shared: Path, tmp_path: Path) -> None:
    result = tuned(shared / "corpus.tsv", tmp_path / "run", folds=2, epochs=14, patience=2,
                   learning_rate=5e-2)  # fmt: skip
    watched = [line for line in log_of(tmp_path / "run") if "valid_loss" in line]
    for fold in range(2):
        losses = [line["valid_loss"] for line in watched if line["fold"] == fold]
        assert len(losses) == 14 or len(losses) - 1 - int(np.argmin(losses)) == 2
    assert len(watched) < 28
    assert min(result.content.epochs) < 12


@pytest.mark.parametrize("fraction", [0.05, 0.1, 0.15, 0.3, 0.35, 0.4, 0.45, 0.5])
def test_the_fraction_for_validation_is_used(fraction: float) -> None:
    random = np.random.default_rng(0)
    group, strata = random.integers(0, 400, 600), random.integers(0, 3, 600)
    index = np.flatnonzero(random.random(600) < 0.8)
    found = validation_records(index, fraction, group=group, strata=strata, seed=1)
    rest = np.setdiff1d(index, found)
    assert len(found) / len(index) == pytest.approx(fraction, abs=0.02)
    assert len(rest) + len(found) == len(index)
    assert not set(group[found]) & set(group[rest])
    for number in range(3):
        assert (strata[found] == number).mean() == pytest.approx(
            (strata[index] == number).mean(), abs=0.05
        )


def test_validation_leaves_every_class_to_train_on() -> None:
    strata, group = np.array([0] * 20 + [1]), np.arange(21)
    for seed in range(10):
        found = validation_records(
            group, 0.5, group=group, strata=strata, seed=seed, trains=[group, group[5:]]
        )
        assert 20 not in found


def test_records_that_are_too_similar_for_validation(tmp_path: Path) -> None:
    lines = [f"{('good', 'bad')[i % 2]}\t{i % 2}" for i in range(12)]
    corpus = tmp_path / "c.tsv"
    corpus.write_text("text\tlabel\n" + "\n".join(lines) + "\n", "utf-8")
    split(corpus, out=tmp_path / "split.parquet", folds=2, allow_duplicates=True)
    made = read_split(tmp_path / "split.parquet")
    alike = np.arange(12) % 2
    write_split(replace(made, group=alike), tmp_path / "split.parquet")
    with pytest.raises(UsageError, match=r"validation=0\.1: the 6 training records of a fold are"):
        tuned(corpus, tmp_path / "run", split=tmp_path / "split.parquet")


KILLED = """
import os, signal
from embedkit import fsio
from embedkit.finetuning import run as run_module
from embedkit.finetuning import training

training._CHECKPOINT_STEPS = 2  # 2, 4, 5 (the end of the epoch), 6, 8, 10
write, seen = fsio.write_durably, []

def until(path, data, *, scratch):
    write(path, data, scratch=scratch)
    if path.name == "complete":
        seen.append(path)
        if len(seen) == 16:  # step 6 of the third fold, in its second epoch
            os.kill(os.getpid(), signal.SIGKILL)

fsio.write_durably = until
"""


@pytest.mark.slow
@pytest.mark.parametrize("extra", [(), ("--lora", "2")], ids=["weights", "lora"])
def test_killed_in_the_third_fold_it_goes_on_there(
    shared: Path, tmp_path: Path, extra: tuple[str, ...]
) -> None:
    options = [
        "finetune", shared / "corpus.tsv", "--model", tiny_model(), "--folds", "4", *extra,
        "--epochs", "2", "--learning-rate", "0.005", "--batch-size", "8", "--device", "cpu",
    ]  # fmt: skip
    arguments = [*map(str, options), "--out", "run"]
    killed = Process(*arguments, cwd=tmp_path, first=KILLED).wait()
    assert killed.returncode == -9, killed.stderr
    work = tmp_path / "run.incomplete"
    assert not (tmp_path / "run").exists()
    assert sorted(p.name for p in (work / "model").iterdir()) == ["fold-0", "fold-1"]
    assert (work / "unfinished/checkpoints/fold-2/checkpoint-6/complete").is_file()
    before = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (work / "model").rglob("*.*")}
    with pytest.raises(UsageError, match=r"is unfinished .*: run the same command again"):
        read_run(tmp_path / "run")
    damaged = Path(shutil.copytree(work, tmp_path / "damaged.incomplete"))
    for file in ("unfinished/folds/fold-0.json", "model/fold-1/head.json"):
        content = bytearray((damaged / file).read_bytes())
        content[len(content) // 2] ^= 1
        (damaged / file).write_bytes(content)

    again = command(*arguments, "--progress", "--resume", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "fold 2" not in again.stderr
    assert "fold 3 of 4, epoch 1" not in again.stderr
    assert "fold 3 of 4, epoch 2" in again.stderr
    assert "fold 4 of 4, epoch 1" in again.stderr
    for path, known in before.items():
        moved = tmp_path / "run" / path.relative_to(work)
        assert (moved.stat().st_ino, moved.stat().st_mtime_ns) == known
    assert not work.exists()

    whole = command(*map(str, options), "--out", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    made = command(*map(str, options), "--out", "damaged", cwd=tmp_path)
    assert made.stderr.count("is trained again") == 2
    assert all(f"fold {number} of 4, epoch 1" in made.stderr for number in (1, 2))
    assert "fold 3 of 4, epoch 1" not in made.stderr
    proba = [
        read_predictions(out, read_run(out).classes).proba.tolist()  # type: ignore[attr-defined]
        for out in (tmp_path / "whole", tmp_path / "damaged")
    ]
    assert proba[0] == proba[1]
    for name in ("predictions.parquet", "training.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert len(predictions(tmp_path / "run")) == N


@pytest.mark.parametrize("freeze_layers", [None, "1"])
def test_stopped_before_the_first_evaluation_it_goes_on(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, freeze_layers: str | None
) -> None:
    """Early stopping has no loss yet to judge by."""
    write = fsio.write_durably

    def interrupted(path: Path, data: Any, *, scratch: Path) -> None:
        write(path, data, scratch=scratch)
        if path.name == "complete":
            raise KeyboardInterrupt

    settings: dict[str, Any] = {"patience": 1, "folds": 2, "freeze_layers": freeze_layers}
    with monkeypatch.context() as patch:
        patch.setattr(training, "_CHECKPOINT_STEPS", 2)
        patch.setattr(fsio, "write_durably", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tuned(shared / "corpus.tsv", tmp_path / "run", **settings)
    work = tmp_path / "run.incomplete/unfinished/checkpoints/fold-0"
    assert [p.name for p in work.iterdir()] == ["checkpoint-2"]  # of 4 steps an epoch
    tuned(shared / "corpus.tsv", tmp_path / "run", **settings)
    tuned(shared / "corpus.tsv", tmp_path / "whole", **settings)
    for name in ("predictions.parquet", "training.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_gradients_are_clipped(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss a thousand times as large still gives gradients of length one."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    norms: list[float] = []

    def note(optimizer: Any, *_: Any) -> None:
        squares = [p.grad.double().pow(2).sum() for group in optimizer.param_groups
                   for p in group["params"] if p.grad is not None]  # fmt: skip
        norms.append(float(torch.stack(squares).sum().sqrt()))

    loss = EncoderWithHead.loss
    monkeypatch.setattr(EncoderWithHead, "loss", lambda *given: 1_000 * loss(*given))
    handle = register_optimizer_step_pre_hook(note)
    try:
        tuned(shared / "corpus.tsv", tmp_path / "run", epochs=1, folds=2)
    finally:
        handle.remove()
    assert len(norms) > 5
    assert norms == pytest.approx([1.0] * len(norms), rel=1e-3)


def test_the_prefix_is_part_of_the_input(
    shared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prefix gives what a corpus gives whose texts begin with it, in training and prediction."""
    monkeypatch.setattr(logging.getLogger("embedkit"), "propagate", True)
    lines = (shared / "corpus.tsv").read_text("utf-8").splitlines()
    longer = tmp_path / "longer.tsv"
    longer.write_text("\n".join([lines[0], *(f"good home {line}" for line in lines[1:])]) + "\n",
                      "utf-8")  # fmt: skip
    given: dict[str, Any] = {"epochs": 1, "folds": 2, "max_length": 10}
    with_prefix = tuned(shared / "corpus.tsv", tmp_path / "a", prefix="good home ", **given)
    tuned(longer, tmp_path / "b", **given)
    tuned(shared / "corpus.tsv", tmp_path / "c", **given)
    first, same, other = (
        predictions(tmp_path / name)["proba_1"].to_numpy() for name in ("a", "b", "c")
    )
    assert np.array_equal(first, same)
    assert not np.allclose(first, other)
    assert (with_prefix.content.tokens.prefix, with_prefix.content.tokens.max_length) == (
        "good home ", 10
    )  # fmt: skip
    cut = with_prefix.content.truncated
    assert (cut.limit, 0 < cut.records < N) == (10, True)
    assert f"{cut.records} of {N} texts" in caplog.text
    texts = ["the movie bad was 1", "the movie good was 2"]
    prefixed, plain = Predictor(tmp_path / "a", device="cpu"), Predictor(tmp_path / "b",
                                                                         device="cpu")  # fmt: skip
    assert np.array_equal(
        prefixed.predict_proba(texts), plain.predict_proba([f"good home {text}" for text in texts])
    )


def test_a_missing_pooler_is_reported_once(
    shared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("embedkit"), "propagate", True)
    tuned(shared / "corpus.tsv", tmp_path / "run", model=str(tiny_model(pooler=False)),
          head="pooler", epochs=1, folds=2)  # fmt: skip
    messages = {id(record): record.getMessage() for record in caplog.records}
    assert sum("has no pooler weights" in message for message in messages.values()) == 1


def broken_after_one_fold(folder: Path) -> bool:
    return (folder / "unfinished/folds/fold-0.json").is_file()


def test_a_loss_that_is_no_number(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, loss = tmp_path / "run.incomplete", EncoderWithHead.loss

    def spoilt(self: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return loss(self, logits, labels) * (float("nan") if broken_after_one_fold(work) else 1)

    with monkeypatch.context() as patch:
        patch.setattr(EncoderWithHead, "loss", spoilt)
        message = r"fold 2 of 3: the loss is not a number .* step 1\b.*smaller learning_rate="
        with pytest.raises(EncodeError, match=message) as caught:
            tuned(shared / "corpus.tsv", tmp_path / "run", epochs=1)
    assert caught.value.exit_code == 5
    assert (work / "model/fold-0/model.safetensors").is_file()
    stages: list[str] = []
    tuned(shared / "corpus.tsv", tmp_path / "run", epochs=1,
          progress=lambda state: stages.append(state.stage))  # fmt: skip
    assert set(stages) == {"fold 2 of 3, epoch 1 of 1", "fold 3 of 3, epoch 1 of 1"}


def test_a_learning_rate_that_explodes(shared: Path, tmp_path: Path) -> None:
    done = command("finetune", shared / "corpus.tsv", "--model", tiny_model(), "--out", "run",
                   "--learning-rate", "1e38", "--device", "cpu", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 5
    assert "the loss is not a number any more" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("writer", ["checkpoint", "model", "fold"])
def test_no_room_for_a_checkpoint(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    work = tmp_path / "run.incomplete"
    save, write = torch.save, os.write

    def full(kind: type[Exception] = OSError) -> None:
        if broken_after_one_fold(work):
            raise kind(errno.ENOSPC, "No space left on device")

    def torch_save(value: Any, path: Any) -> None:
        full(RuntimeError)  # of its archive
        save(value, path)

    def saved(*given: Any, **options: Any) -> None:
        full()
        write_model(*given, **options)

    def os_write(descriptor: int, data: Any) -> int:
        full()
        return write(descriptor, data)

    with monkeypatch.context() as patch:
        if writer == "checkpoint":
            patch.setattr(torch, "save", torch_save)
        elif writer == "model":
            patch.setattr(run_module, "write_model", saved)
        else:
            patch.setattr(os, "write", os_write)
        with pytest.raises(StorageError, match=r"No space left on device.*same command again") as e:
            tuned(shared / "corpus.tsv", tmp_path / "run", epochs=1)
    assert e.value.exit_code == 6
    assert broken_after_one_fold(work)
    assert not (tmp_path / "run").exists()
    stages: list[str] = []
    tuned(shared / "corpus.tsv", tmp_path / "run", epochs=1,
          progress=lambda state: stages.append(state.stage))  # fmt: skip
    # where the trained model could not be written, its last checkpoint is there
    again = set() if writer == "model" else {"fold 2 of 3, epoch 1 of 1"}
    assert set(stages) == again | {"fold 3 of 3, epoch 1 of 1"}
    assert (tmp_path / "run/run.json").is_file()


def test_other_settings_are_named_and_not_mixed_in(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "write_model", _refuse)
        with pytest.raises(StorageError):
            tuned(shared / "corpus.tsv", tmp_path / "run")
    with pytest.raises(UsageError, match=r"there is no unfinished run .*begin one"):
        tuned(shared / "corpus.tsv", tmp_path / "another", resume=True)
    assert not (tmp_path / "another.incomplete").exists()
    with pytest.raises(MismatchError, match=r"learning_rate: 0.005 there, 0.004 now") as error:
        tuned(shared / "corpus.tsv", tmp_path / "run", learning_rate=4e-3)
    assert "head" not in str(error.value)
    with pytest.raises(MismatchError, match=r"split: "):
        tuned(shared / "corpus.tsv", tmp_path / "run", folds=4)
    with pytest.raises(OutputExistsError, match="holds an unfinished run of another kind"):
        train(shared / "data", out=tmp_path / "run")
    tuned(shared / "corpus.tsv", tmp_path / "run", learning_rate=4e-3, overwrite=True, epochs=1)
    assert finetuned(tmp_path / "run").settings["learning_rate"] == 4e-3
    with pytest.raises(OutputExistsError, match="pass overwrite=True to replace it"):
        tuned(shared / "corpus.tsv", tmp_path / "run")


def _refuse(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_folder_that_says_nothing_is_not_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "run.incomplete").mkdir()
    (tmp_path / "run.incomplete/thing").write_text("mine")
    with (
        pytest.raises(MismatchError, match="nothing says what it was going to be"),
        resumable_run(tmp_path / "run", {"a": 1}),
    ):
        pytest.fail("it was opened")
    with resumable_run(tmp_path / "run", {"a": 1}, overwrite=True) as folder:
        assert not (folder / "thing").exists()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ({"freeze_layers": "9"}, {"freeze_layers": "1"}),
        ({"learning_rate": 1e38}, {"learning_rate": 1e-3}),
    ],
)
def test_what_a_message_advises_can_be_done_at_once(
    shared: Path, tmp_path: Path, wrong: dict[str, Any], right: dict[str, Any]
) -> None:
    """Settings that failed before anything was made leave nothing in the way of others."""
    with pytest.raises((UsageError, EncodeError), match=r"the encoder has 2|smaller learning"):
        tuned(shared / "corpus.tsv", tmp_path / "run", epochs=1, **wrong)
    assert list(tmp_path.iterdir()) == []
    tuned(shared / "corpus.tsv", tmp_path / "run", epochs=1, **right)


def test_the_last_step_may_explode_too(shared: Path, tmp_path: Path) -> None:
    """Two steps, of which warm-up makes the first nothing, and nobody watches."""
    with pytest.raises(
        EncodeError, match=r"fold 1 of 3: weights are not numbers any more\. Pass a"
    ):
        tuned(shared / "corpus.tsv", tmp_path / "run", learning_rate=1e38, validation=0,
              epochs=2, batch_size=64)  # fmt: skip


def test_a_label_that_only_the_test_part_has(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c.tsv", count=24, labels=[*["0", "1"] * 10, "2", "2", "2", "2"])
    source = embedkit.fsio.file_sha256(corpus)
    folds = np.array([[i // 2 % 2] for i in range(20)] + [[TEST]] * 4, np.int64)
    made = Split(np.arange(24), np.arange(24), folds, settings_of(source))
    write_split(made, tmp_path / "split.parquet")
    message = "label '2' does not occur in the training records of fold 0"
    with pytest.raises(UsageError, match=message):
        tuned(corpus, tmp_path / "run", split=tmp_path / "split.parquet")
    assert not (tmp_path / "run.incomplete").exists()


def test_a_fold_whose_texts_are_empty(tmp_path: Path) -> None:
    lines = ["text\tlabel"] + [f"{'' if i % 3 == 1 else f'movie {i}'}\t{i % 2}" for i in range(24)]
    corpus = tmp_path / "c.tsv"
    corpus.write_text("\n".join(lines) + "\n", "utf-8")
    source = embedkit.fsio.file_sha256(corpus)
    folds = np.array([[i % 3] for i in range(24)], np.int64)
    made = Split(np.arange(24), np.arange(24), folds, settings_of(source))
    write_split(made, tmp_path / "split.parquet")
    message = r"fold 1 of the split has no held-out record among these"
    with pytest.raises(UsageError, match=message):
        tuned(corpus, tmp_path / "run", split=tmp_path / "split.parquet")
    assert not (tmp_path / "run.incomplete").exists()


def test_rejected_records_are_counted(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c.tsv", count=20)
    with corpus.open("a", encoding="utf-8") as sink:
        sink.write("\t1\tempty\n")
    done = command("finetune", corpus, "--model", tiny_model(), "--out", "run", "--folds", "2",
                   "--epochs", "1", "--device", "cpu", "--json", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["dataset"]["rejected"] == {"empty_text": 1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"head": "tree"}, "head='tree': expected cls, pooler"),
        ({"epochs": 0}, "epochs=0: expected 1 or more"),
        ({"learning_rate": -1.0}, r"learning_rate=-1\.0: expected a number above 0"),
        ({"head_learning_rate": 0.0}, r"head_learning_rate=0\.0: expected a number above 0"),
        ({"validation": 0.6}, r"validation=0\.6: expected a fraction from 0 to 0\.5"),
        ({"cnn_widths": (0, 2)}, "cnn_widths='0,2': expected numbers of tokens such as 2,3,4"),
        ({"patience": 2, "validation": 0}, "patience= needs validation records"),
        ({"freeze_layers": "some"}, "freeze_layers='some': expected a number, embeddings or all"),
        ({"mix_layers": 9}, "mix_layers=9: .* has 2 layers"),
        ({"freeze_layers": "3"}, "freeze_layers=3: the encoder has 2 layers"),
        ({"seed": -1}, "seed=-1: expected a whole number from 0"),
        ({"precision": "fp16"}, "precision='fp16' trains on CUDA only"),
        ({"threshold": "f2", "validation": 0}, "threshold='f2' is chosen on validation records"),
        (
            {"threshold": "f2", "validation": 0.04},
            "that choose it are not of both classes. Pass a larger",
        ),
        ({"threshold": "best"}, "threshold='best': expected a probability"),
        ({"task": "regression", "class_weight": "balanced"}, "class_weight= is for classes"),
        ({"task": "regression", "one_logit": True}, "one_logit= is for classes"),
        ({"reading": CorpusOptions(label="nothing")}, "nothing"),
        ({"model": "nowhere/at-all", "offline": True}, "not in the cache"),
    ],
)
def test_what_cannot_be_used(
    shared: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        tuned(shared / "corpus.tsv", tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_options_of_the_corpus_are_refused_for_a_dataset(shared: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"limit=5: .* is a dataset, which was read with options of its own"
    ):
        tuned(shared / "data", tmp_path / "run", reading=CorpusOptions(limit=5))
    with pytest.raises(UsageError, match="is not a dataset"):
        tuned(tmp_path, tmp_path / "run")
    unlabelled = corpus_of(tmp_path / "c.tsv", label=False)
    with pytest.raises(UsageError, match=r"has no label column\. Name it with label="):
        tuned(unlabelled, tmp_path / "run")


@pytest.mark.gpu
def test_on_a_gpu(shared: Path, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    result = tuned(shared / "corpus.tsv", tmp_path / "run", device="cuda", precision="auto",
                   split=shared / "split.parquet", epochs=4)  # fmt: skip
    assert result.content.precision in ("bf16", "fp16")
    scores = result.content.scores["cross_validation"]["accuracy"]
    assert scores.value > scores.majority + 0.1
    outputs = Predictor(tmp_path / "run", device="cpu").predict_proba(["the movie good was 1"])
    assert outputs.shape == (1, 2)


@pytest.mark.parametrize("seed", range(5))
def test_shared_validation_records_are_of_all_folds(seed: int) -> None:
    """A split with the same seed must not put them all into one fold."""
    strata, group = np.arange(200) % 2, np.arange(200)
    folds = assign_folds(strata, group, 4, seed=seed)
    chosen = validation_records(
        group, 0.2, group=group, strata=strata, seed=seed + VALIDATION_SEED, trains=[]
    )
    assert len(chosen) == 40
    assert np.bincount(folds[chosen], minlength=4).min() >= 4


def test_training_that_ends_while_it_improves_is_told(shared: Path, tmp_path: Path) -> None:
    for name, epochs in (("ended", [4.0, 4.0, 1.0]), ("turned", [4.0, 3.0, 1.0])):
        run = Path(shutil.copytree(shared / "run", tmp_path / name))
        edit_run(run, epochs=epochs)
        alerts = content_of(compare([run])).alerts
        told = [dict(alert.values) for alert in alerts if alert.kind == "short_training"]
        assert told == [{"run": "ended", "models": 2, "all": 3}] * (name == "ended")
