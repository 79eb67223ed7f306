"""JSON → frozen dataclasses, every field checked by its annotation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from embedkit.errors import DamagedError

__all__ = ["decode"]

T = TypeVar("T")

_JSON_NAMES = {NoneType: "null", str: "a string", bool: "true or false", int: "a whole number",
               float: "a number", list: "a list", dict: "an object"}  # fmt: skip


class _FieldError(Exception):
    """A field that is missing or of another type."""


def decode(kind: type[T], value: Any, *, file: Path) -> T:
    """Return an instance of a dataclass from parsed JSON.

    ``null`` stands for NaN where a float is expected. Fields that the dataclass does not have are
    ignored.

    Args:
        kind: a dataclass whose fields are JSON scalars, tuples, dictionaries or dataclasses.
        value: what ``json.loads`` gave.
        file: for messages.

    Raises:
        DamagedError: a field is missing or has another type; the message names it.
    """
    try:
        result: T = _decoded(kind, value, "")
    except _FieldError as error:
        raise DamagedError(f"{file} is damaged: {error}. Make it again.") from error
    return result


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
    return value


def _object(kind: Any, value: Mapping[str, Any], field: str) -> Any:
    found = {}
    for name, hint, required in _fields(kind):
        path = f"{field}.{name}".lstrip(".")
        if name in value:
            found[name] = _decoded(hint, value[name], path)
        elif required:
            raise _FieldError(f"{path} is missing")
    return kind(**found)


def _check(kind: type, value: Any, field: str) -> None:
    if type(value) is not kind:
        raise _FieldError(
            f"{field or 'the content'} is {_JSON_NAMES[type(value)]}, expected {_JSON_NAMES[kind]}"
        )
