"""Fine-tuning: an encoder with a head, one model for every fold of a split.

A finished fold is kept in ``RUN.incomplete/unfinished`` until the run is complete, so that the same
call resumes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from embedkit import storage
from embedkit.choices import DEFAULT_MODEL
from embedkit.corpus.memory import CorpusLike
from embedkit.corpus.plan import CorpusOptions
from embedkit.dataset.fold_models import FoldModels, SeenRecords
from embedkit.dataset.format import ModelSettings, Names
from embedkit.dataset.texts import TextData, labelled_words, read_more_texts, read_texts
from embedkit.encoding.checkpoint import Checkpoint, find_checkpoint, quiet_transformers
from embedkit.encoding.encoder import choose_precision
from embedkit.encoding.model import PlainModel, choose_device, load_model
from embedkit.encoding.tokenizer import (
    TextTokenizer,
    TokenizedTexts,
    TokenizerSettings,
    choose_max_length,
    load_tokenizer,
    note_if_spelled_out,
)
from embedkit.errors import DamagedError, UsageError
from embedkit.finetuning.model import (
    EncoderWithHead,
    build_model,
    labelled_units,
    pooler_layer,
    predict_logits,
    tokenize,
    write_model,
)
from embedkit.finetuning.options import TrainingOptions, takes_options
from embedkit.finetuning.training import Fold, FoldResult, saving, train_fold
from embedkit.machine import __version__, peak_memory_bytes, peak_memory_since
from embedkit.runs.figures import draw_training
from embedkit.runs.folder import (
    RunResult,
    check_free,
    check_one_test_set,
    default_out,
    resumable_run,
    write_results,
)
from embedkit.runs.metrics import Threshold, check_metric
from embedkit.runs.predictions import Predictions, Target, TestSet, check_folds, target_from
from embedkit.runs.run import Cost, DatasetContent, FinetuneRun
from embedkit.runs.split import (
    TEST,
    UNUSED,
    Labelled,
    Split,
    align_split,
    assign_folds,
    make_split,
    write_split,
)
from embedkit.storage import UNFINISHED
from embedkit.types import Bool, Float64, Int64, ProgressCallback, no_progress

logger = logging.getLogger(__name__)

_LIBRARIES = {"torch": torch.__version__, "transformers": transformers.__version__}

VALIDATION_SEED = 104_729
"""Added to the seed of the split: with that seed itself, validation records that all folds share
would all be of one fold."""

_FOLD_SEED = 1_009
_DENOMINATOR = 20
_EPOCH = ("train_loss", "train_accuracy", "valid_loss", "valid_accuracy", "valid_score")
_FIELDS = frozenset(
    "task level head precision max_length prefix on_long stride threshold".split()  # noqa: SIM905
)
"""Options that are fields of ``run.json``; the others are in its ``settings``."""

_OF_READING = {field.name for field in fields(CorpusOptions)} - {"seed"}


@takes_options
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
    folds: int = 5,
    test: CorpusLike | None = None,
    test_sample: int | None = None,
    test_min_chars: int = 0,
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
        out: folder of the run; by default ``runs/<corpus>-<head>``. It is ``OUT.incomplete`` until
            it is complete.
        reading: how the corpus is read; the seed of its sample is ``seed``.
        model: hub id or folder of the checkpoint to start from.
        revision: branch, tag or commit of a hub checkpoint.
        offline: never ask the hub.
        device: ``auto``, ``cpu`` or ``cuda``.
        split: result or file of ``embedkit split``; without one ``folds`` folds are made.
        folds: number of folds where no split is given.
        test: a further corpus file or dataset as test set, with labels or without.
        test_sample: number of records of the test file to predict, sampled with the same seed.
        test_min_chars: skip shorter texts of the test file.
        overwrite: replace a run, or discard an unfinished one with other settings.
        progress: called with the steps of each fold.
        training: options of training, see below, and of reading (``label="intent"``).

    Raises:
        TypeError: unknown option of training.
        UsageError: a column, label, setting or split cannot be used; nothing was trained.
        MismatchError: the split belongs to other data, or an unfinished run has other settings.
        EncodeError: the loss of a fold is not a number.
        StorageError: a checkpoint cannot be written; finished folds are kept.
    """
    peak_before = peak_memory_bytes()
    columns = {name: training.pop(name) for name in _OF_READING & training.keys()}
    try:
        where, options = choose_device(device), TrainingOptions(**training)
    except TypeError as error:
        raise TypeError(str(error).replace("TrainingOptions.__init__", "finetune")) from None
    if where.index:
        advice = f"set CUDA_VISIBLE_DEVICES={where.index} and device='cuda'"
        raise UsageError(f"device={device!r}: training runs on the first CUDA device; {advice}.")
    fp32_on_cpu = None if options.precision == "auto" else options.precision
    precision = choose_precision(fp32_on_cpu, where)
    if precision == "int8" or (precision == "fp16" and where.type == "cpu"):
        raise UsageError(f"precision={precision!r} cannot train here; use fp32 or bf16.")
    if where.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]  # before, "cuda:0" is no device
        torch.cuda.reset_peak_memory_stats(where)
    quiet_transformers()
    out = default_out(corpus, options.head_name) if out is None else Path(out)
    check_free(out, overwrite=overwrite)
    storage.check_place(out)
    for name, value in (("test_sample", test_sample), ("test_min_chars", test_min_chars)):
        if test is None and value:
            raise UsageError(f"{name}={value}: there is no test set; name one with test=.")
    reading = replace(reading or CorpusOptions(), **columns)
    reading = replace(reading, seed=options.seed if reading.sample is not None else 0)
    data = read_texts(corpus, reading)
    if options.level == "sentence" and data.labels is None:
        raise UsageError(f"{data.name} has no label column. Name it with label=.")
    more = None
    if test is not None:
        more = read_more_texts(
            test,
            data.reading,
            name=data.name,
            paired=data.pairs is not None,
            word_label=data.reading["word_label"] if options.level == "word" else None,
            sample=test_sample,
            min_chars=test_min_chars,
            seed=options.seed,
        )
    checkpoint = find_checkpoint(model, revision=revision, offline=offline)
    frozen = str(options.freeze_layers)
    if frozen.isdigit() and int(frozen) > checkpoint.n_layers:
        raise UsageError(f"freeze_layers={frozen}: the encoder has {checkpoint.n_layers} layers.")
    tokenizer = load_tokenizer(checkpoint)
    note_if_spelled_out(checkpoint, tokenizer, data.texts)
    length = choose_max_length(checkpoint, tokenizer, options.max_length)
    stride = options.stride
    if options.on_long == "window" and stride is None:
        stride = length // 4
    prefix = checkpoint.prefix_or_own(options.prefix)
    options = replace(options, precision=precision, max_length=length, prefix=prefix, stride=stride)
    tokens = TokenizerSettings(length, options.on_long, stride or 0, prefix)
    tokenizer.room(tokens, paired=data.pairs is not None)
    units = _Units.of(data, tokenizer, tokens, options.level)
    target = _target(units, options)
    if split is None:
        sets = options.task == "multilabel"
        labelled = Labelled(data.source, data.row, data.labels, data.text_keys(), None, sets)
        records = make_split(labelled, folds=folds, seed=options.seed)
    else:
        records = align_split(split, source=data.source, row=data.row, name=data.name)
    assigned = records
    if units.word is not None:
        assigned = records.of_words(units.record, units.word)
    if more is None:
        tested = units.texts[np.unique(units.record[assigned.test])]
        test_set = TestSet.of_split(assigned, units.ids, target, tested)
    else:
        check_one_test_set(assigned, test)
        further = _Units.of(more, tokenizer, tokens, options.level)
        test_set = TestSet.further(
            target,
            further.labels,
            rows=more.row,
            keys=more.text_keys(),
            training=data.text_keys(),
            source=more.source,
            rejected=sum(more.rejected.values()),
            name=more.name,
            row=further.row,
            ids=further.ids,
            features=further.texts,
            word=further.word,
        )
    check_folds(target, assigned)
    divided, choosing = divide(assigned, target, options)
    identity = {
        "source": list(data.source),
        "reading": data.reading,
        "split": assigned.fingerprint,
        "test": more and {"source": list(more.source), "reading": more.reading},
        "model": dict(sorted(checkpoint.sha256.items())),
        **asdict(options),
        "device": where.type,
        "versions": {"embedkit": __version__, **_LIBRARIES},
    }
    checkpoints = storage.incomplete(out) / UNFINISHED / "checkpoints"
    job = _Job(
        units=units,
        target=target,
        records=records,
        split=assigned,
        test=test_set,
        folds=[
            Fold(
                number=number,
                name=f"fold {number + 1} of {len(divided)}",
                texts=units.texts,
                record=units.record,
                target=target,
                options=options,
                seed=options.seed + _FOLD_SEED * number,
                device=where,
                pad_id=tokenizer.pad_id,
                work=checkpoints / f"fold-{number}",
                **subsets,
            )
            for number, subsets in enumerate(divided)
        ],
        choosing=choosing,
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        tokens=tokens,
        options=options,
        device=where,
        progress=progress,
        peak_before=peak_before,
    )
    with resumable_run(out, identity, overwrite=overwrite) as folder:
        content = _write(job, folder, _all_folds(job, folder))
    return RunResult(out, content, sum(data.rejected.values()))


