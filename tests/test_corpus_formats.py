"""JSON Lines and Parquet."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from embedkit.corpus.options import Dialect
from embedkit.corpus.readers import open_table
from embedkit.errors import CorpusError
from tests.corpus_fixtures import Folder, Outcome, read_files

Write = Callable[[pa.Table, Path], None]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# --- JSON Lines ----------------------------------------------------------------------------------

BAD_JSON = {
    "nan": ('{"text": "a", "x": NaN}', "bad_json", "NaN is not JSON"),
    "infinity": ('{"text": "a", "x": [-Infinity]}', "bad_json", "-Infinity is not JSON"),
    "twice": ('{"text": "a", "text": "b"}', "duplicate_key", "'text' stands twice"),
    "twice inside": ('{"text": "a", "x": {"y": 1, "y": 2}}', "duplicate_key", "'y' stands twice"),
    "list": ('["a"]', "not_an_object", "expected a JSON object on the line"),
    "string": ('"text"', "not_an_object", "expected a JSON object on the line"),
    "null": ("null", "not_an_object", "expected a JSON object on the line"),
    # Python 3.13 points at the comma
    "trailing comma": ('{"text": "a",}', "bad_json", " at column 1"),
    "two objects": ('{"text": "a"} {"text": "b"}', "bad_json", "Extra data at column 15"),
    "cut off": ('{"text": "a', "bad_json", "Unterminated string starting at at column 10"),
    "single quotes": ("{'text': 'a'}", "bad_json", "double quotes at column 2"),
    "raw control": ('{"text": "a\tb"}', "bad_json", "Invalid control character at at column 12"),
    "lone surrogate": ('{"text": "a\\ud83d"}', "lone_surrogate", "half of a surrogate pair"),
    "lone in label": ('{"text": "a", "label": "\\udc4d"}', "lone_surrogate", "half of a surr"),
    "bomb": ("[" * 100_000, "bad_json", "nested too deeply"),
    "bomb inside": ('{"text": "a", "x": ' + "[" * 100_000, "bad_json", "nested too deeply"),
    "text null": ('{"text": null}', "null_text", "the text is null or absent"),
    "text absent": ('{"label": "1"}', "null_text", "the text is null or absent"),
    "text number": ('{"text": 12}', "text_not_string", "a number or a list, not a string"),
    "text float": ('{"text": 1.0}', "text_not_string", "a number or a list, not a string"),
    "text true": ('{"text": true}', "text_not_string", "a number or a list, not a string"),
    "text list": ('{"text": ["a"]}', "text_not_string", "a number or a list, not a string"),
    "text object": ('{"text": {"a": "b"}}', "text_not_string", "a number or a list, not a"),
    "text empty": ('{"text": ""}', "empty_text", "the text is empty"),
}


@pytest.mark.parametrize(("line", "reason", "detail"), BAD_JSON.values(), ids=BAD_JSON.keys())
@pytest.mark.parametrize("first", [False, True], ids=["later", "first"])
def test_a_bad_json_line_costs_one_record(
    folder: Folder, line: str, reason: str, detail: str, first: bool
) -> None:
    good = '{"text": "a", "label": "0"}\n'
    data = ("" if first else good) + f"{line}\n\n \n" + good
    got = folder.read(data, "corpus.jsonl")
    (reject,) = got.rejects
    line_number = 1 if first else 2
    assert (reject.line, reject.row, reject.reason) == (line_number, line_number - 1, reason)
    assert detail in reject.detail
    assert got.texts == (["a"] if first else ["a", "a"])
    assert got.reader.counts.blank_lines == 2


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        ("7", "7"),
        ("-0", "-0"),
        ("9" * 5_000, "9" * 5_000),
        ("1e5", "1e5"),
        ("1.50", "1.50"),
        ("12345678901234567890123", "12345678901234567890123"),
        ('"007"', "007"),
        ('"배"', "배"),
        ("true", "true"),
        ("null", None),
        ('[1, 2.50,"a"]', '[1, 2.50, "a"]'),
        ('{"a":[{}, null, "\\u1112\\""],"b": 1e3}', '{"a": [{}, null, "ᄒ\\""], "b": 1e3}'),
    ],
)
def test_json_values_beside_the_text_keep_their_form(
    folder: Folder, value: str, literal: str | None
) -> None:
    line = f'{{"text": "a", "id": {value}, "label": {value}, "x": {value}}}\n'
    (record,) = folder.read(line, "corpus.jsonl", keep=["x"]).records
    assert (record.label, record.kept) == (literal, (literal,))
    assert record.id == ("0" if literal is None else literal)


def test_a_deeply_nested_value_that_is_kept_costs_one_record(folder: Folder) -> None:
    line = '{{"text": "{}", "x": {}}}\n'
    data = line.format("a", 1) + line.format("b", "[" * 900 + "]" * 900) + line.format("c", 2)
    got = folder.read(data, "corpus.jsonl", keep=["x"])
    assert [r.text for r in got.records if r.text != "b"] == ["a", "c"]
    assert all(reason == "bad_json" for _, reason in got.reasons)


@pytest.mark.parametrize(
    "document",
    [
        '[\n{"text": "a"},\n{"text": "b"}\n]\n',
        '[{"text": "a"},\n {"text": "b"}]\n',
        '{\n  "text": "a"\n}\n',
        '{\n  "rows":\n  {"text": "a"}\n}\n',
        '[{"text": "a"}, {"text": "b"}]',
        "[]",
    ],
    ids=["array by lines", "array from [", "object", "object in object", "one line", "empty"],
)
@pytest.mark.parametrize("name", ["corpus.json", "corpus.jsonl"])
def test_a_json_document_is_refused(folder: Folder, document: str, name: str) -> None:
    advice = r"is not JSON Lines: .* one object per line: jq -c '\.\[\]' corpus\.jsonl? > lines"
    with pytest.raises(CorpusError, match=advice):
        folder.plan(document, name)


def test_keys_may_come_in_any_order_or_late(folder: Folder) -> None:
    got = folder.read('{"text": "a"}\n{"id": "x", "text": "b"}\n', "corpus.jsonl")
    assert [(r.id, r.text) for r in got.records] == [("0", "a"), ("x", "b")]


def test_keys_are_looked_for_in_the_first_thousand_lines(folder: Folder) -> None:
    line, last = '{"text": "a"}\n', '{"text": "b", "id": "x"}\n'
    assert folder.read(line * 999 + last, "corpus.jsonl").records[-1].id == "x"
    with pytest.raises(CorpusError, match=r"id='id': .* has no such column; it has text\."):
        folder.plan(line * 1_000 + last, "corpus.jsonl", id="id")


def test_few_long_lines_are_held_in_memory(folder: Folder) -> None:
    long = '{"text": "%s"}\n' % ("a" * 6_000_000)
    got = folder.read(long * 2 + '{"text": "b", "id": "x"}\n', "corpus.jsonl")
    assert (got.reader.plan.columns, len(got.records)) == (("text", "id"), 3)
    got = folder.read(long * 3 + '{"text": "b", "id": "x"}\n', "corpus.jsonl")
    assert (got.reader.plan.columns, len(got.records)) == (("text",), 4)


# --- Parquet and Arrow ---------------------------------------------------------------------------


def _write_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path)


def _write_arrow(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3_000)


def _write_stream(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3_000)


def _write_feather(table: pa.Table, path: Path) -> None:
    feather.write_feather(table, path, compression="lz4")


WRITERS: dict[str, Write] = {
    "corpus.parquet": _write_parquet,
    "corpus.arrow": _write_arrow,
    "corpus.ipc": _write_stream,
    "corpus.feather": _write_feather,
}


@pytest.fixture(params=WRITERS)
def columnar(request: pytest.FixtureRequest, folder: Folder) -> Callable[..., Outcome]:
    """Writes columns to a file of each format and reads it."""

    def read(**columns: Any) -> Outcome:
        path = folder.path / request.param
        WRITERS[request.param](pa.table(columns), path)
        return read_files(path)

    return read


STRINGS = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "dictionary of large": pa.dictionary(pa.int8(), pa.large_string()),
}
if int(pa.__version__.split(".")[0]) >= 21:  # earlier releases write no Parquet of this type
    STRINGS["string_view"] = pa.string_view()


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
    texts = texts.cast(pa.large_string()) if kind == "large_string" else texts
    got = columnar(text=texts.dictionary_encode() if kind == "dictionary" else texts)
    assert got.texts == ["a", "배"]
    assert [(r.row, r.reason) for r in got.rejects] == [
        (row, "invalid_encoding") for row in (1, 3, 4)
    ]
    assert got.rejects[0].excerpt == b"b\xff"


def test_columnar_values_beside_the_text(columnar: Callable[..., Outcome]) -> None:
    got = columnar(id=[7, None], text=["a", "b"], label=pa.array([1.5, 2.0]))
    assert [(r.id, r.label) for r in got.records] == [("7", "1.5"), ("1", "2.0")]


def test_columnar_of_many_batches(columnar: Callable[..., Outcome]) -> None:
    texts = [f"text {i}" for i in range(10_000)]
    assert columnar(text=texts).texts == texts
    assert columnar(text=pa.array([], pa.string())).texts == []


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.string()), ["a"]),
        (pa.struct([("a", pa.string())]), {"a": "b"}),
        (pa.int64(), 1),
        (pa.float32(), 1.0),
        (pa.bool_(), True),
        (pa.binary(), b"a"),
        (pa.dictionary(pa.int8(), pa.int64()), 1),
    ],
    ids=str,
)
def test_columnar_text_of_another_type_stops(
    columnar: Callable[..., Outcome], kind: pa.DataType, value: Any
) -> None:
    with pytest.raises(CorpusError, match=r"column 'text' is .*; a text must be a string"):
        columnar(text=pa.array([value], kind))


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.binary()], ids=str)
def test_columnar_label_of_no_single_value_stops(
    columnar: Callable[..., Outcome], kind: pa.DataType
) -> None:
    with pytest.raises(CorpusError, match=r"column 'label' is .*; a string, a number or a date"):
        columnar(text=["a"], label=pa.array([None], kind))


def test_a_date_that_python_has_not_stops(folder: Folder) -> None:
    path = folder.path / "c.parquet"
    when = pa.array([0, 10**18], pa.timestamp("us"))  # the year 33658
    pq.write_table(pa.table({"text": ["a", "b"], "when": when}), path)
    with pytest.raises(CorpusError, match=r"c\.parquet cannot be read to its end: .*range"):
        read_files(path, keep=["when"])
    assert read_files(path).texts == ["a", "b"]


def test_parquet_columns_of_one_name_are_to_be_renamed(folder: Folder) -> None:
    path = folder.path / "c.parquet"
    pq.write_table(pa.table([["a"], ["b"]], names=["text", "text"]), path)
    with pytest.raises(CorpusError, match=r"both named 'text'\. Rename one\.$"):
        read_files(path)


def test_columnar_with_only_nulls(columnar: Callable[..., Outcome]) -> None:
    assert [r.reason for r in columnar(text=pa.nulls(2)).rejects] == ["null_text"] * 2


@pytest.mark.parametrize("name", ["corpus.arrow", "corpus.ipc", "corpus.feather"])
@pytest.mark.parametrize("data", [b"", b"ARROW1", b"id\ttext\n1\ta\n", b"FEA1" + b"x" * 99,
                                  b"\xff\xff\xff\xff" + b"\x10\0\0\0" + b"x" * 16])  # fmt: skip
def test_what_is_not_arrow(folder: Folder, data: bytes, name: str) -> None:
    with pytest.raises(CorpusError, match=rf"{name} is not a readable Arrow file"):
        folder.plan(data, name)


@pytest.mark.parametrize("name", ["corpus.arrow", "corpus.ipc"])
def test_a_cut_off_arrow_file_stops(folder: Folder, name: str) -> None:
    path = folder.path / name
    WRITERS[name](pa.table({"text": [f"text {i}" for i in range(10_000)]}), path)
    path.write_bytes(path.read_bytes()[:-20_000])
    with pytest.raises(CorpusError, match=rf"{name} (is not a readable|cannot be read to its)"):
        read_files(path)


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
@pytest.mark.parametrize("name", ["corpus.arrow", "corpus.ipc"])
def test_arrow_offsets_out_of_bounds_stop(folder: Folder, name: str, kind: str) -> None:
    """They are not followed: what they point to is other memory."""
    path = folder.path / name
    texts = pa.array(["some text"] * 9)
    column = texts.dictionary_encode() if kind == "dictionary" else texts.cast(kind)
    WRITERS[name](pa.table({"text": column}), path)
    width = 8 if kind == "large_string" else 4
    old = (9).to_bytes(width, "little")
    new = (1 << 30).to_bytes(width, "little")
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
    with pytest.raises(CorpusError, match=r"cannot be read to its end: .*([Oo]ffset|bounds)"):
        read_files(path)


def test_arrow_of_another_name_is_recognised(folder: Folder) -> None:
    for number, write in enumerate((_write_arrow, _write_stream, _write_feather)):
        path = folder.path / f"data-{number}.bin"
        write(pa.table({"text": ["a"]}), path)
        got = read_files(path)
        assert (got.texts, got.reader.plan.format) == (["a"], "arrow")
        assert any("format: arrow" in said for said in got.reader.plan.notices)


@pytest.mark.parametrize("name", ["corpus.arrow", "corpus.ipc"])
def test_the_fraction_of_an_arrow_file_grows(folder: Folder, name: str) -> None:
    path = folder.path / name
    WRITERS[name](pa.table({"text": [f"text {i}" for i in range(9_000)]}), path)
    table = open_table(path, Dialect("arrow"))
    seen = {table.fraction for _ in table.rows(["text"])}
    assert len(seen) == 3
    assert 0 == min(seen) < max(seen) < table.fraction == 1.0


@pytest.mark.parametrize("data", [b"", b"PAR1", b"id\ttext\n1\ta\n", b"PAR1" + b"x" * 99 + b"PAR1"])
def test_what_is_not_parquet(folder: Folder, data: bytes) -> None:
    with pytest.raises(CorpusError, match=r"corpus\.parquet is not a readable Parquet file"):
        folder.plan(data, "corpus.parquet")


def test_a_damaged_parquet_page_stops(folder: Folder) -> None:
    path = folder.path / "corpus.parquet"
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    table = pa.table({"text": ["some text " * 9] * 50})
    pq.write_table(table, path, write_page_checksum=True, **plain)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"some text", b"some test", 1))
    with pytest.raises(CorpusError, match=r"cannot be read to its end: .*checksum"):
        read_files(path)


def test_compressed_parquet_is_refused(folder: Folder) -> None:
    stream = io.BytesIO()
    pq.write_table(pa.table({"text": ["a"]}), stream)
    with pytest.raises(CorpusError, match="a compressed Parquet file must be unpacked first"):
        folder.plan(gzip.compress(stream.getvalue()), "corpus.parquet.gz")
