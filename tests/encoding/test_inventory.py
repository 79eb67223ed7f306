"""Everything that a folder may say: computed as its makers do, or refused by its name.

The lists of keys come from the sources of sentence-transformers and transformers, so that a key
that they learn fails a test here until someone has decided what becomes of it.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
import sys
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base import model as st_base
from sentence_transformers.base import modules as st_modules
from sentence_transformers.sentence_transformer import model as st_model
from sentence_transformers.sentence_transformer import modules as st
from transformers import AutoModel, AutoModelForSequenceClassification
from transformers.models.auto.configuration_auto import model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

import embedkit
from embedkit.encoding import checkpoint as checkpoints
from embedkit.encoding import inventory
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.inventory import SENTENCE_FILES
from embedkit.encoding.model import describe_model
from embedkit.errors import DamagedModelError, EncodeError, ModelError, UsageError
from tests.encoding.test_checkpoint import write_modules
from tests.models import SOME, Tiny, distance, equals_its_makers, reweigh, save_model, state
from tests.processes import invoke
from tests.store_fixtures import tiny_model


def read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


@pytest.fixture(scope="module")
def saved(tiny_bert: Path, common: Path) -> Path:
    """A checkpoint as sentence-transformers saves it, cls and a Dense layer."""
    torch.manual_seed(3)
    modules = [st.Transformer(str(tiny_bert)), st.Pooling(24, "cls"), st.Dense(24, 16)]
    SentenceTransformer(modules=modules, device="cpu").save(str(common))
    return common


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def is_refused(folder: Path, name: str) -> Encoder:
    """Assert that the makers' vector is refused by a name, in ``info`` too, and other views not."""
    encoder = Encoder(folder, device="cpu", forward="transformers")
    with pytest.raises(ModelError, match=re.escape(name)):
        encoder.encode(SOME)
    assert name in describe_model(str(folder)).sentence
    assert encoder.encode(SOME[:2], pooling="mean").shape == (2, 24)
    return encoder


