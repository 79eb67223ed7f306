"""JSON, Parquet, Arrow and workbooks."""

from __future__ import annotations

import datetime
import gzip
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from embedkit.errors import CorpusError
from tests.corpus_fixtures import Folder, Outcome, read_corpus

BAD_JSON = {
    '{"text": "a", "x": nan}': "bad_json",
    '{"text": "a", "x": {"y": 1, "y": 2}}': "duplicate_key",
    '["a"]': "not_an_object",
    '{"text": "a': "bad_json",
    '{"text": "a\\ud83d"}': "lone_surrogate",
    '{"text": "a", "label": "\\udc4d"}': "lone_surrogate",
    "[" * 100_000: "bad_json",
    '{"text": null}': "null_text",
    '{"label": "1"}': "null_text",
    '{"text": 12}': "text_not_string",
    '{"text": {"a": "b"}}': "text_not_string",
    '{"text": ""}': "empty_text",
}


@pytest.mark.parametrize(("line", "reason"), BAD_JSON.items(), ids=range(len(BAD_JSON)))
@pytest.mark.parametrize("first", [False, True], ids=["later", "first"])
def test_a_bad_json_line_costs_one_record(
    folder: Folder, line: str, reason: str, first: bool
) -> None:
    good = '{"text": "a", "label": "0"}\n'
    got = folder.read(good * (not first) + f"{line}\n\n \n{good}", "corpus.jsonl")
    assert got.reasons == [(1 if first else 2, reason)]
    assert got.texts == (["a"] if first else ["a", "a"])
    assert got.reader.counts.blank_lines == 2


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        *(
            (n, n)
            for n in ("9" * 5_000, "1e400", "1e-9999999999999999", "0.1000000000000000000001")
        ),
        ("1e5", "100000"),
        ("1e16", "10000000000000000"),
        ('"007"', "007"),
        ("true", "True"),
        ("1.00", "1"),
        ("NaN", None),
        ("-Infinity", "-inf"),
        ("null", None),
        ('[1, 2.50,"a"]', '[1, 2.5, "a"]'),
        ('{"a":[{}, null, "\\u1112\\""],"b": 1e3}', '{"a": [{}, null, "ᄒ\\""], "b": 1000}'),
    ],
)
def test_json_values_beside_the_text_are_those_of_other_containers(
    folder: Folder, value: str, literal: str | None
) -> None:
    line = f'{{"text": "a", "id": {value}, "label": {value}, "x": {value}}}\n'
    (record,) = folder.read(line, "corpus.jsonl", label="label", keep=["x"]).records
    assert (record.label, record.kept) == (literal, (literal,))
    assert record.id == ("row 0" if literal is None else literal)


def test_a_deeply_nested_value_that_is_kept_costs_one_record(folder: Folder) -> None:
    line = '{{"text": "{}", "x": {}}}\n'
    data = line.format("a", 1) + line.format("b", "[" * 900 + "]" * 900) + line.format("c", 2)
    got = folder.read(data, "corpus.jsonl", keep=["x"])
    assert [r.text for r in got.records if r.text != "b"] == ["a", "c"]
    assert all(reason == "bad_json" for _, reason in got.reasons)


OBJECTS = [
    {"id": i, "text": f'{text} "q" \\ [x] {{y}} {i}', "labels": {"label": i / 2, "of": [1, {}]}}
    for i, text in enumerate(["배\r\n타고", '\\"', "]},{[", "x" * 70_000] * 3)
]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp949", "utf-16"])
def test_a_json_array_is_read_like_json_lines(
    folder: Folder, indent: int | None, encoding: str
) -> None:
    data = json.dumps(OBJECTS, indent=indent, ensure_ascii=False)
    options: dict[str, Any] = {"label": "labels.label", "keep": ["labels.of"]}
    got = folder.read(data.encode(encoding), "a.json", encoding=encoding, **options)
    lines = "\n".join(json.dumps(one) for one in OBJECTS)
    same = folder.read(lines, "a.jsonl", **options)
    about = [(r.row, r.id, r.text, r.label, r.kept) for r in got.records]
    assert about == [(r.row, r.id, r.text, r.label, r.kept) for r in same.records]
    start = 3 * (encoding == "utf-8-sig")
    for record, one in zip(got.records, OBJECTS, strict=True):
        before = data.encode()[: (record.offset or 0) - start].decode()
        assert json.JSONDecoder().raw_decode(data[len(before) :])[0] == one
        assert record.line == before.count("\n") + 1
    for cut in (1, 70_000):
        with pytest.raises(CorpusError, match=r"a\.json"):
            folder.read(data[:-cut].encode(encoding), "a.json", encoding=encoding)


