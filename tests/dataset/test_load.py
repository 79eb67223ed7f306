"""Datasets are read: numbers, levels, batches; new texts encoded as the stored ones were."""

from __future__ import annotations

import ast
import sys
from contextlib import chdir
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embedkit
from embedkit.dataset.encoders import encode_as
from embedkit.dataset.info import describe_dataset
from embedkit.dataset.read import VectorData
from embedkit.errors import MismatchError, ModelError, UsageError
from embedkit.runs.folder import dataset_content
from tests.processes import ROOT, completed
from tests.store_fixtures import N_ACCEPTED, run, tiny_model, write_tsv


def test_what_info_tells_is_what_is_worked_out_by_hand(made: Path) -> None:
    info = describe_dataset(made)
    assert [t[:3] for t in info.tables] == [
        ("sentences", 4, N_ACCEPTED),
        ("words", 4, info.tables[1][2]),
        ("tokens", 4, 91),
    ]
    for folder, _, _, size in info.tables:
        assert size == sum(p.stat().st_size for p in (made / folder).iterdir())
    assert info.health_rows == N_ACCEPTED
    assert info.duplicate_texts == 1
    health = {view.name: view for view in info.health}
    assert health.keys() == set(embedkit.load(made).manifest.views)
    X = embedkit.load(made, view="mean_2").X.astype(np.float64)
    norms = np.linalg.norm(X, axis=1)
    unit = X / norms[:, None]
    cosines = (unit @ unit.T)[~np.eye(len(X), dtype=bool)]
    found = health["mean_2"]
    assert (found.norm_mean, found.norm_min, found.norm_max) == pytest.approx(
        (norms.mean(), norms.min(), norms.max())
    )
    assert found.anisotropy == pytest.approx(cosines.mean())
    assert (found.zeros, found.width) == (0, 16)


# levels


@pytest.mark.parametrize(("level", "table"), [("word", "words"), ("token", "tokens")])
def test_a_level_is_its_table(made: Path, level: Any, table: str) -> None:
    with chdir(made.parent):  # it is read from elsewhere
        data = embedkit.load(made.name, "2", level=level)
    frame = pd.concat(map(pd.read_parquet, sorted((made / table).iterdir())))
    assert len(data) == len(frame) > N_ACCEPTED
    assert np.array_equal(data.X, np.stack(frame["layer_2"].tolist()))
    assert data.row.tolist() == frame["row"].tolist()
    assert data.text == frame["text" if level == "word" else "token"].tolist()
    for name in ("start", "end", "word"):
        assert getattr(data, name).tolist() == frame[name].tolist()
    sentences = pd.read_parquet(made / "sentences").set_index("row")
    assert data.labels.tolist() == sentences.loc[data.row, "label"].tolist()
    assert data.ids.tolist() == sentences.loc[data.row, "id"].tolist()
    assert repr(data).endswith(f"view=['layer_2'], level='{level}', X={data.X.shape})")


@pytest.mark.parametrize(
    ("view", "found"),
    [
        (None, ("layer_sum_1to2",)),
        ("2", ("layer_2",)),
        ("-1", ("layer_2",)),
        ("layer_1", ("layer_1",)),
        ("sum:1..2", ("layer_sum_1to2",)),
        (["1", "sum:-2..-1"], ("layer_1", "layer_sum_1to2")),
    ],
)
def test_views_of_words(made: Path, view: Any, found: tuple[str, ...]) -> None:
    data = embedkit.load(made, view, level="word")
    assert data.views == found
    assert data.X.shape == (len(data), 16 * len(found))


def test_what_is_not_stored(made: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="layer_1, layer_2"):
        embedkit.load(made, "0", level="word")
    with pytest.raises(UsageError, match="level"):
        embedkit.load(made, level="words")  # type: ignore[arg-type]
    bare = run(write_tsv(tmp_path / "c.tsv"), tmp_path / "out", words="mean").out
    with pytest.raises(UsageError, match="tokens=True"):
        embedkit.load(bare, level="token")


@pytest.mark.parametrize("level", ["sentence", "word", "token"])
def test_a_frame_has_all_columns(made: Path, level: Any) -> None:
    view = ["mean_1", "cls_2"] if level == "sentence" else ["1", "2"]
    data = embedkit.load(made, view, level=level)
    frame = data.to_pandas()
    assert list(frame) == [*data.columns, *data.views]
    stacked = np.concatenate([np.stack(frame[name].tolist()) for name in data.views], axis=1)
    assert np.array_equal(stacked, data.X)
    assert frame["row"].tolist() == data.row.tolist()


# batches


def rows_of(data: VectorData, **options: Any) -> list[int]:
    return [int(row) for batch in data.iter_batches(**options) for row in batch["row"]]


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 5), st.none() | st.integers(0, 99), st.booleans())
def test_workers_share_the_rows(
    made: Path, size: int, workers: int, seed: int | None, words: bool
) -> None:
    """Every row exactly once over all workers, each with its own vector, label and columns."""
    data = embedkit.load(made, level="word" if words else "sentence")
    name = "start" if words else "id"

    def records(*columns: Any) -> list[Any]:
        row, y, column, X = (list(values) for values in columns)
        return [*zip(row, y, map(str, column), map(tuple, X), strict=True)]

    found: list[Any] = []
    counts = []
    for worker in range(workers):
        shared = data.iter_batches(
            size, columns=[name], shuffle_seed=seed, worker=(worker, workers)
        )
        batches = list(shared)
        assert all(len(batch["X"]) == size for batch in batches[:-1])
        assert all(0 < len(batch["X"]) <= size for batch in batches)
        counts.append(sum(len(batch["X"]) for batch in batches))
        for batch in batches:
            found += records(batch["row"], batch["y"], batch[name], batch["X"])
    assert sorted(found) == sorted(records(data.row, data.y, data.column(name), data.X))
    assert max(counts) - min(counts) <= 1


