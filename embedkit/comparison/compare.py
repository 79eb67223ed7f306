"""Compare runs: metrics, paired differences, significance and cost.

All runs have the same split, so that every difference is paired: bootstrap samples draw the same
records for all of them, and McNemar's test counts the records that only one of two predicts
correctly. Rows are ordered by out-of-fold predictions; a test set is scored beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from embedkit.choices import BLENDS, check_choice
from embedkit.comparison.blend import Blend, blend
from embedkit.comparison.load import LoadedRun, RunSet, read_runs
from embedkit.comparison.texts import Dataset, find_datasets
from embedkit.errors import UsageError, did_you_mean
from embedkit.runs.metrics import (
    SAMPLES,
    Metric,
    Score,
    bootstrap_weights,
    calibration_error,
    classification_metrics,
    interval,
    regression_metrics,
)
from embedkit.runs.predictions import Predictions
from embedkit.types import Float64, Int64

__all__ = [
    "LOWER_IS_BETTER",
    "MAJORITY",
    "Compared",
    "Comparison",
    "Cost",
    "Difference",
    "Row",
    "compare",
    "holm",
    "mcnemar",
]

MAJORITY = "majority"
"""Name of the baseline that predicts by class frequencies alone."""

LOWER_IS_BETTER = ("log_loss", "brier", "calibration_error", "rmse")


@dataclass(frozen=True, slots=True)
class Difference:
    """One method against another on the same records.

    Attributes:
        value: this method's score less the other's, on the table's metric.
        low: lower end of the 95 % interval of the paired bootstrap.
        high: its upper end.
        only_this: records that only this method predicts correctly, in the first repeat.
        only_other: records that only the other predicts correctly.
        p: McNemar's exact p of these two counts; ``None`` for values.
        p_corrected: the same after Holm's correction for all tests of the table.
    """

    value: float
    low: float
    high: float
    only_this: int
    only_other: int
    p: float | None
    p_corrected: float | None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run cost.

    Attributes:
        fit_seconds: seconds to fit all folds.
        predict_seconds: seconds per 1,000 predictions, from the features of the estimator.
        encode_seconds: seconds per 1,000 records to make the vectors; ``None`` where the
            features are texts, or where it is not known.
        peak_memory_bytes: most memory of the process that made the run.
        parameters: numbers that were fitted.
        size_bytes: of the run's ``model`` folder, the encoder of frozen vectors not counted.
        device: where it ran.
    """

    fit_seconds: float | None
    predict_seconds: float | None
    encode_seconds: float | None
    peak_memory_bytes: int | None
    parameters: int | None
    size_bytes: int
    device: str


