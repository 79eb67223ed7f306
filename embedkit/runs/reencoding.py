"""What a run knows of the dataset that it was made from, and which datasets are alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from embedkit.corpus import Record
from embedkit.corpus.readers import READERS
from embedkit.dataset.record_keys import source_of, whole_text
from embedkit.dataset.store import VectorData
from embedkit.encoding.tokenization import Spans
from embedkit.encoding.word_index import word_spans
from embedkit.errors import MismatchError
from embedkit.runs.content import DatasetContent, Names
from embedkit.runs.folder import path_from
from embedkit.types import Int64

__all__ = ["check_alike", "dataset_content", "joined_pairs", "marked_spans", "words_of_texts"]


def dataset_content(data: VectorData, folder: Path | None = None) -> DatasetContent:
    """Return what shaped the vectors of a dataset, as ``run.json`` keeps it.

    Args:
        data: the dataset.
        folder: of the run, from which the dataset's path is given.
    """
    manifest = data.manifest
    job, names = manifest.job, manifest.names
    return DatasetContent(
        fingerprint=manifest.fingerprint,
        source=source_of(data),
        path="" if folder is None else path_from(folder, data.path),
        model=job.model,
        names=Names(model=names.model, revision=names.revision, inputs=names.inputs),
        unicode=job.input.unicode,
        pairs=job.input.text_pair is not None,
        vectors=job.vectors,
        storage=job.storage.profile,
        marked_words=READERS[job.input.format].marks_words,
    )


def check_alike(
    made: DatasetContent, expected: DatasetContent, *, name: str, vectors: bool = True,
    level: str = "sentence",
) -> None:  # fmt: skip
    """Check that a model which was fitted on one dataset can be applied to another.

    Args:
        made: how the dataset was made.
        expected: how the other one was made.
        name: of the dataset, for messages.
        vectors: the model reads vectors; without, only what shapes a text is compared.
        level: what the model labels: ``sentence`` or ``word``.

    Raises:
        MismatchError: something that shapes a vector differs; it is named with both values.
    """
    differences = [
        f"{key} is {getattr(made, key)!r}, expected {getattr(expected, key)!r}"
        for key in (("pairs",) if vectors else ("pairs", "unicode"))
        if getattr(made, key) != getattr(expected, key)
    ]
    if vectors:
        one, other = made.vector_settings, expected.vector_settings
        differences += one.differences(other)
        if level == "word" and one.words != other.words:
            differences.append(f"words is {one.words!r}, expected {other.words!r}")
    if differences:
        raise MismatchError(
            f"{name} was made with other settings than the data that the model was fitted on: "
            f"{'; '.join(differences[:4])}. Extract it again with the same settings, or give "
            "the corpus file itself."
        )


def marked_spans(records: Sequence[Record]) -> list[Sequence[tuple[int, int]]] | None:
    """Return start and end of the words that a corpus marks in its texts; ``None`` if it does not.

    Without them words stand between white space.
    """
    spans = [r.words.spans for r in records if r.words is not None and r.words.spans is not None]
    return list(spans) if spans else None


def words_of_texts(texts: Sequence[str], spans: Spans | None) -> tuple[Int64, Int64, list[str]]:
    """Return the words of texts as TF-IDF reads them.

    Args:
        texts: the texts.
        spans: start and end of their words; by default the whitespace words.

    Returns:
        Number of the text of each word, its number in the text, and the words.
    """
    found = [word_spans(text) for text in texts] if spans is None else spans
    counts = [len(one) for one in found]
    words = [text[a:b] for text, one in zip(texts, found, strict=True) for a, b in one]
    number = np.concatenate([np.arange(count) for count in counts] or [np.arange(0)])
    return np.repeat(np.arange(len(texts)), counts), number, words


def joined_pairs(texts: Sequence[str], pairs: Sequence[str] | None) -> list[str]:
    """Return texts as TF-IDF reads them: those of a pair joined by a space."""
    seconds: Sequence[str | None] = pairs or [None] * len(texts)
    return [whole_text(a, b, separator=" ") for a, b in zip(texts, seconds, strict=True)]
