"""Encodings and compression."""

from __future__ import annotations

import base64
import bz2
import gzip
import json
import lzma
import re
from collections.abc import Callable

import pyarrow as pa
import pytest

from embedkit.errors import CorpusError, UsageError
from tests.corpus_fixtures import Folder, read_files

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


@pytest.mark.parametrize("name", ["corpus.tsv", "corpus.csv", "corpus.txt", "corpus.jsonl"])
def test_byte_order_marks_are_dropped_from_every_file(folder: Folder, name: str) -> None:
    lines = {
        "corpus.tsv": "id\ttext\n1\t\ufeffa\n",
        "corpus.csv": 'id,text\n1,"\ufeffa"\n',
        "corpus.txt": "text\n\ufeffa\n",
        "corpus.jsonl": '{"text": "\ufeffa"}\n',
    }[name]
    paths = [folder.write(f"\ufeff{lines}", f"{i}-{name}") for i in range(2)]
    assert read_files(*paths).texts == ["\ufeffa"] * 2
    assert read_files(*paths, encoding="utf-8-sig").texts == ["\ufeffa"] * 2


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
@pytest.mark.parametrize(
    ("name", "head", "row"),
    [
        ("corpus.tsv", "id\ttext\n", "{}\t{}\n"),
        ("corpus.csv", "id,text\n", '{},"{}"\n'),
        ("corpus.jsonl", "", '{{"id": "{}", "text": "{}"}}\n'),
    ],
)
@pytest.mark.parametrize("rows", [3, 2_000])
def test_a_file_in_another_encoding_stops_with_advice(
    folder: Folder, encoding: str, text: str, name: str, head: str, row: str, rows: int
) -> None:
    data = (head + "".join(row.format(i, text) for i in range(rows))).encode(encoding)
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
