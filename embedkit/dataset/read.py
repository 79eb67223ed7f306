"""Reading a dataset into NumPy: sentences, words or tokens, with what belongs to them.

    load ─► VectorData   X (n, width)    row, ids, labels, text (n,)    a row group at a time:
              level                                                     batches, Arrow, exports

Nothing is read before it is used, and each column once. Words and tokens have tables of their own
that name their record by its number; ids and labels of the records come from the table of sentences
by it. What does not fit into memory is read row group by row group, in batches that are shuffled
within some of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from embedkit import storage
from embedkit.arguments import accepts
from embedkit.choices import LEVELS, Export, Level, documented
from embedkit.dataset.format import TABLES, Manifest, local_dataset, read_manifest
from embedkit.dataset.parquet import numbers, vector_column
from embedkit.dataset.tables import Block, TableReader
from embedkit.display import Shown
from embedkit.encoding.views import parse_layers, parse_view
from embedkit.errors import Option, UsageError, did_you_mean
from embedkit.machine import faiss_with_threads, usable_cores
from embedkit.records import Positive, Seed
from embedkit.types import AnyPath, Float32, Int64

if TYPE_CHECKING:
    import pandas as pd


# no leading zero, since 007 is a name rather than a number, and at most 18 digits, which int64
# holds
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})(\.[0-9]+)?([eE][-+]?[0-9]+)?")


def text_keys(data: VectorData) -> Int64:
    """Return the key of every record's text, ``(n,)``, of a pair of both together."""
    return data.reader.integers("text_key")


def has_label(label: str | None) -> bool:
    """True if there is a label: neither null nor blank."""
    return label is not None and bool(label.strip())


_BLOCKS_SHUFFLED = 4  # row groups whose rows are mixed

_Batch = dict[str, NDArray[Any]]


def _batches(
    data: VectorData, size: int, columns: Sequence[str], seed: int | None, worker: tuple[int, int]
) -> Iterator[_Batch]:
    """The batches of a worker, which has an equal part of all rows, row group by row group."""
    blocks, (number, count) = data.reader.blocks, worker
    # row groups in the order of this epoch; all workers shuffle them alike, by the same seed
    order = np.arange(len(blocks))
    if seed is not None:
        np.random.default_rng(seed).shuffle(order)
    edges = np.cumsum([0, *(blocks[i].rows for i in order)]).tolist()
    # whole numbers: parts differ by one row at most, and none is lost or read twice
    first, last = edges[-1] * number // count, edges[-1] * (number + 1) // count
    # the rows of each row group that are this worker's, of most row groups none
    pieces = [
        (blocks[i], np.arange(max(first - start, 0), min(last, stop) - start))
        for i, (start, stop) in zip(order, pairwise(edges), strict=True)
    ]
    pieces = [piece for piece in pieces if len(piece[1])]
    # without a seed one row group at a time suffices, since rows keep their order
    together, rest = 1 if seed is None else _BLOCKS_SHUFFLED, _Batch()
    for turn in range(0, len(pieces), together):
        rows = _joined([_read(data, *piece, columns) for piece in pieces[turn : turn + together]])
        if seed is not None:
            # the seed with worker and turn: independent permutations that are the same again
            mixed = np.random.default_rng((seed, number, turn)).permutation(len(rows["row"]))
            rows = {name: values[mixed] for name, values in rows.items()}
        # batches run across row groups, so that only the last one is smaller
        rows = _joined([rest, rows]) if rest else rows
        whole = len(rows["row"]) // size * size
        for start in range(0, whole, size):
            yield {name: values[start : start + size] for name, values in rows.items()}
        rest = {name: values[whole:] for name, values in rows.items()}
    if rest and len(rest["row"]):
        yield rest


