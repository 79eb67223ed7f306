"""What to read and how: files, dialect and columns, settled before anything expensive starts."""

from __future__ import annotations

import codecs
import dataclasses
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from embedkit.corpus.readers import Dialect, ParquetTable, Table, open_table
from embedkit.corpus.source import Source, compression_of, is_parquet, is_wide
from embedkit.errors import CorpusError, UsageError, check_counts, did_you_mean
from embedkit.fsio import file_sha256

__all__ = ["FORMATS", "CorpusPlan", "InputFile", "hash_inputs", "plan_corpus"]

FORMATS = ("auto", "tsv", "csv", "lines", "jsonl", "parquet")
QUOTING = ("auto", "none", "csv")
UNICODE = ("none", "nfc", "nfkc")

_SUFFIXES = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".txt": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_MARKS = '\t\r\n",;|'
_SHOWN = 500
_PACKED = (".gz", ".gzip", ".zst", ".zstd", ".bz2")
_TEXT_NAMES = ("text", "document", "sentence", "content", "review", "comment", "body", "title")
_ID_NAMES = ("id", "doc_id", "document_id", "uid", "guid", "idx", "index")
_LABEL_NAMES = ("label", "labels", "target", "class", "category", "y")


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input file as found when the job started.

    Attributes:
        path: where it is.
        name: how the user named it; ``-`` for standard input.
        size: bytes on disk.
        mtime_ns: modification time, to notice a change during the job.
        sha256: hash of the bytes on disk, hex; empty until :func:`hash_inputs`.
    """

    path: Path
    name: str
    size: int
    mtime_ns: int
    sha256: str = ""

    @classmethod
    def of(cls, path: Path, *, name: str | None = None) -> InputFile:
        """Describe a file that exists.

        Raises:
            CorpusError: it does not exist, or is a folder, a pipe or a device.
        """
        try:
            status = path.stat()
        except OSError as error:
            raise CorpusError(
                f"{path} cannot be opened: {error.strerror}.{_neighbour(path)}"
            ) from error
        if stat.S_ISDIR(status.st_mode):
            raise CorpusError(f"{path} is a folder; give its files: {path}/*.tsv.")
        if not stat.S_ISREG(status.st_mode):
            raise CorpusError(
                f"{path} is a pipe or a device, which cannot be read twice. Give a file, or pipe "
                "into: embedkit extract - --out FOLDER"
            )
        return cls(path, name or str(path), status.st_size, status.st_mtime_ns)

    def check_unchanged(self) -> None:
        """Raise a :class:`CorpusError` if the file is no longer the one that was described."""
        now = InputFile.of(self.path, name=self.name)
        if (now.size, now.mtime_ns) != (self.size, self.mtime_ns):
            raise CorpusError(
                f"{self.name} changed while it was being read. Let it settle and start again: the "
                "finished shards will be compared with the new content."
            )


@dataclass(frozen=True, slots=True)
class CorpusPlan:
    """Everything that decides which records a corpus holds.

    Attributes:
        files: the inputs in reading order.
        dialect: how they are written.
        columns: names found in the header.
        text: column of the text.
        text_pair: column of the second text of a pair, or ``None``.
        id: column of the id, or ``None``: then the row number serves.
        label: column of the label, or ``None``.
        keep: further columns to carry along.
        unicode: ``none``, ``nfc`` or ``nfkc``, applied to the texts.
        min_chars: shorter texts are left out and counted.
        limit: only the first so many records, or ``None``.
        sample: only so many records drawn at random, or ``None``.
        seed: seed of the draw.
        notices: sentences for the user about what was guessed.
    """

    files: tuple[InputFile, ...]
    dialect: Dialect
    columns: tuple[str, ...]
    text: str
    text_pair: str | None = None
    id: str | None = None
    label: str | None = None
    keep: tuple[str, ...] = ()
    unicode: str = "none"
    min_chars: int = 0
    limit: int | None = None
    sample: int | None = None
    seed: int = 0
    notices: tuple[str, ...] = ()

    @property
    def wanted(self) -> tuple[str, ...]:
        """Columns to read: text first, then pair, id, label and kept ones where they exist."""
        optional = (self.text_pair, self.id, self.label)
        return (self.text, *(name for name in optional if name is not None), *self.keep)

    def open_tables(self) -> Iterator[tuple[int, Table]]:
        """Yield (file number, open table) for every input, closing each afterwards."""
        for number, file in enumerate(self.files):
            table = open_table(file.path, self.dialect)
            try:
                yield number, table
            finally:
                table.close()


def plan_corpus(
    files: Sequence[InputFile],
    *,
    text: str | None = None,
    text_pair: str | None = None,
    id: str | None = None,
    label: str | None = None,
    keep: Sequence[str] = (),
    format: str = "auto",
    encoding: str = "utf-8",
    quoting: str = "auto",
    header: bool = True,
    unicode: str = "none",
    min_chars: int = 0,
    limit: int | None = None,
    sample: int | None = None,
    seed: int = 0,
    text_option: str = "--text",
) -> CorpusPlan:
    """Settle format, dialect and columns by the options and the first lines of the files.

    Columns that are not named are guessed by their names; the plan's ``notices`` say which.
    ``text_option`` is what the option for the text column is called where they are read.

    Raises:
        CorpusError: a file is missing, of another format or encoding, or lacks a column.
        UsageError: options contradict each other.
    """
    if not files:
        raise UsageError("no input file was given. Example: embedkit extract corpus.tsv")
    _check_choices(format=(format, FORMATS), quoting=(quoting, QUOTING), unicode=(unicode, UNICODE))
    check_counts(min_chars=min_chars, limit=limit, sample=sample, seed=seed)
    encoding = _settled_encoding(encoding)
    dialect, notices = _dialect(files[0], format, encoding, quoting, header)
    columns = _common_columns(files, dialect)
    if not columns:  # JSON Lines without a record: nothing contradicts the names that were given
        named = (text or "text", text_pair, id, label, *keep)
        columns = tuple(dict.fromkeys(name for name in named if name is not None))
    guess = _Guess(columns, files[0].name, notices)
    text = guess.text(text, text_option)
    text_pair = guess.given(text_pair, "--text-pair")
    taken = {text, text_pair}
    plan = CorpusPlan(
        files=tuple(files),
        dialect=dialect,
        columns=columns,
        text=text,
        text_pair=text_pair,
        id=guess.optional(id, "--id", _ID_NAMES, taken),
        label=guess.optional(label, "--label", _LABEL_NAMES, taken),
        keep=tuple(str(guess.given(name, "--keep")) for name in keep),
        unicode=unicode,
        min_chars=min_chars,
        limit=limit,
        sample=sample,
        seed=seed,
        notices=tuple(notices),
    )
    _check_types(plan)
    return plan


def hash_inputs(plan: CorpusPlan) -> CorpusPlan:
    """The same plan with the SHA-256 of every input, so that a changed corpus is noticed."""
    files = tuple(dataclasses.replace(f, sha256=file_sha256(f.path)) for f in plan.files)
    return dataclasses.replace(plan, files=files)


class _Guess:
    """Finds columns by name and says what it chose."""

    def __init__(self, columns: Sequence[str], file: str, notices: list[str]) -> None:
        self._columns = columns
        self._file = file
        self._notices = notices

    def given(self, name: str | None, option: str) -> str | None:
        """The named column, which must exist; spaces after the commas of a list do not count."""
        if name is not None and name not in self._columns and name.strip() in self._columns:
            name = name.strip()
        if name is not None and name not in self._columns:
            raise CorpusError(
                f"{option} {name}: {self._file} has no such column; it has "
                f"{_listed(self._columns)}.{_quoted(self._columns)}"
                f"{did_you_mean(name, self._columns)}"
            )
        return name

    def text(self, name: str | None, option: str) -> str:
        """The text column: named, the only one, or one with a usual name."""
        if name is not None:
            return str(self.given(name, option))
        if len(self._columns) == 1:
            return self._columns[0]
        found = self._find(_TEXT_NAMES)
        if found is None:
            raise CorpusError(
                f"{self._file}: which column is the text? It has {_listed(self._columns)}."
                f"{_quoted(self._columns)} Name one with {option}, and --text-pair for the second "
                "text of a pair."
            )
        self._notices.append(f"text column: {found} (choose another with {option})")
        return found

    def optional(
        self, name: str | None, option: str, usual: Sequence[str], taken: set[str | None]
    ) -> str | None:
        """A column that may be absent: named, or one with a usual name, or none."""
        if name is not None:
            return self.given(name, option)
        found = self._find(usual)
        if found is None or found in taken:
            return None
        self._notices.append(f"{option[2:]} column: {found} (choose another with {option})")
        return found

    def _find(self, usual: Sequence[str]) -> str | None:
        by_lower = {name.lower(): name for name in reversed(self._columns)}
        return next((by_lower[name] for name in usual if name in by_lower), None)


def _dialect(
    file: InputFile, format_name: str, encoding: str, quoting: str, header: bool
) -> tuple[Dialect, list[str]]:
    notices: list[str] = []
    suffix = _suffix(file)
    kind = format_name if format_name != "auto" else _SUFFIXES.get(suffix, "")
    if not kind:
        kind = _sniff(file, encoding)
        notices.append(f"format: {kind} (told by its first bytes; set it with --format)")
    if kind == "parquet":
        if compression_of(file.path):
            raise CorpusError(f"{file.name}: a compressed Parquet file must be unpacked first.")
        return Dialect("parquet"), notices
    if kind == "jsonl":
        return Dialect("jsonl", encoding), notices
    first = _first_line(file, encoding)
    delimiter = "\t"
    if kind == "csv":
        delimiter = _csv_delimiter(first)
        if delimiter != ",":
            notices.append(f"delimiter: {delimiter!r} (the first line has no comma)")
    if suffix == ".txt" and format_name == "auto" and "\t" not in first and header:
        header = first.strip().lower() in _TEXT_NAMES
        kind = "lines"
        notices.append("one text per line (the first line has no tab; set it with --format)")
    elif kind == "lines":
        header = False
    if quoting == "auto":
        quoting = "csv" if kind == "csv" else "none"
    return Dialect(kind, encoding, delimiter, quoting, header), notices


def _suffix(file: InputFile) -> str:
    suffixes = [s.lower() for s in file.path.suffixes]
    while suffixes and suffixes[-1] in _PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _sniff(file: InputFile, encoding: str) -> str:
    if is_parquet(file.path):
        return "parquet"
    with Source(file.path, encoding=encoding) as source:
        head = source.head().lstrip()
    if head.startswith(b"{"):
        return "jsonl"
    return "tsv" if b"\t" in head.split(b"\n", 1)[0] else "lines"


def _first_line(file: InputFile, encoding: str) -> str:
    with Source(file.path, encoding=encoding) as source:
        line = next((line for line in source.lines() if line.data), None)
        return line.data.decode(source.encoding, "replace") if line else ""


def _csv_delimiter(first: str) -> str:
    if "," in first:
        return ","
    return next((mark for mark in (";", "\t", "|") if mark in first), ",")


def _common_columns(files: Sequence[InputFile], dialect: Dialect) -> tuple[str, ...]:
    columns: tuple[str, ...] | None = None
    first = files[0]
    for file in files:
        table = open_table(file.path, dialect)
        table.close()
        found = tuple(table.columns)
        if dialect.format == "jsonl" and not found:
            continue  # without a record it has no columns, and contradicts none
        if columns is None:
            columns, first = found, file
        elif found != columns and not (dialect.format == "jsonl" and set(found) == set(columns)):
            raise CorpusError(
                f"{file.name} has the columns {_listed(found)}, but {first.name} has "
                f"{_listed(columns)}. Extract them one by one, or give files of one kind."
            )
    return columns or ()


def _check_types(plan: CorpusPlan) -> None:
    for _, table in plan.open_tables():
        if isinstance(table, ParquetTable):
            for name in plan.wanted:
                table.check_type(name, text=name in (plan.text, plan.text_pair))


def _check_choices(**given: tuple[str, Sequence[str]]) -> None:
    for option, (value, choices) in given.items():
        if value not in choices:
            raise UsageError(
                f"--{option} {value}: expected {', '.join(choices)}.{did_you_mean(value, choices)}"
            )


def _settled_encoding(encoding: str) -> str:
    """The encoding as given, if lines and cells can be found in its bytes."""
    try:
        if codecs.lookup(encoding).name == "utf-8-sig":
            return "utf-8"  # a byte order mark is dropped at the start of every file anyway
        if is_wide(encoding) or _MARKS.encode(encoding, "surrogateescape") == _MARKS.encode():
            return encoding
    except (LookupError, UnicodeError):
        pass
    raise UsageError(
        f"--encoding {encoding}: not an encoding of text that can be read. "
        "Usual ones: utf-8, cp949, euc-kr, shift_jis, utf-16."
    )


def _listed(names: Sequence[str]) -> str:
    """The names for a message; the first line of a file that is no table may be very long."""
    text = ", ".join(names)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} … ({len(names)} columns)"


def _quoted(names: Sequence[str]) -> str:
    """What to do about names that a CSV writer put in quotes and that were read literally."""
    if any(len(name) > 1 and name[0] == name[-1] == '"' for name in names):
        return " The header is quoted as CSV: use --quoting csv."
    return ""


def _neighbour(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f" The folder {folder} does not exist."
    return did_you_mean(path.name, (p.name for p in folder.iterdir()))
