"""Texts → token ids, character offsets, words and windows, exactly as the checkpoint's tokenizer.

A sequence is a text, or a text and its pair, with special tokens before, between and after them;
these are read off the tokenizer itself once. Building the sequence here, from tokens without
special ones, is what lets truncation, windows and pairs be counted and placed; at load the result
is compared with the tokenizer's own on a few texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.encoding.alignment import align
from embedkit.encoding.word_index import word_index, word_spans
from embedkit.errors import DamagedModelError, ModelError, UsageError, first_line
from embedkit.types import Int64

__all__ = [
    "MAX_CHARS",
    "Spans",
    "TextTokenizer",
    "TokenizedText",
    "TokenizerSettings",
    "Window",
    "no_panic",
    "window_owner",
    "window_starts",
]

MAX_CHARS = 1_000_000
"""Longer texts are cut before tokenizing and marked as truncated."""

Ints = NDArray[np.int32]
_Part = tuple[Ints, Ints | None]
"""Token ids of one text without special ones, and their spans where they are asked for."""

_HUGE = 10**9

Spans = Sequence[Sequence[tuple[int, int]] | Ints]
"""Start and end of the words of each text."""


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """How texts are divided into tokens and sequences.

    Attributes:
        max_length: tokens per sequence, special ones counted.
        on_long: ``truncate``, ``window`` or ``error`` for texts with more.
        stride: tokens common to neighbouring windows (the meaning it has in Hugging Face).
        prefix: put before every text, such as ``"query: "``; not stored.
    """

    max_length: int
    on_long: str = "truncate"
    stride: int = 0
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """One sequence for the model.

    Attributes:
        ids: token ids ``(length,)`` int32, special tokens included.
        type_ids: segment ids ``(length,)`` int32.
        owned: positions in this window of the tokens that are taken from it, ``None`` for all.
        kept: their positions among the kept tokens of the text, ``None`` for ``0..length-1``.
    """

    ids: Ints
    type_ids: Ints
    owned: Int64 | None = None
    kept: Int64 | None = None


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """All kept tokens of one text (or pair) in reading order, and the windows that cover them.

    Attributes:
        ids: token ids ``(n_kept,)`` int32, special tokens included once.
        segment: ``(n_kept,)`` int8: 0 text, 1 text_pair, -1 special token.
        spans: character offsets ``(n_kept, 2)`` in the text of the segment; zeros for special
            tokens and for the prefix. ``None`` unless asked for.
        word: ``(n_kept,)`` int32 index of the first word that the token touches, -1 for none.
            Words of a pair's second text are numbered on after those of the first. ``None`` unless
            asked for.
        word_spans: ``(n_words, 2)`` int32 start and end of the words of each segment's text; empty
            unless asked for.
        n_tokens: tokens before truncation, special ones counted.
        windows: what the model sees.
        n_unknown: kept tokens that the vocabulary does not know.
        cut: some of the text was left out.
    """

    ids: Ints
    segment: NDArray[np.int8]
    spans: Ints | None
    word: Ints | None
    n_tokens: int
    windows: tuple[Window, ...]
    n_unknown: int
    cut: bool
    word_spans: tuple[Ints, ...] = ()

    @property
    def n_kept(self) -> int:
        """Number of kept tokens."""
        return len(self.ids)

    @property
    def special(self) -> NDArray[np.bool_]:
        """``(n_kept,)`` bool, tokens that the tokenizer added."""
        return np.asarray(self.segment == -1)


@dataclass(frozen=True, slots=True)
class _Template:
    """Special tokens before, between and after one text or two, and the segment ids of all."""

    special: tuple[Ints, ...]
    special_types: tuple[Ints, ...]
    text_types: tuple[int, ...]

    @property
    def added(self) -> int:
        return sum(map(len, self.special))


@contextmanager
def no_panic(folder: Path) -> Iterator[None]:
    """Turn what the Rust library raises into a :class:`DamagedModelError`.

    It raises ``Exception`` itself where a file is not what it should be, and panics, which is no
    ``Exception``.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException" and type(error) is not Exception:
            raise
        raise DamagedModelError(
            f"the tokenizer in {folder} gives up ({first_line(error)}): its tokenizer.json or "
            "vocab.txt is damaged, or holds a regular expression that has too many ways to match. "
            "Use another checkpoint."
        ) from error