def test_a_bad_element_of_an_array_costs_one_record(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedkit.corpus.sources.MAX_RECORD_BYTES", 1_000)
    shell = len('{"text": ""}')
    texts = ("m" * (1_000 - shell), "m\\n" * 500)
    closed = (s for s in BAD_JSON if sum(map(s.count, "{[")) == sum(map(s.count, "}]")))
    bad = {line: BAD_JSON[line] for line in closed}
    parts = ['{"text": "a", "label": "0"}', *(f'{{"text": "{text}"}}' for text in texts), "7", *bad]
    got = folder.read(f"[{', '.join(parts)},\n {{'text': 'a'}}, , {parts[0]},]", "a.json")
    assert [len(text) for text in got.texts] == [1, len(texts[0]), 1]
    # a bad element, one that is missing, and a comma too many at the end
    reasons = ["record_too_long", "not_an_object", *bad.values(), *3 * ["bad_json"]]
    assert [reason for _, reason in got.reasons] == reasons
    assert got.rejects[0].length == shell + len(texts[1])
    assert (got.reasons[-1][0], got.lines[-1]) == (2, 2)
    with pytest.raises(CorpusError, match=r"a\.json"):
        folder.plan("[ ]\n", "a.json")


@pytest.mark.parametrize(
    "document",
    [
        '{\n  "text": "a"\n}\n',
        '["a", "b"]',
        "[1]",
        '{"text": {"0": "a"}, "label": {"0": 1}}',
        '{"text": ["a text", "b"], "label": [0, 1]}',
    ],
)
def test_another_json_document_is_refused(folder: Folder, document: str) -> None:
    with pytest.raises(CorpusError, match=r"corpus\.json .*(\(line 1: .*jq|a frame)"):
        folder.plan(document, "corpus.json")


def test_keys_are_looked_for_in_the_first_thousand_lines(folder: Folder) -> None:
    line, last = '{"text": "a"}\n', '{"text": "b", "id": "x"}\n'
    assert folder.read(line * 999 + last, "corpus.jsonl").records[-1].id == "x"
    late = line * 1_000 + last
    assert folder.read(late, "corpus.jsonl").records[-1].id == "1000"
    got = folder.read(late, "corpus.jsonl", id="id")  # by its name it is read
    assert (got.records[0].id, got.records[-1].id) == ("row 0", "x")
    assert any("id='id'" in notice for notice in got.reader.plan.notices)
    with pytest.raises(CorpusError, match=r"label='txet': .* Did you mean 'text'"):
        folder.plan(late, "corpus.jsonl", label="txet")


def _write(table: pa.Table, path: Path, *, new: Callable[..., Any] = pa.ipc.new_file) -> None:
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3_000)


WRITERS: dict[str, Any] = {
    "corpus.parquet": pq.write_table,
    "corpus.arrow": _write,
    "corpus.ipc": partial(_write, new=pa.ipc.new_stream),
    "corpus.feather": feather.write_feather,
}


@pytest.fixture(params=WRITERS)
def columnar(request: pytest.FixtureRequest, folder: Folder) -> Callable[..., Outcome]:
    """Writes columns to a file of each format and reads it."""

    def read(options: Mapping[str, Any] | None = None, **columns: Any) -> Outcome:
        path = folder.path / request.param
        WRITERS[request.param](pa.table(columns), path)
        return read_corpus(path, **(options or {}))

    return read


def test_fields_of_columns_have_dotted_names(columnar: Callable[..., Outcome]) -> None:
    labels = pa.array([{"a": {"b": "x"}, "n": 1}, {"a": None, "n": 2}, None])
    kept = ["labels.a.b", "labels.n"]
    got = columnar(labels=labels, text=["a", "b", "c"], options={"keep": kept})
    assert [r.kept for r in got.records] == [("x", "1"), (None, "2"), (None, None)]


