"""Exact search against plain NumPy, filters, repeated texts, queries without answer."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from sklearn.covariance import ledoit_wolf

import embedkit
from embedkit.cli.main import cli
from embedkit.dataset.reader import Block
from embedkit.dataset.schema import cast_for_storage
from embedkit.dataset.store import Layout, VectorData
from embedkit.dataset.verification import verify
from embedkit.encoding.encoder import Encoder
from embedkit.errors import DamagedError, UsageError
from embedkit.search.exact import nearest, unit_rows
from embedkit.search.searcher import QueryEncoder, Searcher, read_queries
from embedkit.search.where import chosen_records
from embedkit.search.whitening import fit_whitening, load_whitening
from tests.processes import ROOT
from tests.store_fixtures import ROWS, load_quickly, loading_quickly, tiny_model, write_tsv

N = 90


def corpus_of(path: Path) -> Path:
    """Texts of a few words that the tiny model tells apart; every ninth one is repeated."""
    random = np.random.default_rng(5)
    words = ["the", "movie", "was", "good", "bad", "bus", "home", "rain", "여행", "영화", "정말"]
    rows: list[tuple[str, str, str]] = []
    texts: list[str] = []
    for i in range(N):
        text = " ".join(random.choice(words, random.integers(2, 9)))
        if i % 9 == 8:
            text = texts[i - 5]
        texts.append(text)
        rows.append((f"id{i}", "" if i == 40 else text, str(i % 3)))
    return write_tsv(path, rows)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A dataset of several shards with a reject in the middle."""
    folder = tmp_path_factory.mktemp("search")
    with loading_quickly():
        embedkit.extract(
            corpus_of(folder / "corpus.tsv"), out=folder / "data", model=str(tiny_model()),
            layers="all", pooling=["cls", "mean"], shard_rows=20,
        )  # fmt: skip
        yield folder / "data"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Load the tiny model once, not for every search; see what is logged, also after a command."""
    monkeypatch.setattr(Encoder, "load", load_quickly)
    monkeypatch.setattr(logging.getLogger("embedkit"), "propagate", True)
    caplog.set_level(logging.INFO, logger="embedkit")


def plain(X: Any, queries: Any, metric: str) -> Any:
    """Scores of all records by the definition; more is nearer."""
    X, q = X.astype(np.float64), queries.astype(np.float64)
    if metric == "dot":
        return q @ X.T
    if metric == "euclid":
        return -np.linalg.norm(q[:, None] - X[None], axis=2)
    lengths = np.linalg.norm(q, axis=1)[:, None] * np.linalg.norm(X, axis=1)
    return q @ X.T / lengths


class Held(VectorData):
    """Vectors ``(n, width)`` as a dataset with row groups of ``step`` rows."""

    def __init__(self, vectors: Any, step: int = 60) -> None:
        self._vectors = vectors
        self.reader: Any = self
        starts = range(0, len(vectors), step)
        self.blocks = [
            Block(i, 0, start, min(step, len(vectors) - start), None)
            for i, start in enumerate(starts)
        ]

    def __len__(self) -> int:
        return len(self._vectors)

    @property
    def width(self) -> int:
        return int(self._vectors.shape[1])

    def vectors_of(self, block: Block) -> Any:
        return self._vectors[block.start : block.stop].copy()


def search(dataset: Path, *queries: str, k: int = 10, **settings: Any) -> Any:
    """Hits of some texts, a list for each."""
    return [a.hits for a in Searcher(dataset, **settings).texts(queries, k=k)]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged, which is forgotten."""
    messages = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return messages


# exact search


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclid"])
@pytest.mark.parametrize("threads", [1, 3])
def test_nearest_is_a_sort_of_all_scores(dataset: Path, metric: str, threads: int) -> None:
    data = embedkit.load(dataset, "cls_1")
    queries = np.random.default_rng(1).normal(size=(7, data.width)).astype(np.float32)
    found = nearest(data, queries, k=12, metric=metric, threads=threads)
    scores = plain(data.X, queries, metric)
    wanted = -np.sort(-scores, axis=1)[:, :12]
    sign = -1 if metric == "euclid" else 1
    assert np.allclose(sign * found.scores, wanted, atol=2e-5)
    assert np.allclose(np.take_along_axis(scores, found.indices, 1), wanted, atol=2e-5)


