r"""Bytes of one input file: decompressed, optionally transcoded, split into physical lines.

Lines end at ``\n`` and nowhere else; one ``\r`` before it is dropped. A lone ``\r``, U+2028,
NEL, vertical tab and form feed are text. Offsets count bytes of the decompressed stream.
"""

from __future__ import annotations

import codecs
import io
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from embedkit.errors import CorpusError

__all__ = [
    "MAX_RECORD_BYTES",
    "PACKED_SUFFIXES",
    "Line",
    "Source",
    "compression_of",
    "first_bytes",
    "is_wide",
]

MAX_RECORD_BYTES = 16 << 20
"""A longer record is rejected and reading goes on at the next line."""

PACKED_SUFFIXES = (".gz", ".gzip", ".zst", ".zstd", ".bz2")
"""Suffixes of compressed files; the compression itself is told by the first bytes."""

_EXCERPT = 200
_HEAD = 1 << 16
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
}
_FOREIGN = {
    "a PDF": (0, b"%PDF-"),
    "a PNG image": (0, b"\x89PNG\r\n"),
    "a JPEG image": (0, b"\xff\xd8\xff"),
    "a SQLite database": (0, b"SQLite format 3\x00"),
    "a tar archive": (257, b"ustar"),
    "a 7z archive": (0, b"7z\xbc\xaf\x27\x1c"),
    "a RAR archive": (0, b"Rar!\x1a\x07"),
    "an old Office document": (0, b"\xd0\xcf\x11\xe0\xa1\xb1"),
    "an HDF5 file": (0, b"\x89HDF\r\n"),
    "a Parquet file": (0, b"PAR1"),
    "an Arrow file": (0, b"ARROW1"),
}
"""Kinds of files that are no text, whatever they are called: place and content of their mark."""
_WIDE_BOMS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One physical line without its end.

    Attributes:
        number: 1-based line number in the file.
        offset: position of its first byte in the decompressed stream.
        length: bytes, the line end included.
        data: the bytes; only the first 200 where ``too_long``.
        too_long: the line exceeds :data:`MAX_RECORD_BYTES`.
    """

    number: int
    offset: int
    length: int
    data: bytes
    too_long: bool = False


def first_bytes(path: Path) -> bytes:
    """The first bytes of a file as they are on disk, as many as tell its compression."""
    with _opened(path) as stream:
        return stream.read(8) or b""


def compression_of(head: bytes, path: Path) -> str | None:
    """Name of the compression that the first bytes of a file tell, ``None`` for plain files.

    Raises:
        CorpusError: an archive or compression that is not read.
    """
    kind = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
    if kind in ("zip", "xz"):
        raise CorpusError(
            f"{path} is a {kind} file; plain, gzip, zstd and bzip2 files are read. "
            f"Unpack it first, or pipe it: unpack-command {path.name} | embedkit extract - ..."
        )
    return kind


class Source:
    """One open input file: an iterator of its lines that takes lines back.

    Args:
        path: the file.
        encoding: text encoding. UTF-16 and UTF-32 are transcoded to UTF-8 on the way, so that
            offsets are those of the UTF-8 stream; every other encoding is decoded row by row.

    Attributes:
        encoding: what the lines are written in: UTF-8 where they were transcoded.

    Raises:
        CorpusError: the file looks like another encoding or kind than asked for.
    """

    def __init__(self, path: Path, *, encoding: str = "utf-8") -> None:
        self.path = path
        self.encoding = "utf-8" if is_wide(encoding) else encoding
        self._file = _opened(path)
        self.size = path.stat().st_size
        try:
            compression = compression_of(self._file.read(8) or b"", path)
            self._file.seek(0)
            self._stream = self._readable(compression, encoding)
            self._number = self._offset = 0
            self._returned: deque[Line] = deque()
            self._check_head(encoding)
        except BaseException:
            self._file.close()
            raise

    def _readable(self, compression: str | None, encoding: str) -> io.BufferedReader:
        raw: Any = io.BufferedReader(self._file, _HEAD)
        if compression:
            # pyarrow reports a truncated archive; gzip does too, python-zstandard does not
            raw = pa.CompressedInputStream(pa.PythonFile(raw), compression)
            raw = io.BufferedReader(raw, _HEAD)
        if is_wide(encoding):
            raw = io.BufferedReader(
                cast(io.RawIOBase, _Transcoded(raw, encoding, self.path)), _HEAD
            )
        return cast(io.BufferedReader, raw)

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, and forget the lines that were taken back."""
        self._returned.clear()
        self._stream.close()
        self._file.close()

    @property
    def fraction(self) -> float:
        """Fraction of the file's bytes that has been read, 0 to 1."""
        return min(1.0, self._file.tell() / self.size) if self.size else 1.0

    def __iter__(self) -> Iterator[Line]:
        """Yield every physical line, blank ones included.

        Raises:
            CorpusError: the compressed stream is cut off or damaged, or only carriage returns end
                the lines.
        """
        return self

    def __next__(self) -> Line:
        if self._returned:
            return self._returned.popleft()
        data = self._guarded(self._stream.readline, MAX_RECORD_BYTES + 1)
        if not data:
            raise StopIteration
        self._number += 1
        offset, length = self._offset, len(data)
        if self._number == 1 and not data.endswith(b"\n") and b"\r" in data:
            raise CorpusError(
                f"{self.path} has lines that end in a carriage return alone. "
                "Convert it first: tr '\\r' '\\n' < old > new."
            )
        if too_long := length > MAX_RECORD_BYTES:
            rest = data
            while rest and not rest.endswith(b"\n"):
                rest = self._guarded(self._stream.readline, MAX_RECORD_BYTES)
                length += len(rest)
        self._offset += length
        kept = data[:_EXCERPT] if too_long else _strip_end(data)
        return Line(self._number, offset, length, kept, too_long)

    def back(self, lines: Sequence[Line]) -> None:
        """Yield these lines again, before all others."""
        self._returned.extendleft(reversed(lines))

    def head(self) -> bytes:
        """The first bytes of the decompressed stream, without consuming them."""
        return self._guarded(self._stream.peek, _HEAD)[:_HEAD]

    def _guarded(self, read: Callable[[int], bytes], size: int) -> bytes:
        try:
            return read(size)
        except (OSError, EOFError) as error:
            raise CorpusError(
                f"{self.path}: the file cannot be read to its end ({error}). It may be cut off: "
                "fetch it again, and pass overwrite=True if shards of it were already made."
            ) from error

    def _check_head(self, encoding: str) -> None:
        head = self.head()
        for kind, (at, mark) in _FOREIGN.items():
            if head.startswith(mark, at):
                raise CorpusError(
                    f"{self.path} is {kind}, and a text file was expected. Give the file that "
                    "holds the texts, or name its kind with format=."
                )
        if head.startswith(codecs.BOM_UTF8):
            self._stream.read(len(codecs.BOM_UTF8))
            self._offset = len(codecs.BOM_UTF8)
        elif wide := next((n for bom, n in _WIDE_BOMS.items() if head.startswith(bom)), None):
            raise CorpusError(
                f"{self.path} looks like {wide.upper()}, and {encoding} was expected. "
                f"Use encoding={wide!r}."
            )
        elif head.count(0) > len(head) / 100:
            raise CorpusError(
                f"{self.path} holds NUL bytes ({head.count(0)} in the first {len(head)}): it is "
                "binary, or UTF-16 without a mark. Use encoding='utf-16-le' or 'utf-16-be', or "
                "pass a text file."
            )


