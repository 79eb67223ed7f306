"""The only place that makes files durable.

A file appears by: write to a temporary name in the same file system, ``fsync``, ``rename`` onto the
final name, ``fsync`` of the folder. A crash at any moment leaves the old state or the new one.
On macOS ``F_FULLFSYNC`` takes the place of ``fsync``, which there leaves data in the drive's cache.
A failed ``fsync`` is never repeated on the same file: the kernel may have dropped the dirty pages
and would report success (Rebello et al., USENIX ATC 2020). The temporary file is removed instead
and the error is raised.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from embedkit.errors import LockedError, StorageError, first_line
from embedkit.parquet_seal import sealed

__all__ = [
    "check_place",
    "empty_folder",
    "exchange_folders",
    "exclusive",
    "file_sha256",
    "free_bytes",
    "link_file",
    "make_folder",
    "publish_file",
    "publish_folder",
    "remove_file",
    "remove_tree",
    "storage_errors",
    "sync_tree",
    "tree_bytes",
    "write_durably",
    "write_parquet",
]

_MAKING = threading.RLock()


@contextmanager
def storage_errors(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Turn an ``OSError`` of the block into a :class:`StorageError` that names ``path``.

    ``others`` are errors that a library raises in its place.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, (OSError, *others)):
            raise
        number, reason = getattr(error, "errno", None), getattr(error, "strerror", None)
        hint = ""
        if others or number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            hint = f" ({free_bytes(path) / 1e6:,.1f} MB free). Free some space"
            hint += " and run the same command again: what is finished is kept"
        elif number in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = ". Pass a folder that you may write to as out="
        message = f"cannot write {path}: {reason or first_line(error)}{hint}."
        raise StorageError(message) from error


def write_durably(path: Path, data: bytes | memoryview, *, scratch: Path) -> None:
    """Make ``path`` hold exactly ``data``, at once and for good.

    Args:
        path: final name; replaced if it exists.
        data: the whole content.
        scratch: folder for the temporary file, on the same file system as ``path``.

    Raises:
        StorageError: the file system refused; ``path`` is then what it was before, unless the
            folder's own ``fsync`` was what failed.
    """
    temporary = scratch / f"{path.parent.name}-{path.name.removesuffix('.parquet')}.partial"
    with storage_errors(path):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                _write_all(descriptor, memoryview(data))
                _sync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)  # noqa: PTH105 - kept beside the calls it belongs to
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _sync_path(path.parent)


def write_parquet(path: Path, table: Any) -> None:
    """Write an Arrow table as Parquet with checksums, as :func:`write_durably` does.

    The same table gives the same bytes.

    Args:
        path: final name; replaced if it exists.
        table: ``pyarrow.Table``.

    Raises:
        StorageError: the file system refused.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    write_durably(path, sealed(memoryview(sink.getvalue())), scratch=path.parent)


def publish_file(source: Path, target: Path) -> None:
    """Give a finished file its final name; durable when it returns."""
    with storage_errors(target):
        _sync_path(source)
        os.replace(source, target)  # noqa: PTH105 - kept beside the calls it belongs to
        _sync_path(target.parent)


def link_file(source: Path, target: Path) -> bool:
    """Give a durable file a second name; whether the file system can do that.

    The name is durable after :func:`sync_tree` of its folder.
    """
    try:
        target.hardlink_to(source)
    except OSError:
        return False
    return True


def make_folder(path: Path) -> None:
    """Create a folder, its parents included, durably; of several threads one does it."""
    with _MAKING, storage_errors(path):
        if not path.is_dir():
            if path.exists():
                raise StorageError(f"{path} is a file where a folder is needed. Name another one.")
            make_folder(path.parent)
            path.mkdir(exist_ok=True)
            _sync_path(path.parent)


def publish_folder(source: Path, target: Path) -> None:
    """Rename a folder onto a name that does not exist; durable when it returns."""
    with storage_errors(target):
        os.rename(source, target)  # noqa: PTH104 - must fail on a filled target, as rename(2) does
        _sync_path(target.parent)


def exchange_folders(one: Path, other: Path) -> bool:
    """Exchange two names in one folder at once, durably; ``False`` where that cannot be done."""
    with storage_errors(other):
        if not _exchange(one, other):
            return False
        _sync_path(other.parent)
        return True


def sync_tree(path: Path) -> None:
    """Make a folder durable that another library filled: every file in it, and their names."""
    with storage_errors(path):
        for inner in sorted(path.rglob("*")):
            _sync_path(inner)
        _sync_path(path)


def remove_tree(path: Path) -> None:
    """Delete a folder that embedkit made if it is there."""
    with storage_errors(path):
        if path.is_dir():
            shutil.rmtree(path)
            _sync_path(path.parent)


def empty_folder(path: Path) -> None:
    """Delete all that a folder of embedkit's making holds."""
    for inner in path.iterdir():
        remove_tree(inner) if inner.is_dir() else remove_file(inner)


def remove_file(path: Path) -> None:
    """Delete a file if it is there."""
    with storage_errors(path):
        path.unlink(missing_ok=True)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the kernel frees it when the process ends, however it ends.

    Raises:
        LockedError: another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_still(folder, descriptor):  # its holder renamed it before we had the lock
                raise BlockingIOError
        except BlockingIOError as error:
            raise LockedError(
                f"{folder} is being written by another process. Wait for it, or pass another out=."
            ) from error
        yield
    finally:
        os.close(descriptor)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb", buffering=0) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_place(path: Path) -> None:
    """Raise a :class:`StorageError` if nothing can be made at a path; writes nothing."""
    there = next(place for place in path.absolute().parents if place.exists())
    if not there.is_dir():
        raise StorageError(f"cannot write {path}: {there} is a file. Name another place.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise StorageError(f"cannot write {path}: {there} is not yours to write to.")


def tree_bytes(path: Path) -> int:
    """Bytes of all files in a folder; one with several names counts once."""
    found = [file.stat() for file in path.rglob("*") if file.is_file()]
    return sum({(s.st_dev, s.st_ino): s.st_size for s in found}.values())


def free_bytes(path: Path) -> int:
    """Bytes that an ordinary user may still write on the file system of ``path``."""
    existing = path.resolve()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def _is_still(folder: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except FileNotFoundError:
        return False


def _write_all(descriptor: int, view: memoryview) -> None:
    while view:
        written = os.write(descriptor, view[: 1 << 26])
        view = view[written:]


def _exchange(one: Path, other: Path) -> bool:
    linux = sys.platform == "linux"
    system = getattr(
        ctypes.CDLL(None, use_errno=True), "renameat2" if linux else "renamex_np", None
    )
    if system is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    here = -100 if linux else -2  # AT_FDCWD
    done = system(here, names[0], here, names[1], 2) if linux else system(*names, 2)
    if done == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):  # not by this file system
        return False
    raise OSError(number, os.strerror(number))


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError as error:  # some file systems, such as network volumes, do not have it
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
        else:
            return
    os.fsync(descriptor)


def _sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)
