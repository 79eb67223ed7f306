"""The plan of an extraction: everything decided before the first record is encoded.

Options that were left open are settled here by the checkpoint, the corpus and the device, mistakes
are found here, and what is settled is the job by which it can be resumed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from embedkit import storage
from embedkit.choices import Pooling
from embedkit.corpus.memory import CorpusLike, SourceFile, paths_of, stem_of
from embedkit.corpus.plan import CorpusOptions, CorpusPlan, CorpusSettings, planned_corpus
from embedkit.corpus.records import CorpusReader
from embedkit.dataset.fold_models import SeenRecords, check_unseen, find_fold_models, load_encoder
from embedkit.dataset.format import FORMAT_VERSION, RESERVED, local_dataset
from embedkit.dataset.job import recorded_precision
from embedkit.dataset.settings import (
    ExtractOptions,
    Job,
    JobSettings,
    ModelRecord,
    StorageRecord,
    VectorOptions,
    VectorSettings,
)
from embedkit.dataset.shards import ExtractPlan, environment_of
from embedkit.encoding.checkpoint import Checkpoint
from embedkit.encoding.views import LayerSpec, parse_layers, parse_poolings, views_of
from embedkit.errors import CorpusError, Message, Option, UsageError
from embedkit.machine import usable_cores
from embedkit.remote import address_of
from embedkit.scale import threads_limited

logger = logging.getLogger(__name__)


# options that say how bytes become records, which a corpus in memory has behind it
_IN_FILES = {"format", "encoding", "quoting", "header", "delimiter", "sheet"}


# aims of _shard_rows
_SHARD_BYTES = 256 << 20


_SHARD_ROWS = 4_096, 16_384


# a guess instead of a count, since shards may depend on the settings alone
_TYPICAL_TOKENS = 64


@contextmanager
def plan_extract(
    corpus: CorpusLike,
    *,
    out: str | Path | None = None,
    reading: CorpusOptions | None = None,
    settings: ExtractOptions | None = None,
) -> Iterator[ExtractPlan]:
    """Plan a job: check the corpus, load the model, resolve layers; write nothing.

    A context manager, because what is read twice (standard input, a corpus in memory) is kept in a
    temporary file while the plan lives. ``corpus`` and ``out`` are as for :func:`extract`.
    """
    reading, settings = reading or CorpusOptions(), settings or ExtractOptions()
    paths = paths_of(corpus)
    if paths is None and (file_options := _IN_FILES & set(reading.given)):
        name = min(file_options)
        raise UsageError("is for files; the corpus is in memory.", **{name: getattr(reading, name)})
    # marked spans are words, and useless without their vectors
    if reading.spans and settings.words is None:
        settings = replace(settings, words="mean")
    if reading.word_label is not None and settings.words is None:
        raise UsageError(f"pass {Option('words', 'mean')} too.", word_label=reading.word_label)
    address = "" if out is None else address_of(out)
    if address and (settings.part is not None or settings.engine != "local"):
        shown = storage.without_secrets(address)
        raise UsageError("several machines need a folder that all of them see.", out=shown)
    if address:
        # the job works in a local copy, which is uploaded when it is complete
        out = local_dataset(address, new=True)
    target = out_folder(out, paths, type(corpus).__name__)
    storage.check_place(target)
    with planned_corpus(corpus, reading) as plan:
        _check_kept(plan.keep, RESERVED)
        # without the sample, which would read all of a corpus to draw it
        if next(iter(CorpusReader(replace(plan, sample=None, min_chars=0))), None) is None:
            raise CorpusError(
                f"{plan.files[0].name} has no records, only a header or nothing at all."
            )
        yield replace(_with_model(plan, target, settings), address=address)


def _with_model(corpus: CorpusPlan, target: Path, settings: ExtractOptions) -> ExtractPlan:
    """The plan, with the model loaded and its layers resolved."""
    from embedkit.encoding.encoder import note_faster_precision  # which loads torch

    if settings.pooling is not None:
        parse_poolings(settings.pooling)  # before the model is loaded
    seen = find_fold_models(settings.model)
    settings = _with_long_texts(settings, seen)
    same = ("model", "revision", "offline", "max_length", "batch_tokens", "precision")
    load = {name: getattr(settings, name) for name in same} | {"device": settings.devices[0]}
    if settings.precision == "auto":  # a job that was begun keeps its precision
        load["precision"] = recorded_precision(target)
    threads = max(usable_cores() // settings.n_workers, 1)
    # with as many threads as the workers: trials at loading may depend on them
    with nullcontext() if settings.n_workers == 1 else threads_limited(threads):
        encoder = load_encoder(**load)
        environment = environment_of(encoder)
    if settings.precision is None:
        note_faster_precision(encoder)
    # what auto has chosen here by timing, the workers are told
    load["precision"] = encoder.precision
    checkpoint = encoder.checkpoint
    specs = parse_layers(settings.layers, n_layers=encoder.n_layers)
    prefix = checkpoint.prefix_or_own(settings.prefix, settings.prompt)
    if settings.prefix is None and prefix:
        without = Option("prefix", "", before=" (none with ", after=")")
        logger.info(Message(f"prefix: {prefix!r}, put before every text{without}"))
    poolings, normalize = _own_poolings(checkpoint, specs, settings)
    encoder.check_poolings(poolings)
    views = views_of(specs, poolings, n_layers=encoder.n_layers)
    # a kept column must not have the name of a view or the column of folds either, known only now
    _check_kept(corpus.keep, {view.name for view in views} | ({"fold"} if seen else set()))
    # late, since it reads all bytes: mistakes above are found before
    corpus = corpus.hashed()
    # after the hashes, by which it sees whether this is the corpus of the run
    check_unseen(seen, settings.model, corpus)
    token_layers = specs if settings.tokens or settings.words else ()
    stride = encoder.max_length // 4 if settings.stride is None else settings.stride
    widths = {view.name: encoder.width_of(view) for view in views}
    if settings.dims is not None:
        _check_dims(settings.dims, min(widths.values()), checkpoint)
    vectors = VectorSettings(
        **{f.name: getattr(settings, f.name) for f in fields(VectorOptions)},
        views={name: settings.dims or width for name, width in widths.items()},
        token_layers={spec.name: spec.width(encoder.width) for spec in token_layers},
        max_length=encoder.max_length,
        on_long=str(settings.on_long),
        # 0 where it has no effect, so that it does not make two jobs of one
        stride=stride if settings.on_long == "window" else 0,
        normalize=normalize,
        prefix=prefix,
        precision=encoder.precision,
        batch_tokens=encoder.batch_tokens,
    )
    # called for its error alone: too few tokens for a text, or a stride as wide as a window
    encoder.tokenizer.room(vectors.tokenization, paired=corpus.text_pair is not None)
    job = Job(_job_settings(corpus, checkpoint, vectors, settings, seen), environment)
    return ExtractPlan(
        corpus, encoder, target, views, token_layers, job, settings, load, threads, seen
    )


def _job_settings(
    corpus: CorpusPlan,
    checkpoint: Checkpoint,
    vectors: VectorSettings,
    settings: ExtractOptions,
    seen: SeenRecords | None,
) -> JobSettings:
    """Everything that shapes a byte of the dataset."""
    reading: dict[str, Any] = {f.name: getattr(corpus, f.name) for f in fields(CorpusSettings)}
    files = tuple(SourceFile(sha256=file.sha256, bytes=file.bytes) for file in corpus.files)
    return JobSettings(
        format_version=FORMAT_VERSION,
        input=CorpusSettings(**reading | {"files": files}),
        model=ModelRecord.of(checkpoint),
        vectors=vectors,
        storage=StorageRecord(
            profile=settings.storage,
            shard_rows=settings.shard_rows or _shard_rows(vectors, settings.storage),
            text=settings.store_text,
        ),
        folds=None if seen is None else seen.models,
    )


def _check_dims(dims: int, narrowest: int, checkpoint: Checkpoint) -> None:
    if dims > narrowest:
        raise UsageError(f"the vectors have {narrowest} coordinates.", dims=dims)
    if not (checkpoint.definition.dims or checkpoint.config.get("matryoshka_dimensions")):
        logger.info(
            f"dims: {checkpoint.name} does not say that its first coordinates are vectors too "
            "(Matryoshka); compare results with and without"
        )


def _own_poolings(
    checkpoint: Checkpoint, layers: Sequence[LayerSpec], settings: ExtractOptions
) -> tuple[Sequence[Pooling], bool]:
    """Poolings, and whether vectors are normalized: as given, else as the checkpoint defines."""
    if settings.pooling is not None:
        return parse_poolings(settings.pooling), bool(settings.normalize)
    # what a checkpoint declares is about its last layer alone
    last = [spec.layers for spec in layers] == [(checkpoint.n_layers,)]
    pooling, normalize = checkpoint.own_view(last_layer=last)
    if settings.normalize is not None:
        normalize = settings.normalize
    elif last and (normalize or pooling != Pooling.MEAN):
        defined, advice = checkpoint.definition, Option("pooling", before=" (others: ", after=")")
        logger.info(Message(f"vectors as the checkpoint defines them: {defined}{advice}"))
    return (pooling,), normalize


def _with_long_texts(settings: ExtractOptions, seen: SeenRecords | None) -> ExtractOptions:
    """Settings for long texts: as given, else those of the run's models, else ``truncate``."""
    on_long, stride = settings.on_long, settings.stride
    if on_long is None:
        on_long = "truncate" if seen is None else seen.tokens.on_long
        # the stride of the run fits its max_length; with another one the default is a part of that
        if seen is not None and on_long == "window" and settings.max_length is None:
            stride = seen.tokens.stride if stride is None else stride
    if stride is not None and on_long != "window":
        raise UsageError(f"it is for {Option('on_long', 'window')}.", stride=stride)
    return replace(settings, on_long=on_long, stride=stride)


