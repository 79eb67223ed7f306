"""Words in context: the uses of a word, how they differ, and at which layer.

The vector of a use is the mean over the tokens that touch the word, so that 배 in 배를 is looked at
without its particle where the tokenizer parts them. Uses come from the word or token table of a
dataset, or from sentences that are encoded on the spot.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from embedkit.dataset.store import Layout, VectorData, load
from embedkit.errors import DamagedError, UsageError
from embedkit.search.exact import unit_rows
from embedkit.words.matching import find_word

if TYPE_CHECKING:
    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.views import LayerSpec

__all__ = ["LayerReport", "Neighbour", "Use", "UseVectors", "WordReport", "describe_uses",
           "span_vectors", "uses_in_dataset", "uses_in_texts"]  # fmt: skip

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

_MOST_CLUSTERS = 6
_LEAST_SILHOUETTE = 0.1
_SAMPLED_PAIRS = 2_000
_COMBINATION = re.compile(r"(sum|mean|concat)_(\d+)to(\d+)")


@dataclass(frozen=True, slots=True)
class Use:
    """One place where a word stands.

    Attributes:
        row: record number in the input.
        id: id of the record.
        text: the record's text.
        start: first character of the word.
        end: after its last one.
    """

    row: int
    id: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LayerReport:
    """How alike the uses are at one layer.

    Attributes:
        layer: its name, such as ``12`` or ``sum_9to12``.
        cosine: mean cosine of two different uses.
        within: mean cosine of two uses of one cluster.
        between: mean cosine of two uses of different clusters; NaN with one cluster.
        others: mean cosine of words drawn at random, what any two words have in common at this
            layer; NaN where there is no word table.
        same_sense: share of uses whose nearest other use has the same sense; NaN without senses.
    """

    layer: str
    cosine: float
    within: float
    between: float
    others: float
    same_sense: float


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another word near a cluster.

    Attributes:
        word: the word as written.
        cosine: of its nearest use with the mean of the cluster.
        row: record of that use.
    """

    word: str
    cosine: float
    row: int


@dataclass(frozen=True, slots=True)
class WordReport:
    """What was found about a word.

    Attributes:
        word: the word.
        layer: layer of ``cosines``, clusters and neighbours.
        uses: where it stands.
        cosines: ``(uses, uses)`` float32.
        clusters: ``(uses,)`` cluster of each use, from 0, the largest first.
        examples: numbers of the uses nearest to the middle of each cluster.
        layers: every layer.
        neighbours: other words nearest to each cluster; empty where there is no word table.
        senses: given sense of each use, or ``None``.
        majority: share of the most frequent sense; NaN without senses.
        skipped: uses of which no token was kept, since the text was cut before them.
    """

    word: str
    layer: str
    uses: tuple[Use, ...]
    cosines: Floats
    clusters: Integers
    examples: tuple[tuple[int, ...], ...]
    layers: tuple[LayerReport, ...]
    neighbours: tuple[tuple[Neighbour, ...], ...]
    senses: tuple[str, ...] | None
    majority: float
    skipped: int


@dataclass(frozen=True, slots=True)
class UseVectors:
    """Uses with their vectors.

    Attributes:
        uses: where the word stands.
        vectors: ``(uses, width)`` float32 by layer name.
        skipped: uses without a kept token.
        data: the dataset they come from, or ``None``.
    """

    uses: tuple[Use, ...]
    vectors: dict[str, Floats]
    skipped: int
    data: VectorData | None = None

    def senses(self, column: str | None) -> list[str] | None:
        """Value of a column for the record of each use; ``None`` without a column.

        Raises:
            UsageError: the uses do not come from a dataset, or it has no such column.
        """
        if column is None:
            return None
        if self.data is None:
            raise UsageError("--sense needs a dataset with such a column.")
        values = dict(zip(self.data.row.tolist(), self.data.column(column), strict=True))
        return [str(values[use.row]) for use in self.uses]


