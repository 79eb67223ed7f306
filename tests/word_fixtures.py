"""Small treebanks in CoNLL-U whose tags follow from the words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

_WORDS = {
    "DET": "the a",
    "NOUN": "movie bus home",
    "AUX": "was",
    "ADJ": "good bad",
    "PRON": "i it",
    "PUNCT": ". !",
}
TAGS = {word: tag for tag, words in _WORDS.items() for word in words.split()}


def sentences(count: int, *, seed: int = 0, words: Sequence[str] = tuple(TAGS)) -> list[list[str]]:
    """Sentences of 4 to 9 random words."""
    random = np.random.default_rng(seed)
    return [list(random.choice(words, random.integers(4, 10))) for _ in range(count)]


def conllu(found: Sequence[Sequence[str]], *, shift: int = 0) -> str:
    """Sentences in CoNLL-U; each word has the tag of the one ``shift`` before it."""
    lines = []
    for number, words in enumerate(found):
        tags = np.roll([TAGS[word] for word in words], shift)
        lines += [f"# sent_id = s{number}", f"# text = {' '.join(words)}"]
        lines += [
            "\t".join((str(i), word, word, tag, "_", "_", "0", "dep", "_", "_"))
            for i, (word, tag) in enumerate(zip(words, tags, strict=True), 1)
        ]
        lines.append("")
    return "\n".join(lines) + "\n"


def write_treebank(path: Path, count: int = 40, *, seed: int = 0, shift: int = 0) -> Path:
    """A treebank of random sentences; the first one stands there twice."""
    found = sentences(count - 1, seed=seed)
    path.write_text(conllu([*found, found[0]], shift=shift), "utf-8")
    return path