S, ROOT = SENTENCE_FILES[0], "config_sentence_transformers.json"
APPLIED: list[tuple[str, dict[str, Any]]] = [
    (S, {"max_seq_length": 9}),
    (S, {"tokenizer_args": {"model_max_length": 9}}),
    (S, {"tokenizer_args": {"model_max_length": 9}, "processor_kwargs": {"model_max_length": 12}}),
    (S, {"processor_kwargs": {"model_max_length": 9}, "max_seq_length": 12}),
    (S, {"processing_kwargs": {"text": {"max_length": 9}}, "max_seq_length": 12}),
    (S, {"processing_kwargs": {"common": {"max_length": 9}, "text": {"max_length": 12}}}),
    (S, {"tokenizer_args": {"do_lower_case": True}}),
    (S, {"tokenizer_args": {"do_lower_case": True, "strip_accents": False}}),
    (S, {"processor_kwargs": {"truncation_side": "left", "model_max_length": 9}}),
    (S, {"config_args": {"hidden_act": "relu"}}),
    (S, {"config_kwargs": {"num_hidden_layers": 2}}),
    (S, {"model_args": {"attn_implementation": "eager"}, "unpad_inputs": False}),
    (ROOT, {"truncate_dim": 7}),
    (ROOT, {"prompts": {"a": None, "b": ""}}),
    (ROOT, {"prompts": {"a": "x "}, "default_prompt_name": "a"}),
    (ROOT, {"prompts": {"a": "x ", "b": ""}, "default_prompt_name": "b"}),
    (ROOT, {"requirements": {"transformers": ">=5"}}),
    ("1_Pooling/config.json", {"include_prompt": False}),
    ("2_Dense/config.json", {"activation_function": "torch.nn.modules.dropout.Dropout"}),
    ("2_Dense/config.json", {"activation_function": "torch.nn.modules.activation.GLU"}),
    ("config.json", {"return_dict": False}),
    ("config.json", {"position_embedding_type": "absolute", "auto_map": {"AutoConfig": "a.B"}}),
]
NOT_COMPUTED: list[tuple[str, dict[str, Any], str]] = [
    (S, {"tokenizer_args": {"vocab_file": "other.txt"}}, "tokenizer_args.vocab_file"),
    (S, {"model_args": {"use_safetensors": False}}, "model_args.use_safetensors"),
    (S, {"processing_kwargs": {"text": {"add_special_tokens": False}}}, "add_special_tokens"),
    (S, {"processing_kwargs": {"text": {"truncation": False}}}, "text.truncation"),
    (S, {"processing_kwargs": {"txt": {}}}, "processing_kwargs.txt"),
    (S, {"processing_kwargs": {"text": 3}}, "processing_kwargs.text"),
    (S, {"transformer_task": "fill-mask"}, "transformer_task"),
    (S, {"modality_config": {"message": {"method": "forward"}}}, "modality_config.message"),
    (S, {"module_output_name": "sentence_embedding"}, "module_output_name"),
    (S, {"query_expansion": {"length": 8}}, "query_expansion"),
    (S, {"new_key": 1}, "new_key"),
    (ROOT, {"model_type": "CrossEncoder"}, "model_type"),
    (ROOT, {"similarity_fn_name": "maxsim"}, "similarity_fn_name"),
    (ROOT, {"requirements": {"transformers": ">99"}}, "requirements"),
    (ROOT, {"default_prompt_name": "q"}, "default_prompt_name"),
    ("2_Dense/config.json", {"use_residual": True}, "use_residual"),
    ("2_Dense/config.json", {"module_output_name": "other"}, "module_output_name"),
    ("config.json", {"position_embedding_type": "relative_key_query"}, "position_embedding_type"),
    ("config.json", {"auto_map": {"AutoModel": "own.Own"}}, "auto_map"),
    ("config.json", {"pruned_heads": {"0": [1]}}, "pruned_heads"),
    ("config.json", {"transformers_weights": "other.safetensors"}, "transformers_weights"),
    ("modules.json", {"type": "sentence_transformers.models.LayerNorm"}, "LayerNorm"),
    ("modules.json", {"type": "own.Own"}, "Own"),
    ("modules.json", {"type": "sentence_transformers.models.Transformer"}, "2_Dense (Transformer)"),
    ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, "weightedmean"),
    ("1_Pooling/config.json", {"pooling_mode": ["cls", "mean"]}, "cls and mean"),
    ("1_Pooling/config.json", {"pooling_mode": []}, "1_Pooling (Pooling) by"),
]


@pytest.mark.parametrize(("file", "stated"), APPLIED, ids=lambda value: str(value)[:60])
def test_what_a_folder_says_is_computed(file: str, stated: dict[str, Any], folder: Path) -> None:
    state(folder / file, **stated)
    equals_its_makers(folder)


@pytest.mark.parametrize(("file", "stated", "name"), NOT_COMPUTED, ids=lambda v: str(v)[:60])
def test_or_refused_by_its_name(
    file: str, stated: dict[str, Any], name: str, folder: Path, notes: list[str]
) -> None:
    state(folder / file, **stated)
    is_refused(folder, name)
    # a key of the transformer shapes every view
    told = [note for note in notes if name in note]
    assert len(told) == (file in ("config.json", S))
    effects = describe_model(str(folder)).inventory.values()
    assert "refused" in effects or file in ("modules.json", "1_Pooling/config.json")


def test_a_tokenizer_in_python_cannot_be_made_to_lower_case(tiny: Tiny, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny("japanese"), tmp_path / "model"))
    state(folder / S, do_lower_case=True)
    write_modules(folder)
    is_refused(folder, "do_lower_case=True (sentence_bert_config.json)")


def test_where_files_are_and_what_no_table_knows_reaches_no_loader() -> None:
    stated = {"trust_remote_code": True, "code_revision": "main", "do_lower_case": True}
    options = {"processor_kwargs": stated | {"vocab_file": "/etc/passwd"}, "config_kwargs": stated}
    for name in options:
        assert inventory.options_of(options, name) == {"do_lower_case": True}


