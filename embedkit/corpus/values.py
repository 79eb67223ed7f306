"""Values and their texts: what a typed value is called in a dataset, whatever held it.

A corpus in CSV holds texts; Parquet, JSON, workbooks, frames and objects of Python hold values with
types, and each of them has its own way to print one. A column of whole numbers with one missing
value is a column of floats in pandas, so that the class ``1`` would be ``1.0`` in a frame and ``1``
in a workbook; true is ``True`` in Python and ``true`` in JSON. Every reader therefore asks this
module, and the same rows get the same ids, labels and spans from every container:

- a float that is whole has no decimal point, by itself and not by its column: a workbook cannot
  tell ``1`` and ``1.0``, and the first rows of a corpus keep their text when it grows. Up to 21
  digits are written out, as those of an id are, without an exponent; decimals are as floats;
- otherwise a float has the fewest digits that tell it from its neighbours, in its own precision;
- ``True`` and ``False`` are spelt so; dates are in ISO 8601, a time after a space, unless midnight;
- None, NaN, NaT and NA of any library are missing, at any depth;
- a list or a mapping is JSON, with the same rules inside.

A text is itself: ``nan``, ``1.0`` and ``true`` in a column of texts are the texts of their makers.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from embedkit.errors import UsageError


class NotText(str):
    """Text of a number, a date, a list or another value that is not a text."""

    __slots__ = ()


def has_surrogate(text: str) -> bool:
    """True if a text holds half of a surrogate pair, which cannot be written as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def is_missing(value: object) -> bool:
    """True for None, NaN, NaT and NA of any library."""
    if value is None or value is np.ma.masked:
        return True
    try:
        # NaN and NaT differ from themselves in every library
        return bool(value != value)
    except (TypeError, ValueError):  # NA of pandas has no truth value, nor have arrays
        return type(value).__name__ == "NAType"
    except ArithmeticError:  # of a NaN of Decimal that signals
        return True


def text_of(value: Any) -> str | None:
    """The text of a value; ``None`` if it is missing.

    >>> [text_of(value) for value in (1.0, 0.5, True, float("nan"), ["a", 2.0, None])]
    ['1', '0.5', 'True', None, '["a", 2, null]']
    """
    if isinstance(value, str):
        # of a member of an enumeration its value, which str() does not give
        return value if isinstance(value, NotText) else str.__str__(value)
    if is_missing(value):
        return None
    if _is_list(value) or isinstance(value, Mapping):
        return NotText(_json(value))
    return NotText(_scalar(value))


def plain(value: Any) -> Any:
    """The same value of types that JSON has; missing ones are ``None``.

    A ``TypeError`` is raised for a value that has no text, such as bytes.
    """
    # bool and int are JSON's own; NumPy's are neither, and follow below
    if isinstance(value, str | bool | int) or is_missing(value):
        return None if is_missing(value) else value
    if isinstance(value, Mapping):
        if wrong := [name for name in value if not isinstance(name, str)]:
            raise TypeError(f"a key is a {type(wrong[0]).__name__}")
        return {name: plain(item) for name, item in value.items()}
    if _is_list(value):
        return [plain(item) for item in _ordered(value)]
    # durations stand before numbers, since NumPy's are integers
    if isinstance(value, date | time | timedelta | np.timedelta64 | np.datetime64 | Decimal | UUID):
        return _scalar(value)
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if isinstance(value, float | np.floating):
        return float(str(value))  # the digits of its own precision
    raise TypeError(f"a value is a {type(value).__name__}")


def number_text(literal: str) -> NotText:
    """The text of a float as JSON writes it: that of its value, as in containers with types.

    More digits than a float holds stay as they are written, so that no two ids become one.

    >>> number_text("1.0"), number_text("0.50"), number_text("1e5")
    ('1', '0.5', '100000')
    >>> number_text("0.1000000000000000000001")
    '0.1000000000000000000001'
    """
    text = _scalar(float(literal))
    try:
        return NotText(text if Decimal(text) == Decimal(literal) else literal)
    except ArithmeticError:  # its exponent is beyond those of decimal numbers
        return NotText(literal)


def check_characters(texts: Iterable[str]) -> None:
    """Raise a :class:`UsageError` for a text with half of a character, as of bytes in cp949.

    The tokenizers library would raise for a whole batch without naming a text, and TF-IDF would
    count it as some other word.
    """
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"a text holds {text[error.start]!a}, half of a character or a byte that is not "
                f"UTF-8: {text[:60]!a}. Remove it, or decode the text anew."
            ) from None


