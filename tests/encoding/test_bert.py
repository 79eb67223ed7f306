"""The modules of BERT and RoBERTa against those of transformers: the same bits, layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embedkit.encoding import bert
from embedkit.encoding.bert import Bert
from embedkit.encoding.encoder import Encoder
from tests.models import TEXTS, Tiny, build, needs_plain_bf16, reweigh, state

FAMILIES = ("bert", "bert_mlm", "japanese", "roberta", "xlm-roberta", "camembert")


def by_transformers(folder: Path, monkeypatch: pytest.MonkeyPatch, precision: str) -> Encoder:
    with monkeypatch.context() as patch:
        patch.setattr(bert, "load", lambda *_, **__: None)
        encoder = Encoder(folder, device="cpu", precision=precision)
    assert type(encoder.model.module).__module__.startswith("transformers.")
    return encoder


@pytest.mark.parametrize(
    "precision", ["fp32", "int8", pytest.param("bf16", marks=needs_plain_bf16)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_bits_are_those_of_the_modules_of_transformers(
    family: str, precision: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    light = Encoder(tiny(family), device="cpu", precision=precision)
    whole = by_transformers(tiny(family), monkeypatch, precision)
    assert isinstance(light.model.module, Bert)
    assert light.has_pooler == whole.has_pooler
    views = [f"{pooling}_{layer}" for pooling in ("cls", "mean") for layer in range(4)]
    views += ["pooler"] * light.has_pooler
    ours, theirs = (encoder.encode_views(TEXTS, views) for encoder in (light, whole))
    for view in views:
        assert ours[view].tobytes() == theirs[view].tobytes(), view


def with_two_of_each(tensors: dict[str, Any]) -> dict[str, Any]:
    return tensors | {f"bert.{name}": t.flip(0).contiguous() for name, t in tensors.items()}


def with_names_of_2019(tensors: dict[str, Any]) -> dict[str, Any]:
    old = "LayerNorm.weight", "LayerNorm.gamma"
    return {name.replace(*old): tensor for name, tensor in tensors.items()}


UNUSUAL: dict[str, Callable[[Path], None]] = {
    "each weight twice": lambda folder: reweigh(folder, with_two_of_each),
    "another activation": lambda folder: state(folder / "config.json", hidden_act="relu"),
    "names of 2019": lambda folder: reweigh(folder, with_names_of_2019),
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_what_is_unusual_is_loaded_by_transformers(kind: str, tmp_path: Path) -> None:
    folder = build("bert", tmp_path)
    UNUSUAL[kind](folder)
    encoder = Encoder(folder, device="cpu")
    assert not isinstance(encoder.model.module, Bert)
    plain = Encoder(folder, device="cpu", forward="transformers")
    assert np.allclose(encoder.encode(TEXTS), plain.encode(TEXTS), atol=1e-5)


def test_a_head_is_left_out_and_a_pooler_may_be_missing(tmp_path: Path, notes: list[str]) -> None:
    folder = build("roberta", tmp_path)

    def moved(tensors: dict[str, Any]) -> dict[str, Any]:
        kept = {f"roberta.{n}": t for n, t in tensors.items() if not n.startswith("pooler")}
        return kept | {"lm_head.bias": torch.zeros(3)}

    reweigh(folder, moved)
    encoder = Encoder(folder, device="cpu")
    assert isinstance(encoder.model.module, Bert)
    assert not encoder.has_pooler
    assert not any("not computed" in note for note in notes)
