"""Runs on one split side by side: the same held-out records in the same order.

Beside them may stand predictions of any other tool, as a table with the column ``id``, and with
``y_pred`` or ``proba_`` and the name of each class, or both. They are a run of which nothing is
known but its predictions: neither its costs, nor a model that could be blended or predict texts.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np

from embedkit.corpus.memory import input_files
from embedkit.corpus.plan import open_table
from embedkit.corpus.readers import format_of_name
from embedkit.corpus.tables import Reject, Row
from embedkit.dataset.format import Layout, Manifest, is_dataset, read_manifest
from embedkit.display import count_text
from embedkit.errors import CorpusError, MismatchError, Option, UsageError, did_you_mean
from embedkit.remote import address_of
from embedkit.runs.folder import read_run
from embedkit.runs.predictions import Predictions, fold_names, invalid_proba, read_predictions
from embedkit.runs.run import Cost, FinetuneRun, PredictionRun, ProbeRun
from embedkit.runs.split import TEST, VALIDATION
from embedkit.types import AnyPath, Float64, Int64, ProgressCallback, no_progress, steps
from embedkit.units.target import float_of, parts_of, set_numbers

logger = logging.getLogger(__name__)

FOREIGN = "predictions"
"""The kind of a run of which only the predictions are known."""


class LoadedRun(NamedTuple):
    """A run folder with predictions; its name in tables is the folder's where that is unique."""

    name: str
    path: Path
    content: PredictionRun
    predictions: Predictions

    @property
    def has_model(self) -> bool:
        """False of a probe, and of predictions of another tool."""
        return not isinstance(self.content, ProbeRun) and self.content.kind != FOREIGN


def with_models(runs: Sequence[LoadedRun]) -> tuple[LoadedRun, ...]:
    """Return the runs that hold a model."""
    return tuple(run for run in runs if run.has_model)


def read_runs(
    paths: Sequence[AnyPath], *, progress: ProgressCallback = no_progress
) -> list[LoadedRun]:
    """Read runs that were made under the same split, those of probes after the others.

    Files are predictions of other tools, which come last.

    All have the same records, folds and true labels; ``progress`` is called after every run.
    """
    # a str is a sequence of paths with one letter each
    paths = [paths] if isinstance(paths, str) else paths
    # runs/a, runs/a/ and a link to it are one run, which would be tested against itself
    resolved = [Path(path).resolve() for path in paths]
    if repeated := [path.name for path, n in Counter(resolved).items() if n > 1]:
        raise UsageError(f"{repeated[0]} is given twice. Give every run once.")
    runs: list[LoadedRun] = []
    step = steps(progress, "reading", len(paths), "runs")
    # names are as short as they can be while they differ
    count = Counter(path.name for path in resolved)
    named = {
        Path(path): folder.name if count[folder.name] == 1 else str(path)
        for path, folder in zip(paths, resolved, strict=True)
    }
    # folders first: files of other tools are aligned with the records of the first run
    for path in [path for path in named if not _is_table(path)]:
        content = read_run(path)
        if not isinstance(content, PredictionRun):
            raise UsageError(f"{path} is a {content.kind} run, which cannot be compared.")
        views = content.views if isinstance(content, ProbeRun) else ()
        predictions = read_predictions(path, content.classes, views)
        runs.append(LoadedRun(named[path], path, content, predictions))
        step()
    # a stable sort: the first run stands for the records, and one with a model knows the test set
    runs.sort(key=lambda run: isinstance(run.content, ProbeRun))
    if not runs:
        raise UsageError("give a run too, whose records and labels the predictions belong to.")
    first = runs[0]
    for path in [path for path in named if _is_table(path)]:
        runs.append(_foreign(path, named[path], first))
        step()
    for run in runs[1:]:
        # the level first: a split of words has the fingerprint of their records
        if run.content.level != first.content.level:
            raise MismatchError(
                f"{run.path} is of level {run.content.level}, {first.path} of level "
                f"{first.content.level}. Compare runs of one level."
            )
        if run.content.split.fingerprint != first.content.split.fingerprint:
            advice = f"Give one to both, {Option('split', of='train')}, made by embedkit split."
            if run.content.split.source != first.content.split.source:
                advice = "It is of other files: make both runs from the same, or the same frame."
            raise MismatchError(
                f"{run.path} was made under another split than {first.path}. {advice}"
            )
    # None for runs without a test set of their own; another sample of a file is another one
    tests = [(run.content.test_set, run.predictions) for run in with_models(runs)]
    samples = {test and (test.source, np.unique(p.row[p.test]).tobytes()) for test, p in tests}
    if len(samples) > 1:
        logger.warning(
            "the runs have different test sets, or only some of them have one: they are compared "
            "on the records of the folds alone"
        )
        runs = _of_some(runs, lambda p: p.out_of_fold)
        # nor is anything said of a test set that is not compared
        runs = [run._replace(content=replace(run.content, test_set=None)) for run in runs]
    runs = _with_shared_words(runs)
    for run in runs[1:]:
        _check_same(runs[0], run)
    return runs


