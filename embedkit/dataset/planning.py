"""What an extraction will do: corpus, model, vectors and shards, settled before it starts."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from embedkit import fsio
from embedkit._version import __version__
from embedkit.choices import DEFAULT_MODEL, ON_LONG, STORAGES, SUBTOKENS, check_choice
from embedkit.corpus import (
    CorpusLike,
    CorpusOptions,
    CorpusPlan,
    CorpusReader,
    Record,
    hash_inputs,
    input_files,
    plan_corpus,
)
from embedkit.corpus.inputs import paths_of
from embedkit.corpus.options import CorpusSettings
from embedkit.corpus.source import PACKED_SUFFIXES
from embedkit.dataset.fold_models import (
    SeenRecords,
    find_fold_models,
    find_run_of,
    load_encoder,
)
from embedkit.dataset.jobs import Job, recorded_precision
from embedkit.dataset.manifest import (
    InputSettings,
    JobSettings,
    Names,
    SourceFile,
    StorageSettings,
)
from embedkit.dataset.schema import RESERVED
from embedkit.dataset.vector_settings import ModelSettings, VectorOptions, VectorSettings
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.shard import PendingShard
from embedkit.encoding.tokenization import TokenizedText
from embedkit.encoding.views import LayerSpec, Pooling, View, parse_layers, parse_poolings, views_of
from embedkit.errors import UsageError, check_counts
from embedkit.types import Int64

__all__ = ["ExtractPlan", "ExtractSettings", "plan_extract"]

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
"""Raised when the files of a dataset change their meaning."""

_IN_FILES = {"format", "encoding", "quoting", "header"}
_SHARD_BYTES = 64 << 20
_MAX_SHARD_ROWS = 16_384
_TYPICAL_TOKENS = 32
_CHECKED_AT_ONCE = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractSettings:
    """Which vectors are made, by what, and how they are stored.

    The fields are the parameters of the same names of
    :func:`~embedkit.dataset.extraction.extract`, which describes them.

    Raises:
        UsageError: a value cannot be used.
    """

    model: str = DEFAULT_MODEL
    revision: str | None = None
    offline: bool = False
    layers: str | int | Sequence[str | int] = "-1"
    pooling: str | Sequence[str] = ("mean",)
    words: str | None = None
    tokens: bool = False
    max_length: int | None = None
    on_long: str | None = None
    stride: int | None = None
    special_tokens: bool = True
    normalize: bool = False
    prefix: str | None = None
    precision: str | None = None
    storage: str = "float32"
    device: str = "auto"
    batch_tokens: int | None = None
    shard_rows: int | None = None
    store_text: bool = True

    def __post_init__(self) -> None:
        if self.on_long is not None:
            check_choice(ON_LONG, on_long=self.on_long)
        check_choice(STORAGES, storage=self.storage)
        if self.words is not None:
            check_choice(SUBTOKENS, words=self.words)
        check_counts(
            shard_rows=self.shard_rows, batch_tokens=self.batch_tokens, stride=self.stride,
            max_length=self.max_length,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExtractPlan:
    """A job settled in all its details, with the model loaded; nothing is written yet.

    Attributes:
        corpus: what is read.
        encoder: what encodes it.
        out: the folder to be made.
        views: sentence vectors.
        token_layers: layers of word and token vectors; empty if neither is asked for.
        settings: everything that shapes a byte of the dataset.
        seen: records of the fine-tuned run whose encoders are used; ``None`` for a checkpoint.
    """

    corpus: CorpusPlan
    encoder: Encoder
    out: Path
    views: tuple[View, ...]
    token_layers: tuple[LayerSpec, ...]
    settings: JobSettings
    seen: SeenRecords | None = None

    @property
    def vectors(self) -> VectorSettings:
        """Everything that shapes a vector."""
        return self.settings.vector_settings

    def tokenized(self, records: Sequence[Record]) -> list[TokenizedText]:
        """Tokenize records, with offsets where words or tokens are wanted."""
        vectors = self.vectors
        marked = [r.words.spans or () for r in records if r.words is not None]
        return self.encoder.tokenizer.encode(
            [r.text for r in records],
            [str(r.text_pair) for r in records] if self.corpus.text_pair else None,
            settings=vectors.tokenizer,
            offsets=vectors.tokens or vectors.words is not None,
            words=marked if self.corpus.marks_words else None,
        )

    def folds_of(self, records: Sequence[Record]) -> Int64 | None:
        """Return the fold whose models encode each record; ``None`` for a checkpoint."""
        return None if self.seen is None else self.seen.folds_of_records(records)

    def start_shard(
        self,
        records: Sequence[Record],
        texts: Sequence[TokenizedText],
        *,
        on_tokens: Callable[[int], None] = lambda _: None,
    ) -> PendingShard:
        """Run the tokenized texts of records through the model."""
        folds: dict[str, Any] = {} if self.seen is None else {"folds": self.folds_of(records)}
        return self.encoder.start_shard(
            texts, views=self.views, token_layers=self.token_layers,
            special_tokens=self.vectors.special_tokens, on_tokens=on_tokens, **folds,
        )  # fmt: skip

    def job(self) -> Job:
        """The identity of the dataset, for its fingerprint."""
        return Job(settings=self.settings, environment=_environment(self.encoder))

    def names(self) -> Names:
        """What inputs and model are called here, which is no part of the identity."""
        checkpoint = self.encoder.checkpoint
        return Names(
            inputs=tuple(file.name for file in self.corpus.files), model=checkpoint.name,
            model_source=checkpoint.source, revision=checkpoint.revision,
        )  # fmt: skip


@contextmanager
def plan_extract(
    corpus: CorpusLike,
    *,
    out: str | Path | None = None,
    reading: CorpusOptions | None = None,
    settings: ExtractSettings | None = None,
) -> Iterator[ExtractPlan]:
    """Settle a job: check the corpus, load the model, resolve layers; write nothing.

    A context manager, because what is read twice (standard input, a corpus in memory) is kept in a
    temporary file while the plan lives.

    Args:
        corpus: as for :func:`~embedkit.dataset.extraction.extract`.
        out: folder to make.
        reading: how the corpus is read.
        settings: which vectors are made and stored.

    Raises:
        UsageError: an option, column, layer or path cannot be used; nothing was written.
    """
    reading, settings = reading or CorpusOptions(), settings or ExtractSettings()
    paths = paths_of(corpus)
    if paths is None and (given := _IN_FILES & set(reading.given)):
        name = min(given)
        raise UsageError(
            f"{name}={getattr(reading, name)!r}: tells how a file is written; the corpus is a "
            f"{type(corpus).__name__} in memory. Leave it out."
        )
    if reading.word_label is not None and settings.words is None:
        raise UsageError(
            f"word_label={reading.word_label!r} is stored with word vectors. Pass words='mean' too."
        )
    target = _out_folder(out, paths)
    fsio.check_place(target)
    poolings = parse_poolings(settings.pooling)
    with input_files(corpus) as files:
        plan = plan_corpus(files, reading)
        _check_kept(plan.keep, RESERVED)
        for notice in plan.notices:
            logger.info(notice)
        yield _with_model(plan, target, settings, poolings)


def _with_model(
    corpus: CorpusPlan, target: Path, settings: ExtractSettings, poolings: Sequence[Pooling]
) -> ExtractPlan:
    """The plan, with the model loaded and its layers resolved."""
    precision = settings.precision
    if precision == "auto":
        precision = recorded_precision(target) or precision
    settings = _with_long_texts(settings, find_fold_models(settings.model))
    _check_views(settings, poolings)
    corpus = hash_inputs(corpus)
    seen = _seen_records(settings.model, corpus)
    encoder = load_encoder(
        settings.model, revision=settings.revision, device=settings.device, precision=precision,
        offline=settings.offline, max_length=settings.max_length,
        batch_tokens=settings.batch_tokens,
    )  # fmt: skip
    if settings.prefix is None and (prefix := encoder.checkpoint.prefix):
        logger.info(f"prefix: {prefix!r}, put before every text (none with prefix='')")
    specs = parse_layers(settings.layers, n_layers=encoder.n_layers)
    if Pooling.POOLER in poolings:
        encoder.require_pooler()
    views = views_of(specs, poolings, n_layers=encoder.n_layers)
    _check_kept(corpus.keep, {view.name for view in views})
    token_layers = specs if settings.tokens or settings.words else ()
    vectors = _vectors(encoder, views, token_layers, settings)
    encoder.tokenizer.room(vectors.tokenizer, paired=corpus.text_pair is not None)
    job = JobSettings(
        format_version=FORMAT_VERSION,
        input=_input(corpus),
        model=ModelSettings(
            type=encoder.checkpoint.model_type, n_layers=encoder.n_layers, width=encoder.width,
            sha256=dict(encoder.checkpoint.sha256),
        ),
        vectors=vectors,
        storage=StorageSettings(
            profile=settings.storage,
            shard_rows=settings.shard_rows or _shard_rows(vectors, settings.storage),
            text=settings.store_text,
        ),
        folds=None if seen is None else seen.models.settings,
    )  # fmt: skip
    return ExtractPlan(corpus, encoder, target, views, token_layers, job, seen)


def _with_long_texts(settings: ExtractSettings, seen: SeenRecords | None) -> ExtractSettings:
    """How long texts are treated: as asked, else as a run's models were trained, else cut."""
    on_long, stride = settings.on_long, settings.stride
    if on_long is None:
        on_long = "truncate" if seen is None else seen.models.on_long
        if seen is not None and on_long == "window" and settings.max_length is None:
            stride = seen.models.stride if stride is None else stride
    if stride is not None and on_long != "window":
        raise UsageError(f"stride={stride} is for on_long='window'.")
    return replace(settings, on_long=on_long, stride=stride)


