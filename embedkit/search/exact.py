"""Exact nearest neighbours, computed from the row groups of the Parquet files.

    row groups (rows, width)        queries (q, width)
      0 ─► products (tile, rows) ─► the k nearest of the group ─┐
      1 ─► products …            ─► the k nearest of the group ─┤ heap ─► scores, positions (q, k)
      … (side by side in threads)                               ┘ in the order of the groups

What is notable:

- Products are NumPy's, not those of ``faiss.knn``, which compares pair by pair for fewer than some
  hundred queries and of records with equal scores does not keep the first ones.
- Results are merged in the order of the row groups, whichever thread is first, so that the order of
  records with equal scores does not depend on threads.
- Vectors stay as stored; a cosine is a product times a factor of the row. Memory holds a row group
  and a tile of scores for each thread, and ``k`` results for each query.
- A :class:`Searcher` looks for more than it returns, since repeated texts are one answer, and asks
  again for four times as many where that was too few.
- :func:`near_duplicates` compares every two texts, so that none is missed.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import combinations_with_replacement, islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedkit.arguments import accepts, matrix_of, strings_of
from embedkit.choices import SearchMetric, WhiteningKind, documented
from embedkit.dataset.encoders import DatasetEncoder, encode_as
from embedkit.dataset.parquet import places
from embedkit.dataset.read import VectorData, load, text_keys
from embedkit.dataset.tables import Block
from embedkit.display import Shown, count_text
from embedkit.encoding.windows import ends_of, match
from embedkit.errors import Message, Option, UsageError, first_line
from embedkit.machine import blas_with_one_thread, faiss_with_threads, usable_cores
from embedkit.records import Positive
from embedkit.types import (
    AnyPath,
    Bool,
    Float32,
    Int64,
    Progress,
    ProgressCallback,
    Reloaded,
    no_progress,
    steps,
)

logger = logging.getLogger(__name__)


# records that a whitening is fitted to, and the share of their variance that it keeps
_FITTED, _VARIANCE = 50_000, 0.99
_TILE = 1 << 21  # scores that a thread holds at once: 8 MB
_BLOCKS = 4  # row groups that a thread works on before the results are merged
_MOST_OF_INDEX = 2_048  # beyond that exact search is faster
_HELD = 1 << 30  # bytes of vectors that a warm searcher keeps in memory
_PAIRS_TILE = 4_096  # records of which all pairs are compared at once, whose products take 64 MB
_LAST_DIGITS = 1e-6  # relative, in which products of equal vectors may differ
_SAME_TEXT = 1 - 1e-4  # cosine of a text with itself, also where half precision rounds
_MOST_PAIRS = 1_000_000  # near-duplicates: nobody reads more, and each takes half a kilobyte


def chosen_records(data: VectorData, condition: str) -> Bool:
    """Records ``(n,)`` for which an SQL condition is true, one at least.

    Only the columns in it are read.
    """
    import duckdb

    columns = data.columns
    # a column is read if all words of its name occur in the condition: too many
    # are harmless, parsing SQL is not needed
    # a text is no name; an apostrophe in a name or a comment begins none
    plain = re.sub(r"""("[^"]*"|--.*|(?s:/\*.*?\*/))|'[^']*'""", r"\1", condition)
    words = {word.casefold() for word in re.findall(r"\w+", plain)}
    read_columns = [name for name in columns if set(re.findall(r"\w+", name.casefold())) <= words]
    # names of SQL have no case, so that one of them would be read for the other
    folded = Counter(map(str.casefold, read_columns))
    if alike := [name for name in read_columns if folded[name.casefold()] > 1]:
        problem = f"{', '.join(alike)} differ in case alone, which SQL does not tell apart."
        raise UsageError(problem, where=condition)
    chosen = np.zeros(len(data), bool)
    # longer than the name of any column, which the condition may be about
    number = "n" * (max(map(len, columns)) + 1)
    # a condition is an expression of the user's, not a way to other files
    with duckdb.connect(":memory:", config={"enable_external_access": "false"}) as database:
        # a condition without columns, such as `1 = 1`, still needs the number of rows
        for block, rows in data.reader.scalars(read_columns or columns[:1]):
            # a filter keeps no row numbers, so they travel with the rows
            table = rows.append_column(number, pa.array(np.arange(block.start, block.stop)))
            try:
                matches = database.from_arrow(table).filter(condition).project(number).fetchnumpy()
            except duckdb.Error as error:
                raise UsageError(
                    f"{first_line(error)}. The columns are {', '.join(columns)}; an example: label "
                    "= '1'.",
                    where=condition,
                ) from error
            chosen[np.asarray(matches[number], np.int64)] = True
    if not chosen.any():
        raise UsageError(f"no record of {data.path} matches.", where=condition)
    return chosen


