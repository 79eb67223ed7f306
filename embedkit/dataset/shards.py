"""The shards of one job: read, tokenized, encoded, written.

The whole input is read and parsed on every run, also on one that resumes: that is cheap beside
the encoder, it lets records be counted exactly, and nothing but the shards themselves has to say
where an earlier run stopped. Reading and tokenizing run ahead of the encoder, and writing behind
it, in threads of their own; a shard is made by one thread at a time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from embedkit import fsio
from embedkit.corpus import CorpusReader, Record, Reject
from embedkit.dataset.columns import ledger_of, sentence_columns, token_columns, word_table
from embedkit.dataset.jobs import Job, JobFolder
from embedkit.dataset.manifest import Manifest, Totals
from embedkit.dataset.planning import ExtractPlan
from embedkit.dataset.schema import Footer, cast_for_storage, shard_bytes
from embedkit.dataset.workers import Clock, StageTime, Writers, ahead
from embedkit.encoding.encoder import PendingShard, ShardVectors
from embedkit.encoding.tokenization import TokenizedText
from embedkit.errors import CorpusError
from embedkit.types import Progress, ProgressCallback

__all__ = ["JobRun"]

logger = logging.getLogger(__name__)

_BYTES_WAITING = 192 << 20


@dataclass(frozen=True, slots=True)
class _Shard:
    """What is known of a shard before it is encoded; ``done`` if an earlier run made it."""

    number: int
    records: list[Record]
    texts: list[TokenizedText]
    done: Footer | None

    @property
    def tokens(self) -> int:
        if self.done is not None:
            return self.done.ledger["tokens_kept"]
        return sum(text.n_kept for text in self.texts)


class JobRun:
    """The shards of one job, from records to files.

    Attributes:
        fresh: tokens that this run encoded.
        resumed: shards that an earlier run had finished.
        stages: how busy each stage was, once all is done.
    """

    def __init__(
        self,
        plan: ExtractPlan,
        job: Job,
        folder: JobFolder,
        progress: ProgressCallback,
    ) -> None:
        self._plan = plan
        self._job = job
        self._vectors = plan.vectors
        self._folder = folder
        self._progress = progress
        self._reader = CorpusReader(plan.corpus)
        self._clock = Clock()
        self._ledger: Counter[str] = Counter()
        self._done = self._seen = self._expected = 0
        self.fresh = 0
        self.resumed = 0
        self.stages: tuple[StageTime, ...] = ()

    def all_shards(self, started: float) -> Manifest:
        """Make every shard that is not there yet, and finish the dataset.

        ``started`` is when the run began, by the monotonic clock.
        """
        layout = self._folder.layout
        rejects = layout.scratch / "rejects.partial"
        self._log("started", 0.0)
        number = 0
        writers: Writers[dict[str, int]] = Writers(bytes_waiting=_BYTES_WAITING)
        with (
            rejects.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as sink,
            writers,
            ahead(self._prepared(sink)) as shards,
        ):
            for shard in shards:
                number = shard.number
                if shard.done is not None:
                    self._pass_over(shard, shard.done)
                else:
                    self._encode(shard, writers)
            for ledger in writers.results():
                self._ledger.update(ledger)
            with fsio.storage_errors(layout.rejects):
                sink.flush()
        for file in self._plan.corpus.files:
            file.check_unchanged()
        fsio.publish_file(rejects, layout.rejects)
        self.stages = self._clock.stages(
            {"read": 1, "tokenize": 1, "encode": 1, "write": writers.threads}
        )
        self._log("finished", time.monotonic() - started)
        self._warn_about_texts()
        return self._folder.finish(
            n_shards=number + 1, totals=self._totals(), names=self._plan.names()
        )

    def _prepared(self, rejects: Any) -> Iterator[_Shard]:
        """Shards read and tokenized, in order; those of an earlier run checked instead."""
        plan = self._plan
        shards = self._shards(rejects)
        number = 0
        while True:
            with self._clock("read"):
                records = next(shards, None)
                done = None if records is None else self._folder.finished(number)
            if records is None:
                return
            texts = []
            if done is not None:
                self._check_rows(done, records)
            else:
                with self._clock("tokenize"):
                    texts = plan.tokenized(records)
            shard = _Shard(number, records, texts, done)
            self._seen += shard.tokens
            read = _fraction_read(self._reader)
            self._expected = int(self._seen / read) if 0 < read < 1 else self._seen
            yield shard
            number += 1

    def _shards(self, rejects: Any) -> Iterator[list[Record]]:
        """Lists of ``shard_rows`` accepted records; at least one, even if it is empty."""
        records: list[Record] = []
        yielded = False
        for item in self._reader:
            if isinstance(item, Reject):
                with fsio.storage_errors(self._folder.layout.rejects):
                    rejects.write(item.to_json() + "\n")
                continue
            records.append(item)
            if len(records) == self._plan.shard_rows:
                yield records
                yielded, records = True, []
        if records or not yielded:
            yield records

    def _pass_over(self, shard: _Shard, done: Footer) -> None:
        self.resumed += 1
        self._done += shard.tokens
        self._ledger.update(done.ledger)
        self._report(shard.number)

    def _encode(self, shard: _Shard, writers: Writers[dict[str, int]]) -> None:
        plan = self._plan
        before, shard_tokens = self._done, shard.tokens

        def on_tokens(count: int) -> None:
            self._done = min(self._done + count, before + shard_tokens)
            self.fresh += count
            self._report(shard.number)

        vectors = plan.start_shard(shard.records, shard.texts, on_tokens=on_tokens)
        self._done = before + shard_tokens  # repeated texts ran once, and windows overlap
        writers.submit(vectors.nbytes, lambda: self._write(shard, vectors))
        self._report(shard.number)

    def _write(self, shard: _Shard, pending: PendingShard) -> dict[str, int]:
        """Build the files of a shard and make them durable; returns its counts."""
        vectors = pending.result()
        self._clock.add("encode", vectors.seconds)
        with self._clock("write"):
            return self._commit(shard.number, shard.records, shard.texts, vectors)

    def _commit(
        self,
        number: int,
        records: list[Record],
        texts: list[TokenizedText],
        vectors: ShardVectors,
    ) -> dict[str, int]:
        plan = self._plan
        rows = np.array([r.row for r in records], np.int64)
        ledger = ledger_of(texts, plan.encoder.tokenizer, limit=self._vectors.max_length)
        ledger |= {"sequences_encoded": vectors.encoded, "batches_split": vectors.splits}

        def footer(count: int, companions: dict[str, str]) -> Footer:
            return Footer(
                fingerprint=self._job.fingerprint,
                shard=number,
                first_row=int(rows[0]) if len(rows) else -1,
                last_row=int(rows[-1]) if len(rows) else -1,
                rows=count,
                ledger=ledger,
                companions=companions,
                job=self._job.as_dict(),
            )

        others = self._other_tables(records, texts, vectors, footer)
        companions = {
            name: hashlib.sha256(memoryview(data)).hexdigest() for name, data in others.items()
        }
        views = {
            name: self._vectors.as_stored(vectors.views.pop(name), name=name, rows=rows)
            for name in list(vectors.views)
        }
        scalars = sentence_columns(records, texts, plan.settings, plan.folds_of(records))
        own = footer(len(rows), companions)
        sentences = shard_bytes(scalars, views, footer=own, storage=self._vectors.storage)
        self._folder.commit(number, own, sentences, others)
        return ledger

    def _other_tables(
        self,
        records: list[Record],
        texts: list[TokenizedText],
        vectors: ShardVectors,
        footer: Callable[[int, dict[str, str]], Footer],
    ) -> dict[str, pa.Buffer]:
        plan = self._plan
        paired = plan.corpus.text_pair is not None
        tables: dict[str, tuple[dict[str, pa.Array], dict[str, Any]]] = {}
        if self._vectors.words is not None:
            tables["words"] = word_table(
                records, texts, vectors.tokens, subtokens=self._vectors.words, paired=paired
            )
            if not plan.settings.storage.text:
                del tables["words"][0]["text"]
        if self._vectors.tokens:
            columns = token_columns(records, texts, plan.encoder.tokenizer, paired=paired)
            if not plan.settings.storage.text:
                del columns["token"], columns["token_id"]
            tables["tokens"] = (columns, dict(vectors.tokens))
        result = {}
        for folder, (scalars, layers) in tables.items():
            rows = scalars["row"].to_numpy()
            stored = {
                f"layer_{name}": cast_for_storage(
                    values, self._vectors.storage, name=f"{folder} layer_{name}", rows=rows
                )
                for name, values in layers.items()
            }
            own = footer(len(rows), {})
            result[folder] = shard_bytes(scalars, stored, footer=own, storage=self._vectors.storage)
        return result

    def _check_rows(self, footer: Footer, records: list[Record]) -> None:
        ends = (records[0].row, records[-1].row) if records else (-1, -1)
        if (footer.first_row, footer.last_row, footer.rows) != (*ends, len(records)):
            raise CorpusError(
                f"shard {footer.shard} holds rows {footer.first_row} to {footer.last_row}, but "
                f"the corpus now gives {ends[0]} to {ends[1]}. Start over with overwrite=True."
            )

    def _report(self, number: int) -> None:
        total = max(self._expected, self._done)
        self._progress(Progress(f"shard {number + 1}", self._done, total, "tokens", self.fresh))

    def _totals(self) -> Totals:
        counts = self._reader.counts
        return Totals(
            records=counts.records, accepted=counts.accepted, rejected=counts.n_rejected,
            rejected_by_reason=dict(sorted(counts.rejected.items())),
            left_out=sum(counts.left_out.values()),
            left_out_by_reason=dict(sorted(counts.left_out.items())),
            blank_lines=counts.blank_lines, not_nfc=counts.not_nfc,
            fields_with_quotes=counts.fields_with_quotes,
            fields_csv_quoted=counts.fields_csv_quoted, ledger=dict(self._ledger),
        )  # fmt: skip

    def _warn_about_texts(self) -> None:
        counts, ledger = self._reader.counts, self._ledger
        if counts.accepted == 0:
            logger.warning("no record was accepted: the dataset has no rows")
        if quotes := counts.quote_notice:
            logger.warning(quotes)
        kept = ledger.get("tokens_kept", 0)
        unknown = ledger.get("tokens_unknown", 0)
        if kept and unknown / kept > 0.2:
            logger.warning(
                f"{unknown / kept:.0%} of the tokens are unknown to this model's vocabulary; it "
                "may be the wrong model for the language"
            )
        if spelled := ledger.get("records_spelling_special_tokens"):
            logger.warning(
                f"{spelled} texts spell out special tokens such as [SEP], which act as such"
            )

    def _log(self, event: str, seconds: float) -> None:
        entry = {
            "event": event,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": round(seconds, 3),
            "tokens_encoded": self.fresh,
            "shards_found": self.resumed,
            "stages": {stage.name: round(stage.seconds, 3) for stage in self.stages},
            **_processor(),
        }
        with fsio.storage_errors(self._folder.layout.log), self._folder.layout.log.open("a") as log:
            log.write(json.dumps(entry) + "\n")


def _fraction_read(reader: CorpusReader) -> float:
    """Fraction of the records to be accepted that has been read, as well as can be known."""
    fraction = reader.fraction
    plan, counts = reader.plan, reader.counts
    if plan.limit:
        fraction = max(fraction, min(counts.records / plan.limit, 1.0))
    if plan.sample:
        fraction = max(fraction, min(counts.accepted / plan.sample, 1.0))
    return fraction


def _processor() -> dict[str, Any]:
    """What runs may differ in without another result; for the log."""
    import torch

    return {
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
