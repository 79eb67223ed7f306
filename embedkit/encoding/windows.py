"""Tokens of texts, and how a text that is too long becomes several sequences.

    text        t0 t1 t2 t3 t4 t5 t6 t7 t8 t9
    window 0    [CLS] t0 t1 t2 t3 t4 t5 [SEP]
    window 1    [CLS]             t4 t5 t6 t7 t8 t9 [SEP]     stride = 2: tokens that both have

A text has one sequence, or with ``on_long="window"`` several whose neighbours share ``stride``
tokens. A token that stands in two windows is counted in one of them, the one in which more context
stands around it, so that a mean over a long text counts every token once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.choices import OnLong
from embedkit.encoding.words import Ints
from embedkit.records import Count, Positive
from embedkit.types import Bool, Int64


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """Settings of tokenization."""

    max_length: Positive  # tokens per sequence, special tokens included
    on_long: OnLong = "truncate"
    stride: Count = 0  # tokens common to neighbouring windows
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """Kept tokens of texts (or pairs), text after text, and the windows that cover them.

    ``ends`` are 0 and the end of each text among all tokens. Windows follow each other in the same
    way: ``seen`` are the rows of their tokens, ``owned`` tells which are taken from the window.
    Indexing gives some of the texts, or one.
    """

    ids: Ints  # (tokens,), special tokens included once
    type_ids: Ints  # (tokens,) segments as the model counts them
    segment: NDArray[np.int8]  # (tokens,): 0 text, 1 text_pair, -1 special token
    spans: Ints | None  # (tokens, 2) in the segment's text; zeros for special tokens and prefix
    ends: Int64  # (texts + 1,)
    n_tokens: Int64  # (texts,) before truncation, special tokens included
    n_unknown: Int64  # (texts,) among the kept tokens
    cut: Bool  # (texts,)
    seen: Int64  # (window tokens,)
    owned: Bool  # (window tokens,)
    window_ends: Int64  # (windows + 1,) in seen
    text_windows: Int64  # (texts + 1,): 0, and the end of each text among the windows
    pad_id: int  # of the tokenizer, fills a batch
    word: Ints | None = None  # (tokens,) see word_index
    word_spans: tuple[tuple[Ints, ...], ...] = ()  # by text and segment, (n_words, 2)

    @property
    def n_kept(self) -> Int64:
        """Number of kept tokens, ``(texts,)``."""
        return np.diff(self.ends)

    def __len__(self) -> int:
        return len(self.cut)

    def __iter__(self) -> Iterator[TokenizedTexts]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, index: int | slice | Int64) -> TokenizedTexts:
        texts = np.atleast_1d(np.arange(len(self))[index])
        kept, per_text = self.n_kept[texts], np.diff(self.text_windows)[texts]
        rows, windows = ranges(self.ends[texts], kept), ranges(self.text_windows[texts], per_text)
        sizes, ends = np.diff(self.window_ends)[windows], ends_of(kept)
        places = ranges(self.window_ends[windows], sizes)
        # rows count from the first chosen text, so that seen has to move with its text
        moved = np.repeat(ends[:-1] - self.ends[texts], per_text)
        return TokenizedTexts(
            ids=self.ids[rows],
            type_ids=self.type_ids[rows],
            segment=self.segment[rows],
            spans=None if self.spans is None else self.spans[rows],
            ends=ends,
            n_tokens=self.n_tokens[texts],
            n_unknown=self.n_unknown[texts],
            cut=self.cut[texts],
            seen=self.seen[places] + np.repeat(moved, sizes),
            owned=self.owned[places],
            window_ends=ends_of(sizes),
            text_windows=ends_of(per_text),
            pad_id=self.pad_id,
            word=None if self.word is None else self.word[rows],
            word_spans=tuple(self.word_spans[i] for i in texts) if self.word_spans else (),
        )


def ends_of(counts: NDArray[Any]) -> Int64:
    """0, and the ends of parts of these lengths (or flags) that follow each other."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def ranges(starts: Int64, counts: Int64) -> Int64:
    """``counts[i]`` numbers from ``starts[i]`` on, range after range."""
    ends = ends_of(counts)
    # one running count, from which every range is shifted to its own start; no loop over texts
    return np.asarray(np.arange(ends[-1]) + np.repeat(starts - ends[:-1], counts))


