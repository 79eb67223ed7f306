"""The same word in two sentences: one cosine per pair and layer, and what a threshold makes of it.

The word is marked as ``a [bank] of clay``; the brackets are taken away before encoding. Where the
pairs say whether the word has the same sense, a threshold on the cosine is learnt for every layer
on training pairs and applied to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedkit.corpus import CorpusOptions, CorpusReader, InputFile, Record, plan_corpus
from embedkit.errors import UsageError
from embedkit.runs.metrics import Score
from embedkit.search.exact import unit_rows
from embedkit.words.matching import Marked, read_marked
from embedkit.words.uses import span_vectors

if TYPE_CHECKING:
    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.views import LayerSpec

__all__ = [
    "LayerAccuracy",
    "MarkedPairs",
    "SenseTest",
    "best_threshold",
    "evaluate",
    "marked_pairs",
]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_SAMPLES = 2_000
_TRUE = ("true", "1", "yes", "t", "same")
_FALSE = ("false", "0", "no", "f", "different")


@dataclass(frozen=True, slots=True)
class MarkedPairs:
    """Pairs of sentences with the marked word's vectors compared.

    Attributes:
        records: the pairs.
        words: the two marked words of each.
        cosines: ``(n,)`` float64 by layer name.
        same: ``(n,)`` bool, whether the word has the same sense, or ``None``.
        unmarked: records in which not exactly one word of each sentence is marked.
        cut: records whose word was cut off by truncation.
        rejected: other records that could not be used.
    """

    records: tuple[Record, ...]
    words: tuple[tuple[str, str], ...]
    cosines: dict[str, Floats]
    same: Flags | None
    unmarked: int
    cut: int
    rejected: int


@dataclass(frozen=True, slots=True)
class LayerAccuracy:
    """A threshold on the cosine at one layer.

    Attributes:
        layer: its name.
        threshold: from the training pairs; a cosine that reaches it means the same sense.
        train: accuracy on the training pairs.
        test: on the others, with its 95 % interval.
    """

    layer: str
    threshold: float
    train: float
    test: Score


@dataclass(frozen=True, slots=True)
class SenseTest:
    """Accuracy of every layer.

    Attributes:
        layers: in order.
        chosen: layer that is best on the training pairs; the one to report.
        majority: share of the more frequent answer among the test pairs.
        n_train: training pairs.
        n_test: test pairs.
    """

    layers: tuple[LayerAccuracy, ...]
    chosen: str
    majority: float
    n_train: int
    n_test: int


def marked_pairs(
    corpus: str | Path,
    encoder: Encoder,
    layers: Sequence[LayerSpec],
    *,
    text: str,
    text_pair: str,
    label: str | None = None,
    prefix: str = "",
    notify: Callable[[str], None] = lambda _: None,
    reading: CorpusOptions | None = None,
) -> MarkedPairs:
    """Compare the marked words of the two sentences of every record.

    Args:
        corpus: a file.
        encoder: the model.
        layers: layers to look at.
        text: column of the first sentence.
        text_pair: column of the second.
        label: column that says whether the word has the same sense.
        prefix: put before every sentence.
        notify: called with sentences for the user.
        reading: how the file is read; its columns are those named above.

    Raises:
        UsageError: a column cannot be used, or no pair is marked.
    """
    plan = plan_corpus(
        [InputFile.of(Path(corpus))],
        replace(reading or CorpusOptions(), text=text, text_pair=text_pair, label=label),
    )
    reader = CorpusReader(plan)
    found: list[tuple[Record, Marked, Marked]] = []
    unmarked = 0
    for item in reader:
        if not isinstance(item, Record):
            continue
        first, second = read_marked(item.text), read_marked(str(item.text_pair))
        if first is None or second is None:
            unmarked += 1
        else:
            found.append((item, first, second))
    if not found:
        raise UsageError(
            f"{corpus} has no pair with one word marked as [word] in {text} and {text_pair}."
        )
    if unmarked:
        notify(f"{unmarked} records of {corpus} have no pair of words marked as [word]")
    sides = [m for _, m, _ in found] + [m for _, _, m in found]
    vectors, there = span_vectors(
        encoder, [m.text for m in sides], [(m.start, m.end) for m in sides], layers, prefix=prefix
    )
    count = len(found)
    both = there[:count] & there[count:]
    place = np.cumsum(there) - 1
    a, b = place[:count][both], place[count:][both]
    cosines = {}
    for name, values in vectors.items():
        unit = unit_rows(values).astype(np.float64)
        cosines[name] = np.einsum("ij,ij->i", unit[a], unit[b])
    kept = [one for one, is_there in zip(found, both, strict=True) if is_there]
    records = tuple(record for record, _, _ in kept)
    return MarkedPairs(
        records=records,
        words=tuple((m.text[m.start : m.end], n.text[n.start : n.end]) for _, m, n in kept),
        cosines=cosines,
        same=None if label is None else _answers(records, label),
        unmarked=unmarked,
        cut=count - len(kept),
        rejected=reader.counts.n_rejected,
    )


def evaluate(train: MarkedPairs, test: MarkedPairs, *, seed: int = 0) -> SenseTest:
    """Learn a threshold for every layer on some pairs and apply it to others.

    Raises:
        UsageError: the pairs do not say whether the sense is the same.
    """
    if train.same is None or test.same is None:
        raise UsageError("--train needs --label COLUMN, which says whether the sense is the same.")
    random = np.random.default_rng(seed)
    drawn = random.integers(len(test.same), size=(_SAMPLES, len(test.same)))
    layers = []
    for name, cosines in train.cosines.items():
        threshold, accuracy = best_threshold(cosines, train.same)
        right = (test.cosines[name] >= threshold) == test.same
        low, high = np.quantile(right[drawn].mean(axis=1), (0.025, 0.975))
        score = Score(float(right.mean()), float(low), float(high))
        layers.append(LayerAccuracy(name, threshold, accuracy, score))
    return SenseTest(
        layers=tuple(layers),
        chosen=max(layers, key=lambda one: one.train).layer,
        majority=float(max(test.same.mean(), 1 - test.same.mean())),
        n_train=len(train.same),
        n_test=len(test.same),
    )


def best_threshold(cosines: Floats, same: Flags) -> tuple[float, float]:
    """The threshold with the highest accuracy, between two neighbouring cosines, and that accuracy.

    Args:
        cosines: ``(n,)``.
        same: ``(n,)`` bool; true is expected where the cosine reaches the threshold.
    """
    order = np.argsort(cosines, kind="stable")
    values, truth = cosines[order], same[order]
    # with the cut before number i: all below say different, all from i on say same
    right = np.append(0, np.cumsum(~truth)) + truth.sum() - np.append(0, np.cumsum(truth))
    possible = np.append(True, np.append(np.diff(values) > 0, True))
    at = int(np.argmax(np.where(possible, right, -1)))
    ends = np.concatenate([[values[0] - 1e-6], values, [values[-1] + 1e-6]])
    threshold = float((ends[at] + ends[at + 1]) / 2)
    return threshold, float(right[at] / len(values))


def _answers(records: Sequence[Record], column: str) -> Flags:
    said = [(record.label or "").strip().casefold() for record in records]
    unknown = [i for i, one in enumerate(said) if one not in (*_TRUE, *_FALSE)]
    if unknown:
        first = records[unknown[0]]
        raise UsageError(
            f"--label {column}: {len(unknown)} records say neither true nor false, the first in "
            f"row {first.row} ({first.label!r})."
        )
    return np.array([one in _TRUE for one in said], bool)
