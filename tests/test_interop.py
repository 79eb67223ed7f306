"""The lines that ``info`` prints open the dataset in every tool, with the same numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedkit
from embedkit.dataset.inspection import open_lines
from embedkit.dataset.store import read_manifest
from embedkit.encoding.encoder import Encoder
from tests.store_fixtures import N_ACCEPTED, load_quickly, run, write_tsv

TAKE = {
    "pandas": "ids, texts, X = df['id'], df['text'], np.stack(df['mean_2'])",
    "polars": "ids, texts, X = df['id'], df['text'], df['mean_2'].to_numpy()",
    "duckdb": "df = df.df(); ids, texts, X = df['id'], df['text'], np.stack(df['mean_2'])",
    "datasets": "ids, texts, X = ds['id'], ds['text'], np.array(ds['mean_2'])",
    "numpy": "ids, texts = '', ''",
    "embedkit": "ids, texts = data.ids, data.text",
}


@pytest.fixture(scope="module", params=["float32", "float16", "compact"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a folder 한글")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encoder, "load", load_quickly)
        corpus = write_tsv(folder / "corpus.tsv")
        return run(
            corpus, folder / "out's", storage=request.param, poolings=["cls", "mean"], tokens=True
        ).out


def _opened(code: str, folder: Path) -> Any:
    """Run the line in a fresh Python, since some of these libraries warn when they are imported."""
    script = code + (
        "\nimport json\nX = np.asarray(X)\n"
        "print(json.dumps([list(map(str, ids)), list(map(str, texts)), X.astype(float).tolist()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache"),
             "HF_HOME": str(folder / "hf")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("tool", list(TAKE))
def test_the_printed_line_opens_it(made: Path, tmp_path: Path, tool: str) -> None:
    manifest = read_manifest(made)
    if tool == "datasets" and manifest.job["storage"]["profile"] == "float16":
        pytest.skip("promised for pandas, polars and duckdb")
    line = open_lines(made, manifest)[tool]
    code = line + "\nimport numpy as np\n" + TAKE[tool]
    ids, texts, X = _opened(code, tmp_path)
    data = embedkit.load(made, view="mean_2")
    np.testing.assert_array_equal(np.array(X, np.float32), data.X)
    assert len(X) == N_ACCEPTED
    if ids:
        assert ids == data.ids.tolist()
        assert texts == data.text


def test_every_tool_is_told(made: Path) -> None:
    assert list(open_lines(made, read_manifest(made))) == list(TAKE)
