"""What README, docs/workflow-*.md, the notebooks and `make run` show is what happens."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import json
import re
import runpy
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import embedkit
from embedkit.choices import DEFAULT_MODEL, MULTILINGUAL
from embedkit.cli.main import cli
from embedkit.errors import EXIT_REJECTS, EmbedkitError, ModelError
from embedkit.runs.run import FinetuneRun, TrainRun
from tests.finetune_fixtures import write_lines
from tests.processes import ROOT, Done, command, completed, succeed
from tests.run_fixtures import run_of
from tests.store_fixtures import korean_reviews, tiny_model

DOCS = ROOT / "docs"
PAGES = {
    path.stem: path.read_text("utf-8")
    for path in (*DOCS.glob("workflow-*.md"), DOCS / "nsmc.md", ROOT / "README.md")
}
REFUSED = {"runs/leak": 4, "leak": 2}


def blocks(page: str, language: str) -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", PAGES[page], flags=re.S | re.M)
    return [body for kind, body in fences if kind == language]


def numbered(text: str) -> str:
    """Without numbers, which differ between machines, and so do the units of time."""
    return re.sub(r"\d[\d.,]*", "N", re.sub(r"(\d) (ms|min)\b", r"\1 s", text))


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Done]]:
    """A folder in which the first command of a page has run; several pages begin with the same."""

    @cache
    def folder(line: str) -> tuple[Path, Done]:
        path = tmp_path_factory.mktemp("begun")
        shutil.copytree(ROOT / "data", path / "data")
        return path, command(*shlex.split(line)[1:], cwd=path)

    return folder


def spoken(page: str, folder: Path) -> str:
    """What the Python of a page prints in a folder."""
    with chdir(folder), redirect_stdout(io.StringIO()) as stream:
        for block in blocks(page, "python"):
            exec(compile(block, page, "exec"), {"__name__": "__main__"})
    return stream.getvalue()


def _methods(text: str) -> set[str]:
    """First words of the lines, without the mark of the recommended method."""
    return {line.split()[0] for line in text.replace("→", " ").splitlines() if line.strip()}


@pytest.mark.slow
# KcBERT is on a hub alone, and the reviews of nsmc.md have a stand-in, below
@pytest.mark.parametrize("page", sorted({*PAGES} - {"nsmc", "workflow-kcbert"}))
def test_commands_run_and_print_what_is_shown(
    page: str, begun: Callable[[str], tuple[Path, Done]], tmp_path: Path
) -> None:
    first, *lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    path, done = begun(first)
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    results = {first: done}
    results |= {line: command(*shlex.split(line)[1:], cwd=tmp_path) for line in lines}
    assert len(results) >= 3
    for line, result in results.items():
        expected = REFUSED.get(line.rpartition(" ")[2], 0)
        assert result.returncode == expected, (line, result.stderr)
    printed = "".join(result.stdout + result.stderr for result in results.values())
    printed += spoken(page, tmp_path)
    shown = blocks(page, "")
    assert shown
    if page == "README":  # the first line of each answer; other blocks install
        shown = shown[0].splitlines()
    for block in shown:
        lines = block.splitlines()
        if lines[0].split()[0] == "method":  # the order of methods is that of their scores
            assert _methods(block) <= _methods(printed)
        elif lines[0].startswith("row,"):
            answers = (tmp_path / "answers.csv").read_text("utf-8").splitlines()
            assert numbered(lines[0]) == numbered(answers[0])
            assert numbered(lines[1]) == numbered(answers[1])
        else:
            assert numbered(block) in numbered(printed)


def stand_in(block: str, less: dict[str, str]) -> list[str]:
    """The commands of a page with quicker settings."""
    less = {"--model multilingual": f"--model {tiny_model()}", **less}
    for asked, quicker in less.items():
        assert asked in block
        block = block.replace(asked, quicker)
    return block.splitlines()


def test_korean_film_reviews_on_a_stand_in(tmp_path: Path) -> None:
    """The commands of docs/nsmc.md, with a tiny model and reviews of this project's own."""
    short = [f"9{i}\t짧다\t0" for i in range(9)]
    for name in ("train", "test"):
        write_lines(tmp_path / f"ratings_{name}.txt", *korean_reviews(90), *short)
    less = {
        "--sample 400": "--sample 60",
        "--sample 200": "--sample 30",
        "--epochs 4": "--epochs 2",
        "--max-length 64": "--max-length 20",
    }
    (block,) = blocks("nsmc", "bash")
    for line in stand_in(block, less):
        done = succeed(*shlex.split(line)[1:], cwd=tmp_path)
    run = run_of(tmp_path / "runs/finetuned", FinetuneRun)
    assert (run.records["folds"], run.records["test"], len(run.models)) == (12, 30, 1)
    answer = spoken("nsmc", tmp_path).split(" {")[0]
    assert answer in ("부정 리뷰", "긍정 리뷰")
    assert done.stdout.startswith(f"{answer}\t{answer} ")


