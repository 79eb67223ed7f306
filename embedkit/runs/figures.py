"""Figures of a run, as PNG."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from embedkit import fsio
from embedkit.display import visible
from embedkit.encoding.views import split_view
from embedkit.runs.content import Agreement, ProbeRun
from embedkit.runs.metrics import BINS, calibration_bins
from embedkit.runs.predictions import Predictions

__all__ = [
    "canvas", "draw_probe", "draw_run", "draw_similarity", "draw_training", "east_asian_fonts",
    "render",
]  # fmt: skip

_FONTS = ("Noto Sans CJK KR", "Noto Sans CJK JP", "NanumGothic", "IPAGothic",
          "Apple SD Gothic Neo", "Hiragino Sans", "DejaVu Sans")  # fmt: skip
_EAST_ASIAN = ("Noto Sans CJK", "NanumGothic", "IPAGothic", "Apple SD Gothic", "Hiragino Sans")
_FONTS_OF = {"ko": ("Noto Sans CJK", "NanumGothic", "Apple SD Gothic"),
             "ja": ("Noto Sans CJK", "IPAGothic", "Hiragino Sans")}  # fmt: skip
_EAST_ASIAN_FILES = ("NotoSansCJK-Regular", "NanumGothic", "ipag")
_BLUE, _GREY, _ORANGE = "#2c5f8a", "#b0b7bd", "#c2660a"
_SHOWN_CLASSES = 20


def draw_run(folder: Path, predictions: Predictions) -> None:
    """Draw the out-of-fold predictions of a run to ``figures/``.

    Confusion matrix, reliability curve and, of two classes, precision against recall; of a
    regression predicted against true values.
    """
    p = predictions.take(predictions.out_of_fold)
    if not p.classes:
        save(folder, "values.png", lambda: _values(p))
        return
    save(folder, "confusion.png", lambda: _confusion(p))
    save(folder, "reliability.png", lambda: _reliability(p))
    if len(p.classes) == 2:
        save(folder, "precision_recall.png", lambda: _precision_recall(p))


def _values(p: Predictions) -> Any:
    """Predicted against true values."""
    from sklearn.metrics import PredictionErrorDisplay

    figure, axis = canvas()
    PredictionErrorDisplay(y_true=p.y, y_pred=p.proba).plot(
        ax=axis, kind="actual_vs_predicted",
        scatter_kwargs={"s": 9, "alpha": 0.4, "color": _BLUE}, line_kwargs={"color": _GREY},
    )  # fmt: skip
    axis.set_xlabel("predicted")
    axis.set_ylabel("true")
    axis.set_title("held-out records", loc="left")
    return figure


def _confusion(p: Predictions) -> Any:
    """Counts of true against predicted classes, shaded by the fraction of the true class."""
    from sklearn.metrics import ConfusionMatrixDisplay, confusion_matrix

    names = [_shown(name) for name in p.classes]
    size = min(4 + 0.3 * len(names), 12)
    figure, axis = canvas(size + 0.6, size)
    counts = confusion_matrix(p.y, p.y_pred, labels=range(len(names)))
    fractions = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    written = len(names) <= _SHOWN_CLASSES
    display = ConfusionMatrixDisplay(fractions, display_labels=names).plot(
        ax=axis, cmap="Blues", colorbar=False, include_values=written,
        im_kw={"vmin": 0, "vmax": 1}, text_kw={"fontsize": 10},
    )  # fmt: skip
    axis.set_xlabel("predicted")
    axis.set_ylabel("true")
    if written:
        for text, count in zip(display.text_.flat, counts.flat, strict=True):
            text.set_text(f"{count:,}")
        axis.tick_params(labelsize=10)
        axis.tick_params(axis="x", labelrotation=45 if len(names) > 4 else 0)
    else:
        axis.set_xticks([])
        axis.set_yticks([])
    figure.colorbar(display.im_, label="fraction of the true class")
    axis.set_title("confusion matrix of held-out records", loc="left")
    return figure


def _reliability(p: Predictions) -> Any:
    """How often the predicted class is right against its probability, and perfect calibration.

    The bins are those of the calibration error, :data:`~embedkit.runs.metrics.BINS` from 0 to 1.
    """
    from sklearn.calibration import CalibrationDisplay

    figure, axis = canvas()
    confidence, right = p.proba.max(1), p.proba.argmax(1) == p.y
    bins = calibration_bins(confidence)
    counts = np.bincount(bins, minlength=BINS)
    filled = counts > 0
    means = np.bincount(bins, confidence, BINS)[filled] / counts[filled]
    fractions = np.bincount(bins, right, BINS)[filled] / counts[filled]
    axis.plot([1 / len(p.classes), 1], [1 / len(p.classes), 1], color=_GREY, linewidth=1)
    display = CalibrationDisplay(fractions, means, confidence, estimator_name="records")
    display.plot(ax=axis, ref_line=False).line_.set(marker="o", color=_BLUE)
    _plain_axis(axis, "probability of the predicted class", "fraction of right predictions")
    for x, y, count in zip(means, fractions, counts[filled], strict=True):
        axis.annotate(f"{count:,}", (x, y), xytext=(4, -11), textcoords="offset points", fontsize=7)
    axis.set_title("reliability of held-out records", loc="left")
    return figure


def _precision_recall(p: Predictions) -> Any:
    """Precision against recall of the second of two classes, and the frequency of the class."""
    from sklearn.metrics import PrecisionRecallDisplay, precision_recall_curve

    figure, axis = canvas()
    positive = p.y == 1
    precision, recall, _ = precision_recall_curve(positive, p.proba[:, 1])
    axis.axhline(positive.mean(), color=_GREY, linewidth=1)
    PrecisionRecallDisplay(precision, recall).plot(ax=axis).line_.set(color=_BLUE)
    axis.set_xlim(0, 1.01)
    axis.set_ylim(0, 1.02)
    axis.set_aspect("auto")
    _plain_axis(axis, f"recall of {_shown(p.classes[1])}", "precision")
    axis.set_title("precision and recall of held-out records", loc="left")
    return figure


def _plain_axis(axis: Any, x: str, y: str) -> None:
    """Labels of our own, and no legend: who draws several lines places it outside the plot."""
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    if (legend := axis.get_legend()) is not None:
        legend.remove()


def draw_probe(folder: Path, result: ProbeRun) -> None:
    """Draw scores by layer, the similarity of the views, and learning curves where there are some.

    They are ``figures/layers.png``, ``figures/similarity.png`` and ``figures/learning.png``.
    """
    save(folder, "layers.png", lambda: layer_curve(result))
    if len(result.views) > 1:
        save(folder, "similarity.png", lambda: view_similarity(result))
    if result.views[0].curve:
        save(folder, "learning.png", lambda: learning_curves(result))


def view_similarity(result: ProbeRun) -> Any:
    """Return the figure of the linear CKA between all views."""
    names = [view.name for view in result.views]
    side = 2.2 + 0.28 * len(names)
    figure, axis = canvas(side + 0.8, side)
    image = axis.imshow(np.array(result.cka), vmin=0, vmax=1, cmap="viridis")
    axis.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axis.set_yticks(range(len(names)), names, fontsize=7)
    figure.colorbar(image, ax=axis, label="linear CKA", shrink=0.8)
    return figure


def learning_curves(result: ProbeRun) -> Any:
    """Return the figure of the score against the number of training records, a line per view."""
    figure, axis = canvas(6.5, 4.2)
    for view in result.views:
        axis.plot([p.records for p in view.curve], [p.score for p in view.curve], "o-", ms=3,
                  linewidth=1, label=view.name)  # fmt: skip
    axis.set_xlabel("training records")
    axis.set_ylabel(f"held-out {result.metric}")
    axis.legend(frameon=False, fontsize=6, ncol=2)
    return figure


def layer_curve(result: ProbeRun) -> Any:
    """Return the figure of :func:`draw_probe`."""
    lines: dict[str, list[tuple[int, Any]]] = {}
    for view in result.views:
        pooling, layer = split_view(view.name)
        if layer.isdigit():
            lines.setdefault(pooling, []).append((int(layer), view))
    figure, axis = canvas(6.5, 4.2)
    for number, (pooling, points) in enumerate(lines.items()):
        layers = [layer + 0.06 * number for layer, _ in points]  # intervals side by side
        values = [view.score.value for _, view in points]
        low = [view.score.value - view.score.low for _, view in points]
        high = [view.score.high - view.score.value for _, view in points]
        drawn = axis.errorbar(layers, values, [low, high], fmt="o-", capsize=3, label=pooling)
        chance = [view.control for _, view in points]
        axis.plot(layers, chance, ":", color=drawn[0].get_color(), linewidth=1)
        if result.random_weights:
            same = [np.mean(result.random_weights.get(view.name, np.nan)) for _, view in points]
            axis.plot(layers, same, "--", color=drawn[0].get_color(), linewidth=1)
    for view in result.views:
        if not view.name.rpartition("_")[2].isdigit():
            axis.axhline(view.score.value, color=_BLUE, linewidth=1)
            axis.text(0, view.score.value, f" {view.name}", fontsize=7, va="bottom")
    axis.axhline(result.majority, color=_GREY, linewidth=1)
    axis.text(1, result.majority, "majority", fontsize=7, va="bottom", ha="right", color="grey",
              transform=axis.get_yaxis_transform())  # fmt: skip
    axis.set_xlabel("layer (0 is the embedding output)")
    axis.set_ylabel(result.metric)
    note = "dotted: control task" + ("; dashed: random weights" if result.random_weights else "")
    axis.set_title(f"held-out {result.metric} by layer ({note})", loc="left", fontsize=9)
    axis.xaxis.get_major_locator().set_params(integer=True)
    if lines:
        axis.legend(frameon=False)
    return figure


def draw_training(folder: Path, log: Sequence[Mapping[str, Any]], *, metric: str) -> None:
    """Draw training and validation loss and the validation score to ``figures/training.png``.

    Args:
        folder: of the run.
        log: lines of ``training.jsonl``.
        metric: name of the validation score.
    """
    save(folder, "training.png", lambda: _training_curves(log, metric))


def _training_curves(log: Sequence[Mapping[str, Any]], metric: str) -> Any:
    """Losses, and the validation score on an axis of its own; one thin line per model."""
    figure, axis = canvas(6.5, 4.2)
    score = axis.twinx() if any("valid_score" in line for line in log) else axis
    models: dict[tuple[int, ...], list[Mapping[str, Any]]] = {}
    for line in log:
        models.setdefault((line["repeat"], line["fold"], line.get("seed", 0)), []).append(line)
    drawn: dict[str, Any] = {}
    for lines in models.values():
        for on, key, color, name in (
            (axis, "loss", _GREY, "training loss"),
            (axis, "valid_loss", _BLUE, "validation loss"),
            (score, "valid_score", _ORANGE, f"validation {metric} (right)"),
        ):
            points = sorted((e["epoch"], e[key]) for e in lines if e.get(key) is not None)
            if points:
                (drawn[name],) = on.plot(*zip(*points, strict=True), color=color, linewidth=1,
                                         marker="o", markersize=2.5, alpha=0.7)  # fmt: skip
    axis.set_xlabel(f"epoch (one line for each of {len(models)} trainings)")
    axis.set_ylabel("loss")
    axis.set_ylim(bottom=0)
    figure.legend(drawn.values(), drawn.keys(), loc="outside lower left", ncols=2, frameon=False,
                  fontsize=8)  # fmt: skip
    return figure


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


def east_asian_fonts() -> dict[str, str | None]:
    """The font that figures show Korean (``ko``) and Japanese (``ja``) in; ``None`` for boxes."""
    known = [name for name in _FONTS if name in _known_fonts()]
    return {
        language: next((name for name in known if name.startswith(prefixes)), None)
        for language, prefixes in _FONTS_OF.items()
    }


def draw_similarity(folder: Path, agreement: Sequence[Agreement]) -> None:
    """Draw Spearman's correlation against the layer, one line per pooling."""
    save(folder, "layers.png", lambda: _agreement_curve(agreement))


def _agreement_curve(agreement: Sequence[Agreement]) -> Any:
    lines: dict[str, list[tuple[int, Any]]] = {}
    single = []
    for one in agreement:
        pooling, layer = split_view(one.view)
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
    return figure


def save(folder: Path, name: str, build: Callable[[], Any]) -> None:
    """Draw the figure that ``build`` returns, and write it durably to the folder ``figures``."""
    fsio.make_folder(folder / "figures")
    fsio.write_durably(folder / "figures" / name, png_of(build), scratch=folder)


def png_of(build: Callable[[], Any]) -> bytes:
    """Return the figure that ``build`` returns as PNG, without a date in it."""
    content = io.BytesIO()
    render(build(), content, dpi=120, format="png", metadata={"Software": None})
    return content.getvalue()


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
