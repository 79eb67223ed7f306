"""What ``extract`` was told, and what it decided.

    ExtractOptions   what a person said; None: decide for me
    VectorSettings   all decided: layers, widths, lengths, precision
    VectorIdentity   with model and storage: everything that shapes a vector
    JobSettings      with corpus, folds and shards: everything that shapes a byte of a dataset
    Job              with the environment: versions, device and a hash of the arithmetic

The SHA-256 of ``JobSettings`` is the fingerprint by which a job is resumed, a shard is bound to its
dataset, and two machines work on one job. A change of the environment does not change it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from embedkit.arguments import check_fields
from embedkit.choices import DEFAULT_MODEL, POOLINGS, Engine, OnLong, Precision, Storage, Subtokens
from embedkit.corpus.plan import CorpusOptions, CorpusSettings
from embedkit.dataset.parquet import cast_for_storage
from embedkit.encoding.views import l2_normalize, layer_rank, split_view
from embedkit.encoding.windows import TokenizerSettings
from embedkit.errors import UsageError
from embedkit.records import Count, Positive, canonical_json
from embedkit.types import Float32

if TYPE_CHECKING:
    from embedkit.encoding.checkpoint import Checkpoint

_MAY_DIFFER = {"may_differ": True}
"""Metadata of fields in which two datasets may differ whose sentence vectors are comparable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorOptions:
    """Options of ``extract`` that a dataset records as they were given.

    Attributes:
        words: write word vectors: {SUBTOKENS} of sub-tokens.
            Those of CoNLL, spans and lists are marked; of other texts they stand between white
            space.
        tokens: write token vectors.
        special_tokens: whether ``mean``, ``max`` and ``last_token`` count [CLS] and [SEP].
        dims: keep only so many of the first coordinates of sentence vectors, scaled to length 1.
    """

    words: Subtokens | None = field(default=None, metadata=_MAY_DIFFER)
    tokens: bool = field(default=False, metadata=_MAY_DIFFER)
    special_tokens: bool = True
    dims: Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractOptions(VectorOptions):
    """Options of ``extract`` for the vectors: model, layers, pooling, storage.

    Attributes:
        model: hub id or folder of the checkpoint, a fine-tuned run, or ``multilingual``.
        revision: branch, tag or commit of a hub checkpoint.
        offline: never ask the hub.
        layers: a list, or a string as for :func:`~embedkit.encoding.views.parse_layers`.
        pooling: {POOLINGS};
            several in a list, or in a string with commas; by default that of the checkpoint.
        normalize: scale sentence vectors to length 1 (L2); by default if the checkpoint does, no
            pooling is given, and the last layer alone is taken.
        max_length: tokens per sequence, special ones counted.
        on_long: {ON_LONG}; by default ``truncate``, and of a fine-tuned
            run what it was trained with.
        stride: tokens common to neighbouring windows; by default a quarter of ``max_length``.
        prefix: put before every text, such as ``"query: "``; by default that of the checkpoint
            (``multilingual`` has one), ``""`` for none.
        prompt: name of one of the checkpoint's prompts, instead of a prefix.
        precision: {PRECISIONS};
            by default fp32 on the CPU, half precision on CUDA.
        storage: {STORAGES}.
        device: ``auto``, ``cpu``, ``cuda:0``, or several (``cuda:0,cuda:1``) for as many workers.
        batch_tokens: tokens per batch, padding included.
        shard_rows: records per shard.
        store_text: write the texts too.
        workers: processes that make shards; by default this one, or one for each device. On CPU
            they share the cores; a device may have several. A script that passes two or more needs
            ``if __name__ == "__main__":``.
        engine: ``local``, or ``ray`` (``pip install ray``) for workers on all machines of a
            cluster; corpus and ``out`` must be on a file system that all of them see.
        address: of the Ray cluster; by default the one that ``ray`` finds, or a new one here.
        gpus_per_worker: GPUs that Ray gives to a worker, such as ``0.5``.
        part: ``(i, n)``, to make only part ``i`` of ``n``, from 0, beside other processes and
            machines. The same call without it makes the rest and the dataset.

    Raises:
        UsageError: a value cannot be used.
    """

    model: str = DEFAULT_MODEL
    revision: str | None = None
    offline: bool = False
    layers: str | int | Sequence[str | int] = "-1"
    pooling: str | Sequence[str] | None = None
    normalize: bool | None = None
    max_length: Positive | None = None
    on_long: OnLong | None = None
    stride: Count | None = None
    prefix: str | None = None
    prompt: str | None = None
    precision: Precision | None = None
    storage: Storage = "float32"
    device: str = "auto"
    batch_tokens: Positive | None = None
    shard_rows: Positive | None = None
    store_text: bool = True
    workers: Positive | None = None
    engine: Engine = "local"
    address: str | None = None
    gpus_per_worker: float = 0.0
    part: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.part is not None and not (len(self.part) == 2 and 0 <= self.part[0] < self.part[1]):
            raise UsageError("expected two numbers, the first of them smaller.", part=self.part)

    @property
    def devices(self) -> list[str]:
        """The devices by their names."""
        return [name.strip() for name in self.device.split(",")]

    @property
    def n_workers(self) -> int:
        """The number of workers."""
        return self.workers or len(self.devices)


