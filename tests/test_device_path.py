"""What the forward and a shard ask of a CUDA device, on one that has no values to compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embedkit.encoding import model as model_module
from embedkit.encoding import packed as packed_module
from embedkit.encoding import pooling
from embedkit.encoding.attention import KERNELS
from embedkit.encoding.checkpoint import quiet_transformers
from embedkit.encoding.device import Link
from embedkit.encoding.families import FAMILIES
from embedkit.encoding.model import PRECISIONS, PackedBatch, PlainModel
from embedkit.encoding.packed import PackedModel
from embedkit.encoding.shard import PendingShard
from embedkit.encoding.tokenization import TokenizedText, Window
from embedkit.encoding.views import parse_layers, parse_view
from tests.traced import META, Device, FaultError, pretend_cuda

LAUNCHES = 13
"""Most launches of a layer; FlashAttention's second one, which no trace shows, is one of them."""

KINDS = [("fp32", "efficient"), ("bf16", "varlen"), ("fp16", "varlen"), ("fp16", "efficient")]
DISTINCT = tuple(range(60, 0, -1))
EQUAL = (30,) * 60
LAYERS = 3
TRANSFORMERS = tuple(int(n) for n in metadata.version("transformers").split(".")[:2])
WAITED = {"mpnet": (5, 23), "modernbert": (5, 0)}
"""Families in whose forward transformers itself waited before a version."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    pretend_cuda(monkeypatch, made)
    return made


def plain_model(family: str = "bert", precision: str = "fp32") -> PlainModel:
    """A model of a family without values."""
    quiet_transformers()
    from transformers import AutoConfig, AutoModel

    settings: dict[str, Any] = {
        "hidden_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 2,
        "intermediate_size": 96, "vocab_size": 50, "max_position_embeddings": 512,
        "pad_token_id": 1, "embedding_size": 16,
    }  # fmt: skip
    if family == "distilbert":
        settings = {"dim": 64, "n_layers": LAYERS, "n_heads": 2, "hidden_dim": 96}
    if family == "modernbert":
        settings |= {"cls_token_id": 0, "sep_token_id": 2, "bos_token_id": 0, "eos_token_id": 2}
    config = AutoConfig.for_model(family, **settings)
    with META:
        model = AutoModel.from_config(config, dtype=PRECISIONS[precision])
    pooler = getattr(model, "pooler", None)
    if pooler is not None:
        model.pooler = None
    checkpoint: Any = SimpleNamespace(model_type=family, n_layers=LAYERS, width=64)
    return PlainModel(model.eval(), checkpoint, pad_id=1, pooler=pooler)


def packed_model(precision: str, attention: str, family: str = "bert") -> PackedModel:
    checkpoint: Any = SimpleNamespace(
        model_type=family, config={},
        counts_from_padding=FAMILIES[family].positions_from_padding,
    )  # fmt: skip
    return PackedModel(plain_model(family, precision), checkpoint, attention=attention)


def batch_of(lengths: Sequence[int]) -> PackedBatch:
    ids = torch.zeros(sum(lengths), dtype=torch.int64, device=META)
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=META)
    return PackedBatch(ids, torch.zeros_like(ids), offsets, tuple(lengths))


def launches(
    model: Any, lengths: Sequence[int], layers: Sequence[int], *, first_only: bool = False
) -> int:
    """Launches of a forward that keeps to the rules."""
    batch, shapes = batch_of(lengths), []
    with Device() as device:
        model.forward(batch, layers, lambda i, h: shapes.append(h.shape), first_only=first_only)
    rows = [sum(lengths)] * len(layers)
    rows[-1] = len(lengths) if first_only else rows[-1]
    assert shapes == [(n, 64) for n in rows]
    return len(device.launches)


@pytest.mark.parametrize(("precision", "attention"), KINDS)
@pytest.mark.parametrize("lengths", [EQUAL, DISTINCT])
def test_a_layer_is_few_launches_and_no_wait(
    precision: str, attention: str, lengths: tuple[int, ...]
) -> None:
    model = packed_model(precision, attention)
    counts = [launches(model, lengths, [*range(top + 1)]) for top in range(LAYERS + 1)]
    unseen = 1 if attention == "varlen" else 0
    assert max(np.diff(counts)) + unseen <= LAUNCHES
    tops = range(1, LAYERS + 1)
    for _ in range(2):  # weights of the layer are put together when it is first the highest one
        first = [launches(model, lengths, [top], first_only=True) for top in tops]
    assert max(np.diff(first)) + unseen <= LAUNCHES
    assert first[0] - counts[0] + unseen <= LAUNCHES + 3
    assert counts[0] <= 12


@pytest.mark.parametrize("family", ["roberta", "electra", "xlm-roberta", "camembert"])
def test_other_families_keep_to_the_rules(family: str) -> None:
    model = packed_model("bf16", "varlen", family)
    counts = [launches(model, DISTINCT, [top]) for top in range(LAYERS + 1)]
    assert max(np.diff(counts)) < LAUNCHES
    assert counts[0] <= 25


def test_runs_of_equal_length_keep_to_the_rules_but_are_many_launches() -> None:
    model = packed_model("fp32", "runs")
    equal = launches(model, EQUAL, [LAYERS])
    assert launches(model, DISTINCT, [LAYERS]) > equal + LAYERS * len(DISTINCT)


def wrapped(real: Callable[..., Any], fault: Callable[[Tensor], Any]) -> Callable[..., Any]:
    """The same function, which does something else besides."""

    def faulty(first: Tensor, *more: Any, **named: Any) -> Any:
        fault(first)
        return real(first, *more, **named)

    return faulty


WAITS: dict[str, Callable[[Tensor], Any]] = {
    "_local_scalar_dense waits": lambda x: x.sum().item(),
    "is_nonzero waits|_local_scalar_dense waits": lambda x: bool(x.isfinite().all()),
    "nonzero waits": lambda x: x.nonzero(),
    "by a mask waits": lambda x: x[x[:, 0] > 0],
    "by a mask waits|masked_fill|_index_put": lambda x: x.clone().__setitem__(x > 0, 0),
    "_to_copy between host and device waits": lambda x: x.cpu(),
    "_to_copy between host and|_local_scalar": lambda x: x.tolist(),
    "equal waits": lambda x: torch.equal(x, x),
    "tensor on the device waits": lambda x: torch.tensor([1, 2], device=x.device),
    "_to_copy between host and device": lambda x: torch.arange(3).to(x.device),
    "without output_size": lambda x: torch.repeat_interleave(torch.ones_like(x[:, 0]).long()),
    "mixes torch.bfloat16 and torch.float32": lambda x: x + x.float(),
}


@pytest.mark.parametrize("match", WAITS)
def test_the_rules_find_what_waits_in_a_layer(
    match: str, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = packed_model("bf16", "varlen")
    launches(model, DISTINCT, [LAYERS])
    faulty = wrapped(packed_module._add_norm, WAITS[match])
    monkeypatch.setattr(packed_module, "_add_norm", faulty)
    with pytest.raises(FaultError, match=match):
        launches(model, DISTINCT, [LAYERS])


def test_the_rules_find_a_loop_over_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    model = packed_model("bf16", "varlen")
    before = launches(model, DISTINCT, [LAYERS])
    attend, first = KERNELS["varlen"]

    def one_by_one(qkv: Tensor, spans: Any, heads: int) -> Tensor:
        context, start = attend(qkv, spans, heads), 0
        for count in DISTINCT:
            context[start : start + count] *= 1
            start += count
        return context

    monkeypatch.setitem(KERNELS, "varlen", (one_by_one, first))
    assert launches(model, DISTINCT, [LAYERS]) >= before + LAYERS * len(DISTINCT)
    with pytest.raises(AssertionError, match=r"assert .* <= 13"):
        test_a_layer_is_few_launches_and_no_wait("bf16", "varlen", DISTINCT)


# the plain forward

PADDED = ["bert", "roberta", "electra", "distilbert", "albert", "mpnet", "deberta", "deberta-v2",
          "modernbert"]  # fmt: skip


def run_plain(model: PlainModel, lengths: Sequence[int], device: Device) -> list[Any]:
    shapes: list[Any] = []
    with device:
        model.forward(batch_of(lengths), [0, LAYERS - 1, LAYERS], lambda _, h: shapes.append(h))
        model.forward(batch_of(lengths), [LAYERS], lambda _, h: shapes.append(h), first_only=True)
    return [tuple(h.shape) for h in shapes]


@pytest.mark.parametrize("family", PADDED)
@pytest.mark.parametrize("lengths", [(9, 9, 9), (40, 7, 7, 1)])
def test_the_plain_forward_never_waits(
    family: str, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if WAITED.get(family, (0,)) > TRANSFORMERS:
        pytest.skip("this transformers waits by itself")
    device = Device(one_dtype=False)  # what transformers mixes is its own
    pretend_cuda(monkeypatch, device)
    model = plain_model(family, "fp32" if family == "deberta" else "bf16")
    shape = (sum(lengths), 64)
    assert run_plain(model, lengths, device) == [shape, shape, shape, (len(lengths), 64)]
    assert device.launches.count("_to_copy") >= 2  # one copy of indices for each forward


def test_the_rules_find_what_waits_in_the_plain_forward(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = plain_model("distilbert")
    run_plain(model, (40, 7), device)
    with monkeypatch.context() as patched:
        patched.setattr(model_module._Mask, "of", lambda values, **_: values)
        with pytest.raises(FaultError, match="waits for the device"):
            run_plain(model, (40, 7), device)
    faulty = wrapped(model._padded, lambda values: values[values > 0])
    monkeypatch.setattr(model, "_padded", faulty)
    with pytest.raises(FaultError, match="index by a mask waits"):
        run_plain(model, (40, 7), device)


# a shard

VIEWS = ("cls_-1", "mean_-1", "max_-1", "pooler", "mean_0", "cls_0", "max_1", "mean_sum_1to2",
         "cls_concat_0to1")  # fmt: skip


def text_of(length: int, *, windows: int = 1) -> TokenizedText:
    ids = np.arange(length, dtype=np.int32)
    parts = [Window(ids + i, np.zeros(length, np.int32)) for i in range(windows)]
    return TokenizedText(
        ids=ids, segment=np.zeros(length, np.int8), spans=None,
        word=None, n_tokens=length, windows=tuple(parts), n_unknown=0, cut=False,
    )  # fmt: skip


def run_of(
    model: Any,
    lengths: Sequence[int],
    *,
    views: Sequence[str] = VIEWS,
    tokens: str = "",
    budget: int = 10**6,
    link: Link | None = None,
) -> PendingShard:
    texts = [text_of(length) for length in lengths]
    return PendingShard(
        model,
        link or Link(META),
        texts,
        views=[parse_view(view, n_layers=LAYERS) for view in views],
        token_layers=parse_layers(tokens, n_layers=LAYERS) if tokens else (),
        batch_tokens=budget,
    )


MODELS: dict[str, Callable[[], Any]] = {
    **{f"{p} {k}": lambda p=p, k=k: packed_model(p, k) for p, k in KINDS},  # type: ignore[misc]
    "fp32 runs": lambda: packed_model("fp32", "runs"),
    "bf16 plain": lambda: plain_model("bert", "bf16"),
}


# every model with every layer, and with first tokens alone; the rest with two of them
ASKED = [(VIEWS, "all"), (("cls_-1", "pooler"), ""), (VIEWS, ""), ((), "all"), (("mean_-1",), "")]


@pytest.mark.parametrize(
    ("name", "views", "tokens"),
    [
        pytest.param(
            name, *asked, id=f"{name}-{number}",
            marks=[pytest.mark.slow] * (number > 1 and name not in ("bf16 varlen", "bf16 plain")),
        )
        for name in MODELS for number, asked in enumerate(ASKED)
    ],
)  # fmt: skip
def test_a_shard_keeps_to_the_rules(
    name: str, views: Sequence[str], tokens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(one_dtype="plain" not in name)
    pretend_cuda(monkeypatch, device)
    model = MODELS[name]()
    lengths = range(30, 0, -1)
    with device:
        result = run_of(model, lengths, views=views, tokens=tokens, budget=100).result()
    assert {n: v.shape[0] for n, v in result.views.items()} == dict.fromkeys(result.views, 30)
    assert len(result.views) == len(views)
    assert all(v.shape == (sum(lengths), 64) for v in result.tokens.values())
    assert len(result.tokens) == (LAYERS + 1 if tokens else 0)
    assert len(device.events) == 2


def test_batches_of_other_lengths_are_as_many_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    model = packed_model("bf16", "varlen")
    counts = []
    for lengths in ([20] * 40, range(40, 0, -1)):
        device = Device()
        with monkeypatch.context() as patched, device:
            pretend_cuda(patched, device)
            run_of(model, lengths)
        counts.append(len(device.launches))
    assert counts[0] == counts[1]
    assert counts[0] <= LAYERS * LAUNCHES + 6 * len(VIEWS) + 25


def test_poolings_of_a_layer_read_one_copy_in_float32(device: Device) -> None:
    model = packed_model("bf16", "varlen")
    with device:
        run_of(model, [9, 8], views=["mean_2", "max_2", "cls_2"], tokens="2")
    whole = [name for name in device.launches if name == "_to_copy"]
    assert len(whole) == 3  # the integers of the shard, the offsets in int32, and the layer


@pytest.mark.parametrize("match", WAITS)
def test_the_rules_find_what_waits_in_a_shard(
    match: str, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = packed_model("bf16", "varlen")
    real = pooling.sum_tokens

    def faulty(states: Tensor, *more: Any) -> Tensor:
        WAITS[match](states.bfloat16())
        return real(states, *more)

    monkeypatch.setattr(pooling, "sum_tokens", faulty)
    with device, pytest.raises(FaultError, match=match):
        run_of(model, [9, 8])


# copies between host and device


class WithoutWaiting(Link):
    """The copy begins beside the work that makes what it copies."""

    def fetch(self, matrices: dict[str, Tensor], after: Any) -> Any:
        stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(stream):
            for matrix in matrices.values():
                pinned(matrix).copy_(matrix, non_blocking=True)
        return {}


class WaitsTooEarly(Link):
    """The copy waits for work that was given before its own."""

    def fetch(self, matrices: dict[str, Tensor], after: Any) -> Any:
        after.position //= 2
        return super().fetch(matrices, after)


class WithoutSynchronising(Link):
    """The host reads while the copy runs."""

    def fetch(self, matrices: dict[str, Tensor], after: Any) -> Any:
        stream = torch.cuda.Stream(self.device)
        copies = {name: pinned(matrix) for name, matrix in matrices.items()}
        with torch.cuda.stream(stream):
            stream.wait_event(after)
            for name, copy in copies.items():
                copy.copy_(matrices[name], non_blocking=True)
        return {name: copy.numpy() for name, copy in copies.items()}


class Pageable(Link):
    """The results are copied into memory that the device cannot reach by itself."""

    def fetch(self, matrices: dict[str, Tensor], after: Any) -> Any:
        for matrix in matrices.values():
            torch.empty(matrix.shape).copy_(matrix, non_blocking=True)
        return {}


class Blocking(Link):
    """The host waits for the copy."""

    def fetch(self, matrices: dict[str, Tensor], after: Any) -> Any:
        for matrix in matrices.values():
            pinned(matrix).copy_(matrix)
        return {}


class SendsPageable(Link):
    """The host waits for every array that it sends."""

    def send(self, *arrays: Any) -> list[Tensor]:
        return [torch.from_numpy(a.astype(np.int64)).to(META, non_blocking=True) for a in arrays]


class SendsAndOverwrites(Link):
    """The buffer is used again while it is read."""

    def send(self, *arrays: Any) -> list[Tensor]:
        buffer = device_pinned((len(arrays[0]),), torch.int64)
        sent = buffer.to(META, non_blocking=True)
        buffer.numpy()[:] = 0
        return [sent]


class TimesTooEarly(Link):
    """The time between two marks is read before the device has reached them."""

    def fetch(self, matrices: dict[str, Tensor], after: Any) -> Any:
        return {n: np.zeros(tuple(m.shape), np.float32) for n, m in matrices.items()}


def device_pinned(shape: Any, dtype: Any) -> Tensor:
    from embedkit.encoding import device as device_module

    return device_module._pinned(shape, dtype)


def pinned(matrix: Tensor) -> Tensor:
    return device_pinned(matrix.shape, matrix.dtype)


LINKS: dict[type[Link], str] = {
    WithoutWaiting: "a copy does not wait for the work",
    WaitsTooEarly: "a copy does not wait for the work",
    WithoutSynchronising: "the host touches memory that a copy is still using",
    Pageable: "copy_ between host and device waits",
    Blocking: "copy_ between host and device waits",
    SendsPageable: "_to_copy between host and device waits",
    SendsAndOverwrites: "the host touches memory that a copy is still using",
    TimesTooEarly: "times are read before the work is done",
}


@pytest.mark.parametrize("link", LINKS)
def test_the_rules_find_wrong_copies(link: type[Link], device: Device) -> None:
    model = packed_model("bf16", "varlen")

    def go(by: Link) -> None:
        pending = run_of(model, [9, 8, 7], tokens="all", link=by)
        torch.zeros(3, device=META)  # the next shard is on its way already
        pending.result()

    with device:
        go(Link(META))
        with pytest.raises(FaultError, match=LINKS[link]):
            go(link(META))
