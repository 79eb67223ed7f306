r"""Open input files and their physical lines.

    bytes ─ decompressed, UTF-16 transcoded ─► Source ─► Line

    Line(number=3, offset=41, length=9, data=b"7\tgood")      where it stands, and what is there

A line knows its number and its byte, so that a reject can be found with any editor and a reader
that is interrupted goes on in the middle of a file (:meth:`Source.seek`). Memory is bounded,
whatever a file holds: a line is read up to a limit, blank lines are skipped in blocks, and what is
no corpus is recognised by its first bytes before anything is read.
"""

from __future__ import annotations

import codecs
import io
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from embedkit.errors import CorpusError, Option
from embedkit.storage import reading, unreadable

MAX_RECORD_BYTES = 16 << 20
"""Longer records are rejected, and reading continues on the next line."""

LINE_BYTES = 100  # that a line counts beside its own: millions of short ones take memory and time

PACKED_SUFFIXES = (".gz", ".gzip", ".zst", ".zstd", ".bz2")
"""Suffixes of compressed files; the first bytes tell which compression it is."""

EXCERPT = 200
"""Bytes of a record in its reject."""

# what changes the depth in JSON, or ends an element; in a string only its end
# counts, and a backslash hides the next byte
_MARK, _IN_STRING = re.compile(rb'["{}\[\],]'), re.compile(rb'\\.|"', re.DOTALL)
# bytes that are read at once, and by which the kind of a file is judged
_HEAD = 1 << 16
_KINDS = ": cp949 if Korean, cp932 or euc_jp if Japanese, cp1252 if Western European"
_OWN = Option("encoding", before=", or pass its ", after=_KINDS)
RIGHT_ENCODING = f"Save it as UTF-8{_OWN}."
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}
# xz, LZ4, 7z, RAR, and gzip within what was unpacked already
_PACKED = b"\xfd7zXZ\0", b"\x04\x22\x4d\x18", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07", b"\x1f\x8b"
_KIND, _FETCH = f"Name its kind with {Option('format')}", "Fetch the file itself"
_ONE_LINE = 100  # bytes
_LFS = b"version https://git-lfs", b"version https://hawser"
# a pointer, or the link in place of it, from some folders below
_ANNEX = b"/annex/objects/", *(b"../" * n + b".git/annex/objects/" for n in range(5))
_XML = b"<?xml", b"<rss", b"<svg", b"<rdf", b"<error>"
_ERRORS = b"429: too", b"400: invalid", b"entry not found", b"error code: "
_UNPACK = "Unpack it; gzip, zstd and bzip2 are read"
_SHEET = f"; if it is a workbook, read it with {Option('format', 'sheet')}"
_ZIP, _OLD = f"{_UNPACK}{_SHEET}", f"Save it as text{_SHEET}"
# several labels of a text are joined first; no blanks, at which a terminal would break the line
_SED = r":a;s/^(__label__\S*)\s__label__/\1,/;ta;s/^__label__(\S*)\s/\1\t/"
_COLUMNS = f"Make columns of it: sed -E '{_SED}' old > new.tsv; it has no header"
_FOREIGN: Sequence[tuple[str, int | None, bytes | tuple[bytes, ...], str]] = (
    ("a PDF", 0, b"%PDF-", "Extract its text first"),
    ("an image", 0, (b"\x89PNG\r\n", b"\xff\xd8\xff"), _FETCH),
    ("a database", 0, (b"SQLite format 3\x00", b"\x89HDF\r\n"), "Export a table of it as CSV"),
    ("a tar archive", 257, b"ustar", "Unpack it"),
    ("a packed file, maybe within another one", 0, _PACKED, _UNPACK),
    ("a zip file", 0, b"PK\x03\x04", _ZIP),
    ("an old Office document, or a locked one", 0, b"\xd0\xcf\x11\xe0\xa1\xb1", _OLD),
    ("a pickle", 0, (b"\x80\x04\x95", b"\x80\x05\x95"), "Load it, and pass the object in Python"),
    ("a NumPy array", 0, b"\x93NUMPY", "Load it, and pass the list of its texts in Python"),
    ("a file of Stata or SPSS", 0, (b"<stata_dta>", b"$FL2@(#)"), "Export it as CSV"),
    ("a Parquet or Arrow file", 0, (b"PAR1", b"ARROW1"), _KIND),
    ("an Avro file", 0, b"Obj\x01", "Convert it to Parquet"),
    ("a pointer of Git LFS, not the file", None, _LFS, "Run git lfs pull"),
    ("a pointer of git-annex, not the file", None, _ANNEX, "Run git annex get"),
    ("a pointer of DVC, not the file", None, b"outs:\n- md5", "Run dvc pull"),
    ("a web page", None, (b"<!doctype html", b"<html", b"<head"), _FETCH),
    ("a table of a web page or of Weka", None, (b"<table", b"@relation "), "Save it as CSV"),
    ("an XML document or an error of a server", None, (*_XML, b"404: not"), _FETCH),
    ("an error of a server", -1, _ERRORS, _FETCH),
    ("a file of fastText", None, b"__label__", _COLUMNS),
    ("an RTF document", None, b"{\\rtf", "Save it as plain text"),
)
"""What is no corpus, whatever its name: kind, position and bytes of its signatures, and what to do.

Without a position the signature stands at the beginning of the text, in any case, after a byte
order mark and white space; at -1 it is that of a file of one short line.
"""
# UTF-32 stands first: its little-endian mark begins with that of UTF-16
_WIDE_BOMS = dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "utf-32")
_WIDE_BOMS |= dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-16")


