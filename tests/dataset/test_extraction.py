"""What a dataset holds: columns, rows, texts, vectors, and the counts that must add up."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embedkit
from embedkit.cli.data import _int8_lines
from embedkit.dataset import planning
from embedkit.encoding.words import word_spans
from embedkit.errors import CorpusError, OutputExistsError, UsageError
from tests.finetune_fixtures import write_lines
from tests.processes import invoke
from tests.run_fixtures import write_frame
from tests.store_fixtures import N_ACCEPTED, ROWS, manifest_of, run, tiny_model, tree, write_tsv

pytestmark = pytest.mark.usefixtures("quick")


def matrix(table: pa.Table, name: str) -> Any:
    return np.stack(table.column(name).to_numpy()).astype(np.float32)


def schema_of(folder: Path) -> pa.Schema:
    return pq.read_schema(next(folder.iterdir()))


def accepted(rows: Sequence[Sequence[str]] = ROWS) -> list[tuple[int, str]]:
    return [(i, r[1]) for i, r in enumerate(rows) if r[1].strip()]


# Columns


def test_pairs_have_a_second_text_and_segments(tmp_path: Path) -> None:
    pairs = ("the movie\twas good", "배를 타고\ta bus", "home\t")
    corpus = write_lines(tmp_path / "pairs.tsv", "a\tb", *pairs)
    result = run(corpus, tmp_path / "out", text="a", text_pair="b", tokens=True, words="mean")
    assert result.manifest.totals.rejected_by_reason == {"empty_text_pair": 1}
    names = pq.read_table(tmp_path / "out/sentences").column_names
    assert names[:4] == ["row", "id", "text", "text_pair"]
    tokens, words = (pq.read_table(tmp_path / "out" / n).to_pylist() for n in ("tokens", "words"))
    first = [t for t in tokens if t["row"] == 0]
    assert [t["token"] for t in first] == ["[CLS]", "the", "movie", "[SEP]", "was", "good", "[SEP]"]
    assert [t["segment"] for t in first] == [-1, 0, 0, -1, 1, 1, -1]
    texts = {(0, 0): "the movie", (0, 1): "was good", (1, 0): "배를 타고", (1, 1): "a bus"}
    expected = [(*key, word) for key, text in texts.items() for word in text.split()]
    assert [(w["row"], w["segment"], w["text"]) for w in words] == expected
    for w in words:
        assert texts[w["row"], w["segment"]][w["start"] : w["end"]] == w["text"]


def test_texts_can_be_left_out(corpus: Path, tmp_path: Path) -> None:
    run(corpus, tmp_path / "out", store_text=False, tokens=True, words="mean")
    for folder in ("sentences", "words", "tokens"):
        names = pq.read_table(tmp_path / "out" / folder).column_names
        assert not {"text", "token", "token_id"} & set(names)
    everything = b"".join(tree(tmp_path / "out").values())
    assert b"movie" not in everything
    assert "여행".encode() not in everything


@pytest.mark.parametrize("name", ["row", "mean_2"])
def test_a_kept_column_may_not_hide_one_of_embedkit(tmp_path: Path, name: str) -> None:
    corpus = write_lines(tmp_path / "corpus.tsv", f"document\t{name}", "the movie\tx")
    with pytest.raises(UsageError, match="keep"):
        run(corpus, tmp_path / "out", text="document", keep=[name])
    assert not list(tmp_path.glob("out*"))


def test_kept_columns_of_any_name_are_kept_with_their_nulls(tmp_path: Path) -> None:
    names = ["token", "a.b", "열 이름", 'quo"te', "word", "layer_1", "element"]
    rows = [{"text": "good", **dict.fromkeys(names, "x")}, {"text": "bad"}]
    corpus = write_lines(tmp_path / "corpus.jsonl", *map(json.dumps, rows))
    run(corpus, tmp_path / "out", keep=names, tokens=True, words="mean")
    table = pq.read_table(tmp_path / "out/sentences")
    for name in names:
        assert table.column(name).to_pylist() == ["x", None]


# Rows and texts


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\t\0"), max_size=30)


@settings(max_examples=25)
@given(
    st.lists(st.one_of(TEXT, st.sampled_from(["", " ", "the movie"])), min_size=1, max_size=13),
    st.fixed_dictionaries(
        {"min_chars": st.integers(0, 4)},
        optional={"limit": st.integers(1, 9), "sample": st.integers(1, 5)},
    ),
)
def test_every_record_is_counted_once(
    tmp_path_factory: pytest.TempPathFactory, cells: list[str], options: dict[str, int]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    corpus = write_tsv(folder / "corpus.tsv", [(f"{i:03}", c, "1") for i, c in enumerate(cells)])
    result = run(corpus, folder / "out", **options)
    totals = result.manifest.totals
    assert totals.records == len(cells)
    assert totals.accepted + totals.rejected + totals.left_out == len(cells)
    table = pq.read_table(folder / "out/sentences")
    rows = table.column("row").to_pylist()
    assert len(rows) == totals.accepted
    columns = [table.column(name).to_pylist() for name in ("id", "text", "label")]
    assert [*zip(*columns, strict=True)] == [(f"{r:03}", cells[r], "1") for r in rows]
    parts = sorted((folder / "out/sentences").iterdir())
    full, rest = divmod(len(rows), 3)
    sizes = [3] * full + [rest] * (rest > 0 or not rows)
    assert [pq.read_metadata(part).num_rows for part in parts] == sizes
    # rows are in order, and each reject is a row that is none of them
    assert embedkit.verify(folder / "out").ok


@pytest.mark.parametrize(
    "rows", [[("1", " ", "0")] * 7, [("1", "good", "0")] * 3 + [("2", "", "0")] * 3]
)
def test_rejects_at_every_edge(
    tmp_path: Path, rows: list[tuple[str, str, str]], notes: list[str]
) -> None:
    corpus = write_tsv(tmp_path / "corpus.tsv", rows)
    result = run(corpus, tmp_path / "out", tokens=True, words="first")
    kept = accepted(rows)
    assert len(result.manifest.files_of("sentences")) == max(-(-len(kept) // 3), 1)
    assert any("no record was accepted" in n for n in notes) == (not kept)
    data = embedkit.load(tmp_path / "out")
    assert data.X.shape == (len(kept), 16)
    assert data.ids.dtype.kind == data.labels.dtype.kind == "U"
    full = write_tsv(tmp_path / "full.tsv")
    run(full, tmp_path / "full", tokens=True, words="first")
    for folder in ("sentences", "words", "tokens"):
        assert schema_of(tmp_path / "out" / folder) == schema_of(tmp_path / "full" / folder)


# Vectors


def test_windows_by_default_overlap_by_a_quarter_and_are_of_longer_texts(tmp_path: Path) -> None:
    texts = [" ".join(["good"] * n) for n in range(10, 18)]
    corpus, windows = write_lines(tmp_path / "c.tsv", "text", *texts), {"on_long": "window"}
    made, same = (
        run(corpus, tmp_path / f"{len(stride)}", max_length=16, **windows, **stride).manifest
        for stride in ({}, {"stride": 4})
    )
    assert made.fingerprint == same.fingerprint
    lengths = np.array(embedkit.load(tmp_path / "0").column("n_tokens"))
    assert 16 in lengths
    assert made.totals.ledger["records_longer_than_limit"] == (lengths > 16).sum()


@pytest.mark.parametrize("numbers", [4_000, 20_000])
def test_a_shard_has_as_many_rows_as_its_bytes_allow(numbers: int) -> None:
    def rows(count: int, storage: str) -> int:
        about: Any = {"token_layers": {}, "tokens": False, "words": None}
        settings: Any = SimpleNamespace(views={"v": count}, **about)
        return planning._shard_rows(settings, storage)

    assert rows(2 * numbers, "float16") == rows(numbers, "float32") == rows(numbers, "compact")
    assert rows(40_000, "float32") < rows(20_000, "float32")


def test_windows_keep_every_token(corpus: Path, tmp_path: Path) -> None:
    cut = run(corpus, tmp_path / "cut").manifest.totals.ledger
    whole = run(corpus, tmp_path / "whole", on_long="window").manifest.totals.ledger
    assert cut["tokens"] == whole["tokens"] == whole["tokens_kept"]
    assert cut["tokens_cut"] == cut["tokens"] - cut["tokens_kept"] > 0
    assert (cut["records_truncated"], whole["records_truncated"]) == (1, 0)
    assert whole["windows"] > cut["windows"] == N_ACCEPTED
    table = pq.read_table(tmp_path / "cut/sentences")
    assert table.column("truncated").to_pylist().count(True) == 1
    assert table.column("n_tokens").to_numpy().sum() == cut["tokens"]
    assert table.column("n_kept").to_numpy().sum() == cut["tokens_kept"]


@pytest.mark.parametrize("subtokens", ["first", "last", "first_last", "mean"])
def test_words(corpus: Path, tmp_path: Path, subtokens: str) -> None:
    run(corpus, tmp_path / "out", words=subtokens, tokens=True, on_long="window")
    words, tokens = pq.read_table(tmp_path / "out/words"), pq.read_table(tmp_path / "out/tokens")
    vectors, of_tokens = matrix(words, "layer_2"), matrix(tokens, "layer_2")
    row, word = (tokens.column(n).to_numpy() for n in ("row", "word"))
    expected = [
        (number, index, *span, text[slice(*span)])
        for number, text in accepted()
        for index, span in enumerate(word_spans(text).tolist())
    ]
    names = ("row", "word", "start", "end", "text")
    found = list(zip(*(words.column(n).to_pylist() for n in names), strict=True))
    assert found == expected
    assert [w[4] for w in expected] == [w for _, text in accepted() for w in text.split()]
    choose = {
        "first": lambda v: v[0],
        "last": lambda v: v[-1],
        "first_last": lambda v: (v[0] + v[-1]) / 2,
        "mean": lambda v: v.mean(axis=0),
    }[subtokens]
    for i, (number, index, *_) in enumerate(found):
        own = of_tokens[(row == number) & (word == index)]
        assert len(own) == words.column("n_tokens")[i].as_py()
        np.testing.assert_allclose(vectors[i], choose(own), rtol=1e-5, atol=1e-5)


SPANS = pd.DataFrame(
    [("017", 5, 9), ("008", 3, 5), ("017", 0, 1), ("011", 4, 5)], columns=["id", "start", "end"]
)
"""Of three records, in no order."""


@pytest.mark.parametrize("suffix", ["", "csv", "tsv", "jsonl", "parquet"])
def test_a_table_of_spans_is_a_column_of_lists(corpus: Path, tmp_path: Path, suffix: str) -> None:
    """The same cells and vectors, whatever holds the table; another table is another job."""
    rows = SPANS.sort_values(["id", "start"]).groupby("id")[["start", "end"]]
    lists = rows.apply(lambda spans: spans.to_numpy().tolist())
    joined = pd.read_csv(corpus, sep="\t", dtype=str, keep_default_na=False)
    joined["spans"] = joined["id"].map(lists)
    table: Any = write_frame(SPANS, tmp_path / f"spans.{suffix}") if suffix else SPANS
    a = run(joined, tmp_path / "a", spans="spans").out
    if suffix == "csv":
        b, model = tmp_path / "b", str(tiny_model())
        done = invoke("extract", corpus, "--spans", table, "--model", model, "--out", b)
        assert "\n  spans    4\n" in done.output
    else:
        b = run(corpus, tmp_path / "b", spans=table).out
    for folder in ("sentences", "words"):
        assert pq.read_table(a / folder).equals(pq.read_table(b / folder))
    assert embedkit.load(b, level="word").text == ["타고", "먹", "i", "home"]
    with pytest.raises(OutputExistsError, match="sha256"):
        run(corpus, tmp_path / "b", spans=SPANS[1:])


UNFIT = {
    "no record has 2 ids of its spans, such as '11'": SPANS.assign(id=["017", "8", "017", "11"]),
    "it has id, start, and no rows": SPANS.drop(columns="end"),
    r"it has id, start, end, and \('017', '5', 'x'\)": SPANS.assign(end="x"),
    "it has id, start, end, and no rows": SPANS[:0],
    r"and \(None, ": SPANS.assign(id=[*SPANS["id"][:3], None]),
}


@pytest.mark.parametrize("problem", UNFIT)
def test_tables_that_do_not_fit_are_refused(corpus: Path, tmp_path: Path, problem: str) -> None:
    with pytest.raises(CorpusError, match=f"<DataFrame>: .*{problem}"):
        run(corpus, tmp_path / "out", spans=UNFIT[problem])
    assert not (tmp_path / "out").exists()


def test_spans_of_a_row_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_text("id\ttext\n1\tabc def\n2\tghi\tjkl\n3\txyz\n")
    spans = pd.DataFrame({"id": ["1", "2", "3"], "start": 0, "end": 3})
    assert run(tmp_path / "c.tsv", tmp_path / "out", spans=spans).manifest.totals.rejected == 1
    cut = gzip.compress(spans.to_csv(sep="\t", index=False).encode())[:-9]
    (tmp_path / "s.tsv.gz").write_bytes(cut)
    with pytest.raises(CorpusError, match=r"s\.tsv\.gz cannot be read"):
        run(tmp_path / "c.tsv", tmp_path / "none", spans=tmp_path / "s.tsv.gz")


# Storage


@pytest.mark.parametrize("storage", ["float16", "compact"])
def test_half_precision_is_the_rounded_float32(corpus: Path, tmp_path: Path, storage: str) -> None:
    exact = run(corpus, tmp_path / "exact", tokens=True, words="mean").out
    half = run(corpus, tmp_path / "half", tokens=True, words="mean", storage=storage).out
    for folder, name in (("sentences", "mean_2"), ("tokens", "layer_2"), ("words", "layer_2")):
        element = schema_of(half / folder).field(name).type.value_type
        assert element == (pa.float16() if storage == "float16" else pa.float32())
        rounded = matrix(pq.read_table(exact / folder), name).astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(matrix(pq.read_table(half / folder), name), rounded)
    X = embedkit.load(half).X
    assert X.dtype == np.float32
    np.testing.assert_array_equal(X, embedkit.load(exact).X.astype(np.float16))


def test_int8_is_scaled_by_shard_and_says_what_it_costs(corpus: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"tokens": True, "words": "mean", "shard_rows": 6}
    exact = run(corpus, tmp_path / "exact", **given).out
    result = run(corpus, tmp_path / "small", storage="int8", **given)
    for folder, name in (("sentences", "mean_2"), ("tokens", "layer_2"), ("words", "layer_2")):
        parts = []
        for part in sorted((exact / folder).glob("*.parquet")):
            values = matrix(pq.read_table(part), name)
            small = pq.read_table(result.out / folder / part.name)
            scale = np.array(json.loads(small.schema.field(name).metadata[b"embedkit.scale"]))
            np.testing.assert_allclose(scale * 127, np.abs(values).max(0), rtol=1e-5)
            parts.append(matrix(small, name) * scale)
            assert (np.abs(parts[-1] - values) <= scale * 0.501).all()
        level, view = folder.removesuffix("s"), name.removeprefix("layer_")
        data = embedkit.load(result.out, view, level=level)  # type: ignore[arg-type]
        assert data.X.dtype == np.float32
        np.testing.assert_allclose(data.X, np.concatenate(parts), rtol=1e-5)
    files = result.out / "sentences/*.parquet"
    kinds = duckdb.execute(f"select typeof(mean_2), len(mean_2) from '{files}'").fetchall()
    assert set(kinds) == {("TINYINT[]", 16)}
    ledger = result.manifest.totals.ledger
    said = invoke("info", result.out).output
    totals = replace(result.manifest.totals, ledger={"neighbours": 200, "neighbours_int8": 150})
    (line,) = _int8_lines(replace(result.manifest, totals=totals), 8)
    assert " 75.0 % of the 10 nearest" in line
    unknown = ledger["tokens_unknown"]
    assert f" ({100 * unknown / ledger['tokens_kept']:.1f} %)\n" in said or not unknown
    assert embedkit.verify(result.out, recompute=20, device="cpu").ok


# Inputs and names


def test_a_corpus_whose_name_is_not_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As names are that were packed on a Korean Windows and unpacked elsewhere."""
    monkeypatch.chdir(tmp_path)
    corpus = write_tsv(tmp_path / os.fsdecode("영화.tsv".encode("cp949")))
    out = run(corpus, tmp_path / "out").out
    assert manifest_of(out)["names"]["inputs"] == [str(corpus)]
    rejects = (out / "_embedkit/rejects.jsonl").read_text("utf-8").splitlines()
    assert {json.loads(line)["file"] for line in rejects} == {str(corpus)}
    assert embedkit.verify(out).ok
    with pytest.raises(UsageError, match="out="):
        embedkit.extract(corpus, model=str(tiny_model()))
    assert not list(tmp_path.glob("*.vectors*"))


