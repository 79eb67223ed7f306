"""Format of a dataset: names of files, records of ``manifest.json``, schema of the Parquet shards.

``docs/format.md`` describes the same content for readers in other languages.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeGuard, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from embedkit import storage
from embedkit.arguments import check_fields
from embedkit.choices import (
    DEFAULT_MODEL,
    POOLINGS,
    Engine,
    OnLong,
    Pooling,
    Precision,
    Storage,
    Subtokens,
)
from embedkit.corpus.plan import CorpusOptions, CorpusSettings
from embedkit.corpus.readers import format_of_name
from embedkit.encoding.tokenizer import TokenizerSettings
from embedkit.encoding.views import l2_normalize, split_view
from embedkit.errors import DamagedError, EncodeError, UsageError, did_you_mean
from embedkit.storage import Count, Positive, check_files, decode, incomplete, read_json
from embedkit.types import AnyPath, Float32

FORMAT_VERSION = 1
"""Raised when the files of a dataset change their meaning."""

TABLES = ("sentences", "words", "tokens")
"""Folders of shards."""

SCRATCH = "_embedkit/scratch"
"""Folder for what an unfinished job needs, and for the dataset that it replaces; deleted last."""

ROW_GROUP_ROWS = 8_192
RESERVED = frozenset(
    {"row", "id", "text", "text_pair", "text_key", "label"}
    | {"n_tokens", "n_kept", "n_unknown", "truncated"}
)
"""Columns of embedkit's own; a kept column may not have one of these names."""

MANIFEST = "_embedkit/manifest.json"
_ADVICE = "Run the extract command that made it again."
_PART = re.compile(r"part-\d{8}\.parquet")
_FOOTER_BYTES = 1 << 16  # read at once, enough for most
_DICTIONARY = ("label", "token")
_PREFIX = b"embedkit."
_SCALE = b"embedkit.scale"  # in the metadata of a column of int8
_LAYER = "layer_"


