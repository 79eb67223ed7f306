"""Files of predictions for people and competitions: CSV, TSV, JSON Lines and Parquet.

A submission names its own columns, of the answer (``--submission id,target``) or of probabilities
(``id,target=yes``; ``id,toxic,insult``); every other file has the id, the prediction and a
probability for each class. Files of other tools, which are compared with
runs by their ids, are read by :mod:`~embedkit.comparison.load`.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit import storage
from embedkit.corpus.memory import InputFile
from embedkit.corpus.plan import open_table
from embedkit.corpus.tables import Row
from embedkit.dataset.parquet import parquet_bytes
from embedkit.display import HARMLESS, json_line, visible
from embedkit.errors import DamagedError, MismatchError, OutputExistsError, UsageError, did_you_mean
from embedkit.runs.predictions import invalid_proba
from embedkit.types import Float64
from embedkit.units.target import float_of


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for one text, or for a word of it.

    ``proba`` has the probability of every label by its readable name; of a regression it is empty,
    and the label is the value as text.
    """

    label: str
    proba: dict[str, float]
    value: float | None = None
    word: int | None = None  # number of the word in its text, which it is from start to end
    text: str | None = None  # of the word
    start: int | None = None
    end: int | None = None


# of a probability with six decimals, as another program may have saved a file again; the sum of a
# row is off by so much for each class at most
_ROUNDING = 1e-6
_ROWS = 4_096  # that are dictionaries at the same time


_COLUMNS = {"word": "int64", "text": "string", "fold": "string"}  # that only some files have


_FORMATS = {".tsv": "tsv", ".txt": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".parquet": "parquet"}


PredictedRecord = dict[str, Any]
"""A row of a prediction file: ``row`` and ``id`` of a record, of words ``word`` and ``text``, of
folds ``fold``; and the fields of the prediction, see :func:`fields_of`."""


def predictions_of(
    proba: Float64, y_pred: NDArray[Any], names: Sequence[str], *, separator: str = ""
) -> Iterator[Prediction]:
    """Yield predictions for probabilities ``(n, classes)`` and decisions, or values ``(n,)``.

    The ``separator`` stands between the names of a set of classes.
    """
    for row, decided in zip(proba, y_pred, strict=True):
        if names:
            by_name = dict(zip(names, row.tolist(), strict=True))
            # one class, or each class of a set whose number is 1
            chosen = [int(decided)] if y_pred.ndim == 1 else decided.nonzero()[0].tolist()
            yield Prediction(separator.join(names[i] for i in chosen), by_name)
        else:
            yield Prediction(f"{row:.6g}", {}, float(row))


def with_columns(
    predictions: Iterable[Prediction], **columns: Iterable[Any]
) -> Iterator[PredictedRecord]:
    """Yield predictions with the values of their records, by the names of columns."""
    for *values, prediction in zip(*columns.values(), predictions, strict=True):
        yield fields_of(dict(zip(columns, values, strict=True)), prediction)


Submission = Mapping[str, str]
"""Columns of a submission, and what each holds: ``id`` (the first), ``answer``, the label or value,
or ``proba_`` and the name of a class."""


def write_prediction_file(
    records: Iterable[PredictedRecord],
    names: Sequence[str],
    out: Path | None,
    *,
    as_json: bool = False,
    extra_columns: Sequence[str] = (),
    submission: Submission | None = None,
    overwrite: bool = False,
) -> int:
    """Write predictions to a file, which appears when it is complete; return their number.

    The ending of the file decides the format; without a file TSV, or JSON lines, is printed.
    ``names`` are those of the classes; ``extra_columns`` are among ``word``, ``text`` and
    ``fold``. A submission has its own columns alone.
    """
    answer, of_answer = ("label", "string") if names else ("value", "float64")
    columns = {"row": "int64", "id": "string"} | {name: _COLUMNS[name] for name in extra_columns}
    columns |= {answer: of_answer} | {f"proba_{name}": "float64" for name in names}
    if submission is not None:
        check_submission(submission, names)
        columns["answer"] = of_answer
        columns = {name: columns[field] for name, field in submission.items()}
        # an iterator too, so that rows can be printed as they are predicted
        records = (
            {name: r[answer if field == "answer" else field] for name, field in submission.items()}
            for r in records
        )
    return write_rows(records, columns, out, as_json=as_json, overwrite=overwrite)


