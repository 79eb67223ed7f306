"""Exact search against plain NumPy, filters, repeated texts, queries without answer."""

from __future__ import annotations

import csv
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_info, threadpool_limits

import embedkit
from embedkit.dataset.read import VectorData
from embedkit.dataset.tables import Block, TableReader
from embedkit.errors import MismatchError, UsageError
from embedkit.search import exact
from embedkit.search.exact import Searcher, chosen_records, fit_whitening, nearest
from tests.finetune_fixtures import write_lines
from tests.processes import command, ends_with, invoke
from tests.store_fixtures import extract_tiny, tiny_model, write_tsv

pytestmark = pytest.mark.usefixtures("quick")

N = 90


@pytest.fixture(scope="module")
def dataset(common: Path) -> Path:
    """A dataset of several shards with a reject in the middle.

    Its texts are of a few words that the tiny model tells apart; every ninth one is repeated.
    """
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
    corpus, pooling = write_tsv(common / "corpus.tsv", rows), ["cls", "mean"]
    return extract_tiny(corpus, common / "data", layers="all", pooling=pooling, shard_rows=20).out


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
    return [a.hits for a in Searcher(dataset, warm=False, **settings).texts(queries, k=k)]


# exact search


METRICS = st.sampled_from(["dot", "euclid"])
ASKED = {"k": st.integers(1, 320), "threads": st.integers(1, 3), "metric": METRICS}


@example(
    rows=125, step=10, seed=479, asked={"k": 15, "threads": 1, "metric": "euclid"}, filtered=False
)
@given(
    rows=st.integers(1, 300),
    step=st.integers(1, 90),
    seed=st.integers(0, 1_000),
    asked=st.fixed_dictionaries(ASKED),
    filtered=st.booleans(),
)
def test_equal_scores_are_in_the_order_of_the_records(
    rows: int, step: int, seed: int, asked: dict[str, Any], filtered: bool
) -> None:
    """A stable sort, in any row groups and threads; products of small integers are exact."""
    random = np.random.default_rng(seed)
    vectors = random.integers(-1, 2, (rows, 16)).astype(np.float32)
    queries = random.integers(-1, 2, (4, 16)).astype(np.float32)
    chosen = random.random(rows) < 0.5 if filtered else None
    found, indices = nearest(Held(vectors, step), queries, chosen=chosen, **asked)
    among = np.arange(rows) if chosen is None else np.flatnonzero(chosen)
    for q, scores in enumerate(plain(vectors, queries, asked["metric"])):
        wanted = among[np.argsort(-scores[among], kind="stable")][: asked["k"]]
        assert indices[q][: len(wanted)].tolist() == wanted.tolist()
        expected = np.abs(scores[wanted]) if asked["metric"] == "euclid" else scores[wanted]
        assert np.allclose(found[q][: len(wanted)], expected)
        assert (indices[q][len(wanted) :] == -1).all()
        assert np.isinf(found[q][len(wanted) :]).all()


def test_a_record_is_nearest_to_itself(dataset: Path) -> None:
    data = embedkit.load(dataset, "mean_2")
    distances, indices = nearest(data, data.X, k=1, metric="euclid")
    assert np.allclose(distances[:, 0], 0, atol=1e-5)
    assert np.array_equal(data.X[indices[:, 0]], data.X)
    cosines, _ = nearest(data, np.concatenate([data.X, -data.X]), k=len(data))
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
    found, indices = nearest(Held(vectors, step), queries, k=9, metric="euclid", threads=2)
    scores = -plain(vectors, queries, "euclid")
    assert np.allclose(found, np.sort(scores, axis=1)[:, :9], rtol=1e-5)
    assert np.allclose(np.take_along_axis(scores, indices, 1), found, rtol=1e-5)


# centring and whitening


def test_centring_and_whitening_are_what_they_say(dataset: Path) -> None:
    data = embedkit.load(dataset, "mean_1")
    X = data.X.astype(np.float64)
    center = fit_whitening(data, "center")
    assert np.allclose(center.mean, X.mean(0), atol=1e-5)
    white = fit_whitening(data, "whiten")
    own = PCA(0.99, whiten=True, svd_solver="covariance_eigh").fit(X)
    moved = white.apply(data.X)
    assert np.allclose(moved[:, : own.n_components_], own.transform(X), atol=1e-3)
    assert not moved[:, own.n_components_ :].any()