@dataclass(frozen=True, slots=True)
class _Units:
    """The labelled texts, or the words of texts that have a token."""

    data: TextData
    texts: TokenizedTexts
    record: Int64  # number of the text of each unit, ascending
    word: Int64 | None  # number of the word in it
    labels: Sequence[str | None] | None
    row: Int64  # record numbers
    ids: list[str]  # of the records

    @classmethod
    def of(
        cls, data: TextData, tokenizer: TextTokenizer, tokens: TokenizerSettings, level: str
    ) -> _Units:
        words = labelled_words(data) if level == "word" else None
        spans = None if words is None else words.spans
        texts = tokenize(tokenizer, data.texts, data.pairs, tokens, name=data.name, words=spans)
        record, index = labelled_units(texts)
        row, ids = data.row[record], [data.ids[i] for i in record]
        if words is None or index is None:
            return cls(data, texts, record, None, data.labels, row, ids)
        at = list(zip(record.tolist(), index.tolist(), strict=True))
        number = np.array([words.number[i][j] for i, j in at], np.int64)
        labels = None if words.labels is None else [words.labels[i][j] for i, j in at]
        return cls(data, texts, record, number, labels, row, ids)


def _target(units: _Units, options: TrainingOptions) -> Target:
    """Targets of the units, if the options fit them."""
    if units.labels is None:
        raise UsageError(f"{units.data.name} has no labels of words. Name them with word_label=.")
    about: dict[str, Any] = {"rows": units.row, "name": units.data.name, "task": options.task}
    target = target_from(units.labels, separator=options.label_separator, **about)
    for name in ("one_logit", "threshold"):
        if getattr(options, name) and len(target.classes) != 2:
            raise UsageError(f"{name}= needs two classes; there are {len(target.classes)}.")
    if options.select_by != "loss":
        sets, classes = target.separator is not None, len(target.classes)
        check_metric(options.select_by, classes=classes, sets=sets, name="select_by")
    return target