@pytest.mark.parametrize(
    "family", [family for family in inventory._OF_THE_CODE if family in MODEL_MAPPING_NAMES]
)
def test_keys_of_the_code_of_a_family(family: str) -> None:
    """Its class reads none of them, and has the harmless values by its defaults."""
    keys = inventory._OF_THE_CODE[family]
    kind = transformers.CONFIG_MAPPING[family]
    defaults = kind()
    assert not any(hasattr(defaults, key) for key in keys)
    theta, eps, heads = kind.default_theta, defaults.layer_norm_eps, defaults.num_attention_heads
    assert keys.get("rotary_emb_base", (theta,)) == (theta,)
    assert keys.get("layer_norm_epsilon", (eps,)) == (eps,)
    assert keys.get("n_head", (heads,)) == (heads,)
    rules = inventory.config_rules(family)
    assert rules["auto_map"]({"AutoModel": "own.Own"})  # the code that the class was made from
    for key, values in keys.items():
        stated = [{key: values[0]}, {key: "another"}]
        effects = [s.effect for one in stated for s in inventory.statements("", one, rules)]
        assert effects == ["harmless", "refused"]


def test_modules_before_the_pooling_are_of_tokens(folder: Path) -> None:
    transformer, pooling, dense = read(folder / "modules.json")
    (folder / "modules.json").write_text(json.dumps([transformer, dense, pooling]))
    is_refused(folder, "1_Pooling (Pooling) after 2_Dense")
    (folder / "modules.json").write_text(json.dumps([transformer]))
    is_refused(folder, "a vector for each token: modules.json has no Pooling")


@pytest.mark.parametrize("module", ["1_Pooling", "2_Dense"])
def test_settings_of_a_module_that_are_missing(module: str, folder: Path) -> None:
    (folder / module / "config.json").unlink()
    is_refused(folder, f"{module}/config.json, which is missing")


def test_without_modules_only_the_transformer_counts(folder: Path) -> None:
    state(folder / ROOT, prompts={"a": "x "}, default_prompt_name="a", truncate_dim=3)
    (folder / "modules.json").unlink()
    equals_its_makers(folder)


def test_a_prompt_that_is_not_pooled(folder: Path, tmp_path: Path, notes: list[str]) -> None:
    """Refused by every way to the makers' vector; a prefix is pooled, and said to be."""
    state(folder / "1_Pooling/config.json", include_prompt=False)
    Encoder(folder, device="cpu").encode(SOME, prefix="x ")
    assert any("include_prompt" in note for note in notes)
    state(folder / "config_sentence_transformers.json", prompts={"a": "x "})
    encoder = is_refused(folder, "prompt")
    with pytest.raises(ModelError, match="prompt"):
        encoder.encode_views(SOME, ["sentence"])
    with pytest.raises(ModelError, match="prompt"):
        embedkit.extract(SOME, out=tmp_path / "out", model=str(folder))


@pytest.mark.parametrize("family", ["distilbert", "xlm-roberta", "xlnet"])
def test_each_name_of_the_settings_counts(family: str, folder: Path) -> None:
    (folder / S).rename(folder / f"sentence_{family}_config.json")
    state(folder / f"sentence_{family}_config.json", max_seq_length=9)
    equals_its_makers(folder)


def test_coordinates_that_the_makers_cut_off(folder: Path, tmp_path: Path) -> None:
    state(folder / "config_sentence_transformers.json", truncate_dim=7)
    encoder = Encoder(folder, device="cpu")
    stored = embedkit.extract(SOME, out=tmp_path / "out", model=str(folder))
    assert np.array_equal(embedkit.load(stored.out).X, encoder.encode(SOME))
    assert encoder.encode(SOME, dims=5).shape == (len(SOME), 5)
    assert encoder.encode(SOME, pooling="mean").shape == (len(SOME), 24)
    state(folder / ROOT, truncate_dim=0)
    with pytest.raises(DamagedModelError, match=rf"{ROOT} is damaged: .* at `\$\.truncate_dim`"):
        embedkit.extract(SOME, out=tmp_path / "none", model=str(folder))
    for dims in ({"dims": 8}, {"dims": 0}, {"dims": -1}, {"truncate_dim": 8}, {"truncate_dim": 0}):
        with pytest.raises(UsageError, match=r"dims?="):
            encoder.encode(SOME, **cast("Any", dims))


