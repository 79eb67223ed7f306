"""The table of corpus formats: one row each, and how a file's format is recognised.

To add a format: a subclass of :class:`Table`, a row in :data:`READERS`, and its name in
:data:`embedkit.choices.FORMATS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from embedkit.corpus.columnar import ArrowTable, ParquetTable, SheetTable
from embedkit.corpus.conllu import ConllTable, ConlluTable
from embedkit.corpus.sources import PACKED_SUFFIXES, Source, first_bytes
from embedkit.corpus.tables import DelimitedTable, Dialect, JsonTable, LinesTable, Table

_JSON = re.compile(rb'\{\s*["}]|\[\s*\{')


class Format(NamedTuple):
    """One corpus format."""

    open: Callable[[Path, Dialect], Table]  # a CorpusError if the file is not of the format
    suffixes: tuple[str, ...] = ()
    magic: re.Pattern[bytes] | None = None  # of the first bytes, whatever the name of a text is
    text: bool = True  # in some encoding, plain or compressed
    delimiters: tuple[str, ...] = ()  # the usual one first; empty if no mark divides a line
    quoting: str = ""  # meaning of "auto"; empty if the format has no quotes
    same_columns: bool = True  # in the same order; else by name, and none without records
    marks_words: bool = False  # whether records contain the spans of words


READERS: Mapping[str, Format] = {
    "tsv": Format(
        open=DelimitedTable, suffixes=(".tsv", ".tab", ".txt"), delimiters=("\t",), quoting="none"
    ),
    "csv": Format(
        open=DelimitedTable, suffixes=(".csv",), delimiters=(",", ";", "\t", "|"), quoting="csv"
    ),
    # without suffixes: .txt is tsv until its first line shows no tab
    "lines": Format(open=LinesTable, quoting="none"),
    "jsonl": Format(
        open=JsonTable, suffixes=(".jsonl", ".ndjson", ".json"), magic=_JSON, same_columns=False
    ),
    "parquet": Format(
        open=ParquetTable, suffixes=(".parquet", ".pq"), magic=re.compile(b"PAR1"), text=False
    ),
    "arrow": Format(
        open=ArrowTable,
        suffixes=(".arrow", ".feather", ".ipc"),
        # of a file, and of a stream, which begins with the marker of a message
        magic=re.compile(b"ARROW1|\xff{4}"),
        text=False,
    ),
    # without magic bytes: workbooks are zip or OLE files like many others
    "sheet": Format(
        open=SheetTable, suffixes=(".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"), text=False
    ),
    "conllu": Format(
        open=ConlluTable,
        suffixes=(".conllu",),
        magic=re.compile(b"# (sent_id|newdoc|text =|global.columns)"),
        marks_words=True,
    ),
    "conll": Format(
        open=ConllTable,
        suffixes=(".conll", ".bio", ".iob", ".iob2"),
        # of CoNLL-2003, of KLUE, and where two lines end in tags of words. Between columns stand
        # tabs, or spaces: a text with its label O behind a tab has both
        magic=re.compile(
            rb"-DOCSTART-|## klue-ner|"
            rb"(#+ +(id|sent_id|text)\b.*\n\s*)*(((\S+\t)+|(\S+ +)+)(O|[BIES]-\S+)\s*\n){2}"
        ),
        marks_words=True,
    ),
}


def format_of_name(path: Path) -> str:
    """The format by the suffix of a file; empty if it is unknown."""
    suffix = suffix_of(path)
    return next((name for name, kind in READERS.items() if suffix in kind.suffixes), "")


def suffix_of(path: Path) -> str:
    """Suffix of a file in lower case, without that of a compression."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    # corpus.tsv.gz is a TSV file; corpus.gz has no suffix that tells
    while suffixes and suffixes[-1] in PACKED_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def format_of_content(path: Path, encoding: str) -> str:
    """The format by the first bytes of a file; text without a tab is ``lines``."""
    # on disk, for formats that are not text; those of text are
    # looked for after decompression and decoding
    if name := _by_magic(first_bytes(path), text=False):
        return name
    with closing(Source(path, encoding=encoding)) as source:
        head = source.head().lstrip()
    return _by_magic(head, text=True) or ("tsv" if b"\t" in head.split(b"\n", 1)[0] else "lines")


def _by_magic(head: bytes, *, text: bool) -> str:
    kinds = ((name, kind.magic) for name, kind in READERS.items() if kind.text is text)
    return next((name for name, magic in kinds if magic and magic.match(head)), "")
