"""Commands about whole experiments: fetch, run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from embedkit.cli.command import Result, command
from embedkit.cli.messages import show_note
from embedkit.cli.options import FILE, option, options
from embedkit.cli.text import json_text, say
from embedkit.display import visible

__all__ = ["fetch", "run"]


@command("embedkit fetch https://example.org/corpus.tsv --sha256 HASH --out data/corpus.tsv")
@click.argument("url")
@options(
    option("--sha256", required=True, help="SHA-256 of the file, 64 hex digits."),
    option("--out", type=FILE, required=True, help="File to write."),
)
def fetch(url: str, sha256: str, out: Path) -> Result:
    """Download a file with a known hash, unless it exists."""
    from embedkit.experiments.fetch import fetch as get

    fresh = get(url, sha256=sha256, out=out)
    size = out.stat().st_size
    done = "fetched" if fresh else "is already there"
    return Result(
        {"out": str(out), "bytes": size, "fetched": fresh},
        lambda: f"{visible(str(out))}: {done}, {size:,} bytes, hash as expected", indent=None,
    )  # fmt: skip


@command(
    "embedkit run pipelines/quickstart.toml",
    "embedkit run pipelines/quickstart.toml --set corpus=../mine.tsv --set train.svm.tune=true",
    "embedkit run pipelines/reviews.toml --dry-run",
)
@click.argument("recipe", type=FILE)
@options(
    option("--set", "settings", multiple=True, metavar="KEY=VALUE",
           help="Set a value of the recipe's [set] table, or an option as STAGE.OPTION."),
    option("--dry-run", is_flag=True, help="Print the commands instead of running them."),
    option("--force", is_flag=True, help="Run every stage, even if it is up to date."),
)  # fmt: skip
@click.pass_context
def run(
    context: click.Context, recipe: Path, settings: tuple[str, ...], dry_run: bool, force: bool,
    as_json: bool, quiet: bool,
) -> int:  # fmt: skip
    """Run the stages of an experiment.

    RECIPE is a TOML file. A stage is a command with its options; stages run in the order of the
    file, and those that are up to date are skipped. Paths are relative to the folder of the file.
    """
    from embedkit.experiments.pipeline import run_recipe, shell_lines
    from embedkit.experiments.recipe import misplaced, read_recipe

    group = context.find_root().command
    commands = {n: c for n, c in getattr(group, "commands", {}).items() if n != "run"}
    stages = read_recipe(recipe, commands, settings)
    for note in () if quiet else misplaced(recipe, settings):
        show_note(note)
    if dry_run:
        say("\n".join(shell_lines(stages)))
        return 0

    def progress(line: str) -> None:
        if not quiet:
            say(line, err=True)

    done = run_recipe(stages, force=force, quiet=quiet, divert=as_json, progress=progress)
    if as_json:
        say(json_text([asdict(result) for result in done.stages], indent=None))
    elif done.stages[-1].status != "failed":
        for name in done.stages[-1].outputs:
            progress(f"made {name}")
    return done.exit_code
