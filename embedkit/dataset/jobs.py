"""The output folder while a job runs: identity, lock, which shards are done, the final rename.

``OUT.incomplete`` holds the job until everything is in it; one rename makes it ``OUT``
(:mod:`embedkit.artefacts`). Each shard is a function of the input and the settings alone, so a
shard that is missing or damaged, wherever it stands, is simply made again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embedkit import fsio
from embedkit.artefacts import finish_swap, incomplete, publish
from embedkit.dataset.manifest import (
    REPLACING,
    TABLES,
    EnvironmentShards,
    FileEntry,
    FooterEntry,
    JobSettings,
    Layout,
    Manifest,
    Names,
    Totals,
    is_dataset,
    read_manifest,
)
from embedkit.dataset.schema import Footer, footer_bytes, read_footer
from embedkit.errors import DamagedError, MismatchError, OutputExistsError

__all__ = [
    "Job", "JobFolder", "already_complete", "difference", "open_job", "recorded_precision",
    "unfinished", "what_is_there",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Job:
    """What a dataset is going to be.

    Attributes:
        settings: inputs, columns, model and settings: everything that shapes a byte.
        environment: versions, device and what its arithmetic gives, on which the last bits depend.
    """

    settings: JobSettings
    environment: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the settings, hex."""
        return hashlib.sha256(_canonical(self.settings.as_dict())).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"settings": self.settings.as_dict(), "environment": self.environment}

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return _canonical(self.as_dict())


def already_complete(out: Path, job: Job, *, overwrite: bool) -> bool:
    """Whether ``out`` already holds exactly this dataset.

    Raises:
        OutputExistsError: something else is there and ``overwrite`` is not set, or it is nothing
            that embedkit made.
        LockedError: another process is just replacing it.
    """
    finish_swap(out, is_dataset, private=REPLACING)
    if _is_free(out) or overwrite:
        return False
    manifest = read_manifest(out)
    if manifest.fingerprint == job.fingerprint:
        return True
    raise OutputExistsError(
        f"{out} exists and was made otherwise. Pass another out=, or replace it with "
        "overwrite=True. It differs in:\n"
        f"{difference(manifest.job.as_dict(), job.settings.as_dict())}"
    )


def what_is_there(out: Path, job: Job, *, overwrite: bool) -> str:
    """What a run would meet where its output goes, for people; empty if nothing. Writes nothing."""
    layout = unfinished(out)
    try:
        free = _is_free(out)
        _refuse_foreign(layout.root)
    except OutputExistsError as error:
        return str(error)
    if not free and overwrite:
        return f"{out} exists and would be replaced when the new one is complete"
    if not free:
        if read_manifest(out).fingerprint == job.fingerprint:
            return f"{out} is already complete; nothing would be done"
        return f"{out} exists and was made otherwise: only overwrite=True would replace it"
    if not layout.job.is_file() or _holds_nothing(layout):
        return ""
    if difference(_known(layout).get("settings", {}), job.settings.as_dict()):
        return f"{layout.root} was begun otherwise: only overwrite=True would start over"
    shards = len(layout.shard_files("sentences"))
    return f"{layout.root} holds {shards} finished shards, which would not be made again"


