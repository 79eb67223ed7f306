"""The command line: each command parses, makes one library call, and prints.

Results go to standard output, everything else to standard error. torch and transformers are loaded
by the commands that need them, so that ``--help`` answers at once.
"""

from __future__ import annotations

import signal
import sys
from io import StringIO, TextIOWrapper
from typing import NoReturn

import click

from embedkit._version import __version__
from embedkit.cli.compare import compare
from embedkit.cli.doctor import doctor
from embedkit.cli.experiment import fetch, run
from embedkit.cli.explore import explore
from embedkit.cli.export import export
from embedkit.cli.extract import extract
from embedkit.cli.finetune import finetune
from embedkit.cli.info import info, repair, tokenize, verify
from embedkit.cli.messages import Commands
from embedkit.cli.predict import predict
from embedkit.cli.search import index, search
from embedkit.cli.text import say
from embedkit.cli.train import probe, split, train
from embedkit.cli.words import similarity, words
from embedkit.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, EmbedkitError, StorageError
from embedkit.machine import set_wait_policy

__all__ = ["cli", "main"]


def main(started: float | None = None) -> NoReturn:
    """Run the command line and exit with the code that the README lists.

    Args:
        started: when the process began, of ``time.monotonic()``; by default now.
    """
    set_wait_policy()  # before the libraries that read it are loaded
    signal.signal(signal.SIGTERM, _terminate)
    stdout = sys.stdout
    if isinstance(stdout, TextIOWrapper):  # names of files may hold what cannot be printed
        stdout.reconfigure(errors="backslashreplace")
    try:
        code = cli.main(standalone_mode=False, obj=started)
    except EmbedkitError as error:
        _complain(str(error))
        code = error.exit_code
    except click.ClickException as error:
        shown = StringIO()
        error.show(shown)
        say(shown.getvalue().rstrip("\n"), err=True)
        code = error.exit_code
    except (KeyboardInterrupt, click.exceptions.Abort):  # click turns the one into the other
        _complain(_stopped("interrupted"))
        code = EXIT_INTERRUPTED
    except SystemExit as ended:
        # where the reader of a pipe has gone, click replaces the stream and ends with 1
        code = ended.code if sys.stdout is stdout else 0
        if code == EXIT_TERMINATED:
            _complain(_stopped("terminated"))
    except OSError as error:
        _complain(f"{error.filename or 'input/output'}: {error.strerror or error}.")
        code = StorageError.exit_code
    sys.exit(code if isinstance(code, int) else 0)


def _terminate(_signal: int, _frame: object) -> NoReturn:
    sys.exit(EXIT_TERMINATED)


def _stopped(how: str) -> str:
    resumable = sys.argv[1:2] and sys.argv[1] in ("extract", "finetune", "run")
    return f"{how}; run the same command again to resume." if resumable else f"{how}."


def _complain(message: str) -> None:
    say(f"embedkit: {message}", err=True)


@click.group(
    cls=Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
    epilog="\b\nExamples:\n"
    "  embedkit extract corpus.tsv      any TSV, CSV, JSONL, Parquet or Arrow file\n"
    "  embedkit info corpus.vectors     what is in it, and how to open it\n",
)
@click.version_option(__version__, prog_name="embedkit")
def cli() -> None:
    """Hidden vectors of BERT-family encoders for whole corpora, and results from those vectors."""


for _command in (
    extract, info, verify, repair, tokenize, split, train, probe, finetune, predict, export,
    compare, run, fetch, search, index, similarity, words, explore, doctor,
):  # fmt: skip
    cli.add_command(_command)
