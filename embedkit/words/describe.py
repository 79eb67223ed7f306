"""How the uses of a word differ: cosines, clusters, layers, and the words near each cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.dataset.store import Layout, VectorData
from embedkit.encoding.views import LayerSpec
from embedkit.errors import UsageError
from embedkit.search.exact import unit_rows
from embedkit.types import Float32, Int64
from embedkit.words.matching import EDGES, find_word
from embedkit.words.uses import Use, UseVectors, layer_tables

__all__ = ["LayerReport", "Neighbour", "WordReport", "describe_uses"]

_MOST_CLUSTERS = 6
_LEAST_SILHOUETTE = 0.1
_SAMPLED_RECORDS = 1_000
_SAMPLED_WORDS = 4_000
_NEIGHBOURS = 8
_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class LayerReport:
    """Cosines of the uses at one layer.

    Attributes:
        layer: its name, such as ``12`` or ``sum_9to12``.
        cosine: mean cosine of two different uses.
        within: mean cosine of two uses of one cluster.
        between: mean cosine of two uses of different clusters; NaN with one cluster.
        others: mean cosine of any two words of the dataset, from a random sample of all its
            records: the baseline of this layer; NaN where there is no word table.
    """

    layer: str
    cosine: float
    within: float
    between: float
    others: float


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
        examples: indices of the uses nearest to the mean of each cluster.
        layers: every layer.
        neighbours: other words nearest to each cluster; empty where there is no word table.
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
    skipped: int


def describe_uses(
    found: UseVectors,
    word: str,
    *,
    layer: LayerSpec | None = None,
    clusters: int | None = None,
    seed: int = 0,
) -> WordReport:
    """Compare the uses of a word with each other and with other words.

    Args:
        found: the uses.
        word: the word.
        layer: for clusters and neighbours, one of the layers or a combination of them; by default
            the last one.
        clusters: their number; by default the number with the highest silhouette, at most six.
        seed: of the sample of other words.

    Raises:
        UsageError: there is no such layer.
    """
    vectors = dict(found.vectors)
    chosen = list(vectors)[-1] if layer is None else layer.name
    parts = [chosen] if layer is None or chosen in vectors else [str(i) for i in layer.layers]
    if not vectors.keys() >= set(parts):
        raise UsageError(f"layer={chosen!r}: expected one of {', '.join(vectors)}.")
    vectors[chosen] = _combined(chosen, [vectors[part] for part in parts])
    units = {name: unit_rows(values) for name, values in vectors.items()}
    unit = units[chosen]
    labels = _clusters(unit, clusters)
    means = [unit[labels == c].mean(axis=0) for c in range(labels.max() + 1)]
    examples = []
    for c, mean in enumerate(means):
        mine = np.flatnonzero(labels == c)
        order = mine[np.argsort(-(unit[mine] @ mean), kind="stable")]
        examples.append(tuple(int(i) for i in order[:3]))
    data = found.data if found.data and Layout(found.data.path).shard_files("words") else None
    any_two = {} if data is None else _mean_cosines(data, seed)
    near: tuple[tuple[Neighbour, ...], ...] = ()
    if data is not None:
        near = _near(data, word, chosen, parts, unit_rows(np.array(means, np.float32)))
    different, same = ~np.eye(len(labels), dtype=bool), labels[:, None] == labels
    layers = []
    for name, of_layer in units.items():
        cosines = of_layer @ of_layer.T
        layers.append(LayerReport(
            layer=name,
            cosine=_mean(cosines[different]),
            within=_mean(cosines[different & same]),
            between=_mean(cosines[~same]),
            others=any_two.get(name, _NAN),
        ))  # fmt: skip
    return WordReport(
        word=word, layer=chosen, uses=found.uses, cosines=unit @ unit.T, clusters=labels,
        examples=tuple(examples), neighbours=near, skipped=found.skipped,
        layers=tuple(layers),
    )  # fmt: skip


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
    order = np.argsort(-np.bincount(labels), kind="stable")
    return np.argsort(order, kind="stable")[labels]


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else _NAN


def _mean_cosines(data: VectorData, seed: int) -> dict[str, float]:
    """Mean cosine of any two of a random sample of all words, by layer."""
    random = np.random.default_rng(seed)
    rows = random.choice(data.row, min(len(data), _SAMPLED_RECORDS), replace=False)
    keys = np.empty(0)
    kept: dict[str, Float32] = {}
    for table in layer_tables(data, "words", rows=np.sort(rows)):
        keys = np.append(keys, random.random(len(table.row)))
        lowest = np.argsort(keys, kind="stable")[:_SAMPLED_WORDS]
        keys = keys[lowest]
        for name, values in table.layers.items():
            whole = np.concatenate([kept[name], values]) if name in kept else values
            kept[name] = whole[lowest]
    if (n := len(keys)) < 2:
        return {}
    units = {name: unit_rows(values).astype(np.float64) for name, values in kept.items()}
    return {
        name: float((np.sum(unit.sum(axis=0) ** 2) - np.sum(unit**2)) / (n * (n - 1)))
        for name, unit in units.items()
    }


def _near(
    data: VectorData, word: str, layer: str, parts: Sequence[str], means: Float32
) -> tuple[tuple[Neighbour, ...], ...]:
    """Other words nearest to the mean of each cluster, each form once."""
    best: list[dict[str, Neighbour]] = [{} for _ in means]
    for table in layer_tables(data, "words", layers=parts):
        vectors = _combined(layer, [table.layers[name] for name in parts])
        scores = unit_rows(vectors) @ means.T
        for i, text in enumerate(table.text or ()):
            form = text.casefold().strip(EDGES)
            if not form or find_word(text, word):
                continue
            for c, found in enumerate(best):
                if form not in found or scores[i, c] > found[form].cosine:
                    found[form] = Neighbour(form, float(scores[i, c]), int(table.row[i]))
    return tuple(
        tuple(sorted(found.values(), key=lambda one: -one.cosine)[:_NEIGHBOURS]) for found in best
    )
