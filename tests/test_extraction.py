"""What a dataset holds: columns, rows, texts, vectors, and the counts that must add up."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embedkit
from embedkit.dataset.planning import ExtractSettings, plan_extract
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.word_index import word_spans
from embedkit.errors import CorpusError, DamagedError, EncodeError, ModelError, UsageError
from embedkit.types import Progress
from tests.store_fixtures import (
    N_ACCEPTED,
    ROWS,
    load_quickly,
    manifest_of,
    quick,  # noqa: F401 - a fixture
    run,
    tiny_model,
    tree,
    write_tsv,
)

pytestmark = pytest.mark.usefixtures("quick")

FLOAT_VECTOR = pa.list_(pa.field("element", pa.float32(), nullable=False), 16)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_tsv(tmp_path / "corpus.tsv")


def encoder() -> Encoder:
    return load_quickly(str(tiny_model()))


def table_of(out: Path, folder: str = "sentences") -> pa.Table:
    parts = sorted((out / folder).iterdir())
    return pa.concat_tables([pq.ParquetFile(p).read() for p in parts])


def matrix(table: pa.Table, name: str) -> Any:
    width = table.schema.field(name).type.list_size
    flat = table.column(name).combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat, np.float32).reshape(-1, width)


def accepted(rows: Sequence[Sequence[str]] = ROWS) -> list[tuple[int, str]]:
    return [(i, r[1]) for i, r in enumerate(rows) if r[1].strip()]


# Columns


def fields(out: Path, folder: str = "sentences") -> list[tuple[str, pa.DataType, bool]]:
    schema = pq.read_schema(next((out / folder).iterdir()))
    return [(f.name, f.type, f.nullable) for f in schema]


SCALARS = [("n_tokens", pa.int32(), False), ("n_kept", pa.int32(), False),
           ("truncated", pa.bool_(), False), ("text_key", pa.int64(), False)]  # fmt: skip


def test_sentence_columns(corpus: Path, tmp_path: Path) -> None:
    run(corpus, tmp_path / "out", layers="0,sum:1..2", pooling=["mean", "cls", "pooler"],
        keep=["document"])  # fmt: skip
    assert fields(tmp_path / "out") == [
        ("row", pa.int64(), False), ("id", pa.string(), False), ("text", pa.string(), False),
        ("label", pa.string(), True), ("document", pa.string(), True), *SCALARS,
        *((name, FLOAT_VECTOR, False) for name in
          ("mean_0", "cls_0", "mean_sum_1to2", "cls_sum_1to2", "pooler")),
    ]  # fmt: skip


def test_token_and_word_columns(corpus: Path, tmp_path: Path) -> None:
    run(corpus, tmp_path / "out", layers="1,concat:1..2", tokens=True, words="mean")
    wide = pa.list_(pa.field("element", pa.float32(), nullable=False), 32)
    vectors = [("layer_1", FLOAT_VECTOR, False), ("layer_concat_1to2", wide, False)]
    assert fields(tmp_path / "out", "tokens") == [
        ("row", pa.int64(), False), ("pos", pa.int32(), False), ("token_id", pa.int32(), False),
        ("token", pa.string(), False), ("start", pa.int32(), False), ("end", pa.int32(), False),
        ("word", pa.int32(), False), ("special", pa.bool_(), False), *vectors,
    ]  # fmt: skip
    assert fields(tmp_path / "out", "words") == [
        ("row", pa.int64(), False), ("word", pa.int32(), False), ("text", pa.string(), True),
        ("start", pa.int32(), False), ("end", pa.int32(), False),
        ("n_tokens", pa.int32(), False), *vectors,
    ] or fields(tmp_path / "out", "words")[2] == ("text", pa.string(), False)  # fmt: skip


def test_pairs_have_a_second_text_and_segments(tmp_path: Path) -> None:
    corpus = tmp_path / "pairs.tsv"
    corpus.write_text("a\tb\nthe movie\twas good\n배를 타고\ta bus\nhome\t\n", "utf-8")
    result = run(corpus, tmp_path / "out", text="a", text_pair="b", tokens=True, words="mean")
    assert result.manifest.totals.rejected_by_reason == {"empty_text_pair": 1}
    assert [f[0] for f in fields(tmp_path / "out")][:4] == ["row", "id", "text", "text_pair"]
    tokens, words = (table_of(tmp_path / "out", n).to_pylist() for n in ("tokens", "words"))
    first = [t for t in tokens if t["row"] == 0]
    assert [t["token"] for t in first] == [
        "[CLS]", "the", "movie", "[SEP]", "was", "good", "[SEP]",
    ]  # fmt: skip
    assert [t["segment"] for t in first] == [-1, 0, 0, -1, 1, 1, -1]
    pairs = [("the movie", "was good"), ("배를 타고", "a bus")]
    texts = {(r, s): text for r, pair in enumerate(pairs) for s, text in enumerate(pair)}
    assert [(w["row"], w["segment"], w["text"]) for w in words] == [
        (0, 0, "the"), (0, 0, "movie"), (0, 1, "was"), (0, 1, "good"),
        (1, 0, "배를"), (1, 0, "타고"), (1, 1, "a"), (1, 1, "bus"),
    ]  # fmt: skip
    for w in words:
        assert texts[w["row"], w["segment"]][w["start"] : w["end"]] == w["text"]


def test_texts_can_be_left_out(corpus: Path, tmp_path: Path) -> None:
    run(corpus, tmp_path / "out", store_text=False, tokens=True, words="mean")
    for folder in ("sentences", "words", "tokens"):
        names = [f[0] for f in fields(tmp_path / "out", folder)]
        assert not {"text", "token", "token_id"} & set(names)
    everything = b"".join(tree(tmp_path / "out").values())
    assert b"movie" not in everything
    assert "여행".encode() not in everything


@pytest.mark.parametrize("name", ["row", "text", "mean_2", "n_kept"])
def test_a_kept_column_may_not_hide_one_of_embedkit(tmp_path: Path, name: str) -> None:
    corpus = tmp_path / "corpus.tsv"
    corpus.write_text(f"document\t{name}\nthe movie\tx\n", "utf-8")
    with pytest.raises(UsageError, match=f"keep='{name}': embedkit writes a column of this name"):
        run(corpus, tmp_path / "out", text="document", keep=[name])
    assert not list(tmp_path.glob("out*"))


def test_kept_columns_of_any_name_are_kept_with_their_nulls(tmp_path: Path) -> None:
    names = ["token", "a.b", "열 이름", 'quo"te', "word", "layer_1", "element"]
    corpus = tmp_path / "corpus.jsonl"
    rows = [{"text": "good", **dict.fromkeys(names, "x")}, {"text": "bad"}]
    corpus.write_text("\n".join(json.dumps(r) for r in rows), "utf-8")
    run(corpus, tmp_path / "out", keep=names, tokens=True, words="mean")
    table = table_of(tmp_path / "out")
    for name in names:
        assert table.column(name).to_pylist() == ["x", None]


# Rows and texts


def test_rows_ids_labels_and_texts_are_those_of_the_corpus(corpus: Path, tmp_path: Path) -> None:
    run(corpus, tmp_path / "out")
    table = table_of(tmp_path / "out")
    expected = [(i, *row) for i, row in enumerate(ROWS) if row[1].strip()]
    columns = [table.column(n).to_pylist() for n in ("row", "id", "text", "label")]
    assert list(zip(*columns, strict=True)) == expected
    assert table.column("id")[0].as_py() == "008"
    rejects = (tmp_path / "out/_embedkit/rejects.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["row"] for line in rejects] == [0, 5, 12]
    parts = sorted((tmp_path / "out/sentences").iterdir())
    assert [pq.read_metadata(part).num_rows for part in parts] == [3, 3, 3, 1]


LETTERS = st.characters(codec="utf-8", exclude_characters="\n\r\t\0")
TEXT = st.text(LETTERS, max_size=30)


@settings(max_examples=60)
@given(
    cells=st.lists(st.one_of(TEXT, st.sampled_from(["", " ", "the movie"])), max_size=13),
    min_chars=st.integers(0, 4),
    limit=st.one_of(st.none(), st.integers(1, 9)),
    sample=st.one_of(st.none(), st.integers(1, 5)),
)
def test_every_record_is_counted_once(
    tmp_path_factory: pytest.TempPathFactory, cells: list[str], min_chars: int,
    limit: int | None, sample: int | None,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("any")
    corpus = write_tsv(folder / "corpus.tsv", [(f"{i:03}", c, "1") for i, c in enumerate(cells)])
    result = run(corpus, folder / "out", min_chars=min_chars, limit=limit, sample=sample)
    totals = result.manifest.totals
    assert totals.records == len(cells)
    assert totals.accepted + totals.rejected + totals.left_out == len(cells)
    table = table_of(folder / "out")
    rows = table.column("row").to_pylist()
    assert rows == sorted(set(rows))
    assert len(rows) == totals.accepted
    assert [cells[r] for r in rows] == table.column("text").to_pylist()
    rejects = (folder / "out/_embedkit/rejects.jsonl").read_text("utf-8").splitlines()
    lost = [json.loads(line)["row"] for line in rejects]
    assert len(lost) == totals.rejected
    assert not set(lost) & set(rows)
    assert embedkit.verify(folder / "out").ok


@pytest.mark.parametrize(
    "rows",
    [[], [("1", "", "0")], [("1", " ", "0")] * 7, [("1", "", "0")] * 4 + [("2", "good", "1")],
     [("1", "good", "0")] * 3, [("1", "good", "0")] * 3 + [("2", "", "0")] * 3],
    ids=["header only", "one reject", "rejects only", "late", "one full shard", "rejects at end"],
)  # fmt: skip
def test_rejects_at_every_edge(
    tmp_path: Path, rows: list[tuple[str, str, str]], notes: list[str]
) -> None:
    corpus = write_tsv(tmp_path / "corpus.tsv", rows)
    result = run(corpus, tmp_path / "out", tokens=True, words="first")
    kept = accepted(rows)
    assert table_of(tmp_path / "out").column("row").to_pylist() == [i for i, _ in kept]
    assert result.manifest.n_shards == max(-(-len(kept) // 3), 1)
    assert any("no record was accepted" in n for n in notes) == (not kept)
    data = embedkit.load(tmp_path / "out")
    assert data.X.shape == (len(kept), 16)
    assert data.ids.dtype.kind == data.y.dtype.kind == "U"
    full = write_tsv(tmp_path / "full.tsv")
    run(full, tmp_path / "full", tokens=True, words="first")
    for folder in ("sentences", "words", "tokens"):
        assert fields(tmp_path / "out", folder) == fields(tmp_path / "full", folder)


# Vectors


def test_views_equal_those_of_the_encoder(corpus: Path, tmp_path: Path) -> None:
    names = ["mean_0", "cls_0", "max_0", "mean_2", "cls_2", "max_2", "pooler"]
    run(corpus, tmp_path / "out", layers=[0, "-1"], pooling=["mean", "cls", "max", "pooler"])
    expected = encoder().encode_views([t for _, t in accepted()], names)
    for name in names:
        data = embedkit.load(tmp_path / "out", view=name)
        assert data.X.dtype == np.float32
        np.testing.assert_allclose(data.X, expected[name], rtol=1e-5, atol=1e-6)
    both = embedkit.load(tmp_path / "out", view=["mean_0", "cls_-1"])
    np.testing.assert_array_equal(
        both.X,
        np.hstack([embedkit.load(tmp_path / "out", view=v).X for v in ("mean_0", "cls_2")]),
    )


def test_normalized_views_have_length_one(corpus: Path, tmp_path: Path) -> None:
    run(corpus, tmp_path / "raw", pooling=["mean", "cls"], tokens=True)
    run(corpus, tmp_path / "unit", pooling=["mean", "cls"], tokens=True, normalize=True)
    for view in ("mean_2", "cls_2"):
        raw = embedkit.load(tmp_path / "raw", view=view).X
        unit = embedkit.load(tmp_path / "unit", view=view).X
        np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-6)
        np.testing.assert_allclose(unit, raw / np.linalg.norm(raw, axis=1)[:, None], atol=1e-6)
    assert (
        matrix(table_of(tmp_path / "raw", "tokens"), "layer_2").tobytes()
        == matrix(table_of(tmp_path / "unit", "tokens"), "layer_2").tobytes()
    )


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("on_long", ["truncate", "window"])
def test_token_vectors_rebuild_the_mean(
    corpus: Path, tmp_path: Path, special: bool, on_long: str
) -> None:
    run(corpus, tmp_path / "out", tokens=True, special_tokens=special, on_long=on_long)
    sentences, tokens = table_of(tmp_path / "out"), table_of(tmp_path / "out", "tokens")
    vectors = matrix(tokens, "layer_2")
    row = tokens.column("row").to_numpy()
    counted = np.ones(len(row), bool) if special else ~np.array(tokens.column("special"))
    means = matrix(sentences, "mean_2")
    for i, (number, text) in enumerate(accepted()):
        np.testing.assert_allclose(
            vectors[(row == number) & counted].mean(axis=0), means[i], rtol=2e-5, atol=2e-6
        )
        spans = [t for t in tokens.filter(row == number).to_pylist() if not t["special"]]
        spelled = [text[t["start"] : t["end"]] for t in spans]
        pieces = [t["token"].removeprefix("##") for t in spans]
        assert all(s == p or p == "[UNK]" for s, p in zip(spelled, pieces, strict=True))
        assert [t["pos"] for t in tokens.filter(row == number).to_pylist()] == list(
            range(sentences.column("n_kept")[i].as_py())
        )


def test_windows_keep_every_token(corpus: Path, tmp_path: Path) -> None:
    cut = run(corpus, tmp_path / "cut").manifest.totals.ledger
    whole = run(corpus, tmp_path / "whole", on_long="window").manifest.totals.ledger
    assert cut["tokens"] == whole["tokens"] == whole["tokens_kept"]
    assert cut["tokens_cut"] == cut["tokens"] - cut["tokens_kept"] > 0
    assert (cut["records_truncated"], whole["records_truncated"]) == (1, 0)
    assert whole["windows"] > cut["windows"] == N_ACCEPTED
    table = table_of(tmp_path / "cut")
    assert table.column("truncated").to_pylist().count(True) == 1
    assert table.column("n_tokens").to_numpy().sum() == cut["tokens"]
    assert table.column("n_kept").to_numpy().sum() == cut["tokens_kept"]


@pytest.mark.parametrize("subtokens", ["first", "last", "first_last", "mean"])
def test_words(corpus: Path, tmp_path: Path, subtokens: str) -> None:
    run(corpus, tmp_path / "out", words=subtokens, tokens=True, on_long="window")
    words, tokens = table_of(tmp_path / "out", "words"), table_of(tmp_path / "out", "tokens")
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
        "first": lambda v: v[0], "last": lambda v: v[-1],
        "first_last": lambda v: (v[0] + v[-1]) / 2, "mean": lambda v: v.mean(axis=0),
    }[subtokens]  # fmt: skip
    for i, (number, index, *_) in enumerate(found):
        own = of_tokens[(row == number) & (word == index)]
        assert len(own) == words.column("n_tokens")[i].as_py()
        np.testing.assert_allclose(vectors[i], choose(own), rtol=1e-5, atol=1e-6)


def test_words_beyond_the_limit_have_no_row(corpus: Path, tmp_path: Path) -> None:
    run(corpus, tmp_path / "out", words="mean", max_length=6)
    words = table_of(tmp_path / "out", "words").to_pylist()
    assert [w["text"] for w in words if w["row"] == 3] == ["the", "movie", "was", "bad"]


@pytest.mark.parametrize("shard_rows", [1, 2, 5, 100])
def test_shards_change_no_vector(corpus: Path, tmp_path: Path, shard_rows: int) -> None:
    run(corpus, tmp_path / "one", shard_rows=4)
    run(corpus, tmp_path / "two", shard_rows=shard_rows)
    one, two = (embedkit.load(tmp_path / n) for n in ("one", "two"))
    np.testing.assert_allclose(one.X, two.X, rtol=1e-5, atol=1e-6)
    assert one.text == two.text
    assert one.row.tolist() == two.row.tolist()


def test_two_runs_give_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(corpus, tmp_path / name, words="mean", tokens=True, layers="all", storage="compact")
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


# Storage


@pytest.mark.parametrize("storage", ["float16", "compact"])
def test_half_precision_is_the_rounded_float32(corpus: Path, tmp_path: Path, storage: str) -> None:
    exact = run(corpus, tmp_path / "exact", tokens=True, words="mean").out
    half = run(corpus, tmp_path / "half", tokens=True, words="mean", storage=storage).out
    for folder, name in (("sentences", "mean_2"), ("tokens", "layer_2"), ("words", "layer_2")):
        element = pq.read_schema(half / folder / "part-00000.parquet").field(name).type.value_type
        assert element == (pa.float16() if storage == "float16" else pa.float32())
        rounded = matrix(table_of(exact, folder), name).astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(matrix(table_of(half, folder), name), rounded)
    X = embedkit.load(half).X
    assert X.dtype == np.float32
    np.testing.assert_array_equal(X, embedkit.load(exact).X.astype(np.float16))


@pytest.mark.parametrize("storage", ["float32", "float16", "compact"])
def test_parquet_of_vectors(tmp_path: Path, storage: str) -> None:
    corpus = write_tsv(tmp_path / "c.tsv", [(str(i), f"good {i % 7}", "1") for i in range(8_200)])
    run(corpus, tmp_path / "out", storage=storage, shard_rows=8_200, text="document")
    metadata = pq.read_metadata(tmp_path / "out/sentences/part-00000.parquet")
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    assert [g.num_rows for g in groups] == [8_192, 8]
    names = [groups[0].column(i).path_in_schema for i in range(groups[0].num_columns)]
    vector = groups[0].column(names.index("mean_2.list.element"))
    assert vector.statistics is None
    assert vector.compression == ("ZSTD" if storage == "compact" else "UNCOMPRESSED")
    encoding = "BYTE_STREAM_SPLIT" if storage == "compact" else "PLAIN"
    assert encoding in vector.encodings
    assert not any("DICTIONARY" in e for e in vector.encodings)
    scalar = groups[0].column(names.index("row"))
    assert (scalar.statistics.min, scalar.statistics.max) == (0, 8_191)
    assert scalar.compression == "ZSTD"


@pytest.mark.parametrize("storage", ["float32", "float16", "compact"])
def test_a_flipped_byte_of_a_vector_page_is_noticed(
    corpus: Path, tmp_path: Path, storage: str
) -> None:
    run(corpus, tmp_path / "out", storage=storage, shard_rows=100)
    part = tmp_path / "out/sentences/part-00000.parquet"
    group = pq.read_metadata(part).row_group(0)
    column = group.column(group.num_columns - 1)
    content = bytearray(part.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 9] ^= 1
    part.write_bytes(content)
    with pytest.raises(DamagedError, match=r"part-00000\.parquet is damaged.*embedkit verify"):
        _ = embedkit.load(tmp_path / "out").X
    assert embedkit.load(tmp_path / "out").row.tolist() == [i for i, _ in accepted()]
    assert not embedkit.verify(tmp_path / "out").ok


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 70_000.0])
@pytest.mark.parametrize("where", ["views", "tokens"])
def test_numbers_that_cannot_be_stored_are_refused(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float, where: str
) -> None:
    genuine = Encoder.start_shard

    def spoiled(self: Encoder, *args: Any, **kwargs: Any) -> Any:
        vectors = genuine(self, *args, **kwargs).result()
        for values in list(getattr(vectors, where).values())[:1]:  # none in the trial of the bits
            values[min(2, len(values) - 1), 5] = value
        return SimpleNamespace(result=lambda: vectors, nbytes=0)

    monkeypatch.setattr(Encoder, "start_shard", spoiled)
    reason = "beyond float16" if np.isfinite(value) else "NaN or infinite"
    row = "3" if where == "views" else "1"
    with pytest.raises(EncodeError, match=rf"{reason}.*rows {row}\)"):
        run(corpus, tmp_path / "out", storage="float16", tokens=True)
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "out.incomplete").glob("*/*.parquet"))


# Inputs and names


@pytest.mark.parametrize(
    "name", ["with space.tsv", "한글 코퍼스.tsv", "quo'te\".tsv", "a%20b#c?.tsv"]
)
def test_paths_of_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "폴더 of mine"
    folder.mkdir()
    corpus = write_tsv(folder / name)
    out = folder / (name + " out")
    run(corpus, out)
    assert len(embedkit.load(str(out)).X) == N_ACCEPTED
    assert manifest_of(out)["names"]["inputs"] == [str(corpus)]
    assert embedkit.verify(out).ok


def test_a_corpus_whose_name_is_not_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As names are that were packed on a Korean Windows and unpacked elsewhere."""
    monkeypatch.chdir(tmp_path)
    corpus = write_tsv(tmp_path / os.fsdecode("영화.tsv".encode("cp949")))
    out = run(corpus, tmp_path / "out").out
    assert manifest_of(out)["names"]["inputs"] == [str(corpus)]
    rejects = (out / "_embedkit/rejects.jsonl").read_text("utf-8").splitlines()
    assert {json.loads(line)["file"] for line in rejects} == {str(corpus)}
    assert embedkit.verify(out).ok
    with pytest.raises(UsageError, match=r"only names in UTF-8\. Pass another out=\."):
        embedkit.extract(corpus, model=str(tiny_model()))
    assert not list(tmp_path.glob("*.vectors*"))


