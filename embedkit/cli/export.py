"""The command ``export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedkit.cli.command import Result, command
from embedkit.cli.options import FILE, option, options
from embedkit.display import visible

if TYPE_CHECKING:
    from embedkit.finetuning.export import ExportResult

__all__ = ["export"]


@command("embedkit export runs/finetuned --out checkpoint",
         "embedkit export runs/finetuned --fold 0 --out checkpoint")  # fmt: skip
@click.argument("run", type=FILE)
@options(
    option("--out", type=FILE, required=True, help="Folder to write."),
    option("--fold", default="best",
           help="Number of the fold, or best: the lowest validation loss."),
    "--overwrite",
)  # fmt: skip
def export(run: Path, out: Path, fold: str, overwrite: bool) -> Result:
    """Write a fine-tuned model as a folder for transformers.

    RUN is a folder that finetune wrote. With --head pooler on a family whose classifier is that
    (BERT, RoBERTa, XLM-R, CamemBERT, ALBERT, MPNet), AutoModelForSequenceClassification loads the
    folder and gives the same probabilities; with other heads it holds the encoder alone.
    """
    from embedkit.finetuning.export import export as write

    found = write(run, out=out, fold=fold, overwrite=overwrite)
    return Result(found, lambda: _text(found))


def _text(found: ExportResult) -> str:
    what = f"the model {found.model} with its {found.head} head"
    if not found.has_head:
        what = (f"the encoder of {found.model} without its {found.head} head, for which "
                "transformers has no class")  # fmt: skip
    lines = [f"wrote {found.out}: {what}"]
    lines.append(f"  texts are cut at {found.max_length} tokens")
    if found.prefix:
        lines.append(f"  put {found.prefix!r} before every text, as in training")
    if found.threshold is not None and found.has_head:
        lines.append(f"  embedkit predicts the second class from {found.threshold:.4f} on")
    return visible("\n".join([*lines, "load it:", *(f"  {x}" for x in found.code.splitlines())]))
