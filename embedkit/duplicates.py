"""Near-duplicates of a dataset: pairs of records with nearly the same vector, and their groups.

    records   0 1 2 3   4 5 6 7      products of unit vectors, tile by tile; only what lies above
    0 1 2 3     ╲ x x   x x x x      the diagonal. A pair stands for two different texts: records
    4 5 6 7             ╲ x x x      that repeat a text are joined to the first one with it.

Every two texts are compared, so that nothing is missed, as by an index. That takes width · n² / 2
multiplications: ten times as many records take a hundred times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import storage
from embedkit.arguments import accepts
from embedkit.choices import WhiteningKind
from embedkit.dataset.read import load, text_keys
from embedkit.display import Shown
from embedkit.errors import UsageError
from embedkit.prediction_files import file_format, write_rows
from embedkit.search.exact import chosen_records, fit_whitening, unit_rows
from embedkit.types import AnyPath, Float32, Int64, Progress, ProgressCallback, no_progress

_TILE = 4_096  # records; the products of a tile take 64 MB
_MOST = 1_000_000  # pairs: nobody reads more, and each takes half a kilobyte


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
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> NearDuplicates:
    """Find all pairs of records with a cosine of at least ``threshold``, and the groups they form.

    A group holds what pairs connect, so that two of its records may be further apart than the
    threshold. Which threshold suits depends on the model: where any two texts have a high cosine
    (``embedkit info DATASET``), whitening or a higher threshold tells them apart.

    Args:
        dataset: folder that ``extract`` wrote.
        threshold: cosine from which two texts count as nearly the same.
        view: a stored view; by default the last mean.
        whitening: change of all vectors first, as of ``Searcher``.
        where: an SQL condition on the columns: only such records are compared.
        out: file for the pairs: .tsv, .csv, .jsonl or .parquet.
        overwrite: replace ``out``.
        progress: called in records.

    Raises:
        UsageError: there is no such view or column, or there are more than a million pairs.
        OutputExistsError: ``out`` exists.

    Example:
        >>> found = embedkit.near_duplicates("vectors", threshold=0.999)
        >>> found.records, found.repeated
        (12, 0)
    """
    if not 0 < threshold <= 1:
        raise UsageError(f"near-duplicates of a cosine of {threshold}: expected one in (0, 1].")
    if out is not None:
        file_format(Path(out))
        storage.refuse_existing(Path(out), overwrite=overwrite)
        storage.check_place(Path(out))
    data = load(dataset, view)
    chosen = np.arange(len(data))
    if where is not None:
        chosen = np.flatnonzero(chosen_records(data, where))
    # of each text the first record; the others are copies of it
    _, first, text = np.unique(text_keys(data)[chosen], return_index=True, return_inverse=True)
    texts, copies = np.sort(first), np.flatnonzero(first[text] != np.arange(len(chosen)))
    vectors = data.reader.vectors_at(chosen[texts])
    if whitening is not None:
        vectors = fit_whitening(data, whitening).apply(vectors)
    pairs, cosines = _near_pairs(unit_rows(vectors), threshold, progress)
    pairs = np.concatenate([texts[pairs], np.stack([first[text[copies]], copies], axis=1)])
    cosines = np.concatenate([cosines, np.ones(len(copies), np.float32)])
    group = _groups(pairs, len(chosen))
    members = np.unique(pairs)
    order = np.lexsort((pairs[:, 1], pairs[:, 0], -cosines, group))
    places = chosen[pairs[order]]
    names = [name for name in ("row", "id", "text", "text_pair") if name in data.columns]
    found = data.reader.pick(np.unique(places), names)
    at = np.searchsorted(np.unique(places), places).tolist()
    rows = [
        {"group": int(number), "cosine": round(float(cosine), 6)}
        | {name: found[name][one] for name in names}
        | {f"other_{name}": found[name][other] for name in names}
        for (one, other), number, cosine in zip(at, group[order], cosines[order], strict=True)
    ]
    if out is not None:
        types = {"row": "int64", "id": "string", "text": "string", "text_pair": "string"}
        columns = {"group": "int64", "cosine": "float64"} | {n: types[n] for n in names}
        columns |= {f"other_{name}": types[name] for name in names}
        write_rows(rows, columns, Path(out), overwrite=overwrite)
    count = int(group.max(initial=0))
    return NearDuplicates(threshold, len(chosen), len(copies), len(members), count, rows)


def _near_pairs(
    unit: Float32, threshold: float, progress: ProgressCallback
) -> tuple[Int64, Float32]:
    """Pairs ``(m, 2)`` of rows of length 1, the lower number first, and their cosines ``(m,)``."""
    pairs, cosines, count = [np.empty((0, 2), np.int64)], [np.empty(0, np.float32)], 0
    for start in range(0, len(unit), _TILE):
        for other in range(start, len(unit), _TILE):
            products = unit[start : start + _TILE] @ unit[other : other + _TILE].T
            near = products >= threshold
            # a tile on the diagonal has each pair twice, and each record with itself
            one, two = np.nonzero(np.triu(near, 1) if start == other else near)
            pairs.append(np.stack([one + start, two + other], axis=1))
            cosines.append(np.minimum(products[one, two], 1))
            count += len(one)
            if count > _MOST:
                raise UsageError(
                    f"more than {_MOST:,} pairs have a cosine of {threshold} or more. Choose a "
                    "higher one, or whitening='center' where any two texts have a high cosine."
                )
        progress(Progress("comparing", min(start + _TILE, len(unit)), len(unit), "records"))
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