class Layout:
    """Names inside a dataset folder; the only place that knows them.

    Readers skip the folder ``private``, whose name begins with an underscore. The manifest means
    that all shards are complete.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.private = private = root / "_embedkit"
        self.manifest, self.job = root / MANIFEST, private / "job.json"
        self.rejects, self.log = private / "rejects.jsonl", private / "log.jsonl"
        self.shards, self.index = private / "shards.parquet", private / "index"
        self.scratch = root / SCRATCH
        self.receipts = self.scratch / "receipts"

    def shard_file(self, folder: str, number: int) -> Path:
        """A shard file, such as ``sentences/part-00000000.parquet``."""
        return self.root / folder / f"part-{number:08d}.parquet"

    def content(self, folder: str) -> list[str]:
        """Names of all files in a folder of shards that other readers would open."""
        where = self.root / folder
        if not where.is_dir():
            return []
        return sorted(p.name for p in where.iterdir() if not p.name.startswith("."))

    def shard_files(self, folder: str) -> list[Path]:
        """The shard files of a folder in order."""
        names = [name for name in self.content(folder) if _PART.fullmatch(name)]
        return [self.root / folder / name for name in names]


_MAY_DIFFER = {"may_differ": True}
"""Metadata of fields in which two datasets may differ whose sentence vectors are comparable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorChoices:
    """Options of ``extract`` that a dataset records as they were given.

    Attributes:
        words: write word vectors: {SUBTOKENS} of sub-tokens.
            The words of CoNLL-U are its own, those of other formats stand between white space.
        tokens: write token vectors.
        special_tokens: whether ``mean`` and ``max`` count [CLS] and [SEP].
        dims: keep only so many of the first coordinates of sentence vectors, scaled to length 1.
    """

    words: Subtokens | None = field(default=None, metadata=_MAY_DIFFER)
    tokens: bool = field(default=False, metadata=_MAY_DIFFER)
    special_tokens: bool = True
    dims: Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractSettings(VectorChoices):
    """Options of ``extract`` for the vectors: model, layers, pooling, storage.

    Attributes:
        model: hub id or folder of the checkpoint, a fine-tuned run, or ``multilingual``.
        revision: branch, tag or commit of a hub checkpoint.
        offline: never ask the hub.
        layers: a list, or a string as for :func:`~embedkit.encoding.views.parse_layers`.
        pooling: {POOLINGS};
            several in a list, or in a string with commas; by default that of the checkpoint.
        normalize: scale sentence vectors to length 1 (L2); by default if neither layers nor pooling
            is given and the checkpoint does.
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
        shard_index: make only this one of ``num_shards`` parts of the shards, from 0, beside other
            processes and machines. The same call without it makes the rest and the dataset.
        num_shards: number of parts.

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
    shard_index: int | None = None
    num_shards: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        index, count = self.shard_index, self.num_shards
        if (index, count) != (None, None) and (index is None or not 0 <= index < (count or 0)):
            raise UsageError(f"shard_index={index}: expected one from 0 to num_shards= minus 1.")

    @property
    def devices(self) -> list[str]:
        """The devices by their names."""
        return [name.strip() for name in self.device.split(",")]

    @property
    def n_workers(self) -> int:
        """The number of workers."""
        return self.workers or len(self.devices)


EXTRACTION = (CorpusOptions, ExtractSettings)
"""Records with the options of ``extract``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """A checkpoint by its shape and the SHA-256 of its files."""

    type: str
    n_layers: Positive
    width: Positive
    sha256: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorOptions(VectorChoices):
    """Settings of the vectors, defaults resolved; ``views`` and ``token_layers`` give widths."""

    views: dict[str, Positive] = field(metadata=_MAY_DIFFER)
    token_layers: dict[str, Positive] = field(metadata=_MAY_DIFFER)
    max_length: Count
    on_long: OnLong
    stride: Count
    normalize: bool
    prefix: str
    precision: Precision
    batch_tokens: Count = field(metadata=_MAY_DIFFER)

    def columns(self, level: str) -> set[str]:
        """Names of the vector columns of records (``sentence``), or of words and tokens."""
        if level == "sentence":
            return set(self.views)
        return {f"{_LAYER}{name}" for name in self.token_layers}


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorSettings(VectorOptions):
    """Everything that shapes a vector; ``storage`` is the profile it is rounded to."""

    model: ModelSettings = field(metadata=_MAY_DIFFER)  # compared by :func:`different_files`
    storage: Storage

    @classmethod
    def of(cls, options: VectorOptions, *, model: ModelSettings, storage: str) -> VectorSettings:
        """Join the settings that a manifest or ``run.json`` holds in several places."""
        own: dict[str, Any] = {f.name: getattr(options, f.name) for f in fields(VectorOptions)}
        return cls(**own, model=model, storage=storage)

    def as_stored(self, vectors: Float32, *, name: str, rows: Any) -> NDArray[Any]:
        """Sentence vectors ``(n, width)`` as stored: cut, normalized if asked for, and rounded.

        The column ``name`` and the ``(n,)`` record numbers ``rows`` are for the message of the
        :class:`EncodeError` if a value is NaN or infinite after the rounding.
        """
        if self.normalize or self.dims is not None:
            vectors = l2_normalize(vectors[:, : self.dims])
        return cast_for_storage(vectors, self.storage, name=name, rows=rows)

    def differences(self, other: VectorSettings) -> list[str]:
        """Return phrases for settings that make sentence vectors differ from those of ``other``."""
        phrases = [
            f"{f.name} is {getattr(self, f.name)!r}, expected {getattr(other, f.name)!r}"
            for f in fields(self)
            if not f.metadata.get("may_differ") and getattr(self, f.name) != getattr(other, f.name)
        ]
        if self.model.type != other.model.type:
            phrases.append(f"the model is a {self.model.type}, expected a {other.model.type}")
        elif files := different_files(self.model.sha256, other.model.sha256):
            phrases.append(f"{files} of the model differ")
        return phrases