def _is_table(path: Path) -> bool:
    """True of a file; of an address if its name is that of a table."""
    return path.is_file() or bool(address_of(path) and format_of_name(path))


def _foreign(path: Path, name: str, first: LoadedRun) -> LoadedRun:
    """The predictions of another tool for the records of a run, aligned by their ids.

    A test set of its own is left out: its ids may be those of other records too.
    """
    content, records = first.content, first.predictions
    if records.of_words:
        raise UsageError(f"{path}: predictions of words have no id. Compare runs of embedkit.")
    if content.test_set is not None:
        records = records.take(records.out_of_fold)
    cells = _cells(path, records)
    if "fold" in cells:
        _check_folds(path, cells["fold"], first, fold_names(records.fold))
    else:
        logger.warning(f"{path} has no column fold: that it had not seen the records is believed")
    return LoadedRun(
        name,
        path,
        PredictionRun(
            kind=FOREIGN,
            versions={},
            cost=Cost(device="unknown"),
            estimator=name,
            task=content.task,
            settings={},
            # neither dataset nor time of encoding are those of the other tool
            dataset=replace(content.dataset, fingerprint="", path="", reading=None),
            split=content.split,
            features="text",
            views=(),
            classes=content.classes,
            prior=content.prior,
            records=content.records,
            scores={},
        ),
        _predicted(path, cells, records, content.separator),
    )


def _check_folds(
    path: Path, theirs: Sequence[str | None], first: LoadedRun, ours: Sequence[str]
) -> None:
    """Raise a :class:`MismatchError` unless records share a fold of a file as they do in the run.

    A column of the corpus names folds in its own way. Where one fold is held out of records to
    train on, it is that of validation.
    """
    pairs = {(str(name or "").strip(), fold) for name, fold in zip(theirs, ours, strict=True)}
    single, names = first.content.split.folds == 1, {name.lower() for name, _ in pairs}
    held_out = VALIDATION if single else names - {"train", ""}
    wrong = [
        (name, fold)
        for name, fold in pairs
        # one name for each fold, and one fold for each name
        if sum(name == n or fold == f for n, f in pairs) > 1
        or ("test" in (name.lower(), fold) and name.lower() != fold)
        or (name != fold and name.lower() not in {*held_out, "test"})
    ]
    if wrong:
        name, fold = min(wrong, key=lambda pair: (pair[0] == pair[1], pair))
        raise MismatchError(
            f"{path} has another fold than {first.path}, such as {name!r} instead of {fold!r}. "
            "Predict each record by a model that was trained without its fold in split.parquet."
        )


def _cells(path: Path, records: Predictions) -> dict[str, tuple[str | None, ...]]:
    """The columns of a file of predictions, in the order of the records."""
    proba = [f"proba_{label}" for label in records.classes]
    named = {"fold": {*fold_names(records.fold)}, "y_pred": {*records.classes}}
    # the table below a corpus: all formats, quotings and separators work, and numbers are ids too
    with input_files(path) as files, closing(open_table(files[0])) as table:
        columns = table.columns
        keep = [column for column in ("fold", "y_pred", *proba) if column in columns]
        stated = {column for column in columns if column.startswith("proba_")}
        # the probabilities of some classes say nothing of the others
        if "id" not in columns or keep in ([], ["fold"]) or stated not in (set(), {*proba}):
            each = f", proba_ of each class and no other ({', '.join(proba):.200}), or both"
            expected = f"y_pred{each if proba else ''}"
            lacking = "y_pred" if "id" in columns else "id"
            quoted = " Quotes are read in a .csv." if any('"' in c for c in columns) else ""
            raise UsageError(
                f"{path}: expected the columns id, and {expected}; it has "
                f"{', '.join(map(repr, columns)):.200}.{quoted or did_you_mean(lacking, columns)}"
            )
        for name in ("id", *keep):
            if problem := table.problem_of(name):
                raise CorpusError(problem)
        rows = list(table.rows(["id", *keep]))
    cells = [row.cells for row in rows if isinstance(row, Row) and row.cells[0]]
    if bad := len(rows) - len(cells):
        why = next((f": {row.reason}, {row.detail}" for row in rows if isinstance(row, Reject)), "")
        problem = f"{bad:,} of its {len(rows):,} rows are damaged or have no id"
        raise UsageError(f"{path}: {problem}{why}.")
    named_ids = spelled_as([row[0] for row in cells], {*records.ids})
    by_id = {name: row[1:] for name, row in zip(named_ids, cells, strict=True)}
    for place, ids in ((path, named_ids), ("the runs", records.ids)):
        if twice := [name for name, n in Counter(ids).items() if n > 1]:
            raise UsageError(
                f"{path} is joined by id, and {count_text(len(twice), 'id')} of {place} "
                f"stand twice, such as {twice[0]!r}. Make ids unique."
            )
    if missing := [name for name in records.ids if name not in by_id]:
        # ids that are written in another way, as 007 or x7, are recognised at a glance
        shown = ", ".join(map(repr, list(by_id)[:3])) or "none"
        raise MismatchError(
            f"{path} has no prediction for {len(missing):,} of {len(records.ids):,} records, such "
            f"as id {missing[0]!r}; its own ids are {shown} … Give one for each record of the runs."
        )
    if surplus := len(by_id) - len(records.ids):
        count = count_text(surplus, "prediction")
        logger.warning(f"{path}: {count} for other ids left out")
    values = zip(*map(by_id.__getitem__, records.ids), strict=True)
    return {
        name: spelled_as(column, named.get(name, ()))
        for name, column in zip(keep, values, strict=True)
    }


