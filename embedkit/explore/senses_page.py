"""The uses of words as one HTML page, layer by layer, and as small multiples for papers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import fsio
from embedkit.choices import FIGURE_FORMATS, check_choice
from embedkit.comparison.drawing import SHAPES, Scene, as_file
from embedkit.display import shorten
from embedkit.errors import OutputExistsError, UsageError
from embedkit.explore.layout import aligned, first_axes
from embedkit.pages import render_page
from embedkit.types import Float32
from embedkit.words.senses import SenseReport

__all__ = ["check_outputs", "write_senses"]

_PANEL, _GAP, _LEFT = 150.0, 14.0, 110.0
_FIGURE_WORDS = 8
_AROUND = 160


@dataclass(frozen=True, slots=True, eq=False)
class _Word:
    """The uses of a word in one model: their indices, and ``(layers, uses, 2)`` positions."""

    name: str
    uses: tuple[int, ...]
    points: Float32


def check_outputs(page: Path | None, figure: Path | None, *, overwrite: bool) -> None:
    """Check the names of the files before anything is computed.

    Raises:
        UsageError: one has an ending that is not known.
        OutputExistsError: one exists.
    """
    if page is not None and page.suffix not in (".html", ".htm"):
        raise UsageError(f"out={str(page)!r}: expected a name ending in .html.")
    if figure is not None:
        check_choice(FIGURE_FORMATS, figure=figure.suffix.removeprefix("."))
    for file in (page, figure):
        if file is not None and file.exists() and not overwrite:
            raise OutputExistsError(f"{file} exists. Choose another name, or pass overwrite=True.")


def write_senses(
    reports: Sequence[SenseReport],
    *,
    out: str | Path | None = None,
    figure: str | Path | None = None,
    overwrite: bool = False,
) -> None:
    """Write the page, the figure, or both.

    Args:
        reports: one, or two of the same uses by different models, which stand side by side.
        out: the ``.html`` file.
        figure: a ``.pdf``, ``.svg`` or ``.png`` file with one panel for each layer: a row for
            each of up to eight words, those with the most uses.
        overwrite: replace the files.

    Raises:
        UsageError: the models have no use in common, or a file has another ending.
        OutputExistsError: a file exists.
    """
    page, drawing = (None if file is None else Path(file) for file in (out, figure))
    check_outputs(page, drawing, overwrite=overwrite)
    shared = set.intersection(*({(u.row, u.start, u.end, u.text) for u in r.uses}
                                for r in reports))  # fmt: skip
    if not shared:
        raise UsageError("the datasets have no use in common; expected the same corpus in both.")
    kept = [[i for i, u in enumerate(r.uses) if (u.row, u.start, u.end, u.text) in shared]
            for r in reports]  # fmt: skip
    words = [_words(report, some) for report, some in zip(reports, kept, strict=True)]
    if page is not None:
        content = {
            "uses": _uses(reports[0], words[0]),
            "models": [
                _model(r, some) | {"name": name}
                for r, some, name in zip(reports, words, _names(reports), strict=True)
            ],
            "shapes": list(SHAPES),
            "start": _most_telling(reports[0], words[0]),
        }
        html = render_page("senses", content=content, count=len(shared)).encode()
        fsio.make_folder(page.absolute().parent)
        fsio.write_durably(page, html, scratch=page.absolute().parent)
    if drawing is not None:
        scene = _multiples(reports[0], words[0])
        fsio.make_folder(drawing.absolute().parent)
        fsio.write_durably(drawing, as_file(scene, drawing.suffix.removeprefix(".")),
                           scratch=drawing.absolute().parent)  # fmt: skip


def _most_telling(report: SenseReport, words: Sequence[_Word]) -> dict[str, Any]:
    """Where the page opens: the layer that tells senses apart best, and there the clearest word.

    Words of fewer than two uses in each of two senses come last. Without senses it is the last
    layer, and the word with the most uses.
    """
    nearest = [one.nearest.value for one in report.layers]
    if not report.scored:
        most = max(words, key=lambda word: len(word.uses))
        return {"word": most.name, "layer": len(nearest) - 1}
    layer = int(np.nanargmax(nearest))

    def clear(word: _Word) -> tuple[bool, float]:
        senses = Counter(report.senses[i] for i in word.uses if report.senses[i] is not None)
        same, other = report.by_word[word.name][layer]
        gap = same - other
        known = sorted(senses.values())[-2:]
        return len(known) > 1 and known[0] > 1, gap if math.isfinite(gap) else -math.inf

    return {"word": max(words, key=clear).name, "layer": layer}


def _words(report: SenseReport, kept: Sequence[int]) -> list[_Word]:
    found = []
    for name in dict.fromkeys(report.words[i] for i in kept):
        mine = [i for i in kept if report.words[i] == name]
        found.append(_Word(name, tuple(mine), _positions(report, mine)))
    return found


def _positions(report: SenseReport, uses: Sequence[int]) -> Float32:
    """Two principal components of each layer, turned onto those of the layer before."""
    layers: list[Float32] = []
    for unit in report.units.values():
        if len(uses) > 1:
            points = first_axes(unit[list(uses)])
            points = np.asarray(points / max(float(np.sqrt((points**2).sum(1).mean())), 1e-9))
        else:
            points = np.zeros((1, 2), np.float32)
        layers.append(aligned(points, layers[-1]) if layers else points)
    return np.asarray(np.stack(layers), np.float32)


def _uses(report: SenseReport, words: Sequence[_Word]) -> dict[str, Any]:
    """The sentences, by word; of long ones the words around the use."""
    found = {}
    for word in words:
        uses = []
        for i in word.uses:
            use = report.uses[i]
            left = max(0, use.start - _AROUND)
            uses.append({
                "row": use.row, "id": use.id, "sense": report.senses[i],
                "before": "…" * (left > 0) + use.text[left : use.start],
                "word": use.text[use.start : use.end],
                "after": use.text[use.end : use.end + _AROUND]
                + "…" * (len(use.text) > use.end + _AROUND),
            })  # fmt: skip
        found[word.name] = uses
    return found


def _names(reports: Sequence[SenseReport]) -> list[str]:
    names = [report.model for report in reports]
    if len(set(names)) < len(names):
        return [f"{name} ({number})" for number, name in enumerate(names, 1)]
    return names


def _model(report: SenseReport, words: Sequence[_Word]) -> dict[str, Any]:
    """What the page shows of one model; NaN becomes null."""
    return {
        "layers": list(report.units), "centered": report.centered,
        "chance": report.chance, "scored": report.scored, "n_words": len(report.by_word),
        "all": [[one.nearest.value, one.nearest.low, one.nearest.high] for one in report.layers],
        "same": [one.same for one in report.layers], "other": [one.other for one in report.layers],
        "words": {
            word.name: {
                "points": np.round(word.points, 3).tolist(),
                "same": [same for same, _ in report.by_word[word.name]],
                "other": [other for _, other in report.by_word[word.name]],
                "near": [[[[n.word, round(n.cosine, 3)] for n in layer[i]] for i in word.uses]
                         for layer in report.nearby],
            }
            for word in words
        },
    }  # fmt: skip


def _multiples(report: SenseReport, words: Sequence[_Word]) -> Scene:
    """One panel for each layer; of one word in rows of five, of several a row for each."""
    layers = list(report.units)
    shown = sorted(words, key=lambda word: (-len(word.uses), word.name))[:_FIGURE_WORDS]
    columns = min(5, len(layers)) if len(shown) == 1 else len(layers)
    rows = math.ceil(len(layers) / columns) if len(shown) == 1 else len(shown)
    cell = _PANEL + _GAP
    what = shown[0].name if len(shown) == 1 else f"{len(shown)} words"
    scene = Scene(_LEFT + columns * cell, rows * (cell + 16) + 30,
                  title=f"Uses of {what} by layer, {report.model}")  # fmt: skip
    for number, word in enumerate(shown):
        styles = {s: i for i, s in enumerate(_senses(report, word.uses))}
        reach = max(float(np.abs(word.points).max()), 1e-9) * 1.12
        for k, layer in enumerate(layers):
            row, column = divmod(k, columns) if len(shown) == 1 else (number, k)
            x, y = _LEFT + column * cell, 22 + row * (cell + 16)
            scene.box(x, y, _PANEL, _PANEL, colour="paper", outline="line")
            scene.text(x, y - 5, f"layer {layer}" if layer.isdigit() else layer, size=11)
            for at, i in zip(word.points[k], word.uses, strict=True):
                sense = report.senses[i]
                scene.mark(x + _PANEL / 2 * (1 + at[0] / reach),
                           y + _PANEL / 2 * (1 - at[1] / reach),
                           styles[sense], radius=4)  # fmt: skip
        y = 22 + (0 if len(shown) == 1 else number) * (cell + 16)
        scene.text(0, y + 10, shorten(word.name, 12), size=13, bold=True)
        for line, (sense, style) in enumerate(styles.items()):
            scene.mark(7, y + 28 + 17 * line, style, radius=4)
            scene.text(16, y + 32 + 17 * line, shorten(sense or "–", 13), size=11)
    return scene


def _senses(report: SenseReport, uses: Sequence[int]) -> Mapping[str | None, None]:
    return dict.fromkeys(report.senses[i] for i in uses)
