"""The command ``doctor``."""

from __future__ import annotations

import textwrap
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from embedkit.cli.command import command
from embedkit.cli.options import option
from embedkit.cli.progress import progress_shown
from embedkit.cli.text import count_text, json_text
from embedkit.display import visible

if TYPE_CHECKING:
    from embedkit.doctor.report import Check, Report

__all__ = ["doctor"]

_WIDTH, _INDENT = 100, 21
FORMAT = 1
"""Raised when a key of the JSON changes its meaning or goes."""


@command("embedkit doctor", "embedkit doctor --json")
@option("-v", "--verbose", is_flag=True, help="Also print all facts.")
def doctor(verbose: bool, as_json: bool, quiet: bool) -> int:
    """Check the installation and the machine; the output belongs in bug reports.

    Versions, processor, memory, disk, devices, models, the speed of each precision, and the
    extraction of a few texts, in about ten seconds. A problem prevents extraction, a note does not.
    The exit code is 0 if extraction works, else that of the first problem. Tokens, passwords, the
    home folder and the user name are left out. --quiet prints only notes and problems.
    """
    from rich.console import Console

    from embedkit.doctor.diagnose import diagnose

    def show(check: Check) -> None:
        if status is not None:  # rich would send the line to standard error too
            status.stop()
        if not as_json and not (quiet and check.status == "ok"):
            click.echo(_check_text(check, facts=verbose))

    def start(name: str) -> None:
        if status is not None:
            status.update(f"checking: {name}")
            status.start()

    spinner = Console(stderr=True).status("starting") if progress_shown() else nullcontext()
    with spinner as status:
        report = diagnose(on_start=start, on_check=show)
    click.echo(json_text(_report_data(report)) if as_json else _verdict(report))
    return report.exit_code


def _check_text(check: Check, *, facts: bool) -> str:
    """One check: status, name, finding, what to do about it, and facts if wanted."""
    text = _block(f"{check.status:<9}{check.name:<{_INDENT - 9}}", check.text)
    if check.todo:
        text += "\n" + _block(" " * (_INDENT - 2) + "→ ", check.todo)
    for name, value in check.facts.items() if facts else ():
        text += "\n" + _block(" " * _INDENT, f"{name}: {value}")
    return text


def _verdict(report: Report) -> str:
    """The last line: whether extraction works."""
    found = [check.status for check in report.checks]
    if report.works:
        return f"extraction works here ({count_text(found.count('note'), 'note')})"
    return f"extraction does not work here: {count_text(found.count('problem'), 'problem')}"


def _report_data(report: Report) -> dict[str, object]:
    """The report as plain data, with the keys that ``docs/doctor.md`` lists."""
    checks = [asdict(check) for check in report.checks]
    return {"format": "--format", "works": report.works, "exit_code": report.exit_code,
            "checks": checks}  # fmt: skip


def _block(head: str, text: str) -> str:
    return textwrap.fill(
        visible(" ".join(text.split())), _WIDTH, initial_indent=head,
        subsequent_indent=" " * _INDENT, break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
