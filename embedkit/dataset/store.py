"""Reading a dataset into NumPy: sentences, words or tokens, with what belongs to them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedkit import fsio
from embedkit.choices import LEVELS, POOLINGS, check_choice
from embedkit.dataset.batches import iter_batches
from embedkit.dataset.manifest import Layout, Manifest, is_dataset, read_manifest
from embedkit.dataset.matrix_files import matrix_shape, open_matrix, write_matrix
from embedkit.dataset.reader import TableReader
from embedkit.encoding.views import parse_layers, parse_view, split_view
from embedkit.errors import UsageError, did_you_mean
from embedkit.types import Float32, Int64

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Layout", "Manifest", "VectorData", "is_dataset", "load", "read_manifest"]

_TABLE_OF = dict(zip(LEVELS, ("sentences", "words", "tokens"), strict=True))


def load(
    path: str | Path, view: str | Sequence[str] | None = None, *, level: str = "sentence"
) -> VectorData:
    """Open a dataset for scikit-learn and NumPy; columns are read when they are used.

    Args:
        path: the folder that ``extract`` wrote.
        view: of sentences a view such as ``mean_-1`` or ``pooler``, of words and tokens a layer
            such as ``6``, ``-1`` or ``sum:-4..-1``; or several to put side by side. By default the
            last one stored that is a mean, else the last one.
        level: ``sentence``, ``word`` or ``token``: what a row is.

    Raises:
        UsageError: there is no dataset, or it has no such vectors; the message lists what it has.

    Example:
        >>> words = embedkit.load("vectors", level="word", view="6")
        >>> words.X[np.array(words.text) == "bank"].shape
        (12, 384)
    """
    check_choice(LEVELS, level=level)
    folder = Path(path)
    manifest = read_manifest(folder)
    known = list(manifest.columns_of(_TABLE_OF[level]))
    if level != "sentence" and not getattr(manifest.job.vectors, _TABLE_OF[level]):
        option = "words='mean'" if level == "word" else "tokens=True"
        raise UsageError(f"{folder} has no {level} vectors. Extract it again with {option}.")
    if view is None:
        names = [manifest.default_view(_TABLE_OF[level])]
    else:
        asked = [view] if isinstance(view, str) else list(view)
        if not asked:
            raise UsageError(f"no view was given; {folder} has {', '.join(known)}.")
        names = [_stored_view(name, known, manifest, folder, level) for name in asked]
        twice = [name for i, name in enumerate(names) if name in names[:i]]
        if twice:
            raise UsageError(f"view {twice[0]} is asked for twice; give every view once.")
    return VectorData(folder, manifest, tuple(names), level)


class VectorData:
    """Vectors of a dataset with what belongs to them, row by row in input order.

    Attributes:
        path: folder of the dataset.
        manifest: how it was made.
        views: the chosen views.
        level: what a row is: ``sentence``, ``word`` or ``token``.
        reader: reads parts of the table.
    """

    def __init__(
        self, path: Path, manifest: Manifest, views: tuple[str, ...], level: str = "sentence"
    ) -> None:
        self.path, self.manifest, self.views, self.level = path, manifest, views, level
        self.reader = TableReader(path, manifest, _TABLE_OF[level], views)

    def __len__(self) -> int:
        return len(self.reader)

    def __repr__(self) -> str:
        level = "" if self.level == "sentence" else f", level={self.level!r}"
        shape = f"({len(self)}, {self.width})"
        return f"VectorData({str(self.path)!r}, view={list(self.views)}{level}, X={shape})"

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
    def y(self) -> NDArray[np.str_]:
        """The labels as strings, ``(n,)``; empty where a record has none.

        Those of words are their own where the dataset has labels of words, else, as those of
        tokens, the labels of the records.

        Raises:
            UsageError: the dataset was made without a label column.
        """
        if self.level == "sentence" or "label" in self.columns:
            return _strings(self.reader.column("label"))
        return self._of_record(_strings(self._sentences.column("label")))

    @cached_property
    def ids(self) -> NDArray[np.str_]:
        """The ids of the records, ``(n,)``; row numbers where the corpus had none."""
        return self._of_record(_strings(self._sentences.column("id")))

    @cached_property
    def row(self) -> Int64:
        """Record numbers in the input, ``(n,)`` int64, ascending; gaps are rejects."""
        return np.asarray(self.reader.column("row").to_numpy(), np.int64)

    @cached_property
    def text(self) -> list[str]:
        """The texts; of words the words as written, of tokens as the vocabulary spells them."""
        return self.column("token" if self.level == "token" else "text")

    @cached_property
    def word(self) -> Int64:
        """Number of the word in its record, ``(n,)`` int64, of words and tokens; -1 for none."""
        return np.asarray(self.reader.column("word").to_numpy(), np.int64)

    @cached_property
    def start(self) -> Int64:
        """First character in the record's text, ``(n,)`` int64, of words and tokens."""
        return np.asarray(self.reader.column("start").to_numpy(), np.int64)

    @cached_property
    def end(self) -> Int64:
        """Character after the last one, ``(n,)`` int64, of words and tokens."""
        return np.asarray(self.reader.column("end").to_numpy(), np.int64)

    @property
    def token(self) -> list[str]:
        """The tokens as the vocabulary spells them."""
        return self.column("token")

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are not vectors."""
        return self.reader.columns

    def column(self, name: str) -> list[Any]:
        """Any column that is not a vector, as Python values; ``None`` for what is missing.

        Raises:
            UsageError: there is no such column.
        """
        return list(self.reader.column(name).to_pylist())

    def to_pandas(self) -> pd.DataFrame:
        """All columns as a ``pandas.DataFrame``, each chosen view as a column of rows of ``X``.

        Raises:
            ImportError: pandas is not installed.
        """
        import pandas as pd

        frame = pd.DataFrame({name: self.column(name) for name in self.columns})
        left = 0
        for name in self.views:
            right = left + self.manifest.columns_of(_TABLE_OF[self.level])[name]
            frame[name] = list(self.X[:, left:right])
            left = right
        return frame

    def iter_batches(
        self,
        batch_size: int = 8_192,
        *,
        columns: Sequence[str] = (),
        shuffle_seed: int | None = None,
        worker: tuple[int, int] = (0, 1),
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """Vectors and labels in batches, without reading the whole dataset.

        Every row is yielded exactly once over all workers, whose numbers of rows differ by one at
        most. The same seed and worker give the same order. With a seed, row groups (8,192 rows or
        fewer) are in random order, the rows of each are shuffled, and so are all rows of four row
        groups that follow each other; without one, workers have consecutive parts of the table.
        Memory holds so many row groups, whatever the size of the dataset.

        Args:
            batch_size: rows of a batch; only the last one has fewer.
            columns: further columns; null becomes an empty string.
            shuffle_seed: shuffle by this seed; another one for each epoch gives another order.
                ``None`` keeps the order of the input.
            worker: number of this worker, and the number of workers.

        Yields:
            ``"X"`` ``(m, width)`` float32, ``"row"`` ``(m,)`` int64, ``"y"`` ``(m,)`` str where
            the dataset has labels, and the further columns by name.

        Raises:
            UsageError: an argument is out of range, or there is no such column.

        Example:
            >>> import torch
            >>> class Vectors(torch.utils.data.IterableDataset):
            ...     def __init__(self, data, seed):
            ...         self.data, self.seed = data, seed
            ...     def __iter__(self):
            ...         info = torch.utils.data.get_worker_info()
            ...         worker = (0, 1) if info is None else (info.id, info.num_workers)
            ...         return self.data.iter_batches(64, shuffle_seed=self.seed, worker=worker)
            >>> data = embedkit.load("vectors")                            # doctest: +SKIP
            >>> loader = torch.utils.data.DataLoader(Vectors(data, seed=0), batch_size=None,
            ...                                      num_workers=2)        # doctest: +SKIP
            >>> sum(len(batch["X"]) for batch in loader) == len(data)      # doctest: +SKIP
            True
        """
        return iter_batches(
            self, batch_size, columns=columns, shuffle_seed=shuffle_seed, worker=worker
        )

    def mapped(self, cache: str | Path, *, verify: bool = True) -> Float32:
        """``X`` as a read-only memory map, for matrices larger than memory.

        Args:
            cache: folder for the ``.npy`` file, which is written the first time and named after
                the dataset's fingerprint and the views; a damaged one is written again.
            verify: compare the file with its checksums, which reads all of it; without, damage
                goes unnoticed.

        Raises:
            StorageError: the file cannot be written.

        Example:
            >>> data = embedkit.load("vectors")
            >>> np.array_equal(data.mapped("cache"), data.X)
            True
        """
        key = hashlib.sha256(json.dumps(self.views).encode()).hexdigest()[:16]
        file = Path(cache) / f"{self.manifest.fingerprint[:32]}-{key}.npy"
        shape = len(self), self.width
        written = False
        fsio.make_folder(file.parent)
        while not written and matrix_shape(file, verify=verify) != shape:
            written = write_matrix(file, shape, map(self.reader.vectors_of, self.reader.blocks))
        return open_matrix(file)

    @cached_property
    def _sentences(self) -> TableReader:
        """The table of the records."""
        if self.level == "sentence":
            return self.reader
        return TableReader(self.path, self.manifest, "sentences", ())

    def _of_record(self, values: NDArray[np.str_]) -> NDArray[np.str_]:
        """Values of all records as values of all rows."""
        if self.level == "sentence":
            return values
        rows = np.asarray(self._sentences.column("row").to_numpy(), np.int64)
        return values[np.searchsorted(rows, self.row)]


def _strings(column: pa.ChunkedArray) -> NDArray[np.str_]:
    return np.array([value or "" for value in column.to_pylist()], np.str_)


def _stored_view(name: str, known: list[str], manifest: Manifest, folder: Path, level: str) -> str:
    """The stored column that a view or layer names.

    Raises:
        UsageError: there is none; the message lists what there is.
    """
    resolved = str(name)
    if resolved in known:
        return resolved
    try:
        if level == "sentence":
            resolved = parse_view(resolved, n_layers=manifest.n_layers).name
        else:
            specs = parse_layers(resolved, n_layers=manifest.n_layers)
            resolved = "layer_" + ",".join(spec.name for spec in specs)
    except UsageError:
        if level == "sentence" and split_view(resolved)[0] not in POOLINGS:
            raise
        # a layer that the model has not; the message below says what there is
    if resolved not in known:
        raise UsageError(
            f"{folder} has no view {name!r}; it has {', '.join(known)}."
            f"{did_you_mean(resolved, known)}"
        )
    return resolved
