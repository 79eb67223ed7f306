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
from sklearn.base import clone

from embedkit.choices import RUN_LEVELS, check_choice
from embedkit.classifiers.estimators import EstimatorSettings
from embedkit.classifiers.train import side_by_side, target_of
from embedkit.classifiers.tuning import fit, predict_proba
from embedkit.corpus.memory import CorpusLike
from embedkit.dataset.read import VectorData, load, records_of_words, stored_texts, word_spans_of
from embedkit.dataset.settings import DatasetEncoder
from embedkit.dataset.texts import dataset_of
from embedkit.errors import UsageError
from embedkit.runs.folder import (
    RunResult,
    check_free,
    dataset_content,
    default_out,
    new_run,
    versions,
    write_run,
)
from embedkit.runs.intervals import Score, scored
from embedkit.runs.metrics import beta_of, check_metric, metrics_for
from embedkit.runs.predictions import (
    SEPARATOR,
    Predictions,
    Target,
    check_folds,
    class_prior,
    decide,
    growing_order,
    write_predictions,
)
from embedkit.runs.run import Cost, ProbeRun, ReportedScore, ViewScore
from embedkit.runs.split import Split, split_for, write_split
from embedkit.types import Float32, Float64, Int64, Progress, ProgressCallback, no_progress, steps

_CURVE = (0.1, 0.2, 0.4, 0.7, 1.0)
_UNTRAINED = 3


