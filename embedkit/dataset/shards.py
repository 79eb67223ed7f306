"""The making of shards: records are read, tokenized, encoded and written.

    ranges ─► read, tokenize ─► encode ─► build, write ─► receipt, one for each shard
              one shard ahead   device    threads behind, as many bytes as _BYTES_WAITING

In one process reading and tokenizing run ahead of the encoder, and writing behind it, in threads of
their own with bounded queues. Other processes and machines call :func:`run_shard`.

What is notable:

- A shard depends on its range of the corpus and on the settings alone: the bytes are the same
  whatever makes it, and in what order. So any number of processes share the ranges.
- For a GPU with many shards to make, processes of their own read: each kernel is launched by the
  interpreter that a thread which reads would hold.
- Texts that a dataset of the same model and settings has are not encoded again: their vectors are
  joined with the new ones in the order of the records, before the files are built.
- A receipt is written behind the files of its shard. What has none is made again.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedkit.corpus.plan import CorpusPlan
from embedkit.corpus.records import Record
from embedkit.corpus.tables import ShardRange
from embedkit.dataset.fold_models import SeenRecords, keys_of, load_encoder
from embedkit.dataset.format import Receipt
from embedkit.dataset.job import JobFolder, ShardReader, check_environment
from embedkit.dataset.parquet import cast_for_storage, kept_neighbours, numbers, shard_bytes
from embedkit.dataset.reuse import Lengths, OpenSource, ReusedTexts, Source, reused_texts
from embedkit.dataset.settings import ExtractOptions, Job, JobSettings, ModelRecord, VectorIdentity
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.shard import OnTokens, PendingShard
from embedkit.encoding.tables import TokenVectors, WordVectors, token_vectors, word_vectors
from embedkit.encoding.tokenizer import TextTokenizer
from embedkit.encoding.views import LayerSpec, ShardVectors, View
from embedkit.encoding.windows import TokenizedTexts, ends_of
from embedkit.errors import EncodeError, MismatchError, Option
from embedkit.machine import __version__, usable_cores
from embedkit.scale import ATTEMPTS, one_ahead, run_locally
from embedkit.types import Float32, Int64, Progress, ProgressCallback

logger = logging.getLogger(__name__)

_BYTES_WAITING = {"cpu": 192 << 20, "cuda": 2 << 30}
"""Bytes of vectors that may wait to be written. A GPU would idle while one shard with all layers,
256 MB, is written; on CPU writers and forward share the cores, and memory is what is scarce."""

_READERS = {"cpu": 0, "cuda": 4}
"""Most processes that read for one device; none: a thread of this process reads."""

_CORES_PER_READER = 4
_SHARDS_FOR_READERS = 128
"""Shards from which processes read. On a machine with an H200 and 16 cores they took 18 s to start,
in which one thread reads 600,000 short texts; after that the GPU's own thread was 1.7 times as fast
beside them as beside a thread that reads (``docs/gpu.md``)."""

_SPELLING = frozenset({"text", "token", "token_id"})
"""Columns that reveal the texts."""

_Table = tuple[str, dict[str, pa.Array], dict[str, NDArray[Any]]]


@dataclass(frozen=True, slots=True)
class ExtractPlan:
    """All decisions about an extraction, with the model loaded; nothing is written yet.

    ``token_layers`` are the layers of word and token vectors; ``seen`` are the records of the run
    whose encoders are used, ``None`` for a checkpoint; ``load`` are the arguments by which other
    processes load the encoder, of which each has so many ``threads``.
    """

    corpus: CorpusPlan
    encoder: Encoder
    out: Path
    views: tuple[View, ...]
    token_layers: tuple[LayerSpec, ...]
    job: Job
    options: ExtractOptions
    load: dict[str, Any]
    threads: int
    seen: SeenRecords | None = None
    any_environment: bool = False
    reuse: tuple[Source, ...] = ()
    address: str = ""  # in an object store, of which ``out`` is the local copy

    def of_worker(self, number: int) -> ExtractPlan:
        """The plan as a worker gets it: without the encoder, its own device, absolute paths."""
        devices, model = self.options.devices, Path(self.load["model"])
        load = self.load | {"device": devices[number % len(devices)]}
        # another process may work in another folder; a hub id leads nowhere here, and stays as it
        # is
        if model.exists():
            load["model"] = str(model.absolute())
        files = tuple(replace(file, path=file.path.absolute()) for file in self.corpus.files)
        return replace(
            self,
            corpus=replace(self.corpus, files=files),
            # each worker loads its own, on its own device
            encoder=cast("Encoder", None),
            out=self.out.absolute(),
            load=load,
        )

    @property
    def vectors(self) -> VectorIdentity:
        """Everything that shapes a vector."""
        return self.job.settings.vector_settings

    def tokenized(self, records: Sequence[Record], tokenizer: TextTokenizer) -> TokenizedTexts:
        """Tokenize records, with offsets where words or tokens are wanted."""
        vectors = self.vectors
        marked = [r.words.spans or () for r in records if r.words is not None]
        return tokenizer.encode(
            [r.text for r in records],
            [str(r.text_pair) for r in records] if self.corpus.text_pair else None,
            settings=vectors.tokenization,
            offsets=vectors.tokens or vectors.words is not None,
            words=marked if self.corpus.marks_words else None,
        )

    def folds_of(self, records: Sequence[Record]) -> Int64 | None:
        """Return the fold whose models encode each record; ``None`` for a checkpoint."""
        return None if self.seen is None else self.seen.folds_of(keys_of(records))

    def start_shard(
        self, records: Sequence[Record], texts: TokenizedTexts, on_tokens: OnTokens = lambda _: None
    ) -> PendingShard:
        """Run the tokenized texts of records through the model."""
        folds: dict[str, Any] = {} if self.seen is None else {"folds": self.folds_of(records)}
        return self.encoder.start_shard(
            texts,
            views=self.views,
            token_layers=self.token_layers,
            special_tokens=self.vectors.special_tokens,
            on_tokens=on_tokens,
            **folds,
        )


class Shard(NamedTuple):
    """The records of a shard; ``reused`` are texts that datasets have.

    The others have the numbers ``new`` in the shard, and are tokenized in ``texts``.
    """

    number: int
    records: list[Record]
    new: Int64
    texts: TokenizedTexts
    lengths: Lengths
    reused: tuple[ReusedTexts, ...]

    @property
    def new_records(self) -> list[Record]:
        """The records to be encoded."""
        return [self.records[i] for i in self.new]


class ShardTokenizer:
    """Reads the records of shards and tokenizes them; it needs no model."""

    def __init__(self, plan: ExtractPlan, tokenizer: TextTokenizer) -> None:
        self.plan, self._tokenizer, self._reader = plan, tokenizer, ShardReader(plan.corpus)
        self._sources = [OpenSource(source, plan.job.settings) for source in plan.reuse]

    def read(self, shard: ShardRange) -> Shard:
        """A shard with the texts tokenized that no dataset has, and the lengths of all."""
        plan, tokenizer, records = self.plan, self._tokenizer, self._reader.read(shard)
        new, reused = reused_texts(self._sources, records, plan.folds_of(records))

        def tokenized(places: Int64) -> TokenizedTexts:
            return plan.tokenized([records[i] for i in places], tokenizer)

        texts = tokenized(new)
        parts = [lengths_of(texts, tokenizer)]
        for part in reused:
            # tokenizing is cheap beside encoding, and needed only where the dataset does not tell
            # enough
            parts.append(part.lengths(parts[0]) or lengths_of(tokenized(part.texts), tokenizer))
        # every record is in one part, so that this is the inverse of their concatenation
        order = np.argsort(np.concatenate([new, *(part.texts for part in reused)]))
        lengths = {name: np.concatenate([p[name] for p in parts])[order] for name in parts[0]}
        return Shard(shard.number, records, new, texts, lengths, reused)


class ShardMaker:
    """Makes the shards of a job, from records to files; each step in a thread of its own."""

    def __init__(self, plan: ExtractPlan, folder: JobFolder) -> None:
        self.plan, self._folder, self._vectors = plan, folder, plan.vectors
        self.read = ShardTokenizer(plan, plan.encoder.tokenizer).read

    def start(self, shard: Shard, on_tokens: OnTokens = lambda _: None) -> PendingShard:
        """Encode the new texts of a shard."""
        return self.plan.start_shard(shard.new_records, shard.texts, on_tokens)

    def write(self, shard: Shard, pending: PendingShard) -> Receipt:
        """Build the files of a shard and make them durable."""
        vectors, job = pending.result(), self._folder.job
        storage = self._vectors.storage
        ledger = ledger_of(shard.lengths, limit=self._vectors.max_length)
        # -1: the footer of a shard without rows
        rows = [record.row for record in shard.records] or [-1]
        # counted on the vectors as they would be stored without the rounding that is judged; before
        # the views are let go below
        if storage == "int8":
            stored_as, views = self._vectors.as_stored, vectors.views.items()
            ledger |= kept_neighbours(stored_as(v, name=name, rows=rows) for name, v in views)
        facts = {"fingerprint": job.settings.fingerprint, "shard": shard.number, "ledger": ledger}
        facts |= {"first_row": rows[0], "last_row": rows[-1], "job": asdict(job)}
        files: dict[str, pa.Buffer] = {}
        # one table after the other, so that memory holds the arrays of one, besides finished files
        for folder, scalars, stored in self._tables(shard, vectors):  # the sentences come last
            facts |= {"rows": len(scalars["row"])}
            files[folder] = shard_bytes(scalars, stored, facts=facts, storage=storage)
        return self._folder.commit(shard.number, files)

    def _tables(self, shard: Shard, vectors: ShardVectors) -> Iterator[_Table]:
        """Name, scalar columns and stored vectors of the tables of a shard, sentences last."""
        settings, records, texts = self._vectors, shard.new_records, shard.texts
        if settings.words is not None:
            sources = [[r.text] if r.text_pair is None else [r.text, r.text_pair] for r in records]
            words = word_vectors(texts, sources, vectors.tokens, settings.words)
            yield self._layer_table("words", words, shard)
        if settings.tokens:
            tokens = token_vectors(texts, vectors.tokens, self.plan.encoder.tokenizer)
            yield self._layer_table("tokens", tokens, shard)
        records = shard.records
        columns = sentence_columns(
            records, shard.lengths, self._folder.job.settings, self.plan.folds_of(records)
        )
        rows = numbers(columns["row"])
        views = {
            # popped: a view is let go once it is rounded, or a shard with all layers would be in
            # memory twice
            name: settings.as_stored(vectors.views.pop(name), name=name, rows=rows[shard.new])
            for name in list(vectors.views)
        }
        # vectors come as new ones, then those of each dataset
        order = np.argsort(np.concatenate([shard.new, *(part.texts for part in shard.reused)]))
        yield "sentences", columns, _joined(views, [part.views() for part in shard.reused], order)

    def _layer_table(self, name: str, table: WordVectors | TokenVectors, shard: Shard) -> _Table:
        """A table of words or tokens, record by record, of new texts and those of datasets."""
        settings, storage = self._folder.job.settings, self._vectors.storage
        columns = layer_columns(table, settings)
        reused = [part.rows(name, list(columns)) for part in shard.reused]
        # the record of each row: those of new texts first, then dataset by dataset
        owner = np.concatenate([shard.new[table.row], *(texts for texts, _, _ in reused)])
        # stable: the words of one record keep their order
        order = np.argsort(owner, kind="stable")
        rows = np.array([record.row for record in shard.records], np.int64)
        layers = {
            f"layer_{layer}": cast_for_storage(
                values, storage, name=f"{name} layer_{layer}", rows=rows[shard.new[table.row]]
            )
            for layer, values in table.vectors.items()
        }
        if reused:
            first = pa.table(columns)
            whole = pa.concat_tables([first, *(cells.cast(first.schema) for _, cells, _ in reused)])
            columns = {n: whole[n].take(order).combine_chunks() for n in columns}
            layers = _joined(layers, [vectors for _, _, vectors in reused], order)
        # from numbers in the shard to numbers in the corpus
        columns = {"row": pa.array(rows[owner[order]], pa.int64())} | columns
        if name == "words" and settings.input.word_label is not None:
            labels = [() if r.words is None else r.words.labels or () for r in shard.records]
            places = zip(owner[order].tolist(), columns["word"].to_pylist(), strict=True)
            columns["label"] = pa.array(
                [labels[record][word] for record, word in places], pa.string()
            )
        return name, columns, layers


def _joined(
    new: dict[str, NDArray[Any]], reused: Sequence[Mapping[str, Float32]], order: Int64
) -> dict[str, NDArray[Any]]:
    """Stored vectors of new texts and of those of datasets, in the order of their rows."""
    if not reused:
        return new
    joined = {}
    for name, vectors in new.items():
        parts = [vectors, *(views[name] for views in reused)]
        joined[name] = np.concatenate(parts, dtype=vectors.dtype)[order]
    return joined


class Meter:
    """Progress in tokens; their total is extrapolated from the shards that were read."""

    def __init__(
        self, accepted: int, finished: Sequence[Receipt], progress: ProgressCallback
    ) -> None:
        self._accepted, self._progress = accepted, progress
        self._stage = "tokenizing the first shard"
        self._done = self._seen = sum(r.ledger.get("tokens_kept", 0) for r in finished)
        self._rows = sum(r.ledger.get("records", 0) for r in finished)
        self.fresh = 0
        self._report()

    def start(self, number: int, tokens: int, records: int) -> None:
        """Report that a shard begins."""
        self._done = self._seen  # repeated texts ran once, and windows overlap
        self._seen += tokens
        self._rows += records
        self._stage = f"shard {number + 1}"
        self._report()

    def tokens(self, count: int) -> None:
        """Report that so many tokens were encoded."""
        # windows overlap, so that more tokens may be encoded than texts have
        self._done = min(self._done + count, self._seen)
        self.fresh += count
        self._report()

    def _report(self) -> None:
        # records are known since the plan, tokens only of the shards that were begun
        total = self._seen * self._accepted // self._rows if self._rows else None
        self._progress(Progress(self._stage, self._done, total, "tokens"))


def run_shards(maker: ShardMaker, todo: Sequence[ShardRange], meter: Meter) -> list[Receipt]:
    """Make shards in this process, one after the other; an error waits for those begun.

    More than one shard waits to be written only within :data:`_BYTES_WAITING`.
    """
    limit = _BYTES_WAITING[maker.plan.encoder.device.type]
    receipts: list[Receipt] = []
    waiting = deque[tuple[int, Future[Receipt]]]()
    # two at least: one may wait for the disk while the other compresses
    threads = min(4, max(2, (os.cpu_count() or 2) // 2))
    with (
        ThreadPoolExecutor(threads, thread_name_prefix="embedkit-write") as writers,
        # closed also after an error: it may have begun processes that read
        closing(_read_ahead(maker, todo)) as shards,
    ):
        for shard in shards:
            meter.start(shard.number, int(shard.lengths["n_kept"].sum()), len(shard.records))
            # on a GPU this queues the batches and returns; the writing thread waits for them
            pending = maker.start(shard, meter.tokens)
            # the oldest shard is waited for, and its error raised, before another one takes memory;
            # one that is larger than the limit alone still goes through
            while waiting and (
                waiting[0][1].done() or sum(size for size, _ in waiting) + pending.nbytes > limit
            ):
                receipts.append(waiting.popleft()[1].result())
            waiting.append((pending.nbytes, writers.submit(maker.write, shard, pending)))
    return receipts + [future.result() for _, future in waiting]


def _read_ahead(maker: ShardMaker, todo: Sequence[ShardRange]) -> Generator[Shard]:
    """Yield shards, read and tokenized while the one before is encoded.

    On CPU a thread suffices. A GPU takes short texts ten times as fast as one interpreter reads
    them, and each of its kernels is launched by the interpreter that a reading thread holds: for a
    GPU processes of their own read, if there is more to do than they take to start. Their shards
    come in the order in which they are done, which changes no byte of any.
    """
    plan = maker.plan
    readers = min(_READERS[plan.encoder.device.type], usable_cores() // _CORES_PER_READER)
    # reuse: open datasets are shared with the thread, and are not sent to processes
    if not readers or len(todo) < _SHARDS_FOR_READERS or plan.reuse:
        yield from one_ahead(maker.read, todo)
        return
    # without the model, so that starting a reader needs neither its memory nor the device
    shared = [ShardTokenizer(plan.of_worker(0), plan.encoder.tokenizer)] * readers
    read = ShardTokenizer.read
    for shard_range, shard in run_locally(read, shared, todo, threads=_CORES_PER_READER):
        if shard is None:
            raise EncodeError(
                f"the process that reads shard {shard_range.number} was killed {ATTEMPTS} times; "
                f"memory may not suffice. Free some, or give {Option('workers', 2)} or more, which "
                "read alone."
            )
        yield shard


_MAKERS: dict[tuple[Any, ...], ShardMaker] = {}
"""The maker of the job that this worker process has last worked for."""


def run_shard(plan: ExtractPlan, shard_range: ShardRange) -> tuple[Receipt, int]:
    """Make one shard of a job, in any process that sees the corpus and the folder of the job.

    Return its receipt, and how many tokens were encoded: others may be reused.
    """
    key = plan.out, plan.corpus, plan.reuse, plan.any_environment, plan.job.settings.fingerprint
    if key not in _MAKERS:
        # one model at a time: a second one may not fit into memory
        _MAKERS.clear()
        encoder = load_encoder(**plan.load)
        job = replace(plan.job, environment=environment_of(encoder))
        # the environment is looked at here again: on another machine it may be another one
        if not plan.any_environment:
            check_environment(plan.out, plan.job.environment, job.environment)
        if ModelRecord.of(encoder.checkpoint) != plan.job.settings.model:
            raise MismatchError(f"{plan.out}: the files of the model have changed. Start over.")
        _MAKERS[key] = ShardMaker(replace(plan, encoder=encoder), JobFolder(plan.out, job))
    maker = _MAKERS[key]
    shard, encoded = maker.read(shard_range), list[int]()
    return maker.write(shard, maker.start(shard, encoded.append)), sum(encoded)


def environment_of(encoder: Encoder) -> dict[str, Any]:
    """Versions, device, and a hash of the arithmetic."""
    import tokenizers
    import torch
    import transformers

    device = encoder.model.device
    cuda = device.type == "cuda"
    return {
        "embedkit": __version__,
        **{lib.__name__: lib.__version__ for lib in (np, pa, tokenizers, torch, transformers)},
        "forward": encoder.model.name,
        "device": torch.cuda.get_device_name(device) if cuda else device.type,
        "arithmetic": arithmetic_of(encoder),
    }


def arithmetic_of(encoder: Encoder) -> str:
    """Hash of the vectors of some texts: equal where processor and threads give equal bits.

    Which instructions a library uses, and whether its sums depend on the number of threads, cannot
    be asked; what comes out can. One layer suffices, since all are computed by the same kernels.
    """
    # long, short and equal sequences meet in one batch: products of many shapes take part
    texts = ["a " * words for words in (250, 126, 60, 43, 15, 15, 3, 1)]
    digest = hashlib.sha256()
    # apart, since a last layer of which only first tokens are read is computed in another way
    for views in (["mean_1"], [] if encoder.is_causal else ["cls_1"]):
        for vectors in encoder.encode_views(texts, views).values():
            digest.update(vectors.tobytes())
    return digest.hexdigest()[:16]


def sentence_columns(
    records: Sequence[Record], lengths: Lengths, settings: JobSettings, folds: Int64 | None = None
) -> dict[str, pa.Array]:
    """Columns of the sentence table that are not vectors, one row per record."""
    columns = {
        "row": pa.array([r.row for r in records], pa.int64()),
        "id": pa.array([r.id for r in records], pa.string()),
    }
    if settings.storage.text:
        columns["text"] = pa.array([r.text for r in records], pa.string())
        if settings.input.text_pair is not None:
            columns["text_pair"] = pa.array([r.text_pair for r in records], pa.string())
    if settings.input.label is not None:
        columns["label"] = pa.array([r.label for r in records], pa.string())
    for position, name in enumerate(settings.input.keep):
        columns[name] = pa.array([r.kept[position] for r in records], pa.string())
    # always, also without the texts: splits keep equal texts together by it
    keys = keys_of(records)
    if folds is not None:
        columns["fold"] = pa.array(folds, pa.int16())
    counts = {n: pa.array(lengths[n], pa.int32()) for n in ("n_tokens", "n_kept", "n_unknown")}
    counts["truncated"] = pa.array(lengths["truncated"], pa.bool_())
    return columns | counts | {"text_key": pa.array(keys, pa.int64())}


def layer_columns(table: WordVectors | TokenVectors, settings: JobSettings) -> dict[str, pa.Array]:
    """Columns of the word or token table that the text alone decides, one row per word or token."""
    # "row" is added by the caller, who knows the numbers in the corpus
    left_out = {"vectors", "row"} | (set() if settings.storage.text else _SPELLING)
    if settings.input.text_pair is None:
        left_out.add("segment")
    values = {f.name: getattr(table, f.name) for f in fields(table) if f.name not in left_out}
    if isinstance(table, TokenVectors):
        # a property of the table, and so not among its fields
        values["special"] = table.special
    return {
        name: pa.array(column, pa.string() if column.dtype == object else None)
        for name, column in values.items()
    }


def lengths_of(texts: TokenizedTexts, tokenizer: TextTokenizer) -> Lengths:
    """Counts of tokens and windows of each text, and whether it spells out special tokens."""
    special = np.zeros(len(tokenizer.hf), bool)
    # unknown tokens are special to tokenizers, but no text spells them out on purpose
    special[list({*tokenizer.hf.all_special_ids} - {tokenizer.unknown_id})] = True
    # a special id that the tokenizer did not add itself stood in the text; counted by text as the
    # difference of running sums
    spelled = ends_of(special[texts.ids] & (texts.segment >= 0))[texts.ends]
    return {
        "n_tokens": texts.n_tokens,
        "n_kept": texts.n_kept,
        "n_unknown": texts.n_unknown,
        "truncated": texts.cut,
        "windows": np.diff(texts.text_windows),
        "spells": np.diff(spelled) > 0,
    }


def ledger_of(lengths: Lengths, *, limit: int) -> dict[str, int]:
    """Counts of a shard: tokens kept, cut and unknown, texts that spell special tokens."""
    total = {name: int(counts.sum()) for name, counts in lengths.items()}
    return {
        "records": len(lengths["n_tokens"]),
        "tokens": total["n_tokens"],
        "tokens_kept": total["n_kept"],
        "records_truncated": total["truncated"],
        "tokens_cut": total["n_tokens"] - total["n_kept"],
        "records_longer_than_limit": int((lengths["n_tokens"] > limit).sum()),
        "windows": total["windows"],
        "tokens_unknown": total["n_unknown"],
        "records_spelling_special_tokens": total["spells"],
    }