class Whitening(NamedTuple):
    """A linear map that centers a view or, with a ``(width, width)`` matrix, whitens it."""

    mean: Float32
    matrix: Float32 | None = None

    def apply(self, vectors: Float32) -> Float32:
        """Centered or whitened vectors, ``(n, width)`` float32."""
        moved = vectors - self.mean
        return np.asarray(moved if self.matrix is None else moved @ self.matrix, np.float32)


def fit_whitening(data: VectorData, kind: str) -> Whitening:
    """Fit a map; whitening to a random sample of up to 50,000 records.

    Whitening keeps the principal components with 99 % of the variance: of fewer records than
    dimensions, all components would make all records equally distant.
    """
    from sklearn.decomposition import PCA

    if len(data) < 2:
        raise UsageError(f"it needs 2 records; {data.path} has {len(data)}.", whitening=kind)
    # in float64: a sum of millions of float32 loses the digits that the mean has
    total = np.zeros(data.width)
    for block in data.reader.blocks:
        total += data.reader.vectors_of(block).sum(axis=0, dtype=np.float64)
    mean = (total / len(data)).astype(np.float32)
    if kind == "center":
        return Whitening(mean)
    random = np.random.default_rng(0)
    # sorted, so that each row group is read once and in order
    sample = np.sort(random.choice(len(data), min(len(data), _FITTED), replace=False))
    vectors = data.reader.vectors_at(sample).astype(np.float64)
    # the width stays: components that are dropped are columns of zeros, which
    # add nothing to any product or distance
    matrix = np.zeros((data.width, data.width), np.float32)
    # equal vectors have no components, and a variance of zero would be divided by
    if (vectors != vectors[0]).any():
        pca = PCA(_VARIANCE, svd_solver="covariance_eigh").fit(vectors)
        matrix[:, : pca.n_components_] = pca.components_.T * pca.explained_variance_**-0.5
    return Whitening(mean, matrix)


Rows = tuple[Float32, Float32, Int64]
"""The chosen records of a row group: vectors ``(rows, width)``, the factor ``(rows,)`` of their
products, and their positions ``(rows,)`` in the dataset."""

Neighbours = tuple[Float32, Int64]
"""Scores and positions of the nearest records of some queries, ``(queries, k)``, nearest first.

A position is -1 where a dataset has fewer than ``k`` records; records with equal scores are in
ascending order.
"""


