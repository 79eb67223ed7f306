"""Figures of runs, drawn as those of the report are, and written as SVG."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embedkit import storage
from embedkit.display import shorten
from embedkit.drawing import WIDTH, Anchor, Plot, Scene, as_file, text_width
from embedkit.encoding.views import layer_rank, split_view
from embedkit.runs.intervals import Score, wilson
from embedkit.runs.metrics import LOWER_IS_BETTER, metric_name, metric_text
from embedkit.runs.predictions import Predictions, confidence_of
from embedkit.runs.run import PredictionRun, ProbeRun, ViewScore
from embedkit.types import Float64, Int64

LARGEST_MATRIX = 20
"""Classes of the largest confusion matrix that can be read."""

# marks of a scatter plot: more hide each other, and make the page slow
_MOST_POINTS = 1_500
# the interval of 50 records is some 25 points long already
_PER_BIN, _MOST_BINS = 50, 10
_CURVES = 3


def draw_run(folder: Path, run: PredictionRun, predictions: Predictions) -> None:
    """Draw the out-of-fold predictions of a run to ``figures/``.

    Of a probe its scores, as ``layers.svg``, ``geometry.svg`` and learning curves ``learning.svg``.
    """
    if isinstance(run, ProbeRun):
        save(folder, layers=layers(run))
        if run.geometry:
            save(folder, geometry=without_labels(run))
        if run.view_scores[0].curve:
            save(folder, learning=learning(run))
        return
    p = predictions.take(predictions.out_of_fold)
    if p.of_sets:
        return  # neither a confusion matrix nor one confidence
    if not p.classes:
        save(folder, values=values(p))
        return
    save(folder, reliability=reliability({"run": (0, reliability_bins(p))}))
    if len(p.classes) <= LARGEST_MATRIX:
        save(folder, confusion=confusion(p))


def draw_training(
    folder: Path, models: Sequence[Sequence[Mapping[str, Any]]], *, metric: str
) -> None:
    """Draw losses and validation scores of every model, of its log, by epoch."""
    save(folder, training=training(losses_of(models, "loss")))
    if scores := _by_epoch(models, "valid_score"):
        save(folder, validation=training({f"validation {metric}": scores}))


def losses_of(
    models: Collection[Sequence[Mapping[str, Any]]], name: str = "train_loss"
) -> dict[str, list[list[tuple[float, float]]]]:
    """Return the curves of training losses, of this name, and validation losses by epoch."""
    return {
        "training loss": _by_epoch(models, name),
        "validation loss": _by_epoch(models, "valid_loss"),
    }


def _by_epoch(
    models: Collection[Sequence[Mapping[str, Any]]], name: str
) -> list[list[tuple[float, float]]]:
    curves = [[(e["epoch"], e[name]) for e in epochs if name in e] for epochs in models]
    return [sorted(points) for points in curves if points]


def save(folder: Path, **figures: Scene) -> None:
    """Write figures durably to the folder ``figures``.

    As SVG, which needs no other package.
    """
    storage.make_folder(folder / "figures")
    for name, scene in figures.items():
        file = folder / "figures" / f"{name}.svg"
        storage.write_durably(file, as_file(scene, "svg"))


class ReliabilityBin(NamedTuple):
    """Records of similar confidence: its mean, the fraction that is right, its Wilson interval."""

    confidence: float
    right: float
    low: float
    high: float
    records: int


def reliability_bins(p: Predictions) -> tuple[ReliabilityBin, ...]:
    """Return bins of as many records each, from the least to the most confident."""
    confidence, right, bins = confidence_of(p), p.y_pred == p.y, []
    order = np.argsort(confidence, kind="stable")
    # equal counts, not equal widths: most models are sure most of the time, and wide bins would be
    # empty
    for part in np.array_split(order, int(np.clip(len(order) // _PER_BIN, 1, _MOST_BINS))):
        ends = wilson(int(right[part].sum()), len(part))
        middle = float(confidence[part].mean()), float(right[part].mean())
        bins.append(ReliabilityBin(*middle, *ends, len(part)))
    return tuple(bins)


_FRACTIONS: dict[str, Any] = dict.fromkeys(("x_text", "y_text"), lambda value: f"{value * 100:g} %")
"""Axes in per cent."""


def reliability(methods: Mapping[str, tuple[int, Sequence[ReliabilityBin]]]) -> Scene:
    """Fraction of right predictions against their probability, of methods in their styles."""
    all_bins = [b for _, bins in methods.values() for b in bins]
    # axes begin at a round number: 5 % of confidence, 10 % of what is right
    first = math.floor(min(b.confidence for b in all_bins) * 20) / 20
    low = math.floor(min(min(b.confidence, b.low) for b in all_bins) * 10) / 10
    plot = Plot(
        (first, 1),
        (low, 1),
        title="Probabilities against fractions",
        x_name="probability of the predicted class",
        y_name="fraction that is right",
        description="; ".join(
            f"{name}: " + ", ".join(f"{b.confidence:.2f} → {b.right:.2f}" for b in bins)
            for name, (_, bins) in methods.items()
        ),
        **_FRACTIONS,
    )
    start = max(first, low)
    plot.line(plot.at(start, start), plot.at(1, 1), colour="soft", dashed=True)
    # drawn last, and so on top: the first method
    for style, bins in reversed(list(methods.values())):
        points = [(b.confidence, b.right) for b in bins]
        plot.curve(points, style, ends=[(b.low, b.high) for b in bins])
    return plot


def answered(methods: Mapping[str, tuple[int, Predictions]]) -> Scene:
    """Fraction that is right of the surest records, by their share, of methods in their styles."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for name, (_, p) in methods.items():
        right = (p.y_pred == p.y)[np.argsort(-confidence_of(p), kind="stable")]
        counts = np.arange(1, len(right) + 1)
        fractions = right.cumsum() / counts
        # of very few records the fraction is noise
        kept = np.unique(np.linspace(min(20, len(right)), len(right), 100).astype(int)) - 1
        lines[name] = [(counts[k] / len(right), float(fractions[k])) for k in kept]
    heights = [y for line in lines.values() for _, y in line]
    plot = Plot(
        (0, 1),
        (math.floor(min(heights) * 10) / 10, 1),
        title="Answered only when sure",
        x_name="answered, the surest first",
        y_name="fraction that is right",
        description="; ".join(
            f"{name}: half {line[np.searchsorted([x for x, _ in line], 0.5)][1]:.2f}, "
            f"all {line[-1][1]:.2f}"
            for name, line in lines.items()
        ),
        **_FRACTIONS,
    )
    for name, (style, _) in reversed(list(methods.items())):
        plot.curve(lines[name], style, marks=False)
    return plot


