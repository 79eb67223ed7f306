"""TSV, CSV and plain lines: what is kept to the letter, what is rejected, and what stops."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from embedkit.corpus.sources import MAX_RECORD_BYTES
from embedkit.errors import CorpusError
from tests.corpus_fixtures import Folder, read_files


def test_carriage_returns_alone_are_refused(folder: Folder) -> None:
    for rows in (1, 40_000):  # more than is buffered
        with pytest.raises(CorpusError, match="carriage return"):
            folder.plan("id\ttext\r" + "1\ta\r" * rows)
    with pytest.raises(CorpusError, match="carriage return"):  # an editor has added a line end
        folder.plan("id\ttext\r1\ta\r\n")


def test_either_text_of_a_pair_may_not_be_empty(folder: Folder) -> None:
    """Without a column of ids the row number is the id, rejects counted."""
    got = folder.read("text\tother\na\tb\n\tb\na\t \nc\td\n", text_pair="other")
    assert [(r.id, r.text, r.text_pair) for r in got.records] == [("0", "a", "b"), ("3", "c", "d")]
    assert got.reasons == [(3, "empty_text"), (4, "empty_text_pair")]


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
    assert got.lines[-1] == first + 4


def test_a_runaway_quote_costs_one_record(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sources", "delimited"):
        monkeypatch.setattr(f"embedkit.corpus.{module}.MAX_RECORD_BYTES", 1_000)
    rows = "".join(f"{number},text of {number}\n" for number in range(3, 500))
    got = folder.read(f'id,text\n1,a\n2,"b\n{rows}', "corpus.csv")
    assert got.texts == ["a", *(f"text of {number}" for number in range(3, 500))]
    assert got.reasons == [(3, "record_too_long")]
    assert "quoting='none'" in got.rejects[0].detail


def test_quotes_that_nothing_closes(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line would read the rest of the file in vain."""
    monkeypatch.setattr("embedkit.corpus.delimited._MOST_AGAIN", 2_000)
    with pytest.raises(CorpusError, match="quoting='none'"):
        folder.read("text,note\n" + 'a","c\n' * 300, "corpus.csv")
    # some stray quotes, each of which reads to the next one, are no such file
    monkeypatch.setattr("embedkit.corpus.delimited._MOST_AGAIN", 10_000)
    rows = ["{0},{1}text of {0}\n".format(n, '"' * (n % 50 == 7)) for n in range(1_000)]
    got = folder.read("id,text\n" + "".join(rows), "corpus.csv")
    assert (len(got.texts), len(got.rejects)) == (980, 20)


def test_no_header_numbers_the_columns(folder: Folder) -> None:
    got = folder.read("1\ta\t0\n2\tb\t1\n", header=False, text="1", id="0", label="2")
    assert got.reader.plan.columns == ("0", "1", "2")
    assert [(r.line, r.id, r.text, r.label) for r in got.records] == [
        (1, "1", "a", "0"),
        (2, "2", "b", "1"),
    ]


@pytest.mark.parametrize(
    ("data", "named"), [(b"id\ttext\tid\n", "'id'"), (b"id\t\xbf\xb5\n", "encoding=")]
)
@pytest.mark.parametrize("quoting", ["none", "csv"])
def test_a_header_that_cannot_serve(folder: Folder, data: bytes, named: str, quoting: str) -> None:
    with pytest.raises(CorpusError, match=named):
        folder.plan(data, quoting=quoting)


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
        got = read_files(file, text=text, label=label, quoting=quoting)
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
        assert read_files(file).texts == stated
