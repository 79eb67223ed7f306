"""The table of corpus formats: one row each, and how a file's format is recognised.

To add a format: a subclass of :class:`~embedkit.corpus.rows.Table`, a row in :data:`READERS`, and
its name in :data:`embedkit.choices.FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from embedkit.choices import FORMATS, check_choice
from embedkit.corpus.columnar import ArrowTable, ParquetTable
from embedkit.corpus.conllu import ConlluTable
from embedkit.corpus.delimited import DelimitedTable, LinesTable
from embedkit.corpus.json_lines import JsonLinesTable
from embedkit.corpus.options import Dialect
from embedkit.corpus.rows import Table
from embedkit.corpus.source import PACKED_SUFFIXES, Source, first_bytes

__all__ = ["READERS", "Format", "format_of_content", "format_of_name", "open_table", "suffix_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One corpus format.

    Attributes:
        open: opens a file: ``open(path, dialect)``.
        suffixes: suffixes of file names by which the format is recognised.
        magic: first bytes by which it is recognised where the suffix says nothing.
        text: whether files are text, in some encoding, plain or compressed.
        delimiters: what may separate cells, the usual one first; empty where nothing does.
        quoting: what ``quoting="auto"`` means; empty where there are no quotes and no header.
        header: whether the first line may name the columns.
        same_columns: whether all files of a corpus must have their columns in the same order;
            otherwise an equal set of names is enough, and a file without records has none.
        marks_words: whether records say where the words of their texts are.
    """

    open: Callable[[Path, Dialect], Table]
    suffixes: tuple[str, ...] = ()
    magic: tuple[bytes, ...] = ()
    text: bool = True
    delimiters: tuple[str, ...] = ()
    quoting: str = ""
    header: bool = False
    same_columns: bool = True
    marks_words: bool = False


READERS: Mapping[str, Format] = {
    "tsv": Format(
        open=DelimitedTable, suffixes=(".tsv", ".tab", ".txt"), delimiters=("\t",),
        quoting="none", header=True,
    ),
    "csv": Format(
        open=DelimitedTable, suffixes=(".csv",), delimiters=(",", ";", "\t", "|"),
        quoting="csv", header=True,
    ),
    "lines": Format(open=LinesTable, quoting="none"),
    "jsonl": Format(
        open=JsonLinesTable, suffixes=(".jsonl", ".ndjson", ".json"), magic=(b"{",),
        same_columns=False,
    ),
    "parquet": Format(
        open=ParquetTable, suffixes=(".parquet", ".pq"), magic=(b"PAR1",), text=False
    ),
    "arrow": Format(
        open=ArrowTable, suffixes=(".arrow", ".feather", ".ipc"),
        magic=(b"ARROW1", b"\xff\xff\xff\xff"), text=False,
    ),
    "conllu": Format(
        open=ConlluTable, suffixes=(".conllu",),
        magic=(b"# sent_id", b"# newdoc", b"# text =", b"# global.columns"),
        marks_words=True,
    ),
}  # fmt: skip


def open_table(path: Path, dialect: Dialect) -> Table:
    """Open one file for reading in the given dialect.

    Raises:
        CorpusError: the file is not of that format.
        UsageError: the format is unknown.
    """
    check_choice(FORMATS, format=dialect.format)
    return READERS[dialect.format].open(path, dialect)


def format_of_name(path: Path) -> str:
    """The format that the suffix of a file stands for; empty if for none."""
    suffix = suffix_of(path)
    return next((name for name, kind in READERS.items() if suffix in kind.suffixes), "")


def suffix_of(path: Path) -> str:
    """Suffix of a file in lower case, without that of a compression."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in PACKED_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def format_of_content(path: Path, encoding: str) -> str:
    """The format that the first bytes of a file stand for; text without a tab is ``lines``."""
    if found := _by_magic(first_bytes(path), text=False):
        return found
    with Source(path, encoding=encoding) as source:
        head = source.head().lstrip()
    return _by_magic(head, text=True) or ("tsv" if b"\t" in head.split(b"\n", 1)[0] else "lines")


def _by_magic(head: bytes, *, text: bool) -> str:
    kinds = ((name, kind) for name, kind in READERS.items() if kind.text is text)
    return next((name for name, kind in kinds if head.startswith(kind.magic)), "")
