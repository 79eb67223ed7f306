"""Which of several runs is better, by how much, how surely, and at what cost.

All runs stand on one split, so that every difference is taken record by record: bootstrap samples
draw the same records for all of them, and McNemar's test counts the records that only one of two
decides rightly. Out-of-fold predictions decide the order; a test part is scored beside them and
decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.comparison.blend import BLENDS, Blend, blend
from embedkit.comparison.load import Outcome, Records, Run, RunSet, read_runs
from embedkit.comparison.texts import Dataset, find_datasets
from embedkit.errors import UsageError, did_you_mean
from embedkit.runs.metrics import (
    SAMPLES,
    Measure,
    Score,
    calibration_error,
    classification_measures,
    draws,
    middle,
    regression_measures,
)

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

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MAJORITY = "majority"
"""Name of the row that knows only how frequent each label is."""

LOWER_IS_BETTER = ("log_loss", "brier", "calibration_error", "rmse")


@dataclass(frozen=True, slots=True)
class Difference:
    """One method against another on the same records.

    Attributes:
        value: this method's score less the other's, on the measure of the table.
        low: lower end of the 95 % interval of the paired bootstrap.
        high: its upper end.
        only_this: records that only this method decides rightly, in the first deal of the folds.
        only_other: records that only the other decides rightly.
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
        fit_seconds: to fit all folds.
        predict_seconds: per 1,000 predictions, from what the classifier is given.
        encode_seconds: per 1,000 records of making the vectors that the classifier is given;
            ``None`` where it is given texts, or where it is not known.
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
        test: the same on the test part; empty without one, or where nobody knows its labels.
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
        measure: score that the rows are sorted by.
        best: name of the first row.
        baseline: name of the row that others are compared with.
        tests: number of tests that Holm's correction was made for.
        records: number of records in folds and in the test part.
        rows: best first.
        names: of the runs, in the order of ``agreement``.
        agreement: share of records on which two runs decide the same; empty for values.
    """

    measure: str
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
        runs: the runs and their predictions.
        datasets: what they were made from, as far as it is still there.
        blends: by kind; empty where there is one run only.
        outcomes: predictions of every row, by name.
    """

    table: Comparison
    runs: RunSet
    datasets: tuple[Dataset, ...]
    blends: dict[str, Blend]
    outcomes: dict[str, Outcome]

    def chosen_blend(self, kind: str) -> Blend:
        """A blend by its kind.

        Raises:
            UsageError: there is one run only.
        """
        if not self.blends:
            raise UsageError("one run cannot be blended. Give two or more.")
        return self.blends[kind]


