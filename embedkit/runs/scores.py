"""Scores of predictions: which metrics are reported, and for which parts of the records.

    Predictions ─┬─ cross_validation: held-out records ─┐
                 └─ test: those that have labels        ├─ metric ─ score, interval, majority
    Predictions.majority(), for the same records ───────┘

The majority is asked before records are left out: its class frequencies are those of the records
of all folds, not of the ones that happen to be scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from embedkit.runs.intervals import Key, Metric, influences, paired, scored
from embedkit.runs.metrics import Entities, beta_of, metrics_for
from embedkit.runs.predictions import Predictions
from embedkit.runs.run import ClassScore, PredictionRun, ReportedScore
from embedkit.types import Int64
from embedkit.units.target import float_of

_UNEVEN = 0.8  # share of the largest class


def metrics_of(
    p: Predictions, *, beta: float | None = None, baseline: bool = False
) -> dict[str, Metric]:
    """Return the metrics of labelled predictions as functions of weights.

    With ``beta`` F-beta of the second of two classes is one of them. The ``baseline`` has that of
    predicting the second class for every record, the best that is possible without looking; and
    correlations of 0, which a constant has not, but which say as much.
    """
    ordinal = not p.of_sets and all(np.isfinite(float_of(name)) for name in p.classes)
    metrics = metrics_for(p.y, p.proba, p.y_pred, beta=beta, ordinal=ordinal)
    if baseline and len(p.classes) == 2:
        # the majority class is mostly the first, whose F-beta of the second is 0: no baseline at
        # all
        positive = metrics_for(p.y, p.proba, np.ones_like(p.y_pred), beta=beta)
        metrics |= {name: positive[name] for name in metrics if beta_of(name)}
    if baseline and not p.classes and np.ptp(p.y):
        zero = {n: metrics[n]._replace(of=lambda w: w[:, 0] * 0) for n in ("pearson", "spearman")}
        metrics |= zero
    if p.of_words and Entities.known_by(p.classes):
        # words are ordered by record, and an entity ends with its record
        first = np.diff(p.row, prepend=-1) != 0
        metrics["entity_f1"] = Metric(Entities(p.y, p.y_pred, p.classes, first).f1)
    return metrics


def constant_text(metric: str, classes: Sequence[str], *, sets: bool = False) -> str:
    """Name the baseline that knows only the labels, which is another one for F-beta.

    >>> constant_text("accuracy", ["ham", "spam"]), constant_text("f2", ["ham", "spam"])
    ('the majority class', 'the class spam for all')
    """
    if sets:
        return "the best constant set"
    if beta_of(metric) and len(classes) == 2:  # as metrics_of
        return f"the class {classes[1]} for all"
    return "the majority class" if classes else "the mean of the values"


def headline_metric(runs: Sequence[PredictionRun], support: Sequence[int] | Int64) -> str:
    """Return the metric that classifiers are judged by, for ``support`` records of each class.

    It is the one that all of them chose their thresholds by; else accuracy, but macro-F1 if one
    class has more than 80 % of the records, so that always predicting it looks good, or if classes
    were weighted.
    """
    if any(run.task == "multilabel" for run in runs):
        return "micro_f1"
    by_threshold = {run.threshold_metric for run in runs}
    # a set with None alone says that no run chose a threshold
    if len(by_threshold) == 1 and (metric := by_threshold.pop()):
        return metric
    weighted = any(run.settings.get("class_weight") for run in runs)
    uneven = max(support) > _UNEVEN * sum(support)
    return "macro_f1" if weighted or uneven else "accuracy"


def reported_scores(
    predictions: Predictions, *, beta: float | None = None, prior: Sequence[float] = ()
) -> dict[str, dict[str, ReportedScore]]:
    """Return scores by subset (``cross_validation``, ``test``) and metric, beside the baseline's.

    ``prior`` is as for :meth:`~embedkit.runs.predictions.Predictions.majority`.
    """
    # before records are left out: its frequencies are of all training records
    baseline = predictions.majority(prior)
    reported = {}
    for name, index in _scored_subsets(predictions).items():
        subset = predictions.take(index)
        majority = metrics_of(baseline.take(index), beta=beta, baseline=True)
        reported[name] = beside(majority, metrics_of(subset, beta=beta), subset.group)
    return reported


def beside(
    majority: Mapping[Key, Metric], metrics: Mapping[Key, Metric], unit: Int64
) -> dict[Key, ReportedScore]:
    """Return metrics with their intervals, each beside the baseline's on the same records.

    ``unit`` ``(n,)`` is the sampling unit of each record. Blocks of many units are always of the
    same seed, so that every command has the same interval.
    """
    moved, guessed = influences(metrics, unit), influences(majority, unit)
    scores = scored(metrics, unit, moved)
    reported = {}
    for name, score in scores.items():
        test = paired(metrics[name], majority[name], unit=unit, moved=[moved[name], guessed[name]])
        value = majority[name].value(len(unit))
        reported[name] = ReportedScore(**asdict(score), majority=value, p=test.p)
    return reported


def class_scores(predictions: Predictions) -> dict[str, tuple[ClassScore, ...]]:
    """Return precision, recall, F1 and support by subset and class; empty for a regression."""
    subsets = _scored_subsets(predictions) if predictions.classes else {}
    return {name: scores_by_class(predictions.take(index)) for name, index in subsets.items()}


def scores_by_class(p: Predictions) -> tuple[ClassScore, ...]:
    """Return precision, recall, F1 and support of every class, in the order of the classes."""
    from sklearn.metrics import precision_recall_fscore_support

    # all classes, also those that these records lack: rows are joined by place
    columns = precision_recall_fscore_support(
        p.y, p.y_pred, labels=range(len(p.classes)), zero_division=0
    )
    return tuple(
        ClassScore(label, float(precision), float(recall), float(f1), int(support))
        for label, precision, recall, f1, support in zip(p.classes, *columns, strict=True)
    )


def _scored_subsets(predictions: Predictions) -> dict[str, Int64]:
    subsets = {"cross_validation": predictions.out_of_fold, "test": predictions.scored_test}
    return {name: index for name, index in subsets.items() if len(index)}
