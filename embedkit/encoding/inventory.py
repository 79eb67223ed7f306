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

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
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

LOADING = (
    "cache_dir",
    "code_revision",
    "force_download",
    "local_files_only",
    "revision",
    "token",
    "trust_remote_code",
)
"""Where and how files are found: sentence-transformers' business, and none of a vector's."""

OVERRIDDEN = (
    "chunk_size_feed_forward",  # saves memory only, and not for every length
    "distributed_config",
    "fusion_config",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "torchscript",
    "transformers_weights",  # names another file of weights, which would not be hashed
    "use_return_dict",
)
"""Keys of ``config.json`` that are dropped: they choose the form of a result, not its numbers, but
for the last file of weights, which the table refuses."""

_PORTED = ("nomic_bert", "jina_embeddings_v3", "gte", "eurobert")
"""Families that began as code of their checkpoints: transformers' class is made from that code."""

POSITIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*_PORTED, "modernbert"), ("rope", "rotary")),
    "esm": ("rotary",),
    "evolla": ("rotary",),
    "granitemoehybrid": ("rope",),
}
"""Kinds of positions that a family computes beside ``absolute``. transformers 5 removed relative
ones from BERT and its relatives and computes absolute ones instead, without a word."""

Rule = Any
"""An effect; or values that are harmless; or a test for them; or rules for the keys inside."""
Rules = Mapping[str, Rule]

_TOKENIZER: Rules = {
    **dict.fromkeys(LOADING, HARMLESS),
    **dict.fromkeys(("padding_side", "clean_up_tokenization_spaces"), HARMLESS),
    **dict.fromkeys(
        (
            "model_max_length",
            "do_lower_case",
            "strip_accents",
            "tokenize_chinese_chars",
            "truncation_side",
            "use_fast",
            "add_prefix_space",
            "add_bos_token",
            "add_eos_token",
            "bos_token",
            "eos_token",
            "unk_token",
            "sep_token",
            "pad_token",
            "cls_token",
            "mask_token",
        ),
        APPLIED,
    ),
}
_MODEL: Rules = {
    **dict.fromkeys(LOADING, HARMLESS),
    **dict.fromkeys(("dtype", "torch_dtype"), HARMLESS),  # the precision is the caller's choice
    **dict.fromkeys(("attn_implementation", "device_map", "low_cpu_mem_usage"), HARMLESS),
    "add_pooling_layer": HARMLESS,
    "use_safetensors": (None, True),
}
_CALL: Rules = {
    "max_length": APPLIED,
    "truncation": (True, "longest_first"),
    "padding": (True, "longest", "max_length"),
    "add_special_tokens": (True,),
    "return_attention_mask": (True,),
    "return_token_type_ids": (None, True),
    **dict.fromkeys(("pad_to_multiple_of", "return_tensors", "logits_to_keep"), HARMLESS),
}
_OTHER_INPUTS = dict.fromkeys(("audio", "image", "video"), HARMLESS)

_ARGUMENTS: Rules = {
    "model_kwargs": _MODEL,
    "processor_kwargs": _TOKENIZER,
    "config_kwargs": APPLIED,
}
SENTENCE: Rules = {
    **_ARGUMENTS,
    **{old: _ARGUMENTS[new] for old, new in LEGACY.items()},
    "max_seq_length": APPLIED,
    "do_lower_case": APPLIED,
    "processing_kwargs": {
        **_OTHER_INPUTS,
        "text": _CALL,
        "common": _CALL,
        "chat_template": HARMLESS,
    },
    "transformer_task": ("feature-extraction",),
    "modality_config": {
        **_OTHER_INPUTS,
        "text": {
            "method": ("forward",),
            "method_output_name": ("last_hidden_state", ["last_hidden_state"]),
        },
    },
    "module_output_name": ("token_embeddings",),
    "unpad_inputs": HARMLESS,
    "backend": ("torch",),
    **dict.fromkeys(
        ("query_length", "document_length", "query_expansion", "tokenizer_name_or_path"), (None,)
    ),
}
"""Keys of :data:`SENTENCE_FILES`."""


