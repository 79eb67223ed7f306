"""An encoder of BERT's family straight from its file, without the model classes of transformers.

Importing those classes, loading the weights into them and comparing two forwards takes longer than
one text. What is loaded here has the weights alone, for the padding-free forward on CPU in fp32,
which gives the same bits; whatever is not plain (another file format, legacy names, a shape that
does not fit ``config.json``) is left to :func:`~embedkit.encoding.model.load_model`, whose messages
say what is wrong.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from embedkit.encoding.checkpoint import Checkpoint
from embedkit.encoding.packed import PackedModel, can_pack

if TYPE_CHECKING:
    from embedkit.encoding.model import PlainModel

__all__ = ["model_from_file"]

_WORDS = "embeddings.word_embeddings.weight"
_NEEDED = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers",
           "max_position_embeddings", "type_vocab_size", "vocab_size", "pad_token_id")  # fmt: skip


def model_from_file(checkpoint: Checkpoint) -> PackedModel | None:
    """The padding-free forward of a checkpoint, on CPU in fp32; ``None`` if it is not plain."""
    config = checkpoint.config
    if not can_pack(checkpoint) or not all(type(config.get(name)) is int for name in _NEEDED):
        return None
    if config.get("embedding_size", config["hidden_size"]) != config["hidden_size"]:
        return None  # ELECTRA's projection
    weights: dict[str, Tensor] = {}
    try:
        for file in checkpoint.weights:
            with safe_open(checkpoint.folder / file, "pt") as stored:  # mapped, not read
                weights |= {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, OSError):
        return None
    start = next((name for name in weights if name.endswith(_WORDS)), _WORDS).removesuffix(_WORDS)
    found = {n.removeprefix(start): w for n, w in weights.items() if n.startswith(start)}
    shapes = _shapes(config)
    if any(name not in found or found[name].shape != shape for name, shape in shapes.items()):
        return None
    tree = _tree({name: found[name].float() for name in shapes})
    for name in ("word", "token_type", "position"):
        own = getattr(tree.embeddings, f"{name}_embeddings")
        padding = config["pad_token_id"] if name == "word" else None
        rows, width = own.weight.shape
        made = nn.Embedding(rows, width, padding_idx=padding, _weight=own.weight)
        setattr(tree.embeddings, f"{name}_embeddings", made)
    loaded = _Loaded(checkpoint, tree, _pooler(found))
    return PackedModel(cast("PlainModel", loaded), checkpoint)


class _Loaded:
    """What the padding-free forward takes of a loaded model."""

    def __init__(self, checkpoint: Checkpoint, module: Any, pooler: nn.Module | None) -> None:
        self.n_layers, self.width = checkpoint.n_layers, checkpoint.width
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.module, self.pooler = module, pooler
        self.module.config = SimpleNamespace(**checkpoint.config)
        self.all_layers = [getattr(module.encoder.layer, str(i)) for i in range(self.n_layers)]

    def pool(self, first: Tensor) -> Tensor:
        """Not called: the padding-free forward has the pooler's product."""
        raise NotImplementedError


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of all weights of the encoder by name, without a pooler."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        _WORDS: (config["vocab_size"], width),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], width),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], width),
        "embeddings.LayerNorm.weight": (width,), "embeddings.LayerNorm.bias": (width,),
    }  # fmt: skip
    linear = {"attention.self.query": (width, width), "attention.self.key": (width, width),
              "attention.self.value": (width, width), "attention.output.dense": (width, width),
              "intermediate.dense": (inner, width), "output.dense": (width, inner)}  # fmt: skip
    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        for name, shape in linear.items():
            shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{layer}.{name}.weight": (width,), f"{layer}.{name}.bias": (width,)}
    return shapes


def _tree(weights: dict[str, Tensor]) -> SimpleNamespace:
    """Weights by dotted name as nested attributes."""
    root = SimpleNamespace()
    for name, value in weights.items():
        *path, last = name.split(".")
        here = root
        for part in path:
            here.__dict__.setdefault(part, SimpleNamespace())
            here = getattr(here, part)
        setattr(here, last, value)
    return root


def _pooler(found: dict[str, Tensor]) -> nn.Module | None:
    if "pooler.dense.weight" not in found or "pooler.dense.bias" not in found:
        return None
    weight = found["pooler.dense.weight"].float()
    dense = nn.Linear(weight.shape[1], weight.shape[0])
    dense.load_state_dict({"weight": weight, "bias": found["pooler.dense.bias"].float()})
    pooler = nn.Module()
    pooler.dense, pooler.activation = dense, nn.Tanh()
    return pooler.eval()
