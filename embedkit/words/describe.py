"""How the uses of a word differ: cosines, clusters, layers, and the words near each cluster."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from embedkit.dataset.store import Layout, VectorData
from embedkit.errors import UsageError
from embedkit.search.exact import unit_rows
from embedkit.types import Float32, Int64
from embedkit.words.matching import find_word
from embedkit.words.uses import Use, UseVectors, layer_tables

__all__ = ["LayerReport", "Neighbour", "WordReport", "describe_uses"]

_MOST_CLUSTERS = 6
_LEAST_SILHOUETTE = 0.1
_SAMPLED_PAIRS = 2_000
_COMBINATION = re.compile(r"(sum|mean|concat)_(\d+)to(\d+)")


@dataclass(frozen=True, slots=True)
class LayerReport:
    """Cosines of the uses at one layer.

    Attributes:
        layer: its name, such as ``12`` or ``sum_9to12``.
        cosine: mean cosine of two different uses.
        within: mean cosine of two uses of one cluster.
        between: mean cosine of two uses of different clusters; NaN with one cluster.
        others: mean cosine of randomly drawn words, the baseline of this layer; NaN where there is
            no word table.
        same_sense: fraction of uses whose nearest other use has the same sense; NaN without senses.
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
    """The uses of a word compared with each other and with other words.

    Attributes:
        word: the word.
        layer: layer of ``cosines``, clusters and neighbours.
        uses: its uses.
        cosines: ``(uses, uses)`` float32.
        clusters: ``(uses,)`` cluster of each use, from 0, the largest first.
        examples: numbers of the uses nearest to the mean of each cluster.
        layers: every layer.
        neighbours: other words nearest to each cluster; empty where there is no word table.
        senses: given sense of each use, or ``None``.
        majority: fraction of the most frequent sense; NaN without senses.
        skipped: uses without a kept token, since the text was cut before them.
    """

    word: str
    layer: str
    uses: tuple[Use, ...]
    cosines: Float32
    clusters: Int64
    examples: tuple[tuple[int, ...], ...]
    layers: tuple[LayerReport, ...]
    neighbours: tuple[tuple[Neighbour, ...], ...]
    senses: tuple[str, ...] | None
    majority: float
    skipped: int


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
        layer: name of the layer for clusters and neighbours, or of a combination of stored layers;
            by default the last stored one.
        clusters: their number; by default the number with the highest silhouette, at most six.
        senses: known sense of each use.
        neighbours: number of other words for each cluster.
        seed: of the sample of other words.

    Raises:
        UsageError: there is no such layer.
    """
    vectors = dict(found.vectors)
    chosen = list(vectors)[-1] if layer is None else layer
    parts = _parts_of(chosen, vectors)
    if not parts:
        raise UsageError(f"layer={layer!r}: expected one of {', '.join(vectors)}.")
    vectors[chosen] = _combined(chosen, [vectors[part] for part in parts])
    unit = unit_rows(vectors[chosen])
    labels = _clusters(unit, clusters)
    others = _Others(found.data, word, seed)
    reports = tuple(
        _layer_report(name, values, labels, others.likeness(name), senses)
        for name, values in vectors.items()
    )
    means = [unit[labels == c].mean(axis=0) for c in range(labels.max() + 1)]
    examples = []
    for c, mean in enumerate(means):
        mine = np.flatnonzero(labels == c)
        order = mine[np.argsort(-(unit[mine] @ mean), kind="stable")]
        examples.append(tuple(int(i) for i in order[:3]))
    majority = float("nan")
    if senses is not None:
        majority = max(list(senses).count(s) for s in set(senses)) / len(senses)
    return WordReport(
        word=word, layer=chosen, uses=found.uses, cosines=unit @ unit.T, clusters=labels,
        examples=tuple(examples), layers=reports,
        neighbours=others.near(chosen, parts, means, neighbours),
        senses=None if senses is None else tuple(senses), majority=majority,
        skipped=found.skipped,
    )  # fmt: skip


def _parts_of(layer: str, known: Collection[str]) -> list[str]:
    """The stored layers that a layer or a combination consists of; none if one is missing."""
    if layer in known:
        return [layer]
    found = _COMBINATION.fullmatch(layer)
    parts = [str(i) for i in range(int(found[2]), int(found[3]) + 1)] if found else []
    return parts if all(part in known for part in parts) else []


def _combined(layer: str, parts: Sequence[Float32]) -> Float32:
    """Vectors of a combination: as they are means over tokens, the combination of the means."""
    if len(parts) == 1:
        return parts[0]
    if layer.startswith("concat"):
        return np.concatenate(parts, axis=1)
    total = np.sum(parts, axis=0)
    return np.asarray(total / len(parts) if layer.startswith("mean") else total, np.float32)


def _clusters(unit: Float32, count: int | None) -> Int64:
    """Clusters by average linkage of cosines, numbered from the largest."""
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.metrics import silhouette_score

    n = len(unit)
    distance = np.clip(1 - unit @ unit.T, 0, 2).astype(np.float64)
    np.fill_diagonal(distance, 0)

    def cut(k: int) -> Int64:
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
    vectors: Float32,
    labels: Int64,
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


def _mean(values: Float32) -> float:
    return float(values.mean()) if len(values) else float("nan")


class _Others:
    """The other words of a dataset, from its word table."""

    def __init__(self, data: VectorData | None, word: str, seed: int) -> None:
        has_words = data is not None and bool(Layout(data.path).parts("words"))
        self._data = data if has_words else None
        self._word, self._seed = word, seed
        self._drawn: dict[str, float] | None = None

    def likeness(self, layer: str) -> float:
        """Mean cosine of two random words of the table's first row group."""
        if self._data is None:
            return float("nan")
        if self._drawn is None:
            self._drawn = self._draw(self._data)
        return self._drawn.get(layer, float("nan"))

    def near(
        self, layer: str, parts: Sequence[str], means: Sequence[Float32], count: int
    ) -> tuple[tuple[Neighbour, ...], ...]:
        """Other words nearest to the mean of each cluster, each form once."""
        if self._data is None or count < 1:
            return ()
        best: list[dict[str, Neighbour]] = [{} for _ in means]
        mean = unit_rows(np.array(means, np.float32))
        for table in layer_tables(self._data, "words", layers=parts):
            vectors = _combined(layer, [table.layers[name] for name in parts])
            scores = unit_rows(vectors) @ mean.T
            for i, text in enumerate(table.text or ()):
                form = text.casefold().strip(".,!?;:\"'()[]…“”‘’~")
                if not form or find_word(text, self._word):
                    continue
                for c, found in enumerate(best):
                    if form not in found or scores[i, c] > found[form].cosine:
                        found[form] = Neighbour(form, float(scores[i, c]), int(table.row[i]))
        return tuple(
            tuple(sorted(found.values(), key=lambda one: -one.cosine)[:count]) for found in best
        )

    def _draw(self, data: VectorData) -> dict[str, float]:
        random = np.random.default_rng(self._seed)
        for table in layer_tables(data, "words"):
            if len(table.row) < 2:
                continue
            a, b = random.integers(len(table.row), size=(2, _SAMPLED_PAIRS))
            different = a != b
            a, b = a[different], b[different]
            units = {name: unit_rows(values) for name, values in table.layers.items()}
            return {
                name: _mean(np.einsum("ij,ij->i", unit[a], unit[b])) for name, unit in units.items()
            }
        return {}
