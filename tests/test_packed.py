"""The padding-free forward against the plain one, and against itself in other company."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embedkit.encoding import attention as attention_module
from embedkit.encoding import packed as packed_module
from embedkit.encoding.attention import KERNELS, attention_kinds, key_length, length_runs
from embedkit.encoding.checkpoint import Checkpoint, find_checkpoint
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.model import PRECISIONS, PackedBatch, PlainModel, load_model
from embedkit.encoding.packed import PackedModel, fastest
from embedkit.encoding.tokenization import TokenizerSettings
from embedkit.encoding.views import parse_view
from embedkit.errors import ModelError
from tests.models import FAMILIES, TEXTS, needs_plain_bf16, save_model

PACKED = ("bert", "roberta", "xlm-roberta", "electra", "japanese")
LENGTHS: list[Sequence[int]] = [
    (1,), (2,), (31,), (1,) * 7, (12,) * 5, (45,) * 3, (40, 3, 2, 1), (100, 17, 16, 15, 5, 5, 4),
    (150, 1), tuple(range(60, 0, -3)),
]  # fmt: skip
Forward = PlainModel | PackedModel


def both(folder: str, precision: str = "fp32") -> tuple[PackedModel, PlainModel, Checkpoint]:
    checkpoint = find_checkpoint(folder)
    plain = load_model(
        checkpoint, pad_id=0, device=torch.device("cpu"), dtype=PRECISIONS[precision]
    )
    return PackedModel(plain, checkpoint), plain, checkpoint


def batch_of(lengths: Sequence[int], vocabulary: int, seed: int = 0) -> PackedBatch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, vocabulary, (sum(lengths),), generator=generator)
    types = torch.randint(0, 1, (sum(lengths),), generator=generator)
    return PackedBatch.of(ids, types, lengths)


def states(
    model: Forward, batch: PackedBatch, layers: Sequence[int] = (), *, first_only: bool = False
) -> dict[int, Any]:
    found: dict[int, Any] = {}

    def keep(layer: int, hidden: torch.Tensor) -> None:
        found[layer] = hidden.float().numpy().copy()

    model.forward(batch, layers or range(model.n_layers + 1), keep, first_only=first_only)
    return found


def far(ours: Any, theirs: Any) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


@pytest.fixture(scope="module")
def twelve_layers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A BERT of 12 layers and 12 heads with random weights."""
    folder = tmp_path_factory.mktemp("twelve")
    save_model(
        folder, "bert", vocab_size=300, hidden_size=96, num_hidden_layers=12,
        num_attention_heads=12, intermediate_size=384, max_position_embeddings=512,
        initializer_range=0.1,
    )  # fmt: skip
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    return str(folder)


@pytest.fixture(params=["minilm", "twelve"])
def models(
    request: pytest.FixtureRequest, minilm: Encoder, twelve_layers: str
) -> tuple[PackedModel, PlainModel, Checkpoint]:
    folder = {"minilm": str(minilm.checkpoint.folder), "twelve": twelve_layers}
    return both(folder[request.param])


def test_every_layer_for_every_mix_of_lengths(
    models: tuple[PackedModel, PlainModel, Checkpoint],
) -> None:
    ours, plain, checkpoint = models
    for lengths in LENGTHS:
        batch = batch_of(lengths, int(checkpoint.config["vocab_size"]))
        theirs = states(plain, batch)
        for layer, hidden in states(ours, batch).items():
            assert hidden.shape == (sum(lengths), ours.width)
            assert far(hidden, theirs[layer]) <= 1e-5


@needs_plain_bf16
def test_bf16_is_as_near_to_fp32_as_plain_bf16(
    models: tuple[PackedModel, PlainModel, Checkpoint],
) -> None:
    _, exact, checkpoint = models
    ours, plain, _ = both(str(checkpoint.folder), "bf16")
    batch = batch_of((100, 45, 45, 20, 16, 5, 1), int(checkpoint.config["vocab_size"]))
    truth, theirs = states(exact, batch), states(plain, batch)
    limit = 1.2 if torch.__version__ >= "2.10" else 1.25  # oneDNN of torch 2.6: 1.202
    for layer, hidden in states(ours, batch).items():
        assert far(hidden, truth[layer]) <= limit * far(theirs[layer], truth[layer])


