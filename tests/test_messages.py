"""Notes and errors of the library as the command line words them."""

from __future__ import annotations

import logging
import re

import click
import pytest
from click.testing import CliRunner

from embedkit.choices import check_choice
from embedkit.cli.command import Commands, quiet_notes
from embedkit.cli.main import cli
from embedkit.errors import UsageError, check_counts


@click.command()
@click.option("--max-length", type=int)
@click.option("-q", "--quiet", is_flag=True, callback=quiet_notes)
def example(**_: object) -> None:
    logging.getLogger("embedkit.somewhere").warning("3 texts\x1b[2J were cut")
    raise UsageError("max_length=0: expected 1 or more")


group = Commands(commands=[example])


def test_a_command_shows_notes_and_its_options() -> None:
    loud = CliRunner().invoke(group, ["example"])
    assert loud.stderr == "note: 3 texts\\x1b[2J were cut\n"
    assert isinstance(loud.exception, UsageError)
    assert str(loud.exception) == "--max-length 0: expected 1 or more"
    assert CliRunner().invoke(group, ["example", "-q"]).stderr == ""
    assert CliRunner().invoke(group, ["example"]).stderr == loud.stderr


def test_usage_errors_are_value_errors() -> None:
    with pytest.raises(ValueError, match="words=True"):
        check_choice(("first", "mean"), words=True)
    with pytest.raises(UsageError, match="sample=0"):
        check_counts(sample=0)


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_the_help_shows_examples_first_and_every_option_once(name: str) -> None:
    command = cli.commands[name]
    text = CliRunner().invoke(cli, [name, "--help"]).stdout.partition("Examples:")[2]
    assert "Running and printing:" in text
    for param in command.params:
        if isinstance(param, click.Option):
            option = re.escape(max(param.opts, key=len))
            found = re.findall(rf"^  (?:-\w, )?{option}(?= |$)", text, re.MULTILINE)
            assert len(found) == 1, option
