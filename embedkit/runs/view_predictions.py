"""What each view of a probe predicts for held-out records: ``view_predictions.parquet``.

row, VIEW …         labels, or values of a regression
row, word, VIEW …   of words
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedkit import fsio
from embedkit.checksums import check_files
from embedkit.decoding import check_columns, read_table
from embedkit.errors import DamagedError
from embedkit.runs.predictions import decide, keys_of
from embedkit.types import Float64, Int64

__all__ = ["read_view_predictions", "write_view_predictions"]

_FILE = "view_predictions.parquet"
_ADVICE = "Make the run again."


def write_view_predictions(
    folder: Path, row: Int64, outputs: Mapping[str, Float64], classes: Sequence[str],
    *, word: Int64 | None = None,
) -> None:  # fmt: skip
    """Write the file.

    Args:
        folder: of the probe.
        row: ``(n,)`` record numbers.
        outputs: ``(n, classes)`` probabilities or ``(n,)`` values by view.
        classes: labels by class number; empty for values.
        word: ``(n,)`` number of each word in its record, of a probe of words.
    """
    columns: dict[str, Any] = {"row": row}
    if word is not None:
        columns["word"] = word
    for name, output in outputs.items():
        columns[name] = [classes[i] for i in decide(output)] if classes else output
    fsio.write_parquet(folder / _FILE, pa.table(columns))


def read_view_predictions(
    folder: Path, views: Sequence[str], classes: Sequence[str]
) -> tuple[Int64, dict[str, NDArray[Any]]]:
    """Return keys of records or words, and class numbers or values ``(n,)`` by view.

    The keys are those of :attr:`Predictions.keys <embedkit.runs.predictions.Predictions.keys>`.

    Of a probe without the file both are empty.

    Args:
        folder: of the probe.
        views: its views.
        classes: labels by class number; empty for values.

    Raises:
        DamagedError: the file was changed since it was written, or lacks a view or label.
    """
    file = folder / _FILE
    if not file.is_file():
        return np.empty(0, np.int64), {}
    check_files(folder, [_FILE], advice=_ADVICE)
    table = read_table(file, advice=_ADVICE)
    answers = pa.string() if classes else pa.float64()
    check_columns(table, {"row": pa.int64()} | dict.fromkeys(views, answers), file=file,
                  advice=_ADVICE)  # fmt: skip
    numbers = {label: i for i, label in enumerate(classes)}
    try:
        found = {
            name: np.array([numbers[label] for label in table[name].to_pylist()], np.int64)
            if classes else np.asarray(table[name].to_numpy(), np.float64)
            for name in views
        }  # fmt: skip
    except KeyError as error:
        raise DamagedError(f"{file} is damaged: {error} is no class of the run. {_ADVICE}"
                           ) from error  # fmt: skip
    word = table["word"].to_numpy() if "word" in table.column_names else None
    return keys_of(np.asarray(table["row"].to_numpy(), np.int64), word), found
