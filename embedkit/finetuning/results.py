"""What trained models predict, and the predictions of a run that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from embedkit.finetuning.calibration import with_temperature
from embedkit.finetuning.data import RunRecords
from embedkit.finetuning.validation import Division, FoldRecords, choose_thresholds
from embedkit.runs.metrics import Threshold
from embedkit.runs.predictions import Predictions
from embedkit.runs.split_files import TEST
from embedkit.types import Float64

__all__ = ["ModelResult", "RunPredictions", "run_predictions", "uncalibrated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResult:
    """What training one model gave, as a file keeps it until the run is complete.

    Probabilities are ``(m, classes)``, values of a regression ``(m,)``, as nested lists.

    Attributes:
        repeat: number of the repeat.
        fold: number of the fold.
        seed: the seed that it was trained with.
        log: lines of ``training.jsonl``.
        epoch: the epoch that was kept.
        fit_seconds: seconds of training.
        predict_seconds: seconds to predict the held-out records.
        parameters: number of trained parameters.
        temperature: that the logits were divided by.
        proba: of the held-out records of the fold.
        test_proba: of the test set.
        valid_proba: of the validation records that chose the epoch.
        threshold_proba: of the validation records that choose thresholds in any fold.
    """

    repeat: int
    fold: int
    seed: int
    log: list[dict[str, Any]]
    epoch: float
    fit_seconds: float
    predict_seconds: float
    parameters: int
    temperature: float
    proba: list[Any]
    test_proba: list[Any]
    valid_proba: list[Any]
    threshold_proba: list[Any]


@dataclass(frozen=True, slots=True)
class RunPredictions:
    """Predictions of a run, and the thresholds that they were decided by.

    Attributes:
        predictions: out-of-fold, and of the test set; ``inner`` are those of validation records.
        thresholds: of each fold; ``None`` for the likeliest class.
        threshold: of the mean of all models.
    """

    predictions: Predictions
    thresholds: tuple[float | None, ...]
    threshold: float | None


def run_predictions(
    records: RunRecords,
    division: Division,
    results: Sequence[ModelResult],
    threshold: Threshold | None,
) -> RunPredictions:
    """Return the predictions of models that are all trained.

    Several seeds are averaged. The inner predictions of a fold are those of its validation records
    by its own models, which were fitted neither on them nor on the fold.

    Args:
        records: of the run.
        division: of its training records.
        results: of the models, one or more for every fold.
        threshold: how one of two classes is decided on; ``None``: the likelier one.
    """
    folds = division.folds
    models = [[r for r in results if (r.repeat, r.fold) == (f.repeat, f.fold)] for f in folds]
    each, final = _thresholds(division, models, threshold)
    found = [
        _fold_predictions(records, division, *one) for one in zip(folds, models, each, strict=True)
    ]
    if len(records.test_index):
        data, own = records.test_data, records.has_own_test_set
        found.append(Predictions.of_fold(
            records.test_index, _mean(results, lambda r: r.test_proba), row=data.row, ids=data.ids,
            target=records.test_target, fold=TEST, group=None if own else records.split.group,
            threshold=final,
        ))  # fmt: skip
    return RunPredictions(Predictions.joined(found), tuple(each), final)


def uncalibrated(results: Sequence[ModelResult]) -> list[ModelResult]:
    """Return the results with probabilities as they were before temperature scaling."""

    def undone(proba: list[Any], temperature: float) -> list[Any]:
        return list(with_temperature(np.array(proba), 1 / temperature)) if proba else []

    return [
        replace(r, proba=undone(r.proba, r.temperature),
                test_proba=undone(r.test_proba, r.temperature))
        for r in results
    ]  # fmt: skip


def _fold_predictions(
    records: RunRecords,
    division: Division,
    fold: FoldRecords,
    models: Sequence[ModelResult],
    threshold: float | None,
) -> Predictions:
    data = records.data
    common: dict[str, Any] = {
        "row": data.row, "ids": data.ids, "target": records.target, "fold": fold.fold,
        "repeat": fold.repeat, "group": records.split.group, "threshold": threshold,
    }  # fmt: skip
    inner = None
    if len(fold.valid):
        proba = _mean(models, lambda r: r.valid_proba)
        if len(fold.threshold):
            seen = np.isin(division.shared[1], fold.threshold)
            chosen = _mean(models, lambda r: r.threshold_proba)[seen]
            proba = np.concatenate([proba, chosen])
        index = np.concatenate([fold.valid, fold.threshold])
        inner = Predictions.of_fold(index, proba, **common)
    return Predictions.of_fold(
        fold.held_out, _mean(models, lambda r: r.proba), inner=inner, **common
    )


def _thresholds(
    division: Division, models: Sequence[Sequence[ModelResult]], threshold: Threshold | None
) -> tuple[list[float | None], float | None]:
    """Threshold of each fold, and that of the mean of all models."""
    value = None if threshold is None else threshold.value
    if threshold is None or value is not None:
        return [value] * len(models), value
    index = division.shared[1]
    held_out = np.array([np.isin(index, fold.held_out) for fold in division.folds])
    proba = np.array([_mean(some, lambda r: r.threshold_proba)[:, 1] for some in models])
    each, final = choose_thresholds(threshold, division.target.y[index], proba, held_out)
    return [*each], final


def _mean(models: Sequence[ModelResult], of: Callable[[ModelResult], list[Any]]) -> Float64:
    return np.asarray(np.mean([of(model) for model in models], axis=0), np.float64)
