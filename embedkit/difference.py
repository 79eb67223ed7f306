"""What differs between two sets of vectors of the same texts, and which setting explains it.

    A  (n, width)   a dataset, which knows its texts, its labels and its model
    B  (m, width')  another dataset, or vectors of any other tool

    A ─┬─ joined ─┬─ row by row ──────────► equal bits, distances, cosines
    B ─┘          ├─ a sample together ───► neighbours kept, linear CKA      of any two widths
                  └─ labels, same folds ──► decisions that change            the test of `compare`

    texts of A ── its encoder, one setting changed ──► nearer to B? ──► that setting, then the next

The last line is the notable one. Nobody can see from a file whether another engine pooled, cut or
scaled otherwise, but here is an encoder that has the same bits in any company: a few texts, encoded
with one setting after the other changed, meet foreign vectors to the last digits exactly where the
setting is the one. One forward pass gives every layer with every pooling, so that only what the
model reads (prefix, length, case) and how it computes take passes of their own.
"""

from __future__ import annotations

import copy
import csv
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from embedkit.arguments import accepts, matrix_of
from embedkit.choices import Pooling
from embedkit.classifiers.estimators import EstimatorSettings
from embedkit.classifiers.train import Frozen
from embedkit.comparison.load import spelled_as
from embedkit.comparison.table import scores_and_differences
from embedkit.corpus.readers import suffix_of
from embedkit.corpus.values import text_of
from embedkit.dataset.encoders import DatasetEncoder, encode_as
from embedkit.dataset.format import is_dataset, local_dataset
from embedkit.dataset.read import VectorData, load, text_keys
from embedkit.display import Shown
from embedkit.encoding.views import l2_normalize, parse_layers, split_view, views_of
from embedkit.errors import EmbedkitError, Message, MismatchError, UsageError, first_line
from embedkit.geometry import NEIGHBOURS, linear_cka, nearest_rows, shared_neighbours, unit_vectors
from embedkit.records import Seed
from embedkit.runs.cross_validation import Problem, cross_validate
from embedkit.runs.intervals import Difference
from embedkit.storage import reading
from embedkit.types import AnyPath, Float32, Float64, Int64, Progress, ProgressCallback, no_progress
from embedkit.units.units import Units

if TYPE_CHECKING:  # imported where a table is asked for
    import pandas as pd

logger = logging.getLogger(__name__)

ROUNDING = 1e-5
"""Relative L2 up to which vectors are equal but for the order of sums: engines differ by 1e-6."""

# records of CKA and of neighbours, and those whose neighbours are
# compared: time grows with the product of both
_TOGETHER, _QUERIES = 10_000, 1_000
_FARTHEST, _TRIED = 16, 48  # texts that are encoded again
# records that are shown
_MOVED = 20
_HALF = 0.5  # of the distance: what a setting has to take away to be named
_NEAR, _NEAR_HALF = 1e-2, 0.05  # as far as a rounding of vectors, or half precision, leads
# what other tools usually cut at, beside the longest that the model takes
_LENGTHS = (64, 128, 256, 512)
# those of E5, which others use too; the checkpoint's own are added
_PROMPTS = ("", "query: ", "passage: ")
_QUANTILES = {"least": 0.0, "5 %": 0.05, "25 %": 0.25, "median": 0.5}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Settings by which the encoder of A comes near to the vectors of B, and how near.

    Settings are those of ``extract`` that are others than in A; beside these ``dense`` (left out),
    ``case`` (of the texts), ``rounding`` (of the vectors, to ``float16``, ``bfloat16`` or
    ``int8``) and ``order`` (of the rows).
    """

    settings: dict[str, Any]
    distance: float  # relative L2, the mean of a sample of texts
    largest: float


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Diff(Shown):
    """What differs. Of vectors of two widths distances and cosines are NaN."""

    records: int  # that both have
    joined: str  # by row, id or order
    only_a: int
    only_b: int
    other_texts: int  # records whose texts differ, which are left out
    equal: int  # records whose vectors have the same bits
    same: bool  # both have the same records, with vectors that are equal but for the order of sums
    distance: dict[str, float]  # relative L2 (to the longer vector), median and largest
    cosines: dict[str, float]  # the least, the quantiles of 5 and 25 %, the median
    together: int  # records that the following is of, up to 10,000; of equal texts one
    kept: float  # of ten neighbours by cosine, the mean of up to 1,000 records; NaN below 12 texts
    cka: float  # linear centred kernel alignment; 1: equal but for rotation and scale
    decisions: float = np.nan  # share of those that change, of a classifier trained on both
    accuracies: tuple[float, ...] = ()  # of A and of B, on held-out records
    difference: Difference | None = None  # the accuracy of B less that of A
    settings: tuple[str, ...] = ()  # that differ between two datasets
    before: float = np.nan  # distance of the texts that explanations were tried on
    explanations: tuple[Explanation, ...] = ()  # the best first
    moved: tuple[dict[str, Any], ...]  # records that moved most: row, id, cosine, kept, text

    @property
    def explanation(self) -> Explanation | None:
        """The settings that take away at least half of the distance, if any do."""
        best = next(iter(self.explanations), None)
        return best if best and best.distance < _HALF * self.before else None

    def as_rows(self) -> list[dict[str, Any]]:
        """Rows of the records that moved most; where none did, of the explanations."""
        return list(self.moved) or Shown.as_rows(self)

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas table of the records that moved most."""
        import pandas as pd

        return pd.DataFrame(self.moved)


