"""Texts → token ids, character offsets, words and windows, exactly as the checkpoint's tokenizer.

A sequence is ``lead + text + end`` or ``lead + text + middle + text_pair + pair_end``, where the
special tokens between the parts are read off the tokenizer itself once. Building it here, from
tokens without special ones, is what lets truncation, windows and pairs be counted and placed; at
load the result is compared with the tokenizer's own on a few texts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.encoding.alignment import align
from embedkit.encoding.checkpoint import Checkpoint, find_checkpoint, quiet_transformers
from embedkit.encoding.families import FAMILIES
from embedkit.errors import ModelError, UsageError, check_counts, first_line

__all__ = [
    "MAX_CHARS",
    "TextTokenizer",
    "TokenizedText",
    "TokenizerSettings",
    "Window",
    "choose_max_length",
    "explain",
    "load_tokenizer",
    "open_tokenizer",
    "vocabulary_slice",
    "window_owner",
    "window_starts",
    "word_spans",
]

logger = logging.getLogger(__name__)

MAX_CHARS = 1_000_000
"""Longer texts are cut before tokenizing and marked as truncated."""

Ints = NDArray[np.int32]

_WORD = re.compile(r"\S+")
_HUGE = 10**9
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json")
_WORDPIECE_TOKENIZERS = ("BertTokenizer", "ElectraTokenizer", "DistilBertTokenizer")


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """What the user decides about tokens.

    Attributes:
        max_length: tokens per sequence, special ones counted.
        on_long: ``truncate``, ``window`` or ``error`` for texts with more.
        stride: tokens that neighbouring windows share (the meaning it has in Hugging Face).
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
        places: where these stand among the kept tokens of the text, ``None`` for ``0..length-1``.
    """

    ids: Ints
    type_ids: Ints
    owned: Ints | None = None
    places: Ints | None = None


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """All kept tokens of one text (or pair) in reading order, and the windows that cover them.

    Attributes:
        ids: token ids ``(n_kept,)`` int32, special tokens included once.
        special: ``(n_kept,)`` bool, tokens that the tokenizer added.
        segment: ``(n_kept,)`` int8: 0 text, 1 text_pair, -1 special token.
        spans: character offsets ``(n_kept, 2)`` in the text of the segment; zeros for special
            tokens and for the prefix. ``None`` unless asked for.
        word: ``(n_kept,)`` int32 index of the whitespace word, -1 for none. Words of a pair's
            second text are numbered on after those of the first. ``None`` unless asked for.
        n_tokens: tokens before truncation, special ones counted.
        windows: what the model sees.
        n_unknown: kept tokens that the vocabulary does not know.
        cut: some of the text was left out.
    """

    ids: Ints
    special: NDArray[np.bool_]
    segment: NDArray[np.int8]
    spans: Ints | None
    word: Ints | None
    n_tokens: int
    windows: tuple[Window, ...]
    n_unknown: int
    cut: bool

    @property
    def n_kept(self) -> int:
        """Number of kept tokens."""
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class _Template:
    """Special tokens around and between the texts, with the segment ids of each part."""

    lead: Ints
    middle: Ints
    end: Ints
    lead_type: int
    text_type: int
    middle_types: Ints
    pair_type: int
    end_types: Ints

    @property
    def added(self) -> int:
        return len(self.lead) + len(self.middle) + len(self.end)


@dataclass(frozen=True, slots=True)
class _Part:
    """Tokens of one text, without special ones."""

    ids: Ints
    spans: Ints | None

    def cut(self, keep: int, *, left: bool) -> _Part:
        where = slice(len(self.ids) - keep, None) if left else slice(0, keep)
        return _Part(self.ids[where], None if self.spans is None else self.spans[where])

    def __len__(self) -> int:
        return len(self.ids)


class TextTokenizer:
    """Wraps the checkpoint's tokenizer, fast or slow."""

    def __init__(self, tokenizer: Any, *, pad_id: int, type_vocab: int) -> None:
        self.hf = tokenizer
        self.is_fast = bool(tokenizer.is_fast)
        self.pad_id = pad_id
        self._left = tokenizer.truncation_side == "left"
        self._unknown = tokenizer.unk_token_id
        if self.is_fast:
            # tokenizer.json may carry settings of the training run: MiniLM's cuts at 128
            tokenizer.backend_tokenizer.no_truncation()
            tokenizer.backend_tokenizer.no_padding()
        self._type_vocab = type_vocab
        self._single = _template(tokenizer, paired=False, type_vocab=type_vocab)
        self._paired = _template(tokenizer, paired=True, type_vocab=type_vocab)
        self._check_against_own()

    @property
    def limit(self) -> int:
        """The tokenizer's own maximal length; a huge number where it states none."""
        return int(min(self.hf.model_max_length, _HUGE))

    @property
    def special_ids(self) -> NDArray[np.int32]:
        """Ids of special tokens, which a text can also spell out; [UNK] is not among them."""
        ids = [i for i in self.hf.all_special_ids if i != self._unknown]
        return np.array(sorted(ids), dtype=np.int32)

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
    ) -> list[TokenizedText]:
        """Tokenize texts, or pairs of texts.

        Truncation of pairs takes tokens from the longer text first, as ``longest_first`` does.

        With ``on_long="window"`` a text of more tokens than fit is covered by windows of full
        length that start every ``room - stride`` tokens; the last one ends with the text. Every
        token is taken from the window in which it stands farthest from the nearer edge, the
        earlier one on ties: there it has most context. Leading special tokens are taken from the
        first window, the others from the last. Of a pair the longer text is windowed, and the
        other one is repeated in every window, cut to half of the room if need be.

        Args:
            texts: the texts.
            pairs: second texts, one for each, or ``None``.
            settings: lengths, windows and prefix.
            offsets: also give character spans and word indexes (slower).

        Raises:
            UsageError: a text is too long and ``on_long="error"``, or the settings cannot be used
                (see :meth:`room`).
        """
        template = self._paired if pairs is not None else self._single
        room = self.room(settings, paired=pairs is not None)
        first = self._parts(texts, settings.prefix, offsets=offsets)
        second: Sequence[_Part | None] = [None] * len(texts)
        if pairs is not None:
            second = self._parts(pairs, "", offsets=offsets)
        build = _Builder(
            template, settings, room, left=self._left, fast=self.is_fast, unknown=self._unknown
        )
        return [
            build(a, b, texts[i], None if pairs is None else pairs[i])
            for i, (a, b) in enumerate(zip(first, second, strict=True))
        ]

    def room(self, settings: TokenizerSettings, *, paired: bool) -> int:
        """Tokens that a sequence has for text, beside the special ones.

        Args:
            settings: lengths and windows.
            paired: whether pairs are to be tokenized.

        Raises:
            UsageError: there is no room, or neighbouring windows would share all of it; of a pair
                up to half of the room is taken by the text that is repeated in every window.
        """
        added = (self._paired if paired else self._single).added
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
            encodings = encode(cut, add_special_tokens=False)
        except TypeError as error:  # what the tokenizer says does not name the cause
            raise _no_unicode(cut) or error from error
        parts = []
        for encoding in encodings:
            ids = np.array(encoding.ids, dtype=np.int32)
            spans = _spans(encoding.offsets, len(prefix)) if offsets else None
            parts.append(_Part(ids, spans))
        return parts

    def _slow_part(self, text: str, shift: int, *, offsets: bool) -> _Part:
        tokens = self.hf.tokenize(text)
        ids = np.array(self.hf.convert_tokens_to_ids(tokens), dtype=np.int32)
        if not offsets:
            return _Part(ids, None)
        return _Part(ids, _spans(align(tokens, text, unknown=self.hf.unk_token), shift))

    def _check_against_own(self) -> None:
        settings = TokenizerSettings(max_length=_HUGE)
        for text, pair in (("Hello, 한국어 텍스트!", None), ("What is it?", "a 日本語 text")):
            ours = self.encode([text], None if pair is None else [pair], settings=settings)[0]
            own = self.hf(text, pair)
            types = _segments(own, self._type_vocab)
            window = ours.windows[0]
            if window.ids.tolist() != own["input_ids"] or window.type_ids.tolist() != types:
                raise ModelError(
                    f"the tokenizer {type(self.hf).__name__} adds special tokens in a way that "
                    "embedkit does not reproduce; this checkpoint cannot be used."
                )
        if self.is_fast:  # calling the tokenizer may have set its own limits again
            self.hf.backend_tokenizer.no_truncation()
            self.hf.backend_tokenizer.no_padding()


