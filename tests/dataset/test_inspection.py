"""What ``info`` tells, against numbers worked out by hand."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import (
    AlbertForSequenceClassification,
    BertForSequenceClassification,
    RobertaForSequenceClassification,
)

import embedkit
from embedkit.dataset.info import describe_dataset
from embedkit.encoding.model import describe_model
from tests.models import Tiny, state
from tests.processes import command
from tests.store_fixtures import N_ACCEPTED, tiny_model

pytestmark = pytest.mark.usefixtures("quick")


def test_dataset(made: Path) -> None:
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


def test_checkpoint() -> None:
    info = describe_model(str(tiny_model()))
    assert (info.model_type, info.n_layers, info.width, info.positions) == ("bert", 2, 16, 24)
    assert (info.source, info.architecture, info.labels) == ("folder", "BertModel", ())
    assert info.has_pooler
    bare = describe_model(str(tiny_model(pooler=False)))
    assert not bare.has_pooler
    assert bare.missing == ("pooler.dense.bias", "pooler.dense.weight")
    assert info.encoder_parameters == bare.encoder_parameters + 16 * 16 + 16


FAMILIES = {
    "bert": BertForSequenceClassification,
    "roberta": RobertaForSequenceClassification,
    "albert": AlbertForSequenceClassification,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_classifier_is_shown_with_its_head(tiny: Tiny, tmp_path: Path, family: str) -> None:
    model = FAMILIES[family].from_pretrained(tiny(family), num_labels=3)
    model.save_pretrained(tmp_path / "m")
    own = shutil.ignore_patterns("config.json", "model.safetensors")
    shutil.copytree(tiny(family), tmp_path / "m", dirs_exist_ok=True, ignore=own)
    info = describe_model(str(tmp_path / "m"))
    assert info.architecture == type(model).__name__
    assert info.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert info.parameters == sum(p.numel() for p in model.parameters())
    assert info.missing == info.unused == ()
    assert info.modules == str(model)


def test_weights_that_are_missing_and_unused_are_named(tiny: Tiny, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny("bert"), tmp_path / "m"))
    state(folder / "config.json", architectures=["BertForSequenceClassification"])
    info = describe_model(str(folder))
    assert info.missing == ("classifier.bias", "classifier.weight")
    model = BertForSequenceClassification.from_pretrained(tiny("bert"), num_labels=5)
    model.save_pretrained(folder)
    state(folder / "config.json", architectures=["BertModel"])
    assert describe_model(str(folder)).unused == ("classifier.bias", "classifier.weight")
    assert "unused     2 weights" in command("info", folder, cwd=tmp_path).stdout