EXTRACTION = (CorpusOptions, ExtractOptions)
"""Records with the options of ``extract``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """A checkpoint by its shape and the SHA-256 of its files."""

    type: str
    n_layers: Positive
    width: Positive
    sha256: dict[str, str]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> ModelRecord:
        """Describe a checkpoint."""
        return cls(
            type=checkpoint.model_type,
            n_layers=checkpoint.n_layers,
            width=checkpoint.width,
            sha256=dict(checkpoint.sha256),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorSettings(VectorOptions):
    """Settings of the vectors, defaults resolved; ``views`` and ``token_layers`` give widths."""

    views: dict[str, Positive] = field(metadata=_MAY_DIFFER)
    token_layers: dict[str, Positive] = field(metadata=_MAY_DIFFER)
    max_length: Count
    on_long: OnLong
    stride: Count
    normalize: bool
    prefix: str
    precision: Precision
    # batches change no bit where embedkit is batch-invariant, and elsewhere no more than rounding
    # does
    batch_tokens: Count = field(metadata=_MAY_DIFFER)

    @property
    def tables(self) -> list[str]:
        """Names of the tables: sentences always, words and tokens if they are written."""
        stored = {"sentences": True, "words": self.words is not None, "tokens": self.tokens}
        return [name for name, is_stored in stored.items() if is_stored]

    @property
    def tokenization(self) -> TokenizerSettings:
        """Lengths, windows and prefix."""
        return TokenizerSettings(self.max_length, self.on_long, self.stride, self.prefix)

    def columns_of(self, table: str) -> dict[str, int]:
        """Width of every vector column of a table, by column name, in the order of layers."""
        if table == "sentences":
            return in_column_order(self.views)
        layers = self.token_layers
        return {f"layer_{name}": layers[name] for name in sorted(layers, key=layer_rank)}


def in_column_order(views: Mapping[str, int]) -> dict[str, int]:
    """Layers ascending, within one the poolings as they are listed, those without a layer last."""

    def order(name: str) -> tuple[tuple[float, int, str], int]:
        pooling, layer = split_view(name)
        return layer_rank(layer), POOLINGS.index(pooling)

    return {name: views[name] for name in sorted(views, key=order)}


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorIdentity(VectorSettings):
    """Everything that shapes a vector; ``storage`` is the profile it is rounded to."""

    model: ModelRecord = field(metadata=_MAY_DIFFER)  # compared by :func:`different_files`
    storage: Storage

    @classmethod
    def of(cls, options: VectorSettings, *, model: ModelRecord, storage: str) -> VectorIdentity:
        """Join the settings that a manifest or ``run.json`` holds in several places."""
        values: dict[str, Any] = {f.name: getattr(options, f.name) for f in fields(VectorSettings)}
        return cls(**values, model=model, storage=storage)

    def as_stored(self, vectors: Float32, *, name: str, rows: Any) -> NDArray[Any]:
        """Sentence vectors ``(n, width)`` as stored: cut, normalized if asked for, and rounded.

        The column ``name`` and the ``(n,)`` record numbers ``rows`` are for the message of the
        :class:`EncodeError` if a value is NaN or infinite after the rounding.
        """
        if self.normalize or self.dims is not None:
            # cut first: the shortened vector has length 1. Before the rounding, which is the last
            # step
            vectors = l2_normalize(vectors[:, : self.dims])
        return cast_for_storage(vectors, self.storage, name=name, rows=rows)

    def differences(self, other: VectorIdentity) -> list[str]:
        """Return phrases for settings that make sentence vectors differ from those of ``other``."""
        names = [f.name for f in fields(self) if not f.metadata.get("may_differ")]
        phrases = unlike((name, getattr(self, name), getattr(other, name)) for name in names)
        # of another kind of model all files differ, and a list of them would say less
        if self.model.type != other.model.type:
            phrases.append(f"the model is a {self.model.type}, expected a {other.model.type}")
        elif files := different_files(self.model.sha256, other.model.sha256):
            phrases.append(f"{files} of the model differ")
        return phrases


def unlike(settings: Iterable[tuple[str, Any, Any]]) -> list[str]:
    """Return phrases for settings, each by its name, that are others than expected."""
    return [f"{name} is {a!r}, expected {b!r}" for name, a, b in settings if a != b]


def different_files(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Return the names of files whose checksums differ, separated by commas."""
    return ", ".join(sorted(n for n in old.keys() | new.keys() if old.get(n) != new.get(n)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldRecord:
    """The run whose encoders made the vectors of a dataset.

    Their vectors are averaged in the order of ``models``; ``fold_of_model`` is the fold that each
    was not trained on.
    """

    models: tuple[str, ...]
    fold_of_model: tuple[Count, ...]
    split: str

    def problem(self) -> str:
        """Return a message if models and folds contradict each other, else an empty string."""
        # the names become paths, so that none may lead out of the folder
        plain = all(re.fullmatch(r"[\w-]+", name) for name in self.models)
        same = len(self.models) == len(self.fold_of_model) > 0
        return "" if plain and same else "models: expected one fold for each folder in model/"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRecord:
    """Storage profile, records per shard, and whether texts are stored."""

    profile: Storage
    shard_rows: Positive
    text: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Everything that shapes a byte of a dataset, except for the environment.

    ``folds`` names the models of a fine-tuned run; it is ``None`` for a checkpoint.
    """

    format_version: int
    input: CorpusSettings
    model: ModelRecord
    vectors: VectorSettings
    storage: StorageRecord
    folds: FoldRecord | None = None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the settings as canonical JSON, in hex."""
        return hashlib.sha256(canonical_json(asdict(self))).hexdigest()

    @property
    def vector_settings(self) -> VectorIdentity:
        """Everything that shapes a vector."""
        return VectorIdentity.of(self.vectors, model=self.model, storage=self.storage.profile)


@dataclass(frozen=True, slots=True)
class Job:
    """Identity of a dataset: its settings, and versions, device and a hash of its arithmetic."""

    settings: JobSettings
    environment: dict[str, Any]


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Fields that differ, one a line, with both values."""
    old, new = dict(_flat(before)), dict(_flat(now))
    for values in (old, new):  # of a workbook it is the name of the sheet
        if values.get("input.format") == "sheet":
            values["input.sheet"] = values.pop("input.delimiter")

    def short(value: Any) -> str:
        text = "nothing" if value is None else json.dumps(value, ensure_ascii=False)
        return text if len(text) <= 60 else text[:57] + "…"

    differing = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    # of another model all files differ, and their checksums tell a reader nothing
    sums = "model.sha256."
    files = ", ".join(key.removeprefix(sums) for key in differing if key.startswith(sums))
    lines = [
        f"  {key}: {short(old.get(key))} there, {short(new.get(key))} now"
        for key in differing
        if not key.startswith(sums)
    ]
    return "\n".join([f"  model: other contents of {files}"] * bool(files) + lines)


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    # lists of plain values stay whole, which reads better than one line for each of them
    elif isinstance(value, list | tuple) and any(isinstance(v, Mapping) for v in value):
        for i, inner in enumerate(value):
            yield from _flat(inner, f"{prefix}[{i}]")
    else:
        # what comes from JSON has lists where records have tuples
        yield prefix, list(value) if isinstance(value, tuple) else value
