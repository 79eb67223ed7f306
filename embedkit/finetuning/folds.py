"""Texts → fine-tuned encoders, one for every fold, and the run they make.

Each fold trains an encoder with a head on the other folds and predicts its own records; records of
the test part are predicted by the mean of all folds' models. Early stopping and thresholds are
learnt on records that are taken from the training folds. A finished fold is kept in
``RUN.incomplete/unfinished`` until the run is complete, so that the same command goes on.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embedkit import fsio
from embedkit._version import __version__
from embedkit.classifiers.test_set import count_seen
from embedkit.corpus import CorpusOptions
from embedkit.dataset.vector_settings import ModelSettings
from embedkit.encoding.checkpoint import (
    DEFAULT_MODEL,
    Checkpoint,
    find_checkpoint,
    quiet_transformers,
)
from embedkit.encoding.device import choose_device
from embedkit.encoding.precision import choose_precision
from embedkit.encoding.tokenization import (
    TextTokenizer,
    TokenizedText,
    TokenizerSettings,
)
from embedkit.encoding.vocabulary import choose_max_length, load_tokenizer
from embedkit.errors import UsageError
from embedkit.finetuning.data import TextData, read_more_texts, read_texts
from embedkit.finetuning.heads import EncoderWithHead, build_model
from embedkit.finetuning.training import Fold, FoldSettings, predict_logits, saving, train_fold
from embedkit.machine import peak_memory_bytes
from embedkit.runs.content import (
    Cost,
    DatasetContent,
    FinetuneRun,
    Names,
    RecordCounts,
    SplitContent,
    TestSetContent,
    Tokens,
    Truncated,
)
from embedkit.runs.figures import draw_run, draw_training
from embedkit.runs.folder import UNFINISHED, path_from, resumable_run, versions, write_run
from embedkit.runs.metrics import Threshold
from embedkit.runs.predictions import (
    Predictions,
    class_scores,
    reported_scores,
    write_predictions,
)
from embedkit.runs.split_files import TEST, Split, align_split, read_split
from embedkit.runs.splits import assign_folds, make_split
from embedkit.runs.targets import Target, check_classes, target_from, target_like
from embedkit.types import Float64, Int64

__all__ = ["FinetuneResult", "finetune"]

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FinetuneResult:
    """A finished run.

    Attributes:
        out: its folder.
        content: the content of ``run.json``.
        rejected: records of the corpus that could not be read.
    """

    out: Path
    content: FinetuneRun
    rejected: int


@dataclass(frozen=True, slots=True)
class _Plan:
    """A run settled in all its details; nothing is written yet."""

    data: TextData
    target: Target
    split: Split
    extra: TextData | None
    extra_target: Target | None
    checkpoint: Checkpoint
    tokenizer: TextTokenizer
    max_length: int
    settings: FoldSettings
    task: str
    threshold: str | None
    device: torch.device

    def head_settings(self) -> dict[str, Any]:
        """Fields of the head's configuration that are the same in every fold."""
        settings = self.settings
        problem = "value" if not self.target.classes else "classes"
        if settings.one_logit:
            problem = "one_logit"
        return {
            "head": settings.head, "mix_layers": settings.mix_layers,
            "cnn_widths": list(settings.cnn_widths), "problem": problem,
            "n_outputs": len(self.target.classes) if problem == "classes" else 1,
            "label_smoothing": settings.label_smoothing,
        }  # fmt: skip

    def identity(self) -> dict[str, Any]:
        """Everything that shapes the run, as JSON holds it."""
        import transformers

        extra = self.extra
        return {
            "source": list(self.data.source),
            "reading": self.data.reading,
            "split": self.split.fingerprint,
            "test": None if extra is None else list(extra.source),
            "model": dict(sorted(self.checkpoint.sha256.items())),
            "task": self.task,
            "max_length": self.max_length,
            "threshold": self.threshold,
            **asdict(self.settings),
            "device": self.device.type,
            "versions": {"embedkit": __version__, "torch": torch.__version__,
                         "transformers": transformers.__version__},
        }  # fmt: skip


