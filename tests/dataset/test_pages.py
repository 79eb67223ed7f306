"""Reading vectors straight from pages against pyarrow, and damage that must not pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from embedkit.dataset.parquet import vector_column
from embedkit.dataset.tables import copy_vectors


def write(path: Path, vectors: dict[str, Any], **options: Any) -> pq.FileMetaData:
    columns = [vector_column(v) for v in vectors.values()]
    fields = [pa.field(n, c.type, nullable=False) for n, c in zip(vectors, columns, strict=True)]
    settings: dict[str, Any] = {
        "compression": "none",
        "use_dictionary": False,
        "write_statistics": False,
        "write_page_checksum": True,
        "write_page_index": True,
        "row_group_size": 100,
        "data_page_size": 1_024,
        **options,
    }
    pq.write_table(pa.Table.from_arrays(columns, schema=pa.schema(fields)), path, **settings)
    return pq.read_metadata(path)


def random(rows: int, width: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


@given(
    rows=st.integers(0, 200),
    width=st.integers(1, 40),
    group=st.integers(1, 120),
    page=st.sampled_from([64, 500, 4_096, 1 << 20]),
)
def test_every_layout_is_read(tmp_path: Path, rows: int, width: int, group: int, page: int) -> None:
    vectors = {"a": random(rows, width), "b": random(rows, 3, 1)}
    metadata = write(tmp_path / "x", vectors, row_group_size=group, data_page_size=page)
    ours = {name: np.zeros_like(v) for name, v in vectors.items()}
    start = 0
    for number in range(metadata.num_row_groups):
        stop = start + metadata.row_group(number).num_rows
        parts = {name: v[start:stop] for name, v in ours.items()}
        with (tmp_path / "x").open("rb") as file:
            assert copy_vectors(file.fileno(), metadata.row_group(number), parts)
        start = stop
    for name, wanted in vectors.items():
        assert np.array_equal(ours[name], wanted)


def test_no_flipped_bit_gives_a_wrong_number(tmp_path: Path) -> None:
    """Whatever byte of the column is hit: an error, or left to the reader that will raise one."""
    path = tmp_path / "x"
    vectors = random(40, 4)
    metadata = write(path, {"a": vectors}, data_page_size=256)
    content = path.read_bytes()
    chunk = metadata.row_group(0).column(0)
    start = chunk.data_page_offset
    raised = 0
    for at in range(start, start + chunk.total_compressed_size):
        for bit in (0, 6):
            damaged = bytearray(content)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            ours = np.zeros_like(vectors)
            try:
                with path.open("rb") as file:
                    done = copy_vectors(file.fileno(), metadata.row_group(0), {"a": ours})
            except ValueError:
                raised += 1
            else:
                assert not done or np.array_equal(ours, vectors), (at, bit)
    assert raised > chunk.total_compressed_size
