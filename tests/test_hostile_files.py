"""A file that was edited, or that another wrote, is one line that names it; never a traceback.

Checksums do not tell such a file: who writes one can seal it too.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedkit
from embedkit.checksums import seal
from embedkit.encoding.encoder import Encoder
from embedkit.errors import DamagedError
from embedkit.runs.folder import read_run
from tests.processes import Done, command
from tests.store_fixtures import load_quickly, tiny_model, write_tsv

WORDS = ["the", "movie", "was", "good", "bad", "bus", "home", "rain", "a", "i"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A dataset with an index and a split, and a run of each kind."""
    folder = tmp_path_factory.mktemp("hostile")
    random = np.random.default_rng(0)
    rows = [(str(i), " ".join(random.choice(WORDS, 5)), str(i % 2)) for i in range(60)]
    data, model = folder / "data", str(tiny_model())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encoder, "load", load_quickly)
        corpus = write_tsv(folder / "c.tsv", rows)
        embedkit.extract(corpus, out=data, model=model)
        embedkit.train(data, out=folder / "frozen", estimator="logreg", folds=2)
        embedkit.train(data, out=folder / "boosted", estimator="lightgbm", folds=2)
        embedkit.probe(data, out=folder / "probe", folds=2)
        options = embedkit.TrainingOptions(epochs=1, validation=0)
        embedkit.finetune(corpus, out=folder / "tuned", training=options, folds=2, model=model)
        embedkit.build_index(data, kind="flat", metric="cosine")
        yield folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Encoder, "load", load_quickly)
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


def refusal(read: Callable[[], object]) -> str:
    """The message of a file that is refused; empty if it is read."""
    try:
        read()
    except DamagedError as error:
        return str(error)
    return ""


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


VALUES: tuple[Any, ...] = (
    None, -1, 2**63, 1e308, "x", [], {}, True, "../../x", [[1]], {"a": [None]}, ["x"], "a\nb\x1b",
)  # fmt: skip
"""What a field is replaced by, one after the other; some fields may have some of them."""

FIELDS = {
    "frozen": (
        "dataset", "dataset/model", "dataset/model/n_layers", "dataset/model/sha256",
        "dataset/names", "dataset/names/inputs", "dataset/vectors", "dataset/vectors/views",
        "dataset/vectors/max_length", "dataset/vectors/on_long", "dataset/vectors/stride",
        "dataset/storage", "dataset/unicode", "classes", "threshold", "views", "scores",
        "scores/cross_validation", "scores/cross_validation/accuracy", "per_class",
        "per_class/cross_validation/0/label", "split", "split/folds", "split/source", "task",
        "choices", "choices/0/scaling", "cost", "records", "features", "versions", "test_set",
    ),
    "tuned": ("models", "models/0", "tokens", "tokens/max_length", "tokens/on_long", "classes",
              "thresholds", "epochs", "precision", "head", "truncated", "calibration"),
    "probe": ("metric", "views", "views/0/score", "nested", "cka", "majority", "random_weights"),
}  # fmt: skip

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
    original, refusals = file.read_bytes(), 0
    for value in VALUES:
        edit(file, put(field, value))
        if message := refusal(lambda: read_run(here / kind)):
            refusals += 1
            assert f"{kind}/run.json is damaged: " in message
        else:
            for use in USES[kind]:
                done = command(*use, cwd=here)  # raises what would be a traceback
                assert done.returncode in (0, 2, 4, 5), done
        file.write_bytes(original)
    assert refusals >= 3