@accepts()
def diff(
    a: AnyPath,
    b: Any,
    *,
    view: str | Sequence[str] | None = None,
    model: str | None = None,
    device: str = "auto",
    seed: Seed = 0,
    progress: ProgressCallback = no_progress,
) -> Diff:
    """Compare a dataset with another one, or with vectors that any other tool made of its texts.

    Two datasets of one corpus are joined by row, others by id; a file by its column ``id``, without
    one by the order of its rows. Where labels are stored, a logistic regression is trained on both
    under the same folds.

    If vectors of another tool differ, up to 48 texts, the farthest among them, are encoded again
    with other settings (layer, pooling, normalisation, prefix, truncation, case, a Dense layer left
    out, half precision, int8), and those are named that come nearest.

    Args:
        a: folder that ``extract`` wrote.
        b: another one; or a file: ``.npy`` ``(n, width)``, Parquet, CSV, TSV or JSON lines with a
            column of lists or a column for each coordinate; or a matrix in memory.
        view: of both, or a list of two: a stored view of ``a``, and one of ``b`` or the column of
            the file; by default the last mean, and the only column of lists, or numbered ones.
        model: location of the checkpoint of ``a``, if it has moved.
        device: where to encode.
        seed: of the samples, the folds and the classifier.
        progress: called with the settings that were tried, and the fits.

    Returns:
        How many vectors have the same bits, distances, neighbours that are kept, linear CKA,
        decisions that change, and ``explanation``: settings that take away at least half of the
        distance, or ``None``. ``same`` is true if both have the same records, and nothing but the
        order of sums differs.

    Raises:
        UsageError: ``b`` cannot be read as vectors, or ids occur twice.
        MismatchError: no record is in both, or rows without ids are of another number.

    Example:
        >>> half = embedkit.load("vectors").X.astype("float16")
        >>> result = embedkit.diff("vectors", half)
        >>> result.explanation.settings, result.explanation.largest
        ({'rounding': 'float16'}, 0.0)
    """
    names = [view] if view is None or isinstance(view, str) else list(view)
    if not 1 <= len(names) <= 2:
        raise UsageError("expected one view of both, or two.", view=view)
    folder, second = local_dataset(a), local_dataset(b) if isinstance(b, str | os.PathLike) else b
    if not is_dataset(folder):
        raise UsageError(f"{a} is not a dataset. Give the dataset first, then what to compare.")
    data, settings = load(folder, names[0]), tuple[str, ...]()
    if foreign := not (isinstance(second, Path) and is_dataset(second)):
        y, ids = _foreign(second, names[-1], named=len(names) == 2)
        join = _joined(data, str(b) if isinstance(second, Path) else "the matrix", ids, len(y))
    else:
        other = load(second, names[-1])
        y, join, settings = other.X, _joined_datasets(data, other), _settings(data, other)
    # from here on positions are those of the joined records, in the order of A
    pair = _Pair.of(data, join.a, data.X[join.a], y[join.b])
    random = np.random.default_rng(seed)
    # samples are drawn in a fixed order, so that a seed gives the same result
    sample = pair.distinct(random)
    # of eleven texts all others are the neighbours of each, whatever the vectors are
    most = _QUERIES if len(sample) > NEIGHBOURS + 1 else 0
    queries, kept = np.sort(random.permutation(len(sample))[:most]), np.zeros(0)
    if most:
        # a number of neighbours, not a fraction
        near_x, near_y = (nearest_rows(v[sample], rows=queries) for v in (pair.x, pair.y))
        kept = NEIGHBOURS * shared_neighbours(near_x, near_y)
    distance, cosine = pair.distances, pair.cosines
    # of the records in both
    near = bool(np.max(distance) <= ROUNDING)
    further = _decisions(pair, sample, seed, progress)
    # two datasets say themselves how they were made, and equal vectors need no explanation
    if foreign and not near:
        about: dict[str, Any] = {"owner": str(data.path), "device": device, "model": model}
        # one checkpoint for each precision; every other setting is changed on what was loaded
        load_encoder = cache(partial(encode_as, data.manifest, data.views, **about))
        try:
            further |= _explained(pair, join.by, random, load_encoder, progress)
        except EmbedkitError as error:  # the checkpoint is not here; what was measured is
            logger.warning(Message(f"what explains the difference was not tried: {error.message}"))
    return Diff(
        records=len(join.a),
        joined=join.by,
        # records of other texts are in both, and in neither number
        only_a=len(data) - len(join.a) - join.other_texts,
        only_b=len(y) - len(join.a) - join.other_texts,
        other_texts=join.other_texts,
        same=near and len(join.a) == len(data) == len(y),
        equal=int((distance == 0).sum()),
        distance={"median": float(np.median(distance)), "largest": float(np.max(distance))},
        cosines={name: float(np.quantile(cosine, share)) for name, share in _QUANTILES.items()},
        together=len(sample),
        kept=float(kept.mean()) if len(kept) else np.nan,
        cka=linear_cka(pair.x[sample], pair.y[sample]),
        settings=settings,
        moved=pair.moved(sample[queries], kept),
        **further,
    )