@pytest.mark.parametrize("name", ["corpus.xlsx", "corpus.ods"])
def test_a_workbook(folder: Folder, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"id": [7, 8, 9], "text": ["배\n타고", None, "a"], "score": [1.5, 2, 3]}
    frame = pd.DataFrame(columns, dtype=object)
    frame.loc[3] = [None, None, None]
    frame.loc[4] = [10, "b", datetime.date(2020, 1, 2)]
    with pd.ExcelWriter(str(folder.path / name)) as writer:
        frame.to_excel(writer, index=False, startrow=1)
    got = read_corpus(folder.path / name, keep=["score"])
    assert [(r.line, r.id, r.text, r.kept[0]) for r in got.records] == [
        (3, "7", "배\n타고", "1.5"),
        (5, "9", "a", "3"),
        (7, "10", "b", "2020-01-02"),
    ]
    assert got.reasons == [(4, "null_text")]
    assert got.reader.counts.blank_lines == 1
    (folder.path / name).write_bytes(b"PK\x03\x04 none")
    with pytest.raises(CorpusError, match=name):
        read_corpus(folder.path / name)
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(CorpusError, match="python-calamine"):
        read_corpus(folder.path / name)


def test_what_pandas_and_python_cannot_give_back(folder: Folder) -> None:
    frame = pd.DataFrame({"text": ["a", "b"]}, pd.RangeIndex(7, 9, name="id"))
    frame.to_parquet(folder.path / "range.parquet")
    with pytest.raises(CorpusError, match=r"index 'id' .* Write frame.reset_index"):
        read_corpus(folder.path / "range.parquet")
    days = pa.array([0, 3_000_000], pa.int32()).cast(pa.date32())  # of the year 10183
    pq.write_table(pa.table({"text": ["a", "b"], "day": days}), folder.path / "late.parquet")
    with pytest.raises(CorpusError, match=r"A date after the year 9999.* has to be a text"):
        read_corpus(folder.path / "late.parquet", keep=["day"])


def test_a_sheet_is_named(folder: Folder) -> None:
    path = folder.path / "corpus.xlsx"
    with pd.ExcelWriter(str(path)) as writer:
        pd.DataFrame({"readme": ["a notice"]}).to_excel(writer, sheet_name="about", index=False)
        pd.DataFrame({"text": ["a", "b"]}).to_excel(writer, sheet_name="data", index=False)
        titled = pd.DataFrame({"id": [1, 2], "text": ["a", "b"]})
        titled.to_excel(writer, sheet_name="title", index=False, startrow=1)
        writer.sheets["title"]["A1"] = "Reviews of 2020"
    got = read_corpus(path)
    assert got.texts == ["a notice"]
    assert "'about', 'data', 'title' (choose another with sheet=)" in got.reader.plan.notices[0]
    got = read_corpus(path, sheet="data")
    assert got.texts == ["a", "b"]
    assert read_corpus(path, sheet="data", header=False, text=0).texts == ["text", "a", "b"]
    assert not [notice for notice in got.reader.plan.notices if "sheet" in notice]
    # another file is read likewise: by the options that the dialect stands for
    assert read_corpus(path, **got.reader.plan.options).texts == ["a", "b"]
    assert read_corpus(path, **read_corpus(path).reader.plan.options).texts == ["a notice"]
    with pytest.raises(CorpusError, match=r"one cell, and the next have 2. Remove a title"):
        read_corpus(path, sheet="title")
    with pytest.raises(CorpusError, match=r"sheet='dat': .* Did you mean 'data'"):
        read_corpus(path, sheet="dat")
    (folder.path / "corpus.csv").write_bytes(path.read_bytes())
    with pytest.raises(CorpusError, match=r"if it is a workbook, read it with format='sheet'"):
        read_corpus(folder.path / "corpus.csv")
    assert read_corpus(folder.path / "corpus.csv", format="sheet", sheet="data").texts == ["a", "b"]


STRINGS = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "dictionary of large": pa.dictionary(pa.int8(), pa.large_string()),
}
if int(pa.__version__.split(".")[0]) >= 21:  # earlier releases write no Parquet of this type
    STRINGS["string_view"] = pa.string_view()


