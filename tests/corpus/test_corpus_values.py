"""One value has one text, whatever held it: seven containers give the same records and datasets.

But for a missing value: in a table of texts it is an empty cell, which is an empty label or kept
text, and elsewhere a null, which is none.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import itertools
import json
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedkit.corpus.conllu import Words
from embedkit.corpus.memory import CorpusLike
from embedkit.corpus.values import is_missing, list_of, plain, text_of
from embedkit.errors import CorpusError
from tests.corpus_fixtures import Folder, read_corpus
from tests.run_fixtures import write_frame

Rows = Sequence[Mapping[str, Any]]


def written(value: Any) -> str:
    """The cell of a table of texts for a value: what a person would type."""
    if value is None:
        return ""
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _csv(rows: Rows, folder: Path) -> Path:
    cells = [[written(value) for value in row.values()] for row in rows]
    return write_frame(pd.DataFrame(cells, columns=[*rows[0]]), folder / "corpus.csv")


def _json(rows: Rows, folder: Path, *, lines: bool = False) -> Path:
    path = folder / ("corpus.jsonl" if lines else "corpus.json")
    each = [json.dumps(row, default=str) for row in rows]
    path.write_text("\n".join(each) if lines else f"[{', '.join(each)}]", "utf-8")
    return path


def _workbook(rows: Rows, folder: Path) -> Path:
    cells = [[written(v) if isinstance(v, list) else v for v in row.values()] for row in rows]
    frame = pd.DataFrame(cells, columns=[*rows[0]], dtype=object)
    frame.to_excel(folder / "corpus.xlsx", index=False)
    return folder / "corpus.xlsx"


def _parquet(rows: Rows, folder: Path) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / "corpus.parquet")
    return folder / "corpus.parquet"


def _dataset(rows: Rows, _folder: Path) -> Any:
    from datasets import Dataset

    return Dataset.from_list(list(rows))


CONTAINERS: Mapping[str, Callable[[Rows, Path], CorpusLike]] = {
    "CSV": _csv,
    "JSON Lines": lambda rows, folder: _json(rows, folder, lines=True),
    "JSON": _json,
    "Parquet": _parquet,
    "workbook": _workbook,
    "DataFrame": lambda rows, _folder: pd.DataFrame(list(rows)),
    "Dataset": _dataset,
    "list": lambda rows, _folder: list(rows),
}
"""One more than seven: records in Python."""

WORDS = st.text("aé배'\",; |[]{}nN", min_size=1, max_size=8).map(str.strip).filter(bool)
VALUES: Sequence[st.SearchStrategy[Any]] = (
    st.integers(-(2**50), 2**50),
    st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: round(x, 3)),
    st.integers(-50, 50).map(float),
    st.booleans(),
    st.dates(datetime.date(1950, 1, 1), datetime.date(2050, 1, 1)),
    st.sampled_from(["nan", "NA", "None", "null", "007", "1.0", "true", "TRUE", "-"]) | WORDS,
    st.lists(st.sampled_from(["x", "a|b", "y, z", "배"]), max_size=3),
)


@st.composite
def tables(draw: Any) -> list[dict[str, Any]]:
    """Five rows with a text; in each other column values of one type, of which some are missing."""
    texts = draw(st.lists(WORDS, min_size=5, max_size=5))
    columns: dict[str, list[Any]] = {"text": texts}
    for name in ("id", "label", "group"):
        value = draw(st.sampled_from(VALUES[:-1] if name == "id" else VALUES))
        columns[name] = draw(st.lists(value | st.none(), min_size=5, max_size=5))
    columns["start"] = draw(st.lists(st.integers(0, 1) | st.none(), min_size=5, max_size=5))
    columns["end"] = [None if start is None else len(texts[0]) for start in columns["start"]]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def records_of(corpus: CorpusLike, **options: Any) -> list[Any]:
    """What a dataset holds of each record, or why it is rejected."""
    outcome = read_corpus(corpus, **options)
    rejects = [(reject.row, reject.reason) for reject in outcome.rejects]
    records = [(r.row, r.id, r.text, r.label, r.kept, r.words) for r in outcome.records]
    return sorted([*records, *rejects], key=itemgetter(0))


@settings(max_examples=25)
@given(tables(), st.booleans())
def test_the_same_rows_are_the_same_records(rows: list[dict[str, Any]], spans: bool) -> None:
    options: dict[str, Any] = {"keep": ["group", "start"], "label": "label", "id": "id"}
    if spans:
        options["spans"] = ["start", "end"]
    with tempfile.TemporaryDirectory() as folder:
        read = {
            name: records_of(make(rows, Path(folder)), **options)
            for name, make in CONTAINERS.items()
        }
    for number, row in enumerate(rows):
        label, kept = (written(row[name]) for name in ("label", "group"))
        for name, records in read.items():
            if len(records[number]) == 2:  # the span lies outside of the text, or there is none
                assert spans
                assert records[number] == read["list"][number], name
                continue
            _, key, text, its_label, its_kept, words = records[number]
            assert (key, text) == (written(row["id"]) or f"row {number}", row["text"]), name
            assert ((its_label or ""), (its_kept[0] or "")) == (label, kept), name
            assert words == read["list"][number][5], name
            # a table of texts has no null
            assert (its_label is None) == (row["label"] is None and name != "CSV"), name


ONE_TEXT: list[tuple[Any, str]] = [
    (np.float32(3.8), "3.8"),
    (enum.Enum("Kind", {"FIRST": "good"}, type=str).FIRST, "good"),  # type: ignore[attr-defined]
    (-0.0, "0"),
    (np.bool_(True), "True"),
    (float("inf"), "inf"),
    (1e300, "1e+300"),
    (pd.Timestamp("2020-01-02"), "2020-01-02"),
    (datetime.datetime(2020, 1, 2, 3, 4), "2020-01-02 03:04:00"),
    (np.datetime64("20000-01-02"), "20000-01-02"),
    (decimal.Decimal("1.50"), "1.5"),
    (decimal.Decimal("1E+2"), "100"),
    (123456789012345680.0, "123456789012345680"),
    (pd.Timestamp("2020-01-02 00:00:00.000000001"), "2020-01-02 00:00:00.000000001"),
    (np.timedelta64(61, "s"), "0:01:01"),
    (pd.Timedelta("1 day 1s"), "1 day, 0:00:01"),
    ({"a": [1.0, pd.NaT, "b"], "c": np.array([0.5])}, '{"a": [1, null, "b"], "c": [0.5]}'),
]


@pytest.mark.parametrize(("value", "text"), ONE_TEXT)
def test_one_value_has_one_text(value: Any, text: str) -> None:
    """Also by the way over JSON, which objects in Python take."""
    assert str(text_of(value)) == text
    (record,) = records_of([{"text": "a", "label": value}], label="label")
    assert record[3] == text


@pytest.mark.parametrize(
    "value", [None, float("nan"), np.float32("nan"), pd.NaT, pd.NA, np.datetime64("NaT")], ids=repr
)
def test_missing_values_of_every_library(value: Any) -> None:
    assert is_missing(value)
    assert is_missing(np.ma.masked)
    assert is_missing(decimal.Decimal("sNaN"))  # which cannot be compared
    assert text_of(value) is plain(value) is None
    rows = [{"text": "a", "label": value, "deep": {"of": [value]}}, {"text": value}]
    assert records_of(rows, keep=["deep"]) == [
        (0, "0", "a", None, ('{"of": [null]}',), None),
        (1, "null_text"),
    ]


def test_lists_are_read_in_every_spelling() -> None:
    assert list_of('["a|b", 2.0, true, null]\n') == ["a|b", "2", "True", None]
    assert list_of('["np.zeros(3)", "array(i)"]') == ["np.zeros(3)", "array(i)"]
    deep = "[" * 100_000 + "]" * 100_000, "[' ', " + "-" * 100_000 + "1]"
    for text in ("[NP]", "[1", "x", "", "[{[]: 1}]", *deep):
        assert list_of(text) is None


def test_columns_of_frames(folder: Folder) -> None:
    """A named index is a column; intervals have a text; what has none is named with its type."""
    index = pd.Index(["x", "y"], name="id")
    frame = pd.DataFrame({"text": ["a", "b"], "raw": [b"1", b"2"], "set": [{"q", "p"}] * 2}, index)
    frame["bin"] = pd.cut([1, 9], 2)
    got = records_of(frame, label="bin", keep=["set"])
    about = [(record[1], record[3]) for record in got]
    assert about == [("x", "(0.992, 5.0]"), ("y", "(5.0, 9.0]")]
    assert got[0][4] == ('["p", "q"]',)
    with pytest.raises(ValueError, match=r"<DataFrame>: .*column 'raw' is binary"):
        records_of(frame, label="raw")
    assert [r[2] for r in records_of(pd.DataFrame([["a", 1], ["b", 2]]), text=0)] == ["a", "b"]
    with pytest.raises(ValueError, match="label"):
        records_of(pd.DataFrame([["a", 1, 2]], columns=["text", "label", "label"]))


def test_uuids_are_ids_labels_and_columns(tmp_path: Path) -> None:
    """Of a type of Arrow that stores bytes, also inside of lists."""
    key = uuid.UUID(int=5)
    column = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([key.bytes, None], pa.binary(16)))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), column)
    table = pa.table({"text": ["a", "b"], "key": column, "keys": lists})
    pq.write_table(table, tmp_path / "c.parquet")
    for corpus in (table, tmp_path / "c.parquet", table.to_pandas(types_mapper=pd.ArrowDtype)):
        found = [row[1:5] for row in records_of(corpus, id="key", label="key", keep=["keys"])]
        assert found[0] == (str(key), "a", str(key), (f'["{key}"]',))
        assert found[1] == ("row 1", "b", None, ("[null]",))


TOKENS = [
    {"tokens": ["EU", "rejects", "U. S."], "tags": [3, None, 0]},
    {"tokens": ["배"], "tags": [7]},
    # characters, as in KLUE
    {"tokens": ["런", "던", " ", "3"], "tags": [1, 2, 0, 4]},
]


@pytest.mark.parametrize("name", ["JSON Lines", "JSON", "Parquet", "DataFrame", "Dataset", "list"])
def test_lists_of_words_with_labels(name: str, tmp_path: Path) -> None:
    first, second, characters = records_of(CONTAINERS[name](TOKENS, tmp_path), word_label="tags")
    assert (first[2], second[2], characters[2]) == ("EU rejects U. S.", "배", "런던 3")
    assert first[5].spans == ((0, 2), (3, 10), (11, 16))
    assert first[5].labels == ("3", None, "0")
    assert characters[5] == Words(((0, 1), (1, 2), (3, 4)), ("1", "2", "4"))
    bad: Rows = [{"tokens": ["an", " "]}, {"tokens": []}, {"tokens": None}, *TOKENS]
    reasons = [record[1] for record in records_of(CONTAINERS[name](bad, tmp_path)) if record[0] < 3]
    assert reasons == ["empty_text", "empty_text", "null_text"]
    numbers: Rows = [{"tokens": [101, 2]}, {"tokens": [3]}]  # of tokens: no text
    assert {r[1] for r in records_of(CONTAINERS[name](numbers, tmp_path))} == {"text_not_string"}


def test_columns_of_conll(folder: Folder) -> None:
    data = """-DOCSTART- -X- -X- O\n
