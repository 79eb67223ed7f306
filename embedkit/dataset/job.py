"""The folder of a job: identity, plan, lock, finished shards; and what an existing output means.

    _embedkit/job.json           settings and environment
    _embedkit/shards.parquet     where each shard begins in the corpus, and the counts of the corpus
    _embedkit/scratch/receipts/  one file for each finished shard, written after its files

A shard counts as finished if its files have the size in its receipt and the footer of this job; all
others are made again, also those of a complete dataset that was damaged.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from embedkit import storage
from embedkit.corpus import CorpusPlan, CorpusReader, Place, ReadCounts, Record, Reject
from embedkit.dataset.format import (
    REPLACING,
    TABLES,
    EnvironmentShards,
    FileEntry,
    JobSettings,
    Layout,
    Manifest,
    Names,
    Receipt,
    Totals,
    canonical_json,
    is_dataset,
    read_footer,
)
from embedkit.errors import CorpusError, DamagedError, MismatchError, OutputExistsError
from embedkit.storage import (
    decode,
    differing_files,
    file_sums,
    finish_swap,
    incomplete,
    publish,
    read_json,
)
from embedkit.types import Progress, ProgressCallback

logger = logging.getLogger(__name__)

_COUNTS = b"embedkit.counts"
_REPORTED = 5_000


@dataclass(frozen=True, slots=True)
class Job:
    """Identity of a dataset: its settings, and versions, device and a hash of its arithmetic."""

    settings: JobSettings
    environment: dict[str, Any]


def already_complete(out: Path, job: Job, *, overwrite: bool) -> bool:
    """Whether ``out`` holds exactly this dataset, undamaged.

    All files are compared with ``SHA256SUMS``. A dataset of the same job with damaged files becomes
    ``OUT.incomplete`` again, where the job makes them anew.
    """
    finish_swap(out, is_dataset, private=REPLACING)
    if _is_free(out) or overwrite:
        return False
    try:
        damaged = differing_files(out, file_sums(out))
    except DamagedError as error:
        damaged = {"SHA256SUMS": str(error)}
    known, environment = _known(Layout(out), damaged)
    if differences := difference(known, asdict(job.settings)):
        raise OutputExistsError(
            f"{out} already exists with different settings. Pass another out=, or replace it with "
            f"overwrite=True. It differs in:\n{differences}"
        )
    if damaged:
        _reopen(out, damaged, Job(job.settings, environment or job.environment))
    return not damaged


def _reopen(out: Path, damaged: Mapping[str, str], job: Job) -> None:
    """Rename a damaged dataset to ``OUT.incomplete``, with receipts for its undamaged shards."""
    layout = Layout(out)
    shown = "; ".join(list(damaged.values())[:3])
    logger.warning(f"{len(damaged)} damaged files of {out} are made again: {shown}")
    with storage.exclusive(out):
        if os.path.lexists(incomplete(out)):
            raise OutputExistsError(
                f"{incomplete(out)} is in the way: the dataset goes there until its damaged files "
                "are made again. Move it away."
            )
        names = {str(file.relative_to(out)): file for file in (layout.rejects, layout.shards)}
        if damaged.keys() & names.keys():
            storage.remove_file(layout.shards)  # so that the corpus is planned again
        storage.make_folder(layout.receipts)
        storage.write_durably(layout.job, canonical_json(asdict(job)), scratch=layout.scratch)
        kept = JobFolder(layout, job)
        sums = {n: d for n, d in file_sums(out, torn=True).items() if n not in damaged}
        for number in range(len(layout.shard_files("sentences"))):
            with suppress(KeyError, ValueError, OSError):
                kept.write_receipt(number, {n: sums[n] for n in kept.names(number)})
        storage.publish_folder(out, incomplete(out))


def existing_output(out: Path, job: Job, *, overwrite: bool) -> str:
    """Describe existing output for ``--dry-run``; empty if there is none. Writes nothing."""
    layout = Layout(incomplete(out))
    try:
        free = _is_free(out)
        _refuse_foreign(layout.root)
    except OutputExistsError as error:
        return str(error)
    if not free:
        layout = Layout(out)
    elif not (layout.job.is_file() and not _holds_nothing(layout)):
        return ""
    kept = len(layout.shard_files("sentences"))
    if difference(_known(layout)[0], asdict(job.settings)):
        return f"{layout.root} has other settings; it is replaced only with overwrite=True"
    if overwrite and not free:
        return f"{out} is complete, and would be replaced"
    return f"{layout.root} has {kept} finished shards of this job, which would be kept"


def recorded_precision(out: Path) -> str:
    """The precision of an existing dataset at ``out``, complete or not; else ``auto``.

    A precision chosen by timing may differ the next time; the existing job decides.
    """
    known = _known(Layout(out))[0] or _known(Layout(incomplete(out)))[0]
    return str(known.get("vectors", {}).get("precision", "auto"))


@contextmanager
def open_job(
    out: Path,
    job: Job,
    *,
    overwrite: bool = False,
    allow_env_change: bool = False,
    shared: bool = False,
) -> Iterator[JobFolder]:
    """Begin or resume ``OUT.incomplete`` and hold its lock, which ``shared`` processes share."""
    layout = Layout(incomplete(out))
    _refuse_foreign(layout.root)
    storage.make_folder(layout.root)
    with storage.exclusive(layout.root, shared=shared):
        storage.make_folder(layout.private)
        with storage.exclusive(layout.private, wait=True):
            if layout.job.is_file():
                _check_same(layout, job, overwrite=overwrite, allow_env_change=allow_env_change)
            for folder in (layout.receipts, layout.root / "sentences"):
                storage.make_folder(folder)
            if not layout.job.is_file():
                content = canonical_json(asdict(job))
                storage.write_durably(layout.job, content, scratch=layout.scratch)
        yield JobFolder(layout, job)


def recorded_inputs(out: Path) -> dict[str, str]:
    """SHA-256 of the input files of an unfinished job, by path, size and time of change."""
    with suppress(OSError, ValueError, TypeError):
        return dict(json.loads(Layout(incomplete(out)).inputs.read_text("utf-8")))
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRange(Place):
    """The records of a shard: where the first one begins; -1 stands for no record.

    ``rejected`` are the rejects since the shard before it.
    """

    number: int
    last_row: int
    rows: int
    rejected: int


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """All shards of a corpus in order, and the counts of the corpus."""

    ranges: list[ShardRange]
    counts: ReadCounts

    def totals(self, receipts: Sequence[Receipt]) -> Totals:
        """Counts of the corpus and of its finished shards."""
        counts, ledger = self.counts, Counter[str]()
        for receipt in receipts:
            ledger.update(receipt.ledger)
        return Totals(
            records=counts.records,
            accepted=counts.accepted,
            rejected=counts.n_rejected,
            rejected_by_reason=dict(sorted(counts.rejected.items())),
            left_out=sum(counts.left_out.values()),
            left_out_by_reason=dict(sorted(counts.left_out.items())),
            blank_lines=counts.blank_lines,
            fields_with_quotes=counts.fields_with_quotes,
            fields_csv_quoted=counts.fields_csv_quoted,
            ledger=dict(ledger),
        )


class JobFolder:
    """The folder of a job. Threads and processes may commit shards, each its own."""

    def __init__(self, layout: Layout, job: Job) -> None:
        self.layout, self.job = layout, job
        vectors = job.settings.vectors
        asked = {"words": vectors.words is not None, "tokens": vectors.tokens, "sentences": True}
        self._tables = [name for name, wanted in asked.items() if wanted]

    def plan(self, corpus: CorpusPlan, progress: ProgressCallback) -> ShardPlan:
        """The plan of the shards; the first process reads the corpus for it, others wait."""
        with storage.exclusive(self.layout.private, wait=True):
            with suppress(DamagedError):
                return self.read_plan()
            self._plan_shards(corpus, progress)
            return self.read_plan()

    def read_plan(self) -> ShardPlan:
        """Read the plan of the shards; a :class:`DamagedError` if there is none."""
        table = storage.read_table(self.layout.shards)
        counts = json.loads((table.schema.metadata or {})[_COUNTS])
        typed: dict[str, Any] = {
            k: Counter(v) if isinstance(v, dict) else v for k, v in counts.items()
        }
        return ShardPlan([ShardRange(**row) for row in table.to_pylist()], ReadCounts(**typed))

    def _plan_shards(self, corpus: CorpusPlan, progress: ProgressCallback) -> None:
        """Read the corpus once: write its rejects, and where each shard begins."""
        layout, rows = self.layout, self.job.settings.storage.shard_rows
        known = canonical_json({file.key: file.sha256 for file in corpus.files})
        storage.write_durably(layout.inputs, known, scratch=layout.scratch)
        reader, partial = CorpusReader(corpus), layout.scratch / "rejects.partial"
        ranges: list[dict[str, int | None]] = []
        rejected = 0
        with (
            storage.storage_errors(layout.rejects),
            partial.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as sink,
        ):
            for number, item in enumerate(reader):
                if number % _REPORTED == 0:
                    progress(Progress("reading", round(100 * reader.fraction), 100, "%"))
                if isinstance(item, Reject):
                    sink.write(item.to_json() + "\n")
                    rejected += 1
                    continue
                if not ranges or ranges[-1]["rows"] == rows:
                    begin = item.row, item.row - reader.first_row, item.line, item.offset
                    ranges.append(_range(len(ranges), item.file, *begin, rejected))
                    rejected = 0
                ranges[-1] |= {"last_row": item.row, "rows": (ranges[-1]["rows"] or 0) + 1}
        for file in corpus.files:
            file.check_unchanged()
        storage.publish_file(partial, layout.rejects)
        table = pa.Table.from_pylist(ranges or [_range(0, 0, -1, -1, None, None, rejected)], _INDEX)
        counts = {field.name: getattr(reader.counts, field.name) for field in fields(ReadCounts)}
        table = table.replace_schema_metadata({_COUNTS: canonical_json(counts)})
        storage.write_parquet(layout.shards, table)

    def names(self, number: int) -> list[str]:
        """Names of the files of a shard, the sentences last."""
        part = self.layout.shard_file("sentences", number).name
        return [f"{table}/{part}" for table in self._tables]

    def finished(self, number: int) -> Receipt | None:
        """The receipt of a shard that is complete; ``None`` if it must be made."""
        file = self.layout.receipt(number)
        try:
            receipt = decode(Receipt, read_json(file), file=file)
            for name, entry in receipt.files.items():
                path = self.layout.root / name
                if path.stat().st_size != entry.bytes or not self._is_ours(number, path):
                    return None
        except (DamagedError, ValueError, OSError):
            return None
        return receipt

    def _is_ours(self, number: int, path: Path) -> bool:
        footer = read_footer(path)
        return (footer.fingerprint, footer.shard) == (self.job.settings.fingerprint, number)

    def commit(self, number: int, files: Mapping[str, pa.Buffer]) -> Receipt:
        """Make the tables of one shard durable; its receipt is written last."""
        sums = {}
        for table, data in files.items():
            path = self.layout.shard_file(table, number)
            sums[f"{table}/{path.name}"] = hashlib.sha256(data).hexdigest()
            storage.make_folder(path.parent)
            storage.write_durably(path, memoryview(data), scratch=self.layout.scratch)
        return self.write_receipt(number, sums)

    def write_receipt(self, number: int, sums: Mapping[str, str]) -> Receipt:
        """Record a shard as finished, whose files have these SHA-256."""
        footers = {name: read_footer(self.layout.root / name) for name in sums}
        sentences = footers[self.names(number)[-1]]
        receipt = Receipt(
            shard=number,
            files={
                name: FileEntry(footer.rows, (self.layout.root / name).stat().st_size)
                for name, footer in footers.items()
            },
            sha256=dict(sums),
            ledger=dict(sentences.ledger),
            environment=sentences.job["environment"],
        )
        content = canonical_json(asdict(receipt))
        storage.write_durably(self.layout.receipt(number), content, scratch=self.layout.scratch)
        return receipt

    def finish(
        self,
        receipts: Sequence[Receipt],
        out: Path,
        *,
        totals: Totals,
        names: Names,
        overwrite: bool = False,
    ) -> Manifest:
        """Write manifest and ``SHA256SUMS``, and give the folder its final name."""
        layout, settings = self.layout, self.job.settings
        files = {name: entry for receipt in receipts for name, entry in receipt.files.items()}
        sums = {name: digest for receipt in receipts for name, digest in receipt.sha256.items()}
        for folder in TABLES:
            for name in layout.content(folder):  # readers would take them for shards
                if f"{folder}/{name}" not in files:
                    raise DamagedError(
                        f"{layout.root / folder / name} does not belong to this job of "
                        f"{len(receipts)} shards. Move it away and run the same command again."
                    )
        shards_of: dict[str, list[int]] = {}
        for receipt in receipts:
            environment = json.dumps(receipt.environment, sort_keys=True)
            shards_of.setdefault(environment, []).append(receipt.shard)
        manifest = Manifest(
            fingerprint=settings.fingerprint,
            job=settings,
            environments=tuple(
                EnvironmentShards(json.loads(environment), tuple(shards))
                for environment, shards in shards_of.items()
            ),
            totals=totals,
            files=files,
            names=names,
        )
        content = canonical_json(asdict(manifest)) + b"\n"
        storage.write_durably(layout.manifest, content, scratch=layout.scratch)
        for file in (layout.manifest, layout.job, layout.rejects, layout.shards):
            if file.is_file():
                sums[file.relative_to(layout.root).as_posix()] = storage.file_sha256(file)
        storage.write_sums(layout.root, sums, scratch=layout.scratch)
        if not _is_free(out) and not overwrite:
            raise OutputExistsError(
                f"{out} was created by another process during the job. Move it away and run "
                f"the same command again: the result is kept in {layout.root}."
            )
        storage.remove_tree(layout.scratch)
        publish(layout.root, out, private=REPLACING)
        return manifest


_INDEX = pa.schema([(field.name, pa.int64()) for field in fields(ShardRange)])


def _range(*values: int | None) -> dict[str, int | None]:
    """A range without records, from its first seven fields."""
    names = ("number", "file", "row", "file_row", "line", "offset", "rejected")
    return dict(zip(names, values, strict=True)) | {"last_row": -1, "rows": 0}


class ShardReader:
    """Reads the records of shards; in ascending order it unpacks a packed file once."""

    def __init__(self, corpus: CorpusPlan) -> None:
        self._corpus, self._reader = corpus, CorpusReader(corpus)
        self._items: Iterator[Record | Reject] = iter(())
        self._next = self._file = -1  # row after the last one that was read, and its file

    def read(self, shard: ShardRange) -> list[Record]:
        """The records of a shard; a :class:`CorpusError` if the corpus has changed."""
        for file in self._corpus.files:
            file.check_unchanged()
        ahead = self._reader.from_start and shard.file == self._file and shard.row > self._next
        if shard.row != self._next and not ahead:
            self._reader = CorpusReader(self._corpus, shard)
            self._items = iter(self._reader)
        records = (r for r in self._items if isinstance(r, Record) and r.row >= shard.row)
        read = list(islice(records, shard.rows))
        last = read[-1].row if read else -1
        if (len(read), last) != (shard.rows, shard.last_row):
            raise CorpusError(
                f"shard {shard.number} has {len(read)} records up to row {last}, expected "
                f"{shard.rows} up to {shard.last_row}: the corpus is not as it was planned. Start "
                "over with overwrite=True."
            )
        self._next, self._file = last + 1, read[-1].file if read else -1
        return read


def _check_same(layout: Layout, job: Job, *, overwrite: bool, allow_env_change: bool) -> None:
    recorded = _known(layout)
    settings = difference(recorded[0], asdict(job.settings))
    environment = difference(recorded[1], job.environment)
    if (settings or environment) and (overwrite or _holds_nothing(layout)):
        storage.empty_folder(layout.root)
    elif settings:
        raise MismatchError(
            f"{layout.root} is an unfinished job with other input, model or settings. Repeat the "
            "earlier command to finish it, pass another out=, or start over with overwrite=True. "
            f"It differs in:\n{settings}"
        )
    elif environment and not allow_env_change:
        raise MismatchError(
            f"{layout.root} is an unfinished job of another environment; the remaining vectors "
            "could differ from the finished ones in their last bits. Continue anyway with "
            "allow_env_change=True (recorded in the manifest), or start over with overwrite=True. "
            f"It differs in:\n{environment}"
        )


def _known(layout: Layout, damaged: Collection[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and first environment of a job, from a file that is not damaged; else empty."""
    for file, field in ((layout.job, "settings"), (layout.manifest, "job")):
        if file.relative_to(layout.root).as_posix() not in damaged:
            with suppress(OSError, ValueError, LookupError, TypeError):
                content = json.loads(file.read_text("utf-8"))
                first = content if field == "settings" else content["environments"][0]
                return dict(content[field]), dict(first["environment"])
    return {}, {}