@pytest.mark.slow
def test_a_rare_class_on_a_stand_in(tmp_path: Path) -> None:
    """A rare class of docs/workflow-competition.md, with a tiny model and an epoch."""
    vectors, _own_columns, finetuned = blocks("workflow-competition", "sh")
    less = {"--freeze-layers 8": "--freeze-layers 1", "--epochs 3": "--epochs 1"}
    first, *lines = stand_in(vectors + finetuned, less)
    (tmp_path / "data").symlink_to(ROOT / "data")
    completed("bash", "-c", first, cwd=tmp_path)
    for line in lines:
        succeed(*shlex.split(line)[1:], cwd=tmp_path)
    assert "600 records" in command("info", "logreg", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda path: path.stem
)
def test_commands_and_options_of_every_page_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    known = {
        name: {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
        for name, command in cli.commands.items()
    }
    for block in re.findall(r"^```bash\n(.*?)^```$", text, flags=re.S | re.M):
        for line in re.findall(r"^embedkit (?:(?!   ).)*", block, flags=re.M):
            options = set(re.findall(r"(?<=\s)--?[a-z][a-z0-9-]*", line))
            assert options <= known[line.split()[1]], line


NOTEBOOKS = tuple(sorted(path.name for path in DOCS.glob("*.ipynb")))


def code_of(notebook: str) -> list[dict[str, Any]]:
    cells = json.loads((DOCS / notebook).read_text("utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_a_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notebook: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path / "docs")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # a notebook has IPython, which shows a file that can be read
    shown = SimpleNamespace(SVG=lambda filename: Path(filename).read_text("utf-8"))
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=shown))
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in code_of(notebook):
        exec(compile("".join(cell["source"]), "notebook", "exec"), names)
    if notebook == "notebook.ipynb":
        (report,) = tmp_path.glob("*/report.html")
        assert names["result"].winner.name in report.read_text("utf-8")
    else:
        assert names["content"].over_last is not None
        assert names["frame"]["selectivity"].max() > 0


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_a_notebook_holds_the_outputs_of_one_execution(notebook: str) -> None:
    code = code_of(notebook)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = {output["output_type"] for cell in code for output in cell["outputs"]}
    assert kinds == {"execute_result"}


def test_every_command_and_exit_code_is_documented() -> None:
    readme, reliability = PAGES["README"], (DOCS / "reliability.md").read_text("utf-8")
    for name in cli.commands:
        assert f"embedkit {name}" in readme or f"`{name}`" in readme

    def codes(kind: Any) -> set[int]:
        return {kind.exit_code}.union(*(codes(k) for k in kind.__subclasses__()))

    rows = re.findall(r"^\| ([\d, ]+) \|", reliability, re.M)
    documented = {int(code) for row in rows for code in row.split(",")}
    assert codes(EmbedkitError) - {EmbedkitError.exit_code} | {EXIT_REJECTS} <= documented


# make run


@pytest.fixture
def first_look(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "pipelines")
    return importlib.import_module("first_look")


@pytest.mark.parametrize("model", [MULTILINGUAL, DEFAULT_MODEL])
def test_stages_of_the_models_that_there_are(
    tmp_path: Path, first_look: ModuleType, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """Also how the first one ends that fails."""
    ran: list[str] = []

    def find_checkpoint(_: str) -> None:
        if model == DEFAULT_MODEL:
            raise ModelError("model='multilingual': not available.")

    def run(stages: Any, *_: Any, **__: Any) -> list[dict[str, Any]]:
        ran.extend(stage.name for stage in stages)
        return [{"status": "failed", "exit_code": 5}]

    monkeypatch.setattr(first_look, "find_checkpoint", find_checkpoint)
    monkeypatch.setattr(first_look, "run_recipe", run)
    assert first_look.main(tmp_path) == 5
    assert ("extract.asked" in ran) == (model == MULTILINGUAL)


@pytest.mark.slow
def test_the_first_run(tmp_path: Path, first_look: ModuleType, capfd: Any) -> None:
    """All stages, a line each, the table, and the three commands as they are printed."""
    assert first_look.main(tmp_path) == 0
    printed = capfd.readouterr().out
    assert "take this" in printed
    stages, _, rest = printed.partition("\n\n")
    assert all(re.fullmatch(r"\[\d+/\d+\] [\w.]+ … .*", line) for line in stages.splitlines())
    for line in rest.splitlines():
        if "  # " in line:
            done = succeed(*shlex.split(line, comments=True)[1:], cwd=Path.cwd())
            assert " search " not in line or "app_problem" in done.stdout
    assert (tmp_path / "quickstart/report.html").is_file()
    # the rival is one: trained to its end, and about as good as the frozen vectors
    runs = tmp_path / "quickstart/runs"
    tuned, frozen = run_of(runs / "finetuned", FinetuneRun), run_of(runs / "frozen", TrainRun)
    assert tuned.is_trained
    scores = [run.scores["cross_validation"]["accuracy"] for run in (tuned, frozen)]
    assert scores[0].high > scores[1].value


# reference pages, which are generated

REFERENCE = runpy.run_path(str(DOCS / "reference.py"))["PAGES"]


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_page_is_up_to_date(name: str) -> None:
    written = (DOCS / name).read_text("utf-8")
    assert written == REFERENCE[name]().rstrip() + "\n", "run python docs/reference.py"


def test_an_editor_shows_docstrings_and_defaults() -> None:
    stub = ast.parse((ROOT / "embedkit/__init__.pyi").read_text("utf-8"))
    functions = [node for node in stub.body if isinstance(node, ast.FunctionDef)]
    assert len(functions) > 10
    for node in functions:
        signature = inspect.signature(function := getattr(embedkit, node.name))
        assert ast.get_docstring(node) == inspect.getdoc(function)
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            if default is not None and ast.unparse(default) != "...":
                assert ast.literal_eval(default) == signature.parameters[argument.arg].default


def test_named_tests_exist() -> None:
    files = re.findall(r"`(tests/[\w/]+\.py)`", (DOCS / "reliability.md").read_text("utf-8"))
    assert files
    assert [file for file in files if not (ROOT / file).is_file()] == []