def match(keys: Int64, among: Int64) -> Int64:
    """Return the position of each key in ascending ones, -1 where it is not among them.

    >>> match(np.array([3, 4, 9]), np.array([1, 3, 9]))
    array([ 1, -1,  2])
    """
    if not len(among):
        return np.full(len(keys), -1)
    # a key above all others would be found behind the end
    place = np.minimum(np.searchsorted(among, keys), len(among) - 1)
    return np.where(among[place] == keys, place, -1)


def kept_tokens(counts: Int64, room: int, odd_first: tuple[bool, bool]) -> Int64:
    """Tokens left of each text after truncation of the longer one, ``(texts, sides)``.

    ``odd_first`` tells whether the first of two long texts gets one token more of an odd room, if
    it is the longer one and if it is not.
    """
    if counts.shape[1] == 1:
        return np.minimum(counts, room)
    longer = counts[:, 0] > counts[:, 1]
    # two long texts have half of the room each, and one of them the odd token
    first = room // 2 + room % 2 * np.where(longer, *odd_first)
    halves = np.stack([first, room - first], axis=1)
    # more, if the other text leaves more
    return np.asarray(np.minimum(counts, np.maximum(room - counts[:, ::-1], halves)))


def windows_of(
    ends: Int64, segment: NDArray[np.int8], kept: Int64, windowed: Bool, room: int, stride: int
) -> dict[str, Any]:
    """The fields of :class:`TokenizedTexts` on windows."""
    every, count = np.arange(ends[-1]), np.arange(len(ends))
    # the common case without a loop: every text is one window that owns all of its tokens
    if not windowed.any():
        whole = np.ones(ends[-1], bool)
        return {"seen": every, "owned": whole, "window_ends": ends, "text_windows": count}
    seen, owned, per_text = [], [], []
    for number in count[:-1]:
        places = every[ends[number] : ends[number + 1]]
        # a text that fits stays whole beside others that have windows
        parts = [(every[: len(places)], np.ones(len(places), bool))]
        if windowed[number]:
            parts = list(_cut(segment[places], kept[number], room, stride))
        seen += [places[tokens] for tokens, _ in parts]
        owned += [mask for _, mask in parts]
        per_text.append(len(parts))
    return {
        "seen": np.concatenate(seen),
        "owned": np.concatenate(owned),
        "window_ends": ends_of(np.array([len(tokens) for tokens in seen])),
        "text_windows": ends_of(np.array(per_text)),
    }


def _cut(
    segment: NDArray[np.int8], kept: Int64, room: int, stride: int
) -> Iterator[tuple[Int64, Bool]]:
    """Tokens of each window of one text, and which of them are taken from it."""
    # the longer text of a pair moves through the windows, the other one is repeated in each
    moving = int(np.argmax(kept))
    length = int(kept[moving])
    size = room - (int(kept.sum()) - length)
    # the last window ends with the text, hence it may share more than stride with the one before it
    last = max(length - size, 0)
    starts = [*range(0, last, size - stride), last]
    # tokens in front of the moving text: special ones, and a first text that is repeated
    before = int(np.argmax(segment == moving))
    after = before + length
    owner = np.zeros(len(segment), np.int64)  # tokens before, and a repeated text: first window
    begins = np.asarray(starts)
    # the window with the nearest centre is farthest from cutting the token's context, the earlier
    # of two; between two centres that are ``begin + (size - 1) / 2`` lies the change of owner, all
    # of it doubled. Windows x tokens of a text of a million characters would be 100 GB
    changes = begins[1:] + begins[:-1] + size - 1
    owner[before:after] = np.searchsorted(changes, 2 * np.arange(length))
    owner[after:][segment[after:] == -1] = len(starts) - 1
    for number, start in enumerate(starts):
        first = before + start
        tokens = np.r_[:before, first : min(first + size, after), after : len(segment)]
        yield tokens, owner[tokens] == number
