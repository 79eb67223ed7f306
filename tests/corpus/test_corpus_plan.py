"""Columns, formats, several files, and what is left out: settled before reading starts."""

from __future__ import annotations

import os
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from embedkit.corpus.memory import InputFile, input_files
from embedkit.errors import CorpusError, UsageError
from embedkit.storage import file_sha256
from tests.corpus_fixtures import Folder, plan_files, read_corpus

NO_FILES = {
    "rating_train.txt": r"ratings_train\.txt",  # its neighbour
    "nowhere/corpus.tsv": r"The folder .*nowhere does not exist\.",
    "vectors": r"vectors\.incomplete is unfinished: run the command that began",
    "": r"is a folder; give its files, such as .*/data\.arrow\.",
    "pipe": "is a pipe",
    "a\0b": "null",  # byte, or from Python 3.14 on character
}


@pytest.mark.parametrize("name", NO_FILES)
def test_what_is_no_file(folder: Folder, name: str) -> None:
    folder.write("text\na\n", "ratings_train.txt")
    folder.write("", "data.arrow")  # of a saved Dataset, whose other files say what it is
    os.mkfifo(folder.path / "pipe")
    (folder.path / "vectors.incomplete").mkdir()
    with pytest.raises(CorpusError, match=NO_FILES[name]):
        InputFile.of(folder.path / name)


def test_a_column_that_another_one_speaks_for(folder: Folder) -> None:
    lists = '{"text": "b", "tokens": ["a"], "tags": ["O"], "label": [[0, 1]]}\n'
    assert folder.plan(lists, "c.jsonl").text == "text"
    assert folder.plan(lists, "c.jsonl", word_label="tags").text == "tokens"
    assert folder.plan(lists, "c.jsonl").label == "label"
    assert folder.plan(lists, "c.jsonl", spans=("label",)).label is None


def test_records_inside_of_one_object_are_told(folder: Folder) -> None:
    document = '{"title": "t", "data": [{"text": "a"}, {"text": "b"}]}'
    (note, *_) = folder.plan(document, "c.json").notices
    assert "its data is a list of 2 objects" in note
    entities = document.replace('{"text"', '{"start": 0, "text"')
    for told in (f"{document}\n{document}\n", entities):
        assert "its data" not in str(folder.plan(told, "c.json").notices)


def test_a_host_that_does_not_answer() -> None:
    address = Path("http://127.0.0.1:1/x.csv")
    with pytest.raises(CorpusError, match="cannot be reached"), input_files(address):
        pass


def test_a_change_is_noticed(folder: Folder) -> None:
    """Also one in place that keeps size and time."""
    file = InputFile.of(folder.write("text\na\n"))
    file.check_unchanged()
    known = replace(file, sha256=file_sha256(file.path))
    os.link(file.path, folder.path / "backup")  # which changes no byte
    known.check_unchanged()
    os.utime(file.path, ns=(0, file.state[1] + 1))
    with pytest.raises(CorpusError, match=r"corpus\.tsv"):
        file.check_unchanged()
    file.path.write_text("text\nb\n")
    os.utime(file.path, ns=(file.state[1], file.state[1]))
    assert InputFile.of(file.path).state[1] == file.state[1]
    for before in (file, known):
        with pytest.raises(CorpusError, match=r"corpus\.tsv"):
            before.check_unchanged()


def test_several_files_are_one_corpus(folder: Folder) -> None:
    paths = [
        folder.write("id\ttext\n1\ta\n\n2\t\n", "a.tsv"),
        folder.write("id\ttext\n", "b.tsv"),
        folder.write("\ufeffid\ttext\r\n\r\n1\tb\r\n", "c.tsv"),
    ]
    got = read_corpus(paths)
    assert [(r.row, r.file, r.line, r.text) for r in got.records] == [
        (0, 0, 2, "a"),
        (2, 2, 3, "b"),
    ]
    assert [(r.row, r.file, r.line) for r in got.rejects] == [(1, str(paths[0]), 4)]
    assert got.reader.counts.blank_lines == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("id\ttext\n", "id\ttext\tlabel\n"),
        ("id\ttext\n", "text\tid\n"),
        ('{"text": "a"}\n', '{"text": "a", "id": 1}\n'),
    ],
)
def test_files_of_different_columns_stop(folder: Folder, first: str, second: str) -> None:
    kind = "jsonl" if first[0] == "{" else "tsv"
    paths = [folder.write(first, f"1.{kind}"), folder.write(second, f"2.{kind}")]
    with pytest.raises(CorpusError, match=r"2\.\w+ has the columns .*, but .*1\.\w+ has .*text"):
        plan_files(*paths)


@pytest.mark.parametrize("option", ["text", "id", "label", "text_pair", "keep"])
def test_a_missing_column(folder: Folder, option: str) -> None:
    name: Any = ["zzz"] if option == "keep" else "zzz"
    with pytest.raises(CorpusError, match=rf"{option}='zzz': .* id, text, label"):
        folder.plan("id\ttext\tlabel\n", **{option: name})


