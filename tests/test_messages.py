"""Messages name options as data: Python and every command spell them as their own."""

from __future__ import annotations

import ast
import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import click
from hypothesis import given
from hypothesis import strategies as st

import embedkit
from embedkit.cli.command import in_options
from embedkit.cli.main import cli
from embedkit.errors import CorpusError, Message, Option, UsageError
from embedkit.sklearn import TextEncoder
from tests.properties.test_architecture import FILES


def test_python_and_every_command_spell_an_option_as_their_own() -> None:
    inner = UsageError(f"take {Option('header', False)}.", label="a b", k=0)
    assert f"{inner}" == str(inner) == "label='a b', k=0: take header=False."
    outer = CorpusError(f"file: {inner.message.renamed(label='score')}")
    text = Message(f"exists{Option('overwrite', True, before='; pass ')}. {outer.message}")
    context = click.Context(cli)
    context.invoked_subcommand = "export"
    assert in_options(text, context).startswith('exists. file: --score "a b" (of embedkit simil')
    other = Message(f"{Option('header', False, of='extract')} {Option('tune', False)}")
    assert in_options(other, context) == "--no-header tune=False"


@given(st.lists(st.text() | st.sampled_from(["\ufdd0", "\ufdd1", Option("o", 2, "+")])))
def test_any_text_may_stand_beside_an_option(parts: list[str | Option]) -> None:
    """Also one that holds the code points which mark an option."""
    error = UsageError("".join(map(format, parts)))
    assert str(error) == "".join(map(str, parts))
    assert pickle.loads(pickle.dumps(error)).message.parts == error.message.parts
    assert error.message.options == [part.name for part in parts if isinstance(part, Option)]


def parameters() -> dict[str, set[str]]:
    """Those of the public functions, of classes with their methods, and of the commands."""
    names = {f"embedkit {c.name}": {str(p.name) for p in c.params} for c in cli.commands.values()}
    public: list[Any] = [*(getattr(embedkit, name) for name in embedkit.__all__), TextEncoder]
    for thing in filter(callable, public):
        methods = [m for m in vars(thing).values() if inspect.isfunction(m)]
        names[thing.__name__] = {
            p for f in (thing, *methods) for p in inspect.signature(f).parameters
        }
    return names


def named_options(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Name and function of the options that messages name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called == "Option" and node.args and isinstance(node.args[0], ast.Constant):
                of = [ast.literal_eval(k.value) for k in node.keywords if k.arg == "of"] or [""]
                yield str(node.args[0].value), of[0]
            if called.endswith("Error"):
                yield from ((k.arg, "") for k in node.keywords if k.arg)


def test_an_option_that_is_named_exists() -> None:
    """It is a parameter of a public function; in what that raises itself, of this function."""
    known = parameters()
    every = set().union(*known.values())
    for module, path in FILES.items():
        tree = ast.parse(path.read_text("utf-8"))
        for name, of in named_options(tree):
            assert name in (known[of] if of else every), (module, name, of)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name in known:
                assert {n for n, of in named_options(node) if not of} <= known[node.name], module
