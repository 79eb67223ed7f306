"""Extraction of a dataset from a corpus: :func:`extract`, its plan and its estimate."""

from __future__ import annotations

import heapq
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from embedkit import storage
from embedkit.arguments import accepts, divided
from embedkit.choices import Pooling
from embedkit.corpus.memory import CorpusLike, input_files, paths_of
from embedkit.corpus.plan import CorpusOptions, CorpusPlan, CorpusSettings, hash_inputs, plan_corpus
from embedkit.corpus.records import CorpusReader, Record
from embedkit.corpus.sources import PACKED_SUFFIXES
from embedkit.dataset.fold_models import (
    SeenRecords,
    find_fold_models,
    find_run_of,
    keys_of,
    load_encoder,
)
from embedkit.dataset.format import (
    FORMAT_VERSION,
    MANIFEST,
    RESERVED,
    ExtractSettings,
    InputSettings,
    JobSettings,
    Layout,
    Manifest,
    ModelSettings,
    Names,
    Receipt,
    SourceFile,
    StorageSettings,
    Totals,
    VectorChoices,
    VectorOptions,
    local_dataset,
    read_manifest,
    tokenizer_settings,
)
from embedkit.dataset.job import (
    Job,
    Repair,
    ShardPlan,
    ShardRange,
    ShardReader,
    existing_dataset,
    open_job,
    recorded_precision,
)
from embedkit.dataset.reuse import OpenSource, Source, known_texts
from embedkit.dataset.shards import ExtractPlan, ShardMaker, environment_of, run_shard, run_shards
from embedkit.display import ShownFolder, count_text
from embedkit.encoding.checkpoint import Checkpoint
from embedkit.encoding.tokenizer import TokenizedTexts, note_if_spelled_out
from embedkit.encoding.views import LayerSpec, parse_layers, parse_poolings, view_ranges, views_of
from embedkit.errors import CorpusError, EncodeError, UsageError
from embedkit.machine import usable_cores
from embedkit.scale import ATTEMPTS, run_locally, run_on_ray, threads_limited
from embedkit.types import AnyPath, Progress, ProgressCallback, no_progress

logger = logging.getLogger(__name__)

_IN_FILES = {"format", "encoding", "quoting", "header", "delimiter", "sheet"}
_SHARD_BYTES = 256 << 20
_SHARD_ROWS = 4_096, 16_384
_TYPICAL_TOKENS = 64
_CHECKED_AT_ONCE = 4_096
_SAMPLE = 1_000
_LEAST_SECONDS = 2.0
_TIMED_TOKENS = 8_192
_REPORTED = 5_000
_LOST_IN_A_ROW = 5


@dataclass(frozen=True, slots=True, repr=False)
class ExtractResult(ShownFolder):
    """Result of :func:`extract`."""

    out: Path
    seconds: float  # wall time of this run
    tokens_fresh: int  # that this run encoded
    resumed_shards: int  # that an earlier run had finished
    was_complete: bool = False  # nothing was done
    missing_shards: int = 0  # of other parts, see shard_index

    def __repr__(self) -> str:
        if not self.out.exists():
            return f"dataset {self.out}, {count_text(self.missing_shards, 'shard')} missing"
        manifest, views = self.manifest, view_ranges([row["view"] for row in self.as_rows()])
        read = manifest.job.input
        columns = f"text {read.text}, " + (f"label {read.label}" if read.label else "no label")
        return f"dataset {self.out}: {manifest.totals.accepted:,} records, {columns}; {views}"

    def as_rows(self) -> list[dict[str, Any]]:
        """Rows of its views."""
        views = self.manifest.job.vectors.views if self.out.exists() else {}
        return [{"view": name, "width": width} for name, width in views.items()]

    @property
    def manifest(self) -> Manifest:
        """Settings and totals of the dataset; a :class:`UsageError` if it is incomplete."""
        return read_manifest(self.out)