class _Builder:
    """Puts the parts of one text together: truncation, windows, words."""

    def __init__(
        self,
        template: _Template,
        settings: TokenizerSettings,
        room: int,
        *,
        left: bool,
        fast: bool,
        unknown: int | None,
    ) -> None:
        self._template = template
        self._settings = settings
        self._room = room
        self._left = left
        self._fast = fast
        self._unknown = unknown

    def __call__(self, a: _Part, b: _Part | None, text: str, pair: str | None) -> TokenizedText:
        total = len(a) + (len(b) if b is not None else 0)
        cut = len(text) > MAX_CHARS or (pair is not None and len(pair) > MAX_CHARS)
        windows: tuple[Window, ...] | None = None
        if total > self._room:
            if self._settings.on_long == "error":
                raise UsageError(
                    f"a text has {total + self._template.added} tokens, more than max_length="
                    f"{self._settings.max_length}: {text[:60]!r}… Use on_long='truncate' or "
                    "on_long='window'."
                )
            if self._settings.on_long == "window":
                a, b, windows = self._windows(a, b)
                cut = cut or len(a) + (len(b) if b is not None else 0) < total
            else:
                cut = True
                a, b = self._truncate(a, b)
        ids, types, segment, spans = self._assemble(a, b)
        return TokenizedText(
            ids=ids,
            special=segment == -1,
            segment=segment,
            spans=spans,
            word=None if spans is None else _word_index(segment, spans, text, pair),
            n_tokens=total + self._template.added,
            windows=windows or (Window(ids, types),),
            n_unknown=0 if self._unknown is None else int((ids == self._unknown).sum()),
            cut=cut,
        )

    def _assemble(
        self, a: _Part, b: _Part | None
    ) -> tuple[Ints, Ints, NDArray[np.int8], Ints | None]:
        t = self._template
        b_ids = b.ids if b is not None else t.end[:0]
        n_a, n_b = len(a), len(b_ids)
        ids = np.concatenate([t.lead, a.ids, t.middle, b_ids, t.end])
        types = np.concatenate(
            [
                np.full(len(t.lead), t.lead_type, np.int32),
                np.full(n_a, t.text_type, np.int32),
                t.middle_types,
                np.full(n_b, t.pair_type, np.int32),
                t.end_types,
            ]
        )
        segment = np.full(len(ids), -1, np.int8)
        start_a, start_b = len(t.lead), len(t.lead) + n_a + len(t.middle)
        segment[start_a : start_a + n_a] = 0
        segment[start_b : start_b + n_b] = 1
        spans = None
        if a.spans is not None:
            spans = np.zeros((len(ids), 2), np.int32)
            spans[start_a : start_a + n_a] = a.spans
            if b is not None and b.spans is not None:
                spans[start_b : start_b + n_b] = b.spans
        return ids, types, segment, spans

    def _truncate(self, a: _Part, b: _Part | None) -> tuple[_Part, _Part | None]:
        if b is None:
            return a.cut(self._room, left=self._left), None
        keep_a, keep_b = _longest_first(len(a), len(b), self._room, fast=self._fast)
        return a.cut(keep_a, left=self._left), b.cut(keep_b, left=self._left)

    def _windows(self, a: _Part, b: _Part | None) -> tuple[_Part, _Part | None, tuple[Window, ...]]:
        t = self._template
        long_is_a = b is None or len(a) >= len(b)
        if b is not None:
            half = self._room // 2
            if long_is_a:
                b = b.cut(min(len(b), half), left=self._left)
            else:
                a = a.cut(min(len(a), half), left=self._left)
        other = 0 if b is None else (len(b) if long_is_a else len(a))
        size = self._room - other
        length = len(a) if long_is_a or b is None else len(b)
        starts = window_starts(length, size, self._settings.stride)
        owner = window_owner(length, size, starts)
        before = len(t.lead) if long_is_a else len(t.lead) + len(a) + len(t.middle)
        total = len(a) + (0 if b is None else len(b)) + t.added
        windows = []
        for number, start in enumerate(starts):
            piece = slice(start, start + size)
            a_here = _Part(a.ids[piece], None) if long_is_a else _Part(a.ids, None)
            b_here = b if b is None or long_is_a else _Part(b.ids[piece], None)
            ids, types, segment, _ = self._assemble(a_here, b_here)
            length_here = min(size, length - start)
            owned = np.zeros(len(ids), bool)
            owned[before : before + length_here] = owner[piece] == number
            fixed = np.ones(len(ids), bool)
            fixed[before : before + length_here] = False
            head = fixed & (np.arange(len(ids)) < before)
            # what stands before the moving part comes from the first window; of the rest, the
            # repeated text too, and the closing special tokens from the last
            repeated = fixed & ~head & (segment != -1)
            closing = fixed & ~head & (segment == -1)
            owned |= (head | repeated) & (number == 0)
            owned |= closing & (number == len(starts) - 1)
            position = np.flatnonzero(owned).astype(np.int32)
            place = np.where(
                position < before,
                position,
                np.where(
                    position < before + length_here,
                    position + start,
                    position + total - len(ids),
                ),
            ).astype(np.int32)
            windows.append(Window(ids, types, position, place))
        return a, b, tuple(windows)


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


