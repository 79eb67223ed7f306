"""What the command line says besides results: notes of the library, and errors in its own terms."""

from __future__ import annotations

import logging
import re
import time
from typing import Any

import click

from embedkit.cli.text import say
from embedkit.errors import EmbedkitError

__all__ = ["Commands", "in_options", "quiet_notes", "seconds_so_far", "show_note"]

_LOGGER = logging.getLogger("embedkit")


class _Notes(logging.Handler):
    """Prints what the library logs on standard error, as ``note: …``, in terms of options."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message not in self._shown:  # loading a model for every fold says the same every time
            self._shown.add(message)
            show_note(message)


def show_note(message: str) -> None:
    """Print a note of the library on standard error, in the terms of the command that runs."""
    context = click.get_current_context(silent=True)
    if context is not None:
        message = in_options(message, context.command)
    say(f"note: {message}", err=True)


class Commands(click.Group):
    """A group whose commands show the library's notes and word its errors as options."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named."""
        for handler in [h for h in _LOGGER.handlers if isinstance(h, _Notes)]:
            _LOGGER.removeHandler(handler)
        _LOGGER.addHandler(_Notes())
        _LOGGER.propagate = False
        _LOGGER.setLevel(logging.INFO)
        ctx.obj = time.monotonic() if ctx.obj is None else ctx.obj  # when it began
        try:
            return super().invoke(ctx)
        except EmbedkitError as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            if command is not None and error.args:
                error.args = (in_options(str(error), command), *error.args[1:])
            raise


def seconds_so_far() -> float:
    """Wall time since the command was typed, the imports and the loading of a model included."""
    return time.monotonic() - float(click.get_current_context().obj)


def quiet_notes(_context: click.Context, _option: click.Parameter, quiet: bool) -> bool:
    """Callback of ``--quiet``: notes are not shown."""
    if quiet:
        _LOGGER.setLevel(logging.ERROR)
    return quiet


def in_options(message: str, command: click.Command) -> str:
    """An error of the library in the terms of a command: ``pooling='max'`` → ``--pooling max``.

    Only parameters that the command has are translated; ``True`` and ``False`` become the option
    itself or its negative form.
    """
    options = {p.name: p for p in command.params if isinstance(p, click.Option) and p.name}
    if not options:
        return message
    names = "|".join(sorted(options, key=len, reverse=True))
    found = re.compile(rf"(?<![\w.-])({names})=('[^']*'|\"[^\"]*\"|[\w./+-]*\w)?")
    return found.sub(lambda match: _as_option(options[match[1]], match[2] or ""), message)


def _as_option(option: click.Option, value: str) -> str:
    positive = max(option.opts, key=len)
    if value == "False" and option.secondary_opts:
        return option.secondary_opts[0]
    if value in ("True", "") or (value == "False" and option.is_flag):
        return positive
    return f"{positive} {value.strip(chr(39) + chr(34)) or repr('')}"
