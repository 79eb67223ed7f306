"""Check a dataset: bytes, counts, order, numbers, and some vectors again; or a run: bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedkit import fsio
from embedkit.checksums import check_files, file_sums, is_sealed
from embedkit.dataset.jobs import Job
from embedkit.dataset.manifest import TABLES, Layout, Manifest, read_manifest
from embedkit.dataset.schema import matrix_of, read_footer
from embedkit.dataset.vector_settings import DatasetEncoder, encode_as
from embedkit.errors import DamagedError, UsageError
from embedkit.types import Float32, Progress, ProgressCallback, no_progress

__all__ = ["Verification", "verify"]

_TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 5e-3}


@dataclass(slots=True)
class Verification:
    """What was checked and what was found.

    Attributes:
        files: files checked.
        rows: sentence rows checked.
        values: stored numbers looked at.
        recomputed_shards: shards embedded again.
        recomputed_rows: their rows, those of words too.
        identical_rows: of their rows, those with the same bits.
        worst: largest relative L2 difference of a recomputed vector.
        problems: one sentence each; empty if all is well.
    """

    files: int = 0
    rows: int = 0
    values: int = 0
    recomputed_shards: list[int] = field(default_factory=list)
    recomputed_rows: int = 0
    identical_rows: int = 0
    worst: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.problems


def verify(
    path: str | Path,
    *,
    recompute: int = 0,
    model: str | None = None,
    device: str = "auto",
    seed: int = 0,
    progress: ProgressCallback = no_progress,
) -> Verification:
    """Check a dataset, or a run or an index; as :func:`embedkit.verification.verify`."""
    folder = Path(path)
    found = Verification()
    if is_sealed(folder):
        _check_sealed(folder, found)
        return found
    manifest = read_manifest(folder)
    if Job(manifest.job, {}).fingerprint != manifest.fingerprint:
        found.problems.append("manifest.json was edited: its settings have another fingerprint")
    problems = file_problems(folder, manifest)
    found.files = sum((folder / name).is_file() for name in manifest.files)
    found.problems += filter(None, problems.values())
    for index in sorted((Layout(folder).private / "index").glob("*")):
        if is_sealed(index):
            _check_sealed(index, found)
    if found.ok:
        _check_rows(folder, manifest, found)
    if found.ok and recompute:
        if not manifest.job.storage.text:
            raise UsageError(f"{folder} stores no texts, so nothing can be recomputed.")
        words = manifest.columns_of("words") if manifest.job.vectors.words else ()
        views = [*manifest.views, *words]
        encoder = encode_as(manifest, views, owner=str(folder), device=device, model=model)
        _recompute(folder, encoder, found, recompute, seed, progress)
    return found


def _check_sealed(folder: Path, found: Verification) -> None:
    """Check a run or an index, whose files have no rows to look at."""
    try:
        names = file_sums(folder)
    except DamagedError as error:
        found.problems.append(str(error))
        return
    for name in names:
        found.files += 1
        try:
            check_files(folder, [name], advice="")
        except DamagedError as error:
            found.problems.append(str(error).rstrip(". "))


def file_problems(folder: Path, manifest: Manifest) -> dict[str, str]:
    """What is wrong with each file of shards; an empty string for one that is as written."""
    layout = Layout(folder)
    present = {f"{name}/{file}" for name in TABLES for file in layout.content(name)}
    problems = {name: f"{name} is not in the manifest" for name in sorted(present)}
    for name, expected in manifest.files.items():
        problems[name] = ""
        file = folder / name
        if name not in present:
            problems[name] = f"{name} is missing"
        elif (size := file.stat().st_size) != expected.bytes:
            problems[name] = f"{name} has {size} bytes, {expected.bytes} were written"
        elif fsio.file_sha256(file) != expected.sha256:
            problems[name] = f"{name} has another SHA-256 than was written"
        elif problem := _footer_problem(file, manifest, expected.rows):
            problems[name] = f"{name}: {problem}"
    return problems


def _footer_problem(file: Path, manifest: Manifest, rows: int) -> str:
    try:
        footer = read_footer(file)
    except (ValueError, OSError) as error:
        return str(error)
    if footer.rows != rows:
        return f"holds {footer.rows} rows, the manifest says {rows}"
    return "" if footer.fingerprint == manifest.fingerprint else "is of another job"


def _check_rows(folder: Path, manifest: Manifest, found: Verification) -> None:
    layout = Layout(folder)
    totals = manifest.totals
    accepted, rejected = _sentence_rows(layout, found), _rejected_rows(layout, found)
    found.rows = len(accepted)
    if accepted & rejected:
        found.problems.append(f"row {min(accepted & rejected)} is both embedded and rejected")
    for name, count in (("accepted", len(accepted)), ("rejected", len(rejected))):
        if count != getattr(totals, name):
            found.problems.append(
                f"{count} records are {name}, the manifest says {getattr(totals, name)}"
            )
    if totals.accepted + totals.rejected + totals.left_out != totals.records:
        found.problems.append("accepted + rejected + left out is not the number of records")
    for kind in ("words", "tokens"):
        for part in layout.shard_files(kind):
            for batch in _batches(part, found):
                if not set(batch.column("row").to_numpy().tolist()) <= accepted:
                    found.problems.append(f"{kind}/{part.name} has rows that no sentence has")


def _rejected_rows(layout: Layout, found: Verification) -> set[int]:
    try:
        with layout.rejects.open(encoding="utf-8") as lines:
            return {int(json.loads(line)["row"]) for line in lines}
    except (OSError, ValueError, KeyError, TypeError) as error:
        found.problems.append(f"{layout.rejects.name} cannot be read: {error}")
        return set()


def _sentence_rows(layout: Layout, found: Verification) -> set[int]:
    """All row numbers of the sentence table; complains where they do not ascend."""
    seen = set[int]()
    last = -1
    for part in layout.shard_files("sentences"):
        for batch in _batches(part, found):
            rows = batch.column("row").to_numpy()
            if not len(rows):
                continue
            if rows[0] <= last or (np.diff(rows) <= 0).any():
                found.problems.append(f"{part.name}: the rows are not in ascending order")
            last = int(rows[-1])
            seen.update(rows.tolist())
    return seen


def _batches(part: Path, found: Verification) -> Iterator[pa.RecordBatch]:
    """Every batch of a file, its page checksums compared and its vectors looked at."""
    try:
        with pq.ParquetFile(part, page_checksum_verification=True) as file:
            for batch in file.iter_batches(batch_size=8_192):
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    if pa.types.is_fixed_size_list(column.type):
                        values = column.flatten().to_numpy(zero_copy_only=False)
                        found.values += len(values)
                        if not np.isfinite(values).all():
                            found.problems.append(f"{part.name}: {name} holds NaN or infinity")
                yield batch
    except (ValueError, pa.ArrowException, OSError) as error:
        found.problems.append(f"{part.name} cannot be read: {error}")


def _recompute(
    folder: Path, encoder: DatasetEncoder, found: Verification, count: int, seed: int,
    progress: ProgressCallback,
) -> None:  # fmt: skip
    allowed = _TOLERANCE[encoder.settings.precision]
    if encoder.settings.storage != "float32":
        allowed = max(allowed, 2e-3)  # half a unit of float16, twice
    parts = Layout(folder).shard_files("sentences")
    chosen = np.random.default_rng(seed).choice(len(parts), min(count, len(parts)), replace=False)
    found.recomputed_shards = sorted(chosen.tolist())
    for done, number in enumerate(found.recomputed_shards):
        progress(Progress("recomputing", done, len(chosen), "shards"))
        part = parts[number]
        table = pq.read_table(part, page_checksum_verification=True)
        pairs = table["text_pair"].to_pylist() if "text_pair" in table.column_names else None
        texts = table["text"].to_pylist()
        if encoder.settings.words is None:
            worst = _compare(table, encoder.views(texts, pairs), found)
        else:
            words = pq.read_table(Layout(folder).shard_file("words", number),
                                  page_checksum_verification=True)  # fmt: skip
            worst = _compare_words(encoder, texts, pairs, table, words, found)
        if worst > allowed:
            found.problems.append(
                f"{part.name}: recomputed vectors differ by {worst:.1e} (relative L2), more "
                f"than {allowed:.0e}"
            )


def _compare(table: pa.Table, fresh: Mapping[str, Float32], found: Verification) -> float:
    """Note how many rows of a table have the same bits as fresh vectors; the largest distance."""
    same, worst = np.ones(len(table), bool), 0.0
    for name, vectors in fresh.items():
        stored = matrix_of(table[name]).astype(np.float32)
        same &= (stored == vectors).all(axis=1)
        scale = np.maximum(np.linalg.norm(vectors, axis=1), 1e-12)
        distances = np.linalg.norm(stored - vectors, axis=1) / scale
        worst = max(worst, float(distances.max(initial=0.0)))
    found.worst = max(found.worst, worst)
    found.recomputed_rows += len(table)
    found.identical_rows += int(same.sum())
    return worst


def _compare_words(
    encoder: DatasetEncoder, texts: list[str], pairs: list[str] | None, table: pa.Table,
    words: pa.Table, found: Verification,
) -> float:  # fmt: skip
    """Compare the texts and words of a shard; infinite where there are other words."""
    rows = table["row"].to_numpy()
    record = np.searchsorted(rows, words["row"].to_numpy())
    stored = [words[name].to_numpy() for name in ("start", "end")]
    spans = None
    if pairs is None:
        ends = np.searchsorted(record, np.arange(1, len(rows)))
        spans = np.split(np.stack(stored, axis=1), ends)
    views, fresh = encoder.views_and_words(texts, pairs, spans=spans)
    worst = _compare(table, views, found)
    same = np.array_equal(fresh.row, record) and all(
        np.array_equal(*both) for both in zip((fresh.start, fresh.end), stored, strict=True)
    )
    if not same:
        return np.inf
    layers = {f"layer_{name}": vectors for name, vectors in fresh.vectors.items()}
    return max(worst, _compare(words, layers, found))


def require_ok(found: Verification, path: Path) -> None:
    """Raise a :class:`DamagedError` that names the first problems, if there are any."""
    if not found.ok:
        listed = "; ".join(found.problems[:5])
        more = f"; and {len(found.problems) - 5} more" if len(found.problems) > 5 else ""
        raise DamagedError(
            f"{path} is not what was written: {listed}{more}. Make it again, with the option "
            "overwrite."
        )
