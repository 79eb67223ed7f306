"""The examples of docstrings give what they show."""

from __future__ import annotations

import doctest
import importlib
import inspect
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedkit
from embedkit.choices import DEFAULT_MODEL
from embedkit.encoding.encoder import Encoder
from tests.finetune_fixtures import write_lines
from tests.models import slow
from tests.properties.test_architecture import FILES
from tests.store_fixtures import begin_quickly, load_quickly

MODULES = sorted(module for module, path in FILES.items() if ">>>" in path.read_text("utf-8"))
"""Modules with examples."""


@pytest.fixture(scope="module")
def files(common: Path) -> Path:
    """What examples name: corpus.tsv, vectors (its dataset), split.parquet, and two runs."""
    texts = [f"the {('money', 'river')[i % 2]} bank of town {i}" for i in range(12)]
    lines = (f"{i}\t{text}\t{i % 2}" for i, text in enumerate(texts))
    write_lines(common / "corpus.tsv", "id\ttext\tlabel", *lines)
    load_quickly(DEFAULT_MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(common)
        patch.setattr(Encoder, "__init__", begin_quickly)
        vectors: dict[str, Any] = {"layers": "all", "pooling": ["cls", "mean"], "tokens": True}
        embedkit.extract("corpus.tsv", out="vectors", words="mean", **vectors)
        embedkit.split("vectors", out="split.parquet", folds=2)
        embedkit.train("vectors", split="split.parquet", out="runs/logreg")
        tagged = [{"text": text, "tags": "DET NOUN NOUN ADP NOUN NUM"} for text in texts]
        embedkit.extract(tagged, out="tagged", words="mean", word_label="tags")
        embedkit.train("tagged", level="word", folds=2, tune=False, out="runs/tagger")
    return common


def examples_of(module: str) -> list[doctest.DocTest]:
    found = doctest.DocTestFinder().find(importlib.import_module(module), module)
    return [test for test in found if test.examples]


CASES = [test for module in MODULES for test in examples_of(module)]
LONG = [test for test in CASES if test.name.startswith("embedkit.finetuning.")]
CASES = [*(test for test in CASES if test not in LONG), *slow(*LONG)]


@pytest.mark.parametrize("test", CASES, ids=lambda test: test.name.removeprefix("embedkit."))
def test_examples(
    test: doctest.DocTest, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not [e.source for e in test.examples if e.options.get(doctest.SKIP)]
    monkeypatch.chdir(shutil.copytree(files, tmp_path / "here"))
    monkeypatch.setattr(Encoder, "__init__", begin_quickly)
    printed: list[str] = []
    globs: dict[str, Any] = {**test.globs, "embedkit": embedkit, "np": np}
    test.globs = globs
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=printed.append)  # by default it reads pytest's own -v
    assert not printed, "".join(printed)


def test_every_example_is_found() -> None:
    """The finder sees what the files hold: none is in a docstring that nobody can ask for."""
    for module in MODULES:
        count = inspect.getsource(importlib.import_module(module)).count(">>> ")
        assert sum(len(test.examples) for test in examples_of(module)) == count, module


def test_what_is_exported_has_an_example() -> None:
    without = set()
    for name in set(embedkit.__all__) - {"__version__", "errors"}:
        thing = getattr(embedkit, name)
        docs = [inspect.getdoc(thing) or ""]
        if inspect.isclass(thing):
            docs += [inspect.getdoc(m) or "" for n, m in vars(thing).items() if n[0] != "_"]
        without |= set() if any(">>> " in doc for doc in docs) else {name}
    assert not without