_ISO_2022 = re.compile(rb"\x1b\$(?:[@B]|(\)C))")
"""Where Japanese or Korean begins in it."""


class Line(NamedTuple):
    """One physical line without its end.

    Numbers begin at 1, ``offset`` is in the decompressed stream, ``length`` includes the line end.
    Of lines over :data:`MAX_RECORD_BYTES` (``too_long``) ``data`` has the first 200 bytes.
    """

    number: int
    offset: int
    length: int
    data: bytes
    too_long: bool = False


def first_bytes(path: Path) -> bytes:
    """The first bytes of a file on disk, which tell its compression."""
    with _opened(path) as stream:
        return stream.read(EXCERPT) or b""


def compression_of(path: Path) -> str | None:
    """Name of the compression by the first bytes, ``None`` for plain files."""
    head = first_bytes(path)
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def check_kind(path: Path, head: bytes | None = None, *, text: bool = True) -> None:
    """Raise a :class:`CorpusError` for a file of a foreign kind, by its first bytes.

    Of a file that is not ``text`` only signatures of text are looked for.
    """
    head = first_bytes(path) if head is None else head
    # in lower case, as tags of HTML are written either way
    start = head[:_HEAD].replace(codecs.BOM_UTF8, b"").lstrip()[:EXCERPT].lower()
    for kind, at, mark, advice in _FOREIGN:
        # a longer text may well begin so
        if at == -1 and (len(head) > _ONE_LINE or b"\n" in head.strip()):
            continue
        if start.startswith(mark) if at in (None, -1) else text and head.startswith(mark, at):
            raise CorpusError(f"{path} is {kind}. {advice}.")


_EMPTY_LINES = re.compile(rb"(?:\r?\n)+")


