"""The size and shape of the code: budgets, layers, rings, and what an import loads."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import click
import pytest

import embedkit
from embedkit.cli.main import cli
from tests.processes import ROOT, command
from tests.store_fixtures import tiny_model, write_tsv

BUDGET = {
    "lines in embedkit/": 27_705,
    "modules in embedkit/": 90,
    "lines in the longest module": 900,
    "options of all commands": 220,
    "lines in tests/": 18_900,
    "# fmt: skip": 60,
}
"""No number may be larger, and none of these goes up: what comes in replaces something."""

MODULES_ON_THE_WAY = 30
"""In how many modules ``extract`` may call functions."""

LAYERS = (
    "__main__",
    "cli",
    "doctor",
    "pipeline",
    "maps",
    "comparison",
    "sklearn",
    "predict",
    "contexts sts",
    "search",
    "finetuning",
    "classifiers",
    "runs",
    "dataset",
    "encoding",
    "corpus",
    "scale",
    "choices drawing pages storage",
    "display machine types",
    "errors",
)
"""Modules and packages import each other only downwards, or within a layer."""

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


GRAPH = {module: set(imports_of(module)) - {module} for module in FILES}


def test_budgets() -> None:
    lengths = {m: len(path.read_text("utf-8").splitlines()) for m, path in FILES.items()}
    tests = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py")]
    sources = [path.read_text("utf-8") for path in FILES.values()]
    options = [p for c in cli.commands.values() for p in c.params if isinstance(p, click.Option)]
    numbers = {
        "lines in embedkit/": sum(lengths.values()),
        "modules in embedkit/": len(FILES),
        "lines in the longest module": max(lengths.values()),
        "options of all commands": len(options),
        "lines in tests/": sum(len(text.splitlines()) for text in tests),
        "# fmt: skip": sum(text.count("# fmt: " + "skip") for text in (*sources, *tests)),
    }
    table = [f"{name:30} {number:6,} of {BUDGET[name]:6,}" for name, number in numbers.items()]
    table.append(f"{'longest modules':30} {sorted(lengths, key=lengths.__getitem__)[:-5:-1]}")
    print("", *table, sep="\n")
    assert all(number <= BUDGET[name] for name, number in numbers.items()), "\n".join(table)


def test_no_ring() -> None:
    try:
        graphlib.TopologicalSorter(GRAPH).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_imports_go_down() -> None:
    floor = {name: number for number, names in enumerate(LAYERS) for name in names.split()}
    assert {module.split(".")[1] for module in FILES if "." in module} <= floor.keys()
    upward = [
        f"{module} imports {other}"
        for module, others in GRAPH.items()
        for other in others
        if "embedkit" not in (module, other)
        and floor[other.split(".")[1]] < floor[module.split(".")[1]]
    ]
    assert not upward


def test_the_way_of_a_record(tmp_path: Path) -> None:
    """The modules in which ``extract`` calls a function; CONTRIBUTING.md draws them."""
    modules = set[str]()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            modules.add(frame.f_code.co_filename)

    write_tsv(tmp_path / "corpus.tsv")
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        command("extract", "corpus.tsv", "--model", tiny_model(), cwd=tmp_path)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    way = sorted(module for module, path in FILES.items() if str(path) in modules)
    print(len(way), "modules:", *way)
    assert len(way) <= MODULES_ON_THE_WAY, way


def test_no_function_is_hidden_by_a_module_of_its_name() -> None:
    """``embedkit.probe(…)`` must stay a call after a module called ``probe`` is imported."""
    assert {m.removeprefix("embedkit.") for m in FILES} & set(embedkit.__all__) == {"errors"}


_HELP = "from embedkit.cli.main import cli; cli(['{}--help'], standalone_mode=False)"


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        (_HELP.format(""), "torch transformers tokenizers pyarrow pandas sklearn"),
        (_HELP.format("extract', '"), "torch transformers tokenizers pyarrow pandas sklearn"),
        ("import embedkit; embedkit.load, embedkit.verify", "torch transformers tokenizers"),
    ],
)
def test_nothing_heavy_is_loaded_early(code: str, heavy: str) -> None:
    script = f"{code}\nimport sys\nprint(set({heavy.split()}) & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"


def test_the_package_is_marked_as_typed() -> None:
    assert (ROOT / "embedkit/py.typed").is_file()
