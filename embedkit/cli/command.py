"""How a command is made: options in, one library call, text or JSON out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from embedkit.cli.messages import quiet_notes
from embedkit.cli.text import json_text, say, say_finding

__all__ = ["Result", "command"]


@dataclass(frozen=True, slots=True)
class Result:
    """What a command prints, and its exit code.

    Attributes:
        data: what ``--json`` prints: a dataclass or plain data.
        text: returns what is printed without ``--json``.
        finding: whether its first line is what was found, which a terminal shows in bold.
        code: exit code.
        asked_for: whether ``--quiet`` prints the text too, because it is what the user asked for.
        indent: of the JSON; ``None`` for one line.
        check: called after the JSON, and before the text, which it replaces by raising an error.
    """

    data: Any
    text: Callable[[], str]
    finding: bool = False
    code: int = 0
    asked_for: bool = False
    indent: int | None = 1
    check: Callable[[], None] = lambda: None


def command(
    *examples: str, name: str | None = None, tables: bool = False
) -> Callable[[Callable[..., Result | int | None]], click.Command]:
    """Make a command with ``--json`` and ``--quiet`` of a function that returns its result.

    A function that prints by itself names ``as_json`` or ``quiet`` among its parameters, and
    returns its exit code.

    Args:
        examples: lines for the end of the help text.
        name: by default that of the function.
        tables: whether it prints tables whose columns may not fit a terminal.
    """

    def make(function: Callable[..., Result | int | None]) -> click.Command:
        known = inspect.signature(function).parameters

        @wraps(function)
        def run(
            *, as_json: bool, quiet: bool, all_columns: bool = False, **values: Any
        ) -> int:  # all_columns is read where tables are drawn
            own = {n: v for n, v in (("as_json", as_json), ("quiet", quiet)) if n in known}
            found = function(**values, **own)
            if not isinstance(found, Result):
                return found or 0
            if as_json:
                say(json_text(found.data, indent=found.indent))
            found.check()
            if not as_json and (found.asked_for or not quiet):
                (say_finding if found.finding else say)(found.text())
            return found.code

        lines = "".join(f"\n  {example}" for example in examples)
        made = click.command(
            name, epilog=f"\b\nExamples:{lines}\n",
            context_settings={"help_option_names": ["-h", "--help"]},
        )(run)  # fmt: skip
        if tables:
            made.params.append(click.Option(
                ["--all", "all_columns"], is_flag=True,
                help="Print all columns of tables, also those that do not fit the terminal.",
            ))  # fmt: skip
        made.params += [
            click.Option(["--json", "as_json"], is_flag=True, help="Print the result as JSON."),
            click.Option(["-q", "--quiet"], is_flag=True, callback=quiet_notes,
                         help="Print only results and errors."),
        ]  # fmt: skip
        return made

    return make
