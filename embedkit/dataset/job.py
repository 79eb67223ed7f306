"""The folder of a job: identity, plan, lock, finished shards; and what an existing output means.

    _embedkit/job.json           settings and environment
    _embedkit/shards.parquet     where each shard begins in the corpus, and the counts of the corpus
    _unfinished/receipts/        one file for each finished shard, written after its files

A shard counts as finished if its files have the size and the footer that its receipt tells; all
others are made again, also those of a complete dataset that was damaged.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from embedkit import storage
from embedkit.corpus.plan import CorpusPlan
from embedkit.corpus.records import CorpusReader, ReadCounts, Record
from embedkit.corpus.tables import Reject, ShardRange
from embedkit.dataset.format import (
    TABLES,
    FileEntry,
    Layout,
    Manifest,
    Names,
    Receipt,
    Totals,
    is_dataset,
    unlisted_files,
)
from embedkit.dataset.info import card_of
from embedkit.dataset.parquet import footer_sha256, read_facts, read_table, write_parquet
from embedkit.dataset.reuse import source_of
from embedkit.dataset.settings import Job, difference
from embedkit.display import count_text
from embedkit.errors import (
    OVERWRITE,
    CorpusError,
    DamagedError,
    EmbedkitError,
    MismatchError,
    Option,
    OutputExistsError,
)
from embedkit.records import canonical_json, from_json, read_json, to_json
from embedkit.types import ProgressCallback

logger = logging.getLogger(__name__)

# key in the schema metadata of shards.parquet
_COUNTS = b"embedkit.counts"


def existing_output(out: Path, job: Job, *, overwrite: bool) -> str:
    """Describe existing output for ``--dry-run``; empty if there is none. Writes nothing.

    Options are marked in the text as for a :class:`~embedkit.errors.Message`.
    """
    layout = Layout(storage.incomplete(out))
    try:
        free = _is_free(out)
        _refuse_foreign(layout.root)
    except OutputExistsError as error:
        return format(error.message)
    if not free:
        layout = Layout(out)
    # an attempt that ended before its first shard binds nobody: the job is begun anew
    elif not (layout.job.is_file() and layout.parts()):
        return ""
    kept = sum(name.startswith("sentences/") for name in layout.parts())
    if difference(_stored(layout)[0], asdict(job.settings)):
        only = f"it is replaced only with {OVERWRITE}"
        return f"{layout.root} has other settings; {only}"
    if overwrite and not free:
        return f"{out} is complete, and would be replaced"
    shards = count_text(kept, "finished shard")
    return f"{layout.root} has {shards} of this job, which would be kept"


def recorded_precision(out: Path) -> str:
    """The precision of an existing dataset at ``out``, complete or not; else ``auto``.

    A precision chosen by timing may differ the next time; the existing job decides.
    """
    # a complete dataset comes first: a command that finds one compares itself with that one
    settings = _stored(Layout(out))[0] or _stored(Layout(storage.incomplete(out)))[0]
    return str(settings.get("vectors", {}).get("precision", "auto"))


ShardPlan = tuple[list[ShardRange], ReadCounts]
"""All shards of a corpus in order, and the counts of the corpus."""


def totals_of(counts: ReadCounts, receipts: Sequence[Receipt]) -> Totals:
    """Counts of the corpus and of its finished shards."""
    ledger = Counter[str]()
    for receipt in receipts:
        ledger.update(receipt.ledger)
    same = ("records", "accepted", "blank_lines", "fields_with_quotes", "fields_csv_quoted")
    return Totals(
        **{name: getattr(counts, name) for name in same},
        rejected=sum(counts.rejected.values()),
        rejected_by_reason=dict(sorted(counts.rejected.items())),
        left_out=sum(counts.left_out.values()),
        left_out_by_reason=dict(sorted(counts.left_out.items())),
        ledger=dict(ledger),
    )


def read_plan(layout: Layout) -> ShardPlan:
    """Read the plan of the shards; a :class:`DamagedError` if there is none."""
    table = read_table(layout.shards)
    with storage.reading(layout.shards, LookupError, ValueError, TypeError):
        counts = ReadCounts(**json.loads((table.schema.metadata or {})[_COUNTS]))
        return [ShardRange(**row) for row in table.to_pylist()], counts


def plan_shards(
    layout: Layout, corpus: CorpusPlan, rows: int, progress: ProgressCallback
) -> ShardPlan:
    """Read the corpus once: write its rejects, and return where each shard of ``rows`` begins."""
    reader, partial = CorpusReader(corpus), layout.scratch / "rejects.partial"
    ranges: list[dict[str, Any]] = []
    with (
        storage.storage_errors(layout.rejects),
        partial.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as sink,
    ):
        for item in reader.shown(progress):
            if isinstance(item, Reject):
                sink.write(item.to_json() + "\n")
                continue
            if not ranges or ranges[-1]["rows"] == rows:
                place = {name: getattr(item, name) for name in ("file", "row", "line", "offset")}
                # a shard remembers the byte where its first record begins, so that any process can
                # read it without reading what stands before it
                place |= {"file_row": item.row - reader.first_row}
                ranges.append(place | {"number": len(ranges), "rows": 0})
            # both numbers prove later that the corpus is still read as it was planned
            ranges[-1] |= {"last_row": item.row, "rows": ranges[-1]["rows"] + 1}
    # before the plan, by which the next process knows that all of this is done
    storage.rename(partial, layout.rejects)
    # a corpus without accepted records has one shard without rows, which holds the schema
    return [ShardRange(**shard) for shard in ranges or [{}]], reader.counts


def _receipt(root: Path, number: int, sums: Mapping[str, str]) -> Receipt:
    """The receipt of a shard whose files below ``root``, the sentences last, have these SHA-256.

    A ``ValueError`` if they are not those of one shard with this number.
    """
    files, tables = dict[str, FileEntry](), list[dict[str, Any]]()
    for name in sums:
        with (root / name).open("rb") as file:
            # size and footer, not the content: reading every byte again would make resuming as slow
            # as writing, and pages have checksums of their own
            tables.append(read_facts(file))
            size = os.fstat(file.fileno()).st_size
            files[name] = FileEntry(tables[-1]["rows"], size, footer_sha256(file.fileno()))
    # all tables of a shard are of one job and one number, or files were mixed
    sentences = tables[-1]
    if {(t["fingerprint"], t["shard"]) for t in tables} != {(sentences["fingerprint"], number)}:
        raise ValueError("its files belong to several shards, or to another one")
    return Receipt(
        shard=number,
        fingerprint=sentences["fingerprint"],
        files=files,
        sha256=dict(sums),
        ledger=sentences["ledger"],
        environment=sentences["job"]["environment"],
    )


_INDEX = pa.schema([(field.name, pa.int64()) for field in fields(ShardRange)])


class ShardReader:
    """Reads the records of shards; in ascending order it unpacks a packed file once."""

    def __init__(self, corpus: CorpusPlan) -> None:
        self._corpus, self._reader = corpus, CorpusReader(corpus)
        self._items: Iterator[Record | Reject] = iter(())
        self._next = self._file = -1  # row after the last one that was read, and its file

    def read(self, shard: ShardRange) -> list[Record]:
        """The records of a shard; a :class:`CorpusError` if the corpus has changed."""
        # before each shard: hours may lie between, and a dataset of two corpora must not come out
        self._corpus.check_unchanged()
        # a packed file can only be read from its start: a reader that has not passed the shard goes
        # on
        ahead = self._reader.from_start and shard.file == self._file and shard.row > self._next
        if shard.row != self._next and not ahead:
            self._reader = CorpusReader(self._corpus, shard)
            self._items = iter(self._reader)
        # the plan has written the rejects; rows before the shard had to be unpacked to come here
        records = (r for r in self._items if isinstance(r, Record) and r.row >= shard.row)
        read = list(islice(records, shard.rows))
        last = read[-1].row if read else -1
        if (len(read), last) != (shard.rows, shard.last_row):
            raise CorpusError(
                f"shard {shard.number} has {len(read)} records up to row {last}, expected "
                f"{shard.rows} up to {shard.last_row}. Start over with {OVERWRITE}."
            )
        self._next, self._file = last + 1, read[-1].file if read else -1
        return read


class JobFolder:
    """The folder of the job that makes ``out``.

    Threads and processes may commit shards, each its own. Where files of a dataset of this job are
    ``damaged``, it begins with the other shards of the dataset, which it replaces.
    """

    def __init__(
        self, out: Path, job: Job, *, overwrite: bool = False, any_environment: bool = False
    ) -> None:
        self.layout, self._out, self.job = Layout(storage.incomplete(out)), out, job
        self._overwrite, self._any_environment = overwrite, any_environment
        self._seen: storage.State = ()  # what stood at out when it was looked at
        # messages by name of the file; None if there is no dataset, or if it is to be replaced
        self._damaged: dict[str, str] | None = None

    def look(self) -> bool:
        """Look at what stands at ``out``; true if it is this dataset, and nothing is to be done.

        The files of a dataset are compared with ``SHA256SUMS``.
        """
        out = self._out
        # first, since a kill in a replacement may have left no output, or two
        storage.finish_swap(out, is_dataset)
        self._seen = storage.state_of(out)
        if _is_free(out) or self._overwrite:
            return False
        try:
            sums, damaged = storage.file_sums(out), dict[str, str]()
        except DamagedError as error:
            # the list itself is damaged: what its whole lines say of files still holds, and a file
            # without one is made again
            sums, damaged = storage.file_sums(out, torn=True), {storage.SUMS: str(error)}
        for name in unlisted_files(out, sums):
            if not _OURS.fullmatch(name):
                problem = f"{out / name} is not of this dataset, and readers would take it for a"
                remedy = f"Move it away, or replace all with {OVERWRITE}."
                raise OutputExistsError(f"{problem} part. {remedy}")
            # by the list, and not by its own name: what it says of the job still holds
            damaged.setdefault(storage.SUMS, f"{name} is not in {storage.SUMS}")
        damaged |= storage.differing_files(out, sums)
        if differences := difference(_stored(Layout(out), damaged)[0], asdict(self.job.settings)):
            grown: Option | str = ""
            # a corpus that has grown is the usual reason, and need not cost all of its texts again
            with suppress(EmbedkitError):  # reuse would be refused
                source_of(out, self.job, any_environment=self._any_environment)
                use = "which encodes only the texts that it lacks"
                grown = Option("reuse", out, before=" and ", after=f", {use}")
            raise OutputExistsError(
                f"{out} already exists with different settings. Pass another {Option('out')}, or "
                f"replace it with {OVERWRITE}{grown}. It differs in:\n{differences}"
            )
        if damaged:
            what, shown = count_text(len(damaged), "damaged file"), list(damaged.values())[:3]
            logger.warning(f"making {what} of {out} again: {'; '.join(shown)}")
        self._damaged = damaged
        return not damaged

    @contextmanager
    def opened(self, *, shared: bool = False) -> Iterator[None]:
        """Begin or resume ``OUT.incomplete`` with its lock, which ``shared`` processes share."""
        layout, out, job = self.layout, self._out, self.job
        # before the folder is made, so that a refused command leaves nothing behind
        if self._damaged is not None and not self._any_environment:
            before = _stored(Layout(out), self._damaged)[1]
            check_environment(out, before, job.environment)
        _refuse_foreign(layout.root)
        with storage.begun(out, lambda: storage.check_unchanged(out, self._seen), shared=shared):
            storage.make_folder(layout.private)
            # two locks: workers of one job share the first, which keeps other jobs out; whoever
            # begins the job holds the second for a moment, so that one of several processes writes
            # job.json
            with storage.exclusive(layout.private, wait=True):
                if layout.job.is_file():
                    self._check_same(shared=shared)
                elif len([*layout.root.iterdir()]) > 1 or any(layout.private.iterdir()):
                    # a kill while another job was being emptied: what is left belongs to none
                    storage.empty_folder(layout.root)
                # after the comparison, which may have emptied the folder, job.json included
                for folder in (layout.private, layout.receipts, layout.root / "sentences"):
                    storage.make_folder(folder)
                if not layout.job.is_file():
                    storage.write_durably(layout.job, to_json(job))
            yield

    def _check_same(self, *, shared: bool) -> None:
        """Raise if an unfinished job is another one, unless it may be thrown away."""
        root, (before, environment) = self.layout.root, _stored(self.layout)
        settings = difference(before, asdict(self.job.settings))
        # without overwrite nothing that cost time is thrown away, as a job that ended before its
        # first shard cost none, nor what other processes may work in
        discards = not shared and (self._overwrite or not self.layout.parts())
        if discards and (settings or difference(environment, self.job.environment)):
            storage.empty_folder(root)
        elif settings:
            remedy: Option | str = "delete it" if shared else f"start over with {OVERWRITE}"
            raise MismatchError(
                f"{root} is an unfinished job with other input, model or settings. Pass another "
                f"{Option('out')}, or {remedy}. It differs in:\n{settings}"
            )
        elif not self._any_environment:
            check_environment(root, environment, self.job.environment)

    def plan(self, corpus: CorpusPlan, progress: ProgressCallback) -> ShardPlan:
        """The plan of the shards; the first process reads the corpus for it, others wait."""
        with storage.exclusive(self.layout.private, wait=True):
            # a plan that is missing or torn is made again
            with suppress(DamagedError):
                return read_plan(self.layout)
            rows = self.job.settings.storage.shard_rows
            ranges, counts = plan_shards(self.layout, corpus, rows, progress)
            # before the plan is written: else a kill in between would leave a plan, and the
            # undamaged shards of the old dataset would all be encoded again
            if self._damaged is not None:
                self._take_over(self._damaged, ranges)
            table = pa.Table.from_pylist(list(map(asdict, ranges)), _INDEX)
            table = table.replace_schema_metadata({_COUNTS: canonical_json(vars(counts))})
            write_parquet(self.layout.shards, table)
            return ranges, counts

    def _take_over(self, damaged: Mapping[str, str], shards: Sequence[ShardRange]) -> None:
        """Link the undamaged shards of the dataset, if it still is one of this job."""
        old, sums = self._out, storage.file_sums(self._out, torn=True)
        for shard in shards:
            names = self.names(shard.number)
            # tables of a shard are made together, so that one damaged file costs all of them
            if damaged.keys() & names:
                continue
            with suppress(KeyError, FileNotFoundError, ValueError):  # a damaged one is made again
                receipt = _receipt(old, shard.number, {name: sums[name] for name in names})
                # another command may have replaced the dataset since it was compared
                if receipt.fingerprint == self.job.settings.fingerprint:
                    for name in names:
                        storage.link_file(old / name, self.layout.root / name)
                    self.write_receipt(receipt)
        storage.sync_tree(self.layout.root)

    def log(
        self, event: str, *, seconds: float = 0.0, shards_found: int = 0, tokens: int = 0
    ) -> None:
        """Add a line to the log of the job."""
        import torch

        entry = {
            "event": event,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": round(seconds, 3),
            "tokens_encoded": tokens,
            "shards_found": shards_found,
            # runs may differ in these without another result
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
        }
        with storage.storage_errors(self.layout.log), self.layout.log.open("a") as log:
            log.write(json.dumps(entry) + "\n")

    def names(self, number: int) -> list[str]:
        """Names of the files of a shard, the sentences last."""
        part = self.layout.shard_file("sentences", number).name
        # sentences last, here and wherever files are written: a shard that has them has the others
        # too
        return [f"{table}/{part}" for table in reversed(self.job.settings.vectors.tables)]

    def receipts(self) -> list[Receipt]:
        """The receipts of shards that are complete; all others must be made."""
        receipts: list[Receipt] = []
        for file in sorted(self.layout.receipts.glob("*.json")):
            with suppress(DamagedError, KeyError, ValueError, FileNotFoundError):
                receipt = from_json(Receipt, read_json(file), file=file)
                sums = {name: receipt.sha256[name] for name in self.names(receipt.shard)}
                # compared whole with what the files say now: a receipt alone proves nothing
                if receipt == _receipt(self.layout.root, receipt.shard, sums):
                    receipts.append(receipt)
        return receipts

    def commit(self, number: int, files: Mapping[str, pa.Buffer]) -> Receipt:
        """Make the tables of one shard durable; its receipt is written last."""
        sums = {}
        for table, data in files.items():
            path = self.layout.shard_file(table, number)
            # from the bytes in memory: nothing has to be read again for SHA256SUMS
            sums[f"{table}/{path.name}"] = hashlib.sha256(data).hexdigest()
            storage.make_folder(path.parent)
            storage.write_durably(path, memoryview(data))
        # size and footer, on the other hand, are read back from the file that was written
        receipt = _receipt(self.layout.root, number, sums)
        self.write_receipt(receipt)
        return receipt

    def write_receipt(self, receipt: Receipt) -> None:
        """Record a shard as finished; without a whole receipt it is made again."""
        file = self.layout.receipts / f"{receipt.shard:08d}.json"
        # neither synced nor renamed: a torn receipt is none, and costs one shard
        with storage.storage_errors(file):
            file.write_bytes(to_json(receipt))

    def finish(self, receipts: Sequence[Receipt], *, totals: Totals, names: Names) -> None:
        """Write manifest and ``SHA256SUMS``, and give the folder its final name."""
        layout, out, settings = self.layout, self._out, self.job.settings
        files = {name: entry for receipt in receipts for name, entry in receipt.files.items()}
        sums = {name: digest for receipt in receipts for name, digest in receipt.sha256.items()}
        for name in layout.parts():  # readers would take them for shards
            if name not in files:
                path = layout.root / name
                raise DamagedError(f"{path} is not a shard of this job. Move it away.")
        shards_of: dict[str, list[int]] = {}
        # workers end in any order; the manifest does not tell which
        for receipt in sorted(receipts, key=lambda receipt: receipt.shard):
            # as text, by which equal environments are found; shards of several are possible with
            # allow_env_change
            environment = json.dumps(receipt.environment, sort_keys=True)
            shards_of.setdefault(environment, []).append(receipt.shard)
        manifest = Manifest(
            fingerprint=settings.fingerprint,
            job=settings,
            environments=tuple(
                {"environment": json.loads(environment), "shards": tuple(shards)}
                for environment, shards in shards_of.items()
            ),
            totals=totals,
            files=files,
            names=names,
        )
        # the folder is no dataset before it has a manifest, and that is written when all shards are
        # there
        storage.write_durably(layout.manifest, to_json(manifest) + b"\n")
        card, text = layout.root / storage.CARD, card_of(manifest).encode()
        if self._damaged is not None and (out / storage.CARD).is_file():
            text = (out / storage.CARD).read_bytes()  # its owner's to edit
        storage.write_durably(card, text)
        # the log is not listed: it is appended to, and differs between equal jobs
        for file in (card, layout.manifest, layout.job, layout.rejects, layout.shards):
            if file.is_file():
                sums[file.relative_to(layout.root).as_posix()] = storage.file_sha256(file)
        storage.write_sums(layout.root, sums)
        # from here on nobody can add an index to the old dataset, so none is lost
        with storage.replacing(out, self._seen):
            if self._damaged is not None:
                storage.link_tree(Layout(out).index, layout.index)
                # shards of a table that the dataset has not, which would move along
                for table in TABLES:
                    if (out / table).is_dir() and not (layout.root / table).exists():
                        storage.remove(out / table)
            storage.publish(layout.root, out, repair=self._damaged is not None)


_OURS = re.compile(r"_embedkit/.*|\w+/part-\d{8}\.parquet")


def check_environment(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise a :class:`MismatchError` if versions, device or arithmetic differ."""
    if environment := difference(before, now):
        raise MismatchError(
            f"{path} was begun in another environment, whose bits could differ. Start over with "
            f"{OVERWRITE}, or continue in Python with {Option('allow_env_change', True)}. "
            f"Differences:\n{environment}"
        )


