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


def everything(encoder: Encoder, layers: str = COMBINATIONS) -> tuple[list[View], list[LayerSpec]]:
    """Every view of the layers, and the layers."""
    specs = parse_layers(layers, n_layers=encoder.n_layers)
    poolings = [p for p in Pooling if p.has_layer or (p == "pooler" and encoder.has_pooler)]
    if encoder.is_causal:
        poolings.remove(Pooling.CLS)
    return list(views_of(specs, poolings, n_layers=encoder.n_layers)), list(specs)


def run(
    encoder: Encoder,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    special_tokens: bool = True,
    **settings: int | str,
) -> tuple[TokenizedTexts, ShardVectors]:
    """Tokenize and encode with every view and layer."""
    length = int(settings.pop("max_length", encoder.max_length))
    tokenized = encoder.tokenizer.encode(
        texts,
        pairs,
        settings=TokenizerSettings(length, **settings),  # type: ignore[arg-type]
    )
    views, specs = everything(encoder)
    return tokenized, encoder.encode_shard(
        tokenized, views=views, token_layers=specs, special_tokens=special_tokens
    )


def check(
    case: Case,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    special_tokens: bool = True,
    prefix: str = "",
    max_length: int = 0,
) -> None:
    """Every vector of every view and every token of every layer is that of the plain forward."""
    encoder, plain = case
    length = max_length or encoder.max_length
    tokenized, ours = run(
        encoder, texts, pairs, special_tokens=special_tokens, prefix=prefix, max_length=length
    )
    views, specs = everything(encoder)
    assert set(ours.views) == {view.name for view in views}
    forwards = (plain, plain.exact)
    nothing: list[str | None] = [None] * len(texts)
    alone = [
        [forward(prefix + text, pair, max_length=length) for forward in forwards]
        for text, pair in zip(texts, pairs or nothing, strict=True)
    ]
    assert tokenized.n_kept.tolist() == [len(one.special) for one, _ in alone]
    for view in views:
        wanted = [
            [expected(view, one, special=special_tokens) for one in of_both] for of_both in alone
        ]
        assert ours.views[view.name].dtype == np.float32
        check_near(ours.views[view.name], *map(np.array, zip(*wanted, strict=True)))
    for spec in specs:
        states = [[combined(spec, one.hidden) for one in of_both] for of_both in alone]
        check_near(ours.tokens[spec.name], *map(np.concatenate, zip(*states, strict=True)))


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
    check(case, *texts, **settings)


def test_real_checkpoints(real: Case) -> None:
    long = "The ferry leaves at nine and 배는 아홉 시에 떠난다. " * 40
    check(real, (*TEXTS, long))
    check(real, FIRST, SECOND, max_length=20, special_tokens=False)


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


WINDOWS = [(8, 0, True), (9, 3, False), (12, 9, True), (40, 8, False)]
OTHERS = ("bert_left", "roberta", "xlm-roberta", "electra", "japanese")