def recorded_precision(out: Path) -> str | None:
    """The precision that a dataset at ``out``, finished or not, is computed in; ``None`` if none.

    A precision chosen by timing may come out otherwise the next time; the job that is there
    decides.
    """
    for path, key in ((Layout(out).manifest, "job"), (unfinished(out).job, "settings")):
        try:
            precision = json.loads(path.read_text("utf-8"))[key]["vectors"]["precision"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return str(precision)
    return None


@contextmanager
def open_job(
    out: Path, job: Job, *, overwrite: bool = False, allow_env_change: bool = False
) -> Iterator[JobFolder]:
    """Open, resume or begin ``OUT.incomplete`` and hold its lock.

    Raises:
        OutputExistsError: ``OUT.incomplete`` holds something that embedkit did not make.
        LockedError: another process is at it.
        MismatchError: an unfinished job with other input, model, settings or environment is there.
        StorageError: the file system refused.
    """
    layout = unfinished(out)
    _refuse_foreign(layout.root)
    fsio.make_folder(layout.root)
    with fsio.exclusive(layout.root):
        if layout.job.is_file():
            _check_same(layout, job, overwrite=overwrite, allow_env_change=allow_env_change)
        for folder in (layout.private, layout.scratch, layout.root / "sentences"):
            fsio.make_folder(folder)
        for leftover in layout.scratch.iterdir():
            fsio.remove_file(leftover)
        if not layout.job.is_file():
            fsio.write_durably(layout.job, job.to_bytes(), scratch=layout.scratch)
        yield JobFolder(layout, out, job, overwrite=overwrite)


class JobFolder:
    """A job under way. Several threads may check and commit shards, each its own."""

    def __init__(self, layout: Layout, out: Path, job: Job, *, overwrite: bool) -> None:
        self.layout, self._out, self._job, self._overwrite = layout, out, job, overwrite
        self._files: dict[str, FileEntry] = {}
        self._made_in: dict[int, str] = {}  # environment, as JSON, by shard

    def finished(self, number: int) -> Footer | None:
        """The footer of a shard that is there, whole and of this job; ``None`` to make it."""
        path = self.layout.shard_file("sentences", number)
        try:
            digest = self._recorded_digest(number)
            if fsio.file_sha256(path) != digest:
                return None
            footer = read_footer(path)
            whole = (
                (footer.fingerprint, footer.shard) == (self._job.fingerprint, number)
                and "text_key" in pq.read_schema(path).names  # earlier versions wrote none
                and all(
                    fsio.file_sha256(self.layout.shard_file(folder, number)) == expected
                    for folder, expected in footer.companions.items()
                )
            )
        except (ValueError, OSError, pa.ArrowException):
            return None
        if not whole:
            return None
        self._note(number, footer, {"sentences": digest, **footer.companions})
        return footer

    def commit(
        self, number: int, footer: Footer, sentences: pa.Buffer, others: Mapping[str, pa.Buffer]
    ) -> None:
        """Make one shard durable. Its sentence file comes last and makes it count.

        The file's hash is written before it: the footer vouches for the other tables of the shard,
        but no file can vouch for all of its own bytes.
        """
        for folder, data in others.items():
            fsio.make_folder(self.layout.root / folder)
            self._write(folder, number, data)
        digest = hashlib.sha256(memoryview(sentences)).hexdigest()
        fsio.make_folder(self.layout.digests)
        fsio.write_durably(self.layout.digest(number), digest.encode(), scratch=self.layout.scratch)
        self._write("sentences", number, sentences)
        self._note(number, footer, {"sentences": digest, **footer.companions})

    def finish(self, *, n_shards: int, totals: Totals, names: Names) -> Manifest:
        """Write the manifest and give the folder its final name.

        Raises:
            DamagedError: the folders of shards hold files that are not of this job.
            OutputExistsError: something came to stand in the way while the job ran.
        """
        self._refuse_extra_files(n_shards)
        environments: dict[str, list[int]] = {}
        for number, environment in sorted(self._made_in.items()):
            environments.setdefault(environment, []).append(number)
        manifest = Manifest(
            fingerprint=self._job.fingerprint, job=self._job.settings,
            environments=tuple(
                EnvironmentShards(json.loads(environment), tuple(shards))
                for environment, shards in environments.items()
            ),
            totals=totals, files=self._files, names=names,
        )  # fmt: skip
        fsio.write_durably(self.layout.manifest, manifest.to_bytes(), scratch=self.layout.scratch)
        for folder in (self.layout.digests, self.layout.scratch):
            fsio.remove_tree(folder)  # the manifest has all hashes now
        if not _is_free(self._out) and not self._overwrite:
            raise OutputExistsError(
                f"{self._out} came into being while the job ran. Move it away and run the same "
                f"command again: the result is kept in {self.layout.root}."
            )
        publish(self.layout.root, self._out, private=REPLACING)
        return manifest

    def _write(self, folder: str, number: int, data: pa.Buffer) -> None:
        path = self.layout.shard_file(folder, number)
        fsio.write_durably(path, memoryview(data), scratch=self.layout.scratch)

    def _recorded_digest(self, number: int) -> str:
        """What the sentence file of a shard must hash to.

        Raises:
            OSError: nothing was recorded.
        """
        if self.layout.manifest.is_file():  # the hashes may be gone: it was about to be renamed
            name = f"sentences/{self.layout.shard_file('sentences', number).name}"
            if entry := read_manifest(self.layout.root).files.get(name):
                return entry.sha256
        return self.layout.digest(number).read_text("ascii")

    def _note(self, number: int, footer: Footer, digests: Mapping[str, str]) -> None:
        for folder, digest in digests.items():
            path = self.layout.shard_file(folder, number)
            end = footer_bytes(path)
            self._files[f"{folder}/{path.name}"] = FileEntry(
                pq.read_metadata(pa.BufferReader(end)).num_rows, path.stat().st_size, digest,
                FooterEntry(len(end), hashlib.sha256(end).hexdigest()),
            )  # fmt: skip
        self._made_in[number] = json.dumps(footer.job["environment"], sort_keys=True)

    def _refuse_extra_files(self, n_shards: int) -> None:
        """Whatever else lies among the shards, readers that open the folder would take for one."""
        for folder in TABLES:
            for name in self.layout.content(folder):
                if f"{folder}/{name}" not in self._files:
                    raise DamagedError(
                        f"{self.layout.root / folder / name} does not belong to this job of "
                        f"{n_shards} shards. Move it away and run the same command again."
                    )


def _check_same(layout: Layout, job: Job, *, overwrite: bool, allow_env_change: bool) -> None:
    known = _known(layout)
    settings = difference(known.get("settings", {}), job.settings.as_dict())
    environment = difference(known.get("environment", {}), job.environment)
    if (settings or environment) and (overwrite or _holds_nothing(layout)):
        _discard(layout)
    elif settings:
        raise MismatchError(
            f"{layout.root} was begun with other input, model or settings. Repeat the earlier "
            "command to finish it, pass another out=, or start over with overwrite=True. "
            f"It differs in:\n{settings}"
        )
    elif environment and not allow_env_change:
        raise MismatchError(
            f"{layout.root} was begun in another environment; the remaining vectors could differ "
            "from the finished ones in their last bits. Go on all the same with "
            "allow_env_change=True (recorded in the manifest), or start over with overwrite=True. "
            f"It differs in:\n{environment}"
        )


def _known(layout: Layout) -> dict[str, Any]:
    """Settings and environment of the job that is there; nothing of one that cannot be read."""
    try:
        known = json.loads(layout.job.read_text("utf-8"))
    except ValueError:
        return {}
    return known if isinstance(known, dict) else {}


def _holds_nothing(layout: Layout) -> bool:
    """Whether the job ended before its first shard, so that there is nothing to mix or to lose."""
    folders = [layout.root / name for name in TABLES]
    return not any(any(folder.iterdir()) for folder in folders if folder.is_dir())


def _discard(layout: Layout) -> None:
    for folder in (*(layout.root / name for name in TABLES), layout.digests):
        fsio.remove_tree(folder)
    for file in (layout.manifest, layout.rejects, layout.job):
        fsio.remove_file(file)


def unfinished(out: Path) -> Layout:
    """Where the dataset is until it is complete."""
    return Layout(incomplete(out))


def _is_free(out: Path) -> bool:
    """Whether nothing stands at ``out``, or an empty folder.

    Raises:
        OutputExistsError: what stands there must not be replaced whatever the user says.
    """
    if not os.path.lexists(out) or (
        out.is_dir() and not out.is_symlink() and not any(out.iterdir())
    ):
        return True
    if out.is_symlink():
        raise OutputExistsError(
            f"{out} is a symbolic link, which is never replaced. Give the folder itself, "
            f"out='{out.resolve()}', or another one."
        )
    if not is_dataset(out):
        raise OutputExistsError(
            f"{out} is in the way, and it is not a dataset of embedkit, so it is never replaced. "
            "Pass another out=."
        )
    return False


def _refuse_foreign(root: Path) -> None:
    """Raise if ``OUT.incomplete`` is not a folder of embedkit's own making."""
    foreign: list[str] = []
    if root.is_symlink() or (root.exists() and not root.is_dir()):
        foreign = ["it"]
    elif root.is_dir():
        foreign = sorted({p.name for p in root.iterdir()} - {"_embedkit", *TABLES})
    if foreign:
        raise OutputExistsError(
            f"{root} is where the unfinished job goes, but {foreign[0]} was not made by embedkit. "
            "Move it away, or pass another out=."
        )


def _canonical(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, indent=1).encode()


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Fields that differ, one a line, with both values."""
    old, new = dict(_flat(before)), dict(_flat(now))
    lines = [
        f"  {key}: {_short(old.get(key))} there, {_short(new.get(key))} now"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    return "\n".join(lines)


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(v, Mapping) for v in value):
        for i, inner in enumerate(value):
            yield from _flat(inner, f"{prefix}[{i}]")
    else:
        yield prefix, list(value) if isinstance(value, tuple) else value


def _short(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"
