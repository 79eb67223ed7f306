"""The uses of a word with their vectors.

The vector of a use is the mean over the tokens that touch the word, so that 배 in 배를 is compared
without its particle where the tokenizer splits them. Uses come from the word or token table of a
dataset, or from sentences that are encoded on the spot.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from embedkit.dataset.store import Layout, VectorData, load
from embedkit.errors import UsageError
from embedkit.types import Bool, Float32, Int64
from embedkit.words.matching import find_word

if TYPE_CHECKING:
    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.views import LayerSpec

__all__ = ["LayerTable", "Use", "UseVectors", "layer_tables", "span_vectors", "uses_in_dataset",
           "uses_in_texts", "uses_of_spans"]  # fmt: skip

logger = logging.getLogger(__name__)

MOST_USES = 1_000
"""Largest number of uses that are taken of a dataset."""

_TEXTS_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a word.

    Attributes:
        row: record number in the input.
        id: id of the record.
        text: the record's text.
        start: first character of the word.
        end: after its last one.
    """

    row: int
    id: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class UseVectors:
    """Uses with their vectors.

    Attributes:
        uses: the uses.
        vectors: ``(uses, width)`` float32 by layer name.
        skipped: uses without a kept token, since the text was cut before them.
        data: the dataset they come from, or ``None``.
    """

    uses: tuple[Use, ...]
    vectors: dict[str, Float32]
    skipped: int
    data: VectorData | None = None

    def senses(self, column: str | None) -> list[str | None] | None:
        """Return the value of a column for the record of each use; ``None`` without a column.

        Raises:
            UsageError: the uses do not come from a dataset, or it has no such column.
        """
        if column is None:
            return None
        if self.data is None:
            raise UsageError(f"sense={column!r}: sentences have no columns; a dataset is needed.")
        values = dict(zip(self.data.row.tolist(), self.data.column(column), strict=True))
        found = [values[use.row] for use in self.uses]
        return [None if value is None else str(value) for value in found]


def uses_in_dataset(
    dataset: str | Path, word: str, *, match: str = "word", limit: int = MOST_USES, seed: int = 0
) -> UseVectors:
    """Find the uses of a word in a dataset that has word or token vectors.

    Args:
        dataset: folder that ``extract --words`` or ``--tokens`` wrote.
        word: the word.
        match: one of :data:`~embedkit.choices.MATCHES`.
        limit: largest number of uses; of more a random sample is taken.
        seed: of the sample.

    Raises:
        UsageError: there are no such vectors, no texts, or the word does not occur.
    """
    data = _with_words(dataset)
    records = zip(data.row.tolist(), data.ids.tolist(), data.text, strict=True)
    found = _find_uses(records, word, match, str(dataset))
    return _with_vectors(data, found, f"{word!r} occurs", limit, seed)


def uses_of_spans(
    dataset: str | Path,
    span: tuple[str, str],
    *,
    word: str | None = None,
    word_column: str | None = None,
    seed: int = 0,
) -> tuple[UseVectors, tuple[str, ...]]:
    """Take uses from columns of the corpus; records without a span have none.

    Args:
        dataset: folder that ``extract --words`` or ``--tokens`` wrote.
        span: columns of the first character and of the one after the last.
        word: only uses of this word.
        word_column: column that names the word of each record; by default ``word`` where the
            dataset has one, else the text of the span.
        seed: of the sample of :data:`MOST_USES` that is taken of more.

    Returns:
        The uses, and the word of each.

    Raises:
        UsageError: there are no such vectors or columns, or a span is not in its text.
    """
    data = _with_words(dataset)
    column = word_column or ("word" if "word" in data.columns else None)
    names = data.column(column) if column else [None] * len(data)
    ends = [data.column(name) for name in span]
    found, words = [], {}
    for row, id_, text, *given, name in zip(
        data.row.tolist(), data.ids.tolist(), data.text, *ends, names, strict=True
    ):
        if all(value is None or value == "" for value in given):
            continue
        start, end = _span_in(text, given, span, row)
        named = _folded(name or text[start:end])
        if word is None or _folded(word) in (named, _folded(text[start:end])):
            use = Use(row, id_, text, start, end)
            found.append(use)
            words[use] = named
    if not found:
        raise UsageError(
            f"no record of {dataset} has a use{f' of {word!r}' if word else ''} in "
            f"{' and '.join(span)}."
        )
    if word is None and len(found) < len(data):
        logger.warning("%d records have no %s", len(data) - len(found), " and ".join(span))
    made = _with_vectors(data, found, "spans are", MOST_USES, seed)
    return made, tuple(words[use] for use in made.uses)


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", str(text)).casefold().strip()


