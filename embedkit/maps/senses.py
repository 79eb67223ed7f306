"""The uses of words as one HTML page, layer by layer, and as small multiples for papers."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.choices import DEFAULT_MODEL, FIGURE_FORMATS, check_choice
from embedkit.contexts.senses import SenseReport, compare_senses, sense_text
from embedkit.contexts.uses import WordReport, describe_uses, uses_in_dataset, uses_in_texts
from embedkit.display import shorten
from embedkit.drawing import SHAPES, Scene, as_file
from embedkit.encoding.views import parse_layers
from embedkit.errors import OutputExistsError, UsageError
from embedkit.maps.map import aligned, first_axes
from embedkit.pages import in_context, page_file, render_page
from embedkit.storage import write_files
from embedkit.types import AnyPath, Float32, ProgressCallback, no_progress

_PANEL, _GAP, _LEFT = 150.0, 14.0, 110.0
_FIGURE_WORDS = 8
_AROUND = 160


@dataclass(frozen=True, slots=True, eq=False)
class _Word:
    """The uses of a word in one model: their indices, and ``(layers, uses, 2)`` positions."""

    name: str
    uses: tuple[int, ...]
    points: Float32


def words(
    source: AnyPath | Sequence[str],
    word: str | None = None,
    *,
    match: str = "word",
    layer: str | None = None,
    clusters: int | None = None,
    sense: str | None = None,
    span: tuple[str, str] | None = None,
    out: str | Path | None = None,
    figure: str | Path | None = None,
    against: AnyPath | None = None,
    overwrite: bool = False,
    model: str = DEFAULT_MODEL,
    device: str = "auto",
    progress: ProgressCallback = no_progress,
) -> WordReport | list[SenseReport]:
    """Compare the uses of a word; with senses, spans or a page the senses of each dataset.

    Args:
        source: a dataset with vectors of words or tokens, or a list of sentences.
        word: the word; of ``span`` by default all words.
        match: ``word``, ``start`` or ``anywhere``.
        layer: layer or combination of layers to cluster; by default the last one.
        clusters: number of clusters; by default the one with the highest silhouette.
        sense: column with the sense of each record.
        span: columns with the first character of the use and the one after its last.
        out: page that shows the uses layer by layer.
        figure: figure with a panel for each layer.
        against: dataset of the same corpus by another model, beside the first on the page.
        overwrite: replace page and figure.
        model: checkpoint that encodes sentences.
        device: where it does.
        progress: called with the layers done.

    Raises:
        UsageError: the word does not occur, or a column or layer cannot be used.

    Example:
        >>> report = embedkit.words(["He robbed the bank.", "Fish on the river bank."], "bank")
        >>> len(report.uses), report.cosines.shape
        (2, (2, 2))
    """
    dataset = Path(source) if isinstance(source, str | os.PathLike) else None
    of_senses = any(given is not None for given in (sense, span, out, figure, against))
    if of_senses and dataset is not None:
        if against is not None and out is None:
            raise UsageError("against= is for the page: pass out= too.")
        page, drawing = _files(out, figure, overwrite)  # before anything is computed
        datasets = [dataset, *([Path(against)] if against is not None else [])]
        given: dict[str, Any] = {"sense": sense, "span": span, "match": match}
        reports = [compare_senses(one, word, progress=progress, **given) for one in datasets]
        if page or drawing:
            write_senses(reports, page, drawing)
        return reports
    if of_senses:
        raise UsageError("sentences have no columns: sense=, span= and pages need a dataset.")
    if word is None:
        raise UsageError("give a word, or span=(START, END), the columns of the uses of all words.")
    if dataset is not None:
        uses = uses_in_dataset(dataset, word, match=match)
        n_layers = uses.data.manifest.job.model.n_layers if uses.data else 0
    else:
        from embedkit.encoding.encoder import Encoder

        encoder = Encoder.load(model, device=device)
        n_layers = encoder.n_layers
        parsed = parse_layers(layer or "all", n_layers=n_layers)
        texts = [str(text) for text in source]  # type: ignore[union-attr]
        uses = uses_in_texts(encoder, texts, word, parsed, match=match)
    chosen = None if layer is None else parse_layers(layer, n_layers=n_layers)[0]
    return describe_uses(uses, word, layer=chosen, clusters=clusters)


def write_senses(
    reports: Sequence[SenseReport], page: Path | None, drawing: Path | None = None
) -> None:
    """Write the page, the figure (``.pdf``, ``.svg`` or ``.png``), or both.

    Two reports are of the same uses by different models, which stand side by side on the page.
    """
    shared = set.intersection(*({(u.row, u.start, u.end, u.text) for u in r.uses} for r in reports))
    if not shared:
        raise UsageError("the datasets have no use in common; expected the same corpus in both.")
    kept = [
        [i for i, u in enumerate(r.uses) if (u.row, u.start, u.end, u.text) in shared]
        for r in reports
    ]
    words = [_words(report, some) for report, some in zip(reports, kept, strict=True)]
    files: dict[Path, bytes] = {}
    if page is not None:
        names = [report.model for report in reports]
        if len(set(names)) < len(names):
            names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
        content = {
            "uses": _uses(reports[0], words[0]),
            "models": [
                _model(r, some) | {"name": name}
                for r, some, name in zip(reports, words, names, strict=True)
            ],
            "shapes": list(SHAPES.values()),
            "start": _start(reports[0], words[0]),
        }
        files[page] = render_page("senses", content=content, count=len(shared)).encode()
    if drawing is not None:
        scene = _multiples(reports[0], words[0])
        files[drawing] = as_file(scene, drawing.suffix.removeprefix("."))
    write_files(files, overwrite=True)


def _files(
    out: str | Path | None, figure: str | Path | None, overwrite: bool
) -> tuple[Path | None, Path | None]:
    page = None if out is None else page_file(out, overwrite=overwrite)
    if figure is None:
        return page, None
    check_choice(FIGURE_FORMATS, figure=Path(figure).suffix.removeprefix("."))
    if Path(figure).exists() and not overwrite:
        raise OutputExistsError(f"{figure} exists. Choose another name, or pass overwrite=True.")
    return page, Path(figure)


def _start(report: SenseReport, words: Sequence[_Word]) -> dict[str, Any]:
    """The word with the most uses, at the layer that separates the senses of all words best."""
    nearest = [one.nearest.value for one in report.layers]
    layer = int(np.nanargmax(nearest)) if report.scored else len(nearest) - 1
    return {"word": max(words, key=lambda word: len(word.uses)).name, "layer": layer}


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
    found: dict[str, Any] = {}
    for word in words:
        for i in word.uses:
            use = report.uses[i]
            context = in_context(use.text, use.start, use.end, around=_AROUND)
            about = {"row": use.row, "id": use.id, "sense": report.senses[i]}
            about |= dict(zip(("before", "word", "after"), context, strict=True))
            found.setdefault(word.name, []).append(about)
    return found


def _model(report: SenseReport, words: Sequence[_Word]) -> dict[str, Any]:
    """Content of the page about one model; NaN becomes null."""
    return {
        "layers": list(report.units),
        "chance": report.chance,
        "scored": report.scored,
        "n_words": len(report.by_word),
        "said": sense_text(report),
        "all": [[one.nearest.value, one.nearest.low, one.nearest.high] for one in report.layers],
        "same": [one.same for one in report.layers],
        "other": [one.other for one in report.layers],
        "words": {
            word.name: {
                "points": np.round(word.points, 3).tolist(),
                "same": [same for same, _ in report.by_word[word.name].cosines],
                "other": [other for _, other in report.by_word[word.name].cosines],
                "said": sense_text(report.by_word[word.name]),
                "near": [
                    [[[n.word, round(n.cosine, 3)] for n in layer[i]] for i in word.uses]
                    for layer in report.nearby
                ],
            }
            for word in words
        },
    }


def _multiples(report: SenseReport, words: Sequence[_Word]) -> Scene:
    """One panel for each layer; of one word in rows of five, of several a row for each."""
    layers = list(report.units)
    shown = sorted(words, key=lambda word: (-len(word.uses), word.name))[:_FIGURE_WORDS]
    columns = min(5, len(layers)) if len(shown) == 1 else len(layers)
    rows = math.ceil(len(layers) / columns) if len(shown) == 1 else len(shown)
    cell = _PANEL + _GAP
    what = shown[0].name if len(shown) == 1 else f"{len(shown)} words"
    scene = Scene(
        _LEFT + columns * cell,
        rows * (cell + 16) + 30,
        title=f"Uses of {what} by layer, {report.model}",
    )
    for number, word in enumerate(shown):
        styles = {s: i for i, s in enumerate(dict.fromkeys(report.senses[i] for i in word.uses))}
        reach = max(float(np.abs(word.points).max()), 1e-9) * 1.12
        for k, layer in enumerate(layers):
            row, column = divmod(k, columns) if len(shown) == 1 else (number, k)
            x, y = _LEFT + column * cell, 22 + row * (cell + 16)
            scene.box(x, y, _PANEL, _PANEL, colour="paper", outline="line")
            scene.text(x, y - 5, f"layer {layer}" if layer.isdigit() else layer, size=11)
            for at, i in zip(word.points[k], word.uses, strict=True):
                sense = report.senses[i]
                scene.mark(
                    x + _PANEL / 2 * (1 + at[0] / reach),
                    y + _PANEL / 2 * (1 - at[1] / reach),
                    styles[sense],
                    radius=4,
                )
        y = 22 + (0 if len(shown) == 1 else number) * (cell + 16)
        scene.text(0, y + 10, shorten(word.name, 12), size=13, bold=True)
        for line, (sense, style) in enumerate(styles.items()):
            scene.mark(7, y + 28 + 17 * line, style, radius=4)
            scene.text(16, y + 32 + 17 * line, shorten(sense or "–", 13), size=11)
    return scene
