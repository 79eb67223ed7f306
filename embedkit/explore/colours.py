"""Colours for labels and for numbers, with a contrast of 3 or more on the light and dark page."""

from __future__ import annotations

import math

__all__ = ["LABEL_COLOURS", "RAMP"]

_HUES = (255, 55, 150, 330, 95, 200, 25, 290, 125, 0, 225, 310)
_LIGHTNESS = {"light": (0.58, 0.44, 0.64), "dark": (0.78, 0.9, 0.62)}
_CHROMA = 0.17
_RAMP_STEPS = 64
_RAMP = {"light": (0.66, 0.3), "dark": (0.53, 0.93)}
_RAMP_HUES = (100, 310)


def _colour(lightness: float, chroma: float, hue: float) -> str:
    """A colour of the space OKLCH, less saturated where a screen has no such one."""
    a, b = (chroma * f(math.radians(hue)) for f in (math.cos, math.sin))
    long, middle, short = (
        (lightness + x * a + y * b) ** 3
        for x, y in ((0.3963377774, 0.2158037573), (-0.1055613458, -0.0638541728),
                     (-0.0894841775, -1.2914855480))
    )  # fmt: skip
    linear = [
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
    ]
    if min(linear) < 0 or max(linear) > 1:
        return _colour(lightness, chroma * 0.95, hue)
    values = [12.92 * p if p <= 0.0031308 else 1.055 * p ** (1 / 2.4) - 0.055 for p in linear]
    return "#" + "".join(f"{round(255 * value):02x}" for value in values)


LABEL_COLOURS = {
    theme: tuple(_colour(one, _CHROMA, hue) for one in steps for hue in _HUES)
    for theme, steps in _LIGHTNESS.items()
}
"""36 colours for each theme; labels after the 36th begin again."""

RAMP = {
    theme: tuple(
        _colour(low + (high - low) * i / (_RAMP_STEPS - 1), 0.15,
                _RAMP_HUES[0] + (_RAMP_HUES[1] - _RAMP_HUES[0]) * i / (_RAMP_STEPS - 1))
        for i in range(_RAMP_STEPS)
    )
    for theme, (low, high) in _RAMP.items()
}  # fmt: skip
"""From the lowest number to the highest: on the light page darker, on the dark one lighter."""
