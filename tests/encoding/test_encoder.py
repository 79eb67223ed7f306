"""Batches, order, duplicates, memory: what must not change a vector, and what is refused.

Vectors of words and tokens in memory are those that extraction writes.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embedkit.choices import Pooling
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.model import choose_device, choose_precision
from embedkit.encoding.packed import PackedModel
from embedkit.encoding.pooling import POOLERS, PackedTokens, combine_layers
from embedkit.encoding.shard import cut_batches
from embedkit.encoding.tables import TokenVectors, WordVectors
from embedkit.encoding.tokenizer import tokenize
from embedkit.encoding.views import ShardVectors, View, parse_layers, parse_view
from embedkit.encoding.windows import TokenizerSettings
from embedkit.errors import EncodeError, ModelError, UsageError
from tests.models import TEXTS, EncoderOf, Tiny, distance, reweigh
from tests.processes import ROOT, completed
from tests.store_fixtures import run, tiny_model

VIEWS = ("cls_-1", "mean_-1", "max_1", "mean_sum_1to2", "cls_concat_0to1", "pooler")


@pytest.fixture
def encoder(encoder_of: EncoderOf) -> Encoder:
    """The tiny BERT; the test may change its settings."""
    encoder = copy.copy(encoder_of("bert"))
    encoder.batch_tokens = 4096
    return encoder


def shard(
    encoder: Encoder,
    texts: Sequence[str],
    views: Sequence[str] = VIEWS,
    layers: str = "all",
    **more: Any,
) -> ShardVectors:
    """Encode texts as one shard."""
    n = encoder.n_layers
    return encoder.encode_shard(
        tokens_of(encoder, texts),
        views=[parse_view(view, n_layers=n) for view in views],
        token_layers=parse_layers(layers, n_layers=n) if layers else (),
        **more,
    )


def test_more_texts_than_one_call_takes_at_once(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = encoder.encode_views(TEXTS, VIEWS)
    monkeypatch.setattr("embedkit.encoding.encoder._ENCODE_ROWS", 5)
    for name, vectors in encoder.encode_views(TEXTS, VIEWS).items():
        assert np.array_equal(vectors, whole[name])


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 600), st.booleans())
def test_batches_hold_every_sequence_once_within_the_budget(
    lengths: list[int], budget: int, padded: bool
) -> None:
    lengths.sort(reverse=True)
    batches = cut_batches(np.array(lengths, np.int64), budget, padded=padded)
    assert [i for start, stop in batches for i in range(start, stop)] == list(range(len(lengths)))

    def cost(start: int, stop: int) -> int:
        return lengths[start] * (stop - start) if padded else sum(lengths[start:stop])

    for start, stop in batches:
        assert cost(start, stop) <= budget or stop - start == 1
    for start, stop in batches[:-1]:  # none could take one more, or fewer are no worse
        assert cost(start, stop + 1) > budget or (not padded and cost(start, stop) > budget * 3 / 4)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.integers(2, 8))
def test_few_batches_are_equal_shares_of_all_threads(lengths: list[int], threads: int) -> None:
    lengths.sort(reverse=True)
    batches = cut_batches(np.array(lengths, np.int64), 2_048, padded=False, threads=threads)
    assert [i for start, stop in batches for i in range(start, stop)] == list(range(len(lengths)))
    sizes = [sum(lengths[start:stop]) for start, stop in batches]
    assert max(sizes) - min(sizes) < 2 * lengths[0]
    assert len(batches) % threads == 0 or sum(lengths) / len(batches) <= 512


@pytest.mark.parametrize("family", ["bert", "albert"])
@pytest.mark.parametrize(("layers", "needed"), [("0", 0), ("1", 1), ("0,2", 2), ("-1", 3)])
def test_layers_above_the_highest_are_not_computed(
    family: str, layers: str, needed: int, tiny: Tiny
) -> None:
    encoder = Encoder(str(tiny(family)), device="cpu")
    calls = []
    assert isinstance(encoder.model, PackedModel)
    for module in encoder.model.module.modules():
        if type(module).__name__ in ("_Layer", "AlbertLayer"):
            module.register_forward_hook(lambda *_: calls.append(1))
    shard(encoder, ["a movie"], views=[], layers=layers)
    assert len(calls) == needed


def test_batches_side_by_side_give_the_same_bits(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder.batch_tokens = 64
    wanted = shard(encoder, TEXTS)
    real, used, both = encoder.model.forward, set(), threading.Barrier(2, timeout=20)

    def forward(*args: Any, **options: Any) -> None:
        if threading.get_ident() not in used:
            used.add(threading.get_ident())
            both.wait()  # until a second batch runs
        assert torch.get_num_threads() == 1
        real(*args, **options)

    monkeypatch.setattr(encoder.model, "forward", forward)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        lengths: list[int] = []
        ours = shard(encoder, TEXTS, on_tokens=lengths.append)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert len(used) == 2
    assert sum(lengths) == len(tokens_of(encoder, TEXTS).ids)
    for name, vectors in {**ours.views, **ours.tokens}.items():
        assert np.array_equal(vectors, {**wanted.views, **wanted.tokens}[name])


def test_equal_texts_are_encoded_once(encoder: Encoder) -> None:
    lengths: list[int] = []
    texts = [*TEXTS[:4], *TEXTS[2:6], TEXTS[0]]
    result = shard(encoder, texts, on_tokens=lengths.append)
    once = shard(encoder, TEXTS[:6])
    assert sum(lengths) == len(tokens_of(encoder, TEXTS[:6]).ids)
    places = [0, 1, 2, 3, 2, 3, 4, 5, 0]
    for name, vectors in result.views.items():
        assert np.array_equal(vectors, once.views[name][places])
    for vectors in result.tokens.values():
        kept = np.cumsum(tokens_of(encoder, texts).n_kept)
        assert np.array_equal(vectors[: kept[0]], vectors[kept[-2] :])


def tokens_of(encoder: Encoder, texts: Sequence[str]) -> Any:
    return encoder.tokenizer.encode(texts, settings=TokenizerSettings(encoder.max_length))


def test_equal_ids_with_other_special_tokens_are_not_equal(encoder_of: EncoderOf) -> None:
    """A pair, and a text that spells ``[SEP]``, by a model that has one segment."""
    encoder = encoder_of("roberta_wordpiece")
    pair = encoder.tokenizer.encode(["a"], ["a"], settings=TokenizerSettings(9))
    single = encoder.tokenizer.encode(["a [SEP] a"] * 2, settings=TokenizerSettings(9))
    assert pair.ids.tolist() == single[0].ids.tolist()
    segment = np.concatenate([pair.segment, single[0].segment])
    both = replace(single, segment=segment)
    view = parse_view("mean_-1", n_layers=3)
    ours = encoder.encode_shard(both, views=[view], special_tokens=False)
    assert distance(*ours.views["mean_3"]).max() > 1e-3


MEMORY_ERRORS: list[Callable[[], Exception]] = [
    lambda: torch.OutOfMemoryError("CUDA out of memory."),
    lambda: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
    lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 b"),
    MemoryError,
]


@pytest.mark.parametrize("error", MEMORY_ERRORS, ids=["cuda", "cublas", "cpu", "python"])
@pytest.mark.parametrize("limit", [65, 400])
def test_batches_are_halved_when_memory_runs_out(
    encoder: Encoder, limit: int, error: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, real = shard(encoder, TEXTS), encoder.model.forward
    limited = SimpleNamespace(most=limit, error=error, sizes=[])

    def forward(batch: Any, *rest: Any, **options: Any) -> None:
        """As of a model that has memory for so many padded tokens and no more."""
        size = max(batch.lengths) * len(batch.lengths)
        if size > limited.most:
            raise limited.error()
        limited.sizes.append(size)
        real(batch, *rest, **options)

    monkeypatch.setattr(encoder.model, "forward", forward)
    lengths: list[int] = []
    first = shard(encoder, TEXTS, on_tokens=lengths.append)
    sizes = list(limited.sizes)
    second = shard(encoder, TEXTS)
    assert len(sizes) > 1
    assert limited.sizes == sizes * 2
    assert sum(lengths) == len(tokens_of(encoder, TEXTS).ids)
    for name, vectors in first.views.items():
        assert np.array_equal(vectors, second.views[name])
        assert np.array_equal(vectors, wanted.views[name])
    for name, states in first.tokens.items():
        assert np.array_equal(states, wanted.tokens[name])
    limited.most = 64
    with pytest.raises(EncodeError, match="one sequence of 65 tokens"):
        shard(encoder, TEXTS)
    limited.error = lambda: RuntimeError("boom")
    with pytest.raises(RuntimeError, match="boom"):
        shard(encoder, TEXTS)


@pytest.mark.parametrize("on_long", ["truncate", "window"])
@pytest.mark.parametrize("view", ["mean_-1", "max_-1", "max_0", "cls_-1", "pooler"])
@pytest.mark.parametrize("packed", [True, False])
def test_nan_reaches_the_vector(tiny_bert: Path, view: str, on_long: str, packed: bool) -> None:
    encoder = Encoder(str(tiny_bert), device="cpu", forward="transformers")
    plain: Any = encoder.model
    bad = encoder.tokenizer.hf.convert_tokens_to_ids("猫")
    with torch.no_grad():
        plain.module.get_input_embeddings().weight[bad] = float("nan")
    if packed:
        encoder.model = PackedModel(plain)
    texts = encoder.tokenizer.encode(
        ["a 猫 a", "a a a", "a " * 20], settings=TokenizerSettings(8, on_long=on_long, stride=2)
    )
    ours = encoder.encode_shard(texts, views=[parse_view(view, n_layers=3)])
    (vectors,) = ours.views.values()
    assert np.isnan(vectors).any(axis=1).tolist() == [True, False, False]


# tables of words and tokens


FILLED = [text for text in dict.fromkeys(TEXTS) if text.strip()] + [TEXTS[2], "a  movie\tbus", "배"]
LAYERS = ["0", "-1", "sum:1..2"]


def agree(ours: TokenVectors | WordVectors, folder: Path) -> None:
    """Every column of the table on disk is an attribute with the same values."""
    table = pq.read_table(folder)
    assert len(ours) == len(table) > 0
    for name in table.schema.names:
        column = table.column(name)
        if name.startswith("layer_"):
            found = ours.vectors[name.removeprefix("layer_")]
            assert found.dtype == np.float32
            assert np.array_equal(found, np.stack(column.to_numpy())), name
        else:
            assert getattr(ours, name).tolist() == column.to_pylist(), name
    assert {f"layer_{name}" for name in ours.vectors} <= set(table.schema.names)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "japanese"])
def test_words_and_tokens_are_those_that_extract_writes(
    family: str, tiny: Tiny, encoder_of: EncoderOf, tmp_path: Path
) -> None:
    encoder, model = encoder_of(family), str(tiny(family))
    run(FILLED, tmp_path / "out", model=model, layers="0,-1,sum:1..2", words="mean", tokens=True)
    for batch_size in (None, 3):
        tokens = encoder.encode_tokens(FILLED, layers=LAYERS, batch_size=batch_size)
        words = encoder.encode_words(FILLED, layers=LAYERS, batch_size=batch_size)
        if batch_size is None or encoder.model.name == "packed":
            agree(tokens, tmp_path / "out/tokens")
            agree(words, tmp_path / "out/words")
    spans = zip(words.row, words.start, words.end, strict=True)
    assert [FILLED[r][a:b] for r, a, b in spans] == words.text.tolist()


WORDS = st.lists(
    st.lists(st.sampled_from(["배를", "movie", "A,", "猫", "naïve"]), max_size=5), max_size=5
)


@given(words=WORDS)
def test_words_of_a_text_are_the_text(words: list[list[str]], encoder_of: EncoderOf) -> None:
    encoder = encoder_of("bert")
    ours = encoder.encode_words(words=words, layers=[0, -1])
    joined = encoder.encode_words([" ".join(some) for some in words], layers=[0, -1])
    for name in ("row", "word", "segment", "text", "start", "end", "n_tokens"):
        assert getattr(ours, name).tolist() == getattr(joined, name).tolist()
    assert all(np.array_equal(v, joined.vectors[name]) for name, v in ours.vectors.items())
    assert ours.text.tolist() == [word for some in words for word in some]
    assert ours.row.tolist() == [row for row, some in enumerate(words) for _ in some]


def test_nothing_to_encode(encoder: Encoder) -> None:
    assert encoder.encode([]).shape == (0, 24)
    for view in ("cls_concat_0to1", "cls_3", "mean_3", "max_3", "last_token_3", "pooler"):
        vectors = encoder.encode_views([], [view])[view]
        assert vectors.shape == (0, 48 if "concat" in view else 24)
    assert shard(encoder, [], layers="0,sum:1..2").tokens["sum_1to2"].shape == (0, 24)
    assert encoder.encode_views(TEXTS, []) == {}
    for empty in (
        encoder.encode_words([]),
        encoder.encode_words(words=np.zeros((0, 2), str)),
        encoder.encode_words(["", " "]),
        encoder.encode_tokens([]),
    ):
        assert len(empty) == 0
        assert empty.X.shape == (0, 24)
    assert encoder.encode_tokens([""]).token.tolist() == ["[CLS]", "[SEP]"]


ROWS = np.ones((2, 3), np.float32)
REFUSED: dict[str, Callable[[Any], Any]] = {
    "texts='a': expected a text": lambda e: e.encode(Path("a")),
    "texts is a dict": lambda e: e.encode({"a": "b"}),
    "texts is a set": lambda e: e.encode({"a"}),
    r"texts\[1\] is None": lambda e: e.encode(["a", None]),
    "views is one string": lambda e: e.encode_views(["a"], "mean_-1"),
    "layers=": lambda e: e.encode_tokens(["a"], layers=[]),
    "a has 3 columns and b 2": lambda e: e.similarity(ROWS, ROWS.T),
    "b holds .* expected rows of numbers": lambda e: e.similarity(ROWS, "a"),
    "a holds rows of several widths": lambda e: e.similarity([[1, 2], [3]], ROWS),
    "view='mean_6': expected a View": lambda e: e.width_of("mean_6"),
    "dims=2, truncate_dim=2": lambda e: e.encode("a", dims=2, truncate_dim=2),
    # before anything is encoded, and None is no text
    "dims=99: the vectors have": lambda e: e.encode([None], dims=99),
    "vocab='1:²'": lambda _: tokenize(vocab="1:²"),
    r"words\[0\]\[1\] is 1": lambda e: e.encode_words(words=[["a", 1]]),
    r"words\[0\] holds": lambda e: e.encode_words(words=[["a", "a\u3000b"]]),
    "texts or words=": lambda e: e.encode_words(),
    "either texts or words=": lambda e: e.encode_words(["a"], words=[["a"]]),
    "subtokens='middle'": lambda e: e.encode_words(["a"], subtokens="middle"),
    "layers='4'": lambda e: e.encode_words(["a"], layers=[4]),
}


@pytest.mark.parametrize("message", REFUSED)
def test_wrong_calls(message: str, encoder: Encoder) -> None:
    with pytest.raises((TypeError, UsageError), match=message):
        REFUSED[message](encoder)
    assert (encoder.similarity(ROWS, torch.ones(3).bfloat16()) > 0.9).all()


@pytest.mark.parametrize("family", ["bert_mlm", "modernbert"])
def test_pooler_only_where_there_is_one(family: str, encoder_of: EncoderOf) -> None:
    encoder = encoder_of(family)
    assert not encoder.has_pooler
    assert all(encoder_of(other).has_pooler for other in ("bert", "albert"))
    with pytest.raises(ModelError, match="pooling='pooler'"):
        encoder.encode(TEXTS, pooling="pooler")
    with pytest.raises(ModelError, match="pooler"):
        encoder.encode_shard(tokens_of(encoder, []), views=[parse_view("pooler", n_layers=3)])


@pytest.mark.parametrize(
    "name",
    ["encoder.layer.1.attention.self.key.weight", "encoder.layer.0.output.dense.bias", "weights"],
)
def test_damaged_weights(name: str, tiny_bert: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_bert, tmp_path / "m"))
    if name.endswith("bias"):
        reweigh(folder, lambda tensors: {**tensors, name: torch.zeros(7)})
    elif name.endswith("key.weight"):
        reweigh(folder, lambda tensors: {n: t for n, t in tensors.items() if n != name})
    else:
        os.truncate(folder / "model.safetensors", 2_000)
    with pytest.raises(ModelError, match=name):
        Encoder(str(folder), device="cpu")


def test_what_the_caller_has_switched_on_changes_nothing(tiny_bert: Path) -> None:
    """Autocast, device and type of new tensors, NumPy's errors, while loading and afterwards."""
    texts, encoder = TEXTS[:3], Encoder(tiny_bert, device="cpu")
    expected, of_words = encoder.encode(texts), encoder.encode_words(texts).X
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.device("meta"), np.errstate(all="raise"):
            encoder = Encoder(tiny_bert, device="cpu")
            assert np.array_equal(encoder.encode(texts), expected)
            assert np.array_equal(encoder.encode_words(texts).X, of_words)
            for _ in range(2):
                assert isinstance(encoder.model, PackedModel)
                assert encoder.encode(texts, pooling="pooler").shape == expected.shape
                encoder = Encoder(tiny_bert, device="cpu", precision="int8")
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    int8 = Encoder(tiny_bert, device="cpu", precision="int8").encode(texts)
    assert np.array_equal(encoder.encode(texts), int8)


