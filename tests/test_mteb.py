"""The model that MTEB takes, on the mock tasks that MTEB tests models with; nothing is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedkit.encoding.encoder import Encoder
from embedkit.errors import UsageError
from tests.store_fixtures import tiny_model

mteb = pytest.importorskip("mteb")

from mteb.mocks import mock_tasks  # noqa: E402
from mteb.models.models_protocols import EncoderProtocol  # noqa: E402

from embedkit.mteb import Model, by_layer, draw  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of MTEB itself, whose mock tasks are tiny

KINDS = (
    "Classification STS PairClassification MultilingualClusteringFast BitextMining Retrieval "
    "Reranking Summarization"
)
QUIET: dict[str, Any] = {"cache": None, "co2_tracker": False, "show_progress_bar": False}


def tasks(*kinds: str) -> list[Any]:
    return [getattr(mock_tasks, f"Mock{kind}Task")() for kind in kinds]


def test_it_passes_the_checks_of_mteb() -> None:
    """Of the protocol, and an evaluation of every kind of task of texts."""
    model = Model(Encoder(str(tiny_model())), view="mean_1")
    assert isinstance(model, EncoderProtocol)
    assert model.mteb_model_meta.name.count("/") == 1
    for task in tasks(*KINDS.split()):
        result = mteb.evaluate(model, task, **QUIET)
        assert np.isfinite(result.task_results[0].get_score()), task.metadata.name


def test_all_layers_by_one_pass_are_what_each_is_alone(calls_of: Any) -> None:
    encoder = Encoder(str(tiny_model()))
    calls = calls_of(encoder, "encode_views")
    for kind in ("STS", "Classification"):
        calls.clear()
        frame = by_layer(tasks(kind), encoder)
        given = [(call.settings["prefix"], text) for call in calls for text in call.arguments[0]]
        assert list(frame.columns) == ["mean_0", "mean_1", "mean_2"]
        assert len(set(given)) == len(given) > 0
        for view in frame.columns:
            (task,) = tasks(kind)
            alone = mteb.evaluate(Model(encoder, view=view), task, **QUIET)
            assert frame.loc[task.metadata.name, view] == alone.task_results[0].get_score()


def test_similarities_of_pairs_are_the_diagonal_of_all() -> None:
    model = Model(Encoder(str(tiny_model())))
    a, b = np.random.default_rng(0).normal(size=(2, 5, 16)).astype(np.float32)
    every = model.similarity(a, b).numpy()
    assert model.similarity_pairwise(a, b).numpy() == pytest.approx(np.diag(every), rel=1e-5)


def test_a_table_is_drawn(tmp_path: Path) -> None:
    frame = by_layer(tasks("STS"), str(tiny_model()), views=["cls_0", "mean_-1"])
    draw(frame, tmp_path / "layers.svg")
    svg = (tmp_path / "layers.svg").read_text("utf-8")
    assert "mean_2" in svg
    with pytest.raises(UsageError, match="file='jpg': expected pdf, svg, png"):
        draw(frame, tmp_path / "layers.jpg")
    assert f">{frame.index[0]}<" in svg
    with pytest.raises(UsageError, match="mean_7"):
        by_layer(tasks("STS"), str(tiny_model()), views=["mean_7"])
