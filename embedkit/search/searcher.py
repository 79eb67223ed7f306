"""Nearest texts of a dataset: queries as texts, as stored records, or as vectors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.choices import SEARCH_METRICS, check_choice
from embedkit.dataset.record_keys import text_keys
from embedkit.dataset.store import VectorData, load
from embedkit.dataset.vector_settings import DatasetEncoder, encode_as
from embedkit.errors import UsageError, check_counts
from embedkit.search.exact import Neighbours, nearest
from embedkit.search.where import chosen_records
from embedkit.search.whitening import load_whitening
from embedkit.types import Float32, ProgressCallback, no_progress

__all__ = ["Answer", "Hit", "QueryEncoder", "Searcher", "read_queries"]

logger = logging.getLogger(__name__)

_MOST_OF_INDEX = 2_048

Finder = Callable[..., Neighbours]
"""Finds the ``k`` nearest records of ``(queries, width)`` vectors: called with them and ``k=``."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A record that was found.

    Attributes:
        score: cosine or product (more is nearer), or distance (less is nearer).
        row: record number in the input.
        id: its id.
        text: its text; ``None`` if the dataset stores none.
        text_pair: its second text, where there is one.
        label: its label, where there is one.
    """

    score: float
    row: int
    id: str
    text: str | None = None
    text_pair: str | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found for one query.

    Attributes:
        query: its text, ``row 7``, or ``vector 0``.
        hits: the nearest records, the nearest first.
    """

    query: str
    hits: tuple[Hit, ...]


class QueryEncoder:
    """Encodes query texts as the dataset's own texts were encoded.

    Args:
        data: the dataset, with its chosen view.
        model: folder or hub id of the checkpoint, if it is not under the name it had.
        device: where to encode.
        prefix: put before every query; by default the prefix of the dataset's texts.
        few_texts: as for :func:`~embedkit.dataset.vector_settings.encode_as`.

    Raises:
        MismatchError: the checkpoint is not the one that made the dataset.
    """

    def __init__(
        self,
        data: VectorData,
        *,
        model: str | None = None,
        device: str = "auto",
        prefix: str | None = None,
        few_texts: bool = False,
    ) -> None:
        made = encode_as(
            data.manifest, data.views, owner=str(data.path), device=device, model=model,
            few_texts=few_texts,
        )  # fmt: skip
        settings = made.settings
        self._like_dataset = settings.on_long != "error"
        if prefix is not None:
            settings = replace(settings, prefix=prefix)
        if not self._like_dataset:  # a long query is no error of the dataset's
            settings = replace(settings, on_long="truncate")
        self._encode = DatasetEncoder(made.encoder, settings, data.views)

    def __call__(self, texts: Sequence[str]) -> Float32:
        """Vectors of query texts, ``(n, width)`` float32, rounded as the dataset stores them.

        Logs a warning for each query that was cut or that the vocabulary does not know.

        Raises:
            TypeError: a single string was given.
            UsageError: a query is empty.
        """
        _check_texts(texts)
        self._warn(texts)
        return self._encode(texts)

    def _warn(self, texts: Sequence[str]) -> None:
        prefix = self._encode.tokenized([""])[0]
        for text, tokens in zip(texts, self._encode.tokenized(texts), strict=True):
            own = int((~tokens.special).sum() - (~prefix.special).sum())
            unknown = tokens.n_unknown - prefix.n_unknown
            shown = text if len(text) <= 40 else text[:39] + "…"
            if tokens.cut:
                logger.warning(
                    "query %r has %d tokens; only the first %d count%s", shown, tokens.n_tokens,
                    tokens.n_kept, ", as in the dataset" * self._like_dataset,
                )  # fmt: skip
            if own < 1:
                logger.warning("query %r contains no tokens; results are meaningless", shown)
            elif 2 * unknown >= own:
                logger.warning(
                    "query %r: %d of its %d tokens are unknown to the model ([UNK]); results mean "
                    "little. Does the model know this language?", shown, unknown, own,
                )  # fmt: skip


