"""The names of layers and views: what users type → which columns to compute.

Layer 0 is the embedding output, 1 to n the encoder layers; negative numbers count from the end.
``-1``, ``0,6,12``, ``-4..-1``, ``all`` choose layers; ``sum:-4..-1``, ``mean:-4..-1`` and
``concat:-4..-1`` combine a range of them, ``sum:-1,-2`` and ``concat:-1,-2`` a list. ``concat``
puts the layers side by side in the order in which they are written: ``concat:-1,-2,-3,-4`` and
``concat:-1..-4`` begin with the last layer, ``concat:-4..-1`` ends with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from embedkit.choices import POOLINGS, Pooling, check_choice
from embedkit.errors import UsageError, did_you_mean
from embedkit.types import Float32

__all__ = [
    "LayerSpec",
    "Pooling",
    "ShardVectors",
    "View",
    "l2_normalize",
    "layer_rank",
    "parse_layers",
    "parse_poolings",
    "parse_view",
    "split_view",
    "view_ranges",
    "views_of",
]

_COMBINATIONS = ("sum", "mean", "concat")
_LAYERS = re.compile(r"(?:(\w+):)?([+-]?\d+)(?:\.\.([+-]?\d+))?")
_COLUMN = re.compile(r"(sum|mean|concat)_(\d+)to(\d+)")
_LISTED_COLUMN = re.compile(r"(sum|mean|concat)_(\d+(?:_\d+)+)")
_LIST_BEGINS = re.compile(r"\w+:[+-]?\d+(?:,[+-]?\d+)*")
_NUMBER = re.compile(r"[+-]?\d+")


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer, or a combination of several.

    Attributes:
        layers: positive layer numbers: those of ``concat`` in the order in which their vectors are
            put side by side, those of ``sum`` and ``mean`` ascending.
        combination: ``sum``, ``mean``, ``concat``, or ``None`` for a single layer.
    """

    layers: tuple[int, ...]
    combination: str | None = None

    @property
    def name(self) -> str:
        """As in column names: ``12``, ``sum_9to12``, ``concat_12to9`` or ``sum_0_6_12``."""
        if self.combination is None:
            return str(self.layers[0])
        first, last = self.layers[0], self.layers[-1]
        step = 1 if last >= first else -1
        if self.layers == tuple(range(first, last + step, step)):
            return f"{self.combination}_{first}to{last}"
        return f"{self.combination}_{'_'.join(map(str, self.layers))}"

    @property
    def highest(self) -> int:
        """The highest of the layers."""
        return max(self.layers)

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


@dataclass(frozen=True, slots=True)
class ShardVectors:
    """Vectors of the texts of one shard, in their order.

    Attributes:
        views: ``(texts, width)`` float32 for every view, by column name.
        tokens: ``(all kept tokens, width)`` float32 for every token layer, by layer name;
            text after text, in the order of :class:`~embedkit.encoding.tokenization.TokenizedText`.
        encoded: texts or windows that went through the model, repeated ones once.
        splits: batches that were halved because memory ran out.
        seconds: working time of the host that gives out the batches or of the device that runs
            them, whichever is longer.
    """

    views: dict[str, Float32]
    tokens: dict[str, Float32]
    encoded: int
    splits: int
    seconds: float