def test_kept_columns_may_be_called_as_those_of_tokens(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"text": "good", "token": null, "token_id": "1"}\n', "utf-8")
    data = embedkit.load(run(corpus, tmp_path / "out", keep=["token", "token_id"], tokens=True).out)
    assert (data.column("token"), data.column("token_id")) == ([None], ["1"])


def test_lists_may_be_written_as_on_the_command_line(corpus: Path, tmp_path: Path) -> None:
    job = run(corpus, tmp_path / "out", pooling="cls, mean", keep=["document"]).manifest.job
    assert list(job.vectors.views) == ["cls_2", "mean_2"]
    assert job.input.keep == ("document",)


def test_many_files_are_read_one_after_the_other(corpus: Path, tmp_path: Path) -> None:
    second = write_tsv(tmp_path / "second.tsv", [("x1", "good", "1"), ("x2", "bad", "0")])
    packed = tmp_path / "third.tsv.gz"
    packed.write_bytes(gzip.compress(second.read_bytes()))
    result = run([corpus, second, packed], tmp_path / "out")
    assert result.manifest.totals.records == len(ROWS) + 4
    data = embedkit.load(tmp_path / "out")
    assert data.row.tolist()[-4:] == [13, 14, 15, 16]
    assert data.ids.tolist()[-4:] == ["x1", "x2", "x1", "x2"]
    np.testing.assert_allclose(data.X[-4:-2], data.X[-2:], atol=1e-6)


