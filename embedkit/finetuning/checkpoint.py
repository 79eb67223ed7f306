"""Prediction with fine-tuned models and classification checkpoints, and export to transformers.

    a run of finetune ─────── a model for each fold ─┐                        the mean of their
    ForSequenceClassification ─ one model ───────────┴─ tokens ─ logits ─ outputs ─ probabilities

Both kinds answer :meth:`TextModels.predict`, as pipelines on vectors do in :mod:`embedkit.predict`.
Words that the limit of tokens cuts off have no prediction, so that fewer units may come back.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoTokenizer

from embedkit import storage
from embedkit.arguments import accepts
from embedkit.dataset.format import is_dataset
from embedkit.dataset.read import load
from embedkit.display import Shown
from embedkit.encoding.checkpoint import find_checkpoint, quiet_transformers
from embedkit.encoding.model import choose_device, is_out_of_memory, load_module, usable_length
from embedkit.encoding.tokenizer import TextTokenizer, load_tokenizer
from embedkit.encoding.windows import TokenizerSettings
from embedkit.errors import (
    DamagedError,
    ModelError,
    Option,
    OutputExistsError,
    UsageError,
    first_line,
)
from embedkit.finetuning.model import (
    HEAD_FILE,
    WEIGHTS,
    is_plain_head,
    predict_logits,
    read_config,
    read_model,
    save_weights,
    tokenized,
)
from embedkit.finetuning.options import name_of_head
from embedkit.runs.folder import read_run
from embedkit.runs.run import FinetuneRun
from embedkit.storage import check_files, finish_swap, new_folder
from embedkit.types import AnyPath, Float64
from embedkit.units.units import Units

logger = logging.getLogger(__name__)


class TextModels:
    """Models that read the tokens of texts, each of them all texts; the mean of them predicts."""

    _models: Sequence[Any]
    _tokenizer: TextTokenizer
    tokens: TokenizerSettings
    _precision = "fp32"
    cut = 0
    """Texts so far that are longer than the model reads."""

    def predict(self, units: Units) -> tuple[Units, Float64]:
        """Return units that the models see, and their probabilities, or values of a regression."""
        units = tokenized(units, self._tokenizer, self.tokens)
        texts = units.inputs(np.arange(len(units)))
        self.cut += int(texts.cut.sum())
        precision = self._precision
        try:
            logits = [predict_logits(model, texts, precision=precision) for model in self._models]
        # of a configuration that loads, and says other things than the weights
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            problem = f"a model cannot compute with what its files say ({first_line(error)})"
            raise DamagedError(f"{problem}. Make the run again.") from error
        outputs = [self._outputs(*each) for each in zip(self._models, logits, strict=True)]
        # the mean of probabilities, not of logits: that is what thresholds were chosen on
        return units, np.asarray(np.mean(outputs, axis=0), np.float64)

    def _outputs(self, model: Any, logits: torch.Tensor) -> Any:
        """Probabilities ``(n, classes)``, or values ``(n,)``."""
        return model.outputs(logits).numpy()


class FinetunedRun(TextModels):
    """The models of a fine-tuned run, ready to predict; their checksums are compared first."""

    def __init__(self, run: Path, content: FinetuneRun, *, device: str, head: Any) -> None:
        where, self.tokens = choose_device(device), content.tokens
        # half precision is for the kind of device it was trained on
        if content.cost.device == where.type:
            self._precision = content.precision
        names = [f"model/{name}" for name in content.models]
        # before anything is read from them: a damaged weight would change predictions, and nobody
        # would see it
        check_files(run, names, advice="Make the run again.")
        folders = [run / name for name in names]
        name = None if head is None else name_of_head(head)
        # all in memory: each text is predicted by every model
        self._models = [read_model(folder, name).to(where) for folder in folders]
        # the loader raises what its many formats raise
        with storage.reading(folders[0], Exception):
            # all folds have the same tokenizer; trust_remote_code=False runs no code of a folder
            with quiet_transformers():
                tokenizer = AutoTokenizer.from_pretrained(
                    str(folders[0]), local_files_only=True, trust_remote_code=False
                )
            self._tokenizer = TextTokenizer(
                tokenizer, pad_id=content.pad_id, type_vocab=content.type_vocab
            )


_CLASS = "ForSequenceClassification"


class CheckpointClassifier(TextModels):
    """A ``*ForSequenceClassification`` checkpoint.

    Texts are cut at the tokenizer's limit; probabilities are the softmax of the logits. ``classes``
    are the labels of ``id2label``; a model of one output is a regression and has none.
    """

    def __init__(self, name: str, *, device: str) -> None:
        checkpoint = find_checkpoint(name)
        advice = f"Train one: embedkit finetune CORPUS --model {checkpoint.name} --out RUN."
        # refused before the weights are read, or fetched
        kinds = [str(kind) for kind in checkpoint.config.get("architectures") or ()]
        if kinds and not any(kind.endswith(_CLASS) for kind in kinds):
            raise ModelError(f"{checkpoint.name} is a {kinds[0]}, not a classifier. {advice}")
        if checkpoint.config.get("problem_type") == "multi_label_classification":
            problem = f"{checkpoint.name} gives several labels (multi_label)"
            advice = "or with transformers: pipeline('text-classification', top_k=None)"
            raise ModelError(
                f"{problem}. Predict with the run that it was exported from, {advice}."
            )
        checkpoint.warn_of_unread()
        self._tokenizer = load_tokenizer(checkpoint)
        self.tokens = TokenizerSettings(usable_length(checkpoint, self._tokenizer, None))
        model, report = load_module(checkpoint, f"AutoModel{_CLASS}", dtype=torch.float32)
        # transformers only warns of a head that it has drawn at random, and its predictions look
        # like any
        if lacking := {*report["missing_keys"], *report["mismatched_keys"]}:
            problem = f"lacks {len(lacking)} weights of a classifier, such as {min(lacking)}"
            other = ", or has them in another shape than its labels say"
            raise ModelError(f"{checkpoint.name} {problem}{other}. {advice}")
        self._models = [model.eval().to(choose_device(device))]
        # a decoder classifies by its last token that is not this one; batches have no padding
        if model.config.pad_token_id is None:
            model.config.pad_token_id = -1
        # a model of one output has a name for it too, which is no class
        names = model.config.id2label
        count = model.config.num_labels
        if count > 1 and checkpoint.config.get("problem_type") == "regression":
            raise ModelError(
                f"{checkpoint.name} gives {count} values, which are not predicted here."
            )
        self.classes = (
            tuple(str(names.get(i, f"LABEL_{i}")) for i in range(count)) if count > 1 else ()
        )
        if not self.classes and checkpoint.config.get("problem_type") is None:
            logger.warning(
                f"{checkpoint.name} has one output and does not say that it is a regression: "
                "values are its logits; many a cross-encoder's scores are 1 / (1 + exp(-value))"
            )

    def _outputs(self, model: Any, logits: torch.Tensor) -> Any:
        logits = logits.double()
        return (torch.softmax(logits, dim=1) if self.classes else logits[:, 0]).numpy()


_CODE = """\
from transformers import {0}, AutoTokenizer
model = {0}.from_pretrained({1!r})
tokenizer = AutoTokenizer.from_pretrained({1!r})"""


@dataclass(frozen=True, slots=True, repr=False)
class ExportResult(Shown):
    """An exported model, and how to use it as in training."""

    out: Path
    model: str  # name in the run, such as fold-0
    head: str
    has_head: bool  # false: the folder holds the encoder alone
    prefix: str  # put before every text, which transformers does not do
    max_length: int  # tokens at which the tokenizer cuts texts
    in_windows: bool  # as which embedkit reads longer texts, and transformers does not
    threshold: float | None  # for the second of two classes; transformers takes the likelier one
    code: str  # lines of Python that load it


@accepts()
def export(
    what: AnyPath,
    *,
    out: str | Path | None = None,
    fold: int | str = "best",
    to: str | None = None,
    view: str | None = None,
    overwrite: bool = False,
) -> Any:
    """Write a model of a fine-tuned run for transformers, or the vectors of a dataset.

    With the ``pooler`` head on BERT, RoBERTa, XLM-R, CamemBERT, ALBERT or MPNet it is a model for
    ``AutoModelForSequenceClassification`` with the same probabilities (but for texts that embedkit
    reads in windows), of words for ``AutoModelForTokenClassification``; with any other head, for
    which transformers has no class, the encoder alone.

    Args:
        what: folder that ``finetune`` wrote, or with ``to`` a dataset.
        out: folder to make, by default ``<run>.checkpoint``; or file, ``<dataset>.<to>``.
        fold: number of the fold, name of the model (``fold-0``), or ``best``: the lowest
            validation loss.
        to: {EXPORTS}, as in
            :meth:`~embedkit.dataset.read.VectorData.export`, whose path is returned.
        view: stored view of a dataset; by default the last mean.
        overwrite: replace a folder that holds a checkpoint.

    Returns:
        Of a run which model was written, with ``code``, the lines that load it, and what
        transformers would do otherwise than training did; with ``to`` the path of the file.

    Raises:
        UsageError: it has no such model, or no validation records to choose the best by.
        OutputExistsError: ``out`` exists.
        DamagedError: the model cannot be read.

    Example:
        >>> settings = {"head": "pooler", "epochs": 1, "max_length": 16}
        >>> run = embedkit.finetune("corpus.tsv", out="runs/pooler", folds=2, **settings)
        >>> result = embedkit.export(run, fold=0, out="plain")
        >>> result.model, result.has_head
        ('fold-0', True)
    """
    if to is not None:
        if fold != "best":
            other = f"{Option('to')} for a dataset"
            raise UsageError(f"it is for a run, {other}. Leave one out.", fold=fold)
        return load(what, view).export(out, to=to, overwrite=overwrite)
    if view is not None:
        raise UsageError(f"it is for a dataset; pass {Option('to')} too.", view=view)
    source = Path(what)
    if is_dataset(source):
        raise UsageError(f"{source} is a dataset. Name the format: {Option('to', 'csv')}.")
    target = Path(f"{source.name}.checkpoint" if out is None else out)
    content = read_run(source)
    if not isinstance(content, FinetuneRun):
        raise UsageError(f"{source} is a {content.kind} run, not one of embedkit finetune.")
    name = f"fold-{fold}" if str(fold).isdigit() else str(fold)
    if name == "best":
        name = _best(source, content)
    elif name not in content.models:
        raise UsageError(f"{source} has the models {', '.join(content.models)}.", fold=fold)
    check_files(source, [f"model/{name}"], advice="Make the run again.")
    has_head = is_plain_head(read_config(source / "model" / name))
    finish_swap(target, lambda folder: (folder / "config.json").is_file())

    inside = f"model/{name}/"
    files = [f.removeprefix(inside) for f in storage.file_sums(source) if f.startswith(inside)]
    names = {file.split("/")[0] for file in files} - {HEAD_FILE}
    free = partial(_check_place, target, source, names, overwrite=overwrite)
    # no SHA256SUMS (sealed): the folder is to be like any checkpoint. free is asked again under the
    # lock
    new = new_folder(target, free=free, sealed=False, overwrite=overwrite)
    with new as work, storage.storage_errors(work, SafetensorError):
        for file in files:  # what else is there may be a link to anywhere
            # head.json means nothing to transformers, and the weights are written without the head
            # below
            if file not in (HEAD_FILE, WEIGHTS):
                storage.make_folder((work / file).parent)
                shutil.copyfile(source / inside / file, work / file)
        weights = load_file(str(source / inside / WEIGHTS))
        kept = {n: v for n, v in weights.items() if has_head or not n.startswith("embedkit.")}
        save_weights(kept, work)
    kind, tokens = "Token" if content.level == "word" else "Sequence", content.tokens
    loader = f"AutoModelFor{kind}Classification" if has_head else "AutoModel"
    cut = content.thresholds[content.models.index(name)]
    code = _CODE.format(loader, str(target))
    windows = tokens.on_long == "window"
    about = content.head, has_head, tokens.prefix, tokens.max_length, windows, cut, code
    return ExportResult(target, name, *about)


def _check_place(target: Path, source: Path, names: set[str], *, overwrite: bool) -> None:
    """Raise an error for what is more than a checkpoint of these files, outside of the run."""
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() and not overwrite:
        replace = Option("overwrite", True, before=", or pass ")
        raise OutputExistsError(f"{target} exists. Choose another {Option('out')}{replace}.")
    within = target.resolve().is_relative_to(source.resolve())
    if target.exists() and (within or not (target / "config.json").is_file()):
        raise OutputExistsError(f"{target} is not a checkpoint by itself, and not replaced.")
    if other := sorted({path.name for path in target.glob("*")} - names):
        raise OutputExistsError(f"{target} holds {other[0]} too. Move it away.")


def _best(run: Path, content: FinetuneRun) -> str:
    """The model with the lowest validation loss at the epoch that was kept."""
    losses = [
        (epoch["valid_loss"], model)
        for model, kept in zip(content.models, content.epochs, strict=True)
        # an epoch has several lines in the log, one entry here; the loss is that of the weights
        # that were kept
        for epoch in content.history.get(model, ())
        if "valid_loss" in epoch and epoch["epoch"] == kept
    ]
    if not losses:
        # of no record, or of records that choose no epoch, as where pairs are trained on
        problem = f"{run} has no validation loss to choose a model by"
        raise UsageError(f"{problem}. Pass 0 to {content.split.folds - 1}.", fold="best")
    return min(losses)[1]
