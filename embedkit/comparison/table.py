"""Comparison of runs: metrics, paired differences with one test, and cost.

All runs have the same split, so that every difference is paired, and the units of all methods are
the same (:mod:`embedkit.runs.intervals`). Rows are ordered by out-of-fold predictions. A test set
has tests of its own, and can only rule out a method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from embedkit import storage
from embedkit.choices import BLENDS, PREFERENCES, check_choice
from embedkit.comparison.blend import Blend, blend, threshold_of
from embedkit.comparison.load import (
    Dataset,
    LoadedRun,
    find_datasets,
    input_differences,
    read_runs,
    with_models,
)
from embedkit.display import Shown
from embedkit.errors import UsageError
from embedkit.runs.intervals import Difference, Estimate, Score, estimates, holm
from embedkit.runs.metrics import COMPARED, LOWER_IS_BETTER, beta_of, is_percent, named_metric
from embedkit.runs.predictions import Predictions
from embedkit.runs.run import Cost, FinetuneRun, ProbeRun
from embedkit.runs.scores import headline_metric, metrics_of
from embedkit.types import AnyPath, ProgressCallback, no_progress, steps

if TYPE_CHECKING:  # imported where a table is asked for
    import pandas as pd

MAJORITY = "majority"
"""Name of the baseline that predicts by class frequencies alone."""

_PERCENT = 0.01
_EQUAL = 1e-12  # but for rounding
# means of records: what a share of them makes of these hangs on their number
_MEANS = ("accuracy", "subset_accuracy", "lrap", "log_loss", "brier", "mae")


def judge(difference: Difference, metric: str, margin: float) -> str:
    """Return the verdict on a difference.

    The methods are equivalent if the whole interval lies within the ``margin``, the smallest
    difference that matters; otherwise the one is better or worse if the corrected p is below 0.05.
    """
    # asked first: with many records a difference that does not matter is significant, too
    if max(-difference.low, difference.high) <= margin:
        return "equivalent"
    if difference.p_corrected is None or difference.p_corrected >= 0.05:
        return "not proven"
    return "better" if (difference.value > 0) != (metric in LOWER_IS_BETTER) else "worse"


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodCost(Cost):
    """Cost of a method, ``None`` where it is unknown; of a blend the sum of its runs.

    ``fit_seconds`` are of all folds, ``predict_seconds`` per 1,000 predictions from the features.
    """

    encode_seconds: float | None  # per 1,000 records; a blend encodes with each dataset once
    milliseconds: float | None  # from a text, or word, to its prediction
    size_bytes: int | None  # of the model folder, without the encoder of frozen vectors


@dataclass(frozen=True, slots=True, repr=False)
class Row(Shown):
    """One method.

    ``path`` is ``None`` for blends and the majority, differences of a row to itself; without
    labelled records of a test set, or predictions for them, ``test`` is empty. The calibration
    error of the majority is NaN: the frequencies of the classes are right on average by
    construction. ``verdict`` is :func:`judge`'s on the difference to the baseline.
    """

    name: str
    kind: str  # frozen, finetuned, probe, predictions (of another tool), blend or majority
    path: str | None
    scores: dict[str, Score]
    test: dict[str, Score]
    to_best: Difference | None
    to_baseline: Difference | None
    test_to_best: Difference | None
    test_to_baseline: Difference | None
    cost: MethodCost | None
    verdict: str


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Compared:
    """A comparison: its numbers, and what they were calculated from."""

    metric: str  # that the rows are sorted by, best first
    min_difference: float  # smallest difference that matters, in the metric's units
    baseline: str  # name of the row that others are compared with
    rows: tuple[Row, ...]
    selection: Selection
    runs: Sequence[LoadedRun]
    datasets: tuple[Dataset, ...]  # of the runs, as far as these still exist
    blends: dict[str, Blend]  # by kind; one that is not cross-fitted has no row
    predictions: dict[str, Predictions]  # of every row, by name
    differences: dict[tuple[str, str], Difference]  # of every two rows, out of fold, by name
    seen_texts: int  # of the test set, which are also training texts

    def as_json(self) -> dict[str, Any]:
        """Return the numbers."""
        names = ("metric", "baseline", "tests", "rows", "inputs", "level", "seeds")
        numbers = {name: getattr(self, name) for name in names}
        return numbers | {"best": self.best, "records": self.counts}

    @property
    def best(self) -> str:
        """Name of the method with the best score; the majority is none."""
        return next(row.name for row in self.rows if row.kind != "majority")

    @property
    def counts(self) -> dict[str, int]:
        """Number of records, or of words, in ``folds`` and in the ``test`` set."""
        return {"folds": len(self.records.out_of_fold), "test": len(self.records.test)}

    @property
    def seeds(self) -> dict[str, tuple[float, ...]]:
        """Scores of the models of each seed alone, of fine-tuned runs that have several."""
        return {
            run.name: run.content.seed_scores[self.metric]
            for run in self.runs
            if isinstance(run.content, FinetuneRun) and self.metric in run.content.seed_scores
        }

    @property
    def inputs(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Settings of the input that differ between runs: names of runs by value."""
        return input_differences(self.runs)

    @property
    def level(self) -> str:
        """Labelled units: ``sentence`` (records) or ``word``."""
        return self.runs[0].content.level

    @property
    def noun(self) -> str:
        """The labelled units in words: ``record`` or ``word``."""
        return self.runs[0].content.noun

    @property
    def tests(self) -> int:
        """Number of pairs of methods that p is corrected for."""
        return len(self.differences) // 2

    @property
    def lower(self) -> bool:
        """True if lower values of the metric are better."""
        return self.metric in LOWER_IS_BETTER

    def judge(self, difference: Difference) -> str:
        """Return the verdict on a difference."""
        return judge(difference, self.metric, self.min_difference)

    @property
    def records(self) -> Predictions:
        """The records with their true labels: predictions of the first run."""
        return self.runs[0].predictions

    @property
    def models(self) -> tuple[LoadedRun, ...]:
        """The runs that hold a model."""
        return with_models(self.runs)

    @property
    def probes(self) -> tuple[tuple[str, ProbeRun], ...]:
        """Names and contents of the probes, the best first, since decisions are those of one."""
        contents = {run.name: run.content for run in self.runs}
        named = ((row.name, contents.get(row.name)) for row in self.rows)
        return tuple((name, probe) for name, probe in named if isinstance(probe, ProbeRun))

    @property
    def winner(self) -> Row:
        """The row of the method to use."""
        return self.row(self.selection.name)

    def row(self, name: str) -> Row:
        """Return the row of a method."""
        return next(row for row in self.rows if row.name == name)

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas table with a row for each method, best first, and its scores."""
        import pandas as pd

        rows = []
        for row in self.rows:
            score, gain = row.scores[self.metric], row.to_baseline
            rows.append(
                {"method": row.name, "kind": row.kind, "use": row.name == self.selection.name}
                | {name: s.value for name, s in row.scores.items()}
                | {"low": score.low, "high": score.high}
                | {f"test_{name}": s.value for name, s in row.test.items()}
                | {"gain": gain.value if gain else 0.0, "verdict": row.verdict}
                | {"p": gain.p_corrected if gain else None}
                | {"fit_seconds": row.cost.fit_seconds if row.cost else None}
                | {"milliseconds": row.cost.milliseconds if row.cost else None}
            )
        return pd.DataFrame(rows).set_index("method")

    def blend_to_use(self) -> Blend:
        """Return the method to use as a blend, in which a single run may have all the weight."""
        name = self.selection.with_model
        if method := next((b for b in self.blends.values() if b.name == name), None):
            return method
        models = {run.name: (i, run) for i, run in enumerate(self.models)}
        if name not in models:
            raise UsageError("a probe holds no model to predict with. Give a run of train.")
        index, run = models[name]
        cut = run.content.threshold
        parts = run.predictions, tuple(models), True, cut, lambda inputs: inputs[index]
        return Blend(name, *parts, run.content.separator)


class Selection(NamedTuple):
    """The method to use: the best, or a cheaper one that cannot be worse by what matters."""

    name: str
    useful: bool  # a method is proven better than the majority, and not worse on the test set
    equal: tuple[str, ...]  # methods that are not proven worse than the best, that one first
    failed: tuple[str, ...]  # methods that are proven worse than another one on the test set
    with_model: str  # run or blend to use where a probe, which holds no model, is left out


def compare(
    runs: Sequence[AnyPath],
    *,
    baseline: str | None = None,
    metric: str | None = None,
    min_difference: float | None = None,
    prefer: str = "cost",
    progress: ProgressCallback = no_progress,
) -> Compared:
    """Return a comparison; arguments as for :func:`embedkit.compare`."""
    check_choice(PREFERENCES, prefer=prefer)
    opened = read_runs(runs, progress=progress)
    metric = _metric(metric, opened)
    predictions, blends = _predictions(opened, metric)
    chosen = _baseline(baseline, opened)
    datasets = find_datasets(opened)
    folds = {name: p.take(p.out_of_fold) for name, p in predictions.items()}
    tested = {name: p.take(p.scored_test) for name, p in predictions.items() if len(p.scored_test)}
    # the folds rank and choose; the test set has tests of its own, and may have no labels
    scores, differences = scores_and_differences(folds, metric, progress)
    test, on_test = scores_and_differences(tested, metric, progress)
    values = {name: by_metric[metric].value for name, by_metric in scores.items()}
    margin = _margin(metric, values[chosen], max(values.values()), min_difference)
    names = best_first(values, metric)
    best = next(name for name in names if name != MAJORITY)
    costs = _costs(opened, datasets, blends)
    by_name = {run.name: run for run in opened}
    kinds = {MAJORITY: "majority"} | {run.name: run.content.kind for run in opened}
    rows = tuple(
        Row(
            name,
            kinds.get(name, "blend"),
            str(by_name[name].path) if name in by_name else None,
            scores[name],
            test.get(name, {}),
            differences.get((name, best)),
            (gain := differences.get((name, chosen))),
            on_test.get((name, best)),
            on_test.get((name, chosen)),
            costs.get(name),
            judge(gain, metric, margin) if gain else "",
        )
        for name in names
    )

    # a method that remembers texts is right about those that it was trained on: as much as they
    # make of the test set may be of them alone, and of other metrics than means all of it
    tests = [run.content.test_set for run in with_models(opened)]
    seen_texts = max((test.seen_texts for test in tests if test), default=0)
    seen = seen_texts / max(len(opened[0].predictions.test), 1)

    def verdict(row: Row, other: str, *, test: bool = False) -> str:
        gap = (on_test if test else differences).get((row.name, other))
        if test and gap is not None:
            # of an error it may be so much of the error
            scale = row.test[metric].value if metric in LOWER_IS_BETTER else 1
            limit = seen * scale * (1 + 1e-9) if metric in _MEANS else np.inf
            gap = None if seen and abs(gap.value) <= limit else gap
        return judge(gap, metric, margin) if gap else ""

    def is_enough(row: Row, best: Row) -> bool:
        # by the upper end of what a method lacks to the best, if it lacks anything
        gap = differences[best.name, row.name]
        lacking = -gap.low if metric in LOWER_IS_BETTER else gap.high
        return prefer == "cost" and (lacking <= margin or abs(gap.value) < _EQUAL)

    return Compared(
        metric=metric,
        min_difference=margin,
        baseline=chosen,
        rows=rows,
        selection=_choose(rows, verdict, is_enough),
        runs=opened,
        datasets=datasets,
        blends=blends,
        predictions=predictions,
        differences=differences,
        seen_texts=seen_texts,
    )


def best_first(values: Mapping[str, float], metric: str) -> list[str]:
    """Names in the order of their scores, undefined ones last."""
    sign = 1 if metric in LOWER_IS_BETTER else -1
    # NaN compares as False with everything, which breaks a sort
    return sorted(values, key=lambda name: (np.isnan(values[name]), sign * values[name]))


def _choose(
    rows: Sequence[Row], verdict: Callable[..., str], is_enough: Callable[[Row, Row], bool]
) -> Selection:
    """Apply the rule of :func:`embedkit.compare` to rows in order, the best first.

    *Not proven worse* is not enough to take a cheaper method: few records prove nothing, so that a
    method that lacks five points would be taken in every third sample of 600. ``is_enough`` says
    that a method lacks nothing that matters to the best.
    """

    def cheapest(candidates: Sequence[Row]) -> tuple[Row, list[Row]]:
        # rows are sorted, so that this is the best of the candidates
        best = candidates[0]
        equal = [best, *(r for r in candidates[1:] if verdict(r, best.name) != "worse")]
        return min([best, *(r for r in equal[1:] if is_enough(r, best))], key=price), equal

    methods = [row for row in rows if row.kind != "majority"]
    # the folds say which methods are of use; the test set may only rule some of them out, since
    # choosing by its scores would spoil them
    better = [row for row in methods if verdict(row, MAJORITY) == "better"]
    rivals = [row.name for row in better or methods] + [MAJORITY]
    failed = [r for r in methods if any(verdict(r, o, test=True) == "worse" for o in rivals)]
    useful = [row for row in better if row not in failed]
    # where nothing is proven, something has to be named all the same
    chosen, equal = cheapest(useful or [r for r in methods if r not in failed] or methods)
    # probes and other tools have no model that predict could open
    holders = [row for row in methods if row.kind in ("frozen", "finetuned", "blend")]
    usable = [row for row in holders if row in useful] or holders or methods
    with_model = chosen if chosen in holders else cheapest(usable)[0]
    return Selection(
        chosen.name,
        bool(useful),
        tuple(row.name for row in equal),
        tuple(row.name for row in failed),
        with_model.name,
    )


def price(row: Row) -> tuple[float, ...]:
    """Return what a method costs, for sorting: the time of a text, of equals that to train."""
    times = (row.cost.milliseconds, row.cost.fit_seconds) if row.cost else (None, None)
    # two digits, for clocks differ by more from run to run; unknown times are the dearest
    return tuple(math.inf if time is None else float(f"{time:.2g}") for time in times)


def records_to_decide(gap: Difference, margin: float, records: int, *, pairs: int) -> float:
    """Return how many more records would decide whether a difference matters.

    As many as narrow its interval until it proves one method better, or leaves less than the margin
    to gain, whichever comes first, if the difference itself stays. An interval is narrower by the
    root of the number of records. Of a proof p is corrected for all ``pairs``, which asks for an
    interval as wide as that of the level that the correction leaves.
    """
    from scipy.special import ndtri

    value, below, above = gap.value, gap.value - gap.low, gap.high - gap.value
    # the end towards 0 decides a proof, the other one what there may be to gain
    near, far = (below, above) if value >= 0 else (above, below)
    wider = near * float(ndtri(0.025 / pairs) / ndtri(0.025))
    ways = (far, margin - abs(value)), (wider, abs(value))
    ratios = [width / reach for width, reach in ways if reach > 0]
    return records * max(min(ratios) ** 2 - 1, 0) if ratios else math.inf


def _margin(metric: str, baseline: float, best: float, min_difference: float | None) -> float:
    """The smallest difference that matters, in the metric's units.

    A point is much of what is missing near the end of a scale: then it is a tenth of that.
    """
    if min_difference is None:
        if metric in LOWER_IS_BETTER:
            return _PERCENT * abs(baseline)
        return min(_PERCENT, (1 - best) / 10) if best <= 1 else _PERCENT
    if not min_difference >= 0:
        raise UsageError("expected 0 or more.", min_difference=min_difference)
    return min_difference * _PERCENT if is_percent(metric) else min_difference


def _predictions(
    runs: Sequence[LoadedRun], metric: str
) -> tuple[dict[str, Predictions], dict[str, Blend]]:
    """Predictions of the runs, their blends and the majority by name; and the blends by kind."""
    by_run = {run.name: run.predictions for run in runs}
    blends: dict[str, Blend] = {}
    records, models = runs[0].predictions, with_models(runs)
    if len(models) > 1:
        threshold = threshold_of(metric, [run.content for run in models])
        # a pool weighs one choice among classes, which a set is not
        kinds = ["mean"] if records.of_sets else BLENDS
        blends = {kind: blend(kind, models, threshold=threshold) for kind in kinds}
    # a blend without predictions for the folds can still predict new records, but has nothing to be
    # compared
    blended = {b.name: b.predictions for b in blends.values() if b.cross_fitted}
    if {*blended, MAJORITY} & set(by_run):
        raise UsageError(f"a run is called {MAJORITY!r}, or as a blend is. Rename its folder.")
    return {**by_run, **blended, MAJORITY: records.majority(runs[0].content.prior)}, blends


def scores_and_differences(
    predictions: Mapping[str, Predictions], metric: str, progress: ProgressCallback
) -> tuple[dict[str, dict[str, Score]], dict[tuple[str, str], Difference]]:
    """Scores of all methods on some records, and the differences of all ordered pairs.

    The records choose the best method, so that p is corrected for all pairs.
    """
    if not predictions:
        return {}, {}
    scores: dict[str, dict[str, Score]] = {}
    compared: dict[str, Estimate] = {}
    step = steps(progress, "scoring", len(predictions), "methods")
    for name, records in predictions.items():
        metrics = metrics_of(records, beta=beta_of(metric), baseline=name == MAJORITY)
        shown = {m: values for m, values in metrics.items() if m == metric or m in COMPARED}
        estimated = estimates(shown, records.group)
        scores[name] = {m: estimate.score for m, estimate in estimated.items()}
        compared[name] = estimated[metric]
        step()
    # always the class frequencies: right on average by construction, so that 0 would be no merit
    if "calibration_error" in scores.get(MAJORITY, {}):
        scores[MAJORITY]["calibration_error"] = Score(np.nan, np.nan, np.nan)
    pairs = [*combinations(compared, 2)]
    tests = [compared[a].less(compared[b]) for a, b in pairs]
    differences: dict[tuple[str, str], Difference] = {}
    for (a, b), test, p in zip(pairs, tests, holm([test.p for test in tests]), strict=True):
        differences[a, b] = replace(test, p_corrected=p)
        # the other way round the ends change places; 0 - x, for there is no -0
        differences[b, a] = Difference(0 - test.value, 0 - test.high, 0 - test.low, test.p, p)
    return scores, differences


def _metric(name: str | None, runs: Sequence[LoadedRun]) -> str:
    p = runs[0].predictions.take(runs[0].predictions.out_of_fold)
    if name is None and not p.classes:
        name = next(iter(metrics_of(p)))
    elif name is None:
        contents = [run.content for run in with_models(runs) or runs]
        name = headline_metric(contents, p.y.sum(0) if p.of_sets else np.bincount(p.y))
    # also that of a run, whose file may say anything
    name = named_metric(name)
    metrics = metrics_of(p, beta=beta_of(name)).items()
    # no verdict rests on a score without an interval
    check_choice([other for other, metric in metrics if metric.scale != "biased"], metric=name)
    return name


def _baseline(name: str | None, runs: Sequence[LoadedRun]) -> str:
    names = [*(run.name for run in runs), MAJORITY]
    if name is None:
        # what an encoder costs should be judged against what needs none
        tfidf = [run.name for run in runs if run.content.features == "tfidf"]
        return tfidf[0] if tfidf and len(runs) > 1 else MAJORITY
    by_path = {run.path.resolve(): run.name for run in runs}
    name = name if name in names else by_path.get(Path(name).resolve(), name)
    check_choice(names, baseline=name)
    return name


def _encoder(run: LoadedRun) -> str | None:
    """The encoder that a run starts from, and its input: what decides the cost of a text."""
    content = run.content
    if not content.views and not isinstance(content, FinetuneRun):
        return None
    tokens: Any = content.tokens if isinstance(content, FinetuneRun) else content.dataset.vectors
    assert content.dataset.model is not None
    files = sorted(content.dataset.model.sha256.items()) or content.dataset.fingerprint
    return f"{files} {tokens and tokens.max_length}"


def _costs(
    runs: Sequence[LoadedRun], datasets: Sequence[Dataset], blends: Mapping[str, Blend]
) -> dict[str, MethodCost]:
    """Costs of runs and blends by name.

    The same encoder takes the same time, frozen or trained. Times that were measured at different
    moments of a machine that does other things as well differ by more than methods do, so that all
    methods on an encoder share the shortest. A fine-tuned run reads a text with the models of all
    folds, whose mean it predicts.
    """
    # what each run measured: the time from features to predictions, and that of its encoder
    level = runs[0].content.level
    encode_seconds = {d.manifest.fingerprint: d.encode_seconds(level) for d in datasets}
    predicting: dict[str, float | None] = {}
    measured: dict[str | None, float] = {}
    for run in runs:
        content, predict = run.content, run.content.cost.predict_seconds
        if predict is not None:
            # seconds per 1,000 records, which are milliseconds per record
            predict = predict / len(run.predictions.out_of_fold) * 1_000
        encode = encode_seconds.get(content.dataset.fingerprint) if content.views else None
        if isinstance(content, FinetuneRun):
            # the head takes none. A held-out record was read by the models of its fold, one for
            # each seed, and a new one is read by the models of all folds
            predict, encode = predict and 0.0, predict and predict / content.settings["seeds"]
        predicting[run.name] = predict
        if encode is not None:
            # noise of a clock only adds time, so that the least is nearest to the truth
            measured[_encoder(run)] = min(encode, measured.get(_encoder(run), math.inf))
    costs = {}
    for run in runs:
        content, predict, encode = run.content, predicting[run.name], measured.get(_encoder(run))
        # the shortest time of one encoder, for as many as the method runs
        if encode is not None and isinstance(content, FinetuneRun):
            encode *= len(content.models)
        # TF-IDF has no encoder whose time could be missing
        complete = predict is not None and (encode is not None or _encoder(run) is None)
        costs[run.name] = MethodCost(
            **asdict(replace(content.cost, predict_seconds=predict)),
            encode_seconds=encode,
            milliseconds=(predict or 0.0) + (encode or 0.0) if complete else None,
            size_bytes=storage.tree_bytes(kept) if (kept := run.path / "model").is_dir() else None,
        )
    # blends need all that their runs need, but no vectors twice
    if blends:
        models = with_models(runs)
        model_costs = [costs[run.name] for run in models]
        # of frozen vectors each dataset once, every fine-tuned encoder by itself
        encoders = {
            run.content.dataset.fingerprint if run.content.views else run.name: cost.encode_seconds
            for run, cost in zip(models, model_costs, strict=True)
            if _encoder(run) is not None
        }
        encode = _sum([*encoders.values()])
        predict = _sum([cost.predict_seconds for cost in model_costs])
        together = MethodCost(
            fit_seconds=_sum([cost.fit_seconds for cost in model_costs]),
            predict_seconds=predict,
            encode_seconds=encode if encoders else None,
            milliseconds=_sum([predict, encode]),
            size_bytes=sum(cost.size_bytes or 0 for cost in model_costs),
            device=", ".join(dict.fromkeys(cost.device for cost in model_costs)),
        )
        costs |= {b.name: together for b in blends.values()}
    return costs


def _sum(values: Sequence[float | None]) -> float | None:
    """The sum, if all values are known."""
    summands = [value for value in values if value is not None]
    return sum(summands) if len(summands) == len(values) else None


def trained(compared: Compared) -> Iterator[tuple[str, FinetuneRun]]:
    """Yield the runs that were fine-tuned for several epochs, with their names."""
    for run in compared.runs:
        content = run.content
        if isinstance(content, FinetuneRun) and any(len(e) > 1 for e in content.history.values()):
            yield run.name, content


def styles_of(compared: Compared) -> dict[str, int]:
    """Return the style of each method: 0 is what the page is about, 1 the baseline."""
    rows = (row.name for row in compared.rows)
    # dict.fromkeys keeps the first of equal names, so that each has one number
    order = [compared.selection.name, compared.baseline, *rows]
    return {name: style for style, name in enumerate(dict.fromkeys(order))}
