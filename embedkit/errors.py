"""The errors that embedkit raises on purpose, and the exit code of each.

    EmbedkitError                    the common base; never raised itself
    ├── UsageError            2      an option, column, layer or path that cannot be used
    │   ├── CorpusError       2      an input file that cannot be read as asked
    │   └── ModelError        2      a checkpoint that is missing, incomplete or unsuitable
    ├── MismatchError         4      input, model or settings differ from what is on disk
    ├── DamagedError          5      a file whose content is not what was written, or cannot be
    │   ├── DamagedModelError 5      a file of a checkpoint; also a ModelError
    │   └── RecipeError       5      a recipe; also a UsageError
    ├── EncodeError           5      a vector that must not be stored (NaN, infinite)
    ├── StorageError          6      no space, no permission, an I/O error
    ├── LockedError           7      another process writes the same output
    └── OutputExistsError     8      something stands where the output should go

Every message says what was given, what was expected, and what to do next, in one line unless a
field-by-field difference is shown. It names parameters of the Python interface (``max_length=0``);
the command line translates them into its options. A :class:`UsageError` is a ``ValueError``; an
argument of the wrong type is a ``TypeError``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "EXIT_INTERRUPTED",
    "EXIT_REJECTS",
    "EXIT_TERMINATED",
    "CorpusError",
    "DamagedError",
    "DamagedModelError",
    "EmbedkitError",
    "EncodeError",
    "LockedError",
    "MismatchError",
    "ModelError",
    "OutputExistsError",
    "RecipeError",
    "StorageError",
    "UsageError",
    "check_counts",
    "check_seed",
    "did_you_mean",
    "first_line",
]

EXIT_REJECTS = 3
"""Exit code of a job that is done and has rejected records. Not an error: nothing was lost."""

EXIT_INTERRUPTED = 130
"""Exit code of what the user stopped by Ctrl-C."""

EXIT_TERMINATED = 143
"""Exit code of what SIGTERM has ended."""


class EmbedkitError(Exception):
    """Base of all errors that the command line turns into one line and an exit code."""

    exit_code = 1


class UsageError(EmbedkitError, ValueError):
    """An option, a column, a layer or a path that cannot be used as given; also a ValueError."""

    exit_code = 2


class CorpusError(UsageError):
    """An input file that cannot be read in the way asked for."""


class ModelError(UsageError):
    """A checkpoint that is missing, incomplete or not of a supported kind."""


class MismatchError(EmbedkitError):
    """Input, model, settings or environment differ from those of the existing output."""

    exit_code = 4


class DamagedError(EmbedkitError):
    """Stored bytes are not those that were written, or are none that could have been."""

    exit_code = 5


class DamagedModelError(ModelError, DamagedError):
    """A file of a checkpoint holds what such a file cannot hold; also a ModelError."""

    exit_code = 5


class RecipeError(UsageError, DamagedError):
    """A recipe names or holds what it cannot; also a UsageError."""

    exit_code = 5


class EncodeError(EmbedkitError):
    """The model gave a value that must not be stored."""

    exit_code = 5


class StorageError(EmbedkitError):
    """The file system refused: full, read-only, quota, I/O error."""

    exit_code = 6


class LockedError(EmbedkitError):
    """Another process is writing the same output."""

    exit_code = 7


class OutputExistsError(EmbedkitError):
    """Something already stands where the output should go."""

    exit_code = 8


_LARGEST_SEED = 2**31 - 1
_LEAST = {"min_chars": 0, "stride": 0, "seed": 0}


def check_counts(**given: int | None) -> None:
    """Raise a :class:`UsageError` for an option that is too small a number; most begin at 1."""
    for name, value in given.items():
        least = _LEAST.get(name, 1)
        if value is not None and value < least:
            raise UsageError(f"{name}={value}: expected {least} or more.")


def check_seed(seed: int) -> None:
    """Raise a :class:`UsageError` for a seed that a library refuses."""
    if not 0 <= seed <= _LARGEST_SEED:
        raise UsageError(f"seed={seed}: expected a whole number from 0 to {_LARGEST_SEED:,}.")


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the nearest known name, or an empty string."""
    near = difflib.get_close_matches(given, [str(name) for name in known], n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def first_line(error: BaseException) -> str:
    """What another library's error says in its first line, without the full stop."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(". :")
