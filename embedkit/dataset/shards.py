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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from embedkit import fsio
from embedkit.corpus import CorpusReader, Record, Reject
from embedkit.dataset.columns import layer_columns, ledger_of, sentence_columns
from embedkit.dataset.jobs import Job, JobFolder
from embedkit.dataset.manifest import Manifest, Totals
from embedkit.dataset.planning import ExtractPlan
from embedkit.dataset.schema import Footer, cast_for_storage, shard_bytes
from embedkit.dataset.workers import Clock, StageTime, Writers, ahead
from embedkit.encoding.encoder import PendingShard, ShardVectors
from embedkit.encoding.legibility import note_if_spelled_out
from embedkit.encoding.tables import TokenVectors, WordVectors, token_vectors, word_vectors
from embedkit.encoding.tokenization import TokenizedText
from embedkit.errors import CorpusError
from embedkit.types import Progress, ProgressCallback

__all__ = ["JobRun"]

logger = logging.getLogger(__name__)

_BYTES_WAITING = 192 << 20

_Table = tuple[str, dict[str, pa.Array], dict[str, NDArray[Any]]]


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
        self, plan: ExtractPlan, job: Job, folder: JobFolder, progress: ProgressCallback
    ) -> None:
        self._plan, self._job, self._folder, self._progress = plan, job, folder, progress
        self._vectors = plan.vectors
        self._reader = CorpusReader(plan.corpus)
        self._clock = Clock()
        self._ledger: Counter[str] = Counter()
        self._done = self._seen = self._expected = 0
        self.fresh = self.resumed = 0
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
                if shard.done is None:
                    self._encode(shard, writers)
                else:
                    self.resumed += 1
                    self._done += shard.tokens
                    self._ledger.update(shard.done.ledger)
                self._report(number)
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
        shards = self._shards(rejects)
        for number in count():
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
                    texts = self._plan.tokenized(records)
            shard = _Shard(number, records, texts, done)
            self._seen += shard.tokens
            read = _fraction_read(self._reader)
            self._expected = int(self._seen / read) if 0 < read < 1 else self._seen
            yield shard

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
            if len(records) == self._plan.settings.storage.shard_rows:
                yield records
                yielded, records = True, []
        if records or not yielded:
            yield records

    def _encode(self, shard: _Shard, writers: Writers[dict[str, int]]) -> None:
        plan = self._plan
        if shard.number == 0:
            encoder = plan.encoder
            note_if_spelled_out(
                encoder.checkpoint, encoder.tokenizer, [r.text for r in shard.records]
            )
        before, shard_tokens = self._done, shard.tokens

        def on_tokens(count: int) -> None:
            self._done = min(self._done + count, before + shard_tokens)
            self.fresh += count
            self._report(shard.number)

        vectors = plan.start_shard(shard.records, shard.texts, on_tokens=on_tokens)
        self._done = before + shard_tokens  # repeated texts ran once, and windows overlap
        writers.submit(vectors.nbytes, lambda: self._write(shard, vectors))

    def _write(self, shard: _Shard, pending: PendingShard) -> dict[str, int]:
        """Build the files of a shard and make them durable; returns its counts."""
        vectors = pending.result()
        self._clock.add("encode", vectors.seconds)
        with self._clock("write"):
            storage = self._vectors.storage
            tokenizer = self._plan.encoder.tokenizer
            ledger = ledger_of(shard.texts, tokenizer, limit=self._vectors.max_length)
            ledger |= {"sequences_encoded": vectors.encoded, "batches_split": vectors.splits}
            first, last = _ends(shard.records)
            files: dict[str, pa.Buffer] = {}
            for folder, scalars, stored in self._tables(shard, vectors):  # the sentences come last
                footer = Footer(
                    fingerprint=self._job.fingerprint, shard=shard.number, first_row=first,
                    last_row=last, rows=len(scalars["row"]), ledger=ledger,
                    companions={
                        name: hashlib.sha256(memoryview(data)).hexdigest()
                        for name, data in files.items()
                    } if folder == "sentences" else {},
                    job=self._job.as_dict(),
                )  # fmt: skip
                files[folder] = shard_bytes(scalars, stored, footer=footer, storage=storage)
            self._folder.commit(shard.number, footer, files.pop("sentences"), files)
        return ledger

    def _tables(self, shard: _Shard, vectors: ShardVectors) -> Iterator[_Table]:
        """Name, scalar columns and stored vectors of the tables of a shard, sentences last."""
        settings, records, texts = self._vectors, shard.records, shard.texts
        if settings.words is not None:
            sources = [[r.text] if r.text_pair is None else [r.text, r.text_pair] for r in records]
            words = word_vectors(texts, sources, vectors.tokens, settings.words)
            yield self._layer_table("words", words, records)
        if settings.tokens:
            tokens = token_vectors(texts, vectors.tokens, self._plan.encoder.tokenizer)
            yield self._layer_table("tokens", tokens, records)
        columns = sentence_columns(
            records, texts, self._plan.settings, self._plan.folds_of(records)
        )
        rows = columns["row"].to_numpy()
        views = {
            name: settings.as_stored(vectors.views.pop(name), name=name, rows=rows)
            for name in list(vectors.views)
        }
        yield "sentences", columns, views

    def _layer_table(
        self, name: str, found: WordVectors | TokenVectors, records: Sequence[Record]
    ) -> _Table:
        columns = layer_columns(found, records, self._plan.settings)
        rows, storage = columns["row"].to_numpy(), self._vectors.storage
        return name, columns, {
            f"layer_{layer}": cast_for_storage(
                values, storage, name=f"{name} layer_{layer}", rows=rows
            )
            for layer, values in found.vectors.items()
        }  # fmt: skip

    def _check_rows(self, footer: Footer, records: list[Record]) -> None:
        ends = _ends(records)
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
        if spelled := ledger.get("records_spelling_special_tokens"):
            logger.warning(
                f"{spelled} texts spell out special tokens such as [SEP], which act as such"
            )

    def _log(self, event: str, seconds: float) -> None:
        import torch

        entry = {
            "event": event,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": round(seconds, 3),
            "tokens_encoded": self.fresh,
            "shards_found": self.resumed,
            "stages": {stage.name: round(stage.seconds, 3) for stage in self.stages},
            # what runs may differ in without another result
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
        }
        with fsio.storage_errors(self._folder.layout.log), self._folder.layout.log.open("a") as log:
            log.write(json.dumps(entry) + "\n")


def _ends(records: Sequence[Record]) -> tuple[int, int]:
    """Row numbers of the first and the last record."""
    return (records[0].row, records[-1].row) if records else (-1, -1)


def _fraction_read(reader: CorpusReader) -> float:
    """Fraction of the records to be accepted that has been read, as well as can be known."""
    fraction = reader.fraction
    plan, counts = reader.plan, reader.counts
    if plan.limit:
        fraction = max(fraction, min(counts.records / plan.limit, 1.0))
    if plan.sample:
        fraction = max(fraction, min(counts.accepted / plan.sample, 1.0))
    return fraction
