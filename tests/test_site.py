"""The documentation as a site: built without a warning, with nothing to fetch, open to all."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.page_checks import findings_of_axe
from tests.processes import ROOT, completed

MKDOCS = Path(os.environ.get("EMBEDKIT_MKDOCS", ROOT / ".venv-docs/bin/mkdocs"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MKDOCS.is_file(), reason="make docs makes its environment"),
]


@pytest.fixture(scope="module")
def site(common: Path) -> Path:
    completed(MKDOCS, "build", "--strict", "--site-dir", common, cwd=ROOT)
    return common


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        tags = re.findall(r"<(?:script|img|link)\b[^>]*>", page.read_text("utf-8"))
        loaded = [tag for tag in tags if re.search(r"(?:src|href)=\"?https?://", tag)]
        assert not loaded, page


def test_every_function_is_documented(site: Path) -> None:
    text = (site / "api.html").read_text("utf-8")
    for name in ("extract", "train", "Predictor.predict", "Searcher.texts", "sklearn.TextEncoder"):
        assert f'id="embedkit.{name}"' in text
    assert "{PRECISIONS}" not in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_pass_axe(site: Path, scheme: str, browser: Any) -> None:
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    found = {}
    for file in sorted(site.glob("*.html")):
        if file.name != "404.html":
            page.goto(file.as_uri())
            found[file.name] = findings_of_axe(page)
    context.close()
    assert {name: these for name, these in found.items() if these} == {}