def test_threads_share_an_encoder() -> None:
    """A text has the bits that it has alone, and later threads as many threads of torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        encoder = Encoder(str(tiny_model()), device="cpu")
        words = ["the", "movie", "was", "good", "bad", "a", "i", "it", "rain"]
        texts = [" ".join(words[i % 5 : i % 5 + 1 + i % 9] * 2) for i in range(45)]
        alone = np.stack([encoder.encode(text) for text in texts])
        lists = [slice(i % 7, 45 - i % 11) for i in range(400)]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda part: encoder.encode(texts[part]), lists))
        assert all(map(np.array_equal, found, (alone[part] for part in lists)))
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)


def test_an_encoder_in_a_forked_process(tiny_bert: Path) -> None:
    """It has none of the threads of the process that has used the encoder before."""
    code = f"""import multiprocessing, numpy, torch, embedkit
torch.set_num_threads(2)
texts = ["a b c d e f"] * 9 + ["g h"]
encoder = embedkit.Encoder({str(tiny_bert)!r}, device="cpu")
expected = encoder.encode(texts)
def again(texts):  # also of a model that is loaded there
    new = embedkit.Encoder({str(tiny_bert)!r}, device="cpu")
    return numpy.concatenate([encoder.encode(texts[:4]), new.encode(texts[4:])])
