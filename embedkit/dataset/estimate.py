"""What a job will cost, before it starts: rows, tokens, bytes, minutes."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from embedkit import fsio
from embedkit.corpus import CorpusReader, Record, Reject
from embedkit.dataset.planning import ExtractPlan
from embedkit.encoding.tokenization import TokenizedText
from embedkit.types import Progress, ProgressCallback, no_progress

__all__ = ["Estimate", "estimate"]

_SAMPLE = 1_000
_LEAST_SECONDS = 2.0
_TIMED_TOKENS = 8_192
_REPORTED = 5_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of a job. Counts of records are exact, the rest is extrapolated from a sample.

    Attributes:
        records: records in the input.
        accepted: records to be embedded.
        rejected: records that cannot be, by reason.
        left_out: records left out by ``min_chars``, ``sample``, ``limit``.
        tokens: expected tokens after truncation.
        truncated: expected fraction of texts that are cut.
        bytes_per_view: expected bytes of every vector column, by name.
        bytes_total: expected size on disk.
        free_bytes: free space where the output goes.
        shards: number of shards.
        tokens_per_second: measured here on the sample.
        seconds: expected time.
        sampled: texts that tokens and speed were measured on.
        quotes: remark on fields that look CSV-quoted, or nothing.
    """

    records: int
    accepted: int
    rejected: dict[str, int]
    left_out: dict[str, int]
    tokens: int
    truncated: float
    bytes_per_view: dict[str, int]
    bytes_total: int
    free_bytes: int
    shards: int
    tokens_per_second: float
    seconds: float
    sampled: int
    quotes: str


def estimate(plan: ExtractPlan, *, progress: ProgressCallback = no_progress) -> Estimate:
    """Read the whole corpus, tokenize a sample, time the model on some of it. Writes nothing."""
    reader = CorpusReader(plan.corpus)
    random = Random(0)
    accepted = (item for item in _counted(reader, progress) if isinstance(item, Record))
    sample = heapq.nlargest(_SAMPLE, accepted, key=lambda _: random.random())
    texts = plan.tokenized(sample)
    n = max(len(sample), 1)
    counts = reader.counts
    kept = sum(t.n_kept for t in texts)
    tokens = round(kept / n * counts.accepted)
    progress(Progress("timing the model", 0))
    every = max(kept // _TIMED_TOKENS, 1)
    speed = _speed(plan, sample[::every], texts[::every]) if texts else float("inf")
    words = sum(len(set(t.word[t.word >= 0].tolist())) for t in texts if t.word is not None)
    sizes = _sizes(plan, counts.accepted, tokens, round(words / n * counts.accepted))
    scalars = sum(_scalar_bytes(r, plan) for r in sample) / n * counts.accepted
    scalars += tokens * 12 * plan.vectors.tokens
    return Estimate(
        records=counts.records,
        accepted=counts.accepted,
        rejected=dict(counts.rejected),
        left_out=dict(counts.left_out),
        tokens=tokens,
        truncated=sum(t.cut for t in texts) / n,
        bytes_per_view=sizes,
        bytes_total=sum(sizes.values()) + round(scalars),
        free_bytes=fsio.free_bytes(plan.out),
        shards=max(-(-counts.accepted // plan.settings.storage.shard_rows), 1),
        tokens_per_second=speed,
        seconds=tokens / speed,
        sampled=len(sample),
        quotes=counts.quote_notice,
    )


def _counted(reader: CorpusReader, progress: ProgressCallback) -> Iterator[Record | Reject]:
    for number, item in enumerate(reader):
        if number % _REPORTED == 0:
            progress(Progress("reading", round(100 * reader.fraction), 100, "%"))
        yield item


def _scalar_bytes(record: Record, plan: ExtractPlan) -> int:
    """Bytes of a record's columns that are not vectors."""
    cells = [record.id, record.label, *record.kept]
    if plan.settings.storage.text:
        cells += [record.text, record.text_pair]
    return sum(len(cell.encode()) for cell in cells if cell is not None) + 32


def _speed(plan: ExtractPlan, records: Sequence[Record], texts: Sequence[TokenizedText]) -> float:
    """Tokens per second of the real layers and views on the sample, over two seconds or more."""
    done: Counter[str] = Counter()
    started = time.perf_counter()
    first = True
    while time.perf_counter() - started < _LEAST_SECONDS:
        pending = plan.start_shard(
            records, texts, on_tokens=lambda count: done.update(tokens=count)
        )
        result = pending.result()
        del pending, result
        if first:  # the first pass warms up
            started, first = time.perf_counter(), False
            done.clear()
    return done["tokens"] / (time.perf_counter() - started)


def _sizes(plan: ExtractPlan, rows: int, tokens: int, words: int) -> dict[str, int]:
    vectors = plan.vectors
    per_float = {"float32": 4.0, "float16": 2.0, "compact": 1.75}[vectors.storage]
    sizes = {name: round(rows * width * per_float) for name, width in vectors.views.items()}
    for table, count in (("words", words), ("tokens", tokens)):
        if getattr(vectors, table):
            sizes |= {
                f"{table} layer_{name}": round(count * width * per_float)
                for name, width in vectors.token_layers.items()
            }
    return sizes
