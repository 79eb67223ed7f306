"""The model families: one row for each, with what the encoder needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FAMILIES", "GELU", "Family"]

GELU = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
"""Activations that the padding-free forward understands, with the name of their form in torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What distinguishes a family; its name is ``model_type`` in ``config.json``.

    Attributes:
        layers: path of the list of encoder layers in the model of transformers, where the last
            hidden state is exactly the output of the last layer that ran. Layers above the highest
            one asked for are then not run. ``None`` for families that apply a norm after the
            layers or share weights between them.
        packed: whether its layers are BERT's, with the same names, so that the padding-free
            forward computes them. Requires ``layers``.
        positions_from_padding: whether the first position is the one after that of the padding
            token, so that fewer positions are usable.
        wordpiece: whether its tokenizer is BERT's WordPiece.
    """

    layers: str | None = None
    packed: bool = False
    positions_from_padding: bool = False
    wordpiece: bool = False

    def __post_init__(self) -> None:
        if self.packed and self.layers is None:
            raise ValueError("packed=True: the packed forward needs the path of the layers")


_BERT = "encoder.layer"

FAMILIES = {
    "bert": Family(layers=_BERT, packed=True, wordpiece=True),
    "roberta": Family(layers=_BERT, packed=True, positions_from_padding=True),
    "xlm-roberta": Family(layers=_BERT, packed=True, positions_from_padding=True),
    "camembert": Family(layers=_BERT, packed=True, positions_from_padding=True),
    "electra": Family(layers=_BERT, packed=True, wordpiece=True),
    "distilbert": Family(layers="transformer.layer", wordpiece=True),
    "mpnet": Family(positions_from_padding=True),
    "albert": Family(),
    "deberta": Family(),
    "deberta-v2": Family(),
    "modernbert": Family(),
}
"""Encoders that are read. The first six are tested layer by layer in this project."""
