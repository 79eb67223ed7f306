"""What a person says, checked where it enters: names and types of keywords.

A public function is decorated with :func:`accepts`, the dataclass of its options calls
:func:`check_fields`. Both judge a value by the annotation, so that a signature is at the same time
what an editor completes, what mypy checks, what the docs show, and what is checked at run time:

    normalize: bool | None     normalize='no': expected True or False.
    max_length: int | None     max_length='40': expected a whole number.
    folds: int                 np.int64(4) becomes 4

NumPy's numbers are numbers: they become Python's here, and nothing below has to think of them. A
kind that cannot be judged (a function, a table, a model) is passed on as it is.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache, wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from embedkit.choices import check_choice, listed
from embedkit.display import count_text
from embedkit.errors import UsageError, did_you_mean
from embedkit.types import Float32, reported

F = TypeVar("F", bound=Callable[..., Any])

_SIMPLE = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    NoneType: "None",
}


def accepts(*records: type) -> Callable[[F], F]:
    """Check the keywords of a function by name and type.

    A function that takes ``**`` options has the fields of ``records`` in its signature instead, and
    their descriptions in its docstring, where that says ``OPTIONS``.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        # ** options give way to the fields that they stand for
        shown = {n: p for n, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD}
        parameters = set(shown)
        # what is made, such as a searcher, reports after it was made
        reports = "progress" in parameters and function.__name__ != "__init__"
        for record in records:
            for name, parameter in inspect.signature(record).parameters.items():
                # a parameter of the function itself comes before a field of the same name
                shown.setdefault(name, parameter)

        @wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            # refused here, since the function would take it among its ** options
            for name in options.keys() - shown.keys():
                problem = f"{function.__name__}() got an unexpected keyword argument {name!r}."
                raise TypeError(problem + did_you_mean(name, shown))
            named = {name: options.pop(name) for name in parameters & options.keys()}
            bound = signature.bind_partial(*args, **named)
            # at the call, not at the import: resolving annotations would slow down every import
            hints = _hints_of(function)
            for name, value in bound.arguments.items():
                if name in hints:
                    bound.arguments[name] = checked_value(name, value, hints[name])
            if not reports:
                return function(*bound.args, **bound.kwargs, **options)
            with reported(bound.arguments.get("progress")) as bound.arguments["progress"]:
                return function(*bound.args, **bound.kwargs, **options)

        # the reference in docs/ looks for the names of types in these modules
        vars(checked)["__records__"] = tuple(record.__module__ for record in records)
        vars(checked)["__signature__"] = signature.replace(parameters=[*shown.values()])
        # a record that extends another one: the options of the base come first
        kinds = [kind for record in records for kind in reversed(record.__mro__)]
        described = "\n".join(filter(None, map(_described, kinds)))
        # without indentation, as docstrings are from Python 3.13 on; a function, since a
        # replacement text would have its backslashes read
        text = _OPTIONS.sub(lambda _: described, inspect.cleandoc(function.__doc__ or ""))
        checked.__doc__ = listed(text, quote="``")
        return checked  # type: ignore[return-value]

    return decorate


_OPTIONS = re.compile(r"^ *\*\*\w+: OPTIONS$", re.MULTILINE)


def _described(record: type) -> str:
    """The descriptions of a record's own options, indented as those of a function."""
    text = inspect.cleandoc(vars(record).get("__doc__") or "").partition("Attributes:\n")[2]
    return text.partition("\n\n")[0]


def check_fields(record: Any) -> None:
    """Check the fields of a dataclass by their types, and replace NumPy's numbers by Python's."""
    for name, hint in _fields_of(type(record)).items():  # type: ignore[arg-type]  # hashable
        value = getattr(record, name)
        if (settled := checked_value(name, value, hint)) is not value:
            # the dataclass is frozen; it is still under construction here
            object.__setattr__(record, name, settled)


