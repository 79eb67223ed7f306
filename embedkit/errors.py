"""The errors of embedkit, their exit codes, and the messages that they and notes are.

A message states the given value, the expected one, and the remedy, in one line unless it lists
differences. An argument of the wrong type is a ``UsageError``; an unknown keyword, and texts that
are no list of strings, are a ``TypeError``.

    EmbedkitError                    exit code 1
     ├ UsageError                    2   what was asked for cannot be done
     │  ├ CorpusError                2
     │  └ ModelError                 2
     ├ MismatchError                 4   settings, model or input differ from what exists
     ├ DamagedError                  5   content is not what was written
     │  ├ DamagedModelError          5   a ModelError too
     │  └ RecipeError                5   a UsageError too
     ├ EncodeError                   5   the model's numbers, or memory for them
     ├ StorageError                  6   the machine: space, permissions, I/O
     ├ LockedError                   7   another process writes there
     └ OutputExistsError             8

Who raises an error does not know who reads it: in Python one passes ``overwrite=True``, at a
terminal one types ``--overwrite``. So an option in a message is data, and whoever shows the message
spells it:

    raise OutputExistsError(f"{path} exists{Option('overwrite', True, before='; pass ')}.")

    Python                   vectors exists; pass overwrite=True.
    embedkit extract         vectors exists; pass --overwrite.
    a command without it     vectors exists.

    raise UsageError(f"expected one of {', '.join(names)}.", metric=name)

    Python                   metric='x': expected one of a, b.
    embedkit compare         --metric x: expected one of a, b.

An f-string is text alone, and would lose what an option is. Therefore an option that is formatted
writes its fields as JSON between two code points that Unicode keeps for inner use, and
:class:`Message`, which every error makes of its text, reads them back. A message that is formatted
writes them again, so that f-strings can put messages together of others; an error is its text.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

EXIT_REJECTS = 3  # a finished job with rejected records
EXIT_INTERRUPTED = 130  # after Ctrl-C
EXIT_TERMINATED = 143  # after SIGTERM


_BEGIN, _END = "\ufdd0", "\ufdd1"  # noncharacters
_MARKED = re.compile(f"{_BEGIN}([^{_BEGIN}{_END}]*){_END}")


class Option(NamedTuple):
    """A parameter of a public function, which a command has as an option, in a message.

    >>> print(Option("max_length", 40))
    max_length=40
    """

    name: str
    value: Any = ...  # as it was, or should be, given; ... for the name alone
    before: str = ""  # said only to those who have the option
    after: str = ""
    of: str = ""  # the function, if it is another one than that which is called

    def __str__(self) -> str:
        value = "" if self.value is ... else repr(self.value)
        # a list may be one of all folds
        value = value if len(value) < 500 else f"{value[:500]}…"
        return f"{self.before}{self.name}={value}{self.after}"

    def __format__(self, spec: str) -> str:
        default = self._field_defaults
        fields = {n: v for n, v in self._asdict().items() if v is not default.get(n)}
        return f"{_BEGIN}{json.dumps(fields, default=_said)}{_END}"


def _said(value: Any) -> str:
    # a frame or an array has many lines
    return type(value).__name__ if getattr(value, "shape", ()) else str(value)


OVERWRITE = Option("overwrite", True)


class Message(str):
    """A text that knows which options it names; as text it is what somebody reads in Python.

    Attributes:
        parts: Texts and options, in their order.

    >>> message = Message(f"{Option('k', 0)}: expected 1 or more.")
    >>> message
    'k=0: expected 1 or more.'
    >>> message.options
    ['k']
    """

    parts: tuple[str | Option, ...]

    def __new__(cls, text: str) -> Message:
        """Read a formatted text."""
        # a message may come as it is, which would be its text alone
        pieces = _MARKED.split(format(text))
        parts = [_option(piece) if i % 2 else piece for i, piece in enumerate(pieces)]
        message = super().__new__(cls, "".join(map(str, parts)))
        message.parts = tuple(parts)
        return message

    def __format__(self, spec: str) -> str:
        return "".join(map(format, self.parts))

    @property
    def options(self) -> list[str]:
        """Names of the options."""
        return [part.name for part in self.parts if isinstance(part, Option)]

    def renamed(self, **names: str) -> Message:
        """The message of a function that has other names for some options."""
        return Message(self.worded(lambda o: format(o._replace(name=names.get(o.name, o.name)))))

    def worded(self, spelling: Callable[[Option], str]) -> str:
        """The text with another spelling of its options."""
        return "".join(spelling(p) if isinstance(p, Option) else p for p in self.parts)


def _option(data: str) -> Option | str:
    try:
        return Option(**json.loads(data))
    except (ValueError, TypeError):  # a text of a corpus may hold these code points too
        return f"{_BEGIN}{data}{_END}"


class EmbedkitError(Exception):
    """Base of all errors, which the command line prints as one line.

    Keywords are options, which the message begins with; ``message`` has all options as data.
    """

    exit_code = 1

    def __init__(self, text: str, /, **arguments: Any) -> None:
        options = ", ".join(f"{Option(name, value)}" for name, value in arguments.items())
        self.message = Message(f"{options}: {text}" if arguments else text)
        self.problem = Message(text)  # without the options that the message begins with
        super().__init__(self.message)


class UsageError(EmbedkitError, ValueError):
    """An unusable option, column, layer or path; also a ValueError."""

    exit_code = 2


class CorpusError(UsageError):
    """An input file that cannot be read with the given options."""


class ModelError(UsageError):
    """A checkpoint that is missing, incomplete or unsupported."""


class MismatchError(EmbedkitError):
    """Input, model, settings or environment differ from those of the existing output."""

    exit_code = 4


class DamagedError(EmbedkitError):
    """A file is corrupted or has invalid content."""

    exit_code = 5


class DamagedModelError(DamagedError, ModelError):
    """A file of a checkpoint has invalid content; also a ModelError."""


class RecipeError(DamagedError, UsageError):
    """A recipe has invalid content; also a UsageError."""


class EncodeError(EmbedkitError):
    """The model gave a value that must not be stored."""

    exit_code = 5


class StorageError(EmbedkitError):
    """An error of the file system: full, read-only, quota, I/O error."""

    exit_code = 6


class LockedError(EmbedkitError):
    """Another process is writing the same output."""

    exit_code = 7


class OutputExistsError(EmbedkitError):
    """The output already exists."""

    exit_code = 8


_SYNONYMS = {"avg": "mean", "average": "mean", "logistic_regression": "logreg"}
"""What other libraries call a value."""


def did_you_mean(name: str, choices: Iterable[str], *, place: str = "") -> str:
    """Return ``" Did you mean 'x'?"`` for the nearest known name, or an empty string.

    The ``place`` stands before the name that is proposed.

    >>> did_you_mean("-lables", ["-label", "-folds"]) + did_you_mean("-format", ["-out"])
    " Did you mean '-label'?"
    """
    # dashes make no two options alike
    names = {str(choice).lower().lstrip("-"): str(choice) for choice in choices}
    usual = _SYNONYMS.get(name.lower().replace("-", "_"), name.lower().lstrip("-"))
    near = difflib.get_close_matches(usual, names, n=1, cutoff=0.6)
    other = near and names[near[0]] != name
    return f" Did you mean {place + names[near[0]]!r}?" if other else ""


def near_path(path: Path) -> str:
    """As :func:`did_you_mean`, for a file or a folder that does not exist, or is unfinished."""
    if not path.parent.is_dir():
        return ""
    place, names = str(path).removesuffix(path.name), {p.name for p in path.parent.iterdir()}
    if (unfinished := f"{path.name}.incomplete") in names:
        return f" {place}{unfinished} is unfinished: run the command that began it again."
    return did_you_mean(path.name, names, place=place)


def first_line(error: BaseException) -> str:
    """First line of another library's error, without the full stop."""
    text = str(error)
    if len(error.args) > 1 and text == str(error.args):  # which Python prints as a tuple
        text = ". ".join(map(str, error.args))
    lines = text.strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(". :")