def varlen_by_hand(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, query_ends: torch.Tensor,
    key_ends: torch.Tensor, longest_query: int, longest_key: int,
) -> torch.Tensor:  # fmt: skip
    """What torch's kernel for CUDA takes and gives, sequence by sequence."""
    for tensor in (query, key, value):
        assert tensor.dtype in (torch.bfloat16, torch.float16)
        assert (tensor.dim(), tensor.stride(-1)) == (3, 1)
    ends = (query_ends, key_ends, longest_query, longest_key)
    return attended(query, key, value, *ends)


def attended(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, query_ends: torch.Tensor,
    key_ends: torch.Tensor, longest_query: int, longest_key: int,
) -> torch.Tensor:  # fmt: skip
    for ends, longest in ((query_ends, longest_query), (key_ends, longest_key)):
        assert ends.dtype == torch.int32
        assert ends.is_contiguous()
        assert int(ends[0]) == 0
        assert type(longest) is int
        assert longest == int(ends.diff().max())
    assert len(query_ends) == len(key_ends)
    result = torch.zeros_like(query)
    bounds = zip(query_ends.tolist(), query_ends[1:].tolist(), key_ends.tolist(),
                 key_ends[1:].tolist(), strict=False)  # fmt: skip
    for q0, q1, k0, k1 in bounds:
        q, k, v = (x.transpose(0, 1)[None] for x in (query[q0:q1], key[k0:k1], value[k0:k1]))
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        result[q0:q1] = attended[0].transpose(0, 1)
    return result


@needs_plain_bf16
def test_the_kernel_for_cuda_is_given_what_it_takes(
    minilm: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    import inspect

    varlen = pytest.importorskip("torch.nn.attention.varlen")  # since torch 2.10

    names = list(inspect.signature(varlen.varlen_attn).parameters)
    assert names[:7] == ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]
    monkeypatch.setattr(varlen, "varlen_attn", varlen_by_hand)
    _, plain, checkpoint = both(str(minilm.checkpoint.folder), "bf16")
    ours = PackedModel(plain, checkpoint, attention="varlen")
    _, exact, _ = both(str(minilm.checkpoint.folder))
    assert_as_near(ours, plain, exact)


def assert_as_near(
    ours: PackedModel, plain: PlainModel, exact: PlainModel, *, least: float = 0.0
) -> None:
    """Hidden states are about as near to the exact ones as those of the plain forward."""
    for lengths in LENGTHS:
        batch = batch_of(lengths, 30_000)
        truth, theirs = states(exact, batch), states(plain, batch)
        for layer, hidden in states(ours, batch).items():
            assert far(hidden, truth[layer]) <= max(least, 1.2 * far(theirs[layer], truth[layer]))
        starts = batch.offsets[:-1].numpy()
        (first,) = states(ours, batch, [6], first_only=True).values()
        limit = max(least, 1.5 * far(theirs[6][starts], truth[6][starts]))
        assert far(first, truth[6][starts]) <= limit


