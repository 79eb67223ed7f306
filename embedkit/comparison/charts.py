"""The pictures of a report, drawn for a given width."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from embedkit.comparison.content import Method, ReportContent
from embedkit.comparison.drawing import Scene, apart, colour_of, text_width, ticks
from embedkit.comparison.phrases import Phrases
from embedkit.display import shorten
from embedkit.runs.resampling import Score

__all__ = ["Chart", "charts_of"]

_TOP = 8.0
_MOST_POINTS = 1_500


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture: its name, and a function from the width in pixels to a drawing."""

    name: str
    scene: Callable[[float], Scene]


def charts_of(content: ReportContent, words: Phrases) -> Iterator[Chart]:
    """Return the pictures that the runs allow, in the order of the page."""
    for name, (possible, draw) in CHARTS.items():
        if possible(content):
            yield Chart(name, partial(draw, content, words))


@dataclass(frozen=True, slots=True)
class _Axis:
    """Values to pixels, linearly or by their logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        if high == low:
            return (self.start + self.end) / 2
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def _forest_rows(content: ReportContent) -> list[Method]:
    return [m for m in content.methods if m.effect is not None and m.kind != "majority"
            and math.isfinite(m.effect.value) and math.isfinite(m.effect.low)]  # fmt: skip


def forest(content: ReportContent, words: Phrases, width: float) -> Scene:
    """Differences to the baseline with their intervals, and the margin as a band."""
    rows = _forest_rows(content)
    row, left, right = 46.0, 14.0, width - 14
    bottom = _TOP + row * len(rows)
    numbers = [_effect_text(m, words) for m in rows]
    room = (width - max(text_width(n, 12) for n in numbers) - 30) / 7.8
    names = [shorten(words.method(m.name), room) for m in rows]
    effects = [m.effect for m in rows if m.effect is not None]
    worth = content.scale.worth
    ends = [0.0, worth, -worth, *(e.low for e in effects), *(e.high for e in effects)]
    low, high = min(ends), max(ends)
    axis = _Axis(*((high, low) if content.scale.lower else (low, high)), left, right)
    scene = Scene(width, bottom + 40, title=words("section.forest"), description="; ".join(
        f"{name} {number}" for name, number in zip(names, numbers, strict=True)
    ))  # fmt: skip
    edges = sorted((axis(-worth), axis(worth)))
    marked = ticks(low, high, 7 if width > 400 else 4)
    for number, (method, name, said) in enumerate(zip(rows, names, numbers, strict=True)):
        effect = method.effect
        assert effect is not None
        y = _TOP + row * number + 33
        scene.text(0, y - 18, name, bold=not method.style)
        scene.note(width, y - 18, said, anchor="end")
        scene.box(edges[0], y - 10, edges[1] - edges[0], 20, colour="band")
        for tick in marked:
            scene.line((axis(tick), y - 10), (axis(tick), y + 10))
        scene.line((axis(0), y - 10), (axis(0), y + 10), colour="ink", width=1.2)
        colour = colour_of(method.style)
        scene.line((axis(effect.low), y), (axis(effect.high), y), colour=colour, width=3)
        scene.mark(axis(effect.value), y, method.style)
    for tick in marked:
        label = "0" if abs(tick) < 1e-12 else _plain_signed(words, tick)
        scene.note(axis(tick), bottom + 17, label)
    unit = words("points", value="").strip() if content.scale.percent else words.metric(
        content.scale.metric
    )  # fmt: skip
    scene.note((left + right) / 2, bottom + 34, unit)
    return scene


def _effect_text(method: Method, words: Phrases) -> str:
    effect = method.effect
    assert effect is not None
    return f"{words.signed(effect.value)} ({words.change(effect)})"


def _plain_signed(words: Phrases, value: float) -> str:
    signed = words.signed(value)
    return signed.rstrip("0").rstrip(".") if "." in signed else signed


def _cost_rows(content: ReportContent) -> list[Method]:
    return [m for m in content.methods if m.milliseconds and math.isfinite(m.score.value)]


def cost(content: ReportContent, words: Phrases, width: float) -> Scene:
    """Score against time per text, and the frontier."""
    rows = _cost_rows(content)
    room = 26 if width > 400 else 15
    names = {m.name: shorten(words.method(m.name), room) for m in rows}
    height = max(290.0, 19.0 * len(rows) + 80)
    bottom, left = height - 44, 52.0
    right = width - max(text_width(n, 12) for n in names.values()) - 22
    times = [m.milliseconds or 1.0 for m in rows]
    x = _Axis(min(times) / 1.8, max(times) * 1.8, left + 6, right, log=True)
    ends = [v for m in rows for v in (m.score.low, m.score.high) if math.isfinite(v)]
    ends = ends or [m.score.value for m in rows]
    y = _score_axis(content, min(ends), max(ends), bottom, _TOP + 6)
    scene = Scene(width, height, title=words("section.cost"), description="; ".join(
        f"{names[m.name]}: {words.score(m.score.value)}, {m.milliseconds or 0:.3g} ms"
        for m in rows
    ))  # fmt: skip
    _score_grid(scene, words, y, left, right)
    for value in _round_times(x.low, x.high):
        scene.line((x(value), bottom), (x(value), bottom + 5), colour="soft")
        scene.note(x(value), bottom + 19, f"{value:g}")
    scene.note((left + right) / 2, height - 6, words("cost.axis"))
    corners: list[tuple[float, float]] = []
    for method in _frontier(rows, content):
        here = (x(method.milliseconds or 1), y(method.score.value))
        corners += [(here[0], corners[-1][1]), here] if corners else [here]
    scene.line(*corners, (right, corners[-1][1]), colour="soft", dashed=True)
    for method in reversed(rows):
        px, py = x(method.milliseconds or 1), y(method.score.value)
        if math.isfinite(method.score.low):
            scene.line((px, y(method.score.low)), (px, y(method.score.high)), width=2,
                       colour=colour_of(method.style), opacity=0.5)  # fmt: skip
        scene.mark(px, py, method.style)
    marks = [(names[m.name], x(m.milliseconds or 1), y(m.score.value), m.style) for m in rows]
    _names_of_marks(scene, marks, right, (_TOP + 6, bottom))
    return scene


def _round_times(low: float, high: float) -> list[float]:
    """Round values between two on a logarithmic axis: decades, and more where these are few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5)):
        found = [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]
        if len(found) > 2:
            break
    return found


