"""TSV, CSV and plain lines: what is kept to the letter, what is rejected, and what stops."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from embedkit.corpus.source import MAX_RECORD_BYTES
from embedkit.errors import CorpusError
from tests.corpus_fixtures import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# --- texts stay as they are ----------------------------------------------------------------------

KEPT = {
    "quotes": '"aus"gezeichnet"',
    "one quote": 'say "hi',
    "nan": "NaN",
    "null": "null",
    "na": "NA",
    "none": "None",
    "formula": "=1+1",
    "outer space": "  a  ",
    "no-break space": "a\u00a0",
    "lone cr": "a\rb",
    "cr at the start": "\ra",
    "nel": "a\x85b",
    "line separator": "a\u2028b",
    "paragraph separator": "a\u2029b",
    "vertical tab": "a\x0bb",
    "form feed": "a\x0cb",
    "file separator": "a\x1cb",
    "nul": "a\0b",
    "ctrl-z": "a\x1ab",
    "escape": "a\x1b[31mb",
    "c1 control": "a\x9bb",
    "bom inside": "a\ufeffb",
    "bom before": "\ufeffa",
    "zero width": "\u200b",
    "emoji": "👩‍👩‍👧‍👦 👍🏽",
    "right to left": "a\u202eb\u202c",
    "decomposed hangul": "\u1112\u1161\u11ab",
    "full width": "ＡＢＣ",
    "special tokens": "[CLS] [SEP] </s>",
    "backslash": "a\\tb\\",
    "html": "a<br />&amp;",
}


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT.keys())
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_tsv_text_is_kept_to_the_letter(folder: Folder, text: str, end: str) -> None:
    padding = "x" * 200  # one NUL in so many bytes is a text, not a binary file
    got = folder.read(f"id\ttext{end}1\t{padding}{end}2\t{text}{end}3\t{text}")
    assert got.texts == [padding, text, text]
    assert got.rejects == []


@pytest.mark.parametrize("text", [text for text in KEPT.values() if '"' not in text])
@pytest.mark.parametrize("quote", ["", '"'], ids=["bare", "quoted"])
def test_csv_text_is_kept_to_the_letter(folder: Folder, text: str, quote: str) -> None:
    data = f"id,text\r\n1,{'x' * 200}\r\n2,{quote}{text}{quote}\r\n3,{quote}{text}{quote}"
    got = folder.read(data, "corpus.csv")
    assert got.texts[1:] == [text, text]
    assert got.rejects == []


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT.keys())
def test_line_text_is_kept_to_the_letter(folder: Folder, text: str) -> None:
    got = folder.read(f"{'x' * 200}\n{text}\ta\n", "corpus.log", format="lines")
    assert got.texts[1:] == [f"{text}\ta"]


@pytest.mark.parametrize("end", ["\r\r\n", "\r\r\r\n"])
@pytest.mark.parametrize("name", ["corpus.tsv", "corpus.csv"])
def test_one_carriage_return_belongs_to_the_line_end(folder: Folder, end: str, name: str) -> None:
    mark = "," if name.endswith("csv") else "\t"
    got = folder.read(f"id{mark}text\n1{mark}a{end}", name)
    assert got.texts == [f"a{end[:-2]}"]


@pytest.mark.parametrize("number", ["007", "1e5", "12345678901234567890123", "-0", "1.50", " 1 "])
def test_ids_and_labels_keep_their_literal_form(folder: Folder, number: str) -> None:
    (record,) = folder.read(f"id\ttext\tlabel\tstars\n{number}\ta\t{number}\t{number}\n",
                            keep=["stars"]).records  # fmt: skip
    assert (record.id, record.label, record.kept) == (number, number, (number,))


def test_duplicate_ids_are_allowed(folder: Folder) -> None:
    got = folder.read("id\ttext\n1\ta\n1\tb\n")
    assert [(r.row, r.id) for r in got.records] == [(0, "1"), (1, "1")]


def test_without_ids_the_row_number_serves_and_counts_rejects(folder: Folder) -> None:
    got = folder.read("text\tlabel\na\t1\n\t1\nb\t0\n")
    assert [(r.row, r.id) for r in got.records] == [(0, "0"), (2, "2")]


# --- physical lines ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        ("id\ttext\r\n1\ta\r\n2\tb\r\n", [2, 3]),
        ("id\ttext\r\n1\ta\n2\tb\r\n", [2, 3]),
        ("id\ttext\n1\ta\n2\tb", [2, 3]),
        ("id\ttext\n1\ta\r\n2\tb", [2, 3]),
        ("id\ttext\n\n1\ta\n\r\n\n2\tb\n\n", [3, 6]),
        ("\n\r\nid\ttext\n1\ta\n2\tb\n", [4, 5]),
    ],
    ids=["crlf", "mixed", "no final newline", "mixed, no final", "blank lines", "blank before"],
)
@pytest.mark.parametrize("mark", ["\t", ","], ids=["tsv", "csv"])
def test_line_ends(folder: Folder, data: str, lines: list[int], mark: str) -> None:
    data = data.replace("\t", mark)
    got = folder.read(data, "corpus.csv" if mark == "," else "corpus.tsv")
    assert (got.texts, got.lines) == (["a", "b"], lines)
    assert [data.encode()[r.offset :][:3] for r in got.records] == [
        f"1{mark}a".encode(),
        f"2{mark}b".encode(),
    ]
    blank = sum(not line.strip("\r") for line in data.removesuffix("\n").split("\n"))
    assert got.reader.counts.blank_lines == blank
    assert [r.row for r in got.records] == [0, 1]


def test_a_line_of_blanks_is_a_record(folder: Folder) -> None:
    assert folder.read("id\ttext\n  \n1\ta\n").reasons == [(2, "too_few_cells")]


def test_carriage_returns_alone_are_refused(folder: Folder) -> None:
    advice = r"lines that end in a carriage return alone\. Convert it first: tr '\\r' '\\n'"
    with pytest.raises(CorpusError, match=advice):
        folder.plan("id\ttext\r1\ta\r")
    with pytest.raises(CorpusError, match=advice):
        folder.plan("id\ttext\r" + "1\ta\r" * 40_000)  # more than is buffered


def test_offsets_after_a_byte_order_mark(folder: Folder) -> None:
    data = "\ufeffid\ttext\n1\ta\n".encode()
    got = folder.read(data)
    assert got.reader.plan.columns == ("id", "text")
    assert [r.offset for r in got.records] == [data.index(b"1\ta")]


# --- rejects -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", " ", "\u3000", "\x0b\x0c", "\u2028", "\xa0 \x85"])
def test_empty_text_is_rejected(folder: Folder, text: str) -> None:
    got = folder.read(f"id\ttext\n1\ta\n2\t{text}\n3\tb\n")
    assert got.texts == ["a", "b"]
    assert got.reasons == [(3, "empty_text")]


def test_either_text_of_a_pair_may_not_be_empty(folder: Folder) -> None:
    got = folder.read("text\tother\na\tb\n\tb\na\t \n", text_pair="other")
    assert [(r.text, r.text_pair) for r in got.records] == [("a", "b")]
    assert got.reasons == [(3, "empty_text"), (4, "empty_text_pair")]


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        ("2", "too_few_cells", "expected 3 cells, got 1"),
        ("2\tb", "too_few_cells", "expected 3 cells, got 2"),
        ("2\tb\t0\t", "too_many_cells", "expected 3 cells, got 4"),
        ("2\tb\tc\t0\t0", "too_many_cells", "expected 3 cells, got 5"),
    ],
)
@pytest.mark.parametrize("quoting", ["none", "csv"])
def test_a_row_is_never_padded_or_cut(
    folder: Folder, line: str, reason: str, detail: str, quoting: str
) -> None:
    got = folder.read(f"id\ttext\tlabel\n1\ta\t1\n{line}\n3\tc\t1\n", quoting=quoting)
    assert [(r.row, r.text) for r in got.records] == [(0, "a"), (2, "c")]
    (reject,) = got.rejects
    assert (reject.row, reject.line, reject.reason, reject.detail) == (1, 3, reason, detail)


def test_a_reject_says_where_it_stands(folder: Folder) -> None:
    data = b"id\ttext\n1\ta\n2\t\xff\xfe\r\n3\tb\n4\tc\n"
    path = folder.write(data)
    got = folder.read(data)
    (reject,) = got.rejects
    assert json.loads(reject.to_json()) == {
        "file": str(path), "row": 1, "line": 3, "offset": data.index(b"2\t"), "length": 6,
        "reason": "invalid_encoding", "detail": "utf-8: invalid start byte at byte 0 of the cell",
        "excerpt_b64": base64.b64encode(b"2\t\xff\xfe").decode(),
    }  # fmt: skip
    assert "\n" not in reject.to_json()


def test_an_excerpt_is_short(folder: Folder) -> None:
    (reject,) = folder.read("id\ttext\n1\ta\n2\t" + "b\t" * 1_000 + "\n").rejects
    assert reject.excerpt == b"2\t" + b"b\t" * 99


# --- quoting -------------------------------------------------------------------------------------


def test_tsv_takes_quotes_literally_and_counts_them(folder: Folder) -> None:
    data = 'id\ttext\n1\t"a"\n2\t"b\n3\tc "d" ""e""\n4\t"f ""g"""\n'
    got = folder.read(data)
    assert got.texts == ['"a"', '"b', 'c "d" ""e""', '"f ""g"""']
    counts = got.reader.counts
    assert (counts.fields_with_quotes, counts.fields_csv_quoted) == (4, 2)
    assert counts.quote_notice.startswith("2 of the 4 fields that hold a double quote")


