"""Options as messages name them, and lists of kinds as help and documentation have them."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from collections.abc import Iterator
from typing import Any

import click
import pytest

import embedkit
from embedkit import choices
from embedkit.cli.command import in_options
from embedkit.cli.main import cli
from embedkit.errors import CorpusError, Message, Option, UsageError
from embedkit.sklearn import TextEncoder
from tests.properties.test_architecture import FILES


def test_python_and_every_command_spell_an_option_as_their_own() -> None:
    inner = UsageError(f"take {Option('header', False)}.", label="a b", k=0)
    assert f"{inner}" == str(inner) == "label='a b', k=0: take header=False."
    assert pickle.loads(pickle.dumps(inner)).message.parts == inner.message.parts
    # a text may hold the code points that mark an option
    assert str(UsageError("\ufdd0x\ufdd1")) == "\ufdd0x\ufdd1"
    outer = CorpusError(f"file: {inner.message.renamed(label='score')}")
    text = Message(f"exists{Option('overwrite', True, before='; pass ')}. {outer.message}")
    context = click.Context(cli)
    context.invoked_subcommand = "export"
    assert in_options(text, context).startswith('exists. file: --score "a b" (of embedkit simil')
    other = Message(f"{Option('header', False, of='extract')} {Option('tune', False)}")
    assert in_options(other, context) == "--no-header tune=False"


def parameters() -> dict[str, set[str]]:
    """Those of the public functions, of classes with their methods, and of the commands."""
    names = {f"embedkit {c.name}": {str(p.name) for p in c.params} for c in cli.commands.values()}
    public: list[Any] = [*(getattr(embedkit, name) for name in embedkit.__all__), TextEncoder]
    for thing in filter(callable, public):
        functions: list[Any] = [thing, *filter(inspect.isfunction, vars(thing).values())]
        names[thing.__name__] = {p for f in functions for p in inspect.signature(f).parameters}
    return names


def named_options(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Name and function of the options that messages name."""
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        called = ast.unparse(node.func).rpartition(".")[2]
        named: dict[str, Any] = {k.arg or "": k.value for k in node.keywords}
        if called == "Option" and node.args and isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value), ast.literal_eval(named.get("of", ast.Constant("")))
        if called.endswith("Error"):
            yield from ((name, "") for name in named if name)


def test_an_option_that_is_named_exists() -> None:
    """It is a parameter of a public function; in what that raises itself, of this function."""
    known = parameters()
    params = [p for c in cli.commands.values() for p in c.params]
    typed = {option for p in params for option in (*p.opts, *p.secondary_opts)} | {"--help"}
    for module, path in FILES.items():
        text = path.read_text("utf-8")
        assert set(re.findall(r'"(--[a-z][a-z-]*)"', text)) <= typed, module
        for node in ast.parse(text).body:
            own = known.get(getattr(node, "name", ""), set().union(*known.values()))
            for name, of in named_options(node):
                assert name in (known[of] if of else own), (module, name, of)


# lists of kinds

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
    "kind": choices.INDEX_KINDS,
    "estimator": choices.ESTIMATORS,
    "head": choices.HEADS,
    "method": choices.LAYOUT_METHODS,
    "objective": choices.OBJECTIVES,
    "features": choices.FEATURES,
    "prefer": choices.PREFERENCES,
    "class_weight": choices.CLASS_WEIGHTS,
}
"""By the parameter that takes one of them."""


def described() -> Iterator[tuple[str, str, str]]:
    """Function or class, parameter and description of all that is documented."""
    things: dict[str, Any] = {name: getattr(embedkit, name) for name in embedkit.__all__}
    things |= {"sklearn.TextEncoder": TextEncoder}
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
