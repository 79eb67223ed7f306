"""An encoder of BERT's family for a few texts, by numpy alone.

Importing torch and transformers takes several times as long as one text. What is here runs the same
layers straight from the weights, for the poolings ``cls`` and ``mean`` of single layers;
its vectors differ from the others' in the last bits (relative L2 below 1e-5). Whatever is not plain
(another file format, legacy names, a shape that does not fit ``config.json``, windows) is left to
:class:`~embedkit.encoding.encoder.Encoder`, whose messages say what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from embedkit.choices import Pooling
from embedkit.encoding.checkpoint import Checkpoint
from embedkit.encoding.families import GELU
from embedkit.encoding.tokenization import TextTokenizer, TokenizedText, Window
from embedkit.encoding.views import ShardVectors, View
from embedkit.types import Bool, Float32, Int64

__all__ = ["FewTextsEncoder"]

_WORDS = "embeddings.word_embeddings.weight"
_NEEDED = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers",
           "max_position_embeddings", "type_vocab_size", "vocab_size", "pad_token_id")  # fmt: skip
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_POOL: dict[Pooling, Callable[[Float32, Bool], Float32]] = {
    Pooling.CLS: lambda hidden, _: hidden[0],
    Pooling.MEAN: lambda hidden, counted: hidden[counted].sum(0) / max(int(counted.sum()), 1),
}


class FewTextsEncoder:
    """What :class:`~embedkit.dataset.vector_settings.DatasetEncoder` needs of an encoder.

    Args:
        checkpoint: of BERT's family.
        tokenizer: opens its tokenizer.
        weights: arrays of all weights but the word embeddings, by name without prefix.
        words: gives rows of the word embeddings.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        tokenizer: TextTokenizer,
        weights: dict[str, Float32],
        words: Callable[[Sequence[int]], Float32],
    ) -> None:
        config = checkpoint.config
        self.checkpoint, self.tokenizer = checkpoint, tokenizer
        self.n_layers, self.width = checkpoint.n_layers, checkpoint.width
        self._weights, self._words = weights, words
        self._heads = int(config["num_attention_heads"])
        self._eps = np.float32(config.get("layer_norm_eps", 1e-12))
        self._activation = _ACTIVATIONS[GELU[config.get("hidden_act", "gelu")]]

    @staticmethod
    def can_make(views: Sequence[View], on_long: str) -> bool:
        """Whether all of these views can be made, of texts that are treated so if they are long."""
        simple = all(v.pooling in _POOL and v.layer.combination is None for v in views)
        return simple and on_long != "window"

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, open_tokenizer: Callable[[Checkpoint], TextTokenizer]
    ) -> FewTextsEncoder | None:
        """Load a checkpoint; ``None`` if it is not plain.

        Args:
            checkpoint: what to load.
            open_tokenizer: opens its tokenizer, in a thread while the weights are read.
        """
        from concurrent.futures import ThreadPoolExecutor

        config = checkpoint.config
        if not checkpoint.is_plain_bert or not all(
            type(config.get(name)) is int for name in _NEEDED
        ):
            return None
        with ThreadPoolExecutor(1) as pool:
            tokenizer = pool.submit(open_tokenizer, checkpoint)
            found = _read(checkpoint)
            return None if found is None else cls(checkpoint, tokenizer.result(), *found)

    def encode_shard(
        self, texts: Sequence[TokenizedText], *, views: Sequence[View], special_tokens: bool = True
    ) -> ShardVectors:
        """Run tokenized texts through the model; arguments as for :meth:`Encoder.encode_shard`."""
        from threadpoolctl import threadpool_limits

        found: dict[str, list[Float32]] = {view.name: [] for view in views}
        highest = max(view.layer.highest for view in views)
        with threadpool_limits(1, user_api="blas"):  # several would wait for each other
            for text in texts:
                (window,) = text.windows
                counted = np.ones(len(window.ids), np.bool_) if special_tokens else ~text.special
                for layer, hidden in enumerate(self._layers(window, highest)):
                    for view in (view for view in views if view.layer.highest == layer):
                        found[view.name].append(_POOL[view.pooling](hidden, counted))
        return ShardVectors(
            {name: np.stack(rows).astype(np.float32) for name, rows in found.items()}, {},
            encoded=len(texts), splits=0, seconds=0.0,
        )  # fmt: skip

    def _layers(self, window: Window, highest: int) -> Iterator[Float32]:
        """Hidden states ``(tokens, width)`` of the layers up to the highest one."""
        config, weights = self.checkpoint.config, self._weights
        positions: Int64 = np.arange(len(window.ids))
        if self.checkpoint.counts_from_padding:
            real = window.ids != config["pad_token_id"]
            positions = real.cumsum() * real + config["pad_token_id"]
        hidden = self._words(window.ids.tolist())
        hidden = hidden + weights["embeddings.token_type_embeddings.weight"][window.type_ids]
        hidden += weights["embeddings.position_embeddings.weight"][positions]
        hidden = self._norm("embeddings", hidden)
        yield hidden
        for number in range(highest):
            layer = f"encoder.layer.{number}"
            context = self._linear(f"{layer}.attention.output.dense", self._attend(layer, hidden))
            hidden = self._norm(f"{layer}.attention.output", context + hidden)
            inner = self._activation(self._linear(f"{layer}.intermediate.dense", hidden))
            hidden = self._norm(
                f"{layer}.output", self._linear(f"{layer}.output.dense", inner) + hidden
            )
            yield hidden

    def _attend(self, layer: str, hidden: Float32) -> Float32:
        query, key, value = (
            self._linear(f"{layer}.attention.self.{name}", hidden)
            .reshape(len(hidden), self._heads, -1).transpose(1, 0, 2)
            for name in ("query", "key", "value")
        )  # fmt: skip
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(np.float32(query.shape[2]))
        powers = np.exp(scores - scores.max(2, keepdims=True))
        context = powers / powers.sum(2, keepdims=True) @ value
        return np.asarray(context.transpose(1, 0, 2).reshape(hidden.shape))

    def _linear(self, name: str, values: Float32) -> Float32:
        return values @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, name: str, values: Float32) -> Float32:
        values = values - values.mean(1, keepdims=True)
        values /= np.sqrt(np.square(values).mean(1, keepdims=True) + self._eps)
        weights = self._weights
        return values * weights[f"{name}.LayerNorm.weight"] + weights[f"{name}.LayerNorm.bias"]