with multiprocessing.get_context("fork").Pool(1) as pool:
    assert numpy.array_equal(pool.apply_async(again, [texts]).get(60), expected)
"""
    completed(sys.executable, "-c", code, cwd=ROOT, TOKENIZERS_PARALLELISM=None)


def test_device(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in ("gpu", "mps", "meta", "cuda:64"):
        with pytest.raises(UsageError, match=f"device={other!r}"):
            choose_device(other)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(Encoder, "_matrices", lambda *_, **__: {"mean_3": np.ones((1, 1))})
    for there, same, another in (("cpu", "cpu", "cuda"), ("cuda:1", "cuda cuda:1", "cuda:0")):
        monkeypatch.setattr(encoder, "model", SimpleNamespace(device=torch.device(there)))
        assert [encoder.encode("a", device=name) for name in same.split()]
        with pytest.raises(UsageError, match=f"device='{another}': this encoder is on {there}"):
            encoder.encode("a", device=another)


# precision


@pytest.mark.parametrize(("has_bf16", "chosen"), [(False, "fp32"), (True, "bf16")])
def test_auto_is_bf16_where_there_are_instructions_for_it(
    has_bf16: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bf16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    cpu = torch.device("cpu")
    assert choose_precision("auto", cpu) == chosen
    assert choose_precision("auto", torch.device("cuda")) == "bf16"
    assert {choose_precision(name, cpu) for name in ("fp32", None)} == {"fp32"}


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


# the language of layers and poolings


LAYER_NAMES = {
    "all": "0 1 2 3 4 5 6 7 8 9 10 11 12",
    "sum:5": "sum_5to5",
    "sum:-4..-1, 12 ,mean:-4..-1": "sum_9to12 12 mean_9to12",
    "-1,12,11..12": "12 11",
    "concat:-1..-4": "concat_12to9",
    "concat:0,6,12, sum:12,0": "concat_0_6_12 sum_0_12",
    "concat:6,0,7..8": "concat_6_0 7 8",
}


@pytest.mark.parametrize("text", LAYER_NAMES)
def test_layers(text: str) -> None:
    assert [spec.name for spec in parse_layers(text, n_layers=12)] == LAYER_NAMES[text].split()


WRONG = " mean mean_ pooler_12 median_3 mean_all mean_1,2 12 Mean_3 mean_13 cls_-14 mean_sum_9to13"


@pytest.mark.parametrize("name", WRONG.split(" "))
def test_names_that_are_no_views(name: str) -> None:
    with pytest.raises(UsageError, match=re.escape(name or "view")):
        parse_view(name, n_layers=12)


@given(st.integers(1, 24), st.data())
def test_names_lead_back_to_their_views(n_layers: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, n_layers))
    last = data.draw(st.integers(first, n_layers))
    kind = data.draw(st.sampled_from(["sum", "mean", "concat"]))
    (spec,) = parse_layers(f"{kind}:{first}..{last}", n_layers=n_layers)
    view = View(Pooling.MEAN, spec)
    assert spec.layers == tuple(range(first, last + 1))
    assert parse_view(view.name, n_layers=n_layers) == view
