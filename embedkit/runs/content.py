"""The content of ``run.json``: one frozen dataclass per kind of run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from embedkit.choices import FEATURES, RUN_LEVELS, STORAGES, TASKS, UNICODE_FORMS
from embedkit.dataset.vector_settings import ModelSettings, VectorOptions, VectorSettings
from embedkit.display import without_nan
from embedkit.errors import DamagedError
from embedkit.runs.metrics import Score
from embedkit.runs.split_files import Split, SplitSettings
from embedkit.runs.training_content import (
    Calibration,
    Checkpoint,
    ModelHistory,
    SeedScores,
    Tokens,
    Truncated,
)

__all__ = [
    "FORMAT_VERSION",
    "KINDS",
    "Agreement",
    "ClassScore",
    "Cost",
    "CurvePoint",
    "DatasetContent",
    "EstimatorChoice",
    "FinetuneRun",
    "Names",
    "PairCounts",
    "PredictionRun",
    "ProbeRun",
    "RecordCounts",
    "ReportedScore",
    "Run",
    "SimilarityRun",
    "SplitContent",
    "TestSetContent",
    "TrainRun",
    "ViewScore",
    "as_json",
]

FORMAT_VERSION = 3

_SIGNIFICANT = 0.05

Choices = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """How the user named the checkpoint and the input files."""

    model: str
    revision: str | None
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetContent:
    """The data that a run was made from.

    Attributes:
        fingerprint: of the dataset; of a corpus that was fine-tuned on, of its bytes and columns.
        source: SHA-256 of the input files.
        path: from the run's folder to the dataset or corpus.
        model: type, depth, width and SHA-256 of the checkpoint's files.
        names: how checkpoint and files were named.
        unicode: normal form of the texts: ``none``, ``nfc`` or ``nfkc``.
        pairs: whether the records are pairs of texts.
        vectors: settings of the vectors; ``None`` where the run reads texts.
        storage: profile that the vectors were stored by, or ``None``.
        reading: how the corpus was read; ``None`` where a dataset says it.
        rejected: number of rejected records of a corpus, by reason.
        marked_words: whether the words of the texts are those that the corpus marks, not those
            between white space.
    """

    fingerprint: str
    source: tuple[str, ...]
    path: str
    model: ModelSettings
    names: Names
    unicode: str
    pairs: bool
    vectors: VectorOptions | None = None
    storage: str | None = None
    reading: dict[str, Any] | None = None
    rejected: dict[str, int] | None = None
    marked_words: bool = False

    CHOICES: ClassVar[Choices] = {"unicode": UNICODE_FORMS, "storage": STORAGES}

    @property
    def vector_settings(self) -> VectorSettings:
        """Everything that shaped a vector, of a run on vectors."""
        if self.vectors is None or self.storage is None:
            raise DamagedError("run.json does not say how its vectors were made. Make it again.")
        return VectorSettings.of(
            self.vectors, model=self.model, unicode=self.unicode, storage=self.storage
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitContent(SplitSettings):
    """A split: its settings, and the hash of the assignment."""

    fingerprint: str

    @classmethod
    def of(cls, split: Split) -> SplitContent:
        """Return the content for a split."""
        return cls(**asdict(split.settings), fingerprint=split.fingerprint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a run cost; ``None`` where it is not known.

    Attributes:
        fit_seconds: seconds to fit all folds.
        predict_seconds: seconds to predict all held-out records.
        seconds: seconds in all, of kinds that fit nothing that is kept.
        peak_memory_bytes: peak memory of the process.
        parameters: number of fitted parameters.
        device: device type.
    """

    fit_seconds: float | None = None
    predict_seconds: float | None = None
    seconds: float | None = None
    peak_memory_bytes: int | None = None
    parameters: int | None = None
    device: str = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCounts:
    """Number of records in folds and in the test set."""

    folds: int
    test: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TestSetContent:
    """A test set that is a file or dataset of its own.

    Attributes:
        source: SHA-256 of its input files.
        rejected: number of records that cannot be predicted.
        seen_texts: how many of its texts occur among the training texts; ``None`` without texts.
    """

    __test__ = False  # no class of tests

    source: tuple[str, ...]
    rejected: int
    seen_texts: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorChoice:
    """Scaling and parameters of one fit.

    Attributes:
        repeat: number of the repeat; ``None`` for the model of all folds.
        fold: number of the fold; ``None`` for the model of all folds.
        scaling: how vectors were scaled: ``common``, ``rows``, ``columns`` or ``none``.
        parameters: of the estimator.
        at_edge: whether tuning chose the first or last value of its grid.
        slope: that the coefficients of a logistic regression were multiplied by.
    """

    repeat: int | None
    fold: int | None
    scaling: str
    parameters: dict[str, Any]
    at_edge: bool
    slope: float = 1.0

    CHOICES: ClassVar[Choices] = {"scaling": ("common", "rows", "columns", "none")}