def _span_in(
    text: str, given: Sequence[object], span: tuple[str, str], row: int
) -> tuple[int, int]:
    try:
        start, end = (int(str(value)) for value in given)
    except ValueError:
        start, end = -1, -1
    if not 0 <= start < end <= len(text):
        raise UsageError(
            f"span={','.join(span)!r}: {given[0]!r} to {given[1]!r} in row {row} is no span of its "
            f"text of {len(text)} characters; expected 0 <= start < end."
        )
    return start, end


def _with_words(dataset: str | Path) -> VectorData:
    """The dataset; an error if words cannot be looked for."""
    data = load(dataset)
    if not any(Layout(data.path).shard_files(kind) for kind in ("tokens", "words")):
        raise UsageError(
            f"{dataset} has no word vectors. Extract it again with words='mean' or tokens=True, "
            "or use sentences."
        )
    if "text" not in data.columns:
        raise UsageError(f"{dataset} stores no texts, so words cannot be looked for.")
    return data


def _with_vectors(
    data: VectorData, found: list[Use], what: str, limit: int, seed: int
) -> UseVectors:
    if len(found) > limit:
        logger.info("a random sample of %d of %d uses", limit, len(found))
        drawn = np.random.default_rng(seed).choice(len(found), limit, replace=False)
        found = [found[int(i)] for i in np.sort(drawn)]
    rows = np.array([use.row for use in found])
    kind = "tokens" if Layout(data.path).shard_files("tokens") else "words"
    tables = layer_tables(data, kind, rows=np.unique(rows))
    made = _means(tables, rows, [(use.start, use.end) for use in found])
    return _kept(found, *made, f"{what} only where the texts of {data.path} were cut.", data)


def uses_in_texts(
    encoder: Encoder, texts: Sequence[str], word: str, layers: Sequence[LayerSpec], *,
    match: str = "word", prefix: str | None = None,
) -> UseVectors:  # fmt: skip
    """Find the uses of a word in sentences and encode them.

    Args:
        encoder: the model.
        texts: the sentences.
        word: the word.
        layers: the layers.
        match: one of :data:`~embedkit.choices.MATCHES`.
        prefix: put before every sentence; by default that of the checkpoint.

    Raises:
        TypeError: a single string was given as ``texts``.
        UsageError: the word does not occur.
    """
    if isinstance(texts, str):
        raise TypeError(f"a single string was given; expected a list of texts: [{texts!r}].")
    records = ((row, str(row), text) for row, text in enumerate(texts))
    uses = _find_uses(records, word, match, "the sentences")
    made = span_vectors(
        encoder, [u.text for u in uses], [(u.start, u.end) for u in uses], layers, prefix=prefix
    )
    return _kept(
        uses, *made, f"{word!r} occurs only where the sentences are cut: the model takes "
        f"{encoder.max_length} tokens.",
    )  # fmt: skip


def _kept(
    uses: Sequence[Use], vectors: dict[str, Float32], there: Bool, none: str,
    data: VectorData | None = None,
) -> UseVectors:  # fmt: skip
    """The uses that have vectors; an error with the message ``none`` if there are none."""
    if not there.any():
        raise UsageError(none)
    kept = tuple(compress(uses, there))
    vectors = {name: values[there] for name, values in vectors.items()}
    return UseVectors(kept, vectors, len(uses) - len(kept), data)


def span_vectors(
    encoder: Encoder,
    texts: Sequence[str],
    spans: Sequence[tuple[int, int]],
    layers: Sequence[LayerSpec],
    *,
    prefix: str | None = None,
) -> tuple[dict[str, Float32], Bool]:
    """Mean vector of the tokens that touch a span of each text, by one forward pass.

    Args:
        encoder: the model.
        texts: the texts; a repeated one is encoded once.
        spans: first character and end of the span in each.
        layers: the layers.
        prefix: put before every text; by default that of the checkpoint.

    Returns:
        ``(n, width)`` float32 by layer name, and ``(n,)`` bool, whether a span has a kept token;
        where it has none, its vectors are zeros.
    """
    names = [spec.name for spec in layers]

    def tables() -> Iterator[LayerTable]:
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            some = texts[start : start + _TEXTS_AT_ONCE]
            found = encoder.encode_tokens(some, layers=names, prefix=prefix)
            touched = np.stack([found.start, found.end], axis=1).astype(np.int64)
            yield LayerTable(found.row + start, touched, None, found.vectors)

    return _means(tables(), np.arange(len(texts)), spans)


