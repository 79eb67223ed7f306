"""Differences of vectors: planted ones are named, and equal vectors are called equal."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sentence_transformers import SentenceTransformer, quantize_embeddings
from sentence_transformers.sentence_transformer import modules as st

import embedkit
from embedkit.difference import ROUNDING, diff
from embedkit.errors import MismatchError, UsageError
from tests.models import TEXTS, Floats, state
from tests.processes import invoke
from tests.run_fixtures import train, write_frame

SOME = [text for text in (*TEXTS[:9], *TEXTS[11:13]) if text.strip()]
RECORDS = [f"{text} The Movie {'was good ' * (i % 3)}{i}" for i, text in enumerate(SOME * 2)]
RECORDS += [f"The BUS {i} " + "여행을 가는 movie와 배가 good " * 22 for i in range(4)]
IDS = [f"{i:03}" for i in range(len(RECORDS))]
PROMPTS: dict[str, Any] = {"query": "the movie: ", "document": "a bus: "}


class Bench:
    """A checkpoint with and one without a Dense layer, and a dataset of each."""

    def __init__(self, bert: Path, folder: Path) -> None:
        torch.manual_seed(3)
        self.body = st.Transformer(str(bert))
        self.width = self.body.get_embedding_dimension()
        self.folder = folder
        dense = st.Dense(self.width, self.width, bias=True, activation_function=torch.nn.Tanh())
        self.theirs = self.with_modules("plain", "mean", st.Normalize())
        self.with_modules("dense", "mean", dense)
        records = {"id": IDS, "text": RECORDS, "label": np.arange(len(IDS)) % 2}
        corpus = write_frame(pd.DataFrame(records), folder / "corpus.tsv")
        for name in ("plain", "dense"):
            self.extract(corpus, folder / f"{name}.vectors", name)

    def extract(self, corpus: Any, out: Path, model: str = "plain", **options: Any) -> Path:
        given: dict[str, Any] = {"model": str(self.folder / model), "device": "cpu", **options}
        return embedkit.extract(corpus, out=out, **given).out

    def with_modules(self, name: str, pooling: str, *more: Any, lower: bool = True) -> Any:
        """A checkpoint as sentence-transformers saves and loads it."""
        given: dict[str, Any] = {"prompts": PROMPTS, "default_prompt_name": "query"}
        modules, folder = [self.body, st.Pooling(self.width, pooling), *more], self.folder / name
        SentenceTransformer(modules=modules, device="cpu", **given).save(str(folder))
        state(folder / "sentence_bert_config.json", do_lower_case=lower)
        return SentenceTransformer(str(folder), device="cpu")

    def encode(self, model: Any = None, **options: Any) -> Floats:
        return np.asarray((model or self.theirs).encode(RECORDS, **options))

    @cached_property
    def vectors(self) -> Floats:
        """Those of the other tool."""
        return self.encode()

    def __getitem__(self, name: str) -> Path:
        return self.folder / f"{name}.vectors"


@pytest.fixture(scope="module")
def bench(tiny: Callable[[str], Path], common: Path) -> Bench:
    return Bench(tiny("bert"), common)


def cut_at_128(bench: Bench) -> Floats:
    model = SentenceTransformer(str(bench.folder / "plain"), device="cpu")
    model.max_seq_length = 128
    return bench.encode(model)


def ours(bench: Bench, layer: int = -1, **options: Any) -> Floats:
    encoder = embedkit.Encoder(bench.folder / "plain", device="cpu", **options)
    given: dict[str, Any] = {"pooling": "mean", "layer": layer, "normalize_embeddings": True}
    return np.asarray(encoder.encode(RECORDS, **given))


PLANTED: dict[str, tuple[str, Callable[[Bench], Any], dict[str, Any]]] = {
    "wrong pooling": (
        "plain",
        lambda b: b.encode(b.with_modules("cls", "cls", st.Normalize())),
        {"pooling": "cls", "normalize": True},
    ),
    "two at once": (
        "plain",
        lambda b: b.encode(b.with_modules("max", "max"), prompt="a bus: "),
        {"prefix": "a bus: ", "pooling": "max", "normalize": False},
    ),
    "skipped Dense": (
        "dense",
        lambda b: b.encode(b.with_modules("bare", "mean")),
        {"pooling": "mean", "dense": "left out", "normalize": False},
    ),
    "no prefix": ("plain", lambda b: b.encode(prompt=""), {"prefix": ""}),
    "truncation": ("plain", cut_at_128, {"max_length": 128}),
    "wrong layer": ("plain", partial(ours, layer=2), {"layers": "2", "normalize": True}),
    "case": (
        "plain",
        lambda b: b.encode(b.with_modules("cased", "mean", st.Normalize(), lower=False)),
        {"case": "not lower-cased"},
    ),
    "fp16": ("plain", lambda b: b.vectors.astype(np.float16), {"rounding": "float16"}),
    "int8": ("plain", partial(ours, precision="int8"), {"precision": "int8"}),
    "int8 of the vectors": (
        "plain",
        lambda b: quantize_embeddings(b.vectors, "int8"),
        {"rounding": "int8"},
    ),
}
"""The checkpoint, vectors of another tool, and the settings that explain them."""


@pytest.mark.parametrize("name", PLANTED)
def test_planted_differences_are_named(bench: Bench, name: str) -> None:
    kind, vectors, expected = PLANTED[name]
    found: Any = diff(bench[kind], vectors(bench))
    assert found.explanation.settings == expected
    assert found.explanation.largest <= (0.05 if "int8 of" in name else 2 * ROUNDING)
    assert not found.same
    assert found.equal == 0 or name == "truncation"


def test_rows_in_another_order(bench: Bench, tmp_path: Path) -> None:
    np.save(tmp_path / "order.npy", bench.vectors[::-1])
    found = json.loads(invoke("diff", bench["plain"], tmp_path / "order.npy", "--json").stdout)
    assert found["explanations"][0]["settings"].keys() == {"order"}
    assert found["explanations"][0]["largest"] <= ROUNDING


def test_what_nothing_explains(bench: Bench, tmp_path: Path) -> None:
    """Noise is no setting, and is not called one, nor are vectors that are twice as long."""
    noise = np.random.default_rng(0).normal(size=(len(RECORDS), 24)).astype(np.float32)
    # ones are whole numbers, as int8 is
    for other in (noise, np.ones_like(noise), 2 * bench.vectors):
        np.save(tmp_path / "other.npy", other)
        shown = invoke("diff", bench["plain"], tmp_path / "other.npy").stdout
        assert "no setting that was tried explains it" in shown.splitlines()[0]


FILES: dict[str, Callable[[Floats], Any]] = {
    "order.npy": lambda X: X,
    "lists.parquet": lambda X: _lists(X).set_index("id"),
    "lists.csv": lambda X: _lists(X),
    "lists.jsonl": lambda X: _lists(X),
    "numbers.csv": lambda X: _numbers(X).to_csv(),  # with the index, as by default
    # as a groupby or a tool that sorts names leaves them: v0, v1, v10, v11, …, v2
    "sorted.csv": lambda X: _numbers(X).sort_index(axis=1).assign(rank2=range(len(X))),
    "numpy.csv": lambda X: _lists(X, np.array2string),
    "numbers.tsv": lambda X: _numbers(X).rename(columns={"id": "ID"}),
    # a quote in TSV is a character, also an odd number of them
    "quotes.tsv": lambda X: "\n".join(
        ["text\tid\tvector", *(f'"a\t{i}\t{x.tolist()}' for i, x in zip(IDS, X, strict=True))]
    ),
}
"""What a file of this name holds of vectors."""


def save(path: Path, content: Any) -> None:
    """Write an array, a table, or a text; nothing if there is none of them."""
    if isinstance(content, np.ndarray):
        np.save(path, content)
    elif isinstance(content, pd.DataFrame):
        write_frame(content, path)
    elif content is not None:
        path.write_text(content)


def _lists(X: Floats, cell: Callable[..., object] = np.ndarray.tolist) -> pd.DataFrame:
    """Ids and lists, or their text, the last record first."""
    with np.printoptions(floatmode="unique"):
        cells = [cell(x) for x in X]
    table = {"id": IDS, "score": 1.5, "tags": '["a", 2]', "embedding": cells}
    return pd.DataFrame(table).iloc[::-1]


def _numbers(X: Floats) -> pd.DataFrame:
    frame = pd.DataFrame(X, columns=[f"v{i}" for i in range(X.shape[1])])
    return frame.assign(id=IDS, score=1.5, text="[속보] 1").iloc[::-1]


@pytest.mark.parametrize("name", FILES)
def test_equal_vectors_in_every_kind_of_file(bench: Bench, tmp_path: Path, name: str) -> None:
    save(tmp_path / name, FILES[name](bench.vectors))
    found = diff(bench["plain"], tmp_path / name)
    assert found.joined == ("order" if name == "order.npy" else "id")
    assert found.same
    assert not found.explanations
    assert (found.kept, found.decisions) == (10, 0)
    save(tmp_path / name, FILES[name](embedkit.load(bench["plain"]).X))
    answer = invoke("diff", bench["plain"], tmp_path / name)
    assert answer.stdout.startswith(f"the same vectors, bit for bit: {len(RECORDS)} records")
    assert answer.exit_code == 0


def test_ids_of_a_table_are_texts_whatever_holds_them(bench: Bench, tmp_path: Path) -> None:
    """7 and 7.0 are one id, NA is one; a table in memory is joined as its file is."""
    records = [{"id": i or "NA", "text": text} for i, text in enumerate(RECORDS)]
    folder = bench.extract(records, tmp_path / "v")
    theirs = _numbers(embedkit.load(folder).X).assign(id=np.arange(len(records))[::-1] * 1.0)
    theirs.iloc[:-1].to_parquet(tmp_path / "floats.parquet")
    theirs = theirs.assign(id=theirs["id"].astype(int).astype(str).replace("0", "NA"))
    theirs.to_csv(tmp_path / "na.csv", index=False)
    found = diff(folder, tmp_path / "floats.parquet")
    assert (found.joined, found.equal, found.only_a) == ("id", len(records) - 1, 1)
    theirs.rename(columns={"id": " Doc_Id "}).to_csv(tmp_path / "NA.CSV.gz", index=False)
    whole = theirs.assign(id=[f"{key}.0".replace("NA.0", "NA") for key in theirs["id"]])
    whole.to_csv(tmp_path / "0.csv", index=False)  # as pandas writes numbers beside gaps
    whole.to_json(tmp_path / "0.jsonl", orient="records", lines=True, double_precision=15)
    files = [tmp_path / name for name in ("na.csv", "NA.CSV.gz", "0.csv", "0.jsonl")]
    for other in (*files, theirs, theirs.set_index("id"), pa.Table.from_pandas(theirs)):
        found = diff(folder, other)
        assert (found.joined, found.equal) == ("id", len(records))


def test_missing_records_are_counted(bench: Bench, tmp_path: Path) -> None:
    theirs = _lists(embedkit.load(bench["plain"]).X)
    others = theirs.assign(id=[f"x{i}" for i in theirs["id"]])
    pd.concat([theirs[5:], others[:3]]).to_parquet(tmp_path / "some.parquet")
    found = diff(bench["plain"], tmp_path / "some.parquet")
    assert (found.records, found.only_a, found.only_b) == (len(RECORDS) - 5, 5, 3)
    assert not found.same
    shown = invoke("diff", bench["plain"], tmp_path / "some.parquet").stdout
    assert f"bit for bit: {len(RECORDS) - 5} records that both have" in shown
    assert "by id, 5 only in the first, 3 only in the second" in shown


REFUSED: dict[str, tuple[Callable[[Floats], Any], str]] = {
    "no.npy": (lambda X: X[:0], "no.npy has no records to compare"),
    "none.csv": (
        lambda X: _lists(X).assign(id=[f"x{i}" for i in IDS]),
        f"none of the {len(IDS)} ids",
    ),
    "twice.csv": (lambda X: pd.concat([_lists(X), _lists(X)[:2]]), "2 ids .* more than once"),
    "short.npy": (lambda X: X[1:], f"{len(IDS) - 1} vectors"),
    "nan.npy": (lambda X: X * np.nan, f"in {len(IDS)} vectors"),
    "empty.npy": (lambda _: "", "cannot be read"),
    "bare.csv": (lambda X: pd.DataFrame(X).to_csv(index=False, header=False), "first line"),
    "whole.csv": (
        lambda X: pd.DataFrame(-10 - 99 * abs(X)).astype(int).to_csv(index=False, header=False),
        "first line",
    ),
    "ragged.jsonl": (
        lambda X: _lists(X).assign(embedding=[[0.0] * i for i in range(len(X))]),
        "embedding, row 1 has no 0 numbers",
    ),
    "gap.jsonl": (
        lambda X: _lists(X).assign(embedding=[None, *X[1:].tolist()]),
        "embedding, row 0 has no 24 numbers",
    ),
    "box.csv": (lambda X: _numbers(X).assign(box="[0, 4]"), "it has vectors in box, v; name one"),
    "two.parquet": (
        lambda X: _lists(X).assign(other=X.tolist()),
        "vectors in embedding, other; name one",
    ),
    "none.parquet": (
        lambda X: pd.DataFrame({"id": IDS}),
        "neither lists nor columns v0, .* but id",
    ),
    "vectors.txt": (lambda _: "1", "neither a dataset nor"),
    "absent.npy": (lambda _: None, "cannot be read"),
}
"""What a file of this name holds, and what is said of it."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_file_of_vectors(bench: Bench, tmp_path: Path, name: str) -> None:
    content, message = REFUSED[name]
    save(tmp_path / name, content(embedkit.load(bench["plain"]).X))
    error = MismatchError if name in ("none.csv", "short.npy") else UsageError  # of another corpus
    with pytest.raises(error, match=message):
        diff(bench["plain"], tmp_path / name)