@dataclass(frozen=True, slots=True)
class ReportedScore(Score):
    """A score with its interval, and that of the majority class (of values: of the mean)."""

    majority: float


@dataclass(frozen=True, slots=True)
class ClassScore:
    """Scores of one class: its label, and the number of records that have it (``support``)."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Score of fits on so many training records.

    Attributes:
        records: mean number of training records over the folds.
        score: on the held-out records.
        low: lower end of the 95 % interval of the score; NaN where it was not computed.
        high: its upper end.
        rise: score of fits on all training records less this one, with its 95 % interval;
            ``None`` where it was not computed.
    """

    records: int
    score: float
    low: float = float("nan")
    high: float = float("nan")
    rise: Score | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewScore:
    """A view under the folds.

    Attributes:
        name: the view.
        score: on held-out records.
        control: mean score on control tasks: random labels, the same for the same text.
        control_sd: standard deviation over the control tasks; NaN of a single one.
        selectivity: score minus control.
        chosen: in how many folds the inner folds chose it.
        codelength: bits that encode the labels by online coding, or ``None``.
        compression: bits of a uniform code for the labels, divided by ``codelength``.
        curve: scores by number of training records; empty if it was not asked for.
        p_best: p of the paired test against the view with the best score, corrected for
            all pairs of views; 1 of that view itself, ``None`` where it was not computed.
    """

    name: str
    score: Score
    control: float
    control_sd: float
    selectivity: float
    chosen: int
    codelength: float | None = None
    compression: float | None = None
    curve: tuple[CurvePoint, ...] = ()
    p_best: float | None = None

    @property
    def is_level(self) -> bool:
        """Whether a test does not tell it apart from the best view."""
        return self.p_best is not None and self.p_best >= _SIGNIFICANT


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCounts:
    """Number of pairs, of rejected records, and of texts that were cut."""

    pairs: int
    rejected: int
    truncated: int


