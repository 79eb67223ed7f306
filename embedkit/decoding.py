"""Files → typed content: JSON → frozen dataclasses, Parquet → columns; every field is checked.

What comes from disk is used only after this: anything else than what was written is one error that
names the file and the field.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from embedkit.errors import DamagedError, EmbedkitError, first_line
from embedkit.parquet_seal import is_whole

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["check_columns", "decode", "parse_json", "read_json", "read_table"]

T = TypeVar("T")

_ADVICE = "Make it again."
_LARGEST = 1 << 30
_JSON_NAMES = {NoneType: "null", str: "a string", bool: "true or false", int: "a whole number",
               float: "a number", list: "a list", dict: "an object"}  # fmt: skip


class _FieldError(Exception):
    """A field that is missing or of another type."""


def read_json(
    file: Path, *, error: type[EmbedkitError] = DamagedError, advice: str = _ADVICE
) -> Any:
    """Parse a JSON file.

    Args:
        file: its path; it is not read if it is larger than any file of embedkit.
        error: what is raised.
        advice: what to do then, the last sentence of the message.

    Raises:
        EmbedkitError: of the kind ``error``: the file cannot be read, is no JSON, nested deeper
            than can be parsed, or holds NaN or infinity, which JSON does not have.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(_LARGEST + 1)
    except OSError as reason:
        raise error(f"{file} cannot be read: {reason.strerror or reason}. {advice}") from reason
    return parse_json(content, file=file, error=error, advice=advice)


def parse_json(
    content: bytes, *, file: Path, error: type[EmbedkitError] = DamagedError, advice: str = _ADVICE
) -> Any:
    """Parse JSON that a file holds; arguments and errors as for :func:`read_json`."""
    try:
        if len(content) > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST:,} bytes")
        return json.loads(content.decode("utf-8"), parse_constant=_no_constant)
    except (RecursionError, ValueError) as found:
        reason = "nested too deeply" if isinstance(found, RecursionError) else first_line(found)
        raise error(f"{file} is damaged: it cannot be read as JSON ({reason}). {advice}") from found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def decode(kind: type[T], value: Any, *, file: Path, advice: str = _ADVICE) -> T:
    """Return an instance of a dataclass from parsed JSON.

    ``null`` stands for NaN where a float is expected; other floats are finite, and whole numbers
    are counts: from 0 to 2⁶³ - 1. Fields that the dataclass does not have are ignored. A dataclass
    may have a table ``CHOICES`` of the values that some of its fields have, and a method
    ``problem`` that returns what is wrong between fields.

    Args:
        kind: a dataclass whose fields are JSON scalars, tuples, dictionaries or dataclasses.
        value: what ``json.loads`` gave.
        file: for messages.
        advice: what to do about damage, the last sentence of the message.

    Raises:
        DamagedError: a field is missing, has another type, or a value that cannot be; the message
            names it.
    """
    try:
        result: T = _decoded(kind, value, "")
    except (_FieldError, RecursionError) as error:
        raise DamagedError(f"{file} is damaged: {first_line(error)}. {advice}") from error
    return result


def read_table(file: Path, *, advice: str = _ADVICE) -> pa.Table:
    """Read a Parquet file.

    Raises:
        DamagedError: it cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        content = file.read_bytes()
        if not is_whole(content):  # else Arrow may end the process
            raise ValueError("its SHA-256 is another one than was written")
        return pq.read_table(pa.BufferReader(content), page_checksum_verification=True)
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise DamagedError(f"{file} cannot be read: {first_line(error)}. {advice}") from error


def check_columns(
    table: pa.Table, columns: Mapping[str, pa.DataType], *, file: Path,
    nullable: Collection[str] = (), advice: str = _ADVICE,
) -> None:  # fmt: skip
    """Check that a table has columns in their order, each of the type that was written.

    Args:
        table: what was read.
        columns: type of each column, by name; the table may have others.
        file: for messages.
        nullable: names of those that may hold null.
        advice: what to do about damage, the last sentence of the message.

    Raises:
        DamagedError: a column is missing, there twice, in another place, of another type, or holds
            null; the message names it.
    """
    there = [name for name in table.column_names if name in columns]
    problem = "" if len(there) == len(columns) else "a column is there twice"
    for name, found in zip(columns, [*there, *[None] * len(columns)], strict=False):
        if found != name:
            problem = f"the column {name!r:.60} is {'moved' if name in there else 'missing'}"
        elif str(table[name].type).removeprefix("large_") != str(columns[name]):  # as pandas writes
            problem = f"the column {name!r:.60} holds {table[name].type}, not {columns[name]}"
        elif table[name].null_count and name not in nullable:
            problem = f"the column {name!r:.60} holds null"
        else:
            continue
        break
    if problem:
        raise DamagedError(f"{file} is damaged: {problem}. {advice}")


@cache
def _fields(kind: type) -> tuple[tuple[str, Any, bool], ...]:
    """Name, type and whether it is required of every field of a dataclass."""
    hints = get_type_hints(kind)
    missing = dataclasses.MISSING
    return tuple(
        (f.name, hints[f.name], f.default is missing and f.default_factory is missing)
        for f in dataclasses.fields(kind)
        if f.init
    )


def _decoded(kind: Any, value: Any, field: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        if value is None:
            return None
        (kind,) = (argument for argument in arguments if argument is not NoneType)
        return _decoded(kind, value, field)
    if origin is tuple:
        _check(list, value, field)
        return tuple(_decoded(arguments[0], v, f"{field}[{i}]") for i, v in enumerate(value))
    if origin is dict:
        _check(dict, value, field)
        return {name: _decoded(arguments[1], v, f"{field}.{name}") for name, v in value.items()}
    if dataclasses.is_dataclass(kind):
        _check(dict, value, field)
        return _object(kind, value, field)
    if kind is float and (value is None or type(value) is int):
        return float("nan") if value is None else float(value)
    _check(kind, value, field)
    if (kind is int and not 0 <= value < 1 << 63) or (kind is float and not math.isfinite(value)):
        raise _FieldError(f"{field} is {_short(value)}, which is out of range")
    return value


def _object(kind: Any, value: Mapping[str, Any], field: str) -> Any:
    found = {}
    for name, hint, required in _fields(kind):
        path = f"{field}.{name}".lstrip(".")
        if name in value:
            found[name] = _decoded(hint, value[name], path)
        elif required:
            raise _FieldError(f"{path} is missing")
    for name, known in getattr(kind, "CHOICES", {}).items():
        if found.get(name) is not None and found[name] not in known:
            raise _FieldError(
                f"{field}.{name}".lstrip(".")
                + f" is {_short(found[name])}, expected {', '.join(known)}"
            )
    made = kind(**found)
    if problem := getattr(made, "problem", str)():
        raise _FieldError(f"{field}.{problem}".lstrip("."))
    return made


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _check(kind: type, value: Any, field: str) -> None:
    if type(value) is not kind:
        raise _FieldError(
            f"{field or 'the content'} is {_JSON_NAMES[type(value)]}, expected {_JSON_NAMES[kind]}"
        )