class TextTokenizer:
    """Wraps the checkpoint's tokenizer, fast or slow.

    Args:
        tokenizer: as transformers loads it.
        pad_id: token id to fill with.
        type_vocab: number of segments of the model; 0 if it has none.

    Raises:
        ModelError: the tokenizer adds special tokens in a way that cannot be reproduced.
    """

    def __init__(self, tokenizer: Any, *, pad_id: int, type_vocab: int) -> None:
        self.hf = tokenizer
        self.is_fast = bool(tokenizer.is_fast)
        self.pad_id = pad_id
        self._left = tokenizer.truncation_side == "left"
        self._unknown = tokenizer.unk_token_id
        self._type_vocab = type_vocab
        self._no_limits()
        self._templates = (self._template("one"), self._template("one", "two"))
        self._check_against_own()
        self._no_limits()  # calling the tokenizer may have set its own limits again

    @property
    def limit(self) -> int:
        """The tokenizer's own maximal length; a huge number where it states none."""
        return int(min(self.hf.model_max_length, _HUGE))

    @property
    def unknown_id(self) -> int:
        """Id of the token for what the vocabulary does not know; -1 if it has none."""
        return -1 if self._unknown is None else int(self._unknown)

    @property
    def special_ids(self) -> Ints:
        """Ids of special tokens, which a text can also spell out; [UNK] is not among them."""
        return _ints(sorted(i for i in self.hf.all_special_ids if i != self._unknown))

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Vocabulary entries of ids."""
        return [str(token) for token in self.hf.convert_ids_to_tokens(list(map(int, ids)))]

    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        settings: TokenizerSettings,
        offsets: bool = False,
        words: Spans | None = None,
    ) -> list[TokenizedText]:
        """Tokenize texts, or pairs of texts.

        Truncation of pairs takes tokens from the longer text first, as ``longest_first`` does.

        With ``on_long="window"`` a text of more tokens than fit is covered by windows of full
        length that start every ``room - stride`` tokens; the last one ends with the text. Every
        token is taken from the window in which it is farthest from the nearer edge, the earlier
        one on ties: there it has most context. Leading special tokens are taken from the first
        window, the others from the last. Of a pair the longer text is windowed, and the other one
        is repeated in every window, cut to half of the room if need be.

        Args:
            texts: the texts.
            pairs: second texts, one for each, or ``None``.
            settings: lengths, windows and prefix.
            offsets: also give character spans and word indexes (slower).
            words: start and end of the words of each text, in order and apart; by default those
                between white space.

        Raises:
            UsageError: a text is too long and ``on_long="error"``, or the settings cannot be used
                (see :meth:`room`).
        """
        room = self.room(settings, paired=pairs is not None)
        template = self._templates[pairs is not None]
        sources = [texts] if pairs is None else [texts, pairs]
        parts = [
            self._parts(some, "" if number else settings.prefix, offsets=offsets)
            for number, some in enumerate(sources)
        ]
        built = [
            self._built(template, part, text, room, settings)
            for part, text in zip(zip(*parts, strict=True), zip(*sources, strict=True), strict=True)
        ]
        if not offsets:
            return built
        known = ([np.array(one, np.int32).reshape(-1, 2)] for one in words or ())
        if words is None:
            known = ([word_spans(text) for text in some] for some in zip(*sources, strict=True))
        return [_with_words(text, spans) for text, spans in zip(built, known, strict=True)]

    def room(self, settings: TokenizerSettings, *, paired: bool) -> int:
        """Tokens that a sequence has for text, beside the special ones.

        Args:
            settings: lengths and windows.
            paired: whether pairs are to be tokenized.

        Raises:
            UsageError: there is no room, or neighbouring windows would share all of it; of a pair
                up to half of the room is taken by the text that is repeated in every window.
        """
        added = self._templates[paired].added
        room = settings.max_length - added
        if room < (2 if paired else 1):
            raise UsageError(
                f"max_length={settings.max_length} leaves no room for text beside the "
                f"{added} special tokens. Use {added + 2} or more."
            )
        if settings.on_long == "window":
            window_starts(0, room - room // 2 if paired else room, settings.stride)
        return room

    def _parts(self, texts: Sequence[str], prefix: str, *, offsets: bool) -> list[_Part]:
        cut = [prefix + text[:MAX_CHARS] for text in texts]
        if not self.is_fast:
            if problem := _no_unicode(cut):
                raise problem
            return [self._slow_part(text, len(prefix), offsets=offsets) for text in cut]
        backend = self.hf.backend_tokenizer
        encode = backend.encode_batch if offsets else backend.encode_batch_fast
        try:
            with no_panic(Path(self.hf.name_or_path)):
                found = encode(cut, add_special_tokens=False)
        except TypeError as error:  # its message does not name the cause
            raise _no_unicode(cut) or error from error
        return [(_ints(e.ids), _spans(e.offsets, len(prefix)) if offsets else None) for e in found]

    def _slow_part(self, text: str, shift: int, *, offsets: bool) -> _Part:
        tokens = self.hf.tokenize(text)
        ids = _ints(self.hf.convert_tokens_to_ids(tokens))
        if not offsets:
            return ids, None
        return ids, _spans(align(tokens, text, unknown=self.hf.unk_token), shift)

    def _built(
        self,
        template: _Template,
        parts: Sequence[_Part],
        texts: Sequence[str],
        room: int,
        settings: TokenizerSettings,
    ) -> TokenizedText:
        """One text or pair: truncated, with special tokens and windows."""
        lengths = [len(ids) for ids, _ in parts]
        total = sum(lengths)
        windowed = total > room and settings.on_long == "window"
        if total > room:
            if settings.on_long == "error":
                raise UsageError(
                    f"a text has {total + template.added} tokens, more than max_length="
                    f"{settings.max_length}: {texts[0][:60]!r}… Use on_long='truncate' or "
                    "on_long='window'."
                )
            if windowed:  # over the longer text; the other one takes half of the room at most
                moving = int(np.argmax(lengths))
                lengths = [n if i == moving else min(n, room // 2) for i, n in enumerate(lengths)]
            else:
                lengths = _longest_first(lengths, room, fast=self.is_fast)
            parts = [self._cut(part, length) for part, length in zip(parts, lengths, strict=True)]
        ids, types, segment, spans = _assembled(template, parts)
        windows: tuple[Window, ...] = (Window(ids, types),)
        if windowed:
            windows = _windows(ids, types, segment, lengths, room, settings.stride)
        return TokenizedText(
            ids=ids,
            segment=segment,
            spans=spans,
            word=None,
            n_tokens=total + template.added,
            windows=windows,
            n_unknown=0 if self._unknown is None else int((ids == self._unknown).sum()),
            cut=sum(lengths) < total or any(len(text) > MAX_CHARS for text in texts),
        )

    def _cut(self, part: _Part, length: int) -> _Part:
        ids, spans = part
        some = slice(len(ids) - length, None) if self._left else slice(length)
        return ids[some], None if spans is None else spans[some]

    def _no_limits(self) -> None:
        """Switch off the settings of a training run in tokenizer.json: MiniLM's cuts at 128."""
        if self.is_fast:
            self.hf.backend_tokenizer.no_truncation()
            self.hf.backend_tokenizer.no_padding()

    def _template(self, *texts: str) -> _Template:
        """Read special tokens and segment ids off the tokenizer's own output for short texts."""
        whole = self.hf(*texts)
        ids, types = list(whole["input_ids"]), self._segments(whole)
        ends = [0]  # of what is before, of the first text, of what is between …
        for text in texts:
            part = list(self.hf(text, add_special_tokens=False)["input_ids"])
            starts = range(ends[-1], len(ids) - len(part) + 1)
            start = next((i for i in starts if part and ids[i : i + len(part)] == part), None)
            if start is None:
                raise ModelError(
                    "the tokenizer changes a text when it adds special tokens; it cannot be used."
                )
            ends += [start, start + len(part)]
        gaps = [slice(*gap) for gap in zip(ends[::2], [*ends[1::2], len(ids)], strict=True)]
        return _Template(
            special=tuple(_ints(ids[gap]) for gap in gaps),
            special_types=tuple(_ints(types[gap]) for gap in gaps),
            text_types=tuple(types[gap.stop] for gap in gaps[:-1]),
        )

    def _segments(self, encoded: Any) -> list[int]:
        """Segment ids of the tokenizer's output; zeros where the model has not as many segments.

        Some RoBERTa checkpoints, such as klue/roberta-base, carry BERT's tokenizer with its two.
        """
        types = list(encoded.get("token_type_ids") or [0] * len(encoded["input_ids"]))
        too_many = self._type_vocab and max(types) >= self._type_vocab
        return [0] * len(types) if too_many else types

    def _check_against_own(self) -> None:
        settings = TokenizerSettings(max_length=_HUGE)
        for text, pair in (("Hello, 한국어 텍스트!", None), ("What is it?", "a 日本語 text")):
            ours = self.encode([text], None if pair is None else [pair], settings=settings)[0]
            own = self.hf(text, pair)
            types = ours.windows[0].type_ids.tolist()
            if ours.ids.tolist() != own["input_ids"] or types != self._segments(own):
                raise ModelError(
                    f"the tokenizer {type(self.hf).__name__} adds special tokens in a way that "
                    "embedkit does not reproduce; this checkpoint cannot be used."
                )


