"""What a report shows, as one frozen record of numbers and names, before any page is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from embedkit.comparison.alerts import Alert, alerts_of
from embedkit.comparison.cases import Cases, Nearest, cases_of, nearest_records
from embedkit.comparison.compare import Compared
from embedkit.comparison.effects import Effect, Scale, effect_of, scale_of
from embedkit.comparison.findings import Verdict, verdict_of
from embedkit.comparison.load import LoadedProbe
from embedkit.comparison.slices import (
    CalibrationBin,
    ClassRow,
    ConfusedPair,
    LengthBin,
    by_class,
    by_length,
    calibration,
    confused_pairs,
)
from embedkit.comparison.texts import Lengths, Texts, find_lengths, find_texts, shown_texts
from embedkit.errors import DamagedError, UsageError
from embedkit.runs.content import FinetuneRun
from embedkit.runs.predictions import Predictions
from embedkit.runs.resampling import Score
from embedkit.runs.view_predictions import read_view_predictions
from embedkit.types import Bool, Float64, ProgressCallback, no_progress, steps

__all__ = ["Method", "ReportContent", "content_of"]


@dataclass(frozen=True, slots=True)
class Method:
    """One method as the page shows it.

    Attributes:
        name: of the row.
        kind: ``frozen``, ``finetuned``, ``blend`` or ``majority``.
        style: number of its colour and shape; 0 is the chosen method, 1 the baseline.
        score: in the metric of the comparison.
        effect: against the baseline; ``None`` for the baseline itself.
        milliseconds: from a text to its prediction, encoding included; ``None`` if unknown.
        unfit: whether it is left out of the choice.
    """

    name: str
    kind: str
    style: int
    score: Score
    effect: Effect | None
    milliseconds: float | None
    unfit: bool


@dataclass(frozen=True, slots=True, eq=False)
class ReportContent:
    """Everything a report says, without words or pictures.

    Attributes:
        scale: how the metric is shown.
        verdict: the findings.
        alerts: the warnings.
        methods: of every row of the table, in its order.
        classes: labels as shown, by class number; empty for values.
        lengths: scores by text length; empty without texts.
        length_unit: ``tokens`` or ``characters``.
        per_class: scores by class, the worst first; empty for values.
        pairs: the most frequent confusions of classes.
        calibration: bins of the chosen method and of the baseline, by name; empty for values.
        cases: the held-out records.
        case_lengths: lengths of their texts; ``None`` without texts.
        texts: their texts.
        shown: the text of each case as shown, a word in its sentence; ``None`` without texts.
        has_other: whether there is a baseline with predictions of its own.
        views: what every view of each probe predicts for the cases, ``(n,)`` class numbers or
            values; empty for probes without predictions.
    """

    scale: Scale
    verdict: Verdict
    alerts: tuple[Alert, ...]
    methods: tuple[Method, ...]
    classes: tuple[str, ...]
    lengths: tuple[LengthBin, ...]
    length_unit: str
    per_class: tuple[ClassRow, ...]
    pairs: tuple[ConfusedPair, ...]
    calibration: Mapping[str, tuple[CalibrationBin, ...]]
    cases: Cases
    case_lengths: Lengths | None
    texts: Texts
    shown: list[str | None]
    has_other: bool
    views: tuple[Mapping[str, Float64], ...]

    def method(self, name: str) -> Method:
        """Return a method by its name."""
        return next(one for one in self.methods if one.name == name)


def content_of(
    compared: Compared,
    *,
    texts: str | Path | None = None,
    worth: float | None = None,
    label_names: Mapping[str, str] | None = None,
    progress: ProgressCallback = no_progress,
) -> ReportContent:
    """Return what a report shows.

    Args:
        compared: what :func:`~embedkit.comparison.compare.compare` gave.
        texts: dataset or corpus to take the texts from, instead of the dataset of the runs.
        worth: smallest difference that matters, as for
            :func:`~embedkit.comparison.effects.scale_of`.
        label_names: names to show beside labels.
        progress: called after every step.

    Raises:
        UsageError: a name does not exist, or ``texts`` cannot be read.
        MismatchError: ``texts`` is not what the runs were made from.
    """
    step = steps(progress, "looking at records", 3, "steps")
    scale = scale_of(compared, worth)
    verdict = verdict_of(compared, scale)
    records, table = compared.runs.records, compared.table
    found = find_texts(set(records.row[records.first_repeat].tolist()), compared.runs.all,
                       compared.datasets, texts)  # fmt: skip
    lengths = find_lengths(records.row[records.first_repeat], compared.datasets, found)
    step()
    voting = [run.name for run in compared.runs.runs if run.name not in verdict.unfit]
    cut = _cut(compared, verdict.chosen, lengths)
    cases = cases_of(compared, verdict.chosen, voting=voting or [verdict.chosen], cut=cut)
    step()
    cases = replace(cases, nearest=_nearest(compared, cases, verdict))
    step()
    mine = cases.records
    has_other = table.baseline in cases.methods and table.baseline != verdict.chosen
    index = records.first_repeat
    other = compared.predictions[table.baseline].take(index) if has_other else None
    shown: Mapping[str, Predictions] = {verdict.chosen: mine} | (
        {table.baseline: other} if other is not None else {}
    )
    is_classes = bool(records.classes)
    return ReportContent(
        scale, verdict, alerts_of(compared, verdict, cases, found),
        _methods(compared, scale, verdict), _labels(records.classes, label_names or {}),
        () if lengths is None else by_length(
            mine, other, lengths.values, lengths.cut, metric=table.metric
        ),
        "tokens" if lengths is None else lengths.unit,
        by_class(mine, other) if is_classes else (),
        confused_pairs(mine) if is_classes else (),
        {name: calibration(p) for name, p in shown.items()} if is_classes else {},
        cases, lengths, found, shown_texts(mine, found, compared.datasets), has_other,
        tuple(_said_by_views(probe, mine) for probe in compared.runs.probes),
    )  # fmt: skip


def _said_by_views(probe: LoadedProbe, records: Predictions) -> dict[str, Float64]:
    names = [view.name for view in probe.content.views]
    keys, found = read_view_predictions(probe.path, names, records.classes)
    if not found:
        return {}
    order = np.argsort(keys, kind="stable")
    place = order[np.minimum(np.searchsorted(keys[order], records.keys), len(keys) - 1)]
    if not np.array_equal(keys[place], records.keys) and records.of_words:
        return {}  # of another model, which cut long sentences at other words
    if not np.array_equal(keys[place], records.keys):
        raise DamagedError(
            f"{probe.path} has predictions for other records than the runs. Make the probe again."
        )
    return {name: np.asarray(said[place], np.float64) for name, said in found.items()}


def _cut(compared: Compared, chosen: str, lengths: Lengths | None) -> Bool:
    """Which texts the chosen method read in part."""
    count = len(compared.runs.records.first_repeat)
    if lengths is None:
        return np.zeros(count, np.bool_)
    for run in compared.runs.runs:
        if run.name == chosen and isinstance(run.content, FinetuneRun):
            if lengths.unit == "tokens":
                return np.asarray(lengths.values > run.content.truncated.limit)
            return np.zeros(count, np.bool_)
    return lengths.cut


def _labels(classes: Sequence[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """Labels with the names that are given for them.

    Raises:
        UsageError: a name is given for a label that does not occur.
    """
    if unknown := [label for label in names if label not in classes]:
        known = ", ".join(classes[:10]) or "none: these runs predict values"
        raise UsageError(f"label_names has {unknown[0]!r}, which is no label. Labels: {known}.")
    return tuple(f"{label} {names[label]}" if label in names else label for label in classes)


def _nearest(compared: Compared, cases: Cases, verdict: Verdict) -> Nearest | None:
    runs = {run.name: run.content for run in compared.runs.runs}
    content = runs.get(verdict.chosen)
    views = () if content is None else content.views
    if not views and verdict.layer is not None:
        views = (verdict.layer.best,)
    keys = {int(key): i for i, key in enumerate(cases.records.keys)}
    if not compared.datasets:
        return None
    return nearest_records(cases, compared.datasets[0], views, keys=keys)


def _methods(compared: Compared, scale: Scale, verdict: Verdict) -> tuple[Method, ...]:
    table = compared.table
    order = [verdict.chosen, table.baseline]
    order += [row.name for row in table.rows if row.kind != "majority"]
    styles = {name: i for i, name in enumerate(dict.fromkeys(order))}
    cost = _milliseconds(compared)
    return tuple(
        Method(
            row.name, row.kind, styles.get(row.name, len(styles)),
            row.scores[table.metric], effect_of(compared, row.name, table.baseline, scale),
            cost.get(row.name), row.name in verdict.unfit,
        )
        for row in table.rows
    )  # fmt: skip


def _milliseconds(compared: Compared) -> dict[str, float]:
    """From a text to its prediction; a blend costs its runs, each dataset encoded once."""
    found: dict[str, float] = {}
    encoding: dict[str, float] = {}
    known = True
    total = 0.0
    rows = {row.name: row.cost for row in compared.table.rows}
    for run in compared.runs.runs:
        cost = rows[run.name]
        if cost is None or cost.predict_seconds is None:
            known = False
            continue
        encode = cost.encode_seconds if run.content.views else 0.0
        total += cost.predict_seconds
        if encode is None:
            known = False
            continue
        if run.content.views:
            encoding[run.content.dataset.fingerprint] = encode
        found[run.name] = cost.predict_seconds + encode  # s per 1,000 are ms per text
    if known:
        for blend in compared.blends.values():
            found[blend.name] = total + sum(encoding.values())
    return found
