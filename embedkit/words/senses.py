"""Whether uses of a word with the same sense lie nearer to each other, layer by layer."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embedkit.dataset.record_keys import has_label, text_key
from embedkit.dataset.store import Layout, VectorData
from embedkit.errors import UsageError
from embedkit.runs.resampling import Score
from embedkit.search.exact import unit_rows
from embedkit.types import Bool, Float32, Float64, Int64, Progress, ProgressCallback, no_progress
from embedkit.words.matching import EDGES, find_word
from embedkit.words.uses import Use, UseVectors, layer_tables, uses_in_dataset, uses_of_spans

__all__ = ["Nearby", "SenseLayer", "SenseReport", "compare_senses"]

logger = logging.getLogger(__name__)

_SAMPLES = 1_000
_LISTED = 5
_CANDIDATES = 60
_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Nearby:
    """Another word near a use: ``word`` as written, and its ``cosine``."""

    word: str
    cosine: float


@dataclass(frozen=True, slots=True)
class SenseLayer:
    """All words at one layer.

    Attributes:
        layer: its name.
        same: mean cosine of two uses of a word with the same sense; NaN without such a pair.
        other: of two uses of a word with different senses.
        nearest: fraction of uses whose nearest other use has the same sense, with an interval for
            words drawn anew, or for uses drawn anew where there is one word; NaN without senses.
    """

    layer: str
    same: float
    other: float
    nearest: Score


@dataclass(frozen=True, slots=True, eq=False)
class SenseReport:
    """Uses of words, compared by sense.

    Attributes:
        model: name of the checkpoint.
        centered: whether the mean of all words of a layer was subtracted first.
        uses: the uses, those of one word together.
        words: the word of each use.
        senses: the sense of each use, ``None`` where it is not known.
        layers: every layer, over all words.
        by_word: for each word, (same, other) mean cosines at each layer.
        chance: fraction of uses whose nearest other use would have the same sense by chance.
        scored: number of uses with a sense and another use to compare with.
        skipped: uses without a kept token, since the text was cut before them.
        units: ``(uses, width)`` float32 by layer name, rows of length 1.
        nearby: for each layer, other words near each use; empty without a word table.
    """

    model: str
    centered: bool
    uses: tuple[Use, ...]
    words: tuple[str, ...]
    senses: tuple[str | None, ...]
    layers: tuple[SenseLayer, ...]
    by_word: Mapping[str, tuple[tuple[float, float], ...]]
    chance: float
    scored: int
    skipped: int
    units: Mapping[str, Float32]
    nearby: tuple[tuple[tuple[Nearby, ...], ...], ...]


def compare_senses(
    dataset: str | Path,
    word: str | None = None,
    *,
    sense: str | None = None,
    span: tuple[str, str] | None = None,
    word_column: str | None = None,
    match: str = "word",
    center: bool = True,
    seed: int = 0,
    progress: ProgressCallback = no_progress,
) -> SenseReport:
    """Compare uses with the same sense and uses with different senses of a word, or of all words.

    A use is compared with uses of the same word in other texts. Its vector is the mean over its
    tokens, or over its words where the dataset has no token vectors.

    Args:
        dataset: folder that ``extract --tokens`` or ``--words`` wrote.
        word: only uses of this word; needed without ``span``.
        sense: column with the sense of each record.
        span: columns with the first character of the use in a record, and the one after its last.
            Occurrences of the word outside are no uses. By default all occurrences are.
        word_column: column that names the word of each record; by default ``word`` where the
            dataset has one, else the text of the span.
        match: how the word is found without ``span``, one of
            :data:`~embedkit.choices.MATCHES`.
        center: subtract the mean over all words of the dataset, layer by layer.
        seed: of samples.
        progress: called after every part of the tables.

    Raises:
        UsageError: a column does not exist or holds no spans, the word does not occur, or there
            are no word or token vectors.

    Example:
        >>> report = compare_senses("vectors", "bank", sense="label")
        >>> len(report.uses), report.senses[:3], report.layers[-1].nearest.value
        (12, ('0', '1', '0'), 1.0)
    """
    if span is not None:
        found, words = uses_of_spans(dataset, span, word=word, word_column=word_column, seed=seed)
    elif word is None:
        raise UsageError("give a word, or span=(START, END), the columns of the uses of all words.")
    else:
        found = uses_in_dataset(dataset, word, match=match, seed=seed)
        words = (word,) * len(found.uses)
    given = found.senses(sense) or [None] * len(words)
    order = sorted(range(len(words)), key=lambda i: words[i])
    found = UseVectors(
        tuple(found.uses[i] for i in order),
        {name: values[order] for name, values in found.vectors.items()}, found.skipped, found.data,
    )  # fmt: skip
    words = tuple(words[i] for i in order)
    senses = tuple(given[i] if has_label(given[i]) else None for i in order)
    assert found.data is not None
    means = _means(found.data) if center else {}
    units = {name: unit_rows(values - means.get(name, np.float32(0)))
             for name, values in found.vectors.items()}  # fmt: skip
    pairs = _Pairs.of(found.uses, words, senses)
    return SenseReport(
        model=Path(found.data.manifest.names.model).name, centered=center, uses=found.uses,
        words=words, senses=senses,
        layers=tuple(pairs.layer(name, unit, seed) for name, unit in units.items()),
        by_word={name: tuple(pairs.cosines_of(unit, name) for unit in units.values())
                 for name in dict.fromkeys(words)},
        chance=pairs.chance, scored=int(pairs.scored.sum()), skipped=found.skipped, units=units,
        nearby=_nearby(found.data, found.uses, words, units, means, progress),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Pairs of uses that are compared: of one word, in different records and texts."""

    words: tuple[str, ...]
    compared: Bool
    same: Bool
    scored: Bool

    @classmethod
    def of(
        cls, uses: Sequence[Use], words: tuple[str, ...], senses: Sequence[str | None]
    ) -> _Pairs:
        rows = np.array([use.row for use in uses])
        _, texts = np.unique([text_key(use.text) for use in uses], return_inverse=True)
        _, word = np.unique(words, return_inverse=True)
        _, sense = np.unique([s or "" for s in senses], return_inverse=True)
        known = np.array([s is not None for s in senses])
        compared = (rows[:, None] != rows) & (texts[:, None] != texts)
        compared &= (word[:, None] == word) & known[:, None] & known
        return cls(words, compared, sense[:, None] == sense, compared.any(axis=1))

    @property
    def chance(self) -> float:
        """Mean fraction of the other uses that have the same sense."""
        if not self.scored.any():
            return _NAN
        counts = self.compared.sum(axis=1)[self.scored]
        return float(np.mean((self.compared & self.same).sum(axis=1)[self.scored] / counts))

    def layer(self, name: str, unit: Float32, seed: int) -> SenseLayer:
        cosines = unit @ unit.T
        same, other = (_mean(cosines[self.compared & kind]) for kind in (self.same, ~self.same))
        nearest = np.where(self.compared, cosines, -np.inf).argmax(axis=1)
        right = self.same[np.arange(len(nearest)), nearest][self.scored]
        groups = np.unique(np.array(self.words)[self.scored], return_inverse=True)[1]
        return SenseLayer(name, same, other, _interval(right, groups, seed))

    def cosines_of(self, unit: Float32, word: str) -> tuple[float, float]:
        mine = np.flatnonzero(np.array([one == word for one in self.words]))
        cosines = unit[mine] @ unit[mine].T
        compared, same = (matrix[np.ix_(mine, mine)] for matrix in (self.compared, self.same))
        return _mean(cosines[compared & same]), _mean(cosines[compared & ~same])


