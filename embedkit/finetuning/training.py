"""Training of one fold by the Trainer of transformers.

This module adds batches of texts of similar length, durable checkpoints, an error where the loss is
not a number, and the choice of the epoch. Of a large vocabulary only what the texts contain is
trained (:class:`~embedkit.finetuning.model.OccurringRows`).

An epoch of few texts takes a second, and a checkpoint as long: one is written after an epoch, or
1,000 steps, if a minute has passed since the last one. The weights of the best epoch so far are
kept in memory, and go into a checkpoint beside those of its own step.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.utils.data import Sampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from embedkit import storage
from embedkit.encoding.model import PRECISIONS, whole_fp32
from embedkit.encoding.windows import TokenizedTexts, ranges
from embedkit.errors import OVERWRITE, EncodeError, Option, UsageError
from embedkit.finetuning.heads import EncoderWithHead, embedding_layer
from embedkit.finetuning.model import (
    WEIGHTS,
    OccurringRows,
    add_lora,
    freeze,
    merge_lora,
    n_seen,
    padded,
    parameter_groups,
    predict_logits,
    recompute_activations,
    save_weights,
)
from embedkit.finetuning.options import TrainingOptions
from embedkit.finetuning.states import FrozenStates, frozen_states
from embedkit.machine import release_memory
from embedkit.runs.metrics import LOWER_IS_BETTER, beta_of, metrics_for
from embedkit.types import Bool, Int64, Progress, ProgressCallback, no_progress
from embedkit.units.target import Target

logger = logging.getLogger(__name__)

# texts of so many batches are sorted by length: padding nearly vanishes, and the order stays random
_BATCHES_SORTED = 50
_LOGS_PER_EPOCH = 10
# a checkpoint costs about a second, and a minute of work is what a kill may cost
_CHECKPOINT_STEPS = 1_000
_CHECKPOINT_SECONDS = 60.0
# the file that is written last into a checkpoint, and the weights of the best epoch
_COMPLETE = "complete"
_BEST = "best.safetensors"
# names of the Trainer, and those in training.jsonl
_LOGGED = {
    "loss": "loss",
    "learning_rate": "learning_rate",
    "epoch_loss": "train_loss",
    "epoch_accuracy": "train_accuracy",
    "eval_loss": "valid_loss",
    "eval_accuracy": "valid_accuracy",
    "eval_score": "valid_score",
}
_CHOSEN_BY = "eval_chosen_by"
_UNLABELLED = -100  # what torch leaves out of a loss


def model_name(fold: int, member: int = 0) -> str:
    """Return the folder of a model, by the number of its fold and of its seed.

    >>> model_name(2), model_name(2, 1)
    ('fold-2', 'fold-2-1')
    """
    return f"fold-{fold}" + (f"-{member}" if member else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Records and options of one fold; its subsets are indices of units.

    No unit is in two of ``train``, ``valid``, ``held_out``, nor in ``train`` and ``choosing``.
    """

    name: str  # for messages, such as "fold 2 of 5"
    model: str  # folder of the model, such as "fold-1"
    texts: TokenizedTexts  # of all records
    record: Int64  # position of the record of each unit: itself, or that of a word
    target: Target  # of the units
    train: Int64
    valid: Int64  # validation records that choose the epoch; may be empty
    choosing: Int64  # validation records that choose thresholds, the same in all folds
    held_out: Int64
    options: TrainingOptions  # all decided; precision is not "auto"
    seed: int  # of head, order and dropout
    device: torch.device
    work: Path  # folder for checkpoints, which the caller deletes
    vocabulary: IO[bytes]  # file of all rows of the embeddings, see OccurringRows

    @property
    def epochs(self) -> int:
        """Maximum number of epochs."""
        assert self.options.epochs is not None
        return self.options.epochs

    @property
    def seen(self) -> Int64:
        """Units of which a model in training sees the texts."""
        return np.concatenate([self.train, self.valid])

    def texts_of(self, units: Int64) -> TokenizedTexts:
        """Return the texts of units, each once."""
        return self.texts[np.unique(self.record[units])]

    def among(self, units: Int64) -> Bool:
        """Return which units of their texts, in order, these are: words without a label are not."""
        return np.isin(np.flatnonzero(np.isin(self.record, self.record[units])), units)


@dataclass(slots=True, kw_only=True)
class FoldResult:
    """Log, cost and predictions of a trained model; predictions are nested lists, for JSON.

    Probabilities are ``(m, classes)``, values of a regression ``(m,)``.
    """

    log: list[dict[str, Any]]  # lines of training.jsonl
    epoch: float  # that was kept
    fit_seconds: float
    parameters: int
    predict_seconds: float = 0.0
    proba: dict[str, list[Any]] = field(default_factory=dict)
    """By the name of the subset in :class:`Fold`, and those of the test set as ``test``."""