def nearest(
    data: VectorData,
    queries: Float32,
    *,
    k: int = 10,
    metric: str = "cosine",
    whitening: Whitening | None = None,
    chosen: Bool | None = None,
    read: Callable[[Block], Rows] | None = None,
    threads: int | None = None,
    progress: ProgressCallback = no_progress,
) -> Neighbours:
    """Find the ``k`` nearest records of each query by comparing it with every record.

    Memory holds one row group and one tile of scores for each thread, and ``k`` results of some
    row groups for each query. ``chosen`` are the records to compare with, ``(n,)``; ``read``
    returns a row group from elsewhere than its file.
    """
    rows = read or partial(rows_of, data, metric=metric, whitening=whitening, chosen=chosen)
    queries = np.ascontiguousarray(queries, np.float32)
    if queries.ndim != 2 or queries.shape[1] != data.width:
        raise UsageError(f"queries of shape {queries.shape}: expected (n, {data.width}).")
    k = min(k, max(len(data), 1))
    queries = prepared(queries, metric, whitening)

    # row groups without a chosen record are not read
    blocks = [b for b in data.reader.blocks if chosen is None or chosen[b.start : b.stop].any()]
    threads = max(1, min(threads or usable_cores(), len(blocks)))

    # each task reads, selects and multiplies one row group; what it returns is k results for each
    # query, however large the group is
    def best(block: Block) -> Neighbours:
        """The ``k`` nearest records of a row group, with negated products or squared distances.

        A heap that keeps the smallest values admits only smaller ones and drops the largest index
        of equal ones, so that of equal values the lowest indices are kept. It has to get them in
        this order from every row group.
        """
        vectors, factor, indices = rows(block)
        heap = faiss.ResultHeap(len(queries), min(k, len(vectors)))
        # at least one query, even if a row group has more rows than a tile
        step = max(1, _TILE // len(vectors))
        for first in range(0, len(queries), step):
            tile = queries[first : first + step]
            if metric == "euclid":  # computed in float64
                from sklearn.metrics import euclidean_distances

                values = np.asarray(euclidean_distances(tile, vectors, squared=True), np.float32)
            else:
                values = tile @ vectors.T
                values *= factor
            heap.add_result_subset(np.arange(first, first + len(tile)), values, indices)
        heap.finalize()
        return heap.D, heap.I

    with (
        # one thread of BLAS and of OpenMP in each of ours, so that row groups are read and decoded
        # beside products
        faiss_with_threads(1) as faiss,
        blas_with_one_thread(),
        # together the threads use the cores that one product would
        ThreadPoolExecutor(threads, initializer=partial(faiss.omp_set_num_threads, 1)) as pool,
    ):
        # results are merged in the order of the blocks, whichever thread is first: with equal
        # scores the order of arrival decides
        heap = faiss.ResultHeap(len(queries), k)
        # a pool takes all tasks at once; in portions, as many results
        # are in memory as there are tasks in one
        for start in range(0, len(blocks), _BLOCKS * threads):
            portion = blocks[start : start + _BLOCKS * threads]
            for block, (values, indices) in zip(portion, pool.map(best, portion), strict=True):
                heap.add_result(values, indices)
                progress(Progress("searching", block.stop, len(data), "records"))
        heap.finalize()
    scores = np.sqrt(heap.D) if metric == "euclid" else -heap.D
    if metric == "cosine":  # rounding can lead beyond 1
        scores = np.clip(scores, -1, 1)
    # fewer than k records: the heap's own filling would look like a score
    scores[heap.I < 0] = np.inf if metric == "euclid" else -np.inf
    return scores, heap.I


def rows_of(
    data: VectorData, block: Block, *, metric: str, whitening: Whitening | None, chosen: Bool | None
) -> Rows:
    """Read a row group from its file, for :func:`nearest`."""
    vectors, indices = data.reader.vectors_of(block), np.arange(block.start, block.stop)
    if chosen is not None:
        inside = chosen[block.start : block.stop]
        vectors, indices = vectors[inside], indices[inside]
    vectors = vectors if whitening is None else whitening.apply(vectors)
    # negated here once, as the heap keeps the smallest values. Vectors stay as they were stored:
    # the factor costs one number a row, unit vectors would cost a copy
    factor = _inverse_norms(vectors) if metric == "cosine" else np.ones(len(vectors), np.float32)
    return vectors, -factor, indices


def prepared(vectors: Float32, metric: str, whitening: Whitening | None) -> Float32:
    """Vectors as they are compared: whitened, of length 1 for cosines."""
    if whitening is not None:
        vectors = whitening.apply(vectors)
    return np.ascontiguousarray(unit_rows(vectors) if metric == "cosine" else vectors)


def unit_rows(vectors: Float32) -> Float32:
    """Rows of length 1; rows of zeros stay.

    >>> unit_rows(np.array([[3, 4], [0, 0]], np.float32)).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    return np.asarray(vectors * _inverse_norms(vectors)[:, None], np.float32)


def _inverse_norms(vectors: Float32) -> Float32:
    # without the temporary squares of np.linalg.norm
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    return np.asarray(np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0))


Finder = Callable[..., Neighbours]
"""Finds the ``k`` nearest records of ``(queries, width)`` vectors: called with them and ``k=``."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A record, with its cosine or product (more is nearer), or its distance (less is nearer)."""

    score: float
    row: int
    id: str
    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    # that were kept beside it
    columns: Mapping[str, str | None] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, repr=False)
