"""Readers of tables with typed columns: Parquet, Arrow and workbooks; the file of one in memory.

A cell becomes text by the rules of :mod:`~embedkit.corpus.values`, a batch of rows at a time. Files
are foreign: sizes that a header claims are compared with what is there before memory is taken,
offsets and indexes are checked before they are followed, and a column that cannot be text is kept
by its type, to be named when somebody asks for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import dropwhile, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embedkit.corpus.sources import EXCERPT
from embedkit.corpus.tables import Dialect, Reject, Row, ShardRange, Table, check_names, guessed
from embedkit.corpus.values import text_of
from embedkit.errors import CorpusError, Option, did_you_mean
from embedkit.storage import State, reading, state_of, storage_errors, unreadable

# rows that become Python objects at once: enough that calls of pyarrow cost little, few
# enough that long texts do not fill the memory
_BATCH = 4_096


_ARROW_FILE = b"ARROW1"


# a type of text, and the type that has the same buffers without the promise of UTF-8
_BYTES_OF = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}


# one size whatever batches a library gives: the hash of the file must depend on its
# records only, since a job is resumed by it
ROW_GROUP = 16_384


FEATURES = b"huggingface"
"""In the metadata of a table: how the library datasets describes its columns, as JSON."""


LEFT_OUT = b"embedkit.left_out"
"""In the metadata of a field: its type, if its values cannot be read and are left out."""


# the last two are raised for column names that are not UTF-8 and dates beyond Python's
_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError)


class _ColumnarTable(Table):
    """A file of typed columns, read in batches; strings are checked row by row."""

    title: str
    _file: Any

    def __init__(self, path: Path, _dialect: Dialect) -> None:
        self.path = path
        self._done = self._skipped = 0
        advice = f"It is not a readable {self.title} file."
        with reading(path, *_ERRORS, error=CorpusError, advice=advice):
            # opening reads the schema alone, so that a foreign
            # file is refused before any row is read
            schema = self._open()
            places = list(_nested(schema))
            self._about = (schema.metadata or {}).get(FEATURES, b"")
            self.columns = [".".join(place) for place, _ in places]
            self._fields = dict(zip(self.columns, places, strict=True))
        check_names(self.columns, path)
        # else the ids would silently be the numbers of rows
        if "id" not in self.columns and _unstored_index(schema) == "id":
            problem = f"{path}: of the index 'id' pandas has stored start and step alone"
            raise CorpusError(f"{problem}. Write frame.reset_index().")

    @abstractmethod
    def _open(self) -> pa.Schema:
        """Open the file."""

    @abstractmethod
    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        """Batches with these columns."""

    def close(self) -> None:
        self._file.close()

    def seek(self, place: ShardRange) -> bool:
        """As in :class:`~embedkit.corpus.tables.Table`."""
        # no row is read here: batches drop this many of their first rows as they come
        self._done = self._skipped = place.file_row
        return True

    def rows(self, names: Sequence[str]) -> Iterator[Row | Reject]:
        """As in :class:`~embedkit.corpus.tables.Table`."""
        try:
            # a column may have two roles, such as the label that is kept too; it is converted once
            places = {name: self._fields[name][0] for name in names}
            named = [*filter(self.class_names, places)]
            # fields of one struct share its column, which is read once
            for whole in self._batches(list(dict.fromkeys(top for top, *_ in places.values()))):
                batch = whole.slice(min(self._skipped, whole.num_rows))
                self._skipped -= whole.num_rows - batch.num_rows
                columns = {name: _cells(_column(batch, *place)) for name, place in places.items()}
                for name in named:  # -1 stands for no class there
                    columns[name] = [None if cell == "-1" else cell for cell in columns[name]]
                for values in zip(*(columns[name] for name in names), strict=True):
                    self._done += 1
                    yield _row(values)
        except _ERRORS as error:
            advice = "Fetch it again."
            if isinstance(error, OverflowError):
                advice = "A date after the year 9999, or a longer time, has to be a text."
            raise unreadable(self.path, error, error=CorpusError, advice=advice) from error

    def problem_of(self, name: str, *, role: str = "") -> str:
        """As in :class:`~embedkit.corpus.tables.Table`."""
        # a key that only some of the files have is missing in the others
        if name not in self._fields:
            return ""
        _, field = self._fields[name]
        # of a column that was left out the field is null, and
        # its metadata tell the type that it had
        kind = (field.metadata or {}).get(LEFT_OUT, str(field.type).encode()).decode()
        inner = inner_type(field.type)
        # a text must be a string (a number would be embedded as its digits), or be null throughout;
        # a label, an id or a kept column may be anything that has a text
        expected = "a string" if role else "a string, a number, a date or a list"
        is_text = is_string(inner) or pa.types.is_null(inner) or (role == "text" and is_list(inner))
        if (role and not is_text) or has_bytes(inner) or kind != str(field.type):
            return f"column {name!r} is {kind}; {expected} is needed. Convert it."
        return ""

    def class_names(self, name: str) -> list[str]:
        """As in :class:`~embedkit.corpus.tables.Table`, of a ``ClassLabel`` of Hugging Face."""
        try:
            feature = json.loads(self._about)["info"]["features"][name]
            # of lists of word labels that of their elements
            feature = feature.get("feature", feature)
            names = feature["names"] if feature["_type"] == "ClassLabel" else []
        # another program's metadata, of any kind and depth
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return []
        return [str(name) for name in names]

    def is_list(self, name: str) -> bool:
        """True for lists of any length."""
        return name in self._fields and is_list(inner_type(self._fields[name][1].type))


class ParquetTable(_ColumnarTable):
    """Parquet; page checksums are verified."""

    title = "Parquet"

    def _open(self) -> pa.Schema:
        self._file = pq.ParquetFile(self.path, page_checksum_verification=True)
        return self._file.schema_arrow

    @property
    def fraction(self) -> float:
        """As in :class:`~embedkit.corpus.tables.Table`."""
        total = self._file.metadata.num_rows
        return self._done / total if total else 1.0

    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        metadata = self._file.metadata
        groups = list(range(metadata.num_row_groups))
        # whole row groups are skipped by their sizes in the footer, without decompressing them; the
        # rest of the skipped rows is sliced off in `rows`
        while groups and self._skipped >= (rows := metadata.row_group(groups[0]).num_rows):
            del groups[0]
            self._skipped -= rows
        for group in groups:  # a batch of two could not hold lists of categories
            yield from self._file.iter_batches(_BATCH, row_groups=[group], columns=names)


class ArrowTable(_ColumnarTable):
    """Arrow IPC, as a file (also Feather version 2) or as a stream; one batch is in memory.

    The format has no checksums: only structural damage is noticed, such as offsets out of bounds.
    """

    title = "Arrow"

    def _open(self) -> pa.Schema:
        self._file = pa.OSFile(str(self.path))
        return self._reader().schema

    def _reader(self, columns: Sequence[int] = ()) -> Any:
        self._file.seek(0)
        # suffixes do not tell files and streams apart; the magic bytes do
        is_file = self._file.read(len(_ARROW_FILE)) == _ARROW_FILE
        self._file.seek(0)
        options = pa.ipc.IpcReadOptions(included_fields=list(columns))
        return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(self._file, options=options)

    @property
    def fraction(self) -> float:
        """As in :class:`~embedkit.corpus.tables.Table`."""
        return float(self._file.tell() / self._file.size())

    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        # columns are chosen when a reader is made, by numbers that only the schema of another knows
        reader = self._reader([self._reader().schema.get_field_index(name) for name in names])
        # a file has numbered batches, a stream is iterated
        is_file = isinstance(reader, pa.ipc.RecordBatchFileReader)
        for batch in map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader:
            # before any offset is followed: nothing in the format notices that one points elsewhere
            for column in batch.columns:
                _check_bounds(column)
            for start in range(0, batch.num_rows, _BATCH):
                yield batch.slice(start, _BATCH)


def _column(batch: pa.RecordBatch, top: str, *inner: str) -> pa.Array:
    column = batch.column(top)
    if not inner:
        return column
    # half as long to import as the rest of pyarrow, and columns inside of others are rare
    import pyarrow.compute as pc

    return pc.struct_field(column, list(inner))


def _nested(
    fields: Iterable[pa.Field], place: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], pa.Field]]:
    """Names of columns, and of the fields in them below these, with the fields."""
    for field in fields:
        yield (inner := (*place, field.name)), field
        if pa.types.is_struct(field.type):
            yield from _nested(field.type, inner)


# address space of the trial, which holds the interpreter and its libraries as well
_SHEET_BYTES = 4 << 30


_TRIAL = """
import resource, sys, python_calamine
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
python_calamine.load_workbook(open(sys.argv[1], "rb")).get_sheet_by_name(sys.argv[3])
"""


@lru_cache  # a command opens the same workbook several times
def _fits_memory(path: Path, sheet: str, _state: State) -> bool:
    """True unless a sheet of a workbook needs so much memory that a process ends of it.

    A sheet takes as many cells as the rectangle that holds all of them: one stray cell in the last
    corner makes 17 billion, of which the library ends the process. So another process goes first.
    """
    # -P: no module in the current folder takes the place of a library
    words = [sys.executable, "-P", "-c", _TRIAL, str(path), str(_SHEET_BYTES), sheet]
    # a negative code is a signal, such as that of an aborted allocation. Exceptions give a positive
    # one: they come again below, where they are reported with the file
    return subprocess.run(words, capture_output=True, check=False).returncode >= 0


class SheetTable(Table):
    """One sheet of a workbook, which is in memory; its first row names the columns, if any."""

    may_lack_header = True

    def __init__(self, path: Path, dialect: Dialect) -> None:
        try:
            import python_calamine
        except ImportError as error:
            advice = "pip install python-calamine, or save it as CSV (UTF-8)"
            raise CorpusError(f"{path} is a workbook: {advice}.") from error
        self.path, self._done = path, 0
        try:
            with path.open("rb") as file, python_calamine.load_workbook(file) as book:
                name = self._sheet_of(book.sheet_names, dialect.delimiter)
                # its state is part of the cache's key, so that a file that was saved again is
                # tried again
                if not _fits_memory(path, name, state_of(path.resolve())):
                    problem = f"its sheet {name!r} takes over {_SHEET_BYTES >> 30} GB of memory"
                    raise CorpusError(f"{path}: {problem}. Save it as CSV (UTF-8).")
                self._sheet = book.get_sheet_by_name(name)
        except (python_calamine.CalamineError, OSError) as error:
            problem = f"is no workbook: {error}. If it is text: {Option('format', 'tsv')} or 'csv'"
            raise CorpusError(f"{path} {problem}.") from error
        rows = enumerate(self._sheet.iter_rows())
        # the first row that is not empty names the columns; those below tell whether it is a title
        filled = list(islice(((i, row) for i, row in rows if any(map(_sheet_cell, row))), 9))
        if not filled:
            raise CorpusError(f"{path}: its sheet {name!r} is empty.{self._advice}")
        # from 0, as all numbers of the library; rows are counted from 1, as the workbook shows them
        self._first = filled[0][0] + dialect.header
        self.columns, *below = [_sheet_names(row) for _, row in filled]
        if dialect.header:
            check_title(path, [len(cells) for cells in (self.columns, *below)])
        else:
            self.columns = list(map(str, range(len(filled[0][1]))))
        check_names(self.columns, path)

    def _sheet_of(self, names: Sequence[str], name: str) -> str:
        """The name of the sheet to read; a tab stands for the first one."""
        listed = ", ".join(map(repr, names))
        advice = f" There are {listed}; name one with {Option('sheet')}."
        self._advice = advice if len(names) > 1 else ""
        if name == "\t":
            if self._advice:
                self.notices = (guessed(f"sheet: {names[0]!r}, of {listed}", "sheet"),)
            return names[0]
        if name not in names:
            problem = f"{Option('sheet', name)}: {self.path} has {listed}."
            raise CorpusError(problem + did_you_mean(name, names))
        return name

    @property
    def fraction(self) -> float:
        """As in :class:`~embedkit.corpus.tables.Table`."""
        # the last row of the sheet, which may be unknown
        return self._done / max((self._sheet.end or (0, 0))[0] + 1, self._done, 1)

    def rows(self, names: Sequence[str]) -> Iterator[Row | Reject]:
        """As in :class:`~embedkit.corpus.tables.Table`."""
        places = [self.columns.index(name) for name in names]
        below = islice(self._sheet.iter_rows(), self._first, None)
        for number, values in enumerate(below, self._first + 1):
            self._done = number
            cells = [_sheet_cell(cell) for cell in values]
            if not any(cells):
                self.blank += 1
                continue
            yield Row(number, None, 0, tuple(cells[place] for place in places))


def _sheet_names(row: Sequence[Any]) -> list[str]:
    """The texts of the cells of a row up to its last one that is not empty."""
    names = [str(_sheet_cell(cell) or "") for cell in row]
    return names[: len(names) - next((i for i, name in enumerate(names[::-1]) if name), 0)]


def _unstored_index(schema: pa.Schema) -> str:
    """The name of an index of pandas that is no column, as a range is none; else empty."""
    with suppress(ValueError, LookupError, TypeError, RecursionError):  # of another program
        columns = json.loads((schema.metadata or {})[b"pandas"])["index_columns"]
        ranges = [column["name"] for column in columns if isinstance(column, dict)]
        return str(ranges[0] or "")
    return ""


def check_title(path: Path, widths: Sequence[int]) -> None:
    """Raise a :class:`CorpusError` if rows of one cell stand above those of several cells."""
    # two rows of several cells are asked for, and as many as there are of one: a file of one column
    # has rows of one cell, and a single wider row may be a stray delimiter in a text
    rest = [*dropwhile(lambda width: width == 1, widths)]
    titles, rest = len(widths) - len(rest), rest[:2]
    if 0 < titles <= len(rest) == 2 and min(rest) > 1:
        raise CorpusError(
            f"{path}: its first line has one cell, and the next have {rest[0]}. Remove a title "
            "or a comment above the names of the columns."
        )


def _sheet_cell(value: Any) -> str | None:
    """The text of a cell; an empty one is null."""
    # the library gives empty cells as empty text, which a workbook does not tell from no value
    return text_of(value) or None


def _check_bounds(column: pa.Array) -> None:
    """Raise ``ArrowInvalid`` for offsets beyond the data; strings may be any bytes."""
    if pa.types.is_dictionary(column.type):
        _check_bounds(column.dictionary)  # its indices are checked when it is decoded
    else:
        # as text, validation would fail for a whole batch if one string is not UTF-8
        as_bytes = _BYTES_OF.get(column.type)
        (column.view(as_bytes) if as_bytes else column).validate(full=True)


def _cells(column: pa.Array) -> list[bytes | str | None]:
    column = without_dictionary(column)
    if inner_type(column.type) != column.type:
        # an extension type, such as JSON, is read as what it stores
        column = column.storage
    if is_string(column.type):
        # as bytes: one undecodable value must cost one row and not the batch
        return column.cast(pa.large_binary()).to_pylist()  # type: ignore[no-any-return]
    # of floats the digits of their own precision; null is NaN there
    floating = pa.types.is_floating(column.type)
    values = column.to_numpy(zero_copy_only=False) if floating else column.to_pylist()
    return list(map(text_of, values))


def _row(values: tuple[bytes | str | None, ...]) -> Row | Reject:
    try:
        # bytes are texts as yet undecoded; all other values are NotText
        cells = tuple(v.decode("utf-8") if isinstance(v, bytes) else v for v in values)
    except UnicodeDecodeError as error:
        detail, raw = f"utf-8: {error.reason}", error.object[:EXCERPT]
        # a columnar file has neither lines nor offsets
        return Reject(None, None, 0, "invalid_encoding", detail, raw)
    return Row(None, None, 0, cells)


def without_dictionary(column: pa.Array) -> pa.Array:
    """The values of a column that may be dictionary-encoded."""
    if not pa.types.is_dictionary(column.type):
        return column
    values = column.dictionary
    if pa.types.is_string_view(values.type):  # which pyarrow cannot take from
        values = values.cast(pa.large_string())
    return pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()


def is_string(kind: pa.DataType) -> bool:
    """True if values of the type are text."""
    return kind in _BYTES_OF


def has_bytes(kind: pa.DataType) -> bool:
    """True if values of the type are or contain bytes."""
    if pa.types.is_nested(kind):
        # lists, structs, maps and unions have the types inside as fields
        fields = map(kind.field, range(kind.num_fields))
        return any(has_bytes(inner_type(field.type)) for field in fields)
    return kind in _BYTES_OF.values() or pa.types.is_fixed_size_binary(kind)


def is_list(kind: pa.DataType) -> bool:
    """True if values of the type are lists."""
    is_view = isinstance(kind, pa.ListViewType | pa.LargeListViewType)
    return is_view or isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType)


def inner_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values of a dictionary, or in which an extension type stores its values.

    Of UUIDs it is their own: they are stored as bytes, and have a text all the same.
    """
    if pa.types.is_dictionary(kind):
        return inner_type(kind.value_type)
    is_stored = isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.UuidType)
    return kind.storage_type if is_stored else kind


