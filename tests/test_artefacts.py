"""A folder gets its name when it is complete; what it replaces goes only then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from embedkit import fsio
from embedkit.artefacts import UNFINISHED, finish_swap, new_folder, write_files
from embedkit.checksums import check_files
from embedkit.errors import LockedError, OutputExistsError, StorageError


class Stop(BaseException):
    """The process ends here."""


def make(out: Path, content: str) -> None:
    with new_folder(out) as work:
        (work / "file").write_text(content)
        if content == "half":
            raise ValueError(content)


@pytest.fixture(params=[True, False], ids=["exchange", "two renames"])
def exchanges(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the file system exchanges names."""
    if not request.param:
        monkeypatch.setattr(fsio, "_exchange", lambda *_: False)
    return bool(request.param)


def test_the_old_or_the_new(tmp_path: Path, exchanges: bool) -> None:
    out = tmp_path / "out"
    make(out, "old")
    with pytest.raises(ValueError, match="half"):
        make(out, "half")
    assert (out / "file").read_text() == "old"
    make(out, "new")
    assert (out / "file").read_text() == "new"
    assert check_files(out) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert sorted(path.name for path in out.iterdir()) == ["SHA256SUMS", "file"]


@pytest.mark.parametrize("function", ["publish_folder", "remove_tree", "exchange_folders"])
@pytest.mark.parametrize("number", [0, 1])
def test_what_was_cut_short_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool, function: str, number: int
) -> None:
    """Wherever the process ends, the next command goes on from a whole folder."""
    out = tmp_path / "out"
    make(out, "old")
    real: Callable[..., object] = getattr(fsio, function)
    calls: list[object] = []

    def stop(*args: Path) -> object:
        calls.append(args)
        if len(calls) > number:
            raise Stop
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(fsio, function, stop)
        try:
            make(out, "new")
        except Stop:
            assert exchanges is False or out.is_dir()
    finish_swap(out, lambda _: True)
    assert (out / "file").read_text() in ("old", "new")
    assert not (out / UNFINISHED).exists()
    make(out, "newer")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out / "file").read_text() == "newer"


def test_a_file_of_an_earlier_attempt_is_not_among_the_checksums(tmp_path: Path) -> None:
    left = tmp_path / "out.incomplete/out.incomplete-SHA256SUMS.partial"
    left.parent.mkdir()
    left.write_bytes(b"torn")
    with new_folder(tmp_path / "out", begin=lambda work: None) as work:
        assert not left.exists()
        (work / "file").write_text("x")
    assert check_files(tmp_path / "out") == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["SHA256SUMS", "file"]


def test_what_is_not_ours_is_not_touched(tmp_path: Path) -> None:
    notes = tmp_path / "out" / UNFINISHED / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    finish_swap(tmp_path / "out", lambda _: False)
    assert notes.read_text() == "mine"


def test_an_interrupted_replacement_is_left_to_who_is_at_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / UNFINISHED / "replaced").mkdir(parents=True)
    with fsio.exclusive(out), pytest.raises(LockedError, match="another process"):
        finish_swap(out, lambda _: True)


@pytest.mark.parametrize("number", [22, 38, 95, 5])
def test_a_file_system_that_does_not_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("ctypes.get_errno", lambda: number)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    gone = tmp_path / "gone"
    if number == 5:
        with pytest.raises(StorageError, match=r"cannot write .*other: Input/output error"):
            fsio.exchange_folders(gone, tmp_path / "other")
    else:
        assert not fsio.exchange_folders(gone, tmp_path / "other")


def test_files_that_belong_together(tmp_path: Path) -> None:
    files = {tmp_path / "figures/a.svg": b"a", tmp_path / "page.html": b"page"}
    write_files(files, overwrite=False)
    write_files(files, overwrite=False)  # as after an interruption
    (tmp_path / "figures/a.svg").write_bytes(b"mine")
    (tmp_path / "page.html").unlink()
    with pytest.raises(OutputExistsError, match=r"a\.svg exists\. Choose another name"):
        write_files(files, overwrite=False)
    assert not (tmp_path / "page.html").exists()
    write_files(files, overwrite=True)
    assert (tmp_path / "figures/a.svg").read_bytes() == b"a"
