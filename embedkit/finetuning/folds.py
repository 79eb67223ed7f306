"""Fine-tune one encoder for every fold of a split.

Each fold's model is trained on the other folds and predicts its own records; the test set is
predicted by the mean of all models.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from embedkit.corpus import CorpusOptions
from embedkit.corpus.options import check_test_reading
from embedkit.encoding.checkpoint import DEFAULT_MODEL, find_checkpoint, quiet_transformers
from embedkit.encoding.device import choose_device
from embedkit.encoding.legibility import note_if_spelled_out
from embedkit.encoding.precision import choose_precision
from embedkit.encoding.vocabulary import check_max_length, choose_max_length, load_tokenizer
from embedkit.errors import UsageError
from embedkit.finetuning.data import RunRecords, TextData, read_more_texts, read_texts
from embedkit.finetuning.options import TrainingOptions
from embedkit.finetuning.run import FoldsOfRun
from embedkit.runs.content import FinetuneRun
from embedkit.runs.folder import check_run_place, resumable_run
from embedkit.runs.metrics import check_metric
from embedkit.runs.split_files import Split, align_split, read_split
from embedkit.runs.splits import make_split
from embedkit.runs.targets import check_folds, target_from, target_like
from embedkit.types import ProgressCallback, no_progress

__all__ = ["FinetuneResult", "finetune"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FinetuneResult:
    """A finished run.

    Attributes:
        out: its folder.
        content: the content of ``run.json``.
        rejected: number of records of the corpus that could not be read.
    """

    out: Path
    content: FinetuneRun
    rejected: int


def finetune(
    corpus: str | Path,
    *,
    out: str | Path,
    training: TrainingOptions | None = None,
    reading: CorpusOptions | None = None,
    model: str = DEFAULT_MODEL,
    revision: str | None = None,
    offline: bool = False,
    device: str = "auto",
    split: str | Path | None = None,
    folds: int = 5,
    test: str | Path | None = None,
    test_sample: int | None = None,
    test_min_chars: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> FinetuneResult:
    """Train an encoder with a head on labelled texts, one model per fold; resumes by itself.

    >>> options = TrainingOptions(head="mean", epochs=1, validation=0)
    >>> run = finetune("corpus.tsv", out="runs/mean", training=options, folds=2)
    >>> run.content.models
    ('fold-0', 'fold-1')

    Args:
        corpus: a corpus file with a label column, or a dataset that stores texts and labels.
        out: folder of the run; ``OUT.incomplete`` until it is complete.
        training: head, input, schedule, validation, threshold and seed.
        reading: how the corpus is read; the seed of its sample is that of ``training``.
        model: hub id or folder of the checkpoint to start from.
        revision: branch, tag or commit of a hub checkpoint.
        offline: never ask the hub.
        device: ``auto``, ``cpu`` or ``cuda``.
        split: file that ``embedkit split`` wrote; without one ``folds`` folds are made.
        folds: number of folds where no split is given.
        test: a further corpus file or dataset to predict as test set, with labels or without.
        test_sample: predict so many records of the test file, sampled with the same seed.
        test_min_chars: leave shorter texts of the test file out.
        resume: fail unless there is an unfinished run to resume.
        overwrite: replace a run, or discard an unfinished one with other settings.
        progress: called with the steps of each fold.

    Raises:
        UsageError: a column, label, setting or split cannot be used; nothing was trained.
        MismatchError: the split belongs to other data, or there is an unfinished run with other
            settings.
        EncodeError: the loss of a fold is not a number.
        StorageError: a checkpoint cannot be written; finished folds are kept.
    """
    where, options = _device(device), training or TrainingOptions()
    options = replace(options, precision=_precision(options.precision, where))
    quiet_transformers()
    check_run_place(Path(out), overwrite=overwrite, resume=resume)
    check_test_reading(test, sample=test_sample, min_chars=test_min_chars)
    reading = reading or CorpusOptions()
    reading = replace(reading, seed=options.seed if reading.sample is not None else 0)
    data = read_texts(corpus, reading)
    if data.labels is None:
        raise UsageError(f"{data.name} has no label column. Name it with label=.")
    target = target_from(data.labels, rows=data.row, name=data.name, task=options.task)
    _check_classes(options, len(target.classes))
    chosen = _split_of(data, split, folds=folds, seed=options.seed)
    records = RunRecords(data, target, chosen, data, target, chosen.test)
    if test is not None:
        records = _with_test_set(
            records, test, sample=test_sample, min_chars=test_min_chars, seed=options.seed
        )
    checkpoint = find_checkpoint(model, revision=revision, offline=offline)
    check_max_length(checkpoint, options.max_length)
    options.check_layers(checkpoint.n_layers)
    tokenizer = load_tokenizer(checkpoint)
    note_if_spelled_out(checkpoint, tokenizer, data.texts)
    length = choose_max_length(checkpoint, tokenizer, options.max_length)
    check_folds(target, chosen)
    prefix = checkpoint.prefix_or_own(options.prefix)
    stride = options.stride
    if options.on_long == "window" and stride is None:
        stride = length // 4
    options = replace(options, max_length=length, prefix=prefix, stride=stride)
    run = FoldsOfRun(records, checkpoint, tokenizer, options, where, progress)
    run.check()
    with resumable_run(Path(out), run.identity(), overwrite=overwrite, begin=not resume) as folder:
        content = run.complete(folder)
    return FinetuneResult(Path(out), content, sum(data.rejected.values()))


def _device(name: str) -> torch.device:
    device = choose_device(name)
    if device.index:
        raise UsageError(
            f"device={name!r}: training runs on the first CUDA device. Choose another one by "
            f"CUDA_VISIBLE_DEVICES={device.index} and device='cuda'."
        )
    return device


def _precision(name: str, device: torch.device) -> str:
    chosen = choose_precision(name, device)  # on CPU auto is fp32: no trial decides a training
    if chosen == "fp16" and device.type == "cpu":
        raise UsageError("precision='fp16' trains on CUDA only; on the CPU use fp32 or bf16.")
    return chosen


def _check_classes(options: TrainingOptions, n_classes: int) -> None:
    for name in ("one_logit", "threshold"):
        if getattr(options, name) and n_classes != 2:
            raise UsageError(f"{name}= needs two classes; there are {n_classes}.")
    if options.select_by != "loss":
        check_metric(options.select_by, classes=n_classes, name="select_by")


def _with_test_set(
    records: RunRecords, test: str | Path, *, sample: int | None, min_chars: int, seed: int
) -> RunRecords:
    """The records with a corpus of its own as test set."""
    if len(records.split.test):
        raise UsageError(
            f"the split has a test set already; leave out test={str(test)!r}, or take a split "
            "without one."
        )
    more = read_more_texts(test, records.data, sample=sample, min_chars=min_chars, seed=seed)
    target = target_like(records.target, more.labels, rows=more.row, name=more.name)
    return replace(records, test_data=more, test_target=target, test_index=np.arange(len(more)))


def _split_of(data: TextData, file: str | Path | None, *, folds: int, seed: int) -> Split:
    if file is None:
        return make_split(data.labelled(), folds=folds, seed=seed)
    return align_split(
        read_split(Path(file)), source=data.source, row=data.row, name=data.name, file=file
    )
