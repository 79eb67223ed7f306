"""The language of layers and poolings."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedkit.choices import Pooling
from embedkit.encoding.views import View, parse_layers, parse_view
from embedkit.errors import UsageError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("all", "0 1 2 3 4 5 6 7 8 9 10 11 12"),
        ("sum:5", "sum_5to5"),
        ("sum:-4..-1, 12 ,mean:-4..-1", "sum_9to12 12 mean_9to12"),
        ("-1,12,11..12", "12 11"),
        ("concat:-1..-4", "concat_12to9"),
        ("concat:0,6,12, sum:12,0", "concat_0_6_12 sum_0_12"),
        ("concat:6,0,7..8", "concat_6_0 7 8"),
    ],
)
def test_layers(text: str, names: str) -> None:
    assert [spec.name for spec in parse_layers(text, n_layers=12)] == names.split()


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
