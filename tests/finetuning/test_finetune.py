"""Fine-tuning end to end on a tiny model: folds, files, resumption, what goes wrong."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModel

from embedkit import CorpusOptions, Predictor, compare, errors, storage
from embedkit.classifiers import probe as probing
from embedkit.comparison.recommendation import recommend, run_notices
from embedkit.encoding.model import PRECISIONS
from embedkit.finetuning import method, training
from embedkit.finetuning import run as run_module
from embedkit.finetuning.heads import EncoderWithHead, embedding_layer
from embedkit.finetuning.method import choose_thresholds
from embedkit.finetuning.model import read_model
from embedkit.finetuning.options import TrainingOptions
from embedkit.runs.metrics import Threshold
from embedkit.runs.predictions import fold_names, read_predictions
from embedkit.runs.run import FinetuneRun
from embedkit.runs.scores import reported_scores
from embedkit.runs.split import TEST, read_split, split, validation_records
from embedkit.storage import seal
from tests.encoding.test_other_families import build
from tests.finetune_fixtures import (
    LEARNING,
    N,
    check_test_set,
    corpus_of,
    finetuned,
    predictions,
    tuned,
    write_lines,
)
from tests.models import slow
from tests.processes import ends_with, invoke
from tests.run_fixtures import edit_run, train
from tests.store_fixtures import extract_tiny, flip, tiny_model


@pytest.fixture(scope="module")
def shared(common: Path) -> Path:
    """A folder with a corpus, a dataset of it, a split and a fine-tuned run."""
    extract_tiny(corpus_of(common / "corpus.tsv"), common / "data")
    split(common / "data", out=common / "split.parquet", folds=3, test=0.2)
    tuned_on(common, common / "run", split=common / "split.parquet", epochs=4, **LEARNING)
    return common


def tuned_on(shared: Path, out: Path, **settings: Any) -> FinetuneRun:
    return tuned(shared / "corpus.tsv", out, **settings).content


def test_every_record_is_held_out_once_by_the_split(shared: Path) -> None:
    found = predictions(shared / "run")
    assert sorted(found["row"]) == list(range(N))
    folds = read_split(shared / "split.parquet").folds[found["row"]]
    assert found["fold"].tolist() == fold_names(folds)
    assert np.allclose(found["proba_0"] + found["proba_1"], 1)
    assert (found["y_pred"] == np.where(found["proba_1"] > found["proba_0"], "1", "0")).all()
    assert found["id"].tolist() == [f"id{row}" for row in found["row"]]
    assert found["y_true"].tolist() == [str(row % 2) for row in found["row"]]
    # it learns, and the scores are of the predictions
    scores = finetuned(shared / "run").scores
    accuracy = scores["cross_validation"]["accuracy"]
    assert accuracy.value > accuracy.majority + 0.15
    expected = reported_scores(read_predictions(shared / "run", ("0", "1")))
    for subset in ("cross_validation", "test"):  # with intervals of NaN
        assert str(sorted(scores[subset].items())) == str(sorted(expected[subset].items()))


def test_a_corpus_and_the_dataset_of_it_give_the_same_run(shared: Path, tmp_path: Path) -> None:
    made = split(shared / "corpus.tsv", folds=3, test=0.2)
    with torch.no_grad(), torch.inference_mode():  # as a notebook may begin
        content = tuned(shared / "data", tmp_path / "run", split=made, epochs=4, **LEARNING).content
    assert content.split == finetuned(shared / "run").split
    first, second = (f / "run/predictions.parquet" for f in (shared, tmp_path))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    "settings",
    [
        {"head": "pooler", "one_logit": True, "class_weight": "balanced", "label_smoothing": 0.1},
        {"head": "mean", "accumulate": 2, "warmup": 3},
        {"head": "cnn", "cnn_widths": (2, 30), "freeze_layers": "all"},
        {"head": "lstm", "gradient_checkpointing": True},
        {"head": "cls", "freeze_layers": "1", "validation": 0, "precision": "bf16"},
    ],
)
def test_settings_make_runs_that_predict(
    shared: Path, tmp_path: Path, settings: dict[str, Any], calls_of: Any
) -> None:
    settings |= {"split": shared / "split.parquet", "epochs": 1}
    calls = calls_of(EncoderWithHead, "forward")
    content = tuned_on(shared, tmp_path / "run", **settings)
    half = settings.get("precision") == "bf16"  # in training, and in predictions
    assert {call.result.logits.dtype for call in calls} == {PRECISIONS["bf16" if half else "fp32"]}
    loaded = read_model(tmp_path / "run/model/fold-0")
    moving = sum(p.numel() for p in loaded.parameters())
    parameters = content.cost.parameters
    assert parameters < moving if "freeze_layers" in settings else parameters == moving
    check_test_set(tmp_path / "run", shared / "corpus.tsv")


def test_low_rank_matrices_end_in_an_ordinary_encoder(shared: Path, tmp_path: Path) -> None:
    """What is saved has the names and shapes of the checkpoint, and little else was learnt."""
    settings: dict[str, Any] = LEARNING | {"lora": 2, "learning_rate": 3e-2, "epochs": 4}
    settings["split"] = shared / "split.parquet"
    content = tuned_on(shared, tmp_path / "run", **settings)
    loaded = read_model(tmp_path / "run/model/fold-0")
    assert loaded.state_dict().keys() == read_model(shared / "run/model/fold-0").state_dict().keys()
    encoder = AutoModel.from_pretrained(tiny_model(), add_pooling_layer=False)
    before, after = encoder.state_dict(), loaded.encoder.state_dict()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    matrices = [name for name, part in encoder.named_parameters() if part.ndim == 2]
    assert changed == {name for name in matrices if "embeddings" not in name}
    other = read_model(tmp_path / "run/model/fold-1").encoder.state_dict()
    for name in changed:
        assert not torch.equal(other[name], after[name])  # every fold has its own
        assert torch.linalg.matrix_rank(after[name] - before[name], rtol=1e-3) <= 2
    shapes = [before[name].shape for name in changed]
    head = sum(p.numel() for n, p in loaded.named_parameters() if not n.startswith("encoder."))
    assert content.cost.parameters == 2 * sum(a + b for a, b in shapes) + head
    assert content.scores["cross_validation"]["accuracy"].value > 0.6
    check_test_set(tmp_path / "run", shared / "corpus.tsv")


def test_a_damaged_model_is_refused(shared: Path, tmp_path: Path) -> None:
    shutil.copytree(shared / "run", tmp_path / "run")
    weights = tmp_path / "run/model/fold-1/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    done = ends_with(5, "predict", tmp_path / "run", "--text", "a", cwd=tmp_path)
    assert "fold-1/model.safetensors" in done.stderr
    for damage in (lambda: seal(tmp_path / "run"), lambda: shutil.rmtree(weights.parent)):
        damage()
        with pytest.raises(errors.DamagedError, match="fold-1"):
            Predictor(tmp_path / "run", device="cpu")


def test_a_threshold_is_chosen_on_validation_alone(
    shared: Path, tmp_path: Path, calls_of: Any
) -> None:
    """Thresholds are chosen again from the models on disk; nothing but these records is asked."""
    chosen = calls_of(method, "choose_thresholds")
    divided = calls_of(method, "validation_records")
    assert TrainingOptions(threshold=0.3) == TrainingOptions(threshold="0.3")
    settings: dict[str, Any] = {"threshold": "f2", "validation": 0.4, "learning_rate": 1e-4}
    settings |= {"split": shared / "split.parquet", "epochs": 1}
    content = tuned_on(shared, tmp_path / "run", **settings)
    found = predictions(tmp_path / "run")
    assert "f2" in content.scores["cross_validation"]
    (((_, y, proba, held_out), _, (each, final)),) = chosen
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
    both, threshold = (call.result for call in divided[-2:])
    made = read_split(shared / "split.parquet")
    assert set(threshold) <= set(both)
    assert not set(made.group[threshold]) & set(made.group[np.setdiff1d(both, threshold)])
    assert (made.folds[both] != TEST).all()
    assert y.tolist() == [i % 2 for i in threshold]
    assert (held_out == (made.folds[threshold] == np.arange(3)[:, None])).all()
    texts = pd.read_csv(shared / "corpus.tsv", sep="\t")["text"][threshold].tolist()
    assert np.allclose(proba.mean(0), predictor.predict_proba(texts), atol=1e-5)


def test_class_weights_are_of_training_records(tmp_path: Path) -> None:
    """Each fold's, where the label is rarer in one fold than in the others."""
    labels = ["1" if i % 2 or i in (2, 4, 6) else "0" for i in range(40)]
    corpus = corpus_of(tmp_path / "c.tsv", count=40, labels=labels)
    at = np.repeat([0, 1, 2], [10, 15, 15])
    given: dict[str, Any] = {"class_weight": "balanced", "validation": 0, "epochs": 1}
    tuned(corpus, tmp_path / "run", split=replace(split(corpus, folds=3), folds=at), **given)
    assert not (tmp_path / "run/inner_predictions.parquet").exists()
    y = np.array([int(label) for label in labels])
    found = []
    for number in range(3):
        counts = np.bincount(y[at != number])
        saved = read_model(tmp_path / f"run/model/fold-{number}")
        assert np.allclose(saved.config.class_weights, counts.sum() / (2 * counts))
        found.append(tuple(saved.config.class_weights))
    assert len(set(found)) > 1