class Answer(Shown):
    """Nearest records of one query: a text, ``row 7``, or ``vector 0``."""

    query: str
    hits: tuple[Hit, ...]


@documented
class Searcher(Reloaded):
    """Finds the nearest records of a dataset.

    Args:
        dataset: folder that ``extract`` wrote.
        view: a stored view; by default the last mean.
        metric: {SEARCH_METRICS}.
            ``cosine`` compares directions, and is what sentence encoders are trained for; ``dot``
            where the length of a vector counts, as of models that were trained by products;
            ``euclid`` is a distance (less is nearer), computed in float64, which takes longer.
        whitening: {WHITENINGS}, or ``None``.
        where: an SQL condition on the columns, such as ``label = '1'``.
        keep_duplicates: also return records whose text was returned already.
        prefix: put before query texts; by default the prefix of the dataset's texts.
        model: folder or hub id of the checkpoint, if it is not under the name it had.
        device: where to encode queries.
        finder: finds neighbours instead of exact search, see
            :func:`~embedkit.search.index.open_index`.
        warm: load the model at once, and keep up to 1 GB of vectors, and their texts, in memory, so
            that the first answer is as fast as the second: for a process that answers many queries,
            one by one. Without it the model is loaded for the first text, and searches read the
            files.
        progress: called by exact search, in records.

    Raises:
        UsageError: there is no such view or column, or a setting is unknown.
        MismatchError: ``warm``, and the model is not the one that made the dataset.

    Example:
        >>> searcher = embedkit.Searcher("vectors", view="mean_-1")
        >>> answer = searcher.texts("the river bank of town 3", k=1)
        >>> answer.hits[0].row, round(answer.hits[0].score, 3)
        (3, 1.0)
    """

    @accepts()
    def __init__(
        self,
        dataset: AnyPath,
        *,
        view: str | None = None,
        metric: SearchMetric = "cosine",
        whitening: WhiteningKind | None = None,
        where: str | None = None,
        keep_duplicates: bool = False,
        prefix: str | None = None,
        model: AnyPath | None = None,
        device: str = "auto",
        finder: Finder | None = None,
        warm: bool = True,
        progress: ProgressCallback | None = no_progress,
    ) -> None:
        super().__init__(locals())
        if finder is not None and where is not None:
            raise UsageError("it needs exact search; leave the index out.", where=where)
        self.data = load(dataset, view)
        if len(self.data) == 0:
            raise UsageError(f"{dataset} has no records, so there is nothing to find.")
        self._prefix, self._model, self._device = prefix, model, device
        self._chosen = None if where is None else chosen_records(self.data, where)
        # only exact search can be asked for any number of records
        self._is_exact = finder is None
        held = warm and 4 * len(self.data) * self.data.width <= _HELD
        if finder is None:
            fitted = None if whitening is None else fit_whitening(self.data, whitening)
            about: dict[str, Any] = {"metric": metric, "whitening": fitted, "chosen": self._chosen}
            # not put together into larger ones, though each task costs a tenth of a millisecond:
            # the last bits of a product hang on the shape of its matrices, and a warm search
            # answers as a cold one
            read = cache(partial(rows_of, self.data, **about)) if held else None
            about |= {"read": read, "progress": progress or no_progress}
            finder = partial(nearest, self.data, **about)
        self._find = finder
        every, self._keep_duplicates = np.arange(len(self.data)), keep_duplicates
        among = every if self._chosen is None else every[self._chosen]
        _, text = np.unique(every if keep_duplicates else text_keys(self.data), return_inverse=True)
        # a repeated text is known by its first record among those that are searched, or by -1
        first = np.full(len(every), -1)
        first[text[among[::-1]]] = among[::-1]  # of several the last one that is written stays
        self._first = first[text]
        self._kept = self.data.manifest.job.input.keep
        names = ("row", "id", "text", "text_pair", "label", *self._kept)
        columns = [name for name in names if name in self.data.columns]
        self._table_at: Callable[[Int64], pa.Table] = partial(
            self.data.reader.table_at, names=columns
        )
        if held:
            # in one piece: rows of many pieces take milliseconds to find
            records = pa.table({n: self.data.reader.column(n) for n in columns}).combine_chunks()
            self._table_at = lambda indices: records.take(places(indices))
        if warm:
            # a whole answer: it loads the model, reads the vectors into memory and
            # lets libraries allocate what they need
            self._answer(["warm"], self._encoder(["warm"]), 1, {})

    def __repr__(self) -> str:
        return f"Searcher({str(self.data.path)!r}, view={list(self.data.views)})"

    @accepts()
    def texts(self, queries: str | Iterable[str], *, k: Positive = 10) -> Any:
        """Find the nearest records of query texts: an answer for each, in order, or for one text.

        Args:
            queries: a text, or several.
            k: number of hits of each answer. Repeated texts count once, and the price hardly
                grows with ``k``: every record is compared in any case.

        Returns:
            An answer with its hits, the nearest first; for several texts a list of them.

        Raises:
            UsageError: a query is empty.
            MismatchError: the model is not the one that made the dataset.
        """
        texts = [queries] if isinstance(queries, str) else strings_of("queries", queries)
        for number, text in enumerate(texts, 1):
            if not text.strip():
                which = f" (number {number})" if len(texts) > 1 else ""
                raise UsageError(f"the query{which} is empty.")
        self._warn(self._encoder, texts)
        answers = self._answer(texts, self._encoder(texts), k, {})
        return answers[0] if isinstance(queries, str) else answers

    @cached_property
    def _encoder(self) -> DatasetEncoder:
        """Encodes queries as the texts of the dataset were encoded."""
        data, model = self.data, self._model
        manifest, owner = data.manifest, str(data.path)
        encoder = encode_as(manifest, data.views, owner=owner, device=self._device, model=model)
        changes = {} if self._prefix is None else {"prefix": self._prefix}
        if encoder.settings.on_long == "error":  # for the dataset's texts, not for queries
            changes["on_long"] = "truncate"
        return encoder.changed(encoder.encoder, data.views, **changes)

    def _warn(self, encode: DatasetEncoder, texts: Sequence[str]) -> None:
        """Log a warning for each query that was cut or that the vocabulary does not know."""
        # an empty text tells the tokens of the prefix, which belong to no query
        tokens = encode.tokenized(["", *texts])
        kept, counts = tokens.n_kept, np.diff(ends_of(tokens.segment >= 0)[tokens.ends])
        for number, text in enumerate(texts, 1):
            n_tokens = int(counts[number] - counts[0])
            unknown = int(tokens.n_unknown[number] - tokens.n_unknown[0])
            shown = repr(text if len(text) <= 40 else text[:39] + "…")
            if tokens.cut[number]:
                logger.warning(
                    f"query {shown} has {tokens.n_tokens[number]} tokens; only the first "
                    f"{kept[number]} count"
                )
            if not n_tokens:
                logger.warning(f"query {shown} has no tokens; results mean nothing")
            elif 2 * unknown >= n_tokens:
                logger.warning(
                    f"query {shown}: {unknown} of its {n_tokens} tokens are unknown to the model "
                    "([UNK]); results mean little. Does the model know this language?"
                )

    @accepts()
    def like(self, rows: int | Sequence[int], *, k: Positive = 10) -> Any:
        """Find the nearest records of stored ones: an answer for each, in order, or for one row.

        The records themselves are left out, and so are copies of their texts unless
        ``keep_duplicates`` is set.

        Args:
            rows: the number of a record in the input, from 0, or several.
            k: number of hits of each answer.

        Returns:
            As :meth:`texts`; no model is needed.

        Raises:
            UsageError: there is no such row.
        """
        numbers = [rows] if isinstance(rows, int) else list(rows)
        # no row is as large, and no int64 larger
        indices = match(
            np.array([max(-1, min(row, 1 << 62)) for row in numbers], np.int64), self.data.row
        )
        for row, index in zip(numbers, indices, strict=True):
            if index < 0:
                raise UsageError(
                    f"{self.data.path} has no row {row}; rows go from {self.data.row[0]} to "
                    f"{self.data.row[-1]}, and rejects leave gaps."
                )
        names = [f"row {row}" for row in numbers]
        excluded = dict(enumerate(self._first[indices].tolist()))
        answers = self._answer(names, self.data.reader.vectors_at(indices), k, excluded)
        return answers[0] if isinstance(rows, int) else answers

    @accepts()
    def vectors(self, queries: NDArray[Any], *, k: Positive = 10) -> list[Answer]:
        """Find the nearest records of vectors ``(width,)`` or ``(n, width)``.

        Args:
            queries: vectors in the view of the searcher, not whitened.
            k: number of hits of each answer.

        Returns:
            A list of answers, also for one vector; no model is needed.

        Raises:
            UsageError: they have another width or are not finite numbers.
        """
        matrix = matrix_of("queries", queries)
        return self._answer([f"vector {i}" for i in range(len(matrix))], matrix, k, {})

    def _answer(
        self, names: Sequence[str], queries: Float32, k: int, excluded: dict[int, int]
    ) -> list[Answer]:
        """Find a few more than asked for, and still more where too many were duplicates.

        ``excluded`` holds, by the number of a query, the first record of the text that it is.
        """
        total = len(self.data) if self._chosen is None else int(self._chosen.sum())
        if k > total:
            problem = f"more than there are to choose from: {count_text(total, 'record')}"
            logger.warning(Message(f"{Option('k', k)}, {problem}"))
        # the most that an index is asked for: beyond that exact search is faster
        limit = total if self._is_exact else min(total, max(k + 1, _MOST_OF_INDEX))
        # twice as many leave room for repeated texts; the 16 are for small k
        depth = min(limit, k + bool(excluded) if self._keep_duplicates else 2 * k + 16)
        kept: dict[int, list[tuple[float, int]]] = {}
        # queries that have too few distinct texts are asked again for four
        # times as many; all others are settled
        while waiting := [number for number in range(len(names)) if number not in kept]:
            near = self._find(queries[waiting], k=depth)
            for number, scores, indices in zip(waiting, *near, strict=True):
                # by first record of the text; an entry that is exchanged keeps its place
                hits: dict[int, tuple[float, int]] = {}
                for score, index in zip(scores.tolist(), indices.tolist(), strict=True):
                    # -1 stands where there are too few records
                    if index < 0:
                        continue
                    best, record = hits.setdefault(int(self._first[index]), (score, index))
                    # the spelling that is nearest, and of equal ones the first record: products of
                    # equal vectors may differ in their last digits
                    if index < record and abs(best - score) <= _LAST_DIGITS * max(1, abs(best)):
                        hits[int(self._first[index])] = best, index
                hits.pop(excluded.get(number, -1), None)
                if len(hits) >= k or depth >= limit:
                    kept[number] = list(islice(hits.values(), k))
            depth = min(limit, 4 * depth)
        # records are read at the end, each once, in the order of the files
        hit_indices = sorted({index for hits in kept.values() for _, index in hits})
        table = self._table_at(np.array(hit_indices, np.int64))
        records = {}
        for index, record in zip(hit_indices, table.to_pylist(), strict=True):
            columns = {name: record.pop(name) for name in self._kept}
            records[index] = {**record, "columns": columns}
        return [
            Answer(name, tuple(Hit(score, **records[index]) for score, index in kept[number]))
            for number, name in enumerate(names)
        ]


