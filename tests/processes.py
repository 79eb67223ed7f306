"""The command line, called in this process or in others."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
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


def invoke(*arguments: object) -> Any:
    """Call ``embedkit`` in this process; ``return_value`` is its exit code."""
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
        CliRunner(env={"COLUMNS": str(columns)}).isolation(stdin) as (out, err, *_),
    ):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", typed)
        # which a process of its own would take with it
        patch.setenv("PYTHONSAFEPATH", "")
        patch.delenv("PYTHONSAFEPATH")
        patch.setattr(signal, "signal", lambda *_: None)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        sys.stdout.flush()
        sys.stderr.flush()
        printed = out.getvalue().decode(), err.getvalue().decode()
    assert isinstance(ended.value.code, int)
    assert not {"\ufdd0", "\ufdd1"}.intersection(*printed), "the marks of an option were printed"
    return Done(typed, ended.value.code, *printed)


def succeed(*arguments: str | Path, cwd: Path) -> Done:
    """As :func:`command`, where the exit code has to be 0."""
    return ends_with(0, *arguments, cwd=cwd)


def ends_with(code: int, *arguments: str | Path, cwd: Path, **how: Any) -> Done:
    """As :func:`command`, where this has to be the exit code."""
    done = command(*arguments, cwd=cwd, **how)
    assert done.returncode == code, (arguments, done)
    return done


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


def environment() -> dict[str, Any]:
    """Environment of a new Python: this checkout of embedkit, and wide lines."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **_WIDE}


def completed(*typed: str | Path, cwd: Path, **how: str | None) -> Done:
    """As :func:`program`, where the exit code has to be 0."""
    done = program(*typed, cwd=cwd, **how)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4_000:]
    return done


def program(*typed: str | Path, cwd: Path, stdin: str | None = None, **more: str | None) -> Done:
    """Run a program with further variables in its environment, or without those that are None."""
    env = {name: value for name, value in (environment() | more).items() if value is not None}
    return subprocess.run(
        typed, cwd=cwd, env=env, input=stdin, capture_output=True, text=True, check=False
    )


_MODULES = set[str]()


def in_children(*actions: Callable[[], Any]) -> list[Any]:
    """What actions return in forked children of this process at the same time.

    An action that raises gives its ``traceback``. Modules that a child imports are imported here
    afterwards, instead of once more in every later child.
    """
    fork = multiprocessing.get_context("fork")
    started = []
    for action in actions:
        receiving, sending = fork.Pipe(duplex=False)
        child = fork.Process(target=_answer, args=(action, sending))
        child.start()
        sending.close()
        started.append((receiving, child))
    answers = []
    for receiving, child in started:
        try:
            answer, modules = receiving.recv()
        except EOFError:
            child.join()
            answer, modules = {"code": None, "traceback": f"ended with {child.exitcode}"}, set()
        child.join()
        answers.append(answer)
        for module in modules - _MODULES:
            with suppress(Exception):
                importlib.import_module(module)
        _MODULES.update(modules)
    return answers


def _answer(action: Callable[[], Any], receiver: Any) -> None:
    before = set(sys.modules)
    try:
        answer = action()
    except BaseException:  # those of pytest are none of Exception
        answer = {"code": None, "traceback": traceback.format_exc()[-1_500:]}
    receiver.send((answer, set(sys.modules) - before))
