"""One shard as bytes: types, what is refused, what the footer says."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedkit.choices import STORAGES
from embedkit.dataset.schema import (
    Footer,
    cast_for_storage,
    read_footer,
    shard_bytes,
    text_column,
    vector_column,
)
from embedkit.errors import EncodeError

FOOTER = Footer(
    "f" * 64, 3, 30, 39, 10, {"tokens": 7}, {"words": "ab"}, {"settings": {"x": "한글"}}
)


def shard(n: int = 5, width: int = 4, storage: str = "float32") -> pa.Buffer:
    values = np.random.default_rng(1).normal(size=(n, width)).astype(np.float32)
    stored = cast_for_storage(values, storage, name="mean_1", rows=range(n))
    scalars = {"row": pa.array(range(n), pa.int64()), "text": text_column(["배"] * n),
               "label": text_column([None] * n)}  # fmt: skip
    return shard_bytes(scalars, {"mean_1": stored}, footer=FOOTER, storage=storage)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("n", [0, 1, 5])
def test_a_shard_is_a_function_of_its_content(storage: str, n: int) -> None:
    data = shard(n, storage=storage)
    assert data.equals(shard(n, storage=storage))
    assert read_footer(pa.BufferReader(data)) == FOOTER
    table = pq.read_table(pa.BufferReader(data))
    assert table.num_rows == n
    kind = pa.float16() if storage == "float16" else pa.float32()
    assert table.schema.field("mean_1").type == pa.list_(pa.field("element", kind, False), 4)
    assert [f.nullable for f in table.schema] == [False, False, True, False]
    keys = {k for k in pq.read_metadata(pa.BufferReader(data)).metadata if k != b"ARROW:schema"}
    assert all(key.startswith(b"embedkit.") for key in keys)


def test_vectors_are_not_copied() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    flat = vector_column(values).flatten().to_numpy()
    assert np.shares_memory(flat, values)


@given(st.lists(st.floats(-65_504, 65_504, width=32), min_size=1, max_size=20))
def test_storage_rounds_to_the_nearest_half(numbers: list[float]) -> None:
    values = np.array([numbers], np.float32)
    half = cast_for_storage(values, "float16", name="v", rows=[0])
    compact = cast_for_storage(values, "compact", name="v", rows=[0])
    assert half.dtype == np.float16
    assert compact.dtype == np.float32
    assert (half.astype(np.float32) == compact).all()
    assert (np.abs(compact - values) <= np.maximum(np.abs(values) * 2**-11, 2**-25)).all()
    assert cast_for_storage(values, "float32", name="v", rows=[0]) is values


@pytest.mark.parametrize(
    ("value", "storage", "message"),
    [
        (np.nan, "float32", r"cls_0: NaN or infinite values in 1 vectors \(rows 12\)"),
        (np.inf, "compact", "NaN or infinite values"),
        (65_520.0, "float16", r"over 65504\); use storage=.float32. in 1 vectors \(rows 12\)"),
        (-1e9, "compact", "values beyond float16"),
    ],
)
def test_what_is_no_number_is_refused(value: float, storage: str, message: str) -> None:
    values = np.zeros((4, 3), np.float32)
    values[2, 1] = value
    with pytest.raises(EncodeError, match=message) as caught:
        cast_for_storage(values, storage, name="cls_0", rows=[10, 11, 12, 13])
    assert caught.value.exit_code == 5
    assert cast_for_storage(values[:2], storage, name="cls_0", rows=[10, 11]).shape == (2, 3)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all" * 9])
def test_what_is_no_shard_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a Parquet file"):
        read_footer(pa.BufferReader(content))


def test_a_parquet_file_of_others_is_no_shard() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"row": [1]}), sink)
    with pytest.raises(ValueError, match="not a shard of embedkit"):
        read_footer(pa.BufferReader(sink.getvalue()))
    with pytest.raises(ValueError, match="not a shard of embedkit"):
        Footer.from_metadata(None)
    with pytest.raises(ValueError, match="not a shard of embedkit"):
        Footer.from_metadata({**FOOTER.to_metadata(), b"embedkit.rows": b"{"})


def test_views_in_the_order_of_layers_not_of_letters() -> None:
    from embedkit.dataset.manifest import in_column_order

    names = [f"{p}_{i}" for i in range(13) for p in ("cls", "mean", "max")] + ["pooler"]
    stored = dict(sorted(dict.fromkeys(names, 4).items()))
    assert list(in_column_order(stored)) == names
    stored["mean_sum_9to12"] = 4
    assert list(in_column_order(stored))[-2:] == ["mean_sum_9to12", "pooler"]