def finetune(
    corpus: str | Path,
    *,
    out: str | Path,
    model: str = DEFAULT_MODEL,
    revision: str | None = None,
    offline: bool = False,
    device: str = "auto",
    split: str | Path | None = None,
    folds: int = 5,
    test: str | Path | None = None,
    task: str = "classification",
    max_length: int | None = None,
    precision: str = "auto",
    threshold: str | None = None,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    notify: Notify = lambda _: None,
    reading: CorpusOptions | None = None,
    **training: Any,
) -> FinetuneResult:
    """Train an encoder with a head on labelled texts, fold by fold; goes on where it stopped.

    Args:
        corpus: a corpus file with a label column, or a dataset that holds texts and labels.
        out: folder of the run; while it runs ``OUT.incomplete``.
        model: hub id or folder of the checkpoint to begin with.
        revision: branch, tag or commit of a hub checkpoint.
        offline: never ask the hub.
        device: ``auto``, ``cpu`` or ``cuda``.
        split: file that ``embedkit split`` wrote; without one ``folds`` folds are dealt.
        folds: number of folds where no split is given.
        test: a further corpus file to predict as test part, with labels or without.
        task: ``classification`` or ``regression``.
        max_length: tokens per text; by default what the checkpoint states.
        precision: ``auto`` (bf16 or fp16 on CUDA, fp32 on CPU), ``fp32``, ``bf16`` or ``fp16``.
        threshold: of two classes, the probability from which the second is decided on: a number,
            or the score it is chosen by on the records that watch (``macro_f1``, ``f1``, ``f2``).
        seed: of folds, training and bootstrap, and of the draw of ``sample``.
        resume: go on with an unfinished run and begin none; without it both is done.
        overwrite: replace a run, or start an unfinished one of other settings over.
        progress: called with a line after every epoch.
        notify: called with sentences for the user.
        reading: how the corpus is read; the seed of its sample is ``seed``.
        training: fields of :class:`~embedkit.finetuning.training.FoldSettings`.

    Raises:
        UsageError: a column, label, setting or split cannot be used; nothing was trained.
        MismatchError: the split belongs to other data, or an unfinished run of other settings is
            there.
        EncodeError: the loss of a fold is not a number any more.
        StorageError: a checkpoint cannot be written; finished folds are kept.
    """
    unknown = sorted(set(training) - {field.name for field in fields(FoldSettings)})
    if unknown:
        raise TypeError(f"finetune() got an unexpected keyword argument {unknown[0]!r}")
    where = _device(device)
    settings = FoldSettings(**training, seed=seed, precision=_precision(precision, where))
    settings.check()
    quiet_transformers()
    reading = reading or CorpusOptions()
    reading = replace(reading, seed=seed if reading.sample is not None else 0)
    data = read_texts(corpus, reading, notify=notify)
    if data.labels is None:
        raise UsageError(f"{data.name} has no label column. Name it with --label.")
    target = target_from(data.labels, rows=data.row, name=data.name, task=task)
    _check_target(target, settings, threshold)
    extra = None if test is None else read_more_texts(test, data, notify=notify)
    checkpoint = find_checkpoint(model, revision=revision, offline=offline)
    tokenizer = load_tokenizer(checkpoint)
    plan = _Plan(
        data=data,
        target=target,
        split=_split_of(data, split, folds=folds, seed=seed),
        extra=extra,
        extra_target=None
        if extra is None
        else target_like(target, extra.labels, rows=extra.row, name=extra.name),
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        max_length=choose_max_length(checkpoint, tokenizer, max_length),
        settings=settings,
        task=task,
        threshold=threshold,
        device=where,
    )
    _check_folds(plan)
    with resumable_run(Path(out), plan.identity(), overwrite=overwrite, begin=not resume) as folder:
        content = _Run(plan, folder, progress, notify).all_folds()
    return FinetuneResult(Path(out), content, sum(data.rejected.values()))


def _device(name: str) -> torch.device:
    device = choose_device(name)
    if device.index:
        raise UsageError(
            f"--device {name}: training runs on the first CUDA device. Choose another one by "
            f"CUDA_VISIBLE_DEVICES={device.index} and --device cuda."
        )
    return device


def _precision(name: str, device: torch.device) -> str:
    chosen = choose_precision(name, device)  # on CPU auto is fp32: no trial decides a training
    if chosen == "fp16" and device.type == "cpu":
        raise UsageError("--precision fp16 trains on CUDA only. Use fp32 or bf16 on the CPU.")
    return chosen


def _split_of(data: TextData, file: str | Path | None, *, folds: int, seed: int) -> Split:
    if file is None:
        return make_split(data.labelled(), folds=folds, seed=seed)
    return align_split(
        read_split(Path(file)), source=data.source, row=data.row, name=data.name, file=file
    )


