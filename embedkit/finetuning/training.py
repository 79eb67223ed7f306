"""Train one fold, and compute logits.

The loop is the Trainer of transformers. This module adds batches of texts of similar length, padded
to the longest of the batch; a checkpoint after every epoch, and every 1,000 steps of a long one,
that counts only when all of it is on the disk; an error where the loss is not a number; and the
choice of the epoch by the loss on validation records.
"""

from __future__ import annotations

import inspect
import json
import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Sampler
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)

from embedkit import fsio
from embedkit.encoding.tokenization import TokenizedText
from embedkit.errors import EncodeError, StorageError, first_line
from embedkit.finetuning.heads import EncoderWithHead
from embedkit.finetuning.options import TrainingOptions
from embedkit.finetuning.parameters import add_lora, freeze, merge_lora, parameter_groups
from embedkit.runs.metrics import classification_scores, regression_scores
from embedkit.runs.targets import Target
from embedkit.types import Float64, Int64, Progress, ProgressCallback, no_progress

__all__ = ["Fold", "Trained", "batches_by_length", "predict_logits", "saving", "train_fold"]

logger = logging.getLogger(__name__)

_BATCHES_SORTED = 50
_LOGS_PER_EPOCH = 10
_PREDICT_TOKENS = 4_096
_CHECKPOINT_STEPS = 1_000
_COMPLETE = "complete"
_LOGGED = {"loss": "loss", "learning_rate": "learning_rate", "eval_loss": "valid_loss",
           "eval_score": "valid_score"}  # fmt: skip

