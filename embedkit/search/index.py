"""Approximate nearest neighbours by faiss, built in one pass and saved in the dataset.

An index, such as ``_embedkit/index/mean_6.hnsw.cosine``, carries the fingerprint of its dataset,
and is mapped into memory when opened. Its recall is measured once, with records added afterwards.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from embedkit import storage
from embedkit.arguments import accepts
from embedkit.choices import IndexName, SearchMetric, WhiteningKind
from embedkit.dataset.format import Layout, read_manifest
from embedkit.dataset.read import VectorData, load, write_faiss
from embedkit.display import Shown
from embedkit.errors import OVERWRITE, LockedError, MismatchError, OutputExistsError, UsageError
from embedkit.geometry import shared_neighbours
from embedkit.machine import faiss_with_threads, usable_cores
from embedkit.records import from_json, read_json, to_json
from embedkit.search.exact import Finder, Neighbours, Whitening, fit_whitening, nearest, prepared
from embedkit.storage import unreadable
from embedkit.types import AnyPath, Bool, Float32, Progress, ProgressCallback, no_progress

RECALL_K = 10  # recall is the fraction of the ten nearest records that are found
# queries that the recall is measured with: its standard error is at most some two percent
_HELD_OUT = 500
# records of the sample for each centroid (faiss asks for 39 at least), and of the whole sample
_PER_LIST, _LEAST_SAMPLE = 64, 16_384
_FILE = "index.faiss"
_WHITENING = "whitening.safetensors"
INFO = "index.json"
_HASHED_BYTES = 512 << 20  # a quarter of a second


class IndexKind(NamedTuple):
    """A kind of index."""

    factory: str  # for ``faiss.index_factory``
    effort: int = 0  # of the search, which trades speed for recall
    minimum: int = 1  # records that are needed to build one

    def factory_of(self, data: VectorData) -> str:
        """What ``faiss.index_factory`` takes for the vectors of a dataset."""
        return self.factory.format(
            lists=max(1, min(int(4 * len(data) ** 0.5), len(data) // 39)),  # what faiss asks for
            # four coordinates for each byte of a code, or more where the width cannot be divided so
            pieces=next(m for m in range(max(data.width // 4, 1), 0, -1) if data.width % m == 0),
        )

    def parameters(self, k: int) -> Any:
        """The ``params`` of ``faiss.Index.search`` for ``k`` neighbours."""
        import faiss

        # a search of a graph returns at most as many as it keeps in its queue
        if self.factory.startswith("HNSW"):
            return faiss.SearchParametersHNSW(efSearch=max(self.effort, k))
        return faiss.SearchParametersIVF(nprobe=self.effort) if self.effort else None


KINDS = {
    "flat": IndexKind("Flat"),
    "hnsw": IndexKind("HNSW16", 64),
    "ivf": IndexKind("IVF{lists},Flat", 32),
    "ivfpq": IndexKind("IVF{lists},PQ{pieces}x8np", 32, minimum=2_000),
}
"""A new kind is one row here and its name in :data:`embedkit.choices.INDEX_KINDS`."""


@dataclass(frozen=True, slots=True, repr=False)
class IndexInfo(Shown):
    """Content of ``index.json``; ``recall`` is ``None`` where there are too few records."""

    fingerprint: str  # of the dataset
    kind: IndexName
    view: str
    metric: SearchMetric
    whitening: WhiteningKind | None
    records: int
    width: int
    factory: str
    recall: float | None
    nbytes: int
    seconds: float


@accepts()
def build_index(
    dataset: AnyPath,
    *,
    kind: IndexName = "hnsw",
    view: str | None = None,
    metric: SearchMetric = "cosine",
    whitening: WhiteningKind | None = None,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> IndexInfo:
    """Build an index of a view in one pass over the vectors, and save it in the dataset.

    Args:
        dataset: folder that ``extract`` wrote.
        kind: {INDEX_KINDS}.
        view: a stored view; by default the last mean.
        metric: {SEARCH_METRICS}.
        whitening: {WHITENINGS}, or ``None``.
        overwrite: replace an index of the same kind, view and metric.
        progress: called with the stage and the records done.

    Raises:
        UsageError: a setting cannot be used, or there are too few records.
        OutputExistsError: the index exists already.

    Example:
        >>> info = embedkit.index("vectors", kind="flat", view="mean_6")
        >>> info.records, info.width
        (12, 384)
    """
    data = load(dataset, view)
    if len(data) < (least := KINDS[kind].minimum):
        problem = f"{dataset} has {len(data):,} records; expected {least:,} or more."
        raise UsageError(problem, kind=kind)
    target = _folder(data, kind, metric, whitening)

    def free() -> None:
        if target.exists() and not overwrite:
            raise OutputExistsError(f"{target} exists already; pass {OVERWRITE} to build it again.")

    storage.finish_swap(target, lambda folder: (folder / INFO).is_file())
    # at once, before vectors are read; `new_folder` calls it again under its lock
    free()
    with (
        _in_dataset(data),
        storage.new_folder(target, free=free) as folder,
        faiss_with_threads(usable_cores()) as faiss,
    ):
        started = time.perf_counter()
        fitted = None if whitening is None else fit_whitening(data, whitening)
        factory = KINDS[kind].factory_of(data)
        random = np.random.default_rng(0)
        index = _trained(faiss, factory, data, metric, fitted, random, progress)
        count = min(_HELD_OUT, len(data) // 10)
        held = np.sort(random.choice(len(data), count, replace=False))
        kept = np.ones(len(data), bool)
        # left out at first: the recall is that of queries that are not in
        # the index, as those of users are not
        kept[held] = False
        for block in data.reader.blocks:
            inside = kept[block.start : block.stop]
            # record numbers are ids, since held-out records come
            # last and places would not be theirs
            vectors = prepared(data.reader.vectors_of(block), metric, fitted)
            index.add_with_ids(vectors[inside], np.arange(block.start, block.stop)[inside])
            progress(Progress("adding", block.stop, len(data), "records"))
        recall = None
        # without ten records to find there is no fraction of ten
        if count and len(data) - count >= RECALL_K:
            recall = _recall(index, data, kept, kind=kind, metric=metric, whitening=fitted)
        if count:
            index.add_with_ids(prepared(data.reader.vectors_at(held), metric, fitted), held)
        info = IndexInfo(
            fingerprint=data.manifest.fingerprint,
            kind=kind,
            view="+".join(data.views),
            metric=metric,
            whitening=whitening,
            records=len(data),
            width=data.width,
            factory=factory,
            recall=recall,
            nbytes=_write_parts(faiss, index, fitted, folder),
            seconds=time.perf_counter() - started,
        )
        storage.write_durably(folder / INFO, to_json(info) + b"\n")
    return info


def _recall(
    index: Any, data: VectorData, kept: Bool, *, kind: str, metric: str, whitening: Whitening | None
) -> float:
    """Share of the ten nearest that an index of the ``kept`` records finds for all others.

    The others are not in it yet: a query that is in an index finds itself, which tells nothing.
    """
    queries = data.reader.vectors_at(np.flatnonzero(~kept))
    depth = 4 * RECALL_K  # repeated texts are equally near
    scores, truth = nearest(data, queries, k=depth, metric=metric, whitening=whitening, chosen=kept)
    params = KINDS[kind].parameters(RECALL_K)
    indices = index.search(prepared(queries, metric, whitening), RECALL_K, params=params)[1]
    scores = -scores if metric == "euclid" else scores
    # ties: any record as near as the tenth counts as found, up to the rounding of float32
    edge = scores[:, RECALL_K - 1] - 1e-6 * np.abs(scores[:, 0])  # as near as the tenth
    # -2 is the number of no record, and not the -1 of a missing one
    right = np.where(scores >= edge[:, None], truth, -2)
    return float(shared_neighbours(indices, right).mean())


@contextmanager
def _in_dataset(data: VectorData) -> Iterator[None]:
    """Share the lock of a dataset, so that none replaces it while something is made inside.

    A :class:`LockedError` if one has since it was opened.
    """
    # shared, so that several indexes may be built at once; whoever replaces the dataset waits
    with storage.exclusive(data.path, shared=True):
        if read_manifest(data.path) != data.manifest:
            raise LockedError(f"{data.path} was replaced meanwhile. Run the same command again.")
        yield


def _write_parts(faiss: Any, index: Any, fitted: Whitening | None, folder: Path) -> int:
    """Write an index and its whitening; return the bytes of the index."""
    file = folder / _FILE
    with storage.storage_errors(file, RuntimeError, SafetensorError):
        write_faiss(faiss, index, file)
        if fitted is not None:
            parts = fitted._asdict().items()
            save_file({name: part for name, part in parts if part is not None}, folder / _WHITENING)
    # all parts are on the disk before the description, without which no index is opened
    storage.sync_tree(folder)
    return file.stat().st_size


def _trained(
    faiss: Any,
    factory: str,
    data: VectorData,
    metric: str,
    fitted: Whitening | None,
    random: np.random.Generator,
    progress: ProgressCallback,
) -> Any:
    """An empty index that takes record numbers."""
    distance = faiss.METRIC_L2 if metric == "euclid" else faiss.METRIC_INNER_PRODUCT
    index = faiss.index_factory(data.width, factory, distance)
    for name in ("cp", "pq.cp"):  # else faiss writes warnings to standard error
        with suppress(AttributeError):
            attrgetter(name)(index).min_points_per_centroid = 1
    # graphs and flat indexes have nothing to learn
    if not index.is_trained:
        progress(Progress("training", 0))
        size = min(len(data), max(_PER_LIST * index.nlist, _LEAST_SAMPLE))
        sample = np.sort(random.choice(len(data), size, replace=False))
        index.train(prepared(data.reader.vectors_at(sample), metric, fitted))
    # inverted files store ids themselves; the others need a table of them
    return index if hasattr(index, "nlist") else faiss.IndexIDMap(index)


def read_index_info(folder: Path, *, advice: str = "Build the index again.") -> IndexInfo:
    """Read the description of an index."""
    file = folder / INFO
    return from_json(IndexInfo, read_json(file, advice=advice), file=file, advice=advice)


def open_index(
    data: VectorData, *, kind: str, metric: str = "cosine", whitening: str | None = None
) -> Finder:
    """Open the index of a dataset's chosen view; an error unless it is of its present state.

    It finds neighbours as :func:`~embedkit.search.exact.nearest` does, approximately.
    """
    folder = _folder(data, kind, metric, whitening)
    command = f"embedkit index {shlex.quote(str(data.path))} --view {data.views[0]} --kind {kind}"
    command += f" --whitening {whitening}" * bool(whitening)
    if metric != "cosine":  # the command has no option for it
        command += f", in Python with metric={metric!r}"
    advice = f"Build it again: {command} --overwrite."
    if not (folder / INFO).is_file():
        # indexes that are still being built have a folder of their own beside the others
        complete = [p.parent for p in folder.parent.glob("*/index.json")]
        names = sorted(p.name for p in complete if p.suffix != ".incomplete")
        raise UsageError(
            f"{data.path} has no index {folder.name}; it has {', '.join(names) or 'none'}. "
            f"Build it: {command}."
        )
    # checksums are compared at each opening as far as that takes no noticeable time
    compared = [INFO, *[_WHITENING] * bool(whitening)]
    file = folder / _FILE
    if not file.is_file() or file.stat().st_size <= _HASHED_BYTES:  # larger ones by ``verify``
        compared.append(file.name)
    storage.check_files(folder, compared, advice=advice)
    info, manifest = read_index_info(folder, advice=advice), data.manifest
    if info.fingerprint != manifest.fingerprint:
        raise MismatchError(
            f"{folder} was built for another dataset or another state of this one (fingerprint "
            f"{info.fingerprint[:12]}, now {manifest.fingerprint[:12]}). {advice}"
        )
    fitted = None
    try:
        with faiss_with_threads(usable_cores()) as faiss:
            # inverted lists are mapped by one flag, codes and graphs by another
            mapped = faiss.IO_FLAG_MMAP if "ivf" in kind else faiss.IO_FLAG_MMAP_IFC
            # lists may lie in another file, which faiss would open whatever it is: with this flag
            # it opens none before it is asked for vectors
            index = faiss.read_index(str(file), mapped | faiss.IO_FLAG_ONDISK_SAME_DIR)
        # a file that was exchanged for another index has valid bytes and wrong numbers
        has_lists = hasattr(index, "nlist")
        actual = index.ntotal, index.d, has_lists, index.metric_type == faiss.METRIC_L2
        if actual != (info.records, info.width, "ivf" in kind, metric == "euclid"):
            raise ValueError(f"it has {index.ntotal} vectors of width {index.d}, or is no {kind}")
        if has_lists and (
            faiss.downcast_InvertedLists(index.invlists).filename
            or hasattr(faiss.downcast_index(index.quantizer), "nlist")
        ):
            raise ValueError("it names another file, which is never opened")
        if info.whitening is not None:
            file, parts = folder / _WHITENING, load_file(folder / _WHITENING)
            shapes = {name: part.shape for name, part in parts.items() if np.isfinite(part).all()}
            square = {"matrix": (info.width, info.width)} if whitening == "whiten" else {}
            if shapes != {"mean": (info.width,), **square}:
                raise ValueError(f"it holds no numbers of width {info.width}")
            fitted = Whitening(**parts)
    except Exception as error:  # of two libraries, and of parts that do not fit
        raise unreadable(file, error, advice=advice) from error

    def find(queries: Float32, k: int) -> Neighbours:
        vectors = prepared(np.asarray(queries, np.float32), metric, fitted)
        with faiss_with_threads(usable_cores()):
            try:
                # given to the search and not set on the index, which several threads may share
                scores, indices = index.search(vectors, k, params=KINDS[kind].parameters(k))
                if indices.min(initial=0) < -1 or indices.max(initial=0) >= info.records:
                    raise ValueError("it finds records that do not exist")
            except (RuntimeError, ValueError) as error:  # of another kind of index within this one
                raise unreadable(folder / _FILE, error, advice=advice) from error
        if metric == "euclid":
            # faiss gives squared distances, which rounding may take below zero
            scores = np.sqrt(np.maximum(scores, 0))
        # of equal scores the first record of the dataset, as exact search has it
        order = np.lexsort((indices, scores if metric == "euclid" else -scores))
        return np.take_along_axis(scores, order, 1), np.take_along_axis(indices, order, 1)

    return find


def _folder(data: VectorData, kind: str, metric: str, whitening: str | None) -> Path:
    name = ".".join(["+".join(data.views), kind, metric, *([whitening] if whitening else [])])
    folder = Layout(data.path).index / name
    # a link in a dataset of somebody else's would lead elsewhere
    if not folder.resolve().is_relative_to(data.path.resolve()):
        raise UsageError(f"{folder} leads out of the dataset by a link. Remove it.")
    return folder
