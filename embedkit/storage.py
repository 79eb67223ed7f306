"""Atomic creation of outputs, durable files, locks and ``SHA256SUMS``.

    OUT.incomplete/               the folder while it is written, locked
    OUT.incomplete/_unfinished/   files that only the next attempt needs
    OUT.incomplete/SHA256SUMS     written last: checksums of all files

One rename makes it ``OUT``. An existing ``OUT`` is first renamed to ``_unfinished/replaced`` in
the new folder, then the new folder gets its name, then the old one is deleted; after a crash in
between the next command completes this. In a repair the old one is ``_unfinished/repaired``, and
what only it has at its top, such as a user's runs, moves into the new one before it is deleted: not
earlier, since a kill would leave it in a folder of work. A single file is written as a hidden
``.OUT.incomplete``, and renamed.

Of commands that make the same output at once, one holds the lock of ``OUT.incomplete``. What stands
at ``OUT`` is looked at under the lock, since a command that saw nothing there may have waited long
enough for another one to finish; and once more before the rename.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import os
import re
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from embedkit.errors import (
    OVERWRITE,
    DamagedError,
    EmbedkitError,
    LockedError,
    Option,
    OutputExistsError,
    StorageError,
    first_line,
)
from embedkit.machine import usable_cores

UNFINISHED = "_unfinished"
"""Folder inside of ``OUT.incomplete`` for what only the next attempt needs, and for the output that
is replaced; deleted last. Other readers skip it, since its name begins with an underscore."""


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of errors where a disk, a quota or a file is full."""

_MAKING = threading.RLock()  # re-entrant, since a folder makes its parents first
SUMS = "SHA256SUMS"
CARD = "README.md"
"""The text for people in a folder. It is listed as every file is, but whoever adds a licence to it,
here or on a hub, damages nothing: its content is not compared."""

_ADDRESS = re.compile(  # a password may hold any sign; what follows a colon may be a port
    r"\b([A-Za-z][\w+.-]+:/+)(?:[^\s/?#@:]*(?::(?!\d+/)[^\s@]*)?@)?([^\s?#'\"]*)(?:[?#][^\s'\"]*)?"
)
# 64 digits, two blanks and the rest of the line, as sha256sum prints and reads it
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_OLD = ("replaced", "repaired")
# a name that leads nowhere counts as a missing file. None: libraries report bad content as an
# OSError without a number. The others: a file where a folder should be or the reverse, a circle of
# links, and a name that is too long, which only a damaged list of names asks for
_NOT_THERE = (None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)
MAKE_AGAIN = "Make it again."


