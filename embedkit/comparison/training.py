"""The course of fine-tuning: loss of every fold by epoch, and validation scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embedkit.comparison.drawing import Scene, colour_of, ticks
from embedkit.comparison.phrases import Phrases

__all__ = ["training_chart", "training_log"]


def training_log(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a run's ``training.jsonl``; none if the run has no such file."""
    file = path / "training.jsonl"
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]


def training_chart(
    name: str, style: int, entries: Sequence[dict[str, Any]], words: Phrases, width: float
) -> Scene:
    """Draw training loss (lines) and validation loss (marks) of every fold by epoch."""
    lines: dict[tuple[int, ...], list[tuple[float, float]]] = {}
    marks: list[tuple[float, float]] = []
    for entry in entries:
        fold = tuple(int(entry.get(name, 0)) for name in ("seed", "repeat", "fold"))
        if entry.get("loss") is not None:
            lines.setdefault(fold, []).append((float(entry["epoch"]), float(entry["loss"])))
        if entry.get("valid_loss") is not None:
            marks.append((float(entry["epoch"]), float(entry["valid_loss"])))
    points = [*marks, *(point for found in lines.values() for point in found)] or [(0.0, 0.0)]
    height, left = 250.0, 52.0
    bottom, right = height - 42, width - 12
    last, top = max(x for x, _ in points) or 1.0, max(y for _, y in points) or 1.0

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return left + point[0] / last * (right - left), bottom - point[1] / top * (bottom - 14)

    scene = Scene(width, height, title=words("section.training", name=name))
    for tick in ticks(0, top, 4):
        scene.line(place((0, tick)), place((last, tick)))
        scene.note(left - 6, place((0, tick))[1] + 4, f"{tick:g}", anchor="end")
    for tick in ticks(0, last, 6):
        scene.note(place((tick, 0))[0], bottom + 18, f"{tick:g}")
    for found in lines.values():
        scene.line(*map(place, sorted(found)), colour=colour_of(style), width=1.2, opacity=0.6)
    for mark in marks:
        scene.mark(*place(mark), style, radius=3.5)
    scene.note((left + right) / 2, height - 6, words("training.axis"))
    return scene
