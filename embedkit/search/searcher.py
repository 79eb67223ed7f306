"""Nearest texts of a dataset: queries in words, by a stored record, or as vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embedkit.dataset.store import VectorData, load
from embedkit.errors import UsageError
from embedkit.runs.splits import text_key
from embedkit.search.exact import METRICS, Neighbours, nearest
from embedkit.search.where import chosen_records
from embedkit.search.whitening import Isotropy, isotropy_of

__all__ = ["Answer", "Hit", "QueryEncoder", "Searcher", "read_queries", "search"]

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

_QUERIES_AT_ONCE = 4_096
_MOST_OF_INDEX = 2_048


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
    text: str | None
    text_pair: str | None
    label: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found for one query.

    Attributes:
        query: its text, ``row 7``, or ``vector 0``.
        hits: the nearest records, the nearest first.
    """

    query: str
    hits: tuple[Hit, ...]


class Finder(Protocol):
    """Anything that finds the nearest records of vectors: exactly, or by an index."""

    def __call__(self, queries: Floats, k: int) -> Neighbours:
        """``k`` neighbours of each of ``(queries, width)`` vectors."""
        ...


class QueryEncoder:
    """Turns query texts into vectors as the dataset's own were made.

    Args:
        data: the dataset, with one chosen view.
        model: where the checkpoint is now, if not under the name it had.
        device: where to encode.
        prefix: put before every query; by default what was put before the dataset's texts.
        notify: called with sentences for the user.

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
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        from embedkit.dataset.verification import load_encoder_of

        self._data, self._notify = data, notify
        self._settings = data.manifest.job["vectors"]
        self._prefix = self._settings["prefix"] if prefix is None else prefix
        self._encoder = load_encoder_of(data.manifest, model=model, device=device, notify=notify)

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Vectors ``(n, width)`` float32 of query texts.

        Tells the user of queries that were cut, or that the vocabulary does not know.

        Raises:
            UsageError: a query is empty.
        """
        import unicodedata

        from embedkit.encoding.encoder import l2_normalize
        from embedkit.encoding.tokenization import TokenizerSettings
        from embedkit.encoding.views import parse_view

        _check_words(texts)
        form = self._data.manifest.job["input"]["unicode"]
        if form != "none":
            texts = [unicodedata.normalize(form.upper(), text) for text in texts]
        on_long = self._settings["on_long"]  # a long query is no error of the dataset's
        settings = TokenizerSettings(
            self._settings["max_length"], "truncate" if on_long == "error" else on_long,
            self._settings["stride"], self._prefix,
        )  # fmt: skip
        prefix = self._encoder.tokenizer.encode([""], settings=settings)[0]
        views = [parse_view(n, n_layers=self._encoder.n_layers) for n in self._data.views]
        parts = []
        for start in range(0, len(texts), _QUERIES_AT_ONCE):
            some = list(texts[start : start + _QUERIES_AT_ONCE])
            tokenized = self._encoder.tokenizer.encode(some, settings=settings)
            self._warn(some, tokenized, prefix)
            shard = self._encoder.encode_shard(
                tokenized, views=views, special_tokens=self._settings["special_tokens"]
            )
            vectors = [shard.views[view.name] for view in views]
            if self._settings["normalize"]:
                vectors = [l2_normalize(v) for v in vectors]
            parts.append(np.concatenate(vectors, axis=1))
        return np.concatenate([np.zeros((0, self._data.width), np.float32), *parts])

    def _warn(self, texts: Sequence[str], tokenized: Sequence[Any], prefix: Any) -> None:
        for text, tokens in zip(texts, tokenized, strict=True):
            own = int((~tokens.special).sum() - (~prefix.special).sum())
            unknown = tokens.n_unknown - prefix.n_unknown
            shown = text if len(text) <= 40 else text[:39] + "…"
            if tokens.cut:
                alike = ", as in the dataset" * (self._settings["on_long"] != "error")
                self._notify(
                    f"query {shown!r} has {tokens.n_tokens} tokens; only the first "
                    f"{tokens.n_kept} count{alike}"
                )
            if own < 1:
                self._notify(
                    f"query {shown!r} has no token that the model sees; what is found has nothing "
                    "to do with it"
                )
            elif 2 * unknown >= own:
                self._notify(
                    f"query {shown!r}: the model's vocabulary does not know {unknown} of "
                    f"its {own} tokens ([UNK]); what is found has little to do with it. Does the "
                    "model know this language?"
                )