def window_owner(length: int, size: int, starts: Sequence[int]) -> NDArray[np.int64]:
    """For each of ``length`` tokens, the window in which it stands farthest from an edge."""
    token = np.arange(length)
    first = np.asarray(starts)[:, None]
    # the first and last token of the text need no rule: they are farthest in the outer windows
    return np.asarray(np.argmax(np.minimum(token - first, first + size - 1 - token), axis=0))


def word_spans(text: str) -> Ints:
    """Start and end of every whitespace word of a text, ``(n_words, 2)`` int32."""
    return np.array([m.span() for m in _WORD.finditer(text)], np.int32).reshape(-1, 2)


def load_tokenizer(checkpoint: Checkpoint) -> TextTokenizer:
    """Load the tokenizer of a checkpoint.

    Args:
        checkpoint: where it is.

    Raises:
        ModelError: it has none, or one that needs a package that is not installed.
    """
    quiet_transformers()
    from transformers import AutoConfig, AutoTokenizer

    # without any of these, transformers makes up a tokenizer that knows no word
    if not any((checkpoint.folder / file).is_file() for file in _VOCABULARIES) and not any(
        checkpoint.folder.glob("*.model")
    ):
        raise ModelError(
            f"{checkpoint.name}: {checkpoint.folder} holds no tokenizer. It needs tokenizer.json, "
            "vocab.txt or a SentencePiece model."
        )
    options = _casing(checkpoint)
    try:
        config = AutoConfig.for_model(**checkpoint.config)
        tokenizer = AutoTokenizer.from_pretrained(
            str(checkpoint.folder),
            config=config,
            local_files_only=True,
            trust_remote_code=False,
            **options,
        )
    except ImportError as error:
        raise ModelError(
            f"{checkpoint.name}: its tokenizer needs another package ({first_line(error)}). "
            "For the Japanese BERT models: pip install fugashi unidic-lite ipadic."
        ) from error
    except Exception as error:  # the loader raises what its many formats raise
        raise ModelError(
            f"{checkpoint.name}: no tokenizer can be loaded from {checkpoint.folder} "
            f"({first_line(error)})."
        ) from error
    _check_vocabulary(tokenizer, checkpoint)
    if "AutoTokenizer" in (checkpoint.side_json("tokenizer_config.json").get("auto_map") or {}):
        logger.warning(
            f"{checkpoint.name} brings code for its tokenizer, which is not run; "
            f"{type(tokenizer).__name__} reads its vocabulary. See what it makes of a text: "
            "embedkit tokenize"
        )
    pad = tokenizer.pad_token_id
    return TextTokenizer(
        tokenizer,
        pad_id=int(checkpoint.config.get("pad_token_id") or 0) if pad is None else int(pad),
        type_vocab=int(checkpoint.config.get("type_vocab_size") or 0),
    )


