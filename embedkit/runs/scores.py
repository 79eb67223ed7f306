"""Scores of predictions: which metrics are reported, and for which parts of the records.

    Predictions ─┬─ cross_validation: held-out records ─┐
                 └─ test: those that have labels        ├─ metric ─ score, interval, majority
    Predictions.majority(), for the same records ───────┘

The majority is asked before records are left out: its class frequencies are those of the records
of all folds, not of the ones that happen to be scored.

One metric stands here and not in :mod:`embedkit.runs.metrics`, since only words have it: the F1 of
whole entities, which are runs of tags and not single labels (:func:`entity_f1`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np

from embedkit.runs.intervals import Estimate, Metric, estimates
from embedkit.runs.metrics import beta_of, metrics_for, ratio
from embedkit.runs.predictions import Predictions
from embedkit.runs.run import ClassScore, PredictionRun, ReportedScore
from embedkit.types import Bool, Float64, Int64
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
    if p.of_words and tags_entities(p.classes):
        # words are ordered by record, and an entity ends with its record
        first = np.diff(p.row, prepend=-1) != 0
        metrics["entity_f1"] = Metric(entity_f1(p.y, p.y_pred, p.classes, first))
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
        scored = estimates(metrics_of(subset, beta=beta), subset.group)
        metrics = metrics_of(baseline.take(index), beta=beta, baseline=True)
        guessed = estimates(metrics, subset.group)
        reported[name] = {metric: beside(scored[metric], guessed[metric]) for metric in scored}
    return reported


def beside(estimate: Estimate, majority: Estimate) -> ReportedScore:
    """Return a metric with its interval, beside that of the baseline on the same records."""
    test = estimate.less(majority)
    return ReportedScore(**asdict(estimate.score), majority=majority.value, p=test.p)


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


def tags_entities(classes: Sequence[str]) -> bool:
    """Return whether the classes are tags of entities."""
    prefixes = {name[:2] for name in classes}
    return bool({"B-", "I-"} & prefixes) and prefixes <= {"O", *(f"{c}-" for c in "BIESLU")}


def entity_f1(
    y: Int64, predicted: Int64, classes: Sequence[str], first: Bool
) -> Callable[[Float64], Float64]:
    """Return the F1 of whole entities by the weights of words, as seqeval counts them.

    Words have the tags ``O``, ``B-…`` and ``I-…``; others may mark the last word of an entity, by
    ``E`` (or ``L``), and its only one, by ``S`` (or ``U``). An entity begins with ``B``, or with
    ``I`` after another kind, is right if its first word, its last word and its kind are, and has
    the weight of its first word. ``first`` ``(n,)`` are the words that begin a text.
    """
    # PER for both B-PER and I-PER, and an empty kind for O
    kinds = np.unique([name.partition("-")[2] for name in classes], return_inverse=True)[1]
    begins = np.array([name[0] in "BSU" for name in classes])
    ends = np.array([name[0] in "ESLU" for name in classes])
    tagged = np.array([name != "O" for name in classes])

    def spans(tags: Int64) -> tuple[Bool, Int64]:
        """First words of entities as a mask, and the last word of the entity of each word."""
        inside, kind = tagged[tags], kinds[tags]
        # an I opens an entity at the start of a text, behind an O, another kind (-1 is none), and
        # the last word of an entity
        new = first | ~np.append(False, inside[:-1]) | (kind != np.append(-1, kind[:-1]))
        new |= np.append(False, ends[tags][:-1])
        start = inside & (begins[tags] | new)
        # a word is the last one unless the next word goes on inside of the same entity
        last = np.flatnonzero(~np.append((inside & ~start)[1:], False))
        return start, last[np.searchsorted(last, np.arange(len(tags)))]

    # (n,) masks of the words that begin an entity: metrics are sums over words, weighted as all
    # others are
    (true, true_end), (said, said_end) = spans(y), spans(predicted)
    right = true & said & (kinds[y] == kinds[predicted]) & (true_end == said_end)
    return lambda weights: ratio(2 * (weights @ right), weights @ true + weights @ said)
