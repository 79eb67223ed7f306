"""The command ``doctor``."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING

from embedkit.cli.command import command
from embedkit.cli.text import count_text, json_text, one_line, say
from embedkit.display import visible

if TYPE_CHECKING:
    from embedkit.doctor.report import Check

__all__ = ["doctor"]

_WIDTH, _INDENT = 100, 21
FORMAT = 1
"""Raised when a key of the JSON changes its meaning or goes."""


@command("embedkit doctor", "embedkit doctor --json")
def doctor(as_json: bool, quiet: bool) -> int:
    """Check the installation and the machine.

    Versions, processor, memory, disk, devices, models, the speed of each precision, and the
    extraction of a few texts, in about ten seconds: include the output in bug reports. A problem
    prevents extraction, a note does not. The exit code is 0 if extraction works, else that of the
    first problem. Tokens, passwords, the home folder and the user name are left out. --quiet prints
    only notes and problems.
    """
    from embedkit.doctor.diagnose import diagnose

    checks = []
    for check in diagnose():
        checks.append(check)
        if not as_json and not (quiet and check.status == "ok"):
            say(_check_text(check))
    problems = [check for check in checks if check.status == "problem"]
    code = problems[0].exit_code if problems else 0
    if as_json:
        found = [asdict(check) for check in checks]
        data = {"format": FORMAT, "works": not problems, "exit_code": code, "checks": found}
        say(json_text(data))
    elif problems:
        say(f"extraction does not work here: {count_text(len(problems), 'problem')}")
    else:
        notes = sum(check.status == "note" for check in checks)
        say(f"extraction works here ({count_text(notes, 'note')})")
    return code


def _check_text(check: Check) -> str:
    """Status, name, finding, and what to do about it."""
    text = _block(f"{check.status:<9}{check.name:<{_INDENT - 9}}", check.text)
    return text + ("\n" + _block(" " * (_INDENT - 2) + "→ ", check.todo) if check.todo else "")


def _block(head: str, text: str) -> str:
    return textwrap.fill(
        visible(one_line(text)), _WIDTH, initial_indent=head, subsequent_indent=" " * _INDENT,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
