"""What ``run.json`` says of checkpoints and of their training."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Calibration",
    "Checkpoint",
    "EpochScores",
    "ModelHistory",
    "SeedScores",
    "Tokens",
    "Truncated",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """How a fine-tuned model reads texts.

    Attributes:
        max_length: tokens per sequence.
        pad_id: token id that fills a batch.
        type_vocab: number of segments of the model.
        prefix: put before every text.
        on_long: ``truncate``, ``window`` or ``error`` for texts with more tokens.
        stride: tokens that neighbouring windows have in common.
    """

    max_length: int
    pad_id: int
    type_vocab: int
    prefix: str = ""
    on_long: str = "truncate"
    stride: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedScores:
    """Scores of one of several seeds by itself, by subset and metric."""

    seed: int
    scores: dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Temperature scaling.

    Attributes:
        temperatures: of every model.
        before: calibration error, log-loss and Brier score without it, by subset.
        after: the same with it, as in the predictions of the run.
    """

    temperatures: tuple[float, ...]
    before: dict[str, dict[str, float]]
    after: dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochScores:
    """One epoch of training; ``None`` without validation records, and accuracies of a regression.

    Attributes:
        epoch: its number, from 1.
        train_loss: mean loss of the training records while the epoch was trained.
        train_accuracy: fraction of them predicted rightly meanwhile.
        valid_loss: loss of the validation records after it.
        valid_accuracy: their accuracy.
        valid_score: their macro-F1, or R² of a regression.
    """

    epoch: float
    train_loss: float
    train_accuracy: float | None = None
    valid_loss: float | None = None
    valid_accuracy: float | None = None
    valid_score: float | None = None


@dataclass(frozen=True, slots=True)
class ModelHistory:
    """The training of one model: its name, and its epochs."""

    model: str
    epochs: tuple[EpochScores, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated:
    """How many records were cut at ``limit`` tokens, and how many of all tokens that cost."""

    records: int
    tokens: int
    tokens_all: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint by name and the SHA-256 of its files."""

    name: str
    sha256: dict[str, str]
