"""The errors of embedkit, and their exit codes.

A message states the given value, the expected one, and the remedy, in one line unless it lists
differences. It names parameters of Python (``max_length=0``), which the command line translates
into its options. An argument of the wrong type is a ``UsageError``, an unknown keyword a
``TypeError``.

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
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_REJECTS = 3  # a finished job with rejected records
EXIT_INTERRUPTED = 130  # after Ctrl-C
EXIT_TERMINATED = 143  # after SIGTERM


class EmbedkitError(Exception):
    """Base of all errors, which the command line prints as one line."""

    exit_code = 1


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


class DamagedModelError(ModelError, DamagedError):
    """A file of a checkpoint has invalid content; also a ModelError."""

    exit_code = 5


class RecipeError(UsageError, DamagedError):
    """A recipe has invalid content; also a UsageError."""

    exit_code = 5


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


def check_counts(**counts: int | None) -> None:
    """Raise a :class:`UsageError` for numbers below 1.

    This is for methods that are called often, whose arguments are not checked by their types.
    """
    for name, count in counts.items():
        if count is not None and count < 1:
            raise UsageError(f"{name}={count}: expected 1 or more.")


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the nearest known name, or an empty string."""
    names = {str(name).lower(): str(name) for name in known}
    usual = _SYNONYMS.get(given.lower().replace("-", "_"), given.lower())
    near = difflib.get_close_matches(usual, names, n=1, cutoff=0.6)
    return f" Did you mean {names[near[0]]!r}?" if near else ""


def first_line(error: BaseException) -> str:
    """First line of another library's error, without the full stop."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(". :")
