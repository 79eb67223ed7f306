"""Load runs on one split side by side: the same held-out records in the same order."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import numpy as np

from embedkit.errors import MismatchError, UsageError
from embedkit.runs.content import PredictionRun, ProbeRun
from embedkit.runs.folder import read_run
from embedkit.runs.metrics import LOWER_IS_BETTER
from embedkit.runs.predictions import Predictions, read_predictions
from embedkit.types import ProgressCallback, no_progress, steps

__all__ = ["LoadedProbe", "LoadedRun", "RunSet", "read_runs"]


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A run folder with predictions.

    Attributes:
        name: its name in tables; the folder's name where that is unique.
        path: the folder.
        content: the content of ``run.json``.
        predictions: its predictions.
    """

    name: str
    path: Path
    content: PredictionRun
    predictions: Predictions


@dataclass(frozen=True, slots=True)
class LoadedProbe:
    """A probe folder; its attributes are those of :class:`LoadedRun`."""

    name: str
    path: Path
    content: ProbeRun


@dataclass(frozen=True, slots=True)
class RunSet:
    """Runs that can be compared.

    Attributes:
        runs: those with predictions, as they were given.
        probes: those that score every layer, which have no predictions; best first, by the score
            of views chosen in inner folds, in the metric of the one that was given first.
    """

    runs: tuple[LoadedRun, ...]
    probes: tuple[LoadedProbe, ...]

    @property
    def all(self) -> tuple[LoadedRun | LoadedProbe, ...]:
        """Runs and probes."""
        return (*self.runs, *self.probes)

    @property
    def records(self) -> Predictions:
        """The predictions of the first run; all have the same records, folds and true labels."""
        return self.runs[0].predictions

    @property
    def has_own_test_set(self) -> bool:
        """Whether the test set is a corpus of its own."""
        return self.runs[0].content.test_set is not None


def read_runs(paths: Sequence[str | Path], *, progress: ProgressCallback = no_progress) -> RunSet:
    """Read runs that were made under the same split; ``progress`` is called after every run.

    Raises:
        TypeError: ``paths`` is a single string.
        UsageError: a folder is no run, is given twice, or none has predictions.
        MismatchError: splits, labels or true values differ.
        DamagedError: a file of a run cannot be read.
    """
    if isinstance(paths, str):
        raise TypeError(f"runs={paths!r} is a string; pass a list of folders.")
    folders = [Path(path) for path in paths]
    twice = [p for p, n in Counter(p.resolve() for p in folders).items() if n > 1]
    if twice:
        raise UsageError(f"{twice[0].name} is given twice. Give every run once.")
    runs: list[LoadedRun] = []
    probes: list[LoadedProbe] = []
    fingerprints: dict[str, Path] = {}
    step = steps(progress, "reading", len(folders), "runs")
    for name, path in zip(_names(folders), folders, strict=True):
        content = read_run(path)
        if not isinstance(content, PredictionRun | ProbeRun):
            raise UsageError(f"{path} is a {content.kind} run, which cannot be compared.")
        fingerprints.setdefault(content.split.fingerprint, path)
        if isinstance(content, ProbeRun):
            probes.append(LoadedProbe(name, path, content))
        else:
            predictions = read_predictions(path, content.classes)
            runs.append(LoadedRun(name, path, content, predictions))
        step()
    _check_level((*runs, *probes))
    if len(fingerprints) > 1:
        first, other = list(fingerprints.values())[:2]
        raise MismatchError(
            f"{other} was made under another split than {first}, so that their scores are of other "
            "records. Make one split (embedkit split) and give it to both with --split."
        )
    if not runs:
        raise UsageError(
            "none of the runs has predictions (a probe has none). "
            "Give runs of embedkit train or finetune."
        )
    runs = _with_shared_words(_with_shared_records(runs))
    for run in runs[1:]:
        _check_same(runs[0], run)
    return RunSet(tuple(runs), tuple(_best_first(probes)))


def _best_first(probes: list[LoadedProbe]) -> list[LoadedProbe]:
    if not probes:
        return []
    metric = probes[0].content.metric
    sign = 1 if metric in LOWER_IS_BETTER else -1
    return sorted(
        probes, key=lambda one: (one.content.metric != metric, sign * one.content.nested.value)
    )


def _names(folders: Sequence[Path]) -> list[str]:
    short = [folder.resolve().name for folder in folders]
    count = Counter(short)
    return [
        name if count[name] == 1 else str(folder)
        for name, folder in zip(short, folders, strict=True)
    ]


def _with_shared_records(runs: list[LoadedRun]) -> list[LoadedRun]:
    """Runs without their test sets, if these differ: what all have in common is compared."""
    sources = {one.content.test_set and one.content.test_set.source for one in runs}
    if len(sources) == 1:
        return runs
    logger.warning(
        "the runs have different test sets, or only some of them have one: they are compared on "
        "the records of the folds alone"
    )
    return [
        replace(
            run,
            content=replace(run.content, test_set=None),
            predictions=replace(
                run.predictions.take(run.predictions.out_of_fold), inner=run.predictions.inner
            ),
        )
        for run in runs
    ]


def _with_shared_words(runs: list[LoadedRun]) -> list[LoadedRun]:
    """Runs on the words that all of them predict: models cut long sentences at different words."""
    keys = [np.unique(run.predictions.keys) for run in runs]
    common = reduce(np.intersect1d, keys)
    if not runs[0].predictions.of_words or all(len(one) == len(common) for one in keys):
        return runs
    logger.warning(
        "%s words are left out, which not all runs predict",
        f"{len(reduce(np.union1d, keys)) - len(common):,}",
    )

    def some(p: Predictions) -> Predictions:
        return p.take(np.flatnonzero(np.isin(p.keys, common)))

    return [
        replace(run, predictions=replace(
            some(run.predictions),
            inner=None if run.predictions.inner is None else some(run.predictions.inner),
        ))
        for run in runs
    ]  # fmt: skip


def _check_level(runs: Sequence[LoadedRun | LoadedProbe]) -> None:
    """Raise a :class:`MismatchError` if some runs label words and others records."""
    by_level = {run.content.level: run for run in runs}
    if len(by_level) > 1:
        words, records = by_level["word"], by_level["sentence"]
        raise MismatchError(
            f"{words.path} labels words, {records.path} labels records. Compare runs of one level."
        )


def _check_same(first: LoadedRun, run: LoadedRun) -> None:
    expected, found = first.predictions, run.predictions
    if found.classes != expected.classes:
        raise MismatchError(
            f"{run.path} predicts {_labels(found)}, {first.path} {_labels(expected)}. "
            "Compare runs on the same label column."
        )
    for name in ("keys", "fold", "repeat", "y"):
        one, other = getattr(found, name), getattr(expected, name)
        if not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
            what = "other true labels" if name == "y" else "other records"
            raise MismatchError(
                f"{run.path} has predictions for {what} than {first.path}. "
                "Make both on the same corpus, label column and split."
            )


def _labels(records: Predictions) -> str:
    if not records.classes:
        return "values"
    names = ", ".join(records.classes[:5])
    return f"the labels {names}{' …' if len(records.classes) > 5 else ''}"
