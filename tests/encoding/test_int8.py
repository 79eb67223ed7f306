"""The precision int8: exact sums, ranges that no text shares, distance from fp32."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from embedkit.encoding.encoder import Encoder
from embedkit.encoding.products import _int8_product
from embedkit.errors import UsageError
from tests.models import TEXTS, EncoderOf, Tiny, distance
from tests.processes import ROOT, program


def wrong_sums(width: int) -> int:
    """Entries of a product of matrices of the full range that are no exact sums, but for scales."""
    generator = torch.Generator().manual_seed(width)
    steps = torch.randint(-63, 64, (96, width), generator=generator)
    steps[:, 0] = 63  # the range of every row
    steps[:48] = 63
    layer = torch.nn.Linear(width, 96, bias=False)
    layer.weight = torch.nn.Parameter(steps.float())
    x = torch.randint(0, 256, (64, width), generator=generator)
    x[:32] = 255
    with torch.inference_mode():
        result = _int8_product(layer, torch.zeros(width), torch.full((width,), 255.0))(x.float())
    return int((~result.isclose((x @ steps.T).float(), rtol=1e-5, atol=0.5)).sum())


WIDTHS = (64, 384, 1536)


def test_no_sum_of_the_full_range_overflows() -> None:
    """By ``make test-avx2`` without VNNI, too, where pairs of products are added in 16 bits."""
    assert [wrong_sums(width) for width in WIDTHS] == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["AVX2", "SSE41"])
def test_nor_does_one_of_an_older_processor(isa: str) -> None:
    code = "from tests.encoding.test_int8 import *; print(*map(wrong_sums, WIDTHS))"
    done = program(sys.executable, "-c", code, cwd=ROOT, ONEDNN_MAX_CPU_ISA=isa)
    assert done.stdout.split() == ["0", "0", "0"], done.stderr


@pytest.mark.parametrize("family", ["bert", "modernbert", "mpnet"])
def test_a_text_has_the_same_bits_in_any_company(
    family: str, tiny: Tiny, encoder_of: EncoderOf
) -> None:
    encoder = Encoder(str(tiny(family)), device="cpu", precision="int8")
    views = ["mean_0", "mean_2", "mean_-1", "cls_-1", "max_1"]
    together, exact = (e.encode_views(TEXTS, views) for e in (encoder, encoder_of(family)))
    for i, text in enumerate(TEXTS):
        for name, vectors in encoder.encode_views([text], views).items():
            assert np.array_equal(vectors[0], together[name][i])
    again = Encoder(str(tiny(family)), device="cpu", precision="int8")
    for name, vectors in again.encode_views(TEXTS[::-1], views).items():
        assert np.array_equal(vectors[::-1], together[name])
        assert distance(vectors[::-1], exact[name]).mean() < 0.2
    assert distance(together["mean_3"], exact["mean_3"]).min() > 1e-4
    short = Encoder(str(tiny(family)), device="cpu", precision="int8", max_length=20)
    assert np.array_equal(short.encode(["good"]), encoder.encode(["good"]))


@pytest.mark.slow
def test_minilm_keeps_its_neighbours(minilm: Encoder) -> None:
    encoder = Encoder(device="cpu", precision="int8")
    ours, exact = (e.encode(TEXTS, normalize_embeddings=True) for e in (encoder, minilm))
    assert np.abs(ours @ ours.T - exact @ exact.T).max() < 0.1
    assert (ours * exact).sum(1).mean() > 0.98


def test_where_it_cannot_run(tiny: Tiny) -> None:
    with pytest.raises(UsageError, match="not computed in 8 bits"):
        Encoder(tiny("gpt2"), precision="int8", device="cpu")  # it has no linear layers
    with pytest.raises(UsageError, match="int8"):
        Encoder(str(tiny("deberta")), device="cpu", precision="int8")
    with pytest.raises(UsageError, match="int8"):
        Encoder(str(tiny("bert")), device="cpu", precision="int8", forward="transformers")
