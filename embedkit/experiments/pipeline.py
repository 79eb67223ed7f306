"""The stages of a recipe, run one after the other; what is up to date is skipped.

Every stage is a process of its own, as if it had been typed, so that what it says of its time and
memory is true and its crash is its own. Beside what a stage makes lies a small record of what it
was made from: its command line, the hashes of its inputs, the code. A stage whose record and
outputs are as they would be made again is skipped. The record is written before a stage starts,
and once more when it is done: an output without a finished record is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from embedkit import fsio
from embedkit._version import __version__
from embedkit.display import duration_text, path_from
from embedkit.errors import EXIT_REJECTS
from embedkit.experiments.recipe import Stage
from embedkit.experiments.stage_process import StageProcesses

__all__ = ["Done", "StageResult", "content_hash", "run_recipe", "shell_lines"]

_LIBRARIES = ("numpy", "pyarrow", "scikit-learn", "lightgbm", "torch", "transformers", "tokenizers")
_RUN_FILES = ("run.json", "predictions.parquet", "training.jsonl")
_SIZED = ("sentences", "words", "tokens", "model")
_OF_DONE = {"outputs", "exit_code"}
_PROCESSES = StageProcesses()
UP_TO_DATE, DONE, FAILED = "up to date", "done", "failed"


@dataclass(frozen=True, slots=True)
class StageResult:
    """What became of a stage.

    Attributes:
        stage: its name.
        status: ``done``, ``up to date`` or ``failed``.
        exit_code: of its command; of a skipped stage that of the time it ran.
        seconds: how long it took now.
        outputs: what it makes, as seen from the current folder.
    """

    stage: str
    status: str
    exit_code: int
    seconds: float
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a recipe: its stages up to the first that failed."""

    stages: tuple[StageResult, ...]

    @property
    def exit_code(self) -> int:
        """That of the failed stage; else 3 if a stage rejected records; else 0."""
        codes = [result.exit_code for result in self.stages]
        if self.stages and self.stages[-1].status == FAILED:
            return codes[-1]
        return EXIT_REJECTS if EXIT_REJECTS in codes else 0


