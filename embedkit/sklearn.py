"""Vectors as steps of a scikit-learn pipeline.

:class:`StoredVectors` looks vectors up in a dataset, so that cross-validation never encodes a text
twice; :class:`TextEncoder` encodes texts, each once in a process, and on request keeps vectors on
disk. Neither learns from the data it is fitted on.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from embedkit import storage
from embedkit.arguments import checked_value
from embedkit.choices import DEFAULT_MODEL, documented
from embedkit.corpus.values import plain, text_of
from embedkit.dataset.read import VectorData, load
from embedkit.errors import DamagedError, StorageError, UsageError
from embedkit.storage import State, state_of
from embedkit.types import Float32

__all__ = ["StoredVectors", "TextEncoder"]

_MOST_IN_MEMORY = 200_000


class _Vectors(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    def _learn_widths(self, widths: Mapping[str, int]) -> None:
        self.n_features_out_ = sum(widths.values())
        self._names = [f"{view}_{i}" for view, width in widths.items() for i in range(width)]

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Names of the columns: ``mean_6_0``, ``mean_6_1`` and so on."""
        check_is_fitted(self, "n_features_out_")
        return np.array(self._names, dtype=object)

    def __sklearn_tags__(self) -> Any:
        # texts or ids, not a table of numbers: scikit-learn's checks skip what does not apply
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags


class StoredVectors(_Vectors):
    """Ids or row numbers → vectors of a dataset.

    Args:
        dataset: folder that ``extract`` wrote.
        view: a stored view, or several to put side by side; by default the last mean.
        by: what the input holds: ``id``, or ``row`` numbers.

    Attributes:
        n_features_out_: width of the result.

    Example:
        >>> import embedkit
        >>> from embedkit.sklearn import StoredVectors
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     made = embedkit.extract(["a fine film", "a dull film"], out=f"{folder}/films")
        ...     StoredVectors(made.out, by="row").fit_transform([1, 0]).shape
        (2, 384)
    """

    def __init__(
        self, dataset: str | Path, view: str | Sequence[str] | None = None, by: str = "id"
    ) -> None:
        # parameters stay as they were given and are checked in `fit`, as `clone` and
        # `set_params` of scikit-learn require
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
        # a tuple, since the cache hashes it
        view = self.view if self.view is None or isinstance(self.view, str) else tuple(self.view)
        # part of the cache's key: a dataset that was replaced is read again
        fingerprint = load(self.dataset).manifest.fingerprint
        data, index_of = _stored(os.fspath(self.dataset), view, self.by, fingerprint)
        values = _column(X)
        key_of: Any = _row if self.by == "row" else partial(_id, index_of=index_of)
        keys = list(map(key_of, values))
        try:
            index = [index_of[key] for key in keys]
        except KeyError as error:
            raise UsageError(
                f"{self.dataset} has no {self.by} {error.args[0]!r}. Texts that were rejected or "
                "left out have no vectors."
            ) from error
        # only ids that are asked for must be unique
        if -1 in index:
            twice = keys[index.index(-1)]
            raise UsageError(f"{self.dataset} has id {twice!r} more than once; use by='row'.")
        return np.asarray(data.X[index])


