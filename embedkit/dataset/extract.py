"""Extraction of a dataset from a corpus: :func:`extract`, its progress and its estimate.

    corpus, options ─ plan_extract ─► ExtractPlan ─┬─ run_plan ─► ExtractResult
      (nothing is written)                         └─ estimate ─► its cost

    run_plan:  what stands at OUT ─► OUT.incomplete, locked ─► ranges of the shards
                                       ─► those without a receipt are made ─► one rename

What can be wrong is found by the plan, before anything is written. What is made is known by
receipts alone, so that a first run, a resumed one, a repair and a part of several machines are the
same loop over the shards that have none. Who makes them is decided last: this process, workers of
this machine, or those of a cluster, which all call the same function.
"""

from __future__ import annotations

import heapq
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from embedkit import storage
from embedkit.arguments import accepts, divided
from embedkit.corpus.memory import CorpusLike
from embedkit.corpus.plan import CorpusOptions
from embedkit.corpus.records import CorpusReader, ReadCounts, Record
from embedkit.corpus.tables import ShardRange
from embedkit.dataset.format import MANIFEST, Manifest, Names, Receipt, Totals, read_manifest
from embedkit.dataset.job import JobFolder, ShardReader, totals_of
from embedkit.dataset.planning import plan_extract
from embedkit.dataset.reuse import OpenSource, reused_texts, source_of
from embedkit.dataset.settings import ExtractOptions, VectorIdentity
from embedkit.dataset.shards import ExtractPlan, Meter, ShardMaker, run_shard, run_shards
from embedkit.display import ShownFolder, count_text
from embedkit.encoding.tokenizer import note_if_spelled_out
from embedkit.encoding.views import view_ranges
from embedkit.encoding.windows import TokenizedTexts
from embedkit.errors import EncodeError
from embedkit.remote import upload
from embedkit.scale import ATTEMPTS, run_locally, run_on_ray
from embedkit.types import AnyPath, Progress, ProgressCallback, no_progress

logger = logging.getLogger(__name__)

# an estimate tokenizes so many texts, and encodes tokens for so many seconds, from texts of about
# so many tokens
_SAMPLE = 1_000
_LEAST_SECONDS = 2.0
_TIMED_TOKENS = 8_192
# given-up shards in a row after which the fault is not theirs
_LOST_IN_A_ROW = 5


@dataclass(frozen=True, slots=True, repr=False)
class ExtractResult(ShownFolder):
    """Result of :func:`extract`."""

    out: Path
    seconds: float  # wall time of this run
    tokens_fresh: int  # that this run encoded
    resumed_shards: int  # that an earlier run had finished
    was_complete: bool = False  # nothing was done
    missing_shards: int = 0  # of other parts
    is_part: bool = False  # nothing was published

    def __repr__(self) -> str:
        if self.is_part:  # what may be there is the one to be replaced
            return f"dataset {self.out}, {count_text(self.missing_shards, 'shard')} missing"
        manifest, views = self.manifest, view_ranges([row["view"] for row in self.as_rows()])
        read = manifest.job.input
        columns = f"text {read.text}, " + (f"label {read.label}" if read.label else "no label")
        records = count_text(manifest.totals.accepted, "record")
        return f"dataset {self.out}: {records}, {columns}; {views}"

    def as_rows(self) -> list[dict[str, Any]]:
        """Rows of its views."""
        views = {} if self.is_part else self.manifest.job.vectors.views
        return [{"view": name, "width": width} for name, width in views.items()]

    @property
    def manifest(self) -> Manifest:
        """Settings and totals of the dataset; a :class:`UsageError` if it is incomplete."""
        return read_manifest(self.out)