_CHECKPOINTING = "activation_checkpointing"
if _CHECKPOINTING not in TrainingArguments.__dataclass_fields__:  # its older name
    _CHECKPOINTING = "gradient_checkpointing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """What one fold is trained on, and how.

    Attributes:
        name: for messages, such as ``fold 2 of 5``.
        texts: all records, tokenized.
        target: their labels.
        train: indices of the training records.
        valid: indices of the validation records that choose the epoch; may be empty.
        options: how it is trained; ``precision`` is not ``auto``.
        seed: of head, order and dropout.
        device: where it is trained.
        pad_id: token id to fill with.
        work: folder for checkpoints, which the caller deletes.
    """

    name: str
    texts: Sequence[TokenizedText]
    target: Target
    train: Int64
    valid: Int64
    options: TrainingOptions
    seed: int
    device: torch.device
    pad_id: int
    work: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """How a model was trained.

    Attributes:
        log: lines of ``training.jsonl``, without repeat and fold.
        epoch: the epoch that was kept.
        fit_seconds: seconds of all attempts together.
        parameters: number of trained parameters.
    """

    log: list[dict[str, Any]]
    epoch: float
    fit_seconds: float
    parameters: int


def train_fold(
    fold: Fold, model: EncoderWithHead, *, progress: ProgressCallback = no_progress
) -> tuple[EncoderWithHead, Trained]:
    """Train a fold, or resume where an earlier attempt stopped.

    Args:
        fold: its records and options.
        model: the initial model, which is changed.
        progress: called with the steps done.

    Returns:
        The model of the best epoch, and how it was trained.

    Raises:
        EncodeError: the loss or a weight is not a number.
        StorageError: a checkpoint cannot be written.
    """
    options = fold.options
    freeze(model, options.freeze_layers)
    lora = None if options.lora is None else add_lora(model, options.lora, seed=fold.seed)
    model.to(fold.device)
    fsio.make_folder(fold.work)
    last, earlier, state = _last_checkpoint(fold.work), 0.0, None
    if last is not None:
        earlier = float(json.loads((last / _COMPLETE).read_text("utf-8"))["seconds"])
        state = TrainerState.load_from_json(str(last / "trainer_state.json"))
    started = time.perf_counter()
    if state is None or not _has_ended(state, options):
        trainer = _FoldTrainer(fold, model, _Callback(fold, earlier, progress))
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
        state = trainer.state
    seconds = earlier + time.perf_counter() - started
    kept = int((state.best_global_step if len(fold.valid) else None) or state.global_step)
    model.load_state_dict(load_file(str(fold.work / f"checkpoint-{kept}/model.safetensors")))
    log = [
        {"step": entry["step"], "epoch": round(entry["epoch"], 6), **values}
        for entry in state.log_history
        if (values := {name: entry[key] for key, name in _LOGGED.items() if key in entry})
    ]
    scored = [line["epoch"] for line in log if line["step"] == kept and "valid_loss" in line]
    trained = Trained(
        log=log,
        epoch=float([*scored, state.epoch][0]),
        fit_seconds=seconds,
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
    )
    if not all(bool(p.isfinite().all()) for p in model.parameters()):  # after the last step
        raise EncodeError(f"{fold.name}: weights are not numbers any more. {_advice(options)}")
    if lora is not None:
        merge_lora(model, lora)
    return model.eval(), trained


def predict_logits(
    model: PreTrainedModel, texts: Sequence[TokenizedText], *, pad_id: int, precision: str = "fp32"
) -> torch.Tensor:
    """Return logits ``(n, outputs)`` float32 on the CPU, in the order of the texts.

    Args:
        model: any model for classification, on its device; it is put into evaluation mode.
        texts: the tokenized texts.
        pad_id: token id to fill with.
        precision: to compute in.
    """
    device = next(model.parameters()).device
    model.eval()
    takes = inspect.signature(model.forward).parameters
    width = getattr(model.config, "n_outputs", None) or model.config.num_labels
    result = torch.zeros(len(texts), width)
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    with torch.inference_mode(), torch.autocast(device.type, half, enabled=half is not None):
        for index in batches_by_length([t.n_kept for t in texts], tokens=_PREDICT_TOKENS):
            batch = _padded([texts[i] for i in index], pad_id)
            given = {name: value.to(device) for name, value in batch.items() if name in takes}
            result[torch.from_numpy(index)] = model(**given).logits.float().cpu()
    return result


def batches_by_length(lengths: Sequence[int], *, tokens: int) -> Iterator[Int64]:
    """Yield indices of texts of similar length that have at most ``tokens`` with padding."""
    order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
    start = 0
    while start < len(order):
        count = max(tokens // max(lengths[order[start]], 1), 1)
        yield order[start : start + count]
        start += count


class _LengthSampler(Sampler[int]):
    """Order of an epoch, by seed and epoch alone; neighbours have similar lengths."""

    def __init__(self, lengths: Int64, batch: int, seed: int) -> None:
        self._lengths, self._batch, self._seed, self._epoch = lengths, batch, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng([self._seed, self._epoch])
        order = random.permutation(len(self._lengths))
        whole, batches = len(order) // self._batch * self._batch, []
        step = self._batch * _BATCHES_SORTED
        for start in range(0, whole, step):
            some = order[start : min(start + step, whole)]
            some = some[np.argsort(self._lengths[some], kind="stable")]
            batches += np.split(some, len(some) // self._batch)
        random.shuffle(batches)
        yield from (int(i) for batch in [*batches, order[whole:]] for i in batch)


class _FoldTrainer(Trainer):  # type: ignore[misc]
    """The Trainer with this module's batches, evaluation and checkpoints."""

    control: Any

    def __init__(self, fold: Fold, model: EncoderWithHead, callback: _Callback) -> None:
        self.fold = fold
        validates = len(fold.valid) > 0
        super().__init__(
            model=model,
            args=_arguments(fold, validates),
            data_collator=self._collate,
            train_dataset=[(fold.texts[i], fold.target.y[i]) for i in fold.train],
            eval_dataset=list(fold.valid) if validates else None,
            optimizers=(
                torch.optim.AdamW(parameter_groups(model, fold.options), fused=True), None
            ),
            callbacks=[callback],
        )  # fmt: skip
        self.remove_callback(PrinterCallback)

    def _collate(self, items: Sequence[tuple[TokenizedText, Any]]) -> dict[str, torch.Tensor]:
        dtype = torch.int64 if self.fold.target.classes else torch.float32
        labels = torch.tensor([label for _, label in items], dtype=dtype)
        return {**_padded([text for text, _ in items], self.fold.pad_id), "labels": labels}

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        lengths = np.array([self.fold.texts[i].n_kept for i in self.fold.train], np.int64)
        return _LengthSampler(lengths, self.fold.options.batch_size, self.fold.seed)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Compute loss and score on the validation records, independent of batches."""
        fold, target = self.fold, self.fold.target
        texts = [fold.texts[i] for i in fold.valid]
        logits = predict_logits(
            self.model, texts, pad_id=fold.pad_id, precision=fold.options.precision
        )
        labels = torch.from_numpy(target.y[fold.valid])
        with torch.inference_mode():
            metrics = {
                "eval_loss": float(self.model.loss(logits, labels)),
                "eval_score": _score(target, fold.valid, self.model.outputs(logits).numpy()),
            }
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = self.fold.work
        fsio.remove_file(folder / f"checkpoint-{self.state.global_step}" / _COMPLETE)
        with saving(folder):
            super()._save_checkpoint(model, trial)


def _arguments(fold: Fold, validates: bool) -> TrainingArguments:
    options = fold.options
    steps = math.ceil(len(fold.train) / options.batch_size / options.accumulate)
    warmup = int(options.warmup)
    if options.warmup < 1:  # older transformers take no fraction under this name
        warmup = math.ceil(options.warmup * options.epochs * steps)
    arguments = TrainingArguments(
        output_dir=str(fold.work.resolve()),
        num_train_epochs=options.epochs,
        per_device_train_batch_size=options.batch_size,
        gradient_accumulation_steps=options.accumulate,
        learning_rate=options.learning_rate,
        warmup_steps=warmup,
        logging_steps=max(steps // _LOGS_PER_EPOCH, 1),
        logging_nan_inf_filter=False,
        eval_strategy="epoch" if validates else "no",
        save_strategy="epoch",
        metric_for_best_model="loss" if validates else None,
        greater_is_better=False,
        bf16=options.precision == "bf16",
        fp16=options.precision == "fp16",
        use_cpu=fold.device.type == "cpu",
        dataloader_pin_memory=fold.device.type == "cuda",
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to="none",
        seed=fold.seed,
        **{
            _CHECKPOINTING: options.gradient_checkpointing,
            f"{_CHECKPOINTING}_kwargs": {"use_reentrant": False},
        },
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several would each get some of a batch
    return arguments


class _Callback(TrainerCallback):  # type: ignore[misc]
    """Stops a fold that diverges or does not improve; marks complete checkpoints; reports."""

    def __init__(self, fold: Fold, earlier: float, progress: ProgressCallback) -> None:
        self._fold, self._progress = fold, progress
        self._started = time.perf_counter() - earlier

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        for key in ("loss", "eval_loss"):
            if key in (logs or {}) and not math.isfinite(logs[key]):
                raise EncodeError(
                    f"{self._fold.name}: the loss is not a number any more at step "
                    f"{state.global_step}. {_advice(self._fold.options)}"
                )
        self._progress(Progress(self._fold.name, state.global_step, state.max_steps, "steps"))

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if _is_stuck(state, self._fold.options.patience):
            control.should_training_stop = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % _CHECKPOINT_STEPS == 0 and not float(state.epoch).is_integer():
            control.should_log = control.should_save = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_log = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = self._fold.work / f"checkpoint-{state.global_step}"
        fsio.sync_tree(folder)
        content = json.dumps({"seconds": time.perf_counter() - self._started}).encode()
        fsio.write_durably(folder / _COMPLETE, content, scratch=folder)
        kept = {folder.name, f"checkpoint-{state.best_global_step}"}
        for other in self._fold.work.glob("checkpoint-*"):
            if other.name not in kept:
                fsio.remove_tree(other)
        if float(state.epoch).is_integer():
            values = {key: value for entry in state.log_history for key, value in entry.items()}
            text = f"loss {values.get('loss', math.nan):.4f}"
            if "eval_loss" in values:
                text += ", validation loss {eval_loss:.4f}, score {eval_score:.4f}".format(**values)
            epochs = self._fold.options.epochs
            logger.info("%s, epoch %d of %d: %s", self._fold.name, state.epoch, epochs, text)


def _advice(options: TrainingOptions) -> str:
    half = "" if options.precision == "fp32" else ", or precision='fp32'"
    return (
        f"Pass a smaller learning_rate= than {options.learning_rate:g}{half}. Finished folds are "
        "kept for these settings; others start over, with overwrite=True."
    )


def _is_stuck(state: TrainerState, patience: int | None) -> bool:
    """Whether the validation loss has not fallen for so many epochs."""
    losses = [entry["eval_loss"] for entry in state.log_history if "eval_loss" in entry]
    if patience is None or not losses:  # none: stopped before the first evaluation
        return False
    return len(losses) - 1 - int(np.argmin(losses)) >= patience


def _has_ended(state: TrainerState, options: TrainingOptions) -> bool:
    return state.global_step >= state.max_steps or _is_stuck(state, options.patience)


def _last_checkpoint(work: Path) -> Path | None:
    """The newest complete checkpoint; incomplete ones are deleted."""
    complete = []
    for folder in work.glob("checkpoint-*"):
        if (folder / _COMPLETE).is_file():
            complete.append(folder)
        else:
            fsio.remove_tree(folder)
    return max(complete, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)


@contextmanager
def saving(folder: Path) -> Iterator[None]:
    """Raise what a writer raises on a full disk as a :class:`StorageError`."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        raise StorageError(
            f"cannot write a model below {folder}: {first_line(error)} "
            f"({fsio.free_bytes(folder) / 1e6:,.1f} MB free). Free some space and run the same "
            "command again: finished folds and the checkpoint before are kept."
        ) from error


def _padded(texts: Sequence[TokenizedText], pad_id: int) -> dict[str, torch.Tensor]:
    """Texts as a batch ``(texts, tokens)``, padded to the longest of them."""

    def stacked(rows: list[Any], fill: int) -> torch.Tensor:
        tensors = [torch.from_numpy(row.astype(np.int64)) for row in rows]
        return pad_sequence(tensors, batch_first=True, padding_value=fill)

    windows = [text.windows[0] for text in texts]
    return {
        "input_ids": stacked([window.ids for window in windows], pad_id),
        "token_type_ids": stacked([window.type_ids for window in windows], 0),
        "attention_mask": stacked([np.ones(len(window.ids)) for window in windows], 0),
    }


def _score(target: Target, index: Int64, proba: Float64) -> float:
    """Macro-F1 of the likeliest class, or R² of a regression."""
    y = target.y[index]
    if not target.classes:
        return regression_scores(y, proba, samples=0)["r2"].value
    return classification_scores(y, proba, proba.argmax(1), samples=0)["macro_f1"].value