def _read(data: VectorData, block: Block, rows: Int64, columns: Sequence[str]) -> _Batch:
    """Some rows of a row group."""
    vectors = data.reader.vectors_of(block)
    table = data.reader.scalars_of(block, list(dict.fromkeys(["row", *columns]))).take(rows)
    # a copy: what Arrow hands over is read-only, of which PyTorch warns
    batch = {"X": vectors[rows], "row": np.array(numbers(table.column("row")))}
    # labels of words are in their own table, those of tokens come from the records
    if "label" in data.columns or data.manifest.job.input.label is not None:
        batch["y"] = data.y[block.start + rows]
    return batch | {name: _plain(table.column(name)) for name in columns if name != "row"}


def _number_kind(label: str) -> type | None:
    """``int``, ``float``, ``str`` (also for ``007``), or ``None`` without a label."""
    if not has_label(label):
        return None
    match = _NUMBER.fullmatch(label)
    return str if match is None else float if match[1] or match[2] else int


def _plain(column: pa.ChunkedArray) -> NDArray[Any]:
    if pa.types.is_string(column.type):
        # NumPy's strings have no null
        return np.array([value or "" for value in column.to_pylist()], np.str_)
    return numbers(column)


def _joined(parts: Sequence[_Batch]) -> _Batch:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


_TABLE_OF = dict(zip(LEVELS, TABLES, strict=True))


@accepts()
def load(
    path: AnyPath, view: str | Sequence[str] | None = None, *, level: Level = "sentence"
) -> VectorData:
    """Open a dataset for scikit-learn and NumPy; columns are read when they are used.

    Args:
        path: the folder that ``extract`` wrote.
        view: of sentences a view such as ``mean_-1`` or ``pooler``, of words and tokens a layer
            such as ``6`` or ``-1``, or a combination that was extracted, such as ``sum:-4..-1``; or
            several to put side by side. By default the last one stored that is a mean, else the
            last one.
        level: what a row is: {LEVELS}.

    Raises:
        UsageError: not a dataset, or it has no such vectors; the message lists the stored ones.

    Example:
        >>> words = embedkit.load("vectors", level="word", view="6")
        >>> words.X[np.array(words.text) == "bank"].shape
        (12, 384)
    """
    return VectorData.of(local_dataset(path), view, level=level)


