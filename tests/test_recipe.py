"""Recipes: what they become on the command line, and where a mistake in them is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedkit.cli.main import cli
from embedkit.errors import DamagedError, UsageError
from embedkit.experiments.recipe import Stage, key_lines, misplaced, read_recipe
from tests.processes import ROOT

GOOD = """\
title = "An experiment"

[set]
corpus = ["a.tsv", "b.tsv"]
folds = 4
name = "x"
out = "../{name}/out"

[extract]
corpus = "{corpus}"
layers = "-1"
pooling = ["cls",
           "mean"]
tokens = true
words = "first"
no-text = false
out = "{out}/v"

[train.b]
dataset = "{out}/v"
folds = "{folds}"
out = "{out}/b"

[split]
source = "{out}/v"
test = 0.2
label = ""
out = "s.parquet"

[train.a]
dataset = "{out}/v"
out = "{out}/a"
"""


def read(tmp_path: Path, text: str, *settings: str) -> tuple[Stage, ...]:
    (tmp_path / "recipe.toml").write_text(text, "utf-8")
    return read_recipe(tmp_path / "recipe.toml", cli.commands, settings)


def test_stages_in_the_order_written(tmp_path: Path) -> None:
    stages = read(tmp_path, GOOD)
    assert [stage.name for stage in stages] == ["extract", "train.b", "split", "train.a"]
    extract, train, split, _ = stages
    assert extract.arguments == (
        "a.tsv", "b.tsv", "--layers=-1", "--pooling", "cls,mean", "--tokens", "--words=first",
        "--out", "../x/out/v",
    )  # fmt: skip
    assert train.arguments == ("../x/out/v", "--folds", "4", "--out", "../x/out/b")
    assert split.arguments == ("../x/out/v", "--test", "0.2", "--out", "s.parquet")
    assert extract.outputs == ("../x/out/v",)
    assert extract.values[:2] == ("a.tsv", "b.tsv")
    assert extract.folder == tmp_path


def test_the_command_understands_what_a_stage_says(tmp_path: Path) -> None:
    stage = read(tmp_path, GOOD)[0]
    parameters = cli.commands["extract"].make_context("extract", list(stage.arguments)).params
    assert parameters["corpus"] == ("a.tsv", "b.tsv")
    assert (parameters["words"], parameters["tokens"], parameters["no_text"]) == (
        "first", True, False
    )  # fmt: skip


def test_values_from_the_command_line(tmp_path: Path) -> None:
    stages = read(tmp_path, GOOD, "corpus=c d.tsv", "folds=7", "train.a.tune=true",
                  "train.a.estimator=svm", "split.label=genre", "extract.words=true",
                  "extract.keep=['p', 'q']", "name=a=b")  # fmt: skip
    extract, train, split, last = stages
    assert extract.arguments[0] == "c d.tsv"
    assert "--words" in extract.arguments
    assert extract.arguments[extract.arguments.index("--keep") + 1] == "p,q"
    assert train.arguments[2] == "7"
    assert "--label" in split.arguments
    assert last.arguments == (
        "../a=b/out/v", "--out", "../a=b/out/a", "--tune", "--estimator", "svm"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("folds = 4", "folds = 'four'"), r"toml:21: \[train.b\] folds: expected an integer, not"),
        (("folds = 4", "folds = 4.5"), r"toml:21: .*expected an integer, not 4.5"),
        (("test = 0.2", "test = true"), r"toml:26: \[split\] test: expected a number, not true"),
        (("tokens = true", "tokens = 'yes'"), r"toml:14: .*expected true or false, not 'yes'"),
        (("no-text", "no-txt"), r"toml:16: \[extract\] embedkit extract has no option 'no-txt'. "
         r"Did you mean 'no-text'"),
        (("no-text", "no_text"), "Did you mean 'no-text'"),
        (("[split]", "[spilt]"), r"toml:24: \[spilt\] there is no command 'spilt'. "
         r"Did you mean 'split'"),
        (("[set]", "[sett]"), "Did you mean 'set'"),
        (('"{folds}"', '"{fold}"'), r"toml:21: .*\{fold\} is not in \[set\].*mean 'folds'"),
        (('dataset = "{out}/v"\nout = "{out}/a"', 'out = "{out}/a"'),
         r"toml:30: \[train.a\] embedkit train needs 'dataset'"),
        (('layers = "-1"', "layers = [1.5, true]"), r"toml:11: .*expected text, not true"),
        (('test = 0.2', 'test = 0.2\nestimator = "svm"'), "has no option 'estimator'"),
        (('folds = "{folds}"', 'estimator = "svn"'), r"toml:21: .*'svn' is not one of"),
        (('dataset = "{out}/v"\nout = "{out}/a"', 'dataset = ["p", "q"]'),
         r"toml:31: .*expected one value, not 2"),
        (("test = 0.2", "test = "), r"recipe.toml is not valid TOML: .*line 26"),
        (('"{out}/a"', '"{out}/../out/b"'),
         r"toml:30: \[train.a\] it would replace ../x/out/../out/b, which train.b makes"),
        (("[set]", "[set.inner]\nx = 1\n[set]"), r"holds values, not tables"),
    ],
    ids=lambda value: None if isinstance(value, str) else value[1].replace("\n", " ")[:20],
)  # fmt: skip
def test_mistakes_have_a_place(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert change[0] in GOOD
    with pytest.raises(DamagedError, match=message) as caught:
        read(tmp_path, GOOD.replace(*change))
    assert caught.value.exit_code == 5


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "corpuss=x",
            r"has no \[set\] value 'corpuss'; it has corpus, folds, name, out. "
            r"Did you mean 'corpus'",
        ),
        ("folds", "expected KEY=VALUE"),
        ("train.c.tune=true", r"has no stage 'train.c'; it has extract, train.b, split"),
        ("train.a.tunne=true", "has no option 'tunne'"),
        ("train.a.folds=x", "folds: expected an integer, not 'x'"),
    ],
)
def test_mistakes_on_the_command_line(tmp_path: Path, setting: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(tmp_path, GOOD, setting)


def test_a_path_from_where_the_user_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipes").mkdir()
    for name in ("mine.tsv", "both.tsv", "recipes/both.tsv"):
        (tmp_path / name).write_text("text\n")
    monkeypatch.chdir(tmp_path)
    settings = ["corpus=mine.tsv", "corpus=both.tsv", "x=" + "y" * 5_000, "z=a\0b", "w="]
    (note,) = misplaced(Path("recipes/r.toml"), settings)
    assert note.endswith("where no mine.tsv is; for the one here write ../mine.tsv")


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no stage"):
        read(tmp_path, "title = 'x'\n")
    with pytest.raises(UsageError, match=r"recipe.toml:1: .*a stage is a table: \[split\]"):
        read(tmp_path, "split = 3\n")
    with pytest.raises(UsageError, match="cannot be read"):
        read_recipe(tmp_path / "none.toml", cli.commands)
    (tmp_path / "latin.toml").write_bytes(b"title = '\xe9'\n")
    with pytest.raises(DamagedError, match="cannot be read as UTF-8"):
        read_recipe(tmp_path / "latin.toml", cli.commands)


def test_the_recipe_of_the_documentation(tmp_path: Path) -> None:
    page = (ROOT / "docs/experiments.md").read_text("utf-8")
    (block,) = re.findall(r"^```toml\n(.*?)^```$", page, flags=re.S | re.M)
    assert [stage.command for stage in read(tmp_path, block)] == ["extract", "split", "train"]


# lines of keys

NAMES = st.sampled_from(["a", "b-c", '"d e"', "'f.g'", "h"])
VALUES = st.sampled_from([
    "1", "true", '"x = 1"', '"# no comment"', "[1,\n 2, # two\n]", '"""\n[no header]\nk = 2\n"""',
    "'''\n'''", '["[a]",\n "]"]', "2.5  # [not.here]",
])  # fmt: skip


KEYS = st.lists(st.tuples(NAMES, VALUES), max_size=4, unique_by=lambda pair: pair[0])


@given(st.lists(st.tuples(NAMES, KEYS), max_size=4, unique_by=lambda pair: pair[0]))
def test_lines_of_keys(tables: list[tuple[str, list[tuple[str, str]]]]) -> None:
    """Every key is found on the line that it was written to, whatever stands in values."""
    lines: list[str] = []
    expected: dict[tuple[str, ...], int] = {}

    def plain(name: str) -> str:
        return str(next(iter(tomllib.loads(f"{name} = 1"))))

    for table, keys in tables:
        lines += ["", "# [comment]", f"[t.{table}]  # header"]
        expected["t", plain(table)] = len(lines)
        for key, value in keys:
            lines.append(f"  {key} = {value}")
            expected["t", plain(table), plain(key)] = len(lines)
            lines = "\n".join(lines).split("\n")
    text = "\n".join(lines) + "\n"
    tomllib.loads(text)
    assert key_lines(text) == expected


def test_types_that_toml_has_and_options_do_not(tmp_path: Path) -> None:
    value: Any = "1979-05-27"
    with pytest.raises(UsageError, match="label: expected text"):
        read(tmp_path, f'[split]\nsource = "a"\nout = "b"\nlabel = {value}\n')


DEFAULTS = """\
[set]
out = "o"

