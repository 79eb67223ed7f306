"""Vectors as steps of a scikit-learn pipeline.

:class:`StoredVectors` looks vectors up in a dataset, so that cross-validation never encodes a text
twice; :class:`TextEncoder` encodes texts, and caches vectors on disk on request. Neither learns
from the data it is fitted on.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from embedkit import fsio
from embedkit.dataset.store import VectorData, load
from embedkit.encoding.checkpoint import DEFAULT_MODEL
from embedkit.errors import DamagedError, StorageError, UsageError
from embedkit.types import Float32

__all__ = ["StoredVectors", "TextEncoder"]

_DIGEST = 8  # bytes
_MISSING = ("None", "nan", "<NA>", "NaT")
"""Missing values of lists, NumPy and pandas, as text."""


class _Vectors(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    def _learn_widths(self, widths: Mapping[str, int]) -> None:
        self.n_features_out_ = sum(widths.values())
        self._names = [f"{view}_{i}" for view, width in widths.items() for i in range(width)]

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Names of the columns: ``mean_6_0``, ``mean_6_1`` and so on."""
        check_is_fitted(self, "n_features_out_")
        return np.array(self._names, dtype=object)


class StoredVectors(_Vectors):
    """Ids or row numbers → vectors of a dataset.

    Args:
        dataset: folder that ``extract`` wrote.
        view: a stored view, or several to put side by side; by default the last mean.
        by: what the input holds: ``id``, or ``row`` numbers.

    Attributes:
        n_features_out_: width of the result.
    """

    def __init__(
        self, dataset: str | Path, view: str | Sequence[str] | None = None, by: str = "id"
    ) -> None:
        self.dataset = dataset
        self.view = view
        self.by = by

    def fit(self, X: Any, y: Any = None) -> StoredVectors:
        """Check that the dataset has the view.

        Raises:
            UsageError: it has not, or ``by`` is neither ``id`` nor ``row``.
        """
        if self.by not in ("id", "row"):
            raise UsageError(f"by={self.by!r}: expected 'id' or 'row'.")
        data = load(self.dataset, self.view)
        self._learn_widths({name: data.manifest.views[name] for name in data.views})
        return self

    def transform(self, X: Any) -> Float32:
        """``(n, width)`` float32, one row for every id or row number.

        Raises:
            UsageError: the dataset has no such id or row, or it has an id twice.
        """
        check_is_fitted(self, "n_features_out_")
        view = self.view if self.view is None or isinstance(self.view, str) else tuple(self.view)
        fingerprint = load(self.dataset).manifest.fingerprint
        data, index_of = _stored(str(self.dataset), view, self.by, fingerprint)
        wanted = _column(X)
        keys = [str(x) for x in wanted] if self.by == "id" else [_row(x) for x in wanted]
        try:
            index = [index_of[key] for key in keys]
        except KeyError as error:
            raise UsageError(
                f"{self.dataset} has no {self.by} {error.args[0]!r}. Texts that were rejected or "
                "left out have no vectors."
            ) from error
        if -1 in index:
            twice = keys[index.index(-1)]
            raise UsageError(f"{self.dataset} has id {twice!r} more than once; use by='row'.")
        return np.asarray(data.X[index])