@pytest.mark.parametrize("kind", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarity_is_the_makers(kind: str, folder: Path) -> None:
    state(folder / "config_sentence_transformers.json", similarity_fn_name=kind)
    theirs = SentenceTransformer(str(folder), device="cpu")
    X = theirs.encode(SOME)
    encoder = Encoder(folder, device="cpu")
    tensor = encoder.encode(SOME, convert_to_tensor=True)
    assert torch.equal(tensor, torch.from_numpy(encoder.encode(SOME)))
    for some in (X[:2], tensor[:2]):
        ours = encoder.similarity(some, X)
        assert np.allclose(ours, theirs.similarity(X[:2], X), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["0_Transformer", "0_BERT"])
def test_a_transformer_in_a_folder_of_its_own(name: str, folder: Path, tmp_path: Path) -> None:
    flat = Path(shutil.copytree(folder, tmp_path / "flat"))
    (folder / name).mkdir()
    for path in [*folder.iterdir()]:
        if path.is_file() and not path.name.startswith(("modules", "config_")):
            path.rename(folder / name / path.name)
    state(folder / "modules.json", 0, path=name)
    state(folder / name / S, max_seq_length=9)
    equals_its_makers(folder)
    found = find_checkpoint(folder)
    inner = {f"{name}/{file}" for file in ("config.json", "model.safetensors", "tokenizer.json")}
    assert inner < found.sha256.keys()
    assert found.sha256[f"{name}/config.json"] == find_checkpoint(flat).sha256["config.json"]
    (folder / name / "config.json").unlink()
    with pytest.raises(ModelError) as told:
        find_checkpoint(folder)
    assert "Give " not in str(told.value)
    state(folder / "modules.json", 0, path="../flat")
    with pytest.raises(ModelError, match="is not the name of a folder"):
        find_checkpoint(folder)


def test_no_part_of_a_folder_is_advised(folder: Path) -> None:
    router = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}]
    (folder / "modules.json").write_text(json.dumps(router))
    (folder / "document_0_Transformer").mkdir()
    for file in ("config.json", "model.safetensors"):
        (folder / file).rename(folder / "document_0_Transformer" / file)
    with pytest.raises(ModelError, match="Router") as told:
        find_checkpoint(folder)
    assert "document_0" not in str(told.value)


# --- weights


UNUSED_WEIGHTS = {
    "encoder.layer.0.adapter.down.weight": True,
    "encoder.layer.1.adapters.7.weight": True,  # of a layer that there is
    "embeddings_project.weight": True,
    "encoder.layer.7.output.dense.bias": False,  # config.json cuts it off
    "embeddings.position_ids": False,
    "pooler.other.weight": False,
}


@pytest.mark.parametrize("prefix", ["", "bert."])
@pytest.mark.parametrize("name", UNUSED_WEIGHTS)
def test_weights_that_the_class_does_not_use(
    name: str, prefix: str, folder: Path, notes: list[str]
) -> None:
    refused = UNUSED_WEIGHTS[name]
    more = {f"{prefix}{name}": torch.ones(2), "cls.predictions.bias": torch.ones(2)}
    reweigh(folder, lambda w: {**{prefix + key: value for key, value in w.items()}, **more})
    if refused:
        is_refused(folder, prefix + name)
    else:
        equals_its_makers(folder)
    assert any(name in note for note in notes) == refused


@pytest.mark.parametrize("prefix", ["module.", "model.", "transformer.model."])
def test_weights_with_other_names(prefix: str, folder: Path) -> None:
    reweigh(folder, lambda weights: {prefix + key: value for key, value in weights.items()})
    with pytest.raises(ModelError, match=f"begin with '{re.escape(prefix)}'"):
        Encoder(folder, device="cpu")


