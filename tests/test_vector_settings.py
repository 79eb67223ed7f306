"""New texts are encoded as those of a dataset were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedkit
from embedkit.dataset.vector_settings import VectorSettings, encode_as
from embedkit.encoding.encoder import Encoder
from embedkit.errors import MismatchError
from embedkit.runs.reencoding import dataset_content
from tests.store_fixtures import (
    quick,  # noqa: F401 - a fixture
    run,
    tiny_model,
    write_tsv,
)

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
        {"normalize": True},
        {"storage": "float16"},
        {"storage": "compact", "normalize": True},
        {"special_tokens": False, "max_length": 12},
        {"unicode": "nfkc"},
        {"on_long": "window", "prefix": "a ", "normalize": True, "storage": "float16",
         "layers": "0,sum:1..2", "pooling": ["max", "mean"]},
    ],
    ids=str,
)  # fmt: skip
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


def test_what_was_asked_otherwise_differs(corpus: Path, tmp_path: Path) -> None:
    """The equality above can fail: every setting that is tested shapes a vector."""
    plain = embedkit.load(run(corpus, tmp_path / "plain").out).X
    changes: list[dict[str, Any]] = [
        {"on_long": "window"}, {"prefix": "good bus "}, {"normalize": True},
        {"storage": "float16"}, {"special_tokens": False}, {"unicode": "nfkc"},
    ]  # fmt: skip
    for number, change in enumerate(changes):
        other = embedkit.load(run(corpus, tmp_path / str(number), **change).out).X
        assert not np.array_equal(other, plain), change


def test_many_texts_are_encoded_in_parts(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = embedkit.load(run(corpus, tmp_path / "out").out)
    encode = encode_as(data.manifest, data.views)
    monkeypatch.setattr("embedkit.dataset.vector_settings._TEXTS_AT_ONCE", 2)
    sizes = []
    genuine = Encoder.encode_shard

    def counted(self: Encoder, texts: Any, **kwargs: Any) -> Any:
        sizes.append(len(texts))
        return genuine(self, texts, **kwargs)

    monkeypatch.setattr(Encoder, "encode_shard", counted)
    assert np.array_equal(encode(data.text), data.X)
    assert sizes == [2, 2, 2, 1]
    assert encode([]).shape == (0, 16)


def test_wrong_use_is_refused(corpus: Path, tmp_path: Path) -> None:
    data = embedkit.load(run(corpus, tmp_path / "out").out)
    with pytest.raises(TypeError, match="a single string was given; expected a list of texts"):
        encode_as(data.manifest, data.views)("the movie")
    with pytest.raises(MismatchError, match=r"this was made with: .*safetensors differ"):
        encode_as(data.manifest, data.views, owner="this", model=str(tiny_model(seed=2)))


def test_differences_are_named(corpus: Path, tmp_path: Path) -> None:
    def settings(name: str, **changes: Any) -> VectorSettings:
        out = run(corpus, tmp_path / name, **changes).out
        return embedkit.load(out).manifest.vector_settings

    plain = settings("plain")
    assert plain.differences(settings("views", layers="all", pooling=["cls"], tokens=True)) == []
    other = settings("other", prefix="a ", normalize=True, storage="float16")
    assert plain.differences(other) == [
        "normalize is False, expected True", "prefix is '', expected 'a '",
        "storage is 'float32', expected 'float16'",
    ]  # fmt: skip
    trained = settings("trained", model=str(tiny_model(seed=2)))
    assert plain.differences(trained) == ["model.safetensors of the model differ"]