def _mean(values: Float32) -> float:
    return float(values.mean(dtype=np.float64)) if len(values) else _NAN


def _interval(right: Bool, groups: Int64, seed: int) -> Score:
    """Mean with a 95 % interval by drawing whole groups anew; of one group, its members."""
    if not len(right):
        return Score(_NAN, _NAN, _NAN)
    if groups.max() == 0:
        groups = np.arange(len(right))
    random = np.random.default_rng(seed)
    hits, sizes = np.bincount(groups, right), np.bincount(groups)
    drawn = random.integers(len(sizes), size=(_SAMPLES, len(sizes)))
    low, high = np.quantile(hits[drawn].sum(1) / sizes[drawn].sum(1), (0.025, 0.975))
    return Score(float(right.mean()), float(low), float(high))


def _means(data: VectorData) -> dict[str, Float32]:
    """Mean over the words of all records, or the tokens where there are no words, by layer."""
    kind = "words" if Layout(data.path).shard_files("words") else "tokens"
    sums: dict[str, Float64] = {}
    count = 0
    for table in layer_tables(data, kind):
        count += len(table.row)
        for name, matrix in table.layers.items():
            sums[name] = sums.get(name, np.float64(0)) + matrix.sum(axis=0, dtype=np.float64)
    return {name: np.asarray(total / max(count, 1), np.float32) for name, total in sums.items()}


def _nearby(
    data: VectorData, uses: Sequence[Use], words: Sequence[str], units: Mapping[str, Float32],
    means: Mapping[str, Float32], progress: ProgressCallback,
) -> tuple[tuple[tuple[Nearby, ...], ...], ...]:  # fmt: skip
    """Other words nearest to each use at each layer, each form once, none of its own record."""
    if not Layout(data.path).shard_files("words"):
        return ()
    rows = np.array([use.row for use in uses])
    best: list[list[dict[str, float]]] = [[{} for _ in uses] for _ in units]
    done = 0
    for table in layer_tables(data, "words"):
        forms = [unicodedata.normalize("NFC", text).casefold().strip(EDGES)
                 for text in table.text or ()]  # fmt: skip
        own = {word: np.array([not form or bool(find_word(form, word, match="start"))
                               for form in forms]) for word in set(words)}  # fmt: skip
        for found, (name, unit) in zip(best, units.items(), strict=True):
            vectors = unit_rows(table.layers[name] - means.get(name, np.float32(0)))
            scores = unit @ vectors.T
            for i, line in enumerate(scores):
                line[own[words[i]] | (table.row == rows[i])] = -np.inf
                _keep_best(found[i], line, forms)
        done += len(table.row)
        progress(Progress("comparing with other words", done, None, "words"))
    return tuple(
        tuple(tuple(Nearby(form, cosine) for form, cosine in near.items()) for near in found)
        for found in best
    )


def _keep_best(near: dict[str, float], scores: Float32, forms: Sequence[str]) -> None:
    count = min(_CANDIDATES, len(scores))
    for j in np.argpartition(-scores, count - 1)[:count]:
        if scores[j] > near.get(forms[j], -1.0):
            near[forms[j]] = float(scores[j])
    kept = sorted(near.items(), key=lambda one: -one[1])[:_LISTED]
    near.clear()
    near.update(kept)