def test_thresholds_ignore_held_out_records_and_the_mean_has_its_own() -> None:
    random = np.random.default_rng(3)
    y, proba = random.integers(0, 2, 60), random.random((3, 60))
    held_out = np.arange(60) % 3 == np.arange(3)[:, None]
    threshold = Threshold.parse("macro_f1")
    both = np.stack([1 - proba, proba], axis=2)
    each, final = choose_thresholds(threshold, y, both, held_out)
    assert final == threshold.choose(y, proba.mean(axis=0)) != threshold.choose(y, proba[0])
    for number in range(3):
        other = np.where(held_out[number], 1 - y, y)
        changed, _ = choose_thresholds(threshold, other, both, held_out)
        assert changed[number] == each[number]
        assert changed != each


def test_a_further_file_is_the_test_set(shared: Path, tmp_path: Path) -> None:
    more = corpus_of(tmp_path / "more.tsv", count=12)
    content = tuned_on(shared, tmp_path / "run", test=more, epochs=1)
    found = predictions(tmp_path / "run").query("fold == 'test'")
    assert found["row"].tolist() == list(range(12))
    assert "test" in content.scores
    assert content.test_set
    assert content.test_set.seen_texts
    check_test_set(tmp_path / "run", more)

    unlabelled = corpus_of(tmp_path / "new.tsv", count=12, label=False)
    content = tuned_on(shared, tmp_path / "new", test=unlabelled, epochs=1)
    assert set(content.scores) == {"cross_validation"}
    found = predictions(tmp_path / "new")
    assert (found["y_true"].isna() == (found["fold"] == "test")).all()

    strange = corpus_of(tmp_path / "strange.tsv", count=4, labels=["0", "1", "2", "0"])
    with pytest.raises(errors.UsageError, match="row 2"):
        tuned_on(shared, tmp_path / "none", test=strange)
    with pytest.raises(errors.UsageError, match="test="):
        tuned_on(shared, tmp_path / "none", test=more, split=shared / "split.parquet")