class _Transcoded(io.RawIOBase):
    """UTF-16 or UTF-32 bytes read as UTF-8."""

    def __init__(self, stream: BinaryIO, encoding: str, path: Path) -> None:
        self._stream = stream
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)("strict")
        self._path = path
        self._pending = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast(bytearray, buffer))
        while not self._pending:
            data = self._stream.read(_HEAD)
            try:
                text = self._decoder.decode(data, final=not data)
            except UnicodeError as error:
                raise CorpusError(
                    f"{self._path} is not valid {self._encoding}: {error}. "
                    "Pass the right encoding=."
                ) from error
            self._pending = text.encode("utf-8")
            if not data:
                break
        count = min(len(view), len(self._pending))
        view[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        return count


def is_wide(encoding: str) -> bool:
    """Whether a line feed takes more than one byte, so that lines cannot be found in the bytes."""
    return codecs.lookup(encoding).name.replace("_", "-").startswith(("utf-16", "utf-32"))


def _opened(path: Path) -> io.FileIO:
    try:
        return path.open("rb", buffering=0)
    except OSError as error:
        raise CorpusError(f"{path} cannot be opened: {error.strerror}.") from error


def _strip_end(data: bytes) -> bytes:
    return data[:-1].removesuffix(b"\r") if data.endswith(b"\n") else data