_IDS = ("id", "doc_id", "document_id", "uid", "guid")
"""Columns of ids in a table of another tool, in any case, with spaces around or none."""

_ADVICE = "Give a dataset, or .npy, .parquet, .csv, .tsv or .jsonl with vectors."


def _foreign(source: Any, column: str | None, *, named: bool) -> tuple[Float32, list[str] | None]:
    """Vectors of another tool, ``(n, width)``, and their ids if it gave any.

    ``named`` says that the ``column`` is that of the table, not a view of the dataset alone.
    """
    import pandas as pd

    name = "the matrix"
    if isinstance(source, str | os.PathLike):
        path, name = Path(source), os.fspath(source)

        def table_of(file: Path, **dialect: Any) -> Any:
            table = pd.read_csv(file, **dialect)
            # whole numbers from 0 are how pandas itself names columns
            if table.columns.astype(str).str.fullmatch(r"-\d+|-?\d+\.[\d.e+-]+").any():
                raise ValueError("its first line holds numbers, not names of columns")
            # ids as they are written: 007, and NA, which is a missing number in other columns
            settings: dict[str, Any] = {**dialect, "dtype": str, "keep_default_na": False}
            ids = pd.read_csv(file, usecols=lambda n: n.strip().lower() in _IDS, **settings)
            return table.assign(**ids)

        readers: dict[str, Callable[[Path], Any]] = {
            # a pickle would run code
            # mapped: what a header says of its size is compared with the file
            ".npy": partial(np.load, mmap_mode="r", allow_pickle=False),
            # pandas would hide ids that were an index
            ".parquet": lambda file: pq.read_table(file).to_pandas(ignore_metadata=True),
            ".csv": table_of,
            # a quote is a character like any other there, as it is to whoever writes it
            ".tsv": partial(table_of, sep="\t", quoting=csv.QUOTE_NONE),
            # types as they are there: an id may be 007
            ".jsonl": partial(pd.read_json, dtype=False, lines=True, precise_float=True),
        }
        if (suffix := suffix_of(path)) not in readers:
            raise UsageError(f"{path} is neither a dataset nor a file of vectors. {_ADVICE}")
        with reading(path, Exception, error=UsageError, advice=_ADVICE):  # of five readers
            source = readers[suffix](path)
    elif hasattr(source, "to_pandas"):  # of Arrow, Polars and datasets
        source = source.to_pandas()
    if isinstance(source, pd.Series):
        source = pd.DataFrame({"vector": source})
    if not isinstance(source, pd.DataFrame):
        return matrix_of(name, source), None
    if source.index.name is not None and source.index.name not in source:
        source = source.reset_index()
    spelt = {str(n).strip().lower(): n for n in reversed(source.columns)}
    keys = next((source[spelt[n]] for n in _IDS if n in spelt), None)
    ids = None if keys is None else [text_of(key) or "" for key in keys]
    if ids is not None and "" in ids:
        raise UsageError(f"{name}, row {ids.index('')}, has no id. Give every row one.")
    try:
        vectors = _vectors_of(source, column, named=named)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{name} cannot be read: {first_line(error)}. {_ADVICE}") from error
    return matrix_of(name, vectors), ids