def divided(options: Mapping[str, Any], *records: type) -> Iterator[Any]:
    """Yield the records that options belong to."""
    for record in records:
        names = {f.name for f in fields(record)} & options.keys()
        yield record(**{name: options[name] for name in names})


def checked_value(name: str, value: Any, hint: Any) -> Any:
    """Return a value, NumPy's numbers as Python's, if it is of a kind; else a UsageError.

    >>> checked_value("folds", np.int64(4), int)
    4
    >>> checked_value("normalize", "no", bool | None)
    Traceback (most recent call last):
    embedkit.errors.UsageError: normalize='no': expected True or False.
    """
    kinds = _kinds(hint)
    settled = value.item() if isinstance(value, np.generic) else value
    if not any(kind.holds(settled) for kind in kinds):
        # only what nothing accepts as it is: a corpus may be an array, and large. A model may be a
        # folder, and a baseline; a text is none
        folder = name in ("model", "baseline") and isinstance(value, os.PathLike)
        settled = os.fspath(value) if folder else plain(value)
    if any(kind.holds(settled) for kind in kinds):
        _check_limits(name, settled, hint)
        # a list of texts may hold NUL: where a text is one of a corpus, it is no path
        of_paths = any(kind.name == "a list, each a text or a path" for kind in kinds)
        several = of_paths and isinstance(settled, list | tuple)
        for path in settled if several else [settled] * (_PATH in kinds or of_paths):
            if isinstance(path, str | os.PathLike) and "\0" in os.fspath(path):
                raise UsageError("a path has no NUL.", **{name: path})
        return settled
    # it is none of the kinds that can be judged, but may be one that cannot
    if not all(kind.name for kind in kinds):
        return value
    expected = " or ".join(kind.name for kind in kinds if kind.name != "None")
    # an estimator of scikit-learn, which is named; a pipeline has no name
    if hasattr(value, "get_params") and not hasattr(value, "steps"):
        kind = value if isinstance(value, type) else type(value)
        expected += f", as '{kind.__module__.partition('._')[0]}:{kind.__name__}'"
    raise UsageError(f"expected {expected}.", **{name: value})


def plain(value: Any) -> Any:
    """Return a value without NumPy's scalars and arrays, also inside of lists and dictionaries."""
    if hasattr(value, "tolist") and not isinstance(value, type):  # of NumPy, pandas and torch
        return value.tolist()
    # exactly these: a named tuple takes its values one by one
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if type(value) is dict:
        return {key: plain(inner) for key, inner in value.items()}
    return value


def strings_of(name: str, values: Iterable[str]) -> list[str]:
    """The strings of a parameter as a list; one string is refused, and what has no order or rows.

    A frame would be read as the names of its columns.
    """
    unordered = hasattr(values, "columns") or isinstance(values, Mapping | set | frozenset)
    if not isinstance(values, list) and not unordered:  # of a list no item need be looked at
        values = values.to_pylist() if hasattr(values, "to_pylist") else plain(values)
    if isinstance(values, str):
        raise TypeError(f"{name} is one string; give a list of strings: [{values!r:.60}]")
    if unordered or not isinstance(values, Iterable):
        raise TypeError(f"{name} is a {type(values).__name__}; give a list, such as data['text']")
    strings = list(values)
    for i, value in enumerate(strings):
        if not isinstance(value, str):
            raise TypeError(f"{name}[{i}] is {value!r:.60}; expected a string")
    return strings


def matrix_of(name: str, vectors: Any) -> Float32:
    """Vectors as a matrix of finite numbers; a tensor leaves its device, one vector is a row."""
    if hasattr(vectors, "detach"):
        vectors = vectors.detach().cpu().float()  # NumPy has no bf16
    if np.ma.isMaskedArray(vectors):
        vectors = np.ma.filled(vectors.astype(np.float64), np.nan)
    try:
        matrix = np.atleast_2d(np.asarray(vectors))
    except ValueError as error:  # of lists of several lengths
        raise UsageError(f"{name} holds rows of several widths; expected one width.") from error
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu":
        raise UsageError(f"{name} holds {matrix.dtype} {matrix.shape}; expected rows of numbers.")
    with np.errstate(over="ignore"):  # infinite then, which is refused below
        matrix = matrix.astype(np.float32, copy=False)
    if bad := int((~np.isfinite(matrix).all(axis=1)).sum()):
        raise UsageError(f"{name}: NaN or infinity in {count_text(bad, 'vector')}.")
    return matrix