def uses_in_dataset(
    dataset: str | Path, word: str, *, match: str = "word", limit: int = 1_000, seed: int = 0
) -> UseVectors:
    """Uses of a word in a dataset that has word or token vectors.

    Args:
        dataset: folder that ``extract --words`` or ``--tokens`` wrote.
        word: the word.
        match: see :data:`~embedkit.words.matching.MATCHES`.
        limit: at most so many uses, drawn at random.
        seed: of the draw.

    Raises:
        UsageError: there are no such vectors, no texts, or the word does not occur.
    """
    data = load(dataset)
    kind = next((k for k in ("tokens", "words") if Layout(data.path).parts(k)), None)
    if kind is None:
        raise UsageError(
            f"{dataset} has no word vectors. Extract again with --words or --tokens, or give "
            "sentences with --text."
        )
    if "text" not in data.columns:
        raise UsageError(f"{dataset} was made with --no-text, so words cannot be looked for.")
    found = [
        Use(int(row), str(id_), text, start, end)
        for row, id_, text in zip(data.row, data.ids, data.text, strict=True)
        for start, end in find_word(text, word, match=match)
    ]
    if len(found) > limit:
        drawn = np.random.default_rng(seed).choice(len(found), limit, replace=False)
        found = [found[int(i)] for i in np.sort(drawn)]
    _require(found, word, str(dataset))
    return _from_tables(data, kind, found, word)


def uses_in_texts(
    encoder: Encoder, texts: Sequence[str], word: str, layers: Sequence[LayerSpec], *,
    match: str = "word", prefix: str = "",
) -> UseVectors:  # fmt: skip
    """Uses of a word in sentences, encoded now.

    Args:
        encoder: the model.
        texts: the sentences.
        word: the word.
        layers: layers to look at.
        match: see :data:`~embedkit.words.matching.MATCHES`.
        prefix: put before every sentence.

    Raises:
        UsageError: the word does not occur.
    """
    uses = [
        Use(row, str(row), text, start, end)
        for row, text in enumerate(texts)
        for start, end in find_word(text, word, match=match)
    ]
    _require(uses, word, "the sentences")
    vectors, there = span_vectors(
        encoder, [u.text for u in uses], [(u.start, u.end) for u in uses], layers, prefix=prefix
    )
    kept = tuple(use for use, is_there in zip(uses, there, strict=True) if is_there)
    if not kept:
        raise UsageError(
            f"{word!r} stands only where the sentences are cut: the model takes "
            f"{encoder.max_length} tokens."
        )
    return UseVectors(kept, vectors, int((~there).sum()))


def span_vectors(
    encoder: Encoder,
    texts: Sequence[str],
    spans: Sequence[tuple[int, int]],
    layers: Sequence[LayerSpec],
    *,
    prefix: str = "",
) -> tuple[dict[str, Floats], NDArray[np.bool_]]:
    """Mean vector of the tokens that touch a span of each text, by one forward pass.

    Args:
        encoder: the model.
        texts: the texts; a repeated one is encoded once.
        spans: first character and end of the span in each.
        layers: layers to look at.
        prefix: put before every text.

    Returns:
        ``(m, width)`` float32 by layer name, of the spans that have a kept token, and ``(n,)``
        bool that says which those are.
    """
    from embedkit.encoding.tokenization import TokenizerSettings

    settings = TokenizerSettings(max_length=encoder.max_length, prefix=prefix)
    parts: dict[str, list[Floats]] = {spec.name: [] for spec in layers}
    there = np.zeros(len(texts), bool)
    for start in range(0, len(texts), 512):
        some = slice(start, start + 512)
        tokenized = encoder.tokenizer.encode(list(texts[some]), settings=settings, offsets=True)
        shard = encoder.encode_shard(tokenized, views=[], token_layers=layers)
        first = 0
        for number, (tokens, (left, right)) in enumerate(
            zip(tokenized, spans[some], strict=True), start=start
        ):
            assert tokens.spans is not None
            mine = first + np.flatnonzero(_touching(tokens.spans, left, right) & ~tokens.special)
            first += tokens.n_kept
            if len(mine):
                there[number] = True
                for name, values in shard.tokens.items():
                    parts[name].append(values[mine].mean(axis=0))
    width = {spec.name: spec.width(encoder.width) for spec in layers}
    return {
        name: np.array(rows, np.float32).reshape(-1, width[name]) for name, rows in parts.items()
    }, there


