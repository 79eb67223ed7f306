"""Messages name options as data: Python and every command spell them as their own."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
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


# the arguments of a command that could be done
RIGHT = {
    **dict.fromkeys(("info", "verify", "train", "probe", "export", "index"), "data"),
    **dict.fromkeys(("extract", "split", "finetune"), "c.tsv"),
    **dict.fromkeys(("search", "words"), "data good"),
    "predict": "run c.tsv",
    "compare": "run other",
    "explore": "data --out p.html",
    "similarity": "pairs.tsv --text text --text-pair document",
    "diff": "data run",
}


@pytest.fixture(scope="module")
def folder(common: Path) -> Path:
    """What commands are given, and files that no command can read."""
    write_tsv(common / "c.tsv")
    (common / "pairs.tsv").write_text("text\tdocument\na\tb\n", "utf-8")
    (common / "wide.csv").write_bytes("id,y_pred\n1,wide\n".encode("utf-16"))
    extract_tiny(common / "c.tsv", common / "data")
    embedkit.train(common / "data", out=common / "run", folds=2, tune=False)
    return common


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", RIGHT)
def test_a_command_is_told_of_its_own_options(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each option has a wrong value once; an option of another command is said to be its."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    params = [p for p in cli.commands[name].params if isinstance(p, click.Option)]
    own = {option for p in params for option in (*p.opts, *p.secondary_opts)} | {"--help"}
    # a prefix may be any text, and how many processes there are is no mistake
    wrong = [p.opts[-1] for p in params if not p.is_flag and p.name not in ("prefix", "out")]
    lines = [f"{RIGHT[name]} {option} zzz" for option in wrong]
    files = ("wide.csv", "nowhere.tsv", "data/manifest.json", "pairs.tsv")
    lines += [f"{RIGHT[name].split()[0]} {file}" for file in files] + list(files)
    for line in lines:
        words = shlex.split(line)
        if "--model" in own and "--model" not in words:
            words += ["--model", str(tiny_model())]
        said = command(name, *words, cwd=folder).stderr
        named = re.findall(r"(?<![\w-])(--[a-z][a-z-]*)(?: \S+)?(?: \(of embedkit (\w+)\))?", said)
        again = said.partition("xtract it again with ")[2]  # what follows is of extract
        for option, owner in named:
            theirs = {o for p in cli.commands[owner].params for o in p.opts} if owner else own
            assert option in theirs or option in again, (line, said)
        python = set(re.findall(r"(?<![\w.-])([a-z_]+)=", said))  # as in text='x'
        assert python.isdisjoint(str(p.name) for p in params), (line, said)


@cache
def functions() -> dict[str, tuple[str, set[str]]]:
    """Module and parameters of the public functions, classes and commands."""
    found: dict[str, tuple[str, set[str]]] = {}
    public = [getattr(embedkit, name) for name in embedkit.__all__]
    for thing in filter(callable, (*public, TextEncoder, StoredVectors, CompareResult)):
        methods = filter(inspect.isroutine, vars(thing).values()) if inspect.isclass(thing) else ()
        names = set[str]()
        for function in (thing, *methods):
            with suppress(TypeError, ValueError):  # of C
                names |= inspect.signature(function).parameters.keys()
        found[thing.__name__] = inspect.unwrap(thing).__module__, names
    for its in cli.commands.values():
        module = inspect.unwrap(its.callback).__module__  # type: ignore[arg-type]
        found[f"embedkit {its.name}"] = module, {str(p.name) for p in its.params}
    return found


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
