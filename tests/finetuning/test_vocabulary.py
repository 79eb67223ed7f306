"""Training of the rows that occur, on states that are computed once: every weight is the same."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch
from torch import nn

from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.tokenizer import load_tokenizer
from embedkit.encoding.windows import TokenizerSettings
from embedkit.finetuning import heads, training
from embedkit.finetuning import model as model_module
from embedkit.finetuning import states as states_module
from embedkit.finetuning.heads import build_model
from embedkit.finetuning.model import freeze, predict_logits
from embedkit.finetuning.options import TrainingOptions
from embedkit.finetuning.states import frozen_states
from embedkit.finetuning.training import Fold, train_fold
from embedkit.units.target import Target
from tests.finetune_fixtures import built
from tests.models import TEXTS, Tiny, check_near, plain_model, slow

SOME = [text for text in TEXTS if text.strip()]
TRAIN, VALID = np.arange(8), np.array([8, 9])  # the others are held out


def fold_of(checkpoint: Any, work: Path, vocabulary: IO[bytes], **settings: Any) -> Fold:
    """A fold of short texts, every second of one class."""
    steps: dict[str, Any] = {"epochs": 5, "batch_size": 3, "learning_rate": 1e-2}
    return Fold(
        name="a fold",
        model="fold-0",
        texts=load_tokenizer(checkpoint).encode(SOME, settings=TokenizerSettings(24)),
        record=np.arange(len(SOME)),
        target=Target(np.arange(len(SOME)) % 2, ("0", "1")),
        train=TRAIN,
        valid=VALID,
        choosing=VALID[:0],
        held_out=np.arange(10, len(SOME)),
        options=TrainingOptions(**steps, precision="fp32", **settings),
        seed=0,
        device=torch.device("cpu"),
        work=work,
        vocabulary=vocabulary,
    )


def test_the_whole_matrix_is_not_in_memory(tiny: Tiny, tmp_path: Path) -> None:
    """Neither that of the checkpoint nor that of the model, from the first step to the last.

    The rows that stay behind are those of the file if an earlier fold has filled it.
    """
    checkpoint = find_checkpoint(str(tiny("bert")))
    others = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]  # of other tests
    known = {id(one) for one in others}
    plain = plain_model(checkpoint.folder)
    layer: Any = heads.embedding_layer(plain.module)
    size, held = layer.weight.untyped_storage().nbytes(), []
    doubled = (2 * layer.weight).detach().numpy().tobytes()
    model = build_model(plain, seed=3, head="mean")
    assert all(weight.is_meta for weight in plain.module.parameters())
    del layer

    def look(_: Any) -> None:
        tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
        new = [one for one in tensors if not one.is_meta and id(one) not in known]
        held.append(any(one.untyped_storage().nbytes() >= size for one in new))

    with tempfile.TemporaryFile() as file:
        file.write(doubled)
        fold = fold_of(checkpoint, tmp_path, file)
        model, _ = train_fold(fold, model, progress=look)
    assert len(held) == 15
    assert not any(held)
    whole: Any = heads.embedding_layer(model.encoder)
    assert whole.weight.untyped_storage().nbytes() == size
    absent = np.setdiff1d(np.arange(len(whole.weight)), [*fold.texts.ids, fold.texts.pad_id])
    before = plain_model(checkpoint.folder).module.get_input_embeddings().weight[absent]
    assert torch.allclose(whole.weight[absent], 2 * before, rtol=0.01)


def trained(checkpoint: Any, work: Path, dtype: torch.dtype, **settings: Any) -> Any:
    """The weights of a fold without dropout, by the precision of its computation."""
    model = build_model(plain_model(checkpoint.folder), seed=3, head="mean").to(dtype)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with tempfile.TemporaryFile() as file:
        fold = fold_of(checkpoint, work, file, **settings)
        model, result = train_fold(fold, model)
    return {name: value.double() for name, value in model.state_dict().items()}, result, fold


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("bert", {}),
        ("roberta", {}),
        ("modernbert", {}),
        ("gpt2", {}),  # whose layer has no padding
        *slow(("albert", {}), ("deberta-v2", {})),
        ("bert", {"freeze_layers": "1"}),
        ("bert", {"lora": 2}),
    ],
)
def test_every_weight_is_that_of_training_all_rows(
    tiny: Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    settings: dict[str, Any],
) -> None:
    """Both are measured against training of all rows in float64."""
    if "lora" in settings:
        pytest.importorskip("peft")
    monkeypatch.setattr(model_module, "_WEIGHT_DECAY", 5.0)  # rows that only decay change, too
    checkpoint = find_checkpoint(str(tiny(family)))
    ours, result, fold = trained(checkpoint, tmp_path / "ours", torch.float32, **settings)
    for module in (training, heads):
        monkeypatch.setattr(module, "embedding_layer", lambda _: None)
    plain, expected, _ = trained(checkpoint, tmp_path / "plain", torch.float32, **settings)
    exact, _, _ = trained(checkpoint, tmp_path / "exact", torch.float64, **settings)
    assert (result.epoch, result.parameters) == (expected.epoch, expected.parameters)
    assert ours.keys() == plain.keys() == exact.keys()
    ulp = torch.finfo(torch.float32).eps
    module = plain_model(checkpoint.folder).module
    before = module.state_dict()
    for name, value in exact.items():
        floor = 8 * ulp * float(value.abs().max())
        error = float((plain[name] - value).abs().max())
        assert float((ours[name] - value).abs().max()) <= max(1.5 * error, floor), name
    name = next(n for n, p in module.named_parameters() if p.ndim == 2)
    whole, first = ours[f"encoder.{name}"], before[name].double()
    absent = np.setdiff1d(np.arange(len(whole)), fold.texts.ids)
    assert len(absent)
    if settings:
        assert torch.equal(whole, first)
    else:
        factor = whole[absent] / first[absent].where(first[absent] != 0, torch.nan)
        assert float(factor.nanmedian()) < 0.95


# hidden states of frozen layers, which are computed once

KEEPS = ("bert", "roberta", "electra", "distilbert", "modernbert", "mpnet", "deberta-v2")


def frozen(folder: Path, layers: str, **tokens: Any) -> Any:
    model, texts = built(folder, SOME, tokens=TokenizerSettings(**tokens), seed=1, head="mean")
    return model, freeze(model, layers), texts


@pytest.mark.parametrize("family", KEEPS)
@pytest.mark.parametrize("layers", ["1", "2", "all"])
def test_logits_are_those_without_states(tiny: Tiny, family: str, layers: str) -> None:
    """Also of texts in windows; what is below is computed again once the states are closed."""
    model, parts, texts = frozen(tiny(family), layers, max_length=12, on_long="window", stride=4)
    before = predict_logits(model, texts, precision="fp32")
    states: Any = frozen_states(model, parts, texts, precision="fp32")
    calls: list[str] = []
    for module in parts[0] or [model.encoder]:
        module.register_forward_hook(lambda *_: calls.append("computed"))
    for module in (m for layer in parts[0] for m in layer.modules()):
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda *_: calls.append("product"))
    found = predict_logits(model, texts, states=states.of_batch, precision="fp32")
    check_near(found, before, before)
    assert "product" not in calls
    assert ("computed" in calls) == (layers != "all")
    states.close()
    assert torch.equal(predict_logits(model, texts, precision="fp32"), before)


@pytest.mark.parametrize("family", ["convbert", "fnet"])
def test_no_states_where_they_are_not_enough(tiny: Tiny, family: str) -> None:
    """Padding changes the states of a text."""
    model, parts, texts = frozen(tiny(family), "1", max_length=24)
    before = predict_logits(model, texts, precision="fp32")
    assert frozen_states(model, parts, texts, precision="fp32") is None
    assert torch.equal(predict_logits(model, texts, precision="fp32"), before)


def test_few_texts_alone_have_states(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    model, parts, texts = frozen(tiny("bert"), "1", max_length=24)
    monkeypatch.setattr(states_module, "_MOST_BYTES", 1_000)
    assert frozen_states(model, parts, texts, precision="fp32") is None
    assert frozen_states(model, freeze(model, "embeddings"), texts[:1], precision="fp32") is None


@pytest.mark.parametrize("settings", [{}, {"gradient_checkpointing": True}], ids=str)
@pytest.mark.parametrize("layers", ["1", "all"])
def test_every_weight_is_that_of_training_without_states(
    tiny: Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layers: str,
    settings: dict[str, Any],
) -> None:
    """Both are measured against training without states in float64."""
    checkpoint, settings = find_checkpoint(str(tiny("bert"))), settings | {"freeze_layers": layers}
    ours, result, _ = trained(checkpoint, tmp_path / "ours", torch.float32, **settings)
    monkeypatch.setattr(training, "frozen_states", lambda *_, **__: None)
    plain, expected, _ = trained(checkpoint, tmp_path / "plain", torch.float32, **settings)
    exact, _, _ = trained(checkpoint, tmp_path / "exact", torch.float64, **settings)
    assert (result.epoch, result.parameters) == (expected.epoch, expected.parameters)
    # but for biases of keys: attention does not depend on them, so that their gradient is rounding
    # alone, which Adam scales up to a whole step
    names = [name for name in exact if not name.endswith("key.bias")]
    mine, theirs, right = (
        torch.cat([of[name].flatten() for name in names]) for of in (ours, plain, exact)
    )
    floor = 8 * torch.finfo(torch.float32).eps * float(right.norm())
    assert (mine - right).norm() <= max(1.5 * float((theirs - right).norm()), floor)
