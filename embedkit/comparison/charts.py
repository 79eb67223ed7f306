"""Draw a comparison: each figure as PNG, as SVG, and as SVG for the inside of a page.

Inside a page black becomes the colour of the page's text, so that one drawing serves dark and
light. Words stay words: they can be searched, and nothing in them is read as a formula.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from embedkit import fsio
from embedkit.comparison.compare import LOWER_IS_BETTER, MAJORITY, Compared, Row
from embedkit.runs.figures import (
    canvas,
    draw_confusion,
    draw_learning_curves,
    draw_precision_recall,
    draw_reliability,
    layer_curve,
    render,
)
from embedkit.runs.predictions import Predictions

__all__ = ["Picture", "draw_all", "save_pictures", "training_log"]

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_NOT_XML = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_GREY = "#8a929a"
_SHAPES = "osD^vP*X"
_SIZE = (4.8, 4.0)
_COLOURS = ("#3b82c4", "#e07b39", "#3f9c62", "#c4504b", "#8f6bc0", "#a8784a", "#d35fa5", "#2fa3a8")


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing.

    Attributes:
        name: file name without its ending.
        title: what it shows.
        png: as a file.
        svg: as a file.
        inline: the SVG element to put into a page.
    """

    name: str
    title: str
    png: bytes
    svg: bytes
    inline: str


def draw_all(compared: Compared) -> tuple[Picture, ...]:
    """Every picture that these runs allow."""
    made: list[Picture] = []
    with _drawing():
        made.append(_score_and_cost(compared))
        for probe in compared.runs.probes:
            figure = layer_curve(probe.content)
            figure.set_size_inches(*_SIZE)
            made.append(_picture(f"layers-{probe.name}", f"Layers: {probe.name}", figure))
        if compared.runs.records.classes:
            made.append(_reliability(compared))
            if len(compared.runs.records.classes) == 2:
                made.append(_precision_recall(compared))
            made.append(_confusions(compared))
        for run in compared.runs.runs:
            if entries := training_log(run.path):
                title = f"Training: {run.name}"
                figure, axis = canvas(*_SIZE)
                draw_learning_curves(figure, axis, entries)
                made.append(_picture(f"training-{run.name}", title, figure))
    return _distinct(made)


def _distinct(pictures: Sequence[Picture]) -> tuple[Picture, ...]:
    """Number names that differ in case alone, which some file systems take for one."""
    found: dict[str, Picture] = {}
    for picture in pictures:
        name, number = picture.name, 2
        while name.casefold() in found:
            name, number = f"{picture.name}-{number}", number + 1
        found[name.casefold()] = replace(picture, name=name)
    return tuple(found.values())


def save_pictures(pictures: Sequence[Picture], folder: Path) -> None:
    """Write every picture as PNG and SVG."""
    fsio.make_folder(folder)
    for picture in pictures:
        for ending, content in (("png", picture.png), ("svg", picture.svg)):
            fsio.write_durably(folder / f"{picture.name}.{ending}", content, scratch=folder)


def training_log(path: Path) -> list[dict[str, Any]]:
    """Entries of a run's ``training.jsonl``; none if the run has no such file."""
    file = path / "training.jsonl"
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]


def _score_and_cost(compared: Compared) -> Picture:
    table = compared.table
    figure, axis = canvas(*_SIZE)
    rows = [row for row in table.rows if row.cost is not None]
    seconds = [_seconds(row, table.records["folds"]) for row in rows]
    for number, (row, x) in enumerate(zip(rows, seconds, strict=True)):
        score = row.scores[table.metric]
        spread = [[max(score.value - score.low, 0)], [max(score.high - score.value, 0)]]
        axis.errorbar(
            [x], [score.value], spread, fmt=_SHAPES[number % len(_SHAPES)], capsize=3,
            markersize=6, color=_COLOURS[number % len(_COLOURS)], label=_word(row.name),
        )  # fmt: skip
    for number, row in enumerate(row for row in table.rows if row.cost is None):
        value = row.scores[table.metric].value
        axis.axhline(value, color=_GREY, linewidth=1, linestyle=":")
        axis.annotate(  # side by side, since the lines of blends often lie close
            row.name, (0.005 + 0.25 * number, value), xycoords=("axes fraction", "data"),
            fontsize=7, xytext=(0, 2), textcoords="offset points", alpha=0.75,
        )  # fmt: skip
    axis.set_xscale("log")
    axis.set_xlim(min(seconds) / 3, max(seconds) * 3)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")  # not as a formula
    axis.xaxis.set_minor_formatter(lambda *_: "")
    axis.set_xlabel("seconds to encode once and train all folds")
    axis.set_ylabel(table.metric.replace("_", " "))
    if table.metric in LOWER_IS_BETTER:
        axis.invert_yaxis()
    _legend(figure)
    return _picture("score_and_cost", "Score against cost", figure)