@accepts(CorpusOptions, ExtractSettings)
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
    ``dict`` (records), a pandas or Polars DataFrame (an index is not read), an Arrow table or
    ``RecordBatchReader``, a Hugging Face ``Dataset``. It is first written to a temporary file
    (``TMPDIR`` names the folder), so rejects and vectors are those of the equal file. A list of
    ``str`` never names files. An interrupted job is resumed by an object of equal content; an
    iterator must be made anew to yield the same records again.

    The same call also makes damaged files of a complete dataset again; the other files are kept.

    Args:
        corpus: what to encode, see above.
        out: folder to make, or its address in an object store, such as ``s3://bucket/vectors``; by
            default ``corpus.tsv`` → ``corpus.vectors`` in the current folder. A corpus in memory
            has the name of its type, as ``dataframe.vectors``.
        overwrite: replace an existing dataset, or start an unfinished one over.
        reuse: datasets of the same model and settings, maybe ``out`` itself with ``overwrite``:
            texts that they have are not encoded again. The result is that of a fresh extraction.
        allow_env_change: resume although versions, device or the bits that it computes differ.
        progress: called after every batch, in tokens.
        **options: OPTIONS

    Raises:
        UsageError: an option, column, layer or path cannot be used; nothing was written.
        EmbedkitError: see :mod:`embedkit.errors`; finished work is kept.

    Example:
        >>> result = embedkit.extract(["a text", "another"], out="two")
        >>> embedkit.load("two").X.shape
        (2, 384)
    """
    reading, settings = divided(options, CorpusOptions, ExtractSettings)
    with plan_extract(corpus, out=out, reading=reading, settings=settings) as plan:
        return run_plan(
            plan,
            overwrite=overwrite,
            reuse=reuse,
            allow_env_change=allow_env_change,
            progress=progress,
        )


def run_plan(
    plan: ExtractPlan,
    *,
    overwrite: bool = False,
    reuse: AnyPath | Sequence[AnyPath] = (),
    allow_env_change: bool = False,
    progress: ProgressCallback = no_progress,
) -> ExtractResult:
    """Carry out a plan; arguments and errors as for :func:`extract`."""
    repair = existing_dataset(plan.out, plan.job, overwrite=overwrite)
    if repair is not None and not repair.damaged:
        result = ExtractResult(plan.out, 0.0, 0, 0, was_complete=True)
    else:
        paths = [reuse] if isinstance(reuse, str | os.PathLike) else reuse
        sources = [Source.of(p, plan.job, any_environment=allow_env_change) for p in paths]
        plan = replace(plan, any_environment=allow_env_change, reuse=tuple(sources))
        result = _make(plan, repair, progress, overwrite=overwrite)
    if plan.address:
        storage.upload(
            result.out, plan.address, first="_embedkit/job.json", last=MANIFEST, replace=overwrite
        )
        logger.info(f"copied to {storage.without_secrets(plan.address)}")
    return result


def _make(
    plan: ExtractPlan, repair: Repair | None, progress: ProgressCallback, *, overwrite: bool
) -> ExtractResult:
    """The dataset in its folder, or parts of it."""
    started = time.monotonic()
    options = plan.options
    with open_job(
        plan.out,
        plan.job,
        overwrite=overwrite,
        allow_env_change=plan.any_environment,
        shared=options.num_shards is not None,
        repair=repair,
    ) as folder:
        shards = folder.plan(plan.corpus, progress)
        _log(folder.layout, "started")
        receipts = folder.receipts()
        done = {receipt.shard for receipt in receipts}
        todo = [shard for shard in shards.ranges if shard.number not in done]
        if options.num_shards is not None:
            todo = [s for s in todo if s.number % options.num_shards == options.shard_index]
        if todo and todo[0].number == 0:
            texts = [record.text for record in ShardReader(plan.corpus).read(todo[0])]
            note_if_spelled_out(plan.encoder.checkpoint, plan.encoder.tokenizer, texts)
        meter = _Meter(shards, receipts, progress)
        try:
            if options.engine == "local" and options.n_workers == 1:
                receipts += run_shards(ShardMaker(plan, folder), todo, meter.start, meter.tokens)
            else:
                receipts += _by_workers(plan, todo, meter)
        except (KeyboardInterrupt, SystemExit):
            rows = plan.job.settings.storage.shard_rows
            kept = f"the first shard of {rows:,} records was not finished, so nothing is kept"
            if count := len(folder.receipts()):
                kept = f"{count} finished shards of {rows:,} records are kept"
            logger.warning(kept)
            raise
        for file in plan.corpus.files:
            file.check_unchanged()
        seconds = time.monotonic() - started
        _log(folder.layout, "finished", seconds, len(done), meter.fresh)
        if options.num_shards is None:
            totals = shards.totals(receipts)
            _warn(shards, totals)
            checkpoint = plan.encoder.checkpoint
            names = Names(  # as the user called them; not part of the identity
                inputs=tuple(file.name for file in plan.corpus.files),
                model=checkpoint.name,
                model_source=checkpoint.source,
                revision=checkpoint.revision,
            )
            receipts.sort(key=lambda receipt: receipt.shard)
            folder.finish(receipts, plan.out, totals=totals, names=names, overwrite=overwrite)
    missing = len(shards.ranges) - len(receipts)
    return ExtractResult(plan.out, seconds, meter.fresh, len(done), missing_shards=missing)


def _by_workers(plan: ExtractPlan, todo: Sequence[ShardRange], meter: _Meter) -> list[Receipt]:
    """Make shards in other processes; an error at the end if some of them killed their workers."""
    options, ranges = plan.options, {shard.number: shard for shard in todo}
    workers = [plan.of_worker(i) for i in range(options.n_workers)]
    if options.engine == "ray":
        results = run_on_ray(
            run_shard,
            workers[0],
            ranges,
            workers=options.n_workers,
            threads=plan.threads,
            address=options.address,
            gpus=options.gpus_per_worker,
        )
    else:
        results = run_locally(run_shard, workers, ranges, threads=plan.threads)
    receipts, lost, in_a_row = list[Receipt](), list[str](), 0
    with closing(results):
        for number, receipt in results:
            in_a_row = in_a_row + 1 if receipt is None else 0
            if receipt is None:
                shard = ranges[number]
                lost.append(f"shard {number} (records {shard.row} to {shard.last_row})")
                logger.warning(f"{lost[-1]} ended {ATTEMPTS} worker processes and is left out")
            else:
                receipts.append(receipt)
                meter.finished(receipt)
            if in_a_row == _LOST_IN_A_ROW:
                break
    if lost:
        others = "Finished shards are kept" if in_a_row else "All other shards are finished"
        raise EncodeError(
            f"{', '.join(lost)}: each ended {ATTEMPTS} worker processes, perhaps for lack of "
            f"memory. {others}. Run the same command again with fewer workers or a smaller "
            "batch_tokens."
        )
    return receipts


class _Meter:
    """Progress in tokens; their total is extrapolated from the shards that were read."""

    def __init__(
        self, shards: ShardPlan, finished: Sequence[Receipt], progress: ProgressCallback
    ) -> None:
        self._accepted, self._progress = shards.counts.accepted, progress
        self._stage = "shard 1"
        self._done = self._seen = sum(r.ledger.get("tokens_kept", 0) for r in finished)
        self._rows = sum(r.ledger.get("records", 0) for r in finished)
        self.fresh = 0
        self._report()

    def start(self, number: int, tokens: int, records: int) -> None:
        """Report that a shard begins."""
        self._done = self._seen  # repeated texts ran once, and windows overlap
        self._seen += tokens
        self._rows += records
        self._stage = f"shard {number + 1}"
        self._report()

    def tokens(self, count: int) -> None:
        """Report that so many tokens were encoded."""
        self._done = min(self._done + count, self._seen)
        self.fresh += count
        self._report()

    def finished(self, receipt: Receipt) -> None:
        """Report a shard that another process has made."""
        self.start(receipt.shard, receipt.ledger["tokens_kept"], receipt.ledger["records"])
        self.tokens(receipt.ledger["tokens_kept"])

    def _report(self) -> None:
        total = self._seen * self._accepted // self._rows if self._rows else None
        self._progress(Progress(self._stage, self._done, total, "tokens", self.fresh))


def _log(layout: Layout, event: str, seconds: float = 0.0, kept: int = 0, tokens: int = 0) -> None:
    import torch

    entry = {
        "event": event,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(seconds, 3),
        "tokens_encoded": tokens,
        "shards_found": kept,
        # runs may differ in these without another result
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
    with storage.storage_errors(layout.log), layout.log.open("a") as log:
        log.write(json.dumps(entry) + "\n")


def _warn(shards: ShardPlan, totals: Totals) -> None:
    """Log what users should know of their corpus."""
    if totals.accepted == 0:
        logger.warning("no record was accepted: the dataset has no rows")
    for notice in shards.counts.notices:
        logger.warning(notice)
    if spelled := totals.ledger.get("records_spelling_special_tokens"):
        logger.warning(f"{spelled} texts spell out special tokens such as [SEP], which act as such")


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of a job. Counts of records are exact, the rest is extrapolated from a sample."""

    records: int
    accepted: int
    rejected: dict[str, int]
    left_out: dict[str, int]
    tokens: int
    truncated: float  # fraction of texts that are cut
    bytes_per_view: dict[str, int]
    bytes_total: int
    free_bytes: int
    shards: int
    tokens_per_second: float
    seconds: float
    sampled: int  # texts that tokens and speed were measured on
    notices: list[str]


