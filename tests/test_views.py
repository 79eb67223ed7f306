"""The language of layers and poolings."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedkit.encoding.views import (
    LayerSpec,
    Pooling,
    View,
    parse_layers,
    parse_poolings,
    parse_view,
    views_of,
)
from embedkit.errors import UsageError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("-1", "12"),
        ("0", "0"),
        ("+3", "3"),
        ("12", "12"),
        ("-13", "0"),
        ("0,6,12", "0 6 12"),
        ("12,0", "12 0"),
        ("-4..-1", "9 10 11 12"),
        ("0..2", "0 1 2"),
        ("3..3", "3"),
        ("-13..1", "0 1"),
        ("all", "0 1 2 3 4 5 6 7 8 9 10 11 12"),
        ("sum:-4..-1", "sum_9to12"),
        ("mean:0..3", "mean_0to3"),
        ("concat:11..12", "concat_11to12"),
        ("sum:5", "sum_5to5"),
        ("sum:-4..-1, 12 ,mean:-4..-1", "sum_9to12 12 mean_9to12"),
        ("-1,12,11..12", "12 11"),
        ("concat:-1,-2,-3,-4", "concat_12to9"),
        ("concat:-1..-4", "concat_12to9"),
        ("concat_12to9", "concat_12to9"),
        ("concat:0,6,12, sum:12,0", "concat_0_6_12 sum_0_12"),
        ("concat_0_6_12,3", "concat_0_6_12 3"),
        ("concat:6,0,7..8", "concat_6_0 7 8"),
    ],
)
def test_layers(text: str, names: str) -> None:
    assert [spec.name for spec in parse_layers(text, n_layers=12)] == names.split()


def test_layers_of_a_combination_ascend_but_for_concat() -> None:
    for text in ("sum:-3..-1", "sum:-1,4,-2", ["sum:6,5,4"]):
        assert parse_layers(text, n_layers=6) == (LayerSpec((4, 5, 6), "sum"),)
    for text in ("concat:-1,-2,-3", "concat:-1..-3", ["concat:6,5,4"]):
        assert parse_layers(text, n_layers=6) == (LayerSpec((6, 5, 4), "concat"),)
    assert parse_view("mean_concat_0_6_3", n_layers=6).layer.layers == (0, 6, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("13", r"layers='13': the model has layers 0 \(embeddings\) to 12; -1 is the last and -13"),
        ("-14", r"layers='-14': the model has layers 0 \(embeddings\) to 12"),
        ("0..13", r"layers='0..13': the model has layers 0 \(embeddings\) to 12"),
        ("sum:9..13", r"layers='sum:9..13': the model has layers 0 .* to 12"),
        ("4..1", "layers='4..1': the range runs backwards"),
        ("-1..-4", "layers='-1..-4': the range runs backwards"),
        ("sum:-1..-4", "layers='sum:-1..-4': the range runs backwards"),
        ("concat:1,1", "layers='concat:1,1': a layer is listed twice"),
        ("concat:1,99", "layers='concat:1,99': the model has layers 0"),
        ("max:1..2", "layers='max:1..2': expected sum:, mean: or concat:"),
        ("summ:1..2", "Did you mean 'sum'"),
        ("last", "layers='last': expected all, a layer"),
        ("", "layers='': expected all"),
        ("1,,2", "layers='': expected all"),
        ("1.5", "layers='1.5': expected all"),
        ("sum:all", "layers='sum:all': expected all"),
        ("1-3", "layers='1-3': expected all"),
    ],
)
def test_layers_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_layers(text, n_layers=12)


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("mean_-1", "mean_12"),
        ("cls_0", "cls_0"),
        ("max_6", "max_6"),
        ("mean_sum_9to12", "mean_sum_9to12"),
        ("cls_mean_0to3", "cls_mean_0to3"),
        ("mean_concat:-2..-1", "mean_concat_11to12"),
        ("pooler", "pooler"),
    ],
)
def test_view_names(name: str, column: str) -> None:
    view = parse_view(name, n_layers=12)
    assert view.name == column
    assert parse_view(view.name, n_layers=12) == view


@pytest.mark.parametrize(
    "name", ["", "mean", "mean_", "pooler_12", "median_3", "mean_all", "mean_1,2", "12", "Mean_3"]
)
def test_names_that_are_no_views(name: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{name!r} is not a view. Views are named")):
        parse_view(name, n_layers=12)


@pytest.mark.parametrize("name", ["mean_13", "cls_-14", "mean_sum_9to13"])
def test_views_of_layers_that_do_not_exist(name: str) -> None:
    with pytest.raises(UsageError, match=r"the model has layers 0 \(embeddings\) to 12"):
        parse_view(name, n_layers=12)


@given(st.integers(1, 48), st.data())
def test_a_negative_layer_is_counted_from_the_end(n_layers: int, data: st.DataObject) -> None:
    layer = data.draw(st.integers(0, n_layers))
    from_end = layer - n_layers - 1
    assert parse_layers(str(from_end), n_layers=n_layers) == (LayerSpec((layer,)),)
    assert parse_view(f"cls_{from_end}", n_layers=n_layers).layer.layers == (layer,)


@given(st.integers(1, 24), st.data())
def test_names_lead_back_to_their_views(n_layers: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, n_layers))
    last = data.draw(st.integers(first, n_layers))
    kind = data.draw(st.sampled_from(["sum", "mean", "concat"]))
    (spec,) = parse_layers(f"{kind}:{first}..{last}", n_layers=n_layers)
    view = View(Pooling.MEAN, spec)
    assert spec.layers == tuple(range(first, last + 1))
    assert parse_view(view.name, n_layers=n_layers) == view


@pytest.mark.parametrize(
    ("text", "width"),
    [("-1", 768), ("sum:-4..-1", 768), ("mean:0..1", 768), ("concat:-4..-1", 3072)],
)
def test_width(text: str, width: int) -> None:
    assert parse_layers(text, n_layers=12)[0].width(768) == width


def test_poolings() -> None:
    assert parse_poolings(["mean", " cls", "mean"]) == (Pooling.MEAN, Pooling.CLS)
    assert parse_poolings("mean, cls,mean") == (Pooling.MEAN, Pooling.CLS)
    with pytest.raises(
        UsageError, match=r"pooling='men': expected cls, mean, max, last_token, pooler"
    ):
        parse_poolings(["cls", "men"])


def test_every_layer_with_every_pooling_and_one_pooler() -> None:
    specs = parse_layers("0,-1", n_layers=3)
    poolings = parse_poolings(["pooler", "mean", "cls"])
    names = [view.name for view in views_of(specs, poolings, n_layers=3)]
    assert names == ["mean_0", "cls_0", "mean_3", "cls_3", "pooler"]
    assert views_of(specs, [Pooling.POOLER], n_layers=3)[0].layer.layers == (3,)
