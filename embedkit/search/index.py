"""Approximate nearest neighbours through faiss, built in a stream and saved beside the dataset.

    OUT/_embedkit/index/mean_6.hnsw.cosine/index.faiss    what faiss wrote
    OUT/_embedkit/index/mean_6.hnsw.cosine/index.json     what it belongs to, how it was measured
    OUT/_embedkit/index/mean_6.hnsw.cosine/places.npy     records in the order they were added

An index appears by one rename when it is complete, carries the fingerprint of its dataset, and is
mapped into memory when opened. Tuning leaves some records out until the settings are measured with
them as queries, so that no query is in the index when its recall is counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit import fsio
from embedkit._version import __version__
from embedkit.dataset.store import Layout, VectorData, load
from embedkit.errors import DamagedError, MismatchError, OutputExistsError, UsageError
from embedkit.search.exact import METRICS, Neighbours, available_threads, nearest, unit_rows
from embedkit.search.whitening import Isotropy, isotropy_of
from embedkit.system import faiss_with_threads

__all__ = ["KINDS", "AnnIndex", "IndexInfo", "TunePoint", "build_index", "open_index"]

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

KINDS = ("flat", "hnsw", "ivf", "ivfpq")

_K = 10
_HELD_OUT = 500
_SINGLE = 100
_LINKS = 16
_EF_CONSTRUCTION = 40
_PER_LIST = 64
_PQ_LEAST = 2_000
_PQ_BITS = 8
_DEFAULT_EF, _DEFAULT_NPROBE = 64, 16
_GRID = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024)
_ENOUGH = 0.999


@dataclass(frozen=True, slots=True)
class TunePoint:
    """One search-time setting and what it costs.

    Attributes:
        setting: ``efSearch`` of hnsw, ``nprobe`` of ivf and ivfpq, 0 of flat.
        recall: share of the ten nearest records that are found, for queries not in the index.
        single_ms: milliseconds of one query alone, median.
        batch_per_second: queries a second, given all together.
    """

    setting: int
    recall: float
    single_ms: float
    batch_per_second: float


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """Content of ``index.json``.

    Attributes:
        fingerprint: of the dataset that it belongs to.
        kind: one of :data:`KINDS`.
        view: the view.
        metric: ``cosine``, ``dot`` or ``euclid``.
        isotropy: ``center``, ``whiten`` or ``None``.
        records: number of records in it.
        width: of the vectors.
        parameters: what it was built with.
        setting: search-time setting that is used unless a recall is asked for.
        curve: what was measured, by ascending setting; empty if it was not tuned.
        nbytes: size of ``index.faiss``.
        seconds: how long it took to build, tuning aside.
        versions: of what made it.
    """

    fingerprint: str
    kind: str
    view: str
    metric: str
    isotropy: str | None
    records: int
    width: int
    parameters: dict[str, int]
    setting: int
    curve: tuple[TunePoint, ...]
    nbytes: int
    seconds: float
    versions: dict[str, str] = field(default_factory=dict)


class AnnIndex:
    """An open index; finds what :func:`~embedkit.search.exact.nearest` does, not always all.

    Args:
        index: what faiss opened.
        info: what it is.
        isotropy: the map that vectors went through before they were added.
        places: ``(n,)`` place of each entry, or ``None`` if they were added in order.
        setting: search-time setting.
    """

    def __init__(
        self,
        index: Any,
        info: IndexInfo,
        isotropy: Isotropy | None,
        places: Integers | None,
        setting: int,
    ) -> None:
        self.info, self.setting = info, setting
        self._index, self._isotropy, self._places = index, isotropy, places

    def __call__(self, queries: Floats, k: int) -> Neighbours:
        """``k`` neighbours of each of ``(queries, width)`` vectors."""
        vectors = _prepared(np.asarray(queries, np.float32), self.info.metric, self._isotropy)
        setting = max(self.setting, k) if self.info.kind == "hnsw" else self.setting
        parameters = _parameters(self.info.kind, setting)
        scores, found = self._index.search(vectors, k, params=parameters)
        if self.info.metric == "euclid":
            scores = np.sqrt(np.maximum(scores, 0))
        if self._places is not None:
            found = np.where(found >= 0, self._places[found], -1)
        return Neighbours(scores.astype(np.float32), found.astype(np.int64))


def build_index(
    dataset: str | Path,
    *,
    kind: str = "hnsw",
    view: str | None = None,
    metric: str = "cosine",
    isotropy: str | None = None,
    tune: bool = False,
    recall: float | None = None,
    seed: int = 0,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Callable[[str, int, int], None] = lambda *_: None,
    notify: Callable[[str], None] = lambda _: None,
) -> IndexInfo:
    """Build an index of a view in one pass over the vectors, and save it beside the dataset.

    Args:
        dataset: folder that ``extract`` wrote.
        kind: ``flat`` (exact, uncompressed), ``hnsw`` (quick, the vectors and their links in
            memory), ``ivf`` (lists, mapped from disk) or ``ivfpq`` (lists of compressed vectors).
        view: a stored view; by default the last mean.
        metric: ``cosine``, ``dot`` or ``euclid``.
        isotropy: ``center`` or ``whiten``, or ``None``.
        tune: measure recall and speed of search-time settings on held-out records.
        recall: choose the quickest setting that reaches it; implies ``tune``.
        seed: of the draw of held-out and training records.
        threads: by default as many as the process may use.
        overwrite: replace an index of the same kind, view and metric.
        progress: called with what is being done, records done and records in all.
        notify: called with sentences for the user.

    Raises:
        UsageError: a setting cannot be used, or there are too few records.
        OutputExistsError: the index is there already.
    """
    _check(kind, metric, recall)
    data = load(dataset, view)
    if len(data) == 0:
        raise UsageError(f"{dataset} has no records, so there is nothing to index.")
    if kind == "ivfpq" and len(data) < _PQ_LEAST:
        raise UsageError(
            f"--kind ivfpq: {len(data):,} records are too few to learn its codes from "
            f"({_PQ_LEAST:,} or more). Use hnsw or flat."
        )
    builder = _Builder(data, kind, metric, isotropy, seed, threads, progress, notify)
    with _new_index(_folder(data, kind, metric, isotropy), overwrite=overwrite) as folder:
        info = builder.run(folder, tune=tune or recall is not None, recall=recall)
        content = json.dumps(asdict(info), ensure_ascii=False, indent=1, sort_keys=True) + "\n"
        fsio.write_durably(folder / "index.json", content.encode(), scratch=folder)
    return info


def open_index(
    data: VectorData,
    *,
    kind: str,
    metric: str = "cosine",
    isotropy: str | None = None,
    recall: float | None = None,
    threads: int | None = None,
) -> AnnIndex:
    """Open the index of a dataset's chosen view.

    Args:
        data: the dataset.
        kind: one of :data:`KINDS`.
        metric: as it was built with.
        isotropy: as it was built with.
        recall: use the quickest setting that reached it when the index was tuned.
        threads: for batches of queries.

    Raises:
        UsageError: there is no such index, or it does not reach the recall.
        MismatchError: it belongs to another state of the dataset.
        DamagedError: its files cannot be read.
    """
    _check(kind, metric, recall)
    folder = _folder(data, kind, metric, isotropy)
    again = f"embedkit index {data.path} --view {data.views[0]} --kind {kind}"
    again += f" --metric {metric}" * (metric != "cosine") + f" --{isotropy}" * bool(isotropy)
    info = _read_info(folder, data, again)
    file = folder / "index.faiss"
    faiss = faiss_with_threads(threads or available_threads())
    try:
        if file.stat().st_size != info.nbytes:
            raise ValueError(f"{file.stat().st_size} bytes, {info.nbytes} were written")
        flag = faiss.IO_FLAG_MMAP if kind.startswith("ivf") else faiss.IO_FLAG_MMAP_IFC
        index = faiss.read_index(str(file), flag)
        places = _read_places(folder / "places.npy", info)
        if index.ntotal != info.records or index.d != info.width:
            raise ValueError(f"it holds {index.ntotal} vectors of width {index.d}")
    except (OSError, ValueError, EOFError, RuntimeError) as error:
        raise DamagedError(
            f"{file} cannot be read: {error}. Build it again: {again} --overwrite."
        ) from error
    learnt = None if isotropy is None else isotropy_of(data, isotropy)
    return AnnIndex(index, info, learnt, places, _setting(info, recall, again))


class _Builder:
    """One index from empty to saved."""

    def __init__(
        self,
        data: VectorData,
        kind: str,
        metric: str,
        isotropy: str | None,
        seed: int,
        threads: int | None,
        progress: Callable[[str, int, int], None],
        notify: Callable[[str], None],
    ) -> None:
        self._data, self._kind, self._metric = data, kind, metric
        self._isotropy_kind = isotropy
        self._isotropy = None if isotropy is None else isotropy_of(data, isotropy, notify=notify)
        self._random = np.random.default_rng(seed)
        self._threads = threads or available_threads()
        self._progress, self._notify = progress, notify

    def run(self, folder: Path, *, tune: bool, recall: float | None) -> IndexInfo:
        faiss = faiss_with_threads(self._threads)
        started = time.perf_counter()
        index, parameters = _empty(self._kind, self._data.width, len(self._data), self._metric)
        self._train(index)
        held = self._held_out() if tune else np.zeros(0, np.int64)
        kept = np.ones(len(self._data), bool)
        kept[held] = False
        late: list[Floats] = []
        for name, part in self._blocks("adding"):
            inside = kept[name.start : name.stop]
            index.add(part if inside.all() else part[inside])
            late.append(part[~inside])
        seconds = time.perf_counter() - started
        curve: tuple[TunePoint, ...] = ()
        if tune:
            curve = self._measure(index, held, kept, np.concatenate(late))
            started = time.perf_counter()
            index.add(np.concatenate(late))
            seconds += time.perf_counter() - started
            places = np.concatenate([np.flatnonzero(kept), held])
            _save_array(folder / "places.npy", places)
        partial = folder / "index.faiss.partial"
        with fsio.storage_errors(partial):
            faiss.write_index(index, str(partial))
        fsio.publish_file(partial, folder / "index.faiss")
        return IndexInfo(
            fingerprint=self._data.manifest.fingerprint, kind=self._kind,
            view="+".join(self._data.views), metric=self._metric, isotropy=self._isotropy_kind,
            records=len(self._data), width=self._data.width, parameters=parameters,
            setting=self._chosen(curve, recall), curve=curve,
            nbytes=(folder / "index.faiss").stat().st_size, seconds=seconds,
            versions={"embedkit": __version__, "faiss": faiss.__version__},
        )  # fmt: skip

    def _blocks(self, what: str) -> Iterator[tuple[Any, Floats]]:
        """Every row group with its vectors as they are added."""
        for block in self._data.blocks:
            vectors = np.empty((block.rows, self._data.width), np.float32)
            self._data.read_block(block, vectors)
            yield block, _prepared(vectors, self._metric, self._isotropy)
            self._progress(what, block.stop, len(self._data))

    def _train(self, index: Any) -> None:
        if index.is_trained:
            return
        wanted = min(len(self._data), max(_PER_LIST * index.nlist, 16_384))
        drawn = np.sort(self._random.choice(len(self._data), wanted, replace=False))
        sample = np.empty((wanted, self._data.width), np.float32)
        for block, vectors in self._blocks("sampling"):
            first, last = np.searchsorted(drawn, (block.start, block.stop))
            sample[first:last] = vectors[drawn[first:last] - block.start]
        self._progress("training", 0, 1)
        index.train(sample)
        self._progress("training", 1, 1)

    def _held_out(self) -> Integers:
        count = min(_HELD_OUT, len(self._data) // 10)
        if count < 1 or len(self._data) - count < _K:
            raise UsageError(
                f"--tune: {len(self._data)} records are too few to hold some out; "
                "exact search answers such a dataset at once."
            )
        return np.sort(self._random.choice(len(self._data), count, replace=False))

    def _measure(
        self, index: Any, held: Integers, kept: NDArray[np.bool_], queries: Floats
    ) -> tuple[TunePoint, ...]:
        """Recall and speed of rising settings, against exact search among the same records."""
        truth = _truth(self._data, held, kept, self._metric, self._isotropy, self._threads)
        numbers = np.flatnonzero(kept)
        points = []
        settings = _settings(self._kind, index)
        for done, setting in enumerate(settings, start=1):
            points.append(_measured(index, self._kind, setting, queries, truth, numbers))
            self._progress("tuning", done, len(settings))
            if points[-1].recall >= _ENOUGH:
                break
        return tuple(points)

    def _chosen(self, curve: Sequence[TunePoint], recall: float | None) -> int:
        wanted = 0.95 if recall is None else recall
        good = [point for point in curve if point.recall >= wanted]
        if curve and not good:
            best = max(curve, key=lambda point: point.recall)
            self._notify(
                f"no setting of {self._kind} reaches recall {wanted}; the best, {best.setting}, "
                f"has {best.recall:.3f} and is used"
            )
            return best.setting
        if good:
            return min(good, key=lambda point: point.setting).setting
        return {"hnsw": _DEFAULT_EF, "flat": 0}.get(self._kind, _DEFAULT_NPROBE)


def _truth(
    data: VectorData,
    held: Integers,
    kept: NDArray[np.bool_],
    metric: str,
    isotropy: Isotropy | None,
    threads: int,
) -> list[set[int]]:
    """For each held-out record, the places of the others that are as near as the tenth."""
    queries = data.vectors_at(held)
    found = nearest(
        data, queries, k=4 * _K, metric=metric, isotropy=isotropy, chosen=kept, threads=threads
    )
    scores = -found.scores if metric == "euclid" else found.scores
    # repeated texts are equally near, so that any of them counts
    edge = scores[:, min(_K, scores.shape[1]) - 1] - 1e-6 * np.abs(scores[:, 0])
    return [
        set(places[(row >= limit) & (places >= 0)].tolist())
        for places, row, limit in zip(found.places, scores, edge, strict=True)
    ]


def _measured(
    index: Any,
    kind: str,
    setting: int,
    queries: Floats,
    truth: Sequence[set[int]],
    numbers: Integers,
) -> TunePoint:
    parameters = _parameters(kind, setting)
    started = time.perf_counter()
    _, found = index.search(queries, _K, params=parameters)
    batch = len(queries) / (time.perf_counter() - started)
    singles = []
    for query in queries[:_SINGLE]:
        started = time.perf_counter()
        index.search(query[None], _K, params=parameters)
        singles.append(time.perf_counter() - started)
    right = sum(
        len(wanted.intersection(numbers[row[row >= 0]].tolist()))
        for row, wanted in zip(found, truth, strict=True)
    )
    there = sum(min(len(wanted), _K) for wanted in truth)
    return TunePoint(setting, right / there, 1e3 * float(np.median(singles)), batch)


def _prepared(vectors: Floats, metric: str, isotropy: Isotropy | None) -> Floats:
    if isotropy is not None:
        vectors = isotropy.apply(vectors)
    return np.ascontiguousarray(unit_rows(vectors) if metric == "cosine" else vectors)


def _empty(kind: str, width: int, records: int, metric: str) -> tuple[Any, dict[str, int]]:
    """A new faiss index and what it was made with."""
    import faiss

    measure = faiss.METRIC_L2 if metric == "euclid" else faiss.METRIC_INNER_PRODUCT
    if kind == "flat":
        return faiss.IndexFlat(width, measure), {}
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(width, _LINKS, measure)
        index.hnsw.efConstruction = _EF_CONSTRUCTION
        return index, {"M": _LINKS, "efConstruction": _EF_CONSTRUCTION}
    lists = max(1, min(int(4 * records**0.5), records // 39))
    coarse = faiss.IndexFlat(width, measure)
    if kind == "ivf":
        index = faiss.IndexIVFFlat(coarse, width, lists, measure)
        parameters = {"nlist": lists}
    else:
        pieces = next(m for m in range(max(width // 4, 1), 0, -1) if width % m == 0)
        index = faiss.IndexIVFPQ(coarse, width, lists, pieces, _PQ_BITS, measure)
        index.pq.cp.min_points_per_centroid = 1
        parameters = {"nlist": lists, "m": pieces, "nbits": _PQ_BITS}
    index.cp.min_points_per_centroid = 1  # else it writes warnings to standard error
    return index, parameters


def _settings(kind: str, index: Any) -> list[int]:
    if kind == "flat":
        return [0]
    if kind == "hnsw":
        return [ef for ef in _GRID if ef >= _K]
    return [n for n in _GRID if n < index.nlist] + [index.nlist]


def _parameters(kind: str, setting: int) -> Any:
    import faiss

    if kind == "flat":
        return None
    if kind == "hnsw":
        return faiss.SearchParametersHNSW(efSearch=setting)
    return faiss.SearchParametersIVF(nprobe=setting)


def _check(kind: str, metric: str, recall: float | None) -> None:
    if kind not in KINDS:
        raise UsageError(f"index {kind!r}: expected {', '.join(KINDS)}.")
    if metric not in METRICS:
        raise UsageError(f"--metric {metric}: expected {', '.join(METRICS)}.")
    if recall is not None and not 0 < recall <= 1:
        raise UsageError(f"--recall {recall}: expected more than 0 and at most 1.")


def _folder(data: VectorData, kind: str, metric: str, isotropy: str | None) -> Path:
    name = ".".join(["+".join(data.views), kind, metric, *([isotropy] if isotropy else [])])
    return Layout(data.path).private / "index" / name


@contextmanager
def _new_index(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """A folder to fill, which becomes ``target`` when the block ends without an error."""
    if target.exists() and not overwrite:
        raise OutputExistsError(f"{target} is there already; give --overwrite to build it again.")
    work = target.with_name(target.name + ".incomplete")
    fsio.make_folder(work)
    with fsio.exclusive(work):
        for left in work.iterdir():  # of a build that did not end
            fsio.remove_file(left)
        yield work
        if target.is_dir():
            fsio.remove_tree(target)
        fsio.publish_folder(work, target)


def _read_info(folder: Path, data: VectorData, again: str) -> IndexInfo:
    file = folder / "index.json"
    if not file.is_file():
        there = sorted(p.parent.name for p in folder.parent.glob("*/index.json"))
        have = f"it has {', '.join(there)}" if there else "it has none"
        raise UsageError(f"{data.path} has no index {folder.name}; {have}. Build it: {again}.")
    try:
        content = json.loads(file.read_text("utf-8"))
        curve = tuple(TunePoint(**point) for point in content.pop("curve"))
        info = IndexInfo(**content, curve=curve)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(
            f"{file} is damaged: {error}. Build it again: {again} --overwrite."
        ) from error
    if info.fingerprint != data.manifest.fingerprint:
        raise MismatchError(
            f"{folder} was built for another dataset or another state of this one (fingerprint "
            f"{info.fingerprint[:12]}, now {data.manifest.fingerprint[:12]}). Build it again: "
            f"{again} --overwrite."
        )
    return info


def _setting(info: IndexInfo, recall: float | None, again: str) -> int:
    if recall is None:
        return info.setting
    if not info.curve:
        raise UsageError(
            f"--recall {recall}: the index has not been tuned. Build it again: {again} --tune "
            "--overwrite."
        )
    good = [point.setting for point in info.curve if point.recall >= recall]
    if not good:
        best = max(point.recall for point in info.curve)
        raise UsageError(
            f"--recall {recall}: this {info.kind} index reaches {best:.3f} at most. Leave --index "
            "out for exact search, or build another kind."
        )
    return min(good)


def _read_places(file: Path, info: IndexInfo) -> Integers | None:
    """Only tuning, which adds some records last, changes their order."""
    if not info.curve:
        return None
    places: Integers = np.load(file, mmap_mode="r", allow_pickle=False)
    if places.shape != (info.records,):
        raise ValueError(f"{file.name} holds {places.shape}, not ({info.records},) places")
    return places


def _save_array(file: Path, values: Integers) -> None:
    import io

    content = io.BytesIO()
    np.save(content, values)
    fsio.write_durably(file, content.getbuffer(), scratch=file.parent)
