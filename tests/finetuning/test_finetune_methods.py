"""Windows, epochs, frozen layers, the optimizer; held-out and inner predictions; several seeds."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import f1_score
from transformers import TrainerState

import embedkit
from embedkit import Predictor, compare, split
from embedkit.choices import HEADS
from embedkit.cli.compare import comparison_text
from embedkit.cli.run_text import run_info_text
from embedkit.encoding.windows import TokenizerSettings
from embedkit.errors import MismatchError, UsageError
from embedkit.finetuning import method, training
from embedkit.finetuning.heads import EncoderWithHead
from embedkit.finetuning.model import freeze, padded, predict_logits, read_model
from embedkit.finetuning.options import TrainingOptions
from tests.finetune_fixtures import (
    built,
    check_test_set,
    corpus_of,
    finetuned,
    log_of,
    predictions,
    tuned,
    write_lines,
)
from tests.run_fixtures import train
from tests.store_fixtures import extract_tiny, tiny_model

PROBA = ["proba_0", "proba_1"]


@pytest.fixture(scope="module")
def corpus(common: Path) -> Path:
    file = corpus_of(common / "corpus.tsv")
    split(file, out=common / "split.parquet", folds=2, test=0.2)
    return file


def on_split(corpus: Path, out: Path, **settings: Any) -> Any:
    given = {"epochs": 1, "split": corpus.with_name("split.parquet"), **settings}
    return tuned(corpus, out, **given).content


# windows


@pytest.mark.parametrize("head", [*HEADS, "contrastive"])
def test_windows_are_combined_as_in_a_plain_loop(head: str) -> None:
    """Each window by itself through the encoder; then what the head's description says."""
    some = [f"movie good {'rain bus home 영화 ' * count} bad the" for count in range(7)]
    windows = TokenizerSettings(10, "window", 3)
    model, texts = built(tiny_model(), some, tokens=windows, head=head, n_outputs=3)
    assert np.diff(texts.text_windows).max() > 3
    for text, logits in zip(texts, predict_logits(model, texts), strict=True):
        vectors, tokens = [], []
        for start, stop in pairwise(text.window_ends):
            seen = text.seen[start:stop]
            ids = torch.from_numpy(text.ids[seen].astype(np.int64))[None]
            types = torch.from_numpy(text.type_ids[seen].astype(np.int64))[None]
            mask = torch.ones_like(ids)
            with torch.inference_mode():
                hidden = model.encoder(
                    input_ids=ids, attention_mask=mask, token_type_ids=types
                ).last_hidden_state
                vectors.append(model.head(hidden, mask, mask, [1])[0])
            tokens.append(hidden[0][text.owned[start:stop]])
        stacked = torch.stack(vectors)
        special = {"mean": torch.cat(tokens).mean(0), "cnn": stacked.amax(0)}
        special["contrastive"] = special["mean"] / special["mean"].norm()
        vector = special.get(head, stacked.mean(0))
        assert sum(map(len, tokens)) == len(text.ids)
        with torch.inference_mode():
            assert torch.allclose(model.classifier(vector), logits, atol=1e-5)


# epochs


@pytest.mark.parametrize(
    ("select_by", "patience", "most", "given"),
    [
        ("macro_f1", 3, 6, {"validation": 0.4, "learning_rate": 1e-2}),
        ("loss", 2, 14, {"learning_rate": 5e-2, "batch_size": 8}),
    ],
)
def test_the_best_epoch_is_kept(
    corpus: Path, tmp_path: Path, select_by: str, patience: int, most: int, given: dict[str, Any]
) -> None:
    given |= {"epochs": most, "patience": patience, "select_by": select_by}
    content = on_split(corpus, tmp_path / "run", **given)
    for number, epochs in enumerate(content.history.values()):
        losses = [e["valid_loss"] if select_by == "loss" else -e["valid_score"] for e in epochs]
        assert content.epochs[number] == 1 + int(np.argmin(losses))
        assert len(losses) == most or len(losses) - 1 - int(np.argmin(losses)) == patience
        assert select_by != "loss" or len(losses) < most
    # the kept model is that of this epoch
    inner = pd.read_parquet(tmp_path / "run/inner_predictions.parquet")
    for number, epochs in enumerate(content.history.values()):
        here = inner[inner["fold"] == str(number)]
        kept = epochs[int(content.epochs[number]) - 1]
        score = f1_score(here["y_true"], here["y_pred"], average="macro")
        assert kept["valid_score"] == pytest.approx(score)
        assert kept["valid_accuracy"] == pytest.approx((here["y_true"] == here["y_pred"]).mean())
        true = here[PROBA].to_numpy()[np.arange(len(here)), here["y_true"].astype(int)]
        assert kept["valid_loss"] == pytest.approx(-np.log(true).mean(), abs=1e-5)


