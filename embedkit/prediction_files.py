"""Predictions as TSV, JSON lines or Parquet."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from embedkit import fsio
from embedkit.errors import UsageError
from embedkit.predict import Prediction

__all__ = ["kind_of", "write_answers"]

Answer = tuple[int, str, Prediction]
"""Row, id, and what a run says of the text."""

_KINDS = {".tsv": "tsv", ".txt": "tsv", ".jsonl": "jsonl", ".parquet": "parquet"}


def write_answers(
    answers: Iterable[Answer], names: Sequence[str], out: Path | None, *, as_json: bool = False
) -> int:
    """Write ``row``, ``id``, ``label`` and a probability for every label; returns their number.

    Args:
        answers: row, id and what the run says, for every record.
        names: labels, in order.
        out: file; its ending decides the kind. Standard output without.
        as_json: JSON lines on standard output.

    Raises:
        UsageError: the file has another ending.
    """
    kind = "jsonl" if as_json else "tsv"
    if out is not None:
        kind = kind_of(out)
        fsio.make_folder(out.parent)
    if kind == "parquet":
        return _parquet(answers, names, Path(str(out)))
    with _sink(out) as sink:
        if kind == "tsv":
            header = ["row", "id", "label", *(f"proba_{name}" for name in names)]
            sink.write("\t".join(_field(name) for name in header) + "\n")
        count = 0
        for row, identifier, said in answers:
            count += 1
            if kind == "tsv":
                shares = [f"{p:.6f}" for p in said.probabilities.values()]
                fields = [str(row), identifier, said.label, *shares]
                sink.write("\t".join(_field(field) for field in fields) + "\n")
            else:
                line = {"row": row, "id": identifier, "label": said.label,
                        "proba": said.probabilities}  # fmt: skip
                sink.write(json.dumps(line, ensure_ascii=False) + "\n")
    return count


def kind_of(out: Path) -> str:
    """``tsv``, ``jsonl`` or ``parquet`` by the ending of a file.

    Raises:
        UsageError: it has another ending.
    """
    if out.suffix not in _KINDS:
        raise UsageError(f"--out {out}: expected a name ending in .tsv, .jsonl or .parquet.")
    return _KINDS[out.suffix]


@contextmanager
def _sink(out: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that gets its name when all is in it."""
    if out is None:
        yield sys.stdout
        return
    partial = out.with_name(out.name + ".partial")
    with fsio.storage_errors(out):
        try:
            with partial.open("w", encoding="utf-8", newline="\n") as sink:
                yield sink
            fsio.publish_file(partial, out)
        finally:
            partial.unlink(missing_ok=True)


def _field(text: str) -> str:
    """A TSV field; what would break the line becomes a space."""
    return text.replace("\t", " ").replace("\r", " ").replace("\n", " ")


def _parquet(answers: Iterable[Answer], names: Sequence[str], out: Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = list(answers)
    columns: dict[str, Any] = {
        "row": pa.array([row for row, _, _ in rows], pa.int64()),
        "id": pa.array([identifier for _, identifier, _ in rows], pa.string()),
        "label": pa.array([said.label for _, _, said in rows], pa.string()),
    }
    for name in names:
        shares = [said.probabilities[name] for _, _, said in rows]
        columns[f"proba_{name}"] = pa.array(shares, pa.float64())
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, compression="zstd", write_page_checksum=True)
    fsio.write_durably(out, memoryview(sink.getvalue()), scratch=out.parent)
    return len(rows)
