"""Columns, formats, several files, and what is left out: settled before reading starts."""

from __future__ import annotations

import io
import os
import unicodedata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedkit.corpus import CorpusReader, InputFile, hash_inputs, plan_corpus
from embedkit.errors import CorpusError, UsageError
from tests.corpus_fixtures import Folder, plan_files, read_files


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# --- files ---------------------------------------------------------------------------------------


def test_a_missing_file_names_its_neighbour(folder: Folder) -> None:
    folder.write("text\na\n", "ratings_train.txt")
    with pytest.raises(CorpusError, match=r"No such file .* Did you mean 'ratings_train\.txt'\?"):
        InputFile.of(folder.path / "rating_train.txt")
    with pytest.raises(CorpusError, match=r"The folder .*nowhere does not exist\."):
        InputFile.of(folder.path / "nowhere" / "corpus.tsv")


def test_a_folder_or_a_pipe_is_no_file(folder: Folder) -> None:
    with pytest.raises(CorpusError, match=r"is a folder; give its files: .*\*\.tsv"):
        InputFile.of(folder.path)
    os.mkfifo(folder.path / "pipe")
    with pytest.raises(CorpusError, match="is a pipe or a device, which cannot be read twice"):
        InputFile.of(folder.path / "pipe")


def test_a_file_that_goes_away(folder: Folder) -> None:
    file = InputFile.of(folder.write("text\na\n"))
    file.path.unlink()
    with pytest.raises(CorpusError, match=r"corpus\.tsv cannot be opened: No such file"):
        plan_corpus([file])


def test_a_change_is_noticed(folder: Folder) -> None:
    file = InputFile.of(folder.write("text\na\n"))
    file.check_unchanged()
    os.utime(file.path, ns=(0, file.mtime_ns + 1))
    with pytest.raises(CorpusError, match=r"corpus\.tsv changed while it was being read"):
        file.check_unchanged()


def test_inputs_are_hashed(folder: Folder) -> None:
    plan = hash_inputs(folder.plan("text\n"))
    # printf 'text\n' | sha256sum
    assert [file.sha256 for file in plan.files] == [
        "b9e68e1bea3e5b19ca6b2f98b73a54b73daafaa250484902e09982e07a12e733"
    ]


def test_no_file() -> None:
    with pytest.raises(UsageError, match=r"no input file was given\. Example: embedkit extract"):
        plan_corpus([])


def test_several_files_are_one_corpus(folder: Folder) -> None:
    paths = [
        folder.write("id\ttext\n1\ta\n\n2\t\n", "a.tsv"),
        folder.write("id\ttext\n", "b.tsv"),
        folder.write("\ufeffid\ttext\r\n\r\n1\tb\r\n", "c.tsv"),
    ]
    got = read_files(*paths)
    assert [(r.row, r.file, r.line, r.text) for r in got.records] == [
        (0, 0, 2, "a"),
        (2, 2, 3, "b"),
    ]
    assert [(r.row, r.file, r.line) for r in got.rejects] == [(1, str(paths[0]), 4)]
    assert got.reader.counts.blank_lines == 2


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("{}.tsv", "id\ttext\n", "id\ttext\tlabel\n"),
        ("{}.tsv", "id\ttext\n", "text\tid\n"),
        ("{}.csv", "text\n", "Text\n"),
        ("{}.jsonl", '{"text": "a"}\n', '{"text": "a", "id": 1}\n'),
    ],
)
def test_files_of_different_columns_stop(
    folder: Folder, name: str, first: str, second: str
) -> None:
    paths = [folder.write(first, name.format(1)), folder.write(second, name.format(2))]
    with pytest.raises(CorpusError, match=r"2\.\w+ has the columns .*, but .*1\.\w+ has .*text"):
        plan_files(*paths)