def test_a_column_of_several_is_named(bench: Bench, tmp_path: Path) -> None:
    X = embedkit.load(bench["plain"]).X
    _lists(X).assign(other=(-X[::-1]).tolist()).to_parquet(tmp_path / "two.parquet")
    assert diff(bench["plain"], tmp_path / "two.parquet", view=["mean_3", "embedding"]).same
    views = ["mean_3", "other"]
    found = diff(bench["plain"], tmp_path / "two.parquet", view=views, model="not here")
    assert found.cosines["median"] == pytest.approx(-1)


def test_two_datasets(bench: Bench, tmp_path: Path) -> None:
    """Views of two widths, settings that differ, and decisions as ``train`` makes them."""
    options: dict[str, Any] = {"prefix": "", "layers": ["concat:2,3"], "pooling": "mean"}
    bench.extract(bench.folder / "corpus.tsv", tmp_path / "wide", **options)
    found: Any = diff(bench["plain"], tmp_path / "wide")
    assert found.settings[0] == "normalize is True, then False"
    assert found.settings[1:] == (
        "prefix is 'the movie: ', then ''",
        "view is mean_3, then mean_concat_2to3",
    )
    assert np.isnan(found.distance["median"])
    assert 0 < found.kept < 10
    assert 0 < found.cka < 1
    kept = [row["kept"] for row in found.moved]
    assert kept == sorted(kept)
    split = embedkit.split(bench["plain"], out=tmp_path / "split.parquet")
    scores = []
    for name, dataset in (("a", bench["plain"]), ("b", tmp_path / "wide")):
        run = train(dataset, out=tmp_path / name, split=split)
        scores.append(run.content.scores["cross_validation"]["accuracy"].value)
    assert found.accuracies == pytest.approx(scores)
    assert found.difference.value == pytest.approx(scores[1] - scores[0])


