"""Drawings of lines, marks and words: as SVG for a page, and as PDF, SVG or PNG files.

Colours are names of variables in ``templates/page.css``: ``m0`` is the chosen method, ``m1`` the
baseline. One drawing serves light and dark pages; in a file colours are those of the light page.
Each method has one colour and one shape.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup

from embedkit.choices import FIGURE_FORMATS, check_choice
from embedkit.display import columns, visible
from embedkit.errors import UsageError

WIDTH = 400.0  # of a chart in half a page
_SHARED = 6  # colours of the methods other than the chosen one and the baseline

_ARMS = ((-1.1, -0.35), (-0.35, -0.35), (-0.35, -1.1), (0.35, -1.1), (0.35, -0.35), (1.1, -0.35))
"""Corners of the upper half of a cross."""

SHAPES: dict[str, tuple[tuple[float, float], ...]] = {
    # no corners: see Scene.mark
    "circle": (),
    "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "diamond": ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
    "up": ((0, -1.2), (1.15, 0.9), (-1.15, 0.9)),
    "down": ((0, 1.2), (1.15, -0.9), (-1.15, -0.9)),
    "cross": (*_ARMS, *((-x, -y) for x, y in _ARMS)),
}
"""Corners by shape of marks, in radii from the middle."""

Anchor = Literal["start", "middle", "end"]


Point = tuple[float, float]

Element = tuple[str, dict[str, str], str]
"""Tag, attributes and text of an element of SVG; ``fill`` and ``stroke`` are names of colours."""


class Scene:
    """A drawing under construction; coordinates are pixels from the upper left corner.

    ``title`` says what it shows, ``description`` what can be read from it.
    """

    def __init__(self, width: float, height: float, *, title: str, description: str = "") -> None:
        self.width, self.height = width, height
        self.title, self.description = title, description
        self.items: list[Element] = []

    def line(
        self,
        *points: Point,
        colour: str = "line",
        width: float = 1,
        dashed: bool = False,
        opacity: float = 1,
    ) -> None:
        """Draw a line through points."""
        values = {"points": _points(points), "fill": "none", "stroke": colour}
        values["stroke-width"] = f"{width:g}"
        if dashed:
            values["stroke-dasharray"] = "4 4"
        self.items.append(("polyline", values | _opacity("stroke", opacity), ""))

    def area(self, *points: Point, colour: str, opacity: float = 1, **further: str) -> None:
        """Fill a polygon, which may have ``further`` attributes, such as a ``stroke``."""
        values = {"points": _points(points), "fill": colour} | _opacity("fill", opacity)
        self.items.append(("polygon", values | further, ""))

    def box(self, x: float, y: float, width: float, height: float, **paint: Any) -> None:
        """Fill a rectangle, painted as :meth:`area`."""
        self.area((x, y), (x + width, y), (x + width, y + height), (x, y + height), **paint)

    def mark(
        self, x: float, y: float, style: int, *, radius: float = 5.5, opacity: float = 1
    ) -> None:
        """Draw the mark of a method."""
        colour, corners = colour_of(style), SHAPES[shape_of(style)]
        if not corners:
            values = {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": f"{radius:g}", "fill": colour}
            self.items.append(("circle", values | _opacity("fill", opacity), ""))
            return
        points = ((x + radius * dx, y + radius * dy) for dx, dy in corners)
        self.area(*points, colour=colour, opacity=opacity)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        colour: str = "ink",
        size: float = 13,
        anchor: Anchor = "start",
        bold: bool = False,
        turned: bool = False,
    ) -> None:
        """Write text; ``y`` is its base line."""
        values = {"x": f"{x:.1f}", "y": f"{y:.1f}", "font-size": f"{size:g}", "fill": colour}
        if anchor != "start":
            values["text-anchor"] = anchor
        if bold:
            values["font-weight"] = "600"
        if turned:
            values["transform"] = f"rotate(-90 {x:.1f} {y:.1f})"
        self.items.append(("text", values, visible(text)))

    def note(self, x: float, y: float, text: str, *, anchor: Anchor = "middle") -> None:
        """Write small grey text, such as the numbers and the name of an axis."""
        self.text(x, y, text, colour="soft", size=12, anchor=anchor)


def _points(points: Sequence[Point]) -> str:
    # a tenth of a pixel is not seen, and digits would fill the page
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _opacity(of: str, value: float) -> dict[str, str]:
    return {} if value == 1 else {f"{of}-opacity": f"{value:g}"}


class Plot(Scene):
    """A scene with two axes; :meth:`at` gives the pixels of values.

    ``x`` are the ends of the horizontal axis, ``y`` the values at the bottom and at the top, whose
    name stands above; ``room`` is kept at the right for names of lines.
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        title: str,
        x_name: str,
        y_name: str,
        description: str = "",
        x_text: Callable[[float], str] = "{:g}".format,
        y_text: Callable[[float], str] = "{:g}".format,
        x_ticks: Sequence[float] | None = None,
        room: float = 0,
        height: float = 290,
        log: bool = False,
    ) -> None:
        super().__init__(WIDTH, height, title=title, description=description)
        marks = ticks(min(y), max(y), 4)
        # room for the widest number of the axis
        self.left = max(text_width(y_text(tick), 12) for tick in marks) + 12
        # text_width is an estimate: 8 % more, and the mark in front of the name
        room = room * 1.08 + 20 if room else 22  # for a mark, or for half of the last number
        # 30 above for the name of the axis, 44 below for numbers and name
        self.right, self.top, self.bottom = WIDTH - room, 30.0, height - 44
        self._x, self._y, self._log = x, y, log
        self.note(0, 12, y_name, anchor="start")
        for tick in marks:
            height_of_tick = self.at(x[0], tick)[1]
            self.line((self.left, height_of_tick), (self.right, height_of_tick))
            self.note(self.left - 6, height_of_tick + 4, y_text(tick), anchor="end")
        for tick in ticks(*x, 6) if x_ticks is None else x_ticks:
            self.note(self.at(tick, y[0])[0], self.bottom + 18, x_text(tick))
        self.note((self.left + self.right) / 2, height - 6, x_name)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the pixels of a value; in the middle of an axis without extent."""
        start, end, value = map(math.log, (*self._x, x)) if self._log else (*self._x, x)
        # one value alone, such as a curve with one point, stands in the middle
        across = (value - start) / (end - start) if end != start else 0.5
        up = (y - self._y[0]) / (self._y[1] - self._y[0]) if self._y[1] != self._y[0] else 0.5
        right, above = across * (self.right - self.left), up * (self.bottom - self.top)
        return self.left + right, self.bottom - above

    def curve(
        self,
        points: Sequence[tuple[float, float]],
        style: int,
        *,
        ends: Sequence[tuple[float, float]] = (),
        marks: bool = True,
        width: float = 2,
    ) -> None:
        """Draw a line through values, with the band of their intervals ``ends``."""
        colour = colour_of(style)
        # a band with a hole would be drawn as another shape; without a finite interval there is
        # none
        if ends and all(math.isfinite(end) for pair in ends for end in pair):
            upper = [self.at(x, high) for (x, _), (_, high) in zip(points, ends, strict=True)]
            lower = [self.at(x, low) for (x, _), (low, _) in zip(points, ends, strict=True)]
            # there and back: the outline of the band
            self.area(*upper, *reversed(lower), colour=colour, opacity=0.13)
        self.line(*(self.at(*p) for p in points), colour=colour, width=width)
        for point in points if marks else ():
            self.mark(*self.at(*point), style, radius=3.5)

    def names(self, lines: Sequence[tuple[str, float, int]], *, at_ends: bool = False) -> None:
        """Write names beside the plot at values ``y``, in their styles, none over another.

        A name has a mark, unless it stands right beside that ``at_ends`` of a line.
        """
        heights = [self.at(self._x[0], y)[1] for _, y, _ in lines]
        # 16 pixels: the height of a line of text
        places = apart(heights, 16, low=self.top, high=self.bottom)
        for (name, _, style), height, place in zip(lines, heights, places, strict=True):
            if not at_ends or abs(place - height) > 7:  # as high as a mark
                self.mark(self.right + 8, place, style, radius=3.5)
            self.text(self.right + 15, place + 4, name, colour=colour_of(style), size=12)


def colour_of(style: int) -> str:
    """Return the colour of a method by the number of its style."""
    # 0 and 1 keep their colours; the others share six, again and again
    return f"m{style if style < 2 else 2 + (style - 2) % _SHARED}"


@cache
def _colours() -> dict[str, str]:
    """The colours of a light page by name."""
    css = Path(__file__).with_name("templates").joinpath("page.css").read_text("utf-8")
    # before the first @media: there the colours of dark pages begin
    return dict(re.findall(r"--(\w+): (#\w+)", css.partition("@media")[0]))


def shape_of(style: int) -> str:
    """Return the shape of a method by the number of its style.

    No two of 38 methods have the same colour and the same shape.

    >>> len({(colour_of(style), shape_of(style)) for style in range(38)})
    38
    """
    # six colours and six shapes: each round of colours begins with another shape
    return list(SHAPES)[(style + max(style - 2, 0) // _SHARED) % len(SHAPES)]


def as_svg(scene: Scene, *, name: str, page: bool = True) -> Markup:
    """Return a drawing as an SVG element with a unique name; its colours are variables of the page.

    Without ``page`` they are fixed, for a file of its own.
    """
    # read by screen readers: title and description are the name of the image; of a symbol, which
    # has neither, the name stands beside it
    about = {"title": scene.title, "desc": scene.description}
    about = {kind: text for kind, text in about.items() if text}
    named = {"role": "img", "aria-labelledby": " ".join(f"{name}-{kind}" for kind in about)}
    root = {"viewBox": f"0 0 {scene.width:g} {scene.height:g}"}
    root |= named if about else {"aria-hidden": "true"}
    content = [_tag(kind, {"id": f"{name}-{kind}"}, text) for kind, text in about.items()]
    if page:
        # it shrinks with its column, and grows to 1.2 times its size at most
        root["style"] = f"max-width:{scene.width * 1.2:g}px"
    else:
        root |= {"xmlns": "http://www.w3.org/2000/svg"}
        root |= {"width": f"{scene.width:g}", "height": f"{scene.height:g}"}
        root["font-family"] = "Noto Sans, Noto Sans CJK KR, sans-serif"
        root["style"] = "max-width:100%;height:auto"  # where a window is narrower
        # else dark letters would stand on whatever a viewer has behind them
        content.append(_tag("rect", {"width": "100%", "height": "100%", "fill": "#fff"}))
    content += [_element(*item, page) for item in scene.items]
    return _tag("svg", root, Markup("").join(content))


def _tag(tag: str, attributes: Mapping[str, str], content: str | None = None) -> Markup:
    """An element; what is no markup is escaped."""
    listed = Markup("").join(Markup(' {}="{}"').format(*pair) for pair in attributes.items())
    end = Markup("/>") if content is None else Markup(">{}</{}>").format(content, tag)
    return Markup("<{}{}{}").format(tag, listed, end)


def _element(tag: str, values: Mapping[str, str], text: str, page: bool) -> Markup:
    paint = {key: values[key] for key in ("fill", "stroke") if values.get(key, "none") != "none"}
    # a page finds elements by their names, of which a file says nothing
    left_out = paint.keys() if page else paint.keys() | {"data-name"}
    attributes = {key: value for key, value in values.items() if key not in left_out}
    # variables, so that one drawing has the colours of light and of dark pages
    if page:
        attributes["style"] = ";".join(f"{key}:var(--{colour})" for key, colour in paint.items())
    else:
        attributes |= {key: _colours()[colour] for key, colour in paint.items()}
    return _tag(tag, attributes, text if tag == "text" else None)


def check_form(**form: str) -> None:
    """Raise a :class:`UsageError` for files of another kind, or one that nothing here writes."""
    check_choice(FIGURE_FORMATS, **form)
    if "svg" not in form.values() and find_spec("vl_convert") is None:
        raise UsageError("it needs vl-convert-python: pip install it, or take svg.", **form)


def as_file(scene: Scene, form: str) -> bytes:
    """Return a drawing as a file: ``pdf``, ``png`` or ``svg``, on white, without a date in it.

    Letters stay text in a PDF, in the fonts of this machine; one that no font has is a box. The
    entries of a PDF have another order each time.
    """
    svg = str(as_svg(scene, name="figure", page=False))
    if form == "svg":
        return svg.encode()
    import vl_convert

    # twice the pixels of a page
    return vl_convert.svg_to_pdf(svg) if form == "pdf" else vl_convert.svg_to_png(svg, scale=2)


def text_width(text: str, size: float = 13) -> float:
    """Return about how many pixels a text takes, rather more than less."""
    # 0.57 of the size is an average letter, rather wide
    return columns(text) * size * 0.57


def apart(places: Sequence[float], step: float, *, low: float, high: float) -> list[float]:
    """Return places moved so that neighbours are ``step`` apart, between two ends if all fit.

    >>> apart([10, 12, 40], 8, low=0, high=50)
    [10, 18, 40]
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = list(places)
    start, end = low, high
    # first down from the top, each at least a step below the one before; then up from the bottom,
    # for those that were pushed out
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
    # also NaN, and an axis without extent
    if not raw > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    # the first round step that is not smaller; 0.999 and 1e-9 forgive the rounding of sums
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    # whole multiples, rounded: sums of steps would give 0.30000000000000004
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]