def _names_of_marks(
    scene: Scene, marks: Sequence[tuple[str, float, float, int]], right: float,
    room: tuple[float, float],
) -> None:  # fmt: skip
    """Write names beside marks with nothing to the right of them, the others in a column."""
    crowded = []
    for name, x, y, style in marks:
        end = x + 14 + text_width(name, 12)
        if end < right and not any(x - 4 < other < end + 8 for n, other, *_ in marks if n != name):
            scene.text(x + 11, y - 5, name, size=12, bold=not style)
        else:
            crowded.append((name, x, y, style))
    _names_at_right(scene, crowded, right, room)


def _frontier(rows: Sequence[Method], content: ReportContent) -> list[Method]:
    """Methods of which none other is both quicker and better."""
    front: list[Method] = []
    sign = -1 if content.scale.lower else 1
    for method in sorted(rows, key=lambda m: (m.milliseconds or 0, -sign * m.score.value)):
        if not front or sign * method.score.value > sign * front[-1].score.value:
            front.append(method)
    return front


def _names_at_right(
    scene: Scene, marks: Sequence[tuple[str, float, float, int]], right: float,
    room: tuple[float, float],
) -> None:  # fmt: skip
    """Write names in a column beside the plot, none over another, with lines to their marks."""
    ordered = sorted(marks, key=lambda mark: mark[2])
    places = apart([y for _, _, y, _ in ordered], 18, low=room[0] - 18, high=room[1])
    for (name, x, y, style), place in zip(ordered, places, strict=True):
        scene.line((x + 8, y), (right + 4, place), (right + 10, place), colour=colour_of(style),
                   width=0.8, opacity=0.7)  # fmt: skip
        scene.text(right + 14, place + 4, name, size=12, bold=not style)


