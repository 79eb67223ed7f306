"""The encoders of a fine-tuned run: which of them has not seen which record.

    RUN/model/records.parquet    row, text_key, fold: of every record of the run; fold -1 is its
                                 test set
    RUN/model/fold-0/ …          the models; that of a fold was trained on the other folds

A record is known by its text. One whose text is in a fold gets the vectors of the model of that
fold, which has not seen it; any other, such as those of a test set, the mean over all models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from embedkit import fsio
from embedkit.checksums import check_files
from embedkit.choices import ON_LONG
from embedkit.decoding import check_columns, decode, parse_json, read_table
from embedkit.errors import UsageError
from embedkit.types import Int64

if TYPE_CHECKING:
    from embedkit.corpus import Record
    from embedkit.encoding.encoder import Encoder

__all__ = ["ALL_FOLDS", "FoldModels", "FoldSettings", "SeenRecords", "find_fold_models",
           "find_run_of", "load_encoder"]  # fmt: skip

ALL_FOLDS = -1
"""Fold number of records that no model has seen: their vectors are the mean over all models."""

_FILE = "records.parquet"
_NAME = re.compile(r"fold-(\d+)")
_KEY = b"embedkit.fold_models"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldSettings:
    """What a dataset keeps of the run whose encoders made its vectors.

    Attributes:
        models: names of the models, in the order in which their vectors are averaged.
        fold_of_model: fold that each of them was not trained on.
        split: fingerprint of the run's split.
    """

    models: tuple[str, ...]
    fold_of_model: tuple[int, ...]
    split: str

    def problem(self) -> str:
        """What cannot be: names that are no folders, or folds of other models."""
        plain = all(re.fullmatch(r"[\w-]+", name) for name in self.models)
        same = len(self.models) == len(self.fold_of_model) > 0
        return "" if plain and same else "models: expected one fold for each folder in model/"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldModels(FoldSettings):
    """The models of a run, and how they read texts.

    Attributes:
        source: SHA-256 of the input files that the run read, in order.
        repeats: number of times that the run's records were shuffled into folds.
        prefix: put before every text in training.
        max_length: tokens at which texts were cut in training.
        on_long: how longer texts were treated in training.
        stride: tokens that neighbouring windows had in common.
    """

    source: tuple[str, ...]
    repeats: int
    prefix: str
    max_length: int
    on_long: str = "truncate"
    stride: int = 0

    CHOICES: ClassVar[Mapping[str, Sequence[str]]] = {"on_long": ON_LONG}

    @property
    def settings(self) -> FoldSettings:
        """What a dataset keeps of it."""
        return FoldSettings(models=self.models, fold_of_model=self.fold_of_model, split=self.split)


@dataclass(frozen=True, eq=False)
class SeenRecords:
    """The records of a run.

    Attributes:
        run: its folder.
        models: its models.
        row: ``(n,)`` record numbers, ascending.
        text_key: ``(n,)`` keys of the texts (:func:`~embedkit.dataset.record_keys.text_key`).
        fold: ``(n,)`` fold of each record, :data:`ALL_FOLDS` for the test set.
    """

    run: Path
    models: FoldModels
    row: Int64
    text_key: Int64
    fold: Int64

    def write(self) -> None:
        """Write the records beside the models."""
        table = pa.table({"row": self.row, "text_key": self.text_key, "fold": self.fold})
        content = json.dumps(asdict(self.models), sort_keys=True).encode()
        fsio.write_parquet(_file(self.run), table.replace_schema_metadata({_KEY: content}))

    def folds_of(self, keys: Int64) -> Int64:
        """Return the fold of each of ``n`` texts, :data:`ALL_FOLDS` for those of no fold.

        Raises:
            UsageError: the same text is in several folds, so that every model has seen it.
        """
        known = self._fold_of_key
        found = np.array([known.get(key, ALL_FOLDS) for key in keys.tolist()], np.int64)
        if trained := int((found == _TRAINED).sum()):
            raise UsageError(
                f"model={str(self.run)!r}: the only model of the run was trained on {trained} of "
                "these texts. Fine-tune with two folds or more."
            )
        if several := int((found == _SEVERAL).sum()):
            raise UsageError(
                f"model={str(self.run)!r}: {several} texts are in several folds of the run, whose "
                "models have all seen them. Fine-tune with a split that keeps equal texts together "
                "(embedkit split without --allow-duplicates)."
            )
        return found

    def folds_of_records(self, records: Sequence[Record]) -> Int64:
        """Return the fold of each of ``n`` records; errors as for :meth:`folds_of`."""
        return self.folds_of(_keys(records))

    def folds_of_texts(self, texts: Sequence[str], pairs: Sequence[str] | None) -> Int64:
        """Return the fold of each of ``n`` texts, or of pairs; errors as for :meth:`folds_of`."""
        return self.folds_of(_keys_of(texts, pairs))

    def check_source(self, source: Sequence[str], records: Sequence[Record]) -> None:
        """Check records of a corpus that the run may have been trained on.

        Args:
            source: SHA-256 of the input files of the corpus.
            records: some of its records.

        Raises:
            UsageError: the corpus is that of the run, but the text of a record is another one than
                the run read, so that its fold cannot be told by it.
        """
        if set(source).isdisjoint(self.models.source):
            return
        keys = _keys(records)
        row = np.array([r.row for r in records], np.int64)
        index = np.minimum(np.searchsorted(self.row, row), len(self.row) - 1)
        other = (self.row[index] == row) & (self.text_key[index] != keys)
        if tuple(source) != self.models.source or other.any():
            raise UsageError(
                f"model={str(self.run)!r}: the run was trained on records of this corpus, but read "
                "other texts of them or other files with them: whether a model has seen a record "
                "cannot be told. Pass the same files, text= and text_pair= as for the run."
            )

    def check_unseen(self, model: str, records: Sequence[Record]) -> None:
        """Raise a :class:`UsageError` if a model was trained on the text of a record."""
        named = _NAME.match(model)  # of a further repeat it is not known which records are held out
        own = int(named[1]) if named else ALL_FOLDS
        trained = self.text_key[(self.fold != own) & (self.fold != ALL_FOLDS)]
        if seen := int(np.isin(_keys(records), trained).sum()):
            raise UsageError(
                f"model='{_file(self.run).parent / model}': the model was trained on {seen} of "
                f"these texts. Pass model={str(self.run)!r}: every record gets the vectors of a "
                "model that has not seen it."
            )

    @cached_property
    def _fold_of_key(self) -> dict[int, int]:
        known: dict[int, int] = {}
        for key, fold in zip(self.text_key.tolist(), self.fold.tolist(), strict=True):
            known[key] = fold if known.get(key, fold) == fold else _SEVERAL
        return known


_TRAINED, _SEVERAL = -2, -3  # the first as in a split


def _keys(records: Sequence[Record]) -> Int64:
    """``(n,)`` keys of the texts of records."""
    paired = any(record.text_pair is not None for record in records)
    pairs = [str(record.text_pair) for record in records] if paired else None
    return _keys_of([record.text for record in records], pairs)


def _keys_of(texts: Sequence[str], pairs: Sequence[str] | None) -> Int64:
    """``(n,)`` keys of texts, those of pairs joined."""
    from embedkit.dataset.record_keys import text_key, whole_text  # which reads datasets

    seconds: Sequence[str | None] = pairs or [None] * len(texts)
    both = zip(texts, seconds, strict=True)
    return np.array([text_key(whole_text(first, second)) for first, second in both], np.int64)


def find_fold_models(model: str | Path) -> SeenRecords | None:
    """Return the models of a run with its records; ``None`` if ``model`` is no fine-tuned run.

    Raises:
        UsageError: an earlier version made the run, or its records were shuffled several times.
        DamagedError: the file of the records was changed since, or cannot be read.
    """
    run = Path(model)
    if not (run / "run.json").is_file() or not (run / "model/fold-0/config.json").is_file():
        return None
    found = _read(run)
    if found.models.repeats > 1:
        raise UsageError(
            f"model={str(model)!r}: the run has {found.models.repeats} repeats, in each of which a "
            "record is in another fold. Fine-tune with a split of one repeat."
        )
    return found


def find_run_of(model: str | Path) -> SeenRecords | None:
    """Return the records of the run that a model such as ``RUN/model/fold-0`` belongs to."""
    folder = Path(model)
    if folder.parent.name != "model" or not (folder.parent / _FILE).is_file():
        return None
    return _read(folder.parent.parent) if (folder / "config.json").is_file() else None


def _read(run: Path) -> SeenRecords:
    file = _file(run)
    if not file.is_file():
        raise UsageError(
            f"model={str(run)!r}: {file} is missing, as in runs of earlier versions: which model "
            "has seen which record is not known. Make the run again."
        )
    advice = "Make the run again."
    check_files(run, [f"model/{_FILE}"], advice=advice)
    table = read_table(file, advice=advice)
    names = ("row", "text_key", "fold")
    check_columns(table, dict.fromkeys(names, pa.int64()), file=file, advice=advice)
    content = parse_json((table.schema.metadata or {}).get(_KEY, b""), file=file, advice=advice)
    models = decode(FoldModels, content, file=file, advice=advice)
    return SeenRecords(run, models, *(table[name].to_numpy() for name in names))


def _file(run: Path) -> Path:
    return run / "model" / _FILE


def load_encoder(model: str, **settings: Any) -> Encoder:
    """Load a checkpoint, or the encoders of a fine-tuned run as one.

    Args:
        model: hub id or folder of a checkpoint, or a fine-tuned run.
        settings: further arguments of :meth:`~embedkit.encoding.encoder.Encoder.load`.

    Raises:
        ModelError: a checkpoint cannot be found or used.
        DamagedError: a file of the run was changed since.
        UsageError: a setting, or the run, cannot be used.
    """
    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.fold_encoder import FoldEncoder

    found = find_fold_models(model)
    if found is None:
        return Encoder.load(model, **settings)
    if settings.pop("revision", None):
        raise UsageError(f"revision=: {model} is a run, which has no revisions.")
    if settings.get("max_length") is None:
        settings["max_length"] = found.models.max_length
    check_files(Path(model), ["model"], advice="Make the run again.")
    folders = {name: Path(model) / "model" / name for name in found.models.models}
    return FoldEncoder.of(
        model, folders, fold_of_model=found.models.fold_of_model, prefix=found.models.prefix,
        **settings,
    )  # fmt: skip