def describe_uses(
    found: UseVectors,
    word: str,
    *,
    layer: str | None = None,
    clusters: int | None = None,
    senses: Sequence[str] | None = None,
    neighbours: int = 8,
    seed: int = 0,
) -> WordReport:
    """Compare the uses of a word with each other and with other words.

    Args:
        found: the uses.
        word: the word.
        layer: name of the layer for clusters and neighbours, or of a combination of layers that
            are there; by default the last one there is.
        clusters: how many; by default as many as the silhouette asks for, at most six.
        senses: known sense of each use.
        neighbours: how many other words to give for each cluster.
        seed: of the draw of other words.

    Raises:
        UsageError: there is no such layer.
    """
    vectors = dict(found.vectors)
    chosen = list(vectors)[-1] if layer is None else layer
    parts = _parts_of(chosen, vectors)
    if not parts:
        raise UsageError(f"--layer {layer}: there is {', '.join(vectors)}.")
    vectors[chosen] = _combined(chosen, [vectors[part] for part in parts])
    unit = unit_rows(vectors[chosen])
    labels = _clusters(unit, clusters)
    others = _Others(found.data, [use.row for use in found.uses], word, seed)
    reports = tuple(
        _layer_report(name, values, labels, others.likeness(name), senses)
        for name, values in vectors.items()
    )
    middles = [unit[labels == c].mean(axis=0) for c in range(labels.max() + 1)]
    examples = []
    for c, middle in enumerate(middles):
        mine = np.flatnonzero(labels == c)
        order = mine[np.argsort(-(unit[mine] @ middle), kind="stable")]
        examples.append(tuple(int(i) for i in order[:3]))
    majority = float("nan")
    if senses is not None:
        majority = max(list(senses).count(s) for s in set(senses)) / len(senses)
    return WordReport(
        word=word, layer=chosen, uses=found.uses, cosines=unit @ unit.T, clusters=labels,
        examples=tuple(examples), layers=reports,
        neighbours=others.near(chosen, parts, middles, neighbours),
        senses=None if senses is None else tuple(senses), majority=majority,
        skipped=found.skipped,
    )  # fmt: skip


def _parts_of(layer: str, known: Collection[str]) -> list[str]:
    """The stored layers that a layer or a combination is made of; none if one is missing."""
    if layer in known:
        return [layer]
    found = _COMBINATION.fullmatch(layer)
    parts = [str(i) for i in range(int(found[2]), int(found[3]) + 1)] if found else []
    return parts if all(part in known for part in parts) else []


def _combined(layer: str, parts: Sequence[Floats]) -> Floats:
    """Vectors of a combination; as they are means over tokens, it is that of the means."""
    if len(parts) == 1:
        return parts[0]
    if layer.startswith("concat"):
        return np.concatenate(parts, axis=1)
    total = np.sum(parts, axis=0)
    return np.asarray(total / len(parts) if layer.startswith("mean") else total, np.float32)


def _require(uses: Sequence[Use], word: str, where: str) -> None:
    if not uses:
        raise UsageError(
            f"{word!r} does not occur in {where} as a word; --match start finds it at the "
            "beginning of longer words, --match anywhere inside of them."
        )


def _touching(spans: NDArray[Any], start: int, end: int) -> NDArray[np.bool_]:
    return np.asarray((spans[:, 0] < end) & (spans[:, 1] > start) & (spans[:, 1] > spans[:, 0]))