def compare(
    runs: Sequence[str | Path],
    *,
    baseline: str | None = None,
    measure: str | None = None,
    seed: int = 0,
    samples: int = SAMPLES,
) -> Compared:
    """Compare runs that were made under one split.

    Args:
        runs: folders that ``train`` or ``finetune`` wrote; those of ``probe`` are carried along.
        baseline: name of a run, or ``majority``; by default the first run on TF-IDF, else
            ``majority``.
        measure: score to sort by; by default accuracy, of values the root mean squared error.
        seed: of the bootstrap.
        samples: number of bootstrap samples.

    Raises:
        UsageError: a run, name or measure does not exist.
        MismatchError: the runs are not of one split, corpus and label.
    """
    opened = read_runs(runs)
    records = opened.records
    measure = _measure(measure, records)
    blends: dict[str, Blend] = {}
    if len(opened.runs) > 1:
        cut = any(run.content.get("threshold") is not None for run in opened.runs)
        blends = {kind: blend(kind, records, opened.outcomes, cut=cut) for kind in BLENDS}
    outcomes = {outcome.name: outcome for outcome in opened.outcomes}
    outcomes |= {made.outcome.name: made.outcome for made in blends.values()}
    outcomes[MAJORITY] = _majority(records)
    if len(outcomes) != len(opened.outcomes) + len(blends) + 1:
        raise UsageError(
            f"a run is called {MAJORITY!r} or as a blend is called here. Rename its folder."
        )
    chosen = _baseline(baseline, opened.runs)
    table = _Table(records, outcomes, measure, seed, samples)
    datasets = find_datasets([*opened.runs, *opened.probes])
    encoding = {d.manifest.fingerprint: d.encode_seconds for d in datasets}
    rows = table.rows(opened.runs, chosen, encoding)
    decided = [o.decided[records.first] for o in opened.outcomes] if records.classes else []
    agreement = tuple(tuple(float((a == b).mean()) for b in decided) for a in decided)
    counts = {"folds": len(records.first), "test": len(records.test)}
    return Compared(
        Comparison(
            measure, rows[0].name, chosen, table.tests, counts, rows,
            tuple(run.name for run in opened.runs), agreement,
        ),
        opened, datasets, blends, outcomes,
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
    for rank, place in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        highest = max(highest, min(1.0, (len(p) - rank) * p[place]))
        corrected[place] = highest
    return corrected


class _Table:
    """Scores and differences of all methods from the same bootstrap samples."""

    def __init__(
        self,
        records: Records,
        outcomes: Mapping[str, Outcome],
        measure: str,
        seed: int,
        samples: int,
    ) -> None:
        self._records, self._outcomes, self._measure = records, outcomes, measure
        self.tests = 0
        self.scores, self._drawn = self._score(records.held, seed, samples)
        self._test = {name: dict[str, Score]() for name in outcomes}
        if len(records.scored_test):
            self._test, _ = self._score(records.scored_test, seed, samples)

    def rows(
        self, runs: Sequence[Run], baseline: str, encoding: Mapping[str, float | None]
    ) -> tuple[Row, ...]:
        sign = 1 if self._measure in LOWER_IS_BETTER else -1
        value = {name: sign * found[self._measure].value for name, found in self.scores.items()}
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
        self, places: Integers, seed: int, samples: int
    ) -> tuple[dict[str, dict[str, Score]], dict[str, Floats]]:
        """Scores on some predictions, and the table's measure in every bootstrap sample."""
        rows, record = np.unique(self._records.row[places], return_inverse=True)
        measures = {name: self._measures(outcome, places)
                    for name, outcome in self._outcomes.items()}  # fmt: skip
        found = {name: {m: np.empty(samples) for m in of} for name, of in measures.items()}
        start = 0
        for drawn in draws(len(rows), seed, samples):
            weights = drawn[:, record]  # a record is drawn with its predictions of all repeats
            part = slice(start, start := start + len(weights))
            for name, of in measures.items():
                for m, measure in of.items():
                    found[name][m][part] = measure(weights)
        whole = np.ones((1, len(places)))
        scores = {
            name: {
                m: _interval(m, float(measure(whole)[0]), found[name][m])
                for m, measure in of.items()
            }
            for name, of in measures.items()
        }
        return scores, {name: of[self._measure] for name, of in found.items()}

    def _measures(self, outcome: Outcome, places: Integers) -> dict[str, Measure]:
        y, output = self._records.y[places], outcome.output[places]
        if not self._records.classes:
            return regression_measures(y, output)
        measures = classification_measures(y, output, outcome.decided[places])
        return measures | {"calibration_error": calibration_error(y, output)}

    def _difference(self, name: str, other: str) -> Difference:
        here, there = self.scores[name][self._measure], self.scores[other][self._measure]
        drawn = self._drawn[name] - self._drawn[other]
        low, high = middle(drawn)
        value = here.value - there.value
        if not self._records.classes:
            return Difference(value, low, high, 0, 0, None, None)
        first = self._records.first
        right, their = (
            self._outcomes[n].decided[first] == self._records.y[first] for n in (name, other)
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


def _interval(name: str, value: float, drawn: Floats) -> Score:
    """Percentiles of the samples; those of the calibration error are moved to its value.

    Drawing records anew adds noise to every bin, which only ever lengthens its distance.
    """
    low, high = middle(drawn)
    if name == "calibration_error" and len(drawn):
        excess = float(drawn.mean()) - value
        low, high = max(0.0, low - excess), high - excess
    return Score(value, low, high)


def _measure(asked: str | None, records: Records) -> str:
    known = ["accuracy", "macro_f1", "log_loss", "brier", "calibration_error"]
    if len(records.classes) == 2:
        known += ["roc_auc", "average_precision"]
    if not records.classes:
        known = ["rmse", "r2", "spearman"]
    if asked is not None and asked not in known:
        raise UsageError(
            f"--measure {asked}: these runs have {', '.join(known)}.{did_you_mean(asked, known)}"
        )
    return asked or known[0]


def _baseline(asked: str | None, runs: Sequence[Run]) -> str:
    names = [*(run.name for run in runs), MAJORITY]
    if asked is None:
        tfidf = [run.name for run in runs
                 if (run.content.get("learner") or {}).get("features") == "tfidf"]  # fmt: skip
        return tfidf[0] if tfidf else MAJORITY
    if asked in names:
        return asked
    for run in runs:
        if run.path.resolve() == Path(asked).resolve():
            return run.name
    raise UsageError(
        f"--baseline {asked}: expected one of {', '.join(names)}.{did_you_mean(asked, names)}"
    )


def _majority(records: Records) -> Outcome:
    """Shares of the labels, or the mean, of the records that a fold is learnt from."""
    width = (len(records.y), len(records.classes)) if records.classes else (len(records.y),)
    output = np.empty(width)
    for repeat in np.unique(records.repeat[records.held]):
        here = (records.repeat == repeat) & (records.fold >= 0)
        for fold in np.unique(records.fold[here]):
            held = here & (records.fold == fold)
            output[held] = _shares(records, here & ~held)
    output[records.test] = _shares(records, records.first)
    decided = np.asarray(output.argmax(1), np.int64) if records.classes else output
    return Outcome(MAJORITY, output, decided)


def _shares(records: Records, known: NDArray[Any]) -> Floats | float:
    y = records.y[known]
    if not records.classes:
        return float(y.mean())
    return np.bincount(y, minlength=len(records.classes)) / len(y)


def _kind(name: str, runs: Mapping[str, Run]) -> str:
    if name in runs:
        return str(runs[name].content["kind"])
    return "majority" if name == MAJORITY else "blend"


def _cost(run: Run, records: Records, encoding: Mapping[str, float | None]) -> Cost:
    cost, dataset = run.content["cost"], run.content["dataset"]
    predict = cost.get("predict_seconds")
    files = [p for p in (run.path / "model").rglob("*") if p.is_file()]
    return Cost(
        fit_seconds=cost.get("fit_seconds"),
        predict_seconds=None if predict is None else predict / len(records.held) * 1_000,
        encode_seconds=encoding.get(dataset.get("fingerprint") or "")
        if run.content.get("views") else None,
        peak_memory_bytes=cost.get("peak_memory_bytes"),
        parameters=cost.get("parameters"),
        size_bytes=sum(p.stat().st_size for p in files),
        device=str(cost.get("device", "cpu")),
    )  # fmt: skip
