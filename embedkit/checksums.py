"""Checksums of the files of a finished folder.

    FOLDER/SHA256SUMS      a line "<sha256>  <path>" for every file, as sha256sum writes it
    FOLDER/SHA256BLOCKS    where a file is larger than a block: JSON, the SHA-256 of its blocks

``sha256sum --check SHA256SUMS`` in the folder reads it too. A run or an index is sealed before it
gets its final name, and each file is compared when it is opened: a bit that changed on disk is an
error, never another answer. A large file is compared by its blocks, several at a time, and the
message says which is damaged.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from embedkit import fsio
from embedkit.decoding import decode, read_json
from embedkit.errors import DamagedError
from embedkit.machine import usable_cores

__all__ = ["BLOCK", "block_sums", "check_files", "file_sums", "is_sealed", "seal"]

T = TypeVar("T")

BLOCK = 1 << 24
"""Bytes of a block."""

_NAME, _BLOCKS = "SHA256SUMS", "SHA256BLOCKS"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_PIECE = 1 << 18


def seal(folder: Path, *, leave_out: str | None = None) -> None:
    """Write the checksums of all files of a folder.

    Args:
        folder: with all of its files in place.
        leave_out: a folder in it whose files are not listed.
    """
    files = {
        name: file
        for name, file in sorted(_files(folder))
        if name not in (_NAME, _BLOCKS) and name.split("/")[0] != leave_out
    }
    large = {name: file for name, file in files.items() if file.stat().st_size > BLOCK}
    if large:
        sums = _of_each(large, lambda file: block_sums(file, file.stat().st_size))
        content = json.dumps({"block": BLOCK, "files": sums}, indent=1) + "\n"
        fsio.write_durably(folder / _BLOCKS, content.encode(), scratch=folder)
        files[_BLOCKS] = folder / _BLOCKS
    elif (folder / _BLOCKS).is_file():  # of an earlier attempt
        fsio.remove_file(folder / _BLOCKS)
    found = _of_each(files, fsio.file_sha256)
    lines = [f"{digest}  {name}\n" for name, digest in sorted(found.items())]
    fsio.write_durably(folder / _NAME, "".join(lines).encode(), scratch=folder)


def _of_each(files: Mapping[str, Path], digest: Callable[[Path], T]) -> dict[str, T]:
    """Digests by name; one file under several names (models share frozen weights) is read once."""
    known: dict[Hashable, T] = {}
    found = {}
    for name, file in files.items():
        key = _identity(file, name)
        if key not in known:
            known[key] = digest(file)
        found[name] = known[key]
    return found


def _identity(file: Path, name: str) -> Hashable:
    """The same for all names of one file; its own for a file that is not there."""
    try:
        status = file.stat()
    except OSError:
        return name
    return (status.st_dev, status.st_ino) if status.st_nlink > 1 else name


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
    compared: set[Hashable] = set()
    try:
        sums = file_sums(folder)
        blocks = _blocks(folder, sums)
        for wanted in names:
            inside = f"{wanted}/" if wanted else ""
            listed = [name for name in sums if name == wanted or name.startswith(inside)]
            if not listed:
                raise _DifferenceError(f"{folder / _NAME} does not list {wanted}")
            for name in listed:
                if (one := (_identity(folder / name, name), sums[name])) not in compared:
                    size += _compare(folder / name, sums[name], blocks.get(name))
                    compared.add(one)
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


def block_sums(file: Path, size: int) -> list[str]:
    """SHA-256 in hex of each block of the first ``size`` bytes of a file, several at a time.

    Raises:
        OSError: the file cannot be read.
    """

    def one(start: int) -> str:
        digest, left = hashlib.sha256(), min(BLOCK, size - start)
        piece = memoryview(bytearray(_PIECE))
        with file.open("rb", buffering=0) as stream:
            stream.seek(start)
            while left and (count := stream.readinto(piece[: min(_PIECE, left)])):
                digest.update(piece[:count])
                left -= count
        return digest.hexdigest()

    with ThreadPoolExecutor(min(8, usable_cores())) as pool:
        return list(pool.map(one, range(0, size, BLOCK)))


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Content of ``SHA256BLOCKS``."""

    block: int
    files: dict[str, tuple[str, ...]]

    def problem(self) -> str:
        """What cannot be: blocks of another size than is read."""
        return "" if self.block == BLOCK else f"block is {self.block}, expected {BLOCK}"


def _blocks(folder: Path, sums: Mapping[str, str]) -> Mapping[str, tuple[str, ...]]:
    """The checksums of the blocks of large files; earlier versions wrote none."""
    if _BLOCKS not in sums:
        return {}
    _compare(folder / _BLOCKS, sums[_BLOCKS])
    return decode(_Blocks, read_json(folder / _BLOCKS), file=folder / _BLOCKS).files


def _compare(file: Path, expected: str, blocks: Sequence[str] | None = None) -> int:
    try:
        size = file.stat().st_size
        found = [fsio.file_sha256(file)] if blocks is None else block_sums(file, size)
    except OSError as error:
        raise _DifferenceError(f"{file} cannot be read: {error.strerror}") from error
    wanted = [expected] if blocks is None else list(blocks)
    if len(found) != len(wanted):
        raise _DifferenceError(
            f"{file} is damaged: it has {size:,} bytes, and another number was written"
        )
    for number, (actual, written) in enumerate(zip(found, wanted, strict=True)):
        if actual != written:
            where = "" if blocks is None else f" of the {BLOCK:,} bytes from {number * BLOCK:,}"
            raise _DifferenceError(
                f"{file} is damaged: its SHA-256{where} is {actual[:12]}…, and {written[:12]}… was "
                "written"
            )
    return size


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path
