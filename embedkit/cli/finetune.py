"""The command ``finetune``."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from embedkit.choices import HEADS
from embedkit.cli.options import (
    corpus_options,
    model_options,
    output_options,
    reading_of,
    show_progress,
)
from embedkit.cli.progress import show_lines
from embedkit.errors import EXIT_REJECTS, UsageError

__all__ = ["finetune"]

_READING = ("text", "text_pair", "id", "label", "format", "encoding", "quoting", "unicode",
            "no_header", "min_chars", "sample", "limit")  # fmt: skip


@click.command(
    epilog="\b\nExamples:\n"
    "  embedkit finetune reviews.tsv --out runs/cls\n"
    "  embedkit finetune reviews.vectors --split split.parquet --head cnn --epochs 10 "
    "--patience 2 --out runs/cnn\n"
    "  embedkit finetune papers.csv --text title --text-pair abstract --class-weight balanced "
    "--threshold f2 --test new.csv --out runs/papers\n"
)
@click.argument("corpus", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the run.")
@model_options
@click.option(
    "--head",
    default="cls",
    show_default=True,
    type=click.Choice(HEADS),
    help="Classification head.",
)
@click.option(
    "--mix-layers", default=1, show_default=True, type=int,
    help="Number of last layers whose trained mix the head sees.",
)  # fmt: skip
@click.option(
    "--cnn-widths", default="2,3,4", show_default=True,
    help="Tokens that the convolutions span.",
)  # fmt: skip
@click.option(
    "--task",
    default="classification",
    show_default=True,
    type=click.Choice(["classification", "regression"]),
)
@click.option("--split", type=click.Path(path_type=Path), help="File that embedkit split wrote.")
@click.option("--folds", default=5, show_default=True, type=int, help="Without --split.")
@click.option(
    "--test",
    type=click.Path(path_type=Path),
    help="A further corpus file for the mean of all folds' models to predict.",
)
@click.option("--epochs", default=3, show_default=True, type=int, help="At most.")
@click.option("--learning-rate", default=5e-5, show_default=True, type=float,
              help="Peak learning rate; it falls linearly to 0.")  # fmt: skip
@click.option("--head-learning-rate", type=float,
              help="Peak learning rate of the head. [at least 1e-3 for cnn and lstm, else that of "
              "the encoder]")  # fmt: skip
@click.option("--batch-size", default=16, show_default=True, type=int)
@click.option("--accumulate", default=1, show_default=True, type=int, help="Batches per step.")
@click.option("--max-length", type=int, help="Tokens per text. [what the checkpoint states]")
@click.option("--prefix", default="", help='Put before every text, such as "query: ".')
@click.option("--class-weight", type=click.Choice(["balanced"]))
@click.option("--label-smoothing", default=0.0, show_default=True, type=float)
@click.option("--one-logit", is_flag=True, help="Two classes by one logit instead of two.")
@click.option(
    "--freeze-layers", metavar="K|embeddings|all", help="What of the encoder is not trained."
)
@click.option(
    "--lora", type=int, metavar="RANK",
    help="Train matrices of this rank beside the encoder's weights instead of them; try 8 and a "
    "learning rate of 1e-3.",
)  # fmt: skip
@click.option(
    "--layer-decay", default=1.0, show_default=True, type=float,
    help="Factor of the learning rate from layer to layer downwards.",
)  # fmt: skip
@click.option(
    "--warmup", default=0.1, show_default=True, type=float, help="Steps, or a part of all steps."
)
@click.option(
    "--precision",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "fp32", "bf16", "fp16"]),
    help="auto: on CUDA bf16 (fp16 on older devices), fp32 on CPU.",
)
@click.option("--gradient-checkpointing", is_flag=True, help="Less memory, more time.")
@click.option(
    "--validation", default=0.1, show_default=True, type=float,
    help="Fraction of the training records used for validation; 0 disables it.",
)  # fmt: skip
@click.option(
    "--patience", type=int, help="Epochs without a better validation loss before a fold stops."
)
@click.option(
    "--threshold",
    help="Probability from which the second of two classes is decided on, or the score to choose "
    "it by: macro_f1, f1, f2 …",
)
@corpus_options
@click.option(
    "--resume", is_flag=True,
    help="Go on with an unfinished run, begin none. [the same command goes on anyway]",
)  # fmt: skip
@click.option("--overwrite", is_flag=True)
@click.option("--progress/--no-progress", default=None, help="[shown on a terminal]")
@output_options
def finetune(
    corpus: Path, out: Path, cnn_widths: str,
    progress: bool | None, as_json: bool, quiet: bool, verbose: bool, **settings: Any,
) -> int:  # fmt: skip
    """Train an encoder with a head on labelled texts, fold by fold.

    CORPUS is a corpus file with a label column, or a dataset that extract wrote, whose texts and
    labels are used. The same command again resumes an interrupted run.
    """
    from embedkit.cli.run_text import content_json, finetune_text
    from embedkit.finetuning.folds import finetune as run
    from embedkit.finetuning.options import TrainingOptions

    reading = reading_of({name: settings.pop(name) for name in _READING})
    names = [field.name for field in fields(TrainingOptions) if field.name in settings]
    training = {name: settings.pop(name) for name in names}
    result = run(
        corpus, out=out, reading=reading,
        training=TrainingOptions(cnn_widths=_widths(cnn_widths), **training),
        progress=show_lines(show=verbose or show_progress(progress, quiet)), **settings,
    )  # fmt: skip
    if as_json:
        click.echo(content_json(result))
    elif not quiet:
        click.echo(finetune_text(result))
    return EXIT_REJECTS if result.rejected else 0


def _widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"--cnn-widths {text}: expected numbers of tokens such as 2,3,4."
        ) from None
