"""The lines that ``info`` prints open the dataset in every tool, with the same numbers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedkit
from embedkit.dataset.format import read_manifest
from embedkit.dataset.info import open_lines
from tests.processes import program
from tests.store_fixtures import N_ACCEPTED, run, write_tsv

TAKE = {
    "pandas": "ids, texts, X = df['id'], df['text'], np.stack(df['mean_2'])",
    "polars": "ids, texts, X = df['id'], df['text'], df['mean_2'].to_numpy()",
    "duckdb": "df = df.df(); ids, texts, X = df['id'], df['text'], np.stack(df['mean_2'])",
    "datasets": "ids, texts, X = ds['id'], ds['text'], np.array(ds['mean_2'])",
    "numpy": "ids, texts = '', ''",
    "embedkit": "ids, texts = data.ids, data.text",
}
NAME = 'it\'s "so" [1] *?{x}'
UNPROMISED = {("datasets", "float16")}


@pytest.fixture(scope="module", params=["float32", "float16", "compact"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a folder 한글") / request.param
    folder.mkdir()
    corpus = write_tsv(folder / "corpus.tsv")
    return run(
        corpus, folder / NAME, storage=request.param, pooling=["cls", "mean"], tokens=True
    ).out


OPEN = """
import json, sys
import numpy as np
opened = {}
for tool, code in json.load(sys.stdin).items():
    names = {"np": np}
    exec(code, names)
    ids, texts, X = ([*map(str, names["ids"])], [*map(str, names["texts"])], names["X"])
    opened[tool] = ids, texts, np.asarray(X).astype(float).tolist()
print(json.dumps(opened))
"""


@pytest.fixture(scope="module")
def opened(made: Path) -> dict[str, Any]:
    """What each tool reads, in a fresh Python: some of them warn when they are imported."""
    codes = {
        tool: f"{line}\n{TAKE[tool]}"
        for tool, line in open_lines(made, read_manifest(made)).items()
        if (tool, made.parent.name) not in UNPROMISED
    }
    caches = dict.fromkeys(("HF_DATASETS_CACHE", "HF_HOME"), str(made.parent / "cache"))
    typed = sys.executable, "-c", OPEN
    done = program(*typed, cwd=made.parent, stdin=json.dumps(codes), **caches)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.mark.parametrize("tool", list(TAKE))
def test_the_printed_line_opens_it(made: Path, opened: dict[str, Any], tool: str) -> None:
    if tool not in opened:
        pytest.skip("promised for pandas, polars and duckdb")
    ids, texts, X = opened[tool]
    data = embedkit.load(made, view="mean_2")
    np.testing.assert_array_equal(np.array(X, np.float32), data.X)
    assert len(X) == N_ACCEPTED
    if ids:
        assert ids == data.ids.tolist()
        assert texts == data.text
