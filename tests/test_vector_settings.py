"""New texts are encoded as those of a dataset were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedkit
from embedkit.dataset.settings import encode_as
from embedkit.errors import MismatchError
from embedkit.runs.folder import dataset_content
from tests.store_fixtures import run, tiny_model, write_tsv

pytestmark = pytest.mark.usefixtures("quick")

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
            "pooling": ["max", "mean"],
        },
    ],
    ids=str,
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
    with pytest.raises(TypeError, match="list"):
        encode_as(data.manifest, data.views)("the movie")
    with pytest.raises(MismatchError, match=r"this.*safetensors"):
        encode_as(data.manifest, data.views, owner="this", model=str(tiny_model(seed=2)))
