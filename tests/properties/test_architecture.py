"""The size and shape of the code: budgets, layers, rings, and the way of a record."""

from __future__ import annotations

import ast
import graphlib
import inspect
import io
import re
import sys
import threading
import tokenize
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import click
import pytest

import embedkit
from embedkit.cli.main import cli
from tests.processes import ROOT, command
from tests.store_fixtures import tiny_model

BUDGET = {
    "code lines of embedkit/": 25_200,
    "modules of embedkit/": 110,
    "code lines of the longest module": 450,
    "functions of more than 80 code lines, or 60 of the public ones": 0,
    "functions that use more than 25 names of the package": 0,
    "dataclasses": 80,
    "options of all commands": 220,
    "code lines of tests/": 19_900,
}
"""Limits that protect a reader. Comments, docstrings and blank lines count nowhere: explaining is
free. What is to be read is more than the contract of 20,500 lines wanted: the limit of lines keeps
it from growing. The limit of a public function is 60."""

MODULES_ON_THE_WAY = 50
"""In how many modules ``extract`` may call functions."""

LAYERS = (
    "__main__",
    "cli",
    "doctor",
    "pipeline",
    "difference maps",
    "comparison",
    "mteb sklearn",
    "predict verification",
    "prediction_files",
    "contexts sts",
    "search",
    "finetuning",
    "classifiers",
    "runs",
    "units",
    "dataset",
    "encoding",
    "corpus",
    "scale",
    "arguments choices drawing geometry pages records remote storage",
    "display machine types",
    "errors",
)
"""Modules and packages import each other only downwards, or within a layer."""

NO_NOUNS = {"one", "known", "own", "given", "asked", "found", "wanted", "made"}
"""Names that say nothing of what a variable holds."""

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "embedkit").rglob("*.py"))
}


def imports_of(module: str) -> Iterator[str]:
    """Modules of embedkit that a module names in an import, wherever the import is."""
    for node in ast.walk(ast.parse(FILES[module].read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in FILES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "") in FILES:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in FILES else str(node.module)


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Modules of embedkit that each of them imports."""
    return {module: set(imports_of(module)) - {module} for module in FILES}


LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
"""Tokens that are no code."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(source: str) -> set[int]:
    """Numbers of the lines with a token that is neither comment nor docstring."""
    lines, statement = set[int](), list[tokenize.TokenInfo]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            statement.append(token)
        elif token.type == tokenize.NEWLINE:
            # strings that stand alone: of a module, class or function, or below an attribute
            if any(part.type != tokenize.STRING for part in statement):
                for part in statement:
                    lines.update(range(part.start[0], part.end[0] + 1))
            statement.clear()
    return lines


def names_of_the_package(tree: ast.Module) -> set[str]:
    """Names that a module takes from the package or defines at its top."""
    names = set[str]()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("embedkit"):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.ClassDef | Function):
            names.add(node.name)
    return names


