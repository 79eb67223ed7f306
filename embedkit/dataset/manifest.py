"""The folder of a dataset and its manifest: names, settings, counts and hashes.

``docs/format.md`` describes the same content as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from embedkit.choices import POOLINGS, STORAGES, Pooling
from embedkit.corpus.options import CorpusSettings
from embedkit.dataset.fold_models import FoldSettings
from embedkit.dataset.vector_settings import ModelSettings, VectorOptions, VectorSettings
from embedkit.decoding import decode, read_json
from embedkit.encoding.views import split_view
from embedkit.errors import UsageError, did_you_mean

__all__ = [
    "REPLACING", "TABLES", "EnvironmentShards", "FileEntry", "FooterEntry", "InputSettings",
    "JobSettings", "Layout", "Manifest", "Names", "SourceFile", "StorageSettings", "Totals",
    "in_column_order", "is_dataset", "read_manifest",
]  # fmt: skip

TABLES = ("sentences", "words", "tokens")
"""Folders of shards."""

REPLACING = "_embedkit/replacing"
"""Folder for the dataset that ``overwrite`` replaces, until it is deleted."""

_PART = re.compile(r"part-\d{5,}\.parquet")
_SHARD = re.compile(rf"(?:{'|'.join(TABLES)})/{_PART.pattern}")


class Layout:
    """Names inside a dataset folder; the only place that knows them.

    Attributes:
        root: the dataset.
        private: folder of what is not vectors; readers skip names that begin with an underscore.
        manifest: written last: whoever finds it has a complete dataset.
        job: written first: what the folder is going to hold.
        rejects: one line per record that was not embedded.
        log: when runs started and ended, and how long they took.
        scratch: temporary files; empty of meaning at every start.
        digests: while the job runs: the hash of every sentence file, one small file each.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.private = private = root / "_embedkit"
        self.manifest, self.job = private / "manifest.json", private / "job.json"
        self.rejects, self.log = private / "rejects.jsonl", private / "log.jsonl"
        self.scratch, self.digests = private / "scratch", private / "digests"

    def digest(self, number: int) -> Path:
        """Where the hash of a sentence file is."""
        return self.digests / f"{number:05d}"

    def shard_file(self, folder: str, number: int) -> Path:
        """A shard file, such as ``sentences/part-00000.parquet``."""
        return self.root / folder / f"part-{number:05d}.parquet"

    def content(self, folder: str) -> list[str]:
        """Names of all files in a folder of shards that readers of the folder could take up."""
        where = self.root / folder
        if not where.is_dir():
            return []
        return sorted(p.name for p in where.iterdir() if not p.name.startswith("."))

    def shard_files(self, folder: str) -> list[Path]:
        """The shard files of a folder in order."""
        names = [name for name in self.content(folder) if _PART.fullmatch(name)]
        return [self.root / folder / name for name in sorted(names, key=lambda n: (len(n), n))]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """An input file by its content."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSettings(CorpusSettings):
    """How the corpus was read, and from which files."""

    files: tuple[SourceFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """How vectors are stored, records per shard, and whether the texts are stored too."""

    profile: str
    shard_rows: int
    text: bool

    CHOICES: ClassVar[Mapping[str, Sequence[str]]] = {"profile": STORAGES}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Everything that shapes a byte of a dataset, the environment aside.

    ``folds`` says which models of a fine-tuned run made the vectors; ``None`` for a checkpoint.
    """

    format_version: int
    input: InputSettings
    model: ModelSettings
    vectors: VectorOptions
    storage: StorageSettings
    folds: FoldSettings | None = None

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it: without ``folds`` and ``word_label`` that are ``None``, as earlier."""
        content = asdict(self)
        if self.input.word_label is None:
            del content["input"]["word_label"]
        if self.folds is None:
            del content["folds"]
        return content

    @property
    def vector_settings(self) -> VectorSettings:
        """Everything that shapes a vector."""
        return VectorSettings.of(
            self.vectors, model=self.model, unicode=self.input.unicode,
            storage=self.storage.profile,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FooterEntry:
    """Size and hash of the last bytes of a shard file, which say where everything else is."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Rows, size and hash of a shard file, and its footer; ``None`` in earlier versions."""

    rows: int
    bytes: int
    sha256: str
    footer: FooterEntry | None = None


