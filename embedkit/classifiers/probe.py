"""Scores of stored views and of combinations of layers on the same folds, beside controls.

    stored views ──┬─ each alone                           a row of the table
                   ├─ sums of neighbouring layers          a row
                   ├─ a learnt mixture of all layers       a row; the weights beside it
                   └─ the best one, and others beside it   grown inside each fold
                      └──► the choice of each fold ──► nested score, gain over the last layer

The best score of many candidates is too high by chance. The nested score is not: for each fold the
candidate is chosen in inner folds of the training records and then scored on the held-out ones.
The gain over the last layer compares it with the best pooling of the last layer, chosen likewise.

Views side by side are grown greedily. What the chosen ones do not explain, the errors of their
inner predictions, is compared with every other view: the length of the gradient that the loss has
by the coefficients of a view says how much a first step with it would gain. The three steepest
ones are fitted, and the best of them stays if the inner score rises. Trying all would cost several
times as much, and most views repeat what their neighbours say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import clone
from sklearn.preprocessing import normalize

from embedkit import geometry
from embedkit.arguments import accepts
from embedkit.choices import Control, RunLevel, Task
from embedkit.classifiers.estimators import CommonScaler, EstimatorSettings
from embedkit.classifiers.layers import MOST_BYTES, Candidate, combinations_of, layer_of
from embedkit.classifiers.train import fit_fold, side_by_side
from embedkit.classifiers.tuning import predict_proba
from embedkit.corpus.memory import CorpusLike
from embedkit.dataset.encoders import DatasetEncoder, encode_as
from embedkit.dataset.read import VectorData, load
from embedkit.dataset.settings import EXTRACTION
from embedkit.encoding.views import split_view
from embedkit.errors import UsageError
from embedkit.records import Positive, Seed
from embedkit.runs.cross_validation import Fits, FoldFit, Problem, cross_validate
from embedkit.runs.folder import RunResult, dataset_content, free_out, new_run, write_results
from embedkit.runs.intervals import Estimate, Score, estimates
from embedkit.runs.metrics import Threshold, beta_of, check_metric
from embedkit.runs.run import Cost, ProbeRun, ReportedScore, ViewScore
from embedkit.runs.scores import beside, metrics_of
from embedkit.runs.split import Split
from embedkit.scale import random_numbers_kept
from embedkit.types import Float32, Float64, Int64, Progress, ProgressCallback, no_progress, steps
from embedkit.units.target import SEPARATOR, Target, growing_order
from embedkit.units.units import Labels, Units, load_or_extract

# fractions of the training records of a learning curve
_CURVE = (0.1, 0.2, 0.4, 0.7, 1.0)
_UNTRAINED = 3  # encoders with random weights
_MOST_VIEWS, _TRIED = 4, 3
"""Views side by side at most, and candidates that are fitted for each further one."""

_GEOMETRY_OF, _CURVES_OF = 1_000, 200
"""Distinct texts that numbers without labels are of, and those whose tokens are."""


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
    control: Control | None = None,
    learning_curve: bool = False,
    seed: Seed = 0,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
    **extraction: Any,
) -> RunResult[ProbeRun]:
    """Score every stored view, and combinations of layers, on the same folds.

    Regularisation is chosen for every candidate in inner folds of the training records, and so is
    the candidate: a single view, a sum of neighbouring layers, a learnt mixture of layers (of
    classes, by ``logreg``), or up to four views side by side.

    Args:
        dataset: folder that ``extract`` wrote, with a label column, or a corpus, as in
            :func:`~embedkit.classifiers.train.train`.
        out: new folder for the table and the figures; by default ``runs/<dataset>-probe``.
        view: name of a stored view, or several in a list; by default all. Of words layers. Only
            these are combined.
        level: ``sentence``: records are labelled, or ``word``: the words of records.
        label: column of the labels, if it is not that of the dataset; or the labels themselves, as
            in :func:`~embedkit.classifiers.train.train`.
        estimator: fitted on each view, as in :func:`~embedkit.classifiers.train.train`.
        task: {TASKS}.
        label_separator: between the classes of a record of several.
        split: result or file of ``embedkit split``, or a column that names the folds; ``test`` is
            the test set, and of ``train`` and ``validation`` the latter is held out.
        folds: number of folds where no split is given.
        metric: score that is shown, tuned for and chosen by: ``accuracy``, ``macro_f1``,
            ``log_loss``, ``brier``, ``roc_auc``, ``average_precision``, ``f2`` …, ``rmse``,
            ``r2``, ``spearman``. By default accuracy or R² is shown, while tuning goes by log-loss
            or the squared error.
        control: ``random-weights`` also encodes the texts by three encoders of the same
            architecture, never trained.
        learning_curve: also score fits on 10 to 100 % of the training records.
        seed: of folds, control tasks, estimators and a ``sample`` of the corpus.
        overwrite: replace an earlier probe.
        progress: receives the number of fits that are done.
        extraction: options of ``extract`` for a corpus.

    Returns:
        The folder of the run, and the content of its ``run.json``: ``content.view_scores`` and
        ``content.combinations``, ``content.nested``, the score of what each fold chooses
        (``content.choices``), and ``content.over_last``, its gain over the last layer.

    Raises:
        UsageError: a view, label, setting or split cannot be used.

    Example:
        >>> result = embedkit.probe("vectors", view=["mean_0", "mean_6"], folds=2, out="runs/probe")
        >>> [view.name for view in result.content.view_scores]
        ['mean_0', 'mean_6']
        >>> len(result.content.choices)  # of every fold
        2
    """
    # names are checked, and the folder is, before a corpus is encoded
    settings = EstimatorSettings.of(estimator, task=task, seed=seed, metric=metric)
    out = free_out(out, dataset, "probe", overwrite=overwrite)
    what: dict[str, Any] = {"label": label, "level": level, "split": split}
    extraction |= {} if extraction.get("sample") is None else {"seed": seed}
    data = load_or_extract(dataset, extraction, progress=progress, **what)
    if control is not None:
        check_encodable(data)
    stored = data.manifest.columns_of("sentences" if data.level == "sentence" else "words")
    # views may be given in several spellings; load knows them, and refuses those that are not
    # stored, or that are named twice
    names = list(stored if view is None else load(data.path, view, level=data.level).views)
    units = Units.of_dataset(data, label=label)
    problem = Problem.of(
        units, task=task, separator=label_separator, split=split, folds=folds, seed=seed
    )
    method = Candidates.of(data, problem, names, settings, learning_curve=learning_curve)
    with new_run(out, overwrite=overwrite) as folder:
        content = method.fit_and_write(
            folder, data, problem, untrained=bool(control), progress=progress
        )
    return RunResult(out, content, data.lost)


def geometry_of(data: VectorData, units: Units, method: Candidates) -> dict[str, dict[str, float]]:
    """Numbers of views without labels, of some distinct texts, or of some words.

    The last layer that others are compared with is that of the same pooling.
    """
    # equal texts have equal vectors, and would be each other's nearest neighbours in every layer;
    # the uses of one word differ, so of words all may be taken
    first = np.unique(units.key, return_index=True)[1] if units.word is None else len(units)
    rows = np.random.default_rng(method.settings.seed).permutation(first)[:_GEOMETRY_OF]
    # of two points the rank is 1 and the CKA is 1 in every layer
    if len(rows) < 3:
        return {}
    # the most expensive number, of which the last layer's part is that of each comparison
    near = cache(lambda name: geometry.nearest_rows(method.vectors(name)[rows]))
    curves = _curvatures(data, data.row[rows[:_CURVES_OF]])
    numbers: dict[str, dict[str, float]] = {}
    for name in method.names:
        pooling, layer = split_view(name)
        # max over numbers of layers: a sum of layers, or a pooler, is -1
        last = max((n for n in method.names if split_view(n)[0] == pooling), key=layer_of)
        X, end = method.vectors(name)[rows], method.vectors(last)[rows]
        numbers[name] = {
            "effective_rank": geometry.effective_rank(X),
            "mean_cosine": geometry.mean_cosine(X),
            "entropy": geometry.gram_entropy(X),
            "cka_to_last": geometry.linear_cka(X, end),
            "neighbours_of_last": float(geometry.shared_neighbours(near(name), near(last)).mean()),
        } | ({"curvature": curves[layer]} if layer in curves else {})
    return numbers


def _curvatures(data: VectorData, records: Int64) -> dict[str, float]:
    """Curvature over the tokens of records by layer, where tokens are stored."""
    if not data.manifest.job.vectors.tokens:
        return {}
    curves = {}
    for name in data.manifest.columns_of("tokens"):
        # one layer after the other: the tokens of all layers may not fit into memory
        tokens = load(data.path, split_view(name)[1], level="token")
        index = np.flatnonzero(np.isin(tokens.row, records))
        vectors = tokens.reader.vectors_at(index)
        curves[split_view(name)[1]] = geometry.curvature(vectors, tokens.row[index])
    return curves


class _Probed(NamedTuple):
    """A candidate in a fold."""

    name: str
    score: float  # of inner folds
    control: FoldFit | None = None  # of the control task
    curve: Mapping[float, tuple[int, FoldFit]] = {}  # by fraction: training records, their fit
    weights: Sequence[float] = ()  # of a mixture


class Candidates(NamedTuple):
    """A method that fits every candidate, and keeps in each fold the one with the best inner score.

    It also scores them, by what the fits of all folds predict. In ``final`` are all fits by
    candidate, but those of views side by side, which each fold has its own of.
    """

    names: Sequence[str]
    combinations: Sequence[Candidate]
    vectors: Callable[[str], Float32]
    settings: EstimatorSettings
    control: Target
    curve: tuple[float, ...] = ()  # fractions of the training records

    @classmethod
    def of(
        cls,
        data: VectorData,
        problem: Problem,
        names: Sequence[str],
        settings: EstimatorSettings,
        *,
        learning_curve: bool,
    ) -> Self:
        """Return the method for stored views ``names`` of a dataset.

        Raises:
            UsageError: the metric of the settings is not one of this problem.
        """
        units, target, split, _ = problem
        if settings.metric is not None:
            check_metric(settings.metric, target)
            # an F score is the best one of inner folds: at 0.5 rare classes would hardly be
            # predicted, and views would seem alike; tuning goes by the best threshold too
            if (beta := beta_of(settings.metric)) is not None:
                settings = settings._replace(threshold=Threshold(None, beta))
        # records take their random label by group; words by their form, as a probe could learn it
        # by heart
        words = None if units.word is None else data.text
        random_labels = control_task(target, split, settings.seed, words=words)
        view_bytes = 4 * len(data) * data.width
        logistic = settings.estimator == "logreg" and settings.task == "classification"
        combinations = combinations_of(names, mixtures=logistic, view_bytes=view_bytes)
        # a fit of every fold reads its views: as many as fit into a gigabyte stay in memory
        kept = lru_cache(maxsize=max(2, MOST_BYTES // view_bytes))
        vectors = kept(lambda name: load(data.path, name, level=data.level).X)
        curve = _CURVE if learning_curve else ()
        return cls(names, combinations, vectors, settings, random_labels, curve)

    @property
    def metric(self) -> str:
        """The score that is shown, and chosen by if it is named."""
        shown = {"regression": "r2", "multilabel": "micro_f1"}
        return self.settings.metric or shown.get(self.settings.task, "accuracy")

    def fit(self, problem: Problem, *, progress: ProgressCallback) -> Fits:
        """Fit every candidate in every fold."""
        # all candidates of all folds are independent fits, so they go through the threads together;
        # the results of a candidate then stand side by side, fold after fold
        candidates = [*(Candidate(name, (name,)) for name in self.names), *self.combinations]
        folds = [partial(self._fold, problem, *subset) for subset in problem.split.subsets()]
        fits = [partial(fold, candidate) for candidate in candidates for fold in folds]
        threads = self.settings.threads
        results = side_by_side(fits, threads=threads, progress=progress)
        count = len(folds)
        by_name = {c.name: results[i * count : (i + 1) * count] for i, c in enumerate(candidates)}
        chosen = best_of_folds(by_name.values())
        seconds = sum(fit.fit_seconds for fit in results)
        if len(self.names) > 1:
            # growing needs the best single view of the fold, so it is a second round
            single = best_of_folds(by_name[name] for name in self.names)
            growths = [
                partial(self._grown, problem, *subset, best.model.name)
                for subset, best in zip(problem.split.subsets(), single, strict=True)
            ]
            grown = side_by_side(growths, threads=threads, progress=progress)
            # of equal scores the simpler candidate stays
            chosen = best_of_folds([chosen, grown])
            seconds += sum(fit.fit_seconds for fit in grown)
        return Fits(
            folds=chosen,
            final=by_name,
            cost=Cost(
                fit_seconds=seconds, predict_seconds=sum(fit.predict_seconds for fit in chosen)
            ),
        )

    def input(self, candidate: Candidate, index: Int64) -> Float32:
        """The vectors ``(n, width)`` of a candidate."""
        parts = [self.vectors(view)[index] for view in candidate.views]
        if candidate.combination == "sum":
            return np.asarray(np.sum(parts, axis=0), np.float32)
        return parts[0] if len(parts) == 1 else np.hstack(parts)

    def _with(self, candidate: Candidate, problem: Problem) -> tuple[Problem, EstimatorSettings]:
        """The problem with the vectors of a candidate, and the settings of a fit on them."""
        # vectors are put together for the records of a fit alone, never for all records
        units = replace(problem.units, inputs=partial(self.input, candidate))
        layers = len(candidate.views) if candidate.combination == "mixture" else 1
        return problem._replace(units=units), self.settings._replace(layers=layers)

    def _fold(
        self, problem: Problem, train: Int64, held_out: Int64, candidate: Candidate
    ) -> FoldFit:
        problem, settings = self._with(candidate, problem)
        inputs, target = problem.units.inputs, problem.target
        fold = fit_fold(problem, train, held_out, settings)
        fitted, fold = fold.model, _without_model(fold)
        # the control task and the learning curve are no cost of the method: they come after the
        # clock
        before = fitted.pipeline[:-1]
        # the same probe: regularisation and threshold as for the task
        control = clone(fitted.pipeline[-1])
        control.fit(before.transform(inputs(train)), self.control.y[train])
        proba = predict_proba(control, before.transform(inputs(held_out)), self.control)
        random = fold._replace(proba=proba)
        curve = dict[float, tuple[int, FoldFit]]()
        # one of each class at least, and two values of a regression
        order = growing_order(train, target, seed=self.settings.seed)
        fewest = max(len(np.unique(target.y[train])) if target.classes else 0, 2)
        # each set of training records lies within the next; the last one is all of them, whose fit
        # is there
        for fraction in self.curve if candidate.name in self.names else ():
            few = np.sort(order[: max(fewest, round(fraction * len(train)))])
            with suppress(UsageError):  # of too few to choose anything by, there is no point
                fit = fold if fraction == 1 else fit_fold(problem, few, held_out, settings)
                curve[fraction] = len(few), _without_model(fit)
        weights = getattr(fitted.pipeline[-1], "weights_", ())
        return fold._replace(
            model=_Probed(candidate.name, fitted.choice.score, random, curve, weights)
        )

    def _grown(self, problem: Problem, train: Int64, held_out: Int64, first: str) -> FoldFit:
        """A single view, and others beside it as long as the inner score rises."""
        started, target = time.thread_time(), problem.target
        y = target.y[train]
        if target.classes and not target.of_sets:
            # (n, classes), as the inner predictions are: y less these is how steeply the loss falls
            # along the log-odds
            y = np.eye(len(target.classes))[y]

        def fold_of(*views: str) -> tuple[Candidate, FoldFit]:
            # the same set of views is the same candidate, in whatever order it has grown
            in_order = tuple(name for name in self.names if name in views)
            candidate = Candidate(" + ".join(in_order), in_order)
            task, settings = self._with(candidate, problem)
            return candidate, fit_fold(task, train, held_out, settings)

        best, fold = fold_of(first)
        while len(best.views) < min(_MOST_VIEWS, len(self.names)):
            score, inner = fold.model.choice.score, fold.model.inner
            if inner is None or np.isnan(score):  # no inner folds to choose by
                break
            rest, errors = [n for n in self.names if n not in best.views], y - inner
            slopes = {name: self._slope(name, train, errors) for name in rest}
            steepest = sorted(slopes, key=slopes.__getitem__, reverse=True)[:_TRIED]
            # each of them is tuned as a single view is, so that the scores can be compared
            larger = [fold_of(*best.views, name) for name in steepest]
            further = max(larger, key=lambda tried: tried[1].model.choice.score)
            # also where a score is NaN
            if not further[1].model.choice.score > score:
                break
            best, fold = further
        # without a control task and a curve
        probed = _Probed(best.name, fold.model.choice.score)
        # of all that were tried
        seconds = time.thread_time() - started - fold.predict_seconds
        return _without_model(fold)._replace(model=probed, fit_seconds=seconds)

    def _slope(self, name: str, train: Int64, errors: Float64) -> float:
        """How steeply the loss falls along the coefficients of a view, on the scale of a fit."""
        # as the pipeline scales it, else views of longer vectors would seem steeper
        X = CommonScaler().fit_transform(normalize(self.vectors(name)[train]))
        return float(np.linalg.norm(X.T @ errors))

    def fit_and_write(
        self,
        folder: Path,
        data: VectorData,
        problem: Problem,
        *,
        untrained: bool,
        progress: ProgressCallback,
    ) -> ProbeRun:
        """Fit and score all candidates, and write the run; ``untrained``: random weights too."""
        predictions, fits = cross_validate(self, problem, progress=progress)
        # the predictions are those of the nested choice; what each view predicts stands beside them
        views = {n: problem.held_out(fits.final[n]).y_pred for n in self.names}
        settings = self.settings
        about = {"class_weight": settings.class_weight, "seed": settings.seed}
        return write_results(
            folder,
            ProbeRun,
            problem,
            replace(predictions, views=views),
            decision=settings.threshold,
            dataset=dataset_content(data),
            estimator=settings.estimator,
            task=settings.task,
            settings=about | problem.target.settings,
            features="vectors",
            views=tuple(self.names),
            scores={"cross_validation": {self.metric: self.nested(problem, fits)}},
            metric=self.metric,
            view_scores=tuple(self.of_view(n, problem, fits) for n in self.names),
            combinations=tuple(self.of_view(c.name, problem, fits) for c in self.combinations),
            choices=tuple(fold.model.name for fold in fits.folds),
            over_last=self.over_last(problem, fits),
            random_weights=_untrained(data, self, problem, progress) if untrained else {},
            geometry=geometry_of(data, problem.units, self),
            cost=fits.cost,
        )

    def estimate(
        self, problem: Problem, folds: Sequence[FoldFit], *, baseline: bool = False
    ) -> Estimate:
        """The metric of the fits of all folds, or of the majority on the same records."""
        p = problem.held_out(folds)
        p = p.majority(problem.prior) if baseline else p
        metric = metrics_of(p, beta=beta_of(self.metric), baseline=baseline)[self.metric]
        return estimates({"": metric}, p.group)[""]

    def nested(self, problem: Problem, fits: Fits) -> ReportedScore:
        """The score of the views that inner folds choose, beside that of the majority."""
        majority = self.estimate(problem, fits.folds, baseline=True)
        return beside(self.estimate(problem, fits.folds), majority)

    def over_last(self, problem: Problem, fits: Fits) -> Score | None:
        """The nested score less that of the last layer, whose pooling the inner folds choose.

        None where no other layer is stored.
        """
        highest = max(map(layer_of, self.names))
        last = [name for name in self.names if layer_of(name) == highest]
        if highest < 0 or len(last) == len(self.names):
            return None
        # the last layer has the same choice of pooling as all candidates have, or the gain would be
        # too high
        baseline = best_of_folds(fits.final[name] for name in last)
        # of both on the same units, so that the interval is that of a paired difference
        test = self.estimate(problem, fits.folds).less(self.estimate(problem, baseline))
        return Score(test.value, test.low, test.high)

    def of_view(self, name: str, problem: Problem, fits: Fits) -> ViewScore:
        """The score of a candidate, beside that of the control task."""
        folds, control = fits.final[name], problem._replace(target=self.control)
        score = self.estimate(problem, folds).score
        random = self.estimate(control, [fold.model.control for fold in folds]).value
        curves = [fold.model.curve for fold in folds]
        points = [[c[i] for c in curves] for i in self.curve if all(i in c for c in curves)]
        # of few records several fractions are the same ones
        by_size = {round(np.mean([n for n, _ in p])): [fit for _, fit in p] for p in points}
        curve = tuple((n, self.estimate(problem, fitted).score) for n, fitted in by_size.items())
        # how often a view would be chosen among views, and a combination among combinations: among
        # all of them single views might have none, though the table asks which layer is best
        kind = self.names if name in self.names else [c.name for c in self.combinations]
        first = best_of_folds(fits.final[other] for other in kind)
        chosen = sum(fold.model.name == name for fold in first)
        # (layers,) of a mixture; empty for other candidates
        weights = np.mean([fold.model.weights for fold in folds], axis=0).tolist()
        selectivity = score.value - random
        return ViewScore(name, score, random, selectivity, chosen, curve, tuple(weights))


def _without_model(fold: FoldFit) -> FoldFit:
    """A fit of one of many candidates, of which nothing is kept but what it predicts."""
    return fold._replace(model=None, inner=None)


def best_of_folds(candidates: Iterable[Sequence[FoldFit]]) -> list[FoldFit]:
    """In each fold the fit with the highest inner score; of equal ones the first."""
    # without inner folds all scores are NaN, none is greater than another, and the first candidate
    # stays
    return [max(fits, key=lambda fit: fit.model.score) for fits in zip(*candidates, strict=True)]


def _untrained(
    data: VectorData, method: Candidates, problem: Problem, progress: ProgressCallback
) -> dict[str, tuple[float, ...]]:
    """Scores of the views by encoders of the same architecture, never trained."""
    from embedkit.encoding.model import PlainModel

    scores: dict[str, tuple[float, ...]] = {}
    units, names, settings = problem.units, method.names, method.settings
    step = steps(progress, "never trained", len(names) * _UNTRAINED, "views")
    # a pooler has weights of its own, which are left out. The plain module of transformers: other
    # ways to run an encoder hold copies of its trained weights
    layers = [name for name in names if name != "pooler"]
    about: dict[str, Any] = {"precision": "fp32", "forward": "transformers"}
    encode = encode_as(data.manifest, layers, owner=str(data.path), **about)
    assert isinstance(encode.encoder.model, PlainModel)
    for number in range(_UNTRAINED):
        progress(Progress("encoding at random", 0, None, "texts"))
        randomize(encode.encoder.model.module, settings.seed + number)
        for name, X in _encoded(encode, units).items():
            # the same units, folds and tuning: the weights of the encoder alone differ
            problem = problem._replace(units=replace(units, inputs=X.__getitem__))
            fits = [partial(fit_fold, problem, *s, settings) for s in problem.split.subsets()]
            fitted = [*map(_without_model, side_by_side(fits, threads=settings.threads))]
            scores[name] = (*scores.get(name, ()), method.estimate(problem, fitted).value)
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
    kinds = split.group
    if words is not None:
        kinds = np.unique(np.array(words, np.str_), return_inverse=True)[1]
    y = target.y.copy()
    for _ in range(100):
        # of the units in folds alone: the test set has no control task. In another order each time,
        # as the first unit of a group is the one whose label all others get
        index = random.permutation(split.in_folds)
        _, first, group = np.unique(kinds[index], return_index=True, return_inverse=True)
        y[index] = random.permutation(target.y[index][first])[group]
        # again where a fold would have one class to train on: the split has folds that have two
        if all(len(np.unique(y[train], axis=0)) > 1 for train, _ in split.subsets()):
            return replace(target, y=y)
    if words is not None:
        return control_task(target, split, seed)
    # too few groups for two labels in each training part: every unit by itself
    y[split.in_folds] = random.permutation(target.y[split.in_folds])
    return replace(target, y=y)


def check_encodable(data: VectorData) -> None:
    """Raise a :class:`UsageError` if the records cannot be encoded again, without training."""
    job = data.manifest.job
    if not job.storage.text or job.input.text_pair is not None or job.folds is not None:
        raise UsageError(
            "it encodes the stored texts again, by one model: this dataset stores no texts, or "
            "pairs, or is of a model for each fold. Probe vectors of single texts by a checkpoint.",
            control="random-weights",
        )


def _encoded(encode: DatasetEncoder, units: Units) -> dict[str, Float32]:
    """The views of the units by their names, from the texts of their records."""
    texts = units.records.texts()
    if units.level == "sentence":
        return encode.views(texts)
    words = encode.words(texts, spans=units.spans)
    return {f"layer_{name}": layer for name, layer in words.vectors.items()}


@random_numbers_kept()
def randomize(module: Any, seed: int) -> None:
    """Replace every tensor of a transformers model by that of a newly initialised one."""
    import torch

    # initialisation draws from torch's global generator
    torch.manual_seed(seed)
    fresh = type(module)(module.config).to(next(module.parameters()).dtype)
    # strict=False lets go of what the fresh model has besides, such as a pooler; the other
    # direction is an error, since a trained tensor in a "never trained" encoder would be seen in no
    # score
    missing = module.load_state_dict(fresh.state_dict(), strict=False).missing_keys
    if missing:
        raise RuntimeError(f"{missing[0]} would keep its trained values")
