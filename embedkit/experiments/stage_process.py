"""Stages in processes of their own, forked from one that has imported the libraries once.

Importing torch, transformers and scikit-learn takes longer than many a stage. On Linux a server
process imports what a command needs, forks, and lets the child become the command; elsewhere, where
a fork after such imports is unsafe, every stage is a new Python.

The server reads one task a line from its standard input, as JSON, and reports the number of the
process and then its exit code, a line each, through a pipe. It ends when its input ends.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from embedkit.display import TYPED_IN

__all__ = ["StageProcesses"]

_ENCODER = ("transformers.models.bert.modeling_bert", "embedkit.encoding.packed")
_FIGURES = ("matplotlib.backends.backend_agg", "sklearn.metrics", "sklearn.calibration")
_SPLITS = ("sklearn.model_selection", "scipy.sparse.csgraph", "embedkit.runs.splits")
_ESTIMATORS = (*_SPLITS, *_FIGURES, "sklearn.linear_model", "skops.io", "lightgbm",
               "embedkit.classifiers.train")  # fmt: skip
_NEEDED = {
    "extract": (*_ENCODER, "embedkit.dataset.extraction"), "split": _SPLITS,
    "finetune": (*_ENCODER, *_SPLITS, *_FIGURES, "accelerate", "transformers.trainer"),
    "words": _ENCODER, "similarity": _ENCODER,
    "train": _ESTIMATORS, "probe": _ESTIMATORS, "compare": _ESTIMATORS,
}  # fmt: skip


class StageProcesses:
    """Runs commands one after the other, each in its own process; a context manager."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None
        self._reports: Any = None

    def __enter__(self) -> StageProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            assert self._server.stdin is not None
            with suppress(BrokenPipeError):
                self._server.stdin.close()
            self._server.wait()  # it ends after the command that it runs
            self._reports.close()
            self._server = None

    def run(self, arguments: Sequence[str], folder: Path, *, divert: bool) -> int:
        """Run ``embedkit ARGUMENTS`` in a folder; signals that end this process end that one first.

        Args:
            arguments: of the command line, the command first.
            folder: in which it runs.
            divert: send to standard error what it prints.

        Returns:
            Its exit code, 128 + the number of the signal that ended it.
        """
        if sys.platform != "linux":
            return _in_new_python(arguments, folder, divert=divert)
        task = {"arguments": list(arguments), "folder": str(folder), "divert": divert}
        process = 0
        try:
            self._send(task)
            process = int(self._reports.readline())
            code = int(self._reports.readline())
        except KeyboardInterrupt:  # the terminal sent it to the command too, which ends in order
            raise
        except ValueError as error:  # the end of the reports
            raise RuntimeError("the process that starts the stages has been killed") from error
        except BaseException:
            with suppress(ProcessLookupError):
                if process:
                    os.kill(process, signal.SIGTERM)
            raise
        return 128 - code if code < 0 else code

    def _send(self, task: Mapping[str, Any]) -> None:
        if self._server is None:
            reading, writing = os.pipe()
            self._server = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(writing)], env=_environment(),
                stdin=subprocess.PIPE, pass_fds=[writing], text=True,
            )  # fmt: skip
            os.close(writing)
            self._reports = os.fdopen(reading)
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(task) + "\n")
        self._server.stdin.flush()


def _environment() -> dict[str, str]:
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(p for p in (package, os.environ.get("PYTHONPATH")) if p)
    return {**os.environ, "PYTHONPATH": path, TYPED_IN: str(Path.cwd())}


def _in_new_python(arguments: Sequence[str], folder: Path, *, divert: bool) -> int:
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "embedkit", *arguments], cwd=folder, env=_environment(),
        stdout=sys.stderr.fileno() if divert else None,
    )  # fmt: skip
    try:
        code = child.wait()
    except KeyboardInterrupt:
        child.wait()
        raise
    except BaseException:
        child.terminate()
        child.wait()
        raise
    return 128 - code if code < 0 else code


def _serve(reports: int) -> Mapping[str, Any] | None:
    """Fork for every task; returns the task in the child, and nothing at the end of the input."""
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the children
    with os.fdopen(reports, "w", buffering=1) as report, os.fdopen(0) as tasks:
        while line := tasks.readline():
            task: dict[str, Any] = json.loads(line)
            for name in _NEEDED.get(task["arguments"][0], ()):
                with suppress(ImportError):  # the command itself will say what is missing
                    importlib.import_module(name)
            sys.stdout.flush()
            process = os.fork()
            if process == 0:
                signal.signal(signal.SIGINT, on_interrupt)
                return task
            report.write(f"{process}\n")
            _, status = os.waitpid(process, 0)
            report.write(f"{os.waitstatus_to_exitcode(status)}\n")
    return None


def _main() -> None:
    task = _serve(int(sys.argv[1]))
    if task is None:
        return
    os.open(os.devnull, os.O_RDONLY)  # takes the place of standard input, which the pipe was
    if task["divert"]:
        os.dup2(2, 1)
    os.chdir(task["folder"])
    sys.argv = ["embedkit", *task["arguments"]]
    runpy.run_module("embedkit", run_name="__main__")


if __name__ == "__main__":
    from embedkit.machine import set_wait_policy

    set_wait_policy()
    _main()