# validation records


def divide(
    split: Split, target: Target, options: TrainingOptions
) -> tuple[list[dict[str, Int64]], Int64]:
    """Return the subsets of every :class:`Fold`, and all records that choose thresholds.

    The division depends on the split and the fraction alone, so that runs on one split have the
    same validation records whatever their seeds. Where half of them choose thresholds, they are the
    same in every fold, so that no model is trained on them and the threshold for the mean of all
    models can be chosen on their mean predictions.
    """
    fraction, seed = options.validation, split.settings.seed + VALIDATION_SEED
    if not fraction and split.n_folds == 1:
        raise UsageError("folds=1: the baseline is of validation records; pass validation=0.1.")
    chosen_from = partial(validation_records, group=split.group, strata=target.strata)
    parts = split.subsets()
    by_epoch = by_threshold = split.in_folds[:0]
    if options.chooses_threshold:
        trains = [train for train, _ in parts]
        both = chosen_from(split.in_folds, fraction, seed=seed, trains=trains)
        by_threshold = chosen_from(both, 0.5, seed=seed + 1)
        by_epoch = np.setdiff1d(both, by_threshold)
    divided = []
    for fold, (train, held_out) in enumerate(parts):
        valid = np.intersect1d(train, by_epoch)
        if fraction and not options.chooses_threshold:
            own = seed + _FOLD_SEED * (1 + fold)
            valid = chosen_from(train, fraction, seed=own, trains=[train])
        chooses = np.intersect1d(train, by_threshold)
        few = options.chooses_threshold and len(np.unique(target.y[chooses])) < 2
        if fraction and (few or not len(valid)):
            raise UsageError(
                f"validation={fraction:g}: the {len(train)} training records of fold {fold} are "
                "too few, or too similar, to choose epoch or threshold= by some of them."
            )
        rest = np.setdiff1d(train, np.concatenate([valid, by_epoch, by_threshold]))
        divided.append({"train": rest, "valid": valid, "threshold": chooses, "held_out": held_out})
    return divided, by_threshold


