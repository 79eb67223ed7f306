"""All checks, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from embedkit.doctor.checks import CHECKS
from embedkit.doctor.report import NOTE, PROBLEM, REPORT_IT, Check, without_names
from embedkit.errors import EmbedkitError, EncodeError, StorageError, first_line

__all__ = ["diagnose"]

_ESSENTIAL = ("packages", "disk", "model", "forward", "extraction")
_RUNS_MODEL = ("forward", "precision", "extraction")


def diagnose() -> Iterator[Check]:
    """Run all checks, in about ten seconds, and yield each when it is made."""
    failed: set[str] = set()
    for name in CHECKS:
        missing = failed & {"packages", "model"} if name in _RUNS_MODEL else set()
        if missing:
            yield Check(name, NOTE, f"not checked: see {min(missing)}")
            continue
        check = without_names(replace(_guarded(name), name=name))
        failed |= {name} if check.status == PROBLEM else set()
        yield check


def _guarded(name: str) -> Check:
    """Make a check; an error in it is a finding, not the end."""
    try:
        return CHECKS[name]()
    except EmbedkitError as error:
        return Check(name, PROBLEM, str(error), REPORT_IT, exit_code=error.exit_code)
    except Exception as error:  # whatever a broken installation raises
        reason = f"{type(error).__name__}: {first_line(error)}"
        if name not in _ESSENTIAL:
            return Check(name, NOTE, f"could not be checked: {reason}")
        code = EncodeError.exit_code if isinstance(error, MemoryError) else 1
        code = StorageError.exit_code if isinstance(error, OSError) else code
        return Check(name, PROBLEM, f"failed: {reason}", REPORT_IT, exit_code=code)
