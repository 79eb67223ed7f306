"""Corpus file → dataset: plan, shards, commit; resumes by itself.

The whole input is read and parsed on every run, also on one that resumes: that is cheap beside
the encoder, it lets records be counted exactly, and nothing but the shards themselves has to say
where an earlier run stopped. Reading and tokenizing run ahead of the encoder, and writing behind
it, in threads of their own; a shard is made by one thread at a time.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from embedkit import fsio
from embedkit._version import __version__
from embedkit.corpus import (
    CorpusPlan,
    CorpusReader,
    InputFile,
    Record,
    Reject,
    hash_inputs,
    plan_corpus,
)
from embedkit.dataset.columns import ledger_of, sentence_columns, token_columns, word_table
from embedkit.dataset.jobs import Job, JobFolder, already_complete, open_job, recorded_precision
from embedkit.dataset.schema import RESERVED, STORAGE, Footer, cast_for_storage, shard_bytes
from embedkit.dataset.store import Manifest, read_manifest
from embedkit.dataset.workers import Clock, StageTime, Writers, ahead
from embedkit.encoding.checkpoint import DEFAULT_MODEL
from embedkit.encoding.encoder import Encoder, PendingShard, ShardVectors, l2_normalize
from embedkit.encoding.pooling import SUBTOKENS
from embedkit.encoding.tokenization import TokenizedText, TokenizerSettings
from embedkit.encoding.views import LayerSpec, Pooling, View, parse_layers, parse_poolings, views_of
from embedkit.errors import CorpusError, UsageError, check_counts, did_you_mean

__all__ = ["ExtractPlan", "ExtractResult", "Progress", "extract", "plan_extract", "run_plan"]

FORMAT_VERSION = 1
"""Raised when the files of a dataset change their meaning."""

_SHARD_BYTES = 64 << 20
_MAX_SHARD_ROWS = 16_384
_TYPICAL_TOKENS = 32
_BYTES_WAITING = 192 << 20


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is, told after every batch.

    Attributes:
        tokens_done: tokens of finished batches and shards.
        tokens_total: expected tokens of the whole corpus; exact once it is read to its end.
        tokens_fresh: tokens that this run encoded itself; the base of an honest rate.
        shard: number of the shard in work.
    """

    tokens_done: int
    tokens_total: int
    tokens_fresh: int
    shard: int


@dataclass(frozen=True, slots=True)
class ExtractPlan:
    """A job settled in all its details, with the model loaded; nothing is written yet.

    Attributes:
        corpus: what is read.
        encoder: what encodes it.
        out: the folder to be made.
        views: sentence vectors.
        token_layers: layers of word and token vectors; empty if neither is asked for.
        words: how sub-tokens become words, or ``None``.
        tokens: whether token vectors are written.
        tokenizer: lengths, windows and prefix.
        special_tokens: whether ``mean`` and ``max`` count special tokens.
        normalize: whether sentence vectors are scaled to length 1.
        storage: see :data:`~embedkit.dataset.schema.STORAGE`.
        shard_rows: records per shard.
        store_text: whether the texts are written too.
    """

    corpus: CorpusPlan
    encoder: Encoder
    out: Path
    views: tuple[View, ...]
    token_layers: tuple[LayerSpec, ...]
    words: str | None
    tokens: bool
    tokenizer: TokenizerSettings
    special_tokens: bool
    normalize: bool
    storage: str
    shard_rows: int
    store_text: bool

    @property
    def needs_offsets(self) -> bool:
        """Whether character offsets and words are wanted."""
        return self.tokens or self.words is not None

    def job(self) -> Job:
        """The identity of the dataset, for its fingerprint."""
        return Job(settings=_settings(self), environment=_environment(self.encoder))


