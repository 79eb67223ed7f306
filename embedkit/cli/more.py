"""Commands around experiments: run, fetch and doctor."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from embedkit.cli.command import Commands, Result, command
from embedkit.cli.options import FILE, option, options
from embedkit.cli.text import json_text, say
from embedkit.errors import EXIT_REJECTS
from embedkit.storage import without_secrets


@command("embedkit fetch https://example.org/corpus.tsv --sha256 HASH --out data/corpus.tsv")
@click.argument("url")
@options(
    option("--sha256", required=True, help="SHA-256 of the file, 64 hex digits."),
    option("--out", type=FILE, required=True, help="File to write."),
)
def fetch(url: str, sha256: str, out: Path) -> Result:
    """Download a file with a known hash, unless it exists."""
    from embedkit.pipeline import fetch as get

    fresh = get(url, sha256=sha256, out=out)
    size = out.stat().st_size
    done = "fetched" if fresh else "is already there"
    return Result(
        {"out": str(out), "bytes": size, "fetched": fresh},
        lambda: f"{out}: {done}, {size:,} bytes, hash as expected",
    )


@command(
    "embedkit run pipelines/quickstart.toml",
    "embedkit run pipelines/quickstart.toml --set corpus=../mine.tsv --set train.tfidf.seed=1",
    "embedkit run pipelines/reviews.toml --dry-run",
)
@click.argument("recipe", type=FILE)
@options(
    option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set a value of the recipe's [set] table, or an option as STAGE.OPTION.",
    ),
    option("--dry-run", is_flag=True, help="Print the commands instead of running them."),
    option("--trust", is_flag=True, help="Let it import code, and write outside of its folder."),
)
def run(
    recipe: Path, settings: tuple[str, ...], dry_run: bool, trust: bool, as_json: bool, quiet: bool
) -> int:
    """Run the stages of an experiment.

    RECIPE is a TOML file. A stage is a command with its options; stages run in the order of the
    file, and those that are up to date are skipped. Paths are relative to the folder of the file,
    below which it writes; it runs only commands of embedkit, and none of anyone's code unless you
    pass --trust. Look at recipes of others with --dry-run first.
    """
    from embedkit.pipeline import read_recipe, run_recipe

    group = click.get_current_context().find_root().command
    assert isinstance(group, Commands)
    # a recipe that runs itself would never end
    commands = {n: c for n, c in group.commands.items() if n != "run"}
    # a dry run executes nothing, so that it may show what would need --trust
    stages = read_recipe(recipe, commands, settings, trust=trust or dry_run)
    for stage in stages:
        for need in stage.needs_trust:
            how = "--trust allows" if trust else "it would need --trust"
            say(f"note: {how}: [{stage.name}] {need}", err=True)
    if dry_run:
        lines = [without_secrets(shlex.join(["embedkit", *stage.line])) for stage in stages]
        lines.insert(0, f"cd {shlex.quote(str(stages[0].folder))}")
        if as_json:
            click.echo(json_text(lines))
        else:
            say("\n".join(lines))
        return 0

    def progress(line: str) -> None:
        if not quiet:
            say(line, err=True)

    # nobody is there to answer: a stage without its query or texts has none, and does not wait
    stdin, stdout = sys.stdin, sys.stderr if as_json else sys.stdout
    try:
        with Path(os.devnull).open() as sys.stdin, redirect_stdout(stdout):
            # through the same door as a command that was typed: notes, errors, exit codes are alike
            results = run_recipe(stages, group.call, quiet=quiet or as_json, progress=progress)
    finally:
        sys.stdin = stdin
    codes, failed = [result["exit_code"] for result in results], results[-1]["status"] == "failed"
    if as_json:
        click.echo(json_text(results))
    elif not failed:
        for name in results[-1]["outputs"]:
            progress(f"made {name}")
    # rejected records do not stop the stages, but are not forgotten either
    return codes[-1] if failed else EXIT_REJECTS if EXIT_REJECTS in codes else 0


@command("embedkit doctor", "embedkit doctor --json")
def doctor() -> Result:
    """Check the installation and the machine.

    A few texts are extracted and verified on every device, and encoded again alone, in another
    order and on one thread, in about five seconds. With --json all versions are printed too:
    include them in bug reports.
    """
    from embedkit.doctor import diagnose

    findings = diagnose()
    return Result(findings, lambda: _findings_text(findings), code=findings["exit_code"])


def _findings_text(findings: dict[str, Any]) -> str:
    speeds = [
        f"{about['records']} records extracted, {about['tokens_per_second']:,.0f} tokens/s on "
        f"{about['name']} ({about['precision']})"
        for about in findings["devices"].values()
        if "records" in about
    ]
    gpus = [about["name"] for device, about in findings["devices"].items() if device != "cpu"]
    missing = ", ".join(name for names in findings["missing"].values() for name in names)
    lines = ["✓ embedkit works here: " + "; ".join(speeds)] if findings["works"] else []
    for about in findings["devices"].values():
        counts = about.get("same_bits", {}).items()
        shown = ", ".join(f"{how} ({count} of {about['records']})" for how, count in counts)
        lines += [f"  texts with the same bits as among others: {shown}"] * bool(counts)
    lines += [f"✗ embedkit does not work here: {problem}" for problem in findings["problems"]]
    lines += [f"! {note}" for note in findings["notes"]]
    models = ", ".join(findings["models"]) or "none"
    lines.append(f"  models here: {models}; GPU: {', '.join(gpus) or 'none'}")
    lines += [f"  optional, not installed: {missing}"] if missing else []
    return "\n".join([*lines, "everything checked, all versions: embedkit doctor --json"])
