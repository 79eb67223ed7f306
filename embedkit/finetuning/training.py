"""Train one fold, and compute logits.

The loop is the Trainer of transformers. This module adds batches of texts of similar length, padded
to the longest of the batch; a checkpoint after every epoch, and every 1,000 steps of a long one,
that counts only when all of it is on the disk; an error where the loss is not a number; and the
choice of the epoch by the loss on validation records.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.utils.data import Sampler
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)

from embedkit import fsio
from embedkit.encoding.tokenization import TokenizedText
from embedkit.errors import EncodeError, UsageError
from embedkit.finetuning.batches import LengthSampler, n_seen, padded, predict_logits
from embedkit.finetuning.frozen import FrozenStates
from embedkit.finetuning.heads import EncoderWithHead
from embedkit.finetuning.options import TrainingOptions
from embedkit.finetuning.parameters import add_lora, freeze, merge_lora, parameter_groups
from embedkit.runs.metrics import (
    LOWER_IS_BETTER,
    beta_of,
    classification_metrics,
    regression_metrics,
)
from embedkit.runs.predictions import decide
from embedkit.runs.targets import Target
from embedkit.types import Float64, Int64, Progress, ProgressCallback, no_progress

__all__ = ["Fold", "Trained", "saving", "train_fold"]

logger = logging.getLogger(__name__)

_LOGS_PER_EPOCH = 10
_CHECKPOINT_STEPS = 1_000
_COMPLETE = "complete"
_WEIGHTS = "model.safetensors"
_LOGGED = {"loss": "loss", "learning_rate": "learning_rate", "epoch_loss": "train_loss",
           "epoch_accuracy": "train_accuracy", "eval_loss": "valid_loss",
           "eval_accuracy": "valid_accuracy", "eval_score": "valid_score"}  # fmt: skip
_SHOWN = {"epoch_loss": "loss", "epoch_accuracy": "accuracy", "eval_loss": "validation loss",
          "eval_accuracy": "validation accuracy"}  # fmt: skip
_CHOSEN_BY = "eval_chosen_by"

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
        frozen: what the frozen layers give for the texts, shared by all folds.
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
    frozen: FrozenStates

    def batch(
        self, index: Sequence[int] | Int64, model: EncoderWithHead
    ) -> dict[str, torch.Tensor]:
        """Some texts as a batch for the model."""
        lower = self.frozen.of(model)
        states = None if lower is None else [lower[i] for i in index]
        return padded([self.texts[i] for i in index], self.pad_id, states)

    def logits(self, index: Int64, model: EncoderWithHead) -> torch.Tensor:
        """Logits of some texts ``(n, outputs)``."""
        lower = self.frozen.of(model)
        return predict_logits(
            model, [self.texts[i] for i in index], pad_id=self.pad_id,
            precision=self.options.precision,
            lower=None if lower is None else [lower[i] for i in index],
        )  # fmt: skip


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
    last, earlier, state, totals = _last_checkpoint(fold.work), 0.0, None, _Totals()
    if last is not None:
        kept_there = json.loads((last / _COMPLETE).read_text("utf-8"))
        earlier, totals = float(kept_there["seconds"]), _Totals(**kept_there["totals"])
        state = TrainerState.load_from_json(str(last / "trainer_state.json"))
    started = time.perf_counter()
    if state is None or not _has_ended(state, options):
        trainer = _FoldTrainer(fold, model, totals, _Callback(fold, earlier, totals, progress))
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
        state = trainer.state
    seconds = earlier + time.perf_counter() - started
    kept = int((state.best_global_step if len(fold.valid) else None) or state.global_step)
    _load_trained(model, fold.work / f"checkpoint-{kept}")
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
    if not all(bool(p.isfinite().all()) for p in model.parameters() if p.requires_grad):
        raise EncodeError(f"{fold.name}: weights are not numbers any more. {_advice(options)}")
    if lora is not None:
        merge_lora(model, lora)
    return model.eval(), trained


@dataclass(slots=True)
class _Totals:
    """Sums over the training records of the epoch so far."""

    texts: int = 0
    loss: float = 0.0
    right: int = 0

    def add(self, loss: float, right: int, texts: int) -> None:
        self.loss += loss * texts
        self.right += right
        self.texts += texts

    def means(self, *, classes: bool) -> dict[str, float]:
        """Mean loss, and accuracy where there are classes; the next epoch begins with zeros."""
        found = {"epoch_loss": self.loss / max(self.texts, 1)}
        if classes:
            found["epoch_accuracy"] = self.right / max(self.texts, 1)
        self.texts, self.loss, self.right = 0, 0.0, 0
        return found


class _FoldTrainer(Trainer):  # type: ignore[misc]
    """The Trainer with this module's batches, evaluation and checkpoints."""

    control: Any

    def __init__(
        self, fold: Fold, model: EncoderWithHead, totals: _Totals, callback: _Callback
    ) -> None:
        self.fold, self._totals = fold, totals
        validates = len(fold.valid) > 0
        super().__init__(
            model=model,
            args=_arguments(fold, validates),
            data_collator=self._collate,
            train_dataset=[(int(i), fold.target.y[i]) for i in fold.train],
            eval_dataset=list(fold.valid) if validates else None,
            optimizers=(
                torch.optim.AdamW(parameter_groups(model, fold.options), fused=True), None
            ),
            callbacks=[callback],
        )  # fmt: skip
        self.remove_callback(PrinterCallback)

    def _collate(self, items: Sequence[tuple[int, Any]]) -> dict[str, torch.Tensor]:
        dtype = torch.int64 if self.fold.target.classes else torch.float32
        labels = torch.tensor([label for _, label in items], dtype=dtype)
        return {**self.fold.batch([i for i, _ in items], self.model), "labels": labels}

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        lengths = np.array([n_seen(self.fold.texts[i]) for i in self.fold.train], np.int64)
        return LengthSampler(lengths, self.fold.options.batch_size, self.fold.seed)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any
    ) -> Any:
        """Compute the loss of a batch as the Trainer does, and count it."""
        labels = inputs["labels"]
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **more)
        right = 0
        if self.fold.target.classes:
            y_pred = self.model.outputs(outputs.logits.detach()).argmax(1)
            right = int((y_pred == labels).sum())
        self._totals.add(float(loss.detach()), right, len(labels))
        return (loss, outputs) if return_outputs else loss

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Compute loss and score on the validation records, independent of batches."""
        fold, target = self.fold, self.fold.target
        logits = fold.logits(fold.valid, self.model)
        y = target.y[fold.valid]
        with torch.inference_mode():
            loss = float(self.model.loss(logits, torch.from_numpy(y)))
            proba = self.model.outputs(logits).numpy()
        metrics = {"eval_loss": loss, "eval_score": _value(y, proba, target, "macro_f1", "r2")}
        if target.classes:
            metrics["eval_accuracy"] = _value(y, proba, target, "accuracy", "")
        by = fold.options.select_by
        metrics[_CHOSEN_BY] = loss if by == "loss" else _value(y, proba, target, by, by)
        if math.isnan(metrics[_CHOSEN_BY]) and by != "loss":
            raise UsageError(
                f"select_by={by!r} is not defined on the {len(y)} validation records of "
                f"{fold.name}. Pass a larger validation= than {fold.options.validation:g}."
            )
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

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save what training changes: frozen parameters are those of the initial model."""
        folder = Path(str(output_dir))
        fsio.make_folder(folder)
        frozen = _frozen(self.model)
        found = {n: v for n, v in self.model.state_dict().items() if n not in frozen}
        tensors = {name: value.contiguous() for name, value in found.items()}
        save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        _load_trained(self.model, Path(resume_from_checkpoint))