class TextEncoder(_Vectors):
    """Texts → vectors.

    Args:
        model: hub id or folder of a checkpoint.
        view: such as ``mean_-1``, ``cls_0`` or ``pooler``.
        revision: branch, tag or commit of a hub checkpoint.
        device: ``auto``, ``cpu`` or ``cuda:0``.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        max_length: tokens per text.
        prefix: put before every text; by default that of the checkpoint.
        normalize: scale every vector to length 1 (L2).
        cache: folder to keep vectors in, by all that shapes them; ``None`` keeps none.

    Attributes:
        n_features_out_: width of the result.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        view: str = "mean_-1",
        revision: str | None = None,
        device: str = "auto",
        precision: str | None = None,
        max_length: int | None = None,
        prefix: str | None = None,
        normalize: bool = False,
        cache: str | Path | None = None,
    ) -> None:
        self.model = model
        self.view = view
        self.revision = revision
        self.device = device
        self.precision = precision
        self.max_length = max_length
        self.prefix = prefix
        self.normalize = normalize
        self.cache = cache

    def fit(self, X: Any, y: Any = None) -> TextEncoder:
        """Load the checkpoint; nothing is fitted.

        Raises:
            ModelError: the checkpoint cannot be found or used.
            UsageError: it has no such view.
        """
        from embedkit.encoding.views import parse_view

        encoder = self._encoder()
        view = parse_view(self.view, n_layers=encoder.n_layers)
        self._view_name = view.name
        self._learn_widths({view.name: view.layer.width(encoder.width)})
        return self

    def transform(self, X: Any) -> Float32:
        """``(n, width)`` float32 in the order of the texts, a list or one column of them."""
        check_is_fitted(self, "n_features_out_")
        if isinstance(X, str):
            raise ValueError("X is one string; give a list of texts: transform([text])")
        texts = [_text(value, i) for i, value in enumerate(_column(X))]
        if not texts:
            return np.zeros((0, self.n_features_out_), np.float32)
        if self.cache is None:
            return self._encode(texts)
        return self._through_cache(texts, Path(self.cache))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags

    def _encoder(self) -> Any:
        return _loaded(self.model, self.revision, self.device, self.precision, self.max_length)

    def _encode(self, texts: list[str]) -> Float32:
        found = self._encoder().encode_views(
            texts, [self.view], normalize_embeddings=self.normalize, prefix=self.prefix
        )
        return np.asarray(next(iter(found.values())))

    def _through_cache(self, texts: list[str], folder: Path) -> Float32:
        fsio.make_folder(folder)
        keys = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
        with _cache(folder / f"{self._key()}.sqlite") as database:
            database.execute("CREATE TABLE IF NOT EXISTS v (k BLOB PRIMARY KEY, x BLOB)")
            known = {
                key: row[0]
                for key in set(keys)
                if (row := database.execute("SELECT x FROM v WHERE k = ?", [key]).fetchone())
                and _is_whole(key, row[0])
            }
            missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
            if missing:
                made = self._encode(list(missing.values()))
                new = {key: _sealed(key, vector.tobytes())
                       for key, vector in zip(missing, made, strict=True)}  # fmt: skip
                with database:
                    database.executemany("INSERT OR REPLACE INTO v VALUES (?, ?)", new.items())
                known |= new
        joined = b"".join(known[key][_DIGEST:] for key in keys)
        return np.frombuffer(joined, np.float32).reshape(len(texts), -1).copy()

    def _key(self) -> str:
        """Hash of everything that shapes a vector, the text aside."""
        encoder = self._encoder()
        shaping = [
            sorted(encoder.checkpoint.sha256.items()), self._view_name, encoder.precision,
            encoder.max_length, encoder.model.name, str(encoder.model.device),
            encoder.checkpoint.prefix_or_own(self.prefix),
            self.normalize,
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(shaping).encode()).hexdigest()[:32]


@lru_cache(maxsize=2)
def _loaded(
    model: str, revision: str | None, device: str, precision: str | None, max_length: int | None
) -> Any:
    """An encoder, shared by all clones of this process; estimators themselves pickle small."""
    from embedkit.encoding.encoder import Encoder

    return Encoder.load(
        model, revision=revision, device=device, precision=precision, max_length=max_length
    )


@lru_cache(maxsize=8)
def _stored(
    dataset: str, view: str | tuple[str, ...] | None, by: str, _fingerprint: str
) -> tuple[VectorData, dict[Any, int]]:
    data = load(dataset, list(view) if isinstance(view, tuple) else view)
    keys: Iterable[Any] = data.ids.tolist() if by == "id" else data.row.tolist()
    index_of: dict[Any, int] = {}
    for i, key in enumerate(keys):
        index_of[key] = -1 if key in index_of else i
    return data, index_of


@contextmanager
def _cache(file: Path) -> Iterator[sqlite3.Connection]:
    """The open cache; errors of SQLite become those of embedkit."""
    try:
        with closing(sqlite3.connect(file, timeout=60)) as database:
            yield database
    except sqlite3.OperationalError as error:
        raise StorageError(f"the cache {file} cannot be used: {error}.") from error
    except sqlite3.DatabaseError as error:
        raise DamagedError(
            f"the cache {file} is damaged: {error}. Delete it; it is made again."
        ) from error


def check_cache(file: Path) -> tuple[int, int]:
    """Compare the vectors of a cache of :class:`TextEncoder` with their checksums.

    A damaged one is not used: its text is encoded again.

    Returns:
        Number of vectors, and of damaged ones.

    Raises:
        DamagedError: it is no database, or holds no vectors.
    """
    with _cache(file) as database:
        if database.execute("PRAGMA integrity_check").fetchone() != ("ok",):
            raise DamagedError(f"the cache {file} is damaged. Delete it; it is made again.")
        count = damaged = 0
        for key, stored in database.execute("SELECT k, x FROM v"):
            count += 1
            damaged += not _is_whole(key, stored)
    return count, damaged


def _sealed(key: bytes, vector: bytes) -> bytes:
    """A vector behind its checksum, so that a bit that changed on disk is no other vector."""
    return hashlib.sha256(key + vector).digest()[:_DIGEST] + vector


def _is_whole(key: Any, stored: Any) -> bool:
    """Whether a row of a cache is one that was written; a damaged one may have other types too."""
    blobs = isinstance(key, bytes) and isinstance(stored, bytes)
    return blobs and stored == _sealed(key, stored[_DIGEST:])


def _row(value: Any) -> int:
    """A row number; pandas makes whole floats of them where a value is missing elsewhere."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not number.is_integer():
        raise ValueError(f"X holds {value!r}; expected row numbers, as by='row' says")
    return int(number)


def _text(value: Any, i: int) -> str:
    if not isinstance(value, str) and str(value) in _MISSING:
        raise ValueError(f"X[{i}] is {value}, not a text; fill in or leave out such rows")
    return str(value)


def _column(X: Any) -> list[Any]:
    """A list, array, series or frame of one column as a list."""
    if hasattr(X, "to_numpy"):
        X = X.to_numpy()
    values = np.asarray(X, dtype=object)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"X has shape {values.shape}; expected one column.")
    return list(values)