def train_fold(
    fold: Fold,
    model: EncoderWithHead,
    *,
    trainer: type[FoldTrainer] | None = None,
    progress: ProgressCallback = no_progress,
) -> tuple[EncoderWithHead, FoldResult]:
    """Train a fold, or resume where an earlier attempt stopped; the initial model is changed.

    Args:
        fold: records and options.
        model: an encoder with a head, which is changed.
        trainer: by default :class:`FoldTrainer`, whose items are labelled texts.
        progress: called with the steps.

    Returns:
        The model of the best epoch, and the log and cost of its training.
    """
    options = fold.options
    if options.gradient_checkpointing:
        recompute_activations(model.encoder)
    # the order matters: what is frozen decides whether the vocabulary is trained, and the optimizer
    # takes the parameters that are there at the end, on the device
    parts = freeze(model, options.freeze_layers)
    lora = None if options.lora is None else add_lora(model, options.lora, seed=fold.seed)
    # texts that training meets: held-out records have other tokens, and are predicted when the
    # whole matrix is back
    occurring, layer = None, embedding_layer(model.encoder)
    seen = fold.texts_of(fold.seen)
    storage.make_folder(fold.work)
    if layer is not None and layer.weight.requires_grad:
        # batches are padded with the tokenizer's id, which need not be the layer's padding
        ids = np.append(seen.ids, seen.pad_id)
        with saving(fold.work):
            occurring = OccurringRows(layer, ids, fold.device, fold.vocabulary)
    model.to(fold.device)
    # after the move to the device, where they are computed
    states = frozen_states(model, parts, seen, precision=options.precision)
    last, state, best = _last_checkpoint(fold.work), None, None
    done: dict[str, Any] = {"seconds": 0.0, "totals": {}}
    if last is not None:
        # by the process that was killed
        done = json.loads((last / _COMPLETE).read_text("utf-8"))
        state = TrainerState.load_from_json(str(last / "trainer_state.json"))
        model.load_state_dict(load_file(str(last / WEIGHTS)), strict=False)  # frozen ones stay
        # without a file of its own the best epoch is that of the checkpoint
        best = load_file(str(last / (_BEST if (last / _BEST).is_file() else WEIGHTS)))
    started = time.process_time()
    # an attempt that was killed after its last step has nothing left to train
    if state is None or (state.global_step < state.max_steps and not _is_stuck(state, options)):
        running = (trainer or FoldTrainer)(fold, model, states, done, progress)
        running.best = best
        dtype = PRECISIONS[options.precision]
        with whole_fp32(fold.device, dtype):
            running.train(resume_from_checkpoint=None if last is None else str(last))
        state, best = running.state, running.best
        # moments and gradients, three times the weights: what follows needs memory of its own
        running.optimizer.state.clear()
        model.zero_grad()
        release_memory()
    seconds = done["seconds"] + time.process_time() - started
    # without validation records the last step is kept
    kept = _best_epoch(state, options)[0] or state.global_step
    if best is not None and kept != state.global_step:
        model.load_state_dict(best, strict=False)
    log = [
        {"step": entry["step"], "epoch": round(entry["epoch"], 6), **values}
        for entry in state.log_history
        if (values := {name: entry[key] for key, name in _LOGGED.items() if key in entry})
    ]
    # the Trainer's state counts epochs on, so that the epoch that was kept is read from the log
    scored = [line["epoch"] for line in log if line["step"] == kept and "valid_loss" in line]
    # a last step may spoil the weights after the last loss was looked at. Of the vocabulary the
    # rows that occur and the factor of the others tell: to look at all would take its memory twice
    if not all(bool(p.isfinite().all()) for p in model.parameters() if p.requires_grad):
        raise _diverged(fold, "weights are not numbers any more")
    # before the parameters are counted: it is the whole matrix that was trained
    if occurring is not None:
        occurring.restore()
    if states is not None:
        states.close()
    trained = FoldResult(
        log=log,
        epoch=float([*scored, state.epoch][0]),
        fit_seconds=seconds,
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
    )
    # last: until here the names of the weights were those of the checkpoints
    if lora is not None:
        merge_lora(model, lora)
    return model.eval(), trained