def efficient_by_hand(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: None,
    query_ends: torch.Tensor, key_ends: torch.Tensor, longest_query: int, longest_key: int,
    dropout: float, mask: int,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """As varlen_by_hand, for the memory-efficient kernel."""
    assert (bias, dropout, mask) == (None, 0.0, 0)
    size, by = query.shape[-1], 16 // query.element_size()
    for tensor in (query, key, value):
        assert (tensor.dim(), len(tensor), tensor.stride(-1)) == (4, 1, 1)
        assert size % by or tensor.stride(1) % by == tensor.stride(2) % by == 0
        assert size % by or tensor.data_ptr() % 16 == 0
    ends = (query_ends, key_ends, longest_query, longest_key)
    return attended(query[0], key[0], value[0], *ends)[None], None


@needs_plain_bf16
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_kernel_for_older_devices_is_given_what_it_takes(
    minilm: Encoder, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    names = [a.name for a in torch.ops.aten._efficient_attention_forward.default._schema.arguments]
    assert names[:10] == [
        "query",
        "key",
        "value",
        "bias",
        "cu_seqlens_q",
        "cu_seqlens_k",
        "max_seqlen_q",
        "max_seqlen_k",
        "dropout_p",
        "custom_mask_type",
    ]
    monkeypatch.setattr(torch.ops.aten, "_efficient_attention_forward", efficient_by_hand)
    _, plain, checkpoint = both(str(minilm.checkpoint.folder), precision)
    ours = PackedModel(plain, checkpoint, attention="efficient")
    _, exact, _ = both(str(minilm.checkpoint.folder))
    assert_as_near(ours, plain, exact, least=1e-5)


@pytest.mark.parametrize("first_only", [False, True])
def test_a_text_has_the_same_bits_in_any_company(
    models: tuple[PackedModel, PlainModel, Checkpoint], first_only: bool
) -> None:
    """Alone, between others, first or last: nothing but the text decides."""
    ours, _, checkpoint = models
    vocabulary = int(checkpoint.config["vocab_size"])
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


def test_encoder_gives_the_same_bits_for_any_budget_and_order(minilm: Encoder) -> None:
    views = ["mean_-1", "cls_3", "max_1", "pooler"]
    wanted = minilm.encode_views(TEXTS, views)
    order = np.random.default_rng(0).permutation(len(TEXTS))
    try:
        for budget in (64, 300, 5_000):
            minilm.batch_tokens = budget
            ours = minilm.encode_views([TEXTS[i] for i in order], views)
            for name, vectors in ours.items():
                assert np.array_equal(vectors, wanted[name][order])
    finally:
        minilm.batch_tokens = 2_048


@pytest.mark.parametrize(
    "models", ["twelve", pytest.param("minilm", marks=pytest.mark.slow)], indirect=True
)
def test_the_first_tokens_of_the_last_layer_alone(
    models: tuple[PackedModel, PlainModel, Checkpoint],
) -> None:
    for model in models[:2]:
        for lengths in LENGTHS:
            batch = batch_of(lengths, int(models[2].config["vocab_size"]))
            whole = states(model, batch)
            for top in (0, 1, model.n_layers):
                layers = sorted({0, top})
                found = states(model, batch, layers, first_only=True)
                assert list(found) == layers
                starts = batch.offsets[:-1].numpy()
                assert far(found[top], whole[top][starts]) <= 1e-5
                if top:
                    assert np.array_equal(found[0], whole[0])


@pytest.mark.parametrize("views", [["cls_-1"], ["pooler"], ["cls_-1", "pooler"]])
def test_cls_and_pooler_alone_equal_those_beside_others(minilm: Encoder, views: list[str]) -> None:
    ours = minilm.encode_views(TEXTS, views)
    beside = minilm.encode_views(TEXTS, [*views, "mean_-1"])
    for name, vectors in ours.items():
        assert far(vectors, beside[name]) <= 1e-6


def test_only_first_tokens_are_computed_where_nothing_else_is_asked(
    minilm: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    real = minilm.model.forward

    def forward(*args: Any, first_only: bool) -> None:
        asked.append(first_only)
        real(*args, first_only=first_only)

    monkeypatch.setattr(minilm.model, "forward", forward)
    tokenized = minilm.tokenizer.encode(TEXTS[:2], settings=TokenizerSettings(32))
    cases = {
        ("cls_-1",): True, ("pooler",): True, ("pooler", "mean_3"): True, ("mean_-1",): False,
        ("cls_-1", "max_-1"): False, ("cls_sum_5to6",): False, ("pooler", "cls_mean_1to6"): False,
        ("cls_0",): True,
    }  # fmt: skip
    for names, expected in cases.items():
        views = [parse_view(name, n_layers=6) for name in names]
        minilm.encode_shard(tokenized, views=views)
        assert asked.pop() == expected, names
        layers = [view.layer for view in views]
        minilm.encode_shard(tokenized, views=views, token_layers=layers)
        assert not asked.pop()


@pytest.mark.parametrize("family", FAMILIES)
def test_which_families_are_packed(family: str, encoder_of: Callable[[str], Encoder]) -> None:
    encoder = encoder_of(family)
    known = encoder.checkpoint.is_plain_bert
    assert encoder.model.name == ("packed" if known else "transformers")
    assert encoder.model.pads is not known
    if family in PACKED:
        assert known
    if family in ("distilbert", "albert", "mpnet", "deberta", "modernbert"):
        assert not known


def test_the_plain_forward_can_be_asked_for(tiny_bert: Path) -> None:
    ours = Encoder.load(str(tiny_bert), device="cpu", forward="transformers")
    assert isinstance(ours.model, PlainModel)
    from embedkit.errors import UsageError

    with pytest.raises(UsageError, match="forward='fast': expected auto, transformers"):
        Encoder.load(str(tiny_bert), forward="fast")


@pytest.mark.parametrize(
    "change",
    [{"hidden_act": "relu"}, {"position_embedding_type": "relative_key"}, {"is_decoder": True}],
)
def test_what_is_not_plain_bert_keeps_the_plain_forward(
    minilm: Encoder, change: dict[str, Any]
) -> None:
    import dataclasses

    checkpoint = minilm.checkpoint
    assert checkpoint.is_plain_bert
    assert not dataclasses.replace(checkpoint, config={**checkpoint.config, **change}).is_plain_bert


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh"])
def test_forms_of_gelu(activation: str, tmp_path: Path) -> None:
    save_model(
        tmp_path, "bert", vocab_size=50, hidden_size=24, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=48, max_position_embeddings=64,
        hidden_act=activation, initializer_range=0.5,
    )  # fmt: skip
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]")
    ours, plain, _ = both(str(tmp_path))
    batch = batch_of((30, 7, 7), 50)
    assert far(states(ours, batch)[2], states(plain, batch)[2]) <= 1e-5


def test_a_forward_that_disagrees_is_refused_with_a_warning(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    _, plain, checkpoint = both(str(tiny_bert))
    assert isinstance(fastest(plain, checkpoint), PackedModel)
    unmasked = torch.zeros(1, 1, 1, 1)  # every sequence sees what follows it
    monkeypatch.setattr(attention_module, "_mask", lambda *_: unmasked)
    assert fastest(plain, checkpoint) is plain
    (notice,) = notes
    assert notice.startswith("the fast forward differs from the plain one by ")
    assert notice.endswith("using the plain one, which is slower")


@pytest.mark.parametrize("attend", ["_attend_runs", "_attend_first_runs"])
def test_sequences_attend_one_by_one_where_company_would_matter(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch, attend: str,
    notes: list[str],
) -> None:  # fmt: skip
    _, plain, checkpoint = both(str(tiny_bert))
    genuine = getattr(attention_module, attend)

    def by_company(rows: torch.Tensor, *others: Any) -> Any:
        """As a kernel that rounds otherwise when it computes several sequences at once."""
        spans = others[-2]
        several = any(count > 1 for _, count, _ in spans.runs)
        return genuine(rows, *others) * (1 + 1e-6 * several)

    kernels = {name: by_company if function is genuine else function
               for name, function in zip(("all", "first"), KERNELS["runs"],
                                         strict=True)}  # fmt: skip
    monkeypatch.setitem(KERNELS, "runs", (kernels["all"], kernels["first"]))
    ours = fastest(plain, checkpoint)
    assert ours.name == "packed, sequence by sequence"
    assert notes == [
        "on this machine the last bits of a vector would depend on the texts beside it; "
        "attention runs sequence by sequence, which is slower"
    ]
    first_only = attend == "_attend_first_runs"
    batch = batch_of((9, 9, 9), 40)
    (together,) = states(ours, batch, [3], first_only=first_only).values()
    for i, ids in enumerate(batch.ids.split(9)):
        one = PackedBatch.of(ids, torch.zeros_like(ids), [9])
        (alone,) = states(ours, one, [3], first_only=first_only).values()
        assert np.array_equal(alone, together[i * len(alone) : (i + 1) * len(alone)])


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError,
        NotImplementedError,
        AttributeError,
        IndexError,
        TypeError,
        ValueError,
        AssertionError,
    ],
)
def test_a_forward_that_cannot_run_is_refused_with_a_warning(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception],
    notes: list[str],
) -> None:  # fmt: skip
    def missing(*_: Any) -> None:
        raise error("no such kernel")

    _, plain, checkpoint = both(str(tiny_bert))
    monkeypatch.setitem(KERNELS, "runs", (missing, missing))
    assert fastest(plain, checkpoint) is plain
    assert notes == [
        "the fast forward cannot run here (no such kernel); using the plain one, which is slower"
    ]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
    ],
)
def test_memory_that_runs_out_in_the_trial_is_named(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch, error: Exception,
    notes: list[str],
) -> None:  # fmt: skip
    def full(*_: Any) -> None:
        raise error

    _, plain, checkpoint = both(str(tiny_bert))
    monkeypatch.setitem(KERNELS, "runs", (full, full))
    assert fastest(plain, checkpoint) is plain
    assert notes == [
        f"memory ran out while the fast forward was tried ({error}); using the plain one, which "
        "is slower. Free memory on that device, or choose another device="
    ]