def _check_target(target: Target, settings: FoldSettings, threshold: str | None) -> None:
    """Raise a :class:`UsageError` for settings that such labels do not allow."""
    two = len(target.classes) == 2
    given = {
        "--one-logit": settings.one_logit and not two,
        "--threshold": threshold is not None and not two,
    }
    for option, wrong in given.items():
        if wrong:
            raise UsageError(f"{option} needs two classes; there are {len(target.classes)}.")
    given = {
        "--class-weight": settings.class_weight is not None,
        "--label-smoothing": settings.label_smoothing > 0,
    }
    for option, wrong in given.items():
        if wrong and not target.classes:
            raise UsageError(f"{option} is for classes, not for --task regression.")
    if (
        threshold is not None
        and Threshold.parse(threshold).value is None
        and not settings.validation
    ):
        raise UsageError(
            f"--threshold {threshold} is chosen on records that watch: give --validation 0.1."
        )


def _check_folds(plan: _Plan) -> None:
    """Raise a :class:`UsageError` if a part cannot be trained or predicted, before any is."""
    if plan.extra is not None and len(plan.split.test):
        raise UsageError(
            f"the split holds a test part already; leave out --test {plan.extra.name}, or take a "
            "split without one."
        )
    for repeat in range(plan.split.repeats):
        for fold in range(plan.split.n_folds):
            train, test = plan.split.fold(repeat, fold)
            if not len(test):
                raise UsageError(
                    f"fold {fold} of the split holds no record of {plan.data.name} that has a text."
                    " Make the split again from the texts that are there."
                )
            if not len(train):
                raise UsageError(
                    f"no record of {plan.data.name} is left to learn fold {fold} from."
                )
            check_classes(plan.target, train, f"the training records of fold {fold}")


