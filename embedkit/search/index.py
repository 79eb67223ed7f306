"""Approximate nearest neighbours through faiss, built in one pass and saved beside the dataset.

    OUT/_embedkit/index/mean_6.hnsw.cosine/index.faiss    the index as faiss writes it
    OUT/_embedkit/index/mean_6.hnsw.cosine/index.json     its dataset, settings and measured recall

An index gets its name when it is complete, carries the fingerprint of its dataset, and is mapped
into memory when opened. Tuning leaves some records out, measures the settings with them as queries
and adds them afterwards, so that no query is in the index when its recall is counted.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import fsio
from embedkit._version import __version__
from embedkit.artefacts import finish_swap, new_folder
from embedkit.checksums import check_files, is_sealed
from embedkit.choices import INDEX_KINDS, SEARCH_METRICS, WHITENINGS, check_choice
from embedkit.dataset.store import Layout, VectorData, load
from embedkit.decoding import decode, read_json
from embedkit.errors import (
    DamagedError,
    MismatchError,
    OutputExistsError,
    UsageError,
    check_counts,
)
from embedkit.machine import faiss_with_threads, usable_cores
from embedkit.search.exact import Neighbours, nearest, unit_rows
from embedkit.search.kinds import KINDS
from embedkit.search.tuning import RECALL_K, TRUTH_K, TunePoint, measure_settings
from embedkit.search.whitening import Whitening, load_whitening
from embedkit.types import Bool, Float32, Int64, Progress, ProgressCallback, no_progress

__all__ = ["AnnIndex", "IndexInfo", "TunePoint", "build_index", "open_index"]

logger = logging.getLogger(__name__)

_FORMAT_VERSION = 2
_HELD_OUT = 500
_PER_LIST, _LEAST_SAMPLE = 64, 16_384
_RECALL = 0.95


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """Content of ``index.json``.

    Attributes:
        fingerprint: of the dataset that the index belongs to.
        kind: one of :data:`~embedkit.choices.INDEX_KINDS`.
        view: the view.
        metric: ``cosine``, ``dot`` or ``euclid``.
        whitening: ``center``, ``whiten`` or ``None``.
        records: number of records in the index.
        width: of the vectors.
        parameters: what it was built with.
        setting: search-time setting that is used unless a recall is asked for.
        curve: measured settings, ascending; empty if the index was not tuned.
        nbytes: size of ``index.faiss``.
        seconds: building time, without tuning.
        versions: of embedkit and faiss.
        format_version: of the index.
    """

    fingerprint: str
    kind: str
    view: str
    metric: str
    whitening: str | None
    records: int
    width: int
    parameters: dict[str, int]
    setting: int
    curve: tuple[TunePoint, ...]
    nbytes: int
    seconds: float
    versions: dict[str, str]
    format_version: int


@dataclass(frozen=True, slots=True)
class AnnIndex:
    """An open index; answers like :func:`~embedkit.search.exact.nearest`, approximately.

    Attributes:
        index: the index of faiss.
        info: content of ``index.json``.
        whitening: the map that vectors went through before they were added.
        setting: search-time setting.
        threads: for batches of queries.
    """

    index: Any
    info: IndexInfo
    whitening: Whitening | None
    setting: int
    threads: int

    def __call__(self, queries: Float32, k: int) -> Neighbours:
        """``k`` neighbours of each of ``(queries, width)`` vectors."""
        vectors = _prepared(np.asarray(queries, np.float32), self.info.metric, self.whitening)
        kind = KINDS[self.info.kind]
        setting = max(self.setting, k) if kind.grows_with_k else self.setting
        with faiss_with_threads(self.threads):
            scores, found = self.index.search(vectors, k, params=kind.at(setting))
        if self.info.metric == "euclid":
            scores = np.sqrt(np.maximum(scores, 0))
        return Neighbours(scores, found)


def build_index(
    dataset: str | Path,
    *,
    kind: str = "hnsw",
    view: str | None = None,
    metric: str = "cosine",
    whitening: str | None = None,
    tune: bool = False,
    recall: float | None = None,
    seed: int = 0,
    threads: int | None = None,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> IndexInfo:
    """Build an index of a view in one pass over the vectors, and save it beside the dataset.

    Args:
        dataset: folder that ``extract`` wrote.
        kind: ``flat`` (exact, uncompressed), ``hnsw`` (fastest; vectors and their links in
            memory), ``ivf`` (lists, mapped from disk) or ``ivfpq`` (lists of compressed vectors).
        view: a stored view; by default the last mean.
        metric: ``cosine``, ``dot`` or ``euclid``.
        whitening: ``center`` or ``whiten``, or ``None``.
        tune: measure recall and speed of search-time settings on held-out records.
        recall: choose the fastest setting that reaches it (0.95 by default); implies ``tune``.
        seed: of the sample of held-out and training records.
        threads: by default the number of cores that the process may use.
        overwrite: replace an index of the same kind, view and metric.
        progress: called with the stage and the records done.

    Raises:
        UsageError: a setting cannot be used, or there are too few records.
        OutputExistsError: the index exists already.

    Example:
        >>> info = embedkit.build_index("vectors", kind="flat", view="mean_6")
        >>> info.records, info.width
        (12, 384)
    """
    _check(kind, metric, whitening, recall)
    check_counts(threads=threads)
    data = load(dataset, view)
    if len(data) == 0:
        raise UsageError(f"{dataset} has no records, so there is nothing to index.")
    if len(data) < KINDS[kind].minimum:
        raise UsageError(
            f"kind={kind!r}: {len(data):,} records are too few to learn its codes from "
            f"({KINDS[kind].minimum:,} or more). Use hnsw or flat."
        )
    with (
        new_folder(_free_folder(data, kind, metric, whitening, overwrite)) as folder,
        faiss_with_threads(threads or usable_cores()),
    ):
        builder = _Builder(data, kind, metric, whitening, seed, threads, progress)
        held = builder.held_out() if tune or recall is not None else np.zeros(0, np.int64)
        info = builder.run(folder, held, _RECALL if recall is None else recall)
        content = json.dumps(asdict(info), ensure_ascii=False, indent=1, sort_keys=True) + "\n"
        fsio.write_durably(folder / "index.json", content.encode(), scratch=folder)
    return info


def open_index(
    data: VectorData,
    *,
    kind: str,
    metric: str = "cosine",
    whitening: str | None = None,
    recall: float | None = None,
    threads: int | None = None,
    verify: bool = True,
) -> AnnIndex:
    """Open the index of a dataset's chosen view.

    Args:
        data: the dataset.
        kind: one of :data:`~embedkit.choices.INDEX_KINDS`.
        metric: as it was built with.
        whitening: as it was built with.
        recall: use the fastest setting that reached it when the index was tuned.
        threads: for batches of queries.
        verify: compare all files with their checksums, which reads the whole index; without it
            ``index.json`` alone is compared, and damage of a mapped index may go unnoticed.

    Raises:
        UsageError: there is no such index, or it does not reach the recall.
        MismatchError: it belongs to another state of the dataset.
        DamagedError: a file was changed since, or cannot be read.
    """
    _check(kind, metric, whitening, recall)
    check_counts(threads=threads)
    folder = _folder(data, kind, metric, whitening)
    again = f"embedkit index {data.path} --view {data.views[0]} --kind {kind}"
    again += f" --metric {metric}" * (metric != "cosine") + f" --{whitening}" * bool(whitening)
    info = _read_info(folder, data, again, verify=verify)
    file = folder / "index.faiss"
    threads = threads or usable_cores()
    try:
        with faiss_with_threads(threads) as faiss:
            index = faiss.read_index(str(file), getattr(faiss, KINDS[kind].mapping))
        if index.ntotal != info.records or index.d != info.width:
            raise ValueError(f"it holds {index.ntotal} vectors of width {index.d}")
    except (OSError, ValueError, RuntimeError) as error:
        raise DamagedError(
            f"{file} cannot be read: {error}. Build it again: {again} --overwrite."
        ) from error
    fitted = None if whitening is None else load_whitening(data, whitening)
    return AnnIndex(index, info, fitted, _setting(info, recall, again), threads)


class _Builder:
    """One index from empty to saved."""

    def __init__(
        self, data: VectorData, kind: str, metric: str, whitening: str | None, seed: int,
        threads: int | None, progress: ProgressCallback,
    ) -> None:  # fmt: skip
        self._data, self._kind, self._metric = data, kind, metric
        self._whitening = None if whitening is None else load_whitening(data, whitening)
        self._random = np.random.default_rng(seed)
        self._threads, self._progress = threads, progress

    def run(self, folder: Path, held: Int64, recall: float) -> IndexInfo:
        """Train, fill, tune with the records ``held``, and write the index into a folder."""
        import faiss

        started = time.perf_counter()
        data, kept = self._data, np.ones(len(self._data), bool)
        kept[held] = False
        parameters = KINDS[self._kind].parameters(data.width, len(data))
        index = _empty(self._kind, parameters, data.width, self._metric)
        if not index.is_trained:
            wanted = min(len(data), max(_PER_LIST * index.nlist, _LEAST_SAMPLE))
            drawn = np.sort(self._random.choice(len(data), wanted, replace=False))
            self._progress(Progress("training", 0))
            index.train(self._prepared(data.reader.vectors_at(drawn)))
        for block in data.reader.blocks:
            vectors, inside = data.reader.vectors_of(block), kept[block.start : block.stop]
            numbers = np.arange(block.start, block.stop)
            index.add_with_ids(self._prepared(vectors[inside]), numbers[inside])
            self._progress(Progress("adding", block.stop, len(data), "records"))
        queries = data.reader.vectors_at(held)
        seconds = time.perf_counter() - started
        curve = self._tune(index, kept, queries) if len(held) else ()
        started = time.perf_counter()
        index.add_with_ids(self._prepared(queries), held)
        seconds += time.perf_counter() - started
        file = folder / "index.faiss"
        # faiss itself does not notice that the end of a file could not be written
        with fsio.storage_errors(file, RuntimeError), file.open("wb") as sink:
            faiss.write_index(index, faiss.PyCallbackIOWriter(sink.write))
        fsio.sync_tree(folder)
        setting = _fastest(curve, recall) if curve else KINDS[self._kind].default
        if setting is None:
            best = max(curve, key=lambda point: point.recall)
            setting = best.setting
            logger.warning(
                "no setting of %s reaches recall %s; the best, %d, has %.3f and is used",
                self._kind, recall, setting, best.recall,
            )  # fmt: skip
        return IndexInfo(
            fingerprint=data.manifest.fingerprint, kind=self._kind,
            view="+".join(data.views), metric=self._metric,
            whitening=None if self._whitening is None else self._whitening.kind,
            records=len(data), width=data.width, parameters=parameters,
            setting=setting, curve=curve, nbytes=(folder / "index.faiss").stat().st_size,
            seconds=seconds, versions={"embedkit": __version__, "faiss": faiss.__version__},
            format_version=_FORMAT_VERSION,
        )  # fmt: skip

    def held_out(self) -> Int64:
        """Records to tune with, ascending."""
        count = min(_HELD_OUT, len(self._data) // 10)
        if count < 1 or len(self._data) - count < RECALL_K:
            raise UsageError(
                f"tune=True: {len(self._data)} records are too few to hold some out; "
                "exact search answers such a dataset at once."
            )
        return np.sort(self._random.choice(len(self._data), count, replace=False))

    def _prepared(self, vectors: Float32) -> Float32:
        return _prepared(vectors, self._metric, self._whitening)

    def _tune(self, index: Any, kept: Bool, queries: Float32) -> tuple[TunePoint, ...]:
        """Recall and speed of ascending settings, against exact search among the same records."""
        truth = nearest(
            self._data, queries, k=TRUTH_K, metric=self._metric, whitening=self._whitening,
            chosen=kept, threads=self._threads,
        )  # fmt: skip
        return measure_settings(
            index, KINDS[self._kind], self._prepared(queries), truth, self._progress,
            distances=self._metric == "euclid",
        )  # fmt: skip


def _prepared(vectors: Float32, metric: str, whitening: Whitening | None) -> Float32:
    """Vectors as they are added and compared: whitened, of length 1 for cosines."""
    if whitening is not None:
        vectors = whitening.apply(vectors)
    return np.ascontiguousarray(unit_rows(vectors) if metric == "cosine" else vectors)


def _empty(kind: str, parameters: dict[str, int], width: int, metric: str) -> Any:
    """A new index of faiss."""
    import faiss

    distance = faiss.METRIC_L2 if metric == "euclid" else faiss.METRIC_INNER_PRODUCT
    index = faiss.index_factory(width, KINDS[kind].factory.format(**parameters), distance)
    if "efConstruction" in parameters:
        index.hnsw.efConstruction = parameters["efConstruction"]
    for name in ("cp", "pq.cp"):  # else faiss writes warnings to standard error
        with suppress(AttributeError):
            attrgetter(name)(index).min_points_per_centroid = 1
    return index if hasattr(index, "nlist") else faiss.IndexIDMap(index)


def _check(kind: str, metric: str, whitening: str | None, recall: float | None) -> None:
    check_choice(INDEX_KINDS, kind=kind)
    check_choice(SEARCH_METRICS, metric=metric)
    if whitening is not None:
        check_choice(WHITENINGS, whitening=whitening)
    if recall is not None and not 0 < recall <= 1:
        raise UsageError(f"recall={recall}: expected more than 0 and at most 1.")


def _folder(data: VectorData, kind: str, metric: str, whitening: str | None) -> Path:
    name = ".".join(["+".join(data.views), kind, metric, *([whitening] if whitening else [])])
    return Layout(data.path).private / "index" / name


def _free_folder(
    data: VectorData, kind: str, metric: str, whitening: str | None, overwrite: bool
) -> Path:
    target = _folder(data, kind, metric, whitening)
    finish_swap(target, is_sealed)
    if target.exists() and not overwrite:
        raise OutputExistsError(f"{target} exists already; pass overwrite=True to build it again.")
    return target


def _read_info(folder: Path, data: VectorData, again: str, *, verify: bool) -> IndexInfo:
    file = folder / "index.json"
    if not file.is_file():
        there = sorted(p.parent.name for p in folder.parent.glob("*/index.json")
                       if p.parent.suffix != ".incomplete")  # fmt: skip
        have = f"it has {', '.join(there)}" if there else "it has none"
        raise UsageError(f"{data.path} has no index {folder.name}; {have}. Build it: {again}.")
    advice = f"Build it again: {again} --overwrite."
    check_files(folder, [""] if verify else [file.name], advice=advice)
    info = decode(IndexInfo, read_json(file, advice=advice), file=file, advice=advice)
    state = info.fingerprint, info.format_version
    if state != (data.manifest.fingerprint, _FORMAT_VERSION):
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
            f"recall={recall}: the index has not been tuned. Build it again: {again} --tune "
            "--overwrite."
        )
    setting = _fastest(info.curve, recall)
    if setting is None:
        best = max(point.recall for point in info.curve)
        raise UsageError(
            f"recall={recall}: this {info.kind} index reaches {best:.3f} at most. Use exact "
            "search, or build another kind."
        )
    return setting


def _fastest(curve: Sequence[TunePoint], recall: float) -> int | None:
    """The smallest setting that reaches a recall, if one does."""
    return min((point.setting for point in curve if point.recall >= recall), default=None)