@dataclass(frozen=True, slots=True)
class Row:
    """One method.

    Attributes:
        name: of the method.
        kind: ``frozen``, ``finetuned``, ``blend`` or ``majority``.
        path: folder of the run; ``None`` for what is made here.
        scores: by name, on out-of-fold predictions.
        test: the same on the test set; empty without one, or without its labels.
        to_best: against the best row; ``None`` in the best row itself.
        to_baseline: against the baseline; ``None`` in the baseline itself.
        cost: ``None`` for what is made here.
    """

    name: str
    kind: str
    path: str | None
    scores: dict[str, Score]
    test: dict[str, Score]
    to_best: Difference | None
    to_baseline: Difference | None
    cost: Cost | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The numbers of a comparison.

    Attributes:
        metric: metric that the rows are sorted by.
        best: name of the first row.
        baseline: name of the row that others are compared with.
        tests: number of tests that Holm's correction was made for.
        records: number of records in folds and in the test set.
        rows: best first.
        names: of the runs, in the order of ``agreement``.
        agreement: fraction of records for which two runs predict the same class; empty for values.
    """

    metric: str
    best: str
    baseline: str
    tests: int
    records: dict[str, int]
    rows: tuple[Row, ...]
    names: tuple[str, ...]
    agreement: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """A comparison with what it was made from.

    Attributes:
        table: its numbers.
        runs: the runs and probes.
        datasets: what they were made from, as far as it is still there.
        blends: by kind; empty where there is one run only.
        predictions: of every row, by name.
    """

    table: Comparison
    runs: RunSet
    datasets: tuple[Dataset, ...]
    blends: dict[str, Blend]
    predictions: dict[str, Predictions]

    def chosen_blend(self, kind: str) -> Blend:
        """A blend by its kind.

        Raises:
            UsageError: there is one run only, or the kind is unknown.
        """
        if not self.blends:
            raise UsageError("one run cannot be blended. Give two or more.")
        check_choice(BLENDS, blend=kind)
        return self.blends[kind]


def compare(
    runs: Sequence[str | Path],
    *,
    baseline: str | None = None,
    metric: str | None = None,
    seed: int = 0,
    samples: int = SAMPLES,
) -> Compared:
    """Compare runs that were made under one split.

    Args:
        runs: folders that ``train`` or ``finetune`` wrote; those of ``probe`` are carried along.
        baseline: name of a run, or ``majority``; by default the first run on TF-IDF, else
            ``majority``.
        metric: metric to sort by; by default accuracy, of values the root mean squared error.
        seed: of the bootstrap.
        samples: number of bootstrap samples.

    Raises:
        UsageError: a run, name or metric does not exist.
        MismatchError: the runs are not of one split, corpus and label.

    Example:
        >>> found = embedkit.compare(["runs/logreg"], metric="macro_f1")
        >>> found.table.metric, [row.name for row in found.table.rows if row.kind != "majority"]
        ('macro_f1', ['logreg'])
    """
    opened = read_runs(runs)
    records = opened.records
    metric = _metric(metric, records)
    predictions = {run.name: run.predictions for run in opened.runs}
    blends: dict[str, Blend] = {}
    if len(opened.runs) > 1:
        thresholds = any(run.content.threshold is not None for run in opened.runs)
        blends = {kind: blend(kind, list(predictions.values()), choose_threshold=thresholds)
                  for kind in BLENDS}  # fmt: skip
    predictions |= {made.name: made.predictions for made in blends.values()}
    predictions[MAJORITY] = records.majority()
    if len(predictions) != len(opened.runs) + len(blends) + 1:
        raise UsageError(f"a run has the reserved name {MAJORITY!r} or that of a blend. "
                         "Rename its folder.")  # fmt: skip
    chosen = _baseline(baseline, opened.runs)
    table = _Table(records, predictions, metric, seed, samples)
    datasets = find_datasets(opened.all)
    encoding = {d.manifest.fingerprint: d.encode_seconds for d in datasets}
    rows = table.rows(opened.runs, chosen, encoding)
    first = records.first_repeat
    y_pred = [run.predictions.y_pred[first] for run in opened.runs] if records.classes else []
    agreement = tuple(tuple(float((a == b).mean()) for b in y_pred) for a in y_pred)
    counts = {"folds": len(first), "test": len(records.test)}
    return Compared(
        Comparison(
            metric, rows[0].name, chosen, table.tests, counts, rows,
            tuple(run.name for run in opened.runs), agreement,
        ),
        opened, datasets, blends, predictions,
    )  # fmt: skip


def mcnemar(only_this: int, only_other: int) -> float:
    """Two-sided exact p of McNemar's test from the two counts of discordant records."""
    from scipy.stats import binomtest

    count = only_this + only_other
    return float(binomtest(only_this, count, 0.5).pvalue) if count else 1.0


