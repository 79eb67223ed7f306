"""Corpora in memory: the vectors, counts and rejects of the equal file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import embedkit
from embedkit.corpus.memory import input_files
from embedkit.corpus.plan import CorpusOptions
from embedkit.errors import MismatchError, UsageError
from embedkit.predict import predict_file
from embedkit.remote import PROTOCOLS
from embedkit.units.units import Units
from tests.conftest import Files
from tests.corpus_fixtures import read_corpus
from tests.store_fixtures import ROWS, begin, run, tiny_model, tree

pytestmark = pytest.mark.usefixtures("quick")

RECORDS = [{"id": i, "document": text, "label": int(label)} for i, text, label in ROWS]
RECORDS[3] |= {"document": None, "label": None}
FRAME = pd.DataFrame(RECORDS).astype({"document": "string", "label": "Int64"})


def _dataset() -> Any:
    from datasets import Dataset

    # in an order of its own, which its tables do not have
    return Dataset.from_list(RECORDS[::-1]).select(range(len(RECORDS))[::-1])


def _table() -> pa.Table:
    return pa.Table.from_pandas(FRAME, preserve_index=False)


TABLES: dict[str, Callable[[], Any]] = {
    "DataFrame": lambda: FRAME,
    "filtered DataFrame": lambda: pd.concat([FRAME.iloc[:1], FRAME]).iloc[1:],
    "categories": lambda: FRAME.astype({"label": "category", "document": "category"}),
    "polars": lambda: pl.from_pandas(FRAME),
    "Table": _table,
    "RecordBatch": lambda: _table().combine_chunks().to_batches()[0],
    "RecordBatchReader": lambda: _table().to_reader(2),
    "Dataset": _dataset,
    "column beside": lambda: _table().append_column("x", pa.array([[1.0]] * len(RECORDS))),
}
OBJECTS: dict[str, Callable[[], Any]] = {
    "list": lambda: RECORDS,
    "generator": lambda: (record for record in RECORDS),
    "transformed": lambda: _dataset().with_transform(dict),
    "missing as NaN": lambda: [
        {**RECORDS[3], "document": float("nan"), "label": np.nan}
        if record["document"] is None
        else record
        for record in RECORDS
    ],
}


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES.keys())
def test_a_table_is_read_as_the_equal_parquet_file_is(
    tmp_path: Path, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("columnar", "memory"):
        monkeypatch.setattr(f"embedkit.corpus.{module}.ROW_GROUP", 4)
    FRAME.to_parquet(tmp_path / "c.parquet", index=False)
    assert read_corpus(make()).content == read_corpus(tmp_path / "c.parquet").content


@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS.keys())
def test_records_are_read_as_the_equal_json_lines_are(
    tmp_path: Path, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And have their very bytes: the fingerprint of a dataset is that of the file."""
    monkeypatch.setattr("embedkit.corpus.memory._LINES_AT_ONCE", 2)
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in RECORDS)
    (tmp_path / "c.jsonl").write_text(lines, "utf-8")
    assert read_corpus(make()).content == read_corpus(tmp_path / "c.jsonl").content
    with input_files(make()) as (file,):
        assert file.path.read_text("utf-8") == lines