def _met(requirements: Any) -> bool:
    """Whether this transformers is one that the makers accept; other packages do not compute."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    stated = requirements.get("transformers", "") if isinstance(requirements, Mapping) else ""
    stated = stated.get("specifier", "") if isinstance(stated, Mapping) else stated
    try:
        return SpecifierSet(str(stated), prereleases=True).contains(version("transformers"))
    except InvalidSpecifier:  # which sentence-transformers passes over
        return True


ROOT: Rules = {
    "__version__": HARMLESS,
    **dict.fromkeys(("prompts", "default_prompt_name", "truncate_dim"), APPLIED),
    "similarity_fn_name": (None, "cosine", "dot", "euclidean", "manhattan"),
    "model_type": ("SentenceTransformer",),
    "requirements": _met,
}
"""Keys of ``config_sentence_transformers.json``."""

_AT_VECTOR = dict.fromkeys(
    ("module_input_name", "module_output_name"), (None, "sentence_embedding")
)
_LEGACY_POOLING = (
    "pooling_mode_cls_token",
    "pooling_mode_max_tokens",
    "pooling_mode_mean_tokens",
    "pooling_mode_mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens",
    "pooling_mode_lasttoken",
)
MODULES: dict[str, Rules] = {
    "Transformer": SENTENCE,
    "Pooling": {
        **dict.fromkeys(("embedding_dimension", "word_embedding_dimension"), HARMLESS),
        **dict.fromkeys(("pooling_mode", *_LEGACY_POOLING), APPLIED),
        "include_prompt": APPLIED,
    },
    "Dense": {
        **_AT_VECTOR,
        **dict.fromkeys(("in_features", "out_features", "bias"), APPLIED),
        "activation_function": lambda name: str(name).startswith("torch.nn."),
        "use_residual": (False,),
    },
    "Normalize": _AT_VECTOR,
    "Dropout": {"dropout": HARMLESS},
}
"""Modules of ``modules.json`` that are computed, and the keys of their configurations."""


def config_rules(family: str) -> Rules:
    """Keys of ``config.json`` that transformers does not give to the class of a family."""
    return {
        "auto_map": lambda code: family in _PORTED or "AutoModel" not in (code or ()),
        "position_embedding_type": (None, "absolute", *POSITIONS.get(family, ())),
        "pruned_heads": (None, {}),
        "transformers_weights": (None,),
        "is_encoder_decoder": APPLIED,
        "dtype": HARMLESS,
        "torch_dtype": HARMLESS,
        **dict.fromkeys(("architectures", "model_type", "transformers_version"), HARMLESS),
        **dict.fromkeys(("id2label", "label2id", "num_labels", "problem_type"), HARMLESS),
        **{key: HARMLESS for key in OVERRIDDEN if key != "transformers_weights"},
    }


class Statement(NamedTuple):
    """A key of a file, or a file or weight itself, and what becomes of it."""

    file: str
    key: str  # dotted where it is inside of another one
    value: Any
    effect: str

    @property
    def shapes_all(self) -> bool:
        """Whether it shapes hidden states, and so every view."""
        return self.file in ("config.json", "weights", *SENTENCE_FILES)

    def __str__(self) -> str:
        if self.file == "weights":
            return f"the weight {self.key} ({self.value} that its class does not use)"
        code = ", code of the checkpoint" if self.key == "auto_map" else ""
        return f"{self.key}={self.value!r} ({self.file}{code})"


def statements(file: str, content: Mapping[str, Any], rules: Rules) -> Iterator[Statement]:
    """What becomes of each key of a file by its rules."""
    for path, value, rule in _leaves(content, rules):
        if isinstance(rule, tuple):
            effect = HARMLESS if value in rule else REFUSED
        elif callable(rule):
            effect = HARMLESS if rule(value) else REFUSED
        else:
            effect = rule
        yield Statement(file, path, value, effect)


def _leaves(
    content: Mapping[str, Any], rules: Rules, before: str = ""
) -> Iterator[tuple[str, Any, str | tuple[Any, ...] | Callable[[Any], bool]]]:
    for key, value in content.items():
        rule = rules.get(key, REFUSED)
        if not isinstance(rule, Mapping):
            yield before + key, value, rule
        elif isinstance(value, Mapping):
            yield from _leaves(value, rule, f"{before}{key}.")
        elif value is not None:
            yield before + key, value, REFUSED


def stated_length(sentence: Mapping[str, Any]) -> int | None:
    """Tokens per text by the settings of the transformer, as sentence-transformers reads them."""
    calls = sentence.get("processing_kwargs") or {}
    for source, key in (
        (calls.get("common"), "max_length"),
        (calls.get("text"), "max_length"),
        (sentence.get("processor_kwargs"), "model_max_length"),
        (sentence, "max_seq_length"),
    ):
        value = source.get(key) if isinstance(source, Mapping) else None
        if isinstance(value, int) and value > 0:
            return value
    return None


def options_of(sentence: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Arguments of a loader, ``processor_kwargs`` or ``config_kwargs``, that are to be applied."""
    given = sentence.get(name)
    options = given if isinstance(given, Mapping) else {}
    table = _TOKENIZER if name == "processor_kwargs" else {}
    return {
        key: value
        for key, value in options.items()
        if key not in LOADING and table.get(key, APPLIED) == APPLIED
    }


def unread_weights(names: Iterable[str], parts: Iterable[str], base: str, depth: int) -> list[str]:
    """Weights of the encoder among those that its class does not use, heads left out.

    ``parts`` are the names of the modules of the encoder, ``base`` the name that it has inside of a
    model with a head. Poolers, buffers and layers above ``depth``, which ``config.json`` cuts off,
    leave hidden states as they are.
    """
    own = tuple(parts)
    found = []
    for name in sorted(names):
        path = name.removeprefix(f"{base}.")
        first, *inner = path.split(".")
        inside = path != name or any(first == part or first.startswith(f"{part}_") for part in own)
        above = int(next(filter(str.isdigit, inner), 0)) >= depth
        buffer = inner and inner[-1] in (
            "position_ids",
            "token_type_ids",
            "inv_freq",
            "masked_bias",
        )
        if inside and not (above or buffer or first.startswith("pooler")):
            found.append(name)
    return found
