"""The padding-free forward against the plain one, and against itself in other company."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from embedkit.encoding import packed as packed_module
from embedkit.encoding.bert import Bert
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.model import PRECISIONS, Model, PackedBatch, PlainModel, whole_fp32
from embedkit.encoding.packed import KERNELS, PackedModel, fastest
from embedkit.encoding.products import Joined, hasten
from embedkit.encoding.views import parse_view
from embedkit.encoding.windows import TokenizerSettings
from embedkit.errors import ModelError
from tests.models import (
    FAMILIES,
    TEXTS,
    EncoderOf,
    Tiny,
    batch_of,
    build,
    build_bert,
    check_near,
    far,
    needs_plain_bf16,
    plain_model,
    save_model,
    slow,
    states,
)

LENGTHS: list[Sequence[int]] = [
    (1,),
    (31,),
    (12,) * 5,
    (40, 3, 2, 1),
    (100, 17, 16, 15, 5, 5, 4),
    (150, 1),
    tuple(range(60, 0, -3)),
]


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=needs_plain_bf16)])
@pytest.mark.parametrize("family", ["bert", "distilbert", "mpnet", "qwen3", "gemma3_text"])
def test_products_that_are_joined_on_a_gpu(
    family: str, precision: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries, keys and values at once, and GELU with its product: as near to float64 as apart."""
    plain = plain_model(tiny(family), PRECISIONS[precision])
    exact = in_float64(plain)
    joining = partial(hasten, join=True)
    monkeypatch.setattr(packed_module, "hasten", lambda module, **_: joining(module))
    joined = PackedModel(plain)
    computed = [vars(m).get("forward") for m in joined.module.modules()]
    functions = [f.func for f in computed if isinstance(f, partial)]
    parts = [f for f in functions if isinstance(getattr(f, "__self__", None), Joined)]
    assert len(parts) == 3 * joined.n_layers
    batch = batch_of((40, 17, 17, 5, 1), int(plain.module.config.vocab_size))
    for first_only in (False, True):
        layers = [joined.n_layers] if first_only else ()
        ours, theirs, truth = (
            states(model, batch, layers, first_only=first_only) for model in (joined, plain, exact)
        )
        for layer, expected in truth.items():
            reference = max(far(theirs[layer], expected), 4 * torch.finfo(plain.dtype).eps)
            assert far(ours[layer], expected) <= 1.5 * reference


def test_fp32_on_cuda_is_whole_and_the_switch_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    switch = SimpleNamespace(fp32_precision="tf32")
    monkeypatch.setattr(torch.backends.cuda, "matmul", switch)
    with suppress(ZeroDivisionError), whole_fp32(torch.device("cuda"), torch.float32):
        assert switch.fp32_precision == "ieee"
        raise ZeroDivisionError
    assert switch.fp32_precision == "tf32"
    with whole_fp32(torch.device("cuda"), torch.bfloat16):
        assert switch.fp32_precision == "tf32"
    older = SimpleNamespace(allow_tf32=True)
    monkeypatch.setattr(torch.backends.cuda, "matmul", older)
    with whole_fp32(torch.device("cuda"), torch.float32):
        assert older.allow_tf32 is False
    assert older.allow_tf32 is True


def in_float64(model: Model) -> PlainModel:
    return plain_model(model.checkpoint.folder, torch.float64)


@pytest.fixture(scope="module", params=["twelve", *slow("minilm")])
def models(
    request: pytest.FixtureRequest, minilm: Encoder, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PackedModel, PlainModel]:
    """Those of a BERT of 12 layers and 12 heads with random weights, and of a real one."""
    folder = str(minilm.checkpoint.folder)
    if request.param == "twelve":
        folder = build_bert(tmp_path_factory.mktemp("twelve"), layers=12, heads=12, width=96)
    plain = plain_model(folder)
    return PackedModel(plain), plain


def test_every_layer_for_every_mix_of_lengths(models: tuple[PackedModel, PlainModel]) -> None:
    """Of all tokens, and of the first ones alone where nothing else is asked for."""
    exact = in_float64(models[1])
    batches = [batch_of(lengths, exact.checkpoint.config["vocab_size"]) for lengths in LENGTHS]
    found = [[states(model, batch) for batch in batches] for model in (*models, exact)]
    for layer in range(exact.n_layers + 1):
        check_near(*(np.concatenate([each[layer] for each in of_model]) for of_model in found))
    for model, wholes in zip(models, found, strict=False):
        for top in (0, 1, model.n_layers):
            for batch, whole in zip(batches, wholes, strict=True):
                first = states(model, batch, [0, top], first_only=True)
                assert list(first) == sorted({0, top})
                # to the last bit: a vector does not depend on what else is asked for
                assert np.array_equal(first[top], whole[top][batch.offsets[:-1].numpy()])
                assert top == 0 or np.array_equal(first[0], whole[0])