@pytest.mark.parametrize(
    "make", [list, tuple, iter, np.array, pd.Series, pd.Index, pl.Series, pa.array]
)
def test_texts(tmp_path: Path, make: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scratch").mkdir()
    tiny_model()  # which stays
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    texts = ["the movie was good", " ", "배를\n타고", 'a "b"\tc', "\ufeffbus\r"]
    result = run(make(texts), tmp_path / "out")
    assert embedkit.load(result.out).text == [text for text in texts if text.strip()]
    assert result.manifest.totals.rejected_by_reason == {"empty_text": 1}
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.parametrize(
    ("first", "again", "other"),
    [
        (OBJECTS["list"], OBJECTS["generator"], lambda: RECORDS[:-1]),
        (TABLES["Table"], TABLES["RecordBatchReader"], lambda: _table().slice(1)),
        (TABLES["DataFrame"], TABLES["filtered DataFrame"], lambda: FRAME.iloc[::-1]),
    ],
)
def test_an_interrupted_job_is_resumed_by_equal_content(
    tmp_path: Path, first: Callable[[], Any], again: Callable[[], Any], other: Callable[[], Any]
) -> None:
    begin(first(), tmp_path / "out")
    with pytest.raises(MismatchError, match=r"input\.files\[0\]"):
        run(other(), tmp_path / "out")
    assert run(again(), tmp_path / "out").resumed_shards >= 1
    run(first(), tmp_path / "whole")
    assert tree(tmp_path / "out" / "sentences") == tree(tmp_path / "whole" / "sentences")


def test_files_at_addresses(tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedkit.remote.PROTOCOLS", (*PROTOCOLS, "memory"))
    lines = "".join(json.dumps(record) + "\n" for record in RECORDS)
    file = tmp_path / "c.jsonl"
    file.write_text(lines, "utf-8")
    server = f"http://{serve({'/c.jsonl': lines.encode()})}"
    with fsspec.open("memory://bucket/c.jsonl", "w") as target:
        target.write(lines)
    addresses = [f"{server}/c.jsonl", f"{server}/c.jsonl?raw=1", "memory://bucket/c.jsonl"]
    run(file, tmp_path / "whole")
    for number, address in enumerate(addresses):
        for corpus in (address, [Path(address)]):
            with input_files(corpus) as (found,):
                assert found.path.read_bytes() == file.read_bytes()
                assert found.name == address.removesuffix("?raw=1")
        run(address, tmp_path / f"{number}")
        assert tree(tmp_path / f"{number}" / "sentences") == tree(tmp_path / "whole" / "sentences")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    absent = [f"{server}/none.tsv", "memory://none", "s3://bucket/c.tsv"]
    for address in (*absent, "simplecache::s3://bucket/c.tsv"):
        with pytest.raises(UsageError, match=address[:7]), input_files(address):
            pass
    undocumented = [file.as_uri(), "none://a/b", "ftp://h/x", "local://x"]
    for address in (*undocumented, f"{server}::file://x", "s3://b/x::file:///etc/x"):
        expected = f"{address[:6]}.*: expected a path, or an address"
        with pytest.raises(UsageError, match=expected), input_files(address):
            pass


def test_every_command_reads_addresses_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Any
) -> None:
    """A corpus or a dataset, to fit, to test, to split or to predict."""
    monkeypatch.chdir(tmp_path)  # where vectors of a corpus are kept
    folder = tmp_path / "data"
    rows = "".join(f"good film {i}\t{'ab'[i % 2]}\n" for i in range(20))
    (tmp_path / "c.tsv").write_text(f"text\tlabel\n{rows}", "utf-8")
    run(tmp_path / "c.tsv", folder)
    paths = [path for path in tmp_path.rglob("*") if path.is_file()]
    files = {f"/{path.relative_to(tmp_path)}": path.read_bytes() for path in paths}
    server = f"http://{serve(files)}"
    given: dict[str, Any] = {"features": "tfidf", "folds": 2}
    model = str(tiny_model())
    embedkit.train(folder, out=tmp_path / "0", **given, test=folder)
    embedkit.train(f"{server}/c.tsv?raw=1", out=tmp_path / "1", model=model, **given, test=folder)
    embedkit.train(f"{server}/data", out=tmp_path / "2", test=f"{server}/data", **given)
    made = [(tmp_path / f"{number}/predictions.parquet").read_bytes() for number in range(3)]
    assert made[0] == made[1] == made[2]
    assert len(embedkit.split(f"{server}/data", folds=2).row) == 20
    for number, name in enumerate(("c.tsv", "data")):
        out = tmp_path / f"{number}.tsv"
        predict_file(tmp_path / "0", f"{server}/{name}", out=out)
        assert out.read_bytes() == (tmp_path / "0.tsv").read_bytes()


class Changing(Files):
    """A server of parts of files, which are other ones after the first answer."""

    answers = count()

    def do_GET(self) -> None:  # noqa: N802
        content = self.files[self.path]
        if self.command == "GET" and next(self.answers):
            content = content.replace(b"old", b"new")
        first, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")
        part = content[int(first) : int(last or len(content)) + 1]
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part)}/{len(content)}")
        self.end_headers()
        self.wfile.write(part if self.command == "GET" else b"")


