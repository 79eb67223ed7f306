"""What the files of a checkpoint say, and what becomes of each statement.

A folder says more than weights and a tokenizer: sentence-transformers reads settings from six kinds
of files, and transformers follows keys of ``config.json`` that change vectors, or names code. What
is passed over in silence gives other vectors than the makers', and nobody notices. So every key is
in one of the tables below: it is applied, or cannot change a vector, or is harmless with some
values only. Whatever is not in a table counts as not computed here. Then the makers' vector is
refused with the name of the key; other views are computed, with a note if the key shapes all of
them. ``embedkit info MODEL`` shows the list.

Of ``config.json`` only keys that transformers does not give to the class of the family are in a
table: other keys are for that class, which is the one that runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

APPLIED, HARMLESS, REFUSED = "applied", "harmless", "refused"

SENTENCE_FILES = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Settings of the transformer for sentence-transformers; the first that there is counts."""

LEGACY = {
    "model_args": "model_kwargs",
    "tokenizer_args": "processor_kwargs",
    "config_args": "config_kwargs",
}
"""Earlier names of settings of the transformer."""


def names(text: str) -> tuple[str, ...]:
    """The names in a text, for tables in which one each would fill a line."""
    return tuple(text.split())


def _each(effect: Any, keys: str) -> dict[str, Any]:
    """The same rule for several keys."""
    return dict.fromkeys(names(keys), effect)


LOADING = _each(
    HARMLESS,
    "cache_dir code_revision force_download local_files_only revision token trust_remote_code",
)
"""Where and how files are found: sentence-transformers' business, and none of a vector's."""

OVERRIDDEN = _each(
    HARMLESS,
    "chunk_size_feed_forward distributed_config fusion_config output_attentions "
    "output_hidden_states return_dict torchscript use_return_dict",
) | {"transformers_weights": (None,)}
"""Keys of ``config.json`` that are dropped: they choose the form of a result, not its numbers; the
last would name another file of weights, which is not hashed. Computing the feed-forward layers in
chunks saves memory only, and does not work for every length."""

_PORTED = ("nomic_bert", "jina_embeddings_v3", "gte", "eurobert")
"""Families that began as code of their checkpoints: transformers' class is made from that code."""

POSITIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*_PORTED, "modernbert"), ("rope", "rotary")),
    **_each(("rotary",), "esm evolla"),
    "granitemoehybrid": ("rope",),
}
"""Kinds of positions that a family computes beside ``absolute``. transformers 5 removed relative
ones from BERT and its relatives and computes absolute ones instead, without a word."""

_OF_THE_CODE: dict[str, dict[str, tuple[Any, ...]]] = {
    "nomic_bert": {
        "activation_function": ("swiglu",),
        "layer_norm_epsilon": (1e-12,),
        "n_head": (12,),
        "rotary_emb_base": (1000,),
        "rotary_emb_fraction": (1,),
        "scale_attn_weights": (True,),
        **_each((None, False), "rotary_emb_interleaved rotary_emb_scale_base causal prenorm"),
        **_each((None, False), "use_rms_norm parallel_block scale_attn_by_inverse_layer_idx"),
        # other positions, but only of texts that usable_length() does not let pass
        "rotary_scaling_factor": (None, False, 2),
    },
    "gte": {"layer_norm_type": ("layer_norm",), "logn_attention_scale": (None, False)},
    "jina_embeddings_v3": {"rotary_emb_base": (20000,)},
}
"""Keys of the code of these families that shape vectors, and the values that their class computes.

The class reads none of them: it has other names for some, and their defaults for the others. Keys
of sizes and biases are not here, since weights of another shape or without use are told anyway."""

FROM_PADDING = names(
    "roberta xlm-roberta camembert mpnet longformer data2vec-text xlm-roberta-xl xmod ibert luke "
    "roberta-prelayernorm lilt markuplm layoutlmv3 esm"
)
"""Families whose first position is the one after that of the padding token."""

UNLIMITED = names("xlnet t5 mt5 umt5 longt5 switch_transformers bloom mamba mamba2")
"""Families without a table of positions: 512 are a default, and no limit."""

Rule = Any
"""An effect; or values that are harmless; or a test for them; or rules for the keys inside."""
Rules = Mapping[str, Rule]

