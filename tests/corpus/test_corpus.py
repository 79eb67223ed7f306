"""TSV, CSV and plain lines, in any encoding and compressed.

What is kept to the letter, what is rejected, and what stops.
"""

from __future__ import annotations

import base64
import bz2
import csv
import gzip
import json
import lzma
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from embedkit.corpus.sources import MAX_RECORD_BYTES
from embedkit.errors import CorpusError, UsageError
from tests.corpus_fixtures import Folder, read_corpus


def test_carriage_returns_alone_are_refused(folder: Folder) -> None:
    more = "1\ta\r" * 40_000  # than is buffered
    for rows in ("1\ta\r", more, "1\ta\r\n"):  # an editor has added a line end
        with pytest.raises(CorpusError, match="carriage return"):
            folder.plan(f"id\ttext\r{rows}")


def test_either_text_of_a_pair_may_not_be_empty(folder: Folder) -> None:
    """Without a column of ids the row number is the id, rejects counted."""
    got = folder.read("text\tother\na\tb\n\tb\na\t \nc\td\n", text_pair="other")
    assert [(r.id, r.text, r.text_pair) for r in got.records] == [("0", "a", "b"), ("3", "c", "d")]
    assert got.reasons == [(3, "empty_text"), (4, "empty_text_pair")]


def test_a_carriage_return_at_the_end_of_a_text_stays(folder: Folder) -> None:
    path = folder.write(b"id\ttext\n0\ta\r\r\n1\tb\r\n2\tc\n")
    assert read_corpus(path).texts == ["a\r", "b", "c"]


def test_tsv_takes_quotes_literally_and_counts_them(folder: Folder) -> None:
    data = 'id\ttext\n1\t"a"\n2\t"b\n3\tc "d" ""e""\n4\t"f ""g"""\n'
    got = folder.read(data)
    assert got.texts == ['"a"', '"b', 'c "d" ""e""', '"f ""g"""']
    counts = got.reader.counts
    assert (counts.fields_with_quotes, counts.fields_csv_quoted) == (4, 2)
    assert "quoting='csv'" in counts.notices[0]
    got = folder.read('id\ttext\n1\t"a"\n2\t"f ""g"" ""\th"\n', quoting="csv")
    assert got.texts == ["a", 'f "g" "\th']
    assert got.reader.counts.notices == []


@pytest.mark.parametrize("line", ['2,"b"c', '2,"b" ', '2,"b', '"2,b'])
def test_a_bad_quote_costs_one_record(folder: Folder, line: str) -> None:
    got = folder.read(f"id,text\n1,a\n{line}\n3,c\n\n4,d\n", "corpus.csv")
    assert got.texts == ["a", "c", "d"]
    assert got.reasons == [(3, "bad_quoting")]
    assert got.reader.counts.blank_lines == 1


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_the_delimiter_of_a_csv_is_found_and_said(folder: Folder, mark: str) -> None:
    got = folder.read(f'id{mark}text\n1{mark}"a{mark}b"\n', "corpus.csv")
    assert got.texts == [f"a{mark}b"]
    assert any(repr(mark) in said for said in got.reader.plan.notices) == (mark != ",")


FORMS = {
    "corpus.tsv": ("id\ttext\n", "{}\t{}\n"),
    "corpus.csv": ("id,text\n", "{},{}\n"),
    "quoted.csv": ("id,text\n", '{},"{}"\n'),
    "corpus.txt": ("text\n", "{1}\n"),
    "corpus.jsonl": ("", '{{"id": "{}", "text": "{}"}}\n'),
}
"""The head of a file of this name, and the line of a number and a text."""


@pytest.mark.parametrize("name", ["corpus.tsv", "corpus.csv", "corpus.jsonl"])
def test_a_line_of_17_mb_is_rejected_and_reading_goes_on(folder: Folder, name: str) -> None:
    head, line = FORMS[name]
    shell = len(line.format(2, ""))
    largest, over = "m" * (MAX_RECORD_BYTES - shell), "m" * (MAX_RECORD_BYTES - shell + 1)
    texts = ["a", largest, over, "m" * 17_000_000, "b"]
    got = folder.read(head + "".join(line.format(*pair) for pair in enumerate(texts, 1)), name)
    assert [len(text) for text in got.texts] == [1, len(largest), 1]
    first = 2 if head else 1
    assert got.reasons == [(first + 2, "record_too_long"), (first + 3, "record_too_long")]
    assert [r.length for r in got.rejects] == [MAX_RECORD_BYTES + 1, 17_000_000 + shell]
    assert got.lines[-1] == first + 4