def test_tsv_with_csv_quoting(folder: Folder) -> None:
    got = folder.read('id\ttext\n1\t"a"\n2\t"f ""g"" ""\th"\n', quoting="csv")
    assert got.texts == ["a", 'f "g" "\th']
    assert got.reader.counts.quote_notice == ""


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        ('2,"b"c', "',' expected after '\"'"),
        ('2,"b" ', "',' expected after '\"'"),
        ('2,"b', "unexpected end of data"),
        ('"2,b', "unexpected end of data"),
    ],
)
def test_a_bad_quote_costs_one_record(folder: Folder, line: str, detail: str) -> None:
    got = folder.read(f"id,text\n1,a\n{line}\n3,c\n\n4,d\n", "corpus.csv")
    assert got.texts == ["a", "c", "d"]
    assert [(r.line, r.reason, r.detail) for r in got.rejects] == [(3, "bad_quoting", detail)]
    assert got.reader.counts.blank_lines == 1


def test_csv_records_may_span_lines(folder: Folder) -> None:
    data = 'id,text\r\n1,"a\nb\r\n\r\nc ""d"""\r\n2,e\r\n"3","f,\rg"'
    got = folder.read(data, "corpus.csv")
    assert got.texts == ['a\nb\r\n\r\nc "d"', "e", "f,\rg"]
    assert got.lines == [2, 6, 7]
    assert [r.offset for r in got.records] == [data.index(x) for x in ("1,", "2,", '"3"')]
    assert got.reader.counts.blank_lines == 0  # the one in quotes is text