def test_the_order_of_json_keys_does_not_matter(folder: Folder) -> None:
    paths = [
        folder.write('{"text": "a", "id": "1"}\n', "1.jsonl"),
        folder.write('{"id": "2", "text": "b"}\n', "2.jsonl"),
    ]
    assert [(r.id, r.text) for r in read_files(*paths).records] == [("1", "a"), ("2", "b")]


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0)])
def test_json_files_without_a_record_contradict_none(
    folder: Folder, order: tuple[int, ...]
) -> None:
    paths = [
        folder.write("", "0.jsonl"),
        folder.write('{"body": "a", "key": "1"}\n', "1.jsonl"),
        folder.write("\n", "2.jsonl"),
    ]
    got = read_files(*(paths[i] for i in order), text="body", id="key")
    assert [(r.id, r.text) for r in got.records] == [("1", "a")]
    empty = read_files(paths[0], paths[2], text="body", id="key", keep=["x"])
    assert (empty.records, empty.reader.plan.columns) == ([], ("body", "key", "x"))


@pytest.mark.parametrize("options", [{}, {"text": "txt"}])
def test_a_header_in_quotes_names_the_option(folder: Folder, options: dict[str, Any]) -> None:
    data = '"id"\t"txt"\n"1"\t"good"\n'
    with pytest.raises(CorpusError, match=r"quoted as CSV: use quoting='csv'\."):
        folder.plan(data, **options)
    assert folder.read(data, quoting="csv", text="txt").texts == ["good"]


def test_progress_grows_to_one(folder: Folder) -> None:
    rows = "".join(f"text {i}\n" for i in range(30_000))
    files = [InputFile.of(folder.write(f"text\n{rows}", f"{i}.tsv")) for i in range(2)]
    reader = CorpusReader(plan_corpus(files))
    assert reader.fraction == 0.0
    seen = [reader.fraction for _ in reader]
    assert seen == sorted(seen)
    assert 0.0 < seen[0] < 0.2  # one buffer of the first file
    assert 0.5 <= seen[30_000] < 0.7
    assert reader.fraction == 1.0


# --- columns -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"text": "txet"},
            r"text='txet': .* no such column; it has id, text, label\. Did you mean",
        ),
        ({"id": "idx"}, r"id='idx': .* no such column; it has id, text, label\. Did you mean 'id'"),
        ({"label": "lable"}, r"label='lable': .* Did you mean 'label'\?"),
        ({"text_pair": "text2"}, r"text_pair='text2': .* Did you mean 'text'\?"),
        ({"keep": ["label", "zzz"]}, r"keep='zzz': .* it has id, text, label\.$"),
    ],
)
def test_a_missing_column(folder: Folder, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        folder.plan("id\ttext\tlabel\n", **options)


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("id\tdocument\tlabel", ("document", "id", "label")),
        ("Review\tTarget\tUID", ("Review", "UID", "Target")),
        ("title\ttext", ("text", None, None)),
        ("TEXT\ttext", ("TEXT", None, None)),
        ("anything", ("anything", None, None)),
        ("label", ("label", None, None)),
    ],
)
def test_columns_are_guessed_and_said(
    folder: Folder, header: str, columns: tuple[str | None, ...]
) -> None:
    plan = folder.plan(f"{header}\n")
    assert (plan.text, plan.id, plan.label) == columns
    if "\t" in header:
        chosen = zip(("text", "id", "label"), columns, strict=True)
        for number, (kind, name) in enumerate((k, n) for k, n in chosen if n is not None):
            said = f"{kind} column: {name} (choose another with {kind}=)"
            assert plan.notices[number] == said


def test_spaces_around_a_name_count_only_where_the_column_has_them(folder: Folder) -> None:
    plan = folder.plan("id, text,text,x\n1,a,b,c\n", "c.csv", text=" text", keep=["id", " x"])
    assert (plan.text, plan.keep) == (" text", ("id", "x"))


def test_a_text_that_cannot_be_guessed(folder: Folder) -> None:
    with pytest.raises(CorpusError, match=r"which column is the text\? It has a, b\. Name one"):
        folder.plan("a\tb\n")


@pytest.mark.parametrize(
    "data", ["a" * 100_000 + "\tb\n", "\t".join(map(str, range(9_999))) + "\n"]
)
def test_a_line_that_is_no_header_does_not_flood_the_message(folder: Folder, data: str) -> None:
    with pytest.raises(CorpusError, match=r"which column is the text\? It has .{500} … \(\d+ col"):
        folder.plan(data)
    with pytest.raises(CorpusError, match=r"text='x': .* it has .{500} … \(\d+ columns\)\.$"):
        folder.plan(data, text="x")