@accepts(CorpusOptions, ExtractOptions)
def extract(
    corpus: CorpusLike,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    reuse: AnyPath | Sequence[AnyPath] = (),
    allow_env_change: bool = False,
    progress: ProgressCallback = no_progress,
    **options: Any,
) -> ExtractResult:
    """Turn a corpus into a dataset of vectors; the same call resumes an interrupted job.

    A ``str`` or ``Path`` is a file, ``"-"`` standard input, a list of ``Path`` several files, read
    one after the other. Everything else is in memory: a list or iterator of ``str`` (texts) or of
    ``dict`` (records), a pandas or Polars DataFrame (an index is read if it has a name), an Arrow
    table or ``RecordBatchReader``, a Hugging Face ``Dataset``. It is first written to a temporary
    file (``TMPDIR`` names the folder), so rejects and vectors are those of the equal file. A list
    of ``str`` never names files. An interrupted job is resumed by an object of equal content; an
    iterator must be made anew to yield the same records again.

    The same call also makes damaged files of a complete dataset again; the other files are kept.

    Args:
        corpus: what to encode, see above.
        out: folder to make, or its address in an object store, such as ``s3://bucket/vectors``; by
            default ``corpus.tsv`` → ``corpus.vectors`` in the current folder. A corpus in memory
            has the name of its type, as ``dataframe.vectors``.
        overwrite: replace an existing dataset, or an unfinished one of other settings.
        reuse: datasets of the same model and settings, maybe ``out`` itself with ``overwrite``:
            texts that they have are not encoded again. The result is that of a fresh extraction.
        allow_env_change: resume although versions, device or the bits that it computes differ.
        progress: called after every batch, in tokens.
        **options: OPTIONS

    Returns:
        The folder, and what this call did: tokens that it encoded, shards that an earlier one had
        finished, shards that other parts still have to make. :func:`embedkit.load` reads it.

    Raises:
        UsageError: an option, column, layer or path cannot be used; nothing was written.
        EmbedkitError: see :mod:`embedkit.errors`; finished work is kept.

    Example:
        >>> result = embedkit.extract(["a text", "another"], out="two")
        >>> embedkit.load("two").X.shape
        (2, 384)
    """
    reading, settings = divided(options, CorpusOptions, ExtractOptions)
    with plan_extract(corpus, out=out, reading=reading, settings=settings) as plan:
        plan = replace(plan, any_environment=allow_env_change)
        return run_plan(plan, overwrite=overwrite, reuse=reuse, progress=progress)


def run_plan(
    plan: ExtractPlan,
    *,
    overwrite: bool = False,
    reuse: AnyPath | Sequence[AnyPath] = (),
    progress: ProgressCallback = no_progress,
) -> ExtractResult:
    """Carry out a plan; arguments and errors as for :func:`extract`."""
    folder = JobFolder(
        plan.out, plan.job, overwrite=overwrite, any_environment=plan.any_environment
    )
    # complete, undamaged, of these settings: nothing to do, but an interrupted upload goes on below
    if folder.look():
        result = ExtractResult(plan.out, 0.0, 0, 0, was_complete=True)
    else:
        paths = [reuse] if isinstance(reuse, str | os.PathLike) else reuse
        sources = [source_of(p, plan.job, any_environment=plan.any_environment) for p in paths]
        plan = replace(plan, reuse=tuple(sources))
        result = _make(plan, folder, progress)
    if plan.address:
        # job.json comes first and claims the place, the manifest last and makes it a dataset
        upload(result.out, plan.address, last=MANIFEST, replace=overwrite)
        logger.info(f"copied to {storage.without_secrets(plan.address)}")
    return result


