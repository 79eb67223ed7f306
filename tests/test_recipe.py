"""Recipes: what they become on the command line, and where a mistake in them is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from embedkit.cli.main import cli
from embedkit.errors import DamagedError, UsageError
from embedkit.pipeline import Stage, read_recipe
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
dry-run = false
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


def read(tmp_path: Path, text: str, *settings: str) -> list[Stage]:
    (tmp_path / "recipe.toml").write_text(text, "utf-8")
    return read_recipe(tmp_path / "recipe.toml", cli.commands, settings)


def test_stages_in_the_order_written(tmp_path: Path) -> None:
    stages = read(tmp_path, GOOD)
    assert [stage.name for stage in stages] == ["extract", "train.b", "split", "train.a"]
    extract, train, split, _ = stages
    line = (
        "extract a.tsv b.tsv --layers=-1 --pooling=cls,mean --tokens --words=first --out=../x/out/v"
    )
    assert " ".join(extract.line) == line
    assert train.line == ("train", "../x/out/v", "--folds=4", "--out=../x/out/b")
    assert split.line == ("split", "../x/out/v", "--test=0.2", "--out=s.parquet")
    assert extract.outputs == ("../x/out/v",)
    assert extract.inputs[:2] == ("a.tsv", "b.tsv")
    assert extract.folder == tmp_path


def test_values_from_the_command_line(tmp_path: Path) -> None:
    of_a = ("train.a.overwrite=true", "train.a.estimator=knn")
    of_extract = ("extract.words=true", "extract.keep=['p', 'q']")
    values = ("corpus=c d.tsv", "folds=7", "name=a=b")
    stages = read(tmp_path, GOOD, *values, *of_a, "split.label=genre", *of_extract)
    extract, train, split, last = stages
    assert extract.line[1] == "c d.tsv"
    assert {"--words", "--keep=p,q"} <= set(extract.line)
    assert train.line[2] == "--folds=7"
    assert "--label=genre" in split.line
    assert " ".join(last.line) == (
        "train ../a=b/out/v --out=../a=b/out/a --overwrite --estimator=knn"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("folds = 4", "folds = 'four'"), r"toml:19: \[train.b\] .*--folds"),
        (("dry-run", "dry-rum"), r"toml:9: \[extract\] .*--dry-rum.*--dry-run"),
        (("[split]", "[spilt]"), r"toml:24: \[spilt\] .*Did you mean 'split'"),
        (('"{folds}"', '"{fold}"'), r"\[train.b\] \{fold\}.*mean 'folds'"),
        (('dataset = "{out}/v"\nout = "{out}/a"', 'out = "{out}/a"'), r"\[train.a\] .*DATASET"),
        (('folds = "{folds}"', 'estimator = "svn"'), r"\[train.b\] .*'svn' is not one of"),
        (("test = 0.2", "test = "), r"recipe.toml is not valid TOML: .*line 26"),
    ],
)
def test_mistakes_have_a_place(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert change[0] in GOOD
    with pytest.raises(DamagedError, match=message) as caught:
        read(tmp_path, GOOD.replace(*change))
    assert caught.value.exit_code == 5


def test_files_that_are_not_recipes(tmp_path: Path) -> None:
    for text in ("title = 'x'\n", "split = 3\n", "set = 3\n[split]\n", "[split]\nx = 1\n"):
        with pytest.raises(UsageError, match=r"recipe\.toml"):
            read(tmp_path, text)
    with pytest.raises(UsageError, match=r"none\.toml"):
        read_recipe(tmp_path / "none.toml", cli.commands)
    (tmp_path / "latin.toml").write_bytes(b"title = '\xe9'\n")
    with pytest.raises(DamagedError, match=r"latin\.toml"):
        read_recipe(tmp_path / "latin.toml", cli.commands)


def test_the_recipe_of_the_documentation(tmp_path: Path) -> None:
    page = (ROOT / "docs/experiments.md").read_text("utf-8")
    (block,) = re.findall(r"^```toml\n(.*?)^```$", page, flags=re.S | re.M)
    names = [stage.name for stage in read(tmp_path, block)]
    assert names == ["extract", "split", "train.tfidf", "train.last_layer"]


SHARED = """\
[set]
out = "o"

[train]
dataset = "{out}/v"
split = "{out}/s.parquet"
seed = 4
out = "{out}/{stage}"

[train.a]

[train.b]
seed = 5
split = ""
"""


def test_options_of_all_stages_of_a_command(tmp_path: Path) -> None:
    a, b = read(tmp_path, SHARED)
    assert a.line == ("train", "o/v", "--split=o/s.parquet", "--seed=4", "--out=o/a")
    assert b.line == ("train", "o/v", "--seed=5", "--out=o/b")
    assert a.outputs == ("o/a",)
    a, b = read(tmp_path, SHARED, "train.a.seed=9")
    assert a.line[3] == "--seed=9"
    assert b.line[2] == "--seed=5"


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        (SHARED.replace("seed = 4", "ssed = 4"), (), r"\[train.a\] .*--ssed"),
        (SHARED.replace("{stage}", "{stag}"), (), r"\{stag\}.*Did you mean 'stage'"),
        (SHARED, ("train.seed=1",), r"train\.seed=1.*train.a, train.b"),
        (GOOD, ("corpuss=x",), r"corpuss=x.*Did you mean 'corpus'"),
        (GOOD, ("folds",), "KEY=VALUE"),
        (GOOD, ("train.c.tune=true",), r"train\.c\.tune.*extract, train.b, split"),
        (GOOD, ("train.a.tunne=true",), "--tunne"),
        (GOOD, ("train.a.folds=x",), "--folds"),
    ],
)
def test_mistakes_in_shared_options_and_on_the_command_line(
    tmp_path: Path, recipe: str, settings: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read(tmp_path, recipe, *settings)
