"""The branches for CUDA on fake tensors, which have a device, a shape and a type but no numbers.

They run where there is no GPU, and find what needs none to be found: a kernel that a version of
torch does not have, operands of different types or devices, and a host that would have to wait for
the device, which a fake tensor cannot do. Kernels' own limits, and numbers, need a GPU
(``tests/encoding/test_gpu.py``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import rms_norm
from torch.overrides import TorchFunctionMode

from embedkit.encoding.model import PRECISIONS, Model, PackedBatch, PlainModel
from embedkit.encoding.packed import PackedModel, attention_kinds
from tests.models import Tiny, plain_model, slow
from tests.processes import ROOT, completed

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of fake tensors


class Calls(TorchFunctionMode):
    """Some calls by others, since in a torch without CUDA they look for its library."""

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), words: Any = None
    ) -> Any:
        if function is rms_norm:
            return function(packed(arguments[0]), *arguments[1:])
        function = OTHERS.get(function, function)
        return function(*arguments, **(words or {}))


def taken(values: Tensor, key: Any) -> Tensor:
    """``values[key]`` for integers, slices, new axes and one tensor of integers."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if any(part is ... for part in keys):
        place = next(i for i, part in enumerate(keys) if part is ...)
        missing = values.dim() - sum(part is not None for part in keys) + 1
        keys[place : place + 1] = [slice(None)] * missing
    axis = 0
    for part in keys:
        if part is None:
            values, axis = values.unsqueeze(axis), axis + 1
        elif isinstance(part, slice):
            start, stop, step = part.indices(values.shape[axis])
            values = torch.ops.aten.slice(values, axis, start, max(stop, start), step)
            axis += 1
        elif isinstance(part, Tensor):
            assert part.dtype == torch.int64, "a mask makes the host wait for a count"
            rows = values.index_select(axis, part.flatten())
            values, axis = rows.unflatten(axis, part.shape), axis + part.dim()
        else:
            values = values.select(axis, part)
    return values


def packed(values: Tensor) -> Tensor:
    """A copy whose rows follow each other."""
    return values.clone(memory_format=torch.contiguous_format)


OTHERS: dict[Any, Callable[..., Tensor]] = {
    Tensor.__getitem__: taken,
    Tensor.__invert__: torch.bitwise_not,
    Tensor.contiguous: packed,
    Tensor.copy_: torch.ops.aten.copy_.default,
}

CUDA = torch.device("cuda", 0)
LENGTHS = (40, 17, 17, 5, 2, 1)
KERNELS = ("varlen", "efficient", "runs")
EFFICIENT = ("bert", "roberta", "distilbert", "electra", "xlm-roberta", "albert", "nomic_bert")
"""Families that the kernel of this name takes too."""
RUNS = ("mpnet", "modernbert", "eurobert", "qwen3", "gemma3_text")
"""Those with biases, windows or grouped keys, of which others take some in half precision."""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTensorMode]:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    with Calls():
        yield FakeTensorMode(allow_non_fake_inputs=True)


def to_cuda(plain: PlainModel, mode: FakeTensorMode) -> None:
    """Move a model to a device that is not there."""
    parts = [*plain.module.modules(), *(plain.pooler.modules() if plain.pooler else ())]
    with mode:
        for part in parts:
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    moved = mode.from_tensor(parameter.data).to(CUDA)
                    part._parameters[name] = nn.Parameter(moved, requires_grad=False)
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    part._buffers[name] = mode.from_tensor(buffer).to(CUDA)
    plain.device = CUDA


def states(model: Model, *, first_only: bool = False) -> list[tuple[tuple[int, ...], str]]:
    """Shape and device of each layer, or of the first tokens of the highest one."""
    tokens = sum(LENGTHS)
    ids = torch.zeros(tokens, dtype=torch.int64, device=CUDA)
    offsets = torch.zeros(len(LENGTHS) + 1, dtype=torch.int64, device=CUDA)
    shapes: list[tuple[tuple[int, ...], str]] = []

    def see(_: int, hidden: Tensor) -> None:
        assert hidden.dtype == model.dtype
        shapes.append((tuple(hidden.shape), hidden.device.type))

    layers = [model.n_layers] if first_only else range(model.n_layers + 1)
    batch = PackedBatch(ids, torch.zeros_like(ids), offsets, LENGTHS)
    model.forward(batch, layers, see, first_only=first_only)
    return shapes


QUICK = ("bert", "mpnet", "modernbert", "eurobert")
LONG = sorted({*EFFICIENT, *RUNS} - {*QUICK})


# the kernel for texts of many lengths asks the driver that a CUDA build of torch expects
driver = pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(), reason="no CUDA driver"
)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=driver)])
@pytest.mark.parametrize("family", [*QUICK, *slow(*LONG)])
def test_kernels_take_what_they_are_given(
    family: str, precision: str, tiny: Tiny, fake: FakeTensorMode
) -> None:
    plain = plain_model(tiny(family), PRECISIONS[precision])
    to_cuda(plain, fake)
    taken = set()
    kinds = attention_kinds(CUDA, plain.dtype)
    assert kinds == KERNELS[precision == "fp32" :]
    for kind in kinds:
        model = PackedModel(plain, attention=kind)
        try:
            with fake:
                whole, first = states(model), states(model, first_only=True)
        except NotImplementedError:  # a kernel that is left out on purpose, with its reason
            continue
        taken.add(kind)
        assert whole == [((sum(LENGTHS), plain.width), "cuda")] * (plain.n_layers + 1)
        assert first == [((len(LENGTHS), plain.width), "cuda")]
    expected = {"efficient": family in EFFICIENT, "runs": True}
    expected["varlen"] = precision == "bf16" and family != "mpnet"  # whose positions are biases
    assert taken == {kind for kind, takes in expected.items() if takes}


def test_the_plain_forward_selects_tokens_without_waiting(tiny: Tiny, fake: FakeTensorMode) -> None:
    plain = plain_model(tiny("fnet"))  # the others' own masks ask for numbers
    to_cuda(plain, fake)
    plain.__dict__["_sees_padding"] = False  # which asks for numbers, once
    with fake:
        assert states(plain) == [((sum(LENGTHS), plain.width), "cuda")] * (plain.n_layers + 1)


@pytest.mark.slow
def test_every_section_of_the_benchmark_runs_on_the_cpu(tmp_path: Path) -> None:
    """A section that fails here would fail on the first GPU, where time is dear."""
    words = ["-m", "benchmarks.gpu", "--device", "cpu", "--quick", "--out", str(tmp_path)]
    completed(sys.executable, *words, cwd=ROOT)
    sections = json.loads((tmp_path / "gpu.json").read_text("utf-8"))["sections"]
    assert all(section["rows"] or "skipped" in section for section in sections.values())
    assert {name for name, section in sections.items() if "skipped" in section} == {"memory"}