def estimate(
    plan: ExtractPlan, *, reuse: Sequence[AnyPath] = (), progress: ProgressCallback = no_progress
) -> Estimate:
    """Read the corpus, tokenize a sample, time the model on some of it. Writes nothing.

    Texts that datasets to ``reuse`` have cost no time.
    """
    sources = [OpenSource(Source.of(path, plan.job), plan.job.settings) for path in reuse]
    reader = CorpusReader(plan.corpus)
    random = Random(0)

    def accepted() -> Iterator[Record]:
        for number, item in enumerate(reader):
            if number % _REPORTED == 0:
                progress(Progress("reading", round(100 * reader.fraction), 100, "%"))
            if isinstance(item, Record):
                yield item

    def scalar_bytes(record: Record) -> int:  # of the columns that are not vectors
        cells = [record.id, record.label, *record.kept]
        if plan.job.settings.storage.text:
            cells += [record.text, record.text_pair]
        return sum(len(cell.encode()) for cell in cells if cell is not None) + 32

    sample = heapq.nlargest(_SAMPLE, accepted(), key=lambda _: random.random())
    texts = plan.tokenized(sample, plan.encoder.tokenizer)
    n = max(len(sample), 1)
    known = known_texts(sources, sample, plan.folds_of(sample))
    share = 1 - sum(len(found.texts) for found in known) / n
    counts = reader.counts
    kept = len(texts.ids)
    tokens = round(kept / n * counts.accepted)
    progress(Progress("timing the model", 0))
    every = max(kept // _TIMED_TOKENS, 1)
    speed = _speed(plan, sample[::every], texts[::every]) if texts else float("inf")
    words = sum(len(set(t.word[t.word >= 0].tolist())) for t in texts if t.word is not None)
    sizes = _sizes(plan, counts.accepted, tokens, round(words / n * counts.accepted))
    scalars = sum(map(scalar_bytes, sample)) / n * counts.accepted
    scalars += tokens * 12 * plan.vectors.tokens
    return Estimate(
        records=counts.records,
        accepted=counts.accepted,
        rejected=dict(counts.rejected),
        left_out=dict(counts.left_out),
        tokens=tokens,
        truncated=int(texts.cut.sum()) / n,
        bytes_per_view=sizes,
        bytes_total=sum(sizes.values()) + round(scalars),
        free_bytes=storage.free_bytes(plan.out),
        shards=max(-(-counts.accepted // plan.job.settings.storage.shard_rows), 1),
        tokens_per_second=speed,
        seconds=tokens / speed * share,
        sampled=len(sample),
        notices=counts.notices,
    )


def _speed(plan: ExtractPlan, records: Sequence[Record], texts: TokenizedTexts) -> float:
    """Tokens per second of the real layers and views on the sample, over two seconds or more."""
    done: Counter[str] = Counter()
    started = time.perf_counter()
    first = True
    while time.perf_counter() - started < _LEAST_SECONDS:
        plan.start_shard(records, texts, on_tokens=lambda count: done.update(tokens=count)).result()
        if first:  # the first pass warms up
            started, first = time.perf_counter(), False
            done.clear()
    return done["tokens"] / (time.perf_counter() - started)


def _sizes(plan: ExtractPlan, rows: int, tokens: int, words: int) -> dict[str, int]:
    vectors = plan.vectors
    per_float = {"float32": 4.0, "float16": 2.0, "compact": 1.75, "int8": 1.0}[vectors.storage]
    sizes = {name: round(rows * width * per_float) for name, width in vectors.views.items()}
    for table, count in (("words", words), ("tokens", tokens)):
        if getattr(vectors, table):
            sizes |= {
                f"{table} layer_{name}": round(count * width * per_float)
                for name, width in vectors.token_layers.items()
            }
    return sizes


@contextmanager
def plan_extract(
    corpus: CorpusLike,
    *,
    out: str | Path | None = None,
    reading: CorpusOptions | None = None,
    settings: ExtractSettings | None = None,
) -> Iterator[ExtractPlan]:
    """Plan a job: check the corpus, load the model, resolve layers; write nothing.

    A context manager, because what is read twice (standard input, a corpus in memory) is kept in a
    temporary file while the plan lives. ``corpus`` and ``out`` are as for :func:`extract`.
    """
    reading, settings = reading or CorpusOptions(), settings or ExtractSettings()
    paths = paths_of(corpus)
    if paths is None and (given := _IN_FILES & set(reading.given)):
        name = min(given)
        raise UsageError(
            f"{name}={getattr(reading, name)!r} is for files; the corpus is in memory."
        )
    if reading.spans and settings.words is None:
        settings = replace(settings, words="mean")
    if reading.word_label is not None and settings.words is None:
        raise UsageError(
            f"word_label={reading.word_label!r} is stored with word vectors. Pass words='mean' too."
        )
    address = "" if out is None else storage.address_of(out)
    if address and (settings.num_shards is not None or settings.engine != "local"):
        shown = storage.without_secrets(address)
        raise UsageError(f"out={shown!r}: several machines need a folder that all of them see.")
    if address:
        out = local_dataset(address, new=True)
    target = _out_folder(out, paths, type(corpus).__name__)
    storage.check_place(target)
    with input_files(corpus) as files:
        plan = plan_corpus(files, reading)
        _check_kept(plan.keep, RESERVED)
        for notice in plan.notices:
            logger.info(notice)
        if next(iter(CorpusReader(replace(plan, sample=None))), None) is None:
            raise CorpusError(f"{files[0].name} has no records, only a header or nothing at all.")
        yield replace(_with_model(plan, target, settings), address=address)


def _with_model(corpus: CorpusPlan, target: Path, settings: ExtractSettings) -> ExtractPlan:
    """The plan, with the model loaded and its layers resolved."""
    from embedkit.encoding.encoder import note_faster_precision  # which loads torch

    if settings.pooling is not None:
        parse_poolings(settings.pooling)  # before the model is loaded
    settings = _with_long_texts(settings, find_fold_models(settings.model))
    load = _arguments_of_load(settings, target)
    threads = max(usable_cores() // settings.n_workers, 1)
    # with as many threads as the workers: trials at loading may depend on them
    with nullcontext() if settings.n_workers == 1 else threads_limited(threads):
        encoder = load_encoder(**load)
        environment = environment_of(encoder)
    if settings.precision is None:
        note_faster_precision(encoder)
    load["precision"] = encoder.precision
    checkpoint = encoder.checkpoint
    specs = parse_layers(settings.layers, n_layers=encoder.n_layers)
    prefix = checkpoint.prefix_or_own(settings.prefix, settings.prompt)
    if settings.prefix is None and prefix:
        logger.info(f"prefix: {prefix!r}, put before every text (none with prefix='')")
    poolings, normalize = _own_poolings(checkpoint, specs, settings)
    encoder.check_poolings(poolings)
    views = views_of(specs, poolings, n_layers=encoder.n_layers)
    _check_kept(corpus.keep, {view.name for view in views})
    corpus = hash_inputs(corpus)
    seen = _seen_records(settings.model, corpus)
    token_layers = specs if settings.tokens or settings.words else ()
    stride = encoder.max_length // 4 if settings.stride is None else settings.stride
    widths = {view.name: encoder.width_of(view) for view in views}
    if settings.dims is not None:
        _check_dims(settings.dims, min(widths.values()), checkpoint)
    vectors = VectorOptions(
        **{f.name: getattr(settings, f.name) for f in fields(VectorChoices)},
        views={name: settings.dims or width for name, width in widths.items()},
        token_layers={spec.name: spec.width(encoder.width) for spec in token_layers},
        max_length=encoder.max_length,
        on_long=str(settings.on_long),
        stride=stride if settings.on_long == "window" else 0,
        normalize=normalize,
        prefix=prefix,
        precision=encoder.precision,
        batch_tokens=encoder.batch_tokens,
    )
    encoder.tokenizer.room(tokenizer_settings(vectors), paired=corpus.text_pair is not None)
    job = Job(_job_settings(corpus, checkpoint, vectors, settings, seen), environment)
    return ExtractPlan(
        corpus, encoder, target, views, token_layers, job, settings, load, threads, seen
    )


def _job_settings(
    corpus: CorpusPlan,
    checkpoint: Checkpoint,
    vectors: VectorOptions,
    settings: ExtractSettings,
    seen: SeenRecords | None,
) -> JobSettings:
    """Everything that shapes a byte of the dataset."""
    reading: dict[str, Any] = {f.name: getattr(corpus, f.name) for f in fields(CorpusSettings)}
    files = tuple(SourceFile(file.sha256, file.size) for file in corpus.files)
    return JobSettings(
        format_version=FORMAT_VERSION,
        input=InputSettings(files=files, **reading),
        model=ModelSettings(
            type=checkpoint.model_type,
            n_layers=checkpoint.n_layers,
            width=checkpoint.width,
            sha256=dict(checkpoint.sha256),
        ),
        vectors=vectors,
        storage=StorageSettings(
            profile=settings.storage,
            shard_rows=settings.shard_rows or _shard_rows(vectors, settings.storage),
            text=settings.store_text,
        ),
        folds=None if seen is None else seen.models.settings,
    )


def _arguments_of_load(settings: ExtractSettings, target: Path) -> dict[str, Any]:
    """Arguments of :func:`load_encoder`; a job that was begun keeps its precision."""
    precision = settings.precision
    return {
        "model": settings.model,
        "revision": settings.revision,
        "device": settings.devices[0],
        "precision": recorded_precision(target) if precision == "auto" else precision,
        "offline": settings.offline,
        "max_length": settings.max_length,
        "batch_tokens": settings.batch_tokens,
    }


def _check_dims(dims: int, narrowest: int, checkpoint: Checkpoint) -> None:
    if dims > narrowest:
        raise UsageError(f"dims={dims}: the vectors have {narrowest} coordinates.")
    if not checkpoint.definition.declared_dims:
        logger.info(
            f"dims: {checkpoint.name} does not say that its first coordinates are vectors too "
            "(Matryoshka); compare results with and without"
        )


def _own_poolings(
    checkpoint: Checkpoint, layers: Sequence[LayerSpec], settings: ExtractSettings
) -> tuple[Sequence[Pooling], bool]:
    """Poolings, and whether vectors are normalized: as given, else as the checkpoint defines."""
    if settings.pooling is not None:
        return parse_poolings(settings.pooling), bool(settings.normalize)
    last = [spec.layers for spec in layers] == [(checkpoint.n_layers,)]
    pooling, normalize = checkpoint.own_view(last_layer=last)
    if settings.normalize is not None:
        normalize = settings.normalize
    elif last and (normalize or pooling != Pooling.MEAN):
        logger.info(
            f"vectors as the checkpoint defines them: {checkpoint.definition} (others: pooling=)"
        )
    return (pooling,), normalize


def _with_long_texts(settings: ExtractSettings, seen: SeenRecords | None) -> ExtractSettings:
    """Settings for long texts: as given, else those of the run's models, else ``truncate``."""
    on_long, stride = settings.on_long, settings.stride
    if on_long is None:
        on_long = "truncate" if seen is None else seen.models.on_long
        if seen is not None and on_long == "window" and settings.max_length is None:
            stride = seen.models.stride if stride is None else stride
    if stride is not None and on_long != "window":
        raise UsageError(f"stride={stride} is for on_long='window'.")
    return replace(settings, on_long=on_long, stride=stride)


def _seen_records(model: str, corpus: CorpusPlan) -> SeenRecords | None:
    """The records of a run that its models were trained on; ``None`` for a checkpoint.

    A :class:`UsageError` if some vectors would be of a model that was trained on the text.
    """
    seen, inside = find_fold_models(model), find_run_of(model)
    if seen is None and inside is None:
        return None
    if seen is not None:
        _check_kept(corpus.keep, ("fold",))
    source = [file.sha256 for file in corpus.files]
    records = (item for item in CorpusReader(corpus) if isinstance(item, Record))
    while chunk := list(islice(records, _CHECKED_AT_ONCE)):
        if seen is not None:
            seen.check_source(source, chunk)
            seen.folds_of(keys_of(chunk))
        elif inside is not None:
            inside.check_unseen(Path(model).name, chunk)
    return seen


def _shard_rows(vectors: VectorOptions, storage: str) -> int:
    """A power of two that makes shards of about 256 MB, by the settings alone.

    At least 4,096 records, unless they take 512 MB or more; at most 16,384, so that an interrupted
    job loses little, and several processes share a corpus evenly.
    """
    tables = int(vectors.tokens) + int(vectors.words is not None)
    floats = sum(vectors.views.values())
    floats += sum(vectors.token_layers.values()) * _TYPICAL_TOKENS * tables
    bytes_per_row = max(floats * (2 if storage == "float16" else 4), 1)
    least, most = _SHARD_ROWS
    rows = max(_SHARD_BYTES // bytes_per_row, 64)
    if least * bytes_per_row < 2 * _SHARD_BYTES:
        rows = max(rows, least)
    return int(min(1 << (rows.bit_length() - 1), most))


def _out_folder(out: str | Path | None, paths: Sequence[Path] | None, kind: str) -> Path:
    """The folder to make: as given, else ``corpus.vectors`` for ``corpus.tsv``."""
    if out is not None:
        folder = Path(out)
    elif paths is None:
        folder = Path(f"{kind.lower()}.vectors")
    elif str(paths[0]) == "-":
        raise UsageError("standard input has no name to derive the output from. Pass out=.")
    else:
        name = Path(storage.without_secrets(str(paths[0]))).name
        for suffix in PACKED_SUFFIXES:
            name = name.removesuffix(suffix)
        folder = Path(Path(name).stem + ".vectors")
    if folder.name in ("", ".."):
        raise UsageError(f"out='{out}': expected the name of a folder to make, as in vectors.")
    try:
        str(folder).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"out='{folder}': readers of Parquet open only names in UTF-8. Pass another out=."
        ) from error
    return folder


def _check_kept(keep: Sequence[str], taken: Collection[str]) -> None:
    for name in keep:
        if name in taken:
            raise UsageError(f"keep={name!r}: embedkit writes such a column itself. Rename yours.")