class _Kind(NamedTuple):
    """An alternative of a type: what messages call it, and whether a value is of it.

    It has no name if values may be of it all the same, as nobody can tell of a function.
    """

    name: str
    holds: Callable[[Any], bool]


def _is_path(value: Any) -> bool:
    # one of bytes has no place in messages and records
    return isinstance(value, str | os.PathLike) and isinstance(os.fspath(value), str)


_PATH = _Kind("a path", _is_path)


def _kinds(hint: Any) -> list[_Kind]:
    """The alternatives of a type."""
    origin, parts = get_origin(hint) or hint, get_args(hint)
    if origin is Annotated:
        return _kinds(parts[0])
    if origin in (Union, UnionType):
        return [kind for part in parts for kind in _kinds(part)]
    if origin in (Sequence, tuple, list):
        inner = _kinds(parts[0])
        name = f"a list, each {' or '.join(kind.name for kind in inner)}"
        return [_Kind(name, lambda value: _is_list(value, inner))]
    if origin in (Mapping, dict):
        return [_Kind("a dictionary", lambda value: isinstance(value, origin))]
    if origin is Callable:
        # None is the default of progress: to have none in a script, and a line in a terminal
        return [_Kind("a function", lambda value: value is None or callable(value))]
    if origin in (Path, os.PathLike):
        return [_PATH]
    if hint in _SIMPLE:
        return [_Kind(_SIMPLE[hint], lambda value: _converts(value, hint))]
    if hint is Any:  # a class since 3.11, with which nothing can be compared
        return [_Kind("", lambda _: True)]
    if not isinstance(origin, type) or getattr(origin, "_is_protocol", False):
        return [_Kind("", lambda _: False)]
    # of a generic class, such as Iterable[str], the parts are not looked at
    name = "a list" if origin is Iterable else "" if parts else f"a {hint.__name__}"
    return [_Kind(name, lambda value: isinstance(value, origin))]


def _is_list(value: Any, kinds: Sequence[_Kind]) -> bool:
    # a text is a sequence of texts, which nobody means
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return is_list and all(any(kind.holds(item) for kind in kinds) for item in value)


def _converts(value: Any, kind: Any) -> bool:
    """True by the rules of the files: True is no whole number, and 1 is a number."""
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, UnicodeEncodeError):
        return False
    return True


def _check_limits(name: str, value: Any, hint: Any) -> None:
    """Check what ``Annotated`` says of a type: some texts, or a number's least and largest."""
    for part in () if value is None else (hint, *get_args(hint)):
        for limit in getattr(part, "__metadata__", ()):
            # choices of texts are kept in the Meta of msgspec, beside the limits of numbers
            if limit.extra:
                check_choice(limit.extra["choices"], **{name: value})
            elif value < (least := limit.ge if limit.gt is None else limit.gt + 1):
                raise UsageError(f"expected {least} or more.", **{name: value})
            elif value > limit.le:
                raise UsageError(f"expected {limit.le:,} or less.", **{name: value})


@cache
def _fields_of(record: type) -> dict[str, Any]:
    return get_type_hints(record, include_extras=True)


@cache
def _hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Types of the parameters, without those whose names are known to type checkers alone."""
    hints = {}
    for name, hint in inspect.get_annotations(function).items():
        try:
            # annotations are texts here; get_type_hints would fail for all of them if one name is
            # missing
            hints[name] = eval(hint, function.__globals__)
        except NameError:
            continue
    return hints