class Source:
    """One open input file: an iterator of its lines, blank ones included, that takes lines back.

    UTF-16 and UTF-32 are transcoded to UTF-8, so ``encoding`` is UTF-8 then and offsets are those
    of the UTF-8 stream; every other encoding is decoded row by row, unless ``transcode`` is set.
    A file that begins with their byte order mark is one of them, as Excel's "Unicode text" is,
    whatever encoding is given.
    """

    def __init__(self, path: Path, *, encoding: str = "utf-8", transcode: bool = False) -> None:
        self.path = path
        # what lines are decoded with, and what the file has
        self.encoding = self._encoding = encoding
        self._number = self._offset = 0
        self._line_end = b"\r"
        self._returned: deque[Line] = deque()
        self._file = _opened(path)
        self.size = path.stat().st_size
        try:
            raw: Any = self._file
            # by its bytes: a suffix is lost or wrong as soon as a file is renamed
            if compression := compression_of(path):
                # pyarrow reports a truncated archive; python-zstandard does not
                raw = pa.CompressedInputStream(pa.PythonFile(raw), compression)
            # buffered above everything: it has the `peek` by which
            # blank lines and heads are looked at
            self._stream = io.BufferedReader(raw, _HEAD)
            if not is_wide(encoding):
                marked = (name for mark, name in _WIDE_BOMS.items() if self.head().startswith(mark))
                self._encoding = next(marked, encoding)
            if transcode or is_wide(self._encoding):
                source = pa.PythonFile(self._stream)
                raw = pa.transcoding_input_stream(source, self._encoding, "utf-8")
                self._stream, self.encoding = io.BufferedReader(raw, _HEAD), "utf-8"
            self._check_head()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file, and drop the lines that were given back."""
        self._returned.clear()
        self._stream.close()
        self._file.close()

    @property
    def fraction(self) -> float:
        """Fraction of the file's bytes that has been read, 0 to 1."""
        return min(1.0, self._file.tell() / self.size) if self.size else 1.0

    def __iter__(self) -> Iterator[Line]:
        return self

    def __next__(self) -> Line:
        if self._returned:
            return self._returned.popleft()
        # one byte more than the limit, to tell a line of just that length from a longer one; memory
        # is bounded whatever the file has
        data = self._guarded(self._stream.readline, MAX_RECORD_BYTES + 1)
        if not data:
            raise StopIteration
        self._number += 1
        # one line with carriage returns is a file of an old Macintosh, to whose end an editor may
        # have added a line end; it would be a single record
        inside = data.rstrip(b"\r\n") if data.endswith(b"\n") else data
        if self._number == 1 and b"\r" in inside and not self._guarded(self._stream.peek, 1):
            problem = "has lines that end in a carriage return alone"
            raise CorpusError(f"{self.path} {problem}. Convert it: tr '\\r' '\\n' < old > new.")
        offset, length = self._offset, len(data)
        if too_long := length > MAX_RECORD_BYTES:
            rest, data = data, data[:EXCERPT]
            # the rest is read to be counted and thrown away: offsets stay right
            while rest and not rest.endswith(b"\n"):
                rest = self._guarded(self._stream.readline, MAX_RECORD_BYTES)
                length += len(rest)
        elif data.endswith(b"\n"):
            # only what the file uses as line end: other carriage
            # returns at the end belong to the text
            data = data[:-1].removesuffix(self._line_end)
        self._offset += length
        return Line(self._number, offset, length, data, too_long)

    def array_items(self) -> Iterator[Line]:
        """The elements of a JSON array instead of the lines; one of them is in memory."""
        # elements are found by brackets, quotes and commas alone, without parsing: an element that
        # is broken inside costs one record. `at` is up to where the buffer was searched
        buffer, at, depth, in_string, before = bytearray(), 0, 0, False, b""
        number, dropped, ends = 1, 0, 0  # bytes and line ends of a long element that were dropped
        while chunk := self._guarded(self._stream.read1, _HEAD):
            buffer += chunk
            while match := (_IN_STRING if in_string else _MARK).search(buffer, at):
                at, mark = match.end(), match[0]
                # an escaped byte within a string leaves it a string
                if in_string or mark == b'"':
                    in_string = not in_string or mark != b'"'
                    continue
                depth += (mark in b"[{") - (mark in b"]}")
                ends_item = (mark == b"," and depth == 1) or (mark == b"]" and depth == 0)
                # an element ends at a comma between elements, or at the end of the array; at its
                # opening bracket what stood before it is dropped
                if not ends_item and (mark != b"[" or depth != 1):
                    continue
                raw = bytes(buffer[: at - 1])
                lead, data = len(raw) - len(raw.lstrip()), raw.strip()
                # nothing at all is an empty array, nothing beside a comma a bad element
                if ends_item and (data or b"," in (before, mark)):
                    length, line = len(data) + dropped, number + raw.count(b"\n", 0, lead)
                    long = length > MAX_RECORD_BYTES
                    data = data[:EXCERPT] if long else data
                    yield Line(line, self._offset + lead, length, data, long)
                before = mark
                number += buffer.count(b"\n", 0, at) + ends
                # as if nothing had been dropped: place and line are those of the file
                self._offset += at + dropped
                del buffer[:at]
                at = dropped = ends = 0
            # a backslash at the end of the chunk waits for the byte that it hides
            at = max(at, len(buffer) - buffer.endswith(b"\\"))
            # a long element keeps its beginning, for the excerpt of its reject
            if at > MAX_RECORD_BYTES:
                ends += buffer.count(b"\n", EXCERPT, at)
                dropped += at - EXCERPT
                del buffer[EXCERPT:at]
                at = EXCERPT
        if depth or buffer.strip():
            raise CorpusError(f"{self.path}: its array is cut off, or not all that is in it.")

    def seek(self, line: int | None, offset: int | None) -> bool:
        """Continue with the line at an offset; ``False`` for a packed or wide file."""
        is_plain = isinstance(self._stream.raw, io.FileIO)
        # an offset is one of the stream; only of a plain file is it a place in the file too
        if not is_plain or line is None or offset is None:
            return False
        # lines that were given back stand before the place
        self._returned.clear()
        self._stream.seek(offset)
        self._number, self._offset = line - 1, offset
        return True

    def skip_blank(self) -> int:
        """Skip the empty lines that follow, and return their number.

        A packed file of a few kilobytes may hold hundreds of millions: they are skipped in blocks.
        """
        count = 0
        # only the stream has blocks; a line that was given back comes first
        while not self._returned and (
            run := _EMPTY_LINES.match(self._guarded(self._stream.peek, 1))
        ):
            self._stream.read(run.end())
            self._offset += run.end()
            count += run[0].count(b"\n")
        self._number += count
        return count

    def back(self, lines: Sequence[Line]) -> None:
        """Yield these lines again, before all others."""
        # extendleft turns the order
        self._returned.extendleft(reversed(lines))

    def head(self) -> bytes:
        """The first bytes of the decompressed stream, without consuming them."""
        return self._guarded(self._stream.peek, _HEAD)[:_HEAD]

    def _guarded(self, read: Callable[[int], bytes], size: int) -> bytes:
        try:
            return read(size)
        # of transcoding; other encodings are decoded where records are
        except UnicodeError as error:
            problem = f"is not valid {self._encoding}: {error}. {RIGHT_ENCODING}"
            raise CorpusError(f"{self.path} {problem}") from error
        except (OSError, EOFError) as error:
            advice = "It may be cut off before its end: fetch it again."
            raise unreadable(self.path, error, error=CorpusError, advice=advice) from error

    def _check_head(self) -> None:
        head = self.head()
        check_kind(self.path, head)
        # most of the line ends, since a few may stand in texts
        if head.count(b"\r\r\n") * 2 > head.count(b"\n"):
            self._line_end = b"\r\r"  # text mode of Windows around a writer of line ends
        # several, where marked files were joined or a writer added its own
        while head.startswith(codecs.BOM_UTF8, self._offset):
            self._stream.read(len(codecs.BOM_UTF8))
            self._offset += len(codecs.BOM_UTF8)
            self.encoding = self._encoding = "utf-8"  # whatever encoding is given
        # a mark of UTF-8 says that it is text of no wide encoding
        if self._offset:
            return
        # letters of ISO 2022 are ASCII, between escape sequences: nothing else would show it
        if "2022" not in self._encoding and (match := _ISO_2022.search(head)):
            use = Option("encoding", "iso2022_kr" if match[1] else "iso2022_jp", before=", or use ")
            raise CorpusError(f"{self.path} looks like ISO 2022. Save it as UTF-8{use}.")
        # in UTF-16 of Latin letters it is half of the bytes; a
        # stray NUL in a text is none of its kind
        if head.count(0) > len(head) / 100:
            problem = "holds NUL bytes: it is not text, or UTF-16 without a mark"
            use = Option("encoding", "utf-16-le", before=", or use ", after=" or utf-16-be")
            raise CorpusError(f"{self.path} {problem}. Save it as UTF-8{use}.")


def is_wide(encoding: str) -> bool:
    """True if lines are not to be read one by one.

    A line feed takes several bytes, or what a byte means is said in an earlier line.
    """
    # of iso2022_kr it is the first line of the file that says so
    kinds = "utf-16", "utf-32", "utf-7", "iso2022-kr", "hz"
    return codecs.lookup(encoding).name.replace("_", "-").startswith(kinds)


def _opened(path: Path) -> io.FileIO:
    with reading(path, error=CorpusError, advice=""):
        return path.open("rb", buffering=0)


def check_encoding(path: Path, encoding: str, bad: int, seen: int) -> None:
    """Raise a :class:`CorpusError` if most of the first records are in another encoding."""
    # half of them: a few bad rows are rejects, most of them a wrong option
    if bad * 2 > seen:
        raise CorpusError(f"{path}: {bad} of {seen} records are not {encoding}. {RIGHT_ENCODING}")