def values(p: Predictions) -> Scene:
    """Predicted against true values."""
    # every k-th record, rounded up: records are in the order of the input, not sorted by value
    step = -(-len(p.row) // _MOST_POINTS)
    y, predicted = p.y[::step], p.proba[::step]
    ends = (float(min(p.y.min(), p.proba.min())), float(max(p.y.max(), p.proba.max())))
    plot = Plot(
        ends,
        ends,
        title="Predicted against true values",
        x_name="true value",
        y_name="predicted value",
        description=f"{len(y):,} of {len(p.row):,} records",
        height=400,
    )
    plot.line(plot.at(ends[0], ends[0]), plot.at(ends[1], ends[1]), colour="soft", dashed=True)
    jitter = np.random.default_rng(0).uniform(-2, 2, len(y))  # ratings lie on each other
    for true, value, moved in zip(y.tolist(), predicted.tolist(), jitter.tolist(), strict=True):
        x, height = plot.at(true, value)
        plot.mark(x + moved, height, 0, radius=2.5, opacity=0.45)
    return plot


def confusion_counts(p: Predictions) -> tuple[Int64, Float64]:
    """Return counts of true against predicted classes, and fractions of the true class."""
    from sklearn.metrics import confusion_matrix

    counts = confusion_matrix(p.y, p.y_pred, labels=range(len(p.classes)))
    return counts, counts / np.maximum(counts.sum(1, keepdims=True), 1)


def confusion(p: Predictions) -> Scene:
    """Counts of true against predicted classes, shaded by the fraction of the true class."""
    count = len(p.classes)
    counts, fractions = confusion_counts(p)
    names = [shorten(name, 22) for name in p.classes]
    room = max(text_width(name, 12) for name in names) + 12
    cell = 48.0 if count <= 8 else 34.0
    # names that are wider than a cell stand upright above it
    size, turned = cell * count, room > cell
    left, top = room + 22, (room if turned else 18) + 30
    scene = Scene(
        left + size + 12,
        top + size + 12,
        title="Confusion matrix of held-out records",
        description="rows: true classes; columns: predicted classes",
    )
    scene.note(left + size / 2, 14, "predicted")
    scene.text(14, top + size / 2, "true", colour="soft", size=12, anchor="middle", turned=True)
    anchor: Anchor = "start" if turned else "middle"
    for i in range(count):
        middle = cell * (i + 0.5)
        scene.text(left - 6, top + middle + 4, names[i], size=12, anchor="end")
        at = left + middle + (4 if turned else 0), top - 6
        scene.text(*at, names[i], size=12, anchor=anchor, turned=turned)
        for j in range(count):
            x, y, depth = left + cell * j, top + cell * i, float(fractions[i, j])
            scene.box(x + 1, y + 1, cell - 2, cell - 2, colour="m0", opacity=0.04 + 0.7 * depth)
            number = f"{counts[i, j]:,}"
            scene.text(x + cell / 2, y + cell / 2 + 4, number, size=11, anchor="middle")
    return scene


def heat_map(
    metric: str,
    scores: Mapping[str, Score],
    *,
    framed: Collection[str] = (),
    untrained: Mapping[str, Sequence[float]] | None = None,
) -> Scene:
    """Scores by layer and pooling; pale: below the interval of the best one.

    In brackets: encoders that were never trained.
    """
    untrained = untrained or {}
    sign = -1 if metric in LOWER_IS_BETTER else 1
    cells = {split_view(view): view for view in scores}
    poolings = list(dict.fromkeys(pooling for pooling, _ in cells))
    layers = sorted(dict.fromkeys(layer for _, layer in cells), key=layer_rank)
    best = max(scores.values(), key=lambda score: sign * score.value)
    # shades fade to the lower end of the best interval; what lies beyond is equally pale
    margin = sign * (best.value - (best.low if sign > 0 else best.high))
    left = max(text_width(shorten(name, 14)) for name in ["layer", *layers]) + 14
    width = min((WIDTH - left) / len(poolings), 130.0)
    lines = _cell_lines(metric, scores, untrained, room=width - 8)
    height = 13.0 + 15 * max(map(len, lines.values()))
    text = "; ".join(f"{view} {metric_text(score.value, metric)}" for view, score in scores.items())
    title = f"{metric_name(metric)} by layer and pooling"
    scene = Scene(
        left + width * len(poolings), 26 + height * len(layers), title=title, description=text
    )
    scene.note(left - 10, 16, "layer", anchor="end")
    for column, pooling in enumerate(poolings):  # of words there is one vector for each layer
        head = metric_name(metric) if pooling == "layer" else pooling
        scene.note(left + width * (column + 0.5), 16, shorten(head, width / 8))
    for (pooling, layer), view in cells.items():
        x, y = left + width * poolings.index(pooling), 24 + height * layers.index(layer)
        score, chosen = scores[view], view in framed
        below = sign * (best.value - score.value)
        depth = max(0.0, 1 - below / margin) if margin > 0 else float(below <= 0)
        # a page finds the cell of a view by its name
        further = {"stroke": "ink", "stroke-width": "2"} if chosen else {}
        further["data-name"], shade = view, round(0.06 + 0.36 * depth, 3)
        scene.box(x + 2, y + 2, width - 4, height - 4, colour="m0", opacity=shade, **further)
        for number, line in enumerate(lines[view]):
            at, bold = y + 18 + 15 * number, chosen and not number
            scene.text(
                x + width / 2, at, line, size=11 if number else 12, anchor="middle", bold=bold
            )
    for row, layer in enumerate(layers):
        scene.text(left - 10, 24 + height * row + 18, shorten(layer, 14), anchor="end")
    return scene


def _cell_lines(
    metric: str,
    scores: Mapping[str, Score],
    untrained: Mapping[str, Sequence[float]],
    *,
    room: float,
) -> dict[str, list[str]]:
    """The lines of each cell: the score, half of its interval, untrained encoders in brackets."""
    lines = {}
    for view, score in scores.items():
        half = (score.high - score.low) / 2
        lines[view] = [metric_text(score.value, metric)]
        lines[view] += [f"±{metric_text(half, metric)}"] * math.isfinite(half)
    # on one line where all cells are wide enough; bold letters take 15 % more
    if all(text_width(" ".join(cell), 12) * 1.15 <= room for cell in lines.values()):
        lines = {view: [" ".join(cell)] for view, cell in lines.items()}
    for view, values in untrained.items():
        lines[view] = [*lines[view], f"({metric_text(float(np.mean(values)), metric)})"]
    return lines


def layers(probe: ProbeRun) -> Scene:
    """Scores of a probe by layer and pooling; framed: chosen inside of folds."""
    scores = {view.name: view.score for view in probe.view_scores}
    framed = [view.name for view in probe.view_scores if view.chosen]
    return heat_map(probe.metric, scores, framed=framed, untrained=probe.random_weights)


def without_labels(probe: ProbeRun) -> Scene:
    """Numbers of layers without labels, beside the score."""
    scores = {view.name: view.score.value for view in probe.view_scores}
    columns = {
        head: {view: (value, metric_text(value, "rmse")) for view, value in column.items()}
        for head, column in probe.geometry_columns.items()
    }
    shown = {view: (value, metric_text(value, probe.metric)) for view, value in scores.items()}
    return shaded_table("Layers without labels", list(scores), {"score": shown} | columns)


def shaded_table(
    title: str,
    rows: Sequence[str],
    columns: Mapping[str, Mapping[str, tuple[float, str]]],
    *,
    across: bool = False,
) -> Scene:
    """Values and texts by column and row; each column is shaded from its least to its most.

    ``across``: each row is, and its most is bold. Such a table is a file of its own, as wide as its
    names need; the other one has the width of a page, for which names are cut.
    """
    longest, first = (60, "task") if across else (18, "view")
    # names of views have wide letters, for which the estimate is too small
    left = max(text_width(shorten(name, longest)) for name in [first, *rows]) * 1.15 + 16
    width, height = min((WIDTH - left) / len(columns), 110.0), 26.0
    if across:
        width = max(46.0, *(text_width(name) * 1.15 for name in columns)) + 4
    description = "; ".join(
        f"{column}: {', '.join(f'{row} {text}' for row, (_, text) in cells.items())}"
        for column, cells in columns.items()
    )
    scene = Scene(
        left + width * len(columns), 26 + height * len(rows), title=title, description=description
    )
    scene.note(left - 10, 16, first, anchor="end")
    groups: dict[str, list[float]] = {}
    for column, cells in columns.items():
        for row, (value, _) in cells.items():
            groups.setdefault(row if across else column, []).append(value)
    for number, (column, cells) in enumerate(columns.items()):
        scene.note(left + width * (number + 0.5), 16, shorten(column, max(width / 6, 6)))
        for row, (value, text) in cells.items():
            x, y = left + width * number, 24 + height * rows.index(row)
            # groups have units of their own, so that shades are of a group, and a constant one is
            # pale
            numbers = [n for n in groups[row if across else column] if math.isfinite(n)]
            low, high = min(numbers, default=0.0), max(numbers, default=0.0)
            depth = (value - low) / ((high - low) or 1) if math.isfinite(value) else 0.0
            shade, bold = round(0.04 + 0.4 * depth, 3), across and value == high
            scene.box(x + 1, y + 1, width - 2, height - 2, colour="m0", opacity=shade)
            scene.text(x + width / 2, y + 17, text, size=12, anchor="middle", bold=bold)
    for number, row in enumerate(rows):
        scene.text(left - 10, 24 + height * number + 17, shorten(row, longest), anchor="end")
    return scene


def learning(result: ProbeRun) -> Scene:
    """Scores by number of training records, of the best view of each pooling."""
    lower = result.metric in LOWER_IS_BETTER
    best: dict[str, ViewScore] = {}
    sign = 1 if lower else -1
    # what inner folds chose comes first, since the highest score is partly luck
    for view in sorted(result.view_scores, key=lambda v: (-v.chosen, sign * v.score.value)):
        best.setdefault(split_view(view.name)[0], view)
    shown = list(best.values())[:_CURVES]
    points = [p for view in shown for _, p in view.curve]
    numbers = [v for p in points for v in (p.value, p.low, p.high) if math.isfinite(v)]
    counts = [records for records, _ in shown[0].curve]  # by the folds, the same for every view
    # of errors the axis is upside down: better is higher in every figure
    ends = (max(numbers), min(numbers)) if lower else (min(numbers), max(numbers))
    plot = Plot(
        (counts[0], counts[-1]),
        ends,
        title=f"Score by number of training {result.noun}s",
        x_name=f"training {result.noun}s",
        y_name=f"held-out {result.metric}",
        description="; ".join(
            f"{view.name}: "
            + ", ".join(f"{n} → {metric_text(p.value, result.metric)}" for n, p in view.curve)
            for view in shown
        ),
        x_ticks=counts,
        x_text="{:,.0f}".format,
        y_text=lambda value: metric_text(value, result.metric),
        room=max(text_width(shorten(view.name, 16), 12) for view in shown),
        log=True,
    )
    for style, view in enumerate(shown):
        line = [(records, p.value) for records, p in view.curve]
        plot.curve(line, style, ends=[(p.low, p.high) for _, p in view.curve])
    names = [(shorten(v.name, 16), v.curve[-1][1].value, i) for i, v in enumerate(shown)]
    plot.names(names, at_ends=True)
    return plot


def training(lines: Mapping[str, Sequence[Sequence[tuple[float, float]]]]) -> Scene:
    """Losses or scores by epoch: a thin line for each model, of a single epoch a mark."""
    points = [p for group in lines.values() for line in group for p in line]
    names = [name for name, group in lines.items() if group]
    plot = Plot(
        # from 0, so that a loss that hardly falls looks so
        (min(0.0, *(x for x, _ in points)), max(x for x, _ in points)),
        (min(0.0, *(y for _, y in points)), max(y for _, y in points) or 1.0),
        title=", ".join(names),
        x_name=f"epoch (a line for each of {max(map(len, lines.values()))} models)",
        y_name="",
        room=max(text_width(name, 12) for name in names),
    )
    for style, name in enumerate(names):
        for line in lines[name]:
            plot.curve(line, style, width=1.2)
    last = {name: float(np.mean([line[-1][1] for line in lines[name]])) for name in names}
    ends = [(name, end, style) for style, (name, end) in enumerate(last.items())]
    # a name stands at the mean of its lines, where a single one ends
    plot.names(ends, at_ends=all(len(group) < 2 for group in lines.values()))
    return plot