def test_a_metric_that_is_not_defined_chooses_nothing(tmp_path: Path) -> None:
    """No validation record is of the rare class, of which too few are there."""
    labels = ["1" if i in (3, 7, 11) else "0" for i in range(60)]
    file = corpus_of(tmp_path / "corpus.tsv", labels=labels)
    with pytest.raises(UsageError, match="select_by='roc_auc'"):
        tuned(file, tmp_path / "run", folds=2, select_by="roc_auc", validation=0.05)
    assert not (tmp_path / "run.incomplete").exists()  # nothing was trained


def test_loss_and_accuracy_of_training_are_those_of_a_plain_loop(
    corpus: Path, tmp_path: Path, calls_of: Any
) -> None:
    calls = calls_of(EncoderWithHead, "forward")
    content = on_split(corpus, tmp_path / "run", epochs=3, batch_size=8)
    seen = [
        (found.loss.item(), int((found.logits.argmax(1) == y["labels"]).sum()), len(y["labels"]))
        for _, y, found in calls
        if found.loss is not None
    ]
    epochs = [epoch for model in content.history.values() for epoch in model]
    assert [len(model) for model in content.history.values()] == [3, 3]
    per_epoch = len(seen) // 6
    for number, epoch in enumerate(epochs):
        some = seen[number * per_epoch : (number + 1) * per_epoch]
        texts = sum(count for _, _, count in some)
        assert epoch["train_loss"] == pytest.approx(sum(v * n for v, _, n in some) / texts)
        assert epoch["train_accuracy"] == pytest.approx(sum(right for _, right, _ in some) / texts)
    lines = [line for line in log_of(tmp_path / "run") if "train_accuracy" in line]
    assert [(line["fold"], line["epoch"]) for line in lines] == [*product(range(2), (1, 2, 3))]
    assert [line["train_loss"] for line in lines] == [epoch["train_loss"] for epoch in epochs]


