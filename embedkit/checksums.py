"""Checksums of the files of a finished folder.

    FOLDER/SHA256SUMS    a line "<sha256>  <path>" for every file, as sha256sum writes it

``sha256sum --check SHA256SUMS`` in the folder reads it too. A run or an index is sealed before it
gets its final name, and each file is compared when it is opened: a bit that changed on disk is an
error, never another answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from embedkit import fsio
from embedkit.errors import DamagedError

__all__ = ["check_files", "file_sums", "is_sealed", "seal"]

_NAME = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def seal(folder: Path, *, leave_out: str | None = None) -> None:
    """Write the checksums of all files of a folder.

    Args:
        folder: with all of its files in place.
        leave_out: a folder in it whose files are not listed.
    """
    lines = [
        f"{fsio.file_sha256(file)}  {name}\n"
        for name, file in sorted(_files(folder))
        if name != _NAME and name.split("/")[0] != leave_out
    ]
    fsio.write_durably(folder / _NAME, "".join(lines).encode(), scratch=folder)


def is_sealed(folder: Path) -> bool:
    """Whether a folder has checksums."""
    return (folder / _NAME).is_file()


def check_files(
    folder: Path, names: Iterable[str] = ("",), *, advice: str = "Make it again."
) -> int:
    """Compare files with their checksums.

    Args:
        folder: a sealed folder.
        names: paths in it; of a folder all files are compared, and ``""`` is all there are.
        advice: what to do about damage, the last sentence of the message.

    Returns:
        Bytes compared.

    Raises:
        DamagedError: a file is missing or has other content, or the checksums cannot be read.
    """
    size = 0
    try:
        sums = file_sums(folder)
        for wanted in names:
            inside = f"{wanted}/" if wanted else ""
            listed = [name for name in sums if name == wanted or name.startswith(inside)]
            if not listed:
                raise _DifferenceError(f"{folder / _NAME} does not list {wanted}")
            for name in listed:
                size += _compare(folder / name, sums[name])
    except _DifferenceError as error:
        raise DamagedError(f"{error}. {advice}") from error
    return size


class _DifferenceError(DamagedError):
    """What is wrong with a file, without a full stop."""


def file_sums(folder: Path) -> Mapping[str, str]:
    """Return the checksum of each file of a sealed folder by its path in the folder.

    Raises:
        DamagedError: there are none, or a line is not one of a path and its checksum.
    """
    file = folder / _NAME
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _DifferenceError(f"{file} cannot be read: {reason}") from error
    found = [_LINE.fullmatch(line) for line in lines]
    for number, match in enumerate(found, start=1):
        if match is None:
            raise _DifferenceError(f"{file} is damaged: line {number} is no checksum and path")
    return {match[2]: match[1] for match in found if match is not None}


def _compare(file: Path, expected: str) -> int:
    try:
        size = file.stat().st_size
        actual = fsio.file_sha256(file)
    except OSError as error:
        raise _DifferenceError(f"{file} cannot be read: {error.strerror}") from error
    if actual != expected:
        raise _DifferenceError(
            f"{file} is damaged: its SHA-256 is {actual[:12]}…, and {expected[:12]}… was written"
        )
    return size


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path