class _Run:
    """The folds of one run, from texts to files."""

    def __init__(
        self, plan: _Plan, folder: Path, progress: Callable[[str], None], notify: Notify
    ) -> None:
        self._plan, self._folder, self._progress = plan, folder, progress
        self._scratch = folder / UNFINISHED
        self._notify: Notify = notify
        self._texts = self._tokenized(plan.data)
        self._extra = None if plan.extra is None else self._tokenized(plan.extra)
        self._test: Int64 = plan.split.test

    def all_folds(self) -> FinetuneRun:
        split = self._plan.split
        parts = []
        for repeat in range(split.repeats):
            for fold in range(split.n_folds):
                file = self._scratch / "folds" / f"{_name(repeat, fold)}.json"
                if not file.is_file():
                    self._one_fold(repeat, fold, file)
                parts.append(json.loads(file.read_text("utf-8")))
        return self._finish(parts)

    def _one_fold(self, repeat: int, number: int, file: Path) -> None:
        plan = self._plan
        name = _name(repeat, number)
        known, held = plan.split.fold(repeat, number)
        seed = plan.settings.seed + 1_009 * (repeat * plan.split.n_folds + number)
        train, valid = _watching(plan, known, seed)
        title = f"fold {number + 1} of {plan.split.n_folds}"
        title += f", repeat {repeat + 1}" if plan.split.repeats > 1 else ""
        fold = Fold(title, self._texts, plan.target, train, valid, seed)
        model = build_model(
            plan.checkpoint, pad_id=plan.tokenizer.pad_id, seed=seed, notify=self._notify,
            **plan.head_settings(), **_learnt_settings(plan, train),
        )  # fmt: skip
        self._notify = _nothing  # the same words for every fold would not help
        work = self._scratch / "checkpoints" / name
        result = train_fold(
            fold, model, plan.settings, work=work, device=plan.device, pad_id=plan.tokenizer.pad_id,
            progress=self._progress,
        )  # fmt: skip
        started = time.perf_counter()
        output = self._outputs(result.model, [self._texts[i] for i in held])
        seconds = time.perf_counter() - started
        part = {
            "repeat": repeat, "fold": number, "held": held.tolist(), "output": output.tolist(),
            "valid": valid.tolist(),
            "valid_output": self._of_places(result.model, valid),
            "test_output": self._of_places(result.model, self._test),
            "extra_output": None if self._extra is None
            else self._outputs(result.model, self._extra).tolist(),
            "log": result.log, "epoch": result.epoch,
            "fit_seconds": result.seconds, "predict_seconds": seconds,
            "parameters": result.parameters,
        }  # fmt: skip
        self._keep_model(result.model, name)
        fsio.make_folder(file.parent)
        fsio.write_durably(file, json.dumps(part).encode(), scratch=file.parent)
        fsio.remove_tree(work)

    def _keep_model(self, model: EncoderWithHead, name: str) -> None:
        """Write a fold's model where it stays; what an earlier attempt left there goes."""
        ready, target = self._scratch / "model", self._folder / "model" / name
        for folder in (ready, target):
            if folder.is_dir():
                fsio.remove_tree(folder)
        fsio.make_folder(ready)
        fsio.make_folder(target.parent)
        with saving(ready):
            model.to("cpu").save_pretrained(ready)
            self._plan.tokenizer.hf.save_pretrained(ready)
        fsio.sync_tree(ready)
        fsio.publish_folder(ready, target)

    def _tokenized(self, data: TextData) -> list[TokenizedText]:
        settings = TokenizerSettings(self._plan.max_length)
        return self._plan.tokenizer.encode(data.texts, data.pairs, settings=settings)

    def _outputs(self, model: EncoderWithHead, texts: Sequence[TokenizedText]) -> Float64:
        logits = predict_logits(
            model, texts, pad_id=self._plan.tokenizer.pad_id,
            precision=self._plan.settings.precision,
        )  # fmt: skip
        return np.asarray(model.outputs(logits).numpy(), np.float64)

    def _of_places(self, model: EncoderWithHead, places: Int64) -> list[Any]:
        return list(self._outputs(model, [self._texts[i] for i in places]).tolist())

    def _finish(self, parts: list[dict[str, Any]]) -> FinetuneRun:
        """Scores, files and figures of folds that are all done; of the parts alone."""
        plan, folder = self._plan, self._folder
        chosen = _Thresholds(plan.threshold, plan.target, parts)
        found = [
            self._predictions(part["held"], part["output"], fold=part["fold"],
                              repeat=part["repeat"], threshold=chosen.of(part))
            for part in parts
        ]  # fmt: skip
        which = "test_output" if plan.extra is None else "extra_output"
        if plan.extra is not None or len(self._test):
            mean = np.mean([part[which] for part in parts], axis=0)
            index = self._test if plan.extra is None else np.arange(len(plan.extra))
            found.append(self._predictions(index, mean, fold=TEST, threshold=chosen.final))
        predictions = Predictions.joined(found)
        write_predictions(folder, predictions)
        _write_log(folder, parts)
        draw_run(folder, predictions)
        metric = "macro-F1" if plan.target.classes else "R²"
        draw_training(folder, _log_lines(parts), metric=metric)
        content = self._content(parts, chosen, predictions)
        write_run(folder, content)
        return content

    def _predictions(
        self, index: Any, proba: Any, *, fold: int, repeat: int = 0, threshold: float | None
    ) -> Predictions:
        """Predictions of one fold, or of the test set."""
        data, target = self._plan.data, self._plan.target
        group: Int64 | None = self._plan.split.group
        if fold == TEST and self._plan.extra is not None and self._plan.extra_target is not None:
            data, target, group = self._plan.extra, self._plan.extra_target, None
        return Predictions.of_fold(
            np.asarray(index, np.int64), np.asarray(proba, np.float64), row=data.row, ids=data.ids,
            target=target, fold=fold, group=group, repeat=repeat, threshold=threshold,
        )  # fmt: skip

    def _content(
        self, parts: list[dict[str, Any]], chosen: _Thresholds, predictions: Predictions
    ) -> FinetuneRun:
        plan = self._plan
        import transformers

        settings = asdict(plan.settings)
        extra = plan.extra
        return FinetuneRun(
            estimator="finetune",
            features="text",
            task=plan.task,
            head=settings.pop("head"),
            precision=settings.pop("precision"),
            settings=settings,
            views=(),
            classes=plan.target.classes,
            threshold=chosen.final,
            threshold_metric=Threshold.parse(plan.threshold).metric if plan.threshold else None,
            thresholds=tuple(chosen.of(part) for part in parts),
            models=tuple(_name(part["repeat"], part["fold"]) for part in parts),
            epochs=tuple(part["epoch"] for part in parts),
            tokens=Tokens(
                max_length=plan.max_length, pad_id=int(plan.tokenizer.pad_id),
                type_vocab=int(plan.checkpoint.config.get("type_vocab_size") or 0),
            ),
            truncated=_truncated(self._texts, plan.max_length),
            dataset=self._dataset(),
            split=SplitContent.of(plan.split),
            records=RecordCounts(
                folds=len(plan.split.in_folds), test=len(predictions.test)
            ),
            test_set=None if extra is None else TestSetContent(
                source=extra.source, rejected=sum(extra.rejected.values()),
                seen_texts=count_seen(extra.text_keys(), plan.data.text_keys()),
            ),
            scores=reported_scores(predictions, seed=plan.settings.seed, beta=chosen.beta),
            per_class=class_scores(predictions),
            cost=Cost(
                fit_seconds=sum(part["fit_seconds"] for part in parts),
                predict_seconds=sum(part["predict_seconds"] for part in parts),
                peak_memory_bytes=_peak_memory(plan.device),
                parameters=parts[0]["parameters"],
                device=plan.device.type,
            ),
            versions=versions() | {"torch": torch.__version__,
                                   "transformers": transformers.__version__},
        )  # fmt: skip

    def _dataset(self) -> DatasetContent:
        data, checkpoint, identity = self._plan.data, self._plan.checkpoint, self._plan.identity()
        return DatasetContent(
            fingerprint=_fingerprint({n: identity[n] for n in ("source", "reading")}),
            path=path_from(self._folder, Path(data.name)),
            source=data.source,
            model=ModelSettings(
                type=checkpoint.model_type, n_layers=checkpoint.n_layers,
                width=checkpoint.width, sha256=identity["model"],
            ),
            unicode=data.unicode,
            pairs=data.pairs is not None,
            reading=data.reading,
            rejected=data.rejected,
            names=Names(
                model=checkpoint.name, revision=checkpoint.revision, inputs=(data.name,)
            ),
        )  # fmt: skip