def window_starts(length: int, size: int, stride: int) -> list[int]:
    """First tokens of the windows of ``size`` tokens over ``length``; the last ends at the end.

    Raises:
        UsageError: ``stride`` is not smaller than ``size``.
    """
    if stride >= size:
        raise UsageError(
            f"stride={stride}: must be smaller than the {size} tokens of text in a window."
        )
    starts = list(range(0, max(length - size, 0), size - stride))
    return [*starts, max(length - size, 0)]


def window_owner(length: int, size: int, starts: Sequence[int]) -> Int64:
    """For each of ``length`` tokens, the window in which it is farthest from an edge."""
    token = np.arange(length)
    first = np.asarray(starts)[:, None]
    # the first and last token of the text need no rule: they are farthest in the outer windows
    return np.asarray(np.argmax(np.minimum(token - first, first + size - 1 - token), axis=0))


def _with_words(text: TokenizedText, words: Sequence[Ints]) -> TokenizedText:
    assert text.spans is not None
    word = word_index(text.segment, text.spans, words)
    return replace(text, word=word, word_spans=tuple(words))


def _assembled(
    template: _Template, parts: Sequence[_Part]
) -> tuple[Ints, Ints, NDArray[np.int8], Ints | None]:
    """Ids, segment ids, segments and spans of the texts with the special tokens around them."""
    ids, types = [template.special[0]], [template.special_types[0]]
    for (part, _), kind, after, after_types in zip(
        parts, template.text_types, template.special[1:], template.special_types[1:], strict=True
    ):
        ids += part, after
        types += np.full(len(part), kind, np.int32), after_types
    segment = np.repeat(np.array([-1, 0, -1, 1, -1][: len(ids)], np.int8), [len(x) for x in ids])
    own = [spans for _, spans in parts if spans is not None]
    spans = np.zeros((len(segment), 2), np.int32) if own else None
    if spans is not None:
        spans[segment >= 0] = np.concatenate(own)
    return np.concatenate(ids), np.concatenate(types), segment, spans


