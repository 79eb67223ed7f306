"""The sentence vector as a checkpoint defines it: sentence-transformers is the oracle."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st

import embedkit
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.encoder import Encoder
from embedkit.errors import ModelError, UsageError
from tests.encoding.test_other_families import build
from tests.models import SOME, Tiny, check_near, equals_its_makers, slow, state
from tests.processes import invoke

USUAL = {"unit": True, "prompts": {"query": "search: ", "document": "text: "}}
KINDS: dict[str, dict[str, Any]] = {
    "bge": {"family": "bert", "pooling": "cls", **USUAL},
    "e5": {"family": "xlm-roberta", "pooling": "mean", "default": "query", **USUAL},
    "dense": {"family": "bert", "pooling": "mean", "dense": [(40, torch.nn.Tanh(), True)]},
    "gemma": {
        "family": "embedding_gemma",
        "pooling": "mean",
        "dense": [(40, torch.nn.Identity(), False), (24, torch.nn.Identity(), False)],
        **USUAL,
    },
    "max": {"family": "electra", "pooling": "max"},
    "last": {"family": "bert", "pooling": "lasttoken", "prompts": {"own": "a: "}, "default": "own"},
    "modernbert": {"family": "modernbert", "pooling": "mean", **USUAL},
    "lower_case": {"family": "bert", "pooling": "cls", "lower": True},
}
LAST = ("qwen3", "mistral", "t5")
"""As Qwen3-Embedding: the last token, for some with padding on the left, and a prompt."""
INSTRUCTED = {"query": "Instruct: search\nQuery:", "document": ""}
KINDS |= {
    family: {"family": family, "pooling": "lasttoken", "unit": True, "prompts": INSTRUCTED}
    for family in LAST
}


def made(kind: str, tiny: Tiny, folder: Path) -> tuple[SentenceTransformer, SentenceTransformer]:
    """A checkpoint of a kind, as sentence-transformers saves it; its model, and in float64."""
    given = KINDS[kind]
    torch.manual_seed(3)
    plain = build(kind, folder.with_name("plain")) if kind in LAST else tiny(given["family"])
    transformer = st.Transformer(str(plain))
    width = transformer.get_embedding_dimension()
    steps: list[Any] = [transformer, st.Pooling(width, given["pooling"])]
    for size, activation, bias in given.get("dense", ()):
        steps.append(st.Dense(width, size, bias=bias, activation_function=activation))
        width = size
    steps += [st.Normalize()] if given.get("unit") else []
    model = SentenceTransformer(
        modules=steps,
        prompts=given.get("prompts"),
        default_prompt_name=given.get("default"),
        device="cpu",
    )
    model.save(str(folder))
    if given.get("lower"):
        state(folder / "sentence_bert_config.json", do_lower_case=True)
    theirs = SentenceTransformer(str(folder), device="cpu")
    return theirs, copy.deepcopy(theirs).double()


QUICK = ("bge", "dense", "gemma", "modernbert", "lower_case", *LAST)


@pytest.mark.parametrize("kind", [*QUICK, *slow(*sorted(KINDS.keys() - {*QUICK}))])
def test_vectors_are_those_of_sentence_transformers(
    kind: str, tiny: Tiny, tmp_path: Path, notes: list[str]
) -> None:
    makers = made(kind, tiny, tmp_path / "model")
    encoder = Encoder(tmp_path / "model", device="cpu")
    wanted = [model.encode(SOME) for model in makers]
    check_near(encoder.encode(SOME), *wanted)
    check_near(encoder.encode(SOME[3]), wanted[0][3], wanted[1][3])
    stored = embedkit.extract(SOME, out=tmp_path / "out", model=str(tmp_path / "model"))
    check_near(embedkit.load(stored.out).X, *wanted)
    (view,) = stored.manifest.job.vectors.views
    assert (view == "sentence") == ("dense" in KINDS[kind])
    assert sum("defines them" in note for note in notes) == 1
    lower_cased = [note for note in notes if "sentence_bert_config.json" in note]
    assert bool(lower_cased) == ("lower" in KINDS[kind])
    for name in KINDS[kind].get("prompts", ()):
        ours = encoder.encode(SOME, prompt_name=name)
        check_near(ours, *(model.encode(SOME, prompt_name=name) for model in makers))
        out = tmp_path / name
        embedkit.extract(SOME, out=out, model=str(tmp_path / "model"), prompt=name)
        assert np.array_equal(embedkit.load(out).X, ours)
    with pytest.raises(UsageError, match="prompt='q'"):
        encoder.encode(SOME, prompt_name="q")
    for name in ("encode_query", "encode_document"):
        ours = getattr(encoder, name)(SOME)
        check_near(ours, *(getattr(model, name)(SOME) for model in makers))
        given = getattr(encoder, name)(SOME, prefix="of: ")
        assert np.array_equal(given, encoder.encode(SOME, prefix="of: "))


def test_options_override_the_definition(tiny: Tiny, tmp_path: Path) -> None:
    made("e5", tiny, tmp_path / "model")
    given: dict[str, Any] = {"model": str(tmp_path / "model"), "prefix": ""}
    encoder, plain = Encoder(tmp_path / "model"), Encoder(tiny("xlm-roberta"))
    assert encoder.encode(SOME, pooling="max", prefix="") == pytest.approx(
        plain.encode(SOME, pooling="max"), abs=1e-5
    )
    for options in ({"pooling": "mean"}, {"layers": "0,-1"}, {"normalize": False}):
        out = tmp_path / min(options)
        embedkit.extract(SOME, out=out, **given, **options)
        assert pytest.approx(plain.encode(SOME), abs=1e-5) == embedkit.load(out, "mean_-1").X
    corpus, own = tmp_path / "c.json", ("--model", tmp_path / "model", "--no-normalize")
    corpus.write_text(json.dumps([{"text": text} for text in SOME]))
    assert invoke("extract", corpus, "--out", out, "--overwrite", "--prefix", "", *own).output
    assert pytest.approx(plain.encode(SOME), abs=1e-5) == embedkit.load(out, "mean_-1").X
    with pytest.raises(UsageError, match="prompt='query'"):
        embedkit.extract(SOME, out=tmp_path / "x", **given, prompt="query")


def test_earlier_names_of_poolings(tiny: Tiny, tmp_path: Path) -> None:
    made("bge", tiny, tmp_path / "model")
    legacy = {"word_embedding_dimension": 24, "pooling_mode_cls_token": True}
    legacy["pooling_mode_mean_tokens"] = False
    (tmp_path / "model/1_Pooling/config.json").write_text(json.dumps(legacy))
    modules = tmp_path / "model/modules.json"
    kinds = json.loads(modules.read_text())
    for kind in kinds:
        kind["type"] = f"sentence_transformers.models.{kind['type'].rpartition('.')[2]}"
    modules.write_text(json.dumps(kinds))
    equals_its_makers(tmp_path / "model")


def test_damaged_weights_of_a_module(tiny: Tiny, tmp_path: Path) -> None:
    made("dense", tiny, tmp_path / "model")
    # a module is hashed under whatever name modules.json has for its folder
    modules = tmp_path / "model/modules.json"
    modules.write_text(modules.read_text().replace("2_Dense", "Projection"))
    (tmp_path / "model/2_Dense").rename(modules.with_name("Projection"))
    file, before = modules.with_name("Projection") / "model.safetensors", set[str]()
    whole = file.read_bytes()
    for damaged in (whole[:-8], whole[:-4] + b"\0\0\xc0\x7f"):  # cut off, and with a NaN
        before.add(str(find_checkpoint(tmp_path / "model").sha256))
        file.write_bytes(damaged)
        assert str(find_checkpoint(tmp_path / "model").sha256) not in before
        with pytest.raises(ModelError, match="Projection cannot be used"):
            Encoder(tmp_path / "model")
    file.unlink()
    file.with_name("pytorch_model.bin").write_bytes(b"no pickle")
    with pytest.raises(ModelError, match=r"cannot be used \(pytorch_model.bin is damaged"):
        Encoder(tmp_path / "model")
    (tmp_path / "model/config.json").unlink()
    with pytest.raises(ModelError, match=r"modules\.json names it\. Fetch"):
        Encoder(tmp_path / "model")


def test_fewer_dimensions(tiny: Tiny, tmp_path: Path, notes: list[str]) -> None:
    makers = made("dense", tiny, tmp_path / "model")
    wanted = [model.encode(SOME, truncate_dim=8) for model in makers]
    encoder = Encoder(tmp_path / "model")
    check_near(encoder.encode(SOME, truncate_dim=8, device="cpu"), *wanted)
    with pytest.raises(UsageError, match="device='cuda'"):
        encoder.encode(SOME, device="cuda")
    wanted = [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in wanted]
    options: dict[str, Any] = {"model": str(tmp_path / "model")}
    check_near(encoder.encode(SOME, dims=8), *wanted)
    embedkit.extract(SOME, out=tmp_path / "out", dims=8, **options)
    check_near(embedkit.load(tmp_path / "out").X, *wanted)
    assert sum("Matryoshka" in note for note in notes) == 1
    state(tmp_path / "model/config.json", matryoshka_dimensions=[8])
    embedkit.extract(SOME, out=tmp_path / "declared", dims=8, **options)
    assert sum("Matryoshka" in note for note in notes) == 1
    with pytest.raises(UsageError, match="dims=41"):
        embedkit.extract(SOME, out=tmp_path / "x", dims=41, **options)
