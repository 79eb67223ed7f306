"""Format of a dataset: names of its files, and the records of ``manifest.json``.

``docs/format.md`` describes the same content for readers in other languages.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from embedkit import storage
from embedkit.corpus.readers import format_of_name
from embedkit.dataset.settings import JobSettings, VectorIdentity
from embedkit.display import ledger_text
from embedkit.errors import OVERWRITE, DamagedError, Option, UsageError, near_path
from embedkit.records import Count, from_json, read_json
from embedkit.remote import address_of, cache_folder, check_place, spelled, store_of
from embedkit.types import AnyPath

if TYPE_CHECKING:
    from embedkit.encoding.checkpoint import Checkpoint

FORMAT_VERSION = 1
"""Raised when the files of a dataset change their meaning."""

TABLES = ("sentences", "words", "tokens")
"""Folders of shards."""

RESERVED = frozenset(
    {"row", "id", "text", "text_pair", "text_key", "label"}
    | {"n_tokens", "n_kept", "n_unknown", "truncated"}
)
"""Columns of embedkit's own; a kept column may not have one of these names."""

MANIFEST = "_embedkit/manifest.json"
_ADVICE = "Run the extract command that made it again."


class Layout:
    """Names inside a dataset folder.

    Readers skip the folder ``private``, whose name begins with an underscore. The manifest means
    that all shards are complete.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.private = private = root / "_embedkit"
        self.manifest, self.job = root / MANIFEST, private / "job.json"
        self.rejects, self.log = private / "rejects.jsonl", private / "log.jsonl"
        self.shards, self.index = private / "shards.parquet", private / "index"
        self.scratch = root / storage.UNFINISHED
        self.receipts = self.scratch / "receipts"

    def shard_file(self, folder: str, number: int) -> Path:
        """A shard file, such as ``sentences/part-00000000.parquet``."""
        # eight digits, so that other readers, which sort names as text, keep the order of shards
        return self.root / folder / f"part-{number:08d}.parquet"

    def parts(self) -> list[str]:
        """Names of all files in the folders of shards that other readers would open."""
        folders = (self.root / table for table in TABLES if (self.root / table).is_dir())
        files = (file for folder in folders for file in sorted(folder.iterdir()))
        # hidden files are left out as other readers leave them out
        return [f"{file.parent.name}/{file.name}" for file in files if file.name[0] != "."]


def unlisted_files(folder: Path, sums: Collection[str]) -> list[str]:
    """Names of the files of a dataset without a checksum.

    That is a shard, as other readers take every Parquet file there for one, or what describes them.
    """
    layout = Layout(folder)
    names = layout.parts()
    described = (layout.manifest, layout.job, layout.rejects, layout.shards) if names else ()
    names += [file.relative_to(folder).as_posix() for file in described]
    return [name for name in names if name not in sums]


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


class EnvironmentShards(TypedDict):
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

    @classmethod
    def of(cls, checkpoint: Checkpoint, *, inputs: Iterable[str]) -> Names:
        """Return the names of a checkpoint and of what it reads."""
        name, source, revision = checkpoint.name, checkpoint.source, checkpoint.revision
        return cls(inputs=tuple(inputs), model=name, model_source=source, revision=revision)

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

    def embedded_text(self, where: str = "") -> str:
        """Return the counts of records in words, and ``where`` the rejected ones are."""
        reasons = self.rejected_by_reason, self.left_out_by_reason
        return ledger_text(self.accepted, "embedded", *reasons, where)


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
        for table in self.job.vectors.tables:
            if not any(file.startswith(f"{table}/") for file in self.files):
                return f"files has none of {table}"
        return "" if self.job.vectors.views else "job.vectors.views is empty"

    @property
    def source(self) -> tuple[str, ...]:
        """SHA-256 of the files that it was made from."""
        return tuple(file.sha256 for file in self.job.input.files)

    @property
    def views(self) -> dict[str, int]:
        """Width of every sentence view, by column name, in the order of the columns."""
        return self.columns_of("sentences")

    def columns_of(self, table: str) -> dict[str, int]:
        """Width of every vector column of a table, by column name, in the order of layers."""
        return self.job.vectors.columns_of(table)

    def default_view(self, table: str) -> str:
        """The last vector column that is a mean, else the last one."""
        names = list(self.columns_of(table))
        return next((name for name in reversed(names) if name.startswith("mean_")), names[-1])

    @property
    def vector_settings(self) -> VectorIdentity:
        """Everything that shapes a vector."""
        return self.job.vector_settings

    def files_of(self, table: str) -> list[FileEntry]:
        """The files of a table, one for each shard in order; a shard without rows has one too."""
        return [self.files[name] for name in sorted(self.files) if name.startswith(f"{table}/")]


def local_dataset(path: AnyPath, *, new: bool = False, whole: bool = False) -> Path:
    """The folder of a dataset; of one in an object store a local copy of its present state.

    It must be complete and undamaged there, unless it may be ``new``. The copy is known by its
    manifest and sums, and files that differ from them are fetched again if the ``whole`` copy is
    compared. Processes that need a copy at once wait for the one that fetches it.
    """
    address = address_of(path)
    if not address:
        return Path(path)
    # the whole address, its query included: equal names at two addresses are two copies
    digest = hashlib.sha256(address.encode()).hexdigest()[:16]
    shown = storage.without_secrets(address)
    copy = cache_folder() / digest / shown.rstrip("/").split("/")[-1]
    # messages show the address, not this place
    spelled[str(copy)] = shown
    with store_of(address) as (store, root):
        absent = [n for n in (MANIFEST, storage.SUMS) if not store.exists(f"{root}/{n}")]
        if absent:
            if not new:
                raise UsageError(f"{shown} is not a dataset: it has no {absent[0]}.")
            check_place(store, root, shown)  # before anything is encoded
            return copy
        # the parent holds the lock: the copy itself is replaced by a rename
        storage.make_folder(copy.parent)
        copy.parent.chmod(0o700)  # the bucket may be private
        with storage.exclusive(copy.parent, wait=True):
            # the manifest names every shard, the sums every byte: if both are those of the store,
            # so is the rest, unless the copy was damaged here
            same = all(
                (copy / name).is_file()
                and (copy / name).read_bytes() == store.cat_file(f"{root}/{name}")
                for name in (MANIFEST, storage.SUMS)
            )
            if same and not (whole and storage.differing_files(copy, storage.file_sums(copy))):
                return copy
            # not sealed: the sums of the store come along, and are what the files are compared with
            with storage.new_folder(copy, begin=storage.empty_folder, sealed=False) as work:
                store.get_file(f"{root}/{storage.SUMS}", str(work / storage.SUMS))
                for name, digest in storage.file_sums(work).items():
                    storage.make_folder((work / name).parent)
                    # what has not changed is not fetched again; a link is safe, since files are
                    # replaced, not written
                    if (copy / name).is_file() and storage.file_sha256(copy / name) == digest:
                        storage.link_file(copy / name, work / name)
                    else:
                        # one that is missing is named below, with those that are damaged
                        with suppress(FileNotFoundError):
                            store.get_file(f"{root}/{name}", str(work / name))
                if not new:  # a job makes what is damaged again
                    storage.check_files(work, advice=f"Make {shown} again.")
                # indexes are made here and are not in the store; they belong to this very content
                if same:
                    storage.link_tree(Layout(copy).index, Layout(work).index)
    return copy


def is_dataset(path: AnyPath) -> bool:
    """True if the folder, or the address of one, is a complete dataset.

    An address that ends as a corpus file does is not asked: some servers have a page for any name.
    """
    address = address_of(path)
    if not address:
        return (Path(path) / MANIFEST).is_file()
    # the query of a signed address comes after the name
    if format_of_name(Path(address.partition("?")[0])):
        return False
    with store_of(address) as (store, root):
        return bool(store.exists(f"{root}/{MANIFEST}"))


def dataset_folder(
    source: object, options: Mapping[str, Any] | None = None, *, prefix: str = ""
) -> Path | None:
    """The folder of the dataset that ``source`` names, see :func:`local_dataset`; else ``None``.

    A dataset is a folder, also an unfinished one, and an address that has one; all else is a
    corpus. Its records and vectors are settled, so that ``options`` of reading and encoding are a
    :class:`UsageError`, which calls them with the ``prefix``.
    """
    if not isinstance(source, str | os.PathLike):
        # what load() returns is a table too, whose texts would be encoded anew, by another model
        if hasattr(source, "manifest"):
            raise UsageError(f"{source!r} is loaded; pass its folder.")
        return None
    path = Path(source)
    here = not address_of(source) and (path.is_dir() or storage.incomplete(path).is_dir())
    if not here and not is_dataset(source):
        return None
    # before anything is fetched
    for name, value in (options or {}).items():
        problem = f"is for a corpus; {source} is a dataset, whose records are settled"
        raise UsageError(f"{prefix}{Option(name, value)} {problem}.")
    return local_dataset(source)


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a complete dataset; a :class:`UsageError` if there is no dataset."""
    layout = Layout(path)
    file = layout.manifest
    # order: wait, note what stands there, read, and look again if what was read is damaged
    storage.wait_for_swap(path)
    seen = storage.state_of(path)
    if file.is_file():
        try:
            storage.check_files(path, [MANIFEST], advice=_ADVICE)
            # its bytes are as they were written: the same command would be refused again
            again = f"{_ADVICE.removesuffix('.')}, with {OVERWRITE}."
            return from_json(Manifest, read_json(file, advice=_ADVICE), file=file, advice=again)
        except DamagedError:  # or the folder was replaced in between
            storage.check_unchanged(path, seen)
            raise
    begun = layout.job.is_file() and path.name.endswith(".incomplete")
    # from here on: no manifest, and a message that says what there is instead
    if begun or storage.incomplete(path).is_dir():
        why = "It is unfinished: run the command that began it again."
    elif not path.exists():
        why = f"It does not exist.{near_path(path)}"
    elif path.is_file():
        why = f"Make one: embedkit extract {shlex.quote(str(path))}."
    else:
        why = "Give a folder that embedkit extract wrote."
    raise UsageError(f"{path} is not a dataset. {why}")


# the unit separator of ASCII, which hardly a text has; it counts as white space, so that the key of
# a pair is that of both texts with a space between them
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
    # nearly every text is printable, and then the slow pass over its characters is spared; white
    # space such as tabs and line ends is of category Cc too, and stays
    if not folded.isprintable():
        kept = (c for c in folded if c.isspace() or unicodedata.category(c) not in ("Cc", "Cf"))
        folded = "".join(kept)
    words = " ".join(folded.split())
    # surrogatepass: lone surrogates, which JSON may hold, have a key too
    digest = hashlib.sha256(words.encode("utf-8", "surrogatepass")).digest()
    # 64 bits, the largest integer that Arrow and NumPy share; the order of bytes is part of the
    # format
    return int.from_bytes(digest[:8], "little", signed=True)


def whole_text(first: str, second: str | None, *, separator: str = SEPARATOR) -> str:
    """Return a text, or both texts of a pair joined."""
    return first if second is None else f"{first}{separator}{second}"