def test_a_file_of_the_web_is_of_one_version(tmp_path: Path, serve: Any) -> None:
    lines = "text\n" + f"the old film {'was long ' * 90}\n" * 12_000
    server = f"http://{serve({'/c.tsv': lines.encode()}, Changing)}"
    with input_files(f"{server}/c.tsv") as (file,):
        assert file.path.read_text("utf-8") == lines


NO_CORPUS: list[tuple[Any, str]] = [
    (["a text", "missing.parquet"], r"missing\.parquet"),
    (["a text", Path("corpus.tsv")], "corpus"),
    ([], "empty list"),
    ({"text": ["a"]}, r"pandas\.DataFrame\(corpus\)"),
    (pl.LazyFrame({"text": ["a"]}), r"corpus\.collect\(\)"),
    (pd.DataFrame({"text": ["a"], "n": pd.arrays.SparseArray([1])}), "Sparse.*str, rename or drop"),
    (pd.DataFrame({"text": ["a"], "n": [2**70]}), "DataFrame.*str, rename or drop"),
    (b"a text", "bytes"),
    ({"a text"}, "corpus is a set"),
    (pa.table({"text": pa.nulls(1, pa.month_day_nano_interval())}), "column 'text' is month"),
    (np.array("a text"), "ndarray"),
    (["a", 7], "record 1"),
    ([{"text": "a", "x": b"b"}], "record 0"),
    ([{("text",): "a"}], "record 0"),
    (pd.DataFrame({"text": ["a", 7]}), "DataFrame"),
    (pa.table({"text": pa.array([b"a"])}), "text='text'"),
]


@pytest.mark.parametrize(("corpus", "message"), NO_CORPUS)
def test_what_is_no_corpus(tmp_path: Path, corpus: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(corpus, tmp_path / "out", text="text" if isinstance(corpus, pa.Table) else None)
    for name, value in (("encoding", "cp949"), ("keep", "a")):
        with pytest.raises(UsageError, match=f"{name}='{value}'"):
            run(["a"], tmp_path / "out", **{name: value})
    assert not list(tmp_path.glob("out*"))


def test_names_of_classes_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A label of Hugging Face is a number, and its file has the names; those of words too."""
    from datasets import ClassLabel, Dataset, Features, IterableDataset, Sequence, Value

    tags = Sequence(ClassLabel(names=["O", "B-LOC"]))
    kinds = {"tokens": Sequence(Value("string")), "tags": tags}
    kinds["label"] = ClassLabel(names=["bad", "good"])
    words = [["in", "Seoul"], ["no"], ["a"]]
    records = {"tokens": words, "tags": [[0, 1], [0], [0]], "label": [1, 0, -1]}
    made = Dataset.from_dict(records, features=Features(kinds))
    made.to_parquet(tmp_path / "c.parquet")
    for corpus in (made, made.to_iterable_dataset(), tmp_path / "c.parquet"):
        caplog.clear()
        with caplog.at_level("INFO", "embedkit"):
            units = Units.of_corpus(corpus, CorpusOptions(word_label="tags"))
        assert "the numbers in label, named 0=bad,1=good there" in caplog.text
        assert "the numbers in tags, named 0=O,1=B-LOC there" in caplog.text
        assert list(units.label or ()) == ["1", "0", None]  # -1 stands for no class
    # a column is a list of texts
    texts = Dataset.from_dict({"text": ["a", "b"]})
    for column in (texts["text"], texts.to_iterable_dataset()["text"]):
        inputs = Units.of_corpus(column, CorpusOptions()).inputs(np.arange(2))
        assert list(inputs) == ["a", "b"]
    rows = [{"text": None}, {"label": 1, "text": "a"}]  # keys in any order, or absent
    stream = IterableDataset.from_generator(
        lambda: iter(rows),
        features=Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])}),
    )
    units = Units.of_corpus(stream, CorpusOptions(label="label"))
    assert (units.texts(), list(units.label or ())) == (["a"], ["1"])
