"""One fold: an encoder with a head is trained on some records and says what it says of others.

The loop is the Trainer of transformers. What is added here: batches of texts of like length,
padded to the longest of the batch only; a checkpoint after every epoch, and every 1,000 steps of a
long one, that counts only when all of it is on the disk; a loss that is not a number stops the
fold; the best epoch is kept by the loss on records that are taken from the training part.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, Sampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from embedkit import fsio
from embedkit.choices import HEADS
from embedkit.encoding.tokenization import TokenizedText
from embedkit.errors import EncodeError, StorageError, UsageError, first_line
from embedkit.finetuning.heads import EncoderWithHead, parameter_depth
from embedkit.finetuning.lora import add_lora, check_lora, merge_lora
from embedkit.runs.metrics import classification_scores, regression_scores
from embedkit.runs.targets import Target

__all__ = ["Fold", "FoldResult", "FoldSettings", "batches_by_length", "freeze", "predict_logits",
           "saving", "train_fold"]  # fmt: skip

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_WEIGHT_DECAY = 0.01
_POOL = 50
_LOGS_PER_EPOCH = 10
_PREDICT_TOKENS = 4_096
_CHECKPOINT_STEPS = 1_000
_DONE = "complete"

_CHECKPOINTING = "activation_checkpointing"
if _CHECKPOINTING not in TrainingArguments.__dataclass_fields__:  # its older name
    _CHECKPOINTING = "gradient_checkpointing"


@dataclass(frozen=True, slots=True)
class FoldSettings:
    """How a fold is trained.

    Attributes:
        head: one of :data:`~embedkit.choices.HEADS`.
        mix_layers: of how many last layers the head sees a learnt mix.
        cnn_widths: tokens that the convolutions span.
        one_logit: of two classes, one logit instead of two.
        epochs: passes over the training part, at most.
        learning_rate: at its highest; it falls linearly to 0.
        batch_size: texts per step and device.
        accumulate: batches per step of the optimizer.
        class_weight: ``balanced`` gives every class the same weight.
        label_smoothing: share of the target that is spread over all classes.
        freeze_layers: ``embeddings``, ``all``, or how many of the lowest layers are not trained
            (with the embeddings); ``None`` for none.
        lora: rank of small matrices that are trained instead of the encoder's own weights.
        layer_decay: factor by which the learning rate falls from layer to layer downwards.
        warmup: steps, or below 1 the part of all steps, in which the learning rate rises.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        gradient_checkpointing: compute activations twice instead of keeping them.
        patience: epochs without a better validation loss before the fold stops; ``None``: never.
        validation: part of the training records that only watch.
        seed: of head, order and dropout.
    """

    head: str = "cls"
    mix_layers: int = 1
    cnn_widths: tuple[int, ...] = (2, 3, 4)
    one_logit: bool = False
    epochs: int = 3
    learning_rate: float = 5e-5
    batch_size: int = 16
    accumulate: int = 1
    class_weight: str | None = None
    label_smoothing: float = 0.0
    freeze_layers: str | None = None
    lora: int | None = None
    layer_decay: float = 1.0
    warmup: float = 0.1
    precision: str = "fp32"
    gradient_checkpointing: bool = False
    patience: int | None = None
    validation: float = 0.1
    seed: int = 0

    def check(self) -> None:
        """Raise a :class:`UsageError` if a setting cannot be used."""
        wrong = {
            f"--head {self.head}: expected one of {', '.join(HEADS)}": self.head not in HEADS,
            f"--mix-layers {self.mix_layers}: expected 1 or more": self.mix_layers < 1,
            f"--cnn-widths {','.join(map(str, self.cnn_widths))}: expected numbers of tokens such "
            "as 2,3,4": not self.cnn_widths or min(self.cnn_widths) < 1,
            f"--epochs {self.epochs}: expected 1 or more": self.epochs < 1,
            f"--learning-rate {self.learning_rate:g}: expected a small number above 0, such as "
            "5e-5": not 0 < self.learning_rate < math.inf,
            f"--batch-size {self.batch_size}: expected 1 or more": self.batch_size < 1,
            f"--accumulate {self.accumulate}: expected 1 or more": self.accumulate < 1,
            f"--label-smoothing {self.label_smoothing:g}: expected 0 or more, below 1":
                not 0 <= self.label_smoothing < 1,
            f"--layer-decay {self.layer_decay:g}: expected above 0, at most 1":
                not 0 < self.layer_decay <= 1,
            f"--warmup {self.warmup:g}: expected steps, or a part of all steps such as 0.1":
                not 0 <= self.warmup < math.inf,
            f"--patience {self.patience}: expected 1 or more":
                self.patience is not None and self.patience < 1,
            f"--validation {self.validation:g}: expected a part between 0 and 0.5, such as 0.1":
                not 0 <= self.validation <= 0.5,
            f"--seed {self.seed}: expected 0 or more, below 2147483648":
                not 0 <= self.seed < 2**31,
            "--patience needs records to watch: give --validation 0.1":
                self.patience is not None and self.validation == 0,
            f"--freeze-layers {self.freeze_layers}: expected a number, embeddings or all":
                self.freeze_layers not in (None, "embeddings", "all")
                and not str(self.freeze_layers).isdigit(),
        }  # fmt: skip
        for message, is_wrong in wrong.items():
            if is_wrong:
                raise UsageError(f"{message}.")
        check_lora(self.lora, self.freeze_layers)


@dataclass(frozen=True, slots=True)
class Fold:
    """What one fold is trained on.

    Attributes:
        name: for messages, such as ``fold 2 of 5``.
        texts: all records, tokenized.
        target: their labels.
        train: places of the records that are learnt from.
        valid: places of the records that watch; may be empty.
        seed: of head, order and dropout of this fold.
    """

    name: str
    texts: Sequence[TokenizedText]
    target: Target
    train: Integers
    valid: Integers
    seed: int


@dataclass(frozen=True, slots=True)
class FoldResult:
    """A trained fold.

    Attributes:
        model: with the weights of its best epoch.
        log: lines of ``training.jsonl``, without repeat and fold.
        seconds: of training, all attempts together.
        epoch: that was kept.
        parameters: how many numbers were trained.
    """

    model: EncoderWithHead
    log: list[dict[str, Any]]
    seconds: float
    epoch: float
    parameters: int


def train_fold(
    fold: Fold,
    model: EncoderWithHead,
    settings: FoldSettings,
    *,
    work: Path,
    device: torch.device,
    pad_id: int,
    progress: Callable[[str], None] = lambda _: None,
) -> FoldResult:
    """Train a fold, or go on where an earlier attempt stopped.

    Args:
        fold: its records.
        model: as it begins.
        settings: how it is trained.
        work: folder for checkpoints; they are the caller's to delete.
        device: where it runs.
        pad_id: token id to fill with.
        progress: called with a line after every epoch.

    Raises:
        EncodeError: the loss or a weight is not a number any more.
        StorageError: a checkpoint cannot be written.
    """
    freeze(model, settings.freeze_layers)
    lora = None if settings.lora is None else add_lora(model, settings.lora, seed=fold.seed)
    model.to(device)
    fsio.make_folder(work)
    last = _last_checkpoint(work)
    earlier = _seconds_of(last)
    watch = _Watch(fold.name, settings, work, earlier, progress)
    trainer = _FoldTrainer(fold, model, settings, work, device, pad_id, watch)
    started = time.perf_counter()
    if last is None or not _has_ended(last, settings):
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
        state = trainer.state
    else:
        state = _state_of(last)
    seconds = earlier + time.perf_counter() - started
    best = int(state.best_global_step or state.global_step) if len(fold.valid) else None
    if best is not None or state is not trainer.state:
        _load_weights(model, work / f"checkpoint-{best or state.global_step}")
    log = [line for entry in state.log_history if (line := _log_line(entry))]
    epoch = next((e["epoch"] for e in log if e["step"] == best and "valid_loss" in e), state.epoch)
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if not all(bool(p.isfinite().all()) for p in model.parameters()):  # the last step's doing
        raise EncodeError(f"{fold.name}: weights are not numbers any more. {_calmer(settings)}")
    if lora is not None:
        merge_lora(model, lora)
    return FoldResult(model.eval(), log, seconds, float(epoch), parameters)


def freeze(model: EncoderWithHead, layers: str | None) -> None:
    """Leave parameters out of the training; see ``freeze_layers`` of :class:`FoldSettings`.

    Raises:
        UsageError: the encoder has fewer layers.
    """
    if layers is None:
        return
    if layers == "all":
        for parameter in model.encoder.parameters():
            parameter.requires_grad_(False)
        return
    depths = parameter_depth(model)
    highest, count = 0 if layers == "embeddings" else int(layers), max(depths.values()) - 1
    if highest > count:
        raise UsageError(f"--freeze-layers {layers}: the encoder has {count} layers.")
    for name, parameter in model.named_parameters():
        if depths[name] <= highest:
            parameter.requires_grad_(False)


def predict_logits(
    model: EncoderWithHead, texts: Sequence[TokenizedText], *, pad_id: int, precision: str = "fp32"
) -> torch.Tensor:
    """What a model says of texts: logits ``(n, outputs)`` float32 on the CPU, in their order.

    Args:
        model: where it is; it is put into evaluation mode.
        texts: the tokenized texts.
        pad_id: token id to fill with.
        precision: to compute in.
    """
    device = next(model.parameters()).device
    model.eval()
    result = torch.zeros(len(texts), model.config.n_outputs)
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    with torch.inference_mode(), torch.autocast(device.type, half, enabled=half is not None):
        for places in batches_by_length([t.n_kept for t in texts], tokens=_PREDICT_TOKENS):
            batch = _padded([texts[i] for i in places], pad_id)
            logits = model(**{name: value.to(device) for name, value in batch.items()}).logits
            result[torch.from_numpy(places)] = logits.float().cpu()
    return result


def batches_by_length(lengths: Sequence[int], *, tokens: int) -> Iterator[Integers]:
    """Places of texts in batches of like length that hold at most ``tokens`` with padding."""
    order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
    start = 0
    while start < len(order):
        count = max(tokens // max(lengths[order[start]], 1), 1)
        yield order[start : start + count]
        start += count


class _Texts(Dataset[dict[str, Any]]):
    """Tokenized texts with labels, as the Trainer takes them."""

    def __init__(self, texts: Sequence[TokenizedText], y: NDArray[Any], places: Integers) -> None:
        self._texts, self._y, self._places = texts, y, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> dict[str, Any]:
        place = int(self._places[number])
        return {"text": self._texts[place], "label": self._y[place]}


class _LikeLengths(Sampler[int]):
    """Order of an epoch in which neighbours are of like length; of seed and epoch alone."""

    def __init__(self, lengths: Integers, batch: int, seed: int) -> None:
        self._lengths, self._batch, self._seed, self._epoch = lengths, batch, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng([self._seed, self._epoch])
        order = random.permutation(len(self._lengths))
        whole, batches = len(order) // self._batch * self._batch, []
        for start in range(0, whole, self._batch * _POOL):
            pool = order[start : min(start + self._batch * _POOL, whole)]
            pool = pool[np.argsort(self._lengths[pool], kind="stable")]
            batches += np.split(pool, len(pool) // self._batch)
        random.shuffle(batches)
        yield from (int(i) for batch in [*batches, order[whole:]] for i in batch)


def _warmup_steps(settings: FoldSettings, steps_per_epoch: int) -> int:
    """As whole steps: older transformers take no part of all steps under this name."""
    if settings.warmup >= 1:
        return int(settings.warmup)
    return math.ceil(settings.warmup * settings.epochs * steps_per_epoch)


class _FoldTrainer(Trainer):  # type: ignore[misc]
    """The Trainer with this module's batches, evaluation and checkpoints."""

    control: Any

    def __init__(
        self, fold: Fold, model: EncoderWithHead, settings: FoldSettings, work: Path,
        device: torch.device, pad_id: int, watch: _Watch,
    ) -> None:  # fmt: skip
        self.fold, self.settings, self._pad_id = fold, settings, pad_id
        y = fold.target.y
        train = _Texts(fold.texts, y, fold.train)
        steps = math.ceil(len(fold.train) / settings.batch_size / settings.accumulate)
        arguments = TrainingArguments(
            output_dir=str(work.resolve()),
            num_train_epochs=settings.epochs,
            per_device_train_batch_size=settings.batch_size,
            gradient_accumulation_steps=settings.accumulate,
            learning_rate=settings.learning_rate,
            warmup_steps=_warmup_steps(settings, steps),
            weight_decay=_WEIGHT_DECAY,
            logging_steps=max(steps // _LOGS_PER_EPOCH, 1),
            logging_nan_inf_filter=False,
            eval_strategy="epoch" if len(fold.valid) else "no",
            save_strategy="epoch",
            metric_for_best_model="loss" if len(fold.valid) else None,
            greater_is_better=False,
            bf16=settings.precision == "bf16",
            fp16=settings.precision == "fp16",
            use_cpu=device.type == "cpu",
            dataloader_pin_memory=device.type == "cuda",
            remove_unused_columns=False,
            disable_tqdm=True,
            report_to="none",
            seed=fold.seed,
            **{
                _CHECKPOINTING: settings.gradient_checkpointing,
                f"{_CHECKPOINTING}_kwargs": {"use_reentrant": False},
            },
        )
        arguments._n_gpu = min(arguments.n_gpu, 1)  # several would each get a part of a batch
        super().__init__(
            model=model,
            args=arguments,
            data_collator=lambda items: _collate(items, pad_id, bool(fold.target.classes)),
            train_dataset=train,
            eval_dataset=_Texts(fold.texts, y, fold.valid) if len(fold.valid) else None,
            optimizers=(_optimizer(model, settings), None),
            callbacks=[watch],
        )
        self.remove_callback(PrinterCallback)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        lengths = np.array([self.fold.texts[i].n_kept for i in self.fold.train], np.int64)
        return _LikeLengths(lengths, self.settings.batch_size, self.fold.seed)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Loss and score on the records that watch, whatever batches they were in."""
        target, valid = self.fold.target, self.fold.valid
        texts = [self.fold.texts[i] for i in valid]
        logits = predict_logits(
            self.model, texts, pad_id=self._pad_id, precision=self.settings.precision
        )
        labels = torch.from_numpy(target.y[valid])
        with torch.inference_mode():
            metrics = {
                "eval_loss": float(self.model.loss(logits, labels)),
                "eval_score": _score(target, valid, self.model.outputs(logits).numpy()),
            }
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self.args.output_dir)
        fsio.remove_file(folder / f"checkpoint-{self.state.global_step}" / _DONE)
        with saving(folder):
            super()._save_checkpoint(model, trial)


class _Watch(TrainerCallback):  # type: ignore[misc]
    """Stops a fold that has gone wrong or grows no better; says which checkpoints count."""

    def __init__(
        self, name: str, settings: FoldSettings, work: Path, earlier: float,
        progress: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._name, self._settings, self._work = name, settings, work
        self._progress, self._earlier, self._started = progress, earlier, time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        for key in ("loss", "eval_loss"):
            if key in (logs or {}) and not math.isfinite(logs[key]):
                raise EncodeError(
                    f"{self._name}: the loss is not a number any more at step {state.global_step}. "
                    f"{_calmer(self._settings)}"
                )

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if _is_stuck(state.log_history, self._settings.patience):
            control.should_training_stop = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % _CHECKPOINT_STEPS == 0 and not float(state.epoch).is_integer():
            control.should_log = control.should_save = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_log = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = self._work / f"checkpoint-{state.global_step}"
        fsio.sync_tree(folder)
        spent = self._earlier + time.perf_counter() - self._started
        content = json.dumps({"seconds": spent}).encode()
        fsio.write_durably(folder / _DONE, content, scratch=folder)
        kept = {folder.name, f"checkpoint-{state.best_global_step}"}
        for other in self._work.glob("checkpoint-*"):
            if other.name not in kept:
                fsio.remove_tree(other)
        if float(state.epoch).is_integer():
            self._tell(state)

    def _tell(self, state: Any) -> None:
        losses: dict[str, float] = {}
        for entry in state.log_history:
            losses |= {key: entry[key] for key in ("loss", "eval_loss", "eval_score")
                       if key in entry}  # fmt: skip
        self._progress(
            f"{self._name}, epoch {round(state.epoch)} of {self._settings.epochs}: "
            f"loss {losses.get('loss', math.nan):.4f}"
            + (f", validation loss {losses['eval_loss']:.4f}, score {losses['eval_score']:.4f}"
               if "eval_loss" in losses else "")
        )  # fmt: skip


def _calmer(settings: FoldSettings) -> str:
    """What to do about numbers that have left all bounds."""
    half = "" if settings.precision == "fp32" else ", or --precision fp32"
    return (
        f"Use a smaller --learning-rate than {settings.learning_rate:g}{half}. Finished folds are "
        "kept for these settings; other ones start over, with --overwrite."
    )


def _is_stuck(history: Sequence[dict[str, Any]], patience: int | None) -> bool:
    """Whether the validation loss has not fallen for so many epochs."""
    losses = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    if patience is None or not losses:  # none: stopped before the first evaluation
        return False
    return len(losses) - 1 - int(np.argmin(losses)) >= patience


def _has_ended(checkpoint: Path, settings: FoldSettings) -> bool:
    """Whether the fold was trained to its end when the checkpoint was written."""
    state = _state_of(checkpoint)
    return state.global_step >= state.max_steps or _is_stuck(state.log_history, settings.patience)


def _state_of(checkpoint: Path) -> Any:
    from transformers import TrainerState

    return TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))


def _last_checkpoint(work: Path) -> Path | None:
    """The newest checkpoint that is whole; others are deleted."""
    whole = []
    for folder in work.glob("checkpoint-*"):
        if (folder / _DONE).is_file():
            whole.append(folder)
        else:
            fsio.remove_tree(folder)
    return max(whole, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)


def _seconds_of(checkpoint: Path | None) -> float:
    if checkpoint is None:
        return 0.0
    return float(json.loads((checkpoint / _DONE).read_text("utf-8"))["seconds"])


def _load_weights(model: EncoderWithHead, checkpoint: Path) -> None:
    from safetensors.torch import load_file

    model.load_state_dict(load_file(str(checkpoint / "model.safetensors")))


@contextmanager
def saving(folder: Path) -> Iterator[None]:
    """Whatever a writer raises where the disk refuses, as a :class:`StorageError`."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        raise StorageError(
            f"cannot write a model below {folder}: {first_line(error)} "
            f"({fsio.free_bytes(folder) / 1e6:,.1f} MB free). Free some space and run the same "
            "command again: finished folds and the checkpoint before are kept."
        ) from error


