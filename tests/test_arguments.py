"""What a person says is checked by name and type where it enters."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from mypy import api

import embedkit
from embedkit.arguments import accepts, checked_value, strings_of
from embedkit.corpus.plan import CorpusOptions
from embedkit.dataset import read
from embedkit.dataset.settings import ExtractOptions
from embedkit.errors import DamagedError, UsageError
from embedkit.finetuning.options import TrainingOptions
from embedkit.records import to_json
from embedkit.runs.run import Cost
from embedkit.runs.split import Split
from embedkit.types import AnyPath
from tests.processes import ROOT, invoke
from tests.run_fixtures import edit_run, split_of
from tests.store_fixtures import run, write_tsv

BY_USE = {"test", "head", "label"}
"""Tables and classes, which are judged where they are used."""

RECORDS = (CorpusOptions, ExtractOptions, TrainingOptions)

METHODS = (
    *(f"Encoder.{name}" for name in ("encode", "encode_views", "encode_tokens", "encode_words")),
    *(f"Searcher.{name}" for name in ("texts", "vectors")),
    *(f"VectorData.{name}" for name in ("export", "iter_batches")),
)


def door(name: str) -> Any:
    """A public function, class or method by its name."""
    return attrgetter(name)(read if name.startswith("VectorData") else embedkit)


def keywords() -> Iterator[tuple[str, str]]:
    """Keywords of public functions, classes and methods that are judged by their type."""
    for name in (*embedkit.__all__, *METHODS):
        thing = door(name)
        if callable(thing):
            # options of ``extract`` are checked there
            own = inspect.unwrap(thing) if name in ("train", "probe") else thing
            for parameter in inspect.signature(own).parameters.values():
                if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in BY_USE:
                    yield name, parameter.name


@pytest.mark.parametrize(("function", "keyword"), [*keywords()])
def test_a_value_of_another_type_is_named_before_anything_is_done(
    function: str, keyword: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    thing = door(function)
    signature = inspect.signature(thing)
    positional = [p for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    required = ["nothing" for p in positional if p.default is p.empty]
    with pytest.raises(UsageError, match=f"^{keyword}=.*expected "):
        thing(*required, **{keyword: object()})
    assert not list(tmp_path.iterdir())


NUMPY = {bool: np.bool_, int: np.int64, float: np.float64, str: np.str_}


@pytest.mark.parametrize("record", RECORDS)
def test_numbers_of_numpy_are_numbers(record: type) -> None:
    plain = record()
    for name in inspect.signature(record).parameters:
        value = getattr(plain, name)
        if type(value) in NUMPY:
            settled = getattr(record(**{name: NUMPY[type(value)](value)}), name)
            assert settled == value
            assert type(settled) is type(value)


@pytest.mark.parametrize(
    ("value", "hint", "message"),
    [
        ("caf\udce9", bool | None, "expected True or False."),
        (2.5, int | None, "expected a whole number."),
        (True, int, "expected a whole number."),
        (3, str | list[str], "expected a text or a list, each a text."),
        (5, Path | None, "expected a path."),
        ("a\0b", str | Path | None, "a path has no NUL."),
        ("x", Split, "expected a Split."),
    ],
)
def test_messages_say_what_is_expected(value: Any, hint: Any, message: str) -> None:
    with pytest.raises(UsageError) as error:
        checked_value("name", value, hint)
    assert str(error.value) == f"name={value!r}: {message}"


def test_lists_may_be_arrays_and_ranges() -> None:
    assert checked_value("layers", np.arange(2), str | list[int]) == [0, 1]
    assert checked_value("layers", range(2), str | list[int]) == range(2)
    assert checked_value("layers", [np.int64(1), "sum:1"], list[int | str]) == [1, "sum:1"]
    texts = pa.array(["a", "b"])
    for column in (texts, pa.chunked_array([texts]), pl.Series(["a", "b"]), np.array(["a", "b"])):
        assert strings_of("texts", column) == ["a", "b"]
    with pytest.raises(TypeError, match="one string"):
        strings_of("texts", np.array("a"))
    with pytest.raises(UsageError, match=r"runs='a.*b': a path has no NUL"):
        checked_value("runs", ["a\0b"], Sequence[AnyPath])


def test_misspelt_keywords_are_told() -> None:
    for function, given, meant in (
        (embedkit.extract, "lyers", "layers"),
        (embedkit.train, "lable", "label"),
        (embedkit.finetune, "epoch", "epochs"),
    ):
        with pytest.raises(TypeError, match=f"{given!r}. Did you mean {meant!r}"):
            function("c.tsv", **cast("Any", {given: 3}))


def test_a_door_keeps_what_python_says_of_calls() -> None:
    @accepts()
    def function(first: int, *, second: int = 2) -> tuple[int, int]:
        return first, second

    numbers: Any = np.arange(4)
    assert function(numbers[1], second=numbers[3]) == (1, 3)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'first'"):
        function()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional argument"):
        function(1, 2)  # type: ignore[call-arg]


def test_nothing_is_written_that_the_reader_refuses() -> None:
    record = split_of(np.zeros(4, int), folds=2).record
    assert json.loads(to_json(replace(record, seed=np.int64(3))))["seed"] == 3  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Expected `int`, got `bool` - at `seed`"):
        to_json(replace(record, seed=True))
    assert json.loads(to_json(Cost(fit_seconds=float("nan"))))["fit_seconds"] is None


def test_verify_and_info_agree(tmp_path: Path) -> None:
    write_tsv(tmp_path / "c.tsv")
    data = run(tmp_path / "c.tsv", tmp_path / "data").out
    made = embedkit.train(data, out=tmp_path / "run", folds=2, tune=False).out
    assert embedkit.verify(made).ok
    split = json.loads((made / "run.json").read_text("utf-8"))["split"]
    edit_run(made, split=split | {"seed": True})
    with pytest.raises(DamagedError, match=r"run\.json.*seed"):
        embedkit.info(made)
    found = embedkit.verify(made)
    assert len(found.problems) == 1
    assert "seed" in found.problems[0]
    assert invoke("verify", made).return_value == DamagedError.exit_code


WRONG = """
import embedkit
embedkit.extract("c.tsv", pooling=3)
embedkit.train("v", lable="stars")
embedkit.Encoder("m", devise="cpu")
"""


@pytest.mark.slow
def test_mypy_finds_misspelt_and_mistyped_arguments(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(WRONG, "utf-8")
    settings = ["--strict", "--config-file", str(ROOT / "pyproject.toml"), str(file)]
    text, _, code = api.run(settings)
    lines = [line.split(":")[1] for line in text.splitlines() if "error:" in line]
    assert lines == [str(number) for number in range(3, 6)], text
    assert code == 1
