"""Corpora in memory: the vectors, counts and rejects of the equal file."""

from __future__ import annotations

import datetime
import decimal
import inspect
import json
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import embedkit
from embedkit.choices import FORMATS
from embedkit.corpus import CorpusOptions, CorpusReader, Record, input_files, plan_corpus
from embedkit.corpus.options import Dialect
from embedkit.corpus.readers import READERS, open_table
from embedkit.dataset.planning import ExtractSettings
from embedkit.errors import MismatchError, UsageError
from embedkit.types import Progress
from tests.store_fixtures import ROWS, manifest_of, quick, run, tiny_model, tree, write_tsv

__all__ = ["quick"]

pytestmark = pytest.mark.usefixtures("quick")

RECORDS = [{"id": i, "document": text, "label": int(label)} for i, text, label in ROWS]
RECORDS[3] |= {"document": None, "label": None}
FRAME = pd.DataFrame(RECORDS).astype({"document": "string", "label": "Int64"})


def _dataset() -> Any:
    from datasets import Dataset

    return Dataset.from_list([RECORDS[-1], *RECORDS]).select(range(1, len(RECORDS) + 1))


def _table() -> pa.Table:
    return pa.Table.from_pandas(FRAME, preserve_index=False)


def _stream() -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(_table().schema, _table().to_batches(2))


TABLES: dict[str, Callable[[], Any]] = {
    "DataFrame": lambda: FRAME,
    "filtered DataFrame": lambda: pd.concat([FRAME.iloc[:1], FRAME]).iloc[1:],
    "categories": lambda: FRAME.astype({"label": "category", "document": "category"}),
    "polars": lambda: pl.from_pandas(FRAME),
    "polars categories": lambda: pl.from_pandas(FRAME).cast({"document": pl.Categorical}),
    "Table": _table,
    "string_view": lambda: _table().set_column(
        1, "document", _table()["document"].cast(pa.string_view())
    ),
    "RecordBatch": lambda: _table().combine_chunks().to_batches()[0],
    "RecordBatchReader": _stream,
    "Dataset": _dataset,
    "column beside": lambda: _table().append_column("x", pa.array([[1.0]] * len(RECORDS))),
}
OBJECTS: dict[str, Callable[[], Any]] = {
    "list": lambda: RECORDS,
    "tuple": lambda: tuple(RECORDS),
    "generator": lambda: (record for record in RECORDS),
    "missing as NaN": lambda: [{**RECORDS[3], "document": float("nan"), "label": np.nan}
                               if record["document"] is None else record for record in RECORDS],
}  # fmt: skip


def _same(out: Path, golden: Path) -> None:
    """Equal rows and vectors, equal counts, equal rejects."""
    for name in ("sentences", "words", "tokens"):
        for file in sorted((golden / name).glob("*.parquet")):
            assert pq.read_table(out / name / file.name).equals(pq.read_table(file))
    assert manifest_of(out)["totals"] == manifest_of(golden)["totals"]
    kept = ("row", "reason", "detail", "excerpt_b64", "line", "offset")
    rejects = [
        [{name: json.loads(line)[name] for name in kept}
         for line in (folder / "_embedkit/rejects.jsonl").read_text("utf-8").splitlines()]
        for folder in (out, golden)
    ]  # fmt: skip
    assert rejects[0] == rejects[1]
    assert len(rejects[0]) == manifest_of(out)["totals"]["rejected"] == 4