def test_weights_that_are_no_numbers(folder: Path, notes: list[str]) -> None:
    name = "encoder.layer.1.output.dense.weight"
    reweigh(folder, lambda weights: {**weights, name: weights[name] * float("nan")})
    with pytest.raises(ModelError, match=f"NaN.*{name}"):
        Encoder(folder, device="cpu")
    assert not any("zip()" in note for note in notes)
    word = "embeddings.word_embeddings.weight"  # of tokens that the trial at loading does not meet
    rows = torch.ones(1_000_000, 1).masked_fill(torch.arange(1_000_000)[:, None] > 5, torch.nan)
    sound = {name: torch.nan_to_num, word: lambda weight: weight * rows[: len(weight)]}
    reweigh(folder, lambda w: w | {name: change(w[name]) for name, change in sound.items()})
    with pytest.raises(EncodeError, match="NaN or infinite"):
        Encoder(folder, device="cpu").encode(SOME)


def adapt(folder: Path, seed: int, kind: Any = AutoModel, **settings: Any) -> None:
    """Put an adapter with random weights beside the model; in its file the base is elsewhere."""
    base = kind.from_pretrained(folder)
    torch.manual_seed(seed)
    settings = {"target_modules": ["query", "value"], **settings}
    lora = LoraConfig(r=2, init_lora_weights=False, **settings)
    get_peft_model(base, lora).save_pretrained(str(folder))
    state(folder / "adapter_config.json", base_model_name_or_path=str(folder))


of_peft = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def test_a_module_may_stand_in_an_inner_folder(folder: Path) -> None:
    (folder / "parts").mkdir()
    (folder / "1_Pooling").rename(folder / "parts/1_Pooling")
    state(folder / "modules.json", 1, path="parts/1_Pooling")
    equals_its_makers(folder)
    assert "parts/1_Pooling/config.json" in find_checkpoint(folder).sha256


@of_peft
def test_an_adapter_is_applied_and_hashed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = Encoder(folder, device="cpu").encode(SOME)
    shutil.copytree(folder, tmp_path / "base")
    (tmp_path / "base/modules.json").unlink()
    adapt(tmp_path / "base", 1)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(tmp_path / "base" / file, folder / file)
    (tmp_path / "base/adapter_config.json").unlink()
    state(folder / "adapter_config.json", base_model_name_or_path=str(tmp_path / "base"))
    equals_its_makers(folder)
    encoder = Encoder(folder, device="cpu")
    assert encoder.model.name == "packed"
    vectors = encoder.encode(SOME)
    assert distance(vectors, without).min() > 1e-3
    # modules that peft would import
    state(folder / "adapter_config.json", megatron_config={"a": 1}, megatron_core="evil")
    assert np.array_equal(Encoder(folder, device="cpu").encode(SOME), vectors)
    before = find_checkpoint(folder).sha256
    assert "adapter_model.safetensors" in before
    adapt(tmp_path / "base", 2)
    shutil.copy(tmp_path / "base/adapter_model.safetensors", folder)
    assert find_checkpoint(folder).sha256 != before
    assert describe_model(str(folder)).missing == ()
    # neither a weight of the model nor one of the adapter may be missing
    reweigh(folder, lambda weights: {k: v for k, v in weights.items() if "layer.1.output" not in k})
    with pytest.raises(ModelError, match=r"layer\.1\.output"):
        Encoder(folder, device="cpu")
    monkeypatch.setattr(checkpoints, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"peft: pip install"):
        find_checkpoint(folder)


