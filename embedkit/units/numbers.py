"""Numbers of the user's own beside vectors: columns such as a price, for an estimator.

    inputs (n, width + 2) float32      0.12  −0.03 …  0.41 │ 12.5   37      price, age
                                       0.08   0.11 … −0.20 │  NaN   41

A dataset stores every further column as text, and so does a record of a corpus: numbers are read
here. What is missing is NaN, and stays so: a step of the pipeline replaces it by the median of the
training records, which alone may be known (:func:`embedkit.classifiers.estimators.build_pipeline`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from embedkit.corpus.values import is_missing
from embedkit.errors import UsageError
from embedkit.types import Float32
from embedkit.units.units import Units

_TRUTHS = {"True": 1.0, "true": 1.0, "False": 0.0, "false": 0.0}


def beside_numbers(units: Units, columns: Sequence[str]) -> Units:
    """Return the records with their numbers behind the vectors; the same without ``columns``.

    Raises:
        UsageError: the units have no such column, or a value is no number.
    """
    if not columns:
        return units
    vectors, numbers = units.inputs, numbers_of(units, columns)
    return replace(units, inputs=lambda index: np.hstack([vectors(index), numbers[index]]))


def numbers_of(units: Units, columns: Sequence[str]) -> Float32:
    """Return columns of the units as ``(n, columns)`` float32, NaN where a value is missing."""
    numbers = np.empty((len(units), len(columns)), np.float32)
    for place, name in enumerate(columns):
        try:
            values = units.column(name)
        except KeyError:
            raise lacks_column(units.name, name) from None
        if len(values) != len(units):
            raise UsageError(
                f"columns=: {name!r} has {len(values):,} values for {len(units):,} texts."
            )
        for i, value in enumerate(values):
            if (number := _number(value)) is None:
                raise UsageError(
                    f"columns={name!r}: {units.name}, row {units.row[i]}, holds {value!r}, which "
                    "is no number. Leave the column out, or write its values as numbers."
                )
            numbers[i, place] = number
    return numbers


def lacks_column(name: str, column: str) -> UsageError:
    """The error of data without a column that a run reads."""
    return UsageError(
        f"{name} has no column {column!r}, a number that the run reads beside the text. Predict a "
        "corpus or a dataset that has it; in Python, give Predictor.predict() the columns."
    )


def _number(value: Any) -> float | None:
    """The number that a value is or tells, NaN for a missing one; ``None`` for another value."""
    if is_missing(value) or value == "":
        return float("nan")
    try:
        number = _TRUTHS[value] if value in _TRUTHS else float(value)
    except (TypeError, ValueError):
        return None
    # beyond float32 it would be infinite, which no estimator takes; `nan` as a text is a word
    return number if abs(number) < np.finfo(np.float32).max else None