def holm(p: Sequence[float]) -> list[float]:
    """Holm's correction: p values that keep the chance of any false alarm at their level."""
    corrected = [0.0] * len(p)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        highest = max(highest, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = highest
    return corrected


class _Table:
    """Scores and differences of all methods from the same bootstrap samples."""

    def __init__(
        self,
        records: Predictions,
        predictions: Mapping[str, Predictions],
        metric: str,
        seed: int,
        samples: int,
    ) -> None:
        self._records, self._predictions, self._metric = records, predictions, metric
        self.tests = 0
        self.scores, self._drawn = self._score(records.out_of_fold, seed, samples)
        self._test = {name: dict[str, Score]() for name in predictions}
        if len(records.scored_test):
            self._test, _ = self._score(records.scored_test, seed, samples)

    def rows(
        self, runs: Sequence[LoadedRun], baseline: str, encoding: Mapping[str, float | None]
    ) -> tuple[Row, ...]:
        sign = 1 if self._metric in LOWER_IS_BETTER else -1
        value = {name: sign * found[self._metric].value for name, found in self.scores.items()}
        names = sorted(value, key=lambda n: (np.isnan(value[n]), value[n]))
        pairs = {(name, names[0]): self._difference(name, names[0]) for name in names[1:]}
        pairs |= {(n, baseline): self._difference(n, baseline) for n in names if n != baseline}
        pairs = self._corrected(pairs)
        by_name = {run.name: run for run in runs}
        return tuple(
            Row(
                name, _kind(name, by_name), str(by_name[name].path) if name in by_name else None,
                self.scores[name], self._test[name], pairs.get((name, names[0])),
                pairs.get((name, baseline)),
                _cost(by_name[name], self._records, encoding) if name in by_name else None,
            )
            for name in names
        )  # fmt: skip

    def _score(
        self, index: Int64, seed: int, samples: int
    ) -> tuple[dict[str, dict[str, Score]], dict[str, Float64]]:
        """Scores on some predictions, and the table's metric in every bootstrap sample."""
        rows, record = np.unique(self._records.row[index], return_inverse=True)
        metrics = {name: self._metrics(predictions.take(index))
                   for name, predictions in self._predictions.items()}  # fmt: skip
        found = {name: {m: np.empty(samples) for m in of} for name, of in metrics.items()}
        start = 0
        for drawn in bootstrap_weights(len(rows), seed, samples):
            weights = drawn[:, record]  # a record is drawn with its predictions of all repeats
            subset = slice(start, start := start + len(weights))
            for name, of in metrics.items():
                for m, metric in of.items():
                    found[name][m][subset] = metric(weights)
        whole = np.ones((1, len(index)))
        scores = {
            name: {
                m: _interval(m, float(metric(whole)[0]), found[name][m]) for m, metric in of.items()
            }
            for name, of in metrics.items()
        }
        return scores, {name: of[self._metric] for name, of in found.items()}

    def _metrics(self, p: Predictions) -> dict[str, Metric]:
        if not p.classes:
            return regression_metrics(p.y, p.proba)
        metrics = classification_metrics(p.y, p.proba, p.y_pred)
        return metrics | {"calibration_error": calibration_error(p.y, p.proba)}

    def _difference(self, name: str, other: str) -> Difference:
        here, there = self.scores[name][self._metric], self.scores[other][self._metric]
        drawn = self._drawn[name] - self._drawn[other]
        low, high = interval(drawn)
        value = here.value - there.value
        if not self._records.classes:
            return Difference(value, low, high, 0, 0, None, None)
        first = self._records.first_repeat
        right, their = (
            self._predictions[n].y_pred[first] == self._records.y[first] for n in (name, other)
        )
        counts = int((right & ~their).sum()), int((their & ~right).sum())
        return Difference(value, low, high, *counts, mcnemar(*counts), None)

    def _corrected(
        self, pairs: dict[tuple[str, str], Difference]
    ) -> dict[tuple[str, str], Difference]:
        """Correct for all tests; best against baseline and the reverse is one test."""
        tests = {frozenset(pair): d.p for pair, d in pairs.items() if d.p is not None}
        self.tests = len(tests)
        corrected = dict(zip(tests, holm([p for p in tests.values() if p is not None]),
                             strict=True))  # fmt: skip
        return {
            pair: replace(d, p_corrected=corrected.get(frozenset(pair)))
            for pair, d in pairs.items()
        }


def _interval(name: str, value: float, drawn: Float64) -> Score:
    """Percentiles of the samples; those of the calibration error are moved to its value.

    Drawing records anew adds noise to every bin, which only ever lengthens its distance.
    """
    low, high = interval(drawn)
    if name == "calibration_error" and len(drawn):
        excess = float(drawn.mean()) - value
        low, high = max(0.0, low - excess), high - excess
    return Score(value, low, high)


def _metric(asked: str | None, records: Predictions) -> str:
    known = ["accuracy", "macro_f1", "log_loss", "brier", "calibration_error"]
    if len(records.classes) == 2:
        known += ["roc_auc", "average_precision"]
    if not records.classes:
        known = ["rmse", "r2", "spearman"]
    if asked is not None:
        check_choice(known, metric=asked)
    return asked or known[0]


def _baseline(asked: str | None, runs: Sequence[LoadedRun]) -> str:
    names = [*(run.name for run in runs), MAJORITY]
    if asked is None:
        tfidf = [run.name for run in runs if run.content.features == "tfidf"]
        return tfidf[0] if tfidf else MAJORITY
    if asked in names:
        return asked
    for run in runs:
        if run.path.resolve() == Path(asked).resolve():
            return run.name
    raise UsageError(
        f"baseline={asked!r}: expected one of {', '.join(names)}.{did_you_mean(asked, names)}"
    )


def _kind(name: str, runs: Mapping[str, LoadedRun]) -> str:
    if name in runs:
        return runs[name].content.kind
    return "majority" if name == MAJORITY else "blend"


def _cost(run: LoadedRun, records: Predictions, encoding: Mapping[str, float | None]) -> Cost:
    content = run.content
    cost, predict = content.cost, content.cost.predict_seconds
    files = [p for p in (run.path / "model").rglob("*") if p.is_file()]
    return Cost(
        fit_seconds=cost.fit_seconds,
        predict_seconds=None if predict is None else predict / len(records.out_of_fold) * 1_000,
        encode_seconds=encoding.get(content.dataset.fingerprint) if content.views else None,
        peak_memory_bytes=cost.peak_memory_bytes,
        parameters=cost.parameters,
        size_bytes=sum(p.stat().st_size for p in files),
        device=cost.device,
    )
