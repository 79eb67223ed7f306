"""Batches, order, duplicates, memory: what must not change a vector, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embedkit.encoding import encoder as encoder_module
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.device import choose_device
from embedkit.encoding.encoder import Encoder, ShardVectors, l2_normalize
from embedkit.encoding.model import PlainModel, load_model
from embedkit.encoding.packed import PackedModel
from embedkit.encoding.shard import cut_batches
from embedkit.encoding.tokenization import TokenizerSettings
from embedkit.encoding.views import parse_layers, parse_view
from embedkit.errors import EncodeError, ModelError, UsageError
from tests.models import TEXTS, Plain, build_old, distance, trusted_reader

VIEWS = ("cls_-1", "mean_-1", "max_1", "mean_sum_1to2", "cls_concat_0to1", "pooler")
TOLERANCE = 1e-5


@pytest.fixture
def encoder(encoder_of: Callable[[str], Encoder]) -> Encoder:
    """The tiny BERT; the test may change it."""
    return with_batches_of(encoder_of("bert"), 4096)


def with_batches_of(encoder: Encoder, tokens: int) -> Encoder:
    """The same encoder with another budget per batch."""
    return Encoder(
        encoder.checkpoint, encoder.tokenizer, encoder.model, precision=encoder.precision,
        max_length=encoder.max_length, batch_tokens=tokens,
    )  # fmt: skip


def shard(
    encoder: Encoder,
    texts: Sequence[str],
    views: Sequence[str] = VIEWS,
    layers: str = "all",
    **more: Any,
) -> ShardVectors:
    """Encode texts as one shard."""
    settings = TokenizerSettings(more.pop("max_length", encoder.max_length))
    n = encoder.n_layers
    return encoder.encode_shard(
        encoder.tokenizer.encode(texts, settings=settings),
        views=[parse_view(view, n_layers=n) for view in views],
        token_layers=parse_layers(layers, n_layers=n) if layers else (),
        **more,
    )


def furthest(a: ShardVectors, b: ShardVectors) -> float:
    """Largest relative distance of two results of the same texts."""
    assert a.views.keys() == b.views.keys()
    assert a.tokens.keys() == b.tokens.keys()
    both = [*((v, b.views[k]) for k, v in a.views.items())]
    both += [(v, b.tokens[k]) for k, v in a.tokens.items()]
    return max(float(distance(x, y).max()) for x, y in both)


# batches and order


@pytest.mark.parametrize("family", ["bert", "bert_left", "roberta", "distilbert", "electra"])
def test_order_of_texts_is_order_of_vectors(
    family: str, encoder_of: Callable[[str], Encoder]
) -> None:
    encoder = encoder_of(family)
    names = VIEWS if encoder.has_pooler else VIEWS[:-1]
    straight = encoder.encode_views(TEXTS, names)
    order = np.random.default_rng(3).permutation(len(TEXTS))
    mixed = encoder.encode_views([TEXTS[i] for i in order], names)
    for name, vectors in straight.items():
        assert distance(mixed[name], vectors[order]).max() <= TOLERANCE


@pytest.mark.parametrize("tokens", [1, 30, 64, 100, 10**6])
def test_batch_size_changes_nothing(encoder: Encoder, tokens: int) -> None:
    other = with_batches_of(encoder, tokens)
    assert furthest(shard(other, TEXTS), shard(encoder, TEXTS)) <= TOLERANCE


def test_a_long_neighbour_changes_nothing(encoder: Encoder) -> None:
    alone = encoder.encode_views(TEXTS, VIEWS)
    beside = encoder.encode_views(["a movie " * 500, *TEXTS, "the bus " * 500], VIEWS)
    for name, vectors in alone.items():
        assert distance(beside[name][1:-1], vectors).max() <= TOLERANCE


def test_the_same_call_gives_the_same_bits(encoder: Encoder) -> None:
    first, second = shard(encoder, TEXTS), shard(encoder, TEXTS)
    for name, vectors in first.views.items():
        assert np.array_equal(vectors, second.views[name])
    for name, vectors in first.tokens.items():
        assert np.array_equal(vectors, second.tokens[name])


def test_another_load_gives_the_same_bits(encoder: Encoder, tiny_bert: Path) -> None:
    again = Encoder.load(str(tiny_bert), device="cpu")
    for name, vectors in encoder.encode_views(TEXTS, VIEWS).items():
        assert np.array_equal(vectors, again.encode_views(TEXTS, VIEWS)[name])


def test_more_texts_than_one_call_takes_at_once(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = encoder.encode_views(TEXTS, VIEWS)
    monkeypatch.setattr("embedkit.encoding.encoder._ENCODE_ROWS", 5)
    for name, vectors in encoder.encode_views(TEXTS, VIEWS).items():
        assert distance(vectors, whole[name]).max() <= TOLERANCE


def test_pooling_is_not_mixed_up_between_views(encoder: Encoder) -> None:
    alone = {name: encoder.encode_views(TEXTS, [name]) for name in VIEWS}
    for name, vectors in encoder.encode_views(TEXTS, VIEWS).items():
        single = next(iter(alone[asked] for asked in VIEWS if name in alone[asked]))
        assert distance(vectors, single[name]).max() <= TOLERANCE


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


# what is computed, and how often


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "electra", "distilbert"])
@pytest.mark.parametrize(("layers", "needed"), [("0", 1), ("1", 1), ("0,2", 2), ("-1", 3)])
def test_layers_above_the_highest_are_not_computed(
    family: str, layers: str, needed: int, tiny: Callable[[str], Path]
) -> None:
    encoder = Encoder.load(str(tiny(family)), device="cpu", forward="transformers")
    calls = []
    for number, layer in enumerate(layers_of(encoder)):
        layer.register_forward_hook(lambda *_, n=number: calls.append(n))
    shard(encoder, ["a movie"], views=[], layers=layers)
    assert calls == list(range(needed))


def layers_of(encoder: Encoder) -> list[torch.nn.Module]:
    """The transformer layers of the model."""
    assert isinstance(encoder.model, PlainModel)
    module = encoder.model.module
    return list(
        module.transformer.layer if hasattr(module, "transformer") else module.encoder.layer
    )


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "distilbert", "albert", "mpnet"])
def test_few_layers_first_and_all_later(
    family: str, tiny: Callable[[str], Path], encoder_of: Callable[[str], Encoder]
) -> None:
    encoder = Encoder.load(str(tiny(family)), device="cpu")
    for layers in ("0", "1", "all", "2", "all"):
        ours = shard(encoder, TEXTS, [], layers)
        assert furthest(ours, shard(encoder_of(family), TEXTS, [], layers)) <= TOLERANCE


def test_equal_texts_are_encoded_once(encoder: Encoder) -> None:
    lengths: list[int] = []
    texts = [*TEXTS[:4], *TEXTS[2:6], TEXTS[0]]
    result = shard(encoder, texts, on_tokens=lengths.append)
    once = shard(encoder, TEXTS[:6])
    assert result.encoded == 6
    assert sum(lengths) == sum(t.n_kept for t in tokens_of(encoder, TEXTS[:6]))
    places = [0, 1, 2, 3, 2, 3, 4, 5, 0]
    for name, vectors in result.views.items():
        assert np.array_equal(vectors, once.views[name][places])
    for vectors in result.tokens.values():
        kept = np.cumsum([t.n_kept for t in tokens_of(encoder, texts)])
        assert np.array_equal(vectors[: kept[0]], vectors[kept[-2] :])


def tokens_of(encoder: Encoder, texts: Sequence[str]) -> Any:
    return encoder.tokenizer.encode(texts, settings=TokenizerSettings(encoder.max_length))


def test_equal_ids_with_other_special_tokens_are_not_equal(
    encoder_of: Callable[[str], Encoder],
) -> None:
    """A pair, and a text that spells ``[SEP]``, by a model that has one segment."""
    encoder = encoder_of("roberta_wordpiece")
    pair = encoder.tokenizer.encode(["a"], ["a"], settings=TokenizerSettings(9))
    single = encoder.tokenizer.encode(["a [SEP] a"], settings=TokenizerSettings(9))
    assert pair[0].ids.tolist() == single[0].ids.tolist()
    view = parse_view("mean_-1", n_layers=3)
    ours = encoder.encode_shard([*pair, *single], views=[view], special_tokens=False)
    assert ours.encoded == 2
    assert distance(*ours.views["mean_3"]).max() > 1e-3


# memory


class Limited:
    """A model that has memory for so many padded tokens and no more."""

    def __init__(self, encoder: Encoder, limit: int, error: Callable[[], Exception]) -> None:
        self.real = encoder.model.forward
        self.limit = limit
        self.error = error
        self.sizes: list[int] = []

    def __call__(self, batch: Any, layers: Any, on_layer: Any, **options: Any) -> None:
        size = max(batch.lengths) * len(batch.lengths)
        if size > self.limit:
            raise self.error()
        self.sizes.append(size)
        self.real(batch, layers, on_layer, **options)


MEMORY_ERRORS: list[Callable[[], Exception]] = [
    lambda: torch.OutOfMemoryError("CUDA out of memory."),
    lambda: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
    lambda: RuntimeError("std::bad_alloc"),
    lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 b"),
    MemoryError,
]


@pytest.mark.parametrize("error", MEMORY_ERRORS, ids=["cuda", "cublas", "c++", "cpu", "python"])
@pytest.mark.parametrize("limit", [65, 130, 400])
def test_batches_are_halved_when_memory_runs_out(
    encoder: Encoder, limit: int, error: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = shard(encoder, TEXTS)
    assert wanted.splits == 0
    limited = Limited(encoder, limit, error)
    monkeypatch.setattr(encoder.model, "forward", limited)
    lengths: list[int] = []
    first = shard(encoder, TEXTS, on_tokens=lengths.append)
    sizes = list(limited.sizes)
    second = shard(encoder, TEXTS)
    assert furthest(first, wanted) <= TOLERANCE
    assert first.splits == second.splits == len(sizes) - 1 > 0
    assert limited.sizes == sizes * 2
    assert sum(lengths) == sum(t.n_kept for t in tokens_of(encoder, TEXTS))
    for name, vectors in first.views.items():
        assert np.array_equal(vectors, second.views[name])


def test_one_sequence_that_is_too_big(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = Limited(encoder, 64, MEMORY_ERRORS[0])
    monkeypatch.setattr(encoder.model, "forward", limited)
    with pytest.raises(EncodeError, match="memory does not suffice for one sequence of 65 tokens"):
        shard(encoder, TEXTS)


@pytest.mark.parametrize("error", [RuntimeError("boom"), ValueError("boom"), OSError("boom")])
def test_other_errors_are_not_taken_for_memory(
    encoder: Encoder, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = Limited(encoder, 0, lambda: error)
    monkeypatch.setattr(encoder.model, "forward", limited)
    with pytest.raises(type(error), match="boom"):
        shard(encoder, TEXTS)


# nothing is hidden


@pytest.mark.parametrize("on_long", ["truncate", "window"])
@pytest.mark.parametrize("view", ["mean_-1", "max_-1", "max_0", "cls_-1", "pooler"])
@pytest.mark.parametrize("packed", [True, False])
def test_nan_reaches_the_vector(tiny_bert: Path, view: str, on_long: str, packed: bool) -> None:
    encoder = Encoder.load(str(tiny_bert), device="cpu", forward="transformers")
    plain = encoder.model
    assert isinstance(plain, PlainModel)
    bad = encoder.tokenizer.hf.convert_tokens_to_ids("猫")
    with torch.no_grad():
        plain.module.get_input_embeddings().weight[bad] = float("nan")
    if packed:
        encoder.model = PackedModel(plain, encoder.checkpoint)
    texts = encoder.tokenizer.encode(
        ["a 猫 a", "a a a", "a " * 20], settings=TokenizerSettings(8, on_long=on_long, stride=2)
    )
    ours = encoder.encode_shard(texts, views=[parse_view(view, n_layers=3)])
    (vectors,) = ours.views.values()
    assert np.isnan(vectors).any(axis=1).tolist() == [True, False, False]


# the Python interface


def test_encode(encoder: Encoder) -> None:
    vectors = encoder.encode(list(TEXTS))
    assert vectors.shape == (len(TEXTS), 24)
    assert vectors.dtype == np.float32
    views = encoder.encode_views(TEXTS, ["mean_3", "max_0", "pooler"])
    assert list(views) == ["mean_3", "max_0", "pooler"]
    assert np.array_equal(vectors, encoder.encode(TEXTS, pooling="mean", layer=-1))
    assert distance(encoder.encode(TEXTS, pooling="max", layer=0), views["max_0"]).max() <= 1e-6
    assert distance(encoder.encode(TEXTS, pooling="pooler"), views["pooler"]).max() <= 1e-6


def test_a_view_named_twice(encoder: Encoder) -> None:
    views = encoder.encode_views(TEXTS, ["mean_-1", "mean_3", "mean_-1"])
    assert list(views) == ["mean_3"]
    assert np.array_equal(views["mean_3"], encoder.encode(TEXTS))
    view = parse_view("mean_3", n_layers=3)
    ours = encoder.encode_shard(
        tokens_of(encoder, TEXTS), views=[view, view], token_layers=[view.layer, view.layer]
    )
    assert list(ours.views) == ["mean_3"]
    assert list(ours.tokens) == ["3"]
    assert np.array_equal(ours.views["mean_3"], views["mean_3"])


def test_nothing_to_encode(encoder: Encoder) -> None:
    assert encoder.encode([]).shape == (0, 24)
    views = encoder.encode_views([], ["cls_concat_0to1", "pooler"])
    assert {name: v.shape for name, v in views.items()} == {
        "cls_concat_0to1": (0, 48), "pooler": (0, 24),
    }  # fmt: skip
    assert shard(encoder, [], layers="0,sum:1..2").tokens["sum_1to2"].shape == (0, 24)
    assert encoder.encode_views(TEXTS, []) == {}


def test_max_length_of_a_call(encoder: Encoder, plain_of: Callable[[str], Plain]) -> None:
    ours = encoder.encode(TEXTS, max_length=7)
    for vector, text in zip(ours, TEXTS, strict=True):
        wanted = plain_of("bert")(text, max_length=7).hidden[-1].mean(0)
        assert distance(vector, wanted).max() <= TOLERANCE
    for wrong in (0, 2, -1):
        with pytest.raises(UsageError, match=rf"max_length={wrong}(:| leaves no room)"):
            encoder.encode(TEXTS, max_length=wrong)
    with pytest.raises(UsageError, match=r"max_length=161: .* has positions for 160 tokens"):
        encoder.encode(TEXTS, max_length=161)


def test_normalized(encoder: Encoder) -> None:
    raw, scaled = encoder.encode(TEXTS), encoder.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), 1, rtol=1e-6)
    wanted = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    np.testing.assert_allclose(scaled, wanted, rtol=1e-6, atol=1e-7)
    assert l2_normalize(np.zeros((1, 3), np.float32)).tolist() == [[0, 0, 0]]


def test_texts_may_come_in_any_row(encoder: Encoder) -> None:
    pd = pytest.importorskip("pandas")
    texts = list(TEXTS)
    wanted = encoder.encode(texts)
    for row in (tuple(texts), iter(texts), np.array(texts), np.array(texts, object),
                  pd.Series(texts, index=range(50, 50 + len(texts)))):  # fmt: skip
        assert np.array_equal(encoder.encode(row), wanted)


def test_parts_come_in_order(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = encoder.encode_views(TEXTS, ["mean_-1", "cls_0"])
    monkeypatch.setattr(encoder_module, "_ENCODE_ROWS", 4)
    ours = encoder.encode_views(TEXTS, ["mean_-1", "cls_0"])
    for name, vectors in wanted.items():
        assert np.array_equal(ours[name], vectors)


def test_wrong_calls(encoder: Encoder) -> None:
    with pytest.raises(
        TypeError, match=r"texts is one string; give a list of strings: \['one text'\]"
    ):
        encoder.encode("one text")
    with pytest.raises(TypeError, match=r"texts\[1\] is None, of type NoneType; expected a string"):
        encoder.encode(["a", None])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"texts\[0\] is b'a', of type bytes; expected a string"):
        encoder.encode([b"a"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"views is one string; give a list of views"):
        encoder.encode_views(["a"], "mean_-1")
    with pytest.raises(UsageError, match="'median_-1' is not a view"):
        encoder.encode(TEXTS, pooling="median")
    with pytest.raises(UsageError, match=r"mean_4: the model has layers 0 .* to 3"):
        encoder.encode(TEXTS, layer=4)


def test_progress_goes_to_standard_error(
    encoder: Encoder, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder.encode(TEXTS)
    quiet = capsys.readouterr()
    encoder.encode(TEXTS, show_progress_bar=True)
    shown = capsys.readouterr()
    assert (quiet.out, quiet.err, shown.out) == ("", "", "")
    assert "encoding" in shown.err


# loading


@pytest.mark.parametrize(
    ("family", "has"),
    [("bert", True), ("roberta", True), ("albert", True), ("mpnet", True), ("bert_mlm", False),
     ("electra", False), ("distilbert", False), ("modernbert", False)],
)  # fmt: skip
def test_pooler_only_where_there_is_one(
    family: str, has: bool, encoder_of: Callable[[str], Encoder]
) -> None:
    encoder = encoder_of(family)
    assert encoder.has_pooler == has
    if has:
        assert encoder.encode(TEXTS, pooling="pooler").shape == (len(TEXTS), 24)
        return
    with pytest.raises(ModelError, match=r"has no pooler weights, so pooling='pooler' would be ra"):
        encoder.encode(TEXTS, pooling="pooler")
    with pytest.raises(ModelError, match=r"has no pooler weights"):
        encoder.encode_shard([], views=[parse_view("pooler", n_layers=3)])
    with pytest.raises(ModelError, match=r"this checkpoint has no pooler weights"):
        encoder.model.pool(torch.zeros(1, 24))


def changed_weights(folder: Path, to: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A copy of a checkpoint with other weights."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, to)
    weights = load_file(to / "model.safetensors")
    change(weights)
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return to


def test_half_a_pooler_is_none(tiny_bert: Path, tmp_path: Path) -> None:
    folder = changed_weights(tiny_bert, tmp_path / "m", lambda w: w.pop("pooler.dense.bias"))
    encoder = Encoder.load(str(folder), device="cpu")
    assert not encoder.has_pooler


def test_missing_weights(tiny_bert: Path, tmp_path: Path) -> None:
    gone = "encoder.layer.1.attention.self.key.weight"
    folder = changed_weights(tiny_bert, tmp_path / "m", lambda w: w.pop(gone))
    with pytest.raises(ModelError, match=f"1 of the encoder's weights are missing .* {gone}"):
        Encoder.load(str(folder), device="cpu")


def test_weights_of_another_shape(tiny_bert: Path, tmp_path: Path) -> None:
    name = "encoder.layer.0.output.dense.bias"
    folder = changed_weights(tiny_bert, tmp_path / "m", lambda w: w.update({name: torch.zeros(7)}))
    with pytest.raises(ModelError, match=f"1 of the encoder's weights are missing .* {name}"):
        Encoder.load(str(folder), device="cpu")


def test_broken_weight_file(tiny_bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(tiny_bert, folder)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:2000])
    with pytest.raises(ModelError, match="the weights cannot be loaded"):
        Encoder.load(str(folder), device="cpu")


def test_impossible_config(tiny_bert: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(tiny_bert, folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "num_attention_heads": 5}), "utf-8")
    with pytest.raises(ModelError, match="cannot be loaded"):
        Encoder.load(str(folder), device="cpu")


@trusted_reader
def test_old_folder_equals_the_plain_forward(tmp_path: Path, notes: list[str]) -> None:
    stated = {"do_lower_case": False}
    folder = build_old(tmp_path, "cased", tokenizer_config=stated)
    encoder = Encoder.load(str(folder), device="cpu")
    plain = Plain.load(folder, 300)
    assert encoder.max_length == 300
    assert not encoder.has_pooler or "pooler" in encoder.encode_views(["a"], ["pooler"])
    texts = ["배를 Movies", "A a 여행을, movie.", "a " * 400]
    for layer in range(3):
        ours = encoder.encode(texts, layer=layer)
        for vector, text in zip(ours, texts, strict=True):
            assert distance(vector, plain(text).hidden[layer].mean(0)).max() <= TOLERANCE
    # on some processors there is one on the forward pass too
    (notice,) = (note for note in notes if "pytorch_model.bin" in note)
    assert "has only pytorch_model.bin, a pickle file; it is read by PyTorch's rest" in notice


def test_load_model_alone(tiny_bert: Path) -> None:
    model = load_model(
        find_checkpoint(str(tiny_bert)), pad_id=0, device=torch.device("cpu"),
        dtype=torch.float32,
    )  # fmt: skip
    assert (model.n_layers, model.width) == (3, 24)
    assert not model.module.training


def test_device() -> None:
    assert choose_device("cpu").type == "cpu"
    for other in ("gpu", "mps", "meta"):
        with pytest.raises(UsageError, match=f"device={other!r}: expected auto, cpu, cuda or cu"):
            choose_device(other)
    with pytest.raises(UsageError, match=r"device='cuda:64': this machine shows \d+ CUDA devices"):
        choose_device("cuda:64")
