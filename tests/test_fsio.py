"""Files appear whole or not at all; locks belong to processes."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embedkit import fsio
from embedkit.errors import LockedError, StorageError
from tests.processes import environment


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def fail(number: int) -> Any:
    def function(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    return function


@pytest.mark.parametrize("old", [None, b"", b"old content"])
@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_write_durably(tmp_path: Path, scratch: Path, old: bytes | None, size: int) -> None:
    target = tmp_path / "part-00000.parquet"
    if old is not None:
        target.write_bytes(old)
    data = os.urandom(size)
    fsio.write_durably(target, data, scratch=scratch)
    assert target.read_bytes() == data
    assert not list(scratch.iterdir())


def test_the_order_of_the_system_calls(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content is synced before the name, the name before anything that comes later."""
    calls: list[str] = []
    for name in ("write", "fsync", "replace"):
        real = getattr(os, name)

        def note(*args: Any, name: str = name, real: Any = real) -> Any:
            kind = ""
            if name == "fsync":
                kind = " folder" if stat.S_ISDIR(os.fstat(args[0]).st_mode) else " file"
            calls.append(name + kind)
            return real(*args)

        monkeypatch.setattr(os, name, note)
    fsio.write_durably(tmp_path / "x", b"abc", scratch=scratch)
    assert calls == ["write", "fsync file", "replace", "fsync folder"]
    calls.clear()
    (tmp_path / "y").write_bytes(b"")
    fsio.publish_file(tmp_path / "y", tmp_path / "z")
    assert calls == ["fsync file", "replace", "fsync folder"]


@pytest.mark.parametrize("number", [None, errno.ENOTSUP, errno.EIO])
def test_on_macos_the_drive_is_told_to_write(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    """What has no ``F_FULLFSYNC`` is synced as elsewhere; a failure of it stays one."""
    calls: list[str] = []

    def control(_: int, command: int) -> None:
        assert command == 51
        calls.append("full")
        if number is not None:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", lambda _: calls.append("fsync"))
    if number == errno.EIO:
        with pytest.raises(StorageError, match="Input/output error"):
            fsio.write_durably(tmp_path / "x", b"abc", scratch=scratch)
        assert calls == ["full"]
    else:
        fsio.write_durably(tmp_path / "x", b"abc", scratch=scratch)
        assert calls == (["full"] if number is None else ["full", "fsync"]) * 2


def test_a_short_write_is_continued(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
    fsio.write_durably(tmp_path / "x", b"0123456789" * 10, scratch=scratch)
    assert (tmp_path / "x").read_bytes() == b"0123456789" * 10


@pytest.mark.parametrize("old", [None, b"old"])
@pytest.mark.parametrize("call", ["write", "fsync", "replace", "open"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EACCES])
def test_a_failure_leaves_the_target_and_no_rest(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch,
    old: bytes | None, call: str, number: int,
) -> None:  # fmt: skip
    target = tmp_path / "x"
    if old is not None:
        target.write_bytes(old)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail(number))
        with pytest.raises(StorageError, match=f"cannot write .*{os.strerror(number)}") as caught:
            fsio.write_durably(target, b"new", scratch=scratch)
    assert caught.value.exit_code == 6
    assert (target.read_bytes() if target.exists() else None) == old
    assert not list(scratch.iterdir())


def test_a_failed_fsync_is_not_tried_again(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def once(descriptor: int) -> None:
        calls.append(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", once)
    with pytest.raises(StorageError, match="Input/output error"):
        fsio.write_durably(tmp_path / "x", b"new", scratch=scratch)
    assert len(calls) == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, r"\([\d,]+\.\d MB free\)\. Free some space and run the same command again"),
        (errno.EDQUOT, r"MB free\)"),
        (errno.EFBIG, r"MB free\)"),
        (errno.EACCES, "Pass a folder that you may write to as out="),
        (errno.EROFS, "Pass a folder that you may write to as out="),
    ],
)
def test_storage_errors_say_what_to_do(tmp_path: Path, number: int, advice: str) -> None:
    with (
        pytest.raises(StorageError, match=advice) as caught,
        fsio.storage_errors(tmp_path / "not" / "yet" / "there"),
    ):
        fail(number)()
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)


def test_a_full_disk_is_a_storage_error(tmp_path: Path, scratch: Path) -> None:
    """A real limit of the kernel, in a process of its own."""
    code = f"""
import resource, signal
from collections.abc import Callable
from pathlib import Path
from embedkit import fsio
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    fsio.write_durably(Path({str(tmp_path / "x")!r}), b"x" * 5000, scratch=Path({str(scratch)!r}))
except fsio.StorageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    assert not (tmp_path / "x").exists()
    assert not list(scratch.iterdir())


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(fsio, "_sync_path", lambda path: synced.append(path.name))
    fsio.make_folder(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path.name, "a", "b"]
    fsio.make_folder(tmp_path / "a" / "b" / "c")
    assert len(synced) == 3
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file is a file where a folder is needed"):
        fsio.make_folder(tmp_path / "file")


def test_publishing_never_replaces_a_filled_folder(tmp_path: Path) -> None:
    for name in ("new", "full"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    with pytest.raises(StorageError, match="not empty"):
        fsio.publish_folder(tmp_path / "new", tmp_path / "full")
    assert (tmp_path / "full/full").exists()
    fsio.publish_folder(tmp_path / "new", tmp_path / "free")
    assert (tmp_path / "free/new").exists()
    fsio.remove_tree(tmp_path / "free")
    assert not (tmp_path / "free").exists()
    fsio.remove_tree(tmp_path / "never there")
    fsio.remove_file(tmp_path / "never there")


@pytest.mark.parametrize("remove", [fsio.remove_tree, fsio.remove_file])
def test_what_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remove: Callable[[Path], None]
) -> None:
    monkeypatch.setattr("shutil.rmtree", lambda _: fail(errno.EACCES)())
    monkeypatch.setattr(Path, "unlink", lambda _, **__: fail(errno.EACCES)())
    with pytest.raises(StorageError, match="Permission denied"):
        remove(tmp_path)


HOLD = """
import sys, time
from collections.abc import Callable
from pathlib import Path
from embedkit.fsio import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_one_process_holds_a_folder_until_it_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, env=environment()
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LockedError, match="is being written by another process") as caught:
            fsio.exclusive(tmp_path).__enter__()
        assert caught.value.exit_code == 7
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    with fsio.exclusive(tmp_path):
        pass


def test_a_lock_is_freed_by_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="x"), fsio.exclusive(tmp_path):
        raise KeyError("x")
    with fsio.exclusive(tmp_path), pytest.raises(LockedError, match="another process"):
        fsio.exclusive(tmp_path).__enter__()


def test_a_folder_renamed_by_its_holder_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out.incomplete"
    folder.mkdir()
    real = fcntl.flock

    def late(descriptor: int, how: int) -> None:
        folder.rename(tmp_path / "out")
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(LockedError, match="another process"):
        fsio.exclusive(folder).__enter__()


@pytest.mark.parametrize("size", [0, 1, (1 << 20) + 3])
def test_hash_of_a_file(tmp_path: Path, size: int) -> None:
    import hashlib

    data = os.urandom(size)
    (tmp_path / "x").write_bytes(data)
    assert fsio.file_sha256(tmp_path / "x") == hashlib.sha256(data).hexdigest()


def test_free_space_of_a_path_that_is_not_there_yet(tmp_path: Path) -> None:
    assert fsio.free_bytes(tmp_path / "a" / "b") > 0
