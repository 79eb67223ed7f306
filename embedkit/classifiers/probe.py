"""Scores of every stored view on the same folds, beside controls.

The best score of many views is too high by chance. The nested score is not: for each fold the view
is chosen in inner folds of the training records and then scored on the held-out ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from embedkit.arguments import accepts
from embedkit.choices import RunLevel, Task, check_choice
from embedkit.classifiers.estimators import EstimatorSettings
from embedkit.classifiers.train import side_by_side
from embedkit.classifiers.tuning import fit, predict_proba
from embedkit.corpus.memory import CorpusLike
from embedkit.dataset.format import EXTRACTION
from embedkit.dataset.read import VectorData, load
from embedkit.dataset.settings import DatasetEncoder
from embedkit.errors import UsageError
from embedkit.runs.cross_validation import Fits, FoldFit, cross_validate
from embedkit.runs.figures import draw_probe
from embedkit.runs.folder import RunResult, dataset_content, free_out, new_run, versions, write_run
from embedkit.runs.intervals import Metric, Score, scored
from embedkit.runs.metrics import beta_of, check_metric, metrics_for
from embedkit.runs.predictions import Predictions, TestSet, decide, write_predictions
from embedkit.runs.run import ProbeRun, ReportedScore, ViewScore
from embedkit.runs.split import Split, split_for, write_split
from embedkit.storage import Positive, Seed
from embedkit.types import Float32, Float64, Int64, Progress, ProgressCallback, no_progress, steps
from embedkit.units.target import SEPARATOR, Target, class_prior, growing_order
from embedkit.units.units import Labels, Units, load_or_extract

_CURVE = (0.1, 0.2, 0.4, 0.7, 1.0)
_UNTRAINED = 3


@accepts(*EXTRACTION)
def probe(
    dataset: CorpusLike,
    *,
    out: str | Path | None = None,
    view: str | Sequence[str] | None = None,
    level: RunLevel = "sentence",
    label: Labels = None,
    estimator: str | None = None,
    task: Task = "classification",
    label_separator: str = SEPARATOR,
    split: str | Path | Split | None = None,
    folds: Positive = 5,
    metric: str | None = None,
    control: str | None = None,
    learning_curve: bool = False,
    seed: Seed = 0,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
    **extraction: Any,
) -> RunResult[ProbeRun]:
    """Score every stored view on the same folds.

    Regularisation is chosen for every view in inner folds of the training records.

    Args:
        dataset: folder that ``extract`` wrote, with a label column, or a corpus, as in
            :func:`~embedkit.classifiers.train.train`.
        out: new folder for the table and the figures; by default ``runs/<dataset>-probe``.
        view: name of a stored view, or several in a list; by default all. Of words layers.
        level: ``sentence``: records are labelled, or ``word``: the words of records.
        label: column of the labels, if it is not that of the dataset; or the labels themselves, as
            in :func:`~embedkit.classifiers.train.train`.
        estimator: fitted on each view, as in :func:`~embedkit.classifiers.train.train`.
        task: {TASKS}.
        label_separator: between the classes of a record of several.
        split: result or file of ``embedkit split``.
        folds: number of folds where no split is given.
        metric: score that is shown, tuned for and chosen by: ``accuracy``, ``macro_f1``,
            ``log_loss``, ``brier``, ``roc_auc``, ``average_precision``, ``f2`` …, ``rmse``,
            ``r2``, ``spearman``. By default accuracy or R² is shown, while tuning goes by log-loss
            or the squared error.
        control: ``random-weights`` also encodes the texts by three encoders of the same
            architecture, never trained.
        learning_curve: also score fits on 10 to 100 % of the training records.
        seed: of folds, control tasks and estimators.
        overwrite: replace an earlier probe.
        progress: receives the number of fits that are done.
        extraction: options of ``extract`` for a corpus.

    Raises:
        UsageError: a view, label, setting or split cannot be used.

    Example:
        >>> result = embedkit.probe("vectors", view=["mean_0", "mean_6"], folds=2, out="runs/probe")
        >>> [view.name for view in result.content.view_scores]
        ['mean_0', 'mean_6']
    """
    started = time.perf_counter()
    settings = EstimatorSettings.of(estimator, task=task, seed=seed, metric=metric)
    if control is not None:
        check_choice(("random-weights",), control=control)
    out = free_out(out, dataset, "probe", overwrite=overwrite)
    data = load_or_extract(dataset, extraction, label=label, level=level, progress=progress)
    names, units = _names(data, view), Units.of_dataset(data, label=label)
    target = units.target(task, label_separator)
    if metric is not None:
        check_metric(metric, classes=len(target.classes), sets=target.of_sets)
    shown = metric or {"regression": "r2", "multilabel": "micro_f1"}.get(task, "accuracy")
    chosen = split_for(units, split, folds=folds, seed=seed, sets=target.of_sets)
    chosen = chosen.labelled(target)
    chosen.check(target)
    words = data.text if level == "word" else None
    random_labels = control_task(target, chosen, seed, words=words)
    curve = _CURVE if learning_curve else ()
    method = _Views(names, _reader(data), settings, random_labels, curve)
    with new_run(out, overwrite=overwrite) as folder:
        predictions, fits = cross_validate(method, units, target, chosen, progress=progress)
        scorer = _Scorer(predictions, chosen, shown, seed)
        untrained = {}
        if control:
            untrained = _untrained(data, method, units, target, scorer, progress)
        content = ProbeRun(
            estimator=settings.estimator,
            task=task,
            settings={"class_weight": settings.class_weight, "seed": seed}
            | ({"label_separator": label_separator} if target.of_sets else {}),
            level=level,
            dataset=dataset_content(data, folder),
            split=chosen.record,
            features="vectors",
            views=tuple(names),
            classes=target.classes,
            records={"folds": len(predictions.row), "test": 0},
            scores={"cross_validation": {shown: scorer.nested(fits, target)}},
            metric=shown,
            view_scores=tuple(scorer.of_view(name, method, fits) for name in names),
            random_weights=untrained,
            cost=fits.cost(seconds=time.perf_counter() - started),
            versions=versions(),
        )
        write_predictions(folder, replace(predictions, views=scorer.decided(fits)))
        _write(folder, chosen, content)
    return RunResult(out, content)


def _write(folder: Path, split: Split, content: ProbeRun) -> None:
    write_split(split, folder / "split.parquet")
    draw_probe(folder, content)
    write_run(folder, content)


def _reader(data: VectorData) -> Callable[[str], Float32]:
    """Reads views by name; fits of a view follow each other, so that few are in memory."""
    return lru_cache(maxsize=2)(lambda name: load(data.path, name, level=data.level).X)


def _names(data: VectorData, view: str | Sequence[str] | None) -> list[str]:
    """Names of the stored views to score, by default all."""
    if view is None:
        return list(data.manifest.columns_of("sentences" if data.level == "sentence" else "words"))
    views = [view] if isinstance(view, str) else view
    return [load(data.path, name, level=data.level).views[0] for name in views]


class _Probed(NamedTuple):
    """A view in a fold."""

    view: str
    score: float  # of inner folds
    control: Float64  # predictions of the control task
    curve: tuple[Float64, ...]  # predictions by number of training records


@dataclass(frozen=True, slots=True)
class _Views:
    """A method that fits every view, and keeps in each fold the one with the best inner score."""

    names: Sequence[str]
    vectors: Callable[[str], Float32]
    settings: EstimatorSettings
    control: Target
    curve: tuple[float, ...]  # fractions of the training records

    def fit(
        self,
        units: Units,
        target: Target,
        split: Split,
        *,
        test: TestSet | None = None,
        progress: ProgressCallback = no_progress,
    ) -> Fits:
        """Fit every view in every fold; all fits by view are ``final``."""
        fits = [
            partial(self._fold, units, target, split, name, *subset)
            for name in self.names
            for subset in split.subsets()
        ]
        done, part = side_by_side(fits, progress=progress)
        count = split.n_folds
        by_view = {name: done[i * count : (i + 1) * count] for i, name in enumerate(self.names)}
        folds = [
            max(fits, key=lambda fit: fit.model.score)
            for fits in zip(*by_view.values(), strict=True)
        ]
        return Fits(
            folds=folds,
            final=by_view,
            fit_seconds=part * sum(fold.fit_seconds for fold in done),
            predict_seconds=part * sum(fold.predict_seconds for fold in folds),
        )

    def _fold(
        self, units: Units, target: Target, split: Split, name: str, train: Int64, held_out: Int64
    ) -> FoldFit:
        units = replace(units, inputs=self.vectors(name).__getitem__)
        started = time.perf_counter()
        fitted = fit(units, target, split, train, self.settings, tune=True)
        trained = time.perf_counter()
        proba = predict_proba(fitted.pipeline, units.inputs(held_out), target)
        predicted = time.perf_counter()
        before = fitted.pipeline[:-1]
        # the same probe: regularisation as for the task
        again = clone(fitted.pipeline[-1])
        again.fit(before.transform(units.inputs(train)), self.control.y[train])
        random = predict_proba(again, before.transform(units.inputs(held_out)), self.control)
        curve = []
        order = growing_order(train, target, seed=self.settings.seed)
        fewest = max(len(np.unique(target.y[train])) if target.classes else 0, 2)
        for fraction in self.curve[:-1]:  # each set of training records lies within the next
            few = np.sort(order[: max(fewest, round(fraction * len(train)))])
            curve.append(_predicted(units, target, split, self.settings, few, held_out))
        return FoldFit(
            proba=proba,
            model=_Probed(name, fitted.choice.score, random, (*curve, proba)),
            fit_seconds=trained - started,
            predict_seconds=predicted - trained,
        )


def _predicted(
    units: Units,
    target: Target,
    split: Split,
    settings: EstimatorSettings,
    train: Int64,
    held_out: Int64,
) -> Float64:
    fitted = fit(units, target, split, train, settings, tune=True)
    return predict_proba(fitted.pipeline, units.inputs(held_out), target)


@dataclass(frozen=True, slots=True)
class _Scorer:
    """Scores of outputs for the held-out units, which are given fold after fold."""

    predictions: Predictions  # of the same units, in the order of the input
    split: Split
    metric: str
    seed: int

    @property
    def held_out(self) -> Int64:
        """The held-out units, fold after fold."""
        return np.concatenate([test for _, test in self.split.subsets()])

    def ordered(self, folds: Sequence[Float64]) -> Float64:
        """Outputs in the order of the input."""
        return np.concatenate(folds)[np.argsort(self.held_out)]

    def decided(self, fits: Fits) -> dict[str, NDArray[Any]]:
        """What each view predicts."""
        sets, views = self.predictions.of_sets, fits.final.items()
        outputs = {name: self.ordered([fold.proba for fold in folds]) for name, folds in views}
        return {name: decide(output, sets=sets) for name, output in outputs.items()}

    def score(self, folds: Sequence[Float64]) -> Score:
        """The score with its interval."""
        metric = self._metric(folds, self.predictions.y)
        return scored({"": metric}, self.predictions.group, seed=self.seed)[""]

    def value(self, folds: Sequence[Float64], target: Target) -> float:
        """The score alone, by the labels of a target."""
        y = target.y[np.sort(self.held_out)]
        return self._metric(folds, y).value(len(y))

    def _metric(self, folds: Sequence[Float64], y: NDArray[Any]) -> Metric:
        return metrics_for(y, self.ordered(folds), beta=beta_of(self.metric))[self.metric]

    def nested(self, fits: Fits, target: Target) -> ReportedScore:
        """The score of the views that inner folds choose, beside that of the majority."""
        parts = self.split.subsets()
        prior = [class_prior(target.y[a], target.classes, len(b)) for a, b in parts]
        score = self.score([fold.proba for fold in fits.folds])
        return ReportedScore(**asdict(score), majority=self.value(prior, target))

    def of_view(self, name: str, method: _Views, fits: Fits) -> ViewScore:
        """The score of a view, beside that of the control task."""
        folds: list[FoldFit] = fits.final[name]
        score = self.score([fold.proba for fold in folds])
        random = self.value([fold.model.control for fold in folds], method.control)
        size = np.mean([len(train) for train, _ in self.split.subsets()])
        curve = tuple(
            (round(fraction * size), self.score([fold.model.curve[i] for fold in folds]))
            for i, fraction in enumerate(method.curve)
        )
        chosen = sum(fold.model.view == name for fold in fits.folds)
        return ViewScore(name, score, random, score.value - random, chosen, curve)


def _untrained(
    data: VectorData,
    method: _Views,
    units: Units,
    target: Target,
    scorer: _Scorer,
    progress: ProgressCallback,
) -> dict[str, tuple[float, ...]]:
    """Scores of the views by encoders of the same architecture, never trained."""
    scores: dict[str, tuple[float, ...]] = {}
    step = steps(progress, "never trained", len(method.names) * _UNTRAINED, "views")
    for number in range(_UNTRAINED):
        progress(Progress("encoding at random", 0, None, "texts"))
        views = encode_at_random(data, units, method.names, scorer.seed + number)
        for name, X in views.items():
            some = replace(units, inputs=X.__getitem__)
            once = partial(_predicted, some, target, scorer.split, method.settings)
            folds, _ = side_by_side([partial(once, *fold) for fold in scorer.split.subsets()])
            scores[name] = (*scores.get(name, ()), scorer.value(folds, target))
            step()
    return scores


def control_task(
    target: Target, split: Split, seed: int, *, words: Sequence[str] | None = None
) -> Target:
    """Return the target of a control task: random labels, the same one for the same text.

    Hewitt & Liang (2019), "Designing and Interpreting Probes with Control Tasks". Every group
    takes the label of a randomly chosen record; of ``words`` every word type does, unless all
    would have the same label, as where the uses of a single word are told apart.
    """
    random = np.random.default_rng(seed)
    index = split.in_folds
    kinds = split.group if words is None else np.array(words, np.str_)
    _, first, group = np.unique(kinds[index], return_index=True, return_inverse=True)
    if words is not None and len(np.unique(target.y[index][first], axis=0)) < 2:
        return control_task(target, split, seed)
    y = target.y.copy()
    y[index] = random.permutation(target.y[index][first])[group]
    return replace(target, y=y)


def encode_at_random(
    data: VectorData, units: Units, names: Sequence[str], seed: int
) -> dict[str, Float32]:
    """Return views of the stored texts by the same architecture with freshly initialised tensors.

    The pooler is left out.
    """
    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.model import PlainModel

    if not data.manifest.job.storage.text or units.pairs:
        raise UsageError(
            "control='random-weights' encodes the stored texts again, and this dataset has none "
            "or has pairs."
        )
    texts = units.records.texts()
    checkpoint, vectors = data.manifest.names, data.manifest.vector_settings
    encoder = Encoder.load(
        checkpoint.model,
        revision=checkpoint.revision,
        max_length=vectors.max_length,
        precision="fp32",
        forward="transformers",
    )
    assert isinstance(encoder.model, PlainModel)
    randomize(encoder.model.module, seed)
    encode = DatasetEncoder(encoder, vectors, [name for name in names if name != "pooler"])
    if units.level == "sentence":
        return encode.views(texts)
    words = encode.words(texts, spans=units.spans)
    return {f"layer_{name}": layer for name, layer in words.vectors.items()}


def randomize(module: Any, seed: int) -> None:
    """Replace every tensor of a transformers model by that of a newly initialised one."""
    import torch

    torch.manual_seed(seed)
    fresh = type(module)(module.config).to(next(module.parameters()).dtype)
    missing = module.load_state_dict(fresh.state_dict(), strict=False).missing_keys
    if missing:
        raise RuntimeError(f"{missing[0]} would keep its trained values")
