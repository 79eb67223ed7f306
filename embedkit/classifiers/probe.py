"""Score every stored view under the same folds, beside its controls.

The best score of many views is too high by chance. The nested score is not: for each fold the view
is chosen in inner folds of the training records and then scored on the held-out ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.choices import RUN_LEVELS, check_choice
from embedkit.classifiers.codelength import online_codelength
from embedkit.classifiers.controls import control_task, encode_at_random, linear_cka
from embedkit.classifiers.estimators import EstimatorSettings
from embedkit.classifiers.folds import side_by_side
from embedkit.classifiers.train import split_for, target_of
from embedkit.classifiers.tuning import Fitted, fit, predict_others, predict_proba, take
from embedkit.classifiers.view_tests import compare_to_best, rise_of
from embedkit.dataset.record_keys import stored_texts
from embedkit.dataset.store import VectorData, load
from embedkit.errors import UsageError, check_counts, check_seed
from embedkit.runs.content import Cost, CurvePoint, ProbeRun, SplitContent, ViewScore
from embedkit.runs.folder import new_run, versions, write_run
from embedkit.runs.metrics import beta_of, check_metric, classification_scores, regression_scores
from embedkit.runs.reencoding import dataset_content
from embedkit.runs.resampling import Score
from embedkit.runs.split_files import Split
from embedkit.runs.targets import Target, check_folds, class_prior, growing_order
from embedkit.runs.view_predictions import write_view_predictions
from embedkit.types import Float32, Float64, Int64, Progress, ProgressCallback, no_progress

__all__ = ["ProbeResult", "probe"]

_CURVE = (0.1, 0.2, 0.4, 0.7, 1.0)
_CKA_RECORDS = 2_000


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A finished probe.

    Attributes:
        out: its folder.
        content: the content of ``run.json``: the scores of every view.
    """

    out: Path
    content: ProbeRun


@dataclass(frozen=True, slots=True)
class _Options:
    """What is computed beside the scores."""

    metric: str
    shuffles: int
    random_encoders: int
    codelength: bool
    learning_curve: bool
    threads: int | None