def test_lists_of_categories_in_several_row_groups(tmp_path: Path) -> None:
    """pyarrow reads no batch of such lists that begins in one row group and ends in the next."""
    frame = pl.DataFrame(
        {"text": ["a", "b", "c"], "tags": [["x"], ["y", "x"], []]},
        schema={"text": pl.String, "tags": pl.List(pl.Categorical)},
    )
    frame.write_parquet(tmp_path / "c.parquet", row_group_size=1)
    labels = [r.label for r in read_corpus(tmp_path / "c.parquet", label="tags").records]
    assert labels == ['["x"]', '["y", "x"]', "[]"]


@pytest.mark.parametrize("kind", STRINGS.values(), ids=STRINGS.keys())
def test_columnar_strings(columnar: Callable[..., Outcome], kind: pa.DataType) -> None:
    texts = ["배\r\n", None, "NaN", "", 'a"b', "null"]
    got = columnar(text=pa.array(texts, pa.string()).cast(kind))
    assert got.texts == ["배\r\n", "NaN", 'a"b', "null"]
    assert [(r.row, r.line, r.offset, r.reason) for r in got.rejects] == [
        (1, None, None, "null_text"),
        (3, None, None, "empty_text"),
    ]


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_columnar_with_bad_utf8(columnar: Callable[..., Outcome], kind: str) -> None:
    raw = pa.array([b"a", b"b\xff", "배".encode(), b"\xed\xa0\x80", b"\xff"])
    texts = pa.Array.from_buffers(pa.string(), 5, raw.buffers())
    got = columnar(text=texts.cast(STRINGS[kind]))
    assert got.texts == ["a", "배"]
    assert [(r.row, r.reason) for r in got.rejects] == [
        (row, "invalid_encoding") for row in (1, 3, 4)
    ]
    assert got.rejects[0].excerpt == b"b\xff"


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("text", pa.list_(pa.binary())),
        ("text", pa.int64()),
        ("label", pa.list_(pa.binary())),
        ("label", pa.binary()),
    ],
)
def test_a_column_of_another_type_stops(
    columnar: Callable[..., Outcome], column: str, kind: pa.DataType
) -> None:
    with pytest.raises(CorpusError, match=f"column '{column}'"):
        columnar(**{"text": ["a"], column: pa.array([None], kind)})


@pytest.mark.parametrize("name", ["corpus.arrow", "corpus.ipc"])
def test_another_or_a_cut_off_file_is_not_arrow(folder: Folder, name: str) -> None:
    path = folder.path / name
    WRITERS[name](pa.table({"text": [f"text {i}" for i in range(10_000)]}), path)
    cut = path.read_bytes()[:-20_000]
    for data in (b"", b"ARROW1", b"id\ttext\n1\ta\n", b"FEA1" + b"x" * 99, cut):
        with pytest.raises(CorpusError, match=name):
            folder.read(data, name)


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
@pytest.mark.parametrize("name", ["corpus.arrow", "corpus.ipc"])
def test_arrow_offsets_out_of_bounds_stop(folder: Folder, name: str, kind: str) -> None:
    """They are not followed: what they point to is other memory."""
    path = folder.path / name
    column = pa.array(["some text"] * 9).cast(STRINGS[kind])
    WRITERS[name](pa.table({"text": column}), path)
    width = 8 if kind == "large_string" else 4
    old, new = (number.to_bytes(width, "little") for number in (9, 1 << 30))
    data = path.read_bytes()
    if kind != "dictionary":
        old, new = old + (18).to_bytes(width, "little"), new + (18).to_bytes(width, "little")
        assert data.count(old) == 1
        damaged = data.replace(old, new)
    else:
        first = data.index(b"some text")  # offsets 0, 9 stand before the only entry
        at = data.rindex(old, 0, first)
        damaged = data[:at] + new + data[at + width :]
    path.write_bytes(damaged)
    with pytest.raises(CorpusError, match=path.name):
        read_corpus(path)


def test_a_damaged_parquet_page_stops(folder: Folder) -> None:
    path = folder.path / "corpus.parquet"
    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False}
    plain |= {"write_statistics": False, "write_page_checksum": True}
    pq.write_table(pa.table({"text": ["some text " * 9] * 50}), path, **plain)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"some text", b"some test", 1))
    with pytest.raises(CorpusError, match=r"corpus\.parquet.*checksum"):
        read_corpus(path)
    with pytest.raises(CorpusError, match=r"corpus\.parquet\.gz"):
        folder.plan(gzip.compress(data), "corpus.parquet.gz")
