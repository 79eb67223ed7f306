"""Vectors that other datasets hold: texts that are there already are not encoded again.

A text is found by its key, and proven by its characters (those of both texts of a pair; with the
models of a run also by its fold). Its vectors depend on the text, the model and the settings alone,
not on the corpus, its order or the rest of a batch. So those of a dataset of the same model,
settings and arithmetic are what it would get here, to the last bit where embedkit is
batch-invariant, else to the rounding of the precision. Vectors of words and tokens come along.

The dataset is made as ever, beside those it takes from: readers, kills and two commands at once
meet nothing new, and the files have the bytes of a fresh extraction. Only the tokenizer and the
model have less to do.

An unchanged shard is neither linked nor copied as a file: its footer names the job that made it,
whose input is another one, so that a reader can tell a shard of another dataset. Its pages could be
copied and another footer be put behind them, but there is little to gain. For 100,000 short texts
of which the last 1 % is new (MiniLM, two cores) the command takes 17.2 s of processors: 0.2 s to
read the stored vectors, 0.1 s to put them in their places, 0.6 s to make Parquet of them. The rest
stays: records are read and compared, and a file with another footer has another checksum.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedkit.corpus.records import Record
from embedkit.dataset.fold_models import keys_of
from embedkit.dataset.format import local_dataset, read_manifest
from embedkit.dataset.settings import Job, JobSettings, difference, unlike
from embedkit.dataset.tables import TableReader
from embedkit.encoding.windows import match, ranges
from embedkit.errors import MismatchError, Option, UsageError
from embedkit.types import AnyPath, Float32, Int64

Lengths = dict[str, NDArray[Any]]
"""Of each text: ``n_tokens``, ``n_kept``, ``n_unknown``, ``truncated``, ``windows``, ``spells``."""


Source = tuple[Path, str]
"""A dataset to take vectors from: its folder, and its fingerprint when it was looked at."""


def source_of(dataset: AnyPath, job: Job, *, any_environment: bool = False) -> Source:
    """Look at a dataset; an error says why its vectors are not those of the job."""
    path = local_dataset(dataset).absolute()
    manifest, settings = read_manifest(path), job.settings
    stored, vectors = manifest.job, settings.vectors
    # a key of 64 bits finds a text, but does not prove it
    if not stored.storage.text:
        raise UsageError("it stores no texts, by which vectors are found.", reuse=path)
    if settings.storage.profile == "int8":
        raise UsageError("int8 rounds all vectors of a shard together.", reuse=path)
    # the dataset may have more columns than the job, but not fewer
    differing = stored.vector_settings.differences(settings.vector_settings)
    lacking = {
        name
        for table in vectors.tables
        for name in vectors.columns_of(table).keys() - stored.vectors.columns_of(table).keys()
    }
    differing += [f"it has no {name}" for name in sorted(lacking)]
    pairs: list[tuple[str, Any, Any]] = [
        ("folds", stored.folds, settings.folds),
        ("text_pair", bool(stored.input.text_pair), bool(settings.input.text_pair)),
    ]
    # what the dataset has besides is no matter, so only what the job wants is compared
    pairs += [("tokens", stored.vectors.tokens, True)] * vectors.tokens
    if vectors.words is not None:
        pairs.append(("words", stored.vectors.words, vectors.words))
        pairs.append(("marked words", stored.input.marks_words, settings.input.marks_words))
    differing += unlike(pairs)
    if differing:
        raise MismatchError(f"{'; '.join(differing)}. Leave it out.", reuse=path)
    for entry in manifest.environments if not any_environment else ():
        if lines := difference(entry["environment"], job.environment):
            raise MismatchError(
                "it was made in another environment, whose bits could differ. Leave it out, "
                f"or pass {Option('allow_env_change', True)} in Python. Differences:\n{lines}",
                reuse=path,
            )
    # by which each process that opens the dataset later knows that it is still the same
    return path, manifest.fingerprint


class ReusedTexts(NamedTuple):
    """Texts of a shard that a dataset has: their numbers in the shard, and their places there."""

    texts: Int64
    places: Int64
    dataset: OpenSource

    def views(self) -> dict[str, Float32]:
        """Their sentence vectors by view."""
        reader = self.dataset.tables["sentences"]
        return reader.divided(reader.vectors_at(self.places))

    def lengths(self, names: Collection[str]) -> Lengths | None:
        """The lengths of these names; ``None`` where the texts have to be tokenized again.

        They do not say how many windows a text has, nor whether it spells out special tokens.
        """
        if not self.dataset.has_lengths:
            return None
        count, reader = len(self.places), self.dataset.tables["sentences"]
        stored = reader.table_at(self.places, [name for name in names if name in reader.columns])
        # has_lengths says that there are no windows but one each, and no spelled special tokens
        lengths: Lengths = {"windows": np.ones(count, np.int64), "spells": np.zeros(count, bool)}
        return lengths | {name: stored[name].to_numpy() for name in stored.column_names}

    def rows(self, table: str, names: Sequence[str]) -> tuple[Int64, pa.Table, dict[str, Float32]]:
        """Rows of their words or tokens: the number of the text of each, columns, and vectors."""
        reader = self.dataset.tables[table]
        begins, counts = self.dataset.extent(table, self.places)
        lines = ranges(begins, counts)
        columns = reader.table_at(lines, names)
        return np.repeat(self.texts, counts), columns, reader.divided(reader.vectors_at(lines))


class OpenSource:
    """The texts of a dataset by their keys, and its tables; a process opens it once."""

    def __init__(self, source: Source, settings: JobSettings) -> None:
        (path, fingerprint), vectors = source, settings.vectors
        if (manifest := read_manifest(path)).fingerprint != fingerprint:
            raise MismatchError("it changed meanwhile. Run the command again.", reuse=path)
        self.tables = {
            table: TableReader(path, manifest, table, tuple(vectors.columns_of(table)))
            for table in vectors.tables
        }
        keys = self.tables["sentences"].integers("text_key")
        # stable: of records with one key the first one is found
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        self._names = ["text", *["text_pair"] * bool(settings.input.text_pair)]
        spelled = manifest.totals.ledger.get("records_spelling_special_tokens", 0)
        # for the whole dataset, since its ledger does not tell which texts spell special tokens
        self.has_lengths = vectors.on_long != "window" and not spelled
        self._marked = vectors.words is not None and settings.input.marks_words

    def extent(self, table: str, places: Int64) -> tuple[Int64, Int64]:
        """First row and number of rows of records in the table of words or tokens."""
        return self.tables[table].extent(self.tables["sentences"].rows[places])

    def find(self, records: Sequence[Record], texts: Int64, folds: Int64 | None) -> ReusedTexts:
        """Those of some ``texts``, numbers of records, that this dataset has."""
        candidates = [records[i] for i in texts]
        at = match(keys_of(candidates), self._keys)
        hits = np.flatnonzero(at >= 0)
        places = self._order[at[hits]]
        # equal keys may be of texts that differ in case or white space, which have other vectors; a
        # text behind the first of its key is not found, and encoded again
        cells = {name: [getattr(candidates[i], name) for i in hits] for name in self._names}
        if folds is not None:  # the models of another fold give another vector
            cells["fold"] = folds[texts[hits]].tolist()
        same = np.ones(len(hits), bool)
        for name, stored in self.tables["sentences"].table_at(places, [*cells]).to_pydict().items():
            same &= np.array(stored, object) == np.array(cells[name], object)
        # the same sentence may be divided into other words
        if self._marked:
            same[same] = self._same_words([candidates[i] for i in hits[same]], places[same])
        return ReusedTexts(texts[hits[same]], places[same], self)

    def _same_words(self, records: Sequence[Record], places: Int64) -> list[bool]:
        """Whether the marked words of records are those of the dataset, all of them stored."""
        begins, counts = self.extent("words", places)
        spans = self.tables["words"].table_at(ranges(begins, counts), ["start", "end"])
        pairs = list(zip(*(column.to_pylist() for column in spans.columns), strict=True))
        ends = np.cumsum([0, *counts])
        return [
            r.words is not None and [*(r.words.spans or ())] == pairs[begin:end]
            for r, (begin, end) in zip(records, pairwise(ends.tolist()), strict=True)
        ]


def reused_texts(
    sources: Sequence[OpenSource], records: Sequence[Record], folds: Int64 | None
) -> tuple[Int64, tuple[ReusedTexts, ...]]:
    """Return the numbers of the texts of records that no dataset has, and the others.

    These are taken from the first dataset that has them.
    """
    new, reused = np.arange(len(records)), list[ReusedTexts]()
    for source in sources:
        reused.append(source.find(records, new, folds))
        # the next dataset is asked for what is still missing
        new = np.setdiff1d(new, reused[-1].texts)
    return new, tuple(part for part in reused if len(part.texts))
