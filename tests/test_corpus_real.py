"""Real corpora with their known traps; skipped unless EMBEDKIT_TEST_CORPORA names them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.corpus_fixtures import read_files

pytestmark = pytest.mark.corpora


def _cells(path: Path) -> list[list[bytes]]:
    """Every line after the header, split without any reader."""
    lines = path.read_bytes().removesuffix(b"\n").split(b"\n")[1:]
    return [line.removesuffix(b"\r").split(b"\t") for line in lines]


@pytest.mark.parametrize(
    ("name", "empty", "quotes"),
    [
        ("nsmc/ratings_test.txt", [5748, 7901, 27099], 233),
        ("nsmc/ratings_train.txt", [25859, 55739, 110016, 126784, 140723], 623),
    ],
)
def test_nsmc(corpus_file: Callable[[str], Path], name: str, empty: list[int], quotes: int) -> None:
    path = corpus_file(name)
    got = read_files(path)
    plan = got.reader.plan
    assert (plan.text, plan.id, plan.label) == ("document", "id", "label")
    assert got.reasons == [(line, "empty_text") for line in empty]
    cells = _cells(path)
    assert got.reader.counts.records == len(cells)
    kept = [row for line, row in enumerate(cells, 2) if line not in empty]
    read = [[(r.id).encode(), r.text.encode(), str(r.label).encode()] for r in got.records]
    assert read == kept
    assert got.reader.counts.fields_with_quotes == quotes


def test_nsmc_offsets_and_rows(corpus_file: Callable[[str], Path]) -> None:
    path = corpus_file("nsmc/ratings_test.txt")
    got = read_files(path)
    assert (got.reader.counts.records, len(got.records)) == (50_000, 49_997)
    data = path.read_bytes()
    for record in got.records[::97]:
        assert record.line == record.row + 2
        assert record.offset is not None
        end = data.index(b"\n", record.offset)
        assert data[record.offset : end].decode() == f"{record.id}\t{record.text}\t{record.label}"


def test_stsb_is_csv_quoted(corpus_file: Callable[[str], Path]) -> None:
    path = corpus_file("stsb_en/test.tsv")
    options = {"text": "sentence1", "text_pair": "sentence2", "label": "score"}
    plain = read_files(path, **options)
    quoted = read_files(path, quoting="csv", **options)
    assert len(plain.records) == len(quoted.records) == 1_379
    assert plain.reader.counts.quote_notice.endswith("use quoting='csv'")
    differing = 0
    for literal, read in zip(plain.records, quoted.records, strict=True):
        assert (literal.line, literal.label) == (read.line, read.label)
        for raw, text in ((literal.text, read.text), (literal.text_pair, read.text_pair)):
            assert raw is not None
            wrapped = raw.startswith('"') and raw.endswith('"')
            assert text == (raw[1:-1].replace('""', '"') if wrapped else raw)
            differing += raw != text
    assert differing == plain.reader.counts.fields_csv_quoted > 0


@pytest.mark.parametrize(("name", "rows"), [("train", 3318), ("dev", 610), ("test", 1260)])
@pytest.mark.parametrize("quoting", ["none", "csv"])
def test_kobest_has_carriage_returns(
    corpus_file: Callable[[str], Path], name: str, rows: int, quoting: str
) -> None:
    path = corpus_file(f"kobest_wic/{name}.tsv")
    assert path.read_bytes().count(b"\r\n") == path.read_bytes().count(b"\n")
    got = read_files(path, text="SENTENCE1", label="ANSWER", quoting=quoting)
    assert {str(r.label).lower() for r in got.records} == {"true", "false"}
    assert len(got.records) + len(got.rejects) == rows
    if quoting == "none":
        assert [r.text.encode() for r in got.records] == [row[2] for row in _cells(path)]


@pytest.mark.parametrize(("name", "rows"), [("train", 5749), ("dev", 1500), ("test", 1379)])
def test_korsts(corpus_file: Callable[[str], Path], name: str, rows: int) -> None:
    path = corpus_file(f"korsts/sts-{name}.tsv")
    got = read_files(path, text="sentence1", text_pair="sentence2", label="score", keep=["year"])
    read = [
        [str(cell).encode() for cell in (*r.kept, r.id, r.label, r.text, r.text_pair)]
        for r in got.records
    ]
    assert read == [row[2:] for row in _cells(path)]
    assert (len(read), got.rejects) == (rows, [])


@pytest.mark.parametrize("name", ["dev", "test"])
def test_korsts_ends_without_a_newline(corpus_file: Callable[[str], Path], name: str) -> None:
    path = corpus_file(f"korsts/sts-{name}.tsv")
    assert not path.read_bytes().endswith(b"\n")
    last = read_files(path, text="sentence1", label="sentence2").records[-1]
    assert str(last.label).encode() == _cells(path)[-1][-1]


def test_two_real_files_are_one_corpus(corpus_file: Callable[[str], Path]) -> None:
    names = ("korsts/sts-test.tsv", "korsts/sts-dev.tsv")  # the first has no final newline
    got = read_files(*map(corpus_file, names), text="sentence1")
    assert len(got.records) == 1_379 + 1_500
    assert [r.row for r in got.records] == list(range(2_879))