def _check_views(settings: ExtractSettings, poolings: Sequence[Pooling]) -> None:
    """Raise an error for layers or a pooler that a checkpoint lacks, before it is loaded."""
    if find_fold_models(settings.model) is not None:
        return
    checkpoint = find_checkpoint(
        settings.model, revision=settings.revision, offline=settings.offline
    )
    parse_layers(settings.layers, n_layers=checkpoint.n_layers)
    if Pooling.POOLER in poolings and checkpoint.lacks_pooler:
        raise checkpoint.without_pooler()


def _seen_records(model: str, corpus: CorpusPlan) -> SeenRecords | None:
    """The records that the models of a run were trained on; ``None`` for a checkpoint.

    Raises:
        UsageError: some vectors would be of a model that was trained on the text.
    """
    seen, inside = find_fold_models(model), find_run_of(model)
    if seen is None and inside is None:
        return None
    if seen is not None and "fold" in corpus.keep:
        raise UsageError(
            "keep='fold': the fold of the run's models is written into a column of this name. "
            "Rename the column in the corpus."
        )
    source = [file.sha256 for file in corpus.files]
    records = (item for item in CorpusReader(corpus) if isinstance(item, Record))
    while chunk := list(islice(records, _CHECKED_AT_ONCE)):
        if seen is not None:
            seen.check_source(source, chunk)
            seen.folds_of_records(chunk)
        elif inside is not None:
            inside.check_unseen(Path(model).name, chunk)
    return seen


