"""The command line: each command parses, makes one library call, and prints.

Results go to standard output, everything else to standard error. torch and transformers are loaded
by the commands that need them, so that ``--help`` answers at once.
"""

from __future__ import annotations

import codecs
import json
import os
import signal
import sys
from contextlib import suppress
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import click

from embedkit.cli.command import STARTED, Commands, complain
from embedkit.cli.compare import compare
from embedkit.cli.data import extract, info, tokenize, verify
from embedkit.cli.learn import export, finetune, predict, probe, split, train
from embedkit.cli.look import diff, explore, index, search, similarity, words
from embedkit.cli.more import doctor, fetch, run
from embedkit.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, StorageError
from embedkit.machine import __version__, set_wait_policy


def _escaped(error: Any) -> tuple[str, int]:
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def main() -> NoReturn:
    """Run the command line and exit with a code of those that docs/reliability.md lists."""
    set_wait_policy()  # before the libraries that read it are loaded
    # workers begin as `python -c`, which would take modules of the folder for those of Python: a
    # random.py beside somebody's corpus is not to run
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    # unset, tokenizers warns and stops its threads as soon as this process forks
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # all that matters is said by us
    # as an exception, so that locks are released and unfinished files removed on the way out
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    for name in ("stdin", "stdout", "stderr"):
        # closed by the caller: the next file that is opened would take its number
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r+"))
    stdout = sys.stdout
    if isinstance(stdout, TextIOWrapper):
        # file names may be unprintable, and a terminal of cp932 has no letters of Korean; as JSON
        # escapes them, so that what --json prints stays that
        codecs.register_error("json", _escaped)
        stdout.reconfigure(errors="json")
    try:
        Path.cwd()
    except FileNotFoundError:
        complain("the current folder was deleted. Change to another one.")
        sys.exit(StorageError.exit_code)
    try:
        code: Any = cli.call(sys.argv[1:], started=STARTED)
    except (KeyboardInterrupt, click.exceptions.Abort):  # click replaces the former
        complain(_stopped("interrupted"))
        code = EXIT_INTERRUPTED
    except SystemExit as ended:
        code = ended.code
        if code == EXIT_TERMINATED:
            complain(_stopped("terminated"))
    if code in (EXIT_INTERRUPTED, EXIT_TERMINATED):
        # everything of ours is undone by now; threads of libraries may still compute, and Python
        # would wait for them, or take their memory away under them, which aborts
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    # all is done: what libraries do at the exit is not to be interrupted by an exception
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    sys.exit(code)


def _stopped(how: str) -> str:
    resumable = sys.argv[1:2] and sys.argv[1] in ("extract", "finetune", "run")
    return f"{how}; run the same command again to resume." if resumable else f"{how}."


@click.group(
    cls=Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
    epilog="\b\nBegin with a table of texts and labels (TSV, CSV, JSON, Parquet, Excel):\n"
    "  embedkit extract corpus.tsv --out vectors\n"
    "  embedkit train vectors --out runs/vectors\n"
    "  embedkit train vectors --features tfidf --out runs/tfidf\n"
    "  embedkit compare runs/vectors runs/tfidf\n",
)
@click.version_option(__version__, prog_name="embedkit")
def cli() -> None:
    """Hidden states of BERT-family encoders for a corpus; classifiers, search, comparison."""


cli.headings = {
    "Make vectors": (extract, info, verify, tokenize),
    "Learn": (split, train, probe, finetune, predict, compare, export),
    "Look": (search, index, similarity, words, explore, diff),
    "More": (run, fetch, doctor),
}
for _command in chain(*cli.headings.values()):
    cli.add_command(_command)