@contextmanager
def storage_errors(path: Path, *exceptions: type[Exception]) -> Iterator[None]:
    """Turn an ``OSError`` of the block into a :class:`StorageError` that names ``path``.

    ``exceptions`` are errors that a library raises instead of an ``OSError``.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, (OSError, *exceptions)):
            raise
        number, reason = getattr(error, "errno", None), getattr(error, "strerror", None)
        hint = ""
        # the errors of libraries have no number, and where they fail to write the disk is nearly
        # always full
        if exceptions or number in FULL:
            free = free_bytes(path) / 1e6
            hint = f" ({free:,.1f} MB free). Free some space and run the same command again"
        elif number in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = f". Pass{Option('out', before=' as ')} a folder that you may write to"
        raise StorageError(f"cannot write {path}: {reason or first_line(error)}{hint}.") from error


def unreadable(
    file: Path,
    problem: Exception,
    *,
    error: type[EmbedkitError] = DamagedError,
    advice: str = MAKE_AGAIN,
) -> EmbedkitError:
    """The error to raise when reading a file raised ``problem``.

    Only content is damage, and so is a missing file. Everything else that the system reports, such
    as a file that the user may not read, or an error of the disk, is no fault of the file: to make
    it again, as ``advice`` says, would not help, and it may be intact.
    """
    number = getattr(problem, "errno", None)  # libraries report content by an OSError without one
    reason = getattr(problem, "strerror", None) or first_line(problem)
    if not isinstance(problem, OSError) or number in _NOT_THERE:
        return error(f"{file} cannot be read: {reason}. {advice}".rstrip())
    advice = "It may be intact: check its permissions and the disk."
    return StorageError(f"{file} cannot be read: {reason}. {advice}")


@contextmanager
def reading(file: Path, *exceptions: type[Exception], **wording: Any) -> Iterator[None]:
    """Turn an ``OSError`` of the block, or one of the ``exceptions``, into :func:`unreadable`."""
    kinds: tuple[type[Exception], ...] = (OSError, *exceptions)
    try:
        yield
    except kinds as problem:
        raise unreadable(file, problem, **wording) from problem


def write_durably(path: Path, data: bytes | memoryview) -> None:
    """Write a file atomically and durably: temporary file, fsync, rename, fsync of the folder.

    The temporary file beside it has a unique name, so that several processes may write the same
    file, and a hidden one, which readers of a folder of shards pass over. After an error ``path``
    is as before, unless the ``fsync`` of its folder failed.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:12]}.partial")
    with storage_errors(path):
        try:
            # a killed writer leaves its file behind. Only one that nobody locks may go: another
            # process may be writing the same shard now
            for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
                with suppress(LockedError, PermissionError), exclusive(leftover):
                    leftover.unlink(missing_ok=True)
            # the lock is held until the file has its name, so that nobody takes it for a leftover,
            # and by the descriptor that writes: on SMB it keeps every other one from writing
            temporary.touch(exist_ok=False)
            with exclusive(temporary) as held, os.fdopen(held, "wb", closefd=False) as stream:
                stream.write(data)
                stream.flush()
                rename(temporary, path)
        # opening and locking are two steps, and whoever cleans up may delete the still unlocked
        # file in between
        except LockedError:
            write_durably(path, data)
        # only errors are cleaned up here; what an interrupt leaves, the next writer deletes above
        except (OSError, StorageError):
            temporary.unlink(missing_ok=True)
            raise


def rename(source: Path, target: Path) -> None:
    """Give a finished file or folder its final name; durable when it returns.

    It replaces a file or an empty folder, and never a filled one.
    """
    with storage_errors(target):
        # its bytes before the rename: else after a power cut the name may lead to an empty or torn
        # file
        _sync_path(source)
        os.rename(source, target)  # noqa: PTH104 - must fail on a filled target, as rename(2) does
        # a rename is content of the folder, and a power cut may undo it until that is synced
        _sync_path(target.parent)
        # a name left one folder and came to another one: both have changed
        if source.parent != target.parent:
            _sync_path(source.parent)


def link_file(source: Path, target: Path) -> None:
    """Give a file that never changes a second name; a copy where the file system has no links."""
    make_folder(target.parent)
    with storage_errors(target):
        # link(2) does not replace what is there, and an interrupted attempt may have left it
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
        except OSError:
            # a copy has bytes of its own to sync; those of a link are on the disk already
            shutil.copyfile(source, target)
            _sync_path(target)


def link_tree(source: Path, target: Path) -> None:
    """Link all files of a folder, if there is one, into another one."""
    for file in sorted(source.rglob("*")):
        if file.is_file():
            link_file(file, target / file.relative_to(source))
    # a source without files makes no folder
    if target.is_dir():
        sync_tree(target)


def make_folder(path: Path) -> None:
    """Create a folder, its parents included, durably; of several threads one does it."""
    with _MAKING, storage_errors(path):
        if not path.is_dir():
            # each name is durable before the one inside of it
            make_folder(path.parent)
            try:
                path.mkdir(exist_ok=True)  # another process may have made it meanwhile
            except FileExistsError as error:
                problem = f"{path} is a file where a folder is needed. Name another one."
                raise StorageError(problem) from error
            _sync_path(path.parent)


