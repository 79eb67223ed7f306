"""docs/format.md describes what is on disk, and the reader that it shows reads it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import embedkit
from tests.processes import ROOT
from tests.store_fixtures import run, write_tsv

PAGE = (ROOT / "docs" / "format.md").read_text("utf-8")
NAMED = set(re.findall(r"`([^`\s]+)`", PAGE))


def reader() -> Any:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    return names["read_dataset"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of three shards with word and token vectors."""
    folder = tmp_path_factory.mktemp("format")
    return run(
        write_tsv(folder / "corpus.tsv"),
        folder / "out",
        shard_rows=4,
        words="mean",
        tokens=True,
        pooling=["cls", "mean", "pooler"],
    ).out


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


def _keys(content: Mapping[str, Any], *, below: int) -> Iterator[str]:
    for name, value in content.items():
        yield name
        if below and isinstance(value, dict):
            yield from _keys(value, below=below - 1)


def test_every_column_and_key_is_described(made: Path) -> None:
    manifest = json.loads((made / "_embedkit" / "manifest.json").read_text("utf-8"))
    listed = {name for entry in NAMED for name in re.split(r"[.,]", entry)}
    for key in ("job", "totals"):
        found = set(_keys({k: v for k, v in manifest[key].items() if k != "model"}, below=1))
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