def test_a_mean_of_many_has_all_its_digits() -> None:
    vectors = (1e3 + np.random.default_rng(0).random((50_000, 8))).astype(np.float32)
    mean = fit_whitening(Held(vectors, 50_000), "center").mean
    assert np.allclose(mean, vectors.mean(axis=0, dtype=np.float64), rtol=1e-7, atol=0)


def test_whitening_is_fitted_to_records_of_the_whole_dataset(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "_FITTED", 30)
    data = embedkit.load(dataset, "mean_1")
    matrix: Any = fit_whitening(data, "whiten").matrix
    first = PCA(0.99, svd_solver="covariance_eigh").fit(data.X[:30].astype(np.float64))
    assert not np.allclose(matrix[:, 0], first.components_[0] / first.explained_variance_[0] ** 0.5)


def test_search_by_a_map_is_search_among_mapped_vectors(dataset: Path) -> None:
    data = embedkit.load(dataset, "mean_1")
    found, _ = nearest(data, data.X[:4], k=6, whitening=fit_whitening(data, "center"))
    X = data.X - data.X.mean(0)
    assert np.allclose(found, -np.sort(-plain(X, X[:4], "cosine"))[:, :6], atol=1e-4)


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


def test_columns_that_sql_cannot_tell_apart(tmp_path: Path) -> None:
    corpus = write_lines(tmp_path / "c.tsv", "text\tTag\ttag", "good\tA\tB", "bad\tB\tA")
    data = embedkit.load(extract_tiny(corpus, tmp_path / "d", keep=("Tag", "tag")).out)
    with pytest.raises(UsageError, match="Tag, tag differ in case alone"):
        chosen_records(data, "tag = 'A'")
    assert chosen_records(data, "text = 'bad' OR text = 'tag'").tolist() == [False, True]
    for warm in (True, False):  # from memory, and from the files
        hits = Searcher(tmp_path / "d", warm=warm).texts("good").hits
        assert [(hit.text, hit.columns) for hit in hits] == [
            ("good", {"Tag": "A", "tag": "B"}),
            ("bad", {"Tag": "B", "tag": "A"}),
        ]


# searching texts


def test_repeated_texts_are_given_once(dataset: Path, tmp_path: Path) -> None:
    data = embedkit.load(dataset)
    distinct = len(set(data.text))
    assert distinct < len(data)
    once = Searcher(dataset).like([3], k=N)[0].hits
    assert len({hit.text for hit in once}) == len(once) == distinct - 1
    # the first of each text, whatever stands beside it in a product of matrices
    first = {text: row for row, text in zip(data.row[::-1].tolist(), data.text[::-1], strict=True)}
    for query in data.text[:20]:
        alone = Searcher(dataset, warm=False).texts([query], k=N)[0].hits
        assert {hit.row for hit in alone} == set(first.values())
    rows = [{"text": ("good film", "a bus")[i % 2]} for i in range(400)]
    many = Searcher(extract_tiny(rows, tmp_path / "many", shard_rows=90), metric="euclid")
    assert [hit.row for hit in many.texts(["good film"], k=1)[0].hits] == [0]
    # of spellings that the model tells apart, the one whose score it is
    spellings = [{"text": text} for text in ("GOOD MOVIE", "good movie", "a bus")]
    extract_tiny(spellings, tmp_path / "case")
    for metric, score in (("cosine", 1), ("euclid", 0)):
        hit = Searcher(tmp_path / "case", metric=metric).texts("good movie", k=1).hits[0]
        assert (hit.row, hit.score) == (1, pytest.approx(score, abs=1e-3))
    every = Searcher(dataset, keep_duplicates=True).like([3], k=N)[0].hits
    assert Searcher(dataset).like([]) == []
    assert sorted(hit.row for hit in every) == [row for row in data.row.tolist() if row != 3]