def test_budgets() -> None:
    lengths, functions, dataclasses = {}, {}, 0
    for module, path in FILES.items():
        source = path.read_text("utf-8")
        code, tree = code_lines(source), ast.parse(source)
        lengths[module] = len(code)
        package = names_of_the_package(tree)
        for node in ast.walk(tree):
            if isinstance(node, Function):
                inside = code.intersection(range(node.lineno, (node.end_lineno or 0) + 1))
                used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & package
                functions[f"{module}.{node.name}"] = len(inside), len(used)
            elif isinstance(node, ast.ClassDef):
                decorators = map(ast.unparse, node.decorator_list)
                dataclasses += any(d.startswith("dataclass") for d in decorators)
    tests = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py")]
    options = [p for c in cli.commands.values() for p in c.params if isinstance(p, click.Option)]
    public = [inspect.unwrap(getattr(embedkit, name)) for name in embedkit.__all__]
    entries = {f"{f.__module__}.{f.__name__}" for f in public if inspect.isfunction(f)}
    assert len(entries) > 10
    lengths_of = (
        (name, lines - 20 * (name not in entries)) for name, (lines, _) in functions.items()
    )
    long = sorted(name for name, lines in lengths_of if lines > 60)
    busy = sorted(name for name, (_, names) in functions.items() if names > 25)
    numbers = {
        "code lines of embedkit/": sum(lengths.values()),
        "modules of embedkit/": sum(map(bool, lengths.values())),  # without empty __init__
        "code lines of the longest module": max(lengths.values()),
        "functions of more than 80 code lines, or 60 of the public ones": len(long),
        "functions that use more than 25 names of the package": len(busy),
        "dataclasses": dataclasses,
        "options of all commands": len(options),
        "code lines of tests/": sum(len(code_lines(text)) for text in tests),
    }
    assert numbers.keys() == BUDGET.keys()
    table = [f"{name:54} {number:6,} of {BUDGET[name]:6,}" for name, number in numbers.items()]
    table.append(f"longest modules: {sorted(lengths, key=lengths.__getitem__)[:-5:-1]}")
    table += [f"long: {', '.join(long)}", f"busy: {', '.join(busy)}"]
    print("", *table, sep="\n")
    assert all(number <= BUDGET[name] for name, number in numbers.items()), "\n".join(table)


def test_explanations_are_free() -> None:
    bare = "def f(x):\n    return x\n"
    explained = '"""A module."""\n\n# why\ndef f(x):\n    """The same."""\n\n    return x  # it\n'
    assert len(code_lines(bare)) == len(code_lines(explained)) == 2
    assert len(code_lines('x = 1\n"""What x is."""\n')) == 1
    assert len(code_lines('x = """\n# text\n"""\n')) == 3


def test_variables_are_nouns_of_the_field() -> None:
    assert not [
        f"{module}:{node.lineno}: {name}"
        for module, path in FILES.items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Name | ast.arg)
        and (name := node.id if isinstance(node, ast.Name) else node.arg) in NO_NOUNS
    ]


def test_no_ring(imports: dict[str, set[str]]) -> None:
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_imports_go_down(imports: dict[str, set[str]]) -> None:
    floor = {name: number for number, names in enumerate(LAYERS) for name in names.split()}
    assert {module.split(".")[1] for module in FILES if "." in module} <= floor.keys()
    upward = [
        f"{module} imports {other}"
        for module, others in imports.items()
        for other in others
        if "embedkit" not in (module, other)
        and floor[other.split(".")[1]] < floor[module.split(".")[1]]
    ]
    assert not upward


def test_the_way_of_a_record(corpus: Path, tmp_path: Path) -> None:
    """The modules in which ``extract`` calls a function; CONTRIBUTING.md draws them."""
    modules = set[str]()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            modules.add(frame.f_code.co_filename)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        command("extract", corpus, "--model", tiny_model(), cwd=tmp_path)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    way = sorted(module for module, path in FILES.items() if str(path) in modules)
    print(len(way), "modules:", *way)
    assert len(way) <= MODULES_ON_THE_WAY, way


def test_tests_that_the_makefile_names_exist() -> None:
    text = (ROOT / "Makefile").read_text("utf-8").replace("\\\n", " ")
    lists = re.findall(r"\$\(call tests,(.*?)\)", text)
    files = [re.sub(r"([^/]+)$", r"test_\1.py", name) for names in lists for name in names.split()]
    functions = re.findall(r"tests/(\S+)::(\w+)", text)
    assert files
    assert functions
    for file, function in [*((file, "") for file in files), *functions]:
        assert function in (ROOT / "tests" / file).read_text("utf-8")


def test_no_function_is_hidden_by_a_module_of_its_name() -> None:
    """``embedkit.probe(…)`` must stay a call after a module called ``probe`` is imported."""
    assert {m.removeprefix("embedkit.") for m in FILES} & set(embedkit.__all__) == {"errors"}


def test_the_package_is_marked_as_typed() -> None:
    assert (ROOT / "embedkit/py.typed").is_file()
