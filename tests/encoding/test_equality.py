"""The promise of the project: vectors equal the plain transformers forward of each text alone.

They are as near to the same forward in float64 as that of transformers in float32 is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from embedkit.choices import Pooling
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.views import LayerSpec, ShardVectors, View, parse_layers, views_of
from embedkit.encoding.windows import TokenizedTexts, TokenizerSettings
from tests.models import (
    FAMILIES,
    TEXTS,
    EncoderOf,
    Plain,
    PlainOf,
    PlainText,
    Tiny,
    check_near,
    combined,
    expected,
    needs_plain_bf16,
    slow,
)

FIRST, SECOND = TEXTS[::2], TEXTS[1::2]  # pairs in which every text stands once
LONG_AND_SHORT = (TEXTS[2], TEXTS[3], TEXTS[6], TEXTS[8], TEXTS[9], TEXTS[13])
COMBINATIONS = "all,sum:1..2,mean:-2..-1,concat:0..-1,concat:-1..0,concat:1,-1,0"
Case = tuple[Encoder, Plain]


@pytest.fixture(params=FAMILIES)
def case(request: pytest.FixtureRequest, encoder_of: EncoderOf, plain_of: PlainOf) -> Case:
    """An encoder and the plain forward of the same checkpoint, family by family."""
    return encoder_of(request.param), plain_of(request.param)


@pytest.fixture(params=["minilm", pytest.param("multilingual", marks=pytest.mark.corpora)])
def real(request: pytest.FixtureRequest) -> Case:
    """The same for a real checkpoint."""
    encoder = request.getfixturevalue(request.param)
    return encoder, Plain.load(encoder.checkpoint.folder, encoder.max_length)


def everything(encoder: Encoder) -> tuple[list[View], list[LayerSpec]]:
    """Every view of the layers, and the layers."""
    specs = parse_layers(COMBINATIONS, n_layers=encoder.n_layers)
    poolings = [p for p in Pooling if p.has_layer or (p == "pooler" and encoder.has_pooler)]
    if encoder.is_causal:
        poolings.remove(Pooling.CLS)
    return list(views_of(specs, poolings, n_layers=encoder.n_layers)), list(specs)


def run(
    encoder: Encoder, *texts: Sequence[str], special_tokens: bool = True, **settings: Any
) -> tuple[TokenizedTexts, ShardVectors]:
    """Tokenize texts, or pairs of them, and encode them with every view and layer."""
    asked = TokenizerSettings(**{"max_length": encoder.max_length, **settings})
    tokenized = encoder.tokenizer.encode(*texts, settings=asked)
    views, specs = everything(encoder)
    return tokenized, encoder.encode_shard(
        tokenized, views=views, token_layers=specs, special_tokens=special_tokens
    )


def check(
    encoder: Encoder,
    ours: ShardVectors,
    texts: Sequence[Sequence[PlainText]],
    *,
    special_tokens: bool = True,
) -> None:
    """Every view and every token of every layer; ``texts`` are of the plain forward and exact."""
    views, specs = everything(encoder)
    assert set(ours.views) == {view.name for view in views}
    for view in views:
        wanted = [[expected(view, text, special=special_tokens) for text in each] for each in texts]
        assert ours.views[view.name].dtype == np.float32
        check_near(ours.views[view.name], *map(np.array, wanted))
    for spec in specs:
        states = [[combined(spec, text.hidden) for text in each] for each in texts]
        check_near(ours.tokens[spec.name], *map(np.concatenate, states))


def check_alone(case: Case, *texts: Sequence[str], prefix: str = "", **settings: Any) -> None:
    """Vectors of texts, or of pairs, are those of the plain forward of each one alone."""
    encoder, plain = case
    tokenized, ours = run(encoder, *texts, prefix=prefix, **settings)
    length = settings.get("max_length", encoder.max_length)
    alone = [
        [
            forward(prefix + text, *pair, max_length=length)
            for text, *pair in zip(*texts, strict=True)
        ]
        for forward in (plain, plain.exact)
    ]
    assert tokenized.n_kept.tolist() == [len(text.special) for text in alone[0]]
    check(encoder, ours, alone, special_tokens=settings.get("special_tokens", True))


@pytest.mark.parametrize(
    ("texts", "settings"),
    [
        ((TEXTS,), {"prefix": "query: "}),
        ((LONG_AND_SHORT,), {"max_length": 9, "special_tokens": False}),
        ((FIRST, SECOND), {}),
        *slow(((TEXTS,), {"max_length": 4}), ((FIRST, SECOND), {"special_tokens": False})),
        ((SECOND, FIRST), {"max_length": 14, "special_tokens": False}),
    ],
)
def test_all_views_and_tokens(
    case: Case, texts: tuple[Sequence[str], ...], settings: dict[str, Any]
) -> None:
    check_alone(case, *texts, **settings)


def test_real_checkpoints(real: Case) -> None:
    long = "The ferry leaves at nine and 배는 아홉 시에 떠난다. " * 40
    check_alone(real, (*TEXTS, long))
    check_alone(real, FIRST, SECOND, max_length=20, special_tokens=False)


def brute_force_windows(length: int, size: int, stride: int) -> list[tuple[int, int, list[int]]]:
    """``(start, stop, tokens taken from it)`` of every window, written without arithmetic tricks.

    Context is the distance to the nearer edge of the window, but an edge of the text is none.
    """
    windows = []
    start = 0
    while True:
        stop = min(start + size, length)
        windows.append((max(0, stop - size) if stop == length else start, stop))
        if stop == length:
            break
        start += size - stride
    taken: list[list[int]] = [[] for _ in windows]
    for token in range(length):
        best, most = -1, -1.0
        for number, (first, after) in enumerate(windows):
            if first <= token < after:
                before = float("inf") if first == 0 else token - first
                behind = float("inf") if after == length else after - 1 - token
                if min(before, behind) > most:
                    best, most = number, min(before, behind)
        taken[best].append(token)
    return [(a, b, tokens) for (a, b), tokens in zip(windows, taken, strict=True)]


def joined(
    forward: Plain,
    inputs: Sequence[tuple[list[int], list[int] | None]],
    places: Sequence[tuple[int, int]],
    *,
    special: list[int],
) -> PlainText:
    """A text in windows, given by their ids and segments; each token by its window and place."""
    outputs = [forward.run(*window) for window in inputs]
    by_layer = list(zip(*(hidden for hidden, _ in outputs), strict=True))
    hidden = [np.array([states[n][at] for n, at in places]) for states in by_layer]
    first = [np.mean([state[:1] for state in states], axis=0) for states in by_layer]
    added = np.isin(np.arange(len(places)), np.arange(len(places))[special])
    heads = [pooled for _, pooled in outputs if pooled is not None]
    return PlainText(hidden, first, added, np.mean(heads, axis=0) if heads else None)


WINDOWS: list[dict[str, Any]] = [
    {"max_length": 8, "stride": 0},
    {"max_length": 9, "stride": 3, "special_tokens": False},
    {"max_length": 12, "stride": 9},
    {"max_length": 40, "stride": 8, "special_tokens": False},
]
OTHERS = ("bert_left", "roberta", "xlm-roberta", "electra", "japanese")


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        *(("bert", sizes) for sizes in WINDOWS),
        *((family, WINDOWS[1]) for family in OTHERS),
        *slow(*((family, sizes) for family in OTHERS for sizes in WINDOWS if sizes != WINDOWS[1])),
    ],
)
def test_windows(
    family: str, settings: dict[str, Any], encoder_of: EncoderOf, plain_of: PlainOf
) -> None:
    encoder, plain = encoder_of(family), plain_of(family)
    tokenized, ours = run(encoder, LONG_AND_SHORT, on_long="window", **settings)
    cls, sep = plain.tokenizer.cls_token_id, plain.tokenizer.sep_token_id
    texts = [plain.tokenizer(t, add_special_tokens=False)["input_ids"] for t in LONG_AND_SHORT]
    both: list[list[PlainText]] = [[], []]
    for ids, encoded in zip(texts, tokenized, strict=True):
        windows = brute_force_windows(len(ids), settings["max_length"] - 2, settings["stride"])
        assert encoded.ids.tolist() == [cls, *ids, sep]
        assert len(encoded.window_ends) - 1 == len(windows)
        places = [(n, 1 + i - a) for n, (a, _, taken) in enumerate(windows) for i in taken]
        inputs = [([cls, *ids[a:b], sep], None) for a, b, _ in windows]
        for forward, found in zip((plain, plain.exact), both, strict=True):
            found.append(joined(forward, inputs, [(0, 0), *places, (-1, -1)], special=[0, -1]))
    check(encoder, ours, both, special_tokens=settings.get("special_tokens", True))


@pytest.mark.parametrize("long_first", [True, False])
def test_windows_of_pairs(long_first: bool, encoder_of: EncoderOf, plain_of: PlainOf) -> None:
    encoder, plain = encoder_of("bert"), plain_of("bert")
    short, long, max_length, stride = TEXTS[0], TEXTS[13], 30, 5
    a, b = (long, short) if long_first else (short, long)
    tokenized, ours = run(encoder, [a], [b], max_length=max_length, stride=stride, on_long="window")
    ids_a, ids_b = (plain.tokenizer(t, add_special_tokens=False)["input_ids"] for t in (a, b))
    cls, sep = plain.tokenizer.cls_token_id, plain.tokenizer.sep_token_id
    n_long, other = max(len(ids_a), len(ids_b)), min(len(ids_a), len(ids_b))
    windows = brute_force_windows(n_long, max_length - 3 - other, stride)
    assert len(windows) > 2
    before = 1 if long_first else 2 + len(ids_a)
    places = [(n, before + i - start) for n, (start, _, taken) in enumerate(windows) for i in taken]
    inputs = []
    for start, stop, _ in windows:
        x, y = (ids_a[start:stop], ids_b) if long_first else (ids_a, ids_b[start:stop])
        inputs.append(([cls, *x, sep, *y, sep], [0] * (len(x) + 2) + [1] * (len(y) + 1)))
    places = [*((0, i) for i in range(before)), *places]
    if long_first:  # the middle [SEP] closes the moving text; the repeated text is the first's
        start, stop, _ = windows[-1]
        size = windows[0][1]
        places += [(-1, before + stop - start)]
        places += [(0, before + size + 1 + i) for i in range(other)]
    ends = [0, 1 + len(ids_a), -1]
    both = [[joined(f, inputs, [*places, (-1, -1)], special=ends)] for f in (plain, plain.exact)]
    assert tokenized[0].ids.tolist() == [cls, *ids_a, sep, *ids_b, sep]
    assert not tokenized[0].cut
    check(encoder, ours, both)


@needs_plain_bf16
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "electra", "distilbert"])
def test_bf16_is_as_near_as_plain_bf16(family: str, tiny: Tiny, plain_of: PlainOf) -> None:
    encoder = Encoder(str(tiny(family)), device="cpu", precision="bf16")
    half = Plain.load(tiny(family), encoder.max_length, torch.bfloat16)
    _, ours = run(encoder, TEXTS)
    for layer in range(encoder.n_layers + 1):
        exact = np.concatenate([plain_of(family)(text).hidden[layer] for text in TEXTS])
        theirs = np.concatenate([half(text).hidden[layer] for text in TEXTS])
        distances = [np.linalg.norm(v - exact) for v in (ours.tokens[str(layer)], theirs)]
        assert 0 < distances[0] <= 1.2 * distances[1]
