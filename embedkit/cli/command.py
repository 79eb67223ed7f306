"""The command class: help under headings, notes, errors in terms of options, ``--json``."""

from __future__ import annotations

import inspect
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import fields
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple, cast

import click

from embedkit import errors
from embedkit.cli.options import FIRST_HEADING, HEADINGS, names_of, progress_bar
from embedkit.cli.text import fitted, json_text, say
from embedkit.display import TYPED, Typed, json_line, typing_folder
from embedkit.remote import address_of
from embedkit.types import no_progress

# read when this module is imported, which is early: times that are shown include the imports that
# commands do, as the user waits for them
STARTED = time.monotonic()
_LOGGER = logging.getLogger("embedkit")


class _Notes(logging.Handler):
    """Prints log messages of the library on standard error, once."""

    def __init__(self, context: click.Context) -> None:
        super().__init__()
        self._context, self._shown = context, set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message in self._shown:  # every fold that loads a model repeats its messages
            return
        self._shown.add(message)
        if isinstance(record.msg, errors.Message):
            message = in_options(record.msg, self._context)
        say(f"note: {message}", err=True)


class Commands(click.Group):
    """A group whose commands stand under headings, and show the library's notes and errors."""

    headings: Mapping[str, Sequence[click.Command]] = {}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, each under its heading."""
        for heading, commands in self.headings.items():
            with formatter.section(heading):
                formatter.write_dl([(str(c.name), c.get_short_help_str(90)) for c in commands])

    def call(self, words: Sequence[str], *, started: float | None = None) -> int:
        """Run what was typed, print its error if it has one, and return its exit code.

        Interrupts are raised.
        """
        # a stage of a recipe is typed, so to speak, where the recipe was
        stdout, typing = sys.stdout, copy_context()
        typing.run(TYPED.set, Typed(tuple(words), typing_folder()))
        try:
            # click would print errors itself, and exit: here a stage of `embedkit run` may fail,
            # and the caller decides
            code = typing.run(self.main, list(words), standalone_mode=False, obj=started)
            return code if isinstance(code, int) else 0
        except SystemExit:
            if sys.stdout is stdout:
                raise
            return 0  # the reader of a pipe has closed it: click has replaced the stream
        except click.exceptions.NoArgsIsHelpError as error:
            # embedkit alone: the help is no sentence, and nothing went wrong
            say(error.format_message(), err=True)
            return error.exit_code
        except click.ClickException as error:
            # not from the error's context, which click leaves out of some errors
            name = f" {words[0]}" if words and words[0] in self.commands else ""
            message, code = error.format_message(), error.exit_code
            if isinstance(error, click.NoSuchOption):  # click is reminded of --out by --format
                names = error.possibilities or ()
                message = error.message + errors.did_you_mean(error.option_name, names)
            message += f"{'.' * (message[-1] not in '.?')} See embedkit{name} --help."
        except OSError as error:
            # an error of the disk that no module has worded: one line all the same, and no
            # traceback
            message = f"{error.filename or 'input/output'}: {error.strerror or error}."
            code = errors.StorageError.exit_code
        complain(message)
        return code

    def invoke(self, ctx: click.Context) -> Any:
        """Run the named command."""
        # every command starts with new notes, also the stages of one process: a note that an
        # earlier stage has shown is news to the next
        kept = [handler for handler in _LOGGER.handlers if not isinstance(handler, _Notes)]
        _LOGGER.handlers[:] = [*kept, _Notes(ctx)]
        # a handler of the root logger, as libraries install it, would print notes twice
        _LOGGER.propagate = False
        _LOGGER.setLevel(logging.INFO)
        ctx.obj = time.monotonic() if ctx.obj is None else ctx.obj
        try:
            return super().invoke(ctx)
        except errors.EmbedkitError as error:
            complain(in_options(error.message, ctx))
            ctx.exit(error.exit_code)


def complain(message: str) -> None:
    """Print why a command ends."""
    say(f"embedkit: {message}", err=True)


def answer_lines(answer: Callable[[str], None], what: str) -> int:
    """Answer every line of standard input at once, until it ends or Ctrl-C is pressed.

    A line that has no answer is complained about, with ``--json`` in its place among the answers;
    the next one is read all the same, and the exit code is that of rejected records.
    """
    if sys.stdin.isatty():
        say(f"note: type a {what} and Enter; Ctrl-D ends", err=True)
    code = 0
    try:
        # UTF-8 whatever the locale, and a broken byte is no end of a process that has loaded a
        # model to stay: it becomes half of a surrogate pair, which no text may hold. A carriage
        # return within a line ends none
        for line in TextIOWrapper(sys.stdin.buffer, "utf-8-sig", "surrogateescape", newline="\n"):
            try:
                answer(line.rstrip("\r\n"))
            except errors.UsageError as error:
                message = in_options(error.message)
                complain(message)
                code = errors.EXIT_REJECTS
                if click.get_current_context().params["as_json"]:
                    click.echo(json_line({"error": message}))
            # the program at the other end of a pipe waits for this answer before it asks again
            sys.stdout.flush()
    except KeyboardInterrupt:
        say("", err=True)
        return errors.EXIT_INTERRUPTED
    return code


def seconds_so_far() -> float:
    """Wall time since the start of the command, imports and loading of models included."""
    return time.monotonic() - float(click.get_current_context().obj)


def in_options(message: errors.Message, context: click.Context | None = None) -> str:
    """A message with options as the command that runs has them: ``k=3`` → ``--k 3``.

    What is said only to those who have an option is left out where the command has none. If another
    command has it, the message says which. The ``context`` is the current one by default, which is
    known to the main thread alone.
    """
    root = (context or click.get_current_context()).find_root()
    commands = cast(click.Group, root.command).commands

    def spelled(option: errors.Option) -> str:
        owner = commands[option.of or str(root.invoked_subcommand)]
        if parameter := _parameter(owner, option):
            return f"{option.before}{_as_typed(parameter, option.value)}{option.after}"
        if option.before or option.after:
            return ""
        for other in commands.values():
            if parameter := _parameter(other, option):
                return f"{_as_typed(parameter, option.value)} (of embedkit {other.name})"
        return str(option)

    return message.worded(spelled)


def _parameter(command: click.Command, option: errors.Option) -> click.Option | None:
    named = (p for p in command.params if p.name == option.name)
    return next((p for p in named if isinstance(p, click.Option)), None)


def _as_typed(option: click.Option, value: Any) -> str:
    # --quiet rather than -q
    positive = max(option.opts, key=len)
    if value is False and option.secondary_opts:
        return option.secondary_opts[0]
    if value is ... or option.is_flag:
        return positive
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    quoted = shlex.quote(text)
    # double quotes are easier to read, where they quote all that is between them
    if quoted != text and not set(text) & set('"$`\\!'):
        quoted = f'"{text}"'
    return f"{positive} {quoted}"


class Command(click.Command):
    """A command whose help shows its examples before its options, and these under headings."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; of an option that is given twice click would forget the first."""
        _, _, order = self.make_parser(ctx).parse_args(args=[*args])
        for param in () if ctx.resilient_parsing else order:
            takes_one = isinstance(param, click.Option) and not (param.multiple or param.is_flag)
            if takes_one and order.count(param) > 1:
                raise click.UsageError(f"{param.opts[0]} is given twice. Give it once.", ctx)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write usage, description, examples and options."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_epilog(ctx, formatter)
        self.format_options(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, divided so that they fit the terminal and can be pasted."""
        lines = [part for line in (self.epilog or "").splitlines() for part in fitted(f"  {line}")]
        formatter.write("\n" + "\n".join(lines) + "\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, each under its heading of :data:`HEADINGS`."""
        sections: dict[str, list[tuple[str, str]]] = {h: [] for h in (FIRST_HEADING, *HEADINGS)}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                named = (h for h, names in HEADINGS.items() if not names.isdisjoint(param.opts))
                sections[next(named, FIRST_HEADING)].append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class Result(NamedTuple):
    """Output of a command, and its exit code."""

    data: Any  # of ``--json``: a dataclass or plain data
    text: Callable[[], str]  # the answer is its first line
    code: int = 0
    asked_for: bool = False  # printed even with ``--quiet``
    check: Callable[[], None] = lambda: None  # called before the text, after the JSON


def command(
    *examples: str, with_all: bool = False
) -> Callable[[Callable[..., Result | int]], click.Command]:
    """Make a command with ``--json`` and ``--quiet`` of a function that returns its result.

    A function with a parameter ``reading`` gets the options of a corpus as one
    :class:`~embedkit.corpus.plan.CorpusOptions`, except for its own parameters; ``progress`` is the
    callback of a bar. A function that prints by itself clears the bar, or has a parameter
    ``as_json`` or ``quiet`` and no bar, and returns its exit code. ``with_all`` adds ``--all``.
    """

    def make(function: Callable[..., Result | int]) -> click.Command:
        parameters = inspect.signature(function).parameters
        # what a function prints by itself would break a bar around it; predict opens one of its own
        prints = not parameters.keys().isdisjoint(("as_json", "quiet"))

        @wraps(function)
        def run(*, as_json: bool, quiet: bool, everything: bool = False, **values: Any) -> int:
            if quiet:
                _LOGGER.setLevel(logging.ERROR)
            if "reading" in parameters:
                values = _with_reading(values, parameters)
            with nullcontext(no_progress) if prints else progress_bar() as progress:
                further = {"as_json": as_json, "quiet": quiet, "progress": progress}
                values |= {n: v for n, v in further.items() if n in parameters}
                result = function(**values)
            if not isinstance(result, Result):
                return result
            if as_json:
                click.echo(json_text(result.data))
            # after the JSON, which describes the damage that this reports as an error
            result.check()
            if not as_json and (result.asked_for or not quiet):
                say(result.text(), finding=True)
            return result.code

        epilog = "\n  ".join(["Examples:", *examples])
        subcommand = click.command(cls=Command, epilog=epilog)(run)
        flags = [
            (["--all", "everything"], "Print all numbers, not only the most important ones."),
            (["--json", "as_json"], "Print the result as JSON."),
            (["-q", "--quiet"], "Print only results and errors."),
        ]
        # a bool is 0 or 1: --all, the first, is left out
        kept = flags[not with_all :]
        subcommand.params += [click.Option(names, is_flag=True, help=text) for names, text in kept]
        return subcommand

    return make


def _with_reading(values: Mapping[str, Any], parameters: Collection[str]) -> dict[str, Any]:
    """The values with those that are options of a corpus, and not the command's own, in one."""
    from embedkit.corpus.plan import CorpusOptions

    # `label` of split is its own, and does not get into the options of the corpus
    names = {field.name for field in fields(CorpusOptions)} - set(parameters)
    chosen = {name: value for name, value in values.items() if name in names}
    for name in {"keep", "spans"} & chosen.keys():
        # a path, which alone is opened; a list of names may be too long for one, which is no error
        place = chosen[name] or ""
        file = name == "spans" and (os.path.isfile(place) or address_of(place))  # noqa: PTH113
        chosen[name] = Path(chosen[name]) if file else names_of(chosen[name])
    others = {name: value for name, value in values.items() if name not in names}
    return others | {"reading": CorpusOptions(**chosen)}