def test_regression_is_in_the_units_of_the_label(tmp_path: Path) -> None:
    good = np.random.default_rng(0).integers(0, 6, 80)
    lines = [
        f"movie {i}{' good' * k}{' bad' * (5 - k)}\t{100 + 10 * k}" for i, k in enumerate(good)
    ]
    corpus = write_lines(tmp_path / "values.tsv", "text\tlabel", *lines)
    result = tuned(corpus, tmp_path / "run", task="regression", folds=2, epochs=6, head="mean")
    assert result.content.scores["cross_validation"]["r2"].value > 0.3
    found = predictions(tmp_path / "run")["y_pred"]
    assert found.between(80, 170).all()
    value = next(iter(Predictor(tmp_path / "run", device="cpu").predict(["movie good"])))
    assert 80 < float(value.label) < 170
    assert value.proba == {}


def test_pairs_have_an_order_and_long_texts_are_counted(tmp_path: Path) -> None:
    lines = ["a\tb\tlabel"]
    for i in range(40):
        first, second = ("good", "bad") if i % 2 else ("bad", "good")
        lines.append(f"{first} {'movie ' * (i % 30)}\t{second} bus {i % 3}\t{int(i % 5 == 0)}")
    corpus = write_lines(tmp_path / "pairs.tsv", *lines)
    reading = CorpusOptions(text="a", text_pair="b")
    content = tuned(corpus, tmp_path / "run", epochs=1, folds=2, reading=reading).content
    assert content.tokens.max_length == 24  # positions of the model
    assert 0 < content.truncated["records"] < content.truncated["records_all"] == 40
    assert 0 < content.truncated["tokens"] < content.truncated["tokens_all"]
    share = f"({100 * content.truncated['records'] / 40:.3g} %)"
    assert share in next(run_notices(compare([tmp_path / "run"]))).sentence
    assert share in invoke("compare", tmp_path / "run", "--all").output.replace("\n  ", " ")
    # a single model holds a fifth out, and has cut as many
    alone = tuned(corpus, tmp_path / "alone", epochs=1, folds=1, reading=reading).content
    assert (alone.records["folds"], alone.truncated) == (8, content.truncated)
    # the baseline has the frequencies of all that are trained on, whatever is held back
    labels = np.array([line[-1] for line in lines[1:]])
    held_out = predictions(tmp_path / "alone")["row"].to_numpy()
    assert alone.prior[1] == (np.delete(labels, held_out) == "1").mean()
    right = np.eye(2)[(labels[held_out] == "1").astype(int)] @ np.log(alone.prior)
    assert alone.scores["cross_validation"]["log_loss"].majority == pytest.approx(-right.mean())
    predictor = Predictor(tmp_path / "run", device="cpu")
    there = predictor.predict_proba(["good movie"], ["bad bus"])
    swapped = predictor.predict_proba(["bad bus"], ["good movie"])
    assert not np.allclose(there, swapped)
    with pytest.raises(errors.UsageError, match="max_length=25"):
        tuned(corpus, tmp_path / "long", max_length=25, reading=reading)