def _seconds(row: Row, records: int) -> float:
    """What a row cost until it could predict; at least a millisecond, for the log scale."""
    cost = row.cost
    if cost is None:
        return 1e-3
    return max((cost.fit_seconds or 0) + (cost.encode_seconds or 0) * records / 1_000, 1e-3)


def _reliability(compared: Compared) -> Picture:
    figure, axis = canvas(*_SIZE)
    for number, (name, predictions) in enumerate(_methods(compared)):
        color = _COLOURS[number % len(_COLOURS)]
        bins = draw_reliability(axis, predictions, reference=not number, color=color,
                                linewidth=1.2, markersize=0, label=_word(name))  # fmt: skip
        means, fractions, counts = zip(*bins, strict=True)
        sizes = [8 + 60 * count / max(counts) for count in counts]
        axis.scatter(means, fractions, s=sizes, color=color)
    axis.set_xlabel("probability of the predicted class (dots: records)")
    _legend(figure)
    return _picture("reliability", "Reliability", figure)


def _precision_recall(compared: Compared) -> Picture:
    figure, axis = canvas(*_SIZE)
    for number, (name, predictions) in enumerate(_methods(compared)):
        color = _COLOURS[number % len(_COLOURS)]
        draw_precision_recall(axis, predictions, reference=not number, label=_word(name),
                              color=color, linewidth=1.2)  # fmt: skip
    _legend(figure)
    return _picture("precision_recall", "Precision and recall", figure)


def _confusions(compared: Compared) -> Picture:
    """One confusion matrix per method."""
    methods = list(_methods(compared))
    columns = min(3, len(methods))
    lines = -(-len(methods) // columns)
    figure, axis = canvas(2.6 * columns + 0.4, 2.6 * lines)
    axis.remove()
    axes = figure.subplots(lines, columns, squeeze=False)
    for axis, (name, predictions) in zip(axes.flat, methods, strict=False):
        draw_confusion(axis, predictions, limit=12, size=7)
        axis.set_title(name, fontsize=8)
    for axis in list(axes.flat)[len(methods) :]:
        axis.set_axis_off()
    return _picture("confusion", "Confusion", figure)


def _legend(figure: Any) -> None:
    """A legend below the plot, which has room for many and long names."""
    figure.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=8)


def _methods(compared: Compared) -> Iterator[tuple[str, Predictions]]:
    """Names and out-of-fold predictions, the majority left out, in the order of the table."""
    for row in compared.table.rows:
        if row.name != MAJORITY:
            predictions = compared.predictions[row.name]
            yield row.name, predictions.take(predictions.out_of_fold)


@contextmanager
def _drawing() -> Iterator[None]:
    import matplotlib as mpl

    with mpl.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "embedkit", "text.parse_math": False}
    ):
        yield


def _picture(name: str, title: str, figure: Any) -> Picture:
    png, svg = io.BytesIO(), io.BytesIO()
    render(figure, png, dpi=180, format="png", metadata={"Software": None})
    render(figure, svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawn = _NOT_XML.sub(b"", svg.getvalue())
    name = re.sub(r"[^\w.-]+", "_", name)
    return Picture(name, title, png.getvalue(), drawn, _inline(name, title, drawn))


def _inline(name: str, title: str, svg: bytes) -> str:
    """The SVG element alone, with ids of its own and the page's text colour for black."""
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    root = ElementTree.fromstring(svg)
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    for element in root.iter():
        for key, value in list(element.attrib.items()):
            element.set(key, _for_page(key, value, name))
    root.attrib.pop("width", None)
    root.attrib.pop("height", None)
    root.set("role", "img")
    root.set("aria-label", title)
    return ElementTree.tostring(root, encoding="unicode")


def _for_page(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == f"{{{_XLINK}}}href" and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    value = value.replace("url(#", f"url(#{name}-")
    return value.replace("#000000", "currentColor") if key in ("style", "fill", "stroke") else value


def _word(name: str) -> str:
    """A name that a legend shows; it hides those that begin with an underscore."""
    return name if not name.startswith("_") else f" {name}"
