"""A run on disk: settings, predictions, scores, model and figures.

    RUN/run.json             settings, fingerprints, scores, cost, versions (:mod:`.content`)
    RUN/predictions.parquet  predictions of held-out records (:mod:`.predictions`)
    RUN/model/               the fitted pipeline; of a fine-tuned run fold-0/ …
    RUN/figures/             PNG
    RUN/SHA256SUMS           of every file, compared when it is read (:mod:`~embedkit.checksums`)

Output is atomic: a run is written to ``RUN.incomplete`` and renamed when complete. A run that takes
long keeps finished folds there, and the same call goes on with them.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embedkit import fsio
from embedkit._version import __version__
from embedkit.artefacts import UNFINISHED, finish_swap, incomplete, new_folder
from embedkit.checksums import check_files
from embedkit.dataset.jobs import difference
from embedkit.decoding import decode, read_json
from embedkit.errors import (
    EncodeError,
    MismatchError,
    OutputExistsError,
    UsageError,
)
from embedkit.runs.content import FORMAT_VERSION, KINDS, Run, as_json

__all__ = ["UNFINISHED", "check_free", "check_run_place", "new_run", "path_from",
           "read_run", "resumable_run", "versions", "write_run"]  # fmt: skip


@contextmanager
def new_run(out: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A folder to fill, which becomes ``out`` when the block ends without an error.

    Raises:
        OutputExistsError: something is there; with ``overwrite``, something that is no run.
        LockedError: another process is at it.
    """
    check_free(out, overwrite=overwrite)
    work = incomplete(out)
    if (work / UNFINISHED).is_dir() and not overwrite:
        raise OutputExistsError(
            f"{work} holds an unfinished run of another kind. Finish it with its own command, "
            "choose another out=, or pass overwrite=True to throw it away."
        )
    with new_folder(out) as work:
        yield work


@contextmanager
def resumable_run(
    out: Path, settings: dict[str, Any], *, overwrite: bool = False, begin: bool = True
) -> Iterator[Path]:
    """As :func:`new_run`, but what an earlier attempt left in the folder is still there.

    ``unfinished/job.json`` in it says what the run is going to be. The folder ``unfinished`` is
    deleted when the run has its final name. Settings that turn out not to work before anything
    is made leave no folder.

    Args:
        out: folder of the run.
        settings: everything that shapes the run, as JSON holds it.
        overwrite: replace a finished run; start an unfinished one over if its settings differ.
        begin: whether a run may be begun; ``False``: only an unfinished one goes on.

    Raises:
        UsageError: there is nothing to go on with.
        OutputExistsError: something is there; with ``overwrite``, something that is no run.
        MismatchError: an unfinished run of other settings is there; the message names them.
        LockedError: another process is at it.
    """
    check_run_place(out, overwrite=overwrite, resume=not begin)
    work = incomplete(out)
    job = work / UNFINISHED / "job.json"

    def write_job(work: Path) -> None:
        if any(work.iterdir()):
            _check_job(work, job, settings, overwrite=overwrite)
        fsio.make_folder(job.parent)
        content = json.dumps(settings, ensure_ascii=False, sort_keys=True, indent=1)
        fsio.write_durably(job, content.encode(), scratch=job.parent)

    with new_folder(out, begin=write_job):
        try:
            yield work
        except (UsageError, EncodeError):  # what they advise is another job: it may begin here
            if [path for path in work.rglob("*") if path.is_file()] == [job]:
                fsio.remove_tree(work)
            raise


def _check_job(work: Path, job: Path, settings: dict[str, Any], *, overwrite: bool) -> None:
    """Raise if the folder holds another job; with ``overwrite`` empty it instead."""
    try:
        before = dict(json.loads(job.read_text("utf-8")))
        found = difference(before, json.loads(json.dumps(settings)))
    except (OSError, ValueError, TypeError):  # it was stopped before it had begun
        before, found = {}, "  nothing says what it was going to be"
        if not any(path.is_file() for path in work.rglob("*")):
            return
    if not found:
        return
    if not overwrite:
        raise MismatchError(
            f"{work} was begun with other input, model or settings. Repeat the earlier command to "
            "finish it, choose another out=, or pass overwrite=True to start over. It differs in:\n"
            f"{found}"
        )
    fsio.empty_folder(work)


def check_run_place(out: Path, *, overwrite: bool, resume: bool) -> None:
    """Check that a run can be begun there, or gone on with; errors as :func:`resumable_run`.

    Raises:
        StorageError: nothing can be written there.
    """
    check_free(out, overwrite=overwrite)
    fsio.check_place(out)
    work = incomplete(out)
    if resume and not (work / UNFINISHED).is_dir():
        raise UsageError(
            f"resume=True: there is no unfinished run {work}. Leave it out to begin one; the same "
            "call goes on by itself where it was interrupted."
        )


def check_free(out: Path, *, overwrite: bool) -> None:
    """Raise an :class:`OutputExistsError` if a run cannot be put there."""
    finish_swap(out, is_run)
    if out.exists() and not (overwrite and is_run(out)):
        advice = "it is not a run of embedkit" if overwrite else "pass overwrite=True to replace it"
        if not out.is_dir() or any(out.iterdir()):
            raise OutputExistsError(f"{out} is in the way; {advice}, or choose another out=.")


def is_run(path: Path) -> bool:
    """Whether the folder is a run."""
    return (path / "run.json").is_file()


def write_run(folder: Path, content: Run) -> None:
    """Write ``run.json``, the last file of a run; numbers that JSON cannot write become null."""
    content = replace(content, command=_command())
    data = json.dumps(as_json(content), ensure_ascii=False, indent=1, sort_keys=True) + "\n"
    fsio.write_durably(folder / "run.json", data.encode(), scratch=folder)


def path_from(folder: Path, target: Path) -> str:
    """Where ``target`` is, seen from a run's folder, so that both can be moved together."""
    return os.path.relpath(target.resolve(), folder.resolve())


def _command() -> str | None:
    """The command that makes the run again; ``None`` if this process is not embedkit's."""
    program = Path(sys.argv[0])
    if "embedkit" not in (program.name, program.parent.name):
        return None
    return shlex.join(["embedkit", *(word for word in sys.argv[1:] if word != "--overwrite")])


def read_run(path: Path) -> Run:
    """Read ``run.json``.

    Raises:
        UsageError: the folder is no run, or one of another version of embedkit.
        DamagedError: the file was changed since, a field is missing or has another type; the
            message names file and field.
    """
    file = path / "run.json"
    if not is_run(path):
        unfinished = incomplete(path)
        advice = "Make one with embedkit train or embedkit finetune."
        if unfinished.is_dir():
            advice = f"It is unfinished ({unfinished}): run the same command again."
        raise UsageError(f"{path} is not a run. {advice}")
    check_files(path, ["run.json"], advice="Make the run again.")
    advice = "Make the run again."
    content = read_json(file, advice=advice)
    head = decode(_Head, content, file=file, advice=advice)
    if head.format_version != FORMAT_VERSION or head.kind not in KINDS:
        raise UsageError(f"{path} was made by another version of embedkit. Make the run again.")
    return decode(KINDS[head.kind], content, file=file, advice=advice)


@dataclass(frozen=True, slots=True)
class _Head:
    kind: str
    format_version: int


def versions() -> dict[str, str]:
    """Versions of what decides a number."""
    import lightgbm
    import numpy as np
    import sklearn

    return {
        "embedkit": __version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "lightgbm": lightgbm.__version__,
    }
