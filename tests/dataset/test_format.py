"""The format of a dataset: as ``docs/format.md`` describes it, and one shard as bytes."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.neighbors import NearestNeighbors

import embedkit
from embedkit.choices import STORAGES
from embedkit.dataset.parquet import (
    cast_for_storage,
    kept_neighbours,
    read_facts,
    scaled,
    shard_bytes,
)
from embedkit.dataset.settings import in_column_order
from embedkit.errors import EncodeError
from tests.processes import ROOT

PAGE = (ROOT / "docs" / "format.md").read_text("utf-8")
NAMED = set(re.findall(r"`([^`\s]+)`", PAGE))


def reader() -> Any:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    return names["read_dataset"]


def test_the_reader_reads_what_load_does(made: Path) -> None:
    table, X = reader()(made, "mean_2")
    data = embedkit.load(made, view="mean_2")
    np.testing.assert_array_equal(X, data.X)
    assert table["id"].to_pylist() == data.ids.tolist()
    words, vectors = reader()(made, "layer_2", table="words")
    assert len(vectors) == len(words) > len(table)


def test_the_fingerprint_is_made_as_described(made: Path) -> None:
    manifest = json.loads((made / "_embedkit" / "manifest.json").read_text("utf-8"))
    text = json.dumps(manifest["job"], ensure_ascii=False, sort_keys=True, indent=1)
    assert hashlib.sha256(text.encode()).hexdigest() == manifest["fingerprint"]


def test_every_column_and_key_is_described(made: Path) -> None:
    manifest = json.loads((made / "_embedkit" / "manifest.json").read_text("utf-8"))
    listed = {name for entry in NAMED for name in re.split(r"[.,]", entry)}
    for key in ("job", "totals"):
        content = {k: v for k, v in manifest[key].items() if k != "model"}
        found = {*content, *(k for v in content.values() if isinstance(v, dict) for k in v)}
        missing = {k for k in found if k not in listed and not k.endswith("_by_reason")}
        assert missing <= {"files", "blank_lines", "fields_csv_quoted", "fields_with_quotes"}
    assert set(manifest) <= listed
    for table in ("sentences", "words", "tokens"):
        schema = pq.read_schema(made / table / "part-00000000.parquet")
        for field in schema:
            vector = field.name.startswith(("layer_", "cls_", "mean_", "pooler"))
            assert vector or field.name in listed, field.name
            if not vector:
                section = PAGE.split(f"### Table `{table}`")[1].split("###")[0]
                (row,) = [
                    line for line in section.splitlines() if re.match(rf"\| .*`{field.name}`", line)
                ]
                assert f"| {'yes' if field.nullable else 'no'} |" in row
                assert str(field.type) in row


def test_the_fingerprint_of_a_split_is_made_as_described(made: Path, tmp_path: Path) -> None:
    embedkit.split(made, folds=2, label="label", out=tmp_path / "s.parquet")
    table = pq.read_table(tmp_path / "s.parquet")
    settings = json.loads(table.schema.metadata[b"embedkit.split"])
    digest = hashlib.sha256(json.dumps(settings["source"]).encode())
    digest.update(table["row"].to_numpy().astype("<i8").tobytes())
    digest.update(table["fold"].to_numpy().astype("<i8").tobytes())
    assert digest.hexdigest() == settings["fingerprint"]
    assert {field.name: str(field.type) for field in table.schema} == {
        "row": "int64",
        "group": "int64",
        "fold": "int16",
    }


# shards


FACTS = {"fingerprint": "f" * 64, "shard": 3, "first_row": 30, "last_row": 39, "rows": 10}
FACTS |= {"ledger": {"tokens": 7}, "job": {"settings": {"x": "한글"}}}


def shard(n: int = 5, width: int = 4, storage: str = "float32") -> pa.Buffer:
    values = np.random.default_rng(1).normal(size=(n, width)).astype(np.float32)
    stored = cast_for_storage(values, storage, name="mean_1", rows=range(n))
    scalars = {
        "row": pa.array(range(n), pa.int64()),
        "text": pa.array(["배"] * n, pa.string()),
        "label": pa.array([None] * n, pa.string()),
    }
    return shard_bytes(scalars, {"mean_1": stored}, facts=FACTS, storage=storage)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("n", [0, 1, 5])
def test_a_shard_is_a_function_of_its_content(storage: str, n: int) -> None:
    data = shard(n, storage=storage)
    assert data.equals(shard(n, storage=storage))
    assert read_facts(pa.BufferReader(data)) == FACTS
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


def test_neighbours_that_int8_keeps() -> None:
    vectors = np.random.default_rng(3).normal(size=(300, 8)).astype(np.float32)
    vectors[0] *= 30  # the steps of all others become wide
    small, scale = scaled(vectors)
    exact, kept = (
        NearestNeighbors(n_neighbors=11, metric="cosine").fit(rows).kneighbors(rows[:200])[1][:, 1:]
        for rows in (vectors, small * scale)
    )
    common = sum(len(np.intersect1d(*pair)) for pair in zip(exact, kept, strict=True))
    assert kept_neighbours([vectors]) == {"neighbours": 2_000, "neighbours_int8": common}
    assert 0 < common < 1_900


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