def _make(plan: ExtractPlan, folder: JobFolder, progress: ProgressCallback) -> ExtractResult:
    """The dataset in its folder, or parts of it."""
    started = time.monotonic()
    options = plan.options
    with folder.opened(shared=options.part is not None):
        # the plan is read or made, and what earlier attempts finished is subtracted
        ranges, counts = folder.plan(plan.corpus, progress)
        folder.log("started")
        receipts = folder.receipts()
        done = {receipt.shard for receipt in receipts}
        todo = [shard for shard in ranges if shard.number not in done]
        if options.part is not None:
            index, count = options.part
            todo = [shard for shard in todo if shard.number % count == index]
        # on the first shard only, so that a corpus is warned of once, not by every part and attempt
        if todo and todo[0].number == 0:
            texts = [record.text for record in ShardReader(plan.corpus).read(todo[0])]
            note_if_spelled_out(plan.encoder.checkpoint, plan.encoder.tokenizer, texts)
        meter = Meter(counts.accepted, receipts, progress)
        try:
            # one worker is this process: no second copy of the model
            if options.engine == "local" and options.n_workers == 1:
                receipts += run_shards(ShardMaker(plan, folder), todo, meter)
            else:
                receipts += _by_workers(plan, todo, meter)
        except (KeyboardInterrupt, SystemExit):
            kept = count_text(len(folder.receipts()), "finished shard")
            rows = plan.job.settings.storage.shard_rows
            logger.warning(f"{kept} of {rows:,} records kept")
            raise
        # once more after the last shard, before anything is published
        plan.corpus.check_unchanged()
        seconds = time.monotonic() - started
        folder.log("finished", seconds=seconds, shards_found=len(done), tokens=meter.fresh)
        # parts leave the folder as it is: the call without part finds their receipts
        if options.part is None:
            totals = totals_of(counts, receipts)
            _warn(counts, totals)
            inputs = (file.name for file in plan.corpus.files)
            names = Names.of(plan.encoder.checkpoint, inputs=inputs)
            folder.finish(receipts, totals=totals, names=names)
    missing, is_part = len(ranges) - len(receipts), options.part is not None
    return ExtractResult(
        plan.out, seconds, meter.fresh, len(done), missing_shards=missing, is_part=is_part
    )


def _by_workers(plan: ExtractPlan, todo: Sequence[ShardRange], meter: Meter) -> list[Receipt]:
    """Make shards in other processes; an error at the end if some of them killed their workers."""
    options = plan.options
    workers = [plan.of_worker(i) for i in range(options.n_workers)]
    if options.engine == "ray":
        results = run_on_ray(
            run_shard,
            workers[0],
            todo,
            workers=options.n_workers,
            threads=plan.threads,
            address=options.address,
            gpus=options.gpus_per_worker,
        )
    else:
        results = run_locally(run_shard, workers, todo, threads=plan.threads)
    receipts, lost, in_a_row = list[Receipt](), list[str](), 0
    # ends the workers if this loop is left early
    with closing(results):
        for shard, result in results:
            # a bad shard is left out; several in a row suggest that none will fit into memory, and
            # each would cost all of its attempts
            in_a_row = in_a_row + 1 if result is None else 0
            if result is None:
                lost.append(f"shard {shard.number} (records {shard.row} to {shard.last_row})")
                logger.warning(f"{lost[-1]} ended {ATTEMPTS} worker processes and is left out")
            else:
                receipt, encoded = result
                receipts.append(receipt)
                ledger = receipt.ledger
                meter.start(shard.number, ledger["tokens_kept"], ledger["records"])
                meter.tokens(encoded)
            if in_a_row == _LOST_IN_A_ROW:
                break
    if lost:
        raise EncodeError(
            f"{', '.join(lost)}: each ended {ATTEMPTS} worker processes, perhaps for lack of "
            "memory. Finished shards are kept. Run the same command again with fewer workers."
        )
    return receipts


def _warn(counts: ReadCounts, totals: Totals) -> None:
    """Log what users should know of their corpus."""
    if totals.accepted == 0:
        logger.warning("no record was accepted: the dataset has no rows")
    for notice in counts.notices:
        logger.warning(notice)
    if spelled := totals.ledger.get("records_spelling_special_tokens"):
        logger.warning(f"{spelled} texts spell out special tokens such as [SEP], which act as such")