def _gelu(x: Float32) -> Float32:
    """By erf, with an error below 1.5e-7 (Abramowitz & Stegun 1964, 7.1.26)."""
    z = np.abs(x) / np.float32(np.sqrt(2))
    t = 1 / (1 + np.float32(0.3275911) * z)
    tail = np.zeros_like(t)
    for factor in reversed(_ERF):
        tail = (tail + np.float32(factor)) * t
    tail *= np.exp(-z * z)  # 1 - erf(z)
    return np.asarray(x * np.where(x < 0, tail, 2 - tail) / 2)


def _gelu_tanh(x: Float32) -> Float32:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
    return np.asarray(x * (1 + np.tanh(inner)) / 2)


_ACTIVATIONS = {"none": _gelu, "tanh": _gelu_tanh}


def _read(
    checkpoint: Checkpoint,
) -> tuple[dict[str, Float32], Callable[[Sequence[int]], Float32]] | None:
    """Weights by name, and a reader of rows of the word embeddings; ``None`` if not as expected."""
    from safetensors import SafetensorError, safe_open

    if checkpoint.is_pickle:
        return None
    parts: dict[str, Any] = {}
    try:
        for file in checkpoint.weights:
            stored: Any = safe_open(checkpoint.folder / file, "numpy")
            parts |= {name: stored.get_slice(name) for name in stored.keys()}  # noqa: SIM118
        start = next((n for n in parts if n.endswith(_WORDS)), _WORDS).removesuffix(_WORDS)
        shapes = _shapes(checkpoint.config)
        if any(tuple(parts[start + n].get_shape()) != shape for n, shape in shapes.items()):
            return None
        words = parts[start + _WORDS]
        weights = {
            name: np.asarray(parts[start + name][:], np.float32)
            for name in shapes
            if name != _WORDS
        }
    except (SafetensorError, OSError, KeyError, TypeError):  # bfloat16 is a TypeError of numpy
        return None
    return weights, lambda ids: np.concatenate(
        [np.asarray(words[i : i + 1], np.float32) for i in ids]
    )


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
