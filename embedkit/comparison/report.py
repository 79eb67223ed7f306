"""A comparison as one HTML page that needs nothing else, and its charts as files.

    Compared ─┬─ recommendation ─ words            ┐
              ├─ charts_of ─ Scene ─ SVG           ├─ templates/report.html ─ NAME.html
              └─ cases ─ records ─ gzip, base64    ┘
                         Scene ─ a file each ────────────────────────────── NAME.figures/

A page holds the records themselves, so that it can be read, sorted and searched without this
program; texts are shortened until they fit.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from embedkit import drawing
from embedkit.arguments import accepts
from embedkit.comparison import table
from embedkit.comparison.cases import LISTS, Cases, by_class, cases_of, confused_pairs, is_right
from embedkit.comparison.load import FOREIGN, Dataset
from embedkit.comparison.recommendation import (
    Recommendation,
    cost_text,
    fit_text,
    model_text,
    notices,
    p_text,
    portable,
    recommend,
)
from embedkit.comparison.table import MAJORITY, Compared, Row, styles_of, trained
from embedkit.display import MINUS, bytes_text, count_text, duration_text, shorten
from embedkit.drawing import WIDTH, Plot, Scene, as_file, as_svg, colour_of, text_width
from embedkit.machine import __version__
from embedkit.pages import cut_texts, packed_json, page_file, render_page, shown, with_names
from embedkit.runs import figures as run_figures
from embedkit.runs.metrics import LOWER_IS_BETTER, interval_text, metric_name, metric_text
from embedkit.runs.predictions import Predictions, confidence_of, fold_names
from embedkit.runs.split import UNITS
from embedkit.storage import write_files
from embedkit.types import AnyPath, ProgressCallback, no_progress, steps

# of all texts in the page, which are shortened until they fit
_MOST_BYTES = 5_000_000
_FIRST_METHODS = 8


def write_report(
    compared: Compared,
    out: str | Path,
    *,
    texts: str | Path | None = None,
    label_names: Mapping[str, str] | None = None,
    figures: str | None = None,
    overwrite: bool = False,
    progress: ProgressCallback = no_progress,
) -> Path | None:
    """Write the page; return the folder of the charts, if ``figures`` is given.

    Args:
        compared: what :func:`~embedkit.comparison.table.compare` returned.
        out: ``.html`` file.
        texts: dataset or corpus file to take the texts of records from, instead of the datasets
            and the corpus of the runs.
        label_names: names to show beside labels.
        figures: also write the charts in this format, one of
            :data:`~embedkit.choices.FIGURE_FORMATS`, to ``NAME.figures/`` beside the page.
        overwrite: replace an earlier report.
        progress: called after every step.
    """
    page = page_file(out, overwrite=overwrite, name="report")
    if figures is not None:
        drawing.check_form(figures=figures)
    names = with_names(compared.records.classes, label_names or {})
    step = steps(progress, "report", 2, "steps")
    chosen = compared.selection.name
    cases = cases_of(compared, chosen, texts=texts)
    step()
    listed = dict.fromkeys([chosen, compared.baseline])
    # charts of records show two methods: more lines would hide what the page is about
    methods = {name: cases.methods[name] for name in listed if name != MAJORITY}
    charts = dict(charts_of(compared, cases, methods))
    classes = cases.records.classes if compared.records.of_sets else names
    html = render_page(
        "report",
        filters=_FILTERS,
        charts={name: as_svg(scene, name=name) for name, scene in charts.items()},
        classes=classes,
        names_of_classes=names,
        data=_payload(compared, cases, classes),
        **_content(compared, cases, methods, classes),
    )
    step()
    folder = page.with_suffix(".figures")
    files = {
        folder / f"{name}.{figures}": as_file(scene, figures)
        for name, scene in charts.items()
        if figures is not None
    }
    # the page is last: it is what makes the figures count, see write_files
    write_files(files | {page: html.encode()}, overwrite=overwrite)
    return folder if files else None


def _breaks(text: str) -> Any:
    """Text that may end a line after the marks inside names, rather than inside their words."""
    return Markup(re.sub(r"(?<=\w)[_/](?=\w)", r"\g<0><wbr>", str(escape(shown(text)))))


_FILTERS: dict[str, Callable[..., Any]] = {
    "p": p_text,
    "bytes": bytes_text,
    "breaks": _breaks,
    "counted": count_text,
    "metric": metric_name,
    "duration": lambda seconds: duration_text(seconds) or "–",
    "count": lambda n: f"{n:,}" if n < 1e6 else f"{n / 1e6:.4g} million",
}


def _content(
    compared: Compared, cases: Cases, methods: Mapping[str, Predictions], classes: Sequence[str]
) -> dict[str, Any]:
    """What the page shows beside charts and records."""
    chosen, index, runs = compared.selection.name, compared.records.out_of_fold, compared.runs
    # a confusion or a confidence belongs to one class, not to a set
    single = classes if not compared.records.of_sets else ()
    bins = run_figures.reliability_bins(cases.records) if single else ()
    drawn = 0 < len(single) <= run_figures.LARGEST_MATRIX
    predictions = {name: compared.predictions[name].take(index) for name in methods}
    other = predictions.get(compared.baseline) if len(methods) > 1 else None
    # the reliability curve says more than the calibration error
    metrics = [m for m in compared.rows[0].scores if m != "calibration_error"]
    metrics = list(dict.fromkeys([compared.metric, *metrics]))
    advice = recommend(compared)
    return {
        "score": partial(metric_text, unit=True),
        "interval": interval_text,
        "number": metric_text,
        "advice": advice,
        "compared": compared,
        "facts": _facts(compared),
        "tiles": list(_tiles(compared, advice, bins)),
        "notices": list(notices(compared, cases)),
        "legend": list(_legend(compared, methods)),
        "per_class": by_class(predictions[chosen], other) if classes else (),
        "pairs": confused_pairs(cases.records) if single else (),
        "matrix": run_figures.confusion_counts(cases.records) if drawn else (),
        "cases": cases,
        "metrics": metrics,
        "lower": ", ".join(metric_name(m) for m in metrics if m in LOWER_IS_BETTER),
        "unit": UNITS[runs[0].content.split.unit],
        "trained": [name for name, _ in trained(compared)],
        "commands": [(run.name, _command(run.content.command or "")) for run in runs],
        "ledgers": [(d.path.resolve().name, _ledger(d)) for d in compared.datasets],
        "version": __version__,
    }


class CompareResult(Compared):
    """A comparison that shows itself: one line, a table in a notebook, and a page."""

    # without it instances would have a __dict__ beside the slots of the base
    __slots__ = ()

    def __repr__(self) -> str:
        winner, metric = self.winner, self.metric
        score = metric_text(winner.scores[metric].value, metric, unit=True)
        advice = recommend(self)
        return f"{advice.title} ({winner.name}): {metric_name(metric)} {score}"

    def _repr_html_(self) -> str:
        advice = escape(recommend(self).reason)
        return f"<p><b>{escape(repr(self))}</b><br>{advice}</p>{self.to_frame().to_html()}"

    report = write_report


@accepts()
def compare(
    runs: str | Sequence[AnyPath],
    *,
    baseline: str | None = None,
    metric: str | None = None,
    min_difference: float | None = None,
    prefer: str = "cost",
    progress: ProgressCallback = no_progress,
) -> CompareResult:
    """Compare runs that were made under one split.

    The method to use is the best, unless a cheaper one lacks less than the smallest difference that
    matters even at the upper end of the interval of what it lacks. Candidates
    are the runs, their blends, and the view that each probe chooses inside the folds, if they are
    proven better than the majority; all of them if none is. Where there is a test set, a method
    that is proven worse on it than another candidate or the majority is ruled out. Cheaper is what
    predicts faster, then what trains faster, both to two digits.

    Two methods are compared by a paired test on the same units (groups, else texts, else records):
    Student's t of the difference and of an error from a jackknife of the units. Its p is corrected
    for all pairs of methods by Holm. ``docs/method.md`` has the definitions, their sources and
    error rates where the truth is known.

    Args:
        runs: folders that ``train``, ``finetune`` or ``probe`` wrote; and files with predictions of
            other tools for the same records: columns ``id``, ``y_pred`` or ``proba_`` and the name
            of each class, and ``fold``.
        baseline: name of a run, or ``majority``; by default the first run on TF-IDF, else
            ``majority``.
        metric: metric to sort and test by, such as ``log_loss`` or ``f2``; by default that by which
            all runs chose their thresholds, else accuracy, or macro-F1 where one class has more
            than 80 % of the records or classes were weighted; with ``multilabel`` micro-F1; for
            numeric targets the root mean squared error.
        min_difference: smallest difference that matters, in points of metrics in per cent, else in
            the metric's units: by default 1 point, 0.01 of a correlation or of R², at most a tenth
            of what the best lacks to 1, and of errors 1 % of the baseline's.
        prefer: ``cost``, or ``score``: the method to use is the best whatever it costs.
        progress: called after every run and method.

    Returns:
        The numbers of all methods: ``winner`` is the method to use, ``rows`` are scores with their
        intervals and differences, the best first, ``to_frame()`` a table of them, ``report(...)``
        a page.

    Raises:
        UsageError: a run, name or metric does not exist.
        MismatchError: the runs are not of one split, corpus and label.

    Example:
        >>> result = embedkit.compare(["runs/logreg"], metric="macro_f1")
        >>> result.winner.name, list(result.to_frame().index)
        ('logreg', ['logreg', 'majority'])
    """
    result = table.compare(**locals())  # before there are any others than the arguments
    return CompareResult(**{field.name: getattr(result, field.name) for field in fields(result)})


def _facts(compared: Compared) -> str:
    """Inputs, number of records, models and folds, as one line."""
    runs, classes = compared.runs, compared.records.classes
    of_runs = [run.content.dataset.names for run in runs]
    of_datasets = [dataset.manifest.names for dataset in compared.datasets] or of_runs
    inputs = dict.fromkeys(Path(file).name for names in of_datasets for file in names.inputs)
    labels = f", {count_text(len(classes), 'label')}" if classes else ""
    contents = (run.content for run in runs if run.content.kind != FOREIGN)
    encoders = [Path(c.dataset.names.model).name for c in contents if c.features != "tfidf"]
    parts = [
        ", ".join(inputs),
        f"{count_text(compared.counts['folds'], compared.noun)}{labels}",
        ", ".join(dict.fromkeys(encoders)),
        count_text(runs[0].content.split.folds, "fold"),
    ]
    return " · ".join(filter(None, parts))


def _tiles(
    compared: Compared, advice: Recommendation, bins: Sequence[run_figures.ReliabilityBin]
) -> Iterator[tuple[str, str, str, str]]:
    """Label, large text, small text and verdict of the four tiles."""
    metric, method = compared.metric, advice.method
    score, guess = method.scores[metric], compared.row(MAJORITY).scores[metric].value
    around = [interval_text(score, metric), f"guessing {metric_text(guess, metric, unit=True)}"]
    name = "correct" if metric == "accuracy" else metric_name(metric)
    yield name, metric_text(score.value, metric, unit=True), " · ".join(filter(None, around)), ""
    gain = metric_text(advice.gain.value, metric, signed=True, unit=True)
    ends = interval_text(advice.gain, metric, signed=True)
    yield f"against {advice.against}", gain, ends, advice.verdict
    fit = fit_text(method)
    label = f"cost of a {'word' if compared.level == 'word' else 'text'}, in a batch"
    yield label, cost_text(method) or "unknown", f"{fit} to train" if fit else "", ""
    if bins:
        records = sum(b.records for b in bins)
        # by bins of equal count as in the figure, not by the 15 equal widths of the calibration
        # error
        error = sum(b.records * abs(b.confidence - b.right) for b in bins) / records
        trust = "Yes" if error <= 0.05 else "Roughly" if error <= 0.1 else "No"
        off = f"off by {error * 100:.1f} points on average"
        if len(bins) == 1:  # which compares two means: errors on both sides would cancel out
            trust, off = "Not known", f"too few {compared.noun}s to tell"
        elif bins[0].confidence == 1 and method.kind == FOREIGN:
            trust, off = "Not known", "there are decisions alone"
        yield "trust its probabilities?", trust, off, ""
    elif compared.records.of_sets:
        score = method.scores["subset_accuracy"]
        text = interval_text(score, "subset_accuracy")
        yield "all classes right", metric_text(score.value, "accuracy", unit=True), text, ""
    else:
        scores, y = method.scores, compared.records.y
        name = next((m for m in ("pearson", "spearman", "r2") if m in scores), metric)
        label = f"{metric_name(name)} with the truth"
        reach = f"true values {y.min():.4g} to {y.max():.4g}".replace("-", MINUS)
        yield label, metric_text(scores[name].value, name), reach, ""


def _legend(compared: Compared, methods: Mapping[str, Predictions]) -> Iterator[tuple[Markup, str]]:
    """Symbol and name of the methods that charts show."""
    styles = styles_of(compared)
    for name in methods:
        scene = Scene(14, 14, title="")
        scene.mark(7, 7, styles[name], radius=5)
        yield as_svg(scene, name="symbol"), name


def _payload(compared: Compared, cases: Cases, classes: Sequence[str]) -> str:
    """The records as base64 of gzipped JSON; the same records give the same bytes."""

    def numbers(values: Any) -> list[Any]:
        # seven digits: JSON would write 17 of each value
        return [int(v) if classes else float(f"{v:.7g}") for v in values]

    records, methods = cases.records, cases.methods.values()
    named = {"chosen": compared.selection.name, "baseline": compared.baseline}
    neighbours = {
        str(i): [[j, round(cosine * 1_000)] for j, cosine in pairs]
        for i, pairs in cases.near.items()
        if pairs
    }
    return packed_json(
        {
            "labels": classes,
            "noun": compared.noun,
            "methods": list(cases.methods),
            "rows": records.row.tolist(),
            "ids": records.ids,
            "fold": fold_names(records.fold),
            "y": numbers(records.y),
            "predicted": [numbers(p.y_pred) for p in methods],
            # in thousandths, as integers, which are short in JSON; of two classes with three digits
            # more, since a threshold may be that of a rare one
            "confidence": [
                np.round(confidence_of(p) * 1_000, 3).tolist()
                if len(classes) == 2
                else np.rint(confidence_of(p) * 1_000).astype(int).tolist()
                for p in methods
                if classes
            ],
            "right": [] if classes else [is_right(p).astype(int).tolist() for p in methods],
            "texts": cut_texts(cases.texts, most_bytes=_MOST_BYTES),
            "lengths": None if cases.lengths is None else cases.lengths.tolist(),
            "lists": {name: index.tolist() for name, index in cases.lists.items()},
            "order": [*cases.lists, "all"],
            "names": {name: text.format(**named) for name, text in LISTS.items()},
            "near": {"view": cases.view, "of": neighbours} if cases.view else None,
            "views": [
                {view: numbers(values) for view, values in run.predictions.views.items()}
                for run in compared.runs
                if run.predictions.views and not compared.records.of_sets
            ],
            "limit": None if classes else float(np.std(records.y)),
        }
    )


def _command(command: str) -> str:
    """A command as it was typed, without the folders of this machine."""
    local = partial(re.sub, r"(?s)^(--[\w-]+=)?(/.+)", lambda m: (m[1] or "") + portable(m[2]))
    return shlex.join(map(local, shlex.split(command)))


def _ledger(dataset: Dataset) -> str:
    """Settings of a dataset, and the counts of its records and tokens."""
    manifest = dataset.manifest
    totals, limit = manifest.totals, manifest.job.vectors.max_length
    ledger = totals.ledger
    cut, lost = count_text(ledger.get("records_truncated", 0), "text"), ledger.get("tokens_cut", 0)
    lines = [
        f"made for: {', '.join(dataset.runs)}",
        f"model: {model_text(manifest.names.checkpoint)}",
        f"records: {totals.embedded_text()}",
        f"tokens: {ledger.get('tokens', 0):,}; {cut} cut at {limit}, {lost:,} lost",
        f"fingerprint: {manifest.fingerprint}",
    ]
    return "\n".join(lines)


# charts


def charts_of(
    compared: Compared, cases: Cases, methods: Mapping[str, Predictions]
) -> Iterator[tuple[str, Scene]]:
    """Yield the charts that the runs allow, by name, in the order of the page."""
    styles, metric = styles_of(compared), compared.metric
    rows = [row for row in compared.rows if row.kind != "majority"]
    candidates = [row for row in rows if row.to_baseline and math.isfinite(row.to_baseline.low)]
    first = candidates[:_FIRST_METHODS]
    if first and compared.winner in candidates and compared.winner not in first:
        # the method that the page recommends is drawn even if others gain more
        first[-1] = compared.winner
    if first:
        yield "forest", forest(compared, first, styles)
    timed = [row for row in rows if row.cost and row.cost.milliseconds]
    timed = [row for row in timed if math.isfinite(row.scores[metric].value)]
    if len(timed) > 1:
        yield "cost", cost(compared, timed, styles)
    probes = [content for _, content in compared.probes]
    for number, probe in enumerate(probes, 1):
        yield f"layers-{number}", run_figures.layers(probe)
        if probe.geometry:
            yield f"geometry-{number}", run_figures.without_labels(probe)
    for probe in [probe for probe in probes if probe.view_scores[0].curve][:1]:
        yield "curve", run_figures.learning(probe)
    if not cases.records.classes:
        yield "values", run_figures.values(cases.records)
    elif not compared.records.of_sets:  # of which a record has one probability for each class
        # not of other tools of which there are decisions alone
        foreign = {row.name for row in rows if row.kind == FOREIGN}
        sure = {n: p for n, p in methods.items() if n not in foreign or p.proba.max(1).min() < 1}
        if sure:
            yield "sure", run_figures.answered({n: (styles[n], p) for n, p in sure.items()})
            bins = {n: (styles[n], run_figures.reliability_bins(p)) for n, p in sure.items()}
            yield "calibration", run_figures.reliability(bins)
    for number, (_, run) in enumerate(trained(compared), 1):
        losses = run_figures.losses_of(run.history.values())
        yield f"training-{number}", run_figures.training(losses)


def forest(compared: Compared, rows: Sequence[Row], styles: Mapping[str, int]) -> Scene:
    """Gains over the baseline with their intervals; the band is too small to matter."""
    baseline, metric, margin = compared.baseline, compared.metric, compared.min_difference
    gains = [row.to_baseline for row in rows if row.to_baseline]
    numbers = [metric_text(gain.value, metric, signed=True) for gain in gains]
    names = [shorten(row.name, 22) for row in rows]
    left = max(text_width(name) for name in names) * 1.1 + 16  # one of them is bold
    right, height, top = WIDTH - max(text_width(n) for n in numbers) - 14, 30.0, 6.0
    bottom = top + height * len(rows)
    ends = [0.0, margin, -margin, *(end for gain in gains for end in (gain.low, gain.high))]
    low, high = sorted((min(ends), max(ends)), reverse=compared.lower)
    title = f"Gain in {metric_name(metric)} over {baseline}"
    description = "; ".join(f"{name} {number}" for name, number in zip(names, numbers, strict=True))
    scene = Scene(WIDTH, bottom + 24, title=title, description=description)

    def x(value: float) -> float:
        return left + (value - low) / ((high - low) or 1) * (right - left)

    edges = sorted((x(-margin), x(margin)))
    scene.box(edges[0], top, edges[1] - edges[0], bottom - top, colour="band")
    scene.line((x(0), top), (x(0), bottom), colour="soft")
    for tick in drawing.ticks(min(ends), max(ends), 4):
        label = metric_text(tick, metric, signed=True) if tick else shorten(baseline, 10)
        # the tick at 0 is the name of the baseline, which needs room
        if not tick or abs(x(tick) - x(0)) > 60:
            scene.note(x(tick), bottom + 18, label.removesuffix(".0"))
    for number, (row, gain) in enumerate(zip(rows, gains, strict=True)):
        y, style = top + height * (number + 0.5), styles[row.name]
        scene.text(0, y + 4, names[number], bold=row is compared.winner)
        span = ((x(gain.low), y), (x(gain.high), y))
        scene.line(*span, colour=colour_of(style), width=3, opacity=0.55)
        scene.mark(x(gain.value), y, style)
        scene.text(WIDTH, y + 4, numbers[number], colour="soft", anchor="end")
    return scene


def cost(compared: Compared, rows: Sequence[Row], styles: Mapping[str, int]) -> Scene:
    """Score against time per text or word; dashed: nothing is both quicker and better."""
    metric = compared.metric
    times = [(row.cost.milliseconds if row.cost else None) or 1.0 for row in rows]
    scores = [row.scores[metric] for row in rows]
    ends = [v for score in scores for v in (score.low, score.high) if math.isfinite(v)]
    ends = ends or [score.value for score in scores]
    pad = (max(ends) - min(ends)) * 0.06 or 0.01
    low, high = sorted((min(ends) - pad, max(ends) + pad), reverse=compared.lower)
    names = [shorten(row.name, 16) for row in rows]
    plot = Plot(
        (min(times) / 1.6, max(times) * 1.6),
        (low, high),
        title="Score against time",
        x_name="milliseconds a word" if compared.level == "word" else "milliseconds a text",
        y_name=metric_name(metric),
        description="; ".join(
            f"{row.name}: {metric_text(score.value, metric, unit=True)}, {cost_text(row)}"
            for row, score in zip(rows, scores, strict=True)
        ),
        x_ticks=_round_times(min(times) / 1.6, max(times) * 1.6),
        y_text=lambda value: metric_text(value, metric),
        height=max(290.0, 19.0 * len(rows) + 80),
        room=max(text_width(name, 12) for name in names),
        log=True,
    )
    places = [plot.at(time, score.value) for time, score in zip(times, scores, strict=True)]
    # the frontier as stairs; y counts downwards in SVG, so that less is better
    front: list[tuple[float, float]] = []
    for point in sorted(places):  # the quickest first, of equals the best
        if not front or point[1] < front[-1][1]:
            front += [(point[0], front[-1][1]), point] if front else [point]
    plot.line(*front, (plot.right, front[-1][1]), colour="soft", dashed=True)
    each = [styles[row.name] for row in rows]
    for time, place, score, style in reversed(list(zip(times, places, scores, each, strict=True))):
        span = [plot.at(time, end) for end in (score.low, score.high) if math.isfinite(end)]
        if len(span) == 2:
            plot.line(*span, width=2, colour=colour_of(style), opacity=0.5)
        plot.mark(*place, style)
    plot.names([(n, s.value, style) for n, s, style in zip(names, scores, each, strict=True)])
    return plot


def _round_times(low: float, high: float) -> list[float]:
    """Round values on a logarithmic axis: decades, and more where these are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    times: list[float] = []
    for factors in ((1,), (1, 3), (1, 2, 5)):
        times = [f * 10.0**d for d in decades for f in factors if low <= f * 10.0**d <= high]
        if len(times) > 2:
            break
    return times