def test_all_wanted_columns_are_delivered(folder: Folder) -> None:
    data = "a\tb\tc\td\te\n1\t2\t3\t4\t5\n"
    got = folder.read(data, text="e", text_pair="b", id="c", label="a", keep=["d", "a"])
    (record,) = got.records
    assert (record.text, record.text_pair, record.id, record.label) == ("5", "2", "3", "1")
    assert record.kept == ("4", "1")


# --- formats -------------------------------------------------------------------------------------


def _parquet() -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table({"text": ["a"], "label": [1]}), stream)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("data", "kind", "texts"),
    [
        (b"id\ttext\n1\ta\n", "tsv", ["a"]),
        (b"a, b\n\tc\n", "lines", ["a, b", "\tc"]),
        (b"\n\nid\ttext\n1\ta\n", "tsv", ["a"]),
        (b'\n {"text": "a"}\n', "jsonl", ["a"]),
        (_parquet(), "parquet", ["a"]),
        (b"", "lines", []),
    ],
)
@pytest.mark.parametrize("name", ["stdin", "corpus.dat", "corpus.gz"])
def test_an_unknown_name_is_told_by_its_bytes(
    folder: Folder, data: bytes, kind: str, texts: list[str], name: str
) -> None:
    got = folder.read(data, name)
    assert (got.reader.plan.format, got.texts) == (kind, texts)
    said = f"format: {kind} (recognised by its first bytes; set it with format=)"
    assert got.reader.plan.notices[0] == said


@pytest.mark.parametrize(
    ("name", "kind", "quoting"),
    [
        ("a.tsv", "tsv", "none"),
        ("a.TAB", "tsv", "none"),
        ("a.csv", "csv", "csv"),
        ("a.csv.gz", "csv", "csv"),
        ("a.txt", "tsv", "none"),
        ("a.b.tsv.zst", "tsv", "none"),
    ],
)
def test_a_name_tells_the_format(folder: Folder, name: str, kind: str, quoting: str) -> None:
    dialect = folder.plan("id\ttext\n", name)
    assert (dialect.format, dialect.delimiter, dialect.quoting) == (kind, "\t", quoting)


def test_a_given_format_wins(folder: Folder) -> None:
    assert folder.read('{"text": "a"}\n', "a.tsv", format="jsonl").texts == ["a"]
    assert folder.read("id,text\n1,a\n", "a.txt", format="csv").texts == ["a"]
    assert folder.read("text\tb\n", "a.tsv", format="lines").texts == ["text\tb"]
    assert folder.read("text\n", "a.txt", format="lines").texts == ["text"]


