"""The choice of precision, and that a job keeps the one it began with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from embedkit.dataset.jobs import recorded_precision
from embedkit.encoding import precision as precision_module
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.precision import GAIN, choose_precision, time_products
from embedkit.errors import UsageError
from embedkit.finetuning.folds import _precision as training_precision
from tests.store_fixtures import run, tiny_model, tree_hash, write_tsv

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def _new_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))


def test_older_gpus_take_fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch counts it, they support bf16 too: by emulation."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)
    assert [choose_precision(name, CUDA) for name in (None, "auto")] == ["fp16", "fp16"]
    assert [choose_precision(name, CUDA) for name in ("bf16", "fp32")] == ["bf16", "fp32"]
    assert training_precision("auto", CUDA) == "fp16"
    assert training_precision("bf16", CUDA) == "bf16"
    assert choose_precision(None, CPU) == "fp32"


def test_what_is_asked_for_is_taken() -> None:
    assert [choose_precision(None, d) for d in (CPU, CUDA)] == ["fp32", "bf16"]
    assert [choose_precision("auto", d) for d in (CPU, CUDA)] == ["fp32", "bf16"]
    assert choose_precision("fp16", CPU) == "fp16"
    with pytest.raises(UsageError, match="precision='fp8': expected auto, fp32, bf16, fp16"):
        choose_precision("fp8", CPU)


@pytest.mark.parametrize(
    ("speedup", "chosen"), [(1.0, "fp32"), (1.1, "fp32"), (GAIN, "bf16"), (2.0, "bf16")]
)
def test_bf16_has_to_be_worth_it(
    speedup: float, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision_module, "time_products", lambda **_: speedup)
    checkpoint = find_checkpoint(str(tiny_model()))
    assert choose_precision("auto", CPU, checkpoint) == chosen
    assert choose_precision("auto", CUDA, checkpoint) == "bf16"
    assert choose_precision("fp32", CPU, checkpoint) == "fp32"


def test_the_trial_times_this_machine() -> None:
    assert 0 < time_products(width=32, inner=64) < float("inf")


def test_a_job_keeps_the_precision_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    corpus = write_tsv(tmp_path / "corpus.tsv")
    speed = [2.0]
    monkeypatch.setattr(precision_module, "time_products", lambda **_: speed[0])

    def go(out: str, **settings: Any) -> Any:
        settings = {"precision": "auto", "model": str(tiny_model()), **settings}
        return run(corpus, tmp_path / out, **settings)

    golden = go("golden")
    assert golden.manifest.job.vectors.precision == "bf16"
    assert "precision: bf16; here bf16 takes 0.50 of the time of fp32" in notes

    def stop(state: Any) -> None:
        if state.stage == "shard 2":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go("out", progress=stop)
    speed[0] = 1.0  # the machine has become busy
    assert recorded_precision(tmp_path / "out") == "bf16"
    result = go("out")
    assert result.resumed_shards >= 1
    assert tree_hash(tmp_path / "out") == tree_hash(tmp_path / "golden")
    assert go("out").was_complete
    assert recorded_precision(tmp_path / "other") is None
    assert go("other").manifest.job.vectors.precision == "fp32"


def test_auto_by_default_is_fp32_on_cpu() -> None:
    assert Encoder.load(str(tiny_model()), device="cpu").precision == "fp32"