def spelled_as(cells: Sequence[str | None], names: Collection[str]) -> tuple[str | None, ...]:
    """Return cells by these names, of which ``1`` may be spelled ``1.0``, as beside gaps, or back.

    Letters may be composed or decomposed.
    """
    spellings = {f"{name}.0": name for name in names}
    spellings |= {name.removesuffix(".0"): name for name in names if name.endswith(".0")}
    spellings |= {normalize(form, name): name for name in names for form in ("NFC", "NFD")}
    return tuple(cell if cell in names else spellings.get(str(cell), cell) for cell in cells)


def _predicted(
    path: Path, cells: dict[str, tuple[str | None, ...]], records: Predictions, separator: str
) -> Predictions:
    """Probabilities and decisions of a file; without probabilities it is certain of its decisions.

    Without decisions the likeliest class is predicted.
    """

    def numbers(column: str) -> Float64:
        values = np.array([float_of(cell) for cell in cells[column]])
        if bad := [cells[column][i] for i in np.flatnonzero(~np.isfinite(values))]:
            problem = f"{len(bad):,} values of {column} are not numbers, such as {bad[0]!r}"
            raise UsageError(f"{path}: {problem}.")
        return values

    classes = records.classes
    if not classes:
        return records.with_proba(numbers("y_pred"))
    y_pred, certain = None, np.empty(0)
    if "y_pred" in cells:
        # the parts of a set are spelled as single labels are
        named = [
            spelled_as(parts_of(cell, separator), classes) if records.of_sets else [cell]
            for cell in cells["y_pred"]
        ]
        if unknown := [label for label in chain.from_iterable(named) if label not in classes]:
            raise UsageError(
                f"{path} predicts {count_text(len(unknown), 'label')} unknown to the runs, such as "
                f"{unknown[0]!r}; expected {', '.join(classes[:10])}."
            )
        sets = set_numbers([[*map(str, labels)] for labels in named], classes)
        y_pred, certain = sets if records.of_sets else sets.argmax(1), sets.astype(np.float64)
    if f"proba_{classes[0]}" in cells:
        proba = np.stack([numbers(f"proba_{label}") for label in classes], axis=1)
        if problem := invalid_proba(records.row, proba, sets=records.of_sets):
            raise UsageError(f"{path}: {problem}; expected numbers from 0 to 1 with the sum 1.")
        return records.with_proba(proba, y_pred)
    logger.warning(
        f"{path} has no probabilities: log-loss, Brier score and ROC-AUC take its decisions for "
        "certain"
    )
    return records.with_proba(certain, y_pred)


def _with_shared_words(runs: list[LoadedRun]) -> list[LoadedRun]:
    """Runs on the words that all predict, since models cut long sentences at different words."""
    if not runs[0].predictions.of_words:
        return runs

    def keys_of(p: Predictions) -> Int64:
        # a test set of its own counts its rows from 0 as the folds do: its keys are the odd ones
        return np.asarray(2 * p.keys + (p.fold == TEST), np.int64)

    all_keys = [keys_of(run.predictions) for run in runs]
    keys, counts = np.unique(np.concatenate(all_keys), return_counts=True)
    # a probe has no test set, and leaves those of the others as they are
    tested = sum(bool((each % 2).any()) for each in all_keys)
    common = keys[counts == np.where(keys % 2, tested, len(runs))]
    if len(common) == len(keys):
        return runs
    left_out = count_text(len(keys) - len(common), "word")
    logger.warning("%s left out, which not all runs predict", left_out)

    return _of_some(runs, lambda p: np.flatnonzero(np.isin(keys_of(p), common)))