def _frozen(model: EncoderWithHead) -> set[str]:
    return {name for name, p in model.named_parameters() if not p.requires_grad}


def _load_trained(model: EncoderWithHead, folder: Path) -> None:
    found = load_file(str(folder / _WEIGHTS))
    frozen = _frozen(model)
    unchanged = {n: v for n, v in model.state_dict().items() if n in frozen}
    model.load_state_dict(unchanged | found)


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
        metric_for_best_model=_CHOSEN_BY if validates else None,
        greater_is_better=_higher_is_better(options),
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

    def __init__(
        self, fold: Fold, earlier: float, totals: _Totals, progress: ProgressCallback
    ) -> None:
        self._fold, self._totals, self._progress = fold, totals, progress
        self._started = time.perf_counter() - earlier

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        for key in ("loss", "eval_loss"):
            if key in (logs or {}) and not math.isfinite(logs[key]):
                raise EncodeError(
                    f"{self._fold.name}: the loss is not a number any more at step "
                    f"{state.global_step}. {_advice(self._fold.options)}"
                )

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if _is_stuck(state, self._fold.options):
            control.should_training_stop = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % _CHECKPOINT_STEPS == 0 and not float(state.epoch).is_integer():
            control.should_log = control.should_save = True
        epochs = self._fold.options.epochs
        steps = state.max_steps // epochs
        epoch, done = divmod(state.global_step - 1, steps)
        stage = f"{self._fold.name}, epoch {epoch + 1} of {epochs}"
        self._progress(Progress(stage, done + 1, steps, "steps"))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        means = self._totals.means(classes=bool(self._fold.target.classes))
        state.log_history.append({**means, "epoch": state.epoch, "step": state.global_step})
        control.should_log = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = self._fold.work / f"checkpoint-{state.global_step}"
        fsio.sync_tree(folder)
        content = {"seconds": time.perf_counter() - self._started, "totals": asdict(self._totals)}
        fsio.write_durably(folder / _COMPLETE, json.dumps(content).encode(), scratch=folder)
        kept = {folder.name, f"checkpoint-{state.best_global_step}"}
        for other in self._fold.work.glob("checkpoint-*"):
            if other.name not in kept:
                fsio.remove_tree(other)
        if float(state.epoch).is_integer():
            values = {key: value for entry in state.log_history for key, value in entry.items()}
            score = "macro-F1" if self._fold.target.classes else "R²"
            names = _SHOWN | {"eval_score": f"validation {score}"}
            shown = [f"{what} {values[key]:.4f}" for key, what in names.items() if key in values]
            text = ", ".join(shown)
            epochs = self._fold.options.epochs
            logger.info("%s, epoch %d of %d: %s", self._fold.name, state.epoch, epochs, text)


