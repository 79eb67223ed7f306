"""Prediction files as TSV, CSV, JSON lines or Parquet: written by ``predict`` and ``compare``.

row, id, [fold], label, proba_<label> …      of a regression row, id, [fold], value
row, id, word, [text], …                     of words

A submission has two columns only, under names of one's own: id, and label or value.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from embedkit import fsio
from embedkit.decoding import read_table
from embedkit.display import HARMLESS, json_line, visible
from embedkit.errors import DamagedError, MismatchError, UsageError
from embedkit.predict import Prediction
from embedkit.types import Float64

__all__ = ["PredictedRecord", "Submission", "file_format", "parse_submission",
           "read_prediction_files", "write_prediction_file"]  # fmt: skip

_ROUNDING = 1e-6
_OF_WORDS = {"word": "int64", "text": "string"}
_FORMATS = {".tsv": "tsv", ".txt": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".parquet": "parquet"}


@dataclass(frozen=True, slots=True)
class PredictedRecord:
    """One record of a prediction file.

    Attributes:
        row: record number.
        id: id of the record.
        prediction: its prediction.
        fold: fold that it was held out in; ``None`` for new records.
        word: number of the word in the record, where words are predicted.
        text: the word.
    """

    row: int
    id: str
    prediction: Prediction
    fold: str | None = None
    word: int | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """Names of the two columns of a submission: of the id, and of the label or value."""

    id: str
    answer: str


def write_prediction_file(
    records: Iterable[PredictedRecord],
    names: Sequence[str],
    out: Path | None,
    *,
    as_json: bool = False,
    folds: bool = False,
    words: Sequence[str] = (),
    submission: Submission | None = None,
) -> int:
    """Write records one after the other; a file appears when it is complete.

    Args:
        records: what is written.
        names: readable names of the classes; empty for a regression.
        out: file; its ending decides the format. Without it standard output.
        as_json: JSON lines on standard output.
        folds: also write the fold of each record.
        words: columns of words that the records have: ``word`` and ``text``.
        submission: names of the columns of id and answer, where only these are written.

    Returns:
        Number of records.

    Raises:
        UsageError: the file has another ending.
    """
    kind = "jsonl" if as_json else "tsv"
    if out is not None:
        kind = file_format(out)
        fsio.make_folder(out.parent)
    columns = _columns(names, folds, words)
    rows = (_fields(record, flat=kind != "jsonl") for record in records)
    if submission is not None:
        answer = "label" if names else "value"
        columns = {submission.id: "string", submission.answer: columns[answer]}
        rows = ({submission.id: f["id"], submission.answer: f[answer]} for f in rows)
    if kind == "parquet":
        return _parquet(rows, columns, Path(str(out)))
    count = 0
    with _sink(out) as sink:
        write = _writer(kind, columns, sink)
        for fields in rows:
            write(fields)
            count += 1
    return count


def _writer(
    kind: str, columns: Collection[str], sink: TextIO | _Printed
) -> Callable[[dict[str, Any]], object]:
    """A function that writes a record; the names of the columns are written at once."""
    if kind == "jsonl":
        return lambda fields: sink.write(json_line(fields) + "\n")
    if kind == "csv":
        table = csv.writer(sink, lineterminator="\n")
        table.writerow(columns)
        return lambda fields: table.writerow(
            f"{v:.6f}" if isinstance(v, float) else v for v in fields.values()
        )
    sink.write("\t".join(map(tsv_field, columns)) + "\n")
    return lambda fields: sink.write("\t".join(map(tsv_field, fields.values())) + "\n")


def parse_submission(text: str | None) -> Submission | None:
    """Read the two column names of a submission, such as ``id,label``.

    >>> parse_submission("id,judgement")
    Submission(id='id', answer='judgement')

    Raises:
        UsageError: there are not two names.
    """
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise UsageError(
            f"submission={text!r}: expected two column names, of the id and of the answer, such as "
            "id,label."
        )
    return Submission(*names)


def file_format(out: Path, *, name: str = "out") -> str:
    """Return ``tsv``, ``csv``, ``jsonl`` or ``parquet`` by the ending of a file.

    Raises:
        UsageError: it has another ending.
    """
    if out.suffix not in _FORMATS:
        raise UsageError(
            f"{name}={str(out)!r}: expected a name ending in .tsv, .csv, .jsonl or .parquet."
        )
    return _FORMATS[out.suffix]


def read_prediction_files(
    paths: Sequence[Path], classes: Sequence[str]
) -> tuple[list[int], list[str], list[Float64]]:
    """Read files that ``embedkit predict`` wrote for the same corpus.

    Returns:
        Rows and ids, and the probabilities ``(n, classes)`` of each file.

    Raises:
        UsageError: a file is missing or has no probabilities of these classes.
        MismatchError: the files are about other records.
    """
    tables = [_table(path) for path in paths]
    columns = ["row", "id", *(f"proba_{name}" for name in classes)]
    for path, table in zip(paths, tables, strict=True):
        missing = [name for name in columns if name not in table.column_names]
        if missing:
            raise UsageError(
                f"{path} has no column {missing[0]!r}; expected what embedkit predict writes to a "
                ".tsv, .csv or .parquet file, without label_names and submission."
            )
        if not table.select(["row", "id"]).equals(tables[0].select(["row", "id"])):
            raise MismatchError(
                f"{path} is about other records than {paths[0]}. Predict the same corpus by every "
                "run."
            )
    proba = [_probabilities(p, t, columns[2:]) for p, t in zip(paths, tables, strict=True)]
    return tables[0]["row"].to_pylist(), tables[0]["id"].to_pylist(), proba


def _probabilities(path: Path, table: Any, columns: Sequence[str]) -> Float64:
    """``(n, classes)``, each row probabilities as far as six decimals show it."""
    found = np.stack([table[name].to_numpy() for name in columns], axis=1)
    if found.dtype.kind in "fi":
        right = ((found >= 0) & (found <= 1)).all(axis=1)  # NaN is neither
        right &= np.abs(found.sum(axis=1) - 1) <= len(columns) * _ROUNDING
        if right.all():
            return found.astype(np.float64)
        row = table["row"][int(right.argmin())]
        problem = f"the probabilities of row {row} are none: {found[right.argmin()]}"
    else:
        problem = f"a column of {', '.join(columns):.80} holds something else than numbers"
    raise DamagedError(f"{path} is damaged: {problem}. Make it again.")


def tsv_field(value: object) -> str:
    """Return a TSV field; characters that would break the line become spaces."""
    text = f"{value:.6f}" if isinstance(value, float) else str(value)
    return re.sub(r"[\t\r\n]", " ", text)


def _columns(names: Sequence[str], folds: bool, words: Sequence[str]) -> dict[str, str]:
    """Names and Arrow types of the columns."""
    columns = {"row": "int64", "id": "string"} | {name: _OF_WORDS[name] for name in words}
    columns |= {"fold": "string"} if folds else {}
    if not names:
        return columns | {"value": "float64"}
    return columns | {"label": "string"} | {f"proba_{name}": "float64" for name in names}


def _fields(record: PredictedRecord, *, flat: bool) -> dict[str, Any]:
    """A record as JSON lines hold it, or ``flat``, with a column per probability, as tables do."""
    fields: dict[str, Any] = {"row": record.row, "id": record.id}
    fields |= {
        name: value for name in ("word", "text", "fold")
        if (value := getattr(record, name)) is not None
    }  # fmt: skip
    made = record.prediction
    if made.value is not None:
        return fields | {"value": made.value}
    fields["label"] = made.label
    return fields | ({f"proba_{n}": p for n, p in made.proba.items()} if flat
                     else {"proba": made.proba})  # fmt: skip


class _Printed:
    """Standard output, where nothing that a file holds controls a terminal."""

    def write(self, text: str) -> int:
        return sys.stdout.write(visible(text, keep=HARMLESS))


@contextmanager
def _sink(out: Path | None) -> Iterator[TextIO | _Printed]:
    """Standard output, or a file that gets its name when it is complete."""
    if out is None:
        yield _Printed()
        return
    partial = out.with_name(out.name + ".partial")
    with fsio.storage_errors(out):
        try:
            with partial.open("w", encoding="utf-8", newline="\n") as sink:
                yield sink
            fsio.publish_file(partial, out)
        finally:
            partial.unlink(missing_ok=True)


def _parquet(rows: Iterable[dict[str, Any]], columns: dict[str, str], out: Path) -> int:
    import pyarrow as pa

    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])
    table = pa.Table.from_pylist(list(rows), schema)
    fsio.write_parquet(out, table)
    return int(table.num_rows)


def _table(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow.csv import ConvertOptions, ParseOptions, read_csv

    if not path.is_file():
        raise UsageError(f"{path} does not exist. Make it with embedkit predict.")
    try:
        if path.suffix == ".parquet":
            return read_table(path)
        commas = path.suffix == ".csv"
        return read_csv(
            path,
            parse_options=ParseOptions(
                delimiter="," if commas else "\t",
                quote_char='"' if commas else False,
                newlines_in_values=commas,
            ),
            convert_options=ConvertOptions(
                column_types={"row": pa.int64(), "id": pa.string(), "label": pa.string()},
                strings_can_be_null=False,
            ),
        )
    except (pa.ArrowException, OSError) as error:
        raise DamagedError(f"{path} cannot be read: {error}. Make it again.") from error
