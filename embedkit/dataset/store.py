"""The dataset on disk: its folders, its manifest, and reading it into NumPy."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from embedkit import fsio
from embedkit.choices import POOLINGS, Pooling
from embedkit.dataset.parquet_pages import copy_vectors
from embedkit.encoding.views import parse_view, split_view
from embedkit.errors import DamagedError, UsageError, did_you_mean

__all__ = ["Block", "Layout", "Manifest", "VectorData", "is_dataset", "load", "read_manifest"]

Floats = NDArray[np.float32]

_PART = re.compile(r"part-\d{5,}\.parquet")


@dataclass(frozen=True, slots=True)
class Layout:
    """Names inside a dataset folder; the only place that knows them."""

    root: Path

    @property
    def private(self) -> Path:
        """Folder of what is not vectors; readers skip names that begin with an underscore."""
        return self.root / "_embedkit"

    @property
    def manifest(self) -> Path:
        """Written last: whoever finds it has a complete dataset."""
        return self.private / "manifest.json"

    @property
    def job(self) -> Path:
        """Written first: what the folder is going to hold."""
        return self.private / "job.json"

    @property
    def rejects(self) -> Path:
        """One line per record that was not embedded."""
        return self.private / "rejects.jsonl"

    @property
    def log(self) -> Path:
        """When runs started and ended, and how long they took."""
        return self.private / "log.jsonl"

    @property
    def scratch(self) -> Path:
        """Temporary files; empty of meaning at every start."""
        return self.private / "scratch"

    @property
    def replaced(self) -> Path:
        """The dataset that ``--overwrite`` replaces, from the first of its renames to its end."""
        return self.private / "replaced"

    @property
    def digests(self) -> Path:
        """While the job runs: the hash of every sentence file, one small file each."""
        return self.private / "digests"

    def digest(self, number: int) -> Path:
        """Where the hash of a sentence file is."""
        return self.digests / f"{number:05d}"

    def part(self, folder: str, number: int) -> Path:
        """A shard file, such as ``sentences/part-00000.parquet``."""
        return self.root / folder / f"part-{number:05d}.parquet"

    def content(self, folder: str) -> list[str]:
        """Names of all files in a folder of shards that readers of the folder could take up."""
        where = self.root / folder
        if not where.is_dir():
            return []
        return sorted(p.name for p in where.iterdir() if not p.name.startswith("."))

    def parts(self, folder: str) -> list[Path]:
        """The shard files of a folder in order."""
        where = self.root / folder
        if not where.is_dir():
            return []
        return sorted(
            (p for p in where.iterdir() if _PART.fullmatch(p.name)),
            key=lambda p: int(p.stem.removeprefix("part-")),
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """Content of ``manifest.json``.

    Attributes:
        fingerprint: hash of everything that shaped a byte, the environment aside.
        job: inputs, columns, model, settings.
        environments: versions and device, with the shards made under each.
        totals: records, accepted, rejected, left out, tokens, truncation ledger.
        files: rows, bytes and SHA-256 of every shard file, by relative name.
        names: how the user named inputs and model.
    """

    fingerprint: str
    job: dict[str, Any]
    environments: list[dict[str, Any]]
    totals: dict[str, Any]
    files: dict[str, dict[str, Any]]
    names: dict[str, Any]

    def to_bytes(self) -> bytes:
        """Canonical JSON: the same content gives the same bytes."""
        content = {name: getattr(self, name) for name in self.__slots__}
        text = json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
        return text.encode("utf-8", "backslashreplace")  # bytes of a file name that are not UTF-8

    @property
    def views(self) -> dict[str, int]:
        """Width of every sentence view, by column name, in the order of the columns."""
        found: dict[str, int] = self.job["vectors"]["views"]
        return {name: found[name] for name in sorted(found, key=_column_order)}

    @property
    def n_shards(self) -> int:
        """Number of shards; each has a sentence file, even one without rows."""
        return sum(name.startswith("sentences/") for name in self.files)

    @property
    def n_layers(self) -> int:
        """Encoder layers of the model."""
        return int(self.job["model"]["n_layers"])


@dataclass(frozen=True, slots=True)
class Block:
    """A row group of a shard, the smallest part that is read at once.

    Attributes:
        shard: number of the shard.
        group: number of the row group in it.
        start: place of its first record among the records of the dataset.
        rows: number of its records.
        metadata: footer of the shard's file.
    """

    shard: int
    group: int
    start: int
    rows: int
    metadata: pq.FileMetaData

    @property
    def stop(self) -> int:
        """Place after its last record."""
        return self.start + self.rows


def _column_order(name: str) -> tuple[bool, int, int, str, int]:
    """Layers ascending, within one the poolings as they are listed, the pooler last."""
    pooling, layer = split_view(name)
    numbers = [int(x) for x in re.findall(r"\d+", layer)]
    rank = list(POOLINGS).index(Pooling(pooling))
    return name == "pooler", max(numbers, default=0), len(numbers), layer, rank


def is_dataset(path: Path) -> bool:
    """Whether the folder is a complete dataset."""
    return Layout(path).manifest.is_file()


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a complete dataset.

    Raises:
        UsageError: there is no dataset.
        DamagedError: the manifest cannot be read.
    """
    file = Layout(path).manifest
    if not file.is_file():
        raise UsageError(f"{path} is not a dataset.{_why_not(path)}")
    try:
        return Manifest(**json.loads(file.read_text("utf-8")))
    except (ValueError, TypeError) as error:
        raise DamagedError(f"{file} is damaged: {error}. Make the dataset again.") from error


