"""Runs as text for people: one that was just made, and one in a folder."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from embedkit.cli.text import count_text, reasons_text, table_text
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
from embedkit.runs.metrics import Score

if TYPE_CHECKING:
    from embedkit.classifiers.probe import ProbeResult
    from embedkit.classifiers.train import TrainResult
    from embedkit.finetuning.folds import FinetuneResult

__all__ = ["content_json", "finetune_text", "probe_text", "run_info_text", "run_text"]

_SUBSETS = {"cross_validation": "folds", "folds": "in folds", "test": "test"}


def content_json(result: TrainResult | ProbeResult | FinetuneResult) -> str:
    """Return the content of a new run as one line of JSON, with its folder."""
    return json.dumps({"out": str(result.out), **as_json(result.content)}, ensure_ascii=False)


def run_text(result: TrainResult) -> str:
    """Return scores beside the majority's, with intervals, and where the run is."""
    content = result.content
    features = " + ".join(content.views) or content.features
    return "\n".join([
        f"wrote {visible(str(result.out))}: {content.estimator} on {visible(features)}",
        _scores_table(content),
        *_notes(content),
        f"{content.records.folds:,} records in folds, fitted in {content.cost.fit_seconds:.1f} s; "
        f"predictions of held-out records: {visible(str(result.out / 'predictions.parquet'))}",
    ])  # fmt: skip


def finetune_text(result: FinetuneResult) -> str:
    """Return scores of a fine-tuned run, what training cost, and where it is."""
    content, out = result.content, visible(str(result.out))
    cost, cut, rejected = content.cost, content.truncated, content.dataset.rejected or {}
    epochs = sorted({round(epoch) for epoch in content.epochs})
    return "\n".join([
        f"wrote {out}: {content.head} head on {visible(content.dataset.names.model)}, "
        f"{count_text(len(content.models), 'fold')}",
        _scores_table(content),
        f"{content.records.folds:,} records in folds, trained in "
        f"{duration_text(cost.fit_seconds or 0)} on {cost.device}, {cost.parameters:,} "
        f"parameters; epoch kept: {', '.join(map(str, epochs))}",
        f"cut at {cut.limit} tokens: {cut.records:,} texts, {cut.tokens:,} of "
        f"{cut.tokens_all:,} tokens",
        *_notes(content),
        *([f"{sum(rejected.values()):,} records rejected{reasons_text(rejected)}"]
          if rejected else []),
        f"predictions of held-out records: {out}/predictions.parquet",
    ])  # fmt: skip


def _notes(content: PredictionRun) -> Iterator[str]:
    """The decision threshold, and what is to be known of a test set."""
    if content.threshold is not None:
        yield f"decision threshold for {visible(content.classes[1])}: {content.threshold:.3g}"
    test, count = content.test_set, content.records.test
    if test and test.rejected:
        yield f"{test.rejected:,} records of the test set are rejected, {count:,} are predicted"
    if test and test.seen_texts:
        yield f"{test.seen_texts:,} of the {count:,} test texts occur among the training texts too"


def _scores_table(content: PredictionRun) -> str:
    rows = [
        {
            "score": name,
            "held out": _SUBSETS[subset],
            "value": _number(score.value),
            "95 % interval": f"{_number(score.low)} to {_number(score.high)}",
            "majority": _number(score.majority),
        }
        for subset, found in content.scores.items()
        for name, score in found.items()
    ]
    return table_text(rows)


def _classes_tables(content: PredictionRun) -> Iterator[str]:
    """Precision, recall and F1 of every class, for each subset."""
    for subset, found in content.per_class.items():
        yield table_text([
            {"class": visible(one.label), "held out": _SUBSETS[subset],
             "precision": _number(one.precision), "recall": _number(one.recall),
             "f1": _number(one.f1), "records": f"{one.support:,}"}
            for one in found
        ])  # fmt: skip


def _number(value: float) -> str:
    """Four digits; NaN, such as the ROC-AUC of one class alone, is a dash."""
    return "–" if math.isnan(value) else f"{value:.4f}"


def probe_text(result: ProbeResult) -> str:
    """Return every view with its score and controls, and the nested score."""
    figure = visible(str(result.out / "figures/layers.png"))
    return f"{_probe_text(result.content)}\n{result.content.cost.seconds:.0f} s; figure: {figure}"


def run_info_text(path: Path, content: Run) -> str:
    """Return what a finished run is, its results, and how to open it.

    Args:
        path: its folder.
        content: the content of its ``run.json``.
    """
    lines = [f"{path}: a {content.kind} run of embedkit {content.versions['embedkit']}"]
    lines += [f"  {name:9}  {visible(text)}" for name, text in _facts(path, content) if text]
    if isinstance(content, ProbeRun):
        lines.append(_probe_text(content))
    elif isinstance(content, SimilarityRun):
        lines.append(_similarity_text(content))
    elif isinstance(content, PredictionRun):
        lines += [_scores_table(content), *_classes_tables(content), *_notes(content)]
    lines.append("open it:")
    where = shlex.quote(str(path))
    for name in ("predictions.parquet", "pairs.parquet"):
        if (path / name).is_file():
            lines.append(f"  import pandas as pd; df = pd.read_parquet({str(path / name)!r})")
    if (path / "model").is_dir():
        lines.append(f"  embedkit predict {where} new.tsv --out new.predictions.tsv")
    figures = sorted(p.name for p in (path / "figures").glob("*.png"))
    if figures:
        lines.append(
            f"  figures: {visible(', '.join(figures))} in {visible(str(path / 'figures'))}"
        )
    return "\n".join(lines)


def _facts(path: Path, content: Run) -> Iterator[tuple[str, str]]:
    """Names and values of what a run was made from, as far as its kind has them."""
    yield "command", content.command or ""
    if isinstance(content, PredictionRun | ProbeRun):
        yield "estimator", content.estimator + _features(content)
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
    size = sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    yield "on disk", bytes_text(size)
    yield "versions", ", ".join(f"{n} {v}" for n, v in content.versions.items())


def _features(content: PredictionRun | ProbeRun) -> str:
    if isinstance(content, ProbeRun):
        return " on every view"
    head = f", {content.head} head" if isinstance(content, FinetuneRun) else ""
    return f" on {' + '.join(content.views) or content.features}{head}"


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


def _similarity_text(content: SimilarityRun) -> str:
    return table_text([
        {"view": one.view, "spearman": _with_interval(one.spearman),
         "pearson": _with_interval(one.pearson)}
        for one in content.agreement
    ])  # fmt: skip


def _with_interval(score: Score) -> str:
    """A score with its interval; a correlation of constant cosines is a dash."""
    if math.isnan(score.value):
        return "–"
    return f"{score.value:.4f} ({score.low:.4f} to {score.high:.4f})"


def _probe_text(content: ProbeRun) -> str:
    random = content.random_weights
    rows = [
        {
            "view": view.name,
            content.metric: f"{view.score.value:.4f}",
            "95 % interval": f"{view.score.low:.4f} to {view.score.high:.4f}",
            "shuffled labels": f"{view.shuffled:.4f}",
            **({"random weights": f"{random.get(view.name, math.nan):.4f}"} if random else {}),
            "chosen in folds": str(view.chosen),
        }
        for view in content.views
    ]
    return "\n".join([
        table_text(rows),
        f"majority {content.majority:.4f}",
        f"view chosen inside the folds: {content.metric} {_with_interval(content.nested)}; report "
        "this, not the highest row",
    ])  # fmt: skip
