"""Texts → token ids, character offsets, words and windows, by the checkpoint's tokenizer.

    texts, pairs ─ library, without special tokens ─► ids of each side, flat, and their counts
                       _Template  [CLS] … [SEP] … [SEP]     │ cut, or divided into windows
                                                            ▼
    TokenizedTexts   ids (tokens,)  segment (tokens,)  spans (tokens, 2)  ends (texts + 1,)

Sequences are assembled here, with the special tokens of the tokenizer's own output, so that
truncation, windows and pairs can be counted; at load texts are compared with its own result.

What is notable:

- Special tokens and segments are taken from the library's output for short texts; slow tokenizers
  have their template in code alone. Which text of a pair loses the odd token is asked, too: it
  differs between versions of tokenizers.
- All numbers are flat arrays of four bytes. Lists of Python take twenty times as much, which of
  long texts is gigabytes a shard.
- Texts beyond a million characters are cut before tokenizing, and marked.
- Offsets cost time, so that they are computed where words or tokens are wanted.
"""

from __future__ import annotations

import copy
import logging
import pickle
import random
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embedkit.arguments import accepts
from embedkit.choices import DEFAULT_MODEL, MULTILINGUAL
from embedkit.corpus.values import check_characters
from embedkit.encoding import inventory
from embedkit.encoding.casing import cased_normalizer, casing_of, lower_case, restore_case
from embedkit.encoding.checkpoint import Checkpoint, find_checkpoint, quiet_transformers
from embedkit.encoding.definition import TokenizerConfig, bounded, read_data
from embedkit.encoding.windows import (
    TokenizedTexts,
    TokenizerSettings,
    ends_of,
    kept_tokens,
    ranges,
    windows_of,
)
from embedkit.encoding.words import ENDLESS, Ints, Spans, align, word_index, word_spans
from embedkit.errors import DamagedModelError, ModelError, Option, UsageError, first_line
from embedkit.records import Positive
from embedkit.types import Int64

logger = logging.getLogger(__name__)

MAX_CHARS = 1_000_000
"""Longer texts are cut before tokenizing and marked as truncated."""