_TOKENIZER: Rules = {
    **LOADING,
    **_each(HARMLESS, "padding_side clean_up_tokenization_spaces"),
    **_each(
        APPLIED,
        "model_max_length do_lower_case strip_accents tokenize_chinese_chars truncation_side "
        "use_fast add_prefix_space add_bos_token add_eos_token bos_token eos_token unk_token "
        "sep_token pad_token cls_token mask_token",
    ),
}
_MODEL: Rules = {
    **LOADING,
    **_each(HARMLESS, "dtype torch_dtype"),  # the precision is the caller's choice
    **_each(HARMLESS, "attn_implementation device_map low_cpu_mem_usage add_pooling_layer"),
    "use_safetensors": (None, True),
}
_CALL: Rules = {
    "max_length": APPLIED,
    "truncation": (True, "longest_first"),
    "padding": (True, "longest", "max_length"),
    "add_special_tokens": (True,),
    "return_attention_mask": (True,),
    "return_token_type_ids": (None, True),
    **_each(HARMLESS, "pad_to_multiple_of return_tensors logits_to_keep"),
}
_OTHERS = _each(HARMLESS, "audio image video")
_OUTPUT = {"method": ("forward",), "method_output_name": ("last_hidden_state",)}
_ARGUMENTS = {"model_kwargs": _MODEL, "processor_kwargs": _TOKENIZER, "config_kwargs": APPLIED}
SENTENCE: Rules = {
    **_ARGUMENTS,
    **{old: _ARGUMENTS[new] for old, new in LEGACY.items()},
    **_each(APPLIED, "max_seq_length do_lower_case"),
    "processing_kwargs": _OTHERS | {"text": _CALL, "common": _CALL, "chat_template": HARMLESS},
    "modality_config": _OTHERS | {"text": _OUTPUT},
    "module_output_name": ("token_embeddings",),
    "transformer_task": ("feature-extraction",),
    "backend": ("torch",),
    "unpad_inputs": HARMLESS,
    **_each((None,), "query_length document_length query_expansion tokenizer_name_or_path"),
}
"""Keys of :data:`SENTENCE_FILES`."""


def _met(requirements: Any) -> bool:
    """Whether this transformers is one that the makers accept; other packages do not compute."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    specifier = _section({"": requirements}, "").get("transformers", "")
    specifier = specifier.get("specifier", "") if isinstance(specifier, Mapping) else specifier
    try:
        # an installed pre-release may meet the requirement too
        return SpecifierSet(str(specifier), prereleases=True).contains(version("transformers"))
    except InvalidSpecifier:  # which sentence-transformers passes over
        return True


ROOT: Rules = {
    "__version__": HARMLESS,
    **_each(APPLIED, "prompts default_prompt_name truncate_dim"),
    "similarity_fn_name": (None, "cosine", "dot", "euclidean", "manhattan"),
    "model_type": ("SentenceTransformer",),
    "requirements": _met,
}
"""Keys of ``config_sentence_transformers.json``."""

_AT_VECTOR = _each((None, "sentence_embedding"), "module_input_name module_output_name")
MODULES: dict[str, Rules] = {
    "Transformer": SENTENCE,
    "Pooling": {
        **_each(HARMLESS, "embedding_dimension word_embedding_dimension"),
        **_each(
            APPLIED,
            "pooling_mode pooling_mode_cls_token pooling_mode_max_tokens pooling_mode_mean_tokens "
            "pooling_mode_mean_sqrt_len_tokens pooling_mode_weightedmean_tokens "
            "pooling_mode_lasttoken include_prompt",
        ),
    },
    "Dense": {
        **_AT_VECTOR,
        **_each(APPLIED, "in_features out_features bias"),
        "activation_function": lambda name: bool(_ACTIVATION.fullmatch(str(name))),
        "use_residual": (False,),
    },
    "Normalize": _AT_VECTOR,
    "Dropout": {"dropout": HARMLESS},
}
"""Modules of ``modules.json`` that are computed, and the keys of their configurations."""


def config_rules(family: str, *, alone: bool = False) -> Rules:
    """Keys of ``config.json`` that transformers does not give to the class of a family."""
    return {
        # refused if the model itself is code and transformers has no class made from it; of code of
        # a tokenizer load_tokenizer warns
        "auto_map": lambda code: family in _PORTED or "AutoModel" not in (code or ()),
        "position_embedding_type": (None, "absolute", *POSITIONS.get(family, ())),
        "pruned_heads": (None, {}),
        # of T5 sentence-transformers takes the encoder, too; of others the states of the decoder
        "is_encoder_decoder": APPLIED if alone or "t5" in family else (None, False),
        **_each(HARMLESS, "architectures model_type transformers_version dtype torch_dtype"),
        **_each(HARMLESS, "id2label label2id num_labels problem_type"),
        **OVERRIDDEN,
        **_OF_THE_CODE.get(family, {}),
    }


class Statement(NamedTuple):
    """A key of a file, or a file or weight itself, and what becomes of it."""

    file: str
    key: str  # dotted where it is inside of another one
    value: Any
    effect: str

    def __str__(self) -> str:
        if self.file == "weights":
            return f"the weight {self.key} ({self.value} that its class does not use)"
        code = ", code of the checkpoint" if self.key == "auto_map" else ""
        return f"{self.key}={self.value!r} ({self.file}{code})"


def statements(
    file: str, content: Mapping[str, Any], rules: Rules, *, before: str = ""
) -> Iterator[Statement]:
    """What becomes of each key of a file by its rules; ``before`` is the path to the content."""
    for key, value in content.items():
        # what no table knows counts as not computed
        rule = rules.get(key, REFUSED)
        if isinstance(rule, Mapping) and isinstance(value, Mapping):
            yield from statements(file, value, rule, before=f"{before}{key}.")
        elif isinstance(rule, str):
            yield Statement(file, before + key, value, rule)
        else:
            # rules for inner keys met something that has none; only nothing at all is harmless
            values = (None,) if isinstance(rule, Mapping) else rule
            harmless = rule(value) if callable(rule) else value in values
            yield Statement(file, before + key, value, HARMLESS if harmless else REFUSED)


def _section(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The keys inside of a key; none if it holds anything else."""
    value = content.get(key)
    return value if isinstance(value, Mapping) else {}


