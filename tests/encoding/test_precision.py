"""The choice of precision, and that a job keeps the one it began with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from embedkit.choices import Pooling
from embedkit.dataset.job import recorded_precision
from embedkit.encoding.encoder import choose_precision
from embedkit.encoding.pooling import POOLERS, PackedTokens, combine_layers
from tests.store_fixtures import begin, run, tree, write_tsv

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def _new_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))


@pytest.mark.parametrize(("has_bf16", "chosen"), [(False, "fp32"), (True, "bf16")])
def test_auto_is_bf16_where_there_are_instructions_for_it(
    has_bf16: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bf16)
    assert choose_precision("auto", CPU) == chosen
    assert choose_precision("auto", CUDA) == "bf16"
    assert {choose_precision(name, CPU) for name in ("fp32", None)} == {"fp32"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    hidden = torch.ones((4099, 1), dtype=dtype)
    start = torch.tensor([0])
    tokens = PackedTokens(first=start, counted=torch.arange(4099), offsets=start, head=torch.abs)
    total = POOLERS[Pooling.MEAN].pool(hidden, tokens)
    assert total.dtype == torch.float32
    assert total.item() == 4099  # which half precision does not have
    small = torch.tensor([[0.001]], dtype=dtype)
    total = combine_layers([hidden[:1], small], "sum")
    assert total.dtype == torch.float32
    assert total.item() == 1 + float(small)
    assert hidden[0].item() == 1  # left as it was


def test_a_job_keeps_the_precision_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_tsv(tmp_path / "corpus.tsv")
    has_bf16 = [True]
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bf16[0])

    def go(out: str) -> Any:
        return run(corpus, tmp_path / out, precision="auto")

    golden = go("golden")
    assert golden.manifest.job.vectors.precision == "bf16"

    begin(corpus, tmp_path / "out", precision="auto")
    has_bf16[0] = False  # another machine goes on
    assert recorded_precision(tmp_path / "out") == "bf16"
    result = go("out")
    assert result.resumed_shards >= 1
    assert tree(tmp_path / "out") == tree(tmp_path / "golden")
    assert go("out").was_complete
    assert recorded_precision(tmp_path / "other") == "auto"
    assert go("other").manifest.job.vectors.precision == "fp32"
