"""Options and habits that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

from embedkit.choices import FORMATS, QUOTINGS, UNICODE_FORMS
from embedkit.cli.messages import quiet_notes, show_note

if TYPE_CHECKING:
    from embedkit.corpus import CorpusOptions

__all__ = [
    "SEED",
    "corpus_options",
    "dialect_options",
    "model_options",
    "notifier",
    "output_options",
    "reading_of",
    "show_progress",
]

F = TypeVar("F", bound=Callable[..., Any])

SEED = click.IntRange(0, 2**31 - 1)
"""What every library takes as a seed."""

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"  # checkpoint.DEFAULT_MODEL; tested


def output_options(command: F) -> F:
    """Options that every command has."""
    return _with(command, (
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
        click.option("-q", "--quiet", is_flag=True, callback=quiet_notes,
                     help="Print nothing but results and errors."),
        click.option("-v", "--verbose", is_flag=True, help="Say more about what happens."),
    ))  # fmt: skip


def model_options(command: F) -> F:
    """Options that choose a checkpoint and where it runs."""
    return _with(command, (
        click.option("--model", default=DEFAULT_MODEL, show_default=True,
                     help="Hub id or folder of a BERT-family checkpoint."),
        click.option("--revision", help="Branch, tag or commit of a hub checkpoint."),
        click.option("--offline", is_flag=True, help="Never ask the hub."),
        click.option("--device", default="auto", show_default=True,
                     help="auto, cpu, cuda, cuda:1."),
    ))  # fmt: skip


def corpus_options(command: F) -> F:
    """Options that say how to read the corpus."""
    return _with(dialect_options(_with(command, (
        click.option("--min-chars", default=0, show_default=True, type=int,
                     help="Leave shorter texts out (counted)."),
        click.option("--sample", type=int, help="Only so many records, drawn at random (counted)."),
        click.option("--seed", default=0, show_default=True, type=SEED, help="Seed of the draw."),
        click.option("--limit", type=int, help="Only the first so many records (counted)."),
    ))), (
        click.option("--text", help="Column of the text. [guessed by its name]"),
        click.option("--text-pair", help="Column of the second text of a pair."),
        click.option("--id", help="Column of the id. [guessed; else row numbers]"),
        click.option("--label", help="Column of the label. [guessed]"),
    ))  # fmt: skip


def dialect_options(command: F) -> F:
    """Options that say how a file is written."""
    return _with(command, (
        click.option("--format", default="auto", show_default=True,
                     type=click.Choice(["auto", *FORMATS])),
        click.option("--encoding", default="utf-8", show_default=True),
        click.option("--quoting", default="auto", show_default=True,
                     type=click.Choice(QUOTINGS),
                     help="auto: .csv files are quoted as CSV, .tsv and .txt files not at all."),
        click.option("--no-header", is_flag=True,
                     help="The first line is data; columns are called 0, 1, 2 …"),
        click.option("--unicode", default="none", show_default=True,
                     type=click.Choice(UNICODE_FORMS), help="Normal form of the texts."),
    ))  # fmt: skip


def _with(command: F, options: Sequence[Callable[[F], F]]) -> F:
    """A command with options before those that it has."""
    for option in reversed(options):
        command = option(command)
    return command


def reading_of(settings: dict[str, Any]) -> CorpusOptions:
    """How the corpus is read; takes the options of a corpus out of the settings of a command."""
    from embedkit.corpus import CorpusOptions

    names = [field.name for field in fields(CorpusOptions) if field.name in settings]
    values = {name: settings.pop(name) for name in names}
    if "keep" in values:
        values["keep"] = values["keep"].split(",") if values["keep"] else ()
    if "no_header" in settings:
        values["header"] = not settings.pop("no_header")
    return CorpusOptions(**values)


def notifier(quiet: bool) -> Callable[[str], None]:
    """Prints notes for the user on standard error, or nothing."""

    def notify(message: str) -> None:
        if not quiet:
            show_note(message)

    return notify


def show_progress(asked: bool | None, quiet: bool) -> bool:
    """Whether to show a progress bar: as asked, else on a terminal."""
    return asked if asked is not None else not quiet and sys.stderr.isatty()
