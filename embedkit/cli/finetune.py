"""The command ``finetune``."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from embedkit.choices import HEADS, PRECISIONS
from embedkit.cli.command import Result, command
from embedkit.cli.options import FILE, option, options, reading_of
from embedkit.cli.progress import progress_bar
from embedkit.errors import EXIT_REJECTS, UsageError

__all__ = ["finetune"]


@command(
    "embedkit finetune reviews.tsv --out runs/cls",
    "embedkit finetune reviews.vectors --split split.parquet --head cnn --epochs 10 --patience 2 "
    "--out runs/cnn",
    "embedkit finetune papers.csv --text title --text-pair abstract --class-weight balanced "
    "--threshold f2 --test new.csv --out runs/papers",
    tables=True,
)
@click.argument("corpus", type=FILE)
@options(
    "--out", "model",
    option("--head", default="cls", type=click.Choice(HEADS), help="Classification head."),
    option("--mix-layers", default=1,
           help="Number of last layers whose weighted mean is the input of the head."),
    option("--cnn-widths", default="2,3,4", help="Kernel sizes of --head cnn, in tokens."),
    "--task", "--split", "--folds",
    option("--test", type=FILE,
           help="Test set: a corpus file or a dataset; labels are optional. The predictions of the "
           "models of all folds are averaged."),
    "--test-sample", "--test-min-chars",
    option("--epochs", default=3, help="Maximum number of epochs."),
    option("--learning-rate", default=5e-5, help="Peak learning rate; it decays linearly to 0."),
    option("--head-learning-rate", type=float,
           help="Peak learning rate of the head. [that of the encoder; at least 1e-3 for cnn and "
           "lstm]"),
    option("--batch-size", default=16, help="Texts per batch."),
    option("--accumulate", default=1, help="Batches per optimizer step."),
    option("--dropout", type=float,
           help="Dropout before the last layer of the head. [set by the checkpoint]"),
    "--max-length", "--on-long", "--stride", "--prefix", "--class-weight",
    option("--label-smoothing", default=0.0,
           help="Fraction of the target that is spread over all classes."),
    option("--one-logit", is_flag=True,
           help="Use one logit for two classes, with binary cross-entropy."),
    option("--freeze-layers", metavar="K|embeddings|all", help="Encoder layers to freeze."),
    option("--lora", type=int, metavar="RANK",
           help="Train low-rank matrices (LoRA) instead of the weights of the encoder; try rank 8 "
           "and a learning rate of 1e-3."),
    option("--layer-decay", default=1.0,
           help="Factor of the learning rate from each layer to the one below."),
    option("--warmup", default=0.1, help="Warmup steps, or below 1 a fraction of all steps."),
    option("--precision", default="auto", type=click.Choice(PRECISIONS),
           help="Precision of the computation; auto: fp32 on CPU, bf16 on CUDA (fp16 on older "
           "devices)."),
    option("--gradient-checkpointing", is_flag=True,
           help="Recompute activations in the backward pass: less memory, more time."),
    option("--validation", default=0.1,
           help="Fraction of the training records used for validation; 0 disables it."),
    option("--patience", type=int,
           help="Stop a fold after N epochs without a better validation loss (or --select-by)."),
    option("--select-by", default="loss",
           help="Choose the epoch by the validation loss, or by a metric of the validation records "
           "(accuracy, macro_f1, f2 …)."),
    option("--calibrate", is_flag=True,
           help="Divide the logits by a temperature fitted on the validation records."),
    option("--seeds", default=1,
           help="Number of trainings of every fold with other seeds; their probabilities are "
           "averaged."),
    option("--threshold",
           help="Decision threshold for the second of two classes: a number, or a metric to "
           "optimize on the validation records (macro_f1, f1, f2 …)."),
    "corpus",
    option("--resume", is_flag=True,
           help="Fail unless there is an interrupted run to resume. [resumed automatically]"),
    "--overwrite", "--progress/--no-progress",
)  # fmt: skip
def finetune(
    corpus: Path, cnn_widths: str, seed: int, progress: bool | None, **settings: Any
) -> Result:
    """Train an encoder with a classification head.

    One model is trained per fold. CORPUS is a corpus file with a label column, or a dataset that
    extract wrote, whose texts and labels are used. Run the same command again to resume an
    interrupted run.
    """
    from embedkit.cli.run_text import run_data, run_text
    from embedkit.finetuning.folds import finetune as run
    from embedkit.finetuning.options import TrainingOptions

    reading = reading_of(settings)
    names = [field.name for field in fields(TrainingOptions) if field.name in settings]
    training = {name: settings.pop(name) for name in names}
    with progress_bar() as report:
        result = run(
            corpus, reading=reading, progress=report, **settings,
            training=TrainingOptions(cnn_widths=_widths(cnn_widths), seed=seed, **training),
        )  # fmt: skip
    return Result(run_data(result), lambda: run_text(result), finding=True, indent=None,
                  code=EXIT_REJECTS if result.rejected else 0)  # fmt: skip


def _widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"--cnn-widths {text}: expected numbers of tokens such as 2,3,4."
        ) from None
