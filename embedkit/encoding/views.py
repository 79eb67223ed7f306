"""The language of layers and poolings: what users type → which columns to compute.

Layer 0 is the embedding output, 1 to n the encoder layers; negative numbers count from the end.
``-1``, ``0,6,12``, ``-4..-1``, ``all`` choose layers; ``sum:-4..-1``, ``mean:-4..-1`` and
``concat:-4..-1`` combine a range of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from embedkit.choices import Pooling
from embedkit.errors import UsageError, did_you_mean

__all__ = [
    "LayerSpec",
    "Pooling",
    "View",
    "parse_layers",
    "parse_poolings",
    "parse_view",
    "split_view",
    "views_of",
]

_COMBINATIONS = ("sum", "mean", "concat")
_ONE = re.compile(r"[+-]?\d+")
_RANGE = re.compile(r"([+-]?\d+)\.\.([+-]?\d+)")
_COMBINED_NAME = re.compile(r"(sum|mean|concat)_(\d+)to(\d+)")


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer, or a combination of several.

    Attributes:
        layers: positive layer numbers, ascending for a combination.
        combination: ``sum``, ``mean``, ``concat``, or ``None`` for a single layer.
    """

    layers: tuple[int, ...]
    combination: str | None = None

    @property
    def name(self) -> str:
        """As it stands in column names: ``12`` or ``sum_9to12``."""
        if self.combination is None:
            return str(self.layers[0])
        return f"{self.combination}_{self.layers[0]}to{self.layers[-1]}"

    def width(self, hidden: int) -> int:
        """Width of the combined vectors, given that of one layer."""
        return hidden * len(self.layers) if self.combination == "concat" else hidden


@dataclass(frozen=True, slots=True)
class View:
    """One sentence vector column: a pooling of a layer. ``pooler`` belongs to the last layer."""

    pooling: Pooling
    layer: LayerSpec

    @property
    def name(self) -> str:
        """The column name, such as ``mean_12``, ``cls_sum_9to12`` or ``pooler``."""
        return "pooler" if self.pooling is Pooling.POOLER else f"{self.pooling}_{self.layer.name}"


def parse_layers(text: str, *, n_layers: int) -> tuple[LayerSpec, ...]:
    """Read a comma list of layers, ranges and combinations.

    Args:
        text: such as ``all``, ``-1``, ``0,6,12``, ``-4..-1``, ``sum:-4..-1,12``.
        n_layers: encoder layers of the model.

    Raises:
        UsageError: it cannot be read, or a layer does not exist.
    """
    specs: dict[LayerSpec, None] = {}
    for part in (p.strip() for p in str(text).split(",")):
        specs.update(dict.fromkeys(_layers_of(part, n_layers)))
    return tuple(specs)


def parse_view(name: str, *, n_layers: int) -> View:
    """Read a view name such as ``mean_-1``, ``cls_0``, ``max_sum_9to12`` or ``pooler``.

    Raises:
        UsageError: it is not a view name, or the layer does not exist.
    """
    if name == "pooler":
        return View(Pooling.POOLER, LayerSpec((n_layers,)))
    pooling, layer = split_view(name)
    if pooling in set(Pooling) - {Pooling.POOLER} and layer:
        if combined := _COMBINED_NAME.fullmatch(layer):
            kind, first, last = combined.groups()
            layer = f"{kind}:{first}..{last}"
        specs = parse_layers(layer, n_layers=n_layers)
        if len(specs) == 1:
            return View(Pooling(pooling), specs[0])
    raise UsageError(
        f"{name!r} is not a view. Views are named pooling_layer, such as mean_-1, cls_0, "
        "mean_sum_9to12, or pooler."
    )


def split_view(name: str) -> tuple[str, str]:
    """Pooling and layer of a view name; what is no view name is divided at its first ``_``.

    >>> split_view("mean_sum_9to12"), split_view("pooler")
    (('mean', 'sum_9to12'), ('pooler', ''))
    """
    for known in sorted(map(str, Pooling), key=len, reverse=True):
        if name == known or name.startswith(f"{known}_"):
            return known, name[len(known) + 1 :]
    pooling, _, layer = name.partition("_")
    return pooling, layer


def parse_poolings(names: str | Iterable[str]) -> tuple[Pooling, ...]:
    """Read pooling names: a list, or a string with commas.

    Raises:
        UsageError: one is unknown; the message lists the choices.
    """
    poolings: dict[Pooling, None] = {}
    for name in names.split(",") if isinstance(names, str) else names:
        try:
            poolings[Pooling(name.strip())] = None
        except ValueError as error:
            raise UsageError(
                f"--pooling {name}: expected {', '.join(Pooling)}.{did_you_mean(name, Pooling)}"
            ) from error
    return tuple(poolings)


def views_of(
    layers: Sequence[LayerSpec], poolings: Sequence[Pooling], *, n_layers: int
) -> tuple[View, ...]:
    """Every layer with every pooling, layer by layer, and ``pooler`` once at the end."""
    views = [View(p, spec) for spec in layers for p in poolings if p is not Pooling.POOLER]
    if Pooling.POOLER in poolings:
        views.append(View(Pooling.POOLER, LayerSpec((n_layers,))))
    return tuple(views)


def _layers_of(part: str, n_layers: int) -> list[LayerSpec]:
    if part == "all":
        return [LayerSpec((i,)) for i in range(n_layers + 1)]
    kind, colon, rest = part.partition(":")
    if colon:
        if kind not in _COMBINATIONS:
            raise UsageError(
                f"--layers {part}: expected sum:, mean: or concat: before a range of layers."
                f"{did_you_mean(kind, _COMBINATIONS)}"
            )
        return [LayerSpec(tuple(_range(rest, n_layers, part)), kind)]
    return [LayerSpec((i,)) for i in _range(part, n_layers, part)]


def _range(text: str, n_layers: int, given: str) -> list[int]:
    if _ONE.fullmatch(text):
        return [_resolve(int(text), n_layers, given)]
    if match := _RANGE.fullmatch(text):
        first, last = (_resolve(int(g), n_layers, given) for g in match.groups())
        if first <= last:
            return list(range(first, last + 1))
        raise UsageError(
            f"--layers {given}: the range runs backwards; write the lower layer first."
        )
    raise UsageError(
        f"--layers {given}: expected all, a layer (-1), a list (0,6,12), a range (-4..-1) or a "
        "combination (sum:-4..-1, mean:…, concat:…)."
    )


def _resolve(layer: int, n_layers: int, given: str) -> int:
    if not -n_layers - 1 <= layer <= n_layers:
        raise UsageError(
            f"--layers {given}: the model has layers 0 (embeddings) to {n_layers}; "
            f"-1 is the last and -{n_layers + 1} the embeddings."
        )
    return layer if layer >= 0 else n_layers + 1 + layer
