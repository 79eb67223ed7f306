"""Fine-tuning: an encoder with a head, one model for every fold of a split.

    options ─ device, folder ─ units ─ checkpoint ─ tokens, folds ─ epochs ─ training ─ run.json
    └──────────── what is wrong is said here, each as early as it is known ──┘

Training may take a night, so that everything which can be refused is refused before its first step,
the cheapest first. What is left open (head, objective, number of epochs) is decided last: it
depends on the number of training texts in the smallest fold.

A finished fold is kept in ``RUN.incomplete/model`` until the run is complete, so that the same
call resumes. It is the same job if :meth:`~embedkit.finetuning.method.FineTuned.identity` is the
same: all settings as they were decided, the bytes of data and checkpoint, versions of libraries.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from embedkit import storage
from embedkit.arguments import accepts, divided
from embedkit.choices import DEFAULT_MODEL
from embedkit.corpus.memory import CorpusLike
from embedkit.corpus.plan import CorpusOptions
from embedkit.dataset.format import Names
from embedkit.dataset.settings import ModelRecord
from embedkit.encoding.checkpoint import Checkpoint, find_checkpoint
from embedkit.encoding.model import choose_device, choose_precision
from embedkit.errors import Option, UsageError
from embedkit.finetuning.method import FineTuned
from embedkit.finetuning.options import TrainingOptions
from embedkit.machine import peak_memory_bytes, peak_memory_since
from embedkit.records import Count, Positive
from embedkit.runs.cross_validation import cross_validate
from embedkit.runs.folder import (
    RunResult,
    corpus_content,
    free_out,
    read_run,
    resumable_run,
    write_results,
)
from embedkit.runs.run import DatasetContent, FinetuneRun
from embedkit.runs.split import Split
from embedkit.types import ProgressCallback, no_progress
from embedkit.units.units import Units

logger = logging.getLogger(__name__)


@accepts(CorpusOptions, TrainingOptions)
def finetune(
    corpus: CorpusLike,
    *,
    out: str | Path | None = None,
    reading: CorpusOptions | None = None,
    model: str = DEFAULT_MODEL,
    revision: str | None = None,
    offline: bool = False,
    device: str = "auto",
    split: str | Path | Split | None = None,
    folds: Positive = 5,
    test: CorpusLike | None = None,
    test_sample: Positive | None = None,
    test_min_chars: Count = 0,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
    **training: Any,
) -> RunResult[FinetuneRun]:
    """Train an encoder with a head on labelled texts, one model per fold; resumes by itself.

    >>> run = finetune("corpus.tsv", out="runs/mean", head="mean", epochs=1, validation=0, folds=2)
    >>> run.content.models
    ('fold-0', 'fold-1')

    Args:
        corpus: a corpus with a label column, as ``extract`` takes it (a file, a DataFrame …), or a
            dataset that stores texts and labels.
        out: folder of the run; by default ``runs/<corpus>-<head>``, or ``-finetuned`` without a
            head. It is ``OUT.incomplete`` until
            it is complete.
        reading: how the corpus is read; the seed of its sample is ``seed``.
        model: hub id or folder of the checkpoint to start from; or a run of ``finetune`` on the
            same split, to go on with: each fold with its own model, for ``epochs`` more.
        revision: branch, tag or commit of a hub checkpoint.
        offline: never ask the hub.
        device: ``auto``, ``cpu`` or ``cuda``.
        split: result or file of ``embedkit split``, or a column that names the folds; ``test`` is
            the test set, and of ``train`` and ``validation`` the latter is held out. Without one
            ``folds`` folds are made.
        folds: number of folds where no split is given.
        test: a further corpus file or dataset as test set, with labels or without.
        test_sample: number of records of the test file to predict, sampled with the same seed.
        test_min_chars: skip shorter texts of the test file.
        overwrite: replace a run, or discard an unfinished one with other settings.
        progress: called with the steps of each fold.
        **training: OPTIONS

    Returns:
        The folder of the run, the content of its ``run.json`` (``content.scores``,
        ``content.history`` …) and the number of rejected records.

    Raises:
        TypeError: unknown option of training.
        UsageError: a column, label, setting or split cannot be used; nothing was trained.
        MismatchError: the split belongs to other data, or an unfinished run has other settings.
        EncodeError: the loss of a fold is not a number.
        StorageError: a checkpoint cannot be written; finished folds are kept.
    """
    # first: a peak before this call is not this run's
    peak_before = peak_memory_bytes()
    # what can be wrong in options, device and folder is found before the corpus is read
    columns, options = divided(training, CorpusOptions, TrainingOptions)
    for name, value in (("test_sample", test_sample), ("test_min_chars", test_min_chars)):
        if test is None and value:
            raise UsageError("there is no test set. Name one, or leave this out.", **{name: value})
    where, options = _device(device, options)
    out = free_out(out, corpus, options.head_name or "finetuned", overwrite=overwrite)
    # options by name win over those in reading=
    by_name = {name: value for name, value in training.items() if hasattr(columns, name)}
    reading = replace(reading or CorpusOptions(), **by_name)
    # a seed without a sample changes nothing, and would be refused of a dataset
    reading = replace(reading, seed=options.seed if reading.sample is not None else 0)
    # texts, labels and split are checked before the first step of training, which may be hours from
    # its end
    data = Units.of_corpus(corpus, reading, level=options.level, split=split)
    data.check_labelled()
    chosen: dict[str, Any] = {"sample": test_sample, "min_chars": test_min_chars}
    further = None if test is None else data.further(test, **chosen, seed=options.seed)
    checkpoint, earlier = _start(model, revision=revision, offline=offline)
    about: dict[str, Any] = {"earlier": earlier, "device": where, "split": split, "folds": folds}
    method, problem = FineTuned.of(checkpoint, options, data, further, **about)
    with resumable_run(out, method.identity(problem), overwrite=overwrite) as folder:
        method = method._replace(folder=folder)
        predictions, fits = cross_validate(method, problem, progress=progress)
        written = method.write(problem, fits)
        on_device = where.type == "cuda"
        peak = (
            torch.cuda.max_memory_allocated(where) if on_device else peak_memory_since(peak_before)
        )
        content = write_results(
            folder,
            FinetuneRun,
            problem,
            predictions,
            decision=options.decision,
            dataset=_corpus_content(problem.units, method),
            cost=replace(fits.cost, peak_memory_bytes=peak),
            **written,
        )
    return RunResult(out, content, sum(data.rejected.values()))


def _device(name: str, options: TrainingOptions) -> tuple[torch.device, TrainingOptions]:
    """The device, and the options with the precision to train in."""
    device = choose_device(name)
    # the Trainer takes the first device, whatever it is given
    if device.index:
        advice = f"set CUDA_VISIBLE_DEVICES={device.index} and {Option('device', 'cuda')}"
        raise UsageError(f"training runs on the first CUDA device; {advice}.", device=name)
    # auto is fp32 on the CPU, and half precision where a GPU computes in it
    fp32_on_cpu = None if options.precision == "auto" else options.precision
    precision = choose_precision(fp32_on_cpu, device)
    if precision == "int8" or (precision == "fp16" and device.type == "cpu"):
        raise UsageError("it cannot train here; use fp32 or bf16.", precision=precision)
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]  # before, "cuda:0" is no device
        # the peak since now is that of this run
        torch.cuda.reset_peak_memory_stats(device)
    return device, replace(options, precision=precision)


def _start(
    model: str, *, revision: str | None, offline: bool
) -> tuple[Checkpoint, tuple[Path, FinetuneRun] | None]:
    """Return the checkpoint to start from, and the run whose training goes on, if it is one."""
    folder = Path(model).expanduser()
    if not (folder / "run.json").is_file():
        return find_checkpoint(model, revision=revision, offline=offline), None
    if revision is not None:
        raise UsageError(f"{model} is a run, which has no revisions.", revision=revision)
    earlier = read_run(folder)
    if not isinstance(earlier, FinetuneRun):
        raise UsageError(f"a {earlier.kind} run, not one of embedkit finetune.", model=model)
    names = [f"model/{name}" for name in earlier.models]
    storage.check_files(folder, names, advice="Make the run again.")
    # any of its models: all have the same encoder, tokenizer and configuration; each fold reads its
    # own weights later. A model folder does not store the prefix
    checkpoint = find_checkpoint(folder / names[0], offline=True)
    return replace(checkpoint, prefix=earlier.tokens.prefix), (folder, earlier)


def _corpus_content(units: Units, method: FineTuned) -> DatasetContent:
    checkpoint = method.checkpoint
    model: ModelRecord | None = ModelRecord.of(checkpoint)
    names = Names.of(checkpoint, inputs=[units.name])
    if method.earlier is not None:  # the encoder is that which it began with
        before = method.earlier[1].dataset
        model, names = before.model, replace(before.names, inputs=(units.name,))
    return corpus_content(units, names, model)