def _windows(
    ids: Ints,
    types: Ints,
    segment: NDArray[np.int8],
    lengths: Sequence[int],
    room: int,
    stride: int,
) -> tuple[Window, ...]:
    """The windows over the longer text of a sequence, each with all that is around it."""
    moving = int(np.argmax(lengths))
    length = lengths[moving]
    size = room - (sum(lengths) - length)
    starts = window_starts(length, size, stride)
    before = int(np.argmax(segment == moving))
    after = before + length
    owner = np.zeros(len(ids), np.int64)  # what is before, and a repeated text: the first window
    owner[before:after] = window_owner(length, size, starts)
    owner[after:][segment[after:] == -1] = len(starts) - 1
    windows = []
    for number, start in enumerate(starts):
        first = before + start
        seen = np.r_[:before, first : min(first + size, after), after : len(ids)]
        owned = np.flatnonzero(owner[seen] == number)
        windows.append(Window(ids[seen], types[seen], owned, seen[owned]))
    return tuple(windows)


def _longest_first(lengths: Sequence[int], room: int, *, fast: bool) -> list[int]:
    """Lengths after taking tokens from the longer text until all fit.

    Of an odd room, fast tokenizers give the last token to the longer text, slow ones to the first.
    """
    if len(lengths) == 1:
        return [room]
    longer_first = lengths[0] > lengths[1]
    shorter = min(lengths)
    if shorter <= room // 2:
        kept = [room - shorter, shorter]
    else:
        kept = [room - room // 2, room // 2]
        longer_first = longer_first or not fast
    return kept if longer_first else kept[::-1]


def _no_unicode(texts: Sequence[str]) -> UsageError | None:
    """What is wrong with the first text that is not Unicode, if there is one."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return UsageError(
                f"a text holds {text[error.start]!a}, half of a character or a byte that is "
                f"not UTF-8: {text[:60]!a}. Remove it, or decode the text anew."
            )
    return None


def _ints(values: Sequence[Any]) -> Ints:
    return np.array(values, dtype=np.int32)


def _spans(offsets: Sequence[tuple[int, int]], shift: int) -> Ints:
    """Offsets in the text behind a prefix of ``shift`` characters; zeros for the prefix."""
    return np.asarray(np.maximum(_ints(offsets).reshape(-1, 2) - np.int32(shift), 0))
