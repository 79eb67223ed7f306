"""How a corpus is read: one frozen object for all functions that read one."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, fields

from embedkit.choices import FORMATS, QUOTINGS, UNICODE_FORMS, check_choice
from embedkit.corpus.source import is_wide
from embedkit.errors import UsageError, check_counts

__all__ = ["CorpusOptions", "CorpusSettings", "Dialect", "check_test_reading"]

_MARKS = '\t\r\n",;|'


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusOptions:
    """How a corpus is read: its columns, how its files are written, which records are used.

    Attributes:
        text: column of the text; this, ``id`` and ``label`` are guessed by name if not given.
        text_pair: column of the second text of a pair.
        id: column of the id; without one the row number is the id.
        label: column of the label.
        keep: further columns to carry along.
        word_label: column with a label for each word of the text: a column of words of a format
            that marks words, such as ``upos``; else a column of labels separated by white space,
            one for each whitespace word (of JSON also a list).
        format: ``auto`` or one of :data:`embedkit.choices.FORMATS`.
        encoding: encoding of text files, any Python codec.
        quoting: ``auto`` (CSV files follow RFC 4180, others have no quoting), ``none`` or ``csv``.
        header: whether the first line names the columns; otherwise they are ``0``, ``1``, ….
        unicode: normal form of the texts: ``none``, ``nfc`` or ``nfkc``.
        min_chars: leave shorter texts out, and count them.
        sample: use only so many records, sampled at random.
        seed: seed of the sample.
        limit: use only the first so many records.

    Raises:
        UsageError: a value cannot be used.

    >>> CorpusOptions(text="review", quoting="csv").given
    ('text', 'quoting')
    """

    text: str | None = None
    text_pair: str | None = None
    id: str | None = None
    label: str | None = None
    keep: Sequence[str] = ()
    word_label: str | None = None
    format: str = "auto"
    encoding: str = "utf-8"
    quoting: str = "auto"
    header: bool = True
    unicode: str = "none"
    min_chars: int = 0
    sample: int | None = None
    seed: int = 0
    limit: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.keep, str):
            raise TypeError(
                f"keep={self.keep!r}: expected a list of columns, such as [{self.keep!r}]"
            )
        object.__setattr__(self, "keep", tuple(self.keep))
        check_choice(("auto", *FORMATS), format=self.format)
        check_choice(QUOTINGS, quoting=self.quoting)
        check_choice(UNICODE_FORMS, unicode=self.unicode)
        check_counts(min_chars=self.min_chars, limit=self.limit, sample=self.sample, seed=self.seed)
        object.__setattr__(self, "encoding", _settled_encoding(self.encoding))

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the options that differ from their defaults."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != f.default)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the files of one corpus are written; the same for all of them.

    Attributes:
        format: one of :data:`embedkit.choices.FORMATS`.
        encoding: any Python codec name.
        delimiter: one byte, for delimited text.
        quoting: ``none`` takes quotes literally, ``csv`` follows RFC 4180 strictly.
        header: the first line names the columns; otherwise they are named ``0``, ``1``, ….
    """

    format: str
    encoding: str = "utf-8"
    delimiter: str = "\t"
    quoting: str = "none"
    header: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusSettings(Dialect):
    """:class:`CorpusOptions`, settled: columns by their names; no seed without a sample."""

    text: str
    text_pair: str | None
    id: str | None
    label: str | None
    keep: tuple[str, ...]
    word_label: str | None = None
    unicode: str
    min_chars: int
    limit: int | None
    sample: int | None
    seed: int | None


def _settled_encoding(encoding: str) -> str:
    """The encoding as given, if lines and cells can be found in its bytes."""
    try:
        if codecs.lookup(encoding).name == "utf-8-sig":
            return "utf-8"  # a byte order mark is dropped at the start of every file anyway
        if is_wide(encoding) or _MARKS.encode(encoding, "surrogateescape") == _MARKS.encode():
            return encoding
    except (LookupError, UnicodeError):
        pass
    raise UsageError(
        f"encoding={encoding!r}: not an encoding of text that can be read. "
        "Usual ones: utf-8, cp949, euc-kr, shift_jis, utf-16."
    )


def check_test_reading(test: object, *, sample: int | None, min_chars: int) -> None:
    """Raise a :class:`UsageError` if records are to be chosen of a test set that is not given."""
    for name, value in (("test_sample", sample), ("test_min_chars", min_chars or None)):
        if test is None and value is not None:
            raise UsageError(f"{name}={value}: there is no test set; name one with test=.")