def _vectors_of(frame: Any, column: str | None, *, named: bool) -> NDArray[Any]:
    """The column of lists, maybe written as text; or the numeric columns, numbered as ``v0`` is."""
    first = {name: frame[name].dropna().head(1).tolist() for name in frame.columns}
    lists = [name for name, cells in first.items() if cells and _numbers(cells[0]).ndim == 1]
    # a number at the end of a name is a coordinate, if other names begin alike: an id or a label
    # may be a number too
    coordinates: dict[str, dict[int, str]] = {}
    for name in frame.select_dtypes("number").columns:
        if match := re.fullmatch(r"(.*?)(\d+)", str(name)):
            coordinates.setdefault(match[1], {})[int(match[2])] = name
    # pandas calls an index that was written as a column "Unnamed: 0"
    numbered = {n: c for n, c in coordinates.items() if len(c) > 1 and n != "Unnamed: "}
    names = [*lists, *numbered]
    chosen = [column] if column in names else [] if named else names
    if len(chosen) != 1:
        shown = ", ".join(map(str, frame.columns))
        if not names:
            raise ValueError(f"it has neither lists nor columns v0, v1, …, but {shown:.60}")
        listed = ", ".join(map(str, names))
        raise ValueError(f"it has vectors in {listed}; name one by view, after that of the dataset")
    if chosen[0] in numbered:
        # by number, not by place: a table may be sorted by the names of its columns
        return np.asarray(frame[[c for _, c in sorted(numbered[chosen[0]].items())]])
    rows = [_numbers(cell) for cell in frame[chosen[0]]]
    shape = _numbers(first[chosen[0]][0]).shape
    if odd := [i for i, row in enumerate(rows) if row.shape != shape]:
        raise ValueError(f"{chosen[0]}, row {odd[0]} has no {shape[0]} numbers")
    return np.array(rows, np.float32)


def _numbers(cell: Any) -> NDArray[np.float64]:
    """The numbers of a list, or of a text as JSON, Python or NumPy write one, ``(n,)``."""
    if isinstance(cell, str) and (text := cell.strip()).startswith("["):
        cell = text.strip("[]").replace(",", " ").split()
    with suppress(TypeError, ValueError):  # of classes, which may be a list too
        return np.asarray(cell, np.float64)
    return np.empty(())


class _Join(NamedTuple):
    """Positions of the same records in both."""

    a: Int64
    b: Int64
    by: str
    other_texts: int = 0


def _check_filled(data: VectorData, name: str, count: int) -> None:
    """Raise if one of both has no records."""
    if not len(data) or not count:
        raise UsageError(f"{name if len(data) else data.path} has no records to compare.")