def test_a_runaway_quote_costs_one_record(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sources", "tables"):
        monkeypatch.setattr(f"embedkit.corpus.{module}.MAX_RECORD_BYTES", 1_000)
    rows = "".join(f"{number},text of {number}\n" for number in range(3, 500))
    got = folder.read(f'id,text\n1,a\n2,"b\n{rows}', "corpus.csv")
    assert got.texts == ["a", *(f"text of {number}" for number in range(3, 500))]
    assert got.reasons == [(3, "record_too_long")]
    assert "quoting='none'" in got.rejects[0].detail


def test_quotes_that_nothing_closes(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line would read the rest of the file in vain."""
    monkeypatch.setattr("embedkit.corpus.tables._MOST_AGAIN", 2_000)
    with pytest.raises(CorpusError, match="quoting='none'"):
        folder.read("text,note\n" + 'a","c\n' * 300, "corpus.csv")
    # some stray quotes, each of which reads to the next one, are no such file
    monkeypatch.setattr("embedkit.corpus.tables._MOST_AGAIN", 10_000)
    rows = ["{0},{1}text of {0}\n".format(n, '"' * (n % 50 == 7)) for n in range(1_000)]
    got = folder.read("id,text\n" + "".join(rows), "corpus.csv")
    assert (len(got.texts), len(got.rejects)) == (980, 20)


@pytest.mark.parametrize(
    ("data", "named"), [(b"id\ttext\tid\n", "'id'"), (b"id\t\xbf\xb5\n", "encoding=")]
)
@pytest.mark.parametrize("quoting", ["none", "csv"])
def test_a_header_that_cannot_serve(folder: Folder, data: bytes, named: str, quoting: str) -> None:
    with pytest.raises(CorpusError, match=named):
        folder.plan(data, quoting=quoting)


# encodings and compression

KOREAN = "id\ttext\n1\t배를 타고\n2\t배가 \u2028고프다\ufeff\n"


@pytest.mark.parametrize(("encoding", "given"), [("utf-16", "utf-8"), ("utf-32", "cp949")])
def test_a_wide_mark_says_the_encoding(folder: Folder, encoding: str, given: str) -> None:
    got = folder.read(KOREAN.encode(encoding), encoding=given)
    assert got.texts == ["배를 타고", "배가 \u2028고프다\ufeff"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32-le", "UTF_16"])
@pytest.mark.parametrize("quoting", ["none", "csv"])
def test_wide_text_is_kept_to_the_letter(folder: Folder, encoding: str, quoting: str) -> None:
    # a mark at every place where a block of bytes may begin
    texts = ["\ufeff" * 40_000, "가" * 40_000, "\r👍\x85" * 10_000]
    data = "id\ttext\r\n" + "".join(f"{i}\t{text}\r\n" for i, text in enumerate(texts))
    got = folder.read(data.encode(encoding), encoding=encoding, quoting=quoting)
    assert got.texts == texts
    offsets = [len(data[: data.index(f"\n{i}\t") + 1].encode()) for i in range(3)]
    assert [r.offset for r in got.records] == offsets  # of the file as UTF-8


@pytest.mark.parametrize("name", FORMS)
def test_byte_order_marks_are_dropped_from_every_file(folder: Folder, name: str) -> None:
    head, line = FORMS[name]
    data = "\ufeff" + head + line.format(1, "\ufeffa")
    paths = [folder.write(data, f"{i}-{name}") for i in range(2)]
    assert read_corpus(paths).texts == ["\ufeffa"] * 2
    assert read_corpus(paths, encoding="utf-8-sig").texts == ["\ufeffa"] * 2


BAD_UTF8 = [b"\xff", b"\xb9\xe8", b"\xeb\xb0", b"\xed\xa0\xbd", b"\xc0\xaf", b"\xf4\x90\x80\x80"]


@pytest.mark.parametrize("bad", BAD_UTF8)
@pytest.mark.parametrize("quoting", ["none", "csv"])
def test_bad_utf8_costs_one_row_and_says_where(folder: Folder, bad: bytes, quoting: str) -> None:
    row = b"2\t\xeb\xb0\xb0" + bad
    got = folder.read(b"id\ttext\n1\ta\n" + row + b"\r\n3\tb\n", quoting=quoting)
    assert got.texts == ["a", "b"]
    told = json.loads(got.rejects[0].to_json())
    assert re.fullmatch("utf-8: .* at byte 3 of the cell", told.pop("detail"))
    assert told == {
        "file": str(folder.path / "corpus.tsv"),
        "row": 1,
        "line": 3,
        "offset": 12,
        "length": len(row) + 2,
        "reason": "invalid_encoding",
        "excerpt_b64": base64.b64encode(row).decode(),
    }


@pytest.mark.parametrize(
    ("encoding", "text"), [("cp949", "배를 똠방각하"), ("shift_jis", "表示ソ能"), ("latin-1", "né")]
)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("rows", [3, 2_000])
def test_a_file_in_another_encoding_stops_with_advice(
    folder: Folder, encoding: str, text: str, name: str, rows: int
) -> None:
    head, line = FORMS[name]
    data = (head + "".join(line.format(i, text) for i in range(rows))).encode(encoding)
    with pytest.raises(CorpusError, match=name):
        folder.read(data, name)
    assert folder.read(data, name, encoding=encoding).texts == [text] * rows


@pytest.mark.parametrize(
    "encoding", ["cp948", "rot13", "base64", "idna", "cp500", "unicode_escape", "a\0"]
)
def test_an_encoding_that_cannot_be_read(folder: Folder, encoding: str) -> None:
    with pytest.raises(UsageError, match=r"^encoding='"):
        folder.plan("text\na\n", encoding=encoding)


@pytest.mark.parametrize("quoting", ["none", "csv"])
def test_an_encoding_with_states(folder: Folder, quoting: str) -> None:
    good = "id\ttext\n1\t日本\n2\t語\n3\ta\n".encode("iso2022_jp")
    bad = b"4\t\x1b$B\xff\xff\n5\t\x1b\n6\t\xfe\x1b\xff\n"
    odd = b"7\t\x1b\xff\n"  # Python decodes this, and cannot encode what comes of it
    got = folder.read(good + bad + odd, encoding="iso2022_jp", quoting=quoting)
    assert got.texts == ["日本", "語", "a", b"\x1b\xff".decode("iso2022_jp")]
    assert got.reasons == [(line, "invalid_encoding") for line in (5, 6, 7)]
    with pytest.raises(CorpusError, match="encoding='iso2022_jp'"):
        folder.plan(good, quoting=quoting)
    # the first line alone says that this is Korean
    korean = KOREAN.replace("\u2028", "").replace("\ufeff", "").encode("iso2022_kr")
    assert folder.read(korean, encoding="iso2022_kr").texts == ["배를 타고", "배가 고프다"]


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zst": lambda data: bytes(pa.compress(data, "zstd", asbytes=True)),
}
BIG = "id\ttext\n" + "".join(f"{i}\t{i * i} 배를 타고\n" for i in range(8_000))


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("name", ["corpus.tsv.{}", "corpus.tsv", "corpus.tsv.gz", "corpus.tsv.bz2"])
def test_compression_is_told_by_its_bytes(folder: Folder, suffix: str, name: str) -> None:
    got = folder.read(PACKERS[suffix](BIG.encode()), name.format(suffix))
    assert len(got.texts) == 8_000
    assert got.texts[-1] == f"{7_999**2} 배를 타고"
    assert got.records[-1].offset == BIG.encode().index(b"\n7999\t") + 1  # of the unpacked bytes


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
def test_a_truncated_archive_stops_and_joined_ones_do_not(
    folder: Folder, pack: Callable[[bytes], bytes]
) -> None:
    packed = pack(BIG.encode())
    for length in (8, len(packed) // 2, len(packed) - 9):
        with pytest.raises(CorpusError, match=r"corpus\.tsv"):
            folder.read(packed[:length])
    assert folder.read(pack(b"id\ttext\n1\ta\n") + pack(b"2\tb\n")).texts == ["a", "b"]


def test_archives_and_binary_files_are_refused(folder: Folder) -> None:
    bad = {"zip file": b"PK\x03\x04" + 99 * b"abc", "NUL": b"text\na\0\0\0b\n"}
    bad["a packed file"] = lzma.compress(KOREAN.encode())
    bad["within another"] = gzip.compress(gzip.compress(KOREAN.encode()))
    bad["a PDF"] = gzip.compress(b"%PDF-1.4\nfoo\tbar\n")
    bad["an image"] = b"\x89PNG\r\n\x1a\n" + 200 * b"abc"
    bad["a tar archive"] = 257 * b"a" + b"ustar" + 2_000 * b"hello\tx\n"
    for named, data in bad.items():
        with pytest.raises(CorpusError, match=named):
            folder.plan(data, "corpus.tsv.xz")


# real corpora

REAL = {
    "nsmc": ("document", "label", "none"),
    "korsts": ("sentence1", "score", "none"),
    "kobest_wic": ("SENTENCE1", "ANSWER", "none"),
    "stsb_en": ("sentence1", "score", "csv"),
}
"""Tables of text by folder: columns of text and label, and quoting."""


@pytest.mark.corpora
@pytest.mark.parametrize("name", REAL)
def test_real_tables_are_what_pandas_reads(corpora: Path, name: str) -> None:
    text, label, quoting = REAL[name]
    settings: Any = {"sep": "\t", "dtype": str, "keep_default_na": False}
    settings["quoting"] = csv.QUOTE_MINIMAL if quoting == "csv" else csv.QUOTE_NONE
    files = sorted(file for file in (corpora / name).iterdir() if file.suffix in (".tsv", ".txt"))
    for file in files:
        frame = pd.read_csv(file, **settings)
        got = read_corpus(file, text=text, label=label, quoting=quoting)
        assert len(got.records) + len(got.rejects) == len(frame)
        assert {r.reason for r in got.rejects} <= {"empty_text"}
        rows = frame.loc[[record.row for record in got.records]]
        assert got.texts == rows[text].tolist()
        assert [record.label for record in got.records] == rows[label].tolist()


@pytest.mark.corpora
def test_real_treebanks_are_the_sentences_that_they_state(corpora: Path) -> None:
    files = sorted(corpora.glob("ud_*/*.conllu"))
    assert len(files) >= 4
    for file in files:
        lines = file.read_text("utf-8").splitlines()
        stated = [line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")]
        assert read_corpus(file).texts == stated