def test_the_seed_decides_the_order(made: Path) -> None:
    data = embedkit.load(made)
    for worker in ((0, 1), (1, 3)):
        one, same, other = (rows_of(data, shuffle_seed=s, worker=worker) for s in (1, 1, 2))
        assert one == same != other
    assert rows_of(data) == data.row.tolist()
    thirds = [rows_of(data, worker=(i, 3)) for i in range(3)]
    assert [row for third in thirds for row in third] == data.row.tolist()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on a single core
@pytest.mark.parametrize("workers", [0, 2])
def test_the_example_for_pytorch_runs(made: Path, tmp_path: Path, workers: int) -> None:
    section = (ROOT / "docs/extract.md").read_text("utf-8").partition("of PyTorch")[2]
    code = section.split("```")[1].removeprefix("python").replace('"vectors"', repr(str(made)))
    script = tmp_path / "example.py"
    script.write_text(code.replace("num_workers=2", f"num_workers={workers}"))
    ran = completed(sys.executable, script, cwd=tmp_path)
    shapes = [ast.literal_eval(line[len("torch.Size") :]) for line in ran.stdout.splitlines()]
    assert sum(count for (count, _) in shapes) == len(embedkit.load(made))


# new texts


LONG = "it rained a a a rain rain rain good good bus home " * 6
WIDE = "여행 ｇｏｏｄ 영화 정말"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    texts = ["the movie was good", LONG, "배를 타고 여행을 간다.", WIDE, "a", "bad bus", LONG]
    rows = [(str(i), text, "0") for i, text in enumerate(texts)]
    return write_tsv(tmp_path / "c.tsv", rows)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"on_long": "window", "stride": 4},
        {"prefix": "good bus "},
        {"storage": "compact", "normalize": True},
        {"special_tokens": False, "max_length": 12},
        {
            "on_long": "window",
            "prefix": "a ",
            "normalize": True,
            "storage": "float16",
            "layers": "0,sum:1..2",
            "pooling": ["max", "mean", "cls", "pooler"],
        },
    ],
)
def test_a_dataset_is_encoded_again_to_its_stored_vectors(
    corpus: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    out = run(corpus, tmp_path / "out", **settings).out
    views = list(embedkit.load(out).manifest.views)
    data = embedkit.load(out, views)
    raw = [line.split("\t")[1] for line in corpus.read_text("utf-8").splitlines()[1:]]
    for made in (data.manifest, dataset_content(data)):
        found = encode_as(made, data.views)(raw)
        assert found.dtype == np.float32
        assert np.array_equal(found, data.X)


def test_pairs_are_encoded_again(tmp_path: Path) -> None:
    corpus = tmp_path / "c.tsv"
    corpus.write_text("a\tb\nthe movie\twas good\n배를\t타고\n" + f"bus\t{LONG}\n", "utf-8")
    data = embedkit.load(run(corpus, tmp_path / "out", text="a", text_pair="b").out)
    found = encode_as(data.manifest, data.views)(data.text, data.column("text_pair"))
    assert np.array_equal(found, data.X)


def test_wrong_use_is_refused(corpus: Path, tmp_path: Path) -> None:
    data = embedkit.load(run(corpus, tmp_path / "out").out)
    wrong: Any = (data.column, 3), (data.__getitem__, [[0], [1, 2]]), (data.iter_batches, 0)
    for method, argument in wrong:
        with pytest.raises(UsageError, match="expected"):
            method(argument)
    with pytest.raises(UsageError, match=r"^worker="):
        data.iter_batches(worker=(1,))  # type: ignore[arg-type]
    assert next(data.iter_batches(4))["row"].flags.writeable
    rows = [{"text": f"row {i}", "y": i, "v0": i} for i in range(6)]
    beside = embedkit.load(run(rows, tmp_path / "beside", keep=["y", "v0"]).out)
    with pytest.raises(UsageError, match=r"^columns='y': a batch has"):
        beside.iter_batches(columns=["y"])
    with pytest.raises(UsageError, match="column v0 has a name of the vectors"):
        beside.export(tmp_path / "e.csv", to="csv")
    with pytest.raises(MismatchError, match=r"this.*safetensors"):
        encode_as(data.manifest, data.views, owner="this", model=str(tiny_model(seed=2)))
    names = SimpleNamespace(model=str(tmp_path / "gone"), revision=None)
    made: Any = SimpleNamespace(vector_settings=data.manifest.vector_settings, names=names)
    with pytest.raises(ModelError, match=r"the checkpoint of this, .*gone: .* place with model="):
        encode_as(made, data.views, owner="this")
