"""Texts for benchmarks: real corpora where they are, the reviews of ``data/`` elsewhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from embedkit.corpus.memory import InputFile
from embedkit.corpus.plan import CorpusOptions, plan_corpus
from embedkit.corpus.records import CorpusReader, Record
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.windows import TokenizerSettings

ROOT = Path(__file__).resolve().parents[1]
CORPORA = Path(os.environ.get("EMBEDKIT_TEST_CORPORA", ROOT / "data"))
FILES = {"nsmc": ("nsmc/ratings_test.txt", None), "stsb_en": ("stsb_en/train.tsv", "sentence1")}


def texts_of(corpora: Path, name: str, limit: int) -> list[str]:
    """The first texts of a corpus, or the reviews of ``data/`` with a number before each."""
    path, column = FILES[name]
    if (corpora / path).is_file():
        return _read([corpora / path], limit, column)
    own = _read([ROOT / f"data/reviews_{language}.tsv" for language in ("ko", "en")], limit, None)
    return [f"{i} {own[i % len(own)]}" for i in range(limit)]


def similar_pairs(corpora: Path) -> tuple[list[str], list[str], list[float]] | None:
    """First texts, second texts and scores of the test set of STS-B, if it is there."""
    path = corpora / "stsb_en/test.tsv"
    if not path.is_file():
        return None
    reading = CorpusOptions(text="sentence1", text_pair="sentence2", label="score", quoting="csv")
    plan = plan_corpus([InputFile.of(path)], reading)
    records = [r for r in CorpusReader(plan) if isinstance(r, Record)]
    return (
        [r.text for r in records],
        [str(r.text_pair) for r in records],
        [float(str(r.label)) for r in records],
    )


def _read(files: Sequence[Path], limit: int, text: str | None) -> list[str]:
    reading = CorpusOptions(limit=limit, text=text, quoting="csv" if text else "auto")
    plan = plan_corpus([InputFile.of(f) for f in files], reading)
    return [r.text for r in CorpusReader(plan) if isinstance(r, Record)]


def mixed_lengths(
    encoder: Encoder, texts: Sequence[str], number: int, between: tuple[int, int]
) -> list[str]:
    """Texts put together from short ones, their lengths even on a logarithmic scale."""
    random = np.random.default_rng(0)
    words = " ".join(texts).split()
    per_word = len(encoder.tokenizer.hf(" ".join(words[:2_000]))["input_ids"]) / 2_000
    result = []
    for length in np.exp(random.uniform(np.log(between[0]), np.log(between[1]), number)):
        start = int(random.integers(len(words)))
        result.append(" ".join(words[start : start + max(round(length / per_word), 1)]))
    return [text for text in result if text]


def count(encoder: Encoder, texts: Sequence[str]) -> int:
    """Number of tokens of texts, special tokens included, after truncation."""
    settings = TokenizerSettings(encoder.max_length)
    return len(encoder.tokenizer.encode(list(texts), settings=settings).ids)