@given(
    rows=st.integers(1, 300), k=st.integers(1, 320), step=st.integers(1, 90),
    threads=st.integers(1, 3), seed=st.integers(0, 1_000),
    metric=st.sampled_from(["dot", "euclid"]), filtered=st.booleans(),
)  # fmt: skip
def test_equal_scores_are_in_the_order_of_the_records(
    dataset: Path, rows: int, k: int, step: int, threads: int, seed: int, metric: str,
    filtered: bool,
) -> None:  # fmt: skip
    """A stable sort, in any row groups and threads; products of small integers are exact."""
    random = np.random.default_rng(seed)
    vectors = random.integers(-1, 2, (rows, 16)).astype(np.float32)
    queries = random.integers(-1, 2, (4, 16)).astype(np.float32)
    chosen = random.random(rows) < 0.5 if filtered else None
    found = nearest(Held(vectors, step), queries, k=k, metric=metric, chosen=chosen,
                    threads=threads)  # fmt: skip
    among = np.arange(rows) if chosen is None else np.flatnonzero(chosen)
    for q, scores in enumerate(plain(vectors, queries, metric)):
        wanted = among[np.argsort(-scores[among], kind="stable")][:k]
        assert found.indices[q][: len(wanted)].tolist() == wanted.tolist()
        assert np.allclose(
            found.scores[q][: len(wanted)],
            np.abs(scores[wanted]) if metric == "euclid" else scores[wanted],
        )
        assert (found.indices[q][len(wanted) :] == -1).all()
        assert np.isinf(found.scores[q][len(wanted) :]).all()


def test_many_queries_are_compared_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    vectors, queries = (random.normal(size=(n, 16)).astype(np.float32) for n in (400, 33))
    whole = nearest(Held(vectors, 100), queries, k=7)
    monkeypatch.setattr("embedkit.search.exact._TILE", 250)
    tiles = nearest(Held(vectors, 100), queries, k=7)
    assert np.array_equal(whole.indices, tiles.indices)
    assert np.allclose(whole.scores, tiles.scores, atol=1e-6)


def test_a_record_is_nearest_to_itself(dataset: Path) -> None:
    data = embedkit.load(dataset, "mean_2")
    found = nearest(data, data.X, k=1, metric="euclid")
    assert (found.scores[:, 0] == 0).all()
    assert np.array_equal(data.X[found.indices[:, 0]], data.X)
    cosines = nearest(data, np.concatenate([data.X, -data.X]), k=len(data)).scores
    assert np.abs(cosines).max() == 1


@pytest.mark.parametrize("spread", [1.0, 1e-3])
@pytest.mark.parametrize("step", [5, 60, 1_000])
def test_distances_hold_far_from_the_origin(spread: float, step: int) -> None:
    """There the squares of the lengths are millions of times those of the distances."""
    random = np.random.default_rng(4)
    centre = 10 * random.normal(size=16)
    vectors, queries = (
        (centre + spread * random.normal(size=(n, 16))).astype(np.float32) for n in (700, 30)
    )
    vectors[::50] = 0
    found = nearest(Held(vectors, step), queries, k=9, metric="euclid", threads=2)
    scores = -plain(vectors, queries, "euclid")
    assert np.allclose(found.scores, np.sort(scores, axis=1)[:, :9], rtol=1e-5)
    assert np.allclose(np.take_along_axis(scores, found.indices, 1), found.scores, rtol=1e-5)


def test_cosines_of_very_short_and_very_long_vectors() -> None:
    random = np.random.default_rng(4)
    vectors = random.normal(size=(200, 16))
    lengths = 10.0 ** random.integers(-30, 31, (200, 1))
    data = Held((lengths * vectors).astype(np.float32))
    queries = random.normal(size=(3, 16))
    for scale in (1e-25, 1.0, 1e25):
        found = nearest(data, (scale * queries).astype(np.float32), k=200)
        wanted = -np.sort(-plain(vectors, queries, "cosine"), axis=1)
        assert np.allclose(found.scores, wanted, atol=1e-5)


