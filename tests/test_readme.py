"""The README's commands and Python run, and its options and exit codes exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tempfile
from typing import Any

import pytest

from embedkit.drawing import as_file
from embedkit.runs import figures
from tests.processes import ROOT, Done, command, fresh

README = (ROOT / "README.md").read_text("utf-8")
RELIABILITY = (ROOT / "docs" / "reliability.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.S | re.M)
    return [body for kind, body in fences if kind == language]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with the corpora in it, in which all commands of the README have run."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("data", "pipelines"):
        shutil.copytree(ROOT / name, folder / name)
    results: dict[str, Done] = {}
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(figures, "as_file", as_file)
    for block in blocks("bash"):
        for line in block.strip().splitlines():
            words = shlex.split(line)
            assert words[0] == "embedkit"
            run = command if results else fresh  # the first in a process of its own
            results[line] = run(*words[1:], cwd=folder)
    monkeypatch.undo()
    return folder, results


@pytest.mark.slow
def test_commands_run(workplace):
    _, results = workplace
    assert len(results) >= 6
    for line, result in results.items():
        assert result.returncode == 0, (line, result.stderr)
        assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_the_shown_answers_are_printed(workplace):
    _, results = workplace
    lines = blocks("bash")[0].splitlines()
    printed = "".join(results[line].stdout.splitlines(keepends=True)[0] for line in lines)
    assert re.sub(r"[\d.,]+", "N", blocks("")[0]) == re.sub(r"[\d.,]+", "N", printed)


@pytest.mark.slow
def test_python_runs(workplace, monkeypatch):
    folder, _ = workplace
    monkeypatch.chdir(folder)
    assert blocks("python")
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})


def code_of(notebook):
    cells = json.loads((ROOT / "docs" / notebook).read_text("utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.parametrize("notebook", ["notebook.ipynb", "probing.ipynb"])
def test_a_notebook_runs(tmp_path, monkeypatch, notebook):
    (tmp_path / "docs").mkdir()
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path / "docs")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in code_of(notebook):
        exec(compile("".join(cell["source"]), "notebook", "exec"), names)
    if notebook == "notebook.ipynb":
        (report,) = tmp_path.glob("*/report.html")
        assert names["result"].winner.name in report.read_text("utf-8")
    else:
        assert names["content"].over_last is not None
        assert names["frame"]["selectivity"].max() > 0


@pytest.mark.parametrize("notebook", ["notebook.ipynb", "probing.ipynb"])
def test_a_notebook_holds_the_outputs_of_one_execution(notebook):
    code = code_of(notebook)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = {output["output_type"] for cell in code for output in cell["outputs"]}
    assert kinds == {"execute_result"}


def test_every_command_and_exit_code_is_documented():
    from embedkit.cli.main import cli
    from embedkit.errors import EXIT_REJECTS, EmbedkitError

    for name in cli.commands:
        assert f"embedkit {name}" in README or f"`{name}`" in README

    def codes(kind):
        return {kind.exit_code}.union(*(codes(k) for k in kind.__subclasses__()))

    documented = {
        int(c) for row in re.findall(r"^\| ([\d, ]+) \|", RELIABILITY, re.M) for c in row.split(",")
    }
    assert codes(EmbedkitError) - {EmbedkitError.exit_code} | {EXIT_REJECTS} <= documented
