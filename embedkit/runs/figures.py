"""Figures of a run, as PNG."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from embedkit import fsio
from embedkit.display import visible

__all__ = [
    "canvas", "draw_probe", "draw_run", "draw_similarity", "draw_training", "layer_curve",
    "render",
]  # fmt: skip

_FONTS = ("Noto Sans CJK KR", "Noto Sans CJK JP", "NanumGothic", "IPAGothic",
          "Apple SD Gothic Neo", "Hiragino Sans", "DejaVu Sans")  # fmt: skip
_EAST_ASIAN = ("Noto Sans CJK", "NanumGothic", "IPAGothic", "Apple SD Gothic", "Hiragino Sans")
_EAST_ASIAN_FILES = ("NotoSansCJK-Regular", "NanumGothic", "ipag")
_BLUE, _GREY, _ORANGE = "#2c5f8a", "#b0b7bd", "#c2660a"
_SHOWN_CLASSES = 20


def draw_run(
    folder: Path, y: NDArray[Any], output: NDArray[np.float64], decided: NDArray[Any],
    classes: tuple[str, ...],
) -> None:  # fmt: skip
    """Confusion matrix, reliability curve and, of two classes, precision against recall.

    A regression gets predicted against true values.

    Args:
        folder: of the run; the figures go to ``figures/``.
        y: ``(n,)`` class numbers or values of the held-out records.
        output: ``(n, classes)`` probabilities, or ``(n,)`` values.
        decided: ``(n,)`` class numbers decided on.
        classes: labels by number; empty for a regression.
    """
    fsio.make_folder(folder / "figures")
    if not classes:
        _scatter(folder, y, output)
        return
    _confusion(folder, y, decided, classes)
    _reliability(folder, y, output)
    if len(classes) == 2:
        _precision_recall(folder, y, output[:, 1], classes[1])


def draw_probe(folder: Path, result: Any) -> None:
    """Score against layer, one line per pooling, with intervals.

    Args:
        folder: of the run; the figure goes to ``figures/``.
        result: a :class:`~embedkit.classifiers.probe.ProbeResult`.
    """
    fsio.make_folder(folder / "figures")
    save(folder, "layers.png", layer_curve(result))


def layer_curve(result: Any) -> Any:
    """The figure of :func:`draw_probe`."""
    lines: dict[str, list[tuple[int, Any]]] = {}
    for view in result.views:
        pooling, _, layer = view.name.partition("_")
        if layer.isdigit():
            lines.setdefault(pooling, []).append((int(layer), view))
    figure, axis = canvas(6.5, 4.2)
    for number, (pooling, points) in enumerate(lines.items()):
        layers = [layer + 0.06 * number for layer, _ in points]  # intervals side by side
        values = [view.score.value for _, view in points]
        low = [view.score.value - view.score.low for _, view in points]
        high = [view.score.high - view.score.value for _, view in points]
        drawn = axis.errorbar(layers, values, [low, high], fmt="o-", capsize=3, label=pooling)
        chance = [view.shuffled for _, view in points]
        axis.plot(layers, chance, ":", color=drawn[0].get_color(), linewidth=1)
        if result.random:
            same = [result.random.get(view.name, np.nan) for _, view in points]
            axis.plot(layers, same, "--", color=drawn[0].get_color(), linewidth=1)
    for view in result.views:
        if not view.name.rpartition("_")[2].isdigit():
            axis.axhline(view.score.value, color=_BLUE, linewidth=1)
            axis.text(0, view.score.value, f" {view.name}", fontsize=7, va="bottom")
    axis.axhline(result.majority, color=_GREY, linewidth=1)
    axis.text(1, result.majority, "majority", fontsize=7, va="bottom", ha="right", color="grey",
              transform=axis.get_yaxis_transform())  # fmt: skip
    axis.set_xlabel("layer (0 is the embedding output)")
    axis.set_ylabel(result.measure)
    note = "dotted: shuffled labels" + ("; dashed: random weights" if result.random else "")
    axis.set_title(f"held-out {result.measure} by layer ({note})", loc="left", fontsize=9)
    axis.xaxis.get_major_locator().set_params(integer=True)
    if lines:
        axis.legend(frameon=False)
    return figure


def draw_training(folder: Path, log: list[dict[str, Any]], *, measure: str) -> None:
    """Loss of learning and of validation against the epoch, and the validation score.

    Args:
        folder: of the run; the figure goes to ``figures/``.
        log: lines of ``training.jsonl``.
        measure: name of the score.
    """
    fsio.make_folder(folder / "figures")
    folds: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for line in log:
        folds.setdefault((line["repeat"], line["fold"]), []).append(line)
    figure, axis = canvas(6.5, 4.2)
    scores = None
    for number, lines in enumerate(folds.values()):
        for key, colour, style, name in (
            ("loss", _GREY, "-", "training loss"),
            ("valid_loss", _BLUE, "o-", "validation loss"),
        ):
            points = [(line["epoch"], line[key]) for line in lines if key in line]
            if points:
                axis.plot(
                    *zip(*points, strict=True),
                    style,
                    color=colour,
                    linewidth=1,
                    markersize=3,
                    label=None if number else name,
                )
        points = [(line["epoch"], line["valid_score"]) for line in lines if "valid_score" in line]
        if points:
            scores = scores or axis.twinx()
            scores.plot(
                *zip(*points, strict=True),
                "s:",
                color=_ORANGE,
                linewidth=1,
                markersize=3,
                label=None if number else f"validation {measure}",
            )
    axis.set_xlabel("epoch")
    axis.set_ylabel("loss")
    axis.set_ylim(bottom=0)
    axis.set_title(f"training, {len(folds)} folds", loc="left")
    handles, names = axis.get_legend_handles_labels()
    if scores is not None:
        scores.set_ylabel(measure)
        more = scores.get_legend_handles_labels()
        handles, names = handles + more[0], names + more[1]
    axis.legend(handles, names, frameon=False, fontsize=8)
    save(folder, "training.png", figure)


@cache
def _known_fonts() -> set[str]:
    """Names of fonts; matplotlib's own list may be older than the fonts of Korean and Japanese."""
    from matplotlib import font_manager

    manager = font_manager.fontManager
    if not any(font.name.startswith(_EAST_ASIAN) for font in manager.ttflist):
        files = map(Path, font_manager.findSystemFonts())
        for file in sorted(f for f in files if f.stem in _EAST_ASIAN_FILES):
            manager.addfont(file)
    return {font.name for font in manager.ttflist}


