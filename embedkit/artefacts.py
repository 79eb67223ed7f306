"""How a folder of results gets its name: complete, or not at all.

    OUT.incomplete/               where it is made, locked
    OUT.incomplete/unfinished/    what only the next attempt needs

One rename makes it ``OUT``. Where something is replaced, both names are exchanged at once, so that
the old or the new is there at any moment; a file system that cannot do that renames twice. The old
one then waits inside of the new, in ``unfinished/replaced``, to be deleted; whatever was cut short
in between, the next command ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from embedkit import fsio
from embedkit.checksums import seal
from embedkit.errors import OutputExistsError

__all__ = ["UNFINISHED", "finish_swap", "incomplete", "new_folder", "publish", "write_files"]

UNFINISHED = "unfinished"
"""Folder inside of ``OUT.incomplete`` for what only the next attempt needs."""

_REPLACED = "replaced"


def incomplete(out: Path) -> Path:
    """Return where a folder is made before it has its name."""
    return out.with_name(out.name + ".incomplete")


@contextmanager
def new_folder(
    out: Path,
    *,
    begin: Callable[[Path], None] | None = None,
    sealed: bool = True,
    private: str = UNFINISHED,
) -> Iterator[Path]:
    """A folder to fill, which becomes ``out`` when the block ends without an error.

    Args:
        out: whatever is there is replaced: the caller has looked.
        begin: called with the folder when it is locked; without, it is emptied.
        sealed: write the checksums of its files.
        private: as for :func:`publish`.

    Raises:
        LockedError: another process is at it.
        StorageError: the file system refused.
    """
    work = incomplete(out)
    fsio.make_folder(work)
    with fsio.exclusive(work):  # first of all: what is in it may be another process at work
        for left in list(work.rglob("*.partial")):  # else it would be among the checksums
            fsio.remove_file(left)
        (begin or fsio.empty_folder)(work)
        yield work
        if sealed:
            seal(work, leave_out=private)
        publish(work, out, private=private)


def publish(work: Path, out: Path, *, private: str = UNFINISHED) -> None:
    """Give a complete folder its name, and delete what had it.

    Args:
        work: the folder.
        out: its name.
        private: folder inside of it that is deleted when it has its name.
    """
    aside = f"{private}/{_REPLACED}"
    if _is_filled(out):
        fsio.make_folder(work / aside)  # in the new folder it tells that the other is the old one
        if fsio.exchange_folders(work, out):
            fsio.publish_folder(work, out / aside)
        else:
            fsio.publish_folder(out, work / aside)
            fsio.publish_folder(work, out)
    else:
        fsio.publish_folder(work, out)
    fsio.remove_tree(out / private)


def finish_swap(out: Path, is_ours: Callable[[Path], bool], *, private: str = UNFINISHED) -> None:
    """Complete a replacement that was interrupted.

    Args:
        out: the name.
        is_ours: whether what is there was made here; nothing else is touched.
        private: as for :func:`publish`.

    Raises:
        LockedError: another process is just at it.
    """
    work, aside = incomplete(out), f"{private}/{_REPLACED}"
    if _is_filled(work / aside) and not os.path.lexists(out):
        with fsio.exclusive(work):
            fsio.publish_folder(work, out)
    if (out / private).is_dir() and not out.is_symlink() and is_ours(out):
        with fsio.exclusive(out):
            names_exchanged = (out / aside).is_dir() and not _is_filled(out / aside)
            if names_exchanged and work.is_dir() and not (work / aside).is_dir():
                fsio.publish_folder(work, out / aside)
            fsio.remove_tree(out / private)


def _is_filled(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def write_files(files: Mapping[Path, bytes | memoryview], *, overwrite: bool) -> None:
    """Write files that belong together, the one that makes the others count last.

    A file that already holds the same is none in the way: the command was interrupted.

    Raises:
        OutputExistsError: one of them holds something else, and ``overwrite`` is not set.
    """
    for path, data in files.items():
        if path.exists() and not overwrite and (not path.is_file() or path.read_bytes() != data):
            raise OutputExistsError(f"{path} exists. Choose another name, or pass overwrite=True.")
    for path, data in files.items():
        fsio.make_folder(path.parent)
        fsio.write_durably(path, data, scratch=path.parent)