def list_of(text: str) -> list[str | None] | None:
    """The texts in the text of a list, as JSON, Python or NumPy write it; ``None`` if it is none.

    >>> list_of('["a|b", 1.0, null]'), list_of("['x', 'y']"), list_of("[NP]")
    (['a|b', '1', None], ['x', 'y'], None)
    >>> list_of("['x' 'y']"), list_of("{'y', 'x'}"), list_of("['x', nan]")
    (['x', 'y'], ['x', 'y'], ['x', None])
    >>> list_of("[np.str_('x'), np.int64(1)]"), list_of("frozenset({'y', 'x'})")
    (['x', '1'], ['x', 'y'])
    """
    text = text.strip()
    if text in ("set()", "frozenset()"):
        return []
    # as it is first: the texts in a list may look like such values
    for form in dict.fromkeys((text, _WRAPPED.sub(r"\1\2", text))):
        if (form[:1], form[-1:]) not in _BRACKETS:
            continue
        # a list as a key, and expressions so deep that a parser gives up
        with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            try:
                # numbers keep their digits, as those of JSON files do
                values = json.loads(form, parse_int=NotText, parse_float=number_text)
            except ValueError:
                # as str() of a list writes it: CSV files of pandas have such cells.
                # Only literals are read, no code is run
                values = ast.literal_eval(_as_python(form))
            if _is_list(values):
                return [text_of(value) for value in _ordered(values)]
    return None


def set_text(classes: Iterable[str], marks: Iterable[str | None]) -> str | None:
    """The list of the classes that are marked by 1, as a label; ``None`` unless all are 0 or 1.

    >>> set_text(["toxic", "insult"], ["1", "False"]), set_text(["toxic", "insult"], ["-1", "-1"])
    ('["toxic"]', None)
    """
    flags = [_MARKS.get((mark or "").strip().lower()) for mark in marks]
    pairs = zip(classes, flags, strict=True)
    return None if None in flags else _json([name for name, flag in pairs if flag])


_MARKS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
_BRACKETS = {("[", "]"), ("(", ")"), ("{", "}")}
# a value of NumPy, or a collection, as Python prints them; strings inside may hold brackets
_WRAPPED = re.compile(
    r"('[^']*'|\"[^\"]*\")|\b(?:np\.\w+|frozenset|array)"
    r"\(((?:'[^']*'|\"[^\"]*\"|[^()'\"])*?)(?:, dtype=[^()]*)?\)"
)
# what Python takes for one string, or for a name
_NOT_PYTHON = re.compile(r"['\"\d.]\s+['\"\d.-]|\bnan\b")


def _as_python(text: str) -> str:
    """A list as Python writes it, of one that NumPy printed or that holds its ``nan``."""
    if not _NOT_PYTHON.search(text):
        return text
    parts, values = [""], (tokenize.STRING, tokenize.NUMBER, tokenize.NAME)
    try:
        for token in tokenize.generate_tokens(io.StringIO(text.replace("\n", " ")).readline):
            # NumPy's strings and numbers stand side by side; a minus sign is a token of its own
            follows = token.type in values or token.string == "-"
            parts += [","] * (follows and parts[-1] not in "[({,-")
            parts.append("None" if token.string == "nan" else token.string)
    except (tokenize.TokenError, IndentationError):
        return text
    return "".join(parts)


_WRITTEN_OUT = 1e21  # as in JavaScript


def _is_list(value: object) -> bool:
    kinds = (list, tuple, set, frozenset)
    # an array without dimensions is a number
    return isinstance(value, kinds) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _ordered(values: Iterable[Any]) -> Iterable[Any]:
    """The items of a list; those of a set, whose order each process has anew, by their text."""
    return sorted(values, key=_json) if isinstance(values, set | frozenset) else values


def _scalar(value: Any) -> str:
    if isinstance(value, np.datetime64):
        # nanoseconds would become an int, not a datetime; so do years that only NumPy has, which
        # keep its text, as do those with nanoseconds
        moment = value.astype("datetime64[us]")
        whole = moment == value and not isinstance(moment.item(), int)
        value = moment.item() if whole else str(value).replace("T", " ")
    # a date in a column of times has midnight; with a zone midnight is a time that somebody gave.
    # The times of pandas have nanoseconds besides
    if isinstance(value, datetime) and value.time() == time.min and value.tzinfo is None:
        value = value if getattr(value, "nanosecond", 0) else value.date()
    if isinstance(value, timedelta | np.timedelta64):
        value = np.timedelta64(value, "us").item()  # of Python, as that of pandas has days always
    if isinstance(value, float | np.floating):
        text = str(value + 0.0).removesuffix(".0")  # zero has no sign, as in a column of integers
        return f"{Decimal(text):f}" if "e+" in text and abs(float(value)) < _WRITTEN_OUT else text
    if isinstance(value, Decimal) and abs(value) < _WRITTEN_OUT:
        text = f"{value:f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if text == "-0" else text
    return str(value)


def _json(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(str(k), ensure_ascii=False)}: {_json(v)}" for k, v in value.items())
        return f"{{{', '.join(pairs)}}}"
    if _is_list(value):
        return f"[{', '.join(map(_json, _ordered(value)))}]"
    # numbers stand without quotes, by the rules above; json.dumps would print 1.0
    if isinstance(value, NotText) or (isinstance(value, float | np.floating) and value == value):
        return str(text_of(value))
    if isinstance(value, bool | int | np.bool_ | np.integer):
        # true and false of JSON; numbers have no letters
        return str(value).lower()
    text = text_of(value)
    return "null" if text is None else json.dumps(text, ensure_ascii=False)
