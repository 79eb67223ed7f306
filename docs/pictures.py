"""Make the pictures of the README and of ``docs/gallery.md`` from the corpora in ``data/``.

``python docs/pictures.py`` writes ``docs/explore.webp``, a loop through the layers of a map, and
the first screen of the report of ``pipelines/quickstart.toml`` as ``docs/report-light.png`` and
``docs/report-dark.png``; figures of runs on the same vectors are ``docs/layers.svg``,
``docs/learning.svg`` and ``docs/confusion.svg``. It needs Chromium and the packages of ``make
check``.
"""

from __future__ import annotations

import datetime
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
ROOT = HERE.parent
STEP, HOLD = 60, 700  # milliseconds of a frame, and of a layer at rest


def embedkit(*arguments: str | Path) -> None:
    """Run a command."""
    subprocess.run([sys.executable, "-m", "embedkit", *map(str, arguments)], cwd=ROOT, check=True)


def frames_of(page: Any) -> tuple[list[Image.Image], list[int]]:
    """Pictures of a map that goes through its layers, and how long each is shown."""
    images: list[Image.Image] = []
    times: list[int] = []

    def hold(milliseconds: int) -> None:
        images.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
        times.append(milliseconds)

    slider = page.locator("#layer")
    for layer in range(int(slider.get_attribute("max")) + 1):
        slider.fill(str(layer))
        slider.blur()
        for _ in range(9):
            page.clock.run_for(STEP)
            hold(STEP)
        times[-1] += HOLD
    page.locator("#list button", has_text="login").first.dispatch_event("click")
    page.clock.run_for(1_000)
    hold(2_500)
    return images, times


def explore_loop(browser: Any, folder: Path) -> None:
    """Write the loop."""
    corpus = ROOT / "data/requests_en.tsv"
    embedkit(
        "extract", corpus, "--label", "intent", "--layers", "all", "--out", folder / "requests"
    )
    embedkit("explore", folder / "requests", "--out", folder / "map.html")
    page = browser.new_context(viewport={"width": 1_280, "height": 840}).new_page()
    page.clock.install()
    page.goto((folder / "map.html").as_uri())
    while page.locator("body[data-ready=yes]").count() == 0:
        page.clock.run_for(50)
    page.clock.pause_at(datetime.datetime.now() + datetime.timedelta(hours=1))
    images, times = frames_of(page)
    images = [one.resize((960, 630), Image.Resampling.LANCZOS) for one in images]
    images[0].save(
        HERE / "explore.webp",
        save_all=True,
        append_images=images[1:],
        duration=times,
        loop=0,
        quality=70,
        method=6,
    )


def report(browser: Any) -> None:
    """Write the first screen of the report in ``pipelines/outputs/quickstart``, dark and light."""
    embedkit("run", "pipelines/quickstart.toml")
    for scheme in ("light", "dark"):
        page = browser.new_context(
            viewport={"width": 1_200, "height": 790}, color_scheme=scheme, device_scale_factor=1.5
        ).new_page()
        page.goto((ROOT / "pipelines/outputs/quickstart/report.html").as_uri())
        page.wait_for_selector("#explorer:not([hidden])")
        image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        image.quantize(128).save(HERE / f"report-{scheme}.png", optimize=True)


def figures(folder: Path) -> None:
    """Copy figures of two runs on the vectors of :func:`explore_loop`."""
    embedkit("probe", folder / "requests", "--learning-curve", "--out", folder / "probe")
    embedkit("train", folder / "requests", "--out", folder / "vectors")
    for run, name in (("probe", "layers"), ("probe", "learning"), ("vectors", "confusion")):
        shutil.copy(folder / run / "figures" / f"{name}.svg", HERE)


if __name__ == "__main__":
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as work, sync_playwright() as playwright:
        program = playwright.chromium.launch(executable_path=chromium)
        explore_loop(program, Path(work))
        figures(Path(work))
        report(program)
        program.close()