class Older(torch.nn.Module):
    """A model as in older transformers: 4.57 gives every state, 5.17 a list without the last."""

    def __init__(self, model: Any, leaves_out_last: bool) -> None:
        super().__init__()
        self.model, self.leaves_out_last = model, leaves_out_last
        self.encoder: Any = getattr(model, "encoder", None)  # where the layers stand
        self.asked: list[Any] = []

    def forward(self, input_ids: Any, output_hidden_states: Any, **inputs: Any) -> Any:
        self.asked.append(output_hidden_states)
        inputs.pop("token_type_ids", None)
        output = self.model(input_ids=input_ids, output_hidden_states=True, **inputs)
        before_norm = torch.zeros_like(output.hidden_states[-1])  # ModernBERT's last, in 4.57
        if output_hidden_states is True and self.model.config.model_type == "modernbert":
            output.hidden_states = (*output.hidden_states[:-1], before_norm)
        if self.leaves_out_last and output_hidden_states is not True:
            output.hidden_states = tuple(
                h if i in output_hidden_states else None
                for i, h in enumerate(output.hidden_states[:-1])
            )
        return output


@pytest.mark.parametrize("leaves_out_last", [False, True])
@pytest.mark.parametrize("family", ["bert", "mpnet", "modernbert"])
def test_transformers_that_know_no_list_of_layers(
    tiny: Callable[[str], Path], family: str, leaves_out_last: bool
) -> None:
    checkpoint = find_checkpoint(str(tiny(family)))
    plain = load_model(checkpoint, pad_id=0, device=torch.device("cpu"), dtype=torch.float32)
    wanted = Older(plain.module, leaves_out_last)
    batch = batch_of((5, 3, 3), 40)
    expected = {top: states(plain, batch, layers) for top, layers in ((2, [0, 2]), (3, [3]))}
    older = PlainModel(wanted, checkpoint, pad_id=0, pooler=None)
    for top, hidden in expected.items():
        found = states(older, batch, list(hidden))
        for layer in hidden:
            assert np.array_equal(found[layer], hidden[layer]), (top, layer)
    assert (wanted.asked[-1] is True) == leaves_out_last


