"""A drawing of lines, marks and words: as SVG for a page, and as PDF, SVG or PNG for a paper.

Colours are names. On a page they are variables of its style sheet, so that one drawing serves light
and dark; in a file they are those of the light page. Each method has one colour and one shape.
"""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from markupsafe import Markup, escape

from embedkit.display import columns, visible

__all__ = ["COLOURS", "SHAPES", "Scene", "apart", "as_file", "as_svg", "colour_of", "shape_of",
           "text_width", "ticks"]  # fmt: skip

COLOURS = {
    "m0": "#1f66b0", "m1": "#b1580c", "m2": "#2a7a4f", "m3": "#8a4fb5", "m4": "#b3364f",
    "m5": "#6b747d", "m6": "#00757f", "m7": "#7a6a00", "ink": "#1b1f24", "soft": "#59626b",
    "line": "#d5d9de", "band": "#e9ebee", "paper": "#ffffff",
}  # fmt: skip
"""Colour by name; ``m0`` is the chosen method, ``m1`` the baseline."""

SHAPES = ("circle", "square", "diamond", "up", "down", "cross")
"""Shapes of marks."""

_SHARED = 6
"""Colours of the methods other than the chosen one and the baseline, whose own none other has."""

Anchor = Literal["start", "middle", "end"]
_SVG_ROUND = 1


@dataclass(frozen=True, slots=True)
class _Line:
    points: tuple[tuple[float, float], ...]
    colour: str
    width: float
    dashed: bool
    opacity: float


@dataclass(frozen=True, slots=True)
class _Area:
    points: tuple[tuple[float, float], ...]
    colour: str
    opacity: float
    outline: str | None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class _Circle:
    x: float
    y: float
    radius: float
    colour: str
    opacity: float


@dataclass(frozen=True, slots=True)
class _Text:
    x: float
    y: float
    text: str
    colour: str
    size: float
    anchor: Anchor
    bold: bool