def probe(
    dataset: CorpusLike,
    *,
    out: str | Path | None = None,
    view: str | Sequence[str] | None = None,
    level: str = "sentence",
    estimator: str | None = None,
    task: str = "classification",
    label_separator: str = SEPARATOR,
    split: str | Path | Split | None = None,
    folds: int = 5,
    metric: str | None = None,
    control: str | None = None,
    learning_curve: bool = False,
    seed: int = 0,
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
        estimator: fitted on each view, as in :func:`~embedkit.classifiers.train.train`.
        task: ``classification``, ``regression`` or ``multilabel``.
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
    check_choice(RUN_LEVELS, level=level)
    out = default_out(dataset, "probe") if out is None else Path(out)
    check_free(out, overwrite=overwrite)
    dataset = dataset_of(dataset, extraction, level=level, progress=progress)
    data = load(dataset, level=level)
    if view is None:
        names = list(data.manifest.columns_of("sentences" if level == "sentence" else "words"))
    else:
        given = [view] if isinstance(view, str) else view
        names = [load(dataset, name, level=level).views[0] for name in given]
    target = target_of(data, task, label_separator)
    sets = target.separator is not None
    if metric is not None:
        check_metric(metric, classes=len(target.classes), sets=sets)
    chosen = split_for(data, split, folds=folds, seed=seed, sets=sets)
    check_folds(target, chosen)
    work = _Probe(
        data=data,
        target=target,
        split=chosen,
        settings=settings,
        metric=metric or {"regression": "r2", "multilabel": "micro_f1"}.get(task, "accuracy"),
        folds=chosen.subsets(),
        curve=_CURVE if learning_curve else (),
    )
    words = data.text if level == "word" else None
    random_labels = control_task(target, chosen, seed, words=words)
    with new_run(out, overwrite=overwrite) as folder:
        from embedkit.runs.figures import draw_probe

        views, predictions, cost = work.views(names, random_labels, progress)
        prior = [
            class_prior(target.y[train], target.classes, len(test)) for train, test in work.folds
        ]
        nested = ReportedScore(
            **asdict(work.score([predictions.proba[test] for _, test in predictions.folds()])),
            majority=work.score(prior, intervals=False).value,
        )
        write_predictions(folder, predictions)
        write_split(chosen, folder / "split.parquet")
        content = ProbeRun(
            estimator=settings.estimator,
            task=task,
            settings={name: getattr(settings, name) for name in ("class_weight", "seed")}
            | ({"label_separator": label_separator} if sets else {}),
            level=level,
            dataset=dataset_content(data, folder),
            split=chosen.record,
            features="vectors",
            views=tuple(names),
            classes=target.classes,
            records={"folds": len(predictions.row), "test": 0},
            scores={"cross_validation": {work.metric: nested}},
            metric=work.metric,
            view_scores=views,
            random_weights=work.random_encoders(names, progress) if control else {},
            cost=replace(cost, seconds=time.perf_counter() - started),
            versions=versions(),
        )
        draw_probe(folder, content)
        write_run(folder, content)
    return RunResult(out, content)


class _FoldResult(NamedTuple):
    """One view and fold: the inner score, and predictions of the held-out records."""

    inner_score: float
    proba: Float64
    fit_seconds: float
    predict_seconds: float
    control: Float64
    curve: tuple[Float64, ...]  # by number of training records


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    """The fits of one probe and their scores."""

    data: VectorData
    target: Target
    split: Split
    settings: EstimatorSettings
    metric: str
    folds: list[tuple[Int64, Int64]]  # training and held-out records
    curve: tuple[float, ...]  # fractions of the training records

    def views(
        self, names: Sequence[str], control: Target, progress: ProgressCallback
    ) -> tuple[tuple[ViewScore, ...], Predictions, Cost]:
        """Return the scores of the views, predictions of the view chosen in each fold, and cost."""
        data, split, target = self.data, self.split, self.target
        # fits of a view follow each other, so that few views are in memory
        vectors = lru_cache(maxsize=2)(lambda name: load(data.path, name, level=data.level).X)
        tasks = [
            partial(self._fit_fold, vectors, name, control, train, test)
            for name in names
            for train, test in self.folds
        ]
        done, part = side_by_side(tasks, progress=progress)
        count = len(self.folds)
        results: dict[str, list[_FoldResult]] = {
            name: done[i * count : (i + 1) * count] for i, name in enumerate(names)
        }
        best = [max(names, key=lambda n: results[n][f].inner_score) for f in range(count)]
        chosen = [results[name][fold] for fold, name in enumerate(best)]
        about: dict[str, Any] = {"records": split, "ids": data.ids, "target": target}
        predictions = Predictions.joined(
            [
                Predictions.of_fold(test, one.proba, fold=fold, **about)
                for fold, ((_, test), one) in enumerate(zip(self.folds, chosen, strict=True))
            ]
        )
        order = np.argsort(np.concatenate([test for _, test in self.folds]))
        sets = target.separator is not None
        outputs = {
            name: decide(np.concatenate([fold.proba for fold in folds])[order], sets=sets)
            for name, folds in results.items()
        }
        cost = Cost(
            fit_seconds=part * sum(one.fit_seconds for one in done),
            predict_seconds=part * sum(one.predict_seconds for one in chosen),
        )
        views = tuple(self._view_score(n, results[n], control, best.count(n)) for n in names)
        return views, replace(predictions, views=outputs), cost

    def _fit_fold(
        self,
        vectors: Callable[[str], Float32],
        name: str,
        control: Target,
        train: Int64,
        test: Int64,
    ) -> _FoldResult:
        X, target = vectors(name), self.target
        started = time.perf_counter()
        fitted = fit(X, target, self.split, train, self.settings, tune=True)
        trained = time.perf_counter()
        proba = predict_proba(fitted.pipeline, X[test], target)
        predicted = time.perf_counter()
        before = fitted.pipeline[:-1]
        # the same probe: regularisation as for the task
        again = clone(fitted.pipeline[-1]).fit(before.transform(X[train]), control.y[train])
        random = predict_proba(again, before.transform(X[test]), control)
        curve = []
        order = growing_order(train, target, seed=self.settings.seed)
        fewest = max(len(np.unique(target.y[train])) if target.classes else 0, 2)
        for fraction in self.curve[:-1]:  # each set of training records lies within the next
            few = np.sort(order[: max(fewest, round(fraction * len(train)))])
            curve.append(self._fit_and_predict(X, few, test))
        times = trained - started, predicted - trained
        return _FoldResult(fitted.choice.score, proba, *times, random, (*curve, proba))

    def _fit_and_predict(self, X: Float32, train: Int64, test: Int64) -> Float64:
        fitted = fit(X, self.target, self.split, train, self.settings, tune=True)
        return predict_proba(fitted.pipeline, X[test], self.target)

    def _view_score(
        self, name: str, folds: Sequence[_FoldResult], control: Target, chosen: int
    ) -> ViewScore:
        score = self.score([fold.proba for fold in folds])
        random = self.score([fold.control for fold in folds], control, intervals=False).value
        size = np.mean([len(train) for train, _ in self.folds])
        curve = tuple(
            (round(fraction * size), self.score([fold.curve[i] for fold in folds]))
            for i, fraction in enumerate(self.curve)
        )
        return ViewScore(name, score, random, score.value - random, chosen, curve)

    def random_encoders(
        self, names: Sequence[str], progress: ProgressCallback
    ) -> dict[str, tuple[float, ...]]:
        """Return scores of the views by encoders of the same architecture, never trained."""
        scores: dict[str, tuple[float, ...]] = {}
        step = steps(progress, "never trained", len(names) * _UNTRAINED, "views")
        for number in range(_UNTRAINED):
            progress(Progress("encoding at random", 0, None, "texts"))
            seed = self.settings.seed + number
            for name, X in encode_at_random(self.data, names, seed).items():
                folds, _ = side_by_side(
                    [partial(self._fit_and_predict, X, *fold) for fold in self.folds]
                )
                score = self.score(folds, intervals=False).value
                scores[name] = (*scores.get(name, ()), score)
                step()
        return scores

    def score(
        self, folds: Sequence[Float64], target: Target | None = None, *, intervals: bool = True
    ) -> Score:
        """Return the score of predictions for the held-out records of every fold."""
        index, output = np.concatenate([test for _, test in self.folds]), np.concatenate(folds)
        order = np.argsort(index)
        index, output = index[order], output[order]
        y = (target or self.target).y[index]
        metric = metrics_for(y, output, beta=beta_of(self.metric))[self.metric]
        if not intervals:
            return Score(metric.value(len(y)), np.nan, np.nan)
        group = self.split.group[index]
        return scored({"": metric}, group, seed=self.settings.seed)[""]


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


def encode_at_random(data: VectorData, names: Sequence[str], seed: int) -> dict[str, Float32]:
    """Return views of the stored texts by the same architecture with freshly initialised tensors.

    The pooler is left out.
    """
    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.model import PlainModel

    texts = stored_texts(records_of_words(data))
    if texts is None or data.manifest.job.input.text_pair:
        raise UsageError(
            "control='random-weights' encodes the stored texts again, and this dataset has none "
            "or has pairs."
        )
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
    if data.level == "sentence":
        return encode.views(texts)
    words = encode.words(texts, spans=word_spans_of(data))
    return {f"layer_{name}": layer for name, layer in words.vectors.items()}


def randomize(module: Any, seed: int) -> None:
    """Replace every tensor of a transformers model by that of a newly initialised one."""
    import torch

    torch.manual_seed(seed)
    fresh = type(module)(module.config).to(next(module.parameters()).dtype)
    missing = module.load_state_dict(fresh.state_dict(), strict=False).missing_keys
    if missing:
        raise RuntimeError(f"{missing[0]} would keep its trained values")