@documented
class TextEncoder(_Vectors):
    """Texts → vectors.

    Args:
        model: hub id or folder of a checkpoint.
        view: such as ``mean_-1``, ``cls_0`` or ``pooler``; by default the vector that the
            checkpoint's makers define, as ``extract`` has it.
        revision: branch, tag or commit of a hub checkpoint.
        device: ``auto``, ``cpu`` or ``cuda:0``.
        precision: {PRECISIONS}.
        max_length: tokens per text.
        prefix: put before every text; by default that of the checkpoint.
        normalize: scale every vector to length 1 (L2); by default if neither ``view`` is given nor
            the makers leave it out.
        cache: where vectors are kept, by all that shapes them: ``memory``, for this process, so
            that the folds of ``cross_val_score`` encode no text twice; a folder, for the next one
            too; ``None``, nowhere. Memory is emptied after a call that leaves more than 200,000
            vectors of one encoder, and holds those of two.

    Attributes:
        n_features_out_: width of the result.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.pipeline import make_pipeline
        >>> from embedkit.sklearn import TextEncoder
        >>> texts, labels = ["a fine film", "a dull film", "fine", "dull"], [1, 0, 1, 0]
        >>> make_pipeline(TextEncoder(), LogisticRegression()).fit(texts, labels).predict(texts)
        array([1, 0, 1, 0])
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        view: str | None = None,
        revision: str | None = None,
        device: str = "auto",
        precision: str | None = None,
        max_length: int | None = None,
        prefix: str | None = None,
        normalize: bool | None = None,
        cache: str | Path | None = "memory",
    ) -> None:
        # as given, for `clone`; see above
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
        """Load the checkpoint; nothing is fitted."""
        from embedkit.encoding.views import parse_view

        normalize = checked_value("normalize", self.normalize, bool | None)
        checked_value("view", self.view, str | None)
        checked_value("model", self.model, str)
        if not isinstance(self.cache, str | Path | None) or self.cache == "":
            raise UsageError("expected 'memory', a folder, or None.", cache=self.cache)
        encoder, name, unit = self._encoder(), self.view, False
        # the makers' vector is that of the last layer, and may be normalised; of a view that was
        # asked for nothing is known, so it stays as it is
        if name is None:
            pooling, unit = encoder.checkpoint.own_view(last_layer=True)
            name = f"{pooling}_-1" if pooling.has_layer else str(pooling)
        view = parse_view(name, n_layers=encoder.n_layers)
        self._view_name = view.name
        self._unit = unit if normalize is None else normalize
        self._learn_widths({view.name: encoder.width_of(view)})
        return self

    def transform(self, X: Any) -> Float32:
        """``(n, width)`` float32 in order of the texts: a list or column of them, or one."""
        check_is_fitted(self, "n_features_out_")
        texts = [_text(value, i) for i, value in enumerate(_column(X))]
        if not texts:
            return np.zeros((0, self.n_features_out_), np.float32)
        if self.cache is None:
            return self._encode(texts)
        if self.cache == "memory":
            database, lock = _in_memory(self._key())
            # one connection for all threads
            with lock:
                vectors = self._through_cache(texts, database)
                # emptied as a whole, after the answer: vectors of one call
                # are together whatever their number
                if database.execute("SELECT count(*) FROM v").fetchone()[0] > _MOST_IN_MEMORY:
                    database.execute("DELETE FROM v")
            return vectors
        storage.make_folder(Path(self.cache))
        file = Path(self.cache, f"{self._key()}.sqlite")
        try:
            # processes of joblib share the file; the writer of many vectors is waited for
            with closing(sqlite3.connect(file, timeout=60)) as database:
                return self._through_cache(texts, database)
        # the more special class first: a locked or unwritable file is not damaged
        except sqlite3.OperationalError as error:
            raise StorageError(f"the cache {file} cannot be used: {error}.") from error
        except sqlite3.DatabaseError as error:
            advice = "Delete it; it is made again."
            raise DamagedError(f"the cache {file} is damaged: {error}. {advice}") from error

    def _encoder(self) -> Any:
        # of a folder what is there now: its files may be replaced
        state = tuple(map(state_of, sorted(Path(self.model).glob("**/*"))))
        names = ("revision", "device", "precision", "max_length")
        return _loaded(self.model, state, **{name: getattr(self, name) for name in names})

    def _encode(self, texts: list[str]) -> Float32:
        views = self._encoder().encode_views(
            texts, [self._view_name], normalize_embeddings=self._unit, prefix=self.prefix
        )
        return np.asarray(next(iter(views.values())))

    def _through_cache(self, texts: list[str], database: sqlite3.Connection) -> Float32:
        # of a fixed size, however long the texts are; half of a surrogate pair must not stop here
        keys = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
        database.execute("CREATE TABLE IF NOT EXISTS v (k BLOB PRIMARY KEY, x BLOB)")
        cached = {
            key: row[0]
            for key in set(keys)
            if (row := database.execute("SELECT x FROM v WHERE k = ?", [key]).fetchone())
        }
        # by key, so that a text which occurs twice is encoded once
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in cached}
        if missing:
            encoded = self._encode(list(missing.values()))
            new = {key: vector.tobytes() for key, vector in zip(missing, encoded, strict=True)}
            # one transaction: committed as a whole or not at all
            with database:
                database.executemany("INSERT OR REPLACE INTO v VALUES (?, ?)", new.items())
            cached |= new
        joined = b"".join(cached[key] for key in keys)
        # the buffer of bytes is read-only; estimators may write into their input
        return np.frombuffer(joined, np.float32).reshape(len(texts), -1).copy()

    def _key(self) -> str:
        """Hash of everything that shapes a vector, except for the text."""
        encoder = self._encoder()
        # weights by their hashes, not by a name that may come to mean others; the device
        # too, since its sums have other last bits
        shaping = [
            sorted(encoder.checkpoint.sha256.items()),
            self._view_name,
            encoder.precision,
            encoder.max_length,
            encoder.model.name,
            str(encoder.model.device),
            encoder.checkpoint.prefix_or_own(self.prefix),
            self._unit,
            # of a file another version or processor may have made; memory knows one of each
            "" if self.cache == "memory" else _arithmetic(encoder),
        ]
        return hashlib.sha256(json.dumps(shaping).encode()).hexdigest()[:32]


@lru_cache(maxsize=2)
def _loaded(model: str, _state: tuple[State, ...], **options: Any) -> Any:
    """An encoder, shared by all clones of this process; estimators themselves pickle small."""
    from embedkit.encoding.encoder import Encoder

    return Encoder(model, **options)


@lru_cache(maxsize=2)
def _arithmetic(encoder: Any) -> str:
    """Hash of what the encoder makes of some texts."""
    from embedkit.dataset.shards import arithmetic_of

    return arithmetic_of(encoder)


@lru_cache(maxsize=2)
def _in_memory(_key: str) -> tuple[sqlite3.Connection, Lock]:
    """Vectors of this process, shared by all clones; threads take turns."""
    return sqlite3.connect(":memory:", check_same_thread=False), Lock()


@lru_cache(maxsize=8)
def _stored(
    dataset: str, view: str | tuple[str, ...] | None, by: str, _fingerprint: str
) -> tuple[VectorData, dict[Any, int]]:
    data = load(dataset, view)
    index_of: dict[Any, int] = {}
    for i, key in enumerate((data.ids if by == "id" else data.row).tolist()):
        # -1 marks an id that occurs more than once
        index_of[key] = -1 if key in index_of else i
    return data, index_of


def _row(value: Any) -> int:
    """A row number, which pandas may have made a float."""
    try:
        if (number := float(value)).is_integer():
            return int(number)
    except (TypeError, ValueError):
        pass
    raise ValueError(f"X holds {value!r}; expected row numbers, as by='row' says")


def _text(value: Any, i: int) -> str:
    # lists, bytes and objects have a text that Python prints, which nobody means
    if isinstance(value, str) or not isinstance(value, Iterable):
        with suppress(TypeError):
            if (text := text_of(plain(value))) is not None:
                return text
    raise ValueError(f"X[{i}] is {value!r}, not a text; fill in or leave out such rows")


def _as_python(value: Any) -> Any:
    # the letters of a scalar of Arrow would be texts
    return value.as_py() if hasattr(value, "as_py") else value


def _id(value: Any, *, index_of: Mapping[Any, int]) -> str:
    """An id as the dataset has it: pandas reads 7 as a number, beside a missing one as 7.0."""
    name = str(value)
    with suppress(TypeError):  # of what has no text, such as bytes
        name = name if name in index_of else str(text_of(plain(value)))
    return name


def _column(X: Any) -> list[Any]:
    """A list, array, series or frame of one column as a list."""
    # as objects: NumPy would turn texts and None into texts of one width, and bytes into numbers
    X = bytes(X) if isinstance(X, bytearray | memoryview) else _as_python(X)
    values = np.asarray([*map(_as_python, X)] if isinstance(X, list) else X, dtype=object)
    # a set, a generator and a frame that is not computed are one object to NumPy, whose text nobody
    # means
    whole = values.ndim == 0 and not isinstance(X, str)
    if whole or values.ndim > 2 or values.shape[1:] not in ((), (1,)):
        kind = type(X).__name__
        raise ValueError(f"X is a {kind} of shape {values.shape}; expected one column.")
    return list(values.ravel())
