"""The generated reference pages are those of the code."""

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


def test_the_tests_that_are_named_exist() -> None:
    page = (ROOT / "docs/reliability.md").read_text("utf-8")
    named = re.findall(r"`(tests/\w+\.py)(?:::(\w+))?`?", page)
    assert len(named) > 20
    for file, name in named:
        assert f"def {name}" in (ROOT / file).read_text("utf-8"), (file, name)