def different_files(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Return the names of files whose checksums differ, separated by commas."""
    return ", ".join(sorted(n for n in old.keys() | new.keys() if old.get(n) != new.get(n)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldSettings:
    """The run whose encoders made the vectors of a dataset.

    Their vectors are averaged in the order of ``models``; ``fold_of_model`` is the fold that each
    was not trained on.
    """

    models: tuple[str, ...]
    fold_of_model: tuple[Count, ...]
    split: str

    def problem(self) -> str:
        """Return a message if models and folds contradict each other, else an empty string."""
        plain = all(re.fullmatch(r"[\w-]+", name) for name in self.models)
        same = len(self.models) == len(self.fold_of_model) > 0
        return "" if plain and same else "models: expected one fold for each folder in model/"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """An input file by its content."""

    sha256: str
    bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSettings(CorpusSettings):
    """Settings of the corpus, and its files."""

    files: tuple[SourceFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
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
    input: InputSettings
    model: ModelSettings
    vectors: VectorOptions
    storage: StorageSettings
    folds: FoldSettings | None = None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the settings as canonical JSON, in hex."""
        return hashlib.sha256(canonical_json(asdict(self))).hexdigest()

    @property
    def vector_settings(self) -> VectorSettings:
        """Everything that shapes a vector."""
        return VectorSettings.of(self.vectors, model=self.model, storage=self.storage.profile)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Rows and bytes of a shard file, and the SHA-256 of its footer, see :func:`footer_sha256`."""

    rows: Count
    bytes: Count
    footer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A finished shard: its files with their SHA-256, its counts, and versions and device."""

    shard: Count
    fingerprint: str  # in the footers
    files: dict[str, FileEntry]
    sha256: dict[str, str]
    ledger: dict[str, Count]
    environment: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EnvironmentShards:
    """Versions and device, and the shards that were made under them."""

    environment: dict[str, Any]
    shards: tuple[Count, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names of inputs and model as the user gave them; not part of the identity."""

    inputs: tuple[str, ...]
    model: str
    model_source: str
    revision: str | None

    @property
    def checkpoint(self) -> str:
        """The model and its revision."""
        return self.model + (f" at {self.revision}" if self.revision else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts of the corpus: ``accepted + rejected + left_out == records``.

    Left out are records by ``min_chars``, ``sample`` and ``limit``; blank lines are not records.
    The ledger counts tokens, windows and sequences.
    """

    records: Count = 0
    accepted: Count = 0
    rejected: Count = 0
    rejected_by_reason: dict[str, Count] = field(default_factory=dict)
    left_out: Count = 0
    left_out_by_reason: dict[str, Count] = field(default_factory=dict)
    blank_lines: Count = 0
    fields_with_quotes: Count = 0
    fields_csv_quoted: Count = 0
    ledger: dict[str, Count] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Content of ``manifest.json``; ``fingerprint`` is the SHA-256 of ``job`` as JSON."""

    fingerprint: str
    job: JobSettings
    environments: tuple[EnvironmentShards, ...]
    totals: Totals
    files: dict[str, FileEntry]
    names: Names

    def problem(self) -> str:
        """Return a message if fields contradict each other, else an empty string."""
        if self.job.format_version != FORMAT_VERSION:
            return f"job.format_version is {self.job.format_version}, expected {FORMAT_VERSION}"
        if self.job.fingerprint != self.fingerprint:
            return "the settings have another fingerprint"
        return "" if self.job.vectors.views else "job.vectors.views is empty"

    @property
    def source(self) -> tuple[str, ...]:
        """SHA-256 of the files that it was made from."""
        return tuple(file.sha256 for file in self.job.input.files)

    @property
    def views(self) -> dict[str, int]:
        """Width of every sentence view, by column name, in the order of the columns."""
        return in_column_order(self.job.vectors.views)

    def columns_of(self, table: str) -> dict[str, int]:
        """Width of every vector column of a table, by column name, in the order of layers."""
        if table == "sentences":
            return self.views
        layers = self.job.vectors.token_layers
        return {f"layer_{name}": layers[name] for name in sorted(layers, key=_layer_order)}

    def default_view(self, table: str) -> str:
        """The last vector column that is a mean, else the last one."""
        names = list(self.columns_of(table))
        return next((name for name in reversed(names) if name.startswith("mean_")), names[-1])

    @property
    def vector_settings(self) -> VectorSettings:
        """Everything that shapes a vector."""
        return self.job.vector_settings

    @property
    def n_shards(self) -> int:
        """Number of shards; each has a sentence file, even one without rows."""
        return sum(name.startswith("sentences/") for name in self.files)


def in_column_order(views: Mapping[str, int]) -> dict[str, int]:
    """Layers ascending, within one the poolings as they are listed, those without a layer last."""

    def order(name: str) -> tuple[bool, tuple[int, int, str], int]:
        pooling, layer = split_view(name)
        return not Pooling(pooling).has_layer, _layer_order(layer), POOLINGS.index(Pooling(pooling))

    return {name: views[name] for name in sorted(views, key=order)}


def _layer_order(name: str) -> tuple[int, int, str]:
    """Layers by their number, combinations after the last of their layers."""
    numbers = [int(x) for x in re.findall(r"\d+", name)]
    return max(numbers, default=0), len(numbers), name


def local_dataset(path: AnyPath, *, new: bool = False, whole: bool = False) -> Path:
    """The folder of a dataset; of one in an object store a local copy of its present state.

    It must be complete and undamaged there, unless it may be ``new``. The copy is known by its
    manifest and sums, and files that differ from them are fetched again if the ``whole`` copy is
    compared. Processes that need a copy at once wait for the one that fetches it.
    """
    address = storage.address_of(path)
    if not address:
        return Path(path)
    digest = hashlib.sha256(address.encode()).hexdigest()[:16]
    shown = storage.without_secrets(address)
    copy = storage.cache_folder() / digest / shown.rstrip("/").split("/")[-1]
    storage.spelled[str(copy)] = shown
    with storage.store_of(address) as (store, root):
        if not store.exists(f"{root}/{MANIFEST}"):
            if not new:
                raise UsageError(f"{shown} is not a dataset: it has no {MANIFEST}.")
            return copy
        storage.make_folder(copy.parent)
        copy.parent.chmod(0o700)  # the bucket may be private
        with storage.exclusive(copy.parent, wait=True):
            same = all(
                (copy / name).is_file()
                and (copy / name).read_bytes() == store.cat_file(f"{root}/{name}")
                for name in (MANIFEST, storage.SUMS)
            )
            if same and not (whole and storage.differing_files(copy, storage.file_sums(copy))):
                return copy
            with storage.new_folder(copy, sealed=False) as work:
                store.get_file(f"{root}/{storage.SUMS}", str(work / storage.SUMS))
                for name, digest in storage.file_sums(work).items():
                    storage.make_folder((work / name).parent)
                    if (copy / name).is_file() and storage.file_sha256(copy / name) == digest:
                        storage.link_file(copy / name, work / name)
                    else:
                        store.get_file(f"{root}/{name}", str(work / name))
                if not new:  # a job makes what is damaged again
                    check_files(work, advice=f"Make {shown} again.")
                if same:
                    storage.link_tree(Layout(copy).index, Layout(work).index)
                storage.sync_tree(work)
    return copy


def is_dataset(path: AnyPath) -> bool:
    """True if the folder, or the address of one, is a complete dataset.

    An address that ends as a corpus file does is not asked: some servers have a page for any name.
    """
    if not (address := storage.address_of(path)):
        return Layout(Path(path)).manifest.is_file()
    if format_of_name(Path(address.partition("?")[0])):
        return False
    with storage.store_of(address) as (store, root):
        return bool(store.exists(f"{root}/{MANIFEST}"))


def names_dataset(source: object) -> TypeGuard[AnyPath]:
    """True for a folder, also an unfinished one, and the address of a dataset; else a corpus."""
    if not isinstance(source, str | os.PathLike):
        return False
    if storage.address_of(source):
        return is_dataset(source)
    return Path(source).is_dir() or incomplete(Path(source)).is_dir()


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a complete dataset; a :class:`UsageError` if there is no dataset."""
    file = Layout(path).manifest
    storage.wait_for_swap(path, private=SCRATCH)
    seen = storage.state_of(path)
    if file.is_file():
        try:
            check_files(path, [MANIFEST], advice=_ADVICE)
            return decode(Manifest, read_json(file, advice=_ADVICE), file=file, advice=_ADVICE)
        except DamagedError:  # or the folder was replaced in between
            storage.check_unchanged(path, seen)
            raise
    unfinished, parent = incomplete(path), path.parent
    if Layout(path).job.is_file() and path.name.endswith(".incomplete"):
        why = "It is an unfinished job: run the extract command that began it again."
    elif unfinished.is_dir():
        why = f"It is unfinished ({unfinished}): run the same extract command again."
    elif not path.exists():
        names = (p.name for p in parent.iterdir()) if parent.is_dir() else ()
        why = f"It does not exist.{did_you_mean(path.name, names)}"
    else:
        why = "Give a folder that embedkit extract wrote."
    raise UsageError(f"{path} is not a dataset. {why}")


def canonical_json(value: object) -> bytes:
    """JSON with sorted keys: the same content gives the same bytes."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, indent=1)
    return text.encode("utf-8", "backslashreplace")  # file names that are not UTF-8


@dataclass(frozen=True, slots=True)
class Footer:
    """Description of a shard, in the key-value metadata of its footer.

    First and last row are record numbers, -1 for a shard without rows. ``job`` holds settings,
    inputs and environment, for people.
    """

    fingerprint: str
    shard: int
    first_row: int
    last_row: int
    rows: int
    ledger: Mapping[str, int]
    job: Mapping[str, Any]


def vector_column(vectors: NDArray[Any]) -> pa.Array:
    """``(n, width)`` numbers as an Arrow array of fixed-size lists, without copying."""
    kind = pa.from_numpy_dtype(vectors.dtype)
    element = pa.field("element", kind, nullable=False)
    flat = pa.array(np.ascontiguousarray(vectors).reshape(-1), kind)
    return pa.FixedSizeListArray.from_arrays(flat, type=pa.list_(element, vectors.shape[1]))


def matrix_of(table: pa.Table, name: str) -> NDArray[Any]:
    """Return a vector column of a shard as ``(n, width)`` floats."""
    whole, field = table.column(name).combine_chunks(), table.schema.field(name)
    flat = np.asarray(whole.flatten().to_numpy(zero_copy_only=False))
    matrix = flat.reshape(-1, field.type.list_size)
    if matrix.dtype == np.int8:
        return matrix * np.array(json.loads(field.metadata[_SCALE]), np.float32)
    return matrix


def scaled(vectors: Float32) -> tuple[NDArray[np.int8], Float32]:
    """Return ``(n, width)`` vectors of a shard as int8, and the ``(width,)`` factors to undo it.

    The largest number of each dimension becomes 127: a shard depends on no other one.
    """
    scale = np.abs(vectors).max(axis=0, initial=0) / np.float32(127)
    scale[scale == 0] = 1
    return np.rint(vectors / scale).clip(-127, 127).astype(np.int8), scale


def kept_neighbours(views: Iterable[Float32]) -> dict[str, int]:
    """Count the 10 nearest neighbours in a shard by cosine, and those that still are in int8.

    They are those of its first 200 vectors.
    """
    counts = {"neighbours": 0, "neighbours_int8": 0}
    for vectors in views:
        small, scale = scaled(vectors)
        nearest = []
        for rows in (vectors, small * scale):
            unit = l2_normalize(rows).astype(np.float64)
            cosine = (unit[:200] @ unit.T).round(9)  # the same with any number of threads
            np.fill_diagonal(cosine, -2)
            order = np.argsort(-cosine, axis=1, kind="stable")
            nearest.append(order[:, : min(10, max(len(rows) - 1, 0))])
        counts["neighbours"] += nearest[0].size
        both = (np.intersect1d(*pair) for pair in zip(*nearest, strict=True))
        counts["neighbours_int8"] += sum(map(len, both))
    return counts


def cast_for_storage(vectors: Float32, storage: str, *, name: str, rows: Any) -> NDArray[Any]:
    """Round ``(n, width)`` float32 to a storage profile; NaN and infinity are refused.

    ``float32``: exact, uncompressed. ``float16``: half the size on disk and in memory. ``compact``:
    float32 columns of values rounded to float16, split by bytes and compressed, about 0.43 of
    float32. ``int8``: a quarter of the size, rounded when a shard is written, see :func:`scaled`.
    The column ``name`` and the record numbers ``rows`` are for the message.
    """
    result: NDArray[Any] = vectors
    if storage in ("float16", "compact"):
        with np.errstate(over="ignore"):
            result = vectors.astype(np.float16)
    if not np.isfinite(result).all():
        bad = np.flatnonzero(~np.isfinite(result).all(axis=1))
        reason = "NaN or infinite values"
        if np.isfinite(vectors).all():
            reason = "values beyond float16 (over 65504); use storage='float32'"
        listed = ", ".join(str(rows[i]) for i in bad[:5])
        raise EncodeError(f"{name}: {reason} in {len(bad)} vectors (rows {listed}).")
    return result.astype(np.float32) if storage == "compact" else result


def shard_bytes(
    scalars: Mapping[str, pa.Array],
    vectors: Mapping[str, NDArray[Any]],
    *,
    footer: Footer,
    storage: str,
) -> pa.Buffer:
    """One Parquet file in memory. The same arguments give the same bytes.

    ``scalars`` are the columns that are not vectors, of which ``label`` and kept ones may be null;
    ``vectors`` are ``(n, width)`` arrays as :func:`cast_for_storage` returned them.
    """
    of_tokens = "token_id" in scalars and "id" not in scalars  # a kept column may be called so
    filled = ("token",) if of_tokens else ("id", "text", "text_pair")
    columns = list(scalars.values())
    fields = [
        pa.field(name, column.type, nullable=column.type == pa.string() and name not in filled)
        for name, column in scalars.items()
    ]
    for name, values in vectors.items():
        metadata = None
        if storage == "int8":
            values, scale = scaled(values)
            metadata = {_SCALE: json.dumps(scale.tolist()).encode()}
        column = vector_column(values)
        fields.append(pa.field(name, column.type, nullable=False, metadata=metadata))
        columns.append(column)
    facts = {
        _PREFIX + name.encode(): json.dumps(value, ensure_ascii=False, sort_keys=True).encode()
        for name, value in asdict(footer).items()
    }
    schema = pa.schema(fields, metadata=facts)
    table = pa.Table.from_arrays(columns, schema=schema)
    leaves = [f"{name}.list.element" for name in vectors]
    compression = dict.fromkeys(scalars, "zstd")
    compression |= dict.fromkeys(leaves, "zstd" if storage == "compact" else "none")
    # twice the raw size is never reached; pages that are not written to take no memory, whereas
    # a growing buffer would be copied each time it doubles
    room = pa.allocate_buffer(2 * table.nbytes + (4 << 20))
    sink = pa.FixedSizeBufferWriter(room)
    pq.write_table(
        table,
        sink,
        version="2.6",
        data_page_version="1.0",
        row_group_size=ROW_GROUP_ROWS,
        compression=compression,
        # Parquet has no numbers of one byte: without a dictionary they would be of four
        use_dictionary=[n for n in scalars if n in _DICTIONARY]
        + (leaves if storage == "int8" else []),
        use_byte_stream_split=leaves if storage == "compact" else False,
        write_statistics=list(scalars),
        write_page_index=True,
        write_page_checksum=True,
        store_schema=True,
    )
    size = sink.tell()
    sink.close()
    return room.slice(0, size)


def read_footer(path: Any) -> Footer:
    """Read the description of a shard, without its data; a ``ValueError`` for another file."""
    try:
        metadata = cast("Mapping[bytes, bytes] | None", pq.read_metadata(path).metadata) or {}
        names = Footer.__slots__
        return Footer(**{name: json.loads(metadata[_PREFIX + name.encode()]) for name in names})
    except (KeyError, ValueError, OSError) as error:  # Arrow's, of what is not a Parquet file, too
        if getattr(error, "errno", None) is not None:  # the machine's
            raise
        raise ValueError(f"not a shard of embedkit: {error}") from error


def footer_sha256(descriptor: int) -> str:
    """SHA-256 in hex of the footer of an open Parquet file, with its length and the last bytes.

    Pages carry checksums of their own; the footer, which says where they are, what they mean and
    whose they are, has none in Parquet. A ``ValueError`` if the file has no footer.
    """
    size = os.fstat(descriptor).st_size
    end = os.pread(descriptor, _FOOTER_BYTES, max(size - _FOOTER_BYTES, 0))
    length = int.from_bytes(end[-8:-4], "little") + 8
    if not end.endswith(b"PAR1") or length > size:
        raise ValueError("it does not end as a Parquet file does")
    if length > len(end):
        end = os.pread(descriptor, length, size - length)
    return hashlib.sha256(end[-length:]).hexdigest()


def text_column(values: Sequence[str | None]) -> pa.Array:
    """Strings as an Arrow column."""
    return pa.array(values, pa.string())


SEPARATOR = "\x1f"


def text_key(text: str) -> int:
    """Return a key that texts share if they differ in case, width, white space or marks only.

    It is a signed integer: the first eight bytes, little-endian, of the SHA-256 of the text in
    normal form NFKC and folded case, without control and format characters (zero-width spaces,
    byte order marks), which tokenizers remove, and with one space for each run of white space.

    >>> text_key("Ａ\u200b  Text ") == text_key("a text")
    True
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    if not folded.isprintable():
        kept = (c for c in folded if c.isspace() or unicodedata.category(c) not in ("Cc", "Cf"))
        folded = "".join(kept)
    words = " ".join(folded.split())
    digest = hashlib.sha256(words.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def whole_text(first: str, second: str | None, *, separator: str = SEPARATOR) -> str:
    """Return a text, or both texts of a pair joined."""
    return first if second is None else f"{first}{separator}{second}"


def tokenizer_settings(options: VectorOptions) -> TokenizerSettings:
    """Return lengths, windows and prefix."""
    return TokenizerSettings(options.max_length, options.on_long, options.stride, options.prefix)
