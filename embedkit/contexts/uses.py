"""The uses of a word with their vectors.

The vector of a use is the mean over the tokens that touch the word, so that 배 in 배를 is compared
without its particle where the tokenizer splits them. Uses come from the word or token table of a
dataset, or from sentences that are encoded on the spot.
"""

from __future__ import annotations

import logging
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from embedkit.arguments import accepts, strings_of
from embedkit.choices import DEFAULT_MODEL, MATCHES, check_choice
from embedkit.dataset.read import VectorData, load
from embedkit.display import Shown
from embedkit.encoding.views import LayerSpec, parse_layers
from embedkit.encoding.words import UNSPACED, signs
from embedkit.errors import Message, Option, UsageError
from embedkit.geometry import mean_cosine
from embedkit.search.exact import unit_rows
from embedkit.types import AnyPath, Float32, Int64

if TYPE_CHECKING:
    from embedkit.encoding.encoder import Encoder

logger = logging.getLogger(__name__)


# longer particles stand first, as a regular expression takes the first
# alternative; a second one may follow, such as 에서는. Not 인: with it 한국 is another word
_PARTICLES = (
    "(?:들)?(?:(?:에게서|에서|에게|께서|께|한테|으로|부터|까지|처럼|보다|마다|만큼|대로|밖에|하고"
    "|이라도|라도|이라고|이랑|이나|이며|이고|라고|조차|마저|뿐|을|를|이|가|은|는|의|에|와|과|로|도|만"
    "|랑|나|고|며)(?:는|은|도|만|의|서|부터|까지|이|을|으로|이다)?"
    "|이다|입니다|이었다|였다|이란|이라는|이라)?"
)
_UNSPACED = re.compile(f"[{UNSPACED}]")  # between which \w has no boundary


def find_word(text: str, word: str, *, match: str = "word") -> list[tuple[int, int]]:
    """Find the character spans of a word in a text; particles are not part of a span.

    Case is ignored, and composed (NFC) and decomposed (NFD) letters are the same.

    >>> find_word("Bank of the BANK, banks", "bank")
    [(0, 4), (12, 16)]

    ``word`` matches the whole word, in Hangul also with particles, ``start`` also longer words
    that begin with it. Japanese, which has no spaces, is always matched ``anywhere``.
    """
    if not (word := word.strip()):
        raise UsageError("the word is empty.")
    check_choice(MATCHES, match=match)
    return [hit.span() for hit in _pattern(word, match).finditer(text)]


@lru_cache(maxsize=16)
def _pattern(word: str, match: str) -> re.Pattern[str]:
    # texts are searched as they are, in either form, so that spans are places in them; both
    # spellings are alternatives of the pattern
    # a sign of the last letter, or its final consonant, decomposed
    goes_on = rf"(?![{signs()}\u11a8-\u11ff])"
    pattern = re.escape(unicodedata.normalize("NFC", word)) + goes_on
    if match != "anywhere" and not _UNSPACED.search(word):
        # what chooses the form of a sign, as of an emoji, is of no letter
        # and the marks of voiced kana belong to scripts without spaces, as their letters do
        before = re.sub("[\u20e3\u3099\u309a\ufe00-\ufe0f\U000e0100-\U000e01ef]", "", signs())
        # words of scripts without spaces end others, as in 私はBERTで; but 反한국 is another word
        letter = r"\w" if re.search("[\u1100-\u11ff가-힣]", word) else rf"[^\W{UNSPACED}]"
        pattern = rf"(?<!{letter})(?<![{before}])" + pattern
        if match == "word":  # with a particle also words of another script, as in BERT를
            pattern += rf"(?={_PARTICLES}(?!{letter}))"
    return re.compile(f"{pattern}|{unicodedata.normalize('NFD', pattern)}", re.IGNORECASE)


