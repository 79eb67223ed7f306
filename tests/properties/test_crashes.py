"""A sample of the crash enumeration, all of which ``make crashes`` does."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from tests.durable import SCENARIOS, Disk, Tree, install, main, states_of
from tests.models import slow
from tests.processes import in_children


@pytest.mark.parametrize(("names", "every"), [(["extract --reuse"], 97), *slow((SCENARIOS, 41))])
def test_a_sample_of_faults_and_power_cuts(names: Iterable[str], every: int) -> None:
    """In a child, which has everything imported; what went wrong is printed."""
    assert in_children(partial(main, [*names, f"--sample={every}"])) == [0]


def states_of_a_write(folder: Path, *, sync_file: bool, sync_folder: bool) -> list[Tree]:
    """What a power cut leaves after a file was replaced with some of the ``fsync`` left out."""
    install()
    (folder / "name").write_bytes(b"old content")
    disk = Disk.active = Disk(folder, traced=True)
    with open(folder / "temporary", "wb") as file:  # noqa: PTH123 - as the libraries do
        file.write(b"new content")
        file.flush()
        if sync_file:
            os.fsync(file.fileno())
    os.replace(folder / "temporary", folder / "name")  # noqa: PTH105
    if sync_folder:
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
    return [tree for tree, ended in states_of(disk) if ended]


@pytest.mark.parametrize(
    ("sync_file", "sync_folder", "possible"),
    [
        (True, True, {b"new content"}),
        (True, False, {b"old content", b"new content"}),
        (False, True, {b"", b"new c", b"new content"}),
    ],
)
def test_a_missing_fsync_is_noticed(
    tmp_path: Path, sync_file: bool, sync_folder: bool, possible: set[bytes]
) -> None:
    action = partial(states_of_a_write, tmp_path, sync_file=sync_file, sync_folder=sync_folder)
    (trees,) = in_children(action)
    assert {tree["name"] for tree in trees} == possible