# id 7 domain=en\nE\xa0U NNP B-NP B-ORG\nrejects VBZ B-VP O\n
# a comment\n# NN I-NP O\n. . O O\n
-DOCSTART- -X- -X- O\nUK NNP B-NP B-LOC\n
one word\n"""
    for name in ("eng.train", "train.txt", "c.conll"):
        got: Any = folder.read(data, name, word_label="ner")
        assert got.texts == ["E\xa0U rejects", "# .", "UK"]
        labels = [record.words.labels for record in got.records if record.words]
        assert labels == [("B-ORG", "O"), ("O", "O"), ("B-LOC",)]
        assert got.records[1].words.spans == ((0, 1), (2, 3))
        assert got.reasons == [(14, "wrong_columns")]
    about = "## klue-ner-v1_0\t<New York:LC>\n"
    tabs = folder.read(f"{about}New York\tB-LOC\n.\tO\n", "c.tsv", word_label="label")
    assert tabs.texts == ["New York ."]
    assert tabs.records[0].words == Words(((0, 8), (9, 10)), ("B-LOC", "O"))
    characters = "런\tB-LOC\n던\tI-LOC\n \tO\n또\tO\n\n영\tO\n화\tO\n"
    korean = folder.read(about + characters, "c.tsv", word_label="label")
    assert korean.texts == ["런던 또", "영화"]
    apart = folder.read(normalize("NFD", characters), "c.tsv", word_label="label")
    assert [normalize("NFC", text) for text in apart.texts] == korean.texts
    assert folder.read("東\tO\nﾊﾞ\tO\n❤️\tO\n", "c.tsv", word_label="label").texts == ["東ﾊﾞ❤️"]
    spans = ((0, 1), (1, 2), (3, 4))
    assert korean.records[0].words == Words(spans, ("B-LOC", "I-LOC", "O"))
    for name in ("c.txt", "c"):
        told = folder.read("# id 0  \n\nEU B-ORG\n. O\n", name)
        assert told.texts == ["EU ."]
    headed = folder.read("token\tlabel\nEU\tB-ORG\n.\tO\n", "c.conll", word_label="label")
    assert headed.texts == ["EU ."]
    german = folder.read("1\tEU\tB-ORG\tO\n2\tor\tO\tB-X\n", "c.conll", word_label="3")
    assert german.records[0].words == Words(((0, 2), (3, 5)), ("O", "B-X"))
    with pytest.raises(CorpusError, match="first column has the labels"):
        folder.plan("O\twhat\nB-LOC\tUK\n", "c.bio")
    for lines in ("EU B-ORG\n\nUK B-LOC\n\n\n", "1\tEU\tB-ORG\n2\tor\tO\n\n1\tUK\tB-LOC\n"):
        single = folder.read(lines, "c.txt", word_label="label")
        assert [text[:2] for text in single.texts] == ["EU", "UK"]
    texts = folder.read("A fine day\tO\nRain again\tO\n", "c.tsv", header=False, text="0").texts
    assert texts == ["A fine day", "Rain again"]
    with pytest.raises(CorpusError, match=r"c\.conll has no columns of words"):
        folder.plan("EU\nrejects\n", "c.conll")


def test_ids_do_not_collide(folder: Folder) -> None:
    got = folder.read("id,text\n1,a\n,b\n1,c\n", "c.csv")
    assert [record.id for record in got.records] == ["1", "row 1", "1"]
    notices = " ".join(got.reader.counts.notices)
    assert "1 record with an earlier id" in notices
    assert "1 record without an id" in notices


def test_a_set_has_one_order() -> None:
    """Whatever order a process has it in, and of what it is."""
    for items in ({"b", "a", "c"}, {1, "a", None}, {(2, "x"), (1, "y")}):
        texts = {text_of(set(order)) for order in itertools.permutations(items)}
        assert texts == {text_of(items)}
        assert text_of(plain(items)) == text_of(items)
