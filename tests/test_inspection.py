"""What ``info`` tells, against numbers worked out by hand."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import (
    AlbertForSequenceClassification,
    BertForSequenceClassification,
    RobertaForSequenceClassification,
)

import embedkit
from embedkit.dataset.inspection import (
    _health,
    describe_dataset,
    open_lines,
)
from embedkit.dataset.store import read_manifest
from embedkit.encoding import architecture, model
from embedkit.encoding.architecture import describe_model
from embedkit.errors import DamagedError, UsageError
from tests.processes import command
from tests.store_fixtures import (
    N_ACCEPTED,
    quick,  # noqa: F401 - a fixture
    run,
    tiny_model,
    write_tsv,
)

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    corpus = write_tsv(folder / "corpus.tsv")
    return run(corpus, folder / "out", words="mean", tokens=True, pooling=["cls", "mean"]).out


def test_dataset(made: Path) -> None:
    info = describe_dataset(made)
    assert [t[:3] for t in info.tables] == [
        ("sentences", 4, N_ACCEPTED), ("words", 4, info.tables[1][2]), ("tokens", 4, 91),
    ]  # fmt: skip
    for folder, _, _, size in info.tables:
        assert size == sum(p.stat().st_size for p in (made / folder).iterdir())
    assert info.health_rows == N_ACCEPTED
    assert info.duplicate_texts == 1
    assert [h.name for h in info.health] == ["cls_2", "mean_2"]
    X = embedkit.load(made, view="mean_2").X.astype(np.float64)
    norms = np.linalg.norm(X, axis=1)
    unit = X / norms[:, None]
    cosines = (unit @ unit.T)[~np.eye(len(X), dtype=bool)]
    health = info.health[1]
    assert (health.norm_mean, health.norm_min, health.norm_max) == pytest.approx(
        (norms.mean(), norms.min(), norms.max())
    )
    assert health.anisotropy == pytest.approx(cosines.mean())
    assert (health.zeros, health.not_finite, health.width) == (0, 0, 16)


def test_health_of_sick_vectors() -> None:
    vectors = np.array([[3, 4], [0, 0], [np.nan, 1], [-3, -4], [np.inf, 0]], np.float32)
    health = _health("v", 2, vectors)
    assert (health.zeros, health.not_finite) == (1, 2)
    assert (health.norm_min, health.norm_max) == (0, 5)
    assert health.anisotropy == pytest.approx(-1)
    empty = _health("v", 2, vectors[:0])
    assert np.isnan([empty.norm_mean, empty.anisotropy]).all()


def test_a_dataset_without_rows_or_texts(tmp_path: Path) -> None:
    empty = describe_dataset(run(write_tsv(tmp_path / "c.tsv", []), tmp_path / "out").out)
    assert empty.health_rows == 0
    assert empty.duplicate_texts == 0
    bare = run(write_tsv(tmp_path / "d.tsv"), tmp_path / "bare", store_text=False).out
    assert describe_dataset(bare).duplicate_texts == 1


def test_checkpoint() -> None:
    info = describe_model(str(tiny_model()))
    assert (info.model_type, info.n_layers, info.width, info.positions) == ("bert", 2, 16, 24)
    assert (info.source, info.architecture, info.labels) == ("folder", "BertModel", ())
    assert info.has_pooler
    embeddings = (info.vocabulary + 24 + 2) * 16 + 32
    layer = 4 * (16 * 16 + 16) + 2 * 16 * 24 + 24 + 16 + 4 * 16
    pooler = 16 * 16 + 16
    assert info.parameters == info.encoder_parameters == embeddings + 2 * layer + pooler
    top = {module.name: module.parameters for module in info.modules if module.depth == 0}
    assert top == {"embeddings": embeddings, "encoder": 2 * layer, "pooler": pooler}
    assert info.missing == info.unused == ()
    bare = describe_model(str(tiny_model(pooler=False)))
    assert not bare.has_pooler
    assert bare.missing == ("pooler.dense.bias", "pooler.dense.weight")
    assert bare.encoder_parameters == embeddings + 2 * layer


FAMILIES = {"bert": BertForSequenceClassification, "roberta": RobertaForSequenceClassification,
            "albert": AlbertForSequenceClassification}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_classifier_is_shown_with_its_head(
    tiny: Callable[[str], Path], tmp_path: Path, family: str
) -> None:
    """The listed modules, repeated as often as they say, have the shapes of the real model."""
    model = FAMILIES[family].from_pretrained(tiny(family), num_labels=3)
    model.save_pretrained(tmp_path / "m")
    shutil.copytree(tiny(family), tmp_path / "m", dirs_exist_ok=True, ignore=lambda _, names: [
        name for name in names if name in ("config.json", "model.safetensors")])  # fmt: skip
    info = describe_model(str(tmp_path / "m"))
    assert info.architecture == type(model).__name__
    assert info.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert info.parameters == sum(p.numel() for p in model.parameters())
    assert info.missing == info.unused == ()
    listed: Counter[tuple[str, tuple[int, ...]]] = Counter()
    times = [1] * 20
    for module in info.modules:
        times[module.depth + 1] = times[module.depth] * module.count
        for name, shape in module.shapes.items():
            listed[name, shape] += times[module.depth + 1]
    real = Counter((n.rpartition(".")[2], tuple(p.shape)) for n, p in model.named_parameters())
    assert listed == real
    kinds = [module.kind for module in info.modules]
    layers = next(kind for kind in kinds if kind.endswith("Layer"))
    assert kinds.count(layers) == 1
    assert info.modules[-1].name in ("classifier", "out_proj")


def test_weights_that_are_missing_and_unused_are_named(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny("bert"), tmp_path / "m"))
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["BertForSequenceClassification"]
    (folder / "config.json").write_text(json.dumps(config))
    info = describe_model(str(folder))
    assert info.missing == ("classifier.bias", "classifier.weight")
    model = BertForSequenceClassification.from_pretrained(tiny("bert"), num_labels=5)
    model.save_pretrained(folder)
    config["architectures"] = ["BertModel"]
    (folder / "config.json").write_text(json.dumps(config))
    assert describe_model(str(folder)).unused == ("classifier.bias", "classifier.weight")
    config["architectures"] = ["SomethingOfItsOwn"]
    (folder / "config.json").write_text(json.dumps(config))
    assert describe_model(str(folder)).architecture == "BertModel"
    done = command("info", folder, cwd=tmp_path)
    assert "unused     2 weights: classifier.bias, classifier.weight" in done.stdout
    config["architectures"] = ["BertForSequenceClassification"]
    (folder / "config.json").write_text(json.dumps(config))
    assert "missing    2 weights" in command("info", folder, cwd=tmp_path).stdout  # 5 labels, not 2


def test_no_number_is_read(tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    devices: set[str] = set()
    loaded = model.load_module

    def noted(*given: Any, **settings: Any) -> Any:
        module, report = loaded(*given, **settings)
        devices.update(p.device.type for p in module.parameters())
        return module, report

    monkeypatch.setattr(architecture, "load_module", noted)
    describe_model(str(tiny("bert")))
    assert devices == {"meta"}


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_damage_is_told(made: Path, tmp_path: Path, damage: str) -> None:
    out = Path(shutil.copytree(made, tmp_path / "out"))
    part = out / "sentences/part-00002.parquet"
    content = part.read_bytes()
    part.unlink()
    if damage == "short":
        part.write_bytes(content[:300])
    with pytest.raises(DamagedError, match="embedkit verify"):
        describe_dataset(out)


def test_views_that_are_not_stored(made: Path) -> None:
    with pytest.raises(UsageError, match=r"has no view 'mean_0'; it has cls_2, mean_2"):
        embedkit.load(made, view="mean_0")
    with pytest.raises(UsageError, match="is not a view"):
        embedkit.load(made, view="average")
    assert embedkit.load(made, view="mean_-1").views == ("mean_2",)
    assert embedkit.load(made).views == ("mean_2",)
    assert repr(embedkit.load(made)).endswith("view=['mean_2'], X=(10, 16))")


@pytest.mark.parametrize("name", ["plain", "draft [1]", 'it\'s "so" *?{x}', "폴더 a"])
def test_printed_lines_run_whatever_the_name(made: Path, tmp_path: Path, name: str) -> None:
    out = Path(shutil.copytree(made, tmp_path / name))
    for tool, line in open_lines(out, read_manifest(out)).items():
        if tool == "datasets":
            continue  # takes seconds to import; it and DuckDB are given the same pattern
        found: dict[str, Any] = {}
        exec(line, found)
        assert len(found["X"] if "X" in found else found["df"]) == N_ACCEPTED, tool


def test_columns_that_are_not_stored(tmp_path: Path) -> None:
    corpus = tmp_path / "c.tsv"
    corpus.write_text("document\ngood\nbad\n")
    data = embedkit.load(run(corpus, tmp_path / "out", store_text=False).out)
    with pytest.raises(UsageError, match=r"no column 'label'; it has row, id, n_tokens"):
        _ = data.y
    with pytest.raises(UsageError, match="no column 'text'"):
        _ = data.text
    assert data.ids.tolist() == ["0", "1"]
    assert len(data) == 2