@dataclass(frozen=True, slots=True, repr=False)
class NearDuplicates(Shown):
    """Pairs of near-duplicates, the nearest of a group first; the largest group first.

    A row of ``pairs`` has ``group``, ``cosine``, and ``row``, ``id`` and ``text`` of both records,
    those of the second as ``other_row`` and so on. Of a group of copies of one text each copy is a
    pair with the first of them.
    """

    threshold: float
    records: int  # that were compared
    repeated: int  # records with the text of an earlier one
    grouped: int  # records in a group
    groups: int
    pairs: list[dict[str, Any]]

    def as_rows(self) -> list[dict[str, Any]]:
        """The pairs."""
        return self.pairs


@accepts()
def near_duplicates(
    dataset: AnyPath,
    *,
    threshold: float = 0.95,
    view: str | None = None,
    whitening: WhiteningKind | None = None,
    where: str | None = None,
    progress: ProgressCallback = no_progress,
) -> NearDuplicates:
    """Find all pairs of records with a cosine of at least ``threshold``, and the groups they form.

        records   0 1 2 3   4 5 6 7      products of unit vectors, tile by tile, of what lies
        0 1 2 3     ╲ x x   x x x x      above the diagonal
        4 5 6 7             ╲ x x x

    Every two texts are compared, so that nothing is missed: ten times as many records take a
    hundred times as long. Records that repeat a text, and its vector, are joined to the first one.

    A group holds what pairs connect, so that two of its records may be further apart than the
    threshold. Which threshold suits depends on the model: where any two texts have a high cosine
    (``embedkit info DATASET``), whitening or a higher threshold tells them apart.

    Args:
        dataset: folder that ``extract`` wrote.
        threshold: cosine from which two texts count as nearly the same.
        view: a stored view; by default the last mean.
        whitening: change of all vectors first, as of ``Searcher``.
        where: an SQL condition on the columns: only such records are compared.
        progress: called in blocks of pairs.

    Raises:
        UsageError: there is no such view or column, or there are more than a million pairs.

    Example:
        >>> found = embedkit.near_duplicates("vectors", threshold=0.999)
        >>> found.records, found.repeated
        (12, 0)
    """
    if not 0 < threshold <= 1:
        raise UsageError("expected a cosine above 0, 1 at most.", threshold=threshold)
    data = load(dataset, view)
    chosen = np.arange(len(data))
    if where is not None:
        chosen = np.flatnonzero(chosen_records(data, where))
    # the first record of each text, for all that have it
    _, first, text = np.unique(text_keys(data)[chosen], return_index=True, return_inverse=True)
    first, vectors = first[text], data.reader.vectors_at(chosen)
    fitted = None if whitening is None else fit_whitening(data, whitening)
    unit = prepared(vectors, "cosine", fitted)
    rest = repeats = np.flatnonzero(first != np.arange(len(chosen)))
    # a text of other case, width or spaces, which the model may read, is no copy of the first one:
    # it is compared like all others, and the next of its kind are joined to it
    same = max(_SAME_TEXT, threshold - 1e-6)

    def cosines_of(a: Int64, b: Int64) -> Float32:
        return np.asarray((unit[a] * unit[b]).sum(axis=1))

    # a vector of zeros is unlike itself
    while len(rest := rest[(first[rest] != rest) & (cosines_of(first[rest], rest) < same)]):
        _, at, kind = np.unique(first[rest], return_index=True, return_inverse=True)
        first[rest] = rest[at][kind]
    copies = np.flatnonzero(first != np.arange(len(chosen)))
    texts = np.setdiff1d(np.arange(len(chosen)), copies)
    products = cosines_of(first[copies], copies)
    pairs, cosines = _near_pairs(unit[texts], threshold, progress)
    pairs = np.concatenate([texts[pairs], np.stack([first[copies], copies], axis=1)])
    cosines = np.concatenate([cosines, np.minimum(products, 1)])
    group = _groups(pairs, len(chosen))
    members = np.unique(pairs)
    order = np.lexsort((pairs[:, 1], pairs[:, 0], -cosines, group))
    places = chosen[pairs[order]]
    records = np.unique(places)
    names = [name for name in ("row", "id", "text", "text_pair") if name in data.columns]
    shown = data.reader.table_at(records, names).to_pylist()
    for cells in shown:
        # the texts of a pair as one; none where a dataset stores none
        both = cells.pop("text", ""), cells.pop("text_pair", "")
        cells["text"] = " | ".join(filter(None, both))
    rows = [
        {"group": int(number), "cosine": round(float(cosine), 6)}
        | shown[left]
        | {f"other_{name}": value for name, value in shown[right].items()}
        for (left, right), number, cosine in zip(
            np.searchsorted(records, places).tolist(), group[order], cosines[order], strict=True
        )
    ]
    count = int(group.max(initial=0))
    return NearDuplicates(threshold, len(chosen), len(repeats), len(members), count, rows)