@pytest.mark.parametrize(
    ("family", "max_length", "stride", "special_tokens"),
    [
        *(("bert", *sizes) for sizes in WINDOWS),
        *((family, *WINDOWS[1]) for family in OTHERS),
        *slow(*((family, *sizes) for family in OTHERS for sizes in WINDOWS if sizes != WINDOWS[1])),
    ],
)
def test_windows(
    family: str,
    max_length: int,
    stride: int,
    special_tokens: bool,
    encoder_of: EncoderOf,
    plain_of: PlainOf,
) -> None:
    encoder, plain = encoder_of(family), plain_of(family)
    tokenized, ours = run(
        encoder,
        LONG_AND_SHORT,
        max_length=max_length,
        stride=stride,
        on_long="window",
        special_tokens=special_tokens,
    )
    views, specs = everything(encoder)
    cls, sep = plain.tokenizer.cls_token_id, plain.tokenizer.sep_token_id
    texts = [plain.tokenizer(t, add_special_tokens=False)["input_ids"] for t in LONG_AND_SHORT]

    def of_windows(i: int, forward: Plain) -> dict[str, np.ndarray]:
        """The tokens of a text, taken from its windows, by layer, and its views."""
        windows = brute_force_windows(len(texts[i]), max_length - 2, stride)
        outputs = [forward.run([cls, *texts[i][a:b], sep], None) for a, b, _ in windows]
        assert tokenized[i].ids.tolist() == [cls, *texts[i], sep]
        assert len(tokenized[i].window_ends) - 1 == len(windows)
        rows: dict[str, np.ndarray] = {}
        for spec in specs:
            states = [combined(spec, hidden) for hidden, _ in outputs]
            body = [
                state[1 + token - a]
                for state, (a, _, tokens) in zip(states, windows, strict=True)
                for token in tokens
            ]
            rows[spec.name] = np.array([states[0][0], *body, states[-1][-1]])
        of_views: dict[str, np.ndarray] = {}
        for view in views:
            counted = rows[view.layer.name][slice(None) if special_tokens else slice(1, -1)]
            if view.pooling is Pooling.POOLER:
                wanted = np.mean([p for _, p in outputs if p is not None], axis=0)
            elif view.pooling is Pooling.CLS:
                wanted = np.mean([combined(view.layer, h)[0] for h, _ in outputs], axis=0)
            elif not len(counted):
                wanted = np.zeros(rows[view.layer.name].shape[1], np.float32)
            else:
                wanted = {
                    Pooling.MEAN: counted.mean(0),
                    Pooling.MAX: counted.max(0),
                    Pooling.LAST_TOKEN: counted[-1],
                }[view.pooling]
            of_views[view.name] = wanted[None]
        return rows | of_views

    both = [[of_windows(i, forward) for i in range(len(texts))] for forward in (plain, plain.exact)]
    for name, vectors in (ours.tokens | ours.views).items():
        check_near(vectors, *(np.concatenate([one[name] for one in each]) for each in both))


@pytest.mark.parametrize("long_first", [True, False])
def test_windows_of_pairs(long_first: bool, encoder_of: EncoderOf, plain_of: PlainOf) -> None:
    encoder, plain = encoder_of("bert"), plain_of("bert")
    short, long, max_length, stride = TEXTS[0], TEXTS[13], 30, 5
    a, b = (long, short) if long_first else (short, long)
    tokenized, ours = run(encoder, [a], [b], max_length=max_length, stride=stride, on_long="window")
    ids_a, ids_b = (plain.tokenizer(t, add_special_tokens=False)["input_ids"] for t in (a, b))
    cls, sep = plain.tokenizer.cls_token_id, plain.tokenizer.sep_token_id
    n_long = max(len(ids_a), len(ids_b))
    other = min(len(ids_a), len(ids_b))
    windows = brute_force_windows(n_long, max_length - 3 - other, stride)
    assert len(windows) > 2
    both = []
    for forward in (plain, plain.exact):
        outputs = []
        for first, after, _ in windows:
            x, y = (ids_a[first:after], ids_b) if long_first else (ids_a, ids_b[first:after])
            types = [0] * (len(x) + 2) + [1] * (len(y) + 1)
            outputs.append(forward.run([cls, *x, sep, *y, sep], types)[0][-1])
        before = 1 if long_first else 2 + len(ids_a)
        rows = list(outputs[0][:before])
        for output, (first, _, tokens) in zip(outputs, windows, strict=True):
            rows += [output[before + token - first] for token in tokens]
        if long_first:  # the middle [SEP] closes the moving text; the repeated text is the first's
            size = windows[0][1]
            rows += [outputs[-1][before + windows[-1][1] - windows[-1][0]]]
            rows += list(outputs[0][before + size + 1 : -1])
        both.append(np.array([*rows, outputs[-1][-1]]))
    assert tokenized[0].ids.tolist() == [cls, *ids_a, sep, *ids_b, sep]
    assert not tokenized[0].cut
    check_near(ours.tokens["3"], *both)
    check_near(ours.views["mean_3"], *(rows.mean(axis=0) for rows in both))


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