@pytest.mark.parametrize("first_only", [False, True])
def test_a_text_has_the_same_bits_in_any_company(
    models: tuple[PackedModel, PlainModel], first_only: bool
) -> None:
    """Alone, between others, first or last: nothing but the text decides."""
    ours, _ = models
    vocabulary = ours.checkpoint.config["vocab_size"]
    for length in (1, 2, 5, 12, 16, 45, 100):
        text = batch_of((length,), vocabulary, seed=length)
        seen = []
        for before, after in (((), ()), ((length,) * 3, ()), ((150, 60), (3, 2)), ((), (1,) * 40)):
            others = batch_of((*before, *after), vocabulary, seed=99)
            cut = sum(before)
            ids = torch.cat([others.ids[:cut], text.ids, others.ids[cut:]])
            batch = PackedBatch.of(ids, torch.zeros_like(ids), (*before, length, *after))
            hidden = states(ours, batch, [ours.n_layers], first_only=first_only)[ours.n_layers]
            rows = slice(len(before), len(before) + 1) if first_only else slice(cut, cut + length)
            seen.append(hidden[rows])
        assert all(np.array_equal(seen[0], other) for other in seen[1:])


def test_only_first_tokens_are_computed_where_nothing_else_is_asked(
    minilm: Encoder, calls_of: Any
) -> None:
    calls = calls_of(minilm.model, "forward")
    tokenized = minilm.tokenizer.encode(TEXTS[:2], settings=TokenizerSettings(32))
    cases = {
        ("cls_-1",): True,
        ("pooler", "mean_3"): True,
        ("mean_-1",): False,
        ("pooler", "cls_mean_1to6"): False,
    }
    for names, expected in cases.items():
        views = [parse_view(name, n_layers=6) for name in names]
        minilm.encode_shard(tokenized, views=views)
        assert calls.pop().settings["first_only"] == expected, names
        layers = [view.layer for view in views]
        minilm.encode_shard(tokenized, views=views, token_layers=layers)
        assert not calls.pop().settings["first_only"]


@pytest.mark.parametrize("family", FAMILIES)
def test_which_families_are_packed(family: str, encoder_of: EncoderOf) -> None:
    encoder = encoder_of(family)
    # of these transformers does not let others compute the attention
    packed = family not in ("deberta", "deberta-v2", "longformer")
    module: Any = encoder.model.module
    if family == "modernbert" and not module._supports_attention_backend:
        pytest.skip("this version of transformers lets nobody else compute its attention")
    assert encoder.model.name == ("packed" if packed else "transformers")
    assert encoder.model.pads is not packed


def test_a_family_that_attends_in_chunks_is_not_packed(tmp_path: Path) -> None:
    """The trial is long enough to tell, as of sliding windows."""
    folder = shutil.copytree(build("bert", tmp_path / "bert"), tmp_path / "llama")
    (folder / "model.safetensors").unlink()
    sizes: dict[str, Any] = {"num_key_value_heads": 1, "head_dim": 12, "num_local_experts": 2}
    sizes |= {"vocab_size": 300, "intermediate_size_mlp": 40, "attention_chunk_size": 48}
    save_model(folder, "llama4_text", **sizes, no_rope_layers=[1, 1, 0], pad_token_id=0)
    auto, plain = (
        Encoder(folder, device="cpu", forward=f).encode("good " * 90, pooling="mean", layer=-1)
        for f in ("auto", "transformers")
    )
    assert np.abs(auto - plain).max() < 1e-4


