"""Compare runs: metrics, paired differences, significance and cost.

All runs have the same split, so that every difference is paired, and the units of all methods are
the same (:mod:`embedkit.runs.resampling`). Rows are ordered by out-of-fold
predictions; a test set decides nothing and has tests of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from pathlib import Path

import numpy as np

from embedkit import fsio
from embedkit.choices import BEST_BLEND, BLENDS, check_choice
from embedkit.comparison.blend import Blend, blend
from embedkit.comparison.inputs import InputDifference, input_differences
from embedkit.comparison.load import LoadedRun, RunSet, read_runs
from embedkit.comparison.seeds import SeedSpread, seed_spreads
from embedkit.comparison.texts import Dataset, find_datasets
from embedkit.errors import UsageError, did_you_mean
from embedkit.runs.metrics import LOWER_IS_BETTER, Score, Threshold, beta_of
from embedkit.runs.predictions import Predictions, metrics_of
from embedkit.runs.resampling import (
    corrected_resampled_t,
    difference_interval,
    holm,
    influences,
    mcnemar,
    paired_tests,
    scored,
    unit_count,
)
from embedkit.types import Int64, ProgressCallback, no_progress, steps

__all__ = [
    "MAJORITY",
    "Compared",
    "Comparison",
    "Cost",
    "Difference",
    "Row",
    "compare",
]

MAJORITY = "majority"
"""Name of the baseline that predicts by class frequencies alone."""

_SHOWN = ("accuracy", "macro_f1", "log_loss", "brier", "calibration_error", "roc_auc",
          "average_precision")  # fmt: skip
_SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True)
class Difference:
    """One method against another on the same records, in the table's metric.

    Attributes:
        value: this method's score less the other's.
        low: lower end of the 95 % interval.
        high: its upper end.
        p: of the paired test of the metric; ``None`` where a score is undefined.
        p_corrected: the same, corrected for all comparisons of the table.
        p_repeats: of the corrected resampled t-test over the folds of a repeated split, with
            Holm's correction; ``None`` without repeats.
        only_this: records that only this method predicts correctly, in the first repeat.
        only_other: records that only the other predicts correctly.
        mcnemar: McNemar's exact p of these two counts, not corrected; ``None`` unless the metric
            is accuracy and every record is a unit of its own.
    """

    value: float
    low: float
    high: float
    p: float | None = None
    p_corrected: float | None = None
    p_repeats: float | None = None
    only_this: int = 0
    only_other: int = 0
    mcnemar: float | None = None

    @property
    def significant(self) -> bool:
        """Whether all corrected p are below 0.05; without a test nothing is."""
        found = [p for p in (self.p_corrected, self.p_repeats) if p is not None]
        return self.p_corrected is not None and max(found) < _SIGNIFICANT


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
        scores: by name, on out-of-fold predictions. The calibration error of the majority is NaN:
            the frequencies of the classes are right on average by construction.
        test: the same on the test set; empty without one, or without its labels.
        to_best: against the best row; ``None`` in the best row itself.
        to_baseline: against the baseline; ``None`` in the baseline itself.
        test_to_best: as ``to_best``, on the test set; ``None`` without its labels.
        test_to_baseline: as ``to_baseline``, on the test set.
        cost: ``None`` for what is made here.
    """

    name: str
    kind: str
    path: str | None
    scores: dict[str, Score]
    test: dict[str, Score]
    to_best: Difference | None
    to_baseline: Difference | None
    test_to_best: Difference | None
    test_to_baseline: Difference | None
    cost: Cost | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The numbers of a comparison.

    Attributes:
        metric: metric that the rows are sorted by.
        best: name of the first row.
        baseline: name of the row that others are compared with.
        tests: number of comparisons that p is corrected for: all pairs of runs and blends.
        records: number of records in folds and in the test set.
        units: number of units in folds and in the test set: groups, texts or records.
        rows: best first.
        names: of the runs, in the order of ``agreement``.
        agreement: fraction of records for which two runs predict the same class; empty for values.
        inputs: settings of the input that are not the same in all runs and probes.
        seeds: scores of every seed of runs with several.
        level: what the runs label: ``sentence`` (records) or ``word``. Of words all that is said of
            records is said of words, and of texts what they cost.
    """

    metric: str
    best: str
    baseline: str
    tests: int
    records: dict[str, int]
    units: dict[str, int]
    rows: tuple[Row, ...]
    names: tuple[str, ...]
    agreement: tuple[tuple[float, ...], ...]
    inputs: tuple[InputDifference, ...]
    seeds: tuple[SeedSpread, ...]
    level: str = "sentence"


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """A comparison with what it was made from.

    Attributes:
        table: its numbers.
        runs: the runs and probes.
        datasets: what they were made from, as far as it is still there.
        blends: by kind; empty where there is one run only. One that is not cross-fitted has no
            row.
        predictions: of every row, by name.
        differences: of every two rows on out-of-fold predictions, by their names.
    """

    table: Comparison
    runs: RunSet
    datasets: tuple[Dataset, ...]
    blends: dict[str, Blend]
    predictions: dict[str, Predictions]
    differences: dict[tuple[str, str], Difference]

    def chosen_blend(self, kind: str) -> Blend:
        """A blend by its kind; ``best`` is the one with the best score of the table's metric.

        Raises:
            UsageError: there is one run only, or the kind is unknown.
        """
        if not self.blends:
            raise UsageError("one run cannot be blended. Give two or more.")
        if kind == BEST_BLEND:
            best = next(row.name for row in self.table.rows if row.kind == "blend")
            return next(made for made in self.blends.values() if made.name == best)
        check_choice(BLENDS, blend=kind)
        return self.blends[kind]


def compare(
    runs: Sequence[str | Path],
    *,
    baseline: str | None = None,
    metric: str | None = None,
    seed: int = 0,
    progress: ProgressCallback = no_progress,
) -> Compared:
    """Compare runs that were made under one split.

    Args:
        runs: folders that ``train`` or ``finetune`` wrote; those of ``probe`` are carried along.
        baseline: name of a run, or ``majority``; by default the first run on TF-IDF, else
            ``majority``.
        metric: metric to sort and test by, such as ``log_loss`` or ``f2``; by default that by which
            all runs chose their thresholds, else accuracy, of values the root mean squared error.
        seed: of the signs of the tests.
        progress: called after every run, method and pair.

    Raises:
        UsageError: a run, name or metric does not exist.
        MismatchError: the runs are not of one split, corpus and label.

    Example:
        >>> found = embedkit.compare(["runs/logreg"], metric="macro_f1")
        >>> found.table.metric, [row.name for row in found.table.rows if row.kind != "majority"]
        ('macro_f1', ['logreg'])
    """
    opened = read_runs(runs, progress=progress)
    records, level = opened.records, opened.runs[0].content.level
    metric = _metric(metric, opened)
    predictions, blends = _predictions(opened, metric)
    chosen = _baseline(baseline, opened.runs)
    datasets = find_datasets(opened.all)
    encoding = {d.manifest.fingerprint: d.encode_seconds_of(level) for d in datasets}
    subsets = {"folds": records.out_of_fold, "test": records.scored_test}
    found = {
        name: _Subset(predictions, index, metric, seed, progress)
        for name, index in subsets.items() if len(index)
    }  # fmt: skip
    differences = _differences(found["folds"], chosen)
    rows = _rows(found["folds"], found.get("test"), differences, opened.runs, chosen, encoding)
    counts = {"folds": len(records.first_repeat), "test": len(records.test)}
    units = {name: len(np.unique(records.group[index])) for name, index in subsets.items()}
    return Compared(
        Comparison(
            metric, rows[0].name, chosen, len(found["folds"].pairs), counts, units, rows,
            tuple(run.name for run in opened.runs), _agreement(opened),
            input_differences(opened.all), seed_spreads(opened.runs, metric), level,
        ),
        opened, datasets, blends, predictions, differences,
    )  # fmt: skip


def _predictions(opened: RunSet, metric: str) -> tuple[dict[str, Predictions], dict[str, Blend]]:
    """Predictions of the runs, their blends and the majority by name; and the blends by kind."""
    found = {run.name: run.predictions for run in opened.runs}
    blends: dict[str, Blend] = {}
    if len(found) > 1:
        threshold = _blend_threshold(metric, opened.runs)
        blends = {kind: blend(kind, list(found.values()), threshold=threshold) for kind in BLENDS}
    made = {one.name: one.predictions for one in blends.values() if one.cross_fitted}
    if {*made, MAJORITY} & set(found):
        raise UsageError(f"a run has the reserved name {MAJORITY!r} or that of a blend. "
                         "Rename its folder.")  # fmt: skip
    return {**found, **made, MAJORITY: opened.records.majority()}, blends


def _agreement(opened: RunSet) -> tuple[tuple[float, ...], ...]:
    """Fraction of the records on which two runs decide alike, for all pairs; empty for values."""
    if not opened.records.classes:
        return ()
    first = opened.records.first_repeat
    y_pred = [run.predictions.y_pred[first] for run in opened.runs]
    return tuple(tuple(float((a == b).mean()) for b in y_pred) for a in y_pred)


class _Subset:
    """Scores of all methods on some records, and paired tests of one metric."""

    def __init__(
        self,
        predictions: Mapping[str, Predictions],
        index: Int64,
        metric: str,
        seed: int,
        progress: ProgressCallback,
    ) -> None:
        self._metric, self._seed, self._progress = metric, seed, progress
        self._found = {name: p.take(index) for name, p in predictions.items()}
        self._metrics = {
            name: metrics_of(p, beta=beta_of(metric), baseline=name == MAJORITY)
            for name, p in self._found.items()
        }
        self.names = list(predictions)
        self._records = self._found[self.names[0]]
        unit = self._records.group
        tested = {name: found[metric] for name, found in self._metrics.items()}
        self.scores: dict[str, dict[str, Score]] = {}
        step = steps(progress, "scoring", len(self.names), "methods")
        for name, known in self._metrics.items():
            wanted = {m: one for m, one in known.items()
                      if m in _SHOWN or m == metric or not self._records.classes}  # fmt: skip
            self.scores[name] = scored(wanted, unit, seed=seed)
            step()
        if metric != "calibration_error" in self.scores[MAJORITY]:  # it would say nothing
            self.scores[MAJORITY]["calibration_error"] = Score(*[float("nan")] * 3)
        found = influences(tested, unit, seed=seed)
        self._influence = np.stack([found[name] for name in self.names], axis=1)
        self._values = np.array([self.scores[name][metric].value for name in self.names])
        self._units = unit_count(unit)
        self._rests_on = tested[self.names[0]].units(unit, paired=True)
        self.pairs = list(combinations([n for n in self.names if n != MAJORITY], 2))
        p, first = self._records, self._records.repeat == self._records.repeat.min()
        self._single = len(np.unique(unit[first])) == first.sum()
        self._right = {name: one.y_pred[first] == p.y[first]
                       for name, one in self._found.items() if p.classes}  # fmt: skip

    def ordered(self) -> list[str]:
        """Names of the methods, best first; those without a score last."""
        sign = 1 if self._metric in LOWER_IS_BETTER else -1
        value = dict(zip(self.names, sign * self._values, strict=True))
        return sorted(self.names, key=lambda n: (np.isnan(value[n]), value[n]))

    def differences(
        self, pairs: Sequence[tuple[str, str]], families: Sequence[Sequence[tuple[str, str]]]
    ) -> dict[tuple[str, str], Difference]:
        """Differences of pairs; each family of pairs is corrected for on its own."""
        tests = {pair: found for family in families for pair, found in self._tests(family).items()}
        made = {}
        step = steps(self._progress, "comparing", len(pairs), "pairs")
        for pair in pairs:
            p, corrected, repeats = tests.get(frozenset(pair), (None, None, None))
            made[pair] = replace(
                self._difference(*pair), p=p, p_corrected=corrected, p_repeats=repeats
            )
            step()
        return made

    def _difference(self, name: str, other: str) -> Difference:
        one, two = self.names.index(name), self.names.index(other)
        value = float(self._values[one] - self._values[two])
        influence = self._influence[:, one] - self._influence[:, two]
        found = Difference(value, *difference_interval(value, influence))
        if not self._right:
            return found
        right, their = self._right[name], self._right[other]
        counts = int((right & ~their).sum()), int((their & ~right).sum())
        exact = mcnemar(*counts) if self._metric == "accuracy" and self._single else None
        return replace(found, only_this=counts[0], only_other=counts[1], mcnemar=exact)

    def _tests(
        self, family: Sequence[tuple[str, str]]
    ) -> dict[frozenset[str], tuple[float | None, ...]]:
        """Return p, corrected p and p over repeats of the pairs of a family."""
        if not family:
            return {}
        pairs = [(self.names.index(one), self.names.index(other)) for one, other in family]
        p, corrected = paired_tests(
            self._values, self._influence, pairs, units=self._units, rests_on=self._rests_on,
            seed=self._seed,
        )  # fmt: skip
        return {
            frozenset(pair): tuple(None if np.isnan(one) else float(one) for one in found)
            for pair, *found in zip(family, p, corrected, self._repeats(pairs), strict=True)
        }

    def _repeats(self, pairs: Sequence[tuple[int, int]]) -> Sequence[float]:
        """Return p of the test over the folds of a repeated split; NaN without repeats."""
        p = self._records
        if not p.repeat.any():
            return [float("nan")] * len(pairs)
        folds = [test for _, test in p.folds()]
        values = np.array([[self._value(name, test) for name in self.names] for test in folds])
        fraction = len(folds[0]) / int((p.repeat == p.repeat[folds[0][0]]).sum())
        found = [corrected_resampled_t(values[:, a] - values[:, b], test_fraction=fraction)
                 for a, b in pairs]  # fmt: skip
        return holm([1.0 if np.isnan(one) else one for one in found])

    def _value(self, name: str, index: Int64) -> float:
        p = self._found[name].take(index)
        found = metrics_of(p, beta=beta_of(self._metric), baseline=name == MAJORITY)
        return found[self._metric].value(len(index))


def _differences(folds: _Subset, baseline: str) -> dict[tuple[str, str], Difference]:
    """Return the differences of all ordered pairs of methods on out-of-fold predictions.

    They choose the best, so that all pairs are corrected for. The majority is no competitor: a
    family of its own, where it is the baseline or the best.
    """
    best = folds.ordered()[0]
    competes = MAJORITY in (best, baseline)
    majority = [(n, MAJORITY) for n in folds.names if n != MAJORITY and competes]
    return folds.differences(list(permutations(folds.names, 2)), [folds.pairs, majority])


def _rows(
    folds: _Subset, test: _Subset | None, found: Mapping[tuple[str, str], Difference],
    runs: Sequence[LoadedRun], baseline: str, encoding: Mapping[str, float | None],
) -> tuple[Row, ...]:  # fmt: skip
    """The methods, best first.

    On the test set, which chooses nothing, only the pairs that are shown are corrected for.
    """
    names = folds.ordered()
    best, by_name = names[0], {run.name: run for run in runs}
    to_best = [(name, best) for name in names[1:]]
    to_baseline = [(name, baseline) for name in names if name != baseline]
    pairs = [*to_best, *to_baseline]
    majority = [(n, MAJORITY) for n in names if n != MAJORITY and MAJORITY in (best, baseline)]
    methods = list({frozenset(pair): pair for pair in pairs if MAJORITY not in pair}.values())
    on_test = {} if test is None else test.differences(pairs, [methods, majority])
    return tuple(
        Row(
            name, _kind(name, by_name), str(by_name[name].path) if name in by_name else None,
            folds.scores[name], {} if test is None else test.scores[name],
            found.get((name, best)), found.get((name, baseline)),
            on_test.get((name, best)), on_test.get((name, baseline)),
            _cost(by_name[name], encoding) if name in by_name else None,
        )
        for name in names
    )  # fmt: skip


def _metric(asked: str | None, runs: RunSet) -> str:
    known = list(metrics_of(runs.records.take(runs.records.out_of_fold)))
    if asked is None:
        chosen = {run.content.threshold_metric for run in runs.runs}
        return (chosen.pop() if len(chosen) == 1 else None) or known[0]
    if beta_of(asked) is None or len(runs.records.classes) != 2:
        check_choice(known, metric=asked)
    return asked


def _blend_threshold(metric: str, runs: Sequence[LoadedRun]) -> Threshold | None:
    """How blends decide: by the metric asked for, else as the runs; ``None``: the likelier."""
    if beta_of(metric) is not None:
        return Threshold(None, beta_of(metric))
    if all(run.content.threshold is None for run in runs):
        return None
    if metric == "macro_f1":
        return Threshold(None, None)
    chosen = [name for run in runs if (name := run.content.threshold_metric)]
    return Threshold.parse(chosen[0] if chosen else "f1")


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


def _cost(run: LoadedRun, encoding: Mapping[str, float | None]) -> Cost:
    content = run.content
    cost, predict = content.cost, content.cost.predict_seconds
    count = len(run.predictions.out_of_fold)
    return Cost(
        fit_seconds=cost.fit_seconds,
        predict_seconds=None if predict is None else predict / count * 1_000,
        encode_seconds=encoding.get(content.dataset.fingerprint) if content.views else None,
        peak_memory_bytes=cost.peak_memory_bytes,
        parameters=cost.parameters,
        size_bytes=fsio.tree_bytes(run.path / "model"),
        device=cost.device,
    )