def validation_records(
    index: Int64,
    fraction: float,
    *,
    group: Int64,
    strata: Int64,
    seed: int,
    trains: Sequence[Int64] = (),
) -> Int64:
    """Return about a fraction of ``index``, groups never divided and classes spread evenly.

    It is empty if the records are too few, or too similar. ``group`` and ``strata`` are of all
    records; every array of ``trains`` keeps records of each of its classes.
    """
    near = Fraction(fraction).limit_denominator(max(_DENOMINATOR, math.ceil(1 / fraction)))
    distinct, largest = len(np.unique(group[index])), int(np.bincount(strata[index]).max(initial=0))
    folds = min(near.denominator, distinct, largest)
    chosen = index[:0]
    if folds >= 2:
        count = max(round(fraction * folds), 1)
        chosen = index[assign_folds(strata[index], group[index], folds, seed=seed) < count]
    for train in trains:
        lost = np.setdiff1d(strata[train], strata[np.setdiff1d(train, chosen)])
        kept = group[chosen[np.isin(strata[chosen], lost)]]  # groups are never divided
        chosen = chosen[~np.isin(group[chosen], kept)]
    return chosen


def choose_thresholds(
    threshold: Threshold, y: Int64, proba: Float64, held_out: Bool
) -> tuple[list[float], float]:
    """Return the threshold of every fold's model, and the threshold of the mean of all models.

    The mean needs its own: its probabilities are less spread than those of a single model. ``y``
    ``(n,)`` and ``proba`` ``(models, n)`` are of validation records that no model was trained on; a
    model's own threshold is chosen without the records that it is scored on (``held_out``).
    """
    each = [threshold.choose(y[~held], p[~held]) for p, held in zip(proba, held_out, strict=True)]
    return each, threshold.choose(y, proba.mean(axis=0))


# training


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A run with all its settings, before anything is trained."""

    units: _Units
    target: Target
    records: Split  # folds of the records
    split: Split  # folds of the units
    test: TestSet | None
    folds: Sequence[Fold]
    choosing: Int64
    checkpoint: Checkpoint
    tokenizer: TextTokenizer
    tokens: TokenizerSettings
    options: TrainingOptions
    device: torch.device
    progress: ProgressCallback
    peak_before: int  # memory that the process has used before


def _all_folds(job: _Job, folder: Path) -> list[FoldResult]:
    """Train the models that are not finished, and return the results of all."""
    results: list[FoldResult] = []
    encoder: PlainModel | None = None
    for fold in job.folds:
        result = _read_result(folder, fold)
        if result is None:
            if encoder is None:
                pad_id, cpu = job.tokenizer.pad_id, torch.device("cpu")
                encoder = load_model(job.checkpoint, pad_id=pad_id, device=cpu, dtype=torch.float32)
                if job.options.head == "pooler" and pooler_layer(encoder) is None:
                    message = "%s has no pooler weights; the head starts with random ones"
                    logger.warning(message, job.checkpoint.name)
            model, result = _train(job, fold, encoder)
            _keep(job, folder, fold, model, result)
            storage.remove_tree(fold.work)
        results.append(result)
    return results


def _result_file(fold: Fold) -> str:
    return f"{UNFINISHED}/folds/{fold.model}.json"


def _read_result(folder: Path, fold: Fold) -> FoldResult | None:
    """Read the result of a fold; ``None`` if it is not finished, or damaged."""
    name = _result_file(fold)
    if name not in storage.file_sums(folder, torn=True):
        return None
    try:
        files = [name, f"model/{fold.model}"]
        storage.check_files(folder, files, advice="Its model is trained again.")
    except DamagedError as error:
        logger.warning("%s", error)
        return None
    return FoldResult(**json.loads((folder / name).read_text("utf-8")))


def _train(job: _Job, fold: Fold, encoder: PlainModel) -> tuple[EncoderWithHead, FoldResult]:
    """Train the model of a fold, and predict with it."""
    start = build_model(encoder, seed=fold.seed, **_head_settings(fold))
    model, result = train_fold(fold, start, progress=job.progress)

    def proba(some: TokenizedTexts) -> list[Any]:
        precision = fold.options.precision
        logits = predict_logits(model, some, pad_id=fold.pad_id, precision=precision)
        return list(model.outputs(logits).tolist())

    started = time.perf_counter()
    result.proba = proba(fold.texts_of(fold.held_out))
    result.predict_seconds = time.perf_counter() - started
    result.test_proba = proba(job.test.features) if job.test else []
    result.valid_proba = proba(fold.texts_of(fold.valid))
    result.threshold_proba = proba(fold.texts_of(job.choosing))
    return model, result


def _head_settings(fold: Fold) -> dict[str, Any]:
    """Fields of the head's configuration; class weights, mean and scale are of training records."""
    options, target, y = fold.options, fold.target, fold.target.y[fold.train]
    settings: dict[str, Any] = {
        "head": options.head_name,
        "cnn_widths": list(options.cnn_widths),
        "label_smoothing": options.label_smoothing,
    }
    if options.dropout is not None:
        settings["dropout"] = options.dropout
    if not target.classes:
        scale = {"target_mean": float(y.mean()), "target_scale": float(y.std()) or 1.0}
        return {**settings, "problem": "value", "n_outputs": 1, **scale}
    if options.class_weight is not None:
        counts = np.bincount(y, minlength=len(target.classes))
        settings["class_weights"] = (len(y) / (len(counts) * np.maximum(counts, 1))).tolist()
    if options.one_logit:
        return {**settings, "problem": "one_logit", "n_outputs": 1}
    problem = "classes" if target.separator is None else "sets"
    return {**settings, "problem": problem, "n_outputs": len(target.classes)}


