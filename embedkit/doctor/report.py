"""What a check finds, and what is left out of it."""

from __future__ import annotations

import getpass
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from embedkit.display import bytes_text

__all__ = ["NOTE", "OK", "PROBLEM", "REPORT_IT", "Check", "found", "without_names"]

OK, NOTE, PROBLEM = "ok", "note", "problem"
REPORT_IT = "Report it, with all of this output."
_BYTES = ("total", "available", "limit", "free", "memory_free", "memory_total")


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found.

    Attributes:
        name: of :data:`~embedkit.doctor.checks.CHECKS`; stable.
        status: ``ok``, ``note`` or ``problem``.
        text: the finding, for people.
        todo: what to do about it; given for every problem, and for some notes.
        facts: the finding as plain data, with the keys that ``docs/doctor.md`` lists; empty where
            the check could not be made.
        exit_code: of a problem: how a command that met it would end; else 0.
    """

    name: str
    status: str
    text: str
    todo: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int = 0


def found(
    facts: Mapping[str, Any], note: str = "", todo: str = "", *, problem: str = "", code: int = 0
) -> Check:
    """Return a check of facts, with the note or problem that they are, and what to do about it."""
    text = "; ".join(filter(None, [problem or note, facts_text(facts)]))
    status = PROBLEM if problem else NOTE if note else OK
    return Check("", status, text, todo, facts, code if problem else 0)


def facts_text(facts: Mapping[str, Any]) -> str:
    """Return facts on one line: ``cores 2, load 0.5, openmp none``."""
    names = {name: name.replace("_", " ") if name.islower() else name for name in facts}
    return ", ".join(f"{names[name]} {_shown(name, value)}" for name, value in facts.items())


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping) and value:
        return f"({facts_text(value)})"
    if isinstance(value, list) and value:
        return " ".join(_shown(name, item) for item in value)
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    if isinstance(value, int):
        return bytes_text(value) if name in _BYTES else f"{value:,}"
    return str(value) if value else "none"


def without_names(check: Check) -> Check:
    """Return the check without the home folder and the user's name in its paths."""
    return Check(**json.loads(_hidden(json.dumps(asdict(check), ensure_ascii=False))))


def _hidden(text: str) -> str:
    home = Path("~").expanduser()
    for name in sorted({str(home), str(home.resolve())} - {"/", "~"}, key=len, reverse=True):
        text = re.sub(rf"{re.escape(name)}(?![\w-]|\.\w)", "~", text)
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        return text
    return re.sub(rf"(?<=/){re.escape(user)}(?![\w-]|\.\w)", "USER", text)