def test_more_than_there_are(dataset: Path) -> None:
    data = embedkit.load(dataset)
    chosen = np.zeros(len(data), bool)
    chosen[[3, 50, 88]] = True
    found = nearest(data, data.X[:2], k=5, chosen=chosen)
    assert found.indices.shape == (2, 5)
    assert sorted(found.indices[0, :3].tolist()) == [3, 50, 88]
    assert (found.indices[:, 3:] == -1).all()
    whole = nearest(data, data.X[:2], k=1_000)
    assert sorted(whole.indices[1].tolist()) == list(range(len(data)))


def test_vectors_of_zeros_have_cosine_zero() -> None:
    assert unit_rows(np.zeros((2, 3), np.float32)).tolist() == [[0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("storage", ["float16", "compact"])
def test_other_storage_is_read_too(tmp_path: Path, storage: str) -> None:
    made = embedkit.extract(write_tsv(tmp_path / "c.tsv"), out=tmp_path / "d",
                            model=str(tiny_model()), storage=storage, shard_rows=4)  # fmt: skip
    data = embedkit.load(made.out)
    found = nearest(data, data.X, k=3)
    assert np.allclose(found.scores, -np.sort(-plain(data.X, data.X, "cosine"))[:, :3], atol=1e-5)


def test_damage_is_named(dataset: Path, tmp_path: Path) -> None:
    import shutil

    copy = shutil.copytree(dataset, tmp_path / "copy")
    part = Layout(copy).shard_file("sentences", 2)
    content = bytearray(part.read_bytes())
    data = embedkit.load(copy)
    chunk = next(
        c for c in map(data.reader.blocks[2].metadata.row_group(0).column, range(20))
        if c.path_in_schema == f"{data.views[0]}.list.element"
    )  # fmt: skip
    content[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 64
    part.write_bytes(content)
    with pytest.raises(DamagedError, match=r"part-00002.parquet is damaged.*embedkit verify"):
        nearest(data, np.ones((1, data.width), np.float32))


# centring and whitening


def test_centring_and_whitening_are_what_they_say(dataset: Path) -> None:
    data = embedkit.load(dataset, "mean_1")
    X = data.X.astype(np.float64)
    center = fit_whitening(data, "center")
    assert np.allclose(center.mean, X.mean(0), atol=1e-6)
    white = fit_whitening(data, "whiten")
    assert white.matrix is not None
    assert np.allclose(white.apply(data.X).mean(0), 0, atol=1e-3)
    # of the shrunk covariance all directions have the same variance
    shrunk = ledoit_wolf(X)[0]
    assert np.allclose(white.matrix.T @ shrunk @ white.matrix, np.eye(data.width), atol=1e-3)


def test_search_by_a_map_is_search_among_mapped_vectors(dataset: Path) -> None:
    data = embedkit.load(dataset, "mean_1")
    learnt = fit_whitening(data, "center")
    found = nearest(data, data.X[:4], k=6, whitening=learnt)
    X = data.X - data.X.mean(0)
    assert np.allclose(found.scores, -np.sort(-plain(X, X[:4], "cosine"))[:, :6], atol=1e-4)


def test_a_map_is_stored_and_belongs_to_its_dataset(dataset: Path, tmp_path: Path) -> None:
    import shutil

    copy = shutil.copytree(dataset, tmp_path / "copy")
    data = embedkit.load(copy, "mean_2")
    first = load_whitening(data, "whiten")
    file = Layout(copy).private / "whitening" / "mean_2.whiten.safetensors"
    written = file.read_bytes()
    again = load_whitening(data, "whiten")
    assert np.array_equal(first.matrix, again.matrix)  # type: ignore[arg-type]
    file.write_bytes(written.replace(data.manifest.fingerprint.encode(), b"0" * 64))
    assert np.array_equal(load_whitening(data, "whiten").mean, first.mean)
    assert file.read_bytes() == written
    file.write_bytes(b"no tensors")
    assert np.array_equal(load_whitening(data, "whiten").mean, first.mean)
    assert verify(copy).ok


# conditions


def test_conditions_choose_records(dataset: Path) -> None:
    data = embedkit.load(dataset)
    labels = np.array(data.column("label"))
    tokens = np.array(data.column("n_tokens"))
    assert np.array_equal(chosen_records(data, "label = '1'"), labels == "1")
    assert np.array_equal(
        chosen_records(data, "n_tokens > 6 AND (label IN ('0','2') OR text LIKE '%bus%')"),
        (tokens > 6)
        & (np.isin(labels, ["0", "2"]) | np.array(["bus" in text for text in data.text])),
    )
    assert chosen_records(data, "true").all()


@pytest.mark.parametrize(
    "condition", ["colour = 'red'", "label = ", "label = '1'; DROP TABLE x", "n_tokens + ",
                  "row IN (SELECT 1 FROM read_csv('/etc/passwd'))"],
)  # fmt: skip
def test_conditions_that_cannot_be_used(dataset: Path, condition: str) -> None:
    with pytest.raises(UsageError, match=r"where=.*The columns are row, id, text, label"):
        chosen_records(embedkit.load(dataset), condition)


# searching texts


def test_a_stored_text_finds_itself(dataset: Path) -> None:
    data = embedkit.load(dataset)
    answers = Searcher(dataset).texts(data.text[:3], k=4)
    for answer, text in zip(answers, data.text, strict=False):
        assert answer.query == text
        assert answer.hits[0].text == text
        assert answer.hits[0].score == pytest.approx(1, abs=1e-5)
        assert len(answer.hits) == 4


def test_repeated_texts_are_given_once(dataset: Path) -> None:
    data = embedkit.load(dataset)
    distinct = len(set(data.text))
    assert distinct < len(data)
    once = Searcher(dataset).like([3], k=N)[0].hits
    assert len({hit.text for hit in once}) == len(once) == distinct - 1
    every = Searcher(dataset, keep_duplicates=True).like([3], k=N)[0].hits
    assert sorted(hit.row for hit in every) == [row for row in data.row.tolist() if row != 3]


def test_many_repetitions_do_not_crowd_out_the_rest(tmp_path: Path) -> None:
    rows = [(str(i), "the movie was good", "1") for i in range(120)]
    rows += [("a", "bus home", "0"), ("b", "rain", "0")]
    made = embedkit.extract(write_tsv(tmp_path / "c.tsv", rows), out=tmp_path / "d",
                            model=str(tiny_model()), shard_rows=50)  # fmt: skip
    hits = search(made.out, "the movie was good", k=3)[0]
    assert hits[0].text == "the movie was good"
    assert {hit.text for hit in hits} == {"the movie was good", "bus home", "rain"}


def test_rows_are_record_numbers_not_places(dataset: Path) -> None:
    data = embedkit.load(dataset)
    hits = Searcher(dataset, keep_duplicates=True).like([41], k=5)[0].hits
    for hit in hits:
        place = int(np.flatnonzero(data.row == hit.row)[0])
        assert (hit.text, hit.id, hit.label) == (
            data.text[place], data.ids[place], data.y[place],
        )  # fmt: skip
    with pytest.raises(UsageError, match=r"has no row 40; rows go from 0 to 89"):
        Searcher(dataset).like([40])


def test_conditions_hold_for_what_is_found(dataset: Path) -> None:
    found = search(dataset, "the bus", where="label = '2'")[0]
    assert {hit.label for hit in found} == {"2"}
    with pytest.raises(UsageError, match=r"where=.* no record of .* matches"):
        Searcher(dataset, where="label = '9'")


def test_queries_get_the_prefix_of_the_dataset(tmp_path: Path) -> None:
    made = embedkit.extract(write_tsv(tmp_path / "c.tsv", ROWS), out=tmp_path / "d",
                            model=str(tiny_model()), prefix="movie ")  # fmt: skip
    own = search(made.out, "a", keep_duplicates=True)[0][0]
    assert own.text == "a"
    assert own.score == pytest.approx(1, abs=1e-5)
    other = search(made.out, "a", prefix="", keep_duplicates=True)[0]
    assert next(hit.score for hit in other if hit.text == "a") < 0.9999


def test_warnings(dataset: Path, caplog: pytest.LogCaptureFixture) -> None:
    searcher = Searcher(dataset)
    searcher.texts(["뷁쀍 Ωμέγα"], k=1)
    assert any("are unknown to the model ([UNK])" in note for note in told(caplog))
    searcher.texts(["good " * 50], k=1)
    assert told(caplog) == [
        f"query {'good ' * 7 + 'good…'!r} has 52 tokens; only the first 24 count, as in the dataset"
    ]
    searcher.texts(["good"], k=1_000)
    assert told(caplog) == ["k=1000, but there are only 89 records to choose from"]


@pytest.mark.parametrize("texts", ["film", ""])
def test_a_single_string_is_refused(dataset: Path, texts: str) -> None:
    with pytest.raises(TypeError, match="a single string was given; expected a list of texts"):
        Searcher(dataset).texts(texts)
    with pytest.raises(TypeError, match="a single string was given; expected a list of texts"):
        QueryEncoder(embedkit.load(dataset))(texts)


@pytest.mark.parametrize("view", ["mean_2", "cls_1"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("storage", ["float32", "float16", "compact"])
def test_queries_are_encoded_as_the_dataset_stores_them(
    tmp_path: Path, storage: str, normalize: bool, view: str
) -> None:
    """Scaled to length 1 and rounded to the storage type where the dataset is."""
    made = embedkit.extract(
        write_tsv(tmp_path / "c.tsv"), out=tmp_path / "d", model=str(tiny_model()), storage=storage,
        normalize=normalize, layers="all", pooling=["cls", "mean"], unicode="nfkc",
    )  # fmt: skip
    data = embedkit.load(made.out, view)
    vectors = QueryEncoder(data)(data.text)
    assert np.allclose(vectors, data.X, rtol=2e-3 if storage != "float32" else 1e-5, atol=1e-5)
    rounded = cast_for_storage(vectors, storage, name=view, rows=np.arange(len(vectors)))
    assert np.array_equal(rounded.astype(np.float32), vectors)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: search(d, "  "), r"the query is empty"),
        (lambda d: search(d, "good", ""), r"the query \(number 2\) is empty"),
        (lambda d: search(d, "good", view="mean_9"), r"has no view 'mean_9'; it has"),
        (lambda d: search(d, "good", k=0), r"k=0: expected 1 or more"),
        (lambda d: search(d, "good", metric="near"), r"metric='near': expected cosine"),
        (lambda d: Searcher(d).vectors(np.ones((1, 5))), r"mean_2 is 16 wide"),
        (lambda d: Searcher(d).vectors(np.full((1, 16), np.nan)), r"NaN or infinity"),
        (
            lambda d: Searcher(d).vectors(np.array([["a"] * 16])),
            r"query vectors of <U1: expected numbers",
        ),
        (
            lambda d: search(d, "good", whitening="round"),
            r"whitening='round': expected center, whiten",
        ),
    ],
)
def test_queries_that_cannot_be_answered(dataset: Path, call: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(dataset)


@pytest.mark.parametrize(("query", "k", "message"), [(" ", 1, "is empty"), ("good", 0, "k=0")])
def test_mistakes_are_found_before_the_model_is_loaded(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, query: str, k: int, message: str
) -> None:
    monkeypatch.setattr("embedkit.search.searcher.QueryEncoder", None)
    with pytest.raises(UsageError, match=message):
        search(dataset, query, k=k)


def test_the_prefix_is_not_taken_for_the_query(
    dataset: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Searcher(dataset, prefix="the movie was good ").texts(["뷁쀍"], k=1)
    assert any("1 of its 1 tokens are unknown" in note for note in told(caplog))
    Searcher(dataset, prefix="뷁쀍 ").texts(["good"], k=1)
    assert told(caplog) == []
    Searcher(dataset).texts(["\u200b"], k=1)
    assert any("contains no tokens" in note for note in told(caplog))


def test_a_long_query_is_cut_where_long_texts_were_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = write_tsv(tmp_path / "c.tsv", [("1", "the movie", "1")])
    made = embedkit.extract(corpus, out=tmp_path / "d", model=str(tiny_model()), on_long="error")
    caplog.clear()
    assert search(made.out, "good " * 50, k=1)[0]
    assert told(caplog)[0].endswith("has 52 tokens; only the first 24 count")


def test_another_model_is_refused(dataset: Path) -> None:
    from embedkit.errors import MismatchError

    with pytest.raises(MismatchError, match=r"is not the checkpoint that .* was made with"):
        search(dataset, "good", model=str(tiny_model(seed=2)))


def test_files_of_queries(tmp_path: Path) -> None:
    file = tmp_path / "q.txt"
    file.write_bytes("\ufeffgood\r\n영화 \x85 x\n".encode())
    assert read_queries(file) == ["good", "영화 \x85 x"]
    for content, message in ((b"", "is empty"), (b"a\n\nb\n", "line 2 is empty"),
                             (b"\xff\n", "it is not UTF-8")):  # fmt: skip
        file.write_bytes(content)
        with pytest.raises(UsageError, match=message):
            read_queries(file)
    with pytest.raises(UsageError, match="No such file"):
        read_queries(tmp_path / "none")


# the command


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(cli, [str(a) for a in arguments], standalone_mode=False)


def test_the_command_in_all_its_forms(dataset: Path, tmp_path: Path) -> None:
    data = embedkit.load(dataset)
    table = run("search", dataset, data.text[0], "-k", 2).output
    assert data.text[0] in table
    found = json.loads(run("search", dataset, "--like", 0, "--like", 7, "-k", 3, "--json").stdout)
    assert [answer["query"] for answer in found] == ["row 0", "row 7"]
    assert all(len(answer["hits"]) == 3 for answer in found)
    (tmp_path / "q.txt").write_text("good\nbad bus\n", "utf-8")
    lines = run("search", dataset, "--queries", tmp_path / "q.txt", "-k", 2, "--tsv").stdout
    rows = [line.split("\t") for line in lines.splitlines()]
    assert rows[0] == ["query", "rank", "score", "row", "id", "label", "text", "text_pair"]
    assert [row[:2] for row in rows[1:]] == [
        ["good", "1"], ["good", "2"], ["bad bus", "1"], ["bad bus", "2"]
    ]  # fmt: skip
    np.save(tmp_path / "v.npy", data.X[5])
    found = json.loads(
        run("search", dataset, "--vector", tmp_path / "v.npy", "-k", 1, "--json").stdout
    )
    assert found[0]["hits"][0]["text"] == data.text[5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a QUERY, or --queries FILE"),
        (("good", "--like", 3), "give a QUERY, or --queries FILE"),
        (("good", "--recall", 0.9), "--recall needs --index"),
        (("good", "--center", "--whiten"), "whitening centers too"),
        (("good", "--index", "hnsw", "--where", "true"), "has no index|needs exact search"),
        (("--vector", "none.npy"), "cannot be read"),
        (("--vector", ROOT / "data/homonyms.tsv"), "cannot be read: .* Give a .npy file"),
    ],
)
def test_options_that_cannot_be_used(dataset: Path, arguments: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        raise run("search", dataset, *arguments).exception


def test_some_records_have_no_label(tmp_path: Path) -> None:
    lines = [{"document": "good", "label": "1"}, {"document": "the bus"}]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    made = embedkit.extract(tmp_path / "c.jsonl", out=tmp_path / "d", model=str(tiny_model()))
    for query in ("good", "the bus"):
        table = run("search", made.out, query, "-k", 2).stdout.splitlines()
        assert table[1].split() == ["score", "row", "id", "label", "text"]
        assert len(table) == 4


def test_every_answer_is_one_line(tmp_path: Path) -> None:
    broken = "good \x85 \u2028 \v \x1e movie"
    made = embedkit.extract(write_tsv(tmp_path / "c.tsv", [("1", broken, "1")]),
                            out=tmp_path / "d", model=str(tiny_model()))  # fmt: skip
    assert len(run("search", made.out, "good", "-k", 1, "--tsv").stdout.splitlines()) == 2


def test_text_cannot_steer_the_terminal(tmp_path: Path) -> None:
    rows = [("1", "good \x1b[2J movie", "1"), ("2", "bad", "0")]
    made = embedkit.extract(write_tsv(tmp_path / "c.tsv", rows), out=tmp_path / "d",
                            model=str(tiny_model()))  # fmt: skip
    assert "\x1b" not in run("search", made.out, "good \x1b[2J movie").output


def test_the_documentation_names_what_exists() -> None:
    import re

    text = (ROOT / "docs/search.md").read_text("utf-8")
    for line in re.findall(r"^embedkit (?:(?!   ).)*", text, re.M):  # up to the remark beside it
        name = line.split()[1]
        known = {option for parameter in cli.commands[name].params for option in parameter.opts}
        assert set(re.findall(r"(?<=\s)--?[a-z][a-z-]*", line)) <= known, line
    known = {o for c in cli.commands.values() for p in c.params
             for o in (*p.opts, *p.secondary_opts)}  # fmt: skip
    assert set(re.findall(r"(?<=`)--[a-z][a-z-]+", text)) <= known
