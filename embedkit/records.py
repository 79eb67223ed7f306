"""The one reader and the one writer of records: JSON on one side, plain dataclasses on the other.

    bytes --parse_json--> Python's values --from_json--> a record, checked field by field
    bytes <-canonical_json-- Python's values <--to_json-- a record

What is notable: the writer is the mirror of the reader. It turns NumPy's scalars into Python's and
reads back what it made before anything is published, so that no run ends with a file that no later
command accepts. JSON has no NaN: it is written as ``null``, and ``null`` is NaN where a field is a
float. A file of another program is data: keys that
occur twice, texts that are not UTF-8 and values of a wrong type are named with the file and what to
do about it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from embedkit.arguments import plain
from embedkit.display import without_nan
from embedkit.errors import DamagedError, EmbedkitError, UsageError, first_line
from embedkit.storage import MAKE_AGAIN, reading

T = TypeVar("T")

_CONVERTING = threading.Lock()
"""msgspec looks at a class when it first converts to it. Two threads that do so at once, such as
those that write shards, may end the process (0.22.0)."""


# whole numbers end where int64 does: larger ones fit into no column
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


Seconds = Annotated[float, msgspec.Meta(ge=0)]


Positive = Annotated[int, msgspec.Meta(gt=0, le=(1 << 63) - 1)]


Seed = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]  # what all libraries take


def read_json(
    file: Path, *, error: type[EmbedkitError] = DamagedError, advice: str = MAKE_AGAIN
) -> Any:
    """Parse a JSON file; an ``error`` names it and ends with ``advice``."""
    with reading(file, error=error, advice=advice):
        content = file.read_bytes()
    return parse_json(content, file=file, error=error, advice=advice)


def parse_json(
    content: bytes,
    *,
    file: Path,
    error: type[EmbedkitError] = DamagedError,
    advice: str = MAKE_AGAIN,
) -> Any:
    """Parse the JSON of a file; arguments and errors as for :func:`read_json`."""

    def refuse(name: str) -> float:
        # NaN and Infinity, which Python's parser takes otherwise
        raise ValueError(f"{name} is not valid JSON")

    try:  # not by msgspec, which refuses the names of files that are not UTF-8
        return json.loads(content.decode("utf-8"), parse_constant=refuse)
    except (RecursionError, ValueError) as problem:
        reason = first_line(problem)
        raise error(f"{file} is damaged: not valid JSON ({reason}). {advice}") from problem


def from_json(kind: type[T], value: Any, *, file: Path, advice: str = MAKE_AGAIN) -> T:
    """Return an instance of a dataclass from parsed JSON, by ``msgspec``.

    ``null`` stands for NaN where a float is expected; other floats are finite. Fields that the
    dataclass does not have are ignored. A :class:`DamagedError` names the field that is missing,
    has another type or is out of range, or has the message that the method ``problem`` returns if
    fields contradict each other.
    """
    try:
        # types and limits first, then what only the record itself can judge
        with _CONVERTING:
            record = msgspec.convert(_with_nan(kind, value), kind)
        problem = record.problem() if hasattr(record, "problem") else ""
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        problem = first_line(error)
    if problem:
        problem = problem.replace("$.", "")
        raise DamagedError(
            f"{file} is damaged, or of another version of embedkit: {problem}. {advice}"
        )
    return record


def to_json(record: Any, *, indent: int | None = 1) -> bytes:
    """Return a dataclass as JSON that :func:`from_json` reads; equal records give equal bytes.

    NumPy's numbers become Python's, and ``null`` stands for NaN. What the reader would refuse is
    not written: a :class:`UsageError` names the field.
    """
    value, kind = without_nan(plain(dataclasses.asdict(record))), type(record)
    # without indentation it is metadata of Parquet, in ASCII; else a file for people
    text = json.dumps(value, ensure_ascii=indent is None, sort_keys=True, indent=indent)
    try:
        # read back before it is written: what no later command accepts is refused now
        from_json(kind, json.loads(text), file=Path(kind.__name__))
    except DamagedError as error:
        raise UsageError(f"{first_line(error)} cannot be written") from error
    # a surrogate becomes \udcff, which is how JSON spells it
    return text.encode("utf-8", "backslashreplace")  # file names that are not UTF-8


def _with_nan(kind: Any, value: Any) -> Any:
    """Parsed JSON with NaN for ``null`` where a float is expected."""
    origin, arguments = get_origin(kind), [a for a in get_args(kind) if a is not NoneType]
    # infinity in the JSON, such as 1e999, is no number of embedkit
    if kind is float:
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} is out of range")
        return math.nan if value is None else value
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = _hints(kind)
        # fields of a later version stay as they are, and are ignored by msgspec
        return {k: _with_nan(hints[k], v) if k in hints else v for k, v in value.items()}
    if origin is tuple and isinstance(value, list):
        # tuple[X, ...] is any number of one kind; of another number than is stated msgspec tells
        kinds = arguments[:1] * len(value) if ... in arguments else arguments
        return [*map(_with_nan, kinds, value), *value[len(kinds) :]]
    if origin is dict and isinstance(value, dict):
        return {key: _with_nan(arguments[1], item) for key, item in value.items()}
    if len(arguments) == 1 and value is not None:  # X | None
        return _with_nan(arguments[0], value)
    return value


# annotations are texts, and costly to resolve for each of thousands of records
_hints = cache(get_type_hints)


def canonical_json(value: object) -> bytes:
    """JSON with sorted keys: the same content gives the same bytes."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, indent=1)
    return text.encode("utf-8", "backslashreplace")  # file names that are not UTF-8
