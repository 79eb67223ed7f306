"""The shape of the code: names, and what an import loads. Layers are held by import-linter."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import embedkit
from tests.processes import ROOT

PACKAGE = ROOT / "embedkit"

MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
)
PACKAGES = [m for m in MODULES if ROOT.joinpath(*m.split(".")).is_dir()]


def test_no_function_is_hidden_by_a_module_of_its_name() -> None:
    """``embedkit.probe(…)`` must stay a call after a module called ``probe`` is imported."""
    assert {m.removeprefix("embedkit.") for m in MODULES} & set(embedkit.__all__) == {"errors"}


HEAVY = ("torch", "transformers", "tokenizers", "pyarrow", "pandas", "sklearn")


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import embedkit", HEAVY),
        ("import embedkit.cli.main", HEAVY),
        ("import embedkit; embedkit.load", HEAVY[:3]),
        ("import embedkit.dataset.verification, embedkit.cli.text", HEAVY[:3]),
        ("import sys; sys.argv = ['embedkit', '--help']\nfrom embedkit.cli.main import main\n"
         "try: main()\nexcept SystemExit: pass", HEAVY),
        ("import sys; sys.argv = ['embedkit', 'extract', '--help']\n"
         "from embedkit.cli.main import main\ntry: main()\nexcept SystemExit: pass", HEAVY),
    ],
)  # fmt: skip
def test_nothing_heavy_is_loaded_early(code: str, heavy: tuple[str, ...]) -> None:
    script = f"{code}\nimport sys\nprint('LOADED', [m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "LOADED []"


WITHOUT_NAMES = ("embedkit.__main__", "embedkit._version", *PACKAGES[1:])


@pytest.mark.parametrize("module", [m for m in MODULES if m not in WITHOUT_NAMES])
def test_all_lists_what_exists(module: str) -> None:
    loaded = importlib.import_module(module)
    assert loaded.__all__
    assert len(set(loaded.__all__)) == len(loaded.__all__)
    for name in loaded.__all__:
        assert getattr(loaded, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = loaded.nothing


def test_one_default_model() -> None:
    from embedkit import choices
    from embedkit.cli.main import cli
    from embedkit.encoding import checkpoint

    assert choices.DEFAULT_MODEL == checkpoint.DEFAULT_MODEL
    for command in cli.commands.values():
        defaults = [p.default for p in command.params if p.name == "model"]
        assert all(d == choices.DEFAULT_MODEL for d in defaults if isinstance(d, str))


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.parametrize("module", MODULES)
def test_modules_functions_and_classes_are_small(module: str) -> None:
    """500 lines a module, 60 a function without its docstring, 15 public members a class."""
    file = importlib.util.find_spec(module).origin  # type: ignore[union-attr]
    source = Path(str(file)).read_text("utf-8")
    assert len(source.splitlines()) <= 500
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            said = (ast.get_docstring(node, clean=False) or "").count("\n") + 1
            assert (node.end_lineno or 0) - node.lineno + 1 - said <= 60, node.name
        elif isinstance(node, ast.ClassDef):
            public = [m for m in node.body if isinstance(m, ast.FunctionDef) and m.name[0] != "_"]
            assert len(public) <= 15, node.name
