"""Which records a condition chooses: ``label = '1' AND n_tokens > 20``, in the words of SQL."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedkit.dataset.store import VectorData
from embedkit.errors import UsageError, first_line

__all__ = ["chosen_records"]

_PLACE = "embedkit_place"


def chosen_records(data: VectorData, condition: str) -> NDArray[np.bool_]:
    """Records for which an SQL condition on the columns of a dataset is true.

    Shards are looked at one after the other, and of their columns only those that the condition
    names; vectors are never read.

    Args:
        data: the dataset.
        condition: an expression as after ``WHERE``. Labels and kept columns are strings.

    Returns:
        ``(n,)`` bool.

    Raises:
        UsageError: the condition cannot be read, or names a column that is not there.
    """
    import duckdb

    columns = data.columns
    words = {word.casefold() for word in re.findall(r"\w+", condition)}
    named = [name for name in columns if set(re.findall(r"\w+", name.casefold())) <= words]
    chosen = np.zeros(len(data), bool)
    start = 0
    # a condition is an expression of the user's, not a way to other files
    with duckdb.connect(":memory:", config={"enable_external_access": "false"}) as database:
        for shard in range(data.manifest.n_shards):
            table = data.read_columns(shard, named or columns[:1])
            places = pa.array(np.arange(start, start + table.num_rows))
            table = table.append_column(_PLACE, places)
            try:
                found = database.from_arrow(table).filter(condition).project(_PLACE).fetchnumpy()
            except duckdb.Error as error:
                raise UsageError(
                    f"--where {condition}: {first_line(error)}. The columns are "
                    f"{', '.join(columns)}; an example: --where \"label = '1'\"."
                ) from error
            chosen[np.asarray(found[_PLACE], np.int64)] = True
            start += table.num_rows
    return chosen
