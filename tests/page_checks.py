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

from embedkit.comparison.report import write_report
from embedkit.comparison.table import Compared

READY = "body[data-ready=yes]"


def page_of(compared: Compared, file: Path, **settings: Any) -> str:
    """What the report of a comparison says, without the places where a line may be divided."""
    write_report(compared, file, **settings)
    return file.read_text("utf-8").replace("<wbr>", "")


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
    browser: Any, file: Path, *, width: int = 1_280, ready: str = READY, **options: Any
) -> Iterator[Any]:
    """A page; at the end nothing was said on the console, and nothing else was asked for."""
    given = {"color_scheme": "light", "reduced_motion": "reduce", **options}
    context = browser.new_context(viewport={"width": width, "height": 900}, **given)
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


def findings_of_axe(page: Any) -> list[Any]:
    """What axe finds on a page that is open with ``bypass_csp``."""
    page.add_script_tag(path=str(files("axe_playwright_python") / "axe.min.js"))
    named = "result.violations.map(one => [one.id, one.nodes[0].html.slice(0, 200)])"
    return list(page.evaluate(f"axe.run().then(result => {named})"))


def check_fit(page: Any, width: int, scheme: str) -> None:
    """Nothing is wider than the screen, the scheme is the reader's, and axe finds nothing."""
    assert page.evaluate("document.documentElement.scrollWidth") == width
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert (int(ink[4:].split(",")[0]) > 128) == (scheme == "dark")
    assert findings_of_axe(page) == []


def copied(page: Any) -> list[list[str]]:
    """Cells of the lines that the page copies as TSV."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#copy")
    return [line.split("\t") for line in pasted(page).rstrip("\n").split("\n")]


def pasted(page: Any) -> str:
    """What was copied last."""
    page.evaluate("""() => { const area = document.createElement("textarea"); area.id = "paste";
                     document.body.append(area); area.focus(); }""")
    page.keyboard.press("Control+V")
    return str(page.input_value("#paste"))


def tab_stops(page: Any, name: str) -> dict[str, bool]:
    """Names of what Tab reaches, by a script of ``one``, and whether the focus is seen there."""
    seen = "getComputedStyle(one).outlineStyle !== 'none'"
    script = f"""() => {{ const one = document.activeElement;
        return one === document.body ? null : [{name}, {seen}]; }}"""
    reached: dict[str, bool] = {}
    for _ in range(400):
        page.keyboard.press("Tab")
        stop = page.evaluate(script)
        if stop is None:
            break
        reached[stop[0]] = stop[1]
    return reached
