"""Verification of datasets, runs, indexes and single Parquet files.

    bytes          SHA256SUMS of a folder, its indexes and a store ─┐
    descriptions   run.json, index.json                             │ each only where the one
    rows           order, rejects, counts of the manifest           │ before found nothing
    vectors        random records encoded again, on request         ┘
                       └─► Verification: problems, one sentence each

What is notable:

- A file that is damaged is one problem. If later checks also read it, it would be told twice.
- Vectors are encoded in other company than they were made in: the same text has the same bits in
  any, on a CPU in fp32 and int8. Where bits differ, for instance on a GPU, a distance decides, by
  the tolerance of the precision and of the storage, and environments are compared to say why.
- Records to recompute are drawn over all rows, and shards are visited in order, so that each file
  is read once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from embedkit import storage
from embedkit.arguments import accepts
from embedkit.dataset.encoders import DatasetEncoder, encode_as
from embedkit.dataset.format import (
    Layout,
    Manifest,
    is_dataset,
    local_dataset,
    read_manifest,
    unlisted_files,
)
from embedkit.dataset.parquet import read_table
from embedkit.dataset.settings import difference
from embedkit.dataset.tables import TableReader
from embedkit.display import Shown, count_text
from embedkit.encoding.windows import ranges
from embedkit.errors import DamagedError, UsageError
from embedkit.records import Count, Seed
from embedkit.remote import address_of, store_of, stored_sha256
from embedkit.runs.folder import is_run, read_run
from embedkit.search.index import INFO, read_index_info
from embedkit.types import AnyPath, Float32, Progress, ProgressCallback, no_progress

_AT_ONCE = 8  # files of an object store that are read
# largest relative L2 distance that the rounding of a precision explains
_TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 5e-3, "int8": 2e-2}


@dataclass(slots=True, repr=False)
class Verification(Shown):
    """Result of :func:`verify`; without ``problems`` (one sentence each) all is well."""

    files: int = 0
    rows: int = 0  # of sentences, or of a Parquet file
    recomputed_shards: list[int] = field(default_factory=list)
    recomputed_texts: int = 0
    recomputed_rows: int = 0  # of these texts and their words
    identical_rows: int = 0  # of these, with the same bits
    worst: float = 0.0  # largest relative L2 difference of a recomputed vector
    elsewhere: str = ""  # versions and device of the dataset that are others here, if bits are
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if there are no problems."""
        return not self.problems

    @property
    def recomputed(self) -> str:
        """Whether the vectors are the same to the last bit, or how far apart, and why."""
        texts = f"{count_text(self.recomputed_texts, 'text')} encoded again"
        if self.identical_rows == self.recomputed_rows:
            return f"{texts}: the same bits"
        same = f"{self.identical_rows:,} of {self.recomputed_rows:,} rows have the same bits"
        why = f"it was made elsewhere:\n{self.elsewhere}"
        if not self.elsewhere:
            why = "rounding for storage, bf16, fp16, padding and GPUs make bits depend on the batch"
        return f"{texts}: {same}, the others are up to {self.worst:.1e} apart (relative L2); {why}"