def _check_vocabulary(tokenizer: Any, checkpoint: Checkpoint) -> None:
    """Raise a :class:`ModelError` if the tokenizer is not that of the model."""
    known = tokenizer.get_vocab()
    if set(known) <= set(tokenizer.all_special_tokens):
        raise ModelError(
            f"{checkpoint.name}: transformers finds no vocabulary for a {checkpoint.model_type} "
            f"model in {checkpoint.folder}. Give a folder with tokenizer.json or vocab.txt."
        )
    rows = int(checkpoint.config.get("vocab_size") or _HUGE)
    if max(known.values()) >= rows:
        raise ModelError(
            f"{checkpoint.name}: the tokenizer has ids up to {max(known.values())}, but the model "
            f"has only {rows} embeddings. They do not belong together."
        )


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


def _casing(checkpoint: Checkpoint) -> dict[str, bool]:
    """Case and accents where ``tokenizer_config.json`` does not say how they are treated.

    Transformers would lower-case, and take Hangul apart, whatever ``tokenizer.json`` says; so that
    is passed on. In a folder with ``vocab.txt`` alone, ``tokenizer_config.json`` decides, then
    ``config.json``. Where neither says anything, the vocabulary does: a tokenizer that lower-cases
    could never produce its upper-case entries, and one that strips accents takes precomposed Hangul
    and kana apart.
    """
    if not FAMILIES[checkpoint.model_type].wordpiece:
        return {}
    stated = checkpoint.side_json("tokenizer_config.json")
    vocabulary_file = checkpoint.folder / "vocab.txt"
    if (checkpoint.folder / "tokenizer.json").is_file():
        return {} if "do_lower_case" in stated else _casing_within(checkpoint, stated)
    if not vocabulary_file.is_file():
        return {}
    options = {
        key: bool(source[key])
        for source in (checkpoint.config, stated)
        for key in ("do_lower_case", "strip_accents")
        if source.get(key) is not None
    }
    if "do_lower_case" in options:
        return options
    entries = vocabulary_file.read_text("utf-8").split("\n")
    words = [e for e in entries if not (e.startswith("[") and e.endswith("]"))]
    options["do_lower_case"] = not any(e != e.lower() for e in words)
    if options["do_lower_case"] and "strip_accents" not in options:
        options["strip_accents"] = not any(
            "가" <= c <= "힣" or c in "がパ" for e in words for c in e
        )
    case = "lower-cases" if options["do_lower_case"] else "keeps case"
    logger.warning(
        f"{checkpoint.name} does not say how its tokenizer treats case; it {case}, as its "
        "vocabulary shows (a tokenizer_config.json with do_lower_case would settle it)"
    )
    return options


