"""The examples in docstrings run and print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import embedkit.encoding

MODULES = [
    "embedkit.choices",
    *(
        module.name
        for module in pkgutil.iter_modules(embedkit.encoding.__path__, "embedkit.encoding.")
    ),
]
EXAMPLES = {"embedkit.choices": 1, "embedkit.encoding.encoder": 6, "embedkit.encoding.views": 2}
"""Docstrings with an example, where there are any."""


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    found = doctest.DocTestFinder(exclude_empty=True).find(module)
    assert sum(bool(test.examples) for test in found) == EXAMPLES.get(name, 0)
    assert doctest.testmod(module).failed == 0