def _holds_nothing(layout: Layout) -> bool:
    """Whether the job ended before its first shard."""
    folders = [layout.root / name for name in TABLES]
    return not any(any(folder.iterdir()) for folder in folders if folder.is_dir())


def _is_free(out: Path) -> bool:
    """Whether ``out`` does not exist, or is an empty folder; an error if it is never replaced."""
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
            f"{out} exists and is not a dataset of embedkit, so it is never replaced. Pass another "
            "out=."
        )
    return False


def _refuse_foreign(root: Path) -> None:
    """Raise if ``OUT.incomplete`` holds something that embedkit did not make."""
    foreign: list[str] = []
    if root.is_symlink() or (root.exists() and not root.is_dir()):
        foreign = ["it"]
    elif root.is_dir():
        foreign = sorted({p.name for p in root.iterdir()} - {"_embedkit", "SHA256SUMS", *TABLES})
    if foreign:
        raise OutputExistsError(
            f"{root} is the folder of the unfinished job, but {foreign[0]} was not made by "
            "embedkit. Move it away, or pass another out=."
        )


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Fields that differ, one a line, with both values."""
    old, new = dict(_flat(before)), dict(_flat(now))

    def short(value: Any) -> str:
        text = "nothing" if value is None else json.dumps(value, ensure_ascii=False)
        return text if len(text) <= 60 else text[:57] + "…"

    lines = [
        f"  {key}: {short(old.get(key))} there, {short(new.get(key))} now"
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
