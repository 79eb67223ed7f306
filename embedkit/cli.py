"""The command line: each command parses, makes one library call, and prints.

Results go to standard output, everything else to standard error. torch and transformers are loaded
by the commands that need them, so that ``--help`` answers at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from embedkit import __version__
from embedkit.display import bytes_text, duration_text, visible
from embedkit.errors import EXIT_REJECTS, EmbedkitError, StorageError, UsageError

if TYPE_CHECKING:
    from embedkit.estimate import Estimate
    from embedkit.extraction import ExtractPlan, ExtractResult
    from embedkit.inspection import DatasetInfo, ModelInfo
    from embedkit.store import Manifest

__all__ = ["cli", "main"]

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"  # checkpoint.DEFAULT_MODEL; tested

_EXTRACT_EXAMPLES = """\b
Examples:
  embedkit extract reviews.tsv
  embedkit extract reviews.tsv --layers all --pooling cls,mean,pooler --out vectors
  embedkit extract talks.jsonl.gz --text body --on-long window --words --dry-run
  zcat big.tsv.gz | embedkit extract - --format tsv --out big.vectors
"""


def main() -> NoReturn:
    """Run the command line and exit with the code that the README lists."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = cli.main(standalone_mode=False)
    except EmbedkitError as error:
        _complain(str(error))
        code = error.exit_code
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except KeyboardInterrupt:
        _complain("interrupted; the same command goes on where it stopped.")
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        _complain(f"{error.filename or 'input/output'}: {error.strerror or error}.")
        code = StorageError.exit_code
    sys.exit(code if isinstance(code, int) else 0)


def _terminate(_signal: int, _frame: object) -> NoReturn:
    _complain("terminated; the same command goes on where it stopped.")
    sys.exit(143)


def _complain(message: str) -> None:
    click.echo(f"embedkit: {visible(message)}", err=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="embedkit")
def cli() -> None:
    r"""Hidden vectors of BERT-family encoders for whole corpora, and results from those vectors.

    \b
    Start with:
      embedkit extract corpus.tsv          any TSV, CSV, JSONL or Parquet file
      embedkit info corpus.vectors         what is in it, and how to open it
    """


def _output_options(command: F) -> F:
    """Options that every command has."""
    for option in reversed(
        (
            click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
            click.option(
                "-q", "--quiet", is_flag=True, help="Print nothing but results and errors."
            ),
            click.option("-v", "--verbose", is_flag=True, help="Say more about what happens."),
        )
    ):
        command = option(command)
    return command


def _model_options(command: F) -> F:
    """Options that choose a checkpoint and where it runs."""
    for option in reversed((
        click.option("--model", default=DEFAULT_MODEL, show_default=True,
                     help="Hub id or folder of a BERT-family checkpoint."),
        click.option("--revision", help="Branch, tag or commit of a hub checkpoint."),
        click.option("--offline", is_flag=True, help="Never ask the hub."),
        click.option("--device", default="auto", show_default=True,
                     help="auto, cpu, cuda, cuda:1."),
    )):  # fmt: skip
        command = option(command)
    return command


def _corpus_options(command: F) -> F:
    """Options that say how to read the corpus."""
    for option in reversed((
        click.option("--text", help="Column of the text. [guessed by its name]"),
        click.option("--text-pair", help="Column of the second text of a pair."),
        click.option("--id", help="Column of the id. [guessed; else row numbers]"),
        click.option("--label", help="Column of the label. [guessed]"),
        click.option("--keep", help="Further columns to carry along, separated by commas."),
        click.option("--format", default="auto", show_default=True,
                     type=click.Choice(["auto", "tsv", "csv", "lines", "jsonl", "parquet"])),
        click.option("--encoding", default="utf-8", show_default=True),
        click.option("--quoting", default="auto", show_default=True,
                     type=click.Choice(["auto", "none", "csv"]),
                     help="auto: .csv files are quoted as CSV, .tsv and .txt files not at all."),
        click.option("--no-header", is_flag=True,
                     help="The first line is data; columns are called 0, 1, 2 …"),
        click.option("--unicode", default="none", show_default=True,
                     type=click.Choice(["none", "nfc", "nfkc"]), help="Normal form of the texts."),
        click.option("--min-chars", default=0, show_default=True, type=int,
                     help="Leave shorter texts out (counted)."),
        click.option("--sample", type=int, help="Only so many records, drawn at random (counted)."),
        click.option("--seed", default=0, show_default=True, type=int, help="Seed of the draw."),
        click.option("--limit", type=int, help="Only the first so many records (counted)."),
    )):  # fmt: skip
        command = option(command)
    return command


