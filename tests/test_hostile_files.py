"""Files that embedkit did not write end a command with one line that names them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import embedkit
from embedkit.errors import DamagedError
from embedkit.runs.folder import read_run
from embedkit.storage import seal
from tests.processes import Done, command
from tests.run_fixtures import train
from tests.store_fixtures import extract_tiny, tiny_model, write_tsv

pytestmark = pytest.mark.usefixtures("quick")

WORDS = ["the", "movie", "was", "good", "bad", "bus", "home", "rain", "a", "i"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with an index and a split, and a run of each kind."""
    folder = tmp_path_factory.mktemp("hostile")
    random = np.random.default_rng(0)
    rows = [(str(i), " ".join(random.choice(WORDS, 5)), str(i % 2)) for i in range(60)]
    data, model = folder / "data", str(tiny_model())
    corpus = write_tsv(folder / "c.tsv", rows)
    extract_tiny(corpus, data)
    train(data, out=folder / "frozen", estimator="logreg", folds=2)
    embedkit.probe(data, out=folder / "probe", folds=2)
    tuned = folder / "tuned"
    embedkit.finetune(corpus, out=tuned, epochs=1, validation=0, folds=2, model=model)
    embedkit.index(data, kind="flat", metric="cosine")
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "here"))


def refused(*arguments: str | Path, cwd: Path, code: int = 5) -> str:
    """The one line that a command ends with."""
    done: Done = command(*arguments, cwd=cwd)
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (code, ""), done
    assert len(lines[-1:]) == 1
    assert lines[-1].startswith("embedkit: ")
    assert not [line for line in lines[:-1] if not line.startswith("note: ")], lines
    return lines[-1]


def edit(file: Path, change: Callable[[Any], Any]) -> None:
    """Change parsed JSON in a sealed folder, and seal it again."""
    content = json.loads(file.read_text("utf-8"))
    changed = change(content)
    file.write_text(json.dumps(content if changed is None else changed), "utf-8")
    seal(file.parent)


def put(path: str, value: Any) -> Callable[[Any], None]:
    """A change of one field."""

    def change(content: Any) -> None:
        *before, last = path.split("/")
        for key in before:
            content = content[int(key) if isinstance(content, list) else key]
        content[int(last) if isinstance(content, list) else last] = value

    return change


VALUES: tuple[Any, ...] = (None, -1, 2**63, 1e308, [], True, "../x", [[1]], {"a": [None]}, "\x1b")
"""What a field is replaced by, one after the other; some fields may have some of them."""

FIELDS = {
    "frozen": ("dataset/model/n_layers", "dataset/vectors", "classes", "threshold", "split/folds"),
    "tuned": ("models", "tokens/max_length", "thresholds"),
    "probe": ("views", "view_scores/0/score"),
}

USES = {
    "frozen": (["info", "frozen"], ["compare", "frozen"], ["predict", "frozen", "data"]),
    "tuned": (["info", "tuned"], ["predict", "tuned", "--text", "a bus"]),
    "probe": (["info", "probe"],),
}


@pytest.mark.parametrize(
    ("kind", "field"), [(k, f) for k, fields in FIELDS.items() for f in fields]
)
def test_a_field_of_run_json(here: Path, kind: str, field: str) -> None:
    """What is not refused by its name is a value that every command can do with."""
    file = here / kind / "run.json"
    original, refusals = file.read_bytes(), list[str]()
    for value in VALUES:
        edit(file, put(field, value))
        try:
            read_run(here / kind)
        except DamagedError as error:
            refusals.append(str(error))
        else:
            for use in USES[kind]:
                done = command(*use, cwd=here)  # raises what would be a traceback
                assert done.returncode in (0, 2, 4, 5), done
        file.write_bytes(original)
    assert len(refusals) >= 3
    assert all(f"{kind}/run.json is damaged: " in message for message in refusals)


CHECKPOINTS: list[tuple[str, dict[str, Any] | str, str]] = [
    ("config.json", {"vocab_size": "x"}, "vocab_size"),
    ("config.json", '{"a":' + 100_000 * "[" + 100_000 * "]" + "}", "config.json"),
    ("tokenizer.json", '{"model": 3}', "tokenizer.json"),
    ("tokenizer_config.json", {"model_max_length": "x"}, "tokenizer"),
]


@pytest.mark.parametrize(("file", "content", "message"), CHECKPOINTS)
def test_a_file_of_a_checkpoint(
    tmp_path: Path, file: str, content: dict[str, Any] | str, message: str
) -> None:
    copy = Path(shutil.copytree(tiny_model(), tmp_path / "m"))
    if isinstance(content, dict):
        content = json.dumps(json.loads((copy / file).read_text("utf-8")) | content)
    (copy / file).write_text(content, "utf-8")
    for use in (["info", "m"], ["tokenize", "a bus", "--model", "m"]):
        assert re.search(message, refused(*use, cwd=tmp_path))


@pytest.mark.parametrize("damage", ["not a number", "swapped", "missing"])
def test_a_column_of_predictions(here: Path, damage: str) -> None:
    file = here / "frozen" / "predictions.parquet"
    table = pq.read_table(file)
    *names, first, last = table.column_names
    if damage == "not a number":
        table = table.drop_columns([last]).append_column(last, pa.array([np.nan] * len(table)))
    else:
        table = table.select([*names, first] if damage == "missing" else [*names, last, first])
    pq.write_table(table, file)
    seal(file.parent)
    line = refused("compare", "frozen", cwd=here)
    assert re.search(r"frozen/predictions\.parquet is damaged: .*proba", line)