class Searcher:
    """A dataset that answers queries; the model is loaded when the first text comes.

    Args:
        dataset: folder that ``extract`` wrote.
        view: a stored view; by default the last mean.
        metric: ``cosine``, ``dot`` or ``euclid``.
        isotropy: ``center`` or ``whiten``, or ``None``.
        where: an SQL condition on the columns, such as ``label = '1'``.
        keep_duplicates: also give records whose text has been given already.
        prefix: put before query texts; by default what was put before the dataset's texts.
        model: where the checkpoint is now, if not under the name it had.
        device: where to encode queries.
        threads: by default as many as the process may use.
        finder: finds neighbours instead of a scan of all records.
        notify: called with sentences for the user.
        progress: called with records looked at and records in all.

    Raises:
        UsageError: there is no such view or column, or a setting is unknown.
    """

    def __init__(
        self,
        dataset: str | Path,
        *,
        view: str | None = None,
        metric: str = "cosine",
        isotropy: str | None = None,
        where: str | None = None,
        keep_duplicates: bool = False,
        prefix: str | None = None,
        model: str | None = None,
        device: str = "auto",
        threads: int | None = None,
        finder: Finder | None = None,
        notify: Callable[[str], None] = lambda _: None,
        progress: Callable[[int, int], None] = lambda *_: None,
    ) -> None:
        if metric not in METRICS:
            raise UsageError(f"--metric {metric}: expected {', '.join(METRICS)}.")
        if finder is not None and where is not None:
            raise UsageError("--where needs exact search; leave --index out.")
        self.data = load(dataset, view)
        if len(self.data) == 0:
            raise UsageError(f"{dataset} has no records, so there is nothing to find.")
        self._metric, self._threads = metric, threads
        self._notify, self._progress = notify, progress
        self._encoding: dict[str, Any] = {"prefix": prefix, "model": model, "device": device}
        self._encoder: QueryEncoder | None = None
        self._chosen = None if where is None else chosen_records(self.data, where)
        if self._chosen is not None and not self._chosen.any():
            raise UsageError(f"--where {where}: no record of {dataset} is like that.")
        self._isotropy: Isotropy | None = None
        if isotropy is not None and finder is None:
            self._isotropy = isotropy_of(self.data, isotropy, notify=notify)
        self._find = finder or self._exact
        self._is_exact = finder is None
        stored = self.data.columns
        self._columns = [c for c in ("row", "id", "text", "text_pair", "label") if c in stored]
        self._distinct = not keep_duplicates and "text" in self._columns

    def texts(self, queries: Sequence[str], *, k: int = 10) -> list[Answer]:
        """Nearest records of query texts.

        Raises:
            UsageError: a query is empty.
            MismatchError: the model is not the one that made the dataset.
        """
        _check_k(k)
        _check_words(queries)  # before the model is loaded
        if self._encoder is None:
            self._encoder = QueryEncoder(self.data, notify=self._notify, **self._encoding)
        return self._answer(list(queries), self._encoder(queries), k, {})

    def like(self, rows: Sequence[int], *, k: int = 10) -> list[Answer]:
        """Nearest records of stored ones, these themselves left out.

        Raises:
            UsageError: there is no such row.
        """
        places = np.searchsorted(self.data.row, rows)
        places = np.minimum(places, len(self.data) - 1)
        for row, place in zip(rows, places, strict=True):
            if self.data.row[place] != row:
                raise UsageError(
                    f"--like {row}: {self.data.path} has no such row; rows go from "
                    f"{self.data.row[0]} to {self.data.row[-1]}, and rejects leave gaps."
                )
        names = [f"row {row}" for row in rows]
        own = dict(enumerate(places.tolist()))
        return self._answer(names, self.data.vectors_at(places), k, own)

    def vectors(self, queries: NDArray[Any], *, k: int = 10) -> list[Answer]:
        """Nearest records of vectors ``(width,)`` or ``(n, width)``.

        Raises:
            UsageError: they have another width, or hold what is no number.
        """
        if np.asarray(queries).dtype.kind not in "fiu":
            raise UsageError(f"query vectors of {np.asarray(queries).dtype}: give numbers.")
        matrix = np.atleast_2d(np.asarray(queries, np.float32))
        if matrix.ndim != 2 or matrix.shape[1] != self.data.width:
            raise UsageError(
                f"query vectors of shape {np.shape(queries)}: {self.data.views[0]} is "
                f"{self.data.width} wide; give (n, {self.data.width})."
            )
        if not np.isfinite(matrix).all():
            raise UsageError("a query vector holds NaN or infinity.")
        return self._answer([f"vector {i}" for i in range(len(matrix))], matrix, k, {})

    def _exact(self, queries: Floats, k: int) -> Neighbours:
        return nearest(
            self.data, queries, k=k, metric=self._metric, isotropy=self._isotropy,
            chosen=self._chosen, threads=self._threads, progress=self._progress,
        )  # fmt: skip

    def _answer(
        self, names: Sequence[str], queries: Floats, k: int, own: dict[int, int]
    ) -> list[Answer]:
        """Look for a few more than asked, and for still more where too many were repetitions."""
        _check_k(k)
        there = len(self.data) if self._chosen is None else int(self._chosen.sum())
        if k > there:
            self._notify(f"-k {k}: there are only {there:,} records to choose from")
        answers: dict[int, Answer] = {}
        # an index is asked for so many at most: beyond that a scan is quicker
        most = there if self._is_exact else min(there, max(k + 1, _MOST_OF_INDEX))
        asked = min(most, 2 * k + 16 if self._distinct else k + bool(own))
        waiting = np.arange(len(names))
        while len(waiting):
            found = self._find(queries[waiting], asked)
            records = self._records(found.places)
            for at, query in enumerate(waiting.tolist()):
                hits = self._hits(found, at, records, own.get(query))
                if len(hits) >= k or asked >= most:
                    answers[query] = Answer(names[query], tuple(hits[:k]))
            waiting = np.array([q for q in waiting if int(q) not in answers], np.int64)
            asked = min(most, 4 * asked)
        return [answers[number] for number in range(len(names))]

    def _records(self, places: Integers) -> dict[int, dict[str, Any]]:
        """Columns of the records at some places."""
        wanted = np.unique(places[places >= 0])
        columns = self.data.pick(wanted, self._columns)
        return {
            int(place): {name: columns[name][i] for name in self._columns}
            for i, place in enumerate(wanted)
        }

    def _hits(
        self, found: Neighbours, at: int, records: dict[int, dict[str, Any]], own: int | None
    ) -> list[Hit]:
        seen = set()
        if own is not None and self._distinct:
            seen.add(self._key(self._records(np.array([own]))[own]))
        hits = []
        for score, place in zip(found.scores[at].tolist(), found.places[at].tolist(), strict=True):
            if place < 0 or place == own:
                continue
            record = records[place]
            if self._distinct:
                key = self._key(record)
                if key in seen:
                    continue
                seen.add(key)
            hits.append(Hit(score, record["row"], record["id"],
                            *(record.get(n) for n in ("text", "text_pair", "label"))))  # fmt: skip
        return hits

    @staticmethod
    def _key(record: dict[str, Any]) -> tuple[str, str]:
        return text_key(record["text"]), text_key(record.get("text_pair") or "")