@of_peft
@pytest.mark.parametrize(
    "stated",
    [
        {},
        {"modules_to_save": ["classifier", "word_embeddings"]},
        {"alpha_pattern": {"bert.encoder.layer.0.attention.self.query": 32}},
        {"target_modules": "all-linear"},
        {"trainable_token_indices": [5, 6]},
    ],
)
def test_an_adapter_that_was_trained_with_a_head(
    folder: Path, tmp_path: Path, stated: dict[str, Any]
) -> None:
    """As classifiers are: the head is not here, and the encoder is a part of what was trained."""
    without = Encoder(folder, device="cpu").encode(SOME)
    shutil.copytree(folder, tmp_path / "merged")
    settings = {"task_type": "SEQ_CLS", "target_modules": ["query", "value"], **stated}
    adapt(folder, 1, AutoModelForSequenceClassification, **settings)
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
    merged: Any = PeftModel.from_pretrained(base, str(folder)).merge_and_unload()
    merged.bert.save_pretrained(tmp_path / "merged")
    found = Encoder(folder, device="cpu").encode(SOME)
    assert distance(found, Encoder(tmp_path / "merged", device="cpu").encode(SOME)).max() < 2e-5
    assert distance(found, without).min() > 1e-3


@of_peft
def test_adapters_that_cannot_be_applied(folder: Path) -> None:
    adapt(folder, 1)
    adapter = load_file(folder / "adapter_model.safetensors")
    renamed = {key.replace("encoder.", "other.encoder."): value for key, value in adapter.items()}
    save_file(renamed, folder / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors do not belong"):
        Encoder(folder, device="cpu")
    save_file(dict([*adapter.items()][1:]), folder / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=r"1 weights that adapter_config.json asks for are miss"):
        Encoder(folder, device="cpu")
    lora = read(folder / "adapter_config.json")
    prefix = {"num_virtual_tokens": 2, "base_model_name_or_path": str(folder)}
    for stated, message in (
        ({**lora, "r": "4"}, r"damaged: .* at `\$\.r`"),
        ({**lora, "peft_type": "NEW"}, "peft_type='NEW', which the installed peft does not have"),
        ({**prefix, "peft_type": "PREFIX_TUNING"}, "peft_type='PREFIX_TUNING', which adds tokens"),
    ):
        (folder / "adapter_config.json").write_text(json.dumps(stated), "utf-8")
        with pytest.raises(ModelError, match=rf"adapter_config\.json .*{message}"):
            Encoder(folder, device="cpu")
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no adapter_model"):
        find_checkpoint(folder)
    for file in ("config.json", "modules.json"):
        (folder / file).unlink()
    with pytest.raises(ModelError, match=rf"an adapter for {folder}.*merge_and_unload"):
        find_checkpoint(folder)


# --- messages


TOKENS = "tokenizer_config.json"
WRONG_FILES: list[tuple[str, dict[str, Any], str]] = [
    ("config.json", {"layer_norm_eps": "1e-12"}, "layer_norm_eps.*expected float"),
    ("config.json", {"dtype": "float8"}, "float8"),
    ("config.json", {"is_decoder": True}, "is_decoder"),
    ("config.json", {"is_encoder_decoder": True}, "bert"),
    ("config.json", {"add_cross_attention": True}, "add_cross_attention"),
    ("config.json", {"hidden_size": "24"}, "says hidden_size='24', not a number"),
    ("config.json", {"hidden_act": "nope"}, r"used \(hidden_act='nope' is not known"),
    ("config.json", {"num_attention_heads": 0}, "cannot be used"),
    ("config.json", {"num_attention_heads": 5}, r"cannot be used \(The hidden size \(24\)"),
    ("config.json", {"model_type": "own"}, "own"),
    ("config.json", {"num_hidden_layers": None}, r"num_hidden_layers\. Fetch it again"),
    (
        "config.json",
        {"num_hidden_layers": None, "model_type": "prophetnet", "num_encoder_layers": 2},
        r"num_hidden_layers\. Such a prophetnet is not computed here",
    ),
    ("config.json", {"do_lower_case": "false"}, r"damaged: .* at `\$\.do_lower_case`"),
    (TOKENS, {"do_lower_case": "false"}, r"damaged: .* at `\$\.do_lower_case`"),
    (TOKENS, {"strip_accents": 1}, r"damaged: .* at `\$\.strip_accents`"),
    (TOKENS, {"model_max_length": "512"}, "damaged: .*model_max_length"),
]


@pytest.mark.parametrize(("file", "stated", "named"), WRONG_FILES)
def test_an_error_of_a_file_names_it(
    file: str, stated: dict[str, Any], named: str, folder: Path
) -> None:
    state(folder / file, **stated)
    kind = DamagedModelError if "damaged" in named else ModelError
    with pytest.raises(kind, match=named) as caught:
        Encoder(folder, device="cpu")
    assert file in str(caught.value) or "model_type" in stated


def test_an_error_of_the_tokenizer_names_what_is_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(folder)
    save_model(folder, "deberta-v2", vocab_size=90)
    (folder / "spm.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02")
    monkeypatch.setattr(transformers.utils, "is_sentencepiece_available", lambda: False)
    with pytest.raises(ModelError, match=r"a SentencePiece model: pip install sentencepiece"):
        embedkit.tokenize("film", model=str(folder))
    state(folder / "tokenizer_config.json", tokenizer_class="KoBertTokenizer")
    with pytest.raises(ModelError, match="KoBertTokenizer, which transformers does not have"):
        embedkit.tokenize("film", model=str(folder))


def test_blank_last_lines_of_a_vocabulary(tiny_bert: Path, tmp_path: Path) -> None:
    old = Path(shutil.copytree(tiny_bert, tmp_path / "old"))
    entries = read(old / "tokenizer.json")["model"]["vocab"]
    (old / "tokenizer.json").unlink()
    state(old / "tokenizer_config.json", do_lower_case=False, tokenizer_class="BertTokenizer")
    (old / "vocab.txt").write_text("\n".join(sorted(entries, key=entries.get)) + "\n\n\n", "utf-8")
    ours = Encoder(old, device="cpu").encode(SOME)
    assert np.array_equal(ours, Encoder(tiny_bert, device="cpu").encode(SOME))
    with (old / "vocab.txt").open("a") as stream:
        stream.write("word\n")
    with pytest.raises(ModelError, match="do not belong together"):
        Encoder(old, device="cpu")


def test_info_lists_what_becomes_of_everything(folder: Path) -> None:
    (folder / "training_args.bin").write_bytes(b"")
    state(folder / "config.json", of_another_time=1)
    effects = describe_model(str(folder)).inventory
    expected = {
        "config.json: hidden_size": "applied",
        "config.json: architectures": "harmless",
        "config.json: of_another_time": "unknown to BertConfig",
        f"{S}: module_output_name": "harmless",
        "1_Pooling/config.json: pooling_mode": "applied",
        "2_Dense/model.safetensors": "applied",
        "training_args.bin": "not read",
    }
    assert expected.items() <= effects.items()
    short, whole = (invoke("info", folder, *more).output for more in ((), ("--all",)))
    assert "unknown to BertConfig config.json: of_another_time" in short
    assert "training_args.bin" in short
    assert "pooling_mode" in whole
    assert "pooling_mode" not in short


def test_a_checkpoint_is_described() -> None:
    info = describe_model(str(tiny_model()))
    assert (info.model_type, info.n_layers, info.width, info.positions) == ("bert", 2, 16, 24)
    assert (info.source, info.architecture, info.labels) == ("folder", "BertModel", ())
    assert info.has_pooler
    bare = describe_model(str(tiny_model(pooler=False)))
    assert not bare.has_pooler
    assert bare.missing == ("pooler.dense.bias", "pooler.dense.weight")
    assert info.encoder_parameters == bare.encoder_parameters + 16 * 16 + 16


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_a_classifier_is_shown_with_its_head(tiny: Tiny, tmp_path: Path, family: str) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(tiny(family), num_labels=3)
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
    model = AutoModelForSequenceClassification.from_pretrained(tiny("bert"), num_labels=5)
    model.save_pretrained(folder)
    state(folder / "config.json", architectures=["BertModel"])
    assert describe_model(str(folder)).unused == ("classifier.bias", "classifier.weight")
    assert "unused     2 weights" in invoke("info", folder).output


# --- what the libraries know


def source(module: Any) -> str:
    return Path(inspect.getfile(module)).read_text("utf-8")


def test_every_key_of_sentence_transformers_is_in_a_table(folder: Path) -> None:
    kinds = {"Transformer", "Pooling", "Dense", "Normalize", "Dropout"}
    assert inventory.MODULES.keys() == kinds
    own = {"self", "model_name_or_path", "init_weight", "init_bias"}
    for name in kinds:
        kind = getattr(st, name, None) or getattr(st_modules, name)
        keys = {*kind.config_keys, *kind.config_key_renames}
        keys |= inspect.signature(inspect.unwrap(kind.__init__)).parameters.keys() - own
        assert keys <= inventory.MODULES[name].keys(), name
    text = source(sys.modules[st.Transformer.__module__])
    assert set(re.findall(r'"(sentence_\S+_config\.json)"', text)) == set(SENTENCE_FILES)
    legacy = dict(re.findall(r'"(\w+_args)": "(\w+_kwargs)",', text))
    assert legacy == inventory.LEGACY
    modality = st.Transformer._VALID_PROCESSING_KWARGS_KEYS
    assert modality <= inventory.SENTENCE["processing_kwargs"].keys()
    text = source(sys.modules[st.Pooling.__module__])
    assert set(re.findall(r'"(pooling_mode_\w+)":', text)) <= inventory.MODULES["Pooling"].keys()
    keys = {*read(folder / "config_sentence_transformers.json")}
    for module in (st_base, st_model):
        keys |= set(re.findall(r'(?:model_)?config\.get\(\s*"(\w+)"', source(module)))
    assert keys - {"kwargs"} <= inventory.ROOT.keys()
    assert {"truncate_dim", "similarity_fn_name", "prompts", "requirements"} <= keys


def test_every_key_of_transformers_is_in_a_table() -> None:
    base = transformers.configuration_utils.PreTrainedConfig
    keys = {field.name for field in fields(base)}
    keys |= set(re.findall(r'kwargs\.pop\("(\w+)"', inspect.getsource(base.__post_init__)))
    text = source(transformers.modeling_utils)
    keys |= set(re.findall(r'getattr\((?:self\.)?config, "(\w+)"', text))
    known = {
        "name_or_path", "_commit_hash",  # where it came from
        "attn_implementation", "experts_implementation",  # which kernels compute it
        "layer_types", "sliding_window", "attention_dropout", "sep_token_id", "per_layer_config",
        "tie_word_embeddings",  # given to the class of the family too
        "gradient_checkpointing",  # of training
    }  # fmt: skip
    assert keys - known <= inventory.config_rules("bert").keys()
    assert {"transformers_weights", "return_dict", "dtype"} <= keys


def test_positions_are_those_that_transformers_computes() -> None:
    """Families that read the key; others compute one kind, whatever it says."""
    models = Path(inspect.getfile(transformers)).parent / "models"
    folders = {model_type_to_module_name(kind): kind for kind in MODEL_MAPPING_NAMES}
    readers = {
        folders[path.parent.name]
        for path in models.glob("*/modeling_*.py")
        if path.parent.name in folders
        and re.search(r'config(\.|, ")position_embedding_type', path.read_text("utf-8"))
    }
    seeing = {kind for kind in readers if "detr" in kind or "dino" in kind or "table" in kind}
    assert readers - seeing <= inventory.POSITIONS.keys()
    assert not {"bert", "roberta", "xlm-roberta", "electra", "albert"} & inventory.POSITIONS.keys()


def test_files_of_tokenizers_are_hashed() -> None:
    names = set[str]()
    for kind in {name for name in TOKENIZER_MAPPING_NAMES.values() if name}:
        with suppress(ImportError):  # of a package that is not here
            files = getattr(getattr(transformers, kind, None), "vocab_files_names", None) or {}
            names |= {name for name in files.values() if isinstance(name, str)}
    assert {"vocab.txt", "tokenizer.json"} < names
    assert {name for name in names if not name.endswith(checkpoints._SIDE_FILES)} == set()