def l2_normalize(vectors: Float32) -> Float32:
    """Scale each row to length 1; rows of zeros stay. As sentence-transformers does."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, np.float32(1e-12)), dtype=np.float32)


def parse_layers(
    layers: str | int | Iterable[str | int], *, n_layers: int, view: str | None = None
) -> tuple[LayerSpec, ...]:
    """Read layers, ranges and combinations.

    Args:
        layers: a list, or one string with commas, such as ``all``, ``-1``, ``0,6,12``, ``-4..-1``,
            ``sum:-4..-1,12``, ``concat:-1,-2,-3,-4``, or column names such as ``sum_9to12``. After
            a range a further number is a layer of its own, after a number in a combination one more
            of its list.
        n_layers: encoder layers of the model.
        view: the view that the layer belongs to, for messages.

    Raises:
        UsageError: it cannot be read, or a layer does not exist.

    >>> [spec.name for spec in parse_layers("sum:-4..-1,0", n_layers=12)]
    ['sum_9to12', '0']
    """
    given = [str(layers)] if isinstance(layers, str | int) else map(str, layers)
    specs: dict[LayerSpec, None] = {}
    for part in (part for item in given for part in _parts(item)):
        if part == "all":
            specs.update(dict.fromkeys(LayerSpec((i,)) for i in range(n_layers + 1)))
            continue
        try:
            found = _layer_range(part, n_layers)
        except ValueError as error:
            raise UsageError(f"{view or f'layers={part!r}'}: {error}") from None
        specs.update(dict.fromkeys(found))
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
        specs = parse_layers(layer, n_layers=n_layers, view=name)
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


def layer_rank(layer: str) -> tuple[bool, int]:
    """Sort key of the layers of views: single ones by their number, then all others."""
    return (not layer.isdigit(), int(layer) if layer.isdigit() else 0)


def view_ranges(views: Sequence[str]) -> str:
    """Return views with neighbouring layers of a pooling as ranges.

    >>> view_ranges(["mean_8", "cls_11", "mean_9", "pooler", "mean_10"])
    'mean_8 … mean_10, cls_11, pooler'
    """
    order = list(dict.fromkeys(split_view(view)[0] for view in views))
    views = sorted(views, key=lambda view: order.index(split_view(view)[0]))
    runs: list[list[str]] = []
    for view in views:
        pooling, layer = split_view(view)
        last = split_view(runs[-1][-1]) if runs else ("", "")
        follows = layer.isdigit() and last[1].isdigit() and int(layer) == int(last[1]) + 1
        if follows and pooling == last[0]:
            runs[-1].append(view)
        else:
            runs.append([view])
    return ", ".join(f"{run[0]} … {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def parse_poolings(names: str | Iterable[str]) -> tuple[Pooling, ...]:
    """Read pooling names: a list, or a string with commas.

    Raises:
        UsageError: one is unknown; the message lists the choices.
    """
    given = names.split(",") if isinstance(names, str) else names
    poolings = dict.fromkeys(name.strip() for name in given)
    for name in poolings:
        check_choice(POOLINGS, pooling=name)
    return tuple(Pooling(name) for name in poolings)


def views_of(
    layers: Sequence[LayerSpec], poolings: Sequence[Pooling], *, n_layers: int
) -> tuple[View, ...]:
    """Every layer with every pooling, layer by layer, and ``pooler`` once at the end."""
    views = [View(p, spec) for spec in layers for p in poolings if p is not Pooling.POOLER]
    if Pooling.POOLER in poolings:
        views.append(View(Pooling.POOLER, LayerSpec((n_layers,))))
    return tuple(views)


def _parts(text: str) -> list[str]:
    """Divide at commas, but not inside the list of a combination."""
    parts: list[str] = []
    for part in (p.strip() for p in text.split(",")):
        if parts and _LIST_BEGINS.fullmatch(parts[-1]) and _NUMBER.fullmatch(part):
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return parts


def _layer_range(part: str, n_layers: int) -> list[LayerSpec]:
    """The layers of ``-1``, ``0..3`` or ``sum:0..3``; a ``ValueError`` says what is wrong."""
    if listed := _LISTED_COLUMN.fullmatch(part):
        part = f"{listed[1]}:{listed[2].replace('_', ',')}"
    if "," in part:
        kind, _, numbers = part.partition(":")
        found = [_layer_range(f"{kind}:{n}", n_layers)[0].layers[0] for n in numbers.split(",")]
        if len(set(found)) < len(found):
            raise ValueError("a layer is listed twice.")
        return [LayerSpec(tuple(found if kind == "concat" else sorted(found)), kind)]
    match = _LAYERS.fullmatch(_COLUMN.sub(r"\1:\2..\3", part))
    if match is None:
        raise ValueError(
            "expected all, a layer (-1), a list (0,6,12), a range (-4..-1) or a combination "
            "(sum:-4..-1, mean:…, concat:…)."
        )
    kind, first, last = match.groups()
    if kind not in (None, *_COMBINATIONS):
        near = did_you_mean(kind, _COMBINATIONS)
        raise ValueError(f"expected sum:, mean: or concat: before a range of layers.{near}")
    ends = [int(first), int(last or first)]
    if not all(-n_layers - 1 <= end <= n_layers for end in ends):
        raise ValueError(
            f"the model has layers 0 (embeddings) to {n_layers}; "
            f"-1 is the last and -{n_layers + 1} the embeddings."
        )
    low, high = (end if end >= 0 else n_layers + 1 + end for end in ends)
    if low > high and kind != "concat":
        raise ValueError("the range runs backwards; write the lower layer first.")
    step = 1 if low <= high else -1
    layers = tuple(range(low, high + step, step))
    return [LayerSpec(layers, kind)] if kind else [LayerSpec((i,)) for i in layers]
