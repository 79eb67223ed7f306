"""Files and folders appear whole or not at all; locks belong to processes; JSON becomes records."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedkit import storage
from embedkit.dataset.parquet import parquet_bytes
from embedkit.errors import DamagedError, LockedError, OutputExistsError, StorageError
from embedkit.records import read_json
from tests.processes import environment


@pytest.mark.parametrize(("module", "call"), [(fcntl, "flock"), (os, "rename")])
def test_writers_of_one_file_do_not_meet(
    tmp_path: Path, once_before: Any, module: Any, call: str
) -> None:
    """A second one comes before the first has locked, or renamed, its temporary file."""

    def second() -> None:
        (tmp_path / ".x.0123.partial").write_bytes(b"of a killed one")
        storage.write_durably(tmp_path / "x", b"second")
        assert (tmp_path / "x").read_bytes() == b"second"

    once_before(module, call, second)
    storage.write_durably(tmp_path / "x", b"first")
    assert (tmp_path / "x").read_bytes() == b"first"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("deleted", [False, True])
def test_an_attempt_takes_away_what_it_wrote_and_nothing_else(
    tmp_path: Path, deleted: bool
) -> None:
    """Also where its folder was deleted, and another process has begun its own there."""
    work = tmp_path / "x.incomplete"

    def interrupted() -> None:
        (work / "half").touch()
        if deleted:
            work.rename(tmp_path / "gone")
            work.mkdir()
            (work / "theirs").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), storage.new_folder(tmp_path / "x"):
        interrupted()
    assert [path.name for path in tmp_path.glob("x*/*")] == ["theirs"] * deleted


def test_what_somebody_keeps_in_the_place_of_work_stays(tmp_path: Path) -> None:
    for name in ("thesis.txt", "_embedkit/job.json"):
        file = tmp_path / "x.incomplete" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
        new = storage.new_folder(tmp_path / "x")
        with pytest.raises(OutputExistsError, match="not made by this command"), new:
            pass
        assert file.read_text() == "mine"
        file.unlink()
    shutil.rmtree(tmp_path / "x.incomplete")
    with pytest.raises(ZeroDivisionError), storage.new_folder(tmp_path / "x"):
        _ = 1 / 0
    assert not [*tmp_path.iterdir()]


def test_two_processes_make_one_folder(tmp_path: Path, once_before: Any) -> None:
    # of another process, between the look and the step
    once_before(Path, "mkdir", (tmp_path / "x").mkdir)
    storage.make_folder(tmp_path / "x")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file where a folder is needed"):
        storage.make_folder(tmp_path / "file/x")


def test_file_systems_without_locks_or_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")

    def lock(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(os, "fsync", sync)
    storage.write_durably(tmp_path / "x", b"x")
    monkeypatch.setattr(fcntl, "flock", lock)
    locked = storage.exclusive(tmp_path)
    with pytest.raises(StorageError, match="its file system has no locks"), locked:
        pass


def test_publishing_never_replaces_a_filled_folder(tmp_path: Path) -> None:
    for name in ("new", "full"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    with pytest.raises(StorageError, match="not empty"):
        storage.rename(tmp_path / "new", tmp_path / "full")
    assert (tmp_path / "full/full").exists()
    storage.rename(tmp_path / "new", tmp_path / "free")
    assert (tmp_path / "free/new").exists()
    storage.remove(tmp_path / "free")
    assert not (tmp_path / "free").exists()


HOLD = """
import sys, time
from pathlib import Path
from embedkit.storage import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_one_process_holds_a_folder_until_it_is_killed(tmp_path: Path) -> None:
    line = [sys.executable, "-c", HOLD, str(tmp_path)]
    holder: Any = subprocess.Popen(line, stdout=subprocess.PIPE, env=environment())
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LockedError, match="another process") as caught:
            storage.exclusive(tmp_path).__enter__()
        assert caught.value.exit_code == 7
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    with storage.exclusive(tmp_path):
        pass


def test_a_folder_renamed_by_its_holder_is_not_ours(tmp_path: Path, once_before: Any) -> None:
    folder = tmp_path / "out.incomplete"
    folder.mkdir()
    once_before(fcntl, "flock", lambda: folder.rename(tmp_path / "out"))
    with pytest.raises(LockedError, match="another process"):
        storage.exclusive(folder).__enter__()


def make(out: Path, content: str) -> None:
    with storage.new_folder(out) as work:
        (work / "file").write_text(content)
        if content == "half":
            raise ValueError(content)