def _from_tables(data: VectorData, kind: str, uses: list[Use], word: str) -> UseVectors:
    """Vectors of uses from the token or word table; memory holds one row group."""
    of_row: dict[int, list[int]] = {}
    for number, use in enumerate(uses):
        of_row.setdefault(use.row, []).append(number)
    sums: dict[str, Floats] = {}
    counts = np.zeros(len(uses), np.int64)
    for table in _tables(data, kind, np.array(sorted(of_row))):
        table = table.filter(_first_text(table, kind))
        row = table.column("row").to_numpy()
        spans = np.stack([table.column(name).to_numpy() for name in ("start", "end")], axis=1)
        found: list[tuple[int, Integers]] = []  # a record may go on in the next row group
        for number in (n for r in np.unique(row).tolist() for n in of_row[r]):
            first, last = np.searchsorted(row, (uses[number].row, uses[number].row + 1))
            touching = _touching(spans[first:last], uses[number].start, uses[number].end)
            found.append((number, first + np.flatnonzero(touching)))
            counts[number] += np.count_nonzero(touching)
        if not any(len(lines) for _, lines in found):
            continue
        for name in (n for n in table.schema.names if n.startswith("layer_")):
            matrix = _matrix(table.column(name))
            total = sums.setdefault(name, np.zeros((len(uses), matrix.shape[1]), np.float32))
            for number, lines in found:
                total[number] += matrix[lines].sum(axis=0)
    there = counts > 0
    if not there.any():
        raise UsageError(f"{word!r} stands only where the texts of {data.path} were cut.")
    return UseVectors(
        tuple(use for use, is_there in zip(uses, there, strict=True) if is_there),
        {name.removeprefix("layer_"): np.asarray(total[there] / counts[there, None], np.float32)
         for name, total in sums.items()},
        int((~there).sum()),
        data,
    )  # fmt: skip


def _first_text(table: pa.Table, kind: str) -> pa.Array:
    """Which lines are of the first text of a pair, and no special tokens."""
    chosen = np.ones(table.num_rows, bool)
    if "segment" in table.schema.names:
        chosen &= table.column("segment").to_numpy() == 0
    if kind == "tokens":
        chosen &= ~table.column("special").to_numpy()
    return pa.array(chosen)


def _tables(
    data: VectorData, kind: str, rows: Integers | None, columns: Sequence[str] | None = None
) -> Any:
    """Row groups of the word or token table; only lines of some records, if they are given."""
    for part in Layout(data.path).parts(kind):
        try:
            with pq.ParquetFile(part, page_checksum_verification=True) as file:
                names = columns or [
                    n for n in file.schema_arrow.names if n not in ("pos", "token_id", "token")
                ]
                for group in range(file.metadata.num_row_groups):
                    if rows is None:
                        yield file.read_row_group(group, columns=list(names))
                        continue
                    here = file.read_row_group(group, columns=["row"]).column("row").to_numpy()
                    mine = np.isin(here, rows)
                    if mine.any():
                        table = file.read_row_group(group, columns=list(names))
                        yield table.filter(pa.array(mine))
        except (ValueError, pa.ArrowException, OSError) as error:
            raise DamagedError(
                f"{part} is damaged: {error}. Run embedkit verify {data.path}."
            ) from error


def _matrix(column: pa.ChunkedArray) -> Floats:
    flat = column.combine_chunks()
    if isinstance(flat, pa.ChunkedArray):
        flat = pa.concat_arrays(flat.chunks)
    values = np.asarray(flat.flatten().to_numpy(zero_copy_only=False), np.float32)
    return values.reshape(len(flat), -1)