@pytest.fixture(scope="module")
def goldens(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same records from a Parquet and a JSON Lines file."""
    folder = tmp_path_factory.mktemp("goldens")
    FRAME.to_parquet(folder / "corpus.parquet", index=False)
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in RECORDS)
    (folder / "corpus.jsonl").write_text(lines, "utf-8")
    for kind in ("parquet", "jsonl"):
        run(folder / f"corpus.{kind}", folder / kind, tokens=True, words="mean")
    return {kind: folder / kind for kind in ("parquet", "jsonl")}


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES.keys())
def test_a_table_gives_what_the_equal_parquet_file_gives(
    goldens: dict[str, Path], tmp_path: Path, make: Callable[[], Any]
) -> None:
    run(make(), tmp_path / "out", tokens=True, words="mean")
    _same(tmp_path / "out", goldens["parquet"])


@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS.keys())
def test_records_give_what_the_equal_json_lines_give(
    goldens: dict[str, Path], tmp_path: Path, make: Callable[[], Any]
) -> None:
    run(make(), tmp_path / "out", tokens=True, words="mean")
    _same(tmp_path / "out", goldens["jsonl"])
    found, wanted = (manifest_of(p)["job"] for p in (tmp_path / "out", goldens["jsonl"]))
    assert found == wanted  # the very bytes: the fingerprint is that of the file
    assert tree(tmp_path / "out" / "sentences") == tree(goldens["jsonl"] / "sentences")


@pytest.mark.parametrize("make", [list, tuple, iter, np.array, pd.Series, pl.Series], ids=str)
def test_texts(tmp_path: Path, make: Callable[[Any], Any]) -> None:
    texts = ["the movie was good", " ", "배를\n타고", 'a "b"\tc', "\ufeffbus\r"]
    result = run(make(texts), tmp_path / "out")
    assert embedkit.load(result.out).text == [text for text in texts if text.strip()]
    assert result.manifest.totals.rejected_by_reason == {"empty_text": 1}


def test_what_is_no_text_is_rejected_and_counted(tmp_path: Path) -> None:
    records = ["a", None, float("nan"), {"text": 7}, {"text": "half \ud83d"}, {"label": "x"}, "bus"]
    result = run(iter(records), tmp_path / "out", label="label")
    assert embedkit.load(result.out).row.tolist() == [0, 6]
    reasons = {"null_text": 3, "text_not_string": 1, "lone_surrogate": 1}
    assert result.manifest.totals.rejected_by_reason == reasons


def test_values_beside_the_text_keep_their_form(tmp_path: Path) -> None:
    when = datetime.date(2020, 1, 31)
    record = {"text": "a", "id": np.int64(7), "a": when, "b": decimal.Decimal("1.50"), "c": True}
    data = embedkit.load(run([record], tmp_path / "out", keep=["a", "b", "c"]).out)
    kept = [data.column(name)[0] for name in "abc"]
    assert (data.ids[0], kept) == ("7", ["2020-01-31", "1.50", "true"])


def _stop_in_shard_2(state: Progress) -> None:
    if state.stage == "shard 2":
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("first", "again", "other"),
    [
        (OBJECTS["list"], OBJECTS["generator"], lambda: RECORDS[:-1]),
        (TABLES["Table"], TABLES["RecordBatchReader"], lambda: _table().slice(1)),
        (TABLES["DataFrame"], TABLES["filtered DataFrame"], lambda: FRAME.iloc[::-1]),
    ],
    ids=["records", "batches of other sizes", "frame"],
)
def test_an_interrupted_job_is_resumed_by_equal_content(
    tmp_path: Path, first: Callable[[], Any], again: Callable[[], Any], other: Callable[[], Any]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(first(), tmp_path / "out", progress=_stop_in_shard_2)
    with pytest.raises(MismatchError, match=r"input\.files\[0\]"):
        run(other(), tmp_path / "out")
    assert run(again(), tmp_path / "out").resumed_shards >= 1
    run(first(), tmp_path / "whole")
    assert tree(tmp_path / "out" / "sentences") == tree(tmp_path / "whole" / "sentences")


def test_row_groups_do_not_depend_on_batches(tmp_path: Path) -> None:
    """Of tables of several row groups."""
    texts = pa.table({"text": [f"text {i}" for i in range(40_000)], "n": range(40_000)})
    batches = [5, 16_384, 39_999, 40_000]
    hashes = set()
    for size in batches:
        reader = pa.RecordBatchReader.from_batches(texts.schema, texts.to_batches(size))
        with input_files(reader) as (file,):
            hashes.add(file.path.read_bytes())
            records = list(CorpusReader(plan_corpus([file])))
        assert [r.text for r in records if isinstance(r, Record)] == texts["text"].to_pylist()
    assert len(hashes) == 1


def test_samples_and_names(tmp_path: Path) -> None:
    result = run(iter(RECORDS), tmp_path / "out", sample=4, min_chars=2, text="document")
    assert result.manifest.totals.accepted == 4
    assert manifest_of(tmp_path / "out")["names"]["inputs"] == [f"<{type(iter([])).__name__}>"]


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        (["corpus.tsv"], r"entry 0 of the corpus, 'corpus\.tsv', is the name of a file, and a li"),
        (["a text", "missing.parquet"], r"entry 1 .* Pass files as \[pathlib\.Path\('missing"),
        (["a text", Path("corpus.tsv")], r"1 of the 2 entries of the corpus are pathlib\.Path"),
        ([], "the corpus is an empty list"),
        ({"text": ["a"]}, r"the corpus is a dict; expected .* Pass one of its values"),
        (7, "the corpus is a int; expected a path"),
        (b"a text", "the corpus is a bytes; expected a path"),
        ([("a", "b")], "record 0 of the corpus is a tuple; expected a str, or a dict"),
        (["a", 7], "record 1 of the corpus is a int"),
        ([{"text": "a", "x": b"b"}], "record 0 of the corpus cannot be read: a value is a bytes"),
        ([{("text",): "a"}], "record 0 of the corpus cannot be read: keys must be str"),
        (pd.DataFrame({"text": ["a", 7]}), "the DataFrame cannot be read as a table: .*int"),
        (pa.table({"text": pa.array([b"a"])}), r"text='text': <Table> has no such column"),
    ],
    ids=str,
)
def test_what_is_no_corpus(tmp_path: Path, corpus: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(corpus, tmp_path / "out", text="text" if isinstance(corpus, pa.Table) else None)
    assert not list(tmp_path.glob("out*"))


def test_an_open_file_is_no_corpus(tmp_path: Path) -> None:
    path = write_tsv(tmp_path / "corpus.tsv")
    with path.open() as stream, pytest.raises(UsageError, match="is a TextIOWrapper; expected a"):
        run(stream, tmp_path / "out")


def test_what_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a corpus in memory has no name .* Pass out="):
        embedkit.extract(["a"], model=str(tiny_model()))
    with pytest.raises(UsageError, match=r"encoding='cp949': tells how a file is written; .* list"):
        run(["a"], tmp_path / "out", encoding="cp949")
    with pytest.raises(TypeError, match=r"keep='a': expected a list of columns"):
        run(["a"], tmp_path / "out", keep="a")


def test_nothing_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    run(RECORDS, tmp_path / "out")
    assert not list((tmp_path / "scratch").iterdir())


# --- tables of formats and options ---------------------------------------------------------------


def test_every_format_has_a_reader(tmp_path: Path) -> None:
    assert tuple(READERS) == FORMATS
    suffixes = [suffix for kind in READERS.values() for suffix in kind.suffixes]
    assert len(set(suffixes)) == len(suffixes)
    with pytest.raises(UsageError, match="format='excel': expected tsv, csv"):
        open_table(tmp_path / "corpus.xlsx", Dialect("excel"))


def test_extract_has_the_parameters_of_both_objects() -> None:
    signature = inspect.signature(embedkit.extract)
    own = {"corpus", "out", "overwrite", "allow_env_change", "progress"}
    names = set(signature.parameters) - own
    assert names == {f.name for kind in (CorpusOptions, ExtractSettings) for f in fields(kind)}
    for kind in (CorpusOptions, ExtractSettings):
        for field in fields(kind):
            assert field.default is not MISSING
            assert signature.parameters[field.name].default == field.default
            assert signature.parameters[field.name].kind is inspect.Parameter.KEYWORD_ONLY
    assert inspect.getdoc(embedkit.extract) is not None
    for name in {*names, *own}:
        assert f"\n    {name}: " in str(inspect.getdoc(embedkit.extract))


@pytest.mark.parametrize("name", ["corpus.arrow", "corpus.feather", "corpus.ipc"])
def test_an_arrow_file_gives_what_the_equal_parquet_file_gives(
    goldens: dict[str, Path], tmp_path: Path, name: str
) -> None:
    table, path = _table(), tmp_path / name
    with pa.OSFile(str(path), "wb") as sink:
        new = pa.ipc.new_stream if name == "corpus.ipc" else pa.ipc.new_file
        with new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=5)
    run(path, tmp_path / "out", tokens=True, words="mean")
    _same(tmp_path / "out", goldens["parquet"])