def _format(out: Path | None, *, as_json: bool = False, name: str = "out") -> str:
    """The format of a file by its ending; TSV or JSON lines of what is printed."""
    if out is None:
        return "jsonl" if as_json else "tsv"
    if out.suffix not in _FORMATS:
        raise UsageError("expected a name ending in .tsv, .csv, .jsonl or .parquet.", **{name: out})
    return _FORMATS[out.suffix]


def check_file(
    out: Path, *, corpus: Path | None = None, overwrite: bool = False, name: str = "out"
) -> None:
    """Raise an error if rows, such as those of a ``corpus``, cannot be written to a file."""
    # samefile: also by another path or a link
    if corpus is not None and out.exists() and corpus.exists() and out.samefile(corpus):
        raise OutputExistsError("this is the corpus itself. Choose another file.", out=out)
    _format(out, name=name)
    storage.refuse_existing(out, overwrite=overwrite)


def write_rows(
    rows: Iterable[dict[str, Any]],
    columns: Mapping[str, str],
    out: Path | None,
    *,
    as_json: bool = False,
    overwrite: bool = False,
) -> int:
    """Write rows with these columns and Arrow types to a file, or print them; return their number.

    The file appears when it is complete, in the format of its ending.
    """
    kind = _format(out, as_json=as_json)
    if out is not None and kind == "parquet":
        import pyarrow as pa

        # given, since a column of an empty file, or of a first null, has no type of its own
        schema = pa.schema([(name, pa.type_for_alias(type_)) for name, type_ in columns.items()])
        rows = iter(rows)  # of many classes a row is a dictionary of hundreds of objects
        blocks = iter(lambda: list(islice(rows, _ROWS)), [])
        batches = [pa.RecordBatch.from_pylist(block, schema) for block in blocks]
        table = pa.Table.from_batches(batches, schema)
        storage.write_files({out: parquet_bytes(table)}, overwrite=overwrite)
        return int(table.num_rows)
    # the names as a first row, written as all others are
    header = [] if kind == "jsonl" else [dict(zip(columns, columns, strict=True))]
    count = 0
    # a file is put together in memory and appears when it is whole; printed rows appear one by one
    sink: Any = sys.stdout if out is None else io.StringIO()
    # the default line end of csv is that of Windows
    table = csv.writer(sink, lineterminator="\n")
    # the first row is asked for before the header is printed: an error in it leaves nothing behind
    rows = iter(rows)
    first = list(islice(rows, 1))
    for fields in chain(header, first, rows):
        count += 1
        # of probabilities nine digits, and not so many decimals: what is close to 0 counts in a
        # log-loss, and in a ranking. Values of any size are whole, as they all are in JSON
        short = {name for name, v in fields.items() if isinstance(v, float) and abs(v) <= 1}
        values = [f"{v:.9g}" if name in short else str(v) for name, v in fields.items()]
        if kind == "csv":
            table.writerow(values)
            continue
        # without quotes: characters that would break the line become spaces
        cells = (re.sub(r"[\t\r\n]", " ", value) for value in values)
        line = json_line(fields) if kind == "jsonl" else "\t".join(cells)
        # a text of a corpus may hold codes that move the cursor or change the terminal's title
        sink.write((visible(line, keep=HARMLESS) if out is None else line) + "\n")
    if out is not None:
        storage.write_files({out: sink.getvalue().encode()}, overwrite=overwrite)
    return count - len(header)


def check_submission(submission: Submission | None, names: Sequence[str]) -> None:
    """Raise a :class:`UsageError` if a submission has columns of other classes than these."""
    fields = {"id", "answer", *(f"proba_{name}" for name in names)}
    for column, field in (submission or {}).items():
        name = field.removeprefix("proba_")
        if field not in fields:
            classes = ", ".join(map(repr, names))  # a comma may be in a name
            problem = f"{name} is not one of {classes}.{did_you_mean(name, names)}"
            raise UsageError(problem if names else "values have no classes.", submission=...)
        if field == "answer" and column in names:
            problem = f"{column} is a class. Its probability is {column}={column}"
            raise UsageError(f"{problem}; call the labels otherwise.", submission=...)


