"""The encoders of a fine-tuned run: which of them has not seen which record.

    RUN/model/records.parquet    row, text_key, fold: of every record of the run; fold -1 is its
                                 test set and what has no label, -2 what is never held out
    RUN/model/fold-0/ …          the models; that of a fold was trained on the other folds

A record is known by its text. One whose text is in a fold gets the vectors of the model of that
fold, which has not seen it; any other, such as those of a test set, the mean over all models.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from embedkit import storage
from embedkit.corpus.plan import CorpusPlan
from embedkit.corpus.records import CorpusReader, Record
from embedkit.dataset.format import text_key, whole_text
from embedkit.dataset.parquet import check_columns, numbers, read_table, write_parquet
from embedkit.dataset.settings import FoldRecord
from embedkit.encoding.windows import TokenizerSettings, match
from embedkit.errors import Option, UsageError
from embedkit.records import from_json, parse_json
from embedkit.types import Int64

if TYPE_CHECKING:  # imports torch
    from embedkit.encoding.encoder import Encoder


ALL_FOLDS = -1
"""Fold number of records that no model has seen: their vectors are the mean over all models."""

_FILE = "records.parquet"
_KEY = b"embedkit.fold_models"


@dataclass(frozen=True, eq=False)
class SeenRecords:
    """The records of a run: ``(n,)`` numbers (ascending), keys of the texts, and folds.

    The fold of the test set is :data:`ALL_FOLDS`.
    """

    run: Path
    models: FoldRecord
    tokens: TokenizerSettings  # as in training
    source: tuple[str, ...]  # SHA-256 of the input files that the run read, in order
    row: Int64
    text_key: Int64
    fold: Int64

    def write(self) -> None:
        """Write the records beside the models."""
        table = pa.table({"row": self.row, "text_key": self.text_key, "fold": self.fold})
        content = {**asdict(self.models), **asdict(self.tokens), "source": self.source}
        about = {_KEY: json.dumps(content, sort_keys=True).encode()}
        write_parquet(_file(self.run), table.replace_schema_metadata(about))

    def folds_of(self, keys: Int64) -> Int64:
        """The fold of each of ``n`` texts, :data:`ALL_FOLDS` for those of no fold.

        A :class:`UsageError` if every model has seen a text.
        """
        fold_of = self._fold_of_key
        folds = np.array([fold_of.get(key, ALL_FOLDS) for key in keys.tolist()], np.int64)
        if trained := int((folds == _TRAINED).sum()):
            raise UsageError(
                f"every model was trained on {trained} of these texts, which are in several folds "
                "or were never held out. Fine-tune in folds that keep equal texts together.",
                model=self.run,
            )
        return folds

    def held_out(self) -> SeenRecords:
        """The same, with texts that every model was trained on in no fold: queries may be such."""
        trained = [self._fold_of_key.get(key) == _TRAINED for key in self.text_key.tolist()]
        # as those of a test set, whose texts are in no fold
        return replace(self, fold=np.where(trained, ALL_FOLDS, self.fold))

    def check_source(self, source: Sequence[str], records: Sequence[Record]) -> None:
        """Raise a :class:`UsageError` if records of the run's corpus have another text there.

        Then their fold cannot be determined. ``source`` is the SHA-256 of the corpus's files.
        """
        # another corpus: its texts are found by their keys alone
        if set(source).isdisjoint(self.source):
            return
        keys = keys_of(records)
        row = np.array([r.row for r in records], np.int64)
        index = match(row, self.row)
        differs = (index >= 0) & (self.text_key[index] != keys)
        # only some of the files, or in another order: row numbers are others then
        if tuple(source) != self.source or differs.any():
            raise UsageError(
                "the run was trained on other texts or files of this corpus, or is of another "
                "version of embedkit. Pass the same files, "
                f"{Option('text')} and {Option('text_pair')} as for the run.",
                model=self.run,
            )

    def check_unseen(self, model: str, records: Sequence[Record]) -> None:
        """Raise a :class:`UsageError` if a model was trained on the text of a record."""
        folds = dict(zip(self.models.models, self.models.fold_of_model, strict=True))
        # a model of all folds has no fold of its own: it was trained on every one
        fold = folds.get(model, ALL_FOLDS)
        # all folds but its own; no model has seen the test set
        trained = self.text_key[(self.fold != fold) & (self.fold != ALL_FOLDS)]
        if seen := int(np.isin(keys_of(records), trained).sum()):
            raise UsageError(
                f"it was trained on {seen} of these texts. Pass {Option('model', self.run)}, for "
                "models that have not seen them.",
                model=_file(self.run).parent / model,
            )

    @cached_property
    def _fold_of_key(self) -> dict[int, int]:
        """The fold of each text that is in one."""
        fold_of: dict[int, int] = {}
        for key, fold in zip(self.text_key.tolist(), self.fold.tolist(), strict=True):
            # no model was trained on a test set: of a text that is there too, the fold decides;
            # several folds of one text: no model can be said not to have seen it
            if fold != ALL_FOLDS:
                fold_of[key] = fold if fold_of.get(key, fold) == fold else _TRAINED
        return fold_of


_TRAINED = -2  # as in a split


def keys_of(records: Sequence[Record]) -> Int64:
    """``(n,)`` keys of the texts of records, those of pairs joined."""
    return keys_of_texts([r.text for r in records], [r.text_pair for r in records])


def keys_of_texts(texts: Sequence[str], pairs: Sequence[str | None] | None) -> Int64:
    """``(n,)`` keys of texts, those of pairs joined."""
    records = zip(texts, [None] * len(texts) if pairs is None else pairs, strict=True)
    return np.array([text_key(whole_text(first, second)) for first, second in records], np.int64)


def find_fold_models(model: str | Path) -> SeenRecords | None:
    """The records of a fine-tuned run; ``None`` if ``model`` is anything else."""
    run = Path(model)
    # both files: run.json means a complete run, the other one that it was fine-tuned
    if not (run / "run.json").is_file() or not (run / "model/fold-0/config.json").is_file():
        return None
    return _read(run)


def find_run_of(model: str | Path) -> SeenRecords | None:
    """The records of the run that a model such as ``RUN/model/fold-0`` belongs to."""
    folder = Path(model)
    if folder.parent.name != "model" or not (folder.parent / _FILE).is_file():
        return None
    return _read(folder.parent.parent) if (folder / "config.json").is_file() else None


_CHECKED_AT_ONCE = 4_096


def check_unseen(seen: SeenRecords | None, model: str, corpus: CorpusPlan) -> None:
    """Raise if some vectors would be of a model that was trained on the text.

    ``seen`` are the records of the run that is the model; ``None`` for a checkpoint.
    """
    inside = find_run_of(model)
    if seen is None and inside is None:
        return
    source = [file.sha256 for file in corpus.files]
    records = (item for item in CorpusReader(corpus) if isinstance(item, Record))
    # in parts, so that the corpus need not fit into memory
    while chunk := list(islice(records, _CHECKED_AT_ONCE)):
        if seen is not None:
            seen.check_source(source, chunk)
            seen.folds_of(keys_of(chunk))
        elif inside is not None:
            inside.check_unseen(Path(model).name, chunk)


def _read(run: Path) -> SeenRecords:
    file = _file(run)
    advice = "Make the run again."
    # before it is believed: a changed fold would give a text to a model that was trained on it
    storage.check_files(run, [f"model/{_FILE}"], advice=advice)
    table = read_table(file, advice=advice)
    names = ("row", "text_key", "fold")
    check_columns(table, dict.fromkeys(names, pa.int64()), file=file, advice=advice)
    content = parse_json((table.schema.metadata or {}).get(_KEY, b""), file=file, advice=advice)
    about: dict[str, Any] = {"file": file, "advice": advice}
    models = from_json(FoldRecord, content, **about)
    tokens = from_json(TokenizerSettings, content, **about)
    source = from_json(tuple[str, ...], content.get("source"), **about)
    return SeenRecords(run, models, tokens, source, *(numbers(table[name]) for name in names))


def _file(run: Path) -> Path:
    return run / "model" / _FILE


def load_encoder(model: str, **settings: Any) -> Encoder:
    """Load a checkpoint, or the encoders of a fine-tuned run as one.

    ``settings`` are further arguments of :class:`~embedkit.encoding.encoder.Encoder`.
    """
    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.folds import FoldEncoder

    seen = find_fold_models(model)
    if seen is None:
        return Encoder(model, **settings)
    if revision := settings.pop("revision", None):
        raise UsageError(f"{model} is a run, which has no revisions.", revision=revision)
    # the length that it was trained with
    if settings.get("max_length") is None:
        settings["max_length"] = seen.tokens.max_length
    storage.check_files(Path(model), ["model"], advice="Make the run again.")
    folds = dict(zip(seen.models.models, seen.models.fold_of_model, strict=True))
    return FoldEncoder(model, folds, seen.tokens.prefix, **settings)
