"""Windows, the choice of the epoch, frozen layers and the optimizer."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import f1_score

from embedkit.choices import HEADS
from embedkit.encoding.windows import TokenizerSettings
from embedkit.errors import UsageError
from embedkit.finetuning import training
from embedkit.finetuning.heads import EncoderWithHead
from embedkit.finetuning.model import freeze, padded, predict_logits, read_model
from embedkit.runs.split import split
from tests.finetune_fixtures import built, corpus_of, log_of, tuned
from tests.store_fixtures import tiny_model

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

LENGTH, STRIDE = 10, 3
WINDOWS = TokenizerSettings(LENGTH, "window", STRIDE)


def long_texts() -> list[str]:
    return [f"movie good {'rain bus home 영화 ' * count} bad the" for count in range(7)]


@pytest.mark.parametrize("head", HEADS)
def test_windows_are_combined_as_in_a_plain_loop(head: str) -> None:
    """Each window by itself through the encoder; then what the head's description says."""
    model, texts = built(tiny_model(), long_texts(), tokens=WINDOWS, head=head, n_outputs=3)
    assert np.diff(texts.text_windows).max() > 3
    found = predict_logits(model, texts)
    for text, logits in zip(texts, found, strict=True):
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
                vectors.append(model.head(hidden, mask)[0])
            tokens.append(hidden[0][text.owned[start:stop]])
        stacked = torch.stack(vectors)
        special = {"mean": torch.cat(tokens).mean(0), "cnn": stacked.amax(0)}
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
    assert [(line["fold"], line["epoch"]) for line in lines] == [
        (fold, epoch) for fold in range(2) for epoch in (1, 2, 3)
    ]
    assert [line["train_loss"] for line in lines] == [epoch["train_loss"] for epoch in epochs]


def test_the_optimizer_has_the_rates_and_decays_of_the_options(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    seen: set[tuple[float, float, int]] = set()

    def note(optimizer: Any, *_: Any) -> None:
        seen.update(
            (group["initial_lr"], group["weight_decay"], sum(p.numel() for p in group["params"]))
            for group in optimizer.param_groups
        )

    monkeypatch.setattr(training, "embedding_layer", lambda _: None)  # all rows are trained
    given: dict[str, Any] = {"learning_rate": 1e-3, "head_learning_rate": 3e-2}
    handle = register_optimizer_step_pre_hook(note)
    try:
        on_split(corpus, tmp_path / "run", **given)
    finally:
        handle.remove()
    sizes: dict[tuple[float, float], int] = {}
    for name, parameter in read_model(tmp_path / "run/model/fold-0").named_parameters():
        rate = 1e-3 if name.startswith("encoder.") else 3e-2
        key = (rate, 0.01 if parameter.ndim == 2 else 0.0)
        sizes[key] = sizes.get(key, 0) + parameter.numel()
    wanted = sorted((*key, count) for key, count in sizes.items())
    assert np.allclose(sorted(seen), wanted, rtol=1e-5, atol=0)


# frozen layers


def test_frozen_layers_have_no_dropout() -> None:
    model, texts = built(tiny_model(), ["good movie", "bad"], head="cls", dropout=0.0)
    batch = padded(texts)
    for freeze_layers in ("2", "all", "1"):
        freeze(model, freeze_layers)
        model.train()
        same = torch.equal(*[model(**batch).logits for _ in range(2)])
        assert same == (freeze_layers != "1")