def parse_submission(text: str | None) -> Submission | None:
    """Read the columns of a submission, such as ``id,label``.

    One column beside the id is the answer; several, or one with ``=``, are of classes. A name
    with a comma is quoted.

    >>> parse_submission("id,judgement")
    {'id': 'id', 'judgement': 'answer'}
    >>> parse_submission("id,target=1")
    {'id': 'id', 'target': 'proba_1'}
    >>> parse_submission("id,toxic,insult")
    {'id': 'id', 'toxic': 'proba_toxic', 'insult': 'proba_insult'}
    >>> parse_submission('id,"p=a, b"')
    {'id': 'id', 'p': 'proba_a, b'}
    """
    if text is None:
        return None
    # a row of CSV: the name of a class may have a comma
    names = next(csv.reader([" ".join(text.splitlines())], skipinitialspace=True), []) or [""]
    first, *others = (name.strip() for name in names)
    columns = {first: "id"}
    for column in others:
        name, equals, label = (part.strip() for part in column.partition("="))
        of_class = f"proba_{label if equals else name}"
        columns[name] = of_class if equals or len(others) > 1 else "answer"
    missing = not all(columns) or "proba_" in columns.values()
    if not others or len(columns) <= len(others) or missing:
        problem = "expected columns of id and answer, as id,label, or of classes, as id,target=1"
        raise UsageError(f"{problem}.", submission=text)
    return columns


def read_prediction_files(
    paths: Sequence[Path], classes: Sequence[str], *, sets: bool = False
) -> tuple[list[int], list[str], list[Float64]]:
    """Read files that ``embedkit predict`` wrote for the same corpus.

    Return the rows and ids of the records, and of each file the probabilities ``(n, classes)``, or
    without classes the values ``(n,)``.
    """
    columns = ["row", "id", *([f"proba_{name}" for name in classes] or ["value"])]
    proba, records = list[Float64](), list[tuple[Any, ...]]()
    for path in paths:
        row, ids, *numbers = _cells(path, columns)
        keys = list(zip(row, ids, strict=True))
        # by row and id: probabilities of other records would be averaged without notice
        records = records if proba else keys
        if sorted(keys) != sorted(records):
            raise MismatchError(f"{path} and {paths[0]} are not predictions of the same corpus.")
        place = {key: number for number, key in enumerate(keys)}
        if len(place) < len(keys):
            raise DamagedError(f"{path} has a record twice. Make it again.")
        # what is no number is NaN, and neither a value nor a valid probability
        matrix = np.array([[float_of(cells[place[key]]) for key in records] for cells in numbers]).T
        problem = "" if np.isfinite(matrix).all() else "a value is no number"
        if classes:
            rows, tolerance = np.array([row for row, _ in records]), len(numbers) * _ROUNDING
            problem = invalid_proba(rows, matrix, sets=sets, tolerance=tolerance)
        if problem:
            raise DamagedError(f"{path} is damaged: {problem}. Make it again.")
        proba.append(matrix if classes else matrix[:, 0])
    return [int(row) for row, _ in records], [str(name) for _, name in records], proba


def _cells(path: Path, names: Sequence[str]) -> list[tuple[str | None, ...]]:
    """Columns of a file that ``embedkit predict`` wrote."""
    # the table below a corpus, which reads every format
    with closing(open_table(InputFile.of(path))) as table:
        if missing := [name for name in names if name not in table.columns]:
            raise UsageError(
                f"{path} has no column {missing[0]!r}; expected a table (.tsv, .csv, .parquet) "
                "that embedkit predict writes without label_names and submission."
            )
        rows = list(table.rows(names))
    cells = [row.cells for row in rows if isinstance(row, Row) and str(row.cells[0]).isdecimal()]
    if bad := len(rows) - len(cells):
        problem = f"{bad:,} of its {len(rows):,} rows cannot be read"
        raise DamagedError(f"{path} is damaged: {problem}. Make it again.")
    return list(zip(*cells, strict=True)) or [()] * len(names)


def fields_of(fields: dict[str, Any], prediction: Prediction) -> dict[str, Any]:
    """Fields of a record, of JSON and of tables alike, so that each is read like the others."""
    if prediction.value is not None:
        return fields | {"value": prediction.value}
    proba = {f"proba_{name}": p for name, p in prediction.proba.items()}
    return fields | {"label": prediction.label} | proba