def _advice(options: TrainingOptions) -> str:
    half = "" if options.precision == "fp32" else ", or precision='fp32'"
    return (
        f"Pass a smaller learning_rate= than {options.learning_rate:g}{half}. Finished folds are "
        "kept for these settings; others start over, with overwrite=True."
    )


def _higher_is_better(options: TrainingOptions) -> bool:
    return options.select_by not in ("loss", *LOWER_IS_BETTER)


def _is_stuck(state: TrainerState, options: TrainingOptions) -> bool:
    """Whether the validation loss, or the metric asked for, is no better for so many epochs."""
    sign = -1 if _higher_is_better(options) else 1
    values = [sign * entry[_CHOSEN_BY] for entry in state.log_history if _CHOSEN_BY in entry]
    if options.patience is None or not values:  # none: stopped before the first evaluation
        return False
    return len(values) - 1 - int(np.argmin(values)) >= options.patience


def _has_ended(state: TrainerState, options: TrainingOptions) -> bool:
    return state.global_step >= state.max_steps or _is_stuck(state, options)


def _last_checkpoint(work: Path) -> Path | None:
    """The newest complete checkpoint; incomplete ones are deleted."""
    complete = []
    for folder in work.glob("checkpoint-*"):
        if (folder / _COMPLETE).is_file():
            complete.append(folder)
        else:
            fsio.remove_tree(folder)
    return max(complete, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)


def saving(folder: Path) -> AbstractContextManager[None]:
    """Raise what a writer raises on a full disk as a :class:`StorageError`."""
    return fsio.storage_errors(folder, RuntimeError, SafetensorError)


def _value(y: Any, proba: Float64, target: Target, of_classes: str, of_values: str) -> float:
    """A metric of the likeliest class, or of values."""
    if target.classes:
        metrics = classification_metrics(y, proba, decide(proba), beta=beta_of(of_classes))
        return metrics[of_classes].value(len(y))
    return regression_metrics(y, proba)[of_values].value(len(y))
