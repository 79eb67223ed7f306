"""``doctor``: whether extraction works here."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import click

from embedkit.commands.options import output_options, show_progress

__all__ = ["doctor"]


@click.command(
    epilog="\b\nExamples:\n  embedkit doctor\n"
    "  embedkit doctor --json > doctor.json     to be attached to a bug report\n"
)
@output_options
def doctor(as_json: bool, quiet: bool, verbose: bool) -> int:
    """Check the installation and the machine; what to paste into a bug report.

    Versions, processor, memory, disk, devices, models, the speed of each precision, and the
    extraction of a few texts, in about ten seconds. A problem stops extraction, a note does not.
    Ends with 0 if extraction works here, else as the command would that meets the first problem.
    Tokens, passwords, the home folder and the user's name are left out. --quiet prints notes and
    problems alone, --verbose all that was found.
    """
    from embedkit.doctor import OK, Check, diagnose
    from embedkit.rendering.doctor_render import check_text, report_data, verdict_text
    from embedkit.rendering.render import json_text

    def show(check: Check) -> None:
        if not as_json and not (quiet and check.status == OK):
            click.echo(check_text(check, facts=verbose))

    with _spinner(show=show_progress(None, quiet)) as spinner:
        report = diagnose(
            on_start=lambda name: spinner.update(f"checking: {name}") if spinner else None,
            on_check=show,
        )
    click.echo(json_text(report_data(report)) if as_json else verdict_text(report))
    return report.exit_code


def _spinner(*, show: bool) -> Any:
    """Says on standard error which check is being made."""
    if not show:
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status("starting")
