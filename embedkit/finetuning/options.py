"""How a model is fine-tuned: one frozen object."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec

from embedkit.choices import CLASS_WEIGHTS, HEADS, ON_LONG, PRECISIONS, TASKS, check_choice
from embedkit.errors import UsageError, check_counts, check_seed
from embedkit.runs.metrics import Threshold

__all__ = ["TrainingOptions"]

_NEW_LAYERS_RATE = {"cnn": 1e-3, "lstm": 1e-3}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """How an encoder with a head is trained.

    Attributes:
        task: ``classification`` or ``regression``.
        head: one of :data:`~embedkit.choices.HEADS`.
        mix_layers: number of last layers whose trained mix the head sees.
        cnn_widths: number of tokens that the convolutions span.
        one_logit: of two classes, one logit instead of two.
        dropout: before the last layer of the head; by default that of the checkpoint.
        max_length: tokens per sequence; by default what the checkpoint states.
        on_long: ``truncate``, ``window`` or ``error`` for texts with more, as in ``extract``.
        stride: tokens that neighbouring windows have in common; by default a quarter of
            ``max_length``.
        prefix: put before every text; by default that of the checkpoint.
        epochs: largest number of passes over the training records.
        learning_rate: peak learning rate; it falls linearly to 0.
        head_learning_rate: peak learning rate of the head; by default at least 1e-3 for ``cnn`` and
            ``lstm``, whose many weights are new, and ``learning_rate`` for the others.
        batch_size: texts per forward pass.
        accumulate: batches per step of the optimizer.
        class_weight: ``balanced`` gives every class the same weight in the loss.
        label_smoothing: fraction of the target that is spread over all classes.
        freeze_layers: ``embeddings``, ``all``, or the number of lowest layers that are not trained
            (with the embeddings); ``None`` for none. Frozen layers have no dropout, and run once
            per text where their output fits into 1 GiB.
        lora: rank of small matrices that are trained instead of the encoder's own weights.
        layer_decay: factor of the learning rate from each layer to the one below.
        warmup: steps, or below 1 the fraction of all steps, in which the learning rate rises.
        precision: ``auto`` (bf16 or fp16 on CUDA, fp32 on the CPU), ``fp32``, ``bf16`` or ``fp16``.
        gradient_checkpointing: compute activations twice instead of keeping them.
        patience: epochs without a better validation loss or metric before a fold stops; ``None``
            for never.
        validation: fraction of the training records to use for validation.
        select_by: what chooses the epoch that is kept, and ends a fold that does not improve: the
            validation ``loss``, or a metric of the validation records such as ``macro_f1``.
        calibrate: divide the logits by a temperature that is fitted on the validation records.
        threshold: of two classes, the probability from which the second is predicted, or the metric
            to choose it by on validation records (``macro_f1``, ``f1``, ``f2``).
        seed: of folds, head, order, dropout and intervals, and of the corpus sample.
        seeds: number of trainings of every fold, with the seeds ``seed``, ``seed + 1`` …, which
            change head, order and dropout; the run predicts by the mean of their probabilities.

    Raises:
        UsageError: a value cannot be used.

    >>> TrainingOptions(head="cnn", patience=2).head_rate
    0.001
    """

    task: str = "classification"
    head: str = "cls"
    mix_layers: int = 1
    cnn_widths: tuple[int, ...] = (2, 3, 4)
    one_logit: bool = False
    dropout: float | None = None
    max_length: int | None = None
    on_long: str = "truncate"
    stride: int | None = None
    prefix: str | None = None
    epochs: int = 3
    learning_rate: float = 5e-5
    head_learning_rate: float | None = None
    batch_size: int = 16
    accumulate: int = 1
    class_weight: str | None = None
    label_smoothing: float = 0.0
    freeze_layers: str | None = None
    lora: int | None = None
    layer_decay: float = 1.0
    warmup: float = 0.1
    precision: str = "auto"
    gradient_checkpointing: bool = False
    patience: int | None = None
    validation: float = 0.1
    select_by: str = "loss"
    calibrate: bool = False
    threshold: str | None = None
    seed: int = 0
    seeds: int = 1

    def __post_init__(self) -> None:
        check_choice(TASKS, task=self.task)
        check_choice(HEADS, head=self.head)
        check_choice(PRECISIONS, precision=self.precision)
        check_choice(ON_LONG, on_long=self.on_long)
        if self.class_weight is not None:
            check_choice(CLASS_WEIGHTS, class_weight=self.class_weight)
        check_counts(
            mix_layers=self.mix_layers, max_length=self.max_length, epochs=self.epochs,
            batch_size=self.batch_size, accumulate=self.accumulate, lora=self.lora,
            patience=self.patience, seeds=self.seeds,
        )  # fmt: skip
        check_seed(self.seed)
        self._check_ranges()
        self._check_together()

    def _check_ranges(self) -> None:
        widths, rate = self.cnn_widths, "a number above 0, such as 5e-5"
        layers = "all" if self.freeze_layers is None else self.freeze_layers
        checks = (
            ("learning_rate", 0 < self.learning_rate < math.inf, rate),
            ("head_learning_rate", 0 < self.head_rate < math.inf, rate),
            ("label_smoothing", 0 <= self.label_smoothing < 1, "0 or more, below 1"),
            ("dropout", self.dropout is None or 0 <= self.dropout < 1, "0 or more, below 1"),
            ("stride", (self.stride or 0) >= 0, "a number of tokens"),
            ("layer_decay", 0 < self.layer_decay <= 1, "above 0, at most 1"),
            ("warmup", 0 <= self.warmup < math.inf, "steps, or a fraction of them such as 0.1"),
            ("validation", 0 <= self.validation <= 0.5, "a fraction from 0 to 0.5, such as 0.1"),
            ("cnn_widths", bool(widths) and min(widths) > 0, "numbers of tokens such as 2,3,4"),
            ("freeze_layers", layers in ("embeddings", "all") or layers.isdigit(),
             "a number, embeddings or all"),
        )  # fmt: skip
        for name, fits, expected in checks:
            if not fits:
                value = getattr(self, name)
                shown = repr(",".join(map(str, value)) if isinstance(value, tuple) else value)
                raise UsageError(f"{name}={shown}: expected {expected}.")

    def _check_together(self) -> None:
        if self.task == "regression":
            for name in (
                "class_weight", "label_smoothing", "one_logit", "threshold", "calibrate"
            ):  # fmt: skip
                if getattr(self, name):
                    raise UsageError(f"{name}= is for classes, not for task='regression'.")
        needs = {"patience": self.patience is not None, "calibrate": self.calibrate,
                 "select_by": self.select_by != "loss"}  # fmt: skip
        for name in (name for name, given in needs.items() if given and not self.validation):
            raise UsageError(f"{name}= needs validation records; pass validation=0.1.")
        if self.stride is not None and self.on_long != "window":
            raise UsageError(f"stride={self.stride} is for on_long='window'.")
        if self.chooses_threshold and not self.validation:
            raise UsageError(
                f"threshold={self.threshold!r} is chosen on validation records; pass validation=0.2"
                "."
            )
        if self.lora is not None and self.freeze_layers is not None:
            raise UsageError("lora= trains no weight of the encoder; leave out freeze_layers=.")
        if self.lora is not None and find_spec("peft") is None:
            raise UsageError("lora= needs the package peft: pip install -e '.[lora]'.")

    def check_layers(self, n_layers: int) -> None:
        """Raise a :class:`UsageError` if an encoder has fewer layers than are frozen or mixed."""
        frozen = self.freeze_layers
        for name, count in (("freeze_layers", frozen), ("mix_layers", self.mix_layers)):
            if str(count).isdigit() and int(str(count)) > n_layers:
                raise UsageError(f"{name}={count}: the encoder has {n_layers} layers.")

    @property
    def head_rate(self) -> float:
        """Peak learning rate of the head."""
        if self.head_learning_rate is not None:
            return self.head_learning_rate
        return max(self.learning_rate, _NEW_LAYERS_RATE.get(self.head, 0.0))

    @property
    def chooses_threshold(self) -> bool:
        """Whether the threshold is chosen by a metric instead of being given."""
        return self.threshold is not None and Threshold.parse(self.threshold).value is None