@dataclass(frozen=True, slots=True)
class Agreement:
    """Correlation of a view's cosines with human scores."""

    view: str
    spearman: Score
    pearson: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the content of every run has.

    Attributes:
        kind: a key of :data:`KINDS`.
        format_version: of ``run.json``.
        versions: of the libraries that decide a number.
        command: the command line that made the run, written with it; ``None`` from Python.
        cost: seconds, memory and parameters.
    """

    kind: str
    format_version: int = FORMAT_VERSION
    versions: dict[str, str]
    command: str | None = None
    cost: Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class _FittedRun(Run):
    """What runs have that fit an estimator under a split.

    Attributes:
        estimator: its name; ``finetune`` for a fine-tuned encoder.
        task: ``classification`` or ``regression``.
        settings: the other settings.
        dataset: what it was fitted on.
        split: the folds.
        level: what is labelled: ``sentence`` (records) or ``word``.
    """

    estimator: str
    task: str
    settings: dict[str, Any]
    dataset: DatasetContent
    split: SplitContent
    level: str = "sentence"

    CHOICES: ClassVar[Choices] = {
        "task": TASKS, "features": (*FEATURES, "text"), "level": RUN_LEVELS,
    }  # fmt: skip

    @property
    def rows_text(self) -> str:
        """What is labelled, in the plural."""
        return "words" if self.level == "word" else "records"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRun(_FittedRun):
    """A run with predictions and a model.

    Attributes:
        features: ``vectors``, ``tfidf`` or ``text``.
        views: the views side by side; empty where the run reads texts.
        classes: labels by class number; empty for a regression.
        threshold: probability from which the second of two classes is predicted, or ``None``.
        threshold_metric: metric that it was chosen by; ``None`` if it was given, or there is none.
        records: number of records, or of words, in folds and in the test set.
        test_set: a test set of its own, or ``None``.
        scores: by subset (``cross_validation``, ``test``) and metric.
        per_class: by subset and class; empty for a regression.
    """

    features: str
    views: tuple[str, ...]
    classes: tuple[str, ...]
    threshold: float | None
    records: RecordCounts
    test_set: TestSetContent | None
    scores: dict[str, dict[str, ReportedScore]]
    per_class: dict[str, tuple[ClassScore, ...]] = field(default_factory=dict)
    threshold_metric: str | None = None

    def problem(self) -> str:
        """What cannot be between the fields."""
        of_classes, vectors = self.task == "classification", self.dataset.vectors
        listed = [tuple(one.label for one in rows) for rows in self.per_class.values()]
        models = getattr(self, "models", ("pipeline",))
        limits = [self.threshold, *getattr(self, "thresholds", ())]
        found = {
            "classes": len(set(self.classes)) == len(self.classes) and "" not in self.classes
                       and (len(self.classes) > 1) == of_classes,
            "per_class": all(labels == self.classes for labels in listed),
            "threshold": all(one is None or 0 <= one <= 1 for one in limits),
            "views": bool(self.views) == (self.features == "vectors")
                     and (vectors is None or set(self.views) <= vectors.columns(self.level)),
            "models": bool(models) and all(re.fullmatch(r"[\w-]+", name) for name in models),
            "scores": set(self.scores) | set(self.per_class) <= {"cross_validation", "test"},
        }  # fmt: skip
        wrong = [name for name, holds in found.items() if not holds]
        return f"{wrong[0]} does not agree with the other fields" if wrong else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRun(PredictionRun):
    """A run of ``train``.

    Attributes:
        choices: scaling and parameters by repeat and fold, last those of the model of all folds.
    """

    kind: str = "frozen"
    choices: tuple[EstimatorChoice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneRun(PredictionRun):
    """A run of ``finetune``.

    Attributes:
        head: name of the head.
        precision: numeric format of the forward passes.
        thresholds: of each fold.
        models: folders of the folds' models, inside of ``model/``; seed after seed.
        epochs: epoch that was kept, of each model.
        history: epochs of each model.
        seeds: scores of each seed; empty if there is one.
        calibration: temperature scaling, or ``None``.
        tokens: how the model reads tokens.
        truncated: ledger of texts that were cut.
    """

    kind: str = "finetuned"
    head: str
    precision: str
    thresholds: tuple[float | None, ...]
    models: tuple[str, ...]
    epochs: tuple[float, ...]
    tokens: Tokens
    truncated: Truncated
    history: tuple[ModelHistory, ...] = ()
    seeds: tuple[SeedScores, ...] = ()
    calibration: Calibration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRun(_FittedRun):
    """A run of ``probe``.

    Attributes:
        metric: name of the score.
        majority: score of the majority class, or of the mean.
        views: every view, in stored order.
        nested: score of the view chosen inside the folds.
        random_weights: scores of every view by encoders of the same architecture that were never
            trained, one for each; empty if it was not asked for.
        cka: linear CKA between the views, in their order.
        tfidf: learning curve of the default estimator on TF-IDF of the texts; empty if no curves
            were asked for, or no texts are stored.
    """

    kind: str = "probe"
    metric: str
    majority: float
    views: tuple[ViewScore, ...]
    nested: Score
    random_weights: dict[str, tuple[float, ...]]
    cka: tuple[tuple[float, ...], ...]
    tfidf: tuple[CurvePoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarityRun(Run):
    """Results of ``similarity``.

    Attributes:
        corpus: SHA-256 of the input files.
        model: the checkpoint.
        settings: how the texts were encoded.
        records: number of pairs.
        agreement: correlations of every view; empty without human scores.
    """

    kind: str = "similarity"
    corpus: tuple[str, ...]
    model: Checkpoint
    settings: dict[str, Any]
    records: PairCounts
    agreement: tuple[Agreement, ...]


KINDS: Mapping[str, type[Run]] = {
    "frozen": TrainRun,
    "finetuned": FinetuneRun,
    "probe": ProbeRun,
    "similarity": SimilarityRun,
}
"""The dataclass of every kind of run."""


def as_json(content: Run) -> dict[str, Any]:
    """Return the content as JSON holds it; NaN becomes ``None``."""
    result: dict[str, Any] = without_nan(asdict(content))
    return result