def _casing_within(checkpoint: Checkpoint, stated: dict[str, Any]) -> dict[str, bool]:
    """Case and accents as ``tokenizer.json`` treats them."""
    kind = str(stated.get("tokenizer_class") or "BertTokenizer").removesuffix("Fast")
    within = checkpoint.side_json("tokenizer.json").get("normalizer")
    if kind not in _WORDPIECE_TOKENIZERS or not isinstance(within, dict):
        return {}
    if within.get("type") != "BertNormalizer" or not isinstance(within.get("lowercase"), bool):
        return {}
    options = {"do_lower_case": within["lowercase"]}
    if isinstance(within.get("strip_accents"), bool):
        options["strip_accents"] = within["strip_accents"]
    if options != {"do_lower_case": True}:
        case = "lower-cases" if options["do_lower_case"] else "keeps case"
        logger.info(
            f"{checkpoint.name}: no tokenizer_config.json says how its tokenizer treats case; it "
            f"{case}, as tokenizer.json says"
        )
    return options


def _template(tokenizer: Any, *, paired: bool, type_vocab: int) -> _Template:
    """Read special tokens and segment ids off the tokenizer's own output for short texts."""
    texts = ("one", "two") if paired else ("one",)
    whole = tokenizer(*texts)
    ids = list(whole["input_ids"])
    types = _segments(whole, type_vocab)
    parts = [list(tokenizer(t, add_special_tokens=False)["input_ids"]) for t in texts]
    start = _find(ids, parts[0], 0)
    end = start + len(parts[0])
    if not paired:
        return _Template(
            lead=_ints(ids[:start]), middle=_ints([]), end=_ints(ids[end:]),
            lead_type=types[0], text_type=types[start], middle_types=_ints([]),
            pair_type=0, end_types=_ints(types[end:]),
        )  # fmt: skip
    second = _find(ids, parts[1], end)
    after = second + len(parts[1])
    return _Template(
        lead=_ints(ids[:start]), middle=_ints(ids[end:second]), end=_ints(ids[after:]),
        lead_type=types[0], text_type=types[start], middle_types=_ints(types[end:second]),
        pair_type=types[second], end_types=_ints(types[after:]),
    )  # fmt: skip