def _shard_rows(vectors: VectorSettings, storage: str) -> int:
    """A power of two that makes shards of about 256 MB, by the settings alone.

    At least 4,096 records, unless they take 512 MB or more; at most 16,384, so that an interrupted
    job loses little, and several processes share a corpus evenly.
    """
    tables = int(vectors.tokens) + int(vectors.words is not None)
    floats = sum(vectors.views.values())
    floats += sum(vectors.token_layers.values()) * _TYPICAL_TOKENS * tables
    bytes_per_row = max(floats * (2 if storage == "float16" else 4), 1)
    least, most = _SHARD_ROWS
    # 64 at least, however large the vectors of a record are
    rows = max(_SHARD_BYTES // bytes_per_row, 64)
    if least * bytes_per_row < 2 * _SHARD_BYTES:
        rows = max(rows, least)
    return int(min(1 << (rows.bit_length() - 1), most))


def out_folder(out: str | Path | None, paths: Sequence[Path] | None, kind: str) -> Path:
    """The folder to make: as given, else ``corpus.vectors`` for ``corpus.tsv``."""
    if out is not None:
        folder = Path(out)
    elif paths is None:
        folder = Path(f"{kind.lower()}.vectors")
    elif str(paths[0]) == "-":
        raise UsageError(f"standard input gives the output no name. Pass {Option('out')}.")
    else:
        folder = Path(f"{stem_of(paths[0])}.vectors")
    if folder.name in ("", ".."):
        raise UsageError("expected the name of a folder to make, as in vectors.", out=out)
    try:
        str(folder).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError("expected a name in UTF-8, as Parquet needs it.", out=folder) from error
    return folder


def _check_kept(keep: Sequence[str], reserved: Collection[str]) -> None:
    for name in keep:
        if name in reserved:
            problem = "embedkit writes a column of this name itself. Leave it out, or rename it."
            raise UsageError(problem, keep=name)
