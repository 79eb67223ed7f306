"""The inputs of a corpus: files, standard input, and objects in memory.

The bytes of the temporary file that an object in memory is written to depend on its records alone:
its hash identifies the corpus.
"""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from embedkit.corpus.columnar import ROW_GROUP, write_table
from embedkit.corpus.readers import format_of_name
from embedkit.corpus.sources import PACKED_SUFFIXES
from embedkit.corpus.values import is_missing, plain
from embedkit.errors import CorpusError, UsageError, first_line, near_path
from embedkit.records import Count
from embedkit.remote import address_of, spelled, store_of
from embedkit.storage import known_sha256, reading, storage_errors, unreadable, without_secrets

logger = logging.getLogger(__name__)

_WITHOUT_ARROW = ("interval", "period")  # types of pandas whose values have a text only
# entries that are tried as names of files: a list of paths given as text shows at its beginning
_CHECKED = 1_000
_LINES_AT_ONCE = 100  # of records that are written
_EXPECTED = (
    "a path, a list of paths, a list or iterator of str or dict, a DataFrame, an Arrow table or a "
    "Hugging Face Dataset"
)


@runtime_checkable
class ArrowStream(Protocol):
    """A table of any library with Arrow's C stream interface."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


CorpusLike = (
    str
    | os.PathLike[str]
    | Sequence[os.PathLike[str]]
    | Iterable[str | None]
    | Iterable[Mapping[str, Any]]
    | ArrowStream
)
"""A corpus, see :func:`embedkit.extract`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """An input file by its content: its bytes on disk."""

    sha256: str
    bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile(SourceFile):
    """One input file at the start of the job; without checksum until its plan is hashed."""

    path: Path
    name: str  # as the user named it; "-" for standard input, "<DataFrame>" for one in memory
    state: tuple[int, int, int]  # its number in the file system, last change of content and at all

    @classmethod
    def of(cls, path: Path, *, name: str | None = None) -> InputFile:
        """Describe an existing file; a :class:`CorpusError` for folders, pipes and devices."""
        try:
            status = path.stat()
        except (OSError, ValueError) as error:  # of a list of paths, in which there may be a NUL
            gone = f" The folder {path.parent} does not exist."
            near = near_path(path) if path.parent.is_dir() else gone
            raise unreadable(path, error, error=CorpusError, advice=near.strip()) from error
        if stat.S_ISDIR(status.st_mode):
            # of what Dataset.save_to_disk writes the data, and not what is said of them
            data = (".arrow", ".parquet")
            files = sorted(
                islice(path.rglob("*.*"), 1_000), key=lambda file: file.suffix not in data
            )
            advice = f"give its files{f', such as {files[0]}' if files else ''}"
            if (path / "SHA256SUMS").is_file():
                advice = "it is of embedkit, and other commands take it as it is"
            raise CorpusError(f"{path} is a folder; {advice}.")
        if not stat.S_ISREG(status.st_mode):
            problem = "is a pipe or a device, which cannot be read twice"
            raise CorpusError(f"{path} {problem}. Give a file, or '-' for standard input.")
        state = status.st_ino, status.st_mtime_ns, status.st_ctime_ns
        size, shown = status.st_size, name or str(path)
        return cls(sha256="", bytes=size, path=path, name=shown, state=state)

    def check_unchanged(self) -> None:
        """Raise a :class:`CorpusError` if the file has changed."""
        now = InputFile.of(self.path, name=self.name)
        changed = (now.bytes, now.state) != (self.bytes, self.state)
        with reading(self.path, error=CorpusError, advice=""):
            # a backup by hard links, or other rights, change the state and not a byte; the hash is
            # that of this state, which each shard asks for
            if changed and known_sha256(self.path, now.state) != self.sha256:
                raise CorpusError(f"{self.name} changed while it was being read. Start again.")


def paths_of(corpus: CorpusLike) -> list[Path] | None:
    """The files of a corpus; ``None`` if it is in memory, as a list of ``str`` always is."""
    if isinstance(corpus, str | os.PathLike):
        return [Path(corpus)]
    # an iterator is not looked into: what is taken from it would be lost
    if not isinstance(corpus, list | tuple):
        return None
    if not corpus:
        raise UsageError("the corpus is an empty list. Example: embedkit extract corpus.tsv")
    # a str in a list is a text; only a Path is a path
    n_paths = sum(isinstance(entry, os.PathLike) for entry in corpus)
    if n_paths and n_paths < len(corpus):
        raise UsageError("the corpus is a list of paths and of texts. Pass a list of one kind.")
    return [Path(entry) for entry in corpus] if n_paths else None