def test_a_warm_searcher_reads_nothing_more(dataset: Path, calls_of: Any) -> None:
    searcher = Searcher(dataset)
    reads = [calls_of(TableReader, name) for name in ("vectors_of", "scalars_of", "scalars")]
    answer = searcher.texts("the movie was good", k=3)
    assert reads == [[], [], []]
    assert answer == Searcher(dataset, warm=False).texts("the movie was good", k=3)


def test_lines_of_standard_input_are_queries(dataset: Path, tmp_path: Path) -> None:
    options = ("search", dataset, "-k", "2", "--json")
    done = ends_with(3, *options, cwd=tmp_path, stdin=b"the movie\rwas good\r\n\nbus home")
    assert "the query is empty" in done.stderr
    texts = ("the movie\rwas good", "bus home")
    answers = [json.loads(command(*options, text, cwd=tmp_path).stdout)[0] for text in texts]
    # a line for each, also for the one that has no answer
    answers.insert(1, {"error": "the query is empty."})
    assert list(map(json.loads, done.stdout.splitlines())) == answers


def test_many_repetitions_do_not_crowd_out_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "_MOST_OF_INDEX", 8)  # which exact search may exceed
    rows = [(str(i), "the movie was good", "1") for i in range(120)]
    rows += [("a", "bus home", "0"), ("b", "rain", "0")]
    made = extract_tiny(write_tsv(tmp_path / "c.tsv", rows), tmp_path / "d", shard_rows=50)
    hits = search(made.out, "the movie was good", k=3)[0]
    assert hits[0].text == "the movie was good"
    assert {hit.text for hit in hits} == {"the movie was good", "bus home", "rain"}
    assert Searcher(made.out).texts("the movie was good", k=3).hits == hits


def test_rows_are_record_numbers_not_places(dataset: Path) -> None:
    data = embedkit.load(dataset)
    hits = Searcher(dataset, keep_duplicates=True).like(41, k=5).hits
    for hit in hits:
        place = int(np.flatnonzero(data.row == hit.row)[0])
        expected = data.text[place], data.ids[place], data.labels[place]
        assert (hit.text, hit.id, hit.label) == expected


def test_warnings(dataset: Path, notes: list[str]) -> None:
    searcher = Searcher(dataset)
    searcher.texts(["뷁쀍 Ωμέγα"], k=1)
    assert any("are unknown to the model ([UNK])" in note for note in notes)
    notes.clear()
    searcher.texts(["good " * 50], k=1)
    assert notes == [f"query {'good ' * 7 + 'good…'!r} has 52 tokens; only the first 24 count"]
    searcher.texts(["good"], k=1_000)
    assert notes[1:] == ["k=1000, more than there are to choose from: 89 records"]
    notes.clear()
    searcher.texts(["good 뷁쀍"], k=1)
    assert any("1 of its 2 tokens are unknown" in note for note in notes)


def test_a_long_query_is_cut_where_long_texts_were_refused(
    tmp_path: Path, notes: list[str]
) -> None:
    corpus = write_lines(tmp_path / "c.tsv", "text", "good", "a bus")
    searcher = Searcher(extract_tiny(corpus, tmp_path / "d", on_long="error").out)
    assert searcher.texts("good " * 50, k=1).hits
    assert any("only the first 24 count" in note for note in notes)


OF_A_FILE = "row IN (SELECT 1 FROM read_csv('/etc/passwd'))"


