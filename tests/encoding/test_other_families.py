"""Decoders, and encoders of which nothing is known here: every layer of every token."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from tokenizers import ByteLevelBPETokenizer

from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.model import describe_model
from embedkit.encoding.views import parse_view
from embedkit.encoding.windows import TokenizerSettings
from embedkit.errors import ModelError
from tests.models import _TOKENIZERS, SOME, Plain, check_near, save_model, save_other, slow, state

DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gemma2": {"num_key_value_heads": 1, "head_dim": 12, "sliding_window": 8},
    "llama": {"num_key_value_heads": 1},
    "mistral": {"num_key_value_heads": 1, "sliding_window": 8, "head_dim": 12},
    "qwen3": {"num_key_value_heads": 1, "head_dim": 12},
}
ENCODERS: dict[str, dict[str, Any]] = {
    "t5": {"d_kv": 12, "d_ff": 40, "decoder_start_token_id": 0},
    "bart": {"encoder_layers": 3, "decoder_layers": 1, "d_model": 24, "encoder_ffn_dim": 40,
             "encoder_attention_heads": 2, "decoder_attention_heads": 2},
    "rembert": {"input_embedding_size": 16},
    "roformer": {"embedding_size": 24},
    "xlm": {"emb_dim": 24, "n_layers": 3, "n_heads": 2},
    "fnet": {},
    "convbert": {"embedding_size": 24},
    "mobilebert": {"embedding_size": 16},
    "squeezebert": {"embedding_size": 24},
}  # fmt: skip

QUICK = ("gpt2", "qwen3", "t5", "xlm", "mobilebert")
PACKED = ("gpt2", "llama", "mistral", "qwen3")
WHY_PADDED = {"gemma2": "softcap", "mobilebert": "differs from the plain one"}


def build(family: str, folder: Path) -> Path:
    """A random model of 3 layers; tokenizers of decoders add nothing, and pad on either side."""
    if family in DECODERS:
        trained = ByteLevelBPETokenizer()
        trained.train_from_iterator(SOME, 360, special_tokens=["<pad>"], show_progress=False)
        tokenizer: Any = transformers.PreTrainedTokenizerFast(
            tokenizer_object=trained._tokenizer,
            pad_token=None if family == "gpt2" else "<pad>",
            padding_side="right" if family == "mistral" else "left",
            model_max_length=160,
        )
    else:
        tokenizer = _TOKENIZERS["xlm-roberta" if family in ("t5", "rembert") else "roberta"]()
    tokenizer.save_pretrained(folder)
    ids = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    more = {**DECODERS, **ENCODERS}[family]
    save_model(folder, family, bos_token_id=0, eos_token_id=2, **ids, **more)
    return folder


@pytest.mark.parametrize("stated", [{}, {"is_causal": False}])
def test_the_vector_of_a_decoder_is_that_of_sentence_transformers(
    stated: dict[str, Any], tmp_path: Path
) -> None:
    """Without modules.json: its last token, or the mean where it says that it sees all tokens."""
    folder = build("qwen3", tmp_path / "model")
    state(folder / "config.json", architectures=["Qwen3ForCausalLM"], **stated)
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    encoder = Encoder(folder, device="cpu")
    assert encoder.checkpoint.definition.pooling == ("mean" if stated else "last_token")
    check_near(encoder.encode(SOME), theirs.encode(SOME), theirs.double().encode(SOME))


@pytest.mark.parametrize("stated", [-1, True, {"a": 1}, "Qwen3ForCausalLM", [], [3], [None]])
def test_what_names_no_architecture_is_no_decoder(stated: Any, tmp_path: Path) -> None:
    folder = build("qwen3", tmp_path / "model")
    state(folder / "config.json", architectures=stated)
    assert find_checkpoint(folder).definition.pooling == "mean"


def test_what_other_libraries_compute_otherwise_is_told(tmp_path: Path, notes: list[str]) -> None:
    """Segments of a decoder are words to transformers; of BART its decoder is the vector."""
    decoder = build("gpt2", tmp_path / "gpt2")
    names = ["input_ids", "token_type_ids", "attention_mask"]
    state(decoder / "tokenizer_config.json", model_input_names=names)
    Encoder(decoder, device="cpu")
    assert sum("numbers segments" in note for note in notes) == 1
    shutil.copytree(decoder, tmp_path / "deberta")  # which passes over segments
    (tmp_path / "deberta/config.json").unlink()
    save_model(tmp_path / "deberta", "deberta-v2", type_vocab_size=0, vocab_size=360)
    Encoder(tmp_path / "deberta", device="cpu")
    assert sum("numbers segments" in note for note in notes) == 1
    both = build("bart", tmp_path / "bart")
    Encoder(both, device="cpu").encode(SOME)
    modules = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    (both / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match="is_encoder_decoder"):
        Encoder(both, device="cpu").encode(SOME)


def test_segments_of_xlnet_are_of_pairs_of_tokens(tmp_path: Path) -> None:
    sizes = {"d_head": 12, "d_inner": 40, "max_position_embeddings": None}
    save_other(tmp_path, "xlnet", "roberta_wordpiece", **sizes)
    encoder, view = Encoder(tmp_path, device="cpu"), parse_view("mean_-1", n_layers=3)
    tokens = encoder.tokenizer.encode(["a film"], ["the end"], settings=TokenizerSettings(32))
    ours = encoder.encode_shard(tokens, views=[view]).views[view.name][0]
    inputs = encoder.tokenizer.hf("a film", "the end", return_tensors="pt")
    assert inputs["token_type_ids"].any()
    plain = transformers.AutoModel.from_pretrained(tmp_path).eval()
    with torch.inference_mode():
        theirs = [model(**inputs).last_hidden_state[0].mean(0) for model in (plain, plain.double())]
    check_near(ours, *(vectors.numpy() for vectors in theirs))


def test_experts_behind_a_layer_without_any(tmp_path: Path, notes: list[str]) -> None:
    """Rows of several texts meet in an expert, which the first layer does not show."""
    sizes: dict[str, Any] = {"vocab_size": 360, "num_key_value_heads": 2, "head_dim": 12}
    sizes |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    save_model(build("qwen3", tmp_path), "glm4_moe", **sizes)
    encoder = Encoder(tmp_path, device="cpu")
    together = encoder.encode(SOME, pooling="mean")
    alone = [encoder.encode(text, pooling="mean") for text in SOME]
    told = any("last bits of a vector" in note for note in notes)
    assert told or np.array_equal(together, alone)


@pytest.mark.parametrize("family", [*QUICK, *slow(*sorted({*DECODERS, *ENCODERS} - {*QUICK}))])
def test_every_layer_of_every_token(family: str, tmp_path: Path, notes: list[str]) -> None:
    folder = build(family, tmp_path)
    encoder = Encoder(folder, device="cpu")
    assert encoder.model.pads == (family not in PACKED)
    reason = WHY_PADDED.get(family, "not compared layer by layer")
    # older processors compute sequences one by one, and say so
    notes = [note for note in notes if "sequence by sequence" not in note]
    assert [reason in note for note in notes] == [True] * encoder.model.pads
    ours = encoder.encode_tokens(SOME, layers="all")
    plain = Plain.load(folder, max_length=160)
    if plain.model.config.is_encoder_decoder:
        plain.model = plain.model.get_encoder()
    states = [[forward(text).hidden for text in SOME] for forward in (plain, plain.exact)]
    assert len(ours.vectors) == encoder.n_layers + 1 == 4
    for number in range(4):
        both = [np.concatenate([layers[number] for layers in found]) for found in states]
        check_near(ours.vectors[str(number)], *both)
    last = [np.stack([layers[-1][-1] for layers in found]) for found in states]
    check_near(encoder.encode(SOME, pooling="last_token"), *last)
    assert describe_model(str(folder)).n_layers == 3
    if family in DECODERS:
        for pooling in ("cls", "pooler"):
            with pytest.raises(ModelError, match=f"pooling='{pooling}'"):
                encoder.encode(SOME, pooling=pooling)
        assert not encoder.encode("").any()  # no tokens at all


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("esm", {"position_embedding_type": "absolute"}),
        *slow(
            ("xmod", {"languages": ["a", "b"], "default_language": "a"}),
            ("ibert", {}),
            ("luke", {"entity_vocab_size": 10}),
            ("roberta-prelayernorm", {}),
        ),
    ],
)
def test_positions_that_count_from_padding(
    family: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    ids = {"pad_token_id": 1, "type_vocab_size": 1, "max_position_embeddings": 152}
    save_other(tmp_path, family, "roberta_wordpiece", **ids, **settings)
    encoder = Encoder(tmp_path, device="cpu")
    assert encoder.max_length == 150
    assert np.isfinite(encoder.encode("the end " * 160)).all()


_LONG = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 50}
_LONG |= {"short_factor": [1.0] * 6, "long_factor": [3.0] * 6}
_BLOCKS = {"block_size": 5, "num_random_blocks": 2, "pad_token_id": 1}
_SCALED = {"rotary_scaling_factor": 2, "max_trained_positions": 50}


@pytest.mark.parametrize(
    ("family", "settings", "key", "limit"),
    [
        ("big_bird", _BLOCKS, "attention_type", 45),
        ("llama", {"rope_parameters": _LONG}, "rope_parameters 'longrope'", 50),
        ("nomic_bert", _SCALED, "rotary_scaling_factor", 50),
    ],
)
def test_longer_texts_would_depend_on_company(
    family: str, settings: dict[str, Any], key: str, limit: int, tmp_path: Path
) -> None:
    save_other(tmp_path, family, "roberta_wordpiece", **settings)
    with pytest.raises(ModelError, match=rf"config\.json says {key}.* max_length={limit}"):
        Encoder(tmp_path, device="cpu")
    encoder = Encoder(tmp_path, device="cpu", max_length=limit, forward="transformers")
    texts = ["a film", "the end " * 60]
    assert np.allclose(encoder.encode(texts)[0], encoder.encode(texts[0]), atol=1e-5)
    with pytest.raises(ModelError, match=f"max_length={limit}"):
        encoder.encode(texts, max_length=limit + 1)


@pytest.mark.parametrize(
    ("family", "settings", "came"),
    [
        ("albert", {"embedding_size": 16, "inner_group_num": 2}, "6 of width 24"),
        ("opt", {"word_embed_proj_dim": 16, "ffn_dim": 40}, "3 of width 16 and 24"),
    ],
)
def test_other_states_than_the_configuration_says(
    family: str, settings: dict[str, Any], came: str, tmp_path: Path
) -> None:
    save_other(tmp_path, family, "roberta", **settings)
    with pytest.raises(ModelError, match=f"says 3 layers of width 24, .* gives {came}"):
        Encoder(tmp_path, device="cpu")