@dataclass(frozen=True, slots=True)
class ExtractResult:
    """What a job made.

    Attributes:
        out: the dataset.
        manifest: how it was made, and its totals.
        seconds: wall time of this run.
        tokens_fresh: tokens that this run encoded.
        resumed_shards: shards that an earlier run had finished.
        was_complete: the dataset was already there, and nothing was done.
        stages: how busy reading, tokenizing, encoding and writing were.
    """

    out: Path
    manifest: Manifest
    seconds: float
    tokens_fresh: int
    resumed_shards: int
    was_complete: bool = False
    stages: tuple[StageTime, ...] = ()


def extract(
    corpus: str | Path | Sequence[str | Path],
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    allow_env_change: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
    notify: Callable[[str], None] = lambda _: None,
    **settings: Any,
) -> ExtractResult:
    """Turn a corpus into a dataset of vectors; resumes an unfinished one by itself.

    Args:
        corpus: a file, or several that are read one after the other; ``-`` is standard input.
        out: folder to make; by default ``corpus.tsv`` → ``corpus.vectors`` in the current folder.
        overwrite: replace an existing dataset, or start an unfinished one over.
        allow_env_change: resume although versions, device or threads differ.
        progress: called after every batch.
        notify: called with sentences for the user.
        settings: the options of :func:`plan_extract`.

    Raises:
        EmbedkitError: see :mod:`embedkit.errors`; nothing that was finished is lost.
    """
    with plan_extract(corpus, out=out, notify=notify, **settings) as plan:
        return run_plan(
            plan,
            overwrite=overwrite,
            allow_env_change=allow_env_change,
            progress=progress,
            notify=notify,
        )


