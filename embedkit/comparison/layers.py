"""What a probe shows: scores by layer and pooling, and learning curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np

from embedkit.comparison.drawing import Scene, apart, colour_of, text_width, ticks
from embedkit.comparison.load import LoadedProbe
from embedkit.comparison.phrases import Phrases
from embedkit.display import shorten
from embedkit.encoding.views import layer_rank, split_view
from embedkit.runs.content import CurvePoint, ViewScore
from embedkit.runs.metrics import LOWER_IS_BETTER

__all__ = ["curve", "curves_of", "frames_inverted", "heat_map", "random_means"]

_SHOWN_CURVES = 3


def random_means(probe: LoadedProbe) -> dict[str, float]:
    """Return the mean score of encoders that were never trained, by view."""
    return {name: float(np.mean(one)) for name, one in probe.content.random_weights.items()}


def heat_map(probe: LoadedProbe, words: Phrases, width: float) -> Scene:
    """Scores by layer and pooling; what is not told apart from the best is framed.

    Layers are columns where they fit, else rows.
    """
    metric, views = probe.content.metric, probe.content.views
    random = random_means(probe)
    cells = {split_view(view.name): view for view in views}
    poolings = list(dict.fromkeys(pooling for pooling, _ in cells))
    layers = sorted(dict.fromkeys(layer for _, layer in cells), key=layer_rank)
    across = width >= 64 + 52 * len(layers)
    rows, tops = (poolings, layers) if across else (layers, poolings)
    label = max(text_width(shorten(name, 14)) for name in [*rows, words("layers.layer")]) + 22
    cell_width = min((width - label - 4) / len(tops), 78.0 if across else 110.0)
    cell_height = 44.0 if not random else 58.0
    top = 24.0
    values = [*(view.score.value for view in views), *random.values()]
    low, high = min(values), max(values)
    if metric in LOWER_IS_BETTER:
        low, high = high, low
    scene = Scene(width, top + cell_height * len(rows) + 6, title=words("section.layers"),
                  description="; ".join(f"{v.name} {words.score(v.score.value, metric)}"
                                        for v in views))  # fmt: skip
    if across:
        scene.note(label - 10, 16, words("layers.layer"), anchor="end")
    for number, name in enumerate(tops):
        scene.note(label + cell_width * (number + 0.5), 16, shorten(name, cell_width / 8))
    for line, row in enumerate(rows):
        y = top + cell_height * line
        scene.text(label - 10, y + cell_height / 2 + 4, shorten(row, 14), anchor="end")
        for number, name in enumerate(tops):
            view = cells.get((row, name) if across else (name, row))
            if view is not None:
                depth = 0.0 if high == low else (view.score.value - low) / (high - low)
                box = (label + cell_width * number + 2, y + 2, cell_width - 4, cell_height - 4)
                _cell(scene, words, view, metric, depth, random.get(view.name), box)
    return scene


def frames_inverted(probe: LoadedProbe) -> bool:
    """Return whether a view that is told apart from the best has a better score than another."""
    sign = -1 if probe.content.metric in LOWER_IS_BETTER else 1
    found = {level: [sign * v.score.value for v in probe.content.views if v.is_level == level]
             for level in (True, False)}  # fmt: skip
    return bool(found[True]) and bool(found[False]) and max(found[False]) > min(found[True])


def _cell(
    scene: Scene, words: Phrases, view: ViewScore, metric: str, depth: float,
    random: float | None, box: tuple[float, float, float, float],
) -> None:  # fmt: skip
    x, y, width, height = box
    scene.box(x, y, width, height, colour="m0", opacity=round(0.05 + 0.4 * depth, 3),
              outline="ink" if view.is_level else None, name=view.name)  # fmt: skip
    middle, half = x + width / 2, (view.score.high - view.score.low) / 2
    scene.text(middle, y + 17, words.number(view.score.value, metric), size=13, anchor="middle",
               bold=view.is_level)  # fmt: skip
    if math.isfinite(half):
        scene.text(middle, y + 32, f"±{words.number(half, metric)}", size=11, anchor="middle")
    if random is not None:
        scene.text(middle, y + 47, f"({words.number(random, metric)})", size=11, anchor="middle")


def curves_of(probe: LoadedProbe) -> list[tuple[str, Sequence[CurvePoint]]]:
    """Return the best view of each pooling, and TF-IDF (named ``""``), with their curves."""
    sign = 1 if probe.content.metric in LOWER_IS_BETTER else -1
    best: dict[str, ViewScore] = {}
    for view in sorted(probe.content.views, key=lambda v: (-v.chosen, sign * v.score.value)):
        if view.curve:
            best.setdefault(split_view(view.name)[0], view)
    found: list[tuple[str, Sequence[CurvePoint]]] = [
        (view.name, view.curve) for view in list(best.values())[:_SHOWN_CURVES]
    ]
    return found + ([("", probe.content.tfidf)] if probe.content.tfidf else [])


def curve(probe: LoadedProbe, styles: Mapping[str, int], words: Phrases, width: float) -> Scene:
    """Scores by number of training records, of the best view of each pooling and of TF-IDF.

    Args:
        probe: the probe.
        styles: numbers of the colours of methods on the page, by view; that of TF-IDF by ``""``.
        words: phrases and numbers.
        width: of the drawing.
    """
    metric = probe.content.metric
    found = curves_of(probe)
    free = (style for style in count() if style not in styles.values())
    names = [name or words("curve.tfidf") for name, _ in found]
    height, left = 270.0, 56.0
    bottom = height - 44
    right = width - max(text_width(shorten(name, 16), 12) for name in names) - 20
    ends = [value for _, points in found for p in points for value in (p.score, p.low, p.high)
            if math.isfinite(value)]  # fmt: skip
    counts = [p.records for p in found[0][1]]
    low, high = min(ends), max(ends)
    flip = metric in LOWER_IS_BETTER

    def x(records: float) -> float:
        span = math.log(counts[-1] / counts[0]) or 1
        return left + 8 + math.log(records / counts[0]) / span * (right - left - 16)

    def y(value: float) -> float:
        part = (value - low) / ((high - low) or 1)
        return 14 + (part if flip else 1 - part) * (bottom - 20)

    scene = Scene(width, height, title=words("section.curve"), description="; ".join(
        f"{name}: " + ", ".join(f"{p.records} → {words.number(p.score, metric)}" for p in points)
        for name, (_, points) in zip(names, found, strict=True)
    ))  # fmt: skip
    for tick in ticks(low, high, 4):
        scene.line((left, y(tick)), (right, y(tick)))
        scene.note(left - 6, y(tick) + 4, words.mark(tick, metric), anchor="end")
    for records in counts:
        scene.note(x(records), bottom + 18, f"{records:,}")
    scene.note((left + right) / 2, height - 6, words("curve.axis"))
    places = apart([y(points[-1].score) for _, points in found], 16, low=14, high=bottom)
    for (key, points), name, place in zip(found, names, places, strict=True):
        style = styles[key] if key in styles else next(free)
        colour = colour_of(style)
        if all(math.isfinite(p.low) for p in points):
            scene.area(*((x(p.records), y(p.high)) for p in points),
                       *((x(p.records), y(p.low)) for p in reversed(points)), colour=colour,
                       opacity=0.13)  # fmt: skip
        scene.line(*((x(p.records), y(p.score)) for p in points), colour=colour, width=2)
        for p in points:
            scene.mark(x(p.records), y(p.score), style, radius=3.5)
        scene.text(right + 4, place + 4, shorten(name, 16), colour=colour, size=12,
                   bold=key == found[0][0])  # fmt: skip
    return scene