def _find_uses(
    records: Iterable[tuple[int, str, str]], word: str, match: str, where: str
) -> list[Use]:
    """The uses of a word in records with row, id and text; an error if there is none."""
    uses = [
        Use(row, id_, text, start, end)
        for row, id_, text in records
        for start, end in find_word(text, word, match=match)
    ]
    if not uses:
        raise UsageError(
            f"{word!r} does not occur in {where} as a word; match='start' finds it at the "
            "beginning of longer words, match='anywhere' inside of them."
        )
    return uses


def _means(
    tables: Iterable[LayerTable], rows: Int64, spans: Sequence[tuple[int, int]]
) -> tuple[dict[str, Float32], Bool]:
    """Means over the lines that touch a span of a record, zeros without one, and whether some do.

    Args:
        tables: words or tokens; a record may continue in the next table.
        rows: ``(n,)`` record of each span.
        spans: first character and end of each.
    """
    sums: dict[str, Float32] = {}
    counts = np.zeros(len(rows), np.int64)
    for table in tables:
        for number in np.flatnonzero(np.isin(rows, table.row)).tolist():
            first, last = np.searchsorted(table.row, (rows[number], rows[number] + 1))
            (start, end), (left, right) = spans[number], table.spans[first:last].T
            # special tokens are nowhere: from 0 to 0
            lines = first + np.flatnonzero((left < end) & (right > start) & (right > left))
            counts[number] += len(lines)
            for name, matrix in table.layers.items():
                total = sums.setdefault(name, np.zeros((len(rows), matrix.shape[1]), np.float32))
                total[number] += matrix[lines].sum(axis=0)
    each = np.maximum(counts, 1)[:, None]
    means = {name: np.asarray(total / each, np.float32) for name, total in sums.items()}
    return means, counts > 0


@dataclass(frozen=True, slots=True)
class LayerTable:
    """Some lines of the word or token table of a dataset.

    Attributes:
        row: ``(n,)`` int64 record number of each line, ascending.
        spans: ``(n, 2)`` first character and end of each word or token.
        text: the words; ``None`` for tokens.
        layers: ``(n, width)`` float32 by layer name.
    """

    row: Int64
    spans: Int64
    text: list[str] | None
    layers: dict[str, Float32]


def layer_tables(
    data: VectorData, kind: str, *, rows: Int64 | None = None, layers: Sequence[str] | None = None
) -> Iterator[LayerTable]:
    """Read the word or token table by row groups, without special tokens and second texts.

    Args:
        data: the dataset.
        kind: ``words`` or ``tokens``.
        rows: only lines of these records; all by default.
        layers: only these layers; all by default.

    Raises:
        DamagedError: a file cannot be read.
    """
    widths = data.manifest.columns_of(kind)
    names = list(widths) if layers is None else [f"layer_{name}" for name in layers]
    edges = np.cumsum([widths[name] for name in names])[:-1]
    table = load(data.path, names, level=kind.removesuffix("s"))
    wanted = [n for n in ("row", "start", "end", "text", "segment", "special")
              if n in table.columns]  # fmt: skip
    for block in table.reader.blocks:
        columns = table.reader.scalars_of(block, wanted)
        chosen = np.ones(block.rows, bool)
        if rows is not None:
            chosen &= np.isin(columns.column("row").to_numpy(), rows)
        if "segment" in wanted:
            chosen &= columns.column("segment").to_numpy() == 0
        if "special" in wanted:
            chosen &= ~columns.column("special").to_numpy()
        if rows is not None and not chosen.any():
            continue
        columns = columns.filter(pa.array(chosen))
        parts = np.split(table.reader.vectors_of(block)[chosen], edges, axis=1)
        spans = [columns.column(name).cast(pa.int64()).to_numpy() for name in ("start", "end")]
        yield LayerTable(
            columns.column("row").to_numpy(), np.stack(spans, axis=1),
            columns.column("text").to_pylist() if "text" in wanted else None,
            {name.removeprefix("layer_"): part for name, part in zip(names, parts, strict=True)},
        )  # fmt: skip