def sync_tree(path: Path) -> None:
    """Sync all files and names in a folder that another library filled."""
    with storage_errors(path):
        # folders are in the list too: the names that they hold are their content
        for inner in sorted(path.rglob("*")):
            _sync_path(inner)
        _sync_path(path)


def remove(path: Path) -> None:
    """Delete a file, a link or a folder that embedkit made, if it exists."""
    with storage_errors(path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
            _sync_path(path.parent)
        else:
            path.unlink(missing_ok=True)


def empty_folder(path: Path) -> None:
    """Delete the content of a folder that embedkit made."""
    # the mark last: by it whoever comes after a kill knows that the rest is embedkit's
    for inner in sorted(path.iterdir(), key=lambda inner: inner.name == UNFINISHED):
        remove(inner)


@contextmanager
def exclusive(
    path: Path, *, shared: bool = False, wait: bool = False, leave_empty: bool = True
) -> Iterator[int]:
    """Hold the lock of a folder or file, by a descriptor; the kernel frees it at the end.

    A :class:`LockedError` if another process holds it, unless both ask for a ``shared`` one; or
    ``wait`` until it is free. Also if something fails because another process has deleted the
    folder meanwhile: it is not the disk that fails then. Unless it may be left ``leave_empty``, a
    folder in which nothing is after an error is removed.
    """
    try:
        # flock locks folders too, and what is open for reading; it needs no file beside, which a
        # kill would leave behind
        # over NFS a file has to be open for writing
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    except FileNotFoundError as error:
        raise _locked(path) from error
    try:
        try:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(descriptor, kind | (0 if wait else fcntl.LOCK_NB))
            # flock locks what was opened, and between opening and locking the holder may have given
            # the name to something else: a lock of a thing without a name protects nothing
            if not os.path.samestat(os.fstat(descriptor), path.stat()):
                raise BlockingIOError  # its holder renamed it before we had the lock
        except (BlockingIOError, FileNotFoundError) as error:
            raise _locked(path) from error
        except OSError as error:  # ENOLCK
            problem = f"{path}: its file system has no locks ({error.strerror})"
            raise StorageError(f"{problem}. Write to another one, and copy the result.") from error
        try:
            yield descriptor
        except BaseException as error:
            # a folder without links was deleted under us: what failed was not the disk
            status = os.fstat(descriptor)
            is_there = status.st_nlink or not stat.S_ISDIR(status.st_mode) or os.path.lexists(path)
            if not is_there and isinstance(error, OSError | StorageError):
                raise _locked(path) from error
            # only now, or it would be taken for deleted by another process; still locked, and not
            # one that another process has begun there meanwhile
            if not leave_empty:
                with suppress(OSError):
                    if os.path.samestat(status, path.stat()):
                        path.rmdir()
            raise
    finally:
        os.close(descriptor)


def _locked(path: Path) -> LockedError:
    problem = "is being written, or was just replaced, by another process"
    return LockedError(f"{path} {problem}. Wait for it, or pass another {Option('out')}.")


State = tuple[int, ...]


def state_of(path: Path) -> State:
    """What stands at a path: empty for nothing; another or a changed file has another state."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return ()
    # lstat: a link that is put there is another thing than what it leads to
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def check_unchanged(path: Path, seen: State) -> None:
    """Raise a :class:`LockedError` if what stands at a path is not what was seen there."""
    if state_of(path) != seen:
        raise LockedError(f"{path} was changed by another process. Run the same command again.")


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Raise an error if a file may not, or cannot, be written there; writes nothing."""
    if path.is_dir():
        raise OutputExistsError(f"{path} is a folder. Choose the name of a file.")
    if os.path.lexists(path) and not overwrite:
        replace = Option("overwrite", True, before=", or pass ")
        raise OutputExistsError(f"{path} exists. Choose another name{replace}.")
    check_place(path)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    # file_digest brings a buffer of its own
    with path.open("rb", buffering=0) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@cache
def known_sha256(path: Path, _state: State) -> str:
    """SHA-256 of a file in a state, such as that of :func:`state_of`, once in a process."""
    return file_sha256(path)


def check_place(path: Path) -> None:
    """Raise a :class:`StorageError` if a path cannot be written; writes nothing."""
    # of which pathlib would make folders here
    if _ADDRESS.match(name := os.fspath(path)):
        shown = without_secrets(name).replace(":/", "://", 1)
        raise StorageError(f"cannot write {shown}: only extract writes to an address.")
    # the nearest folder that exists decides, since those below it are still to be made
    folder = next(place for place in path.absolute().parents if place.exists())
    if not folder.is_dir():
        raise StorageError(f"cannot write {path}: {folder} is a file. Name another place.")
    if not os.access(folder, os.W_OK | os.X_OK):
        advice = Option("out", before=" Pass ", after=" as a folder that you may write to.")
        raise StorageError(f"cannot write {path}: no write permission for {folder}.{advice}")
    with storage_errors(path):
        # the longest name that may be there, of write_durably; it may be too long
        Path(path.parent, f".{path.name}.{'0' * 12}.partial").exists()


def tree_bytes(path: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def free_bytes(path: Path) -> int:
    """Bytes that an ordinary user may still write on the file system of ``path``."""
    # resolved, since a link may lead to another file system
    existing = path.resolve()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":
        # fsync of macOS leaves bytes in the drive's own cache
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
    except OSError as error:  # some file systems do not sync folders
        if not path.is_dir() or error.errno not in (errno.ENOTSUP, errno.EINVAL):
            raise
    finally:
        os.close(descriptor)


def seal(folder: Path) -> None:
    """Write ``SHA256SUMS`` of all files of a folder but those of an unfinished one."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    # a list of checksums cannot have its own
    listed = [name for name in names if name != SUMS and name.split("/")[0] != UNFINISHED]
    # threads suffice, since hashlib computes without the interpreter's lock
    with ThreadPoolExecutor(min(8, usable_cores())) as pool:
        digests = pool.map(lambda name: file_sha256(folder / name), listed)
        write_sums(folder, dict(zip(listed, digests, strict=True)))


def write_sums(folder: Path, sums: Mapping[str, str]) -> None:
    """Write ``SHA256SUMS`` of a folder from SHA-256 in hex by relative path."""
    # sorted, so that the same files give the same bytes
    lines = [f"{digest}  {name}\n" for name, digest in sorted(sums.items())]
    # a file name may hold bytes that are not UTF-8; surrogateescape writes them as they are
    data = "".join(lines).encode("utf-8", "surrogateescape")
    write_durably(folder / SUMS, data)


def is_sealed(folder: Path) -> bool:
    """True if a folder has checksums."""
    return (folder / SUMS).is_file()


def file_sums(folder: Path, *, torn: bool = False, advice: str = "") -> dict[str, str]:
    """Read ``SHA256SUMS``: SHA-256 in hex by relative path; an error ends with ``advice``.

    It may be missing or have invalid lines if ``torn``, as in an interrupted job.
    """
    file = folder / SUMS
    if torn and not file.is_file():
        return {}
    sums: dict[str, str] = {}
    try:
        content = path_inside(folder, SUMS).read_text("utf-8", "surrogateescape")
        # not splitlines, which divides at characters that names may have, such as U+2028
        lines = content.removesuffix("\n").split("\n") if content else []
        for number, line in enumerate(lines, 1):
            # in an interrupted job each line that is whole still counts
            with suppress(ValueError) if torn else nullcontext():
                if (match := _LINE.fullmatch(line)) is None:
                    raise ValueError(f"line {number} is not a checksum and a name")
                # names in the file are data of whoever made the folder, and must not lead out of it
                path_inside(folder, match[2])
                sums[match[2]] = match[1]
        # an empty list would find every folder undamaged
        if not lines and not torn:
            raise ValueError("it is empty")
    except OSError as error:
        # of the list itself, or of a file that it names
        raise unreadable(Path(error.filename or file), error, advice=advice) from error
    except ValueError as error:
        raise DamagedError(f"{file} is damaged: {error}. {advice}".rstrip()) from error
    return sums


def path_inside(folder: Path, name: str) -> Path:
    """The path of a file in a folder by a ``name`` that was read from a file.

    Whoever wrote that file chose the name. It is relative, has no ``..``, and leads to a file in
    the folder, also by a link, or to none: an absolute name would read or overwrite any file of the
    user, and a device or a pipe has no end. A :class:`ValueError` says what is wrong with it.
    """
    if not {"", ".", ".."}.isdisjoint(name.split("/")) or "\\" in name or "\0" in name:
        raise ValueError(f"{name!r:.100} is not the name of a file in the folder")
    path = folder / name
    # both are resolved: the folder itself may well be reached by a link
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise ValueError(f"{name!r:.100} is a link that leads out of the folder")
    if path.exists() and not path.is_file():
        raise ValueError(f"{name!r:.100} is not a regular file")
    return path


def differing_files(folder: Path, sums: Mapping[str, str]) -> dict[str, str]:
    """Return a message for each file that is missing or has another checksum, by relative path."""

    def problem(name: str) -> str:
        try:
            actual = file_sha256(folder / name)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise unreadable(folder / name, error) from error
            # any other error, such as a file that may not be read, is raised: it is no damage
            return f"{folder / name} is missing"
        if actual == sums[name] or name == CARD:
            return ""
        return (
            f"{folder / name} is damaged: its SHA-256 is {actual[:12]}…, expected "
            f"{sums[name][:12]}…"
        )

    with ThreadPoolExecutor(min(8, usable_cores())) as pool:
        problems = dict(zip(sums, pool.map(problem, sums), strict=True))
    return {name: text for name, text in problems.items() if text}


def check_files(folder: Path, names: Iterable[str] = ("",), *, advice: str = MAKE_AGAIN) -> None:
    """Compare files with ``SHA256SUMS``; raise a :class:`DamagedError` that ends with ``advice``.

    In ``names`` a folder stands for all of its files, ``""`` for all files.
    """
    sums, chosen = file_sums(folder, advice=advice), dict[str, str]()
    for name in names:
        inside = f"{name}/" if name else ""
        listed = {key: sums[key] for key in sums if key == name or key.startswith(inside)}
        # what is not listed was not compared, so that it would pass unseen
        if not listed:
            raise DamagedError(f"{folder / SUMS} does not list {name}. {advice}")
        chosen |= listed
    for problem in differing_files(folder, chosen).values():
        raise DamagedError(f"{problem}. {advice}")


def incomplete(out: Path) -> Path:
    """Return the path of a folder before it has its final name."""
    # not by with_name, which raises for . and /
    return out.parent / f"{out.name}.incomplete"


def _refuse_links(work: Path) -> None:
    """A :class:`StorageError` if a place of work is a link, or has one in it.

    embedkit makes none. One that somebody else has put there, as into a folder that is passed on,
    would lead to files anywhere, which would be emptied, written and deleted.
    """
    inner = (
        Path(folder, name)
        for folder, folders, files in os.walk(work)  # which follows no links in it
        for name in (*folders, *files)
    )
    if link := next((path for path in (work, *inner) if path.is_symlink()), None):
        raise StorageError(f"{link} is a link, which embedkit did not make. Remove it.")


@contextmanager
def new_folder(
    out: Path,
    *,
    free: Callable[[], object] = lambda: None,
    begin: Callable[[Path], None] | None = None,
    sealed: bool = True,
    overwrite: bool = False,
) -> Iterator[Path]:
    """A locked folder to fill, which replaces ``out`` when the block ends without an error.

    When the lock is held, ``free`` is called, which raises an error if ``out`` may not be replaced,
    and ``begin`` with the folder; without, it is emptied, work that another command could go on
    with only by ``overwrite``. Its checksums are written if ``sealed``, else all files are synced;
    the folder ``_unfinished`` in it has none, and is deleted at the end. By it an earlier attempt
    is told from what somebody keeps there, or ``extract`` has begun. After an error what is there
    goes, but with a ``begin`` that resumes.
    """
    work = incomplete(out)
    check_place(out)
    with begun(out, free) as seen:  # before anything is deleted: another process may be writing
        mark = work / UNFINISHED
        if begin is not empty_folder and _is_filled(work) and not mark.is_dir():
            remedy = "Move it away, or choose another name."
            raise OutputExistsError(f"{work} was not made by this command. {remedy}")
        if begin is None and not overwrite:
            refuse_unfinished(work, remedy=f"pass {OVERWRITE} to discard it")
        for leftover in list(work.rglob("*.partial")):  # else it would be in SHA256SUMS
            remove(leftover)
        (begin or empty_folder)(work)
        make_folder(mark)
        ours = work.stat()
        try:
            yield work
            # on the disk before the folder gets its name; else a crash could leave a whole name
            # with half a file. What is sealed is durable already
            (seal if sealed else sync_tree)(work)
        except BaseException:
            with suppress(OSError, StorageError):
                # unless it was deleted, and another process has begun its own there
                if os.path.samestat(ours, work.stat()):
                    if begin in (None, empty_folder):  # nothing goes on with what is there
                        empty_folder(work)
                    elif [*work.glob("*")] == [mark]:
                        mark.rmdir()
            raise
        # the second look at what stands there: this block may have worked for hours
        with replacing(out, seen):
            publish(work, out)


def refuse_unfinished(work: Path, *, remedy: str) -> None:
    """Raise an error if a folder holds what ``extract`` or ``finetune`` would go on with."""
    # shards or folds, perhaps a night of work
    if any(work.glob("_*/job.json")):
        raise OutputExistsError(
            f"{work} holds unfinished work of another command. Finish it, choose another "
            f"{Option('out')}, or {remedy}."
        )


@contextmanager
def begun(out: Path, free: Callable[[], object], *, shared: bool = False) -> Iterator[State]:
    """Make the folder of work of ``out`` and hold its lock; yields what stands at ``out`` then.

    Only under the lock is it certain that no other command is about to finish this output: that is
    when ``free`` is called, which raises an error if it may not be replaced. After an error an
    empty folder goes: nothing of this attempt is left to go on with.
    """
    work = incomplete(out)
    _refuse_links(work)
    if out.is_symlink() or os.path.ismount(out):
        kind, inside = "link" if out.is_symlink() else "mount point", Option("out", out / "NAME")
        raise OutputExistsError(f"{out} is a {kind}, which is not replaced. Pass {inside}.")
    make_folder(work)
    with exclusive(work, shared=shared, leave_empty=False):
        _refuse_links(work)
        free()
        yield state_of(out)


@contextmanager
def replacing(out: Path, seen: State) -> Iterator[None]:
    """Hold the lock of an output that is to be replaced, if it is what was ``seen`` there.

    Whoever makes something inside of it, such as an index, shares the lock, and is waited for.
    """
    # the other lock, of the output itself: an index that is being made inside of it would be lost
    with exclusive(out, wait=True) if out.is_dir() else nullcontext():
        check_unchanged(out, seen)
        yield


@contextmanager
def new_file(out: Path, *, free: Callable[[], None]) -> Iterator[Path]:
    """A locked file to write, which replaces ``out`` when the block ends without an error.

    ``free`` is called as by :func:`new_folder`. After an error nothing is left of the file.
    """
    # hidden: users may call a file of theirs OUT.incomplete
    work = out.parent / f".{out.name}.incomplete"
    _refuse_links(work)
    check_place(out)
    make_folder(out.parent)
    with storage_errors(work):
        # to append, which makes a missing file and leaves one as it is that another command is
        # writing
        work.open("ab").close()
    with exclusive(work):
        try:
            free()
            seen = state_of(out)
            yield work
            check_unchanged(out, seen)
            rename(work, out)
        except BaseException:
            with suppress(OSError):
                # where the folder does not let it be deleted, an empty file is all that stays
                os.truncate(work, 0)
                work.unlink()
            raise


def publish(work: Path, out: Path, *, repair: bool = False) -> None:
    """Rename ``work`` to ``out``, and delete the folder that had this name.

    What only the old one has at its top, such as runs, moves into a ``repair`` of it.
    """
    # an empty folder is replaced by the rename itself. A filled one moves into the new one, and so
    # is never lost: between the two renames there is no output for a moment, but both are there
    # under other names, from which finish_swap goes on
    if _is_filled(out):
        make_folder(work / UNFINISHED)
        rename(out, work / UNFINISHED / _OLD[repair])
    rename(work, out)
    _end_swap(out)


def _end_swap(out: Path) -> None:
    """Delete the old folder; of a repaired one the user's own files stay."""
    repaired = out / UNFINISHED / _OLD[True]
    # a link, in a folder from elsewhere, would lead to somebody's files
    ours = repaired.is_dir() and not (repaired.is_symlink() or repaired.parent.is_symlink())
    for path in sorted(repaired.iterdir()) if ours else ():
        if not os.path.lexists(out / path.name):
            with storage_errors(path):
                path.rename(out / path.name)
    remove(out / UNFINISHED)


def _holds_old(work: Path) -> bool:
    return any(_is_filled(work / UNFINISHED / name) for name in _OLD)


def finish_swap(out: Path, is_ours: Callable[[Path], bool]) -> None:
    """Complete an interrupted replacement; nothing is touched that is not ``is_ours``."""
    work = incomplete(out)
    # the old one was moved away and the new one has no name yet: it was complete by then
    if _holds_old(work) and not os.path.lexists(out):
        with exclusive(work):
            rename(work, out)
    # the new one has its name; what remains is to delete the old one. Of a foreign folder that
    # happens to have one of this name nothing is deleted
    if (out / UNFINISHED).is_dir() and not out.is_symlink() and is_ours(out):
        with exclusive(out):
            _end_swap(out)


def wait_for_swap(out: Path) -> None:
    """Wait while a folder has no name because it is being replaced: between two renames.

    A killed command leaves that state until it is given again, so that the wait is short.
    """
    # a second in all; a swap takes two renames
    for _ in range(20):
        if out.exists() or not _holds_old(incomplete(out)):
            return
        time.sleep(0.05)


def _is_filled(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def without_secrets(text: str) -> str:
    """A text whose addresses have neither user and password nor query, which may be a signature.

    All that is written to a file or printed about an address has passed through this.

    >>> without_secrets("https://me:pw@host/c.tsv?X-Amz-Signature=1f cannot be reached")
    'https://host/c.tsv cannot be reached'
    """
    return _ADDRESS.sub(r"\1\2", text)


def write_files(files: Mapping[Path, bytes | memoryview], *, overwrite: bool) -> None:
    """Write files that belong together, in order; the last one makes the others count.

    A file with identical content is not a conflict (an earlier run was interrupted).
    """
    # the lock of the last file stands for all of them, and it gets its name only after the others
    *earlier, last = files

    def free() -> None:
        for path, data in files.items():
            same = path.is_file() and path.read_bytes() == data
            refuse_existing(path, overwrite=overwrite or same)

    with new_file(last, free=free) as work:
        for path in earlier:
            make_folder(path.parent)
            write_durably(path, files[path])
        with storage_errors(work):
            work.write_bytes(files[last])
