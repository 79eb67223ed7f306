"""The command ``extract``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedkit.choices import ON_LONG, STORAGES
from embedkit.cli.command import Result, command
from embedkit.cli.messages import in_options, seconds_so_far
from embedkit.cli.options import FILE, LAYERS, option, options, reading_of
from embedkit.cli.progress import progress_bar
from embedkit.cli.text import count_text, ledger_text, say, terminal_width, wrapped
from embedkit.display import bytes_text, duration_text, visible
from embedkit.errors import EXIT_REJECTS, UsageError

if TYPE_CHECKING:
    from embedkit.dataset.estimate import Estimate
    from embedkit.dataset.extraction import ExtractResult
    from embedkit.dataset.planning import ExtractPlan
    from embedkit.dataset.store import Manifest

__all__ = ["extract", "tokens_text"]


def _no_corpus(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """``--words`` may stand without a value, and then takes a corpus behind it for one."""
    if value is not None and Path(value).is_file():
        raise UsageError(
            f"--words {value}: this is a file, not one of first, last, first_last, mean. "
            "Name the corpus before --words."
        )
    return value


@command(
    "embedkit extract reviews.tsv",
    "embedkit extract reviews.tsv --layers all --pooling cls,mean,pooler --out vectors",
    "embedkit extract talks.jsonl.gz --text body --on-long window --words --dry-run",
    "zcat big.tsv.gz | embedkit extract - --format tsv --out big.vectors",
)
@click.argument("corpus", nargs=-1, required=True)
@options(
    option("--out", type=FILE, help="Folder of the dataset to write. [CORPUS.vectors]"),
    "corpus",
    option("--keep", help="Further columns to store, separated by commas."),
    "model",
    option("--layers", default="-1", help=LAYERS),
    option("--pooling", default="mean",
           help="cls, mean, max, last_token or pooler; several with commas."),
    option("--words", is_flag=False, flag_value="mean", default=None, callback=_no_corpus,
           metavar="[first|last|first_last|mean]",
           help="Also write word vectors, formed from these sub-tokens. [mean]"),
    option("--word-label", help="Column with a label for each word, with --words: upos, xpos "
           "or deprel of CoNLL-U, else a column of labels separated by spaces."),
    option("--tokens", is_flag=True, help="Also write token vectors."),
    "--max-length",
    option("--on-long", type=click.Choice(ON_LONG),
           help="How to treat texts of more than --max-length tokens. "
           "[truncate; with a run as --model, as it was trained]"),
    "--stride",
    "--special-tokens",
    option("--normalize", is_flag=True, help="Scale sentence vectors to unit length (L2)."),
    "--prefix",
    "--precision",
    option("--storage", default="float32", type=click.Choice(STORAGES),
           help="Storage type; float16: half the size; compact: 0.43 of it, read as float32."),
    option("--batch-tokens", type=int,
           help="Tokens per batch. [2,048 on CPU, 65,536 on CUDA]"),
    option("--shard-rows", type=int, help="Records per output file. [about 64 MB]"),
    option("--no-text", is_flag=True, help="Do not store the texts."),
    option("--dry-run", is_flag=True,
           help="Estimate rows, tokens, size and time; write nothing."),
    "--overwrite",
    option("--allow-env-change", is_flag=True,
           help="Resume although library versions or devices have changed."),
    "--progress/--no-progress",
    option("-v", "--verbose", is_flag=True,
           help="Also print the plan, and which stage limits the speed."),
)  # fmt: skip
def extract(
    corpus: tuple[str, ...], out: Path | None, special_tokens: str, no_text: bool, dry_run: bool,
    overwrite: bool, allow_env_change: bool, progress: bool | None, verbose: bool, **settings: Any,
) -> Result:  # fmt: skip
    """Write the vectors of a corpus as Parquet files.

    Sentence vectors are always written, word and token vectors with --words and --tokens. CORPUS
    is one or more TSV, CSV, JSONL, Parquet, Arrow or CoNLL-U files, text files also as .gz or .zst,
    or - for standard input. Run the same command again to resume an interrupted job.
    """
    from embedkit.dataset.extraction import run_plan
    from embedkit.dataset.planning import ExtractSettings, plan_extract

    reading = reading_of(settings)
    made = ExtractSettings(
        store_text=not no_text, special_tokens=special_tokens == "include", **settings
    )  # fmt: skip
    files = [Path(name) for name in corpus]
    with plan_extract(files, out=out, reading=reading, settings=made) as plan:
        if verbose:
            say(_plan_text(plan), err=True)
        if dry_run:
            return _dry_run(plan, overwrite)
        with progress_bar() as report:
            result = run_plan(plan, overwrite=overwrite, allow_env_change=allow_env_change,
                              progress=report)  # fmt: skip
    if verbose:
        say(_stages_text(result), err=True)
    totals = result.manifest.totals
    return Result(
        {"out": str(result.out), **asdict(totals)}, lambda: _result_text(result),
        code=EXIT_REJECTS if totals.rejected else 0,
    )  # fmt: skip


def _dry_run(plan: ExtractPlan, overwrite: bool) -> Result:
    from embedkit.dataset.estimate import estimate
    from embedkit.dataset.jobs import what_is_there

    command = click.get_current_context().command
    there = in_options(what_is_there(plan.out, plan.job(), overwrite=overwrite), command)
    with progress_bar() as report:
        cost = estimate(plan, progress=report)
    return Result(
        {**asdict(cost), "output": there}, lambda: _estimate_text(plan, cost, there), asked_for=True
    )


def _plan_text(plan: ExtractPlan) -> str:
    corpus, encoder = plan.corpus, plan.encoder
    lines = {
        "corpus": f"{len(corpus.files)} file(s), {corpus.format}, {corpus.encoding}"
        f", quoting {corpus.quoting}",
        "columns": f"text={corpus.text} pair={corpus.text_pair} id={corpus.id} "
        f"label={corpus.label} keep={','.join(corpus.keep) or None}",
        "model": f"{encoder.checkpoint.name} ({encoder.checkpoint.source}) on "
        f"{encoder.model.device}, {encoder.precision}",
        "views": ", ".join(v.name for v in plan.views),
        "shards": f"{plan.settings.storage.shard_rows} records each, batches of "
        f"{encoder.batch_tokens} tokens",
    }
    return visible("\n".join(f"{name:8} {line}" for name, line in lines.items()))


def _stages_text(result: ExtractResult) -> str:
    """How busy each stage was, and which one limited the speed."""
    from embedkit.dataset.workers import bottleneck

    if not result.stages:
        return ""
    lines = [
        f"{stage.name:8} busy {stage.fraction:4.0%}  {duration_text(stage.seconds)}"
        + (f" in {stage.threads} threads" if stage.threads > 1 else "")
        for stage in result.stages
    ]
    return "\n".join([*lines, f"bottleneck: {bottleneck(result.stages).name}"])


def _estimate_text(plan: ExtractPlan, cost: Estimate, there: str) -> str:
    from embedkit.encoding.views import view_ranges

    lines = [
        f"would write {plan.out}: {cost.accepted:,} rows in {count_text(cost.shards, 'shard')}",
        f"  records    {ledger_text(cost.accepted, 'to embed', cost.rejected, cost.left_out)}",
        f"  tokens     about {cost.tokens:,} (measured on {cost.sampled:,} texts, "
        f"{cost.truncated:.1%} of them longer than {plan.vectors.max_length})",
    ]
    sizes: dict[str, list[str]] = {}
    for name, size in cost.bytes_per_view.items():
        sizes.setdefault(bytes_text(size), []).append(name)
    for shown, names in sizes.items():
        each = f"{shown} each" if len(names) > 1 else shown
        lines += wrapped(f"{view_ranges(names)}: {each}", terminal_width(), first="    ",
                         others="      ")  # fmt: skip
    lines += [
        f"  disk       about {bytes_text(cost.bytes_total)}, {bytes_text(cost.free_bytes)} free",
        f"  time       about {duration_text(cost.seconds)} "
        f"({cost.tokens_per_second:,.0f} tokens/s measured here)",
    ]
    if cost.bytes_total * 1.1 > cost.free_bytes:
        lines.append("  WARNING: this will not fit. Use fewer --layers or --storage compact.")
    lines += [f"  note: {note}" for note in (cost.quotes, there) if note]
    return visible("\n".join(lines))


def _result_text(result: ExtractResult) -> str:
    """What was written, and how to open it."""
    from embedkit.dataset.inspection import open_lines

    manifest, totals = result.manifest, result.manifest.totals
    first = f"{result.out} is already complete; nothing was done."
    if not result.was_complete:
        size = sum(f.bytes for f in manifest.files.values())
        speed = result.tokens_fresh / result.seconds if result.seconds else 0
        resumed = result.resumed_shards
        first = (
            f"wrote {result.out}: {totals.accepted:,} rows × "
            f"{count_text(len(manifest.views), 'view')}, {bytes_text(size)}, in "
            f"{duration_text(seconds_so_far())} (encoding {speed:,.0f} tokens/s"
            + (f", {count_text(resumed, 'shard')} from before)" if resumed else ")")
        )
    records = ledger_text(
        totals.accepted, "embedded", totals.rejected_by_reason, totals.left_out_by_reason,
        f"{result.out}/_embedkit/rejects.jsonl",
    )  # fmt: skip
    names = list(manifest.views)
    if len(names) > 8:
        names = [*names[:3], "…", *names[-3:]]
    widths = ", ".join(sorted({str(width) for width in manifest.views.values()}))
    opened = open_lines(result.out, manifest)
    return visible("\n".join([
        first,
        f"  records  {records}",
        f"  tokens   {tokens_text(manifest)}",
        f"  views    {' '.join(names)} ({widths} wide)",
        "open it:",
        f"  {opened['pandas']}",
        f"  {opened['embedkit']}",
    ]))  # fmt: skip


def tokens_text(manifest: Manifest) -> str:
    """Return the number of tokens of a dataset, and of those that were cut off."""
    ledger, limit = manifest.totals.ledger, manifest.job.vectors.max_length
    text = f"{ledger.get('tokens', 0):,}"
    if cut := ledger.get("records_truncated", 0):
        return (
            f"{text}; {cut:,} texts were cut at {limit} ({ledger['tokens_cut']:,} tokens left out)"
        )
    if longer := ledger.get("records_longer_than_limit", 0):
        return f"{text}; {longer:,} texts of more than {limit} were read in windows"
    return f"{text}; no text was cut (limit {limit})"