def test_the_optimizer_has_the_rates_and_decays_of_the_options(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    seen: set[tuple[float, float, int]] = set()
    rates: list[float] = []

    def note(optimizer: Any, *_: Any) -> None:
        seen.update(
            (group["initial_lr"], group["weight_decay"], sum(p.numel() for p in group["params"]))
            for group in optimizer.param_groups
        )
        rates.append(optimizer.param_groups[0]["lr"] / optimizer.param_groups[0]["initial_lr"])

    monkeypatch.setattr(training, "embedding_layer", lambda _: None)  # all rows are trained
    handle = register_optimizer_step_pre_hook(note)
    try:
        given = {"learning_rate": 1e-3, "head_learning_rate": 3e-2, "batch_size": 2, "epochs": 2}
        on_split(corpus, tmp_path / "run", **given, accumulate=3, validation=0, warmup=0.5)
        on_split(corpus, tmp_path / "one", **given, accumulate=3, validation=0, warmup=1)
    finally:
        handle.remove()
    sizes: dict[tuple[float, float], int] = {}
    for name, parameter in read_model(tmp_path / "run/model/fold-0").named_parameters():
        rate = 1e-3 if name.startswith("encoder.") else 3e-2
        key = (rate, 0.01 if parameter.ndim == 2 else 0.0)
        sizes[key] = sizes.get(key, 0) + parameter.numel()
    wanted = sorted((*key, count) for key, count in sizes.items())
    assert np.allclose(sorted(seen), wanted, rtol=1e-5, atol=0)
    # up to the whole rate in half of all steps, or in one, and down again; 24 texts in 4 steps
    half, one = [0, 1 / 4, 2 / 4, 3 / 4, 1, 3 / 4, 2 / 4, 1 / 4], [0, *np.arange(7, 0, -1) / 7]
    assert np.allclose(rates, [*half, *half, *one, *one])


def test_of_equal_epochs_the_first_is_the_best() -> None:
    entries = [{"eval_chosen_by": v, "step": step} for step, v in enumerate([2.0, 1.0, 1.0, 2.0])]
    state = TrainerState(log_history=entries)
    for metric, best in (("loss", (1, 2)), ("rmse", (1, 2)), ("accuracy", (0, 3))):
        assert training._best_epoch(state, TrainingOptions(select_by=metric)) == best


# frozen layers


def test_frozen_layers_have_no_dropout() -> None:
    model, texts = built(tiny_model(), ["good movie", "bad"], head="cls", dropout=0.0)
    batch = padded(texts)
    for freeze_layers in ("2", "all", "1"):
        freeze(model, freeze_layers)
        model.train()
        same = torch.equal(*[model(**batch).logits for _ in range(2)])
        assert same == (freeze_layers != "1")


# held-out records of one training (``folds=1``), and test files


@pytest.fixture(scope="module")
def folder(corpus: Path) -> Path:
    extract_tiny(corpus, corpus.with_name("data"))
    for folds in (1, 5):
        split(corpus, out=corpus.with_name(f"{folds}.parquet"), folds=folds, test=0.2)
    return corpus.parent


def test_its_training_is_that_of_the_first_of_five(folder: Path, tmp_path: Path) -> None:
    """Of both kinds of runs: same model, same held-out predictions, same baseline."""
    for folds in (1, 5):
        file = folder / f"{folds}.parquet"
        tuned(folder / "corpus.tsv", tmp_path / f"tuned-{folds}", split=file, epochs=1)
        train(folder / "data", out=tmp_path / f"frozen-{folds}", split=file, tune=True)
    for kind in ("tuned", "frozen"):
        one, five = (predictions(tmp_path / f"{kind}-{folds}") for folds in (1, 5))
        five = five[(five["fold"] == "0") | ((five["fold"] == "test") & (kind == "frozen"))]
        one = one[(one["fold"] == "0") | (kind == "frozen")]
        assert one["row"].tolist() == five["row"].tolist()
        assert np.allclose(one[PROBA], five[PROBA], atol=1e-5)
    for folds in (5, 1):  # an encoder costs the same, frozen or trained, and every model counts
        found = compare([tmp_path / f"tuned-{folds}", tmp_path / f"frozen-{folds}"])
        costs: list[Any] = [found.row(f"{kind}-{folds}").cost for kind in ("tuned", "frozen")]
        seconds, frozen = (cost.encode_seconds for cost in costs)
        assert frozen
        assert seconds == pytest.approx(folds * frozen)
    made = pd.read_parquet(folder / "1.parquet")
    assert found.counts["folds"] == len(made.query("fold == 0"))
    assert "blend: stacked" in [row.name for row in found.rows]
    prior = found.predictions["majority"].proba[0]
    assert prior[1] == pytest.approx((made.query("fold == -2")["row"] % 2).mean(), abs=0.1)
    fold = Predictor(tmp_path / "tuned-1", device="cpu")
    assert len(fold._model._models) == 1
    assert fold.predict_proba(["the movie good was 1"]).shape == (1, 2)


@pytest.fixture(scope="module")
def more(folder: Path) -> Path:
    """A further file, some of whose texts are short."""
    lines = [f"{'good' if i % 2 else 'bad'}{' movie' * (i % 3)}\t{i % 2}" for i in range(40)]
    return write_lines(folder / "more.tsv", "text\tlabel", *lines)


def test_a_test_file_has_its_own_choice_of_records(
    folder: Path, tmp_path: Path, more: Path
) -> None:
    given: dict[str, Any] = {"test": more, "test_sample": 9, "test_min_chars": 5, "folds": 2}
    content = tuned(folder / "corpus.tsv", tmp_path / "tuned", epochs=1, **given).content
    table = predictions(tmp_path / "tuned")
    rows = table[table["fold"] == "test"]["row"].tolist()
    assert len(rows) == 9
    assert all(row % 3 for row in rows)
    assert content.records["test"] == 9
    everything = tuned(folder / "corpus.tsv", tmp_path / "all", epochs=1, test=more, folds=2)
    assert everything.content.records["test"] == 40


def test_a_test_set_may_be_a_dataset(folder: Path, tmp_path: Path, more: Path) -> None:
    extract_tiny(more, tmp_path / "more")
    given: dict[str, Any] = {"epochs": 1, "folds": 2}
    for name, test in (("file", more), ("dataset", tmp_path / "more")):
        tuned(folder / "corpus.tsv", tmp_path / name, test=test, **given)
    one, other = (predictions(tmp_path / name) for name in ("file", "dataset"))
    assert one.equals(other)
    compare([tmp_path / "file", tmp_path / "dataset"])  # the same test set
    with pytest.raises(UsageError, match="test_sample=3"):
        tuned(folder / "corpus.tsv", tmp_path / "a", test=tmp_path / "more", test_sample=3, **given)
    extract_tiny(more, tmp_path / "pairs", text_pair="label")
    with pytest.raises(UsageError, match="pairs of texts"):
        tuned(folder / "corpus.tsv", tmp_path / "a", test=tmp_path / "pairs", **given)


# inner predictions: of validation records, so that blends learn no leak


@pytest.mark.parametrize("threshold", [None, "f1"])
def test_inner_predictions_are_of_records_that_their_model_was_not_fitted_on(
    corpus: Path, tmp_path: Path, calls_of: Any, threshold: str | None
) -> None:
    calls = calls_of(method, "train_fold")
    made = split(corpus, folds=3)
    content = on_split(corpus, tmp_path / "run", split=made, validation=0.5, threshold=threshold)
    inner = pd.read_parquet(tmp_path / "run/inner_predictions.parquet")
    texts = pd.read_csv(corpus, sep="\t")["text"]
    assert len(calls) == 3
    for number, call in enumerate(calls):
        here = inner[inner["fold"] == str(number)]
        rows, held_out = set(here["row"]), set(made.subsets()[number][1])
        trained, valid = (set(getattr(call.arguments[0], name)) for name in ("train", "valid"))
        assert valid <= rows
        assert (rows == valid) == (threshold is None)
        assert not rows & (trained | held_out)
        assert rows | trained | held_out <= set(made.row)
        assert not set(made.group[sorted(rows)]) & set(made.group[sorted(trained | held_out)])
        # the model of this fold gives them again, that of another one does not
        for other in range(3):
            keep = Predictor(tmp_path / "run", device="cpu")
            keep._model._models = [read_model(tmp_path / f"run/model/fold-{other}").eval()]
            proba = keep.predict_proba(texts[here["row"]].tolist())
            assert np.allclose(proba, here[PROBA], atol=1e-5) == (other == number)
        if threshold is not None:
            reached = here["proba_1"] >= content.thresholds[number]
            assert (here["y_pred"] == np.where(reached, "1", "0")).all()


def test_runs_on_one_split_have_the_same_validation_records(
    corpus: Path, tmp_path: Path, calls_of: Any
) -> None:
    """Whatever their seeds, so that a blend of them has records to learn from."""
    calls = calls_of(method, "train_fold")
    for seed in (0, 1):
        on_split(corpus, tmp_path / f"seed-{seed}", seed=seed, head="mean", validation=0.3)
    folds = [call.arguments[0] for call in calls]
    for one, other in zip(folds[:2], folds[2:], strict=True):
        assert one.seed != other.seed
        assert np.array_equal(one.valid, other.valid)
    found = compare([tmp_path / "seed-0", tmp_path / "seed-1"])
    assert "blend: stacked" in [row.name for row in found.rows]


# several models a fold: their mean predicts, and their scores one by one are the spread

RUNS: dict[str, Any] = {"first": {}, "second": {"seed": method._MEMBER_SEED}, "both": {"seeds": 2}}


@pytest.fixture(scope="module")
def given(common: Path, corpus: Path) -> dict[str, Any]:
    """Settings of three runs on one split: two with a seed each, and one with both seeds."""
    split(corpus, out=common / "3.parquet", folds=3, test=0.2)
    given = {"split": common / "3.parquet", "epochs": 2, "threshold": "f1", "validation": 0.3}
    for name, options in RUNS.items():
        on_split(corpus, common / name, **given, **options)
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
        extract_tiny(common / "corpus.tsv", common / f"{name}.vectors", model=str(common / name))
    one, other, mean = (embedkit.load(common / f"{name}.vectors", "mean_-1").X for name in RUNS)
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


def test_going_on_needs_as_many_seeds(
    common: Path, corpus: Path, given: dict[str, Any], tmp_path: Path
) -> None:
    longer = {**given, "model": str(common / "both"), "epochs": 1}
    with pytest.raises(MismatchError, match="another number of seeds: 2, now 1"):
        on_split(corpus, tmp_path / "run", **longer)
    content = on_split(corpus, tmp_path / "run", seeds=2, **longer)
    assert [history[-1]["epoch"] for history in content.history.values()] == [3] * 6