@pytest.mark.parametrize("fraction", [0.05, 0.15, 0.35, 0.5])
def test_the_fraction_for_validation_is_used(fraction: float) -> None:
    random = np.random.default_rng(0)
    group, strata = random.integers(0, 400, 600), random.integers(0, 3, 600)
    index = np.flatnonzero(random.random(600) < 0.8)
    found = validation_records(index, fraction, group=group, strata=strata, seed=1)
    rest = np.setdiff1d(index, found)
    assert len(found) / len(index) == pytest.approx(fraction, abs=0.02)
    assert len(rest) + len(found) == len(index)
    assert not set(group[found]) & set(group[rest])
    shares = [np.bincount(strata[some]) / len(some) for some in (found, index)]
    assert shares[0] == pytest.approx(shares[1], abs=0.05)


def test_validation_leaves_every_class_to_train_on() -> None:
    strata, group = np.array([0] * 20 + [1]), np.arange(21)
    pairs = np.minimum(group // 2, 9)  # the record of the rare class goes with another
    for seed in range(10):
        given: dict[str, Any] = {"strata": strata, "seed": seed}
        found = validation_records(group, 0.5, group=group, trains=[group, group[5:]], **given)
        assert 20 not in found
        found = validation_records(group, 0.5, group=pairs, trains=[group], **given)
        assert not {18, 19, 20} & set(found)


def check_same_run(run: Path, whole: Path) -> None:
    for name in ("predictions.parquet", "training.jsonl"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize("freeze_layers", ["1", *slow(None)])
def test_stopped_before_the_first_evaluation_it_goes_on(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, freeze_layers: str | None
) -> None:
    """Early stopping has no loss yet to judge by."""
    write = storage.write_durably

    def interrupted(path: Path, data: Any) -> None:
        write(path, data)
        if path.name == "complete":
            raise KeyboardInterrupt

    settings = LEARNING | {"patience": 1, "folds": 2, "freeze_layers": freeze_layers}
    with monkeypatch.context() as patch:
        patch.setattr(training, "_CHECKPOINT_STEPS", 2)
        patch.setattr(training, "_CHECKPOINT_SECONDS", 0)
        patch.setattr(storage, "write_durably", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tuned_on(shared, tmp_path / "run", **settings)
    work = tmp_path / "run.incomplete/_unfinished/checkpoints/fold-0"
    assert [p.name for p in work.iterdir()] == ["checkpoint-2"]  # of 4 steps an epoch
    for name in ("run", "whole"):
        tuned_on(shared, tmp_path / name, **settings)
    check_same_run(tmp_path / "run", tmp_path / "whole")


def test_interrupted_after_its_best_epoch_it_keeps_that_one(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls_of: Any
) -> None:
    """A checkpoint holds the weights of the best epoch beside its own; none is written before."""
    settings: dict[str, Any] = LEARNING | {"folds": 1, "select_by": "accuracy", "epochs": 8}
    best = tuned_on(shared, tmp_path / "whole", **settings).epochs[0]
    assert best < 6
    written = calls_of(storage, "write_durably")

    def checkpoints() -> int:
        return [call.arguments[0].name for call in written].count("complete")

    def interrupted(_: Any) -> None:
        if checkpoints() == 6:
            raise KeyboardInterrupt

    tuned_on(shared, tmp_path / "again", **settings)
    assert not checkpoints()  # within a minute
    monkeypatch.setattr(training, "_CHECKPOINT_SECONDS", 0)
    with pytest.raises(KeyboardInterrupt):
        tuned_on(shared, tmp_path / "run", progress=interrupted, **settings)
    monkeypatch.undo()
    assert tuned_on(shared, tmp_path / "run", **settings).epochs == (best,)
    check_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("task", ["classification", *slow("regression")])
def test_a_finished_run_goes_on(shared: Path, tmp_path: Path, task: str) -> None:
    """With steps of nothing its models stay as they are; each fold goes on with its own."""
    given: dict[str, Any] = {"task": task, "split": shared / "split.parquet", "head": "mean"}
    before = tuned_on(shared, tmp_path / "run", **given)
    longer = {**given, "model": str(tmp_path / "run"), "epochs": 1}
    nothing: dict[str, Any] = {"learning_rate": 1e-20, "head_learning_rate": 1e-20}
    same = tuned_on(shared, tmp_path / "same", **longer, **nothing)
    first, second = (predictions(tmp_path / name) for name in ("run", "same"))
    columns = [name for name in first if name.startswith("proba")] or ["y_pred"]
    assert np.allclose(first[columns], second[columns], atol=1e-5)
    assert [epoch["epoch"] for epoch in same.history["fold-1"]] == [1, 2, 3]
    assert list(same.epochs) == [3, 3, 3]
    assert (same.cost.fit_seconds or 0) > (before.cost.fit_seconds or 0)
    assert same.dataset.model == before.dataset.model
    for name in same.models:  # also rows of tokens that no text of the fold contains
        layers: list[Any] = [
            embedding_layer(read_model(tmp_path / run / "model" / name).encoder)
            for run in ("run", "same")
        ]
        assert torch.allclose(layers[0].weight, layers[1].weight, atol=1e-5)
    del longer["head"]  # that of the run
    more: dict[str, Any] = {"dropout": 0.3}
    if task == "classification":
        more |= {"class_weight": "balanced", "label_smoothing": 0.2}
    assert tuned_on(shared, tmp_path / "on", **longer, **more).head == "mean"
    config = read_model(tmp_path / "on/model/fold-1").config
    assert config.dropout == 0.3
    assert config.label_smoothing == more.get("label_smoothing", 0)
    assert len(config.class_weights) == (2 if "class_weight" in more else 0)
    assert not np.allclose(first[columns], predictions(tmp_path / "on")[columns], atol=1e-5)
    others: dict[str, dict[str, Any]] = {
        "split": {"split": None},
        "head": {"head": "cls"},
        "validation": {"validation": 0.2},
        "text column": {"text": "id"},
        "input": {"prefix": "q: "},
    }
    if task == "classification":
        others |= {"task": {"task": "multilabel"}, "one_logit": {"one_logit": True}}
    for name, other in others.items():
        with pytest.raises(errors.MismatchError, match=f"another {name}"):
            tuned_on(shared, tmp_path / "no", **{**longer, **other})
    with pytest.raises(errors.UsageError, match="is a run, which has no revisions"):
        tuned_on(shared, tmp_path / "no", **longer, revision="main")


def test_a_run_that_still_improves_says_so(shared: Path, tmp_path: Path) -> None:
    content = finetuned(shared / "run")

    def history(*losses: float) -> dict[str, Any]:
        epochs = tuple({"epoch": i + 1.0, "valid_loss": loss} for i, loss in enumerate(losses))
        return dict.fromkeys(content.models, epochs)

    for losses, trained in {
        (1.0, 0.8, 0.7): False,
        (0.7, 0.69, 0.688): True,
        (1.0, 0.5, 0.6): True,
        (1.0,): False,
        (): True,  # without validation nothing is known
    }.items():
        assert replace(content, history=history(*losses)).is_trained is trained
    line = "embedkit finetune c.tsv --epochs 3 --out=runs/a --head cnn --seed 1"
    expected = "embedkit finetune ../c.tsv --head cnn --seed 1 --model r --split r/split.parquet"
    assert replace(content, command=line).going_on("r", "../c.tsv", "o") == f"{expected} --out o"
    line = "embedkit finetune a/c.tsv --test b/c.tsv --text c.tsv"
    expected = "embedkit finetune ../c.tsv --test b/c.tsv --text c.tsv --model r --split"
    assert replace(content, command=line).going_on("r", "../c.tsv", "o").startswith(expected)
    assert content.going_on("r", "c.tsv", "o") == ""  # made in Python

    train(shared / "data", out=tmp_path / "frozen", split=shared / "split.parquet")
    shutil.copytree(shared / "run", tmp_path / "run")
    table = predictions(tmp_path / "run").assign(proba_0=0.5, proba_1=0.5, y_pred="0")
    table.to_parquet(tmp_path / "run/predictions.parquet")
    answers = []
    for losses in ((1.0, 0.5, 0.6), (1.0, 0.8, 0.7)):
        edit_run(tmp_path / "run", history=history(*losses), command=line)
        found = recommend(compare([tmp_path / "frozen", tmp_path / "run"]))
        answers += [one for one in found.decisions if one.question == "Fine-tuning"]
    no, unknown = answers
    assert no.answer in ("no", "not proven")
    assert not no.command
    assert (unknown.answer, unknown.tone) == ("not trained to its end", "open")
    assert "not trained to its end: 3 of 3 models were still improving" in unknown.sentence
    assert "--model" in unknown.command
    assert found.next == unknown.command
    assert recommend(compare([tmp_path / "run"])).next == unknown.command
    said = invoke("info", tmp_path / "run").output.splitlines()[0]
    assert said.endswith("not trained to its end")


def stages_of(shared: Path, out: Path, **settings: Any) -> set[str]:
    """What a run does, as it reports."""
    stages: set[str] = set()
    tuned_on(shared, out, progress=lambda state: stages.add(state.stage), **settings)
    return stages


@pytest.mark.parametrize(
    "damaged", ["model/fold-1/model.safetensors", *slow("_unfinished/folds/fold-1.json")]
)
def test_a_damaged_fold_is_trained_again(
    shared: Path, tmp_path: Path, once_before: Any, damaged: str
) -> None:
    once_before(run_module, "write_results", _refuse)
    with pytest.raises(OSError, match="No space left on device"):
        tuned_on(shared, tmp_path / "run", epochs=1)
    flip(tmp_path / "run.incomplete" / damaged)
    assert stages_of(shared, tmp_path / "run", epochs=1) == {"fold 2 of 3, epoch 1 of 1"}


def test_the_prefix_is_part_of_the_input(shared: Path, tmp_path: Path, notes: list[str]) -> None:
    """A prefix gives what a corpus gives whose texts begin with it, in training and prediction."""
    head, *lines = (shared / "corpus.tsv").read_text("utf-8").splitlines()
    longer = write_lines(tmp_path / "longer.tsv", head, *(f"good home {line}" for line in lines))
    given: dict[str, Any] = {"epochs": 1, "folds": 2, "max_length": 10}
    with_prefix = tuned_on(shared, tmp_path / "a", prefix="good home ", **given)
    tuned(longer, tmp_path / "b", **given)
    tuned_on(shared, tmp_path / "c", **given)
    first, same, other = (predictions(tmp_path / name)["proba_1"] for name in "abc")
    assert first.equals(same)
    assert not np.allclose(first, other)
    cut = with_prefix.truncated["records"]
    assert (with_prefix.tokens.max_length, 0 < cut < N) == (10, True)
    assert f"{cut} of {N} texts" in " ".join(notes)
    texts = ["the movie bad was 1", "the movie good was 2"]
    prefixed, plain = (Predictor(tmp_path / name, device="cpu") for name in ("a", "b"))
    wanted = plain.predict_proba([f"good home {text}" for text in texts])
    assert np.array_equal(prefixed.predict_proba(texts), wanted)
    for _ in range(2):
        prefixed.predict(["the movie " * 9])
    assert " ".join(notes).count("1 text cut at 10 tokens: the model reads no more") == 1


def test_what_cannot_be_encoded_again_is_told_before_any_fit(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors of a fine-tuned run are of several models, and other datasets may hold no texts."""
    extract_tiny(shared / "corpus.tsv", tmp_path / "bare", store_text=False)
    extract_tiny(shared / "corpus.tsv", tmp_path / "folds", model=str(shared / "run"))
    monkeypatch.setattr(probing, "cross_validate", None)
    for name, message in (("bare", "the stored texts again"), ("folds", "a model for each fold")):
        with pytest.raises(errors.UsageError, match=message):
            probing.probe(tmp_path / name, out=tmp_path / "probe", control="random-weights")
    assert not list(tmp_path.glob("probe*"))


def test_a_loss_that_is_not_a_number(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, loss = tmp_path / "run.incomplete", EncoderWithHead.loss

    def spoilt(self: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        second = (work / "_unfinished/folds/fold-0.json").is_file()
        return loss(self, logits, labels) * (float("nan") if second else 1)

    with monkeypatch.context() as patch:
        patch.setattr(EncoderWithHead, "loss", spoilt)
        with pytest.raises(errors.EncodeError, match=r"fold 2 of 3.*learning_rate=") as caught:
            tuned_on(shared, tmp_path / "run", epochs=1)
    assert caught.value.exit_code == 5
    assert (work / "model/fold-0/model.safetensors").is_file()
    with pytest.raises(errors.OutputExistsError, match="unfinished work"):
        extract_tiny(shared / "corpus.tsv", tmp_path / "run")
    stages = stages_of(shared, tmp_path / "run", epochs=1)
    assert stages == {"fold 2 of 3, epoch 1 of 1", "fold 3 of 3, epoch 1 of 1"}
    # two steps, of which warm-up makes the first nothing, and nobody watches
    steps: dict[str, Any] = {"batch_size": 64, "epochs": 2}
    for given in ({"epochs": 1}, steps | {"validation": 0}, steps | {"validation": 0.2}):
        with pytest.raises(errors.EncodeError, match=r"fold 1 of 3.*learning_rate="):
            tuned_on(shared, tmp_path / "none", learning_rate=1e38, **given)
    # a run that fails before its first model leaves nothing
    assert not list(tmp_path.glob("none*"))


def test_other_settings_are_named_and_not_mixed_in(
    shared: Path, tmp_path: Path, once_before: Any
) -> None:
    once_before(method, "write_model", _refuse)
    with pytest.raises(errors.StorageError):
        tuned_on(shared, tmp_path / "run")
    with pytest.raises(errors.MismatchError, match=r"learning_rate: 0.008") as error:
        tuned_on(shared, tmp_path / "run", learning_rate=4e-3)
    assert "head" not in str(error.value)
    with pytest.raises(errors.MismatchError, match="split"):
        tuned_on(shared, tmp_path / "run", folds=4)
    with pytest.raises(errors.MismatchError, match=r"model\.safetensors"):
        tuned_on(shared, tmp_path / "run", model=str(tiny_model(seed=2)))
    with pytest.raises(errors.OutputExistsError, match=r"run.incomplete"):
        train(shared / "data", out=tmp_path / "run")
    tuned_on(shared, tmp_path / "run", learning_rate=4e-3, overwrite=True, epochs=1)
    assert finetuned(tmp_path / "run").settings["learning_rate"] == 4e-3
    with pytest.raises(errors.OutputExistsError, match="overwrite=True"):
        tuned_on(shared, tmp_path / "run")


def _refuse() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


UNUSABLE: list[tuple[str, Any, dict[str, Any]]] = [
    ("learning_rate", -1.0, {}),
    ("cnn_widths", (0, 2), {}),
    ("patience", 2, {"validation": 0}),
    ("freeze_layers", "some", {}),
    ("freeze_layers", "²", {}),
    ("validation", 1e-310, {}),
    ("freeze_layers", "3", {}),
    ("lora", 2, {"freeze_layers": "1"}),
    ("precision", "fp16", {}),
    ("threshold", "f2", {"validation": 0}),
    ("threshold", "f2", {"validation": 0.04}),
    ("class_weight", "balanced", {"task": "regression"}),
    ("stride", 2, {}),
    ("stride", 30, {"on_long": "window"}),
    ("max_length", 5, {"on_long": "error"}),
    ("select_by", "f1", {"validation": 0}),
    ("limit", 5, {"source": "data", "reading": CorpusOptions(limit=5)}),
    ("nothing", None, {"reading": CorpusOptions(label="nothing")}),
    ("nowhere", None, {"model": "nowhere/at-all", "offline": True}),
]


@pytest.mark.parametrize(("name", "value", "more"), UNUSABLE)
def test_what_cannot_be_used(
    shared: Path, tmp_path: Path, name: str, value: Any, more: dict[str, Any]
) -> None:
    source = more.pop("source", "corpus.tsv")
    given = more if "reading" in more or "model" in more else {name: value, **more}
    with pytest.raises(errors.UsageError, match=name):
        tuned(shared / source, tmp_path / "run", **given)
    assert list(tmp_path.iterdir()) == []


def test_an_encoder_with_a_decoder_is_refused(shared: Path, tmp_path: Path) -> None:
    model = build("t5", tmp_path / "t5")
    with pytest.raises(errors.ModelError, match="t5, an encoder with a decoder, which is not"):
        tuned(shared / "corpus.tsv", tmp_path / "run", model=str(model))
    assert [path.name for path in tmp_path.iterdir()] == ["t5"]