def _optimizer(model: EncoderWithHead, settings: FoldSettings) -> torch.optim.Optimizer:
    """AdamW; biases and norms do not decay, lower layers learn more slowly if asked."""
    depths = parameter_depth(model) if settings.layer_decay < 1 else {}
    top = max(depths.values(), default=0)
    groups: dict[tuple[int, bool], list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            key = (top - depths.get(name, top), parameter.ndim > 1)
            groups.setdefault(key, []).append(parameter)
    return torch.optim.AdamW(
        [
            {
                "params": parameters,
                "lr": settings.learning_rate * settings.layer_decay**below,
                "weight_decay": _WEIGHT_DECAY if decays else 0.0,
            }
            for (below, decays), parameters in groups.items()
        ],
        fused=True,
    )


def _collate(items: Sequence[dict[str, Any]], pad_id: int, classes: bool) -> dict[str, Any]:
    batch = _padded([item["text"] for item in items], pad_id)
    dtype = torch.int64 if classes else torch.float32
    return batch | {"labels": torch.tensor([item["label"] for item in items], dtype=dtype)}


def _padded(texts: Sequence[TokenizedText], pad_id: int) -> dict[str, torch.Tensor]:
    """Texts as a batch, each padded to the longest of them."""
    shape = (len(texts), max(text.n_kept for text in texts))
    ids = np.full(shape, pad_id, np.int64)
    types, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for i, text in enumerate(texts):
        window = text.windows[0]
        ids[i, : text.n_kept] = window.ids
        types[i, : text.n_kept] = window.type_ids
        mask[i, : text.n_kept] = 1
    arrays = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _score(target: Target, places: Integers, output: Floats) -> float:
    """Macro-F1 of the likeliest class, or R² of a regression."""
    y = target.y[places]
    if not target.classes:
        return regression_scores(y, output, samples=0)["r2"].value
    return classification_scores(y, output, output.argmax(1), samples=0)["macro_f1"].value


def _log_line(entry: dict[str, Any]) -> dict[str, Any] | None:
    names = {"loss": "loss", "learning_rate": "learning_rate", "eval_loss": "valid_loss",
             "eval_score": "valid_score"}  # fmt: skip
    found = {name: entry[key] for key, name in names.items() if key in entry}
    if not found:
        return None
    return {"step": entry["step"], "epoch": round(entry["epoch"], 6), **found}