@contextmanager
def plan_extract(
    corpus: str | Path | Sequence[str | Path],
    *,
    out: str | Path | None = None,
    model: str = DEFAULT_MODEL,
    revision: str | None = None,
    offline: bool = False,
    text: str | None = None,
    text_pair: str | None = None,
    id: str | None = None,
    label: str | None = None,
    keep: str | Sequence[str] = (),
    format: str = "auto",
    encoding: str = "utf-8",
    quoting: str = "auto",
    header: bool = True,
    layers: str | int = "-1",
    poolings: str | Sequence[str] = ("mean",),
    words: str | None = None,
    tokens: bool = False,
    max_length: int | None = None,
    on_long: str = "truncate",
    stride: int | None = None,
    special_tokens: bool = True,
    unicode: str = "none",
    normalize: bool = False,
    prefix: str = "",
    precision: str | None = None,
    storage: str = "float32",
    device: str = "auto",
    min_chars: int = 0,
    sample: int | None = None,
    seed: int = 0,
    limit: int | None = None,
    batch_tokens: int | None = None,
    shard_rows: int | None = None,
    store_text: bool = True,
    notify: Callable[[str], None] = lambda _: None,
) -> Iterator[ExtractPlan]:
    """Settle a job: check the corpus, load the model, resolve layers; write nothing.

    A context manager, because standard input is kept in a temporary file while the plan lives.

    Args:
        corpus: a file or several; ``-`` is standard input.
        out: folder to make.
        model: hub id or folder of the checkpoint.
        revision: branch, tag or commit of a hub checkpoint.
        offline: never ask the hub.
        text: column of the text; this and the next three are guessed by name if not given.
        text_pair: column of the second text of a pair.
        id: column of the id.
        label: column of the label.
        keep: further columns to carry along; a list, or a string with commas.
        format: ``auto``, ``tsv``, ``csv``, ``lines``, ``jsonl`` or ``parquet``.
        encoding: of text files.
        quoting: ``auto`` (CSV files follow RFC 4180, TSV files have none), ``none`` or ``csv``.
        header: whether the first line names the columns.
        layers: see :func:`~embedkit.encoding.views.parse_layers`.
        poolings: of ``cls``, ``mean``, ``max``, ``pooler``; a list, or a string with commas.
        words: write word vectors: ``first``, ``last``, ``first_last`` or ``mean`` of sub-tokens.
        tokens: write token vectors.
        max_length: tokens per sequence, special ones counted.
        on_long: ``truncate``, ``window`` or ``error``.
        stride: tokens that neighbouring windows share; by default a quarter of ``max_length``.
        special_tokens: whether ``mean`` and ``max`` count [CLS] and [SEP].
        unicode: normal form of the texts: ``none``, ``nfc`` or ``nfkc``.
        normalize: scale sentence vectors to length 1 (L2).
        prefix: put before every text, such as ``"query: "``.
        precision: ``auto``, ``fp32``, ``bf16`` or ``fp16``.
        storage: ``float32``, ``float16`` or ``compact``.
        device: ``auto``, ``cpu`` or ``cuda:0``.
        min_chars: leave shorter texts out.
        sample: only so many records, drawn at random.
        seed: seed of the draw.
        limit: only the first so many records.
        batch_tokens: tokens per batch, padding included.
        shard_rows: records per shard.
        store_text: write the texts too.
        notify: called with sentences for the user.

    Raises:
        UsageError: an option, column, layer or path cannot be used; nothing was written.
    """
    _check_choices(on_long=on_long, unicode=unicode, storage=storage, quoting=quoting, words=words)
    check_counts(shard_rows=shard_rows, batch_tokens=batch_tokens, stride=stride,
                 max_length=max_length)  # fmt: skip
    names = [corpus] if isinstance(corpus, str | Path) else list(corpus)
    target = _out_folder(out, names)
    pooling_kinds = parse_poolings(_names_of(poolings))
    with _input_files(names) as files:
        plan = plan_corpus(
            files, text=text, text_pair=text_pair, id=id, label=label,
            keep=_names_of(keep), format=format,
            encoding=encoding, quoting=quoting, header=header, unicode=unicode,
            min_chars=min_chars, limit=limit, sample=sample, seed=seed,
        )  # fmt: skip
        _check_kept(plan.keep, RESERVED)
        for notice in plan.notices:
            notify(notice)
        if precision == "auto":
            precision = recorded_precision(target) or precision
        encoder = Encoder.load(
            model, revision=revision, device=device, precision=precision, offline=offline,
            max_length=max_length, batch_tokens=batch_tokens, notify=notify,
        )  # fmt: skip
        specs = parse_layers(str(layers), n_layers=encoder.n_layers)
        if Pooling.POOLER in pooling_kinds:
            encoder.require_pooler()
        views = views_of(specs, pooling_kinds, n_layers=encoder.n_layers)
        _check_kept(plan.keep, {view.name for view in views})
        token_layers = specs if tokens or words else ()
        length = encoder.max_length
        shared = length // 4 if stride is None else stride
        tokenizer = TokenizerSettings(length, on_long, shared if on_long == "window" else 0, prefix)
        encoder.tokenizer.room(tokenizer, paired=plan.text_pair is not None)
        yield ExtractPlan(
            corpus=hash_inputs(plan),
            encoder=encoder,
            out=target,
            views=views,
            token_layers=token_layers,
            words=words,
            tokens=tokens,
            tokenizer=tokenizer,
            special_tokens=special_tokens,
            normalize=normalize,
            storage=storage,
            shard_rows=shard_rows
            or _shard_rows(views, token_layers, encoder.width, tokens, words, storage),
            store_text=store_text,
        )


def run_plan(
    plan: ExtractPlan,
    *,
    overwrite: bool = False,
    allow_env_change: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
    notify: Callable[[str], None] = lambda _: None,
) -> ExtractResult:
    """Do what a plan says. Arguments and errors as for :func:`extract`."""
    started = time.monotonic()
    job = plan.job()
    if already_complete(plan.out, job, overwrite=overwrite):
        return ExtractResult(plan.out, read_manifest(plan.out), 0.0, 0, 0, was_complete=True)
    with open_job(plan.out, job, overwrite=overwrite, allow_env_change=allow_env_change) as folder:
        run = _Run(plan, job, folder, progress, notify)
        manifest = run.all_shards(started)
    seconds = time.monotonic() - started
    return ExtractResult(plan.out, manifest, seconds, run.fresh, run.resumed, stages=run.stages)


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