def test_the_old_or_the_new(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(out, "old")
    with pytest.raises(ValueError, match="half"):
        make(out, "half")
    assert (out / "file").read_text() == "old"
    make(out, "new")
    assert (out / "file").read_text() == "new"
    storage.check_files(out)
    # what fails before anything is written is the disk, not another process, and leaves nothing
    with pytest.raises(OSError, match="full"), storage.new_folder(tmp_path / "none"):
        raise OSError("full")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert sorted(path.name for path in out.iterdir()) == ["SHA256SUMS", "file"]


def test_only_what_was_seen_is_replaced(tmp_path: Path) -> None:
    """What another program puts there while a folder or a file is written stays."""
    make(tmp_path / "folder", "first")
    (tmp_path / "file").write_text("first")

    def write_folder() -> None:
        with storage.new_folder(tmp_path / "folder") as work:
            (work / "file").write_text("second")
            (tmp_path / "folder" / "mine").touch()

    def write_file() -> None:
        with storage.new_file(tmp_path / "file", free=lambda: None) as work:
            work.write_text("second")
            (tmp_path / "file").write_text("other")  # as long as the first
            os.utime(tmp_path / "file", ns=(0, 0))

    for write in (write_folder, write_file):
        with pytest.raises(LockedError, match="changed by another process"):
            write()
    assert (tmp_path / "file").read_text() == "other"
    assert (tmp_path / "folder/file").read_text() == "first"
    assert (tmp_path / "folder/mine").exists()
    assert not (tmp_path / "file.incomplete").exists()


@pytest.mark.parametrize("kind", ["link", "mount point"])
def test_what_a_rename_cannot_replace_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    out = tmp_path / "out"
    if kind == "link":
        out.symlink_to(tmp_path / "nowhere")
    else:
        monkeypatch.setattr(os.path, "ismount", lambda path: path == out)
    new = storage.new_folder(out)
    with pytest.raises(OutputExistsError, match=f"is a {kind}, .*out/NAME"), new:
        pass
    assert not storage.incomplete(out).exists()


@pytest.mark.parametrize("place", ["_unfinished", "_unfinished/repaired"])
def test_nothing_is_brought_back_through_a_link(tmp_path: Path, place: str) -> None:
    letter = tmp_path / "docs" / ("repaired" if place == "_unfinished" else "") / "letter"
    letter.parent.mkdir(parents=True)
    letter.write_text("mine")
    (tmp_path / "out" / place).parent.mkdir(parents=True)
    (tmp_path / "out" / place).symlink_to(tmp_path / "docs")
    with suppress(OSError, StorageError):
        storage.finish_swap(tmp_path / "out", lambda _: True)
    assert letter.read_text() == "mine"


def test_what_is_not_ours_is_not_touched(tmp_path: Path) -> None:
    mine = tmp_path / "table.tsv.incomplete"
    mine.write_text("mine")
    with storage.new_file(tmp_path / "table.tsv", free=lambda: None) as work:
        work.write_text("a table")
    assert mine.read_text() == "mine"
    notes = tmp_path / "out" / storage.UNFINISHED / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    storage.finish_swap(tmp_path / "out", lambda _: False)
    assert notes.read_text() == "mine"


def test_a_mark_goes_last_and_leftovers_do_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = storage.incomplete(tmp_path / "out")
    (work / storage.UNFINISHED).mkdir(parents=True)
    (work / ".x.0123.partial").touch()
    with storage.new_folder(tmp_path / "out", begin=lambda _: None) as folder:
        (folder / "file").write_text("new")
        (folder / "files").write_text("old")
    assert sorted(storage.file_sums(tmp_path / "out")) == ["file", "files"]
    (tmp_path / "out/files").write_text("damaged")
    storage.check_files(tmp_path / "out", ["file"])  # whose name another one begins with
    (tmp_path / "out" / storage.UNFINISHED).mkdir()
    monkeypatch.setattr(storage, "remove", lambda _: 1 / 0)  # it is killed there
    with pytest.raises(ZeroDivisionError):
        storage.empty_folder(tmp_path / "out")
    assert (tmp_path / "out" / storage.UNFINISHED).exists()
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(OutputExistsError, match="link exists"):
        storage.refuse_existing(tmp_path / "link", overwrite=False)


def test_files_that_belong_together(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(300) * 0.37})
    file, page = tmp_path / "figures/a.parquet", tmp_path / "page.html"
    files: dict[Path, bytes | memoryview] = {file: parquet_bytes(table), page: b"page"}
    storage.write_files(files, overwrite=False)
    storage.write_files(files, overwrite=False)  # as after an interruption
    file.write_bytes(b"mine")
    page.unlink()
    with pytest.raises(OutputExistsError, match=r"a\.parquet"):
        storage.write_files(files, overwrite=False)
    assert not page.exists()
    storage.write_files(files, overwrite=True)
    assert pq.read_table(file).equals(table)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b'{"a": NaN}', b"[Infinity]", 99_999 * b"[", b"{} x", None]
)
def test_what_is_not_json_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "x.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DamagedError, match=r"x\.json"):
        read_json(file)