def search(
    dataset: str | Path,
    queries: str | Sequence[str] | NDArray[Any],
    *,
    k: int = 10,
    **settings: Any,
) -> list[Answer]:
    """Nearest texts of queries.

    Args:
        dataset: folder that ``extract`` wrote.
        queries: a text, several texts, or vectors ``(n, width)``.
        k: how many for each query.
        settings: the options of :class:`Searcher`.

    Returns:
        One answer for each query, in order.

    Raises:
        UsageError: a query, view or setting cannot be used.
    """
    searcher = Searcher(dataset, **settings)
    if isinstance(queries, np.ndarray):
        return searcher.vectors(queries, k=k)
    return searcher.texts([queries] if isinstance(queries, str) else list(queries), k=k)


def _check_k(k: int) -> None:
    if k < 1:
        raise UsageError(f"-k {k}: expected 1 or more.")


def _check_words(texts: Sequence[str]) -> None:
    empty = [number for number, text in enumerate(texts) if not text.strip()]
    if empty:
        which = f" (number {empty[0] + 1})" if len(texts) > 1 else ""
        raise UsageError(f"the query{which} is empty. Give some words, or --like ROW.")


def read_queries(path: Path) -> list[str]:
    """Queries of a text file in UTF-8, one a line.

    Raises:
        UsageError: the file cannot be read, is empty, or has an empty line.
    """
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"--queries {path} cannot be read: {reason}.") from error
    lines = text.removesuffix("\n").split("\n") if text else []
    lines = [line.removesuffix("\r") for line in lines]
    if not lines:
        raise UsageError(f"--queries {path} is empty; write one query a line.")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise UsageError(f"--queries {path}: line {number} is empty; write one query a line.")
    return lines