def estimate(
    plan: ExtractPlan, *, reuse: Sequence[AnyPath] = (), progress: ProgressCallback = no_progress
) -> dict[str, Any]:
    """Read the corpus, tokenize a sample, time the model on some of it. Writes nothing.

    Counts of records are exact, the rest is extrapolated from ``sampled`` texts; ``longer`` is the
    fraction of texts that are cut, or divided into windows. Texts that datasets to ``reuse`` have
    cost no time.
    """
    sources = [OpenSource(source_of(path, plan.job), plan.job.settings) for path in reuse]
    reader = CorpusReader(plan.corpus)
    # the same sample, and the same estimate, each time
    random = Random(0)

    def scalar_bytes(record: Record) -> int:  # of the columns that are not vectors
        cells = [record.id, record.label, *record.kept]
        if plan.job.settings.storage.text:
            cells += [record.text, record.text_pair]
        return sum(len(cell.encode()) for cell in cells if cell is not None) + 32

    # the records with the largest random numbers: an even sample of a stream of unknown length in
    # one pass, holding 1,000 of them. It comes in random order
    accepted = (item for item in reader.shown(progress) if isinstance(item, Record))
    sample = heapq.nlargest(_SAMPLE, accepted, key=lambda _: random.random())
    texts = plan.tokenized(sample, plan.encoder.tokenizer)
    n = max(len(sample), 1)
    new, _ = reused_texts(sources, sample, plan.folds_of(sample))
    counts = reader.counts
    kept = len(texts.ids)
    tokens = round(kept / n * counts.accepted)
    progress(Progress("timing the model", 0))
    # since the order is random, every n-th text is a sample again, of all lengths
    every = max(kept // _TIMED_TOKENS, 1)
    speed = _speed(plan, sample[::every], texts[::every]) if texts else float("inf")
    # words that have a token, as in the table
    words = sum(len(set(t.word[t.word >= 0].tolist())) for t in texts if t.word is not None)
    rows = {"sentences": counts.accepted, "words": round(words / n * counts.accepted)}
    sizes = _sizes(plan.vectors, rows | {"tokens": tokens})
    scalars = sum(map(scalar_bytes, sample)) / n * counts.accepted
    # about 12 bytes for the other columns of a token
    scalars += tokens * 12 * plan.vectors.tokens
    return {
        "records": counts.records,
        "accepted": counts.accepted,
        "rejected": dict(counts.rejected),
        "left_out": dict(counts.left_out),
        "tokens": tokens,
        # also where the rest is read in windows
        "longer": int((texts.n_tokens > plan.vectors.max_length).sum()) / n,
        "bytes_per_view": sizes,
        "bytes_total": sum(sizes.values()) + round(scalars),
        "free_bytes": storage.free_bytes(plan.out),
        "shards": max(-(-counts.accepted // plan.job.settings.storage.shard_rows), 1),
        "tokens_per_second": speed,
        # of the texts that have to be encoded
        "seconds": tokens / speed * len(new) / n,
        "sampled": len(sample),
        "notices": counts.notices,
    }


def _speed(plan: ExtractPlan, records: Sequence[Record], texts: TokenizedTexts) -> float:
    """Tokens per second of the real layers and views on the sample, over two seconds or more."""
    plan.start_shard(records, texts).result()  # warms up
    encoded, started = list[int](), time.perf_counter()
    while time.perf_counter() - started < _LEAST_SECONDS:
        plan.start_shard(records, texts, encoded.append).result()
    return sum(encoded) / (time.perf_counter() - started)


def _sizes(vectors: VectorIdentity, rows: Mapping[str, int]) -> dict[str, int]:
    """Bytes on disk of the vector columns of tables with so many rows."""
    # compact takes about 0.43 of float32
    per_float = {"float32": 4.0, "float16": 2.0, "compact": 1.75, "int8": 1.0}[vectors.storage]
    return {
        name if table == "sentences" else f"{table} {name}": round(rows[table] * width * per_float)
        for table in vectors.tables
        for name, width in vectors.columns_of(table).items()
    }
