"""Corpus → dataset: :func:`extract`, and a plan carried out by :func:`run_plan`."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from embedkit.choices import DEFAULT_MODEL
from embedkit.corpus import CorpusLike, CorpusOptions
from embedkit.dataset.jobs import JobFolder, already_complete, open_job
from embedkit.dataset.planning import ExtractPlan, ExtractSettings, plan_extract
from embedkit.dataset.shards import JobRun
from embedkit.dataset.store import Manifest, read_manifest
from embedkit.dataset.workers import StageTime
from embedkit.types import ProgressCallback, no_progress

__all__ = ["ExtractResult", "extract", "run_plan"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExtractResult:
    """What a job made.

    Attributes:
        out: the dataset.
        manifest: how it was made, and its totals.
        seconds: wall time of this run.
        tokens_fresh: tokens that this run encoded.
        resumed_shards: shards that an earlier run had finished.
        was_complete: the dataset was already there, and nothing was done.
        stages: how busy reading, tokenizing, encoding and writing were.
    """

    out: Path
    manifest: Manifest
    seconds: float
    tokens_fresh: int
    resumed_shards: int
    was_complete: bool = False
    stages: tuple[StageTime, ...] = ()


def extract(
    corpus: CorpusLike,
    *,
    out: str | Path | None = None,
    model: str = DEFAULT_MODEL,
    revision: str | None = None,
    offline: bool = False,
    text: str | None = None,
    text_pair: str | None = None,
    id: str | None = None,
    label: str | None = None,
    keep: Sequence[str] = (),
    word_label: str | None = None,
    format: str = "auto",
    encoding: str = "utf-8",
    quoting: str = "auto",
    header: bool = True,
    unicode: str = "none",
    min_chars: int = 0,
    sample: int | None = None,
    seed: int = 0,
    limit: int | None = None,
    layers: str | int | Sequence[str | int] = "-1",
    pooling: str | Sequence[str] = ("mean",),
    words: str | None = None,
    tokens: bool = False,
    max_length: int | None = None,
    on_long: str | None = None,
    stride: int | None = None,
    special_tokens: bool = True,
    normalize: bool = False,
    prefix: str | None = None,
    precision: str | None = None,
    storage: str = "float32",
    device: str = "auto",
    batch_tokens: int | None = None,
    shard_rows: int | None = None,
    store_text: bool = True,
    overwrite: bool = False,
    allow_env_change: bool = False,
    progress: ProgressCallback = no_progress,
) -> ExtractResult:
    """Turn a corpus into a dataset of vectors; resumes an unfinished one by itself.

    A ``str`` or ``Path`` is a file, ``"-"`` standard input, a list of ``Path`` several files, read
    one after the other. Everything else is in memory: a list or iterator of ``str`` (texts) or of
    ``dict`` (records), a pandas or Polars DataFrame (an index is not read), an Arrow table or
    ``RecordBatchReader``, a Hugging Face ``Dataset``. It is first written to a temporary file
    (``TMPDIR`` names the folder), so rejects and vectors are those of the equal file. A list of
    ``str`` never names files. An interrupted job is resumed by an object of equal content; an
    iterator must be made anew to yield the same records again.

    Args:
        corpus: what to encode, see above.
        out: folder to make; by default ``corpus.tsv`` → ``corpus.vectors`` in the current folder.
            Required for a corpus in memory.
        model: hub id or folder of the checkpoint, or ``multilingual``.
        revision: branch, tag or commit of a hub checkpoint.
        offline: never ask the hub.
        text: column of the text; this, ``id`` and ``label`` are guessed by name if not given.
        text_pair: column of the second text of a pair.
        id: column of the id; without one the row number is the id.
        label: column of the label.
        keep: further columns to carry along.
        word_label: column with a label for each word, stored with word vectors: of CoNLL-U one of
            its columns of words, such as ``upos``; else a column of labels separated by white
            space, one for each whitespace word of the text (of JSON also a list).
        format: ``auto``, ``tsv``, ``csv``, ``lines``, ``jsonl``, ``parquet``, ``arrow`` or
            ``conllu``; this and the next three are for files.
        encoding: encoding of text files.
        quoting: ``auto`` (CSV files follow RFC 4180, TSV files have none), ``none`` or ``csv``.
        header: whether the first line names the columns.
        unicode: normal form of the texts: ``none``, ``nfc`` or ``nfkc``.
        min_chars: leave shorter texts out, and count them.
        sample: use only so many records, sampled at random.
        seed: seed of the sample.
        limit: use only the first so many records.
        layers: a list, or a string as for :func:`~embedkit.encoding.views.parse_layers`.
        pooling: of ``cls``, ``mean``, ``max``, ``last_token``, ``pooler``; a list, or a string
            with commas.
        words: write word vectors: ``first``, ``last``, ``first_last`` or ``mean`` of sub-tokens.
            The words of CoNLL-U are its own, those of other formats stand between white space.
        tokens: write token vectors.
        max_length: tokens per sequence, special ones counted.
        on_long: ``truncate``, ``window`` or ``error``; by default ``truncate``, and of a fine-tuned
            run what it was trained with.
        stride: tokens common to neighbouring windows; by default a quarter of ``max_length``.
        special_tokens: whether ``mean`` and ``max`` count [CLS] and [SEP].
        normalize: scale sentence vectors to length 1 (L2).
        prefix: put before every text, such as ``"query: "``; by default that of the checkpoint
            (``multilingual`` has one), ``""`` for none.
        precision: ``auto``, ``fp32``, ``bf16`` or ``fp16``.
        storage: ``float32``, ``float16`` or ``compact``.
        device: ``auto``, ``cpu`` or ``cuda:0``.
        batch_tokens: tokens per batch, padding included.
        shard_rows: records per shard.
        store_text: write the texts too.
        overwrite: replace an existing dataset, or start an unfinished one over.
        allow_env_change: resume although versions, device or the bits that it computes differ.
        progress: called after every batch, in tokens.

    Raises:
        UsageError: an option, column, layer or path cannot be used; nothing was written.
        EmbedkitError: see :mod:`embedkit.errors`; nothing that was finished is lost.

    Example:
        >>> result = embedkit.extract(["a text", "another"], out="two")
        >>> embedkit.load("two").X.shape
        (2, 384)
    """
    given = locals()
    reading = CorpusOptions(**{f.name: given[f.name] for f in fields(CorpusOptions)})
    settings = ExtractSettings(**{f.name: given[f.name] for f in fields(ExtractSettings)})
    with plan_extract(corpus, out=out, reading=reading, settings=settings) as plan:
        return run_plan(
            plan, overwrite=overwrite, allow_env_change=allow_env_change, progress=progress
        )


def run_plan(
    plan: ExtractPlan,
    *,
    overwrite: bool = False,
    allow_env_change: bool = False,
    progress: ProgressCallback = no_progress,
) -> ExtractResult:
    """Do what a plan says. Arguments and errors as for :func:`extract`."""
    started = time.monotonic()
    job = plan.job()
    if already_complete(plan.out, job, overwrite=overwrite):
        return ExtractResult(plan.out, read_manifest(plan.out), 0.0, 0, 0, was_complete=True)
    with open_job(plan.out, job, overwrite=overwrite, allow_env_change=allow_env_change) as folder:
        run = JobRun(plan, job, folder, progress)
        try:
            manifest = run.all_shards(started)
        except (KeyboardInterrupt, SystemExit):
            logger.warning(_kept(folder, plan.settings.storage.shard_rows))
            raise
    seconds = time.monotonic() - started
    return ExtractResult(plan.out, manifest, seconds, run.fresh, run.resumed, stages=run.stages)


def _kept(folder: JobFolder, shard_rows: int) -> str:
    """What an interrupted job has finished."""
    if shards := len(folder.layout.shard_files("sentences")):
        return f"{shards} finished shards of {shard_rows:,} records are kept"
    return (
        f"the first shard of {shard_rows:,} records was not finished, so nothing is kept; "
        "smaller ones are finished sooner: shard_rows=256"
    )