@accepts()
def words(
    source: AnyPath | Sequence[str],
    word: str,
    *,
    match: str = "word",
    layer: str | None = None,
    model: str | None = None,
    device: str = "auto",
) -> WordReport:
    """Compare the uses of a word, layer by layer.

    Args:
        source: a dataset with vectors of words or tokens, or a list of sentences.
        word: the word.
        match: {MATCHES}.
        layer: layer or combination of layers of the cosines; by default the last one.
        model: checkpoint that encodes sentences; by default that of ``extract``.
        device: where it does.

    Returns:
        The uses and their cosines, each with each, at one layer; and for every layer the mean
        cosine of two uses, beside that of any two words where the dataset has word vectors.

    Raises:
        UsageError: the word does not occur, or a layer cannot be used.

    Example:
        >>> report = embedkit.words(["He robbed the bank.", "Fish on the river bank."], "bank")
        >>> len(report.uses), report.cosines.shape
        (2, (2, 2))
    """

    def layers_of(n_layers: int) -> tuple[LayerSpec, ...]:
        layers = parse_layers(
            "all" if layer is None else layer, n_layers=n_layers, option=Option("layer", layer)
        )
        if layer is not None and len(layers) > 1:
            advice = "expected one layer, or a combination such as mean:-4..-1."
            raise UsageError(advice, layer=layer)
        return layers

    if isinstance(source, str | os.PathLike):
        uses = uses_in_dataset(source, word, match=match)
        if model is not None:
            raise UsageError(f"the vectors of {source} are stored. Leave it out.", model=model)
        assert uses.data is not None
        layers = layers_of(uses.data.manifest.job.model.n_layers)
    else:
        from embedkit.encoding.encoder import Encoder

        encoder = Encoder(model or DEFAULT_MODEL, device=device)
        # only the layers that are asked for are kept of the forward pass
        layers = layers_of(encoder.n_layers)
        uses = uses_in_texts(encoder, strings_of("source", source), word, layers, match=match)
    return describe_uses(uses, word, layer=layers[0] if layer is not None else None)


MOST_USES = 1_000
"""Largest number of uses that are taken of a dataset."""

_TEXTS_AT_ONCE = 512