@dataclass(frozen=True, slots=True)
class EnvironmentShards:
    """Versions and device, and the shards that were made under them."""

    environment: dict[str, Any]
    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """How the user named inputs and model; no part of the identity."""

    inputs: tuple[str, ...]
    model: str
    model_source: str
    revision: str | None

    @property
    def checkpoint(self) -> str:
        """The model and its revision; that of quantized weights says so."""
        return self.model + (f" at {self.revision}" if self.revision else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts of the corpus: ``accepted + rejected + left_out == records``.

    Attributes:
        records: records of the input.
        accepted: records that have vectors.
        rejected: records that could not be embedded.
        rejected_by_reason: their number by reason.
        left_out: records left out by ``min_chars``, ``sample`` and ``limit``.
        left_out_by_reason: their number by setting.
        blank_lines: blank lines, which are no records.
        not_nfc: texts that are not in normal form C.
        fields_with_quotes: cells with a double quote.
        fields_csv_quoted: cells that look as CSV writers quote them.
        ledger: counts of tokens, windows and sequences.
    """

    records: int = 0
    accepted: int = 0
    rejected: int = 0
    rejected_by_reason: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    left_out_by_reason: dict[str, int] = field(default_factory=dict)
    blank_lines: int = 0
    not_nfc: int = 0
    fields_with_quotes: int = 0
    fields_csv_quoted: int = 0
    ledger: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Content of ``manifest.json``.

    Attributes:
        fingerprint: SHA-256 of ``job`` as JSON.
        job: inputs, columns, model, settings.
        environments: versions and device, with the shards made under each.
        totals: counts of the corpus.
        files: every shard file, by relative name.
        names: how the user named inputs and model.
    """

    fingerprint: str
    job: JobSettings
    environments: tuple[EnvironmentShards, ...]
    totals: Totals
    files: dict[str, FileEntry]
    names: Names

    def to_bytes(self) -> bytes:
        """Canonical JSON: the same content gives the same bytes."""
        content = asdict(self) | {"job": self.job.as_dict()}
        text = json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
        return text.encode("utf-8", "backslashreplace")  # bytes of a file name that are not UTF-8

    def problem(self) -> str:
        """What cannot be: no view, or a file that is no shard."""
        if not self.job.vectors.views:
            return "job.vectors.views is empty"
        other = [name for name in self.files if not _SHARD.fullmatch(name)]
        return f"files names {other[0]!r:.60}, which is no shard" if other else ""

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
        known = list(self.columns_of(table))
        return next((name for name in reversed(known) if name.startswith("mean_")), known[-1])

    @property
    def vector_settings(self) -> VectorSettings:
        """Everything that shapes a vector."""
        return self.job.vector_settings

    @property
    def n_shards(self) -> int:
        """Number of shards; each has a sentence file, even one without rows."""
        return sum(name.startswith("sentences/") for name in self.files)

    @property
    def n_layers(self) -> int:
        """Encoder layers of the model."""
        return self.job.model.n_layers


def in_column_order(views: Mapping[str, int]) -> dict[str, int]:
    """Layers ascending, within one the poolings as they are listed, the pooler last."""

    def order(name: str) -> tuple[bool, tuple[int, int, str], int]:
        pooling, layer = split_view(name)
        return name == "pooler", _layer_order(layer), POOLINGS.index(Pooling(pooling))

    return {name: views[name] for name in sorted(views, key=order)}


def _layer_order(name: str) -> tuple[int, int, str]:
    """Layers by their number, combinations after the last of their layers."""
    numbers = [int(x) for x in re.findall(r"\d+", name)]
    return max(numbers, default=0), len(numbers), name


def is_dataset(path: Path) -> bool:
    """Whether the folder is a complete dataset."""
    return Layout(path).manifest.is_file()


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a complete dataset.

    Raises:
        UsageError: there is no dataset.
        DamagedError: the manifest cannot be read.
    """
    file = Layout(path).manifest
    if not file.is_file():
        raise UsageError(f"{path} is not a dataset.{_why_not(path)}")
    advice = "Make the dataset again."
    return decode(Manifest, read_json(file, advice=advice), file=file, advice=advice)


def _why_not(path: Path) -> str:
    incomplete = path.with_name(path.name + ".incomplete")
    if Layout(path).job.is_file() and path.name.endswith(".incomplete"):
        return " It is an unfinished job: run the extract command that began it again."
    if incomplete.is_dir():
        return f" It is unfinished ({incomplete}): run the same extract command again."
    if not path.exists():
        parent = path.parent
        names = (p.name for p in parent.iterdir()) if parent.is_dir() else ()
        return f" It does not exist.{did_you_mean(path.name, names)}"
    return " Give a folder that embedkit extract wrote."