def _input(corpus: CorpusPlan) -> InputSettings:
    settings: dict[str, Any] = {f.name: getattr(corpus, f.name) for f in fields(CorpusSettings)}
    files = tuple(SourceFile(file.sha256, file.size) for file in corpus.files)
    return InputSettings(files=files, **settings)


def _vectors(
    encoder: Encoder,
    views: Sequence[View],
    token_layers: Sequence[LayerSpec],
    settings: ExtractSettings,
) -> VectorOptions:
    stride = encoder.max_length // 4 if settings.stride is None else settings.stride
    assert settings.on_long is not None
    return VectorOptions(
        views={view.name: view.layer.width(encoder.width) for view in views},
        token_layers={spec.name: spec.width(encoder.width) for spec in token_layers},
        words=settings.words, tokens=settings.tokens, special_tokens=settings.special_tokens,
        normalize=settings.normalize, max_length=encoder.max_length, on_long=settings.on_long,
        stride=stride if settings.on_long == "window" else 0,
        prefix=encoder.checkpoint.prefix_or_own(settings.prefix),
        precision=encoder.precision, batch_tokens=encoder.batch_tokens,
    )  # fmt: skip


def _shard_rows(vectors: VectorOptions, storage: str) -> int:
    """A power of two that makes shards of about 64 MB, by the settings alone."""
    tables = int(vectors.tokens) + int(vectors.words is not None)
    floats = sum(vectors.views.values())
    floats += sum(vectors.token_layers.values()) * _TYPICAL_TOKENS * tables
    rows = max(_SHARD_BYTES // max(floats * (2 if storage == "float16" else 4), 1), 1)
    return int(min(max(1 << (rows.bit_length() - 1), 64), _MAX_SHARD_ROWS))


def _environment(encoder: Encoder) -> dict[str, Any]:
    import tokenizers
    import torch
    import transformers

    device = encoder.model.device
    cuda = device.type == "cuda"
    return {
        "embedkit": __version__,
        **{lib.__name__: lib.__version__ for lib in (np, pa, tokenizers, torch, transformers)},
        "forward": encoder.model.name,
        "device": torch.cuda.get_device_name(device) if cuda else device.type,
        **({} if cuda else {"arithmetic": _arithmetic(encoder)}),
    }


def _arithmetic(encoder: Encoder) -> str:
    """Hash of the vectors of some texts: equal where processor and threads give equal bits.

    Which instructions a library uses, and whether its sums depend on the number of threads, cannot
    be asked; what comes out can. One layer suffices, since all are computed by the same kernels.
    """
    texts = ["a " * words for words in (250, 126, 60, 43, 15, 15, 3, 1)]
    digest = hashlib.sha256()
    for views in (["mean_1"], ["cls_1"]):
        for vectors in encoder.encode_views(texts, views).values():
            digest.update(vectors.tobytes())
    return digest.hexdigest()[:16]


def _out_folder(out: str | Path | None, paths: Sequence[Path] | None) -> Path:
    """The folder to make: as given, else ``corpus.tsv`` → ``corpus.vectors``."""
    folder = _derived_folder(paths) if out is None else Path(out)
    if folder.name in ("", ".."):
        raise UsageError(f"out='{out}': expected the name of a folder to make, as in vectors.")
    try:
        str(folder).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"out='{folder}': readers of Parquet open only names in UTF-8. Pass another out=."
        ) from error
    return folder


def _derived_folder(paths: Sequence[Path] | None) -> Path:
    if paths is None or str(paths[0]) == "-":
        what = "standard input" if paths else "a corpus in memory"
        raise UsageError(f"{what} has no name to derive the output from. Pass out=.")
    name = paths[0].name
    for suffix in PACKED_SUFFIXES:
        name = name.removesuffix(suffix)
    return Path(Path(name).stem + ".vectors")


def _check_kept(keep: Sequence[str], taken: Collection[str]) -> None:
    for name in keep:
        if name in taken:
            raise UsageError(
                f"keep={name!r}: embedkit writes a column of this name itself. "
                "Rename the column in the corpus."
            )