def _clusters(unit: Floats, count: int | None) -> Integers:
    """Clusters by average linkage of cosines, numbered from the largest."""
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.metrics import silhouette_score

    n = len(unit)
    distance = np.clip(1 - unit @ unit.T, 0, 2).astype(np.float64)
    np.fill_diagonal(distance, 0)

    def cut(k: int) -> Integers:
        made = AgglomerativeClustering(k, metric="precomputed", linkage="average")
        return np.asarray(made.fit_predict(distance), np.int64)

    labels = np.zeros(n, np.int64)
    if count is not None:
        labels = cut(min(count, n)) if n > 1 and count > 1 else labels
    elif n > 2:
        tried = [cut(k) for k in range(2, min(_MOST_CLUSTERS, n - 1) + 1)]
        scores = [silhouette_score(distance, one, metric="precomputed") for one in tried]
        if max(scores) >= _LEAST_SILHOUETTE:
            labels = tried[int(np.argmax(scores))]
    sizes = np.bincount(labels)
    order = np.argsort(-sizes, kind="stable")
    return np.argsort(order, kind="stable")[labels]


def _layer_report(
    name: str,
    vectors: Floats,
    labels: Integers,
    others: float,
    senses: Sequence[str] | None,
) -> LayerReport:
    unit = unit_rows(vectors)
    cosines = unit @ unit.T
    different = ~np.eye(len(unit), dtype=bool)
    same = labels[:, None] == labels
    right = float("nan")
    if senses is not None and len(unit) > 1:
        nearest = np.where(different, cosines, -np.inf).argmax(axis=1)
        given = np.array(senses)
        right = float((given[nearest] == given).mean())
    return LayerReport(
        layer=name,
        cosine=_mean(cosines[different]),
        within=_mean(cosines[different & same]),
        between=_mean(cosines[~same]),
        others=others,
        same_sense=right,
    )


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else float("nan")


class _Others:
    """The other words of a dataset, from its word table."""

    def __init__(self, data: VectorData | None, rows: Sequence[int], word: str, seed: int) -> None:
        there = data is not None and bool(Layout(data.path).parts("words"))
        self._data = data if there else None
        self._word, self._seed = word, seed
        self._drawn: dict[str, float] | None = None

    def likeness(self, layer: str) -> float:
        """Mean cosine of two words drawn at random, in the table's first row groups."""
        if self._data is None:
            return float("nan")
        if self._drawn is None:
            self._drawn = self._draw(self._data)
        return self._drawn.get(layer, float("nan"))

    def near(
        self, layer: str, parts: Sequence[str], middles: Sequence[Floats], count: int
    ) -> tuple[tuple[Neighbour, ...], ...]:
        """Other words nearest to the middle of each cluster, each form once."""
        if self._data is None or count < 1:
            return ()
        best: list[dict[str, tuple[float, str, int]]] = [{} for _ in middles]
        middle = unit_rows(np.array(middles, np.float32))
        columns = [f"layer_{part}" for part in parts]
        for table in _tables(self._data, "words", None, ["row", "text", *columns]):
            vectors = _combined(layer, [_matrix(table.column(name)) for name in columns])
            scores = unit_rows(vectors) @ middle.T
            texts = table.column("text").to_pylist()
            rows = table.column("row").to_pylist()
            for i, text in enumerate(texts):
                form = text.casefold().strip(".,!?;:\"'()[]…“”‘’~")
                if not form or find_word(text, self._word):
                    continue
                for c, found in enumerate(best):
                    if scores[i, c] > found.get(form, (-2.0,))[0]:
                        found[form] = (float(scores[i, c]), form, rows[i])
        return tuple(
            tuple(Neighbour(form, score, row)
                  for score, form, row in sorted(found.values(), key=lambda x: -x[0])[:count])
            for found in best
        )  # fmt: skip

    def _draw(self, data: VectorData) -> dict[str, float]:
        random = np.random.default_rng(self._seed)
        for table in _tables(data, "words", None):
            if table.num_rows < 2:
                continue
            a, b = random.integers(table.num_rows, size=(2, _SAMPLED_PAIRS))
            pairs = a != b
            return {
                name.removeprefix("layer_"): _mean(np.einsum(
                    "ij,ij->i", *(unit_rows(_matrix(table.column(name)))[x[pairs]] for x in (a, b))
                ))
                for name in table.schema.names if name.startswith("layer_")
            }  # fmt: skip
        return {}
