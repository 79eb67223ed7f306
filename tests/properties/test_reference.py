"""The generated reference pages are up to date."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tests.processes import ROOT

_SPEC = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
assert _SPEC is not None
assert _SPEC.loader is not None
reference = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(reference)


@pytest.mark.parametrize("name", sorted(reference.PAGES))
def test_page_is_up_to_date(name: str) -> None:
    written = (ROOT / "docs" / name).read_text("utf-8")
    assert written == reference.PAGES[name]().rstrip() + "\n", "run python docs/reference.py"


def test_named_tests_exist() -> None:
    page = (ROOT / "docs/reliability.md").read_text("utf-8")
    files = re.findall(r"`(tests/[\w/]+\.py)`", page)
    assert files
    assert [file for file in files if not (ROOT / file).is_file()] == []