def _vector_options(command: F) -> F:
    """Options that say which vectors are made and how they are stored."""
    for option in reversed((
        click.option("--layers", default="-1", show_default=True,
                     help="all, -1, 0,6,12, -4..-1, sum:-4..-1, mean:-4..-1, concat:-4..-1. "
                     "0 is the embedding output."),
        click.option("--pooling", default="mean", show_default=True,
                     help="cls, mean, max, pooler; several with commas."),
        click.option("--words", is_flag=False, flag_value="mean", default=None,
                     metavar="[first|last|first_last|mean]",
                     help="Also write word vectors, from these sub-tokens. [mean]"),
        click.option("--tokens", is_flag=True, help="Also write token vectors."),
        click.option("--max-length", type=int,
                     help="Tokens per text, special ones counted. [what the checkpoint states]"),
        click.option("--on-long", default="truncate", show_default=True,
                     type=click.Choice(["truncate", "window", "error"]),
                     help="What to do with longer texts."),
        click.option("--stride", type=int,
                     help="Tokens that neighbouring windows share. [a quarter of --max-length]"),
        click.option("--special-tokens", default="include", show_default=True,
                     type=click.Choice(["include", "exclude"]),
                     help="Whether mean and max count [CLS] and [SEP]."),
        click.option("--normalize", is_flag=True, help="Scale sentence vectors to length 1 (L2)."),
        click.option("--prefix", default="", help='Put before every text, such as "query: ".'),
        click.option("--precision", type=click.Choice(["auto", "fp32", "bf16", "fp16"]),
                     help="To compute in. [fp32 on CPU, bf16 on CUDA]"),
        click.option("--storage", default="float32", show_default=True,
                     type=click.Choice(["float32", "float16", "compact"]),
                     help="float16: half the size; compact: 0.43, float32 columns."),
        click.option("--batch-tokens", type=int, help="Tokens per batch, padding included."),
        click.option("--shard-rows", type=int, help="Records per file. [about 64 MB]"),
        click.option("--no-text", is_flag=True, help="Do not write the texts to the output."),
    )):  # fmt: skip
        command = option(command)
    return command


@cli.command(epilog=_EXTRACT_EXAMPLES)
@click.argument("corpus", nargs=-1, required=True)
@click.option("--out", type=click.Path(path_type=Path), help="Folder to make. [CORPUS.vectors]")
@_corpus_options
@_model_options
@_vector_options
@click.option("--dry-run", is_flag=True, help="Tell rows, tokens, bytes, minutes.")
@click.option("--overwrite", is_flag=True, help="Replace what an earlier job made.")
@click.option("--allow-env-change", is_flag=True, help="Resume with other versions or threads.")
@click.option("--progress/--no-progress", default=None, help="[shown on a terminal]")
@_output_options
def extract(
    corpus: tuple[str, ...],
    out: Path | None,
    pooling: str,
    keep: str | None,
    no_header: bool,
    no_text: bool,
    special_tokens: str,
    dry_run: bool,
    overwrite: bool,
    allow_env_change: bool,
    progress: bool | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **settings: Any,
) -> int:
    """Turn a corpus into sentence, word and token vectors in Parquet.

    CORPUS is one or more TSV, CSV, JSONL or Parquet files, also as .gz or .zst, or - for standard
    input. A run that was interrupted goes on where it stopped when the same command is given again.
    """
    from embedkit.extraction import plan_extract, run_plan

    notify = _notifier(quiet)
    with plan_extract(
        corpus,
        out=out,
        poolings=pooling.split(","),
        keep=keep.split(",") if keep else (),
        header=not no_header,
        store_text=not no_text,
        special_tokens=special_tokens == "include",
        notify=notify,
        **settings,
    ) as plan:
        if verbose:
            _print_plan(plan)
        if dry_run:
            return _dry_run(plan, as_json=as_json)
        with _ProgressBar(show=_show_progress(progress, quiet)) as bar:
            result = run_plan(
                plan,
                overwrite=overwrite,
                allow_env_change=allow_env_change,
                progress=bar.update,
                notify=notify,
            )
    if as_json:
        click.echo(_json({"out": str(result.out), **result.manifest.totals}))
    elif not quiet:
        _print_result(result)
    return EXIT_REJECTS if result.manifest.totals["rejected"] else 0