def test_packed_corpus_gives_the_same_vectors(corpus: Path, tmp_path: Path) -> None:
    packed = tmp_path / "corpus.tsv.gz"
    packed.write_bytes(gzip.compress(corpus.read_bytes()))
    plain, unpacked = (run(c, tmp_path / c.name.replace(".", "_")).out for c in (corpus, packed))
    assert embedkit.load(plain).X.tobytes() == embedkit.load(unpacked).X.tobytes()


def test_a_cut_off_archive_is_an_error_not_a_short_corpus(tmp_path: Path) -> None:
    rows = [(str(i), os.urandom(20).hex(), "1") for i in range(500)]
    content = gzip.compress(write_tsv(tmp_path / "c.tsv", rows).read_bytes())
    packed = tmp_path / "cut.tsv.gz"
    packed.write_bytes(content[: len(content) // 2])
    with pytest.raises(CorpusError, match=r"cut\.tsv\.gz"):
        run(packed, tmp_path / "out", shard_rows=100)
    assert not (tmp_path / "out").exists()


def test_standard_input(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(corpus.read_bytes())

    monkeypatch.setattr(sys, "stdin", Stdin)
    run("-", tmp_path / "out", format="tsv")
    assert manifest_of(tmp_path / "out")["names"]["inputs"] == ["-"]
    run(corpus, tmp_path / "file")
    assert (
        embedkit.load(tmp_path / "out").X.tobytes() == embedkit.load(tmp_path / "file").X.tobytes()
    )
    with pytest.raises(UsageError, match=r"standard input has no name.*Pass out="):
        embedkit.extract("-")
    with pytest.raises(UsageError, match=r"standard input \(-\) can be read once only"):
        run([Path("-"), Path("-")], tmp_path / "twice")
    with pytest.raises(UsageError, match=r"entry 0 of the corpus, '-', is the name of a file"):
        run(["-", "-"], tmp_path / "texts")


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


@pytest.mark.parametrize("out", [".", "..", "/", "a/.."])
def test_an_output_without_a_name_is_refused(corpus: Path, out: str) -> None:
    with pytest.raises(UsageError, match="expected the name of a folder to make"):
        run(corpus, out)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"storage": "float8"}, r"storage='float8': expected float32.* Did you mean 'float"),
        ({"words": "middle"}, "words='middle': expected first, last, first_last, mean"),
        ({"on_long": "cut"}, "on_long='cut': expected truncate, window, error"),
        ({"unicode": "nfd"}, "unicode='nfd': expected none, nfc, nfkc"),
        ({"shard_rows": 0}, "shard_rows=0: expected 1 or more"),
        ({"sample": 0}, "sample=0: expected 1 or more"),
        ({"min_chars": -1}, "min_chars=-1: expected 0 or more"),
        ({"max_length": 0}, "max_length=0: expected 1 or more"),
        ({"max_length": 2}, "max_length=2 leaves no room for text"),
        ({"max_length": 25}, r"max_length=25: .* 24"),
        ({"on_long": "window", "stride": 22}, "stride=22: must be smaller than the 22 tokens"),
        ({"layers": "3"}, "layers='3': the model has layers 0"),
        ({"layers": "2..1"}, "runs backwards"),
        ({"pooling": ["median"]}, "pooling='median': expected cls, mean, max"),
        ({"text": "documnt"}, r"no such column.*Did you mean 'document'"),
        ({"keep": ["nothing"]}, "keep='nothing': .* has no such column"),
        ({"encoding": "utf-99"}, "encoding='utf-99'"),
        ({"device": "tpu"}, "device='tpu': expected auto"),
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_cannot_be(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any],
    message: str,
) -> None:  # fmt: skip
    monkeypatch.undo()
    with pytest.raises(UsageError, match=message):
        run(corpus, tmp_path / "out", device=wrong.pop("device", "cpu"), **wrong)
    assert not list(tmp_path.glob("out*"))


