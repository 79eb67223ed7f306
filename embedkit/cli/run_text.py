"""Runs as text for people: one that was just made, and one in a folder."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from embedkit import fsio
from embedkit.cli.text import count_text, number_text, reasons_text, score_text, table_text
from embedkit.display import bytes_text, duration_text, visible
from embedkit.runs.content import (
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

__all__ = ["run_data", "run_info_text", "run_text"]

_SUBSETS = {"cross_validation": "folds", "folds": "in folds", "test": "test"}


def run_data(result: TrainResult | ProbeResult | FinetuneResult) -> dict[str, Any]:
    """Return the content of a new run with its folder, as plain data."""
    return {"out": str(result.out), **as_json(result.content)}


def run_text(result: TrainResult | ProbeResult | FinetuneResult) -> str:
    """Return the results of a new run, its cost, and where it is."""
    content, out = result.content, visible(str(result.out))
    made = "figures/layers.png" if isinstance(content, ProbeRun) else "predictions.parquet"
    return "\n".join([
        f"wrote {out}: {visible(_method(content))}",
        *_results(content),
        f"cost: {_cost(content)}",
        f"{'figure' if isinstance(content, ProbeRun) else 'held-out predictions'}: {out}/{made}",
    ])  # fmt: skip


def run_info_text(path: Path, content: Run) -> str:
    """Return what a finished run is, its results, and how to open it.

    Args:
        path: its folder.
        content: the content of its ``run.json``.
    """
    lines = [
        f"{path}: a {content.kind} run of embedkit {content.versions.get('embedkit', '(unknown)')}"
    ]
    lines += [f"  {name:9}  {visible(text)}" for name, text in _facts(path, content) if text]
    lines += [*_results(content), "open it:"]
    for name in ("predictions.parquet", "pairs.parquet"):
        if (path / name).is_file():
            lines.append(f"  import pandas as pd; df = pd.read_parquet({str(path / name)!r})")
    if (path / "model").is_dir():
        lines.append(f"  embedkit predict {shlex.quote(str(path))} new.tsv --out new.labels.tsv")
    if figures := sorted(p.name for p in (path / "figures").glob("*.png")):
        lines.append(f"  figures: {visible(', '.join(figures))} in {visible(str(path))}/figures")
    return "\n".join(lines)


def _results(content: Run) -> Iterator[str]:
    """The tables of a run, and remarks on them."""
    if isinstance(content, ProbeRun):
        yield from _probe_results(content)
    elif isinstance(content, SimilarityRun):
        yield table_text([
            {"view": one.view, "spearman": score_text(one.spearman),
             "pearson": score_text(one.pearson)}
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
            f"{main} of each seed ({_SUBSETS[subset]}): {', '.join(map(number_text, values))}; "
            f"standard deviation {number_text(stdev(values))}; predictions are the mean of all"
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
            "score": name,
            "held out": _SUBSETS[subset],
            "value": number_text(score.value),
            "95 % interval": f"{number_text(score.low)} to {number_text(score.high)}",
            "majority": number_text(score.majority),
        }
        for subset, found in content.scores.items()
        for name, score in found.items()
    ])  # fmt: skip
    for subset, classes in content.per_class.items():
        yield table_text([
            {"class": visible(one.label), "held out": _SUBSETS[subset],
             "precision": number_text(one.precision), "recall": number_text(one.recall),
             "f1": number_text(one.f1), "records": f"{one.support:,}"}
            for one in classes
        ])  # fmt: skip
    yield from _verdicts(content)
    if content.threshold is not None:
        yield f"decision threshold for {visible(content.classes[1])}: {content.threshold:.3g}"
    test, count = content.test_set, content.records.test
    if test and test.rejected:
        yield f"{test.rejected:,} records of the test set are rejected, {count:,} are predicted"
    if test and test.seen_texts:
        yield f"{test.seen_texts:,} of the {count:,} test texts are also training texts"


def _verdicts(content: PredictionRun) -> Iterator[str]:
    """What the scores say against predicting the majority class, or the mean."""
    for subset, scores in content.scores.items():
        held_out = f"held-out records ({_SUBSETS[subset]})"
        main, loss = ("accuracy", "log_loss") if content.classes else ("r2", "rmse")
        if main in scores:
            yield _verdict(main, scores[main], scores[main].majority, held_out)
        if loss in scores and scores[loss].value > scores[loss].majority:
            yield (
                f"warning: {loss} is worse than that of guessing by the frequencies of the labels "
                f"({number_text(scores[loss].value)} against {number_text(scores[loss].majority)}, "
                f"{held_out})"
            )


def _verdict(metric: str, score: Score, majority: float, what: str) -> str:
    """Where the interval of a score lies beside the score of the majority class."""
    lower = metric in LOWER_IS_BETTER
    ahead = majority - score.value if lower else score.value - majority
    if math.isnan(score.low) or score.low <= majority <= score.high:
        return f"verdict: not told apart from the majority in {metric}, {what}"
    side = "ahead of" if ahead > 0 else "behind"
    return (
        f"verdict: {abs(ahead):.3f} {side} the majority in {metric} "
        f"(interval {number_text(score.low)} to {number_text(score.high)}), {what}"
    )


def _probe_results(content: ProbeRun) -> Iterator[str]:
    random = content.random_weights
    yield table_text([
        {
            "view": view.name,
            content.metric: f"{view.score.value:.4f}",
            "95 % interval": f"{view.score.low:.4f} to {view.score.high:.4f}",
            "control task": _spread(view.control, view.control_sd),
            **({"random weights": _mean_of(random.get(view.name))} if random else {}),
            **({"codelength, bits": f"{view.codelength:,.0f}",
                "compression": f"{view.compression:.2f}"}
               if view.codelength is not None and view.compression is not None else {}),
            "chosen in folds": str(view.chosen),
        }
        for view in content.views
    ])  # fmt: skip
    yield f"majority {content.majority:.4f}"
    yield _verdict(content.metric, content.nested, content.majority, "the view chosen in folds")
    yield (f"view chosen inside the folds: {content.metric} {score_text(content.nested)}; report "
           "this, not the highest row")  # fmt: skip


def _spread(mean: float, sd: float) -> str:
    """A mean with its standard deviation, where there is one."""
    return number_text(mean) + ("" if math.isnan(sd) else f" ±{sd:.4f}")


def _mean_of(values: Sequence[float] | None) -> str:
    if not values:
        return number_text(None)
    return _spread(mean(values), stdev(values) if len(values) > 1 else math.nan)


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
        yield "records", ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
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