def _near_pairs(
    unit: Float32, threshold: float, progress: ProgressCallback
) -> tuple[Int64, Float32]:
    """Pairs ``(m, 2)`` of rows of length 1, the lower number first, and their cosines ``(m,)``."""
    pairs, cosines, count = [np.empty((0, 2), np.int64)], [np.empty(0, np.float32)], 0
    tiles = [*combinations_with_replacement(range(0, len(unit), _PAIRS_TILE), 2)]
    compared = steps(progress, "comparing", len(tiles), "blocks of pairs")
    for top, left in tiles:
        products = unit[top : top + _PAIRS_TILE] @ unit[left : left + _PAIRS_TILE].T
        # of equal vectors the product is 1 but for the last bits of its sum
        near = products >= threshold - 1e-6
        # a tile on the diagonal has each pair twice, and each record with itself
        rows, columns = np.nonzero(np.triu(near, 1) if top == left else near)
        pairs.append(np.stack([rows + top, columns + left], axis=1))
        cosines.append(np.minimum(products[rows, columns], 1))
        count += len(rows)
        compared()
        if count > _MOST_PAIRS:
            raise UsageError(
                f"more than {_MOST_PAIRS:,} pairs have a cosine of {threshold} or more. Choose a "
                f"higher one, or {Option('whitening', 'center')} where any two texts have a high "
                "cosine."
            )
    return np.concatenate(pairs), np.concatenate(cosines)


def _groups(pairs: Int64, n: int) -> Int64:
    """The number of the group of each pair ``(m,)``, from 1 on, by size, then by first record."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = coo_array((np.ones(len(pairs), np.int8), pairs.T), shape=(n, n))
    _, component = connected_components(edges, directed=False)
    # components are numbered by their first record; those of one record have no pair
    sizes = np.bincount(component, minlength=1)
    number = np.empty(len(sizes), np.int64)
    number[np.argsort(-sizes, kind="stable")] = np.arange(1, len(sizes) + 1)
    return np.asarray(number[component[pairs[:, 0]]], np.int64)