class _Run:
    """The shards of one job, from records to files."""

    def __init__(
        self,
        plan: ExtractPlan,
        job: Job,
        folder: JobFolder,
        progress: Callable[[Progress], None],
        notify: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._job = job
        self._folder = folder
        self._progress = progress
        self._notify = notify
        self._reader = CorpusReader(plan.corpus)
        self._clock = Clock()
        self._ledger: Counter[str] = Counter()
        self._done = self._seen = self._expected = 0
        self.fresh = 0
        self.resumed = 0
        self.stages: tuple[StageTime, ...] = ()

    def all_shards(self, started: float) -> Manifest:
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
        self._tell_about_texts()
        return self._folder.finish(
            n_shards=number + 1, totals=self._totals(), names=_names(self._plan)
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
                    texts = plan.encoder.tokenizer.encode(
                        [r.text for r in records],
                        [str(r.text_pair) for r in records] if plan.corpus.text_pair else None,
                        settings=plan.tokenizer,
                        offsets=plan.needs_offsets,
                    )
            shard = _Shard(number, records, texts, done)
            self._seen += shard.tokens
            share = share_read(self._reader)
            self._expected = int(self._seen / share) if 0 < share < 1 else self._seen
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

        vectors = plan.encoder.start_shard(
            shard.texts,
            views=plan.views,
            token_layers=plan.token_layers,
            special_tokens=plan.special_tokens,
            on_tokens=on_tokens,
        )
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
        ledger = ledger_of(texts, plan.encoder.tokenizer, limit=plan.tokenizer.max_length)
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
                job={"settings": self._job.settings, "environment": self._job.environment},
            )

        others = self._other_tables(records, texts, vectors, footer)
        companions = {name: _sha256(data) for name, data in others.items()}
        views = {}
        for name in list(vectors.views):
            values = vectors.views.pop(name)
            if plan.normalize:
                values = l2_normalize(values)
            views[name] = cast_for_storage(values, plan.storage, name=name, rows=rows)
        scalars = sentence_columns(
            records, texts, store_text=plan.store_text, paired=plan.corpus.text_pair is not None,
            labelled=plan.corpus.label is not None, kept=plan.corpus.keep,
        )  # fmt: skip
        own = footer(len(rows), companions)
        sentences = shard_bytes(scalars, views, footer=own, storage=plan.storage)
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
        if plan.words is not None:
            tables["words"] = word_table(
                records, texts, vectors.tokens, subtokens=plan.words, paired=paired
            )
            if not plan.store_text:
                del tables["words"][0]["text"]
        if plan.tokens:
            columns = token_columns(records, texts, plan.encoder.tokenizer, paired=paired)
            if not plan.store_text:
                del columns["token"], columns["token_id"]
            tables["tokens"] = (columns, dict(vectors.tokens))
        result = {}
        for folder, (scalars, layers) in tables.items():
            rows = scalars["row"].to_numpy()
            stored = {
                f"layer_{name}": cast_for_storage(
                    values, plan.storage, name=f"{folder} layer_{name}", rows=rows
                )
                for name, values in layers.items()
            }
            own = footer(len(rows), {})
            result[folder] = shard_bytes(scalars, stored, footer=own, storage=plan.storage)
        return result

    def _check_rows(self, footer: Footer, records: list[Record]) -> None:
        ends = (records[0].row, records[-1].row) if records else (-1, -1)
        if (footer.first_row, footer.last_row, footer.rows) != (*ends, len(records)):
            raise CorpusError(
                f"shard {footer.shard} holds rows {footer.first_row} to {footer.last_row}, but "
                f"the corpus now gives {ends[0]} to {ends[1]}. Start over with --overwrite."
            )

    def _report(self, number: int) -> None:
        total = max(self._expected, self._done)
        self._progress(Progress(self._done, total, self.fresh, number))

    def _totals(self) -> dict[str, Any]:
        counts = self._reader.counts
        return {
            "records": counts.records,
            "accepted": counts.accepted,
            "rejected": counts.n_rejected,
            "rejected_by_reason": dict(sorted(counts.rejected.items())),
            "left_out": sum(counts.left_out.values()),
            "left_out_by_reason": dict(sorted(counts.left_out.items())),
            "blank_lines": counts.blank_lines,
            "not_nfc": counts.not_nfc,
            "fields_with_quotes": counts.fields_with_quotes,
            "fields_csv_quoted": counts.fields_csv_quoted,
            "ledger": dict(self._ledger),
        }

    def _tell_about_texts(self) -> None:
        counts, ledger = self._reader.counts, self._ledger
        if counts.accepted == 0:
            self._notify("no record was accepted: the dataset has no rows")
        if quotes := counts.quote_notice:
            self._notify(quotes)
        kept = ledger.get("tokens_kept", 0)
        unknown = ledger.get("tokens_unknown", 0)
        if kept and unknown / kept > 0.2:
            self._notify(
                f"{unknown / kept:.0%} of the tokens are unknown to this model's vocabulary; it "
                "may be the wrong model for the language"
            )
        if spelled := ledger.get("records_spelling_special_tokens"):
            self._notify(
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
        }
        with fsio.storage_errors(self._folder.layout.log), self._folder.layout.log.open("a") as log:
            log.write(json.dumps(entry) + "\n")


def share_read(reader: CorpusReader) -> float:
    """Share of the records to be accepted that has been read, 0 to 1, as well as can be known."""
    share = reader.fraction
    plan, counts = reader.plan, reader.counts
    if plan.limit:
        share = max(share, min(counts.records / plan.limit, 1.0))
    if plan.sample:
        share = max(share, min(counts.accepted / plan.sample, 1.0))
    return share


def _shard_rows(
    views: Sequence[View],
    token_layers: Sequence[LayerSpec],
    width: int,
    tokens: bool,
    words: str | None,
    storage: str,
) -> int:
    """A power of two that makes shards of about 64 MB, by the settings alone."""
    floats = sum(view.layer.width(width) for view in views)
    per_token = sum(spec.width(width) for spec in token_layers)
    floats += per_token * _TYPICAL_TOKENS * (int(tokens) + int(words is not None))
    size = floats * (2 if storage == "float16" else 4)
    rows = max(_SHARD_BYTES // max(size, 1), 1)
    return int(min(max(1 << (rows.bit_length() - 1), 64), _MAX_SHARD_ROWS))


def _settings(plan: ExtractPlan) -> dict[str, Any]:
    corpus, encoder = plan.corpus, plan.encoder
    dialect = corpus.dialect
    return {
        "format_version": FORMAT_VERSION,
        "input": {
            "files": [{"sha256": f.sha256, "bytes": f.size} for f in corpus.files],
            "format": dialect.format,
            "encoding": dialect.encoding,
            "delimiter": dialect.delimiter,
            "quoting": dialect.quoting,
            "header": dialect.header,
            "text": corpus.text,
            "text_pair": corpus.text_pair,
            "id": corpus.id,
            "label": corpus.label,
            "keep": list(corpus.keep),
            "unicode": corpus.unicode,
            "min_chars": corpus.min_chars,
            "limit": corpus.limit,
            "sample": corpus.sample,
            "seed": corpus.seed if corpus.sample is not None else None,
        },
        "model": {
            "type": encoder.checkpoint.model_type,
            "n_layers": encoder.n_layers,
            "width": encoder.width,
            "sha256": dict(sorted(encoder.checkpoint.sha256.items())),
        },
        "vectors": {
            "views": {view.name: view.layer.width(encoder.width) for view in plan.views},
            "token_layers": {s.name: s.width(encoder.width) for s in plan.token_layers},
            "words": plan.words,
            "tokens": plan.tokens,
            "special_tokens": plan.special_tokens,
            "normalize": plan.normalize,
            "max_length": plan.tokenizer.max_length,
            "on_long": plan.tokenizer.on_long,
            "stride": plan.tokenizer.stride,
            "prefix": plan.tokenizer.prefix,
            "precision": encoder.precision,
            "batch_tokens": encoder.batch_tokens,
        },
        "storage": {
            "profile": plan.storage,
            "shard_rows": plan.shard_rows,
            "text": plan.store_text,
        },
    }


def _environment(encoder: Encoder) -> dict[str, Any]:
    import tokenizers
    import torch
    import transformers

    device = encoder.model.device
    cuda = device.type == "cuda"
    return {
        "embedkit": __version__,
        "numpy": np.__version__,
        "pyarrow": pa.__version__,
        "tokenizers": tokenizers.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "forward": encoder.model.name,
        "device": torch.cuda.get_device_name(device) if cuda else device.type,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def _names(plan: ExtractPlan) -> dict[str, Any]:
    checkpoint = plan.encoder.checkpoint
    return {
        "inputs": [file.name for file in plan.corpus.files],
        "model": checkpoint.name,
        "model_source": checkpoint.source,
        "revision": checkpoint.revision,
    }


@contextmanager
def _input_files(names: Sequence[str | Path]) -> Iterator[list[InputFile]]:
    """Describe the inputs; standard input is first copied to a temporary file."""
    if [str(name) for name in names].count("-") > 1:
        raise UsageError("standard input (-) can be read once only; it was given twice.")
    with tempfile.TemporaryDirectory(prefix="embedkit-") as temporary:
        files = []
        for name in names:
            if str(name) == "-":
                spool = Path(temporary) / "stdin"
                with fsio.storage_errors(spool), spool.open("wb") as target:
                    shutil.copyfileobj(sys.stdin.buffer, target)
                files.append(replace(InputFile.of(spool), name="-"))
            else:
                files.append(InputFile.of(Path(name)))
        yield files


def _out_folder(out: str | Path | None, names: Sequence[str | Path]) -> Path:
    """The folder to make: as given, else ``corpus.tsv`` → ``corpus.vectors``."""
    folder = _derived_folder(names) if out is None else Path(out)
    if folder.name in ("", ".."):
        raise UsageError(f"--out {out}: expected the name of a folder to make, as in vectors.")
    try:
        str(folder).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"--out {folder}: readers of Parquet open only names in UTF-8. Give another with --out."
        ) from error
    return folder


def _derived_folder(names: Sequence[str | Path]) -> Path:
    if not names:
        raise UsageError("no input file was given. Example: embedkit extract corpus.tsv")
    if str(names[0]) == "-":
        raise UsageError("standard input has no name to derive the output from. Give --out FOLDER.")
    name = Path(names[0]).name
    for suffix in (".gz", ".gzip", ".zst", ".zstd", ".bz2"):
        name = name.removesuffix(suffix)
    return Path(Path(name).stem + ".vectors")


def _names_of(given: str | Sequence[str]) -> Sequence[str]:
    return given.split(",") if isinstance(given, str) else given


def _check_kept(keep: Sequence[str], taken: Collection[str]) -> None:
    for name in keep:
        if name in taken:
            raise UsageError(
                f"--keep {name}: embedkit writes a column of this name itself. "
                "Rename the column in the corpus."
            )


def _check_choices(**given: str | None) -> None:
    choices: dict[str, Sequence[str]] = {
        "on_long": ("truncate", "window", "error"),
        "unicode": ("none", "nfc", "nfkc"),
        "storage": STORAGE,
        "quoting": ("auto", "none", "csv"),
        "words": SUBTOKENS,
    }
    for name, value in given.items():
        if value is not None and value not in choices[name]:
            raise UsageError(
                f"--{name.replace('_', '-')} {value}: expected {', '.join(choices[name])}."
                f"{did_you_mean(value, choices[name])}"
            )


def _sha256(data: pa.Buffer) -> str:
    import hashlib

    return hashlib.sha256(memoryview(data)).hexdigest()