GUESSED: dict[str, Any] = {
    "Review\tTarget\tUID": ("Review", "UID", "Target"),
    "TEXT\ttext": ("TEXT", None, None),
    "anything": ("anything", None, None),
    "text\tmsg_id\tmood_label": ("text", None, "mood_label"),
}


@pytest.mark.parametrize("header", GUESSED)
def test_columns_are_guessed_and_said(folder: Folder, header: str) -> None:
    columns = GUESSED[header]
    plan = folder.plan(f"{header}\n")
    assert (plan.text, plan.id, plan.label) == columns
    if "\t" in header:
        said = " ".join(plan.notices)
        assert all(f"column: {name} " in said for name in columns if name)
        assert ("msg_id" in header) == ("ids are row numbers (take msg_id" in said)


def test_spaces_around_a_name_count_only_where_the_column_has_them(folder: Folder) -> None:
    header = unicodedata.normalize("NFD", "id, text,text,x, 라벨")
    plan = folder.plan(f"{header}\n", "c.csv", text=" text", keep=["id", " x"], label="라벨")
    assert (plan.text, plan.keep, plan.columns[4]) == (" text", ("id", "x"), plan.label)
    assert folder.plan("ID, Text\n", "c.csv").text == "Text"


@pytest.mark.parametrize(
    ("data", "kind", "texts"),
    [
        (b"a, b\n\tc\n", "lines", ["a, b", "\tc"]),
        (b"\n\nid\ttext\n1\ta\n", "tsv", ["a"]),
        (b'\n {"text": "a"}\n', "jsonl", ["a"]),
        (b'[\n  {"text": "a"}]\n', "jsonl", ["a"]),
        (pd.DataFrame({"text": ["a"], "label": [1]}).to_parquet(), "parquet", ["a"]),
        (b"", "lines", []),
    ],
)
@pytest.mark.parametrize("name", ["stdin", "corpus.gz"])
def test_an_unknown_name_is_told_by_its_bytes(
    folder: Folder, data: bytes, kind: str, texts: list[str], name: str
) -> None:
    got = folder.read(data, name)
    assert (got.reader.plan.format, got.texts) == (kind, texts)
    assert f"format: {kind} " in got.reader.plan.notices[0]


OF_LINES: dict[str, Any] = {
    "a, b\nc\td\n": (["a, b", "c\td"], [1, 2]),
    "Document\na\n": (["a"], [2]),
    "\n\na\n\nb": (["a", "b"], [3, 5]),
    "\nid\ttext\n1\ta\n": (["a"], [3]),
    "id, text\n1,a\n2,b\n": (["a", "b"], [2, 3]),
    '{"text": "a, b"}\n': (["a, b"], [1]),
}


@pytest.mark.parametrize("data", OF_LINES)
def test_txt_is_one_text_per_line_unless_it_is_a_table(folder: Folder, data: str) -> None:
    texts, lines = OF_LINES[data]
    got = folder.read(data, "corpus.txt")
    assert (got.texts, got.lines) == (texts, lines)
    assert any("one text per line" in said for said in got.reader.plan.notices) == (
        got.reader.plan.format == "lines"
    )


ROWS = "text\tother\n" + "".join(f"text {i}\tx\n\tempty {i}\n" for i in range(200))


def test_a_sample_is_reproducible_by_its_seed(folder: Folder) -> None:
    path = folder.write(ROWS)
    drawn = [read_corpus(path, sample=20, seed=seed) for seed in (7, 7, 8)]
    rows = [[r.row for r in got.records] for got in drawn]
    assert rows[0] == rows[1] != rows[2]
    for got in drawn:
        assert len(got.records) == 20
        assert all(r.text == f"text {r.row // 2}" for r in got.records)
        assert len(got.rejects) == 200  # a reject is told whether or not it is drawn
        assert got.reader.counts.left_out == {"sample": 180}
    # without a sample nothing is drawn by the seed, and a job is the same job
    assert plan_files(path, seed=7) == plan_files(path)
    got = folder.read("text\na\n배배\nabc\n👍👍\n", min_chars=2)
    assert [r.row for r in got.records] == [1, 2, 3]
    got = read_corpus(folder.write(ROWS), sample=5, limit=20, min_chars=6, seed=1)
    assert len(got.records) == 5
    assert max(r.row for r in got.records) < 20
    assert got.reader.counts.left_out == {"sample": 5, "limit": 380}


FOREIGN = {
    "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n": "Run git lfs pull",
    "\ufeff\n<!DOCTYPE html>\n<html><head>": "web page",
    '<?xml version="1.0"?><Error><Code>NoSuchKey</Code></Error>': "error of a server",
    "404: Not Found": "error of a server",
    "Entry not found": "error of a server",
    "<rss version='2.0'>": "XML",
    "/annex/objects/MD5E-s1--a.csv": "git annex get",
    "../../.git/annex/objects/a/b/MD5E-s1--a.csv": "git annex get",
    "outs:\n- md5: 00\n": "dvc pull",
    "@relation iris\n": "Weka",
    "{\\rtf1\\ansi hello}": "RTF",
    "__label__good a film\n__label__bad another\n": "fastText",
}


