"""Frozen layers run once per text, and their weights are written once per run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

import embedkit
from embedkit import fsio
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.model import load_model
from embedkit.encoding.tokenization import TextTokenizer, TokenizedText, TokenizerSettings
from embedkit.encoding.vocabulary import load_tokenizer
from embedkit.finetuning import frozen as frozen_module
from embedkit.finetuning.batches import padded, predict_logits
from embedkit.finetuning.frozen import FrozenStates
from embedkit.finetuning.heads import EncoderWithHead, build_model
from embedkit.finetuning.model_folder import read_model
from embedkit.finetuning.options import TrainingOptions
from embedkit.finetuning.parameters import freeze
from tests.finetune_fixtures import corpus_of, log_of, predictions, tuned
from tests.models import TEXTS

LONG = " ".join(TEXTS[:6])


def built(
    model: Path, layers: str, **settings: Any
) -> tuple[EncoderWithHead, list[TokenizedText], TextTokenizer]:
    """A model of three layers with some of them frozen, and texts of one or several windows."""
    checkpoint = find_checkpoint(str(model))
    tokenizer = load_tokenizer(checkpoint)
    plain = load_model(
        checkpoint, pad_id=tokenizer.pad_id, device=torch.device("cpu"), dtype=torch.float32
    )
    made = build_model(plain, seed=5, n_outputs=3, dropout=0.0, **settings)
    freeze(made, layers)
    window = TokenizerSettings(16, on_long="window", stride=4)
    return made, tokenizer.encode([*TEXTS[:5], LONG], settings=window), tokenizer


def states_of(
    model: EncoderWithHead, texts: list[TokenizedText], tokenizer: TextTokenizer, layers: str
) -> Any:
    options = TrainingOptions(freeze_layers=layers, precision="fp32")
    return FrozenStates(texts, options, pad_id=tokenizer.pad_id).of(model)


@pytest.mark.parametrize(
    ("family", "layers", "settings"),
    [
        ("bert", "2", {"head": "cnn", "mix_layers": 1}),
        ("bert", "1", {"head": "cls", "mix_layers": 2}),
        ("xlm-roberta", "all", {"head": "pooler"}),
        ("electra", "2", {"head": "mean"}),
        ("distilbert", "2", {"head": "mean"}),
    ],
)
def test_kept_states_give_the_same_logits_and_gradients(
    tiny: Callable[[str], Path], family: str, layers: str, settings: dict[str, Any]
) -> None:
    model, texts, tokenizer = built(tiny(family), layers, **settings)
    assert len(texts[-1].windows) > 1
    lower = states_of(model, texts, tokenizer, layers)
    assert lower is not None
    found = []
    for states in (None, lower):
        torch.manual_seed(1)
        model.train()  # the dropout of trained layers comes from the seed, frozen ones have none
        model.zero_grad()
        batch = padded(texts, tokenizer.pad_id, states)
        model(**batch, labels=torch.tensor([0, 1, 2, 0, 1, 2])).loss.backward()
        moved = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
        logits = predict_logits(model, texts, pad_id=tokenizer.pad_id, lower=states)
        found.append((logits, moved))
    (logits, expected), (from_states, moved) = found
    assert torch.allclose(from_states, logits, atol=1e-5)
    assert moved.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(moved[name], value, atol=1e-4), name


@pytest.mark.parametrize(
    ("family", "layers", "settings"),
    [
        ("mpnet", "2", {"head": "cls"}),  # its list of layers does not give the last hidden state
        ("albert", "all", {"head": "cls"}),  # it has no list
        ("bert", "2", {"head": "cls", "mix_layers": 2}),  # the head reads a frozen layer
        ("bert", "embeddings", {"head": "cls"}),
    ],
)
def test_states_are_kept_only_where_that_is_the_same(
    tiny: Callable[[str], Path], family: str, layers: str, settings: dict[str, Any]
) -> None:
    model, texts, tokenizer = built(tiny(family), layers, **settings)
    assert states_of(model, texts, tokenizer, layers) is None
    assert model.from_lower is None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    tuned(corpus_of(folder / "corpus.tsv"), folder / "run", freeze_layers="1", head="mean")
    return folder / "run"


def test_without_room_the_run_is_the_same_up_to_rounding(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frozen_module, "MOST_BYTES", 1_000)
    tuned(run.parent / "corpus.tsv", tmp_path / "run", freeze_layers="1", head="mean")
    before, after = (predictions(one).filter(like="proba") for one in (run, tmp_path / "run"))
    assert np.allclose(before, after, atol=1e-3)
    known, found = (
        [line.get("valid_loss", 0.0) for line in log_of(one)] for one in (run, tmp_path / "run")
    )
    assert np.allclose(known, found, atol=1e-3)


def test_frozen_weights_are_one_file_for_all_folds(run: Path, tmp_path: Path) -> None:
    shared = [run / f"model/fold-{i}/model-00001-of-00002.safetensors" for i in range(3)]
    assert len({file.stat().st_ino for file in shared}) == 1
    own = [run / f"model/fold-{i}/model-00002-of-00002.safetensors" for i in range(3)]
    assert len({file.read_bytes() for file in own}) == 3
    assert any("word_embeddings" in name for name in load_file(shared[0]))
    assert not any("layer.0" in name for name in load_file(own[0]))

    total = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
    assert fsio.tree_bytes(run) == total - 2 * shared[0].stat().st_size
    encoder = AutoModel.from_pretrained(run / "model/fold-1")  # transformers reads both
    weights = read_model(run / "model/fold-1").encoder.state_dict()
    assert all(torch.equal(encoder.state_dict()[name], value) for name, value in weights.items())
    made = embedkit.export(run, fold=1, out=tmp_path / "plain")
    assert [file.name for file in made.out.glob("*.safetensors*")] == ["model.safetensors"]
    assert load_file(made.out / "model.safetensors").keys() == weights.keys()


def test_where_names_cannot_be_shared_each_fold_has_its_own(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    out = tmp_path / "run"
    tuned(run.parent / "corpus.tsv", out, freeze_layers="1", head="mean")
    name = "model/fold-1/model-00001-of-00002.safetensors"
    assert (out / name).stat().st_nlink == 1
    assert (out / name).read_bytes() == (run / name).read_bytes()


def test_checkpoints_hold_what_is_trained(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []
    sync = fsio.sync_tree

    def note(folder: Path) -> None:
        if folder.name.startswith("checkpoint-"):
            seen.append(set(load_file(folder / "model.safetensors")))
        sync(folder)

    monkeypatch.setattr(fsio, "sync_tree", note)
    for freeze_layers in ("1", None):
        tuned(run.parent / "corpus.tsv", tmp_path / str(freeze_layers), folds=2, epochs=1,
              freeze_layers=freeze_layers)  # fmt: skip
    frozen = {"encoder.embeddings.", "encoder.encoder.layer.0."}
    assert len(seen) == 4
    assert not any(name.startswith(tuple(frozen)) for name in seen[0])
    assert seen[0] < seen[-1]
    assert all(any(name.startswith(one) for name in seen[-1]) for one in frozen)