def test_csv_quoting_none_is_by_physical_line(folder: Folder) -> None:
    got = folder.read('id,text\n1,"a\n2,b"\n', "corpus.csv", quoting="none")
    assert got.texts == ['"a', 'b"']


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_the_delimiter_of_a_csv_is_found_and_said(folder: Folder, mark: str) -> None:
    got = folder.read(f'id{mark}text\n1{mark}"a{mark}b"\n', "corpus.csv")
    assert got.texts == [f"a{mark}b"]
    said = f"delimiter: {mark!r} (the first line has no comma)" in got.reader.plan.notices
    assert said == (mark != ",")


# --- very long records ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["corpus.tsv", "corpus.csv", "corpus.jsonl"])
def test_a_line_of_17_mb_is_rejected_and_reading_goes_on(folder: Folder, name: str) -> None:
    head, line = {
        "corpus.tsv": (b"id\ttext\n", b"%d\t%s\n"),
        "corpus.csv": (b"id,text\n", b"%d,%s\n"),
        "corpus.jsonl": (b"", b'{"id": "%d", "text": "%s"}\n'),
    }[name]
    shell = len(line % (2, b""))
    largest, over = b"m" * (MAX_RECORD_BYTES - shell), b"m" * (MAX_RECORD_BYTES - shell + 1)
    texts = [b"a", largest, over, b"m" * 17_000_000, b"b"]
    got = folder.read(head + b"".join(line % pair for pair in enumerate(texts, 1)), name)
    assert [len(text) for text in got.texts] == [1, len(largest), 1]
    first = 2 if head else 1
    assert got.reasons == [(first + 2, "record_too_long"), (first + 3, "record_too_long")]
    assert [r.length for r in got.rejects] == [MAX_RECORD_BYTES + 1, 17_000_000 + shell]
    assert got.rejects[1].detail == f"{17_000_000 + shell} bytes, at most 16777216 are read"
    assert got.lines[-1] == first + 4