def draw_similarity(folder: Path, agreement: Any) -> None:
    """Spearman's correlation with human scores against layer, one line per pooling.

    Args:
        folder: of the results; the figure goes to ``figures/``.
        agreement: :class:`~embedkit.sts.Agreement` of every view.
    """
    fsio.make_folder(folder / "figures")
    lines: dict[str, list[tuple[int, Any]]] = {}
    single = []
    for one in agreement:
        pooling, _, layer = one.view.partition("_")
        if layer.isdigit():
            lines.setdefault(pooling, []).append((int(layer), one.spearman))
        else:
            single.append(one)
    figure, axis = canvas(6.5, 4.2)
    for pooling, points in lines.items():
        layers = [layer for layer, _ in points]
        axis.fill_between(layers, [s.low for _, s in points], [s.high for _, s in points],
                          alpha=0.15)  # fmt: skip
        axis.plot(layers, [s.value for _, s in points], "o-", label=pooling)
    for one in single:
        axis.axhline(one.spearman.value, color=_BLUE, linewidth=1)
        axis.text(0, one.spearman.value, f" {one.view}", fontsize=7, va="bottom")
    axis.set_xlabel("layer (0 is the embedding output)")
    axis.set_ylabel("Spearman's correlation")
    axis.set_title("cosine of pairs against human scores (band: 95 %)", loc="left", fontsize=9)
    axis.xaxis.get_major_locator().set_params(integer=True)
    if lines:
        axis.legend(frameon=False)
    save(folder, "layers.png", figure)


def save(folder: Path, name: str, figure: Any) -> None:
    """Write a figure durably, without a date in it."""
    import io

    content = io.BytesIO()
    render(figure, content, dpi=120, format="png", metadata={"Software": None})
    fsio.write_durably(folder / "figures" / name, content.getbuffer(), scratch=folder)