def test_what_moved_most_is_first(bench: Bench) -> None:
    X = embedkit.load(bench["plain"]).X.copy()
    X[3, ::3] *= -1
    X[5] *= -1
    found = diff(bench["plain"], X, model="not here")
    assert [(row["row"], row["text"]) for row in found.moved] == [(i, RECORDS[i]) for i in (5, 3)]
    assert found.moved[0]["cosine"] == pytest.approx(-1)
    assert (found.equal, found.same) == (len(X) - 2, False)


def test_records_of_other_texts_are_left_out(bench: Bench, tmp_path: Path) -> None:
    """Row numbers as ids mean other records in a shuffled corpus."""
    texts = {"a": RECORDS[:9], "b": [*RECORDS[:6], *RECORDS[7:9], RECORDS[6], "more"]}
    for name, some in texts.items():
        bench.extract(some, tmp_path / name)
    found = diff(tmp_path / "a", tmp_path / "b")
    assert (found.joined, found.records, found.other_texts, found.equal) == ("id", 6, 3, 6)
    assert (found.only_a, found.only_b) == (0, 1)
    bench.extract(texts["a"][::-1][:4], tmp_path / "c")
    with pytest.raises(MismatchError, match="another text"):
        diff(tmp_path / "a", tmp_path / "c")
    with pytest.raises(UsageError, match="dataset first"):
        diff(tmp_path / "none", tmp_path / "a")


def test_without_texts_the_numbers_stay(bench: Bench, tmp_path: Path, notes: list[str]) -> None:
    bench.extract(RECORDS, tmp_path / "out", store_text=False)
    found = diff(tmp_path / "out", bench.encode(prompt=""))
    assert found.explanation is None
    assert found.distance["median"] > ROUNDING
    assert any("stores no texts" in note for note in notes)
    assert len(found.to_frame()) == len(found.moved) == 20


@pytest.mark.parametrize("count", [1, 11])
def test_of_few_texts_no_neighbours_are_compared(bench: Bench, tmp_path: Path, count: int) -> None:
    bench.extract(RECORDS[:count], tmp_path / "a")
    np.save(tmp_path / "b.npy", -embedkit.load(tmp_path / "a").X)
    shown = invoke("diff", tmp_path / "a", tmp_path / "b.npy").output
    assert "fewer than 12 texts" in shown
    assert "nan" not in shown
