"""What is found: checks, the whole report, and what it keeps to itself."""

from __future__ import annotations

import getpass
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

__all__ = ["NOTE", "OK", "PROBLEM", "REPORT_IT", "Check", "Report", "without_names"]

OK, NOTE, PROBLEM = "ok", "note", "problem"
REPORT_IT = "Report it, with all of this output."


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found.

    Attributes:
        name: of :data:`~embedkit.doctor.diagnose.CHECKS`; stable.
        status: ``ok``, ``note`` or ``problem``.
        text: the finding, in one or a few sentences.
        todo: what to do about it; given for every problem, and for some notes.
        facts: the same as plain data, with the keys that ``docs/doctor.md`` lists; empty where
            the check could not be made.
        exit_code: of a problem: how a command that met it would end; else 0.
    """

    name: str
    status: str
    text: str
    todo: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """All checks, in their order."""

    checks: tuple[Check, ...]

    @property
    def works(self) -> bool:
        """Whether extraction works with this installation on this machine."""
        return not any(check.status == PROBLEM for check in self.checks)

    @property
    def exit_code(self) -> int:
        """That of the first problem; 0 if there is none."""
        return next((c.exit_code for c in self.checks if c.status == PROBLEM), 0)


def without_names(check: Check) -> Check:
    """The check without the home folder and the user's name in its paths."""
    return replace(
        check, text=_hidden(check.text), todo=_hidden(check.todo), facts=_hidden(dict(check.facts))
    )


def _hidden(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_hidden(key): _hidden(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_hidden(inner) for inner in value]
    if not isinstance(value, str):
        return value
    for home in _homes():
        value = re.sub(rf"{re.escape(home)}(?![\w-]|\.\w)", "~", value)
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        return value
    return re.sub(rf"(?<=/){re.escape(user)}(?![\w-]|\.\w)", "USER", value)


def _homes() -> list[str]:
    """The home folder as it is named and as it really is, the longer first."""
    home = Path("~").expanduser()
    names = {str(home), str(home.resolve())} - {"/", "~"}
    return sorted(names, key=len, reverse=True)