@accepts()
def verify(
    path: AnyPath,
    *,
    recompute: Count = 0,
    model: str | None = None,
    device: str = "auto",
    seed: Seed = 0,
    progress: ProgressCallback = no_progress,
) -> Verification:
    """Compare files with ``SHA256SUMS``; of a dataset also check counts and order.

    Of a dataset in an object store the files there are read, not those of the local copy.

    Args:
        path: a dataset with its indexes, a run, an index, or a Parquet file such as a split.
        recompute: of a dataset, number of random records to embed again from their stored texts.
        model: location of the checkpoint, if it has moved.
        device: where to recompute.
        seed: seed of the choice of records.
        progress: called with the shards that were embedded again.

    Raises:
        UsageError: there is nothing that can be checked, or no texts to recompute from.
        MismatchError: the checkpoint has other weights or files.

    Example:
        >>> checked = embedkit.verify("vectors", recompute=12)
        >>> checked.ok, checked.rows, checked.recomputed_rows  # 12 texts and their 72 words
        (True, 12, 84)
    """
    folder, result = local_dataset(path, whole=True), Verification()
    if folder.is_file():  # whose pages carry checksums, if embedkit has written it
        if folder.suffix != ".parquet":
            raise UsageError(f"{folder} has no checksum; give a dataset, run, index or Parquet.")
        result.files = 1
        with _problems_of(result):
            result.rows = read_table(folder).num_rows
        return result
    if not is_dataset(folder) and not storage.is_sealed(folder):
        # either raises an error that says what is there instead; a run may have lost its sums
        (read_run if is_run(folder) else read_manifest)(folder)
    if recompute and not is_dataset(folder):
        raise UsageError(f"{folder} is no dataset, whose texts alone can be encoded again.")
    # local_dataset has made the copy whole; the store itself is compared with the sums of the copy
    if address := address_of(path):
        result.problems += _differing_in_store(address, storage.file_sums(folder))
    indexes = sorted(filter(storage.is_sealed, Layout(folder).index.glob("*")))
    for part in (folder, *indexes):
        with _problems_of(result):
            sums = storage.file_sums(part)
            result.files += len(sums)
            result.problems += storage.differing_files(part, sums).values()
            # a dataset has no others
            result.problems += [f"{n} is not in SHA256SUMS" for n in unlisted_files(part, sums)]
    # only where the bytes are those that were written: else each damaged file would be told twice
    for part in (folder, *indexes) if result.ok else ():
        with _problems_of(result):  # read as those who open it do
            if is_run(part):
                read_run(part)
            elif (part / INFO).is_file():
                read_index_info(part)
    if not is_dataset(folder) or not result.ok:
        return result
    manifest = read_manifest(folder)
    with _problems_of(result):
        _check_rows(folder, manifest, result)
    if result.ok and recompute:
        if not manifest.job.storage.text:
            raise UsageError(f"{folder} stores no texts, so nothing can be recomputed.")
        # words are made by the same forward pass, so that they are checked too; tokens are not
        words = manifest.columns_of("words") if manifest.job.vectors.words else ()
        views = [*manifest.views, *words]
        encoder = encode_as(manifest, views, owner=str(folder), device=device, model=model)
        _recompute(folder, manifest, encoder, result, recompute, seed, progress)
    return result


@contextmanager
def _problems_of(result: Verification) -> Iterator[None]:
    """Let what a check finds damaged, which ends it, be a problem of the result."""
    try:
        yield
    except (DamagedError, UsageError) as error:
        result.problems.append(str(error).rstrip(". "))


def _differing_in_store(address: str, sums: Mapping[str, str]) -> list[str]:
    """A message for each file that an object store does not have as it was written."""
    with store_of(address) as (store, root):

        def problem(name: str) -> str:
            try:
                # the card is its owner's to edit, there as here
                if name == storage.CARD or stored_sha256(store, f"{root}/{name}") == sums[name]:
                    return ""
            except FileNotFoundError:
                return f"{storage.without_secrets(address)}/{name} is missing"
            return f"{storage.without_secrets(address)}/{name} is damaged"

        # the network is what takes time
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return [text for text in pool.map(problem, sums) if text]


def _check_rows(folder: Path, manifest: Manifest, result: Verification) -> None:
    """Compare the rows of the tables, and the rejects, with each other and with the counts."""
    layout, totals = Layout(folder), manifest.totals
    tables = manifest.job.vectors.tables
    # no damage, and no problem of the dataset, if the file may not be read or the disk fails
    wrong = (ValueError, LookupError, TypeError, OverflowError, RecursionError)
    with storage.reading(layout.rejects, *wrong, advice=""):
        # no views: only the scalar column is read, its page checksums compared
        readers = (TableReader(folder, manifest, name, ()) for name in tables)
        accepted, *other_rows = (reader.rows for reader in readers)
        with layout.rejects.open(encoding="utf-8") as lines:
            rejected = np.array([int(json.loads(line)["row"]) for line in lines], np.int64)
    result.rows = len(accepted)
    # strictly ascending, so that no record is there twice
    if (np.diff(accepted) <= 0).any():
        result.problems.append("the rows of the sentences are not in ascending order")
    if len(overlap := np.intersect1d(accepted, rejected)):
        result.problems.append(f"row {overlap[0]} is both embedded and rejected")
    for name, count in (("accepted", len(accepted)), ("rejected", len(rejected))):
        if count != getattr(totals, name):
            result.problems.append(
                f"{count} records are {name}, the manifest says {getattr(totals, name)}"
            )
    if totals.accepted + totals.rejected + totals.left_out != totals.records:
        result.problems.append("accepted + rejected + left out is not the number of records")
    for name, rows in zip(tables[1:], other_rows, strict=True):
        if not np.isin(rows, accepted).all():
            result.problems.append(f"{name} have rows that no sentence has")


