"""Keys, texts and labels of records: what makes two texts the same, and which labels count."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embedkit.dataset.store import VectorData, load
from embedkit.errors import UsageError
from embedkit.types import Int64

__all__ = [
    "check_labelled", "has_label", "records_of_words", "source_of", "stored_texts", "text_key",
    "text_keys", "whole_text", "word_spans_of",
]  # fmt: skip

_SEPARATOR = "\x1f"


def text_key(text: str) -> int:
    """Return a key that texts share if they differ in case, width or white space only.

    It is a signed integer: the first eight bytes, little-endian, of the SHA-256 of the text in
    normal form NFKC and folded case, with one space for each run of white space.

    >>> text_key("Ａ  Text ") == text_key("a text")
    True
    """
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    digest = hashlib.sha256(folded.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def text_keys(data: VectorData) -> Int64 | None:
    """Return the key of every record's text, ``(n,)``, of a pair of both together.

    ``None`` if an earlier version wrote the dataset, which stored none, and it has no texts either.
    """
    if "text_key" in data.columns:
        return np.asarray(data.reader.column("text_key").to_numpy(), np.int64)
    texts = stored_texts(data)
    return None if texts is None else np.array([text_key(text) for text in texts], np.int64)


def has_label(label: str | None) -> bool:
    """Whether there is a label: not null, not blank, and not the NaN of a numeric column."""
    return label is not None and label.strip().lower() not in ("", "nan")


def check_labelled(labels: Sequence[str | None], row: Int64, *, name: str = "") -> None:
    """Raise a :class:`UsageError` that names the rows without a label."""
    missing = [i for i, label in enumerate(labels) if not has_label(label)]
    if missing:
        shown = ", ".join(str(row[i]) for i in missing[:5]) + ", …" * (len(missing) > 5)
        raise UsageError(
            f"{name}{': ' * bool(name)}{len(missing)} records have no label (rows {shown}); empty "
            "and NaN count as none. Remove them from the corpus."
        )


def source_of(data: VectorData) -> tuple[str, ...]:
    """Return the SHA-256 of the files that a dataset was made from."""
    return tuple(file.sha256 for file in data.manifest.job.input.files)


def whole_text(first: str, second: str | None, *, separator: str = _SEPARATOR) -> str:
    """Return a text, or both texts of a pair joined."""
    return first if second is None else f"{first}{separator}{second}"


def records_of_words(data: VectorData) -> VectorData:
    """Return a dataset with a row for each record; itself if it is so."""
    return data if data.level == "sentence" else load(data.path)


def word_spans_of(data: VectorData) -> list[NDArray[np.int32]]:
    """Return start and end of the stored words of each record, ``(words, 2)``, from its words."""
    rows = records_of_words(data).row
    record = np.searchsorted(rows, data.row)
    ends = np.searchsorted(record, np.arange(1, len(rows)))
    spans = np.stack([data.start, data.end], axis=1).astype(np.int32)
    return np.split(spans, ends)


def stored_texts(data: VectorData, *, separator: str = _SEPARATOR) -> list[str] | None:
    """Return the texts of a dataset, those of a pair joined; ``None`` if none are stored.

    Those of words are the words.
    """
    if not data.manifest.job.storage.text:
        return None
    if data.level == "word" or not data.manifest.job.input.text_pair:
        return data.text
    pairs = zip(data.text, data.column("text_pair"), strict=True)
    return [whole_text(first, second, separator=separator) for first, second in pairs]
