"""The lines that ``info`` prints open the dataset in every tool, with the same numbers."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import embedkit
from embedkit.dataset.format import read_manifest
from embedkit.dataset.info import open_lines
from tests.models import slow
from tests.processes import completed
from tests.store_fixtures import N_ACCEPTED, run, write_tsv

NAME = 'it\'s "so" [1] *?{x}'
TAKE = {
    "pandas": "ids, texts, X = df['id'], df['text'], np.stack(df['mean_2'])",
    "polars": "ids, texts, X = df['id'], df['text'], df['mean_2'].to_numpy()",
    "duckdb": "df = df.df(); ids, texts, X = df['id'], df['text'], np.stack(df['mean_2'])",
    "datasets": "ids, texts, X = ds['id'], ds['text'], np.array(ds['mean_2'])",
    "embedkit": "ids, texts = data.ids, data.text",
}
STREAMED = f"import embedkit; data = embedkit.load({NAME!r}, view='mean_2')"
STREAMS = {
    "polars": "import polars as pl; df = pl.DataFrame(data)",
    "pandas": "import pyarrow as pa; df = pa.table(data).to_pandas()",
    "duckdb": "import duckdb; df = duckdb.sql('FROM data')",
}


@pytest.fixture(scope="module", params=["float16", *slow("float32", "compact")])
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
    }
    for tool, line in STREAMS.items():
        codes[f"Arrow to {tool}"] = f"{STREAMED}\n{line}\n{TAKE[tool]}"
    copy = made.parent / "DATASET"  # load_dataset takes signs such as [1] for a pattern
    shutil.copytree(made, copy)
    card = (copy / "README.md").read_text("utf-8").partition("```python\n")[2].partition("```")[0]
    sizes = f"assert len(df) == len(X) == len(ds) == len(data) == {N_ACCEPTED}"
    codes["the card"] = f"{card}\n{sizes}\nids = texts = ()"
    caches = dict.fromkeys(("HF_DATASETS_CACHE", "HF_HOME"), str(made.parent / "cache"))
    typed = sys.executable, "-c", OPEN
    done = completed(*typed, cwd=made.parent, stdin=json.dumps(codes), **caches)
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.mark.parametrize("tool", [*TAKE, *map("Arrow to {}".format, STREAMS)])
def test_the_printed_line_opens_it(made: Path, opened: dict[str, Any], tool: str) -> None:
    ids, texts, X = opened[tool]
    data = embedkit.load(made, view="mean_2")
    np.testing.assert_array_equal(np.array(X, np.float32), data.X)
    assert len(X) == N_ACCEPTED
    if ids:
        assert ids == data.ids.tolist()
        assert texts == data.text


def test_views_and_words_are_streams_of_arrow(made: Path) -> None:
    both = embedkit.load(made, view=["cls_2", "mean_2"])
    table = pa.table(both)
    assert table.schema.names == [*both.columns, "cls_2", "mean_2"]
    width = both.width // 2
    for number, name in enumerate(both.views):
        assert table.schema.field(name).type.list_size == width
        vectors = np.stack(table[name].to_numpy())
        np.testing.assert_array_equal(vectors, both.X[:, number * width : (number + 1) * width])
    tokens = embedkit.load(made, level="token")
    assert pa.table(tokens)["token"].to_pylist() == tokens.text


def test_lines_of_the_card_open_the_folder(made: Path, opened: dict[str, Any]) -> None:
    card = (made / "README.md").read_text("utf-8")
    assert len(opened["the card"][2]) == N_ACCEPTED
    assert "tokens/*.parquet" in card
    assert "words/*.parquet" not in card
    assert f"{N_ACCEPTED} embedded" in card


def test_a_licence_in_the_card_is_no_damage(made: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    sums = (copy / "SHA256SUMS").read_text("utf-8")
    assert "  README.md\n" in sums
    card = copy / "README.md"
    card.write_text(card.read_text("utf-8").replace("# license: ", "license: mit # "), "utf-8")
    assert embedkit.verify(copy).ok
    card.unlink()
    assert "README.md is missing" in embedkit.verify(copy).problems[0]
