"""The inputs of a corpus: files, standard input, and objects in memory."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from embedkit.corpus.memory import spool
from embedkit.errors import CorpusError, UsageError, did_you_mean
from embedkit.fsio import storage_errors

__all__ = ["CorpusLike", "InputFile", "input_files", "paths_of"]


class ArrowStream(Protocol):
    """A table of any library that hands it over by Arrow's C stream interface."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


CorpusLike = (
    str
    | os.PathLike[str]
    | Sequence[os.PathLike[str]]
    | Iterable[str | None]
    | Iterable[Mapping[str, Any]]
    | ArrowStream
)
"""What a corpus may be.

A ``str`` or ``Path`` is a file (``-``: standard input), a list of ``Path`` is several files.
Everything else is in memory: a list or iterator of ``str`` (texts) or of ``dict`` (records), a
pandas or Polars DataFrame, an Arrow table or ``RecordBatchReader``, a Hugging Face ``Dataset``.
"""


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input file as found when the job started.

    Attributes:
        path: where it is.
        name: how the user named it; ``-`` for standard input, ``<DataFrame>`` for one in memory.
        size: bytes on disk.
        mtime_ns: modification time, to notice a change during the job.
        sha256: hash of the bytes on disk, hex; empty until :func:`hash_inputs`.
    """

    path: Path
    name: str
    size: int
    mtime_ns: int
    sha256: str = ""

    @classmethod
    def of(cls, path: Path, *, name: str | None = None) -> InputFile:
        """Describe a file that exists.

        Raises:
            CorpusError: it does not exist, or is a folder, a pipe or a device.
        """
        try:
            status = path.stat()
        except OSError as error:
            raise CorpusError(
                f"{path} cannot be opened: {error.strerror}.{_neighbour(path)}"
            ) from error
        if stat.S_ISDIR(status.st_mode):
            raise CorpusError(f"{path} is a folder; give its files: {path}/*.tsv.")
        if not stat.S_ISREG(status.st_mode):
            raise CorpusError(
                f"{path} is a pipe or a device, which cannot be read twice. Give a file, or "
                "'-' and pipe into standard input."
            )
        return cls(path, name or str(path), status.st_size, status.st_mtime_ns)

    def check_unchanged(self) -> None:
        """Raise a :class:`CorpusError` if the file is no longer the one that was described."""
        now = InputFile.of(self.path, name=self.name)
        if (now.size, now.mtime_ns) != (self.size, self.mtime_ns):
            raise CorpusError(
                f"{self.name} changed while it was being read. Let it settle and start again: the "
                "finished shards will be compared with the new content."
            )


def paths_of(corpus: CorpusLike) -> list[Path] | None:
    """The files that a corpus names; ``None`` if it is in memory.

    A list of ``str`` is a list of texts, never of files, so that no text is taken for a path.

    Raises:
        UsageError: the list is empty, or only some of its entries are paths.
    """
    if isinstance(corpus, str | os.PathLike):
        return [Path(corpus)]
    if not isinstance(corpus, list | tuple):
        return None
    if not corpus:
        raise UsageError("the corpus is an empty list. Example: embedkit extract corpus.tsv")
    n_paths = sum(isinstance(entry, os.PathLike) for entry in corpus)
    if n_paths and n_paths < len(corpus):
        raise UsageError(
            f"{n_paths} of the {len(corpus)} entries of the corpus are pathlib.Path objects. Pass "
            "a list of paths (files), or a list without any (texts or records)."
        )
    return [Path(entry) for entry in corpus] if n_paths else None


@contextmanager
def input_files(corpus: CorpusLike) -> Iterator[list[InputFile]]:
    """Describe the inputs of a corpus.

    Standard input and objects in memory are first written to a temporary file, which lasts as
    long as the context; its bytes follow from the records alone.

    Raises:
        CorpusError: a file does not exist, or cannot be read twice.
        UsageError: the object is no corpus.
    """
    paths = paths_of(corpus)
    if paths is not None and [str(path) for path in paths].count("-") > 1:
        raise UsageError("standard input (-) can be read once only; it was given twice.")
    with tempfile.TemporaryDirectory(prefix="embedkit-") as temporary:
        if paths is None:
            file = spool(corpus, Path(temporary))
            yield [InputFile.of(file, name=f"<{type(corpus).__name__}>")]
        else:
            yield [
                _standard_input(Path(temporary)) if str(path) == "-" else InputFile.of(path)
                for path in paths
            ]


def _standard_input(folder: Path) -> InputFile:
    file = folder / "stdin"
    with storage_errors(file), file.open("wb") as target:
        shutil.copyfileobj(sys.stdin.buffer, target)
    return replace(InputFile.of(file), name="-")


def _neighbour(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f" The folder {folder} does not exist."
    return did_you_mean(path.name, (p.name for p in folder.iterdir()))