def stated_length(sentence: Mapping[str, Any]) -> tuple[str, int] | None:
    """Key and number of tokens per text in the settings, as sentence-transformers reads them."""
    values = {s.key: s.value for s in statements("", sentence, SENTENCE)}
    # the order in which sentence-transformers lets one setting override another
    for key in names(
        "processing_kwargs.common.max_length processing_kwargs.text.max_length "
        "processor_kwargs.model_max_length max_seq_length"
    ):
        value = values.get(key)
        if isinstance(value, int) and value > 0:
            return key, value
    return None


def options_of(sentence: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Arguments of a loader, ``processor_kwargs`` or ``config_kwargs``, that are to be applied."""
    options = _section(sentence, name)
    if name == "config_kwargs":
        return {key: value for key, value in options.items() if key not in LOADING}
    return {key: value for key, value in options.items() if _TOKENIZER.get(key) == APPLIED}


_BUFFERS = ("position_ids", "token_type_ids", "inv_freq", "masked_bias")


def first_unread(
    weights: Iterable[str], parts: list[str], base: str, depth: int
) -> Statement | None:
    """The first weight of the encoder among those that its class does not use, heads left out.

    ``parts`` are the names of the modules of the encoder, ``base`` the name that it has inside of a
    model with a head. Poolers, buffers and layers above ``depth``, which ``config.json`` cuts off,
    leave hidden states as they are.
    """
    unread = []
    for name in sorted(weights):
        # a model with a head saves its encoder under the name of the base
        path = name.removeprefix(f"{base}.")
        first, *inner = path.split(".")
        inside = path != name or any(first == p or first.startswith(f"{p}_") for p in parts)
        # the first number in a name is that of the layer
        above = int(next(filter(str.isdecimal, inner), "0")[:9]) >= depth
        buffer = inner and inner[-1] in _BUFFERS
        if inside and not (above or buffer or first.startswith("pooler")):
            unread.append(name)
    return Statement("weights", unread[0], f"1 of {len(unread)}", REFUSED) if unread else None


WIDTH = ("hidden_size", "dim", "n_embd", "d_model", "emb_dim")
"""Keys of ``config.json`` that have the width of hidden states, by family."""
_ACTIVATION: re.Pattern[str] = re.compile(r"torch\.nn\.(modules\.\w+\.)?[A-Z]\w*")
_SIZE = re.compile(r"(.+_)?(size|dim|ff|kv|embd|layers?|heads|labels|experts)|d_model")
_SIZES_PER_BYTE, _HARMLESS = 8, 10_000
_POSITIONS = 1 << 24


def wrong_size(config: Mapping[str, Any], *weights: Path) -> str:
    """What is wrong with a size in ``config.json`` of a model with such files; else ``""``.

    Of each size the weights hold a matrix whose other side is the width, or a part of it. Without
    this check transformers would build a billion layers, or fill in as many words.
    """
    width = next((n for name in WIDTH if isinstance(n := config.get(name), int) and n > 0), 1)
    # sizes on disk and not of tensors: nothing of the file has been trusted or read yet
    weight_bytes = sum(file.stat().st_size for file in weights)
    largest = max(_SIZES_PER_BYTE * weight_bytes // width, _HARMLESS)
    for name, value in config.items():
        # rotary positions have no weights, so that the file's size bounds nothing there
        limit = _POSITIONS if "position" in name else largest if _SIZE.fullmatch(name) else None
        if not isinstance(value, int) or limit is None:
            continue
        if value < 0 and _SIZE.fullmatch(name):
            return f"{name} is {value:,}"
        if value > limit:
            return f"{name} is {value:,}, which does not fit the weights of {weight_bytes:,} bytes"
    return ""