def stem_of(path: str | os.PathLike[str]) -> str:
    """Name of a file without its suffixes, of which ``corpus.tsv.gz`` has two."""
    # the query of an address may hold a signature, which must not become the name of an output
    name = Path(without_secrets(os.fspath(path))).name
    for suffix in PACKED_SUFFIXES:
        name = name.removesuffix(suffix)
    return Path(name).stem


@contextmanager
def input_files(corpus: CorpusLike) -> Iterator[list[InputFile]]:
    """Describe the inputs of a corpus; copies of them last as long as the context."""
    paths = paths_of(corpus)
    if paths is not None and [str(path) for path in paths].count("-") > 1:
        raise UsageError("standard input (-) can be read once only; it was given twice.")
    # only where something is copied, since a kill leaves the folder
    copied = paths is None or any(str(path) == "-" or address_of(path) for path in paths)
    temporary = tempfile.TemporaryDirectory(prefix="embedkit-") if copied else nullcontext("")
    with temporary as folder:
        if paths is None:
            file = _spool(corpus, Path(folder))
            yield [InputFile.of(file, name=f"<{type(corpus).__name__}>")]
        else:
            yield [_described(path, Path(folder, str(i))) for i, path in enumerate(paths)]


def _described(path: Path, folder: Path) -> InputFile:
    """The description of a file; of standard input or a URL that of a copy in ``folder``."""
    name = address_of(path)
    if str(path) != "-" and not name:
        return InputFile.of(path)
    # the name is kept, by whose suffix the format is recognised, without the query of a URL
    copy = folder / (PurePosixPath(name.partition("?")[0]).name or "stdin")
    # messages of readers show what was given, not this place
    spelled[str(copy)] = shown = without_secrets(name) or "-"
    # one for each input: two addresses may end in the same name
    folder.mkdir()
    # a copy on disk, since a corpus is read several times: for its
    # columns, its hash, its sample and its records
    with storage_errors(folder):
        if not name:
            with copy.open("wb") as target:
                shutil.copyfileobj(sys.stdin.buffer, target)
        else:
            logger.info(f"fetching {shown}")
            # whole, by one request: the second of two may meet another version of the file
            with store_of(name, error=CorpusError) as (store, file):
                store.get_file(file, str(copy))
    return InputFile.of(copy, name=shown)


def _spool(corpus: Any, folder: Path) -> Path:
    """Write a corpus in memory to a file in ``folder``, and return its path."""
    kind = type(corpus).__name__
    if kind == "Series":  # of pandas and of Polars; a column without a table
        corpus = corpus.to_list()
    elif isinstance(corpus, pa.Array | pa.ChunkedArray):
        corpus = corpus.to_pylist()
    # they can be iterated too, over their keys, numbers or lines, which nobody means
    if (
        isinstance(corpus, Mapping | set | frozenset | bytes | io.IOBase)  # a set has no order
        or not (isinstance(corpus, Iterable) or hasattr(corpus, "__arrow_c_stream__"))
        or getattr(corpus, "ndim", 1) == 0
    ):
        advice = ""
        if isinstance(corpus, Mapping):
            advice = " Pass pandas.DataFrame(corpus), or of a DatasetDict one of its values."
        elif hasattr(corpus, "collect"):  # a LazyFrame of Polars
            advice = " Pass corpus.collect()."
        raise UsageError(f"the corpus is a {kind}; expected {_EXPECTED}.{advice}")
    try:
        table = _as_batches(corpus)
        if table is not None:
            file = folder / f"{kind}.parquet"
            write_table(*table, file)
            return file
    # whole numbers beyond 64 bits overflow
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        problem = f"{first_line(error)}. Convert that column to str, rename or drop it."
        raise UsageError(f"the {kind} cannot be read as a table: {problem}") from error
    file = folder / f"{kind}.jsonl"
    lines = (_json_line(record, number) for number, record in enumerate(corpus))
    with storage_errors(file):
        file.touch()  # of no record too
    for block in iter(lambda: b"".join(islice(lines, _LINES_AT_ONCE)), b""):
        # the disk alone is watched: an OSError that the iterator of
        # the caller raises is not one of storage
        with storage_errors(file), file.open("ab") as sink:
            sink.write(block)
    return file