def render(figure: Any, target: IO[bytes], **options: Any) -> None:
    """Draw a figure into a file, with letters of Korean and Japanese.

    A letter that no font here has is a box, not a warning.
    """
    import matplotlib as mpl
    from matplotlib.text import Text

    known = _known_fonts()
    fonts = [name for name in _FONTS if name in known] or ["sans-serif"]
    for text in figure.findobj(Text):
        text.set_fontfamily(fonts)
    with mpl.rc_context({"font.family": fonts}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ ", UserWarning)
        figure.savefig(target, **options)


def canvas(width: float = 5, height: float = 4.2) -> tuple[Any, Any]:
    """A figure with one plot.

    It is none of pyplot's, whose backend is the caller's: a notebook goes on showing its own.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axis = figure.subplots()
    axis.spines[["top", "right"]].set_visible(False)
    return figure, axis


def _shown(label: str) -> str:
    """A label in a figure: not too long, and no formula between dollar signs."""
    return visible(label, limit=30).replace("$", r"\$")


def _confusion(
    folder: Path, y: NDArray[Any], predicted: NDArray[Any], classes: tuple[str, ...]
) -> None:
    count = len(classes)
    table = np.bincount(y * count + predicted, minlength=count**2).reshape(count, count)
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    size = min(4 + 0.3 * count, 12)
    figure, axis = canvas(size + 0.6, size)
    image = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axis.set_xlabel("predicted")
    axis.set_ylabel("true")
    if count <= _SHOWN_CLASSES:
        names = [_shown(name) for name in classes]
        axis.set_xticks(range(count), names, rotation=45 if count > 4 else 0)
        axis.set_yticks(range(count), names)
        for i in range(count):
            for j in range(count):
                colour = "white" if shares[i, j] > 0.5 else "black"
                axis.text(j, i, f"{table[i, j]:,}", ha="center", va="center", color=colour)
    figure.colorbar(image, label="share of the true class")
    axis.set_title("confusion of held-out records", loc="left")
    save(folder, "confusion.png", figure)


def _reliability(folder: Path, y: NDArray[Any], output: NDArray[np.float64]) -> None:
    """How often the predicted class is right, against how sure the model was."""
    sure = output.max(1)
    right = output.argmax(1) == y
    edges = np.linspace(1 / output.shape[1], 1, 11)
    bins = np.clip(np.digitize(sure, edges) - 1, 0, 9)
    there = np.bincount(bins, minlength=10)
    filled = there > 0
    means = np.bincount(bins, sure, 10)[filled] / there[filled]
    shares = np.bincount(bins, right, 10)[filled] / there[filled]
    figure, axis = canvas()
    axis.plot([edges[0], 1], [edges[0], 1], color=_GREY, linewidth=1)
    axis.plot(means, shares, "o-", color=_BLUE)
    for x, share, n in zip(means, shares, there[filled], strict=True):
        axis.annotate(f"{n:,}", (x, share), xytext=(4, -11), textcoords="offset points", fontsize=7)
    axis.set_xlabel("probability of the predicted class")
    axis.set_ylabel("share that is right")
    axis.set_title("reliability of held-out records", loc="left")
    save(folder, "reliability.png", figure)


def _precision_recall(
    folder: Path, y: NDArray[Any], scores: NDArray[np.float64], name: str
) -> None:
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(y[order] == 1)
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(y) - 1)
    precision, recall = hits[ends] / (ends + 1), hits[ends] / max(hits[-1], 1)
    figure, axis = canvas()
    axis.step(recall, precision, where="post", color=_BLUE)
    axis.axhline((y == 1).mean(), color=_GREY, linewidth=1)
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1.02)
    axis.set_xlabel(f"recall of {_shown(name)}")
    axis.set_ylabel("precision")
    axis.set_title("precision and recall of held-out records", loc="left")
    save(folder, "precision_recall.png", figure)


def _scatter(folder: Path, y: NDArray[Any], output: NDArray[np.float64]) -> None:
    figure, axis = canvas()
    ends = [min(y.min(), output.min()), max(y.max(), output.max())]
    axis.plot(ends, ends, color=_GREY, linewidth=1)
    axis.plot(y, output, ".", color=_BLUE, markersize=3, alpha=0.4)
    axis.set_xlabel("true")
    axis.set_ylabel("predicted")
    axis.set_title("held-out records", loc="left")
    save(folder, "values.png", figure)
