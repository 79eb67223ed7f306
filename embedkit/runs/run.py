"""Records of ``run.json``: plain dataclasses, read and written by :mod:`embedkit.runs.folder`.

    Run ─┬─ PredictionRun ─┬─ TrainRun       an estimator on vectors, or on TF-IDF
         │                 ├─ FinetuneRun    models of folds, their epochs, what was cut
         │                 └─ ProbeRun       a score for each view and combination of layers
         └─ SimilarityRun                    agreement of cosines with human scores

Types and ranges are those of the fields, which ``msgspec`` checks when a file is read. What fields
say of each other, such as the classes of a regression, is in ``problem()``, which the one reader
of records asks. It is asked before a run is written too: none is published that cannot be read.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import PurePath
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from embedkit.choices import FEATURES, RunLevel, Storage, Task, one_of
from embedkit.corpus.plan import CorpusOptions
from embedkit.dataset.format import Names
from embedkit.dataset.settings import ModelRecord, VectorIdentity, VectorSettings
from embedkit.display import Shown
from embedkit.encoding.windows import TokenizerSettings
from embedkit.errors import DamagedError
from embedkit.geometry import METRICS
from embedkit.records import Count, Seconds
from embedkit.runs.intervals import Score
from embedkit.runs.metrics import LOWER_IS_BETTER, metric_name, metric_text, score_text
from embedkit.runs.split import SplitSettings

if TYPE_CHECKING:  # imported where a table is asked for
    import pandas as pd

FORMAT_VERSION = 1

Cutoff = Annotated[float, Meta(ge=0, le=math.nextafter(1, 2))]
"""A probability; just above 1 where no record is best predicted as the second of two classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetContent:
    """The data that a run was made from."""

    fingerprint: str  # of the dataset; for a corpus, of its bytes and columns
    source: tuple[str, ...]  # SHA-256 of the input files
    names: Names
    pairs: bool
    path: str = ""  # from the run's folder to the dataset or corpus; empty of a DataFrame
    model: ModelRecord | None = None  # None of TF-IDF on a corpus
    vectors: VectorSettings | None = None  # None of a corpus
    storage: Storage | None = None
    reading: dict[str, Any] | None = None  # columns and dialect of the corpus
    rejected: dict[str, int] | None = None  # by reason
    fold_models: bool = False  # the vectors are of the models of a fine-tuned run
    marked_words: bool = False  # words are marked in the corpus, not divided at white space

    @property
    def vector_settings(self) -> VectorIdentity:
        """Settings that shaped the vectors of a run on vectors."""
        if self.vectors is None or self.storage is None or self.model is None:
            raise DamagedError("run.json does not say how its vectors were made. Make it again.")
        return VectorIdentity.of(self.vectors, model=self.model, storage=self.storage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of a run, in seconds of processors, which other programs do not add to; or ``None``."""

    fit_seconds: Seconds | None = None
    predict_seconds: Seconds | None = None
    peak_memory_bytes: Count | None = None
    parameters: Count | None = None  # of one model, where they can be counted
    device: str = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestSetContent:
    """A test set of its own."""

    __test__ = False  # not a class of tests

    source: tuple[str, ...]  # SHA-256 of its files
    rejected: int
    seen_texts: int  # texts that are also training texts


def seen_text(seen: int, count: int) -> str:
    """Return how many of the texts of a test set are also training texts, in words."""
    return f"{seen:,} of the {count:,} test texts are also training texts"


@dataclass(frozen=True, slots=True)
class Choice:
    """Parameters of one fit; the model of all folds has no fold."""

    parameters: dict[str, Any] = field(default_factory=dict)
    slope: float = 1.0  # factor of the coefficients of a logistic regression
    score: float = float("nan")  # inner score, higher is better; NaN without tuning
    fold: int | None = None


@dataclass(frozen=True, slots=True)
class ReportedScore(Score):
    """A score with its interval, and the score of the majority class (regression: the mean).

    ``p`` is of the paired test of both, the one of ``compare``: an interval that leaves out the
    majority's score is no test, since that score depends on the same records. ``None`` where one of
    them is undefined.
    """

    majority: float
    p: float | None = None

    @property
    def differs(self) -> bool:
        """True if the score is proven to be another one than the majority's."""
        return self.p is not None and self.p < 0.05


@dataclass(frozen=True, slots=True)
class ClassScore:
    """Scores of one class."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int  # number of records with the label


@dataclass(frozen=True, slots=True)
class ViewScore:
    """A view in a probe, or a combination of layers."""

    name: str
    score: Score  # on held-out records
    control: float  # on the control task: random labels, the same for the same text
    selectivity: float  # score minus control
    chosen: int  # number of folds whose inner folds put it first of its kind
    curve: tuple[tuple[int, Score], ...] = ()  # by mean number of training records
    weights: tuple[float, ...] = ()  # of a mixture: mean fractions of its layers, ascending


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Run(Shown):
    """The content of ``run.json``, of any kind of run."""

    kind: str  # a key of KINDS
    format_version: int = FORMAT_VERSION
    versions: dict[str, str]  # of libraries that decide a number
    command: str | None = None  # command line that made the run
    cost: Cost

    def to_frame(self) -> pd.DataFrame:
        """Return the rows of :meth:`as_rows` as a pandas table."""
        import pandas as pd

        return pd.DataFrame(self.as_rows())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PredictionRun(Run):
    """A run that fits an estimator to labels in the folds of a split, with its predictions."""

    estimator: str
    task: Task
    settings: dict[str, Any]
    dataset: DatasetContent
    split: SplitSettings
    level: RunLevel = "sentence"
    features: Annotated[str, one_of((*FEATURES, "text"))]
    views: tuple[str, ...]  # side by side; empty if the run reads texts
    columns: tuple[str, ...] = ()  # of the user's own numbers, behind the views
    label: str | None = None  # the column that the labels of records are from, if it has a name
    classes: tuple[str, ...]  # by class number; empty for a regression
    threshold: Cutoff | None = None  # probability from which the second of two classes is predicted
    records: dict[str, int]  # in "folds" and in the "test" set
    test_set: TestSetContent | None = None
    scores: dict[str, dict[str, ReportedScore]]  # by subset (cross_validation, test) and metric
    per_class: dict[str, tuple[ClassScore, ...]] = field(default_factory=dict)  # by subset
    threshold_metric: str | None = None  # that the threshold was chosen by
    prior: tuple[float, ...] = ()  # of a single fold: frequencies of classes, or mean, in training

    @property
    def noun(self) -> str:
        """The labelled units in words: ``record`` or ``word``."""
        return "word" if self.level == "word" else "record"

    @property
    def separator(self) -> str:
        """What stands between the classes of a set; empty without sets."""
        value = self.settings.get("label_separator", "")
        return value if isinstance(value, str) else ""  # any JSON may stand there

    def problem(self) -> str:
        """Name a field that contradicts others, as after an edit by hand; empty if all agree."""
        wrong = (name for name, agrees in self._agreements().items() if not agrees)
        return next((f"{name} contradicts other fields" for name in wrong), "")

    def _agreements(self) -> dict[str, bool]:
        """Whether fields agree that each look right; their types and ranges are checked before."""
        classes, vectors, views = self.classes, self.dataset.vectors, set(self.views)
        return {
            "classes": len(set(classes)) == len(classes)
            and "" not in classes
            and (len(classes) > 1) == (self.task != "regression"),
            "per_class": all(
                tuple(score.label for score in scores) == classes
                for scores in self.per_class.values()
            ),
            "views": bool(views) == (self.features == "vectors")
            and (vectors is None or views <= vectors.columns_of(f"{self.level}s").keys()),
            "scores": {*self.scores, *self.per_class} <= {"cross_validation", "test"}
            and all(self.scores.values()),
            "records": self.records.keys() == {"folds", "test"},
            "dataset": _can_be_read(self.dataset.reading or {}),
            "label_separator": self.task != "multilabel" or bool(self.separator),
            "model": self.features == "tfidf" or self.dataset.model is not None,
            "command": _can_be_typed(self.command or ""),
            "prior": len(self.prior) == (max(len(classes), 1) if self.split.folds == 1 else 0),
        }

    def __repr__(self) -> str:
        if not self.scores:
            return f"{self.kind} run"
        subset = "test" if "test" in self.scores else "cross_validation"
        scores = self.scores[subset]
        # a file has them in the order of their names
        name = next((n for n in ("accuracy", "micro_f1", "r2") if n in scores), next(iter(scores)))
        score = scores[name]
        return f"{self.kind} run: {metric_name(name)} {score_text(score, name)}"

    def as_rows(self) -> list[dict[str, Any]]:
        """The scores as rows of a table; of a probe those of its views."""
        return [
            {"metric": name, "on": subset.replace("_", " ")}
            | {"score": score_text(score, name, unit=True)}
            | {"majority": metric_text(score.majority, name, unit=True)}
            for subset, scores in self.scores.items()
            for name, score in scores.items()
        ]


def _can_be_read(reading: Mapping[str, Any]) -> bool:
    # what a further corpus is read with: options by their names, whose values are checked there
    dialect = reading.get("dialect", {})
    names = {option.name for option in fields(CorpusOptions)}
    return isinstance(dialect, dict) and dialect.keys() <= names


def _can_be_typed(command: str) -> bool:
    try:
        shlex.split(command)
    except ValueError:  # an open quote
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainRun(PredictionRun):
    """A run of ``train``; the last choice is the model of all folds."""

    kind: str = "frozen"
    choices: tuple[Choice, ...]


UNTRAINED = "not trained to its end"

# a loss that falls by less than this share in its last epoch counts as settled
_STILL = 0.01
_REPLACED = {"--model", "--split", "--folds", "--out", "--epochs"}
"""Options that going on with a training gives anew or does without."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FinetuneRun(PredictionRun):
    """A run of ``finetune``."""

    kind: str = "finetuned"
    head: str
    precision: str
    thresholds: tuple[Cutoff | None, ...]  # of each model: that of its fold
    models: tuple[str, ...]  # folders in model/
    epochs: tuple[float, ...]  # kept epoch of each model
    tokens: TokenizerSettings
    pad_id: int  # fills a batch
    type_vocab: int  # segments of a sequence
    truncated: dict[str, int]  # ``records`` and ``tokens`` that were cut, ``…_all``: of how many
    history: dict[str, tuple[dict[str, float], ...]] = field(default_factory=dict)
    """By model and epoch: means over its training steps, and validation scores (macro-F1, R²)."""
    seed_scores: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """By metric: scores on held-out records of the models of each seed alone, if several."""

    def _agreements(self) -> dict[str, bool]:
        # models are joined to the path of the run: "../" must not lead out of it
        plain = all(re.fullmatch(r"[\w-]+", name) for name in self.models)
        # not by super(), which classes with slots do not have before Python 3.14
        return PredictionRun._agreements(self) | {
            "models": bool(self.models) and plain,
            "truncated": {*self.truncated} == {"records", "records_all", "tokens", "tokens_all"},
            "settings": type(seeds := self.settings.get("seeds")) is int and seeds > 0,
        }

    def seeds_text(self, metric: str) -> str:
        """Return how far the seeds are apart, such as ``3 seeds alone: 70.1 to 72.4``.

        It is empty where there is one seed, or no such metric.
        """
        if not (scores := self.seed_scores.get(metric)):
            return ""
        low, high, deviation = (
            metric_text(value, metric) for value in (min(scores), max(scores), stdev(scores))
        )
        name = metric_name(metric)
        return f"{len(scores)} seeds alone: {name} {low} to {high}, deviation {deviation}"

    @property
    def improving(self) -> int:
        """Number of models whose validation loss still fell in their last epoch.

        It fell to a new low by more than a hundredth; of a single epoch nothing is known, and it
        counts. The learning rate decays to 0, so that the loss of a model that needs no more
        training hardly changes at the end.
        """
        losses = [
            [e["valid_loss"] for e in log if "valid_loss" in e] for log in self.history.values()
        ]
        return sum(
            len(loss) == 1 or loss[-1] < (1 - _STILL) * min(loss[:-1]) for loss in losses if loss
        )

    @property
    def is_trained(self) -> bool:
        """False if most models were still improving at the end of their training."""
        return self.improving <= len(self.models) / 2

    def going_on(self, folder: str, corpus: str, out: str) -> str:
        """Return the command that goes on with the training of a folder; empty if unknown."""
        # both --name=value and --name value are left out
        words, kept = shlex.split(self.command or ""), list[str]()
        while words:
            word = words.pop(0)
            if (name := word.partition("=")[0]) not in _REPLACED:
                # neither an option nor its value, and named as the corpus is: the folder that it
                # was typed in is not known
                alone = not word.startswith("-") and kept and not kept[-1].startswith("-")
                is_corpus = alone and corpus and PurePath(word).name == PurePath(corpus).name
                kept.append(corpus if is_corpus else word)
            elif name == word:
                words = words[1:]
        # a run that Python made has no command
        if kept[1:2] != ["finetune"]:
            return ""
        # the same split, without which models would be tested on records that they were trained on
        new = {"--model": folder, "--split": f"{folder}/split.parquet", "--out": out}
        return shlex.join([*kept, *(word for pair in new.items() for word in pair)])


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProbeRun(PredictionRun):
    """A run of ``probe``; its predictions and scores are of what is chosen inside each fold.

    That is a stored view, a sum or mixture of layers, or views side by side (``mean_3 + mean_5``).
    """

    kind: str = "probe"
    metric: str
    view_scores: tuple[ViewScore, ...]
    random_weights: dict[str, tuple[float, ...]]  # by view: scores of encoders without training
    combinations: tuple[ViewScore, ...] = ()  # sums of neighbouring layers, mixtures
    choices: tuple[str, ...]  # of every fold
    over_last: Score | None = None  # the nested score less that of the last layer, chosen likewise
    geometry: dict[str, dict[str, float]] = field(default_factory=dict)
    """By view: its numbers without labels, which :mod:`embedkit.geometry` defines."""

    def as_rows(self) -> list[dict[str, Any]]:
        """The scores of the views as rows of a table."""
        metric, rows = self.metric, []
        for view in (*self.view_scores, *self.combinations):
            row = {"view": view.name, metric: score_text(view.score, metric, unit=True)}
            row["control"] = metric_text(view.control, metric)
            row["selectivity"] = metric_text(view.selectivity, metric)
            row["chosen"] = str(view.chosen)
            if self.random_weights:
                values = self.random_weights.get(view.name, ())  # none of a pooler
                summary = (fmean(values), stdev(values)) if values else (None,)
                row["never trained"] = " ±".join(metric_text(value, metric) for value in summary)
            rows.append(row)
        return rows

    def to_frame(self) -> pd.DataFrame:
        """Return views and combinations as a pandas table of numbers.

        Its columns are ``value``, ``low`` and ``high`` of the score, ``control``, ``selectivity``,
        ``chosen`` (folds that put it first of the single views, or of the combinations), and the
        numbers without labels.
        """
        import pandas as pd

        rows = [
            {"view": view.name, **asdict(view.score)}
            | {"control": view.control, "selectivity": view.selectivity, "chosen": view.chosen}
            | self.geometry.get(view.name, {})
            for view in (*self.view_scores, *self.combinations)
        ]
        return pd.DataFrame(rows).set_index("view")

    def _agreements(self) -> dict[str, bool]:
        agrees = {"metric": self.metric in self.scores.get("cross_validation", {})}
        return PredictionRun._agreements(self) | agrees | {"view_scores": bool(self.view_scores)}

    @property
    def geometry_columns(self) -> dict[str, dict[str, float]]:
        """The numbers without labels by head of a column and view; those that a view has."""
        # in the order of the views: a file sorts 10 before 2
        views = [view.name for view in self.view_scores if view.name in self.geometry]
        columns = {
            head: {view: self.geometry[view][name] for view in views if name in self.geometry[view]}
            for name, head in METRICS.items()
        }
        return {head: column for head, column in columns.items() if column}

    def geometry_rows(self) -> list[dict[str, str]]:
        """The numbers of views without labels as rows of a table."""
        columns = self.geometry_columns.items()
        return [
            {"view": view} | {head: metric_text(cells.get(view), "rmse") for head, cells in columns}
            for view in dict.fromkeys(view for _, cells in columns for view in cells)
        ]

    @property
    def nested(self) -> ReportedScore:
        """Score of the view that inner folds choose, in the metric of the probe."""
        return self.scores["cross_validation"][self.metric]

    @property
    def chosen(self) -> ViewScore:
        """The single view that most folds put first."""
        return max(self.view_scores, key=lambda view: view.chosen)

    @property
    def choice(self) -> str:
        """What most folds chose of views and combinations."""
        return max(self.choices, key=self.choices.count)

    @property
    def is_better(self) -> bool:
        """True if the choice is proven better than the last layer."""
        gain, lower = self.over_last, self.metric in LOWER_IS_BETTER
        return gain is not None and (gain.high < 0 if lower else gain.low > 0)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SimilarityRun(Run):
    """Results of ``similarity``; ``records`` counts ``pairs``, ``rejected`` and ``truncated``."""

    kind: str = "similarity"
    corpus: tuple[str, ...]
    model: str
    model_sha256: dict[str, str]
    settings: dict[str, Any]
    records: dict[str, int]
    agreement: dict[str, dict[str, Score]]  # by view: spearman and pearson
    as_high: tuple[str, ...] = ()  # views whose Spearman is not proven lower than the highest


KINDS: Mapping[str, type[Run]] = {
    "frozen": TrainRun,
    "finetuned": FinetuneRun,
    "probe": ProbeRun,
    "similarity": SimilarityRun,
}