def _score_axis(
    content: ReportContent, low: float, high: float, bottom: float, top: float
) -> _Axis:
    """A vertical axis on which better is up."""
    pad = (high - low) * 0.06 or 0.01
    low, high = low - pad, high + pad
    return _Axis(high, low, bottom, top) if content.scale.lower else _Axis(low, high, bottom, top)


def _score_grid(scene: Scene, words: Phrases, y: _Axis, left: float, right: float) -> None:
    low, high = sorted((y.low, y.high))
    for tick in ticks(low, high, 4):
        scene.line((left, y(tick)), (right, y(tick)), colour="line")
        scene.note(left - 6, y(tick) + 4, words.mark(tick), anchor="end")


def length(content: ReportContent, words: Phrases, width: float) -> Scene:
    """Scores by quarter of the text lengths, of the chosen method and the baseline."""
    bins = content.lengths
    wide = width > 500
    row = 52.0
    labels = [_length_label(content, words, i) for i in range(len(bins))]
    left = max(text_width(text, 13) for text in labels) + 16 if wide else 10.0
    changes = ["" if b.difference is None else words.signed(b.difference.value) for b in bins]
    right = width - (max(text_width(t, 12) for t in changes) + 14 if content.has_other else 12)
    top = _TOP + (0 if wide else 12)
    bottom = top + row * len(bins)
    scores = [s for b in bins for s in (b.score, b.other) if s is not None]
    ends = [v for s in scores for v in (s.low, s.high, s.value) if math.isfinite(v)] or [0, 1]
    axis = _Axis(min(ends), max(ends), left + 8, right - 10)
    scene = Scene(width, bottom + 40, title=words("section.length"), description="; ".join(
        f"{label}: {words.score(b.score.value)} {change}".rstrip()
        for label, b, change in zip(labels, bins, changes, strict=True)
    ))  # fmt: skip
    for tick in ticks(axis.low, axis.high, 5 if wide else 4):
        scene.line((axis(tick), top), (axis(tick), bottom), colour="line")
        scene.note(axis(tick), bottom + 17, words.mark(tick))
    for number, one in enumerate(bins):
        y = top + row * (number + 0.5)
        count = words("length.records", count=one.count)
        if one.cut:
            count += f", {words('length.cut', count=one.cut)}"
        if wide:
            scene.text(left, y - 1, labels[number], anchor="end")
            scene.note(left, y + 14, count, anchor="end")
        else:
            scene.text(left, y - 15, labels[number])
            scene.note(right, y - 15, count, anchor="end")
        pairs = [(one.score, 0), *([(one.other, 1)] if one.other else [])]
        for i, (score, style) in enumerate(pairs):
            _score_line(scene, axis, score, y + (-4 if wide else 0) + 13 * i, style)
        if one.difference is not None:
            scene.text(width - 8, y + 6, changes[number], size=12, anchor="end",
                       bold=one.difference.low > 0 or one.difference.high < 0)  # fmt: skip
    scene.note((left + right) / 2, bottom + 34, words.metric(content.scale.metric))
    return scene


def _score_line(scene: Scene, axis: _Axis, score: Score, y: float, style: int) -> None:
    if math.isfinite(score.low):
        scene.line((axis(score.low), y), (axis(score.high), y), colour=colour_of(style), width=2.5,
                   opacity=0.6)  # fmt: skip
    if math.isfinite(score.value):
        scene.mark(axis(score.value), y, style, radius=5)


def _length_label(content: ReportContent, words: Phrases, number: int) -> str:
    one, last = content.lengths[number], len(content.lengths) - 1
    unit = words(f"length.{content.length_unit}")
    ends = {0: "up_to", last: "from"} if last else {0: "only"}
    key = ends.get(number, "between")
    return words(f"length.{key}", shortest=one.shortest, longest=one.longest, unit=unit)


