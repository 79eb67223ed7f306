"""Names of layers and views, and the vectors of a shard.

Layer 0 is the embedding output, 1 to n the encoder layers; negative numbers count from the end.
``-1``, ``0,6,12``, ``-4..-1``, ``all`` choose layers; ``sum:-4..-1``, ``mean:-4..-1`` and
``concat:-4..-1`` combine a range of them, ``sum:-1,-2`` and ``concat:-1,-2`` a list. ``concat``
keeps the order of the layers: ``concat:-1,-2,-3,-4`` and ``concat:-1..-4`` begin with the last
layer, ``concat:-4..-1`` ends with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from embedkit.choices import POOLINGS, Pooling, check_choice
from embedkit.errors import Option, UsageError, did_you_mean
from embedkit.types import Float32

_COMBINATIONS = ("sum", "mean", "concat")
# parts of a list with commas: numbers after a combination belong to it (sum:-1,-2), unless it is a
# range (sum:-4..-1,0)
_PART = re.compile(r"\w+:[+-]?\d+(?:,[+-]?\d+)+(?![^,])|[^,]+")
_LAYERS = re.compile(r"(?:(\w+):)?([+-]?\d+)(?:\.\.([+-]?\d+)|((?:,[+-]?\d+)*))")
_COLUMN = re.compile(r"(sum|mean|concat)_(\d+(?:to\d+|(?:_\d+)+))")
# poolings first, since some have an underscore in their names: last_token_6
_VIEW = re.compile(rf"({'|'.join(Pooling)}|[^_]*)(?:_(.*))?", re.DOTALL)


class LayerSpec(NamedTuple):
    """One layer, or several combined by ``sum``, ``mean`` or ``concat``."""

    layers: tuple[int, ...]  # positive; ascending, but for concat
    combination: str | None = None

    @property
    def name(self) -> str:
        """As in column names: ``12``, ``sum_9to12``, ``concat_12to9`` or ``sum_0_6_12``."""
        if self.combination is None:
            return str(self.layers[0])
        first, last = self.layers[0], self.layers[-1]
        step = 1 if last >= first else -1
        # neighbouring layers have the short name, however they were written
        if self.layers == tuple(range(first, last + step, step)):
            return f"{self.combination}_{first}to{last}"
        return f"{self.combination}_{'_'.join(map(str, self.layers))}"

    @property
    def highest(self) -> int:
        """The highest layer."""
        return max(self.layers)

    def width(self, hidden: int) -> int:
        """Width of the combined vectors for hidden states of a width."""
        return hidden * len(self.layers) if self.combination == "concat" else hidden


class View(NamedTuple):
    """One sentence vector column: a pooling of a layer, the last one where it has none."""

    pooling: Pooling
    layer: LayerSpec

    @property
    def name(self) -> str:
        """The column name, such as ``mean_12``, ``cls_sum_9to12`` or ``pooler``."""
        return f"{self.pooling}_{self.layer.name}" if self.pooling.has_layer else str(self.pooling)


class ShardVectors(NamedTuple):
    """Vectors of the texts of one shard, in their order."""

    views: dict[str, Float32]  # (texts, width), by column name
    tokens: dict[str, Float32]  # (all kept tokens, width), text after text, by layer name


def l2_normalize(vectors: Float32) -> Float32:
    """Scale each row to length 1, as sentence-transformers does; zero rows stay."""
    with np.errstate(under="ignore"):  # a square of almost nothing, if the caller has it raised
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, np.float32(1e-12)), dtype=np.float32)


def parse_layers(
    layers: str | int | Iterable[str | int], *, n_layers: int, option: str | Option = ""
) -> tuple[LayerSpec, ...]:
    """Read layers, ranges and combinations: a list, or one string with commas.

    A number after a range is a separate layer, after a number of a combination part of it; column
    names such as ``sum_9to12`` are read too. ``option`` is what messages name, by default the part.

    >>> [spec.name for spec in parse_layers("sum:-4..-1,0", n_layers=12)]
    ['sum_9to12', '0']
    """
    texts = [str(layers)] if isinstance(layers, str | int) else [*map(str, layers)] or [""]
    specs: dict[LayerSpec, None] = {}
    for part in (part for item in texts for part in _PART.findall(item.replace(" ", "")) or [""]):
        try:
            specs.update(dict.fromkeys(_parse_part(part, n_layers)))
        except ValueError as error:
            raise UsageError(f"{option or Option('layers', part)}: {error}") from None
    return tuple(specs)


def parse_view(name: str, *, n_layers: int) -> View:
    """Read a view name such as ``mean_-1``, ``cls_0``, ``max_sum_9to12`` or ``pooler``."""
    pooling, layer = split_view(name)
    # pooler and sentence have no layer in their names, all others have one
    if pooling in set(Pooling) and Pooling(pooling).has_layer == bool(layer):
        specs = parse_layers(layer or n_layers, n_layers=n_layers, option=name)
        if len(specs) == 1:
            return View(Pooling(pooling), specs[0])
    raise UsageError(
        f"{name!r} is not a view. Views are named pooling_layer, such as mean_-1, cls_0, "
        "mean_sum_9to12, or pooler or sentence."
    )


def split_view(name: str) -> tuple[str, str]:
    """Pooling and layer of a view name; any other text is divided at its first ``_``.

    >>> split_view("mean_sum_9to12"), split_view("pooler")
    (('mean', 'sum_9to12'), ('pooler', ''))
    """
    match = _VIEW.fullmatch(name)
    return (match[1], match[2] or "") if match else (name, "")


def view_text(name: str) -> str:
    """Return a view in words, or several side by side.

    >>> view_text("mean_6"), view_text("layer_2"), view_text("pooler")
    ('layer 6, mean', 'layer 2', 'pooler')
    >>> view_text("mean_3 + mean_5"), view_text("mean_3 + cls_5")
    ('layers 3 + 5, mean', 'layer 3, mean + layer 5, cls')
    >>> view_text("mean_sum_3to4"), view_text("cls_mixture")
    ('sum of layers 3 to 4, mean', 'mixture of layers, cls')
    """
    views = [split_view(part) for part in name.split(" + ")]
    poolings, layers = [pooling for pooling, _ in views], [layer for _, layer in views]
    plain = all(map(str.isdecimal, layers))
    if len(views) > 1 and (len(set(poolings)) > 1 or not plain):
        return " + ".join(map(view_text, name.split(" + ")))
    if plain:
        text = f"layer{'s' if len(layers) > 1 else ''} {' + '.join(layers)}"
    elif match := re.fullmatch(r"(mixture)|(\w+)_(\d+)to(\d+)", layers[0]):
        kind, combined, first, last = match.groups()
        text = f"{kind} of layers" if kind else f"{combined} of layers {first} to {last}"
    else:
        return name
    return text if poolings[0] == "layer" else f"{text}, {poolings[0]}"


def layer_rank(layer: str) -> tuple[float, int, str]:
    """Sort key of layers: by depth, combinations behind the last of their layers.

    What has no layer, as a pooler and a mixture of all, is last.

    >>> sorted(["", "6", "sum_3to4", "10", "4"], key=layer_rank)
    ['4', 'sum_3to4', '6', '10', '']
    """
    numbers = [int(x) for x in re.findall(r"\d+", layer)]
    # a single layer has one number, and stands before combinations, which have two or more
    return max(numbers, default=math.inf), len(numbers), layer


def view_ranges(views: Sequence[str]) -> str:
    """List views, neighbouring layers of a pooling as ranges.

    >>> view_ranges(["mean_8", "cls_11", "mean_9", "pooler", "mean_10"])
    'mean_8 … mean_10, cls_11, pooler'
    """
    # poolings in the order in which they first appear, their views behind each other; sorting is
    # stable
    order = list(dict.fromkeys(split_view(view)[0] for view in views))
    views = sorted(views, key=lambda view: order.index(split_view(view)[0]))
    runs: list[list[str]] = []
    for view in views:
        pooling, layer = split_view(view)
        if runs and layer.isdecimal() and runs[-1][-1] == f"{pooling}_{int(layer) - 1}":
            runs[-1].append(view)
        else:
            runs.append([view])
    return ", ".join(f"{run[0]} … {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def parse_poolings(names: str | Iterable[str]) -> tuple[Pooling, ...]:
    """Read pooling names: a list, or a string with commas."""
    parts = names.split(",") if isinstance(names, str) else [*names] or [""]
    poolings = dict.fromkeys(name.strip() for name in parts)
    for name in poolings:
        check_choice(POOLINGS, pooling=name)
    return tuple(Pooling(name) for name in poolings)


def views_of(
    layers: Sequence[LayerSpec], poolings: Sequence[Pooling], *, n_layers: int
) -> tuple[View, ...]:
    """Every layer with every pooling, layer by layer, and at the end those of the last layer."""
    views = [View(p, spec) for spec in layers for p in poolings if p.has_layer]
    last = LayerSpec((n_layers,))
    return (*views, *(View(p, last) for p in poolings if not p.has_layer))


def _parse_part(part: str, n_layers: int) -> list[LayerSpec]:
    """The layers of ``all``, ``-1``, ``0..3`` or ``sum:0..3``; raises ``ValueError``."""
    if part == "all":
        return [LayerSpec((layer,)) for layer in range(n_layers + 1)]
    # names of columns are read back as they were asked for
    if column := _COLUMN.fullmatch(part):
        part = f"{column[1]}:{column[2].replace('to', '..').replace('_', ',')}"
    match = _LAYERS.fullmatch(part)
    if match is None:
        raise ValueError(
            "expected all, a layer (-1), a list (0,6,12), a range (-4..-1) or a combination "
            "(sum:-4..-1, mean:…, concat:…)."
        )
    kind, first, last, further = match.groups()
    if kind not in (None, *_COMBINATIONS):
        near = did_you_mean(kind, _COMBINATIONS)
        raise ValueError(f"expected sum:, mean: or concat: before a range of layers.{near}")
    numbers = [int(first), int(last)] if last else list(map(int, f"{first}{further}".split(",")))
    if not all(-n_layers - 1 <= number <= n_layers for number in numbers):
        raise ValueError(
            f"the model has layers 0 (embeddings) to {n_layers}; "
            f"-1 is the last and -{n_layers + 1} the embeddings."
        )
    layers = [number if number >= 0 else n_layers + 1 + number for number in numbers]
    if last:
        low, high = layers
        # backwards is an order of coordinates, which sums and lists of layers do not have
        if low > high and kind != "concat":
            raise ValueError("the range runs backwards; write the lower layer first.")
        step = 1 if low <= high else -1
        layers = list(range(low, high + step, step))
    elif len(set(layers)) < len(layers):
        raise ValueError("a layer is listed twice.")
    if kind is None:
        return [LayerSpec((layer,)) for layer in layers]
    # sorted, so that one sum has one name
    return [LayerSpec(tuple(layers if kind == "concat" else sorted(layers)), kind)]