def _blocks(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Texts that are tokenized together: as many as have so many characters, or one."""
    first = size = 0
    for number, text in enumerate(texts, 1):
        size += len(text)
        if size >= MAX_CHARS or number == len(texts):
            yield texts[first:number]
            first, size = number, 0


_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")


def load_tokenizer(checkpoint: Checkpoint) -> TextTokenizer:
    """Load the tokenizer of a checkpoint; ``ModelError`` if it is missing or damaged."""
    # without these files transformers creates a tokenizer with an empty vocabulary
    folder, config = checkpoint.transformer, checkpoint.built_config()
    files = (file for name in _FILES for file in sorted(folder.glob(name)))
    if (file := next(files, None)) is None:
        kinds = "tokenizer.json, vocab.txt or a SentencePiece model"
        raise ModelError(f"{checkpoint.name}: {folder} holds no tokenizer ({kinds}).")
    # what sentence-transformers would pass to the loader; it wins over tokenizer_config.json
    options = inventory.options_of(checkpoint.sentence, "processor_kwargs")
    settings = {**read_data(folder / "tokenizer_config.json", TokenizerConfig), **options}
    # raises a clear error if it is damaged
    whole = bounded(read_data(folder / "tokenizer.json"), checkpoint.name)
    casing = {} if whole else casing_of(checkpoint, settings)
    from transformers import AutoTokenizer

    try:
        # a panic of the Rust library is no Exception, and would pass the clause below
        with no_panic(folder), quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(
                str(folder),
                config=config,
                local_files_only=True,
                trust_remote_code=False,
                **{**casing, **options},
            )
            vocabulary, rows = tokenizer.get_vocab(), checkpoint.config.get("vocab_size")
            # transformers also loads a damaged or foreign file, with nothing but special tokens in
            # it
            if set(vocabulary) <= set(tokenizer.all_special_tokens):
                raise DamagedModelError(
                    f"{checkpoint.name}: {file} holds no vocabulary for a {checkpoint.model_type} "
                    "model. Give a folder with tokenizer.json, or name its tokenizer_class in "
                    "tokenizer_config.json, such as BertTokenizer."
                )
            # an empty entry is a blank line, which no text gives
            if rows and (largest := max(id for entry, id in vocabulary.items() if entry)) >= rows:
                raise DamagedModelError(
                    f"{checkpoint.name}: {file} has ids up to {largest}, but the model only {rows} "
                    "embeddings. They do not belong together; if tokens were added to the tokenizer"
                    " alone, call model.resize_token_embeddings(len(tokenizer)) and save both."
                )
            # only where nothing but tokenizer.json speaks of case; a stated option is transformers'
            # to apply
            if whole and "do_lower_case" not in settings and "strip_accents" not in options:
                restore_case(tokenizer, checkpoint, file)
            if checkpoint.sentence.get("do_lower_case") and tokenizer.is_fast:
                lower_case(tokenizer, checkpoint)
            pad, padding = tokenizer.pad_token_id, checkpoint.config.get("pad_token_id")
            text_tokenizer = TextTokenizer(
                tokenizer,
                pad_id=int(max(padding or 0, 0) if pad is None else pad),  # -1: none
                type_vocab=int(checkpoint.config.get("type_vocab_size") or 0),
            )
    except ModelError:
        raise
    except Exception as error:  # of the parsers of many formats
        if advice := _advice(checkpoint, settings, file, error):
            raise ModelError(f"{checkpoint.name}: its tokenizer {advice}") from error
        raise DamagedModelError(
            f"{checkpoint.name}: no tokenizer can be loaded from {file} ({first_line(error)})."
        ) from error
    # after the load, which decides the class that reads the vocabulary instead
    if "AutoTokenizer" in (settings.get("auto_map") or {}):
        logger.warning(
            f"{checkpoint.name} brings code for its tokenizer, which is not run; "
            f"{type(tokenizer).__name__} reads its vocabulary (see embedkit tokenize)"
        )
    return text_tokenizer


def _advice(checkpoint: Checkpoint, settings: dict[str, Any], file: Path, error: Exception) -> str:
    """What is missing for a tokenizer: a class, or the package for its kind of file."""
    import transformers
    from transformers.utils import is_protobuf_available, is_sentencepiece_available

    kind = str(settings.get("tokenizer_class") or checkpoint.config.get("tokenizer_class") or "")
    # a family has a slow class, a fast one or both, and a checkpoint may name the other one
    classes = {kind, kind.removesuffix("Fast"), f"{kind}Fast"}
    if kind and not any(hasattr(transformers, name) for name in classes):
        problem = f"is a {kind}, which transformers does not have, and code of a checkpoint is not"
        return f"{problem} run. Save it with a tokenizer.json."
    if file.suffix == ".model" and not (is_sentencepiece_available() and is_protobuf_available()):
        return f"is {file.name}, a SentencePiece model: pip install sentencepiece protobuf."
    if isinstance(error, ImportError):
        japanese = "For the Japanese BERT models: pip install fugashi unidic-lite ipadic."
        return f"needs another package ({first_line(error)}). {japanese}"
    return ""


def choose_max_length(checkpoint: Checkpoint, tokenizer: TextTokenizer, limit: int | None) -> int:
    """Tokens per sequence: as requested, else as sentence-transformers or the tokenizer states."""
    if limit is not None:
        if limit > checkpoint.limit:
            windows = Option("on_long", "window", of="extract")
            problem = f"{checkpoint.name} has positions for {checkpoint.limit:.0f} tokens"
            advice = f"Pass that many, or fewer; to read longer texts, extract with {windows}"
            raise UsageError(f"{problem}. {advice}.", max_length=limit)
        return limit
    stated = inventory.stated_length(checkpoint.sentence)
    # model_max_length is 10**30 where nothing is stated; positions bound it
    key, length = stated or ("model_max_length", tokenizer.hf.model_max_length)
    if length <= tokenizer.n_special:
        files = [s.file for s in checkpoint.inventory if stated and s.key == key]
        raise DamagedModelError(
            f"{checkpoint.name}: {(*files, 'tokenizer_config.json')[0]} says {key}={length}, which "
            f"leaves no room for text beside {tokenizer.n_special} special tokens. Correct it"
            f"{Option('max_length', min(512, checkpoint.positions), before=', or use ')}."
        )
    return int(min(length, checkpoint.positions, checkpoint.limit))


@accepts()
def tokenize(
    text: str | None = None,
    pair: str | None = None,
    *,
    vocab: str | None = None,
    model: str = DEFAULT_MODEL,
    revision: str | None = None,
    offline: bool = False,
    max_length: Positive | None = None,
    prefix: str | None = None,
) -> list[dict[str, Any]]:
    """Tokens of a text as the model sees them, one record each; a warning is logged if it is cut.

    The weights are not loaded. Offsets are those that the tokenizer gives: the mark of a word's
    beginning that stands alone (``▁``) has those of the word's first character, as in transformers.

    Args:
        text: the text.
        pair: its pair.
        vocab: instead of a text, entries of the vocabulary to list, such as ``20000:20020``.
        model: hub id or folder of a checkpoint.
        revision: branch, tag or commit of a hub checkpoint.
        offline: never ask the hub.
        max_length: tokens per text; by default what the checkpoint states.
        prefix: put before the text; by default that of the checkpoint.

    Raises:
        ModelError: there is no such checkpoint or tokenizer.
        UsageError: the length is not supported, or the slice is outside of the vocabulary.

    Example:
        >>> rows = embedkit.tokenize("unbelievable films")
        >>> [(row["token"], row["id"]) for row in rows]
        [('[CLS]', 101), ('unbelievable', 23653), ('films', 3152), ('[SEP]', 102)]
        >>> embedkit.tokenize(vocab="2000:2002")
        [{'id': 2000, 'token': 'to'}, {'id': 2001, 'token': 'was'}]
    """
    if (text is None) == (vocab is None) or (text is None and pair is not None):
        raise UsageError(f"give either a text or {Option('vocab', 'FROM:TO')}.")
    checkpoint = find_checkpoint(model, revision=revision, offline=offline)
    tokenizer = load_tokenizer(checkpoint)
    if text is None:
        size, match = len(tokenizer.hf), re.fullmatch(r"(\d{1,9}):(\d{1,9})", vocab or "")
        start, stop = map(int, match.groups()) if match else (0, 0)
        if not start < stop <= size:
            raise UsageError(f"expected FROM:TO with 0 ≤ FROM < TO ≤ {size}.", vocab=vocab)
        ids = range(start, stop)
        return [
            {"id": i, "token": token} for i, token in zip(ids, tokenizer.tokens(ids), strict=True)
        ]
    length = choose_max_length(checkpoint, tokenizer, max_length)
    settings = TokenizerSettings(length, prefix=checkpoint.prefix_or_own(prefix))
    pairs = None if pair is None else [pair]
    tokens = tokenizer.encode([text], pairs, settings=settings, offsets=True)
    total, kept = int(tokens.n_tokens[0]), len(tokens.ids)
    if tokens.cut.any():
        logger.warning(f"of {total} tokens the model does not see {total - kept} beyond {length}")
    assert tokens.spans is not None
    assert tokens.word is not None
    ids, (starts, ends) = tokens.ids.tolist(), tokens.spans.T.tolist()
    sources = {0: text, 1: pair or "", -1: ""}
    columns = {
        "pos": range(kept),
        "token": tokenizer.tokens(ids),
        "id": ids,
        "segment": tokens.type_ids.tolist(),
        "start": starts,
        "end": ends,
        "word": tokens.word.tolist(),
        # special tokens have segment -1 and spans of 0, so that they slice an empty text
        "text": [sources[s][a:b] for s, a, b in zip(tokens.segment, starts, ends, strict=True)],
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


class _Side(NamedTuple):
    """Tokens of the first or second texts, without special tokens."""

    ids: Ints  # (tokens,)
    counts: Int64  # (texts,)
    spans: Ints | None  # (tokens, 2)


class _Template(NamedTuple):
    """Special tokens before, between and after one text or two, and the segment ids of all."""

    special: tuple[list[int], ...]
    special_types: tuple[list[int], ...]
    text_types: tuple[int, ...]

    @property
    def added(self) -> int:
        return sum(map(len, self.special))


@contextmanager
def no_panic(folder: Path) -> Iterator[None]:
    """Turn the Rust library's panics and plain ``Exception`` into a :class:`DamagedModelError`."""
    try:
        yield
    except BaseException as error:
        # by name: the class is made inside of the library and cannot be imported
        if type(error).__name__ != "PanicException" and type(error) is not Exception:
            raise
        raise DamagedModelError(
            f"the tokenizer in {folder} failed ({first_line(error)}): its file is damaged, or has "
            "a regular expression that backtracks too much. Use another checkpoint."
        ) from error


class TextTokenizer:
    """The checkpoint's tokenizer, fast or slow; ``type_vocab``: segments of the model."""

    def __init__(self, tokenizer: Any, *, pad_id: int, type_vocab: int) -> None:
        self.hf = tokenizer
        self.pad_id = pad_id
        unknown = tokenizer.unk_token_id
        self.unknown_id = -1 if unknown is None else int(unknown)
        self._type_vocab = type_vocab
        if self.hf.is_fast:  # tokenizer.json may have limits: MiniLM's cuts at 128
            tokenizer.backend_tokenizer.no_truncation()
            tokenizer.backend_tokenizer.no_padding()
        # for one text and for two, in the order in which they are indexed by a flag
        self._templates = (self._template("one"), self._template("one", "two"))
        # last, since it encodes with everything above
        self._compare()

    def cased(self) -> TextTokenizer:
        """The same tokenizer without its lower-casing; a :class:`UsageError` if it has none."""
        normalizer = self.hf.backend_tokenizer.normalizer if self.hf.is_fast else None
        cased = cased_normalizer(normalizer)
        # as bytes: the text of a normalizer is cut where it has many parts
        if pickle.dumps(cased) == pickle.dumps(normalizer):
            raise UsageError("the tokenizer keeps case.")
        # the deep copy has a backend of its own, whose normalizer can be exchanged
        copied = copy.deepcopy(self)
        copied.hf.backend_tokenizer.normalizer = cased
        return copied

    @property
    def n_special(self) -> int:
        """Number of special tokens that one text gets."""
        return self._templates[False].added

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
    ) -> TokenizedTexts:
        """Tokenize texts, or pairs of texts; ``offsets`` adds spans and words, which is slower.

        Truncation of pairs takes tokens from the longer text first, as ``longest_first`` does. With
        ``on_long="window"`` a longer text is covered by windows of full length that start every
        ``room - stride`` tokens; the last one ends with the text. Every token is taken from the
        window where it is farthest from the nearer edge (on ties the earlier one), leading special
        tokens from the first window, the others from the last. Of a pair the longer text is
        windowed, and the other one is repeated in every window, cut to half of the room if
        necessary.

        ``words`` are the spans of the words of each text, ascending and disjoint; by default those
        between white space.
        """
        room = self.room(settings, paired=pairs is not None)
        sources = [texts] if pairs is None else [texts, pairs]
        sides = [
            self._side(side, "" if number else settings.prefix, offsets=offsets)
            for number, side in enumerate(sources)
        ]
        built = self._built(sides, sources, room, settings)
        if built.spans is None:
            return built
        # of each text the words of its one or two segments
        lists = [tuple(map(word_spans, group)) for group in zip(*sources, strict=True)]
        if words is not None:
            lists = [(np.array(spans, np.int32).reshape(-1, 2),) for spans in words]
        index = [np.zeros(0, np.int32)]
        for spans, (begin, end) in zip(lists, pairwise(built.ends), strict=True):
            index.append(word_index(built.segment[begin:end], built.spans[begin:end], spans))
        return replace(built, word=np.concatenate(index), word_spans=tuple(lists))

    def room(self, settings: TokenizerSettings, *, paired: bool) -> int:
        """Tokens of text per sequence, without special tokens.

        In pairs up to half of the room is taken by the repeated text.
        """
        added = self._templates[paired].added
        room = settings.max_length - added
        if room < (fewest := 2 if paired else 1):
            least = f"Use {added + fewest} or more."
            problem = f"no room for text beside {added} special tokens. {least}"
            raise UsageError(problem, max_length=settings.max_length)
        # a stride as wide as a window would never advance; with pairs the window may shrink to what
        # the repeated text leaves
        size = room - room // 2 if paired else room
        if settings.on_long == "window" and settings.stride >= size:
            problem = f"expected fewer than the {size} tokens of a window."
            raise UsageError(problem, stride=settings.stride)
        return room

    def _side(self, texts: Sequence[str], prefix: str, *, offsets: bool) -> _Side:
        # the prefix is joined to the string before tokenizing, as in sentence-transformers: a token
        # may stand across the seam
        cut = [prefix + text[:MAX_CHARS] for text in texts]
        check_characters(cut)
        lists: Iterable[list[int]]
        spans: Iterable[Sequence[tuple[int, int]]]
        # four bytes a number, where Python's integers, and the rows of the library with all that
        # they know of a token, take twenty times as much: of long texts that is gigabytes a shard
        ids, counts, ends = array("i"), array("q"), array("i")
        for block in _blocks(cut):
            if self.hf.is_fast:
                backend = self.hf.backend_tokenizer
                # encode_batch_fast computes no offsets, and takes less time
                encode = backend.encode_batch if offsets else backend.encode_batch_fast
                with no_panic(Path(self.hf.name_or_path)):
                    rows = encode(block, add_special_tokens=False)
                lists, spans = (row.ids for row in rows), (row.offsets for row in rows)
            else:
                rows, unknown = [self.hf.tokenize(text) for text in block], self.hf.unk_token
                lists = map(self.hf.convert_tokens_to_ids, rows)
                spans = (align(*pair, unknown=unknown) for pair in zip(rows, block, strict=True))
            for numbers in lists:
                ids.fromlist(numbers)
            counts.extend(map(len, rows))
            if offsets:
                ends.extend(chain.from_iterable(chain.from_iterable(spans)))
        # characters of the text without its prefix, whose tokens get empty spans at 0
        places = np.maximum(np.array(ends, np.int32).reshape(-1, 2) - np.int32(len(prefix)), 0)
        numbers_of = np.array(ids, np.int32), np.array(counts, np.int64)
        return _Side(*numbers_of, places if offsets else None)

    def _built(
        self,
        sides: Sequence[_Side],
        sources: Sequence[Sequence[str]],
        room: int,
        settings: TokenizerSettings,
    ) -> TokenizedTexts:
        template = self._templates[len(sides) - 1]
        counts = np.stack([side.counts for side in sides], axis=1)
        total = counts.sum(axis=1)
        long = total > room
        beyond = np.array([[len(text) > MAX_CHARS for text in side] for side in sources]).any(
            axis=0
        )
        if settings.on_long == "error" and (long | beyond).any():
            first = int(np.argmax(long | beyond))
            raise UsageError(
                f"a text has {total[first] + template.added} tokens, more than "
                f"{Option('max_length', settings.max_length)}, or more than {MAX_CHARS:,} "
                f"characters: {sources[0][first][:60]!r}… Use truncate or window.",
                on_long="error",
            )
        windowed = long & (settings.on_long == "window")
        kept = kept_tokens(counts, room, self._odd_first)
        if windowed.any():  # over the longer text; the other one takes at most half of the room
            moving = np.arange(len(sides)) == counts.argmax(axis=1)[:, None]
            kept[windowed] = np.where(moving, counts, np.minimum(counts, room // 2))[windowed]
        # lengths of what follows each other in a sequence: special, text, special (, text, special)
        pieces = np.empty((len(counts), 2 * len(sides) + 1), np.int64)
        pieces[:, ::2], pieces[:, 1::2] = [len(ids) for ids in template.special], kept
        ends = ends_of(pieces.sum(axis=1))
        # where each piece begins among all tokens, (texts, pieces)
        places = ends_of(pieces.ravel())[:-1].reshape(pieces.shape)
        ids, types = np.empty(ends[-1], np.int32), np.empty(ends[-1], np.int32)
        segment = np.full(ends[-1], -1, np.int8)
        spans = None if sides[0].spans is None else np.zeros((ends[-1], 2), np.int32)
        for number, special in enumerate(template.special):
            to = places[:, 2 * number, None] + np.arange(len(special))
            ids[to], types[to] = special, template.special_types[number]
        for number, side in enumerate(sides):
            to = ranges(places[:, 2 * number + 1], kept[:, number])
            # truncation on the left drops the beginning of the text instead of its end
            skipped = (side.counts - kept[:, number]) * (self.hf.truncation_side == "left")
            source = ranges(ends_of(side.counts)[:-1] + skipped, kept[:, number])
            ids[to], types[to], segment[to] = side.ids[source], template.text_types[number], number
            if spans is not None and side.spans is not None:
                spans[to] = side.spans[source]
        # running counts: their differences at the ends of texts are counts by text
        unknown = ends_of(ids == self.unknown_id)
        return TokenizedTexts(
            ids=ids,
            type_ids=types,
            segment=segment,
            spans=spans,
            ends=ends,
            n_tokens=total + template.added,
            n_unknown=np.diff(unknown[ends]),
            cut=np.asarray((kept < counts).any(axis=1) | beyond),
            pad_id=self.pad_id,
            **windows_of(ends, segment, kept, windowed, room, settings.stride),
        )

    def _template(self, *texts: str) -> _Template:
        """Derive special tokens and segment ids from the tokenizer's output for short texts."""
        whole = self.hf(*texts)
        ids, types = list(whole["input_ids"]), self._segments(whole)
        ends = [0]  # starts and ends of the texts
        for text in texts:
            # the text is found by its own tokens: slow tokenizers have their template in code only
            part = list(self.hf(text, add_special_tokens=False)["input_ids"])
            starts = range(ends[-1], len(ids) - len(part) + 1)
            start = next((i for i in starts if part and ids[i : i + len(part)] == part), None)
            if start is None:
                raise ModelError("the tokenizer changes texts when it adds special tokens.")
            ends += [start, start + len(part)]
        gaps = [slice(*gap) for gap in zip(ends[::2], [*ends[1::2], len(ids)], strict=True)]
        return _Template(
            special=tuple(ids[gap] for gap in gaps),
            special_types=tuple(types[gap] for gap in gaps),
            text_types=tuple(types[gap.stop] for gap in gaps[:-1]),
        )

    def _segments(self, encoded: Any) -> list[int]:
        """Segment ids of the tokenizer's output; zeros if the model has fewer segments.

        Some RoBERTa checkpoints, such as klue/roberta-base, have BERT's tokenizer with two.
        """
        types = list(encoded.get("token_type_ids") or [0] * len(encoded["input_ids"]))
        too_many = self._type_vocab and max(types) >= self._type_vocab
        return [0] * len(types) if too_many else types

    def _compare(self) -> None:
        """Compare with the tokenizer's own output, and learn where the odd token of a room goes.

        Which of two long texts keeps it is not the same everywhere: tokenizers 0.23.3 leaves it to
        the longer text, 0.23.2 to the second, slow tokenizers to the first.
        """
        # two words of as many tokens, so that lengths in tokens follow; of one word nobody could
        # tell where the first text ends, if nothing stands between the two
        ids = {w: self.hf(f"{w} " * 7, add_special_tokens=False)["input_ids"] for w in "abcde1가の"}
        alike = (w for w in ids if len(ids[w]) == len(ids["a"]) and ids[w] != ids["a"])
        second, room = next(alike, "a"), self._templates[1].added + 5
        cases = [
            ("Hello, 한국어 텍스트!", None, ENDLESS),
            ("What is it?", "a 日本語 text", ENDLESS),
            ("a " * 9, f"{second} " * 7, room),
            ("a " * 7, f"{second} " * 9, room),
        ]
        expected = []
        for text, pair, length in cases:
            whole = self.hf(text, pair, truncation="longest_first", max_length=length)
            expected.append((list(whole["input_ids"]), self._segments(whole)))
        if self.hf.is_fast:  # the library keeps the limit
            self.hf.backend_tokenizer.no_truncation()
        # the attribute that encode() reads; the last cases tell its two flags apart
        for self._odd_first in product((True, False), (True, False)):
            results = []
            for text, pair, length in cases:
                pairs, settings = None if pair is None else [pair], TokenizerSettings(length)
                tokens = self.encode([text], pairs, settings=settings)
                results.append((tokens.ids.tolist(), tokens.type_ids.tolist()))
            if results == expected:
                return
        raise ModelError(
            f"the tokenizer {type(self.hf).__name__} adds special tokens, or cuts pairs of long "
            "texts, in a way that is not reproduced here."
        )


LIMIT = 0.2
"""Fraction of words from which :func:`note_if_spelled_out` warns. Measured on reviews, news and
requests: 0 to 0.08 for the languages of a model and those with its letters, 0.67 to 1 for
Korean, Russian, Greek, Japanese and Chinese with MiniLM."""

_LOOKED_AT = 1 << 14
"""Characters of a text that are looked at: more than its first 512 tokens, but not a whole book."""

_ONE_EACH = ("CJK", "HIRAGANA", "KATAKANA")
"""Scripts that are split into characters by vocabularies of their language too."""


def note_if_spelled_out(
    checkpoint: Checkpoint, tokenizer: TextTokenizer, texts: Sequence[str]
) -> None:
    """Log a warning with the remedy if the vocabulary lacks the words of the texts."""
    if (fraction := spelled_out(tokenizer, texts)) >= LIMIT:
        alternative = f", or {MULTILINGUAL}" if checkpoint.name != MULTILINGUAL else ""
        logger.warning(
            f"{checkpoint.name} splits {100 * fraction:.0f} % of the words into single letters or "
            f"[UNK]: expect poor vectors. Use a checkpoint of their language{alternative}."
        )


def spelled_out(tokenizer: TextTokenizer, texts: Sequence[str]) -> float:
    """Fraction of words with a token for every letter, or an unknown token.

    Whitespace words of three or more letters are counted in 200 random texts; of fewer than 20
    words it is 0.
    """
    # a fixed seed: the same corpus gives the same warning every time
    chosen = random.Random(0).sample(list(texts), min(len(texts), 200))
    chosen = [text[:_LOOKED_AT] for text in chosen]
    encoded = tokenizer.encode(chosen, settings=TokenizerSettings(max_length=512), offsets=True)
    flags = []
    for text, tokens in zip(chosen, encoded, strict=True):
        assert tokens.spans is not None
        for number, (start, end) in enumerate(tokens.word_spans[0][0]):
            # Hangul syllables are decomposed into their two or three letters
            letters = [x for x in unicodedata.normalize("NFD", text[start:end]) if x.isalpha()]
            rows = np.flatnonzero(tokens.word == number)
            # pieces of punctuation are no letters: "(ab)" would seem to be spelled out
            rows = rows[[any(map(str.isalpha, text[a:b])) for a, b in tokens.spans[rows]]]
            if len(letters) >= 3 and len(rows):
                one_each = any(unicodedata.name(x, "").startswith(_ONE_EACH) for x in letters)
                unknown = bool((tokens.ids[rows] == tokenizer.unknown_id).any())
                flags.append(unknown or (not one_each and len(rows) >= len(letters)))
    return float(np.mean(flags)) if len(flags) >= 20 else 0.0
