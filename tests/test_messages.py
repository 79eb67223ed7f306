"""Messages name options as data: Python and every command spell them as their own."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

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
from tests.properties.test_architecture import FILES, GRAPH
from tests.store_fixtures import extract_tiny, tiny_model, write_tsv

OPTIONS = [
    Option("on_long", "window"),
    Option("prefix", ""),
    Option("overwrite", True, before=", or pass ", after="!"),
    Option("normalize", False),
    Option("cnn_widths", [2, 3]),
    Option("out"),
]


def in_command(name: str, message: Message) -> str:
    """What a command would show."""
    context = click.Context(cli)
    context.invoked_subcommand = name
    return in_options(message, context)


def test_python_and_every_command_spell_an_option_as_their_own() -> None:
    text = Message(f"{Option('text', 'a b')}, {Option('header', False)}, {Option('quiet', True)}")
    assert text == "text='a b', header=False, quiet=True"
    assert in_command("extract", text) == '--text "a b", --no-header, --quiet'
    other = Message(f"exists{Option('overwrite', True, before='; pass ')}. {Option('spans')}")
    assert other == "exists; pass overwrite=True. spans="
    assert in_command("extract", other) == "exists; pass --overwrite. --spans"
    assert in_command("export", other) == "exists. --spans (of embedkit extract)"
    # an option that another function has, and one that no command has
    extract = Message(f"{Option('words', 'mean', of='extract')} {Option('tune', False)}")
    assert in_command("train", extract) == "--words mean tune=False"


def test_an_error_begins_with_its_options_and_is_made_of_others() -> None:
    inner = UsageError(f"take {Option('layers', 'all')}.", label="zzz")
    assert str(inner) == "label='zzz': take layers='all'."
    assert inner.message.options == ["label", "layers"]
    assert str(inner.problem) == "take layers='all'."
    outer = CorpusError(f"file: {inner.message}")
    assert outer.message.options == ["label", "layers"]
    renamed = CorpusError(inner.message.renamed(label="score"))
    assert str(renamed) == "score='zzz': take layers='all'."
    assert in_command("similarity", renamed.message) == "--score zzz: take --layers all."
    # an error in a text, as in a log, is plain
    assert f"{inner}" == str(inner)


@given(st.lists(st.text() | st.sampled_from(OPTIONS)))
def test_any_text_may_stand_beside_an_option(parts: list[str | Option]) -> None:
    """Also one that holds the code points which mark an option."""
    error = UsageError("".join(map(format, parts)))
    assert str(error) == "".join(map(str, parts))
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is UsageError
    assert (str(copy), copy.message.parts) == (str(error), error.message.parts)
    assert Message(f"{error.message}").parts == error.message.parts
    assert error.message.options == [part.name for part in parts if isinstance(part, Option)]
    json.dumps(error.message)


@pytest.mark.parametrize(
    "text", ["\ufdd0", "\ufdd0{}\ufdd1", '\ufdd0{"x": 1}\ufdd1', "\ufdd01\ufdd1"]
)
def test_what_looks_like_a_mark_is_text(text: str) -> None:
    assert str(UsageError(text)) == text


# what a command is told for an option, where a name that is nowhere is no mistake
WRONG = {
    "prefix": None,
    "out": "nowhere/c.tsv/x",
    "shard_index": None,
    "workers": "0",
    "patience": "0",
}
# the positional arguments of a command that could be done
RIGHT = {
    "extract": "c.tsv",
    "info": "data",
    "verify": "data",
    "tokenize": "text",
    "split": "c.tsv",
    "train": "data",
    "probe": "data",
    "finetune": "c.tsv",
    "predict": "run c.tsv",
    "compare": "run other",
    "export": "data",
    "search": "data good",
    "index": "data",
    "similarity": "pairs.tsv --text text --text-pair document",
    "words": "data good",
    "explore": "data --out page.html",
    "diff": "data run",
    "run": "recipe.toml",
    "fetch": "https://localhost:1/x --out x",
    "doctor": "",
}


@pytest.fixture(scope="module")
def folder(common: Path) -> Path:
    """What commands are given, and files that no command can read."""
    write_tsv(common / "c.tsv")
    (common / "pairs.tsv").write_text("text\tdocument\na\tb\n", "utf-8")
    (common / "wide.tsv").write_bytes("text\nwide\n".encode("utf-16"))
    (common / "wide.csv").write_bytes("id,y_pred\n1,wide\n".encode("utf-16"))
    (common / "recipe.toml").write_text("[info]\n", "utf-8")
    extract_tiny(common / "c.tsv", common / "data")
    embedkit.train(common / "data", out=common / "run", folds=2, tune=False)
    return common


def typed() -> Iterator[tuple[str, str]]:
    """Each command with a wrong value of each of its options, and with files of other kinds."""
    for name, its in cli.commands.items():
        for param in its.params:
            wrong = WRONG.get(str(param.name), "zzz")
            if isinstance(param, click.Option) and not param.is_flag and wrong is not None:
                yield name, f"{RIGHT[name]} {param.opts[-1]} {wrong}"
        for file in ("wide.tsv", "wide.csv", "nowhere.tsv", "data/manifest.json", "pairs.tsv"):
            yield name, f"{RIGHT[name].split(' ')[0]} {file}"
            yield name, file


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", cli.commands)
def test_a_command_is_told_of_its_own_options(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where an option is that of another command, it is said of which."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    params = {p.name: {*p.opts, *p.secondary_opts} for p in cli.commands[name].params}
    own = {option for options in params.values() for option in options}
    others = {p.name for c in cli.commands.values() for p in c.params} | python_names()
    for line in (line for of, line in typed() if of == name):
        words = shlex.split(line)
        if "--model" in own and "--model" not in words:
            words += ["--model", str(tiny_model())]
        said = command(name, *words, cwd=folder).stderr
        of_others = re.findall(r"(--[a-z-]+)(?: [^ ]+)? \(of embedkit (\w+)\)", said)
        for option, owner in of_others:
            assert option in {o for p in cli.commands[owner].params for o in p.opts}, said
        again = said.partition("xtract it again with ")[2]  # what follows is of extract
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", said.removesuffix(again)))
        assert named <= own | {option for option, _ in of_others} | {"--no-deps"}, (line, said)
        # a parameter of Python, as in text='x'; none that this command has as an option
        python = set(re.findall(r"(?<![\w.-])([a-z_]+)=", said)) & others & params.keys()
        assert not {n for n in python if any(o.startswith("--") for o in params[n])}, (line, said)


@cache
def functions() -> dict[str, tuple[str, set[str]]]:
    """Module and parameters of the public functions, of public methods, and of the commands."""
    found: dict[str, tuple[str, set[str]]] = {}
    public: dict[str, Any] = {name: getattr(embedkit, name) for name in embedkit.__all__}
    further = TextEncoder, StoredVectors, CompareResult
    public |= {thing.__name__: thing for thing in further}
    for name, thing in public.items():
        methods = vars(thing).values() if inspect.isclass(thing) else ()
        names = set[str]()
        for function in (thing, *filter(inspect.isroutine, methods)):
            try:
                names |= inspect.signature(function).parameters.keys()
            except (TypeError, ValueError):
                continue
        if callable(thing):
            found[name] = inspect.unwrap(thing).__module__, names
    for command_name, its in cli.commands.items():
        function = inspect.unwrap(its.callback)  # type: ignore[arg-type]
        found[f"embedkit {command_name}"] = function.__module__, {str(p.name) for p in its.params}
    return found


def python_names() -> set[str]:
    """Parameters of all public functions."""
    return {name for _, names in functions().values() for name in names}


def below(module: str) -> set[str]:
    """A module and all that it imports, wherever the import is."""
    reached, todo = set[str](), {module}
    while todo:
        reached |= todo
        todo = {other for one in todo for other in GRAPH.get(one, ())} - reached
    return reached


def named_options(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Line, name and function of the options that messages name."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id == "Option" and node.args and isinstance(node.args[0], ast.Constant):
            of = [k.value.value for k in node.keywords if k.arg == "of"]  # type: ignore[attr-defined]
            yield node.lineno, str(node.args[0].value), of[0] if of else ""
        if node.func.id.endswith("Error"):
            yield from ((node.lineno, k.arg, "") for k in node.keywords if k.arg)


def test_an_option_that_is_named_exists() -> None:
    """It is a parameter of a public function, or of a command, that leads to where it is named."""
    reached = {name: below(module) for name, (module, _) in functions().items()}
    unknown = []
    for module, path in FILES.items():
        known = {
            p for name, (_, names) in functions().items() if module in reached[name] for p in names
        }
        for line, name, of in named_options(ast.parse(path.read_text("utf-8"))):
            if name not in (functions()[of][1] if of else known):
                unknown.append(f"{path.name}:{line}: {name} {of}")
    assert not unknown


def test_a_public_function_names_its_own_parameters() -> None:
    """In what it raises itself; those of another one say so by ``of``."""
    for module, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and functions().get(node.name, ("",))[0] == module:
                named = {name for _, name, of in named_options(node) if not of}
                assert named <= functions()[node.name][1], (module, node.name)


def test_a_log_holds_no_marks() -> None:
    """A logger is given a message, of whose options a handler makes text."""
    for module, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in ("info", "warning", "debug") and node.args:
                text = ast.unparse(node.args[0])
                assert not re.match(r"f.*(Option\(|\.message\b)", text), (module, text)
