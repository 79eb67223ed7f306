"""Pictures of a comparison, each as PNG, as SVG, and as SVG to stand inside a page.

Inside a page black becomes the colour of the page's text, so that one drawing serves dark and
light. Words stay words: they can be searched, and nothing in them is read as a formula.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from embedkit import fsio
from embedkit.classifiers.probe import ProbeResult, ViewScore
from embedkit.comparison.compare import LOWER_IS_BETTER, MAJORITY, Compared, Row
from embedkit.comparison.load import Outcome, Records, Run
from embedkit.runs.figures import canvas, layer_curve, render
from embedkit.runs.metrics import Score

__all__ = ["Picture", "draw_all", "save_pictures", "training_log"]

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_NOT_XML = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_BINS = 10
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
        for run in compared.runs.probes:
            figure = layer_curve(_probe_result(run))
            figure.set_size_inches(*_SIZE)
            made.append(_picture(f"layers-{run.name}", f"Layers: {run.name}", figure))
        if compared.runs.records.classes:
            made.append(_reliability(compared))
            if len(compared.runs.records.classes) == 2:
                made.append(_precision_recall(compared))
            made.append(_confusions(compared))
        for run in compared.runs.runs:
            if entries := training_log(run.path):
                title = f"Training: {run.name}"
                made.append(_picture(f"training-{run.name}", title, _learning_curve(entries)))
    return tuple(made)


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
        score = row.scores[table.measure]
        spread = [[max(score.value - score.low, 0)], [max(score.high - score.value, 0)]]
        axis.errorbar(
            [x], [score.value], spread, fmt=_SHAPES[number % len(_SHAPES)], capsize=3,
            markersize=6, color=_COLOURS[number % len(_COLOURS)], label=_word(row.name),
        )  # fmt: skip
    for number, row in enumerate(row for row in table.rows if row.cost is None):
        value = row.scores[table.measure].value
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
    axis.set_ylabel(table.measure.replace("_", " "))
    if table.measure in LOWER_IS_BETTER:
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
    """How often the predicted class is right, against how sure a method was."""
    records = compared.runs.records
    figure, axis = canvas(*_SIZE)
    floor = 1 / len(records.classes)
    axis.plot([floor, 1], [floor, 1], color=_GREY, linewidth=1)
    for number, outcome in enumerate(_methods(compared)):
        means, shares, counts = _bins(records, outcome)
        axis.plot(
            means, shares, "-", color=_COLOURS[number % len(_COLOURS)], linewidth=1.2,
            label=_word(outcome.name),
        )  # fmt: skip
        axis.scatter(
            means, shares, s=8 + 60 * counts / counts.max(),
            color=_COLOURS[number % len(_COLOURS)],
        )  # fmt: skip
    axis.set_xlabel("probability of the likeliest class (dots: records)")
    axis.set_ylabel("share of these that is right")
    _legend(figure)
    return _picture("reliability", "Reliability", figure)


def _bins(
    records: Records, outcome: Outcome
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    output = outcome.output[records.held]
    sure, right = output.max(1), output.argmax(1) == records.y[records.held]
    edges = np.linspace(1 / output.shape[1], 1, _BINS + 1)
    of = np.clip(np.digitize(sure, edges) - 1, 0, _BINS - 1)
    counts = np.bincount(of, minlength=_BINS).astype(np.float64)
    filled = counts > 0
    means = np.bincount(of, sure, _BINS)[filled] / counts[filled]
    shares = np.bincount(of, right, _BINS)[filled] / counts[filled]
    return means, shares, counts[filled]


def _precision_recall(compared: Compared) -> Picture:
    records = compared.runs.records
    y = records.y[records.held]
    figure, axis = canvas(*_SIZE)
    axis.axhline((y == 1).mean(), color=_GREY, linewidth=1)
    for number, outcome in enumerate(_methods(compared)):
        scores = outcome.output[records.held, 1]
        order = np.argsort(-scores, kind="stable")
        hits = np.cumsum(y[order] == 1)
        ends = np.append(np.flatnonzero(np.diff(scores[order])), len(y) - 1)
        axis.step(
            hits[ends] / max(int(hits[-1]), 1), hits[ends] / (ends + 1), where="post",
            color=_COLOURS[number % len(_COLOURS)], linewidth=1.2, label=_word(outcome.name),
        )  # fmt: skip
    axis.set_xlim(0, 1.01)
    axis.set_ylim(0, 1.02)
    axis.set_xlabel(f"recall of {records.classes[1]}")
    axis.set_ylabel("precision")
    _legend(figure)
    return _picture("precision_recall", "Precision and recall", figure)


def _confusions(compared: Compared) -> Picture:
    """One matrix per method, shaded by the share of the true class."""
    records = compared.runs.records
    outcomes = list(_methods(compared))
    columns = min(3, len(outcomes))
    lines = -(-len(outcomes) // columns)
    figure, axis = canvas(2.6 * columns + 0.4, 2.6 * lines)
    axis.remove()
    axes = figure.subplots(lines, columns, squeeze=False)
    for axis, outcome in zip(axes.flat, outcomes, strict=False):
        _confusion(axis, records, outcome)
    for axis in list(axes.flat)[len(outcomes) :]:
        axis.set_axis_off()
    return _picture("confusion", "Confusion", figure)


def _confusion(axis: Any, records: Records, outcome: Outcome) -> None:
    count = len(records.classes)
    cells = records.y[records.held] * count + outcome.decided[records.held]
    table = np.bincount(cells, minlength=count**2).reshape(count, count)
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axis.set_title(outcome.name, fontsize=8)
    if count > 12:
        return
    axis.set_xticks(range(count), records.classes, fontsize=7)
    axis.set_yticks(range(count), records.classes, fontsize=7)
    for i in range(count):
        for j in range(count):
            colour = "white" if shares[i, j] > 0.5 else "black"
            axis.text(j, i, f"{table[i, j]:,}", ha="center", va="center", fontsize=7, color=colour)


def _learning_curve(entries: Sequence[Mapping[str, Any]]) -> Any:
    """Loss and validation score against epochs, one thin line per fold."""
    figure, loss = canvas(*_SIZE)
    score = loss.twinx()
    score.spines[["top"]].set_visible(False)
    drawn: dict[str, Any] = {}
    for _, of_fold in _by_fold(entries):
        for axis, key, colour, name in (
            (loss, "loss", _COLOURS[0], "training loss"),
            (loss, "valid_loss", _COLOURS[1], "validation loss"),
            (score, "valid_score", _COLOURS[2], "validation score (right)"),
        ):
            points = [(e["epoch"], e[key]) for e in of_fold if e.get(key) is not None]
            if points:
                (line,) = axis.plot(*zip(*points, strict=True), color=colour, linewidth=1,
                                    marker="o", markersize=2.5, alpha=0.7)  # fmt: skip
                drawn[name] = line
    loss.set_xlabel("epoch (one line per fold)")
    loss.set_ylabel("loss")
    figure.legend(drawn.values(), drawn.keys(), loc="outside lower left", ncols=2, frameon=False,
                  fontsize=8)  # fmt: skip
    return figure


def _legend(figure: Any) -> None:
    """The names under the plot, however many and long they are."""
    figure.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=8)


def _by_fold(
    entries: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[tuple[int, int], list[Mapping[str, Any]]]]:
    folds = sorted({(int(e["repeat"]), int(e["fold"])) for e in entries})
    for fold in folds:
        of_fold = [e for e in entries if (e["repeat"], e["fold"]) == fold]
        yield fold, sorted(of_fold, key=lambda e: float(e["epoch"]))


def _methods(compared: Compared) -> Iterator[Outcome]:
    """Everything but the majority, in the order of the table."""
    for row in compared.table.rows:
        if row.name != MAJORITY:
            yield compared.outcomes[row.name]


def _probe_result(run: Run) -> ProbeResult:
    content = run.content
    views = tuple(
        ViewScore(v["name"], Score(**v["score"]), v["shuffled"], v["chosen"])
        for v in content["views"]
    )
    return ProbeResult(
        run.path, content["measure"], content["majority"], views, Score(**content["nested"]),
        content["random_weights"], content["cost"]["seconds"],
    )  # fmt: skip


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
