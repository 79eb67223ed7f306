"""Several seeds, temperature scaling, windows, and what chooses the epoch."""

from __future__ import annotations

import json
import logging
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from sklearn.metrics import f1_score, log_loss

import embedkit
from embedkit import fsio
from embedkit.choices import HEADS
from embedkit.cli.run_text import run_info_text
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.tokenization import TokenizerSettings
from embedkit.encoding.vocabulary import load_tokenizer
from embedkit.errors import UsageError
from embedkit.finetuning import run as run_module
from embedkit.finetuning.batches import n_seen, padded, predict_logits
from embedkit.finetuning.calibration import fit_temperature, with_temperature
from embedkit.finetuning.heads import EncoderWithHead, build_model
from embedkit.finetuning.model_folder import read_model
from embedkit.finetuning.training import train_fold
from embedkit.predict import Predictor
from embedkit.runs.folder import read_run
from embedkit.runs.metrics import classification_scores
from embedkit.runs.splits import split
from tests.finetune_fixtures import corpus_of, finetuned, log_of, predictions, tuned
from tests.store_fixtures import tiny_model
from tests.test_heads import plain_of

PROBA = ["proba_0", "proba_1"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("methods")
    file = corpus_of(folder / "corpus.tsv")
    split(file, out=folder / "split.parquet", folds=2, test=0.2)
    return file


def on_split(corpus: Path, out: Path, **settings: Any) -> Any:
    given = {"epochs": 1, "split": corpus.with_name("split.parquet"), **settings}
    return tuned(corpus, out, **given).content


# seeds


def test_seeds_are_runs_of_their_own_whose_probabilities_are_averaged(
    corpus: Path, tmp_path: Path
) -> None:
    content = on_split(corpus, tmp_path / "both", seed=3, seeds=2, threshold="f1", validation=0.5)
    assert content.models == ("fold-0", "fold-1", "fold-0-seed-1", "fold-1-seed-1")
    assert len(content.thresholds) == 2
    alone = [
        on_split(corpus, tmp_path / str(seed), seed=seed, threshold="f1", validation=0.5)
        for seed in (3, 4)
    ]
    assert [one.seed for one in content.seeds] == [3, 4]
    for ours, theirs in zip(content.seeds, alone, strict=True):
        assert {subset: set(found) for subset, found in ours.scores.items()} == {
            subset: set(found) for subset, found in theirs.scores.items()
        }
        for subset, found in ours.scores.items():
            for name, value in found.items():
                assert value == pytest.approx(theirs.scores[subset][name].value, nan_ok=True)
    both, first, second = (predictions(tmp_path / name)[PROBA] for name in ("both", "3", "4"))
    assert not np.allclose(first, second)
    assert np.allclose(both, (first + second) / 2, atol=1e-12)
    inner = [pd.read_parquet(tmp_path / name / "inner_predictions.parquet")[PROBA]
             for name in ("both", "3", "4")]  # fmt: skip
    assert np.allclose(inner[0], (inner[1] + inner[2]) / 2, atol=1e-12)
    texts = ["the movie good was 1", "the movie bad was 0"]
    found, *each = (Predictor(tmp_path / name, device="cpu").predict_proba(texts)
                    for name in ("both", "3", "4"))  # fmt: skip
    assert np.allclose(found, np.mean(each, axis=0), atol=1e-7)
    told = run_info_text(tmp_path / "both", finetuned(tmp_path / "both"))
    assert "accuracy, % of each seed (test)" in told
    assert not alone[0].seeds


def test_seeds_resume(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[str] = []

    def until(fold: Any, *arguments: Any, **settings: Any) -> Any:
        trained.append(fold.name)
        if fold.name == stop:
            raise KeyboardInterrupt
        return train_fold(fold, *arguments, **settings)

    monkeypatch.setattr(run_module, "train_fold", until)
    stop = "fold 1 of 2, seed 2 of 2"
    with pytest.raises(KeyboardInterrupt):
        on_split(corpus, tmp_path / "run", seeds=2)
    stop = ""
    on_split(corpus, tmp_path / "run", seeds=2)
    assert trained[3:] == ["fold 1 of 2, seed 2 of 2", "fold 2 of 2, seed 2 of 2"]
    on_split(corpus, tmp_path / "whole", seeds=2)
    for name in ("predictions.parquet", "inner_predictions.parquet", "training.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


# temperature scaling


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_the_temperature_is_found(classes: int, factor: float) -> None:
    random = np.random.default_rng(0)
    logits = random.normal(scale=1.5, size=(20_000, classes))
    y = np.array([random.choice(classes, p=p) for p in softmax(logits, axis=1)])
    shown = softmax(logits * factor, axis=1)
    found = fit_temperature(shown, y)
    assert found == pytest.approx(factor, rel=0.05)
    fixed = with_temperature(shown, found)
    assert np.allclose(fixed, softmax(logits * factor / found, axis=1))
    assert np.array_equal(fixed.argmax(1), shown.argmax(1))
    assert log_loss(y, fixed) < log_loss(y, shown)
    before, after = (
        classification_scores(y, p, p.argmax(1), intervals=False)["calibration_error"].value
        for p in (shown, fixed)
    )
    assert after < 0.02 < 0.1 < before
    # without the softening of targets, which 20,000 records hardly notice
    plain = minimize_scalar(
        lambda t: -log_softmax(logits * factor / t, axis=1)[np.arange(len(y)), y].mean(),
        bounds=(0.01, 100), method="bounded",
    )  # fmt: skip
    assert found == pytest.approx(plain.x, rel=1e-2)


def test_records_that_are_all_right_do_not_make_a_model_infinitely_sure() -> None:
    shown = np.array([[0.9, 0.1]] * 6)
    fixed = with_temperature(shown, fit_temperature(shown, np.zeros(6, int)))
    assert 0.9 < fixed[0, 0] < 0.95


@pytest.mark.parametrize("one_logit", [False, True])
def test_an_overconfident_model_is_calibrated_on_its_validation_records(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_logit: bool
) -> None:
    """Logits of a trained model times 200; nothing but the validation records tells by how much."""

    def overconfident(fold: Any, *arguments: Any, **settings: Any) -> Any:
        model, trained = train_fold(fold, *arguments, **settings)
        with torch.no_grad():
            for parameter in model.classifier.parameters():
                parameter.mul_(200)
        return model, trained

    monkeypatch.setattr(run_module, "train_fold", overconfident)
    given: dict[str, Any] = {"validation": 0.3, "one_logit": one_logit}
    on_split(corpus, tmp_path / "before", **given)
    content = on_split(corpus, tmp_path / "after", calibrate=True, **given)
    before, after = predictions(tmp_path / "before"), predictions(tmp_path / "after")
    inner = pd.read_parquet(tmp_path / "before/inner_predictions.parquet")
    scaled = []
    for fold, temperature in enumerate(content.calibration.temperatures):
        here = inner[inner["fold"] == str(fold)]
        wanted = fit_temperature(here[PROBA].to_numpy(), here["y_true"].astype(int).to_numpy())
        assert temperature == pytest.approx(wanted, rel=1e-3)
        assert temperature > 10
        ours, theirs = (t[t["fold"] == str(fold)][PROBA].to_numpy() for t in (after, before))
        assert np.allclose(ours, with_temperature(theirs, temperature), atol=1e-5)
        scaled.append(temperature)
    calibration = content.calibration
    plain = finetuned(tmp_path / "before").scores
    for subset in ("cross_validation", "test"):
        for name in ("calibration_error", "log_loss", "brier"):
            known = plain[subset][name].value
            assert calibration.before[subset][name] == pytest.approx(known, abs=1e-4)
            assert calibration.after[subset][name] == content.scores[subset][name].value
    known = calibration.before["cross_validation"]["log_loss"]
    assert calibration.after["cross_validation"]["log_loss"] < known
    texts = ["the movie good was 1", "the movie bad was 0"]
    sure, fixed = (Predictor(tmp_path / name, device="cpu") for name in ("before", "after"))
    each = [
        model.outputs(
            predict_logits(
                model,
                sure._model._tokenizer.encode(texts, settings=sure._model._settings),
                pad_id=0,
            )
        ).numpy()
        for model in sure._model._models
    ]
    wanted = np.mean([with_temperature(p, t) for p, t in zip(each, scaled, strict=True)], axis=0)
    assert np.allclose(fixed.predict_proba(texts), wanted, atol=1e-5)
    assert "without temperature scaling" in run_info_text(tmp_path / "after", content)


# windows

LENGTH, STRIDE = 10, 3
WINDOWS = TokenizerSettings(LENGTH, "window", STRIDE)


def long_texts() -> list[str]:
    return [f"movie good {'rain bus home 영화 ' * count} bad the" for count in range(7)]


@pytest.mark.parametrize("head", HEADS)
def test_windows_are_combined_as_in_a_plain_loop(head: str) -> None:
    """Each window by itself through the encoder; then what the head's description says."""
    checkpoint = find_checkpoint(str(tiny_model()))
    tokenizer = load_tokenizer(checkpoint)
    texts = tokenizer.encode(long_texts(), settings=WINDOWS)
    assert max(len(text.windows) for text in texts) > 3
    model = build_model(plain_of(checkpoint), seed=3, head=head, n_outputs=3).eval()
    found = predict_logits(model, texts, pad_id=tokenizer.pad_id)
    for text, logits in zip(texts, found, strict=True):
        vectors, tokens = [], []
        for window in text.windows:
            ids = torch.from_numpy(window.ids.astype(np.int64))[None]
            types = torch.from_numpy(window.type_ids.astype(np.int64))[None]
            mask = torch.ones_like(ids)
            with torch.inference_mode():
                hidden = model.encoder(
                    input_ids=ids, attention_mask=mask, token_type_ids=types
                ).last_hidden_state
                vectors.append(model.head(hidden, mask)[0])
            tokens.append(hidden[0] if window.owned is None else hidden[0][window.owned])
        stacked = torch.stack(vectors)
        vector = {
            "mean": torch.cat(tokens).mean(0), "cnn": stacked.amax(0),
        }.get(head, stacked.mean(0))  # fmt: skip
        assert sum(map(len, tokens)) == text.n_kept
        with torch.inference_mode():
            assert torch.allclose(model.classifier(vector), logits, atol=1e-5)


@pytest.mark.parametrize(("head", "view"), [("cls", "cls_-1"), ("mean", "mean_-1")])
def test_windows_mean_what_they_mean_in_extract(tmp_path: Path, head: str, view: str) -> None:
    """A frozen encoder with a linear head is a linear model on the vectors of ``extract``."""
    corpus = tmp_path / "c.tsv"
    lines = [f"{text} {i}\t{i % 2}" for i, text in enumerate(long_texts() * 4)]
    corpus.write_text("text\tlabel\n" + "\n".join(lines) + "\n", "utf-8")
    given: dict[str, Any] = {"max_length": LENGTH, "on_long": "window", "stride": STRIDE}
    content = tuned(corpus, tmp_path / "run", head=head, freeze_layers="all", folds=2, epochs=1,
                    **given).content  # fmt: skip
    tokens = content.tokens
    assert (tokens.max_length, tokens.on_long, tokens.stride) == (LENGTH, "window", STRIDE)
    assert content.truncated.records == 0
    embedkit.extract(corpus, out=tmp_path / "data", model=str(tiny_model()), precision="fp32",
                     pooling=["cls", "mean"], **given)  # fmt: skip
    X = embedkit.load(tmp_path / "data", view=view).X
    table, each = predictions(tmp_path / "run"), []
    for fold in range(2):
        last = read_model(tmp_path / f"run/model/fold-{fold}").classifier
        weight, bias = (p.detach().numpy() for p in (last.weight, last.bias))
        here = table[table["fold"] == str(fold)]
        wanted = softmax(X[here["row"]] @ weight.T + bias, axis=1)
        assert np.allclose(here[PROBA], wanted, atol=1e-5)
        each.append(softmax(X @ weight.T + bias, axis=1))
    texts = embedkit.load(tmp_path / "data").text
    again = Predictor(tmp_path / "run", device="cpu").predict_proba(texts)
    assert np.allclose(again, np.mean(each, axis=0), atol=1e-5)


def test_windows_are_trained_on(tmp_path: Path) -> None:
    """What tells the label stands behind what one sequence holds."""
    random = np.random.default_rng(0)
    lines = [
        f"{'the ' * 12}{' '.join(random.choice(['bus', 'home'], 4))} {words}\t{label}"
        for _ in range(30)
        for label, words in enumerate(("rain rain", "영화 영화"))
    ]
    corpus = tmp_path / "c.tsv"
    corpus.write_text("text\tlabel\n" + "\n".join(lines) + "\n", "utf-8")
    given: dict[str, Any] = {"max_length": 10, "epochs": 8, "folds": 2, "head": "cnn",
                             "learning_rate": 1e-2}  # fmt: skip
    scores = {}
    for name, more in (("truncate", {}), ("window", {"on_long": "window"})):
        content = tuned(corpus, tmp_path / name, **given, **more).content
        scores[name] = content.scores["cross_validation"]["accuracy"].value
    assert finetuned(tmp_path / "window").tokens.stride == 2
    assert scores["truncate"] < 0.7
    assert scores["window"] > 0.9


def test_a_batch_without_windows_is_as_before() -> None:
    tokenizer = load_tokenizer(find_checkpoint(str(tiny_model())))
    short = tokenizer.encode(["good movie", "bad"], settings=WINDOWS)
    assert set(padded(short, 0)) == {"input_ids", "token_type_ids", "attention_mask"}
    longer = tokenizer.encode(long_texts(), settings=WINDOWS)
    batch = padded(longer, 0)
    assert batch["windows"].sum() == len(batch["input_ids"])
    assert int(batch["counted"].sum()) == sum(text.n_kept for text in longer)
    assert int(batch["attention_mask"].sum()) == sum(n_seen(text) for text in longer)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stride": 2}, "stride=2 is for on_long='window'"),
        ({"on_long": "window", "stride": 30}, "stride=30: must be smaller than"),
        ({"on_long": "error", "max_length": 5}, "more than max_length=5"),
        ({"on_long": "wrap"}, "on_long='wrap': expected truncate, window, error"),
        ({"seeds": 0}, "seeds=0: expected 1 or more"),
        ({"dropout": 1.0}, r"dropout=1\.0: expected 0 or more, below 1"),
        ({"calibrate": True, "validation": 0}, "calibrate= needs validation records"),
        ({"calibrate": True, "task": "regression"}, "calibrate= is for classes"),
        ({"select_by": "f1", "validation": 0}, "select_by= needs validation records"),
        ({"select_by": "f-one"}, "select_by='f-one': expected accuracy"),
    ],
)
def test_what_cannot_be_used(
    corpus: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        on_split(corpus, tmp_path / "run", **settings)
    assert list(tmp_path.iterdir()) == []


# epochs


def test_the_epoch_may_be_chosen_by_a_metric(corpus: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"epochs": 6, "validation": 0.4, "learning_rate": 1e-2}
    content = on_split(corpus, tmp_path / "run", select_by="macro_f1", patience=3, **given)
    for number, one in enumerate(content.history):
        scores = [epoch.valid_score for epoch in one.epochs]
        assert content.epochs[number] == 1 + int(np.argmax(scores))
        assert len(scores) == 6 or len(scores) - 1 - int(np.argmax(scores)) == 3
    # the kept model is that of this epoch
    inner = pd.read_parquet(tmp_path / "run/inner_predictions.parquet")
    for number, one in enumerate(content.history):
        here = inner[inner["fold"] == str(number)]
        kept = one.epochs[int(content.epochs[number]) - 1]
        score = f1_score(here["y_true"], here["y_pred"], average="macro")
        assert kept.valid_score == pytest.approx(score)
        assert kept.valid_accuracy == pytest.approx((here["y_true"] == here["y_pred"]).mean())
        true = here[PROBA].to_numpy()[np.arange(len(here)), here["y_true"].astype(int)]
        assert kept.valid_loss == pytest.approx(-np.log(true).mean(), abs=1e-5)


def test_a_metric_that_is_not_defined_chooses_nothing(tmp_path: Path) -> None:
    """No validation record is of the rare class, of which too few are there."""
    labels = ["1" if i in (3, 7, 11) else "0" for i in range(60)]
    file = corpus_of(tmp_path / "corpus.tsv", labels=labels)
    with pytest.raises(UsageError, match=r"select_by='roc_auc' is not defined on the \d+ valid"):
        tuned(file, tmp_path / "run", folds=2, select_by="roc_auc", validation=0.05)


def test_loss_and_accuracy_of_training_are_those_of_a_plain_loop(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Every batch that the model was trained on, counted beside it."""
    monkeypatch.setattr(logging.getLogger("embedkit"), "propagate", True)
    caplog.set_level(logging.INFO)
    seen: list[tuple[float, int, int]] = []
    forward = EncoderWithHead.forward

    @wraps(forward)  # the Trainer asks for the parameters
    def counted(self: Any, *arguments: Any, **given: Any) -> Any:
        result = forward(self, *arguments, **given)
        if result.loss is not None:
            right = int((result.logits.argmax(1) == given["labels"]).sum())
            seen.append((result.loss.item(), right, len(given["labels"])))
        return result

    monkeypatch.setattr(EncoderWithHead, "forward", counted)
    content = on_split(corpus, tmp_path / "run", epochs=3, batch_size=7)
    epochs = [epoch for one in content.history for epoch in one.epochs]
    sizes = {one.model: len(one.epochs) for one in content.history}
    assert sizes == {"fold-0": 3, "fold-1": 3}
    per_epoch = len(seen) // 6
    for number, epoch in enumerate(epochs):
        some = seen[number * per_epoch : (number + 1) * per_epoch]
        texts = sum(count for _, _, count in some)
        assert epoch.train_loss == pytest.approx(sum(v * n for v, _, n in some) / texts)
        assert epoch.train_accuracy == pytest.approx(sum(right for _, right, _ in some) / texts)
        assert epoch.valid_accuracy is not None
    told = [line for line in caplog.messages if "epoch 1 of 3" in line]
    assert f"loss {epochs[0].train_loss:.4f}, accuracy {epochs[0].train_accuracy:.4f}" in told[0]
    lines = [line for line in log_of(tmp_path / "run") if "train_accuracy" in line]
    assert [line["train_loss"] for line in lines] == [epoch.train_loss for epoch in epochs]


def test_sums_of_an_epoch_survive_an_interruption(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embedkit.finetuning import training

    write = fsio.write_durably

    def interrupted(path: Path, data: Any, *, scratch: Path) -> None:
        write(path, data, scratch=scratch)
        if path.name == "complete":
            assert json.loads(path.read_text())["totals"]["texts"] > 0
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "_CHECKPOINT_STEPS", 2)
        patch.setattr(fsio, "write_durably", interrupted)
        with pytest.raises(KeyboardInterrupt):
            on_split(corpus, tmp_path / "run", batch_size=4)
    resumed, whole = (on_split(corpus, tmp_path / name, batch_size=4) for name in ("run", "whole"))
    assert resumed.history == whole.history


def test_dropout_is_that_of_the_head(corpus: Path, tmp_path: Path) -> None:
    on_split(corpus, tmp_path / "run", dropout=0.35)
    model = read_model(tmp_path / "run/model/fold-0")
    assert (model.config.dropout, model.dropout.p) == (0.35, 0.35)
    assert model.encoder.config.hidden_dropout_prob == 0.1
    assert read_run(tmp_path / "run").settings["dropout"] == 0.35  # type: ignore[attr-defined]


def test_progress_counts_the_steps_of_an_epoch(corpus: Path, tmp_path: Path) -> None:
    states: list[Any] = []
    on_split(corpus, tmp_path / "run", epochs=2, batch_size=4, progress=states.append)
    stages = list(dict.fromkeys(state.stage for state in states))
    assert stages == [f"fold {f} of 2, epoch {e} of 2" for f in (1, 2) for e in (1, 2)]
    for stage in stages:
        here = [state for state in states if state.stage == stage]
        assert [state.done for state in here] == list(range(1, here[0].total + 1))


def test_the_optimizer_has_the_rates_and_decays_of_the_options(
    corpus: Path, tmp_path: Path
) -> None:
    """Of every layer, of biases and norms, and of the head."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    seen: set[tuple[float, float, int]] = set()

    def note(optimizer: Any, *_: Any) -> None:
        seen.update(
            (group["initial_lr"], group["weight_decay"], sum(p.numel() for p in group["params"]))
            for group in optimizer.param_groups
        )

    given: dict[str, Any] = {"learning_rate": 1e-3, "layer_decay": 0.5, "head_learning_rate": 3e-2}
    handle = register_optimizer_step_pre_hook(note)
    try:
        on_split(corpus, tmp_path / "run", **given)
    finally:
        handle.remove()
    sizes: dict[tuple[float, float], int] = {}
    for name, parameter in read_model(tmp_path / "run/model/fold-0").named_parameters():
        layer = name.partition("encoder.encoder.layer.")[2].partition(".")[0]
        depth = int(layer) + 1 if layer else 3 if not name.startswith("encoder.") else 0
        rate = 3e-2 if depth == 3 else 1e-3
        decay = 0.01 if parameter.ndim == 2 else 0.0
        key = (rate * 0.5 ** (3 - depth), decay)
        sizes[key] = sizes.get(key, 0) + parameter.numel()
    wanted = sorted((*key, count) for key, count in sizes.items())
    assert np.allclose(sorted(seen), wanted, rtol=1e-9, atol=0)