def run_recipe(
    stages: Sequence[Stage],
    *,
    force: bool = False,
    quiet: bool = False,
    divert: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Done:
    """Run stages in their order, until one fails.

    Args:
        stages: of :func:`~embedkit.experiments.recipe.read_recipe`.
        force: run also what is up to date.
        quiet: call the commands with ``--quiet``.
        divert: send to standard error what they print.
        progress: called with a line before and after every stage.
    """
    results: list[StageResult] = []
    with _PROCESSES:
        for number, stage in enumerate(stages, 1):
            about = f"[{number}/{len(stages)}] {stage.name}"
            plan = _plan(stage)
            if not plan.reason and not force:
                progress(f"{about}: up to date")
                status, code, seconds = UP_TO_DATE, int(plan.record["exit_code"]), 0.0
            else:
                progress(f"{about}: {plan.reason or 'forced'}")
                status, code, seconds = _run(stage, plan, quiet=quiet, divert=divert)
            shown = tuple(path_from(stage.folder / name, "") for name in stage.outputs)
            results.append(StageResult(stage.name, status, code, seconds, shown))
            if status == FAILED:
                earlier = f"; {number - 1} earlier stages are done" if number > 1 else ""
                progress(f"{about}: failed with exit code {code}{earlier}. "
                         "Correct it and run the same command again.")  # fmt: skip
                break
            if status == DONE:
                progress(f"{about}: done in {duration_text(seconds)}")
    return Done(tuple(results))


def shell_lines(stages: Sequence[Stage]) -> list[str]:
    """The stages as commands for a shell; those that are up to date as comments."""
    lines = [f"cd {shlex.quote(str(stages[0].folder))}"] if stages else []
    fresh: set[str] = set()
    for stage in stages:
        plan = _plan(stage)
        stale = bool(plan.reason) or not fresh.isdisjoint(stage.values)
        overwrite = ["--overwrite"] if stale and _overwrites(stage, plan) else []
        command = shlex.join(["embedkit", stage.command, *stage.arguments, *overwrite])
        if stale:
            fresh.update(stage.outputs)
            lines.append(command)
        else:
            lines += [f"# {stage.name} is up to date:", f"# {command}"]
    return lines


def content_hash(path: Path) -> str:
    """SHA-256 of a file, or of what identifies the content of a folder.

    For a dataset that is its manifest, which contains the hashes of all files, for a run
    ``run.json``, the predictions and the training log; of shards and models only the sizes. Of any
    other folder all files are hashed. Other files in datasets and runs may come and go: indexes,
    logs, figures.
    """
    if path.is_file():
        return fsio.file_sha256(path)
    files = sorted(p for p in path.rglob("*") if p.is_file())
    kept = {path / "_embedkit" / "manifest.json"} & set(files)
    if not kept:
        kept = {path / name for name in _RUN_FILES} & set(files)
    digest = hashlib.sha256()
    for file in files:
        name = file.relative_to(path)
        if file in kept or not kept:
            digest.update(f"{name}\0{fsio.file_sha256(file)}\n".encode())
        elif name.parts[0] in _SIZED:
            digest.update(f"{name}\0{file.stat().st_size}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a stage would be made from now, what it was made from, and why it has to run."""

    made_from: dict[str, Any]
    record: dict[str, Any]
    reason: str


def _plan(stage: Stage) -> _Plan:
    made_from = {
        "arguments": [stage.command, *stage.arguments],
        "inputs": dict(_inputs(stage)),
        "code": _code(),
    }
    record = _read_record(stage)
    return _Plan(made_from, record, _reason(stage, made_from, record))


def _reason(stage: Stage, made_from: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """Why a stage has to run; empty if it is up to date."""
    if not stage.outputs:
        return "runs every time, leaves no file"
    if not record:
        return "to do"
    if record["status"] != DONE:
        return "was not finished"
    before = record["made_from"]
    if before["arguments"] != made_from["arguments"]:
        return "its settings have changed"
    if before["inputs"] != made_from["inputs"]:
        names = sorted(before["inputs"].keys() | made_from["inputs"].keys())
        changed = [n for n in names if before["inputs"].get(n) != made_from["inputs"].get(n)]
        return f"{changed[0]} has changed"
    if before["code"] != made_from["code"]:
        return "embedkit or a library has changed"
    return _lost(stage, record)


def _lost(stage: Stage, record: Mapping[str, Any]) -> str:
    """What is no longer as a finished stage left it; empty if all is."""
    for name, known in record["outputs"].items():
        path = stage.folder / name
        if not path.exists():
            return f"{name} is missing"
        if content_hash(path) != known:
            return f"{name} is no longer what was made"
    return ""


def _run(stage: Stage, plan: _Plan, *, quiet: bool, divert: bool) -> tuple[str, int, float]:
    """Run a stage and write its record; returns its status, exit code and seconds."""
    overwrite = ["--overwrite"] if _overwrites(stage, plan) else []
    if plan.record or not any((stage.folder / name).exists() for name in stage.outputs):
        # beside what was made by hand a record would claim it, and the next run replace it
        _write_record(stage, {"status": "started", "made_from": plan.made_from})
    started = time.monotonic()
    code = _call([stage.command, *stage.arguments, *overwrite, *(["-q"] if quiet else [])],
                 stage.folder, divert)  # fmt: skip
    seconds = time.monotonic() - started
    if code not in (0, EXIT_REJECTS):
        if plan.record.get("status") == DONE and not _lost(stage, plan.record):
            _write_record(stage, plan.record)  # a mistyped setting has undone nothing
        return FAILED, code, seconds
    made = {name: content_hash(path) for name in stage.outputs
            if (path := stage.folder / name).exists()}  # fmt: skip
    _write_record(stage, {"status": DONE, "made_from": plan.made_from, "outputs": made,
                          "exit_code": code, "seconds": round(seconds, 3)})  # fmt: skip
    return DONE, code, seconds


def _overwrites(stage: Stage, plan: _Plan) -> bool:
    """Whether what is in the way was made here, and may be replaced.

    An interrupted stage with unchanged settings is not replaced but resumed.
    """
    if not stage.can_overwrite or not plan.record:
        return False
    there = any((stage.folder / name).exists() for name in stage.outputs)
    changed = plan.record["made_from"]["arguments"] != plan.made_from["arguments"]
    return there or changed or plan.record["made_from"]["inputs"] != plan.made_from["inputs"]


def _call(arguments: Sequence[str], folder: Path, divert: bool) -> int:
    """Run a command in its own process."""
    return _PROCESSES.run(arguments, folder, divert=divert)


def _inputs(stage: Stage) -> Iterator[tuple[str, str]]:
    """Files and folders that a stage names, with their hashes."""
    for value in stage.values:
        for name in dict.fromkeys([value, *value.split(",")]):
            path = stage.folder / name
            if name and os.path.exists(path):  # noqa: PTH110 - false of a text that is no file name
                yield name, content_hash(path)


@cache
def _code() -> dict[str, str]:
    """What computes: this package, file by file, and the libraries under it."""
    from importlib.metadata import PackageNotFoundError, version

    folder = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for file in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc"):
        digest.update(f"{file.relative_to(folder)}\0{fsio.file_sha256(file)}\n".encode())
    found = {"embedkit": __version__, "sources": digest.hexdigest()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _record_file(stage: Stage) -> Path:
    first = stage.folder / stage.outputs[0]
    return first.with_name(f".{first.name}.stage.json")


def _read_record(stage: Stage) -> dict[str, Any]:
    """The record beside a stage's first output; empty without one that can be read."""
    if not stage.outputs:
        return {}
    try:
        record = json.loads(_record_file(stage).read_text("utf-8"))
        complete = {"arguments", "inputs", "code"} <= record["made_from"].keys()
        if complete and (record["status"] != DONE or record.keys() >= _OF_DONE):
            return dict(record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return {}


def _write_record(stage: Stage, content: Mapping[str, Any]) -> None:
    if not stage.outputs:
        return
    file = _record_file(stage)
    fsio.make_folder(file.parent)
    data = json.dumps({"stage": stage.name, **content}, ensure_ascii=False, indent=1) + "\n"
    fsio.write_durably(file, data.encode(), scratch=file.parent)
