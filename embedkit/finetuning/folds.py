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
from numpy.typing import NDArray

from embedkit import fsio
from embedkit._version import __version__
from embedkit.classifiers.test_set import count_known
from embedkit.corpus import CorpusOptions
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
    choose_max_length,
    load_tokenizer,
)
from embedkit.errors import UsageError
from embedkit.finetuning.data import TextData, read_more_texts, read_texts
from embedkit.finetuning.heads import EncoderWithHead, build_model
from embedkit.finetuning.training import Fold, FoldSettings, predict_logits, saving, train_fold
from embedkit.machine import peak_memory_bytes
from embedkit.runs.figures import draw_run, draw_training
from embedkit.runs.folder import (
    UNFINISHED,
    path_from,
    resumable_run,
    versions,
    write_predictions,
    write_run,
)
from embedkit.runs.metrics import best_threshold, parse_threshold
from embedkit.runs.predictions import (
    HeldOut,
    Target,
    baseline,
    check_part,
    decide,
    prediction_columns,
    scores_content,
    scores_of,
    target_from,
    target_like,
)
from embedkit.runs.splits import (
    TEST,
    Split,
    assign_folds,
    fitted_split,
    make_split,
    read_split,
)

__all__ = ["FinetuneResult", "finetune"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FinetuneResult:
    """A finished run.

    Attributes:
        out: its folder.
        content: what ``run.json`` says.
        rejected: records of the corpus that could not be read.
    """

    out: Path
    content: dict[str, Any]
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
    tokenizer = load_tokenizer(checkpoint, notify=notify)
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
    return fitted_split(
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
    if threshold is not None and parse_threshold(threshold)[0] is None and not settings.validation:
        raise UsageError(
            f"--threshold {threshold} is chosen on records that watch: give --validation 0.1."
        )


def _check_folds(plan: _Plan) -> None:
    """Raise a :class:`UsageError` if a part cannot be trained or predicted, before any is."""
    if plan.extra is not None and (plan.split.folds == TEST).any():
        raise UsageError(
            f"the split holds a test part already; leave out --test {plan.extra.name}, or take a "
            "split without one."
        )
    for repeat in range(plan.split.repeats):
        dealt = plan.split.folds[:, repeat]
        for fold in range(plan.split.n_folds):
            if not (dealt == fold).any():
                raise UsageError(
                    f"fold {fold} of the split holds no record of {plan.data.name} that has a text."
                    " Make the split again from the texts that are there."
                )
            known = np.flatnonzero((dealt != fold) & (dealt != TEST))
            if not len(known):
                raise UsageError(
                    f"no record of {plan.data.name} is left to learn fold {fold} from."
                )
            check_part(plan.target, known, f"the training part of fold {fold}")


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
        places = np.flatnonzero(plan.split.folds[:, 0] == TEST)
        self._test: Integers = places

    def all_folds(self) -> dict[str, Any]:
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
        dealt = plan.split.folds[:, repeat]
        held = np.flatnonzero(dealt == number)
        known = np.flatnonzero((dealt != number) & (dealt != TEST))
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
            "baseline": baseline(plan.target, known, 1).tolist(),
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

    def _outputs(self, model: EncoderWithHead, texts: Sequence[TokenizedText]) -> Floats:
        logits = predict_logits(
            model, texts, pad_id=self._plan.tokenizer.pad_id,
            precision=self._plan.settings.precision,
        )  # fmt: skip
        return np.asarray(model.outputs(logits).numpy(), np.float64)

    def _of_places(self, model: EncoderWithHead, places: Integers) -> list[Any]:
        return list(self._outputs(model, [self._texts[i] for i in places]).tolist())

    def _finish(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Scores, files and figures of folds that are all done; of the parts alone."""
        plan, folder, target = self._plan, self._folder, self._plan.target
        chosen = _Thresholds(plan.threshold, target, parts)
        held = HeldOut.joined([_held_out(part, chosen.of(part)) for part in parts])
        seed = plan.settings.seed
        scores = {"cross_validation": scores_of(target, held, seed=seed, beta=chosen.beta)}
        tables = [self._columns(plan.data, target, held)]
        known = np.flatnonzero(plan.split.folds[:, 0] != TEST)
        if (asked := self._test_part()) is not None:
            about, truth, places = asked
            which = "test_output" if plan.extra is None else "extra_output"
            output = np.mean([part[which] for part in parts], axis=0)
            test = _averaged(places, output, chosen.final, baseline(target, known, len(output)))
            tables.append(self._columns(about, truth, test))
            if len(truth.y):
                scores["test"] = scores_of(truth, test, seed=seed, beta=chosen.beta)
        write_predictions(folder, tables)
        _write_log(folder, parts)
        draw_run(folder, target.y[held.place], held.output, held.decided, target.classes)
        draw_training(folder, _log_lines(parts), measure="R²" if not target.classes else "macro-F1")
        content = self._content(parts, chosen, scores)
        write_run(folder, content)
        return content

    def _test_part(self) -> tuple[TextData, Target, Integers] | None:
        """What places point into, labels, and places of the test part."""
        plan = self._plan
        if plan.extra is not None and plan.extra_target is not None:
            return plan.extra, plan.extra_target, np.arange(len(plan.extra))
        return (plan.data, plan.target, self._test) if len(self._test) else None

    def _columns(self, data: TextData, target: Target, held: HeldOut) -> dict[str, Any]:
        return prediction_columns(row=data.row, ids=data.ids, target=target, held=held)

    def _content(
        self, parts: list[dict[str, Any]], chosen: _Thresholds, scores: dict[str, Any]
    ) -> dict[str, Any]:
        plan, data = self._plan, self._plan.data
        import transformers

        identity = plan.identity()
        held_out = int((plan.split.folds[:, 0] == TEST).sum())
        return {
            "kind": "finetuned",
            "learner": {
                "classifier": "finetune", "features": "text", "task": plan.task,
                **asdict(plan.settings),
            },
            "tuned": None,
            "views": [],
            "classes": list(plan.target.classes),
            "threshold": chosen.final,
            "thresholds": [chosen.of(part) for part in parts],
            "models": [_name(part["repeat"], part["fold"]) for part in parts],
            "epochs": [part["epoch"] for part in parts],
            "tokens": {
                "max_length": plan.max_length, "pad_id": plan.tokenizer.pad_id,
                "type_vocab": int(plan.checkpoint.config.get("type_vocab_size") or 0),
            },
            "truncated": _truncated(self._texts, plan.max_length),
            "dataset": {
                "fingerprint": _fingerprint({n: identity[n] for n in ("source", "reading")}),
                "path": path_from(self._folder, Path(data.name)),
                "source": list(data.source),
                "model": {
                    "type": plan.checkpoint.model_type, "n_layers": plan.checkpoint.n_layers,
                    "width": plan.checkpoint.width, "sha256": identity["model"],
                },
                "unicode": data.unicode,
                "pairs": data.pairs is not None,
                "reading": data.reading,
                "rejected": data.rejected,
                "names": {
                    "model": plan.checkpoint.name, "revision": plan.checkpoint.revision,
                    "inputs": [data.name],
                },
            },
            "split": {"fingerprint": plan.split.fingerprint, **plan.split.settings},
            "records": {"folds": len(data) - held_out,
                        "test": held_out if plan.extra is None else len(plan.extra)},
            "test": None if plan.extra is None else {
                "source": list(plan.extra.source),
                "rejected": sum(plan.extra.rejected.values()),
                "known_texts": count_known(
                    plan.extra.whole_texts(), plan.data.whole_texts()
                ),
            },
            "scores": scores_content(scores),
            "cost": {
                "fit_seconds": sum(part["fit_seconds"] for part in parts),
                "predict_seconds": sum(part["predict_seconds"] for part in parts),
                "peak_memory_bytes": _peak_memory(plan.device),
                "parameters": parts[0]["parameters"],
                "device": plan.device.type,
            },
            "versions": versions() | {"torch": torch.__version__,
                                      "transformers": transformers.__version__},
        }  # fmt: skip


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
        self.final, self.beta = parse_threshold(asked)
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
            self._of[key] = best_threshold(y, positive, beta=self.beta)
        y = np.concatenate([y for y, _ in watched.values()])
        positive = np.concatenate([p for _, p in watched.values()])
        self.final = best_threshold(y, positive, beta=self.beta)

    def of(self, part: dict[str, Any]) -> float | None:
        """The threshold of one fold."""
        return self._of.get((part["repeat"], part["fold"]))


def _watching(plan: _Plan, known: Integers, seed: int) -> tuple[Integers, Integers]:
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


def _learnt_settings(plan: _Plan, train: Integers) -> dict[str, Any]:
    """Fields of the head's configuration that are learnt from the training part."""
    y = plan.target.y[train]
    if not plan.target.classes:
        return {"target_mean": float(y.mean()), "target_scale": float(y.std()) or 1.0}
    if plan.settings.class_weight is None:
        return {}
    counts = np.bincount(y, minlength=len(plan.target.classes))
    return {"class_weights": (len(y) / (len(counts) * counts)).tolist()}


def _held_out(part: dict[str, Any], threshold: float | None) -> HeldOut:
    held, output = np.array(part["held"], np.int64), np.array(part["output"], np.float64)
    guess = np.repeat(np.array(part["baseline"], np.float64), len(held), axis=0)
    fold, repeat = np.full(len(held), part["fold"]), np.full(len(held), part["repeat"])
    return HeldOut(held, fold, repeat, output, decide(output, threshold=threshold), guess)


def _averaged(places: Integers, output: Floats, threshold: float | None, guess: Floats) -> HeldOut:
    none = np.zeros(len(places), np.int64)
    decided = decide(output, threshold=threshold)
    return HeldOut(places, np.full(len(places), TEST), none, output, decided, guess)


def _log_lines(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"repeat": part["repeat"], "fold": part["fold"], **line}
        for part in parts
        for line in part["log"]
    ]


def _write_log(folder: Path, parts: list[dict[str, Any]]) -> None:
    lines = "".join(json.dumps(line) + "\n" for line in _log_lines(parts))
    fsio.write_durably(folder / "training.jsonl", lines.encode(), scratch=folder)


def _truncated(texts: Sequence[TokenizedText], limit: int) -> dict[str, int]:
    """The ledger: how many records were cut, and how many of all tokens that cost."""
    return {
        "records": sum(text.cut for text in texts),
        "tokens": sum(text.n_tokens - text.n_kept for text in texts),
        "tokens_all": sum(text.n_tokens for text in texts),
        "limit": limit,
    }


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