def _joined(data: VectorData, name: str, ids: Sequence[str] | None, count: int) -> _Join:
    """By ids, in the order of the dataset; without them by order."""
    _check_filled(data, name, count)
    if ids is None:
        if count != len(data):
            raise MismatchError(
                f"{name} has {count:,} vectors, {data.path} {len(data):,} records. Give as many in "
                "the same order, or a table with the column id."
            )
        return _Join(np.arange(count), np.arange(count), "order")
    for place, column in ((str(data.path), data.ids), (name, ids)):
        if twice := [key for key, times in Counter(column).items() if times > 1]:
            raise UsageError(
                f"{len(twice):,} ids of {place} occur more than once, such as {str(twice[0])!r}. "
                "Make ids unique, or give rows in the order of the dataset, without ids."
            )
    names = np.array(spelled_as(ids, {*data.ids}))
    # sorted by id; the order of A is restored below
    _, first, second = np.intersect1d(data.ids, names, assume_unique=True, return_indices=True)
    if not len(first):
        shown = f"{str(ids[0])!r} against {str(data.ids[0])!r}"
        raise MismatchError(f"{name} has none of the {len(data):,} ids of {data.path}: {shown}.")
    order = np.argsort(first)
    return _Join(first[order], second[order], "id")


def _joined_datasets(a: VectorData, b: VectorData) -> _Join:
    """By row if they are of one corpus, else by id; records of other texts are left out.

    Without a column of ids these are row numbers, which mean something else in another corpus.
    """
    _check_filled(a, str(b.path), len(b))
    # the same files by their hashes: rows mean the same records, whatever the ids are
    if a.manifest.source == b.manifest.source:
        join = _Join(*np.intersect1d(a.row, b.row, return_indices=True)[1:], "row")
    else:
        join = _joined(a, str(b.path), b.ids.tolist(), len(b))
    # equal ids of another text are not the same record
    same_text = text_keys(a)[join.a] == text_keys(b)[join.b]
    if not same_text.any():
        problem = f"{len(same_text):,} have the same {join.by}, and all of these another text"
        raise MismatchError(f"{b.path} has no record of {a.path}: {problem}.")
    return _Join(join.a[same_text], join.b[same_text], join.by, int((~same_text).sum()))


def _settings(a: VectorData, b: VectorData) -> tuple[str, ...]:
    """Settings in which two datasets differ."""
    # phrases are made for errors, in which one of both is expected
    phrases = a.manifest.vector_settings.differences(b.manifest.vector_settings)
    views = ["+".join(data.views) for data in (a, b)]
    phrases += [f"view is {views[0]}, expected {views[1]}"] * (views[0] != views[1])
    return tuple(phrase.replace(", expected ", ", then ") for phrase in phrases)


class _Pair(NamedTuple):
    """The same records, by their places in A, with the vectors of A and of B."""

    data: VectorData
    places: Int64
    x: Float32
    y: Float32
    distances: Float64  # relative L2 of each record (n,); NaN for two widths
    cosines: Float64  # of each record (n,); NaN for two widths

    @classmethod
    def of(cls, data: VectorData, places: Int64, x: Float32, y: Float32) -> _Pair:
        if x.shape != y.shape:
            nothing = np.full(len(x), np.nan)
            return cls(data, places, x, y, nothing, nothing)
        cosines = np.asarray((unit_vectors(x) * unit_vectors(y)).sum(axis=1))
        return cls(data, places, x, y, _distances(x, y), cosines)

    def distinct(self, random: np.random.Generator) -> Int64:
        """Positions of up to 10,000 records, one for each text: equal ones are all as near."""
        _, first = np.unique(text_keys(self.data)[self.places], return_index=True)
        return np.sort(random.permutation(first)[:_TOGETHER])

    def moved(self, queries: Int64, kept: Float64) -> tuple[dict[str, Any], ...]:
        """The records that moved most: by cosine in one space, by neighbours in two."""
        cosine, of_query = self.cosines, dict(zip(queries.tolist(), kept.tolist(), strict=True))
        order = queries[np.argsort(kept, kind="stable")[:_MOVED]]
        # two models have spaces of their own, in which cosines between them are
        # about zero; False for NaN of two widths
        if np.median(cosine) > 0.5:
            order = np.argsort(cosine, kind="stable")[:_MOVED]
            # what only rounding moved is not shown
            order = order[cosine[order] < 1 - ROUNDING]
        names = [name for name in ("row", "id", "text") if name in self.data.columns]
        rows = self.data.reader.table_at(self.places[order], names).to_pylist()
        return tuple(
            row | {"cosine": float(cosine[i]), "kept": of_query.get(i)}
            for i, row in zip(order.tolist(), rows, strict=True)
        )