def probe(
    dataset: str | Path,
    *,
    out: str | Path,
    view: str | Sequence[str] | None = None,
    level: str = "sentence",
    estimator: str | None = None,
    task: str = "classification",
    split: str | Path | None = None,
    folds: int = 5,
    metric: str | None = None,
    shuffles: int = 3,
    control: str | None = None,
    encoders: int = 3,
    codelength: bool = False,
    learning_curve: bool = False,
    seed: int = 0,
    threads: int | None = None,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> ProbeResult:
    """Score every stored view under the same folds.

    Scaling and regularisation are chosen for every view in inner folds of the training records.

    Args:
        dataset: folder that ``extract`` wrote, with a label column.
        out: folder for the table and the figures.
        view: name of a stored view, or several in a list; by default all. Of words layers.
        level: ``sentence``: records are labelled, or ``word``: the words of records, as in
            :func:`~embedkit.classifiers.train.train`.
        estimator: one of :data:`~embedkit.choices.ESTIMATORS`, fitted on each view; by default
            ``logreg``, of values ``ridge``.
        task: ``classification`` or ``regression``.
        split: file that ``embedkit split`` wrote; of several repeats, the first is used.
        folds: number of folds where no split is given.
        metric: score that is shown, tuned for and chosen by: ``accuracy``, ``macro_f1``,
            ``log_loss``, ``brier``, ``roc_auc``, ``average_precision``, ``f2`` …, ``rmse``,
            ``r2``, ``spearman``. By default accuracy or R² is shown, while tuning goes by log-loss
            or the squared error.
        shuffles: number of control tasks, each with other random labels.
        control: ``random-weights`` also encodes the texts by the same architecture, never trained.
        encoders: number of such encoders, each with other weights.
        codelength: also compute the minimum description length by online coding.
        learning_curve: also score fits on 10 to 100 % of the training records, of every view and
            of TF-IDF.
        seed: of folds, control tasks and estimators.
        threads: number of fits at the same time; by default one for each core.
        overwrite: replace an earlier probe.
        progress: receives the number of fits that are done.

    Raises:
        UsageError: a view, label, setting or split cannot be used.

    Example:
        >>> result = embedkit.probe("vectors", view=["mean_0", "mean_6"], folds=2, out="runs/probe")
        >>> [view.name for view in result.content.views]
        ['mean_0', 'mean_6']
    """
    started = time.perf_counter()
    wanted = [view] if isinstance(view, str) else view
    settings = EstimatorSettings.of(estimator, task=task, seed=seed, metric=metric)
    check_seed(seed)
    check_counts(threads=threads, shuffles=shuffles, encoders=encoders)
    if control is not None:
        check_choice(("random-weights",), control=control)
    check_choice(RUN_LEVELS, level=level)
    data = load(dataset, level=level)
    table = "sentences" if level == "sentence" else "words"
    names = list(data.manifest.columns_of(table)) if wanted is None else [
        load(dataset, name, level=level).views[0] for name in wanted
    ]  # fmt: skip
    target = target_of(data, task)
    if metric is not None:
        check_metric(metric, classes=len(target.classes))
    if codelength and not target.classes:
        raise UsageError("codelength=True needs classes; leave it out for task='regression'.")
    chosen = split_for(data, split, folds=folds, seed=seed)
    check_folds(target, chosen, repeats=1)
    options = _Options(
        metric or ("accuracy" if target.classes else "r2"), shuffles,
        encoders if control else 0, codelength, learning_curve, threads,
    )  # fmt: skip
    work = _Probe(data, target, chosen, settings, names, options, progress)
    with new_run(Path(out), overwrite=overwrite) as folder:
        from embedkit.runs.figures import draw_probe

        content = work.run(folder, started)
        draw_probe(folder, content)
        write_run(folder, content)
    return ProbeResult(Path(out), content)


@dataclass(frozen=True, slots=True)
class _FoldResult:
    """One view and fold: the fit, and predictions of the held-out records.

    ``shuffled`` has one array for each control task, ``curve`` one for each size of training.
    """

    fitted: Fitted
    proba: Float64
    shuffled: tuple[Float64, ...]
    curve: tuple[Float64, ...]


class _Probe:
    """All fits of one probe."""

    def __init__(
        self,
        data: VectorData,
        target: Target,
        split: Split,
        settings: EstimatorSettings,
        names: list[str],
        options: _Options,
        progress: ProgressCallback,
    ) -> None:
        self._data, self._target, self._split = data, target, split
        self._settings, self._names, self._options = settings, names, options
        self._progress = progress
        self._folds = [split.fold(0, fold) for fold in range(split.n_folds)]
        # its fits follow each other, so that few views are in memory
        self._view = lru_cache(maxsize=2)(lambda name: load(data.path, name, level=data.level).X)
        words = data.text if data.level == "word" and options.shuffles else None
        self._controls = [
            control_task(target, split, settings.seed + number, words=words)
            for number in range(options.shuffles)
        ]

    def run(self, folder: Path, started: float) -> ProbeRun:
        """Fit everything and return the content of the run."""
        results: dict[str, list[_FoldResult]] = {}
        bits: dict[str, float | None] = {}
        sampled: list[Float32] = []
        rows = np.arange(len(self._data))
        if len(rows) > _CKA_RECORDS:
            random = np.random.default_rng(self._settings.seed)
            rows = np.sort(random.choice(rows, _CKA_RECORDS, replace=False))
        fits = iter(self._fit_views())
        for name in self._names:
            bits[name] = next(fits) if self._options.codelength else None
            results[name] = [next(fits) for _ in self._folds]
            sampled.append(self._view(name)[rows])
        best = [max(self._names, key=lambda n: results[n][f].fitted.choice.score)
                for f in range(len(self._folds))]  # fmt: skip
        outputs = {name: self._in_order([f.proba for f in found])
                   for name, found in results.items()}  # fmt: skip
        held_out, words = self._held_out, self._split.word
        write_view_predictions(folder, self._split.row[held_out], outputs, self._target.classes,
                               word=None if words is None else words[held_out])  # fmt: skip
        p_best = compare_to_best(outputs, self._target.y[self._held_out], **self._tested)
        views = tuple(
            self._view_score(name, results[name], bits[name], best.count(name), p_best[name])
            for name in self._names
        )
        settings = asdict(self._settings)
        for name in ("features", "metric"):
            del settings[name]
        y, classes = self._target.y, self._target.classes
        prior = [class_prior(y[train], classes, len(test)) for train, test in self._folds]
        return ProbeRun(
            estimator=settings.pop("estimator"),
            task=settings.pop("task"),
            settings=settings,
            level=self._data.level,
            dataset=dataset_content(self._data, folder),
            split=SplitContent.of(self._split),
            metric=self._options.metric,
            majority=self._score(prior, intervals=False).value,
            views=views,
            nested=self._score([results[name][f].proba for f, name in enumerate(best)]),
            random_weights=self._random_encoders(),
            cka=tuple(tuple(map(float, row)) for row in linear_cka(sampled)),
            tfidf=self._tfidf_curve(),
            cost=Cost(seconds=time.perf_counter() - started),
            versions=versions(),
        )

    def _fit_views(self) -> list[Any]:
        """The fits of every view, several at the same time; before them, its description length."""
        tasks: list[Callable[[], Any]] = []
        for name in self._names:
            if self._options.codelength:
                tasks.append(partial(self._codelength, name))
            tasks += [partial(self._fit_fold, name, train, test) for train, test in self._folds]
        return side_by_side(tasks, threads=self._options.threads, progress=self._progress)

    def _codelength(self, name: str) -> float:
        return online_codelength(self._view(name), self._target, self._split, self._settings)

    def _fit_fold(self, name: str, train: Int64, test: Int64) -> _FoldResult:
        X = self._view(name)
        split, settings, target = self._split, self._settings, self._target
        fitted = fit(X, target, split, train, settings, tune=True)
        # the same probe: scaling and parameter as for the task
        shuffled = predict_others(fitted, X, self._controls, split, train, test, settings)
        curve = []
        if self._options.learning_curve:
            curve = self._fit_curve(X, train, test, settings)
        proba = predict_proba(fitted.pipeline, X[test], target)
        return _FoldResult(fitted, proba, shuffled, (*curve, proba))

    def _fit_curve(
        self, features: Any, train: Int64, test: Int64, settings: EstimatorSettings
    ) -> list[Float64]:
        """Predictions by fits on fewer training records, each set within the next."""
        target, found = self._target, []
        order = growing_order(train, target, seed=settings.seed)
        fewest = max(len(np.unique(target.y[train])) if target.classes else 0, 2)
        for fraction in _CURVE[:-1]:
            few = np.sort(order[: max(fewest, round(fraction * len(train)))])
            try:
                again = fit(features, target, self._split, few, settings, tune=True)
            except UsageError:
                if settings.features == "vectors":
                    raise
                # no two of so few texts have a word in common: only the labels are known
                found.append(class_prior(target.y[few], target.classes, len(test)))
            else:
                found.append(predict_proba(again.pipeline, take(features, test), target))
        return found

    def _tfidf_curve(self) -> tuple[CurvePoint, ...]:
        """The learning curve of what ``train --features tfidf`` fits, under the same folds."""
        texts = stored_texts(self._data, separator=" ")
        if not self._options.learning_curve or texts is None:
            return ()
        settings = EstimatorSettings.of(
            None, task=self._settings.task, features="tfidf", seed=self._settings.seed,
            metric=self._settings.metric,
        )  # fmt: skip

        done = count(1)

        def curve(train: Int64, test: Int64) -> list[Float64]:
            found = self._fit_curve(texts, train, test, settings)
            fitted = fit(texts, self._target, self._split, train, settings, tune=True)
            found.append(predict_proba(fitted.pipeline, take(texts, test), self._target))
            self._progress(Progress("curve of TF-IDF", next(done), len(self._folds), "folds"))
            return found

        folds = side_by_side([partial(curve, *fold) for fold in self._folds],
                             threads=self._options.threads)  # fmt: skip
        return tuple(self._curve_point(folds, *one) for one in enumerate(_CURVE))

    def _view_score(
        self, name: str, found: Sequence[_FoldResult], bits: float | None, chosen: int,
        p_best: float | None,
    ) -> ViewScore:  # fmt: skip
        score = self._score([fold.proba for fold in found])
        controls = np.array([
            self._score([fold.shuffled[i] for fold in found], target=control, intervals=False).value
            for i, control in enumerate(self._controls)
        ])  # fmt: skip
        fractions = _CURVE if self._options.learning_curve else ()
        labels = len(self._split.in_folds) * np.log2(max(2, len(self._target.classes)))
        return ViewScore(
            name=name,
            score=score,
            control=float(controls.mean()),
            control_sd=float(controls.std(ddof=1)) if len(controls) > 1 else float("nan"),
            selectivity=score.value - float(controls.mean()),
            chosen=chosen,
            codelength=bits,
            compression=None if bits is None else float(labels / bits),
            curve=tuple(
                self._curve_point([fold.curve for fold in found], *one)
                for one in enumerate(fractions)
            ),
            p_best=p_best,
        )

    def _curve_point(
        self, folds: Sequence[Sequence[Float64]], number: int, fraction: float
    ) -> CurvePoint:
        score = self._score([fold[number] for fold in folds])
        few, everything = (self._in_order([fold[i] for fold in folds]) for i in (number, -1))
        rise = rise_of(few, everything, self._target.y[self._held_out], **self._tested)
        sizes = np.mean([len(train) for train, _ in self._folds])
        return CurvePoint(
            records=round(fraction * sizes), score=score.value, low=score.low, high=score.high,
            rise=None if fraction == _CURVE[-1] else rise,
        )  # fmt: skip

    @property
    def _tested(self) -> dict[str, Any]:
        return {"metric": self._options.metric, "unit": self._split.group[self._held_out],
                "seed": self._settings.seed}  # fmt: skip

    @property
    def _held_out(self) -> Int64:
        """Positions of the held-out records of all folds, ascending."""
        return np.sort(np.concatenate([test for _, test in self._folds]))

    def _in_order(self, folds: Sequence[Float64]) -> Float64:
        """Predictions of the folds, in the order of the records."""
        order = np.argsort(np.concatenate([test for _, test in self._folds]))
        return np.asarray(np.concatenate(folds)[order], np.float64)

    def _score(
        self, folds: Sequence[Float64], *, target: Target | None = None, intervals: bool = True
    ) -> Score:
        index = self._held_out
        proba, y = self._in_order(folds), (target or self._target).y[index]
        options: dict[str, Any] = {"seed": self._settings.seed, "intervals": intervals,
                                   "unit": self._split.group[index]}  # fmt: skip
        metric = self._options.metric
        if self._target.classes:
            scores = classification_scores(
                y, proba, proba.argmax(1), beta=beta_of(metric), only=[metric], **options
            )
        else:
            scores = regression_scores(y, proba, only=[metric], **options)
        return scores[metric]

    def _random_encoders(self) -> dict[str, tuple[float, ...]]:
        """Scores of the same views by encoders of the same architecture, never trained."""
        found: dict[str, list[float]] = {}
        done, total = count(1), len(self._names) * self._options.random_encoders
        for number in range(self._options.random_encoders):
            self._progress(Progress("encoding at random", 0, None, "texts"))
            seed = self._settings.seed + number
            for name, X in encode_at_random(self._data, self._names, seed).items():
                tasks = [partial(self._fit_plain, X, *fold) for fold in self._folds]
                folds = side_by_side(tasks, threads=self._options.threads)
                found.setdefault(name, []).append(self._score(folds, intervals=False).value)
                self._progress(Progress("never trained", next(done), total, "views"))
        return {name: tuple(scores) for name, scores in found.items()}

    def _fit_plain(self, X: Float32, train: Int64, test: Int64) -> Float64:
        fitted = fit(X, self._target, self._split, train, self._settings, tune=True)
        return predict_proba(fitted.pipeline, X[test], self._target)