@pytest.mark.parametrize("name", ["c.csv", "c.tsv", "c.txt", "c.jsonl", "c", "c.parquet", "c.xlsx"])
@pytest.mark.parametrize("data", FOREIGN)
def test_what_is_no_corpus_is_named(folder: Folder, data: str, name: str) -> None:
    with pytest.raises(CorpusError, match=FOREIGN[data]):
        folder.read(data, name)


SEPARATED = {
    "id;text, raw;label\n1;hello, you;a\n2;bye;b\n": ["hello, you", "bye"],
    "id\ttext\tnote, free\n1\ta, b\tc, d\n2\te, f\tg, h\n": ["a, b", "e, f"],
    "sep=;\nid;text\n1;a, b\n": ["a, b"],
    "SEP= ;,,\nid;text\n1;a, b\n": ["a, b"],
    'id,text\r\r\n1,"a\r\nb"\r\r\n2,c\r\r\n': ["a\r\nb", "c"],
    "\ufeff\ufeffid,text\n1,a\n": ["a"],
    ",,,\nid,text,,\n1,a,,\n": ["a"],
}


@pytest.mark.parametrize("data", SEPARATED)
def test_the_separator_is_what_the_lines_agree_on(folder: Folder, data: str) -> None:
    text = "text, raw" if "raw" in data else "text"
    got = folder.read(data, "c.csv", text=text, id="id")
    assert got.texts == SEPARATED[data]
    assert not got.rejects


def test_a_separator_is_given(folder: Folder) -> None:
    data = "text,id;label\na,1;x\n"
    assert folder.plan(data, "c.csv", text="text,id", delimiter=";").columns == ("text,id", "label")
    assert folder.plan("id\ttext\n", "c.csv", delimiter="tab").columns == ("id", "text")
    got = folder.read("id,text\n1,a\n", "c.tsv")
    assert got.texts == ["a"]
    assert "format: csv" in got.reader.plan.notices[0]
    with pytest.raises(UsageError, match="delimiter="):
        folder.plan(data, "c.csv", delimiter="ab")
    for title in ("# made on Monday\n", "# made on Monday\n# by us\n"):
        with pytest.raises(CorpusError, match="first line has one cell, and the next have 2"):
            folder.plan(f"{title}id,text\n1,a\n2,b\n", "c.csv")
    assert folder.read("sep=;\na text\n", "c.txt", format="lines").texts == ["sep=;", "a text"]
    assert folder.plan("text,label,label.1\na,1,2\n", "c.csv").label == "label"
    assert "take #id with" in str(folder.plan("#id\ttext\n1\ta\n", "c.tsv").notices)
    marked = folder.read("\ufefftext\ncafé\n", "c.csv", encoding="cp949")
    assert marked.texts == ["café"]
    assert folder.plan("text\na\n", "c.csv", encoding="UTF-8").encoding == "utf-8"
    with pytest.raises(CorpusError, match="without a header: header=False"):
        folder.plan('"0","14","Mon","@x hi, there"\n"4","15","Tue","so, sad"\n', "c.csv")
    with pytest.raises(CorpusError, match=r"text_pair=\.$"):  # of keys a header is no question
        folder.plan('{"a": "x", "b": 1}\n', "c.jsonl")
    for first in ("Error code: 5 again", "@relationships, so sweet", "<body> of a text"):
        assert folder.read(f"{first}\nmore\n", "c.txt").texts == [first, "more"]
    for name in ("<<<<<<< HEAD", "id，text", "id\x01text", "id^text", "id::text"):
        with pytest.raises(CorpusError, match="which column is the text"):
            folder.plan(f"{name}\na\n", "c.csv")


def test_each_file_has_its_own_format(folder: Folder) -> None:
    paths = [
        folder.write("a\n", "1.txt"),
        folder.write('{"text": "b"}\n', "2.jsonl"),
        folder.write("text\nc\n", "3.csv"),
    ]
    got = read_corpus(paths)
    assert got.texts == ["a", "b", "c"]
    with pytest.raises(CorpusError, match=r"4\.tsv has the columns id, text, but .*1\.txt"):
        plan_files(*paths, folder.write("id\ttext\n", "4.tsv"))
    marked = folder.write("# text = a\n1\ta" + "\t_" * 8 + "\n\n", "5.conllu")
    with pytest.raises(CorpusError, match="only one of them marks words"):
        plan_files(paths[0], marked)


def test_a_header_in_the_middle_is_said(folder: Folder) -> None:
    got = folder.read("text,label\na,x\n\ufefftext,label\nb,y\n", "c.csv")
    assert "1 record equal to the header" in " ".join(got.reader.counts.notices)