class Searcher:
    """Finds the nearest records of a dataset; the model is loaded for the first text.

    Args:
        dataset: folder that ``extract`` wrote.
        view: a stored view; by default the last mean.
        metric: ``cosine``, ``dot`` or ``euclid``.
        whitening: ``center`` or ``whiten``, or ``None``.
        where: an SQL condition on the columns, such as ``label = '1'``.
        keep_duplicates: also return records whose text was returned already.
        prefix: put before query texts; by default the prefix of the dataset's texts.
        model: folder or hub id of the checkpoint, if it is not under the name it had.
        device: where to encode queries.
        few_texts: be ready soon for a few queries, where the encoder can do without torch.
        threads: by default the number of cores that the process may use.
        finder: finds neighbours instead of exact search, see
            :func:`~embedkit.search.index.open_index`.
        progress: called by exact search, in records.

    Raises:
        UsageError: there is no such view or column, or a setting is unknown.

    Example:
        >>> searcher = embedkit.Searcher("vectors", view="mean_-1")
        >>> answer = searcher.texts(["the river bank of town 3"], k=1)[0]
        >>> answer.hits[0].row, round(answer.hits[0].score, 3)
        (3, 1.0)
    """

    def __init__(
        self,
        dataset: str | Path,
        *,
        view: str | None = None,
        metric: str = "cosine",
        whitening: str | None = None,
        where: str | None = None,
        keep_duplicates: bool = False,
        prefix: str | None = None,
        model: str | None = None,
        device: str = "auto",
        few_texts: bool = False,
        threads: int | None = None,
        finder: Finder | None = None,
        progress: ProgressCallback = no_progress,
    ) -> None:
        check_choice(SEARCH_METRICS, metric=metric)
        check_counts(threads=threads)
        if finder is not None and where is not None:
            raise UsageError("where needs exact search; leave the index out.")
        self.data = load(dataset, view)
        if len(self.data) == 0:
            raise UsageError(f"{dataset} has no records, so there is nothing to find.")
        self._encoding: dict[str, Any] = {
            "prefix": prefix, "model": model, "device": device, "few_texts": few_texts
        }  # fmt: skip
        self._encoder: QueryEncoder | None = None
        self._chosen = None if where is None else chosen_records(self.data, where)
        if self._chosen is not None and not self._chosen.any():
            raise UsageError(f"where={where!r}: no record of {dataset} matches.")
        self._is_exact = finder is None
        self._find = finder or partial(
            nearest, self.data, metric=metric, chosen=self._chosen, threads=threads,
            whitening=None if whitening is None else load_whitening(self.data, whitening),
            progress=progress,
        )  # fmt: skip
        self._keys = None if keep_duplicates else text_keys(self.data)
        wanted = ("row", "id", "text", "text_pair", "label")
        self._columns = [name for name in wanted if name in self.data.columns]

    def texts(self, queries: Sequence[str], *, k: int = 10) -> list[Answer]:
        """Find the nearest records of query texts; one answer for each, in order.

        Raises:
            TypeError: a single string was given.
            UsageError: a query is empty.
            MismatchError: the model is not the one that made the dataset.
        """
        check_counts(k=k)
        _check_texts(queries)  # before the model is loaded
        if self._encoder is None:
            self._encoder = QueryEncoder(self.data, **self._encoding)
        return self._answer(list(queries), self._encoder(queries), k, {})

    def like(self, rows: Sequence[int], *, k: int = 10) -> list[Answer]:
        """Find the nearest records of stored ones, without these themselves.

        Raises:
            UsageError: there is no such row.
        """
        check_counts(k=k)
        indices = np.searchsorted(self.data.row, rows)
        indices = np.minimum(indices, len(self.data) - 1)
        for row, index in zip(rows, indices, strict=True):
            if self.data.row[index] != row:
                raise UsageError(
                    f"{self.data.path} has no row {row}; rows go from {self.data.row[0]} to "
                    f"{self.data.row[-1]}, and rejects leave gaps."
                )
        names = [f"row {row}" for row in rows]
        own = dict(enumerate(indices.tolist()))
        return self._answer(names, self.data.reader.vectors_at(indices), k, own)

    def vectors(self, queries: NDArray[Any], *, k: int = 10) -> list[Answer]:
        """Find the nearest records of vectors ``(width,)`` or ``(n, width)``.

        Raises:
            UsageError: they have another width or are not finite numbers.
        """
        check_counts(k=k)
        if np.asarray(queries).dtype.kind not in "fiu":
            raise UsageError(f"query vectors of {np.asarray(queries).dtype}: expected numbers.")
        matrix = np.atleast_2d(np.asarray(queries, np.float32))
        if matrix.ndim != 2 or matrix.shape[1] != self.data.width:
            raise UsageError(
                f"query vectors of shape {np.shape(queries)}: {self.data.views[0]} is "
                f"{self.data.width} wide; expected (n, {self.data.width})."
            )
        if not np.isfinite(matrix).all():
            raise UsageError("a query vector contains NaN or infinity.")
        return self._answer([f"vector {i}" for i in range(len(matrix))], matrix, k, {})

    def _answer(
        self, names: Sequence[str], queries: Float32, k: int, own: dict[int, int]
    ) -> list[Answer]:
        """Find a few more than asked for, and still more where too many were duplicates."""
        there = len(self.data) if self._chosen is None else int(self._chosen.sum())
        if k > there:
            logger.warning("k=%d, but there are only %d records to choose from", k, there)
        # the most that an index is asked for: beyond that exact search is faster
        most = there if self._is_exact else min(there, max(k + 1, _MOST_OF_INDEX))
        asked = min(most, k + bool(own) if self._keys is None else 2 * k + 16)
        kept: dict[int, dict[int, float]] = {}
        while waiting := [number for number in range(len(names)) if number not in kept]:
            found = self._find(queries[waiting], k=asked)
            for number, scores, indices in zip(waiting, found.scores, found.indices, strict=True):
                distinct = self._distinct(scores.tolist(), indices.tolist(), own.get(number))
                if len(distinct) >= k or asked >= most:
                    kept[number] = dict(distinct[:k])
            asked = min(most, 4 * asked)
        wanted = sorted({index for hits in kept.values() for index in hits})
        columns = self.data.reader.pick(np.array(wanted, np.int64), self._columns)
        records = dict(zip(wanted, zip(*columns.values(), strict=True), strict=True))
        return [
            Answer(name, tuple(
                Hit(score, **dict(zip(columns, records[index], strict=True)))
                for index, score in kept[number].items()
            ))
            for number, name in enumerate(names)
        ]  # fmt: skip

    def _distinct(
        self, scores: list[float], indices: list[int], own: int | None
    ) -> list[tuple[int, float]]:
        """What was found without the record ``own`` and without texts that were there already."""
        keys = self._keys
        seen = set() if own is None or keys is None else {int(keys[own])}
        distinct = []
        for score, index in zip(scores, indices, strict=True):
            if index < 0 or index == own:
                continue
            key = -1 - index if keys is None else int(keys[index])
            if key not in seen:
                distinct.append((index, score))
            seen.add(key)
        return distinct


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise TypeError(f"a single string was given; expected a list of texts: [{texts!r}].")
    empty = [number for number, text in enumerate(texts) if not text.strip()]
    if empty:
        which = f" (number {empty[0] + 1})" if len(texts) > 1 else ""
        raise UsageError(f"the query{which} is empty.")


def read_queries(path: Path) -> list[str]:
    """Read queries from a UTF-8 text file, one per line.

    Raises:
        UsageError: the file cannot be read, is empty, or has an empty line.
    """
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"queries={str(path)!r} cannot be read: {reason}.") from error
    if not text:
        raise UsageError(f"queries={str(path)!r} is empty; write one query per line.")
    lines = text.removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise UsageError(
                f"queries={str(path)!r}: line {number} is empty; write one query per line."
            )
    return lines