def test_pooler_of_a_checkpoint_without_one(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no pooler weights"):
        run(corpus, tmp_path / "out", model=str(tiny_model(pooler=False)), pooling=["pooler"])
    assert not list(tmp_path.glob("out*"))


def test_progress_is_honest(corpus: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    result = run(corpus, tmp_path / "out", progress=seen.append, batch_tokens=24)
    done = [p.done for p in seen]
    assert done == sorted(done)
    assert done[-1] == seen[-1].total == result.manifest.totals.ledger["tokens_kept"]
    assert all(p.total is not None and p.done <= p.total for p in seen)
    assert seen[-1].fresh == result.tokens_fresh
    assert (seen[-1].stage, seen[-1].unit) == ("shard 4", "tokens")


@pytest.mark.parametrize("change", [{}, {"layers": "all"}, {"tokens": True}, {"words": "mean"}])
def test_shards_have_a_size_that_follows_from_the_settings(
    corpus: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    settings = ExtractSettings(model=str(tiny_model()), **change)
    sizes = set()
    for _ in range(2):
        with plan_extract(corpus, out=tmp_path / "out", settings=settings) as plan:
            sizes.add(plan.settings.storage.shard_rows)
    assert len(sizes) == 1
    assert sizes.pop() in [1 << n for n in range(6, 15)]
    assert not list(tmp_path.glob("out*"))


def test_views_that_no_matrix_can_be_made_of(tmp_path: Path) -> None:
    out = run(write_tsv(tmp_path / "c.tsv"), tmp_path / "out", pooling=["mean", "cls"]).out
    with pytest.raises(UsageError, match=r"view mean_2 is asked for twice; give every view once"):
        embedkit.load(out, ["mean_2", "cls_2", "mean_-1"])  # mean_-1 is mean_2
    with pytest.raises(UsageError, match=r"no view was given; .* has cls_2, mean_2\."):
        embedkit.load(out, [])


def test_a_record_without_a_label_has_an_empty_one(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"text": "a", "label": "1"}\n{"text": "bus", "label": null}\n', "utf-8")
    data = embedkit.load(run(corpus, tmp_path / "out").out)
    assert data.y.tolist() == ["1", ""]
    assert [batch["y"].tolist() for batch in data.iter_batches()] == [["1", ""]]
    assert data.column("label") == ["1", None]


def test_a_map_that_several_threads_ask_for(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    out = run(write_tsv(tmp_path / "c.tsv"), tmp_path / "out").out
    wanted = embedkit.load(out).X
    with ThreadPoolExecutor(8) as pool:
        for mapped in pool.map(lambda _: embedkit.load(out).mapped(tmp_path / "cache"), range(16)):
            assert np.array_equal(mapped, wanted)
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_batches_and_maps_are_the_whole(tmp_path: Path) -> None:
    """On shards of any size, in pieces of any size; and a classifier learns from them."""
    from sklearn.linear_model import SGDClassifier

    out = run(write_tsv(tmp_path / "c.tsv"), tmp_path / "out", pooling=["mean", "cls"]).out
    for view in ("mean_2", ["mean_2", "cls_2"]):
        data = embedkit.load(out, view)
        for size in (1, 2, 7, 10_000):
            parts = list(data.iter_batches(size))
            assert max(len(part["X"]) for part in parts) <= size
            assert np.array_equal(np.concatenate([part["X"] for part in parts]), data.X)
            assert np.concatenate([part["y"] for part in parts]).tolist() == data.y.tolist()
        mapped = data.mapped(tmp_path / "cache")
        assert isinstance(mapped, np.memmap)
        assert np.array_equal(mapped, data.X)
        with pytest.raises(ValueError, match="read-only"):
            mapped[0, 0] = 1
        assert np.array_equal(data.mapped(tmp_path / "cache"), data.X)
    assert len(list((tmp_path / "cache").iterdir())) == 2
    learner = SGDClassifier(random_state=0)
    for batch in data.iter_batches(4):
        learner.partial_fit(batch["X"], batch["y"], classes=np.unique(data.y))
    assert learner.predict(data.X).shape == data.y.shape
    with pytest.raises(ValueError, match="batch_size=0: expected 1 or more"):
        data.iter_batches(0)


def test_an_interrupted_job_says_what_is_kept(tmp_path: Path, notes: list[str]) -> None:
    rows = [(str(i), f"the movie {i}", "1") for i in range(20)]
    corpus = write_tsv(tmp_path / "c.tsv", rows)

    def stop(after: int) -> Any:
        def progress(now: Progress) -> None:
            if now.stage == f"shard {after + 1}":
                parts = tmp_path / "out.incomplete" / "sentences"
                while len(list(parts.glob("part-*.parquet"))) < after:
                    time.sleep(0.01)  # the writer goes on in its own thread
                raise KeyboardInterrupt

        return progress

    for after, expected in ((0, "was not finished, so nothing is kept"), (1, " are kept")):
        with pytest.raises(KeyboardInterrupt):
            run(corpus, tmp_path / "out", shard_rows=2, progress=stop(after))
        assert expected in notes[-1]
