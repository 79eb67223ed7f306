"""Cosines of uses of a word with the same and with other senses, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.contexts.uses import (
    Nearby,
    Use,
    layer_tables,
    nearest_words,
    uses_in_dataset,
    uses_of_spans,
)
from embedkit.dataset.format import Layout, text_key
from embedkit.dataset.read import VectorData, has_label
from embedkit.display import Shown
from embedkit.errors import UsageError
from embedkit.runs.intervals import Metric, Score
from embedkit.runs.intervals import scored as intervals
from embedkit.search.exact import unit_rows
from embedkit.types import AnyPath, Bool, Float32, Float64, Int64, ProgressCallback, no_progress

_LISTED = 5
_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class SenseLayer:
    """All words at one layer; NaN without senses."""

    layer: str
    same: float  # mean cosine of two uses of a word with the same sense
    other: float  # with different senses
    nearest: Score  # fraction of uses whose nearest other use has the same sense


@dataclass(frozen=True, slots=True)
class WordSenses:
    """One word: mean cosines ``(same sense, other sense)`` by layer; NaN without such pairs."""

    cosines: tuple[tuple[float, float], ...]
    chosen: Score  # fraction of uses whose nearest other use has the same sense
    chance: float
    scored: int  # uses with a sense and another use to compare with


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SenseReport(Shown):
    """Uses of words, compared by sense; those of one word stand together."""

    model: str
    uses: tuple[Use, ...]
    words: tuple[str, ...]  # the word of each use
    senses: tuple[str | None, ...]  # the sense of each use
    layers: tuple[SenseLayer, ...]
    chosen: Score  # as ``nearest``, each word at the layer that is best for the other words
    by_word: Mapping[str, WordSenses]
    chance: float  # of a nearest use with the same sense
    scored: int  # uses with a sense and another use to compare with
    skipped: int  # uses without a kept token, since the text was cut before them
    units: Mapping[str, Float32]  # ``(uses, width)`` by layer name, rows of length 1
    nearby: tuple[tuple[tuple[Nearby, ...], ...], ...]  # other words by layer and use


def compare_senses(
    dataset: AnyPath,
    word: str | None = None,
    *,
    sense: str | None = None,
    span: tuple[str, str] | None = None,
    match: str = "word",
    progress: ProgressCallback = no_progress,
) -> SenseReport:
    """Compare uses with the same sense and uses with different senses of a word, or of all words.

    A use is compared with uses of the same word in other texts. Its vector is the mean over its
    tokens, or over its words where the dataset has no token vectors. ``sense`` is the column with
    the sense of each record, ``span`` are those with the first character of the use and the one
    after its last; by default all occurrences of ``word``, found by ``match``, are uses. The mean
    over all words of the dataset is subtracted, layer by layer.

    Example:
        >>> report = compare_senses("vectors", "bank", sense="label")
        >>> len(report.uses), report.senses[:3], report.layers[-1].nearest.value
        (12, ('0', '1', '0'), 1.0)
    """
    if span is not None:
        found, words = uses_of_spans(dataset, span, word=word)
    elif word is None:
        raise UsageError("give a word, or span=(START, END), the columns of the uses of all words.")
    else:
        found = uses_in_dataset(dataset, word, match=match)
        words = (word,) * len(found.uses)
    assert found.data is not None
    given: list[Any] = [None] * len(words)
    if sense is not None:
        values = dict(zip(found.data.row.tolist(), found.data.column(sense), strict=True))
        given = [values[use.row] for use in found.uses]
    order = sorted(range(len(words)), key=lambda i: words[i])
    uses, data = tuple(found.uses[i] for i in order), found.data
    words = tuple(words[i] for i in order)
    senses = tuple(str(given[i]) if has_label(given[i]) else None for i in order)
    means = _means(data)
    units = {name: unit_rows(values[order] - means[name]) for name, values in found.vectors.items()}
    compared, same = _compared(uses, words, senses)
    scored = compared.any(axis=1)
    chances = same.sum(axis=1)[scored] / compared.sum(axis=1)[scored]
    right = np.array([_right(unit, compared, same) for unit in units.values()])
    names = np.array(words)
    known = names[scored]

    def of_word(name: str) -> WordSenses:
        mine, here = np.flatnonzero(names == name), known == name
        pairs = np.ix_(mine, mine)
        cosines = tuple(_cosines(u[mine], compared[pairs], same[pairs]) for u in units.values())
        chance = float(chances[here].mean()) if here.any() else _NAN
        return WordSenses(cosines, _chosen(right[:, here], known[here]), chance, int(here.sum()))

    nearby: tuple[tuple[tuple[Nearby, ...], ...], ...] = ()
    if Layout(data.path).shard_files("words"):
        nearby = nearest_words(
            data,
            units,
            words,
            count=_LISTED,
            rows=np.array([use.row for use in uses]),
            means=means,
            progress=progress,
        )
    return SenseReport(
        model=Path(data.manifest.names.model).name,
        uses=uses,
        words=words,
        senses=senses,
        layers=tuple(
            SenseLayer(name, *_cosines(unit, compared, same), _score(one, known))
            for (name, unit), one in zip(units.items(), right, strict=True)
        ),
        chosen=_chosen(right, known),
        by_word={name: of_word(name) for name in dict.fromkeys(words)},
        chance=float(chances.mean()) if scored.any() else _NAN,
        scored=int(scored.sum()),
        skipped=found.skipped,
        units=units,
        nearby=nearby,
    )


def _compared(
    uses: Sequence[Use], words: Sequence[str], senses: Sequence[str | None]
) -> tuple[Bool, Bool]:
    """Pairs of uses that are compared, ``(uses, uses)``, and which of them have the same sense.

    They are of one word, have senses, and are in different records and texts.
    """
    rows = np.array([use.row for use in uses])
    _, texts = np.unique([text_key(use.text) for use in uses], return_inverse=True)
    _, word = np.unique(words, return_inverse=True)
    _, sense = np.unique([s or "" for s in senses], return_inverse=True)
    known = np.array([s is not None for s in senses])
    compared = (rows[:, None] != rows) & (texts[:, None] != texts)
    compared &= (word[:, None] == word) & known[:, None] & known
    return compared, compared & (sense[:, None] == sense)


def _cosines(unit: Float32, compared: Bool, same: Bool) -> tuple[float, float]:
    """Mean cosine of the pairs of the same sense, and of the others; NaN without such a pair."""
    cosines = unit @ unit.T
    pairs = (cosines[same], cosines[compared & ~same])
    same_mean, other_mean = (float(v.mean(dtype=np.float64)) if len(v) else _NAN for v in pairs)
    return same_mean, other_mean


def _right(unit: Float32, compared: Bool, same: Bool) -> Float64:
    """Return 1 for each scored use whose nearest other use has the same sense, else 0."""
    nearest = np.where(compared, unit @ unit.T, -np.inf).argmax(axis=1)
    right = same[np.arange(len(nearest)), nearest][compared.any(axis=1)]
    return np.asarray(right, np.float64)


def _score(right: Float64, words: NDArray[Any]) -> Score:
    """The mean with its interval; words are the sampling units, of one word its uses."""
    if not len(right):
        return Score(_NAN, _NAN, _NAN)
    mean = Metric(lambda weights: weights @ right / weights.sum(axis=1))
    return intervals({"": mean}, _units(words))[""]


def _chosen(right: Float64, words: NDArray[Any]) -> Score:
    """The score at layers that are best without the unit itself; ``right`` is ``(layers, uses)``.

    The highest score of all layers would be partly luck.
    """
    if not len(words):
        return _score(right[0], words)
    unit_of = _units(words)
    own = np.stack([np.bincount(unit_of, one) for one in right])
    best = (right.sum(axis=1, keepdims=True) - own).argmax(axis=0)[unit_of]
    return _score(right[best, np.arange(len(words))], words)


def _units(words: NDArray[Any]) -> Int64:
    unit_of = np.unique(words, return_inverse=True)[1]
    return np.asarray(unit_of if unit_of.max() else np.arange(len(words)), np.int64)


def sense_text(one: SenseReport | WordSenses) -> str:
    """Say whether senses are separated; empty without senses."""
    if not one.scored:
        return ""
    value, low, high = (
        f"{100 * v:.0f}" for v in (one.chosen.value, one.chosen.low, one.chosen.high)
    )
    numbers = f"nearest use of the same sense in {value} % ({low} to {high}), by chance"
    numbers += f" {100 * one.chance:.0f} %"
    if one.chosen.low > one.chance:
        return f"senses are separated: {numbers}"
    return f"{one.scored} uses do not prove that senses are separated: {numbers}"


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
