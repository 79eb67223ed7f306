"""``doctor``: whether extraction works here."""

from __future__ import annotations

from typing import Any

import click

from embedkit.cli.options import output_options, show_progress

__all__ = ["doctor"]


@click.command(epilog="\b\nExamples:\n  embedkit doctor\n  embedkit doctor --json\n")
@output_options
def doctor(as_json: bool, quiet: bool, verbose: bool) -> int:
    """Check the installation and the machine; what to paste into a bug report.

    Versions, processor, memory, disk, devices, models, the speed of each precision, and the
    extraction of a few texts, in about ten seconds. A problem stops extraction, a note does not.
    Ends with 0 if extraction works here, else as the command would that meets the first problem.
    Tokens, passwords, the home folder and the user's name are left out. --quiet prints notes and
    problems alone, --verbose all that was found.
    """
    from embedkit.cli.doctor_text import check_text, report_data, verdict_text
    from embedkit.cli.text import json_text
    from embedkit.doctor.diagnose import diagnose
    from embedkit.doctor.report import OK, Check

    spinner = _Spinner(show=show_progress(None, quiet))

    def show(check: Check) -> None:
        spinner.stop()
        if not as_json and not (quiet and check.status == OK):
            click.echo(check_text(check, facts=verbose))

    try:
        report = diagnose(on_start=spinner.start, on_check=show)
    finally:
        spinner.stop()
    click.echo(json_text(report_data(report)) if as_json else verdict_text(report))
    return report.exit_code


class _Spinner:
    """Says on standard error which check is being made.

    It must not run while a line is printed: rich would send the line to standard error too.
    """

    def __init__(self, *, show: bool) -> None:
        self._status: Any = None
        if show:
            from rich.console import Console

            self._status = Console(stderr=True).status("starting")

    def start(self, name: str) -> None:
        if self._status is not None:
            self._status.update(f"checking: {name}")
            self._status.start()

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()