def _of_some(runs: Sequence[LoadedRun], chosen: Callable[[Predictions], Int64]) -> list[LoadedRun]:
    """Runs on chosen records alone, in their inner predictions too, which blends need."""

    def some(p: Predictions) -> Predictions:
        inner = p.inner and some(p.inner)
        return replace(p.take(chosen(p)), inner=inner)

    return [run._replace(predictions=some(run.predictions)) for run in runs]


def _check_same(first: LoadedRun, run: LoadedRun) -> None:
    expected, predictions = first.predictions, run.predictions
    # a probe, or a file of another tool, says nothing of the test set that the others have
    if not run.has_model and not len(predictions.test):
        expected = expected.take(expected.out_of_fold)
    if predictions.classes != expected.classes:
        names = (f"{', '.join(p.classes):.80}" for p in (predictions, expected))
        mine, its = (name or "values" for name in names)
        raise MismatchError(
            f"{run.path} predicts {mine}; {first.path} {its}. Compare runs on the same label "
            "column and of one task."
        )
    for name in ("keys", "fold", "y"):
        # NaN stands for the label of a test record that has none
        values = getattr(predictions, name)
        if not np.array_equal(values, getattr(expected, name), equal_nan=values.dtype.kind == "f"):
            different = "other true labels" if name == "y" else "other records"
            raise MismatchError(
                f"{run.path} has predictions for {different} than {first.path}. "
                "Make both on the same corpus, label column and split."
            )


def input_differences(runs: Sequence[LoadedRun]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the settings of the input in which runs differ, with names of runs by value.

    Frozen vectors and a fine-tuned encoder are compared fairly only if both read the same tokens.
    """
    by_setting: dict[str, dict[str, tuple[str, ...]]] = {}
    for run in runs:
        for setting, value in _input_settings(run.content).items():
            names = by_setting.setdefault(setting, {})
            names[value] = (*names.get(value, ()), run.name)
    return {setting: names for setting, names in by_setting.items() if len(names) > 1}


def _input_settings(content: PredictionRun) -> dict[str, str]:
    """Name and value of each setting that shaped the input of a run."""
    dataset = content.dataset
    if content.features == "tfidf" or content.kind == FOREIGN:
        return {}  # the whole text, without an encoder; or unknown
    assert dataset.model is not None
    files = json.dumps(sorted(dataset.model.sha256.items())).encode()
    digest = hashlib.sha256(files).hexdigest()
    settings = {"model": f"{dataset.names.model} (files {digest[:8]})"}
    tokens: Any = content.tokens if isinstance(content, FinetuneRun) else dataset.vectors
    if tokens is not None:
        settings["prefix"] = repr(tokens.prefix)
        names = ["max_length", "on_long"] + ["stride"] * (tokens.on_long == "window")
        settings |= {name: str(getattr(tokens, name)) for name in names}
        special = getattr(tokens, "special_tokens", True)  # fine-tuning always uses them
        settings["special_tokens"] = "include" if special else "exclude"
    return settings


class Dataset(NamedTuple):
    """A dataset that runs were made from, with their names, and that is still what it was."""

    path: Path
    manifest: Manifest
    runs: list[str]

    def encode_seconds(self, level: str) -> float | None:
        """Return the time of 1,000 records or words, each encoded.

        ``None`` if the dataset was made in several goes, or nine tenths of it by reuse.
        """
        rows = sum(file.rows for file in self.manifest.files_of(f"{level}s"))
        try:
            lines = Layout(self.path).log.read_text("utf-8").splitlines()
            # the log of the job: a resumed one timed only the shards that it made
            finished = [e for e in map(json.loads, lines) if e["event"] == "finished"]
            tokens = self.manifest.totals.ledger["tokens_kept"]
            # equal texts are encoded once, and reused ones not at all; a new one has to be. What
            # else a job does is little beside a tenth of its tokens
            seconds = [
                e["seconds"] * tokens / min(tokens, e["tokens_encoded"])
                for e in finished
                if not e["shards_found"] and 10 * e["tokens_encoded"] > tokens
            ]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return seconds[-1] / rows * 1_000 if seconds and rows else None


def find_datasets(runs: Sequence[LoadedRun]) -> tuple[Dataset, ...]:
    """The datasets of runs that are still where they were, unchanged."""
    datasets: dict[str, Dataset] = {}
    for run in runs:
        named = run.content.dataset
        path = run.path / named.path
        if not named.path or not is_dataset(path):
            continue
        manifest = read_manifest(path)
        # another dataset may have taken the place since
        if manifest.fingerprint == named.fingerprint:
            dataset = datasets.setdefault(manifest.fingerprint, Dataset(path, manifest, []))
            dataset.runs.append(run.name)
    return tuple(datasets.values())
