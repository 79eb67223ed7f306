"""Commands extract, info, verify and tokenize."""

from __future__ import annotations

import logging
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import embedkit
from embedkit.choices import ENGINES, ON_LONG, STORAGES, SUBTOKENS
from embedkit.cli.command import Result, command, in_options, seconds_so_far
from embedkit.cli.options import FILE, FLAG, LAYERS, MODEL, NAME, POSITIVE, choice, option, options
from embedkit.cli.text import asked_for_all, number_text, table_text
from embedkit.display import as_argument, bytes_text, count_text, duration_text, ledger_text
from embedkit.errors import EXIT_REJECTS, Message, UsageError
from embedkit.types import ProgressCallback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedkit.corpus.plan import CorpusOptions, CorpusSettings
    from embedkit.dataset.extract import ExtractResult
    from embedkit.dataset.format import Manifest
    from embedkit.dataset.info import DatasetInfo
    from embedkit.dataset.shards import ExtractPlan
    from embedkit.encoding.model import ModelInfo

logger = logging.getLogger(__name__)


def _no_corpus(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """``--words`` may stand without a value, and then takes a corpus behind it for one."""
    if value is not None and Path(value).is_file():
        raise UsageError(
            f"--words {value}: this is a file, not one of {', '.join(SUBTOKENS)}. "
            "Name the corpus before --words."
        )
    return value


@command(
    "embedkit extract reviews.tsv",
    "embedkit extract reviews.tsv --layers all --pooling cls,mean,pooler --out vectors",
    "embedkit extract talks.jsonl.gz --text body --on-long window --words --dry-run",
    "zcat big.tsv.gz | embedkit extract - --format tsv --out big.vectors",
)
@click.argument("corpus", nargs=-1, required=True, type=NAME)
@options(
    option("--out", type=FILE, help="Folder, or address (s3://), of the dataset. [CORPUS.vectors]"),
    "--model",
    option("--layers", default="-1", help=LAYERS),
    option(
        "--pooling",
        help="{POOLINGS}; several with commas. [what the checkpoint defines, else mean]",
    ),
    option(
        "--words",
        is_flag=False,
        flag_value="mean",
        default=None,
        callback=_no_corpus,
        metavar="[first|last|first_last|mean]",
        help="Also write word vectors, formed from these sub-tokens. [mean]",
    ),
    "--word-label",
    option(
        "--spans",
        type=NAME,
        metavar="LISTS|START,END|FILE|sentences",
        help="Column with the spans of a text, [[start, end], …], or two columns of one span; or a "
        "table with a row id, start, end for each; or sentences: cut at their ends. A vector for "
        "each is written instead of those of words.",
    ),
    option("--tokens", **FLAG, help="Also write token vectors."),
    option("--dry-run", **FLAG, help="Estimate rows, tokens, size and time; write nothing."),
    "--overwrite",
    option(
        "--reuse",
        type=FILE,
        multiple=True,
        help="Dataset of the same model and settings: texts that it has are not encoded again; can "
        "be repeated.",
    ),
    "--text --text-pair --id --label",
    option("--keep", help="Further columns to store, separated by commas."),
    "--format --encoding --quoting --delimiter --sheet --header/--no-header --min-chars",
    "--sample --limit --revision --device --max-length",
    option(
        "--on-long",
        help="Texts of more than --max-length tokens: {ON_LONG}. "
        "[truncate; with a run as --model, as it was trained]",
        **choice(ON_LONG),
    ),
    "--prefix",
    option("--prompt", help="Name of a prompt of the checkpoint, as the prefix: see info MODEL."),
    option(
        "--normalize/--no-normalize",
        default=None,
        help="Scale vectors to length 1. [set by the checkpoint]",
    ),
    option("--dims", type=int, help="Keep the first N coordinates, scaled to length 1."),
    "--precision",
    option(
        "--storage",
        help="Storage type: {STORAGES}. embedkit reads float32 of each.",
        **choice(STORAGES, "float32"),
    ),
    option("--no-text", **FLAG, help="Do not store the texts."),
    option("--workers", type=int, help="Processes that make shards. [one for each --device]"),
    option("--engine", help="Where workers run: {ENGINES}.", **choice(ENGINES, "local")),
    option(
        "--part",
        type=int,
        nargs=2,
        metavar="I N",
        help="Make part I of N only, from 0; afterwards run without it.",
    ),
)
def extract(
    corpus: tuple[str, ...],
    out: Path | None,
    dry_run: bool,
    overwrite: bool,
    reuse: tuple[Path, ...],
    no_text: bool,
    reading: CorpusOptions,
    progress: ProgressCallback,
    **settings: Any,
) -> Result:
    """Write the vectors of a corpus as Parquet files.

    Sentence vectors are always written, word and token vectors with --words and --tokens. CORPUS
    is one or more TSV, CSV, JSON, Parquet, Arrow, Excel or CoNLL-U files, text files also
    compressed, their addresses (https://, s3://, hf://), or - for standard input. Run the same
    command again to resume an interrupted job, or to make damaged files of a dataset again, and
    with --overwrite --reuse DATASET when the corpus has changed.
    """
    # here and in all commands: what loads torch is imported when it runs, so that --help answers at
    # once
    from embedkit.dataset.extract import estimate, run_plan
    from embedkit.dataset.job import existing_output
    from embedkit.dataset.planning import plan_extract
    from embedkit.dataset.settings import ExtractOptions

    chosen = ExtractOptions(**settings, store_text=not no_text)
    files = [Path(name) for name in corpus]
    with plan_extract(files, out=out, reading=reading, settings=chosen) as plan:
        if dry_run:
            output = in_options(Message(existing_output(plan.out, plan.job, overwrite=overwrite)))
            cost = estimate(plan, reuse=reuse, progress=progress)
            data = {**cost, "output": output}
            return Result(data, lambda: _estimate_text(plan, cost, output), asked_for=True)
        result = run_plan(plan, overwrite=overwrite, reuse=reuse, progress=progress)
    if result.is_part:
        missing = count_text(result.missing_shards, "shard")
        return Result(
            {"out": str(result.out), "missing_shards": result.missing_shards},
            lambda: (
                f"this part of {result.out} is done; {missing} of other parts missing. Run the "
                "same command without --part when all parts have ended."
            ),
        )
    totals = result.manifest.totals
    return Result(
        {"out": str(result.out), **asdict(totals), "tokens_encoded": result.tokens_fresh},
        lambda: _result_text(result),
        code=EXIT_REJECTS if totals.rejected else 0,
    )


def _estimate_text(plan: ExtractPlan, cost: dict[str, Any], output: str) -> str:
    from embedkit.encoding.views import view_ranges

    accepted, size, free = cost["accepted"], cost["bytes_total"], cost["free_bytes"]
    lines = [
        f"would write {plan.out}: {count_text(accepted, 'row')} in "
        f"{count_text(cost['shards'], 'shard')}",
        f"  records    {ledger_text(accepted, 'to embed', cost['rejected'], cost['left_out'])}",
        f"  tokens     about {cost['tokens']:,} (measured on {cost['sampled']:,} texts, "
        f"{100 * cost['longer']:.1f} % of them longer than {plan.vectors.max_length})",
    ]
    # views of one size in one line: all layers have the same width
    sizes: dict[str, list[str]] = {}
    for name, bytes_ in cost["bytes_per_view"].items():
        sizes.setdefault(bytes_text(bytes_), []).append(name)
    for shown, names in sizes.items():
        each = f"{shown} each" if len(names) > 1 else shown
        lines.append(f"    {view_ranges(names)}: {each}")
    measured = f"{cost['tokens_per_second']:,.0f} tokens/s measured here"
    # without a text that has to be encoded no speed was measured
    measured = measured if cost["seconds"] else "nothing to encode"
    lines += [
        f"  disk       about {bytes_text(size)}, {bytes_text(free)} free",
        f"  time       about {duration_text(cost['seconds'])} ({measured})",
    ]
    # a margin for an estimate that is measured on some of the texts
    if size * 1.1 > free:
        lines.append("  WARNING: this will not fit. Use fewer --layers or --storage compact.")
    lines += [f"  note: {note}" for note in (*map(in_options, cost["notices"]), output) if note]
    return "\n".join(lines)


def _result_text(result: ExtractResult) -> str:
    """Output of ``extract``: counts, and lines that open the dataset."""
    from embedkit.dataset.info import open_lines
    from embedkit.encoding.views import view_ranges

    manifest, totals = result.manifest, result.manifest.totals
    first = f"{result.out} is already complete; nothing was done."
    if not result.was_complete:
        size = sum(f.bytes for f in manifest.files.values())
        speed = result.tokens_fresh / result.seconds if result.seconds else 0
        encoded = f"encoding {speed:,.0f} tokens/s" if speed else "nothing was encoded"
        fresh, kept = result.tokens_fresh, totals.ledger["tokens_kept"]
        # others are of equal texts, of shards that were there already and of datasets to reuse
        if 0 < fresh < kept:
            encoded = f"{fresh:,} of {kept:,} tokens encoded, {speed:,.0f} a second"
        first = (
            f"wrote {result.out}: {count_text(totals.accepted, 'row')} × "
            f"{count_text(len(manifest.views), 'view')}, {bytes_text(size)}, in "
            f"{duration_text(seconds_so_far())} ({encoded})"
        )
    opened = open_lines(result.out, manifest)
    words = sum(file.rows for file in manifest.files_of("words"))
    lines = [
        first,
        f"  records  {totals.embedded_text(f'{result.out}/_embedkit/rejects.jsonl')}",
        *[f"  {'spans' if manifest.job.input.spans else 'words'}    {words:,}"] * (words > 0),
        f"  tokens   {tokens_text(manifest)}",
        f"  views    {view_ranges(list(manifest.views))}",
        *_int8_lines(manifest, 8),
        "open it:",
        f"  {opened['pandas']}",
        f"  {opened['embedkit']}",
    ]
    return "\n".join(lines)


def _int8_lines(manifest: Manifest, width: int) -> list[str]:
    """Neighbours that vectors keep in int8, as a line."""
    ledger = manifest.totals.ledger
    if not ledger.get("neighbours"):
        return []
    kept = ledger["neighbours_int8"] / ledger["neighbours"]
    return [
        f"  {'int8':{width}} {100 * kept:.1f} % of the 10 nearest neighbours are those of float32"
    ]


def tokens_text(manifest: Manifest) -> str:
    """Return the number of tokens of a dataset, and of those that were cut off."""
    ledger, limit = manifest.totals.ledger, manifest.job.vectors.max_length
    text = f"{ledger.get('tokens', 0):,}"
    if cut := ledger.get("records_truncated", 0):
        lost = f"{ledger['tokens_cut']:,} tokens left out"
        return f"{text}; {count_text(cut, 'text')} cut at {limit} ({lost})"
    if longer := ledger.get("records_longer_than_limit", 0):
        return f"{text}; {count_text(longer, 'text')} of more than {limit} read in windows"
    return f"{text}; no text was cut (limit {limit})"


_NAMES_SHOWN, _PROMPTS_SHOWN = 6, 2


@command(
    "embedkit info corpus.vectors",
    "embedkit info runs/logreg",
    "embedkit info klue/bert-base",
    with_all=True,
)
@click.argument("what", type=NAME)
def info(what: str) -> Result:
    """Describe a dataset, a run or a checkpoint.

    WHAT is a folder that extract wrote, a folder that train, probe, finetune or similarity wrote,
    or the hub id or folder of a checkpoint.
    """
    from embedkit.dataset.info import DatasetInfo
    from embedkit.runs.run import Run

    path, details = Path(what), embedkit.info(what)
    if isinstance(details, Run):
        from embedkit.cli.run_text import run_info_text

        return Result(details, lambda: run_info_text(path, details), asked_for=True)
    if isinstance(details, DatasetInfo):
        figures = ("health", "health_rows", "duplicate_texts")
        data = {"path": str(path), **asdict(details.manifest)}
        data |= {name: getattr(details, name) for name in figures}
        return Result(data, lambda: _dataset_text(details), asked_for=True)
    return Result(details, lambda: _model_text(details), asked_for=True)


def _columns_text(read: CorpusSettings) -> str:
    """What the dataset has of its corpus, by the names of the columns there."""
    roles = ("id", "text", "text_pair", "label", "word_label")
    parts = [f"{role} {getattr(read, role)}" for role in roles if getattr(read, role)]
    return ", ".join([*parts, *(f"kept {name}" for name in read.keep)])


def _dataset_text(info: DatasetInfo) -> str:
    from embedkit.dataset.info import USELESS, batch_invariance, health_findings, open_lines

    manifest = info.manifest
    totals, names, model = manifest.totals, manifest.names, manifest.job.model
    ledger, path = totals.ledger, as_argument(info.path)
    good = sum(not h.zeros and h.anisotropy < USELESS for h in info.health)
    views = count_text(len(info.health), "view")
    suitable = "suitable" if good == len(info.health) else f"{good} of them suitable"
    if all(math.isnan(health.anisotropy) for health in info.health):  # of a text or two
        suitable = "too few to be judged"
    findings = health_findings(info.health)
    tables = [
        f"{folder} {count_text(rows, 'row')}, {bytes_text(size)}"
        for folder, _, rows, size in info.tables
    ]
    lines = [
        f"{info.path}: {count_text(totals.accepted, 'text')} × {views}, {suitable} for search",
        f"  model      {names.checkpoint}, {model.n_layers} layers, {model.width} wide, "
        f"{manifest.job.vectors.precision}",
        f"  input      {', '.join(names.inputs)}",
        f"  columns    {_columns_text(manifest.job.input)}",
        f"  records    {totals.embedded_text()}",
        f"  duplicates {count_text(info.duplicate_texts, 'row')} with an earlier text",
        f"  tokens     {tokens_text(manifest)}",
    ]
    if unknown := ledger.get("tokens_unknown"):
        share = 100 * unknown / ledger["tokens_kept"]
        lines.append(f"  unknown    {count_text(unknown, 'token')} ({share:.1f} %)")
    lines += [f"  on disk    {'; '.join(tables)}", *_int8_lines(manifest, 10)]
    lines += [f"  {sentence}" for sentence in batch_invariance(manifest)]
    if asked_for_all():
        lines += [f"mean cosine of two texts, over {info.health_rows:,} rows:"]
        lines += [f"  {line}" for line in findings]
        rows = [
            {
                "view": h.name,
                "width": h.width,
                "cosine": number_text(h.anisotropy),
                "norm": number_text(h.norm_mean),
                "min": number_text(h.norm_min),
                "max": number_text(h.norm_max),
                "zero": h.zeros,
            }
            for h in info.health
        ]
        lines += [table_text(rows), "open it:"]
        lines += [f"  {line}" for line in open_lines(info.path, manifest).values()]
    else:
        rest = len(findings) - 2
        lines += [f"  views      {line}" for line in findings[:2]]
        lines += [f"  views      {count_text(rest, 'more finding')} (--all)"] if rest > 0 else []
        lines.append(f"open it: data = embedkit.load({str(info.path)!r}); data.X, data.text")
    lines.append(f"look at it: embedkit explore {path}")
    return "\n".join(lines)


def _model_text(model: ModelInfo) -> str:
    """A checkpoint with its modules."""
    everything = asked_for_all()
    lines = [
        f"{model.name}: {model.architecture}, {model.n_layers} layers, {model.width} wide",
        f"  from       {model.source}: {model.folder}",
        f"  revision   {model.revision}" if model.revision else "",
        f"  positions  {model.positions}; texts are cut at {model.max_length} tokens by default",
        f"  vocabulary {model.vocabulary:,} entries, {model.tokenizer}",
        f"  pooler     {'yes' if model.has_pooler else 'no (--pooling pooler is refused)'}",
        f"  sentence   {model.sentence}",
        f"  labels     {_some(model.labels)}" if model.labels else "",
        f"  parameters {model.parameters:,}, of the encoder {model.encoder_parameters:,}",
        f"  missing    {_weights_text(model.missing)}",
        f"  unused     {_weights_text(model.unused)}",
    ]
    if everything or len(model.prompts) <= _PROMPTS_SHOWN:
        lines += [f"  prompt     {name}: {text!r}" for name, text in model.prompts.items()]
    else:
        lines.append(f"  prompts    {_some(list(model.prompts))}")
    lines += _inventory_lines(model.inventory, everything=everything)
    lines.append(model.modules if everything else "all modules, files and keys: --all")
    return "\n".join(filter(None, lines))


def _inventory_lines(effects: dict[str, str], *, everything: bool) -> list[str]:
    """What becomes of the files of a checkpoint and their keys; short, what is not applied."""
    if everything:
        return [f"  {effect:<10} {name}" for name, effect in effects.items()]
    by_effect: dict[str, list[str]] = {}
    for name, effect in effects.items():
        by_effect.setdefault(effect, []).append(name)
    # what is applied, or does not matter, is what everyone expects; the rest may change vectors
    shown = [effect for effect in by_effect if effect not in ("applied", "harmless")]
    return [f"  {effect:<10} {_some(by_effect[effect])}" for effect in sorted(shown)]


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + rest


def _weights_text(names: Sequence[str]) -> str:
    return f"{count_text(len(names), 'weight')}: {_some(names)}" if names else "no weights"


@command(
    "embedkit verify corpus.vectors",
    "embedkit verify corpus.vectors --recompute 200",
    "embedkit verify runs/logreg",
)
@click.argument("path", type=FILE)
@options(
    option(
        "--recompute",
        type=POSITIVE,
        help="Encode so many random texts of a dataset again, and compare their vectors.",
    ),
    option("--model", help="Location of the checkpoint, if moved. [its original name]", **MODEL),
)
def verify(
    path: Path, recompute: int | None, model: str | None, progress: ProgressCallback
) -> Result:
    """Check a dataset with its indexes, a run, an index, a split or predictions.

    Checksums; of a dataset also counts and order, and with --recompute the vectors themselves:
    whether they are the same to the last bit, or how far apart, and why that may be.
    """
    from embedkit.verification import require_ok

    verification = embedkit.verify(path, recompute=recompute or 0, model=model, progress=progress)
    counts = [count_text(verification.files, "file")]
    counts += [count_text(verification.rows, "row")] * bool(verification.rows)
    text = f"{path}: {', '.join(counts)}: undamaged"
    text += f"\n{verification.recomputed}" if recompute else ""
    return Result(verification, lambda: text, check=lambda: require_ok(verification, path))


@command('embedkit tokenize "배를 타고 여행을 간다."', "embedkit tokenize --vocab 2000:2010")
@click.argument("text", required=False)
@options(
    option("--vocab", metavar="FROM:TO", help="Print a slice of the vocabulary instead."), "--model"
)
def tokenize(text: str | None, vocab: str | None, model: str) -> Result:
    """Show how a text is tokenized.

    A row for each token: its id, segment, offsets and word.
    """
    if text is not None and os.path.isfile(text):  # noqa: PTH113 - a long text is no error
        logger.info("%s is a file here; it is tokenized as a text, as it is typed", text)
    rows = embedkit.tokenize(text, vocab=vocab, model=model)
    return Result(rows, lambda: table_text(rows), asked_for=True)
