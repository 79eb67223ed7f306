"""Error rates by simulation: how often verdicts are wrong and intervals miss a known truth.

    python -m benchmarks.simulate [--repetitions 1000] [--only single several blends]
    python -m benchmarks.simulate --only single --worlds values --repetitions 4000

Every world draws labels and predictions of methods from a known distribution: records that are
independent, groups whose records resemble each other, repeated texts, rare positives. Scores,
intervals, tests and blends are the project's own. ``docs/method.md`` shows the tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
from scipy import stats

from embedkit.comparison.blend import blend
from embedkit.runs.metrics import LOWER_IS_BETTER, classification_metrics, regression_metrics
from embedkit.runs.predictions import Predictions, metrics_of
from embedkit.runs.resampling import (
    Metric,
    difference_interval,
    influences,
    interval,
    paired_tests,
    unit_count,
)
from embedkit.runs.splits import assign_folds, inner_folds
from embedkit.runs.targets import Target
from embedkit.types import Float64, Int64

CLASSES = ("accuracy", "macro_f1", "log_loss", "brier", "roc_auc", "average_precision", "f2",
           "precision", "recall", "balanced_accuracy", "mcc")  # fmt: skip
VALUES = ("rmse", "mae", "r2", "pearson", "spearman")
SEVERAL = ("accuracy", "macro_f1", "log_loss", "roc_auc", "average_precision", "f2", "rmse", "r2",
           "spearman")  # fmt: skip
LARGE = 1_000_000
BETTER = {True: 0.35, False: 0.15}
"""How much stronger the better of two methods is, of classes and of values."""


@dataclass(frozen=True)
class World:
    """A distribution of labels and predictions.

    Attributes:
        name: for tables.
        positives: fraction of the second class; 0 for a regression.
        group: fewest and most records of a group.
        alike: correlation of the noise of a group's records, labels included.
        freedom: of Student's t, of which the noise is; of normal noise infinite.
    """

    name: str
    positives: float = 0.4
    group: tuple[int, int] = (1, 1)
    alike: float = 0.0
    freedom: float = np.inf

    def units(self, random: np.random.Generator, count: int) -> Int64:
        """Return the unit ``(count,)`` of each record."""
        low, high = self.group
        sizes = random.integers(low, high + 1, size=count)
        return np.repeat(np.arange(count), sizes)[:count]

    def draw(
        self, random: np.random.Generator, count: int, methods: Sequence[float]
    ) -> tuple[Int64, Float64, list[Float64]]:
        """Draw records.

        Args:
            random: generator.
            count: number of records.
            methods: strength of each method; those of the same strength are equally good.

        Returns:
            Unit and label ``(count,)`` of each record, and the predictions of each method.
        """
        unit = self.units(random, count)

        def one(size: int) -> Float64:
            if np.isinf(self.freedom):
                return random.normal(size=size)
            return random.standard_t(self.freedom, size=size)

        def noise() -> Float64:
            own, shared = one(count), one(unit[-1] + 1)[unit]
            return np.asarray(np.sqrt(1 - self.alike) * own + np.sqrt(self.alike) * shared)

        latent, common = noise(), noise()
        if not self.positives:
            return unit, latent, [s * latent + 0.5 * common + 0.5 * noise() for s in methods]
        edge = stats.norm.isf(self.positives)
        y = (latent > edge).astype(np.float64)
        prior = np.log(self.positives / (1 - self.positives))
        found = []
        for strength in methods:
            score = strength * y + np.sqrt(0.5) * (common + noise())
            odds = prior + strength * (score - strength / 2)
            found.append(1 / (1 + np.exp(-odds)))
        return unit, y.astype(np.int64), found

    def metrics(self, y: Float64, predicted: Float64) -> dict[str, Metric]:
        """Return the metrics that tables show; a rare class is predicted from 0.2 on."""
        if not self.positives:
            found = regression_metrics(y, predicted)
            return {name: found[name] for name in VALUES}
        cut = 0.5 if self.positives > 0.2 else 0.2
        proba = np.stack([1 - predicted, predicted], axis=1)
        y_pred = (predicted >= cut).astype(np.int64)
        found = classification_metrics(y.astype(np.int64), proba, y_pred, beta=2)
        return {name: found[name] for name in CLASSES}


WORLDS = (
    World("independent"),
    World("groups of 10", group=(10, 10), alike=0.5),
    World("texts 1 to 4 times", group=(1, 4), alike=1.0),
    World("5 % positives", positives=0.05),
    World("values", positives=0),
    World("values, groups of 10", positives=0, group=(10, 10), alike=0.5),
    World("unequal groups, long tails", group=(1, 19), alike=0.5, freedom=5),
    World("values, unequal groups, long tails", positives=0, group=(1, 19), alike=0.5, freedom=5),
)


def strength(world: World) -> float:
    """Return the strength of an ordinary method."""
    return 1.5 if world.positives else 0.8


@cache
def truth(world: World, strong: float) -> dict[str, float]:
    """Return the metrics of a method in the whole population, from very many records."""
    _, y, (predicted,) = world.draw(np.random.default_rng(1), LARGE, [strong])
    return {name: m.value(LARGE) for name, m in world.metrics(y, predicted).items()}


def single(
    world: World, count: int, *, repetitions: int, flips: int, seed: int = 0
) -> dict[str, dict[str, float]]:
    """Return, by metric, rates for two equal methods and one that is better.

    ``false verdicts``: two equal methods are called different (p below 0.05). ``coverage``: the
    interval of a score holds the truth. ``difference``: that of the difference does. ``power``:
    the better method is called different.
    """
    usual = strength(world)
    better = usual + BETTER[world.positives > 0]
    true, true_better = truth(world, usual), truth(world, better)
    found: dict[str, list[tuple[bool, ...]]] = {name: [] for name in true}
    for number in range(repetitions):
        random = np.random.default_rng([seed, count, number])
        unit, y, predicted = world.draw(random, count, [usual, usual, better])
        metrics = {(m, k): metric for k, p in enumerate(predicted)
                   for m, metric in world.metrics(y, p).items()}  # fmt: skip
        influence = influences(metrics, unit, seed=number)
        for m in true:
            value = np.array([metrics[m, k].value(count) for k in range(3)])
            moved = np.stack([influence[m, k] for k in range(3)], axis=1)
            metric = metrics[m, 0]
            low, high = interval(
                value[0], moved[:, 0], scale=metric.scale, units=metric.units(unit)
            )
            wide = difference_interval(value[2] - value[0], moved[:, 2] - moved[:, 0])
            p, _ = paired_tests(
                value, moved, [(0, 1), (0, 2)], units=unit_count(unit),
                rests_on=metric.units(unit, paired=True), seed=number, flips=flips,
            )  # fmt: skip
            found[m].append((
                p[0] < 0.05,
                low <= true[m] <= high,
                wide[0] <= true_better[m] - true[m] <= wide[1],
                p[1] < 0.05,
            ))  # fmt: skip
    names = ("false verdicts", "coverage", "difference", "power")
    return {
        m: dict(zip(names, np.mean(rates, axis=0).tolist(), strict=True))
        for m, rates in found.items()
    }


def several(
    world: World, count: int, methods: int, *, repetitions: int, flips: int, seed: int = 0
) -> dict[str, float]:
    """Return, by metric, how often the best of equal methods is called better than another."""
    usual = strength(world)
    wrong: dict[str, list[bool]] = {m: [] for m in truth(world, usual) if m in SEVERAL}
    pairs = list(combinations(range(methods), 2))
    for number in range(repetitions):
        random = np.random.default_rng([seed, count, methods, number])
        unit, y, predicted = world.draw(random, count, [usual] * methods)
        metrics = {(m, k): metric for k, p in enumerate(predicted)
                   for m, metric in world.metrics(y, p).items() if m in wrong}  # fmt: skip
        influence = influences(metrics, unit, seed=number)
        for m, found in wrong.items():
            value = np.array([metrics[m, k].value(count) for k in range(methods)])
            moved = np.stack([influence[m, k] for k in range(methods)], axis=1)
            best = int(np.argmax(-value if m in LOWER_IS_BETTER else value))
            _, p = paired_tests(
                value, moved, pairs, units=unit_count(unit),
                rests_on=metrics[m, 0].units(unit, paired=True), seed=number, flips=flips,
            )  # fmt: skip
            found.append(any(p[i] < 0.05 for i, pair in enumerate(pairs) if best in pair))
    return {m: float(np.mean(found)) for m, found in wrong.items()}


def noise_run(random: np.random.Generator, y: Int64, fold: Int64, width: int) -> Predictions:
    """Return a run whose features know nothing of the labels, with predictions of inner folds."""
    from sklearn.linear_model import LogisticRegression

    count = len(y)
    X, row = random.normal(size=(count, width)), np.arange(count)
    target, ids = Target(y, ("0", "1")), [str(i) for i in range(count)]

    def predict(train: Int64, test: Int64) -> Float64:
        found = (
            LogisticRegression(solver="newton-cholesky")
            .fit(X[train], y[train])
            .predict_proba(X[test])
        )
        return np.asarray(found, np.float64)

    subsets = []
    for f in np.unique(fold):
        train, test = np.flatnonzero(fold != f), np.flatnonzero(fold == f)
        inner = np.empty((len(train), 2))
        for known, held in inner_folds(y[train], train, 3, seed=0):
            inner[held] = predict(train[known], train[held])
        where: dict[str, Any] = {"row": row, "ids": ids, "target": target, "fold": f}
        subsets.append(Predictions.of_fold(
            test, predict(train, test), inner=Predictions.of_fold(train, inner, **where), **where
        ))  # fmt: skip
    return Predictions.joined(subsets)


def blends(
    count: int, *, repetitions: int, runs: int = 4, width: int = 20, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Return mean ROC-AUC and its standard error for runs on noise and for their blends."""
    found: dict[str, list[float]] = {"runs": [], "blend: mean": [], "blend: stacked": []}
    for number in range(repetitions):
        random = np.random.default_rng([seed, count, number])
        y = random.permutation(np.arange(count) % 2)
        fold = assign_folds(y, np.arange(count), 5, seed=number)
        made = [noise_run(random, y, fold, width) for _ in range(runs)]
        blended = [blend(kind, made).predictions for kind in ("mean", "stacked")]
        areas = [metrics_of(p)["roc_auc"].value(count) for p in [*made, *blended]]
        found["runs"].append(float(np.mean(areas[:runs])))
        found["blend: mean"].append(areas[-2])
        found["blend: stacked"].append(areas[-1])
    return {
        name: (float(np.mean(areas)), float(np.std(areas) / np.sqrt(repetitions)))
        for name, areas in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=1_000)
    parser.add_argument("--flips", type=int, default=1_000, help="random signs of a test")
    parser.add_argument("--only", nargs="+", default=["single", "several", "blends"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[200, 2_000])
    names = [world.name for world in WORLDS]
    parser.add_argument("--worlds", nargs="+", choices=names, default=names, metavar="WORLD")
    options = parser.parse_args()
    worlds = [world for world in WORLDS if world.name in options.worlds]
    how = {"repetitions": options.repetitions, "flips": options.flips}
    fewer = how | {"repetitions": options.repetitions * 2 // 5}
    if "single" in options.only:
        for world in worlds:
            found = {n: single(world, n, **how) for n in options.sizes}
            print(f"\ntwo methods: {world.name}\n")
            names = list(found[options.sizes[0]])
            _table(names, {
                f"{rate}, {n}": {m: found[n][m][rate] for m in names}
                for rate in ("false verdicts", "coverage", "difference", "power")
                for n in options.sizes
            })  # fmt: skip
    if "several" in options.only:
        for world in (w for w in worlds if w.name in ("independent", "groups of 10", "values")):
            columns = {
                f"{methods} methods, {n}": several(world, n, methods, **fewer)
                for methods in (3, 8, 12) for n in options.sizes
            }  # fmt: skip
            print(f"\nbest of equal methods: {world.name}\n")
            _table([m for m in SEVERAL if m in next(iter(columns.values()))], columns)
    if "blends" in options.only:
        print("\n| ROC-AUC on noise (standard error) |", *(f"{n} |" for n in (100, 200, 400)))
        print("|---|---:|---:|---:|")
        areas = [blends(n, repetitions=options.repetitions // 5) for n in (100, 200, 400)]
        for name in areas[0]:
            print(f"| {name} |", *(f"{a[name][0]:.3f} ({a[name][1]:.3f}) |" for a in areas))


def _table(names: Sequence[str], columns: dict[str, dict[str, float]]) -> None:
    print("| metric |", " | ".join(columns), "|")
    print("|---|" + "---:|" * len(columns))
    for name in names:
        print(f"| {name} |", " | ".join(f"{found[name]:.3f}" for found in columns.values()), "|",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