def calibration(content: ReportContent, words: Phrases, width: float) -> Scene:
    """Fraction of right predictions against their probability."""
    height, left, right = min(width * 0.75, 350.0), 52.0, width - 24
    bottom, top = height - 44, 26.0
    bins = content.calibration
    lowest = min(min(b.confidence, b.low) for found in bins.values() for b in found)
    low = math.floor(lowest * 10) / 10
    first = min(b.confidence for found in bins.values() for b in found)
    x, y = _Axis(math.floor(first * 20) / 20, 1, left, right), _Axis(low, 1, bottom, top)
    scene = Scene(width, height, title=words("section.calibration"), description="; ".join(
        f"{words.method(name)}: " + ", ".join(
            f"{b.confidence:.2f} → {b.right:.2f}" for b in found
        ) for name, found in bins.items()
    ))  # fmt: skip
    scene.note(0, 12, words("calibration.y"), anchor="start")
    for tick in ticks(low, 1, 4):
        scene.line((left, y(tick)), (right, y(tick)))
        scene.note(left - 6, y(tick) + 4, _percent(words, tick), anchor="end")
    for tick in ticks(x.low, 1, 6 if width > 400 else 4):
        scene.note(x(tick), bottom + 18, _percent(words, tick))
    start = max(x.low, low)
    scene.line((x(start), y(start)), (x(1), y(1)), colour="soft", dashed=True)
    for name, found in reversed(list(bins.items())):
        style = content.method(name).style
        scene.line(
            *((x(b.confidence), y(b.right)) for b in found), colour=colour_of(style), width=1.6
        )
        for one in found:
            px = x(one.confidence)
            scene.line((px, y(one.low)), (px, y(one.high)), colour=colour_of(style), width=2,
                       opacity=0.4)  # fmt: skip
            scene.mark(px, y(one.right), style, radius=4)
    scene.note((left + right) / 2, height - 6, words("calibration.x"))
    return scene


def _percent(words: Phrases, value: float) -> str:
    return words("percent", value=f"{value * 100:g}")


def values(content: ReportContent, words: Phrases, width: float) -> Scene:
    """Predicted against true values of the chosen method."""
    size = min(width, 460.0)
    left, bottom = 56.0, size - 46
    p = content.cases.records
    every = -(-len(p.row) // _MOST_POINTS)
    true, said = p.y[::every], p.proba[::every]
    low, high = float(min(p.y.min(), p.proba.min())), float(max(p.y.max(), p.proba.max()))
    x, y = _Axis(low, high, left + 6, size - 12), _Axis(low, high, bottom - 6, _TOP + 4)
    scene = Scene(size, size, title=words("section.values"), description=words(
        "values.sampled", count=len(true), all=len(p.row)
    ))  # fmt: skip
    for tick in ticks(low, high, 5):
        scene.line((left, y(tick)), (size - 12, y(tick)))
        scene.note(left - 6, y(tick) + 4, f"{tick:g}", anchor="end")
        scene.note(x(tick), bottom + 18, f"{tick:g}")
    scene.line((x(low), y(low)), (x(high), y(high)), colour="soft", dashed=True)
    jitter = np.random.default_rng(0).uniform(-2, 2, len(true))  # ratings lie on each other
    for one, other, moved in zip(true, said, jitter, strict=True):
        scene.mark(x(float(one)) + moved, y(float(other)), 0, radius=2.5, opacity=0.45)
    scene.note((left + size) / 2, size - 8, words("values.true"))
    scene.note(left + 8, _TOP + 12, words("values.predicted"), anchor="start")
    return scene


CHARTS: dict[
    str, tuple[Callable[[ReportContent], bool], Callable[[ReportContent, Phrases, float], Scene]]
] = {
    "forest": (lambda c: bool(_forest_rows(c)), forest),
    "cost": (lambda c: len(_cost_rows(c)) > 1, cost),
    "length": (lambda c: len(c.lengths) > 1, length),
    "calibration": (lambda c: bool(c.calibration), calibration),
    "values": (lambda c: not c.classes, values),
}
"""Pictures by name: whether there is one, and how it is drawn."""
