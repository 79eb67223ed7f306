"""A model of a fine-tuned run as a folder that transformers reads."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from embedkit import fsio
from embedkit.artefacts import finish_swap, new_folder
from embedkit.checksums import check_files
from embedkit.errors import OutputExistsError, UsageError
from embedkit.finetuning.model_folder import (
    HEAD_FILE,
    WEIGHTS,
    is_plain_head,
    read_model,
    read_weights,
)
from embedkit.runs.content import FinetuneRun
from embedkit.runs.folder import read_run

__all__ = ["ExportResult", "export"]

_PRIVATE = "_embedkit"  # inside of the folder while another is replaced

_CODE = """\
from transformers import {0}, AutoTokenizer
model = {0}.from_pretrained({1!r})
tokenizer = AutoTokenizer.from_pretrained({1!r})"""


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What was written.

    Attributes:
        out: the folder.
        model: name of the model in the run, such as ``fold-0``.
        head: name of its head.
        has_head: whether the folder holds the head; without, it holds the encoder alone.
        prefix: put before every text in training, which transformers does not do.
        max_length: tokens at which texts were cut in training, and the tokenizer cuts them.
        threshold: probability from which the second of two classes is predicted, or ``None``;
            transformers predicts the likelier class.
        code: lines of Python that load it.
    """

    out: Path
    model: str
    head: str
    has_head: bool
    prefix: str
    max_length: int
    threshold: float | None
    code: str


def export(
    run: str | Path, *, out: str | Path, fold: int | str = "best", overwrite: bool = False
) -> ExportResult:
    """Write a model of a fine-tuned run as a folder that transformers reads by itself.

    With the ``pooler`` head on BERT, RoBERTa, XLM-R, CamemBERT, ALBERT or MPNet it is a model for
    ``AutoModelForSequenceClassification`` with the same probabilities; with any other head, for
    which transformers has no class, the encoder alone.

    Args:
        run: folder that ``finetune`` wrote.
        out: folder to make.
        fold: number of the fold, name of the model (``repeat-1-fold-0``), or ``best``: the lowest
            validation loss.
        overwrite: replace a folder that holds a checkpoint.

    Raises:
        UsageError: it is no fine-tuned run, or there is no such model; or ``best`` was asked for,
            and the run had no validation records.
        OutputExistsError: something is there.
        DamagedError: the model cannot be read.

    Example:
        >>> options = embedkit.TrainingOptions(head="pooler", epochs=1, max_length=16)
        >>> run = embedkit.finetune("corpus.tsv", training=options, folds=2, out="runs/pooler")
        >>> made = embedkit.export("runs/pooler", fold=0, out="plain")
        >>> made.model, made.has_head
        ('fold-0', True)
    """
    source, target = Path(run), Path(out)
    content = read_run(source)
    if not isinstance(content, FinetuneRun):
        raise UsageError(
            f"{source} is a {content.kind} run, which holds no encoder. Give a run of embedkit "
            "finetune."
        )
    name = _model_name(source, content, fold)
    check_files(source, [f"model/{name}"], advice="Make the run again.")
    config = read_model(source / "model" / name).config
    has_head = is_plain_head(config)
    _check_free(target, overwrite=overwrite)
    with new_folder(target, sealed=False, private=_PRIVATE) as work:
        with fsio.storage_errors(work, SafetensorError):
            own = shutil.ignore_patterns(HEAD_FILE, WEIGHTS)
            shutil.copytree(source / "model" / name, work, ignore=own, dirs_exist_ok=True)
            weights = read_weights(source / "model" / name)
            stored = {n: v for n, v in weights.items() if has_head or not n.startswith("embedkit.")}
            save_file(stored, work / "model.safetensors", metadata={"format": "pt"})
        fsio.sync_tree(work)
    loader = "AutoModelForSequenceClassification" if has_head else "AutoModel"
    return ExportResult(
        target, name, content.head, has_head, content.tokens.prefix, content.tokens.max_length,
        _threshold(content, name), _CODE.format(loader, str(target)),
    )  # fmt: skip


def _model_name(run: Path, content: FinetuneRun, fold: int | str) -> str:
    wanted = f"fold-{fold}" if str(fold).isdigit() else str(fold)
    if wanted == "best":
        return _best(run, content)
    if wanted not in content.models:
        raise UsageError(f"fold={fold!r}: {run} has the models {', '.join(content.models)}.")
    return wanted


def _best(run: Path, content: FinetuneRun) -> str:
    """The model with the lowest validation loss at the epoch that was kept."""
    losses = dict.fromkeys(content.models, math.inf)
    kept = dict(zip(content.models, content.epochs, strict=True))
    for model in content.history:
        for one in model.epochs:
            if one.valid_loss is not None and one.epoch == kept[model.model]:
                losses[model.model] = one.valid_loss
    name = min(losses, key=lambda model: losses[model])
    if losses[name] == math.inf:
        raise UsageError(
            f"fold='best': {run} had no validation records to choose a model by. Pass a number, "
            f"0 to {content.split.folds - 1}."
        )
    return name


def _threshold(content: FinetuneRun, name: str) -> float | None:
    return content.thresholds[content.models.index(name) % len(content.thresholds)]


def _check_free(out: Path, *, overwrite: bool) -> None:
    finish_swap(out, lambda _: True, private=_PRIVATE)
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not overwrite:
        raise OutputExistsError(f"{out} exists. Choose another out=, or pass overwrite=True.")
    if not (out / "config.json").is_file():
        raise OutputExistsError(f"{out} is not a checkpoint, so it is not replaced.")
