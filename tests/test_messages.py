"""Messages name options as data: Python and every command spell them as their own."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embedkit
from embedkit.cli.command import in_options
from embedkit.cli.main import cli
from embedkit.comparison.report import CompareResult
from embedkit.errors import CorpusError, Message, Option, UsageError
from embedkit.sklearn import StoredVectors, TextEncoder
from tests.processes import command
from tests.properties.test_architecture import FILES
from tests.store_fixtures import extract_tiny, tiny_model, write_tsv

OPTIONS = [Option("k", 1), Option("prefix", ""), Option("out", [2], ", or ", "!"), Option("lora")]


def in_command(name: str, message: Message) -> str:
    context = click.Context(cli)
    context.invoked_subcommand = name
    return in_options(message, context)


def test_python_and_every_command_spell_an_option_as_their_own() -> None:
    text = Message(f"{Option('text', 'a b')}, {Option('header', False)}, {Option('quiet', True)}")
    assert text == "text='a b', header=False, quiet=True"
    assert in_command("extract", text) == '--text "a b", --no-header, --quiet'
    other = Message(f"exists{Option('overwrite', True, before='; pass ')}. {Option('spans')}")
    assert other == "exists; pass overwrite=True. spans="
    assert in_command("export", other) == "exists. --spans (of embedkit extract)"
    # an option that another function has, and one that no command has
    extract = Message(f"{Option('words', 'mean', of='extract')} {Option('tune', False)}")
    assert in_command("train", extract) == "--words mean tune=False"


def test_an_error_begins_with_its_options_and_is_made_of_others() -> None:
    inner = UsageError(f"take {Option('layers', 'all')}.", label="zzz", k=0)
    assert f"{inner}" == str(inner) == "label='zzz', k=0: take layers='all'."
    assert str(inner.problem) == "take layers='all'."
    outer = CorpusError(f"file: {inner.message.renamed(label='score')}")
    assert in_command("similarity", outer.message).startswith("file: --score zzz, ")


@given(st.lists(st.text() | st.sampled_from(["\ufdd0", "\ufdd1", '{"x": 1}', *OPTIONS])))
def test_any_text_may_stand_beside_an_option(parts: list[str | Option]) -> None:
    """Also one that holds the code points which mark an option."""
    error = UsageError("".join(map(format, parts)))
    assert str(error) == "".join(map(str, parts))
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.message.parts) == (str(error), error.message.parts)
    assert error.message.options == [part.name for part in parts if isinstance(part, Option)]


# the arguments of a command that could be done
RIGHT = {
    **dict.fromkeys(("info", "verify", "train", "probe", "export", "index"), "data"),
    **dict.fromkeys(("extract", "split", "finetune"), "c.tsv"),
    "predict": "run c.tsv",
    "compare": "run other",
    "search": "data good",
    "words": "data good",
}


@pytest.fixture(scope="module")
def folder(common: Path) -> Path:
    write_tsv(common / "c.tsv")
    (common / "wide.csv").write_bytes("id,y_pred\n1,wide\n".encode("utf-16"))
    extract_tiny(common / "c.tsv", common / "data")
    embedkit.train(common / "data", out=common / "run", folds=2, tune=False)
    return common


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", RIGHT)
def test_a_command_is_told_of_its_own_options(folder: Path, name: str) -> None:
    """Each option has a wrong value once; an option of another command is said to be its."""
    params = [p for p in cli.commands[name].params if isinstance(p, click.Option)]
    own = {option for p in params for option in (*p.opts, *p.secondary_opts)} | {"--help"}
    # a prefix may be any text
    wrong = [p.opts[-1] for p in params if not p.is_flag and p.name not in ("prefix", "out")]
    lines = [f"{RIGHT[name]} {option} zzz" for option in wrong]
    lines += [f"{first}{file}" for first in ("", "run ") for file in ("wide.csv", "nowhere.tsv")]
    for line in lines:
        model = ["--model", tiny_model()] if "--model" in own and "--model" not in line else []
        said = command(name, *line.split(), *model, cwd=folder).stderr
        named = re.findall(r"(?<![\w-])(--[a-z][a-z-]*)(?: \S+)?(?: \(of embedkit (\w+)\))?", said)
        again = said.partition("xtract it again with ")[2]  # what follows is of extract
        for option, owner in named:
            theirs = {o for p in cli.commands[owner].params for o in p.opts} if owner else own
            assert option in theirs or option in again, (line, said)
        python = set(re.findall(r"(?<![\w.-])([a-z_]+)=", said))  # as in text='x'
        assert python.isdisjoint(str(p.name) for p in params), (line, said)


def parameters() -> dict[str, set[str]]:
    """Those of the public functions, of classes with their methods, and of the commands."""
    names = {f"embedkit {c.name}": {str(p.name) for p in c.params} for c in cli.commands.values()}
    public = [getattr(embedkit, name) for name in embedkit.__all__ if name != "__version__"]
    for thing in filter(callable, (*public, TextEncoder, StoredVectors, CompareResult)):
        methods = filter(inspect.isfunction, vars(thing).values()) if inspect.isclass(thing) else ()
        every = [inspect.signature(function).parameters for function in (thing, *methods)]
        names[thing.__name__] = {name for its in every for name in its}
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
                own = {name for name, of in named_options(node) if not of}
                assert own <= known[node.name], (module, node.name)


def test_a_log_holds_no_marks() -> None:
    """A logger is given a message, of whose options a handler makes text."""
    for module, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger."):
                text = ast.unparse(node.args[0]) if node.args else ""
                assert not re.match(r"f.*(Option\(|\.message\b)", text), (module, text)
