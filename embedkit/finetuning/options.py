"""Options of fine-tuning.

What is left open is decided by the data and the checkpoint as an expert would: as many epochs as
make enough steps, since it is too few of them that make fine-tuning of few texts fail and seem
unstable (Mosbach et al. 2021, arXiv:2006.04884; Zhang et al. 2021, arXiv:2006.05987), a head on the
vector that the checkpoint was trained to give, and a higher learning rate for the weights that are
new than for those that are trained already.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from typing import Any

from embedkit.arguments import check_fields
from embedkit.choices import (
    HEADS,
    ClassWeight,
    Objective,
    OnLong,
    Precision,
    RunLevel,
    Task,
    check_choice,
)
from embedkit.errors import Option, UsageError, first_line
from embedkit.records import Count, Positive, Seed
from embedkit.runs.metrics import Threshold, check_metric, named_metric
from embedkit.units.target import SEPARATOR, Target

WORDS = "words"
"""Head of taggers: a linear layer on the first token of each word."""
CONTRASTIVE = "contrastive"
"""Objective, and the head that goes with it: a linear layer on the mean of length 1."""

_STEPS = 200  # that fine-tuning of few texts needs
_STEPS_OF_CLASS = 15  # for each class, since a step of 16 texts shows a class of 77 once in five
_EPOCHS = 3, 20  # at least, at most
_PATIENCE = 5  # epochs, where their number is left open
_PAIRED = 8  # texts of the smallest batch that has pairs of both kinds, as many of each
_FEW = 320  # texts, up to which pairs are learnt from; docs/finetuning.md has what was measured
_VALIDATION = 0.1  # of the training records
_WIDTHS = 2, 3, 4  # of convolutions
_NEW_RATE = 1e-3  # of weights that were drawn at random
_OF_LABELS = (
    *("task", "level", "head", "head_learning_rate", "one_logit", "label_smoothing"),
    *("dropout", "lora", "patience", "select_by"),
)
"""Options that mean nothing where pairs are trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Settings of training: keywords of ``finetune``.

    Attributes:
        task: ``classification``, ``regression``, or ``multilabel``: a record has any number of
            classes, each with a logit of its own.
        objective: {OBJECTIVES}.
            By default the latter up to 320 training texts in batches of 8 or more, where ``epochs``
            and the options that mean nothing with pairs are left open too.
        label_separator: between the classes of a record, for ``multilabel``.
        level: ``sentence``: texts are labelled, or ``word``: their words, by a linear layer on the
            first token of each, as in ``AutoModelForTokenClassification``.
        head: one of :data:`~embedkit.choices.HEADS`, or a class of ``torch.nn.Module`` (its name as
            ``module:Class``) that is made as ``Class(width, outputs)`` and turns hidden states
            ``(texts, tokens, width)`` and their mask ``(texts, tokens)`` into logits. By default
            ``mean`` for a sentence encoder whose vector is the mean and for a decoder, else
            ``cls``: the pooling that the checkpoint was trained with. ``pooler`` is the head that
            transformers reads for BERT; ``cnn`` and ``lstm`` read all tokens, for texts in which a
            phrase decides; ``cnn`` takes no longer than ``mean``.
        cnn_widths: number of tokens that the convolutions span.
        one_logit: of two classes, one logit instead of two.
        dropout: before the last layer of the head; by default that of the checkpoint.
        max_length: tokens per sequence; by default what the checkpoint states.
        on_long: {ON_LONG} for texts with more, as in ``extract``.
        stride: tokens that neighbouring windows have in common; by default a quarter of
            ``max_length``.
        prefix: put before every text; by default that of the checkpoint.
        epochs: maximum number of passes over the training records; by default as many as make 200
            steps, and fifteen for each class, at least 3 and at most 20.
        learning_rate: peak learning rate; it decays linearly to 0.
        head_learning_rate: peak learning rate of the head, whose weights are new; by default
            ``learning_rate``, at least 1e-3.
        batch_size: texts per forward pass.
        accumulate: batches per step of the optimizer.
        class_weight: ``balanced`` gives every class the same weight in the loss.
        label_smoothing: fraction of the target that is spread over all classes.
        freeze_layers: ``embeddings``, ``all``, or the number of lowest layers that are not trained
            (with the embeddings). Frozen layers have no dropout, and are computed once. It is for
            little time and few texts: on 300 requests of 12 classes, five epochs, four of the six
            layers of MiniLM frozen take 9 s of a core in place of 29 (52.7 % right in place of
            57.0), all of them 1 s (44.0).
        lora: rank of small matrices that are trained instead of the encoder's own weights, with a
            higher ``learning_rate``: rank 8 with 1e-3. Of 22.6 million parameters 0.3 million are
            trained, in 23 s of the same (56.3 % right): it saves memory of the optimizer, less
            time.
        warmup: steps, or below 1 the fraction of all steps, in which the learning rate rises.
        precision: {PRECISIONS}, of which
            ``int8`` cannot train; ``auto`` is bf16 or fp16 on CUDA, fp32 on the CPU.
        gradient_checkpointing: compute activations twice instead of keeping them.
        patience: epochs without a better validation loss or metric before a fold stops; by default
            5 where ``epochs`` is left open too.
        validation: fraction of the training records to use for validation; by default a tenth, and
            none where they would choose nothing: of pairs the last epoch is kept.
        select_by: criterion for the best epoch and for ``patience``: the validation ``loss``, or a
            metric of the validation records such as ``macro_f1``.
        threshold: probability from which the second of two classes is predicted, or the metric to
            choose it by on validation records (``macro_f1``, ``f1``, ``f2``).
        seed: of folds, head, order, dropout and intervals, and of the corpus sample.
        seeds: models of each fold, each with its own head, order and dropout; the mean of their
            probabilities is the prediction. Their scores one by one are the spread of training,
            which no interval covers: take 3 where a difference of two runs is to be believed.

    >>> TrainingOptions(head="cnn", patience=2).head_rate
    0.001
    """

    task: Task = "classification"
    objective: Objective | None = None
    label_separator: str = SEPARATOR
    level: RunLevel = "sentence"
    head: str | Callable[[int, int], Any] | None = None
    cnn_widths: tuple[int, ...] = _WIDTHS
    one_logit: bool = False
    dropout: float | None = None
    max_length: Positive | None = None
    on_long: OnLong = "truncate"
    stride: Count | None = None
    prefix: str | None = None
    epochs: Positive | None = None
    learning_rate: float = 5e-5
    head_learning_rate: float | None = None
    batch_size: Positive = 16
    accumulate: Positive = 1
    class_weight: ClassWeight | None = None
    label_smoothing: float = 0.0
    freeze_layers: str | int | None = None
    lora: Positive | None = None
    warmup: float = 0.1
    precision: Precision = "auto"
    gradient_checkpointing: bool = False
    patience: Positive | None = None
    validation: float | None = None
    select_by: str = "loss"
    threshold: str | float | None = None
    seed: Seed = 0
    seeds: Positive = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if self.head is not None:
            # a frozen dataclass can set its own fields in this way alone; run.json has names, not
            # classes
            object.__setattr__(self, "head", name_of_head(self.head))
        if ":" in str(self.head):
            # imported now: a name that does not exist is refused before a corpus is read
            own_head(str(self.head))
        elif self.head is not None:
            check_choice(HEADS, head=self.head)
        object.__setattr__(self, "select_by", named_metric(self.select_by))
        # as the command line gives a number, so that an unfinished run is the same job
        threshold = None if self.threshold is None else str(self.threshold)
        object.__setattr__(self, "threshold", threshold)
        for names, fits, problem in self._rules():
            if not fits:
                values = {name: getattr(self, name) for name in names.split()}
                if "cnn_widths" in values:
                    values["cnn_widths"] = ",".join(map(str, self.cnn_widths))
                raise UsageError(problem, **values)

    def _rules(self) -> Iterator[tuple[str, bool, str]]:
        """Yield options, whether they fit each other, and what is wrong where they do not."""
        rate, fraction = "expected a number above 0, such as 5e-5.", "expected 0 or more, below 1."
        yield "learning_rate", 0 < self.learning_rate < math.inf, rate
        yield "head_learning_rate", 0 < self.head_rate < math.inf, rate
        yield "label_smoothing", 0 <= self.label_smoothing < 1, fraction
        yield "dropout", self.dropout is None or 0 <= self.dropout < 1, fraction
        warmup = "expected steps, or a fraction of them such as 0.1."
        yield "warmup", 0 <= self.warmup < math.inf, warmup
        validation = "expected a fraction from 0 to 0.5, such as 0.1."
        yield "validation", 0 <= self.held_back <= 0.5, validation
        widths = self.cnn_widths
        yield "cnn_widths", min(widths, default=0) > 0, "expected numbers of tokens such as 2,3,4."
        of_cnn = widths == _WIDTHS or self.head == "cnn"
        yield "cnn_widths", of_cnn, f"expected {Option('head', 'cnn')} too."
        # a number may come as text from the command line
        layers = "all" if self.freeze_layers is None else str(self.freeze_layers)
        fits = layers in ("embeddings", "all") or layers.isdecimal()
        yield "freeze_layers", fits, "expected a number, embeddings or all."
        of_classes = self.task == "classification"
        fits = self.level != "word" or (self.head is None and of_classes)
        yield "level head task", fits, "words have a head and a task of their own; leave these out."
        for name in ("class_weight", "label_smoothing", "one_logit", "threshold"):
            yield f"{name} task", of_classes or not getattr(self, name), "it is for classes."
        if self.objective == CONTRASTIVE:
            for name in self._of_labels:
                yield f"{name} objective", False, "it is for labels, not for pairs."
            few = "pairs are those of a batch; pass 3 or more."
            yield "batch_size objective", self.batch_size >= 3, few
            frozen = "pairs train the encoder, of which nothing is left."
            yield "freeze_layers objective", self.freeze_layers != "all", frozen
        # what is chosen on validation records cannot be chosen without any
        problem = f"it needs validation records; pass {Option('validation', 0.1)}."
        yield "patience", self.patience is None or self.held_back > 0, problem
        yield "select_by", self.select_by == "loss" or self.held_back > 0, problem
        yield "threshold", not self.chooses_threshold or self.held_back > 0, problem
        in_windows = self.stride is None or self.on_long == "window"
        yield "stride", in_windows, f"it is for {Option('on_long', 'window')}."
        both = "LoRA trains no weight of the encoder itself; take one of both."
        yield "lora freeze_layers", self.lora is None or self.freeze_layers is None, both
        # found, not imported: peft takes seconds, and only training needs it
        is_there = self.lora is None or find_spec("peft") is not None
        yield "lora", is_there, "it needs the package peft: pip install peft."

    @property
    def _of_labels(self) -> list[str]:
        """Options that were given, and mean nothing where pairs are trained on."""
        defaults = {field.name: field.default for field in fields(self)}
        return [name for name in _OF_LABELS if getattr(self, name) != defaults[name]]

    @property
    def head_name(self) -> str:
        """Name of the head, of words :data:`WORDS`; empty if the checkpoint chooses it."""
        if self.objective == CONTRASTIVE:
            return CONTRASTIVE
        return (str(self.head or "")) if self.level == "sentence" else WORDS

    @property
    def held_back(self) -> float:
        """Fraction of the training records for validation; while it is open, a tenth."""
        return _VALIDATION if self.validation is None else self.validation

    @property
    def head_rate(self) -> float:
        """Peak learning rate of the head."""
        if self.head_learning_rate is not None:
            return self.head_learning_rate
        # not below that of the encoder, if this one was set higher
        return max(self.learning_rate, _NEW_RATE)

    def epochs_of(self, texts: int, classes: int) -> int:
        """Return the maximum number of epochs for a number of training texts and of classes.

        >>> [TrainingOptions().epochs_of(texts, classes=6) for texts in (96, 400, 10_000)]
        [20, 8, 3]
        >>> TrainingOptions().epochs_of(1_000, classes=77)
        19
        """
        # of one epoch
        steps = math.ceil(texts / self.batch_size / self.accumulate)
        least, most = _EPOCHS
        enough = max(_STEPS, _STEPS_OF_CLASS * classes)
        return self.epochs or min(max(math.ceil(enough / steps), least), most)

    def decided(self, *, texts: int, classes: int, head: str) -> TrainingOptions:
        """Return the options with what was left open, for what there is to learn.

        >>> decided = TrainingOptions().decided(texts=96, classes=6, head="mean")
        >>> decided.objective, decided.validation
        ('contrastive', 0.0)
        """
        objective = self.objective or "labels"
        is_open = self.objective is None and self.epochs is None and self.freeze_layers != "all"
        # a small batch has pairs of few kinds
        is_open = is_open and self.batch_size >= _PAIRED
        if is_open and not self._of_labels and texts <= _FEW:
            objective = CONTRASTIVE
        epochs = self.epochs_of(texts, classes)
        decided = replace(self, objective=objective, epochs=epochs, validation=self.held_back)
        if objective == CONTRASTIVE:
            # it has a head of its own, and every epoch is trained: a few labels more are worth
            # more than records that choose nothing
            if self.validation is None and not self.chooses_threshold:
                decided = replace(decided, validation=0.0)
            return decided
        if self.level == "sentence" and self.head is None:
            decided = replace(decided, head=head)
        # whoever says how many epochs there are wants all of them
        if self.epochs is None and self.patience is None and self.held_back:
            decided = replace(decided, patience=_PATIENCE)
        return decided

    def check(self, target: Target) -> None:
        """Raise a :class:`UsageError` for options that do not fit what is to be learnt."""
        count = len(target.classes)
        if self.one_logit and count != 2:
            raise UsageError(f"it needs two classes; there are {count}.", one_logit=True)
        if self.decision is not None:
            self.decision.check(target)
        if self.select_by != "loss":
            check_metric(self.select_by, target, name="select_by")

    @property
    def decision(self) -> Threshold | None:
        """The threshold, if there is one."""
        return None if self.threshold is None else Threshold.parse(self.threshold)

    @property
    def chooses_threshold(self) -> bool:
        """True if the threshold is chosen by a metric."""
        return self.decision is not None and self.decision.value is None


def name_of_head(head: str | Callable[[int, int], Any]) -> str:
    """Return a head as :data:`~embedkit.choices.HEADS` name it, a class as ``module:Class``."""
    if isinstance(head, str):
        return head
    return f"{head.__module__}:{getattr(head, '__qualname__', '')}"


def source_of(head: str) -> str | None:
    """SHA-256 of the module of a class of the user's own; ``None`` of other heads, or without one.

    A run that was interrupted may not go on with a head that has changed.
    """
    if ":" not in head:
        return None
    with suppress(OSError, TypeError):  # in a compiled module, or typed into a notebook
        source = inspect.getsource(import_module(head.partition(":")[0]))
        return hashlib.sha256(source.encode()).hexdigest()
    return None


def own_head(name: str) -> Callable[[int, int], Any]:
    """Return the class that ``module:Class`` names."""
    module, _, path = name.partition(":")
    try:
        head: Callable[[int, int], Any] = attrgetter(path)(import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        advice = "Define the class at the top of a module that can be imported"
        raise UsageError(f"{first_line(error)}. {advice}.", head=name) from error
    return head
