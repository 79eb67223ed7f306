"""The command line, called in this process or in another one that can be killed."""

from __future__ import annotations

import fcntl
import inspect
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from embedkit.cli import main as cli

ROOT = Path(__file__).resolve().parent.parent
EMBEDKIT = [sys.executable, "-m", "embedkit"]

Done = subprocess.CompletedProcess[str]

_WIDE = {"COLUMNS": "1000"}  # lines are not divided

# click 8.1 mixes both streams by default
_TWO_STREAMS: dict[str, Any] = {}
if "mix_stderr" in inspect.signature(CliRunner).parameters:
    _TWO_STREAMS["mix_stderr"] = False

# imports take seconds: processes are forked from one that has done them
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        "pytest",
        "torch",
        "transformers.models.bert.modeling_bert",
        "embedkit.cli.main",
        "embedkit.dataset.extract",
        "embedkit.encoding.packed",
    ]
)


def invoke(*arguments: object) -> Any:
    """Call ``embedkit`` in this process; an error is in ``exception``, as it was raised."""
    runner = CliRunner(env=_WIDE)
    return runner.invoke(cli.cli, [str(a) for a in arguments], standalone_mode=False)


def command(
    *arguments: str | Path, cwd: Path, stdin: bytes | None = None, columns: int = 1000
) -> Done:
    """Call ``embedkit`` in this process as if it had been typed.

    An error that would end a process with a traceback is raised.
    """
    typed = ["embedkit", *map(str, arguments)]
    with (
        pytest.MonkeyPatch.context() as patch,
        logging_as_before(),
        CliRunner(env={"COLUMNS": str(columns)}, **_TWO_STREAMS).isolation(stdin) as (out, err, *_),
    ):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", typed)
        patch.setattr(signal, "signal", lambda *_: None)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        sys.stdout.flush()
        sys.stderr.flush()
        printed = out.getvalue().decode(), err.getvalue().decode()
    assert isinstance(ended.value.code, int)
    return Done(typed, ended.value.code, *printed)


@contextmanager
def logging_as_before() -> Iterator[None]:
    """Undo what a command sets for its process, such as ``--quiet``."""
    logger = logging.getLogger("embedkit")
    before = logger.level, logger.propagate, list(logger.handlers)
    try:
        yield
    finally:
        logger.setLevel(before[0])
        logger.propagate, logger.handlers[:] = before[1], before[2]


def environment() -> dict[str, str]:
    """Environment of a new Python: this checkout of embedkit, and wide lines."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **_WIDE}


def program(*typed: str | Path, cwd: Path, stdin: str | None = None, **variables: str) -> Done:
    """Run a program with further variables in its environment, and wait for it."""
    env = environment() | variables
    return subprocess.run(
        typed, cwd=cwd, env=env, input=stdin, capture_output=True, text=True, check=False
    )


def fresh(*arguments: str | Path, cwd: Path) -> Done:
    """Run ``python -m embedkit`` and wait for it."""
    return program(*EMBEDKIT, *arguments, cwd=cwd)


class Process:
    """``embedkit`` in a process of its own, which runs the Python of ``first`` before it."""

    def __init__(self, *arguments: str | Path, cwd: Path, first: str = "") -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._out, self._err = (Path(self._folder.name, name) for name in ("out", "err"))
        self._out.touch()
        self._err.touch()
        typed = ["embedkit", *map(str, arguments)]
        own = (typed, cwd, self._out, self._err, first)
        self._process = _SERVER.Process(target=_become, args=own)
        self._process.start()

    @property
    def code(self) -> int | None:
        """Exit code, negative for a signal; ``None`` while it runs."""
        return self._process.exitcode

    def until(self, condition: Callable[[], bool]) -> bool:
        """Wait until a condition holds; ``False`` if the process ends first."""
        while self.code is None:
            if condition():
                return True
            time.sleep(0.002)
        return False

    def send(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.code is None:
            os.kill(self._process.pid or 0, number)

    def wait(self) -> Done:
        """Wait for its end, and for that of its children."""
        self._process.join()
        with self._err.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
        done = Done([], self.code or 0, self._out.read_text("utf-8"), self._err.read_text("utf-8"))
        self._folder.cleanup()
        return done

    def kill(self) -> None:
        """Kill it with all its children, and wait for their end."""
        self._process.kill()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid or 0, signal.SIGKILL)
        self.wait()


def _become(typed: list[str], cwd: Path, out: Path, err: Path, first: str) -> None:
    os.setsid()
    for number, file in ((1, out), (2, err)):
        opened = os.open(file, os.O_WRONLY)
        os.dup2(opened, number)
        os.close(opened)
    fcntl.flock(2, fcntl.LOCK_EX)  # until this process and its children have ended
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    os.environ.update(_WIDE)
    os.chdir(cwd)
    sys.argv = typed
    exec(first, {})
    cli.main()