def _check_no_path(text: str, number: int) -> None:
    """Refuse the name of a file, which would be embedded as a text."""
    # no names are longer than 255 bytes, and few have spaces: long texts cost no look at the disk
    short = len(text) < 256 and text.split() == [text]
    if short and (text == "-" or format_of_name(Path(text)) or os.path.isfile(text)):  # noqa: PTH113 - NUL is false
        raise UsageError(
            f"entry {number} names a file: pass [pathlib.Path({text!r})], or {{'text': {text!r}}}."
        )


def _json_line(record: Any, number: int) -> bytes:
    """A record as a line of JSON, after a look at the first ones: a list may be one of paths."""
    if number < _CHECKED and isinstance(record, str):
        _check_no_path(record, number)
    # a missing text keeps its row, and is rejected by the reader
    if isinstance(record, str) or is_missing(record):
        record = {"text": record}
    if not isinstance(record, Mapping):
        kind = type(record).__name__
        raise UsageError(f"record {number} of the corpus is a {kind}; expected a str or a dict.")
    try:
        line = json.dumps(plain(record), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"{first_line(error)}. Pass dicts of str, numbers, dates and None."
        raise UsageError(f"record {number} of the corpus cannot be read: {problem}") from error
    # half a surrogate pair, which the reader rejects, becomes \udc80, which is how JSON spells it
    return line.encode("utf-8", "backslashreplace") + b"\n"


def _as_batches(corpus: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]] | None:
    library = type(corpus).__module__.partition(".")[0]
    # by the name of its module: no library is imported to ask whether an object is one of its own.
    # pandas stands before the stream, since a frame has to be made readable first
    if library == "pandas" and hasattr(corpus, "iloc"):  # an index or an array is a list of texts
        table = pa.Table.from_pandas(_readable(corpus), preserve_index=False)
        return table.schema, iter(table.to_batches())
    # a dataset that was selected from or shuffled has Arrow tables of other rows, so they are asked
    # for through its iterator. A transform of the user yields dicts, like any other iterator, and
    # so does an IterableDataset, which mostly knows what they are
    in_files = library == "datasets" and hasattr(corpus, "num_rows")
    if in_files and corpus.format["type"] != "custom":
        tables = corpus.with_format("arrow").iter(ROW_GROUP)
        batches = (batch for table in tables for batch in table.to_batches())
        return corpus.features.arrow_schema, batches
    # a column is a list of texts, and has no format
    stream = library == "datasets" and not in_files and hasattr(corpus, "with_format")
    if stream and corpus.features is not None:
        # as its files would hold them: of an image the bytes, of a class the number
        rows = map(corpus.features.encode_example, corpus.with_format(None))
        parts = iter(lambda: list(islice(rows, ROW_GROUP)), [])
        schema = corpus.features.arrow_schema
        return schema, (pa.RecordBatch.from_pylist(part, schema) for part in parts)
    if hasattr(corpus, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(corpus)
        return reader.schema, iter(reader)
    return None


def _readable(frame: Any) -> Any:
    """A frame of pandas with its named index as columns, and text for intervals and periods."""
    # an index without a name is only the numbers of the rows
    names = [n for n in frame.index.names if n is not None and n not in frame.columns]
    if names:
        frame = frame.reset_index(names)
    for place, kind in enumerate(frame.dtypes):
        column, texts = frame.iloc[:, place], None
        # of a category the type of its values; else that of the column itself, of no rows
        if str(getattr(kind, "categories", column[:0]).dtype).startswith(_WITHOUT_ARROW):
            texts = [None if is_missing(value) else str(value) for value in column]
        elif str(kind) == "object" and any(isinstance(value, set | frozenset) for value in column):
            texts = list(map(plain, column))  # each process has another order of a set
        if texts is not None:
            # the frame belongs to the caller
            frame = frame.copy(deep=False)
            # by place, since two columns may have one name until that is refused
            frame.isetitem(place, texts)
    return frame