def _keep(job: _Job, folder: Path, fold: Fold, model: EncoderWithHead, result: FoldResult) -> None:
    """Write a fold's model to its final place, then its result, and last their checksums."""
    ready, final = folder / UNFINISHED / "model", folder / "model" / fold.model
    for old in (ready, final):
        if old.is_dir():
            storage.remove_tree(old)
    file = folder / _result_file(fold)
    for place in (ready, final.parent, file.parent):
        storage.make_folder(place)
    length = job.tokens.max_length
    with saving(ready):
        write_model(model, job.tokenizer, ready, classes=job.target.classes, max_length=length)
    storage.sync_tree(ready)
    storage.publish_folder(ready, final)
    storage.write_durably(file, json.dumps(asdict(result)).encode(), scratch=file.parent)
    written = {
        path.relative_to(folder).as_posix(): storage.file_sha256(path)
        for path in (file, *final.iterdir())
    }
    storage.write_sums(folder, storage.file_sums(folder, torn=True) | written, scratch=folder)


# predictions and files


def _predictions(
    job: _Job, results: Sequence[FoldResult], threshold: Threshold | None
) -> tuple[Predictions, list[float | None], float | None]:
    """Predictions of the run, the threshold of each fold, and the one of the mean of all models.

    The inner predictions of a fold are of its validation records, by its own model, which was
    fitted neither on them nor on the fold.
    """
    final = None if threshold is None else threshold.value
    each: list[float | None] = [final] * len(results)
    if threshold is not None and final is None:
        held_out = np.array([np.isin(job.choosing, fold.held_out) for fold in job.folds])
        proba = np.array([result.threshold_proba for result in results])[:, :, 1]
        chosen, final = choose_thresholds(threshold, job.target.y[job.choosing], proba, held_out)
        each = [*chosen]
    subsets, ids = [], job.units.ids
    for fold, result, limit in zip(job.folds, results, each, strict=True):
        common: dict[str, Any] = {
            "records": job.split,
            "ids": ids,
            "target": job.target,
            "fold": fold.number,
            "threshold": limit,
        }
        inner = None
        if len(fold.valid):
            chooses = np.isin(job.choosing, fold.threshold)
            more = [p for p, seen in zip(result.threshold_proba, chooses, strict=True) if seen]
            index = np.concatenate([fold.valid, fold.threshold])
            inner = Predictions.of_fold(index, np.array([*result.valid_proba, *more]), **common)
        proba = np.array(result.proba)
        subsets.append(Predictions.of_fold(fold.held_out, proba, inner=inner, **common))
    if job.test is not None:
        proba = np.mean([result.test_proba for result in results], axis=0)
        subsets.append(job.test.predictions(proba, threshold=final))
    return Predictions.joined(subsets), each, final


