"""BERT and RoBERTa without the models of transformers, whose import takes as long as the answer.

    ids ─► word + segment + position ─► norm ─┐
                                              ▼
    n_layers ×   ┌─► attention ─► dense ─► + ─► norm ─┬─► dense ─► GELU ─► dense ─► + ─► norm ─┐
                 └──────────────────────────┘         └─────────────────────────────┘          ▼

What is notable:

- Most encoders are of these two families, whose forward has been the same since 2019, while to
  import one class of transformers takes longer than torch itself (`benchmarks/README.md`, Startup).
- Modules have the names of transformers: weights are loaded by name, and
  :func:`~embedkit.encoding.products.hasten` finds what it replaces. Each step is the same operation
  in the same order, so that the packed forward has the same bits; a test compares them for every
  family and precision.
- :func:`load` takes what is usual and returns nothing for all else: another activation, weights
  under other names or twice, pickles, adapters. Then the modules are those of transformers, as they
  are on GPUs, in training, and in the forward that everything is compared with.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from embedkit.encoding.checkpoint import Checkpoint

_BASES = {"bert": "bert", "roberta": "roberta", "xlm-roberta": "roberta", "camembert": "roberta"}
"""Families that are loaded here, and the name of the encoder inside of a model with a head."""


class States(NamedTuple):
    """What a forward returns: ``(sequences, tokens, width)``, of all layers if they are wanted."""

    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, ...]


class GELUActivation(nn.GELU):
    """The activation, under the name that it has in transformers."""


def _attend(
    _module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, None]:
    """Attention of padded batches, as transformers calls it: ``(sequences, heads, tokens, size)``.

    The result is ``(sequences, tokens, heads, size)``.
    """
    context = scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return context.transpose(1, 2), None


class _SelfAttention(nn.Module):
    is_causal = False

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads, width = config.num_attention_heads, config.hidden_size
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.attend: Callable[..., Any] = _attend

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        shape = *hidden.shape[:2], self.heads, -1
        products = self.query, self.key, self.value
        states = [product(hidden).view(shape).transpose(1, 2) for product in products]
        context: Tensor = self.attend(self, *states, mask)[0]
        return context.reshape(hidden.shape)


class _Output(nn.Module):
    """A product that is added to the input of its block, and a norm."""

    def __init__(self, config: Any, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor, before: Tensor) -> Any:
        return self.LayerNorm(self.dense(hidden) + before)


class _Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        # as transformers nests and names them: the parts without a step of their own hold others
        self.attention = nn.ModuleDict(
            {"self": _SelfAttention(config), "output": _Output(config, width)}
        )
        self.intermediate = nn.ModuleDict(
            {"dense": nn.Linear(width, inner), "intermediate_act_fn": GELUActivation()}
        )
        self.output = _Output(config, inner)

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Any:
        context = self.attention["self"](hidden, mask)
        attended = self.attention["output"](context, hidden)
        inner = self.intermediate["dense"](attended)
        return self.output(self.intermediate["intermediate_act_fn"](inner), attended)


class _Embeddings(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size

        def matrix(rows: int, padding: int | None = None) -> nn.Embedding:
            # given, and not drawn: torch imports its compiler to draw numbers for no device
            empty = torch.empty(rows, width)
            return nn.Embedding(rows, width, padding_idx=padding, _weight=empty)

        self.word_embeddings = matrix(config.vocab_size, config.pad_token_id)
        self.position_embeddings = matrix(config.max_position_embeddings)
        self.token_type_embeddings = matrix(config.type_vocab_size)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)

    def forward(self, ids: Tensor, types: Tensor, positions: Tensor) -> Any:
        # in this order, which decides about last bits
        states = self.word_embeddings(ids) + self.token_type_embeddings(types)
        return self.LayerNorm(states + self.position_embeddings(positions))


class Bert(nn.Module):
    """An encoder of one of the two families; RoBERTa numbers positions from that of padding on."""

    _supports_attention_backend = True  # as transformers says it: another may compute attention

    def __init__(self, config: Any, *, base: str, counts_from_padding: bool) -> None:
        super().__init__()
        self.config, self.base_model_prefix = config, base
        self._counts = counts_from_padding
        self.embeddings = _Embeddings(config)
        # of first tokens, (sequences, 1, width)
        dense = nn.Linear(config.hidden_size, config.hidden_size)
        steps = {"rows": nn.Flatten(), "dense": dense, "activation": nn.Tanh()}
        self.pooler: nn.Module | None = nn.Sequential(OrderedDict(steps))
        layers = [_Layer(config) for _ in range(config.num_hidden_layers)]
        self.encoder: Any = nn.ModuleDict({"layer": nn.ModuleList(layers)})

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the matrix of words."""
        return self.embeddings.word_embeddings

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> States:
        """Return the states of a batch ``(sequences, tokens)``; the mask has 1 for tokens."""
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)
            if self._counts:
                padding = self.config.pad_token_id
                real = (input_ids != padding).long()
                position_ids = real.cumsum(1) * real + padding
        mask = None if attention_mask is None else attention_mask[:, None, None].bool()
        states = [self.embeddings(input_ids, token_type_ids, position_ids)]
        for layer in self.encoder["layer"]:
            hidden = layer(states[-1], mask)
            # only of all layers: each has megabytes, and the packed forward hands them out itself
            states = [*states, hidden] if output_hidden_states else [hidden]
        return States(states[-1], tuple(states))


def load(checkpoint: Checkpoint, *, dtype: torch.dtype) -> tuple[Bert, dict[str, Any]] | None:
    """Return the encoder and a report as the loader of transformers makes it, or nothing.

    Nothing is returned for what is not as usual, and is to be loaded by transformers.
    """
    if checkpoint.model_type not in _BASES or checkpoint.adapter or checkpoint.is_pickle:
        return None
    from safetensors.torch import load_file

    config, base = checkpoint.built_config(), _BASES[checkpoint.model_type]
    even = config.num_attention_heads and config.hidden_size % config.num_attention_heads == 0
    if config.hidden_act != "gelu" or not even or not config.type_vocab_size:
        return None
    weights, names = dict[str, Tensor](), dict[str, str]()
    try:
        with torch.device("meta"):
            model = Bert(config, base=base, counts_from_padding=checkpoint.counts_from_padding)
        for file in checkpoint.weights:
            for name, tensor in load_file(checkpoint.transformer / file).items():
                place = name.removeprefix(f"{base}.")
                # which of two counts, the bare one or that of a model with a head, is decided there
                if place in weights:
                    return None
                weights[place], names[place] = tensor.to(dtype), name
        missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
    except Exception:  # of whatever is damaged, also another shape: transformers says what
        return None
    if any(not name.startswith("pooler.") for name in missing):
        return None
    if missing:
        model.pooler = None
    unused = [names[place] for place in unexpected]
    return model, {"missing_keys": missing, "unexpected_keys": unused, "mismatched_keys": []}