def _segments(encoded: Any, type_vocab: int) -> list[int]:
    """Segment ids of a tokenizer's output; zeros where the model has not as many segments.

    Some RoBERTa checkpoints, such as klue/roberta-base, carry BERT's tokenizer with its two.
    """
    types = list(encoded.get("token_type_ids") or [0] * len(encoded["input_ids"]))
    return [0] * len(types) if type_vocab and max(types) >= type_vocab else types


def _find(ids: list[int], part: list[int], start: int) -> int:
    for at in range(start, len(ids) - len(part) + 1):
        if part and ids[at : at + len(part)] == part:
            return at
    raise ModelError("the tokenizer changes a text when it adds special tokens; it cannot be used.")


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int32)


def _spans(offsets: Sequence[tuple[int, int]], shift: int) -> Ints:
    spans = np.array(offsets, np.int32).reshape(-1, 2) - shift
    spans = np.maximum(spans, 0)
    return spans.astype(np.int32)


def _word_index(segment: NDArray[np.int8], spans: Ints, text: str, pair: str | None) -> Ints:
    word = np.full(len(segment), -1, np.int32)
    base = 0
    for number, source in enumerate((text, pair)):
        if source is None:
            continue
        words = word_spans(source)
        if len(words):
            starts, ends = words[:, 0], words[:, 1]
            # a token may begin with the space before its word; its word is where its text begins
            here = np.searchsorted(ends, spans[:, 0], side="right")
            inside = here < len(words)
            here = np.minimum(here, len(words) - 1)
            touches = inside & (starts[here] < spans[:, 1]) & (spans[:, 1] > spans[:, 0])
            chosen = (segment == number) & touches
            word[chosen] = here[chosen] + base
        base += len(words)
    return word


