"""One shard as bytes: types, what is refused, what the footer says."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedkit.choices import STORAGES
from embedkit.dataset.format import (
    Footer,
    cast_for_storage,
    in_column_order,
    read_footer,
    shard_bytes,
    text_column,
)
from embedkit.errors import EncodeError

FOOTER = Footer("f" * 64, 3, 30, 39, 10, {"tokens": 7}, {"settings": {"x": "한글"}})


def shard(n: int = 5, width: int = 4, storage: str = "float32") -> pa.Buffer:
    values = np.random.default_rng(1).normal(size=(n, width)).astype(np.float32)
    stored = cast_for_storage(values, storage, name="mean_1", rows=range(n))
    scalars = {
        "row": pa.array(range(n), pa.int64()),
        "text": text_column(["배"] * n),
        "label": text_column([None] * n),
    }
    return shard_bytes(scalars, {"mean_1": stored}, footer=FOOTER, storage=storage)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("n", [0, 1, 5])
def test_a_shard_is_a_function_of_its_content(storage: str, n: int) -> None:
    data = shard(n, storage=storage)
    assert data.equals(shard(n, storage=storage))
    assert read_footer(pa.BufferReader(data)) == FOOTER
    table = pq.read_table(pa.BufferReader(data))
    assert table.num_rows == n
    kind = {"float16": pa.float16(), "int8": pa.int8()}.get(storage, pa.float32())
    assert table.schema.field("mean_1").type == pa.list_(pa.field("element", kind, False), 4)
    assert [f.nullable for f in table.schema] == [False, False, True, False]
    keys = {k for k in pq.read_metadata(pa.BufferReader(data)).metadata if k != b"ARROW:schema"}
    assert all(key.startswith(b"embedkit.") for key in keys)


@pytest.mark.parametrize("storage", STORAGES)
def test_pages_of_vectors(storage: str) -> None:
    metadata = pq.read_metadata(pa.BufferReader(shard(8_200, storage=storage)))
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    assert [group.num_rows for group in groups] == [8_192, 8]
    row, vector = groups[0].column(0), groups[0].column(3)
    assert vector.statistics is None
    assert vector.compression == ("ZSTD" if storage == "compact" else "UNCOMPRESSED")
    assert ("BYTE_STREAM_SPLIT" if storage == "compact" else "PLAIN") in vector.encodings
    dictionary = any("DICTIONARY" in encoding for encoding in vector.encodings)
    assert dictionary == (storage == "int8")
    assert storage != "int8" or vector.total_compressed_size < 1.2 * 8_192 * 4
    assert (row.statistics.min, row.statistics.max, row.compression) == (0, 8_191, "ZSTD")


@pytest.mark.parametrize(
    ("value", "storage", "message"),
    [
        (np.nan, "float32", r"cls_0.*rows 12"),
        (np.inf, "compact", r"cls_0.*rows 12"),
        (65_520.0, "float16", "storage"),
        (-1e9, "compact", "storage"),
    ],
)
def test_what_is_no_number_is_refused(value: float, storage: str, message: str) -> None:
    values = np.zeros((4, 3), np.float32)
    values[2, 1] = value
    with pytest.raises(EncodeError, match=message) as caught:
        cast_for_storage(values, storage, name="cls_0", rows=[10, 11, 12, 13])
    assert caught.value.exit_code == 5
    assert cast_for_storage(values[:2], storage, name="cls_0", rows=[10, 11]).shape == (2, 3)


def test_views_in_the_order_of_layers_not_of_letters() -> None:
    names = [f"{p}_{i}" for i in range(13) for p in ("cls", "mean", "max")] + ["pooler"]
    stored = dict(sorted(dict.fromkeys(names, 4).items()))
    assert list(in_column_order(stored)) == names
    stored["mean_sum_9to12"] = 4
    assert list(in_column_order(stored))[-2:] == ["mean_sum_9to12", "pooler"]