class FoldTrainer(Trainer, TrainerCallback):  # type: ignore[misc]
    """The Trainer with this module's batches, evaluation and checkpoints.

    It is its own callback: it ends a fold that diverges, saves from time to time, and reports.
    """

    control: Any

    def __init__(
        self,
        fold: Fold,
        model: EncoderWithHead,
        states: FrozenStates | None,
        done: Mapping[str, Any],
        progress: ProgressCallback,
    ) -> None:
        self.fold, self._states, self._progress = fold, states, progress
        self._saved, self._started = time.perf_counter(), time.process_time() - done["seconds"]
        # over the texts of the epoch so far: numbers, or tensors on the device; what a loss counts
        self._totals: defaultdict[str, Any] = defaultdict(float, done["totals"])
        # the texts that training sees, among which states are numbered
        self._seen = np.unique(fold.record[fold.seen])
        self.best: dict[str, torch.Tensor] | None = None  # of the best epoch so far, on the CPU
        validates = len(fold.valid) > 0
        super().__init__(
            model=model,
            args=_arguments(fold, validates),
            data_collator=self._collate,
            # records by position; the collator makes batches of them, since texts stay in one table
            train_dataset=np.unique(fold.record[fold.train]).tolist(),
            # only so that the Trainer evaluates: evaluate below reads none of it
            eval_dataset=list(fold.valid) if validates else None,
            optimizers=(torch.optim.AdamW(parameter_groups(model, fold.options), fused=True), None),
            callbacks=[self],
        )
        # it prints every log to standard output, where commands write their results
        self.remove_callback(PrinterCallback)

    def _collate(self, items: Sequence[int]) -> dict[str, Any]:
        fold, texts = self.fold, np.array(items)
        # the words of a record stand together: from its first to behind its last; a text is its own
        # unit
        starts, stops = (np.searchsorted(fold.record, texts, side) for side in ("left", "right"))
        y = fold.target.y[ranges(starts, stops - starts)]
        labels = torch.tensor(y, dtype=torch.int64 if fold.target.classes else torch.float32)
        if fold.target.classes:  # a word may have none; a text without one is in no fold
            labels = labels.masked_fill(labels < 0, _UNLABELLED)
        batch: dict[str, Any] = {**padded(fold.texts[texts]), "labels": labels}
        return batch | {"states": self._states_of(texts, batch["attention_mask"])}

    def _states_of(self, texts: Int64, mask: torch.Tensor) -> torch.Tensor | None:
        if self._states is None:
            return None
        return self._states.of_batch(np.searchsorted(self._seen, texts), mask)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        lengths = n_seen(self.fold.texts_of(self.fold.train))
        return LengthSampler(lengths, self.fold.options.batch_size, self.fold.seed)

    def compute_loss(self, model: Any, inputs: Any, **more: Any) -> Any:
        """Compute the loss of a batch as the Trainer does, and count it."""
        labels, totals = inputs["labels"], self._totals
        count: Any = len(labels)
        # the outputs are needed for the accuracy; the Trainer takes the loss alone
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **more)
        if self.fold.target.classes:
            proba = self.model.outputs(outputs.logits.detach())
            right = proba.argmax(1) == labels if labels.ndim == 1 else (proba >= 0.5) == labels
            # a set of classes is right if all of it is
            totals["right"] += right.reshape(len(labels), -1).all(1).sum(dtype=torch.float64)
            if labels.ndim == 1:
                count = (labels != _UNLABELLED).sum(dtype=torch.float64)
        # tensors on the device: as numbers they would make each step wait for it
        totals["texts"] += count
        totals["loss"] += loss.detach().double() * count
        return loss

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Compute loss and score on the validation records, independent of batches.

        Report them, and stop a fold that does not improve.
        """
        fold, target = self.fold, self.fold.target
        index, precision = np.unique(fold.record[fold.valid]), fold.options.precision
        # as predictions are made later; the Trainer's own loop would average the losses of batches
        logits = predict_logits(
            self.model,
            fold.texts[index],
            precision=precision,
            states=lambda batch, mask: self._states_of(index[batch], mask),
        )[fold.among(fold.valid)]
        y = target.y[fold.valid]
        with torch.inference_mode():
            loss = float(self.model.loss(logits, torch.from_numpy(y)))
            proba = self.model.outputs(logits).numpy()
        # before the metrics, which probabilities that are not numbers do not have
        _check_loss(loss, fold, self.state)
        by = fold.options.select_by
        scores = metrics_for(y, proba, beta=beta_of(by))

        def score(metric: str) -> float:
            return scores[metric].value(len(y))

        metrics = {"eval_loss": loss}
        if not math.isnan(shown := score("macro_f1" if target.classes else "r2")):
            metrics["eval_score"] = shown
        if target.classes:
            metrics["eval_accuracy"] = score("accuracy" if y.ndim == 1 else "subset_accuracy")
        metrics[_CHOSEN_BY] = loss if by == "loss" else score(by)
        if math.isnan(metrics[_CHOSEN_BY]) and by != "loss":
            raise undefined(by, len(y), fold.name)
        # first: _best_epoch reads what was logged
        self.log(metrics)
        if _best_epoch(self.state, fold.options)[0] == self.state.global_step:
            # on the CPU, since training goes on in the same tensors, and in memory, since a file a
            # second would take as long as the epochs of few texts
            self.best = {name: value.cpu().clone() for name, value in self._trained().items()}
        self._report(self.state)
        if _is_stuck(self.state, fold.options):
            self.control.should_training_stop = True
        return metrics

    def floating_point_ops(self, *_: Any) -> int:
        """Return 0: an estimate goes through all parameters in every step."""
        return 0

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save a checkpoint, mark it as complete, and delete older ones."""
        with saving(self.fold.work):
            super()._save_checkpoint(model, trial)
        folder = self.fold.work / f"checkpoint-{self.state.global_step}"
        # first all files, then the mark that they are complete, and then the older checkpoints may
        # go
        storage.sync_tree(folder)
        totals = {name: float(value) for name, value in self._totals.items()}
        content = {"seconds": time.process_time() - self._started, "totals": totals}
        storage.write_durably(folder / _COMPLETE, json.dumps(content).encode())
        for other in self.fold.work.glob("checkpoint-*"):
            if other.name != folder.name:
                storage.remove(other)
        self._saved = time.perf_counter()

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save what training changes, and the best of it so far unless that is the same."""
        folder = Path(str(output_dir))
        storage.make_folder(folder)
        save_weights(self._trained(), folder)
        best_step, _ = _best_epoch(self.state, self.fold.options)
        if self.best is not None and best_step != self.state.global_step:
            save_weights(self.best, folder, name=_BEST)

    def _trained(self) -> dict[str, torch.Tensor]:
        """What training changes: frozen parameters stay as in the initial model."""
        frozen = {name for name, p in self.model.named_parameters() if not p.requires_grad}
        state = self.model.state_dict()
        return {name: value for name, value in state.items() if name not in frozen}

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load nothing: :func:`train_fold` has loaded the weights."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Raise an error where the loss is not a number."""
        # an exception: by control a callback ends training as if it were done
        _check_loss((logs or {}).get("loss", 0.0), self.fold, state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Show progress, and save within a long epoch."""
        # the end of an epoch has its own turn, in on_epoch_end
        if state.global_step % _CHECKPOINT_STEPS == 0 and not float(state.epoch).is_integer():
            # always logged, so that the log does not depend on the time
            control.should_log, control.should_save = True, self._is_time_to_save
        epochs = self.fold.epochs
        steps = state.max_steps // epochs
        epoch, done = divmod(state.global_step - 1, steps)
        stage = f"{self.fold.name}, epoch {epoch + 1} of {epochs}"
        self._progress(Progress(stage, done + 1, steps, "steps"))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Log the means over the texts of the epoch, and save."""
        totals, means = self._totals, {"epoch_loss": "loss", "epoch_accuracy": "right"}
        texts = max(totals["texts"], 1)
        self.log({n: float(totals[key] / texts) for n, key in means.items() if key in totals})
        totals.update(dict.fromkeys(totals, 0.0))
        control.should_log, control.should_save = True, self._is_time_to_save
        # with validation records evaluate reports, when their scores are there
        if not len(self.fold.valid):
            self._report(state)

    @property
    def _is_time_to_save(self) -> bool:
        return time.perf_counter() - self._saved >= _CHECKPOINT_SECONDS

    def _report(self, state: Any) -> None:
        """Log the results of an epoch."""
        # of each name the latest value
        values = {key: value for entry in state.log_history for key, value in entry.items()}
        names = [key for key in _LOGGED if key in values and key.startswith(("ep", "ev"))]
        text = ", ".join(f"{_LOGGED[key].replace('_', ' ')} {values[key]:.4f}" for key in names)
        epochs = self.fold.epochs
        logger.info("%s, epoch %d of %d: %s", self.fold.name, state.epoch, epochs, text)


class LengthSampler(Sampler[int]):
    """Order of an epoch, by seed and epoch alone; neighbours have similar lengths."""

    def __init__(self, values: Int64, batch: int, seed: int) -> None:
        self._values, self._batch, self._seed, self._epoch = values, batch, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order follows."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng([self._seed, self._epoch])
        # a generator of its own: the same order after an interruption, whatever else has drawn
        # numbers
        order = random.permutation(len(self._values))
        # whole batches; the rest, which is shorter, stays at the end, where the Trainer cuts its
        # last batch
        whole, batches = len(order) // self._batch * self._batch, []
        step = self._batch * _BATCHES_SORTED
        for start in range(0, whole, step):
            stretch = order[start : min(start + step, whole)]
            stretch = stretch[np.argsort(self._values[stretch], kind="stable")]
            batches += np.split(stretch, len(stretch) // self._batch)
        # else each stretch of an epoch would go from short texts to long ones
        random.shuffle(batches)
        yield from (int(i) for batch in [*batches, order[whole:]] for i in batch)


def _arguments(fold: Fold, validates: bool) -> TrainingArguments:
    options = fold.options
    texts = len(np.unique(fold.record[fold.train]))
    steps = math.ceil(texts / options.batch_size / options.accumulate)
    warmup = int(options.warmup)
    if options.warmup < 1:  # older transformers take no fraction under this name
        warmup = math.ceil(options.warmup * fold.epochs * steps)
    arguments = TrainingArguments(
        output_dir=str(fold.work.resolve()),
        num_train_epochs=fold.epochs,
        per_device_train_batch_size=options.batch_size,
        gradient_accumulation_steps=options.accumulate,
        learning_rate=options.learning_rate,
        warmup_steps=warmup,
        logging_steps=max(steps // _LOGS_PER_EPOCH, 1),
        # else the Trainer shows the last good loss instead of NaN, and training would go on
        logging_nan_inf_filter=False,
        eval_strategy="epoch" if validates else "no",
        save_strategy="no",  # the callback decides
        bf16=options.precision == "bf16",
        fp16=options.precision == "fp16",
        use_cpu=fold.device.type == "cpu",
        dataloader_pin_memory=fold.device.type == "cuda",
        # the dataset is a list of numbers
        remove_unused_columns=False,
        disable_tqdm=True,
        # else it sends logs to services that happen to be installed
        report_to="none",
        seed=fold.seed,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several would each get some of a batch
    return arguments


def undefined(metric: str, count: int, fold: str) -> UsageError:
    """The error of a metric without a value, as an area where all records are of one class."""
    problem = f"it is not defined on the {count} validation records of {fold}"
    return UsageError(f"{problem}. Pass a larger {Option('validation')}.", select_by=metric)


def _check_loss(loss: float, fold: Fold, state: TrainerState) -> None:
    if not math.isfinite(loss):
        raise _diverged(fold, f"the loss is not a number any more at step {state.global_step}")


def _diverged(fold: Fold, problem: str) -> EncodeError:
    # half precision may be what has overflowed
    half = "" if fold.options.precision == "fp32" else f" or {Option('precision', 'fp32')}"
    return EncodeError(
        f"{fold.name}: {problem}. Pass {OVERWRITE} with a smaller {Option('learning_rate')} than "
        f"{fold.options.learning_rate:g}{half}."
    )


def _best_epoch(state: TrainerState, options: TrainingOptions) -> tuple[int | None, int]:
    """The step of the best epoch so far, the first of equals, and the number of epochs since.

    The step is ``None`` before an evaluation.
    """
    sign = 1 if options.select_by in ("loss", *LOWER_IS_BETTER) else -1
    entries = [entry for entry in state.log_history if _CHOSEN_BY in entry]
    # lower is better; of equal values the lower step is the lesser pair
    epochs = [(sign * entry[_CHOSEN_BY], entry["step"]) for entry in entries]
    best = min(epochs, default=None)
    return (None, 0) if best is None else (best[1], len(epochs) - 1 - epochs.index(best))


def _is_stuck(state: TrainerState, options: TrainingOptions) -> bool:
    """Return whether validation did not improve for ``patience`` epochs."""
    return options.patience is not None and _best_epoch(state, options)[1] >= options.patience


def _last_checkpoint(work: Path) -> Path | None:
    """The newest complete checkpoint; incomplete ones are deleted."""
    for folder in work.glob("checkpoint-*"):
        if not (folder / _COMPLETE).is_file():
            storage.remove(folder)
    last = get_last_checkpoint(str(work))
    return None if last is None else Path(last)


def saving(folder: Path) -> AbstractContextManager[None]:
    """Raise what a writer raises on a full disk as a :class:`StorageError`."""
    return storage.storage_errors(folder, RuntimeError, SafetensorError)
