"""What runs were made from: their datasets, how those were made, and the texts of records.

A dataset is used only if it is still the one that a run names by its fingerprint, and a corpus only
if its bytes have the hashes that the split names. Otherwise texts are left out, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.comparison.load import LoadedProbe, LoadedRun
from embedkit.dataset.record_keys import source_of
from embedkit.dataset.store import Layout, Manifest, is_dataset, load, read_manifest
from embedkit.errors import MismatchError, UsageError
from embedkit.runs.predictions import Predictions, keys_of
from embedkit.types import Bool, Int64

__all__ = [
    "Dataset", "Lengths", "Texts", "find_datasets", "find_lengths", "find_texts", "shown_texts",
]  # fmt: skip

_AROUND = 100


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset that runs were made from, and that is still what it was.

    Attributes:
        path: its folder.
        manifest: how it was made.
        encode_seconds: seconds per 1,000 records that making it took; ``None`` if it was made in
            more than one go.
        runs: names of the runs that were made from it.
    """

    path: Path
    manifest: Manifest
    encode_seconds: float | None
    runs: tuple[str, ...]

    def encode_seconds_of(self, level: str) -> float | None:
        """Seconds per 1,000 records, or of level ``word`` per 1,000 words."""
        if level == "sentence" or self.encode_seconds is None:
            return self.encode_seconds
        files = self.manifest.files.items()
        words = sum(file.rows for name, file in files if name.startswith("words/"))
        return self.encode_seconds * self.manifest.totals.accepted / max(words, 1)


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of records.

    Attributes:
        by_row: text of a record; of a pair both, in two lines. Empty if there are none.
        source: ``stored`` in a dataset, of a ``corpus``, or ``none``.
        values: names of the dataset or corpus, and what it was made from or its columns.
    """

    by_row: dict[int, str]
    source: str = "none"
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """Lengths of texts.

    Attributes:
        values: ``(n,)`` lengths.
        cut: ``(n,)`` whether the text was cut.
        unit: ``tokens``, or ``characters`` where no dataset counted tokens.
        limit: number of tokens at which texts are cut; ``None`` of characters.
    """

    values: Int64
    cut: Bool
    unit: str
    limit: int | None


def find_lengths(rows: Int64, datasets: Sequence[Dataset], texts: Texts) -> Lengths | None:
    """Return the lengths of records ``rows`` ``(n,)``: in tokens from the first dataset.

    Without a dataset they are those of the texts, in characters; ``None`` without texts.
    """
    for dataset in datasets:
        data = load(dataset.path)
        place = np.searchsorted(data.row, rows)
        if len(data) and np.array_equal(data.row[np.minimum(place, len(data) - 1)], rows):
            values = np.array(data.column("n_tokens"), np.int64)[place]
            cut = np.array(data.column("truncated"), np.bool_)[place]
            return Lengths(values, cut, "tokens", dataset.manifest.job.vectors.max_length)
    if not all(int(row) in texts.by_row for row in rows):
        return None
    values = np.array([len(texts.by_row[int(row)]) for row in rows], np.int64)
    return Lengths(values, np.zeros(len(rows), np.bool_), "characters", None)


def find_datasets(runs: Sequence[LoadedRun | LoadedProbe]) -> tuple[Dataset, ...]:
    """The datasets of runs that are still where they were, unchanged."""
    found: dict[str, tuple[Path, Manifest, list[str]]] = {}
    for run in runs:
        named = run.content.dataset
        path = run.path / named.path
        if not named.path or not is_dataset(path):
            continue
        manifest = read_manifest(path)
        if manifest.fingerprint == named.fingerprint:
            found.setdefault(manifest.fingerprint, (path, manifest, []))[2].append(run.name)
    return tuple(
        Dataset(path, manifest, _encode_seconds(path, manifest), tuple(names))
        for path, manifest, names in found.values()
    )


def find_texts(
    rows: Collection[int],
    runs: Sequence[LoadedRun | LoadedProbe],
    datasets: Sequence[Dataset],
    given: str | Path | None = None,
) -> Texts:
    """Texts of some records.

    Args:
        rows: record numbers.
        runs: what is compared.
        datasets: what :func:`find_datasets` found.
        given: dataset or corpus file to take them from, instead.

    Raises:
        UsageError: what is given cannot be read.
        MismatchError: it is not what the runs were made from.
    """
    source = runs[0].content.split.source
    reading = _reading(runs, datasets)
    if given is not None:
        return _given(Path(given), rows, source, reading)
    for dataset in datasets:
        if dataset.manifest.job.storage.text:
            return _stored(dataset.path, rows)
    corpus = [run.path / run.content.dataset.path for run in runs]
    for path in corpus:
        if path.is_file() and _hashes(path) == source:
            return _of_corpus(path, rows, reading)
    return Texts({})


def shown_texts(
    records: Predictions, texts: Texts, datasets: Sequence[Dataset]
) -> list[str | None]:
    """Return the text of each record; of each word what is around it, the word in brackets."""
    found = [texts.by_row.get(int(row)) for row in records.row]
    if not records.of_words:
        return found
    for dataset in datasets:
        data = load(dataset.path, level="word")
        keys = keys_of(data.row, data.word)
        place = np.minimum(np.searchsorted(keys, records.keys), len(keys) - 1)
        if np.array_equal(keys[place], records.keys):
            spans = zip(data.start[place].tolist(), data.end[place].tolist(), strict=True)
            return [None if text is None else _marked(text, *span)
                    for text, span in zip(found, spans, strict=True)]  # fmt: skip
    return found


def _marked(text: str, start: int, end: int) -> str:
    """The text around a word, which stands in brackets."""
    first, last = max(start - _AROUND, 0), min(end + _AROUND, len(text))
    before, after = text[first:start], text[end:last]
    return (f"{'…' if first else ''}{before}[{text[start:end]}]{after}"
            f"{'…' if last < len(text) else ''}")  # fmt: skip


def _reading(
    runs: Sequence[LoadedRun | LoadedProbe], datasets: Sequence[Dataset]
) -> dict[str, Any]:
    """How the corpus was read that the records are from; empty where nothing says it."""
    inputs = [asdict(dataset.manifest.job.input) for dataset in datasets]
    for run in runs:
        if reading := run.content.dataset.reading:
            inputs.append(reading | reading["dialect"])
    names = ("text", "text_pair", "unicode", "format", "encoding", "quoting", "header")
    return {name: inputs[0][name] for name in names} if inputs else {}


def _given(
    path: Path, rows: Collection[int], source: tuple[str, ...], reading: Mapping[str, Any]
) -> Texts:
    if is_dataset(path):
        if source_of(load(path)) != source:
            raise MismatchError(
                f"texts={str(path)!r}: that dataset was made from other files than these runs."
            )
        if not read_manifest(path).job.storage.text:
            raise UsageError(f"texts={str(path)!r}: that dataset stores no texts.")
        return _stored(path, rows)
    if not path.is_file():
        raise UsageError(
            f"texts={str(path)!r} does not exist. Give the dataset or the corpus file."
        )
    if _hashes(path) != source:
        raise MismatchError(
            f"texts={str(path)!r}: its bytes are not those of the corpus of these runs."
        )
    return _of_corpus(path, rows, reading)


def _stored(path: Path, rows: Collection[int]) -> Texts:
    data = load(path)
    wanted = frozenset(rows)
    columns = ["text", *(["text_pair"] if data.manifest.job.input.text_pair else [])]
    parts = zip(data.row.tolist(), *(data.column(name) for name in columns), strict=True)
    texts = {int(row): _joined(text) for row, *text in parts if row in wanted}
    names = ", ".join(Path(name).name for name in data.manifest.names.inputs)
    return Texts(texts, "stored", {"name": path.resolve().name, "inputs": names})


def _of_corpus(path: Path, rows: Collection[int], reading: Mapping[str, Any]) -> Texts:
    from embedkit.corpus import CorpusOptions, CorpusReader, InputFile, Record, plan_corpus

    wanted = frozenset(rows)
    plan = plan_corpus([InputFile.of(path)], CorpusOptions(**reading))
    texts = {
        item.row: _joined([item.text, item.text_pair])
        for item in CorpusReader(plan)
        if isinstance(item, Record) and item.row in wanted
    }
    columns = [repr(name) for name in (plan.text, plan.text_pair) if name]
    return Texts(texts, "corpus", {"name": path.name, "columns": ", ".join(columns)})


def _hashes(path: Path) -> tuple[str, ...]:
    from embedkit.fsio import file_sha256

    return (file_sha256(path),)


def _joined(parts: Sequence[Any]) -> str:
    return "\n".join(str(part) for part in parts if part is not None)


def _encode_seconds(path: Path, manifest: Manifest) -> float | None:
    try:
        lines = Layout(path).log.read_text("utf-8").splitlines()
        finished = [e for e in map(json.loads, lines) if e["event"] == "finished"]
        whole = [float(e["seconds"]) for e in finished if not e["shards_found"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    rows = manifest.totals.accepted
    return whole[-1] / rows * 1_000 if whole and rows else None