@pytest.mark.parametrize(
    ("data", "texts", "lines"),
    [
        ("a, b\nc\td\n", ["a, b", "c\td"], [1, 2]),
        ("text\na\n", ["a"], [2]),
        ("Document\na\n", ["a"], [2]),
        ("\n\na\n\nb", ["a", "b"], [3, 5]),
        ("id\ttext\n1\ta\n", ["a"], [2]),
        ("\nid\ttext\n1\ta\n", ["a"], [3]),
    ],
    ids=["lines", "header", "capital", "blank lines", "tabs", "blank, tabs"],
)
def test_txt_is_one_text_per_line_unless_it_has_tabs(
    folder: Folder, data: str, texts: list[str], lines: list[int]
) -> None:
    got = folder.read(data, "corpus.txt")
    assert (got.texts, got.lines) == (texts, lines)
    assert any("one text per line" in said for said in got.reader.plan.notices) == (
        got.reader.plan.format == "lines"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "tvs"}, r"format='tvs': expected auto, tsv, .*\. Did you mean 'tsv'\?"),
        ({"quoting": "minimal"}, r"quoting='minimal': expected auto, none, csv\."),
        ({"unicode": "NFC"}, r"unicode='NFC': expected none, nfc, nfkc\."),
    ],
)
def test_an_unknown_choice(folder: Folder, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        folder.plan("text\n", **options)


# --- what is changed or left out, because it was asked for ---------------------------------------


@pytest.mark.parametrize(
    ("unicode", "text"),
    [("none", "\u1112\u1161\u11ab\uff21"), ("nfc", "한\uff21"), ("nfkc", "한A")],
)
def test_unicode_forms(folder: Folder, unicode: str, text: str) -> None:
    row = "\u1112\u1161\u11ab\uff21"
    data = f"id\ttext\tother\tlabel\n{row}\t{row}\t{row}\t{row}\n1\t한\t한\t1\n"
    got = folder.read(data, unicode=unicode, text_pair="other")
    first = got.records[0]
    assert (first.text, first.text_pair) == (text, text)
    assert (first.id, first.label) == (row, row)  # only texts are changed
    assert got.reader.counts.not_nfc == 2
    assert not unicodedata.is_normalized("NFC", row)


def test_short_texts_are_left_out_and_counted(folder: Folder) -> None:
    got = folder.read("text\na\n배배\n\nabc\n👍👍\n", min_chars=2)
    assert [(r.row, r.text) for r in got.records] == [(1, "배배"), (2, "abc"), (3, "👍👍")]
    assert got.reader.counts.left_out == {"min_chars": 1}


def test_the_length_is_that_of_the_text_that_is_embedded(folder: Folder) -> None:
    """Decomposed Hangul has three characters for a syllable."""
    row = unicodedata.normalize("NFD", "눈물")
    got = folder.read(f"text\n{row}\n{row}{row}\n", min_chars=3, unicode="nfc")
    assert got.texts == ["눈물눈물"]
    assert got.reader.counts.left_out == {"min_chars": 1}
    assert len(folder.read(f"text\n{row}\n", min_chars=3).records) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seed": -1, "sample": 1}, "seed=-1: expected 0 or more"),
        ({"limit": 0}, "limit=0: expected 1 or more"),
        ({"sample": 0}, "sample=0: expected 1 or more"),
        ({"min_chars": -1}, "min_chars=-1: expected 0 or more"),
    ],
)
def test_numbers_that_cannot_be(folder: Folder, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        folder.plan("text\na\n", **wrong)


def test_a_limit_counts_records_and_the_rest_is_left_out(folder: Folder) -> None:
    got = folder.read("id\ttext\n1\ta\n2\t\n\n3\tc\n4\td\n5\n", limit=3)
    assert (got.texts, got.reasons) == (["a", "c"], [(3, "empty_text")])
    assert got.reader.counts.left_out == {"limit": 2}
    assert got.reader.counts.records == 5


ROWS = "text\tother\n" + "".join(f"text {i}\tx\n\tempty {i}\n" for i in range(200))


def test_a_sample_is_reproducible_by_its_seed(folder: Folder) -> None:
    path = folder.write(ROWS)
    drawn = [read_files(path, sample=20, seed=seed) for seed in (7, 7, 8)]
    rows = [[r.row for r in got.records] for got in drawn]
    assert rows[0] == rows[1] != rows[2]
    for got in drawn:
        assert len(got.records) == 20
        assert all(r.text == f"text {r.row // 2}" for r in got.records)
        assert len(got.rejects) == 200  # a reject is told whether or not it is drawn
        assert got.reader.counts.left_out == {"sample": 180}


def test_a_sample_is_drawn_evenly(folder: Folder) -> None:
    path = folder.write("text\n" + "".join(f"text {i}\n" for i in range(10)))
    counts = [0] * 10
    for seed in range(200):
        for record in read_files(path, sample=3, seed=seed).records:
            counts[record.row] += 1
    # 200 draws of 3 out of 10: 60 expected of each, standard deviation 6.5
    assert sum(counts) == 600
    assert min(counts) > 30
    assert max(counts) < 90


def test_a_sample_is_drawn_among_what_qualifies(folder: Folder) -> None:
    path = folder.write(ROWS)
    got = read_files(path, sample=5, limit=20, min_chars=6, seed=1)
    assert len(got.records) == 5
    assert max(r.row for r in got.records) < 20
    assert got.reader.counts.left_out == {"sample": 5, "limit": 380}


def test_a_sample_larger_than_the_corpus_is_all_of_it(folder: Folder) -> None:
    assert len(read_files(folder.write(ROWS), sample=1_000).records) == 200
