"""Pages in a browser: opened, watched for messages and requests, and checked by axe."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

READY = "body[data-ready=yes]"


def block(file: Path, name: str) -> bytes:
    """The unpacked content of a data block of a page."""
    found = re.search(rf'id="{name}">([^<]*)<', file.read_text("utf-8"))
    assert found, name
    return gzip.decompress(base64.b64decode(found[1]))


def json_block(file: Path, name: str) -> Any:
    return json.loads(block(file, name))


def planes(content: bytes, width: int) -> Any:
    """Numbers whose lowest bytes stand together, then their second bytes, and so on."""
    parts = np.frombuffer(content, np.uint8).reshape(width, -1).astype(np.int64)
    return sum(part << (8 * i) for i, part in enumerate(parts))


@contextmanager
def opened(
    browser: Any, file: Path, *, width: int = 1_280, scheme: str = "light", ready: str = READY,
    **options: Any,
) -> Iterator[Any]:  # fmt: skip
    """A page; at the end nothing was said on the console, and nothing else was asked for."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme,
                                  reduced_motion="reduce", **options)  # fmt: skip
    page = context.new_page()
    messages: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_selector(ready)
    yield page
    context.close()
    assert messages == []
    assert asked == [file.as_uri()]


def until(page: Any, script: str, holds: Callable[[Any], bool]) -> Any:
    """The value of a script once it is as it should be; the page allows no ``eval`` of its own."""
    value = None
    for _ in range(2_400):
        if holds(value := page.evaluate(script)):
            return value
        page.wait_for_timeout(25)
    raise AssertionError(f"{script}: {value}")


AXE = files("axe_playwright_python") / "axe.min.js"


def opening_times(page: Any) -> dict[str, float]:
    """Milliseconds from the request to the first paint, and to this call."""
    return dict(
        page.evaluate("""() => ({ now: performance.now(), painted:
        performance.getEntriesByName('first-contentful-paint')[0]?.startTime })""")
    )


def findings_of_axe(page: Any) -> list[Any]:
    """What axe finds on a page that is open with ``bypass_csp``."""
    page.add_script_tag(path=str(AXE))
    named = "result.violations.map(one => [one.id, one.nodes[0].html.slice(0, 200)])"
    return list(page.evaluate(f"axe.run().then(result => {named})"))


WIDTHS = (390, 800, 1_400)
"""A phone, a tablet, and a desktop."""

STICKING_OUT = """() => [...document.querySelectorAll("body *")].filter((one) => {
  const style = getComputedStyle(one);
  return one.checkVisibility() && !one.closest("svg, .scroll") && style.display !== "inline"
    && style.overflowX === "visible" && one.clientWidth && one.scrollWidth > one.clientWidth + 1;
}).map((one) => `${one.tagName} ${one.className}: ${one.scrollWidth} > ${one.clientWidth}`)"""


def check_fit(page: Any, *, axe: bool = False) -> None:
    """At every width and in both themes nothing is wider than the window or than its own box.

    With ``axe``, for a page that is open with ``bypass_csp``, it finds nothing there either.
    """
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(50)  # pictures that are drawn for a width are drawn again
            where = f"{width} pixels, {scheme}"
            assert page.evaluate("document.documentElement.scrollWidth") == width, where
            assert page.evaluate(STICKING_OUT) == [], where
            ink, paper = (
                int(page.evaluate(f"getComputedStyle(document.body).{one}")[4:].split(",")[0])
                for one in ("color", "backgroundColor")
            )
            assert (ink < paper) == (scheme == "light"), where
            assert not axe or findings_of_axe(page) == [], where


def pasted(page: Any) -> str:
    """What was copied last."""
    page.evaluate("""() => { const area = document.createElement("textarea"); area.id = "paste";
                     document.body.append(area); area.focus(); }""")
    page.keyboard.press("Control+V")
    return str(page.input_value("#paste"))
