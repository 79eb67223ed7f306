"""The course of fine-tuning: loss of every model by epoch, and that on its validation records."""

from __future__ import annotations

from embedkit.comparison.drawing import Scene, colour_of, ticks
from embedkit.comparison.phrases import Phrases
from embedkit.runs.content import FinetuneRun

__all__ = ["training_chart"]


def training_chart(name: str, style: int, run: FinetuneRun, words: Phrases, width: float) -> Scene:
    """Draw training loss (lines) and validation loss (marks) of every model by epoch."""
    lines = [[(e.epoch, e.train_loss) for e in model.epochs] for model in run.history]
    marks = [(e.epoch, e.valid_loss) for model in run.history for e in model.epochs
             if e.valid_loss is not None]  # fmt: skip
    points = [*marks, *(point for line in lines for point in line)]
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
    for line in lines:
        scene.line(*map(place, line), colour=colour_of(style), width=1.2, opacity=0.6)
    for mark in marks:
        scene.mark(*place(mark), style, radius=3.5)
    scene.note((left + right) / 2, height - 6, words("training.axis"))
    return scene