UNANSWERED: list[tuple[Any, str]] = [
    (lambda d: search(d, "  "), "empty"),
    (lambda d: search(d, "good", ""), "number 2"),
    (lambda d: search(d, "good", view="mean_9"), "mean_9"),
    (lambda d: search(d, "good", k=0), "k=0"),
    (lambda d: Searcher(d, warm=False).like([40]), "row 40"),  # which was rejected
    (lambda d: Searcher(d, warm=False).like(10**30), "has no row 10{30}"),
    (lambda d: Searcher(d, warm=False).like(-(10**30)), "has no row -10{30}"),
    (lambda d: search(d, "good", metric="near"), "metric='near'"),
    (lambda d: Searcher(d, warm=False).vectors(np.ones((1, 5))), "16"),
    (lambda d: Searcher(d, warm=False).vectors(np.full((1, 16), np.nan)), "NaN"),
    (lambda d: Searcher(d, warm=False).vectors(np.array([["a"] * 16])), "numbers"),
    (lambda d: embedkit.index(d, kind="tree"), "kind='tree'"),  # type: ignore[arg-type]
    (lambda d: search(d, "good", where="colour = 'red'"), "where="),
    (lambda d: search(d, "good", where="label = "), "where="),
    (lambda d: search(d, "good", where="label = '1'; DROP TABLE x"), "where="),
    (lambda d: search(d, "good", where="n_tokens + "), "where="),
    (lambda d: search(d, "good", where=OF_A_FILE), "where="),
    (lambda d: search(d, "good", model=str(tiny_model(seed=2))), "is not that of"),
]


@pytest.mark.parametrize(("call", "message"), UNANSWERED)
def test_queries_that_cannot_be_answered(dataset: Path, call: Any, message: str) -> None:
    kind = MismatchError if message == "is not that of" else (UsageError, TypeError)
    with pytest.raises(kind, match=message):
        call(dataset)


def test_searches_in_threads_leave_the_number_of_threads(dataset: Path) -> None:
    def threads() -> list[int]:
        return [info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"]

    searcher = Searcher(dataset, warm=False)
    searcher.like(0)  # which loads the libraries
    with threadpool_limits(2, user_api="blas"), ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(lambda _: searcher.like(0), range(100)))) == 100
        assert set(threads()) == {2}


def test_the_prefix_is_not_taken_for_the_query(dataset: Path, notes: list[str]) -> None:
    Searcher(dataset, prefix="the movie was good ").texts(["뷁쀍"], k=1)
    assert any("1 of its 1 tokens are unknown" in note for note in notes)
    notes.clear()
    Searcher(dataset, prefix="뷁쀍 ").texts(["good"], k=1)
    assert notes == []
    Searcher(dataset).texts(["\u200b"], k=1)
    assert any("has no tokens" in note for note in notes)


# the command


def test_the_command_in_all_its_forms(dataset: Path, tmp_path: Path) -> None:
    data = embedkit.load(dataset)
    table = invoke("search", dataset, data.text[0], "-k", 2).output
    assert data.text[0] in table
    answers = invoke("search", dataset, "--like", 0, "--like", 7, "-k", 3, "--json").stdout
    found = json.loads(answers)
    assert [answer["query"] for answer in found] == ["row 0", "row 7"]
    assert all(len(answer["hits"]) == 3 for answer in found)


def test_every_answer_is_one_line(tmp_path: Path) -> None:
    """Of a text with line ends, and of a record without a label."""
    lines = [{"document": "good \x85 \u2028 \v \x1e movie", "label": "1"}, {"document": "bus"}]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    made = extract_tiny(tmp_path / "c.jsonl", tmp_path / "d")
    table = invoke("search", made.out, "good", "-k", 2).stdout.splitlines()
    assert table[1].split() == ["score", "row", "id", "label", "text"]
    assert len(table) == 4