class Scene:
    """A drawing under construction; coordinates are pixels from the upper left corner.

    Args:
        width: of the drawing.
        height: of the drawing.
        title: what it shows, for screen readers and file readers.
        description: what can be read from it, for those who do not see it.
    """

    def __init__(self, width: float, height: float, *, title: str, description: str = "") -> None:
        self.width, self.height = width, height
        self.title, self.description = title, description
        self.items: list[_Line | _Area | _Circle | _Text] = []

    def line(
        self, *points: tuple[float, float], colour: str = "line", width: float = 1,
        dashed: bool = False, opacity: float = 1,
    ) -> None:  # fmt: skip
        """Draw a line through points."""
        self.items.append(_Line(points, colour, width, dashed, opacity))

    def area(self, *points: tuple[float, float], colour: str, opacity: float) -> None:
        """Fill a polygon."""
        self.items.append(_Area(points, colour, opacity, None))

    def box(
        self, x: float, y: float, width: float, height: float, *, colour: str,
        opacity: float = 1, outline: str | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        """Fill a rectangle; one with a ``name`` is found by it on a page (``data-name``)."""
        corners = ((x, y), (x + width, y), (x + width, y + height), (x, y + height))
        self.items.append(_Area(corners, colour, opacity, outline, name))

    def mark(
        self, x: float, y: float, style: int, *, radius: float = 5.5, opacity: float = 1
    ) -> None:
        """Draw the mark of a method."""
        colour, shape = colour_of(style), shape_of(style)
        if shape == "circle":
            self.items.append(_Circle(x, y, radius, colour, opacity))
            return
        corners = tuple((x + radius * dx, y + radius * dy) for dx, dy in _CORNERS[shape])
        self.items.append(_Area(corners, colour, opacity, None))

    def text(
        self, x: float, y: float, text: str, *, colour: str = "ink", size: float = 13,
        anchor: Anchor = "start", bold: bool = False,
    ) -> None:  # fmt: skip
        """Write text; ``y`` is its base line."""
        self.items.append(_Text(x, y, visible(text), colour, size, anchor, bold))

    def note(self, x: float, y: float, text: str, *, anchor: Anchor = "middle") -> None:
        """Write small grey text, such as the numbers and the name of an axis."""
        self.text(x, y, text, colour="soft", size=12, anchor=anchor)


def colour_of(style: int) -> str:
    """Return the colour of a method by the number of its style."""
    return f"m{style if style < 2 else 2 + (style - 2) % _SHARED}"


def shape_of(style: int) -> str:
    """Return the shape of a method by the number of its style.

    No two of 38 methods have the same colour and the same shape.

    >>> len({(colour_of(style), shape_of(style)) for style in range(38)})
    38
    """
    return SHAPES[(style + max(style - 2, 0) // _SHARED) % len(SHAPES)]


_CORNERS: dict[str, tuple[tuple[float, float], ...]] = {
    "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "diamond": ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
    "up": ((0, -1.2), (1.15, 0.9), (-1.15, 0.9)),
    "down": ((0, 1.2), (1.15, -0.9), (-1.15, -0.9)),
    "cross": ((-1.1, -0.35), (-0.35, -0.35), (-0.35, -1.1), (0.35, -1.1), (0.35, -0.35),
              (1.1, -0.35), (1.1, 0.35), (0.35, 0.35), (0.35, 1.1), (-0.35, 1.1), (-0.35, 0.35),
              (-1.1, 0.35)),
}  # fmt: skip


def as_svg(scene: Scene, *, name: str, page: bool = True) -> Markup:
    """Return a drawing as an SVG element.

    Args:
        scene: the drawing.
        name: unique on the page.
        page: colours are variables of the page; ``False``: fixed, for a file of its own.
    """
    size = f"{scene.width:g} {scene.height:g}"
    more = Markup(' style="max-width:{:g}px"').format(scene.width * 1.25) if page else Markup(
        ' xmlns="http://www.w3.org/2000/svg" width="{:g}" height="{:g}"'
        ' font-family="Noto Sans, Noto Sans CJK KR, sans-serif"'
    ).format(scene.width, scene.height)  # fmt: skip
    described = Markup("")
    ids = f"{name}-title"
    if scene.description:
        described = Markup('<desc id="{}-desc">{}</desc>').format(name, scene.description)
        ids += f" {name}-desc"
    head = Markup(
        '<svg viewBox="0 0 {}" role="img" aria-labelledby="{}"{}><title id="{}-title">{}</title>{}'
    ).format(size, ids, more, name, scene.title, described)
    body = Markup("").join(_element(item, page) for item in scene.items)
    return head + body + Markup("</svg>")


def _paint(kind: str, colour: str, page: bool, *, stroke: str | None = None) -> Markup:
    paints = {kind: colour} | ({"stroke": stroke} if stroke else {})
    if page:
        css = ";".join(f"{name}:var(--{value})" for name, value in paints.items())
        return Markup(' style="{}"').format(css)
    return Markup("").join(
        Markup(' {}="{}"').format(name, COLOURS[value]) for name, value in paints.items()
    )


def _opacity(kind: str, opacity: float) -> Markup:
    return Markup("") if opacity == 1 else Markup(' {}-opacity="{:g}"').format(kind, opacity)


def _element(item: _Line | _Area | _Circle | _Text, page: bool) -> Markup:
    if isinstance(item, _Text):
        return Markup('<text x="{:g}" y="{:g}" font-size="{:g}"{}{}{}>{}</text>').format(
            _round(item.x), _round(item.y), item.size, _paint("fill", item.colour, page),
            Markup(' text-anchor="{}"').format(item.anchor) if item.anchor != "start" else "",
            Markup(' font-weight="600"') if item.bold else "", escape(item.text),
        )  # fmt: skip
    if isinstance(item, _Circle):
        return Markup('<circle cx="{:g}" cy="{:g}" r="{:g}"{}{}/>').format(
            _round(item.x), _round(item.y), item.radius, _paint("fill", item.colour, page),
            _opacity("fill", item.opacity),
        )  # fmt: skip
    points = " ".join(f"{_round(x):g},{_round(y):g}" for x, y in item.points)
    if isinstance(item, _Line):
        return Markup('<polyline points="{}" fill="none" stroke-width="{:g}"{}{}{}/>').format(
            points, item.width, _opacity("stroke", item.opacity),
            Markup(' stroke-dasharray="4 4"') if item.dashed else "",
            _paint("stroke", item.colour, page),
        )  # fmt: skip
    named = Markup(' data-name="{}"').format(item.name) if page and item.name else ""
    return Markup('<polygon points="{}"{}{}{}{}/>').format(
        points, named, _opacity("fill", item.opacity),
        Markup(' stroke-width="2"') if item.outline else "",
        _paint("fill", item.colour, page, stroke=item.outline),
    )  # fmt: skip


def _round(value: float) -> float:
    return round(value, _SVG_ROUND)


def as_file(scene: Scene, form: str) -> bytes:
    """Return a drawing as a file: ``pdf``, ``png`` or ``svg``, on white."""
    if form == "svg":
        return str(as_svg(scene, name="figure", page=False)).encode()
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from embedkit.runs.figures import render

    # a font without a bold face is drawn as it is: no matter for a message on every letter
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    with mpl.rc_context({"pdf.fonttype": 42, "text.parse_math": False}):
        figure = Figure(figsize=(scene.width / 96, scene.height / 96))
        FigureCanvasAgg(figure)
        axis = figure.add_axes((0, 0, 1, 1), xlim=(0, scene.width), ylim=(scene.height, 0))
        axis.set_axis_off()
        for item in scene.items:
            _draw(axis, item)
        made = io.BytesIO()
        if form == "pdf":
            render(figure, made, format="pdf",
                   metadata={"Title": scene.title, "CreationDate": None, "Creator": None,
                             "Producer": None})  # fmt: skip
        else:
            render(figure, made, format="png", dpi=288, metadata={"Software": None})
    return made.getvalue()


def _draw(axis: Any, item: _Line | _Area | _Circle | _Text) -> None:
    from matplotlib.patches import Circle, Polygon

    colour = COLOURS[item.colour]
    points = 72 / 96  # of a pixel
    if isinstance(item, _Text):
        anchor = {"start": "left", "middle": "center", "end": "right"}[item.anchor]
        axis.text(item.x, item.y, item.text, color=colour, fontsize=item.size * points, ha=anchor,
                  va="baseline", weight="bold" if item.bold else "normal")  # fmt: skip
    elif isinstance(item, _Circle):
        axis.add_patch(Circle((item.x, item.y), item.radius, color=colour, alpha=item.opacity,
                              linewidth=0))  # fmt: skip
    elif isinstance(item, _Line):
        axis.plot(*zip(*item.points, strict=True), color=colour, linewidth=item.width * points,
                  linestyle=(0, (4, 4)) if item.dashed else "-", alpha=item.opacity,
                  solid_capstyle="butt")  # fmt: skip
    else:
        axis.add_patch(
            Polygon(
                item.points,
                facecolor=(colour, item.opacity),
                linewidth=1.5,
                edgecolor=COLOURS[item.outline] if item.outline else "none",
            )
        )


def text_width(text: str, size: float = 13) -> float:
    """Return about how many pixels a text takes, rather more than less."""
    return columns(text) * size * 0.57


def apart(places: Sequence[float], step: float, *, low: float, high: float) -> list[float]:
    """Return places moved so that neighbours are ``step`` apart, between two ends if all fit.

    >>> apart([10, 12, 40], 8, low=0, high=50)
    [10, 18, 40]
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = list(places)
    start, end = low, high
    for i in order:
        moved[i] = max(places[i], start)
        start = moved[i] + step
    for i in reversed(order):
        moved[i] = min(moved[i], end)
        end = moved[i] - step
    return moved


def ticks(low: float, high: float, count: int) -> Sequence[float]:
    """Return some round values between two, about ``count`` of them.

    >>> ticks(0.71, 0.79, 4)
    [0.72, 0.74, 0.76, 0.78]
    """
    raw = (high - low) / max(count, 1)
    if not raw > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]