def test_a_forward_that_disagrees_is_refused_with_a_warning(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    # every sequence sees what follows it
    monkeypatch.setattr(packed_module, "_mask", lambda *_: None)
    model = Encoder(tiny_bert, device="cpu").model
    assert len(notes) == 1
    assert (model.name, isinstance(model.module, Bert)) == ("transformers", False)


def test_sequences_attend_one_by_one_where_company_would_matter(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    plain = plain_model(tiny_bert)
    genuine = KERNELS["runs"]

    def by_company(*states: Any) -> Any:
        """As a kernel that rounds otherwise when it computes several sequences at once."""
        forward: packed_module.Forward = states[3]
        several = any(count > 1 for _, count, _ in forward.runs)
        return genuine(*states) * (1 + 1e-6 * several)

    monkeypatch.setitem(KERNELS, "runs", by_company)
    ours = fastest(plain)
    assert ours.name == "packed, sequence by sequence"
    assert len(notes) == 1
    batch = batch_of((9, 9, 9), 40)
    (together,) = states(ours, batch, [3]).values()
    for i, ids in enumerate(batch.ids.split(9)):
        one = PackedBatch.of(ids, torch.zeros_like(ids), [9])
        (alone,) = states(ours, one, [3]).values()
        assert np.array_equal(alone, together[i * len(alone) : (i + 1) * len(alone)])


@pytest.mark.parametrize("error", [RuntimeError, AttributeError])
def test_a_kernel_that_is_refused_costs_no_more_than_itself(
    tiny_bert: Path, error: type[Exception], monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    plain, refuse = plain_model(tiny_bert), Mock(side_effect=error("only newer GPUs"))
    kinds = ("varlen", "efficient", "runs")
    monkeypatch.setattr(packed_module, "attention_kinds", lambda *_: kinds)
    monkeypatch.setitem(KERNELS, "varlen", refuse)
    monkeypatch.setitem(KERNELS, "efficient", lambda query, *_: torch.zeros_like(query))
    chosen: Any = fastest(plain)
    assert chosen.attention == "runs"
    batch = batch_of((30, 7, 7), 40)
    check_near(*(states(one, batch)[3] for one in (chosen, plain, in_float64(plain))))
    assert ["varlen" in notes[0], "efficient" in notes[1]] == [True, True]
    monkeypatch.setitem(KERNELS, "runs", refuse)
    notes.clear()
    assert fastest(plain) is plain
    assert len(notes) == 3


def test_short_sequences_have_a_kernel_of_their_own_where_it_agrees(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FlashAttention is made for long sequences; on a GPU another kernel takes short ones."""
    taken: list[str] = []

    def named(name: str, factor: float) -> Any:
        def kernel(*given: Any) -> torch.Tensor:
            taken.append(name)
            return factor * KERNELS["runs"](*given)

        return kernel

    plain = plain_model(tiny_bert)
    # shorter than those of the trial, as where a wide window makes that long: it has to run both
    monkeypatch.setattr(packed_module, "_SHORT", 8)
    monkeypatch.setitem(KERNELS, "varlen", named("varlen", 1))
    for factor, kernels in ((0.5, {"varlen"}), (1, {"varlen", "efficient"})):
        monkeypatch.setitem(KERNELS, "efficient", named("efficient", factor))
        packed = PackedModel(plain, attention="varlen")
        packed.of_short = packed_module._kernel_of_short(plain, 1e-5)
        taken.clear()
        for lengths in ((7, 6), (8, 8)):
            states(packed, batch_of(lengths, 40))
        assert {*taken} == kernels
        assert taken[-1] == "varlen"


def test_a_model_that_transformers_cannot_run_in_half_precision_is_named(tiny: Tiny) -> None:
    with pytest.raises(ModelError, match="precision='fp32'"):
        plain_model(tiny("deberta"), torch.bfloat16)


def test_a_text_that_spells_the_padding_token(encoder_of: EncoderOf) -> None:
    """RoBERTa gives a padding token inside a text the padding's own position."""
    encoder = encoder_of("roberta")
    plain = Encoder(str(encoder.checkpoint.folder), device="cpu", forward="transformers")
    pad = encoder.tokenizer.pad_id
    ids = torch.tensor([0, 5, pad, pad, 6, 2, 0, pad, 7, 2])
    batch = PackedBatch.of(ids, torch.zeros_like(ids), (6, 4))
    models = (encoder.model, plain.model, in_float64(encoder.model))
    # the plain forward masks nothing but its own padding, as the packed one does
    for hidden in zip(*(states(model, batch).values() for model in models), strict=True):
        check_near(*hidden)


@pytest.mark.parametrize("apart", [True, False])
def test_bits_that_still_depend_on_company_are_told(
    apart: bool, tiny: Tiny, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    """As those of experts, which one sequence after the other does not change."""
    name = "packed, sequence by sequence" if apart else "packed"
    told = "sequence by sequence" if apart else "last bits of a vector depend on the texts beside"
    answers = iter([True, True, not apart])
    monkeypatch.setattr(packed_module, "BY_ONEDNN", True)
    monkeypatch.setattr(packed_module, "_bits_differ", lambda *_: next(answers, False))
    model: Any = Encoder(tiny("bert"), device="cpu").model
    assert (model.name, model.together) == (name, name == "packed")
    assert [told in note for note in notes if "beside it" in note] == [True]