def _longest_first(n_a: int, n_b: int, room: int, *, fast: bool) -> tuple[int, int]:
    """Lengths after taking tokens from the longer text until both fit.

    Of an odd room, fast tokenizers give the last token to the longer text, slow ones to the first.
    """
    shorter, longer = min(n_a, n_b), max(n_a, n_b)
    longer = shorter if shorter > room else max(shorter, room - shorter)
    if shorter + longer > room:
        shorter = room // 2
        longer = shorter + room % 2
        return (longer, shorter) if n_a > n_b or not fast else (shorter, longer)
    return (longer, shorter) if n_a > n_b else (shorter, longer)


def choose_max_length(checkpoint: Checkpoint, tokenizer: TextTokenizer, asked: int | None) -> int:
    """Tokens per sequence: what was asked, else what the checkpoint states.

    Raises:
        UsageError: no token was asked for, or more than the model has positions for.
    """
    if asked is None:
        return checkpoint.default_max_length(tokenizer.limit)
    check_counts(max_length=asked)
    if asked > checkpoint.positions:
        raise UsageError(
            f"max_length={asked}: {checkpoint.name} has positions for {checkpoint.positions} "
            f"tokens. Use at most {checkpoint.positions}, or on_long='window' for long texts."
        )
    return asked


def open_tokenizer(
    model: str,
    *,
    revision: str | None,
    offline: bool,
    max_length: int | None,
    prefix: str,
) -> tuple[TextTokenizer, TokenizerSettings]:
    """The tokenizer of a checkpoint alone, without loading the weights.

    Raises:
        ModelError: there is no such checkpoint or tokenizer.
    """
    checkpoint = find_checkpoint(model, revision=revision, offline=offline)
    tokenizer = load_tokenizer(checkpoint)
    length = choose_max_length(checkpoint, tokenizer, max_length)
    return tokenizer, TokenizerSettings(length, prefix=prefix)


def explain(
    tokenizer: TextTokenizer,
    text: str,
    pair: str | None,
    *,
    settings: TokenizerSettings,
) -> list[dict[str, Any]]:
    """What the model sees of a text, one record per token; a warning is logged if it is cut."""
    encoded = tokenizer.encode(
        [text], None if pair is None else [pair], settings=settings, offsets=True
    )[0]
    assert encoded.spans is not None
    assert encoded.word is not None
    if encoded.cut:
        logger.warning(
            f"the text has {encoded.n_tokens} tokens; it is cut at {settings.max_length}, and the "
            f"model does not see the other {encoded.n_tokens - encoded.n_kept}"
        )
    types = encoded.windows[0].type_ids.tolist()
    sources = {0: text, 1: pair or "", -1: ""}
    return [
        {
            "pos": i,
            "token": token,
            "id": int(encoded.ids[i]),
            "segment": types[i],
            "start": int(encoded.spans[i, 0]),
            "end": int(encoded.spans[i, 1]),
            "word": int(encoded.word[i]),
            "text": sources[int(encoded.segment[i])][slice(*encoded.spans[i])],
        }
        for i, token in enumerate(tokenizer.tokens(encoded.ids.tolist()))
    ]


def vocabulary_slice(tokenizer: TextTokenizer, where: str) -> list[dict[str, Any]]:
    """Entries of the vocabulary from one id up to another, such as ``20000:20020``.

    Raises:
        UsageError: the slice cannot be read or is outside of the vocabulary.
    """
    start, colon, stop = where.partition(":")
    size = len(tokenizer.hf)
    if not (colon and start.isdigit() and stop.isdigit() and int(start) < int(stop) <= size):
        raise UsageError(f"vocab={where!r}: expected FROM:TO with 0 ≤ FROM < TO ≤ {size}.")
    ids = range(int(start), int(stop))
    return [{"id": i, "token": token} for i, token in zip(ids, tokenizer.tokens(ids), strict=True)]
