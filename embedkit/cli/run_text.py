"""Runs as text for people: one that was just made, and one in a folder."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from embedkit import fsio
from embedkit.cli.text import (
    asked_for_all,
    count_text,
    interval_text,
    metric_heading,
    number_text,
    reasons_text,
    score_text,
    table_text,
    terminal_width,
    wrapped,
)
from embedkit.display import bytes_text, duration_text, is_percent, metric_text, visible
from embedkit.encoding.views import view_ranges
from embedkit.runs.content import (
    Agreement,
    ClassScore,
    FinetuneRun,
    PredictionRun,
    ProbeRun,
    Run,
    SimilarityRun,
    TrainRun,
    as_json,
)
from embedkit.runs.metrics import LOWER_IS_BETTER

if TYPE_CHECKING:
    from embedkit.classifiers.probe import ProbeResult
    from embedkit.classifiers.train import TrainResult
    from embedkit.finetuning.folds import FinetuneResult
    from embedkit.runs.resampling import Score

__all__ = ["agreement_finding", "run_data", "run_info_text", "run_text"]

_SUBSETS = {"cross_validation": "folds", "folds": "in folds", "test": "test"}
_ORDER = ("accuracy", "macro_f1", "log_loss", "brier", "calibration_error", "roc_auc",
          "average_precision", "precision", "recall", "f1", "balanced_accuracy", "mcc",
          "rmse", "mae", "r2", "pearson", "spearman")  # fmt: skip
_OF_VALUES = ("rmse", "mae", "r2", "pearson", "spearman")
_INDENT = 13
_MOST_CLASSES, _MOST_COLUMNS = 20, 1_000


def run_data(result: TrainResult | ProbeResult | FinetuneResult) -> dict[str, Any]:
    """Return the content of a new run with its folder, as plain data."""
    return {"out": str(result.out), **as_json(result.content)}


def run_text(result: TrainResult | ProbeResult | FinetuneResult) -> str:
    """Return the finding, the results of a new run, its cost, and where it is."""
    content, out = result.content, visible(str(result.out))
    made = "figures/layers.png" if isinstance(content, ProbeRun) else "predictions.parquet"
    return "\n".join([
        finding_text(content),
        f"wrote {out}: {visible(_method(content))}",
        *_results(content),
        f"cost: {_cost(content)}",
        f"{'figure' if isinstance(content, ProbeRun) else 'held-out predictions'}: {out}/{made}",
    ])  # fmt: skip


def run_info_text(path: Path, content: Run) -> str:
    """Return what a finished run found, what it is, its results, and how to open it.

    Args:
        path: its folder.
        content: the content of its ``run.json``.
    """
    lines = [
        finding_text(content),
        f"{path}: a {content.kind} run of embedkit {content.versions.get('embedkit', '(unknown)')}",
    ]
    lines += [f"  {name:9}  {line}" for name, text in _facts(path, content) if text
              for line in [_fitted(visible(text))]]  # fmt: skip
    lines += [*_results(content), "open it:"]
    for name in ("predictions.parquet", "pairs.parquet"):
        if (path / name).is_file():
            lines.append(f"  import pandas as pd; df = pd.read_parquet({str(path / name)!r})")
    if (path / "model").is_dir():
        lines.append(f"  embedkit predict {shlex.quote(str(path))} new.tsv --out new.labels.tsv")
    if figures := sorted(p.name for p in (path / "figures").glob("*.png")):
        lines.append(f"  figures: {visible(', '.join(figures))} in {visible(str(path))}/figures")
    return "\n".join(lines)


def _fitted(text: str) -> str:
    """A text in the width of the terminal, below itself."""
    return "\n".join(wrapped(text, max(terminal_width() - _INDENT, 20), others=" " * _INDENT))


def finding_text(content: Run) -> str:
    """Return what a run found, in one sentence."""
    if isinstance(content, ProbeRun):
        return _probe_finding(content)
    if isinstance(content, SimilarityRun):
        return agreement_finding(content.agreement)
    assert isinstance(content, PredictionRun)
    subset = "test" if "test" in content.scores else "cross_validation"
    count = content.records.test if subset == "test" else content.records.folds
    main = "accuracy" if content.classes else "r2"
    held_out = f"{count:,} {'test' if subset == 'test' else 'held-out'} {content.rows_text}"
    if main not in content.scores.get(subset, {}):
        return f"{held_out} have one label only: there is no {main}"
    score = content.scores[subset][main]
    against = _against(main, score, score.majority)
    return f"{_found(main, score)} on {held_out}: {against}"


def agreement_finding(found: Sequence[Agreement]) -> str:
    """Return which view agrees best with human scores."""
    known = [one for one in found if math.isfinite(one.spearman.value)]
    if not known:
        return "no human scores to compare the cosines with"
    best = max(known, key=lambda one: one.spearman.value)
    score = score_text(best.spearman, "spearman")
    level = [one.view for one in known if one.spearman.high >= best.spearman.value
             and one is not best]  # fmt: skip
    text = f"{best.view} agrees best with the scores: Spearman {score}"
    return text + (f"; as high within their intervals: {view_ranges(level)}" if level else "")


def _found(metric: str, score: Score) -> str:
    if math.isnan(score.value):
        return f"{metric} undefined"
    unit = " %" if is_percent(metric) else ""
    text = f"{metric} {metric_text(score.value, metric)}{unit}"
    return text + (f" ({interval_text(score, metric)})" if math.isfinite(score.low) else "")


def _against(metric: str, score: Score, majority: float) -> str:
    """Where a score lies beside that of the majority class."""
    points = " points" if is_percent(metric) else ""
    name = "the majority class" if metric not in _OF_VALUES else "predicting the mean"
    ahead = majority - score.value if metric in LOWER_IS_BETTER else score.value - majority
    known = f"{metric_text(majority, metric)}{' %' if points else ''}"
    if math.isnan(score.value) or math.isnan(score.low) or score.low <= majority <= score.high:
        return f"not told apart from {name} ({known})"
    side = "better than" if ahead > 0 else "worse than"
    return f"{metric_text(abs(ahead), metric)}{points} {side} {name} ({known})"


def _probe_finding(content: ProbeRun) -> str:
    if not content.views:
        return "no view was scored"
    best = (min if content.metric in LOWER_IS_BETTER else max)(
        content.views, key=lambda view: view.score.value
    )
    level = [view.name for view in content.views if view.is_level]
    first = f"{best.name} is the best view"
    if len(level) > 1:
        first = f"{view_ranges(level)} are not told apart from the best view"
    nested = content.nested
    return (
        f"{first}; views chosen in inner folds: {_found(content.metric, nested)}, "
        f"{_against(content.metric, nested, content.majority)}"
    )


def _results(content: Run) -> Iterator[str]:
    """The tables of a run, and remarks on them."""
    if isinstance(content, ProbeRun):
        yield from _probe_results(content)
    elif isinstance(content, SimilarityRun):
        yield table_text([
            {"view": one.view, "spearman": score_text(one.spearman, "spearman"),
             "pearson": score_text(one.pearson, "pearson")}
            for one in content.agreement
        ])  # fmt: skip
    elif isinstance(content, PredictionRun):
        yield from _scores(content)
    if isinstance(content, FinetuneRun):
        yield from _seeds(content)
        yield from _calibration(content)
        cut, rejected = content.truncated, content.dataset.rejected or {}
        epochs = sorted({round(epoch) for epoch in content.epochs})
        yield f"{count_text(len(content.models), 'model')}; best epochs: {str(epochs)[1:-1]}"
        yield (f"{cut.records:,} texts were cut at {cut.limit} tokens: {cut.tokens:,} of "
               f"{cut.tokens_all:,} tokens left out")  # fmt: skip
        if rejected:
            yield f"{sum(rejected.values()):,} records rejected{reasons_text(rejected)}"


def _seeds(content: FinetuneRun) -> Iterator[str]:
    """The main score of each of several seeds."""
    main = "accuracy" if content.classes else "r2"
    for subset in content.scores if content.seeds else ():
        values = [one.scores[subset][main] for one in content.seeds]
        yield (
            f"{metric_heading(main)} of each seed ({_SUBSETS[subset]}): "
            f"{', '.join(metric_text(value, main) for value in values)}; standard deviation "
            f"{metric_text(stdev(values), main)}; predictions are the mean of all"
        )


def _calibration(content: FinetuneRun) -> Iterator[str]:
    found = content.calibration
    if found is None:
        return
    shown = ", ".join(f"{one:.2f}" for one in found.temperatures)
    for subset, before in found.before.items():
        old, new = (found_in["calibration_error"] for found_in in (before, found.after[subset]))
        yield (
            f"calibration_error ({_SUBSETS[subset]}): {number_text(old)} without temperature "
            f"scaling, {number_text(new)} with it (temperatures {shown})"
        )


def _scores(content: PredictionRun) -> Iterator[str]:
    yield table_text([
        {
            "score": metric_heading(name),
            "held out": _SUBSETS[subset],
            "value": metric_text(score.value, name),
            "95 % interval": interval_text(score, name),
            # the frequencies of the classes are right on average by construction
            "majority": "–" if name == "calibration_error" else metric_text(score.majority, name),
        }
        for subset, found in content.scores.items()
        for name, score in sorted(found.items(), key=lambda one: _place(one[0]))
    ])  # fmt: skip
    for subset, classes in content.per_class.items():
        shown = _worst(classes)
        yield table_text([
            {"class": visible(one.label), "held out": _SUBSETS[subset],
             "f1, %": metric_text(one.f1, "f1"), "precision, %": metric_text(one.precision, "f1"),
             "recall, %": metric_text(one.recall, "f1"), content.rows_text: f"{one.support:,}"}
            for one in shown
        ])  # fmt: skip
        if len(shown) < len(classes):
            yield f"  the {len(shown)} worst of {len(classes)} classes (--all shows all)"
    yield from _warnings(content)
    if content.threshold is not None:
        yield f"decision threshold for {visible(content.classes[1])}: {content.threshold:.3g}"
    test, count = content.test_set, content.records.test
    if test and test.rejected:
        yield f"{test.rejected:,} records of the test set are rejected, {count:,} are predicted"
    if test and test.seen_texts:
        yield f"{test.seen_texts:,} of the {count:,} test texts are also training texts"


def _place(metric: str) -> tuple[int, str]:
    """The order of metrics: as they are computed, those with a beta at the end."""
    return (_ORDER.index(metric) if metric in _ORDER else len(_ORDER)), metric


def _worst(classes: Sequence[ClassScore]) -> Sequence[ClassScore]:
    """All classes of few; of many on a terminal those with the lowest F1."""
    if len(classes) <= _MOST_CLASSES or asked_for_all() or terminal_width() > _MOST_COLUMNS:
        return classes
    return sorted(classes, key=lambda one: one.f1)[:_MOST_CLASSES]


def _warnings(content: PredictionRun) -> Iterator[str]:
    """Scores that are worse than those of knowing nothing."""
    for subset, scores in content.scores.items():
        loss = "log_loss" if content.classes else "rmse"
        if loss in scores and scores[loss].value > scores[loss].majority:
            name = "the frequencies of the labels" if content.classes else "the mean"
            yield (
                f"warning: {loss} is worse than that of guessing by {name} "
                f"({metric_text(scores[loss].value, loss)} against "
                f"{metric_text(scores[loss].majority, loss)}, held-out records: "
                f"{_SUBSETS[subset]})"
            )


def _probe_results(content: ProbeRun) -> Iterator[str]:
    random, metric = content.random_weights, content.metric
    yield table_text([
        {
            "view": view.name,
            metric_heading(metric): metric_text(view.score.value, metric),
            "95 % interval": interval_text(view.score, metric),
            "chosen": str(view.chosen),
            "control": _spread(view.control, view.control_sd, metric),
            **({"never trained": _mean_of(random.get(view.name), metric)} if random else {}),
            **({"bits": f"{view.codelength:,.0f}", "compression": f"{view.compression:.2f}"}
               if view.codelength is not None and view.compression is not None else {}),
        }
        for view in content.views
    ])  # fmt: skip
    yield ("chosen: number of folds whose inner folds chose the view; the score of these choices "
           "is the one to report, not the highest row")  # fmt: skip


def _spread(mean: float, sd: float, metric: str) -> str:
    """A mean with its standard deviation, where there is one."""
    return metric_text(mean, metric) + ("" if math.isnan(sd) else f" ±{metric_text(sd, metric)}")


def _mean_of(values: Sequence[float] | None, metric: str) -> str:
    if not values:
        return number_text(None)
    return _spread(mean(values), stdev(values) if len(values) > 1 else math.nan, metric)


def _facts(path: Path, content: Run) -> Iterator[tuple[str, str]]:
    """Names and values of what a run was made from, as far as its kind has them."""
    yield "command", content.command or ""
    if isinstance(content, PredictionRun | ProbeRun):
        yield "estimator", _method(content)
        names = content.dataset.names
        if not (isinstance(content, TrainRun) and content.features == "tfidf"):
            yield "model", names.model + (f" at {names.revision}" if names.revision else "")
        yield "input", ", ".join(names.inputs)
        split = content.split
        kinds = [f"{name}," for name in ("stratified", "grouped") if getattr(split, name)]
        yield (
            "split",
            f"{split.folds} folds, {count_text(split.repeats, 'repeat')}, "
            f"{' '.join([*kinds, 'seed'])} {split.seed} ({split.fingerprint[:12]})",
        )
    if isinstance(content, SimilarityRun):
        yield "model", content.model.name
        pairs = content.records
        yield "records", f"{pairs.pairs:,} pairs, {pairs.rejected:,} rejected"
    if isinstance(content, PredictionRun):
        yield "labels", ", ".join(content.classes) or "values"
        counts = {"in folds": content.records.folds, "test": content.records.test}
        yield (
            content.rows_text,
            ", ".join(f"{count:,} {name}" for name, count in counts.items() if count),
        )
    yield "cost", _cost(content)
    yield "on disk", bytes_text(fsio.tree_bytes(path))
    yield "versions", ", ".join(f"{n} {v}" for n, v in content.versions.items())


def _method(content: PredictionRun | ProbeRun) -> str:
    if isinstance(content, ProbeRun):
        return f"{content.estimator} on every view"
    if isinstance(content, FinetuneRun):
        return f"{content.estimator}, {content.head} head, on {content.dataset.names.model}"
    return f"{content.estimator} on {' + '.join(content.views) or content.features}"


def _cost(content: Run) -> str:
    cost = content.cost
    seconds = {"to fit all folds": cost.fit_seconds, "to predict": cost.predict_seconds,
               "in all": cost.seconds}  # fmt: skip
    known = [f"{duration_text(value)} {name}" for name, value in seconds.items()
             if value is not None]  # fmt: skip
    if cost.parameters is not None:
        known.append(f"{cost.parameters:,} parameters")
    if cost.peak_memory_bytes is not None:
        known.append(f"{bytes_text(cost.peak_memory_bytes)} of memory")
    return ", ".join(known)