def _distances(x: Float32, y: Float32) -> Float64:
    """L2 distances of the rows by the longer vector, ``(n,)``: that of noise is 1, however long."""
    a, b = x.astype(np.float64), y.astype(np.float64)
    # by the longer one, so that the distance does not depend on which is A
    lengths = np.maximum(*(np.linalg.norm(vectors, axis=1) for vectors in (a, b)))
    return np.asarray(np.linalg.norm(a - b, axis=1) / np.maximum(lengths, 1e-12))


def _decisions(pair: _Pair, sample: Int64, seed: int, progress: ProgressCallback) -> dict[str, Any]:
    """The fields of a classifier that is trained on both, if there are classes."""
    # numbers as labels have no decisions that could change
    if "label" not in pair.data.columns or pair.data.y.dtype.kind == "f":
        return {}
    units = Units.of_dataset(pair.data).take(pair.places[sample])
    # untuned: the question is what the vectors change, and tuning would add noise of its own
    method = Frozen(EstimatorSettings(seed=seed, tune=False))
    held_out = {}
    try:
        problem = Problem.of(units, seed=seed)
        for name, vectors in (("a", pair.x[sample]), ("b", pair.y[sample])):
            # the same units, target and folds, with other vectors
            inputs = replace(units, inputs=vectors.__getitem__)
            same = problem._replace(units=inputs)
            held_out[name], _ = cross_validate(method, same, progress=progress)
    except UsageError as error:
        logger.info(Message(f"no classifier is compared: {error.message}"))
        return {}
    scores, differences = scores_and_differences(held_out, "accuracy", no_progress)
    return {
        "decisions": float(np.mean(held_out["a"].y_pred != held_out["b"].y_pred)),
        "accuracies": tuple(scores[name]["accuracy"].value for name in held_out),
        "difference": differences["b", "a"],
    }


# explanations

_Load = Callable[..., DatasetEncoder]
"""Loads the encoder of A, in another ``precision`` if one is given."""

_OF_INPUT = frozenset({"prefix", "max_length", "on_long", "special_tokens", "case", "precision"})
"""Settings that take a forward pass of their own; all others follow from its hidden states."""


def _explained(
    pair: _Pair, joined: str, random: np.random.Generator, load: _Load, progress: ProgressCallback
) -> dict[str, Any]:
    """The distance of a sample as it is, and settings that bring A nearer to B, the best first.

    The best setting is kept and the others are tried again beside it, until none halves what is
    left: two things may be wrong at once.
    """
    x, y = pair.x, pair.y
    chosen, before = random.permutation(len(x))[:_TRIED], np.inf
    if x.shape == y.shape:
        # those that moved most show best what moved them, such as a cut; the random ones keep a
        # setting from being named that explains only these
        farthest = np.argsort(-pair.distances, kind="stable")[:_FARTHEST]
        chosen = np.unique(np.concatenate([farthest, chosen[: _TRIED - len(farthest)]]))
        before = float(pair.distances[chosen].mean())
        # looked for first, since no setting of the encoder can explain it
        if joined == "order" and (order := _order(x, y, chosen)):
            return {"before": before, "explanations": (order,)}
    laboratory = _Laboratory(pair.data, pair.places[chosen], y[chosen], load)
    # without a change of the input: layer, pooling, scale and rounding follow from the same pass
    best = laboratory.nearest({})
    trials = [best]
    # each round keeps one setting, and ends early if it explains everything
    while best.largest > ROUNDING:
        # what the next passes have in common; layers and poolings are free again in each of them
        inputs = {name: value for name, value in best.settings.items() if name in _OF_INPUT}
        tried = [best]
        for variant in laboratory.variants(near=best.distance < _NEAR_HALF):
            progress(Progress("trying settings", len(trials) + len(tried), None, "settings"))
            # a precision may not be to be had here, nor a length for windows with their stride
            with suppress(EmbedkitError):
                # a setting that was kept is not changed again
                if not variant.keys() & inputs.keys():
                    tried.append(laboratory.nearest({**inputs, **variant}))
            if tried[-1].largest <= ROUNDING:
                break
        trials += tried[1:]
        nearest = _simplest(tried)
        # a setting that helps less is noise
        if nearest.distance >= _HALF * best.distance:
            break
        best = nearest
    # the one kept is first even where another is a rounding nearer, with more settings
    trials.sort(key=lambda trial: (trial is not best, trial.distance))
    return {"before": before, "explanations": tuple(trials)}


