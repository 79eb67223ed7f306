"""On a CUDA device: the packed forward against the plain one, extraction, fine-tuning.

Run by ``pytest -m gpu``; skipped where there is no device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import embedkit
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.model import PRECISIONS, choose_precision, computes_bf16
from embedkit.encoding.packed import PackedModel, attention_kinds, fastest
from embedkit.encoding.views import parse_view
from embedkit.encoding.windows import TokenizerSettings
from tests.models import (
    TEXTS,
    EncoderOf,
    Tiny,
    batch_of,
    build_bert,
    distance,
    far,
    plain_model,
    states,
)
from tests.store_fixtures import write_reviews

pytestmark = [
    pytest.mark.gpu,
    # what else CUDA's own calls warn of cannot be seen where there is none
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

CUDA = torch.device("cuda")
LENGTHS = (100, 64, 64, 31, 17, 16, 5, 2, 1)
VIEWS = ["cls_-1", "mean_-1", "max_1", "mean_sum_1to2", "mean_0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A BERT whose heads every kernel takes."""
    return build_bert(tmp_path_factory.mktemp("gpu"), layers=4, heads=4, width=128)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("attention", ["varlen", "efficient", "runs"])
def test_packed_equals_plain(folder: str, precision: str, attention: str) -> None:
    plain = plain_model(folder, PRECISIONS[precision], CUDA)
    if attention not in attention_kinds(CUDA, plain.dtype):
        pytest.skip(f"{attention} is not for this device in {precision}")
    ours = PackedModel(plain, attention=attention)
    batch = batch_of(LENGTHS, 300, device=CUDA)
    exact = states(plain_model(folder), batch_of(LENGTHS, 300))
    theirs, whole = states(plain, batch), states(ours, batch)
    for layer, truth in exact.items():
        assert far(whole[layer], truth) <= max(1e-5, 1.2 * far(theirs[layer], truth))
    top = ours.n_layers
    (first,) = states(ours, batch, [top], first_only=True).values()
    starts = batch.offsets[:-1].cpu().numpy()
    assert far(first, exact[top][starts]) <= max(1e-5, 1.5 * far(theirs[top], exact[top]))


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_first_kernel_is_taken(folder: str, precision: str, notes: list[str]) -> None:
    if precision == "bf16" and not computes_bf16(CUDA):
        pytest.skip("this device has no bf16")
    plain = plain_model(folder, PRECISIONS[precision], CUDA)
    chosen: Any = fastest(plain)
    assert notes == []
    assert chosen.attention == attention_kinds(CUDA, plain.dtype)[0]
    assert chosen.of_short == ("" if precision == "fp32" else "efficient")


def test_a_head_size_that_no_kernel_takes_is_packed_all_the_same(
    tmp_path: Path, notes: list[str]
) -> None:
    folder = build_bert(tmp_path, layers=3, heads=2, width=52)
    plain = plain_model(folder, PRECISIONS[choose_precision(None, CUDA)], CUDA)
    assert isinstance(fastest(plain), PackedModel)
    assert all("the attention kernel" in notice for notice in notes)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet", "modernbert"])
def test_vectors_equal_those_of_the_cpu(
    family: str, precision: str, tiny: Tiny, encoder_of: EncoderOf
) -> None:
    gpu = Encoder(str(tiny(family)), device="cuda", precision=precision)
    wanted = encoder_of(family).encode_views(TEXTS, VIEWS)
    ours = gpu.encode_views(TEXTS, VIEWS)
    for name, vectors in ours.items():
        assert distance(vectors, wanted[name]).max() <= (1e-4 if precision == "fp32" else 2e-2)
    again = gpu.encode_views(TEXTS, VIEWS)
    assert all(np.array_equal(vectors, again[name]) for name, vectors in ours.items())


def test_a_shard_does_not_wait_until_it_is_read(tiny_bert: Path) -> None:
    encoder = Encoder(str(tiny_bert), device="cuda")
    texts = encoder.tokenizer.encode(TEXTS, settings=TokenizerSettings(64))
    views = [parse_view(view, n_layers=3) for view in VIEWS]
    before = encoder.encode_shard(texts, views=views)  # loads kernels, and reserves memory
    try:
        torch.cuda.set_sync_debug_mode("error")
        pending = encoder.start_shard(texts, views=views)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for name, vectors in pending.result().views.items():
        assert np.array_equal(vectors, before.views[name])


@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_extraction_end_to_end(tiny_bert: Path, tmp_path: Path, precision: Any) -> None:
    texts = [f"{'a movie ' * (i % 40)}{('bad', 'good')[i % 2]} {i}" for i in range(120)]
    embedkit.extract(
        texts,
        out=tmp_path / "out",
        model=str(tiny_bert),
        device=CUDA.type,
        precision=precision,
        pooling=["cls", "mean"],
        layers="all",
        shard_rows=50,
    )
    report = embedkit.verify(tmp_path / "out", recompute=20, device=CUDA.type)
    assert report.ok
    wanted = Encoder(str(tiny_bert), device="cpu").encode_views(texts, ["mean_3", "cls_2"])
    for name, vectors in wanted.items():
        ours = embedkit.load(tmp_path / "out", view=name).X
        assert distance(ours, vectors).max() <= (1e-4 if precision == "fp32" else 2e-2)


@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_fine_tuning_of_one_epoch(tiny_bert: Path, tmp_path: Path, precision: Any) -> None:
    result = embedkit.finetune(
        write_reviews(tmp_path / "corpus.tsv", 120, rejected=False),
        out=tmp_path / "run",
        model=str(tiny_bert),
        device=CUDA.type,
        folds=2,
        precision=precision,
        epochs=1,
        max_length=32,
    )
    chosen = choose_precision(precision, CUDA)
    assert result.content.precision == chosen
    assert 0 <= result.content.scores["cross_validation"]["accuracy"].value <= 1