def _stored(layout: Layout, damaged: Collection[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and first environment of a job, from a file that is not damaged; else empty."""
    # job.json is there from the beginning, the manifest at the end: either may be damaged
    for file, part in ((layout.job, "settings"), (layout.manifest, "job")):
        if file.relative_to(layout.root).as_posix() not in damaged:
            # any content: the file may be torn, or not be of embedkit
            with suppress(OSError, ValueError, LookupError, TypeError):
                content = json.loads(file.read_text("utf-8"))
                first = content if part == "settings" else content["environments"][0]
                return dict(content[part]), dict(first["environment"])
    return {}, {}


def _is_free(out: Path) -> bool:
    """True if ``out`` does not exist, or is an empty folder; an error if it is never replaced."""
    # lexists: a link that leads nowhere is not free either
    if not os.path.lexists(out) or (
        out.is_dir() and not out.is_symlink() and not any(out.iterdir())
    ):
        return True
    if out.is_symlink():
        raise OutputExistsError(
            f"{out} is a symbolic link, which is never replaced. Pass "
            f"{Option('out', out.resolve())}."
        )
    if not is_dataset(out):
        raise OutputExistsError(
            f"{out} is not a dataset, and stays as it is. Pass another {Option('out')}."
        )
    return False


def _refuse_foreign(root: Path) -> None:
    """Raise if ``OUT.incomplete`` holds something that embedkit did not make."""
    foreign = [root] if os.path.lexists(root) else []
    if root.is_dir() and not root.is_symlink():
        if (root / storage.UNFINISHED / "job.json").is_file():  # of finetune
            storage.refuse_unfinished(root, remedy="delete it")
        # whatever else is in there would become part of the dataset, or be deleted with it; a
        # killed process may have left a file half written
        names = {"_embedkit", storage.UNFINISHED, storage.SUMS, storage.CARD, *TABLES}
        foreign = [p for p in root.iterdir() if p.name not in names and p.suffix != ".partial"]
    if foreign:
        raise OutputExistsError(
            f"{root} is the folder of the unfinished job, but {min(foreign).name} was not made by "
            f"embedkit. Move it away, or pass another {Option('out')}."
        )