def _simplest(trials: Sequence[Explanation]) -> Explanation:
    """Of those that are as near as the nearest one, the one with the fewest settings."""
    least = min(trial.distance for trial in trials)
    # within a factor of two, or within rounding, fewer settings are the better explanation
    near = [trial for trial in trials if trial.distance <= max(least / _HALF, ROUNDING / 10)]
    return min(near, key=lambda trial: (len(trial.settings), trial.distance))


def _order(x: Float32, y: Float32, chosen: Int64) -> Explanation | None:
    """The order of rows, if those of B are vectors of A that belong to other records."""
    # the sample against all rows of A
    nearest = (unit_vectors(y[chosen]) @ unit_vectors(x).T).argmax(axis=1)
    far = _distances(x[nearest], y[chosen])
    # all of them have to be found, and half of them elsewhere
    if far.max() > _NEAR or (x[nearest] == x[chosen]).all(axis=1).mean() > _HALF:
        return None
    text = f"row {chosen[0]} of B is row {nearest[0]} of A"
    return Explanation({"order": text}, float(far.mean()), float(far.max()))


class _Laboratory:
    """Texts of a sample, what another tool made of them ``(n, width)``, and the encoder of A."""

    def __init__(self, data: VectorData, places: Int64, y: Float32, load: _Load) -> None:
        if not data.manifest.job.storage.text:
            raise UsageError(f"{data.path} stores no texts to encode again.")
        names = [name for name in ("text", "text_pair") if name in data.columns]
        self._texts, self._y = data.reader.table_at(places, names).to_pydict(), y
        self._load, self._base, self._own = load, load(), "+".join(data.views)
        self._checkpoint = self._base.encoder.checkpoint
        self._modules = {module.kind for module in self._checkpoint.definition.modules}
        poolings, layers = list[Pooling](), self._base.encoder.n_layers
        for pooling in Pooling:
            with suppress(EmbedkitError):
                self._base.encoder.check_poolings([pooling])
                poolings.append(pooling)
        # one forward pass has all layers with all poolings that the checkpoint can have
        specs = parse_layers("all", n_layers=layers)
        self._views = [view.name for view in views_of(specs, poolings, n_layers=layers)]

    def variants(self, *, near: bool) -> Iterator[dict[str, Any]]:
        """One change each of what the model reads, and of how it computes.

        Half precision, slow on most processors, is tried only if it is ``near``.
        """
        longest, prompts = self._checkpoint.positions, self._checkpoint.definition.prompts
        kinds: dict[str, Sequence[Any]] = {
            "prefix": [*_PROMPTS, self._checkpoint.prefix, *prompts.values()],
            "max_length": [n for n in (*_LENGTHS, longest) if n <= longest],
            "on_long": ["truncate"],
            "special_tokens": [True, False],
            # a cased model may have been given lower-cased text; a tokenizer that
            # lower-cases may have been kept from it
            "case": ["lower-cased", "not lower-cased"],
            "precision": ["fp32", "int8", *["bf16", "fp16"] * near],
        }
        for name, values in kinds.items():
            # prompts of the checkpoint may be among the usual ones
            for value in dict.fromkeys(values):
                if value != getattr(self._base.settings, name, None):
                    yield {name: value}

    def nearest(self, inputs: Mapping[str, Any]) -> Explanation:
        """The view, scale and rounding by which the sample comes nearest to that of the tool."""
        trials, width = [], self._y.shape[1]
        # int8: each coordinate has a scale of its own that is not in the file
        # and one that is the same everywhere fits any
        integral = bool((self._y == np.round(self._y)).all() and np.ptp(self._y, axis=0).any())
        roundings = ["int8"] if integral else ["float32", "float16", "bfloat16"]
        for name, vectors in self._encoded(**inputs).items():
            # the vector of the makers has the length that they gave it
            of_unit = name == Pooling.SENTENCE and "Normalize" in self._modules
            units = (True,) if of_unit else (True, False)
            for unit, rounding in product(units, roundings if vectors.shape[1] >= width else ()):
                # a prefix of the coordinates, as Matryoshka models are
                # shortened; scaled to length 1 after that
                x = l2_normalize(vectors[:, :width]) if unit else vectors[:, :width]
                far = _distances(*_ROUND[rounding](x, self._y))
                settings = {**inputs, **self._changes(name, unit=unit, rounding=rounding)}
                settings |= {"dims": width} if vectors.shape[1] > width else {}
                trials.append(Explanation(settings, float(far.mean()), float(far.max())))
        if not trials:
            raise UsageError(f"no view has {width} coordinates, as the other vectors have.")
        return _simplest(trials)

    def _encoded(
        self, *, case: str = "", precision: str | None = None, **inputs: Any
    ) -> dict[str, Float32]:
        """All views of the texts; those of A, if they are several, side by side too."""
        encode = self._load(precision=precision)
        # shallow: the cached encoder keeps its tokenizer, and the weights are shared
        encoder = copy.copy(encode.encoder)
        if case == "not lower-cased":
            encoder.tokenizer = encoder.tokenizer.cased()
        # scale, dims and rounding are tried on the vectors, without another pass
        plain: dict[str, Any] = {"normalize": False, "dims": None, "storage": "float32"}
        encode = encode.changed(encoder, self._views, **plain, **inputs)
        lower = str.lower if case == "lower-cased" else str
        views = encode.views(*([lower(text) for text in column] for column in self._texts.values()))
        matrices = [views[name] for name in self._own.split("+")]
        return views if len(matrices) < 2 else views | {self._own: np.concatenate(matrices, axis=1)}

    def _changes(self, name: str, *, unit: bool, rounding: str) -> dict[str, Any]:
        """What a view, its scale and its rounding are other than in A."""
        changes: dict[str, Any] = {}
        settings, of_makers = self._base.settings, self._own == Pooling.SENTENCE
        if name != self._own:
            (pooling, layer), (before, its) = split_view(name), split_view(self._own)
            changes |= {"pooling": pooling} if pooling != before else {}
            last = its or str(self._checkpoint.n_layers)
            changes |= {"layers": layer} if layer not in ("", last) else {}
            changes |= {"dense": "left out"} if of_makers and "Dense" in self._modules else {}
        # shortened vectors are scaled to length 1 by the dataset as well
        scaled = settings.normalize or settings.dims is not None
        scaled = scaled or (Pooling.SENTENCE in (self._own, name) and "Normalize" in self._modules)
        # of another layer or pooling the default of extract may be another one than in A
        other = name not in (self._own, Pooling.SENTENCE)
        changes |= {"normalize": unit} if other or unit != scaled else {}
        stored = "float16" if settings.storage in ("float16", "compact") else "float32"
        return changes | ({"rounding": rounding} if rounding != stored else {})


def _as_whole_numbers(x: Float32, y: Float32) -> tuple[Float32, Float32]:
    """Each coordinate of whole numbers has a scale and an offset, found by least squares."""
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    return x * ((x * y).sum(axis=0) / np.maximum((x**2).sum(axis=0), 1e-12)), y


_ROUND: Mapping[str, Callable[[Float32, Float32], tuple[Float32, Float32]]] = {
    "float32": lambda x, y: (x, y),
    "float16": lambda x, y: (x.astype(np.float16).astype(np.float32), y),
    # half a unit is added, and the lower 16 of 32 bits are cleared
    "bfloat16": lambda x, y: (((x.view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32), y),
    "int8": _as_whole_numbers,
}
"""Vectors of A as they would be after a rounding, and those of B to compare them with."""