class _Thresholds:
    """From which probability of the second class on a fold decides for it.

    Attributes:
        final: of the mean of all folds' models; ``None`` to decide for the likeliest class.
        beta: of the F score that the user cares for, or ``None``.
    """

    def __init__(self, asked: str | None, target: Target, parts: list[dict[str, Any]]) -> None:
        self.final: float | None = None
        self.beta: float | None = None
        self._of: dict[tuple[int, int], float | None] = {}
        if asked is None:
            return
        threshold = Threshold.parse(asked)
        self.final, self.beta = threshold.value, threshold.beta
        watched = {
            (part["repeat"], part["fold"]): (
                target.y[part["valid"]], np.array(part["valid_output"])[:, 1]
            )
            for part in parts if part["valid"]
        }  # fmt: skip
        if self.final is not None:
            self._of = dict.fromkeys(((p["repeat"], p["fold"]) for p in parts), self.final)
            return
        for key, (y, positive) in watched.items():
            self._of[key] = threshold.choose(y, positive)
        y = np.concatenate([y for y, _ in watched.values()])
        positive = np.concatenate([p for _, p in watched.values()])
        self.final = threshold.choose(y, positive)

    def of(self, part: dict[str, Any]) -> float | None:
        """The threshold of one fold."""
        return self._of.get((part["repeat"], part["fold"]))


def _watching(plan: _Plan, known: Int64, seed: int) -> tuple[Int64, Int64]:
    """Training records of a fold parted in those that are learnt from and those that watch.

    Raises:
        UsageError: there are too few different texts.
    """
    share = plan.settings.validation
    if not share:
        return known, known[:0]
    groups, strata = plan.split.group[known], plan.target.strata[known]
    parts = min(round(1 / share), len(np.unique(groups)), int(np.bincount(strata).max()))
    watch = np.zeros(len(known), bool)
    if parts >= 2:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The least populated class", UserWarning)
            watch = assign_folds(strata, groups, parts, seed=seed) == 0
        for number in np.setdiff1d(strata[watch], strata[~watch]):  # a class must be learnt from
            watch &= strata != number
    if not watch.any():
        raise UsageError(
            f"--validation {share:g}: the {len(known)} training records of a fold are too few, or "
            "too much alike, for some of them to watch. Give --validation 0."
        )
    return known[~watch], known[watch]


def _learnt_settings(plan: _Plan, train: Int64) -> dict[str, Any]:
    """Fields of the head's configuration that are learnt from the training part."""
    y = plan.target.y[train]
    if not plan.target.classes:
        return {"target_mean": float(y.mean()), "target_scale": float(y.std()) or 1.0}
    if plan.settings.class_weight is None:
        return {}
    counts = np.bincount(y, minlength=len(plan.target.classes))
    return {"class_weights": (len(y) / (len(counts) * counts)).tolist()}


def _log_lines(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"repeat": part["repeat"], "fold": part["fold"], **line}
        for part in parts
        for line in part["log"]
    ]


def _write_log(folder: Path, parts: list[dict[str, Any]]) -> None:
    lines = "".join(json.dumps(line) + "\n" for line in _log_lines(parts))
    fsio.write_durably(folder / "training.jsonl", lines.encode(), scratch=folder)


def _truncated(texts: Sequence[TokenizedText], limit: int) -> Truncated:
    return Truncated(
        records=sum(text.cut for text in texts),
        tokens=sum(text.n_tokens - text.n_kept for text in texts),
        tokens_all=sum(text.n_tokens for text in texts),
        limit=limit,
    )


def _name(repeat: int, fold: int) -> str:
    return f"fold-{fold}" if not repeat else f"repeat-{repeat}-fold-{fold}"


def _fingerprint(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return peak_memory_bytes()


def _nothing(_: str) -> None:
    return None
