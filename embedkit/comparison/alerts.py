"""What a reader has to know before believing a comparison: counted warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embedkit.comparison.cases import Cases
from embedkit.comparison.compare import MAJORITY, Compared
from embedkit.comparison.findings import Verdict
from embedkit.comparison.layers import random_means
from embedkit.comparison.texts import Texts
from embedkit.encoding.views import split_view
from embedkit.runs.content import FinetuneRun
from embedkit.runs.metrics import LOWER_IS_BETTER

__all__ = ["Alert", "alerts_of", "short_trainings"]

_SMALL_CLASS = 20
_CALIBRATION = 0.1
_CUT = 0.005
_SURE = 0.8


@dataclass(frozen=True, slots=True)
class Alert:
    """One warning.

    Attributes:
        kind: which one; ``alert.<kind>`` of the phrases words it.
        values: the numbers and names of the sentence.
    """

    kind: str
    values: Mapping[str, Any]


def alerts_of(
    compared: Compared, verdict: Verdict, cases: Cases, texts: Texts
) -> tuple[Alert, ...]:
    """Return all warnings, what may change the choice first."""
    return tuple(
        alert
        for found in (
            _unfit(compared, verdict), _inputs(compared), _random_weights(compared),
            _cut(compared), _wrong_labels(cases), _duplicates(cases, texts), _small_classes(cases),
            _calibration(compared, verdict), _seeds(compared), short_trainings(compared),
        )
        for alert in found
    )  # fmt: skip


def _unfit(compared: Compared, verdict: Verdict) -> Iterator[Alert]:
    rows = {row.name: row for row in compared.table.rows}
    metric = "log_loss" if compared.runs.records.classes else "rmse"
    for name in verdict.unfit:
        yield Alert("unfit", {
            "run": name, "metric": metric, "value": rows[name].scores[metric].value,
            "majority": rows[MAJORITY].scores[metric].value,
        })  # fmt: skip


def _inputs(compared: Compared) -> Iterator[Alert]:
    for found in compared.table.inputs:
        yield Alert("inputs", {"setting": found.setting, "runs": found.runs})


def _random_weights(compared: Compared) -> Iterator[Alert]:
    """A view of which encoders that were never trained are as good: within its interval."""
    for probe in compared.runs.probes:
        content = probe.content
        lower = content.metric in LOWER_IS_BETTER
        random = random_means(probe)
        same = [
            v.name for v in content.views if v.name in random and (
                random[v.name] <= v.score.high if lower else random[v.name] >= v.score.low
            )
        ]  # fmt: skip
        same = [name for name in same if split_view(name)[1] != "0"] or same
        if same:
            yield Alert("random_weights", {"run": probe.name, "views": same,
                                           "all": len(content.random_weights)})  # fmt: skip


def short_trainings(compared: Compared) -> Iterator[Alert]:
    """A fine-tuned run most models of which were best in their last epoch: more could help."""
    for run in compared.runs.runs:
        content = run.content
        if isinstance(content, FinetuneRun):
            kept = zip(content.epochs, content.history, strict=True)
            count = sum(
                one.epochs[-1].valid_loss is not None and epoch >= one.epochs[-1].epoch
                for epoch, one in kept
            )
            if count > len(content.epochs) / 2:
                yield Alert("short_training", {"run": run.name, "models": count,
                                               "all": len(content.epochs)})  # fmt: skip


def _cut(compared: Compared) -> Iterator[Alert]:
    for dataset in compared.datasets:
        totals = dataset.manifest.totals
        ledger = totals.ledger
        texts = ledger.get("records_truncated", 0)
        if totals.accepted and texts / totals.accepted >= _CUT:
            lost = ledger.get("tokens_cut", 0)
            yield Alert("cut", {
                "name": dataset.path.resolve().name, "texts": texts, "all": totals.accepted,
                "tokens": lost, "limit": dataset.manifest.job.vectors.max_length,
                "tokens_all": ledger.get("tokens", 0),
            })  # fmt: skip
    for run in compared.runs.runs:
        content = run.content
        if isinstance(content, FinetuneRun):
            found, count = content.truncated, content.records.folds + content.records.test
            if count and found.records / count >= _CUT:
                yield Alert("cut", {
                    "name": run.name, "texts": found.records, "all": count,
                    "tokens": found.tokens, "limit": found.limit, "tokens_all": found.tokens_all,
                })  # fmt: skip


def _wrong_labels(cases: Cases) -> Iterator[Alert]:
    if not cases.records.classes or "all_wrong" not in cases.lists:
        return
    all_wrong = cases.lists["all_wrong"]
    sure = int((cases.confidence[0][all_wrong] >= _SURE).sum())
    yield Alert("all_wrong", {
        "records": len(all_wrong), "sure": sure, "percent": _SURE,
        "relabel": len(cases.lists.get("relabel", ())),
    })  # fmt: skip


def _duplicates(cases: Cases, texts: Texts) -> Iterator[Alert]:
    """Texts that occur more than once, and those of them with more than one label.

    A word has other labels in other places of the same sentence, so that this is not said of words.
    """
    if cases.records.of_words:
        return
    rows = [int(row) for row in cases.records.row]
    if not all(row in texts.by_row for row in rows):
        return
    labels: dict[str, set[Any]] = {}
    for row, y in zip(rows, cases.records.y.tolist(), strict=True):
        labels.setdefault(texts.by_row[row], set()).add(y)
    count = Counter(texts.by_row[row] for row in rows)
    twice = [text for text, n in count.items() if n > 1]
    if twice:
        yield Alert("duplicates", {
            "texts": len(twice), "records": sum(count[text] for text in twice),
            "conflicts": sum(len(labels[text]) > 1 for text in twice),
        })  # fmt: skip


def _small_classes(cases: Cases) -> Iterator[Alert]:
    classes = cases.records.classes
    if not classes:
        return
    support = np.bincount(cases.records.y, minlength=len(classes))
    small = [classes[c] for c in np.argsort(support, kind="stable") if support[c] < _SMALL_CLASS]
    if small:
        yield Alert("small_classes", {"classes": small, "all": len(classes),
                                      "limit": _SMALL_CLASS})  # fmt: skip


def _calibration(compared: Compared, verdict: Verdict) -> Iterator[Alert]:
    rows = {row.name: row for row in compared.table.rows}
    score = rows[verdict.chosen].scores.get("calibration_error")
    if score is not None and score.value > _CALIBRATION:
        yield Alert("calibration", {"run": verdict.chosen, "value": score.value})


def _seeds(compared: Compared) -> Iterator[Alert]:
    """Runs that differ by their seed alone: what lies between them is chance."""
    groups: dict[str, list[str]] = {}
    for run in compared.runs.runs:
        content = run.content
        kept = {name: v for name, v in content.settings.items() if name != "seed"}
        key = repr((content.kind, content.estimator, content.features, content.views,
                    content.dataset.fingerprint, content.threshold_metric,
                    sorted(kept.items(), key=str)))  # fmt: skip
        groups.setdefault(key, []).append(run.name)
    for one in compared.table.seeds:
        yield Alert("seed_spread", {"run": one.run, "seeds": len(one.seeds), "mean": one.mean,
                                    "deviation": one.deviation})  # fmt: skip
    rows = {row.name: row.scores[compared.table.metric].value for row in compared.table.rows}
    for names in groups.values():
        seeds = {repr(run.content.settings.get("seed")) for run in compared.runs.runs
                 if run.name in names}  # fmt: skip
        if len(seeds) > 1:
            values = [rows[name] for name in names]
            yield Alert("seeds", {"runs": names, "spread": max(values) - min(values)})
