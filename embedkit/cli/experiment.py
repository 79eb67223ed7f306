"""Commands about whole experiments: compare, fetch, run."""

from __future__ import annotations

import json
from pathlib import Path

import click

from embedkit.choices import BLENDS
from embedkit.cli.options import notifier, output_options
from embedkit.display import visible
from embedkit.errors import UsageError

__all__ = ["compare", "fetch", "run"]


@click.command(
    epilog="\b\nExamples:\n"
    "  embedkit compare runs/tfidf runs/logreg runs/lightgbm\n"
    "  embedkit compare runs/* --metric macro_f1 --report report.html\n"
    "  embedkit compare runs/tfidf runs/cls --write-blend blend.tsv \\\n"
    "    --answers tfidf.tsv --answers cls.tsv\n"
)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--baseline", help="Run to compare all others with, or majority. [the run on TF-IDF]")
@click.option("--metric", help="Score to sort by. [accuracy; of values rmse]")
@click.option("--report", type=click.Path(path_type=Path), help="HTML page to write.")
@click.option(
    "--texts",
    type=click.Path(path_type=Path),
    help="Dataset or corpus with the texts for the report. [the runs' own dataset]",
)
@click.option(
    "--records", default=100, show_default=True, type=click.IntRange(min=0),
    help="Disputed records in the report.",
)  # fmt: skip
@click.option(
    "--write-blend",
    type=click.Path(path_type=Path),
    help="File for blended labels and probabilities; .tsv, .jsonl or .parquet.",
)
@click.option(
    "--blend", default="mean", show_default=True, type=click.Choice(BLENDS),
    help="Which blend to write.",
)  # fmt: skip
@click.option(
    "--answers",
    multiple=True,
    type=click.Path(path_type=Path),
    help="What predict wrote of new texts, once per run in their order: blend these.",
)
@click.option("--seed", default=0, show_default=True, type=int, help="Seed of the bootstrap.")
@click.option("--markdown", is_flag=True, help="Print the tables as Markdown.")
@click.option("--overwrite", is_flag=True)
@output_options
def compare(
    runs: tuple[Path, ...], baseline: str | None, metric: str | None, report: Path | None,
    texts: Path | None, records: int, write_blend: Path | None, blend: str,
    answers: tuple[Path, ...], seed: int, markdown: bool, overwrite: bool, as_json: bool,
    quiet: bool, verbose: bool,
) -> None:  # fmt: skip
    """Compare runs of one split: scores, differences, cost, blends.

    RUNS are folders that train, finetune or probe wrote.
    """
    from embedkit.cli.tabulate import comparison_markdown, comparison_text
    from embedkit.cli.text import json_text, plain
    from embedkit.comparison.compare import compare as calculate

    if answers and write_blend is None:
        raise UsageError("--answers are blended into a file; name it with --write-blend.")
    found = calculate(runs, baseline=baseline, metric=metric, seed=seed)
    notify = notifier(quiet)
    if write_blend is not None:
        from embedkit.comparison.blend import write_blend as write

        made = found.chosen_blend(blend)
        count = write(made, write_blend, answers=answers, overwrite=overwrite)
        notify(f"wrote {write_blend}: {count:,} records, {made.name}")
    if report is not None:
        from embedkit.comparison.report import write_report

        figures = write_report(found, report, texts=texts, limit=records, overwrite=overwrite)
        notify(f"wrote {report}, pictures in {figures}")
    if as_json:
        click.echo(json_text(plain(found.table)))
    elif markdown:
        click.echo(comparison_markdown(found.table))
    elif not quiet:
        click.echo(comparison_text(found.table))


@click.command(
    epilog="\b\nExample:\n"
    "  embedkit fetch https://example.org/corpus.tsv --sha256 HASH --out data/corpus.tsv\n"
)
@click.argument("url")
@click.option("--sha256", required=True, help="Of the file, 64 hex digits.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File to make.")
@output_options
def fetch(url: str, sha256: str, out: Path, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Download a file whose hash is known, unless it is there."""
    from embedkit.experiments.fetch import fetch as get

    fresh = get(url, sha256=sha256, out=out)
    if as_json:
        click.echo(json.dumps({"out": str(out), "bytes": out.stat().st_size, "fetched": fresh}))
    elif not quiet:
        done = "fetched" if fresh else "is already there"
        click.echo(f"{visible(str(out))}: {done}, {out.stat().st_size:,} bytes, hash as expected")


@click.command(
    epilog="\b\nExamples:\n"
    "  embedkit run pipelines/quickstart.toml\n"
    "  embedkit run pipelines/quickstart.toml --set corpus=../mine.tsv --set train.svm.tune=true\n"
    "  embedkit run pipelines/reviews.toml --dry-run\n"
)
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE",
    help="Set a value of the recipe's [set] table, or an option as STAGE.OPTION.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the commands instead of running them.")
@click.option("--force", is_flag=True, help="Run every stage, also those that are up to date.")
@output_options
@click.pass_context
def run(
    context: click.Context, recipe: Path, settings: tuple[str, ...], dry_run: bool, force: bool,
    as_json: bool, quiet: bool, verbose: bool,
) -> int:  # fmt: skip
    """Run the stages of an experiment, in the order of the file; skip what is up to date.

    RECIPE is a TOML file. A stage is a command with its options; paths count from the file's
    folder.
    """
    from embedkit.experiments.pipeline import run_recipe, shell_lines
    from embedkit.experiments.recipe import misplaced, read_recipe

    group = context.find_root().command
    commands = {n: c for n, c in getattr(group, "commands", {}).items() if n != "run"}
    stages = read_recipe(recipe, commands, settings)
    for note in misplaced(recipe, settings):
        notifier(quiet)(note)
    if dry_run:
        click.echo("\n".join(shell_lines(stages)))
        return 0

    def progress(line: str) -> None:
        if not quiet:
            click.echo(visible(line), err=True)

    done = run_recipe(stages, force=force, quiet=quiet, divert=as_json, progress=progress)
    if as_json:
        from dataclasses import asdict

        click.echo(json.dumps([asdict(result) for result in done.stages], ensure_ascii=False))
    elif done.stages[-1].status != "failed":
        for name in done.stages[-1].outputs:
            progress(f"made {name}")
    return done.exit_code
