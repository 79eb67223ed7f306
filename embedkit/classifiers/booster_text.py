"""LightGBM's text format, looked through before LightGBM reads it.

It takes indexes as they are: a child or a feature that is not there is read from other memory, or
ends the process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["check_booster"]

_END = "end of trees"


def check_booster(text: str) -> None:
    """Raise a ``ValueError`` that names what cannot be in a model as LightGBM writes it."""
    head, *trees = text.partition(f"\n{_END}\n")[0].split("\nTree=")
    if not head.startswith("tree\n") or f"\n{_END}\n" not in text:
        raise ValueError(f"it does not go from 'tree' to {_END!r}")
    fields = _fields(head)
    features = _whole(fields, "max_feature_idx", 0, 1 << 31) + 1
    per_round = _whole(fields, "num_tree_per_iteration", 1, 1 << 31)
    classes = _whole(fields, "num_class", 1, 1 << 31)
    sizes = fields.get("tree_sizes", "").split()
    if len(sizes) != len(trees) or len(trees) % per_round or per_round not in (1, classes):
        raise ValueError(f"{len(trees)} trees where {len(sizes)} were written")
    for number, tree in enumerate(trees):
        try:
            if tree.partition("\n")[0] != str(number):
                raise ValueError("its number is another")
            _check_tree(_fields(tree), features)
        except ValueError as error:
            raise ValueError(f"tree {number}: {error}") from error


def _check_tree(fields: Mapping[str, str], features: int) -> None:
    leaves = _whole(fields, "num_leaves", 1, 1 << 31)
    if _whole(fields, "num_cat", 0, 1 << 31):
        raise ValueError("num_cat is not 0")
    inner = leaves - 1
    _numbers(fields, "leaf_value", leaves, -math.inf, math.inf)
    _numbers(fields, "threshold", inner, -math.inf, math.inf)
    _numbers(fields, "decision_type", inner, 0, 255)
    _numbers(fields, "split_feature", inner, -1, features)
    children = [
        child for name in ("left_child", "right_child")
        for child in _numbers(fields, name, inner, -leaves - 1, inner)
    ]  # fmt: skip
    if sorted(children) != [child for child in range(-leaves, inner) if child] and inner:
        raise ValueError("left_child and right_child are no tree")  # each node and leaf is one's


def _fields(block: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in block.splitlines() if "=" in line)


def _whole(fields: Mapping[str, str], name: str, low: int, high: int) -> int:
    found = fields.get(name, "missing")
    if not found.isdecimal() or not low <= int(found) < high:
        raise ValueError(f"{name} is {found:.40}")
    return int(found)


def _numbers(
    fields: Mapping[str, str], name: str, count: int, low: float, high: float
) -> list[float]:
    """So many numbers between two others."""
    try:
        found = [float(value) for value in fields.get(name, "").split()]
    except ValueError:
        found = []
    if len(found) != count or not all(low < value < high for value in found):
        raise ValueError(f"{name} is {fields.get(name, 'missing'):.40}")
    return found