def test_a_kernel_that_is_refused_costs_no_more_than_itself(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")

    def wrong(qkv: torch.Tensor, *_: Any) -> torch.Tensor:
        return torch.zeros_like(qkv[:, : qkv.shape[1] // 3])

    _, plain, checkpoint = both(str(tiny_bert))
    monkeypatch.setattr(
        packed_module, "attention_kinds", lambda *_: ("varlen", "efficient", "runs")
    )
    monkeypatch.setitem(KERNELS, "varlen", (refuse, refuse))
    first = KERNELS["runs"][1]
    monkeypatch.setitem(KERNELS, "efficient", (wrong, first))
    chosen = fastest(plain, checkpoint)
    assert isinstance(chosen, PackedModel)
    assert chosen.attention == "runs"
    batch = batch_of((30, 7, 7), 40)
    assert far(states(chosen, batch)[3], states(plain, batch)[3]) <= 1e-5
    why = "FlashAttention only supports Ampere GPUs or newer"
    assert notes[0] == f"the attention kernel varlen cannot run here ({why}); using runs"
    assert notes[1].startswith("the attention kernel efficient differs from the plain one by ")
    assert notes[1].endswith(" on this machine; using runs")
    monkeypatch.setitem(KERNELS, "runs", (refuse, refuse))
    notes.clear()
    assert fastest(plain, checkpoint) is plain
    assert [n.split(" ")[1] for n in notes] == ["attention", "attention", "fast"]
    assert notes[2] == (
        f"the fast forward cannot run here ({why}); using the plain one, which is slower"
    )


@pytest.mark.parametrize(
    ("capability", "precision", "kinds"),
    [
        ((7, 5), "fp16", ("efficient", "runs")),
        ((7, 5), "fp32", ("efficient", "runs")),
        ((8, 0), "bf16", ("varlen", "efficient", "runs")),
        ((9, 0), "fp16", ("varlen", "efficient", "runs")),
        ((9, 0), "fp32", ("efficient", "runs")),
    ],
)
def test_attention_is_chosen_by_what_the_device_supports(
    capability: tuple[int, int], precision: str, kinds: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert attention_kinds(torch.device("cuda"), PRECISIONS[precision]) == kinds
    assert attention_kinds(torch.device("cpu"), PRECISIONS[precision]) == ("runs",)


def test_a_model_that_transformers_cannot_run_in_half_precision_is_named(
    tiny: Callable[[str], Path],
) -> None:

    with pytest.raises(ModelError, match=r"cannot run in half precision .*Use precision='fp32'\.$"):
        both(str(tiny("deberta")), "bf16")


def test_a_text_that_spells_the_padding_token(encoder_of: Callable[[str], Encoder]) -> None:
    """RoBERTa gives a padding token inside a text the padding's own position."""
    encoder = encoder_of("roberta")
    plain = Encoder.load(str(encoder.checkpoint.folder), device="cpu", forward="transformers")
    pad = encoder.tokenizer.pad_id
    ids = torch.tensor([0, 5, pad, pad, 6, 2, 0, pad, 7, 2])
    batch = PackedBatch.of(ids, torch.zeros_like(ids), (6, 4))
    ours, theirs = states(encoder.model, batch), states(plain.model, batch)
    # the plain forward masks nothing but its own padding, as the packed one does
    for layer, hidden in ours.items():
        assert far(hidden, theirs[layer]) <= 1e-5


@given(st.lists(st.integers(1, 6), max_size=40))
def test_runs_hold_every_token_once(lengths: list[int]) -> None:
    runs = length_runs(lengths)
    assert [length for _, count, length in runs for _ in range(count)] == lengths
    assert [start for start, _, _ in runs] == [
        int(x) for x in np.cumsum([0, *(c * n for _, c, n in runs)])[:-1]
    ]
    assert all(a[2] != b[2] for a, b in itertools.pairwise(runs))
    each = length_runs(lengths, together=False)
    assert [(count, length) for _, count, length in each] == [(1, length) for length in lengths]
    assert [start for start, _, _ in each] == [sum(lengths[:i]) for i in range(len(lengths))]


@settings(deadline=None)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=12))
def test_any_lengths(lengths: list[int]) -> None:
    ours, plain = _TINY()
    batch = batch_of(lengths, 40)
    assert far(states(ours, batch, [3])[3], states(plain, batch, [3])[3]) <= 1e-5


class _Tiny:
    folder: str = ""
    made: tuple[PackedModel, PlainModel] | None = None

    def __call__(self) -> tuple[PackedModel, PlainModel]:
        assert self.made is not None
        return self.made


_TINY = _Tiny()


@pytest.fixture(autouse=True, scope="module")
def _make_tiny(tiny: Callable[[str], Path]) -> None:
    _TINY.made = both(str(tiny("bert")))[:2]


@pytest.mark.parametrize("length", range(1, 130))
def test_keys_read_are_few_more_than_there_are(length: int) -> None:
    keys = key_length(length)
    assert length <= keys < length + 14
    assert keys == length or keys % 16 == 0