Lines = tuple[Int64, Int64, dict[str, Float32]]
"""Some lines of a table of words or tokens: the record of each, ascending; first character and end,
``(n, 2)``; vectors by layer."""


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a word: characters ``start`` to ``end`` of the text of a record."""

    row: int
    id: str
    text: str
    start: int
    end: int


class UseVectors(NamedTuple):
    """Uses with their vectors, ``(uses, width)`` by layer name."""

    uses: tuple[Use, ...]
    vectors: dict[str, Float32]
    skipped: int  # uses without a kept token, since the text was cut before them
    data: VectorData | None = None


def uses_in_dataset(dataset: AnyPath, word: str, *, match: str = "word") -> UseVectors:
    """Find the uses of a word in a dataset with word or token vectors; of many uses a sample."""
    data = load(dataset)
    # tokens first: words of a dataset may be joined with particles. Spans are no words
    stored, spans = data.manifest.job.vectors, data.manifest.job.input.spans
    kind = "tokens" if stored.tokens else "words" if stored.words and not spans else None
    if kind is None:
        words = "" if spans else f"{Option('words', 'mean', of='extract')} or "
        raise UsageError(
            f"{data.path} has no word vectors{' but those of its spans' if spans else ''}. Give "
            f"sentences instead of it, or extract it again with {words}"
            f"{Option('tokens', True, of='extract')}."
        )
    if "text" not in data.columns:
        raise UsageError(f"{data.path} stores no texts, so words cannot be looked for.")
    records = zip(data.row.tolist(), data.ids.tolist(), data.text, strict=True)
    texts = f"the first texts of {dataset}" if data.manifest.job.input.text_pair else str(dataset)
    uses = _find_uses(records, word, match, texts)
    if len(uses) > MOST_USES:
        logger.info("a random sample of %d of %d uses", MOST_USES, len(uses))
        drawn = np.random.default_rng(0).choice(len(uses), MOST_USES, replace=False)
        # in the order of the dataset, as they were found
        uses = [uses[int(i)] for i in np.sort(drawn)]
    if kind == "words":
        tokens = Option("tokens", True, of="extract")
        said = "vectors of whole words, with particles and marks; without them:"
        logger.info(Message(f"{said} extract with {tokens}"))
    tables = layer_tables(data, kind, rows=np.unique([use.row for use in uses]))
    none = f"{word!r} has no token in {data.path}, or stands where its texts were cut."
    return _means(uses, tables, none=none)._replace(data=data)


def uses_in_texts(
    encoder: Encoder,
    texts: Sequence[str],
    word: str,
    layers: Sequence[LayerSpec],
    *,
    match: str = "word",
) -> UseVectors:
    """Find the uses of a word in sentences and encode them."""
    records = ((row, str(row), text) for row, text in enumerate(texts))
    uses = _find_uses(records, word, match, "the sentences")
    names, rows = [spec.name for spec in layers], np.unique([use.row for use in uses])

    def tables() -> Iterator[Lines]:
        for start in range(0, len(rows), _TEXTS_AT_ONCE):
            # each text once, however often it has the word; the vectors of
            # tokens of a few hundred are in memory
            block = rows[start : start + _TEXTS_AT_ONCE]
            tokens = encoder.encode_tokens([texts[row] for row in block], layers=names)
            spans = np.stack([tokens.start, tokens.end], axis=1).astype(np.int64)
            yield block[tokens.row], spans, tokens.vectors

    none = f"{word!r} has no token, or stands where the sentences are cut: the model takes "
    return _means(uses, tables(), none=f"{none}{encoder.max_length} tokens.")


def _find_uses(
    records: Iterable[tuple[int, str, str]], word: str, match: str, where: str
) -> list[Use]:
    """The uses of a word in records with row, id and text; an error if there is none."""
    uses = [
        Use(row, id_, text, start, end)
        for row, id_, text in records
        for start, end in find_word(text, word, match=match)
    ]
    if not uses:
        start, anywhere = Option("match", "start"), Option("match", "anywhere")
        wider = f"{start} also finds the beginnings of longer words, {anywhere} what is inside"
        # of a word without spaces around it every place was looked at
        everywhere = match == "anywhere" or _UNSPACED.search(word)
        raise UsageError(f"{word!r} does not occur in {where}{'' if everywhere else f'; {wider}'}.")
    return uses


def _means(uses: Sequence[Use], tables: Iterable[Lines], *, none: str) -> UseVectors:
    """The uses that lines touch, with the means over these; an error ``none`` without any.

    A record may continue in the next table.
    """
    rows = np.array([use.row for use in uses])
    sums: dict[str, Float32] = {}
    counts = np.zeros(len(rows), np.int64)
    for row, spans, layers in tables:
        # uses of this table only
        for number in np.flatnonzero(np.isin(rows, row)).tolist():
            # lines of a record stand together, as rows ascend
            first, last = np.searchsorted(row, (rows[number], rows[number] + 1))
            use, (left, right) = uses[number], spans[first:last].T
            # special tokens are nowhere: from 0 to 0
            touch = (left < use.end) & (right > use.start) & (right > left)
            lines = first + np.flatnonzero(touch)
            counts[number] += len(lines)
            for name, matrix in layers.items():
                total = sums.setdefault(name, np.zeros((len(rows), matrix.shape[1]), np.float32))
                # sums and counts, not means: the rest of the record may be in the next table
                total[number] += matrix[lines].sum(axis=0)
    # a use after the cut of its text has no line
    covered = counts > 0
    if not covered.any():
        raise UsageError(none)
    kept, each = tuple(compress(uses, covered)), counts[covered, None]
    means = {name: np.asarray(total[covered] / each, np.float32) for name, total in sums.items()}
    return UseVectors(kept, means, len(uses) - len(kept))


def layer_tables(data: VectorData, kind: str, *, rows: Int64) -> Iterator[Lines]:
    """Read ``words`` or ``tokens`` by row groups, without special tokens and second texts."""
    table = load(data.path, list(data.manifest.columns_of(kind)), level=kind.removesuffix("s"))
    scalars = [n for n in ("row", "start", "end", "segment", "special") if n in table.columns]
    for block, columns in table.reader.scalars(scalars):
        chosen = np.isin(columns.column("row").to_numpy(), rows)
        if "segment" in scalars:
            chosen &= columns.column("segment").to_numpy() == 0
        if "special" in scalars:
            chosen &= ~columns.column("special").to_numpy()
        # before the vectors of the row group are read
        if not chosen.any():
            continue
        columns = columns.filter(pa.array(chosen))
        layers = table.reader.divided(table.reader.vectors_of(block)[chosen])
        spans = [columns.column(name).cast(pa.int64()).to_numpy() for name in ("start", "end")]
        by_name = {name.removeprefix("layer_"): part for name, part in layers.items()}
        yield columns.column("row").to_numpy(), np.stack(spans, axis=1), by_name


_SAMPLED_WORDS = 10_000


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class WordReport(Shown):
    """The uses of a word compared with each other and with other words."""

    word: str
    layer: str  # of ``cosines``
    uses: tuple[Use, ...]
    cosines: Float32  # ``(uses, uses)``
    layers: dict[str, float]  # mean cosine of two different uses; NaN of a single one
    others: dict[str, float]  # that of any two words, by stored layer; empty without a word table
    skipped: int  # uses without a kept token, since the text was cut before them


def describe_uses(uses: UseVectors, word: str, *, layer: LayerSpec | None = None) -> WordReport:
    """Compare the uses of a word with each other, and layer by layer with any two words.

    ``layer``, by default the last one, is that of the cosines.
    """
    vectors = dict(uses.vectors)
    chosen = list(vectors)[-1] if layer is None else layer.name
    # a combination that was not stored is made of its layers
    parts = [chosen] if layer is None or chosen in vectors else [str(i) for i in layer.layers]
    if not vectors.keys() >= set(parts):
        raise UsageError(f"expected one of {', '.join(vectors)}.", layer=chosen)
    vectors[chosen] = _combined(chosen, [vectors[part] for part in parts])
    unit = unit_rows(vectors[chosen])
    # any two words can be compared where the words were stored; tokens are no words
    data = uses.data
    return WordReport(
        word=word,
        layer=chosen,
        uses=uses.uses,
        cosines=np.clip(unit @ unit.T, -1, 1),
        layers={name: mean_cosine(values) for name, values in vectors.items()},
        others=_mean_cosines(data) if data and data.manifest.job.vectors.words else {},
        skipped=uses.skipped,
    )


def _combined(layer: str, parts: Sequence[Float32]) -> Float32:
    """Vectors of a combination: as they are means over tokens, the combination of the means."""
    if len(parts) == 1:
        return parts[0]
    if layer.startswith("concat"):
        return np.concatenate(parts, axis=1)
    total = np.sum(parts, axis=0)
    return np.asarray(total / len(parts) if layer.startswith("mean") else total, np.float32)


def _mean_cosines(data: VectorData) -> dict[str, float]:
    """Mean cosine of any two words of a random sample, by layer."""
    words, means = load(data.path, level="word"), dict[str, float]()
    chosen = np.ones(len(words), bool)
    if "segment" in words.columns:  # of pairs the first texts
        chosen = np.array(words.column("segment")) == 0
    index = np.random.default_rng(0).permutation(np.flatnonzero(chosen))[:_SAMPLED_WORDS]
    # read in the order of the files
    index.sort()
    for column in data.manifest.columns_of("words"):
        layer = column.removeprefix("layer_")
        vectors = load(data.path, layer, level="word").reader.vectors_at(index)
        means[layer] = mean_cosine(vectors)
    return means