def load(path: str | Path, view: str | Sequence[str] | None = None) -> VectorData:
    """Open a dataset for scikit-learn and NumPy; columns are read when they are used.

    Args:
        path: the folder that ``extract`` wrote.
        view: a view such as ``mean_-1`` or ``pooler``, or several to put side by side; by default
            the last one stored that is a mean, else the last one.

    Raises:
        UsageError: there is no dataset, or it has no such view; the message lists what it has.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    if view is None:
        means = [name for name in manifest.views if name.startswith("mean_")]
        names = [(means or list(manifest.views))[-1]]
    else:
        asked = [view] if isinstance(view, str) else list(view)
        names = [_stored_view(name, manifest, folder) for name in asked]
        if not names:
            raise UsageError(f"no view was given; {folder} has {', '.join(manifest.views)}.")
        twice = [name for i, name in enumerate(names) if name in names[:i]]
        if twice:
            raise UsageError(f"view {twice[0]} is asked for twice; give every view once.")
    return VectorData(folder, manifest, tuple(names))


class VectorData:
    """Vectors of a dataset with what belongs to them, row by row in input order.

    Attributes:
        path: folder of the dataset.
        manifest: how it was made.
        views: the chosen views.
    """

    def __init__(self, path: Path, manifest: Manifest, views: tuple[str, ...]) -> None:
        self.path = path
        self.manifest = manifest
        self.views = views

    def __len__(self) -> int:
        return int(self.manifest.totals["accepted"])

    def __repr__(self) -> str:
        width = sum(self.manifest.views[v] for v in self.views)
        return f"VectorData({str(self.path)!r}, view={list(self.views)}, X=({len(self)}, {width}))"

    @cached_property
    def X(self) -> Floats:
        """The vectors, ``(n, width)`` float32; several views side by side."""
        matrix = np.empty((len(self), self.width), np.float32)
        start = 0
        for number in range(self.manifest.n_shards):
            stop = start + self._rows(number)
            self._fill(number, matrix[start:stop])
            start = stop
        return matrix

    def iter_batches(self, size: int = 8_192) -> Iterator[tuple[Floats, NDArray[np.str_] | None]]:
        """Vectors and labels of at most ``size`` records at a time, in order.

        Memory holds one shard, whatever the size of the dataset, so that ``partial_fit`` of
        scikit-learn works on any number of records. Labels are ``None`` without a label column,
        and empty where a record has none.
        """
        if size < 1:
            raise ValueError(f"size={size}: expected 1 or more.")
        labelled = self.manifest.job["input"]["label"] is not None
        for number in range(self.manifest.n_shards):
            matrix = np.empty((self._rows(number), self.width), np.float32)
            self._fill(number, matrix)
            labels = self._labels(number) if labelled else None
            for start in range(0, len(matrix), size):
                part = slice(start, start + size)
                yield matrix[part], None if labels is None else labels[part]

    @cached_property
    def blocks(self) -> list[Block]:
        """The row groups of all shards in order; their rows add up to ``len(self)``."""
        found = []
        start = 0
        for number in range(self.manifest.n_shards):
            with self._damage(number):
                metadata = pq.read_metadata(self._part(number))
                if metadata.num_rows != self._rows(number):
                    raise ValueError(f"{metadata.num_rows} rows, {self._rows(number)} were written")
            for group in range(metadata.num_row_groups):
                rows = metadata.row_group(group).num_rows
                found.append(Block(number, group, start, rows, metadata))
                start += rows
        return found

    def read_block(self, block: Block, target: Floats) -> None:
        """Read the chosen views of one row group by the caller's own thread.

        Args:
            block: one of :attr:`blocks`.
            target: ``(block.rows, width)`` float32 to be filled.
        """
        columns = self._columns_of(target)
        part, groups = self._part(block.shard), [block.group]
        with self._damage(block.shard):
            if copy_vectors(part, block.metadata, columns, groups=groups, threads=1):
                return
            with self._open(block.shard) as file:
                table = file.read_row_group(block.group, columns=list(columns), use_threads=False)
            for name, matrix in columns.items():
                matrix[:] = _to_matrix(table.column(name), matrix.shape[1])

    def pick(self, places: NDArray[np.int64], names: Sequence[str]) -> dict[str, list[Any]]:
        """Columns that are not vectors, of some records only; their row groups are read.

        Args:
            places: ``(m,)`` positions among the records of the dataset, in any order.
            names: the columns.

        Returns:
            ``m`` Python values for each column, in the order of ``places``.
        """
        values: dict[str, list[Any]] = {name: [None] * len(places) for name in names}
        for block, mine in self._by_block(places):
            with self._damage(block.shard), self._open(block.shard) as file:
                table = file.read_row_group(block.group, columns=list(names), use_threads=False)
            table = table.take(places[mine] - block.start)
            for name in names:
                for at, value in zip(mine, table.column(name).to_pylist(), strict=True):
                    values[name][at] = value
        return values

    def vectors_at(self, places: NDArray[np.int64]) -> Floats:
        """Vectors of some records, ``(m, width)`` float32; memory holds one row group beside them.

        Args:
            places: ``(m,)`` positions among the records of the dataset, in any order.
        """
        vectors = np.empty((len(places), self.width), np.float32)
        for block, mine in self._by_block(places):
            whole = np.empty((block.rows, self.width), np.float32)
            self.read_block(block, whole)
            vectors[mine] = whole[places[mine] - block.start]
        return vectors

    def _by_block(self, places: NDArray[np.int64]) -> Iterator[tuple[Block, NDArray[np.int64]]]:
        """Row groups that hold some places, each with the numbers of those it holds."""
        starts = np.array([block.start for block in self.blocks], np.int64)
        owner = np.searchsorted(starts, places, side="right") - 1
        for number in np.unique(owner):
            yield self.blocks[int(number)], np.flatnonzero(owner == number)

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are not vectors."""
        names = self._open(0).schema_arrow.names
        return [name for name in names if name not in self.manifest.views]

    def read_columns(self, shard: int, names: Sequence[str]) -> pa.Table:
        """Columns that are not vectors, of one shard."""
        with self._damage(shard), self._open(shard) as file:
            return file.read(columns=list(names))

    def mapped(self, cache: str | Path) -> Floats:
        """``X`` as a read-only memory map, for matrices larger than memory.

        Args:
            cache: folder for the ``.npy`` file, which is written the first time and named after
                the dataset's fingerprint and the views.
        """
        folder = Path(cache)
        fsio.make_folder(folder)
        key = hashlib.sha256(json.dumps(self.views).encode()).hexdigest()[:16]
        file = folder / f"{self.manifest.fingerprint[:32]}-{key}.npy"
        if not file.is_file():
            partial = file.with_suffix(f".{uuid4().hex}.partial")  # others may write it too
            with fsio.storage_errors(file):
                target = np.lib.format.open_memmap(
                    partial, "w+", np.float32, (len(self), self.width)
                )
                start = 0
                for number in range(self.manifest.n_shards):
                    stop = start + self._rows(number)
                    self._fill(number, target[start:stop])
                    start = stop
                target.flush()
                del target
            fsio.publish_file(partial, file)
        return cast("Floats", np.load(file, mmap_mode="r"))

    @property
    def width(self) -> int:
        """Width of the chosen views side by side."""
        return sum(self.manifest.views[name] for name in self.views)

    def _fill(self, number: int, matrix: Floats) -> None:
        """Read the chosen views of a shard into ``(rows, width)``."""
        columns = self._columns_of(matrix)
        with self._damage(number), self._open(number) as file:
            rows = file.metadata.num_rows
            if rows != len(matrix):
                raise ValueError(f"{rows} rows, {len(matrix)} were written")
            if not copy_vectors(self._part(number), file.metadata, columns):
                table = file.read(columns=list(self.views))
                for name, part in columns.items():
                    part[:] = _to_matrix(table.column(name), part.shape[1])

    def _columns_of(self, matrix: Floats) -> dict[str, Floats]:
        """The part of the matrix that each view fills."""
        columns = {}
        left = 0
        for name in self.views:
            columns[name] = matrix[:, left : left + self.manifest.views[name]]
            left += self.manifest.views[name]
        return columns

    def _labels(self, number: int) -> NDArray[np.str_]:
        with self._damage(number), self._open(number) as file:
            return _strings(file.read(columns=["label"]).column("label"))

    @cached_property
    def y(self) -> NDArray[np.str_]:
        """The labels as strings, ``(n,)``; empty where a record has none.

        Raises:
            UsageError: the dataset was made without a label column.
        """
        return _strings(self._column("label"))

    @cached_property
    def ids(self) -> NDArray[np.str_]:
        """The ids, ``(n,)``; row numbers where the corpus had none."""
        return np.array(self._column("id").to_pylist(), dtype=np.str_)

    @cached_property
    def row(self) -> NDArray[np.int64]:
        """Record numbers in the input, ``(n,)`` int64, ascending; gaps are rejects."""
        return np.asarray(self._column("row").to_numpy(), dtype=np.int64)

    @cached_property
    def text(self) -> list[str]:
        """The texts."""
        return list(self._column("text").to_pylist())

    def column(self, name: str) -> list[Any]:
        """Any column that is not a vector, as Python values; ``None`` for what is missing.

        Raises:
            UsageError: there is no such column.
        """
        return list(self._column(name).to_pylist())

    def _column(self, name: str) -> pa.ChunkedArray:
        known = self._open(0).schema_arrow.names
        if name not in known:
            raise UsageError(
                f"{self.path} has no column {name!r}; it has "
                f"{', '.join(n for n in known if n not in self.manifest.views)}. "
                "Extract again with --label, --keep or without --no-text."
            )
        return pa.chunked_array([c for t in self._tables([name]) for c in t.column(name).chunks])

    def _tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The shards that the manifest lists, whole and in order."""
        for number in range(self.manifest.n_shards):
            expected = self._rows(number)
            with self._damage(number), self._open(number) as file:
                table = file.read(columns=list(columns))
                if table.num_rows != expected:
                    raise ValueError(f"{table.num_rows} rows, {expected} were written")
            yield table

    def _rows(self, number: int) -> int:
        return int(self.manifest.files[f"sentences/{self._part(number).name}"]["rows"])

    def _open(self, number: int) -> pq.ParquetFile:
        with self._damage(number):
            return pq.ParquetFile(self._part(number), page_checksum_verification=True)

    def _part(self, number: int) -> Path:
        return Layout(self.path).part("sentences", number)

    @contextmanager
    def _damage(self, number: int) -> Iterator[None]:
        try:
            yield
        except (ValueError, pa.ArrowException, OSError) as error:
            raise DamagedError(
                f"{self._part(number)} is damaged: {error}. Run embedkit verify {self.path}."
            ) from error


def _strings(column: pa.ChunkedArray) -> NDArray[np.str_]:
    return np.array([value or "" for value in column.to_pylist()], np.str_)


def _to_matrix(column: pa.ChunkedArray, width: int) -> NDArray[Any]:
    """A column of fixed-size lists as ``(n, width)``; without a copy where it is in one piece."""
    flat = column.combine_chunks()
    if isinstance(flat, pa.ChunkedArray):
        flat = flat.chunk(0) if flat.num_chunks else pa.array([], column.type)
    return np.asarray(flat.flatten().to_numpy(zero_copy_only=False)).reshape(-1, width)


def _stored_view(name: str, manifest: Manifest, folder: Path) -> str:
    if name in manifest.views:
        return name
    try:
        resolved = parse_view(name, n_layers=manifest.n_layers).name
    except UsageError:
        if split_view(name)[0] not in POOLINGS:
            raise
        resolved = name  # a layer that the model has not; the message below says what there is
    if resolved not in manifest.views:
        raise UsageError(
            f"{folder} has no view {name!r}; it has {', '.join(manifest.views)}."
            f"{did_you_mean(resolved, manifest.views)}"
        )
    return resolved


def _why_not(path: Path) -> str:
    incomplete = path.with_name(path.name + ".incomplete")
    if Layout(path).job.is_file() and path.name.endswith(".incomplete"):
        return " It is an unfinished job: run the extract command that began it again."
    if incomplete.is_dir():
        return f" It is unfinished ({incomplete}): run the same extract command again."
    if not path.exists():
        return f" It does not exist.{_near(path)}"
    return " Give a folder that embedkit extract wrote."


def _near(path: Path) -> str:
    parent = path.parent
    return did_you_mean(path.name, (p.name for p in parent.iterdir())) if parent.is_dir() else ""
