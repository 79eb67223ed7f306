"""Commands that make runs on stored vectors: split, train, probe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from embedkit.choices import FEATURES
from embedkit.cli.command import Result, command
from embedkit.cli.options import FILE, names_of, option, options, reading_of
from embedkit.cli.progress import progress_bar
from embedkit.display import visible

__all__ = ["probe", "split", "train"]


@command(
    "embedkit split reviews.vectors --out split.parquet",
    "embedkit split reviews.tsv --folds 5 --test 0.2 --group author --out split.parquet",
)
@click.argument("source", type=FILE)
@options(
    option("--out", type=FILE, required=True, help="Parquet file to write."),
    option("--folds", default=5, help="Number of folds; 1: a fifth of the records is held out, "
           "all others are trained on."),
    option("--test", default=0.0, help="Fraction of the records to hold out as a test set."),
    option("--repeats", default=1, help="Number of repetitions with other folds."),
    option("--group", help="Group column; a group is never divided between folds."),
    option("--allow-duplicates", is_flag=True,
           help="Allow records with the same text in different folds."),
    "--overwrite",
    "corpus",
)  # fmt: skip
def split(source: Path, label: str | None, seed: int, **settings: Any) -> Result:
    """Assign records to folds.

    Folds are stratified by label; duplicate texts always share a fold. SOURCE is a dataset that
    extract wrote, or a corpus file; the options on how to read are for the latter.
    """
    import numpy as np

    from embedkit.runs.splits import split as make

    reading = reading_of(settings)
    made = make(source, label=label, seed=seed, reading=reading, **settings)
    sizes = {str(fold): int((made.folds[:, 0] == fold).sum()) for fold in range(made.n_folds)}
    if made.n_folds == 1:
        sizes["train"] = len(made.in_folds) - sizes["0"]
    if len(made.test):
        sizes["test"] = len(made.test)
    records, groups = len(made.row), len(np.unique(made.group))

    def text() -> str:
        shown = visible(str(settings["out"]))
        lines = [f"wrote {shown}: {records:,} records, {made.n_folds} folds",
                 "  " + ", ".join(f"{'fold ' if name.isdigit() else ''}{name} {size:,}"
                                  for name, size in sizes.items())]  # fmt: skip
        lines.append(f"  never divided: {made.settings.unit_text} ({groups:,})")
        return "\n".join(lines)

    data = {"out": str(settings["out"]), "records": records, "groups": groups, "folds": sizes,
            "unit": made.settings.unit, "fingerprint": made.fingerprint}  # fmt: skip
    return Result(data, text, indent=None)


@command(
    "embedkit train reviews.vectors --out runs/logreg",
    "embedkit train reviews.vectors --view mean_6,cls_6 --estimator lightgbm --out runs/lgbm",
    "embedkit train reviews.vectors --features tfidf --out runs/tfidf",
    "embedkit train treebank.vectors --level word --view 6 --out runs/tags",
    tables=True,
)
@click.argument("dataset", type=FILE)
@options(
    "--out",
    option("--view", help="Stored view; several, separated by commas, are concatenated. "
           "[mean of the last layer]"),
    "--level",
    "--estimator",
    option("--features", default="vectors", type=click.Choice(FEATURES),
           help="Stored vectors, or TF-IDF of the stored texts or words."),
    "--task",
    "--split",
    option("--split-column", help="Stored column with the names of the folds; test is the test "
           "set."),
    "--folds",
    option("--test", type=FILE, help="Test set: a corpus file, or a dataset extracted with the "
           "same settings; labels are optional."),
    "--test-sample", "--test-min-chars",
    option("--threshold", help="Decision threshold for the second of two classes: a number, or a "
           "metric to optimize in inner folds (macro_f1, f1, f2 …)."),
    option("--pca", type=int, help="Number of principal components, fitted in every training "
           "fold."),
    option("--tune/--no-tune", default=True,
           help="Choose scaling and regularization in inner folds of the training records."),
    option("--metric", help="Metric that tuning optimizes: log_loss, accuracy, macro_f1, f2, "
           "average_precision …; for regression rmse, r2, spearman … [log_loss or rmse]"),
    "--class-weight",
    "--seed",
    option("--threads", type=int, help="Number of fits that run at the same time. [number of "
           "cores]"),
    "--overwrite",
)  # fmt: skip
def train(dataset: Path, view: str | None, **settings: Any) -> Result:
    """Cross-validate an estimator on stored vectors.

    It is then fitted on all folds, and saved for predict.
    """
    from embedkit.classifiers.train import train as fit
    from embedkit.cli.run_text import run_data, run_text

    with progress_bar() as progress:
        result = fit(dataset, view=names_of(view), progress=progress, **settings)
    return Result(run_data(result), lambda: run_text(result), finding=True, indent=None)


@command(
    "embedkit probe reviews.vectors --out runs/probe",
    "embedkit probe reviews.vectors --control random-weights --codelength --out runs/probe",
    tables=True,
)
@click.argument("dataset", type=FILE)
@options(
    "--out",
    option("--view", help="Views to score, separated by commas. [all that are stored]"),
    "--level",
    "--estimator",
    "--task",
    "--split",
    "--folds",
    option("--metric", help="Metric that is shown, tuned for and used to choose the view. "
           "[accuracy or r2 is shown, log_loss or rmse is tuned for]"),
    option("--shuffles", default=3, help="Number of control tasks: random labels, the same one for "
           "the same text or word."),
    option("--control", type=click.Choice(["random-weights"]),
           help="Also encode the texts with untrained encoders."),
    option("--encoders", default=3, help="Number of untrained encoders."),
    option("--codelength", is_flag=True, help="Compute the minimum description length of the "
           "labels by online coding."),
    option("--learning-curve", is_flag=True, help="Also score fits on 10 to 100 % of the training "
           "records."),
    "--seed",
    option("--threads", type=int, help="Number of fits that run at the same time. [number of "
           "cores]"),
    "--overwrite",
)  # fmt: skip
def probe(dataset: Path, view: str | None, **settings: Any) -> Result:
    """Score every stored view under the same folds.

    Controls: the majority class, control tasks with random labels and, with --control, untrained
    encoders.
    """
    from embedkit.classifiers.probe import probe as run
    from embedkit.cli.run_text import run_data, run_text

    with progress_bar() as progress:
        result = run(dataset, view=names_of(view), progress=progress, **settings)
    return Result(run_data(result), lambda: run_text(result), finding=True, indent=None)