def _write(job: _Job, folder: Path, results: Sequence[FoldResult]) -> FinetuneRun:
    """Write everything but the models into the folder of the run."""
    options, texts = job.options, job.units.texts
    predictions, thresholds, final = _predictions(job, results, options.decision)
    log = [
        {"fold": fold.number, **line}
        for fold, result in zip(job.folds, results, strict=True)
        for line in result.log
    ]
    lines = "".join(json.dumps(line) + "\n" for line in log)
    storage.write_durably(folder / "training.jsonl", lines.encode(), scratch=folder)
    # the split, and beside the models which of them has not seen which record
    data, made = job.units.data, job.records
    write_split(made, folder / "split.parquet")
    models = FoldModels(
        models=tuple(fold.model for fold in job.folds),
        fold_of_model=tuple(fold.number for fold in job.folds),
        split=made.fingerprint,
        source=data.source,
        **asdict(job.tokens),
    )
    seen = np.where(made.folds == UNUSED, TEST, made.folds)  # by no model
    SeenRecords(folder, models, made.row, data.text_keys(), seen).write()
    metric = "macro-F1" if job.target.classes else "R²"
    draw_training(folder, [result.log for result in results], metric=metric)
    peak: int | None = peak_memory_since(job.peak_before)
    if job.device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(job.device)
    settings = asdict(options) | {"head_learning_rate": options.head_rate}
    return write_results(
        folder,
        FinetuneRun,
        predictions,
        job.split,
        job.test,
        decision=options.decision,
        seed=options.seed,
        libraries=_LIBRARIES,
        estimator="finetune",
        features="text",
        task=options.task,
        level=options.level,
        head=options.head_name,
        precision=options.precision,
        tokens=job.tokens,
        pad_id=int(job.tokenizer.pad_id),
        type_vocab=int(job.checkpoint.config.get("type_vocab_size") or 0),
        settings={name: value for name, value in settings.items() if name not in _FIELDS},
        views=(),
        threshold=final,
        thresholds=tuple(thresholds),
        models=models.models,
        epochs=tuple(result.epoch for result in results),
        history={
            name: _history(result.log) for name, result in zip(models.models, results, strict=True)
        },
        truncated={
            "records": int(texts.cut.sum()),
            "tokens": int(texts.n_tokens.sum()) - len(texts.ids),
            "tokens_all": int(texts.n_tokens.sum()),
        },
        dataset=_dataset_content(job, folder),
        cost=Cost(
            fit_seconds=sum(result.fit_seconds for result in results),
            predict_seconds=sum(result.predict_seconds for result in results),
            peak_memory_bytes=peak,
            parameters=results[0].parameters,
            device=job.device.type,
        ),
    )


def _history(log: Sequence[dict[str, Any]]) -> tuple[dict[str, float], ...]:
    """Losses and scores of each epoch of a model."""
    epochs: dict[float, dict[str, float]] = {}
    for line in log:
        if values := {name: line[name] for name in _EPOCH if name in line}:
            epochs.setdefault(line["epoch"], {"epoch": line["epoch"]}).update(values)
    return tuple(epochs[epoch] for epoch in sorted(epochs))


def _dataset_content(job: _Job, folder: Path) -> DatasetContent:
    data, checkpoint = job.units.data, job.checkpoint
    source = Path(data.name).resolve()
    shaping = json.dumps({"source": data.source, "reading": data.reading}, sort_keys=True)
    return DatasetContent(
        fingerprint=hashlib.sha256(shaping.encode()).hexdigest(),
        path=os.path.relpath(source, folder.resolve()) if source.exists() else "",
        source=data.source,
        model=ModelSettings(
            type=checkpoint.model_type,
            n_layers=checkpoint.n_layers,
            width=checkpoint.width,
            sha256=dict(sorted(checkpoint.sha256.items())),
        ),
        pairs=data.pairs is not None,
        reading=data.reading,
        rejected=data.rejected,
        names=Names(
            inputs=(data.name,),
            model=checkpoint.name,
            model_source=checkpoint.source,
            revision=checkpoint.revision,
        ),
    )