def test_a_runaway_quote_costs_one_record(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("source", "delimited"):
        monkeypatch.setattr(f"embedkit.corpus.{module}.MAX_RECORD_BYTES", 1_000)
    rows = "".join(f"{number},text of {number}\n" for number in range(3, 500))
    got = folder.read(f'id,text\n1,a\n2,"b\n{rows}', "corpus.csv")
    assert got.texts == ["a", *(f"text of {number}" for number in range(3, 500))]
    assert got.reasons == [(3, "record_too_long")]
    assert got.rejects[0].detail.endswith("a quote may stand alone: see quoting='none'")


# --- empty files and headers ---------------------------------------------------------------------


@pytest.mark.parametrize("data", ["", "\n\n", "\ufeff"])
@pytest.mark.parametrize("name", ["corpus.tsv", "corpus.csv"])
def test_an_empty_table_is_refused(folder: Folder, data: str, name: str) -> None:
    with pytest.raises(CorpusError, match=r"corpus\.\w+ is empty: not even a header line"):
        folder.plan(data, name)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("id\ttext\n", "corpus.tsv"),
        ("id\ttext", "corpus.tsv"),
        ("id,text\r\n", "corpus.csv"),
        ("", "corpus.txt"),
        ("\n\n", "corpus.txt"),
        ("", "corpus.jsonl"),
        ("\n \n", "corpus.jsonl"),
    ],
)
def test_no_records_is_no_error(folder: Folder, data: str, name: str) -> None:
    got = folder.read(data, name)
    assert (got.records, got.rejects, got.reader.counts.records) == ([], [], 0)


def test_an_empty_headerless_file_has_no_records(folder: Folder) -> None:
    assert folder.read("", header=False).records == []


def test_no_header_numbers_the_columns(folder: Folder) -> None:
    got = folder.read("1\ta\t0\n2\tb\t1\n", header=False, text="1", id="0", label="2")
    assert got.reader.plan.columns == ("0", "1", "2")
    assert [(r.line, r.id, r.text, r.label) for r in got.records] == [
        (1, "1", "a", "0"),
        (2, "2", "b", "1"),
    ]


def test_no_header_with_quoted_records(folder: Folder) -> None:
    got = folder.read('"1","a\nb"\n2,c\n', "corpus.csv", header=False, text="1")
    assert (got.texts, got.lines) == (["a\nb", "c"], [1, 3])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"id\ttext\tid\n", r"columns 1 and 3 are both named 'id'\. Rename one"),
        (b"id\t\xbf\xb5\n", r"the header is not utf-8\. Pass the right encoding="),
    ],
)
@pytest.mark.parametrize("quoting", ["none", "csv"])
def test_a_header_that_cannot_serve(
    folder: Folder, data: bytes, message: str, quoting: str
) -> None:
    with pytest.raises(CorpusError, match=message):
        folder.plan(data, quoting=quoting)


def test_a_header_with_a_runaway_quote(folder: Folder) -> None:
    with pytest.raises(CorpusError, match="the first line cannot be read: unexpected end of data"):
        folder.plan('id,"text\n1,a\n', "corpus.csv")
