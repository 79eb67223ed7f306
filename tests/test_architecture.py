"""The shape of the code: one direction of imports, quick start, no traces of a machine."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import embedkit
from tests.processes import ROOT

PACKAGE = ROOT / "embedkit"

GROUPS = {
    "": ["errors", "display", "fsio", "corpus"],
    "encoding": ["checkpoint", "alignment", "tokenization", "views", "pooling", "device", "model",
                 "packed", "precision", "shard", "encoder"],
    "dataset": ["schema", "pages", "store", "jobs", "tables", "stages", "extraction",
                "verification", "inspection", "estimate"],
    "learning": ["splits", "scores", "outcomes", "reencoding", "unseen", "learners", "runs",
                 "figures", "classify", "probing", "mteb"],
    "tuning": ["texts", "heads", "lora", "training", "finetuning", "finetuned"],
    "asking": ["prediction", "answers", "sklearn"],
    "neighbours": ["topk", "coarse", "isotropy", "filters", "nearest", "search", "index",
                   "similarity", "occurrences", "words", "marked", "projection"],
    "comparison": ["runsets", "blending", "sources", "compare", "charts", "report"],
    "experiments": ["fetch", "recipe", "pipeline"],
    "rendering": ["render", "run_render", "search_render", "tabulate"],
    "commands": ["options", "progress", "results_cli", "finetune_cli", "search_cli",
                 "experiment_cli"],
    "cli": ["cli"],
}  # fmt: skip
"""A module imports only from those before it; what is not listed here is found by a test."""

FLAT = ("", "asking", "cli")
"""Groups whose modules lie in the package itself."""

ORDER = [
    f"embedkit.{name}" if group in FLAT else f"embedkit.{group}.{name}"
    for group, names in GROUPS.items()
    for name in names
]
PACKAGES = [f"embedkit.{group}" for group in GROUPS if group not in FLAT]

MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
)
ENTRIES = ("embedkit", "embedkit.__main__", *PACKAGES)


def _file(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _imports(module: str) -> Iterator[str]:
    """Modules of embedkit that a module imports when it runs, wherever the statement stands."""
    tree = ast.parse(_file(module).read_text("utf-8"))
    for block in ast.walk(tree):
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test):
            block.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("embedkit"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("embedkit"):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else str(node.module)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"


def _rank(module: str) -> int:
    parts = module.split(".")
    names = [".".join(parts[:length]) for length in range(len(parts), 1, -1)]
    return next(ORDER.index(name) for name in names if name in ORDER)


@pytest.mark.parametrize("module", [m for m in MODULES if m not in ENTRIES])
def test_imports_go_one_way(module: str) -> None:
    wrong = [
        found
        for found in _imports(module)
        if found != "embedkit"
        and _rank(found) >= _rank(module)
        and not module.startswith("embedkit.corpus")  # a package of its own, imported as a whole
    ]
    assert wrong == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_only_says_what_is_in_it(package: str) -> None:
    """Nothing is loaded by importing one, and it names every module that it holds."""
    assert list(_imports(package)) == []
    text = _file(package).read_text("utf-8")
    missing = [m for m in GROUPS[package.removeprefix("embedkit.")] if f"``{m}``" not in text]
    assert missing == []


def test_every_module_has_its_place() -> None:
    found = {m for m in MODULES if m not in ENTRIES and not m.startswith("embedkit.corpus.")}
    assert found == set(ORDER)
    assert list(_imports("embedkit.dataset.extraction"))  # the reader of imports finds some


def test_no_function_is_hidden_by_a_module_of_its_name() -> None:
    """``embedkit.probe(…)`` must stay a call after a module called ``probe`` is imported."""
    assert {m.removeprefix("embedkit.") for m in MODULES} & set(embedkit.__all__) == set()


HEAVY = ("torch", "transformers", "tokenizers", "pyarrow", "pandas", "sklearn")


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import embedkit", HEAVY),
        ("import embedkit.cli", HEAVY),
        ("import embedkit; embedkit.load", HEAVY[:3]),
        ("import embedkit.dataset.verification, embedkit.rendering.render", HEAVY[:3]),
        ("import sys; sys.argv = ['embedkit', '--help']\nfrom embedkit.cli import main\n"
         "try: main()\nexcept SystemExit: pass", HEAVY),
        ("import sys; sys.argv = ['embedkit', 'extract', '--help']\nfrom embedkit.cli import main\n"
         "try: main()\nexcept SystemExit: pass", HEAVY),
    ],
)  # fmt: skip
def test_nothing_heavy_is_loaded_early(code: str, heavy: tuple[str, ...]) -> None:
    script = f"{code}\nimport sys\nprint('LOADED', [m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "LOADED []"


@pytest.mark.parametrize(
    "module", [m for m in MODULES if m not in ("embedkit.__main__", *PACKAGES)]
)
def test_all_lists_what_exists(module: str) -> None:
    loaded = importlib.import_module(module)
    assert loaded.__all__
    assert len(set(loaded.__all__)) == len(loaded.__all__)
    for name in loaded.__all__:
        assert getattr(loaded, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = loaded.nothing


def test_one_default_model() -> None:
    from embedkit.commands import options
    from embedkit.encoding import checkpoint

    assert options.DEFAULT_MODEL == checkpoint.DEFAULT_MODEL


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()
