"""Tests between scores on the same held-out records: of views, and along a learning curve."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from embedkit.runs.metrics import (
    LOWER_IS_BETTER,
    beta_of,
    classification_metrics,
    regression_metrics,
)
from embedkit.runs.resampling import (
    TEST_SAMPLES,
    Metric,
    Score,
    difference_interval,
    paired_tests,
    resample,
)
from embedkit.types import Float64, Int64

__all__ = ["compare_to_best", "rise_of"]


def compare_to_best(
    outputs: Mapping[str, Float64],
    y: NDArray[np.generic],
    *,
    metric: str,
    unit: Int64,
    seed: int,
    samples: int = TEST_SAMPLES,
) -> dict[str, float | None]:
    """Test every view against the one with the best score.

    The same records choose the best view, so that p is corrected for all pairs of views, as
    :func:`~embedkit.comparison.compare.compare` does for methods.

    Args:
        outputs: ``(n, classes)`` probabilities or ``(n,)`` values of every view.
        y: ``(n,)`` class numbers or values.
        metric: that is tested.
        unit: ``(n,)`` sampling unit of each record.
        seed: of the bootstrap.
        samples: number of bootstrap samples.

    Returns:
        Corrected p by view, 1 of the best one; ``None`` where a score is undefined.
    """
    names = list(outputs)
    metrics = {name: _metric(outputs[name], y, metric) for name in names}
    values = np.array([metrics[name].value(len(y)) for name in names])
    ranked = -values if metric in LOWER_IS_BETTER else values
    if not np.isfinite(ranked).any():
        return dict.fromkeys(names)
    best = int(np.nanargmax(ranked))
    drawn = resample(metrics, unit, seed=seed, samples=samples)
    pairs = list(combinations(range(len(names)), 2))
    _, corrected = paired_tests(
        values, np.stack([drawn[name] for name in names], axis=1), pairs,
        units=metrics[names[best]].units(unit, paired=True),
    )  # fmt: skip
    found: dict[str, float | None] = dict.fromkeys(names)
    found[names[best]] = 1.0
    for (one, other), p in zip(pairs, corrected, strict=True):
        if best in (one, other) and np.isfinite(p):
            found[names[other if one == best else one]] = float(p)
    return found


def rise_of(
    few: Float64,
    all_of_them: Float64,
    y: NDArray[np.generic],
    *,
    metric: str,
    unit: Int64,
    seed: int,
    samples: int = TEST_SAMPLES,
) -> Score:
    """Return the score of fits on all training records less that on few, with its 95 % interval.

    Args:
        few: ``(n, classes)`` probabilities or ``(n,)`` values of the fits on few.
        all_of_them: the same of the fits on all.
        y: ``(n,)`` class numbers or values.
        metric: of the difference.
        unit: ``(n,)`` sampling unit of each record.
        seed: of the bootstrap.
        samples: number of bootstrap samples.
    """
    metrics = {"few": _metric(few, y, metric), "all": _metric(all_of_them, y, metric)}
    drawn = resample(metrics, unit, seed=seed, samples=samples)
    value = metrics["all"].value(len(y)) - metrics["few"].value(len(y))
    units = metrics["all"].units(unit, paired=True)
    return Score(value, *difference_interval(value, drawn["all"] - drawn["few"], units=units))


def _metric(output: Float64, y: NDArray[np.generic], metric: str) -> Metric:
    if output.ndim == 1:
        return regression_metrics(np.asarray(y, np.float64), output)[metric]
    labels = np.asarray(y, np.int64)
    found = classification_metrics(labels, output, output.argmax(1), beta=beta_of(metric))
    return found[metric]