@pytest.mark.parametrize("tile", [3, 4_096])
def test_near_duplicates_are_all_pairs_of_the_threshold(
    dataset: Path, tmp_path: Path, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with all products at once; copies of a text are joined to the first of them."""
    monkeypatch.setattr(exact, "_PAIRS_TILE", tile)
    data = embedkit.load(dataset)
    cosines = np.triu(plain(data.X, data.X, "cosine"), 1)
    threshold = float(np.quantile(cosines[cosines > 0], 0.9))
    found = embedkit.near_duplicates(dataset, threshold=threshold)
    first = {text: row for row, text in reversed(list(zip(data.row, data.text, strict=True)))}
    near = {
        tuple(sorted((first[data.text[a]], first[data.text[b]])))
        for a, b in zip(*np.nonzero(cosines >= threshold), strict=True)
    }
    copies = {(first[t], r) for r, t in zip(data.row, data.text, strict=True) if first[t] != r}
    pairs = [(p["row"], p["other_row"]) for p in found.pairs]
    assert set(pairs) == {pair for pair in near if pair[0] != pair[1]} | copies
    assert (len(pairs), found.repeated) == (len(set(pairs)), len(copies))
    told = [p["cosine"] for p in found.pairs]
    places = np.searchsorted(data.row, np.sort(pairs))
    assert told == pytest.approx(cosines[*places.T], abs=1e-5)
    groups = [p["group"] for p in found.pairs]
    # the largest group first, and of a group the nearest pair
    order = [*zip(groups, told, strict=True)]
    assert order == sorted(order, key=lambda pair: (pair[0], -pair[1]))
    members = [
        {row for p in found.pairs if p["group"] == g for row in (p["row"], p["other_row"])}
        for g in dict.fromkeys(groups)
    ]
    assert [*map(len, members)] == sorted(map(len, members), reverse=True)
    assert found.grouped == sum(map(len, members))
    monkeypatch.setattr(exact, "_MOST_PAIRS", 3)
    with pytest.raises(UsageError, match="more than 3 pairs"):
        embedkit.near_duplicates(dataset, threshold=threshold)
    monkeypatch.undo()
    copy = embedkit.near_duplicates(dataset, threshold=threshold, where="row IN (3, 8)")
    assert (copy.records, copy.repeated, len(copy.pairs)) == (2, 1, 1)
    edges = coo_array((np.ones(len(pairs)), np.transpose(pairs)), shape=(N, N))
    _, parts = connected_components(edges, directed=False)
    assert len({*zip(groups, parts[[a for a, _ in pairs]], strict=True)}) == found.groups
    assert found.groups == len({*groups}) == len({*parts[np.unique(pairs)]})
    out = tmp_path / "pairs.csv"
    answer = invoke("search", dataset, "--duplicates", threshold, "--out", out).stdout
    assert answer.startswith(f"{found.grouped} of {len(data)} records have a near-duplicate")
    assert re.search(rf"^ *1 +{len(members[0])} ", answer, re.MULTILINE)
    with out.open(encoding="utf-8", newline="") as stream:
        assert [int(row["other_row"]) for row in csv.DictReader(stream)] == [b for _, b in pairs]


def test_copies_whose_vectors_differ_are_compared(tmp_path: Path) -> None:
    """Texts that differ in width are copies; the model may read them otherwise."""
    texts = ["good movie", "ｇｏｏｄ movie", "ｇｏｏｄ movie bus", "good movie"]
    folder = extract_tiny(write_lines(tmp_path / "c.tsv", "text", *texts), tmp_path / "d").out
    vectors = embedkit.load(folder).X
    cosines = plain(vectors, vectors, "cosine")
    assert cosines[0, 1] < 0.999 < cosines[0, 3]
    for threshold in (0.999, *(float(c) - 1e-3 for c in (cosines[0, 1], cosines[1, 2]))):
        found = embedkit.near_duplicates(folder, threshold=threshold)
        pairs = {(pair["row"], pair["other_row"]) for pair in found.pairs}
        # a copy is a pair of the first one alone
        near = {(a, b) for a, b in zip(*np.nonzero(np.triu(cosines, 1) >= threshold), strict=True)}
        assert pairs == {pair for pair in near if 3 not in pair} | {(0, 3)}
        assert found.repeated == 2
    assert not embedkit.near_duplicates(folder, threshold=1.0).pairs[1:]
    alone = extract_tiny(write_lines(tmp_path / "a.tsv", "text", "x", "x"), tmp_path / "a").out
    # vectors of zeros are near nothing
    assert embedkit.near_duplicates(alone, whitening="center").repeated == 1
    wide = [texts[0], *[texts[1]] * 1_500]  # joined to the first of them, not each with each
    folder = extract_tiny(write_lines(tmp_path / "w.tsv", "text", *wide), tmp_path / "w").out
    assert len(embedkit.near_duplicates(folder, threshold=0.999).pairs) == 1_499