def write_table(schema: pa.Schema, batches: Iterator[pa.RecordBatch], file: Path) -> None:
    """Write the columns; of those with bytes only that they were there, and their type."""
    kinds = [_plain_type(field.type) for field in schema]
    target = pa.schema(
        pa.field(field.name, kind)
        if kind is not None
        # nulls cost nothing, and the type is there for the message when the column is asked for
        else pa.field(field.name, pa.null(), metadata={LEFT_OUT: str(field.type)})
        for field, kind in zip(schema, kinds, strict=True)
    )
    # what a Dataset says of its columns goes along, as into the Parquet files that it writes itself
    about = {key: text for key, text in (schema.metadata or {}).items() if key == FEATURES}
    target = target.with_metadata(about)

    def plain_table(batch: pa.RecordBatch) -> pa.Table:
        parts = zip(batch.columns, kinds, strict=True)
        return pa.Table.from_arrays([_plain_column(*part) for part in parts], schema=target)

    with storage_errors(file), pq.ParquetWriter(file, target, compression="zstd") as writer:
        for table in _row_groups(map(plain_table, batches), target):
            writer.write_table(table)


def _row_groups(tables: Iterator[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    # empty_table() knows no lists of extension types
    held, rows = [pa.Table.from_batches([], schema=schema)], 0
    for table in tables:
        held.append(table)
        rows += table.num_rows
        # joined when they are enough: a stream may have a batch for each row
        if rows >= ROW_GROUP:
            joined = pa.concat_tables(held)
            whole = rows - rows % ROW_GROUP
            for start in range(0, whole, ROW_GROUP):
                # one chunk for each group: pages, and so the bytes, would follow the batches else
                yield joined.slice(start, ROW_GROUP).combine_chunks()
            held, rows = [joined.slice(whole)], rows - whole
    if rows:
        yield pa.concat_tables(held).combine_chunks()


def _plain_column(column: pa.Array, kind: pa.DataType | None) -> pa.Array:
    if kind is None:
        return pa.nulls(len(column))
    # pyarrow casts list views to invalid offsets, and does not cast lists of categories of views
    if "list_view" in str(column.type) or (
        is_list(column.type) and pa.types.is_dictionary(column.type.value_type)
    ):
        return pa.array(column.to_pylist(), kind)
    # dictionaries are decoded: they may differ from batch to batch, and the file may not
    return without_dictionary(column).cast(kind)


def _plain_type(kind: pa.DataType) -> pa.DataType | None:
    """The type in which a column is written; ``None`` if it is left out."""
    kind = inner_type(kind)
    # images and audio of a Hugging Face Dataset are not copied; Parquet has no unions, no months
    unread = pa.types.is_union, pa.types.is_interval, pa.types.is_run_end_encoded
    if has_bytes(kind) or any(test(kind) for test in unread):
        return None
    if is_list(kind):
        inner = _plain_type(kind.value_type)
        return None if inner is None else pa.large_list(inner)
    if pa.types.is_struct(kind):
        fields = [(field.name, _plain_type(field.type)) for field in kind.fields]
        return pa.struct(fields) if fields and all(inner for _, inner in fields) else None
    # one type for all strings and lists, so that views and large ones give the same file
    return pa.large_string() if is_string(kind) else kind
