"""Records for which an SQL condition such as ``label = '1' AND n_tokens > 20`` is true."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from embedkit.dataset.store import VectorData
from embedkit.errors import UsageError, first_line
from embedkit.types import Bool

__all__ = ["chosen_records"]

_INDEX = "embedkit_index"


def chosen_records(data: VectorData, condition: str) -> Bool:
    """Choose the records for which an SQL condition on the columns of a dataset is true.

    Shards are read one after the other, and of their columns only those that the condition names;
    vectors are never read.

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
            table = data.reader.scalars(named or columns[:1], shard)
            indices = pa.array(np.arange(start, start + table.num_rows))
            table = table.append_column(_INDEX, indices)
            try:
                found = database.from_arrow(table).filter(condition).project(_INDEX).fetchnumpy()
            except duckdb.Error as error:
                raise UsageError(
                    f"where={condition!r}: {first_line(error)}. The columns are "
                    f"{', '.join(columns)}; an example: label = '1'."
                ) from error
            chosen[np.asarray(found[_INDEX], np.int64)] = True
            start += table.num_rows
    return chosen