@cli.command(
    epilog="\b\nExamples:\n  embedkit info corpus.vectors\n  embedkit info klue/bert-base\n"
)
@click.argument("what")
@click.option("--revision", help="Branch, tag or commit of a hub checkpoint.")
@click.option("--offline", is_flag=True, help="Never ask the hub.")
@_output_options
def info(
    what: str, revision: str | None, offline: bool, as_json: bool, quiet: bool, verbose: bool
) -> None:
    """Tell what is in a dataset or a checkpoint.

    WHAT is a folder that extract wrote, or the hub id or folder of a checkpoint.
    """
    path = Path(what)
    if path.is_dir() and not (path / "config.json").is_file():
        from embedkit.inspection import describe_dataset

        dataset = describe_dataset(path)
        click.echo(_dataset_json(dataset) if as_json else _dataset_text(dataset))
        return
    from embedkit.encoder import Encoder
    from embedkit.inspection import describe_model

    encoder = Encoder.load(
        what, revision=revision, offline=offline, device="cpu", precision="fp32",
        notify=_notifier(quiet),
    )  # fmt: skip
    model = describe_model(encoder)
    click.echo(_json(_plain(model)) if as_json else _model_text(model))


@cli.command(
    epilog="\b\nExamples:\n  embedkit verify corpus.vectors\n"
    "  embedkit verify corpus.vectors --recompute 2\n"
)
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--recompute", default=0, metavar="N", help="Embed N random shards again.")
@click.option("--model", help="Where the checkpoint is now. [the name it had]")
@click.option("--device", default="auto", show_default=True)
@_output_options
def verify(
    out: Path,
    recompute: int,
    model: str | None,
    device: str,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Check that a dataset is whole: checksums, counts, order, finite numbers."""
    from embedkit.verification import require_ok, verify

    found = verify(out, recompute=recompute, model=model, device=device, notify=_notifier(quiet))
    if as_json:
        click.echo(_json(_plain(found)))
    require_ok(found, out)
    if not as_json and not quiet:
        click.echo(
            f"{out}: {found.files} files, {found.rows:,} rows, {found.values:,} numbers: as written"
        )
        if found.recomputed_shards:
            click.echo(
                f"recomputed {found.recomputed_rows:,} rows of shards "
                f"{', '.join(map(str, found.recomputed_shards))}: {found.identical_rows:,} with the "
                f"same bits, largest relative difference {found.worst:.1e}"
            )


@cli.command(
    epilog='\b\nExamples:\n  embedkit tokenize "배를 타고 여행을 간다."\n'
    "  embedkit tokenize --vocab 2000:2010\n"
)
@click.argument("text", required=False)
@click.option("--pair", help="Second text of a pair.")
@click.option("--vocab", metavar="FROM:TO", help="List a slice of the vocabulary instead.")
@click.option("--max-length", type=int, help="Tokens per text. [what the checkpoint states]")
@click.option("--prefix", default="", help="Put before the text.")
@_model_options
@_output_options
def tokenize(
    text: str | None,
    pair: str | None,
    vocab: str | None,
    max_length: int | None,
    prefix: str,
    model: str,
    revision: str | None,
    offline: bool,
    device: str,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Show what the model sees of a text: tokens, ids, segments, offsets, words."""
    from embedkit.tokenization import explain, open_tokenizer, vocabulary_slice

    if (text is None) == (vocab is None):
        raise UsageError("give either a text or --vocab FROM:TO.")
    tokenizer, settings = open_tokenizer(
        model, revision=revision, offline=offline, max_length=max_length, prefix=prefix,
        notify=_notifier(quiet),
    )  # fmt: skip
    if vocab is not None:
        rows = vocabulary_slice(tokenizer, vocab)
    else:
        rows = explain(tokenizer, str(text), pair, settings=settings)
    if as_json:
        click.echo(_json(rows))
    else:
        click.echo(_columns(rows))


def _notifier(quiet: bool) -> Callable[[str], None]:
    def notify(message: str) -> None:
        if not quiet:
            click.echo(f"note: {visible(message)}", err=True)

    return notify


def _show_progress(asked: bool | None, quiet: bool) -> bool:
    return asked if asked is not None else not quiet and sys.stderr.isatty()


class _ProgressBar:
    """Progress in tokens, so that the remaining time does not lie when texts differ in length."""

    def __init__(self, *, show: bool) -> None:
        self._bar: Any = None
        self._first: tuple[int, float] | None = None
        if show:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("tokens · {task.fields[rate]} · {task.fields[left]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("reading", total=None, rate="", left="")

    def __enter__(self) -> _ProgressBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, state: Any) -> None:
        if self._bar is None:
            return
        import time

        now = time.monotonic()
        if self._first is None:
            self._first = (state.tokens_fresh, now)
        fresh, seconds = state.tokens_fresh - self._first[0], now - self._first[1]
        rate = fresh / seconds if seconds > 0.5 else 0.0
        left = (state.tokens_total - state.tokens_done) / rate if rate else 0.0
        self._bar.update(
            self._task,
            description=f"shard {state.shard + 1}",
            completed=state.tokens_done,
            total=state.tokens_total,
            rate=f"{rate:,.0f}/s" if rate else "…",
            left=f"{duration_text(left)} left" if rate else "",
        )


def _dry_run(plan: ExtractPlan, *, as_json: bool) -> int:
    from embedkit.estimate import estimate

    cost = estimate(plan)
    click.echo(_json(_plain(cost)) if as_json else _estimate_text(plan, cost))
    return 0


def _print_plan(plan: ExtractPlan) -> None:
    corpus, encoder = plan.corpus, plan.encoder
    lines = {
        "corpus": f"{len(corpus.files)} file(s), {corpus.dialect.format}, {corpus.dialect.encoding}"
        f", quoting {corpus.dialect.quoting}",
        "columns": f"text={corpus.text} pair={corpus.text_pair} id={corpus.id} "
        f"label={corpus.label} keep={','.join(corpus.keep) or None}",
        "model": f"{encoder.checkpoint.name} ({encoder.checkpoint.source}) on "
        f"{encoder.model.device}, {encoder.precision}",
        "views": ", ".join(v.name for v in plan.views),
        "shards": f"{plan.shard_rows} records each, batches of {encoder.batch_tokens} tokens",
    }
    for name, line in lines.items():
        click.echo(f"{name:8} {visible(line)}", err=True)


def _estimate_text(plan: ExtractPlan, cost: Estimate) -> str:
    left = sum(cost.left_out.values())
    lines = [
        f"would write {plan.out}: {cost.accepted:,} rows in {cost.shards} shards",
        f"  records    {cost.records:,} = {cost.accepted:,} to embed + "
        f"{sum(cost.rejected.values()):,} rejected{_reasons(cost.rejected)} + {left:,} left out"
        f"{_reasons(cost.left_out)}",
        f"  tokens     about {cost.tokens:,} (measured on {cost.sampled:,} texts; "
        f"{cost.truncated:.1%} of them are cut at {plan.tokenizer.max_length})",
    ]
    widest = max((len(name) for name in cost.bytes_per_view), default=0)
    for name, size in cost.bytes_per_view.items():
        lines.append(f"    {name:{widest}}  {bytes_text(size):>10}")
    lines += [
        f"  disk       about {bytes_text(cost.bytes_total)}, {bytes_text(cost.free_bytes)} free",
        f"  time       about {duration_text(cost.seconds)} "
        f"({cost.tokens_per_second:,.0f} tokens/s measured here)",
    ]
    if cost.bytes_total * 1.1 > cost.free_bytes:
        lines.append("  WARNING: this will not fit. Use fewer --layers or --storage compact.")
    if cost.quotes:
        lines.append(f"  note: {cost.quotes}")
    return "\n".join(lines)


def _print_result(result: ExtractResult) -> None:
    totals = result.manifest.totals
    ledger = totals["ledger"]
    size = sum(f["bytes"] for f in result.manifest.files.values())
    views = result.manifest.views
    if result.was_complete:
        click.echo(f"{result.out} is already complete; nothing was done.")
    else:
        speed = result.tokens_fresh / result.seconds if result.seconds else 0
        resumed = f", {result.resumed_shards} shards were there" if result.resumed_shards else ""
        click.echo(
            f"wrote {result.out}: {totals['accepted']:,} rows × {len(views)} views, "
            f"{bytes_text(size)}, in {duration_text(result.seconds)} "
            f"({speed:,.0f} tokens/s{resumed})"
        )
    rejected = f"{totals['rejected']:,} rejected{_reasons(totals['rejected_by_reason'])}"
    if totals["rejected"]:
        rejected += f" → {result.out}/_embedkit/rejects.jsonl"
    left = totals["left_out"]
    left_out = f" + {left:,} left out{_reasons(totals['left_out_by_reason'])}" if left else ""
    click.echo(
        f"  records  {totals['records']:,} = {totals['accepted']:,} embedded + {rejected}{left_out}"
    )
    click.echo(f"  tokens   {_ledger_text(ledger, result.manifest)}")
    click.echo(f"  views    {_views_text(views)}")
    click.echo("open it:")
    _print_open(result.out, result.manifest, ["pandas", "embedkit"])


def _print_open(out: Path, manifest: Manifest, tools: Sequence[str]) -> None:
    from embedkit.inspection import open_lines

    lines = open_lines(out, manifest)
    for tool in tools:
        click.echo(f"  {lines[tool]}")


def _ledger_text(ledger: dict[str, int], manifest: Manifest) -> str:
    limit = manifest.job["vectors"]["max_length"]
    text = f"{ledger.get('tokens', 0):,}"
    cut = ledger.get("records_truncated", 0)
    if cut:
        text += f"; {cut:,} texts were cut at {limit} ({ledger['tokens_cut']:,} tokens left out)"
    elif longer := ledger.get("records_longer_than_limit", 0):
        text += f"; {longer:,} texts of more than {limit} were read in windows"
    else:
        text += f"; no text was cut (limit {limit})"
    return text


def _views_text(views: dict[str, int]) -> str:
    names = list(views)
    if len(names) > 8:
        names = [*names[:3], "…", *names[-3:]]
    return f"{' '.join(names)} ({', '.join(sorted({str(w) for w in views.values()}))} wide)"


def _dataset_text(info: DatasetInfo) -> str:
    manifest = info.manifest
    totals, names = manifest.totals, manifest.names
    lines = [f"{info.path}: vectors of {', '.join(names['inputs'])}"]
    revision = f" at {names['revision']}" if names["revision"] else ""
    vectors = manifest.job["vectors"]
    lines.append(
        f"  model      {names['model']}{revision}, {manifest.n_layers} layers, "
        f"{manifest.job['model']['width']} wide, computed in {vectors['precision']}"
    )
    lines.append(
        f"  records    {totals['records']:,} = {totals['accepted']:,} embedded + "
        f"{totals['rejected']:,} rejected{_reasons(totals['rejected_by_reason'])} + "
        f"{totals['left_out']:,} left out{_reasons(totals['left_out_by_reason'])}"
    )
    lines.append(f"  tokens     {_ledger_text(totals['ledger'], manifest)}")
    if unknown := totals["ledger"].get("tokens_unknown"):
        share = unknown / totals["ledger"]["tokens_kept"]
        lines.append(f"  unknown    {unknown:,} tokens ({share:.1%})")
    if info.duplicate_texts is not None:
        lines.append(f"  duplicates {info.duplicate_texts:,} rows repeat an earlier text")
    for folder, files, rows, size in info.tables:
        lines.append(f"  {folder:10} {rows:,} rows, {bytes_text(size)} in {files} files")
    lines.append(f"views (norms and mean cosine of two vectors, over {info.health_rows:,} rows):")
    rows_of_table = [
        {
            "view": h.name,
            "width": h.width,
            "norm": f"{h.norm_mean:.3f}",
            "min": f"{h.norm_min:.3f}",
            "max": f"{h.norm_max:.3f}",
            "zero": h.zeros,
            "nan": h.not_finite,
            "cosine": f"{h.anisotropy:.3f}",
        }
        for h in info.health
    ]
    lines.append(_columns(rows_of_table))
    lines.append("open it:")
    from embedkit.inspection import open_lines

    lines += [f"  {line}" for line in open_lines(info.path, manifest).values()]
    return visible("\n".join(lines))


def _dataset_json(info: DatasetInfo) -> str:
    from embedkit.inspection import open_lines

    return _json(
        {
            "path": str(info.path),
            **_plain(info.manifest),
            "health": [_plain(h) for h in info.health],
            "health_rows": info.health_rows,
            "duplicate_texts": info.duplicate_texts,
            "open": open_lines(info.path, info.manifest),
        }
    )


def _model_text(model: ModelInfo) -> str:
    pooler = "yes" if model.has_pooler else "no (--pooling pooler is refused)"
    lines = [
        f"{model.name}: {model.model_type}, {model.n_layers} layers, {model.width} wide",
        f"  from       {model.source}: {model.folder}",
        f"  positions  {model.positions}; texts are cut at {model.max_length} tokens by default",
        f"  vocabulary {model.vocabulary:,} entries, {model.tokenizer}",
        f"  pooler     {pooler}",
        f"  parameters {model.parameters:,}",
    ]
    if model.revision:
        lines.insert(2, f"  revision   {model.revision}")
    for depth, name, kind, count in model.parts:
        lines.append(f"    {'  ' * depth}{name} ({kind})".ljust(52) + f"{count:>14,}")
    return visible("\n".join(lines))


def _columns(rows: Sequence[dict[str, Any]]) -> str:
    """A plain table: right-aligned numbers, left-aligned text, two spaces between."""
    if not rows:
        return "(nothing)"
    names = list(rows[0])
    cells = [[visible(str(row[name])) for name in names] for row in rows]
    widths = [max(_width(c[i]) for c in [names, *cells]) for i in range(len(names))]
    numeric = [not isinstance(rows[0][n], str) or _is_number(rows[0][n]) for n in names]
    return "\n".join(
        "  "
        + "  ".join(
            _pad(cell, width, right=right)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in [names, *cells]
    )


def _width(text: str) -> int:
    """Columns on a terminal: Hangul and kanji take two."""
    from unicodedata import east_asian_width

    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def _pad(text: str, width: int, *, right: bool) -> str:
    fill = " " * (width - _width(text))
    return fill + text if right else text + fill


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _reasons(counts: dict[str, int]) -> str:
    if not counts:
        return ""
    return " (" + ", ".join(f"{reason} {count:,}" for reason, count in counts.items()) + ")"


def _plain(record: Any) -> dict[str, Any]:
    """A record as plain data for JSON."""
    import dataclasses

    return dataclasses.asdict(record)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1, default=str)
