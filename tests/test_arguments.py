"""What a person says is checked where it enters, and named as it can be said."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import click
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from mypy import api

import embedkit
from embedkit import choices
from embedkit.arguments import accepts, checked_value, strings_of
from embedkit.cli.command import in_options
from embedkit.cli.main import cli
from embedkit.corpus.plan import CorpusOptions
from embedkit.dataset import read
from embedkit.dataset.settings import ExtractOptions
from embedkit.errors import CorpusError, DamagedError, Message, Option, UsageError
from embedkit.finetuning.options import TrainingOptions
from embedkit.records import to_json
from embedkit.runs.run import Cost
from embedkit.runs.split import Split
from embedkit.sklearn import TextEncoder
from embedkit.types import AnyPath
from tests.processes import ROOT, invoke
from tests.properties.test_architecture import FILES
from tests.run_fixtures import edit_run, split_of
from tests.store_fixtures import run

BY_USE = {"test", "head", "label"}
"""Tables and classes, which are judged where they are used."""

RECORDS = (CorpusOptions, ExtractOptions, TrainingOptions)

METHODS = (
    *(f"Encoder.{name}" for name in ("encode", "encode_views", "encode_tokens", "encode_words")),
    *(f"Searcher.{name}" for name in ("texts", "vectors")),
    *(f"VectorData.{name}" for name in ("export", "iter_batches")),
)


def door(name: str) -> Any:
    """A public function, class or method by its name."""
    return attrgetter(name)(read if name.startswith("VectorData") else embedkit)


def keywords() -> Iterator[tuple[str, str]]:
    """Keywords of public functions, classes and methods that are judged by their type."""
    for name in (*embedkit.__all__, *METHODS):
        thing = door(name)
        if callable(thing):
            # options of ``extract`` are checked there
            own = inspect.unwrap(thing) if name in ("train", "probe") else thing
            for parameter in inspect.signature(own).parameters.values():
                if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in BY_USE:
                    yield name, parameter.name


@pytest.mark.parametrize(("function", "keyword"), [*keywords()])
def test_a_value_of_another_type_is_named_before_anything_is_done(
    function: str, keyword: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    thing = door(function)
    signature = inspect.signature(thing)
    positional = [p for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    required = ["nothing" for p in positional if p.default is p.empty]
    with pytest.raises(UsageError, match=f"^{keyword}=.*expected "):
        thing(*required, **{keyword: object()})
    assert not list(tmp_path.iterdir())


NUMPY = {bool: np.bool_, int: np.int64, float: np.float64, str: np.str_}


@pytest.mark.parametrize("record", RECORDS)
def test_numbers_of_numpy_are_numbers(record: type) -> None:
    plain = record()
    for name in inspect.signature(record).parameters:
        value = getattr(plain, name)
        if type(value) in NUMPY:
            settled = getattr(record(**{name: NUMPY[type(value)](value)}), name)
            assert settled == value
            assert type(settled) is type(value)


MESSAGES: list[tuple[Any, Any, str]] = [
    ("caf\udce9", bool | None, "expected True or False."),
    (2.5, int | None, "expected a whole number."),
    (True, int, "expected a whole number."),
    (3, str | list[str], "expected a text or a list, each a text."),
    (5, Path | None, "expected a path."),
    ("a\0b", str | Path | None, "a path has no NUL."),
    ("x", Split, "expected a Split."),
]


@pytest.mark.parametrize(("value", "hint", "message"), MESSAGES)
def test_messages_say_what_is_expected(value: Any, hint: Any, message: str) -> None:
    with pytest.raises(UsageError) as error:
        checked_value("name", value, hint)
    assert str(error.value) == f"name={value!r}: {message}"


def test_lists_may_be_arrays_and_ranges() -> None:
    assert checked_value("layers", np.arange(2), str | list[int]) == [0, 1]
    assert checked_value("layers", range(2), str | list[int]) == range(2)
    assert checked_value("layers", [np.int64(1), "sum:1"], list[int | str]) == [1, "sum:1"]
    texts = pa.array(["a", "b"])
    for column in (texts, pa.chunked_array([texts]), pl.Series(["a", "b"]), np.array(["a", "b"])):
        assert strings_of("texts", column) == ["a", "b"]
    with pytest.raises(TypeError, match="one string"):
        strings_of("texts", np.array("a"))
    with pytest.raises(UsageError, match=r"runs='a.*b': a path has no NUL"):
        checked_value("runs", ["a\0b"], Sequence[AnyPath])


def test_misspelt_keywords_are_told() -> None:
    for function, given, meant in (
        (embedkit.extract, "lyers", "layers"),
        (embedkit.train, "lable", "label"),
        (embedkit.finetune, "epoch", "epochs"),
    ):
        with pytest.raises(TypeError, match=f"{given!r}. Did you mean {meant!r}"):
            function("c.tsv", **cast("Any", {given: 3}))


def test_a_door_keeps_what_python_says_of_calls() -> None:
    @accepts()
    def function(first: int, *, second: int = 2) -> tuple[int, int]:
        return first, second

    numbers: Any = np.arange(4)
    assert function(numbers[1], second=numbers[3]) == (1, 3)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'first'"):
        function()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional argument"):
        function(1, 2)  # type: ignore[call-arg]


def test_nothing_is_written_that_the_reader_refuses() -> None:
    record = split_of(np.zeros(4, int), folds=2).record
    assert json.loads(to_json(replace(record, seed=np.int64(3))))["seed"] == 3  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Expected `int`, got `bool` - at `seed`"):
        to_json(replace(record, seed=True))
    assert json.loads(to_json(Cost(fit_seconds=float("nan"))))["fit_seconds"] is None


def test_verify_and_info_agree(corpus: Path, tmp_path: Path) -> None:
    data = run(corpus, tmp_path / "data").out
    made = embedkit.train(data, out=tmp_path / "run", folds=2, tune=False).out
    assert embedkit.verify(made).ok
    split = json.loads((made / "run.json").read_text("utf-8"))["split"]
    edit_run(made, split=split | {"seed": True})
    with pytest.raises(DamagedError, match=r"run\.json.*seed"):
        embedkit.info(made)
    found = embedkit.verify(made)
    assert len(found.problems) == 1
    assert "seed" in found.problems[0]
    assert invoke("verify", made).return_value == DamagedError.exit_code


WRONG = """
import embedkit
embedkit.extract("c.tsv", pooling=3)
embedkit.train("v", lable="stars")
embedkit.Encoder("m", devise="cpu")
"""


@pytest.mark.slow
def test_mypy_finds_misspelt_and_mistyped_arguments(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(WRONG, "utf-8")
    settings = ["--strict", "--config-file", str(ROOT / "pyproject.toml"), str(file)]
    text, _, code = api.run(settings)
    lines = [line.split(":")[1] for line in text.splitlines() if "error:" in line]
    assert lines == [str(number) for number in range(3, 6)], text
    assert code == 1


# options as messages name them, and lists of kinds as help and documentation have them


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
