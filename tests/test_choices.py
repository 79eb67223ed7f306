"""Lists of kinds in help and documentation are those of the code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import embedkit
from embedkit import choices, sklearn
from embedkit.cli.main import cli

LISTS = {
    "pooling": choices.POOLINGS,
    "precision": choices.PRECISIONS,
    "storage": choices.STORAGES,
    "on_long": choices.ON_LONG,
    "words": choices.SUBTOKENS,
    "subtokens": choices.SUBTOKENS,
    "task": choices.TASKS,
    "to": choices.EXPORTS,
    "metric": choices.SEARCH_METRICS,
    "whitening": choices.WHITENINGS,
    "match": choices.MATCHES,
}
"""By the parameter that takes one of them."""


def described() -> Iterator[tuple[str, str, str]]:
    """Function or class, parameter and description of all that is documented."""
    things: dict[str, Any] = {name: getattr(embedkit, name) for name in embedkit.__all__}
    things |= {"sklearn.TextEncoder": sklearn.TextEncoder}
    for name, thing in sorted(things.items()):
        methods = vars(thing).items() if inspect.isclass(thing) else ()
        for owner, one in [(name, thing), *((f"{name}.{n}", m) for n, m in methods)]:
            text = inspect.getdoc(one) if callable(one) else None
            for match in re.finditer(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", text or "", re.MULTILINE):
                if match[1] in LISTS:
                    yield owner, match[1], match[2]


@pytest.mark.parametrize(("owner", "parameter", "text"), [*described()])
def test_a_list_that_names_some_names_all(owner: str, parameter: str, text: str) -> None:
    names = LISTS[parameter]
    named = [name for name in names if f"``{name}``" in text]
    if len(named) > 1:
        assert named == [*names] or sorted(named) == sorted(names), owner


def test_no_place_is_left_empty() -> None:
    pages = [command.help or "" for command in cli.commands.values()]
    pages += [getattr(p, "help", "") or "" for c in cli.commands.values() for p in c.params]
    pages += [inspect.getdoc(getattr(embedkit, name)) or "" for name in embedkit.__all__]
    assert not [page for page in pages if re.search(r"\{[A-Z_]+\}", page)]
