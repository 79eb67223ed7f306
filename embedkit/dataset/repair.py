"""A damaged dataset made whole: what is damaged is set aside, and ``extract`` makes just that.

A shard is a function of the input and the settings alone, so a dataset without its damaged shards
is what an interrupted job leaves: it becomes ``OUT.incomplete`` again, where the same command goes
on. The manifest stays in it and vouches for the other shards.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from embedkit import fsio
from embedkit.checksums import check_files, is_sealed
from embedkit.dataset.jobs import Job, unfinished
from embedkit.dataset.manifest import Layout, Manifest, read_manifest
from embedkit.dataset.verification import file_problems, verify
from embedkit.errors import DamagedError, OutputExistsError

__all__ = ["Repair", "repair"]


@dataclass(frozen=True, slots=True)
class Repair:
    """What was damaged, and where it is now.

    Attributes:
        problems: one sentence for each damaged or missing file; empty if all is well.
        shards: numbers of the shards that ``extract`` has to make.
        files: files and folders that were set aside, by their names in the dataset.
        aside: the folder that they are in; ``None`` if nothing was set aside.
        unfinished: where the dataset is until ``extract`` has made the shards; ``None`` if it has
            nothing to make.
    """

    problems: tuple[str, ...] = ()
    shards: tuple[int, ...] = ()
    files: tuple[str, ...] = ()
    aside: Path | None = None
    unfinished: Path | None = None


def repair(path: str | Path) -> Repair:
    """Set damaged files of a dataset aside, so that the next ``extract`` makes just those.

    Damaged files are kept in ``DATASET.damaged``; nothing is deleted. If a shard or the list of
    rejects is damaged, the dataset becomes ``DATASET.incomplete``, and the ``extract`` command that
    made it goes on there: undamaged shards are not made again. A damaged index is set aside only;
    build it again. Interrupted, the same call goes on.

    Args:
        path: the dataset.

    Raises:
        UsageError: there is no dataset.
        DamagedError: the manifest cannot be read, or something else is wrong than a file: make
            the dataset again.
        OutputExistsError: ``DATASET.incomplete`` exists.
        LockedError: another process is at it.

    Example:
        >>> embedkit.repair("vectors").problems
        ()
    """
    out = Path(os.path.abspath(path))  # noqa: PTH100 - a link keeps its name
    manifest = read_manifest(out)
    if Job(manifest.job, {}).fingerprint != manifest.fingerprint:
        raise DamagedError(
            f"{path}: manifest.json was edited: its settings have another fingerprint. Make the "
            "dataset again."
        )
    with fsio.exclusive(out):
        shards = {name: text for name, text in file_problems(out, manifest).items() if text}
        others = _damaged_beside(out)
        rejects = {} if shards or others else _damaged_rejects(out)
        if shards or rejects:
            _check_free(out)
        found = shards | rejects | others
        aside = _set_aside(out, [name for name in found if os.path.lexists(out / name)])
        if shards or rejects:
            _write_job(out, manifest)
            fsio.publish_folder(out, unfinished(out).root)
    numbers = {int(n[1]) for name in shards if (n := re.search(r"part-(\d+)\.parquet$", name))}
    return Repair(
        problems=tuple(found.values()),
        shards=tuple(sorted(numbers & set(range(manifest.n_shards)))),
        files=tuple(name for name in found if aside and os.path.lexists(aside / name)),
        aside=aside,
        unfinished=unfinished(out).root if shards or rejects else None,
    )


def _damaged_beside(out: Path) -> dict[str, str]:
    """Indexes whose files are not what was written."""
    found = {}
    for index in sorted((Layout(out).private / "index").glob("*")):
        try:
            if is_sealed(index):
                check_files(index, advice="")
        except DamagedError as error:
            found[str(index.relative_to(out))] = str(error).rstrip(". ")
    return found


def _damaged_rejects(out: Path) -> dict[str, str]:
    """The list of rejects, if it is what is wrong where all files of shards are right."""
    problems = verify(out).problems
    if not problems:
        return {}
    rejects = Layout(out).rejects
    of_rejects = [text for text in problems if rejects.name in text or "reject" in text]
    if len(of_rejects) < len(problems):
        raise DamagedError(f"{out}: {problems[0]}. Make the dataset again.")
    return {str(rejects.relative_to(out)): problems[0]}


def _check_free(out: Path) -> None:
    if os.path.lexists(unfinished(out).root):
        raise OutputExistsError(
            f"{unfinished(out).root} is in the way: the dataset would go there until extract has "
            "made its damaged shards. Move it away."
        )


def _set_aside(out: Path, names: list[str]) -> Path | None:
    """Move files and folders out of the dataset, to a folder beside it that did not exist."""
    if not names:
        return None
    ends = (".damaged" + (f"-{number}" if number > 1 else "") for number in count(1))
    aside = next(
        folder for end in ends if not os.path.lexists(folder := out.with_name(out.name + end))
    )
    for name in names:
        fsio.make_folder((aside / name).parent)
        fsio.publish_folder(out / name, aside / name)
    return aside


def _write_job(out: Path, manifest: Manifest) -> None:
    """Say what the unfinished job is, if the file that says so is damaged too."""
    layout, settings = Layout(out), manifest.job.as_dict()
    try:
        there = json.loads(layout.job.read_text("utf-8"))["settings"] == settings
    except (OSError, ValueError, KeyError, TypeError):
        there = False
    if not there:
        job = Job(manifest.job, manifest.environments[0].environment)
        fsio.write_durably(layout.job, job.to_bytes(), scratch=layout.private)