def test_standard_input(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(corpus.read_bytes())))
    run("-", tmp_path / "out", format="tsv")
    assert manifest_of(tmp_path / "out")["names"]["inputs"] == ["-"]
    run(corpus, tmp_path / "file")
    first, second = (embedkit.load(tmp_path / name).X.tobytes() for name in ("out", "file"))
    assert first == second
    with pytest.raises(UsageError, match="out="):
        embedkit.extract("-")
    with pytest.raises(UsageError, match="standard input"):
        run([Path("-"), Path("-")], tmp_path / "twice")


def test_where_the_output_goes(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    packed = tmp_path / "sub" / "talks.v1.tsv.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(corpus.read_bytes()))
    assert embedkit.extract(packed, model=str(tiny_model())).out == Path("talks.v1.vectors")
    run(corpus, tmp_path / "new" / "folders" / "out")
    assert (tmp_path / "new/folders/out/sentences").is_dir()


def test_a_record_without_a_label_has_an_empty_one(tmp_path: Path) -> None:
    records = [{"text": "a", "label": "1"}, {"text": "bus", "label": None}]
    data = embedkit.load(run(records, tmp_path / "out").out)
    assert data.labels.tolist() == ["1", ""]
    np.testing.assert_equal([batch["y"] for batch in data.iter_batches()], [np.array([1, np.nan])])
    assert data.column("label") == ["1", None]
