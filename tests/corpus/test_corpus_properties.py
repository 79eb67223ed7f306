"""What must hold for any corpus: texts to the letter, places in the file, counts, no crash."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
from collections import Counter
from itertools import pairwise
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from embedkit.corpus.records import sentence_spans
from embedkit.errors import CorpusError
from tests.corpus_fixtures import Folder

ENDS = st.sampled_from(["\n", "\r\n"])
AWKWARD = "\"\r\x0b\x0c\x1c\x1a\x85\u2028\u2029\ufeff\u200b\u3000 ,;|'\\[]é배👍"


def texts(without: str) -> st.SearchStrategy[str]:
    """Any text that is not blank, often of characters that readers stumble over.

    NUL is tested elsewhere: many of them make a file binary.
    """
    without += "\0"
    letters = st.one_of(
        st.sampled_from([mark for mark in AWKWARD if mark not in without]),
        st.characters(exclude_categories=["Cs"], exclude_characters=without),
    )
    return st.text(letters, min_size=1, max_size=12).filter(str.strip)


@given(st.lists(st.tuples(texts("\t\n"), ENDS)), ENDS, st.booleans(), st.booleans())
def test_tsv_gives_back_every_text_and_its_place(
    folder: Folder, rows: list[tuple[str, str]], end: str, mark: bool, closed: bool
) -> None:
    lines = [f"{number}\t{text}\t0" for number, (text, _) in enumerate(rows)]
    ends = [end, *(row_end for _, row_end in rows)]
    data = "".join(line + e for line, e in zip(["id\ttext\tlabel", *lines], ends, strict=True))
    data = ("\ufeff" if mark else "") + (data if closed else data.removesuffix(ends[-1]))
    got = folder.read(data)
    assert got.texts == [text for text, _ in rows]
    assert got.lines == list(range(2, len(rows) + 2))
    raw = data.encode()
    for record, line in zip(got.records, lines, strict=True):
        assert record.offset is not None
        assert raw[record.offset :].split(b"\n")[0].removesuffix(b"\r") == line.encode()


@given(
    st.lists(texts(""), max_size=8),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
@example(["a\rb", "\r", "x\r\ny", "x\n\ry", 'a"\r"b', "\na"], "\n", csv.QUOTE_MINIMAL)
def test_csv_gives_back_what_a_writer_wrote(
    folder: Folder, rows: list[str], end: str, quoting: Any
) -> None:
    """Line feeds, CRLF and lone carriage returns in a text come back as they were.

    A writer of LF lines leaves a lone carriage return unquoted. The csv module alone would refuse
    to read that; here it is text, except before the line feed that ends the record.
    """
    rows = [text for text in rows if text.strip()]
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator=end, quoting=quoting)
    writer.writerow(["id", "text", "label"])
    places = []
    for number, text in enumerate(rows):
        stream.write(end * (number % 2))  # a blank line
        before = stream.getvalue()
        places.append((before.count("\n") + 1, len(before.encode())))
        writer.writerow([number, text, "0"])
    got = folder.read(stream.getvalue(), "corpus.csv")
    assert got.texts == rows
    assert [(r.line, r.offset) for r in got.records] == places
    assert got.reader.counts.blank_lines == len(rows) // 2  # those in quotes are text


@given(st.lists(texts("").filter(lambda text: not text.isnumeric()), min_size=1), st.booleans())
def test_json_lines_gives_back_every_text(
    folder: Folder, rows: list[str], ascii_only: bool
) -> None:
    lines = [json.dumps({"id": i, "text": t}, ensure_ascii=ascii_only) for i, t in enumerate(rows)]
    data = "\n".join(lines)
    got = folder.read(data, "corpus.jsonl")
    assert got.texts == rows
    assert [r.offset for r in got.records] == [
        len("\n".join([*lines[:i], ""]).encode()) for i in range(len(rows))
    ]


LINES = {
    b"id\ttext": "",  # only the first line is a header
    b"text of one cell": "too_few_cells",
    b"%d\tgood": "",
    b'%d\t"good': "",
    b"%d\t\xea\xb0\x80\r": "",
    b"%d\t": "empty_text",
    b"%d\t \x0b\xe3\x80\x80": "empty_text",
    b"%d\tone\ttwo": "too_many_cells",
    b"%d\t\xb9\xe8": "invalid_encoding",
    b"\xb9\xe8\tid": "invalid_encoding",
    b"": "blank",
    b"\r": "blank",
}


@given(
    st.lists(st.sampled_from(sorted(LINES)), max_size=30), st.integers(0, 10), st.integers(1, 12)
)
def test_every_line_is_counted_once(
    folder: Folder, lines: list[bytes], min_chars: int, limit: int
) -> None:
    kinds = [LINES[line] for line in lines]
    records = [kind for kind in kinds if kind != "blank"]
    data = b"id\ttext\n" + b"".join(line.replace(b"%d", b"1") + b"\n" for line in lines)
    if records.count("invalid_encoding") * 2 > len(records):
        with pytest.raises(CorpusError, match=r"corpus\.tsv"):
            folder.read(data, limit=limit)
        return
    got = folder.read(data, limit=limit, min_chars=min_chars)  # checks that it adds up
    counts = got.reader.counts
    assert counts.records == len(records)
    assert counts.blank_lines == kinds.count("blank")
    assert counts.rejected == Counter(kind for kind in records[:limit] if kind)
    assert counts.left_out["limit"] == max(0, len(records) - limit)
    assert counts.accepted + counts.left_out["min_chars"] == records[:limit].count("")


PIECES = ["\t", ",", "\n", "\r", '"', "{", "[", "a", '"text"', ":", "}", "배", "1", " ", "\\ud83d"]
BYTES = st.one_of(
    st.binary(max_size=300),
    st.lists(
        st.sampled_from([*map(str.encode, PIECES), b"\xff", b"\xb9\xe8", b"\x1b$B"]), max_size=60
    ).map(b"".join),
)
MAGIC = [b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\x1f\x8b\x08\x00", b"BZh9", b"\x28\xb5\x2f\xfd"]
MAGIC += [b"PK\x03\x04", b"PAR1", b"id\ttext\n", b'{"text": "a"}\n', b"\x1b$B"]


def refusal(folder: Folder, data: bytes, name: str, **options: Any) -> str:
    """Read a file; the message if it is refused. Every other error is a crash."""
    try:
        folder.read(data, name, **options)
    except CorpusError as error:
        return str(error)
    return ""


@given(
    st.sampled_from(MAGIC),
    BYTES,
    st.sampled_from(["a.tsv", "a.csv", "a.txt", "a.jsonl", "a.parquet", "a"]),
    st.sampled_from(["utf-8", "cp949", "utf-16", "utf-32-be", "shift_jis", "utf-7", "iso2022_jp"]),
    st.booleans(),
)
def test_any_bytes_are_read_or_refused(
    folder: Folder, magic: bytes, data: bytes, name: str, encoding: str, header: bool
) -> None:
    refused = refusal(folder, magic + data, name, encoding=encoding, header=header)
    assert len(refused) < 3_000
    assert refused.endswith((".", "'?")) or not refused


FRAME = pd.DataFrame({"text": ["배를 타고", "a" * 300, None], "label": [1, 2, 3]})
ROWS = b"id\ttext\n" + b"".join(b"%d\ttext %d\n" % (i, i * i) for i in range(200))
PACKED = {
    "a.parquet": FRAME.to_parquet(),
    "a.tsv.gz": gzip.compress(ROWS, mtime=0),
    "a.tsv.bz2": bz2.compress(ROWS),
    "a.tsv.zst": pa.compress(ROWS, "zstd", asbytes=True),
}


FLIPS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=4)


@pytest.mark.parametrize("name", PACKED)
@given(FLIPS, st.floats(0, 1))
def test_a_damaged_file_is_read_or_refused(
    folder: Folder, name: str, flips: list[tuple[float, int]], keep: float
) -> None:
    data = bytearray(PACKED[name])
    for place, change in flips:
        data[int(place * len(data))] ^= change
    refused = refusal(folder, bytes(data[: int(keep * len(data))]), name)
    assert name in refused or not refused


# sentences of a text


@given(st.text(alphabet="aB .!?…。\n\"')가1", max_size=60))
def test_sentences_are_the_text_without_space_around(text: str) -> None:
    spans = sentence_spans(text)
    assert "".join("".join(text[a:b].split()) for a, b in spans) == "".join(text.split())
    assert all(b <= c for (_, b), (c, _) in pairwise(spans))
    assert all(text[a:b] == text[a:b].strip() != "" for a, b in spans)


SENTENCE_ENDS = {
    "Version 2.0 costs 3.50 now. OK?": ["Version 2.0 costs 3.50 now.", "OK?"],
    'He said "No." Then he left.': ['He said "No."', "Then he left."],
    "And so on ... and on. J. S. Bach": ["And so on ... and on.", "J. S. Bach"],
    "「はい。」そう！": ["「はい。」", "そう！"],
    "(遅れた。)次【注意！】『はい。』と": ["(遅れた。)", "次【注意！】", "『はい。』", "と"],
    "ﾊﾝｶｸ｡ﾃﾞｽ‼そう⁉": ["ﾊﾝｶｸ｡", "ﾃﾞｽ‼", "そう⁉"],
    "좋다‼️ 아주": ["좋다‼️", "아주"],
    "a title\n\nfirst line\nsecond": ["a title", "first line", "second"],
}


@pytest.mark.parametrize("text", SENTENCE_ENDS)
def test_where_sentences_end(text: str) -> None:
    assert [text[start:end] for start, end in sentence_spans(text)] == SENTENCE_ENDS[text]