def _recompute(
    folder: Path,
    manifest: Manifest,
    encoder: DatasetEncoder,
    result: Verification,
    count: int,
    seed: int,
    progress: ProgressCallback,
) -> None:
    """Encode random records again. Their company is another one, which no bit may depend on."""
    allowed = _TOLERANCE[encoder.settings.precision]
    if encoder.settings.storage != "float32":  # half a unit of float16, twice; one of int8
        allowed = max(allowed, 5e-2 if encoder.settings.storage == "int8" else 2e-3)
    data, words = TableReader(folder, manifest, "sentences", tuple(manifest.views)), None
    if encoder.settings.words is not None:
        words = TableReader(folder, manifest, "words", tuple(manifest.columns_of("words")))
    names = [name for name in ("row", "text", "text_pair") if name in data.columns]
    # by random numbers over all rows, then shard by shard, so that each file is read once
    random = np.random.default_rng(seed)
    chosen = np.sort(random.choice(len(data), min(count, len(data)), replace=False))
    ends = np.cumsum([file.rows for file in manifest.files_of("sentences")])
    shard_of = np.searchsorted(ends, chosen, side="right")
    result.recomputed_shards = np.unique(shard_of).tolist()
    for done, number in enumerate(result.recomputed_shards):
        progress(Progress("recomputing", done, len(result.recomputed_shards), "shards"))
        places, worst = chosen[shard_of == number], 0.0
        columns = data.table_at(places, names).to_pydict()
        texts, pairs = columns["text"], columns.get("text_pair")
        result.recomputed_texts += len(texts)
        # the texts of a shard are encoded together, words included where the dataset has them
        if words is None:
            views = encoder.views(texts, pairs)
        else:
            begins, counts = words.extent(np.array(columns["row"]))
            lines, spans = ranges(begins, counts), None
            start, end = words.table_at(lines, ["start", "end"]).to_pydict().values()
            # spans that were marked in the corpus cannot be found again in the text; of pairs there
            # are none
            if pairs is None:
                spans = np.split(np.stack([start, end], axis=1), np.cumsum(counts)[:-1])
            views, fresh = encoder.views_and_words(texts, pairs, spans=spans)
            # infinite: words at other places cannot be compared, and that is a difference beyond
            # any limit
            place, worst = np.stack([np.repeat(np.arange(len(texts)), counts), start, end]), np.inf
            if np.array_equal(np.stack([fresh.row, fresh.start, fresh.end]), place):
                stored = words.divided(words.vectors_at(lines))
                layers = {f"layer_{name}": vectors for name, vectors in fresh.vectors.items()}
                worst = _compare(stored, layers, result)
        stored = data.divided(data.vectors_at(places))
        worst = max(worst, _compare(stored, views, result))
        if worst > allowed:
            part = Layout(folder).shard_file("sentences", number).name
            result.problems.append(
                f"{part}: recomputed vectors differ by {worst:.1e} (relative L2), more than "
                f"{allowed:.0e}"
            )
    if result.identical_rows < result.recomputed_rows:
        from embedkit.dataset.shards import environment_of  # which loads torch

        now = environment_of(encoder.encoder)
        # shards may be of several environments: the first one that differs is shown
        differences = [difference(e["environment"], now) for e in manifest.environments]
        result.elsewhere = next(filter(None, differences), "")


def _compare(
    stored: Mapping[str, Float32], fresh: Mapping[str, Float32], result: Verification
) -> float:
    """Compare stored vectors with fresh ones; the largest distance."""
    # a row is identical if all of its views are
    identical = np.logical_and.reduce([(stored[n] == fresh[n]).all(axis=1) for n in stored])
    worst = 0.0
    for name, vectors in fresh.items():
        # relative to the length of the vector; 1e-12 keeps a vector of zeros from dividing by 0
        scale = np.maximum(np.linalg.norm(vectors, axis=1), 1e-12)
        distances = np.linalg.norm(stored[name] - vectors, axis=1) / scale
        worst = max(worst, float(distances.max(initial=0.0)))
    result.worst = max(result.worst, worst)
    result.recomputed_rows += len(identical)
    result.identical_rows += int(identical.sum())
    return worst


def require_ok(result: Verification, path: Path) -> None:
    """Raise a :class:`DamagedError` that names the first problems, if any."""
    if not result.ok:
        listed = "; ".join(result.problems[:5])
        rest = f"; and {len(result.problems) - 5} more" if len(result.problems) > 5 else ""
        raise DamagedError(f"{path} is damaged: {listed}{rest}. Run its command again.")