[defaults]
split = "{out}/s.parquet"
seed = 3

[defaults.train]
dataset = "{out}/v"
seed = 4
out = "{out}/{stage}"

[train.a]

[train.b]
seed = 5
split = ""

[split]
source = "{out}/v"
out = "{out}/s.parquet"
"""


def test_defaults_of_all_stages_and_of_a_command(tmp_path: Path) -> None:
    a, b, split = read(tmp_path, DEFAULTS)
    assert a.arguments == (
        "o/v", "--split", "o/s.parquet", "--seed", "4", "--out", "o/a"
    )  # fmt: skip
    assert b.arguments == ("o/v", "--seed", "5", "--out", "o/b")
    assert split.arguments == ("o/v", "--seed", "3", "--out", "o/s.parquet")
    assert a.outputs == ("o/a",)
    a, b, _ = read(tmp_path, DEFAULTS, "train.seed=9")
    assert a.arguments[4] == b.arguments[2] == "9"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seed = 3", "sed = 3", r":6: \[defaults\] no stage has an option 'sed'. Did you mean 'se"),
        ("defaults.train", "defaults.trian", r"there is no command 'trian'. Did you mean 'train'"),
        ("seed = 4", "ssed = 4", r":10: .*embedkit train has no option 'ssed'"),
        ("{stage}", "{stag}", r":11: .*\{stag\} is not in \[set\] above. Did you mean 'stage'"),
    ],
)
def test_mistakes_in_defaults(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(tmp_path, DEFAULTS.replace(old, new))