@documented
class VectorData(Shown):
    """Vectors of a dataset with what belongs to them, row by row in input order.

    What reads Arrow streams takes it as it is, row group by row group: ``pyarrow.table(data)``,
    ``polars.DataFrame(data)``, ``duckdb.sql("FROM data")``.

    Attributes:
        path: folder of the dataset.
        manifest: how it was made.
        views: the chosen views.
        level: what a row is: {LEVELS}.
        reader: reads parts of the table.
        lost: rejected records, where a corpus was given and this is made of it.
    """

    lost = 0

    def __init__(
        self, path: Path, manifest: Manifest, views: tuple[str, ...], level: str = "sentence"
    ) -> None:
        self.path, self.manifest, self.views, self.level = path, manifest, views, level
        self.reader = TableReader(path, manifest, _TABLE_OF[level], views)

    @classmethod
    def of(
        cls, folder: Path, view: str | Sequence[str] | None = None, *, level: str = "sentence"
    ) -> VectorData:
        """Open a dataset on this machine; arguments and errors are those of :func:`load`."""
        manifest = read_manifest(folder)
        stored = list(manifest.columns_of(_TABLE_OF[level]))
        if _TABLE_OF[level] not in manifest.job.vectors.tables:
            name, value = ("words", "mean") if level == "word" else ("tokens", True)
            option = Option(name, value, of="extract")
            raise UsageError(f"{folder} has no {level} vectors. Extract it again with {option}.")
        if view is None:
            names = [manifest.default_view(_TABLE_OF[level])]
        else:
            views = [view] if isinstance(view, str) else list(view)
            if not views:
                raise UsageError(f"no view was given; {folder} has {', '.join(stored)}.")
            names = [_stored_view(name, stored, manifest, folder, level) for name in views]
            if repeated := [name for i, name in enumerate(names) if name in names[:i]]:
                raise UsageError(f"view {repeated[0]} is asked for twice; give every view once.")
        return cls(folder, manifest, tuple(names), level)

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, rows: Any) -> Float32:
        """Vectors by position, as of ``X``: one, or those of a slice, a mask or indices.

        Example:
            >>> data = embedkit.load("vectors")
            >>> data[0].shape, data[:5].shape, data[data.row > 8].shape
            ((384,), (5, 384), (3, 384))
        """
        try:
            return np.asarray(self.X[rows])
        except ValueError as error:  # of lists of several lengths
            raise UsageError("expected positions, a slice or a mask.", rows=rows) from error

    def __repr__(self) -> str:
        level = "" if self.level == "sentence" else f", level={self.level!r}"
        shape = f"({len(self)}, {self.width})"
        return f"VectorData({str(self.path)!r}, view={list(self.views)}{level}, X={shape})"

    def as_rows(self) -> list[dict[str, Any]]:
        """The first ten rows, with the first numbers of their vectors."""
        first = np.arange(min(len(self), 10))
        vectors = self.reader.vectors_at(first)[:, :4]
        columns = self.reader.table_at(first, self.columns).to_pydict() | {
            "X": [", ".join(f"{number:.3f}" for number in vector) + ", …" for vector in vectors]
        }
        cells = zip(*columns.values(), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in cells]

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return _arrow_reader(self).__arrow_c_stream__(requested_schema)

    @cached_property
    def X(self) -> Float32:
        """The vectors, ``(n, width)`` float32; several views side by side."""
        matrix = np.empty((len(self), self.width), np.float32)
        self.reader.fill(matrix)
        return matrix

    @property
    def width(self) -> int:
        """Width of the chosen views side by side."""
        return self.reader.width

    @cached_property
    def y(self) -> NDArray[Any]:
        """The labels, ``(n,)``: int64 or float64 if all are whole or other numbers, else strings.

        A missing label among numbers is NaN. See :attr:`labels`.
        """
        kinds = {_number_kind(label) for label in np.unique(self.labels).tolist()}
        # one label that is not a number makes all of them names; a missing one is None and decides
        # nothing
        if not kinds & {int, float} or str in kinds:
            return self.labels
        # with a label missing, or a fraction among them, they are floats: an integer cannot be NaN
        if kinds == {int}:
            return self.labels.astype(np.int64)
        return np.array([float(label.strip() or "nan") for label in self.labels], np.float64)

    @cached_property
    def labels(self) -> NDArray[np.str_]:
        """The labels as written, ``(n,)``; empty where a record has none.

        Those of words are their own where the dataset has labels of words, else, as those of
        tokens, the labels of the records.

        Raises:
            UsageError: the dataset was made without a label column.
        """
        if self.level == "sentence" or "label" in self.columns:
            return _plain(self.reader.column("label"))
        return self._of_record(self.records.labels)

    @cached_property
    def ids(self) -> NDArray[np.str_]:
        """The ids of the records, ``(n,)``; row numbers where the corpus had none."""
        if self.level != "sentence":
            return self._of_record(self.records.ids)
        return _plain(self.reader.column("id"))

    @property
    def row(self) -> Int64:
        """Record numbers in the input, ``(n,)`` int64, ascending; gaps are rejects."""
        return self.reader.rows

    @cached_property
    def text(self) -> list[str]:
        """The texts; of words the words as written, of tokens as the vocabulary spells them."""
        return self.column("token" if self.level == "token" else "text")

    @cached_property
    def word(self) -> Int64:
        """Number of the word in its record, ``(n,)`` int64, of words and tokens; -1 for none."""
        return self.reader.integers("word")

    @cached_property
    def start(self) -> Int64:
        """First character in the record's text, ``(n,)`` int64, of words and tokens."""
        return self.reader.integers("start")

    @cached_property
    def end(self) -> Int64:
        """Character after the last one, ``(n,)`` int64, of words and tokens."""
        return self.reader.integers("end")

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are not vectors."""
        return self.reader.columns

    @accepts()
    def column(self, name: str) -> list[Any]:
        """Any column that is not a vector, as Python values; ``None`` for what is missing.

        Raises:
            UsageError: there is no such column.
        """
        return list(self.reader.column(name).to_pylist())

    def to_pandas(self) -> pd.DataFrame:
        """All columns as a ``pandas.DataFrame``, each chosen view as a column of rows of ``X``."""
        import pandas as pd

        columns = {name: self.column(name) for name in self.columns}
        vectors = self.reader.divided(self.X)
        return pd.DataFrame(columns | {name: list(rows) for name, rows in vectors.items()})

    @accepts()
    def iter_batches(
        self,
        batch_size: Positive = 8_192,
        *,
        columns: Sequence[str] = (),
        shuffle_seed: Seed | None = None,
        worker: tuple[int, int] = (0, 1),
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """Vectors and labels in batches, without reading the whole dataset.

        Every row is yielded exactly once over all workers, whose numbers of rows differ by one at
        most. The same seed and worker give the same order. With a seed, row groups (8,192 rows or
        fewer) are in random order, and the rows of four that follow each other are shuffled
        together, in memory; without one, workers have consecutive parts of the table.

        Args:
            batch_size: rows of a batch; only the last one has fewer.
            columns: further columns; null becomes an empty string.
            shuffle_seed: shuffle by this seed; another one for each epoch gives another order.
            worker: number of this worker, and the number of workers.

        Yields:
            ``"X"`` ``(m, width)`` float32, ``"row"`` ``(m,)`` int64, ``"y"`` ``(m,)`` where the
            dataset has labels, as :attr:`y`, and the further columns by name.

        Raises:
            UsageError: an argument is out of range, or there is no such column.

        Example:
            >>> data = embedkit.load("vectors")
            >>> sum(len(batch["X"]) for batch in data.iter_batches(5, shuffle_seed=0))
            12
        """
        if len(worker) != 2 or not 0 <= worker[0] < worker[1]:
            raise UsageError(f"worker={worker}: expected a number from 0, and that of workers.")
        self.reader.scalars(columns)  # called for its error alone: there is no such column
        if same := {"X", "y"}.intersection(columns):
            raise UsageError("a batch has vectors and labels by this name.", columns=min(same))
        # not a generator itself: arguments are judged at the call, not at the first batch
        return _batches(self, batch_size, columns, shuffle_seed, worker)

    @accepts()
    def export(self, out: str | Path | None = None, *, to: Export, overwrite: bool = False) -> Path:
        """Write the vectors for other tools.

        ``npy`` is the matrix alone. ``csv`` has the columns too, the vectors as ``v0``, ``v1``, …
        ``faiss`` is a flat index of inner products under the row numbers, of words and tokens under
        their positions, as in ``npy``. What takes Arrow needs
        no file: ``lance.write_dataset(pyarrow.table(data), "vectors.lance")``.

        Args:
            out: file to write; by default ``<dataset>.<to>``.
            to: {EXPORTS}.
            overwrite: replace ``out``.

        Raises:
            UsageError: the format is unknown, or its library is not installed.
            OutputExistsError: ``out`` exists.

        Example:
            >>> import numpy as np
            >>> np.load(embedkit.load("vectors").export(to="npy")).shape
            (12, 384)
        """
        target = Path(f"{self.path.name}.{to}" if out is None else out)
        if target.suffix[1:] in _EXPORT.keys() - {to}:
            raise UsageError(f"it names another format than {to}.", out=out)

        free = partial(storage.refuse_existing, target, overwrite=overwrite)
        with (
            storage.new_file(target, free=free) as work,
            # RuntimeError: what faiss raises where it cannot write
            storage.storage_errors(work, RuntimeError, pa.ArrowException),
        ):
            _EXPORT[to](self, work)
        return target

    @cached_property
    def records(self) -> VectorData:
        """The records that the words or tokens belong to, with the view that is the default."""
        if self.level == "sentence":
            return self
        view = self.manifest.default_view("sentences")
        return VectorData(self.reader.folder, self.manifest, (view,))

    def _of_record(self, values: NDArray[np.str_]) -> NDArray[np.str_]:
        """Values of all records as values of all words or tokens."""
        # rows of the records are ascending and hold those of every word and token
        return values[np.searchsorted(self.records.row, self.row)]


def _with_columns(data: VectorData) -> Iterator[tuple[pa.Table, Float32]]:
    """The columns and vectors of each row group."""
    for block in data.reader.blocks:
        yield data.reader.scalars_of(block, data.columns), data.reader.vectors_of(block)


def _arrow_reader(data: VectorData) -> pa.RecordBatchReader:
    """The columns, and the vectors as a column for each view, as an Arrow stream."""
    fields = [data.reader.schema.field(name) for name in data.columns]
    # without rows, for the types of the vector columns alone
    none = data.reader.divided(np.empty((0, data.width), np.float32))
    fields += [pa.field(name, vector_column(vectors).type) for name, vectors in none.items()]
    schema = pa.schema(fields)

    def batches() -> Iterator[pa.RecordBatch]:
        for table, vectors in _with_columns(data):
            parts = map(vector_column, data.reader.divided(vectors).values())
            yield from pa.table([*table.columns, *parts], schema=schema).to_batches()

    return pa.RecordBatchReader.from_batches(schema, batches())


def _to_npy(data: VectorData, out: Path) -> None:
    shape = (len(data), data.width)
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    with out.open("wb") as sink:  # in order: a map over holes dies or loses pages on a full disk
        # the matrix is written row group by row group, so that it need not fit into memory
        np.lib.format.write_array_header_1_0(sink, header)
        for block in data.reader.blocks:
            sink.write(data.reader.vectors_of(block).data)


def _to_csv(data: VectorData, out: Path) -> None:
    names = {f"v{i}" for i in range(data.width)}
    if same := names.intersection(data.columns):
        raise UsageError(f"the column {min(same)} has a name of the vectors. Use npy.", to="csv")
    with out.open("wb") as sink:
        for number, (table, vectors) in enumerate(_with_columns(data)):
            for i, values in enumerate(vectors.T):
                table = table.append_column(f"v{i}", pa.array(values))
            pa_csv.write_csv(table, sink, pa_csv.WriteOptions(include_header=number == 0))


def _to_faiss(data: VectorData, out: Path) -> None:
    with faiss_with_threads(usable_cores()) as faiss:
        # 2: vectors can be had back by their ids
        index = faiss.IndexIDMap2(faiss.IndexFlatIP(data.width))
        for table, vectors in _with_columns(data):
            # words of a record share its row
            place = index.ntotal + np.arange(len(vectors))
            row = table.column("row").to_numpy()
            index.add_with_ids(vectors, row if data.level == "sentence" else place)
        write_faiss(faiss, index, out)


def write_faiss(faiss: Any, index: Any, file: Path) -> None:
    """Write an index; a ``RuntimeError`` where the disk is full.

    Given a path, faiss does not notice that the end of a file could not be written.
    """
    with file.open("wb") as sink:
        faiss.write_index(index, faiss.PyCallbackIOWriter(sink.write))


_EXPORT = {"npy": _to_npy, "csv": _to_csv, "faiss": _to_faiss}


def _stored_view(name: str, stored: list[str], manifest: Manifest, folder: Path, level: str) -> str:
    """The stored column that a view or layer names."""
    resolved = str(name)
    if resolved in stored:
        return resolved
    # what is no view, or of a layer that the model does not have, is none of the stored ones either
    with suppress(UsageError):
        if level == "sentence":
            # other spellings, such as mean_-1, become the name of the column
            resolved = parse_view(resolved, n_layers=manifest.job.model.n_layers).name
        else:
            specs = parse_layers(resolved, n_layers=manifest.job.model.n_layers)
            resolved = "layer_" + ",".join(spec.name for spec in specs)
    if resolved not in stored:
        raise UsageError(
            f"{folder} has no view {name!r}; it has {', '.join(stored)}."
            f"{did_you_mean(resolved, stored)}"
        )
    return resolved
