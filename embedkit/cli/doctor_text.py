"""Findings about the installation, as text and as JSON."""

from __future__ import annotations

import textwrap
from typing import Any

from embedkit.cli.text import count_text, plain
from embedkit.display import visible
from embedkit.doctor.report import NOTE, OK, PROBLEM, Check, Report

__all__ = ["check_text", "report_data", "verdict_text"]

_WIDTH, _INDENT = 100, 21
FORMAT = 1
"""Raised when a key of the JSON changes its meaning or goes."""


def check_text(check: Check, *, facts: bool = False) -> str:
    """One check: status, name, finding, and what to do about it.

    Args:
        check: what was found.
        facts: whether to add the facts, one a line.
    """
    text = _block(f"{check.status:<9}{check.name:<{_INDENT - 9}}", check.text)
    if check.todo:
        text += "\n" + _block(" " * (_INDENT - 2) + "→ ", check.todo)
    for name, value in check.facts.items() if facts else ():
        text += "\n" + _block(" " * _INDENT, f"{name}: {value}")
    return text


def verdict_text(report: Report) -> str:
    """The last line: whether extraction works."""
    count = {s: sum(check.status == s for check in report.checks) for s in (OK, NOTE, PROBLEM)}
    if report.works:
        return f"extraction works here ({count_text(count[NOTE], 'note')})"
    return f"extraction does not work here: {count_text(count[PROBLEM], 'problem')}"


def report_data(report: Report) -> dict[str, Any]:
    """The report as plain data, with the keys that ``docs/doctor.md`` lists."""
    return {
        "format": FORMAT,
        "works": report.works,
        "exit_code": report.exit_code,
        "checks": [plain(check) for check in report.checks],
    }


def _block(head: str, text: str) -> str:
    return textwrap.fill(
        visible(" ".join(text.split())), _WIDTH, initial_indent=head,
        subsequent_indent=" " * _INDENT, break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
