"""Batches of rows for training, in order or shuffled, for one or several workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedkit.dataset.reader import Block
from embedkit.errors import UsageError, check_counts, check_seed
from embedkit.types import Int64

if TYPE_CHECKING:
    from embedkit.dataset.store import VectorData

__all__ = ["iter_batches"]

_BLOCKS_SHUFFLED = 4  # row groups whose rows are mixed

_Batch = dict[str, NDArray[Any]]
_Piece = tuple[Block, Int64]  # a row group, and the rows of it that are wanted, in their order


def iter_batches(
    data: VectorData,
    batch_size: int,
    *,
    columns: Sequence[str],
    shuffle_seed: int | None,
    worker: tuple[int, int],
) -> Iterator[_Batch]:
    """Yield batches; see :meth:`~embedkit.dataset.store.VectorData.iter_batches`."""
    check_counts(batch_size=batch_size)
    if shuffle_seed is not None:
        check_seed(shuffle_seed)
    number, count = worker
    if not 0 <= number < count:
        raise UsageError(f"worker={worker}: expected a number from 0, and the number of workers.")
    if isinstance(columns, str):
        raise TypeError(f"columns={columns!r} is a string; pass a list of columns.")
    for name in columns:
        if name not in data.columns:
            raise UsageError(f"columns={name!r}: {data.path} has {', '.join(data.columns)}.")
    pieces = _pieces(data.reader.blocks, shuffle_seed, number, count)
    size = 1 if shuffle_seed is None else _BLOCKS_SHUFFLED
    windows = [pieces[i : i + size] for i in range(0, len(pieces), size)]
    return _batches(data, windows, batch_size, columns, shuffle_seed, number)


def _pieces(blocks: Sequence[Block], seed: int | None, number: int, count: int) -> list[_Piece]:
    """The rows of one worker: an equal part of all rows, laid out row group by row group."""
    total = sum(block.rows for block in blocks)
    first, last = total * number // count, total * (number + 1) // count
    order = np.arange(len(blocks))
    if seed is not None:
        np.random.default_rng(seed).shuffle(order)
    pieces = []
    start = 0
    for index in order.tolist():
        block = blocks[index]
        rows = np.arange(block.rows)
        if seed is not None:  # the same for all workers that share the row group
            np.random.default_rng((seed, index)).shuffle(rows)
        mine = rows[max(first - start, 0) : max(last - start, 0)]
        if len(mine):
            pieces.append((block, mine))
        start += block.rows
    return pieces


def _batches(
    data: VectorData,
    windows: Sequence[Sequence[_Piece]],
    size: int,
    columns: Sequence[str],
    seed: int | None,
    number: int,
) -> Iterator[_Batch]:
    rest: _Batch = {}
    for turn, window in enumerate(windows):
        rows = _joined([_read(data, block, mine, columns) for block, mine in window])
        if seed is not None:
            order = np.random.default_rng((seed, number, turn)).permutation(len(rows["row"]))
            rows = {name: values[order] for name, values in rows.items()}
        rows = _joined([rest, rows]) if rest else rows
        whole = len(rows["row"]) // size * size
        for start in range(0, whole, size):
            yield {name: values[start : start + size] for name, values in rows.items()}
        rest = {name: values[whole:] for name, values in rows.items()}
    if rest and len(rest["row"]):
        yield rest


def _read(data: VectorData, block: Block, mine: Int64, columns: Sequence[str]) -> _Batch:
    """Some rows of a row group."""
    vectors = np.empty((block.rows, data.width), np.float32)
    data.reader.read_block(block, vectors)
    with_own = "label" in data.columns
    labelled = with_own or data.manifest.job.input.label is not None
    own = [*columns, *(["label"] if with_own else [])]
    table = data.reader.scalars_of(block, list(dict.fromkeys(["row", *own]))).take(mine)
    batch = {"X": vectors[mine], "row": table.column("row").to_numpy()}
    if with_own:
        batch["y"] = _plain(table.column("label"))
    elif labelled:
        batch["y"] = data.y[block.start + mine]
    return batch | {name: _plain(table.column(name)) for name in columns if name != "row"}


def _plain(column: pa.ChunkedArray) -> NDArray[Any]:
    if pa.types.is_string(column.type):
        return np.array([value or "" for value in column.to_pylist()], np.str_)
    return np.asarray(column.to_numpy())


def _joined(parts: Sequence[_Batch]) -> _Batch:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
