"""The kinds of index: one row each with what builds, tunes and opens it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["KINDS", "IndexKind"]

_EFFORTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024)


@dataclass(frozen=True, slots=True)
class IndexKind:
    """One kind of index.

    Attributes:
        factory: string for ``faiss.index_factory``, filled with ``parameters``.
        parameters: what the index is built with, from the width and the number of records.
        effort: search-time parameter that trades speed for recall; ``None`` for an exact index.
        search_parameters: name of the class of faiss that carries it.
        default: its value when the index has not been tuned.
        least: its smallest value in tuning.
        grows_with_k: it must be ``k`` or more.
        mapping: name of the flag of ``faiss.read_index`` that maps the file into memory.
        minimum: records that are needed to build one.
    """

    factory: str
    parameters: Callable[[int, int], dict[str, int]]
    effort: str | None = None
    search_parameters: str = ""
    default: int = 0
    least: int = 1
    grows_with_k: bool = False
    mapping: str = "IO_FLAG_MMAP_IFC"
    minimum: int = 1

    def settings(self, index: Any) -> list[int]:
        """Values of the effort to try when tuning, ascending."""
        if self.effort is None:
            return [self.default]
        values = [value for value in _EFFORTS if value >= self.least]
        lists = getattr(index, "nlist", None)
        return values if lists is None else [n for n in values if n < lists] + [lists]

    def at(self, setting: int) -> Any:
        """The ``params`` of ``faiss.Index.search`` for one effort."""
        import faiss

        if self.effort is None:
            return None
        return getattr(faiss, self.search_parameters)(**{self.effort: setting})


def _lists(records: int) -> int:
    """Number of lists: 4 √n, with 39 records or more for each (what faiss asks for)."""
    return max(1, min(int(4 * records**0.5), records // 39))


def _pieces(width: int) -> int:
    """Number of codes of a vector: one for four numbers, or the next divisor of the width."""
    return next(m for m in range(max(width // 4, 1), 0, -1) if width % m == 0)


_LISTS: dict[str, Any] = {
    "effort": "nprobe",
    "search_parameters": "SearchParametersIVF",
    "default": 16,
    "mapping": "IO_FLAG_MMAP",
}

KINDS = {
    "flat": IndexKind("Flat", lambda width, records: {}),
    "hnsw": IndexKind(
        "HNSW{M}",
        lambda width, records: {"M": 16, "efConstruction": 40},
        effort="efSearch", search_parameters="SearchParametersHNSW", default=64, least=10,
        grows_with_k=True,
    ),
    "ivf": IndexKind(
        "IVF{nlist},Flat", lambda width, records: {"nlist": _lists(records)}, **_LISTS
    ),
    "ivfpq": IndexKind(
        "IVF{nlist},PQ{m}x{nbits}np",
        lambda width, records: {"nlist": _lists(records), "m": _pieces(width), "nbits": 8},
        minimum=2_000, **_LISTS,
    ),
}  # fmt: skip
"""A new kind is one row here and its name in :data:`embedkit.choices.INDEX_KINDS`."""
